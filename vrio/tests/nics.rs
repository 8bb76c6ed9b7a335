//! Real guests that talk to each other over a node's network.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::relay::Relay;
use serde_json::Value;
use testbed::guest::{self, BOOT_TIMEOUT, Guest, VhostNic, scripts, talk};
use testbed::nodes::{Node, NodeKeys, NodePlan};

/// The time limit of a script: an emulated guest on a busy machine is slow.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(300);

/// More than all buffers on their way hold, and some ten seconds of emulation.
const LARGE_BYTES: u64 = 128 << 20;

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
queues = 2
"#;

/// The kind of the guests' network cards.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Split,
    Packed,
    /// Without offloads: every packet is whole, and has its checksum.
    Plain,
}

/// The pairs of queues of a guest, and its processors.
fn pairs(number: u8, kind: Kind) -> u16 {
    if number == 2 && kind == Kind::Split { 2 } else { 1 }
}

fn start(image: &guest::Image, plan: &NodePlan, name: &str, number: u8, kind: Kind) -> Guest {
    let pairs = pairs(number, kind);
    let nic = VhostNic {
        socket: plan.socket(name),
        mac: format!("52:54:00:00:00:0{number}"),
        packed: kind == Kind::Packed,
        offloads: kind != Kind::Plain,
        pairs,
    };
    let builder = Guest::builder(image).name(name).script(scripts::TALK).nic(nic).boots_again();
    let builder = builder.processors(pairs);
    talk::with_iperf(builder)
        .unwrap()
        .set("ADDRESS", format!("10.9.0.{number}"))
        .set("PEER", format!("10.9.0.{}", 3 - number))
        .set("BYTES_KIB", 8192)
        .start()
        .unwrap()
}

/// The frames that nodes have dropped of all nics, for any reason, and those that the guests have
/// lost.
fn dropped(nodes: &[&Node], guests: [&mut Guest; 2]) -> u64 {
    let of_nodes: u64 = nodes.iter().map(|node| drops(&node.status().unwrap())).sum();
    of_nodes + guests.into_iter().map(|guest| talk::lost(guest).unwrap()).sum::<u64>()
}

/// The sum of all drops in a status, wherever they are in it.
fn drops(status: &Value) -> u64 {
    match status {
        Value::Array(all) => all.iter().map(drops).sum(),
        Value::Object(all) => {
            let sums = ["drops_in", "drops_out", "remote_drops_in", "remote_drops_out", "stale"];
            let of = |(name, value): (&String, &Value)| match value.as_u64() {
                Some(count) if sums.contains(&name.as_str()) => count,
                _ => drops(value),
            };
            all.iter().map(of).sum()
        }
        _ => 0,
    }
}

/// iperf3 in both directions: TCP, and UDP at a rate that an emulated guest can take. These nodes,
/// or a guest, have counted each datagram that UDP loses.
fn stream(one: &mut Guest, two: &mut Guest, nodes: &[&Node]) {
    talk::serve(two).unwrap();
    for (protocol, way) in [("tcp", ""), ("tcp", "--reverse"), ("udp", ""), ("udp", "--reverse")] {
        let words = match protocol {
            "tcp" => format!("--bytes 16M {way}"),
            _ => format!("--udp --length 1400 --bitrate 8M --time 2 {way}"),
        };
        let before = dropped(nodes, [&mut *one, &mut *two]);
        let it = talk::stream(one, &words).unwrap();
        println!("{protocol} {way}: {:.0} Mbit/s, {it:?}", it.bits_per_s / 1e6);
        assert!(it.bits_per_s > 1e6, "{protocol} {way}: {it:?}");
        if protocol == "udp" {
            let counted = dropped(nodes, [&mut *one, &mut *two]) - before;
            assert!(it.packets > 100 && it.lost <= counted, "{it:?}, {counted} are counted");
        }
    }
}

fn counter(node: &Node, nic: usize, name: &str) -> u64 {
    node.status().unwrap()["nics"][nic]["counters"][name].as_u64().unwrap()
}

/// Pulls the cable of the first guest and plugs it in again: its system sees both.
fn pull_cable(guest: &mut Guest, plan: &NodePlan) {
    for (link, seen) in [("down", "carrier 0"), ("up", "carrier 1")] {
        set(plan, "one", &["--link", link]);
        wait_for_link(guest, seen);
    }
}

/// `vrio nic set`.
fn set(plan: &NodePlan, nic: &str, words: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    command.args(["nic", "set", nic]).args(words).arg("--control").arg(plan.control());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A filter that denies pings drops them and nothing else, until it is removed.
fn filter(guest: &mut Guest, node: &Node) {
    let plan = node.plan();
    set(plan, "two", &["--default", "allow", "--rule", "deny received icmp"]);
    talk::hear_nothing(guest).unwrap();
    let denied = counter(node, 1, "drops_out_filtered");
    assert!(denied >= 4, "{denied} of 4 pings were denied");
    let it = talk::stream(guest, "--bytes 1M").unwrap();
    assert!(it.bits_per_s > 1e5, "only pings are denied: {it:?}");
    set(plan, "two", &["--no-filter"]);
    talk::ping(guest).unwrap();
}

/// Guests of two VLANs hear nothing of each other, not even broadcasts. Guests of one VLAN hear
/// everything.
fn separate(one: &mut Guest, two: &mut Guest, node: Node) -> Node {
    let vlans = |node: Node, of_one: u16, of_two: u16| {
        let mut plan = node.kill().unwrap();
        plan.config = CONFIG
            .replace(":01\"\n", &format!(":01\"\nvlan = {of_one}\n"))
            .replace(":02\"\n", &format!(":02\"\nvlan = {of_two}\n"));
        plan.start().unwrap()
    };
    let node = vlans(node, 10, 20);
    talk::hear_nothing(one).unwrap();
    assert!(counter(&node, 0, "frames_in") >= 4, "it asked for the other one");
    assert_eq!(counter(&node, 1, "frames_out"), 0, "what leaks");
    let node = vlans(node, 10, 10);
    talk::exchange(one, two).unwrap();
    node
}

/// Waits until the guest's system says `carrier 0`, or `carrier 1`.
fn wait_for_link(guest: &mut Guest, seen: &str) {
    guest.type_line(seen).unwrap();
    guest.wait_for(seen, SCRIPT_TIMEOUT).unwrap();
}

/// The guests talk, the cable of one is pulled, their node is killed, and they talk again in the
/// other direction. At last a filter and VLANs separate them.
fn talk_over_everything(image: &guest::Image, kind: Kind) {
    let home = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_vrio");
    let plan = NodePlan::new(program, home.path(), "vm1", CONFIG.to_owned());
    let node = plan.start().unwrap();
    let mut one = start(image, &plan, "one", 1, kind);
    let mut two = start(image, &plan, "two", 2, kind);
    let ready = one.wait_for("ready", BOOT_TIMEOUT).unwrap();
    assert_eq!(ready, "52:54:00:00:00:01 mtu=1500");
    two.wait_for("ready", BOOT_TIMEOUT).unwrap();
    talk::exchange(&mut one, &mut two).unwrap();
    // The guest leaves its segments whole: far fewer frames than packets of 1500 bytes. A guest
    // without offloads cuts them itself.
    let (frames, bytes) = (counter(&node, 0, "frames_in"), counter(&node, 0, "bytes_in"));
    let are_long = bytes / frames > 3000;
    assert!(bytes > 8 << 20 && are_long == (kind != Kind::Plain), "{bytes} in {frames} frames");
    stream(&mut one, &mut two, &[&node]);
    assert_eq!(counter(&node, 1, "drops_in"), 0);
    pull_cable(&mut one, &plan);
    if kind == Kind::Split {
        // Both pairs serve the guest: several flows spread to them.
        talk::stream(&mut one, "--bytes 1M --parallel 8").unwrap();
        assert_eq!(talk::queues(&mut two).unwrap(), [2, 2]);
        // The node sees the device reset and its rings made anew. Nothing else is changed.
        talk::reboot(&mut two).unwrap();
        talk::serve(&mut two).unwrap();
        talk::exchange(&mut one, &mut two).unwrap();
    }
    // Another process goes on in the node's place, and the guests' links stay up all the time.
    let mut links = Vec::new();
    let mut node = node;
    for turn in 0..2 {
        for guest in [&mut one, &mut two] {
            links.push(talk::ping(guest).unwrap());
        }
        if turn == 0 {
            node = node.hand_over().unwrap();
        }
    }
    assert_eq!(links[..2], links[2..]);
    let mut node = node.kill().unwrap().start().unwrap();
    talk::exchange(&mut two, &mut one).unwrap();
    if kind == Kind::Split {
        filter(&mut one, &node);
        node = separate(&mut one, &mut two, node);
    }
    for guest in [one, two] {
        talk::end(guest).unwrap();
    }
    assert_eq!((counter(&node, 0, "drops_in"), counter(&node, 1, "drops_in")), (0, 0));
    node.stop().unwrap();
}

#[test]
fn two_guests_talk_and_go_on_after_their_node_was_killed() {
    let test = "two_guests_talk_and_go_on_after_their_node_was_killed";
    let Some(image) = guest::available(test) else { return };
    talk_over_everything(&image, Kind::Split);
}

/// One datagram in so many is lost: 0.1 %.
const LOSES_ONE_IN: u64 = 1000;

/// The IOhost's port. The next one is the relay's, and the one after it the VMhost's. They lie
/// below the ports of other tests, and below those that the system gives away.
fn port() -> u16 {
    18_000 + (std::process::id() % 500) as u16 * 4
}

/// An IOhost with a network and a guest, and a VMhost whose guest is in that network.
fn two_nodes(home: &std::path::Path, keys: &NodeKeys) -> [NodePlan; 2] {
    let port = port();
    let plan = |name: &str, port: u16, rest: String| {
        let config = format!(
            "listen = \"127.0.0.1:{port}\"\n{}[sidecores]\ncount = 1\nidle = \"adaptive\"\n{rest}",
            keys.own(name)
        );
        NodePlan::new(env!("CARGO_BIN_EXE_vrio"), home, name, config)
    };
    let nic = |name: &str, number: u8, network: &str| {
        let mac = format!("52:54:00:00:00:0{number}");
        let pairs = pairs(number, Kind::Split);
        format!(
            "[[nic]]\nsocket = \"{name}.sock\"\nnetwork = \"{network}\"\nmac = \"{mac}\"\n\
             queues = {pairs}\n"
        )
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

/// Prints by how much a loss of datagrams between the nodes slows a stream of TCP. Its segments of
/// 64 KiB are some 45 datagrams each.
fn lose(one: &mut Guest, relay: &Relay) {
    let mut stream = || talk::stream(one, "--bytes 16M").unwrap().bits_per_s / 1e6;
    let whole = stream();
    let (before, _) = relay.counts();
    relay.lose(LOSES_ONE_IN);
    let lossy = stream();
    let (passed, lost) = relay.counts();
    relay.lose(0);
    println!(
        "tcp over Ethernet: {whole:.0} Mbit/s; with {lost} of {} datagrams lost: {lossy:.0} \
         Mbit/s, {:.2} of it",
        passed - before + lost,
        lossy / whole
    );
    assert!(lost > 0, "it is lossy");
    assert!(whole > 1.0 && lossy > 1.0, "{whole} and {lossy} Mbit/s");
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
    let keys = NodeKeys::make(home.path(), &["io1", "vm1"]).unwrap();
    let [io_plan, vm_plan] = two_nodes(home.path(), &keys);
    let (io, vm) = (io_plan.start().unwrap(), vm_plan.start().unwrap());
    let mut one = start(&image, &vm_plan, "one", 1, Kind::Split);
    let mut two = start(&image, &io_plan, "two", 2, Kind::Split);
    one.wait_for("ready", BOOT_TIMEOUT).unwrap();
    two.wait_for("ready", BOOT_TIMEOUT).unwrap();
    talk::exchange(&mut one, &mut two).unwrap();
    let (frames, bytes) = (member_counter(&io, "frames_in"), member_counter(&io, "bytes_in"));
    assert!(bytes > 8 << 20 && bytes / frames > 3000, "{bytes} bytes in {frames} frames");
    stream(&mut one, &mut two, &[&io, &vm]);
    let began = Instant::now();
    talk::send_large(&mut one, &mut two, LARGE_BYTES).unwrap();
    println!("{} MiB as they were sent, {:?}", LARGE_BYTES >> 20, began.elapsed());
    let down = io.kill().unwrap();
    wait_for_link(&mut one, "carrier 0");
    let io = down.start().unwrap();
    wait_for_link(&mut one, "carrier 1");
    talk::exchange(&mut two, &mut one).unwrap();
    let mut plan = vm.kill().unwrap();
    let [own, relays] = [port(), port() + 1].map(|port| format!("\"127.0.0.1:{port}\""));
    plan.config = plan.config.replace(&own, &relays);
    let relay = Relay::new(port() + 1, port());
    let vm = plan.start().unwrap();
    talk::exchange(&mut one, &mut two).unwrap();
    lose(&mut one, &relay);
    // Both directions had segments as the guests left them, and each frame was understood.
    for reason in ["drops_in_offload_unknown", "drops_in_source_foreign", "drops_in_short"] {
        assert_eq!(member_counter(&io, reason), 0, "{reason}");
    }
    for guest in [one, two] {
        talk::end(guest).unwrap();
    }
    vm.stop().unwrap();
    io.stop().unwrap();
}

#[test]
fn two_guests_with_packed_rings_go_on_as_well() {
    let Some(image) = guest::available("two_guests_with_packed_rings_go_on_as_well") else {
        return;
    };
    talk_over_everything(&image, Kind::Packed);
}

#[test]
fn two_guests_without_offloads_go_on_as_well() {
    let Some(image) = guest::available("two_guests_without_offloads_go_on_as_well") else {
        return;
    };
    talk_over_everything(&image, Kind::Plain);
}
