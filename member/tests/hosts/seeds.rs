//! Many runs from seeds: kills, pauses, moves, growths, lost sessions, a registry that is away.
//! Acknowledged writes are read at the node that serves next, and epochs are granted once.

use std::cell::RefCell;
use std::rc::Rc;

use replica::{Input, MemberId};
use seeds::{Seeds, Tally};

use super::guests::Guests;
use super::users::{Reader, SharedLedger, Writer, ledger};
use super::world::{MS, SECTORS, World};

/// Simulated time with faults, and the longest time after them until all is well.
const FAULTS_MS: u64 = 40_000;
const WELL_MS: u64 = 60_000;

struct Users {
    writers: Vec<Writer>,
    readers: Vec<Reader>,
    guests: Guests,
}

fn add_users(world: &World, ledger: &SharedLedger) -> Rc<RefCell<Users>> {
    let writers = (0..4).map(|at| Writer::new(at * SECTORS / 4, SECTORS / 4, ledger));
    let readers = (0..world.nodes.len()).map(|at| Reader::new(at, ledger));
    let (writers, readers) = (writers.collect(), readers.collect());
    let users = Rc::new(RefCell::new(Users { writers, readers, guests: Guests::new() }));
    let steps = Rc::clone(&users);
    *world.users.borrow_mut() = Some(Box::new(move |world| {
        let Users { writers, readers, guests } = &mut *steps.borrow_mut();
        writers.iter_mut().for_each(|it| it.step(world));
        readers.iter_mut().for_each(|it| it.step(world));
        guests.step(world);
    }));
    users
}

fn fault(world: &World, down: &mut Vec<(usize, u64)>, tally: &mut Tally) {
    let count = world.nodes.len() as u64;
    let at = world.below(count) as usize;
    match world.below(10) {
        0 | 1 => {
            if world.process(at).is_some() {
                world.kill(at);
                let back_ns = world.now_ns.get() + world.below(6000) * MS;
                down.push((at, back_ns));
                tally.add("kills", 1);
            }
        }
        9 => {
            if world.process(at).is_some() {
                let kept = world.end_in_order(at);
                let back_ns = world.now_ns.get() + world.below(6000) * MS;
                down.push((at, back_ns));
                tally.add("ends in order", 1);
                tally.add("ends that were kept", u64::from(kept));
            }
        }
        2 => {
            world.pause(at, world.below(6000) * MS);
            tally.add("pauses", 1);
        }
        3 | 4 => {
            world.pause_at_clock(at, (500 + world.below(5000)) * MS);
        }
        5 => {
            world.lose_session(at, world.below(count) as usize);
            tally.add("lost sessions", 1);
        }
        6 => {
            let is_away = !world.registry.lock().is_away;
            world.registry.lock().is_away = is_away;
            tally.add("changes of the registry's state", 1);
        }
        7 => {
            let way = (at, world.below(count) as usize);
            let mut cut_off = world.cut_off.borrow_mut();
            if cut_off.is_empty() {
                cut_off.push(way)
            } else {
                cut_off.clear()
            }
            tally.add("ways that were cut", 1);
        }
        _ => {
            if let Some(server) = world.server() {
                world.order(server, Input::Move(at as MemberId));
                tally.add("moves", 1);
            }
        }
    }
}

/// The volumes of all nodes grow, and then agents tell it to some nodes at some times.
fn growth(world: &World, is_grown: &mut bool) {
    if !*is_grown && world.one_in(2000) {
        *is_grown = true;
        let grow = |at: usize| world.nodes[at].volume.borrow_mut().resize(2 * SECTORS as usize);
        (0..world.nodes.len()).for_each(grow);
    }
    if *is_grown && world.one_in(300) {
        world.tell_size(world.below(world.nodes.len() as u64) as usize, 2 * SECTORS, &[]);
    }
}

fn run(seed: u64) -> Result<Tally, String> {
    let world = World::new(2 + (seed % 2) as usize, seed);
    world.tells_ends.set(seed % 4 < 2);
    let ledger = ledger(SECTORS);
    let users = add_users(&world, &ledger);
    let mut tally = Tally::default();
    let (mut down, mut is_grown) = (Vec::new(), false);
    (0..world.nodes.len()).for_each(|at| world.start(at));
    world.run_until("the first start", World::is_well);
    let until_ns = world.now_ns.get() + FAULTS_MS * MS;
    let broken = || {
        let mut broken = std::mem::take(&mut ledger.borrow_mut().broken);
        broken.append(&mut users.borrow_mut().guests.broken);
        let failed = (0..world.nodes.len()).filter(|at| world.process(*at).is_some());
        broken.extend(failed.filter_map(|at| world.view(at).failed));
        if broken.is_empty() { Ok(()) } else { Err(broken.join("; ")) }
    };
    while world.now_ns.get() < until_ns {
        world.step();
        if world.one_in(120) {
            fault(&world, &mut down, &mut tally);
        }
        growth(&world, &mut is_grown);
        let now_ns = world.now_ns.get();
        for (at, _) in down.extract_if(.., |(_, back_ns)| now_ns >= *back_ns) {
            world.start(at);
        }
        broken()?;
    }
    down.iter().for_each(|(at, _)| world.start(*at));
    (0..world.nodes.len()).for_each(|at| world.pause(at, 0));
    world.registry.lock().is_away = false;
    world.cut_off.borrow_mut().clear();
    let until_ns = world.now_ns.get() + WELL_MS * MS;
    while !world.is_well() && world.now_ns.get() < until_ns {
        world.step();
    }
    if !world.is_well() {
        return Err(format!("not all members serve again: {:?}", world.registry.lock()));
    }
    let (writes, grants) = (ledger.borrow().writes, users.borrow().guests.grants);
    world.run(20_000 * MS);
    broken()?;
    if ledger.borrow().writes < writes + 20 || users.borrow().guests.grants == grants {
        let more = (ledger.borrow().writes - writes, users.borrow().guests.grants - grants);
        let states: Vec<_> = users.borrow().writers.iter().map(Writer::state).collect();
        return Err(format!("too few answers: {more:?} writes and grants; {states:#?}"));
    }
    let ledger = ledger.borrow();
    tally.add("writes", ledger.writes);
    tally.add("reads", ledger.reads);
    tally.add("fenced writes", ledger.fenced);
    tally.add("grants", users.borrow().guests.grants);
    tally.add("refused claims", users.borrow().guests.refusals);
    tally.add("pauses in a round", world.pauses.get());
    tally.add("proved ends", world.told_ends.get());
    tally.add("growths", u64::from(world.most_sectors.get() > SECTORS));
    *world.users.borrow_mut() = None;
    Ok(tally)
}

/// Seeds when nothing else is said.
const SEEDS: u64 = 40;

/// Events that must have been in so many runs.
const EVENTS: [&str; 13] = [
    "kills",
    "ends in order",
    "ends that were kept",
    "proved ends",
    "growths",
    "pauses",
    "pauses in a round",
    "lost sessions",
    "changes of the registry's state",
    "ways that were cut",
    "moves",
    "fenced writes",
    "refused claims",
];

#[test]
fn acknowledged_writes_are_read_at_each_node_that_serves() {
    let seeds = Seeds::of("MEMBER", SEEDS);
    if let Some(seed) = seeds.only {
        match run(seed) {
            Ok(tally) => println!("seed {seed} keeps the promises: {tally}"),
            Err(failure) => panic!("seed {seed}: {failure}"),
        }
        return;
    }
    let (tally, failures) = seeds.run(run, Tally::merge);
    println!("{tally}");
    assert!(failures.is_empty(), "{failures:#?}");
    for what in EVENTS {
        assert!(seeds.count < SEEDS || tally.of(what) > 0, "no {what} in {} runs", seeds.count);
    }
}
