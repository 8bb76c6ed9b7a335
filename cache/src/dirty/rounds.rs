//! The number of the last round, and where it is kept outside of the pool.
//!
//! ```text
//!   a guest comes       ──▶ the pool has number N ──▶ this node's memory has N and the mark
//!                           ──▶ blocks become dirty
//!   a round shall begin ──▶ the same with N + 1 ──▶ first write
//!   a round has ended   ──▶ the same with N + 2, and no round waits for it
//!   all is written back, and the guest has gone ──▶ N + 3, without the mark
//! ```
//!
//! So a pool whose number is below the memory's number is not the pool that was there last: it was
//! made anew, or is an older copy that was put back, and the remote volume has newer content. With
//! the mark the right pool may have dirty blocks. A pool is one ahead of the memory after a kill
//! between the two, and further ahead after more of them in a row.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use volume::record::{Record, RecordError, RecordStore, Ticket};

/// How long a caller waits for a note.
const NOTE_TIME_MAX: Duration = Duration::from_secs(10);

/// How often that is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// How far a number without the mark is above the last one, if the pool did not get it as well. A
/// pool that is away may be ahead of the memory by one for each kill between the two notes.
const FORGET_STEP: u64 = 1 << 20;

/// A note.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RoundNote {
    number: u64,
    /// The pool may have dirty blocks.
    is_marked: bool,
}

/// Where the number is kept outside of the pool, for one disk.
pub struct RoundNotes {
    store: Option<Arc<dyn RecordStore>>,
    key: String,
    last: Mutex<RoundNote>,
    /// The notes of volumes of the same name by other lists of peers, by the volume as a disk names
    /// it.
    kin: Vec<(String, Arc<dyn RecordStore>)>,
}

/// A note of this node about the same remote volume by another attachment, or another list of
/// peers.
#[derive(Debug)]
pub(crate) struct OtherNote {
    /// The remote volume as that disk named it.
    pub(crate) volume: String,
    pub(crate) attachment: String,
    note: RoundNote,
    /// Of the same attachment by another list of peers: no other disk can have it now.
    is_former: bool,
    store: Arc<dyn RecordStore>,
}

impl OtherNote {
    /// Whether the pool that was there last may have dirty blocks.
    pub(crate) fn is_marked(&self) -> bool {
        self.note.is_marked
    }

    /// Whether a pool with this number is not the pool that was there last.
    pub(crate) fn is_missing(&self, number: u64) -> bool {
        number < self.note.number
    }

    /// Takes the mark away for a disk that goes on with another list of peers: the right pool is
    /// open, and has nothing of it.
    pub(crate) fn forget_former(&self) -> Result<(), String> {
        if !(self.is_former && self.is_marked()) {
            return Ok(());
        }
        let notes = RoundNotes::load(Arc::clone(&self.store), &self.attachment, Vec::new());
        notes.map_err(|error| error.to_string())?.forget_mark()
    }
}

impl fmt::Debug for RoundNotes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoundNotes").field("last", &*self.last.lock()).finish_non_exhaustive()
    }
}

/// The end of the name of the record beside the records of attachments, whose names have no space.
const KEY_END: &str = " write-back";

fn key_of(attachment: &str) -> String {
    format!("{attachment}{KEY_END}")
}

/// Stands for the list of peers of a volume that a cluster has placed: the nodes change, and the
/// volume stays the same. It is no name of a peer.
pub const ANY_PEERS: &str = "*";

/// A volume as an operator names it.
pub(crate) fn as_written(volume: &str) -> &str {
    volume.strip_prefix(ANY_PEERS).and_then(|it| it.strip_prefix('/')).unwrap_or(volume)
}

/// Whether two lists of peers with a volume, as disks name it, have a peer in common.
fn has_common_peer(one: &str, other: &str) -> bool {
    let peers = |text: &str| text.split('/').next().unwrap_or_default().to_owned();
    let (ours, theirs) = (peers(one), peers(other));
    if ours == ANY_PEERS || theirs == ANY_PEERS {
        return true;
    }
    ours.split(',').any(|peer| theirs.split(',').any(|it| it == peer))
}

/// Notes of older programs have 0 there: no mark.
fn note_of(record: &Record) -> RoundNote {
    RoundNote { number: record.epoch, is_marked: record.born != 0 }
}

impl RoundNotes {
    /// The notes of an attachment among these records. `kin` are the records of volumes of the same
    /// name by other lists of peers, by the volume as a disk names it.
    ///
    /// # Errors
    /// Why the record cannot be read, and the way out.
    pub fn load(
        store: Arc<dyn RecordStore>,
        attachment: &str,
        kin: Vec<(String, Arc<dyn RecordStore>)>,
    ) -> Result<Arc<Self>, RecordError> {
        let key = key_of(attachment);
        let last = Mutex::new(note_of(&store.find(&key)?.unwrap_or_default()));
        Ok(Arc::new(Self { store: Some(store), key, last, kin }))
    }

    /// The notes that may be about the same volume, and are other notes: of lists that have a peer
    /// in common, and of this attachment. `volume` is the volume as the disk of these names it.
    pub(crate) fn others(&self, volume: &str) -> Result<Vec<OtherNote>, RecordError> {
        let mut found = Vec::new();
        let own = self.store.iter().map(|store| (volume, store));
        for (of, store) in own.chain(self.kin.iter().map(|(of, store)| (of.as_str(), store))) {
            for (key, record) in store.load()? {
                let Some(attachment) = key.strip_suffix(KEY_END) else { continue };
                let (is_same, is_common) = (key == self.key, has_common_peer(of, volume));
                if (of == volume && is_same) || !(is_same || is_common) {
                    continue;
                }
                found.push(OtherNote {
                    volume: of.to_owned(),
                    attachment: attachment.to_owned(),
                    note: note_of(&record),
                    is_former: is_same && is_common,
                    store: Arc::clone(store),
                });
            }
        }
        Ok(found)
    }

    /// For a node that has no place for notes: an older copy of its pool is not noticed.
    pub fn nowhere() -> Arc<Self> {
        Arc::new(Self { store: None, key: String::new(), last: Mutex::default(), kin: Vec::new() })
    }

    /// Whether there is a place for notes.
    pub(super) fn are_kept(&self) -> bool {
        self.store.is_some()
    }

    /// The last number.
    pub fn last(&self) -> u64 {
        self.last.lock().number
    }

    /// Whether the pool that was there last may have dirty blocks.
    pub fn is_marked(&self) -> bool {
        self.last.lock().is_marked
    }

    /// Whether a pool with this number lacks writes that only the right pool has.
    pub fn is_missing(&self, number: u64) -> bool {
        let last = self.last.lock();
        last.is_marked && number < last.number
    }

    /// Begins to write a number durably, with or without the mark.
    pub(super) fn write(&self, number: u64, is_marked: bool) -> Option<Ticket> {
        let store = self.store.as_ref()?;
        let mut last = self.last.lock();
        *last = RoundNote { number, is_marked };
        let born = u64::from(is_marked);
        // With the lock held, so that the store has the notes in their order.
        Some(store.write(&self.key, Record { epoch: number, born, ..Record::default() }))
    }

    /// Takes the mark away, and waits until that is durable: the dirty blocks were given up, or
    /// there are none. A pool that comes back is an older one then: its guest may have gone on
    /// without it, and that guest's writes are newer.
    ///
    /// # Errors
    /// Why the mark is still there.
    pub fn forget_mark(&self) -> Result<(), String> {
        let before = *self.last.lock();
        let number = before.number.saturating_add(FORGET_STEP);
        let ticket = if before.is_marked { self.write(number, false) } else { None };
        let Some(ticket) = ticket else { return Ok(()) };
        let until = Instant::now() + NOTE_TIME_MAX;
        let ended = loop {
            match ticket.result() {
                Some(ended) => break ended.map_err(|error| error.to_string()),
                None if Instant::now() >= until => break Err("it takes too long".to_owned()),
                None => std::thread::sleep(LOOK_AGAIN),
            }
        };
        ended.inspect_err(|_| *self.last.lock() = before)
    }
}

/// Whether the memory has the mark, as sidecores see it: no block becomes dirty without it. Only
/// the keeper's thread changes that; other threads wish for it.
#[derive(Debug)]
pub(super) struct DirtyMark {
    is_there: AtomicBool,
    wish: AtomicU8,
}

/// The mark stays as it is.
const AS_IT_IS: u8 = 0;
/// Blocks shall become dirty.
const SET: u8 = 1;
/// All was written back, and no guest is there.
const CLEARED: u8 = 2;

impl DirtyMark {
    /// A node without a place for notes goes on without marks.
    pub(super) fn new(are_kept: bool) -> Self {
        Self { is_there: AtomicBool::new(!are_kept), wish: AtomicU8::new(AS_IT_IS) }
    }

    #[inline]
    pub(super) fn is_there(&self) -> bool {
        self.is_there.load(SeqCst)
    }

    /// Gives whether the wish is new.
    pub(super) fn wish(&self, is_set: bool) -> bool {
        let wish = if is_set { SET } else { CLEARED };
        self.wish.swap(wish, SeqCst) != wish
    }

    /// Whether the next note must differ from the last one. A wish can come while a note is on its
    /// way whose number is already the wanted one.
    pub(super) fn is_wished(&self) -> bool {
        self.wish.load(SeqCst) != AS_IT_IS
    }

    /// Whether the next note has the mark. `is_clean` is asked when no block can become dirty any
    /// more.
    pub(super) fn next(&self, notes: &RoundNotes, is_clean: impl Fn() -> bool) -> bool {
        match self.wish.swap(AS_IT_IS, SeqCst) {
            SET => true,
            CLEARED => {
                let before = self.is_there.swap(false, SeqCst);
                let is_marked = !is_clean();
                self.is_there.store(before && is_marked, SeqCst);
                is_marked
            }
            _ => notes.is_marked(),
        }
    }

    /// A note with or without the mark is durable, or could not be written.
    pub(super) fn noted(&self, is_marked: bool, is_done: bool) {
        if !is_done {
            let wish = if is_marked { SET } else { CLEARED };
            let _ = self.wish.compare_exchange(AS_IT_IS, wish, SeqCst, SeqCst);
        } else if is_marked {
            self.is_there.store(true, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_peers_are_compared_by_whole_names() {
        for (other, is_common) in [
            ("io1/root", true),
            ("io9,io1/root", true),
            ("io2,io11/root", false),
            ("o1/root", false),
            ("*/root", true),
        ] {
            assert_eq!(has_common_peer("io1,io3/root", other), is_common, "{other}");
        }
    }
}
