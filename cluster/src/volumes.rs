//! The state of replicated volumes: the record of each, what its nodes tell of their copies, and
//! each problem with its way out.

use std::collections::BTreeMap;

use registry::membership::ClusterContents;
use registry::{
    COPY_REPORTS_MAX, CopyLeave, CopyReport, PlacementRecord, PresenceRecord, RegistryError,
    VolumeRecord,
};
use replica::wire::decode_formed_record;
use serde::{Deserialize, Serialize};

/// The most volumes whose problems are told; all of them are in the list of volumes.
pub(crate) const PROBLEMS_MAX: usize = 64;

/// Begins the reason of a node that cannot have a volume begin as its snapshot: the command that
/// has placed the volume takes it back.
pub const NO_SNAPSHOT: &str = "its pool has no snapshot";

/// A replicated volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterVolumeStatus {
    /// Its name.
    pub name: String,
    /// `well`; `degraded`: it is served, and a copy lacks writes or waits; `changing`: it is
    /// served, and a copy leaves, or it grows; `stopped`: no node serves it at the moment; `new`:
    /// it is placed, and was never served; `unrecorded`: nodes have copies of it by their files,
    /// and the registry has no record; or `removing`.
    pub state: String,
    /// The nodes with copies, in their order.
    pub nodes: Vec<String>,
    /// The node that serves it, by the record.
    pub primary: String,
    /// The number of the record: each change of the copies in sync has one.
    pub epoch: u64,
    /// The nodes whose copies have each acknowledged write.
    pub in_sync: Vec<String>,
    /// Copies that lack writes or are not in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<CopyFault>,
    /// Its size, if a node tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// The size that it gets, while its users do not have it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grows_to_bytes: Option<u64>,
    /// The size that its users have, if the node tells it that serves: a command waits for it.
    #[serde(skip)]
    pub served_bytes: Option<u64>,
    /// The disks that use it, as far as its nodes tell.
    pub users: u64,
}

/// A copy that lacks writes, or is not in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyFault {
    /// Its node.
    pub node: String,
    /// Whether it lacks writes.
    pub lacks_writes: bool,
    /// For how long it lacks them, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_s: Option<u64>,
    /// How much of what it lacks it has got, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filled_percent: Option<u8>,
    /// The reason, and what is done about it, or the way out.
    pub why: String,
}

/// The volumes of a cluster, and records that cannot be read.
pub fn volumes(
    contents: &ClusterContents,
    now_s: u64,
) -> (Vec<ClusterVolumeStatus>, Vec<RegistryError>) {
    let present =
        contents.nodes.iter().filter_map(|it| Some((&*it.record.name, it.presence.as_ref()?)));
    let present: BTreeMap<&str, &PresenceRecord> = present.collect();
    let (mut volumes, mut damaged) = (Vec::new(), Vec::new());
    for (name, record) in &contents.volumes {
        let placement = contents.placements.iter().find(|(placed, _)| placed == name);
        match volume((name, record, placement.map(|(_, it)| it)), &present, now_s) {
            Ok(volume) => volumes.push(volume),
            Err(reason) => damaged.push(RegistryError::Damaged {
                place: format!("the record of the replicated volume {name:?}"),
                reason,
            }),
        }
        if record.was_put_back(contents.stamp.store) {
            damaged.push(RegistryError::Damaged {
                place: format!("the record of the replicated volume {name:?}"),
                reason: "the registry was restored since it was written, so no copy changes its \
                         part: docs/cluster.md, \"Restore\", and then `vrio cluster trust \
                         --volumes`"
                    .to_owned(),
            });
        }
    }
    for (name, placement) in &contents.placements {
        let found = volumes.iter_mut().find(|volume| volume.name == *name);
        let is_known = contents.volumes.iter().any(|(known, _)| known == name);
        match (found, &placement.removing) {
            (Some(volume), Some(left)) => mark_removed(volume, left),
            (Some(_), None) => {}
            // Its record is damaged, and was told.
            (None, _) if is_known => {}
            (None, removing) => {
                let mut volume = unserved(name, placement, &present);
                if let Some(left) = removing {
                    mark_removed(&mut volume, left);
                }
                volumes.push(volume);
            }
        }
    }
    volumes.sort_by(|a, b| a.name.cmp(&b.name));
    (volumes, damaged)
}

/// Volumes of which nodes have copies that wait for a record, while the registry has none: it was
/// lost, or the first node has not begun the volume yet.
pub(crate) fn unrecorded(contents: &ClusterContents) -> Vec<ClusterVolumeStatus> {
    let is_known = |name: &str| {
        contents.volumes.iter().any(|(known, _)| known == name)
            || contents.placements.iter().any(|(known, _)| known == name)
    };
    let present = contents.nodes.iter().filter_map(|it| Some((it, it.presence.as_ref()?)));
    let copies = present.flat_map(|(node, it)| it.copies.iter().map(move |copy| (node, copy)));
    // A volume of one node that takes no requests is told as closed.
    let waits = copies.filter(|(_, copy)| ["outside", "failed"].contains(&&*copy.role));
    let mut found = BTreeMap::<&str, ClusterVolumeStatus>::new();
    for (node, copy) in waits.filter(|(_, copy)| !is_known(&copy.volume)) {
        let volume = found.entry(&*copy.volume).or_insert_with(|| ClusterVolumeStatus {
            name: copy.volume.clone(),
            state: "unrecorded".to_owned(),
            ..ClusterVolumeStatus::default()
        });
        let why = match &*copy.why {
            "" => "it waits for the record; if the volume was served before, `vrio volume recover \
                   VOLUME` says which copy can serve"
                .to_owned(),
            why => why.to_owned(),
        };
        let node = node.record.name.clone();
        volume.nodes.push(node.clone());
        volume.faults.push(CopyFault { node, why, ..CopyFault::default() });
        volume.size_bytes = volume.size_bytes.or(Some(copy.size_bytes).filter(|it| *it > 0));
        volume.users += u64::from(copy.users);
    }
    found.into_values().collect()
}

/// A volume that is being removed needs no copies in sync: the nodes matter that still have one.
fn mark_removed(volume: &mut ClusterVolumeStatus, left: &[String]) {
    volume.state = "removing".to_owned();
    let told = std::mem::take(&mut volume.faults);
    let why = |node: &String| {
        let told = told.iter().find(|fault| fault.node == *node && !fault.lacks_writes);
        told.map_or_else(|| "it is not removed yet".to_owned(), |fault| fault.why.clone())
    };
    let fault =
        |node| CopyFault { node: String::clone(node), why: why(node), ..CopyFault::default() };
    volume.faults = left.iter().map(fault).collect();
}

/// A placed volume without a record: its first node has not opened it yet.
fn unserved(
    name: &str,
    placement: &PlacementRecord,
    present: &BTreeMap<&str, &PresenceRecord>,
) -> ClusterVolumeStatus {
    let nodes: Vec<_> = placement.members().map(|(_, copy)| copy.node.clone()).collect();
    let fault = |node: &String| {
        let presence = present.get(&**node);
        let report = presence.and_then(|it| it.copies.iter().find(|copy| copy.volume == name));
        let why = match (presence, report) {
            (None, _) => "its node is away; start it".to_owned(),
            (Some(_), Some(report)) if !report.why.is_empty() => report.why.clone(),
            (Some(_), _) => "it is being made".to_owned(),
        };
        CopyFault { node: node.clone(), why, ..CopyFault::default() }
    };
    ClusterVolumeStatus {
        name: name.to_owned(),
        state: "new".to_owned(),
        primary: nodes.first().cloned().unwrap_or_default(),
        faults: nodes.iter().map(fault).collect(),
        size_bytes: Some(placement.size_bytes),
        nodes,
        ..ClusterVolumeStatus::default()
    }
}

/// The copy on a node, as far as it is known.
struct KnownCopy<'c> {
    place: u8,
    node: String,
    is_present: bool,
    is_in_sync: bool,
    report: Option<&'c CopyReport>,
    /// How much of what it lacks it has got, in percent, as the primary tells.
    filled_percent: Option<u8>,
    /// It must go.
    leaves: Option<CopyLeave>,
    /// It must go when another copy is in sync.
    is_replaced: bool,
    /// It has not the size that the volume gets, or even not the size of the users' volume.
    is_growing: bool,
    is_small: bool,
    /// After how long away another node gets a copy in its stead.
    rebuild_after_s: Option<u64>,
}

/// The name of a place without a name.
fn number(place: u8) -> String {
    format!("number {place}")
}

/// The copies of a volume by its record, by its placement, if there is one, and by what nodes tell.
fn known_copies<'c>(
    (name, record, placement): (&str, &VolumeRecord, Option<&PlacementRecord>),
    members: &replica::VolumeRecord,
    present: &BTreeMap<&str, &'c PresenceRecord>,
) -> Vec<KnownCopy<'c>> {
    // The placement is newer than the names in the record of the members.
    let placed = |id: u8| placement.and_then(|it| it.copies.get(usize::from(id)));
    // Records of older releases have no names, and a hostile client's may have any.
    let named = |id: u8| {
        let name = placed(id).map(|copy| &copy.node);
        let name = name.or_else(|| record.nodes.get(usize::from(id))).cloned();
        let is_in_sync = members.in_sync.contains_key(&id);
        name.filter(|it| !it.is_empty() || !is_in_sync).unwrap_or_else(|| number(id))
    };
    let in_sync = members.in_sync.keys().map(|id| usize::from(*id) + 1).max().unwrap_or(0);
    let placed_count = placement.map_or(0, |it| it.copies.len());
    let primary = named(members.primary);
    let of_volume = |it: &'c PresenceRecord| it.copies.iter().find(|copy| copy.volume == name);
    let fills = present.get(&*primary).and_then(|it| of_volume(it));
    let copy = |place: u8| {
        let node = named(place);
        let presence = present.get(&*node);
        KnownCopy {
            place,
            is_present: presence.is_some(),
            is_in_sync: members.in_sync.contains_key(&place),
            report: presence.and_then(|it| of_volume(it)),
            filled_percent: fills.and_then(|it| it.filling.get(&node).copied()),
            leaves: placed(place).and_then(|copy| copy.leaves),
            is_replaced: placement.is_some_and(|it| it.replacement_of(place).is_some()),
            is_growing: placed(place).is_some_and(|copy| copy.has_bytes.is_some()),
            is_small: placement.is_some_and(|it| it.is_small(place)),
            rebuild_after_s: placement.and_then(|it| it.rules.rebuild_after_s),
            node,
        }
    };
    let places = (0..=u8::MAX).take(record.nodes.len().max(in_sync).max(placed_count));
    places.map(copy).filter(|copy| !copy.node.is_empty()).collect()
}

fn volume(
    (name, record, placement): (&str, &VolumeRecord, Option<&PlacementRecord>),
    present: &BTreeMap<&str, &PresenceRecord>,
    now_s: u64,
) -> Result<ClusterVolumeStatus, String> {
    let (_, members) = decode_formed_record(&record.content).map_err(|error| error.to_string())?;
    let copies = known_copies((name, record, placement), &members, present);
    let primary = copies.iter().find(|copy| copy.place == members.primary);
    let primary = primary.map_or_else(|| number(members.primary), |copy| copy.node.clone());
    let serves = |copy: &&KnownCopy<'_>| {
        let is_down = |report: &CopyReport| ["failed", "closed"].contains(&&*report.role);
        copy.node == primary && copy.is_present && !copy.report.is_some_and(is_down)
    };
    let is_served = copies.iter().any(|copy| serves(&copy));
    let since_s =
        |node: &str| record.lacking.get(node).map(|since_s| now_s.saturating_sub(*since_s));
    let faults: Vec<CopyFault> = copies
        .iter()
        .filter_map(|copy| {
            let why = fault(copy, &primary, &copies)?;
            Some(CopyFault {
                node: copy.node.clone(),
                lacks_writes: !copy.is_in_sync && copy.leaves.is_none(),
                for_s: since_s(&copy.node).filter(|_| !copy.is_in_sync),
                filled_percent: copy.filled_percent,
                why,
            })
        })
        .collect();
    let is_leaving = |fault: &CopyFault| {
        let waits = |copy: &KnownCopy<'_>| copy.report.is_some_and(|it| !it.why.is_empty());
        let goes = |copy: &KnownCopy<'_>| {
            // A node that is away has no copy grow: that is not a part of the growth.
            let grows = copy.is_growing && copy.is_present && !waits(copy);
            let changes = copy.is_replaced || grows;
            copy.leaves.is_some() || changes && copy.is_in_sync
        };
        copies.iter().any(|copy| copy.node == fault.node && goes(copy))
    };
    let told = copies.iter().find(|copy| copy.node == primary).and_then(|copy| copy.report);
    let told_bytes = told.map(|it| it.size_bytes).filter(|bytes| *bytes > 0);
    let grows_to_bytes = placement.filter(|it| {
        it.serves_bytes.is_some() || told_bytes.is_some_and(|bytes| bytes < it.size_bytes)
    });
    let grows_to_bytes = grows_to_bytes.map(|it| it.size_bytes);
    let served_bytes = served_bytes(told, present.get(&*primary).copied(), placement);
    let state = match (is_served, faults.iter().all(is_leaving)) {
        (false, _) => "stopped",
        (true, false) => "degraded",
        (true, true) if !faults.is_empty() || grows_to_bytes.is_some() => "changing",
        (true, true) => "well",
    };
    let reports = || copies.iter().filter_map(|copy| copy.report);
    let in_sync = copies.iter().filter(|copy| copy.is_in_sync).map(|copy| copy.node.clone());
    Ok(ClusterVolumeStatus {
        name: name.to_owned(),
        state: state.to_owned(),
        nodes: copies.iter().map(|copy| copy.node.clone()).collect(),
        primary,
        epoch: members.epoch,
        in_sync: in_sync.collect(),
        faults,
        size_bytes: told_bytes.or_else(|| reports().map(|it| it.size_bytes).find(|it| *it > 0)),
        grows_to_bytes,
        served_bytes,
        users: reports().map(|it| u64::from(it.users)).sum(),
    })
}

/// The size that users have, as the node tells that serves. A copy that takes over tells the size
/// in force, which users have later. A node with more copies than it can tell of may leave the copy
/// out: users have the size in force, as far as is known.
fn served_bytes(
    told: Option<&CopyReport>,
    primary: Option<&PresenceRecord>,
    placement: Option<&PlacementRecord>,
) -> Option<u64> {
    match told {
        Some(report) => Some(report.size_bytes).filter(|_| report.role == "primary"),
        None => {
            let leaves_out = primary?.copies.len() >= COPY_REPORTS_MAX;
            placement.map(PlacementRecord::served_bytes).filter(|_| leaves_out)
        }
    }
}

/// The fault of a copy with the way out, or what is done about it.
fn fault(copy: &KnownCopy<'_>, primary: &str, all: &[KnownCopy<'_>]) -> Option<String> {
    let node = &copy.node;
    match (copy.leaves, copy.is_present) {
        (Some(CopyLeave::Asked), false) if copy.is_in_sync => {
            return Some(away_in_sync(node, primary, all));
        }
        (Some(CopyLeave::Asked), _) if copy.is_in_sync || copy.node == primary => {
            return Some("it leaves; the volume goes on without it in a moment".to_owned());
        }
        (Some(_), true) => return Some("it leaves; its node removes it".to_owned()),
        (Some(_), false) => {
            return Some(format!(
                "it has left, and its node is away; it is removed when {node} is started, or \
                 forgotten with `vrio cluster remove {node}`"
            ));
        }
        (None, _) => {}
    }
    let Some(report) = copy.report.filter(|_| copy.is_present) else {
        return match (copy.is_present, copy.is_in_sync) {
            (true, true) => changes_soon(copy),
            (true, false) => Some(waits_for(copy)),
            (false, false) => Some(match copy.rebuild_after_s {
                None => {
                    format!("its node is away; it gets what it lacks when {node} is started")
                }
                Some(after_s) => format!(
                    "its node is away; it gets what it lacks when {node} is started, and {} after \
                     it went another node gets a copy in its stead",
                    show_time(after_s)
                ),
            }),
            (false, true) => Some(away_in_sync(node, primary, all)),
        };
    };
    match (&*report.role, &*report.why) {
        ("failed", why) => Some(format!(
            "it has stopped: {}. Start the node again when that is mended",
            if why.is_empty() { "the node's log has the reason" } else { why }
        )),
        ("closed", why) => Some(format!("its node does not open it: {why}")),
        (_, why) if !why.is_empty() => Some(format!("it waits: {why}")),
        ("takes-over", _) => Some("the copies are being made equal".to_owned()),
        ("primary" | "backup", _) if copy.is_in_sync => changes_soon(copy),
        (_, _) if !copy.is_in_sync => Some(match copy.filled_percent {
            Some(percent) => format!("it is being filled, {percent} %"),
            None => waits_for(copy),
        }),
        // By the record it has all writes, and its node does not know so yet.
        (_, _) => Some("its node looks at the record".to_owned()),
    }
}

/// A copy in order is no fault, unless it goes or grows.
fn changes_soon(copy: &KnownCopy<'_>) -> Option<String> {
    let text = match (copy.is_replaced, copy.is_growing) {
        (true, _) => "it goes when the copy in its stead is in sync",
        (false, true) => "it grows",
        (false, false) => return None,
    };
    Some(text.to_owned())
}

/// The reason why a copy gets nothing.
fn waits_for(copy: &KnownCopy<'_>) -> String {
    match copy.is_small {
        true => "it is smaller than the volume, and gets what it lacks when it has grown",
        false => "it waits for the node that serves",
    }
    .to_owned()
}

/// A node that is away, and by the record has all writes.
fn away_in_sync(node: &str, primary: &str, all: &[KnownCopy<'_>]) -> String {
    let others = all.iter().filter(|it| it.node != node && it.is_in_sync && it.is_present);
    let others: Vec<_> = others.map(|it| &*it.node).collect();
    match (others.as_slice(), node == primary) {
        ([], _) => format!(
            "its node is away and may alone have the last writes: start {node}; or, if it is gone \
             for good, `vrio volume evict VOLUME {node} --force` on another node gives them up"
        ),
        ([next, ..], true) => {
            format!("its node is away; {next} serves when the last lease has ended")
        }
        (_, false) => format!("its node is away; {primary} goes on without it within seconds"),
    }
}

/// The problems of volumes; volumes that are not served come first.
pub fn of_volumes(volumes: &[ClusterVolumeStatus]) -> Vec<String> {
    let is_well = |volume: &&ClusterVolumeStatus| ["well", "changing"].contains(&&*volume.state);
    let mut wrong: Vec<_> = volumes.iter().filter(|volume| !is_well(volume)).collect();
    wrong.sort_by_key(|volume| !["stopped", "unrecorded", "new"].contains(&&*volume.state));
    let shown = wrong.iter().take(PROBLEMS_MAX).map(|volume| problem(volume));
    let more = wrong.len().saturating_sub(PROBLEMS_MAX);
    let rest = (more > 0).then(|| format!("{more} more volumes are not well"));
    shown.chain(rest).collect()
}

fn show_time(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

/// The volume with each of its faults, as one line.
pub fn problem(volume: &ClusterVolumeStatus) -> String {
    let ClusterVolumeStatus { name, state, primary, nodes, in_sync, faults, .. } = volume;
    let grows = volume.grows_to_bytes.is_some();
    let faults = faults.iter().map(|fault| {
        let CopyFault { node, lacks_writes, for_s, why, .. } = fault;
        let lacks = match (lacks_writes, for_s) {
            (true, Some(for_s)) => format!(" lacks writes for {for_s} s"),
            (true, None) => " lacks writes".to_owned(),
            (false, _) => String::new(),
        };
        format!("the copy of {node}{lacks}: {}", why.replace("VOLUME", name))
    });
    let faults: Vec<_> = faults.collect();
    let head = match &**state {
        "stopped" => format!("volume {name} is not served by {primary}"),
        "new" => format!("volume {name} was never served"),
        "unrecorded" => format!("volume {name} is not served: the registry has no record of it"),
        "removing" => format!("volume {name} is being removed"),
        "changing" if grows && faults.is_empty() => {
            return format!("volume {name} grows; its users are told in a moment");
        }
        "changing" if grows => format!("volume {name} grows"),
        "changing" => format!("volume {name} changes its copies"),
        _ => format!("volume {name} has {} of {} copies in sync", in_sync.len(), nodes.len()),
    };
    format!("{head}; {}", faults.join("; "))
}

/// The problems of pools of present nodes.
pub(crate) fn of_pools(contents: &ClusterContents) -> Vec<String> {
    let present =
        contents.nodes.iter().filter_map(|it| Some((&it.record.name, it.presence.as_ref()?)));
    let pools = present.flat_map(|(node, it)| it.pools.iter().map(move |pool| (node, pool)));
    let wrong = pools.filter(|(_, pool)| !pool.problem.is_empty()).take(PROBLEMS_MAX);
    wrong
        .map(|(node, pool)| format!("pool {} of node {node}: {}", pool.name, pool.problem))
        .collect()
}

#[cfg(test)]
mod tests {
    use registry::membership::KnownNode;
    use registry::{NodeRecord, PlacedCopy, PoolSpace, Stamp};
    use replica::VolumeRecord as Members;
    use replica::wire::encode_record;

    use super::*;

    fn record(members: &Members, nodes: &[&str]) -> VolumeRecord {
        let content = [&[7; 16][..], &encode_record(members)].concat();
        let nodes: Vec<_> = nodes.iter().map(|it| (*it).to_owned()).collect();
        let lacks = (0..).zip(&nodes).filter(|(id, _)| !members.in_sync.contains_key(id));
        let lacking = lacks.map(|(_, node)| (node.clone(), 90)).collect();
        let epoch = members.epoch;
        VolumeRecord { epoch, content, nodes, lacking, ..VolumeRecord::default() }
    }

    fn node(name: &str, copies: Option<Vec<CopyReport>>) -> KnownNode {
        let record =
            NodeRecord { name: name.to_owned(), key: None, joined_s: 1, token: "t".to_owned() };
        let presence = copies.map(|copies| PresenceRecord { copies, ..PresenceRecord::default() });
        KnownNode { record, presence }
    }

    fn contents(record: VolumeRecord, nodes: Vec<KnownNode>) -> ClusterContents {
        ClusterContents {
            stamp: Stamp { store: 1, revision: 1 },
            cluster: None,
            nodes,
            tokens: Vec::new(),
            volumes: vec![("alice".to_owned(), record)],
            placements: Vec::new(),
            unreadable: Vec::new(),
        }
    }

    fn copy(role: &str, why: &str) -> CopyReport {
        let [volume, role, why] = ["alice", role, why].map(str::to_owned);
        CopyReport { volume, role, why, size_bytes: 4096, ..CopyReport::default() }
    }

    fn one(contents: &ClusterContents) -> (ClusterVolumeStatus, Vec<String>) {
        let (volumes, damaged) = volumes(contents, 100);
        assert_eq!(damaged, []);
        (volumes[0].clone(), of_volumes(&volumes))
    }

    #[test]
    fn a_volume_whose_copies_are_in_sync_is_well() {
        let both = Members::first(0, [(0, 1), (1, 2)].into());
        let nodes = vec![node("io1", Some(vec![copy("primary", "")])), node("io2", Some(vec![]))];
        let (alice, problems) = one(&contents(record(&both, &["io1", "io2"]), nodes));
        assert_eq!((&*alice.state, &*alice.primary), ("well", "io1"));
        assert_eq!((alice.in_sync, alice.size_bytes), (alice.nodes, Some(4096)));
        assert_eq!(problems, [""; 0]);
    }

    #[test]
    fn each_fault_of_a_copy_has_its_reason_and_the_way_out() {
        let both = Members::first(0, [(0, 1), (1, 2)].into());
        let alone = both.without(1);
        let filling =
            CopyReport { filling: [("io2".to_owned(), 40)].into(), ..copy("primary", "") };
        let primary = || Some(vec![copy("primary", "")]);
        for (members, io1, io2, state, wanted) in [
            (
                &alone,
                Some(vec![filling]),
                Some(vec![copy("outside", "")]),
                "degraded",
                "the copy of io2 lacks writes for 10 s: it is being filled, 40 %",
            ),
            (&alone, primary(), Some(vec![]), "degraded", "it waits for the node that serves"),
            (&alone, primary(), None, "degraded", "it gets what it lacks when io2 is started"),
            (
                &alone,
                None,
                Some(vec![copy("outside", "")]),
                "stopped",
                "may alone have the last writes: start io1; or, if it is gone for good, `vrio \
              volume evict alice io1 --force`",
            ),
            (&both, None, Some(vec![]), "stopped", "io2 serves when the last lease has ended"),
            (&both, primary(), None, "degraded", "io1 goes on without it within seconds"),
            (
                &both,
                primary(),
                Some(vec![copy("backup", "the pool is full")]),
                "degraded",
                "the copy of io2: it waits: the pool is full",
            ),
            (
                &both,
                primary(),
                Some(vec![copy("failed", "EIO")]),
                "degraded",
                "it has stopped: EIO. Start the node again",
            ),
            (
                &both,
                Some(vec![copy("closed", "another list")]),
                Some(vec![]),
                "stopped",
                "its node does not open it: another list",
            ),
        ] {
            let nodes = vec![node("io1", io1), node("io2", io2)];
            let (alice, problems) = one(&contents(record(members, &["io1", "io2"]), nodes));
            assert_eq!(alice.state, state, "{problems:?}");
            assert!(problems[0].contains(wanted), "{wanted}: {problems:?}");
        }
    }

    #[test]
    fn a_copy_that_leaves_is_no_problem_and_a_place_that_was_left_is_no_copy() {
        let both = Members::first(0, [(0, 1), (2, 3)].into());
        let mut copies = ["io1", "", "io3"].map(|node| PlacedCopy::new(node, "fast"));
        copies[0].leaves = Some(CopyLeave::Asked);
        let placement = PlacementRecord { copies: copies.into(), ..PlacementRecord::default() };
        let primary = || Some(vec![copy("primary", "")]);
        let nodes = vec![node("io1", primary()), node("io3", Some(vec![]))];
        let mut all = contents(record(&both, &["io1", "io2"]), nodes);
        all.placements = vec![("alice".to_owned(), placement)];
        let (alice, problems) = one(&all);
        assert_eq!((&*alice.state, problems.len()), ("changing", 0));
        assert_eq!(alice.nodes, ["io1", "io3"]);
        let mut replaced = all.clone();
        replaced.placements[0].1.copies[0].leaves = None;
        replaced.placements[0].1.copies[2].replaces = Some(0);
        let (told, _) = one(&replaced);
        assert_eq!((&*told.state, told.faults.len()), ("changing", 1), "{told:?}");
        let told = problem(&alice);
        assert!(told.contains("the copy of io1: it leaves; the volume goes on"), "{told}");
        let copies = &mut all.placements[0].1.copies;
        (copies[0].leaves, copies[2].leaves) = (None, Some(CopyLeave::Out));
        all.volumes = contents(record(&both.without(2), &["io1"]), vec![]).volumes;
        all.nodes[1].presence = None;
        let (alice, _) = one(&all);
        assert_eq!((&*alice.state, alice.in_sync.len()), ("changing", 1));
        assert!(alice.faults[0].why.contains("it has left, and its node is away"), "{alice:?}");
    }

    #[test]
    fn a_volume_grows_until_its_users_have_the_size_and_a_small_copy_says_so() {
        let both = Members::first(0, [(0, 1), (1, 2)].into());
        let copies = ["io1", "io2"]
            .map(|node| PlacedCopy { has_bytes: Some(4096), ..PlacedCopy::new(node, "fast") });
        let mut placement = PlacementRecord {
            size_bytes: 8192,
            serves_bytes: Some(4096),
            copies: copies.into(),
            ..PlacementRecord::default()
        };
        let told = |placement: &PlacementRecord, members: &Members, io1, io2: Vec<CopyReport>| {
            let nodes = vec![node("io1", Some(vec![io1])), node("io2", Some(io2))];
            let mut all = contents(record(members, &["io1", "io2"]), nodes);
            all.placements = vec![("alice".to_owned(), placement.clone())];
            let (alice, problems) = one(&all);
            (alice.state.clone(), alice.grows_to_bytes, problem(&alice), problems.len())
        };
        let primary = || copy("primary", "");
        let (state, to, text, problems) = told(&placement, &both, primary(), vec![]);
        assert_eq!((&*state, to, problems), ("changing", Some(8192), 0));
        assert_eq!(
            text,
            "volume alice grows; the copy of io1: it grows; the copy of io2: it grows"
        );
        let refused = vec![copy("backup", "the pool takes nothing")];
        let (state, _, text, problems) = told(&placement, &both, primary(), refused);
        assert_eq!((&*state, problems), ("degraded", 1));
        assert!(text.contains("the copy of io2: it waits: the pool takes nothing"), "{text}");
        let nodes = vec![node("io1", Some(vec![primary()])), node("io2", None)];
        let mut all = contents(record(&both, &["io1", "io2"]), nodes);
        all.placements = vec![("alice".to_owned(), placement.clone())];
        let (alice, problems) = one(&all);
        assert_eq!((&*alice.state, alice.faults.len(), problems.len()), ("degraded", 2, 1));
        assert!(problems[0].contains("io1 goes on without it within seconds"), "{problems:?}");
        // In force: the node that serves has not heard of it, and a copy was away.
        (placement.serves_bytes, placement.copies[0].has_bytes) = (None, None);
        let (state, to, text, _) = told(&placement, &both.without(1), primary(), vec![]);
        assert_eq!((&*state, to), ("degraded", Some(8192)));
        assert!(text.contains("it is smaller than the volume, and gets what it lacks"), "{text}");
        placement.copies[1].has_bytes = None;
        let (state, to, text, _) = told(&placement, &both, primary(), vec![]);
        assert_eq!((&*state, to), ("changing", Some(8192)));
        assert!(text.ends_with("its users are told in a moment"), "{text}");
        let grown = CopyReport { size_bytes: 8192, ..primary() };
        let (state, to, ..) = told(&placement, &both, grown, vec![]);
        assert_eq!((&*state, to), ("well", None));
    }

    /// A command that waits for a size is not done while nothing but the registry has it.
    #[test]
    fn the_size_of_users_is_told_by_the_node_that_serves_alone() {
        let both = Members::first(0, [(0, 1), (1, 2)].into());
        let copies = ["io1", "io2"].map(|node| PlacedCopy::new(node, "fast"));
        let placement = PlacementRecord {
            size_bytes: 8192,
            copies: copies.into(),
            ..PlacementRecord::default()
        };
        let report = |role: &str| CopyReport { size_bytes: 8192, ..copy(role, "") };
        let other = CopyReport { volume: "bob".to_owned(), ..report("primary") };
        for (io1, served_bytes) in [
            (None, None),
            (Some(vec![]), None),
            (Some(vec![report("takes-over")]), None),
            (Some(vec![report("primary")]), Some(8192)),
            (Some(vec![copy("primary", "")]), Some(4096)),
            (Some(vec![other; COPY_REPORTS_MAX]), Some(8192)),
        ] {
            let nodes = vec![node("io1", io1), node("io2", Some(vec![report("outside")]))];
            let mut all = contents(record(&both, &["io1", "io2"]), nodes);
            all.placements = vec![("alice".to_owned(), placement.clone())];
            assert_eq!(one(&all).0.served_bytes, served_bytes);
        }
    }

    #[test]
    fn a_placed_volume_is_told_before_its_first_record_and_while_it_is_removed() {
        let copies = ["io1", "io2"].map(|node| PlacedCopy::new(node, "fast"));
        let mut placement =
            PlacementRecord { size_bytes: 9, copies: copies.into(), ..PlacementRecord::default() };
        let both = Members::first(0, [(0, 1), (1, 2)].into());
        let nodes = vec![node("io1", Some(vec![copy("closed", "no room")])), node("io2", None)];
        let mut all = contents(record(&both, &["io1", "io2"]), nodes);
        let served = all.volumes.clone();
        all.volumes.clear();
        all.placements = vec![("alice".to_owned(), placement.clone())];
        let (alice, problems) = one(&all);
        assert_eq!((&*alice.state, alice.size_bytes), ("new", Some(9)));
        let wanted = "volume alice was never served; the copy of io1: no room; the copy of io2: \
                      its node is away; start it";
        assert_eq!(problems, [wanted]);
        placement.removing = Some(vec!["io1".to_owned()]);
        all.placements = vec![("alice".to_owned(), placement)];
        all.volumes = served;
        let (alice, problems) = one(&all);
        assert_eq!((&*alice.state, alice.faults.len()), ("removing", 1), "{problems:?}");
        assert!(problems[0].contains("is being removed; the copy of io1"), "{problems:?}");
    }

    /// Before, the status had no word about a volume with a lost record.
    #[test]
    fn a_volume_whose_record_is_lost_is_told_by_its_copies() {
        let both = Members::first(0, [(0, 1), (1, 2)].into());
        let lost = "the registry has no record of volume alice, but this member has";
        let closed = CopyReport { volume: "own".to_owned(), ..copy("closed", "the operator") };
        let nodes = vec![
            node("io1", Some(vec![copy("outside", lost), closed])),
            node("io2", Some(vec![copy("outside", "")])),
        ];
        let mut all = contents(record(&both, &["io1", "io2"]), nodes);
        assert_eq!(unrecorded(&all), [], "it has a record");
        all.volumes.clear();
        let found = unrecorded(&all);
        assert_eq!((found.len(), &*found[0].state), (1, "unrecorded"), "{found:?}");
        assert_eq!(found[0].nodes, ["io1", "io2"]);
        let told = problem(&found[0]);
        assert!(told.contains(lost) && told.contains("`vrio volume recover alice`"), "{told}");
    }

    /// Any client of the registry can write any bytes.
    #[test]
    fn a_hostile_record_is_a_problem_with_its_name_and_never_a_panic() {
        let both = Members::first(9, [(0, 1), (9, 2), (255, 3)].into());
        let (alice, problems) = one(&contents(record(&both, &["io1", "io1"]), vec![]));
        assert_eq!((&*alice.primary, alice.state.as_str()), ("number 9", "stopped"));
        assert_eq!(problems.len(), 1);
        let whole = record(&both, &[]).content;
        for cut in 0..whole.len() {
            let record = VolumeRecord { content: whole[..cut].to_vec(), ..record(&both, &[]) };
            let (volumes, damaged) = volumes(&contents(record, vec![]), 100);
            assert_eq!((volumes.len(), damaged.len()), (0, 1), "{cut}");
            assert!(damaged[0].to_string().contains("volume \"alice\" is damaged"));
        }
        let mut many = contents(record(&both, &[]), vec![]);
        many.volumes = vec![many.volumes[0].clone(); PROBLEMS_MAX + 3];
        let told = of_volumes(&volumes(&many, 100).0);
        assert_eq!((told.len(), &**told.last().unwrap()), (65, "3 more volumes are not well"));
    }

    #[test]
    fn a_full_pool_of_any_node_is_told() {
        let mut nodes = vec![node("io1", Some(vec![]))];
        let problem = "it is full".to_owned();
        let pool = PoolSpace { problem, ..PoolSpace::new("fast", 1, 1) };
        nodes[0].presence.as_mut().unwrap().pools.push(pool);
        let told = of_pools(&contents(record(&Members::first(0, [(0, 1)].into()), &[]), nodes));
        assert_eq!(told, ["pool fast of node io1: it is full"]);
    }
}
