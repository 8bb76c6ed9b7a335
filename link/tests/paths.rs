//! How large datagrams may be between two hosts with a router between them, in network namespaces:
//! the kernel's own rules about interfaces and what is too long for them.

mod common;

use std::fs::File;
use std::net::SocketAddr;
use std::process::Command;
use std::rc::Rc;

use common::{Pair, Side, pattern};
use link::{Udp, UdpConfig};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Two hosts and the router between them; gone when dropped.
struct Hosts {
    names: [String; 3],
}

impl Hosts {
    /// All interfaces take 9000 bytes. `None` without the right to make namespaces.
    fn new(test: &str) -> Option<Self> {
        let name = |host| format!("vrio-{test}-{}-{host}", std::process::id());
        let hosts = Self { names: ["a", "r", "b"].map(name) };
        for name in &hosts.names {
            if !ip(&["netns", "add", name]) {
                println!("SKIP {test}: no right to make a network namespace, or no `ip`");
                return None;
            }
        }
        let [a, router, b] = &hosts.names;
        for (host, port, net) in [(a, "to_a", "10.9.1"), (b, "to_b", "10.9.2")] {
            let ends = ["link", "add", port, "netns", router, "mtu", "9000", "type", "veth"];
            let peer = ["peer", "name", "eth0", "netns", host, "mtu", "9000"];
            assert!(ip(&[&ends[..], &peer].concat()));
            assert!(ip(&["-n", router, "addr", "add", &format!("{net}.1/24"), "dev", port]));
            assert!(ip(&["-n", host, "addr", "add", &format!("{net}.2/24"), "dev", "eth0"]));
            assert!(ip(&["-n", router, "link", "set", port, "up"]));
            assert!(ip(&["-n", host, "link", "set", "eth0", "up"]));
            let gateway = format!("{net}.1");
            assert!(ip(&["-n", host, "route", "add", "default", "via", &gateway]));
        }
        let forward = "echo 1 >/proc/sys/net/ipv4/ip_forward";
        assert!(ip(&["netns", "exec", router, "sh", "-c", forward]));
        Some(hosts)
    }

    /// A socket of host `index`, 0 or 2.
    fn bind(&self, index: usize) -> Udp {
        let namespace =
            File::open(format!("/run/netns/{}", self.names[index])).expect("it is there");
        let listen = SocketAddr::from(([10, 9, 1 + index as u8 / 2, 2], 0));
        let on_thread = move || {
            use std::os::fd::AsFd;
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("the right to");
            Udp::bind(UdpConfig::new(listen)).expect("its own address")
        };
        std::thread::spawn(on_thread).join().expect("it binds")
    }

    /// From now on the router's interface on one side takes no more.
    fn narrow(&self, port: &str, mtu: &str) {
        assert!(ip(&["-n", &self.names[1], "link", "set", port, "mtu", mtu]));
    }

    fn connected(&self) -> (Pair, transport::SessionId) {
        let side = |name, index| {
            let udp = self.bind(index);
            Side::new(name, udp.receive_buffer_bytes(), udp)
        };
        let (client, server) = (side("vm1", 0), side("io-1", 2));
        let addr = server.addr;
        Pair::connect(client, server, addr)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&["netns", "del", name]);
        }
    }
}

fn ip(arguments: &[&str]) -> bool {
    Command::new("ip").args(arguments).output().is_ok_and(|output| output.status.success())
}

fn sizes(pair: &Pair) -> [usize; 2] {
    [&pair.client, &pair.server].map(|side| {
        let endpoint = side.endpoint.borrow();
        let status = endpoint.sessions().next().expect("a session");
        status.datagram_bytes_max
    })
}

#[test]
fn jumbo_frames_are_used_where_the_whole_way_takes_them() {
    let Some(hosts) = Hosts::new("jumbo") else { return };
    let (mut pair, session) = hosts.connected();
    let len = 1 << 20;
    pair.call(session, 1, len);
    pair.run_until_replied(1);
    assert!(pair.client.notes.borrow().bodies[&1] == pattern(1, len));
    assert_eq!(sizes(&pair), [8972; 2]);
    let sent = pair.client.counters.datagrams_sent.get();
    assert!(sent < 250, "{sent} datagrams for 1 MiB");
}

#[test]
fn a_router_that_takes_less_is_found_out_before_the_session_begins() {
    for (port, test) in [("to_a", "narrow-a"), ("to_b", "narrow-b")] {
        let Some(hosts) = Hosts::new(test) else { return };
        hosts.narrow(port, "1450");
        let (mut pair, session) = hosts.connected();
        assert_eq!(sizes(&pair), [1422; 2], "{port}");
        pair.call(session, 1, 100_000);
        pair.run_until_replied(1);
        assert!(pair.client.notes.borrow().bodies[&1] == pattern(1, 100_000));
    }
}

/// A call is on its way when the router begins to take less.
#[test]
fn a_router_that_begins_to_take_less_ends_the_session() {
    let Some(hosts) = Hosts::new("shrinks") else { return };
    let (mut pair, session) = hosts.connected();
    assert_eq!(sizes(&pair), [8972; 2]);
    hosts.narrow("to_b", "1400");
    pair.client.notes.borrow_mut().may_be_lost = true;
    pair.server.notes.borrow_mut().may_be_lost = true;
    pair.call(session, 1, 100_000);
    let notes = Rc::clone(&pair.client.notes);
    pair.run_until(|| notes.borrow().is_lost);
    // The next one fits.
    let addr = pair.server.addr;
    notes.borrow_mut().connected = None;
    pair.client.endpoint.borrow_mut().connect(pair.now_ns, addr, "io-1", 0);
    pair.run_until(|| notes.borrow().connected.is_some());
    let session = notes.borrow().connected.expect("it is");
    assert_eq!(sizes(&pair), [1372; 2]);
    pair.call(session, 2, 100_000);
    pair.run_until_replied(1);
    assert!(notes.borrow().bodies[&2] == pattern(2, 100_000));
}
