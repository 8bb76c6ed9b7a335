//! A time by the size of a message, known at some sizes.

use super::span::WideSpan;
use crate::fault::{PlanFault, key, within};

/// The largest message: a TiB. MPI's counts are of elements, so there are messages beyond 2 GiB.
pub const BYTES_MAX: u64 = 1 << 40;
/// The longest time of a message: an hour.
pub const TIME_NS_MAX: u64 = 3_600_000_000_000;
/// Sizes of a curve: a size for each bit, with some between them.
pub const POINTS_MAX: usize = 1024;
/// Bandwidths in thousandths of MB/s, from a byte a second to 10 TB/s.
pub const RATE_KB_MAX: u64 = 10_000_000_000;

/// A rate in thousandths of MB/s that is known within a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateSpan {
    /// The least.
    pub least_kb: u64,
    /// The likely one.
    pub likely_kb: u64,
    /// The most.
    pub most_kb: u64,
}

impl RateSpan {
    /// A rate without a range.
    pub const fn exact(kb: u64) -> Self {
        Self { least_kb: kb, likely_kb: kb, most_kb: kb }
    }

    /// The time of bytes.
    pub fn transfer(self, bytes: u64) -> WideSpan {
        WideSpan {
            least_ns: transfer_ns(bytes, self.most_kb),
            likely_ns: transfer_ns(bytes, self.likely_kb),
            most_ns: transfer_ns(bytes, self.least_kb),
        }
    }

    /// The lower rate, end by end.
    pub fn lower(self, other: Self) -> Self {
        Self {
            least_kb: self.least_kb.min(other.least_kb),
            likely_kb: self.likely_kb.min(other.likely_kb),
            most_kb: self.most_kb.min(other.most_kb),
        }
    }

    /// The half of it.
    pub fn half(self) -> Self {
        Self {
            least_kb: self.least_kb.div_ceil(2),
            likely_kb: self.likely_kb.div_ceil(2),
            most_kb: self.most_kb.div_ceil(2),
        }
    }
}

/// The time at one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurvePoint {
    /// The size.
    pub bytes: u64,
    /// The time.
    pub time: WideSpan,
}

/// The time by size. Between two sizes it grows evenly, as Hockney's t = a + b m has it (The
/// communication challenge for MPP, 1994), with an a and a b of their own for each two sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeCurve {
    points: Vec<CurvePoint>,
    /// For each point, by how many millionths its neighbours alone would have missed it; 0 at the
    /// ends and for curves with a stated range.
    missed_ppm: Vec<u64>,
    /// Whether the range between two points follows from the points.
    is_measured: bool,
}

impl SizeCurve {
    /// A curve of points in any order. `is_measured` has the range of what lies between two points
    /// follow from the points: each point with two neighbours is left out and interpolated.
    ///
    /// # Errors
    /// When there is no point, or one is out of range or there twice.
    pub fn new(
        at: &str,
        mut points: Vec<CurvePoint>,
        is_measured: bool,
    ) -> Result<Self, PlanFault> {
        within(&format!("the number of {at}"), points.len() as u64, 1, POINTS_MAX as u64)?;
        points.sort_by_key(|point| point.bytes);
        for point in &points {
            within(&format!("{at}.bytes"), point.bytes, 0, BYTES_MAX)?;
            let WideSpan { least_ns, likely_ns, most_ns } = point.time;
            if !(least_ns <= likely_ns && likely_ns <= most_ns) {
                let cause = format!("the time at {} bytes is not within its range", point.bytes);
                return Err(key(at, cause, "give low_ns <= ns <= high_ns"));
            }
            let most_ns = u64::try_from(most_ns).unwrap_or(u64::MAX);
            within(&format!("{at}.ns"), most_ns, 0, TIME_NS_MAX)?;
        }
        if let Some(twice) = points.windows(2).find(|two| two[0].bytes == two[1].bytes) {
            let cause = format!("{} bytes are there twice", twice[0].bytes);
            return Err(key(at, cause, "keep one of them"));
        }
        let missed_ppm = if is_measured { missed(&points) } else { vec![0; points.len()] };
        Ok(Self { points, missed_ppm, is_measured })
    }

    /// The time at a size. Beyond the largest point each byte takes what it takes at `rate`;
    /// without a rate, what it takes between the last two points. Below the least point it is the
    /// time there. Outside of its points a measured curve is missed as the nearest point that could
    /// be left out.
    pub fn at(&self, bytes: u64, rate: Option<RateSpan>) -> WideSpan {
        let after = self.points.partition_point(|point| point.bytes < bytes);
        let Some(right) = self.points.get(after) else {
            let nearest = self.missed_ppm.iter().rev().nth(1).copied().unwrap_or(0);
            return self.beyond(bytes, rate).widened(nearest);
        };
        if right.bytes == bytes {
            return right.time;
        }
        if after == 0 {
            return right.time.widened(self.missed_ppm.get(1).copied().unwrap_or(0));
        }
        let left = &self.points[after - 1];
        let (part, whole) = (bytes - left.bytes, right.bytes - left.bytes);
        // Both weights add up to the whole, so that a curve that falls is no negative number.
        let sum = left.time.times(whole - part).plus(right.time.times(part)).part(1, whole);
        sum.widened(self.missed_ppm[after - 1].max(self.missed_ppm[after]))
    }

    fn beyond(&self, bytes: u64, rate: Option<RateSpan>) -> WideSpan {
        let last = self.points[self.points.len() - 1];
        let more = bytes - last.bytes;
        if let Some(rate) = rate {
            return last.time.plus(rate.transfer(more));
        }
        let [.., before, _] = self.points.as_slice() else { return last.time };
        let ends = [before.time, last.time].map(|time| time.likely_ns);
        let rise = WideSpan::exact(ends[1].saturating_sub(ends[0]));
        last.time.plus(rise.part(more, last.bytes - before.bytes))
    }

    /// The rate of the largest message, if its time is that of its bytes.
    pub fn last_rate(&self) -> Option<RateSpan> {
        let last = self.points[self.points.len() - 1];
        let kb = |ns: u128| {
            let kb = u128::from(last.bytes) * 1_000_000 / ns.max(1);
            u64::try_from(kb).ok().filter(|kb| *kb > 0)
        };
        let WideSpan { least_ns, likely_ns, most_ns } = last.time;
        let (least_kb, likely_kb, most_kb) = (kb(most_ns)?, kb(likely_ns)?, kb(least_ns)?);
        Some(RateSpan { least_kb, likely_kb, most_kb })
    }

    /// The least and the largest of its sizes.
    pub fn ends(&self) -> [u64; 2] {
        [self.points[0].bytes, self.points[self.points.len() - 1].bytes]
    }

    /// Whether it was measured at so few sizes that none can be left out, so that its error is not
    /// known.
    pub fn is_unproved(&self) -> bool {
        self.is_measured && self.points.len() < 3
    }

    /// The largest error of the interpolation at a point that was left out, in millionths.
    pub fn missed_most_ppm(&self) -> u64 {
        self.missed_ppm.iter().copied().max().unwrap_or(0)
    }
}

/// The time of bytes at a rate in thousandths of MB/s, which are bytes a millisecond.
pub fn transfer_ns(bytes: u64, rate_kb: u64) -> u128 {
    (u128::from(bytes) * 1_000_000).div_ceil(u128::from(rate_kb.max(1)))
}

/// By how much the neighbours of each point miss it. The neighbours are twice as far from each
/// other as the two points around a size, so this is rather too much than too little.
fn missed(points: &[CurvePoint]) -> Vec<u64> {
    let mut missed = vec![0; points.len()];
    for at in 1..points.len().saturating_sub(1) {
        let [left, own, right] = [points[at - 1], points[at], points[at + 1]];
        let (part, whole) = (own.bytes - left.bytes, right.bytes - left.bytes);
        let sum = left.time.times(whole - part).plus(right.time.times(part)).part(1, whole);
        let off = sum.likely_ns.abs_diff(own.time.likely_ns) * 1_000_000;
        // More than the whole is no better known than the whole.
        missed[at] = (off / own.time.likely_ns.max(1)).min(1_000_000) as u64;
    }
    missed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(u64, u128)], is_measured: bool) -> Result<SizeCurve, PlanFault> {
        let point =
            |(bytes, ns): &(u64, u128)| CurvePoint { bytes: *bytes, time: WideSpan::exact(*ns) };
        SizeCurve::new("latency", points.iter().map(point).collect(), is_measured)
    }

    #[test]
    fn times_grow_evenly_between_sizes_and_by_the_rate_beyond() {
        let curve = curve(&[(1000, 3000), (0, 1000)], false).unwrap();
        let likely = |bytes, rate| curve.at(bytes, rate).likely_ns;
        assert_eq!([0, 250, 1000].map(|bytes| likely(bytes, None)), [1000, 1500, 3000]);
        assert_eq!(likely(2000, None), 5000);
        // 1,000 MB/s are a byte a nanosecond.
        assert_eq!(likely(2000, Some(RateSpan::exact(1_000_000))), 4000);
    }

    #[test]
    fn a_curve_that_falls_is_interpolated_too() {
        let curve = curve(&[(0, 3000), (100, 1000)], false).unwrap();
        assert_eq!(curve.at(50, None).likely_ns, 2000);
        assert_eq!(curve.at(200, None).likely_ns, 1000);
    }

    #[test]
    fn sizes_between_measured_points_have_the_error_of_their_neighbours() {
        let points = [(0, 1000), (100, 1000), (200, 2000), (300, 3000), (400, 4000)];
        let measured = curve(&points, true).unwrap();
        // Its neighbours would have said 1,500 ns of 100 bytes: half more than it was.
        assert_eq!(measured.missed_most_ppm(), 500_000);
        let between = measured.at(50, None);
        assert_eq!((between.least_ns, between.most_ns), (500, 1500));
        assert_eq!(measured.at(100, None), WideSpan::exact(1000), "a point itself is known");
        assert_eq!(measured.at(350, None), WideSpan::exact(3500), "a straight part is known");
        assert_eq!(curve(&points, false).unwrap().missed_most_ppm(), 0);
    }

    #[test]
    fn sizes_outside_of_measured_points_are_no_better_known() {
        let points = [(8, 1000), (108, 1000), (208, 2000), (308, 2000), (408, 2000)];
        let measured = curve(&points, true).unwrap();
        let ends = |bytes| (measured.at(bytes, None).least_ns, measured.at(bytes, None).most_ns);
        // 108 bytes were missed by a half.
        assert_eq!(ends(0), (500, 1500));
        assert_eq!(ends(1000), (2000, 2000), "308 bytes were not missed");
        let rate = RateSpan { least_kb: 500_000, likely_kb: 1_000_000, most_kb: 2_000_000 };
        let time = measured.at(508, Some(rate));
        assert_eq!([time.least_ns, time.likely_ns, time.most_ns], [2050, 2100, 2200]);
        assert_eq!((measured.ends(), measured.is_unproved()), ([8, 408], false));
        let two = curve(&points[..2], true).unwrap();
        assert!(two.is_unproved() && two.missed_most_ppm() == 0);
        assert!(!curve(&points[..2], false).unwrap().is_unproved(), "its range is stated");
        let fast = curve(&[(1000, 1000)], false).unwrap().last_rate();
        assert_eq!(fast, Some(RateSpan::exact(1_000_000)));
    }

    #[test]
    fn curves_without_use_are_refused() {
        let refused = |points| curve(points, false).unwrap_err().to_string();
        assert!(refused(&[]).contains("the number of latency"));
        assert!(refused(&[(1, 5), (1, 6)]).contains("there twice"));
        assert!(refused(&[(u64::MAX, 5)]).contains("latency.bytes"));
        assert!(refused(&[(1, u128::MAX)]).contains("latency.ns"));
        let time = WideSpan { least_ns: 3, likely_ns: 2, most_ns: 4 };
        let point = CurvePoint { bytes: 1, time };
        let fault = SizeCurve::new("latency", vec![point], false).unwrap_err();
        assert!(fault.to_string().contains("low_ns <= ns"), "{fault}");
    }
}
