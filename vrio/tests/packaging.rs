//! The systemd unit: systemd itself understands it and finds little that it leaves open. What is
//! installed works from where it is, also as a Debian package.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
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
    let text = read("packaging/vrio-node@.service");
    assert!(text.contains("ExecStart=/usr/bin/vrio node --config /etc/vrio/%i.toml\n"));
    // The program has to be there for the check.
    let home = tempfile::tempdir().expect("a directory");
    let unit = home.path().join("vrio-node@.service");
    let text = text.replace("/usr/bin/vrio", env!("CARGO_BIN_EXE_vrio"));
    fs::write(&unit, &text).expect("ours");
    let verify = || {
        let verified = analyze(&["verify"], &unit);
        let said = String::from_utf8_lossy(&verified.stderr).into_owned();
        assert!(verified.status.success() && !said.contains("vrio-node"), "{said}");
    };
    verify();
    let threshold = format!("--threshold={EXPOSURE_TENTHS_MAX}");
    let judged = analyze(&["security", "--offline=true", &threshold], &unit);
    assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stdout));
    // The same with what separates tenants, after the unit as a drop-in comes after it. A file of
    // its own, since the tool does not look for drop-ins beside a file that it is given.
    let tenant = read("packaging/vrio-node-tenant.conf");
    let tenant = tenant.replace("/usr/bin/vrio", env!("CARGO_BIN_EXE_vrio"));
    fs::write(&unit, format!("{text}\n{tenant}")).expect("ours");
    verify();
    let take_over = read("packaging/vrio-node-take-over.conf");
    let take_over = take_over.replace("/usr/bin/vrio", env!("CARGO_BIN_EXE_vrio"));
    fs::write(&unit, format!("{text}\n{take_over}")).expect("ours");
    verify();
}

fn read(path: &str) -> String {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(repository.join(path)).expect("it is in the repository")
}

/// What a unit says of a key, in its order.
fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

#[test]
fn a_node_that_dies_comes_back_however_often_and_leaves_no_core_file() {
    let unit = read("packaging/vrio-node@.service");
    let (head, service) = unit.split_once("[Service]").expect("its section");
    // Five starts in ten seconds are systemd's own limit, and 100 ms apart are soon five.
    assert_eq!(values(head, "StartLimitIntervalSec"), ["0"]);
    assert_eq!(values(service, "Restart"), ["always"]);
    assert_eq!(values(service, "LimitCORE"), ["0"]);
    // The code of a wrong configuration, which another start finds again.
    let [code] = values(service, "RestartPreventExitStatus")[..] else { panic!("{service}") };
    let home = tempfile::tempdir().expect("a directory");
    let config = home.path().join("n.toml");
    fs::write(&config, "name = 1\n").expect("ours");
    assert_eq!(vrio(&["node", "--config"], &config).status.code(), code.parse().ok());
}

#[test]
fn a_tenants_node_shares_no_user_and_no_directory_with_others() {
    let unit = read("packaging/vrio-node@.service");
    let tenant = read("packaging/vrio-node-tenant.conf");
    for key in ["User", "Group", "RuntimeDirectory", "ReadWritePaths", "ExecStart"] {
        let (all, own) = (values(&unit, key), values(&tenant, key));
        assert_eq!(all.len(), 1, "{key}");
        // What is a list in systemd is emptied first.
        let is_list = !["User", "Group"].contains(&key);
        assert_eq!(own.len(), 1 + usize::from(is_list), "{key}: {own:?}");
        assert!(!is_list || own[0].is_empty(), "{key}: {own:?}");
        assert!(own.last().expect("one").contains("vrio-%i"), "{key}: {own:?}");
    }
    for line in unit.lines().filter(|line| !line.starts_with('#')) {
        let (key, value) = line.split_once('=').unwrap_or_default();
        let shared =
            ["/etc/vrio", "/run/vrio", "/var/lib/vrio"].iter().any(|it| value.contains(it));
        assert!(!shared || !values(&tenant, key).is_empty(), "{line} is of all");
    }
}

fn vrio(arguments: &[&str], path: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    command.args(arguments).arg(path).output().expect("the binary was built")
}

#[test]
fn a_key_that_is_made_as_the_manual_says_is_the_nodes_to_read() {
    let manual = read("docs/operating.md");
    // Each step that makes a node's key also gives it away; the direct client's is root's.
    let made = manual.match_indices("vrio key new ").map(|(at, _)| &manual[at..]);
    let is_direct = |rest: &&str| rest.starts_with("vrio key new web1.key");
    let (direct, made): (Vec<_>, Vec<_>) = made.partition(is_direct);
    assert!(direct.len() == 1 && made.len() >= 4, "{} and {}", direct.len(), made.len());
    for rest in made {
        let path = rest.find("/etc/vrio/").filter(|start| *start < 40).map(|start| &rest[start..]);
        let path = path.expect("a path").split([' ', '`', '\n']).next().expect("one");
        let given = rest.find("chown vrio").expect("it is given to the node's user");
        let near = rest[given..].split_whitespace().nth(2).expect("a path");
        assert!(given < 120 && near.starts_with(path), "{path}: {near}");
    }
    if !rustix::process::geteuid().is_root() {
        return println!("SKIP a_key_that_is_made_as_the_manual_says: not root");
    }
    // /etc/vrio as tmpfiles makes it, with another user who is there everywhere.
    let home = tempfile::tempdir().expect("a directory");
    let nobody = rustix::fs::Uid::from_raw(65534);
    let group = rustix::fs::Gid::from_raw(65534);
    fs::set_permissions(home.path(), Permissions::from_mode(0o750)).expect("ours");
    rustix::fs::chown(home.path(), None, Some(group)).expect("as root");
    let [key, config] = ["io1.key", "io1.toml"].map(|name| home.path().join(name));
    assert!(vrio(&["key", "new"], &key).status.success());
    let text = format!("name = \"io1\"\nuser = \"nobody\"\nkey = {key:?}\n");
    fs::write(&config, text).expect("ours");
    let check = || vrio(&["node", "--check", "--config"], &config);
    let refused = check();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && said.contains("key file"), "{said}");
    rustix::fs::chown(&key, Some(nobody), None).expect("as root");
    let fine = check();
    assert!(fine.status.success(), "{}", String::from_utf8_lossy(&fine.stderr));
}

/// Runs a script of `packaging/` on the programs of this build.
fn packaging(script: &str, arguments: &[&Path]) -> Output {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = tempfile::tempdir().expect("a directory");
    let program = PathBuf::from(env!("CARGO_BIN_EXE_vrio"));
    let provider = bench::installed::provider().expect("it is built");
    for (file, name) in [(program, "vrio"), (provider, "libvrio_fi.so")] {
        symlink(file, folder.path().join(name)).expect("ours");
    }
    let mut command = Command::new(repository.join("packaging").join(script));
    command.arg(folder.path()).args(arguments).output().expect("it can be run")
}

#[test]
fn what_is_installed_works_from_where_it_is() {
    let home = tempfile::tempdir().expect("a directory");
    // Not where the units say that the program is by themselves.
    let put = packaging("install", &[home.path(), Path::new("/opt/vrio")]);
    assert!(put.status.success(), "{put:?}");
    let prefix = home.path().join("opt/vrio");
    let program = prefix.join("bin/vrio");
    let run = |words: &[&str]| Command::new(&program).args(words).output().expect("it is there");
    assert!(run(&["--version"]).stdout.starts_with(b"vrio "));
    let unit = fs::read_to_string(prefix.join("lib/systemd/system/vrio-node@.service")).unwrap();
    assert_eq!(values(&unit, "ExecStart"), ["/opt/vrio/bin/vrio node --config /etc/vrio/%i.toml"]);
    // The provider is where the program looks for it: what is missing is a node.
    let refused = run(&["mpi", "env", "--control", "/nowhere"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(3), "{said}");
    for page in ["vrio.1", "vrio-mpi-env.1", "vrio-node-reload.1"] {
        assert!(prefix.join("share/man/man1").join(page).is_file(), "{page}");
    }
    let completion = prefix.join("share/bash-completion/completions/vrio");
    assert!(fs::read_to_string(completion).unwrap().contains("complete -F _vrio"));
    let configuration = prefix.join("share/doc/vrio/io1.toml");
    assert!(configuration.is_file() && prefix.join("lib/udev/rules.d/60-vrio-vf.rules").is_file());
}

#[test]
fn a_debian_package_holds_the_same_and_belongs_to_root() {
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        let test = "a_debian_package_holds_the_same_and_belongs_to_root";
        return println!("SKIP {test}: no dpkg-deb here (package dpkg)");
    }
    let home = tempfile::tempdir().expect("a directory");
    let made = packaging("deb", &[home.path()]);
    assert!(made.status.success(), "{made:?}");
    let package = String::from_utf8(made.stdout).expect("a path");
    let ask = |words: &[&str]| {
        let output = Command::new("dpkg-deb").args(words).arg(package.trim()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let field_of = |field: &str| ask(&["--show", &format!("--showformat=${{{field}}}")]);
    let [name, libraries] = ["Package", "Depends"].map(field_of);
    assert_eq!(name, "vrio");
    assert!(libraries.contains("libc6 (>= 2."), "{libraries}");
    let files = ask(&["--contents"]);
    for file in ["bin/vrio", "lib/vrio/libvrio-fi.so", "share/man/man1/vrio-node.1.gz"] {
        assert!(files.contains(&format!(" ./usr/{file}\n")), "{file}: {files}");
    }
    assert!(files.lines().all(|line| line.contains(" root/root ")), "{files}");
    assert!(!files.contains(" ./etc"), "what an administrator changes is not overwritten: {files}");
}

/// The features with which cargo would build, for the packages that these arguments choose.
fn features(packages: &[&str]) -> String {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--offline", "--locked", "--edges", "normal,features"]);
    cargo.args(["--prefix", "none"]).args(packages);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = cargo.current_dir(root).output().expect("cargo runs the tests");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn the_program_that_is_shipped_forges_nothing() {
    const FORGING: &str = "transport feature \"forging\"";
    // The two ways in which it is built: as Cargo does it by itself, and as the Makefile does.
    let readme = read("README.md");
    assert!(readme.contains("    make build ") && !readme.contains("--workspace"));
    assert!(read("Makefile").contains("cargo build --release --package vrio "));
    for packages in [&[][..], &["--package", "vrio"]] {
        let features = features(packages);
        assert!(features.contains("\nvrio v") || features.starts_with("vrio v"), "{features}");
        assert!(features.contains("\ntransport v"), "{features}");
        assert!(!features.contains(FORGING), "{packages:?}: {features}");
        assert!(!features.contains("\nfuzz v"), "{packages:?}");
    }
    // So it would look.
    assert!(features(&["--workspace"]).contains(FORGING));
}
