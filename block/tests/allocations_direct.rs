//! Counts allocations of a direct client: once warm, a request costs none on either side, over a
//! real UDP socket or shared memory, sealed or in clear.
//!
//! Both sidecores run by turns on the test's thread, so one count is of both. The device is a
//! generator of requests, in the place of the kernel's ublk driver.

#[path = "../../sidecore/tests/counting/mod.rs"]
mod counting;
mod keys;

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use block::attachment::Phase;
use block::ublk::abi::{Descriptor, op};
use block::ublk::{Front, Kernel, Shape};
use block::{
    Attach, AttachOptions, Attachment, Export, ExportOptions, Exports, Plane, RemoteVolume,
};
use counting::allocations;
use keys::{IOHOST, VMHOST, security};
use link::{Link, LinkCounters, LinkDriver, Shm, ShmDirectory, ShmListener, Udp, UdpConfig};
use peer::{Allow, Planes};
use sidecore::{Local, RoundStage, Services};
use transport::{Endpoint, EndpointConfig};
use volume::backend::MemoryVolume;
use volume::record::NoRecords;
use volume::uring::Completion;
use volume::{IO_BYTES_MAX, OpenArguments};

const VOLUME: &str = "a";
const VOLUME_BYTES: u64 = 16 << 20;
const SHAPE: Shape = Shape { queues: 1, depth: 24 };

/// Simulated time from round to round.
const ROUND_NS: u64 = 2_000;

/// Far more rounds than anything here needs.
const ROUNDS_MAX: u64 = 20_000_000;

/// More than there are slots in the tables of a session's messages (1024): each was used before
/// anything is counted.
const WARM_REQUESTS: u64 = 4_000;
const COUNTED_REQUESTS: u64 = 2_000;

/// Keeps requests of all kinds outstanding until so many were made.
#[derive(Debug)]
struct Generator {
    descriptors: Vec<Descriptor>,
    buffers: Vec<Box<[u8]>>,
    /// Places that the front may be handed a request for.
    free: Vec<u32>,
    mail: Vec<Completion>,
    made: u64,
    done: u64,
}

impl Generator {
    fn new() -> Self {
        let places = SHAPE.places() as usize;
        Self {
            descriptors: vec![Descriptor::default(); places],
            buffers: vec![vec![7; IO_BYTES_MAX as usize].into(); places],
            free: Vec::with_capacity(places),
            mail: Vec::with_capacity(places),
            made: 0,
            done: 0,
        }
    }

    /// Hands out up to so many more requests at a time, until `until` were made.
    fn hand_out(&mut self, depth: u64, until: u64) {
        while self.made < until && self.made - self.done < depth {
            let Some(place) = self.free.pop() else { return };
            let (op_flags, bytes) = match self.made % 10 {
                0 => (op::FLUSH, 0),
                1 => (op::WRITE, IO_BYTES_MAX),
                2 => (op::READ, IO_BYTES_MAX),
                3 => (op::WRITE, 64 << 10),
                4 => (op::READ, 64 << 10),
                5 => (op::DISCARD, 64 << 10),
                6 => (op::WRITE_ZEROES, 64 << 10),
                7 | 8 => (op::READ, 4096),
                _ => (op::WRITE, 4096),
            };
            let start_sector = self.made % 14 * 2048;
            let nr_sectors = bytes / 512;
            self.descriptors[place as usize] =
                Descriptor { op_flags, nr_sectors, start_sector, addr: 0 };
            self.mail.push(Completion { token: place, result: 0 });
            self.made += 1;
        }
    }
}

#[derive(Debug)]
struct Device(Rc<RefCell<Generator>>);

impl Kernel for Device {
    fn shape(&self) -> Shape {
        SHAPE
    }

    fn ask(&mut self, place: u32, answer: Option<i32>) -> bool {
        let mut generator = self.0.borrow_mut();
        if let Some(answer) = answer {
            let bytes = generator.descriptors[place as usize].nr_sectors * 512;
            assert_eq!(answer, bytes as i32, "of place {place}");
            generator.done += 1;
        }
        generator.free.push(place);
        true
    }

    fn take(&mut self, into: &mut Vec<Completion>) {
        into.append(&mut self.0.borrow_mut().mail);
    }

    fn has_mail(&self) -> bool {
        !self.0.borrow().mail.is_empty()
    }

    fn descriptor(&self, place: u32) -> Descriptor {
        self.0.borrow().descriptors[place as usize]
    }

    fn buffer(&self, place: u32) -> *mut u8 {
        self.0.borrow_mut().buffers[place as usize].as_mut_ptr()
    }
}

/// A sidecore's inside with a link and a plane, wired as a node does it.
struct Host {
    local: Local,
    planes: Rc<RefCell<Planes>>,
    plane: Rc<RefCell<Plane>>,
    endpoint: Rc<RefCell<Endpoint>>,
    addr: SocketAddr,
    counters: Arc<LinkCounters>,
}

impl Host {
    fn new(
        name: &str,
        sealed: bool,
        link: impl Link + 'static,
        receive_buffer_bytes: usize,
        exports: Arc<Exports>,
    ) -> Self {
        let (addr, counters) = (link.local_addr(), Arc::clone(link.counters()));
        let number = name.as_bytes()[0];
        let mut config = EndpointConfig::new(name, number.into(), number.into());
        config.datagram_bytes_max = link.datagram_max();
        config.receive_window_bytes = receive_buffer_bytes as u32;
        config.security = security(name, sealed);
        config.entropy = [number; 32];
        let endpoint = Rc::new(RefCell::new(Endpoint::new(config)));
        let services = Services::new();
        let mut local = Local::detached(0, services.clone());
        let mut planes = Planes::new(0, Rc::clone(&endpoint));
        let plane = Plane::new(&mut planes, exports, services.clone());
        let planes = Rc::new(RefCell::new(planes));
        local.add(RoundStage::Receive, Box::new(Rc::clone(&planes)));
        let (link, sink) = (Rc::new(RefCell::new(link)), Rc::clone(&planes));
        LinkDriver::install(&mut local, link, Rc::clone(&endpoint), sink);
        local.add(RoundStage::Serve, Box::new(Rc::clone(&plane)));
        services.insert(Rc::clone(&plane));
        Self { local, planes, plane, endpoint, addr, counters }
    }
}

/// The carrier of sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Udp,
    Shm,
}

/// A client with its device, and the node that has the volume.
struct Rig {
    vm: Host,
    io: Host,
    generator: Rc<RefCell<Generator>>,
    now_ns: u64,
    rounds: u64,
    _attachment: Arc<Attachment>,
    _shared: Option<(tempfile::TempDir, ShmListener)>,
}

fn udp() -> Udp {
    Udp::bind(UdpConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).expect("loopback")
}

/// Both hosts; where the client finds the other one; and what has to live as long.
fn hosts(
    way: Way,
    sealed: bool,
    exports: Arc<Exports>,
) -> (Host, Host, SocketAddr, Option<(tempfile::TempDir, ShmListener)>) {
    let (ours, theirs) = (udp(), udp());
    let room = ours.receive_buffer_bytes();
    if way == Way::Udp {
        let vm = Host::new(VMHOST, sealed, ours, room, Arc::default());
        let io = Host::new(IOHOST, sealed, theirs, room, exports);
        let addr = io.addr;
        return (vm, io, addr, None);
    }
    let home = tempfile::tempdir().expect("a directory");
    let path = home.path().join("io1.shm");
    let places = ShmDirectory::default();
    let (door, mut callers) =
        ShmListener::open(&path, &[theirs.local_addr().port()]).expect("a door");
    let ours = Shm::new(ours, places.clone(), None).expect("an epoll");
    let theirs = Shm::new(theirs, places.clone(), callers.pop()).expect("an epoll");
    let vm = Host::new(VMHOST, sealed, ours, room, Arc::default());
    let io = Host::new(IOHOST, sealed, theirs, room, exports);
    (vm, io, places.address(&path).expect("room"), Some((home, door)))
}

impl Rig {
    fn new(way: Way, sealed: bool) -> Self {
        let volume = Arc::new(MemoryVolume::new(VOLUME_BYTES).expect("memory"));
        let options = ExportOptions { allow: vec![Allow::node(VMHOST)], shared: false };
        let export = Export::new(VOLUME, volume, options, Arc::new(NoRecords));
        let exports = Arc::new(Exports::default());
        exports.insert(export.expect("no records to read"));
        let (vm, io, addr, shared) = hosts(way, sealed, exports);
        vm.planes.borrow().peers().borrow_mut().add(IOHOST, addr);
        let remote = RemoteVolume::new(IOHOST, VOLUME);
        assert!(vm.plane.borrow_mut().clients.describe(Arc::clone(&remote)));
        let generator = Rc::new(RefCell::new(Generator::new()));
        let attachment = Arc::new(Attachment::new("rig", AttachOptions::new(1)));
        let (now_ns, rounds) = (1_000_000, 0);
        let mut rig = Self {
            vm,
            io,
            generator,
            now_ns,
            rounds,
            _attachment: Arc::clone(&attachment),
            _shared: shared,
        };
        rig.round_until(|_| remote.described().is_some());
        let services = rig.vm.local.services().clone();
        let open = OpenArguments { services: &services, depth: SHAPE.channel_depth() };
        let channel = remote.attach(&attachment, 0, &open).expect("it opens");
        let mut front = Front::new(channel, remote.info(), SHAPE);
        front.show(Device(Rc::clone(&rig.generator)));
        let front = Rc::new(RefCell::new(front));
        rig.vm.local.add(RoundStage::Serve, Box::new(front));
        rig.round_until(|_| attachment.view().phase == Phase::Held);
        rig
    }

    fn round_until(&mut self, is: impl Fn(&Self) -> bool) {
        let before = self.rounds;
        while !is(self) {
            self.now_ns += ROUND_NS;
            self.rounds += 1;
            assert!(self.rounds - before < ROUNDS_MAX, "it does not end");
            let _ = self.vm.local.round(self.now_ns);
            let _ = self.io.local.round(self.now_ns);
        }
    }

    /// So many requests, so many at a time.
    fn work(&mut self, requests: u64, depth: u64) {
        let until = self.generator.borrow().done + requests;
        while self.generator.borrow().done < until {
            self.generator.borrow_mut().hand_out(depth, until);
            let seen = self.generator.borrow().done;
            self.round_until(|rig| rig.generator.borrow().done > seen);
        }
    }

    fn is_sealed(&self) -> bool {
        self.vm.endpoint.borrow().sessions().all(|session| session.peer.key.is_some())
    }
}

fn check(way: Way, sealed: bool) {
    let mut rig = Rig::new(way, sealed);
    assert_eq!(rig.is_sealed(), sealed);
    // More at a time than later, so that every slot of every table has been used.
    rig.work(WARM_REQUESTS, SHAPE.depth.into());
    let before = allocations();
    let sent = [&rig.vm, &rig.io].map(|host| host.counters.datagrams_sent.get());
    assert!(before > 0, "allocations are counted");
    rig.work(COUNTED_REQUESTS, 16);
    let counted = allocations() - before;
    assert_eq!(counted, 0, "allocations for {COUNTED_REQUESTS} requests: {way:?}, {sealed}");
    for (host, sent) in [&rig.vm, &rig.io].into_iter().zip(sent) {
        let through_the_kernel = host.counters.datagrams_sent.get() - sent;
        match way {
            Way::Udp => assert!(through_the_kernel >= COUNTED_REQUESTS, "{through_the_kernel}"),
            Way::Shm => assert_eq!(through_the_kernel, 0),
        }
    }
}

#[test]
fn a_warm_direct_client_allocates_nothing_over_udp_in_clear() {
    check(Way::Udp, false);
}

#[test]
fn a_warm_direct_client_allocates_nothing_over_udp_sealed() {
    check(Way::Udp, true);
}

#[test]
fn a_warm_direct_client_allocates_nothing_over_shared_memory_in_clear() {
    check(Way::Shm, false);
}

#[test]
fn a_warm_direct_client_allocates_nothing_over_shared_memory_sealed() {
    check(Way::Shm, true);
}
