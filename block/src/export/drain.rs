//! A node that is drained takes no new clients: which may still claim a volume of it.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::SeqCst;

use super::{Export, Refusal};
use crate::wire::Outcome;

impl Export {
    /// From now on no attachment of a peer gets an epoch, except those that hold one at this
    /// moment. These go on, also when their guests start anew: a guest that reboots is not new.
    /// `false` admits every client again.
    pub fn set_draining(&self, draining: bool) {
        let mut state = self.state();
        if !draining {
            state.stays = None;
        } else if state.stays.is_none() {
            let held = state.entries.iter().filter(|(_, it)| it.held.epoch.load(SeqCst) != 0);
            let stays: BTreeSet<_> = held.map(|(name, _)| name.clone()).collect();
            state.stays = Some(stays);
        }
    }

    /// Whether a peer's attachment may claim the volume now.
    ///
    /// # Errors
    /// [`Outcome::Refused`] for one that comes while the node is drained.
    pub(crate) fn check_drained(&self, attachment: &str) -> Result<(), Refusal> {
        let state = self.state();
        if state.stays.as_ref().is_none_or(|stays| stays.contains(attachment)) {
            return Ok(());
        }
        let text = format!(
            "the node of volume {} is drained and takes no new users; use another node, or end the \
             drain with `vrio node drain --undo` there",
            self.name
        );
        Err(Refusal::new(Outcome::Refused, text))
    }
}
