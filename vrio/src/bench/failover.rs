//! `vrio bench failover`.

use anyhow::Context;
use bench::failover::{FailoverEvent, FailoverOptions};
use clap::ValueEnum;

use super::args::Switch;
use crate::results::ToldArgs;

pub(super) const EXAMPLES: &str = "Examples:
  vrio bench failover                                  an IOhost killed, then both nodes replaced
  vrio bench failover --event kill --away 2 --seconds 8
  vrio bench failover --json | jq '.interruptions[] | [.begins, .pause_ms]'
  vrio bench failover --save && vrio report            the time line as a picture
The guest is a stand-in that checks what it reads; a request that fails is an error here.";

#[derive(Debug, clap::Args)]
pub(crate) struct FailoverArgs {
    /// Seconds of the time line.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// The event; may be given several times (default: each event once).
    #[arg(long = "event", value_enum)]
    events: Vec<EventArg>,
    /// Seconds that a killed IOhost stays away before it is started again.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.3)]
    away: f64,
    /// Whether sessions are sealed.
    #[arg(long, value_enum, default_value_t = Switch::On)]
    encrypt: Switch,
    #[command(flatten)]
    pub(super) told: ToldArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum EventArg {
    /// The IOhost gets SIGKILL, and is started again.
    Kill,
    /// Another process goes on in the IOhost's place.
    HandOver,
    /// Another process goes on in the VMhost's place.
    HandOverVmhost,
}

impl From<EventArg> for FailoverEvent {
    fn from(event: EventArg) -> Self {
        match event {
            EventArg::Kill => Self::Kill,
            EventArg::HandOver => Self::HandOver,
            EventArg::HandOverVmhost => Self::HandOverVmhost,
        }
    }
}

impl FailoverArgs {
    pub(super) fn options(&self) -> anyhow::Result<FailoverOptions> {
        let said = self.events.iter().map(|event| FailoverEvent::from(*event));
        Ok(FailoverOptions {
            program: std::env::current_exe().context("finding this program")?,
            seconds: self.seconds,
            events: if self.events.is_empty() {
                FailoverEvent::ALL.to_vec()
            } else {
                said.collect()
            },
            away_seconds: self.away,
            encrypt: self.encrypt == Switch::On,
        })
    }
}
