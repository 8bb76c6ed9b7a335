//! Figures of pools that no peer has: while they collect, and after a snapshot.

use anyhow::{Context, Result};

use super::StoreTurns;
use super::cases::overwrites;
use super::goals::{AMPLIFICATION_GOAL, FILE, SNAPSHOT_GOAL, STEADY_GOAL, STORE, TAIL_GOAL};
use super::sides::{Sides, StoreSide};
use crate::block::Requests;
use crate::contest::{Case, Contestant, TurnSample};
use crate::table::{OwnOutcome, OwnRow};
use bench::block::{self, BlockOptions, BlockReport, Volume, make_pool};
use bench::load::LoadPattern;
use bench::verdict::{self, Bound, Spread, Verdict};
use testbed::progress::Progress;

/// The least IOPS of a pool that collects, as a part of what its writes to devices leave of a
/// file's.
const STEADY_MIN: f64 = 0.9;

/// The most blocks that devices write for a block of a guest, in the mean.
const AMPLIFICATION_MAX: f64 = 2.2;

/// The most that collection lengthens the time of 99 of a hundred requests.
const TAIL_MAX: f64 = 2.0;

/// The least IOPS after a snapshot, as a part of those before.
const SNAPSHOT_MIN: f64 = 1.0 / 1.1;

/// The measurements without a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreOwn {
    /// A pool that is 80 % full.
    Steady,
    /// The first writes after a snapshot.
    Snapshot,
}

/// One figure of each round, and the goal that is about it.
type StoreFigure = (&'static str, Vec<f64>, Option<(u8, Bound)>);

impl StoreOwn {
    pub(super) const ALL: [Self; 2] = [Self::Steady, Self::Snapshot];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Steady => "ours, a pool that is 80 % full",
            Self::Snapshot => "ours, writes before and after a snapshot",
        }
    }

    /// The requests that it is about.
    pub(super) fn case(self) -> Requests {
        overwrites()
    }

    /// StoreTurns of one round, for the estimate.
    pub(super) fn turns(self) -> u32 {
        match self {
            Self::Steady => 6,
            Self::Snapshot => 2,
        }
    }

    /// Measures it.
    pub(super) fn measure(
        self,
        turns: &StoreTurns<'_>,
        sides: &Sides<'_>,
        progress: &Progress,
    ) -> Result<OwnOutcome> {
        let mut trips = Vec::new();
        let measured = match self {
            Self::Steady => steady(turns, sides, progress, &mut trips),
            Self::Snapshot => snapshots(turns, sides, progress, &mut trips),
        };
        let figures = measured.with_context(|| self.name())?;
        let row = |(figure, values, goal): StoreFigure| OwnRow {
            case: self.case().name(),
            figure,
            value: Spread::of(values.iter().copied()),
            rounds: values.len(),
            tried: values.len(),
            verdict: goal.map(|(goal, bound)| Verdict::of(goal, figure, bound, &values, false)),
        };
        let rows = figures.into_iter().map(row).collect();
        Ok(OwnOutcome { contest: self.name(), rows, cache_line_rtt_ns: verdict::of_trips(&trips) })
    }
}

/// A pool that collects beside one that has room, and beside a file.
fn steady(
    turns: &StoreTurns<'_>,
    sides: &Sides<'_>,
    progress: &Progress,
    trips: &mut Vec<u64>,
) -> Result<Vec<StoreFigure>> {
    let (file, store) = (sides.of(FILE)?, sides.of(STORE)?);
    let tight = sides.file("tight.pool");
    make_pool(&tight, true)?;
    let full = Volume::Pool(tight);
    let mut is_filled = false;
    let (mut rates, mut shares) = (Vec::new(), Vec::new());
    let (mut tails, mut tails_at_most) = (Vec::new(), Vec::new());
    let (mut uniform, mut by_zipf) = (Vec::new(), Vec::new());
    for round in 1..=turns.options.plan.rounds {
        let mut drive = |what: &str, volume: &Volume, op: LoadPattern, iops: Option<u32>| {
            progress.doing(format!("{}: round {round}, {what}", StoreOwn::Steady.name()));
            let asked = turns.options.options(volume.clone(), &Requests { op, ..overwrites() });
            let collects = *volume == full;
            let filled = !collects || is_filled;
            is_filled |= collects;
            let asked = BlockOptions { collects, filled, iops, ..asked };
            let report = block::measure(&asked, turns.cleanup, &Progress::silent())?;
            trips.extend(report.cache_line_rtts_ns.into_iter().flatten());
            anyhow::Ok(report)
        };
        let uniformly = LoadPattern::RandWrite;
        let of_file = drive("a file", &file.volume(), uniformly, None)?;
        let roomy = drive("a pool with room", &store.volume(), uniformly, None)?;
        let collects = drive("80 % full", &full, uniformly, None)?;
        let zipf = drive("80 % full, Zipf", &full, LoadPattern::ZipfWrite, None)?;
        // At their own speed, the pool that collects writes several times more for each request, so
        // its queue is longer by that alone. So the latencies are compared at one load.
        let half = Some(((collects.iops / 2.0) as u32).max(1));
        let roomy_at_half =
            drive("a pool with room, half the load", &store.volume(), uniformly, half)?;
        let collects_at_half = drive("80 % full, half the load", &full, uniformly, half)?;
        let written = |report: &BlockReport| {
            report.pool_amplification().context("the node does not count what its pool writes")
        };
        rates.push(collects.iops);
        shares.push(collects.iops / of_file.iops * written(&collects)?);
        tails.push(collects_at_half.latency_us.p99 / roomy_at_half.latency_us.p99);
        tails_at_most.push(collects.latency_us.p99 / roomy.latency_us.p99);
        uniform.push(written(&collects)?);
        by_zipf.push(written(&zipf)?);
    }
    Ok(vec![
        ("IOPS", rates, None),
        ("blocks written for each, uniform", uniform, None),
        (
            "IOPS / those of `file` * blocks written for each",
            shares,
            Some((STEADY_GOAL, Bound::AtLeast(STEADY_MIN))),
        ),
        (
            "blocks written for each, Zipf",
            by_zipf,
            Some((AMPLIFICATION_GOAL, Bound::AtMost(AMPLIFICATION_MAX))),
        ),
        (
            "p99 / that with room, both at half of these IOPS",
            tails,
            Some((TAIL_GOAL, Bound::AtMost(TAIL_MAX))),
        ),
        ("p99 / that with room, each as fast as it can", tails_at_most, None),
    ])
}

/// A pool before and after a snapshot, in turn.
fn snapshots(
    turns: &StoreTurns<'_>,
    sides: &Sides<'_>,
    progress: &Progress,
    trips: &mut Vec<u64>,
) -> Result<Vec<StoreFigure>> {
    let after = sides.with_snapshots().into_iter().find(StoreSide::is_ours);
    let (before, after) = (sides.of(STORE)?, after.context("the pool has snapshots")?);
    let (mut ratios, mut tails) = (Vec::new(), Vec::new());
    for round in 1..=turns.options.plan.rounds {
        let mut turn = |what: &str, side: &StoreSide| -> Result<TurnSample> {
            progress.doing(format!("{}: round {round}, {what}", StoreOwn::Snapshot.name()));
            let sample = turns.turn(&overwrites(), side)?;
            trips.extend(sample.trips_ns.into_iter().flatten());
            Ok(sample)
        };
        let (old, new) = (turn("before", before)?, turn("after", &after)?);
        ratios.push(new.rate / old.rate);
        tails.extend(new.p99_us.zip(old.p99_us).map(|(new, old)| new / old));
    }
    Ok(vec![
        ("IOPS after / before", ratios, Some((SNAPSHOT_GOAL, Bound::AtLeast(SNAPSHOT_MIN)))),
        ("p99 after / before", tails, None),
    ])
}
