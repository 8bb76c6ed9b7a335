//! When the pool looks after histories.

/// How often the pool looks for moments that are due or old: a quarter of the shortest step.
pub(super) const LOOK_NS: u64 = 25_000_000;

/// The pool's work on histories.
#[derive(Debug)]
pub(super) struct HistoryKeeper {
    /// The time, in nanoseconds since 1970; 0 if it was never told.
    pub(super) utc_ns: u64,
    /// The next look: by the clock that does not jump, and by the time.
    pub(super) look_at_ns: u64,
    pub(super) look_at_utc_ns: u64,
    /// The last look.
    pub(super) looked_at_ns: u64,
    /// When the last moment was taken.
    pub(super) taken_at_ns: u64,
    /// Records that are pushed and not applied.
    pub(super) under_way: u32,
    /// Requests that quotas or a full pool had refused at the last look.
    pub(super) refusals: u64,
    /// The last look has found work, or there was a change of the catalog since.
    pub(super) has_more: bool,
}

impl HistoryKeeper {
    /// Of a pool that was opened just now: there may be work.
    pub(super) fn new() -> Self {
        Self {
            utc_ns: 0,
            look_at_ns: 0,
            look_at_utc_ns: 0,
            looked_at_ns: 0,
            taken_at_ns: 0,
            under_way: 0,
            refusals: 0,
            has_more: true,
        }
    }

    /// A change of the catalog was applied: there may be work.
    pub(super) fn wake(&mut self) {
        self.has_more = true;
    }

    /// Whether records are under way.
    pub(super) fn is_working(&self) -> bool {
        self.under_way > 0
    }

    /// Whether it is time to look.
    pub(super) fn is_time(&self, now_ns: u64) -> bool {
        // A time that was set back is a reason to look as well.
        let jumped = self.utc_ns.saturating_add(LOOK_NS) < self.look_at_utc_ns;
        self.has_more || now_ns >= self.look_at_ns || self.utc_ns >= self.look_at_utc_ns || jumped
    }
}
