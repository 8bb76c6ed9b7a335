//! Blocks of a copy that cannot be read any more.

use member::MemberPart;
use volume::contract::Buffer;
use volume::{Op, Status};

use super::scenes::{read, two, write};
use super::users::{UserChannel, content};
use super::world::{SECTOR_BYTES, World};

/// Damages a sector of a node's volume.
fn damage(world: &World, at: usize, sector: u64) {
    world.nodes[at].volume.borrow_mut().damaged.insert(sector);
}

fn is_damaged(world: &World, at: usize) -> bool {
    !world.nodes[at].volume.borrow_mut().damaged.is_empty()
}

#[test]
fn a_guest_reads_what_another_copy_has_of_a_damaged_block() {
    let world = two(61);
    let (first, other) = (world.server().unwrap(), 1 - world.server().unwrap());
    assert_eq!(write(&world, first, 3, 7), Status::Done);
    assert_eq!(write(&world, first, 21, 8), Status::Done);
    damage(&world, first, 3);
    damage(&world, first, 20);
    assert_eq!(read(&world, first, 3), Ok(content(7, 1)));
    // A block is read as a whole, so the damage beside the sector is met as well.
    let mut user = UserChannel::open(&world, first).expect("the node runs");
    let buffer = Buffer::new(30 * SECTOR_BYTES, 0);
    assert_eq!(user.ask(&world, Op::Read, 1, &buffer), Status::Done);
    assert_eq!(buffer.bytes()[20 * SECTOR_BYTES..][..SECTOR_BYTES], content(8, 1)[..]);
    assert!(!is_damaged(&world, first), "the blocks were written again");
    let view = world.view(first);
    assert_eq!((view.part, view.repaired_bytes), (MemberPart::Serves, 2 * 4096));
    assert_eq!((view.lost, view.failed), (vec![], None));
    // The other copy has heard of nothing, and serves the same.
    world.kill(first);
    world.run_until("the backup serves", |world| world.server() == Some(other));
    assert_eq!(read(&world, other, 3), Ok(content(7, 1)));
    assert_eq!(world.view(other).repaired_bytes, 0);
}

#[test]
fn a_block_that_no_copy_has_is_an_error_of_the_read_and_is_named() {
    let world = two(62);
    let (first, other) = (world.server().unwrap(), 1 - world.server().unwrap());
    assert_eq!(write(&world, first, 3, 7), Status::Done);
    assert_eq!(write(&world, first, 9, 8), Status::Done);
    damage(&world, first, 9);
    damage(&world, other, 9);
    assert_eq!(read(&world, first, 9), Err(Status::Error));
    assert_eq!(world.view(first).lost, [4096]);
    // The rest of the volume goes on, and the block as well once it is written.
    assert_eq!(read(&world, first, 3), Ok(content(7, 1)));
    let mut user = UserChannel::open(&world, first).expect("the node runs");
    let whole = Buffer::filled(&content(9, 8), 0);
    assert_eq!(user.ask(&world, Op::Write, 8, &whole), Status::Done);
    assert_eq!(world.view(first).lost, Vec::<u64>::new());
    assert_eq!(read(&world, first, 9).map(|it| it.len()), Ok(SECTOR_BYTES));
    // A copy alone has no other copy to ask, and serves on.
    world.kill(other);
    world.run_until("it goes on alone", |world| world.in_sync() == 1);
    damage(&world, first, 3);
    assert_eq!(read(&world, first, 3), Err(Status::Error));
    assert_eq!(world.view(first).lost, [0]);
    assert_eq!(write(&world, first, 30, 7), Status::Done);
}
