//! Which queue belongs on which sidecore: the logic of steering, without threads or clock.
//!
//! ```text
//!   look ─▶ loads, smoothed ─▶ how many sidecores are active ─▶ at most a few moves
//! ```
//!
//! The active sidecores are always the first ones. About ten times a second the caller reports how
//! busy each sidecore was and how many requests each queue had. A queue's part of its sidecore's
//! load is its part of the requests there. Few moves are better than good ones: a queue is moved
//! only where the move takes much off the busiest sidecore, and a sidecore is added sooner than one
//! is given up. After each batch of moves steering waits for the effect.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// The most moves of one look. Each move pauses a queue for up to 2 ms, and the effect of these
/// moves should be seen before more follow.
pub const MOVES_MAX: usize = 8;

/// Active sidecores are saturated when they are that busy on average, in thousandths of their time:
/// beyond it requests begin to wait for each other.
const GROW_LOAD: u32 = 700;

/// For how many looks they must be saturated until one more sidecore is used.
const GROW_LOOKS: u32 = 3;

/// One sidecore less is used when the others would be no busier than this: half of the load that
/// adds one, so that the two do not alternate.
const SHRINK_LOAD: u32 = 350;

/// For how many looks the load must be that low, at ten looks a second: a pause of a guest is not
/// the end of its work.
const SHRINK_LOOKS: u32 = 30;

/// So much of a saturated sidecore's load must come from other queues than its busiest one.
/// Otherwise one more sidecore could take nothing over.
const SHARED_LOAD: u32 = 100;

/// Queues are spread when the busiest sidecore has this much more load than the least busy one:
/// more than loads go up and down by themselves.
const GAP_MAX: u32 = 300;

/// Spreading ends when the difference is this small.
const GAP_DONE: u32 = 150;

/// A batch of moves that takes less off the busiest sidecore is not worth it.
const GAIN_MIN: u32 = 50;

/// Looks without further moves after a batch: as long as the smoothed loads take to follow.
const SETTLE_LOOKS: u32 = 5;

/// Looks for which steering does not try again to move a queue whose move failed.
const REST_LOOKS: u32 = 20;

/// A queue of a disk. The caller chooses the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueId {
    /// The disk.
    pub disk: u64,
    /// The queue's number in the disk.
    pub queue: usize,
}

/// One sidecore's work since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreLoad {
    /// Time in rounds that found work.
    pub busy_ns: u64,
    /// Requests that it served for other nodes: load that stays where it is.
    pub fixed_requests: u64,
}

/// The work of one running queue since the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLoad {
    /// The queue.
    pub id: QueueId,
    /// The sidecore that serves it.
    pub sidecore: usize,
    /// Requests taken.
    pub requests: u64,
}

/// The load since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLoad {
    /// Time since the last look.
    pub elapsed_ns: u64,
    /// By index.
    pub cores: Vec<CoreLoad>,
    /// In any order.
    pub queues: Vec<QueueLoad>,
}

/// An order to move a queue to another sidecore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The queue.
    pub id: QueueId,
    /// The sidecore that will serve it.
    pub to: usize,
}

/// The logic of steering: see the module.
#[derive(Clone, Debug)]
pub struct Steering {
    limits: RangeInclusive<usize>,
    active: usize,
    /// Thousandths of each sidecore's time, smoothed.
    loads: Vec<u32>,
    saturated_looks: u32,
    spare_looks: u32,
    settle_looks: u32,
    /// Queues that are not moved for so many more looks.
    resting: BTreeMap<QueueId, u32>,
}

impl Steering {
    /// Steers among `sidecores`, as many of which are active as `limits` says; `active` of them at
    /// first.
    ///
    /// # Panics
    /// When the limits are not 1 <= min <= max <= sidecores, or `active` is not within; the
    /// configuration checks that.
    pub fn new(sidecores: usize, limits: RangeInclusive<usize>, active: usize) -> Self {
        let (min, max) = (*limits.start(), *limits.end());
        assert!(1 <= min && min <= max && max <= sidecores, "{min} to {max} of {sidecores}");
        assert!(limits.contains(&active), "{active} is within the limits");
        Self {
            limits,
            active,
            loads: vec![0; sidecores],
            saturated_looks: 0,
            spare_looks: 0,
            settle_looks: 0,
            resting: BTreeMap::new(),
        }
    }

    /// The number of active sidecores, which are the first ones.
    pub fn active(&self) -> usize {
        self.active
    }

    /// How busy each sidecore is, in thousandths of its time, smoothed over some looks.
    pub fn loads(&self) -> &[u32] {
        &self.loads
    }

    /// Takes a report of the load and returns the queues to move, at most [`MOVES_MAX`].
    pub fn look(&mut self, look: &NodeLoad) -> Vec<Move> {
        self.smooth(look);
        self.resting.retain(|_, looks| {
            *looks -= 1;
            *looks > 0
        });
        let mut plan = MovePlan::new(&self.loads, look);
        self.resize(&plan);
        plan.evacuate(self.active, &self.resting);
        if plan.moves.is_empty() && self.settle_looks == 0 {
            plan.spread(self.active, &self.resting);
        }
        self.settle_looks = self.settle_looks.saturating_sub(1);
        if !plan.moves.is_empty() {
            self.settle_looks = SETTLE_LOOKS;
            // The expected loads count until the next looks show the real ones.
            self.loads = plan.loads;
        }
        plan.moves
    }

    /// Notes that the move of a queue failed.
    pub fn stayed(&mut self, id: QueueId) {
        self.resting.insert(id, REST_LOOKS);
    }

    fn smooth(&mut self, look: &NodeLoad) {
        for (load, core) in self.loads.iter_mut().zip(&look.cores) {
            let share = u128::from(core.busy_ns) * 1000 / u128::from(look.elapsed_ns.max(1));
            // A sidecore reads its clock once a round, so a share can be a little more than
            // everything.
            *load = load.midpoint(share.min(1000) as u32);
        }
    }

    /// One sidecore more, or one less.
    fn resize(&mut self, plan: &MovePlan) {
        let total: u32 = self.loads[..self.active].iter().sum();
        let count = self.active as u32;
        let saturated = total >= GROW_LOAD * count && plan.can_be_shared(self.active);
        let spare = total <= SHRINK_LOAD * (count - 1);
        let looks = |was: u32, now: bool| if now { was + 1 } else { 0 };
        self.saturated_looks =
            looks(self.saturated_looks, saturated && self.active < *self.limits.end());
        self.spare_looks = looks(self.spare_looks, spare && self.active > *self.limits.start());
        if self.saturated_looks >= GROW_LOOKS {
            self.active += 1;
            (self.saturated_looks, self.settle_looks) = (0, 0);
        } else if self.spare_looks >= SHRINK_LOOKS {
            self.active -= 1;
            self.spare_looks = 0;
        }
    }
}

/// Moves that are being considered, and the loads that would follow from them.
struct MovePlan {
    loads: Vec<u32>,
    /// With the load that each causes.
    queues: Vec<(QueueLoad, u32)>,
    moves: Vec<Move>,
}

impl MovePlan {
    fn new(loads: &[u32], look: &NodeLoad) -> Self {
        let known = |queue: &&QueueLoad| queue.sidecore < loads.len();
        let mut requests: Vec<_> = look.cores.iter().map(|core| core.fixed_requests).collect();
        requests.resize(loads.len(), 0);
        for queue in look.queues.iter().filter(known) {
            requests[queue.sidecore] += queue.requests;
        }
        let load_of = |queue: &QueueLoad| {
            let all = u128::from(requests[queue.sidecore].max(1));
            let load = u128::from(loads[queue.sidecore]) * u128::from(queue.requests) / all;
            (*queue, load as u32)
        };
        let mut queues: Vec<_> = look.queues.iter().filter(known).map(load_of).collect();
        queues.sort_by_key(|(queue, _)| queue.id);
        Self { loads: loads.to_vec(), queues, moves: Vec::new() }
    }

    /// Whether one more sidecore could take something over: a saturated sidecore has several busy
    /// queues.
    fn can_be_shared(&self, active: usize) -> bool {
        let shared = |core: usize| {
            let here = self.queues.iter().filter(|(queue, _)| queue.sidecore == core);
            let loads = here.map(|(_, load)| *load);
            loads.clone().sum::<u32>() - loads.max().unwrap_or(0)
        };
        (0..active).any(|core| self.loads[core] >= GROW_LOAD && shared(core) >= SHARED_LOAD)
    }

    fn coldest(&self, active: usize) -> usize {
        (0..active).min_by_key(|core| self.loads[*core]).expect("one is always active")
    }

    fn make(&mut self, place: usize, to: usize) {
        let (queue, load) = &mut self.queues[place];
        self.loads[queue.sidecore] -= *load;
        self.loads[to] += *load;
        queue.sidecore = to;
        self.moves.push(Move { id: queue.id, to });
    }

    /// Moves each queue off the sidecores that are not active. A resting queue stays: its last move
    /// failed, and the other queues must not wait for it.
    fn evacuate(&mut self, active: usize, resting: &BTreeMap<QueueId, u32>) {
        for place in 0..self.queues.len() {
            if self.moves.len() == MOVES_MAX {
                return;
            }
            let (queue, _) = self.queues[place];
            if queue.sidecore >= active && !resting.contains_key(&queue.id) {
                self.make(place, self.coldest(active));
            }
        }
    }

    /// Moves busy queues to the least busy sidecore, if that changes enough.
    fn spread(&mut self, active: usize, resting: &BTreeMap<QueueId, u32>) {
        let hottest = |plan: &Self| {
            (0..active).max_by_key(|core| plan.loads[*core]).expect("one is always active")
        };
        let before = self.loads[hottest(self)];
        let mut gap_min = GAP_MAX;
        while self.moves.len() < MOVES_MAX {
            let (from, to) = (hottest(self), self.coldest(active));
            let (high, low) = (self.loads[from], self.loads[to]);
            let after = |load: u32| (high - load).max(low + load);
            let may_go = |queue: &QueueLoad| {
                let moved = self.moves.iter().any(|made| made.id == queue.id);
                queue.sidecore == from && !moved && !resting.contains_key(&queue.id)
            };
            let queues = self.queues.iter().enumerate();
            let candidates = queues.filter(|(_, (queue, load))| *load > 0 && may_go(queue));
            let best = candidates.min_by_key(|(_, (_, load))| after(*load));
            match best {
                Some((place, (_, load))) if high - low >= gap_min && after(*load) < high => {
                    self.make(place, to);
                }
                _ => break,
            }
            gap_min = GAP_DONE;
        }
        if self.loads[hottest(self)] + GAIN_MIN > before {
            self.moves.clear();
        }
    }
}

#[cfg(test)]
mod tests;
