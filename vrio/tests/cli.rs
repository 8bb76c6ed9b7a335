//! The command line as its users meet it: the built binary, its words and its exit codes.

use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

fn vrio(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vrio")).args(args).output().expect("the binary was built")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A node that has nothing but directories.
const LONE: &str = r#"
name = "n1"
control = "HOME/n1.control"
[directories]
volumes = "HOME"
sockets = "HOME"
"#;

/// A node with a directory of its own. Killed when dropped.
struct Running {
    child: Child,
    home: tempfile::TempDir,
    log: std::sync::mpsc::Receiver<String>,
}

impl Running {
    fn start(config: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let config = config.replace("HOME", home.path().to_str().unwrap());
        std::fs::write(home.path().join("node.toml"), config).unwrap();
        // The limit that a user's shell has.
        let mut child = Command::new("sh")
            .args(["-c", "ulimit -Sn 512 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_vrio")])
            .args(["node", "--log", "json", "--config"])
            .arg(home.path().join("node.toml"))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (line_in, log) = std::sync::mpsc::channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|l| line_in.send(l)));
        Self { child, home, log }
    }

    /// Waits for a log line. If the node ends instead, the test fails and shows the log.
    fn wait_for(&self, what: &str) -> String {
        let mut seen = Vec::new();
        while let Ok(line) = self.log.recv() {
            if line.contains(what) {
                return line;
            }
            seen.push(line);
        }
        panic!("the node ended without {what:?}:\n{}", seen.join("\n"));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Runs `kill -TERM` and gives the exit code.
    fn terminate(&mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn example(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name);
    path.to_str().unwrap().to_owned()
}

/// An example in a folder of its own, with its key files there too.
fn example_in(home: &Path, name: &str) -> String {
    let config = std::fs::read_to_string(example(name)).unwrap();
    let path = home.join(name);
    std::fs::write(&path, config.replace("/etc/vrio", home.to_str().unwrap())).unwrap();
    path.to_str().unwrap().to_owned()
}

fn check(config: &str) -> Output {
    vrio(&["node", "--config", config, "--check"])
}

/// The public half of a key: a word of 44 characters.
fn public(key: &Path) -> String {
    let output = vrio(&["key", "show", key.to_str().unwrap()]);
    let shown = text(&output.stdout);
    let word = shown.split_whitespace().map(|word| word.trim_matches('"'));
    word.into_iter().find(|word| word.len() == 44 && word.ends_with('=')).unwrap().to_owned()
}

/// An example after an operator has adapted it: this host's addresses and directories, and keys.
fn adapt(home: &Path, name: &str) -> String {
    let config = example_in(home, name);
    let mut text = std::fs::read_to_string(&config).unwrap();
    for directory in ["/var/lib/vrio", "/run/vrio"] {
        text = text.replace(directory, home.to_str().unwrap());
    }
    for address in ["10.0.0.9", "10.0.0.1"] {
        text = text.replace(address, "127.0.0.1");
    }
    let placeholders = [
        ("dGhlIHB1YmxpYyBrZXkgb2Ygdm0xOiByZXBsYWNlLi4=", "vm1.key"),
        ("dGhlIHB1YmxpYyBrZXkgb2YgaW8xOiByZXBsYWNlLi4=", "io1.key"),
        ("YWxpY2UncyBhdHRhY2htZW50IGtleTogcmVwbGFjZS4=", "alice.key"),
    ];
    for (placeholder, key) in placeholders {
        text = text.replace(placeholder, &public(&home.join(key)));
    }
    std::fs::write(&config, text).unwrap();
    config
}

#[test]
fn an_example_passes_the_check_when_it_was_adapted_and_not_before() {
    let home = tempfile::tempdir().unwrap();
    for (key, more) in [("io1.key", ""), ("vm1.key", ""), ("alice.key", "--attachment")] {
        let path = home.path().join(key);
        let words = ["key", "new", more, path.to_str().unwrap()];
        let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
        assert!(vrio(&words).status.success());
    }
    for name in ["io1.toml", "vm1.toml"] {
        let output = check(&example_in(home.path(), name));
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(
            error.contains("is a placeholder; write the key that `vrio key show` prints"),
            "{error}"
        );
        let output = check(&adapt(home.path(), name));
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(text(&output.stdout).ends_with(" is fine\n"));
    }
}

/// Everything that keeps a node from starting, or a peer from getting in, on this host.
#[test]
fn the_check_looks_at_what_the_file_names_and_says_everything_at_once() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("n.toml");
    let here = home.path().to_str().unwrap();
    std::fs::write(home.path().join("small.img"), [0; 4096]).unwrap();
    std::fs::write(home.path().join("a.img"), []).unwrap();
    std::fs::write(home.path().join("file"), []).unwrap();
    let key = home.path().join("n.key");
    assert!(vrio(&["key", "new", key.to_str().unwrap()]).status.success());
    let ended = public(&key);
    let config = format!(
        r#"name = "n"
listen = "192.0.2.1:4870"
key = "{here}/n.key"
[sidecores]
cores = [1023]
[directories]
volumes = ["{here}", "{here}/gone"]
sockets = "{here}/file"
[[volume]]
name = "small"
backend = {{ file = "small.img", size = "1MiB" }}
[[volume]]
name = "empty"
backend = {{ file = "a.img" }}
[[volume]]
name = "none"
backend = {{ file = "none.img" }}
allow = [{{ node = "vm1", key = "YWxpY2UncyBhdHRhY2htZW50IGtleTogcmVwbGFjZS4=" }}]
[[peer]]
name = "vm1"
keys = [{{ key = "{ended}", expires = 2020-01-01T00:00:00Z }}]
"#
    );
    std::fs::write(&path, config).unwrap();
    let output = check(path.to_str().unwrap());
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    let problems = [
        "192.0.2.1 cannot be used",
        "no sidecore can run on core 1023",
        "gone\": No such file or directory (os error 2); make it, or mount its file system",
        "file\": not a directory",
        "small.img",
        "a.img",
        "none.img",
        "is a placeholder",
        "expired at 2020-01-01T00:00:00Z and is refused",
    ];
    for problem in problems {
        assert_eq!(error.matches(problem).count(), 1, "{problem:?} once in: {error}");
    }
    // The check made no files.
    assert!(!home.path().join("none.img").exists() && !home.path().join(".vrio").exists());
}

#[test]
fn the_check_opens_key_files() {
    let home = tempfile::tempdir().unwrap();
    let config = example_in(home.path(), "vm1.toml");
    // All problems are reported at once, each with its line.
    let refused = |node: &str, alice: &str| {
        let output = check(&config);
        assert_eq!(output.status.code(), Some(2));
        let error = text(&output.stderr);
        let place = |key: &str| {
            let toml = std::fs::read_to_string(&config).unwrap();
            let line = toml.lines().position(|line| line.starts_with(key)).unwrap();
            format!("vm1.toml:{}: ", line + 1)
        };
        for part in [&*place("key"), "vm1.key", node, &*place("attachment-key"), alice] {
            assert!(error.contains(part), "{part:?} is missing in: {error}");
        }
    };
    let missing = "the file does not exist; make one with `vrio key new";
    refused(missing, &format!("{missing} --attachment FILE`"));
    for name in ["vm1.key", "alice.key"] {
        assert!(vrio(&["key", "new", home.path().join(name).to_str().unwrap()]).status.success());
    }
    let mode = |mode| Permissions::from_mode(mode);
    std::fs::set_permissions(home.path().join("vm1.key"), mode(0o640)).unwrap();
    refused("(mode 0640)", "this is a node key and an attachment key is wanted");
    std::fs::set_permissions(home.path().join("vm1.key"), mode(0o600)).unwrap();
    std::fs::write(home.path().join("vm1.key"), "vrio node key\nsecret: AAAA\n").unwrap();
    refused("it is damaged: it is cut short", "alice.key");
}

#[test]
fn a_wrong_configuration_is_exit_code_2() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("a.toml");
    std::fs::write(&path, "name = \"a\"\nlisen = \"127.0.0.1:1\"\n").unwrap();
    let output = vrio(&["node", "--config", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr).replace(home.path().to_str().unwrap(), "HOME");
    let start = "vrio: HOME/a.toml:2: unknown key \"lisen\"; did you mean \"listen\"?";
    assert!(error.starts_with(start), "{error}");
}

#[test]
fn the_control_socket_is_named_alike_everywhere() {
    let commands = ["status", "top --once", "disk list", "volume list", "peer list", "node reload"];
    for command in commands {
        let words: Vec<_> = command.split(' ').chain(["--control", "/nonexistent/c"]).collect();
        let output = vrio(&words);
        assert_eq!(output.status.code(), Some(3), "{command}: {}", text(&output.stderr));
    }
}

#[test]
fn no_node_is_exit_code_3() {
    let output = vrio(&["status", "--socket", "/nonexistent/control"]);
    assert_eq!(output.status.code(), Some(3));
    let start = "vrio: no node answers at \"/nonexistent/control\"; is it running";
    assert!(text(&output.stderr).starts_with(start), "{}", text(&output.stderr));
}

#[test]
fn help_has_examples_and_completion_completes() {
    let commands =
        ["node", "status", "top", "completion", "man", "key new", "key show", "disk", "volume"];
    for command in commands.into_iter().chain(["peer", "node reload"]) {
        let words: Vec<_> = command.split(' ').chain(["--help"]).collect();
        let help = text(&vrio(&words).stdout);
        assert!(help.contains("Examples:"), "{command}: {help}");
    }
    let script = text(&vrio(&["completion", "bash"]).stdout);
    for word in ["--config", "--error-after", "reload"] {
        assert!(script.contains(word), "{word}");
    }
    assert_eq!(vrio(&["nod"]).status.code(), Some(2));
}

/// Bash cuts `alice@mon` into three words and replaces the last one. The script asks for the name
/// as a whole, and gives bash the rest of it.
#[test]
fn bash_completes_names_with_the_characters_at_which_it_cuts_words() {
    let home = tempfile::tempdir().unwrap();
    let (script, fake) = (home.path().join("completion"), home.path().join("vrio"));
    std::fs::write(&script, vrio(&["completion", "bash"]).stdout).unwrap();
    let answers = "#!/bin/bash\nprintf '<%s>' \"$@\" >>\"$0.asked\"\n\
                   printf '%s\\n' alice@monday alice@may p:17\n";
    std::fs::write(&fake, answers).unwrap();
    std::fs::set_permissions(&fake, Permissions::from_mode(0o755)).unwrap();
    let asks = format!(
        "source {script:?}; COMP_LINE=\"$*\"; COMP_POINT=${{#COMP_LINE}}; _vrio_names {fake:?}; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    for (line, asked, replies) in [
        ("vrio volume remove alice@m", "<volume><remove><alice@m>", "monday\nmay\np:17\n"),
        ("vrio volume remove p:", "<volume><remove><p:>", "alice@monday\nalice@may\n17\n"),
        ("vrio volume clone ", "<volume><clone><>", "alice@monday\nalice@may\np:17\n"),
    ] {
        let mut bash = Command::new("bash");
        let shown = bash.args(["--norc", "-c", &asks, "bash", line]).output().unwrap();
        assert_eq!(text(&shown.stdout), replies, "{line}: {}", text(&shown.stderr));
        let file = home.path().join("vrio.asked");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("<__complete>{asked}"));
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn keys_are_made_once_and_shown_without_their_secret() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    for (file, option) in [("io1.key", None), ("alice.key", Some("--attachment"))] {
        let file = path(file);
        let words: Vec<_> = ["key", "new"].into_iter().chain(option).chain([&*file]).collect();
        let made = vrio(&words);
        assert!(made.status.success(), "{}", text(&made.stderr));
        let public = text(&made.stdout).trim_end().to_owned();
        assert_eq!(public.len(), 44, "only the public half is printed: {public}");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o600);
        let before = std::fs::read_to_string(&file).unwrap();
        let again = vrio(&words);
        assert_eq!(again.status.code(), Some(2));
        assert!(text(&again.stderr).contains("the file exists and stays"));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
        let shown = text(&vrio(&["key", "show", &file]).stdout);
        let json = vrio(&["key", "show", &file, "--json"]).stdout;
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(
            (&*public, &*file),
            (json["public"].as_str().unwrap(), json["file"].as_str().unwrap())
        );
        let secret = before.lines().nth(1).unwrap().strip_prefix("secret: ").unwrap();
        assert!(shown.contains(&public) && !shown.contains(secret), "{shown}");
        let (kind, place) = match option {
            None => ("node", "[[peer]]"),
            Some(_) => ("attachment", "allow = [{ node = "),
        };
        assert_eq!(json["kind"], kind);
        assert!(shown.contains(place), "{shown}");
    }
}

#[test]
fn a_bad_key_file_is_named_with_the_way_out() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("a.key");
    let file = path.to_str().unwrap();
    let refused = |code, part: &str| {
        let output = vrio(&["key", "show", file]);
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains(part), "{part}: {}", text(&output.stderr));
    };
    refused(2, "make one with `vrio key new");
    std::fs::write(&path, "vrio node key\n").unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    refused(2, "it is cut short");
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    refused(2, "chmod 600");
    let nowhere = vrio(&["key", "new", &format!("{file}/b.key")]);
    assert_eq!(nowhere.status.code(), Some(1));
}

/// A shell's limit is 1,024 at most machines, and front ends bring hundreds.
#[test]
fn a_node_takes_as_many_descriptors_as_it_may_have() {
    let node = Running::start(LONE);
    node.wait_for("ready");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", node.child.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let [soft, hard] = [3, 4].map(|at| line.split_whitespace().nth(at).unwrap());
    assert_eq!(soft, hard, "{line}");
}

/// systemd says by `JOURNAL_STREAM` which file the journal reads.
#[test]
fn the_journal_gets_priorities_and_no_second_time() {
    for is_journal in [true, false] {
        let home = tempfile::tempdir().unwrap();
        let config = LONE.replace("HOME", home.path().to_str().unwrap());
        std::fs::write(home.path().join("node.toml"), config).unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        let of = file.metadata().unwrap();
        let inode = if is_journal { of.ino() } else { of.ino() + 1 };
        let mut node = Command::new(env!("CARGO_BIN_EXE_vrio"))
            .args(["node", "--config"])
            .arg(home.path().join("node.toml"))
            .env("JOURNAL_STREAM", format!("{}:{inode}", of.dev()))
            .stderr(file)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(reader).lines().map(Result::unwrap);
        let line = lines.find(|line| line.contains("ready")).expect("it starts");
        node.kill().unwrap();
        node.wait().unwrap();
        let (begin, rest) = line.split_at(3);
        assert_eq!(begin == "<6>" && !rest.contains("INFO"), is_journal, "{line}");
        assert_eq!(line.starts_with("20"), !is_journal, "{line}");
    }
}

#[test]
fn a_node_starts_tells_its_status_and_stops() {
    let mut node = Running::start(
        r#"
name = "n1"
control = "HOME/n1.control"
[sidecores]
count = 2
idle = "sleep"
"#,
    );
    node.wait_for("ready");
    let socket = node.path("n1.control");
    let socket = socket.to_str().unwrap();
    let json = vrio(&["status", "--json", "--socket", socket]);
    assert!(json.status.success(), "{}", text(&json.stderr));
    let status: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(status["version"], 1);
    assert_eq!(status["node"]["name"], "n1");
    assert_eq!(status["sidecores"].as_array().unwrap().len(), 2);
    let config = node.path("node.toml");
    let tables = vrio(&["status", "--config", config.to_str().unwrap()]);
    assert!(text(&tables.stdout).contains("SIDECORES"), "{}", text(&tables.stdout));
    assert_eq!(node.terminate(), Some(0));
    node.wait_for("stopped");
    assert!(!Path::new(socket).exists());
}

#[test]
fn the_manual_has_a_page_for_each_command() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("man1");
    let written = vrio(&["man", directory.to_str().unwrap()]);
    assert_eq!(written.status.code(), Some(0), "{}", text(&written.stderr));
    for (page, says) in [
        ("vrio.1", "vrio"),
        ("vrio-node.1", "configuration"),
        ("vrio-volume-resize.1", "shrink"),
        ("vrio-nic-set.1", "link"),
        ("vrio-attach.1", "take\\-over"),
    ] {
        let page_text = std::fs::read_to_string(directory.join(page)).expect(page);
        assert!(page_text.starts_with(".ie") && page_text.contains(says), "{page}: {page_text}");
    }
    let in_the_way = home.path().join("file");
    std::fs::write(&in_the_way, "").unwrap();
    let refused = vrio(&["man", in_the_way.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1), "{}", text(&refused.stderr));
}

/// The output of `vrio disk show --for qemu` is given to QEMU without changes.
#[test]
fn qemu_takes_what_is_printed_for_it() {
    if Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
        println!("SKIP qemu_takes_what_is_printed_for_it: qemu-system-x86_64 is not installed");
        return;
    }
    let node = Running::start(LONE);
    node.wait_for("ready");
    let file = node.path("node.toml");
    let run = |line: &str| {
        let mut args: Vec<_> = line.split(' ').collect();
        args.extend(["--config", file.to_str().unwrap()]);
        text(&vrio(&args).stdout)
    };
    run("volume add a --memory 1MiB");
    run("disk add x --volume a --socket a,b.sock --queues 2");
    let domain = run("disk show x --for libvirt");
    assert!(domain.contains("queues='2'") && domain.contains("a,b.sock'"), "{domain}");
    let options = run("disk show x --for qemu");
    run("network add blue");
    run("nic add n --network blue --socket n.sock --mac 52:54:00:00:00:07 --queues 2 --mtu 9000");
    let domain = run("nic show n --for libvirt");
    assert!(domain.contains("address='52:54:00:00:00:07'"), "{domain}");
    let nic_options = run("nic show n --for qemu");
    // The guest's memory is named once.
    let nic_options: Vec<_> = nic_options.lines().skip(3).collect();
    let mut options: Vec<_> = options.lines().skip(1).collect();
    let joined = format!("{} \\", options.pop().expect("the device"));
    options.push(&joined);
    let script = format!(
        "exec qemu-system-x86_64 -S -display none -nodefaults -m 2G -smp 2 {}",
        [options, nic_options].concat().join("\n")
    );
    let mut qemu = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    let connected = |_: &u32| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let pid = format!("\"front_end_pid\":{}", qemu.id());
        run("disk show x --json").contains(&pid) && run("nic show n --json").contains(&pid)
    };
    let found = (0..300).find(connected);
    qemu.kill().unwrap();
    qemu.wait().unwrap();
    assert!(found.is_some(), "QEMU did not connect: {script}");
}

#[test]
fn a_running_node_is_changed_by_commands() {
    let node = Running::start(LONE);
    node.wait_for("ready");
    let file = node.path("node.toml");
    let run = |line: &str| {
        let mut args: Vec<_> = line.split(' ').collect();
        args.extend(["--config", file.to_str().unwrap()]);
        let output = vrio(&args);
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let good = |line: &str, says: &str| {
        let (code, out, error) = run(line);
        assert_eq!(code, Some(0), "{line}: {error}");
        assert!(out.contains(says), "{line}: {says:?} is missing in: {out}");
    };
    let bad = |line: &str, wanted: i32, says: &str| {
        let (code, out, error) = run(line);
        assert_eq!(code, Some(wanted), "{line}: {out}{error}");
        assert!(error.contains(says), "{line}: {says:?} is missing in: {error}");
    };
    good("volume add a --file a.img --size 1MiB --chain meter", "done: add volume \"a\"");
    good("volume chain a meter limit:iops=500,burst=1s", "meter > limit 500 IOPS");
    good("disk add --volume a --socket x.sock --queues 2 --error-after 30s", "note: this is lost");
    good("disk list", "ready");
    good("disk show x", "origin command");
    good("disk show x --json", "\"origin\":\"command\"");
    good("volume show a", "chain meter > limit 500 IOPS");
    good("volume list --json", "[{\"name\":\"a\"");
    good("status", "disk \"x\" was added by a command");
    good("peer list --json", "[]");
    bad(
        "volume remove a",
        1,
        "is used by disk \"x\"; remove or stop these users first; or use --force",
    );
    bad("volume add b --file b.img --chain limit:iops=none", 2, "a whole number is wanted");
    bad("volume add b", 2, "--file");
    bad("disk add --volume a --socket x.sock", 2, "the same socket");
    // This command has no --force: a disk cannot be without its peer.
    bad("peer remove io1 --force", 2, "--force");
    bad("peer remove io1", 1, "there is no peer \"io1\"");
    bad("disk move x --queue 0 --sidecore 0", 1, "its guest has not started it");
    bad("disk move x --queue 2 --sidecore 0", 2, "its queues are 0 to 1");
    bad("disk move x --queue 0", 2, "--sidecore");
    bad("disk move y --queue 0 --sidecore 0", 1, "there is no disk \"y\"");
    bad("disk remove y", 1, "there is no disk \"y\"");
    bad("peer add io1 --address 127.0.0.1:1", 2, "\"listen\" is missing");
    good("network add blue", "done: add network \"blue\"");
    good("nic add --network blue --socket n.sock --mac 52:54:00:00:00:07", "to network blue");
    good("nic set n --limit bytes-per-second=1MiB --default deny --rule deny", "limit, filter");
    good("nic set n --meter", "done: change nic \"n\": meter");
    good("nic show n", "meter > filter of 1 rules > limit 1MiB/s");
    bad("nic set n --mirror n.pcap", 2, "no directory for mirrors' files is named");
    good("nic set n --no-limit --no-filter --link down", "change nic \"n\": link, limit, filter");
    good("nic list", "lost");
    good("network list --json", "\"nics\":[\"n\"]");
    good("network show blue", "addresses_moved");
    good("status", "its cable is unplugged; `vrio nic set n --link up` plugs it in");
    bad("nic set n --limit fast", 2, "\"fast\" has no '='");
    bad("nic set n --rule deny", 2, "--default");
    bad("network remove blue", 1, "is used by nic \"n\"");
    good("network remove blue --force", "nic \"n\" was removed with its network");
    good("disk remove x", "done: remove disk \"x\"");
    good("volume chain a --none", "the chain is now empty");
    good("volume remove a", "done: remove volume \"a\"");
}

#[test]
fn a_reload_asks_first_and_a_signal_does_it() {
    let node = Running::start(LONE);
    node.wait_for("ready");
    let file = node.path("node.toml");
    let reload = |more: &[&str]| {
        let config = ["--config", file.to_str().unwrap()];
        let args: Vec<_> = ["node", "reload"].iter().chain(&config).chain(more).copied().collect();
        let output = vrio(&args);
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let before = std::fs::read_to_string(&file).unwrap();
    let (code, out, _) = reload(&[]);
    assert_eq!((code, out.contains("nothing to change")), (Some(0), true), "{out}");
    let volume = "[[volume]]\nname = \"a\"\nbackend = { memory = \"1MiB\" }\n";
    std::fs::write(&file, format!("{before}{volume}")).unwrap();
    let (code, out, error) = reload(&[]);
    assert_eq!(code, Some(2), "nobody is there to say yes");
    assert!(
        out.contains("1 change\n  add volume \"a\"") && error.contains("--yes"),
        "{out}{error}"
    );
    let (code, out, _) = reload(&["--check"]);
    assert_eq!((code, out.contains("add volume")), (Some(0), true), "{out}");
    let (code, out, error) = reload(&["--yes"]);
    assert_eq!((code, out.contains("done: add volume \"a\"")), (Some(0), true), "{out}{error}");
    std::fs::write(&file, format!("{before}{volume}backend = 1\n")).unwrap();
    let (code, _, error) = reload(&["--yes"]);
    assert_eq!(code, Some(2), "{error}");
    assert!(error.contains("node.toml:10: the key \"backend\" is given twice"), "{error}");
    std::fs::write(&file, before).unwrap();
    let pid = node.child.id().to_string();
    assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    node.wait_for("remove volume");
    node.wait_for("reloaded");
}

#[test]
fn a_drained_node_is_waited_for() {
    let node = Running::start(LONE);
    node.wait_for("ready");
    let file = node.path("node.toml");
    let run = |line: &str| {
        let mut args: Vec<_> = line.split(' ').collect();
        args.extend(["--config", file.to_str().unwrap()]);
        let output = vrio(&args);
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    run("volume add a --memory 1MiB");
    run("disk add x --volume a --socket x.sock");
    let guest = std::os::unix::net::UnixStream::connect(node.path("x.sock")).unwrap();
    let is_there = |_: &u32| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        run("disk show x --json").1.contains("\"front_end_pid\"")
    };
    assert!((0..1000).any(|at| is_there(&at)), "the node takes it");
    let (code, out, error) = run("node drain --wait 0");
    assert_eq!(code, Some(1), "{out}{error}");
    let user = format!("users left: 1\n  disk \"x\": a guest (process {})", std::process::id());
    assert!(out.contains(&user) && error.contains("the node still has users"), "{out}{error}");
    assert!(run("status").1.contains("it is drained"));
    drop(guest);
    let (code, out, error) = run("node drain --wait 60");
    assert_eq!(code, Some(0), "{out}{error}");
    assert!(out.ends_with("and none is left\n"), "{out}");
    assert_eq!(run("node drain --undo").1, "the node takes new users again\n");
    assert_eq!(run("node drain --undo --wait 1").0, Some(2));
}

#[test]
fn a_second_node_on_one_control_socket_is_refused() {
    let node = Running::start("name = \"n1\"\ncontrol = \"HOME/n1.control\"\n");
    node.wait_for("ready");
    let config = node.path("node.toml");
    let output = vrio(&["node", "--config", config.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("is in use"), "{}", text(&output.stderr));
}

/// A user that may not write the files of others, for tests that run as root.
const NOBODY: u32 = 65534;

#[test]
fn a_file_that_is_not_writable_is_named() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name);
    let config = r#"
name = "n1"
control = "HOME/run/n1.control"
[directories]
volumes = "HOME"
state = "HOME/run/state"
[[volume]]
name = "a"
backend = { file = "a.img", size = "1MiB" }
"#;
    let config = config.replace("HOME", home.path().to_str().unwrap());
    std::fs::write(path("n.toml"), config).unwrap();
    std::fs::write(path("a.img"), vec![0; 1 << 20]).unwrap();
    std::fs::create_dir(path("run")).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_vrio"), path("vrio")).unwrap();
    let modes = [("", 0o755), ("vrio", 0o755), ("n.toml", 0o644), ("a.img", 0o444)];
    for (name, mode) in modes.into_iter().chain([("run", 0o777)]) {
        std::fs::set_permissions(path(name), Permissions::from_mode(mode)).unwrap();
    }
    let mut command = Command::new(path("vrio"));
    command.arg("node").arg("--config").arg(path("n.toml"));
    if File::options().write(true).open(path("a.img")).is_ok() {
        command.uid(NOBODY).gid(NOBODY);
    }
    // A process that another test started while the copy was open for writing has the copy open as
    // well, until that process runs its own program.
    let output = (0..100).find_map(|_| match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
            std::thread::sleep(std::time::Duration::from_millis(50));
            None
        }
        other => Some(other.unwrap()),
    });
    let output = output.expect("nobody writes to it");
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    for part in ["n.toml:9: volume \"a\"", "a.img: not writable", "read-only"] {
        assert!(error.contains(part), "{part:?} is missing in: {error}");
    }
}
