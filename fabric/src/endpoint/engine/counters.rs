//! The counters of an endpoint; its one thread counts, in memory of its own.

/// See the fields; all since the endpoint began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounters {
    /// Messages sent within a cell.
    pub inline_sends: u64,
    /// Messages sent through a buffer of the slab.
    pub eager_sends: u64,
    /// Messages that were offered, for the receiver to fetch.
    pub rendezvous_sends: u64,
    /// Messages that were pushed to other hosts, piece by piece, before their receivers asked.
    pub pushed_sends: u64,
    /// Sends that found no room in the receiver's ring or the own slab, and have waited here.
    pub waited_sends: u64,
    /// Sends that found no room in these, and no room to wait either.
    pub busy: u64,
    /// Messages that came, of all kinds.
    pub messages: u64,
    /// Messages that no receive waited for.
    pub unexpected: u64,
    /// Offers that were read out of the sender's memory: one copy.
    pub single_copies: u64,
    /// Offers that came through the sender's slab: two copies.
    pub pipelines: u64,
    /// Cells that were passed over since their producers died.
    pub skipped_cells: u64,
    /// Cells for the former owner of the slot, or from a former owner of the sender's slot.
    pub strays: u64,
    /// Cells, or rings of others, that broke the region's rules.
    pub nonsense: u64,
    /// Requests that ended because the other endpoint was gone.
    pub gone: u64,
}
