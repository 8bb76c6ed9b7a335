//! How much may be in flight.

/// Decides the window from what was acknowledged and lost.
pub(crate) trait Congestion {
    /// Bytes that may be in flight.
    fn window_bytes(&self) -> u64;

    /// `bytes` were acknowledged.
    fn acked(&mut self, bytes: u64);

    /// A packet sent at `sent_ns` was taken for lost at `now_ns`.
    fn lost(&mut self, now_ns: u64, sent_ns: u64);
}

/// The window until a controller that measures delay replaces it: the bandwidth-delay product of
/// 100 Gbit/s and 300 µs.
pub(crate) const WINDOW_BYTES: u64 = 4 << 20;

/// Losses do not shrink the window below four of the largest datagrams, nor a small buffer of the
/// receiver below one: a window must carry something.
const WINDOW_BYTES_MIN: u64 = 256 << 10;
const WINDOW_BYTES_FLOOR: u64 = 64 << 10;

/// Losses in so many round trips, with no full window acknowledged for each of them in between, are
/// more than bad luck.
const STRIKES_MAX: u32 = 3;

/// A fixed window, halved by persistent loss and growing back with what is acknowledged.
#[derive(Debug)]
pub(crate) struct FixedWindow {
    window_bytes: u64,
    window_bytes_max: u64,
    /// Losses of packets sent before this belong to a strike that was counted.
    counted_until_ns: u64,
    strikes: u32,
    /// Acknowledged since the window last grew.
    acked_bytes: u64,
}

impl FixedWindow {
    /// A window that the receiver's buffer of `receive_window_bytes` bounds.
    pub(crate) fn new(receive_window_bytes: u64) -> Self {
        let window_bytes_max = WINDOW_BYTES.min(receive_window_bytes).max(WINDOW_BYTES_FLOOR);
        Self {
            window_bytes: window_bytes_max,
            window_bytes_max,
            counted_until_ns: 0,
            strikes: 0,
            acked_bytes: 0,
        }
    }
}

impl Congestion for FixedWindow {
    fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    fn acked(&mut self, bytes: u64) {
        self.acked_bytes += bytes;
        if self.acked_bytes >= self.window_bytes {
            self.acked_bytes = 0;
            self.strikes = self.strikes.saturating_sub(1);
            self.window_bytes =
                (self.window_bytes + self.window_bytes / 4).min(self.window_bytes_max);
        }
    }

    fn lost(&mut self, now_ns: u64, sent_ns: u64) {
        if sent_ns < self.counted_until_ns {
            return;
        }
        self.counted_until_ns = now_ns;
        self.strikes += 1;
        if self.strikes >= STRIKES_MAX {
            self.strikes = 0;
            self.window_bytes =
                (self.window_bytes / 2).max(WINDOW_BYTES_MIN.min(self.window_bytes_max));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_loss_is_forgiven_many_halve_and_it_grows_back() {
        let mut window = FixedWindow::new(u64::MAX);
        window.lost(1_000, 10);
        window.lost(1_001, 20);
        assert_eq!(window.window_bytes(), WINDOW_BYTES);
        window.lost(2_000, 1_500);
        window.lost(3_000, 2_500);
        assert_eq!(window.window_bytes(), WINDOW_BYTES / 2);
        for round in 2..100 {
            window.lost(round * 10_000, round * 10_000 - 1);
        }
        assert_eq!(window.window_bytes(), WINDOW_BYTES_MIN);
        for _ in 0..10_000 {
            window.acked(8_000);
        }
        assert_eq!(window.window_bytes(), WINDOW_BYTES);
    }

    #[test]
    fn the_receivers_buffer_bounds_it() {
        assert_eq!(FixedWindow::new(1 << 20).window_bytes(), 1 << 20);
        assert_eq!(FixedWindow::new(0).window_bytes(), WINDOW_BYTES_FLOOR);
        let mut small = FixedWindow::new(100_000);
        for round in 1..10 {
            small.lost(round * 10_000, round * 10_000 - 1);
        }
        assert_eq!(small.window_bytes(), 100_000);
    }
}
