//! `scripts/test` counts, runs again and names as it says, by a runner that plays the tests.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// A cargo whose only tests are `good`, `shy` (which passes only when it runs alone), `ill` (which
/// never passes), and `crowd`, a number of other tests that are shy too. The environment selects
/// the tests.
const CARGO: &str = r##"#!/usr/bin/env bash
[ "$1" = nextest ] || exit 0
[ "$2" != --version ] || exit 0
report=$VRIO_TEST_REPORT
mkdir -p "${report%/*}"
failed=0
put() { # NAME passes|fails OUTPUT
    echo "        <testcase name=\"$1\" classname=\"one::two\" time=\"0.1\">"
    if [ "$2" = fails ]; then
        failed=100
        echo "            <failure message=\"panicked at &quot;x&quot;\">why</failure>"
    fi
    printf '            <system-out>\nrunning 1 test\n%s\n</system-out>\n' "$3"
    echo "            <system-err></system-err>"
    echo "        </testcase>"
}
{
    echo '<?xml version="1.0" encoding="UTF-8"?>'
    echo '<testsuites name="nextest-run" tests="3">'
    echo '    <testsuite name="one::two" tests="3">'
    case "$*" in
        *"test(=a::good"*) put a::good passes "" ;;
        *"test(=a::shy"*) put a::shy passes "" ;;
        *"test(=a::ill"*) put a::ill fails "" ;;
        *) put a::good passes "$SAID"
           for name in $FAILING; do put "a::$name" fails ""; done
           for ((at = 0; at < MANY; at++)); do put "a::one_of_many_$at" passes ""; done ;;
    esac
    echo '    </testsuite>'
    echo '</testsuites>'
} >"$report"
exit $failed
"##;

/// The last lines of a run in which `failing` fail beside others and a test has said `said`, and
/// whether it passed.
fn run(failing: &str, said: &str, ci: bool) -> (bool, String) {
    run_on(100, failing, said, ci)
}

/// The same on a disk with so many GiB free.
fn run_on(free_gib: u64, failing: &str, said: &str, ci: bool) -> (bool, String) {
    run_beside(0, free_gib, (failing, said), ci)
}

/// The same beside so many other tests, which pass.
fn run_beside(
    many: usize,
    free_gib: u64,
    (failing, said): (&str, &str),
    ci: bool,
) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    let df = format!("#!/bin/sh\necho Avail\necho {}\n", free_gib << 20);
    let stand_ins = [
        ("cargo", CARGO),
        ("shellcheck", "#!/bin/sh\n"),
        ("cargo-deny", "#!/bin/sh\n"),
        ("df", df.as_str()),
    ];
    for (name, text) in stand_ins {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
    let script = Path::new(&package).parent().unwrap().join("scripts/test");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(script);
    command.env("PATH", path).env("CARGO_TARGET_DIR", folder.path().join("target"));
    command.env("VRIO_TEST_REPORT", folder.path().join("target/nextest/default/junit.xml"));
    command.env("FAILING", failing).env("SAID", said).env("MANY", many.to_string());
    command.env("CI", if ci { "true" } else { "" });
    let output = command.output().unwrap();
    let all = String::from_utf8_lossy(&output.stdout);
    let from = all.rfind("\n\n").map_or(0, |at| at + 2);
    (output.status.success(), all[from..].to_owned())
}

/// The eight other checks are passes as well.
#[test]
fn a_passing_test_passes_the_gate() {
    let (passed, end) = run("", "", true);
    assert!(passed && end.contains("vrio: 9 passed, 0 failed, 0 skipped, 0 flaky"), "{end}");
    // A gate that takes too long says where.
    for line in [" lints\n", " tests, with their build\n", "    0 one::two a::good\n"] {
        assert!(end.contains(line), "{line:?}: {end}");
    }
}

/// Before, a list of thousands of tests ended the summary after its first lines.
#[test]
fn thousands_of_tests_are_summed_up() {
    let (passed, end) = run_beside(4000, 100, ("", ""), true);
    assert!(passed && end.contains("vrio: 4009 passed, 0 failed, 0 skipped, 0 flaky"), "{end}");
}

#[test]
fn a_disk_without_room_for_the_build_is_said_first() {
    let (passed, end) = run_on(2, "", "", true);
    assert!(!passed && end.contains("vrio: 8 passed, 1 failed"), "{end}");
    assert!(end.contains("  space\n"), "{end}");
}

#[test]
fn a_test_that_passes_only_alone_is_named_as_flaky() {
    let (passed, end) = run("shy", "", true);
    assert!(passed && end.contains("vrio: 10 passed, 0 failed, 0 skipped, 1 flaky"), "{end}");
    assert!(end.contains("Flaky") && end.contains("one::two a::shy"), "{end}");
}

#[test]
fn a_test_that_never_passes_fails_the_run() {
    let (passed, end) = run("shy ill", "", false);
    assert!(!passed && end.contains("vrio: 10 passed, 1 failed, 0 skipped, 1 flaky"), "{end}");
    assert!(end.contains("Failed:\n  one::two a::ill"), "{end}");
}

#[test]
fn four_flaky_tests_are_one_too_many() {
    let (passed, end) = run("shy shy2 shy3", "", true);
    assert!(passed && end.contains(", 3 flaky"), "{end}");
    let (passed, end) = run("shy shy2 shy3 shy4", "", true);
    assert!(!passed && end.contains("more than 3 flaky tests"), "{end}");
}

/// Many failures have a cause that no second run removes.
#[test]
fn many_failures_are_not_run_again() {
    let (passed, end) = run("shy shy shy shy shy shy shy shy shy shy shy", "", true);
    assert!(!passed && end.contains("vrio: 9 passed, 11 failed, 0 skipped, 0 flaky"), "{end}");
}

#[test]
fn a_skip_is_repeated_and_is_a_failure_where_ci_is_set() {
    let said = "SKIP a::good: no &lt;disk&gt; &amp; no cable";
    let (passed, end) = run("", said, false);
    assert!(passed && end.contains("a::good: no <disk> & no cable"), "{end}");
    assert!(end.contains("vrio: 9 passed, 0 failed, 1 skipped, 0 flaky"), "{end}");
    let (passed, end) = run("", said, true);
    assert!(!passed && end.contains("vrio: 9 passed, 1 failed, 1 skipped"), "{end}");
}
