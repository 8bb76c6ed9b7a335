//! Faults at random on a rack of real processes: three IOhosts with a member of etcd each, and a
//! VMhost with two guests; each answer to them is checked. Each host has a network namespace.
//!
//! `FAULTS=n` sets the number of faults, `FAULT_SEED=n` another run. Each fault is a function of
//! the seed and its number, so a run may begin anywhere: `FAULT_FIRST=n`.

mod delay;
mod disk;
#[path = "../../node/tests/live/fuse.rs"]
mod fuse;
mod hosts;
mod load;
mod plan;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use random::Random;

use self::hosts::Hosts;
use self::load::Load;
use self::plan::Step;

const TEST: &str = "guests_of_replicated_volumes_go_on_through_random_faults";

/// The faults of one run: as many as CI has time for.
const FAULTS: u64 = 8;

/// The volumes, and their copies.
const VOLUMES: [(&str, usize); 2] = [("alice", 2), ("bob", 3)];

/// How long a state may take that comes by itself; only a hang takes longer.
const PATIENCE: Duration = Duration::from_secs(240);

/// Faults between two reads of all copies.
const READ_EVERY: u64 = 16;

/// The time between two looks at the guests.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty());
    text.map_or(otherwise, |text| text.parse().expect("a number"))
}

/// The run so far. It says how to replay the fault at which it ends too early.
struct Run {
    seed: u64,
    number: u64,
    /// By kinds: for each fault the guests' longest pause.
    pauses: BTreeMap<&'static str, Vec<Duration>>,
}

impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { seed, number, .. } = self;
            println!(
                "this fault alone: FAULT_SEED={seed} FAULT_FIRST={number} FAULTS=1; \
                 the run until here: FAULT_SEED={seed} FAULTS={}",
                *number + 1
            );
        }
    }
}

impl Run {
    /// One step: faults, their end, and the checks.
    fn step(&mut self, hosts: &mut Hosts, guests: &[Load]) {
        let step = Step::new(self.seed, self.number);
        println!("fault {} of seed {}: {step}", self.number, self.seed);
        guests.iter().for_each(|guest| _ = guest.take_longest_pause());
        let began = Instant::now();
        let is_alone = step.faults.len() == 1;
        for (at, fault) in step.faults.iter().enumerate() {
            if at > 0 {
                std::thread::sleep(step.gap);
            }
            hosts.begin(fault, is_alone);
        }
        std::thread::sleep(step.hold);
        hosts.heal();
        let healed = began.elapsed();
        hosts.wait_until_well();
        wait_for_guests(guests);
        hosts.expect_no_failed_copy();
        let well = began.elapsed();
        let pauses: Vec<_> = guests.iter().map(Load::take_longest_pause).collect();
        println!(
            "    healed after {healed:.1?}, well after {well:.1?}; longest pauses {pauses:.2?}"
        );
        let longest = pauses.into_iter().max().unwrap_or_default();
        self.pauses.entry(step.kind()).or_default().push(longest);
    }

    fn print_table(&mut self) {
        println!("\n{:35} faults   median  longest pause of a guest", "kind");
        for (kind, pauses) in &mut self.pauses {
            pauses.sort();
            let median = pauses[pauses.len() / 2].as_secs_f64();
            let longest = pauses[pauses.len() - 1].as_secs_f64();
            println!("{kind:35} {:6} {median:6.2} s {longest:6.2} s", pauses.len());
        }
    }
}

fn expect_no_problem(guests: &[Load]) {
    let problems: Vec<_> = guests.iter().filter_map(Load::problem).collect();
    assert!(problems.is_empty(), "{problems:#?}");
}

/// Waits until each guest has had another answer.
fn wait_for_guests(guests: &[Load]) {
    let until = Instant::now() + PATIENCE;
    for guest in guests {
        let before = guest.completed();
        while guest.completed() == before {
            expect_no_problem(guests);
            assert!(Instant::now() < until, "the guest of {} has no answer", guest.volume);
            std::thread::sleep(LOOK_AGAIN);
        }
    }
    expect_no_problem(guests);
}

/// Has the guests read all of each copy.
fn read_all_copies(hosts: &mut Hosts, guests: &[Load]) {
    for guest in guests {
        hosts.serve_in_turn(guest.volume, || {
            guest.read_all();
            expect_no_problem(guests);
        });
    }
}

#[test]
fn guests_of_replicated_volumes_go_on_through_random_faults() {
    let (seed, first) = (number("FAULT_SEED", 1), number("FAULT_FIRST", 0));
    let faults = number("FAULTS", FAULTS);
    println!("FAULT_SEED={seed} FAULT_FIRST={first} FAULTS={faults}");
    let began = Instant::now();
    let Some(mut hosts) = Hosts::start(TEST) else { return };
    let mut random = Random::new(seed);
    let guests =
        VOLUMES.map(|(volume, _)| Load::start(volume, hosts.socket(volume), random.fork()));
    hosts.wait_until_well();
    wait_for_guests(&guests);
    println!("the hosts are there after {:.0?}", began.elapsed());
    let mut run = Run { seed, number: first, pauses: BTreeMap::new() };
    for number in first..first + faults {
        run.number = number;
        run.step(&mut hosts, &guests);
        if (number + 1) % READ_EVERY == 0 {
            read_all_copies(&mut hosts, &guests);
        }
    }
    read_all_copies(&mut hosts, &guests);
    let answered: u64 = guests.iter().map(Load::completed).sum();
    drop(guests);
    hosts.stop();
    run.print_table();
    let took = began.elapsed();
    println!("{faults} faults, {answered} answers, no error and no wrong read; {took:.0?}");
}
