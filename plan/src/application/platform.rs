//! Platforms: the times of messages between and within hosts, and the speed of computation.

use serde::Deserialize;

use super::curve::{BYTES_MAX, CurvePoint, RATE_KB_MAX, RateSpan, SizeCurve, TIME_NS_MAX};
use super::span::WideSpan;
use crate::fault::{NAME_MAX, PlanFault, key, named, within};
use crate::money::{self, Fraction};

/// Platforms that are part of the program, by name. Their numbers are from the texts.
pub const PLATFORMS: [(&str, &str); 7] = [
    ("ib-native", include_str!("../../data/platform-ib-native.toml")),
    ("ib-sriov", include_str!("../../data/platform-ib-sriov.toml")),
    ("tcp-over-ib", include_str!("../../data/platform-tcp-over-ib.toml")),
    ("ec2-cc2", include_str!("../../data/platform-ec2-cc2.toml")),
    ("ec2-c3", include_str!("../../data/platform-ec2-c3.toml")),
    ("ec2-c3-sriov", include_str!("../../data/platform-ec2-c3-sriov.toml")),
    ("10gbe", include_str!("../../data/platform-10gbe.toml")),
];

/// A processor's clock in MHz.
pub const CLOCK_MHZ_MAX: u64 = 100_000;
/// Characters of a source.
const SOURCE_MAX: usize = 256;

/// Within a host, where nothing was measured: half a microsecond and 5 GB/s, or half and twice as
/// much of each. No text has it.
const ASSUMED_NS: [u128; 3] = [250, 500, 1000];
const ASSUMED_KB: RateSpan =
    RateSpan { least_kb: 2_500_000, likely_kb: 5_000_000, most_kb: 10_000_000 };

/// A time of a message in a file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LatencyForm {
    bytes: u64,
    ns: u64,
    low_ns: Option<u64>,
    high_ns: Option<u64>,
    /// The words of the text, for a reader of the file.
    #[serde(default, rename = "said")]
    _said: Vec<String>,
}

/// A bandwidth in a file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BandwidthForm {
    bytes: u64,
    mb_per_s: f64,
    low_mb_per_s: Option<f64>,
    high_mb_per_s: Option<f64>,
}

/// Times of messages in a file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkForm {
    peak_mb_per_s: Option<f64>,
    peak_low_mb_per_s: Option<f64>,
    peak_high_mb_per_s: Option<f64>,
    #[serde(default, rename = "peak_said")]
    _peak_said: Vec<String>,
    both_ways_mb_per_s: Option<f64>,
    both_ways_low_mb_per_s: Option<f64>,
    both_ways_high_mb_per_s: Option<f64>,
    #[serde(default, rename = "both_ways_said")]
    _both_ways_said: Vec<String>,
    latency: Vec<LatencyForm>,
    #[serde(default)]
    bandwidth: Vec<BandwidthForm>,
}

/// `PLATFORM.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlatformForm {
    title: String,
    source: String,
    #[serde(default)]
    published: bool,
    processor_mhz: Option<u64>,
    #[serde(default, deserialize_with = "money::factor")]
    computation: Option<Fraction>,
    between_hosts: Option<LinkForm>,
    within_host: Option<LinkForm>,
}

/// Times of messages by one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageLink {
    /// One message, one way: half a round trip.
    pub latency: SizeCurve,
    /// A message of many that are under way at once.
    pub gap: Option<SizeCurve>,
    /// The most of one direction.
    pub peak: Option<RateSpan>,
    /// The most of both directions together.
    pub both_ways: Option<RateSpan>,
}

/// A platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    /// Its name: of the program, or of its file.
    pub name: String,
    /// Its title.
    pub title: String,
    /// The origin of its numbers.
    pub source: String,
    /// The clock of its processors.
    pub processor_mhz: Option<u64>,
    /// The time of a computation, for each of a native host's at the same clock.
    pub computation: Fraction,
    /// Between two hosts, if it is known.
    pub between_hosts: Option<MessageLink>,
    /// Within a host, if it is known.
    pub within_host: Option<MessageLink>,
}

/// Messages that leave a host at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Bytes of each message.
    pub bytes: u64,
    /// Messages that each sender has under way.
    pub window: u64,
    /// Senders that share a card.
    pub senders: u64,
    /// Whether as much comes in at the same time.
    pub both_ways: bool,
}

impl MessageLink {
    /// The link of a platform on which nothing was measured within a host.
    pub fn assumed() -> Self {
        let [least_ns, likely_ns, most_ns] = ASSUMED_NS;
        let point = CurvePoint { bytes: 0, time: WideSpan { least_ns, likely_ns, most_ns } };
        let latency = SizeCurve::new("within_host.latency", vec![point], false);
        Self {
            latency: latency.unwrap_or_else(|fault| panic!("the assumed link: {fault}")),
            gap: None,
            peak: Some(ASSUMED_KB),
            both_ways: None,
        }
    }

    /// The time from the first byte of a burst's messages until all of them are there. Two bounds,
    /// of which the longer one holds: a sender's own pace, which is a message's time and a gap for
    /// each further one (LogGP, Alexandrov et al. 1995), and the shared card, which carries the
    /// bytes of all other messages before the last one.
    pub fn time(&self, burst: Burst) -> WideSpan {
        let Burst { bytes, window, senders, both_ways } = burst;
        let one = self.latency.at(bytes, self.peak);
        let rate = match (self.both_ways, self.peak) {
            (Some(both), Some(peak)) if both_ways => Some(both.half().lower(peak)),
            (Some(both), None) if both_ways => Some(both.half()),
            (_, peak) => peak,
        };
        let carried = rate.map_or(WideSpan::default(), |rate| rate.transfer(bytes));
        // A direction that has less than its peak, since the other direction is busy, is longer
        // under way even alone.
        let lost =
            self.peak.map_or(WideSpan::default(), |peak| carried.beyond(peak.transfer(bytes)));
        let one = one.plus(lost);
        let gap = match &self.gap {
            // Below the least size of it nothing is known, but one after the other is no faster.
            Some(gap) => gap.at(bytes, self.peak).shorter(one),
            // Without a pace, a message costs its bytes at least, and a message's time at most.
            None => WideSpan { most_ns: carried.most_ns.max(one.most_ns), ..carried },
        };
        let own = one.plus(gap.times(window - 1));
        let others = carried.times(senders * window - 1);
        own.longer(one.plus(others))
    }
}

impl LinkForm {
    fn link(self, at: &str, is_published: bool) -> Result<MessageLink, PlanFault> {
        let has_range = |it: &LatencyForm| it.low_ns.or(it.high_ns).is_some();
        let is_stated = is_published || self.latency.iter().any(has_range);
        let latency = self.latency.into_iter().map(|it| {
            let [low_ns, high_ns] = [it.low_ns, it.high_ns].map(|ns| ns.unwrap_or(it.ns));
            let [least_ns, likely_ns, most_ns] = [low_ns, it.ns, high_ns].map(u128::from);
            CurvePoint { bytes: it.bytes, time: WideSpan { least_ns, likely_ns, most_ns } }
        });
        let latency = SizeCurve::new(&format!("{at}.latency"), latency.collect(), !is_stated)?;
        let gaps = self.bandwidth.into_iter().map(|it| {
            let at = format!("{at}.bandwidth");
            within(&format!("{at}.bytes"), it.bytes, 1, BYTES_MAX)?;
            gap_point(&at, it.bytes, [it.low_mb_per_s, Some(it.mb_per_s), it.high_mb_per_s])
        });
        let gaps = gaps.collect::<Result<Vec<_>, PlanFault>>()?.into_iter().flatten().collect();
        let gap = gap_curve(&format!("{at}.bandwidth"), gaps, !is_published)?;
        let peak = [self.peak_low_mb_per_s, self.peak_mb_per_s, self.peak_high_mb_per_s];
        let peak = rate_span(&format!("{at}.peak_mb_per_s"), peak)?;
        let peak = peak.or_else(|| gap.as_ref().and_then(SizeCurve::last_rate));
        let (low, high) = (self.both_ways_low_mb_per_s, self.both_ways_high_mb_per_s);
        let both_ways = [low, self.both_ways_mb_per_s, high];
        let both_ways = rate_span(&format!("{at}.both_ways_mb_per_s"), both_ways)?;
        Ok(MessageLink { latency, gap, peak, both_ways })
    }
}

/// The time of a message of many, by the bandwidth at its size: low, likely and high.
pub(super) fn gap_point(
    at: &str,
    bytes: u64,
    mb_per_s: [Option<f64>; 3],
) -> Result<Option<CurvePoint>, PlanFault> {
    let Some(rate) = rate_span(&format!("{at}.mb_per_s"), mb_per_s)? else { return Ok(None) };
    let most = WideSpan::exact(u128::from(TIME_NS_MAX));
    Ok(Some(CurvePoint { bytes, time: rate.transfer(bytes).shorter(most) }))
}

/// The curve of bandwidths, if there are any.
pub(super) fn gap_curve(
    at: &str,
    points: Vec<CurvePoint>,
    is_measured: bool,
) -> Result<Option<SizeCurve>, PlanFault> {
    if points.is_empty() {
        return Ok(None);
    }
    SizeCurve::new(at, points, is_measured).map(Some)
}

/// A rate of MB/s: low, likely and high; none without the likely one.
pub(super) fn rate_span(at: &str, mb: [Option<f64>; 3]) -> Result<Option<RateSpan>, PlanFault> {
    let [low, Some(likely), high] = mb else {
        if mb.iter().any(Option::is_some) {
            return Err(key(at, "it has a range, and no likely rate", "give the rate itself"));
        }
        return Ok(None);
    };
    let kb = |mb: Option<f64>| rate_kb(at, mb.unwrap_or(likely));
    let (least_kb, likely_kb, most_kb) = (kb(low)?, kb(None)?, kb(high)?);
    if !(least_kb <= likely_kb && likely_kb <= most_kb) {
        let cause = format!("{likely} MB/s is not within its range");
        return Err(key(at, cause, "give low <= rate <= high"));
    }
    Ok(Some(RateSpan { least_kb, likely_kb, most_kb }))
}

/// A rate in thousandths of MB/s.
fn rate_kb(at: &str, mb_per_s: f64) -> Result<u64, PlanFault> {
    let kb = (mb_per_s * 1000.0).round();
    if (1.0..=RATE_KB_MAX as f64).contains(&kb) {
        return Ok(kb as u64);
    }
    let way_out = format!("give 0.001 to {} MB/s", RATE_KB_MAX / 1000);
    Err(key(at, format!("{mb_per_s} is out of range"), way_out))
}

impl Platform {
    /// Reads and checks a file. `name` is the platform's in tables and faults.
    ///
    /// # Errors
    /// When the text is not of this form, or a value cannot be used.
    pub fn read(name: &str, text: &str) -> Result<Self, PlanFault> {
        let form: PlatformForm = toml::from_str(text).map_err(|error| PlanFault::Form {
            file: name.to_owned(),
            cause: error.to_string().trim_end().to_owned(),
            example: "vrio plan example ec2-cc2",
        })?;
        named("title", &form.title, NAME_MAX)?;
        named("source", &form.source, SOURCE_MAX)?;
        if let Some(mhz) = form.processor_mhz {
            within("processor_mhz", mhz, 1, CLOCK_MHZ_MAX)?;
        }
        if form.between_hosts.is_none() && form.within_host.is_none() {
            let cause = "it has neither [between_hosts] nor [within_host]";
            return Err(key(name, cause, "add the times of messages"));
        }
        let computation = form.computation.unwrap_or(Fraction::ALL);
        if computation.ppm() == 0 {
            return Err(key("computation", "it is 0", "give a factor such as \"23/20\""));
        }
        let is_published = form.published;
        let link =
            |at: &str, form: Option<LinkForm>| form.map(|it| it.link(at, is_published)).transpose();
        Ok(Self {
            name: name.to_owned(),
            title: form.title,
            source: form.source,
            processor_mhz: form.processor_mhz,
            computation,
            between_hosts: link("between_hosts", form.between_hosts)?,
            within_host: link("within_host", form.within_host)?,
        })
    }

    /// A platform of the program.
    ///
    /// # Errors
    /// When there is none of the name.
    pub fn shipped(name: &str) -> Result<Self, PlanFault> {
        let found = PLATFORMS.iter().find(|(known, _)| *known == name);
        let Some((_, text)) = found else {
            let names = PLATFORMS.map(|(name, _)| name).join(", ");
            let cause = format!("there is no platform '{name}'");
            return Err(key("--platform", cause, format!("name a file, or one of: {names}")));
        };
        Self::read(name, text)
    }
}

#[cfg(test)]
mod tests;
