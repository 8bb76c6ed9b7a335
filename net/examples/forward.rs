//! The time that a frame through the switch costs a sidecore.
//!
//!     cargo run --release --package net --example forward
//!
//! First with both guests driven by the same thread, so that no line has to come from another core:
//! nanoseconds for each frame, the least of many bursts. That is steady on a busy machine too. Then
//! with the guests on a thread of their own: frames per second, the most of some runs. At last one
//! guest alone, with a port beside it that makes frames or takes them, which is half of the way.
//! `vrio bench net` measures the whole of it, with a node and sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use net::maker::FrameMaker;
use net::nic::{NicOptions, features};
use net::stand_in::{HEADER, NicPlan, StandInGuest};
use net::{Bridge, Burst, Chosen, Mac, Port, PortOptions};
use sidecore::Progress;
use virtio::driver::{FramePart, FrameRing, RequestSlot};
use virtio::{RingKind, Segment};

/// A burst.
const FRAMES: usize = 64;

/// Of these the least is printed.
const BURSTS: usize = 20_000;

/// How long two threads work, and how often.
const RUN: Duration = Duration::from_millis(200);
const RUNS: usize = 5;

fn mac(last: u8) -> Mac {
    Mac([0x52, 0x54, 0, 0, 0, last])
}

/// A port that is no nic: it takes everything, and makes frames for the guest while `makes` is set.
#[derive(Debug)]
struct Half {
    frame: Vec<u8>,
    makes: bool,
}

impl Port for Half {
    fn receive(&mut self, burst: &mut Burst, _now_ns: u64) -> Progress {
        let piece = Segment { addr: self.frame.as_mut_ptr(), len: self.frame.len() as u32 };
        while self.makes && !burst.is_full() {
            // SAFETY: the frame lives as long as its port, which the burst is given back to.
            unsafe { burst.push(&[piece], 0) }.expect("a frame");
        }
        Progress::busy_if(self.makes)
    }

    fn release(&mut self, burst: &mut Burst) {
        burst.clear();
    }

    fn transmit(&mut self, _burst: &Burst, _chosen: &[Chosen], _now_ns: u64) {}

    fn flush(&mut self) {}
}

/// A guest that sends to the others.
struct Guests {
    send: FrameRing,
    receive: Vec<FrameRing>,
    buffer_bytes: u32,
    /// Frames that were made beforehand, and how long they are.
    slots: Vec<(RequestSlot, u32)>,
    next: usize,
}

impl Guests {
    /// A bridge, and a guest that has frames of this length for so many others.
    fn new(kind: RingKind, bytes: usize, others: u8) -> (Bridge, Self) {
        let features = features(&NicOptions::new("nic", mac(1))) | virtio::feature::VERSION_1;
        let plan =
            NicPlan { kind, event_idx: true, features, size: 256, buffer_bytes: 2048, mtu: 1500 };
        let mut bridge = Bridge::new(1);
        let mut side = |last| {
            let mut side = StandInGuest::new(&mut bridge, plan, PortOptions::of_guest(mac(last)));
            side.post_buffers();
            side
        };
        let mut send = side(1).send;
        let receive = (0..others).map(|other| side(2 + other).receive).collect();
        let mut slots = Vec::new();
        while let Some(slot) = send.take_slot() {
            let to = mac(2 + (slots.len() % usize::from(others)) as u8);
            let frame = FrameMaker::udp4().to(to).from(mac(1)).payload(bytes - 42).build();
            send.write(slot, 0, &[0; HEADER]);
            send.write(slot, HEADER as u32, &frame);
            slots.push((slot, (HEADER + frame.len()) as u32));
        }
        (bridge, Self { send, receive, buffer_bytes: plan.buffer_bytes, slots, next: 0 })
    }

    /// One of two guests, and in the other one's place a port that makes its frames, or takes them.
    fn beside_half(kind: RingKind, bytes: usize, makes: bool) -> (Bridge, Self) {
        let (mut bridge, guests) = Self::new(kind, bytes, 1);
        let (number, own) = if makes { (0, mac(1)) } else { (1, mac(2)) };
        bridge.remove(number).expect("a guest");
        let frame = FrameMaker::udp4().to(mac(2)).from(mac(1)).payload(bytes - 42).build();
        let half = Box::new(Half { frame, makes });
        bridge.add(PortOptions::of_guest(own), half, Arc::default()).expect("a place");
        (bridge, guests)
    }

    /// Sends some.
    fn say(&mut self, frames: usize) {
        for _ in 0..frames {
            let (slot, len) = self.slots[self.next];
            self.next = (self.next + 1) % self.slots.len();
            assert!(self.send.post(slot, &[FramePart { offset: 0, len }], false));
        }
        if frames > 0 {
            self.send.publish();
        }
    }

    /// Takes back what was sent, and what came; how many of each.
    fn hear(&mut self) -> (usize, usize) {
        // Its slots are posted by their own list.
        let (mut gone, mut frames) = (0, 0);
        while self.send.complete().expect("an honest device").is_some() {
            gone += 1;
        }
        for ring in &mut self.receive {
            let before = frames;
            while let Some((slot, _)) = ring.complete().expect("an honest device") {
                let part = FramePart { offset: 0, len: self.buffer_bytes };
                assert!(ring.post(slot, &[part], false));
                frames += 1;
            }
            if frames > before {
                ring.publish();
            }
        }
        (gone, frames)
    }
}

/// The least time that the bridge took for a burst of these, for each frame.
fn frame_ns(kind: RingKind, bytes: usize, others: u8) -> f64 {
    let (mut bridge, mut guests) = Guests::new(kind, bytes, others);
    let mut least_ns = f64::MAX;
    for _ in 0..BURSTS {
        guests.say(FRAMES);
        let start = Instant::now();
        let progress = bridge.poll(0);
        least_ns = least_ns.min(start.elapsed().as_nanos() as f64 / FRAMES as f64);
        assert!(progress.is_busy());
        assert_eq!(guests.hear(), (FRAMES, FRAMES), "every frame arrives");
    }
    least_ns
}

/// The ports beside the guest that sends.
#[derive(Clone, Copy)]
enum Beside {
    /// So many other guests.
    Guests(u8),
    /// A port that takes its frames, or makes frames for it.
    Half { makes: bool },
}

/// Millions of frames in a second when the bridge has a thread of its own.
fn frames_per_us(kind: RingKind, bytes: usize, beside: Beside) -> f64 {
    let over = Arc::new(AtomicBool::new(false));
    let (give, take) = mpsc::channel();
    let bridge = thread::spawn({
        let over = Arc::clone(&over);
        move || {
            let (mut bridge, guests) = match beside {
                Beside::Guests(others) => Guests::new(kind, bytes, others),
                Beside::Half { makes } => Guests::beside_half(kind, bytes, makes),
            };
            give.send(guests).expect("it is waited for");
            while !over.load(Relaxed) {
                let _ = bridge.poll(0);
            }
        }
    });
    let mut guests = take.recv().expect("a bridge");
    let only_hears = matches!(beside, Beside::Half { makes: true });
    let (start, mut frames, mut under_way) = (Instant::now(), 0, 0);
    while start.elapsed() < RUN {
        let free = (guests.slots.len() / 2 - under_way).min(FRAMES);
        if !only_hears {
            guests.say(free);
        }
        let (gone, came) = guests.hear();
        let done = if matches!(beside, Beside::Half { makes: false }) { gone } else { came };
        if !only_hears {
            under_way = under_way + free - done;
        }
        frames += done;
    }
    let rate = frames as f64 / start.elapsed().as_micros() as f64;
    over.store(true, Relaxed);
    bridge.join().expect("a bridge");
    rate
}

fn most_per_us(kind: RingKind, bytes: usize, beside: Beside) -> f64 {
    (0..RUNS).map(|_| frames_per_us(kind, bytes, beside)).fold(0.0, f64::max)
}

fn main() {
    for (kind, bytes, others) in [
        (RingKind::Split, 64, 1),
        (RingKind::Split, 64, 2),
        (RingKind::Split, 1514, 1),
        (RingKind::Packed, 64, 1),
    ] {
        let ns = frame_ns(kind, bytes, others);
        let most = most_per_us(kind, bytes, Beside::Guests(others));
        println!("{kind:?}, {bytes} bytes, to {others}: {ns:.1} ns a frame; {most:.1} M frames/s");
    }
    for makes in [true, false] {
        let way = if makes { "to a guest" } else { "from a guest" };
        let most = most_per_us(RingKind::Split, 64, Beside::Half { makes });
        println!("Split, 64 bytes, only {way}: {most:.1} M frames/s");
    }
}
