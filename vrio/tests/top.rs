//! `vrio top` on a terminal and without one: it shows the node, ends when asked, and leaves the
//! terminal as it was.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bench::nodes::{Node, NodePlan};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

/// Longer than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(30);

const VRIO: &str = env!("CARGO_BIN_EXE_vrio");

fn node(home: &tempfile::TempDir) -> Node {
    let config = "[[volume]]\nname = \"scratch\"\nbackend = { memory = \"1MiB\" }\n\
                  chain = [\"meter\"]\n[[disk]]\nsocket = \"a.sock\"\nvolume = \"scratch\"\n";
    let plan = NodePlan::new(VRIO, home.path(), "n1", config.to_owned());
    plan.start().expect("it starts")
}

/// A terminal of which this test is the other end.
struct Terminal {
    keys: File,
    /// What programs are given.
    side: OwnedFd,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn new() -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&ours).expect("ours");
        unlockpt(&ours).expect("ours");
        let name = ptsname(&ours, Vec::new()).expect("it has a name");
        let name = name.to_str().expect("a path").to_owned();
        let side = File::options().read(true).write(true).open(name).expect("it is there").into();
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&side, size).expect("a terminal has a size");
        let keys = File::from(ours);
        let mut screen = keys.try_clone().expect("a descriptor");
        let shown: Arc<Mutex<Vec<u8>>> = Arc::default();
        let seen = Arc::clone(&shown);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count) = screen.read(&mut bytes) {
                seen.lock().expect("no panic").extend_from_slice(&bytes[..count]);
            }
        });
        Self { keys, side, shown }
    }

    fn top(&self, node: &Node) -> Child {
        let end = || Stdio::from(self.side.try_clone().expect("a descriptor"));
        let mut command = Command::new(VRIO);
        command.arg("top").arg("--socket").arg(node.plan().control());
        command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("it was built")
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().expect("no panic")).into_owned()
    }

    fn wait_for(&self, what: &str) {
        self.wait_for_times(what, 1);
    }

    fn wait_for_times(&self, what: &str, times: usize) {
        let until = Instant::now() + PATIENCE;
        while self.shown().matches(what).count() < times {
            assert!(Instant::now() < until, "never {what:?} in {:?}", self.shown());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What tells whether it is as it was: modes of the line, and the control characters.
    fn modes(&self) -> String {
        format!("{:?}", tcgetattr(&self.side).expect("a terminal"))
    }
}

fn wait(mut child: Child) -> std::process::ExitStatus {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return status;
        }
        assert!(Instant::now() < until, "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Leaving the other screen, and the cursor back.
const LEFT: [&str; 2] = ["\x1b[?1049l", "\x1b[?25h"];

#[test]
fn it_shows_the_node_and_leaves_the_terminal_as_it_was() {
    let home = tempfile::tempdir().expect("a directory");
    let node = node(&home);
    for ends in ["q", "TERM", "INT"] {
        let mut terminal = Terminal::new();
        let before = terminal.modes();
        let child = terminal.top(&node);
        terminal.wait_for("\x1b[?1049h");
        terminal.wait_for("n1");
        terminal.wait_for("scratch");
        assert_ne!(terminal.modes(), before, "keys come one by one, without an echo");
        match ends {
            "q" => terminal.keys.write_all(b"q").expect("it reads"),
            signal => {
                let mut kill = Command::new("kill");
                kill.arg(format!("-{signal}")).arg(child.id().to_string());
                assert!(kill.status().expect("kill is there").success());
            }
        }
        let status = wait(child);
        assert!(status.success(), "{ends}: {status}: {:?}", terminal.shown());
        LEFT.iter().for_each(|what| terminal.wait_for(what));
        assert_eq!(terminal.modes(), before, "{ends}");
    }
    node.stop().expect("it stops in order");
}

#[test]
fn a_node_that_goes_is_said_so_and_one_that_returns_is_shown() {
    let home = tempfile::tempdir().expect("a directory");
    let first = node(&home);
    let mut terminal = Terminal::new();
    let child = terminal.top(&first);
    terminal.wait_for("scratch");
    let plan = first.kill().expect("it ran until now");
    terminal.wait_for("no node answers");
    let node = plan.start().expect("it starts again");
    // Only what differs is drawn: the foot that the problem had covered.
    terminal.wait_for_times("q quits", 2);
    terminal.keys.write_all(b"q").expect("it reads");
    assert!(wait(child).success());
    node.stop().expect("it stops in order");
}

#[test]
fn without_a_terminal_one_second_is_printed() {
    let home = tempfile::tempdir().expect("a directory");
    let node = node(&home);
    let top = |more: &[&str]| {
        let mut command = Command::new(VRIO);
        command.arg("top").arg("--socket").arg(node.plan().control()).args(more);
        command.stdin(Stdio::null()).output().expect("it was built")
    };
    for more in [&[][..], &["--once"]] {
        let output = top(more);
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success());
        assert!(text.starts_with("node n1"), "{text}");
        assert!(text.contains("SIDECORE") && text.contains("scratch"), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
    }
    let output = top(&["--json"]);
    let view: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(view["disks"][0]["state"], "ready");
    assert_eq!(view["disks"][0]["requests_per_s"], 0.0);
    assert!(view["sidecores"][0]["busy_share"].as_f64().expect("a number") <= 1.0);
    node.stop().expect("it stops in order");
}

#[test]
fn no_node_is_exit_code_3() {
    let output = Command::new(VRIO).args(["top", "--socket", "/nonexistent/c"]).output();
    let output = output.expect("it was built");
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
}
