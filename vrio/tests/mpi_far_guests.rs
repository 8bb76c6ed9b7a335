//! An MPI job whose ranks are in virtual machines of two hosts: two network namespaces with a node
//! and a QEMU each. Its messages go by the two windows and by the session of the pair of hosts.

use testbed::guest::mpi::{self, Member, PATIENCE};
use testbed::guest::{BOOT_TIMEOUT, Guest, Image, scripts};
use testbed::hosts::{DOMAIN, Hosts};
use testbed::installed;

use crate::mpi::built::exercise;

/// Two ranks for each guest.
const BOTH: &str = "10.9.0.1:2,10.9.0.2:2";
const RANKS: usize = 4;

/// The fewest messages of either job between the hosts. In one job, two ranks send 400 messages
/// each to the first rank, on the other host. The other job has 100 steps in which all ranks take
/// part.
const CROSSING_MIN: u64 = 100;

/// A host's card in the guests' network, by which jobs are started, and its window.
fn config(network: &str, number: u8) -> String {
    let mac = mpi::mac(number);
    format!(
        "[[nic]]\nsocket = \"guest.sock\"\nnetwork = \"{network}\"\nmac = \"{mac}\"\n\
         [[vf]]\ndomain = \"{DOMAIN}\"\nsocket = \"guest.vf\"\n"
    )
}

/// Starts a guest on each host.
fn guests(hosts: &Hosts, image: &Image) -> Vec<Guest> {
    let provider = installed::provider().expect("the workspace's tests are built");
    let provider = mpi::slim(&provider, &hosts.path("")).expect("there is room");
    let addresses = [1, 2].map(|number| format!("10.9.0.{number}"));
    let start = |host: usize| {
        let socket = hosts.nodes[host].plan().socket("guest");
        let member = Member {
            addresses: [&addresses[host], &addresses[1 - host]],
            domain: DOMAIN,
            key: &hosts.secret,
            vf: &socket.with_extension("vf"),
            provider: &provider,
        };
        mpi::with_member(Guest::builder(image), image, &member)
            .expect("the caller has looked")
            .name(&format!("of host {host}"))
            .prefix(&["ip", "netns", "exec", &hosts.space(host)])
            .nic(mpi::nic(socket, [1, 2][host]))
            .file("bin/exercise", exercise())
            .script(scripts::MPI)
            .start()
            .expect("QEMU runs")
    };
    let mut guests = vec![start(0), start(1)];
    for guest in &mut guests {
        guest.wait_for("ready", BOOT_TIMEOUT).expect("it boots");
    }
    guests
}

#[test]
fn four_ranks_in_two_vms_of_two_hosts_find_everything_as_it_was_sent() {
    let test = "four_ranks_in_two_vms_of_two_hosts_find_everything_as_it_was_sent";
    let Some(image) = mpi::available(test) else { return };
    let home = tempfile::tempdir().expect("a directory");
    let vrio = installed::install(env!("CARGO_BIN_EXE_vrio").as_ref(), home.path());
    let network = "[[network]]\nname = \"between\"\nallow = [\"io1\"]\n";
    let [one, other] = [config("between", 1), config("vm1/between", 2)];
    let each = [&*format!("{network}{one}"), &other];
    let Some(hosts) = Hosts::new(&vrio.expect("it was built"), "", each).expect("they start")
    else {
        println!("SKIP {test}: network namespaces take root");
        return;
    };
    let mut guests = guests(&hosts, &image);
    for what in ["all-to-all", "any-source"] {
        let before = hosts.crossed().expect("they answer");
        mpi::begin(&mut guests[0], BOTH, RANKS, &format!("exercise {what}")).expect("it runs");
        let (lines, status) = mpi::lines_until(&mut guests[0], "ended").expect("it goes on");
        let is_done = status == "0" && lines.contains(&format!("ok {what}"));
        let logs = [0, 1].map(|host| hosts.nodes[host].log_tail()).join("\n");
        assert!(is_done, "{what}: {status}\n{}\n{logs}", lines.join("\n"));
        let crossed = hosts.crossed().expect("they answer") - before;
        assert!(crossed >= CROSSING_MIN, "{what} went another way: {crossed} crossed");
    }
    // These messages and the network of the hosts share one session of the pair.
    let status = hosts.nodes[0].status().expect("it answers");
    assert_eq!(status["sessions"].as_array().map(Vec::len), Some(1), "{}", status["sessions"]);
    for mut guest in guests {
        guest.type_line("end").expect("it runs");
        guest.wait_success(PATIENCE).expect("it ends well");
    }
}
