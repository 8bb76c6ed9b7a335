//! Events in the lives of nodes with copies, and the pauses of a guest meanwhile.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use random::Random;
use serde::Serialize;
use testbed::nodes::{Node, NodePlan};
use testbed::progress::Progress;
use testbed::rack::{NODES, VOLUME, wait_until_in_sync};
use testbed::stand_in::StandIn;
use workload::{Mix, WorkloadCounts};

use super::options::{ReplicaEvent, ReplicasOptions};
use super::rack::BenchRack;

const QUEUES: u16 = 2;

/// Blocks of the checker's model: 8 MiB of the volume's 64.
const BLOCKS: u64 = 2048;

/// Work before an event, so that requests are under way: a time from this much up to twice of it.
const WORK_BEFORE: Duration = Duration::from_millis(100);

/// Work after an event at least, in requests and in time. A lease lasts for 2.5 s; a pause may
/// begin when the last reads under it have ended.
const WORK_AFTER: u64 = 200;
const TIME_AFTER: Duration = Duration::from_secs(4);

/// The pauses of a guest at one event.
#[derive(Clone, Debug, Serialize)]
pub struct EventPauses {
    /// The event.
    pub event: ReplicaEvent,
    /// The longest time without a completion, in milliseconds, of each round.
    pub pauses_ms: Vec<f64>,
    /// From the return of the node until all copies are in sync, in milliseconds.
    pub in_sync_ms: Vec<f64>,
}

/// Makes each event happen in each round, and counts the guest's work.
pub(super) fn happen(
    options: &ReplicasOptions,
    nodes: &mut BenchRack,
    random: &mut Random,
    progress: &Progress,
) -> Result<(Vec<EventPauses>, WorkloadCounts)> {
    let socket = nodes.vm.wait_for_disk(VOLUME)?;
    let mut guest = StandIn::connect(&socket, QUEUES, Mix::OF_ALL, BLOCKS, random)?;
    let empty = |event: &ReplicaEvent| EventPauses {
        event: *event,
        pauses_ms: Vec::new(),
        in_sync_ms: Vec::new(),
    };
    let mut all: Vec<_> = options.events.iter().map(empty).collect();
    for round in 0..options.rounds {
        for it in &mut all {
            let (event, of) = (it.event.words(), options.rounds);
            progress.doing(format!("{event}, round {} of {of}", round + 1));
            let (pause, in_sync) = happens(it.event, nodes, &mut guest, random)
                .with_context(|| format!("{event}, round {}", round + 1))?;
            it.pauses_ms.push(pause.as_secs_f64() * 1e3);
            it.in_sync_ms.push(in_sync.as_secs_f64() * 1e3);
        }
    }
    progress.doing("reading everything back");
    guest.read_all()?;
    let counts = guest.workload.counts;
    ensure!(counts.errors == 0, "{} requests failed, which none may", counts.errors);
    guest.disconnect();
    Ok((all, counts))
}

/// A node after an event.
enum After {
    Runs(Node),
    Halted(Node),
    IsAway(NodePlan),
}

/// One event: the guest's pause, and the time until all copies are in sync again.
fn happens(
    event: ReplicaEvent,
    nodes: &mut BenchRack,
    guest: &mut StandIn,
    random: &mut Random,
) -> Result<(Duration, Duration)> {
    let primary = wait_until_in_sync(&nodes.members, VOLUME)?;
    if !nodes.etcd.is_empty() {
        nodes.lead(primary, event == ReplicaEvent::KillHostWithLeader)?;
    }
    let most_us = u64::try_from(WORK_BEFORE.as_micros()).expect("a short while");
    let until = Instant::now() + Duration::from_micros(random.between(most_us, 2 * most_us));
    guest.work(|_| Instant::now() >= until)?;
    guest.take_longest_pause();
    let other = (primary + 1) % nodes.members.len();
    let place = if event == ReplicaEvent::KillBackup { other } else { primary };
    let is_host = matches!(event, ReplicaEvent::KillHost | ReplicaEvent::KillHostWithLeader);
    let etcd = nodes.etcd.get_mut(place).filter(|_| is_host).and_then(Option::take);
    let has_member = etcd.is_some();
    let node = nodes.members[place].take().context("a node that runs")?;
    let successor = NODES[other];
    let rack = &nodes.rack;
    let after = thread::scope(|scope| {
        let happening = scope.spawn(move || -> Result<After> {
            Ok(match event {
                ReplicaEvent::KillPrimary | ReplicaEvent::KillBackup => After::IsAway(node.kill()?),
                ReplicaEvent::KillHost | ReplicaEvent::KillHostWithLeader => {
                    // An agent that outlives the node would prove its end.
                    node.plan().kill_agent();
                    let plan = node.kill()?;
                    drop(etcd);
                    After::IsAway(plan)
                }
                ReplicaEvent::StopPrimary => After::IsAway(node.stop()?),
                ReplicaEvent::HaltPrimary => {
                    node.halt()?;
                    After::Halted(node)
                }
                ReplicaEvent::Move => {
                    rack.tell(&node, &["volume", "move", VOLUME, successor])?;
                    After::Runs(node)
                }
            })
        });
        let (enough, until) =
            (guest.workload.counts.completed + WORK_AFTER, Instant::now() + TIME_AFTER);
        guest.work(|guest| {
            let is_over = guest.workload.counts.completed >= enough && Instant::now() >= until;
            is_over && happening.is_finished()
        })?;
        happening.join().map_err(|_| anyhow!("an event panicked"))?
    })?;
    let pause = guest.take_longest_pause();
    let returned = Instant::now();
    if has_member {
        nodes.start_etcd(place)?;
    }
    nodes.members[place] = Some(match after {
        After::Runs(node) => node,
        After::Halted(node) => {
            node.resume()?;
            node
        }
        After::IsAway(plan) => plan.start()?,
    });
    // The guest works on while the copy gets what it lacks.
    guest.work(|_| returned.elapsed() > WORK_BEFORE)?;
    wait_until_in_sync(&nodes.members, VOLUME)?;
    Ok((pause, returned.elapsed()))
}
