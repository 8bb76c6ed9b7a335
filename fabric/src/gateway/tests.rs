//! Hosts in one process, each with a region, endpoints and a room; sessions that reorder calls,
//! break at any moment and come back.

mod faults;
mod model;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use super::*;
use crate::endpoint::Home;
use crate::message::{Class, Completion, Context, Message, Part, Receive};
use crate::{Address, Endpoint, EndpointOptions, Keeper, Region, RegionOptions, SendError};

const KEY: u8 = 7;

/// A round's length.
const STEP_NS: u64 = 20_000;

type Session = u64;

/// A call on its way, or its answer.
#[derive(Debug)]
enum Flight {
    Call { to: usize, call: (Session, usize, u64), head: Vec<u8>, body: Option<Vec<u8>> },
    Reply { to: usize, session: Session, token: u64, head: Vec<u8> },
}

/// All that is on its way.
#[derive(Debug, Default)]
struct Wires {
    flights: Vec<Flight>,
    /// Sessions that are up: the two hosts.
    up: BTreeMap<Session, [usize; 2]>,
    next: Session,
}

/// One host's end of the wires.
#[derive(Debug)]
struct Sim {
    me: usize,
    wires: Rc<RefCell<Wires>>,
    bodies: HashMap<u64, Vec<u8>>,
    next: u64,
}

impl Carrier for Sim {
    type Session = Session;
    type Call = (Session, usize, u64);
    type Body = u64;

    fn body(&mut self, bytes: &[u8]) -> Option<u64> {
        self.next += 1;
        // Now and then there is none.
        if self.next.is_multiple_of(50) {
            return None;
        }
        self.bodies.insert(self.next, bytes.to_vec());
        Some(self.next)
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
        let mut wires = self.wires.borrow_mut();
        let Some(ends) = wires.up.get(&session) else { return false };
        let to = ends[usize::from(ends[0] == self.me)];
        let body = body.map(|(body, bytes)| self.bodies[&body][..bytes].to_vec());
        let (call, head) = ((session, self.me, token), head.to_vec());
        wires.flights.push(Flight::Call { to, call, head, body });
        true
    }

    fn reply(&mut self, (session, to, token): Self::Call, head: &[u8]) {
        let mut wires = self.wires.borrow_mut();
        if wires.up.contains_key(&session) {
            let head = head.to_vec();
            wires.flights.push(Flight::Reply { to, session, token, head });
        }
    }
}

/// A node that can be woken.
#[derive(Debug, Default)]
struct Bell {
    woken: std::sync::atomic::AtomicU64,
    gone: std::sync::atomic::AtomicBool,
}

impl Home for Arc<Bell> {
    fn wake(&self, _gateway: u16) {
        self.woken.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    fn is_there(&self) -> bool {
        !self.gone.load(std::sync::atomic::Ordering::Relaxed)
    }
}

struct Host {
    name: String,
    keeper: Arc<Keeper>,
    associations: Arc<Associations>,
    room: Room<Sim>,
    carrier: Sim,
    endpoints: Vec<Endpoint>,
    bell: Arc<Bell>,
    /// Sessions that it knows of.
    knows: Vec<Session>,
}

impl Host {
    fn new(me: usize, id: u64, key: u8, peers: &[String], wires: &Rc<RefCell<Wires>>) -> Self {
        let options = RegionOptions {
            slots: 12,
            gateways: 1,
            cells: 64,
            buffers: 8,
            host: id,
            ..RegionOptions::default()
        };
        let keeper = Arc::new(Region::create(&options).expect("memory").0);
        let associations = Associations::new(Arc::clone(&keeper), 1);
        associations.set_peers(peers);
        let prove = Box::new(move |statement: &[u8]| {
            let mut proof = [key; PROOF_BYTES];
            statement.iter().enumerate().for_each(|(at, byte)| {
                proof[at % PROOF_BYTES] =
                    proof[at % PROOF_BYTES].wrapping_mul(31).wrapping_add(*byte);
            });
            proof
        });
        let domain = "blue".to_owned();
        let settings = RoomSettings { number: me as u16 + 3, domain, gateway: 0, prove };
        let room = Room::new(settings, Arc::clone(&associations));
        let carrier =
            Sim { me, wires: Rc::clone(wires), bodies: HashMap::new(), next: me as u64 * 1000 };
        let (endpoints, bell, knows) = (Vec::new(), Arc::default(), Vec::new());
        let name = format!("h{me}");
        Self { name, keeper, associations, room, carrier, endpoints, bell, knows }
    }

    fn join(&mut self) -> Address {
        let region = Arc::clone(self.keeper.region());
        let (slot, incarnation) = self.keeper.take_slot(std::process::id()).expect("a slot");
        let options = EndpointOptions::default();
        let host = region.options().host;
        let mut endpoint =
            Endpoint::new(region, slot, incarnation, host, &options).expect("an endpoint");
        endpoint.set_home(Box::new(Arc::clone(&self.bell)));
        self.endpoints.push(endpoint);
        self.endpoints.last().expect("just pushed").address()
    }
}

struct World {
    hosts: Vec<Host>,
    wires: Rc<RefCell<Wires>>,
    now_ns: u64,
    random: Random,
    /// Nobody hears of a new session.
    cut: bool,
}

impl World {
    fn new(hosts: usize, endpoints: usize, seed: u64) -> Self {
        let wires = Rc::<RefCell<Wires>>::default();
        let names: Vec<_> = (0..hosts).map(|host| format!("h{host}")).collect();
        let host = |me: usize| {
            let others: Vec<_> = names.iter().filter(|it| **it != names[me]).cloned().collect();
            Host::new(me, 100 + me as u64, KEY, &others, &wires)
        };
        let mut hosts: Vec<_> = (0..hosts).map(host).collect();
        for host in &mut hosts {
            for _ in 0..endpoints {
                host.join();
            }
        }
        let random = Random::new(seed);
        Self { hosts, wires, now_ns: 1, random, cut: false }
    }

    /// Until everybody is joined with everybody.
    fn joined(hosts: usize, endpoints: usize, seed: u64) -> Self {
        let mut world = Self::new(hosts, endpoints, seed);
        world.run_until("all are joined", |world| {
            let joined = |report: &PeerReport| report.joined == 1;
            world.hosts.iter().all(|host| host.associations.reports().iter().all(joined))
        });
        world
    }

    fn address(&self, host: usize, endpoint: usize) -> Address {
        self.hosts[host].endpoints[endpoint].address()
    }

    /// A session between each two hosts that have none.
    fn connect(&mut self) {
        for one in 0..self.hosts.len() {
            for other in 0..one {
                let mut wires = self.wires.borrow_mut();
                if self.cut || wires.up.values().any(|ends| *ends == [one, other]) {
                    continue;
                }
                wires.next += 1;
                let session = wires.next;
                wires.up.insert(session, [one, other]);
                drop(wires);
                for (host, peer) in [(one, other), (other, one)] {
                    let mut binding = [0; 32];
                    binding[..8].copy_from_slice(&session.to_le_bytes());
                    let peer = Peer { name: self.hosts[peer].name.clone(), binding };
                    self.hosts[host].knows.push(session);
                    self.hosts[host].room.connected(session, &peer);
                }
            }
        }
    }

    /// A session breaks; what was on its way is lost.
    fn lose(&mut self, session: Session) {
        let mut wires = self.wires.borrow_mut();
        wires.up.remove(&session);
        wires.flights.retain(|flight| match flight {
            Flight::Call { call, .. } => call.0 != session,
            Flight::Reply { session: of, .. } => *of != session,
        });
    }

    fn lose_all(&mut self) {
        let all: Vec<_> = self.wires.borrow().up.keys().copied().collect();
        all.into_iter().for_each(|session| self.lose(session));
    }

    /// Some time passes: everybody does what there is to do.
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
            // Not at once.
            if self.random.below(4) == 0 {
                let (known, gone): (Vec<_>, _) = host.knows.iter().partition(|it| up.contains(it));
                host.knows = known;
                for session in gone {
                    host.room.lost(self.now_ns, session, &mut host.carrier);
                }
            }
            host.room.poll(self.now_ns, &mut host.carrier);
            host.endpoints.iter_mut().for_each(Endpoint::progress);
        }
    }

    fn arrive(&mut self, flight: Flight) {
        match flight {
            Flight::Call { to, call, head, body } => {
                let Host { room, carrier, knows, .. } = &mut self.hosts[to];
                if !knows.contains(&call.0) {
                    return;
                }
                let body = body.map(|bytes| {
                    carrier.next += 1;
                    carrier.bodies.insert(carrier.next, bytes);
                    (carrier.next, carrier.bodies[&carrier.next].len())
                });
                room.called(self.now_ns, call.0, call, &head, body, carrier);
            }
            Flight::Reply { to, session, token, head } => {
                let Host { room, carrier, knows, .. } = &mut self.hosts[to];
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
        let counters: Vec<_> = self.hosts.iter().map(|host| host.room.counters()).collect();
        panic!("not within reason: {what}; {counters:?}");
    }

    fn run(&mut self, steps: usize) {
        (0..steps).for_each(|_| self.step());
    }
}

fn part_of(bytes: &[u8]) -> Part {
    Part { start: bytes.as_ptr().cast_mut(), bytes: bytes.len() }
}

fn send(endpoint: &mut Endpoint, to: Address, tag: u64, bytes: &[u8]) -> Result<(), SendError> {
    let (class, context) = (Class::Tagged, Some(Context(tag)));
    let message = Message { to, class, tag, data: Some(!tag), context, inject: false };
    // SAFETY: tests keep what they send until they have seen its completion.
    unsafe { endpoint.send(&message, &[part_of(bytes)]) }
}

/// Asks for any message, or for one of one sender's.
fn ask(endpoint: &mut Endpoint, source: Option<Address>, context: u64, bytes: &mut [u8]) {
    let (class, context) = (Class::Tagged, Context(context));
    let (tag, ignore, multi_min_bytes) = (0, u64::MAX, None);
    let receive = Receive { class, source, tag, ignore, context, multi_min_bytes };
    let part = Part { start: bytes.as_mut_ptr(), bytes: bytes.len() };
    // SAFETY: tests keep what they receive into until they have seen its completion.
    unsafe { endpoint.receive(&receive, &[part]) }.expect("a sound receive");
}

fn ended(endpoint: &mut Endpoint) -> Vec<Completion> {
    std::iter::from_fn(|| endpoint.completion()).collect()
}

/// Bytes that tell where they belong.
fn content(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (seed.wrapping_mul(31) + at * 7 + at / 251) as u8).collect()
}

/// Numbers of a seed (xorshift).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }
}
