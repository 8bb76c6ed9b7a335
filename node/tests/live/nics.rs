//! Networks and nics of a node: stand-in guests on their sockets, and frames between them.

use std::time::Instant;

use net::Mac;
use net::maker::FrameMaker;
use net::nic::{NicOptions, features};
use node::status::{DiskState, Origin};
use node::{Config, Node};
use serde_json::{Value, json};
use virtio::driver::{
    Backing, FramePart, FrameRing, GuestPlan, NicEnd, NicEndConfig, Regions, RingShape, SocketRole,
};

use super::control::{done, refused};
use super::{start_file, write_file};
use crate::common::{Home, PATIENCE, wait_for};

pub(crate) const HEADER: usize = 12;

pub(crate) const NODE: &str = r#"
name = "vm1"
control = "HOME/control.sock"
privileges = "keep"
[sidecores]
count = 2
[directories]
sockets = "HOME"
captures = "HOME"
[[network]]
name = "red"
[[network]]
name = "blue"
[[nic]]
socket = "one.sock"
network = "blue"
mac = "52:54:00:00:00:01"
queues = 2
[[nic]]
socket = "two.sock"
network = "blue"
mac = "52:54:00:00:00:02"
mtu = 9000
filter = { default = "deny", rules = ["allow received udp to any port 2000-2010"] }
"#;

pub(crate) fn mac(last: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0, last])
}

/// A guest with one pair of queues of its nic.
pub(crate) struct Guest {
    end: NicEnd,
    receive: FrameRing,
    send: FrameRing,
}

impl Guest {
    pub(crate) fn new(home: &Home, socket: &str, packed: bool) -> Self {
        let shape =
            RingShape { size: 256, slots: 256, transfer_bytes_max: 68 << 10, segments_max: 20 };
        let guest = GuestPlan { queues: 2, shape, backing: Backing::Memfd, regions: Regions::One };
        let features = features(&NicOptions::new("any", mac(1)));
        let role = SocketRole::Connect(home.path(socket));
        let config = NicEndConfig { role, guest, features, packed, event_idx: true };
        let end = NicEnd::connect(&config, PATIENCE).unwrap();
        let (receive, send) = (end.ring(0), end.ring(1));
        let mut guest = Self { end, receive, send };
        guest.post_buffers();
        guest
    }

    fn post_buffers(&mut self) {
        while let Some(slot) = self.receive.take_slot() {
            let part = FramePart { offset: 0, len: 1526 };
            assert!(self.receive.post(slot, &[part], false));
        }
        self.receive.publish();
    }

    pub(crate) fn say(&mut self, frame: &[u8]) {
        self.say_as([0; HEADER], frame);
    }

    /// Sends a frame with a header that asks for offloads.
    pub(crate) fn say_as(&mut self, header: [u8; HEADER], frame: &[u8]) {
        let slot = self.send.take_slot().expect("a slot");
        self.send.write(slot, 0, &header);
        self.send.write(slot, HEADER as u32, frame);
        let part = FramePart { offset: 0, len: (HEADER + frame.len()) as u32 };
        assert!(self.send.post(slot, &[part], false));
        self.send.publish();
        let until = Instant::now() + PATIENCE;
        while self.send.complete().unwrap().map(|(slot, _)| self.send.release(slot)).is_none() {
            assert!(Instant::now() < until, "it was never taken");
            std::thread::yield_now();
        }
    }

    /// The next frame, if one has come.
    pub(crate) fn try_hear(&mut self) -> Option<Vec<u8>> {
        let (slot, written) = self.receive.complete().unwrap()?;
        let mut bytes = vec![0; written as usize];
        self.receive.read(slot, 0, &mut bytes);
        self.receive.release(slot);
        self.post_buffers();
        Some(bytes.split_off(HEADER))
    }

    pub(crate) fn hear(&mut self) -> Vec<u8> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(frame) = self.try_hear() {
                return frame;
            }
            assert!(Instant::now() < until, "nothing came");
            std::thread::yield_now();
        }
    }
}

#[test]
fn two_guests_of_a_network_hear_each_other_as_far_as_the_filter_lets_them() {
    let home = Home::new();
    let node = home.start(NODE);
    for packed in [false, true] {
        let (mut one, mut two) =
            (Guest::new(&home, "one.sock", packed), Guest::new(&home, "two.sock", packed));
        assert_eq!(one.end.config().unwrap()[..10], [0x52, 0x54, 0, 0, 0, 1, 1, 0, 2, 0]);
        assert_eq!(two.end.config().unwrap()[10..], 9000u16.to_le_bytes());
        for len in 0..50 {
            let frame = FrameMaker::udp4().payload(len * 20).build();
            // A frame to a port for which the filter has no rule.
            one.say(&FrameMaker::udp4().ports(1, 1999).payload(5).build());
            one.say(&frame);
            assert_eq!(two.hear(), frame);
        }
        // The filter permits none of its own frames.
        two.say(&FrameMaker::udp4().from(mac(2)).to(mac(1)).payload(1).build());
    }
    let status = wait_for(&node, "left by its guests", |status| {
        status.nics.iter().all(|nic| nic.state == DiskState::Ready)
    });
    let blue = &status.networks[1];
    assert_eq!((blue.name.as_str(), blue.sidecore, blue.nics.len()), ("blue", 1, 2));
    let [one, two] = &status.nics[..] else { panic!("{status:#?}") };
    assert_eq!((one.counters["frames_in"], two.counters["frames_out"]), (200, 100));
    assert_eq!(two.counters["drops_out_filtered"], 100);
    assert_eq!((two.counters["drops_in_filtered"], one.counters["frames_out"]), (2, 0));
    assert_eq!(two.counters["filter_rule_1_frames"], 100);
}

/// Sends from one guest to the other, as often as it takes until the switch and the rings are
/// ready.
fn crosses(from: &mut Guest, to: &mut Guest, len: usize) {
    let frame = FrameMaker::udp4().payload(len).build();
    from.say(&frame);
    assert_eq!(to.hear(), frame);
}

fn state(node: &Node, nic: &str) -> DiskState {
    let status = node.status();
    status.nics.iter().find(|it| it.name == nic).expect("it is there").state
}

#[test]
fn networks_and_nics_come_go_and_change_while_others_run() {
    let home = Home::new();
    let node = home.start(NODE);
    let (mut one, mut two) =
        (Guest::new(&home, "one.sock", true), Guest::new(&home, "two.sock", false));
    let made = done(&node, "POST", "/v1/networks", &json!({ "name": "green" }));
    assert_eq!(made.applied, ["add network \"green\""]);
    for (name, last) in [("three", 3), ("four", 4)] {
        let nic = json!({ "network": "green", "socket": format!("{name}.sock"),
            "mac": format!("52:54:00:00:00:0{last}") });
        let added = done(&node, "POST", "/v1/nics", &nic);
        assert_eq!(added.applied, [format!("add nic {name:?} to network green")]);
    }
    let (mut three, mut four) =
        (Guest::new(&home, "three.sock", false), Guest::new(&home, "four.sock", false));
    let frame = FrameMaker::udp4().from(mac(3)).to(mac(4)).payload(77).build();
    three.say(&frame);
    assert_eq!(four.hear(), frame);
    let status = node.status();
    assert_eq!((status.networks[2].sidecore, status.networks[2].origin), (0, Origin::Command));
    assert_eq!(status.node.differs.len(), 3, "{:?}", status.node.differs);

    // Rules and rates change while it runs; a key that the request does not name stays.
    let rules = json!({ "filter": { "default": "deny", "rules": ["allow sent udp"] },
        "limit": { "frames-per-second": 1000000 } });
    let set = done(&node, "PUT", "/v1/nics/three", &rules);
    assert_eq!(set.applied, ["change nic \"three\": limit, filter"]);
    three.say(&frame);
    assert_eq!(four.hear(), frame);
    four.say(&FrameMaker::udp4().from(mac(4)).to(mac(3)).payload(5).build());
    done(&node, "PUT", "/v1/nics/three", &json!({ "limit": null }));
    let shown = node.status().nics[2].clone();
    assert_eq!(shown.chain, ["filter of 1 rules"]);
    assert_eq!(shown.counters["filter_rule_1_frames"], 1);
    assert_eq!(shown.counters["drops_out_filtered"], 1);
    // Its frames are counted, and copied into a file with a bounded size.
    let mirror = json!({ "filter": null, "meter": true,
        "mirror": { "file": "three.pcap", "size": "64KiB", "bytes-per-frame": 64 } });
    done(&node, "PUT", "/v1/nics/three", &mirror);
    for _ in 0..900 {
        three.say(&frame);
        assert_eq!(four.hear(), frame);
    }
    let status = wait_for(&node, "full", |status| {
        let counters = &status.nics[2].counters;
        counters["mirror_unwritten_frames"] + counters["mirror_lost_frames"] == 900 - 818
            && counters["mirror_file_bytes_now"] > 60_000
    });
    let counters = &status.nics[2].counters;
    assert_eq!((counters["meter_in_ipv4_frames"], counters["meter_out_frames"]), (900, 0));
    assert_eq!(counters["mirror_file_bytes_now"], 24 + 818 * (16 + 64));
    let bytes = std::fs::read(home.path("three.pcap")).unwrap();
    assert_eq!(bytes[40..104], frame[..64]);
    assert_eq!(status.nics[2].chain.len(), 2, "{:?}", status.nics[2].chain);
    done(&node, "PUT", "/v1/nics/three", &json!({ "mirror": null, "meter": null }));
    assert!(node.status().nics[2].chain.is_empty());

    // A nic in use is not removed by accident, nor is its network.
    let used = refused(&node, "DELETE", "/v1/nics/four", None, 409);
    assert!(used.error.starts_with("nic \"four\" is used by a guest (process "), "{used}");
    let used = refused(&node, "DELETE", "/v1/networks/green", None, 409);
    assert_eq!(used.error, "network \"green\" is used by nic \"three\", nic \"four\"");
    let gone = done(&node, "DELETE", "/v1/networks/green?force=true", &Value::Null);
    assert_eq!(gone.notes.len(), 2, "{gone:?}");
    assert!(!home.path("three.sock").exists());
    assert!(node.status().node.differs.is_empty());
    // The other guests were connected all the time.
    crosses(&mut one, &mut two, 300);
    node.stop();
}

#[test]
fn a_cable_is_pulled_and_plugged_in_again() {
    let home = Home::new();
    let node = home.start(NODE);
    let mut two = Guest::new(&home, "two.sock", false);
    let one = Guest::new(&home, "one.sock", false);
    let set = done(&node, "PUT", "/v1/nics/one", &json!({ "link": "down" }));
    assert_eq!(set.applied, ["change nic \"one\": link"]);
    wait_for(&node, "without its guest", |_| state(&node, "one") == DiskState::Lost);
    assert!(!home.path("one.sock").exists(), "the socket is gone");
    drop(one);
    done(&node, "PUT", "/v1/nics/one", &json!({ "link": "up" }));
    wait_for(&node, "there again", |_| state(&node, "one") == DiskState::Ready);
    crosses(&mut Guest::new(&home, "one.sock", false), &mut two, 40);
    node.stop();
}

/// The test runs in a network namespace of its own. Where the system forbids that, it says so. The
/// node may open interfaces of its user, and make none.
#[test]
fn an_uplink_that_vanishes_pulls_the_cables_until_it_is_back() {
    let name = "an_uplink_that_vanishes_pulls_the_cables_until_it_is_back";
    // SAFETY: only this thread, and those that it starts from now on, change their namespace.
    let is_apart = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    let ip = |words: &str| {
        let status = std::process::Command::new("ip").args(words.split(' ')).status();
        status.is_ok_and(|status| status.success())
    };
    let make = || ip("tuntap add vrio0 mode tap user 0") && ip("link set vrio0 up");
    if !is_apart || !rustix::process::geteuid().is_root() || !make() {
        return println!("SKIP {name}: no network namespace, or no tap");
    }
    let mut rights = rustix::thread::capabilities(None).unwrap();
    rights.effective.remove(rustix::thread::CapabilitySet::NET_ADMIN);
    rights.permitted.remove(rustix::thread::CapabilitySet::NET_ADMIN);
    rustix::thread::set_capabilities(None, rights).unwrap();
    let home = Home::new();
    let node = home.start(&NODE.replace("\"blue\"\n[[", "\"blue\"\nuplink = \"tap:vrio0\"\n[["));
    let (one, mut two) = (Guest::new(&home, "one.sock", true), Guest::new(&home, "two.sock", true));
    assert_eq!(node.status().networks[1].uplink_up, Some(true));
    assert!(ip("link del vrio0"));
    let status = wait_for(&node, "cut off", |status| {
        status.nics.iter().all(|nic| nic.state == DiskState::Lost && !nic.link)
    });
    assert_eq!(status.networks[1].uplink_up, Some(false));
    assert!(status.nics[0].detail.contains("uplink of its network is away"), "{status:#?}");
    assert!(!home.path("one.sock").exists());
    // A cable that an operator pulls meanwhile stays so.
    done(&node, "PUT", "/v1/nics/one", &json!({ "link": "down" }));
    assert!(make());
    wait_for(&node, "back", |status| {
        status.nics[1].state == DiskState::Ready && status.networks[1].uplink_up == Some(true)
    });
    assert_eq!(state(&node, "one"), DiskState::Lost);
    done(&node, "PUT", "/v1/nics/one", &json!({ "link": "up" }));
    wait_for(&node, "plugged in", |_| state(&node, "one") == DiskState::Ready);
    drop((one, std::mem::replace(&mut two, Guest::new(&home, "two.sock", false))));
    crosses(&mut Guest::new(&home, "one.sock", false), &mut two, 70);
    // An interface that is down exists, and leads nowhere.
    assert!(ip("link set vrio0 down"));
    let status = wait_for(&node, "down", |status| status.nics.iter().all(|nic| !nic.link));
    let why = status.networks[1].uplink_why.as_deref();
    assert!(why.is_some_and(|why| why.contains("set down")), "{why:?}");
    assert!(ip("link set vrio0 up"));
    wait_for(&node, "up", |status| {
        status.nics.iter().all(|nic| nic.link) && status.networks[1].uplink_why.is_none()
    });
    node.stop();
}

#[test]
fn a_reload_changes_what_the_file_changes() {
    let home = Home::new();
    let node = start_file(&home, "n.toml", NODE);
    let (mut one, mut two) =
        (Guest::new(&home, "one.sock", false), Guest::new(&home, "two.sock", false));
    // Another rule for a guest that stays, a network that goes, a network that comes with a nic.
    let text = NODE.replace("2000-2010", "2000-3000").replace("\"red\"", "\"green\"");
    let nic = "[[nic]]\nsocket = \"five.sock\"\nnetwork = \"green\"\nmac = \"52:54:00:00:00:05\"\n";
    write_file(&home, "n.toml", &format!("{text}{nic}"));
    let reloaded = done(&node, "POST", "/v1/reload", &json!({}));
    let wanted = [
        "remove network \"red\"",
        "add network \"green\"",
        "change nic \"two\": filter",
        "add nic \"five\" to network green",
    ];
    assert_eq!(reloaded.applied, wanted);
    crosses(&mut one, &mut two, 9);
    assert_eq!(node.status().nics.len(), 3);
    // An option that a guest reads only once takes its nic away, so it is not changed under a
    // guest.
    write_file(&home, "n.toml", &format!("{}{nic}", text.replace("mtu = 9000", "mtu = 4000")));
    let used = refused(&node, "POST", "/v1/reload", Some(&json!({})), 409);
    assert!(
        used.error.contains("remove nic \"two\", to add it again below (mtu changed)"),
        "{used}"
    );
    crosses(&mut one, &mut two, 10);
    drop((one, two));
    wait_for(&node, "left", |status| status.nics.iter().all(|it| it.state == DiskState::Ready));
    done(&node, "POST", "/v1/reload", &json!({}));
    let two = Guest::new(&home, "two.sock", false);
    assert_eq!(two.end.config().unwrap()[10..], 4000u16.to_le_bytes());
    node.stop();
}

#[test]
fn a_bad_command_about_a_network_changes_nothing() {
    let home = Home::new();
    let node = home.start(NODE);
    let nic = |more: Value| {
        let mut nic = json!({ "network": "blue", "socket": "x.sock", "mac": "52:54:00:00:00:09" });
        nic.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        nic
    };
    for (method, path, body, code, says) in [
        ("POST", "nics", nic(json!({ "network": "pink" })), 400, "there is no [[network]]"),
        ("POST", "nics", nic(json!({ "socket": "/etc/x.sock" })), 400, "not inside the sockets'"),
        ("POST", "nics", nic(json!({ "mac": "52:54:00:00:00:01" })), 400, "has the same address"),
        ("POST", "networks", json!({ "name": "blue" }), 400, "has the same name"),
        ("POST", "networks", json!({ "name": "x", "uplink": "eth0" }), 400, "is no uplink"),
        ("POST", "networks", json!({ "name": "x", "uplink": "xdp:no-such" }), 500, "no Ethernet"),
        ("PUT", "nics/nobody", json!({ "link": "up" }), 404, "there is no nic"),
        ("PUT", "nics/one", json!({ "mtu": 3000 }), 400, "of a nic cannot be changed"),
        ("PUT", "nics/one", json!({ "link": "sideways" }), 400, "sideways"),
        ("PUT", "nics/one", json!([]), 400, "not a JSON object"),
        ("DELETE", "networks/pink", json!({}), 404, "there is no network"),
    ] {
        let refused = refused(&node, method, &format!("/v1/{path}"), Some(&body), code);
        assert!(refused.to_string().contains(says), "{method} {path} {body}: {refused}");
    }
    let status = node.status();
    assert_eq!((status.networks.len(), status.nics.len()), (2, 2));
    assert!(status.node.differs.is_empty(), "{:?}", status.node.differs);
    node.stop();
}

#[test]
fn problems_of_a_network_or_a_nic_are_named() {
    let home = Home::new();
    let problems = |more: &str| {
        let text = NODE.replace("HOME", "/tmp") + more;
        let error = Config::parse(std::path::Path::new("n.toml"), &text).unwrap_err();
        error.to_string()
    };
    drop(home);
    let nic = |what: &str| {
        format!(
            "[[nic]]\nsocket = \"x.sock\"\nnetwork = \"blue\"\nmac = \"52:54:00:00:00:09\"\n{what}"
        )
    };
    let cases = [
        (nic("").replace("blue", "green"), "there is no [[network]] \"green\""),
        (nic("").replace("00:09", "00:01"), "nic \"one\" of the same network has the same"),
        (nic("").replace("52:54", "ff:ff"), "is a group's address or zero"),
        (nic("").replace("52:54", "5:54"), "is not an Ethernet address"),
        (nic("vlan = 4095"), "out of range"),
        (nic("vlan = 3\nvlans = [4]"), "keep one of the two"),
        (nic("mirror = { file = \"/etc/a.pcap\" }"), "is not inside the directory"),
        (nic("mirror = { file = \"a.pcap\", size = \"1KiB\" }"), "at least 64KiB"),
        (nic("mirror = { size = \"1MiB\" }"), "or tap = \"ids0\""),
        (nic("mirror = { tap = \"a/b\" }"), "is no interface's name"),
        (nic("mirror = { tap = \"ids0\", file = \"a.pcap\" }"), "keep \"tap\" alone"),
        (
            nic("mirror = { tap = \"t0\" }\n") + "[[network]]\nname = \"x\"\nuplink = \"tap:t0\"\n",
            "network \"x\" has \"t0\" as its uplink",
        ),
        (nic("limit = {}"), "write { bytes-per-second = \"100MiB\" }"),
        (nic("filter = { default = \"deny\", rules = [\"permit\"] }"), "rule 1: 'permit'"),
        (nic("").replace("x.sock", "one.sock"), "has the same socket"),
        ("[[network]]\nname = \"blue\"\n".to_owned(), "has the same name"),
        ("[[network]]\nname = \"x\"\nuplink = \"eth0\"\n".to_owned(), "is no uplink"),
        ("[[network]]\nname = \"x\"\nuplink = \"xdp:\"\n".to_owned(), "write \"tap:NAME\" or"),
        ("[[network]]\nname = \"x\"\nuplink = \"xdp:a/b\"\n".to_owned(), "is no uplink"),
    ];
    for (more, expected) in cases {
        let problems = problems(&more);
        assert!(problems.contains(expected), "{more}: {problems}");
    }
}
