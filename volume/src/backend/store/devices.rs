//! The files and block devices of a pool: which of them is which, and their locks.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
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

/// A device of a pool that is open. Its description holds its lock.
#[derive(Debug)]
pub(super) struct PoolFile {
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) blocks: u64,
}

/// The devices of a pool that is open, by their numbers in the pool.
#[derive(Debug)]
pub(super) struct PoolFiles {
    files: Vec<Option<PoolFile>>,
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
        // Devices without a superblock: an empty one, or a device that a crash kept from joining.
        let mut without = Vec::new();
        for path in paths {
            let (locked, is_direct) = open_device(path, lock_timeout)?;
            match FoundDevice::read(path, locked) {
                Err(
                    error @ (StorePoolError::NoPool { .. } | StorePoolError::Superblock { .. }),
                ) => {
                    without.push(error);
                    continue;
                }
                read => found.push(read?),
            }
            direct &= is_direct;
        }
        if found.is_empty() {
            return Err(without.remove(0));
        }
        let newest = newest_of(&found)?;
        let mut own = Vec::with_capacity(found.len());
        let mut others = Vec::new();
        for device in found {
            match device.belongs_to(&newest)? {
                true => own.push(device),
                false => others.push(device),
            }
        }
        let missing = in_order(&mut own, &others, &newest).err();
        if let Some(missing) = missing {
            // The device that is missing may be one of these.
            let is_absent = matches!(missing, StorePoolError::Incomplete { .. });
            return Err(without.into_iter().next().filter(|_| is_absent).unwrap_or(missing));
        }
        for why in without {
            tracing::warn!(
                %why,
                "the pool works without this device: take it out of \"devices\", or have it join \
                 with `vrio pool grow`"
            );
        }
        for FoundDevice { path, .. } in others {
            // The superblocks say which devices a pool has, so it works without this one.
            tracing::warn!(
                path = %path.display(),
                "this is no device of the pool any more, or did not come to join it: take it out \
                 of \"devices\", or have it join with `vrio pool grow`"
            );
        }
        let mut files = Self { files: Vec::new(), uuid: newest.superblock.uuid, direct };
        for FoundDevice { path, file, blocks, superblock } in own {
            files.put(superblock.device, PoolFile { path, file, blocks });
        }
        Ok(files)
    }

    /// Devices that are going to be a pool, in the order in which they were named.
    pub(super) fn for_format(files: Vec<PoolFile>, uuid: [u8; 16]) -> Self {
        Self { files: files.into_iter().map(Some).collect(), uuid, direct: false }
    }

    /// The lengths of the devices; 0 where there is none.
    pub(super) fn sizes_blocks(&self) -> Vec<u64> {
        let blocks = |file: &Option<PoolFile>| file.as_ref().map_or(0, |file| file.blocks);
        self.files.iter().map(blocks).collect()
    }

    /// A device gets a place.
    pub(super) fn put(&mut self, number: u8, file: PoolFile) {
        let place = usize::from(number);
        if self.files.len() <= place {
            self.files.resize_with(place + 1, || None);
        }
        self.files[place] = Some(file);
    }

    /// A device gives its place up.
    pub(super) fn take(&mut self, number: u8) -> Option<PoolFile> {
        self.files.get_mut(usize::from(number))?.take()
    }

    /// A device has become longer.
    pub(super) fn set_blocks(&mut self, number: u8, blocks: u64) {
        if let Some(Some(file)) = self.files.get_mut(usize::from(number)) {
            file.blocks = blocks;
        }
    }

    /// The devices, with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u8, &PoolFile)> {
        (0..).zip(&self.files).filter_map(|(number, file)| Some((number, file.as_ref()?)))
    }

    /// A device's file.
    pub(super) fn file(&self, device: u8) -> BorrowedFd<'_> {
        self.at(device).as_fd()
    }

    fn at(&self, device: u8) -> &File {
        let file = self.files[usize::from(device)].as_ref();
        &file.expect("the engine uses devices that are there").file
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
        let file = self.at(device);
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
        let file = self.at(device);
        file.write_all_at(bytes, offset_of(block)).map_err(|error| refused(&error))
    }

    fn sync(&mut self, device: u8) -> Result<(), PoolDeviceError> {
        self.at(device).sync_data().map_err(|error| refused(&error))
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
pub(super) fn blocks_of(path: &Path, file: impl AsFd) -> Result<u64, StorePoolError> {
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
                // A device that joined says so in one place, and not yet in the other place.
                let age = |it: &Superblock| (it.checkpoint.get(), it.joining == 0);
                if newest.is_none_or(|newest| age(&found) > age(&newest)) {
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

    /// Whether the newest superblock of the pool means this device.
    fn belongs_to(&self, newest: &Newest) -> Result<bool, StorePoolError> {
        let (path, other) = (self.path.clone(), newest.path.clone());
        let (own, pool) = (&self.superblock, &newest.superblock);
        if own.uuid != pool.uuid {
            return Err(StorePoolError::Foreign { path, other });
        }
        if !pool.has_device(own.device, own.own_uuid()) {
            return Ok(false);
        }
        let known = &pool.device_table[usize::from(own.device)];
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
        Ok(true)
    }
}

/// The newest superblock of all devices, and where it is.
struct Newest {
    path: PathBuf,
    superblock: Superblock,
}

/// The first path decides which pool it is: then another one is named as the foreign device. The
/// superblock of a device that was to join does not count.
fn newest_of(found: &[FoundDevice]) -> Result<Newest, StorePoolError> {
    let uuid = found[0].superblock.uuid;
    let is_of_pool = |it: &&FoundDevice| it.superblock.uuid == uuid && it.superblock.joining == 0;
    let of_pool = found.iter().filter(is_of_pool);
    let newest = of_pool.max_by_key(|device| device.superblock.checkpoint.get());
    let Some(newest) = newest else {
        return Err(StorePoolError::NotJoined { path: found[0].path.clone() });
    };
    Ok(Newest { path: newest.path.clone(), superblock: newest.superblock })
}

/// Puts the devices into the order of the pool, which must have no others.
fn in_order(
    found: &mut [FoundDevice],
    others: &[FoundDevice],
    newest: &Newest,
) -> Result<(), StorePoolError> {
    let pool = &newest.superblock;
    found.sort_by_key(|device| device.superblock.device);
    for pair in found.windows(2) {
        if pair[0].superblock.device == pair[1].superblock.device {
            let (path, other) = (pair[1].path.clone(), pair[0].path.clone());
            return Err(StorePoolError::Copy { path, other });
        }
    }
    let missing: Vec<u8> = pool
        .numbers()
        .filter(|number| found.iter().all(|device| device.superblock.device != *number))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let in_its_place = |it: &&FoundDevice| missing.contains(&it.superblock.device);
    if let Some(device) = others.iter().find(in_its_place) {
        let (path, other) = (device.path.clone(), newest.path.clone());
        return Err(StorePoolError::Replaced { path, other });
    }
    let missing: Vec<_> = missing.iter().map(u8::to_string).collect();
    let devices = pool.numbers().count() as u8;
    Err(StorePoolError::Incomplete { devices, missing: missing.join(", ") })
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
