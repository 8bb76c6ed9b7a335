//! The view of an operator at a terminal: two nodes on a host, tables in 80 columns, completion.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A host with a directory for nodes of its own and one for a tenant's, as the packages make them.
struct Host(tempfile::TempDir);

impl Host {
    fn new() -> Self {
        let host = Self(tempfile::tempdir().unwrap());
        for directory in ["vrio", "vrio-alice"] {
            std::fs::create_dir(host.0.path().join(directory)).unwrap();
        }
        host
    }

    fn directory(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Starts a node, and waits until it is ready.
    fn start(&self, directory: &str, name: &str) -> Node {
        let home = self.directory(directory);
        let file = home.join("node.toml");
        let here = home.display();
        let config = format!(
            "name = \"{name}\"\n[sidecores]\nidle = \"sleep\"\n\
             [directories]\nvolumes = \"{here}\"\nsockets = \"{here}\"\n"
        );
        std::fs::write(&file, config).unwrap();
        let mut child = self.command();
        let child = child.args(["node", "--config", file.to_str().unwrap()]);
        let mut node = Node(child.stderr(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(node.0.stderr.take().unwrap()).lines();
        let is_ready =
            |line: &Result<String, _>| line.as_ref().is_ok_and(|it| it.contains("ready"));
        assert!(lines.by_ref().any(|line| is_ready(&line)), "{name} did not start");
        std::thread::spawn(move || lines.for_each(drop));
        node
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
        let directories = [self.directory("vrio"), self.directory("vrio-alice")];
        command.env("VRIO_RUN", std::env::join_paths(directories).unwrap());
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command().args(line.split(' ')).output().unwrap()
    }

    /// The output of a command, which must succeed.
    fn good(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
        text(&output.stdout)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Killed when dropped.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn two_nodes_of_a_host_are_shown_and_told_apart() {
    let host = Host::new();
    let none = host.run("status");
    assert_eq!(none.status.code(), Some(3));
    assert!(text(&none.stderr).contains("no node runs here"), "{}", text(&none.stderr));
    let io1 = host.start("vrio", "io1");
    let only = host.good("status");
    assert!(only.starts_with("node io1: all is well\n"), "{only}");
    assert_eq!(host.good("disk list"), "no disks\n");
    let alice = host.start("vrio-alice", "alice");
    let both = host.good("status");
    assert!(both.starts_with("2 nodes run here; --node NAME shows one"), "{both}");
    for name in ["io1", "alice"] {
        assert!(both.contains(&format!("\nnode {name}: all is well\n")), "{both}");
        let one = host.good(&format!("status --node {name}"));
        assert!(one.starts_with(&format!("node {name}: all is well\n")), "{one}");
    }
    // Other commands do not choose one of the nodes by chance.
    for line in ["disk list", "volume add a --memory 1MiB", "status --json", "top --once"] {
        let output = host.run(line);
        assert_eq!(output.status.code(), Some(3), "{line}: {}", text(&output.stdout));
        let error = text(&output.stderr);
        assert!(error.contains("2 nodes run here: io1, alice; choose one with --node"), "{error}");
    }
    host.good("volume add a --memory 1MiB --node alice");
    assert!(host.good("volume list --node alice").starts_with("1 volume: all is well\n"));
    assert_eq!(host.good("volume list --node io1"), "no volumes\n");
    let unknown = text(&host.run("volume list --node bob").stderr);
    assert!(unknown.contains("no node \"bob\" runs here; running: io1, alice"), "{unknown}");
    // A socket that a dead node has left does not count as a node.
    drop(alice);
    assert!(host.directory("vrio-alice").join("alice.control").exists());
    assert!(host.good("status").starts_with("node io1: all is well\n"));
    drop(io1);
}

#[test]
fn tables_fit_80_columns_and_begin_with_what_is_wrong() {
    let host = Host::new();
    let _node = host.start("vrio", "io1");
    let long = "a-volume-with-a-name-as-long-as-a-name-may-be-which-is-63-chars";
    assert_eq!(long.len(), 63);
    host.good(&format!("volume add {long} --memory 1MiB --chain meter"));
    host.good(&format!("disk add a-disk-with-a-long-name-too --volume {long} --socket a.sock"));
    host.good("network add blue");
    host.good("nic add n --network blue --socket n.sock --mac 52:54:00:00:00:07");
    let lists = ["status", "disk list", "volume list", "network list", "nic list", "peer list"];
    for line in lists.into_iter().chain(["domain list", "vf list", "volume show"]) {
        let line = if line.ends_with("show") { format!("{line} {long}") } else { line.to_owned() };
        let said = host.good(&line);
        let widest = said.lines().map(|line| line.trim_end().chars().count()).max();
        assert!(widest <= Some(80), "{line}: {said}");
    }
    assert!(host.good("nic list").starts_with("1 nic: all is well\n"));
    host.good("nic set n --link down");
    let said = host.good("nic list");
    assert!(
        said.starts_with("1 nic: 1 problem\n  nic n is lost: its cable is unplugged"),
        "{said}"
    );
    assert!(host.good("status").starts_with("node io1: 1 problem\n  nic n is lost"));
    // A wide table has all columns.
    let narrow = host.good("nic list");
    let wide = host.good("nic list --wide");
    assert!(
        narrow.contains("(more columns: --wide)") && !narrow.contains("dropped out"),
        "{narrow}"
    );
    assert!(wide.contains("dropped out") && !wide.contains("--wide"), "{wide}");
    assert!(host.good("disk list --wide").contains(long), "not cut");
}

/// The words that bash offers at the cursor, after these words.
fn offered(host: &Host, script: &Path, line: &str) -> Vec<String> {
    let run = "source \"$0\"; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMP_TYPE=9; \
               COMP_LINE=\"$*\"; COMP_POINT=${#COMP_LINE}; COMPREPLY=(); \
               _vrio_names \"$1\" \"${COMP_WORDS[COMP_CWORD]}\" \
               \"${COMP_WORDS[COMP_CWORD-1]}\"; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut command = Command::new("bash");
    command.args(["--norc", "-c", run]).arg(script).arg(env!("CARGO_BIN_EXE_vrio"));
    command.args(line.split(' '));
    command.envs(host.command().get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = command.output().unwrap();
    assert_eq!(text(&output.stderr), "", "{line}: a person is in the middle of a line");
    text(&output.stdout).lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn bash_completes_words_and_the_names_of_a_running_node() {
    let host = Host::new();
    let script = host.directory("vrio.bash");
    std::fs::write(&script, host.good("completion bash")).unwrap();
    let offered = |line: &str| offered(&host, &script, line);
    assert_eq!(offered("dis"), ["disk"]);
    assert_eq!(offered("__"), [""; 0], "what the script asks is no command for people");
    assert_eq!(offered("disk add --role "), ["listen", "connect"]);
    assert_eq!(offered("volume add --durability w"), ["write-through"]);
    assert_eq!(offered("nic set --default "), ["allow", "deny"]);
    assert!(offered("disk show ").iter().all(|word| word.starts_with('-')), "no node, no names");
    let node = host.start("vrio", "io1");
    for line in [
        "volume add alpha --memory 1MiB",
        "volume add beta --memory 1MiB",
        "disk add x1 --volume alpha --socket x1.sock",
        "disk add x2 --volume beta --socket x2.sock",
        "network add blue",
        "nic add n1 --network blue --socket n1.sock --mac 52:54:00:00:00:07",
    ] {
        host.good(line);
    }
    assert_eq!(offered("disk show "), ["x1", "x2"]);
    assert_eq!(offered("disk remove --force x2"), ["x2"]);
    assert_eq!(offered("disk add --volume a"), ["alpha"]);
    assert_eq!(offered("volume resize "), ["alpha", "beta"]);
    assert_eq!(offered("nic add --network "), ["blue"]);
    assert_eq!(offered("nic set "), ["n1"]);
    assert_eq!(offered("status --node "), ["io1"]);
    assert!(offered("volume add ").iter().all(|word| word.starts_with('-')), "a new name");
    // Completion waits a moment for a node that does not answer, and does not fail.
    let pid = rustix::process::Pid::from_child(&node.0);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    assert!(offered("disk show ").iter().all(|word| word.starts_with('-')), "it is stopped");
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    assert_eq!(offered("disk show "), ["x1", "x2"]);
}
