//! The systemd unit: systemd itself accepts it, and finds little that it leaves open. An
//! installation works from its directory, also as a Debian package.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The exposure that systemd's own tool may find, in tenths. A unit without restrictions has 96.
/// The rest is the network, which a node needs.
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
    // The program has to be at its path for the check.
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
    // The same with the drop-in that separates tenants, appended to the unit as systemd would read
    // it. It is a file of its own, since the tool does not look for drop-ins beside a file that it
    // is given.
    let tenant = read("packaging/vrio-node-tenant.conf");
    let tenant = tenant.replace("/usr/bin/vrio", env!("CARGO_BIN_EXE_vrio"));
    fs::write(&unit, format!("{text}\n{tenant}")).expect("ours");
    verify();
    for drop_in in ["take-over", "tap"] {
        let more = read(&format!("packaging/vrio-node-{drop_in}.conf"));
        let more = more.replace("/usr/bin/vrio", env!("CARGO_BIN_EXE_vrio"));
        fs::write(&unit, format!("{text}\n{more}")).expect("ours");
        verify();
    }
}

#[test]
fn a_node_with_a_tap_may_open_that_device_and_no_other() {
    let allowed = |unit: &str| values(unit, "DeviceAllow").join("\n");
    let unit = read("packaging/vrio-node@.service");
    assert_eq!(values(&unit, "DevicePolicy"), ["closed"], "without the drop-in there is none");
    assert_eq!(allowed(&unit), "");
    let tap = read("packaging/vrio-node-tap.conf");
    assert_eq!(allowed(&tap), "/dev/net/tun rw");
    assert!(values(&tap, "AmbientCapabilities").is_empty(), "the tap is made beforehand");
    // This call is allowed again, so that the node can give its sockets to a group. No other call
    // of its kind is.
    let calls = values(&unit, "SystemCallFilter");
    assert!(calls.ends_with(&["~@privileged @keyring @memlock @setuid", "fchownat"]), "{calls:?}");
    // The drop-in is installed beside the others.
    assert!(read("packaging/install").contains("vrio-node-tap.conf"));
}

#[test]
fn a_reload_of_the_unit_says_that_the_file_is_broken() {
    let home = tempfile::tempdir().expect("a directory");
    let config = home.path().join("n.toml");
    let good = format!("name = \"n\"\ncontrol = \"{}/control\"\n", home.path().display());
    fs::write(&config, &good).expect("ours");
    let [start, reload] = ["ExecStart", "ExecReload"].map(|key| {
        let unit = read("packaging/vrio-node@.service");
        let [line] = values(&unit, key)[..] else { panic!("{key}: {unit}") };
        let line = line.replace("/etc/vrio/%i.toml", config.to_str().expect("a name"));
        let words = line.replace("/usr/bin/vrio", env!("CARGO_BIN_EXE_vrio"));
        let mut words = words.split(' ').map(str::to_owned);
        let mut command = Command::new(words.next().expect("a program"));
        command.args(words).stdin(Stdio::null());
        command
    });
    let (mut start, mut reload) = (start, reload);
    let mut node = start.stderr(Stdio::piped()).spawn().expect("it is there");
    let lines = BufReader::new(node.stderr.take().expect("piped")).lines();
    let mut lines = lines.map_while(Result::ok);
    assert!(lines.any(|line| line.contains("ready")), "it starts");
    // The node's further output is read, or the node would wait.
    std::thread::spawn(move || lines.for_each(drop));
    let fine = reload.output().expect("it is there");
    assert!(fine.status.success(), "{fine:?}");
    let network = "[[network]]\nname = \"blue\"\n";
    fs::write(&config, format!("{good}{network}")).expect("ours");
    let changed = reload.output().expect("it is there");
    assert!(changed.status.success(), "{changed:?}");
    let listed = vrio(&["network", "list", "--config"], &config);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("blue"), "{listed:?}");
    fs::write(&config, format!("{good}{network}colour = 1\n")).expect("ours");
    let broken = reload.output().expect("it is there");
    let said = String::from_utf8_lossy(&broken.stderr);
    assert!(!broken.status.success() && said.contains("colour"), "{broken:?}");
    node.kill().and_then(|()| node.wait()).expect("it ends");
}

fn read(path: &str) -> String {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(repository.join(path)).expect("it is in the repository")
}

/// The values of a key of a unit, in their order.
fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

#[test]
fn a_node_that_dies_comes_back_however_often_and_leaves_no_core_file() {
    let unit = read("packaging/vrio-node@.service");
    let (head, service) = unit.split_once("[Service]").expect("its section");
    // systemd's own limit is five starts in ten seconds, which starts 100 ms apart soon reach.
    assert_eq!(values(head, "StartLimitIntervalSec"), ["0"]);
    assert_eq!(values(service, "Restart"), ["always"]);
    assert_eq!(values(service, "LimitCORE"), ["0"]);
    // The exit code of a wrong configuration: another start would find the same fault.
    let [code] = values(service, "RestartPreventExitStatus")[..] else { panic!("{service}") };
    let home = tempfile::tempdir().expect("a directory");
    let config = home.path().join("n.toml");
    fs::write(&config, "name = 1\n").expect("ours");
    assert_eq!(vrio(&["node", "--config"], &config).status.code(), code.parse().ok());
}

/// Runs the command that the unit has after a node's end, with a `sleep` that prints the time that
/// it was asked to wait.
#[test]
fn a_start_that_fails_is_not_tried_again_at_once() {
    let home = tempfile::tempdir().expect("a directory");
    let clock = home.path().join("sleep");
    fs::write(&clock, "#!/bin/sh\necho \"$1\"\n").expect("ours");
    fs::set_permissions(&clock, Permissions::from_mode(0o755)).expect("ours");
    let unit = read("packaging/vrio-node@.service");
    let [line] = values(&unit, "ExecStopPost")[..] else { panic!("{unit}") };
    // The command as systemd reads it.
    let script = line.strip_prefix("/bin/sh -c '").and_then(|it| it.strip_suffix('\''));
    let script = script.expect("one word").replace("$$", "$");
    let pause = |status: &str| {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &script]).env("PATH", home.path()).env("EXIT_STATUS", status);
        String::from_utf8(shell.output().expect("a shell").stdout).expect("text")
    };
    assert_eq!(["0", "2", "KILL", "SEGV"].map(pause), ["", "", "", ""]);
    let config = home.path().join("n.toml");
    let text = format!(
        "name = \"n\"\ncontrol = \"{0}/control\"\n[directories]\nvolumes = \"{0}/none\"\n\
         state = \"{0}/none\"\n[[volume]]\nname = \"a\"\nbackend = {{ file = \"a.img\" }}\n",
        home.path().display()
    );
    fs::write(&config, text).expect("ours");
    let code = vrio(&["node", "--config"], &config).status.code().expect("it ends by itself");
    assert_eq!((code, pause(&code.to_string())), (1, "5\n".to_owned()), "a directory is missing");
}

#[test]
fn a_tenants_node_is_made_by_one_command() {
    if !rustix::process::geteuid().is_root() {
        return println!("SKIP a_tenants_node_is_made_by_one_command: not root");
    }
    let root = tempfile::tempdir().expect("a directory");
    let root = root.path();
    fs::create_dir(root.join("etc")).expect("ours");
    let files = [
        ("passwd", "root:x:0:0::/:/bin/sh\nqemu:x:64055:64055::/:/bin/false\n"),
        ("group", "root:x:0:\nqemu:x:64055:\n"),
        ("shadow", "root:*:::::::\nqemu:*:::::::\n"),
        ("gshadow", "root:*::\nqemu:*::\n"),
    ];
    files.iter().for_each(|(name, text)| fs::write(root.join("etc").join(name), text).unwrap());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/vrio-tenant");
    let tenant = |words: &[&str]| {
        Command::new(&script).arg("--root").arg(root).args(words).output().expect("a shell")
    };
    let line = |file: &str, name: &str| {
        let text = fs::read_to_string(root.join("etc").join(file)).expect("it is there");
        let found = text.lines().find(|line| line.starts_with(&format!("{name}:")));
        found.map(|line| line.split(':').map(str::to_owned).collect::<Vec<_>>())
    };
    for refused in [&["Alice"][..], &["a/b"], &["alice", "nobody-there"], &[]] {
        assert!(!tenant(refused).status.success(), "{refused:?}");
    }
    assert_eq!(line("passwd", "vrio-alice"), None, "what is refused changes nothing");
    let made = tenant(&["alice", "qemu"]);
    assert!(made.status.success(), "{made:?}");
    let user = line("passwd", "vrio-alice").expect("a user");
    let group = line("group", "vrio-alice").expect("a group of its own");
    let (uid, gid) = (user[2].parse().expect("a number"), group[2].parse().expect("a number"));
    assert_eq!((user[3].as_str(), user[6].as_str()), (group[2].as_str(), "/usr/sbin/nologin"));
    assert_eq!(group[3], "qemu", "it may open the sockets");
    let config = "etc/vrio-alice/alice.toml";
    for (path, mode, owner) in
        [("etc/vrio-alice", 0o750, 0), ("var/lib/vrio-alice", 0o700, uid), (config, 0o640, 0)]
    {
        let found = fs::metadata(root.join(path)).expect("it is made");
        let has = (found.permissions().mode() & 0o7777, found.uid(), found.gid());
        assert_eq!(has, (mode, owner, gid), "{path}");
    }
    let drop_in = root.join("etc/systemd/system/vrio-node@alice.service.d/tenant.conf");
    let drop_in = fs::read_to_string(drop_in).expect("it is made");
    assert_eq!(drop_in, read("packaging/vrio-node-tenant.conf"));
    // A second run changes nothing, not even a file that the operator has written to.
    fs::write(root.join(config), "name = \"other\"\n").expect("ours");
    assert!(tenant(&["alice", "qemu"]).status.success());
    assert_eq!(fs::read_to_string(root.join(config)).expect("ours"), "name = \"other\"\n");
    assert_eq!(line("passwd", "vrio-alice"), Some(user));
}

#[test]
fn a_tenants_node_shares_no_user_and_no_directory_with_others() {
    let unit = read("packaging/vrio-node@.service");
    let tenant = read("packaging/vrio-node-tenant.conf");
    for key in ["User", "Group", "RuntimeDirectory", "ReadWritePaths", "ExecStart", "ExecReload"] {
        let (all, own) = (values(&unit, key), values(&tenant, key));
        assert_eq!(all.len(), 1, "{key}");
        // The drop-in has to empty a key that is a list in systemd before it sets it.
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
    let manual = ["docs/first-pair.md", "docs/operating.md"].map(read).concat();
    // Each step that makes a node's key also gives the key to the node's user. The direct client's
    // key belongs to root.
    let made = manual.match_indices("vrio key new ").map(|(at, _)| &manual[at..]);
    let is_direct = |rest: &&str| rest.starts_with("vrio key new /etc/vrio/web1.key");
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
    // The directory /etc/vrio as tmpfiles makes it, with another user that every system has.
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
    let provider = testbed::installed::provider().expect("it is built");
    for (file, name) in [(program, "vrio"), (provider, "libvrio_fi.so")] {
        symlink(file, folder.path().join(name)).expect("ours");
    }
    let mut command = Command::new(repository.join("packaging").join(script));
    // A package of a debug build is a minute of xz.
    command.env("DPKG_DEB_COMPRESSOR_TYPE", "gzip").env("DPKG_DEB_COMPRESSOR_LEVEL", "0");
    command.arg(folder.path()).args(arguments).output().expect("it can be run")
}

#[test]
fn an_installation_works_from_its_place() {
    let home = tempfile::tempdir().expect("a directory");
    // Not the path of the program in the units as they are in the repository.
    let put = packaging("install", &[home.path(), Path::new("/opt/vrio")]);
    assert!(put.status.success(), "{put:?}");
    let prefix = home.path().join("opt/vrio");
    let program = prefix.join("bin/vrio");
    let run = |words: &[&str]| Command::new(&program).args(words).output().expect("it is there");
    assert!(run(&["--version"]).stdout.starts_with(b"vrio "));
    let unit = fs::read_to_string(prefix.join("lib/systemd/system/vrio-node@.service")).unwrap();
    assert_eq!(values(&unit, "ExecStart"), ["/opt/vrio/bin/vrio node --config /etc/vrio/%i.toml"]);
    // The program finds the provider, so only the node is missing.
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
    // The two ways to build the program: by Cargo's defaults, and by the Makefile.
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
    // The output of a build that has the feature.
    assert!(features(&["--workspace"]).contains(FORGING));
}
