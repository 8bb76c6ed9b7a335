//! A volume whose members are on several peers: the client finds the peer that serves it, also when
//! its list of peers is replaced.

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

/// How many requests are under way at once, and their length.
const WRITES: usize = 4;
const SECTOR: usize = 512;

/// A volume in memory that three nodes export: members that have the same content at any time. The
/// client's list of peers begins with two of them.
struct Rig {
    exports: [Arc<Export>; 3],
    peers: Peers,
    remote: Arc<RemoteVolume>,
    attachment: Arc<Attachment>,
    channel: Box<dyn Channel>,
    ios: IoTable,
    /// The memory of requests that are under way.
    sectors: Box<[[u8; SECTOR]; WRITES]>,
    now_ns: u64,
}

/// The nodes, by their number.
const NAMES: [&str; 3] = ["io1", "io2", "io3"];

impl Rig {
    /// The first peer serves the volume, or the second one.
    fn new(serves: usize) -> Self {
        Self::with(serves, *VERSIONS.end())
    }

    /// The same, and the peers speak versions up to this.
    fn with(serves: usize, version: u8) -> Self {
        Self::listed(serves, version, (&NAMES[..2], 3))
    }

    /// The same with this list of peers. The client's sidecore knows so many of the nodes.
    fn listed(serves: usize, version: u8, (names, known): (&[&str], usize)) -> Self {
        let volume = MemoryVolume::new(SIZE).expect("room");
        let exports = [(); 3].map(|()| export(Arc::new(volume.clone())));
        for at in (0..3).filter(|at| *at != serves) {
            exports[at].set_elsewhere(Some(NAMES[serves]));
        }
        let (peers, remote) = Peers::listed(&exports, (names, known), false, 1..=version);
        let attachment = Arc::new(Attachment::new("a", AttachOptions::new(1)));
        let open = OpenArguments { services: peers.services(), depth: WRITES as u16 };
        let channel = remote.attach(&attachment, 0, &open).expect("a way to the peers");
        let (ios, now_ns) = (io_table(WRITES as u16), 20_000_000_000);
        let sectors = Box::new([[0; SECTOR]; WRITES]);
        Self { exports, peers, remote, attachment, channel, ios, sectors, now_ns }
    }

    /// Another peer serves the volume from now on.
    fn move_to(&self, serves: usize) {
        for at in (0..3).filter(|at| *at != serves) {
            self.exports[at].set_elsewhere(Some(NAMES[serves]));
        }
        self.exports[serves].set_elsewhere(None);
    }

    /// Replaces the list of peers.
    fn list(&self, peers: &str) {
        let peers: Vec<_> = peers.split(',').map(str::to_owned).collect();
        self.remote.set_peers(&peers);
    }

    /// Begins requests of one sector each, as many as can be under way.
    fn begin(&mut self, op: Op, byte: u8) {
        for (at, sector) in self.sectors.iter_mut().enumerate() {
            let id = self.ios.take().expect("all have ended");
            sector.fill(byte);
            let io = &mut self.ios[id];
            io.reset();
            (io.op, io.offset_bytes, io.len_bytes) = (op, (at * SECTOR) as u64, SECTOR as u32);
            io.segments.push(Segment { addr: sector.as_mut_ptr(), len: SECTOR as u32 });
            self.channel.submit(&mut self.ios, id);
        }
    }

    /// Rounds of a millisecond. Gives how many requests have ended, each of them well.
    fn rounds(&mut self, count: u64) -> usize {
        let mut ended = 0;
        for _ in 0..count {
            self.now_ns += 1_000_000;
            let (now_ns, mut done) = (self.now_ns, Vec::new());
            let (channel, ios) = (&mut self.channel, &mut self.ios);
            self.peers.round(now_ns, || {
                let _ = channel.poll(ios, now_ns, &mut done);
            });
            for id in done {
                assert_eq!(self.ios[id].status, Status::Done);
                self.ios.free(id);
                ended += 1;
            }
        }
        ended
    }

    /// Rounds until so many requests have ended.
    fn end(&mut self, mut under_way: usize) {
        let until_ns = self.now_ns + FINDS_NS;
        while under_way > 0 {
            under_way -= self.rounds(1);
            assert!(self.now_ns < until_ns, "{under_way} do not end: {:?}", self.remote.why());
        }
    }

    /// Writes, with `change` in the given round while the writes are under way. All of them end,
    /// and are read again.
    fn write_while(&mut self, byte: u8, round: u64, change: impl FnOnce(&mut Self)) {
        self.begin(Op::Write, byte);
        let ended = self.rounds(round);
        change(self);
        self.end(WRITES - ended);
        self.read_again(byte);
    }

    fn read_again(&mut self, byte: u8) {
        self.begin(Op::Read, !byte);
        self.end(WRITES);
        assert!(self.sectors.iter().flatten().all(|it| *it == byte), "{byte}");
    }

    /// Requests that were sent again.
    fn resent(&self) -> u64 {
        self.remote.counters()[0].resent.get()
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
        assert_eq!(self.rounds(seconds * 1_000), 0);
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
        peers.insert(rig.remote.peer());
    }
    let is_told = |node: &str| {
        words.iter().any(|why| why.ends_with(&format!("a copy of the volume; {node} serves it")))
    };
    assert!(is_told("io1") && is_told("io2"), "{words:?}");
    assert_eq!(peers.len(), 2, "{peers:?}");
}

/// The rounds in which a request goes through its life: it waits for a claim, is sent, is answered.
const ROUNDS: std::ops::Range<u64> = 0..8;

#[test]
fn a_peer_that_stays_in_the_list_is_asked_on_without_a_break() {
    for round in ROUNDS {
        let mut rig = Rig::new(0);
        rig.write_and_read(1);
        let epoch = rig.attachment.view();
        rig.write_while(2, round, |rig| rig.list("io1,io3"));
        rig.write_while(3, round, |rig| rig.list("io3,io1"));
        assert_eq!((rig.resent(), rig.attachment.view()), (0, epoch), "in round {round}");
        // The new peer has its place: the volume can move there.
        rig.write_while(4, round, |rig| rig.move_to(2));
        assert_eq!(rig.remote.peer(), "io3");
    }
}

#[test]
fn a_volume_that_has_moved_to_a_new_peer_takes_its_client_along() {
    for round in ROUNDS {
        let mut rig = Rig::new(0);
        rig.write_and_read(1);
        rig.write_while(2, round, |rig| {
            rig.move_to(2);
            rig.list("io3");
        });
        assert_eq!((rig.remote.peer(), rig.remote.peers()), ("io3".into(), vec!["io3".into()]));
        // The list says so before the volume moves: the client waits for it.
        rig.list("io2");
        rig.begin(Op::Write, 3);
        assert_eq!(rig.rounds(500 + round), 0);
        rig.move_to(1);
        rig.end(WRITES);
        rig.read_again(3);
        assert_eq!(rig.remote.peer(), "io2");
    }
}

/// Requests at a peer that leaves the list and comes back find their epoch over there.
#[test]
fn peers_that_come_and_go_many_times_lose_nothing() {
    let lists = ["io1", "io3,io1", "io2,io3", "io3", "io2,io1,io3", "io1,io2"];
    for lost_each in [0, 7, 3] {
        let mut rig = Rig::new(0);
        rig.write_and_read(1);
        rig.peers.lost_each = lost_each;
        for turn in 0..60_u8 {
            let list = lists[usize::from(turn) % lists.len()];
            let serves = usize::from(turn / 7 % 3);
            rig.write_while(turn, u64::from(turn % 5), |rig| {
                rig.list(list);
                rig.list(lists[usize::from(turn / 3) % lists.len()]);
                rig.list(list);
                if list.contains(NAMES[serves]) {
                    rig.move_to(serves);
                } else {
                    let first = NAMES.iter().position(|it| list.starts_with(it));
                    rig.move_to(first.expect("a list of these"));
                }
            });
        }
        assert_eq!(rig.remote.peers(), ["io1", "io2"]);
    }
}

/// Peers that have left are let go of, and can be forgotten.
#[test]
fn no_session_is_kept_with_a_peer_that_has_left() {
    let mut rig = Rig::new(0);
    rig.write_and_read(1);
    rig.write_while(2, 1, |rig| {
        rig.list("io3,io2");
        rig.move_to(1);
    });
    let planes = &rig.peers.vm.wired.planes;
    let forgotten = NAMES.map(|name| planes.borrow_mut().remove_peer(rig.now_ns, name));
    assert_eq!(forgotten, [true, false, false]);
}

#[test]
fn a_peer_that_the_sidecore_does_not_know_yet_is_passed_over() {
    let mut rig = Rig::listed(1, *VERSIONS.end(), (&["io3", "io1", "io2"], 2));
    rig.write_and_read(1);
    rig.write_while(2, 1, |rig| rig.list("io3,io2"));
    assert_eq!(rig.resent(), 0);
    // The peer that was asked has left, and the first peer of the list is not known.
    rig.write_while(3, 1, |rig| {
        rig.list("io3,io1");
        rig.move_to(0);
    });
    // No peer of the list is known: the requests wait.
    rig.begin(Op::Write, 4);
    rig.list("io3");
    rig.move_to(2);
    assert_eq!(rig.rounds(5_000), 0);
    rig.peers.know(2);
    rig.end(WRITES);
    rig.read_again(4);
    assert_eq!(rig.remote.peer(), "io3");
}
