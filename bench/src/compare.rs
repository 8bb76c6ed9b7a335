//! `vrio bench compare block`: ourselves and what a user would pick instead, in turn.
//!
//! For each case every contestant is started, measured and ended, then the next one, several rounds
//! of it: A B A B. So whatever else the machine does meets all alike, and nobody polls while it is
//! another one's turn. Whoever speaks vhost-user is driven by our driver, the others by a client of
//! their own, which their name says. Ratios are taken within a round.

mod client;
mod goals;
mod peers;
mod running;
mod spdk;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;
use sidecore::Idle;

use crate::block::{self, LinkKind, Path, Report, Volume};
use crate::cleanup::Cleanup;
use crate::load::Pattern;
use crate::machine::Machine;
use crate::progress::Progress;

use client::Client;
use peers::{Peer, Peers};
use running::Running;

pub use goals::{Figure, Verdict};
pub use table::{Row, Spread};

/// The version of the JSON form.
const COMPARISON_VERSION: u32 = 2;

/// A round counts if the cache line's round trips of its turns differ by no more.
const LEVEL: f64 = 1.5;

/// Rounds, at most.
pub const ROUNDS_MAX: u16 = 99;

/// What a turn takes besides what is measured: to start and end, to fill a disk, to warm up. Only
/// for the estimate.
const TURN_MORE: Duration = Duration::from_millis(1_500);
const SLOW_TURN_MORE: Duration = Duration::from_secs(5);

/// What our direct client is called, which goals refer to.
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
    /// Of everybody who takes part; none where a server's is not known.
    cpu_us_per_request: Option<f64>,
    /// The cache line's round trips before and after.
    trips_ns: [Option<u64>; 2],
}

impl From<Report> for Sample {
    fn from(report: Report) -> Self {
        Self {
            iops: report.iops,
            p50_us: report.latency_us.p50,
            cpu_us_per_request: report.cpu_us_per_request(),
            trips_ns: report.cache_line_rtts_ns,
        }
    }
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
            Self::Vrio(path, _) => format!("vrio {path}"),
            Self::Peer(peer) => peer.name.clone(),
            Self::Socket(name, _) => name.clone(),
        }
    }

    fn is_ours(&self) -> bool {
        matches!(self, Self::Vrio(..))
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
    contestants: Vec<Contestant>,
}

impl Contest {
    /// Whether there is anything to compare.
    fn has_both(&self) -> bool {
        let ours = self.contestants.iter().filter(|it| it.is_ours()).count();
        ours > 0 && ours < self.contestants.len()
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
    let cleanup = Cleanup::default();
    cleanup.on_signals()?;
    let progress = Progress::new();
    let compared = compare(options, &cleanup, &progress);
    progress.end();
    if compared.is_err() {
        cleanup.yield_to_interruption();
    }
    cleanup.remove();
    compared
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
    contests.retain(Contest::has_both);
    let cases: Vec<_> =
        Case::all().into_iter().filter(|case| wanted(&options.case, &case.name())).collect();
    ensure!(
        !contests.is_empty() && !cases.is_empty(),
        "nothing to compare: no peer is installed for that (missing: {}), or --contest and --case \
         leave nothing",
        peers.missing.join("; ")
    );
    for missing in &peers.missing {
        progress.done(format!("not measured: {missing}"));
    }
    estimate(options, &contests, cases.len(), progress);
    let (mut outcomes, mut missing) = (Vec::new(), peers.missing);
    for contest in contests {
        let mut runner = Runner { options, contest, cleanup, progress };
        outcomes.push(runner.run(&cases, &mut missing));
    }
    ensure!(outcomes.iter().any(|it| !it.rows.is_empty()), "{}", missing.join("; "));
    Ok(Comparison {
        version: COMPARISON_VERSION,
        asked: options.clone(),
        contests: outcomes,
        missing,
        machine: Machine::look(),
    })
}

/// Says how long it will take.
fn estimate(options: &Options, contests: &[Contest], cases: usize, progress: &Progress) {
    let contestants = contests.iter().flat_map(|contest| &contest.contestants);
    let round: Duration = contestants.clone().map(|it| it.takes(options.seconds)).sum();
    let times = cases as u32 * u32::from(options.rounds);
    let minutes = (round * times).as_secs().div_ceil(60);
    let turns = contestants.count() as u32 * times;
    progress.done(format!("{turns} turns, about {minutes} min"));
}

/// What can be compared with what is installed.
fn contests(options: &Options, peers: &Peers) -> Vec<Contest> {
    let file_in =
        |folder: &std::path::Path| folder.join(format!("vrio-compare-{}.img", std::process::id()));
    let contest = |name: &str, volume: Volume, ours: &[(Path, LinkKind)], theirs: Vec<Peer>| {
        let ours = ours.iter().cloned().map(|(path, link)| Contestant::Vrio(path, link));
        let contestants = ours.chain(theirs.into_iter().map(Contestant::Peer)).collect();
        Contest { name: name.to_owned(), volume, contestants }
    };
    let local = [(Path::Local, LinkKind::Udp)];
    let (cached, direct) = (file_in(&options.folder), file_in(&options.disk_folder));
    let mut null = contest("local, null volume", Volume::Null, &local, peers.null());
    let sockets = options.sockets.iter().cloned();
    null.contestants.extend(sockets.map(|(name, socket)| Contestant::Socket(name, socket)));
    vec![
        null,
        contest("local, memory", Volume::Memory, &local, peers.memory()),
        contest(
            &format!("local, file in {}", options.folder.display()),
            Volume::File(cached.clone()),
            &local,
            peers.file(&cached, false),
        ),
        contest(
            &format!("local, file in {}, O_DIRECT", options.disk_folder.display()),
            Volume::DirectFile(direct.clone()),
            &local,
            peers.file(&direct, true),
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

/// One contest's turns.
struct Runner<'a> {
    options: &'a Options,
    contest: Contest,
    cleanup: &'a Cleanup,
    progress: &'a Progress,
}

impl Runner<'_> {
    /// All cases. A contestant that fails takes part no more, and is named.
    fn run(&mut self, cases: &[Case], missing: &mut Vec<String>) -> Outcome {
        let mut rows = Vec::new();
        for case in cases {
            while self.contest.has_both() {
                match self.rounds(case) {
                    Ok(rounds) => {
                        let contestants = &self.contest.contestants;
                        rows.extend(table::rows(&case.name(), contestants, &rounds));
                        break;
                    }
                    Err((at, error)) => {
                        self.cleanup.yield_to_interruption();
                        let failed = self.contest.contestants.remove(at).name();
                        let (contest, case) = (&self.contest.name, case.name());
                        missing.push(format!("{failed} ({contest}), from {case} on: {error:#}"));
                        self.progress.done(missing[missing.len() - 1].clone());
                    }
                }
            }
        }
        let contest = self.contest.name.clone();
        for row in &mut rows {
            row.goals = goals::verdicts(&contest, row);
        }
        self.progress.done(format!("{contest}: {} rows", rows.len()));
        Outcome { contest, rows }
    }

    /// By round, then by contestant; and whether the cores moved in all of them. If not, only
    /// rounds of one level are left.
    fn rounds(&self, case: &Case) -> Result<Rounds, (usize, anyhow::Error)> {
        let mut rounds = Vec::new();
        for round in 1..=self.options.rounds {
            let turn = |(at, contestant): (usize, &Contestant)| {
                self.progress.doing(format!(
                    "{}, {}: round {round} of {}, {}",
                    self.contest.name,
                    case.name(),
                    self.options.rounds,
                    contestant.name()
                ));
                self.turn(case, contestant).map_err(|error| (at, error))
            };
            let contestants = self.contest.contestants.iter().enumerate();
            rounds.push(contestants.map(turn).collect::<Result<Vec<_>, _>>()?);
        }
        let (level, moved): (Vec<_>, Vec<_>) =
            rounds.into_iter().partition(|round: &Vec<Sample>| is_level(round));
        Ok(if level.is_empty() {
            Rounds { samples: moved, has_moved: true }
        } else {
            Rounds { samples: of_one_level(level), has_moved: false }
        })
    }

    fn turn(&self, case: &Case, contestant: &Contestant) -> Result<Sample> {
        let Options { program, seconds, idle, encrypt, .. } = self.options;
        let mut asked = block::Options {
            volume: self.contest.volume.clone(),
            op: case.op,
            size_bytes: case.size_bytes,
            depth: case.depth,
            encrypt: *encrypt,
            idle: *idle,
            seconds: *seconds,
            ..block::Options::new(program.clone())
        };
        match contestant {
            Contestant::Vrio(path, link) => {
                (asked.path, asked.link) = (path.clone(), *link);
                // A peer's sessions run on the loopback device, which has no AF_XDP.
                asked.loopback = *link == LinkKind::Udp;
                if asked.idle == Idle::Spin && !block::has_seats(&asked) {
                    // Spinning threads that share cores only keep them from each other.
                    asked.idle = Idle::Adaptive;
                }
                self.drive(&asked)
            }
            Contestant::Socket(_, socket) => {
                asked.path = Path::Socket(socket.clone());
                self.drive(&asked)
            }
            Contestant::Peer(peer) => {
                let running = Running::start(peer, self.cleanup)?;
                let by_tool = client::Turn {
                    case,
                    seconds: *seconds,
                    pids: running.pids(),
                    folder: &running.folder,
                    cleanup: self.cleanup,
                };
                let measured = match &peer.client {
                    Client::Driver => {
                        asked.path = Path::Socket(running.socket());
                        asked.pids = running.pids();
                        self.drive(&asked)
                    }
                    Client::Fio(program, words) => by_tool.fio(program, words),
                    Client::NvmePerf { program, target } => by_tool.nvme_perf(program, target),
                };
                measured.map_err(|error| running.explain(error))
            }
        }
    }

    /// By our driver.
    fn drive(&self, asked: &block::Options) -> Result<Sample> {
        let measured = block::measure(asked, self.cleanup, &Progress::silent());
        measured.map(Sample::from)
    }
}

/// By round, then by contestant.
struct Rounds {
    samples: Vec<Vec<Sample>>,
    /// Cores moved in every one of them.
    has_moved: bool,
}

/// Whether all turns of a round met the same placement of cores.
fn is_level(round: &[Sample]) -> bool {
    let trips = round.iter().flat_map(|sample| sample.trips_ns).flatten();
    let (least, most) =
        trips.fold((u64::MAX, 0), |(least, most), ns| (least.min(ns), most.max(ns)));
    most == 0 || most as f64 <= LEVEL * least as f64
}

/// The longest round trip of a round.
fn trip_ns(round: &[Sample]) -> u64 {
    round.iter().flat_map(|sample| sample.trips_ns).flatten().max().unwrap_or(0)
}

/// The rounds of the level that the middle one has: levels lie further apart.
fn of_one_level(mut rounds: Vec<Vec<Sample>>) -> Vec<Vec<Sample>> {
    let mut trips: Vec<_> = rounds.iter().map(|round| trip_ns(round)).collect();
    trips.sort_unstable();
    let middle = trips[trips.len() / 2] as f64;
    rounds.retain(|round| {
        let trip = trip_ns(round) as f64;
        trip <= LEVEL * middle && middle <= LEVEL * trip
    });
    rounds
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
