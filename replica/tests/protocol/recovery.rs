//! Orders of events in which an operator has a copy serve, and that all states show late or never.

use std::collections::BTreeMap;

use replica::{
    Durable, Input, Knowledge, MemberId, Message, Output, Place, Recovery, RecoveryLoss,
    RecoveryPlan, RecoveryRefusal, Rule, VolumeRecord,
};

use crate::world::action::{Action, Budget};
use crate::world::cases::of_rule;
use crate::world::disk::{Disk, Loss};
use crate::world::{Case, Plan, Post, World, WorldMember};

/// The case of a rule, with another rule broken, or none.
fn case_of(rule: Rule, broken: Option<Rule>) -> Case {
    Case { broken, ..of_rule(rule) }
}

/// A member is asked to serve. Leases end, and the registry is asked.
fn recover(world: &mut World, case: &Case, id: MemberId, gives_up: bool) {
    world.act(case, Action::Ask(id));
    world.act(case, Action::Recover(gives_up));
    for _ in 0..4 {
        world.settle(case);
        world.act(case, Action::Tick);
    }
    world.settle(case);
}

/// A record of one member.
fn alone(epoch: u64, id: MemberId, life: u64) -> VolumeRecord {
    let in_sync = BTreeMap::from([(id, life)]);
    VolumeRecord { epoch, reign: epoch, incarnation: 1, primary: id, in_sync }
}

/// The half-filled copy is asked to serve, while a whole one answers. Gives the broken promise.
fn choose_a_half_filled_copy(broken: Option<Rule>) -> Option<String> {
    let case = case_of(Rule::FillsAreMarked, broken);
    let mut world = World::new(&case);
    world.act(&case, Action::Stop(2));
    world.go_on(&case, |world| !world.registry.in_sync.contains_key(&2));
    world.act(&case, Action::Restart(1, Loss::Nothing));
    world.go_on(&case, |world| world.nodes[1].disk.is_mixed);
    world.act(&case, Action::Stop(0));
    world.act(&case, Action::Start(2, Loss::Nothing));
    world.settle(&case);
    recover(&mut world, &case, 1, true);
    assert!(world.registry.primary != 1 || broken.is_some(), "it was chosen: {world:?}");
    world.breach(&case)
}

#[test]
fn a_half_filled_copy_does_not_serve_while_a_whole_one_answers() {
    assert_eq!(choose_a_half_filled_copy(None), None);
    let breach = choose_a_half_filled_copy(Some(Rule::FillsAreMarked));
    assert!(breach.is_some_and(|breach| breach.contains("being filled")), "the breach is found");
}

/// A copy that was in sync earlier is asked to serve, while one answers that was in sync later.
fn choose_an_older_copy(broken: Option<Rule>) -> Option<String> {
    let case = case_of(Rule::OlderCopiesByEpoch, broken);
    let mut world = World::new(&case);
    world.act(&case, Action::Stop(2));
    // The other backup hears of the change, and stops then.
    let knows = |world: &World| world.nodes[1].member.record() == Some(&world.registry);
    let is_out = |world: &World| !world.registry.in_sync.contains_key(&2);
    world.go_on(&case, |world| is_out(world) && knows(world));
    world.settle(&case);
    world.act(&case, Action::Stop(1));
    world.go_on(&case, |world| !world.registry.in_sync.contains_key(&1));
    world.settle(&case);
    world.act(&case, Action::LoseDisk(0));
    for id in [1, 2] {
        world.act(&case, Action::Start(id, Loss::Nothing));
    }
    for _ in 0..4 {
        world.settle(&case);
        world.act(&case, Action::Tick);
    }
    world.settle(&case);
    recover(&mut world, &case, 2, true);
    assert!(world.registry.primary != 2 || broken.is_some(), "it was chosen: {world:?}");
    world.breach(&case)
}

#[test]
fn an_older_copy_does_not_serve_while_a_newer_one_answers() {
    assert_eq!(choose_an_older_copy(None), None);
    let breach = choose_an_older_copy(Some(Rule::OlderCopiesByEpoch));
    assert!(breach.is_some_and(|breach| breach.contains("an older copy")), "the breach is found");
}

/// Both members were restarted, and the registry makes member 0 the only member in sync. That is
/// restarted again before it hears of it, and hears of it when it has answered: it has no more by
/// that, since nothing was acknowledged meanwhile (seed 1873111).
#[test]
fn a_copy_has_no_more_by_a_record_that_its_life_has_not_heard_of() {
    let case = case_of(Rule::AttemptsAreUnheard, None);
    let case = Case { budget: Budget { pauses: 1, ..case.budget }, ..case };
    let mut world = World::new(&case);
    for id in [0, 1] {
        world.restart(&case, id, Loss::Nothing);
    }
    let asks = |world: &World| world.wire.iter().any(|post| matches!(post, Post::Swap(0, ..)));
    world.go_on(&case, asks);
    world.act(&case, Action::Pause(0));
    let knows = |id: usize| {
        move |world: &World| {
            world.nodes[id].member.record().is_some_and(|record| record.incarnation == 2)
        }
    };
    world.go_on(&case, knows(1));
    world.restart(&case, 0, Loss::Nothing);
    assert!(!knows(0)(&world), "its life has not heard of it: {world:?}");
    world.act(&case, Action::Ask(1));
    world.go_on(&case, knows(0));
    world.act(&case, Action::Recover(true));
    world.settle(&case);
    assert_eq!((world.registry.primary, world.breach(&case)), (1, None), "{world:?}");
}

/// The registry has made a member the primary and has lost the record since, and its answer comes
/// when another copy serves.
fn hear_an_answer_late(broken: Option<Rule>) -> Option<String> {
    let case = case_of(Rule::AttemptsAreUnheard, broken);
    let mut world = World::new(&case);
    world.act(&case, Action::Stop(0));
    world.go_on(&case, |world| world.registry.primary == 1);
    let answer = world.wire.len() - 1;
    world.act(&case, Action::Hold(answer));
    world.act(&case, Action::LoseRecord);
    world.act(&case, Action::Start(0, Loss::Nothing));
    world.settle(&case);
    recover(&mut world, &case, 0, false);
    assert!(world.has_lost || broken.is_some(), "it was recovered: {world:?}");
    world.act(&case, Action::Release(0));
    world.settle(&case);
    world.breach(&case)
}

#[test]
fn a_member_that_waits_for_the_registry_is_not_heard() {
    assert_eq!(hear_an_answer_late(None), None);
    let breach = hear_an_answer_late(Some(Rule::AttemptsAreUnheard));
    assert_eq!(breach.as_deref(), Some("two members answer reads"));
}

/// The only member in sync ends in order while the registry makes its change, and starts again when
/// an operator has had another copy serve. It is told the record of its change late.
fn hear_a_record_of_before(broken: Option<Rule>) -> Option<String> {
    let case = case_of(Rule::ResumedMembersAskAnew, broken);
    let mut world = World::new(&case);
    world.act(&case, Action::Stop(0));
    world.act(&case, Action::Start(0, Loss::Nothing));
    let asks = |world: &World| world.wire.iter().any(|post| matches!(post, Post::Swap(0, ..)));
    world.go_on(&case, asks);
    world.act(&case, Action::Stop(0));
    world.go_on(&case, |world| world.nodes[1].member.record().is_some_and(|it| it.reign == 2));
    recover(&mut world, &case, 1, true);
    assert!(world.nodes[1].member.serves(case.now()), "it was recovered: {world:?}");
    world.act(&case, Action::Start(0, Loss::Nothing));
    world.act(&case, Action::Stale(0, 1));
    assert_eq!(world.nodes[0].member.record().map(|record| record.reign), Some(2));
    if let Some(breach) = world.breach(&case) {
        return Some(breach);
    }
    world.go_on(&case, |world| world.nodes[0].member.record() == Some(&world.registry));
    world.breach(&case)
}

#[test]
fn a_member_that_goes_on_is_no_primary_by_a_record_of_before() {
    assert_eq!(hear_a_record_of_before(None), None);
    let breach = hear_a_record_of_before(Some(Rule::ResumedMembersAskAnew));
    assert_eq!(breach.as_deref(), Some("two members answer reads"));
}

/// A backup sees an operator's record by which it serves, after it has let the primary go on. It
/// may have gone on with its life before.
fn see_an_operators_record(broken: Option<Rule>, is_resumed: bool) -> Option<String> {
    let budget = Budget { stops: 2, cuts: 1, ..of_rule(Rule::RemadeReignsLetLeasesEnd).budget };
    let case = Case { budget, ..case_of(Rule::RemadeReignsLetLeasesEnd, broken) };
    let mut world = World::new(&case);
    if is_resumed {
        for action in [Action::Stop(1), Action::Stop(0)] {
            world.act(&case, action);
        }
        for id in [0, 1] {
            world.act(&case, Action::Start(id, Loss::Nothing));
        }
        world.go_on(&case, |world| world.nodes[0].member.takes_requests());
    }
    world.settle(&case);
    world.act(&case, Action::Tick);
    world.settle(&case);
    assert!(world.nodes[0].member.serves(case.now()), "it has a lease");
    world.act(&case, Action::Cut(1, 0));
    let life = world.nodes[1].member.life();
    // The member has not asked for it, as far as it knows.
    world.registry = alone(5 << 20, 1, life);
    let record = world.registry.clone();
    world.step(&case, 1, Input::Seen(record));
    for _ in 0..4 {
        if let Some(breach) = world.breach(&case) {
            return Some(breach);
        }
        world.act(&case, Action::Tick);
        world.settle(&case);
    }
    world.act(&case, Action::Heal(1, 0));
    world.go_on(&case, |world| world.nodes[1].member.serves(case.now()));
    world.breach(&case)
}

#[test]
fn an_operators_record_that_was_not_asked_for_lets_leases_end() {
    for is_resumed in [false, true] {
        assert_eq!(see_an_operators_record(None, is_resumed), None);
        let broken = Some(Rule::RemadeReignsLetLeasesEnd);
        let breach = see_an_operators_record(broken, is_resumed);
        assert_eq!(breach.as_deref(), Some("two members answer reads"), "{is_resumed}");
    }
}

/// A member's pool and private file are made anew.
fn make_anew(world: &mut World, case: &Case, id: MemberId) {
    let mut disk = Disk::new(case.is_wild);
    disk.is_mixed = true;
    let durable = disk.durable_of_member.clone();
    let (life, cuts) = (100, disk.cuts());
    let node = world.node(id);
    node.member = WorldMember::start(id, life, case.pacing, durable, cuts, case.now());
    node.disk = disk;
}

#[test]
fn an_empty_copy_does_not_serve_while_a_whole_one_answers() {
    for looks in [false, true] {
        let case = case_of(Rule::AttemptsAreUnheard, None);
        let mut world = World::new(&case);
        make_anew(&mut world, &case, 1);
        world.restart(&case, 0, Loss::Nothing);
        if looks {
            let record = world.registry.clone();
            world.step(&case, 1, Input::Seen(record));
        }
        world.act(&case, Action::LoseRecord);
        let recovery = world.word(1, world.survey(1), true);
        assert_eq!(world.plan(&case, 1, &recovery), Err(RecoveryRefusal::Better(0)), "{looks}");
        let recovery = world.word(0, world.survey(0), false);
        let loss = world.plan(&case, 0, &recovery).map(|plan| plan.loss);
        assert_eq!(loss, Ok(RecoveryLoss::Unflushed), "{looks}");
    }
}

#[test]
fn a_member_that_a_nodes_list_lacks_counts_as_unheard() {
    let case = case_of(Rule::OlderCopiesByEpoch, None);
    let mut world = World::new(&case);
    let answers = BTreeMap::from([(1, world.nodes[1].member.knowledge())]);
    world.act(&case, Action::Stop(0));
    let word = Recovery { members: [1].into(), ..world.word(2, answers, false) };
    let plan = world.plan(&case, 2, &word).expect("none has more");
    assert_eq!((plan.unheard, plan.loss), (vec![0], RecoveryLoss::Unheard));
    assert_eq!(plan.heard, Some(vec![2, 1]));
}

/// The knowledge of a member that is alone by its record.
fn lone(epoch: u64, id: MemberId, reigns: bool) -> Knowledge {
    let record = Some(alone(epoch, id, 7));
    Knowledge { life: 7, promised: epoch, record, reigns, was_in: epoch, ..Knowledge::default() }
}

/// The plan of a member that is alone by a record of epoch 9, with what another member has said.
fn plan_beside(
    broken: Option<Rule>,
    known: Knowledge,
    draw: u64,
) -> Result<RecoveryPlan, RecoveryRefusal> {
    let case = case_of(Rule::AttemptsAreUnheard, broken);
    let durable = Durable { promised: 9, record: Some(alone(9, 1, 7)), ..Durable::default() };
    let member = WorldMember::start(1, 3, case.pacing, durable, [].into(), case.now());
    let (members, answers) = ([0].into(), BTreeMap::from([(0, known)]));
    let recovery =
        Recovery { members, answers, asked_epoch: 9, accepts: RecoveryLoss::Mixed, draw };
    member.breaking(broken).recovery_plan(case.now(), &recovery)
}

#[test]
fn a_primary_that_needs_no_other_member_is_not_replaced() {
    let is_refused = Err(RecoveryRefusal::ServesOlder(0));
    assert_eq!(plan_beside(None, lone(4, 0, true), 0), is_refused);
    let broken = plan_beside(Some(Rule::OlderPrimariesMayGoOn), lone(4, 0, true), 0);
    assert!(broken.is_ok_and(|plan| plan.loss < RecoveryLoss::Unheard), "it is replaced");
    // A primary that needs this member can do nothing: this member hears newer primaries alone.
    let mut needs = lone(4, 0, true);
    needs.record.as_mut().expect("it has one").in_sync.insert(1, 2);
    assert!(plan_beside(None, needs, 0).is_ok());
}

#[test]
fn recoveries_that_know_nothing_of_each_other_have_different_epochs() {
    let epoch = |draw| plan_beside(None, lone(4, 0, false), draw).expect("it can").record.epoch;
    assert!(epoch(0) > 9 && epoch(6) - epoch(5) >= 1 << 20, "changes behind them differ as well");
    assert!(epoch(u64::MAX) < 1 << 62);
}

#[test]
fn of_two_records_of_one_epoch_all_members_choose_the_same() {
    let forked = lone(9, 0, false);
    assert_eq!(
        plan_beside(None, forked.clone(), 0).map(|plan| plan.loss),
        Ok(RecoveryLoss::Unheard)
    );
    let case = case_of(Rule::AttemptsAreUnheard, None);
    let durable = Durable { promised: 9, record: forked.record, ..Durable::default() };
    let member = WorldMember::start(0, 3, case.pacing, durable, [].into(), case.now());
    let answers = BTreeMap::from([(1, lone(9, 1, false))]);
    let members = [1].into();
    let recovery =
        Recovery { members, answers, asked_epoch: 9, accepts: RecoveryLoss::Mixed, draw: 0 };
    let plan = member.recovery_plan(case.now(), &recovery);
    assert_eq!(plan, Err(RecoveryRefusal::Better(1)));
}

/// A copy that no record has in sync, of a release that keeps no marks, or of this one.
#[test]
fn a_copy_of_an_older_release_may_have_been_filled() {
    let case = case_of(Rule::AttemptsAreUnheard, None);
    let knowledge = |was_in| {
        let record = Some(alone(9, 0, 7));
        let durable = Durable { promised: 9, record, was_in, ..Durable::default() };
        WorldMember::start(1, 3, case.pacing, durable, [].into(), case.now()).knowledge()
    };
    assert!(knowledge(0).filled_since.is_some());
    assert_eq!((knowledge(5).filled_since, knowledge(5).was_in), (None, 5));
}

/// A member tells of a newer record while the operator's is asked for.
#[test]
fn an_operators_record_is_not_asked_for_again_after_news() {
    let case = case_of(Rule::AttemptsAreUnheard, None);
    let durable = Durable { promised: 9, record: Some(alone(9, 1, 7)), ..Durable::default() };
    let mut member = WorldMember::start(1, 3, case.pacing, durable, [].into(), case.now());
    member.age(case.pacing.patience_ns);
    let mut tell = |input| {
        let mut out = Vec::new();
        member.step(case.now(), input, &mut out);
        let asks = out.iter().any(|it| matches!(it, Output::Remake(_)));
        (asks, out.contains(&Output::Look), member.recovers())
    };
    let answers = BTreeMap::from([(0, lone(4, 0, false))]);
    let members = [0].into();
    let recovery = Recovery { members, answers, asked_epoch: 9, ..Recovery::default() };
    assert_eq!(tell(Input::Recover(recovery)), (true, false, true));
    assert!(tell(Input::Timer).0, "it is asked for until an answer comes");
    let news = alone(10, 0, 7);
    let alive = Message::Alive { life: 7, record: Some(news.clone()), answers: None };
    tell(Input::Message(0, alive));
    assert_eq!(tell(Input::Timer), (false, true, true), "it is looked for");
    assert!(!tell(Input::Seen(news)).2, "the registry had a newer record than the known one");
}

/// A record that names a life of before has the copy in sync, or the lost copy of that number.
#[test]
fn a_copy_that_was_admitted_in_a_life_before_counts_as_filled() {
    let case = case_of(Rule::AttemptsAreUnheard, None);
    let mark_after_start = |was_in, filled_since| {
        let record = Some(alone(9, 0, 7));
        let durable = Durable { promised: 9, record, was_in, filled_since, ..Durable::default() };
        let mut member = WorldMember::start(1, 3, case.pacing, durable, [].into(), case.now());
        let mut admitted = alone(10, 0, 7);
        admitted.in_sync.insert(1, 2);
        member.step(case.now(), Input::Seen(admitted), &mut Vec::new());
        member.knowledge().filled_since
    };
    let mark_after = |filled_since| mark_after_start(5, filled_since);
    assert_eq!(mark_after(Some(Place { reign: 9, counter: 4 })), None);
    assert_eq!(
        mark_after_start(0, Some(Place { reign: 9, counter: 4 })),
        None,
        "it was new before"
    );
    assert!(mark_after(Some(Place::default())).is_some(), "it never began to be filled");
}

/// A primary that is alone by an older record hears of the newer one from the member that it pings.
#[test]
fn a_primary_of_an_older_record_is_told_the_newer_one() {
    let case = case_of(Rule::AttemptsAreUnheard, None);
    let durable = Durable { promised: 9, record: Some(alone(9, 1, 7)), ..Durable::default() };
    let mut member = WorldMember::start(1, 3, case.pacing, durable, [].into(), case.now());
    let ping = Message::Ping { record: alone(4, 0, 7), life: 3, sent_ns: 0, held: 0 };
    let mut out = Vec::new();
    member.step(case.now(), Input::Message(0, ping), &mut out);
    let alive = Message::Alive { life: 3, record: Some(alone(9, 1, 7)), answers: None };
    assert_eq!(out, [Output::Send(0, alive)]);
}

/// A primary whose own change of the members has no outcome yet keeps none of them.
#[test]
fn a_primary_with_a_change_under_way_is_alone_by_the_record_that_it_makes() {
    let case = case_of(Rule::AttemptsAreUnheard, None);
    let mut world = World::new(&case);
    let plan = |world: &World| {
        let word = world.word(0, world.survey(0), true);
        world.plan(&case, 0, &word).expect("it serves").record
    };
    world.act(&case, Action::Tick);
    world.settle(&case);
    assert_eq!((plan(&world).in_sync.len(), plan(&world).reign), (2, 1));
    world.act(&case, Action::Stop(1));
    let swap = |world: &World| world.wire.iter().position(|it| matches!(it, Post::Swap(0, ..)));
    world.go_on(&case, |world| swap(world).is_some());
    let alone = plan(&world);
    assert_eq!((alone.in_sync.len(), alone.reign), (1, alone.epoch));
}

/// A copy that was made anew begins the volume anew, on a registry without a record.
#[test]
fn a_copy_that_was_made_anew_has_less_than_one_that_was_in_sync() {
    let case = case_of(Rule::AttemptsAreUnheard, None);
    let mut known = alone(9, 1, 7);
    known.in_sync.insert(0, 6);
    let knows = |record: &VolumeRecord| Durable {
        promised: record.epoch,
        record: Some(record.clone()),
        ..Durable::default()
    };
    let start = |id, life, record: &VolumeRecord| {
        WorldMember::start(id, life, case.pacing, knows(record), [].into(), case.now())
    };
    let word = |other: MemberId, asked_epoch, known| {
        let (members, answers) = ([other].into(), BTreeMap::from([(other, known)]));
        Recovery { members, answers, asked_epoch, accepts: RecoveryLoss::Mixed, draw: 0 }
    };
    let was_in = start(1, 3, &known);
    let mut anew = Knowledge { life: 21, ..lone(1, 0, true) };
    anew.record = Some(alone(1, 0, 21));
    let asked = word(0, 9, anew.clone());
    let plan = was_in.recovery_plan(case.now(), &asked);
    assert_eq!(plan, Err(RecoveryRefusal::ServesOlder(0)), "its node has to be stopped");
    let asked = word(0, 9, Knowledge { reigns: false, ..anew });
    let plan = was_in.recovery_plan(case.now(), &asked).expect("it has more");
    assert_eq!((plan.record.primary, plan.loss), (1, RecoveryLoss::Unflushed));
    let asked = word(1, 1, was_in.knowledge());
    let plan = start(0, 22, &alone(1, 0, 21)).recovery_plan(case.now(), &asked);
    assert_eq!(plan, Err(RecoveryRefusal::Better(1)));
}

/// The operator decides anew when the registry has not answered for long.
#[test]
fn an_operators_record_is_asked_for_some_time_and_another_one_takes_its_place() {
    let case = case_of(Rule::AttemptsAreUnheard, None);
    let durable = Durable { promised: 9, record: Some(alone(9, 1, 7)), ..Durable::default() };
    let mut member = WorldMember::start(1, 3, case.pacing, durable, [].into(), case.now());
    member.age(case.pacing.patience_ns);
    let word = |draw| {
        let (members, answers) = ([0].into(), BTreeMap::from([(0, lone(4, 0, false))]));
        Input::Recover(Recovery { members, answers, asked_epoch: 9, draw, ..Recovery::default() })
    };
    let mut tell = |now_ns, input| {
        let mut out = Vec::new();
        member.step(now_ns, input, &mut out);
        let asked = out.iter().find_map(|it| match it {
            Output::Remake(plan) => Some(plan.record.epoch),
            _ => None,
        });
        (asked, out.contains(&Output::Look))
    };
    let now_ns = case.now();
    let (first, _) = tell(now_ns, word(1));
    assert!(first.is_some(), "it is asked for");
    assert_eq!(tell(now_ns, Input::Timer).0, first);
    assert_eq!(tell(now_ns, word(2)).0, None, "one at a time");
    let later_ns = now_ns + 12 * case.pacing.patience_ns;
    assert_eq!(tell(later_ns, Input::Timer), (None, true), "was it made? it is looked at");
    assert!(tell(later_ns, word(5)).0 > first);
}

/// A member was admitted again, with another life, since it has answered (seed 1007380).
#[test]
fn answers_of_before_a_newer_record_are_of_no_use() {
    let case = case_of(Rule::AttemptsAreUnheard, None);
    let mut world = World::new(&case);
    let asked = world.word(1, world.survey(1), true);
    assert_eq!(world.plan(&case, 1, &asked), Err(RecoveryRefusal::Serves(0)));
    let mut record = world.registry.clone();
    (record.epoch, record.in_sync) = (2, BTreeMap::from([(0, 9), (1, 1)]));
    world.step(&case, 1, Input::Seen(record));
    assert_eq!(world.plan(&case, 1, &asked), Err(RecoveryRefusal::News));
}

/// A copy without content and a copy that was filled in part are both asked (seed 1019955).
#[test]
fn a_copy_without_content_does_not_serve_while_a_filled_one_answers() {
    let case = case_of(Rule::AttemptsAreUnheard, None);
    let record = Some(alone(9, 2, 7));
    let durable = Durable { promised: 9, record: record.clone(), ..Durable::default() };
    let empty = WorldMember::start(1, 3, case.pacing, durable, [].into(), case.now());
    let filled = Knowledge { life: 5, promised: 9, record, ..Knowledge::default() };
    let filled_since = Some(Place { reign: 1, counter: 2 });
    let answers = BTreeMap::from([(0, Knowledge { filled_since, ..filled })]);
    let members = [0, 2].into();
    let recovery =
        Recovery { members, answers, asked_epoch: 9, accepts: RecoveryLoss::Mixed, draw: 0 };
    let plan = empty.recovery_plan(case.now(), &recovery);
    assert_eq!(plan, Err(RecoveryRefusal::Better(0)));
}

/// A copy that was admitted and restarted before it heard of it has all that was flushed, and the
/// other copy is still being filled (seed 108925).
#[test]
fn a_copy_that_has_not_heard_of_its_admission_counts_as_flushed() {
    let case = case_of(Rule::AttemptsAreUnheard, None);
    let start = |id, record| {
        let filled_since = Some(Place { reign: 1, counter: 1 + u64::from(id) });
        let record = Some(record);
        let durable = Durable { promised: 1, record, filled_since, ..Durable::default() };
        WorldMember::start(id, 3, case.pacing, durable, [].into(), case.now())
    };
    let mut admitted = alone(2, 0, 7);
    admitted.in_sync.insert(1, 1);
    let (unaware, filled) = (start(1, alone(1, 0, 7)), start(2, admitted));
    let word = |other, asked_epoch, known| Recovery {
        members: [0, other].into(),
        answers: BTreeMap::from([(other, known)]),
        asked_epoch,
        accepts: RecoveryLoss::Mixed,
        draw: 0,
    };
    let plan = filled.recovery_plan(case.now(), &word(1, 2, unaware.knowledge()));
    assert_eq!(plan, Err(RecoveryRefusal::Better(1)));
    let plan = unaware.recovery_plan(case.now(), &word(2, 1, filled.knowledge()));
    assert_eq!(plan.map(|plan| plan.loss), Ok(RecoveryLoss::Unheard));
}

/// The primary loses a write that no client was told of, goes on alone by the registry, and is
/// restarted before it hears of that. The registry loses this record, and the copy with the write
/// serves: nothing flushed is lost, since the volume was served by neither (seed 1418006).
#[test]
fn a_record_by_which_no_member_has_served_says_nothing() {
    let base = case_of(Rule::AttemptsAreUnheard, None);
    let budget = Budget { restarts: 3, unknown: 1, again: 1, ..base.budget };
    let plans = vec![vec![Plan::Write(0, 1), Plan::Read(0, 1)]];
    let case = Case { plans, budget, ..base };
    let mut world = World::new(&case);
    world.act(&case, Action::Send(0, 0));
    world.go_on(&case, |world| world.nodes[1].disk.read_sector(0) != 0);
    world.act(&case, Action::Restart(1, Loss::Nothing));
    world.act(&case, Action::Restart(0, Loss::All));
    let swap = |world: &World| world.wire.iter().position(|it| matches!(it, Post::Swap(0, ..)));
    world.go_on(&case, |world| swap(world).is_some());
    let at = swap(&world).expect("it is there");
    world.act(&case, Action::DeliverUntold(at));
    assert_eq!((world.registry.primary, world.registry.incarnation), (0, 2));
    world.act(&case, Action::Restart(0, Loss::Nothing));
    world.act(&case, Action::LoseRecord);
    world.settle(&case);
    recover(&mut world, &case, 1, false);
    assert!(world.registry.primary == 1 && world.nodes[1].member.serves(case.now()), "{world:?}");
    for _ in 0..2 {
        let before = world.clients[0].next;
        world.act(&case, Action::Send(0, 1));
        world.go_on(&case, |world| world.clients[0].next > before);
    }
    assert_eq!(world.breach(&case), None);
}
