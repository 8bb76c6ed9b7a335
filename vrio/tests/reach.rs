//! A VMhost reports the state of its volumes on other nodes, whether a guest uses a disk or not.
//! The IOhosts are real: they are stopped, killed, and made to give up or replace a volume.

use std::process::Command;

use testbed::nodes::{Node, NodePlan};

/// The VMhost has a disk of the IOhost's volume, and no guest.
struct Pair {
    home: tempfile::TempDir,
    port: u16,
}

impl Pair {
    fn new() -> Self {
        let port = 19_000 + (std::process::id() % 1_000) as u16 * 4;
        Self { home: tempfile::tempdir().expect("a directory"), port }
    }

    fn plan(&self, name: &str, config: String) -> NodePlan {
        NodePlan::new(env!("CARGO_BIN_EXE_vrio"), self.home.path(), name, config)
    }

    fn io1(&self, allow: &str) -> NodePlan {
        let config = format!(
            "listen = \"127.0.0.1:{}\"\n[sidecores]\ncount = 1\n\
             [[volume]]\nname = \"a\"\nbackend = {{ file = \"a.img\", size = \"1MiB\" }}\n\
             allow = [\"{allow}\"]\n",
            self.port
        );
        self.plan("io1", config)
    }

    fn vm1(&self) -> NodePlan {
        let config = format!(
            "listen = \"127.0.0.1:{}\"\nmetrics-listen = \"127.0.0.1:{}\"\n\
             [sidecores]\ncount = 1\n\
             [[peer]]\nname = \"io1\"\naddress = \"127.0.0.1:{}\"\n\
             [[disk]]\nsocket = \"a.sock\"\nvolume = \"io1/a\"\n",
            self.port + 1,
            self.port + 2,
            self.port
        );
        self.plan("vm1", config)
    }
}

/// The output of a command of the VMhost's or the IOhost's operator, and whether it succeeded.
fn vrio(of: &NodePlan, words: &[&str]) -> (bool, String) {
    let mut vrio = Command::new(&of.program);
    let output = vrio.args(words).arg("--control").arg(of.control()).output();
    let output = output.expect("the binary was built");
    let text = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    (output.status.success(), text)
}

fn wait_for(vm: &mut Node, state: &str, detail: &str) {
    let is = |node: &Node| {
        let status = node.status().expect("it answers");
        let disk = &status["disks"][0];
        disk["state"] == state && disk["detail"].as_str().is_some_and(|text| text.contains(detail))
    };
    vm.wait_until(&format!("its disk is {state}: {detail}"), is).expect("so");
}

/// Lines of the VMhost's log with these words.
fn said(vm: &Node, words: &str) -> usize {
    let log = std::fs::read_to_string(vm.plan().home.join("log")).expect("its log");
    log.lines().filter(|line| line.contains(words)).count()
}

fn wait_until_said(vm: &mut Node, words: &str, times: usize) {
    let is = |node: &Node| said(node, words) >= times;
    vm.wait_until(&format!("its log has {words:?} {times} times"), is).expect("so");
    assert_eq!(said(vm, words), times, "{words:?} is said once for each change");
}

const OUT: &str = "the disk's volume is out of reach";
const BACK: &str = "the disk's volume is back";
const REFUSED: &str = "the volume's node refuses the volume to this disk";

#[test]
fn a_disk_without_a_guest_says_that_its_iohost_is_stopped_or_dead() {
    let pair = Pair::new();
    let mut io = pair.io1("vm1").start().expect("the IOhost starts");
    let mut vm = pair.vm1().start().expect("the VMhost starts");
    vm.wait_for_disk("a").expect("the disk is served");
    wait_for(&mut vm, "ready", "no guest yet");
    io.halt().expect("it runs");
    wait_for(&mut vm, "lost", "peer io1");
    wait_until_said(&mut vm, OUT, 1);
    let (_, listed) = vrio(vm.plan(), &["disk", "list"]);
    assert!(listed.contains("lost") && listed.contains("peer io1"), "{listed}");
    io.resume().expect("it is stopped");
    wait_for(&mut vm, "ready", "no guest yet");
    wait_until_said(&mut vm, BACK, 1);
    for kill in 2..4 {
        let plan = io.kill().expect("it ran until now");
        wait_for(&mut vm, "lost", "peer io1");
        wait_until_said(&mut vm, OUT, kill);
        io = plan.start().expect("the IOhost starts again");
        wait_for(&mut vm, "ready", "no guest yet");
        wait_until_said(&mut vm, BACK, kill);
    }
    let status = vm.status().expect("it answers");
    let reach = &status["disks"][0]["reach"];
    assert!(reach["state"] == "answers" && reach["outages"] == 3, "{reach}");
    vm.stop().expect("the VMhost stops in order");
    io.stop().expect("the IOhost stops in order");
}

#[test]
fn a_volume_that_a_disk_without_a_guest_shows_is_not_removed_but_by_force() {
    let pair = Pair::new();
    let plan = pair.io1("vm1");
    let io = plan.start().expect("the IOhost starts");
    let mut vm = pair.vm1().start().expect("the VMhost starts");
    vm.wait_for_disk("a").expect("the disk is served");
    let (done, text) = vrio(&plan, &["volume", "remove", "a"]);
    assert!(!done && text.contains("a disk of node \"vm1\""), "{text}");
    let (done, text) = vrio(&plan, &["volume", "remove", "a", "--force"]);
    assert!(done, "{text}");
    wait_for(&mut vm, "lost", "volume a is not open to vm1");
    wait_until_said(&mut vm, REFUSED, 1);
    // Another volume of that name takes its place.
    let (done, text) =
        vrio(&plan, &["volume", "add", "a", "--file", "b.img", "--size", "2MiB", "--allow", "vm1"]);
    assert!(done, "{text}");
    wait_for(&mut vm, "ready", "no guest yet");
    wait_until_said(&mut vm, BACK, 1);
    // The volume is closed to the VMhost, as if an operator corrected the file.
    let closed = pair.io1("vm2").write().expect("its directory is there");
    let mut reload = Command::new(&plan.program);
    let reloaded = reload.args(["node", "reload", "--yes", "--force", "--config"]).arg(closed);
    let reloaded = reloaded.output().expect("the binary was built");
    assert!(reloaded.status.success(), "{reloaded:?}");
    wait_for(&mut vm, "lost", "volume a is not open to vm1");
    wait_until_said(&mut vm, REFUSED, 2);
    vm.stop().expect("the VMhost stops in order");
    io.stop().expect("the IOhost stops in order");
}
