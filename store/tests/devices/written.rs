//! The blocks that a pool writes to its devices, counted by kind: the heads of rows say them.

use std::fmt;

use store::block::Block;
use store::format::{LogRecord, RowHead, STREAMS, TableKind};

/// The kinds, and the words for them.
const KINDS: [&str; 10] = [
    "guests' pages",
    "their heads",
    "changes",
    "moved pages",
    "their heads",
    "nodes",
    "table of data",
    "table of nodes",
    "state",
    "heads of the map",
];

/// Counts of written blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WrittenBlocks([u64; KINDS.len()]);

impl WrittenBlocks {
    /// Counts a write to a device, unless it is a superblock's.
    pub(crate) fn note(&mut self, uuid: &[u8; 16], blocks: &[Block]) {
        let Ok(head) = RowHead::decode(uuid, &blocks[0]) else { return };
        let mut packed_blocks = u64::from(head.payload);
        for record in head.records.iter().filter(|record| record.has_payload()) {
            let kind = match record {
                LogRecord::Write { .. } | LogRecord::Sealed { .. } => 0,
                LogRecord::Change { .. } => 2,
                LogRecord::Node { .. } => 5,
                LogRecord::Table { kind: TableKind::Data, .. } => 6,
                LogRecord::Table { kind: TableKind::Nodes, .. } => 7,
                LogRecord::State { .. } => 8,
                // Packed pages share blocks.
                _ => continue,
            };
            self.0[kind] += 1;
            packed_blocks -= 1;
        }
        self.0[3] += packed_blocks;
        self.0[[1, 4, 9][usize::from(head.stream) % STREAMS]] += 1;
    }

    /// The blocks that were written after `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self(std::array::from_fn(|kind| self.0[kind] - before.0[kind]))
    }

    /// All of them, for each page of a guest.
    pub(crate) fn amplification(&self) -> f64 {
        self.0.iter().sum::<u64>() as f64 / self.0[0] as f64
    }

    /// Those of the map and of checkpoints' states, for each page of a guest.
    pub(crate) fn map_amplification(&self) -> f64 {
        self.0[5..].iter().sum::<u64>() as f64 / self.0[0] as f64
    }
}

impl fmt::Display for WrittenBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (all, map) = (self.amplification(), self.map_amplification());
        write!(f, "{all:.3} blocks for a block, {map:.3} of them for the map")?;
        for (kind, count) in KINDS.iter().zip(&self.0) {
            write!(f, "; {kind} {:.3}", *count as f64 / self.0[0] as f64)?;
        }
        Ok(())
    }
}
