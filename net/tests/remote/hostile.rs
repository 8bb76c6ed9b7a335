//! A peer that has joined and means harm: it hurts no other peer, and reaches nothing else.

use net::Vlans;
use net::remote::KIND_MIN;

use crate::rig::{MS, Talker, World, mac};
use net::PortOptions;
use net::maker::FrameMaker;
use random::Random;
use std::sync::Arc;
use transport::SessionId;

fn session(world: &World) -> SessionId {
    world.hosts[1].endpoint.borrow().sessions().next().expect("a session").session
}

#[test]
fn casts_of_any_content_are_frames_or_dropped_and_reach_no_other_network() {
    let mut world = World::new(1, false);
    let red = world.hosts[0].network("red", 2);
    let listener = Talker::default();
    let uplink = PortOptions::of_uplink();
    red.borrow_mut().add(uplink.clone(), Box::new(listener.clone()), Arc::default()).unwrap();
    let here = Talker::default();
    let blue = &world.hosts[0].bridges[0];
    blue.borrow_mut().add(uplink, Box::new(here.clone()), Arc::default()).unwrap();
    let nic = world.hosts[1].nic("blue", 2, Vlans::Access(0));
    let core = Arc::clone(&nic.core);
    world.wait_for("joined", |_| core.is_joined());
    let session = session(&world);
    let mut random = Random::new(7);
    for count in 0..5_000u32 {
        let mut endpoint = world.hosts[1].endpoint.borrow_mut();
        let head_bytes = random.below(193) as usize;
        let mut head: Vec<u8> = (0..head_bytes).map(|_| random.draw() as u8).collect();
        if count % 2 == 0 && head_bytes >= 30 {
            // The right membership, most often; then offloads, tags and frames as they come.
            head[..4].copy_from_slice(&1u32.to_le_bytes());
            head[4..16].iter_mut().for_each(|byte| *byte &= 7);
            head[22..28].copy_from_slice(&mac(2).0);
        }
        let flow = random.below(3) as u16;
        let body_bytes = random.below(256) as usize * 256;
        let body = (body_bytes > 0).then(|| endpoint.pool_mut().alloc(body_bytes).expect("room"));
        let now_ns = world.now_ns;
        let pair = body.map(|body| (body, body_bytes));
        let _ = endpoint.cast(now_ns, session, flow, &head, pair);
        body.into_iter().for_each(|body| endpoint.pool_mut().release(body));
        drop(endpoint);
        if count % 16 == 0 {
            world.run(MS);
        }
    }
    world.run(100 * MS);
    let member = world.members().remove(0);
    let counters = &member.counters;
    assert!(counters.drops_in.total() > 500 && member.cable.stale.get() > 300, "{counters:?}");
    assert_eq!(listener.heard().len(), 0);
    // The nic works as before.
    here.heard();
    let frame = FrameMaker::udp4().from(mac(2)).to(mac(9)).payload(9).build();
    nic.talker.say(frame.clone());
    world.run(5 * MS);
    assert_eq!(here.heard(), [frame]);
    assert_eq!(world.hosts[0].endpoint.borrow().pool().in_use(), 0);
}

#[test]
fn calls_of_any_content_are_answered_and_join_nothing() {
    let mut world = World::new(2, true);
    world.run(50 * MS);
    let session = session(&world);
    let mut random = Random::new(9);
    let mut joined = 0;
    for count in 0..3_000u32 {
        let mut endpoint = world.hosts[1].endpoint.borrow_mut();
        let mut head: Vec<u8> = (0..160).map(|_| random.draw() as u8).collect();
        head[0] = KIND_MIN + random.below(4) as u8;
        if count % 3 == 0 {
            head[1] &= 3;
            (head[3], head[17]) = (0, 0);
            head[32..].fill(0);
            head[32..36].copy_from_slice(b"blue");
            head[96] = b'x';
        }
        if count % 6 == 0 {
            head[32] = random.draw() as u8;
        }
        let body_bytes = random.below(256) as usize * usize::from(count % 9 != 3);
        let body = (body_bytes > 0).then(|| endpoint.pool_mut().alloc(body_bytes).expect("room"));
        let now_ns = world.now_ns;
        let pair = body.map(|body| (body, body_bytes));
        let token = 3 << 60 | u64::from(count);
        let _ = endpoint.call(now_ns, session, 0, token, &head, pair);
        body.into_iter().for_each(|body| endpoint.pool_mut().release(body));
        drop(endpoint);
        world.run(100_000);
        let members = world.members();
        assert!(members.len() <= 1 && members.iter().all(|it| it.nic == "x"));
        joined += members.len();
    }
    world.run(50 * MS);
    assert!(joined > 0, "some were right");
    let host = &world.hosts[0];
    assert!(host.plane.borrow().server().counters().malformed.get() > 1_000);
    assert_eq!(host.endpoint.borrow().pool().in_use(), 0);
}
