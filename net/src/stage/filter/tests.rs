//! The language, and the filter against a plain model.

use super::*;
use crate::maker::FrameMaker;
use random::Random;

use crate::testing::pushed;

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
fn problems_of_a_rule_are_named() {
    let cases = [
        ("", "rule 1 ends after '': a rule begins with allow or deny"),
        ("permit tcp", "rule 1: 'permit': a rule begins with allow or deny"),
        ("allow tcp to", "rule 1 ends after 'to': an address such as"),
        ("allow tcp to 10.0.0.300", "rule 1: '10.0.0.300': an address such as"),
        ("allow ipv4 to 10.0.0.1/8", "rule 1: '10.0.0.1/8': the length after the /"),
        ("allow ipv4 to 10.0.0.0/33", "rule 1: '10.0.0.0/33': the length after the /"),
        ("allow tcp to any port 80-70", "rule 1: '80-70': a port is"),
        ("allow tcp to any port 65536", "rule 1: '65536': a port is"),
        ("allow tcp to any from any", "rule 1: 'from': allowed here, in this order"),
        ("allow tcp vlan 4095", "rule 1: '4095': a VLAN is"),
        ("allow arp to 10.0.0.1", "rule 1: such frames have no IP addresses"),
        ("allow icmp to any port 9", "rule 1: only TCP and UDP have ports"),
        ("allow arp keep", "rule 1: \"keep\" needs tcp"),
        ("deny tcp keep", "rule 1: \"keep\" is for rules"),
        ("allow tcp from fd00::1 to 10.0.0.1", "rule 1: one address is of IPv4"),
        ("allow type 0x10000", "rule 1: '0x10000': a number is"),
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
    let mut dice = Random::new(8);
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
    // No conversation begins outside, and none begins in its middle.
    assert!(!pass(&mut filter, Received, &back(ether::SYN), 1));
    assert!(!pass(&mut filter, Sent, &there(ether::ACK), 1));
    assert!(pass(&mut filter, Sent, &there(ether::SYN), 2));
    assert!(pass(&mut filter, Received, &back(ether::SYN | ether::ACK), 3));
    assert!(pass(&mut filter, Sent, &there(ether::ACK), 4));
    assert!(pass(&mut filter, Sent, &there(ether::ACK), 3500 * second));
    assert!(pass(&mut filter, Received, &back(ether::FIN | ether::ACK), 3600 * second));
    assert!(pass(&mut filter, Sent, &there(ether::ACK), 3601 * second));
    assert!(!pass(&mut filter, Received, &back(ether::ACK), 3640 * second));
    assert_eq!((core.rules[0].frames.get(), core.kept.frames.get()), (1, 5));
    assert_eq!((core.default.frames.get(), core.flows_begun.get()), (3, 1));
    // Another port of the same two hosts is another conversation.
    assert!(pass(&mut filter, Sent, &there(ether::SYN), 4000 * second));
    let other = FrameMaker::tcp4().ports(2000, 1001).addresses(0x0a00_0002, 0x0a00_0001).build();
    assert!(!pass(&mut filter, Received, &other, 4000 * second));
}

#[test]
fn frames_with_hidden_headers_are_dropped_under_any_rules() {
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

/// A packet from one end to the other.
fn says(from: (u32, u16), to: (u32, u16), flags: u8) -> Vec<u8> {
    FrameMaker::tcp4().addresses(from.0, to.0).ports(from.1, to.1).tcp_flags(flags).build()
}

/// A guest's address and port, and those of a station outside.
const GUEST: (u32, u16) = (0x0a00_0002, 80);
const ME: (u32, u16) = (0x0a00_0001, 1000);

const SECOND: u64 = 1_000_000_000;

/// A connection of TCP to the guest that is established.
fn connect(filter: &mut Filter, from: (u32, u16), now_ns: u64) {
    assert!(pass(filter, Received, &says(from, GUEST, ether::SYN), now_ns));
    assert!(pass(filter, Sent, &says(GUEST, from, ether::SYN | ether::ACK), now_ns));
    assert!(pass(filter, Received, &says(from, GUEST, ether::ACK), now_ns));
}

#[test]
fn unanswered_packets_are_kept_for_seconds() {
    let (mut filter, _) = filter_of(rules(&["allow received tcp to any port 80 keep"]));
    let late = 11 * SECOND;
    assert!(pass(&mut filter, Received, &says(ME, GUEST, ether::SYN), 1));
    assert!(!pass(&mut filter, Sent, &says(GUEST, ME, ether::ACK), late), "one SYN is a minute");
    // A listener answers any address, also a made-up one.
    assert!(pass(&mut filter, Received, &says(ME, GUEST, ether::SYN), late));
    assert!(pass(&mut filter, Sent, &says(GUEST, ME, ether::SYN | ether::ACK), late));
    assert!(!pass(&mut filter, Sent, &says(GUEST, ME, ether::ACK), 2 * late));
    // So long as it is tried again, it goes on.
    for turn in 0..5 {
        let now_ns = 3 * late + turn * 9 * SECOND;
        assert!(pass(&mut filter, Received, &says(ME, GUEST, ether::SYN), now_ns));
        assert!(pass(&mut filter, Sent, &says(GUEST, ME, ether::SYN | ether::ACK), now_ns));
    }
    let now_ns = 10 * late;
    connect(&mut filter, ME, now_ns);
    assert!(pass(&mut filter, Sent, &says(GUEST, ME, ether::ACK), now_ns + 3000 * SECOND));
    // UDP needs one answer.
    let (mut filter, _) = filter_of(rules(&["allow received udp keep"]));
    let (there, back) = (FrameMaker::udp4(), FrameMaker::udp4().ports(2000, 1000));
    let back = back.addresses(0x0a00_0002, 0x0a00_0001).build();
    assert!(pass(&mut filter, Received, &there.build(), 1));
    assert!(!pass(&mut filter, Sent, &back, late));
    assert!(pass(&mut filter, Received, &there.build(), late));
    assert!(pass(&mut filter, Sent, &back, late + 1));
    assert!(pass(&mut filter, Sent, &back, late + 59 * SECOND));
}

#[test]
fn a_flood_of_beginnings_evicts_no_other_flow() {
    let (mut filter, core) = filter_of(rules(&["allow received tcp to any port 80 keep"]));
    let clients: Vec<_> = (0..2000).map(|at| (0x0a01_0000 + at, 5000)).collect();
    clients.iter().for_each(|client| connect(&mut filter, *client, 1));
    // From one address, and from as many as there are frames; answered and not.
    for number in 0..8 * FLOWS_MAX as u32 {
        let from = if number % 2 == 0 { ME.0 } else { 0x0b00_0000 + number };
        let from = (from, (number / 2) as u16);
        assert!(pass(&mut filter, Received, &says(from, GUEST, ether::SYN), 2));
        if number % 3 == 0 {
            assert!(pass(&mut filter, Sent, &says(GUEST, from, ether::SYN | ether::ACK), 2));
        }
    }
    for client in &clients {
        assert!(pass(&mut filter, Sent, &says(GUEST, *client, ether::ACK), 3), "{client:?}");
    }
    assert_eq!(core.flows_lost.get(), 0);
}

#[test]
fn one_address_has_half_of_the_table_at_most() {
    let (mut filter, core) = filter_of(rules(&["allow received tcp to any port 80 keep"]));
    let clients: Vec<_> = (0..1000).map(|at| (0x0a01_0000 + at, 5000)).collect();
    clients.iter().for_each(|client| connect(&mut filter, *client, 1));
    // Established ones, which nothing tells from those of an honest client but their number.
    for port in 0..u16::MAX {
        connect(&mut filter, (ME.0, port), 2);
    }
    assert!(core.flows_lost.get() >= u64::from(u16::MAX) - FLOWS_MAX as u64 / 2);
    let mut kept = 0;
    for port in 0..u16::MAX {
        kept += usize::from(pass(&mut filter, Sent, &says(GUEST, (ME.0, port), ether::ACK), 3));
    }
    assert!(kept <= FLOWS_MAX / 2 && kept > FLOWS_MAX / 3, "{kept}");
    for client in &clients {
        assert!(pass(&mut filter, Sent, &says(GUEST, *client, ether::ACK), 3), "{client:?}");
    }
}

#[test]
fn the_ports_of_one_that_ended_are_for_the_rules_again() {
    let (mut filter, core) = filter_of(rules(&["allow received tcp to any port 80 keep"]));
    connect(&mut filter, ME, 1);
    assert!(pass(&mut filter, Sent, &says(GUEST, ME, ether::FIN | ether::ACK), 2));
    // The guest may not begin one, not even there.
    assert!(!pass(&mut filter, Sent, &says(GUEST, ME, ether::SYN), 3));
    connect(&mut filter, ME, 4);
    assert!(pass(&mut filter, Sent, &says(GUEST, ME, ether::ACK), 100 * SECOND), "it is a new one");
    assert_eq!((core.flows_begun.get(), core.flows_lost.get()), (2, 0));
}

/// An ICMP error of a router on the way, about a packet.
fn error_about(frame: &[u8], kind: u8) -> Vec<u8> {
    let is_v4 = frame[12..14] == [8, 0];
    let maker = if is_v4 { FrameMaker::udp4() } else { FrameMaker::udp6() };
    let source = if is_v4 { &frame[26..30] } else { &frame[34..38] };
    let source = u32::from_be_bytes(*source.first_chunk().unwrap());
    let mut error = maker.addresses(0x0a00_00fe, source).payload(200).build();
    let (protocol_at, at) = if is_v4 { (23, 34) } else { (20, 54) };
    error[protocol_at] = if is_v4 { ether::ICMP } else { ether::ICMPV6 };
    error[at] = kind;
    let quoted = &frame[14..frame.len().min(14 + 60)];
    error[at + 8..][..quoted.len()].copy_from_slice(quoted);
    error
}

#[test]
fn errors_about_what_is_kept_pass() {
    for (maker, unreachable, other) in
        [(FrameMaker::tcp4(), 3, 8), (FrameMaker::udp4(), 11, 0), (FrameMaker::udp6(), 2, 128)]
    {
        let (mut filter, core) = filter_of(rules(&["allow sent tcp keep", "allow sent udp keep"]));
        let first = maker.clone().tcp_flags(ether::SYN).build();
        let error = error_about(&first, unreachable);
        assert!(!pass(&mut filter, Received, &error, 1), "nothing is kept yet");
        assert!(pass(&mut filter, Sent, &first, 2));
        assert!(pass(&mut filter, Received, &error, 3), "{maker:?}");
        assert!(!pass(&mut filter, Received, &error_about(&first, other), 3), "no error");
        let mut elsewhere = error.clone();
        let (to, port) =
            if first[12..14] == [8, 0] { (33, 34 + 8 + 21) } else { (53, 54 + 8 + 41) };
        elsewhere[to] ^= 1;
        assert!(!pass(&mut filter, Received, &elsewhere, 3), "it is not to who sent that");
        let mut about_other = error.clone();
        about_other[port] ^= 1;
        assert!(!pass(&mut filter, Received, &about_other, 3), "it is about something else");
        // It makes nothing last longer.
        assert!(pass(&mut filter, Received, &error, 9 * SECOND));
        assert!(!pass(&mut filter, Received, &error, 11 * SECOND));
        assert_eq!(core.kept.frames.get(), 2);
    }
}

#[test]
fn conversations_outlive_other_rules_that_would_keep_them() {
    let text = "allow received tcp to any port 80 keep";
    let (mut before, _) = filter_of(rules(&[text]));
    let (other, third) = ((ME.0, 1001), (ME.0, 1002));
    for client in [ME, other, third] {
        connect(&mut before, client, 1);
    }
    // Without the second one; the rules are asked about the first frame, not about this one.
    let (mut filter, core) =
        filter_of(rules(&["deny received tcp from any port 1001", "allow arp", text]));
    filter.inherit(&mut before);
    assert!(pass(&mut filter, Sent, &says(GUEST, ME, ether::ACK), 2));
    assert!(!pass(&mut filter, Sent, &says(GUEST, other, ether::ACK), 2));
    assert!(!pass(&mut filter, Received, &says(other, GUEST, ether::ACK), 2));
    assert_eq!((core.kept.frames.get(), core.flows_begun.get()), (1, 0));
    // Packets that are allowed without keeping are allowed by themselves, not kept.
    let (mut next, _) = filter_of(rules(&["allow received tcp to any port 80", text]));
    next.inherit(&mut filter);
    assert!(pass(&mut next, Received, &says(ME, GUEST, ether::ACK), 3));
    assert!(!pass(&mut next, Sent, &says(GUEST, ME, ether::ACK), 3));
    // Rules that keep nothing have no table, and those after them begin anew.
    let (mut none, _) = filter_of(rules(&["allow arp"]));
    none.inherit(&mut next);
    let (mut last, _) = filter_of(rules(&[text]));
    last.inherit(&mut none);
    assert!(!pass(&mut last, Sent, &says(GUEST, third, ether::ACK), 4));
}

#[test]
fn another_process_goes_on_with_the_conversations_that_its_rules_would_keep() {
    let text = "allow received tcp to any port 80 keep";
    let (mut before, _) = filter_of(rules(&[text]));
    let (other, ended) = ((ME.0, 1001), (ME.0, 1002));
    for client in [ME, other, ended] {
        connect(&mut before, client, 1);
    }
    assert!(pass(&mut before, Sent, &says(GUEST, ended, ether::FIN), 1));
    let rows = before.conversations(2);
    let after = |text: &[&str], rows: &[u8], now_ns| {
        let rules = rules(text);
        let core = FilterCore::new(&rules);
        // Another seed: its table has other places.
        let mut filter = Filter::new(rules, core, 99);
        filter.go_on_with(rows, now_ns);
        filter
    };
    let mut filter = after(&["deny received tcp from any port 1001", text], &rows, 3);
    assert!(pass(&mut filter, Sent, &says(GUEST, ME, ether::ACK), 3000 * SECOND));
    assert!(!pass(&mut filter, Sent, &says(GUEST, other, ether::ACK), 4));
    let mut filter = after(&[text], &rows, 3);
    assert!(pass(&mut filter, Received, &says(other, GUEST, ether::ACK), 4));
    assert!(!pass(&mut filter, Sent, &says(GUEST, ended, ether::ACK), 31 * SECOND), "as before");
    // Rubbish is nothing, and half a conversation neither.
    for rubbish in [&[0xff; 5000][..], &rows[..49]] {
        let mut filter = after(&[text], rubbish, 3);
        assert!(!pass(&mut filter, Sent, &says(GUEST, ME, ether::ACK), 4));
    }
}

#[test]
fn the_table_of_conversations_is_bounded() {
    let (mut filter, core) = filter_of(rules(&["allow sent udp keep"]));
    let answer = |number: u32| {
        let back = FrameMaker::udp4().addresses(0x0a00_0002, 0x0b00_0000 | number);
        back.ports(2000, 1000).build()
    };
    for number in 0..4 * FLOWS_MAX as u32 {
        let frame = FrameMaker::udp4().addresses(0x0b00_0000 | number, 0x0a00_0002).build();
        assert!(pass(&mut filter, Sent, &frame, 5));
        assert!(pass(&mut filter, Received, &answer(number), 5));
    }
    assert!(core.flows_lost.get() >= 3 * FLOWS_MAX as u64);
    // The last flow is kept; an older flow had to go for it.
    assert!(pass(&mut filter, Received, &answer(4 * FLOWS_MAX as u32 - 1), 6));
}

/// One end of a rule, by the book.
fn is_in(text: &str, address: u32) -> bool {
    let Some((net, length)) = text.split_once('/') else { return text == "any" };
    let net: std::net::Ipv4Addr = net.parse().unwrap();
    let length: u32 = length.parse().unwrap();
    length == 0 || net.to_bits() >> (32 - length) == address >> (32 - length)
}

/// The model's view of a rule: the parts that it was made of.
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
    fn roll(dice: &mut Random) -> Self {
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
        let mut dice = Random::new(seed);
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
