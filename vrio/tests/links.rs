//! The link of a node's datagrams where the wanted link is not possible: the log says why, and a
//! disk works all the same.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use testbed::nodes::{Node, NodePlan};

const VRIO: &str = env!("CARGO_BIN_EXE_vrio");

/// The two ends of a virtual cable.
const NEAR: &str = "10.9.6.1:4870";
const FAR: &str = "10.9.6.2:4870";

fn ip(words: &str) -> bool {
    Command::new("ip").args(words.split(' ')).output().is_ok_and(|output| output.status.success())
}

/// A host with a virtual cable, which copies and has one queue, and both of whose ends are here.
/// Gone when dropped.
struct Host(String);

impl Host {
    /// `None` without the right to make a network namespace.
    fn new(test: &str) -> Option<Self> {
        let host = Self(format!("vrio-links-{test}-{}", std::process::id()));
        let name = &host.0;
        if !rustix::process::geteuid().is_root() || !ip(&format!("netns add {name}")) {
            println!("SKIP {test}: no right to make a network namespace, or no `ip`");
            return None;
        }
        assert!(ip(&format!("-n {name} link add near type veth peer name far")));
        for (end, address) in [("near", NEAR), ("far", FAR)] {
            let address = address.trim_end_matches(":4870");
            assert!(ip(&format!("-n {name} addr add {address}/24 dev {end}")));
            assert!(ip(&format!("-n {name} link set {end} up")));
        }
        assert!(ip(&format!("-n {name} link set lo up")));
        Some(host)
    }

    fn start(&self, program: &Path, home: &Path, name: &str, config: String) -> Node {
        let plan = NodePlan::new(program, home, name, config);
        NodePlan { namespace: Some(self.0.clone()), ..plan }.start().unwrap()
    }

    /// Starts an IOhost with two sidecores whose link is `link`, and a VMhost with UDP, and reads
    /// from the disk. Gives the IOhost's log and the counters of its sidecores.
    fn serve(&self, program: &Path, listen: &str, link: &str) -> (String, [Value; 2]) {
        let home = tempfile::tempdir().unwrap();
        let trust = "trust = \"network\"\n[sidecores]\ncount = 2\n";
        let io1 = format!(
            "listen = \"{listen}\"\nlink = \"{link}\"\n{trust}[[volume]]\nname = \"v\"\n\
             backend = {{ memory = \"16MiB\" }}\nallow = [\"vm1\"]\n"
        );
        let vm1 = format!(
            "listen = \"{FAR}\"\n{trust}[[peer]]\nname = \"io1\"\naddress = \"{listen}\"\n\
             [[disk]]\nsocket = \"v.sock\"\nvolume = \"io1/v\"\nqueues = 2\n"
        );
        let io1 = self.start(program, home.path(), "io1", io1);
        let mut vm1 = self.start(Path::new(VRIO), home.path(), "vm1", vm1);
        let socket = vm1.wait_for_disk("v").unwrap();
        let mut bench = Command::new(VRIO);
        bench.args(["bench", "block", "--seconds", "0.1", "--jobs", "2", "--json", "--path"]);
        let output = bench.arg("socket").arg(socket).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}\n{}", io1.log_tail());
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report["requests"].as_u64().unwrap() > 0, "{report}");
        let status = io1.status().unwrap();
        let counters = [0, 1].map(|index| status["sidecores"][index]["counters"].clone());
        assert!(counters.iter().all(|it| it["link_datagrams_sent"].as_u64().unwrap() > 0));
        let log = io1.log_tail();
        vm1.stop().unwrap();
        io1.stop().unwrap();
        (log, counters)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        ip(&format!("netns del {}", self.0));
    }
}

/// The same program, without any capability.
fn without_rights(folder: &Path) -> PathBuf {
    let path = folder.join("vrio");
    let words = "setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all";
    fs::write(&path, format!("#!/bin/sh\nexec {words} {VRIO} \"$@\"\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn is_past_the_stack(counters: &Value) -> bool {
    counters["xdp_datagrams_sent"].is_u64()
}

#[test]
fn a_node_that_cannot_go_past_the_stack_says_why_and_goes_through_it() {
    let Some(host) = Host::new("refused") else { return };
    let folder = tempfile::tempdir().unwrap();
    let (whole, bare) = (PathBuf::from(VRIO), without_rights(folder.path()));
    for (program, listen, link, said, why) in [
        // A virtual cable copies, and `auto` takes only a link without a copy.
        (&whole, NEAR, "auto", "datagrams go by UDP", "having the card read and write our memory"),
        (&whole, "127.0.0.1:4870", "auto", "datagrams go by UDP", "is not the IPv4 address of one"),
        (&whole, "127.0.0.1:4870", "xdp", "no AF_XDP here", "is not the IPv4 address of one"),
        (&bare, NEAR, "xdp", "no AF_XDP here: datagrams go by UDP", "NET_ADMIN, NET_RAW and BPF"),
    ] {
        let (log, counters) = host.serve(program, listen, link);
        assert!(!counters.iter().any(is_past_the_stack), "{link} at {listen}: {counters:?}");
        let line = log.lines().find(|line| line.contains(said));
        assert!(line.is_some_and(|line| line.contains(why)), "{link} at {listen}: {log}");
    }
}

/// Two sidecores and one queue: each sidecore takes the link that there is for it.
#[test]
fn a_sidecore_without_a_receive_queue_goes_through_the_stack_alone() {
    let Some(host) = Host::new("one-queue") else { return };
    let (log, counters) = host.serve(Path::new(VRIO), NEAR, "xdp");
    assert_eq!(counters.each_ref().map(is_past_the_stack), [true, false], "{counters:?}");
    let line = |said: &str| log.lines().find(|line| line.contains(said)).unwrap_or_default();
    assert!(line("datagrams go past the network stack").contains("queue=0"), "{log}");
    let refused = line("no AF_XDP for this sidecore: its datagrams go by UDP");
    assert!(refused.contains("queue=1") && refused.contains("why="), "{log}");
}
