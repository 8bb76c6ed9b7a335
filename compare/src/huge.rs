//! Huge pages, from which peers built on DPDK take their memory. They are made where they are
//! missing and this is allowed, and given back at the end.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use testbed::cleanup::Cleanup;

/// The size of a huge page.
const PAGE_MIB: u64 = 2;

const PAGES: &str = "/proc/sys/vm/nr_hugepages";

/// Provides so many MiB of free huge pages, until the end.
///
/// # Errors
/// When they are missing, and may not or cannot be made.
pub(super) fn make_pages(mib: u64, cleanup: &Cleanup) -> Result<()> {
    let free = free_pages()?;
    let wanted = mib.div_ceil(PAGE_MIB);
    if free < wanted {
        let before = fs::read_to_string(PAGES)?;
        let all = before.trim().parse::<u64>()? + wanted - free;
        cleanup.setting(PathBuf::from(PAGES), before.clone());
        let made = fs::write(PAGES, all.to_string());
        made.with_context(|| format!("huge pages are needed: sysctl vm.nr_hugepages={all}"))?;
        let free = free_pages()?;
        if free < wanted {
            let _ = fs::write(PAGES, before);
            bail!("{mib} MiB of huge pages are needed, and there is memory for {} only", free * 2);
        }
    }
    Ok(())
}

/// Provides a file system of huge pages, until the end.
///
/// # Errors
/// When there is none, and it may not or cannot be mounted.
pub(super) fn mount_pages(cleanup: &Cleanup) -> Result<()> {
    let mounts = fs::read_to_string("/proc/mounts")?;
    if mounts.lines().any(|line| line.split(' ').nth(2) == Some("hugetlbfs")) {
        return Ok(());
    }
    let folder = std::env::temp_dir().join(format!("vrio-huge-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    cleanup.mount(folder.clone());
    let mount = Command::new("mount").args(["-t", "hugetlbfs", "none"]).arg(&folder).output()?;
    let said = String::from_utf8_lossy(&mount.stderr);
    ensure!(mount.status.success(), "no file system of huge pages: {}", said.trim());
    Ok(())
}

fn free_pages() -> Result<u64> {
    let info = fs::read_to_string("/proc/meminfo")?;
    let of = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let size_kib: u64 = of("Hugepagesize:").context("a kernel without huge pages")?;
    ensure!(size_kib == PAGE_MIB << 10, "huge pages have {size_kib} KiB, not {PAGE_MIB} MiB");
    let (free, reserved) = (of("HugePages_Free:"), of("HugePages_Rsvd:"));
    Ok(free.unwrap_or(0).saturating_sub(reserved.unwrap_or(0)))
}
