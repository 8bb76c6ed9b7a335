//! Platforms of measurements: the results of `vrio bench mpi`, and of OSU's programs as
//! `vrio results` keeps them.

use std::collections::{BTreeMap, BTreeSet};

use results::{Against, Measurement, Point, Quantity, RunOrigin, Series, Statistic, Unit};

use super::curve::{BYTES_MAX, CurvePoint, SizeCurve};
use super::platform::{MessageLink, Platform, gap_curve, gap_point, rate_span};
use super::span::WideSpan;
use crate::fault::{NAME_MAX, PlanFault, key};
use crate::money::Fraction;

/// Platforms of one file.
const PLATFORMS_MAX: usize = 64;

/// The benchmarks of messages between two ranks, ours and OSU's.
const LATENCIES: [&str; 2] = ["mpi_latency", "osu_latency"];
const BANDWIDTHS: [&str; 2] = ["mpi_bandwidth", "osu_bw"];
const BOTH_WAYS: [&str; 2] = ["mpi_bidirectional_bandwidth", "osu_bibw"];

/// The figures of one contestant between its hosts, or within one.
#[derive(Default)]
struct MeasuredLink {
    latency: Option<Series>,
    bandwidth: Option<Series>,
    both_ways: Option<Series>,
}

/// The hosts are not in the results of OSU's programs.
const HOSTS_UNKNOWN: &str = "hosts not named, taken as two";
/// The first of two measurements of the same is taken.
const TWICE: &str = "measured more than once, the first one taken";

#[derive(Default)]
struct MeasuredPlatform {
    title: String,
    /// The words for the origin of its figures.
    origins: BTreeSet<&'static str>,
    between: MeasuredLink,
    within: MeasuredLink,
}

/// The platforms of measurements: one for each contestant and MPI.
///
/// # Errors
/// When none of them has latencies of messages, or a figure is out of range.
pub fn platforms(name: &str, all: &[Measurement]) -> Result<Vec<Platform>, PlanFault> {
    let mut found: BTreeMap<String, MeasuredPlatform> = BTreeMap::new();
    for it in all {
        let of = |word: &str| it.setup.get(word).map(String::as_str);
        let words = ["contestant", "mpi", "version"].map(of);
        let words: Vec<&str> = words.into_iter().flatten().collect();
        let name = words.join(", ");
        // OSU's programs name no contestant and no hosts: all of them are of one platform, and
        // their users mostly measure between hosts.
        let is_within = of("hosts") == Some("one host");
        let platform = found.entry(name.clone()).or_default();
        platform.title = if name.is_empty() { it.title.clone() } else { name };
        let link = if is_within { &mut platform.within } else { &mut platform.between };
        if let Some(is_first) = link.take(it) {
            platform.origins.insert(origin(it.origin));
            platform.origins.extend(of("hosts").is_none().then_some(HOSTS_UNKNOWN));
            platform.origins.extend((!is_first).then_some(TWICE));
        }
    }
    found.retain(|_, it| it.between.latency.is_some() || it.within.latency.is_some());
    if found.is_empty() {
        let cause = "it has no latency of messages between two ranks";
        return Err(key(name, cause, "measure with `vrio bench mpi --save`, or OSU's osu_latency"));
    }
    if found.len() > PLATFORMS_MAX {
        let cause = format!("it has {} platforms", found.len());
        return Err(key(name, cause, format!("keep {PLATFORMS_MAX} at most")));
    }
    let is_alone = found.len() == 1;
    found.into_values().map(|it| it.platform(name, is_alone)).collect()
}

impl MeasuredLink {
    /// Takes what is not there yet, and says whether there was none; none for other benchmarks.
    fn take(&mut self, it: &Measurement) -> Option<bool> {
        let benchmark = it.benchmark.as_str();
        for (names, place, quantity) in [
            (LATENCIES, &mut self.latency, Quantity::Latency),
            (BANDWIDTHS, &mut self.bandwidth, Quantity::Bandwidth),
            (BOTH_WAYS, &mut self.both_ways, Quantity::BidirectionalBandwidth),
        ] {
            if names.contains(&benchmark) {
                let is_first = place.is_none();
                if is_first {
                    *place = by_size(it, quantity).cloned();
                }
                return Some(is_first);
            }
        }
        None
    }

    fn link(&self, at: &str) -> Result<Option<MessageLink>, PlanFault> {
        let Some(latency) = &self.latency else { return Ok(None) };
        let points = latency.points.iter().map(|point| {
            let ns = |number: f64| nanoseconds(at, number, latency.unit);
            let likely_ns = ns(point.y)?;
            let least_ns = point.low.map_or(Ok(likely_ns), ns)?.min(likely_ns);
            let most_ns = point.high.map_or(Ok(likely_ns), ns)?.max(likely_ns);
            let time = WideSpan { least_ns, likely_ns, most_ns };
            Ok(CurvePoint { bytes: bytes(at, point.x)?, time })
        });
        let points = points.collect::<Result<Vec<_>, PlanFault>>()?;
        let latency = SizeCurve::new(&format!("{at}: latency"), points, true)?;
        let gap = self.bandwidth.as_ref().map(|series| gap(at, series)).transpose()?.flatten();
        let [peak, both_ways] = [&self.bandwidth, &self.both_ways].map(|series| {
            let series = series.as_ref()?;
            let rates = series.points.iter().filter_map(|point| rates(point, series.unit));
            rates.max_by(|[_, one, _], [_, two, _]| one.total_cmp(two))
        });
        let rate = |rates: Option<[f64; 3]>| {
            rate_span(at, rates.map_or([None; 3], |rates| rates.map(Some)))
        };
        let peak = rate(peak)?.or_else(|| latency.last_rate());
        Ok(Some(MessageLink { latency, gap, peak, both_ways: rate(both_ways)? }))
    }
}

const fn origin(of: RunOrigin) -> &'static str {
    match of {
        RunOrigin::Measured => "measured",
        RunOrigin::Imported => "measured by another program",
        RunOrigin::Published => "published",
        RunOrigin::Planned => "planned",
    }
}

impl MeasuredPlatform {
    fn platform(self, name: &str, is_alone: bool) -> Result<Platform, PlanFault> {
        let title: String = self.title.chars().filter(|c| !c.is_control()).take(NAME_MAX).collect();
        Ok(Platform {
            name: if is_alone { name.to_owned() } else { title.clone() },
            between_hosts: self.between.link(&format!("{name}, {title}"))?,
            within_host: self.within.link(&format!("{name}, {title}"))?,
            title,
            source: format!("{name}: {}", Vec::from_iter(self.origins).join("; ")),
            processor_mhz: None,
            computation: Fraction::ALL,
        })
    }
}

/// The series of a quantity by the size of messages: of means, whose sum is the time of many; else
/// the first one.
fn by_size(it: &Measurement, quantity: Quantity) -> Option<&Series> {
    let is_it =
        |series: &&Series| series.quantity == quantity && series.x.quantity == Against::MessageSize;
    let mut all = it.series.iter().filter(is_it).filter(|series| !series.points.is_empty());
    let first = all.next()?;
    let mean = std::iter::once(first).chain(all).find(|it| it.statistic == Some(Statistic::Mean));
    Some(mean.unwrap_or(first))
}

fn bytes(at: &str, x: f64) -> Result<u64, PlanFault> {
    if (0.0..=BYTES_MAX as f64).contains(&x) {
        return Ok(x as u64);
    }
    Err(key(at, format!("{x} is no size of a message"), "leave the point out"))
}

fn nanoseconds(at: &str, number: f64, unit: Unit) -> Result<u128, PlanFault> {
    let ns = unit.convert(number, Unit::Ns).filter(|ns| (0.0..=1e15).contains(ns));
    let fault = || key(at, format!("{number} is no time of a message"), "measure it again");
    ns.map(|ns| ns.round() as u128).ok_or_else(fault)
}

fn megabytes(number: f64, unit: Unit) -> Option<f64> {
    unit.convert(number, Unit::MbPerS).filter(|mb| mb.is_finite() && *mb > 0.0)
}

/// The low, the likely and the high rate of a point in MB/s; none without a likely one.
fn rates(point: &Point, unit: Unit) -> Option<[f64; 3]> {
    let likely = megabytes(point.y, unit)?;
    let end = |y: Option<f64>| y.and_then(|y| megabytes(y, unit)).unwrap_or(likely);
    Some([end(point.low).min(likely), likely, end(point.high).max(likely)])
}

/// The time of a message of many, by bandwidth.
fn gap(at: &str, series: &Series) -> Result<Option<SizeCurve>, PlanFault> {
    let at = format!("{at}: bandwidth");
    let points = series.points.iter().filter_map(|point| {
        let rates = rates(point, series.unit)?;
        Some(bytes(&at, point.x).and_then(|bytes| gap_point(&at, bytes, rates.map(Some))))
    });
    let points = points.collect::<Result<Vec<_>, _>>()?;
    gap_curve(&at, points.into_iter().flatten().collect(), true)
}

#[cfg(test)]
mod tests {
    use results::Axis;

    use super::*;
    use crate::application::curve::RateSpan;
    use crate::measured::measurements;

    fn measurement(benchmark: &str, hosts: &str, contestant: &str, y: f64) -> Measurement {
        let (quantity, unit) = match benchmark {
            "mpi_latency" => (Quantity::Latency, Unit::Us),
            "mpi_bandwidth" => (Quantity::Bandwidth, Unit::MbPerS),
            _ => (Quantity::BidirectionalBandwidth, Unit::MbPerS),
        };
        let point = |x: f64, y: f64| Point { x, y, ..Point::default() };
        let mut series = Series::new(benchmark, quantity, unit, Axis::MESSAGE_SIZE);
        series.points = vec![point(8.0, y), point(1024.0, 2.0 * y)];
        let mut it = Measurement::new(RunOrigin::Measured, benchmark, contestant);
        it.setup.insert("contestant".to_owned(), contestant.to_owned());
        it.setup.insert("hosts".to_owned(), hosts.to_owned());
        it.series.push(series);
        it
    }

    #[test]
    fn each_contestant_becomes_a_platform_with_both_ways() {
        let all = [
            measurement("mpi_latency", "one host", "vrio", 0.5),
            measurement("mpi_latency", "two hosts", "vrio", 20.0),
            measurement("mpi_bandwidth", "two hosts", "vrio", 100.0),
            measurement("mpi_bidirectional_bandwidth", "two hosts", "vrio", 120.0),
            measurement("mpi_latency", "two hosts", "tcp", 40.0),
            measurement("mpi_bandwidth", "two hosts", "no latency", 100.0),
        ];
        let text = serde_json::to_string(&serde_json::json!({
            "results": { "run": {}, "measurements": all }
        }));
        let read = measurements("own.json", &text.unwrap()).unwrap();
        let found = platforms("own.json", &read).unwrap();
        let names: Vec<&str> = found.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["tcp", "vrio"]);
        let between = found[1].between_hosts.as_ref().unwrap();
        assert_eq!(between.latency.at(8, None).likely_ns, 20_000);
        let rates = (between.peak, between.both_ways);
        assert_eq!(rates, (Some(RateSpan::exact(200_000)), Some(RateSpan::exact(240_000))));
        // 1,024 bytes at 200 MB/s.
        assert_eq!(between.gap.as_ref().unwrap().at(1024, None).likely_ns, 5120);
        let within = found[1].within_host.as_ref().unwrap();
        assert_eq!(within.latency.at(8, None).likely_ns, 500);
        assert!(found[0].within_host.is_none());
    }

    #[test]
    fn the_spread_of_bandwidths_is_that_of_their_rates() {
        let mut rate = measurement("mpi_bandwidth", "two hosts", "vrio", 100.0);
        rate.series[0].points[1].low = Some(100.0);
        rate.series[0].points[1].high = Some(400.0);
        let all = [measurement("mpi_latency", "two hosts", "vrio", 20.0), rate];
        let between = platforms("own.json", &all).unwrap()[0].between_hosts.clone().unwrap();
        let peak = RateSpan { least_kb: 100_000, likely_kb: 200_000, most_kb: 400_000 };
        assert_eq!(between.peak, Some(peak));
        let gap = between.gap.unwrap().at(1024, None);
        assert_eq!((gap.least_ns, gap.likely_ns, gap.most_ns), (2560, 5120, 10_240));
    }

    #[test]
    fn one_measurement_of_the_store_is_a_platform_of_the_files_name() {
        let it = measurement("mpi_latency", "two hosts", "vrio", 20.0);
        let read = measurements("a.json", &serde_json::to_string(&it).unwrap()).unwrap();
        let found = platforms("a.json", &read).unwrap();
        assert_eq!((&*found[0].name, &*found[0].source), ("a.json", "a.json: measured"));
    }

    /// A reader sees what was taken for granted of the figures.
    #[test]
    fn the_source_has_the_origin_and_what_was_dropped() {
        let mut it = measurement("osu_latency", "", "", 20.0);
        it.series = measurement("mpi_latency", "", "", 20.0).series;
        it.setup.clear();
        it.origin = RunOrigin::Published;
        let found = platforms("osu.json", &[it.clone(), it]).unwrap();
        let source = format!("osu.json: {HOSTS_UNKNOWN}; {TWICE}; published");
        assert_eq!((found.len(), &found[0].source), (1, &source));
    }

    #[test]
    fn results_without_use_are_refused() {
        let none = [measurement("mpi_bandwidth", "two hosts", "vrio", 100.0)];
        let fault = platforms("own.json", &none).unwrap_err().to_string();
        assert!(fault.contains("no latency"), "{fault}");
        let negative = [measurement("mpi_latency", "two hosts", "vrio", -1.0)];
        let fault = platforms("own.json", &negative).unwrap_err().to_string();
        assert!(fault.contains("no time of a message"), "{fault}");
    }
}
