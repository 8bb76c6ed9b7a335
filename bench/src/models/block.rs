//! The models of a disk: each is a measurement of `vrio bench block`.

use anyhow::{Context, Result};
use sidecore::Idle;

use super::cell::{Count, Counts, Sample};
use super::{DEPTH, Model, Options, Setting};
use crate::block::{self, Path, Report};
use crate::cleanup::Cleanup;
use crate::compare::block::write_all;
use crate::measure::Waiting;
use crate::progress::Progress;

/// Why several guests are not measured.
const ONE_READER: &str = "one thread asks: several guests share nothing without a node";
const ONE_SEALED: &str = "several clients are measured in clear: the bench makes keys for one";

/// Why a cell is empty.
pub(super) const NO_INJECTION: &str =
    "an injection is for a guest that is left for it, which takes KVM: a stand-in is a process";

/// Makes the file of the disk's volume and fills it, if it is one that is not there; what is there
/// is filled in each turn.
pub(super) fn prepare(
    options: &Options,
    cleanup: &Cleanup,
    progress: &Progress,
) -> Result<Options> {
    let made = options.volume.file().filter(|file| !file.exists());
    if let Some(file) = made {
        progress.doing(format!("filling {}", file.display()));
        cleanup.path(file.to_owned());
        write_all(file).with_context(|| format!("filling {}", file.display()))?;
    }
    Ok(Options { filled: made.is_some(), ..options.clone() })
}

/// What is measured for a model; or why it cannot be.
pub(super) fn asked(
    options: &Options,
    model: Model,
    setting: &Setting,
) -> Result<block::Options, String> {
    let path = match model {
        Model::Optimum => Path::Bare,
        Model::Direct | Model::Unpolled => Path::Direct,
        Model::Elvis | Model::Baseline => Path::Local,
        Model::HostSide | Model::HostSideUnpolled => Path::Remote,
    };
    if setting.guests > 1 && path == Path::Bare {
        return Err(ONE_READER.to_owned());
    }
    if setting.guests > 1 && path == Path::Direct && setting.encrypt {
        return Err(ONE_SEALED.to_owned());
    }
    let has_ring = model.has_vmhost();
    let near = if model.polls() && has_ring { Idle::Spin } else { Idle::Sleep };
    Ok(block::Options {
        path,
        volume: options.volume.clone(),
        guests: setting.guests,
        encrypt: setting.encrypt,
        idle: near,
        iohost_idle: model.polls().then_some(Idle::Spin),
        driver: if has_ring { Waiting::Sleeps } else { Waiting::Polls },
        seconds: options.seconds,
        filled: options.filled,
        ..block::Options::new(options.program.clone())
    })
}

/// Measures a model once.
pub(super) fn sample(asked: &block::Options, model: Model, cleanup: &Cleanup) -> Result<Sample> {
    let [one, many] = block::measure_depths(asked, [1, DEPTH], cleanup, &Progress::silent())?;
    let cpu_us = |report: &Report| report.cpu_us_per_request().unwrap_or(0.0);
    Ok(Sample {
        one: counts(model, &one),
        p50_us: one.latency_us.p50,
        p99_us: one.latency_us.p99,
        cpu_us: cpu_us(&one),
        many: counts(model, &many),
        per_s: many.iops,
        cpu_us_at_depth: cpu_us(&many),
    })
}

/// What nodes, the driver and the kernel counted, by the slides' columns.
fn counts(model: Model, report: &Report) -> Counts {
    let of = |name: &str| report.events_per_request.get(name).copied().unwrap_or(0.0);
    // Where a thread sleeps, what a device interrupts wakes it, and counts once.
    let woken = |role: &str| {
        let name = if model.polls() && role != "driver" { "device_interrupts" } else { "wakeups" };
        Count::Of(of(&format!("{role}_{name}")))
    };
    let (exits, guest, injections) = match model.has_vmhost() {
        true => (Count::Of(of("kicks")), Count::Of(of("calls")), Count::Empty(NO_INJECTION)),
        // A client has no virtqueue: nothing is kicked, and nobody makes its interrupts for it.
        false => (Count::Of(0.0), woken("driver"), Count::Of(0.0)),
    };
    let host = if model.has_vmhost() { woken("vmhost") } else { Count::Nobody };
    let iohost = if model.has_iohost() { woken("iohost") } else { Count::Nobody };
    [exits, guest, injections, host, iohost]
}
