//! The *desk*: where processes inside of virtual machines ask for slots, by memory.
//!
//! They see the same region as everybody, and no socket. So each VM has a *part* of the region's
//! desk, with a few entries that its processes claim, fill in and have answered; a store to the
//! VM's doorbell tells the node to look. docs/fabric-region.md has every byte.
//!
//! ```text
//!   process in a VM                                       node
//!     FREE(t)  ──claim──▶ CLAIMED(t) ──▶ ASKED(t), ring ▶   looks, believes the proof or not
//!     FREE(t+1) ◀──read── ANSWERED(t) ◀─────────────────    answers; turn t is used up
//! ```
//!
//! Who asks proves that it knows the domain's key by a keyed hash over what it asks and over what
//! the node has written there for this turn alone: the key is not in the memory, and what was said
//! once is not believed again.

mod client;
mod device;
mod ticket;

pub use self::client::{Bell, Desk, Held, Lost};
pub(crate) use self::device::Device;
pub use self::device::DeviceError;

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use blake2::digest::consts::U32;
use blake2::digest::{FixedOutput, KeyInit, Mac, Update};
use blake2::{Blake2b512, Blake2bMac, Digest};
use zeroize::Zeroizing;

use crate::door::{Key, Seat};
use crate::region::Region;
use crate::shared::WORD;

/// The bytes of a region that are its desk.
pub(crate) const DESK_BYTES: usize = 64 << 10;

/// A VM's part of it. Part 0 is nobody's: a VM has the number that its device says, and 0 is the
/// node's.
const PART_BYTES: usize = 1 << 10;

/// The most VMs of a domain on one host.
pub const VMS_MAX: u8 = (DESK_BYTES / PART_BYTES - 1) as u8;

/// Lines of a part: its head, then the entries. Who asks is answered in less than a millisecond, so
/// that a VM with more processes than entries has them wait for each other a moment.
const LINE_BYTES: usize = 128;

/// Entries of a part.
pub const ENTRIES: usize = PART_BYTES / LINE_BYTES - 1;

/// What the desk speaks, in the head of each part that is in use.
pub const DESK_VERSION: u64 = 1;

/// Words of the nonce in the head of a part.
pub const NONCE_WORDS: usize = 4;
/// Words of a proof.
pub const PROOF_WORDS: usize = 4;

/// Words of a part's head.
mod head {
    use super::WORD;
    pub(super) const VERSION: usize = 0;
    /// Random, for as long as this VM has the part.
    pub(super) const NONCE: usize = 4 * WORD;
}

/// Words of an entry.
mod entry {
    use super::WORD;
    /// Turn (32 bits), state (32 bits).
    pub(super) const STATE: usize = 0;
    pub(super) const KIND: usize = WORD;
    pub(super) const BOOT: usize = 2 * WORD;
    pub(super) const TICKET: usize = 3 * WORD;
    pub(super) const SEAT: usize = 4 * WORD;
    pub(super) const PROOF: usize = 8 * WORD;
    pub(super) const ANSWER: usize = 12 * WORD;
    pub(super) const GIVEN: usize = 13 * WORD;
}

/// Whose an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Any process of the VM may claim it.
    Free,
    /// A process writes its question.
    Claimed,
    /// The question is complete.
    Asked,
    /// The answer is complete.
    Answered,
}

/// An entry's first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Whose it is.
    pub stage: Stage,
    /// Counts what was asked here.
    pub turn: u32,
}

impl Standing {
    /// As it stands in the region.
    pub fn to_word(self) -> u64 {
        let stage = match self.stage {
            Stage::Free => 0,
            Stage::Claimed => 1,
            Stage::Asked => 2,
            Stage::Answered => 3,
        };
        u64::from(self.turn) << 32 | stage
    }

    /// None for what neither side writes.
    pub fn from_word(word: u64) -> Option<Self> {
        let stage = match word as u32 {
            0 => Stage::Free,
            1 => Stage::Claimed,
            2 => Stage::Asked,
            3 => Stage::Answered,
            _ => return None,
        };
        Some(Self { stage, turn: (word >> 32) as u32 })
    }
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Whether the key is right; a process that joins.
    Hello,
    /// A slot, for who holds this ticket.
    Open,
    /// The slot of this ticket will not be used again.
    Close(Seat),
    /// Who held this ticket has died.
    Dead,
}

/// One question: what, of which boot of the VM's system, with which ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// What is asked.
    pub ask: Ask,
    /// The boot of the VM's system.
    pub boot: u64,
    /// The number by which the process is seen to live; 0 with [`Ask::Hello`].
    pub ticket: u64,
}

/// Words of a question: kind, boot, ticket, seat.
pub type QuestionWords = [u64; 4];

impl Question {
    fn to_words(self) -> QuestionWords {
        let (kind, seat) = match self.ask {
            Ask::Hello => (1, 0),
            Ask::Open => (2, 0),
            Ask::Close(seat) => (3, seat_word(seat)),
            Ask::Dead => (4, 0),
        };
        [kind, self.boot, self.ticket, seat]
    }

    /// None for what no process asks.
    pub fn from_words([kind, boot, ticket, seat]: QuestionWords) -> Option<Self> {
        let ask = match (kind, seat) {
            (1, 0) => Ask::Hello,
            (2, 0) => Ask::Open,
            (3, seat) => Ask::Close(seat_of(seat)),
            (4, 0) => Ask::Dead,
            _ => return None,
        };
        Some(Self { ask, boot, ticket })
    }
}

/// What the node says to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is as it was asked.
    Done,
    /// The slot that was asked for.
    Seat(Seat),
    /// The proof is wrong: another key, another domain.
    Denied,
    /// No slot is left.
    Full,
    /// Nobody new is let in.
    Crowded,
}

impl Reply {
    fn to_words(self) -> (u64, u64) {
        match self {
            Self::Done => (1, 0),
            Self::Seat(seat) => (2, seat_word(seat)),
            Self::Denied => (3, 0),
            Self::Full => (4, 0),
            Self::Crowded => (5, 0),
        }
    }

    /// None for what no node says.
    pub fn from_words(answer: u64, given: u64) -> Option<Self> {
        Some(match answer {
            1 => Self::Done,
            2 => Self::Seat(seat_of(given)),
            3 => Self::Denied,
            4 => Self::Full,
            5 => Self::Crowded,
            _ => return None,
        })
    }
}

fn seat_word(seat: Seat) -> u64 {
    u64::from(seat.incarnation) << 32 | u64::from(seat.slot)
}

fn seat_of(word: u64) -> Seat {
    Seat { slot: word as u16, incarnation: (word >> 32) as u32 }
}

/// What is proven, beside the question: where it stands, so that it is believed nowhere else.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The domain's name.
    pub domain: &'a str,
    /// In the head of the part.
    pub nonce: [u64; NONCE_WORDS],
    /// The number of the part.
    pub part: u8,
    /// Which of its entries.
    pub entry: u8,
    /// The turn that the entry is in.
    pub turn: u32,
}

type Mac256 = Blake2bMac<U32>;

/// The hash that only who has the key can make.
fn mac_of(key: &Key, place: &Place<'_>, question: QuestionWords) -> Mac256 {
    // As long as the hash takes keys, whatever the key's length is.
    let key: Zeroizing<[u8; 64]> = Zeroizing::new(Blake2b512::digest(key.bytes()).into());
    let mut mac = <Mac256 as KeyInit>::new_from_slice(&key[..]).expect("as long as it may be");
    Update::update(&mut mac, b"vrio desk 1");
    Update::update(&mut mac, &[place.part, place.entry, place.domain.len() as u8]);
    Update::update(&mut mac, place.domain.as_bytes());
    Update::update(&mut mac, &place.turn.to_le_bytes());
    for word in place.nonce.iter().chain(&question) {
        Update::update(&mut mac, &word.to_le_bytes());
    }
    mac
}

fn proof_of(key: &Key, place: &Place<'_>, question: QuestionWords) -> [u64; PROOF_WORDS] {
    let bytes = mac_of(key, place, question).finalize_fixed();
    let (words, _) = bytes.as_chunks::<WORD>();
    std::array::from_fn(|at| u64::from_le_bytes(words[at]))
}

/// Whether it is the proof; takes as long whatever it is.
pub fn is_proven(
    key: &Key,
    place: &Place<'_>,
    question: QuestionWords,
    proof: [u64; PROOF_WORDS],
) -> bool {
    let bytes = proof.map(u64::to_le_bytes);
    mac_of(key, place, question).verify_slice(bytes.as_flattened()).is_ok()
}

/// A part of a region's desk: the words, for both sides.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    region: &'a Region,
    number: u8,
}

impl<'a> Part<'a> {
    /// The part of this VM, by the number that its device says.
    ///
    /// # Panics
    /// When it is not 1 to [`VMS_MAX`].
    pub fn new(region: &'a Region, number: u8) -> Self {
        // Our own mistake if it fails: checked where the number comes in.
        assert!((1..=VMS_MAX).contains(&number), "part {number}");
        Self { region, number }
    }

    fn head(&self, at: usize) -> usize {
        self.region.layout().desk() + usize::from(self.number) * PART_BYTES + at
    }

    fn entry(&self, entry: usize, at: usize) -> usize {
        self.head((1 + entry) * LINE_BYTES + at)
    }

    fn load(&self, at: usize) -> u64 {
        self.region.mapping().load(at, Relaxed)
    }

    fn store(&self, at: usize, word: u64) {
        self.region.mapping().store(at, word, Relaxed);
    }

    fn loads<const N: usize>(&self, at: usize) -> [u64; N] {
        std::array::from_fn(|word| self.load(at + word * WORD))
    }

    fn stores(&self, at: usize, words: &[u64]) {
        for (word, &value) in words.iter().enumerate() {
            self.store(at + word * WORD, value);
        }
    }

    /// What stands for [`DESK_VERSION`]; 0 while no VM has the part.
    pub fn version(&self) -> u64 {
        self.region.mapping().load(self.head(head::VERSION), Acquire)
    }

    /// The random words in the head.
    pub fn nonce(&self) -> [u64; NONCE_WORDS] {
        self.loads(self.head(head::NONCE))
    }

    /// The node's: the part is a VM's from now on, or nobody's.
    pub fn begin(&self, nonce: [u64; NONCE_WORDS], version: u64) {
        self.stores(self.head(head::NONCE), &nonce);
        self.region.mapping().store(self.head(head::VERSION), version, Release);
    }

    /// The first word of an entry.
    pub fn standing_word(&self, entry: usize) -> u64 {
        self.region.mapping().load(self.entry(entry, entry::STATE), Acquire)
    }

    /// Writes the first word of an entry.
    pub fn stand(&self, entry: usize, standing: Standing) {
        let at = self.entry(entry, entry::STATE);
        self.region.mapping().store(at, standing.to_word(), Release);
    }

    /// From one stage to the next, if it is still there.
    pub fn step(&self, entry: usize, turn: u32, from: Stage, to: Stage) -> bool {
        let word = |stage| Standing { stage, turn }.to_word();
        let at = self.entry(entry, entry::STATE);
        self.region.mapping().exchange(at, word(from), word(to)).is_ok()
    }

    /// What is asked in an entry, and its proof.
    pub fn question(&self, entry: usize) -> (QuestionWords, [u64; PROOF_WORDS]) {
        let at = |word| self.entry(entry, word);
        (self.loads(at(entry::KIND)), self.loads(at(entry::PROOF)))
    }

    /// Writes a question and its proof.
    pub fn ask(&self, entry: usize, question: QuestionWords, proof: [u64; PROOF_WORDS]) {
        self.stores(self.entry(entry, entry::KIND), &question);
        self.stores(self.entry(entry, entry::PROOF), &proof);
    }

    /// The answer in an entry. None: it is none.
    pub fn reply(&self, entry: usize) -> Option<Reply> {
        let at = |word| self.load(self.entry(entry, word));
        Reply::from_words(at(entry::ANSWER), at(entry::GIVEN))
    }

    /// Writes an answer.
    pub fn set_reply(&self, entry: usize, reply: Reply) {
        let (answer, given) = reply.to_words();
        self.store(self.entry(entry, entry::ANSWER), answer);
        self.store(self.entry(entry, entry::GIVEN), given);
    }
}

#[cfg(any(test, feature = "testing"))]
impl Part<'_> {
    /// Words of the head.
    pub const HEAD_WORDS: usize = LINE_BYTES / WORD;

    /// Writes any word of the part.
    pub fn write_word(&self, index: usize, word: u64) {
        self.store(self.head(index * WORD), word);
    }
}

const _: () = assert!(entry::BOOT == entry::KIND + WORD && entry::SEAT == entry::KIND + 3 * WORD);
const _: () = assert!(entry::TICKET == entry::KIND + 2 * WORD && entry::GIVEN < LINE_BYTES);
