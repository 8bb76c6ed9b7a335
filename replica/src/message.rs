//! The messages between members of a volume, and the operations that the primary puts in order.

use std::collections::BTreeSet;

use crate::applied::{Applied, RequestId};
use crate::extent::{Extent, ExtentSet};
use crate::proof::{BlockProof, ScrubKey};
use crate::record::{Life, MemberId, VolumeRecord};

/// The longest body of a message: the content of the longest range that has bytes.
pub const WIRE_BODY_MAX: usize = 1 << 20;

/// No epoch, counter or time is as large: nothing that a member adds to one overflows.
pub const NUMBER_END: u64 = 1 << 62;

/// The unit of ranges.
pub const SECTOR_BYTES: u64 = 512;

/// The place of an operation in the order that the primary of a reign gives them.
pub type Counter = u64;

/// The place of an operation in the order of all operations. A *cut* has it for a name: a snapshot
/// that each member in sync made at the same operation, so it is the same everywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The reign that the operation is of.
    pub reign: u64,
    /// Its number there.
    pub counter: Counter,
}

/// The memory of the volume's guard about attachments, which must outlive its primary: bytes of the
/// caller's, at most [`NOTE_BYTES_MAX`]. The newest note is the volume's.
pub type Note = Vec<u8>;

/// The longest note.
pub const NOTE_BYTES_MAX: usize = 16 << 10;

/// The longest name of a snapshot, in bytes: with the place of its operation behind it.
pub const SNAPSHOT_NAME_MAX: usize = 64;

/// A change of the snapshots that people make of a volume. A snapshot is known by its name and the
/// place of the operation that took it, so no two snapshots of a volume are ever the same. The name
/// is as the caller gives it: a member looks at it before its storage does.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SnapshotChange {
    /// All operations before it are in a snapshot, which is durable when this is stored.
    Take {
        /// The name that people give it, of 1 to [`SNAPSHOT_NAME_MAX`] bytes.
        name: String,
        /// The time for people, in seconds since 1970.
        at_s: u64,
    },
    /// The snapshot goes, if it is there.
    Remove {
        /// The snapshot's name, with the place.
        name: String,
    },
}

/// An operation. Each member stores it in the primary's order. `D` is the content of a range: a
/// handle of the caller's, to bytes or for zeroes. A copy of an operation has the same handle.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op<D> {
    /// A client's write.
    Write {
        /// The request.
        id: RequestId,
        /// Its range.
        extent: Extent,
        /// The range's new content.
        data: D,
    },
    /// All operations before it are durable when it is stored.
    Flush {
        /// The request.
        id: RequestId,
    },
    /// A snapshot, durable when it is stored. A member that joins leaves it out: its content is not
    /// the primary's yet.
    Cut,
    /// A range of a member that joins. Other members leave it out.
    Fill {
        /// The member.
        to: MemberId,
        /// The range.
        extent: Extent,
        /// Its content at the primary.
        data: D,
    },
    /// A range that members may have differently after a take-over, as the new primary has it.
    Equal {
        /// The range.
        extent: Extent,
        /// Its content at the primary.
        data: D,
    },
    /// Nothing: an operation that is not for this member.
    Nothing,
    /// The applied requests and the note, as the primary knows them, for members whose content was
    /// made the primary's. All operations before it are durable when it is stored: data that was
    /// flushed before a member had it must be durable there before it counts.
    Applied {
        /// The requests.
        applied: Applied,
        /// The note.
        note: Note,
    },
    /// Another note, which is durable when it is stored.
    Note {
        /// The request.
        id: RequestId,
        /// The note.
        note: Note,
    },
    /// No request of this attachment comes any more: its clients need not be remembered.
    Forget(u128),
    /// A change of the snapshots. A member that joins takes none: its content is not the primary's
    /// yet.
    Snapshot {
        /// The request.
        id: RequestId,
        /// The change.
        change: SnapshotChange,
    },
}

/// A member's knowledge about its volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Knowledge {
    /// Its life.
    pub life: Life,
    /// The epoch below which it hears no message.
    pub promised: u64,
    /// The newest record that it knows.
    pub record: Option<VolumeRecord>,
    /// Whether it is the primary, as far as it knows.
    pub reigns: bool,
    /// Whether the registry may still tell it that a record which it has asked for was made.
    pub asks: bool,
    /// See [`crate::Durable::filled_since`].
    pub filled_since: Option<Place>,
    /// The newest epoch by which it was in sync; 0 if none.
    pub was_in: u64,
    /// The newest cut of its content.
    pub cut: Option<Place>,
    /// It has all operations up to here, since its process began.
    pub stored: Place,
}

/// A message from one member to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message<D> {
    /// The primary asks a member to let it serve for another while.
    Ping {
        /// The present record.
        record: VolumeRecord,
        /// The member's life, as the primary knows it.
        life: Life,
        /// The primary's time of sending.
        sent_ns: u64,
        /// All members in sync have all operations up to here.
        held: Counter,
    },
    /// The member does.
    Pong {
        /// The epoch of the ping.
        epoch: u64,
        /// The member's life.
        life: Life,
        /// The time in the ping.
        sent_ns: u64,
    },
    /// A new primary asks a member in sync to hear no older primary any more.
    Seal {
        /// The record that makes it the primary.
        record: VolumeRecord,
    },
    /// The member hears none.
    Sealed {
        /// The epoch of the seal.
        epoch: u64,
        /// The member's life.
        life: Life,
        /// The sectors that it may have and other members may lack.
        tail: ExtentSet,
    },
    /// An operation.
    Append {
        /// The present epoch.
        epoch: u64,
        /// The member's life, as the primary knows it.
        life: Life,
        /// The last operation of this reign that the member did not get.
        began: Counter,
        /// The operation's place in the present reign.
        counter: Counter,
        /// The operation.
        op: Op<D>,
    },
    /// The member has stored all operations from `began` up to this operation.
    Held {
        /// Its life.
        life: Life,
        /// The last operation that it did not get. It is another operation each time that the
        /// member is removed and joins again.
        began: Place,
        /// The operation.
        counter: Counter,
        /// The last change of the snapshots among them that its storage could not make; 0 if it has
        /// made all of them.
        left_out: Counter,
    },
    /// A member that is not in sync asks the primary to be admitted.
    Join {
        /// The epoch that it knows.
        epoch: u64,
        /// Its life.
        life: Life,
        /// The cuts that it has.
        cuts: BTreeSet<Place>,
    },
    /// The member must go back to a cut, and gets all operations behind `began`.
    GoBack {
        /// The present record.
        record: VolumeRecord,
        /// The member's life.
        life: Life,
        /// The cut; none if the member must begin with an empty volume.
        cut: Option<Place>,
        /// The last operation of the present reign that it does not get.
        began: Counter,
    },
    /// A member that was restarted asks another member for its life.
    Hello {
        /// The life of the member that asks.
        life: Life,
        /// The epoch of the record that it knows.
        epoch: u64,
    },
    /// A member's life, and the newest record that it knows.
    Alive {
        /// The life.
        life: Life,
        /// The record.
        record: Option<VolumeRecord>,
        /// The life and the epoch of the [`Message::Hello`] that this answers.
        answers: Option<(Life, u64)>,
    },
    /// An operator's tool at another member asks what this member knows.
    Ask {
        /// The answer has the same number.
        number: u64,
    },
    /// The answer.
    Known {
        /// The question's number.
        number: u64,
        /// The member's knowledge.
        knowledge: Knowledge,
    },
    /// The primary cannot read a range of its own storage, and asks a member in sync for the
    /// content, which no operation changes that the member does not have.
    Lend {
        /// The present epoch.
        epoch: u64,
        /// The member's life, as the primary knows it.
        life: Life,
        /// The primary's last operation.
        counter: Counter,
        /// The range.
        extent: Extent,
    },
    /// The content that the primary has asked for.
    Lent {
        /// The member's life.
        life: Life,
        /// The reign, and the primary's last operation when it asked.
        place: Place,
        /// The range.
        extent: Extent,
        /// The content; none if the member cannot read it either.
        data: Option<D>,
    },
    /// The primary of a volume that is scrubbed asks a member in sync for proofs of a range.
    Prove {
        /// The present epoch.
        epoch: u64,
        /// The member's life, as the primary knows it.
        life: Life,
        /// The number of the question in the primary's reign.
        number: u64,
        /// The range.
        extent: Extent,
        /// The key of the digests.
        key: ScrubKey,
    },
    /// The proofs that the primary has asked for.
    Proved {
        /// The member's life.
        life: Life,
        /// The primary's reign.
        reign: u64,
        /// The number of the question.
        number: u64,
        /// A proof of each block of the range.
        proofs: Vec<BlockProof>,
    },
}

impl<D> Op<D> {
    /// The same operation with the content in another form.
    pub fn map<E>(self, mut form: impl FnMut(D) -> E) -> Op<E> {
        match self {
            Self::Write { id, extent, data } => Op::Write { id, extent, data: form(data) },
            Self::Fill { to, extent, data } => Op::Fill { to, extent, data: form(data) },
            Self::Equal { extent, data } => Op::Equal { extent, data: form(data) },
            Self::Flush { id } => Op::Flush { id },
            Self::Cut => Op::Cut,
            Self::Nothing => Op::Nothing,
            Self::Applied { applied, note } => Op::Applied { applied, note },
            Self::Note { id, note } => Op::Note { id, note },
            Self::Forget(attachment) => Op::Forget(attachment),
            Self::Snapshot { id, change } => Op::Snapshot { id, change },
        }
    }
}

impl<D> Message<D> {
    /// The same message with the content in another form.
    pub fn map<E>(self, mut form: impl FnMut(D) -> E) -> Message<E> {
        match self {
            Self::Append { epoch, life, began, counter, op } => {
                Message::Append { epoch, life, began, counter, op: op.map(form) }
            }
            Self::Ping { record, life, sent_ns, held } => {
                Message::Ping { record, life, sent_ns, held }
            }
            Self::Pong { epoch, life, sent_ns } => Message::Pong { epoch, life, sent_ns },
            Self::Seal { record } => Message::Seal { record },
            Self::Sealed { epoch, life, tail } => Message::Sealed { epoch, life, tail },
            Self::Held { life, began, counter, left_out } => {
                Message::Held { life, began, counter, left_out }
            }
            Self::Join { epoch, life, cuts } => Message::Join { epoch, life, cuts },
            Self::GoBack { record, life, cut, began } => {
                Message::GoBack { record, life, cut, began }
            }
            Self::Hello { life, epoch } => Message::Hello { life, epoch },
            Self::Alive { life, record, answers } => Message::Alive { life, record, answers },
            Self::Ask { number } => Message::Ask { number },
            Self::Known { number, knowledge } => Message::Known { number, knowledge },
            Self::Lend { epoch, life, counter, extent } => {
                Message::Lend { epoch, life, counter, extent }
            }
            Self::Lent { life, place, extent, data } => {
                Message::Lent { life, place, extent, data: data.map(&mut form) }
            }
            Self::Prove { epoch, life, number, extent, key } => {
                Message::Prove { epoch, life, number, extent, key }
            }
            Self::Proved { life, reign, number, proofs } => {
                Message::Proved { life, reign, number, proofs }
            }
        }
    }
}
