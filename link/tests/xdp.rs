//! Datagrams past the network stack, between two network namespaces on a virtual cable.

mod common;
mod hosts;

use std::sync::Arc;

use common::{Pair, Side, pattern};
use hosts::{Hosts, bind};
use link::{Link, Xdp, XdpCounters, XdpError, XdpInterface};

fn side(name: &str, link: Xdp) -> (Side, Arc<XdpCounters>) {
    let counters = Arc::clone(link.xdp_counters());
    (Side::new(name, link.inner().receive_buffer_bytes(), link), counters)
}

/// A host's link by its first queue.
fn only(hosts: &Hosts, host: usize) -> Xdp {
    hosts.xdp(host, &hosts.attach(host), 1).remove(0)
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
        let Some(hosts) = Hosts::new(test, mtu, [1, 1]) else { return };
        let [client_link, server_link] = [0, 1].map(|host| only(&hosts, host));
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
    let Some(hosts) = Hosts::new("mixed", "1500", [1, 1]) else { return };
    let udp = hosts.inside(0, || bind(Hosts::address(0, 0)));
    let client = Side::new("vm1", udp.receive_buffer_bytes(), udp);
    let (server, counters) = side("io-1", only(&hosts, 1));
    let addr = server.addr;
    let (mut pair, session) = Pair::connect(client, server, addr);
    echo(&mut pair, session);
    let all = pair.server.counters.datagrams_received.get();
    let by_ring = counters.datagrams_received.get();
    assert!(by_ring * 10 > all * 9, "{by_ring} of {all}");
}

/// How often other ports are tried until the system's first datagrams come by the right queue: half
/// of them do, so that this is never enough for one in a hundred million.
const PORTS_TRIED_MAX: usize = 64;

/// Two sidecores on either side with a receive queue each: both carry what is theirs. A card is
/// learnt by the ring, and by which queue the first datagram comes, which the system sends, depends
/// on its ports: on a card one steers them. From then on it is the queue of the same number, for
/// what a socket of a queue sends goes by the cable's queue of that number.
#[test]
fn each_sidecore_has_a_receive_queue() {
    let Some(hosts) = Hosts::new("queues", "1500", [2, 2]) else { return };
    let interfaces = [0, 1].map(|host| hosts.attach(host));
    let links = |host| hosts.xdp(host, &interfaces[host], 2);
    let has_both = (0..PORTS_TRIED_MAX).any(|_| both_carry(links(0), links(1)));
    assert!(has_both, "no two ports of {PORTS_TRIED_MAX} pairs are carried by their queues");
}

/// Whether both sidecores' sessions found their queues; then all of them came by those.
fn both_carry(clients: Vec<Xdp>, servers: Vec<Xdp>) -> bool {
    let addresses: Vec<_> = servers.iter().map(Link::local_addr).collect();
    assert_ne!(addresses[0], addresses[1], "a port each");
    let clients: Vec<_> = clients.into_iter().map(|link| side("vm1", link)).collect();
    let servers: Vec<_> = servers.into_iter().map(|link| side("io-1", link)).collect();
    let counters = |sides: &[(Side, Arc<XdpCounters>)]| {
        sides.iter().map(|(_, counters)| Arc::clone(counters)).collect::<Vec<_>>()
    };
    let (sent, received) = (counters(&clients), counters(&servers));
    let both = clients.into_iter().zip(servers);
    let mut pairs: Vec<_> = both
        .zip(addresses)
        .map(|(((client, _), (server, _)), address)| Pair::connect(client, server, address))
        .collect();
    let counts = |counters: &[Arc<XdpCounters>]| {
        counters.iter().map(|it| it.datagrams_received.get()).collect::<Vec<_>>()
    };
    // A hello and its answer, one of which is enough.
    let heard = counts(&sent).into_iter().zip(counts(&received));
    if heard.into_iter().any(|(client, server)| client + server == 0) {
        return false;
    }
    for (pair, session) in &mut pairs {
        let session = *session;
        echo(pair, session);
    }
    for (queue, (pair, _)) in pairs.iter().enumerate() {
        for (side, counters) in [(&pair.client, &sent[queue]), (&pair.server, &received[queue])] {
            let all = side.counters.datagrams_received.get();
            let by_ring = counters.datagrams_received.get();
            assert!(by_ring * 10 > all * 9, "queue {queue}: {by_ring} of {all}: {counters:?}");
            assert_eq!(counters.malformed.get(), 0, "queue {queue}");
        }
    }
    true
}

/// All that a host sends comes by a queue that is another sidecore's: it goes through the stack, to
/// the sidecore whose port it is, and to no other.
#[test]
fn frames_of_other_queues_go_through_the_stack() {
    let Some(hosts) = Hosts::new("crossed", "1500", [1, 2]) else { return };
    let (client, _) = side("vm1", only(&hosts, 0));
    let mut servers = hosts.xdp(1, &hosts.attach(1), 2);
    let (server, by_ring) = side("io-1", servers.remove(1));
    let addr = server.addr;
    let (mut pair, session) = Pair::connect(client, server, addr);
    echo(&mut pair, session);
    assert!(pair.server.counters.datagrams_received.get() > 100, "{:?}", pair.server.counters);
    assert_eq!(by_ring.datagrams_received.get(), 0, "{by_ring:?}");
    let mut other = 0;
    let _ = servers[0].receive(pair.now_ns, &mut |_| other += 1);
    assert_eq!(other, 0, "nothing of it came to the queue's own sidecore");
}

#[test]
fn receiving_takes_no_system_call_while_packets_come() {
    let Some(hosts) = Hosts::new("calls", "1500", [1, 1]) else { return };
    let (client, _) = side("vm1", only(&hosts, 0));
    let (server, counters) = side("io-1", only(&hosts, 1));
    let addr = server.addr;
    let (mut pair, session) = Pair::connect(client, server, addr);
    // For a millisecond after a hello that came by the socket inside, that is looked at each time.
    (0..100).for_each(|_| pair.round());
    let (calls, rounds) = (pair.server.counters.receive_calls.get(), pair.rounds);
    echo(&mut pair, session);
    let calls = pair.server.counters.receive_calls.get() - calls;
    let rounds = pair.rounds - rounds;
    // The socket inside is looked at every 50 us, and a round is 20.
    assert!(calls * 2 <= rounds + 2, "{calls} calls in {rounds} rounds");
    assert!(counters.datagrams_received.get() > 0);
}

#[test]
fn an_obstacle_is_named_and_the_socket_comes_back() {
    let Some(hosts) = Hosts::new("refused", "1500", [1, 1]) else { return };
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
