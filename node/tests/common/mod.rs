//! Common parts of the tests of whole nodes: directories, addresses, a stand-in guest.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::{Duration, Instant};

use node::status::{DiskState, DiskStatus, Status};
use node::{Config, Node};
use virtio::driver::{
    Data, DriverOp, DriverRequest, FrontEnd, FrontEndConfig, GuestPlan, RequestStatus as Outcome,
    SocketRole,
};

/// Longer than any step of these tests takes on a busy machine. It is never a measurement: an event
/// that comes late fails no test, an event that never comes does.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A directory for one test, and the nodes that are configured in it.
pub(crate) struct Home(tempfile::TempDir);

impl Home {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The configuration in `text`, with HOME replaced.
    pub(crate) fn config(&self, text: &str) -> Config {
        let text = text.replace("HOME", self.0.path().to_str().unwrap());
        Config::parse(Path::new("n.toml"), &text).unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn start(&self, text: &str) -> Node {
        Node::start(&self.config(text)).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// A loopback address that no other test uses: all of 127.0.0.0/8 is this host's.
pub(crate) fn address() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    format!("127.{}.{low}.{}:4870", 64 + (high & 0x3f), NEXT.fetch_add(1, Relaxed))
}

/// Waits until the node's status is as wanted, and returns it.
pub(crate) fn wait_for(node: &Node, what: &str, wanted: impl Fn(&Status) -> bool) -> Status {
    let until = Instant::now() + PATIENCE;
    loop {
        let status = node.status();
        if wanted(&status) {
            return status;
        }
        assert!(Instant::now() < until, "never {what}: {status:#?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the only disk is in that state and its detail contains the text.
pub(crate) fn wait_for_disk(node: &Node, state: DiskState, detail: &str) -> DiskStatus {
    let what = format!("{state}: {detail}");
    let status = wait_for(node, &what, |status| {
        status.disks[0].state == state && status.disks[0].detail.contains(detail)
    });
    status.disks[0].clone()
}

/// A stand-in for a guest with requests of 4 KiB, one at a time.
pub(crate) struct Guest(pub FrontEnd);

const BLOCK_BYTES: u32 = 4096;
const SECTORS: u64 = BLOCK_BYTES as u64 / 512;

impl Guest {
    pub(crate) fn connect(socket: PathBuf, queues: u16) -> Self {
        let mut config = FrontEndConfig::new(SocketRole::Connect(socket));
        config.guest = GuestPlan { queues, ..GuestPlan::default() };
        Self(FrontEnd::connect(config, PATIENCE).unwrap())
    }

    fn one(&mut self, queue: u16, op: DriverOp, block: u64, seed: u64) -> Outcome {
        let ring = self.0.ring(queue);
        let slot = ring.take_slot().unwrap();
        if op == DriverOp::Write {
            ring.fill(slot, BLOCK_BYTES, seed);
        }
        let data = if op == DriverOp::Flush { Data::None } else { Data::Whole(BLOCK_BYTES) };
        let request = DriverRequest { slot, op, sector: block * SECTORS, data, token: seed };
        ring.submit(&request).unwrap();
        ring.publish();
        assert!(ring.wait(PATIENCE).unwrap(), "no answer to {op:?} of block {block}");
        let done = ring.complete().unwrap().unwrap();
        if op == DriverOp::Read && done.status == Outcome::Ok {
            assert_eq!(ring.mismatch(slot, BLOCK_BYTES, seed), None, "block {block}");
        }
        ring.release(slot);
        done.status
    }

    /// Writes a block with content that follows from the seed.
    pub(crate) fn write(&mut self, queue: u16, block: u64, seed: u64) -> Outcome {
        self.one(queue, DriverOp::Write, block, seed)
    }

    /// Reads a block, and checks that its content follows from the seed.
    pub(crate) fn check(&mut self, queue: u16, block: u64, seed: u64) -> Outcome {
        self.one(queue, DriverOp::Read, block, seed)
    }

    pub(crate) fn flush(&mut self, queue: u16) -> Outcome {
        self.one(queue, DriverOp::Flush, 0, 0)
    }
}
