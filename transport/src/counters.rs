//! The counters of an endpoint: everything that it drops has a reason here.

/// Counts since the endpoint was made. One thread writes them; the owner copies them out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointCounters {
    /// Datagrams given to the link.
    pub datagrams_sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// Datagrams that carried nothing but an acknowledgement.
    pub acks_sent: u64,
    /// Own packets that were looked at to work acknowledgements in; each landed one is among them.
    pub ack_steps: u64,
    /// Packets taken for lost.
    pub packets_lost: u64,
    /// Fragments that were sent again.
    pub fragments_resent: u64,
    /// Times that nothing was acknowledged for so long that a packet was sent to ask.
    pub probes_sent: u64,
    /// Body bytes over which a checksum was computed in a pass of its own, sending and receiving.
    pub bytes_checksummed: u64,
    /// Body bytes that were encrypted, and that were decrypted and found right.
    pub bytes_sealed: u64,
    /// See [`bytes_sealed`](Self::bytes_sealed).
    pub bytes_opened: u64,
    /// Body bytes of calls that were copied into the pool.
    pub bytes_copied: u64,

    /// Datagrams received.
    pub datagrams_received: u64,
    /// Their bytes.
    pub bytes_received: u64,
    /// Dropped: shorter than a header, or than it says it is.
    pub dropped_short: u64,
    /// Dropped: a version that is not spoken here.
    pub dropped_version: u64,
    /// Dropped: a kind of packet that does not exist.
    pub dropped_kind: u64,
    /// Dropped: the checksum over header and frames does not match.
    pub dropped_head_checksum: u64,
    /// Dropped: the checksum over the payload does not match.
    pub dropped_payload_checksum: u64,
    /// Dropped: not sealed by the session's peer for us, or changed on the way.
    pub dropped_forged: u64,
    /// Dropped: sealed under a key of long ago, or too far ahead.
    pub dropped_key_epoch: u64,
    /// Dropped and answered by a reset: a session that does not exist here.
    pub dropped_unknown_session: u64,
    /// Dropped: a packet that was received before.
    pub dropped_duplicate: u64,
    /// Dropped: a packet so old that it may have been received before.
    pub dropped_old: u64,
    /// Dropped: frames that break the rules of the protocol.
    pub dropped_violation: u64,
    /// Dropped and not acknowledged: the pool has no buffer for the call.
    pub dropped_no_buffer: u64,
    /// Dropped: a handshake packet that belongs to no attempt of ours, or a Hello of the past.
    pub dropped_stale_handshake: u64,
    /// Dropped: a reset that names no session, or no packet of it that was sent lately.
    pub dropped_stale_reset: u64,
    /// Dropped: a Hello for which there is no room.
    pub dropped_hello_full: u64,
    /// Dropped: a Hello of a source, or at a time, with too many handshakes.
    pub dropped_hello_limited: u64,
    /// Answers (resets, refusals) that were not sent because too many waited.
    pub answers_dropped: u64,
    /// Fragments that had been received before in another packet.
    pub fragments_duplicate: u64,

    /// Resets sent.
    pub resets_sent: u64,
    /// Hellos that were asked to come again with a cookie.
    pub retries_sent: u64,
    /// Operations on a curve, the dear part of handshakes.
    pub public_key_operations: u64,
    /// Sizes of datagrams that an attempt of ours gave up, since nothing came back.
    pub sizes_given_up: u64,
    /// Hellos refused.
    pub hellos_refused: u64,
    /// Hellos redirected to another sidecore.
    pub hellos_redirected: u64,
    /// Sessions that were connected.
    pub sessions_connected: u64,
    /// Sessions that were lost.
    pub sessions_lost: u64,

    /// Calls made.
    pub calls_sent: u64,
    /// Replies to them, complete.
    pub replies_received: u64,
    /// Calls of peers, complete.
    pub calls_received: u64,
    /// Replies to those.
    pub replies_sent: u64,
    /// Calls not taken because the session's table was full.
    pub calls_full: u64,
    /// Times that a call did not begin because its peer had its part of the pool.
    pub calls_beyond_share: u64,
    /// Calls that had to wait for credit.
    pub calls_waited_for_credit: u64,

    /// Casts that were taken to be sent.
    pub casts_sent: u64,
    /// Casts that were not: too many wait, or the session cannot carry them.
    pub casts_refused: u64,
    /// Casts given up before they were sent: they had waited for too long.
    pub casts_overdue: u64,
    /// Casts given up after they were sent: a part of them was lost for too long.
    pub casts_given_up: u64,
    /// Casts of peers, complete and handed over.
    pub casts_received: u64,
    /// Casts of peers that were not waited for any more.
    pub casts_missed: u64,
    /// Fragments of such that came later.
    pub casts_late: u64,
    /// Fragments of casts by a flow that is not open here.
    pub casts_unwanted: u64,
    /// Casts of peers that were dropped because there was no buffer, or no place.
    pub casts_no_buffer: u64,
}

impl EndpointCounters {
    /// All datagrams that were dropped, for all reasons.
    pub fn dropped(&self) -> u64 {
        self.dropped_short
            + self.dropped_version
            + self.dropped_kind
            + self.dropped_head_checksum
            + self.dropped_payload_checksum
            + self.dropped_unknown_session
            + self.dropped_duplicate
            + self.dropped_old
            + self.dropped_violation
            + self.dropped_no_buffer
            + self.dropped_stale_handshake
            + self.dropped_stale_reset
            + self.dropped_hello_full
            + self.dropped_hello_limited
            + self.dropped_forged
            + self.dropped_key_epoch
    }
}
