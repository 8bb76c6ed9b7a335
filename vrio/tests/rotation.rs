//! A node's key is changed by `vrio node reload` while a guest works on a disk of it, in the steps
//! of docs/operating.md, on real nodes that have given their rights up.

use std::process::Command;

use random::Random;
use serde_json::Value;
use testbed::nodes::{Node, NodeKeys, NodePlan};
use testbed::stand_in::StandIn;
use workload::Mix;

/// The IOhost's keys, and the VMhost's.
const OLD: &str = "io1-old";
const NEW: &str = "io1-new";
const VM: &str = "vm1";

const BLOCKS: u64 = 512;

/// The sidecores of each node, and so the sessions between the nodes.
const SIDECORES: usize = 2;

/// The requests that the guest must complete after each step.
const COMPLETED_MIN: u64 = 500;

struct Pair {
    home: tempfile::TempDir,
    keys: NodeKeys,
    port: u16,
}

impl Pair {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let keys = NodeKeys::make(home.path(), &[OLD, NEW, VM]).expect("keys");
        Self { home, keys, port: 16_000 + (std::process::id() % 3_000) as u16 }
    }

    fn plan(&self, name: &str, config: String) -> NodePlan {
        NodePlan::new(env!("CARGO_BIN_EXE_vrio"), self.home.path(), name, config)
    }

    /// The IOhost with this key.
    fn io1(&self, key: &str) -> NodePlan {
        let config = format!(
            "listen = \"127.0.0.1:{}\"\n{}[sidecores]\ncount = {SIDECORES}\n{}\
             [[volume]]\nname = \"a\"\nbackend = {{ file = \"a.img\", size = \"16MiB\" }}\n\
             chain = [\"meter\"]\n{}",
            self.port,
            self.keys.own(key),
            self.keys.clients(&[VM]),
            self.keys.allow(&[VM])
        );
        self.plan("io1", config)
    }

    /// The VMhost that knows these keys of the IOhost.
    fn vm1(&self, known: &[&str]) -> NodePlan {
        let config = format!(
            "listen = \"127.0.0.1:0\"\n{}[sidecores]\ncount = {SIDECORES}\n\
             [[peer]]\nname = \"io1\"\naddress = \"127.0.0.1:{}\"\n{}\
             [[disk]]\nsocket = \"a.sock\"\nvolume = \"io1/a\"\n{}",
            self.keys.own(VM),
            self.port,
            self.keys.peer_with(known),
            self.keys.disk()
        );
        self.plan(VM, config)
    }
}

/// Writes the configuration and has the running node take it over, as an operator would.
fn reload(wanted: &NodePlan) {
    let config = wanted.write().expect("its directory is there");
    let mut vrio = Command::new(&wanted.program);
    let output = vrio.args(["node", "reload", "--yes", "--config"]).arg(&config).output();
    let output = output.expect("the binary was built");
    let text = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    assert!(output.status.success() && text.contains("key files are read again"), "{text}");
}

/// Works until enough requests are completed.
fn work(guest: &mut StandIn) {
    let wanted = guest.workload.counts.completed + COMPLETED_MIN;
    guest.work(|guest| guest.workload.counts.completed >= wanted).expect("the promise is kept");
}

/// Works while the step runs, and then until enough requests are completed.
fn work_during(guest: &mut StandIn, step: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let step = scope.spawn(step);
        guest.work(|_| step.is_finished()).expect("the promise is kept");
        step.join().expect("the step is done");
    });
    work(guest);
}

/// The keys by which the peer of each session proved its name.
fn session_keys(node: &Node) -> Vec<Value> {
    let status = node.status().expect("it answers");
    let sessions = status["sessions"].as_array().expect("a list").iter();
    let connected = sessions.filter(|session| session["state"] == "connected");
    connected.map(|session| session["peer_key"].clone()).collect()
}

fn wait_for_sessions(node: &mut Node, key: &str) {
    let all = |node: &Node| session_keys(node) == vec![Value::from(key); SIDECORES];
    node.wait_until("its sessions are those of the key", all).expect("so");
}

#[test]
fn a_key_is_revoked_although_a_guest_keeps_the_rest_of_the_file_from_being_done() {
    let pair = Pair::new();
    let io = pair.io1(OLD).start().expect("the IOhost starts");
    let mut vm = pair.vm1(&[OLD]).start().expect("the VMhost starts");
    let socket = vm.wait_for_disk("a").expect("the disk is served");
    let mut random = Random::new(1);
    let mut guest =
        StandIn::connect(&socket, 4, Mix::OF_ALL, BLOCKS, &mut random).expect("connects");
    work(&mut guest);
    let mut wanted = pair.vm1(&[NEW]);
    wanted.config.push_str("queues = 2\n");
    let config = wanted.write().expect("its directory is there");
    let reload = |more: &[&str]| {
        let mut vrio = Command::new(&wanted.program);
        let output = vrio.args(["node", "reload", "--config"]).arg(&config).args(more).output();
        let output = output.expect("the binary was built");
        let text = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
        (output.status.code(), text)
    };
    let (code, text) = reload(&[]);
    assert!(code == Some(2) && text.contains("NOTHING WAS REVOKED: there is no term"), "{text}");
    assert!(!session_keys(&vm).is_empty());
    let (code, text) = reload(&["--yes"]);
    assert!(code == Some(1) && text.contains("done: change peer \"io1\": its keys"), "{text}");
    assert!(text.contains("used by") && text.contains("not done: remove disk"), "{text}");
    vm.wait_until("the old key is out", |node| session_keys(node).is_empty()).expect("so");
    guest.disconnect();
    vm.kill().expect("it ran until now");
    io.stop().expect("the IOhost stops in order");
}

#[test]
fn a_key_is_changed_by_reloads_while_a_disk_works_and_the_old_one_is_revoked() {
    let pair = Pair::new();
    let [old, new] = [OLD, NEW].map(|name| pair.keys.public(name).to_owned());
    let io = pair.io1(OLD).start().expect("the IOhost starts");
    let mut vm = pair.vm1(&[OLD]).start().expect("the VMhost starts");
    let socket = vm.wait_for_disk("a").expect("the disk is served");
    let mut random = Random::new(1);
    let mut guest =
        StandIn::connect(&socket, 4, Mix::OF_ALL, BLOCKS, &mut random).expect("connects");
    work(&mut guest);
    wait_for_sessions(&mut vm, &old);

    work_during(&mut guest, || reload(&pair.vm1(&[OLD, NEW])));
    work_during(&mut guest, || reload(&pair.io1(NEW)));
    assert_eq!(io.status().expect("it answers")["node"]["key"], *new);
    // There was no pause until now: these are still the first sessions.
    wait_for_sessions(&mut vm, &old);
    let lost = |node: &Node| {
        let status = node.status().expect("it answers");
        let sidecores = status["sidecores"].as_array().expect("a list").iter();
        let lost = sidecores.map(|core| core["counters"]["sessions_lost"].as_u64());
        lost.map(|lost| lost.expect("a counter")).sum::<u64>()
    };
    assert_eq!((lost(&io), lost(&vm)), (0, 0));

    work_during(&mut guest, || reload(&pair.vm1(&[NEW])));
    wait_for_sessions(&mut vm, &new);
    assert!(lost(&vm) >= SIDECORES as u64, "the old key's sessions ended");

    // A node with the old key is refused now, and the disk waits for the node with the new key. The
    // IOhost says goodbye first: with another key it could not prove later that it has lost its
    // sessions.
    io.stop().expect("the IOhost stops in order");
    let thief = pair.io1(OLD).start().expect("it starts");
    vm.wait_until("the old key is refused", |node| {
        let status = node.status().expect("it answers");
        let disk = &status["disks"][0];
        let detail = disk["detail"].as_str().unwrap_or_default();
        disk["state"] == "lost" && detail.contains("refused") && session_keys(node).is_empty()
    })
    .expect("so");
    let served = thief.status().expect("it answers")["volumes"][0]["counters"].clone();
    assert_eq!((&served["reads"], &served["writes"]), (&0.into(), &0.into()));
    thief.kill().expect("it ran until now");
    let io = pair.io1(NEW).start().expect("the IOhost starts again");
    work(&mut guest);
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!(guest.workload.counts.errors, 0, "a change of keys is no error");
    guest.compare_image(&io.plan().file("a.img")).expect("the whole image is as promised");
    guest.disconnect();
    vm.stop().expect("the VMhost stops in order");
    io.stop().expect("the IOhost stops in order");
}
