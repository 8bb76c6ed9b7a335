//! A real node whose records another program has written or put back. It serves no volume under a
//! record that it cannot believe, and says so. Every other volume goes on, and records of an older
//! release are believed.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use random::Random;
use testbed::nodes::{Node, NodePlan};
use testbed::stand_in::StandIn;
use workload::Mix;

/// The volume's blocks of 4 KiB that a guest uses.
const BLOCKS: u64 = 1024;

/// A node with two volumes, each with a disk of its own.
struct Host {
    _home: tempfile::TempDir,
    plan: NodePlan,
}

impl Host {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let config = "[sidecores]\ncount = 1\nidle = \"adaptive\"\n\
             [[volume]]\nname = \"root\"\nbackend = { file = \"root.img\", size = \"16MiB\" }\n\
             [[volume]]\nname = \"blue\"\nbackend = { file = \"blue.img\", size = \"16MiB\" }\n\
             [[disk]]\nsocket = \"alice.sock\"\nvolume = \"root\"\n\
             [[disk]]\nsocket = \"bob.sock\"\nvolume = \"blue\"\n";
        let program = env!("CARGO_BIN_EXE_vrio");
        let plan = NodePlan::new(program, home.path(), "vm1", config.to_owned());
        Self { plan, _home: home }
    }

    fn start(&self) -> Node {
        self.plan.start().expect("the node starts")
    }

    fn state(&self, path: &str) -> PathBuf {
        self.plan.file(".vrio").join(path)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.plan.home.join("log")).expect("a log")
    }

    fn guest(&self, node: &mut Node, disk: &str, random: &mut Random) -> StandIn {
        let socket = node.wait_for_disk(disk).expect("the disk is served");
        StandIn::connect(&socket, 1, Mix::OF_ALL, BLOCKS, random).expect("connects")
    }

    /// The output of `vrio status` for people, in one line.
    fn printed(&self) -> String {
        let control = self.plan.control();
        let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
        let output = command.arg("status").arg("--control").arg(control).output().expect("runs");
        let text = String::from_utf8(output.stdout).expect("text");
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// Works until some more requests were answered, and none is on its way.
fn work(guest: &mut StandIn, who: &str) {
    let until = guest.workload.counts.completed + 200;
    let worked = guest.work(|guest| guest.workload.counts.completed >= until);
    worked.unwrap_or_else(|error| panic!("{who}: {error:#}"));
    guest.drain().unwrap_or_else(|error| panic!("{who}: {error:#}"));
    assert_eq!(guest.workload.counts.errors, 0, "{who}");
}

fn wait_for_text(node: &mut Node, what: &str, text: &[&str]) {
    let is_told = |node: &Node| {
        let status = node.status().map(|status| status.to_string()).unwrap_or_default();
        text.iter().all(|text| status.contains(text))
    };
    node.wait_until(what, is_told).unwrap_or_else(|error| panic!("{what}: {error:#}"));
}

/// CRC-32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// The record as the first releases wrote it: with a checksum instead of the code.
fn older(record: &[u8]) -> Vec<u8> {
    const BEHIND_REPLACED: usize = 16 + 96;
    let mut bytes = b"vrAT\x01\0\0\0".to_vec();
    bytes.extend_from_slice(&record[16..BEHIND_REPLACED]);
    bytes.extend_from_slice(&record[BEHIND_REPLACED..BEHIND_REPLACED + 4]);
    bytes.extend_from_slice(&crc32c(&bytes).to_le_bytes());
    bytes
}

#[test]
fn a_record_that_cannot_be_believed_stops_its_volume_and_no_other() {
    let mut random = Random::new(1);
    let host = Host::new();
    let mut node = host.start();
    let mut alice = host.guest(&mut node, "alice", &mut random);
    let mut bob = host.guest(&mut node, "bob", &mut random);
    work(&mut alice, "alice");
    work(&mut bob, "bob");
    node.kill().expect("it runs");
    let path = host.state("root/alice");
    let sound = fs::read(&path).expect("a record");
    let flip = |at: usize| {
        let mut bytes = sound.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    let write = |bytes: &[u8]| fs::write(&path, bytes).expect("writes");
    let other = fs::read(host.state("blue/bob")).expect("a record");
    let moved = host.state("moved");
    let link = || {
        fs::write(&moved, &sound).expect("writes");
        symlink(&moved, &path).expect("links");
    };
    let last = sound.len() - 1;
    let damages: [(&str, &dyn Fn(), &str); 9] = [
        ("its magic", &|| write(&flip(0)), "damaged"),
        ("its version", &|| write(&flip(4)), "newer release"),
        ("its epoch", &|| write(&flip(16)), "damaged"),
        ("its code", &|| write(&flip(last)), "damaged"),
        ("cut", &|| write(&sound[..last]), "damaged"),
        ("empty", &|| write(&[]), "damaged"),
        ("another volume's", &|| write(&other), "damaged"),
        ("an older release's", &|| write(&older(&sound)), "older release"),
        ("a link", &link, "symbolic link"),
    ];
    for (what, damage, why) in damages {
        fs::remove_file(&path).expect("is there");
        damage();
        let mut node = host.start();
        work(&mut bob, what);
        let way_out = ["root is not served", "root/alice", why, "rm ", "accept-loss"];
        wait_for_text(&mut node, what, &way_out);
        let printed = host.printed();
        assert!(printed.contains("STOPPED") && printed.contains(why), "{what}: {printed}");
        let alice = &node.status().expect("answers")["disks"][0];
        assert!(alice["name"] == "alice" && alice["state"] != "running", "{alice}");
        node.kill().expect("it runs");
    }
    fs::remove_file(&path).expect("is there");
    write(&sound);
    let node = host.start();
    work(&mut alice, "alice again");
    for guest in [&mut alice, &mut bob] {
        guest.read_all().expect("all of the disk is as promised");
    }
    node.stop().expect("it stops in order");
}

/// The secret proves all records: without it no record is believed, and the node says so.
#[test]
fn without_the_secret_no_record_is_believed() {
    let mut random = Random::new(2);
    let host = Host::new();
    let mut node = host.start();
    let mut alice = host.guest(&mut node, "alice", &mut random);
    work(&mut alice, "alice");
    node.kill().expect("it runs");
    let (path, sound) = (host.state(".secret"), fs::read(host.state(".secret")).expect("is there"));
    for (bytes, why) in [(Some(&sound[1..]), "31 bytes"), (None, "another secret")] {
        fs::remove_file(&path).expect("is there");
        if let Some(bytes) = bytes {
            fs::write(&path, bytes).expect("writes");
        }
        let mut node = host.start();
        wait_for_text(&mut node, why, &["root is not served", why, "accept-loss"]);
        node.kill().expect("it runs");
        fs::write(&path, &sound).expect("writes");
    }
    let node = host.start();
    work(&mut alice, "alice again");
    alice.read_all().expect("all of the disk is as promised");
    node.stop().expect("it stops in order");
}

/// A record that was put back has a good code, and says that its guest had ended in order. The
/// notes of the guest's node contradict it.
#[test]
fn an_old_record_in_the_place_of_a_newer_one_hides_no_loss() {
    let mut random = Random::new(3);
    let host = Host::new();
    let mut node = host.start();
    let mut alice = host.guest(&mut node, "alice", &mut random);
    work(&mut alice, "alice");
    node.stop().expect("it stops in order");
    let (path, note) = (host.state("root/alice"), host.state("root/.incarnation"));
    let old = fs::read(&path).expect("a record");
    let node = host.start();
    work(&mut alice, "alice");
    node.kill().expect("it runs");
    assert_ne!(fs::read(&path).expect("a record"), old);
    fs::write(&path, &old).expect("writes");
    // The same change as after a loss of power.
    let mut bytes = fs::read(&note).expect("a note");
    bytes[16] ^= 1;
    fs::write(&note, bytes).expect("writes");
    let mut node = host.start();
    wait_for_text(&mut node, "alice is told", &["may be lost", "\"failed\""]);
    assert!(host.log().contains("a later epoch than the volume's records"), "{}", host.log());
    alice.disconnect();
    node.stop().expect("it stops in order");
}

#[test]
fn a_record_of_an_older_release_is_believed_once() {
    let mut random = Random::new(4);
    let host = Host::new();
    let mut node = host.start();
    let mut alice = host.guest(&mut node, "alice", &mut random);
    work(&mut alice, "alice");
    node.kill().expect("it runs");
    let path = host.state("root/alice");
    let left = older(&fs::read(&path).expect("a record"));
    let state = host.state("");
    fs::remove_dir_all(&state).expect("is there");
    fs::create_dir_all(host.state("root")).expect("makes");
    fs::write(&path, &left).expect("writes");
    // An older release left its directory open to all users, and its files may belong to another
    // user.
    for path in [&state, &host.state("root"), &path] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("ours");
    }
    let is_root = fs::metadata(&path).expect("is there").uid() == 0;
    if is_root {
        chown(&path, Some(65534), Some(65534)).expect("root may");
    }
    let mut node = host.start();
    work(&mut alice, "alice");
    assert!(host.log().contains("other users could access"), "{}", host.log());
    // The first claim writes the record anew, with a code, for the node's user alone.
    let sealed = fs::read(&path).expect("a record");
    assert_ne!(sealed.len(), left.len());
    let mode = |path: &Path| fs::metadata(path).expect("is there").permissions().mode() & 0o777;
    assert_eq!((mode(&state), mode(&host.state("root")), mode(&path)), (0o700, 0o700, 0o600));
    assert_eq!(mode(&host.state(".secret")), 0o600);
    node = node.hand_over().expect("it goes over");
    work(&mut alice, "alice behind a hand-over");
    alice.read_all().expect("all of the disk is as promised");
    node.kill().expect("it runs");
    fs::write(&path, &left).expect("writes");
    let mut node = host.start();
    wait_for_text(&mut node, "it is not believed again", &["root is not served", "older release"]);
    node.stop().expect("it stops in order");
}

/// The successor reads the records anew. If it cannot believe them, the node that has read them
/// before goes on.
#[test]
fn a_hand_over_is_refused_where_records_cannot_be_believed() {
    let mut random = Random::new(5);
    let host = Host::new();
    let mut node = host.start();
    let mut alice = host.guest(&mut node, "alice", &mut random);
    work(&mut alice, "alice");
    // The node writes the attachment's own record anew before the successor reads it, so another
    // file is damaged here.
    let path = host.state("root/.floor");
    fs::write(&path, b"no floor").expect("writes");
    let mut next = host.plan.spawn(&["--take-over"]).expect("starts");
    let ended = |next: &mut Node| next.ended().expect("the system says");
    while ended(&mut next).is_none() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(ended(&mut next), Some(false));
    assert!(host.log().contains("root/.floor: it is damaged"), "{}", host.log());
    work(&mut alice, "alice with the process that has read them");
    fs::remove_file(&path).expect("is there");
    let node = node.hand_over().expect("it goes over");
    work(&mut alice, "alice behind a hand-over");
    alice.read_all().expect("all of the disk is as promised");
    assert_eq!(alice.reconnects(), 0);
    node.stop().expect("it stops in order");
}
