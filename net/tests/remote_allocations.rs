//! Once warm, a frame's way to a network of another node allocates nothing, on either side.

#[path = "../../sidecore/tests/counting/mod.rs"]
mod counting;
#[path = "../../peer/tests/hosts/mod.rs"]
mod hosts;

use std::cell::{Cell, RefCell};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use counting::allocations;
use hosts::PlaneHost;
use net::maker::FrameMaker;
use net::network::Bridges;
use net::remote::{Admission, Join, JoinGate, MemberRight, NetPlane, WantedNetwork, join};
use net::{Bridge, Burst, Chosen, Mac, Port, PortOptions, Vlans};
use sidecore::{Progress, Services};
use transport::{EndpointConfig, PeerInfo};
use virtio::Segment;

const BLUE: u64 = 1;

/// Lets every peer in.
#[derive(Debug)]
struct Open;

impl JoinGate for Open {
    fn admit(
        &self,
        _: u64,
        peer: &PeerInfo,
        join: &Join,
        _: Option<&[u8]>,
    ) -> Result<Admission, String> {
        let network = join.network.clone();
        Ok(Admission {
            network: BLUE,
            sidecore: 0,
            sidecores: 1,
            options: PortOptions::of_guest(join.mac),
            chain: Box::new(|port, _| port),
            right: MemberRight { peer: peer.name.clone(), network, key: None, terms: 0 },
        })
    }

    fn holds(&self, _: &MemberRight) -> bool {
        true
    }

    fn generation(&self) -> u64 {
        0
    }
}

/// Says the same frames again and again, and counts what it hears.
#[derive(Debug)]
struct Talker {
    frames: Vec<Vec<u8>>,
    to_say: Rc<Cell<usize>>,
    heard: Rc<Cell<usize>>,
}

impl Port for Talker {
    fn receive(&mut self, burst: &mut Burst, _: u64) -> Progress {
        while !burst.is_full() && self.to_say.get() > 0 {
            let left = self.to_say.get() - 1;
            self.to_say.set(left);
            let count = self.frames.len();
            let bytes = &mut self.frames[left % count];
            let segment = Segment { addr: bytes.as_mut_ptr(), len: bytes.len() as u32 };
            // SAFETY: the frames stay where they are for as long as the port lives.
            unsafe { burst.push(&[segment], 0) }.expect("a frame");
        }
        Progress::busy_if(!burst.is_empty())
    }

    fn release(&mut self, burst: &mut Burst) {
        burst.clear();
    }

    fn transmit(&mut self, _: &Burst, chosen: &[Chosen], _: u64) {
        self.heard.set(self.heard.get() + chosen.len());
    }

    fn flush(&mut self) {}
}

struct Host {
    wired: PlaneHost,
    plane: Rc<RefCell<NetPlane>>,
    bridge: Rc<RefCell<Bridge>>,
    to_say: Rc<Cell<usize>>,
    heard: Rc<Cell<usize>>,
}

fn mac(last: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0, last])
}

impl Host {
    /// With a talker that has this address and talks to the other one.
    fn new(name: &str, own: u8, other: u8) -> Self {
        let mut config = EndpointConfig::new(name, own.into(), own.into());
        config.datagram_bytes_max = 8972;
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 4870 + u16::from(own)));
        let wired = PlaneHost::new(addr, config);
        let services = Services::new();
        let members = Arc::default();
        let gate = Arc::new(Open);
        let mut planes = wired.planes.borrow_mut();
        let plane = NetPlane::new(&mut planes, 1, gate, members, services.clone());
        drop(planes);
        let bridge = Rc::new(RefCell::new(Bridge::new(7)));
        Bridges::insert(&services, BLUE, Rc::clone(&bridge));
        let (to_say, heard) = (Rc::<Cell<usize>>::default(), Rc::<Cell<usize>>::default());
        let maker = |bytes| FrameMaker::udp4().from(mac(own)).to(mac(other)).payload(bytes).build();
        let frames = [20, 1400, 60_000].map(maker).to_vec();
        let talker = Talker { frames, to_say: Rc::clone(&to_say), heard: Rc::clone(&heard) };
        let options = PortOptions::of_guest(mac(own));
        bridge.borrow_mut().add(options, Box::new(talker), Arc::default()).unwrap();
        Self { wired, plane, bridge, to_say, heard }
    }

    fn round(&mut self, to: &Self, now_ns: u64, datagram: &mut Vec<u8>) {
        self.wired.begin(now_ns);
        let _ = self.plane.borrow_mut().poll(now_ns);
        let _ = self.bridge.borrow_mut().poll(now_ns);
        let from = self.wired.addr;
        self.wired.send(now_ns, datagram, |_, bytes| to.wired.receive(now_ns, now_ns, from, bytes));
    }
}

#[test]
fn frames_across_nodes_do_not_allocate() {
    let (mut io, mut vm) = (Host::new("io1", 1, 2), Host::new("vm1", 2, 1));
    let wanted = WantedNetwork {
        peer: "io1".to_owned(),
        join: join("blue", "nic", mac(2), 1500, Vlans::Access(0)),
        prove: Box::new(|_, _| None),
        told: Box::new(|_| {}),
    };
    let core = Arc::default();
    let (_, port) = vm.plane.borrow_mut().join(wanted, Arc::clone(&core), Arc::default());
    let uplink = PortOptions::of_uplink();
    vm.bridge.borrow_mut().add(uplink, port, Arc::default()).unwrap();
    vm.wired.endpoint.borrow_mut().connect(1, io.wired.addr, "io1", 0);
    let mut datagram = Vec::with_capacity(1 << 16);
    let mut now_ns = 1;
    let mut turn = |frames: usize, rounds: usize| {
        for _ in 0..rounds {
            now_ns += 50_000;
            io.to_say.set(frames);
            vm.to_say.set(frames);
            vm.round(&io, now_ns, &mut datagram);
            io.round(&vm, now_ns, &mut datagram);
        }
        // Frames on their way arrive.
        for _ in 0..40 {
            now_ns += 50_000;
            vm.round(&io, now_ns, &mut datagram);
            io.round(&vm, now_ns, &mut datagram);
        }
        (io.heard.take(), vm.heard.take())
    };
    turn(0, 20);
    assert!(core.is_joined());
    // More at a time than later: pools and tables grow to the most that was ever needed.
    turn(9, 400);
    let before = allocations();
    assert!(before > 0, "the count works");
    let (there, here) = turn(3, 400);
    assert_eq!(allocations() - before, 0, "allocations in {there} and {here} frames");
    assert!(there > 400 && here > 400, "{there} and {here} frames");
}
