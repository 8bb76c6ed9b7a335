//! One order of events: the primary is lost while it fills a copy, and another copy is older.

use replica::{MemberId, Rule};

use crate::world::World;
use crate::world::action::Action;
use crate::world::cases::of_rule;
use crate::world::disk::Loss;

/// Steps until something holds that comes by itself.
const STEPS_MAX: usize = 1000;

/// Goes on in the fixed order until this holds.
fn go_on(world: &mut World, case: &crate::world::Case, holds: impl Fn(&World) -> bool) {
    for _ in 0..STEPS_MAX {
        if holds(world) {
            return;
        }
        let next = world.deliverable().next();
        world.act(case, next.map_or(Action::Tick, Action::Deliver));
    }
    panic!("it does not come: {world:?}");
}

/// The half-filled copy is asked to serve, while a whole one answers. Gives the broken promise.
fn choose_a_half_filled_copy(broken: Option<Rule>) -> Option<String> {
    let mut case = of_rule(Rule::FillsAreMarked);
    case.broken = broken;
    let mut world = World::new(&case);
    world.act(&case, Action::Stop(2));
    go_on(&mut world, &case, |world| !world.registry.in_sync.contains_key(&2));
    world.act(&case, Action::Restart(1, Loss::Nothing));
    go_on(&mut world, &case, |world| world.nodes[1].disk.is_mixed);
    world.act(&case, Action::Stop(0));
    world.act(&case, Action::Start(2, Loss::Nothing));
    go_on(&mut world, &case, |world| world.deliverable().next().is_none());
    world.act(&case, Action::Ask(1));
    world.act(&case, Action::Recover(true));
    // Leases end, and the registry is asked.
    for _ in 0..4 {
        world.settle(&case);
        world.act(&case, Action::Tick);
    }
    world.settle(&case);
    let serves = |id: MemberId| world.registry.primary == id;
    assert!(!serves(1) || broken.is_some(), "it was chosen: {world:?}");
    world.breach(&case)
}

#[test]
fn a_half_filled_copy_does_not_serve_while_a_whole_one_answers() {
    assert_eq!(choose_a_half_filled_copy(None), None);
    let breach = choose_a_half_filled_copy(Some(Rule::FillsAreMarked));
    assert!(breach.is_some_and(|breach| breach.contains("being filled")), "the breach is found");
}
