//! The disks of a node that name a placed volume alone: when the volume gets other nodes, the agent
//! has the running disks ask these.

use std::collections::BTreeMap;
use std::path::Path;

use ::cluster::KeptPlacements;
use ::cluster::registry::PlacementRecord;
use node::status::{DiskStatus, Status};
use serde_json::json;

use crate::live;

/// Gives disks the nodes of their placed volumes.
#[derive(Debug, Default)]
pub(super) struct DiskPeers {
    /// Why disks have not got them, by their names; logged once.
    refused: BTreeMap<String, String>,
}

impl DiskPeers {
    /// Has each disk of a placed volume ask the nodes that the volume has now.
    pub(super) fn follow(
        &mut self,
        kept: &KeptPlacements,
        node: &str,
        (control, status): (&Path, &Status),
    ) {
        let mut refused = BTreeMap::new();
        for (disk, peers) in wanted(kept, node, status) {
            let (path, body) = (format!("/v1/disks/{disk}/peers"), json!({ "peers": peers }));
            let Err(error) = live::ask(control, "PUT", &path, Some(&body)) else {
                let peers = peers.join(",");
                tracing::info!(disk, peers, "the disk's volume has other nodes");
                continue;
            };
            let why = error.to_string();
            if self.refused.get(disk) != Some(&why) {
                tracing::error!(disk, why, "the disk does not follow its volume to other nodes");
            }
            refused.insert(disk.to_owned(), why);
        }
        self.refused = refused;
    }
}

/// The disks whose lists of peers are not the nodes of their placed volumes, and these nodes. A
/// list that an operator wrote is left alone.
fn wanted<'a>(
    kept: &'a KeptPlacements,
    node: &str,
    status: &'a Status,
) -> Vec<(&'a str, Vec<&'a str>)> {
    let wanted = |disk: &'a DiskStatus| {
        let (peers, volume) = disk.volume.rsplit_once('/')?;
        let mut nodes = nodes(kept.volumes.get(volume)?)?;
        // A node that was away since this node has heard of it is no peer yet.
        let is_peer = |name: &str| status.peers.iter().any(|peer| peer.name == name);
        nodes.retain(|name| *name == node || is_peer(name));
        if nodes.is_empty() {
            return None;
        }
        (!peers.split(',').eq(nodes.iter().copied())).then_some((disk.name.as_str(), nodes))
    };
    status.disks.iter().filter(|disk| disk.placed).filter_map(wanted).collect()
}

/// The nodes of a placed volume, as a disk can name them.
fn nodes(placement: &PlacementRecord) -> Option<Vec<&str>> {
    let nodes: Vec<_> = placement.members().map(|(_, copy)| copy.node.as_str()).collect();
    (placement.removing.is_none() && !nodes.is_empty()).then_some(nodes)
}

#[cfg(test)]
mod tests {
    use node::status::PeerStatus;
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_disk_gets_the_nodes_of_its_placed_volume() {
        let kept = |nodes: Value, removing: Value| -> KeptPlacements {
            let nodes = nodes.as_array().expect("names").iter();
            let copies: Vec<_> = nodes.map(|it| json!({ "node": it, "pool": "p" })).collect();
            let alice = json!({
                "size_bytes": 1, "copies": copies, "placed_s": 1, "removing": removing,
            });
            let kept = json!({ "version": 1, "volumes": { "alice": alice }, "peers": {} });
            serde_json::from_value(kept).expect("a file of placements")
        };
        let status = |volume: &str, placed: bool| Status {
            disks: vec![DiskStatus {
                name: "a".to_owned(),
                volume: volume.to_owned(),
                placed,
                ..DiskStatus::default()
            }],
            peers: ["io1", "io2", "io3"]
                .map(|name| PeerStatus { name: name.to_owned(), ..PeerStatus::default() })
                .into(),
            ..Status::default()
        };
        let placed = status("io1,io2/alice", true);
        for (nodes, found) in [
            (json!(["io1", "io3"]), Some("io1,io3")),
            (json!(["io2", "io1"]), Some("io2,io1")),
            (json!(["io1", "", "io3"]), Some("io1,io3")),
            (json!(["io1", "io2"]), None),
            (json!(["io1", "io2", ""]), None),
            (json!([""]), None),
            (json!(["io1", "vm1"]), Some("io1,vm1")),
            (json!(["io1", "io3", "io9"]), Some("io1,io3")),
            (json!(["io9"]), None),
        ] {
            let kept = kept(nodes.clone(), Value::Null);
            let wanted = wanted(&kept, "vm1", &placed);
            let wanted: Vec<_> = wanted.iter().map(|(_, peers)| peers.join(",")).collect();
            assert_eq!(wanted, Vec::from_iter(found), "{nodes}");
        }
        let moved = kept(json!(["io3"]), Value::Null);
        for left_alone in
            [status("io1,io2/alice", false), status("io1,io2/bob", true), status("alice", true)]
        {
            assert!(wanted(&moved, "vm1", &left_alone).is_empty(), "{left_alone:?}");
        }
        let removing = kept(json!(["io3"]), json!(["io3"]));
        assert!(wanted(&removing, "vm1", &placed).is_empty());
    }
}
