//! The same number of sidecores, spread over hosts or pooled on one: what each does for guests that
//! are all busy, and for guests of which those of one host are idle.
//!
//! ```text
//!   spread   guest guest ═ VMhost, 1 sidecore      pooled   client client ═╗
//!            guest guest ═ VMhost, 1 sidecore               client client ═╩═ IOhost, 2 sidecores
//! ```

use anyhow::Result;
use serde::Serialize;
use sidecore::Idle;

use super::{DEPTH, Options};
use crate::block::{self, Path, Volume};
use crate::cleanup::Cleanup;
use crate::measure::Waiting;
use crate::progress::Progress;
use crate::verdict::Spread;

/// Hosts, and so sidecores, of which each is one of a host or all are the IOhost's.
const HOSTS: u16 = 2;

/// Guests of each host.
const EACH: u16 = 2;

/// Where sidecores are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sidecores {
    /// One on each host (Elvis).
    Spread,
    /// All on the IOhost (vRIO direct).
    Pooled,
}

/// Who has work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    /// All guests.
    Balanced,
    /// Those of the first host.
    Imbalanced,
}

/// What sidecores in one place do for one load.
#[derive(Clone, Debug, Serialize)]
pub struct Balance {
    /// Where they are.
    pub sidecores: Sidecores,
    /// Who has work.
    pub load: Load,
    /// Guests that have it, of all.
    pub busy: [u16; 2],
    /// Whether nobody polled on a core that others need. If not, throughput means nothing.
    pub seated: bool,
    /// Requests in a second of all guests together, with [`DEPTH`] outstanding of each.
    pub per_s: Spread,
    /// Processor time for each, of all hosts and guests, in microseconds.
    pub cpu_us: Spread,
}

/// One of each kind.
const KINDS: [(Sidecores, Load); 4] = [
    (Sidecores::Spread, Load::Balanced),
    (Sidecores::Pooled, Load::Balanced),
    (Sidecores::Spread, Load::Imbalanced),
    (Sidecores::Pooled, Load::Imbalanced),
];

/// Turns of one round, for the estimate.
pub(super) const TURNS: usize = KINDS.len();

/// Measures all kinds in turn; or says why not.
pub(super) fn all(
    options: &Options,
    cleanup: &Cleanup,
    progress: &Progress,
) -> Result<Vec<Balance>> {
    let mut reports = KINDS.map(|_| Vec::new());
    for round in 1..=options.rounds {
        for ((sidecores, load), reports) in KINDS.iter().zip(&mut reports) {
            progress.doing(format!(
                "{sidecores:?} sidecores, {load:?} load, round {round} of {}",
                options.rounds
            ));
            let asked = asked(options, *sidecores, *load);
            reports.push(block::measure(&asked, cleanup, &Progress::silent())?);
        }
    }
    let kinds = KINDS.into_iter().zip(reports);
    Ok(kinds
        .map(|((sidecores, load), reports)| {
            let asked = asked(options, sidecores, load);
            let cpu_us = |it: &block::Report| it.cpu_us_per_request().unwrap_or(0.0);
            Balance {
                sidecores,
                load,
                busy: [asked.busy.unwrap_or(asked.guests), asked.guests],
                seated: block::has_seats(&asked),
                per_s: Spread::of(reports.iter().map(|it| it.iops)),
                cpu_us: Spread::of(reports.iter().map(cpu_us)),
            }
        })
        .collect())
}

/// In clear, since several clients have no keys, and of volumes that each guest has.
fn asked(options: &Options, sidecores: Sidecores, load: Load) -> block::Options {
    let (is_spread, guests) = (sidecores == Sidecores::Spread, HOSTS * EACH);
    let volume = if options.volume == Volume::Null { Volume::Null } else { Volume::Memory };
    block::Options {
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
        driver: if is_spread { Waiting::Sleeps } else { Waiting::Polls },
        seconds: options.seconds,
        ..block::Options::new(options.program.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::Device;
    use super::*;

    #[test]
    fn both_have_the_same_number_of_sidecores_and_of_busy_guests() {
        let options = Options {
            program: PathBuf::from("vrio"),
            devices: vec![Device::Block],
            guests: vec![1],
            encrypt: vec![false],
            volume: Volume::Null,
            rounds: 1,
            seconds: 0.1,
            guest: false,
            filled: false,
        };
        for (sidecores, load) in KINDS {
            let asked = asked(&options, sidecores, load);
            asked.check().unwrap();
            assert_eq!(asked.sidecores * asked.hosts, HOSTS);
            let busy = asked.busy.unwrap_or(asked.guests);
            assert_eq!(busy, if load == Load::Balanced { 4 } else { 2 });
        }
    }
}
