//! A node that is made what its file says now.

use std::os::unix::net::UnixListener;

use node::api::ReloadPlan;
use node::status::{DiskState, Origin};
use serde_json::{Value, json};
use virtio::driver::RequestStatus as Outcome;

use super::control::{ask, done, refused};
use super::{LOCAL, start_file, write_file};
use crate::common::{Guest, Home, PATIENCE, wait_for_disk};

const DISK: &str = "[[disk]]\nsocket = \"x.sock\"\nvolume = \"a\"\n";

fn plan(node: &node::Node) -> ReloadPlan {
    let (code, answer) = ask(node, "GET", "/v1/reload", None);
    assert_eq!(code, 200, "{answer}");
    serde_json::from_str(&answer).unwrap()
}

fn whats(plan: &ReloadPlan) -> Vec<&str> {
    plan.changes.iter().map(|change| change.what.as_str()).collect()
}

#[test]
fn the_difference_is_told_first_and_then_made() {
    let home = Home::new();
    let node = start_file(&home, "n.toml", LOCAL);
    assert!(plan(&node).changes.is_empty());
    let more = "[[volume]]\nname = \"b\"\nbackend = { memory = \"1MiB\" }\n";
    let text = LOCAL.replace("[\"meter\"]", "[]");
    let text = format!("metrics-listen = \"127.0.0.1:0\"\n{text}{DISK}{more}");
    write_file(&home, "n.toml", &text);
    let said = plan(&node);
    let wanted = [
        "add volume \"b\"",
        "change volume \"a\": the chain is now empty",
        "add disk \"x\" of volume a",
    ];
    let mut sorted = whats(&said);
    sorted.sort_unstable_by_key(|what| wanted.iter().position(|wanted| wanted == what));
    assert_eq!(sorted, wanted);
    assert_eq!(whats(&said)[2], wanted[2], "disks come last");
    assert_eq!(said.needs_restart, ["metrics-listen"]);
    assert!(node.status().disks.is_empty(), "it was only said");
    let other = json!({ "digest": "0000000000000000" });
    let stale = refused(&node, "POST", "/v1/reload", Some(&other), 409);
    assert!(stale.error.contains("not the ones that were shown"), "{stale}");
    let changed = done(&node, "POST", "/v1/reload", &json!({ "digest": said.digest }));
    assert_eq!(changed.applied, whats(&said));
    wait_for_disk(&node, DiskState::Ready, "x.sock");
    let status = node.status();
    assert!(status.volumes[0].chain.is_empty() && status.volumes.len() == 2);
    assert_eq!(status.node.differs, ["metrics-listen changed, which takes a restart"]);
    assert!(plan(&node).changes.is_empty());
    node.stop();
}

#[test]
fn a_typo_changes_nothing_and_its_line_is_named() {
    let home = Home::new();
    let node = start_file(&home, "n.toml", LOCAL);
    write_file(&home, "n.toml", &format!("{LOCAL}{}queus = 4\nvolum = 1\n", DISK));
    for method in ["GET", "POST"] {
        let typo = refused(&node, method, "/v1/reload", None, 400);
        let lines: Vec<_> = typo.error.lines().collect();
        assert_eq!(lines.len(), 2, "every problem: {typo}");
        assert!(lines[0].contains("n.toml:13: disk \"x.sock\": unknown key \"queus\""), "{typo}");
        assert!(typo.way_out.contains("nothing was changed"), "{typo}");
    }
    assert!(node.status().disks.is_empty());
    assert!(node.reload().is_err(), "and so for SIGHUP");
    std::fs::remove_file(home.path("n.toml")).unwrap();
    let gone = refused(&node, "POST", "/v1/reload", None, 400);
    assert!(gone.error.contains("cannot be read"), "{gone}");
    node.stop();
}

#[test]
fn other_changes_replace_the_object_and_name_its_guest() {
    let home = Home::new();
    let node = start_file(&home, "n.toml", &format!("{LOCAL}{DISK}"));
    let mut guest = Guest::connect(home.path("x.sock"), 1);
    assert_eq!(guest.write(0, 2, 22), Outcome::Ok);
    write_file(&home, "n.toml", &format!("{LOCAL}{DISK}queues = 2\n"));
    let said = plan(&node);
    let wanted =
        ["remove disk \"x\", to add it again below (queues changed)", "add disk \"x\" of volume a"];
    assert_eq!(whats(&said), wanted);
    let user = format!("a guest (process {})", std::process::id());
    assert_eq!(said.changes[0].used_by, [user]);
    let used = refused(&node, "POST", "/v1/reload", None, 409);
    assert_eq!(used.untried, [wanted[1]]);
    assert_eq!(guest.check(0, 2, 22), Outcome::Ok);
    done(&node, "POST", "/v1/reload", &json!({ "force": true }));
    guest.0.reconnect(PATIENCE).unwrap();
    assert_eq!(guest.check(0, 2, 22), Outcome::Ok);
    assert_eq!(node.status().disks[0].queues, 2);
    node.stop();
}

#[test]
fn a_change_that_fails_half_way_leaves_a_defined_state() {
    let home = Home::new();
    let node = start_file(&home, "n.toml", LOCAL);
    let foreign = UnixListener::bind(home.path("y.sock")).unwrap();
    let more = "[[volume]]\nname = \"b\"\nbackend = { memory = \"1MiB\" }\n";
    let disks = [("x", "a"), ("y", "b"), ("z", "b")].map(|(disk, volume)| {
        format!("[[disk]]\nsocket = \"{disk}.sock\"\nvolume = \"{volume}\"\n")
    });
    write_file(&home, "n.toml", &format!("{LOCAL}{more}{}", disks.concat()));
    let failed = refused(&node, "POST", "/v1/reload", None, 500);
    assert_eq!(failed.applied, ["add volume \"b\"", "add disk \"x\" of volume a"]);
    assert!(failed.error.starts_with("could not add disk \"y\" of volume b"), "{failed}");
    assert!(failed.error.contains("in use by another program"), "{failed}");
    assert_eq!(failed.untried, ["add disk \"z\" of volume b"]);
    let status = node.status();
    assert_eq!((status.volumes.len(), status.disks.len()), (2, 1));
    let left = ["y", "z"].map(|disk| format!("a reload would add disk \"{disk}\" of volume b"));
    assert_eq!(status.node.differs, left);
    drop(foreign);
    assert_eq!(done(&node, "POST", "/v1/reload", &Value::Null).applied.len(), 2);
    assert!(node.status().node.differs.is_empty());
    node.stop();
}

#[test]
fn a_reload_keeps_added_objects_and_restores_removed_ones() {
    let home = Home::new();
    let node = start_file(&home, "n.toml", &format!("{LOCAL}{DISK}"));
    done(&node, "DELETE", "/v1/disks/x", &Value::Null);
    let volume = json!({ "name": "b", "backend": { "memory": "1MiB" } });
    done(&node, "POST", "/v1/volumes", &volume);
    done(&node, "POST", "/v1/disks", &json!({ "volume": "b", "socket": "y.sock" }));
    let said = plan(&node);
    assert_eq!(whats(&said), ["add disk \"x\" of volume a"]);
    done(&node, "POST", "/v1/reload", &Value::Null);
    let origins = |node: &node::Node| -> Vec<_> {
        node.status().disks.iter().map(|disk| (disk.name.clone(), disk.origin)).collect()
    };
    let both = [("y".to_owned(), Origin::Command), ("x".to_owned(), Origin::File)];
    assert_eq!(origins(&node), both);
    // The file takes them over, and then it can take them away.
    let more = "[[volume]]\nname = \"b\"\nbackend = { memory = \"1MiB\" }\n\
                [[disk]]\nsocket = \"y.sock\"\nvolume = \"b\"\n";
    write_file(&home, "n.toml", &format!("{LOCAL}{DISK}{more}"));
    assert!(done(&node, "POST", "/v1/reload", &Value::Null).applied.is_empty());
    assert!(origins(&node).iter().all(|(_, origin)| *origin == Origin::File));
    write_file(&home, "n.toml", LOCAL);
    let gone = done(&node, "POST", "/v1/reload", &Value::Null);
    let wanted = ["remove disk \"y\"", "remove disk \"x\"", "remove volume \"b\""];
    assert_eq!(gone.applied, wanted);
    assert!(node.status().disks.is_empty());
    node.stop();
}

#[test]
fn a_file_that_clashes_with_what_a_command_added_is_refused_as_a_whole() {
    let home = Home::new();
    let node = start_file(&home, "n.toml", LOCAL);
    done(&node, "POST", "/v1/disks", &json!({ "volume": "a", "socket": "y.sock", "name": "q" }));
    let clash = "[[disk]]\nname = \"other\"\nsocket = \"y.sock\"\nvolume = \"a\"\n";
    write_file(&home, "n.toml", &format!("{LOCAL}{clash}"));
    let refused = refused(&node, "POST", "/v1/reload", None, 400);
    assert!(refused.error.contains("has the same socket"), "{refused}");
    assert_eq!(node.status().disks.len(), 1);
    node.stop();
}
