//! Stations with turns against closed forms, and their steps to the nanosecond.

use super::super::super::DEATH;
use super::super::super::closed::exhaustive_polling_mean;
use super::super::super::{Scenario, SimulationReport, simulate};

/// A host with one thread that drives its guests' disks, and one sidecore that serves these disks.
const BENCH: &str = r#"
    title = "turns"
    milliseconds = 20
    warm_up_ms = 2
    served = "host"
    hosts = { count = 1, guests = 1 }
    load = { arrivals = "closed", depth = 1, bytes = 0 }
    pool = { sidecores = 1 }
    costs = { serve_ns = 100, guest_ns = 80 }
    turns = { drivers = 1, driver_ns = 60, serve_ns = 80, look_ns = 10, pass_ns = 60 }
"#;

fn with(text: &str, set: &[(&str, &str)]) -> SimulationReport {
    let set: Vec<_> = set.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    simulate(&Scenario::read("test", text, &set).unwrap()).unwrap()
}

fn expect_near(ours: u64, form: f64, percent: f64) {
    let off = (ours as f64 / form - 1.0) * 100.0;
    assert!(off.abs() < percent, "{ours} beside {form}: {off:.2} % off");
}

#[test]
fn one_request_at_a_time_takes_all_steps() {
    let report = with(BENCH, &[]);
    let steps = 2 * 60 + (80 + 100) + (60 + 80);
    assert_eq!(report.latency.mean_ns, steps);
    // Looks of 10 ns are no events; the ways there and back and the ends of both turns are, and
    // the ends of looks.
    assert_eq!(report.events / (report.latency.requests * 20 / 18), 6);
}

/// Two guests keep the sidecore busy while the driver has the other guest's turn.
#[test]
fn a_second_guest_is_served_while_the_first_is_driven() {
    let [one, two, many] =
        ["1", "2", "8"].map(|it| with(BENCH, &[("hosts.guests", it)]).latency.requests);
    assert_eq!(two / one, 2);
    // The sidecore is the slower station: a look, a turn and a request for each.
    expect_near(many, 18e6 / 190.0, 0.5);
}

/// With a slow driver all requests of one guest come at a time, and the sidecore takes 4 of them,
/// and then 8 at a time.
#[test]
fn a_burst_has_one_cost_of_its_own() {
    let mean_ns = |depth| {
        let set = [("load.depth", depth), ("turns.driver_ns", "100_000"), ("costs.guest_ns", "0")];
        with(BENCH, &[&set[..], &[("turns.look_ns", "1"), ("milliseconds", "50")]].concat())
            .latency
            .mean_ns
    };
    // All are answered when the driver looks the next time.
    assert_eq!(mean_ns("4"), 2 * 60 + (80 + 4 * 100) + 100_000);
    // The first four come first, so the driver's turns have four and eight by turns.
    assert!(mean_ns("12") > 150_000, "{}", mean_ns("12"));
}

/// A turn takes all that waits, so the station is a polling system with exhaustive service.
#[test]
fn queues_in_turn_have_the_latencies_of_a_polling_system() {
    for (each, rate, look_ns) in [("20_000", 0.32, 100.0), ("40_000", 0.64, 20.0)] {
        let look = format!("{look_ns}");
        let set = [
            ("load.arrivals", "poisson"),
            ("load.requests_per_second", each),
            ("hosts.guests", "16"),
            ("costs.serve_ns", "1000"),
            ("costs.guest_ns", "0"),
            ("turns.drivers", "0"),
            ("turns.serve_ns", "0"),
            ("turns.pass_ns", "0"),
            ("turns.look_ns", &look),
            ("milliseconds", "500"),
        ];
        let report = with(BENCH, &set);
        let form = exhaustive_polling_mean(16, rate / 16.0, 1000.0 / 1e3, look_ns / 1e3);
        // A burst's requests are done at its end, which is a little later than each one's own.
        expect_near(report.latency.mean_ns, form.unwrap() * 1000.0, 4.0);
        expect_near(report.used[0].mean_ppm, rate * 1e6, 1.0);
    }
}

#[test]
fn a_limit_lets_pass_its_rate_and_what_was_saved() {
    let set = [("load.limit", "100_000"), ("load.depth", "32"), ("load.limit_burst_ms", "2")];
    let report = with(BENCH, &set);
    // 18 ms, and the answers in them of which requests had begun before do not count.
    expect_near(report.latency.requests, 1_800.0 - 32.0, 0.2);
    expect_near(report.latency.mean_ns, 320_000.0, 0.2);
    // A slow load is let pass as it comes.
    let mut set = vec![("load.arrivals", "even"), ("load.requests_per_second", "50_000")];
    set.push(("load.limit", "100_000"));
    assert!(with(BENCH, &set).latency.max_ns < 1_000);
}

/// All requests at a dead IOhost's sidecores go elsewhere.
#[test]
fn a_death_loses_no_request_that_waits_for_its_turn() {
    let text = format!("{DEATH}\n[turns]\nlook_ns = 10\nserve_ns = 300\nvmhost_ns = 300\n");
    let set = [("pool.steering", "static"), ("load.requests_per_second", "500")];
    for detect_ms in ["1000", "0"] {
        let set = [&set[..], &[("death.detect_ms", detect_ms)]].concat();
        let report = with(&text, &set);
        assert!(report.sent_again > 0, "{report:?}");
        assert!(report.unanswered < 20, "{report:?}");
    }
}

/// A dead IOhost's sidecores do nothing of the work that waited for them.
#[test]
fn requests_of_a_dead_sidecore_go_elsewhere_at_once() {
    let text = format!("{DEATH}\n[turns]\nlook_ns = 10\n");
    let set = [
        ("pool.steering", "static"),
        ("load.requests_per_second", "100"),
        ("costs.serve_ns", "100_000_000"),
        ("costs.spreading", "fixed"),
        ("death.at_ms", "1001"),
        ("death.detect_ms", "10"),
        ("milliseconds", "1050"),
    ];
    // Some 3,200 requests, of which the sidecores have done fewer than 20 when they die.
    assert!(with(&text, &set).sent_again > 3_000);
}
