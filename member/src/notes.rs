//! The records of attachments of a replicated volume: all of them are the volume's note, which all
//! members have and a take-over keeps.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use parking_lot::Mutex;
use replica::wire::SECTOR_BYTES;
use replica::{NOTE_BYTES_MAX, Note};
use sidecore::Waker;
use volume::name::NAME_BYTES_MAX;
use volume::record::{RECORD_BYTES, Record, RecordError, RecordStore, Ticket};

/// The first bytes of a note, with the version of its form.
const NOTE_MAGIC: &[u8; 8] = b"vrNOT\0\0\x01";

/// The same of a note with the volume's size, which is another form: a program that does not know
/// it would give the users another size.
const SIZED_MAGIC: &[u8; 8] = b"vrNOT\0\0\x02";

/// Bytes of a note before its records: the beginning, the volume's number, the floor, the size.
const HEAD_BYTES: usize = NOTE_MAGIC.len() + 16 + 8 + 8;

/// The longest record in a note: the length of the attachment's name, the name, and the record.
const ENTRY_BYTES_MAX: usize = 1 + NAME_BYTES_MAX + RECORD_BYTES;

/// The most attachments that a replicated volume remembers: as many as its note has room for.
pub const NOTE_RECORDS_MAX: usize = (NOTE_BYTES_MAX - HEAD_BYTES) / ENTRY_BYTES_MAX;

/// A volume of one guest needs two; so many are enough for a shared volume of a small cluster.
const _: () = assert!(NOTE_RECORDS_MAX >= 32, "records of a shared volume's guests");

/// Why a note cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the volume's note is malformed: {0}")]
pub struct MalformedNote(&'static str);

/// The content of a note.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NoteBook {
    /// Tells the volume from an earlier volume of its name.
    pub(crate) number: [u8; 16],
    /// The size that the users of a placed volume have: all members in sync know it, so the next
    /// member that serves gives no smaller one. 0: it is in the configuration.
    pub(crate) size_bytes: u64,
    floor: u64,
    records: BTreeMap<String, Record>,
}

impl NoteBook {
    pub(crate) fn new(number: [u8; 16]) -> Self {
        Self { number, ..Self::default() }
    }

    pub(crate) fn to_note(&self) -> Note {
        let is_sized = self.size_bytes > 0;
        let mut note = if is_sized { SIZED_MAGIC } else { NOTE_MAGIC }.to_vec();
        note.extend(self.number);
        note.extend(self.floor.to_le_bytes());
        if is_sized {
            note.extend(self.size_bytes.to_le_bytes());
        }
        for (name, record) in &self.records {
            note.push(u8::try_from(name.len()).expect("checked when it was written"));
            note.extend(name.as_bytes());
            note.extend(record.to_bytes());
        }
        note
    }

    /// The book of a note; none if no member has written a note yet.
    pub(crate) fn of(note: &[u8]) -> Result<Option<Self>, MalformedNote> {
        if note.is_empty() {
            return Ok(None);
        }
        let short = MalformedNote("it is too short");
        let (magic, rest) = note.split_first_chunk::<8>().ok_or(short)?;
        if ![NOTE_MAGIC, SIZED_MAGIC].contains(&magic) {
            return Err(MalformedNote("it has another version"));
        }
        let (number, rest) = rest.split_first_chunk::<16>().ok_or(short)?;
        let (floor, mut rest) = rest.split_first_chunk::<8>().ok_or(short)?;
        let mut book = Self::new(*number);
        book.floor = u64::from_le_bytes(*floor);
        if magic == SIZED_MAGIC {
            let (size_bytes, after) = rest.split_first_chunk::<8>().ok_or(short)?;
            (book.size_bytes, rest) = (u64::from_le_bytes(*size_bytes), after);
            if book.size_bytes == 0 || !book.size_bytes.is_multiple_of(SECTOR_BYTES) {
                return Err(MalformedNote("its size is none, or no whole sectors"));
            }
        }
        while let Some((len, after)) = rest.split_first() {
            let (name, after) = after.split_at_checked(usize::from(*len)).ok_or(short)?;
            let (record, after) = after.split_first_chunk::<RECORD_BYTES>().ok_or(short)?;
            let name = std::str::from_utf8(name).ok().filter(|name| name.len() <= NAME_BYTES_MAX);
            let name = name.ok_or(MalformedNote("an attachment's name is none"))?;
            let record = Record::from_bytes(record).ok_or(MalformedNote("a record is none"))?;
            if book.records.last_key_value().is_some_and(|(last, _)| last.as_str() >= name) {
                return Err(MalformedNote("its records are not in order"));
            }
            book.records.insert(name.to_owned(), record);
            rest = after;
        }
        if book.records.len() > NOTE_RECORDS_MAX {
            return Err(MalformedNote("it has too many records"));
        }
        Ok(Some(book))
    }
}

#[derive(Debug)]
struct NoteState {
    /// The records while this member serves.
    book: Option<NoteBook>,
    /// Why it does not.
    why_not: String,
    /// The book has changed since it was last made a note.
    is_changed: bool,
    /// Writes that wait for the next note, and for the note that is under way.
    waiting: Vec<Ticket>,
    sent: Vec<Ticket>,
    /// The size in the note that is under way.
    sent_bytes: u64,
}

/// The records of a replicated volume, for its guard. They can be read and written while this
/// member serves.
#[derive(Debug)]
pub struct NoteRecords {
    volume: String,
    state: Mutex<NoteState>,
    /// As in the state, for a look without the lock.
    is_changed: AtomicBool,
    home: Waker,
}

impl NoteRecords {
    pub(crate) fn new(volume: &str, home: Waker) -> Arc<Self> {
        let state = NoteState {
            book: None,
            why_not: "it is not known yet which node serves the volume".to_owned(),
            is_changed: false,
            waiting: Vec::new(),
            sent: Vec::new(),
            sent_bytes: 0,
        };
        let volume = volume.to_owned();
        let is_changed = AtomicBool::new(false);
        Arc::new(Self { volume, state: Mutex::new(state), is_changed, home })
    }

    fn error(&self, reason: &str) -> RecordError {
        let path = format!("in the note of volume {}", self.volume);
        RecordError { path, reason: reason.to_owned() }
    }

    /// This member serves, with these records.
    pub(crate) fn begin(&self, book: NoteBook) {
        let mut state = self.state.lock();
        debug_assert!(state.waiting.is_empty() && state.sent.is_empty(), "a term has ended");
        (state.book, state.is_changed) = (Some(book), false);
        self.is_changed.store(false, SeqCst);
    }

    /// It does not serve any more, for this reason: no write is durable for all that is known here.
    pub(crate) fn end(&self, why_not: &str) {
        let tickets = {
            let mut state = self.state.lock();
            (state.book, state.is_changed) = (None, false);
            state.why_not = why_not.to_owned();
            self.is_changed.store(false, SeqCst);
            let sent = std::mem::take(&mut state.sent);
            sent.into_iter().chain(std::mem::take(&mut state.waiting)).collect::<Vec<_>>()
        };
        let error = self.error(&format!("{why_not}; ask that node, or ask again"));
        tickets.iter().for_each(|ticket| ticket.end(Err(error.clone())));
    }

    /// Whether there is something for a note, and none is under way.
    pub(crate) fn has_news(&self) -> bool {
        self.is_changed.load(SeqCst) && self.state.lock().sent.is_empty()
    }

    /// The next note, if something has changed and none is under way.
    pub(crate) fn take(&self) -> Option<Note> {
        if !self.is_changed.load(SeqCst) {
            return None;
        }
        let mut state = self.state.lock();
        if !state.sent.is_empty() {
            return None;
        }
        let book = state.book.as_ref()?;
        let (note, size_bytes) = (book.to_note(), book.size_bytes);
        (state.sent, state.sent_bytes) = (std::mem::take(&mut state.waiting), size_bytes);
        state.is_changed = false;
        self.is_changed.store(false, SeqCst);
        Some(note)
    }

    /// The note that was taken is durable at all members. Gives the volume's size in it.
    pub(crate) fn kept(&self) -> u64 {
        let (sent, size_bytes) = {
            let mut state = self.state.lock();
            (std::mem::take(&mut state.sent), state.sent_bytes)
        };
        sent.iter().for_each(|ticket| ticket.end(Ok(())));
        size_bytes
    }

    /// The next note has this size, unless it has that already.
    pub(crate) fn set_size(&self, size_bytes: u64) {
        let mut state = self.state.lock();
        if let Some(book) = state.book.as_mut().filter(|book| book.size_bytes < size_bytes) {
            book.size_bytes = size_bytes;
            state.is_changed = true;
            self.is_changed.store(true, SeqCst);
        }
    }

    /// Changes the records; the ticket ends when all members have the change.
    fn change(&self, change: impl FnOnce(&mut NoteBook) -> Result<(), &'static str>) -> Ticket {
        let mut state = self.state.lock();
        let refused = match &mut state.book {
            None => Some(state.why_not.clone()),
            Some(book) => change(book).err().map(str::to_owned),
        };
        if let Some(reason) = refused {
            return Ticket::ended(Err(self.error(&reason)));
        }
        let ticket = Ticket::new();
        state.waiting.push(ticket.clone());
        state.is_changed = true;
        self.is_changed.store(true, SeqCst);
        drop(state);
        self.home.wake();
        ticket
    }
}

impl RecordStore for NoteRecords {
    fn load(&self) -> Result<HashMap<String, Record>, RecordError> {
        let state = self.state.lock();
        // While another node serves, its records are not known here, and no client is admitted.
        let records = state.book.iter().flat_map(|book| &book.records);
        Ok(records.map(|(name, record)| (name.clone(), *record)).collect())
    }

    fn write(&self, attachment: &str, record: Record) -> Ticket {
        self.change(|book| {
            if attachment.len() > NAME_BYTES_MAX {
                return Err("the attachment's name is too long");
            }
            let is_known = book.records.contains_key(attachment);
            if !is_known && book.records.len() >= NOTE_RECORDS_MAX {
                return Err("it is full: remove records of attachments first");
            }
            book.records.insert(attachment.to_owned(), record);
            Ok(())
        })
    }

    fn attachments_max(&self) -> usize {
        NOTE_RECORDS_MAX
    }

    fn floor(&self) -> Result<u64, RecordError> {
        Ok(self.state.lock().book.as_ref().map_or(0, |book| book.floor))
    }

    fn forget(&self, attachments: &[String], floor: u64) -> Ticket {
        self.change(|book| {
            // One note has both: the floor is durable when the records are gone.
            book.records.retain(|name, _| !attachments.contains(name));
            book.floor = book.floor.max(floor);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
