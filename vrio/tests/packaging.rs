//! The systemd unit: systemd itself understands it and finds little that it leaves open.

use std::path::Path;
use std::process::{Command, Output};

/// The exposure that systemd's own tool may find, in tenths; 96 is a unit that says nothing.
/// What is left is the network, which a node is for.
const EXPOSURE_TENTHS_MAX: &str = "20";

fn analyze(arguments: &[&str], unit: &Path) -> Output {
    let mut command = Command::new("systemd-analyze");
    command.args(arguments).arg("--no-pager").arg(unit).output().expect("it was there before")
}

#[test]
fn the_unit_is_valid_and_leaves_little_open() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        let test = "the_unit_is_valid_and_leaves_little_open";
        return println!("SKIP {test}: no systemd-analyze here (package systemd)");
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/vrio-node@.service");
    let text = std::fs::read_to_string(source).expect("it is in the repository");
    assert!(text.contains("ExecStart=/usr/bin/vrio node --config /etc/vrio/%i.toml\n"));
    // The program has to be there for the check.
    let home = tempfile::tempdir().expect("a directory");
    let unit = home.path().join("vrio-node@.service");
    let text = text.replace("/usr/bin/vrio", env!("CARGO_BIN_EXE_vrio"));
    std::fs::write(&unit, text).expect("ours");
    let verified = analyze(&["verify"], &unit);
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && !said.contains("vrio-node"), "{said}");
    let threshold = format!("--threshold={EXPOSURE_TENTHS_MAX}");
    let judged = analyze(&["security", "--offline=true", &threshold], &unit);
    assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stdout));
}
