//! Endpoints of other hosts, in 16 bytes for each: a job may have 64 K.

use std::sync::Arc;

use crate::cell::Local;
use crate::endpoint::local_node::LocalNode;
use crate::region::{GATEWAYS_MAX, Region};

/// Bytes are counted in units, so that they need two bytes themselves.
const UNIT_BYTES: usize = 64;

/// Slots of a host that are made together.
const STEP: usize = 4;

/// The endpoint in a slot of another host, as far as it is known here.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Remote {
    /// The owner of the slot that the other fields are about.
    pub(crate) incarnation: u32,
    /// The last owner that is known to be gone.
    pub(crate) gone: u32,
    pub(crate) outstanding: u32,
    /// Bytes since the last mark, in units of [`UNIT_BYTES`].
    pub(crate) unmarked: u16,
    /// Marks that no gateway has answered.
    pub(crate) marks: u8,
    /// Its gateway was asked to say when it goes.
    pub(crate) asked: bool,
}

const _: () = assert!(size_of::<Remote>() == 16);

impl Remote {
    /// Counts bytes that are sent. Returns whether they make at least `mark_bytes` since the last
    /// mark.
    pub(crate) fn add_unmarked(&mut self, bytes: usize, mark_bytes: usize) -> bool {
        let units = u16::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u16::MAX);
        self.unmarked = self.unmarked.saturating_add(units);
        usize::from(self.unmarked) * UNIT_BYTES >= mark_bytes
    }

    /// A mark is sent.
    pub(crate) fn mark(&mut self) {
        self.unmarked = 0;
        // Answers are marked as well and wait for no credit.
        self.marks = self.marks.saturating_add(1);
    }
}

/// All endpoints that are known: of each host up to the highest slot that was met.
#[derive(Debug, Default)]
pub(crate) struct RemoteSlots(Vec<Vec<Remote>>);

impl RemoteSlots {
    /// The endpoint in a slot, if it was met.
    pub(crate) fn find(&self, local: Local) -> Option<&Remote> {
        self.0.get(usize::from(local.host))?.get(usize::from(local.slot))
    }

    /// The endpoint in a slot, to be changed; the slot is made if it was not met.
    pub(crate) fn get(&mut self, local: Local) -> &mut Remote {
        let (host, slot) = (usize::from(local.host), usize::from(local.slot));
        if self.0.len() <= host {
            self.0.resize_with(host + 1, Vec::new);
        }
        let slots = &mut self.0[host];
        if slots.len() <= slot {
            let more = (slot / STEP + 1) * STEP - slots.len();
            slots.reserve_exact(more);
            slots.resize(slots.len() + more, Remote::default());
        }
        &mut slots[slot]
    }

    /// Whether no endpoint was met.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The endpoints that requests wait for.
    pub(crate) fn waited_for(&self) -> impl Iterator<Item = (Local, &Remote)> {
        let hosts = self.0.iter().enumerate();
        let all = hosts.flat_map(|(host, slots)| {
            slots.iter().enumerate().map(move |(slot, remote)| {
                let (host, slot) = (host as u16, slot as u16);
                (Local { host, slot, incarnation: remote.incarnation }, remote)
            })
        });
        all.filter(|(_, remote)| remote.outstanding > 0)
    }

    /// The memory that the table takes.
    pub(crate) fn held_bytes(&self) -> usize {
        let slots = self.0.iter().map(|slots| slots.capacity() * size_of::<Remote>());
        self.0.capacity() * size_of::<Vec<Remote>>() + slots.sum::<usize>()
    }

    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn unanswered_marks(&self) -> u32 {
        self.0.iter().flatten().map(|remote| u32::from(remote.marks)).sum()
    }
}

/// All endpoints of other hosts, and the way to them.
#[derive(Debug, Default)]
pub(crate) struct Remotes {
    pub(crate) known: RemoteSlots,
    pub(crate) home: Option<Arc<dyn LocalNode>>,
    /// Requests may wait for an endpoint whose gateway was not asked yet to say when it goes.
    pub(crate) may_have_unasked: bool,
    /// The node is gone.
    pub(crate) orphaned: bool,
    /// While several cells are published: the gateways of these cells, which are woken when all
    /// cells are there. A gateway that shares this core would be woken for each cell otherwise.
    pub(crate) doorbells: Option<u64>,
}

// Each gateway has a bit.
const _: () = assert!(GATEWAYS_MAX as u32 <= u64::BITS);

impl Remotes {
    pub(crate) fn get(&mut self, local: Local) -> &mut Remote {
        self.known.get(local)
    }

    /// The node of this host.
    pub(crate) fn home(&self) -> Option<&Arc<dyn LocalNode>> {
        self.home.as_ref()
    }

    /// Whether requests wait for an endpoint whose gateway was not asked yet to say when it goes.
    pub(crate) fn has_unasked(&self) -> bool {
        !self.orphaned && self.may_have_unasked && self.known.waited_for().any(|(_, it)| !it.asked)
    }

    /// Turns to this owner of the slot; returns the owner before if requests were outstanding with
    /// it.
    pub(crate) fn meet(&mut self, local: Local) -> Option<Local> {
        let remote = self.get(local);
        if remote.incarnation == local.incarnation {
            return None;
        }
        let former = Local { incarnation: remote.incarnation, ..local };
        let had = remote.outstanding > 0;
        *remote = Remote { incarnation: local.incarnation, gone: remote.gone, ..Remote::default() };
        had.then_some(former)
    }

    /// A request waits for it.
    pub(crate) fn expect(&mut self, local: Local) {
        let remote = self.get(local);
        remote.outstanding += 1;
        let asked = remote.asked;
        self.may_have_unasked |= !asked;
    }

    pub(crate) fn settle(&mut self, local: Local) {
        let remote = self.get(local);
        if remote.incarnation == local.incarnation {
            remote.outstanding = remote.outstanding.saturating_sub(1);
        }
    }

    /// Whether it lives, as far as it is known here.
    #[inline]
    pub(crate) fn lives(&self, region: &Region, local: Local) -> bool {
        let is_gone = |remote: &Remote| remote.gone >= local.incarnation;
        let known = self.known.find(local);
        !self.orphaned && region.host(local.host).is_some() && !known.is_some_and(is_gone)
    }

    /// The memory that the tables take.
    pub(crate) fn held_bytes(&self) -> usize {
        self.known.held_bytes()
    }

    /// The endpoints that are gone and have requests outstanding.
    pub(crate) fn gone(&self, region: &Region) -> Vec<Local> {
        let locals = self.known.waited_for().map(|(local, _)| local);
        locals.filter(|local| !self.lives(region, *local)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_made_when_they_are_met() {
        let mut remotes = RemoteSlots::default();
        let local = |host, slot| Local { host, slot, incarnation: 2 };
        assert!(remotes.is_empty() && remotes.find(local(3, 5)).is_none());
        remotes.get(local(3, 5)).incarnation = 2;
        remotes.get(local(3, 5)).outstanding = 1;
        assert_eq!(remotes.get(local(1, 0)).outstanding, 0);
        let waited_for: Vec<_> = remotes.waited_for().map(|(local, _)| local).collect();
        assert_eq!(waited_for, [local(3, 5)]);
        assert!(remotes.find(local(3, 7)).is_some() && remotes.find(local(3, 8)).is_none());
    }

    #[test]
    fn a_job_of_64_k_takes_little_of_each_process() {
        let mut remotes = RemoteSlots::default();
        for host in 1..4096 {
            for slot in 1..=16 {
                remotes.get(Local { host, slot, incarnation: 1 });
            }
        }
        let each = remotes.held_bytes() / (4095 * 16);
        assert!(each <= 23, "{each} bytes of each");
    }

    #[test]
    fn sent_bytes_are_counted_to_the_next_mark() {
        let mut remote = Remote::default();
        assert!(!remote.add_unmarked(1000, 2048) && !remote.add_unmarked(960, 2048));
        assert!(remote.add_unmarked(1, 2048));
        remote.mark();
        assert!(!remote.add_unmarked(0, 64) && remote.add_unmarked(usize::MAX, 64));
        assert_eq!(remote.marks, 1);
    }
}
