//! A volume whose members are on two peers: the client finds the peer that serves it.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::peers::{Peers, export};
use block::{Attach, AttachOptions, Attachment, Export, RemoteVolume};
use transport::VERSIONS;
use virtio::Segment;
use volume::backend::MemoryVolume;
use volume::{Channel, IoTable, Op, OpenArguments, Status, io_table};

const SIZE: u64 = 1 << 20;

/// How long a client may take to find the other peer: a session that says nothing is given up after
/// some seconds.
const FINDS_NS: u64 = 60_000_000_000;

/// A volume in memory that two nodes export: members that have the same content at any time.
struct Rig {
    exports: [Arc<Export>; 2],
    peers: Peers,
    remote: Arc<RemoteVolume>,
    attachment: Arc<Attachment>,
    channel: Box<dyn Channel>,
    ios: IoTable,
    now_ns: u64,
}

impl Rig {
    /// The first peer serves the volume, or the second one.
    fn new(serves: usize) -> Self {
        Self::with(serves, *VERSIONS.end())
    }

    /// The same, and the peers speak versions up to this.
    fn with(serves: usize, version: u8) -> Self {
        let volume = MemoryVolume::new(SIZE).expect("room");
        let exports = [(); 2].map(|()| export(Arc::new(volume.clone())));
        let names = ["io1", "io2"];
        exports[1 - serves].set_elsewhere(Some(names[serves]));
        let (peers, remote) = Peers::of(&exports, false, 1..=version);
        let attachment = Arc::new(Attachment::new("a", AttachOptions::new(1)));
        let open = OpenArguments { services: peers.services(), depth: 4 };
        let channel = remote.attach(&attachment, 0, &open).expect("a way to the peers");
        let (ios, now_ns) = (io_table(4), 20_000_000_000);
        Self { exports, peers, remote, attachment, channel, ios, now_ns }
    }

    /// The other peer serves the volume from now on.
    fn move_to(&self, serves: usize) {
        self.exports[1 - serves].set_elsewhere(Some(["io1", "io2"][serves]));
        self.exports[serves].set_elsewhere(None);
    }

    /// Writes or reads a sector, and waits for the end.
    fn ask(&mut self, op: Op, sector: &mut [u8; 512]) {
        let id = self.ios.take().expect("one at a time");
        let io = &mut self.ios[id];
        io.reset();
        (io.op, io.len_bytes) = (op, 512);
        io.segments.push(Segment { addr: sector.as_mut_ptr(), len: 512 });
        self.channel.submit(&mut self.ios, id);
        let until_ns = self.now_ns + FINDS_NS;
        loop {
            self.now_ns += 1_000_000;
            let (now_ns, mut done) = (self.now_ns, Vec::new());
            let (channel, ios) = (&mut self.channel, &mut self.ios);
            self.peers.round(now_ns, || {
                let _ = channel.poll(ios, now_ns, &mut done);
            });
            if done.pop().is_some() {
                assert_eq!(self.ios[id].status, Status::Done);
                self.ios.free(id);
                return;
            }
            assert!(now_ns < until_ns, "{op:?} does not end: {:?}", self.remote.why());
        }
    }

    /// Rounds of so many seconds without requests.
    fn wait_s(&mut self, seconds: u64) {
        for _ in 0..seconds * 1_000 {
            self.now_ns += 1_000_000;
            let (now_ns, mut done) = (self.now_ns, Vec::new());
            let (channel, ios) = (&mut self.channel, &mut self.ios);
            self.peers.round(now_ns, || {
                let _ = channel.poll(ios, now_ns, &mut done);
            });
        }
    }

    fn write_and_read(&mut self, byte: u8) {
        self.ask(Op::Write, &mut [byte; 512]);
        let mut found = [0; 512];
        self.ask(Op::Read, &mut found);
        assert_eq!(found, [byte; 512]);
    }
}

#[test]
fn a_client_that_asks_another_member_first_is_sent_on() {
    let mut rig = Rig::new(1);
    assert_eq!(rig.remote.peer(), "io2");
    rig.write_and_read(7);
}

#[test]
fn a_volume_that_moves_takes_its_client_along() {
    let mut rig = Rig::new(0);
    for turn in 1..6 {
        rig.write_and_read(turn);
        rig.move_to(usize::from(turn % 2));
    }
    rig.write_and_read(9);
}

#[test]
fn a_client_whose_peer_is_gone_asks_the_next_one() {
    let mut rig = Rig::new(0);
    rig.write_and_read(1);
    rig.peers.are_away[0] = true;
    rig.move_to(1);
    rig.write_and_read(2);
    assert_eq!(rig.remote.peer(), "io2");
}

/// A session that says nothing is given up after three seconds. A member that has taken the volume
/// over says so, and its client does not wait for that.
#[test]
fn a_client_whose_peer_is_gone_hears_of_the_member_that_has_taken_over() {
    let mut rig = Rig::new(0);
    rig.write_and_read(1);
    rig.peers.are_away[0] = true;
    rig.exports[0].set_elsewhere(Some("io2"));
    rig.exports[1].serve_here().expect("records");
    let before_ns = rig.now_ns;
    rig.write_and_read(2);
    assert_eq!(rig.remote.peer(), "io2");
    let took_ms = (rig.now_ns - before_ns) / 1_000_000;
    assert!(took_ms < 1_000, "{took_ms} ms of the rig's time");
}

/// A member's word that it serves the volume is followed once a second, and the next answer counts.
#[test]
fn a_member_that_only_says_that_it_serves_holds_no_client_up() {
    let mut rig = Rig::new(0);
    rig.write_and_read(1);
    let liar = Arc::clone(&rig.exports[1]);
    for round in 0..100 {
        liar.serve_here().expect("records");
        liar.set_elsewhere(Some("io1"));
        rig.write_and_read(round);
    }
    assert_eq!(rig.remote.peer(), "io1");
    let calls = rig.remote.counters()[0].calls.get();
    assert!(calls < 300, "{calls} calls for 202 requests");
}

/// While no member knows which member serves, the client asks them in turn, and not without end in
/// one moment.
#[test]
fn members_that_send_a_client_on_without_end_are_asked_seldom() {
    let mut rig = Rig::new(0);
    rig.write_and_read(1);
    rig.exports[0].set_elsewhere(Some("io2"));
    rig.exports[1].set_elsewhere(Some("io1"));
    let calls = |rig: &Rig| rig.remote.counters()[0].calls.get();
    let before = calls(&rig);
    rig.wait_s(10);
    let asked = calls(&rig) - before;
    assert!(asked < 100, "{asked} calls in 10 s");
    rig.exports[0].set_elsewhere(None);
    rig.write_and_read(2);
}

/// A client of an older version is refused in words.
#[test]
fn an_older_client_is_told_in_words_and_asks_its_peers_in_turn() {
    let mut rig = Rig::with(0, 4);
    rig.write_and_read(1);
    rig.exports[0].set_elsewhere(Some("io2"));
    rig.attachment.doubt();
    // Its refusals say no more than a word for people, so the next peer may be the right one.
    let (mut words, mut peers) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..10 {
        rig.wait_s(1);
        words.insert(rig.attachment.why().expect("it waits"));
        peers.insert(rig.remote.peer().to_owned());
    }
    let is_told = |node: &str| {
        words.iter().any(|why| why.ends_with(&format!("a copy of the volume; {node} serves it")))
    };
    assert!(is_told("io1") && is_told("io2"), "{words:?}");
    assert_eq!(peers.len(), 2, "{peers:?}");
}
