//! The way of a request through a queue allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use virtio::driver::{Backing, Data, Guest, GuestPlan, Op, Request, RingDriver, RingOptions};
use virtio::{Chain, InflightRegion, Queue};

thread_local! {
    /// Allocations of this thread; the test harness has threads of its own.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: everything is handed on to the system's allocator; the count is a plain cell that needs
// no allocation itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

/// What `f` gives, and how many allocations it made.
fn counted<T>(f: impl FnOnce() -> T) -> (T, u64) {
    let before = ALLOCATIONS.with(Cell::get);
    let result = f();
    (result, ALLOCATIONS.with(Cell::get) - before)
}

fn submit(ring: &mut RingDriver, pieces: u32) {
    while let Some(slot) = ring.take_slot() {
        let data = Data::Cut { len: 4096, piece_bytes: 4096 / pieces };
        let request = Request { slot, op: Op::Read, sector: 0, data, token: 0 };
        if ring.submit(&request).is_err() {
            ring.release(slot);
            break;
        }
    }
    ring.publish();
}

/// Serves all that is there, in batches; how many requests.
fn serve(queue: &mut Queue, chain: &mut Chain) -> u64 {
    let mut served = 0;
    while let Some(head) = queue.take(chain).unwrap() {
        let status = *chain.writable.last().unwrap();
        // SAFETY: the chain is outstanding.
        unsafe { virtio::scatter(&[status], 0, &[0]) };
        queue.put(head, chain.writable_bytes());
        served += 1;
    }
    queue.publish();
    queue.arm();
    queue.disarm();
    served
}

fn run(indirect: bool, event_idx: bool, pieces: u32) -> (u64, u64) {
    let plan = GuestPlan { backing: Backing::Memfd, ..GuestPlan::default() };
    let guest = Guest::new(&plan).unwrap();
    let event = || Some(Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap()));
    let options = RingOptions { event_idx, indirect, kick: event(), call: event() };
    let mut ring = guest.ring(0, options);
    let memory = Arc::new(guest.memory().device_memory().unwrap());
    let mut config = ring.queue_config(memory).unwrap();
    let (file, len) = InflightRegion::create(1, config.size).unwrap();
    let region = InflightRegion::map(file.as_fd(), 0, len, 1, config.size).unwrap();
    config.inflight = region.queue(0);
    let mut queue = Queue::new(config).unwrap();
    let mut chain = Chain::new();
    let (mut served, mut allocations) = (0, 0);
    for _ in 0..200 {
        submit(&mut ring, pieces);
        let (count, made) = counted(|| serve(&mut queue, &mut chain));
        served += count;
        allocations += made;
        while let Some(completion) = ring.complete().unwrap() {
            ring.release(completion.slot);
        }
    }
    (served, allocations)
}

#[test]
fn a_request_allocates_nothing() {
    for indirect in [false, true] {
        for (event_idx, pieces) in [(false, 1), (true, 1), (true, 8)] {
            let (served, allocations) = run(indirect, event_idx, pieces);
            assert!(served > 1000, "{served} requests");
            assert_eq!(allocations, 0, "for {served} requests");
        }
    }
    assert_eq!(counted(|| vec![1, 2, 3]).1, 1, "the count works");
}
