//! Two guests in a network of the IOhost, while that is killed.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

use testbed::guest::{
    Accelerator, BOOT_TIMEOUT, Builder, Guest, Image, VhostNic, scripts, talk, words,
};
use testbed::nodes::Node;
use testbed::progress::Progress;
use testbed::stage::Stage;

use super::mpi::JobSetup;
use super::outage::ms;
use super::scene::{CARDS, CONSOLES, Card, HOST_ADDRESS, kill_and_start};

/// The size of the file that a guest sends to the other guest, which sends it back.
const FILE_KIB: u64 = 2048;

/// The bytes that iperf3 sends in each direction, which take seconds under emulation.
const STREAM: &str = "--bytes 32M";

/// How long the IOhost is away.
const PAUSE: Duration = Duration::from_secs(1);

/// The results of two guests that talk to each other.
#[derive(Clone, Debug, Serialize)]
pub struct Talk {
    /// Bytes of a file that a guest sent to the other guest before and after the kill, compared by
    /// SHA-256.
    pub file_bytes_verified: u64,
    /// TCP's bits per second in each direction; none where iperf3 is not installed.
    pub bits_per_s: Option<[f64; 2]>,
    /// The milliseconds from the kill of the IOhost until the guests reached each other again.
    pub reached_again_ms: u64,
    /// The address that answered behind the uplink, if there is one.
    pub host: Option<&'static str>,
}

/// The parts of all guests, and the stage and the node that they run on.
#[derive(Clone, Copy)]
pub(super) struct GuestSetup<'a> {
    pub(super) stage: &'a Stage,
    pub(super) image: &'a Image,
    pub(super) accelerator: Accelerator,
    /// The parts of the MPI job, if there will be one.
    pub(super) troupe: Option<&'a JobSetup>,
    pub(super) vm: &'a Node,
}

/// Adds a guest's network card, its window, its script, and the network's addresses for the script.
pub(super) fn with_card(
    builder: Builder,
    cast: &GuestSetup<'_>,
    script: &str,
    own: usize,
) -> Result<Builder> {
    let [card, peer] = [CARDS[own], CARDS[1 - own]];
    let Card { name, mac, address } = card;
    let nic = VhostNic {
        socket: cast.vm.plan().socket(name),
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
    let builder = builder.accelerator(cast.accelerator);
    let builder = builder.console(&cast.stage.path(CONSOLES[own]));
    match cast.troupe {
        Some(troupe) => {
            let builder = builder.script(&format!("{script}{}", scripts::MPI));
            troupe.with_window(builder, cast.image, cast.vm, own)
        }
        None => Ok(builder.script(script)),
    }
}

/// Makes the guest Alice talk to the guest Bob, which is booted here; gives the IOhost and both
/// guests back.
///
/// # Errors
/// When data does not arrive as it was sent, or a node does not start.
pub(super) fn talk(
    cast: &GuestSetup<'_>,
    mut alice: Guest,
    io: Node,
    progress: &Progress,
) -> Result<(Talk, Node, [Guest; 2])> {
    alice.wait_for("ready", BOOT_TIMEOUT)?;
    progress.doing("booting a second guest");
    let mut bob = {
        let builder = Guest::builder(cast.image).name("bob");
        let builder = with_card(builder, cast, scripts::TALK, 1)?;
        let _starting = cast.stage.cleanup.start();
        builder.start()?
    };
    bob.wait_for("ready", BOOT_TIMEOUT)?;
    progress.doing("the guests talk over the network of io1");
    talk::exchange(&mut alice, &mut bob)?;
    progress.done(format!(
        "a second guest runs; they ping each other over io1/blue; {FILE_KIB} KiB arrived as sent"
    ));
    let mut bits_per_s = None;
    if talk::iperf().is_some() {
        talk::serve(&mut bob)?;
        let mut stream = |way| -> Result<f64> {
            progress.doing(format!("iperf3 {STREAM} {way}"));
            Ok(talk::stream(&mut alice, &format!("{STREAM} {way}"))?.bits_per_s)
        };
        bits_per_s = Some([stream("")?, stream("--reverse")?]);
        progress.done("iperf3 sent TCP there and back, uncut: 64 KiB cross the nodes as one frame");
    }
    let (died, pid) = (Instant::now(), io.pid());
    let (io, away) = kill_and_start(cast.stage, io, PAUSE)?;
    progress.doing("the guests look for each other");
    talk::ping(&mut alice)?;
    let reached_again = died.elapsed();
    let file = talk::exchange(&mut bob, &mut alice)?;
    progress.done(format!(
        "io1 (pid {pid}) killed -9, back after {} ms; the guests reached each other after {} ms",
        away.as_millis(),
        reached_again.as_millis()
    ));
    let host = reach_host(&mut alice, cast.stage, progress)?;
    talk::leave(&mut alice)?;
    talk::leave(&mut bob)?;
    let file_bytes_verified = 2 * words::first_number(&file)?;
    let talk = Talk { file_bytes_verified, bits_per_s, reached_again_ms: ms(reached_again), host };
    Ok((talk, io, [alice, bob]))
}

/// Pings the IOhost's host through the tap, where there is one.
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
