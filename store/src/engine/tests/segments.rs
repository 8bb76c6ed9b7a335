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

/// A table with a written segment, whose last row is 5, and in which nothing is alive.
fn table_with_empty() -> (SegmentTable, SegmentId) {
    let mut table = SegmentTable::new(8, &[3]);
    let id = table.take().expect("a free segment");
    table.note_row(id, 8, 5);
    table.close(id);
    (table, id)
}

#[test]
fn the_log_frees_segments_of_pages_of_data_that_the_checkpoint_covers() {
    let (mut table, id) = table_with_empty();
    assert_eq!(table.emptied_by_log(9).count(), 0, "it may have pages of the map");
    table.note_ordered(id);
    assert_eq!(table.emptied_by_log(4).count(), 0, "its last row is behind the checkpoint");
    table.pin(id);
    assert_eq!(table.emptied_by_log(5).count(), 0, "it is being read");
    table.unpin(id);
    assert!(table.emptied_by_log(5).eq([id]));
    table.release_early(&[id], 4);
    assert_eq!(table.free_count(), 2, "it is not free by an older checkpoint");
    table.release_early(&[id], 5);
    assert_eq!((table.free_count(), table.sure_count()), (3, 2));
    assert_eq!(table.take(), Some(id), "it is used first");
    assert_eq!((table.free_count(), table.sure_count()), (2, 2));
    table.give_back(id);
    assert_eq!((table.free_count(), table.sure_count()), (3, 2));
    table.settle_early();
    assert_eq!((table.free_count(), table.sure_count()), (3, 3));
    table.check(5);
}

#[test]
fn a_replay_begins_a_segment_anew_that_the_log_had_freed() {
    let (mut table, id) = table_with_empty();
    let place = BlockPlace { segment: id, block: 7 };
    table.gain(place, 8);
    let mut restored = SegmentTable::new(8, &[3]);
    restored.restore(&table.records(5, &[]), 5).expect("records of a table");
    assert_eq!((restored.filled(id), restored.live_in(id), restored.live()), (8, 8, 1));
    restored.begin_again(id);
    restored.note_row(id, 3, 6);
    assert_eq!((restored.filled(id), restored.live_in(id), restored.live()), (3, 0, 0));
    restored.check(6);
}
