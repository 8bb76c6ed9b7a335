//! Encrypted volumes: keys, tampering, copies of a pool, and the contents of the medium.

use std::collections::BTreeMap;

use super::pool::TestPool;
use crate::api::{Admission, PoolChange, PoolError, QuotaWait, VolumeId};
use crate::block::BLOCK_BYTES;
use crate::format::{LogRecord, RowHead};
use seal::{SealEntropy, WrappingKey};

fn key(byte: u8) -> WrappingKey {
    WrappingKey::new(&format!("key {byte}"), &[byte; 64])
}

fn entropy(byte: u8) -> SealEntropy {
    SealEntropy::new([byte; SealEntropy::BYTES].into())
}

fn sealed(pool: &mut TestPool, name: &str) -> VolumeId {
    sealed_of(pool, name, 64)
}

fn sealed_of(pool: &mut TestPool, name: &str, blocks: u64) -> VolumeId {
    let change = pool.engine.sealed_volume(name, blocks, &key(1), &entropy(name.as_bytes()[0]));
    let volume = pool.change(change).expect("a volume");
    pool.engine.unlock(volume, &key(1)).expect("its key");
    volume
}

/// The sealed pages on the medium: salt, number and sequence, and the content.
fn pages(pool: &TestPool) -> BTreeMap<(u64, u64, u64), Vec<u8>> {
    let mut pages = BTreeMap::new();
    for blocks in &pool.devices.blocks {
        for (at, block) in blocks.iter().enumerate() {
            let Ok(head) = RowHead::decode(&[7; 16], block) else { continue };
            let with_payload = head.records.iter().filter(|record| record.has_payload());
            for (record, page) in with_payload.zip(&blocks[at + 1..]) {
                if let LogRecord::Sealed { number, .. } | LogRecord::Resealed { number, .. } =
                    *record
                {
                    pages.insert((head.salt, number, head.sequence), page.0.to_vec());
                }
            }
        }
    }
    pages
}

#[test]
fn a_copy_of_a_pool_that_is_written_as_well_uses_no_nonce_again() {
    let mut pool = TestPool::new(1, 64, 32);
    let volume = sealed(&mut pool, "a");
    pool.write(volume, 0, 8, 1).expect("a write");
    pool.flush();
    let copy = pool.devices.clone();
    let mut all = pages(&pool);
    for (devices, salt) in [(pool.devices.clone(), 21), (copy, 22)] {
        let mut pool = TestPool::open(devices, salt).expect("it opens");
        assert!(matches!(pool.write(volume, 0, 8, 7), Err(PoolError::Locked { .. })));
        pool.engine.unlock(volume, &key(1)).expect("its key");
        pool.write(volume, 0, 8, salt).expect("a write");
        for (at, page) in pages(&pool) {
            let before = all.entry(at).or_insert_with(|| page.clone());
            assert!(*before == page, "{at:?} has two contents");
        }
    }
    assert!(all.len() >= 24, "{} pages", all.len());
}

#[test]
fn a_page_that_was_changed_is_an_error_and_never_data() {
    let mut pool = TestPool::new(1, 64, 32);
    let volume = sealed(&mut pool, "a");
    pool.write(volume, 3, 1, 9).expect("a write");
    pool.flush();
    assert!(pool.read(volume, 3, 1).is_ok());
    let [page] = pages(&pool).into_values().collect::<Vec<_>>().try_into().expect("one page");
    for blocks in &mut pool.devices.blocks {
        for block in blocks.iter_mut().filter(|block| block.0[..] == page[..]) {
            block.0[BLOCK_BYTES / 2] ^= 1;
        }
    }
    assert_eq!(pool.read(volume, 3, 1), Err(PoolError::Damaged { block: 3 }));
    assert_eq!(pool.engine.status().counters.damaged_blocks, 1);
}

#[test]
fn keys_change_and_volumes_are_shredded() {
    let mut pool = TestPool::new(1, 64, 32);
    let volume = sealed(&mut pool, "a");
    pool.write(volume, 0, 20, 1).expect("a write");
    let snapshot = pool.snapshot(volume, "s");
    let content = pool.read(volume, 0, 20).expect("data");

    let change = pool.engine.rewrapped(volume, &key(2), &[entropy(5)]).expect("a change");
    pool.change(change).expect("another wrapping key");
    let wrong = pool.engine.unlock(volume, &key(1));
    assert!(matches!(wrong, Err(PoolError::WrongKey { .. })), "{wrong:?}");
    let change = pool.engine.rekeyed(volume, &key(2), &entropy(6)).expect("a change");
    pool.change(change).expect("another data key");
    assert!(pool.engine.rekeyed(volume, &key(1), &entropy(7)).is_err());
    pool.rest();
    let seal = pool.engine.volumes().into_iter().find_map(|it| it.seal).expect("encrypted");
    assert_eq!((seal.version, seal.is_resealing, seal.old_blocks), (2, false, 0));
    assert_eq!(pool.read(snapshot, 0, 20).as_ref(), Ok(&content));

    let mut pool = pool.close_and_open(33);
    pool.engine.unlock(snapshot, &key(2)).expect("its key");
    assert_eq!(pool.read(volume, 0, 20), Ok(content));
    let refused = pool.change(PoolChange::Shred { volume, all: false });
    assert!(refused.is_err_and(|error| error.to_string().contains("a@s")));
    pool.change(PoolChange::Shred { volume, all: true }).expect("all of them go");
    pool.rest();
    assert!(pool.engine.volumes().is_empty() && pool.engine.status().data_blocks == 0);
}

/// Two changes are planned before either is made, as by two people at once.
#[test]
fn only_the_data_key_that_the_catalog_has_is_used() {
    let mut pool = TestPool::new(1, 64, 32);
    let volume = sealed(&mut pool, "a");
    pool.write(volume, 0, 8, 1).expect("a write");
    let first = pool.engine.rekeyed(volume, &key(1), &entropy(5)).expect("a change");
    let second = pool.engine.rekeyed(volume, &key(1), &entropy(6)).expect("a change");
    let other = pool.engine.rewrapped(volume, &key(2), &[entropy(7), entropy(8)]);
    let other = other.expect("a change");
    pool.change(first).expect("another data key");
    assert!(matches!(pool.change(second), Err(PoolError::Invalid(_))), "it has that version");
    assert!(matches!(pool.change(other), Err(PoolError::Invalid(_))), "one key is missing");
    pool.write(volume, 8, 8, 2).expect("a write");
    pool.rest();
    // All that is kept under the new data key opens with what the pool has.
    let mut pool = pool.close_and_open(31);
    pool.engine.unlock(volume, &key(1)).expect("its key");
    assert_eq!(pool.read(volume, 7, 2), Ok(vec![1, 2]));
    // A data key that was planned under the wrapping key of before is refused.
    let planned = pool.engine.rekeyed(volume, &key(1), &entropy(9)).expect("a change");
    let change = pool.engine.rewrapped(volume, &key(2), &[entropy(10)]).expect("a change");
    pool.change(change).expect("another wrapping key");
    assert!(matches!(pool.change(planned), Err(PoolError::Invalid(_))), "no key would open both");
    let mut pool = pool.close_and_open(32);
    pool.engine.unlock(volume, &key(2)).expect("its key");
    assert_eq!(pool.read(volume, 7, 2), Ok(vec![1, 2]));
}

/// Sealed writes count for the limit of their volume, also before they are applied.
#[test]
fn an_encrypted_volume_has_a_limit() {
    let mut pool = TestPool::new(1, 300, 32);
    let (volume, other) = (sealed_of(&mut pool, "a", 9_000), sealed_of(&mut pool, "b", 9_000));
    let limit = PoolChange::Quota { volume, reservation: 0, limit: Some(1_000) };
    pool.change(limit).expect("a limit");
    for block in (0..1_000).step_by(20) {
        pool.write(volume, block, 20, 1).expect("there is room");
    }
    // Without an answer of a device, nothing of these is applied.
    let mut taken = 0;
    for block in 1_000..9_000 {
        let tag = pool.tag();
        let write = pool.engine.write(tag, volume, block, 1, &mut |_, page| page.0.fill(1));
        if write == Admission::Busy {
            pool.engine.poll(pool.now_ns);
            let again = pool.engine.write(tag, volume, block, 1, &mut |_, page| page.0.fill(1));
            if again == Admission::Busy {
                break;
            }
        }
        taken += 1;
    }
    let wait = |pool: &TestPool, id| {
        let listed = pool.engine.volumes().into_iter().find(|it| it.id == id);
        let listed = listed.expect("it is there");
        (listed.owned_blocks, listed.wait)
    };
    assert!(taken <= 1_024, "{taken} blocks are under way");
    assert_eq!(wait(&pool, volume), (1_000, Some(QuotaWait::Limit)));
    for _ in 0..100 {
        pool.round();
    }
    assert_eq!(wait(&pool, volume), (1_000 + taken, Some(QuotaWait::Limit)));
    pool.write(other, 0, 100, 5).expect("a neighbour goes on");
    assert_eq!(wait(&pool, other), (100, None));
    // Pages that are sealed anew are the same pages, and their volume's limit does not stop that.
    let change = pool.engine.rekeyed(volume, &key(1), &entropy(5)).expect("a change");
    pool.change(change).expect("another data key");
    pool.rest();
    assert_eq!(wait(&pool, volume).0, 1_000 + taken);
    assert!(
        !pool.engine.volumes().iter().any(|it| it.seal.as_ref().is_some_and(|s| s.is_resealing))
    );
    let mut pool = pool.close_and_open(31);
    assert_eq!(wait(&pool, volume).0, 1_000 + taken);
    // A removal needs no key, and gives all of it back.
    pool.change(PoolChange::Remove { volume }).expect("a removal");
    pool.rest();
    assert_eq!(pool.engine.status().data_blocks, 100);
}

/// A damaged page stays under its old data key, until its block is written: then the key goes.
#[test]
fn the_last_page_of_an_old_data_key_may_go_by_a_write() {
    let mut pool = TestPool::new(1, 64, 32);
    let volume = sealed(&mut pool, "a");
    pool.write(volume, 0, 20, 1).expect("a write");
    pool.write(volume, 20, 1, 2).expect("a write");
    pool.flush();
    let (_, page) = pages(&pool).pop_last().expect("the last page");
    let blocks = pool.devices.blocks.iter_mut().flatten();
    blocks.filter(|block| block.0[..] == page[..]).for_each(|block| block.0[9] ^= 1);
    let change = pool.engine.rekeyed(volume, &key(1), &entropy(5)).expect("a change");
    pool.change(change).expect("another data key");
    pool.rest();
    let seal = |pool: &TestPool| {
        let seal = pool.engine.volumes().into_iter().find_map(|it| it.seal).expect("encrypted");
        (seal.is_resealing, seal.old_blocks)
    };
    assert_eq!(seal(&pool), (true, 1));
    let change = pool.engine.rekeyed(volume, &key(1), &entropy(6));
    assert!(change.is_err() || pool.change(change.expect("it is")).is_err(), "two old keys");
    pool.write(volume, 20, 1, 3).expect("a write");
    pool.rest();
    assert_eq!(seal(&pool), (false, 0));
    assert_eq!(pool.read(volume, 19, 2), Ok(vec![1, 3]));
}
