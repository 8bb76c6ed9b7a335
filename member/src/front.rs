//! A replicated volume as its users see it: a [`Volume`] that sends requests to the member of this
//! node, from any sidecore.
//!
//! ```text
//!   a user's sidecore                       the member's sidecore
//!   FrontChannel ── requests ──▶ mailbox ──▶ FrontLink ──▶ the protocol
//!        ▲                                      │
//!        └───────── mailbox ◀── answers ────────┘
//! ```
//!
//! The time in which this member serves is a *term*. Each channel is of one term: of the term in
//! which it was opened, or of the first term after that. A request of another term is never
//! carried out. So a request that was admitted before the volume was served elsewhere cannot come
//! late, over a write that a client was told of in between.

mod channel;
mod links;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;
use replica::Extent;
use sidecore::Waker;
use sidecore::mailbox::{self, Receiver, Sender};
use volume::{
    Channel, Incarnation, OpenArguments, OpenError, Size, Status, Topology, Volume, VolumeInfo,
};

use channel::FrontChannel;
pub(crate) use links::{FrontLinks, FrontPlace, PutRequest};

/// The content of a write, on its way to the member's sidecore.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FrontContent {
    Bytes(Vec<u8>),
    Zeroes,
    Discarded,
}

/// The operation of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FrontOp {
    Read(Extent),
    Write(Extent, FrontContent),
    Flush,
}

/// A request of a channel. A slot has one at a time.
#[derive(Debug)]
pub(crate) struct FrontRequest {
    slot: u16,
    /// Requests of the slot in order.
    number: u64,
    op: FrontOp,
}

/// The end of a request.
#[derive(Debug)]
pub(crate) struct FrontAnswer {
    slot: u16,
    number: u64,
    status: Status,
    /// The content of a range that was read.
    bytes: Option<Vec<u8>>,
}

/// The state that a volume, its channels and its member's host share.
#[derive(Debug)]
pub(crate) struct FrontShared {
    info: Mutex<VolumeInfo>,
    size: Size,
    /// The present term; 0 while this member does not serve.
    term: AtomicU64,
    /// Host's ends of channels that the host has not taken yet; none once the host is gone.
    fresh: Mutex<Option<Vec<FrontEnd>>>,
    has_fresh: AtomicBool,
    /// Of the member's sidecore.
    home: Waker,
}

/// The host's end of a channel.
pub(crate) struct FrontEnd {
    requests: Receiver<FrontRequest>,
    answers: Option<Sender<FrontAnswer>>,
    /// Of the channel's sidecore.
    waker: Waker,
    /// The term in which the channel was opened.
    opened_in: u64,
    depth: u16,
    /// The user lets go: requests that were not taken must not be taken.
    lets_go: Arc<AtomicBool>,
}

impl Drop for FrontEnd {
    fn drop(&mut self) {
        // The channel looks for this, so its sidecore is woken when it can see it.
        self.answers = None;
        self.waker.wake();
    }
}

impl fmt::Debug for FrontEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrontEnd").field("opened_in", &self.opened_in).finish_non_exhaustive()
    }
}

/// A replicated volume, on a node that has a member of it.
#[derive(Debug)]
pub struct FrontVolume {
    shared: Arc<FrontShared>,
}

impl FrontVolume {
    /// The volume over a member's own volume with this description. Its users have so many bytes
    /// of it. `home` wakes the member's sidecore.
    pub(crate) fn new(own: &VolumeInfo, size_bytes: u64, home: Waker) -> Self {
        let info = VolumeInfo {
            size_bytes,
            // The protocol makes members equal by sectors.
            block_bytes: replica::wire::SECTOR_BYTES as u32,
            // Told by the record, once this member serves.
            incarnation: Incarnation::default(),
            topology: Topology::default(),
            ..own.clone()
        };
        let shared = FrontShared {
            size: Size::new(info.size_bytes),
            info: Mutex::new(info),
            term: AtomicU64::new(0),
            fresh: Mutex::new(Some(Vec::new())),
            has_fresh: AtomicBool::new(false),
            home,
        };
        Self { shared: Arc::new(shared) }
    }

    pub(crate) fn shared(&self) -> &Arc<FrontShared> {
        &self.shared
    }
}

impl FrontShared {
    /// The volume as its users have it now.
    fn info(&self) -> VolumeInfo {
        VolumeInfo { size_bytes: self.size.get(), ..self.info.lock().clone() }
    }

    /// The size that users have.
    pub(crate) fn size(&self) -> &Size {
        &self.size
    }

    /// A term begins, under this incarnation of the volume.
    pub(crate) fn begin_term(&self, term: u64, incarnation: Incarnation) {
        self.info.lock().incarnation = incarnation;
        self.term.store(term, SeqCst);
    }

    pub(crate) fn end_term(&self) {
        self.term.store(0, SeqCst);
    }

    pub(crate) fn wake_home(&self) {
        self.home.wake();
    }
}

impl Volume for FrontVolume {
    fn info(&self) -> VolumeInfo {
        self.shared.info()
    }

    fn size(&self) -> Size {
        self.shared.size.clone()
    }

    fn open(&self, open: &OpenArguments<'_>) -> Result<Box<dyn Channel>, OpenError> {
        let waker = open.services.get::<Waker>();
        let waker = waker.map_or_else(Waker::none, |waker| waker.borrow().clone());
        let depth = usize::from(open.depth);
        // A slot has one request at a time, so neither mailbox is ever full.
        let (requests, requests_out) = mailbox::channel(depth, self.shared.home.clone());
        let (answers_in, answers) = mailbox::channel(depth, waker.clone());
        let lets_go = Arc::new(AtomicBool::new(false));
        let opened_in = self.shared.term.load(SeqCst);
        let end = FrontEnd {
            requests: requests_out,
            answers: Some(answers_in),
            waker,
            opened_in,
            depth: open.depth,
            lets_go: Arc::clone(&lets_go),
        };
        // Without a host the end goes at once, and the channel ends what it is given.
        if let Some(fresh) = &mut *self.shared.fresh.lock() {
            fresh.push(end);
            self.shared.has_fresh.store(true, SeqCst);
        }
        let shared = Arc::clone(&self.shared);
        let way = channel::FrontWay { requests, answers, lets_go };
        Ok(Box::new(FrontChannel::new(shared, way, opened_in, open.depth)))
    }
}
