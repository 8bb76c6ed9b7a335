//! `vrio bench compare replicas`: a disk that two hosts keep, by vrio and by drivers of Linux.
//!
//! ```text
//!   vrio               user ═ ublk ═ session ═ io1 ─ pool in memory
//!                                               ╚═ session ═ io2 ─ pool in memory
//!   md-raid1           user ═ md ═╦═ NVMe/TCP ═ io1 ─ memory
//!                                 ╚═ NVMe/TCP ═ io2 ─ memory
//!   DRBD               user ═ drbd ─ memory
//!                              ╚═ TCP ═ the other host ─ memory
//! ```
//!
//! A machine may lack these drivers, so each side has a guest with the same kernel and the same
//! program that makes requests. The hosts are network namespaces of that guest. An emulated guest
//! counts right and measures no time that a real machine has: its counts are compared, and of its
//! times the ratios within a round are said, with this warning.

mod report;
mod side;

use anyhow::{Context, Result, anyhow, ensure};
use serde::Serialize;

use super::contest::ComparisonPlan;
use testbed::cleanup::{Cleanup, tidily};
use testbed::guest::{Accelerator, Image};
use testbed::machine::Machine;
use testbed::progress::Progress;

use report::{CaseFigures, SidePause};
use side::{RunningSide, SideTurn};

pub use report::CopiesReport;
pub use side::{LostCopy, Side};

/// Other ways that a user could pick, and why they are not measured.
const NOT_MEASURED: [&str; 2] = [
    "Crucible (no package; its upstairs serves illumos' propolis, and NBD on Linux, and its \
     downstairs needs three hosts with ZFS)",
    "Ceph (its smallest cluster does not fit into an emulated guest)",
];

/// One kind of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CopiesCase {
    /// Whether the requests are writes.
    pub writes: bool,
    /// Requests outstanding.
    pub depth: u16,
}

const CASES: [CopiesCase; 4] = [
    CopiesCase { writes: true, depth: 1 },
    CopiesCase { writes: true, depth: 32 },
    CopiesCase { writes: false, depth: 1 },
    CopiesCase { writes: false, depth: 32 },
];

impl CopiesCase {
    /// The name of the case, as other comparisons have it.
    pub fn name(self) -> String {
        let op = if self.writes { "randwrite" } else { "randread" };
        format!("{op} 4k depth {}", self.depth)
    }
}

/// The options of a comparison of copies.
#[derive(Clone, Debug, Serialize)]
pub struct CopiesOptions {
    /// The program and the extent of the comparison.
    #[serde(flatten)]
    pub plan: ComparisonPlan,
}

impl CopiesOptions {
    /// Looks whether the options make sense.
    ///
    /// # Errors
    /// The option that makes no sense.
    pub fn check(&self) -> Result<()> {
        self.plan.check()?;
        let seconds = self.plan.seconds;
        ensure!((0.1..=60.0).contains(&seconds), "--seconds {seconds}: from 0.1 to 60");
        ensure!(!self.cases().is_empty(), "--case leaves nothing");
        ensure!(self.sides().len() > 1, "--contest leaves no side beside vrio");
        Ok(())
    }

    fn cases(&self) -> Vec<CopiesCase> {
        CASES.into_iter().filter(|case| self.plan.wants_case(&case.name())).collect()
    }

    /// vrio, and each side that has one of the words in its name.
    fn sides(&self) -> Vec<Side> {
        let wants = |side: &Side| *side == Side::Vrio || self.plan.wants_contest(side.name());
        Side::ALL.into_iter().filter(wants).collect()
    }
}

/// Measures all sides in turn, then the pause of each at the death of a copy. The progress goes to
/// standard error.
///
/// # Errors
/// When there is no image of a guest, or vrio or all other sides cannot be measured.
pub fn run(options: &CopiesOptions) -> Result<CopiesReport> {
    let progress = Progress::new();
    tidily(&progress, |cleanup| compare(options, cleanup, &progress))
}

/// The sides that run, and the reasons for the sides that do not.
struct Field<'a> {
    running: Vec<RunningSide>,
    missing: Vec<String>,
    cleanup: &'a Cleanup,
    progress: &'a Progress,
}

impl Field<'_> {
    /// Runs `work` with each side in turn. A side that fails takes part no more, and is named.
    fn each<T>(
        &mut self,
        what: &str,
        mut work: impl FnMut(&mut RunningSide) -> Result<T>,
    ) -> Result<Vec<(Side, T)>> {
        let mut done = Vec::new();
        for mut running in std::mem::take(&mut self.running) {
            let side = running.side;
            self.progress.doing(format!("{what}, {}", side.name()));
            match work(&mut running) {
                Ok(outcome) => {
                    done.push((side, outcome));
                    self.running.push(running);
                }
                Err(error) => {
                    self.cleanup.yield_to_interruption();
                    let error = error.context(format!("{}: {what}", side.name()));
                    if side == Side::Vrio {
                        return Err(error);
                    }
                    self.missing.push(format!("{error:#}"));
                }
            }
        }
        ensure!(self.running.len() > 1, "{}", self.missing.join("; "));
        Ok(done)
    }
}

fn compare(
    options: &CopiesOptions,
    cleanup: &Cleanup,
    progress: &Progress,
) -> Result<CopiesReport> {
    let plan = &options.plan;
    let image = Image::find_newer().map_err(|why| anyhow!("{why} newer"))?;
    let accelerator = Accelerator::choose(&image);
    let start = |side: Side| {
        let _starting = cleanup.start();
        side.start(&image, accelerator, &plan.program)
    };
    let running = options.sides().into_iter().map(start).collect::<Result<_>>()?;
    let missing = NOT_MEASURED.map(str::to_owned).to_vec();
    let mut field = Field { running, missing, cleanup, progress };
    field.each("making a disk", RunningSide::wait_until_ready)?;
    let mut cases = Vec::new();
    for case in options.cases() {
        let mut rounds: Vec<Vec<(Side, SideTurn)>> = Vec::new();
        for round in 1..=plan.rounds {
            let what = format!("{}, round {round} of {}", case.name(), plan.rounds);
            rounds.push(field.each(&what, |side| side.turn(case, plan.seconds))?);
        }
        cases.push(CaseFigures::of(case, &rounds));
    }
    let copy = LostCopy::Other;
    let pauses = field.each("the death of a copy", |side| side.lose(copy))?;
    let pause = |(side, pause_ms)| SidePause { side, copy, pause_ms };
    let mut pauses: Vec<_> = pauses.into_iter().map(pause).collect();
    if let Some(ours) = field.running.iter_mut().find(|it| it.side == Side::Vrio) {
        let (side, copy) = (ours.side, LostCopy::Serving);
        progress.doing(format!("the death of the node that serves, {}", side.name()));
        let pause_ms = ours.lose(copy).context("vrio: the death of the node that serves")?;
        pauses.push(SidePause { side, copy, pause_ms });
    }
    Ok(CopiesReport {
        version: report::COPIES_VERSION,
        asked: options.clone(),
        is_emulated: accelerator == Accelerator::Tcg,
        cases,
        pauses,
        missing: field.missing,
        machine: Machine::look(),
    })
}
