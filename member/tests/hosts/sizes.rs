//! Volumes that grow while members come and go.

use member::MemberPart;
use volume::contract::Buffer;
use volume::{Op, Status};

use super::scenes::{read, two, write};
use super::users::{UserChannel, content};
use super::world::{MS, SECTORS, World};

/// The sectors of the volume when it has grown, and a sector that it did not have before.
const GROWN: u64 = 2 * SECTORS;
const NEW: u64 = SECTORS + 7;

fn grow(world: &World, at: usize) {
    world.nodes[at].volume.borrow_mut().resize(GROWN as usize);
}

/// Two nodes that serve the larger volume. Gives the node that serves.
fn grown(seed: u64) -> (std::rc::Rc<World>, usize) {
    let world = two(seed);
    let first = world.server().unwrap();
    (0..2).for_each(|at| grow(&world, at));
    world.tell_size(first, GROWN, &[]);
    world.run_until("users have the size", |world| world.sectors(first) == GROWN);
    (world, first)
}

#[test]
fn users_get_a_size_when_all_members_in_sync_know_it() {
    let world = two(21);
    let first = world.server().unwrap();
    assert_eq!(world.sectors(first), SECTORS);
    (0..2).for_each(|at| grow(&world, at));
    world.run(1000 * MS);
    assert_eq!(world.sectors(first), SECTORS, "own volumes that have grown are no news to users");
    // Neither the word of one member to itself.
    *world.cut_off.borrow_mut() = vec![(first, 1 - first)];
    world.tell_size(first, GROWN, &[]);
    world.run(500 * MS);
    assert_eq!(world.sectors(first), SECTORS);
    world.cut_off.borrow_mut().clear();
    world.run_until("users have the size", |world| world.sectors(first) == GROWN);
    assert_eq!(write(&world, first, NEW, 5), Status::Done);
    // A volume gets no smaller, also by an agent that has heard of nothing.
    world.tell_size(first, SECTORS, &[]);
    world.run(500 * MS);
    assert_eq!((world.sectors(first), read(&world, first, NEW)), (GROWN, Ok(content(5, 1))));
}

/// The next member that serves was told nothing: it knows the size by the volume's note.
#[test]
fn the_next_member_gives_users_no_smaller_size() {
    for seed in 22..30 {
        let (world, first) = grown(seed);
        let other = 1 - first;
        assert_eq!(write(&world, first, NEW, 6), Status::Done);
        world.kill(first);
        world.run_until("the backup serves", |world| world.server() == Some(other));
        assert_eq!(world.sectors(other), GROWN);
        assert_eq!(read(&world, other, NEW), Ok(content(6, 1)));
        // And so does the first one again, by a file of before the growth.
        world.start(first);
        world.run_until("both are in sync", World::is_well);
        world.kill(other);
        world.run_until("the first one serves", |world| world.server() == Some(first));
        assert_eq!((world.sectors(first), read(&world, first, NEW)), (GROWN, Ok(content(6, 1))));
    }
}

/// The member that serves dies at any moment of the growth: users of the next one have the old size
/// or the new one, and it grows when it is told.
#[test]
fn a_growth_goes_on_with_the_next_member() {
    for (seed, for_ms) in (30..).zip([0, 5, 10, 20, 40, 80, 160]) {
        let world = two(seed);
        let first = world.server().unwrap();
        let other = 1 - first;
        (0..2).for_each(|at| grow(&world, at));
        world.tell_size(first, GROWN, &[]);
        world.run(for_ms * MS);
        let had = world.sectors(first);
        world.kill(first);
        world.run_until("the backup serves", |world| world.server() == Some(other));
        assert!(world.sectors(other) >= had, "after {for_ms} ms");
        world.tell_size(other, GROWN, &[]);
        world.run_until("users have the size", |world| world.sectors(other) == GROWN);
        assert_eq!(write(&world, other, NEW, 7), Status::Done);
        world.start(first);
        world.run_until("both are in sync", World::is_well);
        assert_eq!(read(&world, world.server().unwrap(), NEW), Ok(content(7, 1)));
    }
}

/// An operation beyond the end of a member's own volume waits until the volume has grown, and so do
/// later ones: a member answers for operations in their order.
#[test]
fn a_copy_that_is_smaller_for_a_while_waits_and_says_so() {
    let world = two(40);
    let first = world.server().unwrap();
    let other = 1 - first;
    grow(&world, first);
    world.tell_size(first, GROWN, &[]);
    world.run_until("users have the size", |world| world.sectors(first) == GROWN);
    let mut user = UserChannel::open(&world, first).expect("the node runs");
    let buffer = Buffer::filled(&content(8, 1), 0);
    let id = user.submit(Op::Write, NEW, Some(&buffer));
    world.run(10_000 * MS);
    assert_eq!(user.poll(id), None, "it is not stored on both");
    let view = world.view(other);
    assert_eq!((view.part, world.in_sync()), (MemberPart::Backup, 2));
    assert!(view.waits.is_some_and(|why| why.contains("the node's agent has it grow")));
    grow(&world, other);
    world.run_until("the write is done", |_| user.poll(id) == Some(Status::Done));
    assert_eq!(world.view(other).waits, None);
    world.kill(first);
    world.run_until("the backup serves", |world| world.server() == Some(other));
    assert_eq!(read(&world, other, NEW), Ok(content(8, 1)));
}

/// The member that serves has a smaller volume than its users, as after a restored registry: their
/// requests beyond its end wait as well.
#[test]
fn a_member_that_serves_more_than_it_has_waits_and_says_so() {
    let world = two(41);
    let first = world.server().unwrap();
    grow(&world, 1 - first);
    world.tell_size(first, GROWN, &[]);
    world.run_until("users have the size", |world| world.sectors(first) == GROWN);
    let mut user = UserChannel::open(&world, first).expect("the node runs");
    let buffer = Buffer::new(super::world::SECTOR_BYTES, 0);
    let id = user.submit(Op::Read, NEW, Some(&buffer));
    world.run(5_000 * MS);
    assert_eq!(user.poll(id), None);
    assert!(world.view(first).waits.is_some_and(|why| why.contains("has it grow")));
    assert_eq!(read(&world, first, 1), Ok(content(0, 1)));
    grow(&world, first);
    world.run_until("the read is done", |_| user.poll(id) == Some(Status::Done));
}

#[test]
fn a_member_that_was_away_joins_when_it_has_grown() {
    let world = two(42);
    let first = world.server().unwrap();
    let other = 1 - first;
    // Its newest cut is of a time before the growth.
    assert_eq!(write(&world, first, 3, 1), Status::Done);
    world.kill(other);
    assert_eq!(write(&world, first, 3, 2), Status::Done);
    grow(&world, first);
    world.tell_size(first, GROWN, &[other]);
    world.run_until("users have the size", |world| world.sectors(first) == GROWN);
    world.start(other);
    world.run(5000 * MS);
    for number in 4..24 {
        let began_ns = world.now_ns.get();
        assert_eq!(write(&world, first, NEW + 1, number), Status::Done);
        assert!(world.now_ns.get() < began_ns + 500 * MS, "it holds no write up");
        world.run(1000 * MS);
    }
    assert_eq!((world.part(other), world.in_sync()), (Some(MemberPart::Outside), 1));
    assert_eq!(write(&world, first, NEW, 3), Status::Done);
    grow(&world, other);
    world.tell_size(first, GROWN, &[]);
    world.run_until("both are in sync", World::is_well);
    world.kill(first);
    world.run_until("the other one serves", |world| world.server() == Some(other));
    for (sector, number) in [(3, 2), (NEW, 3), (NEW + 1, 23)] {
        assert_eq!(read(&world, other, sector), Ok(content(number, 1)));
    }
}
