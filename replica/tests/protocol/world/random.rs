//! A run of the world, decided by a seed.

use ::random::Random;
use replica::{MEMBERS_MAX, MemberId, Pacing, Rule};
use seeds::Tally;

use super::action::{Action, Budget};
use super::disk::Loss;
use super::{Case, Node, Plan, Post, SECTORS_MAX, World, cases};

/// Steps of a run, before the faults end.
const STEPS: u64 = 800;

/// Requests of a client.
const REQUESTS: u64 = 14;

/// Restarts of a run in which they are likely to meet take-overs.
const RESTARTS_OF_TAKE_OVERS: u8 = 5;

/// The times of a run, in ticks. A slow clock shows four ticks while others show five.
const PACING: Pacing = Pacing {
    lease_ns: 4,
    patience_ns: 6,
    silence_ns: 2,
    fetch_sectors_max: SECTORS_MAX as u32,
    fetches_max: 2,
    block_sectors: 1,
    members: MEMBERS_MAX,
};

/// The requests of a client.
fn plan_of(random: &mut Random, sectors: u64, kinds: u64, claims: bool) -> Vec<Plan> {
    (0..REQUESTS)
        .map(|_| {
            let first = random.below(sectors);
            let range = random.between(1, sectors - first) as u32;
            if claims && random.one_in(12) {
                return Plan::Claim;
            }
            if claims && random.one_in(12) {
                return Plan::Snapshot;
            }
            match random.below(kinds) {
                0 | 4 => Plan::Read(first, range),
                3 => Plan::Flush,
                _ => Plan::Write(first, range),
            }
        })
        .collect()
}

/// The case of a seed. Each seed has some kinds of faults and not others, so that rare faults meet.
pub(crate) fn case_of(random: &mut Random, broken: Option<Rule>) -> Case {
    let mut members = random.between(2, 3) as u8;
    let are_in = if random.one_in(4) { random.between(1, members.into()) as u8 } else { members };
    let mut in_sync: Vec<MemberId> = (0..are_in).collect();
    // A broken rule meets the faults that can show it, on sectors that requests meet on.
    let shows = broken.map(cases::of_rule);
    let sectors_max = shows.as_ref().map_or(SECTORS_MAX as u64, |shows| shows.sectors);
    let sectors = random.between(1, sectors_max);
    let clients = random.between(1, 2);
    let kinds = random.between(2, 5);
    let plans = (0..clients).map(|_| plan_of(random, sectors, kinds, broken.is_none())).collect();
    if let Some(shows) = &shows {
        (members, in_sync) = (shows.members, shows.in_sync.clone());
    }
    let shows = shows.map(|shows| shows.budget);
    let mut some = |of: fn(&Budget) -> u8, one_in: u64, most: u64| {
        let comes = match &shows {
            Some(shows) => of(shows) > 0,
            None => random.one_in(one_in),
        };
        let times = random.between(1, most) as u8;
        if comes { times } else { 0 }
    };
    let mut budget = Budget {
        restarts: some(|of| of.restarts, 2, 6),
        disks: some(|of| of.disks, 6, 1),
        pauses: some(|of| of.pauses, 3, 5),
        delays: some(|of| of.delays, 2, 60),
        cuts: some(|of| of.cuts, 3, 5),
        unknown: some(|of| of.unknown, 3, 4),
        away: some(|of| of.away, 3, 3),
        restored: some(|of| of.restored, 8, 1),
        stale: some(|of| of.stale, 3, 4),
        moves: some(|of| of.moves, 3, 4),
        mistakes: some(|of| of.mistakes, 8, 1),
        again: some(|of| of.again, 2, 12),
        leaves: some(|of| of.leaves, 4, 2),
        damages: 0,
        haste: u8::MAX,
        ..Budget::default()
    };
    let fetch_sectors_max = random.between(1, SECTORS_MAX as u64) as u32;
    let fetches_max = random.between(1, 2) as usize;
    let members_now = usize::from(members);
    let mut pacing = Pacing { fetch_sectors_max, fetches_max, members: members_now, ..PACING };
    // The rules that seeds break need none of these.
    if shows.is_none() {
        add_ends(random, &mut budget);
    }
    if shows.map_or_else(|| random.one_in(3), |shows| shows.damages > 0) {
        (budget.damages, pacing.block_sectors) = damages_of(random);
    }
    if shows.map_or_else(|| random.one_in(3), |shows| shows.scrubs > 0) {
        (budget.scrubs, budget.rots) = (random.between(1, 6) as u8, random.below(7) as u8);
    }
    Case {
        members,
        in_sync,
        sectors,
        plans,
        budget,
        broken,
        pacing,
        epochs: u64::MAX,
        counters: u64::MAX,
        is_calm: false,
        is_wild: true,
        is_slow: false,
    }
}

/// Ends of processes, and recoveries.
fn add_ends(random: &mut Random, budget: &mut Budget) {
    if random.one_in(3) {
        budget.stops = random.between(1, 5) as u8;
    }
    if random.one_in(2) {
        budget.proofs = random.between(1, 6) as u8;
    }
    if random.one_in(3) {
        budget.recoveries = random.between(1, 6) as u8;
        budget.losses = random.below(3) as u8;
    }
}

/// How many sectors are damaged, and the sectors of a block.
fn damages_of(random: &mut Random) -> (u8, u32) {
    (random.between(1, 8) as u8, random.between(1, 2) as u32)
}

/// How the events of a run are mixed.
struct Mix {
    /// One entry of the wire of so many is not the first one.
    disorder: u64,
    /// One message of so many is held back.
    delay: u64,
    /// One choice of a fault of so many is taken.
    calm: u64,
    /// One step of a hundred is a tick with this chance.
    ticks: u64,
    /// A fault is likely to hit a primary while it makes backups equal.
    hits_take_overs: bool,
}

impl Mix {
    fn of(random: &mut Random, seed: u64) -> Self {
        let one_of =
            |random: &mut Random, list: &[u64]| list[random.below(list.len() as u64) as usize];
        Self {
            disorder: one_of(random, &[2, 6, 1000]),
            delay: one_of(random, &[6, 20, 60]),
            calm: one_of(random, &[1, 3, 10]),
            ticks: one_of(random, &[2, 5, 10]),
            hits_take_overs: seed.is_multiple_of(2),
        }
    }
}

/// Chooses what happens next.
fn choose(world: &World, case: &Case, mix: &Mix, random: &mut Random) -> Action {
    if mix.hits_take_overs
        && let Some(action) = strike(world, case, random)
    {
        return action;
    }
    loop {
        let draw = random.below(100);
        let mut actions = Vec::new();
        if draw < mix.ticks {
            return Action::Tick;
        } else if draw < 80 {
            let posts: Vec<usize> = world.deliverable().collect();
            if posts.is_empty() {
                if random.one_in(4) {
                    return Action::Tick;
                }
                continue;
            }
            let is_first = !random.one_in(mix.disorder);
            let at = if is_first { 0 } else { random.below(posts.len() as u64) as usize };
            return of_post(world, posts[at], mix, random);
        } else if draw < 90 {
            world.sends(case, &mut actions);
        } else {
            if !random.one_in(mix.calm) {
                continue;
            }
            world.faults(case, &mut actions);
            match random.below(4) {
                0 | 1 => actions.retain(ends_a_fault),
                2 => {}
                // The primary is where it hurts.
                _ => actions.retain(|action| hits(*action, world.registry.primary)),
            }
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
            action => action,
        };
    }
}

/// A fault of the primary while a member is half equal to it.
fn strike(world: &World, case: &Case, random: &mut Random) -> Option<Action> {
    let is_half = |node: &Node| node.runs() && node.disk.cuts().iter().any(|cut| cut.is_own());
    if !world.nodes.iter().any(is_half) || !random.one_in(2) {
        return None;
    }
    let mut actions = Vec::new();
    world.faults(case, &mut actions);
    let primary = world.registry.primary;
    let ends = |action: &Action| matches!(action, Action::Restart(..) | Action::Pause(_));
    actions.retain(|action| ends(action) && hits(*action, primary));
    (!actions.is_empty()).then(|| actions[random.below(actions.len() as u64) as usize])
}

fn ends_a_fault(action: &Action) -> bool {
    let ends = [Action::RegistryAway(false), Action::Rebuild];
    let is_one = matches!(
        action,
        Action::Resume(_)
            | Action::Heal(..)
            | Action::Release(_)
            | Action::Evict(_)
            | Action::Start(..)
            | Action::Ask(_)
            | Action::Recover(_)
    );
    is_one || ends.contains(action)
}

fn hits(action: Action, member: MemberId) -> bool {
    match action {
        Action::Restart(id, _) | Action::Stop(id) => id == member,
        Action::Prove(id, _) | Action::Rot(id, _) => id != member,
        Action::Scrub(id) => id == member,
        Action::LoseDisk(id) | Action::Pause(id) | Action::Damage(id, _) => id == member,
        Action::Cut(from, to) => from == member || to == member,
        _ => false,
    }
}

fn of_post(world: &World, at: usize, mix: &Mix, random: &mut Random) -> Action {
    match world.wire[at] {
        Post::Swap(..) | Post::Remake(..) if world.budget.unknown > 0 && random.one_in(3) => {
            Action::DeliverUntold(at)
        }
        Post::Work(..) => Action::Deliver(at),
        _ if world.budget.delays > 0 && random.one_in(mix.delay) => Action::Hold(at),
        _ => Action::Deliver(at),
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
        Action::Forget(..) => "clients that were forgotten",
        Action::Restart(_, Loss::Nothing) => "kills",
        Action::Restart(..) => "losses of power",
        Action::Stop(_) => "stops in order",
        Action::Start(..) => "starts after a stop",
        Action::Prove(..) => "proved ends",
        Action::LoseDisk(_) => "lost disks",
        Action::Damage(..) => "damaged sectors",
        Action::Rot(..) => "lies of devices",
        Action::Scrub(_) => "scrubs",
        Action::Pause(_) => "pauses",
        Action::Resume(_) => "ends of pauses",
        Action::Cut(..) => "cuts",
        Action::Heal(..) => "ends of cuts",
        Action::RegistryAway(true) => "times without registry",
        Action::RegistryAway(false) => "returns of the registry",
        Action::Restore(_) => "old registries",
        Action::Rebuild => "rebuilt registries",
        Action::LoseRecord => "lost records",
        Action::Ask(_) => "surveys",
        Action::Recover(false) => "recoveries",
        Action::Recover(true) => "recoveries with a loss",
        Action::Stale(..) => "old records",
        Action::Move(..) => "moves",
        Action::Evict(_) => "evictions",
    }
}

/// Runs a seed.
pub(crate) fn run(seed: u64, broken: Option<Rule>, shows: bool) -> Result<Tally, String> {
    let mut random = Random::new(seed);
    let mut case = case_of(&mut random, broken);
    let mut tally = Tally::default();
    let mix = Mix::of(&mut random, seed);
    if mix.hits_take_overs && broken.is_none() {
        case.budget.restarts = case.budget.restarts.max(RESTARTS_OF_TAKE_OVERS);
    }
    if shows {
        println!("{case:?}");
    }
    let mut world = World::new(&case);
    for step in 0..STEPS {
        let action = choose(&world, &case, &mix, &mut random);
        if shows {
            match action {
                Action::Deliver(at) | Action::DeliverUntold(at) | Action::Hold(at) => {
                    println!("{step}: {action:?} {:?}", world.wire[at]);
                }
                Action::Release(at) => println!("{step}: {action:?} {:?}", world.held[at]),
                _ => println!("{step}: {action:?}"),
            }
        }
        tally.add(name(action), 1);
        world.act(&case, action);
        if let Some(breach) = world.breach(&case) {
            return Err(format!("{breach}, at step {step}"));
        }
    }
    tally.add("changes of the record", world.registry.epoch - 1);
    tally.add("incarnations", world.registry.incarnation - 1);
    let fair = world.fair(&case);
    if shows && fair.is_err() {
        println!("{world:#?}");
    }
    fair?;
    let answered: usize = world.clients.iter().map(|client| client.next).sum();
    tally.add("requests that ended", answered as u64);
    tally.add("mended blocks", world.mended);
    tally.add("blocks that scrubs have named", world.found);
    tally.add("reads without content", world.unreadable);
    tally.add("ways back to own cuts", world.own_ways_back);
    tally.add("snapshots", world.completed.len() as u64);
    tally.add("volumes that are gone", u64::from(world.is_lost()));
    Ok(tally)
}
