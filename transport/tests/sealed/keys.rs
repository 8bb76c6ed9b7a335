//! Wrong, unknown, revoked and expired keys: each is named, and no session that may be is harmed.

use std::sync::Arc;

use crate::common::{MS, SECOND, World, addr, keyring, known, raw, sealed_as, secret_of};
use crate::handshake::{connect, connected, tapped, two_nodes};
use transport::{Keyring, LostReason, PROTOCOL_VERSION, SecretKey, Security, StrangerReason};

/// Two nodes, of which one has other keys in its keyring.
fn nodes_with(change: impl Fn(&str, &mut Keyring)) -> World {
    let mut world = World::new(1);
    for name in ["vm1", "io1"] {
        let mut keys = keyring();
        change(name, &mut keys);
        let mut config = world.config(name);
        config.security = sealed_as(name, &keys);
        world.add(config);
    }
    world.tap = Some(Vec::new());
    world
}

/// The keyring without some peer.
fn without(peer: &str) -> Keyring {
    let mut rest = Keyring::new();
    for (key, known) in keyring().iter().filter(|(_, known)| known.peer != peer) {
        rest.add(key, known.clone()).expect("room");
    }
    rest
}

/// Tries to connect, and tells why it is refused.
fn refusal(world: &mut World) -> String {
    world.connect(0, 1, "io1");
    let end_ns = world.now_ns + 5 * SECOND;
    world.run_until(end_ns, |world| !world.nodes[0].app.losses().is_empty());
    assert_eq!((connected(world, 0), connected(world, 1)), (0, 0));
    assert_eq!(world.nodes[1].endpoint.sessions().count(), 0);
    match world.nodes[0].app.losses().as_slice() {
        [LostReason::Refused(text)] => text.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_acceptor_with_another_key_is_named() {
    let other = SecretKey::from_bytes([7; 32]);
    let mut world = nodes_with(|_, _| {});
    let mut config = world.config("io1");
    config.security = Security::Sealed { secret: Arc::new(other), keyring: Arc::new(keyring()) };
    world.restart(1, config);
    let key = secret_of("io1").public();
    assert_eq!(
        refusal(&mut world),
        format!(
            "the peer has another key than {key}, which is configured here for \"io1\": compare it \
             with the key that `vrio key show` prints there"
        )
    );
}

#[test]
fn an_unknown_connector_is_told_its_key() {
    let mut world = nodes_with(|_, _| {});
    let mut config = world.config("io1");
    config.security = sealed_as("io1", &without("vm1"));
    world.restart(1, config);
    let key = secret_of("vm1").public();
    let text = format!(
        "\"io1\" does not know our key {key}, or has revoked it: configure it there, for the peer \
         \"vm1\""
    );
    assert_eq!(refusal(&mut world), text);
    let refused = tapped(&world, 1, raw::REFUSED);
    assert!(refused.is_empty(), "said in a sealed Welcome, so that it can be believed");
    assert_eq!(world.nodes[1].endpoint.counters().hellos_refused, 1);
    let found: Vec<_> = world.nodes[1].endpoint.strangers().iter().collect();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].reason, found[0].key), (StrangerReason::UnknownKey, Some(key)));
    assert_eq!((found[0].name.as_deref(), found[0].addr), (Some("vm1"), addr(0)));
}

#[test]
fn an_expired_key_is_refused_at_either_end() {
    let expired = |owner: &'static str, peer: &'static str| {
        let mut world = nodes_with(|name, keys| {
            if name == owner {
                keys.add(secret_of(peer).public(), known(peer, Some(1000))).expect("room");
            }
        });
        let now_ns = world.now_ns;
        for node in &mut world.nodes {
            node.endpoint.set_wall_clock(now_ns, 1000, &mut node.app);
        }
        refusal(&mut world)
    };
    let key = secret_of("vm1").public();
    assert_eq!(
        expired("io1", "vm1"),
        format!(
            "our key {key} has expired at \"io1\": make a new one (`vrio key new`) and configure \
             it at both ends"
        )
    );
    let text = "every key of \"io1\" that is configured here has expired";
    assert_eq!(expired("vm1", "io1"), text);
}

#[test]
fn a_peer_without_a_key_is_not_even_asked() {
    let mut world = World::new(1);
    let mut config = world.config("vm1");
    config.security = sealed_as("vm1", &without("io1"));
    world.add(config);
    let config = world.config("io1");
    world.add(config);
    world.tap = Some(Vec::new());
    let text = "no key of \"io1\" is configured here, and sessions are sealed";
    assert_eq!(refusal(&mut world), text);
    assert_eq!(world.tap.as_ref().map(Vec::len), Some(0), "nothing was sent");
}

#[test]
fn a_key_under_another_name_is_refused() {
    let mut world = nodes_with(|name, keys| {
        if name == "io1" {
            keys.add(secret_of("vm1").public(), known("vm9", None)).expect("room");
        }
    });
    let key = secret_of("vm1").public();
    let text =
        format!("\"io1\" knows our key {key} as another node's than \"vm1\": the names must agree");
    assert_eq!(refusal(&mut world), text);
}

#[test]
fn plain_and_sealed_nodes_tell_each_other_what_is_missing() {
    for (plain, part) in
        [(0, "the peer's sessions are sealed"), (1, "the peer's sessions are plain")]
    {
        let mut world = World::new(1);
        for (node, name) in ["vm1", "io1"].into_iter().enumerate() {
            let mut config = world.config(name);
            if node == plain {
                config.security = Security::Plain;
            }
            world.add(config);
        }
        let text = refusal(&mut world);
        assert!(text.starts_with(part) && text.contains("`vrio key new`"), "{text}");
    }
}

/// Version 1 knows neither keys nor cookies, and the version after the newest one does not exist
/// yet.
#[test]
fn peers_of_the_version_before_and_after() {
    for node in 0..2 {
        let mut world = World::new(1);
        for (index, name) in ["vm1", "io1"].into_iter().enumerate() {
            let mut config = world.config(name);
            if index == node {
                (config.security, config.versions) = (Security::Plain, 1..=1);
            }
            world.add(config);
        }
        let text = refusal(&mut world);
        assert!(text.starts_with("no common protocol version"), "{text}");
        let newer = format!("2 to {PROTOCOL_VERSION}");
        assert!(text.contains("1 to 1") && text.contains(&newer), "{text}");
    }
    for node in 0..2 {
        let mut world = World::new(1);
        for (index, name) in ["vm1", "io1"].into_iter().enumerate() {
            let mut config = world.config(name);
            config.versions =
                if index == node { 2..=PROTOCOL_VERSION + 1 } else { 1..=PROTOCOL_VERSION };
            world.add(config);
        }
        connect(&mut world);
        let status = world.nodes[0].endpoint.sessions().next().expect("a session");
        assert_eq!(status.peer.version, PROTOCOL_VERSION);
    }
}

/// A reason in the clear may be anybody's: it neither ends the attempt before the peer could
/// answer, nor a session.
#[test]
fn a_forged_refusal_stops_no_connector() {
    for reason in 0..=9 {
        let mut world = two_nodes(1);
        world.nodes[1].paused_until_ns = world.now_ns + 500 * MS;
        world.connect(0, 1, "io1");
        world.run_for(MS);
        let hello = tapped(&world, 0, raw::HELLO).remove(0);
        let (session, attempt) = (raw::word(&hello, 32 + 8), raw::number(&hello));
        let forged = raw::packet(raw::REFUSED, session, attempt, &[reason, 2, 2, 0], &[]);
        for _ in 0..50 {
            world.inject(addr(1), addr(0), forged.clone(), 0);
            world.run_for(MS);
        }
        let end_ns = world.now_ns + SECOND;
        let both = |world: &mut World| connected(world, 0) == 1 && connected(world, 1) == 1;
        assert!(world.run_until(end_ns, both), "reason {reason}");
        world.inject(addr(1), addr(0), forged, 0);
        world.run_for(3 * SECOND);
        assert_eq!(world.nodes[0].app.losses(), []);
        assert_eq!(connected(&world, 0), 1);
    }
}

#[test]
fn a_revoked_key_ends_its_sessions_and_no_others() {
    let mut world = two_nodes(1);
    let config = world.config("vm2");
    world.add(config);
    connect(&mut world);
    world.connect(2, 1, "io1");
    world.run_for(100 * MS);
    assert_eq!(connected(&world, 1), 2);
    let now_ns = world.now_ns;
    let node = &mut world.nodes[1];
    let security = sealed_as("io1", &without("vm1"));
    node.endpoint.set_security(now_ns, 0, security, &mut node.app);
    let why = format!("the key {} of \"vm1\" was removed", secret_of("vm1").public());
    assert_eq!(node.app.losses(), [LostReason::Revoked(why)]);
    world.run_for(100 * MS);
    assert_eq!(world.nodes[0].app.losses(), [LostReason::Closed], "the peer was told");
    assert_eq!((connected(&world, 1), connected(&world, 2)), (1, 1));
    world.nodes[2].app.order(0, 1000, 1000);
    world.run_for(100 * MS);
    assert_eq!(world.nodes[2].app.replies, 1);
    // And it does not get in again.
    world.connect(0, 1, "io1");
    world.run_for(2 * SECOND);
    assert!(matches!(&world.nodes[0].app.losses()[1], LostReason::Refused(_)));
}

#[test]
fn a_key_expires_under_a_working_session_and_a_clock_that_jumps_back_revives_nothing() {
    let mut world = nodes_with(|name, keys| {
        if name == "io1" {
            keys.add(secret_of("vm1").public(), known("vm1", Some(1000))).expect("room");
        }
    });
    let tell = |world: &mut World, unix_s: u64| {
        let now_ns = world.now_ns;
        let node = &mut world.nodes[1];
        node.endpoint.set_wall_clock(now_ns, unix_s, &mut node.app);
        world.run_for(10 * MS);
    };
    tell(&mut world, 900);
    connect(&mut world);
    for unix_s in [999, 10, 0] {
        tell(&mut world, unix_s);
    }
    assert_eq!((connected(&world, 0), connected(&world, 1)), (1, 1));
    tell(&mut world, 1000);
    let why = format!("the key {} of \"vm1\" has expired", secret_of("vm1").public());
    assert_eq!(world.nodes[1].app.losses(), [LostReason::Revoked(why)]);
    for unix_s in [999, 0] {
        tell(&mut world, unix_s);
    }
    world.connect(0, 1, "io1");
    world.run_for(SECOND);
    assert_eq!(connected(&world, 0), 0);
}

#[test]
fn a_monotonic_clock_that_jumps_far_ahead_costs_a_session_at_most() {
    let mut world = two_nodes(1);
    connect(&mut world);
    for node in &mut world.nodes {
        node.app.reconnects = true;
    }
    // Both ends were suspended; cookies and limits have to bear it.
    for days in [1, 400, 40_000] {
        world.now_ns += days * 86_400 * SECOND;
        world.run_for(30 * SECOND);
        let replies = world.nodes[0].app.replies;
        world.nodes[0].app.order(0, 1000, 1000);
        let end_ns = world.now_ns + 10 * SECOND;
        assert!(world.run_until(end_ns, |world| world.nodes[0].app.replies > replies));
    }
}

/// A node changes its key: both keys are known for a while, and the connector finds the one that
/// is in use, whichever comes first.
#[test]
fn a_peer_with_two_keys_is_reached_by_either() {
    for (byte, is_new) in (0..8).flat_map(|byte| [(byte, false), (byte, true)]) {
        let new = Arc::new(SecretKey::from_bytes([byte + 1; 32]));
        let mut world = nodes_with(|name, keys| {
            if name == "vm1" {
                keys.add(new.public(), known("io1", None)).expect("room");
            }
        });
        if is_new {
            let mut config = world.config("io1");
            config.security =
                Security::Sealed { secret: new.clone(), keyring: Arc::new(keyring()) };
            world.restart(1, config);
        }
        world.connect(0, 1, "io1");
        let end_ns = world.now_ns + 50 * MS;
        let both = |world: &mut World| connected(world, 0) == 1 && connected(world, 1) == 1;
        assert!(world.run_until(end_ns, both), "key {byte}");
        let expected = if is_new { new.public() } else { secret_of("io1").public() };
        let status = world.nodes[0].endpoint.sessions().next().expect("a session");
        assert_eq!(status.peer.key, Some(expected));
    }
}

/// The whole of a rotation: no session is lost before the old key is taken away, and then only
/// those that were made with it.
#[test]
fn a_node_changes_its_key_while_sessions_work() {
    let mut world = two_nodes(1);
    connect(&mut world);
    let new = Arc::new(SecretKey::from_bytes([9; 32]));
    let mut both = keyring();
    both.add(new.public(), known("io1", None)).expect("room");
    let now_ns = world.now_ns;
    let node = &mut world.nodes[0];
    node.endpoint.set_security(now_ns, 0, sealed_as("vm1", &both), &mut node.app);
    let node = &mut world.nodes[1];
    let security = Security::Sealed { secret: new.clone(), keyring: Arc::new(keyring()) };
    node.endpoint.set_security(now_ns, 0, security, &mut node.app);
    world.nodes[0].app.order(0, 100_000, 100_000);
    world.run_for(SECOND);
    assert_eq!(world.nodes[0].app.replies, 1, "the session goes on");
    let mut only_new = without("io1");
    only_new.add(new.public(), known("io1", None)).expect("room");
    let now_ns = world.now_ns;
    let node = &mut world.nodes[0];
    node.endpoint.set_security(now_ns, 0, sealed_as("vm1", &only_new), &mut node.app);
    assert!(matches!(node.app.losses().as_slice(), [LostReason::Revoked(_)]));
    world.run_for(10 * MS);
    connect(&mut world);
    let status = world.nodes[0].endpoint.sessions().next().expect("a session");
    assert_eq!(status.peer.key, Some(new.public()));
}

#[test]
fn an_attempt_takes_up_new_keys_at_once() {
    let mut world = World::new(1);
    for (name, missing) in [("vm1", "none"), ("io1", "vm1")] {
        let mut config = world.config(name);
        config.security = sealed_as(name, &without(missing));
        world.add(config);
    }
    world.nodes[1].paused_until_ns = world.now_ns + 200 * MS;
    world.connect(0, 1, "io1");
    world.run_for(100 * MS);
    let now_ns = world.now_ns;
    let new = Arc::new(SecretKey::from_bytes([9; 32]));
    let mut keys = keyring();
    keys.add(new.public(), known("vm1", None)).expect("room");
    let node = &mut world.nodes[0];
    let security = Security::Sealed { secret: new.clone(), keyring: Arc::new(keyring()) };
    node.endpoint.set_security(now_ns, 0, security, &mut node.app);
    let node = &mut world.nodes[1];
    node.endpoint.set_security(now_ns, 0, sealed_as("io1", &keys), &mut node.app);
    let end_ns = world.now_ns + SECOND;
    assert!(world.run_until(end_ns, |world| connected(world, 1) == 1));
    let status = world.nodes[1].endpoint.sessions().next().expect("a session");
    assert_eq!(status.peer.key, Some(new.public()));
}

/// A node asks itself for a volume of which it has a copy. Another process with its key is no part
/// of it.
#[test]
fn a_node_has_sessions_with_itself_and_none_with_a_clone() {
    let mut world = World::new(1);
    for _ in 0..2 {
        let mut config = world.config("vm1");
        config.security = sealed_as("vm1", &keyring());
        world.add(config);
    }
    world.tap = Some(Vec::new());
    world.connect(0, 0, "vm1");
    let end_ns = world.now_ns + SECOND;
    world.run_until(end_ns, |world| connected(world, 0) == 2);
    assert_eq!(connected(&world, 0), 2, "one end asks, and one answers");
    world.connect(1, 0, "vm1");
    let end_ns = world.now_ns + 5 * SECOND;
    world.run_until(end_ns, |world| !world.nodes[1].app.losses().is_empty());
    assert!(matches!(world.nodes[1].app.losses().as_slice(), [LostReason::Refused(_)]));
    assert_eq!((connected(&world, 0), connected(&world, 1)), (2, 0));
}
