//! One contest's turns: every contestant in each round, and what of it counts.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path as FilePath, PathBuf};

use anyhow::Result;

use super::client::{self, Client};
use super::peers::DISK_BYTES;
use super::running::Running;
use super::table::Pair;
use super::{Case, Contest, Contestant, Options, Outcome, Sample};
use crate::block::{self, LinkKind, Path};
use crate::cleanup::Cleanup;
use crate::measure::Reuse;
use crate::progress::Progress;
use crate::verdict;
use sidecore::Idle;

/// The longest packets over AF_XDP: jumbo frames, as most cards have them.
const XDP_MTU_BYTES: u32 = 9000;

/// One contest's turns.
pub(super) struct Runner<'a> {
    pub(super) options: &'a Options,
    pub(super) contest: Contest,
    pub(super) cleanup: &'a Cleanup,
    pub(super) progress: &'a Progress,
}

/// By round, then by contestant.
type Rounds = Vec<Vec<Sample>>;

impl Runner<'_> {
    /// All cases. A contestant that fails takes part no more, and is named.
    pub(super) fn run(&mut self, cases: &[Case], missing: &mut Vec<String>) -> Outcome {
        let filled = self.fill();
        let outcome = self.all(cases, missing);
        if let Some(file) = filled {
            // Whoever interrupts has it removed as well.
            let _ = fs::remove_file(file);
        }
        outcome
    }

    /// Makes and fills the file that all contestants use, if there is one and there is room: else
    /// each makes its own.
    fn fill(&mut self) -> Option<PathBuf> {
        let file = self.contest.volume.file()?.to_owned();
        self.progress.doing(format!("{}: filling {}", self.contest.name, file.display()));
        self.cleanup.path(file.clone());
        match write_all(&file) {
            Ok(()) => {
                self.contest.filled = true;
                Some(file)
            }
            Err(error) => {
                self.progress.done(format!("{} was not filled: {error}", file.display()));
                let _ = fs::remove_file(file);
                None
            }
        }
    }

    fn all(&mut self, cases: &[Case], missing: &mut Vec<String>) -> Outcome {
        let mut rows = Vec::new();
        for case in cases {
            while self.contest.has_both(case) {
                match self.rounds(case) {
                    Ok((contestants, rounds)) => {
                        let pairs = pairs(&contestants);
                        rows.extend(pairs.iter().map(|&(ours, theirs)| {
                            let name = |at: usize| contestants[at].name();
                            let counted = counted(&rounds, [ours, theirs]);
                            let pair = Pair { ours, theirs, rounds: &rounds, counted: &counted };
                            pair.row(&self.contest.name, case, [name(ours), name(theirs)])
                        }));
                        break;
                    }
                    Err((failed, error)) => {
                        self.cleanup.yield_to_interruption();
                        self.contest.contestants.retain(|it| it.name() != failed);
                        let (contest, case) = (&self.contest.name, case.name());
                        missing.push(format!("{failed} ({contest}), from {case} on: {error:#}"));
                        self.progress.done(missing[missing.len() - 1].clone());
                    }
                }
            }
        }
        let contest = self.contest.name.clone();
        self.progress.done(format!("{contest}: {} rows", rows.len()));
        Outcome { contest, rows }
    }

    /// As many rounds as were asked for, and more where too few of a pair are of one level. If
    /// somebody fails, who.
    fn rounds(&self, case: &Case) -> Result<(Vec<Contestant>, Rounds), (String, anyhow::Error)> {
        let contestants: Vec<_> = self.contest.of(case).cloned().collect();
        let (pairs, mut rounds) = (pairs(&contestants), Rounds::new());
        let fewest = |rounds: &Rounds| {
            pairs.iter().map(|&(ours, theirs)| counted(rounds, [ours, theirs]).len()).min()
        };
        while verdict::wants_more(
            self.options.rounds,
            rounds.len(),
            fewest(&rounds).unwrap_or_default(),
        ) {
            let turn = |contestant: &Contestant| {
                self.progress.doing(format!(
                    "{}, {}: round {} of {}, {}",
                    self.contest.name,
                    case.name(),
                    rounds.len() + 1,
                    self.options.rounds,
                    contestant.name()
                ));
                self.turn(case, contestant).map_err(|error| (contestant.name(), error))
            };
            let round = contestants.iter().map(turn).collect::<Result<Vec<_>, _>>()?;
            rounds.push(round);
        }
        Ok((contestants, rounds))
    }

    fn turn(&self, case: &Case, contestant: &Contestant) -> Result<Sample> {
        let Options { program, seconds, idle, encrypt, reuse, .. } = self.options;
        let mut asked = block::Options {
            volume: self.contest.volume.clone(),
            op: case.op,
            size_bytes: case.size_bytes,
            depth: case.depth,
            encrypt: *encrypt,
            idle: *idle,
            reuse: *reuse,
            seconds: *seconds,
            filled: self.contest.filled,
            ..block::Options::new(program.clone())
        };
        match contestant {
            Contestant::Vrio(path, link) => {
                (asked.path, asked.link) = (path.clone(), *link);
                if *path == Path::Direct {
                    // It has no ring.
                    asked.reuse = Reuse::InOrder;
                }
                // A peer's sessions run on the loopback device, which has no AF_XDP, and whose
                // packets are 64 KiB long.
                asked.loopback = *link == LinkKind::Udp;
                asked.mtu = (*link == LinkKind::Xdp).then_some(XDP_MTU_BYTES);
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
                    filled: self.contest.filled,
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
                    Client::BdevPerf(program) => by_tool.bdevperf(program),
                };
                measured.map_err(|error| running.explain(error))
            }
        }
    }

    /// By our driver.
    fn drive(&self, asked: &block::Options) -> Result<Sample> {
        let report = block::measure(asked, self.cleanup, &Progress::silent())?;
        // Where cores are shared, a share says nothing.
        let core_share = report.core_share.get("driver-0").copied();
        let core_share = core_share.filter(|_| block::has_seats(asked));
        Ok(Sample {
            iops: report.iops,
            p50_us: report.latency_us.p50,
            p99_us: report.latency_us.p99,
            cpu_us_per_request: report.cpu_us_per_request(),
            core_share,
            trips_ns: report.cache_line_rtts_ns,
        })
    }
}

/// Writes a disk's blocks, none of them zero, down to the storage: what was never written costs
/// nothing to read, and what is still to be written back costs whoever comes next.
fn write_all(path: &FilePath) -> io::Result<()> {
    static BLOCK: [u8; 1 << 20] = [0xa5; 1 << 20];
    let mut file = File::create(path)?;
    for _ in 0..DISK_BYTES / BLOCK.len() as u64 {
        file.write_all(&BLOCK)?;
    }
    file.sync_all()
}

/// Every one of ours with every one of theirs.
fn pairs(contestants: &[Contestant]) -> Vec<(usize, usize)> {
    let of = |is_ours: bool| {
        let all = contestants.iter().enumerate();
        all.filter(move |(_, it)| it.is_ours() == is_ours).map(|(at, _)| at)
    };
    of(true).flat_map(|ours| of(false).map(move |theirs| (ours, theirs))).collect()
}

/// The rounds in which both met the same level, which the most of them met.
fn counted(rounds: &[Vec<Sample>], pair: [usize; 2]) -> Vec<usize> {
    let trips = |round: &Vec<Sample>| {
        pair.iter().flat_map(|&at| round[at].trips_ns).flatten().collect::<Vec<_>>()
    };
    verdict::of_one_level(&rounds.iter().map(trips).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::table::tests::sample;

    #[test]
    fn a_pair_keeps_its_rounds_when_cores_move_during_another_ones_turn() {
        let moved = |trips_ns| Sample { trips_ns, ..sample(1.0) };
        let level = || moved([Some(105), Some(110)]);
        let rounds = [
            vec![level(), level(), moved([Some(110), Some(480)])],
            vec![level(), level(), level()],
            vec![moved([Some(50), Some(52)]), level(), level()],
        ];
        assert_eq!(counted(&rounds, [0, 1]), [0, 1]);
        assert_eq!(counted(&rounds, [0, 2]), [1]);
    }

    #[test]
    fn each_of_ours_meets_each_of_theirs() {
        let ours = |link| Contestant::Vrio(Path::Direct, link);
        let theirs = |name: &str| Contestant::Socket(name.to_owned(), "/socket".into());
        let all = [ours(LinkKind::Udp), theirs("one"), ours(LinkKind::Xdp), theirs("two")];
        assert_eq!(pairs(&all), [(0, 1), (0, 3), (2, 1), (2, 3)]);
    }
}
