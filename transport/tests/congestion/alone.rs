//! One session, and what the way and the hosts do to it.

use crate::world::{Bottleneck, FlowPlan, GBIT, MS, SECOND, US, World, utilisation};

/// Header and fragment frame of a datagram.
const OVERHEAD_BYTES: u64 = 52;

/// The bytes that Ethernet, IP and UDP add.
const FRAMING_BYTES: u64 = 66;

/// The part of the rate that is bodies when every datagram is full.
fn full(datagram_bytes: usize) -> f64 {
    let bytes = datagram_bytes as u64;
    (bytes - OVERHEAD_BYTES) as f64 / (bytes + FRAMING_BYTES) as f64
}

/// The used part of the rate from half a second to a second.
fn used(world: &mut World, rate: u64) -> f64 {
    world.run_until(SECOND);
    utilisation(world.delivered(0, SECOND / 2, SECOND), rate, SECOND / 2)
}

/// Losses by chance below a thirty-second of the packets do not shrink the window: they cost what
/// was lost, which is sent again, and nothing else. So the model is `1 - p`, relative to no loss.
#[test]
fn random_loss_costs_what_was_lost() {
    println!("loss    rate       trip    used    relative  model");
    for (rate, trip_ns) in [(GBIT, 200 * US), (10 * GBIT, 200 * US), (10 * GBIT, 2 * MS)] {
        let mut without = 0.0;
        for loss_ppm in [0, 1_000, 10_000] {
            let plan = FlowPlan { datagram_bytes: 1472, ..FlowPlan::new(trip_ns) };
            let bottleneck = Bottleneck { loss_ppm, ..Bottleneck::new(rate) };
            let mut world = World::new(7, bottleneck, &[plan]);
            let used = used(&mut world, rate);
            if loss_ppm == 0 {
                without = used;
                assert!(used > 0.97 * full(1472), "{used}");
            }
            let (relative, model) = (used / without, 1.0 - loss_ppm as f64 / 1e6);
            println!(
                "{:4.1} %  {:2} Gbit/s  {:4} us  {used:.3}   {relative:.3}     {model:.3}",
                loss_ppm as f64 / 1e4,
                rate / GBIT,
                trip_ns / US,
            );
            assert!((relative - model).abs() < 0.01, "{relative} instead of {model}");
        }
    }
}

/// The model: nothing arrives while the receiver does not run, and the way is full otherwise. Its
/// waits are no delay, so the window stays what it was.
#[test]
fn a_paused_receiver_loses_the_time_of_its_pauses_and_no_more() {
    println!("rate       trip     runs for  used    model   window KiB, steady");
    for rate in [GBIT, 10 * GBIT] {
        for trip_ns in [100 * US, MS] {
            let steady = FlowPlan::new(trip_ns);
            let mut world = World::new(7, Bottleneck::new(rate), &[steady]);
            world.run_until(SECOND);
            let steady_bytes = world.status(0).window_bytes;
            for every_ns in [20 * MS, 50 * MS, 100 * MS] {
                let plan = steady.paused((5 * MS, 20 * MS), (every_ns / 2, every_ns * 3 / 2));
                let mut world = World::new(7, Bottleneck::new(rate), &[plan]);
                world.run_until(2 * SECOND);
                let bytes = world.delivered(0, SECOND, 2 * SECOND);
                let used = utilisation(bytes, rate, SECOND) / full(8972);
                let running = 1.0 - world.paused_ns(0) as f64 / (2 * SECOND) as f64;
                let window_bytes = world.status(0).window_bytes;
                println!(
                    "{:2} Gbit/s  {:4} us  {:3} ms    {used:.3}   {running:.3}   {}, {}",
                    rate / GBIT,
                    trip_ns / US,
                    every_ns / MS,
                    window_bytes >> 10,
                    steady_bytes >> 10,
                );
                assert!(used > 0.85 * running, "{used} of {running}");
                assert!(window_bytes * 2 > steady_bytes, "{window_bytes} of {steady_bytes}");
                assert_eq!(world.socket_drops(0), 0);
            }
        }
    }
}

/// 62 MB in flight, which no default allows: the receiver has set a larger buffer.
#[test]
fn a_long_fat_way_is_filled() {
    let plan = FlowPlan { socket_bytes: 16 << 20, ..FlowPlan::new(50 * MS) };
    let rate = 10 * GBIT;
    let mut world = World::new(7, Bottleneck::new(rate), &[plan]);
    for second in 0..5 {
        world.run_until((second + 1) * SECOND);
        let bytes = world.delivered(0, second * SECOND, (second + 1) * SECOND);
        println!("second {second}: {:.3} of 10 Gbit/s", utilisation(bytes, rate, SECOND));
    }
    let bytes = world.delivered(0, 4 * SECOND, 5 * SECOND);
    assert!(utilisation(bytes, rate, SECOND) > 0.85);
}

/// 100 Gbit/s over 300 µs.
#[test]
fn a_fast_way_is_filled() {
    let plan = FlowPlan::new(300 * US);
    let rate = 100 * GBIT;
    let mut world = World::new(7, Bottleneck::new(rate), &[plan]);
    world.run_until(200 * MS);
    let used = utilisation(world.delivered(0, 100 * MS, 200 * MS), rate, 100 * MS);
    println!("{used:.3} of 100 Gbit/s");
    assert!(used > 0.9);
}
