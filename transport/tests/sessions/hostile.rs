//! Packets that no honest node sends: they are counted, and nothing else happens.

use crate::acks::ack;
use crate::common::still::{busy, drop_on};
use crate::common::{MS, SECOND, World, addr, raw};
use crate::strange;
use random::Random;
use transport::{
    BufId, CallId, Endpoint, HEAD_MAX, LostReason, MESSAGE_MAX, PeerInfo, SessionId, SessionState,
    Sink,
};

/// Keeps what has to be released, and forgets the rest.
#[derive(Default)]
pub(crate) struct Quiet {
    calls: Vec<(CallId, Option<BufId>)>,
    lost: usize,
}

impl Quiet {
    /// The newest call that came.
    pub(crate) fn take_call(&mut self) -> Option<CallId> {
        self.calls.pop().map(|(call, _)| call)
    }
}

impl Sink for Quiet {
    fn connected(&mut self, _: SessionId, _: &PeerInfo) {}
    fn lost(&mut self, _: SessionId, _: &LostReason) {
        self.lost += 1;
    }
    fn reply_body(&mut self, _: SessionId, _: u64, _: usize, bytes: &[u8]) {
        assert!(bytes.len() <= MESSAGE_MAX);
    }
    fn reply(&mut self, _: SessionId, _: u64, head: &[u8], body_bytes: usize) {
        assert!(head.len() <= HEAD_MAX && body_bytes <= MESSAGE_MAX);
    }
    fn call(&mut self, _: SessionId, _: u16, id: CallId, _: &[u8], body: Option<(BufId, usize)>) {
        self.calls.push((id, body.map(|(buffer, _)| buffer)));
    }
}

#[test]
fn noise_is_counted() {
    let mut world = busy(1);
    let mut random = Random::new(1);
    for _ in 0..20_000 {
        let len = random.below(200) as usize;
        let mut bytes: Vec<u8> = (0..len).map(|_| random.draw() as u8).collect();
        if len > 8 && random.below(1000) < 500 {
            // Let the lengths be right, so that the checksum is what decides.
            bytes[6..8].copy_from_slice(&(len as u16).to_le_bytes());
            if len >= 30 {
                bytes[28..30].copy_from_slice(&[0, 0]);
            }
        }
        drop_on(&mut world, (random.draw() % 2) as usize, 5, &bytes);
    }
    let counters = world.nodes[0].endpoint.counters();
    assert!(counters.dropped_short > 1_000 && counters.dropped_head_checksum > 1_000);
}

#[test]
fn every_flipped_bit_and_every_truncation_of_every_packet_is_dropped() {
    let mut world = busy(1);
    let tap = world.tap.take().expect("a tap");
    let mut flips = 0;
    for (_, from, to, bytes) in &tap {
        let (from, to) = (usize::from(*from == addr(1)), usize::from(*to == addr(1)));
        let step = if bytes.len() > 1_000 { 61 } else { 1 };
        for bit in (0..bytes.len() * 8).step_by(step) {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            drop_on(&mut world, to, from, &damaged);
            flips += 1;
        }
        for len in (0..bytes.len()).step_by(step) {
            drop_on(&mut world, to, from, &bytes[..len]);
        }
    }
    assert!(flips > 10_000, "{flips} bits");
}

#[test]
fn packets_that_were_received_are_dropped_when_they_come_again() {
    let mut world = busy(1);
    world.run_for(3 * MS);
    let tap = world.tap.take().expect("a tap");
    for (_, from, to, bytes) in tap.iter().filter(|sent| raw::kind(&sent.3) == raw::DATA) {
        let (from, to) = (usize::from(*from == addr(1)), usize::from(*to == addr(1)));
        drop_on(&mut world, to, from, bytes);
    }
    let counters = world.nodes[1].endpoint.counters();
    assert!(counters.dropped_duplicate + counters.dropped_old > 5);
}

#[test]
fn handshakes_that_make_no_sense_are_dropped() {
    let mut world = busy(1);
    let good = |name: &str, session, versions| strange::greeting(name, session, 9, versions, 0);
    let mut cases = vec![
        good("", 1, (1, 1)),
        good("x", 0, (1, 1)),
        good("x", 1, (2, 1)),
        good("x", 1, (0, 1)),
        good("x", 1, (1, 1))[..103].to_vec(),
        Vec::new(),
    ];
    // The length of the name, no sidecores, tiny datagrams, no credit, no calls, a bad name.
    for (at, bytes) in [
        (3, &[65][..]),
        (6, &[0, 0]),
        (24, &[100, 0, 0, 0]),
        (32, &[0; 4]),
        (36, &[0; 2]),
        (40, &[0xff]),
    ] {
        let mut frames = good("x", 1, (1, 1));
        frames[at..at + bytes.len()].copy_from_slice(bytes);
        cases.push(frames);
    }
    for (count, frames) in (1..).zip(&cases) {
        let hello = raw::packet(raw::HELLO, 0, 1, frames, &[]);
        let counters = drop_on(&mut world, 1, 5, &hello);
        assert_eq!(counters.dropped_violation, count);
    }
    for kind in [raw::WELCOME, raw::REFUSED, strange::MOVED, raw::RESET, raw::RETRY] {
        drop_on(&mut world, 1, 5, &raw::packet(kind, 77, 1, &good("x", 1, (1, 1)), &[]));
    }
    let counters = drop_on(&mut world, 1, 5, &raw::packet(9, 77, 1, &[], &[]));
    assert_eq!(counters.dropped_kind, 1);
}

/// A session of a hostile peer with a node. Returns the node's id for it.
fn hostile_session(endpoint: &mut Endpoint, now_ns: u64, sink: &mut Quiet) -> u64 {
    let session = hostile_session_at(endpoint, now_ns, 0, sink).expect("a welcome");
    assert!(endpoint.sessions().any(|status| status.state == SessionState::Connected));
    session
}

/// A session with this index; or the answer to a Hello that gets no Welcome.
pub(crate) fn hostile_session_at(
    endpoint: &mut Endpoint,
    now_ns: u64,
    index: u16,
    sink: &mut Quiet,
) -> Result<u64, Vec<u8>> {
    let frames = strange::greeting("mallory", 0x77 + u64::from(index), 5, (1, 1), index);
    let hello = raw::packet(raw::HELLO, 0, 1, &frames, &[]);
    endpoint.receive(now_ns, now_ns, addr(6), &hello, sink);
    let mut batch = transport::TransmitBatch::new(8);
    endpoint.transmit(now_ns, &mut batch);
    let welcome = batch.datagrams().last().expect("an answer").head().to_vec();
    if raw::kind(&welcome) != raw::WELCOME {
        return Err(welcome);
    }
    let session = raw::word(&welcome, 32 + 8);
    endpoint.receive(now_ns, now_ns, addr(6), &raw::packet(raw::DATA, session, 0, &[1], &[]), sink);
    Ok(session)
}

/// A node that a peer has a session with, and what the peer puts into packets for it.
pub(crate) fn lone_endpoint() -> (Endpoint, Quiet, u64) {
    let mut world = World::new(3);
    let config = world.config("io1");
    let mut endpoint = Endpoint::new(config);
    let mut sink = Quiet::default();
    let session = hostile_session(&mut endpoint, SECOND, &mut sink);
    (endpoint, sink, session)
}

#[test]
fn frames_that_break_the_rules_are_violations() {
    let (mut endpoint, mut sink, session) = lone_endpoint();
    let fragment_with = |at: usize, value: u8| {
        let mut bytes = strange::fragment(5, 0, 0, 0, 1024, 0);
        bytes[at] = value;
        bytes
    };
    let cases: Vec<(Vec<u8>, Vec<u8>)> = vec![
        (vec![99], vec![]),                                       // no such frame
        (vec![8, 0, 0], vec![]),                                  // a fill before version 6
        (vec![1], vec![0]),                                       // a payload of nothing
        (vec![2, 1], vec![]),                                     // cut short
        (vec![1, 1], vec![]),                                     // two Pings
        (ack(1, 1 << 40, &[(0, 1)]), vec![]),                     // never sent
        (ack(0, 0, &[]), vec![]),                                 // no range
        (ack(1, 0, &[(0, 0)]), vec![]),                           // an empty range
        (ack(1, 0, &[(0, 9)]), vec![]),                           // below zero
        (ack(3, 0, &[(0, 1), (5, 1)]), vec![]),                   // fewer ranges than said
        (vec![3, 0, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0], vec![]),   // credit for no flow
        (strange::fragment(5, 193, 0, 0, 1024, 0), vec![0; 193]), // head too long
        (strange::fragment(5, 0, 0, (1 << 20) + 1, 1024, 0), vec![0; 8920]), // body too long
        (strange::fragment(5, 0, 256, 0, 1024, 0), vec![]),       // no such flow
        (strange::fragment(5, 0, 0, 0, 1024, 1), vec![]),         // no such fragment
        (strange::fragment(5, 0, 0, 100, 1024, 0), vec![0; 99]),  // too little
        (strange::fragment(5, 0, 0, 100, 1024, 0), vec![0; 101]), // too much
        (strange::fragment(5, 9, 0, 0, 1024, 0), vec![]),         // no head
        (fragment_with(18, 1), vec![]),                           // reserved
        (strange::fragment(6, 0, 0, 0, 1024, 0), vec![]),         // a reply to no call
    ];
    for (count, (frames, payload)) in (1..).zip(cases) {
        let packet = raw::packet(raw::DATA, session, count, &frames, &payload);
        endpoint.receive(SECOND, SECOND, addr(6), &packet, &mut sink);
        assert_eq!(endpoint.counters().dropped_violation, count, "case {count}");
    }
    let packet = raw::packet(raw::DATA, session, u64::MAX, &[1], &[]);
    endpoint.receive(SECOND, SECOND, addr(6), &packet, &mut sink);
    assert_eq!(endpoint.counters().dropped_violation, 21);
}

#[test]
fn calls_beyond_the_credit_take_no_memory() {
    let (mut endpoint, mut sink, session) = lone_endpoint();
    let mut number = 1;
    for flow in 0..2 {
        for call in 0..40 {
            // The first fragments only, so that the buffers stay.
            let id = 1024 + flow * 100 + call;
            let frame = strange::fragment(5, 0, flow as u16, 1 << 20, id, 0);
            let packet = raw::packet(raw::DATA, session, number, &frame, &[0; 8920]);
            endpoint.receive(SECOND, SECOND, addr(6), &packet, &mut sink);
            number += 1;
        }
    }
    assert_eq!(endpoint.pool().in_use(), 16, "8 MiB for each flow");
    assert_eq!(endpoint.counters().dropped_violation, 80 - 16);
    // Its silence ends the session, and that frees them.
    while let Some(now_ns) = endpoint.next_timeout_ns().filter(|_| sink.lost == 0) {
        endpoint.advance(now_ns, &mut sink);
        let mut batch = transport::TransmitBatch::new(8);
        endpoint.transmit(now_ns, &mut batch);
    }
    assert_eq!((sink.lost, endpoint.pool().in_use()), (1, 0));
}

/// It begins calls on all flows and completes none. Half of the room stays for others.
#[test]
fn a_peer_that_completes_no_call_holds_up_no_other_peer() {
    let mut world = World::new(4);
    for name in ["vm1", "io1"] {
        let mut config = world.config(name);
        config.pool_bytes_max = 32 << 20;
        world.add(config);
    }
    let (now_ns, mut sink) = (world.now_ns, Quiet::default());
    let endpoint = &mut world.nodes[1].endpoint;
    let session = hostile_session(endpoint, now_ns, &mut sink);
    for call in 0..1000 {
        let frame = strange::fragment(5, 0, call as u16 % 256, 1 << 20, 1024 + call, 0);
        let packet = raw::packet(raw::DATA, session, 1 + call, &frame, &[0; 8920]);
        endpoint.receive(now_ns, now_ns, addr(6), &packet, &mut sink);
    }
    // Three quarters of the pool are for what arrives.
    assert_eq!(endpoint.pool().in_use(), 12);
    assert_eq!(endpoint.counters().calls_beyond_share, 1000 - 12);
    world.connect(0, 1, "io1");
    for flow in 0..100 {
        world.nodes[0].app.order(flow % 4, 1 << 20, 0);
    }
    // It goes on being there.
    for number in 2000..2020 {
        let ping = raw::packet(raw::DATA, session, number, &[1], &[]);
        world.inject(addr(6), addr(1), ping, (number - 2000) * 20 * MS);
    }
    let end_ns = world.now_ns + 400 * MS;
    let is_done = world.run_until(end_ns, |world| world.nodes[0].app.replies == 100);
    assert!(is_done, "{} of 100", world.nodes[0].app.replies);
    assert_eq!(world.nodes[1].endpoint.pool().in_use(), 12);
}

#[test]
fn a_place_is_not_taken_from_a_call_that_is_served() {
    let (mut endpoint, mut sink, session) = lone_endpoint();
    let send = |endpoint: &mut Endpoint, sink: &mut Quiet, number: u64, id: u64| {
        let frame = strange::fragment(5, 0, 0, 0, id, 0);
        endpoint.receive(
            SECOND,
            SECOND,
            addr(6),
            &raw::packet(0, session, number, &frame, &[]),
            sink,
        );
    };
    send(&mut endpoint, &mut sink, 1, 1024);
    send(&mut endpoint, &mut sink, 2, 2048);
    assert_eq!((sink.calls.len(), endpoint.counters().dropped_violation), (1, 1));
    send(&mut endpoint, &mut sink, 3, 1024);
    assert_eq!((sink.calls.len(), endpoint.counters().fragments_duplicate), (1, 1));
    // Once it was answered, the place may be used again, and that the old call comes late is known.
    assert_eq!(endpoint.reply(SECOND, sink.calls[0].0, &[], None), Ok(()));
    send(&mut endpoint, &mut sink, 4, 2048);
    send(&mut endpoint, &mut sink, 5, 1024);
    assert_eq!((sink.calls.len(), endpoint.counters().fragments_duplicate), (2, 2));
}

#[test]
fn a_late_fragment_of_an_earlier_call_does_not_get_into_a_later_one() {
    let (mut endpoint, mut sink, session) = lone_endpoint();
    let mut number = 0;
    let mut send = |endpoint: &mut Endpoint, sink: &mut Quiet, id: u64, index: u16, byte: u8| {
        number += 1;
        let frame = strange::fragment(5, 0, 0, 17_840, id, index);
        let packet = raw::packet(raw::DATA, session, number, &frame, &[byte; 8920]);
        endpoint.receive(SECOND, SECOND, addr(6), &packet, sink);
    };
    for index in 0..2 {
        send(&mut endpoint, &mut sink, 1024, index, 1);
    }
    let (call, body) = sink.calls.pop().expect("a call");
    assert_eq!(endpoint.reply(SECOND, call, &[], None), Ok(()));
    endpoint.pool_mut().release(body.expect("a body"));
    send(&mut endpoint, &mut sink, 2048, 0, 2);
    send(&mut endpoint, &mut sink, 1024, 1, 1);
    assert!(sink.calls.is_empty(), "the later call is not complete");
    send(&mut endpoint, &mut sink, 2048, 1, 2);
    let (_, body) = sink.calls.pop().expect("a call");
    assert!(endpoint.pool().bytes(body.expect("a body")).iter().all(|&byte| byte == 2));
    assert_eq!(endpoint.counters().fragments_duplicate, 1);
}

/// Well-formed packets of nonsense on a live session: anything may come of it but a panic or
/// unbounded memory.
#[test]
fn nonsense_with_right_checksums_does_no_harm() {
    for seed in 1..40 {
        let (mut endpoint, mut sink, session) = lone_endpoint();
        let mut random = Random::new(seed);
        let mut batch = transport::TransmitBatch::new(16);
        let mut now_ns = SECOND;
        let ours = endpoint.sessions().next().expect("a session").session;
        for number in 1..600 {
            let _ = endpoint.call(now_ns, ours, random.below(256) as u16, number, b"call", None);
            let mut frames = Vec::new();
            let mut payload = vec![7; random.below(3) as usize * 50];
            for _ in 0..random.below(4) {
                match random.below(6) {
                    0 => frames.push(random.draw() as u8),
                    1 => {
                        frames.extend_from_slice(&[2, random.below(3) as u8, 0, 0, 9, 0, 0, 0]);
                        frames.extend_from_slice(&random.below(40).to_le_bytes());
                        frames.extend_from_slice(&random.below(3).to_le_bytes());
                    }
                    2 => {
                        frames.extend_from_slice(&[3, 0, random.draw() as u8, 0]);
                        frames.extend_from_slice(&random.draw().to_le_bytes());
                    }
                    _ => {
                        let (kind, body) = (5 + random.below(2) as u8, random.below(40_000) as u32);
                        let id = 1024 * random.below(3) + random.below(20);
                        let index = random.below(6) as u16;
                        let frame =
                            strange::fragment(kind, 0, random.below(4) as u16, body, id, index);
                        frames.extend_from_slice(&frame);
                        let rest = (u64::from(body)).saturating_sub(u64::from(index) * 8920);
                        payload.extend_from_slice(&vec![1; rest.min(8920) as usize]);
                    }
                }
            }
            let packet = raw::packet(raw::DATA, session, number, &frames, &payload);
            now_ns += random.below(MS);
            endpoint.receive(now_ns, now_ns, addr(6), &packet, &mut sink);
            endpoint.advance(now_ns, &mut sink);
            endpoint.transmit(now_ns, &mut batch);
            batch.consume(batch.len());
            if let Some((call, body)) = sink.calls.pop().filter(|_| random.below(1000) < 500) {
                let _ = endpoint.reply(now_ns, call, b"reply", None);
                body.into_iter().for_each(|buffer| endpoint.pool_mut().release(buffer));
            }
        }
        assert!(endpoint.pool().resident_bytes() <= 64 << 21);
        let state_bytes: usize = endpoint.sessions().map(|status| status.state_bytes).sum();
        assert!(state_bytes < 4 << 20, "{state_bytes} bytes of state");
    }
}
