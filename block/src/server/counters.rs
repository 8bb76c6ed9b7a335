//! The counters of a server.

use sidecore::Counter;

/// The counters of one server. Its sidecore is their only writer.
#[derive(Debug, Default)]
pub struct ServerCounters {
    /// Requests about volumes answered: reads, writes, flushes, ranges that were zeroed.
    pub requests: Counter,
    /// Bytes read, written and zeroed.
    pub bytes: Counter,
    /// Answers other than done.
    pub errors: Counter,
    /// Requests whose epoch or incarnation was over.
    pub fenced: Counter,
    /// Requests that waited for a buffer or a slot.
    pub parked: Counter,
    /// Heads that were not in the protocol's form.
    pub malformed: Counter,
    /// Claims answered with an epoch.
    pub claims: Counter,
    /// Proofs of attachment keys that were looked at.
    pub proofs: Counter,
    /// Channels that were looked at, over all rounds: those with something under way, and a few of
    /// the others in turn.
    pub looked_at: Counter,
    /// Channels ended because their node or attachment key is no longer allowed.
    pub revoked: Counter,
}
