//! Acknowledgements of a peer that means harm: their cost is that of the packets that they
//! acknowledge.

use crate::common::{SECOND, addr, raw};
use crate::hostile::{Quiet, lone_endpoint};
use crate::strange;
use transport::{Endpoint, TransmitBatch};

/// A frame that acknowledges `ranges`, (gap, length) each, down from `largest`.
pub(crate) fn ack(ranges: u8, largest: u64, pairs: &[(u32, u32)]) -> Vec<u8> {
    let mut bytes = vec![2, ranges, 0, 0, 0, 0, 0, 0];
    bytes.extend_from_slice(&largest.to_le_bytes());
    for (gap, length) in pairs {
        bytes.extend_from_slice(&gap.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
    }
    bytes
}

/// The peer, by hand, and the node. No time passes, so nothing is given up.
struct Play {
    endpoint: Endpoint,
    sink: Quiet,
    session: u64,
    /// The peer's next number, and the node's newest.
    next: u64,
    newest: u64,
    batch: TransmitBatch,
}

impl Play {
    fn new() -> Self {
        let (endpoint, sink, session) = lone_endpoint();
        Self { endpoint, sink, session, next: 1, newest: 0, batch: TransmitBatch::new(64) }
    }

    /// The node takes a packet, and sends what it then has to say.
    fn say(&mut self, frames: &[u8]) {
        let packet = raw::packet(raw::DATA, self.session, self.next, frames, &[]);
        self.next += 1;
        self.endpoint.receive(SECOND, SECOND, addr(6), &packet, &mut self.sink);
        self.hear();
    }

    fn hear(&mut self) {
        self.endpoint.transmit(SECOND, &mut self.batch);
        for datagram in self.batch.datagrams() {
            if raw::kind(datagram.head()) == raw::DATA {
                self.newest = self.newest.max(raw::number(datagram.head()));
            }
        }
        self.batch.consume(self.batch.len());
    }

    /// A reply is in flight, and behind it are so many numbers of acknowledgements.
    fn leave_a_reply_behind(&mut self, numbers: u64) {
        self.say(&strange::fragment(5, 0, 0, 0, 1024, 0));
        let call = self.sink.take_call().expect("a call");
        assert_eq!(self.endpoint.reply(SECOND, call, b"reply", None), Ok(()));
        self.hear();
        while self.newest < numbers {
            // One is missing each time, so this is acknowledged at once.
            self.next += 1;
            self.say(&[1]);
        }
    }

    fn steps(&self) -> u64 {
        self.endpoint.counters().ack_steps
    }

    fn status(&self) -> transport::SessionStatus {
        self.endpoint.sessions().next().expect("the session goes on")
    }
}

/// The number of open packets: as many as there may be, but for a few.
const OPEN: u64 = 48_000;

/// More than one packet that lands in ten thousand numbers; before, each frame looked at all.
const STEPS_MAX: u64 = 64;

#[test]
fn frames_that_acknowledge_nothing_new_cost_nothing_however_many_come() {
    for datagram_bytes in [1_400, 60_000] {
        let mut play = Play::new();
        play.leave_a_reply_behind(OPEN);
        let state_bytes = play.status().state_bytes;
        assert!(state_bytes < 256 << 10, "{state_bytes} bytes: acknowledgements are not noted");
        let before = play.steps();
        let frame = ack(1, play.newest, &[(0, OPEN as u32 - 100)]);
        let frames = frame.repeat(datagram_bytes / frame.len());
        for _ in 0..20 {
            play.say(&frames);
        }
        assert_eq!(play.endpoint.counters().dropped_violation, 20, "one frame says all");
        for _ in 0..1000 {
            play.say(&frame);
        }
        let steps = play.steps() - before;
        assert!(steps <= STEPS_MAX, "{steps} packets looked at, datagrams of {datagram_bytes}");
        // An honest acknowledgement ends it.
        assert_eq!(play.status().calls_serving, 1);
        play.say(&ack(1, play.newest, &[(0, play.newest as u32 + 1)]));
        assert_eq!((play.status().calls_serving, play.status().in_flight_bytes), (0, 0));
    }
}

#[test]
fn the_most_ranges_that_a_frame_can_have_cost_what_lands() {
    let mut play = Play::new();
    play.leave_a_reply_behind(OPEN);
    let before = play.steps();
    let mut ranges = vec![(1, 90); 255];
    ranges[0].0 = 0;
    for _ in 0..20 {
        play.say(&ack(255, play.newest, &ranges));
    }
    let steps = play.steps() - before;
    assert!(steps <= STEPS_MAX, "{steps} packets looked at");
    assert_eq!(play.endpoint.counters().dropped_violation, 0);
}

/// A ping among them frees their numbers, which nothing else would.
#[test]
fn a_peer_that_acknowledges_pings_is_sent_acknowledgements_for_ever() {
    let mut play = Play::new();
    play.leave_a_reply_behind(10);
    for _ in 0..100_000 {
        play.next += 1;
        play.say(&[1]);
        if play.newest.is_multiple_of(5000) {
            play.say(&ack(1, play.newest, &[(0, 4999)]));
        }
    }
    assert!(play.newest >= 100_000, "{} packets were sent", play.newest);
}
