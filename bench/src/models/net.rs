//! The models of a network card: each is a measurement of `vrio bench net`, of two guests that send
//! each other frames of 64 bytes.

use anyhow::Result;
use sidecore::Idle;

use super::block::NO_INJECTION;
use super::cell::{Count, Counts, Sample};
use super::{DEPTH, Model, Options, Setting};
use crate::cleanup::Cleanup;
use crate::measure::Waiting;
use crate::net::{self, Op, Path, Report};
use crate::pair::Meeting;
use crate::progress::Progress;

/// Who takes part, all the time.
pub(super) const GUESTS: u16 = 2;

/// Why cards have no such row.
const NO_CLIENT: &str =
    "a guest's frames go through a node on its own host: cards have no client in the guest";

/// What is measured for a model; or why it cannot be.
pub(super) fn asked(
    options: &Options,
    model: Model,
    setting: &Setting,
) -> Result<net::Options, String> {
    let path = match model {
        Model::Direct | Model::Unpolled | Model::Optimum => return Err(NO_CLIENT.to_owned()),
        Model::Elvis | Model::Baseline => Path::Local,
        Model::HostSide | Model::HostSideUnpolled => Path::Remote,
    };
    Ok(net::Options {
        path,
        op: Op::Forward,
        depth: Some(DEPTH),
        meeting: Meeting { encrypt: setting.encrypt, ..Meeting::default() },
        idle: if model.polls() { Idle::Spin } else { Idle::Sleep },
        driver: Waiting::Sleeps,
        seconds: options.seconds,
        ..net::Options::new(options.program.clone())
    })
}

/// Measures a model once.
pub(super) fn sample(asked: &net::Options, model: Model, cleanup: &Cleanup) -> Result<Sample> {
    let ops = [Op::Bounce, Op::Forward];
    let [one, many] = net::measure_ops(asked, ops, cleanup, &Progress::silent())?;
    let cpu_us = |report: &Report| report.cpu_us_per_frame().unwrap_or(0.0);
    let latency = one.latency_us.expect("one bounces");
    Ok(Sample {
        one: counts(model, &one),
        p50_us: latency.p50,
        p99_us: latency.p99,
        cpu_us: cpu_us(&one),
        many: counts(model, &many),
        per_s: many.frames_per_s.unwrap_or(many.frames as f64 / many.seconds),
        cpu_us_at_depth: cpu_us(&many),
    })
}

/// What nodes and guests counted for a frame, by the slides' columns.
fn counts(model: Model, report: &Report) -> Counts {
    let of = |name: &str| Count::Of(report.events_per_frame.get(name).copied().unwrap_or(0.0));
    let iohost = if model.has_iohost() { of("iohost_wakeups") } else { Count::Nobody };
    [of("kicks"), of("calls"), Count::Empty(NO_INJECTION), of("vmhost_wakeups"), iohost]
}
