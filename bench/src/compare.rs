//! `vrio bench compare block`: ourselves and what a user would pick instead, in turn.
//!
//! For each case every contestant is started, measured and ended, then the next one, several rounds
//! of it: A B A B. So whatever else the machine does meets all alike, and nobody polls while it is
//! another one's turn. All are driven by the same driver; ratios are taken within a round.

mod peers;
mod table;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use sidecore::Idle;

use crate::block::{self, LinkKind, Path, Report, Volume};
use crate::cleanup::Cleanup;
use crate::load::Pattern;
use crate::machine::Machine;
use crate::progress::Progress;

use peers::{Peer, Peers};

pub use table::{Row, Spread};

/// The version of the JSON form.
const COMPARISON_VERSION: u32 = 1;

/// A round counts if the cache line's round trips of its turns differ by no more.
const LEVEL: f64 = 1.5;

/// Rounds, at most.
pub const ROUNDS_MAX: u16 = 99;

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
    /// A folder for files; memory (tmpfs) if it is not named.
    pub folder: PathBuf,
    /// Further vhost-user-blk servers, which run already: names and sockets.
    pub sockets: Vec<(String, PathBuf)>,
}

impl Options {
    /// Looks whether it makes sense.
    ///
    /// # Errors
    /// What does not.
    pub fn check(&self) -> Result<()> {
        let Self { rounds, seconds, folder, sockets, .. } = self;
        ensure!((1..=ROUNDS_MAX).contains(rounds), "--rounds {rounds}: from 1 to {ROUNDS_MAX}");
        let one = block::Options { seconds: *seconds, ..block::Options::new(self.program.clone()) };
        one.check()?;
        ensure!(
            folder.is_absolute() && folder.is_dir(),
            "--folder {}: a folder that is there, by its absolute path",
            folder.display()
        );
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

/// Who is measured.
#[derive(Clone, Debug)]
enum Contestant {
    /// Ourselves, by one of our ways.
    Vrio(Path),
    /// A server that we start.
    Peer(Peer),
    /// A server that runs already.
    Socket(String, PathBuf),
}

impl Contestant {
    fn name(&self) -> String {
        match self {
            Self::Vrio(Path::Direct) => "vrio direct, without a VMhost".to_owned(),
            Self::Vrio(path) => format!("vrio {path}"),
            Self::Peer(peer) => peer.name.to_owned(),
            Self::Socket(name, _) => name.clone(),
        }
    }
}

/// Contestants for the same thing; the first ones are ours.
#[derive(Clone, Debug)]
struct Contest {
    name: String,
    volume: Volume,
    contestants: Vec<Contestant>,
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
    let peers = Peers::find();
    let file = options.folder.join(format!("vrio-compare-{}.img", std::process::id()));
    let mut contests = contests(options, &peers, &file);
    let wanted = |filter: &Option<String>, name: &str| {
        filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()))
    };
    contests.retain(|contest| wanted(&options.contest, &contest.name));
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
    let (mut outcomes, mut missing) = (Vec::new(), peers.missing);
    for contest in &contests {
        let (mut rows, mut failed) = (Vec::new(), None);
        for case in &cases {
            match (Turns { options, contest, case, cleanup, progress }).all() {
                Ok(rounds) => {
                    let names: Vec<_> = contest.contestants.iter().map(Contestant::name).collect();
                    rows.extend(table::rows(&case.name(), &names, &rounds));
                }
                // What was measured so far is worth having.
                Err(error) => {
                    failed = Some(format!("{}, from {} on: {error:#}", contest.name, case.name()));
                    break;
                }
            }
        }
        let said = failed.clone().unwrap_or(format!("{}: {} cases", contest.name, cases.len()));
        progress.done(said);
        missing.extend(failed);
        outcomes.push(Outcome { contest: contest.name.clone(), rows });
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

/// What can be compared with what is installed.
fn contests(options: &Options, peers: &Peers, file: &std::path::Path) -> Vec<Contest> {
    let mut all = Vec::new();
    let mut add = |name: &str, volume: Volume, ours: &[Path], theirs: Vec<Contestant>| {
        if !theirs.is_empty() {
            let ours = ours.iter().cloned().map(Contestant::Vrio);
            let contestants = ours.chain(theirs).collect();
            all.push(Contest { name: name.to_owned(), volume, contestants });
        }
    };
    let local = [Path::Local];
    let null = peers.null().map(Contestant::Peer).into_iter();
    let sockets = options.sockets.iter().cloned();
    let sockets = sockets.map(|(name, socket)| Contestant::Socket(name, socket));
    add("local, null volume", Volume::Null, &local, null.chain(sockets).collect());
    let theirs = peers.file(file).map(Contestant::Peer).into_iter().collect();
    add("local, file", Volume::File(file.to_owned()), &local, theirs);
    let theirs = peers.remote().map(Contestant::Peer).into_iter().collect();
    add("remote, memory", Volume::Memory, &[Path::Remote, Path::Direct], theirs);
    all
}

/// The rounds of one case.
struct Turns<'a> {
    options: &'a Options,
    contest: &'a Contest,
    case: &'a Case,
    cleanup: &'a Cleanup,
    progress: &'a Progress,
}

impl Turns<'_> {
    /// By round, then by contestant; and whether the cores moved in all of them. If not, only
    /// rounds of one level are left.
    fn all(&self) -> Result<(Vec<Vec<Report>>, bool)> {
        let mut rounds = Vec::new();
        for round in 1..=self.options.rounds {
            let turn = |contestant: &Contestant| {
                self.progress.doing(format!(
                    "{}, {}: round {round} of {}, {}",
                    self.contest.name,
                    self.case.name(),
                    self.options.rounds,
                    contestant.name()
                ));
                let measured = self.turn(contestant);
                measured.with_context(|| format!("{} ({})", contestant.name(), self.case.name()))
            };
            rounds.push(self.contest.contestants.iter().map(turn).collect::<Result<Vec<_>>>()?);
        }
        let (level, moved): (Vec<_>, Vec<_>) =
            rounds.into_iter().partition(|round: &Vec<Report>| is_level(round));
        Ok(if level.is_empty() { (moved, true) } else { (of_one_level(level), false) })
    }

    fn turn(&self, contestant: &Contestant) -> Result<Report> {
        let Options { program, seconds, idle, encrypt, .. } = self.options;
        let mut asked = block::Options {
            volume: self.contest.volume.clone(),
            op: self.case.op,
            size_bytes: self.case.size_bytes,
            depth: self.case.depth,
            link: LinkKind::Udp,
            // A peer's sessions run on the loopback device.
            loopback: true,
            encrypt: *encrypt,
            idle: *idle,
            seconds: *seconds,
            ..block::Options::new(program.clone())
        };
        let measure =
            |asked: &block::Options| block::measure(asked, self.cleanup, &Progress::silent());
        match contestant {
            Contestant::Vrio(path) => {
                asked.path = path.clone();
                if asked.idle == Idle::Spin && !block::has_seats(&asked) {
                    // Spinning threads that share cores only keep them from each other.
                    asked.idle = Idle::Adaptive;
                }
                measure(&asked)
            }
            Contestant::Socket(_, socket) => {
                asked.path = Path::Socket(socket.clone());
                asked.volume = Volume::Null;
                measure(&asked)
            }
            Contestant::Peer(peer) => {
                let running = peer.start(self.cleanup)?;
                asked.path = Path::Socket(running.socket());
                asked.pids = running.pids();
                measure(&asked).map_err(|error| running.explain(error))
            }
        }
    }
}

/// Whether all turns of a round met the same placement of cores.
fn is_level(round: &[Report]) -> bool {
    let trips = round.iter().flat_map(|report| report.cache_line_rtts_ns).flatten();
    let (least, most) =
        trips.fold((u64::MAX, 0), |(least, most), ns| (least.min(ns), most.max(ns)));
    most == 0 || most as f64 <= LEVEL * least as f64
}

/// The longest round trip of a round.
fn trip_ns(round: &[Report]) -> u64 {
    round.iter().filter_map(|report| report.cache_line_rtt_ns).max().unwrap_or(0)
}

/// The rounds of the level that the middle one has: levels lie further apart.
fn of_one_level(mut rounds: Vec<Vec<Report>>) -> Vec<Vec<Report>> {
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
