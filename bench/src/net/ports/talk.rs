//! A talker sends and receives frames in the place of a nic: a port of a bridge.

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

use crate::load::LoadOutcome;
use crate::net::flight::TIME_OUT_NS;
use crate::net::packet::{HEADER_BYTES, Mark, Packet, mark_of, write_mark};

/// Copies of the sent frame, each with a mark of its own, used in turn, and as many places for
/// frames that come. So data is in ever other pages, as that of a guest's stack. Fewer frames are
/// under way, so that marks stay unique.
const PLACES: usize = 16;

/// Room for the longest frame.
const ROOM_BYTES: usize = net::FRAME_BYTES_MAX;

/// The fate of frames. The receiving end writes it, and the other end reads it.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrived(Arc<Padded<Fate>>);

#[derive(Debug, Default)]
struct Fate {
    arrived: AtomicU64,
    /// Frames that have arrived, and frames that they overtook, which are lost.
    over: AtomicU64,
}

impl Arrived {
    /// Frames that have arrived.
    pub(super) fn get(&self) -> u64 {
        self.0.arrived.load(Acquire)
    }

    /// Frames that have arrived, and frames that never will.
    fn over(&self) -> u64 {
        self.0.over.load(Acquire)
    }

    /// Notes a frame that has arrived, which overtook so many others.
    fn note(&self, overtook: u64) {
        self.0.arrived.store(self.get() + 1, Release);
        self.0.over.store(self.over() + 1 + overtook, Release);
    }
}

/// The part of an end in the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TalkRole {
    /// Keeps so many frames under way.
    Sends { depth: u64 },
    /// Takes all frames that come.
    Takes,
    /// Sends a frame, and another one when the answer has come.
    Asks,
    /// Answers each frame that comes.
    Answers,
}

/// A talker: its copies of the frame, and its part in the traffic.
#[derive(Debug)]
pub(super) struct Talk {
    part: TalkRole,
    pub(super) is_on: bool,
    frames: Vec<Box<[u8]>>,
    offload: Offload,
    /// The copy that is sent next.
    turn: usize,
    room: Vec<Box<[u8]>>,
    /// The place for the frame that comes next, and its mark.
    place: usize,
    expected: Mark,
    arrived: Arrived,
    /// Frames that were sent since the beginning.
    sent: u64,
    /// Frames that were given up. They count until the next arrival tells the other end that they
    /// are lost.
    given_up: u64,
    /// The number of frames that were over at the last look, and the time since which it is the
    /// same.
    seen: u64,
    seen_ns: u64,
    waited_ns: u64,
    asked_ns: Option<u64>,
    to_answer: u64,
    outcome: LoadOutcome,
}

impl Talk {
    pub(super) fn new(part: TalkRole, Packet(packet): &Packet, arrived: Arrived) -> Self {
        if let TalkRole::Sends { depth } = part {
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
            outcome: LoadOutcome::new(),
        }
    }

    /// Begins to count, and returns the time that was spent on waits before.
    pub(super) fn begin(&mut self) -> u64 {
        self.outcome = LoadOutcome::new();
        self.waited_ns
    }

    /// The times since then, and the time that was spent on waits, from the beginning.
    pub(super) fn end(&mut self) -> (LoadOutcome, u64) {
        (std::mem::take(&mut self.outcome), self.waited_ns)
    }

    /// The number of frames that it may send now.
    fn wants(&mut self, now_ns: u64) -> u64 {
        match self.part {
            TalkRole::Takes => 0,
            TalkRole::Answers => self.to_answer,
            TalkRole::Sends { depth } if self.is_on => depth.saturating_sub(self.under_way(now_ns)),
            TalkRole::Asks if self.is_on => {
                self.give_up(now_ns);
                u64::from(self.asked_ns.is_none())
            }
            TalkRole::Sends { .. } | TalkRole::Asks => 0,
        }
    }

    /// Frames that have not arrived and still may.
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

    /// Gives up a question that was asked long ago and has no answer.
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
            TalkRole::Asks => self.asked_ns = Some(now_ns()),
            TalkRole::Answers => self.to_answer -= 1,
            TalkRole::Sends { .. } | TalkRole::Takes => {}
        }
    }

    /// A frame came with this mark, and was copied.
    fn heard(&mut self, mark: Mark) {
        if self.part == TalkRole::Asks {
            // Of frames that bounce, only the way there counts, so that the number has one writer.
            if let Some(asked_ns) = self.asked_ns.take() {
                self.outcome.note(now_ns() - asked_ns);
            }
            return;
        }
        // Ports keep the order, so that a gap in the marks is the number of lost frames.
        let overtook = (usize::from(mark) + PLACES - usize::from(self.expected)) % PLACES;
        self.expected = ((usize::from(mark) + 1) % PLACES) as Mark;
        self.arrived.note(overtook as u64);
        if self.part == TalkRole::Answers {
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
            // Only our talkers send here.
            talk.heard(mark_of(frame.head()).expect("a frame of our own"));
        }
    }

    fn flush(&mut self) {}

    /// It waits for frames that another thread sends, which does not wake this one.
    fn arm(&mut self, _: &mut Wake) -> Progress {
        let talk = self.0.borrow();
        Progress::busy_if(talk.is_on && talk.part != TalkRole::Takes)
    }
}
