//! Two endpoints that talk through their drivers, real sockets and a clock of our own: how many
//! system calls it takes, and what faults on the way cost.

mod common;

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use common::{Pair, Side, pattern};
use link::{Faults, Faulty, Link, Shm, ShmCounters, ShmDirectory, ShmListener, Udp, UdpConfig};
use transport::SessionId;

/// A side on this machine, with Ethernet's datagrams. `wrap` puts something around its socket.
fn side<L: Link + 'static>(name: &str, wrap: impl FnOnce(Udp) -> L) -> Side {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let config = UdpConfig { datagram_bytes_max: Some(1472), ..UdpConfig::new(listen) };
    let udp = Udp::bind(config).expect("loopback");
    Side::new(name, udp.receive_buffer_bytes(), wrap(udp))
}

fn connected(faults: Option<Faults>) -> (Pair, SessionId) {
    match faults {
        Some(faults) => connect(|udp| Faulty::new(udp, faults)),
        None => connect(|udp| udp),
    }
}

fn connect<L: Link + 'static>(wrap: impl Fn(Udp) -> L) -> (Pair, SessionId) {
    let (client, server) = (side("vm1", &wrap), side("io-1", &wrap));
    let addr = server.addr;
    Pair::connect(client, server, addr)
}

#[test]
fn a_mebibyte_each_way_takes_one_call_a_round_and_few_trips_through_the_stack() {
    let (mut pair, session) = connected(None);
    let len = 1 << 20;
    pair.call(session, 1, len);
    pair.run_until_replied(1);
    assert!(pair.client.notes.borrow().bodies[&1] == pattern(1, len));
    for side in [&pair.client, &pair.server] {
        let counters = &side.counters;
        assert_eq!(counters.receive_calls.get(), pair.rounds, "one receiving call a round");
        assert!(counters.send_calls.get() <= pair.rounds, "at most one sending call a round");
        assert_eq!(counters.send_dropped.get() + counters.errors_other.get(), 0);
        let (datagrams, messages) = (counters.datagrams_sent.get(), counters.send_messages.get());
        println!("{counters:?}");
        assert!(datagrams >= 720, "{counters:?}");
        if counters.receive_groups.get() == 0 {
            println!("SKIP few_trips_through_the_stack: this kernel does not group datagrams");
        } else {
            assert!(messages * 4 < datagrams, "{messages} messages for {datagrams} datagrams");
        }
    }
}

#[test]
fn a_small_call_is_one_datagram_each_way_plus_acknowledgements() {
    let (mut pair, session) = connected(None);
    let before = pair.client.counters.datagrams_sent.get();
    for token in 0..100 {
        pair.call(session, token, 512);
        pair.run_until_replied(token as usize + 1);
    }
    let sent = pair.client.counters.datagrams_sent.get() - before;
    println!("{sent} datagrams for 100 calls");
    assert!((100..=220).contains(&sent), "{sent} datagrams for 100 calls");
}

/// Reads of a batch.
const READS: u64 = 16;

/// The costs of a batch of reads of a page, both ends', as (datagrams, messages of the socket,
/// system calls).
fn costs_of_batches_of_reads(datagram_bytes_max: Option<usize>) -> Vec<[(u64, u64, u64); 2]> {
    let side = |name: &str| {
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let config = UdpConfig { datagram_bytes_max, ..UdpConfig::new(listen) };
        let udp = Udp::bind(config).expect("loopback");
        Side::new(name, udp.receive_buffer_bytes(), udp)
    };
    let (client, server) = (side("vm1"), side("io-1"));
    let addr = server.addr;
    let (mut pair, session) = Pair::connect(client, server, addr);
    pair.call(session, 1, 100);
    pair.run_until_replied(1);
    let page = pair.server.endpoint.borrow_mut().pool_mut().alloc(4096).expect("room");
    let sent = |side: &Side| {
        let it = &side.counters;
        (it.datagrams_sent.get(), it.send_messages.get(), it.send_calls.get())
    };
    let since = |now: (u64, u64, u64), then: (u64, u64, u64)| {
        (now.0 - then.0, now.1 - then.1, now.2 - then.2)
    };
    let mut costs = Vec::new();
    for batch in 0..4 {
        let [client, server] = [&pair.client, &pair.server].map(sent);
        for token in 10..10 + READS {
            let mut endpoint = pair.client.endpoint.borrow_mut();
            let called = endpoint.call(pair.now_ns, session, 0, token, &[0; 64], None);
            called.expect("room for the call");
        }
        pair.round();
        let asked = since(sent(&pair.client), client);
        let mut endpoint = pair.server.endpoint.borrow_mut();
        let calls: Vec<_> = pair.server.notes.borrow_mut().calls.drain(..).collect();
        for (call, _) in &calls {
            let replied = endpoint.reply(pair.now_ns, *call, &[0; 64], Some((page, 4096)));
            replied.expect("the session lives");
        }
        drop(endpoint);
        assert_eq!(calls.len() as u64, READS, "all in one round");
        pair.run_until_replied(1 + READS as usize * (batch + 1));
        costs.push([asked, since(sent(&pair.server), server)]);
        pair.client.notes.borrow_mut().bodies.clear();
    }
    costs
}

/// Over a link as wide as the loopback device: two datagrams and one system call there, a datagram
/// each and one system call back.
#[test]
fn a_batch_of_reads_is_two_datagrams_there_and_one_each_back() {
    for [asked, answered] in costs_of_batches_of_reads(None) {
        assert_eq!((asked.0, asked.2), (READS / 8, 1));
        assert_eq!((answered.0, answered.2), (READS, 1));
    }
}

/// Over Ethernet an answer is three datagrams. The answers that a call sends, as many as window and
/// pace allow, are one message for each group that they fill, also where an answer carries an
/// acknowledgement.
#[test]
fn answers_over_ethernet_leave_in_full_groups() {
    const GROUP_DATAGRAMS_MAX: u64 = 65_487 / 1472;
    for [asked, answered] in costs_of_batches_of_reads(Some(1472)) {
        assert_eq!(asked, (READS / 8, 1, 1));
        let (datagrams, messages, calls) = answered;
        assert_eq!(datagrams, 3 * READS);
        assert!(messages <= calls + datagrams / GROUP_DATAGRAMS_MAX, "{answered:?}");
    }
}

#[test]
fn faults_on_both_ends_cost_time_but_no_byte() {
    let faults = Faults {
        seed: 11,
        loss_percent: 3.0,
        duplication_percent: 3.0,
        reordering_percent: 3.0,
        corruption_percent: 3.0,
        delay_percent: 3.0,
        delay_ns_max: 2_000_000,
    };
    let (mut pair, session) = connected(Some(faults));
    let len = |token: u64| [100, 4096, 65_536, 300_000][token as usize % 4];
    for token in 0..40 {
        pair.call(session, token, len(token));
    }
    pair.run_until_replied(40);
    let notes = pair.client.notes.borrow();
    for token in 0..40 {
        assert!(notes.bodies[&token] == pattern(token, len(token)), "call {token}");
    }
    let mut replied = notes.replied.clone();
    replied.sort_unstable();
    assert_eq!(replied, (0..40).collect::<Vec<_>>(), "each once");
}

/// A server with a door and a client that calls there.
struct Shared {
    home: tempfile::TempDir,
    door: Option<ShmListener>,
    places: ShmDirectory,
    counters: [Arc<ShmCounters>; 2],
}

impl Shared {
    fn connected() -> (Self, Pair, SessionId) {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("io1.shm");
        let places = ShmDirectory::default();
        let (door, mut callers) = ShmListener::open(&path, &[4870]).expect("a door");
        let shared = |name: &str, callers| {
            let mut counters = None;
            let side = side(name, |udp| {
                let shm = Shm::new(udp, places.clone(), callers).expect("an epoll");
                counters = Some(Arc::clone(shm.shm_counters()));
                shm
            });
            (side, counters.expect("made above"))
        };
        let (client, client_counters) = shared("vm1", None);
        let (server, server_counters) = shared("io-1", callers.pop());
        let counters = [client_counters, server_counters];
        let addr = places.address(&path).expect("room");
        let (pair, session) = Pair::connect(client, server, addr);
        (Self { home, door: Some(door), places, counters }, pair, session)
    }
}

#[test]
fn shared_memory_carries_calls_without_the_network() {
    let (shared, mut pair, session) = Shared::connected();
    for (token, len) in (1..).zip([1, 512, 4096, 100_000, 1 << 20]) {
        pair.call(session, token, len);
        pair.run_until_replied(token as usize);
        assert!(pair.client.notes.borrow().bodies[&token] == pattern(token, len));
    }
    for (side, shm) in [&pair.client, &pair.server].into_iter().zip(&shared.counters) {
        assert_eq!(side.counters.datagrams_sent.get(), 0, "{:?}", side.counters);
        assert_eq!(shm.lines.get(), 1, "{shm:?}");
        // Neither side slept.
        assert_eq!((shm.bells_rung.get(), shm.dropped_full.get(), shm.broken.get()), (0, 0, 0));
    }
    let [client, server] = &shared.counters;
    assert_eq!(client.datagrams_sent.get(), server.datagrams_received.get());
}

/// Nor does it call the kernel each round to hear that no other socket has sent anything.
#[test]
fn while_lines_are_busy_the_socket_beside_them_is_looked_at_now_and_then() {
    let (_shared, mut pair, session) = Shared::connected();
    let looked =
        |pair: &Pair| [&pair.client, &pair.server].map(|side| side.counters.receive_calls.get());
    let (before, rounds_before) = (looked(&pair), pair.rounds);
    for token in 0..200 {
        pair.call(session, token, 512);
        pair.run_until_replied(token as usize + 1);
    }
    let rounds = pair.rounds - rounds_before;
    for (after, before) in looked(&pair).into_iter().zip(before) {
        assert!(after - before < rounds / 2, "{} looks in {rounds} rounds", after - before);
    }
    // The socket carries peers without a line, at once while it does.
    let stranger = std::net::UdpSocket::bind(("127.0.0.1", 0)).expect("a socket");
    stranger.send_to(b"not one of ours", pair.client.addr).expect("sent");
    let (heard, rounds_before) = (Arc::clone(&pair.client.counters), pair.rounds);
    let received_before = heard.datagrams_received.get();
    pair.run_until(|| heard.datagrams_received.get() > received_before);
    assert!(pair.rounds - rounds_before <= 4, "heard after {} rounds", pair.rounds);
}

#[test]
fn a_peer_that_hangs_up_is_called_again_when_it_is_back() {
    let (mut shared, mut pair, session) = Shared::connected();
    let path = shared.door.take().expect("it has one").path().to_owned();
    // The server's process is gone, with its end of the line.
    pair.server = side("io-1", |udp| udp);
    pair.call(session, 1, 100);
    let client = Arc::clone(&shared.counters[0]);
    pair.run_until(|| client.lines.get() == 0);
    let before = client.dropped_unreachable.get();
    pair.run_until(|| client.dropped_unreachable.get() > before);
    // A new one opens its door; its endpoint has not heard of the session.
    let (door, mut callers) = ShmListener::open(&path, &[4870]).expect("a door again");
    let (places, calls) = (shared.places.clone(), callers.pop());
    pair.server = side("io-1", |udp| Shm::new(udp, places, calls).expect("an epoll"));
    pair.client.notes.borrow_mut().may_be_lost = true;
    let notes = Rc::clone(&pair.client.notes);
    pair.run_until(|| notes.borrow().is_lost);
    assert_eq!(client.lines.get(), 1, "the line is new");
    drop((door, shared.home));
}

#[test]
fn a_door_is_not_taken_from_the_living() {
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().join("io1.shm");
    let door = ShmListener::open(&path, &[1]).expect("a door");
    let error = ShmListener::open(&path, &[1]).expect_err("it is in use");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    drop(door);
    assert!(!path.exists());
    std::fs::write(&path, "precious").expect("a file");
    let error = ShmListener::open(&path, &[1]).expect_err("no socket");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert_eq!(std::fs::read_to_string(&path).expect("still there"), "precious");
}

#[test]
fn callers_that_talk_nonsense_are_hung_up_on() {
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().join("io1.shm");
    let (_door, mut callers) = ShmListener::open(&path, &[4870]).expect("a door");
    let (calls, places) = (callers.pop(), ShmDirectory::default());
    let mut counters = None;
    let server = side("io-1", |udp| {
        let shm = Shm::new(udp, places.clone(), calls).expect("an epoll");
        counters = Some(Arc::clone(shm.shm_counters()));
        shm
    });
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType};
    for nonsense in [&b"GET / HTTP/1.1"[..], b"vrio-shm\x01\0\x06\x13", b"x"] {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None);
        let socket = socket.expect("a socket");
        rustix::net::connect(&socket, &SocketAddrUnix::new(&path).unwrap()).expect("it answers");
        rustix::net::send(&socket, nonsense, SendFlags::empty()).expect("sent");
        let (_, got) =
            rustix::net::recv(&socket, &mut [0; 8], RecvFlags::empty()).unwrap_or((0, 0));
        assert_eq!(got, 0, "hung up");
    }
    let client = side("vm1", |udp| Shm::new(udp, places.clone(), None).expect("an epoll"));
    let addr = places.address(&path).expect("room");
    let (_pair, _) = Pair::connect(client, server, addr);
    assert_eq!(counters.expect("made").lines.get(), 1, "only the sound one");
}
