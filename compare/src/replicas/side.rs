//! The sides: the guest of each, and the commands that it obeys.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::CopiesCase;
use testbed::guest::{Accelerator, BOOT_TIMEOUT, Guest, Image};

/// The script of each guest.
const SCRIPT: &str = include_str!("../../../guest/scripts/copies.sh");

/// The archive of `guest/build copies`, beside the newer image.
const ARCHIVE: &str = "copies.cpio";

/// Memory of a guest with two hosts' copies in it, in MiB.
const MEMORY_MIB: u32 = 1536;

/// How long an emulated guest on a busy machine may take for a command.
const PATIENCE: Duration = Duration::from_secs(600);

/// A way to keep a disk on two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// A volume with two copies, used by the direct client.
    Vrio,
    /// Linux's mirror of two NVMe/TCP disks.
    MdRaid1,
    /// Linux's DRBD, protocol C; its user is on one of the two hosts.
    Drbd,
}

impl Side {
    /// All sides.
    pub const ALL: [Self; 3] = [Self::Vrio, Self::MdRaid1, Self::Drbd];

    /// The name of a table's column.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vrio => "vrio",
            Self::MdRaid1 => "md-raid1 over NVMe/TCP",
            Self::Drbd => "DRBD",
        }
    }

    /// Its name in the guest's script.
    fn word(self) -> &'static str {
        match self {
            Self::Vrio => "vrio",
            Self::MdRaid1 => "md",
            Self::Drbd => "drbd",
        }
    }

    /// Boots its guest.
    pub(super) fn start(
        self,
        image: &Image,
        accelerator: Accelerator,
        program: &Path,
    ) -> Result<RunningSide> {
        let archive = image.initramfs().with_file_name(ARCHIVE);
        ensure!(archive.is_file(), "{} is missing: run guest/build copies", archive.display());
        let builder = Guest::builder(image).name(self.name()).accelerator(accelerator);
        let builder = builder.memory_mib(MEMORY_MIB).processors(2).archive(&archive);
        let builder = builder.set("SIDE", self.word()).program_as(program, "vrio")?;
        Ok(RunningSide { side: self, guest: builder.script(SCRIPT).start()?, commands: 0 })
    }
}

/// The figures of one turn, for each request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SideTurn {
    /// Packets on the cables between the hosts.
    pub(super) packets: f64,
    /// Bytes of these packets.
    pub(super) bytes: f64,
    /// Context switches of all hosts.
    pub(super) switches: f64,
    /// Requests a second.
    pub(super) rate: f64,
    /// The median latency in microseconds.
    pub(super) p50_us: f64,
}

impl SideTurn {
    /// The figures of a guest's answer, `NAME=NUMBER` each.
    fn of(answer: &str) -> Result<Self> {
        let number = |name: &str| -> Result<f64> {
            let words = answer.split_whitespace().filter_map(|word| word.split_once('='));
            let found = words.clone().find(|(known, _)| *known == name);
            let (_, number) = found.with_context(|| format!("no {name} in {answer:?}"))?;
            number.parse().with_context(|| format!("{name} in {answer:?}"))
        };
        let requests = number("requests")?;
        ensure!(requests > 0.0, "no request was completed: {answer:?}");
        let is_more = number("packets")? >= 0.0 && number("bytes")? >= 0.0;
        ensure!(is_more, "more was sent without requests: this machine is too busy: {answer:?}");
        Ok(Self {
            packets: number("packets")? / requests,
            bytes: number("bytes")? / requests,
            switches: number("switches")? / requests,
            rate: number("iops")?,
            p50_us: number("p50_us")?,
        })
    }
}

/// The copy that loses its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LostCopy {
    /// A copy that serves nothing alone.
    Other,
    /// The copy of the node that serves; vrio alone has one.
    Serving,
}

/// A side with its guest running.
pub(super) struct RunningSide {
    pub(super) side: Side,
    guest: Guest,
    /// The commands so far: the guest obeys each number once.
    commands: u32,
}

impl RunningSide {
    /// Waits until the disk is there, with both copies in sync.
    pub(super) fn wait_until_ready(&mut self) -> Result<()> {
        self.guest.wait_for("ready", BOOT_TIMEOUT + PATIENCE)?;
        Ok(())
    }

    /// Makes requests for so long.
    pub(super) fn turn(&mut self, case: CopiesCase, seconds: f64) -> Result<SideTurn> {
        let op = if case.writes { "write" } else { "read" };
        SideTurn::of(&self.ask(&format!("{op} {} {seconds}", case.depth))?)
    }

    /// Cuts the host of a copy off under writes. Gives the longest time without an answer, in
    /// milliseconds.
    pub(super) fn lose(&mut self, copy: LostCopy) -> Result<f64> {
        let answer = self.ask(match copy {
            LostCopy::Other => "die 2",
            LostCopy::Serving => "die 1",
        })?;
        let pause = answer.strip_prefix("pause_ms=").with_context(|| answer.clone())?;
        pause.parse().with_context(|| format!("the pause in {answer:?}"))
    }

    fn ask(&mut self, command: &str) -> Result<String> {
        self.commands += 1;
        let typed = format!("{} {command}", self.commands);
        Ok(self.guest.ask(&typed, &format!("done {} ", self.commands), PATIENCE)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_of_each_request() {
        let told = "requests=100 iops=50 p50_us=20 packets=410 bytes=880000 switches=900";
        let turn = SideTurn::of(told).unwrap();
        let wanted =
            SideTurn { packets: 4.1, bytes: 8800.0, switches: 9.0, rate: 50.0, p50_us: 20.0 };
        assert_eq!(turn, wanted);
        let busy = "requests=1 iops=1 p50_us=1 packets=-4 bytes=-9 switches=1";
        assert!(SideTurn::of(busy).unwrap_err().to_string().contains("too busy"));
        for wrong in ["", "requests=0", "requests=1 iops=x", "requests=1 iops=1 p50_us=1"] {
            assert!(SideTurn::of(wrong).is_err(), "{wrong}");
        }
    }
}
