//! Another size for a file volume while it is used.
//!
//! Where the configuration names no size the file's length is the volume's, and nothing else is
//! remembered. Where it names a size, the file remembers the volume's size beside the configured
//! one. The remembered size counts only while the configuration still says the same; a new size in
//! the configuration takes its place.
//!
//! | step | growing | shrinking |
//! | --- | --- | --- |
//! | 1 | the file is extended, durably | users are held to the new size |
//! | 2 | the size is remembered | the size is remembered |
//! | 3 | users may go up to it | the file is cut |
//!
//! So a crash between two steps leaves a file that is at least as long as the volume.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{SeekFrom, XattrFlags, fremovexattr, fsetxattr, fsync, ftruncate, seek};
use rustix::io::Errno;

use super::FileVolume;
use super::open::{SIZE_ATTRIBUTE, remembered};
use crate::backend::kind::{Remembered, ResizeError};

impl FileVolume {
    /// The size that a volume of this file has where `configured_bytes` is what the configuration
    /// says: it may have been resized since. Takes no lock.
    pub fn remembered_bytes(path: &Path, configured_bytes: u64) -> u64 {
        let file = std::fs::File::open(path).ok().map(OwnedFd::from);
        let remembered = file.and_then(|file| remembered(&file, configured_bytes));
        remembered.unwrap_or(configured_bytes)
    }

    /// Makes the volume this large. `configured_bytes` is the size in the configuration. Waits for
    /// the file system, so this is for control threads only. With `shrink` the volume must have no
    /// user.
    ///
    /// # Errors
    /// [`ResizeError`]: the volume is as it was.
    pub fn resize(
        &self,
        size_bytes: u64,
        configured_bytes: Option<u64>,
        shrink: bool,
    ) -> Result<Remembered, ResizeError> {
        let shared = &self.shared;
        let _one = shared.resizing.lock();
        let (now_bytes, block_bytes) = (shared.size.get(), shared.info.block_bytes);
        if shared.info.read_only {
            return Err(ResizeError::ReadOnly);
        }
        if !size_bytes.is_multiple_of(u64::from(block_bytes)) || size_bytes == 0 {
            return Err(ResizeError::NotWhole { size_bytes, block_bytes });
        }
        if size_bytes < now_bytes && !shrink {
            return Err(ResizeError::Shrinks { now_bytes });
        }
        let actual_bytes = seek(&shared.file, SeekFrom::End(0)).map_err(system("find its size"))?;
        if size_bytes < now_bytes {
            shared.size.set(size_bytes);
            let remembered = self.remember(size_bytes, actual_bytes, configured_bytes);
            // Bytes behind the end of a volume that has only a part of its file are not the
            // volume's.
            if !shared.is_block_device && actual_bytes == now_bytes {
                let cut = ftruncate(&shared.file, size_bytes).and_then(|()| fsync(&shared.file));
                if let Err(source) = cut {
                    shared.size.set(now_bytes);
                    self.remember(now_bytes, actual_bytes, configured_bytes);
                    return Err(system("cut the file")(source));
                }
            }
            return Ok(remembered);
        }
        if actual_bytes < size_bytes {
            if shared.is_block_device {
                return Err(ResizeError::DeviceTooSmall { actual_bytes });
            }
            ftruncate(&shared.file, size_bytes).map_err(system("extend the file"))?;
            fsync(&shared.file).map_err(system("sync the file"))?;
        }
        let remembered = self.remember(size_bytes, actual_bytes, configured_bytes);
        shared.size.set(size_bytes);
        Ok(remembered)
    }

    fn remember(
        &self,
        size_bytes: u64,
        actual_bytes: u64,
        configured_bytes: Option<u64>,
    ) -> Remembered {
        // Without a configured size a device is used as a whole the next time.
        let is_part = self.shared.is_block_device && size_bytes < actual_bytes;
        if is_part && configured_bytes.is_none() {
            return Remembered::No;
        }
        let file = self.shared.file.as_fd();
        let kept = match configured_bytes.filter(|configured| *configured != size_bytes) {
            None => match fremovexattr(file, SIZE_ATTRIBUTE) {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM) => Ok(()),
                Err(error) => Err(error),
            },
            Some(configured_bytes) => {
                let mut bytes = [0; 16];
                bytes[..8].copy_from_slice(&configured_bytes.to_le_bytes());
                bytes[8..].copy_from_slice(&size_bytes.to_le_bytes());
                fsetxattr(file, SIZE_ATTRIBUTE, &bytes, XattrFlags::empty())
            }
        };
        match kept.and_then(|()| fsync(file)) {
            Ok(()) => Remembered::Yes,
            Err(error) => {
                tracing::warn!(file = %self.shared.path.display(), %error,
                    "the new size cannot be noted with the file");
                Remembered::No
            }
        }
    }
}

fn system(what: &'static str) -> impl Fn(Errno) -> ResizeError {
    move |source| ResizeError::System { what, source: source.into() }
}
