//! Figures that others published, as far as sentences and tables of their texts have them. What
//! stands in a picture alone is not read off it.
//!
//! Each figure has the words with it (`said`), which stand in a quotation of its measurement.

use serde::Deserialize;
use toml::{Table, Value};

use crate::result::{Measurement, SCHEMA};

/// The files, with their names.
const FILES: [(&str, &str); 6] = [
    ("ib-sriov.toml", include_str!("../published/ib-sriov.toml")),
    ("ec2-c3.toml", include_str!("../published/ec2-c3.toml")),
    ("ec2-netperf.toml", include_str!("../published/ec2-netperf.toml")),
    ("tcp-over-ib.toml", include_str!("../published/tcp-over-ib.toml")),
    ("xrc.toml", include_str!("../published/xrc.toml")),
    ("vrio.toml", include_str!("../published/vrio.toml")),
];

/// One text's figures; each measurement is as in a result's file, but for what is the same in all.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    source: String,
    measurement: Vec<Table>,
}

/// All of them, text by text.
pub fn published() -> Vec<Measurement> {
    let all = FILES.iter().flat_map(|(name, text)| {
        read(text).unwrap_or_else(|error| panic!("{name} is part of the program: {error}"))
    });
    all.collect()
}

fn read(text: &str) -> Result<Vec<Measurement>, String> {
    let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
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
    use super::*;
    use crate::result::{Meant, Origin, Point};

    /// The first number of some words: `$44.5K` is 44.5, `3× to 4×` is 3.
    fn number(words: &str) -> Option<f64> {
        let start = words.find(|c: char| c.is_ascii_digit())?;
        let digits = words[start..].chars().filter(|c| *c != ',');
        let digits: String = digits.take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        digits.trim_end_matches('.').parse().ok()
    }

    fn points(it: &Measurement) -> impl Iterator<Item = &Point> {
        it.series.iter().flat_map(|series| &series.points)
    }

    #[test]
    fn each_figure_stands_in_a_quotation() {
        let all = published();
        assert!(all.len() >= 25 && all.iter().all(|it| it.origin == Origin::Published));
        for it in &all {
            for point in points(it) {
                let said = point.said.as_ref().unwrap_or_else(|| panic!("{point:?}"));
                let is_quoted = it.quotations.iter().any(|words| words.contains(said.as_str()));
                assert!(is_quoted, "{}: {said:?} stands in no quotation", it.title);
            }
        }
    }

    /// A figure is the number of its words, in some power of ten: `3.8 GB/s` is 3800 MB/s. Rows of
    /// events have their own test below.
    #[test]
    fn each_figure_is_the_number_of_its_words() {
        let rows = ["models", "connections_ft", "connections_is"];
        for it in published().iter().filter(|it| !rows.contains(&it.benchmark.as_str())) {
            for point in points(it) {
                let said = point.said.as_deref().unwrap();
                // "7.3% gain" is 1.073 times as much.
                let gain = 1.0 + number(said).unwrap() / 100.0;
                let is_gain = said.contains("gain") && (point.y - gain).abs() < 1e-9;
                let off = (point.y / number(said).unwrap()).log10();
                assert!(is_gain || (off - off.round()).abs() < 1e-9, "{said:?} is not {}", point.y);
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
    fn what_has_no_number_has_a_reason() {
        let bare = published().into_iter().filter(|it| it.series.is_empty());
        let bare: Vec<_> = bare.collect();
        assert!(bare.len() == 2 && bare.iter().all(|it| !it.empty.is_empty()));
    }
}
