//! With a real interface, in a network namespace of the test's own. Where that is not allowed the
//! test says so and looks at nothing.

use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use handover::ReceivedDescriptors;
use sidecore::Waker;

use super::*;
use crate::ether::{Mac, TYPE_ARP};
use crate::maker::FrameMaker;
use crate::offload::Cut;
use crate::testing::pushed;
use crate::uplink::{Keeper, OwnCards, UplinkCore, UplinkParts};

const OURS: Mac = Mac([0x52, 0x54, 0, 0, 0, 1]);

fn ip(arguments: &str) -> bool {
    let words = arguments.split_whitespace();
    Command::new("ip").args(words).status().is_ok_and(|status| status.success())
}

fn skip(why: &str) {
    println!("SKIP the_host_is_reached_with_offloads_and_an_interface_comes_back: {why}");
}

type Tap = (Box<dyn Port>, Arc<UplinkCore>, Arc<PortCounters>, Keeper, mpsc::Receiver<bool>);

/// A tap with the address 10.0.0.2, behind which we are 10.0.0.1.
fn interface() -> Option<Tap> {
    // SAFETY: only this thread, and those that it starts from now on, change their namespace.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        skip("a network namespace is not allowed here");
        return None;
    }
    let counters = Arc::<PortCounters>::default();
    let (tell, told) = mpsc::channel();
    let cards: Arc<dyn Cards> = Arc::new(OwnCards);
    let UplinkParts { make, core, keeper } = match TapUplink::new("vrio0").open(&cards) {
        Ok(opened) => {
            let tell = move |is_up| tell.send(is_up).unwrap();
            opened.into_parts(Arc::clone(&counters), Waker::none(), tell).unwrap()
        }
        Err(error) => {
            skip(&error);
            return None;
        }
    };
    assert!(ip("addr add 10.0.0.2/24 dev vrio0") && ip("link set lo up"));
    assert!(ip(&format!("neigh add 10.0.0.1 lladdr {OURS} dev vrio0")));
    Some((make(), core, counters, keeper, told))
}

fn host_mac() -> Mac {
    let output = Command::new("ip").args(["-o", "link", "show", "vrio0"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut words = text.split_whitespace().skip_while(|word| *word != "link/ether");
    words.nth(1).unwrap().parse().unwrap()
}

/// The first frame of this type that comes within 5 s.
fn hear(tap: &mut Box<dyn Port>, ether_type: u16) -> (Vec<u8>, Offload) {
    let end = Instant::now() + Duration::from_secs(5);
    let mut burst = Burst::new();
    while Instant::now() < end {
        let _ = tap.receive(&mut burst, sidecore::now_ns());
        for frame in burst.frames() {
            if crate::ether::ether_type(frame.head()) == Some(ether_type) {
                return (burst.to_vec(frame), frame.offload);
            }
        }
        tap.release(&mut burst);
    }
    panic!("nothing of type {ether_type:#x} came");
}

fn say(tap: &mut Box<dyn Port>, bytes: &[u8], offload: Offload) {
    let mut burst = Burst::new();
    pushed(&mut burst, bytes, 700).offload = offload;
    burst.frames_mut()[0].accept(&Offers::ALL).unwrap();
    tap.transmit(&burst, &[Chosen { at: 0, tci: 0 }], 0);
}

#[test]
fn the_host_is_reached_with_offloads_and_an_interface_comes_back() {
    let Some((mut tap, core, counters, _keeper, told)) = interface() else { return };
    let host = UdpSocket::bind("10.0.0.2:2000").unwrap();
    host.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let maker = FrameMaker::udp4().from(OURS).to(host_mac());
    // As it is, with the checksum unfinished, and to be cut.
    let mut room = [0; 70_000];
    say(&mut tap, &maker.clone().payload(300).build(), Offload::default());
    assert_eq!(host.recv(&mut room).unwrap(), 300);
    let unfinished = Offload {
        needs_checksum: true,
        checksum_start: 34,
        checksum_offset: 6,
        ..Offload::default()
    };
    say(&mut tap, &maker.clone().partial().payload(1400).build(), unfinished);
    assert_eq!(host.recv(&mut room).unwrap(), 1400);
    let uncut = Offload { cut: Cut::Udp, segment_bytes: 1000, ..unfinished };
    let large = maker.clone().partial().payload(4500);
    say(&mut tap, &large.build(), uncut);
    let mut heard = Vec::new();
    for expected in [1000, 1000, 1000, 1000, 500] {
        assert_eq!(host.recv(&mut room).unwrap(), expected);
        heard.extend(&room[..expected]);
    }
    assert_eq!(heard, large.build()[42..]);
    assert_eq!(counters.frames_out.get(), 3);
    // And back: the host leaves the checksum to us.
    host.send_to(&heard[..700], "10.0.0.1:1000").unwrap();
    let (frame, offload) = hear(&mut tap, crate::ether::TYPE_IPV4);
    assert_eq!((&frame[42..], offload.needs_checksum), (&heard[..700], true));
    // Gone, and made again.
    assert!(ip("link del vrio0"));
    let end = Instant::now() + Duration::from_secs(10);
    let mut burst = Burst::new();
    while core.opened.load(Relaxed) < 2 || !core.is_up() {
        let _ = tap.receive(&mut burst, sidecore::now_ns());
        tap.release(&mut burst);
        assert!(Instant::now() < end, "it did not come back");
    }
    // It may be down for less than a look takes; the listener hears both.
    assert_eq!([told.recv().unwrap(), told.recv().unwrap()], [false, true]);
    assert!(ip("addr add 10.0.0.2/24 dev vrio0"));
    drop(UdpSocket::bind("10.0.0.2:0").unwrap().send_to(b"hello", "10.0.0.1:1000"));
    hear(&mut tap, TYPE_ARP);
}

#[test]
fn a_failure_to_open_is_reported() {
    for name in ["", "a name", "a/b", "sixteen-letters-x", "vrio%d"] {
        let error = open_frames(name).unwrap_err().to_string();
        assert!(error.contains("is not an interface's name"), "{error}");
    }
    let error = open_frames("lo").unwrap_err().to_string();
    assert!(error.contains("lo") || error.contains("/dev/net/tun"), "{error}");
}

/// A tap goes on with a state and no descriptors but these.
fn adopt(state: Value, received: &mut ReceivedDescriptors) -> Result<OpenUplink, String> {
    let cards: Arc<dyn Cards> = Arc::new(OwnCards);
    // SAFETY: no process uses it.
    let handed = unsafe { HandedInterface::new(state, received) };
    TapUplink::new("vrio0").adopt(handed, &cards)
}

#[test]
fn the_state_of_a_tap_has_its_form() {
    let fd = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let mut sent = SentDescriptors::default();
    sent.put(fd());
    let state = OpenedTap { fd: fd(), udp: true }.take_down(&mut sent).unwrap();
    assert_eq!(state, serde_json::json!({ "tap": { "tap": 1, "udp": true } }));
    adopt(state, &mut sent.into_received()).unwrap();
}

#[test]
fn a_state_that_cannot_be_read_says_why() {
    let states = [
        (serde_json::json!({ "xdp": { "index": 1 } }), "its uplink is of another kind"),
        (serde_json::json!(7), "its uplink is of another kind"),
        (serde_json::json!({ "tap": { "tap": 0 } }), "of its tap uplink: missing field `udp`"),
        (serde_json::json!({ "tap": { "tap": "x", "udp": true } }), "of its tap uplink: invalid"),
        (serde_json::json!({ "tap": { "tap": 0, "udp": true } }), "descriptor 0 has not arrived"),
    ];
    for (state, says) in states {
        let error = adopt(state, &mut ReceivedDescriptors::default()).unwrap_err();
        assert!(error.contains(says), "{error}");
    }
}
