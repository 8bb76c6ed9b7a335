//! What members of a volume say to each other, and the operations that the primary puts in order.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::{Life, MemberId, Record};

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

/// A snapshot that each member in sync made at the same operation, so it is the same everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cut {
    /// The reign of that operation.
    pub reign: u64,
    /// Its place.
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
    /// primary's. All operations before it are durable when it is stored: what was flushed before a
    /// member had it must be durable there before it counts.
    Applied(Applied),
}

/// A message from one member to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message<D> {
    /// The primary asks a member to let it serve for another while.
    Ping {
        /// The present record.
        record: Record,
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
        record: Record,
    },
    /// The member hears none.
    Sealed {
        /// The epoch of the seal.
        epoch: u64,
        /// The member's life.
        life: Life,
        /// Its count of attempts to join.
        admission: u32,
        /// The blocks that it may have and others may lack.
        tail: BTreeSet<Block>,
    },
    /// An operation.
    Append {
        /// The present epoch.
        epoch: u64,
        /// The member's life, as the primary knows it.
        life: Life,
        /// The member's count of its attempts to join.
        admission: u32,
        /// The operation's place in the present reign.
        counter: Counter,
        /// The operation.
        op: Op<D>,
    },
    /// The member has stored all operations up to this one.
    Held {
        /// The epoch that the member knows.
        epoch: u64,
        /// Its life.
        life: Life,
        /// Its count of attempts to join.
        admission: u32,
        /// The operation.
        counter: Counter,
    },
    /// A member that is not in sync asks the primary to be admitted.
    Join {
        /// The epoch that it knows.
        epoch: u64,
        /// Its life.
        life: Life,
        /// Its count of attempts to join.
        admission: u32,
        /// The cuts that it has.
        cuts: BTreeSet<Cut>,
    },
    /// The member must go back to a cut, and gets all operations after `counter`.
    GoBack {
        /// The present record.
        record: Record,
        /// The member's life.
        life: Life,
        /// Its attempt to join.
        admission: u32,
        /// The cut; none if the member must begin with an empty volume.
        cut: Option<Cut>,
        /// The last operation that it does not get.
        counter: Counter,
    },
    /// A member that was restarted asks another one for its life.
    Hello,
    /// Its life, and the newest record that it knows.
    Alive {
        /// The life.
        life: Life,
        /// The record.
        record: Option<Record>,
    },
}
