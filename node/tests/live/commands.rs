//! Disks, volumes and peers that come and go by command.

use std::os::unix::net::UnixListener;
use std::thread;

use node::status::{DiskState, Origin};
use serde_json::{Value, json};
use virtio::driver::RequestStatus as Outcome;

use super::control::{ask, done, refused};
use super::{LOCAL, io1, start_file, vm1, write_file};
use crate::common::{Guest, Home, PATIENCE, address, wait_for, wait_for_disk};

#[test]
fn a_disk_comes_and_goes_by_command() {
    let home = Home::new();
    let node = home.start(LOCAL);
    let disk = json!({ "volume": "a", "socket": "x.sock", "queues": 2 });
    let added = done(&node, "POST", "/v1/disks", &disk);
    assert_eq!(added.applied, ["add disk \"x\" of volume a"]);
    assert!(added.notes[0].contains("lost when the node is restarted"), "{added:?}");
    let shown = wait_for_disk(&node, DiskState::Ready, "x.sock");
    assert_eq!((shown.origin, shown.queues), (Origin::Command, 2));
    assert_eq!(node.status().node.differs, ["disk \"x\" was added by a command"]);
    let mut guest = Guest::connect(home.path("x.sock"), 2);
    assert_eq!(guest.write(0, 3, 33), Outcome::Ok);
    let used = refused(&node, "DELETE", "/v1/disks/x", None, 409);
    let pid = std::process::id();
    assert_eq!(used.error, format!("disk \"x\" is used by a guest (process {pid})"));
    assert!(used.way_out.contains("--force"), "{used}");
    assert_eq!(guest.check(1, 3, 33), Outcome::Ok, "nothing has changed");
    done(&node, "DELETE", "/v1/disks/x?force=true", &Value::Null);
    assert!(!home.path("x.sock").exists());
    assert!(node.status().disks.is_empty() && node.status().node.differs.is_empty());
    assert!(node.status().volumes[0].attachments.is_empty(), "it was closed");
    // The same guest goes on with the same disk, under its next epoch.
    done(&node, "POST", "/v1/disks", &disk);
    guest.0.reconnect(PATIENCE).unwrap();
    assert_eq!(guest.check(0, 3, 33), Outcome::Ok);
    assert_eq!(wait_for_disk(&node, DiskState::Running, "").epoch, Some(2));
    node.stop();
}

#[test]
fn a_bad_request_changes_nothing_and_says_what_is_wrong() {
    let home = Home::new();
    let node = home.start(LOCAL);
    done(&node, "POST", "/v1/disks", &json!({ "volume": "a", "socket": "x.sock" }));
    let before = node.status().disks;
    for (kind, body, says) in [
        ("disks", json!([1]), "not a JSON object"),
        ("disks", json!({ "volume": "a" }), "\"socket\" is missing"),
        ("disks", json!({ "volume": "a", "socket": "y.sock", "queue": 1 }), "did you mean"),
        ("disks", json!({ "volume": "a", "socket": "y.sock", "queues": 99 }), "out of range"),
        ("disks", json!({ "volume": "a", "socket": "y.sock", "role": null }), "leave the key out"),
        ("disks", json!({ "volume": "b", "socket": "y.sock" }), "this node has no volume"),
        ("disks", json!({ "volume": "io1/b", "socket": "y.sock" }), "there is no [[peer]]"),
        ("disks", json!({ "volume": "a", "socket": "/etc/y.sock" }), "not inside the sockets'"),
        ("disks", json!({ "volume": "a", "socket": "x.sock" }), "another disk has the same"),
        (
            "volumes",
            json!({ "name": "b", "backend": { "file": "../b" } }),
            "not the name of a file",
        ),
        ("volumes", json!({ "name": "a", "backend": { "null": "1MiB" } }), "the same name"),
        ("volumes", json!({ "name": "b", "backend": { "file": "a.img" } }), "the same file"),
        ("peers", json!({ "name": "io1", "address": "nowhere" }), "not an address"),
        ("peers", json!({ "name": "io1", "address": "127.0.0.1:1" }), "\"listen\" is missing"),
    ] {
        let refused = refused(&node, "POST", &format!("/v1/{kind}"), Some(&body), 400);
        assert!(refused.error.contains(says), "{body}: {refused}");
        assert!(!refused.way_out.is_empty());
    }
    let chain = json!([{ "limit": { "iops": 0 } }]);
    let bad = refused(&node, "PUT", "/v1/volumes/a/chain", Some(&chain), 400);
    assert!(bad.error.contains("out of range"), "{bad}");
    for (method, path) in [("DELETE", "/v1/disks/z"), ("PUT", "/v1/volumes/z/chain")] {
        let unknown = refused(&node, method, path, Some(&json!([])), 404);
        assert!(unknown.error.contains("\"z\""), "{unknown}");
    }
    assert_eq!(node.status().disks, before);
    node.stop();
}

#[test]
fn a_refusal_of_the_system_changes_nothing() {
    let home = Home::new();
    let node = home.start(LOCAL);
    let foreign = UnixListener::bind(home.path("x.sock")).unwrap();
    let disk = json!({ "volume": "a", "socket": "x.sock" });
    let taken = refused(&node, "POST", "/v1/disks", Some(&disk), 500);
    assert!(taken.error.contains("in use by another program"), "{taken}");
    let missing = json!({ "name": "b", "backend": { "file": "none.img" } });
    let missing = refused(&node, "POST", "/v1/volumes", Some(&missing), 500);
    assert!(missing.error.contains("no such file"), "{missing}");
    let status = node.status();
    assert!(status.disks.is_empty() && status.volumes.len() == 1 && status.node.differs.is_empty());
    drop(foreign);
    done(&node, "POST", "/v1/disks", &disk);
    std::fs::write(home.path("none.img"), vec![0; 4096]).unwrap();
    done(&node, "POST", "/v1/volumes", &json!({ "name": "b", "backend": { "file": "none.img" } }));
    node.stop();
}

#[test]
fn a_volume_is_taken_from_its_holder_only_by_force() {
    let home = Home::new();
    let node = home.start(LOCAL);
    let disk = json!({ "volume": "a", "socket": "x.sock" });
    done(&node, "POST", "/v1/disks", &disk);
    let mut guest = Guest::connect(home.path("x.sock"), 1);
    assert_eq!(guest.write(0, 1, 1), Outcome::Ok);
    let used = refused(&node, "DELETE", "/v1/volumes/a", None, 409);
    assert_eq!(used.error, "volume \"a\" is used by disk \"x\"");
    assert_eq!(guest.check(0, 1, 1), Outcome::Ok);
    let gone = done(&node, "DELETE", "/v1/volumes/a?force=true", &Value::Null);
    let says = |text: &str| gone.notes.iter().any(|note| note.contains(text));
    assert!(says("disk \"x\" was removed") && says("the file still has it"), "{gone:?}");
    let status = node.status();
    assert!(status.volumes.is_empty() && status.disks.is_empty());
    assert_eq!(status.node.differs, ["a reload would add volume \"a\""]);
    // Its file is free, and what was written is in it.
    let volume = json!({ "name": "a", "backend": { "file": "a.img" } });
    done(&node, "POST", "/v1/volumes", &volume);
    done(&node, "POST", "/v1/disks", &disk);
    guest.0.reconnect(PATIENCE).unwrap();
    assert_eq!(guest.check(0, 1, 1), Outcome::Ok);
    node.stop();
}

/// Two nodes that begin with nothing, a peer, a volume and a disk by command, and back.
#[test]
fn a_remote_disk_is_built_and_taken_apart_by_commands() {
    let home = Home::new();
    let (there, here) = (address(), address());
    let (io1, vm1) = (home.start(&io1(&there)), home.start(&vm1(&here)));
    done(&vm1, "POST", "/v1/peers", &json!({ "name": "io1", "address": there }));
    done(&vm1, "POST", "/v1/disks", &json!({ "volume": "io1/a", "socket": "x.sock" }));
    wait_for_disk(&vm1, DiskState::Waiting, "peer io1");
    let backend = json!({ "file": "a.img", "size": "1MiB" });
    let volume = json!({ "name": "a", "backend": backend, "allow": ["vm1"] });
    done(&io1, "POST", "/v1/volumes", &volume);
    wait_for_disk(&vm1, DiskState::Ready, "x.sock");
    let mut guest = Guest::connect(home.path("x.sock"), 1);
    assert_eq!(guest.write(0, 1, 1), Outcome::Ok);
    let used = refused(&io1, "DELETE", "/v1/volumes/a", None, 409);
    let users = "volume \"a\" is used by attachment \"x\", a disk of node \"vm1\"";
    assert_eq!(used.error, users);
    let used = refused(&vm1, "DELETE", "/v1/peers/io1?force=true", None, 409);
    assert_eq!(used.error, "peer \"io1\" is used by disk \"x\"");
    // Forced: the disk waits for a volume that is gone, and goes on when it is back.
    done(&io1, "DELETE", "/v1/volumes/a?force=true", &Value::Null);
    thread::scope(|scope| {
        let waits = scope.spawn(|| guest.check(0, 1, 1));
        wait_for_disk(&vm1, DiskState::Lost, "volume a is not open to vm1");
        done(&io1, "POST", "/v1/volumes", &volume);
        assert_eq!(waits.join().unwrap(), Outcome::Ok);
    });
    drop(guest);
    wait_for_disk(&vm1, DiskState::Ready, "x.sock");
    done(&vm1, "DELETE", "/v1/disks/x", &Value::Null);
    wait_for(&io1, "detached", |status| status.volumes[0].attachments.is_empty());
    done(&vm1, "DELETE", "/v1/peers/io1", &Value::Null);
    assert!(vm1.status().sessions.is_empty() && vm1.status().peers.is_empty());
    // As long as the session lives there, the node has a disk of the volume.
    wait_for(&io1, "the session is over", |status| status.sessions.is_empty());
    done(&io1, "DELETE", "/v1/volumes/a", &Value::Null);
    vm1.stop();
    io1.stop();
}

#[test]
fn several_clients_at_once_each_get_their_change_or_a_reason() {
    let home = Home::new();
    let node = home.start(LOCAL);
    let node = &node;
    thread::scope(|scope| {
        for client in 0..6 {
            scope.spawn(move || {
                let name = format!("v{client}");
                let backend = json!({ "memory": "1MiB" });
                let volume = json!({ "name": name, "backend": backend });
                let disk = json!({ "volume": name, "socket": format!("d{client}.sock") });
                let remove = format!("/v1/volumes/{name}?force=true");
                for _ in 0..5 {
                    done(node, "POST", "/v1/volumes", &volume);
                    done(node, "POST", "/v1/disks", &disk);
                    done(node, "DELETE", &remove, &Value::Null);
                }
            });
        }
    });
    // One name is had by one of them.
    let disk = json!({ "volume": "a", "socket": "one.sock" });
    let codes: Vec<u16> = thread::scope(|scope| {
        let asked: Vec<_> =
            (0..6).map(|_| scope.spawn(|| ask(node, "POST", "/v1/disks", Some(&disk)).0)).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    assert_eq!(codes.iter().filter(|code| **code == 200).count(), 1, "{codes:?}");
    assert!(codes.iter().all(|code| [200, 400].contains(code)), "{codes:?}");
    let status = node.status();
    assert_eq!((status.disks.len(), status.volumes.len()), (1, 1));
}

#[test]
fn a_peer_that_may_no_longer_use_a_volume_waits_until_it_may_again() {
    let home = Home::new();
    let (there, here) = (address(), address());
    let volume = "[[volume]]\nname = \"a\"\nbackend = { file = \"a.img\", size = \"1MiB\" }\n";
    let file = format!("{}{volume}", io1(&there));
    let peer = format!("[[peer]]\nname = \"io1\"\naddress = \"{there}\"\n");
    let disk = "[[disk]]\nsocket = \"x.sock\"\nvolume = \"io1/a\"\n";
    let io1 = start_file(&home, "io1.toml", &format!("{file}allow = [\"vm1\"]\n"));
    let vm1 = home.start(&format!("{}{peer}{disk}", vm1(&here)));
    wait_for_disk(&vm1, DiskState::Ready, "x.sock");
    let mut guest = Guest::connect(home.path("x.sock"), 1);
    assert_eq!(guest.write(0, 5, 5), Outcome::Ok);
    write_file(&home, "io1.toml", &format!("{file}allow = [\"vm2\"]\n"));
    let changed = done(&io1, "POST", "/v1/reload", &json!({}));
    let revoked = "revoke rights that \"allow\" of volume \"a\" no longer has";
    assert_eq!(changed.applied, [revoked, "change volume \"a\": \"allow\""]);
    thread::scope(|scope| {
        let waits = scope.spawn(|| guest.check(0, 5, 5));
        wait_for_disk(&vm1, DiskState::Lost, "volume a is not open to vm1");
        write_file(&home, "io1.toml", &format!("{file}allow = [\"vm1\", \"vm2\"]\n"));
        done(&io1, "POST", "/v1/reload", &json!({}));
        assert_eq!(waits.join().unwrap(), Outcome::Ok);
    });
    vm1.stop();
    io1.stop();
}
