//! Peers of a running disk that a command replaces.

use std::time::Instant;

use node::status::DiskState;
use serde_json::json;
use virtio::driver::RequestStatus as Outcome;

use super::control::{ask, done, refused};
use super::{LOCAL, io1, start_file, vm1};
use crate::common::{Guest, Home, PATIENCE, address, wait_for_disk};

#[test]
fn a_running_disk_gets_other_peers() {
    let home = Home::new();
    let (there, here, nobody) = (address(), address(), address());
    let io1 = home.start(&io1(&there));
    let backend = json!({ "file": "a.img", "size": "1MiB" });
    let volume = json!({ "name": "a", "backend": backend, "allow": ["vm1"] });
    done(&io1, "POST", "/v1/volumes", &volume);
    let peer = |name: &str, at: &str| format!("[[peer]]\nname = {name:?}\naddress = {at:?}\n");
    let peers = format!("{}{}", peer("io1", &there), peer("io2", &nobody));
    let disk = "[[disk]]\nsocket = \"x.sock\"\nvolume = \"io1/a\"\n";
    let vm1 = start_file(&home, "vm1.toml", &format!("{}{peers}{disk}", vm1(&here)));
    wait_for_disk(&vm1, DiskState::Ready, "x.sock");
    let mut guest = Guest::connect(home.path("x.sock"), 1);
    assert_eq!(guest.write(0, 1, 1), Outcome::Ok);
    let path = "/v1/disks/x/peers";
    let list = |peers: &[&str]| done(&vm1, "PUT", path, &json!({ "peers": peers }));
    let epoch = vm1.status().disks[0].epoch;
    let listed = list(&["io2", "io1"]);
    assert_eq!(listed.applied, ["change disk \"x\": its volume is now io2,io1/a"]);
    assert!(listed.notes[0].contains("write it into the file"), "{listed:?}");
    // The peer that serves is asked on, though it is not the first of the list.
    assert_eq!(guest.check(0, 1, 1), Outcome::Ok);
    let shown = vm1.status();
    let disk = &shown.disks[0];
    assert_eq!((disk.volume.as_str(), disk.epoch, disk.placed), ("io2,io1/a", epoch, false));
    assert!(shown.node.differs[0].contains("(volume changed)"), "{:?}", shown.node.differs);
    assert_eq!(shown.peers[1].disks, ["x"]);
    let used = refused(&vm1, "DELETE", "/v1/peers/io2", None, 409);
    assert_eq!(used.error, "peer \"io2\" is used by disk \"x\"");
    // As it was: the node is as its file says again.
    list(&["io1"]);
    assert!(list(&["io1"]).applied.is_empty());
    assert!(vm1.status().node.differs.is_empty());
    assert_eq!(guest.write(0, 1, 2), Outcome::Ok);
    let until = Instant::now() + PATIENCE;
    while ask(&vm1, "DELETE", "/v1/peers/io2", None).0 != 200 {
        assert!(Instant::now() < until, "a sidecore keeps the session");
    }
    assert_eq!(guest.check(0, 1, 2), Outcome::Ok);
    assert_eq!(vm1.status().disks[0].epoch, epoch);
    for (peers, says) in [
        (json!([]), "the list is empty"),
        (json!(["a", "b", "c", "d", "e", "f", "g", "h", "i"]), "more than 8 peers"),
        (json!(["io1", "io1"]), "has peer \"io1\" twice"),
        (json!(["io1", "io9"]), "there is no [[peer]] \"io9\""),
        (json!("io1"), "send {\"peers\""),
        (json!([1]), "send {\"peers\""),
    ] {
        let refused = refused(&vm1, "PUT", path, Some(&json!({ "peers": peers })), 400);
        assert!(refused.error.contains(says), "{refused:?}");
    }
    let peers = json!({ "peers": ["io1"] });
    let unknown = refused(&vm1, "PUT", "/v1/disks/y/peers", Some(&peers), 404);
    assert_eq!(unknown.error, "there is no disk \"y\"");
    assert_eq!(vm1.status().disks[0].volume, "io1/a");
    vm1.stop();
    io1.stop();
}

#[test]
fn a_disk_of_a_volume_of_the_node_has_no_peers() {
    let home = Home::new();
    let node = home.start(LOCAL);
    done(&node, "POST", "/v1/disks", &json!({ "volume": "a", "socket": "x.sock" }));
    let peers = json!({ "peers": ["io1"] });
    let refused = refused(&node, "PUT", "/v1/disks/x/peers", Some(&peers), 400);
    assert_eq!(refused.error, "disk \"x\": its volume is of this node, and has no peers");
    node.stop();
}
