//! `vrio bench compare store` for a moment, with every side that this machine has.

use std::fs;
use std::process::Command;

use serde_json::Value;

/// The sides that each machine has or names, and words of the reason why one may be missing.
const SIDES: [(&str, &str); 5] = [
    ("vrio file", "no reason"),
    ("qemu-storage-daemon raw", "(Debian: qemu-utils)"),
    ("qemu-storage-daemon qcow2", "(Debian: qemu-utils)"),
    ("xfs", "xfs"),
    ("btrfs", "btrfs"),
];

#[test]
fn a_pool_is_compared_with_every_side_that_is_here() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    command.args(["bench", "compare", "store", "--rounds", "1", "--seconds", "0.1", "--json"]);
    command.args(["--contest", "in a file", "--case", "randread 4k depth 1", "--folder"]);
    let output = command.arg(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let missing = report["missing"].to_string();
    let rows = report["contests"][0]["rows"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["ours"] == "vrio store"), "{rows:?}");
    for (side, reason) in SIDES {
        let is_there = rows.iter().any(|row| row["theirs"].as_str().unwrap().contains(side));
        assert!(is_there || missing.contains(reason), "{side}: {missing}");
    }
    for named in ["LVM thin", "SPDK"] {
        assert!(missing.contains(named), "{missing}");
    }
    let goals = report["goals"].as_array().unwrap();
    assert_eq!(goals.len(), 9);
    assert!(goals.iter().all(|goal| goal["standing"] != "holds"), "one round decides nothing");
}
