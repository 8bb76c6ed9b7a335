//! Faults that only the running system can show: bad inputs that a node meets at its start.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::Path;

use node::{Config, Node};

/// A directory for one test, and the node that is configured in it.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// The configuration in `text`, with HOME replaced, after the keys that every test needs.
    fn config(&self, text: &str) -> Config {
        let control =
            if text.contains("control =") { "" } else { "control = \"HOME/n.control\"\n" };
        let text = format!("name = \"n\"\n{control}{text}");
        let text = text.replace("HOME", self.path().to_str().unwrap());
        Config::parse(Path::new("n.toml"), &text).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Why the node does not start; HOME stands for the directory again.
    fn refusal(&self, text: &str) -> String {
        let error = Node::start(&self.config(text)).expect_err("this must not start");
        error.to_string().replace(self.path().to_str().unwrap(), "HOME")
    }
}

fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

/// A user of the sockets' group, which may use them, must not be able to put another socket in the
/// place of one: this user would then serve every guest's disk.
#[test]
fn a_directory_of_sockets_is_writable_by_its_owner_alone_with_any_umask() {
    use std::os::unix::fs::PermissionsExt;
    let home = Home::new();
    rustix::process::umask(rustix::fs::Mode::empty());
    let text = "control = \"HOME/control/n.control\"\n[directories]\nsockets = \"HOME/a/b\"\n";
    let node = Node::start(&home.config(text)).unwrap();
    for made in ["control", "a", "a/b"] {
        let mode = home.path().join(made).metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, 0o755, "{made}");
    }
    node.stop();
}

const FILE: &str = r#"
[directories]
volumes = "HOME"
[[volume]]
name = "a"
backend = { file = "a.img", size = "1MiB" }
"#;

#[test]
fn a_file_is_made_and_kept() {
    let home = Home::new();
    for _ in 0..2 {
        let node = Node::start(&home.config(FILE)).unwrap();
        let status = node.status();
        assert_eq!(status.volumes[0].size_bytes, 1 << 20);
        assert!(status.volumes[0].backend.contains("a.img (buffered)"));
        node.stop();
    }
    assert_eq!(home.path().join("a.img").metadata().unwrap().len(), 1 << 20);
}

#[test]
fn every_bad_volume_is_named_with_its_line() {
    let home = Home::new();
    File::create(home.path().join("small.img")).unwrap().set_len(4096).unwrap();
    std::fs::create_dir(home.path().join("dir.img")).unwrap();
    let text = home.refusal(
        r#"
[directories]
volumes = "HOME"
[[volume]]
name = "missing"
backend = { file = "missing.img" }
[[volume]]
name = "small"
backend = { file = "small.img", size = "1MiB" }
[[volume]]
name = "dir"
backend = { file = "dir.img" }
"#,
    );
    contains(
        &text,
        &[
            "n.toml:8: volume \"missing\": HOME/missing.img: no such file",
            "n.toml:11: volume \"small\": HOME/small.img: too small: 4096 bytes",
            "n.toml:14: volume \"dir\": HOME/dir.img: is a directory",
        ],
    );
}

#[test]
fn a_link_that_leads_outside_is_refused() {
    let home = Home::new();
    std::fs::create_dir(home.path().join("volumes")).unwrap();
    std::fs::create_dir(home.path().join("outside")).unwrap();
    let outside = home.path().join("outside/secret.img");
    File::create(&outside).unwrap().set_len(4096).unwrap();
    symlink(&outside, home.path().join("volumes/a.img")).unwrap();
    let config = r#"
[directories]
volumes = "HOME/volumes"
[[volume]]
name = "a"
backend = { file = "a.img" }
"#;
    contains(&home.refusal(config), &["leads to \"HOME/outside/secret.img\"", "\"HOME/outside\""]);
    let both = config.replace("\"HOME/volumes\"", "[\"HOME/volumes\", \"HOME/outside\"]");
    Node::start(&home.config(&both)).unwrap().stop();
}

#[test]
fn a_directory_that_is_missing_is_not_made() {
    let home = Home::new();
    let text = home.refusal(&FILE.replace("volumes = \"HOME\"", "volumes = \"HOME/none\""));
    contains(&text, &["n.toml:4: [directories]", "\"HOME/none\"", "mount its file system"]);
    assert!(!home.path().join("none").exists());
}

#[test]
fn records_belong_to_one_node() {
    let home = Home::new();
    let first = Node::start(&home.config(FILE)).unwrap();
    let other = FILE.replace("a.img", "b.img");
    let other = other.replace("[directories]", "control = \"HOME/other.control\"\n[directories]");
    contains(&home.refusal(&other), &["another node keeps its records there", "\"state\""]);
    first.stop();
    Node::start(&home.config(&other)).unwrap().stop();
}

#[test]
fn a_core_that_is_not_there_is_named() {
    let home = Home::new();
    let text = home.refusal("[sidecores]\ncores = [4000]\n");
    contains(&text, &["n.toml:3: [sidecores]", "core 4000", "choose other \"cores\""]);
}

#[test]
fn objects_started_before_a_failure_are_gone() {
    let home = Home::new();
    std::fs::write(home.path().join("n.control"), "in the way").unwrap();
    contains(&home.refusal(FILE), &["is not a socket"]);
    std::fs::remove_file(home.path().join("n.control")).unwrap();
    Node::start(&home.config(FILE)).unwrap().stop();
}

/// Waits for as long as a node waits for a predecessor's file.
#[test]
fn a_file_that_another_server_has_is_named() {
    let home = Home::new();
    let path = home.path().join("a.img");
    let other = File::create(&path).unwrap();
    other.set_len(1 << 20).unwrap();
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
    contains(&home.refusal(FILE), &["n.toml:8: volume \"a\"", "locked by", "stop that server"]);
}

#[test]
fn an_address_that_is_not_ours_or_taken_is_named() {
    let home = Home::new();
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let listen = format!("listen = \"{}\"\n", taken.local_addr().unwrap());
    contains(&home.refusal(&listen), &["n.toml:3: \"listen\"", "in use", "another node"]);
    let foreign = "listen = \"192.0.2.1:4870\"\ntrust = \"network\"\n";
    contains(&home.refusal(foreign), &["n.toml:3: \"listen\"", "192.0.2.1:4870"]);
}
