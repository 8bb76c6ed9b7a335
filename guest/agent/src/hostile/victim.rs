//! A virtio-blk PCI device without its driver: registers and one ring, by hand (virtio 1.2,
//! sections 4.1 and 2.7).

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use super::window::Window;

pub(super) const NEXT: u16 = 1;
pub(super) const WRITE: u16 = 2;
pub(super) const INDIRECT: u16 = 4;

/// Where things are in our page.
pub(super) const DESC: u64 = 0;
pub(super) const AVAIL: u64 = 0x1000;
pub(super) const USED: u64 = 0x2000;
pub(super) const TABLE: u64 = 0x4000;
pub(super) const HEADER: u64 = 0x8000;
pub(super) const STATUS: u64 = 0x9000;
pub(super) const DATA: u64 = 0x1_0000;

/// Descriptors of the ring, unless an attack wants another number.
pub(super) const SIZE: u16 = 16;
/// The value of a status byte that the device has not written.
pub(super) const UNANSWERED: u8 = 0xee;

/// For what a device does at once on a machine that is not busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// How the device is set up.
#[derive(Debug, Clone, Copy)]
pub(super) struct VictimSetup {
    pub(super) features: u64,
    pub(super) size: u16,
    /// Where the ring's parts are, as offsets into our page.
    pub(super) ring: [u64; 3],
}

pub(super) const FEATURE_INDIRECT: u64 = 1 << 28;
pub(super) const FEATURE_EVENT_IDX: u64 = 1 << 29;
const FEATURE_VERSION_1: u64 = 1 << 32;
const FEATURE_FLUSH: u64 = 1 << 9;

impl Default for VictimSetup {
    fn default() -> Self {
        Self {
            features: FEATURE_VERSION_1 | FEATURE_INDIRECT | FEATURE_FLUSH,
            size: SIZE,
            ring: [DESC, AVAIL, USED],
        }
    }
}

/// Registers of the common configuration.
mod register {
    pub(super) const DRIVER_FEATURE_SELECT: usize = 8;
    pub(super) const DRIVER_FEATURE: usize = 12;
    pub(super) const DEVICE_STATUS: usize = 20;
    pub(super) const QUEUE_SELECT: usize = 22;
    pub(super) const QUEUE_SIZE: usize = 24;
    pub(super) const QUEUE_VECTOR: usize = 26;
    pub(super) const QUEUE_ENABLE: usize = 28;
    pub(super) const QUEUE_NOTIFY_OFF: usize = 30;
    pub(super) const QUEUE_ADDRS: [usize; 3] = [32, 40, 48];
}

const ACKNOWLEDGE: u8 = 1;
const DRIVER: u8 = 2;
const DRIVER_OK: u8 = 4;
const FEATURES_OK: u8 = 8;

/// The device and our memory.
#[derive(Debug)]
pub(super) struct Victim {
    common: Window,
    notify: Window,
    notify_multiplier: u32,
    pub(super) memory: Window,
    pub(super) physical: u64,
    setup: VictimSetup,
    avail: u16,
    used: u16,
    /// The end of the guest's memory, beyond which there is nothing.
    pub(super) memory_end: u64,
}

impl Victim {
    /// Takes the disk (such as `/dev/vda`) away from the kernel's driver.
    ///
    /// # Errors
    /// When the kernel does not let go of it or it is not a virtio device as they are today.
    pub(super) fn take(disk: &str) -> io::Result<Self> {
        let name = disk.trim_start_matches("/dev/");
        let device = fs::canonicalize(format!("/sys/block/{name}/device"))?;
        let pci = device.parent().ok_or(io::Error::other("a disk without a bus"))?.to_owned();
        let slot = pci.file_name().unwrap_or_default().to_string_lossy().into_owned();
        fs::write(pci.join("driver/unbind"), &slot)?;
        fs::write(pci.join("enable"), "1")?;
        let config = OpenOptions::new().read(true).write(true).open(pci.join("config"))?;
        let mut command = [0; 2];
        config.read_exact_at(&mut command, 4)?;
        // Memory space and bus master.
        config.write_all_at(&[command[0] | 6, command[1]], 4)?;
        let mut space = [0; 256];
        config.read_exact_at(&mut space, 0)?;
        let (memory, physical) = Window::memory()?;
        let (common, _) = capability(&pci, &space, 1)?;
        let (notify, at) = capability(&pci, &space, 2)?;
        let multiplier = space[at + 16..at + 20].try_into().expect("four bytes");
        Ok(Self {
            common,
            notify,
            notify_multiplier: u32::from_le_bytes(multiplier),
            memory,
            physical,
            setup: VictimSetup::default(),
            avail: 0,
            used: 0,
            memory_end: memory_end()?,
        })
    }

    /// Resets the device and forgets the ring.
    pub(super) fn reset(&mut self) {
        self.common.write_u8(register::DEVICE_STATUS, 0);
        let since = Instant::now();
        while self.common.read_u8(register::DEVICE_STATUS) != 0 && since.elapsed() < PATIENCE {}
        (0..0x1_0000).step_by(8).for_each(|at| self.memory.write_u64(at, 0));
        (self.avail, self.used) = (0, 0);
    }

    /// Resets it and starts it with one ring.
    pub(super) fn start(&mut self, setup: VictimSetup) {
        self.reset();
        self.setup = setup;
        let common = &self.common;
        let status = |bits| common.write_u8(register::DEVICE_STATUS, bits);
        status(ACKNOWLEDGE);
        status(ACKNOWLEDGE | DRIVER);
        for half in 0..2 {
            common.write_u32(register::DRIVER_FEATURE_SELECT, half);
            common.write_u32(register::DRIVER_FEATURE, (setup.features >> (32 * half)) as u32);
        }
        status(ACKNOWLEDGE | DRIVER | FEATURES_OK);
        common.write_u16(register::QUEUE_SELECT, 0);
        common.write_u16(register::QUEUE_SIZE, setup.size);
        common.write_u16(register::QUEUE_VECTOR, u16::MAX);
        for (register, part) in register::QUEUE_ADDRS.into_iter().zip(setup.ring) {
            let addr = self.physical.wrapping_add(part);
            common.write_u32(register, addr as u32);
            common.write_u32(register + 4, (addr >> 32) as u32);
        }
        common.write_u16(register::QUEUE_ENABLE, 1);
        status(ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK);
    }

    /// Writes a descriptor of the ring's own table; `at` is an offset into our page.
    pub(super) fn describe(&mut self, index: u16, at: u64, len: u32, flags: u16, next: u16) {
        self.describe_at(DESC, index, self.physical.wrapping_add(at), len, flags, next);
    }

    /// Writes a descriptor of the table at `table`, with any guest address.
    pub(super) fn describe_at(
        &mut self,
        table: u64,
        index: u16,
        addr: u64,
        len: u32,
        flags: u16,
        next: u16,
    ) {
        let at = (table + 16 * u64::from(index)) as usize;
        let rest = u64::from(len) | u64::from(flags) << 32 | u64::from(next) << 48;
        self.memory.write_u64(at, addr);
        self.memory.write_u64(at + 8, rest);
    }

    /// Makes a chain available.
    pub(super) fn offer(&mut self, head: u16) {
        let slot = usize::from(self.avail % self.setup.size.max(1));
        self.memory.write_u16(AVAIL as usize + 4 + 2 * slot, head);
        self.set_avail(self.avail.wrapping_add(1));
    }

    /// Says up to where chains are available.
    pub(super) fn set_avail(&mut self, index: u16) {
        self.avail = index;
        fence(Ordering::SeqCst);
        self.memory.write_u16(AVAIL as usize + 2, index);
        fence(Ordering::SeqCst);
    }

    /// Where the avail index is.
    pub(super) fn avail(&self) -> u16 {
        self.avail
    }

    /// Tells the device to look.
    pub(super) fn kick(&self) {
        let offset = u32::from(self.common.read_u16(register::QUEUE_NOTIFY_OFF));
        self.notify.write_u16((offset * self.notify_multiplier) as usize, 0);
    }

    /// Waits until one more chain was used; `false` when nothing comes.
    pub(super) fn wait_used(&mut self) -> bool {
        let since = Instant::now();
        while self.memory.read_u16(USED as usize + 2) == self.used {
            if since.elapsed() > PATIENCE {
                return false;
            }
            std::thread::yield_now();
        }
        fence(Ordering::SeqCst);
        self.used = self.used.wrapping_add(1);
        true
    }

    /// Writes a request's header and marks its status as unanswered.
    pub(super) fn head(&mut self, kind: u32, sector: u64) {
        self.memory.write_u32(HEADER as usize, kind);
        self.memory.write_u32(HEADER as usize + 4, 0);
        self.memory.write_u64(HEADER as usize + 8, sector);
        self.memory.write_u8(STATUS as usize, UNANSWERED);
    }

    /// A whole request, in order, on descriptors 0 to 2, and its status.
    pub(super) fn request(&mut self, kind: u32, sector: u64, data_bytes: u32) -> u8 {
        self.head(kind, sector);
        let is_write = kind & 1 != 0;
        self.describe(0, HEADER, 16, NEXT, 1);
        self.describe(1, DATA, data_bytes, NEXT | if is_write { 0 } else { WRITE }, 2);
        self.describe(2, STATUS, 1, WRITE, 0);
        self.finish(0)
    }

    /// Offers a chain, and gives the status that comes.
    pub(super) fn finish(&mut self, head: u16) -> u8 {
        self.offer(head);
        self.kick();
        if self.wait_used() { self.memory.read_u8(STATUS as usize) } else { UNANSWERED }
    }
}

/// Maps what the capability of this type describes; gives also where the capability is.
fn capability(pci: &Path, space: &[u8; 256], kind: u8) -> io::Result<(Window, usize)> {
    let word = |at: usize| u32::from_le_bytes(space[at..at + 4].try_into().expect("four bytes"));
    let mut at = usize::from(space[0x34] & 0xfc);
    // There is room for 48 at most.
    for _ in 0..48 {
        if at == 0 || at > 256 - 20 {
            break;
        }
        if space[at] == 9 && space[at + 3] == kind {
            let resource: PathBuf = pci.join(format!("resource{}", space[at + 4]));
            let registers = Window::registers(&resource)?;
            return Ok((registers.part(word(at + 8) as usize, word(at + 12) as usize), at));
        }
        at = usize::from(space[at + 1] & 0xfc);
    }
    Err(io::Error::other("no virtio capability: is it a device of before 1.0?"))
}

/// Of the guest's memory, as the kernel lists it.
fn memory_end() -> io::Result<u64> {
    let listed = fs::read_to_string("/proc/iomem")?;
    let ends = listed.lines().filter(|line| line.contains("System RAM")).filter_map(|line| {
        let range = line.split_whitespace().next()?;
        u64::from_str_radix(range.split('-').nth(1)?, 16).ok()
    });
    // The firmware keeps the last pages to itself; a machine's memory is whole MiB.
    let end = ends.max().map(|last| (last + 1).next_multiple_of(1 << 20));
    end.ok_or(io::Error::other("no memory in /proc/iomem"))
}
