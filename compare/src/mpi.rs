//! `vrio bench mpi`: the messages of MPI, by our provider and by every other way that an MPI has.
//!
//! For each MPI that is found, a program of ours (`compare/mpi/messages.c`) is built with that
//! MPI's own compiler. The program measures in the manner of the OSU micro-benchmarks. Each way is
//! a run of the program, in turn with the others: A B A B. With `--osu`, the user's own OSU
//! programs are run instead. Ranks are on this host, or on two network namespaces of it with a node
//! each.

mod goals;
pub mod job;
pub mod kinds;
mod messages;
mod options;
mod osu;
mod site;
mod ways;

use anyhow::{Context, Result, anyhow, ensure};

use super::Contests;
use super::comparison::Comparison;
use super::contest::{Case, Contest, TurnSample};
use testbed::cleanup::{Cleanup, tidily};
use testbed::machine::{cache_line_round_trip_ns, cores};
use testbed::progress::Progress;

use job::MpiJob;
use kinds::Mpi;
use messages::Messages;
use osu::Osu;
use site::Site;
use ways::MpiTransport;

pub use options::{HostSessions, Hosts, JoinedNode, MpiOptions, RANKS_MAX};

/// The program, which each MPI's compiler builds.
pub const PROGRAM: &str = include_str!("../mpi/messages.c");

/// An MPI by one of its ways.
#[derive(Clone, Debug)]
struct MpiContestant {
    mpi: Mpi,
    way: MpiTransport,
}

impl super::Contestant for MpiContestant {
    type Case = Messages;

    fn name(&self) -> String {
        self.way.name(&self.mpi)
    }

    fn is_ours(&self) -> bool {
        self.way == MpiTransport::Vrio
    }

    fn takes_part(&self, _: &Messages) -> bool {
        true
    }

    fn is_slow(&self) -> bool {
        false
    }
}

/// Compares all MPIs and ways. The progress goes to standard error.
///
/// # Errors
/// When no MPI or no way can be measured.
pub fn run(options: &MpiOptions) -> Result<Comparison> {
    let progress = Progress::new();
    tidily(&progress, |cleanup| compare(options, cleanup, &progress))
}

fn compare(options: &MpiOptions, cleanup: &Cleanup, progress: &Progress) -> Result<Comparison> {
    let plan = &options.plan;
    let mut missing = Vec::new();
    // The site comes first, since it may be impossible to have two hosts.
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
    let mut field = Contests { subject, plan, contests, cases, missing, cleanup, progress };
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
        Ok(samples?.into_iter().map(|sample| TurnSample { trips_ns, ..sample }).collect())
    });
    field.result(options, outcomes, Vec::new())
}

fn contest(hosts: Hosts, mpi: &Mpi) -> String {
    format!("{}, {}", hosts.words(), mpi.name())
}

/// An MPI by all its ways.
fn ways_of(mpi: &Mpi, options: &MpiOptions, missing: &mut Vec<String>) -> Contest<MpiContestant> {
    let (hosts, wanted) = (options.hosts, options.way.as_deref());
    let of = |&way| MpiContestant { mpi: mpi.clone(), way };
    let mut contestants: Vec<_> = MpiTransport::all(mpi.family, hosts).iter().map(of).collect();
    contestants.retain(|it| {
        use super::contest::Contestant;
        it.is_ours() || wanted.is_none_or(|wanted| it.name().contains(wanted))
    });
    if hosts == Hosts::One {
        missing.extend(ways::impossible(mpi));
    }
    let setup = [
        ("hosts", hosts.words().to_owned()),
        ("mpi", mpi.family.name().to_owned()),
        ("version", mpi.version.clone()),
    ];
    Contest { name: contest(hosts, mpi), setup: setup.into(), contestants }
}

fn job_of<'a>(contestant: &'a MpiContestant, cases: &[Messages]) -> MpiJob<'a> {
    MpiJob { mpi: &contestant.mpi, way: contestant.way, ranks: cases[0].ranks }
}

/// Runs our program.
fn measure(
    cases: &[Messages],
    site: &Site<'_>,
    job: &MpiJob<'_>,
    options: &MpiOptions,
) -> Result<Vec<TurnSample>> {
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

/// Reads a line of our program.
fn sample(case: &Messages, line: &str) -> Result<TurnSample> {
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
    let rate = messages * each / seconds;
    let sample = TurnSample::without_processor_time(rate, Some(p50_us), Some(p99_us));
    Ok(TurnSample { cpu_us: Some(cpu * 1e6 / messages), ..sample })
}

#[cfg(test)]
mod tests {
    use super::messages::MpiOp;
    use super::*;

    #[test]
    fn a_line_is_read() {
        let of = |op, bytes| Messages { op, bytes, ranks: 2 };
        let bandwidth = sample(&of(MpiOp::Bandwidth, 1 << 10), "bandwidth 1024 2000 0.5 3.5 9 1");
        let bandwidth = bandwidth.unwrap();
        assert_eq!((bandwidth.rate, bandwidth.p99_us), (4.096, Some(9.0)));
        assert_eq!(bandwidth.cpu_us, Some(500.0));
        let latency = sample(&of(MpiOp::Latency, 8), "latency 8 2000 0.5 0.25 0.5 1").unwrap();
        assert_eq!((latency.rate, latency.p50_us), (4000.0, Some(0.25)));
        let wrongs =
            ["", "latency 8", "latency 9 1 1 1 1 1", "both 8 1 1 1 1 1", "latency 8 0 1 1 1 1"];
        for wrong in wrongs {
            let said = sample(&of(MpiOp::Latency, 8), wrong).unwrap_err().to_string();
            assert!(said.contains("latency 8 B"), "{said}");
        }
    }
}
