//! Changes of a placed volume's copies: which copies come, which must go, and the next step of
//! each. Pure functions of what the registry holds.
//!
//! ```text
//!   add      ─▶ a copy at a new place ─▶ it is filled ─▶ in sync
//!   replace  ─▶ the same, and when it is in sync, the other copy must go
//!   leave    ─▶ asked ─▶ the members go on without it ─▶ out ─▶ its node removes it ─▶ gone
//! ```
//!
//! *Out* is a promise: the change is made in one swap with the record of the members, which does
//! not have the copy in sync, and no later record has. Only then its node removes its data.

use registry::membership::ClusterContents;
use registry::{COPY_PLACES_MAX, CopyLeave, PlacedCopy, PlacementRecord, VolumeRecord};
use replica::MEMBERS_MAX;
use replica::wire::decode_formed_record;

use crate::placement::{PlacementAsk, place};
use crate::sizes::is_grown;

/// A step towards the copies that a volume must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyStep {
    /// This copy comes.
    Add(PlacedCopy),
    /// The copy at this place must go.
    Leave(u8),
    /// The copy at this place is out.
    Out(u8),
    /// The copy at this place was on a node that the cluster does not know any more.
    Gone(u8),
    /// The volume has begun with its snapshot: no later copy begins with it.
    Begun,
    /// All copies in sync have the size that the volume gets: its users get it.
    Serve,
}

/// The members of a record: the primary, and the members in sync.
pub(crate) fn members(record: Option<&VolumeRecord>) -> Result<replica::VolumeRecord, String> {
    let record = record.ok_or("it was never served: its first node must open it first")?;
    let decoded = decode_formed_record(&record.content);
    decoded.map(|(_, members)| members).map_err(|error| error.to_string())
}

impl CopyStep {
    /// Takes the step in a placement, beside the record of the volume's members.
    ///
    /// # Errors
    /// Why the step is none any more.
    pub fn take(
        &self,
        placement: &mut PlacementRecord,
        record: Option<&VolumeRecord>,
    ) -> Result<(), String> {
        let members = members(record)?;
        match self {
            Self::Add(copy) => add(placement, copy),
            Self::Leave(at) => leave(placement, &members, *at),
            Self::Out(at) => {
                if members.primary == *at || members.in_sync.contains_key(at) {
                    return Err("the copy is in sync".to_owned());
                }
                match placement.copies.get_mut(usize::from(*at)) {
                    Some(copy) if copy.leaves.is_some() => copy.leaves = Some(CopyLeave::Out),
                    _ => return Err("the copy does not leave".to_owned()),
                }
                Ok(())
            }
            Self::Begun => {
                placement.from = None;
                Ok(())
            }
            Self::Gone(at) => match placement.copies.get_mut(usize::from(*at)) {
                Some(copy) if copy.leaves == Some(CopyLeave::Out) => {
                    *copy = PlacedCopy::default();
                    Ok(())
                }
                _ => Err("the copy is not out".to_owned()),
            },
            Self::Serve if is_grown(placement, &members) => {
                placement.serves_bytes = None;
                Ok(())
            }
            Self::Serve => Err("it does not grow, or a copy in sync has not grown".to_owned()),
        }
    }
}

fn add(placement: &mut PlacementRecord, copy: &PlacedCopy) -> Result<(), String> {
    if let Some((_, known)) = placement.copy_of(&copy.node) {
        return Err(match known.leaves {
            None => format!("node {} has a copy already", copy.node),
            Some(_) => format!("the last copy of node {} has not gone yet", copy.node),
        });
    }
    if placement.removing.is_some() {
        return Err("it is being removed".to_owned());
    }
    check_room(placement)?;
    if let Some(at) = copy.replaces {
        let stays = |(other, it): (u8, &PlacedCopy)| other == at && it.leaves.is_none();
        if !placement.members().any(stays) || placement.replacement_of(at).is_some() {
            return Err("the copy that it replaces has gone, leaves, or is replaced".to_owned());
        }
    }
    // Its node makes it with the size in force, and then has it grow.
    placement.copies.push(PlacedCopy { has_bytes: placement.serves_bytes, ..copy.clone() });
    Ok(())
}

/// Whether the volume can have one more copy.
fn check_room(placement: &PlacementRecord) -> Result<(), String> {
    if placement.members().count() >= MEMBERS_MAX {
        return Err(format!(
            "it has {MEMBERS_MAX} copies, the most that a volume has: remove one by `vrio volume \
             copies --remove`"
        ));
    }
    if placement.copies.len() >= COPY_PLACES_MAX {
        return Err(format!(
            "its copies have had {COPY_PLACES_MAX} places, the most that a volume has in its life: \
             create another volume, and copy its data"
        ));
    }
    Ok(())
}

fn leave(
    placement: &mut PlacementRecord,
    members: &replica::VolumeRecord,
    at: u8,
) -> Result<(), String> {
    let stays = |(other, copy): &(u8, &PlacedCopy)| *other != at && copy.leaves.is_none();
    let is_in = |(other, _): (u8, &PlacedCopy)| members.in_sync.contains_key(&other);
    if !placement.members().filter(stays).any(is_in) {
        return Err(
            "no other copy that stays is in sync, so the last writes would go: add a copy, or wait \
             until another one is in sync"
                .to_owned(),
        );
    }
    let Some(copy) = placement.copies.get_mut(usize::from(at)) else {
        return Err("there is no such copy".to_owned());
    };
    if !copy.node.is_empty() {
        copy.leaves.get_or_insert(CopyLeave::Asked);
    }
    // The copy in its stead has its task.
    let replaces = copy.replaces.take();
    for copy in placement.copies.iter_mut().filter(|copy| copy.replaces == Some(at)) {
        copy.replaces = replaces;
    }
    Ok(())
}

/// The choice of one more copy of a volume: on this node, or where the rules of the volume want
/// it. With `replaces` the copy at that place goes when the new one is in sync.
///
/// # Errors
/// Why there is no choice, with each node's reason and numbers.
pub fn another_copy(
    contents: &ClusterContents,
    placement: &PlacementRecord,
    (on, replaces): (Option<&str>, Option<u8>),
    (now_s, size): (u64, fn(u64) -> String),
) -> Result<PlacedCopy, String> {
    check_room(placement)?;
    let ask = PlacementAsk {
        size_bytes: placement.size_bytes,
        copies: 1,
        on: on.iter().map(|&node| node.to_owned()).collect(),
        class: placement.rules.class.clone(),
        pool: None,
        domains: placement.rules.domains.clone(),
        overcommits: placement.rules.overcommits,
        beside: placement.placed().map(|(_, copy)| copy.node.clone()).collect(),
        instead: replaces
            .and_then(|at| placement.copies.get(usize::from(at)))
            .map(|copy| copy.node.clone()),
    };
    let copy = place(contents, &ask, size)?.remove(0);
    Ok(PlacedCopy { replaces, since_s: Some(now_s), ..copy })
}

/// The next steps of the volumes that a node serves, which its agent takes, or of all volumes. A
/// step that cannot be taken has its reason.
pub fn next_steps(
    contents: &ClusterContents,
    node: Option<&str>,
    now_s: u64,
    size: fn(u64) -> String,
) -> Vec<(String, Result<CopyStep, String>)> {
    let mut steps = Vec::new();
    for (name, placement) in contents.placements.iter().filter(|(_, it)| it.removing.is_none()) {
        let record = contents.volumes.iter().find(|(known, _)| known == name);
        let Some((_, record)) = record else { continue };
        // A copy may have newer writes than the record says.
        if record.was_put_back(contents.stamp.store) {
            continue;
        }
        let Ok(members) = members(Some(record)) else { continue };
        let primary = placement.copies.get(usize::from(members.primary));
        if node.is_some_and(|node| primary.is_none_or(|copy| copy.node != node)) {
            continue;
        }
        let known = (contents, placement, record);
        if let Some(step) = next_step(known, &members, now_s, size) {
            steps.push((name.clone(), step));
        }
    }
    steps
}

fn next_step(
    (contents, placement, record): (&ClusterContents, &PlacementRecord, &VolumeRecord),
    members: &replica::VolumeRecord,
    now_s: u64,
    size: fn(u64) -> String,
) -> Option<Result<CopyStep, String>> {
    // Its first copy was there before its record.
    if placement.from.is_some() {
        return Some(Ok(CopyStep::Begun));
    }
    let is_in = |at: u8| members.primary == at || members.in_sync.contains_key(&at);
    let node = |name: &str| contents.nodes.iter().find(|it| it.record.name == name);
    for (at, copy) in placement.placed() {
        match (copy.leaves, copy.replaces) {
            (None, Some(other)) if is_in(at) => return Some(Ok(CopyStep::Leave(other))),
            (Some(CopyLeave::Asked), _) if !is_in(at) => return Some(Ok(CopyStep::Out(at))),
            (Some(CopyLeave::Out), _) if node(&copy.node).is_none() => {
                return Some(Ok(CopyStep::Gone(at)));
            }
            _ => {}
        }
    }
    if is_grown(placement, members) {
        return Some(Ok(CopyStep::Serve));
    }
    let after_s = placement.rules.rebuild_after_s?;
    let is_replaced = |at: u8| placement.replacement_of(at).is_some();
    let late = placement.members().find(|(at, copy)| {
        // The record is older than a copy that has just come.
        let since_s = record.lacking.get(&copy.node).copied().max(copy.since_s);
        let is_late = since_s.is_some_and(|since_s| now_s.saturating_sub(since_s) >= after_s);
        let is_away = node(&copy.node).is_none_or(|node| node.presence.is_none());
        is_late && is_away && copy.leaves.is_none() && !is_in(*at) && !is_replaced(*at)
    });
    let (at, _) = late?;
    let copy = another_copy(contents, placement, (None, Some(at)), (now_s, size));
    Some(copy.map(CopyStep::Add))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use registry::membership::KnownNode;
    use registry::{NodeRecord, PlacementRules, PoolSpace, PresenceRecord, Stamp};
    use replica::VolumeRecord as Members;
    use replica::wire::encode_record;

    use super::*;

    fn size(bytes: u64) -> String {
        format!("{bytes} bytes")
    }

    /// A cluster of four nodes in three racks, with a volume on the first two.
    struct Rack {
        contents: ClusterContents,
        now_s: u64,
    }

    impl Rack {
        fn new(rules: PlacementRules) -> Self {
            let racks = [("io1", "r1"), ("io2", "r2"), ("io3", "r1"), ("io4", "r3")];
            let placement = PlacementRecord {
                size_bytes: 100,
                copies: ["io1", "io2"].map(|node| PlacedCopy::new(node, "fast")).into(),
                rules,
                ..PlacementRecord::default()
            };
            let contents = ClusterContents {
                stamp: Stamp { store: 1, revision: 1 },
                cluster: None,
                nodes: racks.map(|(name, rack)| node(name, rack)).into(),
                tokens: Vec::new(),
                volumes: Vec::new(),
                placements: vec![("alice".to_owned(), placement)],
                unreadable: Vec::new(),
            };
            let mut rack = Self { contents, now_s: 1000 };
            rack.record(&Members::first(0, BTreeMap::from([(0, 1), (1, 2)])));
            rack
        }

        /// The members' record, as their primary writes it.
        fn record(&mut self, members: &Members) {
            let content = [&[7; 16][..], &encode_record(members)].concat();
            let placement = &self.contents.placements[0].1;
            let lacks = placement.members().filter(|(at, _)| !members.in_sync.contains_key(at));
            let lacking = lacks.map(|(_, copy)| (copy.node.clone(), self.now_s)).collect();
            let record = VolumeRecord {
                epoch: members.epoch,
                content,
                lacking,
                nodes: placement.nodes(),
                ..VolumeRecord::default()
            };
            self.contents.volumes = vec![("alice".to_owned(), record)];
        }

        fn placement(&mut self) -> &mut PlacementRecord {
            &mut self.contents.placements[0].1
        }

        fn take(&mut self, step: &CopyStep) -> Result<(), String> {
            let record = self.contents.volumes[0].1.clone();
            step.take(self.placement(), Some(&record))
        }

        fn steps(&self, node: &str) -> Vec<Result<CopyStep, String>> {
            let steps = next_steps(&self.contents, Some(node), self.now_s, size);
            steps.into_iter().map(|(_, step)| step).collect()
        }

        /// Takes each next step of a node, until there is none.
        fn settle(&mut self, node: &str) {
            for _ in 0..16 {
                let Some(Ok(step)) = self.steps(node).pop() else { return };
                self.take(&step).unwrap();
            }
            panic!("the steps have no end: {:?}", self.steps(node));
        }
    }

    fn node(name: &str, rack: &str) -> KnownNode {
        let key = Some("key".to_owned());
        let record = NodeRecord { name: name.to_owned(), key, joined_s: 1, token: String::new() };
        let presence = PresenceRecord {
            addresses: vec!["10.0.0.1:4870".to_owned()],
            pools: vec![PoolSpace::new("fast", 1600, 0)],
            domain: [("rack".to_owned(), rack.to_owned())].into(),
            ..PresenceRecord::default()
        };
        KnownNode { record, presence: Some(presence) }
    }

    fn racks() -> PlacementRules {
        PlacementRules { domains: vec!["rack".to_owned()], ..PlacementRules::default() }
    }

    #[test]
    fn a_volume_begins_with_its_snapshot_once() {
        let mut rack = Rack::new(racks());
        rack.placement().from = Some("golden@v1.2.3".to_owned());
        let records = std::mem::take(&mut rack.contents.volumes);
        assert_eq!(rack.steps("io1"), [], "its first copy may not be there yet");
        rack.contents.volumes = records;
        assert_eq!(rack.steps("io1"), [Ok(CopyStep::Begun)]);
        rack.settle("io1");
        assert_eq!((rack.placement().from.clone(), rack.steps("io1")), (None, vec![]));
    }

    #[test]
    fn a_copy_is_replaced_when_the_new_one_is_in_sync() {
        let mut rack = Rack::new(racks());
        let copy = {
            let placement = rack.placement().clone();
            another_copy(&rack.contents, &placement, (None, Some(1)), (7, size)).unwrap()
        };
        // Not io3, which is in the rack of io1.
        assert_eq!((&*copy.node, copy.replaces), ("io4", Some(1)));
        rack.take(&CopyStep::Add(copy.clone())).unwrap();
        assert!(rack.take(&CopyStep::Add(copy)).unwrap_err().contains("has a copy already"));
        assert_eq!(rack.steps("io1"), [], "it is not filled yet");
        let three = Members::first(0, BTreeMap::from([(0, 1), (1, 2)])).with(2, 3);
        rack.record(&three);
        assert_eq!(rack.steps("io2"), [], "another node serves the volume");
        assert_eq!(rack.steps("io1"), [Ok(CopyStep::Leave(1))]);
        rack.settle("io1");
        assert_eq!(rack.placement().copies[1].leaves, Some(CopyLeave::Asked));
        assert_eq!(rack.placement().copies[2].replaces, None);
        let error = rack.take(&CopyStep::Out(1)).unwrap_err();
        assert!(error.contains("in sync"), "{error}");
        rack.record(&three.without(1));
        rack.settle("io1");
        assert_eq!(rack.placement().copies[1].leaves, Some(CopyLeave::Out));
        assert_eq!(rack.placement().nodes(), ["io1", "", "io4"]);
        assert!(rack.take(&CopyStep::Gone(0)).is_err(), "it has not left");
        // Its node is not in the cluster any more, so it will never say that it has removed it.
        rack.contents.nodes.remove(1);
        rack.settle("io1");
        assert_eq!(rack.placement().copies[1], PlacedCopy::default());
    }

    #[test]
    fn the_last_writes_never_go() {
        let mut rack = Rack::new(PlacementRules::default());
        let both = Members::first(0, BTreeMap::from([(0, 1), (1, 2)]));
        rack.record(&both.without(1));
        let error = rack.take(&CopyStep::Leave(0)).unwrap_err();
        assert!(error.contains("the last writes would go"), "{error}");
        // The copy that lacks writes may go.
        rack.take(&CopyStep::Leave(1)).unwrap();
        rack.record(&both);
        let error = rack.take(&CopyStep::Leave(0)).unwrap_err();
        assert!(error.contains("the last writes would go"), "the other one leaves: {error}");
        rack.contents.volumes.clear();
        let error = CopyStep::Leave(0).take(rack.placement(), None).unwrap_err();
        assert!(error.contains("never served"), "{error}");
    }

    #[test]
    fn a_copy_of_a_node_that_stays_away_is_rebuilt_elsewhere_after_the_delay() {
        let mut rack = Rack::new(PlacementRules { rebuild_after_s: Some(600), ..racks() });
        let both = Members::first(0, BTreeMap::from([(0, 1), (1, 2)]));
        let alone = both.without(1);
        rack.record(&alone);
        rack.contents.nodes[1].presence = None;
        rack.now_s += 599;
        assert_eq!(rack.steps("io1"), []);
        rack.now_s += 1;
        let [Ok(CopyStep::Add(copy))] = &rack.steps("io1")[..] else { panic!("a copy comes") };
        assert_eq!((&*copy.node, copy.replaces), ("io4", Some(1)));
        // A node that is back is filled.
        let away = std::mem::replace(&mut rack.contents.nodes[1], node("io2", "r2"));
        assert_eq!(rack.steps("io1"), []);
        rack.contents.nodes[1] = away;
        rack.settle("io1");
        assert_eq!(rack.placement().nodes(), ["io1", "io2", "io4"]);
        rack.record(&alone.with(2, 3));
        rack.settle("io1");
        assert_eq!(rack.placement().copies[1].leaves, Some(CopyLeave::Out));
        // Where no node can have it the reason is told.
        let mut rack = Rack::new(PlacementRules { rebuild_after_s: Some(0), ..racks() });
        rack.record(&alone);
        rack.contents.nodes.truncate(2);
        rack.contents.nodes[1].presence = None;
        let [Err(why)] = &rack.steps("io1")[..] else { panic!("there is no node for it") };
        assert!(why.contains("1 copies of 100 bytes cannot be placed"), "{why}");
        rack.placement().copies.resize(COPY_PLACES_MAX, PlacedCopy::default());
        let [Err(why)] = &rack.steps("io1")[..] else { panic!("there is no place for it") };
        assert!(why.contains("create another volume"), "{why}");
    }

    /// The node of the copy that comes is lost as well, before any record has changed.
    #[test]
    fn a_replacement_that_is_lost_is_replaced_and_its_task_goes_on() {
        let mut rack =
            Rack::new(PlacementRules { rebuild_after_s: Some(600), ..PlacementRules::default() });
        let alone = Members::first(0, BTreeMap::from([(0, 1), (1, 2)])).without(1);
        rack.record(&alone);
        rack.contents.nodes[1].presence = None;
        rack.now_s += 600;
        rack.settle("io1");
        assert_eq!(rack.placement().copies[2].replaces, Some(1));
        let lost = rack.placement().copies[2].node.clone();
        let at = rack.contents.nodes.iter().position(|it| it.record.name == lost).unwrap();
        rack.contents.nodes[at].presence = None;
        rack.now_s += 599;
        assert_eq!(rack.steps("io1"), []);
        rack.now_s += 1;
        rack.settle("io1");
        assert_eq!(rack.placement().copies[3].replaces, Some(2));
        rack.record(&alone.with(3, 4));
        rack.settle("io1");
        let placement = rack.placement();
        assert_eq!((placement.copies[3].replaces, placement.members().count()), (None, 2));
        let left = |at: usize| placement.copies[at].leaves == Some(CopyLeave::Out);
        assert!(left(1) && left(2), "{placement:?}");
    }

    #[test]
    fn nothing_is_replaced_twice_and_a_place_that_was_left_holds_nothing_up() {
        let mut rack = Rack::new(PlacementRules::default());
        let instead = |node: &str| {
            CopyStep::Add(PlacedCopy { replaces: Some(1), ..PlacedCopy::new(node, "fast") })
        };
        rack.take(&instead("io3")).unwrap();
        assert!(rack.take(&instead("io4")).unwrap_err().contains("is replaced"));
        // The copy to replace goes by itself meanwhile.
        rack.placement().copies[1] = PlacedCopy::default();
        rack.record(&Members::first(0, BTreeMap::from([(0, 1), (2, 3)])));
        rack.settle("io1");
        assert_eq!(rack.placement().copies[2].replaces, None);
        assert!(rack.take(&instead("io4")).unwrap_err().contains("has gone"));
        // A record of before a restore says nothing about the last writes.
        rack.take(&CopyStep::Leave(2)).unwrap();
        assert_eq!(rack.steps("io1").len(), 0, "it is in sync");
        rack.record(&Members::first(0, BTreeMap::from([(0, 1)])));
        assert_eq!(rack.steps("io1").len(), 1);
        rack.contents.volumes[0].1.store = "other".to_owned();
        assert_eq!(rack.steps("io1").len(), 0);
    }
}
