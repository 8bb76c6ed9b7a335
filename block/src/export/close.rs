//! The clean end of an attachment: end the epoch, drain, flush, remember.

use std::sync::Arc;

use sidecore::{Progress, Services, Wake};

use super::flush::Flushing;
use super::{Export, Refusal};
use crate::wire::Outcome;
use volume::Status;
use volume::record::Ticket;

/// How often a close that waits for others looks again.
const LOOK_AGAIN_NS: u64 = 1_000_000;

#[derive(Debug)]
enum CloseStep {
    Drain,
    Flush(Flushing),
    Record(Ticket),
    Ended(Result<(), Refusal>),
}

/// A close under way; its caller polls it.
#[derive(Debug)]
pub struct Closing {
    export: Arc<Export>,
    attachment: String,
    epoch: u64,
    step: CloseStep,
}

impl Closing {
    /// Ends `epoch` of the attachment and begins to close it. Closing an epoch that is over is
    /// done at once: the successor's claim has drained it.
    pub fn new(export: Arc<Export>, attachment: &str, epoch: u64) -> Self {
        let mine = export.end_epoch(attachment, epoch);
        let step = if mine { CloseStep::Drain } else { CloseStep::Ended(Ok(())) };
        Self { export, attachment: attachment.to_owned(), epoch, step }
    }

    /// Whether it is an attachment of this export.
    pub(crate) fn is_of(&self, export: &Arc<Export>) -> bool {
        Arc::ptr_eq(&self.export, export)
    }

    /// Moves on. `Some` when the close has ended; an error leaves the record as not clean.
    pub fn poll(&mut self, services: &Services, now_ns: u64) -> Option<Result<(), Refusal>> {
        // Each step leads to a later one, so this ends.
        loop {
            let next = match &mut self.step {
                CloseStep::Drain => {
                    if !self.export.is_drained(&self.attachment, self.epoch) {
                        return None;
                    }
                    match Flushing::new(&**self.export.volume(), services) {
                        Ok(flushing) => CloseStep::Flush(flushing),
                        Err(error) => CloseStep::Ended(Err(failed(error.to_string()))),
                    }
                }
                CloseStep::Flush(flushing) => {
                    let status = flushing.poll(now_ns)?;
                    self.after_flush(status)
                }
                CloseStep::Record(ticket) => {
                    let result = ticket.result()?;
                    CloseStep::Ended(result.map_err(|error| failed(error.to_string())))
                }
                CloseStep::Ended(result) => return Some(result.clone()),
            };
            self.step = next;
        }
    }

    fn after_flush(&self, status: Status) -> CloseStep {
        if status != Status::Done {
            let text = format!("volume {}: the closing flush failed", self.export.name());
            return CloseStep::Ended(Err(failed(text)));
        }
        match self.export.write_clean(&self.attachment, self.epoch) {
            Some(ticket) => CloseStep::Record(ticket),
            None => CloseStep::Ended(Ok(())),
        }
    }

    /// Before the sidecore sleeps.
    pub fn arm(&mut self, wake: &mut Wake, now_ns: u64) -> Progress {
        wake.at(now_ns + LOOK_AGAIN_NS);
        match &mut self.step {
            CloseStep::Flush(flushing) => flushing.arm(wake),
            CloseStep::Drain | CloseStep::Record(_) | CloseStep::Ended(_) => Progress::Idle,
        }
    }
}

fn failed(text: String) -> Refusal {
    Refusal::new(Outcome::Error, text)
}
