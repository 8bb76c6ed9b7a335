//! A run of the world that one seed decides.

use std::collections::BTreeMap;
use std::fmt;

use ::random::Random;
use replica::{Rule, Timing};

use super::action::{Action, Budget};
use super::disk::Loss;
use super::{Case, Plan, World};

/// Steps of a run, before the faults end.
const STEPS: u64 = 600;

/// Requests of a client.
const REQUESTS: u64 = 14;

/// The times of a run, in ticks. A slow clock shows four ticks while others show five.
const TIMING: Timing = Timing { lease_ns: 4, patience_ns: 6, silence_ns: 2 };

/// How often each kind of event was there, over many runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(BTreeMap<&'static str, u64>);

impl Tally {
    fn count(&mut self, what: &'static str, times: u64) {
        *self.0.entry(what).or_default() += times;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (what, times) in &other.0 {
            self.count(what, *times);
        }
    }

    pub(crate) fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> =
            self.0.iter().map(|(what, times)| format!("{times} {what}")).collect();
        f.write_str(&counts.join(", "))
    }
}

/// The case of a seed. Each seed has some kinds of faults and not others, so that rare ones meet.
pub(crate) fn case_of(random: &mut Random, broken: Option<Rule>) -> Case {
    let members = random.between(2, 3) as u8;
    let in_sync = if random.one_in(4) { random.between(1, members.into()) as u8 } else { members };
    let blocks = random.between(1, 4) as u32;
    let clients = random.between(1, 2);
    let kinds = random.between(2, 5);
    let plan = |random: &mut Random| {
        (0..REQUESTS)
            .map(|_| {
                let block = random.below(blocks.into()) as u32;
                match random.below(kinds) {
                    0 => Plan::Read(block),
                    3 => Plan::Flush,
                    _ => Plan::Write(block),
                }
            })
            .collect()
    };
    let plans = (0..clients).map(|_| plan(random)).collect();
    let mut some = |most: u64| match random.one_in(2) {
        true => random.between(1, most) as u8,
        false => 0,
    };
    let budget = Budget {
        restarts: some(4),
        disks: some(2),
        pauses: some(4),
        delays: some(30),
        cuts: some(5),
        unknown: some(4),
        away: some(3),
        restored: some(1),
        stale: some(4),
        moves: some(4),
        mistakes: some(1),
        again: some(12),
        leaves: some(2),
        haste: u8::MAX,
    };
    let (timing, is_wild) = (TIMING, true);
    Case { members, in_sync, blocks, plans, budget, broken, timing, epochs: u64::MAX, is_wild }
}

/// Chooses what happens next.
fn choose(world: &World, case: &Case, random: &mut Random) -> Action {
    loop {
        let draw = random.below(100);
        let mut actions = Vec::new();
        if draw < 62 {
            let wild = random.one_in(4);
            let mut posts = world.deliverable();
            let first = posts.next();
            let others: Vec<usize> = posts.collect();
            let at = match first {
                Some(first) if !wild || others.is_empty() => first,
                Some(_) => others[random.below(others.len() as u64) as usize],
                None => continue,
            };
            let is_swap = matches!(world.wire[at], super::Post::Swap(..));
            let is_work = matches!(world.wire[at], super::Post::Work(..));
            if is_swap && world.budget.unknown > 0 && random.one_in(3) {
                return Action::DeliverUntold(at);
            }
            if !is_work && world.budget.delays > 0 && random.one_in(6) {
                return Action::Hold(at);
            }
            return Action::Deliver(at);
        } else if draw < 72 {
            return Action::Tick;
        } else if draw < 86 {
            world.sends(case, &mut actions);
        } else if random.one_in(3) {
            world.faults(case, &mut actions);
        }
        if actions.is_empty() {
            continue;
        }
        let action = actions[random.below(actions.len() as u64) as usize];
        return match action {
            Action::Restart(id, Loss::All) if random.one_in(2) => {
                let mut kept = || random.below(6) as u8;
                Action::Restart(id, Loss::Some([kept(), kept()]))
            }
            // All members lose power.
            action => action,
        };
    }
}

fn name(action: Action) -> &'static str {
    match action {
        Action::Deliver(_) => "deliveries",
        Action::DeliverUntold(_) => "swaps without an answer",
        Action::Hold(_) => "delays",
        Action::Release(_) => "late deliveries",
        Action::Tick => "ticks",
        Action::Send(..) => "requests",
        Action::Leave(_) => "clients that went",
        Action::Restart(_, Loss::Nothing) => "kills",
        Action::Restart(..) => "losses of power",
        Action::LoseDisk(_) => "lost disks",
        Action::Pause(_) => "pauses",
        Action::Resume(_) => "ends of pauses",
        Action::Cut(..) => "cuts",
        Action::Heal(..) => "ends of cuts",
        Action::RegistryAway(true) => "times without registry",
        Action::RegistryAway(false) => "returns of the registry",
        Action::Restore(_) => "old registries",
        Action::Rebuild => "rebuilt registries",
        Action::Stale(..) => "old records",
        Action::Move(..) => "moves",
        Action::Evict(_) => "evictions",
    }
}

/// Runs a seed.
pub(crate) fn run(seed: u64, broken: Option<Rule>, shows: bool) -> Result<Tally, String> {
    let mut random = Random::new(seed);
    let case = case_of(&mut random, broken);
    let mut tally = Tally::default();
    if shows {
        println!("{case:?}");
    }
    let mut world = World::new(&case);
    for step in 0..STEPS {
        let action = choose(&world, &case, &mut random);
        if shows {
            match action {
                Action::Deliver(at) | Action::DeliverUntold(at) | Action::Hold(at) => {
                    println!("{step}: {action:?} {:?}", world.wire[at]);
                }
                Action::Release(at) => println!("{step}: {action:?} {:?}", world.held[at]),
                _ => println!("{step}: {action:?}"),
            }
        }
        tally.count(name(action), 1);
        world.act(&case, action);
        if let Some(breach) = world.breach(&case) {
            return Err(format!("{breach}, at step {step}"));
        }
    }
    tally.count("changes of the record", world.registry.epoch - 1);
    tally.count("incarnations", world.registry.incarnation - 1);
    world.fair(&case).map_err(|text| {
        if shows {
            println!("{world:#?}");
        }
        text
    })?;
    let answered: usize = world.clients.iter().map(|client| client.next).sum();
    tally.count("requests that ended", answered as u64);
    tally.count("volumes that are gone", u64::from(world.is_lost()));
    Ok(tally)
}
