//! Single events, one by one.

use std::collections::BTreeSet;
use std::sync::mpsc::TryRecvError;

use member::{MemberPart, SnapshotDone, SnapshotEnd};
use replica::{APPLIED_MAX, Input};
use sidecore::{Progress, Services, Wake};
use volume::contract::Buffer;
use volume::record::{Record, RecordStore};
use volume::{
    Channel, IoId, IoTable, Op, OpenArguments, OpenError, Size, Status, Volume, VolumeInfo,
    contract, io_table,
};

use super::users::{UserChannel, content};
use super::world::{MS, SECTOR_BYTES, SECTORS, World};

pub(super) fn two(seed: u64) -> std::rc::Rc<World> {
    let world = World::new(2, seed);
    (0..2).for_each(|at| world.start(at));
    world.run_until("two members serve", World::is_well);
    world
}

pub(super) fn write(world: &World, at: usize, sector: u64, number: u64) -> Status {
    let mut user = UserChannel::open(world, at).expect("the node runs");
    user.ask(world, Op::Write, sector, &Buffer::filled(&content(number, 1), 0))
}

pub(super) fn read(world: &World, at: usize, sector: u64) -> Result<Vec<u8>, Status> {
    let mut user = UserChannel::open(world, at).expect("the node runs");
    let buffer = Buffer::new(SECTOR_BYTES, 0);
    match user.ask(world, Op::Read, sector, &buffer) {
        Status::Done => Ok(buffer.bytes()),
        status => Err(status),
    }
}

#[test]
fn a_backup_serves_what_was_acknowledged_and_the_records_when_the_primary_is_killed() {
    let world = two(1);
    let first = world.server().unwrap();
    assert_eq!(write(&world, first, 3, 7), Status::Done);
    keep_record(&world, first);
    let incarnation = world.process(first).unwrap().front.info().incarnation;
    world.kill(first);
    let other = 1 - first;
    world.run_until("the backup serves", |world| world.server() == Some(other));
    assert_eq!(read(&world, other, 3), Ok(content(7, 1)));
    let process = world.process(other).unwrap();
    let record = Record { epoch: 5, claimant: 9, ..Record::default() };
    assert_eq!(process.export.records().get("vm"), Some(&record));
    assert_eq!(process.front.info().incarnation, incarnation, "nothing was lost");
    let view = world.view(other);
    assert_eq!((view.part, view.primary), (MemberPart::Serves, Some(World::name(other))));
}

/// Takes a snapshot, and gives its end.
fn snapshot(world: &World, at: usize, name: &str) -> SnapshotEnd {
    let ends = world.take_snapshot(at, name).expect("it serves, and none is under way");
    let mut end = None;
    world.run_until("it has ended", |_| {
        end = ends.try_recv().ok();
        end.is_some()
    });
    end.expect("it was waited for")
}

#[test]
fn a_snapshot_is_the_same_on_all_copies_in_sync_and_a_full_pool_leaves_it_out_by_name() {
    let world = two(41);
    let (first, other) = (world.server().unwrap(), 1 - world.server().unwrap());
    assert!(world.take_snapshot(other, "s").is_none(), "it does not serve");
    assert_eq!(write(&world, first, 3, 7), Status::Done);
    let ends = world.take_snapshot(first, "monday").expect("it serves");
    assert!(world.take_snapshot(first, "tuesday").is_none(), "one at a time");
    let mut end = None;
    world.run_until("it has ended", |_| {
        end = ends.try_recv().ok();
        end.is_some()
    });
    let SnapshotDone { name, without } = end.unwrap().expect("both have room");
    assert!(name.starts_with("monday.") && without.is_empty(), "{name} {without:?}");
    assert_eq!(write(&world, first, 3, 8), Status::Done);
    let taken = [first, other].map(|at| world.snapshot(at, &name).expect("it was completed"));
    assert_eq!(taken[0], taken[1]);
    assert_eq!(&taken[0][3 * SECTOR_BYTES..4 * SECTOR_BYTES], &content(7, 1)[..]);
    // A pool without room leaves the next snapshot out, and its node is named.
    world.set_full(other, true);
    let SnapshotDone { without, .. } = snapshot(&world, first, "full").expect("first has room");
    assert_eq!(without, [World::name(other)]);
    assert_eq!(write(&world, first, 4, 9), Status::Done, "a full pool of the world takes writes");
    world.set_full(other, false);
    world.set_full(first, true);
    assert_eq!(snapshot(&world, first, "full"), Err("the pool is full".to_owned()));
    world.set_full(first, false);
    assert_eq!(snapshot(&world, first, "full").map(|it| it.without), Ok(Vec::new()));
    // The volume is given away, and the end of a change that was begun before is known or not.
    let ends = world.take_snapshot(first, "last").expect("none is under way");
    world.order(first, Input::Move(other as u8));
    world.run_until("the other one serves", |world| world.server() == Some(other));
    assert!(ends.try_recv() != Err(TryRecvError::Empty), "its requester waits for nothing");
    assert_eq!(read(&world, other, 3), Ok(content(8, 1)));
    assert!(snapshot(&world, other, "monday").is_ok(), "the name is free: the place is another");
}

/// Notes a record of an attachment. The first note also has the number that tells a volume from one
/// that is made anew.
fn keep_record(world: &World, at: usize) {
    let record = Record { epoch: 5, claimant: 9, ..Record::default() };
    let ticket = world.process(at).unwrap().records.write("vm", record);
    world.run_until("the record is durable", |_| ticket.result().is_some());
    assert_eq!(ticket.result(), Some(Ok(())));
}

/// The incarnation under which a node's users know the volume.
fn incarnation(world: &World, at: usize) -> volume::Incarnation {
    world.process(at).expect("it runs").front.info().incarnation
}

#[test]
fn a_member_alone_that_ends_in_order_goes_on_and_a_killed_one_has_lost_its_writes() {
    let world = two(31);
    let (first, other) = (world.server().unwrap(), 1 - world.server().unwrap());
    world.kill(other);
    world.run_until("the other one is out", |world| world.in_sync() == 1);
    assert_eq!(write(&world, first, 3, 7), Status::Done);
    keep_record(&world, first);
    let before = incarnation(&world, first);
    for time in 1..4 {
        assert!(world.end_in_order(first), "the end of its life is kept");
        world.run(3000 * MS);
        world.start(first);
        world.run_until("it serves again", |world| world.server() == Some(first));
        assert_eq!(incarnation(&world, first), before, "nothing was lost");
        assert_eq!(read(&world, first, 3), Ok(content(6 + time, 1)));
        assert_eq!(write(&world, first, 3, 7 + time), Status::Done);
    }
    // The end of a life is good for one start.
    world.kill(first);
    world.start(first);
    world.run_until("it serves again", |world| world.server() == Some(first));
    assert_ne!(incarnation(&world, first), before, "its process was killed");
}

#[test]
fn members_that_end_in_order_one_after_the_other_go_on_in_either_order() {
    for (seed, moves, is_reversed) in [(32, true, true), (33, true, false), (34, false, true)] {
        let world = two(seed);
        let first = world.server().unwrap();
        assert_eq!(write(&world, first, 3, 7), Status::Done);
        keep_record(&world, first);
        let before = incarnation(&world, first);
        if moves {
            world.order(first, Input::Move((1 - first) as u8));
            world.run_until("the other one serves", |world| world.server() == Some(1 - first));
        }
        // The record has both in sync still.
        world.registry.lock().is_away = true;
        assert!(world.end_in_order(first) && world.end_in_order(1 - first));
        world.registry.lock().is_away = false;
        assert_eq!(world.in_sync(), 2);
        let order = if is_reversed { [1 - first, first] } else { [first, 1 - first] };
        world.start(order[0]);
        world.run_until("it serves", |world| world.server() == Some(order[0]));
        assert_eq!(incarnation(&world, order[0]), before, "nothing was lost");
        assert_eq!(read(&world, order[0], 3), Ok(content(7, 1)));
        world.start(order[1]);
        world.run_until("both are in sync", World::is_well);
        let server = world.server().unwrap();
        assert_eq!(incarnation(&world, server), before, "nothing was lost");
    }
}

#[test]
fn a_drained_node_takes_over_last_and_gives_the_volume_away_when_it_can() {
    let world = World::new(3, 35);
    (0..3).for_each(|at| world.start(at));
    world.run_until("three members serve", World::is_well);
    let first = world.server().unwrap();
    let epoch = || world.registry.lock().record.as_ref().unwrap().epoch;
    world.set_drained(first, true);
    world.run_until("it is given away", |world| world.server().is_some_and(|at| at != first));
    // The other backup takes over, and then there is none but the drained node.
    let second = world.server().unwrap();
    let third = 3 - first - second;
    world.kill(second);
    world.run_until("the third one serves", |world| world.server() == Some(third));
    world.kill(third);
    world.run_until("the drained node serves", |world| world.server() == Some(first));
    assert_eq!(write(&world, first, 3, 7), Status::Done);
    world.start(third);
    world.run_until("it is given away again", |world| world.server() == Some(third));
    assert_eq!(read(&world, third, 3), Ok(content(7, 1)));
    // Two drained nodes do not give it to each other for ever.
    world.run_until("both are in sync", |world| world.in_sync() == 2);
    world.set_drained(third, true);
    world.run_until("it is given away once", |world| world.server() == Some(first));
    let before = epoch();
    world.run(20_000 * MS);
    assert_eq!((world.server(), epoch()), (Some(first), before));
}

/// The nodes of a rack are drained one after the other: the volume ends at the node that is not,
/// in either order of the list.
#[test]
fn of_three_nodes_two_are_drained_and_the_third_one_serves() {
    for seed in 40..46 {
        let world = World::new(3, seed);
        (0..3).for_each(|at| world.start(at));
        world.run_until("three members serve", World::is_well);
        let mut drained = Vec::new();
        for _ in 0..2 {
            let server = world.server().unwrap();
            world.set_drained(server, true);
            drained.push(server);
            world.run_until("another node serves", |world| {
                world.server().is_some_and(|at| at != server)
            });
            world.run(5_000 * MS);
        }
        let server = world.server().unwrap();
        assert!(!drained.contains(&server), "seed {seed}: {server} serves, of {drained:?}");
    }
}

#[test]
fn members_that_must_go_give_the_volume_away_and_never_come_into_sync_again() {
    for seed in 50..56 {
        let world = World::new(3, seed);
        (0..3).for_each(|at| world.start(at));
        world.run_until("three members serve", World::is_well);
        let first = world.server().unwrap();
        let (next, last) = ((first + 1) % 3, (first + 2) % 3);
        assert_eq!(write(&world, first, 3, 7), Status::Done);
        world.set_leaving(&[first, next]);
        world.run_until("the member that stays is alone", |world| {
            world.server() == Some(last) && world.in_sync() == 1
        });
        assert_eq!(read(&world, last, 3), Ok(content(7, 1)));
        assert_eq!(write(&world, last, 3, 8), Status::Done);
        let epoch = || world.registry.lock().record.as_ref().unwrap().epoch;
        let before = epoch();
        world.run(20_000 * MS);
        assert_eq!((world.server(), world.in_sync(), epoch()), (Some(last), 1, before));
        // The second member stays all the same, and gets the writes that it lacks.
        world.set_leaving(&[first]);
        world.run_until("it is in sync", |world| world.in_sync() == 2);
        // The last member with all writes goes nowhere.
        world.kill(next);
        world.set_leaving(&[first, last]);
        world.run(20_000 * MS);
        assert_eq!(world.server(), Some(last), "seed {seed}");
        assert_eq!(read(&world, last, 3), Ok(content(8, 1)));
    }
}

#[test]
fn requests_wait_while_no_member_is_known_to_serve_and_a_backup_sends_them_away() {
    let world = World::new(2, 2);
    world.registry.lock().is_away = true;
    world.start(0);
    let mut user = UserChannel::open(&world, 0).unwrap();
    let buffer = Buffer::filled(&content(4, 1), 0);
    let id = user.submit(Op::Write, 9, Some(&buffer));
    world.run(5000 * MS);
    assert_eq!(user.poll(id), None);
    assert!(!user.channel.is_open());
    world.registry.lock().is_away = false;
    world.run_until("it serves", |world| world.server() == Some(0));
    world.run(1000 * MS);
    assert_eq!(user.poll(id), Some(Status::Done));
    assert!(user.channel.is_open());
    world.start(1);
    world.run_until("the other one is in sync", World::is_well);
    assert_eq!(read(&world, 0, 9), Ok(content(4, 1)));
    assert_eq!(read(&world, 1, 9), Err(Status::Fenced));
    assert_eq!(write(&world, 1, 9, 5), Status::Fenced);
    // Its guard names the node that serves.
    let error = claim(&world, 1).unwrap_err();
    assert_eq!(error.text, World::name(0));
}

fn claim(world: &World, at: usize) -> Result<(), block::export::Refusal> {
    let attachment = block::wire::attachment_id(super::world::VOLUME, "vm");
    let title = block::wire::Title { attachment, ..Default::default() };
    let claim = block::wire::Claim { claimant: 3, ..Default::default() };
    let by = block::export::Claimer::here(world.now_ns.get());
    let export = std::sync::Arc::clone(&world.process(at).unwrap().export);
    let mut pending = export.claim("vm", &title, &claim, &by)?;
    loop {
        if let Some(end) = export.poll_claim(&mut pending, &Services::new(), 0) {
            return end.map(drop);
        }
        world.step();
    }
}

/// A primary that no message leaves or reaches: its requests have no end until it is known that
/// another member serves, and then they have not been done, also where its own volume has them.
#[test]
fn requests_under_way_at_a_loss_of_the_primacy_are_fenced_and_never_done() {
    let world = two(3);
    let first = world.server().unwrap();
    let other = 1 - first;
    let mut user = UserChannel::open(&world, first).unwrap();
    assert_eq!(user.ask(&world, Op::Write, 1, &Buffer::filled(&content(1, 1), 0)), Status::Done);
    world.cut_off.borrow_mut().extend([(first, other), (other, first)]);
    world.registry.lock().is_away = true;
    let buffer = Buffer::filled(&content(2, 1), 0);
    let write = user.submit(Op::Write, 1, Some(&buffer));
    let target = Buffer::new(SECTOR_BYTES, 0);
    let read = user.submit(Op::Read, 1, Some(&target));
    let record = Record { epoch: 1, ..Record::default() };
    let ticket = world.process(first).unwrap().records.write("vm", record);
    world.run(10_000 * MS);
    assert_eq!((user.poll(write), user.poll(read), ticket.result()), (None, None, None));
    // The backup reaches the registry first.
    world.pause(first, 20_000 * MS);
    world.registry.lock().is_away = false;
    world.run_until("the backup serves", |world| world.part(other) == Some(MemberPart::Serves));
    world.run(25_000 * MS);
    assert_eq!((user.poll(write), user.poll(read)), (Some(Status::Fenced), Some(Status::Fenced)));
    let error = ticket.result().expect("it has ended").unwrap_err();
    assert!(error.to_string().contains(&World::name(other)), "{error}");
    world.cut_off.borrow_mut().clear();
    world.run_until("both are in sync", World::is_well);
    assert_eq!(self::read(&world, other, 1), Ok(content(1, 1)), "never acknowledged");
}

/// A backup stands still between its look at the clock and what it does then, for longer than its
/// patience. Pings wait for it, and its answers to them are leases from now on. It must not take
/// over before these end, although it has been patient by the time that it had read before.
#[test]
fn a_backup_that_was_paused_in_a_round_lets_the_leases_end_that_it_gives() {
    for seed in 20..30 {
        let world = two(seed);
        let first = world.server().unwrap();
        let other = 1 - first;
        assert_eq!(write(&world, first, 1, 1), Status::Done);
        let mut user = UserChannel::open(&world, first).unwrap();
        // The primary cannot go on without its backup.
        world.registry.lock().is_away = true;
        world.pause_at_clock(other, 4000 * MS);
        world.run_until("it was paused", |world| world.pauses.get() > 0);
        world.run(60 * MS);
        // From here on the primary hears of nothing.
        world.cut_off.borrow_mut().extend([(first, other), (other, first)]);
        world.nodes[first].desk_hangs.set(true);
        world.registry.lock().is_away = false;
        world.run_until("it serves", |world| world.part(other) == Some(MemberPart::Serves));
        assert_eq!(write(&world, other, 1, 2), Status::Done);
        let buffer = Buffer::new(SECTOR_BYTES, 0);
        let id = user.submit(Op::Read, 1, Some(&buffer));
        world.run(3000 * MS);
        assert_eq!(user.poll(id), None, "an old content was read, seed {seed}");
    }
}

/// The primacy goes away and comes back. A channel of before does nothing any more, however late
/// its request is: another node has acknowledged a write over the same sector meanwhile.
#[test]
fn a_request_of_an_earlier_term_is_never_carried_out() {
    let world = two(4);
    let first = world.server().unwrap();
    let other = 1 - first;
    let mut late = UserChannel::open(&world, first).unwrap();
    assert_eq!(late.ask(&world, Op::Write, 1, &Buffer::filled(&content(1, 1), 0)), Status::Done);
    world.order(first, Input::Move(other as u8));
    world.run_until("the other one serves", |world| world.server() == Some(other));
    assert_eq!(write(&world, other, 1, 2), Status::Done);
    world.order(other, Input::Move(first as u8));
    world.run_until("the first one serves", |world| world.server() == Some(first));
    let old = Buffer::filled(&content(1, 1), 0);
    assert_eq!(late.ask(&world, Op::Write, 1, &old), Status::Fenced);
    assert!(!late.channel.is_open());
    assert_eq!(read(&world, first, 1), Ok(content(2, 1)));
}

/// The guard believes that nothing is on its way once a channel has let go: no write may come then.
#[test]
fn a_channel_lets_go_when_its_writes_have_ended() {
    let world = two(5);
    let first = world.server().unwrap();
    let mut user = UserChannel::open(&world, first).unwrap();
    assert_eq!(user.ask(&world, Op::Write, 1, &Buffer::filled(&content(1, 1), 0)), Status::Done);
    // No member answers, and the registry is away: a write waits.
    world.cut_off.borrow_mut().extend([(0, 1), (1, 0)]);
    world.registry.lock().is_away = true;
    let buffer = Buffer::filled(&content(2, 1), 0);
    let id = user.submit(Op::Write, 1, Some(&buffer));
    world.run(3000 * MS);
    assert!(!user.channel.abandon(&mut user.ios, 0), "the write may still happen");
    world.run(3000 * MS);
    assert!(!user.channel.abandon(&mut user.ios, 0));
    world.registry.lock().is_away = false;
    world.run_until("it lets go", |_| user.channel.abandon(&mut user.ios, 0));
    assert_eq!(user.poll(id), None, "no completion comes behind that");
    let server = world.server();
    let before = server.map(|at| read(&world, at, 1));
    world.cut_off.borrow_mut().clear();
    world.run_until("both are in sync", World::is_well);
    if let Some(before) = before {
        assert_eq!(read(&world, world.server().unwrap(), 1), before, "a write came late");
    }
    // A read or a request that was not taken holds no channel up.
    let mut user = UserChannel::open(&world, first).unwrap();
    world.pause(first, 1000 * MS);
    let id = user.submit(Op::Read, 1, Some(&Buffer::new(SECTOR_BYTES, 0)));
    assert!(user.channel.abandon(&mut user.ios, 0) && user.poll(id).is_none());
}

#[test]
fn a_member_whose_volume_fails_stops_and_the_other_one_serves() {
    let world = two(6);
    let first = world.server().unwrap();
    assert_eq!(write(&world, first, 2, 8), Status::Done);
    let mut user = UserChannel::open(&world, first).unwrap();
    world.nodes[first].volume.borrow_mut().is_broken = true;
    let buffer = Buffer::filled(&content(9, 1), 0);
    let status = user.ask(&world, Op::Write, 2, &buffer);
    assert_eq!(status, Status::Fenced);
    let view = world.view(first);
    assert_eq!(view.part, MemberPart::Failed);
    assert!(view.failed.is_some_and(|why| why.contains("Error at sector 2")), "{:?}", view.part);
    let error = claim(&world, first).unwrap_err();
    assert_eq!(error.text, "", "no node is known");
    world.run_until("the other one serves", |world| world.server() == Some(1 - first));
    let found = read(&world, 1 - first, 2).unwrap();
    assert!([content(8, 1), content(9, 1)].contains(&found));
    // A channel that is opened on a member that has ended has an end.
    assert_eq!(write(&world, first, 2, 10), Status::Fenced);
    world.kill(first);
}

/// A copy that is smaller than the other copies, and will not grow, cannot have each operation: it
/// stops and says so, and no request waits for it.
#[test]
fn a_copy_that_is_too_small_stops_by_name_and_holds_no_write_up() {
    let world = World::new(2, 13);
    world.placed_bytes.set(None);
    world.nodes[1].volume.borrow_mut().resize(SECTORS as usize / 2);
    (0..2).for_each(|at| world.start(at));
    world.run_until("two members serve", |world| world.is_well() && world.server() == Some(0));
    assert_eq!(write(&world, 0, 1, 1), Status::Done);
    assert_eq!(world.in_sync(), 2);
    assert_eq!(write(&world, 0, SECTORS - 1, 2), Status::Done);
    let view = world.view(1);
    assert_eq!((view.part, world.in_sync()), (MemberPart::Failed, 1));
    assert!(view.failed.is_some_and(|why| why.contains("does not fit this copy")));
    assert_eq!(read(&world, 0, SECTORS - 1), Ok(content(2, 1)));
}

/// A pool that takes no changes is asked again and again, at a bounded pace, and the status says
/// so.
#[test]
fn a_full_pool_is_waited_for_and_stops_no_member() {
    let world = two(14);
    let first = world.server().unwrap();
    let other = 1 - first;
    world.kill(other);
    assert_eq!(write(&world, first, 1, 1), Status::Done);
    // The copy that comes back cannot go back to a cut.
    world.nodes[other].volume.borrow_mut().is_full = true;
    world.start(other);
    world.run(20_000 * MS);
    assert_eq!(world.view(other).waits.as_deref(), Some("the pool is full"));
    assert_eq!(write(&world, first, 2, 2), Status::Done, "it is not in sync");
    assert_eq!(world.part(other), Some(MemberPart::Outside));
    world.nodes[other].volume.borrow_mut().is_full = false;
    world.run_until("both are in sync", World::is_well);
    assert_eq!(world.view(other).waits, None);
    // The primary cannot look for a difference, nor make a cut.
    world.kill(other);
    assert_eq!(write(&world, first, 1, 3), Status::Done);
    let refused = {
        let mut volume = world.nodes[first].volume.borrow_mut();
        volume.is_full = true;
        volume.refused
    };
    world.start(other);
    world.run(100_000 * MS);
    let view = world.view(first);
    assert_eq!((view.part, view.failed), (MemberPart::Serves, None));
    assert_eq!(view.waits.as_deref(), Some("the pool is full"));
    let refused = world.nodes[first].volume.borrow_mut().refused - refused;
    assert!((5..=12).contains(&refused), "{refused} tries in 100 s");
    world.nodes[first].volume.borrow_mut().is_full = false;
    world.run_until("both are in sync", World::is_well);
    assert_eq!(read(&world, world.server().unwrap(), 1), Ok(content(3, 1)));
}

/// A disk that hangs, or a registry that does: nothing is answered, nothing is lost, and the
/// mailboxes have a bound.
#[test]
fn errands_without_an_end_hold_requests_up_and_lose_none() {
    let world = World::new(1, 7);
    world.start(0);
    world.run_until("it serves", World::is_well);
    let mut user = UserChannel::open(&world, 0).unwrap();
    world.nodes[0].desk_hangs.set(true);
    let record = Record { epoch: 1, ..Record::default() };
    let ticket = world.process(0).unwrap().records.write("vm", record);
    world.run(1000 * MS);
    let buffer = Buffer::filled(&content(3, 1), 0);
    let id = user.submit(Op::Write, 5, Some(&buffer));
    world.run(20_000 * MS);
    // The note is kept first, and all outputs behind it wait.
    assert_eq!((ticket.result(), user.poll(id)), (None, None));
    assert!(world.process(0).unwrap().errands() <= 4, "errands that wait have a bound");
    world.nodes[0].desk_hangs.set(false);
    world.run_until("the record is durable", |_| ticket.result() == Some(Ok(())));
    world.run_until("the write ends", |_| user.poll(id) == Some(Status::Done));
}

#[test]
fn a_full_table_of_clients_holds_new_ones_up_until_a_channel_goes() {
    let world = World::new(1, 8);
    world.start(0);
    world.run_until("it serves", World::is_well);
    let open = |depth: u16| {
        let process = world.process(0).unwrap();
        let open = OpenArguments { services: &Services::new(), depth };
        (process.front.open(&open).unwrap(), io_table(depth))
    };
    let buffer = Buffer::new(SECTOR_BYTES, 0);
    let begin = |(channel, ios): &mut (Box<dyn Channel>, IoTable), count: usize| {
        for at in 0..count {
            let id = ios.take().unwrap();
            let io = &mut ios[id];
            io.reset();
            (io.op, io.len_bytes) = (Op::Write, SECTOR_BYTES as u32);
            io.offset_bytes = (at % SECTORS as usize * SECTOR_BYTES) as u64;
            io.segments.extend(buffer.segments(usize::MAX));
            channel.submit(ios, id);
        }
    };
    let finish = |(channel, ios): &mut (Box<dyn Channel>, IoTable), rounds: u64| {
        let mut done: Vec<IoId> = Vec::new();
        for _ in 0..rounds {
            world.step();
            let _ = channel.poll(ios, 0, &mut done);
        }
        assert!(done.iter().all(|id| ios[*id].status == Status::Done));
        done.len()
    };
    let (mut large, mut small) = (open(APPLIED_MAX as u16), open(64));
    // One client fewer than the table has, and more than the room that is left.
    let count = APPLIED_MAX - 10;
    begin(&mut large, count);
    assert_eq!(finish(&mut large, 5000), count);
    begin(&mut small, 64);
    let ended = finish(&mut small, 300);
    assert!((9..=10).contains(&ended), "{ended}");
    drop(large);
    assert_eq!(ended + finish(&mut small, 300), 64);
}

#[test]
fn a_durable_write_survives_a_loss_of_power() {
    let world = World::new(1, 9);
    world.start(0);
    world.run_until("it serves", World::is_well);
    let mut user = UserChannel::open(&world, 0).unwrap();
    let buffer = Buffer::filled(&content(6, 2), 0);
    let id = user.ios.take().unwrap();
    let io = &mut user.ios[id];
    io.reset();
    (io.op, io.durable, io.len_bytes) = (Op::Write, true, 2 * SECTOR_BYTES as u32);
    io.segments.extend(buffer.segments(SECTOR_BYTES));
    user.channel.submit(&mut user.ios, id);
    world.run_until("the write ends", |_| user.poll(id) == Some(Status::Done));
    world.kill(0);
    world.nodes[0].volume.borrow_mut().lose_power();
    let kept = world.nodes[0].volume.borrow_mut().content[..2 * SECTOR_BYTES].to_vec();
    assert_eq!(kept, content(6, 2));
}

/// The volume on a node: its channels run the world whenever they are polled.
#[derive(Debug)]
struct Pumped {
    front: std::sync::Arc<member::FrontVolume>,
}

#[derive(Debug)]
struct PumpedChannel(Box<dyn Channel>);

thread_local! {
    static WORLD: std::cell::RefCell<Option<std::rc::Rc<World>>> = const {
        std::cell::RefCell::new(None)
    };
}

fn pump() {
    WORLD.with_borrow(|world| world.as_ref().expect("the test has set it").step());
}

impl Volume for Pumped {
    fn info(&self) -> VolumeInfo {
        self.front.info()
    }

    fn size(&self) -> Size {
        self.front.size()
    }

    fn open(&self, open: &OpenArguments<'_>) -> Result<Box<dyn Channel>, OpenError> {
        Ok(Box::new(PumpedChannel(self.front.open(open)?)))
    }
}

impl Channel for PumpedChannel {
    fn submit(&mut self, ios: &mut IoTable, id: IoId) {
        self.0.submit(ios, id);
    }

    fn poll(&mut self, ios: &mut IoTable, now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        pump();
        self.0.poll(ios, now_ns, done)
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        self.0.arm(wake)
    }

    fn disarm(&mut self) {
        self.0.disarm();
    }

    fn is_open(&self) -> bool {
        self.0.is_open()
    }

    fn recall(&mut self, ios: &mut IoTable, back: &mut Vec<IoId>) {
        self.0.recall(ios, back);
    }

    fn abandon(&mut self, ios: &mut IoTable, now_ns: u64) -> bool {
        pump();
        self.0.abandon(ios, now_ns)
    }
}

#[test]
fn the_volume_keeps_the_contract_with_one_member_and_with_two() {
    for (members, seed) in [(1, 10), (2, 11)] {
        let world = World::new(members, seed);
        (0..members).for_each(|at| world.start(at));
        world.run_until("they serve", World::is_well);
        let front = std::sync::Arc::clone(&world.process(world.server().unwrap()).unwrap().front);
        WORLD.set(Some(world));
        contract::check_all(&Pumped { front });
    }
    WORLD.set(None);
}

#[test]
fn a_channel_has_more_requests_under_way_than_a_round_takes() {
    let world = two(12);
    let process = world.process(world.server().unwrap()).unwrap();
    let open = OpenArguments { services: &Services::new(), depth: 200 };
    let (mut channel, mut ios) = (process.front.open(&open).unwrap(), io_table(200));
    drop(process);
    let buffers: Vec<_> = (0..200).map(|at| Buffer::filled(&content(at, 1), 0)).collect();
    for (at, buffer) in buffers.iter().enumerate() {
        let id = ios.take().unwrap();
        let io = &mut ios[id];
        io.reset();
        io.op = [Op::Write, Op::Read, Op::Flush, Op::Discard][at % 4];
        if io.op != Op::Flush {
            (io.offset_bytes, io.len_bytes) = ((at % 60 * SECTOR_BYTES) as u64, 512);
        }
        if io.op.moves_data() {
            io.segments.extend(buffer.segments(usize::MAX));
        }
        channel.submit(&mut ios, id);
    }
    let mut done = Vec::new();
    for _ in 0..2000 {
        world.step();
        let _ = channel.poll(&mut ios, 0, &mut done);
    }
    let different: BTreeSet<_> = done.iter().map(|id| id.index()).collect();
    assert_eq!((done.len(), different.len()), (200, 200), "one completion each");
    assert!(done.iter().all(|id| ios[*id].status == Status::Done));
}
