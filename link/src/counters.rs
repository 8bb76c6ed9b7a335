//! What a link counts.

use sidecore::Counter;

/// Written by the link's sidecore only. A *message* is what one system call hands to the kernel or
/// gets from it as a unit: a datagram, or a group of them that share one trip through the stack.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct LinkCounters {
    /// System calls to send.
    pub send_calls: Counter,
    /// Messages sent.
    pub send_messages: Counter,
    /// Messages sent that were groups (UDP_SEGMENT).
    pub send_groups: Counter,
    /// Datagrams sent.
    pub datagrams_sent: Counter,
    /// Their bytes, without UDP's and IP's headers.
    pub bytes_sent: Counter,
    /// Calls after which datagrams were left over: the socket's buffer was full.
    pub send_refused: Counter,
    /// Datagrams dropped because the system will not send them: no route, forbidden, too long.
    pub send_dropped: Counter,
    /// How often grouping was given up, wholly or for large datagrams.
    pub grouping_reduced: Counter,
    /// System calls to receive, those that found nothing included.
    pub receive_calls: Counter,
    /// Messages received.
    pub receive_messages: Counter,
    /// Messages received that were groups (UDP_GRO).
    pub receive_groups: Counter,
    /// Datagrams received.
    pub datagrams_received: Counter,
    /// Their bytes.
    pub bytes_received: Counter,
    /// Messages dropped because they were longer than any that we expect, or from nowhere.
    pub receive_dropped: Counter,
    /// Errors that were about an earlier datagram (a peer's host said that nobody listens).
    pub errors_late: Counter,
    /// Calls that failed for a reason that we do not know.
    pub errors_other: Counter,
}
