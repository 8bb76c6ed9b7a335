//! How much of this process's address space front ends may take, together and each.
//!
//! A front end says how long its guest's memory is, and a sparse file of any length costs it
//! nothing. The node pays with addresses, of which a process has 128 TiB, and with mappings, of
//! which the system gives it 65,530 (`vm.max_map_count`). With none left the next allocation ends
//! the node. So each mapping of a front end's is charged before it is made, to the front end and to
//! the process, and a front end that asks for more is refused.
//!
//! Both belong to the process and not to a node or a device. Their use is counted in one place for
//! all of it, by atomics, since the last user of a mapping may be a sidecore.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::REGIONS_MAX;
use crate::backing::GuestFiles;

/// Once front ends have half of the node's limit for them, each may have at most an eighth of the
/// rest, so that something is left for the next one. A front end with the largest share (4 TiB) is
/// refused once 60 of the 96 TiB are used.
const PART_OF_LEFT: u64 = 8;

/// Limits of mapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Bytes of addresses.
    pub addresses_bytes_max: u64,
    /// Mappings.
    pub mappings_max: u64,
}

/// The rules for front ends' memory: the kinds of files, and the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRules {
    /// The files.
    pub files: GuestFiles,
    /// All front ends together.
    pub node: MemoryLimits,
    /// One front end.
    pub front_end: MemoryLimits,
}

impl MemoryRules {
    /// The rules that hold until others are set.
    pub const DEFAULT: Self = Self {
        files: GuestFiles::Memory,
        node: MemoryLimits {
            // Of 128 TiB; the rest is more than the node's own memory can be.
            addresses_bytes_max: 96 << 40,
            // A quarter of what Linux gives: a mapping that is lost becomes two, and the node's own
            // are few thousand.
            mappings_max: 16_384,
        },
        front_end: MemoryLimits {
            // Twice a guest of 2 TiB: a new table is mapped before the one before it goes.
            addresses_bytes_max: 4 << 40,
            // Two tables of the most regions, an inflight region and a dirty log, old and new.
            mappings_max: 2 * REGIONS_MAX as u64 + 4,
        },
    };
}

impl Default for MemoryRules {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Why a front end gets no more memory mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BudgetError {
    /// This front end has as much as it may.
    #[error(
        "with {more} more of this, the front end would have more mapped than {max} {unit} (raise \
         \"{key}\" in [memory], or give the guest less)"
    )]
    FrontEnd {
        /// How much more was asked for.
        more: u64,
        /// Its limit.
        max: u64,
        /// Of what.
        unit: &'static str,
        /// The key that says so.
        key: &'static str,
    },
    /// It would have more than a part of what is left for all front ends.
    #[error(
        "with {more} more of this, the front end would have {had} {unit} mapped, and so more than \
         an eighth of the {left} that are left for others (raise \"{key}\" in [memory], or start \
         another node)"
    )]
    Part {
        /// How much more was asked for.
        more: u64,
        /// How much it would have.
        had: u64,
        /// How much would be left of the node's.
        left: u64,
        /// Of what.
        unit: &'static str,
        /// The key that says so.
        key: &'static str,
    },
    /// All front ends of this node together have.
    #[error(
        "with {more} more of this, the front ends of this node would have more mapped than {max} \
         {unit} (raise \"{key}\" in [memory], or start another node)"
    )]
    Node {
        /// How much more was asked for.
        more: u64,
        /// The node's limit.
        max: u64,
        /// Of what.
        unit: &'static str,
        /// The key that says so.
        key: &'static str,
    },
}

const BYTES: &str = "bytes of addresses";
const MAPPINGS: &str = "mappings";
const BYTES_KEY: &str = "guest-addresses-max";
const MAPPINGS_KEY: &str = "guest-mappings-max";

/// The bytes and mappings that are in use now.
#[derive(Debug, Default)]
struct BudgetUse {
    bytes: AtomicU64,
    mappings: AtomicU64,
}

static RULES: Mutex<MemoryRules> = Mutex::new(MemoryRules::DEFAULT);
static ALL: BudgetUse = BudgetUse { bytes: AtomicU64::new(0), mappings: AtomicU64::new(0) };
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// The memory that all front ends of this process have mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsed {
    /// Bytes of addresses.
    pub addresses_bytes: u64,
    /// Mappings.
    pub mappings: u64,
    /// How often a front end was refused one, because it or the node had as much as it may.
    pub refused: u64,
}

/// Sets the rules for mappings that are made from now on. Present mappings stay.
pub fn set_memory_rules(rules: MemoryRules) {
    *RULES.lock() = rules;
}

/// The rules.
pub fn memory_rules() -> MemoryRules {
    *RULES.lock()
}

/// The part of the limits that is used.
pub fn memory_used() -> MemoryUsed {
    MemoryUsed {
        addresses_bytes: ALL.bytes.load(Relaxed),
        mappings: ALL.mappings.load(Relaxed),
        refused: REFUSED.load(Relaxed),
    }
}

/// Adds, but not beyond `max`.
fn add(counter: &AtomicU64, more: u64, max: u64) -> bool {
    let sum = |used: u64| used.checked_add(more).filter(|sum| *sum <= max);
    counter.fetch_update(Relaxed, Relaxed, sum).is_ok()
}

/// The memory that a single front end has mapped.
#[derive(Debug, Default)]
pub(crate) struct Account(BudgetUse);

impl Account {
    /// Charges a mapping of so many bytes until the returned charge is dropped.
    pub(crate) fn charge(self: &Arc<Self>, bytes: u64) -> Result<Charge, BudgetError> {
        let rules = memory_rules();
        // Each is given back by being dropped, if a later one is refused.
        let mut charge = Charge { account: Arc::clone(self), taken: [0; 4] };
        let limits = [
            (bytes, rules.front_end.addresses_bytes_max),
            (1, rules.front_end.mappings_max),
            (bytes, rules.node.addresses_bytes_max),
            (1, rules.node.mappings_max),
        ];
        for (at, (more, max)) in limits.into_iter().enumerate() {
            if !add(charge.counters()[at], more, max) {
                REFUSED.fetch_add(1, Relaxed);
                return Err(refusal(at, more, max));
            }
            charge.taken[at] = more;
        }
        self.check_parts(&rules.node, bytes)?;
        Ok(charge)
    }

    /// Whether it leaves enough for others. Front ends that ask at the same moment may each count
    /// the other's: then one of them is refused that would not have been a moment later.
    fn check_parts(&self, node: &MemoryLimits, bytes: u64) -> Result<(), BudgetError> {
        let parts = [
            (bytes, &self.0.bytes, &ALL.bytes, node.addresses_bytes_max, BYTES, BYTES_KEY),
            (1, &self.0.mappings, &ALL.mappings, node.mappings_max, MAPPINGS, MAPPINGS_KEY),
        ];
        for (more, own, all, max, unit, key) in parts {
            let (had, left) = (own.load(Relaxed), max.saturating_sub(all.load(Relaxed)));
            if left < max / 2 && had > left / PART_OF_LEFT {
                REFUSED.fetch_add(1, Relaxed);
                return Err(BudgetError::Part { more, had, left, unit, key });
            }
        }
        Ok(())
    }
}

fn refusal(at: usize, more: u64, max: u64) -> BudgetError {
    match at {
        0 => BudgetError::FrontEnd { more, max, unit: BYTES, key: "front-end-addresses-max" },
        1 => BudgetError::FrontEnd { more, max, unit: MAPPINGS, key: "front-end-mappings-max" },
        2 => BudgetError::Node { more, max, unit: BYTES, key: BYTES_KEY },
        _ => BudgetError::Node { more, max, unit: MAPPINGS, key: MAPPINGS_KEY },
    }
}

/// One mapping's part of the budget.
#[derive(Debug)]
pub(crate) struct Charge {
    account: Arc<Account>,
    /// In the order of [`Charge::counters`].
    taken: [u64; 4],
}

impl Charge {
    fn counters(&self) -> [&AtomicU64; 4] {
        let own = &self.account.0;
        [&own.bytes, &own.mappings, &ALL.bytes, &ALL.mappings]
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        for (counter, taken) in self.counters().into_iter().zip(self.taken) {
            counter.fetch_sub(taken, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(node: (u64, u64), front_end: (u64, u64)) {
        let limits = |(addresses_bytes_max, mappings_max): (u64, u64)| MemoryLimits {
            addresses_bytes_max,
            mappings_max,
        };
        let (node, front_end) = (limits(node), limits(front_end));
        set_memory_rules(MemoryRules { node, front_end, ..MemoryRules::DEFAULT });
    }

    fn key(error: &BudgetError) -> &'static str {
        match error {
            BudgetError::FrontEnd { key, .. }
            | BudgetError::Part { key, .. }
            | BudgetError::Node { key, .. } => key,
        }
    }

    fn account() -> Arc<Account> {
        Arc::new(Account::default())
    }

    /// The counters are the process's, so all of it is one test.
    #[test]
    fn a_charge_is_refused_beyond_each_limit_and_leaves_nothing_behind() {
        assert_eq!(memory_used(), MemoryUsed::default(), "each test is a process");
        set((1000, 1000), (100, 3));
        let first = account();
        let most = first.charge(100).unwrap();
        assert_eq!(key(&first.charge(1).unwrap_err()), "front-end-addresses-max");
        assert_eq!(key(&first.charge(u64::MAX).unwrap_err()), "front-end-addresses-max");
        let second = account();
        let _some: Vec<_> = (0..3).map(|_| second.charge(1).unwrap()).collect();
        assert_eq!(key(&second.charge(1).unwrap_err()), "front-end-mappings-max");
        assert_eq!(left_of(&memory_used()), (103, 4));
        drop(most);
        assert_eq!(left_of(&memory_used()), (3, 3));
        assert_eq!(memory_used().refused, 3);
        // All together: the fourth mapping of seven is the last that any front end may have.
        set((1000, 7), (1000, 7));
        let _one = account().charge(1).unwrap();
        let refused = account().charge(1).unwrap_err();
        assert!(matches!(refused, BudgetError::Part { .. }), "{refused}");
        assert_eq!(key(&refused), "guest-mappings-max");
        set((10, 100), (1000, 100));
        let refused = account().charge(7).unwrap_err();
        assert!(matches!(refused, BudgetError::Node { .. }), "{refused}");
        assert_eq!(key(&refused), "guest-addresses-max");
        assert_eq!(left_of(&memory_used()), (4, 4));
    }

    fn left_of(used: &MemoryUsed) -> (u64, u64) {
        (used.addresses_bytes, used.mappings)
    }

    /// Each front end asks for 4 TiB, and for half of it when it is refused, as an attacker does.
    #[test]
    fn something_is_left_after_any_number_of_greedy_front_ends() {
        const GIB: u64 = 1 << 30;
        set_memory_rules(MemoryRules::DEFAULT);
        let mut kept = Vec::new();
        let mut had = Vec::new();
        for _ in 0..40 {
            let greedy = account();
            let mut ask = 4096 * GIB;
            loop {
                match greedy.charge(ask) {
                    Ok(charge) => break kept.push((greedy, charge)),
                    Err(_) => ask /= 2,
                }
            }
            had.push(ask / GIB);
        }
        assert!(had[..16].iter().all(|gib| *gib == 4096), "{had:?}");
        let usual = account().charge(256 * GIB);
        assert!(usual.is_ok(), "a usual guest has its memory after {had:?}: {usual:?}");
    }
}
