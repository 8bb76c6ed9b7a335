//! Who says and hears frames, in the place of a nic: a port of a bridge.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Release},
};

use net::{Burst, Chosen, Offers, Offload, Port};
use sidecore::{Padded, Progress, Wake, now_ns};
use virtio::Segment;

use crate::load::Outcome;
use crate::net::flight::TIME_OUT_NS;
use crate::net::packet::{HEADER_BYTES, Mark, Packet, mark_of, write_mark};

/// Copies of what is sent, each with a mark of its own, used in turn; and places for what comes: as
/// a guest's stack has its data in ever other pages. Fewer are under way, or marks mean nothing.
const PLACES: usize = 16;

/// Room for the longest frame.
const ROOM_BYTES: usize = net::FRAME_BYTES_MAX;

/// What became of frames, written by who takes them and read by the other end.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrived(Arc<Padded<Fate>>);

#[derive(Debug, Default)]
struct Fate {
    arrived: AtomicU64,
    /// Those that were overtaken among them: they are lost.
    over: AtomicU64,
}

impl Arrived {
    /// Frames that have arrived.
    pub(super) fn get(&self) -> u64 {
        self.0.arrived.load(Acquire)
    }

    /// The same with those that never will.
    fn over(&self) -> u64 {
        self.0.over.load(Acquire)
    }

    /// Another one, which overtook so many.
    fn note(&self, overtook: u64) {
        self.0.arrived.store(self.get() + 1, Release);
        self.0.over.store(self.over() + 1 + overtook, Release);
    }
}

/// What an end does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Keeps so many frames under way.
    Sends { depth: u64 },
    /// Takes what comes.
    Takes,
    /// Sends one, and another one when the answer to it has come.
    Asks,
    /// Answers each that comes.
    Answers,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Talk {
    part: Part,
    pub(super) is_on: bool,
    frames: Vec<Box<[u8]>>,
    offload: Offload,
    /// Which copy is next.
    turn: usize,
    room: Vec<Box<[u8]>>,
    /// The place for what comes next, and its mark.
    place: usize,
    expected: Mark,
    arrived: Arrived,
    /// Since the beginning.
    sent: u64,
    /// Frames that were given up, until the other end knows by the next one that they are lost.
    given_up: u64,
    /// What had arrived when that was looked at last, and since when it is so.
    seen: u64,
    seen_ns: u64,
    waited_ns: u64,
    asked_ns: Option<u64>,
    to_answer: u64,
    outcome: Outcome,
}

impl Talk {
    pub(super) fn new(part: Part, Packet(packet): &Packet, arrived: Arrived) -> Self {
        if let Part::Sends { depth } = part {
            assert!(depth < PLACES as u64, "a mark says which of those under way has come");
        }
        let header = packet.first_chunk().expect("a packet has a header");
        let room = vec![0; ROOM_BYTES].into_boxed_slice();
        let marked = |mark: usize| {
            let mut packet = packet.clone();
            write_mark(&mut packet, mark as Mark);
            packet[HEADER_BYTES..].into()
        };
        Self {
            part,
            is_on: false,
            frames: (0..PLACES).map(marked).collect(),
            offload: Offload::read(header).expect("a header of our own"),
            turn: 0,
            room: vec![room; PLACES],
            place: 0,
            expected: 0,
            arrived,
            sent: 0,
            given_up: 0,
            seen: 0,
            seen_ns: now_ns(),
            waited_ns: 0,
            asked_ns: None,
            to_answer: 0,
            outcome: Outcome::new(),
        }
    }

    /// From now on it counts. What was waited for before.
    pub(super) fn begin(&mut self) -> u64 {
        self.outcome = Outcome::new();
        self.waited_ns
    }

    /// What was noted since then, and what was waited for.
    pub(super) fn end(&mut self) -> (Outcome, u64) {
        (std::mem::take(&mut self.outcome), self.waited_ns)
    }

    /// How many frames it may send now.
    fn wants(&mut self, now_ns: u64) -> u64 {
        match self.part {
            Part::Takes => 0,
            Part::Answers => self.to_answer,
            Part::Sends { depth } if self.is_on => depth.saturating_sub(self.under_way(now_ns)),
            Part::Asks if self.is_on => {
                self.give_up(now_ns);
                u64::from(self.asked_ns.is_none())
            }
            Part::Sends { .. } | Part::Asks => 0,
        }
    }

    /// Frames that have not arrived and may.
    fn under_way(&mut self, now_ns: u64) -> u64 {
        let over = self.arrived.over();
        if over != self.seen {
            (self.seen, self.seen_ns, self.given_up) = (over, now_ns, 0);
        }
        let under_way = self.sent.saturating_sub(over + self.given_up);
        if under_way == 0 {
            self.seen_ns = now_ns;
        } else if now_ns.saturating_sub(self.seen_ns) > TIME_OUT_NS {
            self.given_up += under_way;
            self.waited_ns += now_ns - self.seen_ns;
            self.seen_ns = now_ns;
            return 0;
        }
        under_way
    }

    /// No answer comes to what was asked long ago.
    fn give_up(&mut self, now_ns: u64) {
        let asked_ns = self.asked_ns.filter(|at_ns| now_ns.saturating_sub(*at_ns) > TIME_OUT_NS);
        if let Some(asked_ns) = asked_ns {
            self.waited_ns += now_ns - asked_ns;
            self.asked_ns = None;
        }
    }

    fn say(&mut self, burst: &mut Burst) {
        let frame = &self.frames[self.turn];
        self.turn = (self.turn + 1) % PLACES;
        let segment = Segment { addr: frame.as_ptr().cast_mut(), len: frame.len() as u32 };
        // SAFETY: the bytes are ours, are never written to, and stay where they are as long as this
        // port is there, which has the burst cleared by its release.
        let said = unsafe { burst.push(&[segment], 0) }.expect("a frame of our own");
        said.offload = self.offload;
        said.accept(&Offers::ALL).expect("a frame of our own");
        self.sent += 1;
        match self.part {
            Part::Asks => self.asked_ns = Some(now_ns()),
            Part::Answers => self.to_answer -= 1,
            Part::Sends { .. } | Part::Takes => {}
        }
    }

    /// A frame came with this mark, and was copied.
    fn heard(&mut self, mark: Mark) {
        if self.part == Part::Asks {
            // Of what bounces the way there counts, so that the number has one writer.
            if let Some(asked_ns) = self.asked_ns.take() {
                self.outcome.note(now_ns() - asked_ns);
            }
            return;
        }
        // Ports keep the order.
        let overtook = (usize::from(mark) + PLACES - usize::from(self.expected)) % PLACES;
        self.expected = ((usize::from(mark) + 1) % PLACES) as Mark;
        self.arrived.note(overtook as u64);
        if self.part == Part::Answers {
            self.to_answer += 1;
        }
    }
}

/// A talker as a port.
#[derive(Debug)]
pub(super) struct TalkPort(pub(super) Rc<RefCell<Talk>>);

impl Port for TalkPort {
    fn receive(&mut self, burst: &mut Burst, now_ns: u64) -> Progress {
        let mut talk = self.0.borrow_mut();
        for _ in 0..talk.wants(now_ns) {
            if burst.is_full() {
                break;
            }
            talk.say(burst);
        }
        Progress::busy_if(!burst.is_empty())
    }

    fn release(&mut self, burst: &mut Burst) {
        burst.clear();
    }

    fn transmit(&mut self, burst: &Burst, chosen: &[Chosen], _: u64) {
        let talk = &mut *self.0.borrow_mut();
        for chosen in chosen {
            let frame = &burst.frames()[usize::from(chosen.at)];
            let place = &mut talk.room[talk.place];
            talk.place = (talk.place + 1) % PLACES;
            let (head, body) = place.split_at_mut(frame.head().len());
            head.copy_from_slice(frame.head());
            burst.read_body(frame, 0, &mut body[..frame.body_bytes()]);
            // Nobody else sends here.
            talk.heard(mark_of(frame.head()).expect("a frame of our own"));
        }
    }

    fn flush(&mut self) {}

    /// What it waits for comes from another thread, which wakes nobody.
    fn arm(&mut self, _: &mut Wake) -> Progress {
        let talk = self.0.borrow();
        Progress::busy_if(talk.is_on && talk.part != Part::Takes)
    }
}
