//! Files that are no configurations, and files that are far longer than usual ones.

use std::path::Path;

use config::Config;
use expect_test::expect;

/// The problem of a file that holds these bytes.
fn problem_of(bytes: &[u8]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("io1.toml");
    std::fs::write(&path, bytes).unwrap();
    let error = Config::load(&path).unwrap_err();
    error.to_string().replace(path.to_str().unwrap(), "io1.toml")
}

#[test]
fn a_file_that_is_no_configuration_is_read_only_so_far() {
    let said = problem_of(&vec![b'#'; (4 << 20) + 1]);
    expect!["io1.toml: more than 4 MiB, which no configuration has; name another file"]
        .assert_eq(&said);
    // This file has no end.
    let endless = Config::load(Path::new("/dev/zero")).unwrap_err().to_string();
    assert!(endless.contains("more than 4 MiB"), "{endless}");
    let said = problem_of(b"name = \"io1\"\n# \xff\n");
    expect!["io1.toml:2: this is not UTF-8 text; save the file as UTF-8"].assert_eq(&said);
}

/// The processor time of this thread. It is hardly longer on a busy machine.
fn processor_seconds() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<u64>().unwrap() / 1_000_000_000
}

/// A quadratic reader takes minutes for each of these files.
#[test]
fn a_long_file_is_read_in_time() {
    let begun = processor_seconds();
    let mut volumes = "name = \"io1\"\n".to_owned();
    for number in 0..50_000 {
        volumes += &format!("[[volume]]\nname = \"v{number}\"\nbackend = {{ null = \"1MiB\" }}\n");
    }
    let said = Config::parse(Path::new("io1.toml"), &volumes).unwrap_err().to_string();
    expect!["io1.toml:2: \"volume\": 50000 are too many; at most 1024"].assert_eq(&said);
    let cores = format!("name = \"io1\"\n[sidecores]\ncores = [{}0]\n", "0, ".repeat(100_000));
    let said = Config::parse(Path::new("io1.toml"), &cores).unwrap_err().to_string();
    assert!(said.contains("name from 1 to 64 cores"), "{said}");
    let word = format!("{} = 1\n", "a".repeat(4 << 20));
    let said = Config::parse(Path::new("io1.toml"), &word).unwrap_err().to_string();
    assert!(said.contains("unknown key"));
    let taken = processor_seconds() - begun;
    assert!(taken < 30, "{taken} s");
}
