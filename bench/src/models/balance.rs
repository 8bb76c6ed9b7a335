//! The same number of sidecores, spread over hosts or pooled on one: their throughput for guests
//! that are all busy, and for busy guests on one host only.
//!
//! ```text
//!   spread   guest guest ═ VMhost, 1 sidecore      pooled   client client ═╗
//!            guest guest ═ VMhost, 1 sidecore               client client ═╩═ IOhost, 2 sidecores
//! ```

use anyhow::Result;
use serde::Serialize;
use sidecore::Idle;

use super::model::{GuestDevice, Model};
use super::options::{DEPTH, ModelsOptions};
use super::turns;
use crate::block::{self, Path, Volume};
use crate::measure::WaitMode;
use crate::verdict::Spread;
use testbed::cleanup::Cleanup;
use testbed::progress::Progress;

/// Hosts, and so sidecores: each host has one, or the IOhost has all.
const HOSTS: u16 = 2;

/// Guests of each host.
const EACH: u16 = 2;

/// The place of sidecores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sidecores {
    /// One on each host (Elvis).
    Spread,
    /// All on the IOhost (vRIO direct).
    Pooled,
}

/// The guests that have work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    /// All guests.
    Balanced,
    /// The guests of the first host.
    Imbalanced,
}

/// The throughput of sidecores in one place under one load.
#[derive(Clone, Debug, Serialize)]
pub struct Balance {
    /// The place of the sidecores.
    pub sidecores: Sidecores,
    /// The guests that have work.
    pub load: Load,
    /// The number of guests that have work, and the number of all guests.
    pub busy: [u16; 2],
    /// Whether each thread that polls had a core to itself. If not, throughput means nothing.
    pub seated: bool,
    /// Requests in a second of all guests together, with [`DEPTH`] outstanding of each.
    pub per_s: Option<Spread>,
    /// Processor time for each request, of all hosts and guests, in microseconds.
    pub cpu_us: Option<Spread>,
    /// The reason why nothing was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub empty: Option<String>,
}

/// Both places under both loads.
const KINDS: [(Sidecores, Load); 4] = [
    (Sidecores::Spread, Load::Balanced),
    (Sidecores::Pooled, Load::Balanced),
    (Sidecores::Spread, Load::Imbalanced),
    (Sidecores::Pooled, Load::Imbalanced),
];

/// The kinds that the options ask for. Several guests share sidecores, so a run with one guest, or
/// without both models, measures none.
pub(super) fn kinds(options: &ModelsOptions) -> impl Iterator<Item = (Sidecores, Load)> {
    let wanted = options.devices.contains(&GuestDevice::Block) && options.guests[..] != [1];
    let model_of = |sidecores| match sidecores {
        Sidecores::Spread => Model::Elvis,
        Sidecores::Pooled => Model::Direct,
    };
    let is_asked = move |(sidecores, _): &(Sidecores, Load)| {
        wanted && options.models.contains(&model_of(*sidecores))
    };
    KINDS.into_iter().filter(is_asked)
}

/// Measures all kinds in turn. A kind that failed has the reason.
pub(super) fn all(options: &ModelsOptions, cleanup: &Cleanup, progress: &Progress) -> Vec<Balance> {
    let kinds: Vec<_> = kinds(options).collect();
    let sample = |at: usize, round: u16| {
        let (sidecores, load) = kinds[at];
        let rounds = options.rounds;
        progress
            .doing(format!("{sidecores:?} sidecores, {load:?} load, round {round} of {rounds}"));
        block::measure(&asked(options, sidecores, load), cleanup, &Progress::silent())
    };
    let outcomes = turns::rounds(kinds.len(), options.rounds, sample, cleanup);
    let of =
        |((sidecores, load), outcome): ((Sidecores, Load), Result<Vec<block::BlockReport>, _>)| {
            let asked = asked(options, sidecores, load);
            let (reports, empty) = match outcome {
                Ok(reports) => (reports, None),
                Err(why) => (Vec::new(), Some(why)),
            };
            let spread = |number: fn(&block::BlockReport) -> Option<f64>| {
                let known: Vec<f64> = reports.iter().filter_map(number).collect();
                (!known.is_empty()).then(|| Spread::of(known))
            };
            Balance {
                sidecores,
                load,
                busy: [asked.busy.unwrap_or(asked.guests), asked.guests],
                seated: block::has_seats(&asked),
                per_s: spread(|it| Some(it.iops)),
                cpu_us: spread(block::BlockReport::cpu_us_per_request),
                empty,
            }
        };
    kinds.iter().copied().zip(outcomes).map(of).collect()
}

/// The options of a kind. Sessions are in clear, since several clients have no keys. Each guest has
/// a volume of its own.
fn asked(options: &ModelsOptions, sidecores: Sidecores, load: Load) -> block::BlockOptions {
    let (is_spread, guests) = (sidecores == Sidecores::Spread, HOSTS * EACH);
    let volume = if options.volume == Volume::Null { Volume::Null } else { Volume::Memory };
    block::BlockOptions {
        path: if is_spread { Path::Local } else { Path::Direct },
        volume,
        guests,
        busy: (load == Load::Imbalanced).then_some(EACH),
        hosts: if is_spread { HOSTS } else { 1 },
        sidecores: if is_spread { 1 } else { HOSTS },
        depth: DEPTH,
        encrypt: false,
        idle: if is_spread { Idle::Spin } else { Idle::Sleep },
        iohost_idle: Some(Idle::Spin),
        driver: if is_spread { WaitMode::Sleeps } else { WaitMode::Polls },
        seconds: options.seconds,
        ..block::BlockOptions::new(options.program.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::tests::options;
    use super::*;

    #[test]
    fn both_have_the_same_number_of_sidecores_and_of_busy_guests() {
        for (sidecores, load) in KINDS {
            let asked = asked(&options(), sidecores, load);
            asked.check().unwrap();
            assert_eq!(asked.sidecores * asked.hosts, HOSTS);
            let busy = asked.busy.unwrap_or(asked.guests);
            assert_eq!(busy, if load == Load::Balanced { 4 } else { 2 });
        }
    }

    #[test]
    fn only_those_of_models_that_were_asked_for_are_measured() {
        let of = |guests, models| kinds(&ModelsOptions { guests, models, ..options() }).count();
        assert_eq!(of(vec![1], vec![Model::Elvis, Model::Direct]), 0);
        assert_eq!(of(vec![1, 4], vec![Model::Elvis, Model::Direct]), 4);
        assert_eq!(of(vec![2], vec![Model::Direct]), 2);
        assert_eq!(of(vec![2], vec![Model::Optimum]), 0);
    }
}
