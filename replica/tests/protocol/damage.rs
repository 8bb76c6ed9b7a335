//! Damage that comes while a read is being mended, which all states of a case show late or never.

use crate::world::action::{Action, Budget};
use crate::world::cases::named;
use crate::world::{Case, Plan, World};

/// The primary's disk is damaged at these sectors, one after the other: each time when the sector
/// before has been mended, and before the read is fetched again. Gives how many reads have ended
/// without content.
fn read_while_damage_comes(sectors: &[u64]) -> u64 {
    let base = named("damages").expect("it is a case");
    let damages = u8::try_from(sectors.len()).expect("few sectors");
    let case = Case {
        sectors: 4,
        plans: vec![vec![Plan::Read(0, 4)]],
        budget: Budget { damages, ..base.budget },
        is_slow: true,
        ..base
    };
    let mut world = World::new(&case);
    world.act(&case, Action::Tick);
    world.settle(&case);
    world.act(&case, Action::Send(0, 0));
    for (mended, sector) in (0..).zip(sectors) {
        world.go_on(&case, |world| world.mended == mended);
        world.act(&case, Action::Damage(0, *sector));
    }
    world.go_on(&case, |world| world.is_done(&case));
    assert_eq!(world.breach(&case), None);
    world.unreadable
}

/// A read met four damages of different blocks, and ended as an error beside a copy that had all of
/// them (seed 1354455).
#[test]
fn new_damage_of_other_blocks_ends_no_read() {
    assert_eq!(read_while_damage_comes(&[3, 2, 1, 0]), 0);
    assert_eq!(read_while_damage_comes(&[3, 3, 2, 2, 1, 1, 0, 0]), 0);
}

#[test]
fn damage_that_comes_again_and_again_to_a_block_ends_its_read() {
    assert_eq!(read_while_damage_comes(&[0, 0, 0]), 0);
    assert_eq!(read_while_damage_comes(&[0, 0, 0, 0]), 1);
}
