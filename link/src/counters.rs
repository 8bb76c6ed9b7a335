//! The counters of a link.

sidecore::counters! {
    /// Written by the link's sidecore only. A *message* is what one system call hands to the kernel
    /// or gets from it as a unit: a datagram, or a group of them that share one trip through the
    /// stack.
    #[repr(align(128))]
    pub struct LinkCounters {
        send_calls: "System calls to send.",
        send_messages: "Messages sent: datagrams, or groups of them.",
        /// Groups are made by UDP_SEGMENT.
        send_groups: "Messages sent that were groups.",
        datagrams_sent: "Datagrams sent.",
        bytes_sent: "Their bytes, without UDP's and IP's headers.",
        /// The socket's buffer was full.
        send_refused: "Calls after which datagrams were left over.",
        /// No route, forbidden, or too long.
        send_dropped: "Datagrams that the system will not send.",
        /// A part: for large datagrams only.
        grouping_reduced: "Times that grouping was reduced or ended.",
        /// Calls that found nothing are included.
        receive_calls: "System calls to receive.",
        receive_messages: "Messages received.",
        /// Groups are made by UDP_GRO.
        receive_groups: "Messages received that were groups.",
        datagrams_received: "Datagrams received.",
        bytes_received: "Their bytes.",
        /// Longer than any message that a link expects.
        receive_dropped: "Messages that are too long, or have no sender's address.",
        /// For instance, a peer's host said that no process listens.
        errors_late: "Errors of an earlier datagram.",
        errors_other: "Calls that failed for a reason that is not known.",
    }
}
