//! Everything that was measured of the models: one JSON object, or tables with remarks.

use std::fmt;

use serde::Serialize;

use super::balance::Balance;
use super::emulated::Emulated;
use super::model::GuestDevice;
use super::options::ModelsOptions;
use super::order::OrderGoal;
use super::table::{ModelTable, known, rate, reasons};
use crate::block::report::number;
use testbed::machine::Machine;

/// The version of the JSON form.
pub(super) const MODELS_VERSION: u32 = 1;

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct ModelsReport {
    /// The version of this form.
    pub version: u32,
    /// The options of this run.
    pub asked: ModelsOptions,
    /// The tables.
    pub tables: Vec<ModelTable>,
    /// The same sidecores spread over hosts and pooled on one; empty without disks in the options.
    pub balance: Vec<Balance>,
    /// The parts of QEMU's emulation, by the names of registers.
    pub emulated: Vec<Emulated>,
    /// The reason why emulation was not counted, without `--guest`.
    pub not_emulated: Vec<String>,
    /// The goals.
    pub goals: Vec<OrderGoal>,
    /// The reasons why the figures are not those of the slides.
    pub explained: Vec<String>,
    /// The machine.
    pub machine: Machine,
}

impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sidecores, load, busy: [busy, all], seated, per_s, cpu_us, .. } = self;
        let [sidecores, load] = [format!("{sidecores:?}"), format!("{load:?}")];
        let (busy, cpu, per_s) = (format!("{busy} of {all}"), known(cpu_us), rate(per_s));
        let shared = if *seated { "" } else { "  cores SHARED" };
        writeln!(
            f,
            "  {:<10}{:<14}{busy:>12}{per_s:>12}{cpu:>10}{shared}",
            sidecores.to_lowercase(),
            load.to_lowercase(),
        )
    }
}

impl fmt::Display for Emulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, accelerator, requests, sync_exits, guest_interrupts, .. } = self;
        let each = match self.device {
            GuestDevice::Block => "read of 4 KiB",
            GuestDevice::Net => "frame of a ping",
        };
        let [exits, interrupts] = [*sync_exits, *guest_interrupts].map(number);
        writeln!(
            f,
            "\nemulation, {name} in a real guest ({accelerator}): of each {each} {exits} sync \
             exits, {interrupts} guest interrupts ({requests} counted)"
        )?;
        let regions = self.by_region.iter();
        let regions: Vec<_> = regions.map(|(name, it)| format!("{name} {}", number(*it))).collect();
        writeln!(f, "  accesses to registers by region: {}", regions.join(", "))
    }
}

impl fmt::Display for ModelsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "disks: randread of 4 KiB, {} volume; cards: frames of 64 bytes; medians of {} rounds",
            self.asked.volume, self.asked.rounds
        )?;
        for table in &self.tables {
            writeln!(f, "\n{table}")?;
        }
        if !self.tables.is_empty() {
            writeln!(f, "polling: cores that poll on each VMhost, and on the IOhost")?;
        }
        let mut shared = self.tables.iter().flat_map(|it| &it.rows);
        if shared.any(|row| row.figures.as_ref().is_some_and(|it| !it.seated)) {
            writeln!(
                f,
                "cores SHARED: more threads are busy than there are cores, and some of them poll: \
                 of those rows only events mean anything"
            )?;
        }
        if !self.balance.is_empty() {
            writeln!(
                f,
                "\nthe same sidecores, on two hosts (Elvis) or both on one IOhost (direct)"
            )?;
            writeln!(
                f,
                "  {:<10}{:<14}{:>12}{:>12}{:>10}",
                "", "", "busy guests", "per s", "CPU us"
            )?;
            self.balance.iter().try_for_each(|it| write!(f, "{it}"))?;
        }
        for it in &self.emulated {
            write!(f, "{it}")?;
        }
        let of_balance = self.balance.iter().filter_map(|it| {
            let what = format!("{:?} sidecores, {:?} load", it.sidecores, it.load);
            Some(format!("{}: {}", what.to_lowercase(), it.empty.as_ref()?))
        });
        let balance = of_balance.collect();
        let reasons = [reasons(&self.tables), balance, self.not_emulated.clone()].concat();
        if !reasons.is_empty() {
            writeln!(f, "\nempty (* or a whole row)")?;
            reasons.iter().try_for_each(|reason| writeln!(f, "  {reason}"))?;
        }
        writeln!(f, "\ngoals")?;
        self.goals.iter().try_for_each(|goal| write!(f, "{goal}"))?;
        if !self.explained.is_empty() {
            writeln!(f, "\ndifferences from the slides' 2, 2, 4, 6 and 9, with their reasons")?;
        }
        self.explained.iter().try_for_each(|it| writeln!(f, "  - {it}"))?;
        let Machine { cores, processor, kernel, .. } = &self.machine;
        let build = self.machine.build();
        let slow = if self.machine.optimised { "" } else { "; NOT OPTIMISED: build --release" };
        writeln!(f, "\n{cores} cores, {processor}, Linux {kernel}; vrio {build}{slow}")
    }
}
