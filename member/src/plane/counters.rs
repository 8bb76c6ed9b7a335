//! The counters of a sidecore's plane of replicas.

sidecore::counters! {
    /// The counters of a plane; one writer, its sidecore.
    pub struct ReplicaPlaneCounters {
        sent: "Messages to members of replicated volumes on other nodes.",
        sent_bytes: "Bytes of content and lists in these messages.",
        copied_bytes: "Bytes that were copied into buffers for these messages.",
        unsent: "Messages that were dropped because their node has no session, or no such member.",
        held_back: "Messages that had to wait because enough was under way to their node.",
        lost: "Messages that were under way when their session ended.",
        refused_there: "Messages that the other node refused: no such member, or too many waiting.",
        taken: "Messages of members on other nodes that were taken.",
        taken_bytes: "Bytes of content in these messages.",
        waited: "Messages that had to wait for an earlier one, or for room in a mailbox.",
        refused: "Messages of peers about volumes that are not theirs, or not here.",
        unlike: "Volumes of which a peer has a copy with another list, size or other settings.",
        overflowed: "Messages of peers that were refused because too many others of them waited.",
        malformed: "Messages of peers that are not valid.",
    }
}
