//! Whole nics under a network that loses, doubles and reorders: guests' rings on two nodes, a
//! session with casts between them, and the checker of the promise about frames
//! (`workload::frames`).
//!
//! A run is its seed: `SIM_SEED=n` replays one and prints it, `SIM_NICS=n` runs that many.

use net::maker::FrameMaker;
use net::nic::{NicOptions, features};
use net::stand_in::{HEADER, NicPlan, StandInGuest};
use net::{Bridge, PortOptions, Reason, Vlans};
use random::Random;
use virtio::{RingKind, feature as ring_feature};
use workload::frames::{FrameChecker, FrameFlow, FrameStamp};

use crate::rig::{MS, Nic, SECOND, World, mac};

/// Seeds of a run.
const SEEDS: u64 = 20;

/// Frames that each guest sends.
const FRAMES: usize = 300;

/// Datagrams that may be lost, in thousandths.
const LOSS_MAX: u64 = 150;

/// Guests: two of "blue", one on each node, and two of "red". Each sends to all others.
const GUESTS: [(u8, &str); 4] = [(1, "blue"), (2, "blue"), (3, "red"), (4, "red")];

/// Where a frame's stamp is in it, behind the headers of UDP.
const AT: usize = 42;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().filter(|text| !text.is_empty()).map(|text| text.parse().unwrap())
}

/// A guest.
struct Guest {
    number: u8,
    network: &'static str,
    side: StandInGuest,
    sent: usize,
    heard: usize,
}

impl Guest {
    fn new(bridge: &mut Bridge, number: u8, network: &'static str, kind: RingKind) -> Self {
        let plan = NicPlan {
            kind,
            event_idx: true,
            features: features(&NicOptions::new("nic", mac(number))) | ring_feature::VERSION_1,
            size: 256,
            buffer_bytes: 1526,
            mtu: u16::MAX,
        };
        let options = PortOptions { floods_per_s: 0, ..PortOptions::of_guest(mac(number)) };
        let mut side = StandInGuest::new(bridge, plan, options);
        side.post_buffers();
        Self { number, network, side, sent: 0, heard: 0 }
    }

    /// A frame to another guest, which may be in the other network; small ones mostly.
    fn say(&mut self, dice: &mut Random, checker: &mut FrameChecker) {
        let in_network = GUESTS.iter().filter(|(_, network)| *network == self.network);
        let others = in_network.map(|(number, _)| *number).chain([1 + dice.below(4) as u8]);
        let others: Vec<_> = others.filter(|number| *number != self.number).collect();
        let to = others[dice.below(others.len() as u64) as usize];
        let bytes = match dice.below(8) {
            0 => dice.below(60_000),
            1 | 2 => dice.below(8_000),
            _ => dice.below(1_400),
        } as usize;
        let flow = dice.below(4) as u16;
        // At most 64 pieces, as a chain has.
        let pieces = bytes as u32 / 64 + 3 + dice.below(4000) as u32;
        self.send((to, flow), bytes, pieces, checker);
    }

    /// Sends a frame, with so many bytes behind its stamp, if there is room.
    fn send(
        &mut self,
        (to, flow): (u8, u16),
        bytes: usize,
        pieces: u32,
        checker: &mut FrameChecker,
    ) -> bool {
        let stamp = checker.stamp(FrameFlow { from: self.number, life: 0, to, flow });
        let maker = FrameMaker::udp4().from(mac(self.number)).to(mac(to)).ports(flow, 9);
        let mut frame = maker.payload(FrameStamp::BYTES + bytes).build();
        frame[AT..][..FrameStamp::BYTES].copy_from_slice(&stamp.to_bytes());
        let is_taken = self.side.stage([0; HEADER], &frame, pieces);
        if is_taken {
            self.side.send.publish();
            checker.sent(stamp, &frame);
            self.sent += 1;
        }
        is_taken
    }

    fn hear(&mut self, seed: u64, checker: &mut FrameChecker) {
        self.side.reap();
        for heard in self.side.hear_all() {
            let heard = checker.heard((self.number, 0), &heard, AT);
            heard.unwrap_or_else(|breach| panic!("seed {seed}: {breach}"));
            self.heard += 1;
        }
    }
}

/// One run. Returns the part of the frames with a receiver that arrived.
fn run(seed: u64) -> f64 {
    let mut dice = Random::new(seed);
    let mut world = World::new(seed, dice.below(2) == 0);
    world.hosts[0].network("red", 2);
    let kinds = [RingKind::Split, RingKind::Packed];
    let (mut guests, mut checker) = (Vec::new(), FrameChecker::default());
    let mut ways: Vec<Nic> = Vec::new();
    for (at, (number, network)) in GUESTS.into_iter().enumerate() {
        let kind = kinds[dice.below(2) as usize];
        checker.place(number, network.len() as u8);
        // One of each network is where that is, the other one on the other node.
        let guest = if at % 2 == 0 {
            let bridge = &world.hosts[0].bridges[at / 2];
            Guest::new(&mut bridge.borrow_mut(), number, network, kind)
        } else {
            let (way, bridge) = world.hosts[1].way(network, number, Vlans::Access(0));
            ways.push(way);
            Guest::new(&mut bridge.borrow_mut(), number, network, kind)
        };
        guests.push(guest);
    }
    let cores: Vec<_> = ways.iter().map(|way| std::sync::Arc::clone(&way.core)).collect();
    world.wait_for("joined", move |_| cores.iter().all(|core| core.is_joined()));
    let (loss, late, duplicate) = (dice.below(LOSS_MAX + 1), dice.below(200), dice.below(50));
    world.disturb(loss, late, duplicate);
    let mut turns = 0;
    while guests.iter().any(|guest| guest.sent < FRAMES) {
        turns += 1;
        assert!(turns < 100 * FRAMES, "seed {seed}: nothing is taken any more");
        for guest in guests.iter_mut().filter(|guest| guest.sent < FRAMES) {
            (0..dice.below(4)).for_each(|_| guest.say(&mut dice, &mut checker));
        }
        world.run(200_000);
        guests.iter_mut().for_each(|guest| guest.hear(seed, &mut checker));
    }
    world.run(SECOND);
    guests.iter_mut().for_each(|guest| guest.hear(seed, &mut checker));
    let heard: usize = guests.iter().map(|guest| guest.heard).sum();
    let (mut to_nobody, mut others) = (0, 0);
    for guest in &guests {
        let drops = &guest.side.core.counters().drops_in;
        to_nobody += drops.get(Reason::Nowhere);
        others += drops.total() - drops.get(Reason::Nowhere);
        assert!(!guest.side.core.is_broken(), "seed {seed}");
    }
    // To another network: one of the other node learns that there, where it is dropped.
    for way in &ways {
        others += way.counters.drops_out.total();
    }
    for member in world.members() {
        to_nobody += member.counters.drops_in.get(Reason::Nowhere);
    }
    let sent: usize = guests.iter().map(|guest| guest.sent).sum();
    let had_somewhere = sent as u64 - to_nobody;
    assert!(heard as u64 <= had_somewhere, "seed {seed}: {heard} of {had_somewhere}");
    let share = heard as f64 / had_somewhere as f64;
    let counts = world.network.counts;
    println!(
        "seed {seed}: {heard} of {had_somewhere} frames came, {to_nobody} had nowhere to go, \
         {others} were dropped; {loss} of 1000 datagrams lost, {late} late, {} in all",
        counts.lost
    );
    share
}

#[test]
fn whole_nics_hear_what_is_for_them_as_it_was_sent_and_in_order() {
    if let Some(seed) = number("SIM_SEED") {
        run(seed);
        return;
    }
    let seeds = number("SIM_NICS").unwrap_or(SEEDS);
    for seed in 0..seeds {
        let share = run(seed);
        // A frame of 60 KB has 41 datagrams, each of which is sent again and again for a while.
        assert!(share > 0.99, "seed {seed}: {share} of the frames came");
    }
}

/// A stream of frames of 64 KiB, as fast as they are taken; how long that took, and what was lost.
fn stream(loss: u64) -> (u64, usize) {
    const COUNT: usize = 1000;
    let mut world = World::new(77, true);
    let (way, bridge) = world.hosts[1].way("blue", 2, Vlans::Access(0));
    let mut sender = Guest::new(&mut bridge.borrow_mut(), 2, "blue", RingKind::Split);
    let here = std::rc::Rc::clone(&world.hosts[0].bridges[0]);
    let mut receiver = Guest::new(&mut here.borrow_mut(), 1, "blue", RingKind::Split);
    let core = std::sync::Arc::clone(&way.core);
    world.wait_for("joined", move |_| core.is_joined());
    let mut checker = FrameChecker::default();
    [1, 2].into_iter().for_each(|number| checker.place(number, 0));
    world.disturb(loss, 0, 0);
    let began_ns = world.now_ns;
    let mut last_ns = began_ns;
    while sender.sent < COUNT || world.now_ns < last_ns + 100 * MS {
        // So many are under way as a transport's window of 512 KiB has.
        let lost = way.counters.drops_out.total() as usize;
        while sender.sent < COUNT && sender.sent - receiver.heard - lost < 8 {
            assert!(sender.send((1, 0), 64_000, 65_536, &mut checker), "room");
        }
        world.run(10_000);
        sender.hear(77, &mut checker);
        let before = receiver.heard;
        receiver.hear(77, &mut checker);
        if receiver.heard > before {
            last_ns = world.now_ns;
        }
        if world.now_ns > last_ns + 50 * MS {
            // The missing frames were given up.
            break;
        }
    }
    (last_ns - began_ns, COUNT - receiver.heard)
}

/// "Loss of 0.1 % of datagrams costs a 64 KiB stream little": in the simulator's time, which has no
/// processors in it.
#[test]
fn a_stream_of_64_kib_loses_little_by_a_loss_of_datagrams() {
    let (whole_ns, none) = stream(0);
    assert_eq!(none, 0);
    for loss in [1, 10] {
        let (ns, lost) = stream(loss);
        let longer = 100.0 * (ns as f64 / whole_ns as f64 - 1.0);
        println!(
            "{}.{} % of datagrams lost: {lost} of 1000 frames of 64 KiB lost, the stream takes \
             {longer:.1} % longer",
            loss / 10,
            loss % 10
        );
        assert!(lost <= loss as usize, "{lost} frames, {loss} of 1000 datagrams");
        assert!(longer < 20.0 * loss as f64, "{longer} %");
    }
}
