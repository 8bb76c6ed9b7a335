//! Two guests of a network. Each runs [`super::scripts::TALK`] and obeys typed commands.

use std::path::PathBuf;
use std::time::Duration;

use agent::pattern::BLOCK_BYTES;
use anyhow::{Context, Result, ensure};

use super::{BOOT_TIMEOUT, Builder, Guest, GuestError, words};

/// How long an answer of a guest may take: an emulated guest on a busy machine is slow.
const PATIENCE: Duration = Duration::from_secs(300);

/// The program that a guest needs for [`stream`].
const IPERF: &str = "iperf3";

/// The result of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stream {
    /// The rate of the data that arrived.
    pub bits_per_s: f64,
    /// For UDP: the packets that were sent.
    pub packets: u64,
    /// For UDP: the packets that did not arrive.
    pub lost: u64,
}

/// Where iperf3 is installed on this machine, if it is.
pub fn iperf() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(IPERF)).find(|it| it.is_file())
}

/// A description of a guest with the program for [`stream`].
///
/// # Errors
/// When iperf3 is not installed.
pub fn with_iperf(builder: Builder) -> Result<Builder, GuestError> {
    let missing = || std::io::Error::other("it is not installed (scripts/install has it)");
    let program = iperf().ok_or_else(missing).map_err(GuestError::host("find iperf3"))?;
    builder.program(&program)
}

/// Has one guest ping the other and send it a file. Gives the file's size and hash, on which both
/// agree.
///
/// # Errors
/// When a guest fails, or the receiver has another file.
pub fn exchange(from: &mut Guest, to: &mut Guest) -> Result<String> {
    from.type_line("ask")?;
    let sent = from.wait_for("sent", PATIENCE)?;
    to.type_line("tell")?;
    let got = to.wait_for("got", PATIENCE)?;
    ensure!(sent == got, "one guest sent '{sent}', and the other got '{got}'");
    Ok(sent)
}

/// Has one guest send the other so many bytes, in blocks of 4 KiB. Neither keeps them: the receiver
/// compares each block with the one that was sent.
///
/// # Errors
/// When a guest fails, or the receiver got other data, or less.
pub fn send_large(from: &mut Guest, to: &mut Guest, bytes: u64) -> Result<()> {
    let blocks = bytes / BLOCK_BYTES as u64;
    to.type_line("check")?;
    to.wait_for("checking", PATIENCE)?;
    from.type_line(&format!("large {blocks}"))?;
    let sent = from.wait_for("large", PATIENCE)?;
    let got = to.wait_for("checked", PATIENCE)?;
    ensure!(sent == got, "one guest sent {sent} blocks, and the other got {got}");
    Ok(())
}

/// The number of queues that can bring a guest frames, and the number of those that have brought
/// some.
///
/// # Errors
/// When the guest fails.
pub fn queues(guest: &mut Guest) -> Result<[u64; 2]> {
    guest.type_line("queues")?;
    let said = guest.wait_for("queues", PATIENCE)?;
    let (there, used) = said.split_once(' ').context("two numbers")?;
    Ok([there.parse()?, used.parse()?])
}

/// The losses of a guest itself so far: datagrams of UDP, for which it had no room, and frames.
///
/// # Errors
/// When the guest fails.
pub fn lost(guest: &mut Guest) -> Result<u64> {
    guest.type_line("lost")?;
    Ok(guest.wait_for("lost", PATIENCE)?.parse()?)
}

/// Has a guest wait for streams.
///
/// # Errors
/// When the guest fails.
pub fn serve(guest: &mut Guest) -> Result<()> {
    guest.type_line("serve")?;
    guest.wait_for("serving", PATIENCE)?;
    Ok(())
}

/// Has iperf3 send a stream to the other guest, which serves, with these arguments for iperf3.
///
/// # Errors
/// When the guest fails, or does not report a result.
pub fn stream(from: &mut Guest, iperf_words: &str) -> Result<Stream> {
    from.type_line(&format!("stream {iperf_words}"))?;
    let line = from.wait_for("streamed", PATIENCE)?;
    streamed(&line).with_context(|| format!("the guest says 'streamed {line}'"))
}

fn streamed(line: &str) -> Result<Stream> {
    let of = |name| words::number(line, name);
    let udp = words::text(line, "packets").is_ok();
    Ok(Stream {
        bits_per_s: words::text(line, "bits_per_s")?.parse()?,
        packets: if udp { of("packets")? } else { 0 },
        lost: if udp { of("lost")? } else { 0 },
    })
}

/// Has the guest ping the other guest until that answers. Gives how often the guest's link has
/// changed.
///
/// # Errors
/// When the guest fails.
pub fn ping(guest: &mut Guest) -> Result<u64> {
    guest.type_line("ping")?;
    Ok(guest.wait_for("pinged", PATIENCE)?.parse()?)
}

/// Has the guest boot again, with the same card. It must be built with [`Builder::boots_again`].
///
/// # Errors
/// When the guest does not come back.
pub fn reboot(guest: &mut Guest) -> Result<()> {
    guest.type_line("reboot")?;
    guest.wait_for("ready", PATIENCE.max(BOOT_TIMEOUT))?;
    Ok(())
}

/// Has the guest ping the other guest, which must not answer.
///
/// # Errors
/// When the other guest answers.
pub fn hear_nothing(guest: &mut Guest) -> Result<()> {
    guest.type_line("deaf")?;
    guest.wait_for("silent", PATIENCE)?;
    Ok(())
}

/// Has the guest ping the host behind the network's uplink.
///
/// # Errors
/// When the host does not answer.
pub fn reach_host(guest: &mut Guest) -> Result<()> {
    guest.type_line("host")?;
    guest.wait_for("reached", PATIENCE)?;
    Ok(())
}

/// Ends the talk, but not the guest. Checks that its card has met no error.
///
/// # Errors
/// When the card has met an error.
pub fn leave(guest: &mut Guest) -> Result<()> {
    guest.type_line("end")?;
    let packets = guest.wait_for("packets", PATIENCE)?;
    ensure!(packets.ends_with("errors=0"), "the guest's card has had errors: {packets}");
    Ok(())
}

/// The same, and ends the guest.
///
/// # Errors
/// When the card has met errors, or the guest does not end well.
pub fn end(mut guest: Guest) -> Result<()> {
    leave(&mut guest)?;
    guest.wait_success(PATIENCE)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_line_about_a_stream_is_understood() {
        let tcp = streamed("bits_per_s=1.234e+09 bytes=8388608").unwrap();
        assert_eq!(tcp, Stream { bits_per_s: 1.234e9, packets: 0, lost: 0 });
        let udp = streamed("bits_per_s=5000000.5 packets=100 lost=1").unwrap();
        assert_eq!((udp.packets, udp.lost), (100, 1));
        assert!(streamed("bits_per_s= bytes=").is_err());
    }
}
