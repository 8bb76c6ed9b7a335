//! The table of segments: its lists and counts are those of a look at each segment.

use random::Random;

use crate::engine::segments::SegmentTable;
use crate::format::{BlockPlace, SegmentId};
use crate::map::LiveBlocks;

fn step(table: &mut SegmentTable, written: &mut Vec<SegmentId>, random: &mut Random, now: u64) {
    let blocks = table.segment_blocks();
    let Some(&id) = written.get(random.below(written.len() as u64 + 1) as usize) else {
        if let Some(id) = table.take() {
            written.push(id);
        }
        return;
    };
    let place = BlockPlace { segment: id, block: random.below(blocks.into()) as u16 };
    let sectors = if random.one_in(2) { 8 } else { random.between(1, 8) as u8 };
    match random.below(14) {
        0 => table.close(id),
        1 => table.collected(id, true),
        2 => table.collected(id, false),
        3 if random.one_in(4) => table.reopen_collected(),
        4 => {
            let freed: Vec<_> = table.emptied(now).collect();
            table.release(&freed);
            written.retain(|id| !freed.contains(id));
        }
        5 if table.live_in(id) > 3 => {
            (0..table.live_in(id) / 2).for_each(|_| table.lose(place, sectors));
        }
        6..9 => table.lose(place, sectors),
        9 => table.note_ordered(id),
        10 => {
            let freed: Vec<_> = table.emptied_by_log(now).collect();
            table.release_early(&freed, now);
            written.retain(|id| !freed.contains(id));
            if random.one_in(4) {
                table.settle_early();
            }
        }
        _ => {
            let end = (table.filled(id) + 1).min(blocks);
            table.note_row(id, end, now + random.below(3));
            if table.live_in(id) / 8 < table.filled(id) {
                table.gain(place, sectors);
            }
        }
    }
}

#[test]
fn lists_and_counts_follow_each_change() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let blocks = random.between(8, 200) as u32;
        let mut table = SegmentTable::new(blocks, &[6, 3]);
        let mut written = Vec::new();
        for now in 1..2000 {
            step(&mut table, &mut written, &mut random, now);
            table.check(now);
        }
        let records = table.records(2000, &[]);
        let mut restored = SegmentTable::new(blocks, &[6, 3]);
        restored.restore(&records, 2000).expect("records of a table");
        restored.check(2000);
        assert_eq!((restored.live(), restored.packed()), (table.live(), table.packed()));
    }
}
