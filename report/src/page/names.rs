//! The names of series in a legend: the words that set them apart, without the words that they
//! share.

use std::collections::{BTreeMap, BTreeSet};

use results::{Measurement, Quantity, RunOrigin, Statistic};

use super::item::Item;

/// The entries of a set-up that are added to equal names.
const ENTRIES_MAX: usize = 4;

/// A name for each of the items, all of them different.
pub(super) fn of(items: &[Item<'_>]) -> Vec<String> {
    let (others, own): (Vec<&Item<'_>>, Vec<&Item<'_>>) =
        items.iter().partition(|item| item.is_published());
    let mut own = apart(&own, true).into_iter();
    let several = others.len() > 1;
    let of = |item: &Item<'_>| match item.is_published() {
        true => published(item, if several { &item.series.name } else { "" }),
        false => own.next().unwrap_or_default(),
    };
    distinct(items.iter().map(of).collect())
}

/// The words that set the measurements of items apart, one item of each measurement; nothing for a
/// single one.
pub(super) fn of_measurements(items: &[&Item<'_>]) -> Vec<String> {
    match items {
        [_] => vec![String::new()],
        _ => distinct(apart(items, false)),
    }
}

/// Words of titles that all of our series share and no legend has; nothing for a single series.
pub(super) fn shared(items: &[Item<'_>]) -> Option<String> {
    let own: Vec<&Item<'_>> = items.iter().filter(|item| !item.is_published()).collect();
    let all = columns(&own, false);
    let [first, _, ..] = &all[..] else { return None };
    let is_told = |words: &str| {
        words.is_empty() || own.iter().all(|item| item.measurement.benchmark.starts_with(words))
    };
    // The first column is the run's name.
    let shared = (1..first.len()).filter(|at| is_shared(&all, *at) && !is_told(&first[*at]));
    let words: Vec<&str> = shared.map(|at| first[at].as_str()).collect();
    let differs = words.len() + 1 < first.len();
    (differs && !words.is_empty()).then(|| words.join(", "))
}

/// Makes equal names different by numbers.
fn distinct(names: Vec<String>) -> Vec<String> {
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    let mut taken: BTreeSet<String> = names.iter().cloned().collect();
    let number = |name: String| {
        let time = times.entry(name.clone()).or_default();
        *time += 1;
        if *time == 1 {
            return name;
        }
        // Another item may have the name "a (2)" already.
        let next = (*time..).map(|time| format!("{name} ({time})"));
        let next = next.into_iter().find(|name| !taken.contains(name)).unwrap_or_default();
        taken.insert(next.clone());
        next
    };
    names.into_iter().map(number).collect()
}

/// The words of each item that not all items have. Names that are still equal get the differences
/// of their set-ups, too.
fn apart(items: &[&Item<'_>], with_series: bool) -> Vec<String> {
    let all = columns(items, with_series);
    let count = all.first().map_or(0, Vec::len);
    let differs: Vec<bool> = (0..count).map(|at| !is_shared(&all, at)).collect();
    // If all items share all words, the measurement's title is the name.
    let nothing = !differs.contains(&true);
    let name = |(words, item): (&Vec<String>, &&Item<'_>)| {
        if nothing && with_series {
            return item.measurement.title.clone();
        }
        let kept =
            words.iter().zip(&differs).filter(|(word, differs)| **differs && !word.is_empty());
        kept.map(|(word, _)| word.as_str()).collect::<Vec<_>>().join(", ")
    };
    let names: Vec<String> = all.iter().zip(items).map(name).collect();
    let mut alike: BTreeMap<&str, Vec<&Measurement>> = BTreeMap::new();
    for (name, item) in names.iter().zip(items) {
        alike.entry(name).or_default().push(item.measurement);
    }
    let with_setup = |(name, item): (&String, &&Item<'_>)| {
        let entries = setup(item.measurement, &alike[name.as_str()]);
        let entries = entries.iter().map(String::as_str);
        let words = [name.as_str()].into_iter().filter(|name| !name.is_empty()).chain(entries);
        words.collect::<Vec<_>>().join(", ")
    };
    names.iter().zip(items).map(with_setup).collect()
}

/// Entries of a set-up in which these measurements differ.
fn setup(of: &Measurement, all: &[&Measurement]) -> Vec<String> {
    let differs = |key: &&String| all.iter().any(|it| it.setup.get(*key) != of.setup.get(*key));
    let keys: Vec<&String> = of.setup.keys().filter(differs).take(ENTRIES_MAX).collect();
    keys.into_iter().map(|key| format!("{} {}", key.replace('_', " "), of.setup[key])).collect()
}

/// The words of each item: the run, the title part by part, the series, the number of many.
fn columns(items: &[&Item<'_>], with_series: bool) -> Vec<Vec<String>> {
    fn split(title: &str) -> Vec<&str> {
        title.split(": ").flat_map(|part| part.split(", ")).collect()
    }
    fn run<'a>(item: &Item<'a>) -> &'a str {
        item.run.map_or("", |run| run.title.as_str())
    }
    fn title<'a>(item: &Item<'a>) -> &'a str {
        item.measurement.title.as_str()
    }
    // An imported run has the name of its first measurement.
    let named_after: BTreeSet<&str> =
        items.iter().filter(|item| run(item) == title(item)).map(|item| run(item)).collect();
    let is_run = items.iter().all(|item| run(item) == title(item));
    let count = items.first().map_or(0, |item| split(title(item)).len());
    let is_even = items.iter().all(|item| split(title(item)).len() == count);
    let begins = |at: usize| {
        let mut all = items.iter().map(|item| split(title(item)).get(at).copied());
        let first = all.next().flatten();
        first.is_some() && all.all(|word| word == first)
    };
    let alike = (0..).take_while(|at| begins(*at)).count();
    let words = |item: &&Item<'_>| {
        let is_named = is_run || !named_after.contains(run(item));
        let mut words = vec![if is_named { run(item).to_owned() } else { String::new() }];
        match (is_run, is_even) {
            (true, _) => {}
            (false, true) => words.extend(split(title(item)).into_iter().map(str::to_owned)),
            // For titles of several lengths, the part after their common beginning.
            (false, false) => {
                let own = split(title(item));
                words.push(own[alike.min(own.len() - 1)..].join(", "));
            }
        }
        if with_series {
            words.extend(of_series(item));
        }
        words
    };
    items.iter().map(words).collect()
}

fn of_series(item: &Item<'_>) -> [String; 2] {
    let name = &item.series.name;
    let name = if *name == item.measurement.title { String::new() } else { name.clone() };
    let which = item.series.statistic.map(Statistic::words).unwrap_or_default();
    let which = if name.contains(which) { String::new() } else { which.to_owned() };
    [name, which]
}

fn is_shared(all: &[Vec<String>], at: usize) -> bool {
    all.windows(2).all(|two| two[0][at] == two[1][at])
}

/// The name of a published series: the word "published", then its title, then its baseline. The
/// source is named below the plot.
pub(super) fn published(item: &Item<'_>, which: &str) -> String {
    let title = &item.measurement.title;
    let mut name = format!("published: {title}");
    if !which.is_empty() && !title.contains(which) {
        name += &format!(", {which}");
    }
    let is_relative = matches!(
        item.series.quantity,
        Quantity::Overhead | Quantity::Loss | Quantity::Slowdown | Quantity::Factor
    );
    if let Some(base) = item.measurement.setup.get("compared_with").filter(|_| is_relative) {
        name += &format!(", against {base}");
    }
    name
}

/// The origin of a series, in the words of a caption.
pub(super) fn origin(origin: RunOrigin) -> &'static str {
    match origin {
        RunOrigin::Measured => "measured by vrio",
        RunOrigin::Imported => "imported: another program measured",
        RunOrigin::Published => "published: others measured, elsewhere",
        RunOrigin::Planned => "planned: computed, and not measured",
    }
}
