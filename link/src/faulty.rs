//! A link that misbehaves on purpose: faults are part of the public design, so that a test can put
//! them between real processes.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use random::Random;
use sidecore::{Counter, Progress};
use transport::{Pool, TransmitBatch};

use crate::{Arrival, Link, LinkCounters, SendOutcome};

/// The most datagrams held back at once; further ones are delivered at once, and counted. Bounds
/// memory to a few hundred MiB at the very worst, in a test.
const HELD_MAX: usize = 4096;

/// The most datagrams that overtake one that is reordered.
const OVERTAKEN_BY_MAX: u64 = 8;

/// A reordered datagram that nothing overtakes is delivered after so long.
const REORDER_NS_MAX: u64 = 5_000_000;

/// How often what goes wrong, each per 100 datagrams, decided for each on its own. They strike what
/// arrives; wrap both ends to have them in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Faults {
    /// Where the random numbers start; the same seed and arrivals give the same faults.
    pub seed: u64,
    /// Vanish.
    pub loss_percent: f64,
    /// Arrive twice.
    pub duplication_percent: f64,
    /// Arrive after some that came later.
    pub reordering_percent: f64,
    /// Have a byte changed, or their end cut off.
    pub corruption_percent: f64,
    /// Arrive later, by up to `delay_ns_max`.
    pub delay_percent: f64,
    /// The longest delay.
    pub delay_ns_max: u64,
}

/// How often each fault struck.
#[derive(Debug, Default)]
pub struct FaultCounters {
    /// Datagrams lost.
    pub lost: Counter,
    /// Datagrams doubled.
    pub duplicated: Counter,
    /// Datagrams put behind later ones.
    pub reordered: Counter,
    /// Datagrams changed.
    pub corrupted: Counter,
    /// Datagrams delayed.
    pub delayed: Counter,
    /// Datagrams that would have been held back, but too many were.
    pub overflowed: Counter,
}

/// A datagram that is held back until `due_ns`, or until `overtakers` others have passed.
struct DelayedDatagram {
    due_ns: u64,
    overtakers: u64,
    from: SocketAddr,
    bytes: Vec<u8>,
}

/// Wraps a link and spoils what arrives by it.
pub struct Faulty<L> {
    inner: L,
    spoiler: Spoiler,
}

struct Spoiler {
    faults: Faults,
    random: Random,
    held: VecDeque<DelayedDatagram>,
    counters: Arc<FaultCounters>,
}

impl<L: Link> Faulty<L> {
    /// Wraps `inner`.
    pub fn new(inner: L, faults: Faults) -> Self {
        let random = Random::new(faults.seed);
        let (held, counters) = (VecDeque::new(), Arc::default());
        Self { inner, spoiler: Spoiler { faults, random, held, counters } }
    }

    /// Changes what goes wrong from now on; the random numbers go on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.spoiler.faults = faults;
    }

    /// How often each fault struck.
    pub fn fault_counters(&self) -> &Arc<FaultCounters> {
        &self.spoiler.counters
    }
}

impl<L: Link> Link for Faulty<L> {
    fn send_first(
        &mut self,
        batch: &mut TransmitBatch,
        pool: &Pool,
        count_max: usize,
    ) -> SendOutcome {
        self.inner.send_first(batch, pool, count_max)
    }

    fn arm(&mut self) -> Progress {
        self.inner.arm()
    }

    fn receive(&mut self, now_ns: u64, f: &mut dyn FnMut(Arrival<'_>)) -> usize {
        let Self { inner, spoiler } = self;
        let mut delivered = 0;
        let mut deliver = |arrival: Arrival<'_>| {
            delivered += 1;
            f(arrival);
        };
        inner.receive(now_ns, &mut |arrival| spoiler.take(now_ns, arrival, &mut deliver));
        spoiler.release(now_ns, &mut deliver);
        delivered
    }

    fn next_ns(&self) -> Option<u64> {
        let held = self.spoiler.held.iter().map(|held| held.due_ns).min();
        [held, self.inner.next_ns()].into_iter().flatten().min()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn datagram_max(&self) -> usize {
        self.inner.datagram_max()
    }

    fn counters(&self) -> &Arc<LinkCounters> {
        self.inner.counters()
    }
}

type Deliver<'a> = &'a mut dyn FnMut(Arrival<'_>);

impl Spoiler {
    /// A datagram arrived: decides what becomes of it.
    fn take(&mut self, now_ns: u64, arrival: Arrival<'_>, deliver: Deliver<'_>) {
        if self.strikes(self.faults.loss_percent) {
            self.counters.lost.add(1);
            return;
        }
        let copies = if self.strikes(self.faults.duplication_percent) {
            self.counters.duplicated.add(1);
            2
        } else {
            1
        };
        for _ in 0..copies {
            if self.strikes(self.faults.corruption_percent) {
                self.counters.corrupted.add(1);
                let changed = self.corrupt(arrival.bytes);
                self.pass(now_ns, Arrival { bytes: &changed, ..arrival }, deliver);
            } else {
                self.pass(now_ns, arrival, deliver);
            }
        }
    }

    /// Delivers a datagram now or holds it back.
    fn pass(&mut self, now_ns: u64, arrival: Arrival<'_>, deliver: Deliver<'_>) {
        let Arrival { from, bytes, .. } = arrival;
        if self.strikes(self.faults.delay_percent) {
            let due_ns = now_ns + self.random.below(self.faults.delay_ns_max.max(1));
            if self.hold(due_ns, u64::MAX, from, bytes) {
                self.counters.delayed.add(1);
                return;
            }
        } else if self.strikes(self.faults.reordering_percent) {
            let overtakers = 1 + self.random.below(OVERTAKEN_BY_MAX);
            if self.hold(now_ns + REORDER_NS_MAX, overtakers, from, bytes) {
                self.counters.reordered.add(1);
                return;
            }
        }
        deliver(arrival);
        self.overtake(now_ns, deliver);
    }

    fn hold(&mut self, due_ns: u64, overtakers: u64, from: SocketAddr, bytes: &[u8]) -> bool {
        let fits = self.held.len() < HELD_MAX;
        if fits {
            self.held.push_back(DelayedDatagram {
                due_ns,
                overtakers,
                from,
                bytes: bytes.to_vec(),
            });
        } else {
            self.counters.overflowed.add(1);
        }
        fits
    }

    /// One datagram passed those that are held back: delivers those that have waited for it.
    fn overtake(&mut self, now_ns: u64, deliver: Deliver<'_>) {
        for held in &mut self.held {
            held.overtakers -= u64::from(held.overtakers != u64::MAX);
        }
        self.deliver_if(now_ns, |held| held.overtakers == 0, deliver);
    }

    /// Delivers what is due.
    fn release(&mut self, now_ns: u64, deliver: Deliver<'_>) {
        self.deliver_if(now_ns, |held| held.due_ns <= now_ns, deliver);
    }

    /// Delivers the held datagrams that are `ripe`. The endpoint sees a held datagram as one that
    /// arrives when the hold ends.
    fn deliver_if(
        &mut self,
        now_ns: u64,
        ripe: impl Fn(&DelayedDatagram) -> bool,
        deliver: Deliver<'_>,
    ) {
        self.held.retain(|held| {
            let keep = !ripe(held);
            if !keep {
                let at_ns = held.due_ns.min(now_ns);
                deliver(Arrival { from: held.from, at_ns, bytes: &held.bytes });
            }
            keep
        });
    }

    /// Flips a bit somewhere, or cuts the end off.
    fn corrupt(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut changed = bytes.to_vec();
        if changed.is_empty() {
            return changed;
        }
        let place = self.random.below(changed.len() as u64) as usize;
        if self.random.below(4) == 0 {
            changed.truncate(place);
        } else {
            changed[place] ^= 1 << self.random.below(8);
        }
        changed
    }

    fn strikes(&mut self, percent: f64) -> bool {
        percent > 0.0 && ((self.random.draw() >> 32) as f64) < percent / 100.0 * (1u64 << 32) as f64
    }
}

impl<L: Link> fmt::Debug for Faulty<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty")
            .field("inner", &self.inner)
            .field("faults", &self.spoiler.faults)
            .field("held", &self.spoiler.held.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Delivers numbered datagrams, a few per call; sends nothing.
    #[derive(Debug)]
    struct Numbers {
        next: u32,
        end: u32,
        socket: std::net::UdpSocket,
        counters: Arc<LinkCounters>,
    }

    impl Link for Numbers {
        fn send_first(&mut self, batch: &mut TransmitBatch, _: &Pool, _: usize) -> SendOutcome {
            SendOutcome { datagrams: 0, left: batch.len() }
        }

        fn receive(&mut self, now_ns: u64, f: &mut dyn FnMut(Arrival<'_>)) -> usize {
            let first = self.next;
            self.next = (first + 10).min(self.end);
            for number in first..self.next {
                let bytes = [number.to_le_bytes(), (!number).to_le_bytes()].concat();
                f(Arrival { from: self.local_addr(), at_ns: now_ns, bytes: &bytes });
            }
            (self.next - first) as usize
        }

        fn fd(&self) -> BorrowedFd<'_> {
            std::os::fd::AsFd::as_fd(&self.socket)
        }

        fn local_addr(&self) -> SocketAddr {
            SocketAddr::from(([127, 0, 0, 1], 9))
        }

        fn datagram_max(&self) -> usize {
            8
        }

        fn counters(&self) -> &Arc<LinkCounters> {
            &self.counters
        }
    }

    fn numbers(end: u32, faults: Faults) -> Faulty<Numbers> {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        Faulty::new(Numbers { next: 0, end, socket, counters: Arc::default() }, faults)
    }

    /// All that arrives, with a millisecond from call to call; `None` for what was changed.
    fn run(link: &mut Faulty<Numbers>) -> Vec<Option<u32>> {
        let mut arrived = Vec::new();
        for now_ms in 0.. {
            link.receive(now_ms * 1_000_000, &mut |Arrival { bytes, .. }| {
                let word = |at: usize| {
                    let bytes = bytes.get(at..at + 4)?;
                    Some(u32::from_le_bytes(bytes.try_into().ok()?))
                };
                let number = word(0).filter(|&number| word(4) == Some(!number));
                arrived.push(number);
            });
            if link.inner.next == link.inner.end && link.next_ns().is_none() {
                break;
            }
        }
        arrived
    }

    #[test]
    fn without_faults_everything_passes_in_order() {
        let mut link = numbers(1000, Faults::default());
        assert_eq!(run(&mut link), (0..1000).map(Some).collect::<Vec<_>>());
    }

    #[test]
    fn each_fault_strikes_about_as_often_as_asked_and_is_counted() {
        let about = |count: u64, percent: f64| {
            let wanted = 100_000.0 * percent / 100.0;
            assert!((count as f64 - wanted).abs() < wanted * 0.1, "{count} for {percent}%");
        };
        let faults = Faults { seed: 1, loss_percent: 5.0, ..Faults::default() };
        let mut link = numbers(100_000, faults);
        let arrived = run(&mut link).len() as u64;
        let lost = link.fault_counters().lost.get();
        about(lost, 5.0);
        assert_eq!(arrived + lost, 100_000);

        let faults = Faults { seed: 2, duplication_percent: 3.0, ..Faults::default() };
        let mut link = numbers(100_000, faults);
        let arrived = run(&mut link).len() as u64;
        let duplicated = link.fault_counters().duplicated.get();
        about(duplicated, 3.0);
        assert_eq!(arrived, 100_000 + duplicated);

        let faults = Faults { seed: 3, corruption_percent: 2.0, ..Faults::default() };
        let mut link = numbers(100_000, faults);
        let changed = run(&mut link).iter().filter(|number| number.is_none()).count() as u64;
        assert_eq!(changed, link.fault_counters().corrupted.get());
        about(changed, 2.0);
    }

    #[test]
    fn reordered_and_delayed_datagrams_arrive_late_but_once() {
        let faults = Faults {
            seed: 4,
            reordering_percent: 10.0,
            delay_percent: 10.0,
            delay_ns_max: 20_000_000,
            ..Faults::default()
        };
        let mut link = numbers(10_000, faults);
        let mut arrived: Vec<_> = run(&mut link).into_iter().flatten().collect();
        let late = arrived.windows(2).filter(|pair| pair[0] > pair[1]).count() as u64;
        let counters = link.fault_counters();
        assert!(counters.reordered.get() > 500 && counters.delayed.get() > 500);
        assert!(late > 500, "{late} were overtaken");
        arrived.sort_unstable();
        assert_eq!(arrived, (0..10_000).collect::<Vec<_>>());
    }

    #[test]
    fn one_seed_gives_the_same_faults_again() {
        let faults = Faults {
            seed: 5,
            loss_percent: 5.0,
            duplication_percent: 5.0,
            reordering_percent: 5.0,
            corruption_percent: 5.0,
            delay_percent: 5.0,
            delay_ns_max: 3_000_000,
        };
        let first = run(&mut numbers(2000, faults));
        assert_eq!(first, run(&mut numbers(2000, faults)));
        assert_ne!(first, run(&mut numbers(2000, Faults { seed: 6, ..faults })));
    }

    #[test]
    fn no_more_than_a_bounded_number_is_held_back() {
        let faults =
            Faults { delay_percent: 100.0, delay_ns_max: u64::MAX / 4, ..Faults::default() };
        let mut link = numbers(u32::MAX, faults);
        let mut delivered = 0;
        for _ in 0..HELD_MAX / 10 + 10 {
            delivered += link.receive(0, &mut |_| ());
        }
        assert_eq!(link.spoiler.held.len(), HELD_MAX);
        assert_eq!(link.fault_counters().overflowed.get(), delivered as u64);
        assert!(delivered > 0);
    }
}
