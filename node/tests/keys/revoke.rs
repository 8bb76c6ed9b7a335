//! A node that is no longer allowed loses its access, also when later changes of a reload fail, and
//! does not get it back.

use node::Node;
use node::api::ReloadPlan;
use node::keys::KeyKind;
use node::status::{DiskState, Status};
use serde_json::{Value, json};
use virtio::driver::RequestStatus as Outcome;

use super::pair::{Pair, stop};
use crate::common::{Guest, wait_for, wait_for_disk};
use crate::live::control::{ask, done, refused};

/// A volume and a disk of the IOhost's own.
const OWN: &str = "[[volume]]\nname = \"b\"\nbackend = { memory = \"1MiB\" }\n\
                   [[disk]]\nsocket = \"b.sock\"\nvolume = \"b\"\nqueues = 2\n";

/// A pair with a working guest of vm1, and a guest of io1 whose disk the new file replaces: a
/// reload without force stops at this disk.
struct Stuck {
    pair: Pair,
    nodes: (Node, Node),
    guest: Guest,
    own_guest: Guest,
}

impl Stuck {
    fn new() -> Self {
        let pair = Pair::new();
        let io1 = pair.io1(&pair.key("vm1"), &pair.allow("alice"));
        let vm1 = pair.vm1(&pair.key("io1"), &Pair::attachment("alice"));
        let nodes = pair.start(&format!("{io1}{OWN}"), &vm1);
        wait_for_disk(&nodes.1, DiskState::Ready, "a.sock");
        let mut guest = pair.guest();
        assert_eq!(guest.write(0, 0, 20), Outcome::Ok);
        let own_guest = Guest::connect(pair.home.path("b.sock"), 2);
        Self { pair, nodes, guest, own_guest }
    }

    /// Writes a file for io1 that also changes the disk in use.
    fn write(&self, io1: &str) {
        self.pair.write(&format!("{io1}{}", OWN.replace("queues = 2", "queues = 4")));
    }

    fn plan(&self) -> ReloadPlan {
        let (code, answer) = ask(&self.nodes.0, "GET", "/v1/reload", None);
        assert_eq!(code, 200, "{answer}");
        serde_json::from_str(&answer).unwrap()
    }

    /// Waits until io1 has refused again, so that every peer that could come back has tried.
    fn wait_until_refused_again(&self) {
        let refusals = |status: &Status| -> u64 {
            status.sidecores.iter().map(|core| core.counters["sessions_hellos_refused"]).sum()
        };
        let before = refusals(&self.nodes.0.status());
        wait_for(&self.nodes.0, "refused", |status| refusals(status) > before + 1);
    }

    fn assert_nobody_is_in(&self) {
        let status = self.nodes.0.status();
        let connected = status.sessions.iter().any(|session| session.state == "connected");
        assert!(!connected && status.volumes[0].attachments.is_empty(), "{:#?}", status.sessions);
    }

    fn stop(self) {
        drop((self.guest, self.own_guest));
        stop(self.nodes);
    }
}

#[test]
fn a_revoked_node_key_stays_out_when_the_reload_fails_and_commands_follow() {
    let stuck = Stuck::new();
    let (pair, io1) = (&stuck.pair, &stuck.nodes.0);
    stuck.write(&pair.io1(&pair.key("stranger"), &pair.allow("alice")));
    let failed = io1.reload().unwrap_err();
    assert_eq!(failed.applied, ["change peer \"vm1\": its keys"]);
    assert!(failed.error.starts_with("could not remove disk \"b\""), "{failed}");
    wait_for_disk(&stuck.nodes.1, DiskState::Lost, "");
    let address = "127.0.0.1:9";
    let peer = json!({ "name": "x", "address": address, "keys": [pair.make("x", KeyKind::Node)] });
    done(io1, "POST", "/v1/peers", &peer);
    stuck.wait_until_refused_again();
    stuck.assert_nobody_is_in();
    done(io1, "DELETE", "/v1/peers/x", &Value::Null);
    stuck.wait_until_refused_again();
    stuck.assert_nobody_is_in();
    stuck.stop();
}

#[test]
fn the_keys_of_a_peer_that_goes_count_no_more_also_where_it_cannot_go_yet() {
    let stuck = Stuck::new();
    let (pair, io1) = (&stuck.pair, &stuck.nodes.0);
    let without = pair.io1(&pair.key("vm1"), "").replace("[[peer]]\nname = \"vm1\"\n", "");
    stuck.write(&without.replace(&pair.key("vm1"), ""));
    let failed = refused(io1, "POST", "/v1/reload", None, 409);
    let revoked = [
        "revoke the keys of peer \"vm1\"",
        "revoke rights that \"allow\" of volume \"a\" no longer has",
    ];
    assert_eq!(failed.applied, revoked);
    assert!(failed.untried.contains(&"remove peer \"vm1\"".to_owned()), "{failed:?}");
    done(io1, "POST", "/v1/peers", &{
        json!({ "name": "x", "address": "127.0.0.1:9", "keys": [pair.make("x", KeyKind::Node)] })
    });
    stuck.wait_until_refused_again();
    stuck.assert_nobody_is_in();
    // The node also reports a peer that the file does not have.
    let differs = io1.status().node.differs;
    assert!(differs.contains(&"a reload would remove peer \"vm1\"".to_owned()), "{differs:?}");
    done(io1, "POST", "/v1/reload", &json!({ "force": true }));
    assert!(io1.status().volumes[0].allow.is_empty());
    stuck.stop();
}

#[test]
fn a_stolen_attachment_key_is_out_although_a_disk_is_in_use() {
    let stuck = Stuck::new();
    let (pair, io1) = (&stuck.pair, &stuck.nodes.0);
    stuck.write(&pair.io1(&pair.key("vm1"), &pair.allow("bob")));
    let failed = io1.reload().unwrap_err();
    assert_eq!(failed.applied, ["revoke rights that \"allow\" of volume \"a\" no longer has"]);
    assert!(failed.untried.contains(&"change volume \"a\": \"allow\"".to_owned()), "{failed:?}");
    wait_for(io1, "gone", |status| status.volumes[0].attachments.is_empty());
    // A request of the guest finds the way closed, and waits.
    let Stuck { pair, nodes, mut guest, own_guest } = stuck;
    let waiting = std::thread::spawn(move || {
        assert_eq!(guest.write(0, 0, 99), Outcome::Ok);
        guest
    });
    wait_for_disk(&nodes.1, DiskState::Lost, "opens no volume a to vm1");
    let status = nodes.0.status();
    assert!(status.volumes[0].allow.is_empty(), "no new node is let in before the rest is done");
    assert!(status.sessions.iter().any(|session| session.state == "connected"));
    let back = pair.io1(&pair.key("vm1"), &pair.allow("alice"));
    pair.reload(&nodes.0, &format!("{back}{OWN}"));
    let mut guest = waiting.join().unwrap();
    assert_eq!(guest.check(1, 0, 99), Outcome::Ok);
    Stuck { pair, nodes, guest, own_guest }.stop();
}

#[test]
fn only_what_revokes_is_done_when_that_is_asked_for() {
    let mut stuck = Stuck::new();
    let (pair, io1) = (&stuck.pair, &stuck.nodes.0);
    stuck.write(&pair.io1(&pair.key("vm1"), &pair.allow("bob")));
    let plan = stuck.plan();
    assert_eq!(plan.revokes, ["revoke rights that \"allow\" of volume \"a\" no longer has"]);
    let only = json!({ "digest": plan.digest, "revoke_only": true });
    let told = done(io1, "POST", "/v1/reload", &only);
    assert_eq!(told.applied, plan.revokes);
    assert_eq!(told.notes.len(), 3, "what was not done is said: {:?}", told.notes);
    wait_for(io1, "gone", |status| status.volumes[0].attachments.is_empty());
    assert_eq!(stuck.own_guest.write(0, 1, 1), Outcome::Ok, "its disk was left alone");
    assert!(stuck.plan().revokes.is_empty() && stuck.plan().changes.len() == 3);
    stuck.stop();
}

#[test]
fn a_plan_whose_keys_have_changed_since_is_not_the_same() {
    let stuck = Stuck::new();
    let pair = &stuck.pair;
    stuck.write(&pair.io1(&pair.key("stranger"), &pair.allow("alice")));
    let digest = stuck.plan().digest;
    stuck.write(&pair.io1(&format!("key = \"{}\"", pair.make("y", KeyKind::Node)), "\"vm1\""));
    let reload = json!({ "digest": digest, "revoke_only": true });
    refused(&stuck.nodes.0, "POST", "/v1/reload", Some(&reload), 409);
    stuck.stop();
}
