//! The counters of a server.

use sidecore::Counter;

sidecore::counters! {
    /// The counters of one server. Its sidecore is their only writer.
    pub struct ServerCounters {
        /// Requests that were answered: reads, writes, flushes, ranges that were zeroed.
        requests: "Requests of peers.",
        /// Bytes read, written and zeroed.
        bytes: "Bytes of peers' requests that succeeded.",
        /// Answers other than done.
        errors: "Requests of peers that failed.",
        /// The epoch or the incarnation of such a request was over.
        fenced: "Requests refused because a successor has the volume.",
        /// Room is a buffer or a slot.
        parked: "Requests that had to wait for room.",
        /// Heads that were not in the protocol's form.
        malformed: "Messages that are not valid.",
        /// Claims that were answered with an epoch.
        claims: "Claims of epochs.",
        /// Proofs of attachment keys that were looked at.
        proofs,
        /// Channels ended because their node or attachment key is no longer allowed.
        revoked,
    }
    and {
        /// Channels that were looked at, over all rounds: those with something under way, and a few
        /// of the others in turn.
        pub looked_at: Counter,
    }
}
