//! Hosts in one process, each with a region, endpoints and a room; sessions that reorder calls,
//! break at any moment and come back.

mod faults;
mod hand_over;
mod model;
mod pushes;
mod rules;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use super::*;
use crate::SlotTable;
use fabric::LocalNode;
use fabric::{Address, Endpoint, EndpointOptions, RegionOptions, SendError};
use fabric::{Class, Completion, MemoryPiece, Message, Receive, RequestContext};
use random::Random;
use workload::messages::content;

const KEY: u8 = 7;

/// A round's length.
const STEP_NS: u64 = 20_000;

type Session = u64;

/// A sidecore: of which host, and which.
type End = (usize, usize);

/// By what a call is answered.
#[derive(Clone, Copy, Debug)]
struct Call {
    session: Session,
    from: End,
    token: u64,
    serial: u64,
}

/// A call on its way, or its answer.
#[derive(Debug)]
enum Flight {
    Call { to: End, call: Call, head: Vec<u8>, body: Option<Vec<u8>> },
    Reply { to: End, session: Session, token: u64, head: Vec<u8> },
}

/// All that is on its way.
#[derive(Debug, Default)]
struct Wires {
    flights: Vec<Flight>,
    /// Sessions that are up: the two ends.
    up: BTreeMap<Session, [End; 2]>,
    next: Session,
    /// Calls of those that have not been answered.
    open: BTreeMap<u64, Session>,
    calls: u64,
}

/// One end of the wires.
#[derive(Debug)]
struct Sim {
    me: End,
    wires: Rc<RefCell<Wires>>,
    bodies: HashMap<u64, Vec<u8>>,
    next: u64,
    /// Bytes that were written into them, and the most at once.
    written: usize,
    longest: usize,
}

impl Carrier for Sim {
    type Session = Session;
    type Call = Call;
    type Body = u64;

    fn body(&mut self, bytes: usize) -> Option<u64> {
        self.next += 1;
        // Now and then there is none.
        if self.next.is_multiple_of(50) {
            return None;
        }
        self.bodies.insert(self.next, vec![0; bytes]);
        Some(self.next)
    }

    fn write(&mut self, body: u64, places: Range<usize>, put: &mut dyn FnMut(&mut [u8])) {
        self.written += places.len();
        self.longest = self.longest.max(places.len());
        put(&mut self.bodies.get_mut(&body).expect("it is there")[places]);
    }

    fn read(&self, body: u64, bytes: usize, show: &mut dyn FnMut(&[u8])) {
        show(&self.bodies[&body][..bytes]);
    }

    fn release(&mut self, body: u64) {
        assert!(self.bodies.remove(&body).is_some(), "released twice");
    }

    fn call(
        &mut self,
        session: Session,
        token: u64,
        head: &[u8],
        body: Option<(u64, usize)>,
    ) -> bool {
        let wires = &mut *self.wires.borrow_mut();
        let Some(ends) = wires.up.get(&session) else { return false };
        wires.calls += 1;
        // Now and then a session has no room; joins would wait for long.
        if about(head) != About::Domain("blue".to_owned()) && wires.calls.is_multiple_of(5) {
            return false;
        }
        let to = ends[usize::from(ends[0] == self.me)];
        let body = body.map(|(body, bytes)| self.bodies[&body][..bytes].to_vec());
        let call = Call { session, from: self.me, token, serial: wires.calls };
        wires.open.insert(call.serial, session);
        wires.flights.push(Flight::Call { to, call, head: head.to_vec(), body });
        true
    }

    fn reply(&mut self, call: Call, head: &[u8]) {
        let wires = &mut *self.wires.borrow_mut();
        let Call { session, from: to, token, serial } = call;
        if wires.up.contains_key(&session) {
            assert!(wires.open.remove(&serial).is_some(), "answered twice");
            wires.flights.push(Flight::Reply { to, session, token, head: head.to_vec() });
        }
    }
}

/// A node that can be woken.
#[derive(Debug, Default)]
struct TestHome {
    woken: std::sync::atomic::AtomicU64,
    gone: std::sync::atomic::AtomicBool,
}

impl LocalNode for TestHome {
    fn wake(&self, _gateway: u16) {
        self.woken.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    fn ring(&self, _slot: u16, _incarnation: u32) -> bool {
        true
    }

    fn open_doorbell(&self, _slot: u16, _incarnation: u32) -> Result<OwnedFd, fabric::NoDoorbell> {
        Err(fabric::NoDoorbell::InVm)
    }

    fn reopen_doorbell(&self, _slot: u16, _incarnation: u32) -> Option<OwnedFd> {
        None
    }

    fn is_there(&self) -> bool {
        !self.gone.load(std::sync::atomic::Ordering::Relaxed)
    }
}

struct Host {
    name: String,
    table: Arc<SlotTable>,
    memory: OwnedFd,
    associations: Arc<Associations>,
    cores: Vec<Core>,
    endpoints: Vec<Endpoint>,
    doorbell: Arc<TestHome>,
}

/// A sidecore of it.
struct Core {
    room: Room<Sim>,
    carrier: Sim,
    /// Sessions that it knows of.
    knows: Vec<Session>,
}

impl Host {
    fn new(me: usize, id: u64, key: u8, peers: &[String], wires: &Rc<RefCell<Wires>>) -> Self {
        Self::with_cores(1, (me, id), key, peers, wires)
    }

    fn with_cores(
        cores: usize,
        (me, id): (usize, u64),
        key: u8,
        peers: &[String],
        wires: &Rc<RefCell<Wires>>,
    ) -> Self {
        let options = RegionOptions {
            slots: 12,
            gateways: cores as u16,
            cells: 64,
            buffers: 8,
            host: id,
            ..RegionOptions::default()
        };
        let (table, memory) = SlotTable::create(&options).expect("memory");
        let table = Arc::new(table);
        let associations = Associations::new(Arc::clone(&table), 1);
        associations.set_peers(peers);
        let core = |core: usize| {
            let (domain, prove) = ("blue".to_owned(), Box::new(move |it: &[u8]| prove(key, it)));
            let number = (10 * me + core) as u16 + 3;
            let settings = RoomSettings { number, domain, gateway: core as u16, prove };
            let room = Room::new(settings, Arc::clone(&associations));
            let (me, wires, next) = ((me, core), Rc::clone(wires), me as u64 * 1000);
            let carrier = Sim { me, wires, bodies: HashMap::new(), next, written: 0, longest: 0 };
            Core { room, carrier, knows: Vec::new() }
        };
        let cores = (0..cores).map(core).collect();
        let (name, endpoints, doorbell) = (format!("h{me}"), Vec::new(), Arc::default());
        Self { name, table, memory, associations, cores, endpoints, doorbell }
    }

    fn join(&mut self) -> Address {
        let region = Arc::clone(self.table.region());
        let (slot, incarnation) = self.table.take_slot(std::process::id()).expect("a slot");
        let options = EndpointOptions::default();
        let host = region.options().host;
        let mut endpoint =
            Endpoint::new(region, slot, incarnation, host, &options).expect("an endpoint");
        endpoint.set_home(Arc::<TestHome>::clone(&self.doorbell));
        self.endpoints.push(endpoint);
        self.endpoints.last().expect("just pushed").address()
    }
}

fn prove(key: u8, statement: &[u8]) -> [u8; PROOF_BYTES] {
    let mut proof = [key; PROOF_BYTES];
    for (at, byte) in statement.iter().enumerate() {
        let place = &mut proof[at % PROOF_BYTES];
        *place = place.wrapping_mul(31).wrapping_add(*byte);
    }
    proof
}

struct World {
    hosts: Vec<Host>,
    wires: Rc<RefCell<Wires>>,
    now_ns: u64,
    random: Random,
    /// No host is told of a new session.
    cut: bool,
    /// Host 0 answers nothing.
    mute: bool,
}

impl World {
    fn new(hosts: usize, endpoints: usize, seed: u64) -> Self {
        Self::with_cores(1, hosts, endpoints, seed)
    }

    fn with_cores(cores: usize, hosts: usize, endpoints: usize, seed: u64) -> Self {
        let wires = Rc::<RefCell<Wires>>::default();
        let names: Vec<_> = (0..hosts).map(|host| format!("h{host}")).collect();
        let host = |me: usize| {
            let others: Vec<_> = names.iter().filter(|it| **it != names[me]).cloned().collect();
            Host::with_cores(cores, (me, 100 + me as u64), KEY, &others, &wires)
        };
        let mut hosts: Vec<_> = (0..hosts).map(host).collect();
        for host in &mut hosts {
            for _ in 0..endpoints {
                host.join();
            }
        }
        let random = Random::new(seed);
        Self { hosts, wires, now_ns: 1, random, cut: false, mute: false }
    }

    /// Until each host is joined with each other one.
    fn joined(hosts: usize, endpoints: usize, seed: u64) -> Self {
        let mut world = Self::new(hosts, endpoints, seed);
        world.join();
        world
    }

    fn join(&mut self) {
        self.run_until("all are joined", |world| {
            world.hosts.iter().all(|host| {
                let joined = |report: &PeerReport| report.joined == host.cores.len();
                host.associations.reports().iter().all(joined)
            })
        });
    }

    fn address(&self, host: usize, endpoint: usize) -> Address {
        self.hosts[host].endpoints[endpoint].address()
    }

    /// A session between each two hosts' sidecores of one number that have none.
    fn connect(&mut self) {
        let cores = self.hosts[0].cores.len();
        for one in 0..self.hosts.len() {
            for (other, core) in (0..one).flat_map(|one| (0..cores).map(move |core| (one, core))) {
                let ends = [(one, core), (other, core)];
                let mut wires = self.wires.borrow_mut();
                if self.cut || wires.up.values().any(|it| *it == ends) {
                    continue;
                }
                wires.next += 1;
                let session = wires.next;
                wires.up.insert(session, ends);
                drop(wires);
                for (host, peer) in [(one, other), (other, one)] {
                    let mut binding = [0; 32];
                    binding[..8].copy_from_slice(&session.to_le_bytes());
                    let peer = GatewayPeer { name: self.hosts[peer].name.clone(), binding };
                    let core = &mut self.hosts[host].cores[core];
                    core.knows.push(session);
                    core.room.connected(session, &peer);
                }
            }
        }
    }

    /// Breaks a session; all calls on their way are lost.
    fn lose(&mut self, session: Session) {
        let mut wires = self.wires.borrow_mut();
        wires.up.remove(&session);
        wires.flights.retain(|flight| match flight {
            Flight::Call { call, .. } => call.session != session,
            Flight::Reply { session: of, .. } => *of != session,
        });
        wires.open.retain(|_, of| *of != session);
    }

    fn lose_all(&mut self) {
        let all: Vec<_> = self.wires.borrow().up.keys().copied().collect();
        all.into_iter().for_each(|session| self.lose(session));
    }

    /// Some time passes: each host does what it has to do.
    fn step(&mut self) {
        self.now_ns += STEP_NS;
        self.connect();
        let arriving = self.random.below(8);
        for _ in 0..arriving {
            let mut wires = self.wires.borrow_mut();
            if wires.flights.is_empty() {
                break;
            }
            let which = self.random.below(wires.flights.len() as u64) as usize;
            let flight = wires.flights.swap_remove(which);
            drop(wires);
            self.arrive(flight);
        }
        for host in &mut self.hosts {
            let up: Vec<_> = self.wires.borrow().up.keys().copied().collect();
            for Core { room, carrier, knows } in &mut host.cores {
                // Not at once.
                if self.random.below(4) == 0 {
                    for session in knows.extract_if(.., |it| !up.contains(it)) {
                        room.lost(self.now_ns, session, carrier);
                    }
                }
                room.poll(self.now_ns, carrier);
            }
            host.endpoints.iter_mut().for_each(Endpoint::progress);
        }
    }

    fn arrive(&mut self, flight: Flight) {
        match flight {
            Flight::Call { to, call, head, body } => {
                let Core { room, carrier, knows } = &mut self.hosts[to.0].cores[to.1];
                if !knows.contains(&call.session) {
                    return;
                }
                let body = body.map(|bytes| {
                    carrier.next += 1;
                    carrier.bodies.insert(carrier.next, bytes);
                    (carrier.next, carrier.bodies[&carrier.next].len())
                });
                room.called(self.now_ns, call.session, call, &head, body, carrier);
            }
            Flight::Reply { to, .. } if self.mute && to.0 == 1 => {}
            Flight::Reply { to, session, token, head } => {
                let Core { room, carrier, knows } = &mut self.hosts[to.0].cores[to.1];
                if knows.contains(&session) {
                    assert_eq!(room_of_token(token), room.number());
                    room.replied(self.now_ns, token, &head, carrier);
                }
            }
        }
    }

    fn run_until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        for _ in 0..200_000 {
            if is_so(self) {
                return;
            }
            self.step();
        }
        let cores = self.hosts.iter().flat_map(|host| &host.cores);
        let counters: Vec<_> = cores.map(|core| core.room.counters()).collect();
        panic!("not within reason: {what}; {counters:?}");
    }

    /// Calls that have come and were not answered yet.
    fn unanswered(&self) -> usize {
        let wires = self.wires.borrow();
        let on_the_way = |flight: &&Flight| matches!(flight, Flight::Call { .. });
        wires.open.len() - wires.flights.iter().filter(on_the_way).count()
    }

    fn run(&mut self, steps: usize) {
        (0..steps).for_each(|_| self.step());
    }
}

fn part_of(bytes: &[u8]) -> MemoryPiece {
    MemoryPiece { start: bytes.as_ptr().cast_mut(), bytes: bytes.len() }
}

fn send(endpoint: &mut Endpoint, to: Address, tag: u64, bytes: &[u8]) -> Result<(), SendError> {
    let (class, context) = (Class::Tagged, Some(RequestContext(tag)));
    let message = Message { to, class, tag, data: Some(!tag), context, inject: false };
    // SAFETY: tests keep what they send until they have seen its completion.
    unsafe { endpoint.send(&message, &[part_of(bytes)]) }
}

/// Asks for any message, or for one of one sender's.
fn ask(endpoint: &mut Endpoint, source: Option<Address>, context: u64, bytes: &mut [u8]) {
    let (class, context) = (Class::Tagged, RequestContext(context));
    let (tag, ignore, multi_min_bytes) = (0, u64::MAX, None);
    let receive = Receive { class, source, tag, ignore, context, multi_min_bytes };
    let part = MemoryPiece { start: bytes.as_mut_ptr(), bytes: bytes.len() };
    // SAFETY: tests keep what they receive into until they have seen its completion.
    unsafe { endpoint.receive(&receive, &[part]) }.expect("a sound receive");
}

fn ended(endpoint: &mut Endpoint) -> Vec<Completion> {
    std::iter::from_fn(|| endpoint.completion()).collect()
}
