//! Emulation, in a real guest: QEMU's IDE disk and its e1000 card, by QEMU's own trace events.
//!
//! Every access of the guest to a device's registers leaves the guest, and QEMU's events
//! `memory_region_ops_read` and `memory_region_ops_write` name the region of each. Interrupts are
//! those that the guest's kernel counts.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::json;

use super::model::GuestDevice;
use testbed::guest::{Builder, Monitor, monitor};
use testbed::stage::Stage;

/// Events of QEMU, one for each access to a register.
const EVENTS: [&str; 2] = ["memory_region_ops_read", "memory_region_ops_write"];

/// Regions of each device, by QEMU's names: an IDE controller's ports and those of its DMA, and a
/// card's registers, in memory and as ports.
const IDE: [&str; 3] = ["ide", "bmdma", "piix"];
const E1000: [&str; 1] = ["e1000"];

/// The most lines of a trace that are read: more than a measurement of seconds has.
const LINES_MAX: usize = 50_000_000;

/// A device that QEMU emulates, at work.
#[derive(Clone, Debug, Serialize)]
pub struct Emulated {
    /// The kind of device in the guest.
    pub device: GuestDevice,
    /// QEMU's name for it.
    pub name: &'static str,
    /// The way to run the guest's instructions: `kvm` or `tcg`.
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

impl Emulated {
    /// Reads the trace of a guest that has counted so many requests and interrupts.
    pub(super) fn of(
        device: GuestDevice,
        accelerator: &'static str,
        (requests, interrupts): (u64, u64),
        trace: &Path,
    ) -> Result<Self> {
        let (name, regions): (_, &[_]) = match device {
            GuestDevice::Block => ("ide", &IDE),
            GuestDevice::Net => ("e1000", &E1000),
        };
        let file = File::open(trace).with_context(|| format!("opening {}", trace.display()))?;
        let of = |count: u64| count as f64 / requests as f64;
        let by_region: BTreeMap<_, _> = accesses(BufReader::new(file), regions)?
            .into_iter()
            .map(|(region, count)| (region, of(count)))
            .collect();
        ensure!(!by_region.is_empty(), "QEMU has traced no access to {name}");
        let (sync_exits, guest_interrupts) = (by_region.values().sum(), of(interrupts));
        Ok(Self { device, name, accelerator, requests, sync_exits, by_region, guest_interrupts })
    }
}

/// QEMU's monitor, and the file of QEMU's trace.
pub(super) struct Tracing {
    monitor: PathBuf,
    file: PathBuf,
}

impl Tracing {
    pub(super) fn new(stage: &Stage) -> Self {
        Self { monitor: stage.path("monitor"), file: stage.path("trace") }
    }

    /// Where the trace is.
    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// Makes a guest whose QEMU has a monitor and a trace file.
    pub(super) fn arguments(&self, builder: Builder) -> Builder {
        let monitor = monitor::arguments(&self.monitor);
        let builder = builder.arguments(&monitor.each_ref().map(String::as_str));
        builder.arguments(&["-D", &self.file.display().to_string()])
    }

    /// Traces while `work` runs.
    pub(super) fn during<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut monitor = Monitor::connect(&self.monitor)?;
        let mut set = |enable: bool| {
            EVENTS.iter().try_for_each(|name| {
                let event = json!({ "name": name, "enable": enable });
                monitor.run("trace-event-set-state", &event).map(drop)
            })
        };
        set(true)?;
        let done = work()?;
        set(false)?;
        Ok(done)
    }
}

/// Accesses by region, for regions whose name begins with one of these.
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
