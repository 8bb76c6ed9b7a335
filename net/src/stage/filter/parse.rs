//! The rules' language.
//!
//! ```text
//! rule    = action [direction] [kind] ["vlan" number] ["from" end] ["to" end] ["keep"]
//! action  = "allow" | "deny"
//! direction = "sent" | "received"                      by the guest
//! kind    = "arp" | "ipv4" | "ipv6" | "tcp" | "udp" | "icmp" | "icmpv6"
//!         | "type" number | "protocol" number
//! end     = ("any" | address ["/" length]) ["port" number ["-" number]]
//! ```

use std::net::IpAddr;

use super::{Action, Direction, KindMatch, Net, Rule, Rules};
use crate::ether::{ICMP, ICMPV6, Ip, TCP, TYPE_ARP, TYPE_IPV4, TYPE_IPV6, UDP};

/// The most rules of a filter: they are asked one after the other.
pub const RULES_MAX: usize = 256;

/// The fault of a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuleError {
    /// A word that does not belong there.
    #[error("rule {rule}: '{word}': {expected}")]
    Word {
        /// Which rule, from 1 on.
        rule: usize,
        /// The word.
        word: String,
        /// The words that do.
        expected: &'static str,
    },
    /// It ends too early.
    #[error("rule {rule} ends after '{after}': {expected}")]
    End {
        /// Which rule, from 1 on.
        rule: usize,
        /// Its last word.
        after: String,
        /// The words that have to follow.
        expected: &'static str,
    },
    /// Words that contradict each other.
    #[error("rule {rule}: {what}")]
    Contradiction {
        /// Which rule, from 1 on.
        rule: usize,
        /// The contradiction.
        what: &'static str,
    },
    /// Too many rules.
    #[error(
        "{0} rules: at most {RULES_MAX}, because each frame is compared with them one after \
             the other"
    )]
    TooMany(usize),
}

impl RuleError {
    /// Which rule it is about, from 1 on.
    pub fn rule(&self) -> Option<usize> {
        match self {
            Self::Word { rule, .. } | Self::End { rule, .. } | Self::Contradiction { rule, .. } => {
                Some(*rule)
            }
            Self::TooMany(_) => None,
        }
    }
}

const A_NUMBER: &str = "a number is expected";
const A_PORT: &str = "a port is a number up to 65535, or two of them as in 8000-8080";
const A_VLAN: &str = "a VLAN is a number from 1 to 4094";
const AN_ACTION: &str = "a rule begins with allow or deny";
const AN_ADDRESS: &str = "an address such as 10.0.0.0/8 or fd00::/8, or any";
const A_LENGTH: &str = "the length after the / is at most 32 for IPv4 and 128 for IPv6, and no bit \
                        of the address may be beyond it";
const THE_REST: &str = "allowed here, in this order: sent or received; arp, ipv4, ipv6, tcp, udp, \
                        icmp, icmpv6, type or protocol; vlan; from; to; keep";

/// One end of a conversation.
#[derive(Clone, Copy, Default)]
struct RuleEnd {
    net: Option<Net>,
    ports: Option<(u16, u16)>,
}

/// The words of a rule.
struct Words<'a> {
    rule: usize,
    words: std::iter::Peekable<std::str::SplitWhitespace<'a>>,
    last: &'a str,
}

impl<'a> Words<'a> {
    fn next(&mut self, expected: &'static str) -> Result<&'a str, RuleError> {
        match self.words.next() {
            Some(word) => {
                self.last = word;
                Ok(word)
            }
            None => Err(RuleError::End { rule: self.rule, after: self.last.to_owned(), expected }),
        }
    }

    /// Takes the next word if it is this one.
    fn take(&mut self, word: &str) -> bool {
        self.words.next_if(|next| *next == word).map(|next| self.last = next).is_some()
    }

    fn wrong<T>(&self, word: &str, expected: &'static str) -> Result<T, RuleError> {
        Err(RuleError::Word { rule: self.rule, word: word.to_owned(), expected })
    }

    fn number(&mut self, most: u64, expected: &'static str) -> Result<u64, RuleError> {
        let word = self.next(expected)?;
        let number = match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => word.parse(),
        };
        match number {
            Ok(number) if number <= most => Ok(number),
            _ => self.wrong(word, expected),
        }
    }

    fn kind(&mut self) -> Result<KindMatch, RuleError> {
        let kinds = [
            ("arp", KindMatch::Type(TYPE_ARP)),
            ("ipv4", KindMatch::Type(TYPE_IPV4)),
            ("ipv6", KindMatch::Type(TYPE_IPV6)),
            ("tcp", KindMatch::Protocol(TCP)),
            ("udp", KindMatch::Protocol(UDP)),
            ("icmp", KindMatch::Protocol(ICMP)),
            ("icmpv6", KindMatch::Protocol(ICMPV6)),
        ];
        if let Some((_, kind)) = kinds.into_iter().find(|(word, _)| self.take(word)) {
            return Ok(kind);
        }
        if self.take("type") {
            return Ok(KindMatch::Type(self.number(0xffff, A_NUMBER)? as u16));
        }
        if self.take("protocol") {
            return Ok(KindMatch::Protocol(self.number(0xff, A_NUMBER)? as u8));
        }
        Ok(KindMatch::Any)
    }

    /// Addresses and ports of one end.
    fn end(&mut self) -> Result<RuleEnd, RuleError> {
        let net = if self.take("any") { None } else { Some(self.net()?) };
        let ports = if self.take("port") { Some(self.ports()?) } else { None };
        Ok(RuleEnd { net, ports })
    }

    fn net(&mut self) -> Result<Net, RuleError> {
        let word = self.next(AN_ADDRESS)?;
        let (address, length) = match word.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (word, None),
        };
        let Ok(address) = address.parse::<IpAddr>() else { return self.wrong(word, AN_ADDRESS) };
        let (first, bits) = match address {
            IpAddr::V4(address) => (Ip::v4(address.to_bits()), 32),
            IpAddr::V6(address) => (Ip(address.to_bits()), 128),
        };
        let length = match length.map(str::parse::<u32>) {
            None => bits,
            Some(Ok(length)) if length <= bits => length,
            Some(_) => return self.wrong(word, A_LENGTH),
        };
        // IPv4's addresses are the last 32 bits.
        let mask = u128::MAX.checked_shl(bits - length).unwrap_or(0);
        if first.0 & mask != first.0 {
            return self.wrong(word, A_LENGTH);
        }
        Ok(Net { first, mask })
    }

    fn ports(&mut self) -> Result<(u16, u16), RuleError> {
        let word = self.next(A_PORT)?;
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if first <= last => Ok((first, last)),
            _ => self.wrong(word, A_PORT),
        }
    }

    fn rule(&mut self) -> Result<Rule, RuleError> {
        let action = match self.next(AN_ACTION)? {
            "allow" => Action::Allow,
            "deny" => Action::Deny,
            word => return self.wrong(word, AN_ACTION),
        };
        let direction = if self.take("sent") {
            Some(Direction::Sent)
        } else if self.take("received") {
            Some(Direction::Received)
        } else {
            None
        };
        let kind = self.kind()?;
        let vlan = if self.take("vlan") {
            match self.number(4094, A_VLAN)? {
                0 => return self.wrong("0", A_VLAN),
                vlan => Some(vlan as u16),
            }
        } else {
            None
        };
        let source = if self.take("from") { self.end()? } else { RuleEnd::default() };
        let destination = if self.take("to") { self.end()? } else { RuleEnd::default() };
        let keep = self.take("keep");
        if let Some(word) = self.words.next() {
            return self.wrong(word, THE_REST);
        }
        let rule = Rule {
            action,
            direction,
            kind,
            vlan,
            source: source.net,
            source_ports: source.ports,
            destination: destination.net,
            destination_ports: destination.ports,
            keep,
        };
        self.check(&rule)?;
        Ok(rule)
    }

    fn check(&self, rule: &Rule) -> Result<(), RuleError> {
        let wrong = |what| Err(RuleError::Contradiction { rule: self.rule, what });
        let has_ports = rule.source_ports.is_some() || rule.destination_ports.is_some();
        if has_ports && !matches!(rule.kind, KindMatch::Protocol(TCP | UDP)) {
            return wrong("only TCP and UDP have ports: write tcp or udp before from and to");
        }
        let has_nets = rule.source.is_some() || rule.destination.is_some();
        if has_nets && matches!(rule.kind, KindMatch::Type(kind) if !is_ip(kind)) {
            return wrong("such frames have no IP addresses");
        }
        if let (Some(source), Some(destination)) = (rule.source, rule.destination)
            && source.first.is_v4() != destination.first.is_v4()
        {
            return wrong("one address is of IPv4, the other one of IPv6");
        }
        let keeps = [TCP, UDP, ICMP, ICMPV6].map(KindMatch::Protocol);
        if rule.keep && !keeps.contains(&rule.kind) {
            return wrong("\"keep\" needs tcp, udp, icmp or icmpv6");
        }
        if rule.keep && rule.action == Action::Deny {
            return wrong("\"keep\" is for rules that allow");
        }
        Ok(())
    }
}

fn is_ip(kind: u16) -> bool {
    matches!(kind, TYPE_IPV4 | TYPE_IPV6)
}

impl Rules {
    /// Reads rules, one a line of text each; the first one that fits decides, and `default` where
    /// none does.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn parse<T: AsRef<str>>(rules: &[T], default: Action) -> Result<Self, RuleError> {
        if rules.len() > RULES_MAX {
            return Err(RuleError::TooMany(rules.len()));
        }
        let parse = |(at, text): (usize, &T)| {
            let words = text.as_ref().split_whitespace().peekable();
            Words { rule: at + 1, words, last: "" }.rule()
        };
        let rules = rules.iter().enumerate().map(parse).collect::<Result<_, _>>()?;
        Ok(Self { rules, default })
    }
}
