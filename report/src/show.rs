//! The text of a run, for a terminal.

use std::fmt;

use results::{Machine, Meant, Measurement, Point, Run, RunOrigin, Series, Spread};

use crate::diff::{place, short};
use crate::store::Loaded;

impl fmt::Display for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Run { id, begun, title, command, machine, tools, notes, .. } = &self.run;
        writeln!(f, "{id}: {title}\n  begun    {begun}")?;
        if !command.is_empty() {
            writeln!(f, "  command  {}", command.join(" "))?;
        }
        match machine {
            Some(machine) => writeln!(f, "  machine  {}", MachineText(machine))?,
            None => writeln!(f, "  machine  not known")?,
        }
        tools.iter().try_for_each(|(name, version)| writeln!(f, "  {name} {version}"))?;
        notes.iter().try_for_each(|note| writeln!(f, "  {note}"))?;
        self.measurements.iter().try_for_each(|it| write!(f, "\n{}", MeasurementText(it)))
    }
}

/// A machine, in a line.
struct MachineText<'a>(&'a Machine);

impl fmt::Display for MachineText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { processor, cores, kernel, .. } = self.0;
        write!(f, "{cores} cores, {processor}, Linux {kernel}")?;
        if let Some(trip) = self.0.cache_line_round_trip_ns {
            write!(f, ", cache line round trip {trip} ns")?;
        }
        if let Some(version) = &self.0.version {
            let commit = self.0.commit.as_deref().unwrap_or("unknown");
            write!(f, "; vrio {version}, commit {commit}")?;
        }
        f.write_str(if self.0.optimised == Some(false) { ", NOT OPTIMISED" } else { "" })
    }
}

/// A measurement with all of its figures.
struct MeasurementText<'a>(&'a Measurement);

impl fmt::Display for MeasurementText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(it) = self;
        let origin = match it.origin {
            RunOrigin::Measured => "",
            RunOrigin::Imported => ", imported",
            RunOrigin::Published => ", published",
            RunOrigin::Planned => ", planned",
        };
        writeln!(f, "{}: {}{origin}", it.benchmark, it.title)?;
        if let Some(source) = &it.source {
            writeln!(f, "  from {source}")?;
        }
        let setup: Vec<_> = it.setup.iter().map(|(key, value)| format!("{key} {value}")).collect();
        if !setup.is_empty() {
            writeln!(f, "  {}", setup.join(", "))?;
        }
        it.series.iter().try_for_each(|series| write!(f, "{}", SeriesText(series)))?;
        it.empty.iter().try_for_each(|no| writeln!(f, "  empty: {}: {}", no.what, no.why))?;
        it.notes.iter().try_for_each(|note| writeln!(f, "  note: {note}"))?;
        it.misprints.iter().try_for_each(|words| writeln!(f, "  misprint: {words}"))
    }
}

/// A series with its points, a line each.
struct SeriesText<'a>(&'a Series);

impl fmt::Display for SeriesText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Series { quantity, name, unit, statistic, spread, rounds, x, points, .. } = self.0;
        let which = statistic.map_or(String::new(), |it| format!(", {}", it.words()));
        let bars = match (spread, rounds) {
            (Spread::None, _) => String::new(),
            (Spread::Rounds, Some(rounds)) => format!(", least to most of {rounds} rounds"),
            (spread, _) => format!(", {}", spread.words()),
        };
        writeln!(f, "  {quantity} ({name}{which}{bars})")?;
        for point in points {
            let Point { y, low, high, meant, .. } = point;
            let meant = match meant {
                Meant::Exact => "",
                Meant::About => "about ",
                Meant::AtMost => "at most ",
                Meant::AtLeast => "at least ",
            };
            let mut at = place(*x, point.x, point.label.as_deref());
            if let Some(to) = point.x_to {
                at = format!("{at} to {}", place(*x, to, None));
            }
            let end = |end: &Option<f64>| end.map_or("-".to_owned(), short);
            let bar = low.or(*high).map(|_| format!("  {} to {}", end(low), end(high)));
            let symbol = unit.symbol();
            let line = format!(
                "    {at:28} {meant:>9}{:>9} {symbol}{}",
                short(*y),
                bar.unwrap_or_default()
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::MeasurementText;
    use crate::published::published;

    #[test]
    fn bounds_ranges_and_misprints_are_shown() {
        let all: Vec<_> = published().iter().map(|it| MeasurementText(it).to_string()).collect();
        let text = all.concat();
        for words in [
            "mpi_latency: SR-IOV, QDR InfiniBand (2013), published",
            "    1 B to 127 B                    about      30.0 %\n",
            "    129 B to 4 MiB                at most      10.0 %\n",
            "misprint: \"4KK\" stands where 4 KB is meant.",
            "empty: PCIe passthrough's latency and bandwidth: its text has no number",
        ] {
            assert!(text.contains(words), "{words:?} is not in {text}");
        }
    }
}
