//! The driver's end of a virtqueue whose chains are nothing but bytes, all of them in one
//! direction: the queues of virtio-net.
//!
//! As for [`RingDriver`](super::RingDriver), chains are staged and then shown all at once, nothing
//! allocates after construction, and a violation by the device is a [`Breach`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use super::complete::sleep_until;
use super::elements::{RequestBuffer, UsedElement};
use super::event::signal;
use super::layout::QueueLayout;
use super::memory::GuestMemory;
use super::request::{Breach, RequestSlot};
use super::ring::{DriverRing, RingOptions, either, queue_config};
use crate::memory::Memory;
use crate::queue::QueueConfig;

/// A piece of a slot's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FramePart {
    /// Where it begins in the buffer.
    pub offset: u32,
    /// Its length in bytes.
    pub len: u32,
}

/// See the module's text.
#[derive(Debug)]
pub struct FrameRing {
    memory: Arc<GuestMemory>,
    layout: QueueLayout,
    options: RingOptions,
    ring: DriverRing,
    /// The device writes.
    inward: bool,
    slots_free: Vec<u16>,
    /// The length that was posted of each slot, in bytes; zero where the caller has the slot.
    posted: Box<[u32]>,
    /// Calls that ended a sleep.
    calls: u64,
    broken: Option<Breach>,
}

impl FrameRing {
    /// A driver for a queue whose memory is fresh. `inward`: its buffers are for the device to
    /// write.
    pub fn new(
        memory: Arc<GuestMemory>,
        layout: &QueueLayout,
        options: RingOptions,
        inward: bool,
    ) -> Self {
        let mut ring = DriverRing::new(Arc::clone(&memory), layout, &options);
        either!(&mut ring, ring => ring.refuse_calls());
        let slots = layout.shape.slots;
        Self {
            memory,
            layout: *layout,
            options,
            ring,
            inward,
            slots_free: (0..slots).rev().collect(),
            posted: vec![0; usize::from(slots)].into(),
            calls: 0,
            broken: None,
        }
    }

    /// The configuration with which a device serves the ring in this process.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn queue_config(&self, memory: Arc<Memory>) -> io::Result<QueueConfig> {
        queue_config(&self.layout, &self.memory, &self.options, self.base(), memory)
    }

    /// Where a device that knows nothing else goes on, in the form of SET_VRING_BASE.
    pub fn base(&self) -> u32 {
        match &self.ring {
            DriverRing::Split(ring) => u32::from(ring.used_index()),
            DriverRing::Packed(ring) => ring.base(),
        }
    }

    /// Chains that the device has, or will have once they are shown.
    pub fn outstanding(&self) -> u16 {
        either!(&self.ring, ring => ring.outstanding())
    }

    /// A free slot, now the caller's.
    pub fn take_slot(&mut self) -> Option<RequestSlot> {
        self.slots_free.pop().map(RequestSlot)
    }

    /// Gives a slot back.
    pub fn release(&mut self, slot: RequestSlot) {
        assert_eq!(self.posted[slot.index()], 0, "the device has it");
        self.slots_free.push(slot.0);
    }

    /// Copies bytes into a slot's buffer.
    pub fn write(&self, slot: RequestSlot, offset: u32, bytes: &[u8]) {
        let room = self.layout.shape.transfer_bytes_max as usize;
        assert!(offset as usize + bytes.len() <= room, "{} bytes at {offset}", bytes.len());
        self.memory.write(self.layout.data_at(slot.0) + offset as usize, bytes);
    }

    /// Copies bytes out of a slot's buffer.
    pub fn read(&self, slot: RequestSlot, offset: u32, bytes: &mut [u8]) {
        self.memory.read(self.layout.data_at(slot.0) + offset as usize, bytes);
    }

    /// Stages a chain of these parts of a slot's buffer, in one table where `indirect`. `false`
    /// when too few descriptors are free; the slot is the caller's still.
    ///
    /// # Panics
    /// When there are no parts, or more than an indirect table of the plan has room for.
    pub fn post(&mut self, slot: RequestSlot, parts: &[FramePart], indirect: bool) -> bool {
        assert!(!parts.is_empty() && self.posted[slot.index()] == 0);
        let room = usize::from(self.layout.shape.segments_max) + 2;
        assert!(!indirect || (self.options.indirect && parts.len() <= room), "{}", parts.len());
        let needed = if indirect { 1 } else { parts.len() };
        if needed > usize::from(either!(&self.ring, ring => ring.free())) {
            return false;
        }
        let (data, inward) = (self.memory.guest_address(self.layout.data_at(slot.0)), self.inward);
        let buffer = |at: usize| {
            let FramePart { offset, len } = parts[at];
            RequestBuffer { address: data + u64::from(offset), len, inward }
        };
        let table = indirect.then(|| {
            let at = self.layout.table_at(slot.0);
            (at, self.memory.guest_address(at))
        });
        either!(&mut self.ring, ring => ring.add(slot.0, table, parts.len(), buffer));
        self.posted[slot.index()] = parts.iter().map(|part| part.len).sum::<u32>().max(1);
        true
    }

    /// Shows the device everything that is staged. `true` when it asked for a kick; it was kicked
    /// if the ring has the means.
    pub fn publish(&mut self) -> bool {
        let due = either!(&mut self.ring, ring => ring.publish());
        if due && let Some(kick) = &self.options.kick {
            signal(kick);
        }
        due
    }

    /// Waits until a chain comes back: `false` when none did within the time. Calls are asked for
    /// only while it waits.
    ///
    /// # Errors
    /// When the device broke the protocol.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, Breach> {
        let Some(call) = self.options.call.clone() else { return Ok(false) };
        either!(&mut self.ring, ring => ring.ask_for_calls());
        // The wish must be seen before the ring is read, or both sides fall asleep.
        fence(Ordering::SeqCst);
        let ready = self.look()?
            || sleep_until(&call, timeout, |called| {
                self.calls += u64::from(called);
                self.look()
            })?;
        either!(&mut self.ring, ring => ring.refuse_calls());
        Ok(ready)
    }

    /// Calls of the device that ended a sleep so far.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// `true` when there is something to take.
    fn look(&mut self) -> Result<bool, Breach> {
        if let Some(breach) = self.broken {
            return Err(breach);
        }
        let looked = either!(&mut self.ring, ring => ring.look());
        self.broken = looked.err();
        looked
    }

    /// The next chain that came back, if there is one, and how many bytes the device says it wrote.
    ///
    /// # Errors
    /// When the device broke the protocol; from then on always the same.
    #[inline]
    pub fn complete(&mut self) -> Result<Option<(RequestSlot, u32)>, Breach> {
        if let Some(breach) = self.broken {
            return Err(breach);
        }
        let taken = self.take_used();
        self.broken = taken.err();
        taken
    }

    fn take_used(&mut self) -> Result<Option<(RequestSlot, u32)>, Breach> {
        if !either!(&mut self.ring, ring => ring.look())? {
            return Ok(None);
        }
        let UsedElement { slot, written_bytes } =
            either!(&mut self.ring, ring => ring.take_used())?;
        let posted = std::mem::take(&mut self.posted[usize::from(slot)]);
        let room = if self.inward { posted } else { 0 };
        if written_bytes > room {
            let (queue, written) = (self.layout.index, written_bytes);
            return Err(Breach::UsedBeyond { queue, written, room });
        }
        Ok(Some((RequestSlot(slot), written_bytes)))
    }
}
