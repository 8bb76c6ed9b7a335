//! A member's state, for people.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use replica::{MEMBERS_MAX, MemberId};

use crate::damage::DamageBook;
use crate::scrub::{ScrubBook, ScrubView};

/// The members that are filled, and how much of what they lack they have, in percent.
pub(crate) type FilledPercent = [Option<(MemberId, u8)>; MEMBERS_MAX];

/// A member's part in its volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemberPart {
    /// It is not in sync: it waits for the member that serves, or gets what it lacks.
    #[default]
    Outside,
    /// It is in sync, and another member serves.
    Backup,
    /// It is the next to serve, and makes the members equal.
    TakesOver,
    /// It serves.
    Serves,
    /// It has stopped.
    Failed,
}

/// The state of a member at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberView {
    /// Its part.
    pub part: MemberPart,
    /// The node that serves by the newest record that it knows.
    pub primary: Option<String>,
    /// The epoch of that record; 0 if it knows none.
    pub epoch: u64,
    /// The nodes of the members in sync.
    pub in_sync: Vec<String>,
    /// For a backup: it has stored the first operations of the member that serves, which has said
    /// with them that all members in sync are equal.
    pub follows: bool,
    /// The nodes of the copies that this member fills, with the percent that they have.
    pub filling: BTreeMap<String, u8>,
    /// Why it does not go on at the moment: its pool takes no changes, and the change is tried
    /// again, or the registry does not say which member serves.
    pub waits: Option<String>,
    /// Why it has stopped.
    pub failed: Option<String>,
    /// The bytes of damaged blocks that it has repaired from other members.
    pub repaired_bytes: u64,
    /// The offsets of blocks that no member in sync can read, as far as this member has met them
    /// and has a place for their names.
    pub lost: Vec<u64>,
    /// The scrub that is under way, or the last one since this member serves.
    pub scrub: Option<ScrubView>,
}

/// A member's state, shared with the threads that show it.
#[derive(Debug, Default)]
pub struct MemberStatus {
    view: Mutex<MemberView>,
    /// The member's own: it changes while the member's state does not.
    damage: Arc<DamageBook>,
    scrubs: Arc<ScrubBook>,
}

impl MemberStatus {
    /// The state now.
    pub fn view(&self) -> MemberView {
        let (repaired_bytes, lost) = (self.damage.repaired_bytes(), self.damage.lost());
        let scrub = self.scrubs.view();
        MemberView { repaired_bytes, lost, scrub, ..self.view.lock().clone() }
    }

    pub(crate) fn set(&self, view: MemberView) {
        *self.view.lock() = view;
    }

    pub(crate) fn damage(&self) -> &Arc<DamageBook> {
        &self.damage
    }

    pub(crate) fn scrubs(&self) -> &Arc<ScrubBook> {
        &self.scrubs
    }
}

/// Why records cannot be written here.
pub(crate) fn not_here(elsewhere: &str) -> String {
    match elsewhere {
        "" => "no node is known that serves the volume now".to_owned(),
        node => format!("{node} serves the volume now"),
    }
}
