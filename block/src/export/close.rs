//! The clean end of an attachment: end the epoch, drain, flush, remember.

use std::sync::Arc;

use sidecore::{Progress, Services, Wake};

use super::{Export, Refusal};
use crate::attachment::Attachment;
use crate::record::Ticket;
use crate::volume::{Channel, IoTable, Op, Open, Status, io_table};
use crate::wire::Outcome;

/// How often a close that waits for others looks again.
const LOOK_AGAIN_NS: u64 = 1_000_000;

#[derive(Debug)]
enum Step {
    Drain,
    Flush { channel: Box<dyn Channel>, ios: IoTable, sent: bool },
    Record(Ticket),
    Ended(Result<(), Refusal>),
}

/// A close under way; polled by whoever asked for it.
#[derive(Debug)]
pub struct Closing {
    export: Arc<Export>,
    attachment: Arc<Attachment>,
    epoch: u64,
    index: u16,
    step: Step,
}

impl Closing {
    /// Ends `epoch` of the attachment and begins to close it. Closing an epoch that is over is
    /// done at once: the successor's claim has drained it.
    pub fn new(export: Arc<Export>, attachment: Arc<Attachment>, epoch: u64, index: u16) -> Self {
        let mine = export.end_epoch(attachment.name(), epoch);
        let step = if mine { Step::Drain } else { Step::Ended(Ok(())) };
        Self { export, attachment, epoch, index, step }
    }

    /// Moves on. `Some` when the close has ended; an error leaves the record as not clean.
    pub fn poll(&mut self, services: &Services, now_ns: u64) -> Option<Result<(), Refusal>> {
        // Each step leads to a later one, so this ends.
        loop {
            let next = match &mut self.step {
                Step::Drain => {
                    if !self.export.is_drained(self.attachment.name(), self.epoch) {
                        return None;
                    }
                    self.open_for_flush(services)
                }
                Step::Flush { channel, ios, sent } => {
                    let status = flush(channel.as_mut(), ios, sent, now_ns)?;
                    self.after_flush(status)
                }
                Step::Record(ticket) => {
                    let result = ticket.result()?;
                    Step::Ended(result.map_err(|error| failed(error.to_string())))
                }
                Step::Ended(result) => return Some(result.clone()),
            };
            self.step = next;
        }
    }

    fn open_for_flush(&self, services: &Services) -> Step {
        let open = Open { services, attachment: &self.attachment, index: self.index, depth: 1 };
        match self.export.volume().open(&open) {
            Ok(channel) => Step::Flush { channel, ios: io_table(1), sent: false },
            Err(error) => Step::Ended(Err(failed(error.to_string()))),
        }
    }

    fn after_flush(&self, status: Status) -> Step {
        if status != Status::Done {
            let text = format!("volume {}: the closing flush failed", self.export.name());
            return Step::Ended(Err(failed(text)));
        }
        match self.export.write_clean(self.attachment.name(), self.epoch) {
            Some(ticket) => Step::Record(ticket),
            None => Step::Ended(Ok(())),
        }
    }

    /// Before the sidecore sleeps.
    pub fn arm(&mut self, wake: &mut Wake, now_ns: u64) -> Progress {
        wake.at(now_ns + LOOK_AGAIN_NS);
        match &mut self.step {
            Step::Flush { channel, .. } => channel.arm(wake),
            Step::Drain | Step::Record(_) | Step::Ended(_) => Progress::Idle,
        }
    }
}

fn failed(text: String) -> Refusal {
    Refusal::new(Outcome::Error, text)
}

/// Sends one flush and waits for it.
fn flush(
    channel: &mut dyn Channel,
    ios: &mut IoTable,
    sent: &mut bool,
    now_ns: u64,
) -> Option<Status> {
    if !*sent {
        let id = ios.take().expect("the table has one slot and this is its first use");
        ios[id].reset();
        ios[id].op = Op::Flush;
        channel.submit(ios, id);
        *sent = true;
    }
    let mut done = Vec::with_capacity(1);
    let _ = channel.poll(ios, now_ns, &mut done);
    done.first().map(|&id| ios[id].status)
}
