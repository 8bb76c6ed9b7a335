//! Two runs side by side: the relative change, point by point, and what else differs.

use std::fmt;

use serde::Serialize;

use crate::result::{Axis, Measurement, Point, Series, Spread, Statistic};
use crate::store::Loaded;
use crate::unit::{Against, Quantity, Unit};

/// How much two round trips of a cache line may differ until they are of two levels.
const LEVEL: f64 = 1.5;

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Diff {
    /// The first run's name and title: what is compared with.
    pub a: String,
    /// The second one's: whose change is told.
    pub b: String,
    /// What differs between the runs besides figures: machine, build, level.
    pub differs: Vec<String>,
    /// What both have.
    pub series: Vec<SeriesDiff>,
    /// What only one of them has, or what is of one thing but not told in comparable numbers.
    pub apart: Vec<String>,
}

/// A series that both have.
#[derive(Clone, Debug, Serialize)]
pub struct SeriesDiff {
    /// Of which benchmark.
    pub benchmark: String,
    /// Both measurements' titles.
    pub titles: [String; 2],
    /// The series' name.
    pub name: String,
    /// What is compared.
    pub quantity: Quantity,
    /// In what both are told here.
    pub unit: Unit,
    /// Which number of many.
    pub statistic: Option<Statistic>,
    /// What low and high were, of both.
    pub spreads: [Spread; 2],
    /// Against what.
    pub x: Axis,
    /// What differs in how both were measured.
    pub differs: Vec<String>,
    /// Where both have a figure.
    pub rows: Vec<Row>,
    /// Places where only one has.
    pub alone: usize,
}

/// Two figures at one place.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Where.
    pub x: f64,
    /// Of a category, its name.
    pub label: Option<String>,
    /// The first one.
    pub a: f64,
    /// The second one.
    pub b: f64,
    /// How much more the second is, in percent; none where the first is nothing.
    pub percent: Option<f64>,
    /// Between what the change lies if the figures may lie anywhere in their spreads.
    pub percent_between: Option<[f64; 2]>,
    /// Whether that leaves open which one is more.
    pub is_open: bool,
    /// Whether the second is better by it; none where it is open, equal, or nobody can say.
    pub is_better: Option<bool>,
}

/// Compares B with A.
pub fn diff(a: &Loaded, b: &Loaded) -> Diff {
    let mut it = Diff {
        a: format!("{} ({})", a.run.id, a.run.title),
        b: format!("{} ({})", b.run.id, b.run.title),
        differs: machines(a, b),
        series: Vec::new(),
        apart: Vec::new(),
    };
    let mut taken = vec![false; b.measurements.len()];
    for mine in &a.measurements {
        match nearest(mine, &b.measurements, &taken) {
            None => it.apart.push(format!("only in A: {} ({})", mine.benchmark, mine.title)),
            Some(at) => {
                taken[at] = true;
                it.both(mine, &b.measurements[at]);
            }
        }
    }
    for (other, _) in b.measurements.iter().zip(taken).filter(|(_, taken)| !taken) {
        it.apart.push(format!("only in B: {} ({})", other.benchmark, other.title));
    }
    it
}

/// The measurement of the same benchmark that was measured most alike, of those that are left.
fn nearest(mine: &Measurement, all: &[Measurement], taken: &[bool]) -> Option<usize> {
    let left =
        all.iter().enumerate().filter(|(at, it)| !taken[*at] && it.benchmark == mine.benchmark);
    let far = |it: &Measurement| (setups(mine, it).len(), it.title != mine.title);
    left.min_by_key(|(_, it)| far(it)).map(|(at, _)| at)
}

/// Where two set-ups differ, in words.
fn setups(a: &Measurement, b: &Measurement) -> Vec<String> {
    let mut keys: Vec<_> = a.setup.keys().chain(b.setup.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let differ = keys.into_iter().filter(|key| a.setup.get(*key) != b.setup.get(*key));
    let of = |it: &Measurement, key: &String| {
        it.setup.get(key).map_or_else(|| "not told".to_owned(), Clone::clone)
    };
    differ.map(|key| format!("{key}: {} and {}", of(a, key), of(b, key))).collect()
}

/// Whether two round trips are so far apart that they are of two levels.
fn are_two_levels(one: u64, other: u64) -> bool {
    one.max(other) as f64 > LEVEL * one.min(other) as f64
}

/// What differs in where two runs were measured.
fn machines(a: &Loaded, b: &Loaded) -> Vec<String> {
    let (Some(one), Some(other)) = (&a.run.machine, &b.run.machine) else {
        let which = match (&a.run.machine, &b.run.machine) {
            (None, None) => "both were",
            (None, _) => "A was",
            _ => "B was",
        };
        return vec![format!("machine: nobody knows where {which} measured")];
    };
    let none = || "not told".to_owned();
    let words = |it: &Option<String>| it.clone().unwrap_or_else(none);
    let pairs = [
        ("processor", one.processor.clone(), other.processor.clone()),
        ("cores", one.cores.to_string(), other.cores.to_string()),
        ("kernel", one.kernel.clone(), other.kernel.clone()),
        ("version of vrio", words(&one.version), words(&other.version)),
        ("commit", words(&one.commit), words(&other.commit)),
    ];
    let differ = pairs.into_iter().filter(|(_, one, other)| one != other);
    let mut all: Vec<_> =
        differ.map(|(what, one, other)| format!("{what}: {one} and {other}")).collect();
    if one.optimised != other.optimised {
        all.push("build: one is optimised and the other is not".to_owned());
    }
    let levels = one.cache_line_round_trip_ns.zip(other.cache_line_round_trip_ns);
    if let Some((one, other)) = levels.filter(|(one, other)| are_two_levels(*one, *other)) {
        all.push(format!("level: a cache line's round trip takes {one} ns and {other} ns"));
    }
    all
}

/// The same around two measurements.
fn levels(a: &Measurement, b: &Measurement) -> Option<String> {
    let of = |it: &Measurement| it.cache_line_round_trips_ns.iter().copied().max();
    let (one, other) = of(a).zip(of(b))?;
    let said = format!("level: a cache line's round trip took {one} ns and {other} ns");
    are_two_levels(one, other).then_some(said)
}

impl Diff {
    fn both(&mut self, a: &Measurement, b: &Measurement) {
        let mut differs = setups(a, b);
        differs.extend(levels(a, b));
        for mine in &a.series {
            let told = format!("{} {}, {}", mine.quantity, mine.name, a.benchmark);
            let found = b.series.iter().find(|it| is_same(mine, it)).or_else(|| only(a, b, mine));
            let Some(theirs) = found else {
                let other = b.series.iter().find(|it| it.quantity == mine.quantity);
                self.apart.push(match other.filter(|it| it.statistic != mine.statistic) {
                    Some(other) => {
                        let words = [mine, other].map(statistic);
                        format!("not compared: {told} is {} in A and {} in B", words[0], words[1])
                    }
                    None => format!("only in A: {told}"),
                });
                continue;
            };
            let mut differs = differs.clone();
            if mine.unit != theirs.unit {
                differs.push(format!("unit: {:?} and {:?}, converted", mine.unit, theirs.unit));
            }
            self.series.push(compared([a, b], [mine, theirs], differs));
        }
        for theirs in &b.series {
            let is_there =
                a.series.iter().any(|it| is_same(it, theirs) || it.quantity == theirs.quantity);
            if !is_there {
                let told = format!("{} {}, {}", theirs.quantity, theirs.name, b.benchmark);
                self.apart.push(format!("only in B: {told}"));
            }
        }
    }
}

fn statistic(series: &Series) -> &'static str {
    series.statistic.map_or("one number", Statistic::words)
}

fn is_alike(a: &Series, b: &Series) -> bool {
    (a.quantity, a.statistic, a.x.quantity) == (b.quantity, b.statistic, b.x.quantity)
}

fn is_same(a: &Series, b: &Series) -> bool {
    a.name == b.name && is_alike(a, b)
}

/// Where each has only one of a kind, their names do not matter.
fn only<'a>(a: &Measurement, b: &'a Measurement, mine: &Series) -> Option<&'a Series> {
    let mut theirs = b.series.iter().filter(|it| is_alike(mine, it));
    let is_alone = a.series.iter().filter(|it| is_alike(mine, it)).count() == 1;
    match (is_alone, theirs.next(), theirs.next()) {
        (true, Some(one), None) => Some(one),
        _ => None,
    }
}

fn compared(
    [a, b]: [&Measurement; 2],
    [mine, theirs]: [&Series; 2],
    differs: Vec<String>,
) -> SeriesDiff {
    let better = mine.quantity.more_is_better();
    let is_place = |one: &Point, other: &Point| match mine.x.quantity {
        Against::Category => one.label == other.label,
        _ => theirs.x.unit.convert(other.x, mine.x.unit) == Some(one.x),
    };
    let row = |one: &Point| {
        let other = theirs.points.iter().find(|other| is_place(one, other))?;
        Row::of(one, other, |y| theirs.unit.convert(y, mine.unit), better)
    };
    let rows: Vec<_> = mine.points.iter().filter_map(row).collect();
    SeriesDiff {
        benchmark: a.benchmark.clone(),
        titles: [a.title.clone(), b.title.clone()],
        name: mine.name.clone(),
        quantity: mine.quantity,
        unit: mine.unit,
        statistic: mine.statistic,
        spreads: [mine.spread, theirs.spread],
        x: mine.x,
        differs,
        alone: mine.points.len() + theirs.points.len() - 2 * rows.len().min(theirs.points.len()),
        rows,
    }
}

impl Row {
    fn of(
        one: &Point,
        other: &Point,
        convert: impl Fn(f64) -> Option<f64>,
        more_is_better: Option<bool>,
    ) -> Option<Self> {
        let b = convert(other.y)?;
        let change = |from: f64, to: f64| (from != 0.0).then(|| (to / from - 1.0) * 100.0);
        let percent = change(one.y, b);
        let ends = |it: &Point| [it.low.unwrap_or(it.y), it.high.unwrap_or(it.y)];
        let has_spread = one.low.or(one.high).or(other.low).or(other.high).is_some();
        let (from, to) = (ends(one), ends(other).map(&convert));
        let least = change(from[1], to[0]?);
        let between = least.zip(change(from[0], to[1]?)).filter(|_| has_spread);
        let is_open = between.is_some_and(|(least, most)| least <= 0.0 && most >= 0.0);
        let is_more = percent.filter(|percent| *percent != 0.0 && !is_open);
        Some(Self {
            x: one.x,
            label: one.label.clone(),
            a: one.y,
            b,
            percent,
            percent_between: between.map(|(least, most)| [least, most]),
            is_open,
            is_better: is_more.zip(more_is_better).map(|(percent, more)| (percent > 0.0) == more),
        })
    }
}

/// A number with as many digits as mean something.
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

/// Where a point stands, for a table: sizes as people write them.
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
        let [one, other] = self.spreads.map(Spread::words);
        if !one.is_empty() || !other.is_empty() {
            let none = |words: &'static str| if words.is_empty() { "none" } else { words };
            let (one, other) = (none(one), none(other));
            let both =
                if one == other { one.to_owned() } else { format!("{one} of A, {other} of B") };
            writeln!(f, "  spread: {both}")?;
        }
        writeln!(f, "  {:26} {:>12} {:>12} {:>10}  between", self.x.quantity, "A", "B", "change")?;
        for row in &self.rows {
            row.line(f, self.x)?;
        }
        if self.alone > 0 {
            writeln!(f, "  {} figures stand where the other one has none", self.alone)?;
        }
        Ok(())
    }
}

impl Row {
    fn line(&self, f: &mut fmt::Formatter<'_>, axis: Axis) -> fmt::Result {
        let place = place(axis, self.x, self.label.as_deref());
        let [a, b] = [self.a, self.b].map(short);
        let percent = self.percent.map_or("-".to_owned(), |it| format!("{it:+.1} %"));
        let between = self
            .percent_between
            .map_or(String::new(), |[least, most]| format!("{least:+.1} to {most:+.1} %"));
        let verdict = match (self.is_open, self.is_better) {
            (true, _) => " (within the spread)",
            (false, Some(true)) => " better",
            (false, Some(false)) => " worse",
            (false, None) => "",
        };
        let line = format!("  {place:26} {a:>12} {b:>12} {percent:>10}  {between}{verdict}");
        writeln!(f, "{}", line.trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Machine, Origin, Run};

    fn latency(scale: f64, spread: Spread) -> Loaded {
        let mut it = Measurement::new(Origin::Imported, "osu_latency", "a job");
        it.source = Some("x".to_owned());
        let ends = |y: f64| (!spread.is_none()).then_some(y);
        let point = |(x, y): (f64, f64)| {
            let y = y * scale;
            Point { low: ends(y * 0.9), high: ends(y * 1.1), ..Point::new(x, y) }
        };
        let points = [(1.0, 2.0), (1024.0, 4.0)].map(point).to_vec();
        let series = Series::new("latency", Quantity::Latency, Unit::Us, Axis::MESSAGE_SIZE);
        it.series.push(Series { spread, points, ..series });
        Loaded { run: Run::now("osu", "a job"), measurements: vec![it] }
    }

    fn machine(processor: &str, trip: u64) -> Machine {
        Machine {
            processor: processor.to_owned(),
            cores: 2,
            kernel: "6.1".to_owned(),
            cache_line_round_trip_ns: Some(trip),
            version: None,
            commit: None,
            optimised: Some(true),
        }
    }

    #[test]
    fn a_change_is_told_in_percent_with_its_spread() {
        let it = diff(&latency(1.0, Spread::P5P95), &latency(1.5, Spread::P5P95));
        let row = &it.series[0].rows[0];
        assert_eq!((row.a, row.b, row.percent), (2.0, 3.0, Some(50.0)));
        let [least, most] = row.percent_between.unwrap();
        assert!((least - (2.7 / 2.2 - 1.0) * 100.0).abs() < 1e-9, "{row:?}");
        assert!((most - (3.3 / 1.8 - 1.0) * 100.0).abs() < 1e-9, "{row:?}");
        assert_eq!((row.is_open, row.is_better), (false, Some(false)));
        let said = it.to_string();
        assert!(
            said.contains("1 KiB") && said.contains("+50.0 %") && said.contains(" worse"),
            "{said}"
        );
        assert!(said.contains("spread: 5th to 95th percentile"), "{said}");
        let near = diff(&latency(1.0, Spread::P5P95), &latency(1.05, Spread::P5P95));
        assert!(near.series[0].rows[0].is_open && near.to_string().contains("within the spread"));
        let bare = diff(&latency(1.0, Spread::None), &latency(0.5, Spread::None));
        let row = &bare.series[0].rows[0];
        assert_eq!((row.percent_between, row.is_better), (None, Some(true)));
    }

    #[test]
    fn units_of_one_dimension_are_converted_and_that_is_said() {
        let mut b = latency(1.0, Spread::None);
        let series = &mut b.measurements[0].series[0];
        series.unit = Unit::Ms;
        series.points.iter_mut().for_each(|it| it.y /= 500.0);
        let it = diff(&latency(1.0, Spread::None), &b);
        assert_eq!(it.series[0].rows[0].percent, Some(100.0));
        assert_eq!(it.series[0].differs, ["unit: Us and Ms, converted"]);
    }

    #[test]
    fn another_machine_or_level_or_set_up_is_said() {
        let (mut a, mut b) = (latency(1.0, Spread::None), latency(1.0, Spread::None));
        assert!(diff(&a, &b).differs[0].contains("nobody knows where both were measured"));
        a.run.machine = Some(machine("one", 46));
        assert!(diff(&a, &b).differs[0].contains("where B was measured"));
        b.run.machine = Some(machine("another", 105));
        b.measurements[0].setup.insert("mpi".to_owned(), "MPICH".to_owned());
        b.measurements[0].cache_line_round_trips_ns = vec![105];
        a.measurements[0].cache_line_round_trips_ns = vec![46];
        let it = diff(&a, &b);
        let level = "level: a cache line's round trip takes 46 ns and 105 ns";
        assert_eq!(it.differs, ["processor: one and another", level]);
        let differs = &it.series[0].differs;
        assert_eq!(differs[0], "mpi: not told and MPICH");
        assert!(differs[1].contains("took 46 ns and 105 ns"), "{differs:?}");
        b.run.machine = Some(machine("one", 60));
        assert!(diff(&a, &b).differs.is_empty());
    }

    #[test]
    fn a_mean_is_not_compared_with_a_median() {
        let (mut a, mut b) = (latency(1.0, Spread::None), latency(1.0, Spread::None));
        a.measurements[0].series[0].statistic = Some(Statistic::Mean);
        b.measurements[0].series[0].statistic = Some(Statistic::Median);
        let it = diff(&a, &b);
        assert!(it.series.is_empty(), "{it:?}");
        let said = "not compared: latency latency, osu_latency is mean in A and median in B";
        assert_eq!(it.apart, [said]);
    }

    #[test]
    fn what_only_one_has_is_said() {
        let (a, mut b) = (latency(1.0, Spread::None), latency(1.0, Spread::None));
        b.measurements[0].series[0].points.pop();
        b.measurements.push(Measurement::new(Origin::Measured, "block", "a disk"));
        let it = diff(&a, &b);
        assert_eq!((it.series[0].rows.len(), it.series[0].alone), (1, 1));
        assert_eq!(it.apart, ["only in B: block (a disk)"]);
        let nothing = diff(&a, &Loaded { measurements: Vec::new(), ..b });
        assert_eq!(nothing.apart, ["only in A: osu_latency (a job)"]);
    }

    #[test]
    fn nothing_is_divided_by_nothing() {
        let mut a = latency(1.0, Spread::None);
        a.measurements[0].series[0].points[0].y = 0.0;
        let row = diff(&a, &latency(1.0, Spread::None)).series[0].rows[0].clone();
        assert_eq!((row.percent, row.is_better), (None, None));
    }

    #[test]
    fn places_and_numbers_are_short() {
        let of = |x| place(Axis::MESSAGE_SIZE, x, None);
        assert_eq!([1.0, 1500.0, 4096.0, 3_145_728.0].map(of), ["1 B", "1500 B", "4 KiB", "3 MiB"]);
        assert_eq!(place(Axis::QUEUE_DEPTH, 8.0, None), "8");
        assert_eq!(place(Axis::CATEGORY, 0.0, Some("kicks")), "kicks");
        let shown = [0.0, 0.5, 12.34, 123.4, 12_345.0, 3.8e9].map(short);
        assert_eq!(shown, ["0", "0.50", "12.3", "123", "12.3k", "3.80G"]);
    }
}
