//! Which node serves a replicated volume: this node, or another node.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::{Entry, Export, ExportState, Refusal};
use crate::wire::Outcome;
use volume::record::RecordError;

/// How often a volume of this process began to be served by this node after another node.
static PLACES_TAKEN: AtomicU64 = AtomicU64::new(0);

/// Another number after each [`Export::tell_peers`] of this process: a server that has told its
/// peers since the last change has nothing to tell.
pub(crate) fn places_taken() -> u64 {
    PLACES_TAKEN.load(SeqCst)
}

impl Export {
    /// From now on another node serves the volume: no client gets an epoch here, and each holder
    /// loses its epoch and is told the node's name. An empty name says that the node is not known.
    /// Requests that were admitted complete. `None`: this node serves it.
    pub fn set_elsewhere(&self, node: Option<&str>) {
        let mut state = self.state();
        state.elsewhere = node.map(str::to_owned);
        if state.elsewhere.is_some() {
            state.moves = true;
            state.entries.values().for_each(Entry::end);
        }
    }

    /// From now on this node serves the volume, with the records that its store has by now: another
    /// node may have granted epochs meanwhile. No epoch that a record has, or that this guard has
    /// issued, is granted again. Clients of before have no epoch; a claim waits for their requests.
    ///
    /// # Errors
    /// When the records cannot be read: then the volume is served as before.
    pub fn serve_here(&self) -> Result<(), RecordError> {
        // Under the lock: no claim comes between the records and the word that they are right.
        let mut state = self.state();
        let (floor, records) = (self.records.floor()?, self.records.load()?);
        let old = std::mem::take(&mut state.entries);
        let gates = old.into_values().flat_map(|entry| {
            entry.end();
            entry.gates
        });
        let gates: Vec<_> = gates.filter(|gate| !gate.is_empty()).collect();
        state.leaving.extend(gates);
        state.floor = floor;
        // Epochs that were issued here and never were durable are no client's: a client with an
        // older one goes on. They are not issued again all the same.
        state.epoch_last = records.values().map(|record| record.epoch).fold(floor, u64::max);
        let entry = |record| Entry { record: Some(record), ..Entry::default() };
        let entries = records.into_iter().map(|(name, record)| (name, entry(record)));
        state.entries = entries.collect::<BTreeMap<_, _>>();
        state.elsewhere = None;
        drop(state);
        self.tell_peers();
        Ok(())
    }

    /// Has the servers tell their peers that this node serves the volume, or that it has changed:
    /// peers ask for its description again. A server that reads the new number finds it at the
    /// volume, so the volume's is stored first, and again if another volume was faster.
    pub fn tell_peers(&self) {
        let mut places = places_taken();
        loop {
            self.taken.store(places + 1, SeqCst);
            match PLACES_TAKEN.compare_exchange(places, places + 1, SeqCst, SeqCst) {
                Ok(_) => return,
                Err(now) => places = now,
            }
        }
    }

    /// Whether peers must hear of the volume that have heard of all until this value of
    /// [`places_taken`].
    pub(crate) fn was_taken_after(&self, places: u64) -> bool {
        self.taken.load(SeqCst) > places
    }

    /// Whether the volume may be served by other nodes at times: an epoch may be over without
    /// another client.
    pub(super) fn moves(&self) -> bool {
        self.state().moves
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
    /// Whether nothing is on its way that came while this node served the volume before.
    pub(super) fn has_left(&mut self) -> bool {
        self.leaving.retain(|gate| !gate.is_empty());
        self.leaving.is_empty()
    }

    pub(super) fn check_here(&self) -> Result<(), Refusal> {
        match &self.elsewhere {
            None => Ok(()),
            Some(node) => Err(Refusal::new(Outcome::Elsewhere, node)),
        }
    }
}
