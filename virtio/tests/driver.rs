//! The stand-in driver's front end against our own session, in one process and across processes
//! that are killed.

mod load;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use load::{Load, PATIENCE, finish, held, loads, run_on};
use random::Random;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, set_parent_process_death_signal};
use virtio::driver::{
    Backing, Data, DriverOp, DriverRequest, FrontEnd, FrontEndConfig, FrontEndError, GuestMemory,
    GuestPiece, GuestPlan, Keeper, RawDescriptor, Regions, RequestStatus, RingShape, SocketRole,
};
use virtio::{
    Chain, ChainHead, Device, DeviceError, DeviceServer, Logging, Memory, Queue, QueueConfig,
    Retained, RingKind, Socket, gather, scatter, serve,
};

const QUEUES: u16 = 2;
const KINDS: [RingKind; 2] = [RingKind::Split, RingKind::Packed];
const DISK_BYTES: u64 = 4 << 20;

/// How many requests of each queue a disk under load holds back: with two queues, more than the 16
/// that a kill has to catch.
const HOLD: usize = 12;

/// A disk on a file, with a thread for each queue. It answers in any order, holds some requests
/// back until there is a flush, and drains nothing when it is stopped: held requests then stay in
/// the inflight region.
#[derive(Debug)]
struct FileDisk {
    file: Arc<File>,
    hold: usize,
    workers: Vec<Option<Worker>>,
    /// Nothing of ours uses guest memory when a queue has stopped, but a session may not know.
    retained: Vec<Retained>,
}

#[derive(Debug)]
struct Worker {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    stop: AtomicBool,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap()
    }
}

impl FileDisk {
    fn new(path: &Path, hold: usize) -> io::Result<Self> {
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        file.set_len(DISK_BYTES)?;
        let workers = (0..QUEUES).map(|_| None).collect();
        Ok(Self { file: Arc::new(file), hold, workers, retained: Vec::new() })
    }

    fn worker(&self, index: usize) -> &Worker {
        self.workers[index].as_ref().unwrap()
    }
}

impl Device for FileDisk {
    fn features(&self) -> u64 {
        // SEG_MAX, BLK_SIZE, FLUSH, MQ.
        1 << 2 | 1 << 6 | 1 << 9 | 1 << 12
    }

    fn config(&self) -> Vec<u8> {
        let mut config = vec![0; 60];
        config[..8].copy_from_slice(&(DISK_BYTES / 512).to_le_bytes());
        config[12] = 126;
        config[20..22].copy_from_slice(&512u16.to_le_bytes());
        config[34..36].copy_from_slice(&QUEUES.to_le_bytes());
        config
    }

    fn queues_max(&self) -> usize {
        usize::from(QUEUES)
    }

    fn set_features(&mut self, _acked: u64) {}

    fn start(&mut self, config: QueueConfig) -> Result<(), DeviceError> {
        let (index, file, hold) = (config.index, Arc::clone(&self.file), self.hold);
        let (queue, stop) = (Mutex::new(Queue::new(config)?), AtomicBool::new(false));
        let shared = Arc::new(Shared { queue, stop });
        let thread = thread::spawn({
            let shared = Arc::clone(&shared);
            move || work(&shared, &file, hold)
        });
        self.workers[index] = Some(Worker { shared, thread });
        Ok(())
    }

    fn stop(&mut self, index: usize) -> u32 {
        let Worker { shared, thread } = self.workers[index].take().unwrap();
        shared.stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        let queue = Arc::into_inner(shared).unwrap().queue.into_inner().unwrap();
        let base = queue.base();
        self.retained.push(queue.fence());
        base
    }

    fn set_memory(&mut self, memory: Arc<Memory>) {
        for worker in self.workers.iter().flatten() {
            let _ = worker.shared.queue().set_memory(Arc::clone(&memory));
        }
    }

    fn set_logging(&mut self, index: usize, logging: Logging) {
        self.worker(index).shared.queue().set_logging(logging);
    }

    fn set_call(&mut self, index: usize, call: Option<OwnedFd>) {
        self.worker(index).shared.queue().set_call(call);
    }

    fn set_kick(&mut self, index: usize, kick: Option<OwnedFd>) {
        self.worker(index).shared.queue().set_kick(kick);
    }

    fn disconnected(&mut self) {
        for index in 0..self.workers.len() {
            if self.workers[index].is_some() {
                self.stop(index);
            }
        }
    }
}

/// One queue's thread.
fn work(shared: &Shared, file: &File, hold: usize) {
    let mut held: Vec<(ChainHead, Chain)> = Vec::new();
    let mut dice = Random::new(88_172_645_463_325_252);
    while !shared.stop.load(Ordering::Relaxed) {
        let mut queue = shared.queue();
        let mut chain = Chain::new();
        while let Ok(Some(head)) = queue.take(&mut chain) {
            held.push((head, std::mem::take(&mut chain)));
        }
        let flush = held.iter().any(|(_, chain)| code(chain) == FLUSH);
        let hold = if flush { 0 } else { hold };
        if held.len() <= hold {
            sleep(queue, shared);
            continue;
        }
        // A few at random, so that what is left is not in order.
        for _ in 0..4.min(held.len() - hold) {
            let others = held.iter().any(|(_, chain)| code(chain) != FLUSH);
            let mut at = dice.below(held.len() as u64) as usize;
            while others && code(&held[at].1) == FLUSH {
                at = (at + 1) % held.len();
            }
            let (head, chain) = held.swap_remove(at);
            let written = answer(&chain, file);
            queue.wrote(&chain.writable);
            queue.put(head, written);
        }
        queue.publish();
    }
}

const FLUSH: u8 = 4;

/// The type of a request.
fn code(chain: &Chain) -> u8 {
    let mut code = [0];
    // SAFETY: an outstanding chain of a queue that is locked.
    unsafe { gather(&chain.readable, 0, &mut code) };
    code[0]
}

/// Does a request and gives how many bytes were written to the guest.
fn answer(chain: &Chain, file: &File) -> u32 {
    let mut asked = vec![0; chain.readable_bytes() as usize];
    // SAFETY: an outstanding chain of a queue that is locked.
    unsafe { gather(&chain.readable, 0, &mut asked) };
    let mut given = vec![0; chain.writable_bytes() as usize];
    let (code, status) = (asked[0], given.len() - 1);
    let at = u64::from_le_bytes(asked[8..16].try_into().unwrap()) * 512;
    let result = match code {
        0 => file.read_exact_at(&mut given[..status], at),
        1 => file.write_all_at(&asked[16..], at),
        _ => Ok(()),
    };
    given[status] = u8::from(result.is_err());
    // SAFETY: as above.
    unsafe { scatter(&chain.writable, 0, &given) };
    given.len() as u32
}

/// Waits for a kick, and looks at the stop flag now and then.
fn sleep(mut queue: MutexGuard<'_, Queue>, shared: &Shared) {
    if queue.arm() {
        return;
    }
    let kick = queue.kick_fd().unwrap().try_clone_to_owned().unwrap();
    drop(queue);
    let limit = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    let _ = poll(&mut [PollFd::new(&kick.as_fd(), PollFlags::IN)], Some(&limit));
    shared.queue().disarm();
}

/// A directory with a disk and a socket.
struct Place(tempfile::TempDir, RingKind);

impl Place {
    fn new() -> Self {
        Self::of_kind(RingKind::Split)
    }

    /// For a front end that wants rings of this kind.
    fn of_kind(kind: RingKind) -> Self {
        Self(tempfile::tempdir().unwrap(), kind)
    }

    fn socket(&self) -> PathBuf {
        self.0.path().join("socket")
    }

    fn disk(&self) -> PathBuf {
        self.0.path().join("disk")
    }

    fn serve(&self, socket: Socket, hold: usize) -> DeviceServer {
        serve(socket, Box::new(FileDisk::new(&self.disk(), hold).unwrap())).unwrap()
    }

    fn config(&self, role: SocketRole) -> FrontEndConfig {
        let shape = RingShape { size: 64, slots: 64, transfer_bytes_max: 4096, segments_max: 4 };
        let mut config = FrontEndConfig::new(role);
        config.wanted.packed = self.1 == RingKind::Packed;
        config.guest = GuestPlan { queues: QUEUES, shape, ..GuestPlan::default() };
        config
    }

    /// A server that listens, and a front end that connected.
    fn pair(&self) -> (DeviceServer, FrontEnd) {
        let server = self.serve(Socket::listen(self.socket()), HOLD);
        let config = self.config(SocketRole::Connect(self.socket()));
        (server, FrontEnd::connect(config, PATIENCE).unwrap())
    }
}

/// Submits one request on queue 0 and gives its status.
fn one(front_end: &mut FrontEnd, op: DriverOp, sector: u64, data: Data<'_>) -> RequestStatus {
    let ring = front_end.ring(0);
    let slot = ring.take_slot().unwrap();
    ring.submit(&DriverRequest { slot, op, sector, data, token: 9 }).unwrap();
    ring.publish();
    assert!(ring.wait(PATIENCE).unwrap(), "no completion of {op:?}");
    let done = ring.complete().unwrap().unwrap();
    ring.release(slot);
    assert_eq!(done.token, 9);
    done.status
}

/// Names the directory to a child process, which then is a server until it is killed.
const SERVER_PLACE: &str = "VRIO_TEST_SERVER_PLACE";

/// No test by itself: the child processes of `killed_hundreds_of_times` run it. Without the
/// variable there is nothing to serve.
#[test]
fn server_process() {
    let Some(place) = std::env::var_os(SERVER_PLACE).map(PathBuf::from) else { return };
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let disk = FileDisk::new(&place.join("disk"), HOLD).unwrap();
    let _server = serve(Socket::listen(place.join("socket")), Box::new(disk)).unwrap();
    loop {
        thread::park();
    }
}

/// A server in a process of its own, which ends with this value.
struct ServerProcess(Child);

impl ServerProcess {
    fn start(place: &Place) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "server_process", "--nocapture"]);
        command.env(SERVER_PLACE, place.0.path()).stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn killed_hundreds_of_times() {
    KINDS.into_iter().for_each(kill);
}

fn kill(kind: RingKind) {
    const KILLS: u64 = 150;
    let place = Place::of_kind(kind);
    let mut server = ServerProcess::start(&place);
    let config = place.config(SocketRole::Connect(place.socket()));
    let mut front_end = FrontEnd::connect(config, PATIENCE).unwrap();
    assert_eq!((front_end.has_inflight(), front_end.ring_kind()), (true, kind));
    let mut loads = loads(&mut front_end, QUEUES);
    let keeper = Keeper::new(front_end).unwrap();
    loads.iter_mut().for_each(Load::fill);
    let mut held_at_kills = 0;
    for kill in 0..KILLS {
        run_on(&mut loads, kill * 7 % 90);
        server.kill();
        held_at_kills += held(&loads);
        server = ServerProcess::start(&place);
        run_on(&mut loads, 1);
    }
    finish(&mut loads, &File::open(place.disk()).unwrap());
    let front_end = keeper.stop();
    assert!(!front_end.hung_up());
    println!(
        "{kind:?}: killed {KILLS} times with {} outstanding on average",
        held_at_kills / KILLS
    );
}

#[test]
fn a_front_end_leaves_under_load_and_returns() {
    KINDS.into_iter().for_each(leave_and_return);
}

fn leave_and_return(kind: RingKind) {
    let place = Place::of_kind(kind);
    let (_server, mut front_end) = place.pair();
    let mut loads = loads(&mut front_end, QUEUES);
    loads.iter_mut().for_each(Load::fill);
    for round in 0..50 {
        run_on(&mut loads, round % 40);
        front_end.hang_up();
        let resumption = front_end.reconnect(PATIENCE).unwrap();
        assert!(resumption.inflight);
    }
    finish(&mut loads, &File::open(place.disk()).unwrap());
}

#[test]
fn a_front_end_that_listens_is_found() {
    let place = Place::new();
    let server = place.serve(Socket::Connect(place.socket()), HOLD);
    let config = place.config(SocketRole::Listen(place.socket()));
    let mut front_end = FrontEnd::connect(config, PATIENCE).unwrap();
    let mut loads = loads(&mut front_end, QUEUES);
    loads.iter_mut().for_each(Load::fill);
    run_on(&mut loads, 100);
    server.stop();
    assert!(front_end.hung_up());
    let _server = place.serve(Socket::Connect(place.socket()), HOLD);
    front_end.reconnect(PATIENCE).unwrap();
    finish(&mut loads, &File::open(place.disk()).unwrap());
}

#[test]
fn a_stopped_queue_is_left_alone_and_goes_on() {
    KINDS.into_iter().for_each(stop_and_go_on);
}

fn stop_and_go_on(kind: RingKind) {
    let place = Place::of_kind(kind);
    let (_server, mut front_end) = place.pair();
    let mut loads = loads(&mut front_end, QUEUES);
    loads.iter_mut().for_each(Load::fill);
    for _ in 0..20 {
        run_on(&mut loads, 30);
        for index in 0..QUEUES {
            front_end.stop_ring(index).unwrap();
        }
        let digest = front_end.memory().digest();
        loads.iter().for_each(|load| load.ring.kick());
        held(&loads);
        // An answer from the session shows that the kicks were not answered meanwhile.
        assert!(front_end.stop_ring(0).is_ok());
        assert_eq!(front_end.memory().digest(), digest, "stores after the stop");
        for index in 0..QUEUES {
            front_end.start_ring(index).unwrap();
        }
    }
    finish(&mut loads, &File::open(place.disk()).unwrap());
}

#[test]
fn memory_comes_and_goes() {
    for memory_slots in [false, true] {
        let place = Place::new();
        let _server = place.serve(Socket::listen(place.socket()), 0);
        let mut config = place.config(SocketRole::Connect(place.socket()));
        config.wanted.memory_slots = memory_slots;
        config.guest.regions = Regions::Apart(3);
        let mut front_end = FrontEnd::connect(config, PATIENCE).unwrap();
        let at = 1 << 40;
        let more = Arc::new(GuestMemory::new(Backing::Memfd, at, 64 << 10).unwrap());
        front_end.plug(Arc::clone(&more)).unwrap();
        more.write(5000, &[7; 1024]);
        let pieces = |offset| [GuestPiece { guest_address: at + offset, len: 1024 }];
        assert_eq!(
            one(&mut front_end, DriverOp::Write, 0, Data::Pieces(&pieces(5000))),
            RequestStatus::Ok
        );
        assert_eq!(
            one(&mut front_end, DriverOp::Read, 0, Data::Pieces(&pieces(100))),
            RequestStatus::Ok
        );
        let mut found = [0; 1024];
        more.read(100, &mut found);
        assert_eq!(found, [7; 1024]);
        front_end.hang_up();
        front_end.reconnect(PATIENCE).unwrap();
        assert_eq!(
            one(&mut front_end, DriverOp::Read, 0, Data::Pieces(&pieces(100))),
            RequestStatus::Ok
        );
        assert!(front_end.unplug().unwrap().is_some());
        assert!(!front_end.ring_failed(0));
        let ring = front_end.ring(0);
        let slot = ring.take_slot().unwrap();
        let data = Data::Pieces(&pieces(0));
        ring.submit(&DriverRequest { slot, op: DriverOp::Write, sector: 0, data, token: 0 })
            .unwrap();
        ring.publish();
        wait_for_failure(&mut front_end);
    }
}

fn wait_for_failure(front_end: &mut FrontEnd) {
    let deadline = Instant::now() + PATIENCE;
    while !front_end.ring_failed(0) {
        assert!(Instant::now() < deadline, "queue 0 goes on");
        thread::yield_now();
    }
    assert!(!front_end.ring_failed(1));
}

#[test]
fn a_looping_chain_stops_its_own_queue() {
    let place = Place::new();
    let (_server, mut front_end) = place.pair();
    let ring = front_end.ring(0);
    ring.place_descriptor(0, RawDescriptor { guest_address: 1 << 20, len: 16, flags: 1, next: 1 });
    ring.place_descriptor(1, RawDescriptor { guest_address: 1 << 20, len: 16, flags: 1, next: 0 });
    ring.place_available(0, 0);
    ring.set_available_index(1);
    ring.kick();
    wait_for_failure(&mut front_end);
    assert!(!front_end.ring(0).was_answered());
    let mut loads = vec![Load::new(front_end.take_ring(1))];
    loads.iter_mut().for_each(Load::fill);
    finish(&mut loads, &File::open(place.disk()).unwrap());
}

#[test]
fn too_many_queues_are_refused_by_name() {
    let place = Place::new();
    let _server = place.serve(Socket::listen(place.socket()), 0);
    let mut config = place.config(SocketRole::Connect(place.socket()));
    config.guest.queues = QUEUES + 1;
    let error = FrontEnd::connect(config, PATIENCE).unwrap_err();
    assert!(matches!(error, FrontEndError::QueuesMissing { wanted: 3, offered: 2 }), "{error}");
    let config = place.config(SocketRole::Connect(place.0.path().join("nobody")));
    let error = FrontEnd::connect(config, Duration::ZERO).unwrap_err();
    assert!(error.to_string().contains("nobody"), "{error}");
}
