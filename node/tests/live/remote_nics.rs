//! Nics whose network is on another node: stand-in guests on two nodes, and frames between them.

use net::maker::FrameMaker;
use node::Node;
use node::keys::{self, KeyKind};
use node::status::{DiskState, Status};

use serde_json::json;

use super::control::done;
use super::nics::{Guest, mac};
use super::{start_file, write_file};
use crate::common::{Home, address, wait_for};

/// Two networks, of which the second is on the second sidecore. There no session of the VMhost's
/// first sidecore ends by itself.
const IO1: &str = r#"
name = "io1"
listen = "ADDRESS"
privileges = "keep"
SECURITY
[sidecores]
count = 2
[directories]
sockets = "HOME"
[[peer]]
name = "vm1"
PEER
[[network]]
name = "red"
[[network]]
name = "blue"
allow = [ALLOWED]
remote = { vlans = [7], filter = { default = "allow", rules = ["deny sent udp to any port 9"] } }
[[nic]]
socket = "io.sock"
network = "blue"
mac = "52:54:00:00:00:02"
"#;

const VM1: &str = r#"
name = "vm1"
listen = "127.0.0.1:0"
privileges = "keep"
SECURITY
[sidecores]
count = 1
[directories]
sockets = "HOME"
[[peer]]
name = "io1"
address = "ADDRESS"
PEER
[[nic]]
socket = "one.sock"
network = "io1/blue"
PROOF
mac = "52:54:00:00:00:01"
[[nic]]
socket = "red.sock"
network = "io1/red"
mac = "52:54:00:00:00:01"
[[nic]]
socket = "seven.sock"
network = "io1/blue"
PROOF
vlan = 7
mac = "52:54:00:00:00:03"
[[nic]]
socket = "eight.sock"
network = "io1/blue"
PROOF
vlan = 8
mac = "52:54:00:00:00:04"
"#;

/// Both nodes, each with a directory of its own, and the address of the IOhost.
struct Pair {
    io: Home,
    vm: Home,
    address: String,
    keys: Option<[String; 2]>,
}

impl Pair {
    fn new(sealed: bool) -> Self {
        let (io, vm) = (Home::new(), Home::new());
        let keys = sealed.then(|| {
            [&io, &vm]
                .map(|home| keys::create(&home.path("node.key"), KeyKind::Node).unwrap().public())
        });
        keys::create(&vm.path("alice.key"), KeyKind::Attachment).unwrap();
        Self { io, vm, address: address(), keys }
    }

    fn text(&self, text: &str, home: &Home, peer: usize) -> String {
        let key = home.path("node.key");
        let (security, peer) = match &self.keys {
            Some(keys) => (format!("key = {key:?}"), format!("key = {:?}", keys[peer])),
            None => (String::new(), String::new()),
        };
        let peer = match (self.keys.is_some(), text == IO1) {
            (false, true) => "address = \"127.0.0.1:1\"".to_owned(),
            _ => peer,
        };
        // In sealed sessions the tenant's key is demanded as well as the node's.
        let alice = self.vm.path("alice.key");
        let (allowed, proof) = match &self.keys {
            Some(_) => {
                let key = keys::read(&alice).unwrap().public();
                (
                    format!("{{ node = \"vm1\", key = {key:?} }}"),
                    format!("attachment-key = {alice:?}"),
                )
            }
            None => ("\"vm1\"".to_owned(), String::new()),
        };
        text.replace("ADDRESS", &self.address)
            .replace("ALLOWED", &allowed)
            .replace("PROOF", &proof)
            .replace("SECURITY", &security)
            .replace("PEER", &peer)
    }

    fn start_io(&self) -> Node {
        self.io.start(&self.text(IO1, &self.io, 1))
    }

    fn start_vm(&self) -> Node {
        self.vm.start(&self.text(VM1, &self.vm, 0))
    }
}

fn joined(node: &Node, nic: usize) {
    wait_for(node, "joined", |status| {
        status.nics[nic].counters["remote_joins"] > 0 && status.nics[nic].detail.is_empty()
    });
}

fn frame(from: u8, to: u8, port: u16, bytes: usize) -> Vec<u8> {
    FrameMaker::udp4().from(mac(from)).to(mac(to)).ports(1, port).payload(bytes).build()
}

#[test]
fn guests_of_two_nodes_hear_each_other_also_after_either_was_restarted() {
    for sealed in [true, false] {
        let pair = Pair::new(sealed);
        let mut io = pair.start_io();
        let mut vm = pair.start_vm();
        joined(&vm, 0);
        joined(&vm, 2);
        for round in 0..3 {
            let mut one = Guest::new(&pair.vm, "one.sock", false);
            let mut two = Guest::new(&pair.io, "io.sock", false);
            for bytes in [0, 60, 130, 150, 1000, 1472] {
                // A frame that the network's own node refuses, and one that it admits.
                one.say(&frame(1, 2, 9, bytes));
                one.say(&frame(1, 2, 2000, bytes));
                assert_eq!(two.hear(), frame(1, 2, 2000, bytes));
                two.say(&frame(2, 1, 9, bytes));
                assert_eq!(one.hear(), frame(2, 1, 9, bytes));
            }
            let status = io.status();
            let member = status.networks[1].members.iter().find(|it| it.nic == "one").unwrap();
            assert_eq!((member.peer.as_str(), member.mac.as_str()), ("vm1", "52:54:00:00:00:01"));
            assert_eq!(member.counters["frames_in"], 6);
            assert_eq!(member.counters["drops_in_filtered"], 6);
            drop((one, two));
            match round {
                0 => {
                    io.stop();
                    wait_for(&vm, "left alone", |status| {
                        status.nics[0].detail.starts_with("waiting for network io1/blue: peer io1")
                    });
                    io = pair.start_io();
                }
                1 => {
                    vm.stop();
                    vm = pair.start_vm();
                }
                _ => break,
            }
            wait_for(&vm, "joined again", |status| status.nics[0].detail.is_empty());
        }
        // There are no more sessions than needed: the networks are on the second sidecore there.
        assert!(vm.status().sessions.len() <= 2, "{:#?}", vm.status().sessions);
    }
}

#[test]
fn a_refused_process_learns_nothing_but_the_refusal() {
    let pair = Pair::new(true);
    let (io, vm) = (pair.start_io(), pair.start_vm());
    joined(&vm, 0);
    let why = |nic: usize, text: &str| {
        let status = wait_for(&vm, text, |status| status.nics[nic].detail.contains(text));
        assert_eq!(status.nics[nic].state, DiskState::Ready);
    };
    why(1, "peer io1: network red is not open to vm1: check its name and `allow` there");
    why(3, "see \"vlans\" in its \"remote\" on that node");
    let networks = io.status().networks;
    assert_eq!((networks[0].members.len(), networks[1].members.len()), (0, 2));
}

#[test]
fn a_network_is_opened_to_others_while_its_guests_are_in_it() {
    let pair = Pair::new(false);
    let text = pair.text(IO1, &pair.io, 1);
    let (io, vm) = (start_file(&pair.io, "io1.toml", &text), pair.start_vm());
    joined(&vm, 0);
    let mut two = Guest::new(&pair.io, "io.sock", false);
    let reload = |allowed: &str| {
        let text = text.replace("allow = [\"vm1\"]", &format!("allow = [{allowed}]"));
        write_file(&pair.io, "io1.toml", &text);
        done(&io, "POST", "/v1/reload", &json!({})).applied
    };
    for other in ["vm3", "vm4"] {
        let mut one = Guest::new(&pair.vm, "one.sock", false);
        one.say(&frame(1, 2, 2000, 60));
        assert_eq!(two.hear(), frame(1, 2, 2000, 60));
        drop(one);
        let revoked = "revoke rights that \"allow\" of network \"blue\" no longer has";
        assert_eq!(reload(&format!("{other:?}")), [revoked, "change network \"blue\": \"allow\""]);
        wait_for(&vm, "out", |status| {
            status.nics[0].detail.contains("network blue is not open to vm1")
        });
        // The network is the same, and its own guest has noticed nothing.
        let status = io.status();
        assert!(status.networks[1].members.is_empty());
        assert_eq!(status.nics[0].state, DiskState::Running);
        let opened = reload(&format!("{other:?}, \"vm1\""));
        assert_eq!(opened, ["change network \"blue\": \"allow\""]);
        wait_for(&vm, "in again", |status| status.nics[0].detail.is_empty());
    }
}

#[test]
fn the_terms_of_a_network_change_while_its_guests_are_in_it() {
    let pair = Pair::new(false);
    let text = pair.text(IO1, &pair.io, 1);
    let (io, vm) = (start_file(&pair.io, "io1.toml", &text), pair.start_vm());
    joined(&vm, 0);
    let (mut one, mut two) =
        (Guest::new(&pair.vm, "one.sock", false), Guest::new(&pair.io, "io.sock", false));
    one.say(&frame(1, 2, 2000, 60));
    assert_eq!(two.hear(), frame(1, 2, 2000, 60));
    let joins = vm.status().nics[0].counters["remote_joins"];
    write_file(&pair.io, "io1.toml", &text.replace("to any port 9\"", "to any port 2000\""));
    let applied = done(&io, "POST", "/v1/reload", &json!({})).applied;
    assert_eq!(applied, ["change network \"blue\": \"remote\""]);
    wait_for(&vm, "in again", |status| {
        status.nics[0].counters["remote_joins"] > joins && status.nics[0].detail.is_empty()
    });
    one.say(&frame(1, 2, 2000, 61));
    one.say(&frame(1, 2, 2001, 62));
    assert_eq!(two.hear(), frame(1, 2, 2001, 62), "and nothing before it");
    assert_eq!(io.status().nics[0].state, DiskState::Running, "its own guest stays");
}

#[test]
fn a_guest_whose_networks_node_is_away_sees_its_link_go_and_come_back() {
    let pair = Pair::new(true);
    let (mut io, vm) = (pair.start_io(), pair.start_vm());
    joined(&vm, 0);
    for round in 0..2 {
        let mut one = Guest::new(&pair.vm, "one.sock", round == 1);
        let mut two = Guest::new(&pair.io, "io.sock", false);
        one.say(&frame(1, 2, 2000, 60));
        assert_eq!(two.hear(), frame(1, 2, 2000, 60));
        drop(two);
        io.stop();
        let status = wait_for(&vm, "unplugged", |status| !status.nics[0].link);
        assert_eq!(status.nics[0].state, DiskState::Lost);
        let detail = &status.nics[0].detail;
        assert!(detail.starts_with("waiting for network io1/blue: peer io1"), "{detail}");
        assert!(
            detail.ends_with("its cable is plugged in again when the network is back"),
            "{detail}"
        );
        // A front end learns of it in this way: its connection ends, and no socket is there.
        wait_for(&vm, "hung up", |status| status.nics[0].front_end_pid.is_none());
        assert!(!pair.vm.path("one.sock").exists());
        // A nic that was never in its network stays as it was.
        assert!(status.nics[3].link && pair.vm.path("eight.sock").exists());
        drop(one);
        io = pair.start_io();
        let back = |status: &Status| status.nics[0].link && status.nics[0].detail.is_empty();
        wait_for(&vm, "plugged in again", back);
    }
    io.stop();
}
