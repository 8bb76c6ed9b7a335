//! Series of one quantity against another, of one subject: they can be in one plot.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use results::{Against, Measurement, Point, Quantity, Statistic, Unit};

use super::item::Item;
use super::subject::Subject;
use crate::plot::AxisScale;
use crate::plot::number::tick;
use crate::plot::style::{COLOURS, DASHES, SeriesLook};

/// The names of series that a description has.
const NAMED_MAX: usize = 5;

/// The looks of series by name. A name looks the same in every plot, unless another name of the
/// plot has that look.
#[derive(Debug, Default)]
pub(super) struct Looks {
    by_name: BTreeMap<String, usize>,
}

impl Looks {
    pub(super) fn of(&mut self, names: &[String]) -> Vec<SeriesLook> {
        let mut used = BTreeSet::new();
        let look = |name: &String| {
            let next = self.by_name.len();
            let look = SeriesLook::nth(*self.by_name.entry(name.clone()).or_insert(next));
            // First the colours are tried alone, then with each dash. Only if all are used, a look
            // appears twice.
            let all = (0..COLOURS * DASHES).map(|at| (at / COLOURS, (look.colour + at) % COLOURS));
            let free = all.into_iter().find(|pair| !used.contains(pair));
            let (dash, colour) = free.unwrap_or((look.dash, look.colour));
            used.insert((dash, colour));
            SeriesLook { colour, dash, ..look }
        };
        names.iter().map(look).collect()
    }
}

/// The state that the plots of a page share while they are made.
#[derive(Default)]
pub(super) struct Drawing<'a> {
    pub(super) looks: Looks,
    /// Published measurements that are shown.
    pub(super) shown: Vec<&'a Measurement>,
}

impl<'a> Drawing<'a> {
    pub(super) fn shows(&mut self, item: &Item<'a>) {
        let is_known = self.shown.iter().any(|known| std::ptr::eq(*known, item.measurement));
        if item.is_published() && !is_known {
            self.shown.push(item.measurement);
        }
    }
}

/// A group of series that share a plot.
pub(super) struct Group<'a> {
    pub(super) subject: Subject,
    pub(super) quantity: Quantity,
    pub(super) against: Against,
    /// Whether the group has means and tails beside a median with a plot of its own.
    pub(super) is_rest: bool,
    /// Whether the group has counters that are no parts of a sum.
    pub(super) is_parts: bool,
    pub(super) items: Vec<Item<'a>>,
    /// The name of each item in the legend.
    pub(super) names: Vec<String>,
    /// Published figures of the same subject in another form: a peak, an overhead.
    pub(super) others: Vec<Item<'a>>,
    /// The names of series for which the plot has no room.
    pub(super) left_out: Vec<String>,
}

impl<'a> Group<'a> {
    /// The published series of this quantity, by their horizontal axis.
    pub(super) fn others(
        &self,
        quantity: Quantity,
        against: Against,
    ) -> impl Iterator<Item = Item<'a>> {
        let fits = move |item: &&Item<'a>| {
            (item.series.quantity, item.series.x.quantity) == (quantity, against)
        };
        self.others.iter().filter(fits).copied()
    }

    /// All series that may be in the plots of the group.
    pub(super) fn all(&self) -> impl Iterator<Item = &Item<'a>> {
        self.items.iter().chain(&self.others)
    }

    /// The names by which items get their looks. A measurement that is in a plot once looks the
    /// same in all plots, although its name in the legend may differ.
    pub(super) fn look_keys(&self) -> Vec<String> {
        let mut times: HashMap<&str, usize> = HashMap::new();
        for item in &self.items {
            *times.entry(&item.measurement.title).or_default() += 1;
        }
        let key = |(item, name): (&Item<'_>, &String)| match times[item.measurement.title.as_str()]
        {
            1 => item.measurement.title.clone(),
            _ => name.clone(),
        };
        self.items.iter().zip(&self.names).map(key).collect()
    }

    /// Whether our own series are plans: nothing of them was measured.
    pub(super) fn is_planned(&self) -> bool {
        let mut own = self.items.iter().filter(|item| !item.is_published()).peekable();
        own.peek().is_some() && own.all(Item::is_planned)
    }

    /// The places on the horizontal axis, at which any series has a figure.
    pub(super) fn places(&self) -> usize {
        self.points().map(|point| point.x.to_bits()).collect::<BTreeSet<_>>().len()
    }

    /// The unit of the plot: that of the first item.
    pub(super) fn unit(&self) -> Unit {
        self.items[0].series.unit
    }

    pub(super) fn x_unit(&self) -> Unit {
        self.items[0].series.x.unit
    }

    /// The only place on a horizontal axis of numbers, if all series have just that place.
    pub(super) fn only_place(&self) -> Option<f64> {
        if matches!(self.against, Against::Category | Against::Time) {
            return None;
        }
        let unit = self.x_unit();
        let place = |item: &Item<'_>| match &item.series.points[..] {
            [one] if one.x_to.is_none() => item.series.x.unit.convert(one.x, unit),
            _ => None,
        };
        let mut places = self.items.iter().map(place);
        let first = places.next()??;
        places.all(|place| place == Some(first)).then_some(first)
    }

    /// "Median latency" if all series are medians, else "latency".
    pub(super) fn told(&self) -> String {
        let mut own = self.items.iter().filter(|item| !item.is_published());
        let first = own.next().and_then(|item| item.series.statistic);
        let is_one = own.all(|item| item.series.statistic == first);
        let words = |which| match which {
            Statistic::Max => "greatest",
            which => which.words(),
        };
        let which = first.filter(|_| is_one).map(|which| format!("{} ", words(which)));
        which.unwrap_or_default() + self.quantity.words()
    }

    /// A title such as "Latency by queue depth: disks".
    pub(super) fn title(&self, what: &str) -> String {
        let by = match (self.against, self.only_place()) {
            (Against::Category, _) => String::new(),
            (against, None) => format!(" by {}", against.words()),
            (against, Some(place)) => {
                format!(" at {} {}", against.words(), tick(place, self.x_unit()))
            }
        };
        let one = self.items.iter().map(|item| item.series.statistic).collect::<HashSet<_>>();
        let one = one.into_iter().flatten().map(Statistic::words).collect::<Vec<_>>();
        let rest = match (self.is_rest, &one[..]) {
            (false, _) => String::new(),
            (true, [one]) => format!(", {one}"),
            (true, _) => ", means and tails".to_owned(),
        };
        capital(&format!("{what}{by}{rest}: {}", self.subject.words()))
    }
    /// The points of all items.
    pub(super) fn points(&self) -> impl Iterator<Item = &Point> {
        self.items.iter().flat_map(|item| &item.series.points)
    }
}

pub(super) fn capital(words: &str) -> String {
    let mut rest = words.chars();
    rest.next().map(|first| first.to_uppercase().chain(rest).collect()).unwrap_or_default()
}

/// The description of a plot, for a reader without the picture.
pub(super) fn described(title: &str, names: &[String]) -> String {
    let named: Vec<&str> = names.iter().take(NAMED_MAX).map(String::as_str).collect();
    let more = names.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    format!("{title}. Series: {}{more}. All of its numbers are in the table.", named.join("; "))
}

pub(super) fn x_scale(group: &Group<'_>) -> AxisScale {
    match group.against {
        Against::MessageSize | Against::QueueDepth => AxisScale::Log2,
        Against::Guests | Against::Processes | Against::Sidecores | Against::Servers => {
            let most = group.points().fold(0.0_f64, |most, point| most.max(point.x));
            if most > 16.0 { AxisScale::Log2 } else { AxisScale::Linear }
        }
        Against::Time | Against::Correlation | Against::Category => AxisScale::Linear,
    }
}

/// A point of `item` in the units of its plot.
pub(super) fn converted(item: &Item<'_>, point: &Point, unit: Unit, x_unit: Unit) -> Point {
    let series = item.series;
    let y = |number: f64| series.unit.convert(number, unit).unwrap_or(number);
    let x = |number: f64| series.x.unit.convert(number, x_unit).unwrap_or(number);
    Point {
        x: x(point.x),
        x_to: point.x_to.map(x),
        y: y(point.y),
        low: point.low.map(y),
        high: point.high.map(y),
        ..point.clone()
    }
}
