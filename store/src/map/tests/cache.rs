//! Pages in memory, by themselves.

use crate::block::Block;
use crate::map::cache::MapCache;
use crate::map::{MapPage, MapPass};

fn insert(cache: &mut MapCache, number: u64) -> MapPage {
    let page = MapPage::Node(number);
    cache.insert(page, Box::new(Block::ZERO));
    page
}

fn change(cache: &mut MapCache, page: MapPage) {
    cache.set_dirty(page);
    cache.set_changed(page);
}

#[test]
fn the_write_of_a_page_that_is_gone_is_not_that_of_its_successor() {
    let mut cache = MapCache::new();
    let mut block = Block::ZERO;
    let page = insert(&mut cache, 1);
    change(&mut cache, page);
    let first = cache.copy_out(page, &mut block);
    assert!(cache.remove(page));
    assert!(!cache.is_written_as(page, first));
    insert(&mut cache, 1);
    change(&mut cache, page);
    let second = cache.copy_out(page, &mut block);
    assert!(!cache.is_written_as(page, first) && cache.is_written_as(page, second));
}

#[test]
fn a_pass_has_the_pages_that_were_dirty_when_it_began() {
    let mut cache = MapCache::new();
    let pages: Vec<_> = (1..=3).map(|number| insert(&mut cache, number)).collect();
    change(&mut cache, pages[1]);
    cache.begin_pass();
    change(&mut cache, pages[0]);
    let mut block = Block::ZERO;
    assert_eq!(cache.next_dirty(MapPass::Nodes), Some(pages[1]));
    assert_eq!(cache.next_dirty(MapPass::Tables(0)), None);
    cache.copy_out(pages[1], &mut block);
    assert_eq!(cache.next_dirty(MapPass::Nodes), None);
    // A change during the write comes with the next pass.
    cache.set_changed(pages[1]);
    assert!(!cache.finish_write(pages[1]));
    assert_eq!(cache.next_dirty(MapPass::Nodes), None);
    cache.begin_pass();
    for page in [pages[0], pages[1]] {
        assert_eq!(cache.next_dirty(MapPass::Nodes), Some(page));
        cache.copy_out(page, &mut block);
        assert!(cache.finish_write(page));
    }
    assert_eq!((cache.next_dirty(MapPass::Nodes), cache.dirty_len()), (None, 0));
}

#[test]
fn the_page_that_was_used_longest_ago_goes_first() {
    let mut cache = MapCache::new();
    let pages: Vec<_> = (1..=4).map(|number| insert(&mut cache, number)).collect();
    change(&mut cache, pages[0]);
    assert!(cache.touch(pages[1]).is_some());
    cache.evict(2);
    let left: Vec<_> = pages.iter().filter(|&&page| cache.contains(page)).collect();
    assert_eq!(left, [&pages[0], &pages[1]], "dirty, and used last");
    cache.evict(0);
    assert!(cache.contains(pages[0]) && cache.len() == 1);
    assert!(cache.touch(pages[1]).is_none());
}

/// Pages that are made and dropped between two checkpoints leave no trail in the queues.
#[test]
fn a_queue_forgets_pages_that_are_gone() {
    let mut cache = MapCache::new();
    for _ in 0..10_000 {
        let page = insert(&mut cache, 1);
        change(&mut cache, page);
        cache.remove(page);
    }
    assert!(cache.queued() <= 2000, "{} queued", cache.queued());
}
