//! How the models are told: a table for each setting, and below all of them what is to be known.

use std::fmt;

use super::{Balance, Cell, DEPTH, Device, Emulated, Figures, Report, Row, Setting, Table};
use crate::block::report::number;
use crate::verdict::Spread;
use testbed::machine::Machine;

/// What models of a table have in common, in words.
pub(super) fn title(setting: &Setting) -> String {
    let Setting { device, guests, encrypt, stage, real_guest, .. } = setting;
    let device = match device {
        Device::Block => "block",
        Device::Net => "net",
    };
    let plural = if *guests == 1 { "" } else { "s" };
    let sealed = if *encrypt { "sealed" } else { "in clear" };
    let stage = if *stage { ", volume encrypted" } else { "" };
    let real = real_guest.iter().map(|how| format!("real ({how}) "));
    let real: String = real.collect();
    format!("{device}, {guests} {real}guest{plural}, sessions {sealed}{stage}")
}

/// Why cells and rows are empty, each reason once.
pub(super) fn reasons(tables: &[Table]) -> Vec<String> {
    let mut all = Vec::new();
    for row in tables.iter().flat_map(|table| &table.rows) {
        let of_row = row.empty.iter().map(|why| format!("{}: {why}", row.name));
        let cells = row.figures.iter().flat_map(|it| &it.events);
        let of_cells = cells.filter_map(|(column, cell)| match cell {
            Cell::Empty(why) => Some(format!("{}: {why}", column.name())),
            Cell::Measured(_) | Cell::Nobody => None,
        });
        let unknown = row.figures.iter().flat_map(|it| &it.unknown);
        let unknown = unknown.map(|why| format!("{}: {why}", row.name));
        all.extend(of_row.chain(of_cells).chain(unknown));
    }
    let mut told = Vec::new();
    for reason in all {
        if !told.contains(&reason) {
            told.push(reason);
        }
    }
    told
}

/// A few digits of the median.
fn median(spread: &Spread) -> String {
    number(spread.median)
}

/// The same of what may be unknown.
fn known(spread: &Option<Spread>) -> String {
    spread.as_ref().map_or_else(|| "*".to_owned(), median)
}

/// Of those that are unknown, the reasons are below.
fn rate(spread: &Option<Spread>) -> String {
    spread.as_ref().map_or_else(|| "*".to_owned(), |it| format!("{:.0}", it.median))
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Measured(spread) => f.pad(&median(spread)),
            Self::Empty(_) => f.pad("*"),
            Self::Nobody => f.pad("-"),
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let iohost = self.polling_cores.iohost.map_or("-".to_owned(), |it| it.to_string());
        let polling = format!("{} / {iohost}", self.polling_cores.vmhost);
        write!(f, "  {:<26}{polling:>7}", self.name)?;
        let Some(figures) = &self.figures else { return writeln!(f, "  (see below)") };
        let Figures { events, sum, p50_us, p99_us, cpu_us, .. } = figures;
        let cells: String = events.iter().map(|(_, cell)| format!("{cell:>8}")).collect();
        let [p50, p99, cpu] = [p50_us, p99_us, cpu_us].map(known);
        let sum = median(sum);
        write!(f, "{cells}{sum:>8} |{p50:>9}{p99:>9}{cpu:>8} |")?;
        let per_s = rate(&figures.per_s);
        let [cpu, sum] = [&figures.cpu_us_at_depth, &figures.sum_at_depth].map(known);
        let shared = if figures.seated { "" } else { "  cores SHARED" };
        writeln!(f, "{per_s:>10}{cpu:>8}{sum:>8}{shared}")
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", title(&self.setting))?;
        let each = match self.setting.device {
            Device::Block => "a request, one outstanding",
            Device::Net => "a frame, one under way",
        };
        writeln!(f, "  {:<33}{each:>48} |{:>26} |{:>26}", "", "us", format!("depth {DEPTH}"))?;
        let columns = ["exits", "guest", "inject", "host", "IOhost", "sum"];
        let columns: String = columns.iter().map(|name| format!("{name:>8}")).collect();
        let [p50, p99, cpu] = ["p50", "p99", "CPU"];
        writeln!(
            f,
            "  {:<26}{:>7}{columns} |{p50:>9}{p99:>9}{cpu:>8} |{:>10}{:>8}{:>8}",
            "model", "polling", "per s", "CPU us", "events"
        )?;
        self.rows.iter().try_for_each(|row| write!(f, "{row}"))?;
        match self.setting.device {
            Device::Block => Ok(()),
            Device::Net => writeln!(
                f,
                "  p50 and p99 are of a frame there and back; events, CPU and rate of each way"
            ),
        }
    }
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
            Device::Block => "read of 4 KiB",
            Device::Net => "frame of a ping",
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

impl fmt::Display for Report {
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
            writeln!(f, "\nwhat differs, and why it is not the slides' 2, 2, 4, 6 and 9")?;
        }
        self.explained.iter().try_for_each(|it| writeln!(f, "  - {it}"))?;
        let Machine { cores, processor, kernel, .. } = &self.machine;
        let build = self.machine.build();
        let slow = if self.machine.optimised { "" } else { "; NOT OPTIMISED: build --release" };
        writeln!(f, "\n{cores} cores, {processor}, Linux {kernel}; vrio {build}{slow}")
    }
}
