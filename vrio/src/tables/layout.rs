//! The layout of tables and texts: their width, headings, columns and folded lines.

use std::fmt::Write;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use comfy_table::{
    Cell, CellAlignment, Column, ColumnConstraint, ContentArrangement, Table, presets,
};
use node::status::Counters;

/// The width of tables and texts in columns where no terminal is known to be wider.
const COLUMNS: usize = 80;

/// The width in columns now.
static WIDTH: AtomicUsize = AtomicUsize::new(COLUMNS);

/// Sets whether tables have all their columns, however wide they are, or only those that the
/// terminal has room for.
pub(crate) fn set_wide(wide: bool) {
    let width = if wide {
        usize::MAX
    } else if std::io::stdout().is_terminal() {
        let terminal = ratatui::crossterm::terminal::size();
        terminal.map_or(COLUMNS, |(columns, _)| usize::from(columns).max(COLUMNS))
    } else {
        COLUMNS
    };
    WIDTH.store(width, Relaxed);
}

pub(super) const STRING: &str = "a string takes what is written to it";

pub(super) fn counter_table(counters: &Counters) -> Table {
    let mut table = table(&["counter", "value"], 1);
    for (name, value) in counters {
        table.add_row(vec![name.clone(), value.to_string()]);
    }
    table
}

pub(super) fn section(text: &mut String, name: &str, table: Table) {
    if table.row_count() > 0 {
        let table = fit(table, &[]);
        let is_hidden = |column: &Column| column.constraint() == Some(&ColumnConstraint::Hidden);
        let more = if table.column_iter().any(is_hidden) { "  (more columns: --wide)" } else { "" };
        let name = name.to_uppercase();
        write!(text, "\n{name}{more}\n{}\n", table.trim_fmt()).expect(STRING);
    }
}

/// Makes a table as narrow as it has to be. The columns with the headings `spare` are removed, the
/// first one first. If this is not enough, the cells of the others are broken into lines.
pub(super) fn fit(mut table: Table, spare: &[&str]) -> Table {
    let width = WIDTH.load(Relaxed);
    let is_wide = |table: &Table| table.lines().any(|line| line.trim_end().chars().count() > width);
    let titles: Vec<String> = match table.header() {
        Some(header) => header.cell_iter().map(Cell::content).collect(),
        None => Vec::new(),
    };
    for heading in spare {
        if !is_wide(&table) {
            return table;
        }
        let at = titles.iter().position(|title| title == heading).expect("a column's heading");
        let column = table.column_mut(at).expect("the header has it");
        column.set_constraint(ColumnConstraint::Hidden);
    }
    if is_wide(&table) {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(u16::try_from(width).unwrap_or(u16::MAX));
    }
    table
}

/// A text in lines of at most [`WIDTH`] characters, indented. Lines that continue another are
/// indented further.
pub(crate) fn fold(text: &str, indent: usize) -> String {
    let width = WIDTH.load(Relaxed);
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let has_room =
            |line: &&mut String| line.chars().count() + 1 + word.chars().count() <= width;
        match lines.last_mut().filter(has_room) {
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => {
                let deeper = if lines.is_empty() { 0 } else { 2 };
                lines.push(format!("{:width$}{word}", "", width = indent + deeper));
            }
        }
    }
    lines.join("\n")
}

/// A table without lines; the columns from `numbers` on are aligned to the right.
pub(super) fn table(header: &[&str], numbers: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.to_vec());
    for column in numbers..header.len() {
        let column = table.column_mut(column).expect("the header has it");
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

pub(super) fn number(counters: &Counters, name: &str) -> String {
    counters.get(name).map_or_else(String::new, u64::to_string)
}

pub(super) fn words(words: &[String]) -> String {
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

pub(crate) fn uptime(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        ..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}min {}s", seconds % 60),
        3600..86400 => format!("{hours}h {}min", minutes % 60),
        _ => format!("{days}d {}h", hours % 24),
    }
}
