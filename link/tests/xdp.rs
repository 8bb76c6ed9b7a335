//! Datagrams past the network stack, between two network namespaces on a virtual cable.

mod common;

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;

use common::{Pair, Side, pattern};
use link::{Link, Udp, UdpConfig, Xdp, XdpCounters, XdpError, XdpInterface};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Two hosts with a cable between them; gone when dropped.
struct Hosts {
    names: [String; 2],
}

impl Hosts {
    /// `None` without the right to make namespaces.
    fn new(test: &str, mtu: &str) -> Option<Self> {
        let name = |host| format!("vrio-xdp-{test}-{}-{host}", std::process::id());
        let hosts = Self { names: ["a", "b"].map(name) };
        for name in &hosts.names {
            if !ip(&["netns", "add", name]) {
                println!("SKIP {test}: no right to make a network namespace, or no `ip`");
                return None;
            }
        }
        let [a, b] = &hosts.names;
        let ends = ["link", "add", "cable", "netns", a, "mtu", mtu, "type", "veth"];
        let peer = ["peer", "name", "cable", "netns", b, "mtu", mtu];
        assert!(ip(&[&ends[..], &peer].concat()));
        for (host, address) in [(a, "10.9.3.1/24"), (b, "10.9.3.2/24")] {
            assert!(ip(&["-n", host, "addr", "add", address, "dev", "cable"]));
            assert!(ip(&["-n", host, "link", "set", "cable", "up"]));
            assert!(ip(&["-n", host, "link", "set", "lo", "up"]));
        }
        Some(hosts)
    }

    /// Runs `f` on a thread in host 0 or 1: what it opens stays there.
    fn inside<T: Send + 'static>(&self, host: usize, f: impl FnOnce() -> T + Send + 'static) -> T {
        let namespace = File::open(format!("/run/netns/{}", self.names[host])).expect("is there");
        let on_thread = move || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), kind).expect("the right to");
            f()
        };
        std::thread::spawn(on_thread).join().expect("it goes well")
    }

    fn address(host: usize, port: u16) -> SocketAddr {
        SocketAddr::from(([10, 9, 3, host as u8 + 1], port))
    }

    fn udp(&self, host: usize) -> Udp {
        self.inside(host, move || bind(Self::address(host, 0)))
    }

    fn xdp(&self, host: usize) -> Xdp {
        self.inside(host, move || {
            let interface = XdpInterface::attach(Self::address(host, 0)).expect("nobody else");
            assert_eq!(interface.name(), "cable");
            let link = Xdp::new(bind(Self::address(host, 0)), &interface, 0);
            link.map_err(|error| error.0).expect("the only queue")
        })
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&["netns", "del", name]);
        }
    }
}

fn bind(listen: SocketAddr) -> Udp {
    Udp::bind(UdpConfig::new(listen)).expect("its own address")
}

fn ip(arguments: &[&str]) -> bool {
    Command::new("ip").args(arguments).output().is_ok_and(|output| output.status.success())
}

fn side(name: &str, link: Xdp) -> (Side, Arc<XdpCounters>) {
    let counters = Arc::clone(link.xdp_counters());
    (Side::new(name, link.inner().receive_buffer_bytes(), link), counters)
}

/// Calls of several lengths, answered with what they had.
fn echo(pair: &mut Pair, session: transport::SessionId) {
    let lens = [1, 8, 1 << 20, 70_000, 1 << 20];
    for (token, len) in (1..).zip(lens) {
        pair.call(session, token, len);
    }
    pair.run_until_replied(lens.len());
    for (token, len) in (1..).zip(lens) {
        let found = pair.client.notes.borrow().bodies.get(&token).cloned().unwrap_or_default();
        assert!(found == pattern(token, len), "call {token}");
    }
}

#[test]
fn both_ends_past_the_stack() {
    // Packets of one frame, and of several.
    for (test, mtu, datagram_max) in [("plain", "1500", 1472), ("jumbo", "9000", 8972)] {
        let Some(hosts) = Hosts::new(test, mtu) else { return };
        let (client_link, server_link) = (hosts.xdp(0), hosts.xdp(1));
        assert_eq!(client_link.datagram_max(), datagram_max);
        let ((client, sent), (server, received)) =
            (side("vm1", client_link), side("io-1", server_link));
        let addr = server.addr;
        let (mut pair, session) = Pair::connect(client, server, addr);
        echo(&mut pair, session);
        let all = pair.server.counters.datagrams_received.get();
        let by_ring = received.datagrams_received.get();
        // Not the first ones, which found the neighbour.
        assert!(by_ring * 10 > all * 9, "{by_ring} of {all}");
        assert!(sent.datagrams_sent.get() > 0 && sent.malformed.get() == 0);
    }
}

#[test]
fn one_end_past_the_stack() {
    let Some(hosts) = Hosts::new("mixed", "1500") else { return };
    let udp = hosts.udp(0);
    let client = Side::new("vm1", udp.receive_buffer_bytes(), udp);
    let (server, counters) = side("io-1", hosts.xdp(1));
    let addr = server.addr;
    let (mut pair, session) = Pair::connect(client, server, addr);
    echo(&mut pair, session);
    let all = pair.server.counters.datagrams_received.get();
    let by_ring = counters.datagrams_received.get();
    assert!(by_ring * 10 > all * 9, "{by_ring} of {all}");
}

#[test]
fn receiving_takes_no_system_call_while_packets_come() {
    let Some(hosts) = Hosts::new("calls", "1500") else { return };
    let (client, _) = side("vm1", hosts.xdp(0));
    let (server, counters) = side("io-1", hosts.xdp(1));
    let addr = server.addr;
    let (mut pair, session) = Pair::connect(client, server, addr);
    let (calls, rounds) = (pair.server.counters.receive_calls.get(), pair.rounds);
    echo(&mut pair, session);
    let calls = pair.server.counters.receive_calls.get() - calls;
    let rounds = pair.rounds - rounds;
    // The socket inside is looked at every 50 us, and a round is 20.
    assert!(calls * 2 <= rounds + 2, "{calls} calls in {rounds} rounds");
    assert!(counters.datagrams_received.get() > 0);
}

#[test]
fn what_is_in_the_way_is_said_and_the_socket_comes_back() {
    let Some(hosts) = Hosts::new("refused", "1500") else { return };
    hosts.inside(0, || {
        let attach = |address: &str| XdpInterface::attach(address.parse().unwrap());
        for address in ["127.0.0.1:0", "0.0.0.0:0", "192.0.2.1:0", "[::1]:0"] {
            let refused = attach(address).unwrap_err();
            assert!(matches!(refused, XdpError::Address(_)), "{address}: {refused}");
        }
        let interface = XdpInterface::attach(Hosts::address(0, 0)).unwrap();
        let again = XdpInterface::attach(Hosts::address(0, 0)).unwrap_err().to_string();
        assert!(again.contains("another program"), "{again}");
        // The cable has one queue.
        let refused = Xdp::new(bind(Hosts::address(0, 0)), &interface, 1).unwrap_err();
        let (error, udp) = *refused;
        assert!(error.to_string().contains("queue"), "{error}");
        let taken = Xdp::new(udp, &interface, 0).unwrap();
        let refused = Xdp::new(bind(Hosts::address(0, 0)), &interface, 0).unwrap_err();
        assert!(refused.0.to_string().contains("that queue"), "{}", refused.0);
        drop((taken, interface, refused));
        XdpInterface::attach(Hosts::address(0, 0)).expect("the program went with its last user");
    });
}
