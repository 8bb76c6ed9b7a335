//! The OSU micro-benchmarks: comments, of which one names the columns, and a row for each size.

use results::{Axis, Measurement, Point, Quantity, Series, Spread, Statistic, Unit};

use super::fault::{Fault, Imported};
use super::measurement::measurement;
use super::words::{number, number_of, quoted};

/// Bytes of a MB, as these programs mean it.
const MB: f64 = 1e6;

/// The columns with fixed names.
const COLUMNS: [(&str, OsuColumn); 18] = [
    ("Size", OsuColumn::Size),
    ("Latency (us)", OsuColumn::Time("latency")),
    ("Avg Latency(us)", OsuColumn::Time("latency")),
    ("Avg Lat(us)", OsuColumn::Time("latency")),
    ("Min Latency(us)", OsuColumn::Least),
    ("Max Latency(us)", OsuColumn::Most),
    ("Bandwidth (MB/s)", OsuColumn::Bandwidth),
    ("MB/s", OsuColumn::Bandwidth),
    ("Messages/s", OsuColumn::Rate),
    ("Overall(us)", OsuColumn::Time("overall")),
    ("Compute(us)", OsuColumn::Time("compute")),
    ("Coll. Init(us)", OsuColumn::Time("init")),
    ("MPI_Test(us)", OsuColumn::Time("MPI_Test")),
    ("MPI_Wait(us)", OsuColumn::Time("MPI_Wait")),
    ("Pure Comm.(us)", OsuColumn::Time("pure communication")),
    ("Overlap(%)", OsuColumn::Skipped),
    ("Iterations", OsuColumn::Skipped),
    ("Validation", OsuColumn::Validation),
];

/// The meaning of a column.
#[derive(Clone, Copy, Debug, PartialEq)]
enum OsuColumn {
    Size,
    Time(&'static str),
    Least,
    Most,
    /// The percentile, from 0 to 100.
    Percentile(f64),
    Bandwidth,
    Rate,
    Validation,
    /// A column that is no figure here.
    Skipped,
}

/// The output of one program.
#[derive(Debug, Default)]
struct OsuTable {
    /// The number of the title's line.
    line: usize,
    /// `MPI Latency Test`.
    test: String,
    version: String,
    setup: Vec<(String, String)>,
    columns: Vec<OsuColumn>,
    rows: Vec<Vec<f64>>,
    /// Lines that are no figures, from other programs that wrote into the same file.
    others: Vec<String>,
}

/// The beginning of each output's first line.
const TITLE: &str = "# OSU ";

/// Whether the text is an output of these benchmarks.
pub(super) fn is_it(text: &str) -> bool {
    text.lines().any(|line| line.trim_start().starts_with(TITLE))
}

/// Reads any number of outputs, one after the other.
pub(super) fn read(text: &str, title: &str) -> Imported {
    let mut tables: Vec<OsuTable> = Vec::new();
    let (mut width, mut last) = (0, 0);
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        last = number;
        if let Some(name) = line.trim_start().strip_prefix(TITLE) {
            tables.push(OsuTable::of_title(name, number)?);
            continue;
        }
        // Lines of mpirun before the first title are no figures.
        let Some(table) = tables.last_mut() else { continue };
        if let Some(comment) = line.trim_start().strip_prefix('#') {
            table.comment(comment.trim(), number)?;
        } else if line.trim_start().starts_with(|first: char| first.is_ascii_digit()) {
            let is_cut = !text.ends_with('\n') && text.lines().nth(number).is_none();
            if is_cut && width != 0 && line.len() != width {
                let expected = format!("a row of {width} characters, as those before it");
                return Err(Fault::new(number, expected, format!("{}: it is cut", quoted(line))));
            }
            table.row(line, number)?;
            width = line.trim_end().len();
        } else if !line.trim().is_empty() {
            table.others.push(quoted(line));
        }
    }
    tables.into_iter().map(|table| table.measurement(title, last)).collect()
}

impl OsuTable {
    fn of_title(name: &str, line: usize) -> Result<Self, Fault> {
        let parts = name.trim().rsplit_once(" v");
        let (test, version) = parts.ok_or_else(|| {
            Fault::new(line, "a title such as \"# OSU MPI Latency Test v7.4\"", quoted(name))
        })?;
        Ok(Self { line, test: test.to_owned(), version: version.to_owned(), ..Self::default() })
    }

    fn comment(&mut self, comment: &str, line: usize) -> Result<(), Fault> {
        let is_head = COLUMNS.iter().any(|(name, _)| comment.starts_with(name));
        if is_head && !comment.contains(" = ") {
            self.columns = columns(comment, line)?;
        } else if comment.starts_with('[') {
            let pairs = comment.split(['[', ']']).filter_map(|part| part.split_once(':'));
            let words = |(name, value): (&str, &str)| {
                (name.trim().replace(' ', "_"), value.trim().to_owned())
            };
            self.setup.extend(pairs.map(words));
        } else if let Some((name, value)) = comment.split_once(": ") {
            let name = name.trim().to_lowercase().replace(' ', "_");
            self.setup.push((name, value.trim_end_matches('.').to_owned()));
        }
        Ok(())
    }

    fn row(&mut self, line: &str, at: usize) -> Result<(), Fault> {
        if self.columns.is_empty() {
            let expected = "a line \"# Size ...\" that names the columns first";
            return Err(Fault::new(at, expected, quoted(line)));
        }
        let words: Vec<_> = line.split_whitespace().collect();
        if words.len() != self.columns.len() {
            let expected = format!("{} columns, as the head has", self.columns.len());
            return Err(Fault::new(at, expected, format!("{}: {}", words.len(), quoted(line))));
        }
        let read = |(column, word): (&OsuColumn, &&str)| match column {
            OsuColumn::Validation if *word == "Pass" => Ok(1.0),
            OsuColumn::Validation => {
                let expected = "a row that passed its program's own validation";
                Err(Fault::new(at, expected, quoted(word)))
            }
            _ => number_of(Some(word), "of its column", at),
        };
        let row: Vec<_> = self.columns.iter().zip(&words).map(read).collect::<Result<_, _>>()?;
        let size = self.columns.iter().position(|column| *column == OsuColumn::Size);
        let goes_back =
            size.zip(self.rows.last()).is_some_and(|(at, before)| before[at] >= row[at]);
        if goes_back {
            return Err(Fault::new(at, "a size above the one before", quoted(line)));
        }
        self.rows.push(row);
        Ok(())
    }

    /// The benchmark of a title: `osu_latency` for `MPI Latency Test`.
    fn benchmark(&self) -> String {
        let bare = self.test.trim_end_matches(" Test").trim_start_matches("MPI ").to_lowercase();
        match bare.as_str() {
            "bandwidth" => "osu_bw".to_owned(),
            "bi-directional bandwidth" => "osu_bibw".to_owned(),
            "multiple bandwidth / message rate" => "osu_mbw_mr".to_owned(),
            "multi latency" => "osu_multi_lat".to_owned(),
            "all-to-all personalized exchange latency" => "osu_alltoall".to_owned(),
            "latency" => "osu_latency".to_owned(),
            other => {
                let short = other.trim_end_matches(" latency").replace("non-blocking ", "i");
                let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
                format!("osu_{}", short.chars().map(plain).collect::<String>())
            }
        }
    }

    fn measurement(self, title: &str, last: usize) -> Result<Measurement, Fault> {
        if self.rows.is_empty() {
            let at = if self.columns.is_empty() { self.line + 1 } else { last + 1 };
            let expected = format!("rows of figures of \"OSU {}\"", self.test);
            return Err(Fault::new(at, expected, "none: was the file cut?"));
        }
        let mut it = measurement(&self.benchmark(), title);
        it.setup.insert("version".to_owned(), self.version.clone());
        it.setup.extend(self.setup.iter().cloned());
        it.series = (0..self.columns.len()).filter_map(|column| self.series(column)).collect();
        if !self.others.is_empty() {
            let (count, first) = (self.others.len(), &self.others[0]);
            it.notes.push(format!("{count} lines of the file are no figures; the first: {first}"));
        }
        Ok(it)
    }

    fn at(&self, wanted: OsuColumn) -> Option<usize> {
        self.columns.iter().position(|column| *column == wanted)
    }

    fn series(&self, at: usize) -> Option<Series> {
        let (name, quantity, unit, statistic, factor) = match self.columns[at] {
            OsuColumn::Time(name) => (name, Quantity::Latency, Unit::Us, Statistic::Mean, 1.0),
            OsuColumn::Percentile(share) => {
                let statistic = statistic(share)?;
                ("latency", Quantity::Latency, Unit::Us, statistic, 1.0)
            }
            OsuColumn::Bandwidth => {
                let both = self.test.contains("Bi-Directional");
                let quantity =
                    if both { Quantity::BidirectionalBandwidth } else { Quantity::Bandwidth };
                ("bandwidth", quantity, Unit::BytesPerS, Statistic::Mean, MB)
            }
            OsuColumn::Rate => {
                ("messages", Quantity::MessageRate, Unit::PerS, Statistic::Mean, 1.0)
            }
            _ => return None,
        };
        let size = self.at(OsuColumn::Size);
        let ends = self.at(OsuColumn::Least).zip(self.at(OsuColumn::Most));
        let ends = ends.filter(|_| statistic == Statistic::Mean && quantity == Quantity::Latency);
        let axis = if size.is_some() { Axis::MESSAGE_SIZE } else { Axis::CATEGORY };
        let point = |row: &Vec<f64>| Point {
            x: size.map_or(0.0, |size| row[size]),
            label: size.is_none().then(|| self.test.clone()),
            low: ends.map(|(least, most)| row[least].min(row[most])),
            high: ends.map(|(least, most)| row[least].max(row[most])),
            y: row[at] * factor,
            ..Point::default()
        };
        Some(Series {
            statistic: Some(statistic),
            // The least and the most of the means of all processes.
            spread: if ends.is_some() { Spread::MinMax } else { Spread::None },
            points: self.rows.iter().map(point).collect(),
            ..Series::new(name, quantity, unit, axis)
        })
    }
}

fn statistic(share: f64) -> Option<Statistic> {
    let known = [
        (50.0, Statistic::Median),
        (90.0, Statistic::P90),
        (99.0, Statistic::P99),
        (99.9, Statistic::P999),
    ];
    known.into_iter().find_map(|(of, statistic)| (of == share).then_some(statistic))
}

/// Reads the names of columns. Names have blanks in them, and may follow one another without a
/// blank.
fn columns(head: &str, line: usize) -> Result<Vec<OsuColumn>, Fault> {
    let (mut rest, mut found) = (head.trim(), Vec::new());
    while !rest.is_empty() {
        let known =
            COLUMNS.iter().find_map(|(name, column)| Some((*column, rest.strip_prefix(name)?)));
        let (column, behind) = known.or_else(|| percentile(rest)).ok_or_else(|| {
            let names: Vec<_> = COLUMNS.iter().map(|(name, _)| *name).collect();
            Fault::new(line, format!("a column of {}", names.join(", ")), quoted(rest))
        })?;
        found.push(column);
        rest = behind.trim_start();
    }
    Ok(found)
}

/// Reads `P99 Tail Lat(us)`. A percentile of a bandwidth is read too, but is no figure of a
/// message.
fn percentile(rest: &str) -> Option<(OsuColumn, &str)> {
    let (share, behind) = rest.strip_prefix('P')?.split_once(" Tail ")?;
    let share = number(share)?;
    match behind.strip_prefix("Lat(us)") {
        Some(behind) => Some((OsuColumn::Percentile(share), behind)),
        None => Some((OsuColumn::Skipped, behind.split_once(')')?.1)),
    }
}
