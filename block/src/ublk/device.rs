//! One device as its server sees it: the descriptors that the driver shares, a buffer for each
//! place, and the commands by which requests come and answers go.
//!
//! The driver copies between the requester's pages and our buffers, on our thread, while we are in
//! the kernel to submit and reap anyway: no request costs a system call of its own. (With
//! `UBLK_F_USER_COPY` each would cost one; zero copy needs a backend that is a file.)

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::rc::Rc;

use io_uring::{opcode, types};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use zerocopy::IntoBytes;

use super::abi::{self, Descriptor, IoCommand, command};
use super::front::Kernel;
use volume::IO_BYTES_MAX;
use volume::uring::{ClientId, Completion, Uring};

/// The driver's own limit.
pub const DEPTH_MAX: u16 = 4096;

/// The most places of a device, over all its queues: each has a megabyte of addresses, and as many
/// commands wait in the kernel.
pub const PLACES_MAX: u32 = 1024;

const PAGE_BYTES: usize = 4096;

/// Queues, and requests at once on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Queues, at least one.
    pub queues: u16,
    /// Requests at once on each queue.
    pub depth: u16,
}

impl Shape {
    /// Requests at once; a place is a queue's index times the depth, plus the tag.
    pub fn places(&self) -> u32 {
        u32::from(self.queues) * u32::from(self.depth)
    }

    /// The depth that a front's channel is opened with: a request for each place.
    ///
    /// # Panics
    /// When there cannot be such a device.
    pub fn channel_depth(&self) -> u16 {
        u16::try_from(self.places()).expect("a possible shape")
    }

    /// Whether there can be such a device.
    pub fn is_possible(&self) -> bool {
        self.queues > 0 && (1..=DEPTH_MAX).contains(&self.depth) && self.places() <= PLACES_MAX
    }

    /// The queue and the tag of a place.
    pub fn split(&self, place: u32) -> (u16, u16) {
        let depth = u32::from(self.depth);
        ((place / depth) as u16, (place % depth) as u16)
    }
}

/// A range of addresses that is unmapped when dropped.
#[derive(Debug)]
struct Map {
    start: NonNull<u8>,
    len: usize,
}

impl Map {
    fn new(start: *mut std::ffi::c_void, len: usize) -> Self {
        Self { start: NonNull::new(start.cast()).expect("a mapping is not at zero"), len }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by us, and all users of its addresses are gone before its
        // owner.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

// SAFETY: a range of addresses is valid from any thread; a device is made on a control thread and
// then used by its sidecore alone.
unsafe impl Send for Map {}

/// The memory and the file of a device, before it is on its sidecore.
#[derive(Debug)]
pub struct Opened {
    file: File,
    shape: Shape,
    descriptors: Vec<Map>,
    buffers: Map,
}

impl Opened {
    /// Opens `/dev/ublkcN`.
    ///
    /// # Errors
    /// When it is not there, served by another process, or memory is short.
    ///
    /// # Panics
    /// When the shape is not a possible one.
    pub fn new(dev_id: u32, shape: Shape) -> io::Result<Self> {
        assert!(shape.is_possible(), "checked before the device was made");
        let file = File::options().read(true).write(true).open(char_path(dev_id))?;
        let bytes =
            (usize::from(shape.depth) * size_of::<Descriptor>()).next_multiple_of(PAGE_BYTES);
        let mut descriptors = Vec::new();
        for queue in 0..shape.queues {
            let offset = u64::from(queue) * abi::DESCRIPTORS_STRIDE_BYTES;
            let flags = MapFlags::SHARED | MapFlags::POPULATE;
            // SAFETY: a new mapping at an address that the kernel chooses.
            let map = unsafe {
                mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, flags, &file, offset)
            }?;
            descriptors.push(Map::new(map, bytes));
        }
        let bytes = shape.places() as usize * IO_BYTES_MAX as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: as above.
        let map = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) }?;
        Ok(Self { file, shape, descriptors, buffers: Map::new(map, bytes) })
    }

    /// Puts it onto the calling sidecore, whose `uring` was made for commands.
    pub fn with(self, uring: &Rc<RefCell<Uring>>) -> UblkDevice {
        let client = uring.borrow_mut().add_client(self.shape.places());
        UblkDevice { uring: Rc::clone(uring), client, opened: ManuallyDrop::new(self) }
    }
}

/// The path of a device's server's file.
pub fn char_path(dev_id: u32) -> String {
    format!("/dev/ublkc{dev_id}")
}

/// The path of the disk.
pub fn disk_path(dev_id: u32) -> String {
    format!("/dev/ublkb{dev_id}")
}

/// A device on its sidecore. All its commands come from this one thread, as the driver demands.
#[derive(Debug)]
pub struct UblkDevice {
    uring: Rc<RefCell<Uring>>,
    client: ClientId,
    opened: ManuallyDrop<Opened>,
}

impl Kernel for UblkDevice {
    fn shape(&self) -> Shape {
        self.opened.shape
    }

    fn ask(&mut self, place: u32, answer: Option<i32>) -> bool {
        let (q_id, tag) = self.opened.shape.split(place);
        let number = if answer.is_some() { command::COMMIT_AND_FETCH } else { command::FETCH };
        let addr = self.buffer(place) as u64;
        let words = IoCommand { q_id, tag, result: answer.unwrap_or(0), addr };
        let mut cmd = [0; 16];
        cmd.copy_from_slice(words.as_bytes());
        let fd = types::Fd(self.opened.file.as_raw_fd());
        let entry = opcode::UringCmd16::new(fd, number).cmd(cmd).build();
        // SAFETY: the file and the buffers are this device's, which is dropped only after the
        // driver has returned every command (`Drop`), and the driver pins the pages that it copies
        // to and from while it does.
        unsafe { self.uring.borrow_mut().push(self.client, place, entry) }.is_ok()
    }

    fn take(&mut self, into: &mut Vec<Completion>) {
        self.uring.borrow_mut().take(self.client, into);
    }

    fn has_mail(&self) -> bool {
        self.uring.borrow().has_mail(self.client)
    }

    fn descriptor(&self, place: u32) -> Descriptor {
        let (queue, tag) = self.opened.shape.split(place);
        let map = &self.opened.descriptors[usize::from(queue)];
        let at = usize::from(tag) * size_of::<Descriptor>();
        assert!(at + size_of::<Descriptor>() <= map.len, "a tag is below the depth");
        // SAFETY: inside the mapping, aligned (24 divides into words of 8, and the mapping is at a
        // page); the driver wrote it before it completed the command, and does not again before we
        // answer.
        unsafe { map.start.as_ptr().add(at).cast::<Descriptor>().read_volatile() }
    }

    fn buffer(&self, place: u32) -> *mut u8 {
        assert!(place < self.opened.shape.places(), "a place of this device");
        // SAFETY: the mapping has a buffer for each place.
        unsafe { self.opened.buffers.start.as_ptr().add(place as usize * IO_BYTES_MAX as usize) }
    }
}

impl Drop for UblkDevice {
    fn drop(&mut self) {
        // A device that was stopped has returned all commands. Of one that was not the driver still
        // has addresses of buffers: these are left to the end of the process, and the device with
        // them to the next server.
        let mut uring = self.uring.borrow_mut();
        if uring.outstanding(self.client) == 0 {
            uring.remove_client(self.client);
            // SAFETY: dropped here and nowhere else; no code uses it after this.
            unsafe { ManuallyDrop::drop(&mut self.opened) };
        }
    }
}
