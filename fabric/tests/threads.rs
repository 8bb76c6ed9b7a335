//! Endpoints on threads of their own, all talking to all at once: each pair's messages come in
//! order and whole, by every way, while rings and slabs are too small for all of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use fabric::{
    Address, Class, Completion, Done, Endpoint, EndpointOptions, EndpointProcess, MemoryPiece,
    Message, Receive, RegionOptions, RequestContext, SendError,
};
use fabric_node::SlotTable;

const THREADS: usize = 4;
const MESSAGES: u64 = 2000;
const LENGTHS: [usize; 5] = [8, 100, 700, 5000, 12_000];
const LEN_MAX: usize = 12_000;
/// Sends of one thread that have not ended.
const WINDOW: usize = 16;

fn len_of(number: u64, from: Address) -> usize {
    LENGTHS[(number.wrapping_mul(7) + u64::from(from.slot)) as usize % LENGTHS.len()]
}

fn filling(number: u64, from: Address) -> u8 {
    (number * 13 + u64::from(from.slot) * 101 + 1) as u8
}

struct Talker {
    endpoint: Endpoint,
    others: Vec<Address>,
    sending: Vec<Vec<u8>>,
    free: Vec<usize>,
    receiving: Vec<Vec<u8>>,
    /// For each other thread, the number that it is sent next, and the number that must come from
    /// it next.
    next_out: Vec<u64>,
    next_in: Vec<u64>,
}

impl Talker {
    fn new(endpoint: Endpoint, others: Vec<Address>) -> Self {
        let sending = vec![vec![0; LEN_MAX]; WINDOW];
        let receiving = vec![vec![0; LEN_MAX]; others.len()];
        let counts = vec![0; others.len()];
        let (next_out, next_in) = (counts.clone(), counts);
        let free = (0..WINDOW).collect();
        Self { endpoint, others, sending, free, receiving, next_out, next_in }
    }

    /// Asks for the next message of one of the others: by its number, or by any.
    fn ask(&mut self, other: usize) {
        let number = self.next_in[other];
        let ignore = if number.is_multiple_of(3) { u64::MAX } else { 0 };
        let (class, source) = (Class::Tagged, Some(self.others[other]));
        let (tag, context) = (number, RequestContext(WINDOW as u64 + other as u64));
        let receive = Receive { class, source, tag, ignore, context, multi_min_bytes: None };
        let start = self.receiving[other].as_mut_ptr();
        // SAFETY: the buffers live as long as the endpoint.
        unsafe { self.endpoint.receive(&receive, &[MemoryPiece { start, bytes: LEN_MAX }]) }
            .expect("a sound receive");
    }

    fn send(&mut self, other: usize) {
        let Some(&free) = self.free.last() else { return };
        let (number, me) = (self.next_out[other], self.endpoint.address());
        let (len, to) = (len_of(number, me), self.others[other]);
        self.sending[free][..len].fill(filling(number, me));
        let (class, context) = (Class::Tagged, Some(RequestContext(free as u64)));
        let message = Message { to, class, tag: number, data: None, context, inject: false };
        let start = self.sending[free].as_mut_ptr();
        // SAFETY: as above; a buffer is free again when its send has ended.
        match unsafe { self.endpoint.send(&message, &[MemoryPiece { start, bytes: len }]) } {
            Ok(()) => {
                self.free.pop();
                self.next_out[other] += 1;
            }
            Err(error) => assert_eq!(error, SendError::Busy),
        }
    }

    fn take(&mut self, completion: &Completion) {
        assert_eq!(completion.failure, None);
        let context = completion.context.0 as usize;
        let Done::Receive { source, .. } = completion.done else {
            self.free.push(context);
            return;
        };
        let other = context - WINDOW;
        let number = self.next_in[other];
        assert_eq!((source, completion.tag), (self.others[other], number), "in order");
        assert_eq!(completion.bytes, len_of(number, source));
        let bytes = &self.receiving[other][..completion.bytes];
        assert!(bytes.iter().all(|&byte| byte == filling(number, source)), "whole");
        self.next_in[other] += 1;
        if self.next_in[other] < MESSAGES {
            self.ask(other);
        }
    }

    fn run(&mut self) {
        (0..self.others.len()).for_each(|other| self.ask(other));
        let is_done = |next: &[u64]| next.iter().all(|&next| next == MESSAGES);
        while !(is_done(&self.next_out) && is_done(&self.next_in) && self.free.len() == WINDOW) {
            for other in 0..self.others.len() {
                if self.next_out[other] < MESSAGES {
                    self.send(other);
                }
            }
            match self.endpoint.completion() {
                Some(completion) => self.take(&completion),
                // There are more threads than cores.
                None => std::thread::yield_now(),
            }
        }
    }
}

#[test]
fn all_talk_to_all() {
    for single_copy_bytes_min in [0, usize::MAX] {
        let options = RegionOptions { slots: 8, cells: 16, buffers: 8, ..Default::default() };
        let (table, _fd) = SlotTable::create(&options).expect("memory");
        let options = EndpointOptions {
            single_copy_bytes_min,
            eager_bytes_max: 8192,
            ..EndpointOptions::default()
        };
        let endpoints: Vec<Endpoint> = (0..THREADS)
            .map(|_| {
                let (slot, incarnation) = table.take_slot(std::process::id()).expect("a slot");
                let region = Arc::clone(table.region());
                let endpoint = Endpoint::new(region, slot, incarnation, 9, &options);
                let mut endpoint = endpoint.expect("an endpoint");
                endpoint.ask_processes(|_, _| EndpointProcess::Is(std::process::id()));
                endpoint
            })
            .collect();
        let addresses: Vec<Address> = endpoints.iter().map(Endpoint::address).collect();
        let done = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for endpoint in endpoints {
                let (addresses, done) = (addresses.clone(), &done);
                scope.spawn(move || {
                    let mut talker = Talker::new(endpoint, addresses);
                    talker.run();
                    let counters = *talker.endpoint.counters();
                    assert_eq!((counters.nonsense, counters.gone), (0, 0), "{counters:?}");
                    assert!(counters.waited_sends > 0 && counters.busy == 0, "{counters:?}");
                    assert_eq!(counters.pipelines > 0, single_copy_bytes_min > 0, "{counters:?}");
                    // No thread leaves while others may still have to be answered.
                    done.fetch_add(1, SeqCst);
                    while done.load(SeqCst) < THREADS {
                        talker.endpoint.progress();
                        std::thread::yield_now();
                    }
                });
            }
        });
    }
}
