//! The change of a volume's snapshots that an operator has asked for. A member has one at a time.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use replica::{ClientId, MemberId, Place, RequestId, SnapshotChange};

/// A change of the snapshots that all copies in sync have stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotDone {
    /// The snapshot's whole name.
    pub name: String,
    /// The nodes with copies that have left the change out: the nodes' logs say why.
    pub without: Vec<String>,
}

/// The end of a change of the snapshots, or why this node's copy has not made it.
pub type SnapshotEnd = Result<SnapshotDone, String>;

/// The name of the snapshot that was taken under this name at this place: no other snapshot of the
/// volume has it, on any node.
pub fn snapshot_name(name: &str, place: Place) -> String {
    format!("{name}.{}.{}", place.reign, place.counter)
}

/// A change that is under way. When it is dropped, its requester hears that the end is not known.
#[derive(Debug)]
struct PendingSnapshot {
    id: RequestId,
    change: SnapshotChange,
    /// The protocol must be asked: it has not been, or it had no room.
    again: bool,
    end: SyncSender<SnapshotEnd>,
}

/// The changes of the snapshots of one member.
#[derive(Debug)]
pub(crate) struct SnapshotDesk {
    client: ClientId,
    /// Changes so far: a change that has failed is never asked for under its number again.
    count: u64,
    pending: Option<PendingSnapshot>,
}

impl SnapshotDesk {
    /// For a member that asks the protocol as this client.
    pub(crate) fn new(client: ClientId) -> Self {
        Self { client, count: 0, pending: None }
    }

    /// Begins a change; its end comes by the channel. None while another change is under way.
    pub(crate) fn begin(&mut self, change: SnapshotChange) -> Option<Receiver<SnapshotEnd>> {
        if self.pending.is_some() {
            return None;
        }
        self.count += 1;
        let id = RequestId { client: self.client, number: self.count };
        let (end, ends) = sync_channel(1);
        self.pending = Some(PendingSnapshot { id, change, again: true, end });
        Some(ends)
    }

    /// The request that the protocol must be given now.
    pub(crate) fn request(&mut self) -> Option<(RequestId, SnapshotChange)> {
        let pending = self.pending.as_mut()?;
        std::mem::take(&mut pending.again).then(|| (pending.id, pending.change.clone()))
    }

    /// The protocol had no room: it is asked once more.
    pub(crate) fn put_off(&mut self) {
        if let Some(pending) = &mut self.pending {
            pending.again = true;
        }
    }

    pub(crate) fn is_its(&self, id: RequestId) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.id == id)
    }

    /// The change has ended. `last` has the place of the last change of the snapshots, and the
    /// members that have left it out; `left_out` says why this member has.
    pub(crate) fn end(
        &mut self,
        last: Option<(Place, Vec<MemberId>)>,
        left_out: Option<&str>,
        nodes: &BTreeMap<MemberId, String>,
    ) {
        let (Some(pending), Some((place, without))) = (self.pending.take(), last) else { return };
        let name = match pending.change {
            SnapshotChange::Take { name, .. } => snapshot_name(&name, place),
            SnapshotChange::Remove { name } => name,
        };
        let without = without.iter().filter_map(|id| nodes.get(id).cloned()).collect();
        let end = match left_out {
            None => Ok(SnapshotDone { name, without }),
            Some(why) => Err(why.to_owned()),
        };
        // A requester that waits no longer needs no end.
        let _ = pending.end.try_send(end);
    }

    /// The end of the change is not known: the member serves no longer.
    pub(crate) fn give_up(&mut self) {
        self.pending = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_asked_for_once_unless_there_was_no_room_and_has_one_end() {
        let mut desk = SnapshotDesk::new(ClientId::default());
        let take = |name: &str| SnapshotChange::Take { name: name.to_owned(), at_s: 7 };
        assert_eq!(desk.request(), None);
        let ends = desk.begin(take("a")).expect("none is under way");
        assert!(desk.begin(take("b")).is_none());
        let (id, change) = desk.request().expect("it was not asked for");
        assert_eq!((change, desk.request()), (take("a"), None));
        desk.put_off();
        assert_eq!(desk.request(), Some((id, take("a"))));
        assert!(desk.is_its(id));
        let place = Place { reign: 3, counter: 71 };
        let nodes = [(1, "io2".to_owned())].into();
        desk.end(Some((place, vec![1])), None, &nodes);
        let done = SnapshotDone { name: "a.3.71".to_owned(), without: vec!["io2".to_owned()] };
        assert_eq!(ends.recv(), Ok(Ok(done)));
        // The next change is another request, and a change that is given up has no end.
        let ends = desk.begin(take("b")).expect("none is under way");
        assert_ne!(desk.request().map(|(id, _)| id), Some(id));
        assert!(!desk.is_its(id));
        desk.give_up();
        assert!(ends.recv().is_err());
    }
}
