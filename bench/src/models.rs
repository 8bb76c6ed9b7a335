//! `vrio bench models`: the I/O models side by side, in the columns of the ApacheBench table of the
//! vRIO paper's slides.
//!
//! ```text
//!   optimum                     generator ─ backend or link, on the generator's own thread
//!   vRIO direct                 client (sleeps) ═ session ═ IOhost (polls)
//!   Elvis                       guest (sleeps) ═ virtqueue ═ VMhost (polls)
//!   vRIO without polling        client (sleeps) ═ session ═ IOhost (sleeps)
//!   baseline                    guest (sleeps) ═ virtqueue ═ VMhost (sleeps)
//!   vRIO host-side              guest (sleeps) ═ virtqueue ═ VMhost ═ session ═ IOhost (both poll)
//!   host-side without polling   the same, and both sleep
//! ```
//!
//! All models are measured in turn, for several rounds. A stand-in for a guest sleeps until it is
//! interrupted, as a guest does, and these interrupts are counted. A cell that cannot be measured
//! stays empty, with a reason. No cell has a figure that others have published.

mod balance;
mod block;
mod cell;
mod emulated;
mod link;
mod model;
mod net;
mod options;
mod order;
mod real;
mod report;
mod results;
mod table;
mod turns;
mod vfio;

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::pace;
use testbed::cleanup::{Cleanup, tidily};
use testbed::machine::Machine;
use testbed::progress::Progress;

pub use balance::Balance;
pub use cell::{Cell, Column, ModelFigures};
pub use emulated::Emulated;
pub use model::{GuestDevice, Model, PollingCores};
pub use options::{DEPTH, ModelsOptions, ROUNDS_MAX, Setting};
pub use order::OrderGoal;
pub use report::ModelsReport;
pub use table::{ModelRow, ModelTable};

use report::MODELS_VERSION;
use turns::models_of;

/// The reason why emulation is not counted.
const NO_GUEST: &str = "emulation: its exits are counted in a real guest: add --guest";

/// The time of a turn beside the measurement, in seconds: to start and end, to fill a disk, to warm
/// up twice. Only the estimate uses it.
const TURN_MORE_S: f64 = 2.5;

impl ModelsOptions {
    /// Looks whether the options make sense.
    ///
    /// # Errors
    /// The option that makes no sense, and a way out.
    pub fn check(&self) -> Result<()> {
        self.check_alone()?;
        for setting in self.settings() {
            let mut asked = models_of(self, &setting);
            asked.try_for_each(|(_, asked)| asked.map_or(Ok(()), |asked| asked.check()))?;
        }
        Ok(())
    }
}

/// Measures all models in turn. The progress goes to standard error. `tell` gets a report of each
/// table as soon as that is measured, so that it exists even if a later table fails.
///
/// # Errors
/// When the options cannot be measured, or nothing could be measured; and the errors of `tell`.
pub fn run(options: &ModelsOptions, tell: Tell<'_>) -> Result<ModelsReport> {
    let progress = Progress::new();
    tidily(&progress, |cleanup| measure(options, cleanup, &progress, tell))
}

/// The receiver of reports, part by part.
pub type Tell<'a> = &'a mut dyn FnMut(&ModelsReport) -> Result<()>;

fn measure(
    options: &ModelsOptions,
    cleanup: &Cleanup,
    progress: &Progress,
    tell: Tell<'_>,
) -> Result<ModelsReport> {
    options.check()?;
    let settings = options.settings();
    let turns_of = |setting| models_of(options, setting).filter(|(_, asked)| asked.is_ok()).count();
    let turns = settings.iter().map(turns_of).sum::<usize>() + balance::kinds(options).count();
    let turns = turns * usize::from(options.rounds);
    let takes = Duration::from_secs_f64(turns as f64 * (TURN_MORE_S + 2.0 * options.seconds));
    progress.done(format!("{turns} turns, {}", pace::announced(takes)));
    let prepared = block::prepare(options, cleanup, progress).unwrap_or_else(|error| {
        cleanup.yield_to_interruption();
        // Each turn tries again, and its row has the reason if it fails.
        progress.done(format!("not prepared: {error:#}"));
        options.clone()
    });
    let mut all = Measured::default();
    for setting in &settings {
        if let Some(table) = turns::in_turn(&prepared, setting, cleanup, progress) {
            let it = Measured { tables: vec![table], ..Measured::default() };
            all.add(it, options, tell)?;
            progress.done(setting.title());
        }
    }
    let balance = balance::all(options, cleanup, progress);
    all.add(Measured { balance, ..Measured::default() }, options, tell)?;
    let (tables, emulated) = real::tables(options, cleanup, progress);
    all.add(Measured { tables, emulated, ..Measured::default() }, options, tell)?;
    ensure!(
        all.has_figures(),
        "nothing could be measured: {}",
        table::reasons(&all.tables).join("; ")
    );
    Ok(all.report(options))
}

/// The results so far, or a part of them.
#[derive(Clone, Default)]
struct Measured {
    tables: Vec<ModelTable>,
    balance: Vec<Balance>,
    emulated: Vec<Emulated>,
}

impl Measured {
    /// Reports a part, if it has figures, and adds it.
    fn add(&mut self, more: Self, options: &ModelsOptions, tell: Tell<'_>) -> Result<()> {
        if more.has_figures() {
            // A note about a device goes with its first table, as in a report of all tables.
            let is_of = |device| self.tables.iter().any(|it| it.setting.device == device);
            let is_again = more.tables.first().is_some_and(|it| is_of(it.setting.device));
            let mut told = more.clone().report(options);
            told.not_emulated.retain(|_| !is_again);
            tell(&told)?;
        }
        self.tables.extend(more.tables);
        self.balance.extend(more.balance);
        self.emulated.extend(more.emulated);
        Ok(())
    }

    fn has_figures(&self) -> bool {
        let mut rows = self.tables.iter().flat_map(|it| &it.rows);
        rows.any(|row| row.figures.is_some()) || self.balance.iter().any(|it| it.per_s.is_some())
    }

    fn report(self, options: &ModelsOptions) -> ModelsReport {
        let Self { tables, balance, emulated } = self;
        let no_guest = !options.guest && options.models.contains(&Model::Emulation);
        ModelsReport {
            version: MODELS_VERSION,
            goals: order::goals(&tables),
            explained: order::explained(&tables),
            asked: options.clone(),
            tables,
            balance,
            emulated,
            not_emulated: no_guest.then(|| NO_GUEST.to_owned()).into_iter().collect(),
            machine: Machine::look(),
        }
    }
}
