//! One flush of the export's own, between two epochs.

use sidecore::{Progress, Services, Wake};

use super::Export;
use crate::volume::{Channel, IoTable, Op, Open, OpenError, Status, io_table};

/// A flush on its way, with a channel of its own.
#[derive(Debug)]
pub(super) struct Flushing {
    channel: Box<dyn Channel>,
    ios: IoTable,
    sent: bool,
}

impl Flushing {
    /// Opens the channel.
    ///
    /// # Errors
    /// When the volume cannot be opened.
    pub(super) fn new(export: &Export, services: &Services) -> Result<Self, OpenError> {
        let channel = export.volume().open(&Open { services, depth: 1 })?;
        Ok(Self { channel, ios: io_table(1), sent: false })
    }

    /// Sends it, then waits; how it ended.
    pub(super) fn poll(&mut self, now_ns: u64) -> Option<Status> {
        if !self.sent {
            let id = self.ios.take().expect("the table has one slot and this is its first use");
            self.ios[id].reset();
            self.ios[id].op = Op::Flush;
            // A meter counts from here; without it, from the clock's zero.
            self.ios[id].submitted_ns = now_ns;
            self.channel.submit(&mut self.ios, id);
            self.sent = true;
        }
        let mut done = Vec::with_capacity(1);
        let _ = self.channel.poll(&mut self.ios, now_ns, &mut done);
        done.first().map(|&id| self.ios[id].status)
    }

    /// Before the sidecore sleeps.
    pub(super) fn arm(&mut self, wake: &mut Wake) -> Progress {
        self.channel.arm(wake)
    }
}
