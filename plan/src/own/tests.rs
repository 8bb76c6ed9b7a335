use std::collections::BTreeMap;

use super::*;

fn figures() -> OwnFigures {
    own("recorded", &recorded().unwrap()).unwrap()
}

/// The recorded figures that are not within 15 %, by guests and depth.
const DIFFERS: [(u64, u64); 1] = [(32, 32)];

#[test]
fn recorded_measurements_are_predicted_from_a_few_of_them() {
    let figures = figures();
    let mut counts = BTreeMap::new();
    for figure in &figures.figures {
        let OwnFigure { run, ours_per_s, verdict } = figure;
        *counts.entry(format!("{verdict:?}")).or_insert(0) += 1;
        let off = (ours_per_s / run.measured_per_s - 1.0).abs();
        match verdict {
            // The costs are of these measurements: the assumptions of the fit hold as simulated.
            OwnVerdict::Fitted => assert!(off < 0.05, "{figure:?}"),
            OwnVerdict::Differs => assert!(DIFFERS.contains(&(run.guests, run.depth))),
            OwnVerdict::HeldOut | OwnVerdict::Weak => assert!(off <= WITHIN, "{figure:?}"),
        }
    }
    let expected = [("Differs", 1), ("Fitted", 5), ("HeldOut", 14), ("Weak", 14)];
    assert_eq!(counts, expected.map(|(word, count)| (word.to_owned(), count)).into());
}

/// As ratios to one guest with one request, which are what a reader of another machine has of them.
#[test]
fn more_guests_and_more_depth_have_the_measured_ratios() {
    let figures = figures().figures;
    for figure in figures.iter().filter(|it| it.run.limit == 0) {
        let (run, way) = (&figure.run, figure.run.way);
        let one = figures.iter().find(|it| it.run.is(way, 1, 1)).unwrap();
        let measured = run.measured_per_s / one.run.measured_per_s;
        let off = figure.ours_per_s / one.ours_per_s / measured - 1.0;
        assert!(off.abs() <= WITHIN || figure.verdict == OwnVerdict::Differs, "{figure:?}: {off}");
    }
}

#[test]
fn a_prediction_beside_which_a_guess_does_as_well_is_weak() {
    let run = |guests, depth, measured_per_s| BenchRun {
        way: BenchWay::Local,
        guests,
        depth,
        limit: 0,
        measured_per_s,
        spread_per_s: None,
    };
    let runs = [run(1, 1, 100.0), run(1, DEEP, 800.0), run(4, 4, 500.0), run(2, DEEP, 810.0)];
    assert_eq!(verdict(&runs[0], &runs, 300.0), OwnVerdict::Fitted);
    assert_eq!(verdict(&runs[2], &runs, 570.0), OwnVerdict::HeldOut);
    assert_eq!(verdict(&runs[2], &runs, 576.0), OwnVerdict::Differs);
    assert_eq!(verdict(&runs[3], &runs, 810.0), OwnVerdict::Weak);
    let limited = BenchRun { limit: 520, ..run(1, 4, 500.0) };
    assert_eq!(verdict(&limited, &runs, 500.0), OwnVerdict::Weak);
}

#[test]
fn measurements_that_give_no_costs_are_refused() {
    let fault = own("own.json", &[]).unwrap_err().to_string();
    assert!(fault.contains("16 guests at depth 1") && fault.contains("measure"), "{fault}");
    let mut all = recorded().unwrap();
    let many = |it: &&mut Measurement| it.setup.get("guests").is_some_and(|it| it == "16");
    // A sidecore that is as fast with one request of each turn as with 32 has no turn.
    all.iter_mut().find(many).unwrap().series[0].points[0].y = 1e9;
    let fault = own("own.json", &all).unwrap_err().to_string();
    assert!(fault.contains("contradict"), "{fault}");
}

#[test]
fn measurements_of_other_kinds_are_left_out() {
    let all = recorded().unwrap();
    for (name, value) in [
        ("idle", "adaptive"),
        ("driver", "sleeps"),
        ("volume", "memory"),
        ("sidecores", "2"),
        ("busy", "1"),
        ("path", "remote"),
        ("guests", "many"),
    ] {
        let mut it = all[0].clone();
        assert!(BenchRun::of(&it).is_some());
        it.setup.insert(name.to_owned(), value.to_owned());
        assert!(BenchRun::of(&it).is_none(), "{name}");
    }
    let mut it = all[0].clone();
    it.series[0].points[0].y = f64::NAN;
    assert!(BenchRun::of(&it).is_none());
}
