//! `vrio bench compare store`: a disk in a pool, and other ways to keep a disk in a file.
//!
//! All disks have one size and one file system below, and are opened around the page cache. One
//! driver drives them all, in turn.

mod cases;
mod goals;
mod own;
mod sides;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde::Serialize;
use sidecore::Idle;

use super::Contests;
use super::block::{Requests, SOCKET};
use super::comparison::Comparison;
use super::contest::{Case, ComparisonPlan, Contest, Contestant as _, TurnSample};
use super::running::RunningServers;
use bench::block::{self, BlockOptions, Path, Volume};
use testbed::cleanup::{Cleanup, tidily};
use testbed::progress::Progress;

use cases::{AFTER_SNAPSHOT, OVERWRITTEN, cases, overwrites};
use own::StoreOwn;
use sides::{Kept, Sides, StoreSide};

/// The options of a comparison of ways to keep a disk.
#[derive(Clone, Debug, Serialize)]
pub struct StoreOptions {
    /// The program and the extent of the comparison.
    #[serde(flatten)]
    pub plan: ComparisonPlan,
    /// The behaviour of our sidecores without work; adaptive instead of spin where sidecores share
    /// cores.
    #[serde(serialize_with = "block::as_text")]
    pub idle: Idle,
    /// The folder of all files, on the disk that is measured.
    pub folder: PathBuf,
}

impl StoreOptions {
    /// Looks whether the options make sense.
    ///
    /// # Errors
    /// The option that makes no sense.
    pub fn check(&self) -> Result<()> {
        self.plan.check()?;
        self.options(Volume::Null, &overwrites()).check()?;
        let folder = &self.folder;
        ensure!(
            folder.is_absolute() && folder.is_dir(),
            "--folder {}: a folder that is there, by its absolute path",
            folder.display()
        );
        Ok(())
    }

    /// The options of one of our disks with this volume.
    fn options(&self, volume: Volume, case: &Requests) -> BlockOptions {
        let mut asked = BlockOptions {
            path: Path::Local,
            volume,
            op: case.op,
            size_bytes: case.size_bytes,
            depth: case.depth,
            idle: self.idle,
            seconds: self.plan.seconds,
            filled: true,
            ..BlockOptions::new(self.plan.program.clone())
        };
        if asked.idle == Idle::Spin && !block::has_seats(&asked) {
            // Spinning threads that share cores only keep each other from them.
            asked.idle = Idle::Adaptive;
        }
        asked
    }
}

/// Runs both contests, then the figures of vrio alone. The progress goes to standard error.
///
/// # Errors
/// When a contest cannot be measured.
pub fn run(options: &StoreOptions) -> Result<Comparison> {
    let progress = Progress::new();
    tidily(&progress, |cleanup| compare(options, cleanup, &progress))
}

fn compare(options: &StoreOptions, cleanup: &Cleanup, progress: &Progress) -> Result<Comparison> {
    let plan = &options.plan;
    let mut sides = Sides::find(&options.folder, cleanup);
    let mut contests = vec![
        Contest::new(OVERWRITTEN, sides.all.clone()),
        Contest::new(AFTER_SNAPSHOT, sides.with_snapshots()),
    ];
    contests.retain(|contest| plan.wants_contest(&contest.name));
    let mut own = StoreOwn::ALL.to_vec();
    own.retain(|own| plan.wants_contest(own.name()) && plan.wants_case(&own.case().name()));
    let turns = StoreTurns { options, cleanup };
    sides.prepare(progress, &|side| turns.fill(side));
    for contest in &mut contests {
        contest.contestants.retain(|side| sides.all.iter().any(|it| it.name() == side.name()));
    }
    let missing = std::mem::take(&mut sides.missing);
    let (subject, cases) = (&goals::STORES, cases());
    let mut field = Contests { subject, plan, contests, cases, missing, cleanup, progress };
    field.narrow();
    field.check(!own.is_empty())?;
    field.announce(own.iter().map(|own| own.turns()).sum());
    let outcomes = field.run(&|case, side| turns.turn(case, side));
    let measured = own.iter().map(|own| own.measure(&turns, &sides, progress));
    let own = super::own_outcomes(measured, cleanup, progress, &mut field.missing);
    field.result(options, outcomes, own)
}

/// The options of all turns.
struct StoreTurns<'a> {
    options: &'a StoreOptions,
    cleanup: &'a Cleanup,
}

impl StoreTurns<'_> {
    fn turn(&self, case: &Requests, side: &StoreSide) -> Result<TurnSample> {
        side.snapshot()?;
        self.measure(side, &self.options.options(side.volume(), case))
    }

    /// Writes a disk once.
    fn fill(&self, side: &StoreSide) -> Result<()> {
        let asked = self.options.options(side.volume(), &overwrites());
        let asked = BlockOptions { filled: false, seconds: 0.05, ..asked };
        self.measure(side, &asked).map(drop)
    }

    fn measure(&self, side: &StoreSide, asked: &BlockOptions) -> Result<TurnSample> {
        let Kept::By(peer) = &side.kept else { return self.drive(asked) };
        let running = RunningServers::start(&peer.service, self.cleanup)?;
        let path = Path::Socket(running.folder.join(SOCKET));
        let asked = BlockOptions { path, pids: running.pids(), ..asked.clone() };
        self.drive(&asked).map_err(|error| running.explain(error))
    }

    fn drive(&self, asked: &BlockOptions) -> Result<TurnSample> {
        let report = block::measure(asked, self.cleanup, &Progress::silent())?;
        // Where cores are shared, a share of a core says nothing.
        let core_share = report.core_share.get("driver-0").copied();
        Ok(TurnSample {
            rate: report.iops,
            p50_us: Some(report.latency_us.p50),
            p99_us: Some(report.latency_us.p99),
            cpu_us: report.cpu_us_per_request(),
            core_share: core_share.filter(|_| block::has_seats(asked)),
            waited_share: None,
            trips_ns: report.cache_line_rtts_ns,
        })
    }
}
