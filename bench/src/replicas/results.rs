//! Replicas as results: latencies by kind of request, and pauses by event.

use results::{Axis, Measurement, Point, Quantity, Series, Statistic, Unit};

use super::prices::Price;
use super::report::{ReplicasReport, quantile};
use crate::figures::{BenchReport, measured, named_point_of, of_rounds, word_of};
use testbed::machine::Machine;

impl BenchReport for ReplicasReport {
    fn measurements(&self, title: &str) -> Vec<Measurement> {
        let of = |title: &str, series: Vec<Series>| {
            let mut it = measured("replicas", title, &self.asked, &["seconds", "events"]);
            it.setup.insert("network".to_owned(), word_of(&self.network));
            it.series = series;
            it
        };
        let mut all = Vec::new();
        if !self.prices.is_empty() {
            let copies = format!("{} copies", self.asked.copies);
            let series = vec![self.latency("1 copy", 0), self.latency(&copies, 1)];
            all.push(of(title, series));
        }
        if !self.pauses.is_empty() {
            let series = [("p50", Statistic::Median, 0.5), ("longest", Statistic::Max, 1.0)];
            let series = series.map(|(name, statistic, share)| self.paused(name, statistic, share));
            all.push(of(&format!("{title} (pauses)"), series.to_vec()));
        }
        all
    }

    fn machine(&self) -> &Machine {
        &self.machine
    }
}

impl ReplicasReport {
    /// The latencies of the volume with one copy (0) or with all (1).
    fn latency(&self, name: &str, side: usize) -> Series {
        let point = |(place, it): (usize, &Price)| {
            let label = format!("{}, depth {}", it.pattern.name(), it.depth);
            named_point_of(it.p50_us[side], place, &label)
        };
        let points = self.prices.iter().enumerate().map(point).collect();
        let statistic = Some(Statistic::Median);
        let series = Series::new(name, Quantity::Latency, Unit::Us, Axis::CATEGORY);
        of_rounds(Series { points, statistic, ..series }, usize::from(self.asked.rounds))
    }

    fn paused(&self, name: &str, statistic: Statistic, share: f64) -> Series {
        let points = self.pauses.iter().enumerate().map(|(place, it)| {
            Point::of_category(place, it.event.words(), quantile(&it.pauses_ms, share) * 1e3)
        });
        let points = points.collect();
        let series = Series::new(name, Quantity::Duration, Unit::Us, Axis::CATEGORY);
        Series { points, statistic: Some(statistic), ..series }
    }
}

#[cfg(test)]
mod tests {
    use super::super::events::EventPauses;
    use super::super::options::{BenchRegistry, ReplicaEvent, ReplicasOptions};
    use super::*;
    use crate::load::LoadPattern;
    use crate::verdict::Spread;
    use testbed::stage::NodeNetwork;
    use workload::WorkloadCounts;

    #[test]
    fn both_measurements_are_whole() {
        let options = ReplicasOptions {
            program: "vrio".into(),
            copies: 2,
            volumes: 2,
            rounds: 3,
            seconds: 0.5,
            events: vec![ReplicaEvent::Move],
            folder: "/var/tmp".into(),
            mtu: 9000,
            loopback: false,
            registry: BenchRegistry::File,
        };
        let spread = |median| Spread { median, min: median - 1.0, max: median + 1.0 };
        let price = Price {
            pattern: LoadPattern::RandWrite,
            depth: 1,
            p50_us: [spread(20.0), spread(40.0)],
            p50_ratio: spread(2.0),
            iops: [spread(5e4), spread(2.5e4)],
            datagrams: [spread(6.0), spread(12.0)],
        };
        let pauses = EventPauses {
            event: ReplicaEvent::Move,
            pauses_ms: vec![12.0, 25.0, 13.0],
            in_sync_ms: vec![50.0; 3],
        };
        let report = ReplicasReport::new(
            &options,
            NodeNetwork::Namespaces,
            vec![price],
            vec![pauses],
            WorkloadCounts::default(),
            Machine::look(),
        );
        let [prices, pauses] = &report.measurements("mine")[..] else { panic!("two") };
        prices.check().unwrap();
        pauses.check().unwrap();
        let of = |it: &Measurement| it.series.iter().map(|it| it.points[0].y).collect::<Vec<_>>();
        assert_eq!(of(prices), [20.0, 40.0]);
        assert_eq!(of(pauses), [13e3, 25e3]);
        assert_eq!(prices.setup["mtu"], "9000");
        assert!(report.to_string().contains("goal 3, p50 of a write, ratio <= "), "{report}");
    }
}
