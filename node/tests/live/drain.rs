//! A node that takes no new users.

use std::io::Read;
use std::os::unix::net::UnixStream;

use node::api::Drain;
use node::status::DiskState;
use serde_json::{Value, json};
use virtio::driver::RequestStatus as Outcome;

use super::control::{ask, done, refused};
use super::{LOCAL, io1, start_file, vm1};
use crate::common::{Guest, Home, address, wait_for};

fn drain(node: &node::Node, method: &str, body: &Value) -> Drain {
    let (code, answer) = ask(node, method, "/v1/drain", Some(body));
    assert_eq!(code, 200, "{answer}");
    serde_json::from_str(&answer).unwrap()
}

/// Whether the node hangs up on a front end that connects.
fn is_turned_away(home: &Home, socket: &str) -> bool {
    let mut stream = UnixStream::connect(home.path(socket)).unwrap();
    stream.set_read_timeout(Some(crate::common::PATIENCE)).unwrap();
    matches!(stream.read(&mut [0]), Ok(0))
}

#[test]
fn guests_that_are_there_stay_and_others_are_turned_away() {
    let home = Home::new();
    let node = home.start(LOCAL);
    for name in ["x", "y"] {
        // A memory volume for each disk, since a volume has one user.
        let volume = json!({ "name": name, "backend": { "memory": "1MiB" } });
        done(&node, "POST", "/v1/volumes", &volume);
        let disk = json!({ "volume": name, "socket": format!("{name}.sock") });
        done(&node, "POST", "/v1/disks", &disk);
    }
    let mut guest = Guest::connect(home.path("x.sock"), 1);
    assert_eq!(guest.write(0, 1, 1), Outcome::Ok);
    let before = drain(&node, "GET", &Value::Null);
    assert!(!before.draining && before.users.len() == 1, "{before:?}");
    let pid = std::process::id();
    let user = format!("disk \"x\": a guest (process {pid})");
    assert_eq!(drain(&node, "POST", &Value::Null).users, [user]);
    assert!(node.status().node.draining);
    // The present guest goes on. No other guest is admitted, and no new object for one.
    assert_eq!(guest.check(0, 1, 1), Outcome::Ok);
    assert!(is_turned_away(&home, "y.sock") && is_turned_away(&home, "y.sock"));
    let volume = json!({ "name": "z", "backend": { "memory": "1MiB" } });
    let disk = json!({ "volume": "a", "socket": "z.sock" });
    for (path, body) in [("/v1/volumes", volume), ("/v1/disks", disk)] {
        let error = refused(&node, "POST", path, Some(&body), 409);
        assert!(error.error.contains("drained") && error.way_out.contains("--undo"), "{error}");
    }
    let turned_away = |name: &str| {
        let disks = node.status().disks;
        disks.iter().find(|disk| disk.name == name).unwrap().counters["front_ends_turned_away"]
    };
    assert_eq!((turned_away("x"), turned_away("y")), (0, 2));
    drop(guest);
    wait_for(&node, "the guest has left", |_| drain(&node, "GET", &Value::Null).users.is_empty());
    assert!(is_turned_away(&home, "x.sock"), "it has left");
    assert!(!drain(&node, "POST", &json!({ "undo": true })).draining);
    let mut guest = Guest::connect(home.path("x.sock"), 1);
    assert_eq!(guest.check(0, 1, 1), Outcome::Ok);
    node.stop();
}

#[test]
fn attachments_of_peers_stay_and_others_are_told_where_they_are() {
    let home = Home::new();
    let address = address();
    let volume = |name: &str| {
        format!(
            "[[volume]]\nname = \"{name}\"\nallow = [\"vm1\"]\n\
             backend = {{ file = \"{name}.img\", size = \"1MiB\" }}\n"
        )
    };
    let volumes = volume("a") + &volume("b");
    let io1 = start_file(&home, "io1.toml", &format!("{}{volumes}", io1(&address)));
    let own = address.replace(":4870", ":4880");
    let disk =
        |name: &str| format!("[[disk]]\nsocket = \"{name}.sock\"\nvolume = \"io1/{name}\"\n");
    let peer = format!("[[peer]]\nname = \"io1\"\naddress = \"{address}\"\n");
    let disks = disk("a") + &disk("b");
    let vm1 = start_file(&home, "vm1.toml", &format!("{}{peer}{disks}", vm1(&own)));
    let ready = |status: &node::status::Status| {
        status.disks.iter().all(|disk| disk.state == DiskState::Ready)
    };
    wait_for(&vm1, "both disks are ready", ready);
    let mut guest = Guest::connect(home.path("a.sock"), 2);
    assert_eq!(guest.write(0, 1, 1), Outcome::Ok);
    assert_eq!(drain(&io1, "POST", &Value::Null).users, ["volume \"a\": attachment \"a\""]);
    // A guest that starts anew is not a new user: its disk is closed and claimed again.
    guest.0.hang_up();
    wait_for(&io1, "it was closed", |_| drain(&io1, "GET", &Value::Null).users.is_empty());
    guest.0.reconnect(crate::common::PATIENCE).unwrap();
    assert_eq!(guest.check(1, 1, 1), Outcome::Ok);
    // The other disk is not admitted until the drain ends, and then without another request.
    let mut config = virtio::driver::FrontEndConfig::new(virtio::driver::SocketRole::Connect(
        home.path("b.sock"),
    ));
    config.guest = virtio::driver::GuestPlan { queues: 1, ..Default::default() };
    let mut other =
        Guest(virtio::driver::FrontEnd::connect(config, crate::common::PATIENCE).unwrap());
    wait_for(&vm1, "it is told why", |status| {
        let b = status.disks.iter().find(|disk| disk.name == "b").unwrap();
        b.state == DiskState::Lost && b.detail.contains("is drained and takes no new users")
    });
    drain(&io1, "POST", &json!({ "undo": true }));
    assert_eq!(other.write(0, 1, 2), Outcome::Ok);
    vm1.stop();
    io1.stop();
}
