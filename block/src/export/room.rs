//! Which attachments a volume remembers, when there are more than it can.
//!
//! Names come from peers, so each node has a part of them ([`Share`]): a node that claims names
//! without an end fills its own part, and what other nodes' guests build on stays.

use transport::Share;

use super::judge::THIS_NODE;
use super::{Export, ExportState, Refusal};
use crate::wire::Outcome;
use volume::name::Name;
use volume::record::Record;

impl ExportState {
    /// Forgets the attachments of the oldest epochs that `may_go` picks, at most `count`, but none
    /// that has a channel or requests on their way. Their clients are refused by the floor.
    fn forget_oldest(&mut self, count: usize, may_go: impl Fn(&Record) -> bool) -> Vec<String> {
        let mut over: Vec<(u64, String)> = Vec::new();
        for (name, entry) in &mut self.entries {
            let Some(record) = entry.record.filter(&may_go) else { continue };
            if !entry.is_live() && entry.drained(|_| true) {
                over.push((record.epoch, name.clone()));
            }
        }
        over.sort_unstable();
        over.truncate(count);
        for (epoch, name) in &over {
            self.floor = self.floor.max(*epoch);
            self.entries.remove(name);
        }
        over.into_iter().map(|(_, name)| name).collect()
    }

    /// How many attachments a node has: those that it claimed last.
    fn held_by(&self, node: Name) -> usize {
        let records = self.entries.values().filter_map(|entry| entry.record);
        records.filter(|record| record.node == node).count()
    }

    /// The nodes that have any.
    fn nodes(&self) -> Vec<Name> {
        let mut nodes = Vec::new();
        for record in self.entries.values().filter_map(|entry| entry.record) {
            if !nodes.contains(&record.node) {
                nodes.push(record.node);
            }
        }
        nodes
    }

    /// Of a volume with one user at a time those go that another attachment has claimed after,
    /// since their guests cannot be resumed. Half of them, so that it is rare.
    fn make_room_of_one_user(&mut self, max: usize) -> Vec<String> {
        if self.entries.len() < max {
            return Vec::new();
        }
        let (last, count) = (self.epoch_last, self.entries.len() - (max - 1) / 2);
        self.forget_oldest(count, |record| record.epoch < last)
    }

    /// Of a shared volume, those that ended clean go: one of the node's own where it has its part,
    /// and else one that no other node of the volume counts on.
    fn make_room_of_many(
        &mut self,
        max: usize,
        node: Name,
        is_node_of_it: impl Fn(Name) -> bool,
    ) -> Room {
        let held = self.held_by(node);
        let share = Share { max: max as u64, used: self.entries.len() as u64 };
        if share.admits(held as u64, 1) {
            return Room { is_there: true, forgotten: Vec::new() };
        }
        // In the place of one of its own, so its part does not grow.
        let own = self.forget_oldest(1, |record| record.clean && record.node == node);
        if !own.is_empty() {
            return Room { is_there: self.entries.len() < max, forgotten: own };
        }
        // Another node has more than half only by an older release, which knew no parts.
        let mut nodes = self.nodes();
        nodes.retain(|node| !is_node_of_it(*node) || self.held_by(*node) > max / 2);
        let forgotten =
            self.forget_oldest(1, |record| record.clean && nodes.contains(&record.node));
        let share = Share { used: self.entries.len() as u64, ..share };
        Room { is_there: share.admits(held as u64, 1), forgotten }
    }
}

/// The result of making room.
struct Room {
    is_there: bool,
    forgotten: Vec<String>,
}

impl Export {
    /// Makes room for one attachment more, claimed by `node`.
    pub(super) fn make_room(&self, state: &mut ExportState, node: &str) -> Result<(), Refusal> {
        let max = self.records.attachments_max();
        let room = if self.shared {
            let allow = self.allowed.list();
            state.make_room_of_many(max, Name::new(node), |node| {
                let node = node.as_str();
                node == THIS_NODE || allow.iter().any(|entry| entry.node == node)
            })
        } else {
            let forgotten = state.make_room_of_one_user(max);
            Room { is_there: state.entries.len() < max, forgotten }
        };
        if !room.forgotten.is_empty() {
            // Before the claim's own record, which is written behind it.
            let _ = self.records.forget(&room.forgotten, state.floor);
        }
        if room.is_there {
            return Ok(());
        }
        let held = state.held_by(Name::new(node));
        // A text that is too long for a reply is cut at its end.
        let text = format!(
            "{node} has {held} attachments of volume {}, its part of {max}, and none \
             is closed: detach disks there, or remove records here",
            self.name
        );
        Err(Refusal::new(Outcome::Refused, text))
    }
}
