//! All models of a setting, round after round: one that fails empties its own row.

use anyhow::Result;

use super::cell::{self, ModelSample};
use super::model::{GuestDevice, Model};
use super::options::{ModelsOptions, Setting};
use super::table::{ModelRow, ModelTable};
use super::{block, link, net};
use testbed::cleanup::Cleanup;
use testbed::progress::Progress;

/// The measurement of a turn.
pub(super) enum TurnMeasurement {
    Disk(Box<crate::block::BlockOptions>),
    Cards(Box<crate::net::NetOptions>),
    /// Two threads with a link, without a card and a node.
    Link,
}

impl TurnMeasurement {
    /// The measurement of a model; or the reason why there is none.
    fn of(options: &ModelsOptions, model: Model, setting: &Setting) -> Result<Self, String> {
        Ok(match (setting.device, model) {
            (GuestDevice::Block, _) => Self::Disk(Box::new(block::asked(options, model, setting)?)),
            (GuestDevice::Net, Model::Optimum) => Self::Link,
            (GuestDevice::Net, _) => Self::Cards(Box::new(net::asked(options, model, setting)?)),
        })
    }

    /// Looks whether the options make sense.
    pub(super) fn check(&self) -> Result<()> {
        match self {
            Self::Disk(asked) => asked.check(),
            Self::Cards(asked) => asked.check(),
            Self::Link => Ok(()),
        }
    }

    /// Whether each thread that is busy has a core to itself.
    fn has_seats(&self) -> bool {
        match self {
            Self::Disk(asked) => crate::block::has_seats(asked),
            Self::Cards(asked) => asked.has_seats(),
            Self::Link => true,
        }
    }

    /// Measures it once.
    fn sample(
        &self,
        options: &ModelsOptions,
        model: Model,
        cleanup: &Cleanup,
    ) -> Result<ModelSample> {
        match self {
            Self::Disk(asked) => block::sample(asked, model, cleanup),
            Self::Cards(asked) => net::sample(asked, model, cleanup),
            Self::Link => link::sample(options),
        }
    }
}

/// The models of a setting that the options ask for, with the measurement of each or the reason why
/// there is none.
pub(super) fn models_of<'a>(
    options: &'a ModelsOptions,
    setting: &'a Setting,
) -> impl Iterator<Item = (Model, Result<TurnMeasurement, String>)> + 'a {
    let all = Model::STAND_IN.into_iter().filter(|model| options.models.contains(model));
    let all = all.filter(|model| !setting.again || model.has_iohost());
    all.map(|model| (model, TurnMeasurement::of(options, model, setting)))
}

/// Measures a setting; none where the options ask for no model of it.
pub(super) fn in_turn(
    options: &ModelsOptions,
    setting: &Setting,
    cleanup: &Cleanup,
    progress: &Progress,
) -> Option<ModelTable> {
    let models: Vec<_> = models_of(options, setting).collect();
    let sample = |at: usize, round: u16| {
        let (model, asked) = &models[at];
        let asked = asked.as_ref().map_err(|why| Refused(why.clone()))?;
        let (title, name) = (setting.title(), model.name());
        progress.doing(format!("{title}: {name}, round {round} of {}", options.rounds));
        asked.sample(options, *model, cleanup)
    };
    let outcomes = rounds(models.len(), options.rounds, sample, cleanup);
    let rows = models.iter().zip(outcomes).map(|((model, asked), outcome)| {
        let seated = !model.polls() || asked.as_ref().is_ok_and(TurnMeasurement::has_seats);
        if let (Ok(_), Err(why)) = (asked, &outcome) {
            progress.done(format!("not measured: {}: {why}", model.name()));
        }
        row(*model, outcome, seated)
    });
    let rows: Vec<_> = rows.collect();
    (!rows.is_empty()).then_some(ModelTable { setting: *setting, rows })
}

/// The error of a model that cannot be measured, before any attempt.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

/// The samples of so many contestants, by round. A contestant that failed has the reason, and is
/// not measured in later rounds.
pub(super) fn rounds<T>(
    contestants: usize,
    rounds: u16,
    mut sample: impl FnMut(usize, u16) -> Result<T>,
    cleanup: &Cleanup,
) -> Vec<Result<Vec<T>, String>> {
    let mut outcomes: Vec<_> = (0..contestants).map(|_| Ok(Vec::new())).collect();
    for round in 1..=rounds {
        for (at, outcome) in outcomes.iter_mut().enumerate() {
            let Ok(samples) = outcome else { continue };
            match sample(at, round) {
                Ok(sample) => Vec::push(samples, sample),
                Err(error) => {
                    cleanup.yield_to_interruption();
                    *outcome = Err(format!("{error:#}"));
                }
            }
        }
    }
    outcomes
}

/// A model's row.
pub(super) fn row(
    model: Model,
    outcome: Result<Vec<ModelSample>, String>,
    seated: bool,
) -> ModelRow {
    let (figures, empty) = match outcome {
        Ok(samples) => (Some(cell::figures(&samples, seated)), None),
        Err(why) => (None, Some(why)),
    };
    let (name, polling_cores) = (model.name(), model.polling_cores());
    ModelRow { model, name, polling_cores, figures, empty }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn a_failing_model_is_empty_and_takes_nothing_from_the_others() {
        let mut asked = Vec::new();
        let sample = |at, round| {
            asked.push((at, round));
            if at == 1 && round == 2 {
                bail!("its node died");
            }
            Ok(10 * at + usize::from(round))
        };
        let outcomes = rounds(3, 3, sample, &Cleanup::default());
        assert_eq!(outcomes[0], Ok(vec![1, 2, 3]));
        assert_eq!(outcomes[1], Err("its node died".to_owned()));
        assert_eq!(outcomes[2], Ok(vec![21, 22, 23]));
        assert_eq!(asked.len(), 8, "nobody asks again who has failed");
    }
}
