//! The result of a comparison of copies, for people and for programs.

use std::fmt;

use results::{Axis, Empty, Measurement, Point, Quantity, Series, Statistic, Unit};
use serde::Serialize;

use super::side::{LostCopy, Side, SideTurn};
use super::{CopiesCase, CopiesOptions};
use bench::figures::{BenchReport, measured, point_of, reason};
use bench::verdict::Spread;
use testbed::machine::Machine;

/// The version of the JSON form.
pub(super) const COPIES_VERSION: u32 = 1;

/// The figures of a turn: the name in tables and results, and whether the figure is a count, which
/// an emulated guest has as a real one.
type TurnFigure = (&'static str, bool, fn(&SideTurn) -> f64);

const FIGURES: [TurnFigure; 5] = [
    ("packets/request", true, |turn| turn.packets),
    ("bytes on cables/request", true, |turn| turn.bytes),
    ("context switches/request", true, |turn| turn.switches),
    ("requests/s", false, |turn| turn.rate),
    ("p50 us", false, |turn| turn.p50_us),
];

/// One figure of a side in a case.
#[derive(Clone, Debug, Serialize)]
pub struct SideFigure {
    /// The side.
    pub side: Side,
    /// The values of the rounds.
    pub value: Spread,
    /// vrio's value divided by the side's, round by round; none for vrio itself.
    pub ratio: Option<Spread>,
}

/// One figure of all sides in a case.
#[derive(Clone, Debug, Serialize)]
pub struct CaseFigure {
    /// The figure, with its unit.
    pub figure: &'static str,
    /// Whether it is a count, so that an emulated guest has it as a real one.
    pub is_count: bool,
    /// The sides.
    pub sides: Vec<SideFigure>,
}

/// The figures of a case.
#[derive(Clone, Debug, Serialize)]
pub struct CaseFigures {
    /// The requests.
    pub case: CopiesCase,
    /// Rounds, in each of which the sides took turns.
    pub rounds: usize,
    /// Each figure.
    pub figures: Vec<CaseFigure>,
}

impl CaseFigures {
    /// The figures of rounds, for the sides that took part in all of them.
    pub(super) fn of(case: CopiesCase, rounds: &[Vec<(Side, SideTurn)>]) -> Self {
        let turns = |side: Side| -> Option<Vec<SideTurn>> {
            let of = |round: &Vec<(Side, SideTurn)>| {
                round.iter().find(|(it, _)| *it == side).map(|(_, turn)| *turn)
            };
            rounds.iter().map(of).collect()
        };
        let all: Vec<_> =
            Side::ALL.into_iter().filter_map(|side| Some((side, turns(side)?))).collect();
        let ours = turns(Side::Vrio).unwrap_or_default();
        let figure = |(figure, is_count, of): TurnFigure| {
            let side = |(side, turns): &(Side, Vec<SideTurn>)| {
                let ratios = ours.iter().zip(turns).map(|(ours, turn)| of(ours) / of(turn));
                SideFigure {
                    side: *side,
                    value: Spread::of(turns.iter().map(of)),
                    ratio: (*side != Side::Vrio).then(|| Spread::of(ratios)),
                }
            };
            CaseFigure { figure, is_count, sides: all.iter().map(side).collect() }
        };
        Self { case, rounds: rounds.len(), figures: FIGURES.map(figure).to_vec() }
    }
}

/// The pause of a side.
#[derive(Clone, Debug, Serialize)]
pub struct SidePause {
    /// The side.
    pub side: Side,
    /// The copy.
    pub copy: LostCopy,
    /// The longest time without an answer after its host was cut off, in milliseconds.
    pub pause_ms: f64,
}

impl SidePause {
    fn name(&self) -> String {
        let what = match self.copy {
            LostCopy::Other => "",
            LostCopy::Serving => ", which serves",
        };
        format!("{}{what}", self.side.name())
    }
}

/// Everything that was compared.
#[derive(Clone, Debug, Serialize)]
pub struct CopiesReport {
    /// The version of this form.
    pub version: u32,
    /// The options of this run.
    pub asked: CopiesOptions,
    /// Whether guests were emulated: then no real machine has their times.
    pub is_emulated: bool,
    /// Each case.
    pub cases: Vec<CaseFigures>,
    /// The pauses at the death of a copy, once for each side, and at that of the node that serves.
    pub pauses: Vec<SidePause>,
    /// Ways that could not be measured, and why.
    pub missing: Vec<String>,
    /// The machine.
    pub machine: Machine,
}

impl fmt::Display for CopiesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "a disk that two hosts keep in memory, 4 KiB requests; sides in turn")?;
        for it in &self.cases {
            writeln!(f, "\n{}", it.case.name())?;
            for figure in &it.figures {
                figure.lines(f, self.is_emulated)?;
            }
        }
        writeln!(f, "\nlongest pause of writes when a copy's host is cut off, once, ms")?;
        for pause in &self.pauses {
            writeln!(f, "  {:<26}{:>12.0}", pause.name(), pause.pause_ms)?;
        }
        writeln!(f)?;
        if self.is_emulated {
            writeln!(
                f,
                "The guests were EMULATED: counts are those of a real guest, times are not, and \
                 ratios of times only hint."
            )?;
        }
        writeln!(
            f,
            "vrio's packets are sealed, the others' are in clear. vrio's and md's user is on a \
             third host;\nDRBD's user is on a host with a copy, so a write crosses one cable, and \
             a read none.\nvrio loses the copy that does not serve first, and the other one in a \
             second run; NVMe/TCP\nhas a keep-alive of 5 s and fast_io_fail_tmo=1, DRBD its \
             defaults. Packets that hosts send without requests\nin the same time are subtracted."
        )?;
        self.missing.iter().try_for_each(|missing| writeln!(f, "not measured: {missing}"))?;
        let Machine { cores, processor, kernel, .. } = &self.machine;
        let slow = if self.machine.optimised { "" } else { "; NOT OPTIMISED: build --release" };
        writeln!(
            f,
            "{cores} cores, {processor}, Linux {kernel}; {} rounds of {} s; vrio {}{slow}",
            self.asked.plan.rounds,
            self.asked.plan.seconds,
            self.machine.build()
        )
    }
}

impl CaseFigure {
    fn lines(&self, f: &mut fmt::Formatter<'_>, is_emulated: bool) -> fmt::Result {
        let warning = if is_emulated && !self.is_count { " (emulated)" } else { "" };
        writeln!(f, "  {}{warning}", self.figure)?;
        for SideFigure { side, value, ratio } in &self.sides {
            let ratio = ratio.map(|ratio| format!("   vrio / it: {ratio}")).unwrap_or_default();
            writeln!(f, "    {:<24}{:>12.2}{ratio}", side.name(), value.median)?;
        }
        Ok(())
    }
}

impl BenchReport for CopiesReport {
    /// A measurement of each count, with a series for each side; and the pauses. Times of an
    /// emulated guest are no results.
    fn measurements(&self, title: &str) -> Vec<Measurement> {
        let of = |what: &str, series: Vec<Series>| {
            let mut it =
                measured("replicas", &format!("{what} {title}"), &self.asked, &["rounds", "case"]);
            it.setup.insert("figure".to_owned(), what.to_owned());
            it.series = series;
            it
        };
        let counts = FIGURES.into_iter().filter(|(_, is_count, _)| *is_count);
        let mut all: Vec<_> = counts
            .map(|(name, ..)| {
                let series = |side| self.series(name, side);
                of(name, Side::ALL.into_iter().filter_map(series).collect())
            })
            .collect();
        let paused = Series::new("longest", Quantity::Duration, Unit::Ms, Axis::CATEGORY);
        let pause =
            |(place, it): (usize, &SidePause)| Point::of_category(place, &it.name(), it.pause_ms);
        let points = self.pauses.iter().enumerate().map(pause).collect();
        let paused = Series { points, statistic: Some(Statistic::Max), ..paused };
        all.push(of("pause at the death of a copy", vec![paused]));
        if let Some(first) = all.first_mut() {
            let empty = |why: &String| Empty { what: "a peer".to_owned(), why: reason(why) };
            first.empty.extend(self.missing.iter().map(empty));
        }
        all
    }

    fn machine(&self) -> &Machine {
        &self.machine
    }
}

impl CopiesReport {
    /// A side's values of a figure, by case.
    fn series(&self, figure: &str, side: Side) -> Option<Series> {
        let value = |(place, it): (usize, &CaseFigures)| {
            let figure = it.figures.iter().find(|it| it.figure == figure)?;
            let value = figure.sides.iter().find(|it| it.side == side)?.value;
            Some(Point { label: Some(it.case.name()), ..point_of(value, place as f64) })
        };
        let points: Vec<_> = self.cases.iter().enumerate().filter_map(value).collect();
        let series =
            Series::new(side.name(), Quantity::EventsPerRequest, Unit::Count, Axis::CATEGORY);
        (!points.is_empty()).then_some(Series { points, ..series })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(packets: f64) -> SideTurn {
        SideTurn { packets, bytes: 8e3, switches: 10.0, rate: 100.0, p50_us: 50.0 }
    }

    #[test]
    fn a_ratio_is_of_the_two_turns_of_one_round() {
        let case = CopiesCase { writes: true, depth: 1 };
        let round = |ours, theirs| vec![(Side::Vrio, turn(ours)), (Side::MdRaid1, turn(theirs))];
        let figures = CaseFigures::of(case, &[round(4.0, 8.0), round(6.0, 8.0), round(8.0, 8.0)]);
        let packets = &figures.figures[0];
        assert_eq!(packets.sides.len(), 2);
        assert_eq!(packets.sides[0].ratio, None);
        assert_eq!(packets.sides[1].ratio, Some(Spread { median: 0.75, min: 0.5, max: 1.0 }));
    }

    #[test]
    fn a_side_that_left_is_in_no_figure() {
        let case = CopiesCase { writes: true, depth: 1 };
        let rounds =
            [vec![(Side::Vrio, turn(1.0)), (Side::Drbd, turn(1.0))], vec![(Side::Vrio, turn(1.0))]];
        let figures = CaseFigures::of(case, &rounds);
        assert!(figures.figures.iter().all(|it| it.sides.len() == 1));
    }
}
