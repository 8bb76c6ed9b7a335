//! The conversion of numbers into places on an axis, and the ticks of an axis.

/// The division of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisScale {
    /// Linear, and 0 is on it.
    Linear,
    /// Logarithmic to the base 2: sizes and depths.
    Log2,
    /// Logarithmic to the base 10.
    Log10,
    /// Percent more than something else, spaced by the factor: 0 %, 100 % (twice as much), 900 %. A
    /// reduction by a factor lies as far below 0 as an increase by that factor lies above it.
    TimesMore,
    /// Percent less than something else, spaced by the factor: 0 %, 50 % (half), 90 %.
    TimesLess,
}

impl AxisScale {
    /// The number on a logarithmic axis: the number itself, or for percentages the factor; none if
    /// the number has no place on such an axis.
    pub fn times(self, number: f64) -> Option<f64> {
        let times = match self {
            Self::Linear | Self::Log2 | Self::Log10 => number,
            Self::TimesMore => 1.0 + number / 100.0,
            Self::TimesLess => 1.0 / (1.0 - number / 100.0),
        };
        (times > 0.0 && times.is_finite()).then_some(times)
    }

    /// The inverse of [`Self::times`].
    fn number(self, times: f64) -> f64 {
        match self {
            Self::Linear | Self::Log2 | Self::Log10 => times,
            Self::TimesMore => (times - 1.0) * 100.0,
            Self::TimesLess => (1.0 - 1.0 / times) * 100.0,
        }
    }

    /// Whether such an axis can show a number, with any ends.
    pub fn has(self, number: f64) -> bool {
        self == Self::Linear || self.times(number).is_some()
    }

    fn is_of_times(self) -> bool {
        matches!(self, Self::TimesMore | Self::TimesLess)
    }
}

/// A line of the grid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tick {
    /// The number there.
    pub at: f64,
    /// Whether the number is written there.
    pub is_labelled: bool,
}

/// The labels of an axis: more labels would touch each other.
const LABELS_MAX: usize = 11;
/// With more decades, lines between the powers of ten would be a grey area.
const MINOR_DECADES_MAX: f64 = 8.0;
/// A logarithmic axis of fewer decades has the ticks of a linear one.
const FINE_DECADES: f64 = 0.5;
/// The span of an axis ends here, and at the reciprocal: larger spans would not be numbers.
const NUMBER_MAX: f64 = 1e140;
/// The part of a logarithmic axis that is kept for 0.
const ZERO_PART: f64 = 0.06;

/// A scale with both of its ends.
#[derive(Clone, Debug)]
pub struct ScaleSpan {
    scale: AxisScale,
    low: f64,
    high: f64,
    /// Whether there is a place for 0 before the least number, which a logarithmic axis does not
    /// have by itself.
    has_zero: bool,
    /// The labels instead of the ticks' own choice, if there are any.
    labels: Vec<f64>,
    /// Whether the steps of a linear axis are powers of two.
    is_binary: bool,
}

impl ScaleSpan {
    /// The span that shows all `numbers`, which are finite; ends are ticks or near to them.
    pub fn of(scale: AxisScale, numbers: impl IntoIterator<Item = f64> + Clone) -> Self {
        let numbers = numbers.into_iter().filter(|number| number.is_finite());
        if scale == AxisScale::Linear {
            return Self::linear(numbers);
        }
        let (mut low, mut high, mut has_zero) = (f64::INFINITY, f64::NEG_INFINITY, false);
        for number in numbers {
            has_zero |= number == 0.0 && !scale.is_of_times();
            if let Some(number) = scale.times(number) {
                let number = number.clamp(1.0 / NUMBER_MAX, NUMBER_MAX);
                (low, high) = (low.min(number), high.max(number));
            }
        }
        if low > high {
            (low, high) = (1.0, 10.0);
        }
        let (low, high) = match scale {
            AxisScale::Log2 if low == high => (low / 2.0, high * 2.0),
            AxisScale::Log2 => (low, high),
            // The baseline, a factor of 1, is on the axis, and may be its end.
            _ if scale.is_of_times() => {
                // A reduction by 90 % is a factor of ten but for the last bit.
                (step_down(low.min(1.0) * (1.0 + 1e-9)), step_up(high.max(1.0) * (1.0 - 1e-9)))
            }
            // Less than half a decade would be a stripe between one and ten of something.
            _ if low < high && (high / low).log10() < FINE_DECADES => fine_ends(low, high),
            _ => (step_down(low * 0.98), step_up(high * 1.02)),
        };
        Self { scale, low, high, has_zero, labels: Vec::new(), is_binary: false }
    }

    /// The same span, with labels at these numbers alone: for a few sizes, a reader looks for
    /// those.
    pub fn labelled_at(self, labels: Vec<f64>) -> Self {
        Self { labels, ..self }
    }

    fn linear(numbers: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = (0.0_f64, 0.0_f64);
        for number in numbers.map(|number| number.clamp(-NUMBER_MAX, NUMBER_MAX)) {
            (low, high) = (low.min(number), high.max(number));
        }
        if low == high {
            high = 1.0;
        }
        let step = nice_step(high - low);
        let reach = |number: f64, up: bool| {
            let steps = number / step;
            let whole = if up { (steps - 1e-9).ceil() } else { (steps + 1e-9).floor() };
            // One more step would be empty where the last tick is nearly reached.
            if (steps - steps.round()).abs() < 0.02 { steps.round() * step } else { whole * step }
        };
        let (low, high) = (reach(low, false).min(low), reach(high, true).max(high));
        Self {
            scale: AxisScale::Linear,
            low,
            high,
            has_zero: false,
            labels: Vec::new(),
            is_binary: false,
        }
    }

    /// The same span; a linear axis has its ticks at whole powers of two, as bytes are told.
    pub fn binary(self, is_binary: bool) -> Self {
        Self { is_binary, ..self }
    }

    /// A span that ends exactly at its numbers: a time line has no empty end.
    pub fn tight(low: f64, high: f64) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        Self {
            scale: AxisScale::Linear,
            low,
            high,
            has_zero: false,
            labels: Vec::new(),
            is_binary: false,
        }
    }

    /// The division of the axis.
    pub fn scale(&self) -> AxisScale {
        self.scale
    }

    /// Both ends; for percentages, as factors.
    pub fn ends(&self) -> (f64, f64) {
        (self.low, self.high)
    }

    /// The place of `number`, from 0 (the low end) to 1. Numbers without a place have none, such as
    /// 0 and less on a logarithmic axis.
    pub fn place(&self, number: f64) -> Option<f64> {
        let part = match (self.scale, self.scale.times(number)) {
            (AxisScale::Linear, _) => (number - self.low) / (self.high - self.low),
            (_, Some(times)) => {
                let part = (times / self.low).ln() / (self.high / self.low).ln();
                if self.has_zero { ZERO_PART + part * (1.0 - ZERO_PART) } else { part }
            }
            (_, None) if number == 0.0 && self.has_zero => 0.0,
            (_, None) => return None,
        };
        (part.is_finite()).then(|| part.clamp(0.0, 1.0))
    }

    /// Whether 0 has its own place before a logarithmic axis.
    pub fn has_zero(&self) -> bool {
        self.has_zero
    }

    /// Its ticks, in order.
    pub fn ticks(&self) -> Vec<Tick> {
        let mut ticks = match self.scale {
            AxisScale::Linear if self.is_binary => {
                stepped_ticks(self.low, self.high, binary_step(self.high - self.low))
            }
            AxisScale::Linear => linear_ticks(self.low, self.high),
            AxisScale::Log2 => doubling_ticks(self.low, self.high),
            AxisScale::Log10 => decade_ticks(self.low, self.high),
            scale @ (AxisScale::TimesMore | AxisScale::TimesLess) => {
                let of = |tick: Tick| Tick { at: scale.number(tick.at), ..tick };
                decade_ticks(self.low, self.high).into_iter().map(of).collect()
            }
        };
        if self.has_zero {
            ticks.insert(0, Tick { at: 0.0, is_labelled: true });
        }
        if !self.labels.is_empty() {
            ticks.retain(|tick| !self.labels.contains(&tick.at));
            ticks.iter_mut().for_each(|tick| tick.is_labelled = false);
            ticks.extend(self.labels.iter().map(|at| Tick { at: *at, is_labelled: true }));
            ticks.sort_by(|one, other| one.at.total_cmp(&other.at));
        }
        ticks
    }
}

/// A step of 1, 2, 2.5 or 5 times a power of ten, so that the span has five to eight steps.
fn nice_step(span: f64) -> f64 {
    let rough = span / 6.0;
    let ten = 10_f64.powf(rough.log10().floor());
    let nice = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|times| times * ten >= rough * 0.85);
    nice.unwrap_or(10.0) * ten
}

/// A power of two, so that the span has four to eight steps.
fn binary_step(span: f64) -> f64 {
    2_f64.powf((span / 8.0).log2().ceil())
}

fn linear_ticks(low: f64, high: f64) -> Vec<Tick> {
    stepped_ticks(low, high, nice_step(high - low))
}

fn stepped_ticks(low: f64, high: f64, step: f64) -> Vec<Tick> {
    let first = (low / step - 1e-9).ceil();
    let places = (0..=2 * LABELS_MAX).map(|at| (first + at as f64) * step);
    let inside = places.take_while(|at| *at <= high + step * 1e-9);
    inside.map(|at| Tick { at, is_labelled: true }).collect()
}

fn doubling_ticks(low: f64, high: f64) -> Vec<Tick> {
    let (first, last) = ((low.log2() - 1e-9).ceil() as i32, (high.log2() + 1e-9).floor() as i32);
    let count = (last - first + 1).max(1) as usize;
    let each = count.div_ceil(LABELS_MAX) as i32;
    // The labels are at 1, 4, 16 rather than at 2, 8, 32.
    let tick = |power: i32| Tick { at: 2_f64.powi(power), is_labelled: power % each == 0 };
    (first..=last).map(tick).collect()
}

/// The greatest of one, two or five times a power of ten that is not more than `number`.
fn step_down(number: f64) -> f64 {
    let ten = 10_f64.powf((number.log10() + 1e-12).floor());
    [5.0, 2.0, 1.0].into_iter().map(|times| times * ten).find(|at| *at <= number).unwrap_or(ten)
}

fn step_up(number: f64) -> f64 {
    let ten = 10_f64.powf((number.log10() + 1e-12).floor());
    let up = [1.0, 2.0, 5.0].into_iter().map(|times| times * ten).find(|at| *at >= number);
    up.unwrap_or(10.0 * ten)
}

/// The ends of a short logarithmic axis: linear ticks around its numbers.
fn fine_ends(low: f64, high: f64) -> (f64, f64) {
    let step = nice_step(high - low);
    ((low / step).floor() * step, (high / step).ceil() * step)
}

fn decade_ticks(low: f64, high: f64) -> Vec<Tick> {
    let decades = (high / low).log10();
    if decades < FINE_DECADES {
        return linear_ticks(low, high);
    }
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let each = ((decades as usize).div_ceil(LABELS_MAX)).max(1) as i32;
    let inside = |at: f64| at >= low * (1.0 - 1e-9) && at <= high * (1.0 + 1e-9);
    let mut ticks = Vec::new();
    for power in first..=last {
        for times in 1..=9 {
            let at = f64::from(times) * 10_f64.powi(power);
            let is_labelled = if decades > 3.0 {
                times == 1 && power.rem_euclid(each) == 0
            } else {
                matches!(times, 1 | 2 | 5)
            };
            if inside(at) && (is_labelled || decades <= MINOR_DECADES_MAX) {
                ticks.push(Tick { at, is_labelled });
            }
        }
    }
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(span: &ScaleSpan) -> Vec<f64> {
        span.ticks().into_iter().filter(|tick| tick.is_labelled).map(|tick| tick.at).collect()
    }

    #[test]
    fn linear_axes_hold_zero_and_end_at_ticks() {
        let span = ScaleSpan::of(AxisScale::Linear, [3.0, 97.0]);
        assert_eq!(span.ends(), (0.0, 100.0));
        assert_eq!(labels(&span), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        let span = ScaleSpan::of(AxisScale::Linear, [-13.0, 31.0]);
        assert!(labels(&span).contains(&0.0));
        assert!(span.ends().0 <= -13.0 && span.ends().1 >= 31.0);
        assert_eq!(ScaleSpan::of(AxisScale::Linear, []).ends(), (0.0, 1.0));
    }

    #[test]
    fn bytes_have_whole_ticks() {
        let span = ScaleSpan::tight(0.0, 13e9).binary(true);
        assert_eq!(
            labels(&span),
            [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0].map(|at| at * 2_f64.powi(31))
        );
        assert_eq!(labels(&ScaleSpan::tight(0.0, 8.0).binary(true)).len(), 9);
    }

    #[test]
    fn sizes_double() {
        let sizes: Vec<f64> = (0..=22).map(|power| 2_f64.powi(power)).collect();
        let span = ScaleSpan::of(AxisScale::Log2, sizes.iter().copied());
        assert_eq!(span.ticks().len(), 23);
        assert!(labels(&span).len() <= LABELS_MAX && labels(&span)[0] == 1.0);
        assert_eq!(span.place(2048.0), Some(0.5));
        assert_eq!(span.place(0.0), None);
    }

    #[test]
    fn a_few_sizes_are_labelled_themselves() {
        let sizes = [8.0, 1024.0, 1500.0, 65_536.0];
        let span = ScaleSpan::of(AxisScale::Log2, sizes).labelled_at(sizes.to_vec());
        assert_eq!(labels(&span), sizes);
        assert_eq!(span.ticks().len(), 15, "fourteen powers of two, and 1500");
    }

    #[test]
    fn zero_has_a_place_before_a_logarithmic_axis() {
        let span = ScaleSpan::of(AxisScale::Log2, [0.0, 1.0, 1024.0]);
        assert_eq!(span.place(0.0), Some(0.0));
        assert_eq!(span.place(1.0), Some(ZERO_PART));
        assert_eq!(span.place(1024.0), Some(1.0));
        assert_eq!(labels(&span)[0], 0.0);
        assert_eq!(span.place(-1.0), None);
    }

    #[test]
    fn decades_are_labelled_and_short_spans_more_finely() {
        assert_eq!(
            labels(&ScaleSpan::of(AxisScale::Log10, [0.9, 9000.0])),
            [1.0, 10.0, 100.0, 1e3, 1e4]
        );
        let span = ScaleSpan::of(AxisScale::Log10, [12.0, 60.0]);
        assert_eq!(labels(&span), [10.0, 20.0, 50.0, 100.0]);
        let short = ScaleSpan::of(AxisScale::Log10, [36_500.0, 61_000.0]);
        assert_eq!(short.ends(), (35_000.0, 65_000.0), "{:?}", labels(&short));
        let (scale, labels_) = (AxisScale::Log10, Vec::new());
        let narrow = ScaleSpan {
            scale,
            low: 100.0,
            high: 200.0,
            has_zero: false,
            labels: labels_,
            is_binary: false,
        };
        assert!(labels(&narrow).len() >= 4, "{narrow:?}");
    }

    #[test]
    fn percentages_lie_as_far_apart_as_they_are_times() {
        let more = ScaleSpan::of(AxisScale::TimesMore, [0.0, -30.0, 12.0, 1900.0]);
        assert_eq!(labels(&more), [-50.0, 0.0, 100.0, 400.0, 900.0, 1900.0]);
        let place = |number| more.place(number).unwrap();
        assert!((place(100.0) - place(0.0) - (place(0.0) - place(-50.0))).abs() < 1e-9);
        assert_eq!((more.place(-100.0), more.place(1900.0)), (None, Some(1.0)));
        // Ten times less is 90 % less, and ten times more is 900 % "less than nothing".
        let less = ScaleSpan::of(AxisScale::TimesLess, [0.0, 90.0]);
        let found: Vec<f64> = labels(&less).iter().map(|at| at.round()).collect();
        assert_eq!(found, [0.0, 50.0, 80.0, 90.0]);
        assert_eq!((less.place(0.0), less.place(100.0)), (Some(0.0), None));
        assert!(!AxisScale::TimesLess.has(100.0) && AxisScale::TimesLess.has(-900.0));
        // The ends are at the numbers, and not at half of them.
        assert_eq!(labels(&ScaleSpan::of(AxisScale::TimesMore, [0.0, 900.0]))[0], 0.0);
    }

    #[test]
    fn any_input_gives_few_ticks_and_finite_places() {
        for numbers in [
            vec![f64::MIN_POSITIVE, f64::MAX],
            vec![f64::MAX, f64::MAX / 2.0],
            vec![1.0, 1.0],
            vec![0.0],
            vec![-5.0, -5.0],
            vec![1e-300],
            vec![f64::NAN, f64::INFINITY],
            vec![-f64::MAX, f64::MAX],
        ] {
            let all = [
                AxisScale::Linear,
                AxisScale::Log2,
                AxisScale::Log10,
                AxisScale::TimesMore,
                AxisScale::TimesLess,
            ];
            for scale in all {
                let span = ScaleSpan::of(scale, numbers.iter().copied());
                let ticks = span.ticks();
                assert!(ticks.len() < 3000, "{scale:?} {numbers:?}: {} ticks", ticks.len());
                assert!(labels(&span).len() <= 2 * LABELS_MAX + 1, "{scale:?} {numbers:?}");
                for number in &numbers {
                    let place = span.place(*number);
                    assert!(place.is_none_or(|at| (0.0..=1.0).contains(&at)), "{numbers:?}");
                }
            }
        }
    }
}
