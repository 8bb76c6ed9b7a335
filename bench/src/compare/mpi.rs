//! `vrio bench mpi`: the messages of MPI, by our provider and by every other way that an MPI has.
//!
//! For each MPI that is found, a program of ours (`bench/mpi/messages.c`) is built with that MPI's
//! own compiler; it measures in the manner of the OSU micro-benchmarks. Each way is a run of it, in
//! turn with the others: A B A B. With `--osu`, the user's own OSU programs are run instead. Ranks
//! are on this host, or on two network namespaces of it with a node each.

mod goals;
pub mod job;
pub mod kinds;
mod osu;
mod site;
mod ways;

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, ensure};
use serde::Serialize;
use sidecore::Idle;

use super::{Case, Comparison, Contest, Field, Plan, Sample};
use crate::block::LinkKind;
use testbed::cleanup::{Cleanup, tidily};
use testbed::machine::{cache_line_round_trip_ns, cores};
use testbed::pair::Meeting;
use testbed::progress::Progress;

use job::Job;
use kinds::Mpi;
use osu::Osu;
use site::Site;
use ways::Way;

/// Ranks, at most, of what everybody takes part in: messages from all to all are held in memory.
pub const RANKS_MAX: u16 = 64;

/// The program, which each MPI's compiler builds.
pub const PROGRAM: &str = include_str!("../../mpi/messages.c");

/// What contests are called, which goals refer to.
const ONE_HOST: &str = "one host";
const TWO_HOSTS: &str = "two hosts";

/// Over how many hosts ranks are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Hosts {
    /// All are on this one.
    One,
    /// Half of them are on each of two network namespaces, which a virtual cable joins.
    Two(Together),
}

impl Hosts {
    /// How contests begin.
    fn words(self) -> &'static str {
        match self {
            Self::One => ONE_HOST,
            Self::Two(_) => TWO_HOSTS,
        }
    }
}

/// How the nodes of two hosts meet, and what their sidecores do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Together {
    /// How their sessions travel; not by memory that two hosts would share.
    pub link: LinkKind,
    /// Whether those are sealed.
    pub encrypt: bool,
    /// The longest packet of the cable; the system's usual where nobody says.
    pub mtu: Option<u32>,
    /// What sidecores do without work.
    #[serde(serialize_with = "crate::block::as_text")]
    pub idle: Idle,
}

impl Together {
    /// How they meet.
    fn meeting(self) -> Meeting {
        let Self { link, encrypt, mtu, .. } = self;
        Meeting { link, encrypt, loopback: false, mtu }
    }
}

/// A node that runs already, and the domain of it that processes are to join.
#[derive(Clone, Debug, Serialize)]
pub struct Running {
    /// The node's control socket.
    pub control: PathBuf,
    /// The domain's name; not needed where the node has one only.
    pub domain: Option<String>,
}

/// What is asked for.
#[derive(Clone, Debug, Serialize)]
pub struct Options {
    /// The `vrio` program.
    #[serde(skip)]
    pub program: PathBuf,
    /// How much is measured; its seconds are of each case.
    #[serde(flatten)]
    pub plan: Plan,
    /// Where further MPIs are installed: `bin/mpicc` and `bin/mpirun` are there.
    pub prefixes: Vec<PathBuf>,
    /// Where the user's OSU programs are, if those are to be run.
    pub osu: Option<PathBuf>,
    /// Ranks of what everybody takes part in; as many as there are cores unless said.
    pub ranks: Option<u16>,
    /// Look at every byte of some messages of each kind first.
    pub validate: bool,
    /// Only ways with this in their name, besides ours.
    pub way: Option<String>,
    /// A node that runs already; else one is started. Of one host.
    pub running: Option<Running>,
    /// Where ranks are.
    pub hosts: Hosts,
}

impl Options {
    /// Looks whether it makes sense.
    ///
    /// # Errors
    /// What does not.
    pub fn check(&self) -> Result<()> {
        self.plan.check()?;
        let (seconds, ranks) = (self.plan.seconds, self.ranks());
        ensure!((0.001..=600.0).contains(&seconds), "--seconds {seconds}: from 0.001 to 600");
        ensure!(
            (2..=RANKS_MAX).contains(&ranks) && ranks.is_multiple_of(2),
            "--ranks {ranks}: an even number from 2 to {RANKS_MAX}, for some send to the others"
        );
        if let Hosts::Two(together) = self.hosts {
            ensure!(
                self.running.is_none(),
                "--control names a node of one host; with --hosts 2 both are started here: drop one"
            );
            let is_shared = together.link == LinkKind::Shm;
            ensure!(!is_shared, "--link shm: two hosts share no memory; udp, or xdp");
            together.meeting().check()?;
            check_idle(together.idle, ranks, cores().len())?;
        }
        Ok(())
    }

    /// Ranks of what everybody takes part in.
    fn ranks(&self) -> u16 {
        let cores = u16::try_from(cores().len()).unwrap_or(RANKS_MAX);
        self.ranks.unwrap_or_else(|| (cores & !1).clamp(2, RANKS_MAX))
    }
}

/// Refuses sidecores that spin where ranks need their cores: they do so while others are measured
/// as well, whose ranks would get half of a core and nobody would see why.
fn check_idle(idle: Idle, ranks: u16, cores: usize) -> Result<()> {
    // Each host has half of the cores, and its sidecore one of those.
    let seats = 2 * (cores / 2).saturating_sub(1);
    let fewer = match seats {
        0 => "four cores or more".to_owned(),
        seats => format!("at most --ranks {seats}"),
    };
    ensure!(
        idle != Idle::Spin || usize::from(ranks) <= seats,
        "--idle spin: with {ranks} ranks on {cores} cores the two hosts' sidecores take cores that \
         ranks need, also while others are measured: --idle adaptive, or {fewer}"
    );
    Ok(())
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    /// A message there and one back: the time of one of them.
    Latency,
    /// Windows of messages one way.
    Bandwidth,
    /// Windows of messages both ways at once.
    Both,
    /// The same as bandwidth, of short ones between all pairs of ranks.
    Rate,
    AllToAll,
    AllReduce,
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Bandwidth => "bandwidth",
            Self::Both => "both ways",
            Self::Rate => "message rate",
            Self::AllToAll => "all-to-all",
            Self::AllReduce => "all-reduce",
        }
    }

    /// What the program calls it.
    fn word(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Bandwidth | Self::Rate => "bandwidth",
            Self::Both => "both",
            Self::AllToAll => "alltoall",
            Self::AllReduce => "allreduce",
        }
    }

    /// Whether its rate is megabytes per second, and not messages or operations.
    fn is_in_bytes(self) -> bool {
        matches!(self, Self::Bandwidth | Self::Both)
    }
}

/// One kind of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Messages {
    op: Op,
    bytes: u32,
    /// Who takes part.
    ranks: u16,
}

impl Messages {
    /// Between two, then between all.
    fn all(ranks: u16) -> Vec<Self> {
        let of = |op, sizes: &'static [u32], ranks| {
            sizes.iter().map(move |&bytes| Self { op, bytes, ranks })
        };
        of(Op::Latency, &[8, 1 << 10, 8 << 10, 64 << 10, 1 << 20], 2)
            .chain(of(Op::Bandwidth, &[8 << 10, 64 << 10, 1 << 20], 2))
            .chain(of(Op::Both, &[64 << 10, 1 << 20], 2))
            .chain(of(Op::Rate, &[8], ranks))
            .chain(of(Op::AllToAll, &[8, 1 << 10, 64 << 10], ranks))
            .chain(of(Op::AllReduce, &[8, 1 << 10, 64 << 10], ranks))
            .collect()
    }

    /// What the program is asked for.
    fn word(&self) -> String {
        format!("{}:{}", self.op.word(), self.bytes)
    }
}

impl Case for Messages {
    fn name(&self) -> String {
        let size = match self.bytes {
            bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
            bytes if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
            bytes => format!("{bytes} B"),
        };
        format!("{} {size}", self.op.name())
    }

    fn shares_turn(&self, other: &Self) -> bool {
        self.ranks == other.ranks
    }
}

/// An MPI by one of its ways.
#[derive(Clone, Debug)]
struct Contestant {
    mpi: Mpi,
    way: Way,
}

impl super::Contestant for Contestant {
    type Case = Messages;

    fn name(&self) -> String {
        self.way.name(&self.mpi)
    }

    fn is_ours(&self) -> bool {
        self.way == Way::Vrio
    }

    fn takes_part(&self, _: &Messages) -> bool {
        true
    }

    fn is_slow(&self) -> bool {
        false
    }
}

/// Runs it. Says on standard error what it does.
///
/// # Errors
/// When nobody can be measured.
pub fn run(options: &Options) -> Result<Comparison> {
    let progress = Progress::new();
    tidily(&progress, |cleanup| compare(options, cleanup, &progress))
}

fn compare(options: &Options, cleanup: &Cleanup, progress: &Progress) -> Result<Comparison> {
    let plan = &options.plan;
    let mut missing = Vec::new();
    // Where there can be no two hosts, that comes first.
    let site = Site::new(options, cleanup, progress)?;
    let osu = options.osu.as_deref().map(Osu::find).transpose()?;
    let mut mpis = kinds::find(&options.prefixes, &mut missing)?;
    if let Some(osu) = &osu {
        mpis.retain(|mpi| osu.is_of(mpi.family));
        ensure!(!mpis.is_empty(), "{}", osu.without_mpi());
    }
    let contests = mpis.into_iter().filter(|mpi| plan.wants_contest(&contest(options.hosts, mpi)));
    let contests = contests.filter_map(|mpi| {
        let built = if osu.is_some() { Ok(()) } else { site.build(&mpi, PROGRAM) };
        match built {
            Ok(()) => Some(ways_of(&mpi, options, &mut missing)),
            Err(why) => {
                missing.push(format!("{}: {why:#}", mpi.name()));
                None
            }
        }
    });
    let contests = contests.collect();
    let subject = goals::of_cores(cores().len());
    let cases = Messages::all(options.ranks());
    let mut field = Field { subject, plan, contests, cases, missing, cleanup, progress };
    field.narrow();
    field.check(false)?;
    field.announce(0);
    progress.done(site.seating(options.ranks()));
    let outcomes = field.run_shared(&|cases, contestant| {
        let (trip_ns, job) = (cache_line_round_trip_ns(), job_of(contestant, cases));
        let samples = site.by_its_way(&job, || match &osu {
            Some(osu) => osu.measure(cases, &site, &job, options.validate),
            None => measure(cases, &site, &job, options),
        });
        let trips_ns = [trip_ns, cache_line_round_trip_ns()];
        Ok(samples?.into_iter().map(|sample| Sample { trips_ns, ..sample }).collect())
    });
    field.result(options, outcomes, Vec::new())
}

fn contest(hosts: Hosts, mpi: &Mpi) -> String {
    format!("{}, {}", hosts.words(), mpi.name())
}

/// An MPI by all its ways.
fn ways_of(mpi: &Mpi, options: &Options, missing: &mut Vec<String>) -> Contest<Contestant> {
    let (hosts, wanted) = (options.hosts, options.way.as_deref());
    let of = |&way| Contestant { mpi: mpi.clone(), way };
    let mut contestants: Vec<_> = Way::all(mpi.family, hosts).iter().map(of).collect();
    contestants.retain(|it| {
        use super::Contestant;
        it.is_ours() || wanted.is_none_or(|wanted| it.name().contains(wanted))
    });
    if hosts == Hosts::One {
        missing.extend(ways::impossible(mpi));
    }
    Contest { name: contest(hosts, mpi), contestants }
}

fn job_of<'a>(contestant: &'a Contestant, cases: &[Messages]) -> Job<'a> {
    Job { mpi: &contestant.mpi, way: contestant.way, ranks: cases[0].ranks }
}

/// By our program.
fn measure(
    cases: &[Messages],
    site: &Site<'_>,
    job: &Job<'_>,
    options: &Options,
) -> Result<Vec<Sample>> {
    let seconds = options.plan.seconds;
    let checked = u8::from(options.validate).to_string();
    let mut words = vec![seconds.to_string(), checked, site.carriers(job)];
    words.extend(cases.iter().map(Messages::word));
    let lines = site.run(job, &site.program(job.mpi), &words, seconds * cases.len() as f64)?;
    ensure!(
        lines.first().is_some_and(|line| *line == format!("begin {}", job.ranks))
            && lines.len() == cases.len() + 1,
        "the program did not say what it should: {}",
        lines.join("; ")
    );
    cases.iter().zip(&lines[1..]).map(|(case, line)| sample(case, line)).collect()
}

/// Of a line of our program.
fn sample(case: &Messages, line: &str) -> Result<Sample> {
    let said = || format!("a line of {}: {line}", case.name());
    let words: Vec<_> = line.split(' ').collect();
    let [op, bytes, numbers @ ..] = &words[..] else { return Err(anyhow!(said())) };
    ensure!(*op == case.op.word() && *bytes == case.bytes.to_string(), said());
    let numbers: Vec<f64> =
        numbers.iter().map(|word| word.parse()).collect::<Result<_, _>>().with_context(said)?;
    let [messages, seconds, p50_us, p99_us, cpu] = numbers[..] else {
        return Err(anyhow!(said()));
    };
    ensure!(messages > 0.0 && seconds > 0.0, said());
    let each = if case.op.is_in_bytes() { f64::from(case.bytes) / 1e6 } else { 1.0 };
    let sample = figures(messages * each / seconds, Some(p50_us), Some(p99_us));
    Ok(Sample { cpu_us: Some(cpu * 1e6 / messages), ..sample })
}

/// A sample of somebody whose processor time nobody counts.
fn figures(rate: f64, p50_us: Option<f64>, p99_us: Option<f64>) -> Sample {
    let (cpu_us, core_share, waited_share) = (None, None, None);
    Sample { rate, p50_us, p99_us, cpu_us, core_share, waited_share, trips_ns: [None; 2] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_names_of_their_own_and_two_turns() {
        let all = Messages::all(4);
        let mut names: Vec<_> = all.iter().map(Messages::name).collect();
        assert_eq!(names[0], "latency 8 B");
        assert!(names.contains(&"both ways 1 MiB".to_owned()));
        names.dedup();
        assert_eq!(names.len(), all.len());
        assert_eq!(all.chunk_by(Case::shares_turn).count(), 2);
        assert_eq!(Messages::all(2).chunk_by(Case::shares_turn).count(), 1);
    }

    #[test]
    fn sidecores_spin_where_no_rank_needs_their_cores() {
        for (ranks, cores) in [(2, 4), (2, 5), (4, 6), (62, 64)] {
            check_idle(Idle::Spin, ranks, cores).unwrap();
        }
        for (ranks, cores, way_out) in [
            (2, 1, "four cores"),
            (2, 3, "four cores"),
            (4, 4, "--ranks 2"),
            (64, 64, "--ranks 62"),
        ] {
            let refused = check_idle(Idle::Spin, ranks, cores).unwrap_err().to_string();
            assert!(refused.contains("--idle adaptive, or"), "{refused}");
            assert!(refused.contains(way_out), "{refused}");
            check_idle(Idle::Adaptive, ranks, cores).unwrap();
            check_idle(Idle::Sleep, ranks, cores).unwrap();
        }
    }

    #[test]
    fn a_line_is_read() {
        let of = |op, bytes| Messages { op, bytes, ranks: 2 };
        let bandwidth = sample(&of(Op::Bandwidth, 1 << 10), "bandwidth 1024 2000 0.5 3.5 9 1");
        let bandwidth = bandwidth.unwrap();
        assert_eq!((bandwidth.rate, bandwidth.p99_us), (4.096, Some(9.0)));
        assert_eq!(bandwidth.cpu_us, Some(500.0));
        let latency = sample(&of(Op::Latency, 8), "latency 8 2000 0.5 0.25 0.5 1").unwrap();
        assert_eq!((latency.rate, latency.p50_us), (4000.0, Some(0.25)));
        let wrongs =
            ["", "latency 8", "latency 9 1 1 1 1 1", "both 8 1 1 1 1 1", "latency 8 0 1 1 1 1"];
        for wrong in wrongs {
            let said = sample(&of(Op::Latency, 8), wrong).unwrap_err().to_string();
            assert!(said.contains("latency 8 B"), "{said}");
        }
    }
}
