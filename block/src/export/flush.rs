//! One flush of the export's own, between two epochs.

use sidecore::{Progress, Services, Wake};

use volume::layer::Layer;
use volume::{Op, OpenError, Status, Volume};

/// A flush on its way, with a channel of its own.
#[derive(Debug)]
pub(super) struct Flushing {
    below: Layer,
    sent: bool,
}

impl Flushing {
    /// Opens the channel.
    ///
    /// # Errors
    /// When the volume cannot be opened.
    pub(super) fn new(volume: &dyn Volume, services: &Services) -> Result<Self, OpenError> {
        let below = Layer::new(0).over(volume, services, 1)?;
        Ok(Self { below, sent: false })
    }

    /// Sends it, then waits; how it ended.
    pub(super) fn poll(&mut self, now_ns: u64) -> Option<Status> {
        if !self.sent {
            self.sent = self.below.begin(0, None, |io| {
                io.op = Op::Flush;
                // A meter counts from here; without it, from the clock's zero.
                io.submitted_ns = now_ns;
                true
            });
        }
        let mut status = None;
        let _ = self.below.poll(now_ns, |_, io| status = Some(io.status), &mut Vec::new());
        status
    }

    /// Before the sidecore sleeps.
    pub(super) fn arm(&mut self, wake: &mut Wake) -> Progress {
        self.below.arm(wake)
    }
}
