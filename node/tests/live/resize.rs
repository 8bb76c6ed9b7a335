//! Volumes whose size changes under their guests.

use std::time::Instant;

use node::status::DiskState;
use serde_json::{Value, json};
use virtio::driver::{Data, DriverOp, DriverRequest, RequestStatus as Outcome};

use super::control::{done, refused};
use super::{LOCAL, io1, start_file, vm1, write_file};
use crate::common::{Guest, Home, PATIENCE, address, wait_for, wait_for_disk};

/// Waits until the guest hears that its disk has another size; returns the size in sectors.
fn told(guest: &mut Guest) -> u64 {
    let until = Instant::now() + PATIENCE;
    while !guest.0.disk_changed().unwrap() {
        assert!(Instant::now() < until, "the guest was never told");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    guest.0.disk().capacity_sectors
}

/// Discards sectors; returns the result.
fn discard(guest: &mut Guest, sector: u64, sectors: u32) -> Outcome {
    let ring = guest.0.ring(0);
    let slot = ring.take_slot().unwrap();
    let list = [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &[0; 4]].concat();
    ring.write(slot, 0, &list);
    let data = Data::Whole(16);
    ring.submit(&DriverRequest { slot, op: DriverOp::Discard, sector: 0, data, token: 0 }).unwrap();
    ring.publish();
    assert!(ring.wait(PATIENCE).unwrap(), "no answer");
    let done = ring.complete().unwrap().unwrap();
    ring.release(slot);
    done.status
}

#[test]
fn a_local_disk_grows_under_its_guest_and_stays_as_large() {
    let home = Home::new();
    let node = home.start(LOCAL);
    let disk = json!({ "volume": "a", "socket": "x.sock", "queues": 2 });
    done(&node, "POST", "/v1/disks", &disk);
    let mut guest = Guest::connect(home.path("x.sock"), 2);
    assert_eq!(guest.0.disk().capacity_sectors, 2048);
    assert_eq!(guest.write(0, 3, 33), Outcome::Ok);
    assert_eq!(guest.write(0, 256, 1), Outcome::IoError, "beyond the end");
    assert_eq!(discard(&mut guest, 2040, 16), Outcome::IoError, "beyond the end");
    let resized = done(&node, "PUT", "/v1/disks/x/size", &json!({ "size": "4MiB" }));
    assert_eq!(resized.applied, ["resize volume \"a\" from 1MiB to 4MiB"]);
    assert!(resized.notes[0].contains("also after a restart"), "{resized:?}");
    assert_eq!(told(&mut guest), 8192);
    assert!(!guest.0.disk_changed().unwrap(), "once");
    for queue in 0..2 {
        assert_eq!(guest.write(queue, 1000 + u64::from(queue), 44), Outcome::Ok);
    }
    assert_eq!(discard(&mut guest, 2040, 16), Outcome::Ok);
    assert_eq!(guest.check(1, 3, 33), Outcome::Ok);
    assert_eq!(node.status().disks[0].size_bytes, Some(4 << 20));
    assert_eq!(std::fs::metadata(home.path("a.img")).unwrap().len(), 4 << 20);
    let again = done(&node, "PUT", "/v1/volumes/a/size", &json!({ "size": "4MiB" }));
    assert!(again.applied.is_empty(), "{again:?}");
    drop(guest);
    node.stop();
    // The configuration still has the old size.
    let node = home.start(LOCAL);
    assert_eq!(node.status().volumes[0].size_bytes, 4 << 20);
    node.stop();
    // A new size in the file counts, and not a size that a command set before.
    let node = home.start(&LOCAL.replace("size = \"1MiB\"", "size = \"2MiB\""));
    assert_eq!(node.status().volumes[0].size_bytes, 2 << 20);
    node.stop();
}

#[test]
fn a_volume_shrinks_only_while_no_disk_uses_it() {
    let home = Home::new();
    let node = home.start(LOCAL);
    done(&node, "POST", "/v1/disks", &json!({ "volume": "a", "socket": "x.sock" }));
    let mut guest = Guest::connect(home.path("x.sock"), 1);
    assert_eq!(guest.write(0, 200, 5), Outcome::Ok);
    let half = json!({ "size": "512KiB" });
    let shrinks = refused(&node, "PUT", "/v1/volumes/a/size", Some(&half), 409);
    assert!(shrinks.error.contains("would be lost"), "{shrinks}");
    assert!(shrinks.way_out.contains("--shrink"), "{shrinks}");
    let half = json!({ "size": "512KiB", "shrink": true });
    let used = refused(&node, "PUT", "/v1/disks/x/size", Some(&half), 409);
    assert!(used.error.contains("in use by attachment \"x\""), "{used}");
    assert_eq!(guest.check(0, 200, 5), Outcome::Ok, "nothing has changed");
    assert!(!guest.0.disk_changed().unwrap());
    drop(guest);
    wait_for(&node, "closed", |status| status.volumes[0].attachments.is_empty());
    done(&node, "PUT", "/v1/volumes/a/size", &half);
    assert_eq!(std::fs::metadata(home.path("a.img")).unwrap().len(), 512 << 10);
    let mut guest = Guest::connect(home.path("x.sock"), 1);
    assert_eq!(guest.0.disk().capacity_sectors, 1024);
    assert_eq!(guest.write(0, 128, 5), Outcome::IoError, "beyond the end");
    drop(guest);
    node.stop();
    let node = home.start(LOCAL);
    assert_eq!(node.status().volumes[0].size_bytes, 512 << 10);
    node.stop();
}

#[test]
fn a_bad_resize_changes_nothing_and_says_why() {
    let home = Home::new();
    let node = home
        .start(&format!("{LOCAL}[[volume]]\nname = \"m\"\nbackend = {{ memory = \"1MiB\" }}\n"));
    for (path, body, code, says) in [
        ("volumes/a", json!({ "size": "2MiB", "force": true }), 400, "force"),
        ("volumes/a", json!({ "size": "huge" }), 400, "not a size"),
        ("volumes/a", json!({ "size": "1000B" }), 400, "not a whole number of sectors"),
        ("volumes/a", json!({ "shrink": true }), 400, "\"size\" is missing"),
        ("volumes/a", json!([1]), 400, "send {"),
        ("volumes/z", json!({ "size": "2MiB" }), 404, "\"z\""),
        ("disks/z", json!({ "size": "2MiB" }), 404, "\"z\""),
        ("volumes/m", json!({ "size": "2MiB" }), 409, "is not in a file"),
        ("volumes/a", json!({ "size": "900000TiB" }), 500, "cannot extend the file"),
    ] {
        let refused = refused(&node, "PUT", &format!("/v1/{path}/size"), Some(&body), code);
        assert!(refused.error.contains(says), "{path} {body}: {refused}");
        assert!(!refused.way_out.is_empty());
    }
    assert_eq!(node.status().volumes[0].size_bytes, 1 << 20);
    node.stop();
}

#[test]
fn a_remote_disk_grows_with_its_volume() {
    let home = Home::new();
    let (there, here) = (address(), address());
    let (io, vm) = (home.start(&io1(&there)), home.start(&vm1(&here)));
    let backend = json!({ "file": "a.img", "size": "1MiB" });
    let volume = json!({ "name": "a", "backend": backend, "allow": ["vm1"] });
    done(&io, "POST", "/v1/volumes", &volume);
    done(&vm, "POST", "/v1/peers", &json!({ "name": "io1", "address": there }));
    let disk = json!({ "volume": "io1/a", "socket": "x.sock", "queues": 2 });
    done(&vm, "POST", "/v1/disks", &disk);
    wait_for_disk(&vm, DiskState::Ready, "x.sock");
    // Before the guest connects: only the description changes.
    done(&io, "PUT", "/v1/volumes/a/size", &json!({ "size": "2MiB" }));
    wait_for(&vm, "told", |status| status.disks[0].size_bytes == Some(2 << 20));
    let mut guest = Guest::connect(home.path("x.sock"), 2);
    assert_eq!(guest.0.disk().capacity_sectors, 4096);
    assert_eq!(guest.write(1, 511, 7), Outcome::Ok);
    assert_eq!(guest.write(1, 512, 7), Outcome::IoError);
    done(&io, "PUT", "/v1/volumes/a/size", &json!({ "size": "8MiB" }));
    assert_eq!(told(&mut guest), 16384);
    for queue in 0..2 {
        assert_eq!(guest.write(queue, 2000 + u64::from(queue), 8), Outcome::Ok);
        assert_eq!(guest.check(queue, 2000 + u64::from(queue), 8), Outcome::Ok);
    }
    assert_eq!(discard(&mut guest, 16000, 16), Outcome::Ok);
    let elsewhere = refused(&vm, "PUT", "/v1/disks/x/size", Some(&json!({ "size": "9MiB" })), 409);
    assert!(elsewhere.way_out.contains("volume resize a SIZE` on io1"), "{elsewhere}");
    vm.stop();
    io.stop();
}

#[test]
fn a_larger_size_in_the_file_is_a_change_in_place() {
    let home = Home::new();
    let node = start_file(&home, "n.toml", LOCAL);
    done(&node, "POST", "/v1/disks", &json!({ "volume": "a", "socket": "x.sock" }));
    let mut guest = Guest::connect(home.path("x.sock"), 1);
    assert_eq!(guest.write(0, 1, 1), Outcome::Ok);
    write_file(&home, "n.toml", &LOCAL.replace("size = \"1MiB\"", "size = \"3MiB\""));
    let reloaded = done(&node, "POST", "/v1/reload", &Value::Null);
    assert_eq!(reloaded.applied, ["resize volume \"a\" to 3MiB"]);
    assert_eq!(told(&mut guest), 6144);
    assert_eq!(guest.check(0, 1, 1), Outcome::Ok);
    // A smaller size is different: the volume would be removed and come back.
    write_file(&home, "n.toml", LOCAL);
    let used = refused(&node, "POST", "/v1/reload", Some(&Value::Null), 409);
    assert!(used.error.contains("is used by"), "{used}");
    drop(guest);
    node.stop();
}
