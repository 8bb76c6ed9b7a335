//! Real guests that talk to each other over a node's network.

use std::process::Command;
use std::time::Duration;

use bench::guest::{self, BOOT_TIMEOUT, Guest};
use bench::nodes::{Keys, Node, NodePlan};

/// For what a script does: an emulated guest on a busy machine is slow.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(300);

/// What both guests run.
const TALK: &str = include_str!("../../guest/scripts/talk.sh");

const CONFIG: &str = r#"[sidecores]
idle = "adaptive"
[[network]]
name = "blue"
[[nic]]
socket = "one.sock"
network = "blue"
mac = "52:54:00:00:00:01"
[[nic]]
socket = "two.sock"
network = "blue"
mac = "52:54:00:00:00:02"
"#;

fn start(image: &guest::Image, plan: &NodePlan, name: &str, number: u8, packed: bool) -> Guest {
    let socket = plan.socket(name);
    let chardev = format!("socket,id=c0,path={},reconnect-ms=200", socket.display());
    let ring = if packed { ",packed=on" } else { "" };
    let device = format!("virtio-net-pci,netdev=n0,mac=52:54:00:00:00:0{number},romfile={ring}");
    let builder = Guest::builder(image).name(name).script(TALK);
    builder
        .arguments(&["-chardev", &chardev, "-netdev", "vhost-user,id=n0,chardev=c0"])
        .arguments(&["-device", &device])
        .set("ADDRESS", format!("10.9.0.{number}"))
        .set("PEER", format!("10.9.0.{}", 3 - number))
        .set("BYTES_KIB", 8192)
        .start()
        .unwrap()
}

/// One asks, and the other has what it sent.
fn talk(from: &mut Guest, to: &mut Guest) {
    from.type_line("ask").unwrap();
    let sent = from.wait_for("sent", SCRIPT_TIMEOUT).unwrap();
    to.type_line("tell").unwrap();
    assert_eq!(to.wait_for("got", SCRIPT_TIMEOUT).unwrap(), sent);
}

fn counter(node: &Node, nic: usize, name: &str) -> u64 {
    node.status().unwrap()["nics"][nic]["counters"][name].as_u64().unwrap()
}

/// Pulls the cable of the first guest and plugs it in again: its system sees both.
fn pull_cable(guest: &mut Guest, plan: &NodePlan) {
    for (link, seen) in [("down", "carrier 0"), ("up", "carrier 1")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
        command.args(["nic", "set", "one", "--link", link, "--control"]).arg(plan.control());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        guest.type_line(seen).unwrap();
        guest.wait_for(seen, SCRIPT_TIMEOUT).unwrap();
    }
}

/// They talk, one has its cable pulled, their node is killed, and they talk again the other way.
fn talk_over_everything(image: &guest::Image, packed: bool) {
    let home = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_vrio");
    let plan = NodePlan::new(program, home.path(), "vm1", CONFIG.to_owned());
    let node = plan.start().unwrap();
    let mut one = start(image, &plan, "one", 1, packed);
    let mut two = start(image, &plan, "two", 2, packed);
    let ready = one.wait_for("ready", BOOT_TIMEOUT).unwrap();
    assert_eq!(ready, "52:54:00:00:00:01 mtu=1500");
    two.wait_for("ready", BOOT_TIMEOUT).unwrap();
    talk(&mut one, &mut two);
    // Segments as the guest left them: far fewer frames than packets of 1500 bytes.
    let (frames, bytes) = (counter(&node, 0, "frames_in"), counter(&node, 0, "bytes_in"));
    assert!(bytes > 8 << 20 && bytes / frames > 3000, "{bytes} bytes in {frames} frames");
    assert_eq!(counter(&node, 1, "drops_in"), 0);
    pull_cable(&mut one, &plan);
    // Another process goes on in the node's place, and the guests' links do not even blink.
    let mut links = Vec::new();
    let mut node = node;
    for turn in 0..2 {
        for guest in [&mut one, &mut two] {
            guest.type_line("ping").unwrap();
            links.push(guest.wait_for("pinged", SCRIPT_TIMEOUT).unwrap());
        }
        if turn == 0 {
            node = node.hand_over().unwrap();
        }
    }
    assert_eq!(links[..2], links[2..]);
    let node = node.kill().unwrap().start().unwrap();
    talk(&mut two, &mut one);
    for guest in [&mut one, &mut two] {
        guest.type_line("end").unwrap();
        let packets = guest.wait_for("packets", SCRIPT_TIMEOUT).unwrap();
        assert!(packets.ends_with("errors=0"), "{packets}");
    }
    one.wait_success(SCRIPT_TIMEOUT).unwrap();
    two.wait_success(SCRIPT_TIMEOUT).unwrap();
    assert_eq!((counter(&node, 0, "drops_in"), counter(&node, 1, "drops_in")), (0, 0));
    node.stop().unwrap();
}

#[test]
fn two_guests_talk_and_go_on_after_their_node_was_killed() {
    let test = "two_guests_talk_and_go_on_after_their_node_was_killed";
    let Some(image) = guest::available(test) else { return };
    talk_over_everything(&image, false);
}

/// An IOhost with a network and a guest, and a VMhost whose guest is in that network.
fn two_nodes(home: &std::path::Path, keys: &Keys) -> [NodePlan; 2] {
    // Below the ports of other tests, and below those that the system gives away.
    let port = 18_000 + (std::process::id() % 500) as u16 * 4;
    let plan = |name: &str, port: u16, rest: String| {
        let config = format!(
            "listen = \"127.0.0.1:{port}\"\n{}[sidecores]\ncount = 1\nidle = \"adaptive\"\n{rest}",
            keys.own(name)
        );
        NodePlan::new(env!("CARGO_BIN_EXE_vrio"), home, name, config)
    };
    let nic = |name: &str, number: u8, network: &str| {
        let mac = format!("52:54:00:00:00:0{number}");
        format!("[[nic]]\nsocket = \"{name}.sock\"\nnetwork = \"{network}\"\nmac = \"{mac}\"\n")
    };
    let of_io = format!(
        "{}[[network]]\nname = \"blue\"\n{}{}",
        keys.clients(&["vm1"]),
        keys.allow(&["vm1"]),
        nic("two", 2, "blue")
    );
    let of_vm = format!(
        "[[peer]]\nname = \"io1\"\naddress = \"127.0.0.1:{port}\"\n{}{}{}",
        keys.peer("io1"),
        nic("one", 1, "io1/blue"),
        keys.disk()
    );
    [plan("io1", port, of_io), plan("vm1", port + 2, of_vm)]
}

fn member_counter(io: &Node, name: &str) -> u64 {
    let status = io.status().unwrap();
    status["networks"][0]["members"][0]["counters"][name].as_u64().unwrap_or_default()
}

#[test]
fn guests_of_two_nodes_talk_and_go_on_after_either_node_was_killed() {
    let test = "guests_of_two_nodes_talk_and_go_on_after_either_node_was_killed";
    let Some(image) = guest::available(test) else { return };
    let home = tempfile::tempdir().unwrap();
    let keys = Keys::make(home.path(), &["io1", "vm1"]).unwrap();
    let [io_plan, vm_plan] = two_nodes(home.path(), &keys);
    let (io, vm) = (io_plan.start().unwrap(), vm_plan.start().unwrap());
    let mut one = start(&image, &vm_plan, "one", 1, false);
    let mut two = start(&image, &io_plan, "two", 2, false);
    one.wait_for("ready", BOOT_TIMEOUT).unwrap();
    two.wait_for("ready", BOOT_TIMEOUT).unwrap();
    talk(&mut one, &mut two);
    let (frames, bytes) = (member_counter(&io, "frames_in"), member_counter(&io, "bytes_in"));
    assert!(bytes > 8 << 20 && bytes / frames > 3000, "{bytes} bytes in {frames} frames");
    let io = io.kill().unwrap().start().unwrap();
    talk(&mut two, &mut one);
    let vm = vm.kill().unwrap().start().unwrap();
    talk(&mut one, &mut two);
    // Both ways with segments as the guests left them, and nothing that was not understood.
    for reason in ["drops_in_offload_unknown", "drops_in_source_foreign", "drops_in_short"] {
        assert_eq!(member_counter(&io, reason), 0, "{reason}");
    }
    for guest in [&mut one, &mut two] {
        guest.type_line("end").unwrap();
        let packets = guest.wait_for("packets", SCRIPT_TIMEOUT).unwrap();
        assert!(packets.ends_with("errors=0"), "{packets}");
    }
    one.wait_success(SCRIPT_TIMEOUT).unwrap();
    two.wait_success(SCRIPT_TIMEOUT).unwrap();
    vm.stop().unwrap();
    io.stop().unwrap();
}

#[test]
fn two_guests_with_packed_rings_go_on_as_well() {
    let Some(image) = guest::available("two_guests_with_packed_rings_go_on_as_well") else {
        return;
    };
    talk_over_everything(&image, true);
}
