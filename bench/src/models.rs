//! `vrio bench models`: the I/O models side by side, in the columns of the ApacheBench table of the
//! vRIO paper's slides.
//!
//! ```text
//!   optimum                     who asks ─ backend or link, on its own thread
//!   vRIO direct                 client (sleeps) ═ session ═ IOhost (polls)
//!   Elvis                       guest (sleeps) ═ virtqueue ═ VMhost (polls)
//!   vRIO without polling        client (sleeps) ═ session ═ IOhost (sleeps)
//!   baseline                    guest (sleeps) ═ virtqueue ═ VMhost (sleeps)
//!   vRIO host-side              guest (sleeps) ═ virtqueue ═ VMhost ═ session ═ IOhost (both poll)
//!   host-side without polling   the same, and both sleep
//! ```
//!
//! All are measured in turn, several rounds of it. Whoever stands for a guest sleeps until it is
//! interrupted, as a guest does: what it is woken by is what is counted. A cell that cannot be
//! measured stays empty and says why; what others have published stands in none.

mod balance;
mod block;
mod cell;
mod emulated;
mod link;
mod model;
mod net;
mod order;
mod real;
mod table;
mod turns;
mod vfio;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::block::{GUESTS_MAX, Volume};
use crate::pace;
use crate::verdict::Spread;
use testbed::cleanup::{Cleanup, tidily};
use testbed::machine::Machine;
use testbed::progress::Progress;

pub use balance::Balance;
pub use cell::{Cell, Column};
pub use emulated::Emulated;
pub use model::{Device, Model, PollingCores};
pub use order::Reached;

use cell::Counts;
use turns::models_of;

/// The version of the JSON form.
const MODELS_VERSION: u32 = 1;

/// Rounds, at most.
pub const ROUNDS_MAX: u16 = 99;

/// Why emulation is not counted.
const NO_GUEST: &str = "emulation: its exits are counted in a real guest: add --guest";

/// Requests outstanding where throughput is measured.
pub const DEPTH: u16 = 32;

/// What a turn takes besides what is measured: to start and end, to fill a disk, to warm up twice.
/// Only for the estimate.
const TURN_MORE_S: f64 = 2.5;

/// What is asked for.
#[derive(Clone, Debug, Serialize)]
pub struct Options {
    /// The `vrio` program that the nodes run.
    #[serde(skip)]
    pub program: PathBuf,
    /// Disks, cards or both.
    pub devices: Vec<Device>,
    /// Which models.
    pub models: Vec<Model>,
    /// How many guests; each number is measured.
    pub guests: Vec<u16>,
    /// Whether sessions are sealed; each is measured.
    pub encrypt: Vec<bool>,
    /// Whether a stage encrypts what is on volumes; each is measured, of disks.
    pub stage: Vec<bool>,
    /// What stands behind disks.
    pub volume: Volume,
    /// How often each model is measured, in turn.
    pub rounds: u16,
    /// How long each time, at each depth.
    pub seconds: f64,
    /// Models are counted in a real guest as well.
    pub guest: bool,
    /// The volume's file was made for this, and filled.
    #[serde(skip)]
    pub filled: bool,
}

impl Options {
    /// Looks whether it makes sense.
    ///
    /// # Errors
    /// What does not, and what would.
    pub fn check(&self) -> Result<()> {
        let Self { rounds, guests, volume, .. } = self;
        ensure!((1..=ROUNDS_MAX).contains(rounds), "--rounds {rounds}: from 1 to {ROUNDS_MAX}");
        ensure!(!self.models.is_empty(), "--model: one at least");
        ensure!(!self.encrypt.is_empty(), "--encrypt: on, off or both");
        ensure!(
            self.guest || self.models.iter().any(|model| Model::STAND_IN.contains(model)),
            "--model emulation and qemu are counted in a real guest: add --guest"
        );
        let range = 1..=GUESTS_MAX;
        ensure!(
            !guests.is_empty() && guests.iter().all(|count| range.contains(count)),
            "--guests: numbers from 1 to {GUESTS_MAX}, such as 1,4"
        );
        ensure!(
            volume.file().is_none() || guests[..] == [1],
            "--volume {volume}: a file is one guest's; add --guests 1, or take null or memory"
        );
        ensure!(
            !self.settings().is_empty(),
            "--stage on is about volumes of disks: add --device block, or drop it"
        );
        for setting in self.settings() {
            let mut asked = models_of(self, &setting);
            asked.try_for_each(|(_, asked)| asked.map_or(Ok(()), |asked| asked.check()))?;
        }
        Ok(())
    }

    /// What is measured one after the other, each with all models that it means something for.
    fn settings(&self) -> Vec<Setting> {
        let mut settings = Vec::new();
        for &device in &self.devices {
            let plain = if self.stage.contains(&false) { &self.encrypt[..] } else { &[] };
            for (at, &encrypt) in plain.iter().enumerate() {
                // Sealing is about sessions; how it goes with several guests adds nothing to that.
                let guests = match device {
                    Device::Net => &[net::GUESTS],
                    Device::Block if at == 0 => &self.guests[..],
                    Device::Block => &self.guests[..1],
                };
                let again = at > 0;
                let of = |&guests: &u16| Setting { encrypt, again, ..Setting::of(device, guests) };
                settings.extend(guests.iter().map(of));
            }
            // A stage is on the way of a disk's request, whatever its session is.
            if device == Device::Block && self.stage.contains(&true) {
                let (encrypt, guests) = (self.encrypt[0], self.guests[0]);
                settings.push(Setting { encrypt, stage: true, ..Setting::of(device, guests) });
            }
        }
        settings
    }
}

/// What all models of a table have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// What guests have.
    pub device: Device,
    /// How many guests.
    pub guests: u16,
    /// Whether sessions are sealed.
    pub encrypt: bool,
    /// Whether a stage encrypts what is on the volume.
    pub stage: bool,
    /// How the instructions of a real guest are run, `kvm` or `tcg`; nothing for a stand-in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub real_guest: Option<&'static str>,
    /// What has no session was measured before.
    #[serde(skip)]
    again: bool,
}

impl Setting {
    /// Of a stand-in, in clear.
    fn of(device: Device, guests: u16) -> Self {
        Self { device, guests, encrypt: false, stage: false, real_guest: None, again: false }
    }
}

/// A model's figures; of each the median, and both ends of all rounds. What is not known in any
/// round is none, and `unknown` says why.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Whether nobody polled on a core that others need. If not, only events mean something.
    pub seated: bool,
    /// What happens for a request, by the slides' columns, with one request outstanding.
    pub events: Vec<(Column, Cell)>,
    /// All that could be measured of it.
    pub sum: Spread,
    /// How long a request takes, in microseconds: half of them no longer. Of frames, there and
    /// back.
    pub p50_us: Option<Spread>,
    /// 99 of a hundred no longer.
    pub p99_us: Option<Spread>,
    /// Processor time of a request, or of a frame one way, of all processes and threads, in
    /// microseconds.
    pub cpu_us: Option<Spread>,
    /// Requests in a second, with [`DEPTH`] outstanding of each guest.
    pub per_s: Option<Spread>,
    /// Processor time of each of these.
    pub cpu_us_at_depth: Option<Spread>,
    /// All events of each of these.
    pub sum_at_depth: Option<Spread>,
    /// Why figures that are none are none, each reason once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
    /// The events of each round.
    #[serde(skip)]
    rounds: Vec<Counts>,
}

/// A model in a table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which.
    pub model: Model,
    /// What it is called.
    pub name: &'static str,
    /// Cores that poll.
    pub polling_cores: PollingCores,
    /// What was measured.
    pub figures: Option<Figures>,
    /// Why nothing was.
    pub empty: Option<String>,
}

/// Models that are measured in turn.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// What they have in common.
    #[serde(flatten)]
    pub setting: Setting,
    /// Each of them.
    pub rows: Vec<Row>,
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of this form.
    pub version: u32,
    /// What was asked for.
    pub asked: Options,
    /// The tables.
    pub tables: Vec<Table>,
    /// The same sidecores spread over hosts and pooled on one; empty where no disk was asked for.
    pub balance: Vec<Balance>,
    /// What QEMU's emulation is made of, by the names of registers.
    pub emulated: Vec<Emulated>,
    /// Why it was not counted, where nobody asked for a guest.
    pub not_emulated: Vec<String>,
    /// What we mean to reach.
    pub goals: Vec<Reached>,
    /// Why the figures are not those of the slides.
    pub explained: Vec<String>,
    /// The machine.
    pub machine: Machine,
}

/// Measures all models in turn. Says on standard error what it does, and gives `tell` a report of
/// each table alone as soon as that is measured: whatever ends the rest, it is there.
///
/// # Errors
/// What cannot be measured, or went wrong meanwhile; and what `tell` says.
pub fn run(options: &Options, tell: Tell<'_>) -> Result<Report> {
    let progress = Progress::new();
    tidily(&progress, |cleanup| measure(options, cleanup, &progress, tell))
}

/// Takes what is measured, part by part.
pub type Tell<'a> = &'a mut dyn FnMut(&Report) -> Result<()>;

fn measure(
    options: &Options,
    cleanup: &Cleanup,
    progress: &Progress,
    tell: Tell<'_>,
) -> Result<Report> {
    options.check()?;
    let settings = options.settings();
    let turns_of = |setting| models_of(options, setting).filter(|(_, asked)| asked.is_ok()).count();
    let turns = settings.iter().map(turns_of).sum::<usize>() + balance::kinds(options).count();
    let turns = turns * usize::from(options.rounds);
    let takes = Duration::from_secs_f64(turns as f64 * (TURN_MORE_S + 2.0 * options.seconds));
    progress.done(format!("{turns} turns, {}", pace::announced(takes)));
    let prepared = block::prepare(options, cleanup, progress).unwrap_or_else(|error| {
        cleanup.yield_to_interruption();
        // Each turn tries for itself, and its row says why.
        progress.done(format!("not prepared: {error:#}"));
        options.clone()
    });
    let mut all = Measured::default();
    for setting in &settings {
        if let Some(table) = turns::in_turn(&prepared, setting, cleanup, progress) {
            let it = Measured { tables: vec![table], ..Measured::default() };
            all.add(it, options, tell)?;
            progress.done(table::title(setting));
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

/// What is measured so far, or a part of it.
#[derive(Clone, Default)]
struct Measured {
    tables: Vec<Table>,
    balance: Vec<Balance>,
    emulated: Vec<Emulated>,
}

impl Measured {
    /// Tells what came in, if there are figures in it, and adds it.
    fn add(&mut self, more: Self, options: &Options, tell: Tell<'_>) -> Result<()> {
        if more.has_figures() {
            // What is said of a device is said with its first table, as in a report of all.
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

    fn report(self, options: &Options) -> Report {
        let Self { tables, balance, emulated } = self;
        let no_guest = !options.guest && options.models.contains(&Model::Emulation);
        Report {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// For tests of the parts.
    pub(in crate::models) fn options() -> Options {
        Options {
            program: PathBuf::from("vrio"),
            devices: vec![Device::Block],
            models: Model::ALL.to_vec(),
            guests: vec![1],
            encrypt: vec![false],
            stage: vec![false],
            volume: Volume::Null,
            rounds: 1,
            seconds: 0.1,
            guest: false,
            filled: false,
        }
    }

    #[test]
    fn what_is_encrypted_is_beside_what_is_not() {
        let of = |stage: &[bool]| {
            let guests = vec![1, 4];
            let asked = Options { stage: stage.to_vec(), guests, ..options() };
            let settings = asked.settings();
            settings.iter().map(|it| (it.guests, it.stage)).collect::<Vec<_>>()
        };
        assert_eq!(of(&[false]), [(1, false), (4, false)]);
        assert_eq!(of(&[false, true]), [(1, false), (4, false), (1, true)]);
        assert_eq!(of(&[true]), [(1, true)]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        options().check().unwrap();
        let refused = |wrong: Options, word: &str| {
            let text = wrong.check().unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        };
        refused(Options { models: Vec::new(), ..options() }, "--model");
        refused(Options { models: vec![Model::Emulation], ..options() }, "--guest");
        refused(Options { rounds: 0, ..options() }, "--rounds 0");
        let net = || vec![Device::Net];
        refused(Options { devices: net(), stage: vec![true], ..options() }, "--stage on");
    }
}
