//! The features of a disk whose volume's node speaks this version of the protocol or the one
//! before.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::peers::Peers;
use block::{Attach, AttachOptions, Attachment, Plane, RemoteVolume};
use transport::VERSIONS;
use volume::backend::{FileOptions, FileVolume};
use volume::uring::Uring;
use volume::{Channel, IoTable, Op, OpenArguments, Status, Topology, Volume, Zeroing, io_table};

const SIZE: u64 = 1 << 20;

/// Two nodes, a volume in a file of one, and a channel of the other to it.
struct Rig {
    _home: tempfile::TempDir,
    file: FileVolume,
    peers: Peers,
    remote: Arc<RemoteVolume>,
    channel: Box<dyn Channel>,
    ios: IoTable,
    now_ns: u64,
}

impl Rig {
    fn new(version: u8) -> Self {
        let home = tempfile::tempdir().expect("room");
        let mut options = FileOptions::new(home.path().join("a.img"));
        options.size_bytes = Some(SIZE);
        options.topology = Topology { physical_bytes: 16384, optimal_bytes: 65536 };
        let file = FileVolume::open(&options).expect("a new file");
        let (peers, remote) = Peers::new(Arc::new(file.clone()), true, 2..=version);
        assert_eq!(peers.sealed_sessions(), 1);
        let uring = Rc::new(RefCell::new(Uring::new().expect("an io_uring")));
        peers.io_services().insert(uring);
        let options = AttachOptions::new(1);
        let attachment = Arc::new(Attachment::new("a", options));
        let services = peers.services().clone();
        let open = OpenArguments { services: &services, depth: 4 };
        let channel = remote.attach(&attachment, 0, &open).expect("a way to the peer");
        let (ios, now_ns) = (io_table(4), 20_000_000_000);
        Self { _home: home, file, peers, remote, channel, ios, now_ns }
    }

    fn round(&mut self) -> Option<Status> {
        self.now_ns += 10_000;
        let (now_ns, mut done) = (self.now_ns, Vec::new());
        let (channel, ios) = (&mut self.channel, &mut self.ios);
        self.peers.round(now_ns, || {
            let _ = channel.poll(ios, now_ns, &mut done);
        });
        let uring = self.peers.io_services().get::<Uring>().expect("put there");
        let _ = uring.borrow_mut().round();
        let id = done.pop()?;
        let status = self.ios[id].status;
        self.ios.free(id);
        Some(status)
    }

    fn zero(&mut self, op: Op, offset_bytes: u64, len_bytes: u32) -> Status {
        let id = self.ios.take().expect("one at a time");
        let io = &mut self.ios[id];
        io.reset();
        (io.op, io.offset_bytes, io.len_bytes) = (op, offset_bytes, len_bytes);
        self.channel.submit(&mut self.ios, id);
        for _ in 0..10_000_000 {
            if let Some(status) = self.round() {
                return status;
            }
        }
        panic!("{op:?} was never completed");
    }
}

#[test]
fn a_node_of_this_version_says_what_its_volume_can_and_does_it() {
    let mut rig = Rig::new(*VERSIONS.end());
    let info = rig.remote.info();
    assert_eq!((info.zeroing, info.topology), (rig.file.info().zeroing, rig.file.info().topology));
    assert_eq!(info.topology.physical_bytes, 16384);
    std::fs::write(rig.file.path(), vec![7; SIZE as usize]).expect("the file");
    for (op, at) in [(Op::WriteZeroes, 0), (Op::Discard, SIZE / 2)] {
        assert!(info.zeroing.can(op), "{op:?}");
        assert_eq!(rig.zero(op, at, 65536), Status::Done, "{op:?}");
        assert_eq!(rig.zero(op, SIZE - 512, 1024), Status::Invalid, "{op:?} beyond the end");
        let stored = std::fs::read(rig.file.path()).expect("the file");
        let (zeroes, rest) = stored[at as usize..].split_at(65536);
        assert!(zeroes.iter().all(|byte| *byte == 0) && rest[0] == 7, "{op:?}");
    }
}

#[test]
fn a_node_of_the_version_before_is_neither_believed_to_nor_asked_to() {
    let mut rig = Rig::new(2);
    let info = rig.remote.info();
    assert_eq!(info.size_bytes, SIZE);
    assert_eq!((info.zeroing, info.topology), (Zeroing::default(), Topology::default()));
    std::fs::write(rig.file.path(), vec![7; SIZE as usize]).expect("the file");
    for op in [Op::Discard, Op::WriteZeroes] {
        assert_eq!(rig.zero(op, 0, 4096), Status::Unsupported, "{op:?}");
    }
    assert_eq!(std::fs::read(rig.file.path()).expect("the file"), vec![7; SIZE as usize]);
}

#[test]
fn a_change_is_told_to_peers_that_understand_it() {
    for (version, wanted) in [(3, 2 * SIZE), (2, SIZE)] {
        let mut rig = Rig::new(version);
        // The client asks by itself as well, each few seconds; the first time is over.
        for _ in 0..1000 {
            let _ = rig.round();
        }
        rig.file.resize(2 * SIZE, Some(SIZE), false).expect("a larger file");
        let plane = rig.peers.io_services().get::<Plane>().expect("put there");
        plane.borrow_mut().server.changed("a");
        plane.borrow_mut().server.changed("no such volume");
        for _ in 0..1000 {
            let _ = rig.round();
        }
        assert_eq!(rig.remote.info().size_bytes, wanted, "version {version}");
        assert_eq!(rig.remote.size().get(), wanted);
        assert_eq!(plane.borrow().clients.strays, 0);
        // And so hears of it in any version.
        rig.now_ns += 20_000_000_000;
        for _ in 0..1000 {
            let _ = rig.round();
        }
        assert_eq!(rig.remote.info().size_bytes, 2 * SIZE, "version {version}");
    }
}
