//! A table of models that were measured in turn, one for each setting.

use std::fmt;

use serde::Serialize;

use super::cell::{Cell, ModelFigures};
use super::model::{GuestDevice, Model, PollingCores};
use super::options::{DEPTH, Setting};
use crate::block::report::number;
use crate::verdict::Spread;

/// A model in a table.
#[derive(Clone, Debug, Serialize)]
pub struct ModelRow {
    /// The model.
    pub model: Model,
    /// Its name.
    pub name: &'static str,
    /// Cores that poll.
    pub polling_cores: PollingCores,
    /// The measured figures.
    pub figures: Option<ModelFigures>,
    /// The reason why there are no figures.
    pub empty: Option<String>,
}

/// Models that are measured in turn.
#[derive(Clone, Debug, Serialize)]
pub struct ModelTable {
    /// The setting of all its models.
    #[serde(flatten)]
    pub setting: Setting,
    /// The models.
    pub rows: Vec<ModelRow>,
}

/// The reasons why cells and rows are empty, each reason once.
pub(super) fn reasons(tables: &[ModelTable]) -> Vec<String> {
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

/// The median, with a few digits.
fn median(spread: &Spread) -> String {
    number(spread.median)
}

/// The same of a figure that may be unknown.
pub(super) fn known(spread: &Option<Spread>) -> String {
    spread.as_ref().map_or_else(|| "*".to_owned(), median)
}

/// A rate. Notes below the table have the reasons of unknown figures.
pub(super) fn rate(spread: &Option<Spread>) -> String {
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

impl fmt::Display for ModelRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let iohost = self.polling_cores.iohost.map_or("-".to_owned(), |it| it.to_string());
        let polling = format!("{} / {iohost}", self.polling_cores.vmhost);
        write!(f, "  {:<26}{polling:>7}", self.name)?;
        let Some(figures) = &self.figures else { return writeln!(f, "  (see below)") };
        let ModelFigures { events, sum, p50_us, p99_us, cpu_us, .. } = figures;
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

impl fmt::Display for ModelTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.setting.title())?;
        let each = match self.setting.device {
            GuestDevice::Block => "a request, one outstanding",
            GuestDevice::Net => "a frame, one under way",
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
            GuestDevice::Block => Ok(()),
            GuestDevice::Net => writeln!(
                f,
                "  p50 and p99 are of a frame there and back; events, CPU and rate of each way"
            ),
        }
    }
}
