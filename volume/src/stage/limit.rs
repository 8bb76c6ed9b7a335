//! The `limit` volume: at most so many requests and bytes per second, with a burst, shared by all
//! channels of a volume. It promises nothing about a crash beyond what is below it: requests that
//! it holds back have not happened.
//!
//! A rate is one atomic word on a clock of its own: *the time up to which everything is given
//! away*. A channel takes an amount by moving the word on by the amount's cost in time. It may use
//! the amount once the real clock has reached the place where the word stood. Such reservations are
//! served in the order in which they were made, also when one sidecore polls faster than another,
//! and there is always a known time to wake at.
//!
//! ```text
//!                 now - burst        now
//!   ──────────────────┼───────────────┼──────────────────▶ time
//!         word here: full burst   word here: nothing saved    word here: given away ahead;
//!         (never further back)                                a new taker waits until then
//! ```
//!
//! Channels take small batches, so the shared word is touched far less than once per request.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use sidecore::{Progress, Wake};

use super::kind::{ChainError, StagePosition, VolumeStage};
use crate::settings::{SettingKey, Settings, show_size};
use crate::size::Size;
use crate::volume::{
    Channel, Io, IoId, IoTable, Op, OpenArguments, OpenError, Status, Volume, VolumeInfo,
};

/// The most that a channel takes at once: the yield of the rate in this time. It is short enough
/// that the unused rest of one channel is no loss to others.
const BATCH_NS: u64 = 100_000;

/// A batch that was not used up in this time lapses, so that an idle channel does not save up a
/// burst of its own.
const LAPSE_NS: u64 = 10_000_000;

/// The burst of an idle volume without a configured one: the yield of one second.
pub const BURST_NS: u64 = 1_000_000_000;

/// Even without a burst this much is saved up. A sidecore looks at its limits only when it polls,
/// and the amounts that fell due since its last look must not be lost.
pub const BURST_NS_MIN: u64 = 2_000_000;

const SECOND_NS: u128 = 1_000_000_000;

/// How much a volume may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Requests per second, of any kind; `None` is any number.
    pub iops: Option<NonZeroU64>,
    /// Bytes per second, read and written, zeroes among them; `None` is any number. A discard
    /// costs a request and no bytes.
    pub bytes_per_second: Option<NonZeroU64>,
    /// An idle volume saves up what the rates give in this time; [`BURST_NS_MIN`] at least.
    pub burst_ns: u64,
}

impl Default for Limit {
    /// No limit at all.
    fn default() -> Self {
        Self { iops: None, bytes_per_second: None, burst_ns: BURST_NS }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let iops = self.iops.map(|iops| format!("{iops} IOPS"));
        let bytes = self.bytes_per_second.map(|bytes| format!("{}/s", show_size(bytes.get())));
        let parts: Vec<_> = iops.into_iter().chain(bytes).collect();
        write!(f, "limit {}", parts.join(" "))
    }
}

/// The fewest bytes a second that a limit may give.
const BYTES_PER_SECOND_MIN: u64 = 4096;

impl VolumeStage for Limit {
    const NAME: &'static str = "limit";
    const ABOUT: &'static str = "Holds back what exceeds a rate";
    const TEXT: &'static str = "Holds back what exceeds a rate; its keys are below.";
    const TABLE: &'static str = "limit of a volume";
    const KEYS: &'static [SettingKey] = &[
        SettingKey::new("iops", "The requests in a second. One of the two rates is enough."),
        SettingKey::new(
            "bytes-per-second",
            "The bytes in a second, such as `\"200MiB\"`; at least 4096.",
        ),
        SettingKey::new(
            "burst",
            "The time for which an idle volume saves its rate for later requests. Default: \
             `\"1s\"`.",
        ),
    ];
    const COUNTERS: &'static [SettingKey] =
        &[SettingKey::new("delayed", "Requests that a limit held back.")];

    type Wrapped = LimitVolume;

    fn alone() -> Result<Self, &'static str> {
        Err("a limit needs a rate: { limit = { iops = 50000 } }")
    }

    fn read(settings: &dyn Settings) -> Option<Self> {
        let iops = settings.integer("iops", 1..=1_000_000_000).and_then(NonZeroU64::new);
        let range = BYTES_PER_SECOND_MIN..=1 << 50;
        let bytes_per_second = settings.bytes_or_integer("bytes-per-second", range);
        if !settings.has("iops") && !settings.has("bytes-per-second") {
            let text = "a limit needs \"iops\", \"bytes-per-second\" or both";
            settings.fail(text.to_owned());
        }
        if bytes_per_second.is_some_and(|bytes| bytes < BYTES_PER_SECOND_MIN) {
            settings.fail("the least rate is 4096 bytes a second".to_owned());
        }
        let bytes_per_second = bytes_per_second.and_then(NonZeroU64::new);
        let burst_ns = settings.duration_ns("burst").unwrap_or(BURST_NS);
        Some(Self { iops, bytes_per_second, burst_ns })
    }

    /// A limit goes on from one of the same rates before any other.
    fn earlier(wanted: &[&Self], running: &[Arc<LimitVolume>]) -> Vec<Option<Arc<LimitVolume>>> {
        let mut left = running.to_vec();
        let mut earlier = vec![None; wanted.len()];
        for (limit, earlier) in wanted.iter().zip(&mut earlier) {
            let same = |running: &Arc<LimitVolume>| *running.limit() == **limit;
            *earlier = left.iter().position(same).map(|at| left.remove(at));
        }
        for earlier in earlier.iter_mut().filter(|earlier| earlier.is_none()) {
            if !left.is_empty() {
                *earlier = Some(left.remove(0));
            }
        }
        earlier
    }

    fn wrap(
        &self,
        inner: Arc<dyn Volume>,
        around: &StagePosition<'_>,
        earlier: Option<&LimitVolume>,
    ) -> Result<LimitVolume, ChainError> {
        if self.iops.is_none() && self.bytes_per_second.is_none() {
            return Err(ChainError::NoLimit { stage: around.depth + 1 });
        }
        Ok(match earlier {
            Some(earlier) => LimitVolume::going_on(inner, *self, earlier, around.now_ns),
            None => LimitVolume::new(inner, *self),
        })
    }

    fn counted(running: &[Arc<LimitVolume>], put: &mut dyn FnMut(&str, u64)) {
        if !running.is_empty() {
            put("delayed", running.iter().map(|limit| limit.delayed()).sum());
        }
    }
}

/// A rate that several sidecores share.
#[derive(Debug)]
#[repr(align(128))]
struct Bucket {
    per_second: Option<NonZeroU64>,
    burst_ns: u64,
    /// Up to when everything is given away.
    given_ns: AtomicU64,
}

impl Bucket {
    fn new(per_second: Option<NonZeroU64>, burst_ns: u64) -> Self {
        let burst_ns = burst_ns.max(BURST_NS_MIN);
        Self { per_second, burst_ns, given_ns: AtomicU64::new(0) }
    }

    /// A bucket of another rate that goes on where this one stands at `now_ns`. Savings stay, as
    /// far as the new burst reaches. Amounts that were given away ahead are dropped: their requests
    /// ask again.
    fn changed(&self, per_second: Option<NonZeroU64>, burst_ns: u64, now_ns: u64) -> Self {
        let next = Self::new(per_second, burst_ns);
        let given_ns = if self.per_second.is_some() { self.given_ns.load(Relaxed) } else { 0 };
        next.given_ns.store(given_ns.min(now_ns), Relaxed);
        next
    }

    /// Takes back what was given away and not used.
    fn give_back(&self, amount: u64) {
        let Some(per_second) = self.per_second else { return };
        let cost_ns = (u128::from(amount) * SECOND_NS / u128::from(per_second.get())) as u64;
        let back = |given_ns: u64| Some(given_ns.saturating_sub(cost_ns));
        let _ = self.given_ns.fetch_update(Relaxed, Relaxed, back);
    }

    /// The yield of the rate in [`BATCH_NS`].
    fn batch(&self) -> u64 {
        let per_second = self.per_second.map_or(u64::MAX, NonZeroU64::get);
        (u128::from(per_second) * u128::from(BATCH_NS) / SECOND_NS) as u64
    }

    /// How long the rate takes to give `amount`, rounded up.
    fn cost_ns(per_second: NonZeroU64, amount: u64) -> u64 {
        let cost = (u128::from(amount) * SECOND_NS).div_ceil(u128::from(per_second.get()));
        u64::try_from(cost).unwrap_or(u64::MAX)
    }

    /// Takes `needed`, and up to a batch if there is more than that; gives how much, and from when
    /// on it may be used.
    fn take(&self, needed: u64, now_ns: u64) -> Lease {
        let Some(per_second) = self.per_second else {
            return Lease { left: u64::MAX, usable_ns: 0, lapse_ns: u64::MAX };
        };
        let batch = self.batch().max(needed);
        let (needed_ns, batch_ns) =
            (Self::cost_ns(per_second, needed), Self::cost_ns(per_second, batch));
        let floor_ns = now_ns.saturating_sub(self.burst_ns);
        let mut given_ns = self.given_ns.load(Relaxed);
        loop {
            let start_ns = given_ns.max(floor_ns);
            let plenty = start_ns.saturating_add(batch_ns) <= now_ns;
            let (left, cost_ns) = if plenty { (batch, batch_ns) } else { (needed, needed_ns) };
            let after_ns = start_ns.saturating_add(cost_ns);
            // Nothing is published through this word but itself.
            match self.given_ns.compare_exchange_weak(given_ns, after_ns, Relaxed, Relaxed) {
                Ok(_) => {
                    let lapse_ns = start_ns.max(now_ns).saturating_add(LAPSE_NS);
                    return Lease { left, usable_ns: start_ns, lapse_ns };
                }
                Err(now_given_ns) => given_ns = now_given_ns,
            }
        }
    }
}

/// The amount that a channel has taken and not used.
#[derive(Clone, Copy, Debug, Default)]
struct Lease {
    left: u64,
    usable_ns: u64,
    lapse_ns: u64,
}

impl Lease {
    /// Makes sure that `needed` is there; when not, takes it. Gives from when on it may be used.
    fn reserve(&mut self, bucket: &Bucket, needed: u64, now_ns: u64) -> u64 {
        if self.left < needed {
            let more = bucket.take(needed - self.left, now_ns);
            self.left = self.left.saturating_add(more.left);
            self.usable_ns = self.usable_ns.max(more.usable_ns);
            self.lapse_ns = more.lapse_ns;
        }
        self.usable_ns
    }

    fn spend(&mut self, amount: u64) {
        if self.left != u64::MAX {
            self.left -= amount;
        }
    }

    fn give_back(&mut self, bucket: &Bucket) {
        if self.left != u64::MAX {
            bucket.give_back(self.left);
        }
        *self = Self::default();
    }

    fn lapse(&mut self, now_ns: u64) {
        if now_ns >= self.lapse_ns {
            *self = Self::default();
        }
    }
}

/// The rates that all channels of a limited volume share.
#[derive(Debug)]
struct Rates {
    requests: Bucket,
    bytes: Bucket,
    delayed: AtomicU64,
}

/// A volume that does no more than its limit.
#[derive(Debug)]
pub struct LimitVolume {
    inner: Arc<dyn Volume>,
    limit: Limit,
    rates: Arc<Rates>,
}

impl LimitVolume {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Volume>, limit: Limit) -> Self {
        let rates = Rates {
            requests: Bucket::new(limit.iops, limit.burst_ns),
            bytes: Bucket::new(limit.bytes_per_second, limit.burst_ns),
            delayed: AtomicU64::new(0),
        };
        Self { inner, limit, rates: Arc::new(rates) }
    }

    /// Goes on where another one stands, under the same limit or another.
    pub(crate) fn going_on(
        inner: Arc<dyn Volume>,
        limit: Limit,
        earlier: &Self,
        now_ns: u64,
    ) -> Self {
        let before = &earlier.rates;
        if limit == earlier.limit {
            return Self { inner, limit, rates: Arc::clone(before) };
        }
        let rates = Rates {
            requests: before.requests.changed(limit.iops, limit.burst_ns, now_ns),
            bytes: before.bytes.changed(limit.bytes_per_second, limit.burst_ns, now_ns),
            delayed: AtomicU64::new(before.delayed.load(Relaxed)),
        };
        Self { inner, limit, rates: Arc::new(rates) }
    }

    /// The limit.
    pub fn limit(&self) -> &Limit {
        &self.limit
    }

    #[cfg(test)]
    pub(crate) fn given_ns(&self) -> u64 {
        self.rates.requests.given_ns.load(Relaxed)
    }

    /// Requests that were held back so far.
    pub fn delayed(&self) -> u64 {
        self.rates.delayed.load(Relaxed)
    }
}

impl Volume for LimitVolume {
    fn info(&self) -> VolumeInfo {
        self.inner.info()
    }

    fn size(&self) -> Size {
        self.inner.size()
    }

    fn open(&self, open: &OpenArguments<'_>) -> Result<Box<dyn Channel>, OpenError> {
        Ok(Box::new(LimitChannel {
            inner: self.inner.open(open)?,
            rates: Arc::clone(&self.rates),
            requests: Lease::default(),
            bytes: Lease::default(),
            waiting: VecDeque::with_capacity(usize::from(open.depth)),
            head_seen: false,
            next_ns: None,
        }))
    }
}

#[derive(Debug)]
struct LimitChannel {
    inner: Box<dyn Channel>,
    rates: Arc<Rates>,
    requests: Lease,
    bytes: Lease,
    /// In the order of their submission.
    waiting: VecDeque<IoId>,
    /// The first of them was counted as held back.
    head_seen: bool,
    /// When the first of them may go.
    next_ns: Option<u64>,
}

/// The bytes for which a request pays. Zeroes may be written one by one, so they pay; a discard
/// does not.
fn bytes_of(io: &Io) -> u64 {
    if io.op == Op::Discard { 0 } else { u64::from(io.len_bytes) }
}

impl LimitChannel {
    /// Lets go what may go now.
    fn admit(&mut self, ios: &mut IoTable, now_ns: u64) -> Progress {
        self.next_ns = None;
        let mut progress = Progress::Idle;
        while let Some(&id) = self.waiting.front() {
            let len = bytes_of(&ios[id]);
            let requests_ns = self.requests.reserve(&self.rates.requests, 1, now_ns);
            let bytes_ns = self.bytes.reserve(&self.rates.bytes, len, now_ns);
            let usable_ns = requests_ns.max(bytes_ns);
            if usable_ns > now_ns {
                if !self.head_seen {
                    self.head_seen = true;
                    self.rates.delayed.fetch_add(1, Relaxed);
                }
                self.next_ns = Some(usable_ns);
                return progress;
            }
            self.requests.spend(1);
            self.bytes.spend(len);
            self.waiting.pop_front();
            self.head_seen = false;
            self.inner.submit(ios, id);
            progress = Progress::Busy;
        }
        self.requests.lapse(now_ns);
        self.bytes.lapse(now_ns);
        progress
    }
}

impl Channel for LimitChannel {
    /// Held until the poll that follows in the same round: only a poll knows the time.
    fn submit(&mut self, ios: &mut IoTable, id: IoId) {
        ios[id].status = Status::Pending;
        self.waiting.push_back(id);
    }

    fn poll(&mut self, ios: &mut IoTable, now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        self.admit(ios, now_ns) | self.inner.poll(ios, now_ns, done)
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        if let Some(next_ns) = self.next_ns {
            wake.at(next_ns);
        }
        let unseen = !self.waiting.is_empty() && self.next_ns.is_none();
        self.inner.arm(wake) | Progress::busy_if(unseen)
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn is_open(&self) -> bool {
        self.inner.is_open()
    }

    fn recall(&mut self, ios: &mut IoTable, back: &mut Vec<IoId>) {
        // Requests below this stage are older than those that it holds.
        self.inner.recall(ios, back);
        back.extend(self.waiting.drain(..));
        self.requests.give_back(&self.rates.requests);
        self.bytes.give_back(&self.rates.bytes);
        (self.head_seen, self.next_ns) = (false, None);
    }

    fn abandon(&mut self, ios: &mut IoTable, now_ns: u64) -> bool {
        self.waiting.clear();
        self.next_ns = None;
        self.inner.abandon(ios, now_ns)
    }
}

#[cfg(test)]
mod tests;
