//! Gathers the status. On the control thread: it may wait for sidecores, never they for it.

use sidecore::{CoreCounters, Counter};

use super::Inside;
use crate::config::Trust;
use crate::status::{Counters, NodeStatus, STATUS_VERSION, SidecoreStatus, Status};

pub(super) fn status(inside: &Inside) -> Status {
    Status {
        version: STATUS_VERSION,
        node: node(inside),
        sidecores: sidecores(inside),
        ..Status::default()
    }
}

fn node(inside: &Inside) -> NodeStatus {
    let config = &inside.config;
    let trust = match config.trust {
        Trust::Loopback => "loopback",
        Trust::Network => "network",
    };
    NodeStatus {
        name: config.name.clone(),
        release: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_s: inside.started.elapsed().as_secs(),
        listen: config.listen.map(|listen| listen.to_string()),
        trust: trust.to_owned(),
    }
}

fn sidecores(inside: &Inside) -> Vec<SidecoreStatus> {
    let cores = inside.sidecores.iter().zip(&inside.config.sidecores.cores).enumerate();
    cores
        .map(|(index, (sidecore, core))| SidecoreStatus {
            index,
            core: *core,
            idle: inside.config.sidecores.idle.to_string(),
            address: None,
            counters: core_counters(&sidecore.counters()),
        })
        .collect()
}

fn core_counters(counters: &CoreCounters) -> Counters {
    let all: [(&str, &Counter); 12] = [
        ("rounds", &counters.rounds),
        ("rounds_busy", &counters.rounds_busy),
        ("yields", &counters.yields),
        ("naps", &counters.naps),
        ("sleeps", &counters.sleeps),
        ("sleeps_refused", &counters.sleeps_refused),
        ("wakeups", &counters.wakeups),
        ("mails", &counters.mails),
        ("contended", &counters.contended),
        ("busy_ns", &counters.busy_ns),
        ("idle_ns", &counters.idle_ns),
        ("asleep_ns", &counters.asleep_ns),
    ];
    all.into_iter().map(|(name, counter)| (name.to_owned(), counter.get())).collect()
}
