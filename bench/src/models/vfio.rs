//! A device of this machine that a guest may have whole, by VFIO: an NVMe disk that is bound to
//! `vfio-pci`. The owner of the machine must bind it.

use std::fs;
use std::path::Path;

/// The kernel's folder of groups of devices. A device of a group only reaches memory that was
/// mapped for it.
const GROUPS: &str = "kernel/iommu_groups";

/// The folder of devices that are bound to VFIO's driver, by their address.
const BOUND: &str = "bus/pci/drivers/vfio-pci";

/// The class of an NVMe controller, without its programming interface.
const NVME: &str = "0x0108";

/// The address of the first such disk, in a tree like `/sys`; or the reason why there is none.
pub(super) fn disk(sys: &Path) -> Result<String, String> {
    let entries = |place: &str| {
        let names = fs::read_dir(sys.join(place)).into_iter().flatten().flatten();
        let mut names: Vec<_> = names.filter_map(|it| it.file_name().into_string().ok()).collect();
        names.sort();
        names
    };
    if entries(GROUPS).is_empty() {
        return Err(format!(
            "a VFIO device: this machine has no IOMMU (/sys/{GROUPS} is empty), without which no \
             device can be a guest's"
        ));
    }
    // Besides devices, the folder has the driver's own files.
    let bound: Vec<_> = entries(BOUND).into_iter().filter(|name| name.contains(':')).collect();
    let class = |name: &String| fs::read_to_string(sys.join(BOUND).join(name).join("class"));
    let is_disk = |name: &String| class(name).is_ok_and(|class| class.starts_with(NVME));
    bound.iter().find(|name| is_disk(name)).cloned().ok_or_else(|| {
        let others = match &bound[..] {
            [] => "no device is bound to vfio-pci".to_owned(),
            some => format!("bound to vfio-pci is no NVMe disk but {}", some.join(", ")),
        };
        format!(
            "a VFIO device: {others}; bind a disk that is not in use: driverctl set-override \
             ADDRESS vfio-pci"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_found_or_what_is_missing_is_said() {
        let sys = tempfile::tempdir().unwrap();
        let make = |path: &str, class: &str| {
            let folder = sys.path().join(path);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("class"), class).unwrap();
        };
        let why = || disk(sys.path()).unwrap_err();
        assert!(why().contains("no IOMMU"), "{}", why());
        make("kernel/iommu_groups/7", "");
        assert!(why().contains("no device is bound"), "{}", why());
        make("bus/pci/drivers/vfio-pci/module", NVME);
        make("bus/pci/drivers/vfio-pci/0000:03:00.0", "0x020000\n");
        assert!(why().contains("0000:03:00.0") && why().contains("driverctl"), "{}", why());
        make("bus/pci/drivers/vfio-pci/0000:04:00.0", "0x010802\n");
        assert_eq!(disk(sys.path()).unwrap(), "0000:04:00.0");
    }
}
