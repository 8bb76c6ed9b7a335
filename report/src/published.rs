//! Figures that others published, as far as sentences and tables of their texts have them. Figures
//! that only a picture shows are not read off it.
//!
//! Each figure has the words with it (`said`), which stand in a quotation of its measurement.

use results::{Measurement, SCHEMA};
use serde::Deserialize;
use toml::{Table, Value};

/// The files, with their names.
const FILES: [(&str, &str); 6] = [
    ("ib-sriov.toml", include_str!("../published/ib-sriov.toml")),
    ("ec2-c3.toml", include_str!("../published/ec2-c3.toml")),
    ("ec2-netperf.toml", include_str!("../published/ec2-netperf.toml")),
    ("tcp-over-ib.toml", include_str!("../published/tcp-over-ib.toml")),
    ("xrc.toml", include_str!("../published/xrc.toml")),
    ("vrio.toml", include_str!("../published/vrio.toml")),
];

/// The figures of one text. Each measurement has the form of a result's file, without the fields
/// that all of them share.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedFile {
    source: String,
    measurement: Vec<Table>,
}

/// All published measurements, text by text.
pub fn published() -> Vec<Measurement> {
    let all = FILES.iter().flat_map(|(name, text)| {
        read(text).unwrap_or_else(|error| panic!("{name} is part of the program: {error}"))
    });
    all.collect()
}

fn read(text: &str) -> Result<Vec<Measurement>, String> {
    let file: PublishedFile = toml::from_str(text).map_err(|error| error.to_string())?;
    let one = |mut table: Table| {
        let same = [
            ("schema", Value::Integer(SCHEMA.into())),
            ("origin", Value::String("published".to_owned())),
            ("source", Value::String(file.source.clone())),
        ];
        table.extend(same.map(|(name, value)| (name.to_owned(), value)));
        let it: Measurement = table.try_into().map_err(|error| error.to_string())?;
        it.check().map_err(|error| format!("{}: {error}", it.title))?;
        Ok(it)
    };
    file.measurement.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use results::{Meant, Point, RunOrigin, Unit};

    use super::*;

    /// The factor that each unit behind a number stands for.
    const MULTIPLES: [(&str, f64); 8] = [
        ("GB", 1e9),
        ("MB", 1e6),
        ("KB", 1e3),
        ("Gbps", 1e9),
        ("Mbps", 1e6),
        ("K", 1e3),
        ("us", 1e-6),
        ("millisecond", 1e-3),
    ];

    /// The first number in some words: `$44.5K` is 44500, `3× to 4×` is 3, `3.8 GB/s` 3.8e9.
    fn number(words: &str) -> Option<f64> {
        let start = words.find(|c: char| c.is_ascii_digit())?;
        let is_part = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
        let end = words[start..].find(|c| !is_part(c)).map_or(words.len(), |at| start + at);
        let digits: String = words[start..end].chars().filter(|c| *c != ',').collect();
        let number: f64 = digits.trim_end_matches('.').parse().ok()?;
        let rest = words[end..].trim_start();
        let multiple = MULTIPLES.iter().find(|(name, _)| rest.starts_with(name));
        Some(number * multiple.map_or(1.0, |(_, multiple)| *multiple))
    }

    /// One of a unit, in the base of its dimension here: seconds, bytes or bits a second.
    fn one_of(unit: Unit) -> f64 {
        match unit {
            Unit::MbPerS => 1e6,
            Unit::Ms => 1e-3,
            Unit::Us => 1e-6,
            Unit::Ns => 1e-9,
            _ => 1.0,
        }
    }

    fn points(it: &Measurement) -> impl Iterator<Item = &Point> {
        it.series.iter().flat_map(|series| &series.points)
    }

    #[test]
    fn each_figure_stands_in_a_quotation() {
        let all = published();
        assert!(all.len() >= 25 && all.iter().all(|it| it.origin == RunOrigin::Published));
        for it in &all {
            for point in points(it) {
                let said = point.said.as_ref().unwrap_or_else(|| panic!("{point:?}"));
                let is_quoted = it.quotations.iter().any(|words| words.contains(said.as_str()));
                assert!(is_quoted, "{}: {said:?} stands in no quotation", it.title);
            }
        }
    }

    /// A figure is the number of its words: `3.8 GB/s` is 3800 MB/s. Rows of events have their own
    /// test below.
    #[test]
    fn each_figure_is_the_number_of_its_words() {
        let rows = ["models", "connections_ft", "connections_is"];
        for it in published().iter().filter(|it| !rows.contains(&it.benchmark.as_str())) {
            let all = it.series.iter().flat_map(|it| it.points.iter().map(|of| (it.unit, of)));
            for (unit, point) in all {
                let said = point.said.as_deref().unwrap();
                let number = number(said).unwrap();
                // "7.3% gain" is 1.073 times as much.
                let number = if said.contains("gain") { 1.0 + number / 100.0 } else { number };
                let off = point.y * one_of(unit) / number - 1.0;
                assert!(off.abs() < 1e-9, "{}: {said:?} is not {} {unit:?}", it.title, point.y);
            }
        }
    }

    #[test]
    fn rows_of_tables_have_their_figure_where_it_stands() {
        let all = published();
        let models = all.iter().find(|it| it.benchmark == "models").unwrap();
        let mut sums = [0.0; 5];
        for (column, series) in models.series.iter().enumerate() {
            for point in &series.points {
                let label = point.label.as_deref().unwrap();
                let row = point.said.as_deref().unwrap().strip_prefix(label).unwrap();
                let word = row.split_whitespace().nth(column).unwrap();
                assert_eq!(word.parse(), Ok(point.y), "{row}");
                sums[point.x as usize] += point.y;
            }
        }
        assert_eq!(sums, [2.0, 2.0, 4.0, 6.0, 9.0], "the slide's own sums");
        for name in ["connections_ft", "connections_is"] {
            let it = all.iter().find(|it| it.benchmark == name).unwrap();
            for point in points(it) {
                let said = point.said.as_deref().unwrap();
                let is_there = said.split(' ').any(|word| word.parse() == Ok(point.y));
                assert!(is_there, "{said:?} has no {}", point.y);
            }
        }
    }

    #[test]
    fn bounds_are_not_taken_for_figures() {
        for point in published().iter().flat_map(points) {
            let said = point.said.as_deref().unwrap();
            let bounds = ["less than", "over ", "up to", "under ", "minimum", "almost", "never"];
            if bounds.iter().any(|word| said.contains(word)) {
                assert!(matches!(point.meant, Meant::AtMost | Meant::AtLeast), "{said:?}");
            }
        }
    }

    #[test]
    fn a_missing_number_has_a_reason() {
        let bare = published().into_iter().filter(|it| it.series.is_empty());
        let bare: Vec<_> = bare.collect();
        assert!(bare.len() == 2 && bare.iter().all(|it| !it.empty.is_empty()));
    }
}
