//! A strict parser of Prometheus text 0.0.4. Text that it does not expect is an error, even if the
//! real parser would accept it.

use std::collections::{BTreeMap, HashSet};

type Labels = Vec<(String, String)>;

#[derive(Debug, Default)]
pub(crate) struct Text {
    kinds: BTreeMap<String, String>,
    samples: BTreeMap<(String, Labels), f64>,
}

impl Text {
    pub(crate) fn parse(text: &str) -> Self {
        assert!(text.ends_with('\n'), "the last line ends");
        let mut parsed = Self::default();
        let mut helped = HashSet::new();
        let mut family = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').expect("help has a text");
                assert!(!help.is_empty() && helped.insert(name.to_owned()), "{line}");
                family = name.to_owned();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a type");
                assert_eq!(name, family, "HELP, TYPE and samples of a metric are together");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert!(parsed.kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{line}");
            } else {
                let (name, labels, value) = sample(line);
                let of_family = name == family
                    || (parsed.kinds[&family] == "histogram"
                        && ["_bucket", "_sum", "_count"]
                            .map(|suffix| format!("{family}{suffix}"))
                            .contains(&name));
                assert!(of_family, "{name} is not {family}");
                assert_eq!(parsed.kinds[&family] == "counter", family.ends_with("_total"));
                let twice = parsed.samples.insert((name, labels), value);
                assert!(twice.is_none(), "twice: {line}");
            }
        }
        parsed.check_histograms();
        parsed
    }

    /// The only sample that has these labels, perhaps among others.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let matches = |sample: &Labels| {
            labels
                .iter()
                .all(|(name, value)| sample.iter().any(|(found, is)| found == name && is == value))
        };
        let mut found = self.samples.iter().filter(|((is, found), _)| is == name && matches(found));
        let value = *found.next().unwrap_or_else(|| panic!("no {name} {labels:?}")).1;
        assert!(found.next().is_none(), "several {name} {labels:?}");
        value
    }

    pub(crate) fn kind(&self, name: &str) -> &str {
        &self.kinds[name]
    }

    /// Checks that only gauges are less in a later text.
    pub(crate) fn assert_grown_to(&self, later: &Self) {
        for ((name, labels), value) in &self.samples {
            if self.kinds.get(name).is_some_and(|kind| kind == "gauge") {
                continue;
            }
            let later = later.samples.get(&(name.clone(), labels.clone()));
            assert!(later >= Some(value), "{name} {labels:?} fell from {value} to {later:?}");
        }
    }

    /// Checks that buckets grow with their bounds, and that the last one is the count.
    fn check_histograms(&self) {
        for (name, _) in self.kinds.iter().filter(|(_, kind)| *kind == "histogram") {
            let mut series: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
            let bucket = format!("{name}_bucket");
            for ((_, labels), value) in self.samples.iter().filter(|((is, _), _)| *is == bucket) {
                let (le, rest): (Vec<_>, Vec<_>) =
                    labels.iter().cloned().partition(|(name, _)| name == "le");
                let bound = le[0].1.replace("+Inf", "inf").parse().expect("a bound");
                series.entry(rest).or_default().push((bound, *value));
            }
            for (labels, mut buckets) in series {
                buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
                assert!(buckets.is_sorted_by(|a, b| a.1 <= b.1), "{name} {labels:?}");
                let (bound, all) = *buckets.last().expect("not empty");
                assert_eq!(bound, f64::INFINITY);
                assert_eq!(self.samples[&(format!("{name}_count"), labels.clone())], all);
                assert!(self.samples.contains_key(&(format!("{name}_sum"), labels)));
            }
        }
    }
}

/// `name{label="value",..} number`, or without labels.
fn sample(line: &str) -> (String, Labels, f64) {
    let at = line.find(['{', ' ']).unwrap_or_else(|| panic!("no value: {line}"));
    let (name, mut rest) = line.split_at(at);
    let valid = |name: &str| {
        let mut bytes = name.bytes();
        bytes.next().is_some_and(|first| first.is_ascii_lowercase())
            && bytes.all(|byte| byte.is_ascii_lowercase() || byte == b'_' || byte.is_ascii_digit())
    };
    assert!(valid(name), "{line}");
    let mut labels = Labels::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
            assert!(valid(label), "{line}");
            let (value, after) = unquote(after);
            labels.push((label.to_owned(), value));
            if let Some(after) = after.strip_prefix('}') {
                rest = after;
                break;
            }
            rest = after.strip_prefix(',').unwrap_or_else(|| panic!("{line}"));
        }
    }
    let number = rest.strip_prefix(' ').unwrap_or_else(|| panic!("{line}"));
    assert!(number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'), "{line}");
    (name.to_owned(), labels, number.parse().expect("a number"))
}

/// A label's value up to its closing quote, and the rest of the text.
fn unquote(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return (value, &text[at + 1..]),
            '\\' => match chars.next().expect("something is escaped").1 {
                'n' => value.push('\n'),
                escaped @ ('\\' | '"') => value.push(escaped),
                other => panic!("\\{other} in {text}"),
            },
            char => value.push(char),
        }
    }
    panic!("a value without an end: {text}")
}
