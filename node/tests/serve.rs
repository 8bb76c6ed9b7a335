//! Whole nodes and a stand-in guest: disks of local and of remote volumes, restarts, refusals.

use std::os::unix::net::UnixListener;

use crate::common::{Guest, Home, PATIENCE, address, wait_for, wait_for_disk};
use node::Node;
use node::status::DiskState;
use virtio::driver::RequestStatus as Outcome;

const LOCAL: &str = r#"
name = "vm1"
[sidecores]
count = 2
[directories]
volumes = "HOME"
sockets = "HOME"
[[volume]]
name = "a"
backend = { file = "a.img", size = "1MiB" }
chain = ["meter"]
[[disk]]
socket = "a.sock"
volume = "a"
queues = 2
"#;

/// An IOhost with a file, at an address.
fn io1(address: &str, allow: &str) -> String {
    format!(
        r#"
name = "io1"
listen = "{address}"
[directories]
volumes = "HOME"
sockets = "HOME"
[[volume]]
name = "a"
backend = {{ file = "a.img", size = "1MiB" }}
chain = ["meter"]
allow = ["{allow}"]
"#
    )
}

/// A VMhost with one disk of a peer's volume, over two sidecores.
fn vm1(address: &str, peer: &str, volume: &str) -> String {
    format!(
        r#"
name = "vm1"
listen = "{address}"
[sidecores]
count = 2
[directories]
sockets = "HOME"
[[peer]]
name = "io1"
address = "{peer}"
[[disk]]
socket = "a.sock"
volume = "{volume}"
queues = 2
"#
    )
}

#[test]
fn a_local_disk_serves_and_survives_a_restart_of_its_node() {
    let home = Home::new();
    let node = home.start(LOCAL);
    wait_for_disk(&node, DiskState::Ready, "a.sock");
    let mut guest = Guest::connect(home.path("a.sock"), 2);
    for block in 0..20 {
        assert_eq!(guest.write(block as u16 % 2, block, block + 100), Outcome::Ok);
    }
    assert_eq!(guest.flush(0), Outcome::Ok);
    assert_eq!(guest.check(1, 7, 107), Outcome::Ok);
    let disk = wait_for_disk(&node, DiskState::Running, "");
    assert_eq!(disk.epoch, Some(1));
    assert_eq!(disk.counters["requests"], 22);
    let status = node.status();
    assert_eq!(status.volumes[0].counters["writes"], 20);
    assert_eq!(status.volumes[0].attachments[0].name, "a");
    node.stop();
    assert!(!home.path("a.sock").exists());
    // The same guest goes on with the next process's node.
    let node = home.start(LOCAL);
    guest.0.reconnect(PATIENCE).unwrap();
    for block in 0..20 {
        assert_eq!(guest.check(block as u16 % 2, block, block + 100), Outcome::Ok);
    }
    assert_eq!(wait_for_disk(&node, DiskState::Running, "").epoch, Some(2));
    node.stop();
}

/// Two sidecores here, one there; all that passes is in memory, and a restarted peer is found.
#[test]
fn nodes_on_one_machine_share_memory() {
    let home = Home::new();
    let io1 = io1(&address(), "vm1").replace("[directories]", "shm = \"io1.shm\"\n[directories]");
    let vm1 = vm1(&address(), "shm:HOME/io1.shm", "io1/a");
    let io1_node = home.start(&io1);
    let node = home.start(&vm1);
    wait_for_disk(&node, DiskState::Ready, "a.sock");
    let mut guest = Guest::connect(home.path("a.sock"), 2);
    for block in 0..50 {
        assert_eq!(guest.write(block as u16 % 2, block, block), Outcome::Ok);
    }
    io1_node.stop();
    assert!(!home.path("io1.shm").exists());
    wait_for_disk(&node, DiskState::Lost, "");
    let io1_node = home.start(&io1);
    for block in 0..50 {
        assert_eq!(guest.check(block as u16 % 2, block, block), Outcome::Ok);
    }
    let status = node.status();
    assert!(status.sessions.iter().all(|session| session.address == "shm"), "{status:?}");
    let of = |name: &str| -> u64 {
        status.sidecores.iter().map(|sidecore| sidecore.counters[name]).sum()
    };
    assert_eq!(of("link_datagrams_sent"), 0);
    assert!(of("shm_datagrams_received") >= 100, "{status:?}");
    assert_eq!((of("shm_lines_now"), of("shm_broken"), of("shm_dropped_full")), (2, 0, 0));
    assert_eq!(io1_node.status().node.shm, Some(home.path("io1.shm").display().to_string()));
}

#[test]
fn a_remote_disk_waits_while_its_iohost_is_away_and_goes_on() {
    let home = Home::new();
    let (there, here) = (address(), address());
    let vm1 = home.start(&vm1(&here, &there, "io1/a"));
    let text = format!("peer io1 at {there}");
    wait_for_disk(&vm1, DiskState::Waiting, &text);
    assert!(!home.path("a.sock").exists(), "the volume's size is not known yet");
    let io1_node = home.start(&io1(&there, "vm1"));
    wait_for_disk(&vm1, DiskState::Ready, "a.sock");
    let mut guest = Guest::connect(home.path("a.sock"), 2);
    for block in 0..50 {
        assert_eq!(guest.write(block as u16 % 2, block, block), Outcome::Ok);
    }
    assert_eq!(guest.flush(1), Outcome::Ok);
    let sessions = vm1.status().sessions;
    assert!(sessions.iter().any(|session| session.peer == "io1" && session.state == "connected"));
    io1_node.stop();
    wait_for_disk(&vm1, DiskState::Lost, "");
    let io1_node = home.start(&io1(&there, "vm1"));
    for block in 0..50 {
        assert_eq!(guest.check(block as u16 % 2, block, block), Outcome::Ok);
    }
    let status = wait_for(&io1_node, "attached", |status| {
        status.volumes[0].attachments.iter().any(|attachment| attachment.name == "a")
    });
    assert_eq!(status.volumes[0].counters["reads"], 50);
    drop(guest);
    vm1.stop();
    wait_for(&io1_node, "detached", |status| status.volumes[0].attachments.is_empty());
    io1_node.stop();
}

#[test]
fn a_disk_that_is_not_allowed_is_told_so_and_others_go_on() {
    let home = Home::new();
    let (there, here) = (address(), address());
    let io1 = home.start(&io1(&there, "vm2"));
    let vm1 = home.start(&vm1(&here, &there, "io1/a"));
    wait_for_disk(&vm1, DiskState::Waiting, "volume a is not open to vm1: check its name");
    vm1.stop();
    io1.stop();
}

#[test]
fn a_volume_that_does_not_exist_is_refused_in_the_same_words() {
    let home = Home::new();
    let (there, here) = (address(), address());
    let io1 = home.start(&io1(&there, "vm1"));
    let vm1 = home.start(&vm1(&here, &there, "io1/b"));
    wait_for_disk(&vm1, DiskState::Waiting, "volume b is not open to vm1: check its name");
    vm1.stop();
    io1.stop();
}

#[test]
fn a_peer_of_another_name_is_refused() {
    let home = Home::new();
    let (there, here) = (address(), address());
    let text = io1(&there, "vm1").replace("name = \"io1\"", "name = \"io2\"");
    let io2 = home.start(&text);
    let vm1 = home.start(&vm1(&here, &there, "io1/a"));
    let disk = wait_for_disk(&vm1, DiskState::Waiting, "refused");
    assert!(disk.detail.contains("io1") && disk.detail.contains("io2"), "{}", disk.detail);
    vm1.stop();
    io2.stop();
}

#[test]
fn a_socket_in_use_is_named_with_its_line() {
    let home = Home::new();
    let foreign = UnixListener::bind(home.path("a.sock")).unwrap();
    let error = Node::start(&home.config(LOCAL)).unwrap_err().to_string();
    assert!(error.starts_with("n.toml:13: disk \"a\": socket"), "{error}");
    assert!(error.contains("in use by another program"), "{error}");
    drop(foreign);
    home.start(LOCAL).stop();
}

#[test]
fn a_remote_disks_socket_in_use_is_tried_again() {
    let home = Home::new();
    let (there, here) = (address(), address());
    let io1 = home.start(&io1(&there, "vm1"));
    let foreign = UnixListener::bind(home.path("a.sock")).unwrap();
    let vm1 = home.start(&vm1(&here, &there, "io1/a"));
    wait_for_disk(&vm1, DiskState::Waiting, "in use by another program");
    drop(foreign);
    wait_for_disk(&vm1, DiskState::Ready, "a.sock");
    vm1.stop();
    io1.stop();
}

#[test]
fn one_volume_is_not_given_to_two_disks() {
    let home = Home::new();
    let two = format!("{LOCAL}[[disk]]\nsocket = \"b.sock\"\nvolume = \"a\"\n");
    let node = home.start(&two);
    let mut first = Guest::connect(home.path("a.sock"), 1);
    assert_eq!(first.write(0, 0, 1), Outcome::Ok);
    let _second = Guest::connect(home.path("b.sock"), 1);
    // It waits for its volume before it is refused, and looks the same until then.
    let status = wait_for(&node, "refused", |status| {
        status.disks[1].detail.contains("in use by attachment a")
    });
    assert_eq!(status.disks[1].state, DiskState::Lost);
    assert_eq!(first.check(0, 0, 1), Outcome::Ok, "the first disk goes on");
    node.stop();
}

#[test]
fn a_remote_disk_works_over_a_bad_network_and_uneven_sidecores() {
    let home = Home::new();
    let (there, here) = (address(), address());
    let fault =
        "[link]\nfault = { loss = 0.05, duplicate = 0.05, reorder = 0.1, corrupt = 0.02 }\n";
    let three = "[sidecores]\ncount = 3\nidle = \"sleep\"\n";
    let io1 = home.start(&format!("{}{three}{fault}", io1(&there, "vm1")));
    let vm1 = home.start(&format!("{}{fault}", vm1(&here, &there, "io1/a")));
    wait_for_disk(&vm1, DiskState::Ready, "a.sock");
    let mut guest = Guest::connect(home.path("a.sock"), 2);
    for block in 0..200 {
        assert_eq!(guest.write(block as u16 % 2, block, block + 7), Outcome::Ok);
    }
    assert_eq!(guest.flush(0), Outcome::Ok);
    for block in 0..200 {
        assert_eq!(guest.check(block as u16 % 2, block, block + 7), Outcome::Ok);
    }
    drop(guest);
    vm1.stop();
    io1.stop();
}
