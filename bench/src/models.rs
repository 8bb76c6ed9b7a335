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
mod net;
mod order;
mod table;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::block::{GUESTS_MAX, Volume};
use crate::cleanup::{Cleanup, tidily};
use crate::machine::Machine;
use crate::progress::Progress;
use crate::verdict::Spread;

pub use balance::Balance;
pub use cell::{Cell, Column};
pub use emulated::Emulated;
pub use order::Reached;

use cell::Sample;

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
    /// How many guests; each number is measured.
    pub guests: Vec<u16>,
    /// Whether sessions are sealed; each is measured.
    pub encrypt: Vec<bool>,
    /// What stands behind disks.
    pub volume: Volume,
    /// How often each model is measured, in turn.
    pub rounds: u16,
    /// How long each time, at each depth.
    pub seconds: f64,
    /// Emulation as well, counted in a real guest.
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
        let range = 1..=GUESTS_MAX;
        ensure!(
            !guests.is_empty() && guests.iter().all(|count| range.contains(count)),
            "--guests: numbers from 1 to {GUESTS_MAX}, such as 1,4"
        );
        ensure!(
            volume.file().is_none() || guests[..] == [1],
            "--volume {volume}: a file is one guest's; add --guests 1, or take null or memory"
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
            for (at, &encrypt) in self.encrypt.iter().enumerate() {
                // Sealing is about sessions; how it goes with several guests adds nothing to that.
                let guests = match device {
                    Device::Net => &[net::GUESTS],
                    Device::Block if at == 0 => &self.guests[..],
                    Device::Block => &self.guests[..1],
                };
                let of = |&guests: &u16| Setting { device, guests, encrypt, again: at > 0 };
                settings.extend(guests.iter().map(of));
            }
        }
        settings
    }
}

/// What a guest has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// A disk.
    Block,
    /// A network card.
    Net,
}

/// Who serves a guest, where, and how it learns of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Model {
    /// The bare backend or link, without vrio.
    Optimum,
    /// The client is in the guest, and the IOhost polls.
    Direct,
    /// A sidecore of the guest's own host polls.
    Elvis,
    /// The client is in the guest, and the IOhost sleeps.
    Unpolled,
    /// The guest's own host sleeps.
    Baseline,
    /// The guest's own host polls, and the IOhost too.
    HostSide,
    /// Both sleep.
    HostSideUnpolled,
}

impl Model {
    /// All, in the order of the table.
    pub const ALL: [Self; 7] = [
        Self::Optimum,
        Self::Direct,
        Self::Elvis,
        Self::Unpolled,
        Self::Baseline,
        Self::HostSide,
        Self::HostSideUnpolled,
    ];

    /// Its name; those that the slides have are theirs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Optimum => "optimum",
            Self::Direct => "vRIO direct",
            Self::Elvis => "Elvis",
            Self::Unpolled => "vRIO without polling",
            Self::Baseline => "baseline",
            Self::HostSide => "vRIO host-side",
            Self::HostSideUnpolled => "host-side without polling",
        }
    }

    /// Whether an IOhost takes part, and so a session.
    fn has_iohost(self) -> bool {
        !matches!(self, Self::Optimum | Self::Elvis | Self::Baseline)
    }

    /// Whether a node on the guest's own host takes part, and so a virtqueue.
    fn has_vmhost(self) -> bool {
        matches!(self, Self::Elvis | Self::Baseline | Self::HostSide | Self::HostSideUnpolled)
    }

    /// Whether sidecores poll.
    fn polls(self) -> bool {
        matches!(self, Self::Direct | Self::Elvis | Self::HostSide)
    }

    /// Cores that poll on the guest's host, and on the IOhost.
    fn polling_cores(self) -> PollingCores {
        let of = |has: bool| has.then_some(u16::from(self.polls()));
        PollingCores { vmhost: of(self.has_vmhost()).unwrap_or(0), iohost: of(self.has_iohost()) }
    }
}

/// Cores that look for work all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PollingCores {
    /// Of each host that has guests.
    pub vmhost: u16,
    /// Of the IOhost, if there is one.
    pub iohost: Option<u16>,
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
    /// What has no session was measured before.
    #[serde(skip)]
    again: bool,
}

/// A model's figures; of each the median, and both ends of all rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Whether nobody polled on a core that others need. If not, only events mean something.
    pub seated: bool,
    /// What happens for a request, by the slides' columns, with one request outstanding.
    pub events: Vec<(Column, Cell)>,
    /// All that could be measured of it.
    pub sum: Spread,
    /// How long a request takes, in microseconds: half of them no longer.
    pub p50_us: Spread,
    /// 99 of a hundred no longer.
    pub p99_us: Spread,
    /// Processor time of a request, of all processes and threads, in microseconds.
    pub cpu_us: Spread,
    /// Requests in a second, with [`DEPTH`] outstanding of each guest.
    pub per_s: Spread,
    /// Processor time of each of these.
    pub cpu_us_at_depth: Spread,
    /// All events of each of these.
    pub sum_at_depth: Spread,
    /// The sum, of each round.
    #[serde(skip)]
    sums: Vec<f64>,
    /// What whoever is not the IOhost has of it, of each round.
    #[serde(skip)]
    near_sums: Vec<f64>,
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
    /// What QEMU emulates, in a real guest.
    pub emulated: Vec<Emulated>,
    /// What of that could not be counted, and why.
    pub not_emulated: Vec<String>,
    /// What we mean to reach.
    pub goals: Vec<Reached>,
    /// Why the figures are not those of the slides.
    pub explained: Vec<&'static str>,
    /// The machine.
    pub machine: Machine,
}

/// Measures all models in turn. Says on standard error what it does.
///
/// # Errors
/// What cannot be measured, or went wrong meanwhile.
pub fn run(options: &Options) -> Result<Report> {
    let progress = Progress::new();
    tidily(&progress, |cleanup| measure(options, cleanup, &progress))
}

/// The same as a part of something longer.
pub(crate) fn measure(options: &Options, cleanup: &Cleanup, progress: &Progress) -> Result<Report> {
    options.check()?;
    let settings = options.settings();
    let turns = settings.iter().map(|setting| models_of(options, setting).count()).sum::<usize>();
    // Several guests share sidecores: who asks for one guest has no use for it.
    let balances = options.devices.contains(&Device::Block) && options.guests[..] != [1];
    let turns = turns + if balances { balance::TURNS } else { 0 };
    let turns = turns * usize::from(options.rounds);
    let minutes = (turns as f64 * (TURN_MORE_S + 2.0 * options.seconds) / 60.0).ceil();
    progress.done(format!("{turns} turns, about {minutes} min"));
    let prepared = block::prepare(options, cleanup, progress)?;
    let tables = settings.iter().map(|setting| {
        let table = in_turn(&prepared, setting, cleanup, progress);
        progress.done(table::title(setting));
        table
    });
    let tables: Vec<_> = tables.collect();
    let balance = match balances {
        true => balance::all(options, cleanup, progress)?,
        false => Vec::new(),
    };
    let devices = if options.guest { &options.devices[..] } else { &[] };
    let (mut emulated, mut not_emulated) = (Vec::new(), Vec::new());
    for outcome in emulated::all(devices, cleanup, progress) {
        match outcome {
            Ok(it) => emulated.push(it),
            Err(why) => not_emulated.push(why),
        }
    }
    if !options.guest {
        not_emulated.push(NO_GUEST.to_owned());
    }
    let measured = tables.iter().flat_map(|it| &it.rows).any(|row| row.figures.is_some());
    ensure!(measured, "nothing could be measured: {}", table::reasons(&tables).join("; "));
    Ok(Report {
        version: MODELS_VERSION,
        goals: order::goals(&tables),
        explained: order::EXPLAINED.to_vec(),
        asked: options.clone(),
        tables,
        balance,
        emulated,
        not_emulated,
        machine: Machine::look(),
    })
}

/// What a turn is.
enum Asked {
    Disk(Box<crate::block::Options>),
    Cards(Box<crate::net::Options>),
    /// No card, and no node.
    Link,
}

impl Asked {
    /// For a model; or why it cannot be measured.
    fn of(options: &Options, model: Model, setting: &Setting) -> Result<Self, String> {
        Ok(match (setting.device, model) {
            (Device::Block, _) => Self::Disk(Box::new(block::asked(options, model, setting)?)),
            (Device::Net, Model::Optimum) => Self::Link,
            (Device::Net, _) => Self::Cards(Box::new(net::asked(options, model, setting)?)),
        })
    }

    /// Looks whether it makes sense.
    fn check(&self) -> Result<()> {
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
    fn sample(&self, options: &Options, model: Model, cleanup: &Cleanup) -> Result<Sample> {
        match self {
            Self::Disk(asked) => block::sample(asked, model, cleanup),
            Self::Cards(asked) => net::sample(asked, model, cleanup),
            Self::Link => link::sample(options),
        }
    }
}

/// Which models are measured; the others say why not.
fn models_of<'a>(
    options: &'a Options,
    setting: &'a Setting,
) -> impl Iterator<Item = (Model, Result<Asked, String>)> + 'a {
    let all = Model::ALL.into_iter().filter(|model| !setting.again || model.has_iohost());
    all.map(|model| (model, Asked::of(options, model, setting)))
}

/// Round after round of all models.
fn in_turn(options: &Options, setting: &Setting, cleanup: &Cleanup, progress: &Progress) -> Table {
    let models: Vec<_> = models_of(options, setting).collect();
    let mut outcomes: Vec<Result<Vec<Sample>, String>> = models
        .iter()
        .map(|(_, asked)| asked.as_ref().map(|_| Vec::new()).map_err(Clone::clone))
        .collect();
    for round in 1..=options.rounds {
        for ((model, asked), outcome) in models.iter().zip(&mut outcomes) {
            let (Ok(asked), Ok(samples)) = (asked, &mut *outcome) else { continue };
            let (title, name) = (table::title(setting), model.name());
            progress.doing(format!("{title}: {name}, round {round} of {}", options.rounds));
            match asked.sample(options, *model, cleanup) {
                Ok(sample) => samples.push(sample),
                Err(error) => {
                    cleanup.yield_to_interruption();
                    progress.done(format!("not measured: {name}: {error:#}"));
                    *outcome = Err(format!("{error:#}"));
                }
            }
        }
    }
    let rows = models.iter().zip(outcomes).map(|((model, asked), outcome)| {
        let seated = !model.polls() || asked.as_ref().is_ok_and(Asked::has_seats);
        let (figures, empty) = match outcome {
            Ok(samples) => (Some(cell::figures(&samples, seated)), None),
            Err(why) => (None, Some(why)),
        };
        let (model, name, polling_cores) = (*model, model.name(), model.polling_cores());
        Row { model, name, polling_cores, figures, empty }
    });
    Table { setting: *setting, rows: rows.collect() }
}
