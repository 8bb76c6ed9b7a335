//! The elements that a driver puts into a ring and takes out of it, of both kinds of rings.

use serde::Serialize;

/// The order in which a driver takes free slots and descriptors, and the values that it stores into
/// them. The traffic between two cores, and so the speed of a polled disk, depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reuse {
    /// Those that were free for longest, and nothing is stored that is there already: where
    /// requests end in order, a descriptor is at the same place of the ring again with the same
    /// contents, and its line stays with both sides. A driver of our own could do that.
    #[default]
    InOrder,
    /// Those that came back last, and all is stored: Linux's `virtio_ring` (`detach_buf_split`
    /// makes the chain that it frees the first free one).
    AsLinux,
}

/// A piece of a request as a descriptor has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestBuffer {
    pub(super) address: u64,
    pub(super) len: u32,
    /// The device writes.
    pub(super) inward: bool,
}

/// A used element.
#[derive(Clone, Copy, Debug)]
pub(super) struct UsedElement {
    /// The request's slot.
    pub(super) slot: u16,
    pub(super) written_bytes: u32,
}

/// Whether the last `batch` steps up to `new` went past `event` (virtio 1.2, 2.7.10 and 2.8.10).
pub(super) fn event_crossed(event: u16, new: u16, batch: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < batch
}
