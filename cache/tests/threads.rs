//! Channels on threads, as sidecores are, whose blocks share the words of the map: each thread
//! reads what it has written last, while epochs change, others make room, and the keeper empties
//! the cache.

mod remote;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use block::Attach;
use block::attachment::{AttachOptions, Attachment};
use cache::{BLOCK_BYTES, Blocks, Cache, CacheStorage, CachedVolume, HeldEpoch};
use random::Random;
use remote::Far;
use sidecore::{Services, now_ns};
use virtio::Segment;
use volume::backend::MemoryVolume;
use volume::{Channel, Incarnation, IoTable, Op, OpenArguments, Status, Volume, io_table};

const BLOCKS: u64 = 256;
const THREADS: u64 = 3;

/// Requests of each thread.
const REQUESTS: u64 = 60_000;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Storage that keeps nothing for another process.
#[derive(Debug)]
struct Storage(Arc<MemoryVolume>);

impl CacheStorage for Storage {
    fn load(&mut self) -> Result<Option<(HeldEpoch, Vec<Blocks>)>, String> {
        Ok(None)
    }

    fn mark(&mut self, _held: &HeldEpoch) -> Result<(), String> {
        Ok(())
    }

    fn unmark(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn clear(&mut self) -> Result<(), String> {
        let mut all = User::of(&*self.0);
        all.request(Op::Discard, 0, BLOCKS, &mut []);
        Ok(())
    }
}

struct User {
    channel: Box<dyn Channel>,
    ios: IoTable,
}

impl User {
    fn of(volume: &dyn Volume) -> Self {
        let open = OpenArguments { services: &Services::new(), depth: 2 };
        Self { channel: volume.open(&open).expect("it opens"), ios: io_table(2) }
    }

    fn request(&mut self, op: Op, block: u64, blocks: u64, memory: &mut [u8]) {
        let id = self.ios.take().expect("one at a time");
        let io = &mut self.ios[id];
        io.reset();
        let len = (blocks * BLOCK_BYTES) as u32;
        (io.op, io.offset_bytes, io.len_bytes) = (op, block * BLOCK_BYTES, len);
        if op.moves_data() {
            io.segments.push(Segment { addr: memory.as_mut_ptr(), len });
        }
        self.channel.submit(&mut self.ios, id);
        let (mut done, until) = (Vec::new(), Instant::now() + PATIENCE);
        while done.is_empty() {
            let _ = self.channel.poll(&mut self.ios, now_ns(), &mut done);
            assert!(Instant::now() < until, "{:?}", self.channel);
        }
        assert_eq!(self.ios[id].status, Status::Done);
        self.ios.free(id);
    }
}

/// One sidecore's guest: it owns each third block.
fn work(volume: &CachedVolume, attachment: &Arc<Attachment>, thread: u64) {
    let open = OpenArguments { services: &Services::new(), depth: 2 };
    let channel = volume.attach(attachment, thread as u16, &open).expect("it opens");
    let mut user = User { channel, ios: io_table(2) };
    let mut random = Random::new(thread);
    let mut last = vec![0u64; BLOCKS as usize];
    let mut memory = vec![0; BLOCK_BYTES as usize];
    for number in 1..=REQUESTS {
        let block = random.below(BLOCKS / THREADS) * THREADS + thread;
        match random.below(8) {
            0..=2 => {
                let value = number * THREADS + thread;
                memory.chunks_exact_mut(8).for_each(|it| it.copy_from_slice(&value.to_le_bytes()));
                user.request(Op::Write, block, 1, &mut memory);
                last[block as usize] = value;
            }
            3 if random.one_in(8) => {
                user.request(Op::Discard, block, 1, &mut []);
                last[block as usize] = 0;
            }
            _ => {
                user.request(Op::Read, block, 1, &mut memory);
                let wanted = last[block as usize].to_le_bytes();
                assert!(memory.chunks_exact(8).all(|it| it == wanted), "block {block} is old");
            }
        }
    }
    // All requests of the cache's own end before the channel goes.
    let until = Instant::now() + PATIENCE;
    while !user.channel.abandon(&mut user.ios, now_ns()) {
        assert!(Instant::now() < until);
    }
}

#[test]
fn each_thread_reads_what_it_has_written_last() {
    let memory = || Arc::new(MemoryVolume::new(BLOCKS * BLOCK_BYTES).expect("memory"));
    let (far, near) = (memory(), memory());
    let volume = CachedVolume::new(Arc::new(Far(Arc::clone(&far))));
    let storage = Box::new(Storage(Arc::clone(&near)));
    let cache = Cache::new((BLOCKS, 150), Arc::clone(&near) as _, storage);
    volume.plug(Arc::clone(&cache)).expect("a thread");
    let attachment = Arc::new(Attachment::new("a", AttachOptions::new(7)));
    let incarnation = Incarnation([1; 16]);
    assert!(attachment.hold(1, incarnation));
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (volume, attachment) = (&*volume, &attachment);
                scope.spawn(move || work(volume, attachment, thread))
            })
            .collect();
        let (ends, attachment) = (&ends, &attachment);
        let epochs = scope.spawn(move || {
            let (mut epoch, mut random) = (1, Random::new(9));
            while !ends.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(random.between(1, 30)));
                assert!(attachment.reclaim(epoch));
                epoch += random.between(1, 2);
                assert!(attachment.hold(epoch, incarnation));
            }
            epoch
        });
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        ends.store(true, SeqCst);
        println!("{} epochs", epochs.join().expect("no panic"));
        assert!(ended.iter().all(Result::is_ok), "a thread has failed");
    });
    let counted: Vec<_> = cache.counted().collect();
    println!("emptied {} times; {counted:?}", cache.emptied());
    assert!(cache.emptied() > 1 && counted.contains(&("errors", 0)));
    for name in ["hits", "fills", "updates", "evicted_blocks"] {
        assert!(counted.iter().any(|(it, value)| *it == name && *value > 0), "{name}");
    }
    let (mut far, mut near) = (User::of(&*far), User::of(&*near));
    let mut bytes = [vec![0; BLOCK_BYTES as usize], vec![1; BLOCK_BYTES as usize]];
    for first in (0..BLOCKS).filter(|first| cache.map.holds(Blocks { first: *first, count: 1 })) {
        far.request(Op::Read, first, 1, &mut bytes[0]);
        near.request(Op::Read, first, 1, &mut bytes[1]);
        assert!(bytes[0] == bytes[1], "block {first}");
    }
    volume.unplug();
}
