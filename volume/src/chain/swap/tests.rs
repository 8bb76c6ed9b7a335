use std::num::NonZeroU64;

use super::*;
use crate::backend::MemoryVolume;
use crate::chain::Chain;
use crate::contract::held::HeldVolume;
use random::Random;

use crate::contract::{self, Buffer, ChannelBench};
use crate::stage::{Limit, Metering, StageConfig};
use crate::volume::{Durability, Op, Status};

const BYTES: u64 = 1 << 20;

fn memory() -> Arc<dyn Volume> {
    Arc::new(MemoryVolume::new(BYTES).expect("memory"))
}

fn limit(iops: u64) -> StageConfig {
    StageConfig::Limit(Limit { iops: NonZeroU64::new(iops), bytes_per_second: None, burst_ns: 0 })
}

/// Polls until the change is settled; gives how many rounds that took.
fn settle(swap: &Swap, bench: &mut ChannelBench) -> usize {
    for rounds in 0..10_000 {
        if swap.turning() == SwapProgress::Done {
            assert!(swap.settle());
            return rounds;
        }
        bench.round();
    }
    panic!("the change never came to an end: {:?}", swap.turning());
}

#[test]
fn keeps_the_contract_before_and_after_a_change() {
    let swap = Swap::new(memory());
    contract::check_all(&*swap);
    swap.begin(memory());
    assert!(swap.settle(), "nobody uses it");
    contract::check_all(&*swap);
}

#[test]
fn a_channel_turns_between_requests() {
    let (old, new) = (HeldVolume::new(BYTES), HeldVolume::new(BYTES));
    let swap = Swap::new(Arc::new(old.clone()));
    let mut bench = ChannelBench::new(&*swap, 8);
    let buffer = Buffer::new(512, 0);
    let first = bench.submit(Op::Write, 0, Some(&buffer));
    bench.round();
    swap.begin(Arc::new(new.clone()));
    bench.round();
    let second = bench.submit(Op::Write, 0, Some(&buffer));
    bench.round();
    assert_eq!(swap.turning(), SwapProgress::Left(1));
    assert_eq!((old.opened(), new.opened()), (1, 0), "the first has not completed");
    assert!(!swap.settle());
    old.answer_on(0, Status::Done);
    assert_eq!(bench.wait(first), Status::Done);
    settle(&swap, &mut bench);
    assert_eq!(new.opened(), 1);
    new.answer_on(0, Status::Done);
    assert_eq!(bench.wait(second), Status::Done);
    assert_eq!(old.asked(0), 0, "the second went by the new chain alone");
}

#[test]
fn a_change_that_is_taken_back_leaves_everything_as_it_was() {
    let (old, new) = (HeldVolume::new(BYTES), HeldVolume::new(BYTES));
    let swap = Swap::new(Arc::new(old.clone()));
    let (mut stuck, mut free) = (ChannelBench::new(&*swap, 8), ChannelBench::new(&*swap, 8));
    let buffer = Buffer::new(512, 0);
    let first = stuck.submit(Op::Write, 0, Some(&buffer));
    swap.begin(Arc::new(new.clone()));
    stuck.round();
    let second = stuck.submit(Op::Write, 512, Some(&buffer));
    free.round();
    assert_eq!(swap.turning(), SwapProgress::Left(1), "only the one that is stuck");
    let third = free.submit(Op::Write, 1024, Some(&buffer));
    free.round();
    swap.revert();
    stuck.round();
    assert_eq!(old.asked(0), 2, "what was held back goes by the old chain");
    assert_eq!(
        swap.turning(),
        SwapProgress::Left(1),
        "the other one has a request at the new chain"
    );
    new.answer_on(0, Status::Done);
    assert_eq!(free.wait(third), Status::Done);
    free.round();
    assert_eq!(swap.turning(), SwapProgress::Done);
    assert_eq!(old.opened(), 2, "it went back to the channel that it had");
    old.answer_on(0, Status::Done);
    assert_eq!(stuck.wait(first), Status::Done);
    old.answer_on(0, Status::Done);
    assert_eq!(stuck.wait(second), Status::Done);
    let fourth = free.submit(Op::Write, 0, Some(&buffer));
    free.round();
    old.answer_on(1, Status::Done);
    assert_eq!(free.wait(fourth), Status::Done);
}

#[derive(Debug)]
struct Closed;

impl Volume for Closed {
    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            size_bytes: BYTES,
            block_bytes: 512,
            read_only: false,
            durability: Durability::Flush,
            volatile: true,
            incarnation: crate::volume::Incarnation::default(),
            zeroing: crate::volume::Zeroing::default(),
            topology: crate::volume::Topology::default(),
        }
    }

    fn size(&self) -> Size {
        Size::new(self.info().size_bytes)
    }

    fn open(&self, _open: &OpenArguments<'_>) -> Result<Box<dyn Channel>, OpenError> {
        Err(OpenError::NoService("key"))
    }
}

#[test]
fn a_chain_that_cannot_be_opened_is_told_and_the_old_one_goes_on() {
    let swap = Swap::new(memory());
    let mut bench = ChannelBench::new(&*swap, 8);
    assert_eq!(bench.write(0, &[7; 512]), Status::Done);
    swap.begin(Arc::new(Closed));
    bench.round();
    let SwapProgress::Failed(why) = swap.turning() else { panic!("{:?}", swap.turning()) };
    assert!(why.contains("no key"), "{why}");
    let buffer = Buffer::new(512, 0);
    let waits = bench.submit(Op::Read, 0, Some(&buffer));
    bench.round();
    assert!(!swap.settle());
    swap.revert();
    assert_eq!(bench.wait(waits), Status::Done);
    assert_eq!(buffer.bytes(), [7; 512]);
    assert_eq!(swap.turning(), SwapProgress::Done);
}

#[test]
fn requests_that_a_limit_holds_back_are_not_waited_for() {
    let blocks = memory();
    let slow = Chain::build(Arc::clone(&blocks), &[StageConfig::Meter(Metering), limit(1)], None)
        .expect("a chain");
    let swap = Swap::new(Arc::clone(&slow.volume));
    let mut bench = ChannelBench::new(&*swap, 8);
    let buffers: Vec<_> = (0..8).map(|_| Buffer::new(512, 0)).collect();
    let ids: Vec<_> = buffers.iter().map(|b| bench.submit(Op::Write, 0, Some(b))).collect();
    bench.round();
    let fast = slow.rebuilt(&[StageConfig::Meter(Metering)], None, bench.now_ns).expect("a chain");
    swap.begin(Arc::clone(&fast.volume));
    assert!(settle(&swap, &mut bench) < 10, "eight seconds of requests were taken back");
    for id in ids {
        assert_eq!(bench.wait(id), Status::Done);
    }
    assert_eq!(fast.stages.meters[0].meter().read(Op::Write).requests, 8, "each was counted once");
}

/// Reads and writes of eight slots while the chain changes all the time: each read gives what was
/// written last, and the meter has counted every request once.
#[test]
fn two_hundred_changes_under_load() {
    let mut random = Random::new(11);
    let mut chain = Chain::build(memory(), &[StageConfig::Meter(Metering)], None).expect("a chain");
    let swap = Swap::new(Arc::clone(&chain.volume));
    let mut bench = ChannelBench::new(&*swap, 8);
    let chains = [
        &[StageConfig::Meter(Metering)][..],
        &[StageConfig::Meter(Metering), limit(200_000)],
        &[limit(400_000), StageConfig::Meter(Metering)],
        &[StageConfig::Meter(Metering), limit(200_000), limit(100_000)],
    ];
    let buffers: Vec<_> = (0..8).map(|_| Buffer::new(512, 0)).collect();
    let (mut slots, mut last) = (vec![None; 8], [0; 8]);
    let (mut changes, mut requests, mut under_way) = (0, 0, false);
    while changes < 200 {
        for (at, slot) in slots.iter_mut().enumerate() {
            let Some((id, op)) = *slot else {
                let op = if random.below(2) == 0 { Op::Read } else { Op::Write };
                if op == Op::Write {
                    last[at] = random.below(255) as u8;
                    buffers[at].fill(last[at]);
                }
                *slot = Some((bench.submit(op, at as u64 * 512, Some(&buffers[at])), op));
                continue;
            };
            if let Some(place) = bench.done.iter().position(|done| *done == id) {
                bench.done.swap_remove(place);
                assert_eq!(bench.ios[id].status, Status::Done);
                bench.ios.free(id);
                if op == Op::Read {
                    assert_eq!(buffers[at].bytes(), [last[at]; 512], "slot {at}");
                }
                (*slot, requests) = (None, requests + 1);
            }
        }
        if !under_way && random.below(4) == 0 {
            chain = chain.rebuilt(chains[changes % 4], None, bench.now_ns).expect("a chain");
            swap.begin(Arc::clone(&chain.volume));
            under_way = true;
        }
        if under_way && swap.turning() == SwapProgress::Done {
            assert!(swap.settle());
            (changes, under_way) = (changes + 1, false);
        }
        bench.round();
    }
    for (id, _) in slots.into_iter().flatten() {
        bench.wait(id);
        requests += 1;
    }
    let counted = [Op::Read, Op::Write].map(|op| chain.stages.meters[0].meter().read(op).requests);
    assert_eq!(counted.iter().sum::<u64>(), requests);
}
