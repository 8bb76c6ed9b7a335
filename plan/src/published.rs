//! Published figures beside figures that the planner computes of the same parts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cost::build::ServerBuild;
use crate::cost::{self, Bill, RACKS, RackForm};
use crate::fault::PlanFault;
use crate::text::{row, table};

mod figures;

/// The most by which ours differs from the sum of a text's parts: nothing but the fraction.
const PARTS_WITHIN: f64 = 0.5;

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
    /// With `misprint`: the figure that the text's own parts make.
    parts: Option<f64>,
    /// The reason why an equal figure proves nothing.
    basis: Option<FigureBasis>,
    /// A reason why the figure may differ, for figures that no arithmetic gives.
    note: Option<String>,
}

/// A figure that the planner does not find by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FigureBasis {
    /// It follows from a share that the rack's file has.
    Input,
    /// The planner's, published nowhere.
    Own,
    /// A number of the rack's file was chosen for it.
    Fitted,
    /// The text does not say of which rack it is.
    Assumed,
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
    /// Ours is, since it is an input of ours.
    Input,
    /// No text has it: it is ours.
    Own,
    /// Ours is, since an input of ours was chosen for it.
    Fitted,
    /// Ours is, of a rack that the text does not name.
    Assumed,
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
        let verdict = verdict(&figure, ours);
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

/// The judgement on one figure.
fn verdict(figure: &PublishedFigure, ours: f64) -> FigureVerdict {
    let is_near = |said: f64, within: f64| (ours - said).abs() <= within;
    if is_near(figure.said, figure.within) {
        return match figure.basis {
            None => FigureVerdict::Same,
            Some(FigureBasis::Input) => FigureVerdict::Input,
            Some(FigureBasis::Own) => FigureVerdict::Own,
            Some(FigureBasis::Fitted) => FigureVerdict::Fitted,
            Some(FigureBasis::Assumed) => FigureVerdict::Assumed,
        };
    }
    // The text's fault is shown by its own parts alone.
    match figure.parts {
        Some(parts) if figure.misprint.is_some() && is_near(parts, PARTS_WITHIN) => {
            FigureVerdict::Misprint
        }
        _ => FigureVerdict::Differs,
    }
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
            FigureVerdict::Input => "input",
            FigureVerdict::Own => "own",
            FigureVerdict::Fitted => "fitted",
            FigureVerdict::Assumed => "assumed",
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

    /// The names of the figures with a verdict.
    fn with(verdict: FigureVerdict) -> Vec<String> {
        let judged = judged().unwrap().into_iter().filter(|it| it.verdict == verdict);
        judged.map(|it| it.id).collect()
    }

    #[test]
    fn each_published_figure_comes_out_or_has_its_reason() {
        assert_eq!(with(FigureVerdict::Misprint), ["price.heavy", "rack6.elvis"]);
        assert_eq!(with(FigureVerdict::Differs), ["xrc.vm2", "xrc.vm4", "xrc.vm8"]);
        assert_eq!(with(FigureVerdict::Input), ["twice", "half"]);
        assert_eq!(with(FigureVerdict::Own), ["rack3.spare", "rack6.spare"]);
        let fitted = ["bits.elvis", "bits.vmhost", "bits.light", "bits.heavy"];
        assert_eq!(with(FigureVerdict::Fitted), fitted);
        assert_eq!(with(FigureVerdict::Assumed), ["ssd.least", "ssd.most"]);
        assert_eq!(with(FigureVerdict::Same).len(), judged().unwrap().len() - 15);
        for figure in judged().unwrap() {
            let has_reason = figure.note.is_some();
            assert!(has_reason || figure.verdict == FigureVerdict::Same, "{figure:?}");
        }
    }

    /// A planner that errs does not make a misprint of it.
    #[test]
    fn a_misprint_is_shown_by_the_parts_of_the_text() {
        let figures = file().figure;
        let heavy = figures.iter().find(|it| it.id == "price.heavy").unwrap();
        assert_eq!(verdict(heavy, 44_291.0), FigureVerdict::Misprint);
        assert_eq!(verdict(heavy, 44_200.0), FigureVerdict::Same);
        assert_eq!(verdict(heavy, 44_300.0), FigureVerdict::Differs);
        assert_eq!(verdict(heavy, f64::NAN), FigureVerdict::Differs);
        for figure in &figures {
            assert_eq!(figure.misprint.is_some(), figure.parts.is_some(), "{}", figure.id);
        }
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
