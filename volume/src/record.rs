//! The server's durable memory of an attachment: one small record, written at each claim and close.
//!
//! It is what keeps the promise when the *client* is lost: a guest that resumes under another
//! incarnation, after an end that was not clean, may miss writes that it was told of.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::name::Name;
use crate::volume::Incarnation;
use peer::AttachmentKey;

mod file;
mod home;
mod plain;
mod sealed;

pub use file::{FileRecords, FirstWriteStep, IncarnationNote, RecordWriter, file_name};
pub use home::{create_private, make_private};

/// The record of one attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Record {
    /// The last epoch that was issued. Epochs grow over all attachments of a volume.
    pub epoch: u64,
    /// The claimant of that epoch.
    pub claimant: u64,
    /// The volume's incarnation at that claim.
    pub incarnation: Incarnation,
    /// Closed, with everything acknowledged made durable first.
    pub clean: bool,
    /// Claimants that a later one has replaced, the last one first; 0 for none. Without it a claim
    /// that was under way for long could take the attachment back from a successor.
    pub replaced: [u64; REPLACED_MAX],
    /// The epoch of the claim by which the present guest started afresh. A guest that resumes from
    /// an older epoch has not seen what this one wrote. 0: not known.
    pub born: u64,
    /// The node that claimed it; unknown in records of older programs.
    pub node: Name,
    /// The attachment key that was proved for that claim.
    pub key: Option<AttachmentKey>,
}

/// The most attachments that a volume remembers: names come from peers, memory must not.
pub const ATTACHMENTS_MAX: usize = 1024;

/// Bytes of a record in [`Record::to_bytes`].
pub const RECORD_BYTES: usize = size_of::<sealed::RecordBody>();

/// Replaced claimants that are remembered: a client that comes back later than so many successors
/// has long been given up.
pub const REPLACED_MAX: usize = 8;

impl Record {
    /// The record as bytes, without a code: for places where no other program writes.
    pub fn to_bytes(&self) -> [u8; RECORD_BYTES] {
        zerocopy::transmute!(sealed::RecordBody::from(self))
    }

    /// The record of bytes that [`Self::to_bytes`] gave; `None` for any other bytes.
    pub fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let body: sealed::RecordBody = zerocopy::transmute!(*bytes);
        let record = body.record();
        (record.to_bytes() == *bytes).then_some(record)
    }

    /// Whether the claimant was replaced.
    pub fn has_replaced(&self, claimant: u64) -> bool {
        claimant != 0 && self.replaced.contains(&claimant)
    }

    /// The list after a claim by `claimant`, which is not in it: an operator may have said that it
    /// goes on all the same.
    pub fn replaced_by(&self, claimant: u64) -> [u64; REPLACED_MAX] {
        let mut replaced = self.replaced.map(|it| if it == claimant { 0 } else { it });
        if self.claimant != 0 && self.claimant != claimant {
            replaced.rotate_right(1);
            replaced[0] = self.claimant;
        }
        replaced
    }
}

/// Why a record could not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("attachment record {path}: {reason}")]
pub struct RecordError {
    /// The file.
    pub path: String,
    /// The system's answer.
    pub reason: String,
}

/// The end of a write that was begun with [`RecordStore::write`].
#[derive(Clone, Default)]
pub struct Ticket(Arc<Mutex<Option<Result<(), RecordError>>>>);

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ticket").field(&self.result()).finish()
    }
}

impl Ticket {
    /// A write that has not ended.
    pub fn new() -> Self {
        Self::default()
    }

    /// One that ended like this at once.
    pub fn ended(result: Result<(), RecordError>) -> Self {
        let ticket = Self::new();
        ticket.end(result);
        ticket
    }

    /// How it ended; `None` while it goes on.
    pub fn result(&self) -> Option<Result<(), RecordError>> {
        self.0.lock().clone()
    }

    /// Ends it; for implementations of [`RecordStore`].
    pub fn end(&self, result: Result<(), RecordError>) {
        *self.0.lock() = Some(result);
    }
}

/// Keeps the records of one volume. Writes are durable in the order in which they were begun.
pub trait RecordStore: Send + Sync + fmt::Debug {
    /// All records of the volume, by attachment name. Called once, before the volume is served.
    ///
    /// # Errors
    /// When the store cannot be read, or a record is damaged.
    fn load(&self) -> Result<HashMap<String, Record>, RecordError>;

    /// One of them.
    ///
    /// # Errors
    /// As [`Self::load`], but of no other record.
    fn find(&self, attachment: &str) -> Result<Option<Record>, RecordError> {
        Ok(self.load()?.remove(attachment))
    }

    /// Begins a durable write; never blocks.
    fn write(&self, attachment: &str, record: Record) -> Ticket;

    /// The most attachments that it has room for.
    fn attachments_max(&self) -> usize {
        ATTACHMENTS_MAX
    }

    /// The last epoch of any record that was forgotten.
    ///
    /// # Errors
    /// As [`Self::load`].
    fn floor(&self) -> Result<u64, RecordError> {
        Ok(0)
    }

    /// Begins to forget records, none of which has an epoch beyond `floor`; never blocks. The floor
    /// is durable before any of them goes.
    fn forget(&self, attachments: &[String], floor: u64) -> Ticket {
        let _ = (attachments, floor);
        Ticket::ended(Ok(()))
    }
}

/// Remembers for one process what another one has handed over: for volumes that have no place for
/// records, but outlive a process in that way.
#[derive(Clone, Debug, Default)]
pub struct KeptRecords(pub HashMap<String, Record>);

impl RecordStore for KeptRecords {
    fn load(&self) -> Result<HashMap<String, Record>, RecordError> {
        Ok(self.0.clone())
    }

    fn write(&self, attachment: &str, record: Record) -> Ticket {
        NoRecords.write(attachment, record)
    }
}

/// Remembers nothing: for volumes that do not outlive the process, where there is no place for
/// records. Without one a guest that resumes is told that its writes are gone, which they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRecords;

impl RecordStore for NoRecords {
    fn load(&self) -> Result<HashMap<String, Record>, RecordError> {
        Ok(HashMap::new())
    }

    fn write(&self, _attachment: &str, _record: Record) -> Ticket {
        let ticket = Ticket::new();
        ticket.end(Ok(()));
        ticket
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_from_its_bytes_and_other_bytes_are_none() {
        let record = Record {
            epoch: 7,
            claimant: u64::MAX,
            incarnation: Incarnation([3; 16]),
            clean: true,
            replaced: [1, 2, 3, 0, 0, 0, 0, 9],
            born: 5,
            node: Name::new("vm1"),
            key: Some(AttachmentKey([4; 32])),
        };
        for record in [record, Record::default()] {
            assert_eq!(Record::from_bytes(&record.to_bytes()), Some(record));
        }
        // Each record has one form: bytes that mean the same are none.
        let bytes = record.to_bytes();
        let changed = (0..RECORD_BYTES * 8).filter(|bit| {
            let mut other = bytes;
            other[bit / 8] ^= 1 << (bit % 8);
            Record::from_bytes(&other).is_some_and(|it| it == record)
        });
        assert_eq!(changed.count(), 0);
        let mut flag = Record::default().to_bytes();
        let clean_at = 8 + 8 + 16 + 8 * REPLACED_MAX;
        flag[clean_at] = 2;
        assert_eq!(Record::from_bytes(&flag), None, "a flag is 0 or 1");
    }
}
