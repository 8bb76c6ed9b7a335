//! The faults, and their order: each step is a function of the seed and of the step's number.

use std::fmt;
use std::time::Duration;

use random::Random;
use testbed::rack::{IOHOSTS, NODES, VMHOST};

use super::VOLUMES;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    KillNode,
    KillEtcd,
    HaltNode,
    CutWay,
    Lose,
    Delay,
    FailPool,
    Move,
    KillWithAgent,
    KillAgent,
    HaltAgent,
    HaltEtcd,
    CutApart,
    CutOff,
    StopNode,
    Replace,
    KillVm,
}

/// All kinds, by the words of the table. A run begins with one of each, in this order.
pub(super) const KINDS: [(FaultKind, &str); 17] = [
    (FaultKind::KillNode, "kill -9 of a node"),
    (FaultKind::KillEtcd, "kill -9 of a member of etcd"),
    (FaultKind::HaltNode, "SIGSTOP of a node"),
    (FaultKind::CutWay, "one way cut"),
    (FaultKind::Lose, "loss on one way"),
    (FaultKind::Delay, "delay and reordering"),
    (FaultKind::FailPool, "EIO from a pool"),
    (FaultKind::Move, "vrio volume move"),
    (FaultKind::KillWithAgent, "kill -9 of a node and its agent"),
    (FaultKind::KillAgent, "kill -9 of an agent"),
    (FaultKind::HaltAgent, "SIGSTOP of an agent"),
    (FaultKind::HaltEtcd, "SIGSTOP of a member of etcd"),
    (FaultKind::CutApart, "two hosts cut apart"),
    (FaultKind::CutOff, "a host cut off"),
    (FaultKind::StopNode, "a node stopped in order"),
    (FaultKind::Replace, "vrio volume copies --replace"),
    (FaultKind::KillVm, "kill -9 of the VMhost"),
];

/// A fault: its kind, and numbers of which each kind uses some.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fault {
    pub(super) kind: FaultKind,
    /// The place of an IOhost.
    pub(super) io: usize,
    /// The place of any host.
    pub(super) host: usize,
    /// The place of another host.
    pub(super) other: usize,
    /// Percent that are lost.
    pub(super) percent: u64,
    /// The longest delay.
    pub(super) delay: Duration,
}

impl Fault {
    fn new(random: &mut Random, kind: FaultKind) -> Self {
        let host = random.below(NODES.len() as u64);
        let further = random.between(1, NODES.len() as u64 - 1);
        Self {
            kind,
            io: random.below(IOHOSTS.len() as u64) as usize,
            host: host as usize,
            other: (host + further) as usize % NODES.len(),
            percent: random.between(1, 30),
            delay: Duration::from_millis(random.between(5, 200)),
        }
    }

    /// The volume of a command.
    pub(super) fn volume(&self) -> &'static str {
        VOLUMES[self.host % VOLUMES.len()].0
    }

    /// Writes that a guest has not flushed may go with an IOhost. A node that is stopped while no
    /// other node can serve ends as if it was killed.
    pub(super) fn loses_writes(&self) -> bool {
        matches!(
            self.kind,
            FaultKind::KillNode
                | FaultKind::KillWithAgent
                | FaultKind::FailPool
                | FaultKind::StopNode
        )
    }

    /// By this fault no copy falls out of sync. A fault of another kind may leave one copy in sync
    /// alone, and if its node dies then, a guest hears of it by errors, as it must.
    fn leaves_copies_in_sync(&self) -> bool {
        matches!(
            self.kind,
            FaultKind::KillEtcd
                | FaultKind::HaltEtcd
                | FaultKind::KillAgent
                | FaultKind::HaltAgent
                | FaultKind::Move
                | FaultKind::Replace
                | FaultKind::KillVm
        )
    }

    /// Whether the promise that no request fails holds for both at once.
    fn goes_with(&self, other: &Self) -> bool {
        let one_way =
            |one: &Self, other: &Self| !one.loses_writes() || other.leaves_copies_in_sync();
        self.kind != other.kind && one_way(self, other) && one_way(other, self)
    }

    /// How long it lasts: half of the long faults last for moments, the other half up to 8 s.
    fn duration(&self, random: &mut Random) -> Duration {
        let longest_ms = if random.one_in(2) { 1500 } else { 8000 };
        let longest_ms = match self.kind {
            FaultKind::Move | FaultKind::Replace | FaultKind::KillAgent => 500,
            FaultKind::FailPool | FaultKind::KillVm => 2000,
            FaultKind::KillNode | FaultKind::KillWithAgent | FaultKind::KillEtcd => longest_ms / 2,
            _ => longest_ms,
        };
        Duration::from_millis(random.between(200, longest_ms))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [io, host, other] = [self.io, self.host, self.other].map(|at| NODES[at]);
        match self.kind {
            FaultKind::KillNode => write!(f, "kill -9 of {io}"),
            FaultKind::KillEtcd => write!(f, "kill -9 of etcd on {io}"),
            FaultKind::HaltNode => write!(f, "SIGSTOP of {host}"),
            FaultKind::CutWay => write!(f, "no packets from {host} to {other}"),
            FaultKind::Lose => write!(f, "{} % loss from {host} to {other}", self.percent),
            FaultKind::Delay => write!(f, "up to {:?} between {host} and {other}", self.delay),
            FaultKind::FailPool => write!(f, "EIO from the pool of {io}"),
            FaultKind::Move => write!(f, "vrio volume move {}", self.volume()),
            FaultKind::KillWithAgent => write!(f, "kill -9 of {io} and its agent"),
            FaultKind::KillAgent => write!(f, "kill -9 of the agent of {host}"),
            FaultKind::HaltAgent => write!(f, "SIGSTOP of the agent of {host}"),
            FaultKind::HaltEtcd => write!(f, "SIGSTOP of etcd on {io}"),
            FaultKind::CutApart => write!(f, "no packets between {host} and {other}"),
            FaultKind::CutOff => write!(f, "no packets to and from {host}"),
            FaultKind::StopNode => write!(f, "{io} is stopped in order"),
            FaultKind::Replace => write!(f, "vrio volume copies --replace"),
            FaultKind::KillVm => write!(f, "kill -9 of {VMHOST}"),
        }
    }
}

/// One fault, or two that overlap.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) faults: Vec<Fault>,
    /// The time between the beginnings of two faults.
    pub(super) gap: Duration,
    /// The time from the last beginning until all faults end.
    pub(super) hold: Duration,
}

impl Step {
    pub(super) fn new(seed: u64, number: u64) -> Self {
        let mut random = Random::new(Random::new(seed).draw() ^ Random::new(number).draw());
        let kinds = KINDS.len() as u64;
        let is_first = number < kinds;
        let kind = if is_first { number } else { random.below(kinds) };
        let mut faults = vec![Fault::new(&mut random, KINDS[kind as usize].0)];
        if !is_first && random.one_in(3) {
            let kind = KINDS[random.below(kinds) as usize].0;
            let second = Fault::new(&mut random, kind);
            if faults[0].goes_with(&second) {
                faults.push(second);
            }
        }
        let gap = Duration::from_millis(random.below(1500));
        let hold = faults.iter().map(|fault| fault.duration(&mut random)).max();
        Self { faults, gap, hold: hold.expect("one at least") }
    }

    /// The words of the table for it.
    pub(super) fn kind(&self) -> &'static str {
        match &self.faults[..] {
            [fault] => KINDS[fault.kind as usize].1,
            _ => "two of them at once",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self.faults.iter().map(ToString::to_string).collect();
        f.write_str(&words.join(", and "))
    }
}
