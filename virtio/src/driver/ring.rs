//! The driver's end of a split virtqueue for virtio-blk.
//!
//! Requests are staged with [`RingDriver::submit`] and shown to the device all at once by
//! [`RingDriver::publish`], which kicks if the device wants it. [`RingDriver::complete`] gives
//! finished requests one by one and checks everything that the device says; the first breach of
//! the protocol ends the ring's life with a name. Nothing here allocates after construction, and
//! the only system calls are kicks and waits.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::event::signal;
use super::layout::{DESCRIPTOR_BYTES, HEADER_BYTES, QueueLayout, STATUS_OFFSET};
use super::memory::GuestMemory;
use super::request::{
    Breach, Data, Op, Request, STATUS_PARKED, STATUS_UNWRITTEN, Slot, SubmitError,
};
use crate::memory::Memory;
use crate::split::QueueConfig;

/// Descriptor flag: the chain goes on.
const NEXT: u16 = 1;
/// Descriptor flag: the device writes.
const WRITE: u16 = 2;
/// Descriptor flag: a table of descriptors.
const INDIRECT: u16 = 4;
/// Used flag: no kicks, please.
const NO_NOTIFY: u16 = 1;

/// What was negotiated for a ring, and how it signals.
#[derive(Clone, Debug, Default)]
pub struct RingOptions {
    /// VIRTIO_RING_F_EVENT_IDX.
    pub event_idx: bool,
    /// VIRTIO_RING_F_INDIRECT_DESC; see also [`RingDriver::set_indirect`].
    pub indirect: bool,
    /// Written to wake the device. Without it, `publish` only says that a kick is due.
    pub kick: Option<Arc<OwnedFd>>,
    /// Written by the device.
    pub call: Option<Arc<OwnedFd>>,
}

/// What a ring did. Events per request do not depend on the machine's speed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCounters {
    /// Requests staged.
    pub submitted: u64,
    /// Requests completed.
    pub completed: u64,
    /// Kicks that the device asked for.
    pub kicks: u64,
    /// Waits that ended by a call.
    pub calls: u64,
    /// Completions found when a wait's time was over, although a call was asked for.
    pub calls_missed: u64,
    /// Submissions refused because too few descriptors were free.
    pub full: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DescriptorState {
    /// Free, and not the head of the last chain it was in.
    Unused,
    /// Free, and the head of a chain that was completed.
    Completed,
    /// The head of an outstanding chain.
    Head,
    /// Further on in an outstanding chain.
    Inner,
}

/// What we keep about a descriptor outside the device's reach.
#[derive(Clone, Copy, Debug)]
pub(super) struct Descriptor {
    pub(super) next: u16,
    /// The request; for heads.
    pub(super) slot: u16,
    pub(super) state: DescriptorState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Nobody,
    User,
    Device,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct SlotState {
    pub(super) owner: Owner,
    pub(super) op: Op,
    pub(super) token: u64,
    /// Bytes that the device may write, the status among them.
    pub(super) room: u32,
    /// Descriptors of the ring that the request takes.
    pub(super) descriptors: u16,
    /// Where its record (which the header begins), its table and its data are in the guest.
    record: u64,
    table: u64,
    data: u64,
}

/// The driver's end of one queue.
#[derive(Debug)]
pub struct RingDriver {
    pub(super) memory: Arc<GuestMemory>,
    pub(super) layout: QueueLayout,
    pub(super) options: RingOptions,
    pub(super) indirect: bool,
    pub(super) descriptors: Box<[Descriptor]>,
    pub(super) free_first: u16,
    pub(super) free: u16,
    pub(super) slots: Box<[SlotState]>,
    pub(super) slots_free: Vec<u16>,
    /// The available index with, and without, what is staged.
    pub(super) available: u16,
    pub(super) published: u16,
    /// The used index up to which completions were given, and the last one read.
    pub(super) used_seen: u16,
    pub(super) used_known: u16,
    /// The used index when calls were last put off.
    pub(super) calls_off_at: u16,
    pub(super) broken: Option<Breach>,
    pub(super) counters: RingCounters,
}

impl RingDriver {
    /// A driver for a queue whose memory is fresh.
    pub fn new(memory: Arc<GuestMemory>, layout: &QueueLayout, options: RingOptions) -> Self {
        let shape = layout.shape;
        let descriptors = (0..shape.size)
            .map(|at| Descriptor { next: at + 1, slot: 0, state: DescriptorState::Unused })
            .collect();
        let slot_state = |slot| SlotState {
            owner: Owner::Nobody,
            op: Op::Flush,
            token: 0,
            room: 0,
            descriptors: 0,
            record: memory.guest_address(layout.header_at(slot)),
            table: memory.guest_address(layout.table_at(slot)),
            data: memory.guest_address(layout.data_at(slot)),
        };
        let slots = (0..shape.slots).map(slot_state).collect();
        for slot in 0..shape.slots {
            memory.u8_at(layout.status_at(slot)).store(STATUS_PARKED, Ordering::Relaxed);
        }
        let mut ring = Self {
            memory,
            layout: *layout,
            indirect: options.indirect,
            options,
            descriptors,
            free_first: 0,
            free: shape.size,
            slots,
            slots_free: (0..shape.slots).rev().collect(),
            available: 0,
            published: 0,
            used_seen: 0,
            used_known: 0,
            calls_off_at: 0,
            broken: None,
            counters: RingCounters::default(),
        };
        ring.disarm_calls();
        ring
    }

    /// The queue's place and size.
    pub fn layout(&self) -> &QueueLayout {
        &self.layout
    }

    /// The guest's memory.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// What a device needs to serve the ring in this process. It goes on from the used index; the
    /// caller adds an inflight region if there is one.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn queue_config(&self, memory: Arc<Memory>) -> io::Result<QueueConfig> {
        let at = self.layout.guest_addresses(&self.memory);
        let share = |event: &Option<Arc<OwnedFd>>| {
            event.as_ref().map(|event| event.as_fd().try_clone_to_owned()).transpose()
        };
        Ok(QueueConfig {
            index: usize::from(self.layout.index),
            size: self.layout.shape.size,
            memory,
            desc: at.descriptors,
            avail: at.available,
            used: at.used,
            base: self.used_index(),
            event_idx: self.options.event_idx,
            indirect: self.options.indirect,
            kick: share(&self.options.kick)?,
            call: share(&self.options.call)?,
            err: None,
            inflight: None,
        })
    }

    /// What it did so far.
    pub fn counters(&self) -> RingCounters {
        self.counters
    }

    /// Requests that the device holds, or will hold once published.
    pub fn outstanding(&self) -> u16 {
        self.available.wrapping_sub(self.used_seen)
    }

    /// Requests that were published and that the device has not given back, as shared memory says
    /// now: what a kill would catch.
    pub fn held_by_device(&self) -> u16 {
        self.published.wrapping_sub(self.used_index())
    }

    /// The breach that ended the ring, if one did.
    pub fn breach(&self) -> Option<Breach> {
        self.broken
    }

    /// The used index in shared memory: where a device without an inflight region starts anew.
    pub fn used_index(&self) -> u16 {
        self.memory.u16_at(self.layout.used_index_at()).load(Ordering::Acquire)
    }

    /// Whether further requests use indirect tables. Only when that was negotiated.
    pub fn set_indirect(&mut self, indirect: bool) {
        assert!(self.options.indirect || !indirect, "INDIRECT_DESC was not negotiated");
        self.indirect = indirect;
    }

    /// A free slot, now the caller's.
    pub fn take_slot(&mut self) -> Option<Slot> {
        let index = self.slots_free.pop()?;
        self.slots[usize::from(index)].owner = Owner::User;
        Some(Slot(index))
    }

    /// Gives a slot back.
    pub fn release(&mut self, slot: Slot) {
        self.check_held(slot);
        self.slots[slot.index()].owner = Owner::Nobody;
        self.slots_free.push(slot.0);
    }

    /// The guest address of a slot's buffer.
    pub fn guest_address(&self, slot: Slot) -> u64 {
        self.slots[slot.index()].data
    }

    /// Copies bytes into a held slot's buffer.
    pub fn write(&self, slot: Slot, offset: u32, bytes: &[u8]) {
        self.check_within(slot, offset, bytes.len());
        self.memory.write(self.layout.data_at(slot.0) + offset as usize, bytes);
    }

    /// Copies bytes out of a held slot's buffer.
    pub fn read(&self, slot: Slot, offset: u32, bytes: &mut [u8]) {
        self.check_within(slot, offset, bytes.len());
        self.memory.read(self.layout.data_at(slot.0) + offset as usize, bytes);
    }

    /// Fills the first `len` bytes of a held slot with words that follow from the seed and their
    /// place; `len` is a multiple of eight.
    pub fn fill(&self, slot: Slot, len: u32, seed: u64) {
        self.check_within(slot, 0, len as usize);
        let base = self.layout.data_at(slot.0);
        for at in (0..len).step_by(8) {
            let word = pattern(seed, at);
            self.memory.u64_at(base + at as usize).store(word, Ordering::Relaxed);
        }
    }

    /// Where the first `len` bytes of a held slot first differ from what `fill` put there.
    pub fn mismatch(&self, slot: Slot, len: u32, seed: u64) -> Option<u32> {
        self.check_within(slot, 0, len as usize);
        let base = self.layout.data_at(slot.0);
        (0..len).step_by(8).find(|at| {
            let word = self.memory.u64_at(base + *at as usize).load(Ordering::Relaxed);
            word != pattern(seed, *at)
        })
    }

    /// Stages a request. The slot is the device's from now on.
    ///
    /// # Errors
    /// When too few descriptors are free, or the device broke the protocol before; the slot then
    /// stays with the caller.
    pub fn submit(&mut self, request: &Request<'_>) -> Result<(), SubmitError> {
        self.check_held(request.slot);
        if let Some(breach) = self.broken {
            return Err(breach.into());
        }
        let count = 2 + request.data.count();
        if !matches!(request.data, Data::Pieces(_)) {
            let room = u64::from(self.layout.shape.transfer_bytes_max);
            assert!(request.data.bytes() <= room, "{} bytes in a slot", request.data.bytes());
        }
        let indirect = self.indirect;
        assert!(
            !indirect || count <= usize::from(self.layout.shape.segments_max) + 2,
            "{count} descriptors in an indirect table"
        );
        let needed = if indirect { 1 } else { count };
        if needed > usize::from(self.free) {
            self.counters.full += 1;
            let needed = u16::try_from(needed).unwrap_or(u16::MAX);
            return Err(SubmitError::Full { needed, free: self.free });
        }
        self.check_parked(request.slot)?;
        let status = self.memory.u8_at(self.layout.status_at(request.slot.0));
        status.store(STATUS_UNWRITTEN, Ordering::Relaxed);
        self.write_header(request);
        let head = self.write_chain(request, count, indirect);
        let inward = if request.op.is_inward() { request.data.bytes() } else { 0 };
        let state = &mut self.slots[request.slot.index()];
        state.owner = Owner::Device;
        state.op = request.op;
        state.token = request.token;
        state.room = u32::try_from(inward + 1).unwrap_or(u32::MAX);
        state.descriptors = needed as u16;
        self.push_available(head);
        self.counters.submitted += 1;
        Ok(())
    }

    /// Shows the device everything that is staged. `true` when the device asked for a kick; it was
    /// kicked if the ring has the means.
    pub fn publish(&mut self) -> bool {
        let old = self.published;
        if old == self.available {
            return false;
        }
        self.published = self.available;
        let index = self.memory.u16_at(self.layout.available_index_at());
        index.store(self.published, Ordering::Release);
        // The index must be seen before the device's wish is read, or both sides fall asleep.
        fence(Ordering::SeqCst);
        let due = if self.options.event_idx {
            let event = self.memory.u16_at(self.layout.available_event_at());
            event_crossed(event.load(Ordering::Relaxed), self.published, old)
        } else {
            self.memory.u16_at(self.layout.used).load(Ordering::Relaxed) & NO_NOTIFY == 0
        };
        if due {
            self.counters.kicks += 1;
            self.kick();
        }
        due
    }

    /// Wakes the device whether it asked or not.
    pub fn kick(&self) {
        if let Some(kick) = &self.options.kick {
            signal(kick);
        }
    }

    /// Writes the first bytes of a request: type, a reserved word, sector; little endian.
    fn write_header(&self, request: &Request<'_>) {
        let at = self.layout.header_at(request.slot.0);
        let code = u64::from(request.op.code());
        self.memory.u64_at(at).store(code.to_le(), Ordering::Relaxed);
        self.memory.u64_at(at + 8).store(request.sector.to_le(), Ordering::Relaxed);
    }

    /// Writes the descriptors of a request and gives the head.
    fn write_chain(&mut self, request: &Request<'_>, count: usize, indirect: bool) -> u16 {
        let slot = request.slot.0;
        let head = self.free_first;
        let (table, mut at) = if indirect {
            (self.layout.table_at(slot), 0)
        } else {
            (self.layout.descriptors, head)
        };
        let SlotState { record, data, table: table_address, .. } = self.slots[usize::from(slot)];
        let status = record + STATUS_OFFSET as u64;
        let data_flags = if request.op.is_inward() { WRITE } else { 0 };
        for position in 0..count {
            let next = if indirect { at + 1 } else { self.descriptors[usize::from(at)].next };
            let (address, len, flags) = if position == 0 {
                (record, HEADER_BYTES, NEXT)
            } else if position + 1 == count {
                (status, 1, WRITE)
            } else {
                let piece = request.data.piece(position - 1, data);
                (piece.guest_address, piece.len, NEXT | data_flags)
            };
            let link = if flags & NEXT == 0 { 0 } else { next };
            self.write_descriptor(table, at, address, len, flags, link);
            if !indirect {
                self.descriptors[usize::from(at)].state = DescriptorState::Inner;
            }
            at = next;
        }
        let taken = if indirect {
            let len = (count * DESCRIPTOR_BYTES) as u32;
            self.write_descriptor(self.layout.descriptors, head, table_address, len, INDIRECT, 0);
            at = self.descriptors[usize::from(head)].next;
            1
        } else {
            count as u16
        };
        self.descriptors[usize::from(head)].state = DescriptorState::Head;
        self.descriptors[usize::from(head)].slot = slot;
        self.free_first = at;
        self.free -= taken;
        head
    }

    pub(super) fn write_descriptor(
        &self,
        table: usize,
        at: u16,
        address: u64,
        len: u32,
        flags: u16,
        next: u16,
    ) {
        let place = table + usize::from(at) * DESCRIPTOR_BYTES;
        let rest = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
        self.memory.u64_at(place).store(address.to_le(), Ordering::Relaxed);
        self.memory.u64_at(place + 8).store(rest.to_le(), Ordering::Relaxed);
    }

    fn push_available(&mut self, head: u16) {
        let entry = self.layout.available_entry_at(self.available);
        self.memory.u16_at(entry).store(head, Ordering::Relaxed);
        self.available = self.available.wrapping_add(1);
    }

    fn check_parked(&mut self, slot: Slot) -> Result<(), Breach> {
        let byte = self.memory.u8_at(self.layout.status_at(slot.0));
        match byte.load(Ordering::Relaxed) {
            STATUS_PARKED => Ok(()),
            status => {
                let (queue, slot) = (self.layout.index, slot.0);
                let breach = Breach::StatusLate { queue, slot, status };
                self.broken = Some(breach);
                Err(breach)
            }
        }
    }

    fn check_held(&self, slot: Slot) {
        let owner = self.slots[slot.index()].owner;
        assert_eq!(owner, Owner::User, "slot {} is not the caller's", slot.0);
    }

    fn check_within(&self, slot: Slot, offset: u32, len: usize) {
        self.check_held(slot);
        let room = self.layout.shape.data_stride();
        assert!(offset as usize + len <= room, "{len} bytes at {offset} of {room}");
    }
}

/// Whether the index went past `event` on its way from `old` to `new` (virtio 1.2, 2.7.10).
fn event_crossed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// The word at a place of a pattern: no two seeds or places give the same in practice.
fn pattern(seed: u64, at: u32) -> u64 {
    let mixed = (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed ^ (mixed >> 29)).wrapping_add(u64::from(at).wrapping_mul(0xc4ce_b9fe_1a85_ec53))
}
