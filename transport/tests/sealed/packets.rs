//! The packets on the wire: a listener can read, change and use again none of them.

use std::collections::HashSet;

use crate::common::still::{busy, drop_on};
use crate::common::{Faults, MS, SECOND, Tap, World, addr, raw};
use crate::handshake::{connect, connected, tapped, two_nodes};
use random::Random;
use transport::LostReason;

/// The header of a sealed packet.
const SEALED_HEADER: usize = 24;

/// A packet that says it is sealed, with right lengths.
pub(crate) fn sealed(session: u64, number: u64, sealed: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 0, 2, raw::SEALED];
    bytes.extend_from_slice(&(sealed.len() as u16 - 16).to_le_bytes());
    bytes.extend_from_slice(&session.to_le_bytes());
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(sealed);
    bytes
}

fn ends(from: &std::net::SocketAddr) -> (usize, usize) {
    let from = usize::from(*from == addr(1));
    (from, 1 - from)
}

#[test]
fn every_flipped_bit_and_every_truncation_of_every_packet_is_dropped() {
    let mut world = busy(1);
    let tap = world.tap.take().expect("a tap");
    let mut kinds = HashSet::new();
    let mut flips = 0;
    for (_, from, _, bytes) in &tap {
        let (from, to) = ends(from);
        kinds.insert(raw::kind(bytes));
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
    let all = HashSet::from([raw::HELLO, raw::RETRY, raw::WELCOME, raw::SEALED]);
    assert_eq!(kinds, all);
    world.nodes[1].app.is_mute = false;
    world.run_for(SECOND);
    assert_eq!(world.nodes[0].app.replies, 4, "and the session works on");
}

/// The same with what was never received, so that only the seal stands between it and the session.
#[test]
fn a_changed_packet_is_refused_and_the_true_one_is_taken_after_it() {
    let mut world = two_nodes(1);
    connect(&mut world);
    world.run_for(10 * MS);
    let before = world.tap.as_ref().map_or(0, Vec::len);
    world.nodes[0].app.order(0, 3_000, 0);
    world.run_for(1_000);
    let sent: Tap = world.tap.as_ref().expect("a tap")[before..].to_vec();
    assert_eq!(sent.len(), 1, "it is on its way");
    let forged = world.nodes[1].endpoint.counters().dropped_forged;
    for bit in SEALED_HEADER * 8..sent[0].3.len() * 8 {
        let mut damaged = sent[0].3.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        drop_on(&mut world, 1, 0, &damaged);
    }
    let flips = (sent[0].3.len() - SEALED_HEADER) as u64 * 8;
    assert_eq!(world.nodes[1].endpoint.counters().dropped_forged - forged, flips);
    world.run_for(5 * MS);
    assert_eq!(world.nodes[0].app.replies, 1);
}

/// Handshake packets that were changed, with checksums that fit again.
#[test]
fn a_changed_handshake_leads_to_no_session() {
    let fixed = |mut bytes: Vec<u8>, bit: usize| {
        bytes[bit / 8] ^= 1 << (bit % 8);
        raw::guard(&mut bytes);
        bytes
    };
    let mut world = two_nodes(1);
    connect(&mut world);
    let hello = raw::bare(tapped(&world, 0, raw::HELLO).remove(1));
    let welcome = raw::bare(tapped(&world, 1, raw::WELCOME).remove(0));
    let mut tried = 0;
    for bit in (raw::HEADER * 8..hello.len() * 8).step_by(7) {
        let mut world = two_nodes(1);
        world.nodes[0].is_down = true;
        world.inject(addr(0), addr(1), fixed(hello.clone(), bit), 0);
        world.run_for(10 * MS);
        assert_eq!(world.nodes[1].endpoint.sessions().count(), 0, "bit {bit}");
        tried += 1;
    }
    assert!(tried > 100);
    for bit in (raw::HEADER * 8..welcome.len() * 8).step_by(7) {
        let mut world = two_nodes(1);
        world.connect(0, 1, "io1");
        world.delay_ns = MS;
        world.inject(addr(1), addr(0), fixed(welcome.clone(), bit), 100_000);
        world.run_for(200_000);
        assert_eq!(connected(&world, 0), 0, "bit {bit}");
        assert_eq!(world.nodes[0].endpoint.counters().dropped_forged, 1, "bit {bit}");
    }
}

#[test]
fn nothing_on_the_wire_can_be_read() {
    let mut world = World::new(1);
    for name in ["vm1", "io1"] {
        let mut config = world.config(name);
        config.process_nonce = 0x7a7b_7c7d_7e7f_7071;
        world.add(config);
    }
    world.tap = Some(Vec::new());
    connect(&mut world);
    let mut secrets: Vec<Vec<u8>> =
        vec![b"vm1".to_vec(), b"io1".to_vec(), 0x7a7b_7c7d_7e7f_7071u64.to_le_bytes().to_vec()];
    for bytes in [0, 100, 5_000, 100_000] {
        let order = world.nodes[0].app.order(3, bytes, bytes);
        let head = world.nodes[0].app.orders.back().expect("an order").write();
        assert_eq!(head[..8], order.to_le_bytes());
        secrets.push(head[8..24].to_vec());
    }
    // The contents of bodies.
    let body = crate::common::app::table();
    secrets.extend(body.chunks(997).take(110).map(|chunk| chunk[..12].to_vec()));
    world.run_for(SECOND);
    assert_eq!(world.nodes[0].app.replies, 4);
    let session = world.nodes[0].app.sessions[0];
    let now_ns = world.now_ns;
    world.nodes[0].endpoint.close(now_ns, session);
    world.run_for(SECOND);
    assert_eq!(world.nodes[1].app.losses(), [LostReason::Closed]);
    let tap = world.tap.take().expect("a tap");
    let bytes: usize = tap.iter().map(|sent| sent.3.len()).sum();
    assert!(bytes > 200_000, "there is something to look at");
    for (_, _, _, datagram) in &tap {
        // A name is so short that chance would find it in a long datagram.
        let skip = if datagram.len() > 600 { 2 } else { 0 };
        for secret in &secrets[skip..] {
            let found = datagram.windows(secret.len()).any(|window| window == &secret[..]);
            assert!(!found, "{secret:?} in a packet of kind {}", raw::kind(datagram));
        }
        assert!(raw::kind(datagram) != raw::DATA);
    }
}

/// All that was ever said is said again, in order and backwards, to nodes that live on and to
/// nodes that were restarted.
#[test]
fn recorded_conversations_mean_nothing() {
    for is_restarted in [false, true] {
        let mut world = busy(1);
        let session = world.nodes[0].app.sessions[0];
        let now_ns = world.now_ns;
        world.nodes[0].endpoint.close(now_ns, session);
        world.run_for(10 * MS);
        if is_restarted {
            for (node, name) in ["vm1", "io1"].into_iter().enumerate() {
                let config = world.config(name);
                world.restart(node, config);
            }
        }
        world.nodes[1].app.is_mute = false;
        let past = world.tap.replace(Vec::new()).expect("a tap");
        connect(&mut world);
        world.run_for(10 * MS);
        let executed = world.nodes[1].app.executed_count;
        let (replies, losses) = (world.nodes[0].app.replies, world.nodes[1].app.losses());
        for (_, from, to, bytes) in past.iter().chain(past.iter().rev()) {
            world.inject(*from, *to, bytes.clone(), 0);
            world.run_for(200_000);
        }
        world.run_for(5 * SECOND);
        assert_eq!(
            (world.nodes[1].app.executed_count, world.nodes[0].app.replies),
            (executed, replies)
        );
        assert_eq!(world.nodes[1].app.losses(), losses);
        for node in 0..2 {
            assert_eq!(connected(&world, node), 1);
            assert_eq!(world.nodes[node].endpoint.sessions().count(), 1);
        }
    }
}

/// Keys roll in the middle of loss, doubling and reordering; and no number is sealed twice.
#[test]
fn keys_roll_unnoticed_and_no_nonce_is_used_twice() {
    for seed in 1..6 {
        let mut world = World::new(seed);
        for name in ["vm1", "io1"] {
            let mut config = world.config(name);
            (config.key_epoch_bits, config.datagram_bytes_max) = (12, 1472);
            world.add(config);
        }
        world.tap = Some(Vec::new());
        connect(&mut world);
        world.faults = Faults { loss: 20, duplicate: 50, reorder: 50, corrupt: 10, truncate: 5 };
        world.nodes[0].app.outstanding_max = 32;
        for call in 0..2_000 {
            let bytes = [0, 100, 30_000][call as usize % 3];
            world.nodes[0].app.order(call % 7, bytes, bytes);
        }
        let end_ns = world.now_ns + 60 * SECOND;
        assert!(world.run_until(end_ns, |world| world.nodes[0].app.replies == 2_000));
        assert_eq!(world.nodes[0].app.losses(), []);
        let mut seen = HashSet::new();
        let mut epochs = HashSet::new();
        for (_, from, _, bytes) in world.tap.take().expect("a tap") {
            if raw::kind(&bytes) == raw::SEALED {
                let number = raw::number(&bytes);
                let nonce = (from, raw::session(&bytes), number >> 12, number);
                assert!(seen.insert(nonce), "{nonce:?} twice");
                epochs.insert((from, number >> 12));
            }
        }
        assert!(epochs.len() >= 6, "seed {seed}: {} key epochs", epochs.len());
    }
}

#[test]
fn a_reset_needs_the_token_of_the_session() {
    let mut world = two_nodes(1);
    connect(&mut world);
    world.nodes[1].app.is_mute = true;
    world.nodes[0].app.order(0, 0, 0);
    world.run_for(10 * MS);
    let sent = tapped(&world, 0, raw::SEALED);
    let (session, last) = (raw::session(&sent[0]), raw::number(sent.last().expect("data")));
    // The token comes from a node that has the peer's key and does not know the session.
    let mut other = two_nodes(2);
    let probe = sealed(session, last, &[0; 30]);
    other.inject(addr(0), addr(1), probe, 0);
    other.run_for(MS);
    let reset = tapped(&other, 1, raw::RESET).remove(0);
    let token = reset[raw::HEADER..].to_vec();
    assert_eq!((raw::session(&reset), raw::number(&reset), token.len()), (session, last, 16));

    let packet =
        |session, number, token: &[u8]| raw::packet(raw::RESET, session, number, token, &[]);
    let mut wrong = token.clone();
    wrong[15] ^= 1;
    let stale = [
        packet(session, last, &[]),
        packet(session, last, &wrong),
        packet(session, last, &token[..15]),
        packet(session, last + 100, &token),
        packet(session ^ (1 << 40), last, &token),
    ];
    for (count, reset) in (1..).zip(stale) {
        world.inject(addr(1), addr(0), reset, 0);
        world.run_for(MS);
        assert_eq!(world.nodes[0].endpoint.counters().dropped_stale_reset, count);
        assert_eq!(world.nodes[0].app.losses(), []);
    }
    world.inject(addr(1), addr(0), reset, 0);
    world.run_for(MS);
    assert_eq!(world.nodes[0].app.losses(), [LostReason::Reset]);
}

/// No peer can ask for the token of a session that lives.
#[test]
fn a_node_gives_no_token_for_a_session_that_it_has() {
    let mut world = busy(1);
    let sent = tapped(&world, 0, raw::SEALED);
    let session = raw::session(&sent[0]);
    let probe = sealed(session, 5, &[0; 30]);
    world.inject(addr(7), addr(1), probe, 0);
    world.run_for(MS);
    assert!(tapped(&world, 1, raw::RESET).is_empty());
}

#[test]
fn the_same_hello_gets_the_same_answer_and_later_none() {
    let mut world = two_nodes(1);
    // The Welcome is lost, so the Hello comes again.
    world.connect(0, 1, "io1");
    world.run_until(world.now_ns + SECOND, |world| !tapped(world, 1, raw::WELCOME).is_empty());
    world.partitioned_until_ns = 0;
    let hello = tapped(&world, 0, raw::HELLO).remove(1);
    let operations = world.nodes[1].endpoint.counters().public_key_operations;
    let now_ns = world.now_ns;
    let node = &mut world.nodes[1];
    node.endpoint.receive(now_ns, now_ns, addr(0), &hello, &mut node.app);
    node.endpoint.receive(now_ns, now_ns, addr(0), &hello, &mut node.app);
    world.run_for(MS);
    let welcomes = tapped(&world, 1, raw::WELCOME);
    assert_eq!(welcomes.len(), 3);
    assert!(welcomes.iter().all(|welcome| *welcome == welcomes[0]));
    assert_eq!((connected(&world, 0), connected(&world, 1)), (1, 1));
    world.inject(addr(0), addr(1), hello, 0);
    world.run_for(MS);
    assert_eq!(tapped(&world, 1, raw::WELCOME).len(), 3, "it is connected, so it has the answer");
    assert_eq!(world.nodes[1].endpoint.counters().public_key_operations, operations);
}

#[test]
fn a_plain_packet_for_a_sealed_session_is_nothing() {
    let mut world = busy(1);
    let sent = tapped(&world, 0, raw::SEALED);
    let session = raw::session(&sent[0]);
    let mut close = raw::packet(raw::DATA, session, 1000, &[4], &[]);
    close[4] = 2;
    raw::guard(&mut close);
    drop_on(&mut world, 1, 0, &close);
    assert_eq!(world.nodes[1].endpoint.counters().dropped_forged, 1);
}

/// A peer that could tell the id of a later session would get the token of its Reset, by asking
/// before there is such a session.
#[test]
fn the_next_session_is_not_predictable_from_earlier_ones() {
    let mut world = two_nodes(1);
    let mut ids = Vec::new();
    for _ in 0..3 {
        connect(&mut world);
        world.run_for(MS);
        ids.push(raw::session(tapped(&world, 0, raw::SEALED).last().expect("a packet")) >> 16);
        let session = world.nodes[0].endpoint.sessions().next().expect("it is").session;
        let now_ns = world.now_ns;
        world.nodes[0].endpoint.close(now_ns, session);
        world.run_for(SECOND);
    }
    // The next values of the generator of tests (SplitMix64), for each state that may have given
    // the first one.
    let follows = (0..1 << 16).any(|low| {
        let mut random = Random::new(state_before(ids[0] << 16 | low));
        random.draw();
        random.draw() >> 16 == ids[1]
    });
    assert!(!follows);
}

/// The state from which SplitMix64 gives `value`: each of its steps can be undone.
fn state_before(value: u64) -> u64 {
    let unshift =
        |value: u64, bits: u32| (0..64 / bits).fold(value, |guess, _| value ^ (guess >> bits));
    let inverse = |factor: u64| {
        (0..6).fold(factor, |guess, _| {
            guess.wrapping_mul(2u64.wrapping_sub(factor.wrapping_mul(guess)))
        })
    };
    let value = unshift(value, 31).wrapping_mul(inverse(0x94d0_49bb_1331_11eb));
    let value = unshift(value, 27).wrapping_mul(inverse(0xbf58_476d_1ce4_e5b9));
    unshift(value, 30).wrapping_sub(0x9e37_79b9_7f4a_7c15)
}

#[test]
fn a_generator_that_can_be_undone_is_undone() {
    let value = Random::new(7).draw();
    assert_eq!(Random::new(state_before(value)).draw(), value);
}
