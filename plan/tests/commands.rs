//! The commands of `vrio plan` as a user gives them, and their faults for inputs without an answer.

use std::path::PathBuf;

use clap::Parser;
use plan::command::PlanCommand;

#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: PlanCommand,
}

/// The text or the fault of a command.
fn run(arguments: &[&str]) -> Result<String, String> {
    let cli = Cli::try_parse_from([&["plan"], arguments].concat());
    cli.map_err(|fault| fault.to_string())?.command.run().map_err(|fault| fault.to_string())
}

/// A file with this text.
fn file(name: &str, text: &str) -> String {
    let path: PathBuf = std::env::temp_dir().join(format!("plan-{}-{name}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// The example of a rack, with one text in place of another.
fn rack(name: &str, old: &str, new: &str) -> String {
    let text = run(&["example", "rack"]).unwrap();
    assert!(text.contains(old), "the rack has no {old}");
    file(name, &text.replacen(old, new, 1))
}

/// A host, or two with an IOhost, with nothing but sidecores.
const BARE: &str = r#"
title = "bare"
milliseconds = 50
served = "host"
hosts = { count = 2, guests = 4 }
load = { arrivals = "poisson", requests_per_second = 20_000, bytes = 0 }
pool = { sidecores = 8 }
costs = { serve_ns = 1000 }
"#;

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_search_without_watts_compares_parts_alone() {
    let part = "[part.x]\nkind = \"nic\"\nprice_usd = 1800\nsize = 400\n[hosts]";
    let text = run(&["example", "rack"]).unwrap();
    let text = text.replacen("[hosts]", part, 1);
    let text = text.replace("iohost_nic = \"nic-200g-dp\"", "iohost_nic = \"x\"");
    let known = run(&["cost", &rack("known.toml", "16", "16"), "--search"]).unwrap();
    assert!(known.contains("parts and power"), "{known}");
    let path = file("unknown.toml", &text);
    let unknown = run(&["cost", &path, "--search"]).unwrap();
    assert!(unknown.contains("parts alone") && unknown.contains("Power is left out"), "{unknown}");
    // The pool without its power beside hosts with theirs would save more than half.
    let cells = json(&run(&["cost", &path, "--search", "--json"]).unwrap());
    let changes =
        cells["cells"].as_array().unwrap().iter().filter_map(|cell| cell["change"].as_i64());
    assert!(changes.min().unwrap() > -4000, "{unknown}");
}

#[test]
fn all_racks_that_pay_are_named() {
    let text = run(&["cost", "r930-6", "--search"]).unwrap();
    assert!(text.contains("Racks that pay, in servers:"), "{text}");
    assert!(text.contains("  100 %: none"), "{text}");
}

#[test]
fn power_counts_for_whether_a_plan_pays() {
    let text = run(&["cost", &rack("power.toml", "= 0.20", "= 0.125")]).unwrap();
    assert!(text.contains("its parts and power cost more than"), "{text}");
}

#[test]
fn a_size_of_too_few_requests_is_refused() {
    let path = file("few.toml", BARE);
    for set in ["load.requests_per_second=1", "load.idle_hosts=1"] {
        let fault = run(&["size", &path, "--p99", "1ms", "--set", set]).unwrap_err();
        assert!(fault.contains("milliseconds") && fault.contains("1000 requests"), "{fault}");
    }
}

#[test]
fn requests_without_an_answer_are_over_the_p99() {
    // A step of a second is never done within 50 ms, so no number of sidecores is enough.
    let path = file("over.toml", BARE);
    let set = ["--set", "costs.serve_ns=1000000000", "--json"];
    let rows = json(&run(&[&["size", &path, "--p99", "1ms"], &set[..]].concat()).unwrap());
    assert!(
        rows["rows"][0]["hosts_sidecores"].is_null() && rows["rows"][0]["pool"].is_null(),
        "{rows}"
    );
}

#[test]
fn a_share_counts_the_sidecores_of_vmhosts() {
    let path = file("vmhosts.toml", BARE);
    let share = |sidecores: &str| {
        let set = format!("hosts.sidecores={sidecores}");
        let rows = run(&["size", &path, "--p99", "1ms", "--set", &set, "--json"]).unwrap();
        json(&rows)["rows"][0]["share_ppm"].as_u64().unwrap()
    };
    // Both hosts have one sidecore each, and the IOhost has one for both of them.
    assert_eq!((share("0"), share("1")), (500_000, 1_500_000));
}

#[test]
fn both_sides_have_the_same_drives() {
    let path = file("drives.toml", BARE);
    // The IOhost's two lanes are one for each host, which 80,000 requests of 12 us fill to 96 %.
    let set = ["pool.device_lanes=2", "costs.device_ns=12000", "served=pool"];
    let set: Vec<&str> = set.iter().flat_map(|set| ["--set", *set]).collect();
    let rows = run(&[&["size", &path, "--p99", "90us", "--json"], &set[..]].concat()).unwrap();
    // One lane of a host is nearly full, and two that are shared are not as slow.
    let rows = json(&rows);
    assert!(rows["rows"][0]["hosts_sidecores"].is_null(), "{rows}");
    assert!(rows["rows"][0]["pool"]["sidecores"].is_u64(), "{rows}");
}

#[test]
fn many_iohosts_with_few_lanes_each_hide_no_pool() {
    // Sixteen lanes of one IOhost are 20 % busy. Spread over IOhosts of two sidecores, each of the
    // eight guests would have two lanes at most.
    let path = file("lanes.toml", BARE);
    let set = ["served=pool", "pool.sidecores=2", "pool.device_lanes=16"];
    let drives = ["costs.device_ns=40000", "costs.device_spreading=exponential"];
    let set: Vec<&str> = set.iter().chain(&drives).flat_map(|set| ["--set", *set]).collect();
    let p99 = ["size", &path, "--p99", "200us"];
    let rows = json(&run(&[&p99[..], &set, &["--json"]].concat()).unwrap());
    let pool = &rows["rows"][0]["pool"];
    assert_eq!((&pool["iohosts"], &pool["sidecores"]), (&1.into(), &1.into()), "{rows}");
    let simulated = [&["simulate", &path, "--json"], &set[..]].concat();
    let own = json(&run(&[&simulated[..], &["--set", "pool.sidecores=1"]].concat()).unwrap());
    assert_eq!(own["latency"]["p99_ns"], pool["p99_ns"], "{own}");
}

#[test]
fn correlations_are_tried_for_bursts_alone() {
    let path = file("even.toml", BARE);
    let rows = json(&run(&["size", &path, "--p99", "1ms", "--json"]).unwrap());
    assert_eq!(rows["rows"].as_array().unwrap().len(), 1, "{rows}");
    let text = run(&["size", &path, "--p99", "1.5ms"]).unwrap();
    assert!(text.contains("no bursts") && text.contains("1.50 ms"), "{text}");
}

#[test]
fn the_outage_of_a_closed_load_is_told() {
    let death = "\n[death]\nat_ms = 10\ndetect_ms = 5\nrefuge = \"wait\"\n";
    let text = BARE.replace("\"poisson\"", "\"closed\"").replace("\"host\"", "\"pool\"") + death;
    let path = file("outage.toml", &text);
    let text = run(&["simulate", &path]).unwrap();
    assert!(text.contains("8 requests had no answer at the end; the oldest had waited"), "{text}");
    let report = json(&run(&["simulate", &path, "--json"]).unwrap());
    assert!(report["oldest_ns"].as_u64().unwrap() > 39_000_000, "{report}");
    // Nothing begins after the IOhost is known to be dead.
    let after = &report["around_death"][2];
    assert!(after["requests"] == 0 && after["p99_ns"].is_null(), "{report}");
    let row = text.lines().find(|line| line.starts_with("after that")).unwrap();
    assert!(row.ends_with('-'), "{row}");
}

#[test]
fn idle_hosts_are_those_of_each_rack() {
    const ONE: &str = "pool.sidecores=1";
    let path = file("idle.toml", BARE);
    let set = ["served=pool", "hosts.count=4", "hosts.in_rack=2", "load.idle_hosts=1/2", ONE];
    let set: Vec<&str> = set.iter().flat_map(|set| ["--set", *set]).collect();
    let report = json(&run(&[&["simulate", &path, "--json"], &set[..]].concat()).unwrap());
    let used = report["used"].as_array().unwrap();
    let of = used.iter().find(|used| used["stations"] == "IOhosts' sidecores").unwrap();
    // With one busy host in each rack the sidecore of each IOhost is used.
    assert!(of["least_ppm"].as_u64().unwrap() > 0, "{of}");
}

#[test]
fn scenarios_without_an_end_are_refused() {
    const R: &str = "load.requests_per_second=1";
    let path = file("endless.toml", BARE);
    for (set, words) in [
        (&["load.busy=0.000001", "load.requests_per_second=100000000"][..], "load.busy"),
        (&["load.busy=0.000001", "hosts.guests=100000", "milliseconds=300000", R], "spans"),
    ] {
        let set = [&["load.arrivals=bursts", "load.burst_ms=1"], set].concat();
        let set: Vec<&str> = set.into_iter().flat_map(|set| ["--set", set]).collect();
        let fault = run(&[&["simulate", &path], &set[..]].concat()).unwrap_err();
        assert!(fault.contains(words), "{fault}");
    }
    let set = ["--set", "load.requests_per_second=100000000", "--set", "milliseconds=300000"];
    let fault = run(&[&["simulate", &path], &set[..]].concat()).unwrap_err();
    assert!(fault.contains("hosts.guests x load.requests_per_second"), "{fault}");
    assert!(fault.contains("lower one of them"), "{fault}");
}

#[test]
fn names_fit_into_tables() {
    let long = "n".repeat(70_000);
    for (old, new, at) in [
        ("name = \"pooled\"", format!("name = \"{long}\""), "plan[1].name"),
        ("name = \"pooled\"", "name = \"a\\u001b[31mb\"".to_owned(), "plan[1].name"),
        ("title = \"A rack of", format!("title = \"{long}"), "title"),
        ("[part.nic-mine]", format!("[part.{long}]"), "[part]"),
        ("base = \"server-2u\"", "base = \"\\u001b[31m\"".to_owned(), "hosts.base"),
    ] {
        let fault = run(&["cost", &rack("names.toml", old, &new)]).unwrap_err();
        assert!(fault.starts_with(at) || fault.contains(at), "{at}");
        assert!(fault.len() < 300 && !fault.contains('\u{1b}'), "{at}");
    }
    let path = file("title.toml", &BARE.replace("\"bare\"", &format!("\"{long}\"")));
    assert!(run(&["simulate", &path]).unwrap_err().contains("64 characters"));
}

#[test]
fn paths_of_keys_are_short() {
    let path = file("dots.toml", BARE);
    let set = format!("a{}=1", ".a".repeat(100));
    let fault = run(&["simulate", &path, "--set", &set]).unwrap_err();
    assert!(fault.contains("more than 3 keys"), "{fault}");
}

#[test]
fn a_volume_may_have_a_number_as_its_name() {
    let lines: String = (0..2000).map(|at| format!("{},R,0,4096,{}\n", at % 2, at * 20)).collect();
    let trace = file("trace.csv", &lines);
    let path = file("volume.toml", BARE);
    let trace = format!("load.trace={trace}");
    let set = ["load.arrivals=trace", &trace, "load.form=alibaba", "load.volume=0"];
    let set: Vec<&str> = set.iter().flat_map(|set| ["--set", *set]).collect();
    let vary = ["--vary", "pool.sidecores=1,2,4"];
    let text = run(&[&["simulate", &path], &set[..], &vary].concat()).unwrap();
    assert!(text.contains("pool.sidecores"), "{text}");
}

#[test]
fn sizes_beyond_the_stations_are_refused() {
    let path = file("stations.toml", BARE);
    let set = ["--set", "hosts.count=200000", "--set", "hosts.guests=1"];
    let fault = run(&[&["size", &path, "--p99", "1ms"], &set[..]].concat()).unwrap_err();
    assert!(fault.contains("sidecores, cards and drives"), "{fault}");
}

#[test]
fn the_dearest_steps_are_counted() {
    let path = file("dear.toml", BARE);
    let set = [
        "costs.serve_ns=1000000000",
        "costs.serve_ns_per_kib=1000000000",
        "load.bytes=67108864",
        "load.requests_per_second=2000000",
        "costs.spreading=exponential",
        "pool.sidecores=1",
    ];
    let set: Vec<&str> = set.iter().flat_map(|set| ["--set", *set]).collect();
    assert!(run(&[&["simulate", &path], &set[..]].concat()).unwrap().contains("no answer"));
}

#[test]
fn examples_have_the_same_names_everywhere() {
    for name in ["rack", "r930-3", "r930-6"] {
        assert!(run(&["example", name]).is_ok() && run(&["cost", name]).is_ok(), "{name}");
    }
    for name in ["scenario", "death"] {
        assert!(run(&["simulate", name, "--set", "milliseconds=1001"]).is_ok(), "{name}");
    }
    for time in ["1.5", "1.5.5ms", ".5ms", "5.ms", "1e3ms", "99999999999999999999s"] {
        assert!(run(&["size", "scenario", "--p99", time]).unwrap_err().contains(time), "{time}");
    }
}

/// A result of `vrio bench mpi`, as the store has it.
fn result(benchmark: &str, hosts: &str, unit: &str, y: [f64; 2]) -> String {
    let quantity = if unit == "us" { "latency" } else { "bandwidth" };
    let points = serde_json::json!([{ "x": 8, "y": y[0] }, { "x": 1024, "y": y[1] }]);
    let text = serde_json::json!({
        "schema": 1, "origin": "measured", "benchmark": benchmark, "title": "t",
        "setup": { "contestant": "vrio", "hosts": hosts },
        "series": [{
            "name": "s", "quantity": quantity, "unit": unit, "points": points,
            "x": { "quantity": "message_size", "unit": "bytes" }
        }]
    });
    text.to_string()
}

#[test]
fn an_application_runs_on_published_and_own_platforms() {
    let text = run(&["application", "profile"]).unwrap();
    for words in [
        "ec2-c3-sriov",
        "Recorded on it: 121.00 s",
        "recursive doubling",
        "1.15 and 1.28",
        "to 21.9 %",
        // As docs/planning.md has both.
        "112.86 s  108.13 s to 114.39 s",
        "275.90 s  268.99 s to 386.15 s",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let two = file("two.json", &result("mpi_latency", "two hosts", "us", [20.0, 25.0]));
    let rate = file("rate.json", &result("mpi_bandwidth", "two hosts", "mb_per_s", [1.0, 100.0]));
    let one = file("one.json", &result("mpi_latency", "one host", "us", [0.5, 1.0]));
    let files = format!("{two},{rate},{one}");
    let all = ["application", "profile", "--platform", "ib-native", "--platform"];
    let predicted = json(&run(&[&all[..], &[&files, "--json"]].concat()).unwrap());
    let slowdowns = serde_json::json!([1_150_000, 1_280_000]);
    assert_eq!(predicted["held_out"]["slowdowns_ppm"], slowdowns);
    let platforms = predicted["platforms"].as_array().unwrap();
    assert_eq!((platforms.len(), &platforms[1]["title"]), (2, &"vrio".into()));
    assert!(platforms[1]["beside_first_ppm"].as_u64().unwrap() > 1_000_000, "{predicted}");
    let alone = run(&["application", "profile", "--platform", &one]).unwrap_err();
    assert!(alone.contains("no times of messages between hosts"), "{alone}");
    let folder = std::env::temp_dir().join(format!("plan-run-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(&two, folder.join("mpi_latency.json")).unwrap();
    std::fs::write(folder.join("run.json"), "{}").unwrap();
    // A pipe without a writer is not waited for.
    let pipe = folder.join("pipe.json");
    let _ = std::fs::remove_file(&pipe);
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let folder = folder.display().to_string();
    assert!(run(&["application", "profile", "--platform", &folder]).is_ok());
}

#[test]
fn platforms_and_profiles_without_use_are_named() {
    let fault = run(&["application", "profile", "--platform", "ib"]).unwrap_err();
    assert!(fault.contains("no platform 'ib'") && fault.contains("ec2-cc2"), "{fault}");
    let fault = run(&["application", "no-such-file.toml"]).unwrap_err();
    assert!(fault.contains("no-such-file.toml"), "{fault}");
    let rack = run(&["example", "rack"]).unwrap();
    let fault = run(&["application", &file("rack-as.toml", &rack)]).unwrap_err();
    assert!(fault.contains("vrio plan example profile"), "{fault}");
    let path = file("platform-as.toml", &rack);
    let fault = run(&["application", "profile", "--platform", &path]).unwrap_err();
    assert!(fault.contains("vrio plan example ec2-cc2"), "{fault}");
    let path = file("not-a-result.json", "{}");
    let fault = run(&["application", "profile", "--platform", &path]).unwrap_err();
    assert!(fault.contains("JSON of `vrio bench`"), "{fault}");
    for (name, word) in [("pmpi", "MPI_Finalize"), ("profile", "ranks_per_host")] {
        assert!(run(&["example", name]).unwrap().contains(word));
    }
    let example = file("cc2.toml", &run(&["example", "ec2-cc2"]).unwrap());
    assert!(run(&["application", "profile", "--platform", &example]).is_ok());
}

#[test]
fn costs_of_a_machine_are_those_of_the_scenario() {
    let path = file("costs.toml", BARE);
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../report/tests/data/vrio-block.json");
    let text = run(&["simulate", &path, "--costs", own]).unwrap();
    let words = "Measured: costs.serve_ns = 1249 (vmhost, local, depth 1); costs.complete_ns = 0";
    assert!(text.starts_with(words), "{text}");
    let mean = |set: &[&str]| {
        let report = json(&run(&[&["simulate", &path, "--json"], set].concat()).unwrap());
        report["latency"]["mean_ns"].as_u64().unwrap()
    };
    assert_eq!(mean(&["--costs", own]), mean(&["--set", "costs.serve_ns=1249"]));
    let later = mean(&["--costs", own, "--set", "costs.serve_ns=1000"]);
    assert_eq!(later, mean(&[]), "--set comes after --costs");
    let varied = run(&["simulate", &path, "--costs", own, "--vary", "pool.sidecores=4,8"]).unwrap();
    assert!(varied.starts_with("Measured: "), "{varied}");
    let sized = run(&["size", &path, "--p99", "1ms", "--costs", own]).unwrap();
    assert!(sized.starts_with("Measured: "), "{sized}");
    // As docs/planning.md has it.
    let remote =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../report/tests/data/vrio-block-remote.json");
    let text = run(&["simulate", &path, "--costs", remote]).unwrap();
    assert!(text.contains("costs.vmhost_ns = 3495 (vmhost, remote, depth 8)"), "{text}");
    assert!(text.contains("costs.serve_ns = 3707 (iohost, remote, depth 8)"), "{text}");
    let fault = run(&["simulate", &path, "--costs", &path]).unwrap_err();
    assert!(fault.contains("vrio bench"), "{fault}");
}

#[test]
fn a_real_result_of_bench_mpi_has_a_platform_for_each_way() {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../report/tests/data/vrio-mpi.json");
    let near =
        run(&["example", "profile"]).unwrap().replace("ranks_per_host = 16", "ranks_per_host = 96");
    let path = file("near.toml", &near);
    let predicted = json(&run(&["application", &path, "--platform", own, "--json"]).unwrap());
    let platforms = predicted["platforms"].as_array().unwrap().iter();
    let names: Vec<&str> = platforms.map(|it| it["platform"].as_str().unwrap()).collect();
    assert!(names.contains(&"vrio, Open MPI, 4.1.4") && names.len() == 4, "{names:?}");
}

#[test]
fn a_death_is_turned_off() {
    let late = ["simulate", "death", "--set", "milliseconds=500"];
    let fault = run(&late).unwrap_err();
    assert!(fault.starts_with("death.at_ms") && fault.contains("--set death=none"), "{fault}");
    let text = run(&[&late[..], &["--set", "death=none"]].concat()).unwrap();
    assert!(text.contains("in all") && !text.contains("before the death"), "{text}");
}

#[test]
fn the_need_that_decides_is_told_where_shares_have_one_price() {
    let all = rack("alike.toml", "16", "16");
    let text = run(&["cost", &all, "--search"]).unwrap();
    assert!(text.contains("slots for drives (ssds, hosts.ssd_slots): "), "{text}");
    let wide = rack("wide.toml", "ssd_slots = 8", "ssd_slots = 64");
    let text = run(&["cost", &wide, "--search"]).unwrap();
    assert!(!text.contains("slots for drives"), "{text}");
    let cells = json(&run(&["cost", &all, "--search", "--json"]).unwrap());
    let cells = cells["cells"].as_array().unwrap();
    assert!(cells.iter().any(|cell| cell["decided_by"] == "drives"), "{cells:?}");
}

#[test]
fn a_dash_says_what_was_tried() {
    let path = file("dash.toml", BARE);
    let set = ["served=pool", "costs.guest_ns=200000", "pool.sidecores=2"];
    let set: Vec<&str> = set.iter().flat_map(|set| ["--set", *set]).collect();
    let text = run(&[&["size", &path, "--p99", "100us"], &set[..]].concat()).unwrap();
    // Eight guests have eight IOhosts at most.
    assert!(text.contains("1 to 8 IOhosts of 2 sidecores"), "{text}");
    assert!(text.contains("256 sidecores of a host"), "{text}");
}

/// The samples of the tests of `vrio report` are what the planner prints: a plan that has changed
/// is seen there, and its pictures are looked at.
#[test]
fn the_reports_samples_are_what_is_printed() {
    let size = ["size", "scenario", "--p99", "500us", "--set", "load.arrivals=bursts"];
    let vary = ["simulate", "scenario", "--vary", "pool.sidecores=3,4,6,8"];
    let short = ["--set", "milliseconds=60", "--set", "warm_up_ms=20"];
    for (name, arguments) in [
        ("cost", ["cost", "rack"].to_vec()),
        ("search", ["cost", "r930-6", "--search"].to_vec()),
        ("size", [&size[..], &short].concat()),
        ("simulate", [&vary[..], &short].concat()),
        ("application", ["application", "profile"].to_vec()),
        ("published", ["published"].to_vec()),
    ] {
        let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../report/tests/data");
        let kept = std::fs::read_to_string(format!("{data}/vrio-plan-{name}.json")).unwrap();
        let printed = run(&[&arguments[..], &["--json"]].concat()).unwrap();
        assert!(json(&printed)["results"] == json(&kept)["results"], "{name} has changed");
    }
}

#[test]
fn a_varied_key_is_named_in_json() {
    let path = file("varied.toml", BARE);
    let varied = ["simulate", &path, "--vary", "pool.sidecores=1,2", "--json"];
    let printed = run(&varied).unwrap();
    let of = json(&printed);
    assert_eq!((&of["key"], &of["runs"][1]["value"]), (&"pool.sidecores".into(), &"2".into()));
    // Two hosts with two sidecores each.
    assert_eq!(of["runs"][1]["sidecores"], 4);
    assert!(of["runs"][0]["latency"]["p99_ns"].is_u64(), "{of}");
    assert_eq!(printed, run(&varied).unwrap(), "the same bytes each time");
}

#[test]
fn exchanges_on_switches_are_scenarios() {
    let example = file("switch.toml", &run(&["example", "switch"]).unwrap());
    let text = run(&["simulate", &example]).unwrap();
    assert_eq!(text, run(&["simulate", "switch"]).unwrap());
    // As docs/planning.md has it.
    for words in [
        "time                             641.9 us",
        "time of the cards alone          330.3 us",
        "share of the full bisection        26.1 %",
        "up-links        32  78.4 %  78.4 %  78.4 %        336 KiB",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let vary = ["--vary", "switch.routing=destination,flow,packet,shortest"];
    let set = ["--set", "switch.uplinks=16"];
    let text = run(&[&["simulate", &example], &vary[..], &set].concat()).unwrap();
    for words in [
        "destination     449.0 us  73.5 %  73.55 Gbit/s     37.3 %  7.42 us  7.42 us    56.0 %",
        "flow            762.1 us  43.3 %  43.33 Gbit/s     22.0 %  10.7 us  23.5 us    44.7 %",
        "packet          541.4 us  60.9 %",
        "shortest        460.3 us  71.7 %",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let reports = [&["simulate", &example, "--json"], &vary[..], &set].concat();
    let reports = json(&run(&reports).unwrap());
    assert_eq!(reports["key"], "switch.routing");
    let runs = reports["runs"].as_array().unwrap();
    let times = runs.iter().map(|it| it["time_ns"].as_u64().unwrap());
    let times: Vec<u64> = times.map(|time_ns| time_ns / 100).collect();
    assert_eq!(times, [4490, 7621, 5414, 4603]);
    let report = json(&run(&["simulate", &example, "--json"]).unwrap());
    assert_eq!((&report["pattern"], &report["hosts"]), (&"all-to-all".into(), &64.into()));
}

#[test]
fn exchanges_without_use_are_named() {
    let fault = run(&["simulate", "switch", "--costs", "own.json"]).unwrap_err();
    assert!(fault.starts_with("--costs: an exchange on switches"), "{fault}");
    let fault = run(&["size", "switch", "--p99", "1ms"]).unwrap_err();
    assert!(fault.contains("vrio plan example scenario"), "{fault}");
    // The last value is checked before the first one is simulated.
    let fault = run(&["simulate", "switch", "--vary", "switch.uplinks=8,0"]).unwrap_err();
    assert!(fault.starts_with("switch.uplinks: 0 is out of range"), "{fault}");
    let path = file("half.toml", "[switch]\nhosts = ");
    assert!(run(&["simulate", &path]).unwrap_err().contains("half.toml"));
    let path = file("deep.toml", &BARE.replace("hosts =", "switch = 1\nhosts ="));
    assert!(run(&["simulate", &path]).unwrap_err().contains("vrio plan example switch"));
}

/// A scenario with turns takes the costs of turns from several measurements; `own` predicts the
/// measurements that gave none.
#[test]
fn measurements_of_our_own_bench_are_predicted() {
    let all = include_str!("../data/own-bench.json");
    let path = file("own.json", all);
    let own = run(&["own"]).unwrap();
    assert_eq!(run(&["own", &path]).unwrap(), own);
    assert!(own.contains("held out") && own.contains("NOT COMPARED"), "{own}");
    let figures = json(&run(&["own", "--json"]).unwrap());
    assert_eq!(figures["costs"].as_array().unwrap().len(), 2, "{figures}");
    let text = run(&["simulate", "bench", "--costs", &path]).unwrap();
    assert!(text.contains("Measured: ") && text.contains("turns.serve_ns = "), "{text}");
    // Without turns the processor time of a request counts, which these measurements do not have.
    let fault = run(&["simulate", "scenario", "--costs", &path]).unwrap_err();
    assert!(fault.contains("no processor time"), "{fault}");
    let fault = run(&["own", &file("one.json", "{}")]).unwrap_err();
    assert!(fault.contains("vrio bench"), "{fault}");
    assert!(run(&["example", "bench"]).unwrap().contains("[turns]"));
}

#[test]
fn turns_that_no_thread_can_have_are_refused() {
    for (key, value, word) in [
        ("turns.look_ns", "0", "turns.look_ns"),
        ("turns.drivers", "1025", "turns.drivers"),
        ("turns.pass_ns", "-1", "pass_ns"),
        ("turns.serve_ns", "9223372036854775807", "turns.serve_ns"),
        ("pool.sidecores", "2", "static"),
        ("hosts.count", "1000000", "drivers and sidecores with turns"),
        ("load.limit", "1000000001", "load.limit"),
        ("load.limit_burst_ms", "9223372036854775807", "load.limit_burst_ms"),
    ] {
        let fault = run(&["simulate", "bench", "--set", &format!("{key}={value}")]).unwrap_err();
        assert!(fault.contains(word), "{key}: {fault}");
    }
}
