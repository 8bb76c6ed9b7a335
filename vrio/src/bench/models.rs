//! `vrio bench models`.

use anyhow::{Context, anyhow};
use bench::models::{self, GuestDevice, Model, ModelsOptions, ModelsReport};
use clap::ValueEnum;

use super::args::{Switch, volume};
use crate::failure::CommandFailure;
use crate::output;
use crate::results::{self, ReportJson, ToldArgs};

pub(super) const EXAMPLES: &str = "Examples:
  vrio bench models                                    all models, one guest and four
  vrio bench models --quick --device block --guests 1 --encrypt off
  vrio bench models --model elvis --model baseline     only these two
  vrio bench models --guests 1 --volume direct:/var/tmp/disk    a device's interrupts as well
  vrio bench models --guest --model elvis --model emulation     in real guests as well
  vrio bench models --json | jq '.goals[] | [.goal, .standing]'
Rows are optimum, vRIO direct, Elvis, vRIO without polling, baseline and vRIO host-side, as in the
ApacheBench table of the paper's slides. A figure that cannot be measured stays empty, with the
reason.";

/// Rounds and seconds unless said, and with --quick.
const ROUNDS: u16 = 3;
const SECONDS: [f64; 2] = [0.5, 0.1];

#[derive(Debug, clap::Args)]
pub(crate) struct ModelsArgs {
    /// Disks, network cards, or both.
    #[arg(long, value_enum, default_value_t = DeviceArg::Both)]
    device: DeviceArg,
    /// Measure only this model; may be given several times. QEMU's own models need --guest.
    #[arg(long = "model", value_enum, value_name = "NAME")]
    models: Vec<ModelArg>,
    /// Numbers of guests, such as 1,4; each is measured.
    #[arg(long, value_delimiter = ',', default_value = "1,4")]
    guests: Vec<u16>,
    /// Measure only sealed sessions (on) or plain ones (off); default: both.
    #[arg(long, value_enum)]
    encrypt: Option<Switch>,
    /// Measure only volumes with a stage that encrypts (on) or without (off); default: both.
    #[arg(long, value_enum)]
    stage: Option<Switch>,
    /// The volumes' backend: memory, null, file:PATH or direct:PATH.
    #[arg(long, default_value = "memory")]
    volume: String,
    /// How often each model is measured, in turn (default: 3).
    #[arg(long)]
    rounds: Option<u16>,
    /// Seconds of each measurement, at each depth (default: 0.5, or 0.1 with --quick).
    #[arg(long)]
    seconds: Option<f64>,
    /// Measure in real guests as well, beside QEMU's own virtio and its emulation of IDE and e1000;
    /// guest/build and guest/build newer make the guests' images.
    #[arg(long)]
    guest: bool,
    /// Run short turns, as a trial.
    #[arg(long)]
    quick: bool,
    /// Print a JSON object of each table as soon as it is measured, instead of one object of all.
    #[arg(long, requires = "json", conflicts_with = "save")]
    part_by_part: bool,
    #[command(flatten)]
    pub(super) told: ToldArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DeviceArg {
    Block,
    Net,
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModelArg {
    Optimum,
    Direct,
    Elvis,
    Unpolled,
    Baseline,
    HostSide,
    HostSideUnpolled,
    Qemu,
    Emulation,
}

impl ModelArg {
    fn model(self) -> Model {
        match self {
            Self::Optimum => Model::Optimum,
            Self::Direct => Model::Direct,
            Self::Elvis => Model::Elvis,
            Self::Unpolled => Model::Unpolled,
            Self::Baseline => Model::Baseline,
            Self::HostSide => Model::HostSide,
            Self::HostSideUnpolled => Model::HostSideUnpolled,
            Self::Qemu => Model::Qemu,
            Self::Emulation => Model::Emulation,
        }
    }
}

impl ModelsArgs {
    /// Measures, and prints or saves the report.
    pub(super) fn run(&self) -> Result<(), CommandFailure> {
        let options = self.options().map_err(CommandFailure::configuration)?;
        options.check().map_err(CommandFailure::configuration)?;
        let mut tell = |report: &ModelsReport| {
            let results = self.told.run_of(report);
            let json = ReportJson::new(report, &results)?;
            let line = serde_json::to_string(&json).context("the report as JSON")?;
            output::print(&format!("{line}\n")).map_err(|failure| anyhow!("{failure}"))
        };
        let nobody = &mut |_: &ModelsReport| Ok(());
        match self.part_by_part {
            true => models::run(&options, &mut tell).map(drop).map_err(CommandFailure::running),
            false => {
                let report = models::run(&options, nobody).map_err(CommandFailure::running)?;
                results::report(&report, &self.told)
            }
        }
    }

    fn options(&self) -> anyhow::Result<ModelsOptions> {
        let [usual_seconds, quick_seconds] = SECONDS;
        let seconds = if self.quick { quick_seconds } else { usual_seconds };
        let both = |switch: Option<Switch>| match switch {
            Some(switch) => vec![switch == Switch::On],
            None => vec![false, true],
        };
        let options = ModelsOptions {
            program: std::env::current_exe().context("finding this program")?,
            devices: match self.device {
                DeviceArg::Block => vec![GuestDevice::Block],
                DeviceArg::Net => vec![GuestDevice::Net],
                DeviceArg::Both => vec![GuestDevice::Block, GuestDevice::Net],
            },
            models: match &self.models[..] {
                [] => Model::ALL.to_vec(),
                some => some.iter().map(|it| it.model()).collect(),
            },
            guests: self.guests.clone(),
            encrypt: both(self.encrypt),
            stage: both(self.stage),
            volume: volume(&self.volume)?,
            rounds: self.rounds.unwrap_or(ROUNDS),
            seconds: self.seconds.unwrap_or(seconds),
            guest: self.guest,
            filled: false,
        };
        Ok(options)
    }
}
