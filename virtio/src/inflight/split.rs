//! The records of a split ring's queue in its part of the inflight region.

use super::{AT_DESC_NUM, AT_VERSION, InflightQueue, VERSION};
use crate::error::InflightError;
use crate::ring::RingKind;
use crate::shared::{Area, Stores};

const HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 16;

const AT_LAST_BATCH_HEAD: usize = 12;
const AT_USED_IDX: usize = 14;
const ENTRY_INFLIGHT: usize = 0;
const ENTRY_NEXT: usize = 6;
const ENTRY_COUNTER: usize = 8;

/// The bytes of a queue's part.
pub(super) fn bytes(size: u16) -> usize {
    HEADER_BYTES + ENTRY_BYTES * usize::from(size)
}

/// Whether chains were given back.
pub(super) fn has_completed(queue: &InflightQueue) -> bool {
    queue.area.load_u16(AT_USED_IDX) != 0
}

/// The state that a queue finds in its part of the region when it starts.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// Chains that were taken and not given back, last one first.
    pub(crate) redo: Vec<u16>,
    /// Whether the region had been in use before.
    pub(crate) used_before: bool,
}

/// The part of a split ring.
///
/// ```text
///   0  features u64 (0)
///   8  version u16 (1; 0 = not made yet)   10 desc_num u16
///  12  last_batch_head u16                 14 used_idx u16
///  16  per descriptor: inflight u8, 5 unused, next u16, counter u64
/// ```
///
/// Taking: counter, then inflight = 1. Giving back: used elements and the list of the batch, then
/// the used ring's index, then inflight = 0 for all of the batch, then used_idx. So a successor
/// sees from `used_idx` and the ring's index whether a batch was published whose marks were not
/// cleared yet, and clears them.
#[derive(Debug)]
pub(crate) struct SplitLog {
    area: Area,
    /// The number of the next chain.
    counter: u64,
    /// The last chain that joined a batch.
    last_staged: u16,
}

fn entry(head: u16, field: usize) -> usize {
    HEADER_BYTES + ENTRY_BYTES * usize::from(head) + field
}

impl SplitLog {
    /// Brings the region into step with the ring, of `size` descriptors and with `ring_used` in
    /// its used index, and finds out what has to be done again. May be stopped at any store and
    /// be done again.
    pub(crate) fn recover(
        queue: InflightQueue,
        stores: &mut Stores,
        size: u16,
        ring_used: u16,
    ) -> Result<(Self, Recovered), InflightError> {
        let used_before = queue.check(RingKind::Split, size)?;
        let mut log = Self { area: queue.area, counter: 0, last_staged: 0 };
        if !used_before {
            log.initialise(stores, size, ring_used);
            return Ok((log, Recovered { redo: Vec::new(), used_before }));
        }
        log.finish_batch(stores, size, ring_used)?;
        let mut entries: Vec<(u64, u16)> = (0..size)
            .filter(|&head| log.area.load_u8(entry(head, ENTRY_INFLIGHT)) != 0)
            .map(|head| (log.area.load_u64(entry(head, ENTRY_COUNTER)), head))
            .collect();
        entries.sort_unstable_by(|a, b| b.cmp(a));
        log.counter = entries.first().map_or(0, |&(counter, _)| counter.wrapping_add(1));
        let redo = entries.into_iter().map(|(_, head)| head).collect();
        Ok((log, Recovered { redo, used_before }))
    }

    /// The version comes last: a region that was stopped before that is made anew.
    fn initialise(&self, stores: &mut Stores, size: u16, ring_used: u16) {
        for head in 0..size {
            let mark = entry(head, ENTRY_INFLIGHT);
            if self.area.load_u8(mark) != 0 {
                stores.u8(&self.area, mark, 0);
            }
        }
        stores.u16(&self.area, AT_DESC_NUM, size);
        stores.u16(&self.area, AT_USED_IDX, ring_used);
        stores.u16(&self.area, AT_VERSION, VERSION);
    }

    /// If the last batch was published and its marks were perhaps not cleared: clears them.
    fn finish_batch(
        &self,
        stores: &mut Stores,
        size: u16,
        ring_used: u16,
    ) -> Result<(), InflightError> {
        let recorded = self.area.load_u16(AT_USED_IDX);
        let batch = ring_used.wrapping_sub(recorded);
        if batch == 0 {
            return Ok(());
        }
        if batch > size {
            return Err(InflightError::UsedIndex { recorded, ring: ring_used });
        }
        let mut head = self.area.load_u16(AT_LAST_BATCH_HEAD);
        for _ in 0..batch {
            if head >= size {
                return Err(InflightError::BatchList(head));
            }
            stores.u8(&self.area, entry(head, ENTRY_INFLIGHT), 0);
            head = self.area.load_u16(entry(head, ENTRY_NEXT));
        }
        stores.u16(&self.area, AT_USED_IDX, ring_used);
        Ok(())
    }

    /// A chain was taken.
    pub(crate) fn take(&mut self, stores: &mut Stores, head: u16) {
        stores.u64(&self.area, entry(head, ENTRY_COUNTER), self.counter);
        stores.u8(&self.area, entry(head, ENTRY_INFLIGHT), 1);
        self.counter = self.counter.wrapping_add(1);
    }

    /// A chain joins the batch that is published next.
    pub(crate) fn stage(&mut self, stores: &mut Stores, head: u16) {
        stores.u16(&self.area, entry(head, ENTRY_NEXT), self.last_staged);
        stores.u16(&self.area, AT_LAST_BATCH_HEAD, head);
        self.last_staged = head;
    }

    /// The batch was published: the ring's used index is `ring_used`.
    pub(crate) fn published(&self, stores: &mut Stores, batch: &[u16], ring_used: u16) {
        for &head in batch {
            stores.u8(&self.area, entry(head, ENTRY_INFLIGHT), 0);
        }
        stores.u16(&self.area, AT_USED_IDX, ring_used);
    }
}
