//! Another size for a placed volume: it only grows. Pure functions of what the registry holds.
//!
//! ```text
//!   asked ─▶ the agent of each node has its copy grow, and tells the copy's size
//!         ─▶ all copies in sync have grown: in force ─▶ the node that serves tells the users
//! ```
//!
//! *In force* is one swap beside the record of the members, which must be unchanged. A copy that is
//! smaller than the size in force comes into sync in no later record. So each copy in sync has room
//! for each write of a user.

use registry::membership::ClusterContents;
use registry::{PlacementRecord, VolumeRecord};

use crate::copies::members;
use crate::placement::{promised, room};

/// Whether the pools of the copies can promise the volume as much as it gets. A copy on a node that
/// is away grows when its node is back. A size that was promised before asks nothing of a pool, so
/// that a growth can be taken back while a pool has a problem.
///
/// # Errors
/// The nodes that lack room, with their numbers.
pub fn check_growth(
    contents: &ClusterContents,
    placement: &PlacementRecord,
    size_bytes: u64,
    size: fn(u64) -> String,
) -> Result<(), String> {
    let more_bytes = size_bytes.saturating_sub(placement.size_bytes);
    if more_bytes == 0 {
        return Ok(());
    }
    let promised = promised(contents);
    let lacks = |(node, pool): (&String, &String)| {
        let known = contents.nodes.iter().find(|it| it.record.name == *node)?;
        let presence = known.presence.as_ref()?;
        let Some(space) = presence.pools.iter().find(|it| it.name == *pool) else {
            return Some(format!("{node}: its pool {pool} is not open"));
        };
        if !space.problem.is_empty() {
            return Some(format!("{node}: its pool {pool}: {}", space.problem));
        }
        let room_bytes = room((node, space), &promised);
        (room_bytes < more_bytes).then(|| {
            format!(
                "{node}: pool {pool} has {} that are free and not promised to other volumes",
                size(room_bytes)
            )
        })
    };
    let stays = placement.members().filter(|(_, copy)| copy.leaves.is_none());
    let lacking: Vec<_> = stays.filter_map(|(_, copy)| lacks((&copy.node, &copy.pool))).collect();
    if lacking.is_empty() {
        return Ok(());
    }
    Err(format!(
        "it cannot get {} more: {}. Make room there, or have these copies elsewhere (`vrio volume \
         copies --replace`), or promise more than there is (--overcommit); nothing was changed",
        size(more_bytes),
        lacking.join("; ")
    ))
}

/// Asks for a size, in a placement beside the record of the volume's members. While the last growth
/// is not in force, any size that the users do not have yet can be asked for, also their own.
///
/// # Errors
/// Why the volume cannot get this size.
pub fn ask_size(
    placement: &mut PlacementRecord,
    record: Option<&VolumeRecord>,
    size_bytes: u64,
    size: fn(u64) -> String,
) -> Result<(), String> {
    members(record)?;
    if placement.removing.is_some() {
        return Err("it is being removed".to_owned());
    }
    let served_bytes = placement.served_bytes();
    if size_bytes < served_bytes {
        return Err(format!(
            "its guests have {}, and a volume with copies on several nodes gets no smaller size: \
             create another volume (--size {size_bytes}B), and copy the data",
            size(served_bytes)
        ));
    }
    let before_bytes = placement.size_bytes;
    placement.size_bytes = size_bytes;
    placement.serves_bytes = Some(served_bytes).filter(|bytes| *bytes < size_bytes);
    for copy in placement.copies.iter_mut().filter(|copy| !copy.node.is_empty()) {
        let has_bytes = copy.has_bytes.unwrap_or(before_bytes);
        copy.has_bytes = Some(has_bytes).filter(|bytes| *bytes < size_bytes);
    }
    Ok(())
}

/// Gives a volume that begins as a snapshot the snapshot's size, if that is larger: a snapshot that
/// was taken while its volume grew has the size that the copy of its node had. A volume that was
/// served before has its size.
pub fn fit_snapshot(
    placement: &mut PlacementRecord,
    record: Option<&VolumeRecord>,
    snapshot_bytes: u64,
) {
    let before_bytes = placement.size_bytes;
    let begins = record.is_none() && placement.removing.is_none() && placement.from.is_some();
    if !begins || snapshot_bytes <= before_bytes {
        return;
    }
    placement.size_bytes = snapshot_bytes;
    // The first copy is the clone. The other ones may be there with the size of before.
    for copy in placement.copies.iter_mut().skip(1).filter(|copy| !copy.node.is_empty()) {
        copy.has_bytes.get_or_insert(before_bytes);
    }
}

/// The copy of a node has this size, as the node tells.
pub fn tell_size(placement: &mut PlacementRecord, node: &str, bytes: u64) {
    let size_bytes = placement.size_bytes;
    let copy = placement.copies.iter_mut().find(|copy| copy.node == node);
    if let Some(has_bytes) = copy.map(|copy| &mut copy.has_bytes) {
        *has_bytes = has_bytes.map(|_| bytes).filter(|bytes| *bytes < size_bytes);
    }
}

/// Whether all copies in sync have the size that the volume gets, and its users do not have it yet.
pub(crate) fn is_grown(placement: &PlacementRecord, members: &replica::VolumeRecord) -> bool {
    let has_grown = |place: &u8| {
        let copy = placement.copies.get(usize::from(*place));
        copy.is_some_and(|copy| copy.has_bytes.is_none())
    };
    placement.serves_bytes.is_some()
        && members.in_sync.keys().chain([&members.primary]).all(has_grown)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use registry::membership::KnownNode;
    use registry::{NodeRecord, PlacedCopy, PoolSpace, PresenceRecord, Stamp};
    use replica::VolumeRecord as Members;
    use replica::wire::encode_record;

    use super::*;
    use crate::copies::{CopyStep, next_steps};

    fn size(bytes: u64) -> String {
        format!("{bytes} bytes")
    }

    fn record(members: &Members) -> VolumeRecord {
        let content = [&[7; 16][..], &encode_record(members)].concat();
        VolumeRecord { epoch: members.epoch, content, ..VolumeRecord::default() }
    }

    /// Three copies, of which the last one is not in sync.
    fn alice() -> (PlacementRecord, VolumeRecord) {
        let copies = ["io1", "io2", "io3"].map(|node| PlacedCopy::new(node, "fast"));
        let placement = PlacementRecord {
            size_bytes: 100,
            copies: copies.into(),
            ..PlacementRecord::default()
        };
        (placement, record(&Members::first(0, BTreeMap::from([(0, 1), (1, 2)]))))
    }

    fn contents(placement: &PlacementRecord, record: &VolumeRecord) -> ClusterContents {
        let node = |name: &str| {
            let record =
                NodeRecord { name: name.to_owned(), key: None, joined_s: 1, token: String::new() };
            let pools = vec![PoolSpace::new("fast", 1600, 0)];
            let presence = PresenceRecord { pools, ..PresenceRecord::default() };
            KnownNode { record, presence: Some(presence) }
        };
        ClusterContents {
            stamp: Stamp { store: 1, revision: 1 },
            cluster: None,
            nodes: ["io1", "io2", "io3"].map(node).into(),
            tokens: Vec::new(),
            volumes: vec![("alice".to_owned(), record.clone())],
            placements: vec![("alice".to_owned(), placement.clone())],
            unreadable: Vec::new(),
        }
    }

    fn steps(placement: &PlacementRecord, record: &VolumeRecord) -> Vec<CopyStep> {
        let steps = next_steps(&contents(placement, record), Some("io1"), 1, size);
        steps.into_iter().map(|(_, step)| step.expect("it can be taken")).collect()
    }

    #[test]
    fn a_volume_gets_the_size_of_the_snapshot_that_it_begins_as_before_it_is_served() {
        let (mut placement, both) = alice();
        fit_snapshot(&mut placement, None, 300);
        assert_eq!(placement.size_bytes, 100, "it begins empty");
        placement.from = Some("bob@monday.1.2".to_owned());
        for (record, bytes) in [(None, 99), (Some(&both), 300)] {
            fit_snapshot(&mut placement, record, bytes);
            assert_eq!(placement.size_bytes, 100);
        }
        fit_snapshot(&mut placement, None, 300);
        assert_eq!((placement.size_bytes, placement.served_bytes()), (300, 300));
        assert_eq!([0, 1, 2].map(|place| placement.is_small(place)), [false, true, true]);
        tell_size(&mut placement, "io2", 300);
        assert!(!placement.is_small(1));
        let removing = Some(Vec::new());
        let mut removed = PlacementRecord { removing, ..placement };
        fit_snapshot(&mut removed, None, 500);
        assert_eq!(removed.size_bytes, 300);
    }

    #[test]
    fn a_size_is_in_force_when_all_copies_in_sync_have_it_and_a_small_copy_is_known() {
        let (mut placement, both) = alice();
        ask_size(&mut placement, Some(&both), 300, size).unwrap();
        assert_eq!((placement.size_bytes, placement.served_bytes()), (300, 100));
        tell_size(&mut placement, "io1", 300);
        tell_size(&mut placement, "io2", 200);
        tell_size(&mut placement, "io9", 300);
        assert_eq!(steps(&placement, &both), [], "io2 has not grown");
        let error = CopyStep::Serve.take(&mut placement, Some(&both)).unwrap_err();
        assert!(error.contains("has not grown"), "{error}");
        assert!(!placement.is_small(1) && !placement.is_small(2), "for the size in force");
        tell_size(&mut placement, "io2", 301);
        assert_eq!(steps(&placement, &both), [CopyStep::Serve]);
        CopyStep::Serve.take(&mut placement, Some(&both)).unwrap();
        assert_eq!((placement.served_bytes(), steps(&placement, &both)), (300, vec![]));
        assert_eq!(
            [0, 1, 2, 9].map(|place| placement.is_small(place)),
            [false, false, true, false]
        );
        // Another growth, which the small copy did not see.
        ask_size(&mut placement, Some(&both), 500, size).unwrap();
        assert!(placement.is_small(2) && !placement.is_small(1));
        tell_size(&mut placement, "io3", 300);
        assert!(!placement.is_small(2));
        // A copy that comes meanwhile begins with the size in force.
        CopyStep::Add(PlacedCopy::new("io4", "fast")).take(&mut placement, Some(&both)).unwrap();
        assert_eq!(placement.copies[3].has_bytes, Some(300));
    }

    #[test]
    fn a_volume_gets_no_smaller_and_a_growth_that_cannot_be_is_taken_back() {
        let (mut placement, both) = alice();
        let before = placement.clone();
        let error = ask_size(&mut placement, Some(&both), 99, size).unwrap_err();
        assert!(error.contains("its guests have 100 bytes") && error.contains("no smaller"));
        let error = ask_size(&mut placement, None, 300, size).unwrap_err();
        assert!(error.contains("never served"), "{error}");
        ask_size(&mut placement, Some(&both), 100, size).unwrap();
        assert_eq!(placement, before, "nothing has changed");
        ask_size(&mut placement, Some(&both), 300, size).unwrap();
        tell_size(&mut placement, "io1", 300);
        ask_size(&mut placement, Some(&both), 200, size).unwrap();
        let told = placement.copies.iter().map(|copy| copy.has_bytes).collect::<Vec<_>>();
        assert_eq!(told, [None, Some(100), Some(100)]);
        ask_size(&mut placement, Some(&both), 100, size).unwrap();
        assert_eq!(placement, before, "the old size stays in force");
        placement.removing = Some(vec!["io1".to_owned()]);
        assert!(ask_size(&mut placement, Some(&both), 300, size).is_err());
    }

    #[test]
    fn a_pool_without_room_is_named_with_its_numbers() {
        let (placement, both) = alice();
        let mut all = contents(&placement, &both);
        assert_eq!(check_growth(&all, &placement, 1600, size), Ok(()));
        let error = check_growth(&all, &placement, 1700, size).unwrap_err();
        assert!(error.starts_with("it cannot get 1600 bytes more: io1: pool fast has 1500 bytes"));
        assert!(error.contains("--replace") && error.contains("--overcommit"), "{error}");
        let pools = |all: &mut ClusterContents, at: usize, pools: Vec<PoolSpace>| {
            all.nodes[at].presence.as_mut().unwrap().pools = pools;
        };
        pools(&mut all, 0, vec![PoolSpace::new("fast", 1600, 1500)]);
        let problem = "it is full".to_owned();
        pools(&mut all, 1, vec![PoolSpace { problem, ..PoolSpace::new("fast", 1600, 0) }]);
        pools(&mut all, 2, vec![]);
        let error = check_growth(&all, &placement, 300, size).unwrap_err();
        for part in [
            "io1: pool fast has 100 bytes",
            "io2: its pool fast: it is full",
            "io3: its pool fast is not open",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }
        // The present size, and a size that is taken back, ask nothing of these pools.
        assert_eq!(
            [99, 100].map(|bytes| check_growth(&all, &placement, bytes, size).is_ok()),
            [true; 2]
        );
        // A node that is away grows its copy when it is back.
        all.nodes.iter_mut().for_each(|node| node.presence = None);
        assert_eq!(check_growth(&all, &placement, 1700, size), Ok(()));
    }
}
