//! The record of a node's own attachment, which outlives the node's processes: the claimant under
//! which it claims, the last epoch that it held, and whether it has let go of the attachment.
//!
//! A guest outlives the process that serves its disk, and resumes with the next process. That
//! process must show the server that it serves the same guest as the last holder did. Otherwise the
//! server could not tell the present user of the volume from a guest that was replaced long ago and
//! only wakes now. The claimant is durable before a claim is sent under it, so it suffices by
//! itself. Later facts (the epoch, the release) may be lost with the process.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use volume::Incarnation;
use volume::record::{Record, RecordError, RecordStore, Ticket};

/// See the module.
#[derive(Debug)]
pub struct Remembered {
    name: String,
    store: Arc<dyn RecordStore>,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    record: Record,
    /// Of the write that a claim waits for.
    ticket: Option<Ticket>,
}

impl Remembered {
    /// The record of the attachment `name` in `store`. A record that cannot be read counts as none:
    /// a guest that resumes is then admitted only where its volume has no other holder.
    pub fn load(name: &str, store: Arc<dyn RecordStore>) -> Arc<Self> {
        let record = match store.find(name) {
            Ok(record) => record.unwrap_or_default(),
            Err(error) => {
                tracing::warn!(
                    attachment = name,
                    %error,
                    "this node has no record of how it held the volume last"
                );
                Record::default()
            }
        };
        let last = Mutex::new(Last { record, ticket: None });
        Arc::new(Self { name: name.to_owned(), store, last })
    }

    /// A guest starts, or resumes: the claimant to claim under, and the last epoch that this node
    /// held. `before` is the claimant of an earlier start for the same front end, `drawn` a new
    /// one.
    pub fn begin(&self, resume: bool, before: Option<u64>, drawn: u64) -> (u64, u64) {
        let mut last = self.last();
        let Record { claimant, epoch, clean, .. } = last.record;
        let is_held = claimant != 0 && !clean;
        if resume && is_held && before.is_none_or(|before| before == claimant) {
            return (claimant, epoch);
        }
        let claimant = before.filter(|_| resume).unwrap_or(drawn);
        last.record = Record { claimant, clean: false, ..last.record };
        last.ticket = Some(self.store.write(&self.name, last.record));
        (claimant, epoch)
    }

    /// Whether the claimant that [`Self::begin`] gave is durable; `None` while it is written.
    /// After an error the next call writes it again.
    pub fn is_durable(&self) -> Option<Result<(), RecordError>> {
        let mut last = self.last();
        let result = last.ticket.as_ref().map_or(Some(Ok(())), Ticket::result)?;
        last.ticket = match &result {
            Ok(()) => None,
            Err(_) => Some(self.store.write(&self.name, last.record)),
        };
        Some(result)
    }

    /// A claim was granted.
    pub(super) fn held(&self, claimant: u64, epoch: u64, incarnation: Incarnation) {
        self.note(claimant, epoch, incarnation, false);
    }

    /// A close was answered.
    pub(super) fn released(&self, claimant: u64, epoch: u64, incarnation: Incarnation) {
        // A start that came meanwhile has written its own claimant.
        if self.last().record.claimant == claimant {
            self.note(claimant, epoch, incarnation, true);
        }
    }

    /// No caller waits for this: see the module.
    fn note(&self, claimant: u64, epoch: u64, incarnation: Incarnation, clean: bool) {
        let mut last = self.last();
        last.record = Record { claimant, epoch, incarnation, clean, ..last.record };
        let _ = self.store.write(&self.name, last.record);
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        // Nothing that holds this lock can leave it half-told.
        self.last.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use volume::record::{KeptRecords, NoRecords};

    fn fresh() -> Arc<Remembered> {
        Remembered::load("a", Arc::new(NoRecords))
    }

    /// The next process of the node.
    fn next(it: &Remembered) -> Arc<Remembered> {
        let kept = KeptRecords([("a".to_owned(), it.last().record)].into());
        Remembered::load("a", Arc::new(kept))
    }

    #[test]
    fn a_guest_that_resumes_here_goes_on_as_it_was() {
        let it = fresh();
        assert_eq!(it.begin(true, None, 1), (1, 0), "a guest that came from elsewhere");
        let it = next(&it);
        assert_eq!(it.begin(true, None, 2), (1, 0), "no epoch was noted, and none is needed");
        it.held(1, 7, Incarnation::default());
        let it = next(&it);
        assert_eq!(it.begin(true, None, 3), (1, 7));
        assert_eq!(it.begin(false, None, 4), (4, 7), "a guest that starts afresh is another one");
        assert_eq!(next(&it).begin(true, None, 5), (4, 7));
    }

    #[test]
    fn a_released_attachment_is_claimed_by_another_claimant() {
        let it = fresh();
        it.begin(false, None, 1);
        it.held(1, 7, Incarnation::default());
        it.released(1, 7, Incarnation::default());
        let it = next(&it);
        assert_eq!(it.begin(true, Some(1), 2), (1, 7), "for the same front end it is the same");
        it.released(1, 7, Incarnation::default());
        assert_eq!(it.begin(true, None, 3), (3, 7));
        it.released(1, 7, Incarnation::default());
        assert_eq!(next(&it).begin(true, None, 4), (3, 7), "that close came late");
    }
}
