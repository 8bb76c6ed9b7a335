//! Emulation, in a real guest: QEMU's IDE disk and its e1000 card, by QEMU's own trace events.
//!
//! Every access of the guest to a device's registers leaves the guest, and QEMU's events
//! `memory_region_ops_read` and `memory_region_ops_write` name the region of each. Interrupts are
//! those that the guest's kernel counts.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::json;

use super::Device;
use crate::cleanup::Cleanup;
use crate::guest::words::{first_number, number};
use crate::guest::{Accelerator, BOOT_TIMEOUT, Builder, Guest, Image, Monitor, scripts};
use crate::progress::Progress;
use crate::stage::Stage;

/// The disk that is emulated.
const DISK_BYTES: u64 = 64 << 20;

/// For what a guest does: an emulated one on a busy machine is slow, one that is traced more so.
const PATIENCE: Duration = Duration::from_secs(180);

/// Events of QEMU, one for each access to a register.
const EVENTS: [&str; 2] = ["memory_region_ops_read", "memory_region_ops_write"];

/// Regions of each device, by what QEMU calls them: an IDE controller's ports and those of its DMA,
/// and a card's registers, in memory and as ports.
const IDE: [&str; 3] = ["ide", "bmdma", "piix"];
const E1000: [&str; 1] = ["e1000"];

/// What a trace may come to until it is no second's any more.
const LINES_MAX: usize = 50_000_000;

/// A device that QEMU emulates, at work.
#[derive(Clone, Debug, Serialize)]
pub struct Emulated {
    /// What the guest has of it.
    pub device: Device,
    /// What QEMU calls it.
    pub name: &'static str,
    /// How the guest's instructions are run: `kvm` or `tcg`.
    pub accelerator: &'static str,
    /// Reads of 4 KiB, one outstanding; of a card, frames of a ping either way.
    pub requests: u64,
    /// Accesses to the device's registers for each, which leave the guest: synchronous exits.
    pub sync_exits: f64,
    /// The same by the region's name.
    pub by_region: BTreeMap<String, f64>,
    /// The device's interrupts for each, as the guest's kernel counts them.
    pub guest_interrupts: f64,
}

/// A device that could not be counted, and why.
pub(super) type Outcome = Result<Emulated, String>;

/// Counts both devices' accesses, or those of one.
pub(super) fn all(devices: &[Device], cleanup: &Cleanup, progress: &Progress) -> Vec<Outcome> {
    let of = |&device: &Device| {
        let name = name_of(device);
        progress.doing(format!("emulation: a guest with {name}"));
        let counted = Stage::new("models", "vrio".into(), false, cleanup.clone())
            .and_then(|stage| count(device, &stage));
        counted.map_err(|error| {
            cleanup.yield_to_interruption();
            format!("emulation, {name}: {error:#}")
        })
    };
    devices.iter().map(of).collect()
}

fn name_of(device: Device) -> &'static str {
    match device {
        Device::Block => "ide",
        Device::Net => "e1000",
    }
}

fn count(device: Device, stage: &Stage) -> Result<Emulated> {
    // The kernel for clouds has no driver of this card.
    let image = if device == Device::Block { Image::find() } else { Image::find_newer() }?;
    let accelerator = Accelerator::choose(&image);
    let (monitor, trace) = (stage.path("monitor"), stage.path("trace"));
    let name = name_of(device);
    let builder = Guest::builder(&image).name(name).accelerator(accelerator);
    let builder = builder.script(scripts::EMULATED).set("DEVICE", name);
    let at = |path: &Path| path.display().to_string();
    let qmp = format!("unix:{},server=on,wait=off", at(&monitor));
    let builder = builder.arguments(&["-qmp", &qmp, "-D", &at(&trace)]);
    let mut guest = with_device(builder, device, stage)?.start()?;
    guest.wait_for("ready", BOOT_TIMEOUT + PATIENCE)?;
    let mut monitor = Monitor::connect(&monitor)?;
    let mut set = |enable: bool| {
        EVENTS.iter().try_for_each(|name| {
            let event = json!({ "name": name, "enable": enable });
            monitor.run("trace-event-set-state", &event).map(drop)
        })
    };
    set(true)?;
    let measured = guest.ask("work", "measured", PATIENCE)?;
    let interrupts = first_number(&guest.wait_for("interrupts", PATIENCE)?)?;
    set(false)?;
    guest.kill();
    let requests = number(&measured, "requests")?;
    ensure!(requests > 0, "the guest has done nothing: {measured}");
    let regions: &[_] = if device == Device::Block { &IDE } else { &E1000 };
    let file = File::open(&trace).with_context(|| format!("opening {}", trace.display()))?;
    let of = |count: u64| count as f64 / requests as f64;
    let by_region: BTreeMap<_, _> = accesses(BufReader::new(file), regions)?
        .into_iter()
        .map(|(region, count)| (region, of(count)))
        .collect();
    ensure!(!by_region.is_empty(), "QEMU has traced no access to {name}: {measured}");
    Ok(Emulated {
        device,
        name,
        accelerator: accelerator.name(),
        requests,
        sync_exits: by_region.values().sum(),
        by_region,
        guest_interrupts: of(interrupts),
    })
}

/// The device, and what is behind it.
fn with_device(builder: Builder, device: Device, stage: &Stage) -> Result<Builder> {
    Ok(match device {
        Device::Block => {
            let disk = stage.path("disk");
            let made = File::create(&disk).and_then(|file| file.set_len(DISK_BYTES));
            made.with_context(|| format!("making {}", disk.display()))?;
            let drive = format!("if=none,id=disk,format=raw,file={}", disk.display());
            let devices =
                ["-device", "piix3-ide,id=piix", "-device", "ide-hd,drive=disk,bus=piix.0"];
            builder.arguments(&["-drive", &drive]).arguments(&devices)
        }
        Device::Net => {
            let card = ["-netdev", "user,id=host,restrict=on", "-device"];
            builder.arguments(&card).arguments(&["e1000,netdev=host,romfile="])
        }
    })
}

/// Accesses by region, of those whose name begins so.
fn accesses(trace: impl BufRead, regions: &[&str]) -> Result<BTreeMap<String, u64>> {
    let mut all = BTreeMap::new();
    for line in trace.lines().take(LINES_MAX) {
        let line = line.context("reading QEMU's trace")?;
        let Some(name) = region(&line) else { continue };
        if regions.iter().any(|region| name.starts_with(region)) {
            *all.entry(name.to_owned()).or_default() += 1;
        }
    }
    Ok(all)
}

/// The name at the end of an event's line, between quotes.
fn region(line: &str) -> Option<&str> {
    let is_access = EVENTS.iter().any(|event| line.contains(event));
    let (_, name) = line.split_once("name '").filter(|_| is_access)?;
    name.strip_suffix('\'')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_are_told_apart_by_region() {
        let trace = "memory_region_ops_write cpu 0 mr 0x55 addr 0xc004 value 0x1 size 1 name \
                     'bmdma'\n\
                     memory_region_ops_read cpu 0 mr 0x55 addr 0x1f7 value 0x50 size 1 name 'ide'\n\
                     1@2.3:memory_region_ops_read cpu 0 mr 0x5 addr 0x1f7 value 0x50 size 1 name \
                     'ide'\n\
                     memory_region_ops_write cpu 0 mr 0x6 addr 0xfee value 0 size 4 name \
                     'apic-msi'\n\
                     something else name 'ide'\n\
                     memory_region_ops_read cpu 0 mr 0x55 addr 0x1f7 val";
        let of = accesses(trace.as_bytes(), &IDE).unwrap();
        assert_eq!(of, [("bmdma".to_owned(), 1), ("ide".to_owned(), 2)].into());
        assert!(accesses(trace.as_bytes(), &E1000).unwrap().is_empty());
    }
}
