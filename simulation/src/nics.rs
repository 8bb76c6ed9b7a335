//! The networks of a simulated world: real nics, with rings that outlive the processes that serve
//! them, and the real plane of networks between them.
//!
//! ```text
//!   VMhost: station 2 ── bridge of two ═ casts ═ bridge of "blue" ── station 1 :IOhost
//!           station 4 ── bridge of two ═ casts ═ bridge of "red" ─── station 3
//! ```
//!
//! The faults of the world mean this for a nic:
//!
//! | fault | the nic |
//! | --- | --- |
//! | the IOhost is killed | its networks are away; members join again; its guests' rings go on |
//! | the IOhost's power is cut | the same, and its guests start afresh |
//! | the VMhost is killed or hands over | the guest's rings go on in the next process |
//! | the VMhost stops in order | the nic leaves its network first |
//! | the guest is migrated, or starts afresh anywhere | another life with the same address |
//! | the old VMhost lives on | its nic leaves as soon as it runs |
//! | the same, and its guest was thought dead | its nic asks for its place again and again |

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use net::maker::FrameMaker;
use net::network::Bridges;
use net::nic::{NicOptions, features};
use net::remote::{Admission, CableCore, Join, JoinGate, MemberRight, WantedNetwork, join};
use net::stage::{Action, Filter, FilterCore, Staged, Stages};
use net::stand_in::{HEADER, NicPlan, StandInGuest};
use net::{Bridge, Mac, PortOptions, Rules, Stations, Vlans};
use random::Random;
use transport::PeerInfo;
use virtio::{RingKind, feature};
use workload::frames::{EVERYONE, FrameBreach, FrameChecker, FrameFlow, FrameStamp, GuestLife};

use super::host::SimCore;
use super::server::SERVER;

/// The networks, with the station of the IOhost and that of the guest on a VMhost in each.
const NETWORKS: [(&str, u8, u8); 2] = [("blue", 1, 2), ("red", 3, 4)];

/// How often guests send frames, when the run goes on anyway. Seldom: seeds are many.
const EVERY_NS: u64 = 100_000_000;

/// How often guests look for frames.
const LOOK_NS: u64 = 1_000_000;

/// The longest payload: a segment of a guest's.
const BYTES_MAX: u64 = 60 << 10;

/// The flows of a guest, by UDP's port. The networks' rules deny the last one.
const FLOWS: u64 = 4;

/// Where the stamp is in a frame: behind the headers of UDP.
const STAMP_AT: usize = 42;

/// The counts of frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct FrameCounts {
    /// Given to nics.
    pub sent: u64,
    /// Heard by guests: each once, unchanged and in its order, by the station that it was for.
    pub heard: u64,
}

impl FrameCounts {
    /// Adds another run's.
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.heard += other.heard;
    }
}

impl fmt::Display for FrameCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, heard } = self;
        write!(f, "frames: {sent} sent, {heard} heard, each once, unchanged and in its order")
    }
}

fn mac(station: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0, station])
}

/// A guest's nic.
#[derive(Debug)]
pub(super) struct GuestNic {
    station: u8,
    network: &'static str,
    life: GuestLife,
    kind: RingKind,
    /// Since a process first served it.
    side: Option<StandInGuest>,
}

impl GuestNic {
    /// Serves it from now on, as a port of this bridge.
    fn plug(&mut self, bridge: &mut Bridge) {
        let options = PortOptions::of_guest(mac(self.station));
        match &mut self.side {
            Some(side) => side.go_over(bridge, options),
            None => {
                let plan = NicPlan {
                    kind: self.kind,
                    event_idx: true,
                    features: features(&NicOptions::new("nic", mac(self.station)))
                        | feature::VERSION_1,
                    size: 64,
                    buffer_bytes: 4096,
                    mtu: u16::MAX,
                };
                self.side.insert(StandInGuest::new(bridge, plan, options)).post_buffers();
            }
        }
    }

    /// Whether the nic takes a frame of this flow.
    fn send(&mut self, flow: FrameFlow, payload: usize, checker: &mut FrameChecker) -> bool {
        let Some(side) = &mut self.side else { return false };
        let stamp = checker.stamp(flow);
        let to = if flow.to == EVERYONE { Mac::BROADCAST } else { mac(flow.to) };
        let bytes = FrameStamp::BYTES + payload;
        let maker = FrameMaker::udp4().from(mac(flow.from)).to(to).ports(flow.flow, 9);
        let mut frame = maker.payload(bytes).build();
        frame[STAMP_AT..][..FrameStamp::BYTES].copy_from_slice(&stamp.to_bytes());
        let is_taken = side.stage([0; HEADER], &frame, 4096);
        if is_taken {
            side.send.publish();
            checker.sent(stamp, &frame);
        }
        is_taken
    }

    fn look(&mut self, checker: &mut FrameChecker) -> Result<(), FrameBreach> {
        let Some(side) = &mut self.side else { return Ok(()) };
        side.reap();
        while let Some((_, frame)) = side.hear() {
            checker.heard((self.station, self.life), &frame, STAMP_AT)?;
        }
        Ok(())
    }

    fn is_broken(&self) -> bool {
        self.side.as_ref().is_some_and(|side| side.core.is_broken())
    }
}

/// The place of a nic in the process that serves it.
#[derive(Debug)]
struct PluggedNic {
    sidecore: usize,
    /// The flow of its membership.
    flow: Option<u16>,
    bridge: Rc<RefCell<Bridge>>,
    cable: Arc<CableCore>,
}

/// The nics of a guest on a VMhost, and their places in the process that serves them.
#[derive(Debug, Default)]
pub(super) struct GuestNics {
    nics: Vec<GuestNic>,
    plugged: Vec<PluggedNic>,
    is_plugged: bool,
    /// The guest is here no more.
    has_gone: bool,
}

impl GuestNics {
    /// Joins the networks, once in each process.
    pub(super) fn plug(&mut self, cores: &mut [SimCore], random: &mut Random) {
        if self.is_plugged {
            return;
        }
        self.is_plugged = true;
        for nic in &mut self.nics {
            let sidecore = random.below(cores.len() as u64) as usize;
            let core = &mut cores[sidecore];
            let name = format!("nic{}", nic.station);
            let wanted = WantedNetwork {
                peer: SERVER.0.to_owned(),
                join: join(nic.network, &name, mac(nic.station), 1500, Vlans::Access(0)),
                prove: Box::new(|_, _| None),
                told: Box::new(|_| ()),
            };
            let (cable, counters) = (Arc::<CableCore>::default(), Arc::default());
            let joined =
                core.net.borrow_mut().join(wanted, Arc::clone(&cable), Arc::clone(&counters));
            let (flow, port) = joined;
            core.planes.peers().borrow_mut().hold_named(SERVER.0);
            let mut bridge = Bridge::new(1);
            bridge.add(PortOptions::of_uplink(), port, counters).expect("the first port");
            nic.plug(&mut bridge);
            let bridge = Rc::new(RefCell::new(bridge));
            core.bridges.push(Rc::clone(&bridge));
            self.plugged.push(PluggedNic { sidecore, flow, bridge, cable });
        }
    }

    /// The process that served them is gone.
    pub(super) fn unplugged(&mut self) {
        self.plugged.clear();
        self.is_plugged = false;
    }

    /// Its front end goes: the nics leave their networks.
    pub(super) fn leave(&mut self, now_ns: u64, cores: &mut [SimCore]) {
        for PluggedNic { sidecore, flow, bridge, .. } in self.plugged.drain(..) {
            let core = &mut cores[sidecore];
            if let Some(flow) = flow {
                core.net.borrow_mut().remove(now_ns, flow);
            }
            core.planes.peers().borrow_mut().release_named(SERVER.0);
            core.bridges.retain(|it| !Rc::ptr_eq(it, &bridge));
        }
    }

    /// The guest goes on elsewhere: the nics leave as soon as this VMhost runs.
    pub(super) fn go(&mut self) {
        self.has_gone = true;
    }

    /// Whether the guest goes on elsewhere, as far as its VMM knows.
    pub(super) fn has_gone(&self) -> bool {
        self.has_gone
    }
}

/// The networks of an IOhost's process that are open, and their sidecores.
#[derive(Debug, Default)]
pub(super) struct OpenNetworks {
    sidecores: u16,
    networks: BTreeMap<&'static str, (u64, u16)>,
}

impl OpenNetworks {
    /// The networks of an IOhost, each on a sidecore by chance.
    pub(super) fn of_server(sidecores: u16, random: &mut Random) -> Arc<Self> {
        let some = |random: &mut Random| random.below(u64::from(sidecores)) as u16;
        let networks =
            (1..).zip(NETWORKS).map(|(number, (name, ..))| (name, (number, some(random))));
        Arc::new(Self { sidecores, networks: networks.collect() })
    }
}

fn rules() -> Rules {
    let denied = format!("deny udp from any port {}", FLOWS - 1);
    Rules::parse(&[denied], Action::Allow).expect("a rule of ours")
}

impl JoinGate for OpenNetworks {
    fn admit(
        &self,
        _: u64,
        peer: &PeerInfo,
        join: &Join,
        _: Option<&[u8]>,
    ) -> Result<Admission, String> {
        let found = self.networks.get(join.network.as_str());
        let (network, sidecore) = *found.ok_or_else(|| "not open".to_owned())?;
        Ok(Admission {
            network,
            sidecore,
            sidecores: self.sidecores,
            options: PortOptions {
                stations: Stations::Own(join.mac),
                ..PortOptions::of_guest(join.mac)
            },
            chain: Box::new(|port, counters| {
                let core = FilterCore::new(&rules());
                let filter = Some(Filter::new(rules(), core, 1));
                let stages = Stages { filter, ..Stages::default() };
                Box::new(Staged::new(port, Rc::new(RefCell::new(stages)), Arc::clone(counters)))
            }),
            right: MemberRight {
                peer: peer.name.clone(),
                network: join.network.clone(),
                key: None,
                terms: 0,
            },
        })
    }

    fn holds(&self, _: &MemberRight) -> bool {
        true
    }

    fn generation(&self) -> u64 {
        0
    }
}

/// All that a world knows of frames.
#[derive(Debug)]
pub(super) struct Frames {
    random: Random,
    checker: FrameChecker,
    /// The nics of the IOhost's guests.
    here: Vec<GuestNic>,
    send_at_ns: u64,
    look_at_ns: u64,
    pub(super) counts: FrameCounts,
}

impl Frames {
    pub(super) fn new(random: Random) -> Self {
        let mut checker = FrameChecker::default();
        for (network, (_, here, there)) in (0..).zip(NETWORKS) {
            checker.place(here, network);
            checker.place(there, network);
        }
        checker.deny(FLOWS as u16 - 1);
        let (here, counts) = (Vec::new(), FrameCounts::default());
        let mut frames = Self { random, checker, here, send_at_ns: 0, look_at_ns: 0, counts };
        frames.restart_here();
        frames
    }

    fn nic(&mut self, station: u8, network: &'static str) -> GuestNic {
        let kind = if self.random.hits(500_000) { RingKind::Packed } else { RingKind::Split };
        GuestNic { station, network, life: self.checker.begin_life(), kind, side: None }
    }

    /// The guests of the IOhost start afresh.
    pub(super) fn restart_here(&mut self) {
        self.here = NETWORKS.map(|(network, here, _)| self.nic(here, network)).into();
    }

    /// The nics of a guest that starts on a VMhost.
    pub(super) fn guest(&mut self) -> GuestNics {
        let nics = NETWORKS.map(|(network, _, there)| self.nic(there, network)).into();
        GuestNics { nics, ..GuestNics::default() }
    }

    /// Puts the networks, with the nics of the IOhost's guests, onto the sidecores of a process.
    pub(super) fn plug_here(&mut self, cores: &mut [SimCore], open: &OpenNetworks) {
        for nic in &mut self.here {
            let (number, sidecore) = open.networks[nic.network];
            let core = &mut cores[usize::from(sidecore)];
            let mut bridge = Bridge::new(number);
            nic.plug(&mut bridge);
            let bridge = Rc::new(RefCell::new(bridge));
            Bridges::insert(&core.services, number, Rc::clone(&bridge));
            core.bridges.push(bridge);
        }
    }

    /// When guests have something to send.
    pub(super) fn next_ns(&self) -> Option<u64> {
        Some(self.send_at_ns).filter(|at_ns| *at_ns != u64::MAX)
    }

    /// Guests send nothing more.
    pub(super) fn fall_silent(&mut self) {
        self.send_at_ns = u64::MAX;
    }

    /// Guests send what is due, and look at what has come. Guests of VMhosts that were replaced
    /// only look.
    pub(super) fn work<'a>(
        &mut self,
        now_ns: u64,
        guest: &mut GuestNics,
        retired: impl Iterator<Item = &'a mut GuestNics>,
    ) -> Result<(), String> {
        if now_ns >= self.send_at_ns {
            self.send_at_ns = now_ns + EVERY_NS;
            self.send(guest);
        }
        if now_ns < self.look_at_ns {
            return Ok(());
        }
        self.look_at_ns = now_ns + LOOK_NS;
        let others = retired.flat_map(|it| it.nics.iter_mut());
        for nic in self.here.iter_mut().chain(&mut guest.nics).chain(others) {
            nic.look(&mut self.checker).map_err(|breach| breach.to_string())?;
            if nic.is_broken() {
                return Err(format!("the nic of station {} is broken", nic.station));
            }
        }
        self.counts.heard = self.checker.count();
        Ok(())
    }

    fn send(&mut self, guest: &mut GuestNics) {
        let Self { here, checker, random, counts, .. } = self;
        for nic in here.iter_mut().chain(&mut guest.nics) {
            for _ in 0..random.below(3) {
                let to = match random.below(6) {
                    0 => EVERYONE,
                    1 => 1 + random.below(4) as u8,
                    // The other station of its network.
                    _ => 1 + ((nic.station - 1) ^ 1),
                };
                let bytes = match random.below(8) {
                    0 => random.below(BYTES_MAX),
                    1 | 2 => random.below(4_000),
                    _ => random.below(1_400),
                };
                if to != nic.station {
                    let flow = random.below(FLOWS) as u16;
                    let flow = FrameFlow { from: nic.station, life: nic.life, to, flow };
                    counts.sent += u64::from(nic.send(flow, bytes as usize, checker));
                }
            }
        }
    }

    /// From now on nothing fails.
    pub(super) fn look_anew(&mut self) {
        self.checker.look_anew();
    }

    /// Whether frames flow: each station has heard the other one of its network since
    /// [`Self::look_anew`].
    pub(super) fn do_flow(&self) -> bool {
        self.silent_pairs().next().is_none()
    }

    /// The pairs, sender first, of which the second has not heard the first.
    fn silent_pairs(&self) -> impl Iterator<Item = (u8, u8)> {
        let pairs = NETWORKS.into_iter().flat_map(|(_, one, other)| [(one, other), (other, one)]);
        pairs.filter(|(from, by)| !self.checker.has_heard_since(*from, *by))
    }

    /// Which stations have not heard each other, and how the guest's nics are joined.
    pub(super) fn describe(&self, guest: &GuestNics) -> String {
        let silent: Vec<_> = self.silent_pairs().collect();
        let cables = guest.plugged.iter().map(|it| (it.cable.is_joined(), it.cable.why()));
        format!("silent pairs {silent:?}, cables {:?}", cables.collect::<Vec<_>>())
    }
}
