//! Syncs of devices: one round at a time, shared by all requests that wait for one.

/// Rounds of syncs. A round covers what was answered before it began, so a request that arrives
/// during a round waits for the next.
#[derive(Debug, Default)]
pub(crate) struct SyncRounds {
    begun: u64,
    completed: u64,
    wanted: u64,
    outstanding: usize,
    /// The last row that was applied when the round under way began.
    covers: u64,
}

impl SyncRounds {
    /// A ticket for a round that begins after this call.
    pub(crate) fn ticket(&mut self) -> u64 {
        self.wanted = self.begun + 1;
        self.wanted
    }

    /// Whether the round of a ticket is done.
    pub(crate) fn is_done(&self, ticket: u64) -> bool {
        self.completed >= ticket
    }

    /// Begins a round if one is wanted and none is under way; whether it did.
    pub(crate) fn begin(&mut self, devices: usize, applied: u64) -> bool {
        if self.outstanding > 0 || self.wanted <= self.begun {
            return false;
        }
        self.begun += 1;
        self.outstanding = devices;
        self.covers = applied;
        true
    }

    /// A device has synced. The last row that is durable now, if the round is complete.
    pub(crate) fn device_done(&mut self) -> Option<u64> {
        self.outstanding -= 1;
        if self.outstanding > 0 {
            return None;
        }
        self.completed = self.begun;
        Some(self.covers)
    }

    /// Whether a round is under way or wanted.
    pub(crate) fn is_busy(&self) -> bool {
        self.outstanding > 0 || self.wanted > self.begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_covers_only_what_came_before_it() {
        let mut rounds = SyncRounds::default();
        let first = rounds.ticket();
        assert!(rounds.begin(2, 5));
        let second = rounds.ticket();
        assert!(!rounds.begin(2, 6), "one round at a time");
        assert_eq!(rounds.device_done(), None);
        assert!(!rounds.is_done(first));
        assert_eq!(rounds.device_done(), Some(5));
        assert!(rounds.is_done(first) && !rounds.is_done(second));
        assert!(rounds.begin(1, 7));
        assert_eq!(rounds.device_done(), Some(7));
        assert!(rounds.is_done(second) && !rounds.is_busy());
    }
}
