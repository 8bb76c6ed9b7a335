//! Nodes of two versions of vrio beside each other, while a checked guest works:
//!
//!     cargo run --release -p testbed --example two_versions -- OLD/vrio NEW/vrio
//!
//! An IOhost of each version serves a VMhost of the other one, over sealed sessions. Then the node
//! of the old version hands over to the new one, and the other node is killed and started again.
//! Versions that cannot hand over to each other must refuse it by name; the node is then started
//! again. No request may fail, and each block that the guest reads must be as promised. The
//! opposite direction, from a new version to an old one, is not promised: records of attachments
//! may have changed.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use random::Random;
use testbed::nodes::{NodeKeys, NodePlan};
use testbed::stand_in::StandIn;
use workload::Mix;

/// The disk's blocks of 4 KiB that the guest uses.
const BLOCKS: u64 = 2048;

/// How long the guest works in each state of the pair.
const WORK: Duration = Duration::from_secs(3);

/// Requests that must complete in each state, however slow the machine is.
const REQUESTS_MIN: u64 = 100;

fn main() -> Result<()> {
    let programs: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [old, new] = programs.as_slice() else {
        bail!("usage: two_versions OLD/vrio NEW/vrio");
    };
    check_pair("IOhost old, VMhost new", old, new, new)?;
    check_pair("IOhost new, VMhost old", new, old, new)
}

fn check_pair(what: &str, io_program: &Path, vm_program: &Path, new: &Path) -> Result<()> {
    let home = tempfile::tempdir()?;
    let keys = NodeKeys::make(home.path(), &["io1", "vm1"])?;
    let ports = free_ports()?;
    let plan = |program, name, config| NodePlan::new(program, home.path(), name, config);
    let io = plan(io_program, "io1", io_config(&keys, ports.0)).start()?;
    let mut vm = plan(vm_program, "vm1", vm_config(&keys, ports)).start()?;
    let socket = vm.wait_for_disk("alice")?;
    let mut guest = StandIn::connect(&socket, 2, Mix::OF_ALL, BLOCKS, &mut Random::new(20))?;
    println!("{what}: {} requests", work(&mut guest)?);

    let mut nodes = Vec::new();
    for node in [io, vm] {
        let plan = NodePlan { program: new.to_owned(), ..node.plan().clone() };
        let node = match node.plan().program == plan.program {
            true => {
                node.kill()?;
                plan.start()?
            }
            false => node.hand_over_to(plan.program.clone()).or_else(|error| {
                println!("  {} does not hand over to the new version: {error:#}", plan.name);
                plan.start()
            })?,
        };
        println!("  {} was replaced: {} requests", plan.name, work(&mut guest)?);
        nodes.push(node);
    }
    guest.read_all()?;
    let counts = guest.workload.counts;
    ensure!(counts.errors == 0, "{} requests failed", counts.errors);
    println!("  {} blocks checked, no request failed", counts.blocks_checked);
    Ok(())
}

/// Works for a time, and gives the number of requests that completed.
fn work(guest: &mut StandIn) -> Result<u64> {
    let (before, end) = (guest.workload.counts.completed, Instant::now() + WORK);
    let wanted = before + REQUESTS_MIN;
    guest.work(|guest| Instant::now() > end && guest.workload.counts.completed > wanted)?;
    Ok(guest.workload.counts.completed - before)
}

fn io_config(keys: &NodeKeys, port: u16) -> String {
    format!(
        "listen = \"127.0.0.1:{port}\"\n{}[sidecores]\ncount = 1\nidle = \"adaptive\"\n\
         [[volume]]\nname = \"root\"\nbackend = {{ file = \"root.img\", size = \"8MiB\" }}\n\
         chain = [\"meter\"]\n{}{}",
        keys.own("io1"),
        keys.allow(&["vm1"]),
        keys.clients(&["vm1"]),
    )
}

fn vm_config(keys: &NodeKeys, (io, vm): (u16, u16)) -> String {
    format!(
        "listen = \"127.0.0.1:{vm}\"\n{}[sidecores]\ncount = 1\nidle = \"adaptive\"\n\
         [[peer]]\nname = \"io1\"\naddress = \"127.0.0.1:{io}\"\n{}\
         [[disk]]\nsocket = \"alice.sock\"\nvolume = \"io1/root\"\nqueues = 2\n{}",
        keys.own("vm1"),
        keys.peer("io1"),
        keys.disk(),
    )
}

/// Two UDP ports that were free a moment ago.
fn free_ports() -> Result<(u16, u16)> {
    let sockets = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
    Ok((sockets[0].local_addr()?.port(), sockets[1].local_addr()?.port()))
}
