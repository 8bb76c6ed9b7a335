//! Published figures beside figures that the planner computes of the same parts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::application::HeldOutTest;
use crate::cost::build::ServerBuild;
use crate::cost::{self, Bill, RACKS, RackForm};
use crate::fault::{PlanFault, key};
use crate::text::{row, table};

mod applications;
mod figures;
mod results;

pub use results::{JudgedForm, judged_results};

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
    /// A part of a whole, in percent.
    Share,
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
    /// A figure that needs no planner: a guess that meets the tolerance too shows that the
    /// planner's figure proves little.
    guess: Option<f64>,
    /// A reason why the figure may differ, for figures that no arithmetic gives.
    note: Option<String>,
}

/// A comparison that the texts do not allow.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MissingFigure {
    what: String,
    why: String,
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
    /// Predicted of a platform on which its application was not fitted.
    HeldOut,
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
    missing: Vec<MissingFigure>,
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
    /// Ours is, on a platform on which its application was not fitted, and the guess is not.
    HeldOut,
    /// Ours is, but the guess that needs no planner is within the tolerance as well.
    Weak,
}

impl FigureVerdict {
    /// The word for a table.
    pub fn words(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Misprint => "misprint",
            Self::Differs => "differs",
            Self::Input => "input",
            Self::Own => "own",
            Self::Fitted => "fitted",
            Self::Assumed => "assumed",
            Self::HeldOut => "held out",
            Self::Weak => "weak",
        }
    }
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
        let ours = of(&ours, &figure.id)?;
        let verdict = verdict(&figure, ours);
        Ok(JudgedFigure {
            ours,
            verdict,
            id: figure.id,
            what: figure.what,
            source: figure.source,
            unit: figure.unit,
            said: figure.said,
            within: figure.within,
            note: figure.misprint.or(figure.note),
        })
    };
    file.figure.into_iter().map(judge).collect()
}

/// Our figure of a published one.
fn of(ours: &figures::Figures, id: &str) -> Result<f64, PlanFault> {
    let number = ours.get(id).copied().filter(|number| number.is_finite());
    number.ok_or_else(|| key(id, "the planner has no such figure", "report this as a fault"))
}

/// The published run times on the platform that was held out, and by how much they were missed.
///
/// # Errors
/// When a shape of the program cannot be predicted.
pub fn held_out() -> Result<HeldOutTest, PlanFault> {
    let mut ours = figures::Figures::new();
    applications::applications(&mut ours)?;
    let ppm = |number: f64| (number * 1e6).round() as u64;
    let (mut slowdowns_ppm, mut missed, mut without) = (Vec::new(), 0.0_f64, 0.0_f64);
    for figure in file().figure.iter().filter(|it| it.basis == Some(FigureBasis::HeldOut)) {
        slowdowns_ppm.push(ppm(figure.said));
        let ours = of(&ours, &figure.id)?;
        missed = missed.max((ours / figure.said - 1.0).abs());
        without = without.max((1.0 / figure.said - 1.0).abs());
    }
    slowdowns_ppm.sort_unstable();
    slowdowns_ppm.dedup();
    Ok(HeldOutTest { slowdowns_ppm, missed_most_ppm: ppm(missed), without_model_ppm: ppm(without) })
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
            Some(FigureBasis::HeldOut) => match figure.guess {
                Some(guess) if (guess - figure.said).abs() <= figure.within => FigureVerdict::Weak,
                _ => FigureVerdict::HeldOut,
            },
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
        FigureUnit::Share => format!("{number:.1} %"),
        FigureUnit::Ratio => format!("{number:.2}"),
        FigureUnit::Count => format!("{number:.1}"),
        FigureUnit::Megabytes => format!("{number:.0} MB"),
    }
}

/// The figures as a table, with its misprints and sources.
pub fn judged_text(figures: &[JudgedFigure]) -> String {
    let mut rows = vec![row(["figure", "published", "ours", "verdict"])];
    let (mut notes, mut last) = (String::new(), None);
    for figure in figures {
        let numbers = [figure.said, figure.ours].map(|number| shown(number, figure.unit));
        let [said, ours] = numbers;
        rows.push(row([&figure.what, &said, &ours, figure.verdict.words()]));
        // A note of several figures in a row stands below the first of them.
        if let Some(note) = figure.note.as_ref().filter(|note| last != Some(*note)) {
            notes.push_str(&format!("{}: {note}\n", figure.what));
        }
        last = figure.note.as_ref();
    }
    let mut sources = String::new();
    let file = file();
    for source in file.source {
        let of_source = figures.iter().filter(|figure| figure.source == source.name).count();
        sources.push_str(&format!("{of_source} figures of {}: {}\n", source.name, source.text));
    }
    let missing = file.missing.iter().map(|it| format!("{}: {}\n", it.what, it.why));
    let missing: String = missing.collect();
    format!("{}\n{notes}\nNOT COMPARED\n{missing}\n{sources}", table(&rows, 1))
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
        let differs = with(FigureVerdict::Differs);
        let of_xrc = differs.iter().filter(|id| id.starts_with("xrc."));
        // Averages of VMs of several cores, and all of IS but its VMs of one core.
        assert_eq!(of_xrc.count(), 6 + 10);
        let missed: Vec<&String> = differs.iter().filter(|id| id.starts_with("app.")).collect();
        assert_eq!(missed, ["app.qe.short", "app.qe.long"]);
        assert!(with(FigureVerdict::HeldOut).is_empty(), "no prediction beats its guess");
        let weak = ["app.wrf.sriov", "app.qe.vms.short", "app.qe.vms.long", "app.wrf.vms"];
        assert_eq!(with(FigureVerdict::Weak), weak);
        assert_eq!(with(FigureVerdict::Input), ["twice", "half"]);
        let own = with(FigureVerdict::Own);
        assert_eq!(own[..2], ["rack3.spare", "rack6.spare"]);
        assert_eq!(
            own[2..],
            [
                "app.wrf.share",
                "app.wrf.most",
                "app.qe.share.short",
                "app.qe.most.short",
                "app.qe.share.long",
                "app.qe.most.long",
            ]
        );
        let fitted =
            ["bits.elvis", "bits.vmhost", "bits.light", "bits.heavy", "app.wrf.cc2", "app.qe.cc2"];
        assert_eq!(with(FigureVerdict::Fitted), fitted);
        assert_eq!(with(FigureVerdict::Assumed), ["ssd.least", "ssd.most"]);
        assert_eq!(with(FigureVerdict::Same).len(), 25);
        for figure in judged().unwrap() {
            let has_reason = figure.note.is_some();
            assert!(has_reason || figure.verdict == FigureVerdict::Same, "{figure:?}");
        }
    }

    #[test]
    fn a_prediction_proves_nothing_if_a_guess_does_as_well() {
        let figures = file().figure;
        let figure = |id: &str| figures.iter().find(|it| it.id == id).unwrap();
        let (wrf, qe) = (figure("app.wrf.sriov"), figure("app.qe.short"));
        assert_eq!(verdict(wrf, 1.15), FigureVerdict::Weak, "even if it is right");
        assert_eq!(verdict(qe, 1.28), FigureVerdict::HeldOut);
        assert_eq!(verdict(qe, 1.0), FigureVerdict::Differs);
        // A row that uses the other application's slow-down on the platform is beside a guess that
        // uses it as well.
        assert_eq!(figure("app.wrf.vms").guess, Some(figure("app.qe.short").said));
        for id in ["app.qe.vms.short", "app.qe.vms.long"] {
            assert_eq!(figure(id).guess, Some(wrf.said), "{id}");
        }
        // Fifteen hundredths of the run time, as the texts' slow-downs are judged.
        for figure in figures.iter().filter(|it| it.basis == Some(FigureBasis::HeldOut)) {
            assert!((figure.within / figure.said - 0.15).abs() < 1e-9, "{}", figure.id);
        }
        let test = held_out().unwrap();
        assert_eq!(test.slowdowns_ppm, [1_150_000, 1_280_000]);
        // No slow-down at all, 1.00 for 1.28, is as good as the worst prediction.
        assert_eq!(test.without_model_ppm, 218_750);
        assert!((150_000..219_000).contains(&test.missed_most_ppm), "{test:?}");
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
    fn a_figure_that_is_missing_is_a_fault() {
        let ours = figures::Figures::from([("known", 1.0), ("none", f64::NAN)]);
        assert_eq!(of(&ours, "known"), Ok(1.0));
        for id in ["none", "other"] {
            assert!(of(&ours, id).unwrap_err().to_string().starts_with(id));
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
