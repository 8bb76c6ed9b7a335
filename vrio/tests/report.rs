//! `vrio report` as a user calls it: it reads files of other programs, and writes a page.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const OSU: &str = "\
# OSU MPI Latency Test v5.9
# Size          Latency (us)
0                       0.21
1                       0.22
8                       0.23
4096                    1.50
1048576               140.25
";

fn vrio(home: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vrio"))
        .args(arguments)
        .current_dir(home)
        .env("HOME", home)
        .env_remove("XDG_STATE_HOME")
        .output()
        .expect("vrio starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn one_command_leads_from_an_osu_file_to_a_picture() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("one.txt"), OSU).unwrap();
    fs::write(home.path().join("two.txt"), OSU.replace("0.2", "0.3")).unwrap();
    let output =
        vrio(home.path(), &["report", "one.txt", "two.txt", "-o", "out", "--with-published"]);
    assert!(output.status.success(), "{}", said(&output));
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let page = home.path().join("out/index.html");
    assert!(told.starts_with(page.canonicalize().unwrap().to_str().unwrap()), "{told}");
    let html = fs::read_to_string(page).unwrap();
    assert!(html.contains("<td>0.23<") && html.contains("is not known"));
    assert!(html.contains("Overhead in latency against one"));
    let plot =
        fs::read_to_string(home.path().join("out/latency-by-message-size-point-to-point.svg"))
            .unwrap();
    assert!(plot.starts_with("<svg") && plot.contains("1 MiB</text>"), "{plot}");
}

#[test]
fn unreadable_results_are_named() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("cut.txt"), OSU.replace("0.23", "cut")).unwrap();
    let output = vrio(home.path(), &["report", "cut.txt"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("cut.txt, line 5"), "{}", said(&output));
    let output = vrio(home.path(), &["report"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("run"), "{}", said(&output));
    fs::write(home.path().join("one.txt"), OSU).unwrap();
    let output = vrio(home.path(), &["report", "one.txt", "--baseline", "nobody"]);
    assert!(said(&output).contains("--baseline"), "{}", said(&output));
    assert!(!home.path().join("vrio-report").exists());
}
