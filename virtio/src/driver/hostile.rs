//! A hostile guest: any words that a driver can store into its own rings, sense or nonsense.
//!
//! The ring driver does not know the entries that are placed here, so this is of use on rings that
//! carry nothing else; a completion of such an entry is a breach like any other.

use std::sync::atomic::Ordering;

use super::ring::{DriverRing, RingDriver};

/// The words of a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawDescriptor {
    /// Guest physical address.
    pub guest_address: u64,
    /// Bytes.
    pub len: u32,
    /// 1: goes on; 2: the device writes; 4: a table.
    pub flags: u16,
    /// The next one; on a packed ring the buffer's id.
    pub next: u16,
}

impl RingDriver {
    /// Stores a descriptor into the ring's table.
    pub fn place_descriptor(&self, at: u16, descriptor: RawDescriptor) {
        assert!(at < self.layout().shape.size, "descriptor {at}");
        let RawDescriptor { guest_address, len, flags, next } = descriptor;
        match &self.ring {
            DriverRing::Split(ring) => {
                ring.write(self.layout().descriptors, at, guest_address, len, flags, next);
            }
            DriverRing::Packed(ring) => ring.write(at, guest_address, len, flags, next),
        }
    }

    /// Stores a descriptor into a slot's indirect table, and gives the table's address.
    pub fn place_indirect(&self, slot: u16, at: u16, descriptor: RawDescriptor) -> u64 {
        assert!(at < self.layout().shape.segments_max + 2, "descriptor {at}");
        let table = self.layout().table_at(slot);
        let RawDescriptor { guest_address, len, flags, next } = descriptor;
        let DriverRing::Split(ring) = &self.ring else { panic!("a table for a split ring") };
        ring.write(table, at, guest_address, len, flags, next);
        self.memory().guest_address(table)
    }

    /// Stores an element of the available ring without moving the index.
    pub fn place_available(&self, position: u16, head: u16) {
        let entry = self.layout().available_entry_at(position);
        self.memory().u16_at(entry).store(head, Ordering::Relaxed);
    }

    /// Sets the available index in shared memory.
    pub fn set_available_index(&self, index: u16) {
        let at = self.layout().available_index_at();
        self.memory().u16_at(at).store(index, Ordering::Release);
    }

    /// The available index in shared memory.
    pub fn available_index(&self) -> u16 {
        self.memory().u16_at(self.layout().available_index_at()).load(Ordering::Relaxed)
    }
}
