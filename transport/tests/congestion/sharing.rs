//! Several sessions through one bottleneck.

use crate::world::{
    Bottleneck, FlowPlan, GBIT, MS, QueueSeen, SECOND, US, World, jain, utilisation,
};

/// A round trip with nothing in the queue: two hosts at one switch, and hosts of two buildings.
const TRIPS_NS: [u64; 3] = [40 * US, 200 * US, MS];

/// The flows' shares of the rate between two moments.
struct Shared {
    jain: f64,
    used: f64,
    /// Parts of what was delivered.
    shares: Vec<f64>,
    queue: QueueSeen,
}

fn share(name: &str, rate: u64, plans: &[FlowPlan], (from_ns, to_ns): (u64, u64)) -> Shared {
    let mut world = World::new(7, Bottleneck::new(rate), plans);
    world.run_until(from_ns);
    world.queue = QueueSeen::default();
    world.run_until(to_ns);
    let bytes: Vec<u64> =
        (0..plans.len()).map(|flow| world.delivered(flow, from_ns, to_ns)).collect();
    let total: u64 = bytes.iter().sum();
    let shared = Shared {
        jain: jain(&bytes),
        used: utilisation(total, rate, to_ns - from_ns),
        shares: bytes.iter().map(|&bytes| bytes as f64 / total as f64).collect(),
        queue: world.queue,
    };
    println!(
        "{name:28} {:2} Gbit/s {:5} us: Jain {:.3}, used {:.3}, queue {:4} us, most {:4}, {} lost",
        rate / GBIT,
        plans[0].trip_ns / US,
        shared.jain,
        shared.used,
        shared.queue.mean_ns() / US,
        shared.queue.max_ns / US,
        shared.queue.drops,
    );
    shared
}

#[test]
fn two_flows_share_alike_whenever_they_start() {
    for rate in [GBIT, 10 * GBIT] {
        for trip_ns in TRIPS_NS {
            let plan = FlowPlan::new(trip_ns);
            let late = FlowPlan { start_ns: 300 * MS, ..plan };
            for (name, plans) in [("two together", [plan; 2]), ("one later", [plan, late])] {
                let shared = share(name, rate, &plans, (600 * MS, SECOND));
                assert!(shared.jain > 0.95 && shared.used > 0.95, "{name}: {:?}", shared.shares);
                // Ten gigabits: 100 us for one flow, and the root of two.
                let most_us = if rate == GBIT { 800 } else { 300 };
                assert!(shared.queue.mean_ns() < most_us * US, "{:?}", shared.queue);
            }
        }
    }
}

/// Hosts whose clocks differ look for the base at different times.
#[test]
fn two_hosts_with_clocks_of_their_own_share_alike() {
    for rate in [GBIT, 10 * GBIT] {
        for trip_ns in TRIPS_NS {
            let plan = FlowPlan { datagram_bytes: 1472, ..FlowPlan::new(trip_ns) };
            let plans = [plan, FlowPlan { clock_ns: 57 * MS, ..plan }];
            let shared = share("two clocks", rate, &plans, (600 * MS, SECOND));
            assert!(shared.jain > 0.95, "{:?}", shared.shares);
        }
    }
}

#[test]
fn eight_flows_share_alike() {
    for rate in [GBIT, 10 * GBIT] {
        for trip_ns in TRIPS_NS {
            let mut plans = [FlowPlan { datagram_bytes: 1472, ..FlowPlan::new(trip_ns) }; 8];
            for (index, plan) in plans.iter_mut().enumerate() {
                plan.start_ns = index as u64 * 20 * MS;
            }
            let shared = share("eight", rate, &plans, (600 * MS, SECOND));
            assert!(shared.jain > 0.95, "{:?}", shared.shares);
            assert!(shared.queue.mean_ns() < 1500 * US, "{:?}", shared.queue);
        }
    }
}

/// The target depends on the rate and not on the way, so either gets at least a fifth.
#[test]
fn ten_times_the_round_trip_is_not_starved_and_does_not_starve() {
    for rate in [GBIT, 10 * GBIT] {
        for trip_ns in TRIPS_NS {
            let near = FlowPlan::new(trip_ns);
            let far = FlowPlan { trip_ns: 10 * trip_ns, ..near };
            let shared = share("near and far", rate, &[near, far], (SECOND, 2 * SECOND));
            println!("{:>29}{:.2} and {:.2}", "", shared.shares[0], shared.shares[1]);
            assert!(shared.shares.iter().all(|&share| share > 0.2), "{:?}", shared.shares);
        }
    }
}

/// One receiver runs, one is paused again and again: the first takes what the second leaves.
#[test]
fn unequal_receivers_leave_nothing_unused() {
    for trip_ns in TRIPS_NS {
        let steady = FlowPlan::new(trip_ns);
        let paused = steady.paused((5 * MS, 20 * MS), (15 * MS, 35 * MS));
        let shared = share("a paused one", 10 * GBIT, &[steady, paused], (600 * MS, SECOND));
        println!("{:>29}{:.2} and {:.2}", "", shared.shares[0], shared.shares[1]);
        assert!(shared.used > 0.9);
        // It runs for two thirds of the time, and half of that is its share.
        assert!(shared.shares[1] > 0.2, "{:?}", shared.shares);
    }
}
