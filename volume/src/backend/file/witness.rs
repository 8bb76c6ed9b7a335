//! Signs of the host by which a file's page cache is known to be the one that writes went to.
//!
//! The page cache is lost with the host's boot, but also earlier: a device fails, its file system
//! is unmounted and mounted again, and all bytes that were not on the storage are gone without a
//! reboot. No id of a *mount* can tell, since each service has a mount name space and so ids of its
//! own. An object in sysfs lives exactly as long as the kernel's view of the file system, and its
//! inode number is used once a boot: `/sys/fs/TYPE/DEVICE`, and `/sys/class/bdi/MAJOR:MINOR` where
//! the file system has no device. A device that came back has another sequence number. A file that
//! was made anew under the same inode number (tmpfs) has another time of birth.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, Stat, StatxFlags, major, minor, statx};

use super::failures;
use crate::volume::Incarnation;

/// File systems that have an object for each device.
const WITH_OBJECTS: [&str; 5] = ["ext4", "xfs", "f2fs", "gfs2", "nilfs2"];

/// The signs by which a file is known.
pub(super) struct Witness {
    /// The incarnation of a file that no record tells of: its boot, its place, its failures.
    pub(super) plain: Incarnation,
    /// A hash of all signs. When it changes, writes without a flush may be lost.
    pub(super) seen: [u8; 16],
}

/// Looks at a file or a device.
///
/// # Errors
/// When the host does not tell which boot this is.
pub(super) fn of(file: &OwnedFd, stat: &Stat, is_block_device: bool) -> io::Result<Witness> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let (device, inode) =
        if is_block_device { (stat.st_rdev, 0) } else { (stat.st_dev, stat.st_ino) };
    let mut hash = Fnv::new();
    hash.add(boot.trim().as_bytes());
    hash.add(&device.to_le_bytes());
    hash.add(&inode.to_le_bytes());
    hash.add(&failures::count(file).to_le_bytes());
    let plain = Incarnation(hash.0.to_le_bytes());
    let sequence = block_value(device, "diskseq").unwrap_or(0);
    hash.add(&sequence.to_le_bytes());
    if !is_block_device {
        hash.add(&mounted(device).unwrap_or(0).to_le_bytes());
        let (seconds, nanoseconds) = born(file).unwrap_or((0, 0));
        hash.add(&seconds.to_le_bytes());
        hash.add(&nanoseconds.to_le_bytes());
    }
    Ok(Witness { plain, seen: hash.0.to_le_bytes() })
}

/// The number of the kernel's object for the file system on a device, or of one without.
fn mounted(device: u64) -> Option<u64> {
    let number = |path: &Path| std::fs::metadata(path).ok().map(|found| found.ino());
    let place = format!("{}:{}", major(device), minor(device));
    if let Ok(link) = std::fs::read_link(format!("/sys/dev/block/{place}")) {
        let name = link.file_name()?;
        return WITH_OBJECTS
            .iter()
            .find_map(|kind| number(&Path::new("/sys/fs").join(kind).join(name)));
    }
    number(&Path::new("/sys/class/bdi").join(place))
}

/// A value of a block device in sysfs; of a partition, its disk's value.
fn block_value(device: u64, name: &str) -> Option<u64> {
    let device = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let read = |path: String| std::fs::read_to_string(path).ok();
    let text = read(format!("{device}/{name}")).or_else(|| read(format!("{device}/../{name}")))?;
    text.trim().parse().ok()
}

fn born(file: &OwnedFd) -> Option<(i64, u32)> {
    let told = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok()?;
    (told.stx_mask & StatxFlags::BTIME.bits() != 0)
        .then_some((told.stx_btime.tv_sec, told.stx_btime.tv_nsec))
}

/// FNV-1a with 128 bits. Every process must get the same hash, and no attacker chooses its input.
struct Fnv(u128);

impl Fnv {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

    fn new() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(Self::PRIME);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_published_one() {
        let mut hash = Fnv::new();
        hash.add(b"a");
        assert_eq!(hash.0, 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }
}
