//! `vrio results`, on outputs of other programs and of our own, in a store of its own.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use report::store;
use results::Run;
use serde_json::Value;

/// A path of a program's output, which the importers' tests have.
fn output(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("report/tests/data");
    folder.join(name).display().to_string()
}

fn results(store: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    command.arg("results").args(words).env("XDG_STATE_HOME", store).output().unwrap()
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

fn json(store: &Path, words: &[&str]) -> Value {
    let output = results(store, &[words, &["--json"]].concat());
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn other_programs_results_are_kept_listed_shown_and_compared() {
    let home = tempfile::tempdir().unwrap();
    let empty = results(home.path(), &["list"]);
    assert!(empty.status.success() && said(&empty).contains("no results in"), "{}", said(&empty));
    let first = json(home.path(), &["import", &output("osu-5.3-latency.txt"), "--title", "old"]);
    let second = json(home.path(), &["import", &output("osu-7.4-latency.txt")]);
    let ids = [&first, &second].map(|it| it["id"].as_str().unwrap().to_owned());
    assert!(Path::new(first["folder"].as_str().unwrap()).join("run.json").is_file());
    let listed = json(home.path(), &["list"]);
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    assert_eq!(listed[0]["run"]["title"], "old");
    let shown = said(&results(home.path(), &["show", &ids[0]]));
    for words in ["osu_latency: osu-5.3-latency, imported", "4 MiB", "version 5.3"] {
        assert!(shown.contains(words), "{words:?} is not in {shown}");
    }
    let diff = json(home.path(), &["diff", &ids[0], &ids[1]]);
    assert_eq!(diff["differs"][0], "machine: the machine of A, B is not known");
    let series = &diff["series"][0];
    let differs = series["differs"].as_array().unwrap();
    assert!(differs.contains(&"version: 5.3 (A), 7.4 (B)".into()), "{series}");
    assert_eq!(series["alone"], 1, "only the old one measures nothing at all: {series}");
    let row = &series["rows"][0];
    let [a, b, percent] = ["a", "b", "percent"].map(|name| row[name].as_f64().unwrap());
    assert!((percent - (b / a - 1.0) * 100.0).abs() < 1e-9, "{row}");
    assert_eq!((&row["standing"], &row["is_better"]), (&"not_known".into(), &Value::Null));
    let narrow = ["diff", &output("osu-7.4-latency.txt"), &output("vrio-mpi.json"), "--only"];
    let ours = json(home.path(), &[&narrow[..], &["contestant vrio"]].concat());
    assert_eq!(ours["series"][0]["rows"].as_array().unwrap().len(), 5, "{ours}");
    let nobody = results(home.path(), &[&narrow[..], &["nobody at all"]].concat());
    assert!(said(&nobody).contains("neither run has"), "{}", said(&nobody));
    // Files need no store.
    let words = ["diff", &output("osu-5.3-latency.txt"), &output("osu-7.4-latency.txt")];
    let direct = said(&results(home.path(), &words));
    assert!(direct.contains("message size") && direct.contains(" %"), "{direct}");
}

/// The same file twice is a poor pair of rounds, but it is one.
#[test]
fn runs_are_pooled() {
    let home = tempfile::tempdir().unwrap();
    let file = output("osu-7.4-latency.txt");
    let pooled = json(home.path(), &["pool", &file, &file, "--title", "both"]);
    let shown = json(home.path(), &["show", pooled["id"].as_str().unwrap()]);
    let series = &shown["measurements"][0]["series"][0];
    assert_eq!((&series["spread"], &series["rounds"]), (&"rounds".into(), &2.into()));
    let alone = results(home.path(), &["pool", &file]);
    assert!(!alone.status.success() && said(&alone).contains("two runs or more"));
}

#[test]
fn errors_have_a_way_out() {
    let home = tempfile::tempdir().unwrap();
    let refused = |words: &[&str]| {
        let output = results(home.path(), words);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        said(&output)
    };
    let none = refused(&["show", "20991231"]);
    assert!(none.contains("no run 20991231") && none.contains("results list"), "{none}");
    let foreign = refused(&["import", &output("README.md")]);
    assert!(foreign.contains("README.md, line 1: expected output of the OSU"), "{foreign}");
    let failed = refused(&["import", &output("iperf3-refused.json")]);
    assert!(failed.contains("Connection refused"), "{failed}");
    let left = results(home.path(), &["list"]);
    assert!(said(&left).contains("no results"), "nothing is kept of what was refused");
}

#[test]
fn measurements_are_saved_on_request() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("kept").display().to_string();
    let words = ["bench", "block", "--seconds", "1.2", "--json", "--depth", "2", "--save", &folder];
    let output = Command::new(env!("CARGO_BIN_EXE_vrio")).args(words).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains("saved 2 measurements in"));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let shown = json(home.path(), &["show", "latest", "--results", &folder]);
    let iops = &shown["measurements"][0]["series"][0];
    assert_eq!((&iops["quantity"], &iops["points"][0]["x"]), (&"iops".into(), &2.0.into()));
    assert_eq!(iops["points"][0]["y"], report["iops"]);
    let run = &shown["run"];
    let place = Path::new(&folder).join(run["id"].as_str().unwrap());
    assert_eq!(store::load(&place).unwrap().measurements.len(), 2);
    // The run's begin is the begin of the measurement, not the time when it was saved.
    let seconds = fs::metadata(place.join("run.json")).unwrap().modified().unwrap();
    let saved = Run::begun_at(seconds, "block", "x");
    assert!(run["begun"].as_str().unwrap() < saved.begun.as_str(), "{run} and {}", saved.begun);
    assert_eq!(run["machine"]["kernel"], report["machine"]["kernel"]);
    assert!(run["command"].as_array().unwrap().contains(&"--save".into()), "{run}");
    let title = shown["measurements"][0]["title"].as_str().unwrap();
    assert!(title.starts_with("local, null volume: randread"), "{title}");
    // The JSON has the same run in it, and a file of it is called by its name.
    assert_eq!(
        (&report["results"]["run"], &report["results"]["measurements"]),
        (&shown["run"], &shown["measurements"])
    );
    let file = home.path().join("mine.json");
    fs::write(&file, &output.stdout).unwrap();
    let read = json(home.path(), &["show", file.to_str().unwrap()]);
    let [given, read] = [&report["results"], &read].map(|it| &it["measurements"][0]);
    assert_eq!((&read["title"], &read["series"]), (&"mine".into(), &given["series"]));
}

/// Each kind of report, as it is saved in a store, conforms to the schema.
#[test]
fn results_of_real_commands_conform_to_the_schema() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().display().to_string();
    let commands = [
        "net --path local --seconds 0.2",
        "connections --hosts 2 --processes 4 --sessions 10",
        "models --rounds 1 --seconds 0.05 --device block --guests 1 --encrypt off --volume null \
         --model optimum",
    ];
    for words in commands {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
        command.arg("bench").args(words.split_whitespace()).args(["--save", &folder]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{words}: {}", said(&output));
    }
    let listed = json(home.path(), &["list", "--results", &folder]);
    let listed = listed.as_array().unwrap();
    assert_eq!(listed.len(), commands.len(), "{listed:?}");
    for run in listed {
        let place = home.path().join(run["id"].as_str().unwrap());
        let count =
            store::load(&place).unwrap_or_else(|fault| panic!("{fault}")).measurements.len();
        assert_eq!(run["measurements"], count, "{run}");
    }
}

/// A file needs no store, and so no home directory. A run's name needs one, and the error names the
/// way out.
#[test]
fn a_store_is_opened_only_by_commands_that_need_it() {
    let home = tempfile::tempdir().unwrap();
    let homeless = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
        command.args(words).current_dir(home.path());
        command.env_remove("HOME").env_remove("XDG_STATE_HOME").output().unwrap()
    };
    let file = output("osu-7.4-latency.txt");
    for words in [&["results", "show", &file][..], &["report", &file, "-o", "page"]] {
        let output = homeless(words);
        assert!(output.status.success(), "{words:?}: {}", said(&output));
    }
    let lost = homeless(&["results", "show", "latest"]);
    assert!(!lost.status.success() && said(&lost).contains("--results"), "{}", said(&lost));
    let import = homeless(&["results", "import", &file, "--results", "kept"]);
    assert!(import.status.success(), "{}", said(&import));
    let page = homeless(&["report", "--results", "kept", "-o", "other"]);
    assert!(page.status.success(), "{}", said(&page));
    assert!(home.path().join("other/index.html").is_file());
}
