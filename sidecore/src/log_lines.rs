//! Limits for log lines that guests, peers and other processes cause.

/// How long lines count, in nanoseconds.
const MINUTE_NS: u64 = 60_000_000_000;

/// Bounds the log lines that a single source may cause in a minute, so that no source can fill the
/// log.
#[derive(Debug)]
pub struct LogLines {
    max: u32,
    minute_ns: u64,
    lines: u32,
}

impl LogLines {
    /// At most `max` lines in a minute, which begins with its first line.
    pub const fn new(max: u32) -> Self {
        Self { max, minute_ns: 0, lines: 0 }
    }

    /// Whether another line may be written now; it counts as written then.
    pub fn may(&mut self, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.minute_ns) >= MINUTE_NS {
            (self.minute_ns, self.lines) = (now_ns, 0);
        }
        self.lines += u32::from(self.lines <= self.max);
        self.lines <= self.max
    }

    /// Whether the line that was just allowed is the minute's last.
    pub fn is_last(&self) -> bool {
        self.lines == self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_does_it_for_ever_gets_its_lines_and_no_more() {
        let mut log = LogLines::new(8);
        let mut lines = |from_ns: u64| {
            let ticks = (0..1_000_000).map(|tick| from_ns + tick * 1_000);
            let written: Vec<_> = ticks.filter(|now_ns| log.may(*now_ns)).collect();
            assert!(written.is_empty() || written.len() == 8);
            written.len()
        };
        assert_eq!([lines(MINUTE_NS), lines(MINUTE_NS + 1_000_000_000)], [8, 0]);
        assert_eq!(lines(2 * MINUTE_NS + 1), 8, "a minute later");
        let mut log = LogLines::new(2);
        assert!(log.may(1) && !log.is_last() && log.may(2) && log.is_last() && !log.may(3));
        assert!(!log.is_last());
    }
}
