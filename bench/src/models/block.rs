//! The models of a disk: each is a measurement of `vrio bench block`.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use sidecore::Idle;

use super::cell::{Alone, Count, Counts, Many, ModelSample};
use super::model::Model;
use super::options::{DEPTH, ModelsOptions, Setting};
use crate::block::{self, BlockReport, Path};
use crate::measure::WaitMode;
use crate::measure::fill_disk;
use testbed::cleanup::Cleanup;
use testbed::events::{DEVICE_INTERRUPTS, Role};
use testbed::progress::Progress;

/// The reason why there is no optimum of an encrypted disk.
const NO_DM_CRYPT: &str = "without vrio dm-crypt encrypts, which is not measured";

/// Reasons why several guests are not measured.
const ONE_READER: &str = "one thread asks: several guests share nothing without a node";
const ONE_SEALED: &str = "several clients are measured in clear: the bench makes keys for one";

pub(super) const OF_QEMU: &str = "QEMU's own disks need a real guest: --guest";

/// Reasons why a cell is empty.
pub(super) const NO_INJECTION: &str =
    "an injection is for a guest that is left for it, which takes KVM: a stand-in is a process";
pub(super) const NOT_COUNTED: &str = "the server does not report its wake-ups";
const NO_DEVICE: &str =
    "the kernel counts no interrupts of a device behind the file, and a polling model has those";

/// Makes and fills the file of the disk's volume, if it does not exist. A file that exists is
/// filled in each turn.
pub(super) fn prepare(
    options: &ModelsOptions,
    cleanup: &Cleanup,
    progress: &Progress,
) -> Result<ModelsOptions> {
    let made = options.volume.file().filter(|file| !file.exists());
    if let Some(file) = made {
        progress.doing(format!("filling {}", file.display()));
        cleanup.path(file.to_owned());
        fill_disk(file).with_context(|| format!("filling {}", file.display()))?;
    }
    Ok(ModelsOptions { filled: made.is_some(), ..options.clone() })
}

/// The stage that encrypts.
fn encrypt() -> block::ChainStage {
    block::stages().find(|stage| stage.name == "encrypt").expect("a measurement has it")
}

/// The options of a model's measurement; or the reason why there is none.
pub(super) fn asked(
    options: &ModelsOptions,
    model: Model,
    setting: &Setting,
) -> Result<block::BlockOptions, String> {
    let path = match model {
        Model::Optimum => Path::Bare,
        Model::Direct | Model::Unpolled => Path::Direct,
        Model::Elvis | Model::Baseline => Path::Local,
        Model::HostSide | Model::HostSideUnpolled => Path::Remote,
        Model::Qemu | Model::Emulation => return Err(OF_QEMU.to_owned()),
    };
    if setting.stage && path == Path::Bare {
        return Err(NO_DM_CRYPT.to_owned());
    }
    if setting.guests > 1 && path == Path::Bare {
        return Err(ONE_READER.to_owned());
    }
    if setting.guests > 1 && path == Path::Direct && setting.encrypt {
        return Err(ONE_SEALED.to_owned());
    }
    let has_ring = model.has_vmhost();
    let near = if model.polls() && has_ring { Idle::Spin } else { Idle::Sleep };
    Ok(block::BlockOptions {
        path,
        volume: options.volume.clone(),
        chain: if setting.stage { vec![encrypt()] } else { Vec::new() },
        guests: setting.guests,
        encrypt: setting.encrypt,
        idle: near,
        iohost_idle: model.polls().then_some(Idle::Spin),
        driver: if has_ring { WaitMode::Sleeps } else { WaitMode::Polls },
        seconds: options.seconds,
        filled: options.filled,
        ..block::BlockOptions::new(options.program.clone())
    })
}

/// Measures a model once.
pub(super) fn sample(
    asked: &block::BlockOptions,
    model: Model,
    cleanup: &Cleanup,
) -> Result<ModelSample> {
    let [one, many] = block::measure_depths(asked, [1, DEPTH], cleanup, &Progress::silent())?;
    let cpu_us = BlockReport::cpu_us_per_request;
    let counts = |report: &BlockReport| counts(asked, model, &report.events_per_request);
    let (p50_us, p99_us) = (one.latency_us.p50, one.latency_us.p99);
    Ok(ModelSample {
        one: counts(&one),
        alone: Ok(Alone { p50_us, p99_us, cpu_us: cpu_us(&one) }),
        many: Ok(Many { counts: counts(&many), per_s: many.iops, cpu_us: cpu_us(&many) }),
    })
}

/// The events of a request, by the slides' columns, as nodes, the driver and the kernel counted
/// them.
fn counts(asked: &block::BlockOptions, model: Model, events: &BTreeMap<String, f64>) -> Counts {
    let of = |name: &str| events.get(name).copied();
    let or = |count: Option<f64>| count.map_or(Count::Empty(NOT_COUNTED), Count::Of);
    let woken = |role: Role| {
        let name = role.name();
        let wakeups = of(&format!("{name}_wakeups"));
        // Where a thread sleeps, an interrupt of the device wakes it, and counts once.
        let sleeps = !model.polls() || role == Role::Driver;
        if sleeps || asked.storage() != role || asked.volume.file().is_none() {
            return or(wakeups);
        }
        match of(&format!("{name}_{DEVICE_INTERRUPTS}")) {
            Some(interrupts) => or(wakeups.map(|wakeups| wakeups + interrupts)),
            None => Count::Empty(NO_DEVICE),
        }
    };
    let (exits, guest) = match model.has_vmhost() {
        true => (or(of("kicks")), or(of("calls"))),
        // A client has no virtqueue, and so no device to kick.
        false => (Count::Nobody, woken(Role::Driver)),
    };
    let host = if model.has_vmhost() { woken(Role::Vmhost) } else { Count::Nobody };
    let iohost = if model.has_iohost() { woken(Role::Iohost) } else { Count::Nobody };
    // Every interrupt of a guest is injected, also that of a client.
    [exits, guest, Count::Empty(NO_INJECTION), host, iohost]
}

#[cfg(test)]
mod tests {
    use super::super::GuestDevice;
    use super::super::options::tests::options;
    use super::*;
    use crate::block::Volume;

    fn of(model: Model, volume: Volume, events: &[(&str, f64)]) -> Counts {
        let options = ModelsOptions { volume, ..options() };
        let setting = Setting::of(GuestDevice::Block, 1);
        let asked = asked(&options, model, &setting).unwrap();
        let events = events.iter().map(|(name, count)| ((*name).to_owned(), *count));
        counts(&asked, model, &events.collect())
    }

    #[test]
    fn the_stage_that_encrypts_is_in_the_chain_of_the_volume() {
        let of = |model, stage| {
            let setting = Setting { stage, ..Setting::of(GuestDevice::Block, 1) };
            asked(&options(), model, &setting).map(|asked| asked.chain)
        };
        assert_eq!(of(Model::Elvis, true), Ok(vec![encrypt()]));
        assert_eq!(of(Model::HostSide, false), Ok(Vec::new()));
        assert_eq!(of(Model::Optimum, true), Err(NO_DM_CRYPT.to_owned()));
    }

    #[test]
    fn a_poller_that_sleeps_is_seen() {
        let events = [("kicks", 0.0), ("calls", 1.0), ("vmhost_wakeups", 0.7)];
        let [exits, guest, injections, host, iohost] = of(Model::Elvis, Volume::Null, &events);
        assert_eq!([exits, guest, host], [0.0, 1.0, 0.7].map(Count::Of));
        assert_eq!((injections, iohost), (Count::Empty(NO_INJECTION), Count::Nobody));
    }

    #[test]
    fn uncounted_events_are_no_zero() {
        let [exits, guest, _, host, _] = of(Model::Elvis, Volume::Null, &[("kicks", 0.0)]);
        assert_eq!(exits, Count::Of(0.0));
        assert_eq!([guest, host], [Count::Empty(NOT_COUNTED); 2]);
        let [exits, guest, injections, host, _] = of(Model::Direct, Volume::Null, &[]);
        assert_eq!([exits, host], [Count::Nobody; 2]);
        assert_eq!([guest, injections], [NOT_COUNTED, NO_INJECTION].map(Count::Empty));
    }

    #[test]
    fn a_devices_interrupts_are_its_pollers_or_wake_a_sleeper() {
        let file = Volume::DirectFile("/disk".into());
        let woken = [("vmhost_wakeups", 0.1)];
        let interrupted = [woken[0], ("vmhost_device_interrupts", 1.0)];
        let host = |model, events: &[_]| of(model, file.clone(), events)[3];
        assert_eq!(host(Model::Elvis, &interrupted), Count::Of(1.1));
        assert_eq!(host(Model::Elvis, &woken), Count::Empty(NO_DEVICE));
        assert_eq!(host(Model::Baseline, &interrupted), Count::Of(0.1));
    }
}
