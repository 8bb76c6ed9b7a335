//! Frames of a nic are copied to a tap, where a listener receives them, in a network namespace of
//! the test's own. Where the system forbids namespaces, the test says so.

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::time::Instant;

use net::maker::FrameMaker;
use rustix::net::{AddressFamily, RecvFlags, SocketType, recv, socket, sockopt};
use serde_json::json;

use super::control::done;
use super::nics::{Guest, HEADER, NODE, mac};
use crate::common::{Home, PATIENCE, wait_for};

fn ip(words: &str) -> bool {
    Command::new("ip").args(words.split(' ')).status().is_ok_and(|status| status.success())
}

/// A listener at the tap.
struct Ear(OwnedFd);

impl Ear {
    fn at(interface: &str) -> Self {
        let socket = socket(AddressFamily::PACKET, SocketType::RAW, None).unwrap();
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE)).unwrap();
        // SAFETY: it has integers only, for which zero is a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = link::interface_index(interface).unwrap() as i32;
        // SAFETY: an address of its family and as long as said.
        let bound = unsafe {
            let at = std::ptr::from_ref(&address).cast();
            libc::bind(socket.as_raw_fd(), at, size_of_val(&address) as u32)
        };
        assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
        Self(socket)
    }

    /// The next frame of one of our guests. The host sends frames of its own there.
    fn hear(&self) -> Vec<u8> {
        let (mut room, end) = (vec![0; 70_000], Instant::now() + PATIENCE);
        while Instant::now() < end {
            let (len, _) = recv(&self.0, &mut room[..], RecvFlags::empty()).expect("a frame");
            if room[6..11] == mac(0).0[..5] {
                room.truncate(len);
                return room;
            }
        }
        panic!("nothing came");
    }
}

#[test]
fn frames_are_heard_at_a_tap_and_pass_while_the_tap_is_away() {
    let name = "frames_are_heard_at_a_tap_and_pass_while_the_tap_is_away";
    // SAFETY: only this thread, and those that it starts from now on, change their namespace.
    let is_apart = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    if !is_apart || !ip("tuntap add ids0 mode tap") {
        return println!("SKIP {name}: no network namespace, or no taps");
    }
    let home = Home::new();
    let node = home.start(NODE);
    let (mut one, mut two) =
        (Guest::new(&home, "one.sock", false), Guest::new(&home, "two.sock", false));
    let set = done(&node, "PUT", "/v1/nics/one", &json!({ "mirror": { "tap": "ids0" } }));
    assert_eq!(set.applied, ["change nic \"one\": mirror"]);
    let is_up = |what: &str, up: u64| {
        wait_for(&node, what, |status| status.nics[0].counters["mirror_up_now"] == up)
    };
    let status = is_up("open", 1);
    assert_eq!(status.nics[0].chain, ["mirror tap ids0"]);
    let ear = Ear::at("ids0");
    // Short frames and one of a page arrive unchanged; a frame with unfinished segmentation stays
    // one.
    for bytes in [20, 1400] {
        let frame = FrameMaker::udp4().payload(bytes).build();
        one.say(&frame);
        assert_eq!(two.hear(), frame);
        assert_eq!(ear.hear(), frame);
    }
    let large = FrameMaker::udp4().partial().payload(60_000).build();
    let header: [u8; HEADER] = [1, 5, 42, 0, 0x78, 5, 34, 0, 6, 0, 0, 0];
    one.say_as(header, &large);
    let mut heard = Vec::new();
    while heard.len() < 60_000 {
        // A kernel that takes no whole UDP packet of this size gets it in pieces.
        heard.extend_from_slice(&ear.hear()[42..]);
    }
    assert!(heard == large[42..], "as it was sent");
    // While the interface is down no listener receives.
    assert!(ip("link set ids0 down"));
    is_up("set down", 0);
    assert!(ip("link set ids0 up"));
    is_up("set up", 1);
    // The interface goes away, which costs the guests nothing, and comes back.
    assert!(ip("link del ids0"));
    let frame = FrameMaker::udp4().payload(300).build();
    for _ in 0..50 {
        one.say(&frame);
        while two.hear() != frame {}
    }
    let status = wait_for(&node, "missed", |status| {
        let counters = &status.nics[0].counters;
        counters["mirror_frames"] == 53 && counters["mirror_unwritten_frames"] > 0
    });
    assert_eq!(status.nics[0].counters["mirror_lost_frames"], 0);
    // This node may make the interface itself.
    is_up("open again", 1);
    let ear = Ear::at("ids0");
    one.say(&frame);
    assert_eq!(ear.hear(), frame);
    done(&node, "PUT", "/v1/nics/one", &json!({ "mirror": null }));
    one.say(&frame);
    assert!(node.status().nics[0].chain.is_empty());
    node.stop();
}
