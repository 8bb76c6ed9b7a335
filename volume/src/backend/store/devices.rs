//! The files and block devices of a pool: which of them is which, and their locks.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{SeekFrom, Stat, seek};
use store::block::{BLOCK_BYTES, BlockBuffer};
use store::format::{
    DEVICE_HEADER_BLOCKS, DEVICES_MAX, Superblock, SuperblockError, superblock_blocks,
};
use store::{PoolDeviceError, PoolDevices};

use super::error::StorePoolError;
use super::ring::device_error;
use crate::backend::file::open::{FileError, FileOptions, LockedFile, lock};

/// The devices of a pool that is open, in the order of the pool. Each description holds its lock.
#[derive(Debug)]
pub(super) struct PoolFiles {
    files: Vec<File>,
    sizes_blocks: Vec<u64>,
    /// The pool's UUID.
    pub(super) uuid: [u8; 16],
    /// All are opened around the page cache.
    pub(super) direct: bool,
}

/// A device that is open and locked, and its newest superblock.
struct FoundDevice {
    path: PathBuf,
    file: File,
    blocks: u64,
    superblock: Superblock,
}

impl PoolFiles {
    /// Opens and locks the devices of one pool, which may be named in any order.
    ///
    /// # Errors
    /// When the paths are not the whole of one pool, or a device is used by another process.
    pub(super) fn open(paths: &[PathBuf], lock_timeout: Duration) -> Result<Self, StorePoolError> {
        if !(1..=DEVICES_MAX).contains(&paths.len()) {
            return Err(StorePoolError::Count { count: paths.len() });
        }
        same_twice(paths)?;
        let mut direct = true;
        let mut found = Vec::with_capacity(paths.len());
        for path in paths {
            let (locked, is_direct) = open_device(path, lock_timeout)?;
            direct &= is_direct;
            found.push(FoundDevice::read(path, locked)?);
        }
        let newest = newest_of(&found);
        for device in &found {
            device.belongs_to(&newest)?;
        }
        in_order(&mut found, &newest.superblock)?;
        Ok(Self {
            sizes_blocks: found.iter().map(|device| device.blocks).collect(),
            files: found.into_iter().map(|device| device.file).collect(),
            uuid: newest.superblock.uuid,
            direct,
        })
    }

    /// Devices that are going to be a pool, in the order in which they were named.
    pub(super) fn for_format(files: Vec<(File, u64)>, uuid: [u8; 16]) -> Self {
        let sizes_blocks = files.iter().map(|(_, blocks)| *blocks).collect();
        let files = files.into_iter().map(|(file, _)| file).collect();
        Self { files, sizes_blocks, uuid, direct: false }
    }

    /// The lengths of the devices.
    pub(super) fn sizes_blocks(&self) -> &[u64] {
        &self.sizes_blocks
    }

    /// A device's file.
    pub(super) fn file(&self, device: u8) -> BorrowedFd<'_> {
        self.files[usize::from(device)].as_fd()
    }
}

impl PoolDevices for PoolFiles {
    fn read(
        &mut self,
        device: u8,
        block: u64,
        buffer: &mut BlockBuffer,
        blocks: u32,
    ) -> Result<(), PoolDeviceError> {
        let bytes = &mut buffer.bytes_mut()[..blocks as usize * BLOCK_BYTES];
        let file = &self.files[usize::from(device)];
        file.read_exact_at(bytes, offset_of(block)).map_err(|error| refused(&error))
    }

    fn write(
        &mut self,
        device: u8,
        block: u64,
        buffer: &BlockBuffer,
        blocks: u32,
    ) -> Result<(), PoolDeviceError> {
        let bytes = &buffer.bytes()[..blocks as usize * BLOCK_BYTES];
        let file = &self.files[usize::from(device)];
        file.write_all_at(bytes, offset_of(block)).map_err(|error| refused(&error))
    }

    fn sync(&mut self, device: u8) -> Result<(), PoolDeviceError> {
        self.files[usize::from(device)].sync_data().map_err(|error| refused(&error))
    }
}

fn offset_of(block: u64) -> u64 {
    block * BLOCK_BYTES as u64
}

/// A file that ends too early has no number of the system's.
fn refused(error: &io::Error) -> PoolDeviceError {
    device_error(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Opens and locks a device for writing, around the page cache where that is possible.
pub(super) fn open_device(
    path: &Path,
    lock_timeout: Duration,
) -> Result<(LockedFile, bool), StorePoolError> {
    let mut options = FileOptions::new(path);
    options.direct = true;
    options.lock_timeout = lock_timeout;
    let opened = match lock(&options, None) {
        Err(FileError::NoDirectIo { .. }) => {
            options.direct = false;
            lock(&options, None)
        }
        opened => opened,
    };
    match opened {
        Ok(locked) => Ok((locked, options.direct)),
        Err(FileError::Missing { path }) => Err(StorePoolError::Missing { path }),
        Err(error) => Err(StorePoolError::File(error)),
    }
}

/// The number of whole blocks of a device.
pub(super) fn blocks_of(path: &Path, file: &OwnedFd) -> Result<u64, StorePoolError> {
    let end = seek(file, SeekFrom::End(0)).map_err(|error| StorePoolError::System {
        path: path.to_owned(),
        what: "find its size",
        r#source: error.into(),
    })?;
    Ok(end / BLOCK_BYTES as u64)
}

/// The newest superblock of a device.
pub(super) fn superblock_of(path: &Path, file: &File) -> Result<Superblock, StorePoolError> {
    let mut buffer = BlockBuffer::new(1);
    let mut newest: Option<Superblock> = None;
    let mut worst = StorePoolError::NoPool { path: path.to_owned() };
    for block in [0, 1].into_iter().flat_map(superblock_blocks) {
        // A sector that cannot be read is like a damaged one: the others make up for it.
        if let Err(source) = file.read_exact_at(buffer.bytes_mut(), block * BLOCK_BYTES as u64) {
            if source.kind() != io::ErrorKind::UnexpectedEof {
                let path = path.to_owned();
                worst = StorePoolError::System { path, what: "read its superblocks", source };
            }
            continue;
        }
        match Superblock::decode(&buffer.blocks()[0]) {
            Ok(found) => {
                let known = newest.map_or(0, |newest| newest.checkpoint.get());
                if newest.is_none() || found.checkpoint.get() > known {
                    newest = Some(found);
                }
            }
            Err(SuperblockError::NoPool) => {}
            Err(error) => worst = StorePoolError::Superblock { path: path.to_owned(), error },
        }
    }
    newest.ok_or(worst)
}

impl FoundDevice {
    fn read(path: &Path, locked: LockedFile) -> Result<Self, StorePoolError> {
        let blocks = blocks_of(path, &locked.file)?;
        let file = File::from(locked.file);
        let superblock = superblock_of(path, &file)?;
        Ok(Self { path: path.to_owned(), file, blocks, superblock })
    }

    /// Checks that the newest superblock of the pool means this device.
    fn belongs_to(&self, newest: &Newest) -> Result<(), StorePoolError> {
        let (path, other) = (self.path.clone(), newest.path.clone());
        let (own, pool) = (&self.superblock, &newest.superblock);
        if own.uuid != pool.uuid {
            return Err(StorePoolError::Foreign { path, other });
        }
        let place = usize::from(own.device);
        let known = pool.device_table.get(place).filter(|_| own.device < pool.devices);
        let Some(known) = known.filter(|known| known.uuid == own.device_table[place].uuid) else {
            return Err(StorePoolError::Replaced { path, other });
        };
        let (had, has) = (own.checkpoint.get(), pool.checkpoint.get());
        // A checkpoint is on all devices before the next one begins.
        if had + 1 < has {
            return Err(StorePoolError::Old { path, had, has });
        }
        let segments_blocks =
            u64::from(known.segments.get()) * u64::from(pool.segment_blocks.get());
        let wanted_blocks = DEVICE_HEADER_BLOCKS + segments_blocks;
        if self.blocks < wanted_blocks {
            let (actual_bytes, wanted_bytes) = (offset_of(self.blocks), offset_of(wanted_blocks));
            return Err(StorePoolError::Short { path, actual_bytes, wanted_bytes });
        }
        Ok(())
    }
}

/// The newest superblock of all devices, and where it is.
struct Newest {
    path: PathBuf,
    superblock: Superblock,
}

/// The first path decides which pool it is: then another one is named as the foreign device.
fn newest_of(found: &[FoundDevice]) -> Newest {
    let uuid = found[0].superblock.uuid;
    let of_pool = found.iter().filter(|device| device.superblock.uuid == uuid);
    let newest = of_pool.max_by_key(|device| device.superblock.checkpoint.get());
    let newest = newest.expect("the first one is of its pool");
    Newest { path: newest.path.clone(), superblock: newest.superblock }
}

/// Puts the devices into the order of the pool.
fn in_order(found: &mut [FoundDevice], pool: &Superblock) -> Result<(), StorePoolError> {
    found.sort_by_key(|device| device.superblock.device);
    for pair in found.windows(2) {
        if pair[0].superblock.device == pair[1].superblock.device {
            let (path, other) = (pair[1].path.clone(), pair[0].path.clone());
            return Err(StorePoolError::Copy { path, other });
        }
    }
    let missing: Vec<_> = (0..pool.devices)
        .filter(|number| found.iter().all(|device| device.superblock.device != *number))
        .map(|number| number.to_string())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(StorePoolError::Incomplete { devices: pool.devices, missing: missing.join(", ") })
}

/// Refuses two paths of one file or device before the second one waits for the first one's lock.
pub(super) fn same_twice(paths: &[PathBuf]) -> Result<(), StorePoolError> {
    let number = |path: &PathBuf| rustix::fs::stat(path).ok().map(|stat| number_of(&stat));
    let numbers: Vec<_> = paths.iter().map(number).collect();
    for (at, path) in paths.iter().enumerate() {
        let same = |before: &usize| {
            paths[*before] == *path || numbers[at].is_some() && numbers[*before] == numbers[at]
        };
        if let Some(before) = (0..at).find(same) {
            let (path, other) = (path.clone(), paths[before].clone());
            return Err(StorePoolError::Twice { path, other });
        }
    }
    Ok(())
}

/// The identity of a file or device: that of a device is its number, under any name.
fn number_of(stat: &Stat) -> (u64, u64) {
    if stat.st_rdev != 0 { (stat.st_rdev, 0) } else { (stat.st_dev, stat.st_ino) }
}
