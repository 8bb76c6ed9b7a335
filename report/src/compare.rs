//! Differences between results besides their figures, and the distance between the figures of two
//! series. `results diff` and the page both ask here, so that they cannot contradict each other.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use results::{Against, Machine, Measurement, Point, Run, Series, Spread};
use serde::Serialize;

/// Round trips of a cache line that lie further apart than this factor are of two levels: of cores
/// that are further apart, or of other machines. The benchmarks judge their rounds by the same
/// number.
pub const LEVELS_APART: f64 = 1.5;

/// The bound of chance for a verdict: how often rounds of unchanged code may lie apart by chance
/// alone.
pub const CHANCE_MAX: f64 = 0.05;

/// The values of one difference that are named, and the sides that are named for each value.
const VALUES_NAMED_MAX: usize = 6;
const SIDES_NAMED_MAX: usize = 3;

/// The differences that are listed: with more of them, runs are not worth a comparison.
const DIFFERENCES_MAX: usize = 40;

/// The characters of a value that are shown.
const VALUE_CHARS_MAX: usize = 80;

/// Two places on an axis count as one if they differ by no more than this part of them: the
/// conversion of units loses the last bit.
const SAME_PLACE: f64 = 1e-9;

/// Benchmarks of different programs that measure the same, in the same quantities.
const ALIKE: [&[&str]; 7] = [
    &["osu_latency", "mpi_latency"],
    &["osu_bw", "mpi_bandwidth"],
    &["osu_bibw", "mpi_bidirectional_bandwidth"],
    &["osu_mbw_mr", "mpi_message_rate"],
    &["osu_alltoall", "mpi_alltoall"],
    &["osu_allreduce", "mpi_allreduce"],
    &["fio", "block"],
];

/// The kind of a benchmark: its name, or the name of another program's benchmark that measures the
/// same.
pub fn kind(benchmark: &str) -> &str {
    ALIKE.iter().find(|all| all.contains(&benchmark)).map_or(benchmark, |all| all[0])
}

/// One of the sides that are compared.
#[derive(Clone, Copy, Debug)]
pub struct ComparedSide<'a> {
    /// The side's name in sentences about differences: `A`, or a run's title in quotes.
    pub name: &'a str,
    /// The run. Published figures have none: nothing is known of their machine.
    pub run: Option<&'a Run>,
    /// The measurement; none where runs are compared as a whole.
    pub measurement: Option<&'a Measurement>,
}

/// The differences between these sides besides figures, a sentence each: machine, build and tools
/// of the runs, levels of the cache line's round trip, set-ups of the measurements. A single side
/// has no differences, but possibly a caution about itself.
///
/// `processor: an EPYC (A), a Xeon (B)`
pub fn differences(sides: &[ComparedSide<'_>]) -> Vec<String> {
    let mut found = conditions(sides);
    found.extend(setups(sides));
    let more = found.len().saturating_sub(DIFFERENCES_MAX);
    if more > 0 {
        found.truncate(DIFFERENCES_MAX);
        found.push(format!("and {more} things more"));
    }
    found
}

/// The part of [`differences`] without set-ups: the conditions of the measurements.
pub fn conditions(sides: &[ComparedSide<'_>]) -> Vec<String> {
    let mut found = machines(sides);
    found.extend(tools(sides));
    found.extend(levels(sides));
    found
}

/// The sides whose run is known, with their runs; each run once.
fn runs<'a>(sides: &[ComparedSide<'a>]) -> Vec<(&'a str, &'a Run)> {
    let mut known = BTreeSet::new();
    let all = sides.iter().filter_map(|side| Some((side.name, side.run?)));
    all.filter(|(_, run)| known.insert(std::ptr::from_ref(*run))).collect()
}

fn machines(sides: &[ComparedSide<'_>]) -> Vec<String> {
    let runs = runs(sides);
    let has_none = runs.iter().filter(|(_, run)| run.machine.is_none()).map(|(name, _)| *name);
    let mut found = Vec::new();
    if runs.len() > 1 {
        let unknown = listed(has_none);
        found.extend(unknown.map(|all| format!("machine: the machine of {all} is not known")));
    }
    let known: Vec<(&str, &Machine)> =
        runs.iter().filter_map(|(name, run)| Some((*name, run.machine.as_ref()?))).collect();
    let told = |it: &Option<String>| it.clone().unwrap_or_else(not_told);
    type Ask<'a> = &'a dyn Fn(&Machine) -> String;
    let asked: [(&str, Ask<'_>); 5] = [
        ("processor", &|it| it.processor.clone()),
        ("cores", &|it| it.cores.to_string()),
        ("kernel", &|it| it.kernel.clone()),
        ("version of vrio", &|it| told(&it.version)),
        ("commit", &|it| told(&it.commit)),
    ];
    for (what, ask) in asked {
        found.extend(differ(what, known.iter().map(|(name, it)| (*name, ask(it)))));
    }
    let slow = known.iter().filter(|(_, it)| it.optimised == Some(false)).map(|(name, _)| *name);
    found.extend(were(slow).map(|all| format!("build: {all} measured without optimisation")));
    found
}

fn not_told() -> String {
    "not told".to_owned()
}

/// Differences between versions of tools that took part in several runs. Two different programs are
/// not two versions of one.
fn tools(sides: &[ComparedSide<'_>]) -> Vec<String> {
    let mut by_name: BTreeMap<&str, Vec<(&str, String)>> = BTreeMap::new();
    for (name, run) in runs(sides) {
        for (tool, version) in &run.tools {
            by_name.entry(tool).or_default().push((name, version.clone()));
        }
    }
    by_name.into_iter().filter_map(|(tool, versions)| differ(tool, versions)).collect()
}

/// The difference between levels: cores that were near each other in one run and far in another, or
/// that moved during a measurement.
fn levels(sides: &[ComparedSide<'_>]) -> Option<String> {
    let trips = sides.iter().flat_map(|side| {
        let own = side.measurement.map_or(&[][..], |it| &it.cache_line_round_trips_ns);
        let machine = side.run.and_then(|run| run.machine.as_ref()?.cache_line_round_trip_ns);
        let machine = machine.filter(|_| own.is_empty());
        own.iter().copied().chain(machine).map(|ns| (ns, side.name))
    });
    let trips: Vec<(u64, &str)> = trips.collect();
    let (least, of_least) = trips.iter().min_by_key(|(ns, _)| *ns)?;
    let (most, of_most) = trips.iter().max_by_key(|(ns, _)| *ns)?;
    let took = match of_least == of_most {
        true => format!("{least} to {most} ns ({of_least})"),
        false => format!("{least} ns ({of_least}) and {most} ns ({of_most})"),
    };
    are_two_levels(*least, *most).then(|| {
        format!("level: a cache line's round trip took {took}, for which alone latencies differ")
    })
}

/// Whether two round trips of a cache line are so far apart that they are of two levels.
pub fn are_two_levels(one: u64, other: u64) -> bool {
    one.max(other) as f64 > LEVELS_APART * one.min(other) as f64
}

/// The part of [`differences`] about set-ups.
pub fn setups(sides: &[ComparedSide<'_>]) -> Vec<String> {
    let all = || sides.iter().filter_map(|side| Some((side.name, &side.measurement?.setup)));
    let keys: BTreeSet<&String> = all().flat_map(|(_, setup)| setup.keys()).collect();
    let of = |key: &String| {
        let value = |(name, setup): (_, &BTreeMap<String, String>)| {
            (name, setup.get(key).cloned().unwrap_or_else(not_told))
        };
        differ(key, all().map(value))
    };
    keys.into_iter().filter_map(of).collect()
}

/// A difference such as `kernel: 6.1 (A, C), 6.12 (B)`; nothing if all values are equal.
fn differ<'a>(what: &str, values: impl IntoIterator<Item = (&'a str, String)>) -> Option<String> {
    let mut kinds: Vec<(String, Vec<&str>)> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for (name, value) in values {
        let place = *places.entry(value.clone()).or_insert(kinds.len());
        if place == kinds.len() {
            kinds.push((value, Vec::new()));
        }
        kinds[place].1.push(name);
    }
    if kinds.len() < 2 {
        return None;
    }
    let more = kinds.len().saturating_sub(VALUES_NAMED_MAX);
    let name = |(value, names): &(String, Vec<&str>)| {
        let short: String = value.chars().take(VALUE_CHARS_MAX).collect();
        let cut = if short.len() < value.len() { "..." } else { "" };
        format!("{short}{cut} ({})", listed(names.iter().copied()).unwrap_or_default())
    };
    let mut named: Vec<String> = kinds.iter().take(VALUES_NAMED_MAX).map(name).collect();
    if more > 0 {
        named.push(format!("{more} more"));
    }
    Some(format!("{what}: {}", named.join(", ")))
}

/// `A, B, 3 more`, each name once; nothing without names.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut known = BTreeSet::new();
    let mut all: Vec<String> =
        names.filter(|name| known.insert(*name)).map(str::to_owned).collect();
    let more = all.len().saturating_sub(SIDES_NAMED_MAX);
    if more > 0 {
        all.truncate(SIDES_NAMED_MAX);
        all.push(format!("{more} more"));
    }
    (!all.is_empty()).then(|| all.join(", "))
}

/// `A was`, or `A, B were`; nothing without names.
fn were<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Option<String> {
    let verb = if names.clone().collect::<BTreeSet<_>>().len() > 1 { "were" } else { "was" };
    Some(format!("{} {verb}", listed(names)?))
}

/// Two figures at one place.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The index of the point in the first series.
    pub base: usize,
    /// The index of the point in the other series.
    pub other: usize,
    /// The figure of the first series.
    pub a: f64,
    /// The figure of the other series, in the unit of the first.
    pub b: f64,
    /// How much more the other figure is, in percent; none where the first is 0 or less.
    pub percent: Option<f64>,
    /// The least and the greatest change if each figure may be that of any of its rounds. Without
    /// rounds there is none: other spreads say how requests differ, not how well a figure is known.
    pub percent_between: Option<[f64; 2]>,
    /// The verdict that the rounds allow.
    pub standing: FigureStanding,
}

/// A verdict about two figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FigureStanding {
    /// One of the figures is of a single run, so the distance between runs is not known.
    NotKnown,
    /// There are so few rounds that rounds of unchanged code would often lie apart by chance.
    TooFewRounds,
    /// Some rounds of one figure lie among those of the other.
    WithinRounds,
    /// Each round of the other figure is more than each round of the first.
    More,
    /// Each round of the other figure is less than each round of the first.
    Less,
}

/// Whether two series have the same kind of number. A mean is not comparable with a median, nor a
/// figure by size with a figure by depth. Units may differ inside of a dimension.
pub fn are_alike(one: &Series, two: &Series) -> bool {
    (one.quantity, one.statistic, one.x.quantity) == (two.quantity, two.statistic, two.x.quantity)
}

/// The series of `other` to compare with this series of `base`: the series of the same name. If
/// each measurement has only one series of the kind, their names do not matter.
pub fn partner(base: &Measurement, series: &Series, other: &Measurement) -> Option<usize> {
    let alike = |it: &Measurement| -> Vec<usize> {
        let all = it.series.iter().enumerate().filter(|(_, it)| are_alike(series, it));
        all.map(|(at, _)| at).collect()
    };
    let theirs = alike(other);
    let named = theirs.iter().find(|at| other.series[**at].name == series.name);
    match (named, &theirs[..]) {
        (Some(at), _) => Some(*at),
        (None, [alone]) if alike(base).len() == 1 => Some(*alone),
        (None, _) => None,
    }
}

/// How much more `other` is than `base` wherever both have a figure, in the order of `base`; none
/// if the two are not alike. The time is linear in the lengths of both.
pub fn changes(base: &Series, other: &Series) -> Option<Vec<Change>> {
    if !are_alike(base, other) {
        return None;
    }
    let pairs = match base.x.quantity {
        Against::Category => by_label(base, other),
        _ => by_place(base, other),
    };
    let of = |(one, two): (usize, usize)| change(base, other, one, two);
    Some(pairs.into_iter().filter_map(of).collect())
}

/// If several points of a series have one label, the first one counts.
fn by_label(base: &Series, other: &Series) -> Vec<(usize, usize)> {
    let mut places = BTreeMap::new();
    for (at, point) in other.points.iter().enumerate() {
        places.entry(&point.label).or_insert(at);
    }
    let mut known = BTreeSet::new();
    let own = base.points.iter().enumerate().filter(|(_, it)| known.insert(&it.label));
    own.filter_map(|(at, it)| Some((at, *places.get(&it.label)?))).collect()
}

/// Both series are in the order of x, so one look at each point is enough.
fn by_place(base: &Series, other: &Series) -> Vec<(usize, usize)> {
    let in_base = |x: f64| other.x.unit.convert(x, base.x.unit).unwrap_or(f64::NAN);
    let is_same = |one: f64, two: f64| (one - two).abs() <= SAME_PLACE * one.abs().max(two.abs());
    let (mut at, mut pairs) = ((0, 0), Vec::new());
    while let (Some(one), Some(two)) = (base.points.get(at.0), other.points.get(at.1)) {
        let x = in_base(two.x);
        if is_same(one.x, x) {
            match (one.x_to, two.x_to.map(in_base)) {
                (None, None) => pairs.push(at),
                (Some(one), Some(two)) if is_same(one, two) => pairs.push(at),
                // A figure of a stretch is not comparable with a figure of a place: the stretch is
                // passed over.
                (Some(_), _) => {
                    at.0 += 1;
                    continue;
                }
                (None, Some(_)) => {
                    at.1 += 1;
                    continue;
                }
            }
            at = (at.0 + 1, at.1 + 1);
        } else if one.x < x {
            at.0 += 1;
        } else {
            at.1 += 1;
        }
    }
    pairs
}

fn change(base: &Series, other: &Series, one: usize, two: usize) -> Option<Change> {
    let (mine, theirs) = (&base.points[one], &other.points[two]);
    let convert = |y: f64| other.unit.convert(y, base.unit);
    let (a, b) = (mine.y, convert(theirs.y)?);
    let percent = |from: f64, to: f64| (from > 0.0).then(|| (to / from - 1.0) * 100.0);
    let rounds = ends(base, mine)
        .zip(ends(other, theirs).and_then(|[low, high]| Some([convert(low)?, convert(high)?])));
    let between = rounds.and_then(|([low, high], [least, most])| {
        Some([percent(high, least)?, percent(low, most)?])
    });
    let standing = match rounds {
        None => FigureStanding::NotKnown,
        Some(_) if !are_enough(base.rounds, other.rounds) => FigureStanding::TooFewRounds,
        Some(([_, high], [least, _])) if least > high => FigureStanding::More,
        Some(([low, _], [_, most])) if most < low => FigureStanding::Less,
        Some(_) => FigureStanding::WithinRounds,
    };
    let percent = percent(a, b);
    Some(Change { base: one, other: two, a, b, percent, percent_between: between, standing })
}

/// The least and the most of a figure's rounds.
fn ends(series: &Series, point: &Point) -> Option<[f64; 2]> {
    let rounds = series.spread == Spread::Rounds;
    Some([point.low.filter(|_| rounds)?, point.high.filter(|_| rounds)?])
}

/// The probability that all rounds lie on one side of all other rounds, although both measure the
/// same. It is two of the possible orders.
pub fn chance(one: u32, other: u32) -> f64 {
    let orders = (1..=one)
        .fold(1.0, |orders, at| orders * (f64::from(other) + f64::from(at)) / f64::from(at));
    2.0 / orders
}

fn are_enough(one: Option<u32>, other: Option<u32>) -> bool {
    // More rounds than this always suffice for a verdict, and would take long to count.
    const MANY: u32 = 100;
    let chance = one.zip(other).map(|(one, other)| chance(one.min(MANY), other.min(MANY)));
    chance.is_some_and(|chance| chance.total_cmp(&CHANCE_MAX) == Ordering::Less)
}

#[cfg(test)]
#[path = "compare/tests.rs"]
mod tests;
