//! Tests on real output of the programs (`tests/data/README.md`).

use std::fs;

use proptest::prelude::*;
use results::{Point, Quantity, Series, Spread, Statistic, Unit};

use super::*;

/// The folder of the outputs.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

pub(super) fn text(name: &str) -> String {
    fs::read_to_string(folder().join(name)).unwrap()
}

/// Every output, and its expected result: the benchmark, and the first figure of its first series.
const OUTPUTS: [(&str, &str, Quantity, f64, f64); 35] = {
    use Quantity::{
        Bandwidth, BidirectionalBandwidth, Iops, Latency, MessageRate, TransactionRate,
    };
    [
        ("osu-7.4-latency.txt", "osu_latency", Latency, 1.0, 0.37),
        ("osu-7.4-latency-tails.txt", "osu_latency", Latency, 1.0, 0.37),
        ("osu-7.4-bw.txt", "osu_bw", Bandwidth, 1.0, 9.34e6),
        ("osu-7.4-bibw-validated.txt", "osu_bibw", BidirectionalBandwidth, 1.0, 14.35e6),
        ("osu-7.4-mbw_mr.txt", "osu_mbw_mr", Bandwidth, 1.0, 0.3e6),
        ("osu-7.4-allreduce-full.txt", "osu_allreduce", Latency, 4.0, 0.84),
        ("osu-7.4-alltoall.txt", "osu_alltoall", Latency, 1.0, 0.42),
        ("osu-7.4-barrier.txt", "osu_barrier", Latency, 0.0, 0.41),
        ("osu-7.4-iallreduce.txt", "osu_iallreduce", Latency, 4.0, 2.08),
        ("osu-5.3-latency.txt", "osu_latency", Latency, 0.0, 0.30),
        ("osu-5.3-bibw.txt", "osu_bibw", BidirectionalBandwidth, 1.0, 10.13e6),
        ("osu-5.3-mbw_mr.txt", "osu_mbw_mr", Bandwidth, 1.0, 23.33e6),
        ("osu-5.3-allreduce-full.txt", "osu_allreduce", Latency, 4.0, 0.18),
        ("fio-randread.json", "fio", Iops, 1.0, 0.0),
        ("fio-mixed.json", "fio", Iops, 8.0, 139_767.232767),
        ("iperf3-tcp.json", "iperf3", Bandwidth, 131_072.0, 0.0),
        ("iperf3-udp.json", "iperf3", Bandwidth, 32_768.0, 195_399_725.940_149_75 / 8.0),
        ("iperf3-bidir.json", "iperf3", Bandwidth, 131_072.0, 2_963_046_350.221_987 / 8.0),
        ("iperf3-reverse.json", "iperf3", Bandwidth, 131_072.0, 23_572_199_856.011_517 / 8.0),
        ("sockperf-pp.txt", "sockperf", Latency, 0.0, 5.227),
        ("sockperf-ul.txt", "sockperf", Latency, 0.0, 10.290),
        ("sockperf-tp.txt", "sockperf", MessageRate, 1400.0, 125_387.0),
        ("netperf-tcp_stream.txt", "netperf_tcp_stream", Bandwidth, 16_384.0, 6481.90e6 / 8.0),
        ("netperf-tcp_stream-cpu.txt", "netperf_tcp_stream", Bandwidth, 64.0, 218.64e6 / 8.0),
        ("netperf-tcp_maerts.txt", "netperf_tcp_maerts", Bandwidth, 16_384.0, 4889.38e6 / 8.0),
        ("netperf-udp_stream.txt", "netperf_udp_stream", Bandwidth, 1400.0, 476.29e6 / 8.0),
        ("netperf-interim.txt", "netperf_tcp_stream", Bandwidth, 16_384.0, 6466.11e6 / 8.0),
        ("netperf-omni.txt", "netperf_omni_send", Bandwidth, 1400.0, 5366.64e6 / 8.0),
        ("netperf-tcp_rr.txt", "netperf_tcp_rr", TransactionRate, 1.0, 30_603.88),
        ("netperf-udp_rr-cpu.txt", "netperf_udp_rr", TransactionRate, 64.0, 36_677.86),
        ("netperf-tcp_rr-local-cpu.txt", "netperf_tcp_rr", TransactionRate, 1.0, 75_811.23),
        (
            "netperf-tcp_stream-local-cpu.txt",
            "netperf_tcp_stream",
            Bandwidth,
            16_384.0,
            18_707.93e6 / 8.0,
        ),
        (
            "netperf-tcp_stream-remote-cpu.txt",
            "netperf_tcp_stream",
            Bandwidth,
            16_384.0,
            24_312.26e6 / 8.0,
        ),
        (
            "netperf-udp_stream-local-cpu.txt",
            "netperf_udp_stream",
            Bandwidth,
            1400.0,
            870.1e6 / 8.0,
        ),
        ("netperf-omni-keys.txt", "netperf_omni_send_recv", TransactionRate, 1.0, 36_719.50),
    ]
};

fn one(name: &str) -> Measurement {
    let mut all = import(name, &text(name)).unwrap();
    assert_eq!(all.len(), 1, "{name}");
    all.remove(0)
}

fn figure(it: &Measurement, quantity: Quantity, statistic: Option<Statistic>) -> &Point {
    let is_it = |it: &&Series| it.quantity == quantity && it.statistic == statistic;
    let found = it.series.iter().find(is_it);
    &found.unwrap_or_else(|| panic!("no {quantity:?} in {it:?}")).points[0]
}

#[test]
fn real_outputs_are_read() {
    for (name, benchmark, quantity, x, y) in OUTPUTS {
        let it = one(name);
        assert_eq!((it.benchmark.as_str(), it.origin), (benchmark, RunOrigin::Imported), "{name}");
        assert_eq!(it.source.as_deref(), Some(name));
        let (first, point) = (&it.series[0], &it.series[0].points[0]);
        assert_eq!((first.quantity, point.x), (quantity, x), "{name}");
        // For two outputs the test only expects some figure.
        let is_right = if y == 0.0 { point.y > 0.0 } else { (point.y / y - 1.0).abs() < 1e-9 };
        assert!(is_right, "{name}: {} and not {y}", point.y);
    }
}

#[test]
fn every_output_of_the_folder_is_read_or_refused_by_purpose() {
    for entry in fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let refused = ["README.md", "iperf3-refused.json"].contains(&name.as_str());
        assert_eq!(import(&name, &text(&name)).is_err(), refused, "{name}");
    }
}

#[test]
fn spreads_say_what_they_are() {
    let tails = one("osu-7.4-latency-tails.txt");
    assert_eq!(figure(&tails, Quantity::Latency, Some(Statistic::P99)).y, 0.51);
    assert_eq!(tails.setup["datatype"], "MPI_CHAR");
    let full = one("osu-5.3-allreduce-full.txt");
    assert_eq!(full.series.len(), 1);
    let point = &full.series[0].points[0];
    assert_eq!(
        (full.series[0].spread, point.low, point.high),
        (Spread::MinMax, Some(0.15), Some(0.21))
    );
    let fio = one("fio-mixed.json");
    let median = figure(&fio, Quantity::Latency, Some(Statistic::Median));
    assert_eq!((median.low, median.y, median.high), (Some(20.096), 21.888, Some(24.704)));
    assert_eq!((fio.setup["bs"].as_str(), fio.setup["rw"].as_str()), ("16k", "randrw"));
    let sockperf = one("sockperf-pp.txt");
    assert_eq!(sockperf.series[0].spread, Spread::Iqr);
    assert_eq!(sockperf.series[0].points[0].low, Some(5.102));
    assert_eq!(sockperf.setup["version"], "3.7-no.git");
}

#[test]
fn further_fields_are_read() {
    let rr = one("netperf-tcp_rr.txt");
    let round = figure(&rr, Quantity::RoundTrip, Some(Statistic::Mean));
    assert!((round.y - 1e6 / 30_603.88).abs() < 1e-9);
    let crr = one("netperf-tcp_crr.txt");
    assert!(crr.series.iter().all(|it| it.quantity != Quantity::RoundTrip), "{crr:?}");
    let csv = one("netperf-rr-csv.txt");
    assert_eq!(figure(&csv, Quantity::RoundTrip, Some(Statistic::P99)).y, 214.0);
    assert_eq!(figure(&csv, Quantity::TransactionRate, None).y, 33_187.320);
    let cpu = one("netperf-tcp_stream-cpu.txt");
    assert_eq!(figure(&cpu, Quantity::CpuPerByte, None).y, 74.564 * 1e3 / 1024.0);
    assert!(one("netperf-confidence.txt").notes[0].contains("Desired confidence was not achieved"));
    let options = &one("netperf-confidence.txt").setup["options"];
    assert_eq!(options, "+/-2.500% @ 95% conf.");
    for name in ["iperf3-tcp.json", "sockperf-ul.txt", "netperf-tcp_rr.txt"] {
        assert_eq!(one(name).setup["to"], "127.0.0.1", "{name}");
    }
    let lost = figure(&one("netperf-udp_stream.txt"), Quantity::LostShare, None).y;
    assert!((lost - (70_229.0 - 42_532.0) / 70_229.0).abs() < 1e-9);
    let udp = one("iperf3-udp.json");
    assert!((figure(&udp, Quantity::Jitter, None).y - 238.448_916).abs() < 1e-3);
    let both = one("iperf3-bidir.json");
    let sum = figure(&both, Quantity::BidirectionalBandwidth, Some(Statistic::Mean)).y;
    assert!((sum - (2_963_046_350.2 + 2_849_601_044.2) / 8.0).abs() < 1.0);
    assert_eq!(both.series.last().unwrap().x.unit, Unit::S);
}

/// With `-c` or `-C` alone netperf prints -1.00 for the side that was not measured.
#[test]
fn a_side_that_was_not_measured_has_no_figure() {
    let of = |name: &str, quantity: Quantity| {
        let it = one(name);
        let sides = it.series.iter().filter(|it| it.quantity == quantity);
        sides.map(|it| (it.name.clone(), it.points[0].y)).collect::<Vec<_>>()
    };
    let demand = |name: &str, us: f64| vec![(name.to_owned(), us * 1e3 / 1024.0)];
    let stream =
        |side: &str| of(&format!("netperf-tcp_stream-{side}-cpu.txt"), Quantity::CpuPerByte);
    assert_eq!(stream("local"), demand("local", 0.876));
    assert_eq!(stream("remote"), demand("remote", 0.674));
    let rr = of("netperf-tcp_rr-local-cpu.txt", Quantity::CpuPerRequest);
    assert_eq!(rr, [("local".to_owned(), 26.381)]);
    let udp = of("netperf-udp_stream-local-cpu.txt", Quantity::CpuPerByte);
    assert_eq!(udp, demand("local", 10.443));
    // A figure that every table has is never missing.
    let spoilt = text("netperf-tcp_stream-local-cpu.txt").replace("18707.93", "-1.00");
    assert!(said("n.txt", &spoilt).contains("line 7: expected 5 numbers"));
}

#[test]
fn a_burst_of_transactions_tells_no_round_trip() {
    let burst = text("netperf-tcp_rr.txt").replace("first burst 0", "first burst 16");
    let it = import("burst.txt", &burst).unwrap().remove(0);
    assert!(it.series.iter().all(|it| it.quantity != Quantity::RoundTrip), "{it:?}");
    assert_eq!(it.setup["options"], "first burst 16");
}

/// The percentiles and means of fio are of one kind of latency, and the set-up names the kind.
#[test]
fn the_latency_of_fio_is_one_kind() {
    let it = one("fio-mixed.json");
    assert!(it.setup["latency"].ends_with("(clat)"), "{:?}", it.setup);
    let report: serde_json::Value = serde_json::from_str(&text("fio-mixed.json")).unwrap();
    let read = &report["jobs"][0]["read"];
    let mean = figure(&it, Quantity::Latency, Some(Statistic::Mean)).y;
    assert_eq!(mean, read["clat_ns"]["mean"].as_f64().unwrap() / 1e3);
    let whole = text("fio-mixed.json").replace("\"clat_ns\"", "\"x_ns\"");
    let whole = whole.replace("\"lat_ns\"", "\"clat_ns\"").replace("\"x_ns\"", "\"lat_ns\"");
    let it = import("whole.json", &whole).unwrap().remove(0);
    assert!(it.setup["latency"].ends_with("(lat)"), "{:?}", it.setup);
    assert_eq!(figure(&it, Quantity::Latency, Some(Statistic::Median)).y, 21.888);
}

#[test]
fn reports_of_our_own_are_results_of_a_machine() {
    let loaded = import_files(
        &["vrio-block.json", "vrio-block-remote.json"].map(|name| folder().join(name)),
        Some("both"),
    );
    let Loaded { run, measurements } = loaded.unwrap();
    assert_eq!((run.title.as_str(), measurements.len()), ("both", 4));
    let machine = run.machine.unwrap();
    assert_eq!((machine.cores, machine.commit.as_deref()), (2, Some("030c984")));
    let [_, _, remote, parts] = &measurements[..] else { panic!("{measurements:?}") };
    assert_eq!((remote.origin, remote.setup["path"].as_str()), (RunOrigin::Measured, "remote"));
    assert_eq!(remote.cache_line_round_trips_ns, [430, 408]);
    assert_eq!(figure(remote, Quantity::Iops, None).x, 8.0);
    assert_eq!(figure(remote, Quantity::Latency, Some(Statistic::P99)).y, 3930.111);
    assert_eq!((parts.benchmark.as_str(), parts.setup["depth"].as_str()), ("block_parts", "8"));
    let labels = parts.series[0].points.iter().filter_map(|it| it.label.as_deref());
    let labels: Vec<_> = labels.collect();
    assert!(labels.contains(&"vmhost wakeups") && labels.iter().all(|it| !it.contains("bytes")));
    let net = import("net.json", &text("vrio-net-bounce.json")).unwrap();
    assert_eq!(figure(&net[0], Quantity::RoundTrip, Some(Statistic::Median)).x, 1.0);
}

#[test]
fn runs_at_several_depths_become_one_line() {
    let shallow = import("x.json", &text("vrio-block.json")).unwrap();
    let mut deep = shallow.clone();
    deep[0].series.iter_mut().flat_map(|it| &mut it.points).for_each(|point| point.x = 4.0);
    deep[1].setup.insert("depth".to_owned(), "4".to_owned());
    let all = [shallow, deep].concat();
    let merged = merge(all.clone());
    assert_eq!(merged.len(), 3, "and what each consists of stays apart");
    let places: Vec<_> = merged[0].series[0].points.iter().map(|it| it.x).collect();
    assert_eq!(places, [1.0, 4.0]);
    merged[0].check().unwrap();
    let from = |name: &str| {
        let mut it = one(name);
        it.setup.clear();
        Measurement { source: Some(name.to_owned()), ..it }
    };
    let (one, mut two) = (from("fio-randread.json"), from("fio-randread.json"));
    two.source = Some("vf.json".to_owned());
    two.series.iter_mut().flat_map(|it| &mut it.points).for_each(|point| point.x = 32.0);
    let merged = merge([one.clone(), two.clone()].into());
    assert_eq!(merged[0].source.as_deref(), Some("fio-randread.json, vf.json"));
    // Another disk is another subject.
    two.setup.insert("filename".to_owned(), "/dev/vdb".to_owned());
    assert_eq!(merge([one, two].into()).len(), 2);
    let twice = merge([all[0].clone(), all[0].clone()].into());
    assert_eq!(twice.len(), 2, "what was measured twice stays apart");
}

fn said(name: &str, text: &str) -> String {
    import(name, text).unwrap_err().to_string()
}

#[test]
fn an_error_has_a_file_a_line_and_the_expected_text() {
    let latency = text("osu-5.3-latency.txt");
    let spoilt = latency.replace("0.43\n2 ", "0.x3\n2 ");
    let words = "a.txt, line 4: expected a number (of its column), found \"0.x3\"";
    assert_eq!(said("a.txt", &spoilt), words);
    let cut = &latency[..latency.len() - 3];
    assert!(said("a.txt", cut).contains("line 26: expected a row of"), "{}", said("a.txt", cut));
    let head: String = latency.split_inclusive('\n').take(2).collect();
    assert!(said("a.txt", &head).contains("line 3: expected rows of figures"));
    let wide = latency.replace("Latency (us)", "Latency (us)  Novelty (s)");
    assert!(said("a.txt", &wide).contains("line 2: expected a column of Size,"));
    let failed = text("osu-7.4-bibw-validated.txt").replacen("Pass", "Fail", 1);
    assert!(said("a.txt", &failed).contains("its program's own validation, found \"Fail\""));
    let refused = said("r.json", &text("iperf3-refused.json"));
    assert!(refused.contains("Connection refused"), "{refused}");
    let fio = text("fio-mixed.json");
    let half = said("f.json", &fio[..fio.len() / 2]);
    assert!(half.contains("the file's end: was it cut?"), "{half}");
    let no_jobs = said("f.json", "{\"fio version\": \"fio-3.33\", \"jobs\": []}");
    assert!(no_jobs.contains("at least one job"), "{no_jobs}");
    let stream = text("netperf-tcp_stream.txt");
    let head: String = stream.split_inclusive('\n').take(4).collect();
    assert!(said("n.txt", &head).contains("line 5: expected a row of numbers"));
    let sockperf = text("sockperf-pp.txt");
    let half = said("s.txt", &sockperf[..sockperf.len() / 2]);
    assert!(half.contains("was it cut"), "{half}");
}

#[test]
fn foreign_files_are_refused_with_what_is_known() {
    let list = said("README.md", &text("README.md"));
    assert!(list.starts_with("README.md, line 1: expected output of the OSU"), "{list}");
    let prose = said("note.txt", "\n\nDear reader,\n");
    assert!(prose.starts_with("note.txt, line 3: expected output of the OSU"), "{prose}");
    assert!(prose.ends_with("found \"Dear reader,\""), "{prose}");
    assert!(said("x", " \n").ends_with("found nothing"));
    assert!(said("x", "{\"a\": 1}").ends_with("found JSON of another program"));
    assert!(said("x", "[1, 2]\n").ends_with("found \"[1, 2]\""));
    let newer = said("x", "{\"schema\": 2, \"series\": []}");
    assert!(newer.contains("version 2 of the results' form"), "{newer}");
    let other = said("x", "{\"version\": 1, \"machine\": {}}");
    assert!(other.contains("an earlier vrio"), "{other}");
}

#[test]
fn fios_lines_before_its_json_are_skipped() {
    let noisy = format!("fio: this platform has no such thing\n{}", text("fio-randread.json"));
    assert_eq!(import("f", &noisy).unwrap()[0].series, one("fio-randread.json").series);
}

#[test]
fn a_file_may_hold_several_outputs() {
    let both = text("osu-7.4-latency.txt") + &text("osu-7.4-bw.txt");
    let names = import("all.txt", &both).unwrap();
    let names: Vec<_> = names.iter().map(|it| it.benchmark.as_str()).collect();
    assert_eq!(names, ["osu_latency", "osu_bw"]);
    let both = text("netperf-tcp_rr.txt") + &text("netperf-udp_stream.txt");
    assert_eq!(import("all.txt", &both).unwrap().len(), 2);
}

#[test]
fn a_measurement_of_a_run_is_read_and_keeps_its_source() {
    let written = serde_json::to_string(&one("osu-7.4-latency.txt")).unwrap();
    let read = import("01-osu_latency.json", &written).unwrap();
    assert_eq!(read, [one("osu-7.4-latency.txt")]);
}

/// All outputs, read once.
fn all() -> &'static [String] {
    static ALL: std::sync::LazyLock<Vec<String>> = std::sync::LazyLock::new(|| {
        let mut names: Vec<_> = OUTPUTS.iter().map(|output| output.0).collect();
        names.extend(["vrio-block.json", "vrio-net-bounce.json", "vrio-scale.json"]);
        names.extend(["vrio-mpi.json", "vrio-models.json", "vrio-connections.json"]);
        names.extend(["vrio-compare-block.json", "vrio-compare-net.json"]);
        names.into_iter().map(text).collect()
    });
    &ALL
}

/// Text that hostile or broken files have in the place of other text.
const ODD: [&str; 10] = ["", "-1", "1e999", "NaN", "\u{1b}[", "\n", "é", "{", "99999999999", "="];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_file_of_any_content_is_read_or_refused(
        which in 0..64_usize,
        cuts in proptest::collection::vec((0.0..1.0_f64, 0..12_usize, 0..ODD.len()), 0..4),
        end in 0.0..1.3_f64,
    ) {
        let texts = all();
        let mut chars: Vec<char> = texts[which % texts.len()].chars().collect();
        for (place, length, odd) in cuts {
            let from = (chars.len() as f64 * place) as usize;
            let to = (from + length).min(chars.len());
            chars.splice(from..to, ODD[odd].chars());
        }
        let kept = (chars.len() as f64 * end) as usize;
        let text: String = chars.into_iter().take(kept).collect();
        // An accepted file keeps the rules, and goes through the store's form unchanged.
        if let Ok(measurements) = import("mutated.txt", &text) {
            for it in &measurements {
                let written = serde_json::to_string(it).expect("plain data");
                prop_assert!(Measurement::read(&written).is_ok(), "{}", written);
            }
            for it in merge(measurements) {
                prop_assert!(it.check().is_ok());
            }
        }
    }
}
