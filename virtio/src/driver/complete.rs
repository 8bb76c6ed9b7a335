//! What comes back: completions, their checks, and waiting for them.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use super::event::{drain, readable};
use super::request::{Breach, Completion, Op, STATUS_PARKED, STATUS_UNWRITTEN, Slot, Status};
use super::ring::{DescriptorState, Owner, RingDriver, SlotState};

/// Available flag: no calls, please.
const NO_INTERRUPT: u16 = 1;

/// When calls are suppressed by a used event that has passed, it is moved on after this many
/// completions, long before the 16-bit index comes round to it.
const EVENT_REFRESH: u16 = 1 << 14;

impl RingDriver {
    /// The next finished request, if there is one. Call until there is none.
    ///
    /// # Errors
    /// When the device broke the protocol; from then on always the same.
    #[inline]
    pub fn complete(&mut self) -> Result<Option<Completion>, Breach> {
        if self.used_seen == self.used_known && !self.look()? {
            return Ok(None);
        }
        match self.take_used() {
            Ok(completion) => Ok(Some(completion)),
            Err(breach) => {
                self.broken = Some(breach);
                // Nothing more is taken, so that every further call finds the breach.
                self.used_known = self.used_seen;
                Err(breach)
            }
        }
    }

    /// Asks to be called at the next completion. `true` when one is there already.
    ///
    /// # Errors
    /// When the device broke the protocol.
    pub fn arm_calls(&mut self) -> Result<bool, Breach> {
        if self.options.event_idx {
            let event = self.memory.u16_at(self.layout.used_event_at());
            event.store(self.used_seen, Ordering::Relaxed);
        } else {
            self.memory.u16_at(self.layout.available).store(0, Ordering::Relaxed);
        }
        // The wish must be seen before the index is read, or both sides fall asleep.
        fence(Ordering::SeqCst);
        Ok(self.used_seen != self.used_known || self.look()?)
    }

    /// Asks not to be called: for polling.
    pub fn disarm_calls(&mut self) {
        if self.options.event_idx {
            // An event index that has just passed is 65535 completions away.
            self.calls_off_at = self.used_seen;
            let event = self.memory.u16_at(self.layout.used_event_at());
            event.store(self.used_seen.wrapping_sub(1), Ordering::Relaxed);
        } else {
            let flags = self.memory.u16_at(self.layout.available);
            flags.store(NO_INTERRUPT, Ordering::Relaxed);
        }
    }

    /// Waits until a request is finished: `false` when none was within the time. Calls are asked
    /// for only while it waits.
    ///
    /// # Errors
    /// When the device broke the protocol.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, Breach> {
        let ready = self.arm_calls()? || self.sleep(timeout)?;
        self.disarm_calls();
        Ok(ready)
    }

    /// The call eventfd, to wait for several rings at once: `arm_calls`, poll, `drain_calls`.
    pub fn call_fd(&self) -> Option<BorrowedFd<'_>> {
        self.options.call.as_ref().map(|call| call.as_fd())
    }

    /// Takes the calls that came since the last time, and says how many.
    pub fn drain_calls(&mut self) -> u64 {
        self.options.call.as_ref().map_or(0, |call| drain(call))
    }

    fn sleep(&mut self, timeout: Duration) -> Result<bool, Breach> {
        let Some(call) = self.options.call.clone() else { return Ok(false) };
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let called = readable(call.as_fd(), left);
            if called {
                drain(&call);
                self.counters.calls += 1;
            }
            let ready = self.look()?;
            self.counters.calls_missed += u64::from(ready && !called);
            if ready || left.is_zero() {
                return Ok(ready);
            }
        }
    }

    /// Reads the used index. `true` when there is something to take.
    fn look(&mut self) -> Result<bool, Breach> {
        if let Some(breach) = self.broken {
            return Err(breach);
        }
        let now = self.used_index();
        let outstanding = self.published.wrapping_sub(self.used_seen);
        if now.wrapping_sub(self.used_seen) > outstanding
            || now.wrapping_sub(self.used_seen) < self.used_known.wrapping_sub(self.used_seen)
        {
            let (queue, seen) = (self.layout.index, self.used_seen);
            let breach = Breach::UsedIndexJump { queue, seen, now, outstanding };
            self.broken = Some(breach);
            return Err(breach);
        }
        self.used_known = now;
        Ok(now != self.used_seen)
    }

    /// Takes the used element at `used_seen`, which exists.
    fn take_used(&mut self) -> Result<Completion, Breach> {
        let (queue, position) = (self.layout.index, self.used_seen);
        let at = self.layout.used_entry_at(position);
        let id = self.memory.u32_at(at).load(Ordering::Relaxed);
        let written_bytes = self.memory.u32_at(at + 4).load(Ordering::Relaxed);
        if id >= u32::from(self.layout.shape.size) {
            return Err(Breach::UsedIdUnknown { queue, position, id });
        }
        let id = id as u16;
        let descriptor = self.descriptors[usize::from(id)];
        match descriptor.state {
            DescriptorState::Head => {}
            DescriptorState::Completed => {
                return Err(Breach::CompletedTwice { queue, position, id });
            }
            DescriptorState::Unused | DescriptorState::Inner => {
                return Err(Breach::UsedIdNotOutstanding { queue, position, id });
            }
        }
        let state = self.slots[usize::from(descriptor.slot)];
        debug_assert_eq!(state.owner, Owner::Device);
        let status = self.take_status(descriptor.slot)?;
        self.check_length(&state, status, written_bytes)?;
        self.free_chain(id, state.descriptors);
        self.slots[usize::from(descriptor.slot)].owner = Owner::User;
        self.used_seen = position.wrapping_add(1);
        self.counters.completed += 1;
        if self.options.event_idx && self.used_seen.wrapping_sub(self.calls_off_at) >= EVENT_REFRESH
        {
            self.disarm_calls();
        }
        let slot = Slot(descriptor.slot);
        Ok(Completion { slot, op: state.op, token: state.token, status, written_bytes })
    }

    fn take_status(&self, slot: u16) -> Result<Status, Breach> {
        let queue = self.layout.index;
        let byte = self.memory.u8_at(self.layout.status_at(slot));
        let status = match byte.load(Ordering::Relaxed) {
            0 => Status::Ok,
            1 => Status::IoError,
            2 => Status::Unsupported,
            STATUS_UNWRITTEN => return Err(Breach::StatusUnwritten { queue, slot }),
            status => return Err(Breach::StatusUnknown { queue, slot, status }),
        };
        byte.store(STATUS_PARKED, Ordering::Relaxed);
        Ok(status)
    }

    fn check_length(&self, state: &SlotState, status: Status, written: u32) -> Result<(), Breach> {
        // The status is the last byte, so a success that fills its buffers wrote all of them.
        let exact = status == Status::Ok && state.op != Op::GetId;
        if written > state.room || (exact && written != state.room) {
            let (queue, op, room) = (self.layout.index, state.op, state.room);
            return Err(Breach::UsedLengthWrong { queue, op, status, written, room });
        }
        Ok(())
    }

    fn free_chain(&mut self, head: u16, count: u16) {
        let mut last = head;
        for _ in 1..count {
            last = self.descriptors[usize::from(last)].next;
            self.descriptors[usize::from(last)].state = DescriptorState::Unused;
        }
        self.descriptors[usize::from(head)].state = DescriptorState::Completed;
        self.descriptors[usize::from(last)].next = self.free_first;
        self.free_first = head;
        self.free += count;
    }
}
