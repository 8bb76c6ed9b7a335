//! `vrio bench compare net`: virtual machines' network cards.

mod goals;
mod peers;
mod taps;

use std::path::PathBuf;

use anyhow::Result;
use serde::Serialize;
use sidecore::Idle;

use super::running::Running;
use super::{Case, Comparison, Contest, Field, LOCAL, Plan, Sample, huge};
use crate::cleanup::{Cleanup, tidily};
use crate::machine::cores;
use crate::net::{self, Op, Path};
use crate::progress::Progress;

use peers::{Peer, Peers, SOCKETS, name};

/// What the one contest is called, which goals refer to.
const CONTEST: &str = "guest to guest, local";

/// What is asked for.
#[derive(Clone, Debug, Serialize)]
pub struct Options {
    /// The `vrio` program.
    #[serde(skip)]
    pub program: PathBuf,
    /// How much is measured.
    #[serde(flatten)]
    pub plan: Plan,
    /// What our sidecore does without work; adaptive instead of spin where it shares a core.
    #[serde(serialize_with = "crate::block::as_text")]
    pub idle: Idle,
}

impl Options {
    /// Looks whether it makes sense.
    ///
    /// # Errors
    /// What does not.
    pub fn check(&self) -> Result<()> {
        self.plan.check()?;
        let seconds = self.plan.seconds;
        net::Options { seconds, ..net::Options::new(self.program.clone()) }.check()
    }
}

/// One kind of frames.
#[derive(Clone, Copy, Debug)]
struct Frames {
    op: Op,
    size_bytes: u32,
}

impl Case for Frames {
    fn name(&self) -> String {
        let size = match self.size_bytes {
            bytes if bytes >= 1 << 10 && bytes.is_power_of_two() => format!("{} KiB", bytes >> 10),
            bytes => format!("{bytes} B"),
        };
        let op = match self.op {
            Op::Forward => "one way",
            Op::Bounce => "there and back",
            Op::Stream => "a stream",
        };
        format!("{size} {op}")
    }
}

impl Frames {
    /// The shortest, the usual, and the longest, which is TCP that nobody has to cut.
    fn all() -> Vec<Self> {
        let forward = [64, 1500, 64 << 10].map(|size_bytes| Self { op: Op::Forward, size_bytes });
        forward.into_iter().chain([Self { op: Op::Bounce, size_bytes: 64 }]).collect()
    }
}

/// Whether our sidecore, or a peer's thread, and the driver have a core each.
fn has_seats() -> bool {
    cores().len() > 1
}

/// Who carries frames between two guests.
#[derive(Clone, Debug)]
enum Contestant {
    /// Our own switch.
    Vrio,
    /// The kernel.
    Taps,
    /// A switch that we start.
    Peer(Peer),
}

impl super::Contestant for Contestant {
    type Case = Frames;

    fn name(&self) -> String {
        match self {
            Self::Vrio => LOCAL.to_owned(),
            Self::Taps => name::TAPS.to_owned(),
            Self::Peer(peer) => peer.name.clone(),
        }
    }

    fn is_ours(&self) -> bool {
        matches!(self, Self::Vrio)
    }

    /// Whether it lets frames of that length through uncut.
    fn takes_part(&self, case: &Frames) -> bool {
        match self {
            Self::Peer(peer) => case.size_bytes <= peer.size_bytes_max,
            Self::Vrio | Self::Taps => true,
        }
    }

    fn is_slow(&self) -> bool {
        matches!(self, Self::Peer(_))
    }
}

/// Runs the contest. Says on standard error what it does.
///
/// # Errors
/// When nobody can be measured.
pub fn run(options: &Options) -> Result<Comparison> {
    let progress = Progress::new();
    tidily(&progress, |cleanup| compare(options, cleanup, &progress))
}

fn compare(options: &Options, cleanup: &Cleanup, progress: &Progress) -> Result<Comparison> {
    let plan = &options.plan;
    let mut peers = Peers::find();
    if plan.wants_contest(CONTEST)
        && !peers.found.is_empty()
        && let Err(why) = huge::make_pages(peers.huge_mib(), cleanup)
    {
        peers.without_huge_pages(&format!("{why:#}"));
    }
    let taps = taps::may_be_made().then_some(Contestant::Taps);
    if taps.is_none() {
        peers.missing.push(format!("{} (only root makes them)", name::TAPS));
    }
    let theirs = peers.found.into_iter().map(Contestant::Peer).chain(taps);
    let contestants = [Contestant::Vrio].into_iter().chain(theirs).collect();
    let contests = vec![Contest { name: CONTEST.to_owned(), contestants }];
    let (subject, cases, missing) = (&goals::NICS, Frames::all(), peers.missing);
    let mut field = Field { subject, plan, contests, cases, missing, cleanup, progress };
    field.narrow();
    field.check(false)?;
    field.announce(0);
    let outcomes = field.run(&|case, contestant| turn(options, case, contestant, cleanup));
    field.result(options, outcomes, Vec::new())
}

fn turn(
    options: &Options,
    case: &Frames,
    contestant: &Contestant,
    cleanup: &Cleanup,
) -> Result<Sample> {
    let mut asked = net::Options {
        op: case.op,
        size_bytes: case.size_bytes,
        idle: options.idle,
        seconds: options.plan.seconds,
        ..net::Options::new(options.program.clone())
    };
    match contestant {
        Contestant::Vrio => {
            if asked.idle == Idle::Spin && !has_seats() {
                // Spinning threads that share cores only keep them from each other.
                asked.idle = Idle::Adaptive;
            }
            drive(&asked, cleanup)
        }
        Contestant::Taps => taps::measure(case, options.plan.seconds, cleanup),
        Contestant::Peer(peer) => {
            let running = Running::start(&peer.service, cleanup)?;
            let [one, two] = SOCKETS.map(|name| running.folder.join(name));
            (asked.path, asked.pids) = (Path::Socket(one, two), running.pids());
            drive(&asked, cleanup).map_err(|error| running.explain(error))
        }
    }
}

/// By our driver.
fn drive(asked: &net::Options, cleanup: &Cleanup) -> Result<Sample> {
    let report = net::measure(asked, cleanup, &Progress::silent())?;
    let core_share = report.core_share.get("driver-0").copied();
    Ok(Sample {
        rate: report.frames_per_s,
        p50_us: report.latency_us.map(|latency| latency.p50),
        p99_us: report.latency_us.map(|latency| latency.p99),
        cpu_us: report.cpu_us_per_frame(),
        // Where cores are shared, a share says nothing.
        core_share: core_share.filter(|_| has_seats()),
        trips_ns: report.cache_line_rtts_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_names_of_their_own() {
        let names: Vec<_> = Frames::all().iter().map(Frames::name).collect();
        assert_eq!(
            names,
            ["64 B one way", "1500 B one way", "64 KiB one way", "64 B there and back"]
        );
    }
}
