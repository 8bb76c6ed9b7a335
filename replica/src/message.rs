//! The messages between members of a volume, and the operations that the primary puts in order.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::{Life, MemberId, VolumeRecord};

/// A client of the volume.
pub type ClientId = u8;

/// A block of the volume.
pub type Block = u32;

/// The place of an operation in the order that the primary of a reign gives them.
pub type Counter = u64;

/// A request of a client. A request that is sent again keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId {
    /// The client.
    pub client: ClientId,
    /// Its requests in order; a client has one request at a time.
    pub number: u32,
}

/// The place of an operation in the order of all operations. A *cut* has it for a name: a snapshot
/// that each member in sync made at the same operation, so it is the same everywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The reign that the operation is of.
    pub reign: u64,
    /// Its number there.
    pub counter: Counter,
}

/// The newest request of each client that was applied.
pub type Applied = BTreeMap<ClientId, u32>;

/// An operation. Each member stores it in the primary's order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op<D> {
    /// A client's write.
    Write {
        /// The request.
        id: RequestId,
        /// Its block.
        block: Block,
        /// The block's new content.
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
    /// A block of a member that joins. Other members leave it out.
    Fill {
        /// The member.
        to: MemberId,
        /// The block.
        block: Block,
        /// Its content at the primary.
        data: D,
    },
    /// A block that members may have differently after a take-over, as the new primary has it.
    Equal {
        /// The block.
        block: Block,
        /// Its content at the primary.
        data: D,
    },
    /// Nothing: an operation that is not for this member.
    Nothing,
    /// The applied requests, as the primary knows them, for members whose content was made the
    /// primary's. All operations before it are durable when it is stored: data that was flushed
    /// before a member had it must be durable there before it counts.
    Applied(Applied),
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
        /// The blocks that it may have and other members may lack.
        tail: BTreeSet<Block>,
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
}
