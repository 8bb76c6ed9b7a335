//! Completions, their checks, and waiting for them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use super::elements::UsedElement;
use super::event::{drain, readable};
use super::request::{
    Breach, DriverCompletion, DriverOp, RequestSlot, RequestStatus, STATUS_PARKED, STATUS_UNWRITTEN,
};
use super::ring::{DescriptorOwner, RingDriver, SlotState, either};

/// Sleeps until there is something to take, which `look` says after each call and when time is up:
/// `false` when there was nothing within the time. `look` is told whether there was a call.
pub(super) fn sleep_until(
    call: &OwnedFd,
    timeout: Duration,
    mut look: impl FnMut(bool) -> Result<bool, Breach>,
) -> Result<bool, Breach> {
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let called = readable(call.as_fd(), left);
        if called {
            drain(call);
        }
        let ready = look(called)?;
        if ready || left.is_zero() {
            return Ok(ready);
        }
    }
}

impl RingDriver {
    /// The next finished request, if there is one. Call until there is none.
    ///
    /// # Errors
    /// When the device broke the protocol; from then on always the same.
    #[inline]
    pub fn complete(&mut self) -> Result<Option<DriverCompletion>, Breach> {
        if !self.look()? {
            return Ok(None);
        }
        match self.take_used() {
            Ok(completion) => Ok(Some(completion)),
            Err(breach) => {
                self.broken = Some(breach);
                Err(breach)
            }
        }
    }

    /// Asks to be called at the next completion. `true` when one is there already.
    ///
    /// # Errors
    /// When the device broke the protocol.
    pub fn arm_calls(&mut self) -> Result<bool, Breach> {
        either!(&mut self.ring, ring => ring.ask_for_calls());
        // The wish must be seen before the ring is read, or both sides fall asleep.
        fence(Ordering::SeqCst);
        self.look()
    }

    /// Asks not to be called: for polling.
    pub fn disarm_calls(&mut self) {
        either!(&mut self.ring, ring => ring.refuse_calls());
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
        sleep_until(&call, timeout, |called| {
            self.counters.calls += u64::from(called);
            let ready = self.look()?;
            self.counters.calls_missed += u64::from(ready && !called);
            Ok(ready)
        })
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

    /// Takes the next used element, which exists.
    fn take_used(&mut self) -> Result<DriverCompletion, Breach> {
        let UsedElement { slot, written_bytes } =
            either!(&mut self.ring, ring => ring.take_used())?;
        let state = self.slots[usize::from(slot)];
        debug_assert_eq!(state.owner, DescriptorOwner::Device);
        let status = self.take_status(slot)?;
        self.check_length(&state, status, written_bytes)?;
        self.slots[usize::from(slot)].owner = DescriptorOwner::User;
        self.counters.completed += 1;
        Ok(DriverCompletion {
            slot: RequestSlot(slot),
            op: state.op,
            token: state.token,
            status,
            written_bytes,
        })
    }

    fn take_status(&self, slot: u16) -> Result<RequestStatus, Breach> {
        let queue = self.layout.index;
        let byte = self.memory.u8_at(self.layout.status_at(slot));
        let status = match byte.load(Ordering::Relaxed) {
            0 => RequestStatus::Ok,
            1 => RequestStatus::IoError,
            2 => RequestStatus::Unsupported,
            STATUS_UNWRITTEN => return Err(Breach::StatusUnwritten { queue, slot }),
            status => return Err(Breach::StatusUnknown { queue, slot, status }),
        };
        byte.store(STATUS_PARKED, Ordering::Relaxed);
        Ok(status)
    }

    fn check_length(
        &self,
        state: &SlotState,
        status: RequestStatus,
        written: u32,
    ) -> Result<(), Breach> {
        // The status is the last byte, so a success that fills its buffers wrote all of them.
        let exact = status == RequestStatus::Ok && state.op != DriverOp::GetId;
        if written > state.room || (exact && written != state.room) {
            let (queue, op, room) = (self.layout.index, state.op, state.room);
            return Err(Breach::UsedLengthWrong { queue, op, status, written, room });
        }
        Ok(())
    }
}
