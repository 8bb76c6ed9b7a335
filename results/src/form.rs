//! The form of a result: the types of `docs/results.schema.json`, version [`SCHEMA`].
//!
//! A [`Run`] holds the measurements of one command on one machine. It is a directory with a
//! `run.json`, which describes the machine and the command, and one file for each [`Measurement`].
//! A measurement has [`Series`], a series has [`Point`]s.

use std::collections::BTreeMap;
use std::time::SystemTime;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::schema::{self, Form, Misfit};
use crate::unit::{Against, Quantity, Unit};

/// The version of the files. Files of another version are refused: a reader would drop fields that
/// it does not know.
pub const SCHEMA: u32 = 1;

/// Series of one measurement: many more than a plot can show apart.
pub const SERIES_MAX: usize = 256;

/// Points of one series: a time line of ten minutes with a point each hundredth of a second.
pub const POINTS_MAX: usize = 60_000;

/// Bytes of a title, a name or a note: a paragraph.
pub const WORDS_MAX: usize = 4096;

/// Entries of one kind in one file: keys of a set-up, notes, empty cells.
pub const ENTRIES_MAX: usize = 1024;

/// The measurements of one command on one machine: `run.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The version of the file: [`SCHEMA`].
    pub schema: u32,
    /// Its name in the store, which is its directory's: `20261122-225103-block`.
    pub id: String,
    /// The time of its beginning, as RFC 3339 in UTC: `2026-11-22T22:51:03Z`. For an imported run,
    /// the time of the import.
    pub begun: String,
    /// The title for a reader.
    pub title: String,
    /// The command, word by word; empty if it is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The machine; none if it is not known, as for an imported run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// Programs that took part, and their versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tools: BTreeMap<String, String>,
    /// Remarks for a reader about the whole run, such as that it was ended early.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The machine and the build.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The processor's model name.
    pub processor: String,
    /// Cores that the measurement could use.
    pub cores: u32,
    /// The kernel's release.
    pub kernel: String,
    /// How long a cache line takes between two cores and back; none with one core, or if it was not
    /// measured. Machines in a cloud have several levels of it, and figures of two levels do not
    /// compare.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_line_round_trip_ns: Option<u64>,
    /// The version of vrio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The commit that it was built from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Whether the build was optimised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optimised: Option<bool>,
}

impl Machine {
    /// Whether the other machine and build are the same. The level of the cache line is left out,
    /// since it comes and goes.
    pub fn is_same(&self, other: Option<&Self>) -> bool {
        let bare = |it: &Self| Self { cache_line_round_trip_ns: None, ..it.clone() };
        other.is_some_and(|other| bare(self) == bare(other))
    }
}

/// The origin of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunOrigin {
    /// Measured here by vrio.
    Measured,
    /// Measured by another program, whose output was read.
    Imported,
    /// Measured by others, long ago, and read from their text. Never drawn as if it were measured
    /// here.
    Published,
    /// Computed by the planner: nothing was measured.
    Planned,
}

/// The outcome of one benchmark: one file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// The version of the file: [`SCHEMA`].
    pub schema: u32,
    /// The origin of the figures.
    pub origin: RunOrigin,
    /// For published figures, the place of the publication; for imported figures, the file's name;
    /// for planned figures, the origin of the numbers that they are computed of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The benchmark, in a word: `block`, `net`, `osu_latency`, `fio`. Measurements of two
    /// benchmarks are not compared.
    pub benchmark: String,
    /// The title for a reader; short, since legends have it.
    pub title: String,
    /// The settings: `path`, `idle`, `driver`, `mpi`, `provider` and so on, each with its value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub setup: BTreeMap<String, String>,
    /// Round trips of a cache line around the measurement, in nanoseconds: before and after it, or
    /// none. If they differ much, the cores have moved during the measurement.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cache_line_round_trips_ns: Vec<u64>,
    /// The figures.
    pub series: Vec<Series>,
    /// Figures that could not be measured. Their places stay empty: no other figure stands in for
    /// them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub empty: Vec<Empty>,
    /// Remarks for a reader.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// For published figures: the sentences of the text, word for word.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quotations: Vec<String>,
    /// For published figures: where the text contradicts itself, or contradicts known facts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub misprints: Vec<String>,
}

/// Figures of one quantity against another quantity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// The name that sets the series apart from the others of its measurement.
    pub name: String,
    /// The quantity that is measured.
    pub quantity: Quantity,
    /// The unit of the figures.
    pub unit: Unit,
    /// Which number of many it is, where there were many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistic: Option<Statistic>,
    /// The horizontal axis.
    pub x: Axis,
    /// The meaning of each point's `low` and `high`.
    #[serde(default, skip_serializing_if = "Spread::is_none")]
    pub spread: Spread,
    /// The number of rounds of each figure, two at least, where the spread is of rounds. A verdict
    /// needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<u32>,
    /// The most that the line could carry, in the series' unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line_rate: Option<f64>,
    /// The figures, in the order of `x`.
    pub points: Vec<Point>,
}

/// The horizontal axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// The quantity of the axis.
    pub quantity: Against,
    /// The unit of the axis.
    pub unit: Unit,
}

impl Axis {
    /// The bytes of a message, frame or request.
    pub const MESSAGE_SIZE: Self = Self { quantity: Against::MessageSize, unit: Unit::Bytes };
    /// The requests outstanding.
    pub const QUEUE_DEPTH: Self = Self { quantity: Against::QueueDepth, unit: Unit::Count };
    /// Polling cores.
    pub const SIDECORES: Self = Self { quantity: Against::Sidecores, unit: Unit::Count };
    /// Servers.
    pub const SERVERS: Self = Self { quantity: Against::Servers, unit: Unit::Count };
    /// Bursts that guests have at the same time.
    pub const CORRELATION: Self = Self { quantity: Against::Correlation, unit: Unit::Percent };
    /// Seconds.
    pub const SECONDS: Self = Self { quantity: Against::Time, unit: Unit::S };
    /// Names.
    pub const CATEGORY: Self = Self { quantity: Against::Category, unit: Unit::Name };
}

/// One figure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// The place; for a category, its number from 0.
    pub x: f64,
    /// The end of a stretch: the figure is of everything from `x` to here ("below 128 bytes").
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x_to: Option<f64>,
    /// The name of a category.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The figure.
    pub y: f64,
    /// The lower end of the spread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// The upper end of the spread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    /// The precision of the figure: only published figures may be other than exact.
    #[serde(default, skip_serializing_if = "Meant::is_exact")]
    pub meant: Meant,
    /// For a published figure, the words with the figure, which stand in a quotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
}

/// The precision of a figure, in the words of its text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Meant {
    /// The figure as it stands.
    #[default]
    Exact,
    /// "About", "roughly".
    About,
    /// "Less than", "never surpasses".
    AtMost,
    /// "Over", "a minimum of".
    AtLeast,
}

impl Meant {
    /// Lets serde skip the field.
    fn is_exact(&self) -> bool {
        *self == Self::Exact
    }
}

/// The number that represents many: a mean, a median and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Statistic {
    /// The mean.
    Mean,
    /// The median: half of the values are no larger.
    Median,
    /// The 90th percentile: 90 of 100 values are no larger.
    P90,
    /// The 99th percentile: 99 of 100 values are no larger.
    P99,
    /// The 99.9th percentile: 999 of 1000 values are no larger.
    P999,
    /// The least.
    Min,
    /// The most.
    Max,
}

/// The meaning of a point's `low` and `high`, so that a bar's caption can name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spread {
    /// The points have no spread.
    #[default]
    None,
    /// The least and the most of several rounds, each of which repeated the whole measurement: how
    /// well the figure is known. All other spreads say how single events differ within one round.
    Rounds,
    /// The least and the most.
    MinMax,
    /// The first and the third quartile.
    Iqr,
    /// The 5th and the 95th percentile.
    P5P95,
    /// The 1st and the 99th percentile.
    P1P99,
    /// The median and the 99th percentile.
    P50P99,
    /// The mean, less and more one standard deviation.
    StandardDeviation,
}

impl Spread {
    /// Whether there is no spread.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }

    /// The words for a caption; nothing without a spread.
    pub fn words(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Rounds => "least to most of the rounds",
            Self::MinMax => "least to most",
            Self::Iqr => "middle half",
            Self::P5P95 => "5th to 95th percentile",
            Self::P1P99 => "1st to 99th percentile",
            Self::P50P99 => "median to 99th percentile",
            Self::StandardDeviation => "± one standard deviation",
        }
    }
}

/// A figure that could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Empty {
    /// The name of the figure.
    pub what: String,
    /// The reason.
    pub why: String,
}

/// A fault in the text of a file. The reader adds the file's name.
#[derive(Debug, Error)]
pub enum ResultError {
    /// The text is not JSON, or a field is missing, unknown or of another kind.
    #[error("line {}, column {}: {}", .0.line(), .0.column(), bare(.0))]
    Form(serde_json::Error),
    /// The file has another version.
    #[error(
        "it is of version {found} of the results' form, and this vrio knows version {SCHEMA}: \
         use the vrio that wrote it, or measure again"
    )]
    Version {
        /// The version of the file.
        found: u64,
    },
    /// The text has no version.
    #[error("it has no \"schema\" number, so it is no result of vrio's")]
    NoVersion,
    /// The text breaks the schema by which other programs read it.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// A rule beyond the form is broken.
    #[error("{place}: {what}")]
    Rule {
        /// The place, as a path of fields.
        place: String,
        /// The fault.
        what: String,
    },
}

/// The text of serde's error, without the place that serde adds.
fn bare(error: &serde_json::Error) -> String {
    let said = error.to_string();
    said.split_once(" at line ").map_or(said.clone(), |(bare, _)| bare.to_owned())
}

pub(crate) fn rule(place: impl Into<String>, what: impl Into<String>) -> ResultError {
    ResultError::Rule { place: place.into(), what: what.into() }
}

/// Reads any of the files. It checks the version first, and then the type, the rules and the
/// schema.
fn read<T: DeserializeOwned>(
    text: &str,
    form: Form,
    check: impl Fn(&T) -> Result<(), ResultError>,
) -> Result<T, ResultError> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(ResultError::Form)?;
    match value.get("schema").and_then(serde_json::Value::as_u64) {
        None => return Err(ResultError::NoVersion),
        Some(found) if found != u64::from(SCHEMA) => return Err(ResultError::Version { found }),
        Some(_) => {}
    }
    // The text is parsed again, since a parsed value does not know its lines.
    let read = serde_json::from_str(text).map_err(ResultError::Form)?;
    check(&read)?;
    schema::check(form, &value)?;
    Ok(read)
}

fn check_words<'a>(
    place: &str,
    words: impl IntoIterator<Item = &'a String>,
) -> Result<(), ResultError> {
    for (at, word) in words.into_iter().enumerate() {
        if at >= ENTRIES_MAX {
            return Err(rule(place, format!("more than {ENTRIES_MAX} entries")));
        }
        if word.len() > WORDS_MAX {
            return Err(rule(format!("{place}[{at}]"), format!("longer than {WORDS_MAX} bytes")));
        }
    }
    Ok(())
}

impl Run {
    /// A run that begins now. Its name consists of the time and a word for its kind.
    pub fn now(kind: &str, title: &str) -> Self {
        Self::begun_at(SystemTime::now(), kind, title)
    }

    /// A run that began then. A time that no calendar has becomes the present time.
    pub fn begun_at(begun: SystemTime, kind: &str, title: &str) -> Self {
        let begun = Timestamp::try_from(begun).unwrap_or_else(|_| Timestamp::now());
        Self {
            schema: SCHEMA,
            id: format!("{}-{}", begun.strftime("%Y%m%d-%H%M%S"), file_word(kind)),
            begun: begun.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            title: title.to_owned(),
            command: Vec::new(),
            machine: None,
            tools: Default::default(),
            notes: Vec::new(),
        }
    }

    /// Reads a `run.json`.
    ///
    /// # Errors
    /// When the text is no `run.json`, or of another version.
    pub fn read(text: &str) -> Result<Self, ResultError> {
        read(text, Form::Run, Self::check)
    }

    /// Checks the rules that the form cannot express.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), ResultError> {
        if self.schema != SCHEMA {
            return Err(ResultError::Version { found: u64::from(self.schema) });
        }
        if !is_id(&self.id) {
            return Err(rule("id", "it takes letters, digits, '-', '_' and '.', 100 at most"));
        }
        check_words("title", [&self.title, &self.begun])?;
        check_words("command", &self.command)?;
        check_words("notes", &self.notes)?;
        check_words("tools", self.tools.iter().flat_map(|(name, version)| [name, version]))
    }
}

/// Whether the name can be a directory's name on every system, and does not lead out of the store.
pub fn is_id(id: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=100).contains(&id.len()) && id.chars().all(plain) && !id.starts_with('.')
}

/// A word that can be a part of a file's name.
pub fn file_word(word: &str) -> String {
    let short = word.chars().take(60);
    short.map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' }).collect()
}

impl Measurement {
    /// A measurement without figures.
    pub fn new(origin: RunOrigin, benchmark: &str, title: &str) -> Self {
        Self {
            schema: SCHEMA,
            origin,
            source: None,
            benchmark: benchmark.to_owned(),
            title: title.to_owned(),
            setup: BTreeMap::new(),
            cache_line_round_trips_ns: Vec::new(),
            series: Vec::new(),
            empty: Vec::new(),
            notes: Vec::new(),
            quotations: Vec::new(),
            misprints: Vec::new(),
        }
    }

    /// Sets the line's rate, of one way, for all bandwidths that have none.
    pub fn set_line_rate(&mut self, bits_per_s: f64) {
        for series in &mut self.series {
            let ways = match series.quantity {
                Quantity::Bandwidth => 1.0,
                Quantity::BidirectionalBandwidth => 2.0,
                _ => continue,
            };
            let rate = Unit::BitsPerS.convert(bits_per_s * ways, series.unit);
            series.line_rate = series.line_rate.or(rate);
        }
    }

    /// Reads a measurement's file.
    ///
    /// # Errors
    /// When the text is no measurement, or of another version, or breaks a rule.
    pub fn read(text: &str) -> Result<Self, ResultError> {
        read(text, Form::Measurement, Self::check)
    }

    /// Checks the rules that the form cannot express: limits, units that fit, numbers in order.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), ResultError> {
        if self.schema != SCHEMA {
            return Err(ResultError::Version { found: u64::from(self.schema) });
        }
        if self.benchmark.is_empty() || self.title.is_empty() {
            return Err(rule("title", "a measurement has a benchmark and a title"));
        }
        if self.origin != RunOrigin::Measured && self.source.is_none() {
            return Err(rule("source", "a measurement that is not vrio's needs a source"));
        }
        if self.series.len() > SERIES_MAX {
            return Err(rule("series", format!("more than {SERIES_MAX}")));
        }
        check_words("title", [&self.benchmark, &self.title])?;
        check_words("source", &self.source)?;
        check_words("setup", self.setup.iter().flat_map(|(key, value)| [key, value]))?;
        check_words("empty", self.empty.iter().flat_map(|Empty { what, why }| [what, why]))?;
        check_words("notes", &self.notes)?;
        check_words("quotations", &self.quotations)?;
        check_words("misprints", &self.misprints)?;
        for (at, series) in self.series.iter().enumerate() {
            let place = format!("series[{at}]");
            series.check(&place)?;
            // Noise takes a measured difference below nothing, but not a figure that was computed.
            let is_below =
                |point: &Point| [Some(point.y), point.low].iter().flatten().any(|y| *y < 0.0);
            if self.origin == RunOrigin::Planned
                && !series.quantity.is_change()
                && let Some(at) = series.points.iter().position(is_below)
            {
                let what = format!("a planned {} is not below 0", series.quantity);
                return Err(rule(format!("{place}.points[{at}]"), what));
            }
        }
        Ok(())
    }
}

impl Series {
    /// A series without figures and without a spread.
    pub fn new(name: &str, quantity: Quantity, unit: Unit, x: Axis) -> Self {
        Self {
            name: name.to_owned(),
            quantity,
            unit,
            statistic: None,
            x,
            spread: Spread::None,
            rounds: None,
            line_rate: None,
            points: Vec::new(),
        }
    }

    fn check(&self, place: &str) -> Result<(), ResultError> {
        let Self { quantity, unit, x, points, .. } = self;
        if quantity.dimension() != unit.dimension() {
            return Err(rule(
                format!("{place}.unit"),
                format!("{quantity} is not told in {unit:?}"),
            ));
        }
        if x.quantity.dimension() != x.unit.dimension() {
            let what = format!("{:?} is not told in {:?}", x.quantity, x.unit);
            return Err(rule(format!("{place}.x.unit"), what));
        }
        check_words(&format!("{place}.name"), [&self.name])?;
        if points.len() > POINTS_MAX {
            return Err(rule(format!("{place}.points"), format!("more than {POINTS_MAX}")));
        }
        if self.line_rate.is_some_and(|rate| !(rate.is_finite() && rate > 0.0)) {
            return Err(rule(format!("{place}.line_rate"), "it is more than nothing"));
        }
        let is_of_rounds = self.spread == Spread::Rounds;
        if self.rounds.is_some() != is_of_rounds || self.rounds.is_some_and(|rounds| rounds < 2) {
            let what = "a spread of rounds has their number, 2 or more, and no other one has it";
            return Err(rule(format!("{place}.rounds"), what));
        }
        for (at, point) in points.iter().enumerate() {
            let refused = |what| rule(format!("{place}.points[{at}]"), what);
            point.check(x.quantity, self.spread).map_err(refused)?;
        }
        match points.windows(2).position(|two| two[1].x < two[0].x) {
            Some(at) => Err(rule(format!("{place}.points[{}]", at + 1), "its x goes back")),
            None => Ok(()),
        }
    }
}

impl Statistic {
    /// The words for a table or a legend.
    pub fn words(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Median => "median",
            Self::P90 => "p90",
            Self::P99 => "p99",
            Self::P999 => "p99.9",
            Self::Min => "least",
            Self::Max => "most",
        }
    }
}

impl Point {
    /// A figure without spread and name.
    pub fn new(x: f64, y: f64) -> Self {
        Self { x, y, ..Self::default() }
    }

    /// The figure of a category.
    pub fn of_category(place: usize, label: &str, y: f64) -> Self {
        Self { x: place as f64, label: Some(label.to_owned()), y, ..Self::default() }
    }

    fn check(&self, against: Against, spread: Spread) -> Result<(), String> {
        let Self { x, x_to, label, y, low, high, .. } = self;
        let numbers = [Some(*x), *x_to, Some(*y), *low, *high];
        if numbers.iter().flatten().any(|number| !number.is_finite()) {
            return Err("a number is not finite".to_owned());
        }
        if *x < 0.0 || x_to.is_some_and(|to| to < *x) {
            return Err("x is negative, or x_to is less than x".to_owned());
        }
        if spread.is_none() && low.or(*high).is_some() {
            return Err("low and high mean nothing without a spread".to_owned());
        }
        if low.zip(*high).is_some_and(|(low, high)| low > high) {
            return Err("low is more than high".to_owned());
        }
        let is_category = against == Against::Category;
        match label {
            None if is_category => Err("a category has a label".to_owned()),
            Some(label) if label.len() > WORDS_MAX => Err("its label is too long".to_owned()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn latency() -> Measurement {
        let mut it = Measurement::new(RunOrigin::Imported, "osu_latency", "shared memory");
        it.source = Some("latency.txt".to_owned());
        it.series.push(Series {
            statistic: Some(Statistic::Mean),
            spread: Spread::P1P99,
            points: vec![
                Point { low: Some(0.25), high: Some(2.0), ..Point::new(1.0, 0.5) },
                Point::new(8.0, 0.75),
            ],
            ..Series::new("latency", Quantity::Latency, Unit::Us, Axis::MESSAGE_SIZE)
        });
        it
    }

    fn text(measurement: &Measurement) -> String {
        serde_json::to_string_pretty(measurement).unwrap()
    }

    #[test]
    fn written_text_is_read_back() {
        let written = latency();
        assert_eq!(Measurement::read(&text(&written)).unwrap(), written);
    }

    #[test]
    fn another_version_is_refused_by_name_with_any_other_content() {
        let said = Measurement::read("{\"schema\": 7, \"novelty\": []}").unwrap_err().to_string();
        assert!(said.contains("version 7") && said.contains("knows version 1"), "{said}");
        let said = Run::read("{\"schema\": 2}").unwrap_err().to_string();
        assert!(said.contains("version 2"), "{said}");
        let said = Run::read("{\"fio version\": \"3.33\"}").unwrap_err().to_string();
        assert!(said.contains("no result of vrio's"), "{said}");
    }

    #[test]
    fn a_fault_has_a_place() {
        let unknown = text(&latency()).replace("\"origin\"", "\"orgin\"");
        let said = Measurement::read(&unknown).unwrap_err().to_string();
        assert!(said.starts_with("line 3") && said.contains("unknown field `orgin`"), "{said}");
        let cut = text(&latency());
        let said = Measurement::read(&cut[..cut.len() / 2]).unwrap_err().to_string();
        assert!(said.starts_with("line ") && said.contains("EOF"), "{said}");
    }

    #[test]
    fn rules_are_kept() {
        type Break = fn(&mut Measurement);
        let breaks: [(&str, Break); 12] = [
            ("series[0].rounds", |it| it.series[0].spread = Spread::Rounds),
            ("series[0].rounds", |it| it.series[0].rounds = Some(3)),
            ("series[0].rounds", |it| {
                it.series[0].spread = Spread::Rounds;
                it.series[0].rounds = Some(1);
            }),
            ("source", |it| it.source = None),
            ("title", |it| it.title.clear()),
            ("series[0].unit", |it| it.series[0].unit = Unit::Bytes),
            ("series[0].x.unit", |it| it.series[0].x.unit = Unit::Us),
            ("series[0].points[1]: its x", |it| it.series[0].points[1].x = 0.0),
            ("series[0].points[0]: low is", |it| it.series[0].points[0].low = Some(3.0)),
            ("series[0].points[0]: low and", |it| it.series[0].spread = Spread::None),
            ("series[0].points[1]: a number", |it| it.series[0].points[1].y = f64::NAN),
            ("series[0].points[0]: a category", |it| {
                it.series[0].x = Axis::CATEGORY;
            }),
        ];
        for (place, spoil) in breaks {
            let mut it = latency();
            it.check().unwrap();
            spoil(&mut it);
            let said = it.check().unwrap_err().to_string();
            assert!(said.starts_with(place), "{place}: {said}");
        }
    }

    #[test]
    fn endless_results_are_refused() {
        let mut it = latency();
        it.series[0].points = vec![Point::new(1.0, 1.0); POINTS_MAX + 1];
        assert!(it.check().unwrap_err().to_string().starts_with("series[0].points: more"));
        let mut it = latency();
        it.notes = vec!["x".repeat(WORDS_MAX + 1)];
        assert!(it.check().unwrap_err().to_string().starts_with("notes[0]: longer"));
        let mut it = latency();
        it.series = vec![it.series[0].clone(); SERIES_MAX + 1];
        assert!(it.check().unwrap_err().to_string().starts_with("series: more"));
    }

    #[test]
    fn a_runs_name_leads_nowhere_else() {
        assert!(["20261122-225103-block", "a", "v1.2_x"].into_iter().all(is_id));
        assert!(["", ".", "..", "a/b", ".x", "a b"].into_iter().all(|id| !is_id(id)));
        assert!(!is_id(&"x".repeat(101)));
    }

    #[test]
    fn a_run_of_now_has_a_name_and_a_time() {
        let run = Run::now("osu latency", "t");
        run.check().unwrap();
        assert!(run.id.ends_with("-osu-latency") && run.begun.ends_with('Z'), "{run:?}");
        let then = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        let run = Run::begun_at(then, "block", "t");
        assert_eq!((&*run.id, &*run.begun), ("20010909-014640-block", "2001-09-09T01:46:40Z"));
    }
}
