//! The difference of two statuses.

use std::cmp::Reverse;
use std::time::Duration;

use node::status::{
    Counters, DiskState, DiskStatus, Latencies, LatencyStatus, SessionStatus, SidecoreStatus,
    Status, VolumeStatus,
};
use serde::Serialize;

use crate::tables::queues_here;

/// A second of a node's life. Rates are missing where there is nothing to compare with yet.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct NodeView {
    pub(super) node: String,
    pub(super) release: String,
    pub(super) pid: u32,
    pub(super) uptime_s: u64,
    /// By index.
    pub(super) sidecores: Vec<SidecoreView>,
    /// The busiest first.
    pub(super) disks: Vec<DiskView>,
    /// The busiest first.
    pub(super) volumes: Vec<VolumeView>,
    /// By peer and sidecore.
    pub(super) sessions: Vec<SessionView>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct SidecoreView {
    pub(super) index: usize,
    pub(super) core: Option<usize>,
    pub(super) idle: String,
    /// Queues of guests that it serves; `-` where it has none by design.
    pub(super) queues: String,
    /// Its load: the share of the time in rounds that found work, 0 to 1.
    pub(super) busy_share: Option<f64>,
    /// Awake without work.
    pub(super) awake_share: Option<f64>,
    pub(super) rounds_per_s: Option<f64>,
    pub(super) wakeups_per_s: Option<f64>,
}

/// The traffic of a disk or a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Traffic {
    pub(super) requests_per_s: Option<f64>,
    pub(super) read_bytes_per_s: Option<f64>,
    pub(super) written_bytes_per_s: Option<f64>,
    /// Of all requests that ended, between the bounds of the histogram by proportion.
    pub(super) latency_p50_ns: Option<u64>,
    pub(super) latency_p99_ns: Option<u64>,
    pub(super) errors: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct DiskView {
    pub(super) name: String,
    pub(super) state: DiskState,
    pub(super) detail: String,
    pub(super) volume: String,
    #[serde(flatten)]
    pub(super) traffic: Traffic,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct VolumeView {
    pub(super) name: String,
    pub(super) attachments: Vec<String>,
    #[serde(flatten)]
    pub(super) traffic: Traffic,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct SessionView {
    pub(super) peer: String,
    pub(super) address: String,
    pub(super) sidecore: usize,
    pub(super) index: u16,
    pub(super) state: String,
    pub(super) rtt_ns: u64,
    pub(super) window_bytes: u64,
    pub(super) in_flight_bytes: u64,
    pub(super) packets_per_s: Option<f64>,
    /// Packets taken for lost among those sent, 0 to 1.
    pub(super) loss_share: Option<f64>,
    /// All packets whose content was sent again, since the session began.
    pub(super) resent: u64,
}

/// An earlier status and how long ago it was.
type EarlierStatus<'s> = Option<(&'s Status, Duration)>;

impl NodeView {
    pub(super) fn new(earlier: EarlierStatus<'_>, now: &Status) -> Self {
        let sidecores = now.sidecores.iter().map(|core| {
            let then = earlier.and_then(|(status, time)| {
                let mut cores = status.sidecores.iter();
                Some((&cores.find(|then| then.index == core.index)?.counters, time))
            });
            sidecore(then, core)
        });
        let disks = now.disks.iter().map(|disk| {
            let then = earlier.and_then(|(status, time)| {
                let mut disks = status.disks.iter();
                Some((disks.find(|then| then.name == disk.name)?, time))
            });
            self::disk(then, disk)
        });
        let volumes = now.volumes.iter().map(|volume| {
            let then = earlier.and_then(|(status, time)| {
                let mut volumes = status.volumes.iter();
                Some((volumes.find(|then| then.name == volume.name)?, time))
            });
            self::volume(then, volume)
        });
        let sessions = now.sessions.iter().map(|session| {
            let same = |then: &&SessionStatus| {
                (&then.peer, &then.address, then.sidecore, then.index)
                    == (&session.peer, &session.address, session.sidecore, session.index)
            };
            let then = earlier.and_then(|(status, time)| {
                Some((&status.sessions.iter().find(same)?.counters, time))
            });
            self::session(then, session)
        });
        let mut view = Self {
            node: now.node.name.clone(),
            release: now.node.release.clone(),
            pid: now.node.pid,
            uptime_s: now.node.uptime_s,
            sidecores: sidecores.collect(),
            disks: disks.collect(),
            volumes: volumes.collect(),
            sessions: sessions.collect(),
        };
        view.disks.sort_by_key(|disk| (Reverse(disk.traffic.order()), disk.name.clone()));
        view.volumes.sort_by_key(|volume| (Reverse(volume.traffic.order()), volume.name.clone()));
        view
    }
}

impl Traffic {
    /// The order of busyness, in steps that a person would call different.
    fn order(&self) -> u64 {
        self.requests_per_s.map_or(0, |rate| rate as u64)
    }
}

fn counter(counters: &Counters, name: &str) -> u64 {
    counters.get(name).copied().unwrap_or(0)
}

/// How much a counter grew in a second. A counter that fell has begun anew.
fn rate(earlier: Option<(&Counters, Duration)>, now: &Counters, name: &str) -> Option<f64> {
    let (earlier, time) = earlier?;
    let grown = counter(now, name).saturating_sub(counter(earlier, name));
    Some(grown as f64 / time.as_secs_f64().max(1e-9))
}

fn sidecore(earlier: Option<(&Counters, Duration)>, now: &SidecoreStatus) -> SidecoreView {
    let rate = |name| rate(earlier, &now.counters, name);
    // The clock of the sidecore is read once a round, so a share can come out a little above 1.
    let share = |name| rate(name).map(|ns_per_s| (ns_per_s / 1e9).min(1.0));
    SidecoreView {
        index: now.index,
        core: now.core,
        idle: now.idle.clone(),
        queues: queues_here(&now.counters),
        busy_share: share("busy_ns"),
        awake_share: share("idle_ns"),
        rounds_per_s: rate("rounds"),
        wakeups_per_s: rate("wakeups"),
    }
}

fn disk(earlier: Option<(&DiskStatus, Duration)>, now: &DiskStatus) -> DiskView {
    let then = earlier.map(|(then, time)| (&then.counters, time));
    let rate = |name| rate(then, &now.counters, name);
    let (p50, p99) = latency(earlier.map(|(then, _)| &then.latencies), &now.latencies);
    DiskView {
        name: now.name.clone(),
        state: now.state,
        detail: now.detail.clone(),
        volume: now.volume.clone(),
        traffic: Traffic {
            requests_per_s: rate("requests"),
            read_bytes_per_s: rate("read_bytes"),
            written_bytes_per_s: rate("written_bytes"),
            latency_p50_ns: p50,
            latency_p99_ns: p99,
            errors: counter(&now.counters, "errors"),
        },
    }
}

fn volume(earlier: Option<(&VolumeStatus, Duration)>, now: &VolumeStatus) -> VolumeView {
    let then = earlier.map(|(then, time)| (&then.counters, time));
    let rate = |name| rate(then, &now.counters, name);
    let (p50, p99) = latency(earlier.map(|(then, _)| &then.latencies), &now.latencies);
    let kinds = ["reads", "writes", "flushes"].map(rate);
    // A volume without a meter counts nothing.
    let metered = now.counters.contains_key("reads");
    let requests = kinds.into_iter().sum::<Option<f64>>().filter(|_| metered);
    VolumeView {
        name: now.name.clone(),
        attachments: now.attachments.iter().map(|user| user.name.clone()).collect(),
        traffic: Traffic {
            requests_per_s: requests,
            read_bytes_per_s: rate("read_bytes").filter(|_| metered),
            written_bytes_per_s: rate("written_bytes").filter(|_| metered),
            latency_p50_ns: p50,
            latency_p99_ns: p99,
            errors: counter(&now.counters, "errors"),
        },
    }
}

/// The median and the 99th percentile of the requests that ended between the two.
fn latency(earlier: Option<&Latencies>, now: &Latencies) -> (Option<u64>, Option<u64>) {
    let Some(earlier) = earlier else { return (None, None) };
    let mut all = LatencyStatus::default();
    for (op, latency) in now {
        let then = earlier.get(op).cloned().unwrap_or_default();
        all.add(&latency.since(&then));
    }
    (all.quantile_ns(0.5), all.quantile_ns(0.99))
}

fn session(earlier: Option<(&Counters, Duration)>, now: &SessionStatus) -> SessionView {
    let rate = |name| rate(earlier, &now.counters, name);
    let sent = rate("packets_sent");
    let loss = sent.zip(rate("packets_lost")).filter(|(sent, _)| *sent > 0.0);
    SessionView {
        peer: now.peer.clone(),
        address: now.address.clone(),
        sidecore: now.sidecore,
        index: now.index,
        state: now.state.clone(),
        rtt_ns: counter(&now.counters, "rtt_ns_now"),
        window_bytes: counter(&now.counters, "window_bytes_now"),
        in_flight_bytes: counter(&now.counters, "in_flight_bytes_now"),
        packets_per_s: sent.zip(rate("packets_received")).map(|(sent, received)| sent + received),
        loss_share: loss.map(|(sent, lost)| (lost / sent).min(1.0)),
        resent: counter(&now.counters, "packets_lost"),
    }
}

#[cfg(test)]
pub(super) mod tests;
