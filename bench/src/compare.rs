//! `vrio bench compare block`: ourselves and what a user would pick instead, in turn.
//!
//! For each case every contestant is started, measured and ended, then the next one, several rounds
//! of it: A B A B. So whatever else the machine does meets all alike, and nobody polls while it is
//! another one's turn. Whoever speaks vhost-user is driven by our driver, the others by a client of
//! their own, which their name says. Ratios are taken within a round, of rounds in which the cores
//! kept their distance. Figures of our own that goals are about come last, and then all goals.

mod client;
mod goals;
mod own;
mod peers;
mod running;
mod spdk;
mod table;
mod turns;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;
use sidecore::Idle;

use crate::block::{self, LinkKind, Path, Volume};
use crate::cleanup::{Cleanup, tidily};
use crate::load::Pattern;
use crate::machine::Machine;
use crate::measure::Reuse;
use crate::progress::Progress;

use own::{Measurer, Own};
use peers::{Peer, Peers};
use turns::Runner;

pub use goals::Reached;
pub use own::{OwnOutcome, OwnRow};
pub use table::Row;

/// The version of the JSON form.
const COMPARISON_VERSION: u32 = 3;

/// Rounds, at most.
pub const ROUNDS_MAX: u16 = 99;

/// What a turn takes besides what is measured: to start and end, to fill a disk, to warm up. Only
/// for the estimate.
const TURN_MORE: Duration = Duration::from_millis(1_500);
const SLOW_TURN_MORE: Duration = Duration::from_secs(5);

/// What our disks and our direct client are called, which goals refer to.
const LOCAL: &str = "vrio local";
const DIRECT: &str = "vrio direct";
const DIRECT_XDP: &str = "vrio direct over AF_XDP";

/// What is asked for.
#[derive(Clone, Debug, Serialize)]
pub struct Options {
    /// The `vrio` program.
    #[serde(skip)]
    pub program: PathBuf,
    /// How often each contestant is measured.
    pub rounds: u16,
    /// How long each time.
    pub seconds: f64,
    /// Only contests whose name has this in it.
    pub contest: Option<String>,
    /// Only cases whose name has this in it.
    pub case: Option<String>,
    /// What our sidecores do without work; adaptive instead of spin where they share cores.
    #[serde(serialize_with = "block::as_text")]
    pub idle: Idle,
    /// What our driver takes and stores, whoever serves it.
    pub reuse: Reuse,
    /// Whether our sessions are sealed; what the peers say to each other is in clear.
    pub encrypt: bool,
    /// A folder for files in memory (tmpfs).
    pub folder: PathBuf,
    /// A folder for files on a disk, which are opened around the page cache.
    pub disk_folder: PathBuf,
    /// Where SPDK was built, unless it is installed.
    pub spdk: Option<PathBuf>,
    /// Other versions of qemu-storage-daemon than that in `PATH`.
    pub storage_daemons: Vec<PathBuf>,
    /// Further vhost-user-blk servers, which run already: names and sockets.
    pub sockets: Vec<(String, PathBuf)>,
}

impl Options {
    /// Looks whether it makes sense.
    ///
    /// # Errors
    /// What does not.
    pub fn check(&self) -> Result<()> {
        let Self { rounds, seconds, sockets, .. } = self;
        ensure!((1..=ROUNDS_MAX).contains(rounds), "--rounds {rounds}: from 1 to {ROUNDS_MAX}");
        let one = block::Options { seconds: *seconds, ..block::Options::new(self.program.clone()) };
        one.check()?;
        let folders = [("--folder", &self.folder), ("--disk-folder", &self.disk_folder)];
        for (name, folder) in folders.into_iter().chain(self.spdk.iter().map(|it| ("--spdk", it))) {
            ensure!(
                folder.is_absolute() && folder.is_dir(),
                "{name} {}: a folder that is there, by its absolute path",
                folder.display()
            );
        }
        let mut names: Vec<_> = sockets.iter().map(|(name, _)| name).collect();
        names.sort();
        names.dedup();
        ensure!(names.len() == sockets.len(), "--socket: two servers have one name");
        Ok(())
    }
}

/// One kind of requests.
#[derive(Clone, Copy, Debug)]
struct Case {
    op: Pattern,
    size_bytes: u32,
    depth: u16,
}

impl Case {
    fn name(&self) -> String {
        let size = match self.size_bytes {
            bytes if bytes >= 1 << 20 => format!("{}m", bytes >> 20),
            bytes => format!("{}k", bytes >> 10),
        };
        format!("{} {size} depth {}", self.op.name(), self.depth)
    }

    /// Small requests to random places, long ones in order.
    fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for op in [Pattern::RandRead, Pattern::RandWrite] {
            cases.extend([1, 8, 32].map(|depth| Self { op, size_bytes: 4 << 10, depth }));
        }
        for (size_bytes, depth) in [(64 << 10, 8), (1 << 20, 4)] {
            let ops = [Pattern::Read, Pattern::Write];
            cases.extend(ops.map(|op| Self { op, size_bytes, depth }));
        }
        cases
    }
}

/// What a turn gave, whoever drove.
#[derive(Clone, Copy, Debug)]
struct Sample {
    iops: f64,
    p50_us: f64,
    p99_us: f64,
    /// Of everybody who takes part; none where a server's is not known.
    cpu_us_per_request: Option<f64>,
    /// What our driver had of its core, where it is ours and has one.
    core_share: Option<f64>,
    /// The cache line's round trips before and after.
    trips_ns: [Option<u64>; 2],
}

/// Who is measured.
#[derive(Clone, Debug)]
enum Contestant {
    /// Ourselves, by one of our ways.
    Vrio(Path, LinkKind),
    /// A server that we start.
    Peer(Peer),
    /// A server that runs already.
    Socket(String, PathBuf),
}

impl Contestant {
    fn name(&self) -> String {
        match self {
            Self::Vrio(Path::Direct, LinkKind::Xdp) => DIRECT_XDP.to_owned(),
            Self::Vrio(Path::Direct, _) => DIRECT.to_owned(),
            Self::Vrio(Path::Local, _) => LOCAL.to_owned(),
            Self::Vrio(path, _) => format!("vrio {path}"),
            Self::Peer(peer) => peer.name.clone(),
            Self::Socket(name, _) => name.clone(),
        }
    }

    fn is_ours(&self) -> bool {
        matches!(self, Self::Vrio(..))
    }

    /// Whether it can have so many requests outstanding.
    fn takes_part(&self, case: &Case) -> bool {
        match self {
            Self::Peer(peer) => peer.depth_max.is_none_or(|most| case.depth <= most),
            Self::Vrio(..) | Self::Socket(..) => true,
        }
    }

    /// How long its turn will take.
    fn takes(&self, seconds: f64) -> Duration {
        let more = match self {
            Self::Peer(peer) if peer.is_slow() => SLOW_TURN_MORE,
            _ => TURN_MORE,
        };
        Duration::from_secs_f64(seconds) + more
    }
}

/// Contestants for the same thing.
#[derive(Clone, Debug)]
struct Contest {
    name: String,
    volume: Volume,
    /// Whether all of its file was written, once for all.
    filled: bool,
    contestants: Vec<Contestant>,
}

impl Contest {
    /// Who takes part in a case.
    fn of(&self, case: &Case) -> impl Iterator<Item = &Contestant> {
        self.contestants.iter().filter(|it| it.takes_part(case))
    }

    /// Whether there is anything to compare.
    fn has_both(&self, case: &Case) -> bool {
        self.of(case).any(Contestant::is_ours) && !self.of(case).all(Contestant::is_ours)
    }
}

/// A contest's outcome.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// What it was about.
    pub contest: String,
    /// Each case and pair of contestants.
    pub rows: Vec<Row>,
}

/// Everything that was compared.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The version of this form.
    pub version: u32,
    /// What was asked for.
    pub asked: Options,
    /// The contests.
    pub contests: Vec<Outcome>,
    /// Figures of our own that goals are about.
    pub own: Vec<OwnOutcome>,
    /// All goals, by number.
    pub goals: Vec<Reached>,
    /// Peers that could not be measured, and why.
    pub missing: Vec<String>,
    /// The machine.
    pub machine: Machine,
}

/// Runs all contests. Says on standard error what it does.
///
/// # Errors
/// When one cannot be measured.
pub fn run(options: &Options) -> Result<Comparison> {
    let progress = Progress::new();
    tidily(&progress, |cleanup| compare(options, cleanup, &progress))
}

fn compare(options: &Options, cleanup: &Cleanup, progress: &Progress) -> Result<Comparison> {
    let mut peers = Peers::find(options.spdk.as_deref(), &options.storage_daemons);
    let wanted = |filter: &Option<String>, name: &str| {
        filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()))
    };
    let mut contests = contests(options, &peers);
    contests.retain(|contest| wanted(&options.contest, &contest.name));
    let of_spdk = |it: &Contestant| matches!(it, Contestant::Peer(peer) if peer.is_slow());
    if contests.iter().any(|contest| contest.contestants.iter().any(of_spdk))
        && let Err(why) = spdk::make_huge_pages(peers.huge_mib(), cleanup)
    {
        peers.without_huge_pages(&format!("{why:#}"));
        contests.iter_mut().for_each(|contest| contest.contestants.retain(|it| !of_spdk(it)));
    }
    let cases: Vec<_> =
        Case::all().into_iter().filter(|case| wanted(&options.case, &case.name())).collect();
    contests.retain(|contest| cases.iter().any(|case| contest.has_both(case)));
    let mut own = Own::ALL.to_vec();
    own.retain(|own| wanted(&options.contest, own.name()));
    own.retain(|own| wanted(&options.case, &own.case().name()));
    ensure!(
        !contests.is_empty() || !own.is_empty(),
        "nothing to compare: no peer is installed for that (missing: {}), or --contest and --case \
         leave nothing",
        peers.missing.join("; ")
    );
    for missing in &peers.missing {
        progress.done(format!("not measured: {missing}"));
    }
    estimate(options, &contests, &cases, &own, progress);
    let (mut outcomes, mut missing) = (Vec::new(), peers.missing);
    for contest in contests {
        let mut runner = Runner { options, contest, cleanup, progress };
        outcomes.push(runner.run(&cases, &mut missing));
    }
    let measurer = Measurer { options, cleanup, progress };
    let own = measure_own(&own, &measurer, &mut missing);
    let is_nothing = outcomes.iter().all(|it| it.rows.is_empty()) && own.is_empty();
    ensure!(!is_nothing, "{}", missing.join("; "));
    Ok(Comparison {
        version: COMPARISON_VERSION,
        asked: options.clone(),
        goals: goals_of(&outcomes, &own),
        contests: outcomes,
        own,
        missing,
        machine: Machine::look(),
    })
}

/// Figures of our own; what cannot be measured is named.
fn measure_own(own: &[Own], by: &Measurer<'_>, missing: &mut Vec<String>) -> Vec<OwnOutcome> {
    let mut outcomes = Vec::new();
    for own in own {
        match own.measure(by) {
            Ok(outcome) => {
                by.progress.done(format!("{}: {} rows", outcome.contest, outcome.rows.len()));
                outcomes.push(outcome);
            }
            Err(error) => {
                by.cleanup.yield_to_interruption();
                missing.push(format!("{error:#}"));
                by.progress.done(format!("not measured: {error:#}"));
            }
        }
    }
    outcomes
}

/// What all rows together say of the goals.
fn goals_of(outcomes: &[Outcome], own: &[OwnOutcome]) -> Vec<Reached> {
    let rows: Vec<_> = outcomes
        .iter()
        .flat_map(|outcome| outcome.rows.iter().map(|row| (outcome.contest.as_str(), row)))
        .collect();
    let own: Vec<_> = own
        .iter()
        .flat_map(|outcome| &outcome.rows)
        .filter_map(|row| Some((row.case.as_str(), row.verdict.as_ref()?)))
        .collect();
    goals::reached(&rows, &own)
}

/// Says how long it will take.
fn estimate(
    options: &Options,
    contests: &[Contest],
    cases: &[Case],
    own: &[Own],
    progress: &Progress,
) {
    let rounds = u32::from(options.rounds);
    let turns = contests.iter().flat_map(|contest| {
        cases.iter().filter(|case| contest.has_both(case)).flat_map(|case| contest.of(case))
    });
    let turns: Vec<_> = turns.map(|it| it.takes(options.seconds)).collect();
    let own_turns: u32 = own.iter().map(|own| own.turns()).sum();
    let own_turn = TURN_MORE + Duration::from_secs_f64(options.seconds);
    let all = (turns.iter().sum::<Duration>() + own_turn * own_turns) * rounds;
    let minutes = all.as_secs().div_ceil(60);
    let turns = (turns.len() as u32 + own_turns) * rounds;
    progress.done(format!(
        "{turns} turns, about {minutes} min; up to twice as many where the cores move"
    ));
}

/// What can be compared with what is installed.
fn contests(options: &Options, peers: &Peers) -> Vec<Contest> {
    let file_in =
        |folder: &std::path::Path| folder.join(format!("vrio-compare-{}.img", std::process::id()));
    let (folder, disk_folder) = (options.folder.display(), options.disk_folder.display());
    let contest = |name: &str, volume: Volume, ours: &[(Path, LinkKind)], theirs: Vec<Peer>| {
        let ours = ours.iter().cloned().map(|(path, link)| Contestant::Vrio(path, link));
        let contestants = ours.chain(theirs.into_iter().map(Contestant::Peer)).collect();
        Contest { name: name.to_owned(), volume, filled: false, contestants }
    };
    let local = [(Path::Local, LinkKind::Udp)];
    let (in_memory, on_disk) = (file_in(&options.folder), file_in(&options.disk_folder));
    let mut null = contest("local, null volume", Volume::Null, &local, peers.null());
    let sockets = options.sockets.iter().cloned();
    null.contestants.extend(sockets.map(|(name, socket)| Contestant::Socket(name, socket)));
    vec![
        null,
        contest("local, memory", Volume::Memory, &local, peers.memory()),
        contest(
            &format!("local, memory file ({folder})"),
            Volume::File(in_memory.clone()),
            &local,
            peers.file(&in_memory, false),
        ),
        contest(
            &format!("local, disk file, O_DIRECT ({disk_folder})"),
            Volume::DirectFile(on_disk.clone()),
            &local,
            peers.file(&on_disk, true),
        ),
        contest(
            &format!("local, disk file, page cache ({disk_folder})"),
            Volume::File(on_disk.clone()),
            &local,
            peers.file(&on_disk, false),
        ),
        contest("remote, memory", Volume::Memory, &[(Path::Remote, LinkKind::Udp)], peers.remote()),
        contest(
            "direct, memory",
            Volume::Memory,
            &[(Path::Direct, LinkKind::Udp), (Path::Direct, LinkKind::Xdp)],
            peers.direct(),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_names_of_their_own() {
        let mut names: Vec<_> = Case::all().iter().map(Case::name).collect();
        assert_eq!(names.len(), 10);
        assert_eq!(names[0], "randread 4k depth 1");
        assert_eq!(names[9], "write 1m depth 4");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 10);
    }
}
