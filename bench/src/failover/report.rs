//! The result of a fail-over, for people and for programs.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::{FailoverEvent, FailoverOptions, MIX, QUEUES, SLICE, TimeLine};
use testbed::machine::Machine;
use testbed::pair::between;
use testbed::stage::NodeNetwork;
use workload::WorkloadCounts;

/// The version of the JSON form.
const FAILOVER_VERSION: u32 = 1;

/// Columns of the picture in text.
const COLUMNS: usize = 72;

/// The characters of a row, from no requests to the most.
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// An event, and the pause of the guest after it.
#[derive(Clone, Debug, Serialize)]
pub struct Interrupted {
    /// The kind of the event.
    pub event: FailoverEvent,
    /// The name of its beginning on the time line.
    pub begins: &'static str,
    /// The name of its end on the time line.
    pub ends: &'static str,
    /// The time of its beginning, in milliseconds of the time line.
    pub begins_ms: f64,
    /// The time at which the new process answered, in milliseconds of the time line.
    pub ends_ms: f64,
    /// The longest time without a completion from its beginning until the next event.
    pub pause_ms: f64,
}

impl Interrupted {
    pub(super) fn new(event: FailoverEvent, begins: Duration, ends: Duration) -> Self {
        let [begins_word, ends_word] = event.words();
        Self {
            event,
            begins: begins_word,
            ends: ends_word,
            begins_ms: ms(begins),
            ends_ms: ms(ends),
            pause_ms: 0.0,
        }
    }

    pub(super) fn with_pause(self, pause: Duration) -> Self {
        Self { pause_ms: ms(pause), ..self }
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct FailoverReport {
    /// The version of this form.
    pub version: u32,
    /// The options of this run.
    pub asked: FailoverOptions,
    /// The network between the nodes.
    pub network: NodeNetwork,
    /// Queues of the disk.
    pub queues: u16,
    /// Requests outstanding on each.
    pub depth: u16,
    /// The length of a slice of the time line, in milliseconds.
    pub slice_ms: u64,
    /// Requests that were completed in each.
    pub requests: Vec<u64>,
    /// The events, with the pause after each.
    pub interruptions: Vec<Interrupted>,
    /// The longest time without a completion before anything happened.
    pub pause_before_ms: f64,
    /// Acknowledged writes, all found again.
    pub writes_verified: u64,
    /// Blocks that were read and compared with the data that was written before.
    pub blocks_verified: u64,
    /// The machine.
    pub machine: Machine,
}

impl FailoverReport {
    pub(super) fn new(
        options: &FailoverOptions,
        network: NodeNetwork,
        line: TimeLine,
        interruptions: Vec<Interrupted>,
        counts: WorkloadCounts,
        machine: Machine,
    ) -> Self {
        Self {
            version: FAILOVER_VERSION,
            asked: options.clone(),
            network,
            queues: QUEUES,
            depth: MIX.depth,
            slice_ms: u64::try_from(SLICE.as_millis()).expect("a short while"),
            requests: line.slices,
            interruptions,
            pause_before_ms: ms(line.pauses[0]),
            writes_verified: counts.writes,
            blocks_verified: counts.blocks_checked,
            machine,
        }
    }

    /// The time line in a row of characters.
    fn picture(&self) -> String {
        let each = self.requests.len().div_ceil(COLUMNS).max(1);
        let sums: Vec<u64> = self.requests.chunks(each).map(|it| it.iter().sum()).collect();
        // The last column may stand for less time than the others.
        let most = sums.iter().copied().max().unwrap_or(0).max(1);
        let bar = |sum: &u64| {
            let steps = (BARS.len() - 1) as u64;
            BARS[usize::try_from((sum * steps).div_ceil(most)).unwrap_or(0)]
        };
        sums.iter().map(bar).collect()
    }
}

impl fmt::Display for FailoverReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queues, depth, requests, slice_ms, pause_before_ms, .. } = self;
        let between = between(Some(self.network), self.asked.encrypt);
        writeln!(
            f,
            "a disk of another node{between}: checked reads and writes, {queues} queues of depth \
             {depth}"
        )?;
        writeln!(f, "\n  {:<18}{:>8}{:>15}{:>19}", "", "at s", "node away ms", "longest pause ms")?;
        writeln!(f, "  {:<18}{:>8}{:>15}{pause_before_ms:>19.1}", "before", "", "")?;
        for it in &self.interruptions {
            let (at, away) = (it.begins_ms / 1e3, it.ends_ms - it.begins_ms);
            writeln!(f, "  {:<18}{at:>8.2}{away:>15.0}{:>19.1}", it.begins, it.pause_ms)?;
        }
        let seconds = (requests.len() as u64 * slice_ms) as f64 / 1e3;
        writeln!(f, "\n  |{}| {seconds:.1} s, requests completed", self.picture())?;
        writeln!(
            f,
            "\n  nothing failed, nothing lost: {} acknowledged writes, {} blocks compared",
            self.writes_verified, self.blocks_verified
        )?;
        let Machine { cores, processor, kernel, .. } = &self.machine;
        let build = self.machine.build();
        let slow = if self.machine.optimised { "" } else { "; NOT OPTIMISED: build --release" };
        writeln!(f, "  {cores} cores, {processor}, Linux {kernel}; vrio {build}{slow}")
    }
}
