//! A copy of a replicated volume that another node serves.

use super::{Entry, Export, ExportState, Refusal};
use crate::wire::Outcome;

impl Export {
    /// From now on another node serves the volume: no client gets an epoch here, and each holder
    /// loses its epoch and is told the node's name. An empty name says that the node is not known.
    /// Requests that were admitted complete. `None`: this node serves it.
    pub fn set_elsewhere(&self, node: Option<&str>) {
        let mut state = self.state();
        state.elsewhere = node.map(str::to_owned);
        if state.elsewhere.is_some() {
            state.entries.values().for_each(Entry::end);
        }
    }

    /// Whether this node serves the volume.
    ///
    /// # Errors
    /// [`Outcome::Elsewhere`], whose text is the name of the node that does.
    pub(crate) fn check_here(&self) -> Result<(), Refusal> {
        self.state().check_here()
    }
}

impl ExportState {
    pub(super) fn check_here(&self) -> Result<(), Refusal> {
        match &self.elsewhere {
            None => Ok(()),
            Some(node) => Err(Refusal::new(Outcome::Elsewhere, node)),
        }
    }
}
