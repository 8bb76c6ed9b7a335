//! Requests of the cache's own: blocks that it takes in or gives up. A request of the user may have
//! one, which may outlive it.
//!
//! ```text
//!   a read, or a write          a change that is not kept      room is made
//!         │ remote                     │ remote                     │
//!         ▼                            ▼                            │
//!      Storing ──fault──▶ Discarding ◀─┘◀───────────────────────────┘
//!         │ shown             │ gone
//!         └──────▶ ended ◀────┘
//! ```

use sidecore::{SlotId, Slots};
use virtio::Segment;

use crate::gate::Pass;
use crate::map::Blocks;

/// Room for the data of one request that is kept. Longer requests are not: they are sequential, and
/// would only drive other blocks out.
pub(crate) const BOUNCE_BYTES: usize = 128 << 10;

/// Buffers of a channel. Their pages take memory when they are used first.
const BOUNCES: u16 = 32;

/// Discards that make room, on one channel at once.
pub(crate) const EVICTIONS_MAX: u16 = 8;

/// Where a request of the cache's own is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum WorkPhase {
    /// The user's request is with the remote volume.
    #[default]
    Remote,
    /// Its blocks are being written into the cache.
    Storing,
    /// Its blocks are being discarded in the cache.
    Discarding,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct CacheWork {
    pub(crate) phase: WorkPhase,
    /// The blocks whose busy bits it holds.
    pub(crate) blocks: Blocks,
    /// Of these, the blocks that wait to be discarded.
    pub(crate) left: Blocks,
    /// The blocks that it keeps; no blocks for a request that only gives blocks up.
    pub(crate) kept: Blocks,
    /// The bytes of the kept blocks that it has, by the buffer's offset and the volume's.
    pub(crate) bytes: (usize, u64, u32),
    /// How many blocks have space in the pool on its behalf.
    pub(crate) space: u64,
    /// Blocks that the cache had before, so that they must be discarded unless they are kept.
    pub(crate) was: u64,
    pub(crate) pass: Pass,
    pub(crate) bounce: Option<u16>,
    /// The user's pieces of memory, while the remote volume has the buffer instead.
    pub(crate) guest: Vec<Segment>,
    /// The user's request is a read.
    pub(crate) reads: bool,
    /// Making room: its blocks count as evicted.
    pub(crate) evicts: bool,
}

impl CacheWork {
    /// Makes it ready for another request; keeps the room for pieces.
    fn reset(&mut self) {
        let mut guest = std::mem::take(&mut self.guest);
        guest.clear();
        *self = Self { guest, ..Self::default() };
    }
}

/// The requests of the cache's own of one channel, and their buffers.
#[derive(Debug)]
pub(crate) struct Works {
    all: Slots<CacheWork>,
    memory: Vec<u8>,
    free: Vec<u16>,
}

impl Works {
    /// For a channel of so many requests of the user.
    pub(crate) fn new(depth: u16) -> Self {
        Self {
            all: Slots::new(depth.saturating_add(EVICTIONS_MAX)),
            // Zeroed memory of this size is the system's, which has no pages yet.
            memory: vec![0; usize::from(BOUNCES) * BOUNCE_BYTES],
            free: (0..BOUNCES).rev().collect(),
        }
    }

    pub(crate) fn begin(&mut self) -> Option<SlotId> {
        let id = self.all.take()?;
        self.all[id].reset();
        Some(id)
    }

    pub(crate) fn end(&mut self, id: SlotId) {
        if let Some(bounce) = self.all[id].bounce.take() {
            self.free.push(bounce);
        }
        self.all.free(id);
    }

    pub(crate) fn get(&mut self, id: SlotId) -> &mut CacheWork {
        &mut self.all[id]
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is a buffer for so many bytes.
    pub(crate) fn has_bounce(&self, len_bytes: u32) -> bool {
        len_bytes as usize <= BOUNCE_BYTES && !self.free.is_empty()
    }

    /// Gives a request a buffer; [`Self::has_bounce`] has said that there is one.
    pub(crate) fn take_bounce(&mut self, id: SlotId) {
        self.all[id].bounce = self.free.pop();
    }

    /// A piece of the request's buffer.
    pub(crate) fn piece(&mut self, id: SlotId, at: usize, len: u32) -> Segment {
        let bounce = self.all[id].bounce.expect("the request has a buffer");
        let start = usize::from(bounce) * BOUNCE_BYTES + at;
        let piece = &mut self.memory[start..start + len as usize];
        Segment { addr: piece.as_mut_ptr(), len }
    }
}
