//! The limits of the gate against a hostile peer that a network names.

use std::net::{Ipv4Addr, SocketAddr};

use net::Mac;
use net::remote::join;
use peer::AttachmentSecret;
use peer::proof::PROOF_BYTES;
use zeroize::Zeroizing;

use super::*;

const SECOND: u64 = 1_000_000_000;

fn peer(name: &str) -> PeerInfo {
    PeerInfo {
        name: name.to_owned(),
        process_nonce: 1,
        addr: SocketAddr::from((Ipv4Addr::LOCALHOST, 4870)),
        version: 1,
        index: 0,
        outgoing: false,
        key: None,
        binding: [7; 32],
    }
}

/// Doors with a network "blue" that is open to these with this key.
fn doors(nodes: &[&str], key: [u8; 32]) -> Arc<NetworkGate> {
    let doors = NetworkGate::new(1);
    let allow =
        nodes.iter().map(|node| Allow { node: (*node).to_owned(), key: Some(AttachmentKey(key)) });
    let (allow, remote) = (allow.collect(), RemotePorts::default());
    let open = OpenNetwork { id: 1, sidecore: 0, allow, remote, terms: 0 };
    doors.guard().networks.insert("blue".to_owned(), open);
    doors
}

fn ask(doors: &NetworkGate, now_ns: u64, name: &str, proof: &[u8]) -> Result<Admission, String> {
    let join = join("blue", "nic", Mac([2, 0, 0, 0, 0, 1]), 1500, Vlans::Access(0));
    doors.admit(now_ns, &peer(name), &join, Some(proof))
}

/// How many of so many wrong proofs were checked.
fn looked_at(doors: &NetworkGate, now_ns: u64, name: &str, proofs: u64) -> u64 {
    let asks = (0..proofs).map(|_| ask(doors, now_ns, name, &[1; PROOF_BYTES]).unwrap_err());
    asks.filter(|why| !why.starts_with("more than")).count() as u64
}

#[test]
fn a_peer_that_sends_nothing_but_proofs_has_so_many_looked_at_and_others_theirs() {
    let key = AttachmentSecret::from_seed(&Zeroizing::new([3; 32]));
    let doors = doors(&["vm1", "vm2"], key.public().0);
    let now_ns = 50 * SECOND;
    assert_eq!(looked_at(&doors, now_ns, "vm1", PROOFS_AT_ONCE + 1000), PROOFS_AT_ONCE);
    assert_eq!(looked_at(&doors, now_ns + SECOND, "vm1", 1000), PROOFS_PER_S);
    assert_eq!(looked_at(&doors, now_ns + SECOND + PROOF_NS - 1, "vm1", 10), 0);
    assert_eq!(looked_at(&doors, now_ns + SECOND + PROOF_NS, "vm1", 10), 1);
    // Another peer is admitted meanwhile, and the first one when it was quiet.
    let names = ("blue", "nic");
    let proof = key.prove(&[7; 32], NetCallKind::Join as u8, names).unwrap();
    assert!(ask(&doors, now_ns + SECOND, "vm2", &proof).is_ok());
    assert!(ask(&doors, now_ns + SECOND + PROOF_NS, "vm1", &proof).is_err());
    assert!(ask(&doors, now_ns + 2 * SECOND, "vm1", &proof).is_ok());
    assert_eq!(looked_at(&doors, now_ns + 60 * SECOND, "vm1", 1000), PROOFS_AT_ONCE);
}

#[test]
fn a_peer_without_an_entry_has_no_proof_checked_and_takes_no_room() {
    let doors = doors(&["vm1"], [9; 32]);
    for number in 0..1000 {
        let why = ask(&doors, SECOND, &format!("vm{number}x"), &[1; PROOF_BYTES]).unwrap_err();
        assert!(why.contains("is not open to"), "{why}");
    }
    assert!(doors.guard().proofs.is_empty());
    assert_eq!(looked_at(&doors, SECOND, "vm1", 1), 1);
    assert_eq!(doors.guard().proofs.len(), 1);
    // A peer whose time the clock has reached is forgotten.
    assert_eq!(looked_at(&doors, 2 * SECOND, "vm1", 0), 0);
    assert!(doors.guard().may_prove("vm2", 2 * SECOND));
    assert_eq!(doors.guard().proofs.keys().collect::<Vec<_>>(), ["vm2"]);
}
