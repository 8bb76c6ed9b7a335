//! A member's private file, and its record in a registry.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::mpsc::{Receiver, channel};

use member::{
    DeskLanes, DeskWork, Errand, ErrandDesk, ErrandEnd, RecordClerk, RecordDesk, RecordDeskError,
    RegistryRecords, StateFile, StateFileError, VolumeForm, VolumeRecords, VolumeTask,
    VolumeTaskEnd, VolumeTasks,
};
use registry::membership::{ClusterKeys, Membership};
use registry::{
    CopyLeave, MemoryRegistry, PlacedCopy, PlacementRecord, Registry, RegistryError, Swap,
    UnknownSwap,
};
use replica::{Durable, Place, RecoveryLoss, RecoveryPlan, SwapOutcome, VolumeRecord};
use sidecore::Waker;

fn first() -> VolumeRecord {
    VolumeRecord::first(1, BTreeMap::from([(1, 11), (2, 22)]))
}

fn desk() -> RecordDesk {
    desk_of(&[])
}

/// The desk of a node with these settings in its file.
fn desk_of(settings: &[&str]) -> RecordDesk {
    let settings: Vec<_> = settings.iter().map(|it| (*it).to_owned()).collect();
    let form = VolumeForm::of(&BTreeMap::new(), 4096, &settings);
    RecordDesk::new(ClusterKeys::new("ab12").unwrap(), "alice", form)
}

#[test]
fn a_node_with_another_list_or_size_or_key_has_no_part_in_the_record() {
    let (mut registry, other) = (MemoryRegistry::new(7), desk_of(&["encrypted 07"]));
    desk().create(&mut registry, &first()).unwrap();
    assert!(matches!(other.look(&mut registry), Err(RecordDeskError::OtherForm)));
    assert!(matches!(other.create(&mut registry, &first()), Err(RecordDeskError::OtherForm)));
    assert_eq!(other.swap(&mut registry, &first().taken_by(2)), SwapOutcome::Unknown);
    assert_eq!(desk().look(&mut registry).unwrap(), first());
    for has_state in [false, true] {
        let (desk, registry) = (desk_of(&["encrypted 07"]), Box::new(registry.clone()));
        let records = RegistryRecords { desk, registry };
        let mut clerk = RecordClerk::new(records, "alice", (0, 77), has_state);
        let mut ends = vec![clerk.look()];
        if has_state {
            ends.push(clerk.swap(first().taken_by(2)));
        }
        for end in ends {
            let ErrandEnd::NoRecord(why) = end else { panic!("{end:?}") };
            assert!(why.contains("another key of encryption"), "{why}");
        }
    }
}

/// The node of a copy that is out removes its data.
#[test]
fn a_copy_that_is_out_comes_into_no_record_again() {
    let (mut registry, keys) = (MemoryRegistry::new(7), ClusterKeys::new("ab12").unwrap());
    let nodes = ["io0", "io1", "io2", "io3"];
    let placement = PlacementRecord {
        size_bytes: 4096,
        copies: nodes.map(|node| PlacedCopy::new(node, "fast")).into(),
        ..PlacementRecord::default()
    };
    Membership::new(&mut registry, &keys).place_volume("alice", &placement).unwrap();
    desk().create(&mut registry, &first()).unwrap();
    let alone = first().without(2);
    assert_eq!(desk().swap(&mut registry, &alone), SwapOutcome::Done);
    let mut cluster = Membership::new(&mut registry, &keys);
    let out = |it: &mut PlacementRecord, _: Option<&registry::VolumeRecord>| {
        it.copies[2].leaves = Some(CopyLeave::Out);
        Ok(())
    };
    cluster.change_placement("alice", out).unwrap();
    let again = alone.with(2, 23);
    assert_eq!(desk().swap(&mut registry, &again), SwapOutcome::Conflict(alone.clone()));
    assert_eq!(
        desk().swap(&mut registry, &alone.with(4, 44)),
        SwapOutcome::Conflict(alone.clone())
    );
    assert_eq!(desk().swap(&mut registry, &alone.with(3, 33)), SwapOutcome::Done);
    let record = Membership::new(&mut registry, &keys).volume("alice").unwrap().unwrap().record;
    assert_eq!(record.nodes, ["io0", "io1", "", "io3"]);
    assert_eq!(record.lacking.keys().collect::<Vec<_>>(), ["io0"]);
}

/// It could not have each write.
#[test]
fn a_copy_that_is_smaller_than_the_volume_comes_into_no_record() {
    let (mut registry, keys) = (MemoryRegistry::new(7), ClusterKeys::new("ab12").unwrap());
    let copy = |node: &str| PlacedCopy { has_bytes: Some(4096), ..PlacedCopy::new(node, "fast") };
    let placement = PlacementRecord {
        size_bytes: 8192,
        serves_bytes: Some(4096),
        copies: ["io0", "io1", "io2", "io3"].map(copy).into(),
        ..PlacementRecord::default()
    };
    Membership::new(&mut registry, &keys).place_volume("alice", &placement).unwrap();
    desk().create(&mut registry, &first()).unwrap();
    let alone = first().without(2);
    assert_eq!(desk().swap(&mut registry, &alone), SwapOutcome::Done);
    let both = alone.with(2, 23);
    assert_eq!(desk().swap(&mut registry, &both), SwapOutcome::Done, "all have the users' size");
    let alone = both.without(2);
    assert_eq!(desk().swap(&mut registry, &alone), SwapOutcome::Done);
    let change = |registry: &mut MemoryRegistry, bytes: Option<u64>| {
        let serve = |it: &mut PlacementRecord, _: Option<&registry::VolumeRecord>| {
            (it.serves_bytes, it.copies[2].has_bytes) = (None, bytes);
            Ok(())
        };
        Membership::new(registry, &keys).change_placement("alice", serve).unwrap();
    };
    change(&mut registry, Some(4096));
    let again = alone.with(2, 24);
    assert_eq!(desk().swap(&mut registry, &again), SwapOutcome::Conflict(alone.clone()));
    change(&mut registry, None);
    assert_eq!(desk().swap(&mut registry, &again), SwapOutcome::Done);
    // A copy that is in sync is no obstacle to the changes of the other copies.
    change(&mut registry, Some(4096));
    assert_eq!(desk().swap(&mut registry, &again.taken_by(2)), SwapOutcome::Done);
}

/// A copy that has not heard of the last record finds the record before it in a registry that was
/// restored, and would take the volume over.
#[test]
fn a_record_of_before_a_restore_counts_when_an_operator_says_so() {
    let (mut before, keys) = (MemoryRegistry::new(7), ClusterKeys::new("ab12").unwrap());
    desk().create(&mut before, &first()).unwrap();
    let held = Membership::new(&mut before, &keys).volume("alice").unwrap().expect("a record");
    let mut restored = MemoryRegistry::new(8);
    let swap = keys.next_volume(Swap::new(), "alice", None, &held.record).unwrap();
    assert!(matches!(restored.swap(&swap), Ok(registry::SwapOutcome::Made { .. })));
    assert!(matches!(desk().look(&mut restored), Err(RecordDeskError::PutBack)));
    let next = first().taken_by(2);
    assert_eq!(desk().swap(&mut restored, &next), SwapOutcome::Unknown);
    let ErrandEnd::NotSeen(why) = clerk(restored.clone(), 2, true).look() else { panic!() };
    assert!(why.contains("vrio cluster trust --volumes"), "{why}");
    let trusted = Membership::new(&mut restored, &keys).trust_volumes().unwrap();
    assert_eq!(trusted, ["alice"]);
    assert_eq!(desk().look(&mut restored).unwrap(), first());
    assert_eq!(desk().swap(&mut restored, &next), SwapOutcome::Done);
    assert!(Membership::new(&mut restored, &keys).trust_volumes().unwrap().is_empty());
}

/// The second node is present.
fn swap_of_presence() -> Swap {
    let present = registry::Key::new("/vrio/ab12/present/io1".to_owned()).unwrap();
    Swap::new().put(&present, b"{}".to_vec())
}

/// Records that give a list of outcomes of a recovery, the last outcome first.
struct Outcomes(Vec<Result<SwapOutcome, RecordDeskError>>);

impl VolumeRecords for Outcomes {
    fn look(&mut self) -> Result<Option<VolumeRecord>, RecordDeskError> {
        Ok(None)
    }

    fn create(&mut self, _first: &VolumeRecord) -> Result<(), RecordDeskError> {
        Ok(())
    }

    fn swap(&mut self, _target: &VolumeRecord) -> SwapOutcome {
        SwapOutcome::Unknown
    }

    fn remake(&mut self, _plan: &RecoveryPlan) -> Result<SwapOutcome, RecordDeskError> {
        self.0.pop().unwrap()
    }
}

#[test]
fn a_recovery_without_an_answer_is_not_refused_by_a_later_try() {
    let refused = || Err(RecordDeskError::NotPlaced);
    let records = Outcomes(vec![refused(), Ok(SwapOutcome::Unknown), refused()]);
    let mut clerk = RecordClerk::new(records, "alice", (0, 5), true);
    let (known, record) = (first(), first().taken_by(2));
    let loss = RecoveryLoss::Nothing;
    let plan = RecoveryPlan { known, record: record.clone(), heard: None, unheard: vec![], loss };
    assert!(matches!(clerk.remake(plan.clone()), ErrandEnd::NotRemade(..)), "none was made before");
    let is_unknown = ErrandEnd::Swapped(record, SwapOutcome::Unknown);
    assert_eq!(clerk.remake(plan.clone()), is_unknown);
    assert_eq!(clerk.remake(plan), is_unknown, "the try before may come yet");
}

#[test]
fn an_operator_makes_a_record_anew_while_the_nodes_that_were_not_heard_are_away() {
    let (mut registry, keys) = (MemoryRegistry::new(7), ClusterKeys::new("ab12").unwrap());
    let nodes: Vec<String> = ["io0", "io1", "io2"].map(str::to_owned).to_vec();
    let desk = || desk().with_nodes(nodes.clone(), || 5);
    let known = first().taken_by(2);
    let record = VolumeRecord { epoch: 900, reign: 900, ..known.clone() };
    let plan = (&known, &record);
    assert!(matches!(registry.swap(&swap_of_presence()), Ok(registry::SwapOutcome::Made { .. })));
    let error = desk().remake(&mut registry, plan, (Some(&[2, 0]), &[1])).unwrap_err().to_string();
    assert!(error.contains("\"io1\" is present"), "{error}");
    assert_eq!(desk().find(&mut registry).unwrap(), None, "nothing was changed");
    assert_eq!(
        desk().remake(&mut registry, plan, (Some(&[2, 1]), &[0])).unwrap(),
        SwapOutcome::Done
    );
    assert_eq!(desk().find(&mut registry).unwrap(), Some(record.clone()));
    let again = desk().remake(&mut registry, plan, (None, &[])).unwrap();
    assert_eq!(again, SwapOutcome::Done, "an answer that was lost");
    // A record that is newer than all that was known.
    let later = VolumeRecord { epoch: 1000, reign: 1000, ..known.clone() };
    let found = desk().remake(&mut registry, (&known, &later), (None, &[])).unwrap();
    assert_eq!(found, SwapOutcome::Conflict(record.clone()));
    let held = Membership::new(&mut registry, &keys).volume("alice").unwrap().unwrap();
    let mut restored = MemoryRegistry::new(8);
    let swap = keys.next_volume(Swap::new(), "alice", None, &held.record).unwrap();
    assert!(matches!(restored.swap(&swap), Ok(registry::SwapOutcome::Made { .. })));
    assert!(matches!(desk().look(&mut restored), Err(RecordDeskError::PutBack)));
    let newest = VolumeRecord { epoch: 950, reign: 950, ..known.clone() };
    assert_eq!(
        desk().remake(&mut restored, (&newest, &later), (None, &[])).unwrap(),
        SwapOutcome::Done
    );
    assert_eq!(desk().look(&mut restored).unwrap(), later);
    // A record that was written since the restore, and that no member has told as the newest.
    let other = VolumeRecord { epoch: 2000, reign: 2000, ..later.clone() };
    let last = VolumeRecord { epoch: 3000, reign: 3000, ..later };
    let error = desk().remake(&mut restored, (&other, &last), (None, &[])).unwrap_err();
    assert!(matches!(error, RecordDeskError::OtherHistory(1000)), "{error}");
    // All members have answered, so that none goes on by it.
    let all: (Option<&[u8]>, &[u8]) = (Some(&[0, 1, 2]), &[]);
    let made = desk().remake(&mut restored, (&other, &last), all).unwrap();
    assert_eq!(made, SwapOutcome::Done);
    let mut unplaced = MemoryRegistry::new(9);
    // A node that only the newer list has: not asked, or away.
    let error = desk().remake(&mut unplaced, plan, (Some(&[2, 1]), &[])).unwrap_err();
    assert!(matches!(&error, RecordDeskError::NotAsked(node) if node == "io0"), "{error}");
    assert!(matches!(unplaced.swap(&swap_of_presence()), Ok(registry::SwapOutcome::Made { .. })));
    let error = desk().remake(&mut unplaced, plan, (Some(&[2]), &[0])).unwrap_err().to_string();
    assert!(error.contains("\"io1\" is present"), "{error}");
    let error = desk().placed(true).remake(&mut unplaced, plan, (None, &[])).unwrap_err();
    assert!(matches!(error, RecordDeskError::NotPlaced), "{error}");
}

#[test]
fn a_record_is_replaced_by_the_next_one_alone() {
    let (mut registry, desk) = (MemoryRegistry::new(7), desk());
    assert!(matches!(
        desk.look(&mut registry),
        Err(RecordDeskError::Registry(RegistryError::Damaged { .. }))
    ));
    desk.create(&mut registry, &first()).unwrap();
    // Once more is no harm, and another volume is another matter.
    desk.create(&mut registry, &first()).unwrap();
    let other = VolumeRecord::first(2, BTreeMap::from([(2, 22)]));
    assert!(desk.create(&mut registry, &other).is_err());
    let next = first().taken_by(2);
    assert_eq!(desk.swap(&mut registry, &next), SwapOutcome::Done);
    assert_eq!(desk.swap(&mut registry, &next), SwapOutcome::Done, "it was asked for again");
    assert_eq!(desk.look(&mut registry).unwrap(), next);
    let late = first().without(2);
    assert_eq!(desk.swap(&mut registry, &late), SwapOutcome::Conflict(next.clone()));
    let early = next.with(1, 5).with(3, 6);
    assert_eq!(desk.swap(&mut registry, &early), SwapOutcome::Conflict(next));
}

#[test]
fn a_record_names_the_nodes_and_since_when_their_copies_lack_writes() {
    let mut registry = MemoryRegistry::new(7);
    let nodes = ["io0", "io1", "io2"].map(str::to_owned).to_vec();
    let at = |now_s: fn() -> u64| desk().with_nodes(nodes.clone(), now_s);
    let stored = |registry: &mut MemoryRegistry| {
        let keys = ClusterKeys::new("ab12").unwrap();
        let held = Membership::new(registry, &keys).volume("alice").unwrap();
        held.unwrap().record
    };
    at(|| 5).create(&mut registry, &first()).unwrap();
    assert_eq!(stored(&mut registry).nodes, nodes);
    assert_eq!(stored(&mut registry).lacking, [("io0".to_owned(), 5)].into());
    let mut next = first().without(2);
    assert_eq!(at(|| 6).swap(&mut registry, &next), SwapOutcome::Done);
    let both = [("io0".to_owned(), 5), ("io2".to_owned(), 6)].into();
    assert_eq!(stored(&mut registry).lacking, both, "since the first record without it");
    next = next.with(2, 23);
    assert_eq!(at(|| 7).swap(&mut registry, &next), SwapOutcome::Done);
    assert_eq!(stored(&mut registry).lacking, [("io0".to_owned(), 5)].into());
}

#[test]
fn a_swap_without_an_answer_is_unknown_until_it_is_asked_for_again() {
    for truth in [UnknownSwap::Made, UnknownSwap::Never, UnknownSwap::Later] {
        let (mut registry, desk) = (MemoryRegistry::new(7), desk());
        desk.create(&mut registry, &first()).unwrap();
        let next = first().without(2);
        registry.lose_answer(truth);
        assert_eq!(desk.swap(&mut registry, &next), SwapOutcome::Unknown);
        registry.set_away(true);
        assert_eq!(desk.swap(&mut registry, &next), SwapOutcome::Unknown);
        assert!(matches!(
            desk.look(&mut registry),
            Err(RecordDeskError::Registry(RegistryError::Away { .. }))
        ));
        registry.set_away(false);
        assert_eq!(desk.swap(&mut registry, &next), SwapOutcome::Done);
        assert_eq!(desk.look(&mut registry).unwrap(), next);
    }
}

#[test]
fn a_state_comes_back_as_it_was_kept_and_damage_has_a_name() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("alice.member");
    let file = StateFile::new(&path);
    assert_eq!(file.load().unwrap(), None, "a new member has promised nothing");
    let durable =
        Durable { promised: 9, record: Some(first()), note: vec![1, 2, 3], ..Durable::default() };
    file.keep(&durable).unwrap();
    assert_eq!(file.load().unwrap(), Some(durable.clone()));
    let mut bytes = fs::read(&path).unwrap();
    bytes[0] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let error = file.load().unwrap_err();
    assert!(matches!(error, StateFileError::Damaged { .. }));
    assert!(error.to_string().contains("alice.member"), "{error}");
    let missing = StateFile::new(&home.path().join("none/alice.member"));
    assert!(matches!(missing.keep(&durable), Err(StateFileError::System { .. })));
}

fn clerk(registry: MemoryRegistry, id: u8, has_state: bool) -> RecordClerk<RegistryRecords> {
    let records = RegistryRecords { desk: desk(), registry: Box::new(registry) };
    RecordClerk::new(records, "alice", (id, 77), has_state)
}

#[test]
fn the_first_member_makes_the_first_record_and_the_others_wait_for_it() {
    let end = clerk(MemoryRegistry::new(7), 1, false).look();
    assert!(matches!(&end, ErrandEnd::NotSeen(why) if why.contains("no record")), "{end:?}");
    let mut first = clerk(MemoryRegistry::new(7), 0, false);
    let record = VolumeRecord::first(0, BTreeMap::from([(0, 77)]));
    assert_eq!(first.look(), ErrandEnd::Seen(record.clone()));
    assert_eq!(first.look(), ErrandEnd::Seen(record.clone()));
    let next = record.with(1, 88);
    assert_eq!(first.swap(next.clone()), ErrandEnd::Swapped(next.clone(), SwapOutcome::Done));
    assert_eq!(first.look(), ErrandEnd::Seen(next));
}

#[test]
fn a_member_that_has_lost_its_state_swaps_no_record_before_it_looks() {
    let mut registry = MemoryRegistry::new(7);
    let two = VolumeRecord::first(0, BTreeMap::from([(0, 70)])).with(1, 88);
    desk().create(&mut registry, &two).unwrap();
    let mut clerk = clerk(registry.clone(), 1, false);
    let next = two.taken_by(1);
    assert_eq!(clerk.swap(next.clone()), ErrandEnd::Swapped(next, SwapOutcome::Unknown));
    assert_eq!(desk().look(&mut registry).unwrap(), two);
    let ErrandEnd::NoRecord(why) = clerk.look() else { panic!("it has forgotten its promises") };
    assert!(why.contains("it has no state"), "{why}");
}

#[test]
fn a_member_with_a_state_makes_no_record_in_an_empty_registry() {
    for id in [0, 1] {
        let ErrandEnd::Lost(None, why) = clerk(MemoryRegistry::new(7), id, true).look() else {
            panic!("it went on without a record");
        };
        assert!(why.contains("no record of volume alice") && why.contains("recover"), "{why}");
    }
    // A registry that does not answer has not lost the record.
    let away = MemoryRegistry::new(7);
    away.set_away(true);
    let end = clerk(away, 0, true).look();
    assert!(matches!(&end, ErrandEnd::NotSeen(why) if why.contains("not answered")), "{end:?}");
}

/// A registry that says nothing until the test lets it.
struct Silent(Receiver<()>);

impl VolumeRecords for Silent {
    fn look(&mut self) -> Result<Option<VolumeRecord>, RecordDeskError> {
        let _ = self.0.recv();
        Ok(Some(first()))
    }

    fn create(&mut self, _first: &VolumeRecord) -> Result<(), RecordDeskError> {
        Err(RecordDeskError::NoAnswer("it is silent".to_owned()))
    }

    fn swap(&mut self, _target: &VolumeRecord) -> SwapOutcome {
        SwapOutcome::Unknown
    }

    fn remake(&mut self, _plan: &RecoveryPlan) -> Result<SwapOutcome, RecordDeskError> {
        Ok(SwapOutcome::Unknown)
    }
}

#[derive(Default)]
struct CountedTasks(u64);

impl VolumeTasks for CountedTasks {
    fn cuts(&mut self) -> Result<BTreeSet<Place>, String> {
        Ok(BTreeSet::new())
    }

    fn carry_out(&mut self, _task: VolumeTask) -> VolumeTaskEnd {
        self.0 += 1;
        if self.0 == 1 { VolumeTaskEnd::Done } else { VolumeTaskEnd::Failed("no".to_owned()) }
    }
}

fn end_of(lanes: &mut DeskLanes) -> ErrandEnd {
    loop {
        if let Some(end) = lanes.take() {
            return end;
        }
        std::thread::yield_now();
    }
}

/// A primary that remembers a note must not wait for a registry: its pings come behind the note.
#[test]
fn a_registry_that_does_not_answer_holds_up_neither_the_private_file_nor_the_volume() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("alice.member");
    let (answer, silent) = channel();
    let records: Box<dyn VolumeRecords> = Box::new(Silent(silent));
    let work = DeskWork {
        state: StateFile::new(&path),
        clerk: RecordClerk::new(records, "alice", (1, 77), true),
        tasks: Box::new(CountedTasks::default()),
    };
    let (mut lanes, threads) = DeskLanes::start(work, &Waker::none()).unwrap();
    lanes.put(Errand::Look);
    for at in 1..=40_u8 {
        let durable = Durable {
            promised: at.into(),
            record: Some(first()),
            note: vec![at],
            ..Durable::default()
        };
        lanes.put(Errand::Keep(durable.clone()));
        assert_eq!(end_of(&mut lanes), ErrandEnd::Kept);
        assert_eq!(StateFile::new(&path).load().unwrap(), Some(durable));
    }
    lanes.put(Errand::Volume(VolumeTask::GoBack(None)));
    assert_eq!(end_of(&mut lanes), ErrandEnd::Volume(VolumeTaskEnd::Done));
    lanes.put(Errand::Volume(VolumeTask::GoBack(None)));
    assert_eq!(end_of(&mut lanes), ErrandEnd::Volume(VolumeTaskEnd::Failed("no".to_owned())));
    // Errands for a thread that hangs have a bound, and each has an end.
    let target = first().without(2);
    (0..60).for_each(|_| lanes.put(Errand::Swap(target.clone())));
    let unknown = ErrandEnd::Swapped(target, SwapOutcome::Unknown);
    assert_eq!(end_of(&mut lanes), unknown);
    // A swap without an outcome looks at the record as well.
    drop(answer);
    let mut ends: Vec<_> = (0..60).map(|_| end_of(&mut lanes)).collect();
    let seen = ends.iter().position(|end| *end == ErrandEnd::Seen(first()));
    ends.remove(seen.expect("the look has an end"));
    assert!(ends.iter().all(|end| *end == unknown));
    assert!(lanes.is_empty());
    // A file that cannot be written is said by name, and the threads end with their host.
    fs::remove_dir_all(home.path()).unwrap();
    lanes.put(Errand::Keep(Durable::default()));
    assert!(matches!(end_of(&mut lanes), ErrandEnd::NotKept(why) if why.contains("alice.member")));
    drop(lanes);
    threads.join();
}
