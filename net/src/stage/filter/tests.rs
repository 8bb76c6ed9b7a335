//! The language, and the filter against a plain model.

use super::*;
use crate::maker::FrameMaker;
use crate::testing::{Dice, pushed};

fn rules(text: &[&str]) -> Rules {
    Rules::parse(text, Action::Deny).unwrap()
}

fn pass(filter: &mut Filter, direction: Direction, frame: &[u8], now_ns: u64) -> bool {
    let mut burst = Burst::new();
    pushed(&mut burst, frame, 300).strip_tag().unwrap();
    filter.pass(direction, &burst.frames()[0], &burst, now_ns).is_ok()
}

fn filter_of(rules: Rules) -> (Filter, Arc<FilterCore>) {
    let core = FilterCore::new(&rules);
    (Filter::new(rules, Arc::clone(&core), 3), core)
}

use Direction::{Received, Sent};

#[test]
fn what_is_wrong_with_a_rule_is_said() {
    let cases = [
        ("", "rule 1 ends after '': a rule begins with allow or deny"),
        ("permit tcp", "rule 1: 'permit': a rule begins with allow or deny"),
        ("allow tcp to", "rule 1 ends after 'to': an address such as"),
        ("allow tcp to 10.0.0.300", "rule 1: '10.0.0.300': an address such as"),
        ("allow ipv4 to 10.0.0.1/8", "rule 1: '10.0.0.1/8': the length after the /"),
        ("allow ipv4 to 10.0.0.0/33", "rule 1: '10.0.0.0/33': the length after the /"),
        ("allow tcp to any port 80-70", "rule 1: '80-70': a port is"),
        ("allow tcp to any port 65536", "rule 1: '65536': a port is"),
        ("allow tcp to any from any", "rule 1: 'from': here may be, in this order"),
        ("allow tcp vlan 4095", "rule 1: '4095': a VLAN is"),
        ("allow arp to 10.0.0.1", "rule 1: such frames have no IP addresses"),
        ("allow icmp to any port 9", "rule 1: ports are TCP's and UDP's"),
        ("allow arp keep", "rule 1: only tcp, udp, icmp and icmpv6 have"),
        ("deny tcp keep", "rule 1: what is denied has no"),
        ("allow tcp from fd00::1 to 10.0.0.1", "rule 1: one address is of IPv4"),
        ("allow type 0x10000", "rule 1: '0x10000': a number has"),
    ];
    for (text, expected) in cases {
        let error = Rules::parse(&[text], Action::Deny).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
    let second = Rules::parse(&["allow", "deny it"], Action::Deny).unwrap_err().to_string();
    assert!(second.starts_with("rule 2: 'it'"), "{second}");
    let many = vec!["allow"; RULES_MAX + 1];
    assert_eq!(Rules::parse(&many, Action::Deny), Err(RuleError::TooMany(RULES_MAX + 1)));
}

#[test]
fn no_text_makes_the_parser_panic() {
    let mut dice = Dice::new(8);
    let words = [
        "allow",
        "deny",
        "sent",
        "received",
        "tcp",
        "udp",
        "arp",
        "type",
        "protocol",
        "vlan",
        "from",
        "to",
        "any",
        "port",
        "keep",
        "10.0.0.0/8",
        "::/0",
        "0.0.0.0/0",
        "80",
        "1-2",
        "-",
        "/",
        "0x",
        "\u{fc}",
        "::ffff:1.2.3.4/97",
    ];
    let mut good = 0;
    for _ in 0..200_000 {
        let count = dice.below(8);
        let text: Vec<_> =
            (0..count).map(|_| words[dice.below(words.len() as u64) as usize]).collect();
        good += u32::from(Rules::parse(&[text.join(" ")], Action::Allow).is_ok());
    }
    assert!(good > 500, "{good}");
}

#[test]
fn a_conversation_is_kept_until_it_ends_or_falls_silent() {
    let (mut filter, core) = filter_of(rules(&["allow sent tcp to 10.0.0.0/8 port 2000 keep"]));
    let there = |flags| FrameMaker::tcp4().tcp_flags(flags).build();
    let back = |flags| {
        let maker = FrameMaker::tcp4().tcp_flags(flags).ports(2000, 1000);
        maker.addresses(0x0a00_0002, 0x0a00_0001).build()
    };
    let second = 1_000_000_000;
    // Nobody from outside begins, and nothing begins in its middle.
    assert!(!pass(&mut filter, Received, &back(ether::SYN), 1));
    assert!(!pass(&mut filter, Sent, &there(ether::ACK), 1));
    assert!(pass(&mut filter, Sent, &there(ether::SYN), 2));
    assert!(pass(&mut filter, Received, &back(ether::SYN | ether::ACK), 3));
    assert!(pass(&mut filter, Sent, &there(ether::ACK), 3500 * second));
    assert!(pass(&mut filter, Received, &back(ether::FIN | ether::ACK), 3600 * second));
    assert!(pass(&mut filter, Sent, &there(ether::ACK), 3601 * second));
    assert!(!pass(&mut filter, Received, &back(ether::ACK), 3640 * second));
    assert_eq!((core.rules[0].frames.get(), core.kept.frames.get()), (1, 4));
    assert_eq!((core.default.frames.get(), core.flows_begun.get()), (3, 1));
    // Another port of the same two hosts is another conversation.
    assert!(pass(&mut filter, Sent, &there(ether::SYN), 4000 * second));
    let other = FrameMaker::tcp4().ports(2000, 1001).addresses(0x0a00_0002, 0x0a00_0001).build();
    assert!(!pass(&mut filter, Received, &other, 4000 * second));
}

#[test]
fn what_hides_its_headers_is_dropped_whatever_the_rules_say() {
    let (mut filter, core) = filter_of(Rules::parse::<&str>(&[], Action::Allow).unwrap());
    let whole = FrameMaker::tcp4().payload(10).build();
    assert!(pass(&mut filter, Sent, &whole, 0));
    for len in [14, 20, 33, 34, 36, 46] {
        assert!(!pass(&mut filter, Sent, &whole[..len], 0), "{len}");
    }
    assert_eq!(core.unreadable.frames.get(), 6);
    // A later fragment has no ports: only rules without ports are about it.
    let (mut filter, _) = filter_of(rules(&["allow tcp to any port 2000"]));
    let mut later = whole.clone();
    later[21] = 9;
    assert!(pass(&mut filter, Sent, &whole, 0) && !pass(&mut filter, Sent, &later, 0));
}

#[test]
fn the_table_of_conversations_is_bounded() {
    let (mut filter, core) = filter_of(rules(&["allow sent udp keep"]));
    for number in 0..4 * FLOWS_MAX as u32 {
        let frame = FrameMaker::udp4().addresses(0x0a00_0000 | number, 0x0a00_0002).build();
        assert!(pass(&mut filter, Sent, &frame, 5));
    }
    assert!(core.flows_lost.get() >= 3 * FLOWS_MAX as u64);
    // The last one is kept, whoever had to go for it.
    let last = 4 * FLOWS_MAX as u32 - 1;
    let answer = FrameMaker::udp4().addresses(0x0a00_0002, 0x0a00_0000 | last).ports(2000, 1000);
    assert!(pass(&mut filter, Received, &answer.build(), 6));
}

/// One end of a rule, by the book.
fn is_in(text: &str, address: u32) -> bool {
    let Some((net, length)) = text.split_once('/') else { return text == "any" };
    let net: std::net::Ipv4Addr = net.parse().unwrap();
    let length: u32 = length.parse().unwrap();
    length == 0 || net.to_bits() >> (32 - length) == address >> (32 - length)
}

/// What the model knows of a rule: what it was made of.
struct Plain {
    allow: bool,
    direction: Option<Direction>,
    tcp: Option<bool>,
    from: &'static str,
    to: &'static str,
    ports: Option<(u16, u16)>,
    keep: bool,
}

impl Plain {
    fn roll(dice: &mut Dice) -> Self {
        let nets = ["any", "10.0.0.0/30", "10.0.0.4/30", "10.0.0.0/8", "0.0.0.0/0", "10.0.0.1/32"];
        let mut net = || nets[dice.below(nets.len() as u64) as usize];
        let (from, to) = (net(), net());
        let allow = dice.one_in(2);
        let tcp = [None, Some(true), Some(false)][dice.below(3) as usize];
        let first = 1000 + dice.below(4) as u16;
        Self {
            allow,
            direction: [None, Some(Sent), Some(Received)][dice.below(3) as usize],
            tcp,
            from,
            to,
            ports: (tcp.is_some() && dice.one_in(2)).then(|| (first, first + dice.below(3) as u16)),
            keep: allow && tcp.is_some() && dice.one_in(2),
        }
    }

    fn text(&self) -> String {
        let mut text = if self.allow { "allow" } else { "deny" }.to_owned();
        text += match self.direction {
            None => "",
            Some(Sent) => " sent",
            Some(Received) => " received",
        };
        text += match self.tcp {
            None => "",
            Some(true) => " tcp",
            Some(false) => " udp",
        };
        text += &format!(" from {} to {}", self.from, self.to);
        if let Some((first, last)) = self.ports {
            text += &format!(" port {first}-{last}");
        }
        text + if self.keep { " keep" } else { "" }
    }
}

#[test]
fn it_does_what_the_model_does() {
    let mut outcomes = [0; 2];
    for seed in 0..150 {
        let mut dice = Dice::new(seed);
        let plain: Vec<_> = (0..1 + dice.below(6)).map(|_| Plain::roll(&mut dice)).collect();
        let default = [Action::Allow, Action::Deny][dice.below(2) as usize];
        let texts: Vec<_> = plain.iter().map(Plain::text).collect();
        let (mut filter, _) = filter_of(Rules::parse(&texts, default).unwrap());
        let mut kept: Vec<(u32, u16, u32, u16, bool)> = Vec::new();
        for _ in 0..300 {
            let tcp = dice.one_in(2);
            let (from, to) =
                (0x0a00_0000 + dice.below(8) as u32, 0x0a00_0000 + dice.below(8) as u32);
            let (source, target) = (1000 + dice.below(4) as u16, 1000 + dice.below(4) as u16);
            let direction = [Sent, Received][dice.below(2) as usize];
            let syn = dice.one_in(2);
            let flags = if syn { ether::SYN } else { ether::ACK };
            let maker = if tcp { FrameMaker::tcp4() } else { FrameMaker::udp4() };
            let maker = maker.addresses(from, to).ports(source, target).tcp_flags(flags);
            let follows = kept.contains(&(from, source, to, target, tcp))
                || kept.contains(&(to, target, from, source, tcp));
            let fits = |rule: &&Plain| {
                rule.direction.is_none_or(|it| it == direction)
                    && rule.tcp.is_none_or(|it| it == tcp)
                    && is_in(rule.from, from)
                    && is_in(rule.to, to)
                    && rule.ports.is_none_or(|(first, last)| target >= first && target <= last)
                    && (!rule.keep || !tcp || syn)
            };
            let expected = follows
                || match plain.iter().find(fits) {
                    None => default == Action::Allow,
                    Some(rule) => {
                        if rule.keep {
                            kept.push((from, source, to, target, tcp));
                        }
                        rule.allow
                    }
                };
            let found = pass(&mut filter, direction, &maker.build(), 1);
            assert_eq!(found, expected, "seed {seed}: {texts:?}, {maker:?}, {direction:?}");
            outcomes[usize::from(found)] += 1;
        }
    }
    assert!(outcomes.iter().all(|times| *times > 5_000), "{outcomes:?}");
}
