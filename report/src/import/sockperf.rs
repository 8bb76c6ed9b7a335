//! sockperf's output: summaries and percentiles, with codes for colours in between.

use results::{Axis, Point, Quantity, Series, Spread, Statistic, Unit};

use super::fault::{Fault, Imported};
use super::measurement::measurement;
use super::words::{number_of, quoted};

/// Bytes of a MB, as sockperf means it: 125387 messages of 1400 bytes a second are 167.41 MB.
const MB: f64 = 1_048_576.0;

/// The figures of an output.
#[derive(Default)]
struct SockperfOutput {
    version: Option<String>,
    size: Option<f64>,
    mean: Option<f64>,
    off: Option<f64>,
    percentiles: Vec<(f64, f64)>,
    least: Option<f64>,
    most: Option<f64>,
    to: Option<String>,
    rate: Option<f64>,
    bandwidth: Option<f64>,
    sent: Option<f64>,
    lost: Option<f64>,
}

/// Whether the text is sockperf's output.
pub(super) fn is_it(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("sockperf:") || line.starts_with("sockperf["))
}

/// Reads the output.
pub(super) fn read(text: &str, title: &str) -> Imported {
    let mut said = SockperfOutput::default();
    let mut last = 1;
    for (index, line) in text.lines().enumerate() {
        last = index + 1;
        said.line(&plain(line), last)?;
    }
    if said.mean.is_some() && said.least.is_none() {
        let expected = "percentiles down to <MIN>";
        return Err(Fault::new(last, expected, "the file's end: was it cut?"));
    }
    if said.rate.is_some() != said.bandwidth.is_some() || said.mean.or(said.rate).is_none() {
        let expected = "a line \"Summary: Latency is\", or those of message rate and bandwidth";
        return Err(Fault::new(last, expected, "the file's end: was it cut, or did it fail?"));
    }
    let mut it = measurement("sockperf", title);
    it.setup.extend(said.version.clone().map(|version| ("version".to_owned(), version)));
    it.setup.extend(said.to.clone().map(|to| ("to".to_owned(), to)));
    if said.size.is_none() {
        it.notes.push("sockperf does not print the size of the messages".to_owned());
    }
    it.series = said.series();
    Ok(vec![it])
}

/// A line without codes for colours.
fn plain(line: &str) -> String {
    let mut parts = line.split('\u{1b}');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(part.split_once('m').map_or(part, |(_, rest)| rest));
    }
    plain
}

/// The word after some words, up to one of these characters.
fn behind<'a>(line: &'a str, words: &str, ends: &[char]) -> Option<&'a str> {
    let (_, rest) = line.split_once(words)?;
    rest.trim_start().split(ends).next().map(str::trim)
}

impl SockperfOutput {
    fn line(&mut self, line: &str, at: usize) -> Result<(), Fault> {
        let blank = &[' ', ';', ')', '.'][..];
        let number = |words: &str, what: &str| -> Result<Option<f64>, Fault> {
            let word = behind(line, words, &[' ', ';', ')']);
            word.map(|word| number_of(Some(word), what, at)).transpose()
        };
        if line.contains("== version #") {
            self.version = behind(line, "version #", &[' ']).map(str::to_owned);
        }
        if line.trim_start().starts_with('[') && self.to.is_none() {
            self.to = behind(line, " IP = ", &[' ']).map(str::to_owned);
        }
        let set = |place: &mut Option<f64>, found: Option<f64>| {
            *place = found.or(*place);
        };
        if let Some(size) = behind(line, "msg-size=", blank) {
            self.size = Some(number_of(Some(size), "the messages' size", at)?);
        }
        set(&mut self.mean, number("Summary: Latency is ", "the mean latency")?);
        set(&mut self.off, number("std-dev=", "the standard deviation")?);
        set(&mut self.rate, number("Message Rate is ", "the message rate")?);
        set(&mut self.bandwidth, number("BandWidth is ", "the bandwidth")?);
        set(&mut self.most, number("<MAX> observation =", "the longest")?);
        set(&mut self.least, number("<MIN> observation =", "the shortest")?);
        set(&mut self.lost, number("# dropped messages = ", "messages that were lost")?);
        if line.contains("[Valid Duration]") {
            self.sent = number("SentMessages=", "messages that were sent")?;
        }
        if let Some(rest) = behind(line, "---> percentile ", &[]) {
            let parts = rest.split_once('=');
            let (share, us) = parts
                .ok_or_else(|| Fault::new(at, "a percentile, '=' and its latency", quoted(line)))?;
            let share = number_of(Some(share.trim()), "the percentile", at)?;
            let us = number_of(Some(us.trim()), "its latency", at)?;
            self.percentiles.push((share, us));
        }
        Ok(())
    }

    fn percentile(&self, share: f64) -> Option<f64> {
        self.percentiles.iter().find_map(|(of, us)| (*of == share).then_some(*us))
    }

    fn series(&self) -> Vec<Series> {
        let axis = if self.size.is_some() { Axis::MESSAGE_SIZE } else { Axis::CATEGORY };
        let label = self.size.is_none().then(|| "size not told".to_owned());
        let x = self.size.unwrap_or(0.0);
        let series = |name, quantity, unit, statistic, spread, y, ends: Option<(f64, f64)>| {
            let (low, high) = ends.unzip();
            let points = vec![Point { label: label.clone(), low, high, ..Point::new(x, y) }];
            Series { statistic, spread, points, ..Series::new(name, quantity, unit, axis) }
        };
        let latency = |statistic, spread, us, ends| {
            series("latency", Quantity::Latency, Unit::Us, Some(statistic), spread, us, ends)
        };
        let of = |share| self.percentile(share);
        let mut all = Vec::new();
        if let Some(us) = of(50.0) {
            let ends = of(25.0).zip(of(75.0)).filter(|(low, high)| low <= high);
            let spread = if ends.is_some() { Spread::Iqr } else { Spread::None };
            all.push(latency(Statistic::Median, spread, us, ends));
        }
        all.extend(of(99.0).map(|us| latency(Statistic::P99, Spread::None, us, None)));
        if let Some(mean) = self.mean {
            let ends = self.off.map(|off| ((mean - off).max(0.0), mean + off));
            let spread = if ends.is_some() { Spread::StandardDeviation } else { Spread::None };
            all.push(latency(Statistic::Mean, spread, mean, ends));
        }
        let bare =
            |name, quantity, unit, y| series(name, quantity, unit, None, Spread::None, y, None);
        let rate = self.rate.map(|rate| bare("messages", Quantity::MessageRate, Unit::PerS, rate));
        all.extend(rate);
        all.extend(
            self.bandwidth
                .map(|mb| bare("bandwidth", Quantity::Bandwidth, Unit::BytesPerS, mb * MB)),
        );
        let lost = self.lost.zip(self.sent.filter(|sent| *sent > 0.0));
        all.extend(
            lost.map(|(lost, sent)| bare("lost", Quantity::LostShare, Unit::Ratio, lost / sent)),
        );
        all
    }
}
