//! The scaling of a node as results: a measurement of each series, by sidecores or by guests.

use results::{Against, Axis, Empty, Measurement, Quantity, Unit};

use super::{Point, Scale, Series};
use crate::figures::{BenchReport, NO_SEATS, measured};
use testbed::machine::Machine;

impl BenchReport for Scale {
    fn measurements(&self, title: &str) -> Vec<Measurement> {
        self.series.iter().filter_map(|series| measurement(series, title)).collect()
    }

    fn machine(&self) -> &Machine {
        &self.machine
    }
}

fn measurement(scaling: &Series, title: &str) -> Option<Measurement> {
    let first = scaling.points.first()?;
    let grows = |of: fn(&Point) -> u16| scaling.points.iter().any(|it| of(it) != of(first));
    let by_guests = grows(|it| it.guests) && !grows(|it| it.sidecores);
    let quantity = if by_guests { Against::Guests } else { Against::Sidecores };
    let axis = Axis { quantity, unit: Unit::Count };
    let title = format!("{title}: {}", scaling.name);
    let axes = ["guests", "sidecores", "jobs"];
    let mut it = measured("scale", &title, &first.report.asked, &axes);
    // With threads that share cores, a rate is the scheduler's work. Processor time is still the
    // threads' own.
    let rate = |it: &Point| it.seated.then_some(it.report.iops);
    let cpu = |it: &Point| {
        let seconds: f64 = it.report.cpu_s.values().flatten().sum();
        (it.report.requests > 0).then(|| seconds * 1e6 / it.report.requests as f64)
    };
    let of = |name, quantity, unit, y: &dyn Fn(&Point) -> Option<f64>| {
        let x = |it: &Point| f64::from(if by_guests { it.guests } else { it.sidecores });
        let point = |it: &Point| Some(results::Point::new(x(it), y(it)?));
        let points = scaling.points.iter().filter_map(point).collect();
        results::Series { points, ..results::Series::new(name, quantity, unit, axis) }
    };
    it.series = vec![
        of("requests", Quantity::Iops, Unit::PerS, &rate),
        of("all", Quantity::CpuPerRequest, Unit::Us, &cpu),
    ];
    it.series.retain(|series| !series.points.is_empty());
    for Point { sidecores, guests, .. } in scaling.points.iter().filter(|it| !it.seated) {
        let what = format!("IOPS with {sidecores} sidecores and {guests} guests");
        it.empty.push(Empty { what, why: NO_SEATS.to_owned() });
    }
    Some(it)
}

#[cfg(test)]
mod tests {
    use super::super::{SCALE_VERSION, ScaleOptions};
    use super::*;
    use crate::block::Volume;
    use crate::block::results::tests::report;

    /// Where threads shared cores, there is processor time and no rate.
    #[test]
    fn a_point_whose_threads_shared_cores_has_no_rate() {
        let point =
            |guests, seated| Point { sidecores: 1, guests, queues: 1, seated, report: report(8) };
        let points = vec![point(1, true), point(2, true), point(4, false)];
        let series = vec![Series { name: "more guests", points }];
        let volume = Volume::Null;
        let asked = ScaleOptions { program: "vrio".into(), volume, depth: 8, seconds: 1.0 };
        let scale = Scale { version: SCALE_VERSION, asked, series, machine: Machine::look() };
        let [it] = &scale.measurements("mine")[..] else { panic!("one measurement") };
        it.check().unwrap();
        assert_eq!((it.title.as_str(), it.benchmark.as_str()), ("mine: more guests", "scale"));
        let [rates, times] = &it.series[..] else { panic!("two series: {it:?}") };
        assert_eq!((rates.quantity, rates.x.quantity), (Quantity::Iops, Against::Guests));
        let places = |it: &results::Series| it.points.iter().map(|it| it.x).collect::<Vec<_>>();
        assert_eq!((places(rates), places(times)), (vec![1.0, 2.0], vec![1.0, 2.0, 4.0]));
        assert_eq!(it.empty[0].what, "IOPS with 1 sidecores and 4 guests");
        assert_eq!(it.empty[0].why, NO_SEATS);
    }
}
