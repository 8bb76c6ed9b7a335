//! How a volume learns that a device of its pool has failed; and the words for a pool without room.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use parking_lot::Mutex;
use store::PoolStatus;

use crate::record::IncarnationNote;

/// The reason why writes to a full pool wait, with the ways out.
pub fn reason_of_full(status: &PoolStatus) -> &'static str {
    match status.no_space {
        true => "the file system or the device beneath it has no space; make room there",
        false => {
            "writes wait until it has room; remove snapshots or volumes, have guests discard \
             (fstrim), or make it larger (vrio pool grow)"
        }
    }
}

/// The signs that a pool gives its volumes.
#[derive(Debug, Default)]
pub(super) struct VolumeSigns {
    failed: AtomicBool,
    /// Where a failure is noted for the next process.
    note: Mutex<Option<IncarnationNote>>,
}

impl VolumeSigns {
    /// A device of the pool failed: acknowledged writes may be lost.
    pub(super) fn fail(&self, pool: &str) {
        if self.failed.swap(true, SeqCst) {
            return;
        }
        let spoiled = self.note.lock().as_ref().map_or(Ok(()), IncarnationNote::spoil);
        if let Err(error) = spoiled {
            tracing::warn!(pool, %error, "the note of the pool's failure cannot be written");
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(SeqCst)
    }

    pub(super) fn note_in(&self, note: IncarnationNote) {
        *self.note.lock() = Some(note);
    }
}
