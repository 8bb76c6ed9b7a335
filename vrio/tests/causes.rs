//! An error names its cause, once. The tests look at `vrio node`, its check, commands to a running
//! node and other commands, with many kinds of faults.

use std::fmt::Write;
use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use testbed::nodes::NodePlan;

const VRIO: &str = env!("CARGO_BIN_EXE_vrio");

/// Longer than a busy machine takes to find a fault.
const PATIENCE: Duration = Duration::from_secs(120);

/// The fewest characters of a clause that is a cause, and not a name.
const CAUSE_LENGTH: usize = 12;

/// The end of the kernel's own messages: `No such file or directory (os error 2)`.
const OF_THE_SYSTEM: &str = "(os error";

/// Runs a command that should end by itself.
fn run(words: &[&str]) -> Output {
    let mut command = Command::new(VRIO);
    command.args(words).env("VRIO_LOG", "warn").stdin(Stdio::null());
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it was built");
    let until = Instant::now() + PATIENCE;
    while child.try_wait().expect("a child").is_none() {
        if Instant::now() > until {
            child.kill().expect("a child");
            panic!("vrio {} does not end", words.join(" "));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("a child")
}

/// The causes that stand more than once in a problem. Each problem has a line.
fn repeated(said: &str) -> Vec<&str> {
    said.lines().flat_map(repeated_in).collect()
}

fn repeated_in(line: &str) -> Vec<&str> {
    let mut found: Vec<&str> = Vec::new();
    for clause in line.split([':', ';']).map(str::trim) {
        let is_cause = clause.len() >= CAUSE_LENGTH && clause.contains(' ');
        if is_cause && line.matches(clause).count() > 1 && !found.contains(&clause) {
            found.push(clause);
        }
    }
    if found.is_empty() && line.matches(OF_THE_SYSTEM).count() > 1 {
        found.push(OF_THE_SYSTEM);
    }
    found
}

#[test]
fn a_cause_that_is_said_twice_is_found() {
    let once = "vrio: node.toml:3: key file \"a\": cannot open it: Not a directory (os error 20)";
    assert!(repeated(once).is_empty(), "{:?}", repeated(once));
    let twice = format!("{once}: Not a directory (os error 20)");
    assert_eq!(repeated(&twice), ["Not a directory (os error 20)"]);
    let inside =
        "a.img: not readable (Not a directory (os error 20)): Not a directory (os error 20)";
    assert_eq!(repeated(inside), ["Not a directory (os error 20)"]);
    assert!(repeated(&format!("{once}\n{once}")).is_empty(), "two problems");
}

/// The commands that failed as they should, and the wrong messages.
#[derive(Default)]
struct Findings {
    faults: usize,
    wrong: String,
}

impl Findings {
    /// The command fails, and its message has these words and no cause twice.
    fn look(&mut self, name: &str, says: &str, words: &[&str]) {
        self.faults += 1;
        let output = run(words);
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() || output.status.code().is_none() || !said.contains(says) {
            let line = words.join(" ");
            writeln!(self.wrong, "{name}: vrio {line}: {says:?} is missing: {output:?}").unwrap();
        }
        for cause in repeated(&said) {
            writeln!(self.wrong, "{name}: {cause:?} is said more than once: {said}").unwrap();
        }
    }

    fn expect_none(self, faults: usize) {
        assert!(self.wrong.is_empty(), "of {} faults:\n{}", self.faults, self.wrong);
        assert_eq!(self.faults, faults);
    }
}

/// A directory with the files that faults need.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let this = Self(tempfile::tempdir().unwrap());
        for (name, bytes) in [("small.img", 4096), ("empty.img", 0), ("file", 0)] {
            fs::write(this.path(name), vec![0; bytes]).unwrap();
        }
        fs::create_dir(this.path("folder.img")).unwrap();
        assert!(run(&["key", "new", &this.text("n.key")]).status.success());
        fs::copy(this.path("n.key"), this.path("open.key")).unwrap();
        fs::set_permissions(this.path("open.key"), fs::Permissions::from_mode(0o644)).unwrap();
        fs::copy(this.path("n.key"), this.path("cut.key")).unwrap();
        fs::write(this.path("cut.key"), "vrio node key\nsecret: AAAA\n").unwrap();
        // A socket without a listener.
        drop(UnixListener::bind(this.path("dead.control")).unwrap());
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// A node's file, which has a fault and is usual otherwise.
    fn config(&self, fault: &str) -> String {
        let text = format!("name = \"n1\"\ncontrol = \"HOME/n1.control\"\n{fault}");
        fs::write(self.path("n.toml"), text.replace("HOME", self.0.path().to_str().unwrap()))
            .unwrap();
        self.text("n.toml")
    }
}

/// Faults that both the check and the start report: the name, words of the message, and the file's
/// lines.
const BOTH: [(&str, &str, &str); 14] = [
    ("bad TOML", "this is not TOML", "listen = = 3\n"),
    ("unknown key", "lisen", "lisen = \"127.0.0.1:1\"\n"),
    ("missing key", "the file does not exist", "listen = \"127.0.0.1:0\"\nkey = \"HOME/no.key\"\n"),
    ("damaged key", "it is damaged", "listen = \"127.0.0.1:0\"\nkey = \"HOME/cut.key\"\n"),
    ("open key", "(mode 0644)", "listen = \"127.0.0.1:0\"\nkey = \"HOME/open.key\"\n"),
    ("key under a file", "os error 20", "listen = \"127.0.0.1:0\"\nkey = \"HOME/file/a.key\"\n"),
    ("foreign address", "192.0.2.1", "listen = \"192.0.2.1:4870\"\nkey = \"HOME/n.key\"\n"),
    ("no such core", "1023", "[sidecores]\ncores = [1023]\n"),
    ("no directory", "os error 2", "[directories]\nvolumes = \"HOME/gone\"\n"),
    ("a file, no directory", "file", "[directories]\nsockets = \"HOME/file\"\n"),
    ("no file", "none.img", "VOLUME{ file = \"none.img\" }\n"),
    ("an empty file", "empty", "VOLUME{ file = \"empty.img\" }\n"),
    ("a small file", "too small", "VOLUME{ file = \"small.img\", size = \"1MiB\" }\n"),
    ("a directory, no file", "directory", "VOLUME{ file = \"folder.img\" }\n"),
];

/// A volume's lines up to its backend.
const VOLUME: &str = "[directories]\nvolumes = \"HOME\"\n[[volume]]\nname = \"a\"\nbackend = ";

#[test]
fn a_node_that_does_not_start_says_each_cause_once_and_so_does_the_check() {
    let place = Place::new();
    let mut findings = Findings::default();
    for (name, says, fault) in BOTH {
        let config = place.config(&fault.replace("VOLUME", VOLUME));
        findings.look(name, says, &["node", "--config", &config]);
        findings.look(name, says, &["node", "--check", "--config", &config]);
    }
    for (name, file) in [("no file", "no.toml"), ("a directory", "folder.img")] {
        findings.look(name, "os error", &["node", "--config", &place.text(file)]);
        findings.look(name, "os error", &["node", "--check", "--config", &place.text(file)]);
    }
    // The faults that only the start can meet.
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let (udp, tcp) = (udp.local_addr().unwrap(), tcp.local_addr().unwrap());
    let _taken = (UdpSocket::bind(udp), TcpListener::bind(tcp));
    let state = format!("{VOLUME}{{ file = \"b.img\", size = \"1MiB\" }}\n");
    let state = state.replace("[[volume]]", "state = \"HOME/file/state\"\n[[volume]]");
    let start = [
        ("UDP port in use", "os error 98", format!("listen = \"{udp}\"\nkey = \"HOME/n.key\"\n")),
        ("TCP port in use", "os error 98", format!("metrics-listen = \"{tcp}\"\n")),
        ("state under a file", "file", state),
    ];
    for (name, says, fault) in start {
        findings.look(name, says, &["node", "--config", &place.config(&fault)]);
    }
    let config = place.config("");
    findings.look("nobody to take over", "no node", &["node", "--take-over", "--config", &config]);
    let config = place.config("").replace("n.toml", "m.toml");
    let control = format!("name = \"n1\"\ncontrol = \"{}\"\n", place.text("file/n1.control"));
    fs::write(&config, control).unwrap();
    findings.look("control under a file", "os error", &["node", "--config", &config]);
    findings.expect_none(2 * BOTH.len() + 9);
}

#[test]
fn commands_to_a_node_say_each_cause_once() {
    let place = Place::new();
    let (none, dead) = (place.text("none.control"), place.text("dead.control"));
    let mut findings = Findings::default();
    for (name, control) in [("no socket", &none), ("a socket of nobody's", &dead)] {
        for words in ["status", "top", "disk list", "volume remove a", "node drain"] {
            let mut words: Vec<_> = words.split(' ').collect();
            words.extend(["--control", control]);
            findings.look(name, "no node answers", &words);
        }
    }
    let config = "[[volume]]\nname = \"m\"\nbackend = { memory = \"1MiB\" }\n".to_owned();
    let plan = NodePlan::new(VRIO, place.0.path(), "n1", config);
    let node = plan.start().expect("it starts");
    let volumes = node.plan().home.join("volumes");
    fs::copy(place.path("small.img"), volumes.join("small.img")).unwrap();
    fs::copy(place.path("empty.img"), volumes.join("empty.img")).unwrap();
    fs::create_dir(volumes.join("folder.img")).unwrap();
    let control = node.plan().control();
    let control = control.to_str().unwrap();
    for (name, says, words) in [
        ("no file", "none.img", "volume add b --file none.img"),
        ("an empty file", "empty", "volume add b --file empty.img"),
        ("a small file", "too small", "volume add b --file small.img --size 1MiB"),
        ("a directory", "directory", "volume add b --file folder.img"),
        ("a socket elsewhere", "is not inside", "disk add --volume m --socket /nonexistent/a.sock"),
        ("no such volume", "no volume", "disk add --volume x --socket a.sock"),
    ] {
        let mut words: Vec<_> = words.split(' ').collect();
        words.extend(["--control", control]);
        findings.look(name, says, &words);
    }
    node.stop().expect("it stops in order");
    findings.expect_none(16);
}

#[test]
fn other_commands_say_each_cause_once() {
    let place = Place::new();
    let (file, folder) = (place.text("file"), place.text("folder.img"));
    fs::write(place.path("bad.json"), "{\"schema\": 1, \"id\"").unwrap();
    let damaged = Path::new(&folder).join("20261122-100000-x");
    fs::create_dir(&damaged).unwrap();
    fs::write(damaged.join("run.json"), "{\"schema\": 1, \"id\"").unwrap();
    let (bad, nowhere) = (place.text("bad.json"), place.text("file/a.key"));
    let shown = run(&["key", "show", &place.text("n.key")]).stdout;
    let shown = String::from_utf8(shown).unwrap();
    let public = shown.split(['"', ' ', '\n']).find(|word| word.len() == 44).unwrap().to_owned();
    let attach = ["attach", "io1/a", "--peer", "127.0.0.1:1", "--key", &nowhere];
    let attach = [&attach[..], &["--peer-key", &public]].concat();
    let mut findings = Findings::default();
    for (name, says, words) in [
        ("key under a file", "os error 20", &["key", "new", &nowhere][..]),
        ("no key", "does not exist", &["key", "show", "/nonexistent/a.key"]),
        ("no socket", "os error 2", &["bench", "block", "--path", "socket", "/nonexistent/a"]),
        ("cut JSON", "line 1", &["results", "import", &bad, "--results", &folder]),
        ("a damaged run", "line 1", &["results", "show", "latest", "--results", &folder]),
        ("no directory", "os error", &["results", "list", "--results", &file]),
        ("no manual", "os error", &["man", &nowhere]),
        ("a client's key under a file", "", &attach),
    ] {
        findings.look(name, says, words);
    }
    findings.expect_none(8);
}
