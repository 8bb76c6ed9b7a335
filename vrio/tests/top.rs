//! `vrio top` on a terminal and without one: it shows the node, ends when asked, and leaves the
//! terminal as it was.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};
use testbed::nodes::{Node, NodePlan};

/// Longer than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(60);

const VRIO: &str = env!("CARGO_BIN_EXE_vrio");

fn node(home: &tempfile::TempDir) -> Node {
    let config = "[[volume]]\nname = \"scratch\"\nbackend = { memory = \"1MiB\" }\n\
                  chain = [\"meter\"]\n[[disk]]\nsocket = \"a.sock\"\nvolume = \"scratch\"\n";
    let plan = NodePlan::new(VRIO, home.path(), "n1", config.to_owned());
    plan.start().expect("it starts")
}

/// Both ends of a terminal: the test's end, and the end that programs are given. No program
/// inherits the test's end, which would keep the terminal open.
fn pair() -> (File, File) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags).expect("a terminal");
    grantpt(&ours).expect("ours");
    unlockpt(&ours).expect("ours");
    let side = File::options().read(true).write(true).open(name(&ours)).expect("it is there");
    let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&side, size).expect("a terminal has a size");
    (ours.into(), side)
}

/// The path of a terminal, of which this is the test's end.
fn name(ours: impl AsFd) -> String {
    let name = ptsname(ours, Vec::new()).expect("it has a name");
    name.into_string().expect("a path")
}

/// Starts `vrio top` on a terminal.
fn top(side: &File, node: &Node) -> Child {
    let end = || Stdio::from(side.try_clone().expect("a descriptor"));
    let mut command = Command::new(VRIO);
    command.arg("top").arg("--socket").arg(node.plan().control());
    command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("it was built")
}

/// Reads the screen's output until it has these words.
fn read_to(words: &str, ours: &mut File) {
    let (mut shown, mut bytes) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&shown).contains(words) {
        let count = ours.read(&mut bytes).expect("the program draws");
        shown.extend_from_slice(&bytes[..count]);
    }
}

fn signal(child: &Child, signal: &str) {
    let mut kill = Command::new("kill");
    kill.arg(format!("-{signal}")).arg(child.id().to_string());
    assert!(kill.status().expect("kill is there").success());
}

/// A terminal of which this test is the other end.
struct Terminal {
    keys: File,
    /// The end that programs are given.
    side: File,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn new() -> Self {
        let (keys, side) = pair();
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
        top(&self.side, node)
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

    /// The modes of the line and the control characters: they tell whether the terminal is as it
    /// was.
    fn modes(&self) -> String {
        modes(&self.side)
    }
}

fn modes(side: &File) -> String {
    format!("{:?}", tcgetattr(side).expect("a terminal"))
}

fn wait(mut child: Child) -> std::process::ExitStatus {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return status;
        }
        if Instant::now() > until {
            child.kill().expect("a child");
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The sequences that leave the other screen and show the cursor again.
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
            name => signal(&child, name),
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
    // Only the difference is drawn: the last line, which the problem had covered.
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

/// A window that is closed takes its terminal away and tells the terminal's session; `vrio top` may
/// belong to another session, and then gets no signal.
#[test]
fn it_ends_when_its_terminal_is_gone() {
    let home = tempfile::tempdir().expect("a directory");
    let node = node(&home);
    let (mut ours, side) = pair();
    let child = top(&side, &node);
    read_to("scratch", &mut ours);
    drop((side, ours));
    wait(child);
    node.stop().expect("it stops in order");
}

/// The terminal behaves as behind a connection that stands still: every write waits for ever.
#[test]
fn a_signal_ends_it_where_its_terminal_takes_no_output() {
    let home = tempfile::tempdir().expect("a directory");
    let node = node(&home);
    let (mut ours, side) = pair();
    let before = modes(&side);
    let child = top(&side, &node);
    read_to("scratch", &mut ours);
    let full = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(name(&ours));
    let mut full = full.expect("it is there");
    let error = loop {
        // Bytes that have not reached the test's end yet make room once more.
        std::thread::sleep(Duration::from_millis(1));
        if let Err(error) = full.write(b".") {
            break error;
        }
        while full.write(&[b'.'; 512]).is_ok() {}
    };
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    signal(&child, "TERM");
    wait(child);
    assert_eq!(modes(&side), before, "keys are lines again");
    node.stop().expect("it stops in order");
}

#[test]
fn no_node_is_exit_code_3() {
    let output = Command::new(VRIO).args(["top", "--socket", "/nonexistent/c"]).output();
    let output = output.expect("it was built");
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
}
