//! Where everything lies in the memory of a stand-in guest.
//!
//! ```text
//! queue 0: descriptors | available | used | slot records | indirect tables | data, one per slot
//! queue 1: ...
//! ```
//!
//! Positions are offsets into [`GuestMemory`](super::GuestMemory); that type turns them into guest
//! and host addresses. Rings follow virtio 1.2: the split layout of section 2.7, or the packed one
//! of section 2.8, whose ring and event structures are where the split ring has its three parts.

use super::memory::{GuestMemory, PAGE_BYTES};

/// Bytes of a descriptor in the ring and in an indirect table.
pub(super) const DESCRIPTOR_BYTES: usize = 16;

/// Bytes of an element of the used ring: the head and how much was written.
pub(super) const USED_ELEMENT_BYTES: usize = 8;

/// A slot's record is one cache line, so that two slots never share one.
pub(super) const SLOT_RECORD_BYTES: usize = 64;

/// The largest split ring that virtio allows.
pub const RING_SIZE_MAX: u16 = 1 << 15;

/// Rings, records and tables start at a cache line.
const LINE_BYTES: usize = 64;

/// Header (type, reserved, sector) of a virtio-blk request.
pub(super) const HEADER_BYTES: u32 = 16;

/// Where the status byte lies in a slot's record: behind the header.
pub(super) const STATUS_OFFSET: usize = 32;

/// The size of a queue and of the requests that it can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingShape {
    /// Descriptors in the ring: a power of two, at most [`RING_SIZE_MAX`].
    pub size: u16,
    /// Requests that can be outstanding; at most `size`.
    pub slots: u16,
    /// Room for data in each slot.
    pub transfer_bytes_max: u32,
    /// The most pieces that a request's data is cut into.
    pub segments_max: u16,
}

impl Default for RingShape {
    /// The shape of QEMU's rings: 128 descriptors; and requests of at most 64 KiB in 16 pieces.
    fn default() -> Self {
        Self { size: 128, slots: 128, transfer_bytes_max: 64 << 10, segments_max: 16 }
    }
}

impl RingShape {
    fn check(&self) {
        assert!(self.size.is_power_of_two() && self.size <= RING_SIZE_MAX, "ring of {}", self.size);
        assert!(self.slots >= 1 && self.slots <= self.size, "{} slots", self.slots);
        assert!(self.transfer_bytes_max >= 512, "no room for a sector");
        assert!(self.segments_max >= 1, "no room for data");
    }

    /// Bytes between two slots' data buffers.
    pub(super) fn data_stride(&self) -> usize {
        (self.transfer_bytes_max as usize).next_multiple_of(PAGE_BYTES)
    }

    /// Bytes between two slots' indirect tables: header, pieces and status.
    fn table_stride(&self) -> usize {
        ((usize::from(self.segments_max) + 2) * DESCRIPTOR_BYTES).next_multiple_of(LINE_BYTES)
    }
}

/// The offsets of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLayout {
    /// The queue's number.
    pub index: u16,
    /// Its size.
    pub shape: RingShape,
    /// Offset of the descriptor table.
    pub descriptors: usize,
    /// Offset of the available ring.
    pub available: usize,
    /// Offset of the used ring.
    pub used: usize,
    /// Offset of a word that is the driver's own.
    pub(super) note: usize,
    records: usize,
    tables: usize,
    data: usize,
}

/// The addresses of a queue as its device needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddresses {
    /// Of the descriptor table.
    pub descriptors: u64,
    /// Of the available ring.
    pub available: u64,
    /// Of the used ring.
    pub used: u64,
}

impl QueueLayout {
    /// The rings' guest physical addresses.
    pub fn guest_addresses(&self, memory: &GuestMemory) -> RingAddresses {
        RingAddresses {
            descriptors: memory.guest_address(self.descriptors),
            available: memory.guest_address(self.available),
            used: memory.guest_address(self.used),
        }
    }

    /// The rings' addresses in this process, as SET_VRING_ADDR carries them.
    pub fn host_addresses(&self, memory: &GuestMemory) -> RingAddresses {
        RingAddresses {
            descriptors: memory.host_address(self.descriptors),
            available: memory.host_address(self.available),
            used: memory.host_address(self.used),
        }
    }

    /// Offset of a slot's data buffer.
    pub fn data_at(&self, slot: u16) -> usize {
        assert!(slot < self.shape.slots, "slot {slot}");
        self.data + usize::from(slot) * self.shape.data_stride()
    }

    pub(super) fn header_at(&self, slot: u16) -> usize {
        self.records + usize::from(slot) * SLOT_RECORD_BYTES
    }

    pub(super) fn status_at(&self, slot: u16) -> usize {
        self.header_at(slot) + STATUS_OFFSET
    }

    pub(super) fn table_at(&self, slot: u16) -> usize {
        self.tables + usize::from(slot) * self.shape.table_stride()
    }

    pub(super) fn available_index_at(&self) -> usize {
        self.available + 2
    }

    pub(super) fn available_entry_at(&self, position: u16) -> usize {
        self.available + 4 + 2 * usize::from(position & (self.shape.size - 1))
    }

    /// The used-event field behind the available ring.
    pub(super) fn used_event_at(&self) -> usize {
        self.available + 4 + 2 * usize::from(self.shape.size)
    }

    pub(super) fn used_index_at(&self) -> usize {
        self.used + 2
    }

    pub(super) fn used_entry_at(&self, position: u16) -> usize {
        self.used + 4 + USED_ELEMENT_BYTES * usize::from(position & (self.shape.size - 1))
    }

    /// The available-event field behind the used ring.
    pub(super) fn available_event_at(&self) -> usize {
        self.used + 4 + USED_ELEMENT_BYTES * usize::from(self.shape.size)
    }
}

/// All queues, and how much memory they need.
#[derive(Clone, Debug)]
pub(super) struct GuestLayout {
    pub(super) queues: Vec<QueueLayout>,
    pub(super) len: usize,
    /// Page-aligned offsets between which no ring, table or buffer is cut.
    pub(super) seams: Vec<usize>,
}

impl GuestLayout {
    /// Puts `queues` equal queues one behind the other.
    pub(super) fn new(queues: u16, shape: RingShape) -> Self {
        shape.check();
        assert!(queues >= 1, "a guest without queues");
        let (size, slots) = (usize::from(shape.size), usize::from(shape.slots));
        let mut layout = Self { queues: Vec::new(), len: 0, seams: Vec::new() };
        for index in 0..queues {
            layout.seams.push(layout.len);
            let descriptors = layout.room(size * DESCRIPTOR_BYTES, LINE_BYTES);
            let available = layout.room(6 + 2 * size, LINE_BYTES);
            let used = layout.room(6 + USED_ELEMENT_BYTES * size, LINE_BYTES);
            let note = layout.room(8, LINE_BYTES);
            let records = layout.room(slots * SLOT_RECORD_BYTES, LINE_BYTES);
            let tables = layout.room(slots * shape.table_stride(), LINE_BYTES);
            let data = layout.room(slots * shape.data_stride(), PAGE_BYTES);
            layout.seams.extend((0..slots).map(|slot| data + slot * shape.data_stride()));
            layout.queues.push(QueueLayout {
                index,
                shape,
                descriptors,
                available,
                used,
                note,
                records,
                tables,
                data,
            });
        }
        layout.len = layout.len.next_multiple_of(PAGE_BYTES);
        layout
    }

    fn room(&mut self, bytes: usize, align: usize) -> usize {
        let at = self.len.next_multiple_of(align);
        self.len = at + bytes;
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_aligned_and_do_not_overlap() {
        let shape = RingShape { size: 8, slots: 5, transfer_bytes_max: 5000, segments_max: 3 };
        let layout = GuestLayout::new(3, shape);
        let mut end = 0;
        for queue in &layout.queues {
            let parts = [
                (queue.descriptors, 8 * 16, 16),
                (queue.available, 6 + 16, 2),
                (queue.used, 6 + 64, 4),
                (queue.note, 8, 8),
                (queue.header_at(0), 5 * 64, 64),
                (queue.table_at(0), 5 * 128, 16),
                (queue.data_at(0), 5 * 8192, 4096),
            ];
            for (at, bytes, align) in parts {
                assert!(at >= end, "{at} after {end}");
                assert_eq!(at % align, 0);
                end = at + bytes;
            }
        }
        assert!(layout.len >= end && layout.len.is_multiple_of(PAGE_BYTES));
        assert_eq!(layout.queues[0].used_event_at(), layout.queues[0].available + 20);
        assert_eq!(layout.queues[0].available_event_at(), layout.queues[0].used + 68);
        assert!(layout.seams.iter().all(|seam| seam % PAGE_BYTES == 0 || *seam == 0));
    }
}
