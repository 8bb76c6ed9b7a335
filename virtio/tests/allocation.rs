//! The way of a request through a queue allocates nothing.

#[path = "../../sidecore/tests/counting/mod.rs"]
mod counting;

use std::os::fd::AsFd;
use std::sync::Arc;

use counting::allocations;
use rustix::event::{EventfdFlags, eventfd};
use virtio::driver::{
    Backing, Data, DriverGuest, DriverOp, DriverRequest, GuestPlan, RingDriver, RingOptions,
};
use virtio::{Chain, InflightRegion, Queue, RingKind};

/// The result of `f`, and how many allocations it made.
fn counted<T>(f: impl FnOnce() -> T) -> (T, u64) {
    let before = allocations();
    let result = f();
    (result, allocations() - before)
}

fn submit(ring: &mut RingDriver, pieces: u32) {
    while let Some(slot) = ring.take_slot() {
        let data = Data::Cut { len: 4096, piece_bytes: 4096 / pieces };
        let request = DriverRequest { slot, op: DriverOp::Read, sector: 0, data, token: 0 };
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

fn run(kind: RingKind, indirect: bool, event_idx: bool, pieces: u32) -> (u64, u64) {
    let plan = GuestPlan { backing: Backing::Memfd, ..GuestPlan::default() };
    let guest = DriverGuest::new(&plan).unwrap();
    let event = || Some(Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap()));
    let (kick, call) = (event(), event());
    let options = RingOptions { kind, event_idx, indirect, kick, call, ..RingOptions::default() };
    let mut ring = guest.ring(0, options);
    let memory = Arc::new(guest.memory().device_memory().unwrap());
    let mut config = ring.queue_config(memory).unwrap();
    let shape = (kind, 1, config.size);
    let (file, len) = InflightRegion::create(shape).unwrap();
    let region = InflightRegion::map(file.as_fd(), 0, len, shape).unwrap();
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
    for kind in [RingKind::Split, RingKind::Packed] {
        for indirect in [false, true] {
            for (event_idx, pieces) in [(false, 1), (true, 1), (true, 8)] {
                let (served, allocations) = run(kind, indirect, event_idx, pieces);
                assert!(served > 1000, "{served} requests");
                assert_eq!(allocations, 0, "for {served} requests on a {kind:?} ring");
            }
        }
    }
    assert_eq!(counted(|| vec![1, 2, 3]).1, 1, "the count works");
}
