//! The contract of a volume, which is behind each disk.
//!
//! A [`Volume`] is shared between threads and only describes. It opens one [`Channel`] per user and
//! sidecore, and the channel does the work. A channel never blocks and gives exactly one completion
//! per submission. Every wrapper of a volume (a stage, a limit, a remote end) implements the same
//! two traits, so a disk cannot tell where its blocks are.
//!
//! Requests are slots of an [`IoTable`] that is made with the channel's user: nothing is allocated
//! per request, and the slot has fixed room for each stage of the longest allowed chain.

use std::fmt;

use sidecore::{Progress, Services, SlotId, Slots, Wake};
use virtio::Segment;

use crate::size::Size;

/// A virtio-blk sector: the unit of addresses on the ring, also where blocks are larger.
pub const SECTOR_BYTES: u64 = 512;

/// The largest request that a channel is handed; the transport's largest message.
pub const IO_BYTES_MAX: u32 = 1 << 20;

/// The longest range of one [`Op::Discard`] or [`Op::WriteZeroes`]: a backend that has to touch
/// each page of it is done in some milliseconds, so other guests' requests wait no longer.
pub const RANGE_BYTES_MAX: u32 = 16 << 20;

/// The most pieces of guest memory in one request: virtio-blk's `seg_max` that we offer, with one
/// page of slack at either end because a guest may cut its buffers anywhere.
pub const SEGMENTS_MAX: usize = 256;

/// The longest chain of stages. Each stage of a chain has one word in every slot.
pub const STAGES_MAX: usize = 8;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Op {
    /// Fill the segments from the volume.
    #[default]
    Read,
    /// Put the segments onto the volume.
    Write,
    /// Make every write that completed before this was submitted durable, whichever channel
    /// carried it.
    Flush,
    /// Forget a range: it reads as zeroes from then on, and the storage may have its space back.
    /// As durable as a write.
    Discard,
    /// Zeroes onto a range, which keeps its space. As durable as a write.
    WriteZeroes,
}

impl Op {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Read, Self::Write, Self::Flush, Self::Discard, Self::WriteZeroes];

    /// Whether it is about a range and has no data: one that is zeroed.
    pub fn zeroes(self) -> bool {
        matches!(self, Self::Discard | Self::WriteZeroes)
    }

    /// Whether bytes go between its segments and the volume.
    pub fn moves_data(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }

    /// Whether it changes the volume: the promise about completed writes covers it.
    pub fn changes(self) -> bool {
        self == Self::Write || self.zeroes()
    }

    /// The longest request of its kind.
    pub fn bytes_max(self) -> u32 {
        if self.zeroes() { RANGE_BYTES_MAX } else { IO_BYTES_MAX }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Status {
    /// Not ended yet.
    #[default]
    Pending,
    /// Done in full.
    Done,
    /// The storage failed; the guest sees VIRTIO_BLK_S_IOERR.
    Error,
    /// The request makes no sense for this volume (beyond the end, a write to a read-only one);
    /// the guest sees VIRTIO_BLK_S_IOERR, and the volume is unharmed.
    Invalid,
    /// The volume cannot do this at all; the guest sees VIRTIO_BLK_S_UNSUPP.
    Unsupported,
    /// The attachment's epoch was lost to a successor: the request must not be completed to the
    /// guest at all, and its rings must not be touched again.
    Fenced,
}

/// One request. Fields are set by the channel's user before `submit`, and `status` by the channel.
#[derive(Debug, Default)]
pub struct Io {
    /// The operation.
    pub op: Op,
    /// First byte on the volume.
    pub offset_bytes: u64,
    /// Length; the segments' total, where the request has data. Zero for a flush.
    pub len_bytes: u32,
    /// A write (a discard, zeroes) that must be durable when it completes.
    pub durable: bool,
    /// Guest (or staging) memory. Kept valid by the user until the completion.
    pub segments: Vec<Segment>,
    /// The segments are memory of the caller alone: no byte in them belongs to another owner.
    pub own_memory: bool,
    /// How it ended.
    pub status: Status,
    /// The user's own mark, for instance the queue and the descriptor head.
    pub owner: u64,
    /// When it was submitted, for latency.
    pub submitted_ns: u64,
    /// One word per stage of the chain, by the stage's depth.
    pub scratch: [u64; STAGES_MAX],
}

impl Io {
    /// Makes the slot ready for a new request; keeps the room for segments.
    pub fn reset(&mut self) {
        self.segments.clear();
        self.op = Op::Read;
        self.offset_bytes = 0;
        self.len_bytes = 0;
        self.durable = false;
        self.own_memory = false;
        self.status = Status::Pending;
        self.owner = 0;
        self.submitted_ns = 0;
        self.scratch = [0; STAGES_MAX];
    }
}

/// A slot of an [`IoTable`].
pub type IoId = SlotId;

/// The requests of one channel's user. Room for segments grows with use and is kept, so a warm
/// table allocates nothing.
pub type IoTable = Slots<Io>;

/// Makes a table for `capacity` requests at once.
pub fn io_table(capacity: u16) -> IoTable {
    Slots::new(capacity)
}

/// The failures that completed writes survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// virtio's default: a completed flush makes all earlier completed writes durable.
    #[default]
    Flush,
    /// Each write is durable when it completes.
    WriteThrough,
}

/// Names the stretch of time in which acknowledged but unflushed writes cannot be lost: the host's
/// boot for files, the process for memory. Whenever it changes, they may be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Incarnation(pub [u8; 16]);

impl Incarnation {
    /// The incarnation that these parts name together: other parts name another incarnation.
    pub fn digest(parts: &[&[u8]]) -> Self {
        let mut text = Vec::new();
        for part in parts {
            // Lengths first, so that no two lists of parts are the same bytes.
            text.extend((part.len() as u64).to_le_bytes());
            text.extend_from_slice(part);
        }
        let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &text);
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.as_ref()[..16]);
        Self(bytes)
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..6].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Which ranges a volume can zero without being sent zeroes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Zeroing {
    /// [`Op::Discard`].
    pub discard: bool,
    /// [`Op::WriteZeroes`].
    pub write_zeroes: bool,
    /// Space is given back in pieces of this size, at multiples of it; 0 is the volume's blocks.
    pub unit_bytes: u32,
}

impl Zeroing {
    /// Everything, in blocks.
    pub const ALL: Self = Self { discard: true, write_zeroes: true, unit_bytes: 0 };

    /// Whether it can do this request's kind.
    pub fn can(&self, op: Op) -> bool {
        match op {
            Op::Discard => self.discard,
            Op::WriteZeroes => self.write_zeroes,
            Op::Read | Op::Write | Op::Flush => true,
        }
    }
}

/// The largest [`Topology::physical_bytes`]: network file systems name what they like to be sent
/// at once, which is no block.
pub const PHYSICAL_BYTES_MAX: u32 = 64 << 10;

/// The longest [`Topology::optimal_bytes`], and far more than any storage names.
pub const OPTIMAL_BYTES_MAX: u32 = 1 << 30;

/// Advice to guests on how to lay their data out. Nothing depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// The length that the storage writes as a whole; 0 is the volume's blocks.
    pub physical_bytes: u32,
    /// The length that the storage does best with; 0 is any.
    pub optimal_bytes: u32,
}

/// The properties of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Size; a multiple of `block_bytes`.
    pub size_bytes: u64,
    /// The smallest unit that is written without reading: 512 or 4096. Offsets and lengths of
    /// requests are multiples of it.
    pub block_bytes: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// The failures that a completed write survives.
    pub durability: Durability,
    /// Nothing at all survives a new incarnation (memory): a client that ever wrote fails.
    pub volatile: bool,
    /// The present incarnation.
    pub incarnation: Incarnation,
    /// Which ranges it zeroes; nothing of it where writes are refused.
    pub zeroing: Zeroing,
    /// How its storage is laid out.
    pub topology: Topology,
}

impl VolumeInfo {
    /// Whether something is whole blocks long, or begins at one; also whether two things are or do,
    /// given the bits of both.
    #[inline]
    pub fn is_whole(&self, bytes: u64) -> bool {
        debug_assert!(self.block_bytes.is_power_of_two());
        // Not a division, of which there would be some in every request.
        bytes & (u64::from(self.block_bytes) - 1) == 0
    }

    /// Whether a request makes sense for this volume: whole blocks, inside it, not longer than
    /// [`Op::bytes_max`], and no change of a read-only one. If not, it ends as
    /// [`Status::Invalid`].
    pub fn admits(&self, io: &Io) -> bool {
        self.admits_within(self.size_bytes, io)
    }

    /// The same for a volume whose size is this by now.
    pub fn admits_within(&self, size_bytes: u64, io: &Io) -> bool {
        debug_assert_eq!(
            io.segments.iter().map(|segment| u64::from(segment.len)).sum::<u64>(),
            if io.op.zeroes() { 0 } else { u64::from(io.len_bytes) },
            "the segments are the request's buffer"
        );
        if io.op == Op::Flush {
            return true;
        }
        let len = u64::from(io.len_bytes);
        let end = io.offset_bytes.checked_add(len);
        self.is_whole(io.offset_bytes | len)
            && len <= u64::from(io.op.bytes_max())
            && end.is_some_and(|end| end <= size_bytes)
            && !(io.op.changes() && self.read_only)
    }
}

/// Why a channel could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The sidecore lacks a service that the volume needs (an io_uring, an endpoint).
    #[error("this sidecore has no {0}; it was started without one")]
    NoService(&'static str),
    /// The system refused.
    #[error("{what}: {source}")]
    Io {
        /// The step that failed, with the file's name.
        what: String,
        /// The system's answer.
        r#source: std::io::Error,
    },
}

/// The arguments with which a channel is opened.
#[derive(Clone, Copy, Debug)]
pub struct OpenArguments<'a> {
    /// The services of this sidecore: its io_uring, its endpoint.
    pub services: &'a Services,
    /// How many requests may be outstanding: the capacity of the user's table.
    pub depth: u16,
}

/// Block storage, plain or wrapped. A disk is on a `block::Attach`.
pub trait Volume: Send + Sync + fmt::Debug {
    /// The properties as they are now. Cheap; may be called on a sidecore.
    fn info(&self) -> VolumeInfo;

    /// Its size, which callers keep and read again when the volume grows. A volume over
    /// another volume gives the inner volume's; a volume that never changes gives a [`Size::new`].
    fn size(&self) -> Size;

    /// Opens a channel for one user on the calling sidecore.
    ///
    /// # Errors
    /// When the sidecore lacks what the volume needs, or the system refuses.
    fn open(&self, open: &OpenArguments<'_>) -> Result<Box<dyn Channel>, OpenError>;
}

/// One user's way to a volume from one sidecore. Not `Send`: it lives where it was opened.
///
/// No method has a default: a channel over another one has to hand each of them on, and what it
/// forgot would only be seen when a sidecore sleeps, a queue moves or a chain is replaced.
pub trait Channel: fmt::Debug {
    /// Takes a request whose fields are set. Never blocks, never fails: an error is a completion.
    /// The slot belongs to the channel until `poll` hands the id back.
    fn submit(&mut self, ios: &mut IoTable, id: IoId);

    /// Moves things on and appends the ids of finished requests, whose `status` is set, to `done`.
    /// `done` has room for the whole table.
    fn poll(&mut self, ios: &mut IoTable, now_ns: u64, done: &mut Vec<IoId>) -> Progress;

    /// Before the sidecore sleeps: say what to wake for. `Busy` means do not sleep.
    fn arm(&mut self, wake: &mut Wake) -> Progress;

    /// After the sidecore slept.
    fn disarm(&mut self);

    /// Whether what is submitted now goes on to the blocks, and does not wait for an epoch, a
    /// session or another chain. A queue is moved only from one such channel to another.
    fn is_open(&self) -> bool;

    /// Gives back what was submitted and not begun, oldest first: a queue of its own, such as a
    /// limit's. The slots are the user's again, as if they had never been submitted. Anything that
    /// the channel cannot be sure about it keeps, and completes.
    fn recall(&mut self, ios: &mut IoTable, back: &mut Vec<IoId>);

    /// Lets go: afterwards the channel touches neither the volume nor any segment on behalf of
    /// requests that are still outstanding. `true` when that could be promised at once (nothing
    /// outstanding, or all of it elsewhere); `false` when the caller must go on polling (a local
    /// kernel still owns the buffers). Called again, once a round, until it is `true`; where the
    /// attachment was closed, its clean end is part of it.
    fn abandon(&mut self, ios: &mut IoTable, now_ns: u64) -> bool;
}
