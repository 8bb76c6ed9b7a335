//! The times of patterns by the algorithms that MPIs have for them.
//!
//! A library chooses by size and ranks, with limits that were tuned on other machines. Here the
//! algorithm that is the fastest on the platform is taken, as a library that is well tuned for it
//! would. The algorithms are from Thakur, Rabenseifner and Gropp, "Optimization of
//! collective communication operations in MPICH", 2005, and for short all-to-alls of Bruck et al.,
//! "Efficient algorithms for all-to-all communications", 1997; Open MPI's `tuned` has the same.
//! The time of the sums themselves is left out.
//!
//! Ranks of a host follow one another, as `mpirun` places them by default. All hosts do the same at
//! the same time, and the network between cards carries all of it: nothing is known here of a
//! network that is thinner in its middle. Ranks of a host copy at the same time as if each had the
//! memory alone.

use serde::Serialize;

use super::platform::{Burst, MessageLink};
use super::profile::{Pattern, ProfileMessages};
use super::span::WideSpan;

/// The way in which a pattern is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Messages as the application sends them.
    Direct,
    /// In each step the distance to the partner doubles: log2(ranks) steps of all data.
    RecursiveDoubling,
    /// Each rank reduces a part, by halves, and then all gather the parts: twice log2(ranks) steps.
    Rabenseifner,
    /// Parts go around from neighbour to neighbour.
    Ring,
    /// With each other rank in turn.
    Pairwise,
    /// To all other ranks at once.
    AllAtOnce,
    /// log2(ranks) steps: of an all-to-all with half of all data, of a gathering with twice as many
    /// parts as before.
    Bruck,
    /// Ranks that have the data pass it on: log2(ranks) steps of all data.
    Binomial,
    /// Parts go to all ranks by a tree, and then around.
    ScatterRing,
    /// In each step a rank sends twice as far: log2(ranks) steps without data.
    Dissemination,
}

impl Algorithm {
    /// Its name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::RecursiveDoubling => "recursive doubling",
            Self::Rabenseifner => "Rabenseifner",
            Self::Ring => "ring",
            Self::Pairwise => "pairwise",
            Self::AllAtOnce => "all at once",
            Self::Bruck => "Bruck",
            Self::Binomial => "binomial",
            Self::ScatterRing => "scatter, ring",
            Self::Dissemination => "dissemination",
        }
    }
}

/// The ranks of a pattern and the ways between them.
#[derive(Clone, Copy, Debug)]
pub struct Stage<'a> {
    /// Between hosts.
    pub between: &'a MessageLink,
    /// Within a host.
    pub within: &'a MessageLink,
    /// Ranks that take part.
    pub ranks: u64,
    /// Ranks of a host.
    pub per_host: u64,
}

impl Stage<'_> {
    /// The time of one call, by the fastest algorithm; of messages between two ranks that of one
    /// message of a window.
    pub fn time(&self, messages: &ProfileMessages) -> (Algorithm, WideSpan) {
        let bytes = messages.bytes;
        if messages.pattern == Pattern::PointToPoint {
            return (Algorithm::Direct, self.direct(messages));
        }
        if self.ranks < 2 {
            return (Algorithm::Direct, WideSpan::default());
        }
        let mut ways = match messages.pattern {
            Pattern::PointToPoint => Vec::new(),
            Pattern::Allreduce => vec![
                (Algorithm::RecursiveDoubling, self.doubling(|_| bytes).plus(self.odd(bytes))),
                (Algorithm::Rabenseifner, self.rabenseifner(bytes)),
                (Algorithm::Ring, self.around(bytes.div_ceil(self.ranks), 2)),
            ],
            Pattern::Alltoall => vec![
                (Algorithm::Pairwise, self.pairwise(bytes)),
                (Algorithm::Bruck, self.spread(|_| bytes.saturating_mul(self.ranks / 2))),
            ],
            Pattern::Allgather => {
                vec![self.gathered(bytes), (Algorithm::Ring, self.around(bytes, 1))]
            }
            Pattern::Bcast | Pattern::Reduce => vec![
                (Algorithm::Binomial, self.tree(|_| bytes)),
                (Algorithm::ScatterRing, self.scatter_ring(bytes)),
            ],
            Pattern::Barrier => vec![(Algorithm::Dissemination, self.spread(|_| 0))],
        };
        // Without a measured pace of short messages, nothing says how fast all at once would be.
        if messages.pattern == Pattern::Alltoall && self.between.gap.is_some() {
            ways.push((Algorithm::AllAtOnce, self.all_at_once(bytes)));
        }
        // A library takes the algorithm that is the fastest in truth, so each end of the range is
        // the least of all algorithms'.
        let ends = ways.iter().map(|(_, time)| *time).reduce(WideSpan::shorter);
        let fastest = ways.into_iter().min_by_key(|(_, time)| time.likely_ns);
        fastest
            .zip(ends)
            .map_or((Algorithm::Direct, WideSpan::default()), |((name, _), time)| (name, time))
    }

    /// One message within a host.
    fn near(&self, bytes: u64) -> WideSpan {
        self.within.time(Burst { bytes, window: 1, senders: 1, both_ways: false })
    }

    /// One message of each of so many ranks of a host to other hosts, while as many come in.
    fn far(&self, bytes: u64, senders: u64) -> WideSpan {
        self.between.time(Burst { bytes, window: 1, senders, both_ways: true })
    }

    /// A step in which each rank sends to the rank that is so far away: on each host so many ranks
    /// have theirs on another host.
    fn step(&self, bytes: u64, distance: u64) -> WideSpan {
        if self.ranks <= self.per_host {
            return self.near(bytes);
        }
        self.mixed(bytes, distance.min(self.per_host), distance < self.per_host)
    }

    /// A step in which so many ranks of a host send to other hosts, and maybe some within it.
    fn mixed(&self, bytes: u64, senders: u64, has_near: bool) -> WideSpan {
        match senders {
            0 => self.near(bytes),
            _ if has_near => self.far(bytes, senders).longer(self.near(bytes)),
            _ => self.far(bytes, senders),
        }
    }

    /// Distances of 1, 2, 4 and so on.
    fn distances(&self) -> impl Iterator<Item = u64> {
        let ranks = self.ranks;
        (0..u64::BITS).map(|bit| 1 << bit).take_while(move |distance| *distance < ranks)
    }

    /// Steps in which each rank sends twice as far as before, with the bytes of each distance.
    fn spread(&self, bytes: impl Fn(u64) -> u64) -> WideSpan {
        let steps = self.distances().map(|distance| self.step(bytes(distance), distance));
        steps.fold(WideSpan::default(), WideSpan::plus)
    }

    /// Steps of pairs that are twice as far apart as before.
    fn doubling(&self, bytes: impl Fn(u64) -> u64) -> WideSpan {
        let pairs = self.distances().filter(|distance| distance * 2 <= self.ranks);
        let steps = pairs.map(|distance| {
            let senders = self.paired_elsewhere(distance);
            self.mixed(bytes(distance), senders, distance < self.per_host)
        });
        steps.fold(WideSpan::default(), WideSpan::plus)
    }

    /// Ranks beyond a power of two.
    fn beyond(&self) -> u64 {
        self.ranks - (1 << self.ranks.ilog2())
    }

    /// The ranks below a rank that take part in a doubling. For each rank beyond a power of two,
    /// two of the first ranks take part as one, as MPICH and Open MPI have it: so the first hosts
    /// have half of their ranks in it, and all further hosts have all of theirs.
    fn kept(&self, rank: u64) -> u64 {
        let folded = 2 * self.beyond();
        if rank < folded { rank / 2 } else { rank.min(self.ranks) - folded / 2 }
    }

    /// The most ranks of a host that have their partner in a step of doubling on another host.
    fn paired_elsewhere(&self, distance: u64) -> u64 {
        let hosts = self.ranks.div_ceil(self.per_host);
        if hosts == 1 {
            return 0;
        }
        // Hosts lie on pairs the same way again after four times the distance at most, so a few of
        // both kinds are enough.
        let halved = (2 * self.beyond()) / self.per_host;
        let few = 4 * distance.min(self.per_host);
        let looked_at = (0..hosts.min(few)).chain(halved..hosts.min(halved + few));
        let crossing = |host: u64| {
            let [from, to] = [host, host + 1].map(|at| self.kept(at * self.per_host));
            // A rank without the bit of the distance has its partner above it.
            let lower = |below: u64| {
                let (pairs, rest) = (below / (2 * distance), below % (2 * distance));
                pairs * distance + rest.min(distance)
            };
            let up = lower(to) - lower(from.max(to.saturating_sub(distance)));
            let of_upper = |below: u64| below - lower(below);
            up + of_upper(to.min(from + distance)) - of_upper(from)
        };
        looked_at.map(crossing).max().unwrap_or(0)
    }

    /// Ranks beyond a power of two hand their data to a neighbour before, and get it after that.
    fn odd(&self, bytes: u64) -> WideSpan {
        if self.ranks.is_power_of_two() {
            return WideSpan::default();
        }
        // With an odd number of ranks a host's last one has its neighbour on the next host.
        let is_cut = self.per_host % 2 == 1 && self.per_host < 2 * self.beyond();
        self.mixed(bytes, u64::from(is_cut), self.per_host > 1).times(2)
    }

    /// Parts of a gathering or a scatter that go so far: as many as the distance, but the last step
    /// of ranks that are no power of two has the rest alone.
    fn parts(&self, distance: u64) -> u64 {
        distance.min(self.ranks - distance)
    }

    /// Pairs gather by doubling; of ranks that are no power of two each rank sends to one at twice
    /// the distance, as Bruck has it.
    fn gathered(&self, bytes: u64) -> (Algorithm, WideSpan) {
        let part = |distance: u64| bytes.saturating_mul(self.parts(distance));
        if self.ranks.is_power_of_two() {
            (Algorithm::RecursiveDoubling, self.doubling(part))
        } else {
            (Algorithm::Bruck, self.spread(part))
        }
    }

    /// A half of the data goes to the neighbour, a quarter twice as far and so on, as MPICH and
    /// Open MPI have it; the parts are gathered the same way back.
    fn rabenseifner(&self, bytes: u64) -> WideSpan {
        let part = |distance: u64| bytes.div_ceil(2 * distance);
        self.doubling(part).times(2).plus(self.odd(bytes))
    }

    /// So many times around a ring, where each host has one rank with a neighbour elsewhere.
    fn around(&self, bytes: u64, times: u64) -> WideSpan {
        self.step(bytes, 1).times((self.ranks - 1) * times)
    }

    /// With powers of two the partner of a step is on the same host for all ranks or for none, as
    /// MPICH has it. Else each rank sends so many ranks further: of the first and the last steps,
    /// which have a half of a host's ranks on average, each has a message to another host.
    fn pairwise(&self, bytes: u64) -> WideSpan {
        let on_host = self.per_host.min(self.ranks);
        let near = self.near(bytes).times(on_host - 1);
        if self.ranks <= on_host {
            return near;
        }
        if self.ranks.is_power_of_two() && on_host.is_power_of_two() {
            return near.plus(self.far(bytes, on_host).times(self.ranks - on_host));
        }
        let cut = (2 * (on_host - 1)).min(self.ranks - 1);
        let fewer = self.mixed(bytes, on_host / 2, true).times(cut / 2);
        let more = self.mixed(bytes, on_host.div_ceil(2), true).times(cut - cut / 2);
        fewer.plus(more).plus(self.far(bytes, on_host).times(self.ranks - 1 - cut))
    }

    fn all_at_once(&self, bytes: u64) -> WideSpan {
        let on_host = self.per_host.min(self.ranks);
        let near = self.near(bytes).times(on_host - 1);
        if self.ranks <= on_host {
            return near;
        }
        let window = self.ranks - on_host;
        let burst = Burst { bytes, window, senders: on_host, both_ways: true };
        near.longer(self.between.time(burst))
    }

    /// Each rank that has the data passes it on; one rank of each host sends to other hosts.
    fn tree(&self, bytes: impl Fn(u64) -> u64) -> WideSpan {
        let steps = self.distances().map(|distance| {
            let burst = Burst { bytes: bytes(distance), window: 1, senders: 1, both_ways: false };
            if !self.leaves_a_host(distance) {
                return self.near(burst.bytes);
            }
            let far = self.between.time(burst);
            if distance < self.per_host { far.longer(self.near(burst.bytes)) } else { far }
        });
        steps.fold(WideSpan::default(), WideSpan::plus)
    }

    /// Whether a step of a tree, in which each rank that is a multiple of twice the distance sends
    /// so far, has a message to another host.
    fn leaves_a_host(&self, distance: u64) -> bool {
        let hosts = self.ranks.div_ceil(self.per_host);
        // The ends of hosts fall on the same places again after twice the distance.
        let mut ends = (1..hosts).take_while(|host| *host <= 2 * distance);
        let leaves = |host: u64| {
            let end = host * self.per_host;
            let sender = end - 1 - (end - 1) % (2 * distance);
            (end..self.ranks).contains(&(sender + distance))
        };
        ends.any(leaves)
    }

    fn scatter_ring(&self, bytes: u64) -> WideSpan {
        let part = |distance: u64| bytes.saturating_mul(self.parts(distance)).div_ceil(self.ranks);
        self.tree(part).plus(self.around(bytes.div_ceil(self.ranks), 1))
    }

    /// One message of a window from rank to rank; messages of all ranks of a host leave together.
    fn direct(&self, messages: &ProfileMessages) -> WideSpan {
        let ProfileMessages { bytes, window, local, .. } = *messages;
        let near = self.within.time(Burst { bytes, window, senders: 1, both_ways: false });
        if self.ranks <= self.per_host {
            return near.part(1, window);
        }
        let near_ppm = local.ppm();
        let senders = (self.per_host - local.down(self.per_host)).max(1);
        let far = self.between.time(Burst { bytes, window, senders, both_ways: true });
        let near = near.part(near_ppm, 1_000_000);
        near.plus(far.part(1_000_000 - near_ppm, 1_000_000)).part(1, window)
    }
}

#[cfg(test)]
mod tests;
