//! Two guests in a network of the IOhost, while that is killed.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

use crate::guest::{
    Accelerator, BOOT_TIMEOUT, Builder, Guest, Image, VhostNic, scripts, talk, words,
};
use crate::nodes::Node;
use crate::progress::Progress;
use crate::stage::Stage;

use super::outage::ms;
use super::scene::{CARDS, CONSOLES, Card, HOST_ADDRESS};

/// How much one guest sends the other, and that back.
const FILE_KIB: u64 = 2048;

/// What iperf3 sends each way: seconds under emulation.
const STREAM: &str = "--bytes 32M";

/// How long the IOhost is away.
const PAUSE: Duration = Duration::from_secs(1);

/// What the guests had of each other.
#[derive(Clone, Debug, Serialize)]
pub struct Talk {
    /// Bytes of a file that one sent the other, compared by SHA-256, before the kill and after it.
    pub file_bytes_verified: u64,
    /// TCP there and back; none where iperf3 is not installed.
    pub bits_per_s: Option<[f64; 2]>,
    /// From the kill of the IOhost until the guests reached each other again.
    pub reached_again_ms: u64,
    /// Who answered behind the uplink, if there is one.
    pub host: Option<&'static str>,
}

/// A guest's card, and what its script wants to know of the network.
pub(super) fn with_card(builder: Builder, stage: &Stage, vm: &Node, own: usize) -> Result<Builder> {
    let [card, peer] = [CARDS[own], CARDS[1 - own]];
    let Card { name, mac, address } = card;
    let nic = VhostNic {
        socket: vm.plan().socket(name),
        mac: mac.to_owned(),
        packed: false,
        offloads: true,
        pairs: 1,
    };
    let builder = match talk::iperf() {
        Some(_) => talk::with_iperf(builder)?,
        None => builder,
    };
    let builder = builder.nic(nic).set("ADDRESS", address).set("PEER", peer.address);
    let builder = builder.set("HOST", HOST_ADDRESS).set("BYTES_KIB", FILE_KIB);
    Ok(builder.console(&stage.path(CONSOLES[own])))
}

/// Has Alice, who is there, and Bob, who is booted, talk; gives the IOhost back.
///
/// # Errors
/// When something does not arrive as it was sent, or a node does not start.
pub(super) fn talk(
    stage: &Stage,
    (image, accelerator): (&Image, Accelerator),
    alice: &mut Guest,
    io: Node,
    vm: &Node,
    progress: &Progress,
) -> Result<(Talk, Node)> {
    alice.wait_for("ready", BOOT_TIMEOUT)?;
    progress.doing("booting a second guest");
    let mut bob = {
        let builder = Guest::builder(image).name("bob").accelerator(accelerator);
        let builder = with_card(builder.script(scripts::TALK), stage, vm, 1)?;
        let _starting = stage.cleanup.start();
        builder.start()?
    };
    bob.wait_for("ready", BOOT_TIMEOUT)?;
    progress.doing("the guests talk over the network of io1");
    talk::exchange(alice, &mut bob)?;
    progress.done(format!(
        "a second guest runs; they ping each other over io1/blue; {FILE_KIB} KiB arrived as sent"
    ));
    let mut bits_per_s = None;
    if talk::iperf().is_some() {
        talk::serve(&mut bob)?;
        let mut stream = |way| -> Result<f64> {
            progress.doing(format!("iperf3 {STREAM} {way}"));
            Ok(talk::stream(alice, &format!("{STREAM} {way}"))?.bits_per_s)
        };
        bits_per_s = Some([stream("")?, stream("--reverse")?]);
        progress.done("iperf3 sent TCP there and back, uncut: 64 KiB cross the nodes as one frame");
    }
    let (died, pid) = (Instant::now(), io.pid());
    let (io, away) = stage.kill_and_start(io, PAUSE)?;
    progress.doing("the guests look for each other");
    talk::ping(alice)?;
    let reached_again = died.elapsed();
    let file = talk::exchange(&mut bob, alice)?;
    progress.done(format!(
        "io1 (pid {pid}) killed -9, back after {} ms; the guests reached each other after {} ms",
        away.as_millis(),
        reached_again.as_millis()
    ));
    let host = reach_host(alice, stage, progress)?;
    progress.doing("the guests leave");
    talk::end(bob)?;
    let file_bytes_verified = 2 * words::first_number(&file)?;
    Ok((Talk { file_bytes_verified, bits_per_s, reached_again_ms: ms(reached_again), host }, io))
}

/// Through the tap, where there is one.
fn reach_host(
    alice: &mut Guest,
    stage: &Stage,
    progress: &Progress,
) -> Result<Option<&'static str>> {
    if !stage.has_namespaces() {
        return Ok(None);
    }
    talk::reach_host(alice)?;
    progress.done(format!("a guest reached io1's host ({HOST_ADDRESS}) through a tap uplink"));
    Ok(Some(HOST_ADDRESS))
}
