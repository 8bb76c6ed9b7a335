//! The way of a pool to its devices: one io_uring, which the holder of the pool's lock uses.
//!
//! A buffer goes into a slot of the ring with its request and leaves it with the kernel's answer,
//! so no other code has it while the kernel does. A request that was done in part goes on with its
//! rest; one that was interrupted, or cancelled because the thread that began it has ended, is done
//! again.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use io_uring::{opcode, squeue, types};
use store::block::{BLOCK_BYTES, BlockBuffer};
use store::{DeviceIo, DeviceOp, DeviceRead, PoolDeviceError, PoolDevices};

use super::devices::PoolFiles;
use super::signs::InKernel;
use crate::uring::{ClientId, Completion, Mode, Uring};

/// The most requests of a pool that its devices have at once. It is above the queue depth of every
/// usual device, and bounds the memory that the kernel has.
const IN_KERNEL_MAX: u32 = 512;

/// How often a request that the system interrupted is begun again before it is an error.
const RETRIES_MAX: u8 = 16;

/// A request that a device has answered.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) token: u64,
    pub(super) buffer: Option<BlockBuffer>,
    pub(super) result: Result<(), PoolDeviceError>,
}

/// The work of a slot's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotOp {
    Read,
    Write,
    Sync,
}

#[derive(Debug)]
struct RingSlot {
    token: u64,
    device: u8,
    op: SlotOp,
    offset_bytes: u64,
    len_bytes: usize,
    done_bytes: usize,
    retries: u8,
    buffer: Option<BlockBuffer>,
    /// The sidecore that began it; none for another thread, which sleeps in the kernel soon.
    by: Option<Arc<InKernel>>,
}

/// The io_uring of a pool. A running node may not make one any more, so it is made before and
/// outlives a pool that is closed for a while.
pub struct StoreRing {
    uring: Uring,
    client: ClientId,
    slots: Vec<Option<RingSlot>>,
    free: Vec<u32>,
    /// Slots that go on as soon as the ring has room.
    again: Vec<u32>,
    inbox: Vec<Completion>,
}

impl fmt::Debug for StoreRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreRing").field("in_use", &self.in_use()).finish_non_exhaustive()
    }
}

impl StoreRing {
    /// Sets a ring up.
    ///
    /// # Errors
    /// When the kernel has no io_uring or the administrator has switched it off
    /// (`kernel.io_uring_disabled`), or memory is short.
    pub fn new() -> io::Result<Self> {
        // The best mode wants one thread that enters the kernel, and a pool has as many threads as
        // sidecores. In the next mode the kernel interrupts no thread for an answer, which takes a
        // virtual machine some 5 us; kernels before 5.19 do not have it.
        let mut uring = match Uring::with_mode(Mode::Cooperative) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                Uring::with_mode(Mode::Plain)?
            }
            made => made?,
        };
        let client = uring.add_client(IN_KERNEL_MAX);
        let places = IN_KERNEL_MAX as usize;
        Ok(Self {
            uring,
            client,
            slots: (0..places).map(|_| None).collect(),
            free: (0..IN_KERNEL_MAX).rev().collect(),
            again: Vec::with_capacity(places),
            inbox: Vec::with_capacity(places),
        })
    }

    /// How many requests were begun and not answered.
    pub(super) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// How often a thread has entered the kernel for it.
    pub(super) fn enters(&self) -> u64 {
        self.uring.counters().enters.get()
    }

    /// Whether another request can begin.
    pub(super) fn has_room(&mut self) -> bool {
        !self.free.is_empty() && self.again.is_empty() && self.uring.has_room()
    }

    /// Begins a request for this sidecore, which does the next round. There must be room.
    pub(super) fn begin(&mut self, files: &PoolFiles, io: DeviceIo, by: Option<&Arc<InKernel>>) {
        let place = self.free.pop().expect("the caller looked for room");
        let DeviceIo { token, device, op } = io;
        let (op, block, blocks, buffer) = match op {
            DeviceOp::Read { block, buffer, blocks } => {
                (SlotOp::Read, block, blocks as usize, Some(buffer))
            }
            DeviceOp::Write { block, buffer, blocks } => {
                (SlotOp::Write, block, blocks as usize, Some(buffer))
            }
            DeviceOp::Sync => (SlotOp::Sync, 0, 0, None),
        };
        if let Some(buffer) = &buffer {
            assert!(blocks <= buffer.blocks().len(), "a request is not longer than its buffer");
        }
        self.slots[place as usize] = Some(RingSlot {
            token,
            device,
            op,
            offset_bytes: block * BLOCK_BYTES as u64,
            len_bytes: blocks * BLOCK_BYTES,
            done_bytes: 0,
            retries: 0,
            buffer,
            by: None,
        });
        self.push(files, place, by);
    }

    fn push(&mut self, files: &PoolFiles, place: u32, by: Option<&Arc<InKernel>>) {
        let slot = self.slots[place as usize].as_mut().expect("a slot in use");
        slot.go_to(by);
        let entry = slot.entry(files);
        // SAFETY: the entry names the file of a device, which outlives all requests: `PoolFiles` is
        // let go only when no slot is in use, and a file of it when the engine has no request for
        // it. It names the rest of the slot's own buffer as well,
        // whose blocks stay at their address and are not touched until the answer is here; a ring
        // that is dropped waits for all answers.
        let pushed = unsafe { self.uring.push(self.client, place, entry) };
        if pushed.is_err() {
            self.again.push(place);
        }
    }

    /// Enters the kernel if there is a reason, and adds the answers to `answered`. Gives whether
    /// anything has moved.
    pub(super) fn round(
        &mut self,
        files: &PoolFiles,
        answered: &mut Vec<Answered>,
        by: Option<&Arc<InKernel>>,
    ) -> bool {
        self.push_again(files, by);
        let moved = self.uring.round().is_busy();
        self.take(files, answered, by) | moved
    }

    /// Waits for the requests that were begun, and adds the answers to `answered`. Those that have
    /// to go on are not among them.
    fn wait(&mut self, files: &PoolFiles, answered: &mut Vec<Answered>) {
        self.push_again(files, None);
        self.uring.wait_for(self.client);
        self.take(files, answered, None);
    }

    fn push_again(&mut self, files: &PoolFiles, by: Option<&Arc<InKernel>>) {
        while self.uring.has_room() {
            let Some(place) = self.again.pop() else { break };
            self.push(files, place, by);
        }
    }

    fn take(
        &mut self,
        files: &PoolFiles,
        answered: &mut Vec<Answered>,
        by: Option<&Arc<InKernel>>,
    ) -> bool {
        let mut inbox = std::mem::take(&mut self.inbox);
        self.uring.take(self.client, &mut inbox);
        let moved = !inbox.is_empty();
        for completion in inbox.drain(..) {
            let place = completion.token;
            let slot = self.slots[place as usize].as_mut().expect("the kernel answers once");
            let Some(result) = slot.received(completion.result) else {
                self.push(files, place, by);
                continue;
            };
            let mut slot = self.slots[place as usize].take().expect("looked at just now");
            slot.go_to(None);
            self.free.push(place);
            answered.push(Answered { token: slot.token, buffer: slot.buffer, result });
        }
        self.inbox = inbox;
        moved
    }

    /// The descriptor that the kernel signals after [`Self::ask_for_signals`].
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.uring.event()
    }

    /// Asks for signals. The caller does one more round afterwards, and then waits.
    pub(super) fn ask_for_signals(&mut self) {
        self.uring.ask_for_signals();
    }

    /// Asks for no more signals, and takes those that are there.
    pub(super) fn stop_signals(&mut self) {
        self.uring.stop_signals();
        // Nothing to take is fine: the descriptor does not block.
        let _ = rustix::io::read(self.uring.event(), &mut [0u8; 8]);
    }

    /// Waits for all answers and drops them.
    pub(super) fn drain(&mut self) {
        self.uring.wait_for(self.client);
        self.uring.take(self.client, &mut self.inbox);
        self.inbox.clear();
        self.again.clear();
        for slot in &mut self.slots {
            slot.iter_mut().for_each(|slot| slot.go_to(None));
            *slot = None;
        }
        self.free.clear();
        self.free.extend((0..IN_KERNEL_MAX).rev());
    }

    /// Replaces results as they come back.
    #[cfg(test)]
    pub(super) fn set_fault(&mut self, fault: impl FnMut(Completion) -> i32 + Send + 'static) {
        self.uring.set_fault(fault);
    }
}

/// The devices of a pool that is being opened, which do several reads at once by its ring.
pub(super) struct RingDevices<'a> {
    pub(super) files: &'a mut PoolFiles,
    pub(super) ring: &'a mut StoreRing,
}

impl PoolDevices for RingDevices<'_> {
    fn read(
        &mut self,
        device: u8,
        block: u64,
        buffer: &mut BlockBuffer,
        blocks: u32,
    ) -> Result<(), PoolDeviceError> {
        self.files.read(device, block, buffer, blocks)
    }

    fn read_all(&mut self, reads: &mut [DeviceRead]) {
        let (mut begun, mut ended, mut answered) = (0, 0, Vec::new());
        while ended < reads.len() {
            while begun < reads.len() && self.ring.has_room() {
                let DeviceRead { device, block, blocks, .. } = reads[begun];
                let buffer = std::mem::replace(&mut reads[begun].buffer, BlockBuffer::new(0));
                let op = DeviceOp::Read { block, buffer, blocks };
                self.ring.begin(self.files, DeviceIo { token: begun as u64, device, op }, None);
                begun += 1;
            }
            self.ring.wait(self.files, &mut answered);
            for Answered { token, buffer, result } in answered.drain(..) {
                let read = &mut reads[token as usize];
                read.buffer = buffer.expect("a read's buffer comes back");
                read.result = result;
                ended += 1;
            }
        }
    }

    fn write(
        &mut self,
        device: u8,
        block: u64,
        buffer: &BlockBuffer,
        blocks: u32,
    ) -> Result<(), PoolDeviceError> {
        self.files.write(device, block, buffer, blocks)
    }

    fn sync(&mut self, device: u8) -> Result<(), PoolDeviceError> {
        self.files.sync(device)
    }
}

impl Drop for StoreRing {
    fn drop(&mut self) {
        // The kernel has the buffers until then.
        self.drain();
    }
}

impl RingSlot {
    /// The request is the kernel's by this sidecore from now on.
    fn go_to(&mut self, by: Option<&Arc<InKernel>>) {
        if let Some(by) = by {
            by.begun();
        }
        if let Some(before) = std::mem::replace(&mut self.by, by.cloned()) {
            before.ended();
        }
    }

    /// The kernel's request for the part that is not done.
    fn entry(&mut self, files: &PoolFiles) -> squeue::Entry {
        let file = types::Fd(files.file(self.device).as_raw_fd());
        let offset = self.offset_bytes + self.done_bytes as u64;
        let rest = self.done_bytes..self.len_bytes;
        // A request of the engine is far shorter than 4 GiB.
        let len = rest.len() as u32;
        let mut bytes = || {
            let buffer = self.buffer.as_mut().expect("a request with data has a buffer");
            buffer.bytes_mut()[rest.clone()].as_mut_ptr()
        };
        match self.op {
            SlotOp::Read => opcode::Read::new(file, bytes(), len).offset(offset).build(),
            SlotOp::Write => opcode::Write::new(file, bytes(), len).offset(offset).build(),
            SlotOp::Sync => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
        }
    }

    /// Takes the kernel's answer in; `None` when the request has to go on.
    fn received(&mut self, result: i32) -> Option<Result<(), PoolDeviceError>> {
        let again = [libc::EINTR, libc::EAGAIN, libc::ECANCELED];
        if again.contains(&-result) && self.retries < RETRIES_MAX {
            self.retries += 1;
            return None;
        }
        if result < 0 {
            return Some(Err(device_error(-result)));
        }
        if self.op == SlotOp::Sync {
            return Some(Ok(()));
        }
        let left = self.len_bytes - self.done_bytes;
        if result == 0 && left > 0 {
            return Some(Err(PoolDeviceError::Shorter));
        }
        self.done_bytes += (result as usize).min(left);
        (self.done_bytes == self.len_bytes).then_some(Ok(()))
    }
}

/// The engine's word for an error of the system.
pub(super) fn device_error(errno: i32) -> PoolDeviceError {
    match errno {
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => PoolDeviceError::NoSpace,
        errno => PoolDeviceError::Failed(errno),
    }
}
