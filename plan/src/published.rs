//! Published figures beside those that the planner computes of the same parts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cost::build::ServerBuild;
use crate::cost::{self, Bill, RACKS, RackForm};
use crate::fault::PlanFault;
use crate::text::{row, table};

mod figures;

const FIGURES: &str = include_str!("../data/published.toml");

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FigureUnit {
    /// US dollars.
    Usd,
    /// Gbit/s.
    Gbit,
    /// Percent.
    Percent,
    /// A factor.
    Ratio,
    /// A number of things.
    Count,
    /// 10^6 bytes.
    Megabytes,
}

/// A figure as it was published.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedFigure {
    id: String,
    what: String,
    source: String,
    unit: FigureUnit,
    said: f64,
    within: f64,
    misprint: Option<String>,
    /// A reason why the figure may differ, for figures that no arithmetic gives.
    note: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FigureSource {
    name: String,
    text: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FigureFile {
    source: Vec<FigureSource>,
    figure: Vec<PublishedFigure>,
}

/// The judgement on a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FigureVerdict {
    /// Ours is within the tolerance.
    Same,
    /// Ours is not, and the text contradicts its own parts.
    Misprint,
    /// Ours is not.
    Differs,
}

/// A published figure beside ours.
#[derive(Clone, Debug, Serialize)]
pub struct JudgedFigure {
    /// Its name.
    pub id: String,
    /// Its words for a reader.
    pub what: String,
    /// The text that has it.
    pub source: String,
    /// The unit of both.
    pub unit: FigureUnit,
    /// The published figure.
    pub said: f64,
    /// Ours.
    pub ours: f64,
    /// The most by which they may differ.
    pub within: f64,
    /// The judgement.
    pub verdict: FigureVerdict,
    /// The misprint, or the reason of a difference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// All published figures beside ours.
///
/// # Errors
/// When the racks of the program cannot be built.
pub fn judged() -> Result<Vec<JudgedFigure>, PlanFault> {
    let file = file();
    let ours = figures::ours()?;
    let judge = |figure: PublishedFigure| {
        let ours = *ours.get(figure.id.as_str()).unwrap_or_else(|| panic!("{}", figure.id));
        let verdict = match (ours - figure.said).abs() <= figure.within {
            true => FigureVerdict::Same,
            false if figure.misprint.is_some() => FigureVerdict::Misprint,
            false => FigureVerdict::Differs,
        };
        JudgedFigure {
            ours,
            verdict,
            id: figure.id,
            what: figure.what,
            source: figure.source,
            unit: figure.unit,
            said: figure.said,
            within: figure.within,
            note: figure.misprint.or(figure.note),
        }
    };
    Ok(file.figure.into_iter().map(judge).collect())
}

fn file() -> FigureFile {
    toml::from_str(FIGURES).unwrap_or_else(|error| panic!("the published figures: {error}"))
}

/// A number in its unit.
fn shown(number: f64, unit: FigureUnit) -> String {
    // A half is rounded up, as people do it: 320.625 is 320.63.
    let number = number + number.abs() * 1e-9;
    match unit {
        FigureUnit::Usd => format!("${number:.0}"),
        FigureUnit::Gbit => format!("{number:.2} Gbit/s"),
        FigureUnit::Percent => format!("{number:+.1} %"),
        FigureUnit::Ratio => format!("{number:.2}"),
        FigureUnit::Count => format!("{number:.1}"),
        FigureUnit::Megabytes => format!("{number:.0} MB"),
    }
}

/// The figures as a table, with its misprints and sources.
pub fn judged_text(figures: &[JudgedFigure]) -> String {
    let mut rows = vec![row(["figure", "published", "ours", "verdict"])];
    let mut notes = String::new();
    for figure in figures {
        let verdict = match figure.verdict {
            FigureVerdict::Same => "same",
            FigureVerdict::Misprint => "misprint",
            FigureVerdict::Differs => "differs",
        };
        let numbers = [figure.said, figure.ours].map(|number| shown(number, figure.unit));
        let [said, ours] = numbers;
        rows.push(row([&figure.what, &said, &ours, verdict]));
        if let Some(note) = &figure.note {
            notes.push_str(&format!("{}: {note}\n", figure.what));
        }
    }
    let mut sources = String::new();
    for source in file().source {
        let of_source = figures.iter().filter(|figure| figure.source == source.name).count();
        sources.push_str(&format!("{of_source} figures of {}: {}\n", source.name, source.text));
    }
    format!("{}\n{notes}\n{sources}", table(&rows, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_published_figure_comes_out_or_is_a_misprint() {
        let judged = judged().unwrap();
        assert!(judged.len() >= 26);
        for figure in &judged {
            assert_ne!(figure.verdict, FigureVerdict::Differs, "{figure:?}");
        }
        let misprints = judged.iter().filter(|it| it.verdict == FigureVerdict::Misprint);
        let misprints: Vec<&str> = misprints.map(|it| it.id.as_str()).collect();
        assert_eq!(misprints, ["price.heavy", "rack6.elvis"]);
    }

    #[test]
    fn each_figure_names_a_source_and_all_of_ours_are_published() {
        let file = file();
        let ids: Vec<&str> = file.figure.iter().map(|figure| figure.id.as_str()).collect();
        for figure in &file.figure {
            assert!(file.source.iter().any(|it| it.name == figure.source), "{}", figure.id);
        }
        for id in figures::ours().unwrap().keys() {
            assert!(ids.contains(id), "{id}");
        }
    }
}
