//! `vrio bench replicas`: the price of copies of a volume, and the pauses of a guest when a node
//! with a copy goes.
//!
//! ```text
//!   one copy     driver ═ virtqueue ═ VMhost ═ session ═ IOhost ─ pool
//!   n copies     driver ═ virtqueue ═ VMhost ═ session ═ primary ─ pool
//!                                                          ╚═ session ═ backup ─ pool
//! ```
//!
//! First both volumes are measured in turn. Then a checked guest works on a third volume while
//! nodes go and come, and each event is repeated. A request that fails is an error, and so is data
//! that the guest did not write.

mod events;
mod prices;
mod report;
mod results;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use random::Random;
use serde::Serialize;
use testbed::cleanup::{Cleanup, tidily};
use testbed::machine::Machine;
use testbed::nodes::Node;
use testbed::progress::Progress;
use testbed::rack::{CopyFile, NODES, Rack, VOLUME, wait_until_in_sync};
use testbed::stage::NodeNetwork;

use crate::pace;

pub use events::{EventPauses, ReplicaEvent};
pub use prices::Price;
pub use report::ReplicasReport;

/// Copies of a volume at most: the rack has three IOhosts.
const COPIES_MAX: u16 = 3;

/// Rounds at most: more change no median, and the 99th percentile needs a hundred.
const ROUNDS_MAX: u16 = 1000;

/// Volumes at most: each has a task on each node with a copy of it.
const VOLUMES_MAX: u16 = 1000;

/// The volume whose requests are measured beside those of the volume without copies.
const MEASURED: &str = "bob";

/// The volume without copies.
const ALONE: &str = "carol";

/// What a round of each takes on an idle machine, in seconds: only the estimate uses it.
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
        Ok(())
    }

    /// The nodes with copies.
    fn list(&self) -> &'static [&'static str] {
        &NODES[..usize::from(self.copies)]
    }

    /// The names of the volumes without work.
    fn idle(&self) -> impl Iterator<Item = String> {
        (2..self.volumes).map(|number| format!("idle{number}"))
    }

    fn takes(&self) -> Duration {
        let each = 2.0 * prices::LOADS.len() as f64 * self.seconds;
        let events = self.events.len() as f64 * EVENT_TAKES_S;
        Duration::from_secs_f64(START_TAKES_S + f64::from(self.rounds) * (each + events))
    }
}

/// The nodes, while everything happens.
struct BenchRack {
    rack: Rack,
    network: NodeNetwork,
    /// By their places in the list of copies; none while a node is away.
    members: Vec<Option<Node>>,
    vm: Node,
}

/// Measures. The progress goes to standard error.
///
/// # Errors
/// When the options make no sense, a request fails, data is lost, or a node does not start.
pub fn run(options: &ReplicasOptions) -> Result<ReplicasReport> {
    options.check()?;
    let progress = Progress::new();
    tidily(&progress, |cleanup| measure(options, cleanup, &progress))
}

fn measure(
    options: &ReplicasOptions,
    cleanup: &Cleanup,
    progress: &Progress,
) -> Result<ReplicasReport> {
    progress.done(pace::announced(options.takes()));
    let machine = Machine::look();
    let mut nodes = start(options, cleanup, progress)?;
    let prices = match options.seconds {
        0.0 => Vec::new(),
        _ => prices::measure(options, &mut nodes, progress).context("measuring requests")?,
    };
    let mut random = Random::new(u64::from(std::process::id()));
    let (pauses, counts) = match &options.events[..] {
        [] => Default::default(),
        _ => events::happen(options, &mut nodes, &mut random, progress)?,
    };
    nodes.vm.stop().context("stopping the VMhost")?;
    for node in nodes.members.into_iter().flatten() {
        node.stop().context("stopping an IOhost")?;
    }
    Ok(ReplicasReport::new(options, nodes.network, prices, pauses, counts, machine))
}

fn start(options: &ReplicasOptions, cleanup: &Cleanup, progress: &Progress) -> Result<BenchRack> {
    let name = format!("vrio-replicas-{}", std::process::id());
    let [folder, pools] =
        [std::env::temp_dir(), options.folder.clone()].map(|parent| parent.join(&name));
    for folder in [&folder, &pools] {
        cleanup.path(folder.clone());
        // Both may be the same.
        std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    let port = 20_000 + (std::process::id() % 500) as u16 * 16;
    let mut rack = Rack::new(&options.program, &folder, port)?;
    (rack.pools, rack.volume_size, rack.sidecores) = (pools, "64MiB", 1);
    rack.pool_size = if options.volumes > 100 { "4GiB" } else { "512MiB" };
    let network = separate(options, &mut rack, cleanup, progress);
    progress.doing(format!("starting {} nodes", options.copies + 1));
    let list = options.list();
    let more = volumes(options, &rack);
    let mut members = Vec::new();
    for node in list {
        let pool = format!("{node}.pool");
        let only = if *node == list[0] { rack.volume(ALONE, &[]) } else { String::new() };
        let _starting = cleanup.start();
        let file = CopyFile { node, list, pool: &pool };
        members.push(Some(rack.start_member(file, &(more.clone() + &only))?));
    }
    let disks = rack.disk(MEASURED, list) + &rack.disk(ALONE, &list[..1]);
    let vm = {
        let _starting = cleanup.start();
        rack.client(list, &disks).start()?
    };
    progress.doing("waiting until all copies are in sync");
    for volume in [VOLUME, MEASURED].map(str::to_owned).into_iter().chain(options.idle()) {
        wait_until_in_sync(&members, &volume)?;
    }
    Ok(BenchRack { rack, network, members, vm })
}

/// The volumes with copies, beside the one that each member has.
fn volumes(options: &ReplicasOptions, rack: &Rack) -> String {
    let list = options.list();
    let idle = options.idle().map(|name| rack.volume(&name, list));
    [rack.volume(MEASURED, list)].into_iter().chain(idle).collect()
}

fn separate(
    options: &ReplicasOptions,
    rack: &mut Rack,
    cleanup: &Cleanup,
    progress: &Progress,
) -> NodeNetwork {
    if options.loopback || !rustix::process::geteuid().is_root() {
        progress.done("the nodes meet on the loopback device: no network is like that");
        return NodeNetwork::Loopback;
    }
    match rack.separate(Some(options.mtu), cleanup) {
        Ok(()) => NodeNetwork::Namespaces,
        Err(error) => {
            progress.done(format!("no namespaces ({error:#}): loopback instead"));
            NodeNetwork::Loopback
        }
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
            events: ReplicaEvent::ALL.to_vec(),
            folder: std::env::temp_dir(),
            mtu: 1500,
            loopback: false,
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
        refused(ReplicasOptions { seconds: 0.0, events: Vec::new(), ..usual }, "nothing");
    }
}
