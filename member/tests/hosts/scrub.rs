//! Scrubs of all copies, by real hosts.

use std::rc::Rc;

use member::{MemberPart, ScrubOrder, ScrubStage, ScrubView};
use replica::{Input, ScrubReport};
use volume::Status;

use super::scenes::{read, two, write};
use super::users::content;
use super::world::{MS, SECTOR_BYTES, SECTORS, World};

/// As fast as it goes.
const FAST: u64 = 1 << 40;

fn begin(world: &World, at: usize, bytes_per_s: u64) -> bool {
    let now_ns = world.now_ns.get();
    world.with_host(at, |host| host.start_scrub(now_ns, [7; 16], bytes_per_s))
}

fn order(world: &World, at: usize, order: ScrubOrder) {
    let now_ns = world.now_ns.get();
    world.with_host(at, |host| host.order_scrub(now_ns, order));
}

fn seen(world: &World, at: usize) -> ScrubView {
    world.view(at).scrub.expect("the node serves, and has scrubbed")
}

/// The report of a whole scrub.
fn scrub(world: &World, at: usize) -> ScrubReport {
    assert!(begin(world, at, FAST), "it begins");
    world.run_until("the scrub ends", |world| seen(world, at).report.stage == ScrubStage::Done);
    world.run_until("its repairs are stored", |world| {
        let copies: Vec<_> =
            world.nodes.iter().map(|node| node.volume.borrow_mut().content.clone()).collect();
        copies.iter().all(|copy| *copy == copies[0])
    });
    seen(world, at).report
}

/// A device changes a byte of a sector by itself.
fn rot(world: &World, at: usize, sector: usize) {
    world.nodes[at].volume.borrow_mut().content[sector * SECTOR_BYTES + 9] ^= 4;
}

/// Two members of a volume with so many sectors.
fn large(seed: u64, sectors: u64) -> Rc<World> {
    let world = World::new(2, seed);
    for node in &world.nodes {
        node.volume.borrow_mut().resize(sectors as usize);
    }
    world.placed_bytes.set(Some(sectors * SECTOR_BYTES as u64));
    (0..2).for_each(|at| world.start(at));
    world.run_until("two members serve", World::is_well);
    world
}

#[test]
fn blocks_that_a_backup_cannot_read_or_has_otherwise_are_repaired_and_named() {
    let world = two(71);
    let (first, other) = (world.server().unwrap(), 1 - world.server().unwrap());
    for sector in [3, 21, 40] {
        assert_eq!(write(&world, first, sector, sector), Status::Done);
    }
    let clean = scrub(&world, first);
    assert_eq!((clean.repaired, clean.differed, clean.busy), (0, 0, 0), "{clean:?}");
    assert_eq!((clean.looked_at, clean.members.len()), (SECTORS, 1));
    world.nodes[other].volume.borrow_mut().damaged.insert(3);
    rot(&world, other, 21);
    // And a block of the copy that serves, which no read has met.
    world.nodes[first].volume.borrow_mut().damaged.insert(40);
    let report = scrub(&world, first);
    assert_eq!((report.repaired, report.differed, report.lost), (2, 1, 0), "{report:?}");
    let differing = seen(&world, first).differing;
    let at: Vec<_> = differing.iter().map(|it| (it.block.first(), it.agree)).collect();
    assert_eq!(at, [(16, 1)]);
    assert_eq!(differing[0].differ, [other as u8]);
    assert!(world.nodes.iter().all(|node| node.volume.borrow_mut().damaged.is_empty()));
    // The next scrub finds nothing, and the other copy serves all of it.
    let again = scrub(&world, first);
    assert_eq!((again.repaired, again.differed), (0, 0), "{again:?}");
    world.kill(first);
    world.run_until("the backup serves", |world| world.server() == Some(other));
    for sector in [3, 21, 40] {
        assert_eq!(read(&world, other, sector), Ok(content(sector, 1)));
    }
    assert_eq!(world.view(other).scrub, None, "the scrub has ended with the node that served");
}

#[test]
fn a_block_that_no_copy_has_is_counted_and_the_scrub_goes_on() {
    let world = two(72);
    let (first, other) = (world.server().unwrap(), 1 - world.server().unwrap());
    assert_eq!(write(&world, first, 9, 8), Status::Done);
    for at in [first, other] {
        world.nodes[at].volume.borrow_mut().damaged.insert(9);
    }
    let report = scrub(&world, first);
    assert_eq!((report.lost, report.looked_at), (1, SECTORS), "{report:?}");
    assert_eq!((world.view(first).part, world.view(first).lost), (MemberPart::Serves, vec![4096]));
}

#[test]
fn a_scrub_keeps_to_its_rate_rests_goes_on_and_ends_by_an_order() {
    const ALL: u64 = 4096;
    let world = large(73, ALL);
    let first = world.server().unwrap();
    // A range of 64 KiB ten times in a second.
    assert!(begin(&world, first, 640 << 10));
    world.run(1000 * MS);
    let view = seen(&world, first);
    let looked_at = view.report.looked_at;
    assert!((128..=14 * 128).contains(&looked_at), "{looked_at} sectors in a second");
    assert!(view.left_s.is_some_and(|left_s| (1..30).contains(&left_s)), "{view:?}");
    order(&world, first, ScrubOrder::Pause);
    world.run(300 * MS);
    let rests = seen(&world, first).report;
    world.run(2000 * MS);
    assert_eq!(seen(&world, first).report, rests);
    assert_eq!((rests.stage, rests.busy), (ScrubStage::Paused, 0));
    order(&world, first, ScrubOrder::GoOn { bytes_per_s: None });
    world.run(300 * MS);
    let goes_on = seen(&world, first).report;
    assert!(goes_on.looked_at > rests.looked_at && goes_on.looked_at < ALL, "{goes_on:?}");
    order(&world, first, ScrubOrder::Stop);
    world.run(1000 * MS);
    assert_eq!(seen(&world, first).report.stage, ScrubStage::Stopped);
    assert!(seen(&world, first).report.looked_at < ALL);
    assert_eq!(scrub(&world, first).looked_at, ALL);
}

#[test]
fn a_scrub_beside_writes_finds_no_difference_that_is_none() {
    const ALL: u64 = 1024;
    let world = large(74, ALL);
    let first = world.server().unwrap();
    assert!(begin(&world, first, 256 << 10));
    let mut number = 0;
    while seen(&world, first).report.stage == ScrubStage::Runs {
        // Most writes hit few blocks.
        number += 1;
        let sector = if world.one_in(2) { world.below(24) } else { world.below(ALL) };
        assert_eq!(write(&world, first, sector, number), Status::Done);
    }
    let report = seen(&world, first).report;
    assert_eq!((report.differed, report.repaired, report.lost), (0, 0, 0), "{report:?}");
    assert!(number > 10 && report.looked_at == ALL, "{number} writes, {report:?}");
    let calm = scrub(&world, first);
    assert_eq!((calm.differed, calm.repaired, calm.busy), (0, 0, 0), "{calm:?}");
}

#[test]
fn the_scrub_of_a_copy_that_fails_has_ended_and_a_refused_start_keeps_the_last_result() {
    let world = large(76, 4096);
    let first = world.server().unwrap();
    let backup = 1 - first;
    assert!(begin(&world, first, 64 << 10));
    order(&world, first, ScrubOrder::Stop);
    let stopped = seen(&world, first).report;
    assert_eq!(stopped.stage, ScrubStage::Stopped);
    assert!(!begin(&world, backup, FAST), "it does not serve");
    world.order(first, Input::Move(backup as u8));
    assert!(!begin(&world, first, FAST), "it moves");
    assert_eq!(seen(&world, first).report, stopped);
    world.run_until("the backup serves", |world| world.server() == Some(backup));
    assert!(begin(&world, backup, 64 << 10));
    world.nodes[backup].volume.borrow_mut().is_broken = true;
    assert_eq!(write(&world, backup, 2, 8), Status::Fenced);
    let view = world.view(backup);
    assert_eq!((view.part, view.scrub), (MemberPart::Failed, None));
    // An order that comes late does not bring it back.
    order(&world, backup, ScrubOrder::Pause);
    assert_eq!(world.view(backup).scrub, None);
}

#[test]
fn a_copy_that_leaves_is_named_as_not_proved() {
    const ALL: u64 = 1024;
    let world = large(75, ALL);
    let (first, other) = (world.server().unwrap(), 1 - world.server().unwrap());
    assert!(begin(&world, first, 256 << 10));
    world.kill(other);
    world.run_until("the scrub ends", |world| seen(world, first).report.stage == ScrubStage::Done);
    let report = seen(&world, first).report;
    assert_eq!((report.members, report.left), (vec![], vec![other as u8]));
}
