//! Mailboxes: how processes inside of virtual machines register, through the region's memory.
//!
//! Such a process maps the same region as every member, but it cannot reach the node's socket. So
//! the region has a *mailbox* for each VM: a few entries that the VM's processes claim, fill in and
//! have answered. A store to the VM's doorbell tells the node to look. docs/fabric-region.md has
//! every byte.
//!
//! ```text
//!   process in a VM                                       node
//!     FREE(t)  ──claim──▶ CLAIMED(t) ──▶ ASKED(t), ring ▶   looks, checks the proof
//!     FREE(t+1) ◀──read── ANSWERED(t) ◀─────────────────    answers; turn t is used up
//! ```
//!
//! A question proves that its process knows the domain's key, by a keyed hash over the question and
//! over words that the node has written there for this turn alone. So the key is never in the
//! memory, and a question is never believed twice.

mod client;
mod device;
mod lock;

pub use self::client::{HeldSlot, Lost, MailboxClient, RingNode};
pub use self::device::DeviceError;
pub(crate) use self::device::MailboxDevice;

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use blake2::digest::consts::U32;
use blake2::digest::{FixedOutput, KeyInit, Mac, Update};
use blake2::{Blake2b512, Blake2bMac, Digest};
use zeroize::Zeroizing;

use crate::region::{MAILBOXES_BYTES, Region};
use crate::registration::{DomainKey, SlotGrant};
use crate::shared::WORD;

/// The bytes of one mailbox. Mailbox 0 is not used: a VM has the number that its device says, and 0
/// is the node's.
const MAILBOX_BYTES: usize = 1 << 10;

/// The most VMs of a domain on one host.
pub const VMS_MAX: u8 = (MAILBOXES_BYTES / MAILBOX_BYTES - 1) as u8;

/// Lines of a mailbox: its head, then the entries. A question is answered in less than a
/// millisecond, so in a VM with more processes than entries some wait for others for a moment.
const LINE_BYTES: usize = 128;

/// Entries of a mailbox.
pub const ENTRIES: usize = MAILBOX_BYTES / LINE_BYTES - 1;

/// The version of this protocol, in the head of each mailbox that is in use.
pub const MAILBOX_VERSION: u64 = 1;

/// Words of the nonce in the head of a mailbox.
pub const NONCE_WORDS: usize = 4;
/// Words of a proof.
pub const PROOF_WORDS: usize = 4;

/// Words of a mailbox's head.
mod head {
    use super::WORD;
    pub(super) const VERSION: usize = 0;
    /// Random, for as long as this VM has the mailbox.
    pub(super) const NONCE: usize = 4 * WORD;
}

/// Words of an entry.
mod entry {
    use super::WORD;
    /// Turn (32 bits), state (32 bits).
    pub(super) const STATE: usize = 0;
    pub(super) const KIND: usize = WORD;
    pub(super) const BOOT: usize = 2 * WORD;
    pub(super) const HOLDER: usize = 3 * WORD;
    pub(super) const GRANT: usize = 4 * WORD;
    pub(super) const PROOF: usize = 8 * WORD;
    pub(super) const ANSWER: usize = 12 * WORD;
    pub(super) const GIVEN: usize = 13 * WORD;
}

/// Which side has an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryStage {
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
pub struct EntryState {
    /// Which side has the entry.
    pub stage: EntryStage,
    /// Counts the questions of this entry.
    pub turn: u32,
}

impl EntryState {
    /// As it stands in the region.
    pub fn to_word(self) -> u64 {
        let stage = match self.stage {
            EntryStage::Free => 0,
            EntryStage::Claimed => 1,
            EntryStage::Asked => 2,
            EntryStage::Answered => 3,
        };
        u64::from(self.turn) << 32 | stage
    }

    /// None for a word that neither side writes.
    pub fn from_word(word: u64) -> Option<Self> {
        let stage = match word as u32 {
            0 => EntryStage::Free,
            1 => EntryStage::Claimed,
            2 => EntryStage::Asked,
            3 => EntryStage::Answered,
            _ => return None,
        };
        Some(Self { stage, turn: (word >> 32) as u32 })
    }
}

/// The kind of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A process joins: whether its key is right.
    Hello,
    /// The holder wants a slot.
    Open,
    /// The holder will not use its slot again.
    Close(SlotGrant),
    /// The holder has died.
    Dead,
}

/// One question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MailboxQuestion {
    /// The kind of the question.
    pub ask: Ask,
    /// The boot of the VM's system.
    pub boot: u64,
    /// The number of the holder's lock, which shows whether its process lives; 0 with
    /// [`Ask::Hello`].
    pub holder: u64,
}

/// Words of a question: kind, boot, holder, slot grant.
pub type QuestionWords = [u64; 4];

impl MailboxQuestion {
    fn to_words(self) -> QuestionWords {
        let (kind, grant) = match self.ask {
            Ask::Hello => (1, 0),
            Ask::Open => (2, 0),
            Ask::Close(grant) => (3, grant_word(grant)),
            Ask::Dead => (4, 0),
        };
        [kind, self.boot, self.holder, grant]
    }

    /// None for words that no process writes.
    pub fn from_words([kind, boot, holder, grant]: QuestionWords) -> Option<Self> {
        let ask = match (kind, grant) {
            (1, 0) => Ask::Hello,
            (2, 0) => Ask::Open,
            (3, grant) => Ask::Close(grant_of(grant)),
            (4, 0) => Ask::Dead,
            _ => return None,
        };
        Some(Self { ask, boot, holder })
    }
}

/// The node's answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is as it was asked.
    Done,
    /// The slot that was asked for.
    Granted(SlotGrant),
    /// The proof is wrong: another key, another domain.
    Denied,
    /// No slot is left.
    Full,
    /// No new member is let in.
    Crowded,
}

impl Reply {
    fn to_words(self) -> (u64, u64) {
        match self {
            Self::Done => (1, 0),
            Self::Granted(grant) => (2, grant_word(grant)),
            Self::Denied => (3, 0),
            Self::Full => (4, 0),
            Self::Crowded => (5, 0),
        }
    }

    /// None for words that no node writes.
    pub fn from_words(answer: u64, given: u64) -> Option<Self> {
        Some(match answer {
            1 => Self::Done,
            2 => Self::Granted(grant_of(given)),
            3 => Self::Denied,
            4 => Self::Full,
            5 => Self::Crowded,
            _ => return None,
        })
    }
}

fn grant_word(grant: SlotGrant) -> u64 {
    u64::from(grant.incarnation) << 32 | u64::from(grant.slot)
}

fn grant_of(word: u64) -> SlotGrant {
    SlotGrant { slot: word as u16, incarnation: (word >> 32) as u32 }
}

/// Where a question stands. The proof is over this as well, so that it is not valid elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct QuestionPlace<'a> {
    /// The domain's name.
    pub domain: &'a str,
    /// The random words in the head of the mailbox.
    pub nonce: [u64; NONCE_WORDS],
    /// The number of the mailbox.
    pub number: u8,
    /// Which of its entries.
    pub entry: u8,
    /// The turn that the entry is in.
    pub turn: u32,
}

type Mac256 = Blake2bMac<U32>;

/// The keyed hash over a question and its place.
fn mac_of(key: &DomainKey, place: &QuestionPlace<'_>, question: QuestionWords) -> Mac256 {
    // As long as the hash takes keys, for a key of any length.
    let key: Zeroizing<[u8; 64]> = Zeroizing::new(Blake2b512::digest(key.bytes()).into());
    let mut mac = <Mac256 as KeyInit>::new_from_slice(&key[..]).expect("as long as it may be");
    // These bytes are part of the format and keep the protocol's first name.
    Update::update(&mut mac, b"vrio desk 1");
    Update::update(&mut mac, &[place.number, place.entry, place.domain.len() as u8]);
    Update::update(&mut mac, place.domain.as_bytes());
    Update::update(&mut mac, &place.turn.to_le_bytes());
    for word in place.nonce.iter().chain(&question) {
        Update::update(&mut mac, &word.to_le_bytes());
    }
    mac
}

fn proof_of(
    key: &DomainKey,
    place: &QuestionPlace<'_>,
    question: QuestionWords,
) -> [u64; PROOF_WORDS] {
    let bytes = mac_of(key, place, question).finalize_fixed();
    let (words, _) = bytes.as_chunks::<WORD>();
    std::array::from_fn(|at| u64::from_le_bytes(words[at]))
}

/// Whether it is the proof of this question. Takes as long whether it is or not.
pub fn is_proven(
    key: &DomainKey,
    place: &QuestionPlace<'_>,
    question: QuestionWords,
    proof: [u64; PROOF_WORDS],
) -> bool {
    let bytes = proof.map(u64::to_le_bytes);
    mac_of(key, place, question).verify_slice(bytes.as_flattened()).is_ok()
}

/// One mailbox of a region: its words, for both sides.
#[derive(Clone, Copy, Debug)]
pub struct Mailbox<'a> {
    region: &'a Region,
    number: u8,
}

impl<'a> Mailbox<'a> {
    /// The mailbox of the VM to which its device gives this number.
    ///
    /// # Panics
    /// When it is not 1 to [`VMS_MAX`].
    pub fn new(region: &'a Region, number: u8) -> Self {
        // Our own mistake if it fails: checked where the number comes in.
        assert!((1..=VMS_MAX).contains(&number), "mailbox {number}");
        Self { region, number }
    }

    fn head(&self, at: usize) -> usize {
        self.region.layout().mailboxes() + usize::from(self.number) * MAILBOX_BYTES + at
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

    /// The version that the head has; 0 while no VM has the mailbox.
    pub fn version(&self) -> u64 {
        self.region.mapping().load(self.head(head::VERSION), Acquire)
    }

    /// The random words in the head.
    pub fn nonce(&self) -> [u64; NONCE_WORDS] {
        self.loads(self.head(head::NONCE))
    }

    /// For the node: gives the mailbox to a VM, or with version 0 to none.
    pub fn begin(&self, nonce: [u64; NONCE_WORDS], version: u64) {
        self.stores(self.head(head::NONCE), &nonce);
        self.region.mapping().store(self.head(head::VERSION), version, Release);
    }

    /// The first word of an entry.
    pub fn state_word(&self, entry: usize) -> u64 {
        self.region.mapping().load(self.entry(entry, entry::STATE), Acquire)
    }

    /// Writes the first word of an entry.
    pub fn set_state(&self, entry: usize, state: EntryState) {
        let at = self.entry(entry, entry::STATE);
        self.region.mapping().store(at, state.to_word(), Release);
    }

    /// From one stage to the next, if it is still there.
    pub fn step(&self, entry: usize, turn: u32, from: EntryStage, to: EntryStage) -> bool {
        let word = |stage| EntryState { stage, turn }.to_word();
        let at = self.entry(entry, entry::STATE);
        self.region.mapping().exchange(at, word(from), word(to)).is_ok()
    }

    /// The question in an entry, and its proof.
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
impl Mailbox<'_> {
    /// Words of the head.
    pub const HEAD_WORDS: usize = LINE_BYTES / WORD;

    /// Writes any word of the mailbox.
    pub fn write_word(&self, index: usize, word: u64) {
        self.store(self.head(index * WORD), word);
    }
}

const _: () = assert!(entry::BOOT == entry::KIND + WORD && entry::GRANT == entry::KIND + 3 * WORD);
const _: () = assert!(entry::HOLDER == entry::KIND + 2 * WORD && entry::GIVEN < LINE_BYTES);
