//! A sidecore that is really stuck. The test stops its thread in a running node by ptrace, as
//! a system call that does not return would. The rest of the node goes on and names the sidecore.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

const CONFIG: &str = r#"
name = "n1"
control = "HOME/n1.control"
MORE
[sidecores]
count = 2
[directories]
sockets = "HOME"
[[volume]]
name = "a"
backend = { memory = "16MiB" }
[[disk]]
socket = "a.sock"
volume = "a"
"#;

struct Node {
    child: Child,
    home: tempfile::TempDir,
    log: Receiver<String>,
}

impl Node {
    fn start(more: &str, environment: &[(&str, String)]) -> Self {
        let home = tempfile::tempdir().unwrap();
        // A user other than root may trace only a process that has kept its privileges.
        let root = rustix::process::geteuid().is_root();
        let keep = if root { "" } else { "privileges = \"keep\"" };
        let text = CONFIG.replace("HOME", home.path().to_str().unwrap());
        let file = home.path().join("n1.toml");
        std::fs::write(&file, text.replace("MORE", &format!("{more}\n{keep}"))).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
        command.args(["node", "--config"]).arg(&file).stderr(Stdio::piped());
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (line_in, log) = std::sync::mpsc::channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|l| line_in.send(l)));
        let node = Self { child, home, log };
        node.wait_for("ready");
        node
    }

    fn wait_for(&self, what: &str) -> String {
        let mut seen = Vec::new();
        while let Ok(line) = self.log.recv_timeout(PATIENCE) {
            if line.contains(what) {
                return line;
            }
            seen.push(line);
        }
        panic!("no {what:?} in the log:\n{}", seen.join("\n"));
    }

    fn ask(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
        command.args(words).arg("--control").arg(self.home.path().join("n1.control"));
        command.output().unwrap()
    }

    /// The output of `vrio status`, which must succeed.
    fn status(&self) -> String {
        let output = self.ask(&["status"]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn metrics(&self) -> String {
        let socket = self.home.path().join("n1.control");
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--unix-socket"]).arg(socket);
        let output = command.arg("http://vrio/v1/metrics").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The thread of a sidecore.
    fn sidecore(&self, index: usize) -> i32 {
        let tasks = format!("/proc/{}/task", self.child.id());
        let name = format!("sidecore-{index}\n");
        let is_it = |path: &Path| std::fs::read_to_string(path.join("comm")).unwrap() == name;
        let mut all = std::fs::read_dir(tasks).unwrap().map(|task| task.unwrap().path());
        let task = all.find(|path| is_it(path)).expect("the sidecore runs");
        task.file_name().unwrap().to_str().unwrap().parse().unwrap()
    }

    /// Stops a sidecore, which may sleep just then, and gives it work: a sidecore without work is
    /// not stuck.
    fn stop_sidecore(&self, index: usize) -> Stopped {
        let stopped = Stopped::new(self.sidecore(index));
        self.status();
        stopped
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn end(self) -> Option<i32> {
        self.end_while(|| ())
    }

    fn end_while(mut self, mut meanwhile: impl FnMut()) -> Option<i32> {
        self.signal(rustix::process::Signal::TERM);
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            meanwhile();
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("SIGTERM does not end it:\n{}", self.log.try_iter().collect::<Vec<_>>().join("\n"));
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One thread of another process, which stands still until this is dropped.
struct Stopped(i32);

impl Stopped {
    fn new(thread: i32) -> Self {
        for request in [libc::PTRACE_SEIZE, libc::PTRACE_INTERRUPT] {
            // SAFETY: these requests read and write no memory of this process.
            let done = unsafe { libc::ptrace(request, thread, 0usize, 0usize) };
            assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        }
        let mut status = 0;
        // SAFETY: the status is ours.
        let waited = unsafe { libc::waitpid(thread, &mut status, libc::__WALL) };
        assert!(waited == thread && libc::WIFSTOPPED(status), "{waited} {status:#x}");
        Self(thread)
    }
}

impl Stopped {
    /// Waits for the traced thread: a process has ended only after each of its traced threads was
    /// waited for.
    fn bury(&self) {
        // SAFETY: the status pointer is null, which the call allows: it writes no memory.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), libc::__WALL | libc::WNOHANG) };
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // SAFETY: as above. A process that is gone has nothing to let go.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, 0usize, 0usize) };
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_sidecore_that_is_stuck_is_named_and_the_rest_of_the_node_goes_on() {
    let node = Node::start("", &[]);
    assert!(node.status().starts_with("node n1"), "nothing is stuck");
    let stopped = node.stop_sidecore(1);
    let line = node.wait_for("is stuck");
    assert!(line.contains("sidecore=1") && line.contains("stopped by a debugger"), "{line}");
    // The first line names the stuck sidecore, and the rest of the status follows.
    let status = node.status();
    assert!(status.starts_with("STUCK: sidecore 1 for "), "{status}");
    assert!(status.contains("node n1") && status.contains("a.sock; no guest yet"), "{status}");
    assert!(!status.contains("sidecore 0 for"), "{status}");
    let metrics = node.metrics();
    assert!(metrics.contains("vrio_sidecore_stuck{sidecore=\"1\"} 1"), "{metrics}");
    assert!(metrics.contains("vrio_sidecore_stuck{sidecore=\"0\"} 0"), "{metrics}");
    // A change would wait for the sidecore, so it is refused, with the sidecore's name.
    let refused = node.ask(&["disk", "remove", "a"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(1) && said.contains("sidecore 1 is stuck"), "{said}");
    drop(stopped);
    let line = node.wait_for("stuck runs again");
    assert!(line.contains("sidecore=1") && line.contains("stalled_ms="), "{line}");
    assert!(node.status().starts_with("node n1"));
    assert!(node.metrics().contains("vrio_sidecore_stalls_total{sidecore=\"1\"} 1"));
    assert!(node.ask(&["disk", "remove", "a"]).status.success(), "changes go on as well");
    assert_eq!(node.end(), Some(0));
}

#[test]
fn a_node_whose_sidecore_is_stuck_ends_when_it_is_asked_to() {
    let node = Node::start("", &[]);
    let stopped = node.stop_sidecore(0);
    node.wait_for("is stuck");
    // A reload is refused, and holds nothing else up.
    node.signal(rustix::process::Signal::HUP);
    assert!(node.wait_for("the reload was not completed").contains("sidecore 0 is stuck"));
    assert_eq!(node.end_while(|| stopped.bury()), Some(1), "what is cut off is no clean end");
}

#[test]
fn a_process_that_is_stopped_as_a_whole_has_no_stuck_sidecore() {
    let node = Node::start("", &[]);
    for _ in 0..3 {
        node.signal(rustix::process::Signal::STOP);
        std::thread::sleep(Duration::from_secs(2));
        node.signal(rustix::process::Signal::CONT);
        assert!(node.status().starts_with("node n1"));
    }
    assert!(node.metrics().contains("vrio_sidecore_stalls_total{sidecore=\"1\"} 0"));
    assert_eq!(node.end(), Some(0));
}

/// The messages to a service manager from a node with a stuck sidecore, for each setting.
#[test]
fn the_service_manager_is_left_without_word_only_where_that_is_wanted() {
    for (word, limit, restarts) in [
        ("report", Some("400000"), false),
        ("restart", Some("400000"), true),
        ("restart", None, true),
    ] {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_nonblocking(true).unwrap();
        let mut environment = vec![("NOTIFY_SOCKET", path.to_str().unwrap().to_owned())];
        environment.extend(limit.map(|limit| ("WATCHDOG_USEC", limit.to_owned())));
        // A manager that names no limit gets one, and hears of the node four times within it.
        let (word_of_life, limit) = match limit {
            Some(_) => ("WATCHDOG=1", Duration::from_millis(400)),
            None => ("WATCHDOG_USEC=10000000\nWATCHDOG=1", Duration::from_secs(10)),
        };
        let node = Node::start(&format!("watchdog = \"{word}\""), &environment);
        let heard = || {
            let mut bytes = [0; 64];
            let length = manager.recv(&mut bytes).ok()?;
            Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
        };
        let alive = || heard().is_some_and(|it| it == word_of_life);
        wait_until("it says that it lives", alive);
        let stopped = node.stop_sidecore(1);
        node.wait_for("is stuck");
        while heard().is_some() {}
        // Longer than the time within which the node must send a message.
        std::thread::sleep(limit * 11 / 10);
        match restarts {
            true => assert_eq!(heard(), None, "it would be taken for one that lives"),
            false => wait_until("it says so all the same", alive),
        }
        drop(stopped);
        wait_until("it says so again", alive);
        assert_eq!(node.end(), Some(0));
    }
}
