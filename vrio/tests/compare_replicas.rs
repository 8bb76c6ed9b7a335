//! `vrio bench compare replicas` for a moment: each side counts the bytes that it must send.

use std::process::Command;

use serde_json::Value;
use testbed::guest;

/// How often a write of 4 KiB crosses a cable on each side. The user of DRBD is on a host with a
/// copy.
const SIDES: [(&str, f64); 3] = [("vrio", 2.0), ("md-raid1", 2.0), ("drbd", 1.0)];

#[test]
fn copies_by_vrio_and_by_linux_are_counted_in_guests_of_one_kind() {
    const TEST: &str = "copies_by_vrio_and_by_linux_are_counted_in_guests_of_one_kind";
    // Three emulated guests take minutes, and no other test depends on them.
    if std::env::var("VRIO_TIER").is_ok_and(|tier| tier == "ci") {
        return println!("{TEST}: in the nightly and the long tier");
    }
    let Some(image) = guest::available_newer(TEST) else { return };
    if !image.initramfs().with_file_name("copies.cpio").is_file() {
        return println!("SKIP {TEST}: no copies.cpio (guest/build copies)");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    command.args(["bench", "compare", "replicas", "--rounds", "1", "--seconds", "3"]);
    command.args(["--case", "randwrite 4k depth 1", "--json"]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let missing = report["missing"].to_string();
    assert!(missing.contains("Crucible") && missing.contains("Ceph"), "{missing}");
    let bytes = &report["cases"][0]["figures"][1];
    assert_eq!(bytes["figure"], "bytes on cables/request");
    for (name, copies) in SIDES {
        let side = bytes["sides"].as_array().unwrap().iter().find(|it| it["side"] == name);
        let side = side.unwrap_or_else(|| panic!("no {name}: {missing}"));
        let bytes = side["value"]["median"].as_f64().unwrap();
        assert!(bytes > 4096.0 * copies, "{name} sends {bytes} for a write of 4 KiB");
    }
    let pauses = report["pauses"].as_array().unwrap();
    // vrio also loses the node that serves.
    assert_eq!(pauses.len(), SIDES.len() + 1);
    assert!(pauses.iter().all(|it| it["pause_ms"].as_f64() > Some(0.0)), "{pauses:?}");
    println!("{report:#}");
}
