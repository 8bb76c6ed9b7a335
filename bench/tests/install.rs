//! `scripts/install` finds the machine's own mirror, in whichever form its sources are written.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const ONE_LINE: &str = "\
# deb http://wrong.example/debian bookworm main
deb [arch=amd64] http://security.example/debian-security bookworm-security main
deb [arch=amd64] http://mirror.example/debian bookworm main contrib
";
const BLOCKS: &str = "\
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
";
const ELSEWHERE: &str = "deb [arch=amd64] http://mirror.example/debian sid main\n";

/// Runs the script on a machine with these sources and no others.
fn show_backports(list: &str, blocks: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).display().to_string();
    fs::create_dir(place("parts")).unwrap();
    fs::create_dir_all(place("lists/partial")).unwrap();
    fs::write(place("sources.list"), list).unwrap();
    fs::write(place("parts/debian.sources"), blocks).unwrap();
    // apt speaks of a source once its list is there: an empty one will do.
    for source in ["mirror.example_debian_dists_bookworm", "mirror.example_debian_dists_sid"] {
        fs::write(place(&format!("lists/{source}_main_binary-amd64_Packages")), "").unwrap();
    }
    let settings = [
        format!("Dir::Etc::SourceList \"{}\";", place("sources.list")),
        format!("Dir::Etc::SourceParts \"{}\";", place("parts")),
        format!("Dir::State::Lists \"{}\";", place("lists")),
        "APT::Architecture \"amd64\";".to_owned(),
    ];
    fs::write(place("apt.conf"), settings.join("\n")).unwrap();
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
    let script = Path::new(&package).parent().unwrap().join("scripts/install");
    let mut command = Command::new(script);
    command.arg("show-backports").env("APT_CONFIG", place("apt.conf")).output().unwrap()
}

fn has_apt(test: &str) -> bool {
    let found = Command::new("apt-get").arg("--version").output().is_ok();
    if !found {
        println!("SKIP {test}: this machine has no apt-get");
    }
    found
}

#[test]
fn the_mirror_is_the_machines_own() {
    if !has_apt("the_mirror_is_the_machines_own") {
        return;
    }
    for (list, blocks) in [(ONE_LINE, ""), ("", BLOCKS), (ELSEWHERE, BLOCKS)] {
        let output = show_backports(list, blocks);
        let entry = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        assert!(entry.contains("\nURIs: http://mirror.example/debian/\n"), "{entry}");
        assert!(entry.contains("\nSuites: bookworm-backports\n"), "{entry}");
    }
}

#[test]
fn a_machine_without_debian_12_is_told_so() {
    if !has_apt("a_machine_without_debian_12_is_told_so") {
        return;
    }
    let output = show_backports(ELSEWHERE, "");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("bookworm") && error.contains("by hand"), "{error}");
}
