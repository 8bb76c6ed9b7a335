//! Volumes that the cluster has placed, and that a disk names alone: the node's agent keeps where
//! their copies are, and a disk is read as if it named these nodes.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use block::ROUTE_PEERS_MAX;
use serde_json::Value;
use transport::PublicKey;

use crate::address::PeerAddress;
use crate::config::Config;
use crate::kinds::disk::DiskConfig;
use crate::kinds::peer::{PeerConfig, PeerKey};
use crate::reader::Lines;
use crate::values::name_problem;

/// The directory of the agent's file, in the node's memory. It cannot be a volume's, since volumes
/// have no dot in their files' names.
const DIRECTORY: &str = "own.cluster";

/// The file.
const FILE: &str = "placements.json";

/// The longest file that is read, as the agent writes it.
const FILE_BYTES_MAX: u64 = 1 << 20;

impl Config {
    /// The directory in which the node's agent keeps what the cluster has placed. The node reads
    /// it, and the agent has no other right in the node's memory.
    pub fn placements_directory(&self) -> PathBuf {
        self.memory_directory().join(DIRECTORY)
    }

    /// The agent's file there.
    pub fn placements_path(&self) -> PathBuf {
        self.placements_directory().join(FILE)
    }
}

/// Gives disks that name a volume of the cluster alone its nodes. With `adds_peers` nodes that are
/// no peers become peers: of a file that names none, when the node starts. A running node gets them
/// from its agent.
pub(crate) fn resolve(config: &mut Config, adds_peers: bool) {
    if config.cluster.is_none() {
        return;
    }
    let is_known = |name: &str| config.volumes.iter().any(|volume| volume.name == name);
    let unknown = |disk: &DiskConfig| disk.volume.is_here() && !is_known(&disk.volume.volume);
    let disks: Vec<usize> =
        (0..config.disks.len()).filter(|at| unknown(&config.disks[*at])).collect();
    if disks.is_empty() {
        return;
    }
    // Without the file the disks have no such volume, which is told.
    let Some(placed) = read(&config.placements_path()) else { return };
    for at in disks {
        let Some(nodes) = nodes(&placed, &config.disks[at].volume.volume, &config.name) else {
            continue;
        };
        let peers = nodes.iter().filter(|_| adds_peers);
        let peers = peers.filter(|name| config.peer(name).is_none());
        let peers: Vec<_> = peers.filter_map(|name| peer(&placed, name)).collect();
        config.objects.peers.extend(peers);
        config.objects.disks[at].volume.peers = nodes;
    }
}

fn read(path: &Path) -> Option<Value> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// The nodes with copies of a volume, unless this node is one of them: a disk beside a copy names
/// the nodes that it may ask.
fn nodes(placed: &Value, volume: &str, own: &str) -> Option<Vec<String>> {
    let copies = placed["volumes"].get(volume)?["copies"].as_array()?;
    let nodes: Option<Vec<String>> =
        copies.iter().map(|copy| copy["node"].as_str().map(str::to_owned)).collect();
    let nodes = nodes?;
    let is_plain = nodes.iter().all(|node| name_problem(node).is_none() && node != own);
    (is_plain && (1..=ROUTE_PEERS_MAX).contains(&nodes.len())).then_some(nodes)
}

fn peer(placed: &Value, name: &str) -> Option<PeerConfig> {
    let known = placed["peers"].get(name)?;
    let address = known["address"].as_str()?.parse().ok()?;
    let key: PublicKey = known["key"].as_str()?.parse().ok()?;
    Some(PeerConfig {
        name: name.to_owned(),
        address: Some(PeerAddress::Network(address)),
        keys: vec![PeerKey { key, expires_unix_s: None }],
        lines: Lines::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_names_a_volume_of_the_cluster_alone_names_its_nodes() {
        let home = tempfile::tempdir().unwrap();
        let text = |volume: &str| {
            format!(
                "name = \"vm1\"\nlisten = \"127.0.0.1:4870\"\nkey = \"/vm1.key\"\n[cluster]\n\
                 [directories]\nsockets = {:?}\nstate = {:?}\n\
                 [[disk]]\nsocket = \"a.sock\"\nvolume = {volume:?}\n",
                home.path(),
                home.path()
            )
        };
        let read = |volume: &str| Config::parse(Path::new("/n.toml"), &text(volume));
        let error = read("alice").unwrap_err().to_string();
        assert!(error.contains("has no volume \"alice\""), "{error}");
        assert!(error.contains("vrio volume create"), "{error}");
        let directory = home.path().join(DIRECTORY);
        std::fs::create_dir(&directory).unwrap();
        let keep = |content: &str| std::fs::write(directory.join(FILE), content).unwrap();
        let node = |at: u8| {
            let key = ["", "A", "B"][usize::from(at)].repeat(42);
            format!(r#"{{"address":"10.0.0.{at}:4870","key":"{key}A="}}"#)
        };
        let kept = |nodes: &str| {
            let peers = format!(r#"{{"io1":{},"io2":{}}}"#, node(1), node(2));
            format!(
                r#"{{"version":1,"volumes":{{"alice":{{"copies":[{nodes}]}}}},"peers":{peers}}}"#
            )
        };
        let both = r#"{"node":"io1","pool":"p"},{"node":"io2","pool":"p"}"#;
        keep(&kept(both));
        let config = read("alice").unwrap();
        assert_eq!(config.disks[0].volume.to_string(), "io1,io2/alice");
        assert_eq!(config.disks[0].volume, read("alice").unwrap().disks[0].volume);
        let address = |at: usize| config.peers[at].address.as_ref().unwrap().to_string();
        assert_eq!([address(0), address(1)], ["10.0.0.1:4870", "10.0.0.2:4870"]);
        // A running node has its peers from its agent.
        let disk = serde_json::json!({ "socket": "b.sock", "volume": "alice" });
        let more = config.with(crate::Kind::named("disk").unwrap(), disk.as_object().unwrap());
        assert_eq!(more.unwrap().disks[1].volume.to_string(), "io1,io2/alice");
        assert!(read("bob").is_err());
        for wrong in [
            "",
            "[]",
            "{}",
            r#"{"volumes":[]}"#,
            &kept(""),
            &kept(r#"{"node":"vm1"}"#),
            &kept(r#"{"node":"a/b"}"#),
            &kept(r#"{"node":7}"#),
            &kept(r#"{"node":"io9"}"#),
        ] {
            keep(wrong);
            assert!(read("alice").is_err(), "{wrong}");
        }
    }
}
