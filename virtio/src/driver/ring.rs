//! The driver's end of a virtqueue for virtio-blk, split or packed.
//!
//! Requests are staged with [`RingDriver::submit`] and shown to the device all at once by
//! [`RingDriver::publish`], which kicks if the device wants it. [`RingDriver::complete`] gives
//! finished requests one by one and checks everything that the device says; the first breach of
//! the protocol ends the ring's life with a name. Nothing here allocates after construction, and
//! the only system calls are kicks and waits.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::elements::{RequestBuffer, Reuse};
use super::event::signal;
use super::layout::{HEADER_BYTES, QueueLayout, STATUS_OFFSET};
use super::memory::GuestMemory;
use super::packed::PackedDriver;
use super::request::{
    Breach, Data, DriverOp, DriverRequest, RequestSlot, STATUS_PARKED, STATUS_UNWRITTEN,
    SubmitError,
};
use super::split::SplitDriver;
use crate::dirty::Logging;
use crate::memory::Memory;
use crate::queue::QueueConfig;
use crate::ring::RingKind;

/// The negotiated features of a ring, and how it signals.
#[derive(Clone, Debug, Default)]
pub struct RingOptions {
    /// VIRTIO_F_RING_PACKED, or not.
    pub kind: RingKind,
    /// VIRTIO_RING_F_EVENT_IDX.
    pub event_idx: bool,
    /// VIRTIO_RING_F_INDIRECT_DESC; see also [`RingDriver::set_indirect`].
    pub indirect: bool,
    /// Written to wake the device. Without it, `publish` only says that a kick is due.
    pub kick: Option<Arc<OwnedFd>>,
    /// Written by the device.
    pub call: Option<Arc<OwnedFd>>,
    /// The slots and descriptors that it takes next.
    pub reuse: Reuse,
}

/// The counts of a ring. Events per request do not depend on the machine's speed.
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

/// The ring itself.
#[derive(Debug)]
pub(super) enum DriverRing {
    Split(SplitDriver),
    Packed(PackedDriver),
}

impl DriverRing {
    pub(super) fn new(
        memory: Arc<GuestMemory>,
        layout: &QueueLayout,
        options: &RingOptions,
    ) -> Self {
        let (event_idx, reuse) = (options.event_idx, options.reuse);
        match options.kind {
            RingKind::Split => Self::Split(SplitDriver::new(memory, *layout, event_idx, reuse)),
            RingKind::Packed => Self::Packed(PackedDriver::new(memory, *layout, event_idx, reuse)),
        }
    }
}

/// The same on either kind of ring.
macro_rules! either {
    ($ring_kind:expr, $ring:ident => $do:expr) => {
        match $ring_kind {
            $crate::driver::ring::DriverRing::Split($ring) => $do,
            $crate::driver::ring::DriverRing::Packed($ring) => $do,
        }
    };
}
pub(super) use either;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DescriptorOwner {
    Nobody,
    User,
    Device,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct SlotState {
    pub(super) owner: DescriptorOwner,
    pub(super) op: DriverOp,
    pub(super) token: u64,
    /// Bytes that the device may write, the status among them.
    pub(super) room: u32,
    /// Where its record (which the header begins) and its data are in the guest.
    record: u64,
    data: u64,
    /// And its indirect table, by offset and by address.
    table: (usize, u64),
}

/// The driver's end of one queue.
#[derive(Debug)]
pub struct RingDriver {
    pub(super) memory: Arc<GuestMemory>,
    pub(super) layout: QueueLayout,
    pub(super) options: RingOptions,
    pub(super) indirect: bool,
    pub(super) ring: DriverRing,
    pub(super) slots: Box<[SlotState]>,
    /// The next one first.
    pub(super) slots_free: VecDeque<u16>,
    pub(super) broken: Option<Breach>,
    pub(super) counters: RingCounters,
}

impl RingDriver {
    /// A driver for a queue whose memory is fresh.
    pub fn new(memory: Arc<GuestMemory>, layout: &QueueLayout, options: RingOptions) -> Self {
        let shape = layout.shape;
        let driver = DriverRing::new(Arc::clone(&memory), layout, &options);
        let slot_state = |slot| SlotState {
            owner: DescriptorOwner::Nobody,
            op: DriverOp::Flush,
            token: 0,
            room: 0,
            record: memory.guest_address(layout.header_at(slot)),
            data: memory.guest_address(layout.data_at(slot)),
            table: (layout.table_at(slot), memory.guest_address(layout.table_at(slot))),
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
            ring: driver,
            slots,
            slots_free: (0..shape.slots).collect(),
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

    /// The configuration with which a device serves the ring in this process. It goes on from
    /// [`Self::base`]; the caller adds an inflight region if there is one.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn queue_config(&self, memory: Arc<Memory>) -> io::Result<QueueConfig> {
        queue_config(&self.layout, &self.memory, &self.options, self.base(), memory)
    }

    /// The counts so far.
    pub fn counters(&self) -> RingCounters {
        self.counters
    }

    /// Requests that the device holds, or will hold once published.
    pub fn outstanding(&self) -> u16 {
        either!(&self.ring, ring => ring.outstanding())
    }

    /// Requests that were published and that the device has not given back, as shared memory says
    /// now: a kill of the device would catch these.
    pub fn held_by_device(&self) -> u16 {
        either!(&self.ring, ring => ring.held_by_device())
    }

    /// The breach that ended the ring, if one did.
    pub fn breach(&self) -> Option<Breach> {
        self.broken
    }

    /// Where a device without an inflight region starts anew, in the form of SET_VRING_BASE: the
    /// last used position in shared memory.
    pub fn base(&self) -> u32 {
        match &self.ring {
            DriverRing::Split(ring) => u32::from(ring.used_index()),
            DriverRing::Packed(ring) => ring.base(),
        }
    }

    /// Whether the device has ever given anything back.
    pub fn was_answered(&self) -> bool {
        self.counters.completed > 0 || self.base() != self.options.kind.base_fresh()
    }

    /// Whether further requests use indirect tables. Only when that was negotiated.
    pub fn set_indirect(&mut self, indirect: bool) {
        assert!(self.options.indirect || !indirect, "INDIRECT_DESC was not negotiated");
        self.indirect = indirect;
    }

    /// A free slot, now the caller's.
    pub fn take_slot(&mut self) -> Option<RequestSlot> {
        let index = self.slots_free.pop_front()?;
        self.slots[usize::from(index)].owner = DescriptorOwner::User;
        Some(RequestSlot(index))
    }

    /// Gives a slot back.
    pub fn release(&mut self, slot: RequestSlot) {
        self.check_held(slot);
        self.slots[slot.index()].owner = DescriptorOwner::Nobody;
        match self.options.reuse {
            Reuse::InOrder => self.slots_free.push_back(slot.0),
            Reuse::AsLinux => self.slots_free.push_front(slot.0),
        }
    }

    /// The guest address of a slot's buffer.
    pub fn guest_address(&self, slot: RequestSlot) -> u64 {
        self.slots[slot.index()].data
    }

    /// Copies bytes into a held slot's buffer.
    pub fn write(&self, slot: RequestSlot, offset: u32, bytes: &[u8]) {
        self.check_within(slot, offset, bytes.len());
        self.memory.write(self.layout.data_at(slot.0) + offset as usize, bytes);
    }

    /// Copies bytes out of a held slot's buffer.
    pub fn read(&self, slot: RequestSlot, offset: u32, bytes: &mut [u8]) {
        self.check_within(slot, offset, bytes.len());
        self.memory.read(self.layout.data_at(slot.0) + offset as usize, bytes);
    }

    /// Fills the first `len` bytes of a held slot with words that follow from the seed and their
    /// place; `len` is a multiple of eight.
    pub fn fill(&self, slot: RequestSlot, len: u32, seed: u64) {
        self.check_within(slot, 0, len as usize);
        let base = self.layout.data_at(slot.0);
        for at in (0..len).step_by(8) {
            let word = pattern(seed, at);
            self.memory.u64_at(base + at as usize).store(word, Ordering::Relaxed);
        }
    }

    /// Where the first `len` bytes of a held slot first differ from what `fill` put there.
    pub fn mismatch(&self, slot: RequestSlot, len: u32, seed: u64) -> Option<u32> {
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
    pub fn submit(&mut self, request: &DriverRequest<'_>) -> Result<(), SubmitError> {
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
        let free = either!(&self.ring, ring => ring.free());
        if needed > usize::from(free) {
            self.counters.full += 1;
            let needed = u16::try_from(needed).unwrap_or(u16::MAX);
            return Err(SubmitError::Full { needed, free });
        }
        self.check_parked(request.slot)?;
        let status = self.memory.u8_at(self.layout.status_at(request.slot.0));
        status.store(STATUS_UNWRITTEN, Ordering::Relaxed);
        self.write_header(request);
        self.write_chain(request, count, indirect);
        let inward = if request.op.is_inward() { request.data.bytes() } else { 0 };
        let state = &mut self.slots[request.slot.index()];
        state.owner = DescriptorOwner::Device;
        state.op = request.op;
        state.token = request.token;
        state.room = u32::try_from(inward + 1).unwrap_or(u32::MAX);
        self.counters.submitted += 1;
        Ok(())
    }

    /// Shows the device everything that is staged. `true` when the device asked for a kick; it was
    /// kicked if the ring has the means.
    pub fn publish(&mut self) -> bool {
        let due = either!(&mut self.ring, ring => ring.publish());
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
    fn write_header(&self, request: &DriverRequest<'_>) {
        let at = self.layout.header_at(request.slot.0);
        let code = u64::from(request.op.code());
        self.memory.u64_at(at).store(code.to_le(), Ordering::Relaxed);
        self.memory.u64_at(at + 8).store(request.sector.to_le(), Ordering::Relaxed);
    }

    /// Writes the descriptors of a request and stages it.
    fn write_chain(&mut self, request: &DriverRequest<'_>, count: usize, indirect: bool) {
        let slot = request.slot.0;
        let SlotState { record, data, table, .. } = self.slots[usize::from(slot)];
        let status = record + STATUS_OFFSET as u64;
        let buffer = |position| {
            let (address, len, inward) = if position == 0 {
                (record, HEADER_BYTES, false)
            } else if position + 1 == count {
                (status, 1, true)
            } else {
                let piece = request.data.piece(position - 1, data);
                (piece.guest_address, piece.len, request.op.is_inward())
            };
            RequestBuffer { address, len, inward }
        };
        let table = indirect.then_some(table);
        either!(&mut self.ring, ring => ring.add(slot, table, count, buffer));
    }

    fn check_parked(&mut self, slot: RequestSlot) -> Result<(), Breach> {
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

    fn check_held(&self, slot: RequestSlot) {
        let owner = self.slots[slot.index()].owner;
        assert_eq!(owner, DescriptorOwner::User, "slot {} is not the caller's", slot.0);
    }

    fn check_within(&self, slot: RequestSlot, offset: u32, len: usize) {
        self.check_held(slot);
        let room = self.layout.shape.data_stride();
        assert!(offset as usize + len <= room, "{len} bytes at {offset} of {room}");
    }
}

/// The configuration with which a device serves a ring in this process.
pub(super) fn queue_config(
    layout: &QueueLayout,
    guest: &GuestMemory,
    options: &RingOptions,
    base: u32,
    memory: Arc<Memory>,
) -> io::Result<QueueConfig> {
    let at = layout.guest_addresses(guest);
    let share = |event: &Option<Arc<OwnedFd>>| {
        event.as_ref().map(|event| event.as_fd().try_clone_to_owned()).transpose()
    };
    Ok(QueueConfig {
        index: usize::from(layout.index),
        kind: options.kind,
        size: layout.shape.size,
        memory,
        desc: at.descriptors,
        avail: at.available,
        used: at.used,
        base,
        event_idx: options.event_idx,
        indirect: options.indirect,
        kick: share(&options.kick)?,
        call: share(&options.call)?,
        err: None,
        in_order: false,
        reads_only: false,
        inflight: None,
        logging: Logging::default(),
        allowance: Arc::default(),
    })
}

/// The word at a place of a pattern: no two seeds or places give the same in practice.
fn pattern(seed: u64, at: u32) -> u64 {
    let mixed = (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (mixed ^ (mixed >> 29)).wrapping_add(u64::from(at).wrapping_mul(0xc4ce_b9fe_1a85_ec53))
}
