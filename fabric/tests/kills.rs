//! Real processes, killed with SIGKILL at any moment while they send: the receiver and the other
//! senders go on.
//!
//! Processes are forked from the test, not started anew. How many can be killed in a while is up to
//! the machine; ten thousand deaths with a cell in hand, store by store and without processes, are
//! in `src/endpoint/tests/deaths.rs`.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric::{
    Address, Class, Completion, Done, Endpoint, EndpointOptions, EndpointProcess, MemoryPiece,
    Message, Receive, Region, RegionOptions, RequestContext, RequestFailure, SendError,
};
use fabric_node::SlotTable;

const HOST: u64 = 3;

/// In the cell, in a buffer, and read out of the sender's memory.
const LENGTHS: [usize; 4] = [16, 120, 700, 20_000];
const LEN_MAX: usize = 20_000;

/// The way that a process of the test sends.
#[derive(Clone, Copy)]
enum Manner {
    /// Messages that need no answer, as fast as can be: is mostly killed between two stores.
    Small,
    /// Also such as need one.
    All,
    /// All, with pauses: this process is not killed, and leaves a core to the others.
    Steady,
}

impl Manner {
    fn len_of(self, number: u64) -> usize {
        let kinds = if matches!(self, Self::Small) { 3 } else { 4 };
        LENGTHS[number as usize % kinds]
    }
}

/// A process that sends for ever.
struct Sender {
    pid: libc::pid_t,
    slot: u16,
}

impl Sender {
    fn start(table: &SlotTable, receiver: &mut Receiver, manner: Manner) -> Self {
        let to = receiver.endpoint.address();
        // One for each: a child that is killed at once leaves what it was told unread.
        let (mut told_by, mut tells) = std::io::pipe().expect("a pipe");
        // SAFETY: the child runs `send_for_ever`, which takes no lock that another thread of the
        // test may hold: it prints nothing, and glibc's allocator is made for forks.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "a process");
        if pid == 0 {
            let mut told = [0; 6];
            let _ = told_by.read_exact(&mut told);
            let slot = u16::from_le_bytes([told[0], told[1]]);
            let incarnation = u32::from_le_bytes([told[2], told[3], told[4], told[5]]);
            send_for_ever(table.region(), (slot, incarnation), to, manner);
        }
        let (slot, incarnation) = receiver.make_room(table, pid);
        let [s, i] = [slot.to_le_bytes().to_vec(), incarnation.to_le_bytes().to_vec()];
        tells.write_all(&[s, i].concat()).expect("the child reads");
        Self { pid, slot }
    }

    fn kill(self, table: &SlotTable) {
        // SAFETY: our own child, which no other code waits for.
        let ended = unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0)
        };
        assert_eq!(ended, self.pid);
        assert!(table.declare_dead(self.slot));
        table.sweep();
    }
}

/// The byte of a message with this number, from its ninth byte on.
fn filling(number: u64) -> u8 {
    (number * 37 + 11) as u8
}

fn send_for_ever(
    region: &Arc<Region>,
    (slot, incarnation): (u16, u32),
    to: Address,
    manner: Manner,
) -> ! {
    let options = EndpointOptions::default();
    let endpoint = Endpoint::new(Arc::clone(region), slot, incarnation, HOST, &options);
    let Ok(mut endpoint) = endpoint else { std::process::abort() };
    let mut memory = vec![0; LEN_MAX];
    for number in 0_u64.. {
        let len = manner.len_of(number);
        memory[..len].fill(filling(number));
        memory[..8].copy_from_slice(&number.to_le_bytes());
        let (class, context, inject) = (Class::Tagged, Some(RequestContext(number)), false);
        let message = Message { to, class, tag: number, data: Some(number), context, inject };
        let parts = [MemoryPiece { start: memory.as_mut_ptr(), bytes: len }];
        loop {
            // SAFETY: the memory is left alone until the completion.
            match unsafe { endpoint.send(&message, &parts) } {
                Ok(()) => break,
                Err(SendError::Busy) => endpoint.progress(),
                Err(_) => std::process::abort(),
            }
        }
        while endpoint.completion().is_none() {
            std::hint::spin_loop();
        }
        if matches!(manner, Manner::Steady) {
            std::thread::sleep(Duration::from_micros(500));
        }
    }
    std::process::abort()
}

/// Receives from any sender, and checks that each sender's messages come in order and whole.
struct Receiver {
    endpoint: Endpoint,
    buffers: Vec<Vec<u8>>,
    /// Of each sender, the number that comes next; none once one of its messages was lost.
    next: HashMap<Address, Option<u64>>,
    gone: u64,
    /// Senders from which a message came.
    firsts: u64,
}

impl Receiver {
    fn new(endpoint: Endpoint) -> Self {
        let buffers = vec![vec![0; LEN_MAX]; 16];
        let mut receiver = Self { endpoint, buffers, next: HashMap::new(), gone: 0, firsts: 0 };
        (0..16).for_each(|index| receiver.post(index));
        receiver
    }

    fn post(&mut self, index: usize) {
        let buffer = &mut self.buffers[index];
        let receive = Receive {
            class: Class::Tagged,
            source: None,
            tag: 0,
            ignore: u64::MAX,
            context: RequestContext(index as u64),
            multi_min_bytes: None,
        };
        let part = MemoryPiece { start: buffer.as_mut_ptr(), bytes: buffer.len() };
        // SAFETY: the buffers live as long as the endpoint.
        unsafe { self.endpoint.receive(&receive, &[part]) }.expect("a sound receive");
    }

    /// A slot for a process. Where each free one's last owner has messages left here, which a
    /// receiver that got no core for a while did not take yet, they are received first.
    fn make_room(&mut self, table: &SlotTable, pid: libc::pid_t) -> (u16, u32) {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            match table.take_slot(pid.unsigned_abs()) {
                Ok(taken) => return taken,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            self.run(Duration::from_micros(100));
        }
    }

    /// Receives until somebody's first message is there.
    fn wait_for_one(&mut self) {
        let firsts = self.firsts;
        while self.firsts == firsts {
            self.run(Duration::from_micros(10));
        }
    }

    /// Receives what there is, for this long.
    fn run(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            for _ in 0..64 {
                match self.endpoint.completion() {
                    Some(completion) => self.take(&completion),
                    None => std::hint::spin_loop(),
                }
            }
            // There may be one core for all of them.
            std::thread::yield_now();
        }
    }

    fn take(&mut self, completion: &Completion) {
        let Done::Receive { source, data, .. } = completion.done else {
            panic!("{completion:?}");
        };
        let index = completion.context.0 as usize;
        let next = self.next.entry(source).or_insert(Some(0));
        match completion.failure {
            None => {
                let number = next.expect("nothing comes after what was lost");
                assert_eq!((completion.tag, data), (number, Some(number)), "in order");
                assert!(LENGTHS.contains(&completion.bytes));
                let bytes = &self.buffers[index][..completion.bytes];
                assert_eq!(bytes[..8], number.to_le_bytes());
                assert!(bytes[8..].iter().all(|&byte| byte == filling(number)), "whole");
                self.firsts += u64::from(number == 0);
                *next = Some(number + 1);
            }
            Some(RequestFailure::Gone) => {
                *next = None;
                self.gone += 1;
            }
            Some(failure) => panic!("{failure}"),
        }
        self.post(index);
    }
}

#[test]
fn senders_killed_at_any_moment_hold_up_no_other() {
    // So many in any time: a machine that does not manage them has another problem.
    const KILLS_MIN: u64 = 200;
    let (kills_max, time_max) = match std::env::var("VRIO_TIER").as_deref() {
        Ok("nightly" | "long") => (100_000, Duration::from_secs(1200)),
        _ => (10_000, Duration::from_secs(5)),
    };
    // Small enough to go round while a sender is dying in it, and so large that senders have
    // something else to do than to wait for room.
    let options = RegionOptions { slots: 8, cells: 2048, ..RegionOptions::default() };
    let (table, memory) = SlotTable::create(&options).expect("memory");
    let table = Arc::new(table);
    let region = Arc::new(Region::map(memory.as_fd()).expect("a region"));
    let (slot, incarnation) = table.take_slot(std::process::id()).expect("a slot");
    let reading = EndpointOptions { single_copy_bytes_min: 0, ..EndpointOptions::default() };
    let endpoint = Endpoint::new(region, slot, incarnation, HOST, &reading);
    let mut endpoint = endpoint.expect("an endpoint");
    let (table, node) = (Arc::clone(&table), table);
    endpoint.ask_processes(move |slot, incarnation| {
        node.process_of(slot, incarnation).map_or(EndpointProcess::Nobodys, EndpointProcess::Is)
    });
    let mut receiver = Receiver::new(endpoint);
    let steady = Sender::start(&table, &mut receiver, Manner::Steady);
    let from_steady = Address { host: HOST, incarnation: 1, slot: steady.slot };
    let (started, mut random) = (Instant::now(), 1_u64);
    let mut kills = 0;
    while kills < KILLS_MIN || (kills < kills_max && started.elapsed() < time_max) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let manner = if kills % 4 == 0 { Manner::All } else { Manner::Small };
        let doomed = Sender::start(&table, &mut receiver, manner);
        // Most are killed while they send, some before they have begun.
        if random >> 60 > 0 {
            receiver.wait_for_one();
        }
        receiver.run(Duration::from_micros((random >> 33) % 100));
        doomed.kill(&table);
        kills += 1;
        if kills % 50 == 0 {
            // The one that was not killed gets through.
            let before = receiver.next.get(&from_steady).copied();
            while receiver.next.get(&from_steady).copied() == before {
                receiver.run(Duration::from_micros(100));
            }
        }
    }
    let (counters, time) = (*receiver.endpoint.counters(), started.elapsed());
    let by_steady = receiver.next[&from_steady];
    let received: u64 = receiver.next.values().flatten().sum::<u64>() - by_steady.unwrap_or(0);
    println!(
        "{kills} kills in {time:.1?}: {received} messages of the killed and {:?} of the other one \
         were received, {} cells were skipped, {} messages were lost in the middle",
        by_steady, counters.skipped_cells, receiver.gone
    );
    assert_eq!(counters.nonsense, 0);
    assert!(kills >= KILLS_MIN && counters.single_copies > 0, "{counters:?}");
    // About one in twelve is killed with a cell in hand.
    assert!(counters.skipped_cells > 0, "{counters:?}");
    steady.kill(&table);
}
