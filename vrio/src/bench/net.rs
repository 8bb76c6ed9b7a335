//! `vrio bench net`.

use anyhow::{Context, anyhow};
use bench::net::{Crossings, NetOp, NetOptions, Path};
use clap::ValueEnum;
use direct::Idle;

use super::args::{BenchDriver, PairLinkArgs, size};
use crate::results::ToldArgs;

pub(super) const EXAMPLES: &str = "Examples:
  vrio bench net                                       frames of 64 bytes, guest to guest
  vrio bench net --size 64k --idle spin                TCP that is not cut into packets
  vrio bench net --op bounce --payload 1 --idle spin   netperf's UDP_RR: a byte there, a byte back
  vrio bench net --op stream                           netperf's TCP_STREAM with writes of 64 bytes
  vrio bench net --path remote --size 64k              through an IOhost and back, sealed
  vrio bench net --path remote --crossings 1 --link shm --encrypt off
  vrio bench net --path socket /run/a.sock,/run/b.sock --pid 4711
  vrio bench net --json | jq .frames_per_s
Both guests are stand-ins without TCP and without a kernel. Without root, `remote` uses the loopback
device instead of two network namespaces.";

#[derive(Debug, clap::Args)]
pub(crate) struct NetArgs {
    /// The way of frames: local, remote, or socket and two paths with a comma between them.
    #[arg(long, num_args = 1..=2, value_names = ["WAY", "A,B"], default_value = "local")]
    path: Vec<String>,
    /// The traffic that is measured.
    #[arg(long, value_enum, default_value_t = OpArg::Forward)]
    op: OpArg,
    /// Bytes of every frame, such as 64, 1500 or 64k, or of every write of a stream. A frame above
    /// 1514 bytes is TCP that a later receiver may cut.
    #[arg(long, default_value = "64", value_parser = size)]
    size: u32,
    /// With bounce: the payload's bytes in each direction, instead of a frame's size; one number is
    /// for both directions.
    #[arg(long, value_name = "ASK[,ANSWER]", value_parser = payload, conflicts_with = "size")]
    payload: Option<Payload>,
    /// Frames under way; default: as many as the receiver has buffers for.
    #[arg(long)]
    depth: Option<u16>,
    /// With `--path remote`: how often a frame crosses between the nodes. 2: both guests are on the
    /// VMhost. 1: the receiving guest is on the IOhost.
    #[arg(long, default_value = "2", value_parser = crossings)]
    crossings: Crossings,
    #[command(flatten)]
    meeting: PairLinkArgs,
    /// Packed rings instead of split ones.
    #[arg(long)]
    packed: bool,
    /// How sidecores wait for work: spin, adaptive or sleep (default: adaptive).
    #[arg(long)]
    idle: Option<Idle>,
    /// How guests learn of frames.
    #[arg(long, value_enum, default_value_t = BenchDriver::Polls)]
    driver: BenchDriver,
    /// Seconds of the measurement.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// The processes behind `--path socket`, for their processor time.
    #[arg(long)]
    pid: Vec<u32>,
    #[command(flatten)]
    pub(super) told: ToldArgs,
}

/// The payload's bytes there and back.
#[derive(Clone, Copy, Debug)]
struct Payload([u16; 2]);

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OpArg {
    /// One guest sends, the other one receives.
    Forward,
    /// One frame goes there and back.
    Bounce,
    /// One guest writes, and its frames grow while others are under way, as TCP's do.
    Stream,
}

impl NetArgs {
    pub(super) fn options(&self) -> anyhow::Result<NetOptions> {
        let words: Vec<_> = self.path.iter().map(String::as_str).collect();
        let sockets =
            |both: &str| both.split_once(',').map(|(a, b)| Path::Socket(a.into(), b.into()));
        let path = match words[..] {
            ["local"] => Some(Path::Local),
            ["remote"] => Some(Path::Remote),
            ["socket", both] => sockets(both),
            _ => None,
        };
        let said = words.join(" ");
        let path =
            path.ok_or_else(|| anyhow!("--path {said}: it must be local, remote, or socket A,B"))?;
        self.meeting.check(path == Path::Remote, "--path remote")?;
        if self.idle.is_some() && matches!(path, Path::Socket(..)) {
            return Err(anyhow!("--idle: the sockets' server runs already; drop the option"));
        }
        let usual = NetOptions::new(std::env::current_exe().context("finding this program")?);
        Ok(NetOptions {
            path,
            op: match self.op {
                OpArg::Forward => NetOp::Forward,
                OpArg::Bounce => NetOp::Bounce,
                OpArg::Stream => NetOp::Stream,
            },
            size_bytes: self.size,
            payload: self.payload.map(|Payload(bytes)| bytes),
            depth: self.depth,
            crossings: self.crossings,
            meeting: self.meeting.into(),
            packed: self.packed,
            idle: self.idle.unwrap_or(usual.idle),
            driver: self.driver.into(),
            seconds: self.seconds,
            pids: self.pid.clone(),
            ..usual
        })
    }
}

fn crossings(words: &str) -> Result<Crossings, String> {
    match words {
        "1" => Ok(Crossings::One),
        "2" => Ok(Crossings::Two),
        _ => Err("it must be 1 or 2".to_owned()),
    }
}

/// Reads one number for both directions, or two numbers.
fn payload(words: &str) -> Result<Payload, String> {
    let (ask, answer) = words.split_once(',').unwrap_or((words, words));
    let [Ok(ask), Ok(answer)] = [ask, answer].map(str::parse) else {
        return Err("write one number or two, such as 1, or 1,100".to_owned());
    };
    Ok(Payload([ask, answer]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_read_as_netperf_has_it() {
        let read = |words| payload(words).map(|it| it.0);
        assert_eq!([read("1"), read("1,1000")], [Ok([1, 1]), Ok([1, 1000])]);
        assert!(["", "1,", "1,2,3", "70000", "x"].into_iter().all(|words| read(words).is_err()));
    }
}
