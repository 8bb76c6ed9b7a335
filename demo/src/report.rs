//! The demo's report at its end, as a page of text or as JSON.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::compare::{Comparison, LoadRow};
use super::mpi::Messages;
use super::network::Talk;
use super::outage::{Outage, User};
use testbed::machine::Machine;
use testbed::stage::NodeNetwork;

/// The version of the JSON form.
const REPORT_VERSION: u32 = 3;

/// The width of the processor's name in its line.
const PROCESSOR_CHARS: usize = 28;
const WHY_CHARS: usize = 76;

/// The results of the demo.
#[derive(Clone, Debug, Serialize)]
pub struct DemoReport {
    /// The version of this form.
    pub version: u32,
    /// The network between the nodes.
    pub network: NodeNetwork,
    /// The outage.
    pub outage: Outage,
    /// The results of two guests that talk to each other; none without guests.
    pub talk: Option<Talk>,
    /// The results of an MPI job; none where there is no MPI.
    pub messages: Option<Messages>,
    /// The reason why there is no MPI job.
    pub no_messages: Option<String>,
    /// The speed of the disk, local and remote.
    pub comparison: Comparison,
    /// The machine.
    pub machine: Machine,
    /// The directory of the logs, if they are kept.
    pub logs: Option<PathBuf>,
}

impl DemoReport {
    pub(super) fn new(
        network: NodeNetwork,
        (outage, talk, messages): (Outage, Option<Talk>, Result<Messages, String>),
        comparison: Comparison,
        machine: Machine,
    ) -> Self {
        let version = REPORT_VERSION;
        let (messages, no_messages) = match messages {
            Ok(messages) => (Some(messages), None),
            Err(why) => (None, Some(why)),
        };
        Self {
            version,
            network,
            outage,
            talk,
            messages,
            no_messages,
            comparison,
            machine,
            logs: None,
        }
    }

    fn title(&self) -> String {
        let who = match self.outage.user {
            User::Guest { .. } => "a guest",
            User::StandIn => "a stand-in for a guest",
        };
        let times = self.outage.kills;
        format!(
            "The node that serves the disk of {who} was killed {times} times. Nothing was lost."
        )
    }

    fn picture(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (user, below) = match &self.outage.user {
            User::Guest { accelerator, kernel } => {
                ("guest", format!("Linux {kernel}, {accelerator}"))
            }
            User::StandIn => ("stand-in", "the driver of a guest, without one".to_owned()),
        };
        let network = match self.network {
            NodeNetwork::Namespaces => "two namespaces",
            NodeNetwork::Loopback => "loopback",
        };
        let left = format!("{user} ── virtio-blk ──▶ vm1 (VMhost) ══ sealed UDP, {network} ══▶ ");
        let indent = left.chars().count();
        writeln!(f, "  {left}io1 (IOhost) ──▶ file")?;
        writeln!(f, "  {below:indent$}killed -9, {} times", self.outage.kills)
    }

    fn facts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outage = &self.outage;
        let what = match &outage.user {
            User::Guest { .. } => "the guest's slowest request",
            User::StandIn => "the longest time without an answer",
        };
        let (pause, away) = (outage.pause_longest_ms, outage.away_longest_ms);
        writeln!(f, "  longest pause   {pause} ms: {what} (io1 was away for {away} ms)")?;
        let (writes, reads) = (outage.writes_verified, outage.reads_verified);
        let errors = outage.errors;
        writeln!(
            f,
            "  writes          {writes} acknowledged, none lost; {errors} requests failed"
        )?;
        match outage.files_verified {
            0 => writeln!(f, "  reads           {reads} blocks were what had been written last")?,
            files => writeln!(
                f,
                "  reads           {reads} were what had been written last; {files} files by \
                 SHA-256; e2fsck is content"
            )?,
        }
        let mib = outage.image_bytes_verified >> 20;
        writeln!(f, "  on the IOhost   the volume's file holds the same ({mib} MiB compared)")
    }

    /// The network card's part.
    fn talk(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(talk) = &self.talk else { return Ok(()) };
        let host =
            talk.host.map(|it| format!("; a tap reaches the host, {it}")).unwrap_or_default();
        let mib = talk.file_bytes_verified >> 20;
        writeln!(f, "  two guests      talk over a network of io1: {mib} MiB by SHA-256{host}")?;
        let [there, back] = talk.bits_per_s.unwrap_or_default().map(|it| it / 1e6);
        let again = talk.reached_again_ms;
        match talk.bits_per_s {
            Some(_) => writeln!(
                f,
                "                  iperf3: {there:.0} and {back:.0} Mbit/s; \
                 {again} ms from a kill of io1 to the next ping"
            ),
            None => writeln!(f, "                  {again} ms from a kill of io1 to the next ping"),
        }
    }

    /// The MPI job's part.
    fn messages(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(why) = &self.no_messages {
            let why: String = why.chars().map(|it| if it == '\n' { ' ' } else { it }).collect();
            return writeln!(f, "  MPI             none: {}", shortened(&why, WHY_CHARS));
        }
        let Some(messages) = &self.messages else { return Ok(()) };
        let Messages { mpi, ranks, verified, all_to_all, .. } = messages;
        let place = messages.place();
        writeln!(
            f,
            "  MPI             {ranks} ranks of {mpi} {place}; {verified} messages, each byte right"
        )?;
        // The line has room for three.
        let times = all_to_all.iter().step_by(2).map(|it| match it.bytes {
            bytes if bytes >= 1 << 10 => format!("{} KiB in {:.0} µs", bytes >> 10, it.p50_us),
            bytes => format!("{bytes} B in {:.0} µs", it.p50_us),
        });
        let times = times.collect::<Vec<_>>().join(", ");
        writeln!(f, "                  all to all: {times}")
    }

    fn table(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  {:20}{:^26}  {:^26}  {:^12}",
            "random 4 KiB", "volume on the VM's host", "volume on the IOhost", "remote/local"
        )?;
        let columns = format!("{:>9} {:>8} {:>7}", "IOPS", "p50 µs", "p99 µs");
        writeln!(f, "  {:20}{columns}  {columns}  {:>6} {:>5}", "", "IOPS", "p50")?;
        self.comparison.rows.iter().try_for_each(|row| line(f, row))
    }

    fn machine(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cores, processor, kernel, .. } = &self.machine;
        let trip = match self.machine.cache_line_round_trip_ns {
            Some(ns) => format!("cache line round trip {ns} ns"),
            None => "one core only".to_owned(),
        };
        let build = self.machine.build();
        let slow = if self.machine.optimised { "" } else { ", NOT OPTIMISED" };
        let processor = shortened(processor, PROCESSOR_CHARS);
        writeln!(f, "  {cores} × {processor}, {trip}, Linux {kernel}")?;
        writeln!(f, "  vrio {build}{slow}; files in the page cache; one sidecore a node;")?;
        match self.comparison.driver_polls {
            true => writeln!(f, "  the driver polls for completions"),
            false => writeln!(
                f,
                "  the driver sleeps: fewer than 4 cores, so the ratio says more than the numbers"
            ),
        }
    }
}

fn shortened(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect::<String>().trim_end().to_owned()
}

fn line(f: &mut fmt::Formatter<'_>, row: &LoadRow) -> fmt::Result {
    let name = format!("{}s, depth {}", row.op, row.depth);
    write!(f, "  {name:20}")?;
    for side in [&row.local, &row.remote] {
        write!(f, "{:>9.0} {:>8.1} {:>7.0}  ", side.iops, side.p50_us, side.p99_us)?;
    }
    writeln!(f, "{:>6.2} {:>5.1}", row.iops_ratio, row.p50_ratio)
}

impl fmt::Display for DemoReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.title())?;
        self.picture(f)?;
        writeln!(f)?;
        self.facts(f)?;
        self.talk(f)?;
        self.messages(f)?;
        writeln!(f)?;
        self.table(f)?;
        self.machine(f)?;
        writeln!(f)?;
        if let Some(logs) = &self.logs {
            writeln!(f, "  Logs: {}", logs.display())?;
        }
        writeln!(
            f,
            "  Next: a pair of your own: examples/*.toml, docs/first-pair.md; all proofs: make test"
        )?;
        writeln!(
            f,
            "        vrio demo --no-guest (in seconds), --json (for programs), --keep DIR (logs)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::compare::Speed;
    use super::super::mpi::AllToAll;
    use super::*;

    fn report(user: User) -> DemoReport {
        let speed = |iops| Speed { iops, p50_us: 1e5 / 3.0, p99_us: 123_456.7 };
        let row = |op, depth| LoadRow {
            op,
            depth,
            local: speed(1_234_567.8),
            remote: speed(654_321.0),
            iops_ratio: 0.53,
            p50_ratio: 12.5,
        };
        let rows = vec![row("read", 1), row("read", 32), row("write", 1), row("write", 32)];
        let outage = Outage {
            user,
            kills: 3,
            outstanding_at_kills_min: Some(16),
            away_longest_ms: 12_345,
            pause_longest_ms: 12_345,
            writes_verified: 1_234_567,
            reads_verified: 12_345_678,
            errors: 0,
            files_verified: 8,
            image_bytes_verified: 16 << 20,
        };
        let comparison = Comparison { request_bytes: 4096, driver_polls: false, rows };
        let machine = Machine {
            cores: 2,
            processor: "A processor whose name is rather long and goes on".to_owned(),
            cache_line_round_trip_ns: Some(123),
            kernel: "6.12.95+deb13-cloud-amd64".to_owned(),
            version: "0.1.0",
            commit: "0123456789ab-dirty",
            optimised: false,
        };
        let logs = Some(PathBuf::from("/tmp/logs"));
        let talk = Talk {
            file_bytes_verified: 4 << 20,
            bits_per_s: Some([12_345e6, 12_345e6]),
            reached_again_ms: 12_345,
            host: Some("10.78.0.254"),
        };
        let talk = matches!(outage.user, User::Guest { .. }).then_some(talk);
        let all_to_all = [8, 1 << 10, 8 << 10, 64 << 10, 256 << 10];
        let all_to_all = all_to_all.map(|bytes| AllToAll { bytes, p50_us: 123_456.7 }).to_vec();
        let (mpi, ranks, verified) = ("Open MPI 4.1.4".to_owned(), 4, 12_345);
        let messages = match talk {
            Some(_) => Ok(Messages { mpi, ranks, guests: 2, verified, all_to_all }),
            None => Err("nobody has one; ".repeat(9)),
        };
        let lived = (outage, talk, messages);
        DemoReport { logs, ..DemoReport::new(NodeNetwork::Namespaces, lived, comparison, machine) }
    }

    #[test]
    fn the_report_is_a_screenful() {
        let kernel = "6.12.95+deb13-cloud-amd64".to_owned();
        for user in [User::Guest { accelerator: "tcg", kernel }, User::StandIn] {
            let text = report(user).to_string();
            assert!(text.lines().count() <= 28, "{text}");
            for line in text.lines() {
                let columns = line.chars().count();
                assert!(columns <= 100 && !line.ends_with(' '), "{columns} columns: '{line}'");
            }
        }
    }
}
