//! netperf's tables, as the classic tests print them, and the selections of its omni tests.

use std::collections::BTreeMap;

use results::{Axis, Measurement, Quantity, Series, Statistic, Unit};

use super::fault::{Fault, Imported};
use super::measurement::{alone, measurement};
use super::words::{number, number_of, quoted};

/// A part of each test's first line.
const TITLE: &str = " TEST from ";

/// Whether the text is netperf's output.
pub(super) fn is_it(text: &str) -> bool {
    text.lines()
        .any(|line| line.contains(TITLE) && (line.contains(" port ") || line.contains(" : ")))
}

/// The lines of one test.
struct Test<'a> {
    /// `TCP STREAM`.
    name: &'a str,
    /// The rest of its title: the two hosts, and the options.
    title: &'a str,
    /// The number of the first line.
    line: usize,
    lines: Vec<(usize, &'a str)>,
}

/// Figures by their names in a selection: `THROUGHPUT=...`, or columns of CSV.
const NAMES: [(&str, &str); 12] = [
    ("MIN_LATENCY", "Minimum Latency Microseconds"),
    ("MEAN_LATENCY", "Mean Latency Microseconds"),
    ("P50_LATENCY", "50th Percentile Latency Microseconds"),
    ("P90_LATENCY", "90th Percentile Latency Microseconds"),
    ("P99_LATENCY", "99th Percentile Latency Microseconds"),
    ("MAX_LATENCY", "Maximum Latency Microseconds"),
    ("TRANSACTION_RATE", "Transaction Rate Tran/s"),
    ("REQUEST_SIZE", "Request Size Bytes"),
    ("RESPONSE_SIZE", "Response Size Bytes"),
    ("LOCAL_SEND_SIZE", "Local Send Size"),
    ("THROUGHPUT", "Throughput"),
    ("THROUGHPUT_UNITS", "Throughput Units"),
];

/// Reads any number of netperf's outputs, one after the other.
pub(super) fn read(text: &str, title: &str) -> Imported {
    let mut tests: Vec<Test<'_>> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if let Some((name, title)) = line.split_once(TITLE) {
            let name = name.trim().trim_start_matches("MIGRATED ");
            tests.push(Test { name, title, line: index + 1, lines: Vec::new() });
        } else if let Some(test) = tests.last_mut().filter(|_| !line.trim().is_empty()) {
            test.lines.push((index + 1, line));
        }
    }
    tests.iter().map(|test| test.read(title)).collect()
}

impl Test<'_> {
    fn read(&self, title: &str) -> Result<Measurement, Fault> {
        let mut it = measurement(&format!("netperf_{}", short(self.name)), title);
        it.setup = self.setup();
        let warned: Vec<_> =
            self.lines.iter().filter_map(|(_, it)| it.strip_prefix("!!!")).collect();
        if !warned.is_empty() {
            it.notes.push(warned.join(" ").split_whitespace().collect::<Vec<_>>().join(" "));
        }
        it.series = if let Some(selected) = self.selected()? {
            self.of_selection(&selected)?
        } else if self.name.contains("equest") || self.name.contains("REQUEST") {
            self.transactions()?
        } else if self.name.starts_with("OMNI") {
            self.omni()?
        } else if self.name.starts_with("UDP") {
            self.datagrams()?
        } else {
            self.stream()?
        };
        if self.is_one_in_flight() && it.series.iter().any(|it| it.quantity == Quantity::RoundTrip)
        {
            it.notes.push("with one transaction under way at a time".to_owned());
        }
        Ok(it)
    }

    /// The set-up: the receiving host, and options such as a burst before or a wanted confidence.
    fn setup(&self) -> BTreeMap<String, String> {
        let mut words = self.title.split(" : ").map(str::trim);
        let hosts = words.next().unwrap_or_default();
        let to = hosts.split_once(" to ").and_then(|(_, to)| to.split_whitespace().next());
        // Two options say nothing: that interim results were possible, and that there was no burst.
        let options = words.filter(|it| !["", "demo", "first burst 0"].contains(it));
        let options: Vec<_> = options.collect();
        let to = to.map(|to| ("to".to_owned(), to.to_owned()));
        let options = (!options.is_empty()).then(|| ("options".to_owned(), options.join(", ")));
        to.into_iter().chain(options).collect()
    }

    /// The first row of numbers alone after that line: the columns that the table always has, and
    /// the others.
    fn row(&self, behind: usize, columns: usize, what: &str) -> Result<NetperfRow, Fault> {
        let rows = self.lines.iter().filter(|(line, _)| *line > behind);
        let mut rows = rows.filter_map(|(line, text)| Some((*line, figures(text)?)));
        let (line, mut row) = rows.next().ok_or_else(|| self.cut(what))?;
        let first: Option<Vec<f64>> = row.iter().take(columns).copied().collect();
        match first.filter(|first| first.len() == columns) {
            Some(first) => Ok(NetperfRow { line, first, rest: row.split_off(columns) }),
            None => {
                let found = format!("{}: was it cut?", row.iter().flatten().count());
                Err(Fault::new(line, format!("{columns} numbers ({what})"), found))
            }
        }
    }

    /// The fault of a missing row.
    fn cut(&self, what: &str) -> Fault {
        let last = self.lines.last().map_or(self.line, |(line, _)| *line);
        Fault::new(last + 1, format!("a row of numbers ({what})"), "none: was the file cut?")
    }

    /// Bytes a second of the unit that the heading names.
    fn unit(&self) -> Result<f64, Fault> {
        let found = self.lines.iter().find_map(|(_, line)| bytes_of(line));
        found.ok_or_else(|| {
            let last = self.lines.last().map_or(self.line, |(line, _)| *line);
            Fault::new(last, "a heading with the throughput's unit, such as 10^6bits/sec", "none")
        })
    }

    fn stream(&self) -> Result<Vec<Series>, Fault> {
        let what = "sizes of sockets and messages, seconds, throughput";
        let NetperfRow { first, rest, .. } = self.row(0, 5, what)?;
        let mut all = vec![bandwidth("throughput", first[2], first[4] * self.unit()?)];
        all.extend(service(&rest, first[2], true));
        Ok(all)
    }

    /// The sent data have a row, and the data that arrived have one below it. Each row may go on
    /// with the load of its side, and with the processor time of a KiB there.
    fn datagrams(&self) -> Result<Vec<Series>, Fault> {
        let sent = self.row(0, 6, "of what was sent")?;
        let arrived = self.row(sent.line, 4, "of what arrived")?;
        let (size, unit) = (sent.first[1], self.unit()?);
        let (okay, all_sent) = (arrived.first[2], sent.first[3]);
        let mut all = vec![
            bandwidth("received", size, arrived.first[3] * unit),
            bandwidth("sent", size, sent.first[5] * unit),
        ];
        if all_sent > 0.0 {
            let series = Series::new("lost", Quantity::LostShare, Unit::Ratio, Axis::MESSAGE_SIZE);
            all.push(alone(series, size, ((all_sent - okay) / all_sent).max(0.0)));
        }
        let demand = |row: &NetperfRow| row.rest.get(1).copied().flatten();
        all.extend(service(&[None, None, demand(&sent), demand(&arrived)], size, true));
        Ok(all)
    }

    fn transactions(&self) -> Result<Vec<Series>, Fault> {
        let what = "sizes of sockets, request and response, seconds, transactions";
        let NetperfRow { first, rest, .. } = self.row(0, 6, what)?;
        let mut all = self.rate(first[2], first[5]);
        all.extend(service(&rest, first[2], false));
        Ok(all)
    }

    /// Whether one transaction is under way at a time: without a burst before, and without a
    /// connection for each. Then the rate gives the time of one.
    fn is_one_in_flight(&self) -> bool {
        let burst = self.title.split("first burst ").nth(1);
        let burst = burst.and_then(|words| number(words.split_whitespace().next()?));
        let connects = self.name.contains("onnect") || self.name.contains("CRR");
        !connects && burst.is_none_or(|burst| burst == 0.0)
    }

    fn rate(&self, size: f64, rate: f64) -> Vec<Series> {
        let of = |quantity, unit| Series::new("transactions", quantity, unit, Axis::MESSAGE_SIZE);
        let mut all = vec![alone(of(Quantity::TransactionRate, Unit::PerS), size, rate)];
        if self.is_one_in_flight() && rate > 0.0 {
            let statistic = Some(Statistic::Mean);
            let series = Series { statistic, ..of(Quantity::RoundTrip, Unit::Us) };
            all.push(alone(series, size, 1e6 / rate));
        }
        all
    }

    /// The usual table of an omni test: its last row ends with the throughput and its unit.
    fn omni(&self) -> Result<Vec<Series>, Fault> {
        let (line, last) = self.lines.last().ok_or_else(|| self.cut("of an omni test"))?;
        let words: Vec<_> = last.split_whitespace().collect();
        let [sizes @ .., _, throughput, unit] = &words[..] else {
            return Err(Fault::new(
                *line,
                "a row that ends with throughput and unit",
                quoted(last),
            ));
        };
        let throughput = number_of(Some(throughput), "the throughput", *line)?;
        // The last size of the row is the message's.
        let size = number_of(sizes.last().copied(), "the message's size", *line)?;
        self.throughput(size, throughput, unit, *line)
    }

    fn throughput(
        &self,
        size: f64,
        throughput: f64,
        unit: &str,
        line: usize,
    ) -> Result<Vec<Series>, Fault> {
        if unit.starts_with("Trans") {
            return Ok(self.rate(size, throughput));
        }
        let factor = bytes_of(unit).ok_or_else(|| {
            Fault::new(line, "a unit such as 10^6bits/s or Trans/s", quoted(unit))
        })?;
        Ok(vec![bandwidth("throughput", size, throughput * factor)])
    }

    /// The names and words of a selection, and its line; none if the output is a table.
    fn selected(&self) -> Result<Option<Selection<'_>>, Fault> {
        let pairs = self.lines.iter().filter_map(|(_, it)| it.trim().split_once('='));
        let pairs: Vec<_> = pairs.filter(|(name, _)| is_name(name)).collect();
        if !pairs.is_empty() {
            return Ok(Some(Selection { line: self.lines[0].0, pairs }));
        }
        let heads = |line: &str| {
            let known = |name: &str| NAMES.iter().any(|(_, words)| *words == name.trim());
            line.split(',').any(known)
        };
        let Some(at) = self.lines.iter().position(|(_, line)| heads(line)) else { return Ok(None) };
        let (line, head) = self.lines[at];
        let row = self.lines.get(at + 1).ok_or_else(|| self.cut("of the selection"))?;
        let (names, words): (Vec<_>, Vec<_>) =
            (head.split(',').collect(), row.1.split(',').collect());
        if names.len() != words.len() {
            let expected = format!("{} values, as the head has", names.len());
            return Err(Fault::new(row.0, expected, words.len().to_string()));
        }
        let pairs = names.into_iter().map(str::trim).zip(words.into_iter().map(str::trim));
        Ok(Some(Selection { line: line + 1, pairs: pairs.collect() }))
    }

    fn of_selection(&self, selected: &Selection<'_>) -> Result<Vec<Series>, Fault> {
        let of = |name: &str| selected.number(name);
        let size = of("REQUEST_SIZE")?.or(of("LOCAL_SEND_SIZE")?).unwrap_or(0.0);
        let mut all = Vec::new();
        let times = [
            ("P50_LATENCY", Statistic::Median),
            ("P90_LATENCY", Statistic::P90),
            ("P99_LATENCY", Statistic::P99),
            ("MEAN_LATENCY", Statistic::Mean),
            ("MIN_LATENCY", Statistic::Min),
            ("MAX_LATENCY", Statistic::Max),
        ];
        for (name, statistic) in times {
            let series =
                Series::new("transactions", Quantity::RoundTrip, Unit::Us, Axis::MESSAGE_SIZE);
            let series = Series { statistic: Some(statistic), ..series };
            all.extend(of(name)?.map(|us| alone(series, size, us)));
        }
        if let Some(rate) = of("TRANSACTION_RATE")? {
            let series = Series::new(
                "transactions",
                Quantity::TransactionRate,
                Unit::PerS,
                Axis::MESSAGE_SIZE,
            );
            all.push(alone(series, size, rate));
        } else if let Some(throughput) = of("THROUGHPUT")? {
            let unit = selected.word("THROUGHPUT_UNITS").ok_or_else(|| {
                Fault::new(selected.line, "THROUGHPUT_UNITS beside THROUGHPUT", "none")
            })?;
            all.extend(self.throughput(size, throughput, unit, selected.line)?);
        }
        if all.is_empty() {
            let expected = "THROUGHPUT, TRANSACTION_RATE or a latency in the selection";
            return Err(Fault::new(selected.line, expected, "none of them"));
        }
        Ok(all)
    }
}

/// The selection that an omni test was asked to print.
struct Selection<'a> {
    line: usize,
    pairs: Vec<(&'a str, &'a str)>,
}

impl Selection<'_> {
    fn word(&self, name: &str) -> Option<&str> {
        let also = NAMES.iter().find_map(|(one, words)| (*one == name).then_some(*words));
        let is_it = |it: &str| it == name || Some(it) == also;
        self.pairs.iter().find_map(|(it, word)| is_it(it).then_some(*word))
    }

    fn number(&self, name: &str) -> Result<Option<f64>, Fault> {
        // netperf prints -1 for a figure that the test does not have.
        let word = self.word(name).filter(|word| !word.starts_with('-'));
        word.map(|word| number_of(Some(word), name, self.line)).transpose()
    }
}

fn is_name(word: &str) -> bool {
    let plain = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    word.len() > 2 && word.chars().all(plain)
}

fn bandwidth(name: &str, size: f64, bytes_per_s: f64) -> Series {
    let series = Series::new(name, Quantity::Bandwidth, Unit::BytesPerS, Axis::MESSAGE_SIZE);
    alone(Series { statistic: Some(Statistic::Mean), ..series }, size, bytes_per_s)
}

/// The bytes of a heading's unit: `10^6bits/sec`, `MBytes/sec`. Prefixes of bits are powers of ten,
/// prefixes of bytes powers of two.
fn bytes_of(heading: &str) -> Option<f64> {
    const UNITS: [(&str, f64); 7] = [
        ("10^3bits/s", 1e3 / 8.0),
        ("10^6bits/s", 1e6 / 8.0),
        ("10^9bits/s", 1e9 / 8.0),
        ("KBytes/s", 1024.0),
        ("MBytes/s", 1_048_576.0),
        ("GBytes/s", 1_073_741_824.0),
        ("Bytes/s", 1.0),
    ];
    UNITS.iter().find_map(|(name, bytes)| heading.contains(name).then_some(*bytes))
}

/// The numbers of a row. Numbers after `first` may be missing.
struct NetperfRow {
    line: usize,
    first: Vec<f64>,
    rest: Vec<Option<f64>>,
}

/// All words of a line as numbers; none if a word is no number. netperf prints -1 for a figure that
/// was not measured, such as the other side's processor with `-c` alone.
fn figures(line: &str) -> Option<Vec<Option<f64>>> {
    let is_none = |word: &str| word.parse() == Ok(-1.0);
    let figure = |word: &str| if is_none(word) { Some(None) } else { number(word).map(Some) };
    let figures: Option<Vec<_>> = line.split_whitespace().map(figure).collect();
    figures.filter(|figures| !figures.is_empty())
}

/// A test's name as a part of a benchmark's name: `tcp_stream`, `udp_rr`, `tcp_crr`.
fn short(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let name: String = name.to_lowercase().chars().map(plain).collect();
    name.replace("connect_request_response", "crr").replace("request_response", "rr")
}

/// The service demands of both ends: microseconds for 1024 bytes, or for a transaction. A row has
/// them, and utilisations, for each end that was measured.
fn service(rest: &[Option<f64>], size: f64, is_of_bytes: bool) -> Vec<Series> {
    let [_, _, local, remote, ..] = rest else { return Vec::new() };
    let of = |(name, us): (&str, &Option<f64>)| {
        let us = (*us)?;
        let (quantity, unit, y) = if is_of_bytes {
            (Quantity::CpuPerByte, Unit::NsPerByte, us * 1e3 / 1024.0)
        } else {
            (Quantity::CpuPerRequest, Unit::Us, us)
        };
        Some(alone(Series::new(name, quantity, unit, Axis::MESSAGE_SIZE), size, y))
    };
    [("local", local), ("remote", remote)].into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_told_apart() {
        assert_eq!(bytes_of("bytes  bytes  bytes  secs.  10^6bits/sec"), Some(125_000.0));
        assert_eq!(bytes_of("bytes  secs.  MBytes/sec"), Some(1_048_576.0));
        assert_eq!(bytes_of("bytes  secs.  Bytes/sec"), Some(1.0));
        assert_eq!(bytes_of("bytes  secs.  per sec"), None);
    }
}
