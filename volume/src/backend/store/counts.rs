//! The counters of a pool.

use store::PoolStatus;

sidecore::counters! {
    /// The counters of a pool since it was opened.
    #[derive(Clone, Copy)]
    pub struct PoolCounts of u64 {
        guest_blocks: "Blocks of 4 KiB that guests have written.",
        guest_row_blocks: "Blocks that were written to devices for guests, heads of rows included.",
        moved_row_blocks: "Blocks that were written to devices for moved pages.",
        map_row_blocks: "Blocks that were written to devices for pages of the map.",
        moved_pages: "Pages that collection has moved, so that their segments are used again.",
        compressed_pages: "Pages that a codec has made smaller when they moved.",
        incompressible_pages: "Pages that moved and on which a codec gained nothing.",
        hashed_pages: "Blocks that were looked at for others with the same content.",
        compared_pages: "Those that were compared with another block.",
        different_pages: "Those that had another content than that block.",
        shared_pages: "Blocks that share the content of another one, or were zeroes.",
        collected_segments: "Segments that were collected.",
        checkpoints: "Checkpoints.",
        syncs: "Rounds of syncs of all devices.",
        map_hits: "Blocks that were looked up and had all of their pages of the map in memory.",
        map_misses: "Blocks that were looked up and waited for a page of the map.",
        map_loads: "Reads of pages of the map, which were not in memory.",
        damaged_blocks: "Blocks whose content did not match their check, on two reads.",
        rounds: "Rounds of the engine, by sidecores and by the pool's thread.",
        thread_rounds: "Rounds of the engine by the pool's thread: no sidecore was polling.",
        uring_enters: "Entries into the kernel for requests to the devices.",
    }
}

impl PoolCounts {
    /// The counts of an engine, of its rounds, those of the pool's thread behind all of them, and
    /// of the entries into the kernel.
    pub(super) fn of(
        status: &PoolStatus,
        [rounds, thread_rounds]: [u64; 2],
        uring_enters: u64,
    ) -> Self {
        let counted = &status.counters;
        Self {
            guest_blocks: counted.guest_blocks,
            guest_row_blocks: counted.guest_row_blocks,
            moved_row_blocks: counted.moved_row_blocks,
            map_row_blocks: counted.map_row_blocks,
            moved_pages: counted.moved_pages,
            compressed_pages: counted.compressed_pages,
            incompressible_pages: counted.incompressible_pages,
            hashed_pages: counted.hashed_pages,
            compared_pages: counted.compared_pages,
            different_pages: counted.different_pages,
            shared_pages: counted.shared_pages,
            collected_segments: counted.collected_segments,
            checkpoints: counted.checkpoints,
            syncs: counted.syncs,
            map_hits: counted.map_hits,
            map_misses: counted.map_misses,
            map_loads: counted.map_loads,
            damaged_blocks: counted.damaged_blocks,
            rounds,
            thread_rounds,
            uring_enters,
        }
    }
}
