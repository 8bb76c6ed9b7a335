//! Deaths within one take-over, which all states of a case with three members show late or never.

use replica::{Message, Pacing, Rule};

use crate::world::action::{Action, Budget};
use crate::world::cases::of_rule;
use crate::world::disk::Loss;
use crate::world::{Case, Plan, Post, World};

/// The member is gone, with all that it has sent to the other member.
fn lose(world: &mut World, case: &Case, id: u8, other: u8) {
    world.act(case, Action::Pause(id));
    world.act(case, Action::Cut(id, other));
}

/// The client sends its request to the member that serves, and has its answer.
fn ask(world: &mut World, case: &Case, id: u8) {
    let before = world.clients[0].next;
    world.act(case, Action::Send(0, id));
    world.go_on(case, |world| world.clients[0].next > before);
}

/// A write is under way that member 1 has stored and member 2 has not. The primary is lost, member
/// 2 takes over and has member 1 go back, and is lost before its table of applied requests comes to
/// member 1. Gives the broken promise after the write was sent again.
fn take_over_half_equal(broken: Option<Rule>) -> Option<String> {
    let case = Case { broken, ..of_rule(Rule::HalfEqualMembersGoBack) };
    let mut world = World::new(&case);
    world.act(&case, Action::Cut(0, 2));
    world.act(&case, Action::Send(0, 0));
    world.go_on(&case, |world| world.nodes[1].disk.read_sector(0) != 0);
    lose(&mut world, &case, 0, 1);
    world.act(&case, Action::Pause(1));
    world.go_on(&case, |world| world.registry.primary == 2);
    world.act(&case, Action::Resume(1));
    world.go_on(&case, |world| world.nodes[1].disk.read_sector(0) == 0);
    lose(&mut world, &case, 2, 1);
    world.go_on(&case, |world| world.nodes[1].member.takes_requests());
    let has_cut = |world: &World| world.nodes[1].disk.cuts().iter().any(|cut| cut.is_own());
    assert!(!has_cut(&world) || broken.is_some(), "its own cut is dropped: {world:?}");
    for _ in 0..case.plans[0].len() {
        ask(&mut world, &case, 1);
    }
    world.breach(&case)
}

#[test]
fn a_member_that_was_half_equal_goes_on_with_its_own_content() {
    assert_eq!(take_over_half_equal(None), None);
    let breach = take_over_half_equal(Some(Rule::HalfEqualMembersGoBack));
    assert!(breach.is_some(), "the breach is found");
}

/// The primary alone has a write of two sectors, and gives it to the backups by two operations. It
/// is lost when both backups have stored the first operation and know that of each other. The
/// backup that takes over undoes the operation, and the other backup must as well.
#[test]
fn a_range_that_a_member_has_undone_is_made_equal_at_each_member() {
    let rule = of_rule(Rule::HalfEqualMembersGoBack);
    let case = Case {
        broken: None,
        sectors: 2,
        plans: vec![vec![Plan::Write(0, 2), Plan::Read(0, 2)]],
        budget: Budget { stops: 1, cuts: 6, ..rule.budget },
        pacing: Pacing { fetch_sectors_max: 1, ..rule.pacing },
        ..rule
    };
    let mut world = World::new(&case);
    let cut_off = |world: &mut World| [1, 2].map(|to| world.act(&case, Action::Cut(0, to)));
    let connect = |world: &mut World| [1, 2].map(|to| world.act(&case, Action::Heal(0, to)));
    cut_off(&mut world);
    world.act(&case, Action::Send(0, 0));
    world.act(&case, Action::Deliver(0));
    world.act(&case, Action::Stop(0));
    world.act(&case, Action::Start(0, Loss::Nothing));
    connect(&mut world);
    let has_first = |world: &World, id: usize| world.nodes[id].disk.read_sector(0) != 0;
    world.go_on(&case, |world| has_first(world, 1) && has_first(world, 2));
    // The second operation is lost on its way.
    cut_off(&mut world);
    connect(&mut world);
    world.settle(&case);
    world.act(&case, Action::Tick);
    let is_ping = |post: &Post| matches!(post, Post::Message(0, _, Message::Ping { .. }));
    while let Some(ping) = world.wire.iter().position(is_ping) {
        world.act(&case, Action::Deliver(ping));
    }
    world.act(&case, Action::Pause(0));
    cut_off(&mut world);
    assert!([1, 2].iter().all(|id| world.nodes[*id].disk.read_sector(1) == 0), "{world:?}");
    let serves = |world: &World| world.nodes.iter().skip(1).any(|it| it.member.takes_requests());
    world.go_on(&case, serves);
    assert_eq!(world.own_ways_back, 1);
    assert_eq!(world.breach(&case), None);
}
