//! Two runs side by side: the relative change, point by point, and all other differences.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use results::{Axis, Measurement, Quantity, Run, Series, Spread, Statistic, Unit};
use serde::Serialize;

use crate::compare::{self, Change, ComparedSide, FigureStanding};
use crate::store::Loaded;

/// The result of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Diff {
    /// The first run's name and title. It is the base of the comparison.
    pub a: String,
    /// The second run's name and title. Its change is reported.
    pub b: String,
    /// The differences between the runs besides figures: machine, build, level.
    pub differs: Vec<String>,
    /// The series that both runs have.
    pub series: Vec<SeriesDiff>,
    /// Measurements of one run only, and series of one subject whose numbers cannot be compared.
    pub apart: Vec<String>,
}

/// A series that both runs have.
#[derive(Clone, Debug, Serialize)]
pub struct SeriesDiff {
    /// The benchmark.
    pub benchmark: String,
    /// Both measurements' titles.
    pub titles: [String; 2],
    /// The series' name.
    pub name: String,
    /// The quantity that is compared.
    pub quantity: Quantity,
    /// The unit of both figures here.
    pub unit: Unit,
    /// Which number of many.
    pub statistic: Option<Statistic>,
    /// The meaning of low and high, of both.
    pub spreads: [Spread; 2],
    /// The number of rounds of each, where there were several.
    pub rounds: [Option<u32>; 2],
    /// The horizontal axis.
    pub x: Axis,
    /// The differences in how the two were measured.
    pub differs: Vec<String>,
    /// Places where both have a figure.
    pub rows: Vec<DiffRow>,
    /// The number of places where only one has a figure.
    pub alone: usize,
}

/// Two figures at one place.
#[derive(Clone, Debug, Serialize)]
pub struct DiffRow {
    /// The place.
    pub x: f64,
    /// The name of a category.
    pub label: Option<String>,
    /// The first figure.
    pub a: f64,
    /// The second figure.
    pub b: f64,
    /// How much more the second is, in percent; none where the first is 0.
    pub percent: Option<f64>,
    /// The least and the greatest change if each figure may be that of any of its rounds.
    pub percent_between: Option<[f64; 2]>,
    /// The verdict that the rounds allow.
    pub standing: FigureStanding,
    /// Whether the second is better; none where rounds do not show it, or the quantity has no
    /// better side.
    pub is_better: Option<bool>,
}

/// Compares B with A.
pub fn diff(a: &Loaded, b: &Loaded) -> Diff {
    let mut it = Diff {
        a: format!("{} ({})", a.run.id, a.run.title),
        b: format!("{} ({})", b.run.id, b.run.title),
        differs: compare::differences(&sides([a, b].map(|it| (Some(&it.run), None)))),
        series: Vec::new(),
        apart: Vec::new(),
    };
    for pair in pairs(&a.measurements, &b.measurements) {
        let [one, other] = pair;
        match (one.map(|at| &a.measurements[at]), other.map(|at| &b.measurements[at])) {
            (Some(one), Some(other)) => it.both(one, other),
            (Some(one), None) => it.apart.push(format!("only in A: {}", named(one))),
            (None, Some(other)) => it.apart.push(format!("only in B: {}", named(other))),
            (None, None) => {}
        }
    }
    it
}

/// Keeps the measurements of a run that have these words in their benchmark, title or set-up, in
/// any case of letters. Returns whether there are any, and keeps all if there are none.
pub fn narrow(run: &mut Loaded, words: &str) -> bool {
    let words = words.to_lowercase();
    let is_it = |it: &Measurement| named(it).to_lowercase().contains(&words);
    let has_any = run.measurements.iter().any(is_it);
    if has_any {
        run.measurements.retain(is_it);
    }
    has_any
}

type Whose<'a> = (Option<&'a Run>, Option<&'a Measurement>);

fn sides<'a>(of: [Whose<'a>; 2]) -> [ComparedSide<'a>; 2] {
    let [a, b] = of;
    let side = |name, (run, measurement)| ComparedSide { name, run, measurement };
    [side("A", a), side("B", b)]
}

/// A measurement's benchmark, with the title and set-up that set it apart from others of the
/// benchmark.
fn named(it: &Measurement) -> String {
    let setup: Vec<_> = it.setup.iter().map(|(key, value)| format!("{key} {value}")).collect();
    let setup = if setup.is_empty() { String::new() } else { format!("; {}", setup.join(", ")) };
    format!("{} ({}{setup})", it.benchmark, it.title)
}

/// The pairs of measurements of A and B to compare: those of one kind whose set-ups agree in all
/// keys in which measurements of one run differ. So a local measurement is never compared with a
/// remote one where one of the runs has both. If each run has only one of them, they are compared
/// and the difference is named. Among several candidates, titles decide.
pub(crate) fn pairs(a: &[Measurement], b: &[Measurement]) -> Vec<[Option<usize>; 2]> {
    let (keys_a, keys_b) = (apart_by(a), apart_by(b));
    let mut kinds: BTreeMap<_, [Vec<usize>; 2]> = BTreeMap::new();
    let mut order = Vec::new();
    for (side, all) in [a, b].into_iter().enumerate() {
        for (at, it) in all.iter().enumerate() {
            let what = compare::kind(&it.benchmark);
            let keys = [&keys_a, &keys_b].map(|keys| keys.get(what));
            let keys: BTreeSet<_> = keys.into_iter().flatten().flatten().collect();
            let values: Vec<_> = keys.into_iter().map(|key| it.setup.get(*key)).collect();
            let kind = (what, values);
            if !kinds.contains_key(&kind) {
                order.push(kind.clone());
            }
            kinds.entry(kind).or_default()[side].push(at);
        }
    }
    let mut found = Vec::new();
    for [mut ours, theirs] in order.iter().filter_map(|kind| kinds.remove(kind)) {
        let mut left = theirs;
        let mut pairs = Vec::new();
        ours.retain(|one| {
            let is_it = |other: &usize| a[*one].title == b[*other].title;
            let Some(place) = left.iter().position(is_it) else { return true };
            pairs.push([Some(*one), Some(left.remove(place))]);
            false
        });
        if let ([one], [other]) = (&ours[..], &left[..]) {
            pairs.push([Some(*one), Some(*other)]);
            (ours, left) = (Vec::new(), Vec::new());
        }
        pairs.extend(ours.into_iter().map(|at| [Some(at), None]));
        pairs.extend(left.into_iter().map(|at| [None, Some(at)]));
        found.extend(pairs);
    }
    found
}

/// Keys of set-ups, by kind, in which measurements of one run differ.
fn apart_by(all: &[Measurement]) -> BTreeMap<&str, BTreeSet<&String>> {
    let mut firsts: BTreeMap<&str, &Measurement> = BTreeMap::new();
    let mut found: BTreeMap<&str, BTreeSet<&String>> = BTreeMap::new();
    for it in all {
        let what = compare::kind(&it.benchmark);
        let first = *firsts.entry(what).or_insert(it);
        let keys = first.setup.keys().chain(it.setup.keys());
        let differ = keys.filter(|key| first.setup.get(*key) != it.setup.get(*key));
        // The version is left out: different versions are a common reason to compare.
        found.entry(what).or_default().extend(differ.filter(|key| *key != "version"));
    }
    found
}

impl Diff {
    fn both(&mut self, a: &Measurement, b: &Measurement) {
        let mut differs = compare::differences(&sides([a, b].map(|it| (None, Some(it)))));
        if a.benchmark != b.benchmark {
            differs.insert(0, format!("benchmark: {} (A), {} (B)", a.benchmark, b.benchmark));
        }
        let partner = |mine| compare::partner(a, mine, b);
        let partners: Vec<Option<usize>> = a.series.iter().map(partner).collect();
        let mut taken: BTreeSet<usize> = partners.iter().flatten().copied().collect();
        for (mine, partner) in a.series.iter().zip(partners) {
            let Some(theirs) = partner.map(|at| &b.series[at]) else {
                self.apart.push(alone(a, mine, b, &mut taken));
                continue;
            };
            let mut differs = differs.clone();
            if mine.unit != theirs.unit {
                differs.push(format!("unit: {:?} and {:?}, converted", mine.unit, theirs.unit));
            }
            self.series.extend(compared([a, b], [mine, theirs], differs));
        }
        let left = b.series.iter().enumerate().filter(|(at, _)| !taken.contains(at));
        self.apart.extend(left.map(|(_, theirs)| {
            let Series { quantity, name, .. } = theirs;
            format!("only in B: {quantity} {name}, {}, {}", statistic(theirs), b.benchmark)
        }));
    }
}

/// The sentence about a series of A without a partner. If B has the series with another number of
/// many, the sentence says so, and the series is not listed once more as B's only.
fn alone(a: &Measurement, mine: &Series, b: &Measurement, taken: &mut BTreeSet<usize>) -> String {
    let Series { quantity, name, .. } = mine;
    let is_it = |(at, it): &(usize, &Series)| {
        (it.quantity, &it.name) == (*quantity, name)
            && it.statistic != mine.statistic
            && !taken.contains(at)
    };
    let mine = statistic(mine);
    let Some((at, other)) = b.series.iter().enumerate().find(is_it) else {
        return format!("only in A: {quantity} {name}, {mine}, {}", a.benchmark);
    };
    taken.insert(at);
    let theirs = statistic(other);
    format!("not compared: {quantity} {name}, {}, is {mine} in A and {theirs} in B", a.benchmark)
}

fn statistic(series: &Series) -> &'static str {
    series.statistic.map_or("one number", Statistic::words)
}

fn compared(
    [a, b]: [&Measurement; 2],
    [mine, theirs]: [&Series; 2],
    differs: Vec<String>,
) -> Option<SeriesDiff> {
    let better = mine.quantity.more_is_better();
    let row = |change: Change| {
        let point = &mine.points[change.base];
        let is_more = match change.standing {
            FigureStanding::More => Some(true),
            FigureStanding::Less => Some(false),
            FigureStanding::NotKnown
            | FigureStanding::TooFewRounds
            | FigureStanding::WithinRounds => None,
        };
        DiffRow {
            x: point.x,
            label: point.label.clone(),
            a: change.a,
            b: change.b,
            percent: change.percent,
            percent_between: change.percent_between,
            standing: change.standing,
            is_better: is_more.zip(better).map(|(is_more, better)| is_more == better),
        }
    };
    let rows: Vec<_> = compare::changes(mine, theirs)?.into_iter().map(row).collect();
    Some(SeriesDiff {
        benchmark: a.benchmark.clone(),
        titles: [a.title.clone(), b.title.clone()],
        name: mine.name.clone(),
        quantity: mine.quantity,
        unit: mine.unit,
        statistic: mine.statistic,
        spreads: [mine.spread, theirs.spread],
        rounds: [mine.rounds, theirs.rounds],
        x: mine.x,
        differs,
        alone: mine.points.len() + theirs.points.len() - 2 * rows.len(),
        rows,
    })
}

/// A number with as many digits as matter.
pub fn short(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if size == 0.0 => "0".to_owned(),
        _ if size >= 1e9 => format!("{:.2}G", value / 1e9),
        _ if size >= 1e6 => format!("{:.2}M", value / 1e6),
        _ if size >= 1e4 => format!("{:.1}k", value / 1e3),
        _ if size >= 100.0 => format!("{value:.0}"),
        _ if size >= 10.0 => format!("{value:.1}"),
        _ if size >= 0.01 => format!("{value:.2}"),
        _ => format!("{value:.1e}"),
    }
}

/// A point's place, for a table. Sizes are written with binary units.
pub fn place(axis: Axis, x: f64, label: Option<&str>) -> String {
    const UNITS: [(&str, f64); 3] =
        [("GiB", (1_u64 << 30) as f64), ("MiB", 1_048_576.0), ("KiB", 1024.0)];
    if let Some(label) = label {
        return label.to_owned();
    }
    if axis.unit != Unit::Bytes {
        return format!("{x} {}", axis.unit.symbol()).trim_end().to_owned();
    }
    let unit = UNITS.iter().find(|(_, bytes)| x >= *bytes && x % bytes == 0.0);
    unit.map_or_else(|| format!("{x} B"), |(name, bytes)| format!("{} {name}", x / bytes))
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "A {}\nB {}", self.a, self.b)?;
        self.differs.iter().try_for_each(|it| writeln!(f, "differs: {it}"))?;
        self.series.iter().try_for_each(|it| write!(f, "\n{it}"))?;
        if !self.apart.is_empty() {
            writeln!(f)?;
        }
        self.apart.iter().try_for_each(|it| writeln!(f, "{it}"))
    }
}

impl fmt::Display for SeriesDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let which = self.statistic.map_or(String::new(), |it| format!(", {}", it.words()));
        let [a, b] = &self.titles;
        let titles = if a == b { a.clone() } else { format!("{a} and {b}") };
        let unit = self.unit.symbol();
        let unit = if unit.is_empty() { String::new() } else { format!(", {unit}") };
        let Self { benchmark, name, quantity, .. } = self;
        writeln!(f, "{benchmark}: {quantity} ({name}{which}{unit}) of {titles}")?;
        self.differs.iter().try_for_each(|it| writeln!(f, "  differs: {it}"))?;
        if !self.rows.is_empty() {
            writeln!(f, "  {}", self.says())?;
            let between = if self.has_rounds() { "  between" } else { "" };
            let x = self.x.quantity;
            writeln!(f, "  {x:26} {:>12} {:>12} {:>10}{between}", "A", "B", "change")?;
        }
        for row in &self.rows {
            row.line(f, self.x)?;
        }
        if self.alone > 0 {
            writeln!(f, "  {} figures stand where the other one has none", self.alone)?;
        }
        Ok(())
    }
}

impl SeriesDiff {
    fn has_rounds(&self) -> bool {
        self.spreads == [Spread::Rounds; 2]
    }

    /// The basis of the verdicts, or the reason that there are none.
    fn says(&self) -> String {
        let [a, b] = self.rounds;
        let whose = match [a, b] {
            [Some(a), Some(b)] => {
                let too_few =
                    self.rows.iter().any(|row| row.standing == FigureStanding::TooFewRounds);
                let odds = (1.0 / compare::chance(a, b)).round();
                return if too_few {
                    format!(
                        "no verdict: {a} and {b} rounds of one and the same lie apart in one of \
                         {odds} cases by chance"
                    )
                } else {
                    format!("better or worse: where all {a} rounds of A and {b} of B lie apart")
                };
            }
            [Some(_), None] => "B is",
            [None, Some(_)] => "A is",
            [None, None] => "each is",
        };
        format!("no verdict: {whose} of one run, and the spread between runs is not measured")
    }
}

impl DiffRow {
    fn line(&self, f: &mut fmt::Formatter<'_>, axis: Axis) -> fmt::Result {
        let place = place(axis, self.x, self.label.as_deref());
        let [a, b] = [self.a, self.b].map(short);
        let percent = self.percent.map_or("-".to_owned(), |it| format!("{it:+.1} %"));
        let between = self
            .percent_between
            .map_or(String::new(), |[least, most]| format!("{least:+.1} to {most:+.1} %"));
        let verdict = match (self.standing, self.is_better) {
            (FigureStanding::WithinRounds, _) => " (within the rounds)",
            (_, Some(true)) => " better",
            (_, Some(false)) => " worse",
            (_, None) => "",
        };
        let line = format!("  {place:26} {a:>12} {b:>12} {percent:>10}  {between}{verdict}");
        writeln!(f, "{}", line.trim_end())
    }
}

#[cfg(test)]
#[path = "diff/tests.rs"]
mod tests;
