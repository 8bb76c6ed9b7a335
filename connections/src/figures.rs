//! Connections as results: of a process and of a host, by pattern and transport.

use bench::figures::{BenchReport, measured};
use results::{Axis, Measurement, Point, Quantity, Series, Unit};

use super::Connections;
use super::report::Line;
use testbed::machine::Machine;

impl BenchReport for Connections {
    fn measurements(&self, title: &str) -> Vec<Measurement> {
        let mut it = measured("connections", title, &self.asked, &[]);
        let of = |name, y: fn(&Line) -> f64| {
            let label = |line: &Line| format!("{}, {}", line.pattern.name(), line.transport);
            let points = self.lines.iter().enumerate();
            let point =
                |(place, line): (usize, &Line)| Point::of_category(place, &label(line), y(line));
            let series = Series::new(name, Quantity::Connections, Unit::Count, Axis::CATEGORY);
            Series { points: points.map(point).collect(), ..series }
        };
        it.series =
            vec![of("of a process", |it| it.per_process), of("of a host", |it| it.per_host)];
        vec![it]
    }

    fn machine(&self) -> &Machine {
        &self.machine
    }
}
