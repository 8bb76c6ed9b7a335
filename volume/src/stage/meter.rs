//! The `meter` stage: counts requests, bytes and errors, and how long requests take.
//!
//! Each channel writes cells of its own, without locks or read-modify-writes, and a reader adds
//! them up. The stage promises nothing on a crash, for it keeps nothing.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use hdrhistogram::Histogram;
use parking_lot::{Mutex, MutexGuard};
use sidecore::{Counter, Progress, Wake};

use super::kind::{ChainError, StagePosition, VolumeStage};
use crate::latency::{self, Latencies};
use crate::settings::SettingKey;
use crate::size::Size;
use crate::volume::{
    Channel, IoId, IoTable, Op, OpenArguments, OpenError, STAGES_MAX, Status, Volume, VolumeInfo,
};

/// The stage as it is configured: it has nothing to say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metering;

impl fmt::Display for Metering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAME)
    }
}

impl VolumeStage for Metering {
    const NAME: &'static str = "meter";
    const ABOUT: &'static str = "Counts requests and times them";
    const COUNTERS: &'static [SettingKey] = &[
        SettingKey::new("reads", "Reads that ended."),
        SettingKey::new("writes", "Writes that ended."),
        SettingKey::new("flushes", "Flushes that ended."),
        SettingKey::new("discards", "Discards that ended."),
        SettingKey::new("write_zeroes", "Ranges zeroed that ended."),
        SettingKey::new("read_bytes", "Bytes of reads that succeeded."),
        SettingKey::new("written_bytes", "Bytes of writes that succeeded."),
        SettingKey::new("discarded_bytes", "Bytes of discards that succeeded."),
        SettingKey::new("zeroed_bytes", "Bytes of ranges zeroed that succeeded."),
        SettingKey::new("errors", "Requests that failed."),
    ];

    type Wrapped = MeterVolume;

    fn alone() -> Result<Self, &'static str> {
        Ok(Self)
    }

    fn measured(_key: &Path) -> Option<(Self, String)> {
        Some((Self, "\"meter\"".to_owned()))
    }

    fn wrap(
        &self,
        inner: Arc<dyn Volume>,
        around: &StagePosition<'_>,
        earlier: Option<&MeterVolume>,
    ) -> Result<MeterVolume, ChainError> {
        Ok(match earlier {
            Some(earlier) => MeterVolume::going_on(inner, around.depth, &earlier.meter),
            None => MeterVolume::new(inner, around.depth),
        })
    }

    /// The outermost meter's counts: requests as the volume's users saw them.
    fn counted(running: &[Arc<MeterVolume>], put: &mut dyn FnMut(&str, u64)) {
        let Some(outermost) = running.first() else { return };
        let mut errors = 0;
        let names = [
            (Op::Read, "reads", Some("read_bytes"), "read"),
            (Op::Write, "writes", Some("written_bytes"), "write"),
            (Op::Flush, "flushes", None, "flush"),
            (Op::Discard, "discards", Some("discarded_bytes"), "discard"),
            (Op::WriteZeroes, "write_zeroes", Some("zeroed_bytes"), "write_zeroes"),
        ];
        for (op, count, bytes, latency) in names {
            let reading = outermost.meter.read(op);
            errors += reading.errors;
            put(count, reading.requests);
            if let Some(bytes) = bytes {
                put(bytes, reading.bytes);
            }
            if reading.requests > 0 {
                for (name, quantile) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
                    let ns = reading.latency_ns.value_at_quantile(quantile);
                    put(&format!("{latency}_{name}_ns_now"), ns);
                }
            }
        }
        put("errors", errors);
    }
}

/// The counts of one channel, of one kind of request.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cells {
    requests: Counter,
    bytes: Counter,
    errors: Counter,
    latencies: Latencies,
}

impl Cells {
    fn add_to(&self, reading: &mut Reading) {
        reading.requests += self.requests.get();
        reading.bytes += self.bytes.get();
        reading.errors += self.errors.get();
        self.latencies.add_to(&mut reading.latency_ns);
    }
}

/// One channel's cells, in the order of [`Op::ALL`].
type ChannelCells = [Cells; Op::ALL.len()];

fn kind(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Flush => 2,
        Op::Discard => 3,
        Op::WriteZeroes => 4,
    }
}

/// The counts of a meter for one kind of request, over all channels that it ever had.
#[derive(Clone, Debug)]
pub struct Reading {
    /// Requests that ended.
    pub requests: u64,
    /// Bytes of those that ended well; of ranges that were zeroed, how long they were.
    pub bytes: u64,
    /// Requests that did not end well.
    pub errors: u64,
    /// From submission to completion, in nanoseconds, to 3 %. The clock is the sidecore's, which
    /// is read once per round.
    pub latency_ns: Histogram<u64>,
}

impl Reading {
    fn new() -> Self {
        Self { requests: 0, bytes: 0, errors: 0, latency_ns: latency::histogram() }
    }

    fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.errors += other.errors;
        // Same bounds: nothing is out of range.
        self.latency_ns.add(&other.latency_ns).expect("histograms of the same bounds");
    }
}

/// The counts of a meter, which its volume, its channels and its readers share.
#[derive(Debug)]
pub struct Meter {
    /// Control path only: opening, closing, reading.
    books: Mutex<MeterCounts>,
    opened: AtomicU64,
}

#[derive(Debug)]
struct MeterCounts {
    open: Vec<Arc<ChannelCells>>,
    closed: [Reading; Op::ALL.len()],
}

impl Default for Meter {
    fn default() -> Self {
        let closed = std::array::from_fn(|_| Reading::new());
        Self {
            books: Mutex::new(MeterCounts { open: Vec::new(), closed }),
            opened: AtomicU64::new(0),
        }
    }
}

impl Meter {
    /// The counts of one kind of request so far.
    pub fn read(&self, op: Op) -> Reading {
        let books = self.books();
        let mut reading = books.closed[kind(op)].clone();
        books.open.iter().for_each(|cells| cells[kind(op)].add_to(&mut reading));
        reading
    }

    /// How many channels were ever opened.
    pub fn channels_opened(&self) -> u64 {
        self.opened.load(Relaxed)
    }

    fn open(&self) -> Arc<ChannelCells> {
        let cells = Arc::new(ChannelCells::default());
        self.books().open.push(Arc::clone(&cells));
        self.opened.fetch_add(1, Relaxed);
        cells
    }

    fn close(&self, cells: &Arc<ChannelCells>) {
        let mut books = self.books();
        books.open.retain(|open| !Arc::ptr_eq(open, cells));
        for (cells, closed) in cells.iter().zip(&mut books.closed) {
            let mut last = Reading::new();
            cells.add_to(&mut last);
            closed.add(&last);
        }
    }

    fn books(&self) -> MutexGuard<'_, MeterCounts> {
        // Counts stay true after a panic of another thread.
        self.books.lock()
    }
}

/// A volume whose requests are counted.
#[derive(Debug)]
pub struct MeterVolume {
    inner: Arc<dyn Volume>,
    depth: usize,
    meter: Arc<Meter>,
}

impl MeterVolume {
    /// Wraps `inner` as the stage number `depth` of its chain.
    ///
    /// # Panics
    /// When `depth` is not below [`STAGES_MAX`]; a chain checks its length first.
    pub fn new(inner: Arc<dyn Volume>, depth: usize) -> Self {
        assert!(depth < STAGES_MAX, "a chain is bounded when it is built");
        Self { inner, depth, meter: Arc::default() }
    }

    /// Goes on counting where another one did.
    pub(crate) fn going_on(inner: Arc<dyn Volume>, depth: usize, meter: &Arc<Meter>) -> Self {
        Self { meter: Arc::clone(meter), ..Self::new(inner, depth) }
    }

    /// The meter, with its counts.
    pub fn meter(&self) -> Arc<Meter> {
        Arc::clone(&self.meter)
    }
}

impl Volume for MeterVolume {
    fn info(&self) -> VolumeInfo {
        self.inner.info()
    }

    fn size(&self) -> Size {
        self.inner.size()
    }

    fn open(&self, open: &OpenArguments<'_>) -> Result<Box<dyn Channel>, OpenError> {
        let inner = self.inner.open(open)?;
        let meter = Arc::clone(&self.meter);
        let cells = meter.open();
        Ok(Box::new(MeterChannel { inner, depth: self.depth, meter, cells, now_ns: 0 }))
    }
}

#[derive(Debug)]
struct MeterChannel {
    inner: Box<dyn Channel>,
    depth: usize,
    meter: Arc<Meter>,
    cells: Arc<ChannelCells>,
    /// The latest round's clock.
    now_ns: u64,
}

impl Channel for MeterChannel {
    fn submit(&mut self, ios: &mut IoTable, id: IoId) {
        let io = &mut ios[id];
        // First in the chain, the user's own mark is this round's clock. Behind a stage that holds
        // requests back, the latest round is a better one.
        io.scratch[self.depth] = io.submitted_ns.max(self.now_ns);
        self.inner.submit(ios, id);
    }

    fn poll(&mut self, ios: &mut IoTable, now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        self.now_ns = now_ns;
        let earlier = done.len();
        let progress = self.inner.poll(ios, now_ns, done);
        for id in &done[earlier..] {
            let io = &ios[*id];
            let cells = &self.cells[kind(io.op)];
            cells.requests.add(1);
            if io.status == Status::Done {
                cells.bytes.add(u64::from(io.len_bytes));
            } else {
                cells.errors.add(1);
            }
            let latency_ns = now_ns.saturating_sub(io.scratch[self.depth]);
            cells.latencies.record(latency_ns);
        }
        progress
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        self.inner.arm(wake)
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn is_open(&self) -> bool {
        self.inner.is_open()
    }

    fn recall(&mut self, ios: &mut IoTable, back: &mut Vec<IoId>) {
        // Counted when they complete, wherever that is.
        self.inner.recall(ios, back);
    }

    fn abandon(&mut self, ios: &mut IoTable, now_ns: u64) -> bool {
        self.inner.abandon(ios, now_ns)
    }
}

impl Drop for MeterChannel {
    fn drop(&mut self) {
        self.meter.close(&self.cells);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::MemoryVolume;
    use crate::contract::{self, Buffer, ChannelBench};

    fn metered() -> MeterVolume {
        MeterVolume::new(Arc::new(MemoryVolume::new(1 << 20).expect("memory")), 0)
    }

    #[test]
    fn keeps_the_contract() {
        contract::check_all(&metered());
    }

    #[test]
    fn counts_requests_bytes_errors_and_latency() {
        let volume = metered();
        let mut bench = ChannelBench::new(&volume, 8);
        let buffer = Buffer::new(4096, 0);
        for _ in 0..5 {
            let id = bench.submit(Op::Write, 0, Some(&buffer));
            bench.now_ns += 1_000_000;
            assert_eq!(bench.wait(id), Status::Done);
        }
        assert!(bench.read(1 << 20, 512).is_err());
        bench.flush();
        let writes = volume.meter().read(Op::Write);
        assert_eq!((writes.requests, writes.bytes, writes.errors), (5, 5 * 4096, 0));
        let median_ns = writes.latency_ns.value_at_quantile(0.5);
        assert!(median_ns.abs_diff(1_000_000) < 40_000, "{median_ns}");
        let reads = volume.meter().read(Op::Read);
        assert_eq!((reads.requests, reads.bytes, reads.errors), (1, 0, 1));
        assert_eq!(volume.meter().read(Op::Flush).requests, 1);
    }

    #[test]
    fn channels_add_up_and_a_closed_one_is_not_forgotten() {
        let volume = metered();
        let mut one = ChannelBench::new(&volume, 4);
        one.write(0, &[1; 512]);
        for _ in 0..3 {
            ChannelBench::new(&volume, 4).write(0, &[1; 512]);
        }
        let writes = volume.meter().read(Op::Write);
        assert_eq!((writes.requests, writes.bytes), (4, 2048));
        assert_eq!(writes.latency_ns.len(), 4);
        assert_eq!(volume.meter().channels_opened(), 4);
        assert_eq!(volume.meter().books().open.len(), 1);
    }
}
