//! The placed volumes of a node, as the node keeps them: with them it starts while the registry is
//! away.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use registry::membership::ClusterContents;
use registry::{PlacementRecord, private_file};
use serde::{Deserialize, Serialize};

/// The version of the file, which `config` reads as well: a disk can name a placed volume alone.
const VERSION: u32 = 1;

/// The placed volumes that have a copy on a node or that its disks may use, and the nodes that they
/// need as peers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptPlacements {
    version: u32,
    /// The volumes by their names.
    pub volumes: BTreeMap<String, PlacementRecord>,
    /// Other nodes by their names.
    pub peers: BTreeMap<String, KeptPeer>,
    /// The volumes that this node was told to open: it may have them, and no others, removed. So a
    /// record in the registry touches no volume of the node's own file or pool, nor a later volume
    /// of the name. A volume goes from here when its removal was told; a record that is missing or
    /// damaged takes nothing away.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub opened: BTreeMap<String, OpenedMark>,
}

/// The placement by which a node was told to open a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenedMark {
    /// When it was placed, in seconds since 1970.
    pub placed_s: u64,
    /// The pool of the copy.
    pub pool: String,
    /// Its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<u8>,
}

/// A node that another node needs as a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptPeer {
    /// Where it was reached last, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The public half of its key.
    pub key: String,
}

impl KeptPlacements {
    /// The placed volumes of a node, as the registry has them. A node that is away has its last
    /// known address.
    pub fn of(contents: &ClusterContents, node: &str, last: &Self) -> Self {
        let is_of = |placement: &PlacementRecord| {
            placement.copies.iter().any(|copy| copy.node == node)
                || placement.users().any(|name| name == node)
        };
        // A record that cannot be read at the moment says nothing: the last record holds.
        let is_unreadable = |name: &str| {
            let place = format!("/placements/{name}");
            contents.unreadable.iter().any(|error| error.to_string().contains(&place))
        };
        let last_volumes = last.volumes.iter().filter(|(name, _)| is_unreadable(name));
        let last_volumes = last_volumes.map(|(name, it)| (name.clone(), it.clone()));
        let volumes = contents.placements.iter().filter(|(_, it)| is_of(it)).cloned();
        let volumes: BTreeMap<_, _> = last_volumes.chain(volumes).collect();
        let mut peers = BTreeMap::new();
        for known in contents.nodes.iter().filter(|known| known.record.name != node) {
            let name = &known.record.name;
            let Some(key) = known.record.key.clone() else { continue };
            let has_copy = volumes.values().any(|it| it.members().any(|(_, at)| at.node == *name));
            let uses = volumes.values().any(|it| it.users().any(|user| user == name));
            let address = known.presence.as_ref().and_then(|it| it.addresses.first().cloned());
            let address = address.or_else(|| last.peers.get(name)?.address.clone());
            match (has_copy, address) {
                (true, Some(address)) => {
                    peers.insert(name.clone(), KeptPeer { address: Some(address), key });
                }
                // Its copy is reached when it was present once.
                (true, None) => {}
                // With its address, where it has told one: it may get a copy later.
                (false, address) if uses => {
                    peers.insert(name.clone(), KeptPeer { address, key });
                }
                (false, _) => {}
            }
        }
        let opened = last.opened.clone();
        Self { version: VERSION, volumes, peers, opened }
    }

    /// The volumes of which this node has a copy that has gone from its place, by their placements:
    /// the node was away, or was removed from the cluster, and did not hear of it. A place that was
    /// left stays empty for ever, so such a copy counts never again.
    pub fn gone(&self, contents: &ClusterContents) -> BTreeMap<String, PlacementRecord> {
        let has_gone = |(name, placement): &&(String, PlacementRecord)| {
            let mark = self.opened.get(name).filter(|mark| mark.placed_s == placement.placed_s);
            let place = mark.and_then(|mark| mark.place);
            let copy = place.and_then(|place| placement.copies.get(usize::from(place)));
            copy.is_some_and(|copy| copy.node.is_empty())
        };
        contents.placements.iter().filter(has_gone).cloned().collect()
    }

    /// Reads a file; of a node that has kept nothing it is not there.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn load(path: &Path) -> io::Result<Self> {
        let read = match private_file::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            read => serde_json::from_slice::<Self>(&read?)?,
        };
        match read.version {
            VERSION => Ok(read),
            other => Err(io::Error::other(format!(
                "it has version {other}, and this vrio reads version {VERSION}"
            ))),
        }
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// When it cannot be written; the old file is there then.
    pub fn keep(&self, path: &Path) -> io::Result<()> {
        let text = serde_json::to_vec(self).expect("texts and numbers");
        private_file::replace(path, &text)
    }
}

#[cfg(test)]
mod tests {
    use registry::membership::KnownNode;
    use registry::{NodeRecord, PlacedCopy, PresenceRecord, Stamp};

    use super::*;

    #[test]
    fn a_node_keeps_its_volumes_and_the_peers_that_they_need() {
        let node = |name: &str, address: Option<&str>| KnownNode {
            record: NodeRecord {
                name: name.to_owned(),
                key: Some(format!("key of {name}")),
                joined_s: 1,
                token: String::new(),
            },
            presence: address.map(|address| PresenceRecord {
                addresses: vec![address.to_owned()],
                ..PresenceRecord::default()
            }),
        };
        let copy = |node: &str| PlacedCopy::new(node, "fast");
        let placed = |nodes: [&str; 2]| PlacementRecord {
            size_bytes: 1,
            copies: nodes.map(copy).to_vec(),
            allow: vec!["vm1".to_owned()],
            ..PlacementRecord::default()
        };
        let mut contents = ClusterContents {
            stamp: Stamp { store: 1, revision: 1 },
            cluster: None,
            nodes: vec![node("io1", Some("a1")), node("io2", Some("a2")), node("io3", Some("a3"))],
            tokens: Vec::new(),
            volumes: Vec::new(),
            placements: vec![
                ("alice".to_owned(), placed(["io1", "io2"])),
                ("bob".to_owned(), placed(["io2", "io3"])),
            ],
            unreadable: Vec::new(),
        };
        contents.nodes.push(node("vm1", Some("a4")));
        let none = KeptPlacements::default();
        let of = |contents: &ClusterContents, name: &str, last: &KeptPlacements| {
            let kept = KeptPlacements::of(contents, name, last);
            let volumes: Vec<_> = kept.volumes.keys().cloned().collect();
            let address = |it: &KeptPeer| it.address.clone().unwrap_or_default();
            let peers = kept.peers.iter().map(|(name, it)| format!("{name} {}", address(it)));
            (volumes, peers.collect::<Vec<_>>())
        };
        let (volumes, peers) = of(&contents, "io1", &none);
        assert_eq!(
            (volumes, peers),
            (vec!["alice".to_owned()], vec!["io2 a2".to_owned(), "vm1 a4".to_owned()])
        );
        let (volumes, peers) = of(&contents, "vm1", &none);
        assert_eq!((volumes.len(), peers.join(", ").as_str()), (2, "io1 a1, io2 a2, io3 a3"));
        // A node that is away has its last address, and a removed node is no peer.
        let last = KeptPlacements::of(&contents, "io1", &none);
        contents.nodes[1].presence = None;
        assert_eq!(KeptPlacements::of(&contents, "io1", &last), last);
        contents.nodes.remove(1);
        assert_eq!(of(&contents, "io1", &last).1, ["vm1 a4"]);
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("placements.json");
        assert_eq!(KeptPlacements::load(&path).unwrap(), none);
        // A record that is not there, or cannot be read, takes no mark away.
        let mark = OpenedMark { placed_s: 5, pool: "fast".to_owned(), place: None };
        let opened = BTreeMap::from(["a", "gone"].map(|it| (it.to_owned(), mark.clone())));
        let last = KeptPlacements { opened: opened.clone(), ..last };
        let last = KeptPlacements::of(&contents, "io1", &last);
        assert_eq!(last.opened, opened);
        last.keep(&path).unwrap();
        assert_eq!(KeptPlacements::load(&path).unwrap(), last);
        for damaged in ["", "{}", "x", r#"{"version":9,"volumes":{},"peers":{}}"#] {
            std::fs::write(&path, damaged).unwrap();
            assert!(KeptPlacements::load(&path).is_err(), "{damaged}");
        }
    }

    #[test]
    fn a_copy_whose_place_is_empty_has_gone_and_no_other_has() {
        let mark = |place| OpenedMark { placed_s: 5, pool: "fast".to_owned(), place };
        let placed = |placed_s, nodes: &[&str]| PlacementRecord {
            copies: nodes.iter().map(|node| PlacedCopy::new(node, "fast")).collect(),
            placed_s,
            ..PlacementRecord::default()
        };
        for (mark, placement, has_gone) in [
            (mark(Some(1)), placed(5, &["io1", "", "io3"]), true),
            // The node has another copy, at another place.
            (mark(Some(1)), placed(5, &["io1", "", "io2"]), true),
            (mark(Some(1)), placed(5, &["io1", "io2"]), false),
            // A later volume of the name, a registry of before the copy came, and an old mark.
            (mark(Some(1)), placed(6, &["io1", "", "io3"]), false),
            (mark(Some(2)), placed(5, &["io1", ""]), false),
            (mark(None), placed(5, &["io1", ""]), false),
        ] {
            let opened = BTreeMap::from([("alice".to_owned(), mark.clone())]);
            let kept = KeptPlacements { opened, ..KeptPlacements::default() };
            let contents = ClusterContents {
                stamp: Stamp { store: 1, revision: 1 },
                cluster: None,
                nodes: Vec::new(),
                tokens: Vec::new(),
                volumes: Vec::new(),
                placements: vec![("alice".to_owned(), placement.clone())],
                unreadable: Vec::new(),
            };
            let gone = kept.gone(&contents);
            assert_eq!(gone.contains_key("alice"), has_gone, "{mark:?} {placement:?}");
        }
    }

    #[test]
    fn a_record_that_cannot_be_read_ends_no_copy() {
        let copy = PlacedCopy::new("io1", "fast");
        let placed = PlacementRecord { copies: vec![copy], ..PlacementRecord::default() };
        let volumes = BTreeMap::from([("alice".to_owned(), placed)]);
        let last = KeptPlacements { volumes: volumes.clone(), ..KeptPlacements::default() };
        let place = "/vrio/ab12/placements/alice".to_owned();
        let damaged = registry::RegistryError::Damaged { place, reason: "x".to_owned() };
        let mut contents = ClusterContents {
            stamp: Stamp { store: 1, revision: 1 },
            cluster: None,
            nodes: Vec::new(),
            tokens: Vec::new(),
            volumes: Vec::new(),
            placements: Vec::new(),
            unreadable: vec![damaged],
        };
        assert_eq!(KeptPlacements::of(&contents, "io1", &last).volumes, volumes);
        contents.unreadable.clear();
        assert!(KeptPlacements::of(&contents, "io1", &last).volumes.is_empty());
    }
}
