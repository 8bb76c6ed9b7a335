//! Networks and nics of a node: stand-in guests on their sockets, and frames between them.

use std::time::Instant;

use net::Mac;
use net::maker::FrameMaker;
use net::nic::{NicOptions, features};
use node::Config;
use node::status::DiskState;
use virtio::driver::{
    Backing, FrameRing, GuestPlan, NicEnd, NicEndConfig, Part, Regions, RingShape, Role,
};

use crate::common::{Home, PATIENCE, wait_for};

const HEADER: usize = 12;

const NODE: &str = r#"
name = "vm1"
control = "HOME/control.sock"
privileges = "keep"
[sidecores]
count = 2
[directories]
sockets = "HOME"
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

fn mac(last: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0, last])
}

/// A guest with one pair of queues of its nic.
struct Guest {
    end: NicEnd,
    receive: FrameRing,
    send: FrameRing,
}

impl Guest {
    fn new(home: &Home, socket: &str, packed: bool) -> Self {
        let shape =
            RingShape { size: 256, slots: 256, transfer_bytes_max: 68 << 10, segments_max: 20 };
        let guest = GuestPlan { queues: 2, shape, backing: Backing::Memfd, regions: Regions::One };
        let features = features(&NicOptions::new("any", mac(1)));
        let role = Role::Connect(home.path(socket));
        let config = NicEndConfig { role, guest, features, packed, event_idx: true };
        let end = NicEnd::connect(&config, PATIENCE).unwrap();
        let (receive, send) = (end.ring(0), end.ring(1));
        let mut guest = Self { end, receive, send };
        guest.post_buffers();
        guest
    }

    fn post_buffers(&mut self) {
        while let Some(slot) = self.receive.take_slot() {
            let part = Part { offset: 0, len: 1526 };
            assert!(self.receive.post(slot, &[part], false));
        }
        self.receive.publish();
    }

    fn say(&mut self, frame: &[u8]) {
        let slot = self.send.take_slot().expect("a slot");
        self.send.write(slot, 0, &[0; HEADER]);
        self.send.write(slot, HEADER as u32, frame);
        let part = Part { offset: 0, len: (HEADER + frame.len()) as u32 };
        assert!(self.send.post(slot, &[part], false));
        self.send.publish();
        let until = Instant::now() + PATIENCE;
        while self.send.complete().unwrap().map(|(slot, _)| self.send.release(slot)).is_none() {
            assert!(Instant::now() < until, "it was never taken");
            std::thread::yield_now();
        }
    }

    fn hear(&mut self) -> Vec<u8> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some((slot, written)) = self.receive.complete().unwrap() {
                let mut bytes = vec![0; written as usize];
                self.receive.read(slot, 0, &mut bytes);
                self.receive.release(slot);
                self.post_buffers();
                return bytes.split_off(HEADER);
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
            // To a port that the filter knows nothing of.
            one.say(&FrameMaker::udp4().ports(1, 1999).payload(5).build());
            one.say(&frame);
            assert_eq!(two.hear(), frame);
        }
        // What it sends is not allowed at all.
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

#[test]
fn what_is_wrong_with_a_network_or_a_nic_is_said() {
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
        (nic("").replace("blue", "green"), "there is no [[network]] called \"green\""),
        (nic("").replace("00:09", "00:01"), "nic \"one\" of the same network has the same"),
        (nic("").replace("52:54", "ff:ff"), "is a group's address, or nobody's"),
        (nic("").replace("52:54", "5:54"), "is not an Ethernet address"),
        (nic("vlan = 4095"), "out of range"),
        (nic("vlan = 3\nvlans = [4]"), "keep one of the two"),
        (nic("limit = {}"), "write { bytes-per-second = \"100MiB\" }"),
        (nic("filter = { default = \"deny\", rules = [\"permit\"] }"), "rule 1: 'permit'"),
        (nic("").replace("x.sock", "one.sock"), "has the same socket"),
        ("[[network]]\nname = \"blue\"\n".to_owned(), "has the same name"),
        ("[[network]]\nname = \"x\"\nuplink = \"eth0\"\n".to_owned(), "is no uplink"),
    ];
    for (more, expected) in cases {
        let problems = problems(&more);
        assert!(problems.contains(expected), "{more}: {problems}");
    }
}
