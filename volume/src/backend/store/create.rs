//! Making a pool.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate, fsync, ftruncate};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use store::block::{BLOCK_BYTES, BlockBuffer};
use store::format::{DEVICE_HEADER_BLOCKS, DEVICES_MAX, SEGMENT_BLOCKS_MAX};
use store::{DeviceLayout, PoolLayout, format_pool};

use super::devices::{PoolFile, PoolFiles, blocks_of, open_device, same_twice, superblock_of};
use super::error::StorePoolError;

/// The longest segment that a pool gets by itself: longer ones gain nothing.
const SEGMENT_BYTES: u64 = 32 << 20;

/// Segments that a pool has at least if its segments are chosen: some 25 are kept free, which is a
/// twentieth of these then.
const SEGMENTS_WANTED: u64 = 512;

/// The shortest segment: rows of the longest requests still fit.
const SEGMENT_BLOCKS_MIN: u64 = 64;

/// The fewest segments of a device. How many the pool needs on all devices the engine says.
const SEGMENTS_MIN: u64 = 1;

/// How far a device is looked at for content of other owners, such as file systems.
const LOOKED_AT_BLOCKS: u64 = 256;

/// How long to wait for another user of a device: only as long as it takes to let go.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// A pool to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPlan {
    /// Its devices: files, which are made where they are missing, and block devices.
    pub paths: Vec<PathBuf>,
    /// The length of each file. Block devices, and files that have a length, keep theirs.
    pub size_bytes: Option<u64>,
    /// The length of a segment; `None` chooses one by the size of the pool.
    pub segment_bytes: Option<u64>,
    /// Overwrite all content.
    pub force: bool,
}

/// Makes a pool. Files get all of their space at once, so that the pool finds out about a full
/// file system now.
///
/// # Errors
/// [`StorePoolError`]. Files that were made for it are removed again.
pub(super) fn create(plan: &PoolPlan) -> Result<(), StorePoolError> {
    let wanted_blocks = plan.segment_bytes.map(segment_blocks).transpose()?;
    if !(1..=DEVICES_MAX).contains(&plan.paths.len()) {
        return Err(StorePoolError::Count { count: plan.paths.len() });
    }
    same_twice(&plan.paths)?;
    let mut made = Vec::new();
    let done = make(plan, wanted_blocks, &mut made);
    if done.is_err() {
        for path in made {
            // The error that is told is the first error.
            let _ = std::fs::remove_file(path);
        }
    }
    done
}

fn segment_blocks(segment_bytes: u64) -> Result<u32, StorePoolError> {
    let block_bytes = BLOCK_BYTES as u64;
    let blocks = segment_bytes / block_bytes;
    let range = SEGMENT_BLOCKS_MIN..=u64::from(SEGMENT_BLOCKS_MAX);
    if !segment_bytes.is_multiple_of(block_bytes) || !range.contains(&blocks) {
        return Err(StorePoolError::Segment {
            segment_bytes,
            min_bytes: range.start() * block_bytes,
            max_bytes: range.end() * block_bytes,
        });
    }
    Ok(blocks as u32)
}

/// The length of a segment that suits devices of so many blocks together.
fn suitable_blocks(blocks: u64) -> u32 {
    let most = SEGMENT_BYTES / BLOCK_BYTES as u64;
    let wanted = (blocks / SEGMENTS_WANTED).clamp(SEGMENT_BLOCKS_MIN, most);
    // The power of two below it.
    1 << wanted.ilog2()
}

fn make(
    plan: &PoolPlan,
    wanted_blocks: Option<u32>,
    made: &mut Vec<PathBuf>,
) -> Result<(), StorePoolError> {
    let mut files = Vec::with_capacity(plan.paths.len());
    for path in &plan.paths {
        if make_file(path, plan.size_bytes)? {
            made.push(path.clone());
        }
        files.push(device(path, plan.size_bytes, plan.force, None)?.0);
    }
    let all_blocks = files.iter().map(|file| file.blocks).sum();
    let segment_blocks = wanted_blocks.unwrap_or_else(|| suitable_blocks(all_blocks));
    for file in &files {
        large_enough(file, segment_blocks)?;
    }
    let uuid = random_uuid(&plan.paths[0])?;
    let mut devices = Vec::with_capacity(files.len());
    for PoolFile { path, blocks, .. } in &files {
        devices.push(DeviceLayout { uuid: random_uuid(path)?, blocks: *blocks });
    }
    let layout = PoolLayout { uuid, segment_blocks, devices };
    let mut files = PoolFiles::for_format(files, uuid);
    format_pool(&mut files, &layout).map_err(|error| {
        let pool = plan.paths[0].display().to_string();
        StorePoolError::Engine { pool, error }
    })?;
    for path in made {
        sync_directory(path).map_err(|error| system(path, "sync its directory", error))?;
    }
    Ok(())
}

/// Makes a file for a pool that another process has: the owner of its directory has it as well.
///
/// # Errors
/// [`StorePoolError`]: there is a pool already, or no space for it. Then no file is left.
pub(super) fn make_device(path: &Path, size_bytes: u64) -> Result<(), StorePoolError> {
    if !make_file(path, Some(size_bytes))? {
        return Err(StorePoolError::Exists { path: path.to_owned() });
    }
    let made = device(path, Some(size_bytes), false, None).and_then(|_| {
        let directory = path.parent().unwrap_or(Path::new("."));
        let owner = rustix::fs::stat(directory);
        let owner = owner.map_err(|error| system(path, "look at its directory", error))?;
        let chowned = std::os::unix::fs::chown(path, Some(owner.st_uid), Some(owner.st_gid));
        // Without the right to do so, the node says whether it can use the file.
        let _ = chowned;
        sync_directory(path).map_err(|error| system(path, "sync its directory", error))
    });
    if made.is_err() {
        // The error that is told is the first error.
        let _ = std::fs::remove_file(path);
    }
    made
}

/// A UUID that nothing else has.
pub(super) fn random_uuid(path: &Path) -> Result<[u8; 16], StorePoolError> {
    let mut bytes = [0; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())
        .map(|_| bytes)
        .map_err(|error| system(path, "get random numbers", error))
}

/// Makes the file if there is none; `true` if it did.
pub(super) fn make_file(path: &Path, size_bytes: Option<u64>) -> Result<bool, StorePoolError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    match options.open(path) {
        Ok(_) if size_bytes.is_some() => Ok(true),
        Ok(_) => {
            let _ = std::fs::remove_file(path);
            Err(StorePoolError::NoSize { path: path.to_owned() })
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(StorePoolError::System {
            path: path.to_owned(),
            what: "create the file",
            r#source: error,
        }),
    }
}

/// A device with its locks and its length in blocks, which may be overwritten: without `force` it
/// is empty, has left its pool, or was to join the pool `joins`. Also whether it is used around the
/// page cache.
pub(super) fn device(
    path: &Path,
    size_bytes: Option<u64>,
    force: bool,
    joins: Option<&[u8; 16]>,
) -> Result<(PoolFile, bool), StorePoolError> {
    let (locked, is_direct) = open_device(path, LOCK_TIMEOUT)?;
    let is_file = !locked.is_block_device;
    let file = File::from(locked.file);
    if !force {
        refuse_used(path, &file, blocks_of(path, &file)?, joins)?;
    }
    if let Some(size_bytes) = size_bytes.filter(|_| is_file) {
        // Content that a forced file had must not be read as rows of the new pool, and goes.
        let emptied = ftruncate(&file, 0);
        emptied.map_err(|error| system(path, "empty the file", error))?;
        let allocated = fallocate(&file, FallocateFlags::empty(), 0, size_bytes);
        allocated.map_err(|error| system(path, "give the file its space", error))?;
        fsync(&file).map_err(|error| system(path, "sync the file", error))?;
    }
    let blocks = blocks_of(path, &file)?;
    if blocks == 0 && is_file {
        return Err(StorePoolError::NoSize { path: path.to_owned() });
    }
    Ok((PoolFile { path: path.to_owned(), file, blocks }, is_direct))
}

/// Refuses a device that has no room for a segment.
fn large_enough(file: &PoolFile, segment_blocks: u32) -> Result<(), StorePoolError> {
    let wanted_blocks = DEVICE_HEADER_BLOCKS + SEGMENTS_MIN * u64::from(segment_blocks);
    let PoolFile { path, blocks, .. } = file;
    if *blocks >= wanted_blocks {
        return Ok(());
    }
    let block_bytes = BLOCK_BYTES as u64;
    Err(StorePoolError::TooSmall {
        path: path.clone(),
        actual_bytes: blocks * block_bytes,
        wanted_bytes: wanted_blocks * block_bytes,
        segment_bytes: u64::from(segment_blocks) * block_bytes,
    })
}

/// Refuses a device with a pool or with anything else at its beginning.
fn refuse_used(
    path: &Path,
    file: &File,
    blocks: u64,
    joins: Option<&[u8; 16]>,
) -> Result<(), StorePoolError> {
    let in_use = |what| Err(StorePoolError::InUse { path: path.to_owned(), what });
    match superblock_of(path, file) {
        Ok(superblock) if superblock.has_left() => return Ok(()),
        Ok(superblock) if superblock.joining == 1 && Some(&superblock.uuid) == joins => {
            return Ok(());
        }
        Ok(_) | Err(StorePoolError::Superblock { .. }) => return in_use("a pool"),
        Err(StorePoolError::NoPool { .. }) => {}
        Err(error) => return Err(error),
    }
    let mut block = BlockBuffer::new(1);
    for at in 0..blocks.min(LOOKED_AT_BLOCKS) {
        let read = file.read_exact_at(block.bytes_mut(), at * BLOCK_BYTES as u64);
        read.map_err(|error| StorePoolError::System {
            path: path.to_owned(),
            what: "look at its content",
            r#source: error,
        })?;
        if block.bytes().iter().any(|byte| *byte != 0) {
            return in_use("data");
        }
    }
    Ok(())
}

fn sync_directory(path: &Path) -> Result<(), Errno> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = File::open(directory.unwrap_or(Path::new(".")));
    directory.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)).and_then(fsync)
}

fn system(path: &Path, what: &'static str, error: Errno) -> StorePoolError {
    StorePoolError::System { path: path.to_owned(), what, r#source: error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_has_segments_that_suit_its_size() {
        let blocks = |bytes: u64| bytes / BLOCK_BYTES as u64;
        for (pool_bytes, segment_bytes) in [
            (0, 256 << 10),
            (64 << 20, 256 << 10),
            (256 << 20, 512 << 10),
            ((1 << 30) - 1, 1 << 20),
            (1 << 30, 2 << 20),
            (16 << 30, 32 << 20),
            (1 << 50, 32 << 20),
        ] {
            let found = suitable_blocks(blocks(pool_bytes));
            assert_eq!(u64::from(found), blocks(segment_bytes), "{pool_bytes}");
            // Some 25 segments are kept: a twentieth, but for the smallest pools.
            let kept_bytes = 25 * segment_bytes;
            assert!(pool_bytes < 128 << 20 || kept_bytes <= pool_bytes / 20 + 1, "{pool_bytes}");
        }
    }
}
