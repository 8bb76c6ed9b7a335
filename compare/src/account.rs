//! `vrio bench account`: the cost of a unit of work at both ends of a cable, in events that do not
//! depend on the machine's speed, beside the kernel's TCP.
//!
//! ```text
//! sender:   data -> [copy] -> [checksum or cipher] -> message -> the kernel's copy -> cable
//! receiver: cable -> the kernel's copy -> message -> [checksum or cipher] -> [copy] -> data
//! ```
//!
//! The parts in brackets are passes over the data that vrio makes, in multiples of the data. The
//! kernel's own copies are the same for TCP and UDP, one at each end, and are not in the table. A
//! *message* goes through the network stack as one: a datagram, a group of datagrams, or a segment
//! of TCP that a card would cut.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use results::{Axis, Measurement, Point, Quantity, Series, Unit};
use serde::Serialize;
use sidecore::Idle;

use crate::net::tcp;
use bench::block::{self, BlockOptions, Path, Volume};
use bench::figures::{BenchReport, measured};
use bench::load::LoadPattern;
use bench::net::{self as cards, Crossings, NetOptions};
use testbed::cleanup::{Cleanup, tidily};
use testbed::machine::Machine;
use testbed::pair::PairLink;
use testbed::progress::Progress;
use testbed::stage::{CABLE, Offloads, inside};

/// The version of the JSON form.
const ACCOUNT_VERSION: u32 = 1;

/// The cables' longest packets, unless the options name others.
pub const MTUS: [u32; 2] = [1500, 9000];

/// The data of a long unit, and of a short one.
const LONG_BYTES: u32 = 64 << 10;
const SHORT_BYTES: u32 = 4 << 10;

/// Requests outstanding of long and of short units.
const LONG_DEPTH: u16 = 8;
const SHORT_DEPTH: u16 = 32;

/// A subject of the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AccountPlane {
    /// A direct client's disk.
    Disk,
    /// A guest's network card.
    Card,
    /// The kernel's TCP, for comparison.
    Tcp,
}

impl AccountPlane {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 3] = [Self::Disk, Self::Card, Self::Tcp];

    /// Its name in options and in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Card => "card",
            Self::Tcp => "tcp",
        }
    }
}

/// The options of `vrio bench account`.
#[derive(Clone, Debug, Serialize)]
pub struct AccountOptions {
    /// The `vrio` program that the nodes run.
    #[serde(skip)]
    pub program: PathBuf,
    /// The subjects.
    pub planes: Vec<AccountPlane>,
    /// The longest packets of the cables.
    pub mtus: Vec<u32>,
    /// The groups of packets that the ends of the cables take uncut.
    #[serde(skip_serializing_if = "Offloads::is_usual")]
    pub offloads: Offloads,
    /// How long each measurement takes.
    pub seconds: f64,
}

impl AccountOptions {
    /// Looks whether the options make sense.
    ///
    /// # Errors
    /// The option that makes no sense, and the values that would.
    pub fn check(&self) -> Result<()> {
        let seconds = self.seconds;
        ensure!((0.01..=3600.0).contains(&seconds), "--seconds {seconds}: from 0.01 to 3600");
        ensure!(
            rustix::process::geteuid().is_root(),
            "the account is of a virtual cable between two network namespaces: run it as root"
        );
        self.mtus.iter().try_for_each(|mtu| self.cable(*mtu, true).check())
    }

    fn cable(&self, mtu: u32, encrypt: bool) -> PairLink {
        let offloads = self.offloads;
        PairLink { mtu: Some(mtu), offloads, encrypt, ..PairLink::default() }
    }
}

/// The events at one end, for each unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct AccountEnd {
    /// Passes over the data that copy them, as multiples of the data.
    pub copies: f64,
    /// Passes that compute a checksum.
    pub checksums: f64,
    /// Passes that encrypt or decrypt.
    pub ciphers: f64,
    /// Datagrams that this end sent; of TCP they are not known.
    pub datagrams: Option<f64>,
    /// Messages that this end sent.
    pub messages: f64,
    /// System calls to send, of TCP to write.
    pub send_calls: f64,
    /// System calls to receive, of TCP to read. Those that find nothing are among them.
    pub receive_calls: f64,
    /// Sleeps and naps; of TCP they are not counted.
    pub wakeups: Option<f64>,
}

impl AccountEnd {
    /// The end of `role`, out of what nodes count for each unit of so many bytes.
    fn of(events: &BTreeMap<String, f64>, role: &str, bytes: u32) -> Result<Self> {
        let get = |event: &str| {
            let name = format!("{role}_{event}");
            events.get(&name).copied().with_context(|| format!("nothing counts {name}"))
        };
        let passes = |event| Ok::<_, anyhow::Error>(get(event)? / f64::from(bytes));
        Ok(Self {
            copies: passes("bytes_copied")?,
            checksums: passes("bytes_checksummed")?,
            ciphers: passes("bytes_ciphered")?,
            datagrams: Some(get("datagrams_sent")?),
            messages: get("messages_sent")?,
            send_calls: get("send_calls")?,
            receive_calls: get("receive_calls")?,
            wakeups: Some(get("wakeups")?),
        })
    }
}

/// A unit of work, and its account.
#[derive(Clone, Debug, Serialize)]
pub struct AccountRow {
    /// The subject.
    pub plane: AccountPlane,
    /// The unit of work.
    pub unit: String,
    /// Bytes of its data.
    pub bytes: u32,
    /// The longest packet of the cable.
    pub mtu: u32,
    /// Whether the sessions were sealed.
    pub sealed: bool,
    /// The end that sends the data.
    pub sender: AccountEnd,
    /// The end that receives them.
    pub receiver: AccountEnd,
}

/// The result of `vrio bench account`.
#[derive(Clone, Debug, Serialize)]
pub struct AccountReport {
    /// The version of this form.
    pub version: u32,
    /// The options of this run.
    pub asked: AccountOptions,
    /// All units of work.
    pub rows: Vec<AccountRow>,
    /// The machine.
    pub machine: Machine,
}

/// Counts everything in turn.
///
/// # Errors
/// When the options cannot be measured, or a node or a client fails meanwhile.
pub fn run(options: &AccountOptions) -> Result<AccountReport> {
    options.check()?;
    let progress = Progress::quiet();
    let rows = tidily(&progress, |cleanup| {
        let accountant = Accountant { options, cleanup, progress: &progress };
        let mut rows = Vec::new();
        for plane in &options.planes {
            for mtu in &options.mtus {
                rows.extend(accountant.rows(*plane, *mtu)?);
            }
        }
        Ok(rows)
    })?;
    Ok(AccountReport {
        version: ACCOUNT_VERSION,
        asked: options.clone(),
        rows,
        machine: Machine::look(),
    })
}

struct Accountant<'a> {
    options: &'a AccountOptions,
    cleanup: &'a Cleanup,
    progress: &'a Progress,
}

impl Accountant<'_> {
    /// The rows of a subject over a cable: sealed first, where it can be.
    fn rows(&self, plane: AccountPlane, mtu: u32) -> Result<Vec<AccountRow>> {
        let mut rows = Vec::new();
        let sizes = [(LONG_BYTES, LONG_DEPTH), (SHORT_BYTES, SHORT_DEPTH)];
        self.progress.doing(format!("{}, MTU {mtu}", plane.name()));
        for sealed in [true, false] {
            match plane {
                AccountPlane::Disk => {
                    for (bytes, depth) in sizes {
                        for op in [LoadPattern::RandRead, LoadPattern::RandWrite] {
                            rows.push(self.disk(op, bytes, depth, mtu, sealed)?);
                        }
                    }
                }
                AccountPlane::Card => rows.push(self.card(mtu, sealed)?),
                AccountPlane::Tcp if sealed => {}
                AccountPlane::Tcp => {
                    for (bytes, _) in sizes {
                        rows.push(self.tcp(bytes, mtu)?);
                    }
                }
            }
        }
        Ok(rows)
    }

    fn disk(
        &self,
        op: LoadPattern,
        bytes: u32,
        depth: u16,
        mtu: u32,
        sealed: bool,
    ) -> Result<AccountRow> {
        let asked = BlockOptions {
            path: Path::Direct,
            volume: Volume::Memory,
            op,
            size_bytes: bytes,
            depth,
            encrypt: sealed,
            idle: Idle::Spin,
            seconds: self.options.seconds,
            mtu: Some(mtu),
            offloads: self.options.offloads,
            ..BlockOptions::new(self.options.program.clone())
        };
        let report = block::measure(&asked, self.cleanup, &Progress::silent())?;
        let events = &report.events_per_request;
        let is_read = op == LoadPattern::RandRead;
        let [sender, receiver] = if is_read { ["iohost", "driver"] } else { ["driver", "iohost"] };
        let verb = if is_read { "read" } else { "write" };
        Ok(AccountRow {
            plane: AccountPlane::Disk,
            unit: format!("{verb} of {} KiB, depth {depth}", bytes >> 10),
            bytes,
            mtu,
            sealed,
            sender: AccountEnd::of(events, sender, bytes)?,
            receiver: AccountEnd::of(events, receiver, bytes)?,
        })
    }

    fn card(&self, mtu: u32, sealed: bool) -> Result<AccountRow> {
        let asked = NetOptions {
            path: cards::Path::Remote,
            crossings: Crossings::One,
            size_bytes: LONG_BYTES,
            meeting: self.options.cable(mtu, sealed),
            seconds: self.options.seconds,
            ..NetOptions::new(self.options.program.clone())
        };
        let report = cards::measure(&asked, self.cleanup, &Progress::silent())?;
        let events = &report.events_per_frame;
        Ok(AccountRow {
            plane: AccountPlane::Card,
            unit: format!("frame of {} KiB", LONG_BYTES >> 10),
            bytes: LONG_BYTES,
            mtu,
            sealed,
            sender: AccountEnd::of(events, "vmhost", LONG_BYTES)?,
            receiver: AccountEnd::of(events, "iohost", LONG_BYTES)?,
        })
    }

    /// A stream of writes, each of so many bytes. Both ends send messages: the reader
    /// acknowledges.
    fn tcp(&self, bytes: u32, mtu: u32) -> Result<AccountRow> {
        let cable = self.options.cable(mtu, false);
        let program = self.options.program.clone();
        let stage = cable.stage(program, self.cleanup, &Progress::silent())?;
        let namespaces = ["vm1", "io1"].map(|host| stage.namespace_of(host));
        let connection = tcp::connect(&stage)?;
        let packets = || -> Result<[u64; 2]> {
            let [from, to] = &namespaces;
            Ok([packets_sent(from.as_deref())?, packets_sent(to.as_deref())?])
        };
        let before = packets()?;
        let length = Duration::from_secs_f64(self.options.seconds);
        let [wrote, read] = tcp::pass(connection, bytes as usize, length)?;
        let after = packets()?;
        // The warm-up sends packets as well.
        let units = |moved: u64| moved as f64 / f64::from(bytes);
        let all_units = units(wrote.bytes_of_all);
        let sent = |end: usize| (after[end] - before[end]) as f64 / all_units;
        let none = |messages, send_calls, receive_calls| AccountEnd {
            copies: 0.0,
            checksums: 0.0,
            ciphers: 0.0,
            datagrams: None,
            messages,
            send_calls,
            receive_calls,
            wakeups: None,
        };
        Ok(AccountRow {
            plane: AccountPlane::Tcp,
            unit: format!("write of {} KiB", bytes >> 10),
            bytes,
            mtu,
            sealed: false,
            sender: none(sent(0), wrote.calls as f64 / units(wrote.bytes), 0.0),
            receiver: none(sent(1), 0.0, read.calls as f64 / units(read.bytes)),
        })
    }
}

/// Packets that the cable's end in a namespace has sent, as the kernel counts them: a group or a
/// segment that a card would cut is one.
fn packets_sent(namespace: Option<&str>) -> Result<u64> {
    let table = inside(namespace, || std::fs::read_to_string("/proc/thread-self/net/dev"))??;
    let sent = packets_sent_of(&table, CABLE);
    sent.with_context(|| format!("/proc/net/dev has no {CABLE}"))
}

/// The packets that an interface sent, in the text of /proc/net/dev: the tenth figure of its line.
fn packets_sent_of(table: &str, interface: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.trim().strip_prefix(interface))?;
    line.strip_prefix(':')?.split_whitespace().nth(9)?.parse().ok()
}

impl fmt::Display for AccountReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "For each unit of work; passes are multiples of its data.\n")?;
        writeln!(
            f,
            "{:<6}{:<26}{:>5}  {:<7}{:<9}{:>7}{:>6}{:>8}{:>11}{:>10}{:>7}{:>10}{:>9}",
            "",
            "unit",
            "MTU",
            "",
            "end",
            "copies",
            "sums",
            "ciphers",
            "datagrams",
            "messages",
            "sends",
            "receives",
            "wake-ups"
        )?;
        for row in &self.rows {
            let sealed = if row.sealed { "sealed" } else { "clear" };
            for (end, name) in [(&row.sender, "sender"), (&row.receiver, "receiver")] {
                let AccountRow { plane, unit, mtu, .. } = row;
                write!(f, "{:<6}{unit:<26}{mtu:>5}  {sealed:<7}{name:<9}", plane.name())?;
                write!(f, "{:>7.2}{:>6.2}{:>8.2}", end.copies, end.checksums, end.ciphers)?;
                let or_dash = |it: Option<f64>| it.map_or("-".to_owned(), |it| format!("{it:.2}"));
                let (datagrams, wakeups) = (or_dash(end.datagrams), or_dash(end.wakeups));
                write!(f, "{datagrams:>11}{:>10.2}{:>7.2}", end.messages, end.send_calls)?;
                writeln!(f, "{:>10.2}{wakeups:>9}", end.receive_calls)?;
            }
        }
        Ok(())
    }
}

impl BenchReport for AccountReport {
    /// Messages and passes of each unit, both ends together.
    fn measurements(&self, title: &str) -> Vec<Measurement> {
        let mut it = measured("account", title, &self.asked, &["planes", "mtus"]);
        let label = |row: &AccountRow| {
            let sealed = if row.sealed { "sealed" } else { "in clear" };
            format!("{}: {}, MTU {}, {sealed}", row.plane.name(), row.unit, row.mtu)
        };
        let series = |name: &str, of: fn(&AccountEnd) -> f64| {
            let rows = self.rows.iter().enumerate();
            let points = rows.map(|(place, row)| {
                let both = of(&row.sender) + of(&row.receiver);
                Point::of_category(place, &label(row), both)
            });
            let series = Series::new(name, Quantity::EventsPerRequest, Unit::Count, Axis::CATEGORY);
            Series { points: points.collect(), ..series }
        };
        it.series = vec![
            series("messages through the network stack", |end| end.messages),
            series("passes over the data", |end| end.copies + end.checksums + end.ciphers),
        ];
        vec![it]
    }

    fn machine(&self) -> &Machine {
        &self.machine
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(messages: f64) -> AccountEnd {
        AccountEnd {
            copies: 1.0,
            checksums: 0.0,
            ciphers: 1.0,
            datagrams: Some(3.0),
            messages,
            send_calls: 0.5,
            receive_calls: 2.0,
            wakeups: Some(0.0),
        }
    }

    fn report() -> AccountReport {
        let asked = AccountOptions {
            program: PathBuf::new(),
            planes: vec![AccountPlane::Disk],
            mtus: MTUS.to_vec(),
            offloads: Offloads::All,
            seconds: 1.0,
        };
        let row = AccountRow {
            plane: AccountPlane::Disk,
            unit: "read of 4 KiB, depth 32".to_owned(),
            bytes: 4096,
            mtu: 1500,
            sealed: true,
            sender: end(0.25),
            receiver: AccountEnd { datagrams: None, wakeups: None, ..end(0.5) },
        };
        AccountReport { version: 1, asked, rows: vec![row], machine: Machine::look() }
    }

    #[test]
    fn an_end_is_what_nodes_count_and_a_missing_count_is_named() {
        let names = [
            ("bytes_copied", 4096.0),
            ("bytes_checksummed", 0.0),
            ("bytes_ciphered", 8192.0),
            ("datagrams_sent", 3.0),
            ("messages_sent", 0.5),
            ("send_calls", 0.25),
            ("receive_calls", 1.5),
            ("wakeups", 0.0),
        ];
        let mut events: BTreeMap<_, _> =
            names.iter().map(|(name, count)| (format!("iohost_{name}"), *count)).collect();
        let end = AccountEnd::of(&events, "iohost", 4096).unwrap();
        assert_eq!((end.copies, end.checksums, end.ciphers), (1.0, 0.0, 2.0));
        assert_eq!((end.datagrams, end.messages, end.receive_calls), (Some(3.0), 0.5, 1.5));
        events.remove("iohost_messages_sent");
        let error = AccountEnd::of(&events, "iohost", 4096).unwrap_err().to_string();
        assert!(error.contains("iohost_messages_sent"), "{error}");
    }

    #[test]
    fn the_kernels_table_of_interfaces_is_read() {
        let table = "Inter-|   Receive |  Transmit\n face |bytes packets\n\
                     cable: 1 2 0 0 0 0 0 0 300 44 0 0 0 0 0 0\n    lo: 9 9 0 0 0 0 0 0 9 9 0 0\n";
        assert_eq!(packets_sent_of(table, "cable"), Some(44));
        assert_eq!(packets_sent_of(table, "eth0"), None);
        assert_eq!(packets_sent_of("cable: 1 2", "cable"), None);
    }

    #[test]
    fn the_table_has_a_line_for_each_end_and_results_have_both_together() {
        let report = report();
        let text = report.to_string();
        assert_eq!(text.lines().filter(|line| line.contains("read of 4 KiB")).count(), 2);
        assert!(text.lines().last().unwrap().contains('-'), "{text}");
        let [it] = &report.measurements("mine")[..] else { panic!("one measurement") };
        it.check().unwrap();
        assert_eq!((it.series[0].points[0].y, it.series[1].points[0].y), (0.75, 4.0));
    }
}
