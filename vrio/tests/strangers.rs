//! Peers that are refused a session, as the operator of the node sees them: with the built binary,
//! in its log and its status.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

struct Home(tempfile::TempDir);

impl Home {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Makes a key, and gives its public half.
    fn key(&self, name: &str) -> String {
        let path = self.path(name);
        let made = vrio(&["key", "new", path.to_str().unwrap()]);
        assert!(made.0, "{}", made.1);
        let shown = vrio(&["key", "show", path.to_str().unwrap()]).1;
        let word = shown.split_whitespace().map(|word| word.trim_matches('"'));
        word.into_iter().find(|word| word.len() == 44 && word.ends_with('=')).unwrap().to_owned()
    }

    fn start(&self, file: &str, config: &str) -> Running {
        let path = self.path(file);
        let here = self.0.path().to_str().unwrap();
        std::fs::write(&path, config.replace("HOME", here)).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_vrio"))
            .args(["node", "--log", "json", "--config", path.to_str().unwrap()])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let taken = Arc::clone(&log);
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| taken.lock().unwrap().push(line));
        });
        Running { child, log }
    }

    /// The entry for a reason in the IOhost's status.
    fn strangers(&self, reason: &str) -> Value {
        let control = self.path("io1.control");
        let status = vrio(&["status", "--json", "--control", control.to_str().unwrap()]).1;
        let Ok(status) = serde_json::from_str::<Value>(&status) else { return Value::Null };
        let all = status["strangers"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|it| it["reason"] == reason).unwrap_or_default()
    }

    fn wait_for(&self, reason: &str, refused: u64) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let found = self.strangers(reason);
            if found["refused"].as_u64().unwrap_or(0) >= refused {
                return found;
            }
            assert!(Instant::now() < until, "never refused for {reason}: {found}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Whether the command succeeded, and its output.
fn vrio(args: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_vrio")).args(args).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A node. Killed when dropped.
struct Running {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
}

impl Running {
    /// The lines about peers that were refused.
    fn refusals(&self) -> Vec<Value> {
        let log = self.log.lock().unwrap();
        let about = log.iter().filter(|line| line.contains("a peer was refused a session"));
        about.map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn wait_for_refusals(&self, count: usize) -> Vec<Value> {
        let until = Instant::now() + PATIENCE;
        while self.refusals().len() < count {
            let log = self.log.lock().unwrap().join("\n");
            assert!(Instant::now() < until, "never {count} lines:\n{log}");
            std::thread::sleep(Duration::from_millis(50));
        }
        self.refusals()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A loopback address that no other test uses: all of 127.0.0.0/8 is this host's.
fn address(last: u8) -> String {
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    format!("127.{}.{low}.{last}:4870", 64 + (high & 0x3f))
}

/// A node that wants a volume of io1.
fn caller(name: &str, last: u8, io1: &str, keys: Option<(&str, &str)>) -> String {
    let (own, theirs) = match keys {
        Some((own, theirs)) => (format!("key = \"HOME/{own}\"\n"), format!("key = \"{theirs}\"\n")),
        None => (String::new(), String::new()),
    };
    format!(
        "name = \"{name}\"\nlisten = \"{}\"\ncontrol = \"HOME/{last}.control\"\n{own}\
         [directories]\nsockets = \"HOME\"\nstate = \"HOME/state-{last}\"\n\
         [sidecores]\nidle = \"sleep\"\n\
         [[peer]]\nname = \"io1\"\naddress = \"{io1}\"\n{theirs}\
         [[disk]]\nname = \"d{last}\"\nsocket = \"{last}.sock\"\nvolume = \"io1/a\"\n",
        address(last)
    )
}

/// The configuration of io1: it serves vm1 from two sidecores, so a peer asks both.
fn io1(address: &str, key: &str, peer: &str) -> String {
    format!(
        "name = \"io1\"\nlisten = \"{address}\"\ncontrol = \"HOME/io1.control\"\n{key}\
         [directories]\nvolumes = \"HOME\"\nsockets = \"HOME\"\nstate = \"HOME/state\"\n\
         [sidecores]\ncount = 2\nidle = \"sleep\"\n\
         [[volume]]\nname = \"a\"\nbackend = {{ memory = \"1MiB\" }}\nallow = [\"vm1\"]\n{peer}"
    )
}

#[test]
fn every_kind_of_stranger_is_told_once_with_what_admits_it() {
    let home = Home(tempfile::tempdir().unwrap());
    let (io_key, known, unknown) = (home.key("io1.key"), home.key("vm1.key"), home.key("vm7.key"));
    let peer = format!("[[peer]]\nname = \"vm1\"\nkey = \"{known}\"\n");
    let io1_at = address(1);
    let node = home.start("io1.toml", &io1(&io1_at, "key = \"HOME/io1.key\"\n", &peer));
    let callers = [
        ("unknown-key", caller("vm7", 2, &io1_at, Some(("vm7.key", &io_key)))),
        ("plain", caller("vm8", 3, &io1_at, None)),
        ("wrong-key", caller("vm1", 4, &io1_at, Some(("vm1.key", &unknown)))),
        ("name", caller("vm9", 5, &io1_at, Some(("vm1.key", &io_key)))),
    ];
    let mut running = Vec::new();
    for (reason, config) in &callers {
        running.push(home.start(&format!("{reason}.toml"), config));
    }
    node.wait_for_refusals(callers.len());
    // The callers go on asking, at both sidecores.
    for (reason, _) in &callers {
        home.wait_for(reason, 4);
    }
    let lines = node.refusals();
    let line = |of: &str| {
        let found: Vec<_> =
            lines.iter().filter(|line| text(line, "message").contains(of)).collect();
        assert_eq!(found.len(), 1, "{of}: {lines:#?}");
        assert!(text(found[0], "address").starts_with("127."), "{}", found[0]);
        found[0]
    };
    let told = line("its key is not a key of any peer");
    assert_eq!((text(told, "name"), text(told, "key")), ("vm7", unknown.as_str()));
    let way_out = text(told, "way_out");
    assert!(way_out.contains(&format!("vrio peer add vm7 --key {unknown}")), "{way_out}");
    let told = line("it has no key, and sessions are sealed here");
    assert_eq!((text(told, "name"), &told["key"]), ("vm8", &Value::Null));
    assert!(text(told, "way_out").contains(&io_key), "{told}");
    let told = line("it expects another key of this node");
    assert!(text(told, "way_out").contains(&io_key), "{told}");
    let told = line("its key belongs to a peer of another name");
    assert_eq!((text(told, "name"), text(told, "key")), ("vm9", known.as_str()));
    assert!(text(told, "way_out").contains("that of \"vm1\" here"), "{told}");
    // The status shows people a command to copy, and that command works.
    let added_by = format!("     vrio peer add vm7 --key {unknown}\n");
    let control = home.path("io1.control");
    let control = control.to_str().unwrap();
    let status = vrio(&["status", "--control", control]).1;
    assert!(status.contains("STRANGERS") && status.contains(&added_by), "{status}");
    let added = vrio(&["peer", "add", "vm7", "--key", &unknown, "--control", control]);
    assert!(added.0, "{}", added.1);
    let until = Instant::now() + PATIENCE;
    let is_in = || {
        let status = vrio(&["status", "--json", "--control", control]).1;
        let status: Value = serde_json::from_str(&status).unwrap_or_default();
        let sessions = status["sessions"].as_array().cloned().unwrap_or_default();
        sessions.iter().any(|it| it["peer"] == "vm7" && it["state"] == "connected")
    };
    while !is_in() {
        assert!(Instant::now() < until, "vm7 never got a session");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn text<'a>(line: &'a Value, field: &str) -> &'a str {
    line[field].as_str().unwrap_or_default()
}

/// The Hello of a plain node is repeated from thousands of addresses. None of them is proved to be
/// the sender's.
#[test]
fn a_flood_from_many_addresses_is_one_line_and_a_few_entries() {
    let home = Home(tempfile::tempdir().unwrap());
    home.key("io1.key");
    let known = home.key("vm1.key");
    let peer = format!("[[peer]]\nname = \"vm1\"\nkey = \"{known}\"\n");
    let io1_at: SocketAddr = address(11).parse().unwrap();
    let node = home.start("io1.toml", &io1(&io1_at.to_string(), "key = \"HOME/io1.key\"\n", &peer));
    // The plain node looks for io1 at this address, so that its Hello is recorded.
    let ear = UdpSocket::bind(address(12)).unwrap();
    ear.set_read_timeout(Some(PATIENCE)).unwrap();
    let caller = home.start("vm8.toml", &caller("vm8", 13, &address(12), None));
    let mut hello = [0; 2048];
    let (bytes, _) = ear.recv_from(&mut hello).unwrap();
    drop(caller);
    let (mut from, until) = (0, Instant::now() + PATIENCE);
    for wanted in [1, 3000] {
        while home.strangers("plain")["refused"].as_u64().unwrap_or(0) < wanted {
            assert!(Instant::now() < until, "never refused {wanted} times");
            for _ in 0..500 {
                let [_, high, middle, low] = u32::to_be_bytes(from);
                let ip = Ipv4Addr::new(127, 192 | (high & 0x3f), middle, low.max(1));
                let socket = UdpSocket::bind((ip, 0)).unwrap();
                let _ = socket.send_to(&hello[..bytes], io1_at);
                from += 1;
                if wanted == 1 {
                    break;
                }
            }
        }
        node.wait_for_refusals(1);
    }
    let found = home.strangers("plain");
    let latest = found["latest"].as_array().unwrap();
    assert_eq!(latest.len(), 4, "{found}");
    let lines = node.refusals();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert_eq!(text(&lines[0], "name"), "vm8");
}
