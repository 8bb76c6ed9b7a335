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

    /// The peers that leave the list of a disk with this change of it, and that are in no line of
    /// the file: they came with a placement.
    pub fn placed_peers_left(&self, wanted: &DiskConfig) -> Vec<String> {
        let disk = self.disks.iter().find(|disk| disk.name == wanted.name);
        let left = disk.into_iter().flat_map(|disk| &disk.volume.peers);
        let left = left.filter(|name| !wanted.volume.may_be_on(name));
        let is_placed = |name: &&String| self.peer(name).is_some_and(|it| !it.lines.has("name"));
        left.filter(is_placed).cloned().collect()
    }
}

/// Gives disks that name a volume of the cluster alone its nodes. With `adds_peers` nodes that are
/// no peers become peers: of a file that names none, when the node starts. A running node gets them
/// from its agent.
pub(crate) fn resolve(config: &mut Config, adds_peers: bool) {
    if config.cluster.is_none() {
        return;
    }
    // The copy here is one of several copies, and another node may serve.
    let is_known = |name: &str| {
        let mut here = config.volumes.iter().filter(|volume| volume.placement.is_none());
        here.any(|volume| volume.name == name)
    };
    let unknown = |disk: &DiskConfig| disk.volume.is_here() && !is_known(&disk.volume.volume);
    let disks: Vec<usize> =
        (0..config.disks.len()).filter(|at| unknown(&config.disks[*at])).collect();
    if disks.is_empty() {
        return;
    }
    // Without the file the disks have no such volume, which is told.
    let Some(placed) = read(&config.placements_path()) else { return };
    for at in disks {
        let Some(nodes) = nodes(&placed, &config.disks[at].volume.volume) else { continue };
        let peers = nodes.iter().filter(|_| adds_peers);
        let peers = peers.filter(|name| config.peer(name).is_none());
        let peers: Vec<_> = peers.filter_map(|name| peer(&placed, name)).collect();
        config.objects.peers.extend(peers);
        // A node that was away since this node has heard of it is no peer yet: the agent adds it.
        let is_peer = |name: &String| *name == config.name || config.peer(name).is_some();
        let nodes = match nodes.iter().any(is_peer) {
            true => nodes.into_iter().filter(is_peer).collect(),
            false => nodes,
        };
        let volume = &mut config.objects.disks[at].volume;
        (volume.peers, volume.is_placed) = (nodes, true);
    }
}

/// The nodes of a volume that the cluster has placed, as peers of a client of the name `own`, from
/// the file that the agent of a node keeps. None without the file, or if it has no such volume or
/// none of its nodes was ever reached.
pub fn placed_peers(file: &Path, volume: &str, own: &str) -> Option<Vec<PeerConfig>> {
    let placed = read(file)?;
    // A client of a node's name would be taken for the node.
    let nodes = nodes(&placed, volume).filter(|nodes| nodes.iter().all(|node| node != own))?;
    let peers: Vec<_> = nodes.iter().filter_map(|name| peer(&placed, name)).collect();
    (!peers.is_empty()).then_some(peers)
}

fn read(path: &Path) -> Option<Value> {
    let mut bytes = Vec::new();
    // A pipe in its place would never be read.
    path.metadata().ok().filter(|it| it.is_file())?;
    File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// The nodes with copies of a volume. A copy that has gone has no node, and a copy that is out
/// serves nothing.
fn nodes(placed: &Value, volume: &str) -> Option<Vec<String>> {
    let copies = placed["volumes"].get(volume)?["copies"].as_array()?;
    let members = copies.iter().filter(|copy| copy["leaves"] != "out");
    let nodes: Option<Vec<String>> =
        members.map(|copy| copy["node"].as_str().map(str::to_owned)).collect();
    let mut nodes = nodes?;
    nodes.retain(|node| !node.is_empty());
    let is_plain = nodes.iter().all(|node| name_problem(node).is_none());
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

    /// A node whose disk names a volume, and the file that its agent keeps.
    struct DiskFile(tempfile::TempDir);

    impl DiskFile {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn read(&self, volume: &str) -> Result<Config, crate::ConfigError> {
            let home = self.0.path();
            let text = format!(
                "name = \"vm1\"\nlisten = \"127.0.0.1:4870\"\nkey = \"/vm1.key\"\n[cluster]\n\
                 [directories]\nsockets = {home:?}\nstate = {home:?}\n\
                 [[disk]]\nsocket = \"a.sock\"\nvolume = {volume:?}\n"
            );
            Config::parse(Path::new("/n.toml"), &text)
        }

        fn keep(&self, content: &str) {
            let directory = self.0.path().join(DIRECTORY);
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join(FILE), content).unwrap();
        }
    }

    /// The file with these copies of a volume.
    fn kept(copies: &str) -> String {
        let node = |at: u8| {
            let key = ["", "A", "B"][usize::from(at)].repeat(42);
            format!(r#"{{"address":"10.0.0.{at}:4870","key":"{key}A="}}"#)
        };
        let peers = format!(r#"{{"io1":{},"io2":{}}}"#, node(1), node(2));
        format!(r#"{{"version":1,"volumes":{{"alice":{{"copies":[{copies}]}}}},"peers":{peers}}}"#)
    }

    const BOTH: &str = r#"{"node":"io1","pool":"p"},{"node":"io2","pool":"p"}"#;

    #[test]
    fn a_disk_that_names_a_volume_of_the_cluster_alone_names_its_nodes() {
        let rig = DiskFile::new();
        let error = rig.read("alice").unwrap_err().to_string();
        assert!(error.contains("has no volume \"alice\""), "{error}");
        assert!(error.contains("vrio volume create"), "{error}");
        rig.keep(&kept(BOTH));
        let config = rig.read("alice").unwrap();
        assert_eq!(config.disks[0].volume.to_string(), "io1,io2/alice");
        assert_eq!(config.disks[0].volume, rig.read("alice").unwrap().disks[0].volume);
        let address = |at: usize| config.peers[at].address.as_ref().unwrap().to_string();
        assert_eq!([address(0), address(1)], ["10.0.0.1:4870", "10.0.0.2:4870"]);
        // A client that is no node has them from the same file.
        let path = rig.0.path().join(DIRECTORY).join(FILE);
        assert_eq!(placed_peers(&path, "alice", "web1").unwrap(), config.peers);
        for (volume, own) in [("bob", "web1"), ("alice", "io1")] {
            assert_eq!(placed_peers(&path, volume, own), None);
        }
        // A running node has its peers from its agent.
        let disk = serde_json::json!({ "socket": "b.sock", "volume": "alice" });
        let more = config.with(crate::Kind::named("disk").unwrap(), disk.as_object().unwrap());
        assert_eq!(more.unwrap().disks[1].volume.to_string(), "io1,io2/alice");
        assert!(rig.read("bob").is_err());
        // The node's own copy is in the list, and needs no peer.
        rig.keep(&kept(r#"{"node":"vm1","pool":"p"},{"node":"io1","pool":"p"}"#));
        let beside = rig.read("alice").unwrap();
        assert_eq!(beside.disks[0].volume.to_string(), "vm1,io1/alice");
        assert!(beside.peer("vm1").is_none());
        for wrong in [
            "",
            "[]",
            "{}",
            r#"{"volumes":[]}"#,
            &kept(""),
            &kept(r#"{"node":""}"#),
            &kept(r#"{"node":"a/b"}"#),
            &kept(r#"{"node":7}"#),
            &kept(r#"{"node":"io9"}"#),
        ] {
            rig.keep(wrong);
            assert!(rig.read("alice").is_err(), "{wrong}");
        }
    }

    #[test]
    fn other_nodes_are_no_other_volume_and_a_list_by_hand_is_one() {
        let rig = DiskFile::new();
        rig.keep(&kept(BOTH));
        let running = rig.read("alice").unwrap();
        // A copy that has gone, a copy that is out, and a node that was never heard of.
        rig.keep(&kept(
            r#"{"node":"io1","pool":"p","leaves":"out"},{"node":"io2","pool":"p"},
               {"node":"","pool":""},{"node":"io9","pool":"p"}"#,
        ));
        let moved = rig.read("alice").unwrap();
        let (before, after) = (&running.disks[0].volume, &moved.disks[0].volume);
        assert_eq!((before.kept_as(), after.to_string()), (after.kept_as(), "io2/alice".into()));
        let steps = |running: &Config, wanted: &Config| {
            let all = crate::changes(running, wanted);
            let disks = all.iter().filter(|it| it.kind() == crate::Kind::of::<DiskConfig>());
            disks.map(ToString::to_string).collect::<Vec<_>>()
        };
        let text = "change disk \"a\": its volume is now io2/alice";
        assert_eq!(steps(&running, &moved), [text]);
        assert_eq!(running.placed_peers_left(&moved.disks[0]), ["io1"]);
        let mut written = moved.clone();
        written.objects.disks[0].volume.is_placed = false;
        let again = steps(&moved, &written);
        assert!(again[0].contains("to add it again below (volume changed)"), "{again:?}");
        let by_hand = written.disks[0].volume.kept_as();
        assert_eq!((by_hand.as_str(), after.kept_as().as_str()), ("io2/alice", "*/alice"));
    }
}
