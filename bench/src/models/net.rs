//! The models of a network card: each is a measurement of `vrio bench net`, of two guests that send
//! each other frames of 64 bytes.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use sidecore::Idle;

use super::block::{NO_INJECTION, NOT_COUNTED, OF_QEMU};
use super::cell::{Alone, Count, Counts, Many, ModelSample};
use super::model::Model;
use super::options::{DEPTH, ModelsOptions, Setting};
use crate::measure::WaitMode;
use crate::net::{self, NetOp, NetReport, Path};
use testbed::cleanup::Cleanup;
use testbed::pair::PairLink;
use testbed::progress::Progress;

/// The reason why cards have no such row.
pub(super) const NO_CLIENT: &str =
    "a guest's frames go through a node on its own host: cards have no client in the guest";

/// The options of a model's measurement; or the reason why there is none.
pub(super) fn asked(
    options: &ModelsOptions,
    model: Model,
    setting: &Setting,
) -> Result<net::NetOptions, String> {
    let path = match model {
        Model::Direct | Model::Unpolled | Model::Optimum => return Err(NO_CLIENT.to_owned()),
        Model::Elvis | Model::Baseline => Path::Local,
        Model::HostSide | Model::HostSideUnpolled => Path::Remote,
        Model::Qemu | Model::Emulation => return Err(OF_QEMU.to_owned()),
    };
    Ok(net::NetOptions {
        path,
        op: NetOp::Forward,
        depth: Some(DEPTH),
        meeting: PairLink { encrypt: setting.encrypt, ..PairLink::default() },
        idle: if model.polls() { Idle::Spin } else { Idle::Sleep },
        driver: WaitMode::Sleeps,
        seconds: options.seconds,
        ..net::NetOptions::new(options.program.clone())
    })
}

/// Measures a model once.
pub(super) fn sample(
    asked: &net::NetOptions,
    model: Model,
    cleanup: &Cleanup,
) -> Result<ModelSample> {
    let ops = [NetOp::Bounce, NetOp::Forward];
    let [one, many] = net::measure_ops(asked, ops, cleanup, &Progress::silent())?;
    let cpu_us = NetReport::cpu_us_per_frame;
    let latency = one.latency_us.context("one that bounces has a latency")?;
    let alone = Alone { p50_us: latency.p50, p99_us: latency.p99, cpu_us: cpu_us(&one) };
    let per_s = many.frames_per_s.ok_or_else(|| disturbed(&many));
    Ok(ModelSample {
        one: counts(model, &one.events_per_frame),
        alone: if one.disturbed { Err(disturbed(&one)) } else { Ok(alone) },
        many: per_s.map(|per_s| {
            let counts = counts(model, &many.events_per_frame);
            Many { counts, per_s, cpu_us: cpu_us(&many) }
        }),
    })
}

/// The reason why a run has no figures of time.
fn disturbed(report: &NetReport) -> String {
    let share = 100.0 * report.waited_share;
    format!(
        "{share:.0} % of a run went by waiting for frames that never came, and what is left is no \
         figure: repeat it when the machine has less to do"
    )
}

/// The events of a frame, by the slides' columns, as nodes and guests counted them.
fn counts(model: Model, events: &BTreeMap<String, f64>) -> Counts {
    let of = |name: &str| {
        let count = events.get(name).copied();
        count.map_or(Count::Empty(NOT_COUNTED), Count::Of)
    };
    let iohost = if model.has_iohost() { of("iohost_wakeups") } else { Count::Nobody };
    [of("kicks"), of("calls"), Count::Empty(NO_INJECTION), of("vmhost_wakeups"), iohost]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uncounted_events_are_no_zero() {
        let events = [("kicks".to_owned(), 0.0), ("calls".to_owned(), 1.0)].into();
        let [exits, guest, _, host, iohost] = counts(Model::Elvis, &events);
        assert_eq!([exits, guest], [0.0, 1.0].map(Count::Of));
        assert_eq!((host, iohost), (Count::Empty(NOT_COUNTED), Count::Nobody));
    }
}
