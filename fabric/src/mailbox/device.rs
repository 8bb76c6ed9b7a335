//! A VM's window: QEMU's `ivshmem-doorbell`, found in sysfs and mapped without a driver.
//!
//! BAR 0 has four registers of 4 bytes, of which two are used: at 8 the VM's number, at 12 the
//! doorbell. BAR 2 is the region. (docs/specs/ivshmem-spec.rst of QEMU.)

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::region::{Region, RegionError};
use crate::shared::Registers;

const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// Red Hat's vendor number, and the device's.
const VENDOR: &str = "0x1af4";
const DEVICE: &str = "0x1110";

/// Of BAR 0, as long as a page that can be mapped.
const REGISTERS_BYTES: usize = 4096;

const OWN_NUMBER: usize = 8;
const DOORBELL: usize = 12;

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Not one.
    #[error("this machine has no ivshmem device; `vrio vf --help` on its host has QEMU's options")]
    None,
    /// Several, and it was not said which.
    #[error("this machine has several ivshmem devices ({0}); set VRIO_FABRIC to one of these")]
    Several(String),
    /// It cannot be mapped.
    #[error(
        "cannot map {path:?}: {source}; only root may, unless the system has vrio's udev rule \
         (packaging/60-vrio-vf.rules) and the user is in the group that it names"
    )]
    Map {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        r#source: io::Error,
    },
    /// The device does not show a region.
    #[error("the device at {path:?} shows no domain: {source}")]
    Region {
        /// The file.
        path: PathBuf,
        /// The fault of the region.
        r#source: RegionError,
    },
    /// Its number is none that a node gives.
    #[error("the device at {0:?} was not made by a vrio node: its number is {1}")]
    Number(PathBuf, u32),
}

/// The device, mapped.
#[derive(Debug)]
pub(crate) struct MailboxDevice {
    registers: Registers,
    pub(crate) region: Arc<Region>,
    pub(crate) number: u8,
}

impl MailboxDevice {
    /// The one at this PCI address, or the only one; with the slots through `data`, another device
    /// over the same memory, where that is given.
    pub(crate) fn find(address: Option<&str>, data: Option<&Path>) -> Result<Self, DeviceError> {
        let home = Path::new(PCI_DEVICES);
        match address {
            Some(address) => Self::open(&home.join(address), data),
            None => Self::open(&home.join(only(home)?), data),
        }
    }

    fn open(folder: &Path, data: Option<&Path>) -> Result<Self, DeviceError> {
        let path = folder.join("resource0");
        let refuse = |path: &Path| {
            let path = path.to_owned();
            move |source| DeviceError::Map { path, source }
        };
        // Only root may switch it on; the firmware has, as a rule.
        let _ = fs::write(folder.join("enable"), "1");
        let file = writable(&path).map_err(refuse(&path))?;
        let registers = Registers::of_file(file.as_fd(), REGISTERS_BYTES);
        let registers = registers.map_err(|errno| refuse(&path)(errno.into()))?;
        let number = registers.load(OWN_NUMBER);
        let fits = u8::try_from(number).ok().filter(|it| (1..=super::VMS_MAX).contains(it));
        let number = fits.ok_or(DeviceError::Number(path, number))?;
        let path = folder.join("resource2");
        // Not `resource2_wc`: stores that are combined are not seen in the order in which they were
        // made.
        let file = writable(&path).map_err(refuse(&path))?;
        let region = match data {
            None => Region::map_device(file.as_fd()),
            Some(data) => {
                let data = writable(data).map_err(refuse(data))?;
                Region::map_devices(file.as_fd(), data.as_fd())
            }
        };
        let path = data.map_or(path, Path::to_owned);
        let region = region.map_err(|source| DeviceError::Region { path, source })?;
        Ok(Self { registers, region: Arc::new(region), number })
    }

    /// Tells the node to look at this VM's mailbox: peer 0, its only vector.
    pub(crate) fn ring(&self) {
        self.registers.store(DOORBELL, 0);
    }
}

fn writable(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// The address of the only device of this kind.
fn only(home: &Path) -> Result<String, DeviceError> {
    let is = |folder: &Path, file: &str, wanted: &str| {
        fs::read_to_string(folder.join(file)).is_ok_and(|text| text.trim() == wanted)
    };
    let folders = fs::read_dir(home).map_err(|_| DeviceError::None)?;
    let found = folders.filter_map(Result::ok).map(|folder| folder.path());
    let found = found.filter(|it| is(it, "vendor", VENDOR) && is(it, "device", DEVICE));
    let mut found: Vec<_> =
        found.filter_map(|folder| Some(folder.file_name()?.to_str()?.to_owned())).collect();
    found.sort();
    match &found[..] {
        [] => Err(DeviceError::None),
        [one] => Ok(one.clone()),
        several => Err(DeviceError::Several(several.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_device_is_found_and_of_several_all_are_named() {
        let home = tempfile::tempdir().expect("a directory");
        let add = |address: &str, vendor: &str, device: &str| {
            let folder = home.path().join(address);
            fs::create_dir(&folder).expect("ours");
            fs::write(folder.join("vendor"), format!("{vendor}\n")).expect("ours");
            fs::write(folder.join("device"), format!("{device}\n")).expect("ours");
        };
        add("0000:00:01.0", "0x1af4", "0x1000");
        assert!(matches!(only(home.path()), Err(DeviceError::None)));
        add("0000:00:03.0", VENDOR, DEVICE);
        assert_eq!(only(home.path()).expect("one"), "0000:00:03.0");
        add("0000:00:02.0", VENDOR, DEVICE);
        let error = only(home.path()).expect_err("two").to_string();
        assert!(error.contains("0000:00:02.0, 0000:00:03.0"), "{error}");
    }
}
