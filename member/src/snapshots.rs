//! The change of a volume's snapshots that an operator has asked for. A member has one at a time.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use replica::{ClientId, RequestId, SnapshotChange};

/// The end of a change of the snapshots: done on all copies in sync, or why this node's copy has
/// not made it.
pub type SnapshotEnd = Result<(), String>;

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

    /// Begins a change; its end comes by the channel. None while another one is under way.
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

    /// The change has ended so.
    pub(crate) fn end(&mut self, end: SnapshotEnd) {
        if let Some(pending) = self.pending.take() {
            // A requester that waits no longer needs no end.
            let _ = pending.end.try_send(end);
        }
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
        desk.end(Ok(()));
        assert_eq!(ends.recv(), Ok(Ok(())));
        // The next change is another request, and one that is given up has no end.
        let ends = desk.begin(take("b")).expect("none is under way");
        assert_ne!(desk.request().map(|(id, _)| id), Some(id));
        assert!(!desk.is_its(id));
        desk.give_up();
        assert!(ends.recv().is_err());
    }
}
