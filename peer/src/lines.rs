//! Lines of a node's log that peers cause.

use std::collections::VecDeque;

use transport::{PeerIdentity, PeerNumbers, Rate};

/// Lines that a peer may cause at once: a node's first disks that are refused each have one.
pub const LINES_AT_ONCE: u64 = 8;

/// After how long a peer may cause another line, and after how long one that goes on is told again:
/// a disk whose volume is refused asks every few seconds.
pub const LINE_NS: u64 = 600_000_000_000;

/// Peers that are told apart. When all of them have caused lines lately, further ones share one
/// peer's lines: in a plain network a host has as many names as it likes.
pub const LINE_PEERS_MAX: usize = 64;

/// Lines of a peer that are remembered, so that they are not told again too soon.
const TOLD_MAX: usize = 16;

/// Log lines that a single peer has caused.
#[derive(Debug, Default)]
struct PeerLogLines {
    rate: Rate,
    told: VecDeque<LineTold>,
    kept_back: u64,
}

/// A line that was written.
#[derive(Debug)]
struct LineTold {
    about: String,
    why: &'static str,
    at_ns: u64,
}

/// Bounds the lines that each peer causes, by all of its sessions: to connect again brings no more.
/// One table serves all sidecores of a node; it is asked on control paths alone.
#[derive(Debug, Default)]
pub struct PeerLines(PeerNumbers<PeerLogLines>);

impl PeerLines {
    /// Whether a line about something, for a reason, may be written now, and how many of the peer
    /// were kept back since its last one.
    pub fn may(
        &mut self,
        now_ns: u64,
        peer: &PeerIdentity,
        about: &str,
        why: &'static str,
    ) -> Option<u64> {
        let is_quiet = |_, caused: &PeerLogLines| caused.rate.taken(now_ns, LINE_NS) == 0;
        let number = self.0.enter_or_share(peer, LINE_PEERS_MAX, is_quiet);
        let caused = self.0.get_mut(number);
        let told = caused.told.iter().position(|told| told.about == about && told.why == why);
        let is_due = told.is_none_or(|at| now_ns.saturating_sub(caused.told[at].at_ns) >= LINE_NS);
        if !is_due || !caused.rate.admits(now_ns, LINES_AT_ONCE, LINE_NS) {
            caused.kept_back += 1;
            return None;
        }
        caused.rate.take(now_ns, LINE_NS);
        match told {
            Some(at) => caused.told[at].at_ns = now_ns,
            None => {
                if caused.told.len() == TOLD_MAX {
                    caused.told.pop_front();
                }
                let about = about.to_owned();
                caused.told.push_back(LineTold { about, why, at_ns: now_ns });
            }
        }
        Some(std::mem::take(&mut caused.kept_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn peer(name: &str) -> PeerIdentity {
        PeerIdentity { name: name.to_owned(), claimed_at: None }
    }

    #[test]
    fn a_line_is_written_once_and_each_ten_minutes_with_the_number_between() {
        let mut lines = PeerLines::default();
        let vm1 = peer("vm1");
        let mut told = Vec::new();
        for at in 1..=1_801 {
            for (about, why) in [("a", "x"), ("b", "x"), ("b", "y")] {
                let said = lines.may(at * SECOND_NS, &vm1, about, why);
                told.extend(said.map(|kept_back| (at, about, why, kept_back)));
            }
        }
        let first: Vec<_> = told.iter().take(4).copied().collect();
        let want = [(1, "a", "x", 0), (1, "b", "x", 0), (1, "b", "y", 0), (601, "a", "x", 1797)];
        assert_eq!(first, want);
        assert_eq!(told.len(), 11, "eight at once and three more in half an hour: {told:?}");
    }

    #[test]
    fn neither_a_peer_nor_many_of_them_fill_the_log() {
        let mut lines = PeerLines::default();
        let mut flood = |count: u64, names: u64, at: u64| {
            let all = (0..count).map(|number| (peer(&format!("p{}", number % names)), number));
            all.filter(|(peer, number)| {
                lines.may(at * SECOND_NS, peer, &number.to_string(), "x").is_some()
            })
            .count() as u64
        };
        assert_eq!(flood(100_000, 1, 1), LINES_AT_ONCE);
        assert_eq!(flood(100_000, 1, 2), 0);
        assert_eq!(flood(100_000, 1, 601), 1, "ten minutes later");
        let most = LINE_PEERS_MAX as u64 + 1;
        let many = flood(100_000, 50_000, 602);
        assert!((most..=most * LINES_AT_ONCE).contains(&many), "{many}");
        // A cause that lasts for a day: a burst of lines at once, and then one line each ten
        // minutes.
        let day = (1..144).map(|times| flood(10_000, 5_000, 602 + 600 * times)).sum::<u64>();
        assert!(many + day <= most * (LINES_AT_ONCE + 143), "{day}");
        assert_eq!(lines.0.iter().count() as u64, most, "the table is bounded");
        assert_eq!(lines.may(1 << 60, &peer("vm1"), "v", "x"), Some(0), "once they are quiet");
    }
}
