//! Nodes with keys: which nodes get in, the messages to those that do not, and keys that change
//! while a disk works.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use node::api::Refused;
use node::keys::{self, KeyKind};
use node::status::{DiskState, Status};
use node::{Config, Node};
use virtio::driver::RequestStatus as Outcome;

use crate::common::{Guest, Home, address, wait_for, wait_for_disk};

/// Two nodes and their keys, in one directory.
pub(crate) struct Pair {
    pub(crate) home: Home,
    io_address: String,
    vm_address: String,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let pair = Self { home: Home::new(), io_address: address(), vm_address: address() };
        for name in ["io1", "vm1", "stranger"] {
            pair.make(name, KeyKind::Node);
        }
        for name in ["alice", "bob"] {
            pair.make(name, KeyKind::Attachment);
        }
        pair
    }

    /// Makes a key, in place of one of that name; returns its public half.
    pub(crate) fn make(&self, name: &str, kind: KeyKind) -> String {
        let path = self.home.path(&format!("{name}.key"));
        let _ = std::fs::remove_file(&path);
        keys::create(&path, kind).unwrap().public()
    }

    fn public(&self, name: &str) -> String {
        keys::read(&self.home.path(&format!("{name}.key"))).unwrap().public()
    }

    /// An IOhost's file, with its lines about vm1, and the nodes that may use its volume.
    pub(crate) fn io1(&self, vm1: &str, allow: &str) -> String {
        format!(
            r#"
name = "io1"
listen = "{}"
key = "HOME/io1.key"
[directories]
volumes = "HOME"
sockets = "HOME"
[[peer]]
name = "vm1"
{vm1}
[[volume]]
name = "a"
backend = {{ file = "a.img", size = "1MiB" }}
chain = ["meter"]
allow = [{allow}]
"#,
            self.io_address
        )
    }

    /// A VMhost's file, with its lines about io1, and about its disk.
    pub(crate) fn vm1(&self, io1: &str, disk: &str) -> String {
        format!(
            r#"
name = "vm1"
listen = "{}"
key = "HOME/vm1.key"
[sidecores]
count = 2
[directories]
sockets = "HOME"
[[peer]]
name = "io1"
address = "{}"
{io1}
[[disk]]
socket = "a.sock"
volume = "io1/a"
queues = 2
{disk}
"#,
            self.vm_address, self.io_address
        )
    }

    pub(crate) fn key(&self, name: &str) -> String {
        format!("key = \"{}\"", self.public(name))
    }

    pub(crate) fn allow(&self, key: &str) -> String {
        format!("{{ node = \"vm1\", key = \"{}\" }}", self.public(key))
    }

    pub(crate) fn attachment(name: &str) -> String {
        format!("attachment-key = \"HOME/{name}.key\"")
    }

    /// Starts both nodes.
    pub(crate) fn start(&self, io1: &str, vm1: &str) -> (Node, Node) {
        (self.start_file(io1), self.start_file(vm1))
    }

    /// Starts the pair with keys that fit.
    fn start_fitting(&self) -> (Node, Node) {
        let io1 = self.io1(&self.key("vm1"), &self.allow("alice"));
        self.start(&io1, &self.vm1(&self.key("io1"), &Self::attachment("alice")))
    }

    pub(crate) fn guest(&self) -> Guest {
        Guest::connect(self.home.path("a.sock"), 2)
    }

    /// Writes a node's file, with HOME replaced; returns its path.
    pub(crate) fn write(&self, text: &str) -> PathBuf {
        let name = text.lines().find_map(|line| line.strip_prefix("name = ")).unwrap();
        let path = self.home.path(&format!("{}.toml", name.trim_matches('"')));
        let home = self.home.path("");
        let home = home.to_str().unwrap().trim_end_matches('/');
        std::fs::write(&path, text.replace("HOME", home)).unwrap();
        path
    }

    /// Starts a node from its file.
    fn start_file(&self, text: &str) -> Node {
        let config = Config::load(&self.write(text)).unwrap_or_else(|error| panic!("{error}"));
        Node::start(&config).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Reloads a node with another file.
    pub(crate) fn reload(&self, node: &Node, text: &str) {
        self.write(text);
        node.reload().unwrap_or_else(|error| panic!("{error}"));
    }

    fn refused(&self, node: &Node, text: &str) -> Refused {
        self.write(text);
        node.reload().unwrap_err()
    }
}

pub(crate) fn stop(nodes: (Node, Node)) {
    nodes.1.stop();
    nodes.0.stop();
}

fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn expires(unix_s: u64) -> String {
    format!("expires = {}", jiff::Timestamp::from_second(unix_s as i64).unwrap())
}

fn peer_keys(status: &Status) -> Vec<&str> {
    status.sessions.iter().filter_map(|session| session.peer_key.as_deref()).collect()
}

#[test]
fn keys_that_fit_serve_a_disk_and_are_shown() {
    let pair = Pair::new();
    let end_s = 4_000_000_000;
    let io1 = pair.io1(&format!("{}\n{}", pair.key("vm1"), expires(end_s)), "\"vm1\"");
    let nodes = pair.start(&io1, &pair.vm1(&pair.key("io1"), ""));
    wait_for_disk(&nodes.1, DiskState::Ready, "a.sock");
    let mut guest = pair.guest();
    for block in 0..50 {
        assert_eq!(guest.write(block as u16 % 2, block, block), Outcome::Ok);
    }
    for block in 0..50 {
        assert_eq!(guest.check(block as u16 % 2, block, block), Outcome::Ok);
    }
    let there = nodes.0.status();
    let session = there.sessions.iter().find(|session| session.state == "connected").unwrap();
    assert!(session.sealed);
    assert_eq!(session.cipher.as_deref(), Some("AES-256-GCM"));
    assert_eq!(session.peer_key.as_deref(), Some(pair.public("vm1").as_str()));
    assert_eq!(session.key_expires.as_deref(), Some("2096-10-02T07:06:40Z"));
    assert_eq!(there.node.trust, "keys");
    assert_eq!(there.node.key.as_deref(), Some(pair.public("io1").as_str()));
    let here = nodes.1.status();
    assert!(here.sessions.iter().all(|session| session.key_expires.is_none()));
    drop(guest);
    stop(nodes);
}

#[test]
fn a_sealed_disk_works_over_a_bad_network_and_uneven_sidecores() {
    let pair = Pair::new();
    let fault =
        "[link]\nfault = { loss = 0.05, duplicate = 0.05, reorder = 0.1, corrupt = 0.02 }\n";
    let three = "[sidecores]\ncount = 3\nidle = \"sleep\"\n";
    let io1 = format!("{}{three}{fault}", pair.io1(&pair.key("vm1"), &pair.allow("alice")));
    let vm1 = format!("{}{fault}", pair.vm1(&pair.key("io1"), &Pair::attachment("alice")));
    let nodes = pair.start(&io1, &vm1);
    wait_for_disk(&nodes.1, DiskState::Ready, "a.sock");
    let mut guest = pair.guest();
    for block in 0..200 {
        assert_eq!(guest.write(block as u16 % 2, block, block + 7), Outcome::Ok);
    }
    assert_eq!(guest.flush(0), Outcome::Ok);
    for block in 0..200 {
        assert_eq!(guest.check(block as u16 % 2, block, block + 7), Outcome::Ok);
    }
    drop(guest);
    stop(nodes);
}

#[test]
fn a_wrong_or_unknown_key_gets_nothing_and_is_named() {
    let pair = Pair::new();
    let (own, stranger) = (pair.key("vm1"), pair.key("stranger"));
    for (vm1, io1) in [(&own, &stranger), (&stranger, &pair.key("io1"))] {
        let nodes = pair.start(&pair.io1(vm1, "\"vm1\""), &pair.vm1(io1, ""));
        let disk = wait_for_disk(&nodes.1, DiskState::Waiting, "refused");
        assert!(disk.detail.contains("key"), "{}", disk.detail);
        assert!(nodes.0.status().sessions.iter().all(|session| session.state != "connected"));
        stop(nodes);
    }
}

#[test]
fn plain_and_sealed_nodes_refuse_each_other_by_name() {
    let pair = Pair::new();
    let plain = |text: &str| {
        let keyed = |line: &&str| !line.starts_with("key = ");
        text.lines().filter(keyed).collect::<Vec<_>>().join("\n")
    };
    let io1 =
        pair.io1(&format!("{}\naddress = \"{}\"", pair.key("vm1"), pair.vm_address), "\"vm1\"");
    let vm1 = pair.vm1(&pair.key("io1"), "");
    for (io1, vm1) in [(io1.clone(), plain(&vm1)), (plain(&io1), vm1)] {
        let nodes = pair.start(&io1, &vm1);
        let disk = wait_for_disk(&nodes.1, DiskState::Waiting, "refused");
        assert!(disk.detail.contains("sealed") || disk.detail.contains("plain"), "{}", disk.detail);
        stop(nodes);
    }
}

#[test]
fn an_expired_key_is_refused_and_one_that_expires_ends_its_sessions() {
    let pair = Pair::new();
    let io1 = |end_s| pair.io1(&format!("{}\n{}", pair.key("vm1"), expires(end_s)), "\"vm1\"");
    let nodes = pair.start(&io1(unix_s() - 10), &pair.vm1(&pair.key("io1"), ""));
    wait_for_disk(&nodes.1, DiskState::Waiting, "expired");
    // A new end admits it, for a while.
    pair.reload(&nodes.0, &io1(unix_s() + 4));
    wait_for_disk(&nodes.1, DiskState::Ready, "a.sock");
    let mut guest = pair.guest();
    assert_eq!(guest.write(0, 1, 1), Outcome::Ok);
    wait_for_disk(&nodes.1, DiskState::Lost, "");
    wait_for(&nodes.0, "gone", |status| status.volumes[0].attachments.is_empty());
    pair.reload(&nodes.0, &io1(4_000_000_000));
    assert_eq!(guest.check(0, 1, 1), Outcome::Ok);
    drop(guest);
    stop(nodes);
}

#[test]
fn a_volume_that_asks_for_an_attachment_key_opens_to_that_key_only() {
    let pair = Pair::new();
    let io1 = pair.home.start(&pair.io1(&pair.key("vm1"), &pair.allow("alice")));
    let there = pair.key("io1");
    // Without a key, with another tenant's key, and for a volume that does not exist: the same
    // message.
    let refusal = |disk: &str, detail: &str| {
        let vm1 = pair.home.start(&pair.vm1(&there, disk));
        let told = wait_for_disk(&vm1, DiskState::Waiting, detail).detail;
        assert!(!pair.home.path("a.sock").exists(), "nothing is known of the volume");
        vm1.stop();
        told
    };
    refusal("", "volume a is not open to vm1");
    let wrong = format!("key {} opens no volume a to vm1", pair.public("bob"));
    let forbidden = refusal(&Pair::attachment("bob"), &wrong);
    let text = pair.vm1(&there, &Pair::attachment("bob")).replace("io1/a", "io1/b");
    let vm1 = pair.home.start(&text);
    let missing = wait_for_disk(&vm1, DiskState::Waiting, "opens no volume b").detail;
    assert_eq!(missing.replace("volume b", "volume a"), forbidden);
    vm1.stop();
    assert_eq!(io1.status().volumes[0].counters["writes"], 0);
    let vm1 = pair.home.start(&pair.vm1(&there, &Pair::attachment("alice")));
    wait_for_disk(&vm1, DiskState::Ready, "a.sock");
    let mut guest = pair.guest();
    assert_eq!(guest.write(0, 3, 7), Outcome::Ok);
    assert_eq!(guest.check(1, 3, 7), Outcome::Ok);
    drop(guest);
    stop((io1, vm1));
}

#[test]
fn a_thief_of_a_nodes_key_opens_nothing_of_a_tenant() {
    let pair = Pair::new();
    let (io1, vm1) = pair.start_fitting();
    wait_for_disk(&vm1, DiskState::Ready, "a.sock");
    let mut guest = pair.guest();
    assert_eq!(guest.write(0, 0, 5), Outcome::Ok);
    assert_eq!(guest.flush(0), Outcome::Ok);
    drop(guest);
    vm1.stop();
    // The same name and the same node key on another node, which has only the public half of
    // Alice's key.
    let elsewhere = Home::new();
    std::fs::copy(pair.home.path("vm1.key"), elsewhere.path("vm1.key")).unwrap();
    let thief = elsewhere.start(&pair.vm1(&pair.key("io1"), ""));
    wait_for_disk(&thief, DiskState::Waiting, "volume a is not open to vm1");
    keys::create(&elsewhere.path("own.key"), KeyKind::Attachment).unwrap();
    thief.stop();
    let thief = elsewhere.start(&pair.vm1(&pair.key("io1"), &Pair::attachment("own")));
    wait_for_disk(&thief, DiskState::Waiting, "opens no volume a");
    let counters = &io1.status().volumes[0].counters;
    assert_eq!((counters["writes"], counters["reads"]), (1, 0));
    stop((io1, thief));
}

#[test]
fn a_nodes_key_is_changed_while_a_disk_works() {
    let pair = Pair::new();
    let (io1, vm1) = pair.start_fitting();
    let old = pair.public("io1");
    wait_for_disk(&vm1, DiskState::Ready, "a.sock");
    let mut guest = pair.guest();
    assert_eq!(guest.write(0, 0, 10), Outcome::Ok);
    // The peers get the new key first, then the node changes over, then the old key goes.
    let new = pair.make("io1", KeyKind::Node);
    let attachment = Pair::attachment("alice");
    let lists = |keys: &str| pair.vm1(&format!("keys = [{keys}]"), &attachment);
    pair.reload(&vm1, &lists(&format!("\"{old}\", \"{new}\"")));
    assert_eq!(guest.write(1, 1, 11), Outcome::Ok);
    pair.reload(&io1, &pair.io1(&pair.key("vm1"), &pair.allow("alice")));
    assert_eq!(io1.status().node.key.as_deref(), Some(new.as_str()));
    assert_eq!(guest.write(0, 2, 12), Outcome::Ok);
    assert!(peer_keys(&vm1.status()).iter().all(|key| *key == old), "sessions go on");
    pair.reload(&vm1, &lists(&format!("\"{new}\"")));
    assert_eq!(guest.write(1, 3, 13), Outcome::Ok);
    for block in 0..4 {
        assert_eq!(guest.check(block as u16 % 2, block, block + 10), Outcome::Ok);
    }
    wait_for(&vm1, "changed over", |status| {
        let keys = peer_keys(status);
        !keys.is_empty() && keys.iter().all(|key| *key == new)
    });
    drop(guest);
    stop((io1, vm1));
}

#[test]
fn a_revoked_node_key_ends_its_sessions() {
    let pair = Pair::new();
    let (io1, vm1) = pair.start_fitting();
    wait_for_disk(&vm1, DiskState::Ready, "a.sock");
    let mut guest = pair.guest();
    assert_eq!(guest.write(0, 0, 20), Outcome::Ok);
    pair.reload(&io1, &pair.io1(&pair.key("stranger"), &pair.allow("alice")));
    wait_for_disk(&vm1, DiskState::Lost, "");
    wait_for(&io1, "gone", |status| {
        let open = status.sessions.iter().any(|session| session.state == "connected");
        !open && status.volumes[0].attachments.is_empty()
    });
    pair.reload(&io1, &pair.io1(&pair.key("vm1"), &pair.allow("alice")));
    assert_eq!(guest.check(0, 0, 20), Outcome::Ok, "it goes on when the key is back");
    drop(guest);
    stop((io1, vm1));
}

#[test]
fn a_revoked_attachment_key_ends_its_channels_and_the_session_goes_on() {
    let pair = Pair::new();
    let (io1, vm1) = pair.start_fitting();
    wait_for_disk(&vm1, DiskState::Ready, "a.sock");
    let mut guest = pair.guest();
    for block in 0..20 {
        assert_eq!(guest.write(block as u16 % 2, block, block), Outcome::Ok);
    }
    let before = io1.status().volumes[0].counters["writes"];
    pair.reload(&io1, &pair.io1(&pair.key("vm1"), &pair.allow("bob")));
    let status = wait_for(&io1, "gone", |status| status.volumes[0].attachments.is_empty());
    let revoked = status.sidecores.iter().map(|core| core.counters["server_revoked"]);
    assert!(revoked.sum::<u64>() >= 1);
    assert_eq!(status.volumes[0].allow, [format!("vm1 (key {})", pair.public("bob"))]);
    assert!(status.sessions.iter().any(|session| session.state == "connected"));
    // A request of the guest finds the way closed, and waits.
    let waiting = std::thread::spawn(move || {
        assert_eq!(guest.write(0, 0, 99), Outcome::Ok);
        guest
    });
    wait_for_disk(&vm1, DiskState::Lost, "opens no volume a to vm1");
    assert_eq!(io1.status().volumes[0].counters["writes"], before);
    pair.reload(&io1, &pair.io1(&pair.key("vm1"), &pair.allow("alice")));
    let mut guest = waiting.join().unwrap();
    assert_eq!(guest.check(1, 0, 99), Outcome::Ok);
    for block in 1..20 {
        assert_eq!(guest.check(block as u16 % 2, block, block), Outcome::Ok);
    }
    drop(guest);
    stop((io1, vm1));
}

#[test]
fn a_key_file_that_is_not_in_order_is_named_with_its_line_and_changes_nothing() {
    let pair = Pair::new();
    let text = pair.io1(&pair.key("vm1"), "\"vm1\"");
    let io1 = pair.start_file(&text);
    let alice = text.replace("HOME/io1.key", "HOME/alice.key");
    let error = pair.refused(&io1, &alice).to_string();
    assert!(error.contains("/io1.toml:4: key: key file "), "{error}");
    assert!(error.contains("this is an attachment key and a node key is wanted"), "{error}");
    assert_eq!(io1.status().node.key.as_deref(), Some(pair.public("io1").as_str()));
    let own = pair.io1(&pair.key("io1"), "\"vm1\"");
    let error = pair.refused(&io1, &own).to_string();
    assert!(error.contains("is this node's own key"), "{error}");
    let plain = text
        .replace("key = \"HOME/io1.key\"\n", "")
        .replace(&pair.key("vm1"), "address = \"127.0.0.1:1\"");
    let error = pair.refused(&io1, &plain).to_string();
    assert!(error.contains("restart the node"), "{error}");
    io1.stop();
    let error = Node::start(&pair.home.config(&alice)).unwrap_err().to_string();
    assert!(error.contains("a node key is wanted"), "{error}");
    let vm1 = pair.vm1(&pair.key("io1"), &Pair::attachment("io1"));
    let error = Node::start(&pair.home.config(&vm1)).unwrap_err().to_string();
    assert!(
        error.contains("disk \"a\": key file") && error.contains("an attachment key is wanted"),
        "{error}"
    );
}
