//! When a link that wraps another one looks at it: a look is a system call, and what is wrapped is
//! seldom the way that datagrams take.

/// How often the link inside is looked at while nothing comes by it.
const LOOK_NS: u64 = 50_000;

/// For how long it is looked at each round after something came by it.
const LOOK_CLOSELY_NS: u64 = 1_000_000;

/// The times at which the link inside was looked at and was heard.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinkInside {
    looked_ns: u64,
    heard_ns: u64,
}

impl LinkInside {
    /// Whether a look at the link inside is due now. If so, the look counts as done.
    pub(crate) fn is_due(&mut self, now_ns: u64) -> bool {
        let is_quiet = now_ns.saturating_sub(self.heard_ns) >= LOOK_CLOSELY_NS;
        if is_quiet && now_ns.saturating_sub(self.looked_ns) < LOOK_NS {
            return false;
        }
        self.looked_ns = now_ns;
        true
    }

    /// Notes what a look found.
    pub(crate) fn found(&mut self, now_ns: u64, datagrams: usize) {
        if datagrams > 0 {
            self.heard_ns = now_ns;
        }
    }

    /// Called before a sleep. The next round looks, even when something else ends the sleep.
    pub(crate) fn look_next(&mut self) {
        self.looked_ns = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_seldom_but_for_a_while_after_something_came() {
        let mut inside = LinkInside::default();
        let mut looks = |from_ns: u64| {
            let rounds = (from_ns..from_ns + LOOK_CLOSELY_NS).step_by(1_000);
            rounds.filter(|&now_ns| inside.is_due(now_ns)).count() as u64
        };
        assert_eq!(looks(10 * LOOK_CLOSELY_NS), LOOK_CLOSELY_NS / LOOK_NS);
        inside.found(20 * LOOK_CLOSELY_NS, 0);
        assert!(inside.is_due(20 * LOOK_CLOSELY_NS) && !inside.is_due(20 * LOOK_CLOSELY_NS + 1));
        inside.found(20 * LOOK_CLOSELY_NS, 1);
        assert!(inside.is_due(20 * LOOK_CLOSELY_NS + 1) && inside.is_due(20 * LOOK_CLOSELY_NS + 2));
        assert!(inside.is_due(22 * LOOK_CLOSELY_NS) && !inside.is_due(22 * LOOK_CLOSELY_NS + 1));
        inside.look_next();
        assert!(inside.is_due(22 * LOOK_CLOSELY_NS + 2));
    }
}
