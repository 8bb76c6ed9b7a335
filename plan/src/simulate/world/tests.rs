//! The simulator against closed forms, and its rules. Times are simulated alone: no test measures.

use super::super::closed::{md1_mean, mm1_time, mmc_longer, mmc_mean};
use super::super::{DEATH, LARGE};
use super::*;

/// One host that serves its own guests, with nothing but its sidecores.
const BARE: &str = r#"
    title = "closed forms"
    milliseconds = 1000
    warm_up_ms = 100
    served = "host"
    hosts = { count = 1, guests = 8 }
    load = { arrivals = "poisson", requests_per_second = 50_000, bytes = 0 }
    pool = { sidecores = 1 }
    costs = { serve_ns = 1000, spreading = "exponential" }
"#;

fn with(text: &str, set: &[(&str, &str)]) -> SimulationReport {
    let set: Vec<_> = set.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    simulate(&Scenario::read("test", text, &set).unwrap()).unwrap()
}

fn expect_near(ours: u64, form_ns: f64, percent: f64) {
    let off = (ours as f64 / form_ns - 1.0) * 100.0;
    assert!(off.abs() < percent, "{ours} beside {form_ns}: {off:.2} % off");
}

#[test]
fn one_server_has_the_latencies_of_mm1() {
    // 8 guests x 50,000 are 0.4 in a microsecond; 0.8 is twice that.
    for (each, rate) in [("50_000", 0.4), ("100_000", 0.8)] {
        let report = with(BARE, &[("load.requests_per_second", each)]);
        expect_near(report.latency.mean_ns, mmc_mean(1, rate, 1.0).unwrap() * 1000.0, 3.0);
        expect_near(report.latency.p99_ns, mm1_time(rate, 1.0, 0.99).unwrap() * 1000.0, 4.0);
        expect_near(report.used[0].mean_ppm, rate * 1e6, 1.0);
    }
}

#[test]
fn several_servers_with_one_queue_have_the_latencies_of_erlang() {
    for (servers, each, rate) in [("2", "200_000", 1.6), ("4", "400_000", 3.2)] {
        let set = [("pool.sidecores", servers), ("load.requests_per_second", each)];
        let report = with(BARE, &set);
        let form = mmc_mean(servers.parse().unwrap(), rate, 1.0).unwrap();
        expect_near(report.latency.mean_ns, form * 1000.0, 3.0);
        // One of a hundred takes longer than the p99.
        let p99 = report.latency.p99_ns as f64 / 1000.0;
        let longer = mmc_longer(servers.parse().unwrap(), rate, 1.0, p99);
        assert!((longer * 100.0 - 1.0).abs() < 0.15, "{longer} take longer than {p99} us");
    }
}

/// Nothing else bounds a closed load, which may have more requests than its steps say.
#[test]
fn events_are_bounded() {
    let set = [("load.arrivals".to_owned(), "closed".to_owned())];
    let scenario = Scenario::read("test", BARE, &set).unwrap();
    let fault = simulated(&scenario, 1000).unwrap_err().to_string();
    assert!(fault.contains("more than 1000 events") && fault.contains("lower"), "{fault}");
}

#[test]
fn fixed_times_have_the_latencies_of_md1() {
    let set = [("costs.spreading", "fixed"), ("load.requests_per_second", "100_000")];
    let report = with(BARE, &set);
    expect_near(report.latency.mean_ns, md1_mean(0.8, 1.0).unwrap() * 1000.0, 3.0);
}

/// A closed load with more places than servers keeps all of them busy: its rate is theirs.
#[test]
fn a_closed_load_fills_the_stations() {
    let set = [
        ("load.arrivals", "closed"),
        ("load.depth", "4"),
        ("pool.sidecores", "2"),
        ("costs.spreading", "fixed"),
        ("milliseconds", "200"),
    ];
    let report = with(BARE, &set);
    // 100 ms of two sidecores after the warm-up, and 32 places of 1 us on two of them.
    expect_near(report.latency.requests, 200_000.0, 0.1);
    expect_near(report.latency.mean_ns, 16_000.0, 0.1);
    assert!(report.used[0].least_ppm > 999_000, "{:?}", report.used);
}

/// Every step of an empty rack takes its time, and none takes more.
#[test]
fn an_idle_pool_adds_up_the_steps() {
    let set = [
        ("death.at_ms", "0"),
        ("death.back_ms", "0"),
        ("death.detect_ms", "0"),
        ("load.requests_per_second", "10"),
        ("load.arrivals", "even"),
        ("load.writes", "1/1"),
        ("costs.spreading", "fixed"),
        ("costs.device_spreading", "fixed"),
        ("hosts.guests", "1"),
        ("hosts.count", "1"),
    ];
    let report = with(DEATH, &set);
    let (out_ns, in_ns) = (4224_u64 * 8, 128_u64 * 8);
    let wires =
        out_ns.div_ceil(40) + out_ns.div_ceil(100) + in_ns.div_ceil(40) + in_ns.div_ceil(100);
    let steps = 700 + 500 + 1200 + 600 + 80_000 + 3000 + 2 * 2000 + wires;
    assert_eq!((report.latency.mean_ns, report.sent_again), (steps, 0));
    // An event each for the arrival and for each of nine steps that take time.
    assert_eq!(report.events, 40 * 10);
}

#[test]
fn one_seed_has_one_outcome_and_another_has_another() {
    let text = |seed: &str, text: &str, rack: &str| {
        let report = with(text, &[("seed", seed), ("milliseconds", "40"), ("hosts.count", rack)]);
        serde_json::to_string(&report).unwrap()
    };
    let large = text("7", LARGE, "64");
    assert_eq!(large, text("7", LARGE, "64"));
    assert_ne!(large, text("8", LARGE, "64"));
}

/// Events of the large scenario, some 10 for each request: 65,536 guests for a hundredth of its
/// second.
#[test]
fn the_large_scenario_has_a_hundred_million_events_in_a_second() {
    let report = with(LARGE, &[("milliseconds", "10")]);
    assert_eq!((report.guests, report.hosts), (65_536, 4096));
    assert!((1_000_000..1_400_000).contains(&report.events), "{}", report.events);
    assert!((120_000..140_000).contains(&(report.latency.requests + report.unanswered)));
}

#[test]
fn a_dead_iohost_is_a_pause_and_loses_no_request() {
    let shape = [("load.requests_per_second", "500"), ("death.back_ms", "2500")];
    let run = |refuge: &str, spare: &str, iohosts: &str| {
        let set = [("death.refuge", refuge), ("pool.spare", spare), ("pool.iohosts", iohosts)];
        with(DEATH, &[&shape[..], &set].concat())
    };
    for (refuge, spare, iohosts, longest_ms) in
        [("spare", "1", "1", 1000), ("rest", "0", "2", 1000), ("wait", "0", "1", 1500)]
    {
        let report = run(refuge, spare, iohosts);
        let [before, until_known, after] = report.around_death.unwrap();
        let limits = longest_ms * 990_000..longest_ms * 1_100_000;
        assert!(limits.contains(&until_known.max_ns), "{refuge}: {until_known:?}");
        assert!(before.p99_ns < 1_000_000, "{refuge}: {before:?}");
        let known = if refuge == "wait" { 400_000_000 } else { 0 };
        assert!(after.max_ns > known, "{refuge}: {after:?}");
        assert!(report.sent_again > 100, "{refuge}");
        // Requests of the last moment are under way.
        assert!(report.unanswered < 20, "{refuge}: {}", report.unanswered);
    }
}

#[test]
fn steering_orders_the_tails() {
    let set = |steering| {
        [
            ("served", "host"),
            ("pool.sidecores", "4"),
            ("pool.steering", steering),
            ("load.requests_per_second", "350_000"),
        ]
    };
    let tails = ["shared", "two", "random"].map(|it| with(BARE, &set(it)).latency.p99_ns);
    assert!(tails[0] < tails[1] && tails[1] < tails[2], "{tails:?}");
}

/// Copies of writes make the second IOhost work, and reads stay as they are.
#[test]
fn copies_of_writes_are_waited_for() {
    let base = [
        ("death.at_ms", "4000"),
        ("death.back_ms", "4000"),
        ("death.detect_ms", "0"),
        ("pool.iohosts", "2"),
        ("load.requests_per_second", "200"),
        ("pool.spare", "1"),
    ];
    let p99 = |writes: &'static str, replicas: &'static str| {
        let set = [("load.writes", writes), ("pool.replicas", replicas)];
        with(DEATH, &[&base[..], &set].concat()).latency.mean_ns
    };
    assert_eq!(p99("0", "1"), p99("0", "2"));
    // The later of two exponential times is half as long again.
    expect_near(p99("1", "2") - p99("1", "1"), 45_000.0, 15.0);
}

#[test]
fn bursts_at_once_have_the_longer_tail() {
    let set = |correlation: &'static str| {
        [
            ("load.arrivals", "bursts"),
            ("load.busy", "1/4"),
            ("load.correlation", correlation),
            ("load.burst_ms", "2"),
            ("hosts.guests", "64"),
            ("hosts.count", "1"),
            ("load.requests_per_second", "6000"),
        ]
    };
    let runs = ["0", "1"].map(|it| with(BARE, &set(it)));
    // The same load, at other times.
    expect_near(runs[0].used[0].mean_ppm, 384_000.0, 8.0);
    expect_near(runs[1].used[0].mean_ppm, 384_000.0, 15.0);
    assert!(runs[1].latency.p99_ns > 20 * runs[0].latency.p99_ns, "{runs:?}");
}

#[test]
fn a_load_beyond_the_stations_is_told() {
    let report = with(BARE, &[("load.requests_per_second", "250_000"), ("milliseconds", "200")]);
    // Two in a microsecond for one sidecore of one: half of all have no answer.
    expect_near(report.unanswered, 200_000.0, 2.0);
}

/// A simulation that ends early has missed the p99, and a p99 that holds is the same to the end.
#[test]
fn too_many_late_requests_end_a_simulation() {
    let set = [("milliseconds".to_owned(), "150".to_owned())];
    let scenario = Scenario::read("test", BARE, &set).unwrap();
    let full = |wanted_ns| simulate_tail(&scenario, wanted_ns, None).unwrap().unwrap();
    let p99_ns = full(u64::MAX).p99_ns.unwrap();
    for wanted_ns in [1, p99_ns / 2, p99_ns * 99 / 100, p99_ns, p99_ns * 2] {
        let tail = full(wanted_ns);
        let early = simulate_tail(&scenario, wanted_ns, tail.given).unwrap();
        // Requests of the warm-up are given and never late: a near p99 is known at the end.
        assert_eq!(early.is_none(), wanted_ns < p99_ns * 9 / 10, "{wanted_ns} of {p99_ns}");
        assert!(early.is_none_or(|early| early == tail), "{tail:?}");
    }
}

#[test]
fn hostile_scenarios_are_named_faults() {
    for (key, value, words) in [
        ("hosts.count", "0", "hosts.count"),
        ("hosts.count", "-1", "hosts.count"),
        ("hosts.count", "9223372036854775807", "hosts.count"),
        ("hosts.guests", "4194304", "hosts.count x hosts.guests"),
        ("milliseconds", "0", "milliseconds"),
        ("load.writes", "nan", "share"),
        ("load.writes", "3/2", "load.writes"),
        ("load.busy", "0", "load.busy"),
        ("load.arrivals", "trace", "load.trace and load.form"),
        ("load.speed", "0", "load.speed"),
        ("load.requests_per_second", "100000000", "lower one of them"),
        ("death.at_ms.x.y", "1", "more than 3 keys"),
        ("pool.sidecores", "0", "pool.sidecores"),
        ("pool.replicas", "2", "pool.replicas"),
        ("pool.iohosts", "4194304", "sidecores, cards and drives"),
        ("costs.serve_ns", "0", "costs.serve_ns"),
        ("costs.spreading", "wild", "wild"),
        ("death.iohost", "2", "death.iohost"),
        ("death.back_ms", "1", "death.back_ms"),
        ("death.refuge", "rest", "pool.iohosts = 2"),
        ("title.x", "1", "title"),
        ("hosts.unknown", "1", "unknown"),
        ("seed", "1\nseed = 2", "seed"),
    ] {
        let set = [(key.to_owned(), value.to_owned())];
        let fault = Scenario::read("test", DEATH, &set).unwrap_err().to_string();
        assert!(fault.contains(words), "{key} = {value}: {fault}");
    }
}
