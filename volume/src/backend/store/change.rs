//! Changes of the devices of a pool that is open: they become longer, join and leave.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use store::format::DEVICE_HEADER_BLOCKS;
use store::{Admission, DeviceChange, PoolDevice, PoolStatus};

use super::create::{device, random_uuid};
use super::devices::{PoolFile, PoolFiles, blocks_of, same_twice};
use super::drive::Drive;
use super::error::StorePoolError;
use super::pool::{PoolInside, StorePool};

/// A device of a pool that is open.
#[derive(Clone, Debug)]
pub struct PooledDevice {
    /// Its path.
    pub path: PathBuf,
    /// How it is.
    pub device: PoolDevice,
    /// Of a device that leaves, how long the rest takes, by the time that it took until now.
    pub left: Option<Duration>,
}

/// A leave, as far as it was watched.
#[derive(Debug)]
pub(super) struct WatchedLeave {
    number: u8,
    since: Instant,
    live_blocks: u64,
}

impl StorePool {
    /// Its devices.
    pub fn devices(&self) -> Vec<PooledDevice> {
        let drive = self.inside().lock_drive();
        let (status, paths) = (drive.status(), drive.paths());
        drop(drive);
        let leaves = self.inside().leaves.lock();
        let pooled = |device: PoolDevice| {
            let path = paths.iter().find(|(number, _)| *number == device.number);
            let leave = leaves.iter().find(|leave| leave.number == device.number);
            let left = leave.and_then(|leave| leave.left(device.live_blocks));
            Some(PooledDevice { path: path?.1.clone(), device, left })
        };
        status.devices.into_iter().filter_map(pooled).collect()
    }

    /// Uses the whole length of devices that have become longer: their paths. Waits for the
    /// devices, so this and the following are for control threads only.
    ///
    /// # Errors
    /// [`StorePoolError`] if none is longer, or has no room for another segment.
    pub fn grow(&self) -> Result<Vec<PathBuf>, StorePoolError> {
        let inside = self.inside();
        let mut grown = Vec::new();
        let mut why = None;
        let longer = inside.lock_drive().longer()?;
        for (number, path, blocks) in longer {
            let change = DeviceChange::Grow { device: number, blocks };
            match inside.change_device(change) {
                Ok(()) => {
                    inside.lock_drive().set_blocks(number, blocks);
                    grown.push(path);
                }
                Err(error) => why = Some(error),
            }
        }
        match why {
            Some(why) if grown.is_empty() => Err(why),
            None if grown.is_empty() => Err(inside.devices_error(
                "no device of it has become longer by a segment; make a file or a logical volume \
                 longer first, or add another device",
            )),
            _ => Ok(grown),
        }
    }

    /// Another device joins, whose content is lost. Without `force` it must be empty.
    ///
    /// # Errors
    /// [`StorePoolError`]: nothing was changed, unless a device has failed.
    pub fn add_device(&self, path: &Path, force: bool) -> Result<(), StorePoolError> {
        let inside = self.inside();
        let paths = inside.lock_drive().paths().into_iter().map(|(_, path)| path);
        let paths: Vec<_> = paths.chain([path.to_owned()]).collect();
        same_twice(&paths)?;
        let (file, is_direct) = device(path, None, force, Some(inside.uuid()))?;
        let uuid = random_uuid(path)?;
        let blocks = file.blocks;
        let mut file = Some(file);
        let ended = inside.ask_drive(|drive, tag| {
            let device = drive.engine()?.free_device();
            // The engine refuses it by name if there is no place.
            let number = device.unwrap_or(u8::MAX);
            if let (Some(number), Some(file)) = (device, file.take()) {
                drive.plug_in(number, file);
            }
            let change = DeviceChange::Add { device: number, uuid, blocks };
            let admission = drive.engine()?.change_devices(tag, change);
            if let (Admission::Busy, Some(number)) = (admission, device) {
                file = drive.unplug(number);
            }
            Some(admission)
        });
        inside.let_devices_go();
        ended.1.map_err(|error| inside.devices_error(error))?;
        inside.direct.fetch_and(is_direct, Relaxed);
        inside.note_paths();
        Ok(())
    }

    /// Moves all that is on a device to the others, and lets it go then. This returns when that has
    /// begun for good; [`Self::devices`] has the progress.
    ///
    /// # Errors
    /// [`StorePoolError`]: nothing was changed, unless a device has failed.
    pub fn remove_device(&self, path: &Path) -> Result<(), StorePoolError> {
        let inside = self.inside();
        let number = inside.number_of(path)?;
        inside.change_device(DeviceChange::Remove { device: number })?;
        inside.watch_leaves();
        Ok(())
    }

    /// Keeps a device that the pool was leaving.
    ///
    /// # Errors
    /// [`StorePoolError`]: it has left, or there is none.
    pub fn keep_device(&self, path: &Path) -> Result<(), StorePoolError> {
        let inside = self.inside();
        let number = inside.number_of(path)?;
        inside.change_device(DeviceChange::Keep { device: number })?;
        inside.watch_leaves();
        Ok(())
    }
}

impl PoolInside {
    fn change_device(&self, change: DeviceChange) -> Result<(), StorePoolError> {
        let ended = self.ask(|engine, tag| engine.change_devices(tag, change)).1;
        ended.map(drop).map_err(|error| self.devices_error(error))
    }

    fn devices_error(&self, why: impl ToString) -> StorePoolError {
        StorePoolError::Devices { pool: self.name().to_owned(), why: why.to_string() }
    }

    fn number_of(&self, path: &Path) -> Result<u8, StorePoolError> {
        let paths = self.lock_drive().paths();
        let found = paths.iter().find(|(_, it)| it == path);
        found.map(|(number, _)| *number).ok_or_else(|| {
            let all: Vec<_> = paths.iter().map(|(_, path)| path.display().to_string()).collect();
            let path = path.display();
            self.devices_error(format!("{path} is none of its devices: {}", all.join(", ")))
        })
    }

    /// Lets devices go that the engine has no use for: those that have left, or did not come to
    /// join. Their locks are free then.
    pub(super) fn let_devices_go(&self) {
        let gone: Vec<PoolFile> = {
            let mut drive = self.lock_drive();
            let paths = drive.paths();
            let unused = paths.iter().filter(|(number, _)| !drive.uses(*number));
            let unused: Vec<u8> = unused.map(|(number, _)| *number).collect();
            unused.into_iter().filter_map(|number| drive.unplug(number)).collect()
        };
        if gone.is_empty() {
            return;
        }
        for file in &gone {
            let (pool, path) = (self.name(), file.path.display());
            tracing::info!(pool, %path, "the device is not used by the pool any more");
        }
        self.note_paths();
    }

    /// Notes when leaves began, for the time that they take.
    pub(super) fn watch_leaves(&self) {
        let devices = self.lock_drive().status().devices;
        let mut leaves = self.leaves.lock();
        leaves.retain(|leave| {
            devices.iter().any(|device| device.number == leave.number && device.is_leaving)
        });
        for device in devices.into_iter().filter(|device| device.is_leaving) {
            let PoolDevice { number, live_blocks, .. } = device;
            if leaves.iter().all(|leave| leave.number != number) {
                leaves.push(WatchedLeave { number, since: Instant::now(), live_blocks });
            }
        }
    }

    /// Remembers the paths, for an opening after the devices were let go for a while.
    fn note_paths(&self) {
        let paths = self.lock_drive().paths();
        *self.paths.lock() = paths.into_iter().map(|(_, path)| path).collect();
    }
}

impl WatchedLeave {
    fn left(&self, live_blocks: u64) -> Option<Duration> {
        let moved = self.live_blocks.checked_sub(live_blocks).filter(|moved| *moved > 0)?;
        let rate = self.since.elapsed().as_secs_f64() / moved as f64;
        Some(Duration::from_secs_f64(rate * live_blocks as f64))
    }
}

impl Drive {
    /// The devices that have room for more segments than the pool uses, and their lengths in
    /// blocks. The open files are asked: a path may name another file by now.
    fn longer(&self) -> Result<Vec<(u8, PathBuf, u64)>, StorePoolError> {
        let PoolStatus { devices, segment_blocks, .. } = self.status();
        let mut longer = Vec::new();
        for (number, PoolFile { path, file, .. }) in
            self.files().into_iter().flat_map(PoolFiles::iter)
        {
            let blocks = blocks_of(path, file)?;
            let segments = blocks.saturating_sub(DEVICE_HEADER_BLOCKS) / u64::from(segment_blocks);
            let known = devices.iter().find(|device| device.number == number);
            if known.is_some_and(|known| segments > u64::from(known.segments)) {
                longer.push((number, path.clone(), blocks));
            }
        }
        Ok(longer)
    }
}
