//! The number of the last round, and where it is kept outside of the pool.
//!
//! ```text
//!   a round shall begin ──▶ the pool has number N ──▶ this node's memory has N ──▶ first write
//!   a round has ended   ──▶ the same with N + 1, and no round waits for it
//! ```
//!
//! So a pool whose number is below the memory's number is an older copy that was put back: the
//! remote volume has newer content. A pool is one ahead of the memory after a kill between the two.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use volume::record::{Record, RecordError, RecordStore, Ticket};

/// Where the number is kept outside of the pool, for one disk.
pub struct RoundNotes {
    store: Option<Arc<dyn RecordStore>>,
    key: String,
    last: Mutex<u64>,
}

impl fmt::Debug for RoundNotes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoundNotes").field("last", &self.last()).finish_non_exhaustive()
    }
}

/// The name of the record beside the records of attachments, whose names have no space.
fn key_of(attachment: &str) -> String {
    format!("{attachment} write-back")
}

impl RoundNotes {
    /// The notes of an attachment among these records.
    ///
    /// # Errors
    /// Why the record cannot be read, and the way out.
    pub fn load(store: Arc<dyn RecordStore>, attachment: &str) -> Result<Arc<Self>, RecordError> {
        let key = key_of(attachment);
        let record = store.find(&key)?.unwrap_or_default();
        Ok(Arc::new(Self { store: Some(store), key, last: Mutex::new(record.epoch) }))
    }

    /// For a node that has no place for notes: an older copy of its pool is not noticed.
    pub fn nowhere() -> Arc<Self> {
        Arc::new(Self { store: None, key: String::new(), last: Mutex::default() })
    }

    /// Whether there is a place for notes.
    pub(super) fn are_kept(&self) -> bool {
        self.store.is_some()
    }

    /// The last number.
    pub fn last(&self) -> u64 {
        *self.last.lock()
    }

    /// Begins to write a number durably.
    pub(super) fn write(&self, number: u64) -> Option<Ticket> {
        let store = self.store.as_ref()?;
        *self.last.lock() = number;
        Some(store.write(&self.key, Record { epoch: number, ..Record::default() }))
    }
}
