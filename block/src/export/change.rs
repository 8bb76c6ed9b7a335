//! Changes of a volume's content that no client makes: it goes back to a snapshot, or gets smaller.
//!
//! A guest that waits for its node, which has stopped in order, holds no epoch. It has the content
//! of before in its memory, and its node may have it in a cache. So a change takes an epoch, as a
//! client would: such a guest does not go on, and a cache of before is not right for what follows.

use std::thread;
use std::time::{Duration, Instant};

use super::{EPOCH_END, Export, Holder};

/// How long the record of a change may take: a sync of a busy disk.
const RECORD_TIME_MAX: Duration = Duration::from_secs(10);

/// The pause between two looks at it.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Why the content was not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotChanged {
    /// The holders use the volume, or their nodes are away; no holder if requests are still on
    /// their way.
    InUse(Vec<Holder>),
    /// The change cannot be recorded.
    Record(String),
}

impl Export {
    /// Runs `f`, which makes the volume smaller or changes its content, while no client can begin
    /// to use it. It may wait for the records.
    ///
    /// # Errors
    /// Why `f` was not run.
    pub fn while_unused<R>(&self, f: impl FnOnce() -> R) -> Result<R, NotChanged> {
        // Set first: a claim that has passed the check is among the holders.
        if std::mem::replace(&mut self.state().shrinking, true) {
            return Err(NotChanged::InUse(self.holders()));
        }
        let holders = self.holders();
        // Without a holder, requests of an epoch that is over may still be on their way.
        let is_unused = holders.is_empty() && self.is_quiet();
        let result = match is_unused {
            true => self.take_epoch().map(|()| f()).map_err(NotChanged::Record),
            false => Err(NotChanged::InUse(holders)),
        };
        self.state().shrinking = false;
        result
    }

    /// Takes the next epoch for a change, durably, so that no earlier client goes on.
    fn take_epoch(&self) -> Result<(), String> {
        let ticket = {
            let mut state = self.state();
            if state.entries.values().all(|entry| entry.record.is_none()) {
                return Ok(());
            }
            let epoch = state.epoch_last.max(state.issued) + 1;
            if epoch >= EPOCH_END {
                return Err("the volume's epochs are used up".to_owned());
            }
            (state.epoch_last, state.issued, state.floor) = (epoch, epoch, epoch);
            self.records.forget(&[], epoch)
        };
        let until = Instant::now() + RECORD_TIME_MAX;
        loop {
            match ticket.result() {
                Some(result) => return result.map_err(|error| error.to_string()),
                None if Instant::now() >= until => {
                    let time_max_s = RECORD_TIME_MAX.as_secs();
                    return Err(format!("its record is not durable within {time_max_s} s"));
                }
                None => thread::sleep(LOOK_AGAIN),
            }
        }
    }
}
