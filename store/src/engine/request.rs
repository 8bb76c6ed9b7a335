//! Requests that change the pool, from their admission to their end.

use super::core::EngineCore;
use super::parts::PartialWrites;
use super::slab::TokenTable;
use crate::api::{PoolChange, PoolError, RequestTag, VolumeId};

/// The kind of a request that has records in rows.
#[derive(Debug)]
pub(crate) enum RequestKind {
    /// A write or a zeroed range.
    Blocks(RequestTag),
    /// The write of a merged block: the partial write.
    Part(u64),
    /// A change of the catalog; a change of the engine's own has no tag.
    Change(Option<RequestTag>, PoolChange),
}

#[derive(Debug)]
struct Request {
    kind: RequestKind,
    volume: VolumeId,
    records_left: u32,
    result: Result<(), PoolError>,
}

/// Requests with records in rows that are not applied, and requests that wait for a sync.
#[derive(Debug)]
pub(crate) struct Requests {
    table: TokenTable<Request>,
    /// Flushes and applied changes: their round, and how they end.
    syncing: Vec<(u64, RequestTag, VolumeId)>,
    /// A change is under way: the next one is checked against its effect.
    pub(crate) has_change: bool,
}

impl Requests {
    /// None.
    pub(crate) fn new() -> Self {
        Self { table: TokenTable::new(), syncing: Vec::new(), has_change: false }
    }

    /// How many are under way.
    pub(crate) fn len(&self) -> usize {
        self.table.len() + self.syncing.len()
    }

    /// Takes a request of so many records; its token.
    pub(crate) fn begin(&mut self, kind: RequestKind, volume: VolumeId, records: u32) -> u64 {
        self.has_change |= matches!(kind, RequestKind::Change(..));
        self.table.insert(Request { kind, volume, records_left: records, result: Ok(()) })
    }

    /// The change of a request.
    pub(crate) fn change(&mut self, token: u64) -> Option<PoolChange> {
        match &self.table.get_mut(token)?.kind {
            RequestKind::Change(_, change) => Some(change.clone()),
            _ => None,
        }
    }

    /// A record of a request was applied.
    pub(crate) fn applied(
        &mut self,
        core: &mut EngineCore,
        parts: &mut PartialWrites,
        token: u64,
        result: Result<(), PoolError>,
    ) {
        let Some(request) = self.table.get_mut(token) else { return };
        request.records_left -= 1;
        if result.is_err() {
            request.result = result;
        }
        if request.records_left > 0 {
            return;
        }
        let request = self.table.remove(token).expect("it is there");
        match (request.kind, request.result) {
            (RequestKind::Blocks(tag), result) => core.done(tag, result.map(|()| request.volume)),
            (RequestKind::Part(part), result) => parts.end(core, part, result),
            (RequestKind::Change(tag, _), Ok(())) => {
                let ticket = core.syncs.ticket();
                self.syncing.extend(tag.map(|tag| (ticket, tag, request.volume)));
                self.has_change = false;
            }
            (RequestKind::Change(tag, _), Err(error)) => {
                if let Some(tag) = tag {
                    core.done(tag, Err(error));
                }
                self.has_change = false;
            }
        }
    }

    /// A request that ends with the next round of syncs.
    pub(crate) fn flush(&mut self, core: &mut EngineCore, tag: RequestTag) {
        self.syncing.push((core.syncs.ticket(), tag, VolumeId(0)));
    }

    /// Ends requests whose round of syncs is done.
    pub(crate) fn poll(&mut self, core: &mut EngineCore) {
        self.syncing.retain(|&(ticket, tag, volume)| {
            let is_done = core.syncs.is_done(ticket);
            if is_done {
                core.done(tag, Ok(volume));
            }
            !is_done
        });
    }

    /// The pool is done with: every request ends.
    pub(crate) fn abandon(&mut self, core: &mut EngineCore, error: &PoolError) {
        for request in self.table.drain() {
            match request.kind {
                RequestKind::Blocks(tag) | RequestKind::Change(Some(tag), _) => {
                    core.done(tag, Err(error.clone()));
                }
                // The partial writes are told by their own table.
                RequestKind::Part(_) | RequestKind::Change(None, _) => {}
            }
        }
        for (_, tag, _) in self.syncing.drain(..) {
            core.done(tag, Err(error.clone()));
        }
        self.has_change = false;
    }
}
