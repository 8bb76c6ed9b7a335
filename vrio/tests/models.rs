//! `vrio bench models`: the events of each model, and the goals about the models' order by events.
//! No test checks a time.

use std::fs;
use std::process::Command;

use parking_lot::Mutex;
use serde_json::Value;

/// The most that is counted of an event that never happens for a request: a session keeps its time,
/// and few requests are measured where cores are shared.
const NEARLY_NONE: f64 = 0.1;

/// The least that is counted of an event that happens for each request: a thread that is awake is
/// not woken.
const NEARLY_ONE: f64 = 0.5;

/// The most measurements until the counts are right. Where two threads share a core, the other
/// thread, or a neighbour of the machine, may keep a thread from its sleep, and then nothing wakes
/// it.
const ATTEMPTS: u32 = 5;

/// Held by a test that measures: sidecores that poll leave no core to those of another test.
static ALONE: Mutex<()> = Mutex::new(());

/// Measures until the events are as they should be, and fails after the last attempt.
fn measure_until(words: &[&str], is_right: impl Fn(&Value) -> Result<(), String>) -> Value {
    let mut otherwise = Vec::new();
    for _ in 0..ATTEMPTS {
        let report = measure(words);
        match is_right(&report) {
            Ok(()) => return report,
            Err(why) => otherwise.push(why),
        }
    }
    panic!("{words:?}, each time: {otherwise:#?}");
}

/// One round of measurements, which leaves nothing behind.
fn measure(words: &[&str]) -> Value {
    let _alone = ALONE.lock();
    let temporary = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    let usual = ["bench", "models", "--rounds", "1", "--seconds", "0.2", "--json"];
    let output = command.args(usual).args(words).env("TMPDIR", temporary.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}");
    let left: Vec<_> = fs::read_dir(temporary.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{words:?} leaves {left:?} behind");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Options for sessions in clear and volumes that are not encrypted.
fn plain<'a>(device: &'a str, guests: &'a str, volume: &'a str) -> Vec<&'a str> {
    let all = ["--encrypt", "off", "--stage", "off"];
    [&["--device", device, "--guests", guests, "--volume", volume], &all[..]].concat()
}

fn row<'a>(report: &'a Value, model: &str) -> &'a Value {
    let rows = report["tables"][0]["rows"].as_array().unwrap();
    let found = rows.iter().find(|row| row["model"] == model);
    found.unwrap_or_else(|| panic!("no {model}: {report}"))
}

/// The cell of a model in a column.
fn cell<'a>(report: &'a Value, model: &str, column: &str) -> &'a Value {
    let events = row(report, model)["figures"]["events"].as_array().unwrap();
    let found = events.iter().find(|it| it[0] == column);
    &found.unwrap_or_else(|| panic!("no {column} of {model}: {report}"))[1]
}

fn count(report: &Value, model: &str, column: &str) -> f64 {
    let median = cell(report, model, column)["measured"]["median"].as_f64();
    median.unwrap_or_else(|| panic!("{column} of {model}: {report}"))
}

/// Checks that some events never happen for a request and others happen for each; else gives the
/// counts that are wrong.
fn expect(report: &Value, model: &str, never: &[&str], always: &[&str]) -> Result<(), String> {
    let counts = |columns: &[&str]| -> Vec<_> {
        columns.iter().map(|column| ((*column).to_owned(), count(report, model, column))).collect()
    };
    let too_many = counts(never).into_iter().filter(|it| it.1 > NEARLY_NONE);
    let too_few = counts(always).into_iter().filter(|it| it.1 < NEARLY_ONE);
    let otherwise: Vec<_> = too_many.chain(too_few).collect();
    if otherwise.is_empty() { Ok(()) } else { Err(format!("{model}: {otherwise:?}")) }
}

/// The same report with the table of the real guests only, which is the last one.
fn of_guests(report: &Value) -> Value {
    let mut report = report.clone();
    let real = report["tables"].as_array_mut().unwrap().pop().unwrap();
    assert!(real["real_guest"].is_string(), "{real}");
    report["tables"] = serde_json::json!([real]);
    report
}

/// The guest touches registers of an emulated device more than once for each request.
fn expect_accesses(report: &Value) -> Result<(), String> {
    let exits = count(report, "emulation", "sync_exits");
    if exits > 1.0 { Ok(()) } else { Err(format!("emulation: {exits} exits")) }
}

/// Checks the events that both devices have in common.
fn expect_events(report: &Value) -> Result<(), String> {
    let [exits, guest, host, iohost] =
        ["sync_exits", "guest_interrupts", "host_interrupts", "iohost_interrupts"];
    expect(report, "elvis", &[exits, host], &[guest])?;
    expect(report, "baseline", &[], &[exits, guest, host])?;
    expect(report, "host_side", &[exits, host, iohost], &[guest])?;
    expect(report, "host_side_unpolled", &[], &[exits, guest, host, iohost])
}

/// Checks the events of a disk whose sidecores poll.
fn expect_polled(report: &Value) -> Result<(), String> {
    expect(report, "elvis", &["sync_exits", "host_interrupts"], &["guest_interrupts"])?;
    expect(report, "direct", &["iohost_interrupts"], &["guest_interrupts"])
}

/// Checks the cells that are the same for both devices, however often the events happen.
fn look_at_cells(report: &Value) {
    for model in ["optimum", "elvis", "baseline", "host_side", "host_side_unpolled"] {
        let why = cell(report, model, "injections")["empty"].as_str().unwrap();
        assert!(why.contains("KVM"), "{why}");
    }
    assert_eq!(cell(report, "elvis", "iohost_interrupts"), "nobody");
    // One round decides no goal.
    let goals = report["goals"].as_array().unwrap();
    let is_open =
        |goal: &Value| goal["standing"] == "undecided" || goal["standing"] == "not_measured";
    assert!(goals.iter().all(is_open), "{report}");
}

#[test]
fn a_disks_models_have_the_events_that_make_them_what_they_are() {
    let [exits, guest, iohost] = ["sync_exits", "guest_interrupts", "iohost_interrupts"];
    let report = measure_until(&plain("block", "1", "null"), |report| {
        expect_events(report)?;
        expect(report, "optimum", &[guest], &[])?;
        expect(report, "direct", &[iohost], &[guest])?;
        expect(report, "unpolled", &[], &[guest, iohost])
    });
    look_at_cells(&report);
    for model in ["optimum", "direct", "unpolled"] {
        assert_eq!(cell(&report, model, exits), "nobody", "there is no virtqueue");
    }
    assert_eq!(row(&report, "elvis")["polling_cores"]["vmhost"], 1);
    assert_eq!(row(&report, "direct")["polling_cores"]["iohost"], 1);
    // The kick makes the baseline differ from a client without polling.
    let explained = report["explained"][0].as_str().unwrap();
    let (_, step) = explained.split_once("baseline less vRIO without polling: ").unwrap();
    assert!(step.contains("sync exits +"), "{step}");
}

/// With several guests, each has a direct client, and sidecores are spread or pooled.
#[test]
fn several_guests_share_sidecores_of_their_own_host_or_of_one_for_all() {
    let words = plain("block", "2", "null");
    let models = ["--model", "optimum", "--model", "elvis", "--model", "direct"];
    let report = measure_until(&[&words[..], &models].concat(), expect_polled);
    assert!(row(&report, "optimum")["empty"].is_string(), "{report}");
    assert_eq!(report["tables"][0]["rows"].as_array().unwrap().len(), 3, "{report}");
    let kinds = report["balance"].as_array().unwrap();
    let busy: Vec<_> = kinds.iter().map(|it| it["busy"].to_string()).collect();
    assert_eq!(busy, ["[4,4]", "[4,4]", "[2,4]", "[2,4]"]);
    for kind in kinds {
        assert!(kind["empty"].is_null() && kind["per_s"]["min"].is_f64(), "{kind}");
    }
}

/// A stage that encrypts changes the cost of a request, and none of its events.
#[test]
fn a_volume_that_is_encrypted_has_the_same_events() {
    let words = ["--device", "block", "--guests", "1", "--encrypt", "off", "--stage", "on"];
    let models =
        ["--volume", "null", "--model", "optimum", "--model", "elvis", "--model", "direct"];
    let report = measure_until(&[&words[..], &models].concat(), expect_polled);
    assert_eq!(report["tables"][0]["stage"], true, "{report}");
    assert_eq!(report["tables"].as_array().unwrap().len(), 1, "{report}");
    let why = row(&report, "optimum")["empty"].as_str().unwrap();
    assert!(why.contains("dm-crypt"), "{why}");
}

/// A measurement that fails empties its own row or kind, and the row says why. A file is one
/// guest's, and this file cannot be made.
#[test]
fn impossible_measurements_are_empty_and_the_rest_continues() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("no such folder/disk");
    let volume = format!("file:{}", file.display());
    let words = plain("both", "1", &volume);
    let report = measure(&[&words[..], &["--model", "elvis"]].concat());
    let why = row(&report, "elvis")["empty"].as_str().unwrap();
    assert!(why.contains("there is no folder"), "{why}");
    let net = &report["tables"][1];
    assert_eq!((&net["device"], net["rows"][0]["figures"].is_object()), (&"net".into(), true));
}

#[test]
fn a_cards_models_have_them_too_and_what_it_has_not_says_why() {
    let words = ["--device", "net", "--encrypt", "off", "--stage", "off"];
    let report = measure_until(&words, |report| {
        expect_events(report)?;
        expect(report, "optimum", &[], &["guest_interrupts"])
    });
    look_at_cells(&report);
    for model in ["direct", "unpolled"] {
        let why = row(&report, model)["empty"].as_str().unwrap();
        assert!(why.contains("no client in the guest"), "{why}");
    }
}

/// Real guests with a kernel's own drivers. A disk has no kick and one interrupt if the host polls,
/// and also a kick and a wake-up if the host sleeps. The card interrupts a client. Each access to a
/// register of an emulated device leaves the guest, and there are many.
#[test]
fn real_guests_have_the_events_of_their_models() {
    let name = "real_guests_have_the_events_of_their_models";
    if testbed::guest::available(name).or_else(|| testbed::guest::available_newer(name)).is_none() {
        return;
    }
    let models = ["optimum", "direct", "elvis", "baseline", "qemu", "emulation"];
    let models: Vec<_> = models.iter().flat_map(|model| ["--model", model]).collect();
    let words = plain("block", "1", "null");
    let [exits, guest, host, iohost] =
        ["sync_exits", "guest_interrupts", "host_interrupts", "iohost_interrupts"];
    let report = measure_until(&[&words[..], &["--guest"], &models].concat(), |report| {
        let report = &of_guests(report);
        expect(report, "elvis", &[exits, host], &[guest])?;
        expect(report, "baseline", &[], &[exits, guest, host])?;
        expect(report, "direct", &[iohost], &[exits, guest])?;
        expect(report, "qemu", &[], &[exits, guest])?;
        expect_accesses(report)
    });
    let report = of_guests(&report);
    for (model, column) in [("elvis", "injections"), ("direct", host), ("qemu", host)] {
        assert!(cell(&report, model, column)["empty"].is_string(), "{report}");
    }
    let emulated = &report["emulated"][0];
    assert!(emulated["by_region"]["ide"].as_f64().unwrap() > 1.0, "{emulated}");
    // The machine's own device was measured, or the reason names VFIO.
    let optimum = row(&report, "optimum");
    let why = optimum["empty"].as_str();
    assert!(optimum["figures"].is_object() || why.unwrap().contains("VFIO"), "{optimum}");
}

/// The same for network cards: two guests that talk, and one that has a card of QEMU's.
#[test]
fn real_guests_cards_have_them_too() {
    let name = "real_guests_cards_have_them_too";
    if testbed::guest::available(name).or_else(|| testbed::guest::available_newer(name)).is_none() {
        return;
    }
    let models = ["elvis", "baseline", "emulation", "direct"];
    let models: Vec<_> = models.iter().flat_map(|model| ["--model", model]).collect();
    let words = ["--device", "net", "--encrypt", "off", "--stage", "off", "--guest"];
    let report = measure_until(&[&words, &models[..]].concat(), |report| {
        let report = &of_guests(report);
        // The sender is interrupted as well, once its frames were taken.
        expect(report, "elvis", &["host_interrupts"], &["guest_interrupts"])?;
        expect(report, "baseline", &[], &["sync_exits", "guest_interrupts", "host_interrupts"])?;
        expect_accesses(report)
    });
    let report = of_guests(&report);
    let why = row(&report, "direct")["empty"].as_str().unwrap();
    assert!(why.contains("no client in the guest"), "{why}");
}

#[test]
fn invalid_options_are_refused_before_a_measurement() {
    for (words, said) in [
        (&["--rounds", "0"][..], "--rounds"),
        (&["--guests", "0"], "--guests"),
        (&["--seconds", "0"], "--seconds"),
        (&["--model", "emulation", "--model", "qemu"], "--guest"),
        (&["--device", "net", "--stage", "on"], "--stage"),
        (&["--volume", "file:/disk", "--guests", "1,4"], "--guests 1"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
        let output = command.args(["bench", "models"]).args(words).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
        assert!(error.contains(said), "{words:?}: {error}");
    }
}
