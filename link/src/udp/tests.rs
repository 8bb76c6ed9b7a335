//! On loopback, counting system calls and messages; refusals by script.

use std::process::Command;

use rustix::thread::UnshareFlags;

use super::group::tests::DatagramVectors;
use super::*;

fn bind(groups: bool) -> Udp {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    Udp::bind(UdpConfig { groups, ..UdpConfig::new(listen) }).expect("loopback")
}

/// `count` datagrams of `len` bytes to `to`, each with its number and split somewhere.
fn numbered(to: SocketAddr, count: usize, len: usize) -> Vec<(SocketAddr, Vec<u8>, Vec<u8>)> {
    let datagram = |number: usize| {
        let mut head: Vec<u8> = (0..len).map(|i| (i * 31 + number) as u8).collect();
        head[..2].copy_from_slice(&(number as u16).to_le_bytes());
        let body = head.split_off((number * 7 % len).max(2).min(len));
        (to, head, body)
    };
    (0..count).map(datagram).collect()
}

fn bytes_of(datagram: &(SocketAddr, Vec<u8>, Vec<u8>)) -> Vec<u8> {
    [datagram.1.as_slice(), &datagram.2].concat()
}

fn receive(udp: &mut Udp) -> Vec<(SocketAddr, Vec<u8>)> {
    let mut arrived = Vec::new();
    let count = udp.receive(0, &mut |arrival| arrived.push((arrival.from, arrival.bytes.to_vec())));
    assert_eq!(count, arrived.len());
    arrived
}

/// Whether this kernel groups in both directions; says so if not.
fn kernel_groups(test: &str) -> bool {
    let (mut a, mut b) = (bind(true), bind(true));
    let listed = DatagramVectors(numbered(b.local_addr(), 2, 100));
    a.send_from(&listed);
    receive(&mut b);
    let groups = b.counters().receive_groups.get() == 1;
    if !groups {
        println!("SKIP {test}: this kernel does not group UDP datagrams");
    }
    groups
}

#[test]
fn a_mebibyte_goes_and_comes_with_one_call_each() {
    if !kernel_groups("a_mebibyte_goes_and_comes_with_one_call_each") {
        return;
    }
    let (mut a, mut b) = (bind(true), bind(true));
    let listed = DatagramVectors(numbered(b.local_addr(), 720, 1472));
    assert_eq!(a.send_from(&listed), 720);
    let sent = a.counters();
    assert_eq!((sent.send_calls.get(), sent.send_messages.get()), (1, 17));
    assert_eq!((sent.send_groups.get(), sent.datagrams_sent.get()), (17, 720));
    assert_eq!(sent.bytes_sent.get(), 720 * 1472);

    let arrived = receive(&mut b);
    let wanted: Vec<_> =
        listed.0.iter().map(|datagram| (a.local_addr(), bytes_of(datagram))).collect();
    assert!(arrived == wanted, "{} of 720 datagrams, or not the same", arrived.len());
    let received = b.counters();
    assert_eq!((received.receive_calls.get(), received.receive_messages.get()), (1, 17));
    assert_eq!((received.receive_groups.get(), received.datagrams_received.get()), (17, 720));
    assert_eq!(received.bytes_received.get(), 720 * 1472);
}

#[test]
fn many_peers_are_served_by_one_call() {
    let mut hub = bind(true);
    let mut peers: Vec<_> = (0..8).map(|_| bind(true)).collect();
    let mut listed = Vec::new();
    for peer in &peers {
        listed.extend(numbered(peer.local_addr(), 3, 200));
    }
    assert_eq!(hub.send_from(&DatagramVectors(listed)), 24);
    assert_eq!((hub.counters().send_calls.get(), hub.counters().send_messages.get()), (1, 8));
    for peer in &mut peers {
        assert_eq!(receive(peer).len(), 3);
        let listed = DatagramVectors(numbered(hub.local_addr(), 1, 50));
        assert_eq!(peer.send_from(&listed), 1);
    }
    assert_eq!(receive(&mut hub).len(), 8);
    assert_eq!(hub.counters().receive_calls.get(), 1);
}

#[test]
fn without_groups_the_same_datagrams_arrive() {
    let (mut a, mut b) = (bind(false), bind(false));
    let listed = DatagramVectors(numbered(b.local_addr(), 20, 1000));
    assert_eq!(a.send_from(&listed), 20);
    assert_eq!((a.counters().send_calls.get(), a.counters().send_groups.get()), (1, 0));
    let arrived = receive(&mut b);
    assert_eq!(arrived.len(), 20);
    assert_eq!(arrived[19].1, bytes_of(&listed.0[19]));
    assert_eq!(b.counters().receive_groups.get(), 0);
    assert!(receive(&mut b).is_empty());
    assert_eq!(b.counters().receive_calls.get(), 2);
}

#[test]
fn a_short_last_segment_and_datagrams_of_odd_lengths_arrive_as_they_were() {
    let (mut a, mut b) = (bind(true), bind(true));
    let mut listed = Vec::new();
    for (count, len) in [(5, 1000), (1, 333), (2, 1000), (1, 1200), (1, 2), (1, 60_000)] {
        listed.extend(numbered(b.local_addr(), count, len));
    }
    let listed = DatagramVectors(listed);
    assert_eq!(a.send_from(&listed), 11);
    let arrived: Vec<_> = receive(&mut b).into_iter().map(|(_, bytes)| bytes).collect();
    let wanted: Vec<_> = listed.0.iter().map(bytes_of).collect();
    assert!(arrived == wanted);
}

#[test]
fn a_call_takes_in_a_bounded_number_of_messages() {
    let (mut a, mut b) = (bind(false), bind(false));
    let count = system::RECEIVE_MESSAGES_MAX + 5;
    assert_eq!(a.send_from(&DatagramVectors(numbered(b.local_addr(), count, 100))), count);
    assert_eq!(receive(&mut b).len(), system::RECEIVE_MESSAGES_MAX);
    assert_eq!(receive(&mut b).len(), 5);
}

#[test]
fn impossible_datagrams_are_dropped_and_the_rest_is_sent() {
    let (mut a, mut b) = (bind(true), bind(true));
    let nowhere: SocketAddr = "[2001:db8::1]:9".parse().unwrap();
    let mut listed = numbered(b.local_addr(), 2, 100);
    listed.extend(numbered(nowhere, 3, 100));
    listed.extend(numbered(b.local_addr(), 1, 100));
    let mut done = 0;
    for expected in [2, 3, 1] {
        let rest = DatagramVectors(listed.split_off(done));
        done = a.send_from(&rest);
        assert_eq!(done, expected);
        listed = rest.0;
    }
    assert_eq!((a.counters().send_dropped.get(), a.counters().datagrams_sent.get()), (3, 3));
    assert_eq!(receive(&mut b).len(), 3);
}

#[test]
fn a_peer_that_does_not_listen_is_no_error() {
    let mut a = bind(true);
    let gone = bind(true).local_addr();
    for _ in 0..3 {
        a.send_from(&DatagramVectors(numbered(gone, 2, 100)));
        assert!(receive(&mut a).is_empty());
    }
    assert_eq!(a.counters().errors_other.get(), 0);
}

#[test]
fn an_ipv6_socket_reaches_both_families() {
    let config = UdpConfig::new("[::]:0".parse().unwrap());
    let Ok(mut a) = Udp::bind(config) else {
        println!("SKIP an_ipv6_socket_reaches_both_families: no IPv6 here");
        return;
    };
    let mut b = bind(true);
    assert_eq!(a.send_from(&DatagramVectors(numbered(b.local_addr(), 2, 100))), 2);
    let from = receive(&mut b)[0].0;
    assert_eq!(from.port(), a.local_addr().port());
    assert_eq!(b.send_from(&DatagramVectors(numbered(from, 1, 100))), 1);
    assert_eq!(receive(&mut a)[0].0, b.local_addr());
}

#[test]
fn a_port_in_use_is_named() {
    let a = bind(true);
    let error = Udp::bind(UdpConfig::new(a.local_addr())).unwrap_err();
    assert!(error.to_string().contains(&a.local_addr().to_string()), "{error}");
}

#[test]
fn the_largest_datagram_is_what_the_interface_takes() {
    assert_eq!(bind(true).datagram_max(), 65_507);
    let any = Udp::bind(UdpConfig::new("0.0.0.0:0".parse().unwrap())).unwrap();
    assert!((68..65_507).contains(&any.datagram_max()), "what leads out of here, or Ethernet's");
    let config = UdpConfig::new("127.0.0.1:0".parse().unwrap());
    let set = Udp::bind(UdpConfig { datagram_bytes_max: Some(8972), ..config }).unwrap();
    assert_eq!(set.datagram_max(), 8972);
    assert!(set.receive_buffer_bytes() > 0);
}

/// A sender that planned groups of 3, 1 and 2 datagrams.
fn planned(segment_bytes_max: usize) -> SendState {
    let to = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let mut listed = numbered(to(1), 3, 1400);
    listed.extend(numbered(to(2), 1, 100));
    listed.extend(numbered(to(3), 2, 100));
    let mut sender = SendState::new(segment_bytes_max, Arc::default());
    sender.plan(&DatagramVectors(listed));
    sender
}

#[test]
fn refused_datagrams_stay() {
    for error in [Errno::AGAIN, Errno::NOBUFS, Errno::INTR] {
        let mut sender = planned(65_507);
        assert_eq!(sender.settle(Err(error)), 0);
        assert_eq!(sender.counters.send_refused.get(), 1);
        assert_eq!(sender.settle(Ok(2)), 4);
        assert_eq!(sender.counters.send_refused.get(), 2);
        assert_eq!((sender.counters.datagrams_sent.get(), sender.segment_bytes_max), (4, 65_507));
    }
    let mut sender = planned(65_507);
    assert_eq!(sender.settle(Err(Errno::CONNREFUSED)), 0);
    assert_eq!((sender.counters.errors_late.get(), sender.counters.send_dropped.get()), (1, 0));
}

#[test]
fn grouping_is_given_up_where_the_system_cannot() {
    let mut sender = planned(65_507);
    assert_eq!(sender.settle(Err(Errno::INVAL)), 0);
    assert_eq!(sender.segment_bytes_max, 1399, "shorter datagrams are still grouped");
    let mut sender = planned(65_507);
    assert_eq!(sender.settle(Err(Errno::IO)), 0);
    assert_eq!((sender.segment_bytes_max, sender.counters.grouping_reduced.get()), (0, 1));
    let mut sender = planned(0);
    assert_eq!(sender.groups.len(), 6);
    assert_eq!(sender.settle(Err(Errno::INVAL)), 1, "not the group's fault: it is dropped");
    assert_eq!(sender.counters.send_dropped.get(), 1);
}

/// In a network of its own whose interface takes no more than Ethernet's 1500 bytes.
#[test]
fn invalid_arguments_of_the_interface_are_refused() {
    const TEST: &str = "invalid_arguments_of_the_interface_are_refused";
    let on_thread = || {
        // SAFETY: no memory or descriptor is shared less than before, only this thread's network.
        let apart = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) };
        let set_up = ["ip", "link", "set", "lo", "up", "mtu", "1500"];
        let ready = apart.is_ok()
            && Command::new(set_up[0]).args(&set_up[1..]).status().is_ok_and(|exit| exit.success());
        if !ready {
            println!("SKIP {TEST}: no right to make a network namespace, or no `ip`");
            return;
        }
        let (mut a, mut b) = (bind(true), bind(true));
        assert_eq!(a.datagram_max(), 1472, "what the interface takes");
        let mut rest = DatagramVectors(numbered(b.local_addr(), 3, 4000));
        for round in 0.. {
            assert!(round < 5, "every round goes on");
            let done = a.send_from(&rest);
            rest.0.drain(..done);
            if rest.0.is_empty() {
                break;
            }
        }
        // Not cut into fragments: a session proposes less then.
        assert_eq!((a.counters().send_groups.get(), a.counters().send_dropped.get()), (0, 3));
        assert_eq!(a.counters().grouping_reduced.get(), 1);
        let wanted = numbered(b.local_addr(), 3, 1472);
        let bytes: Vec<_> = wanted.iter().map(bytes_of).collect();
        assert_eq!(a.send_from(&DatagramVectors(wanted)), 3);
        assert_eq!(a.counters().send_groups.get(), 1, "shorter ones are still grouped");
        let arrived: Vec<_> = receive(&mut b).into_iter().map(|(_, bytes)| bytes).collect();
        assert!(arrived == bytes, "{} arrived", arrived.len());
    };
    std::thread::spawn(on_thread).join().expect("the checks hold");
}

/// The ages are the kernel's stamps on our clock, whenever we look. The system begins to stamp a
/// little after the first socket asks for it, so the first datagrams may be as young as our look.
#[test]
fn datagrams_are_as_old_as_their_arrival() {
    const WAIT_NS: u64 = 50_000_000;
    for groups in [true, false] {
        let (mut a, mut b) = (bind(groups), bind(groups));
        let is_stamped = (0..20).any(|_| {
            let before_ns = sidecore::now_ns();
            a.send_from(&DatagramVectors(numbered(b.local_addr(), 3, 100)));
            let after_ns = sidecore::now_ns();
            std::thread::sleep(std::time::Duration::from_nanos(WAIT_NS));
            let mut arrived = Vec::new();
            b.receive(sidecore::now_ns(), &mut |arrival| arrived.push(arrival.at_ns));
            assert_eq!(arrived.len(), 3);
            // The two clocks are read one after the other, between which we may lose our turn.
            assert!(arrived.iter().all(|&at_ns| before_ns <= at_ns + WAIT_NS / 5));
            arrived.iter().all(|&at_ns| at_ns <= after_ns + WAIT_NS / 5)
        });
        assert!(is_stamped, "arrivals are as late as our look");
    }
}

#[test]
fn a_stamp_is_kept_between_the_last_look_and_this_one() {
    let clocks =
        Clocks { monotonic_ns: 5_000, unix_ns: 1_000_000, earliest_ns: 4_000, latest_ns: 4_900 };
    let arrival_ns = |stamp_ns| clocks.arrival_ns(Some(stamp_ns));
    assert_eq!(arrival_ns(999_500), 4_500);
    assert_eq!(arrival_ns(999_950), 4_900, "it came while we looked");
    assert_eq!((arrival_ns(998_000), arrival_ns(0)), (4_000, 4_000));
    assert_eq!(arrival_ns(2_000_000), 4_900, "the clock was set back");
    assert_eq!(clocks.arrival_ns(None), 4_900);
}
