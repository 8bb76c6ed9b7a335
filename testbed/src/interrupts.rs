//! Interrupts of a device, as the kernel counts them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{major, minor};

/// The greatest depth of a device below the root of all devices: a bridge behind a bridge and so
/// on.
const DEPTH_MAX: usize = 32;

/// The interrupts of the device that a file is stored on. Interrupts that other users of the device
/// cause meanwhile are counted too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interrupts {
    /// Their numbers, as `/proc/interrupts` has them.
    numbers: Vec<String>,
}

impl Interrupts {
    /// The interrupts of the device that has this file, or will have it. None where there is no
    /// device, or the kernel does not name its interrupts.
    pub fn of_file(file: &Path) -> Option<Self> {
        let there = fs::metadata(file).ok().or_else(|| fs::metadata(file.parent()?).ok())?;
        let device = there.dev();
        let link = format!("/sys/dev/block/{}:{}", major(device), minor(device));
        let device = fs::canonicalize(link).ok()?;
        // A partition is below its disk, and a disk below the device on the bus.
        let mut places = device.ancestors().take(DEPTH_MAX);
        let numbers = places.find_map(|place| {
            let entries = fs::read_dir(place.join("msi_irqs")).ok()?;
            let names = entries.flatten().filter_map(|it| it.file_name().into_string().ok());
            Some(names.collect::<Vec<_>>())
        })?;
        (!numbers.is_empty()).then_some(Self { numbers })
    }

    /// The number of interrupts so far, on all cores together.
    pub fn count(&self) -> Option<u64> {
        Some(self.count_in(&fs::read_to_string("/proc/interrupts").ok()?))
    }

    fn count_in(&self, text: &str) -> u64 {
        let (cores, lines) = text.split_once('\n').unwrap_or_default();
        let cores = cores.split_whitespace().count();
        let ours = lines.lines().filter_map(|line| {
            let (number, rest) = line.split_once(':')?;
            self.numbers.iter().any(|it| it == number.trim()).then_some(rest)
        });
        let counts = ours.flat_map(|rest| rest.split_whitespace().take(cores));
        counts.filter_map(|count| count.parse::<u64>().ok()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_devices_interrupts_are_added_up_over_cores() {
        let text = "           CPU0       CPU1       \n \
                    35:          0          1  IO-APIC   7-edge  virtio1-config\n \
                    36:         12         30  PCI-MSIX-0000:00:02.0   1-edge  virtio1-req.0\n\
                    LOC:   23834268   24066400   Local timer interrupts\n";
        let of = |numbers: &[&str]| {
            let numbers = numbers.iter().map(|it| (*it).to_owned()).collect();
            Interrupts { numbers }.count_in(text)
        };
        assert_eq!(of(&["35", "36"]), 43);
        assert_eq!(of(&["36"]), 42);
        assert_eq!(of(&["7", "99"]), 0);
    }

    #[test]
    fn a_file_on_no_device_has_none() {
        assert_eq!(Interrupts::of_file(Path::new("/proc/self/stat")), None);
        assert_eq!(Interrupts::of_file(Path::new("/no/such/folder/file")), None);
    }
}
