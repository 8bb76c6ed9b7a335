//! A crash at each answer of a device in turn, and at each request of an opening in turn.
//!
//! `STORE_STOPS=n` takes so many pools; 2 when nothing is said.

mod world;

use seeds::Tally;
use store::{DedupOptions, HistoryOptions};
use world::disk::CrashKind;
use world::plan::{Plan, PlannedStop, StopAt};
use world::run;

/// Pools, when nothing else is said.
const POOLS: u64 = 2;

/// More stops than a pool can have.
const STOPS_MAX: u64 = 5_000;

/// Events of encrypted volumes that must have been between the crashes.
const KEY_EVENTS: [&str; 6] = [
    "encrypted volumes",
    "changes of a wrapping key",
    "changes of a data key",
    "pages that were sealed anew",
    "shredded volumes",
    "openings without keys",
];

/// A small pool with many checkpoints.
fn plan(seed: u64) -> Plan {
    let mut plan = Plan { lives: 2, rounds: 100, depth: 8, volumes: 5, ..Plan::of_seed(seed) };
    plan.options.log_blocks_max = 60;
    plan.layout.segment_blocks = 16;
    plan.faults = world::plan::DiskFaults::NONE;
    plan
}

/// The same with devices that become longer, join and leave all the time.
fn device_plan(seed: u64) -> Plan {
    let mut plan = Plan { device_rounds: 12, rounds: 160, ..plan(seed) };
    plan.options.log_blocks_max = 200;
    plan
}

/// The same with encrypted volumes, whose keys change all the time.
fn key_plan(seed: u64) -> Plan {
    Plan { key_rounds: 8, rounds: 120, volumes: 4, ..plan(seed) }
}

/// The first of the pools with pages that share their content: collection works in its first life,
/// in which the crashes are.
const DEDUP_FIRST: u64 = 19;

/// The same with pages that share their content.
fn dedup_plan(seed: u64) -> Plan {
    let seed = seed - 1 + DEDUP_FIRST;
    let dedup = Some(DedupOptions { memory_bytes: 1 << 12, hash_bits: 64 });
    let has_zeroes = seed.is_multiple_of(2);
    Plan { dedup, has_zeroes, rounds: 160, compresses: true, ..plan(seed) }
}

/// The same with histories, whose moments come and go.
fn history_plan(seed: u64) -> Plan {
    let history = Some(HistoryOptions { reach_ms: 300, step_ms: 100 });
    Plan { history, rounds: 120, ..plan(seed) }
}

/// All crashes of a kind, until one is behind the end of the life or opening.
fn stop_at_each(plan: &Plan, kind: CrashKind, at: fn(u64) -> StopAt, event: &str) -> Tally {
    let seed = plan.seed;
    let mut total = Tally::default();
    for moment in 1..STOPS_MAX {
        let stop = PlannedStop { at: at(moment), kind };
        match run(&Plan { stop: Some(stop), ..plan.clone() }) {
            Ok(tally) if tally.of(event) == 0 => {
                println!("pool {seed}, {kind:?}, {} stops: {total}", moment - 1);
                return total;
            }
            Ok(tally) => total.merge(&tally),
            Err(failure) => panic!("pool {seed}, {stop:?}: {failure}"),
        }
    }
    panic!("pool {seed}: no end after {STOPS_MAX} stops");
}

fn pools() -> std::ops::RangeInclusive<u64> {
    let text = std::env::var("STORE_STOPS").ok().filter(|text| !text.is_empty());
    1..=text.map_or(POOLS, |text| text.parse().expect("STORE_STOPS is a number"))
}

#[test]
fn a_kill_at_any_answer_loses_nothing() {
    for seed in pools() {
        stop_at_each(&plan(seed), CrashKind::Kill, StopAt::Answer, "crashes at an answer");
    }
}

#[test]
fn a_power_cut_at_any_answer_leaves_a_prefix() {
    for seed in pools() {
        stop_at_each(&plan(seed), CrashKind::PowerCut, StopAt::Answer, "crashes at an answer");
    }
}

#[test]
fn a_crash_at_any_request_of_an_opening_loses_nothing() {
    for seed in pools() {
        for kind in [CrashKind::Kill, CrashKind::PowerCut] {
            stop_at_each(&plan(seed), kind, StopAt::Opening, "crashes in openings");
        }
    }
}

/// Each device write of a join, of a device that becomes longer, and of a leave.
#[test]
fn a_crash_at_any_answer_while_devices_change_loses_nothing() {
    for seed in pools() {
        for kind in [CrashKind::Kill, CrashKind::PowerCut] {
            let plan = device_plan(seed);
            let total = stop_at_each(&plan, kind, StopAt::Answer, "crashes at an answer");
            for event in ["longer devices", "devices that joined", "devices that began to leave"] {
                assert!(total.of(event) > 0, "pool {seed}: no {event}");
            }
        }
    }
}

/// Each device write while pages become aliases and while these are freed.
#[test]
fn a_crash_at_any_answer_while_pages_share_their_content_loses_nothing() {
    let mut total = Tally::default();
    for seed in pools() {
        for kind in [CrashKind::Kill, CrashKind::PowerCut] {
            let plan = dedup_plan(seed);
            total.merge(&stop_at_each(&plan, kind, StopAt::Answer, "crashes at an answer"));
            total.merge(&stop_at_each(&plan, kind, StopAt::Opening, "crashes in openings"));
        }
    }
    for event in ["aliases at a crash", "aliases at rest", "pages of zeroes at rest"] {
        assert!(total.of(event) > 0, "no {event}");
    }
}

/// Each device write while moments of histories are taken, removed and cloned.
#[test]
fn a_crash_at_any_answer_while_moments_come_and_go_loses_nothing() {
    let mut total = Tally::default();
    for seed in pools() {
        for kind in [CrashKind::Kill, CrashKind::PowerCut] {
            let plan = history_plan(seed);
            total.merge(&stop_at_each(&plan, kind, StopAt::Answer, "crashes at an answer"));
            total.merge(&stop_at_each(&plan, kind, StopAt::Opening, "crashes in openings"));
        }
    }
    // Moments that a crash takes back are seen by the simulation, which has more pools.
    for event in ["moments", "moments that went", "clones of moments"] {
        assert!(total.of(event) > 0, "no {event}");
    }
}

/// Each device write of a change of keys, of pages that are sealed anew, and of a shredding.
#[test]
fn a_crash_at_any_answer_while_keys_change_loses_nothing() {
    let mut total = Tally::default();
    for seed in pools() {
        for kind in [CrashKind::Kill, CrashKind::PowerCut] {
            let plan = key_plan(seed);
            total.merge(&stop_at_each(&plan, kind, StopAt::Answer, "crashes at an answer"));
            total.merge(&stop_at_each(&plan, kind, StopAt::Opening, "crashes in openings"));
        }
    }
    for event in KEY_EVENTS {
        assert!(total.of(event) > 0, "no {event}");
    }
}
