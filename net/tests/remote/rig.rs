//! Nodes with guests' stand-ins, and a network that loses, doubles and reorders as its seed says.

#[path = "../../../peer/tests/hosts/mod.rs"]
mod hosts;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use hosts::PlaneHost;
use net::network::Bridges;
use net::remote::{
    Admission, CableCore, Join, JoinGate, MemberInfo, MemberRight, Members, NetPlane,
    WantedNetwork, join,
};
use net::{
    Bridge, Burst, Chosen, Mac, Offload, Port, PortCounters, PortOptions, Stations, VlanSet, Vlans,
};
use random::Random;
use sidecore::{Progress, Services};
use simnet::{SimNetwork, Weather};
use transport::{
    Endpoint, EndpointConfig, Keyring, KnownKey, PeerInfo, SecretKey, Security, SessionId,
};
use virtio::Segment;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1000 * MS;

pub(crate) fn mac(last: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0, last])
}

/// A frame that came, with the work that is left to be done to it, and its tag.
pub(crate) type Heard = (Vec<u8>, Offload, u16);

#[derive(Debug, Default)]
pub(crate) struct Station {
    pub(crate) to_say: VecDeque<(Vec<u8>, Offload, u16)>,
    pub(crate) heard: Vec<Heard>,
    said: Vec<Vec<u8>>,
}

/// A guest's stand-in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Talker(pub(crate) Rc<RefCell<Station>>);

impl Talker {
    pub(crate) fn say(&self, frame: Vec<u8>) {
        self.0.borrow_mut().to_say.push_back((frame, Offload::default(), 0));
    }

    pub(crate) fn heard(&self) -> Vec<Vec<u8>> {
        self.0.borrow_mut().heard.drain(..).map(|(bytes, _, _)| bytes).collect()
    }
}

impl Port for Talker {
    fn receive(&mut self, burst: &mut Burst, _: u64) -> Progress {
        let mut station = self.0.borrow_mut();
        while !burst.is_full()
            && let Some((mut bytes, offload, _)) = station.to_say.pop_front()
        {
            let segment = Segment { addr: bytes.as_mut_ptr(), len: bytes.len() as u32 };
            // Kept where it is until the burst is given back.
            station.said.push(bytes);
            // SAFETY: see the line before.
            let frame = unsafe { burst.push(&[segment], 0) }.expect("a frame");
            frame.offload = offload;
            frame.strip_tag().expect("a frame");
        }
        Progress::busy_if(!burst.is_empty())
    }

    fn release(&mut self, burst: &mut Burst) {
        burst.clear();
        self.0.borrow_mut().said.clear();
    }

    fn transmit(&mut self, burst: &Burst, chosen: &[Chosen], _: u64) {
        for chosen in chosen {
            let frame = &burst.frames()[usize::from(chosen.at)];
            let heard = (burst.to_vec(frame), frame.offload, chosen.tci);
            self.0.borrow_mut().heard.push(heard);
        }
    }

    fn flush(&mut self) {}
}

/// A network's number, its sidecore, and the nodes that may join it.
type Entry = (u64, u16, Vec<String>);

/// The networks, with the nodes that may join each, and their VLANs.
#[derive(Debug, Default)]
pub(crate) struct TestGate {
    pub(crate) open: Mutex<BTreeMap<String, Entry>>,
    pub(crate) isolated: bool,
    generation: AtomicU64,
}

impl TestGate {
    pub(crate) fn allow(&self, network: &str, peers: &[&str]) {
        let peers = peers.iter().map(|peer| (*peer).to_owned()).collect();
        self.open.lock().unwrap().get_mut(network).unwrap().2 = peers;
        self.generation.fetch_add(1, SeqCst);
    }
}

impl JoinGate for TestGate {
    fn admit(
        &self,
        _: u64,
        peer: &PeerInfo,
        join: &Join,
        proof: Option<&[u8]>,
    ) -> Result<Admission, String> {
        if proof.is_some() {
            return Err("nobody has a key here".to_owned());
        }
        let open = self.open.lock().unwrap();
        let found = open.get(&join.network).filter(|it| it.2.contains(&peer.name));
        let (network, sidecore, _) = found.ok_or_else(|| "not open".to_owned())?;
        Ok(Admission {
            network: *network,
            sidecore: *sidecore,
            sidecores: 1 + sidecore,
            options: PortOptions {
                vlans: join.vlans.clone(),
                stations: Stations::Own(join.mac),
                isolated: self.isolated,
                ..PortOptions::of_guest(join.mac)
            },
            chain: Box::new(|port, _| port),
            right: MemberRight {
                peer: peer.name.clone(),
                network: join.network.clone(),
                key: None,
                terms: 0,
            },
        })
    }

    fn holds(&self, right: &MemberRight) -> bool {
        let open = self.open.lock().unwrap();
        open.get(&right.network).is_some_and(|it| it.2.contains(&right.peer))
    }

    fn generation(&self) -> u64 {
        self.generation.load(SeqCst)
    }
}

/// A nic's part: its stand-in, and what is known of its cable.
pub(crate) struct Nic {
    pub(crate) talker: Talker,
    pub(crate) core: Arc<CableCore>,
    pub(crate) counters: Arc<PortCounters>,
    pub(crate) flow: Option<u16>,
    /// The states of its link, as they were told.
    pub(crate) link: Arc<Mutex<Vec<bool>>>,
    bridge: Rc<RefCell<Bridge>>,
}

pub(crate) struct Host {
    name: &'static str,
    pub(crate) addr: SocketAddr,
    pub(crate) services: Services,
    pub(crate) endpoint: Rc<RefCell<Endpoint>>,
    wired: PlaneHost,
    pub(crate) plane: Rc<RefCell<NetPlane>>,
    pub(crate) gate: Arc<TestGate>,
    pub(crate) members: Arc<Members>,
    pub(crate) bridges: Vec<Rc<RefCell<Bridge>>>,
    /// The peer that it asks for a session while it has none.
    asks: Option<(SocketAddr, &'static str, Option<SessionId>)>,
    pub(crate) is_down: bool,
    /// Its sessions live, and calls about networks get no answer.
    pub(crate) is_silent: bool,
}

fn secret(name: &str) -> SecretKey {
    let mut bytes = [0x5a; 32];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    SecretKey::from_bytes(bytes)
}

fn config(
    name: &'static str,
    sealed: bool,
    life: u64,
    (index, count): (u16, u16),
) -> EndpointConfig {
    let mut config = EndpointConfig::new(name, life, life + 77);
    config.datagram_bytes_max = 1472;
    config.entropy = [life as u8 + 1; 32];
    config.entropy[1..3].copy_from_slice(&name.as_bytes()[..2]);
    config.index = index;
    config.ports = (0..count).map(|index| 4870 + index).collect();
    if sealed {
        let mut keyring = Keyring::new();
        for peer in ["vm1", "vm2", "io1"] {
            let known = KnownKey { peer: peer.to_owned(), expires_unix_s: None };
            keyring.add(secret(peer).public(), known).expect("room");
        }
        let secret = Arc::new(secret(name));
        config.security = Security::Sealed { secret, keyring: Arc::new(keyring) };
    }
    config
}

impl Host {
    fn new(name: &'static str, last: u8, sealed: bool, life: u64) -> Self {
        Self::of_several(name, last, sealed, life, (0, 1), Arc::default())
    }

    fn of_several(
        name: &'static str,
        last: u8,
        sealed: bool,
        life: u64,
        (index, count): (u16, u16),
        gate: Arc<TestGate>,
    ) -> Self {
        let addr = SocketAddr::from((Ipv4Addr::new(10, 0, 0, last), 4870 + index));
        let wired = PlaneHost::new(addr, config(name, sealed, life, (index, count)));
        let services = Services::new();
        let members = Arc::<Members>::default();
        let plane = NetPlane::new(
            &mut wired.planes.borrow_mut(),
            count,
            Arc::clone(&gate) as Arc<dyn JoinGate>,
            Arc::clone(&members),
            services.clone(),
        );
        Self {
            name,
            addr,
            services,
            endpoint: Rc::clone(&wired.endpoint),
            wired,
            plane,
            gate,
            members,
            bridges: Vec::new(),
            asks: None,
            is_down: false,
            is_silent: false,
        }
    }

    /// A network, open to all.
    pub(crate) fn network(&mut self, name: &str, number: u64) -> Rc<RefCell<Bridge>> {
        let bridge = Rc::new(RefCell::new(Bridge::new(number)));
        Bridges::insert(&self.services, number, Rc::clone(&bridge));
        self.bridges.push(Rc::clone(&bridge));
        self.open(name, number, 0);
        bridge
    }

    pub(crate) fn open(&mut self, name: &str, number: u64, sidecore: u16) {
        let peers = ["vm1", "vm2"].map(str::to_owned).to_vec();
        let entry = (number, sidecore, peers);
        self.gate.open.lock().unwrap().insert(name.to_owned(), entry);
    }

    /// A nic that must be in a network of the other node.
    pub(crate) fn nic(&mut self, network: &str, last: u8, vlans: Vlans) -> Nic {
        let (nic, bridge) = self.way(network, last, vlans.clone());
        let options = PortOptions { vlans: here(vlans), ..PortOptions::of_guest(mac(last)) };
        let talker = Box::new(nic.talker.clone());
        bridge.borrow_mut().add(options, talker, Arc::default()).unwrap();
        nic
    }

    /// The same without the nic: the way there, and the bridge for the nic.
    pub(crate) fn way(
        &mut self,
        network: &str,
        last: u8,
        vlans: Vlans,
    ) -> (Nic, Rc<RefCell<Bridge>>) {
        let (core, counters) = (Arc::<CableCore>::default(), Arc::<PortCounters>::default());
        let link = Arc::<Mutex<Vec<bool>>>::default();
        let wanted = WantedNetwork {
            peer: "io1".to_owned(),
            join: join(network, &format!("nic{last}"), mac(last), 1500, vlans),
            prove: Box::new(|_, _| None),
            told: Box::new({
                let link = Arc::clone(&link);
                move |is_there| link.lock().unwrap().push(is_there)
            }),
        };
        let made = self.plane.borrow_mut().join(wanted, Arc::clone(&core), Arc::clone(&counters));
        let (flow, port) = made;
        let bridge = Rc::new(RefCell::new(Bridge::new(1)));
        let uplink = PortOptions::of_uplink();
        bridge.borrow_mut().add(uplink, port, Arc::clone(&counters)).unwrap();
        self.bridges.push(Rc::clone(&bridge));
        let nic = Nic { talker: Talker::default(), core, counters, flow, link, bridge };
        let bridge = Rc::clone(&nic.bridge);
        (nic, bridge)
    }

    /// Takes it away.
    pub(crate) fn unplug(&mut self, now_ns: u64, nic: Nic) {
        self.plane.borrow_mut().remove(now_ns, nic.flow.unwrap());
        self.bridges.retain(|bridge| !Rc::ptr_eq(bridge, &nic.bridge));
    }

    fn serve(&mut self, now_ns: u64) {
        if let Some((addr, name, session)) = &mut self.asks {
            let mut endpoint = self.endpoint.borrow_mut();
            let is_there = |it: SessionId| endpoint.sessions().any(|all| all.session == it);
            if !session.is_some_and(is_there) {
                *session = Some(endpoint.connect(now_ns, *addr, name, 0));
            }
        }
        if !self.is_silent {
            let _ = self.plane.borrow_mut().poll(now_ns);
        }
        for bridge in &self.bridges {
            let _ = bridge.borrow_mut().poll(now_ns);
        }
    }
}

/// The guest's own VLAN is the network's to know; here its frames have no tag.
fn here(vlans: Vlans) -> Vlans {
    if matches!(vlans, Vlans::Access(_)) { Vlans::Access(0) } else { vlans }
}

pub(crate) struct World {
    pub(crate) now_ns: u64,
    pub(crate) hosts: Vec<Host>,
    sealed: bool,
    pub(crate) network: SimNetwork,
    lives: u64,
    datagram: Vec<u8>,
}

impl World {
    /// An IOhost with a network "blue" (number 1), and a VMhost that has a session with it.
    pub(crate) fn new(seed: u64, sealed: bool) -> Self {
        let mut world = Self {
            now_ns: SECOND,
            hosts: vec![Host::new("io1", 1, sealed, 1), Host::new("vm1", 2, sealed, 2)],
            sealed,
            network: SimNetwork::new(Random::new(seed)),
            lives: 10,
            datagram: Vec::new(),
        };
        // Without faults, datagrams keep their order.
        world.network.weather.jitter_ns = 0;
        world.hosts[0].network("blue", 1);
        world.hosts[1].asks = Some((world.hosts[0].addr, "io1", None));
        world
    }

    /// Another VMhost.
    pub(crate) fn add_vm2(&mut self) {
        let mut host = Host::new("vm2", 3, self.sealed, 3);
        host.asks = Some((self.hosts[0].addr, "io1", None));
        self.hosts.push(host);
    }

    /// Another sidecore of the IOhost, with a network of this name and number.
    pub(crate) fn add_second_sidecore(&mut self, network: &str, number: u64) {
        let gate = Arc::clone(&self.hosts[0].gate);
        let first = Host::of_several("io1", 1, self.sealed, 1, (0, 2), Arc::clone(&gate));
        let mut second = Host::of_several("io1", 1, self.sealed, 1, (1, 2), gate);
        second.network(network, number);
        second.open(network, number, 1);
        self.hosts[0] = first;
        self.hosts.push(second);
    }

    /// A new process in the place of a host's, with nothing of the old one left.
    pub(crate) fn restart(&mut self, host: usize) {
        self.lives += 1;
        let old = &self.hosts[host];
        let last = 1 + host as u8;
        let mut new = Host::new(old.name, last, self.sealed, self.lives);
        new.asks = old.asks.map(|(addr, name, _)| (addr, name, None));
        self.hosts[host] = new;
    }

    pub(crate) fn run(&mut self, ns: u64) {
        let end_ns = self.now_ns + ns;
        self.run_until(end_ns, |_| false);
    }

    /// Time in which hardly anything happens goes by in steps of a tenth of a second.
    pub(crate) fn idle(&mut self, seconds: u64) {
        for _ in 0..10 * seconds {
            self.now_ns += 99 * MS;
            self.run(MS);
        }
    }

    pub(crate) fn run_until(&mut self, end_ns: u64, mut so: impl FnMut(&Self) -> bool) -> bool {
        while self.now_ns < end_ns {
            self.now_ns += 10_000;
            self.round();
            if so(self) {
                return true;
            }
        }
        false
    }

    pub(crate) fn wait_for(&mut self, what: &str, so: impl FnMut(&Self) -> bool) {
        let end_ns = self.now_ns + 30 * SECOND;
        assert!(self.run_until(end_ns, so), "never {what}");
    }

    fn round(&mut self) {
        let now_ns = self.now_ns;
        while let Some((at_ns, from, to, bytes)) = self.network.arrived(now_ns) {
            let to = self.hosts.iter().find(|host| host.addr == to && !host.is_down);
            let Some(to) = to else { continue };
            to.wired.receive(now_ns, at_ns, from, &bytes);
        }
        for at in 0..self.hosts.len() {
            if self.hosts[at].is_down {
                continue;
            }
            let host = &mut self.hosts[at];
            host.wired.begin(now_ns);
            host.serve(now_ns);
            let (from, network) = (host.wired.addr, &mut self.network);
            host.wired.send(now_ns, &mut self.datagram, |to, bytes| {
                network.send(now_ns, from, to, bytes);
            });
        }
    }

    /// The network loses, delays and doubles datagrams from now on, in parts per thousand.
    pub(crate) fn disturb(&mut self, loss: u64, late: u64, duplicate: u64) {
        self.network.weather = Weather {
            loss_ppm: 1000 * loss,
            late_ppm: 1000 * late,
            late_ns: 500_000,
            duplicate_ppm: 1000 * duplicate,
            jitter_ns: 0,
            ..Weather::FINE
        };
    }

    pub(crate) fn members(&self) -> Vec<MemberInfo> {
        self.hosts[0].members.list()
    }
}

/// VLANs that are tagged.
pub(crate) fn trunk(vlans: &[u16]) -> Vlans {
    let tagged: VlanSet = vlans.iter().copied().collect();
    Vlans::Trunk { native: None, tagged }
}
