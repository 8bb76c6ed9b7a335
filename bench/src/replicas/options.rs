//! The options of a measurement of replicas, and the events in it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;
use testbed::rack::NODES;

/// Copies of a volume at most: the rack has three IOhosts.
const COPIES_MAX: u16 = 3;

/// Rounds at most: more change no median, and the 99th percentile needs a hundred.
const ROUNDS_MAX: u16 = 1000;

/// Volumes at most: each has a task on each node with a copy of it.
const VOLUMES_MAX: u16 = 1000;

/// Kinds of requests that are measured.
pub(super) const LOADS: usize = 4;

/// An event in the life of a node with a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplicaEvent {
    /// The primary gets SIGKILL.
    KillPrimary,
    /// The primary stands still (SIGSTOP) until another node serves.
    HaltPrimary,
    /// The primary is stopped in order.
    StopPrimary,
    /// `vrio volume move` has another node serve.
    Move,
    /// A node that does not serve gets SIGKILL.
    KillBackup,
    /// The primary, its agent and the member of etcd on its host get SIGKILL: leases alone tell of
    /// it. Another member leads etcd.
    KillHost,
    /// The same with the member that leads.
    KillHostWithLeader,
}

/// The registry of the nodes' cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BenchRegistry {
    /// A file of this machine.
    File,
    /// Three members of etcd, one on each IOhost.
    Etcd,
}

impl ReplicaEvent {
    /// All events; the last one needs etcd.
    pub const ALL: [Self; 7] = [
        Self::KillPrimary,
        Self::HaltPrimary,
        Self::StopPrimary,
        Self::Move,
        Self::KillBackup,
        Self::KillHost,
        Self::KillHostWithLeader,
    ];

    /// The events that can happen with a registry.
    pub fn of(registry: BenchRegistry) -> Vec<Self> {
        let can = |event: &Self| registry == BenchRegistry::Etcd || !event.needs_etcd();
        Self::ALL.into_iter().filter(can).collect()
    }

    fn needs_etcd(self) -> bool {
        self == Self::KillHostWithLeader
    }

    /// The words of a table.
    pub fn words(self) -> &'static str {
        match self {
            Self::KillPrimary => "primary killed",
            Self::HaltPrimary => "primary stands still",
            Self::StopPrimary => "primary stopped in order",
            Self::Move => "moved",
            Self::KillBackup => "backup killed",
            Self::KillHost => "primary's host killed",
            Self::KillHostWithLeader => "the same with etcd's leader",
        }
    }
}

/// The times of a start, and of a round of one event, on an idle machine, in seconds: only the
/// estimate uses them.
const EVENT_TAKES_S: f64 = 8.0;
const START_TAKES_S: f64 = 10.0;

/// The options of `vrio bench replicas`.
#[derive(Clone, Debug, Serialize)]
pub struct ReplicasOptions {
    /// The `vrio` program that the nodes run.
    #[serde(skip)]
    pub program: PathBuf,
    /// Copies of a volume.
    pub copies: u16,
    /// Volumes with copies, of which all but two have no work.
    pub volumes: u16,
    /// How often each figure is measured, and each event happens.
    pub rounds: u16,
    /// Seconds of each measurement of requests; none are measured with zero.
    pub seconds: f64,
    /// The events, each of which is repeated.
    pub events: Vec<ReplicaEvent>,
    /// The folder of the pools' files.
    pub folder: PathBuf,
    /// The longest packet of the virtual cables.
    pub mtu: u32,
    /// Whether the loopback device is used, also where network namespaces are allowed.
    pub loopback: bool,
    /// The registry of the nodes' cluster.
    pub registry: BenchRegistry,
}

impl ReplicasOptions {
    /// Looks whether the options make sense.
    ///
    /// # Errors
    /// The option that makes no sense, and the values that would.
    pub fn check(&self) -> Result<()> {
        let Self { copies, volumes, rounds, seconds, .. } = *self;
        ensure!((2..=COPIES_MAX).contains(&copies), "--copies {copies}: 2 to {COPIES_MAX}");
        ensure!(
            (2..=VOLUMES_MAX).contains(&volumes),
            "--volumes {volumes}: 2 to {VOLUMES_MAX}: one is measured, and one is used while nodes \
             go"
        );
        ensure!((1..=ROUNDS_MAX).contains(&rounds), "--rounds {rounds}: 1 to {ROUNDS_MAX}");
        ensure!(
            seconds == 0.0 || (0.05..=60.0).contains(&seconds),
            "--seconds {seconds}: from 0.05 to 60, or 0 for no measurement of requests"
        );
        ensure!(self.folder.is_dir(), "--folder {}: no such directory", self.folder.display());
        ensure!(
            seconds > 0.0 || !self.events.is_empty(),
            "nothing is measured: name an event, or seconds"
        );
        let is_on_etcd = self.registry == BenchRegistry::Etcd;
        ensure!(
            !is_on_etcd || !self.loopback && rustix::process::geteuid().is_root(),
            "--registry etcd: its members need network namespaces; run it as root, and without \
             --loopback"
        );
        ensure!(
            is_on_etcd || !self.events.iter().any(|event| event.needs_etcd()),
            "--event kill-host-with-leader: a file has no leader; use --registry etcd"
        );
        Ok(())
    }

    /// The nodes with copies.
    pub(super) fn list(&self) -> &'static [&'static str] {
        &NODES[..usize::from(self.copies)]
    }

    /// The names of the volumes without work.
    pub(super) fn idle(&self) -> impl Iterator<Item = String> {
        (2..self.volumes).map(|number| format!("idle{number}"))
    }

    pub(super) fn takes(&self) -> Duration {
        let each = 2.0 * LOADS as f64 * self.seconds;
        let events = self.events.len() as f64 * EVENT_TAKES_S;
        Duration::from_secs_f64(START_TAKES_S + f64::from(self.rounds) * (each + events))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_without_a_meaning_are_refused_by_name() {
        let usual = ReplicasOptions {
            program: "vrio".into(),
            copies: 2,
            volumes: 2,
            rounds: 5,
            seconds: 0.5,
            events: ReplicaEvent::of(BenchRegistry::File),
            folder: std::env::temp_dir(),
            mtu: 1500,
            loopback: false,
            registry: BenchRegistry::File,
        };
        usual.check().unwrap();
        let refused = |wrong: ReplicasOptions, word: &str| {
            let text = wrong.check().unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        };
        refused(ReplicasOptions { copies: 1, ..usual.clone() }, "--copies 1: 2 to 3");
        refused(ReplicasOptions { copies: 4, ..usual.clone() }, "--copies");
        refused(ReplicasOptions { volumes: 1, ..usual.clone() }, "--volumes");
        refused(ReplicasOptions { rounds: 0, ..usual.clone() }, "--rounds");
        refused(ReplicasOptions { seconds: 99.0, ..usual.clone() }, "--seconds");
        refused(ReplicasOptions { folder: "/dev/null".into(), ..usual.clone() }, "--folder");
        refused(ReplicasOptions { seconds: 0.0, events: Vec::new(), ..usual.clone() }, "nothing");
        let events = vec![ReplicaEvent::KillHostWithLeader];
        refused(ReplicasOptions { events, ..usual.clone() }, "--registry etcd");
        let registry = BenchRegistry::Etcd;
        refused(ReplicasOptions { registry, loopback: true, ..usual }, "without --loopback");
    }
}
