//! An interface past the network stack as the uplink of a node's network, in a network namespace of
//! the test's own; where that is not allowed a test says so.

use std::net::UdpSocket;
use std::process::Command;

use net::Mac;
use net::maker::FrameMaker;
use node::status::DiskState;
use serde_json::{Value, json};

use super::control::{done, refused};
use super::nics::{Guest, HEADER, NODE, mac};
use crate::common::{Home, PATIENCE, wait_for};

fn ip(words: &str) -> bool {
    Command::new("ip").args(words.split(' ')).status().is_ok_and(|status| status.success())
}

/// A cable: one end is the node's, and the other end is a host with this address.
fn plug() -> bool {
    // SAFETY: only this thread, and those that it starts from now on, change their namespace.
    let is_apart = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    is_apart
        && rustix::process::geteuid().is_root()
        && ip("link add vrio0 type veth peer name far address 52:54:00:00:00:99")
        && ip("addr add 10.0.0.2/24 dev far")
        && ip("link set far up")
        && ip(&format!("neigh add 10.0.0.1 lladdr {} dev far", mac(1)))
}

/// The sum of big-endian words by which IPv4 checks its header.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// A packet of IPv4 as it is with this number, which a host counts up.
fn with_number(mut frame: Vec<u8>, number: u16) -> Vec<u8> {
    frame[18..20].copy_from_slice(&number.to_be_bytes());
    frame[24..26].fill(0);
    let sum = !sum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

#[test]
fn a_guest_reaches_a_host_past_the_stack_until_the_cable_is_unplugged() {
    let name = "a_guest_reaches_a_host_past_the_stack_until_the_cable_is_unplugged";
    if !plug() {
        return println!("SKIP {name}: no network namespace, or no virtual cable");
    }
    let home = Home::new();
    let node = home.start(&NODE.replace("\"blue\"\n[[", "\"blue\"\nuplink = \"xdp:vrio0\"\n[["));
    wait_for(&node, "plugged in", |status| status.networks[1].uplink_up == Some(true));
    let again = json!({ "name": "x", "uplink": "xdp:vrio0" });
    refused(&node, "POST", "/v1/networks", Some(&again), 400);
    let mut one = Guest::new(&home, "one.sock", true);
    let host = UdpSocket::bind("10.0.0.2:2000").unwrap();
    host.set_read_timeout(Some(PATIENCE)).unwrap();
    // A large packet at once, to be cut into datagrams of 1400 bytes, with a checksum that is not
    // finished.
    let maker = FrameMaker::udp4().from(mac(1)).to(Mac([0x52, 0x54, 0, 0, 0, 0x99]));
    let large = maker.partial().payload(60_000).build();
    let header: [u8; HEADER] = [1, 5, 42, 0, 0x78, 5, 34, 0, 6, 0, 0, 0];
    let mut room = [0; 2000];
    for _ in 0..20 {
        one.say_as(header, &large);
        let mut heard = Vec::<u8>::new();
        while heard.len() < 60_000 {
            let len = host.recv(&mut room).unwrap();
            heard.extend(&room[..len]);
        }
        assert!(heard == large[42..], "as it was sent");
    }
    let shown =
        wait_for(&node, "counted", |status| status.networks[1].counters["uplink_frames_out"] == 20);
    let counters = &shown.networks[1].counters;
    assert_eq!((counters["uplink_cut_out"], counters["uplink_checksums_out"]), (20, 20 * 43));
    assert_eq!(shown.networks[1].uplink.as_deref(), Some("xdp:vrio0"));
    // And back. A host on the same machine leaves its checksums to the receiver at the other end of
    // the cable, and the frame does not say so.
    host.send_to(&large[42..1000], "10.0.0.1:1000").unwrap();
    let heard = std::iter::from_fn(|| Some(one.hear())).find(|it| it[12..14] == [8, 0]).unwrap();
    let maker = FrameMaker::udp4().from(Mac([0x52, 0x54, 0, 0, 0, 0x99])).to(mac(1)).partial();
    let maker = maker.addresses(0x0a00_0002, 0x0a00_0001).ports(2000, 1000).payload(1000 - 42);
    assert_eq!(with_number(heard.clone(), 0x1234), maker.build());
    assert_eq!(sum(&heard[14..34]), 0xffff, "the checksum of IPv4's header");
    // The cables are pulled.
    assert!(ip("link set far down"));
    let cut_off = wait_for(&node, "cut off", |status| status.nics.iter().all(|nic| !nic.link));
    let why = cut_off.networks[1].uplink_why.as_deref();
    assert!(why.is_some_and(|why| why.contains("set down, or nothing is plugged in")), "{why:?}");
    drop(one);
    assert!(ip("link set far up"));
    wait_for(&node, "back", |status| {
        status.nics.iter().all(|nic| nic.state == DiskState::Ready)
            && status.networks[1].uplink_up == Some(true)
            && status.networks[1].uplink_why.is_none()
    });
    done(&node, "DELETE", "/v1/networks/blue?force=true", &Value::Null);
    done(&node, "POST", "/v1/networks", &again);
    wait_for(&node, "taken again", |status| status.networks[1].uplink_up == Some(true));
    node.stop();
}
