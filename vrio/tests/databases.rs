//! Real guests on volumes with copies, while the node that serves them is killed: a database that
//! checks itself, and fio, which checks what it has written.
//!
//! `DATABASE_KILLS=n` sets the number of kills.

use std::time::{Duration, Instant};

use testbed::guest::{self, BOOT_TIMEOUT, Builder, Guest, Image, VhostDisk, scripts};
use testbed::nodes::Node;

use crate::attach::fio;
use crate::placements::{start_with_pool, vrio, wait, wait_for_nodes, wait_for_state};
use crate::pools::told;
use crate::replicas::{PATIENCE, Rack, number, succeeds};

/// A database works on the disk, or is checked: `STEP`, `CLIENTS`.
const DATABASE: &str = include_str!("../../guest/scripts/database.sh");

/// The kills of one run, unless `DATABASE_KILLS` says another number. CI has no time for any.
const KILLS: u64 = 2;

/// The nodes with copies, and each one's pool.
const NODES: [&str; 2] = ["io1", "io2"];
const POOL_SIZE: &str = "512MiB";

/// The volumes of the two guests, with their sizes.
const VOLUMES: [(&str, &str); 2] = [("database", "192MiB"), ("fio", "32MiB")];

/// The part of its disk that fio uses.
const FIO_SIZE: &str = "4M";

/// The clients of the database.
const CLIENTS: usize = 4;

/// The requests that each guest must complete in the new situation: many more than are outstanding
/// at a kill.
const REQUESTS: u64 = 200;

/// The time limit of a script: an emulated guest on a busy machine is slow.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(900);

/// Two IOhosts with copies of both volumes, and a VMhost with a disk of each.
struct Site {
    rack: Rack,
    nodes: [Option<Node>; 2],
    vm: Node,
}

impl Site {
    fn start() -> Self {
        let rack = Rack::new(14);
        let nodes = NODES.map(|name| Some(start_with_pool(&rack, name, POOL_SIZE)));
        let vm = rack.plan("vm1", &format!("[cluster]\ndirectory = {:?}\n", rack.path("of-vm1")));
        let mut vm = vm.start().expect("the VMhost starts");
        rack.join(&vm);
        wait_for_nodes(&rack, 3);
        let on = NODES.join(",");
        for (volume, size) in VOLUMES {
            let create = format!("volume create {volume} --size {size} --on {on} --allow vm1");
            succeeds(&vrio(&rack, &create, "operator"));
        }
        vm.wait_until("its peers", |vm| {
            vm.status().is_ok_and(|it| it["peers"].as_array().is_some_and(|all| all.len() == 2))
        })
        .expect("the agent adds them");
        for (volume, _) in VOLUMES {
            told(&vm, &format!("disk add {volume} --socket {volume}.sock --volume {volume}"));
        }
        Self { rack, nodes, vm }
    }

    fn guest(&mut self, image: &Image, volume: &str) -> Builder {
        let socket = self.vm.wait_for_disk(volume).expect("the disk is served");
        Guest::builder(image).name(volume).disk(VhostDisk { socket, queues: 1, packed: false })
    }

    fn database(&mut self, image: &Image, step: &str) -> Guest {
        let archive = image.database().expect("the caller has looked");
        let builder = self.guest(image, "database").memory_mib(768).archive(&archive);
        let builder = builder.set("STEP", step).set("CLIENTS", CLIENTS);
        builder.script(DATABASE).start().expect("QEMU runs")
    }

    /// The requests that each disk has completed.
    fn requests(&self) -> [u64; 2] {
        let status = self.vm.status().expect("it answers");
        VOLUMES.map(|(volume, _)| {
            let disks = status["disks"].as_array().expect("a list");
            let disk = disks.iter().find(|disk| disk["name"] == volume).expect("it is there");
            disk["counters"]["requests"].as_u64().expect("a number")
        })
    }

    /// Waits until each guest has completed more requests.
    fn work_on(&self) {
        let (before, until) = (self.requests(), Instant::now() + PATIENCE);
        loop {
            let now = self.requests();
            if now.iter().zip(before).all(|(now, before)| *now >= before + REQUESTS) {
                return;
            }
            assert!(Instant::now() < until, "a guest stands still: from {before:?} to {now:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn wait_until_well(&self) {
        for (volume, _) in VOLUMES {
            wait_for_state(&self.rack, volume, "well");
        }
    }

    /// The place of the node that serves the database.
    fn primary(&self) -> usize {
        let is_known = |primary: &serde_json::Value| NODES.iter().position(|it| primary == it);
        let of = |status: &serde_json::Value| {
            let volumes = status["volumes"].as_array().expect("a list");
            let volume = volumes.iter().find(|it| it["name"] == "database")?;
            is_known(&volume["primary"])
        };
        let status = wait(&self.rack, "a node serves the database", |status| of(status).is_some());
        of(&status).expect("it was waited for")
    }
}

/// The number of the last transaction of each client.
fn numbers(line: &str) -> Vec<u64> {
    line.split_whitespace().map(|word| word.parse().expect("a number")).collect()
}

#[test]
fn a_database_and_fio_lose_nothing_when_the_node_that_serves_them_is_killed() {
    const TEST: &str = "a_database_and_fio_lose_nothing_when_the_node_that_serves_them_is_killed";
    let kills = number("DATABASE_KILLS", KILLS);
    assert!(kills > 0, "DATABASE_KILLS is 0: `scripts/test` leaves this test out then");
    let Some(image) = guest::available(TEST) else { return };
    if let Err(why) = image.database() {
        return println!("SKIP {TEST}: {why}");
    }
    let Some(fio) = fio() else { return println!("SKIP {TEST}: fio is not installed") };
    let began = Instant::now();
    let seconds = || began.elapsed().as_secs();
    let mut site = Site::start();
    let mut database = site.database(&image, "work");
    database.wait_for("works", BOOT_TIMEOUT + SCRIPT_TIMEOUT).unwrap();
    println!("the database works after {} s", seconds());
    // Debian's fio comes with the libraries of every storage it knows, 80 MB of them.
    let verifier = site.guest(&image, "fio").memory_mib(768).program(&fio).expect("its libraries");
    let verifier = verifier.set("SIZE", FIO_SIZE).script(scripts::FIO_DISK);
    let mut verifier = verifier.start().expect("QEMU runs");
    verifier.wait_for("progress fio", BOOT_TIMEOUT + SCRIPT_TIMEOUT).unwrap();
    let mut acked = Vec::new();
    for kill in 1..=kills {
        site.wait_until_well();
        site.work_on();
        let primary = site.primary();
        let plan = site.nodes[primary].take().expect("it runs").kill().expect("it ran until now");
        site.work_on();
        let answer = format!("acked {kill}");
        acked = numbers(&database.ask(&answer, &answer, SCRIPT_TIMEOUT).unwrap());
        if kill == kills {
            // The guest loses its power while one node has all writes alone.
            database.kill();
        }
        site.nodes[primary] = Some(plan.start().expect("the node starts again"));
        println!("kill {kill} of {kills}: {acked:?} transactions after {} s", seconds());
    }
    assert!(acked.len() == CLIENTS && acked.iter().all(|it| *it > 0), "{acked:?}");
    // The node that was killed last has its content from the other node.
    site.wait_until_well();
    let primary = site.primary();
    let (from, to) = (site.nodes[primary].as_ref().expect("it runs"), NODES[1 - primary]);
    VOLUMES.iter().for_each(|(volume, _)| _ = told(from, &format!("volume move {volume} {to}")));
    let mut database = site.database(&image, "check");
    verifier.type_line("stop").unwrap();
    println!("fio: {}", verifier.wait_for("verified", SCRIPT_TIMEOUT).unwrap());
    verifier.wait_success(SCRIPT_TIMEOUT).unwrap();
    database.wait_for("agree", BOOT_TIMEOUT + SCRIPT_TIMEOUT).unwrap();
    println!("{}", database.wait_for("checksums", SCRIPT_TIMEOUT).unwrap());
    let there = numbers(&database.wait_for("checked", SCRIPT_TIMEOUT).unwrap());
    database.wait_success(SCRIPT_TIMEOUT).unwrap();
    assert!(
        there.len() == CLIENTS && there.iter().zip(&acked).all(|(there, acked)| there >= acked),
        "transactions are lost: {acked:?} were acknowledged, {there:?} are there"
    );
    println!("{acked:?} were acknowledged, {there:?} are there; {} s", seconds());
    site.vm.stop().expect("the VMhost stops in order");
    for node in site.nodes.into_iter().flatten() {
        node.stop().expect("a node stops in order");
    }
}
