//! The checker of the promise about frames. A frame that arrives was sent, is as it was sent, and
//! is for the station that hears it. It arrives once at most, and in the order of its flow. A frame
//! may be lost; while nothing fails, frames arrive ([`FrameChecker::has_heard_since`]).
//!
//! The checker knows no form of frames. A sender writes a [`FrameStamp`] into each frame.

use std::collections::{BTreeMap, BTreeSet};

/// The address of frames to every station of a network.
pub const EVERYONE: u8 = u8::MAX;

/// A number that tells one guest's start from another guest's.
pub type GuestLife = u32;

/// Frames of one sender that keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FrameFlow {
    /// The sending station.
    pub from: u8,
    /// The life of the sender's guest.
    pub life: GuestLife,
    /// The station that must hear it, or [`EVERYONE`].
    pub to: u8,
    /// Which of the flows between the two.
    pub flow: u16,
}

/// The bytes of a frame that tell which frame it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameStamp {
    /// The frame's flow.
    pub flow: FrameFlow,
    /// The frame's place in its flow, from 0.
    pub number: u32,
}

impl FrameStamp {
    /// Its length.
    pub const BYTES: usize = 12;

    /// The bytes, for a frame's payload.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let FrameFlow { from, life, to, flow } = self.flow;
        (bytes[0], bytes[1]) = (from, to);
        bytes[2..4].copy_from_slice(&flow.to_le_bytes());
        bytes[4..8].copy_from_slice(&life.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// The stamp at the beginning of these bytes.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::BYTES] = bytes.first_chunk()?;
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        let flow = u16::from_le_bytes([bytes[2], bytes[3]]);
        let flow = FrameFlow { from: bytes[0], life: word(4), to: bytes[1], flow };
        Some(Self { flow, number: word(8) })
    }
}

/// The fault of a frame that has arrived.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameBreach {
    /// No sender has sent it.
    #[error("station {by} has heard a frame that was never sent: {stamp:?}")]
    NeverSent {
        /// The receiver.
        by: u8,
        /// Its stamp.
        stamp: Option<FrameStamp>,
    },
    /// It is another frame than the one that was sent.
    #[error("station {by} has heard a frame that was changed on its way: {stamp:?}")]
    Changed {
        /// The receiver.
        by: u8,
        /// Its stamp.
        stamp: FrameStamp,
    },
    /// It is for another station, or from another network.
    #[error("station {by} has heard a frame that is not for it: {stamp:?}")]
    NotForIt {
        /// The receiver.
        by: u8,
        /// Its stamp.
        stamp: FrameStamp,
    },
    /// A rule of its network denies it.
    #[error("station {by} has heard a frame that a rule of the network denies: {stamp:?}")]
    Denied {
        /// The receiver.
        by: u8,
        /// Its stamp.
        stamp: FrameStamp,
    },
    /// It, or one that was sent after it, has arrived before.
    #[error("station {by} has heard {stamp:?} again, or after number {before} of its flow")]
    OutOfOrder {
        /// The receiver.
        by: u8,
        /// Its stamp.
        stamp: FrameStamp,
        /// The number that was heard last.
        before: u32,
    },
}

/// A frame's length, and a digest of its bytes.
type Print = (usize, u64);

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct FrameChecker {
    /// By station: its network.
    networks: BTreeMap<u8, u8>,
    denied: BTreeSet<u16>,
    sent: BTreeMap<FrameFlow, Vec<Print>>,
    /// By receiver, the life of its guest, and flow.
    heard: BTreeMap<(u8, GuestLife, FrameFlow), u32>,
    /// The pairs, sender first, of frames that arrived since the last look.
    lately: BTreeSet<(u8, u8)>,
    lives: GuestLife,
    /// Frames that were heard.
    count: u64,
}

impl FrameChecker {
    /// A station of a network.
    pub fn place(&mut self, station: u8, network: u8) {
        self.networks.insert(station, network);
    }

    /// The rules of the networks deny this flow.
    pub fn deny(&mut self, flow: u16) {
        self.denied.insert(flow);
    }

    /// The number of a guest that starts.
    pub fn begin_life(&mut self) -> GuestLife {
        self.lives += 1;
        self.lives
    }

    /// The stamp of a flow's next frame.
    pub fn stamp(&self, flow: FrameFlow) -> FrameStamp {
        let number = self.sent.get(&flow).map_or(0, |sent| sent.len() as u32);
        FrameStamp { flow, number }
    }

    /// A frame with the next stamp of its flow was given to its nic.
    pub fn sent(&mut self, stamp: FrameStamp, frame: &[u8]) {
        let sent = self.sent.entry(stamp.flow).or_default();
        assert_eq!(sent.len() as u32, stamp.number, "the stamp is the next one");
        sent.push(print(frame));
    }

    /// A station's guest has this frame, whose stamp is `at` so many bytes from its start.
    ///
    /// # Errors
    /// When the promise is broken.
    pub fn heard(
        &mut self,
        (by, life): (u8, GuestLife),
        frame: &[u8],
        at: usize,
    ) -> Result<(), FrameBreach> {
        let stamp = frame.get(at..).and_then(FrameStamp::read);
        let stamp = stamp.ok_or(FrameBreach::NeverSent { by, stamp })?;
        let FrameStamp { flow, number } = stamp;
        let sent = self.sent.get(&flow).and_then(|sent| sent.get(number as usize));
        let sent = sent.ok_or(FrameBreach::NeverSent { by, stamp: Some(stamp) })?;
        if *sent != print(frame) {
            return Err(FrameBreach::Changed { by, stamp });
        }
        let is_of_network = self.networks.get(&flow.from) == self.networks.get(&by);
        let is_for_it = flow.to == by || flow.to == EVERYONE && flow.from != by;
        if !is_of_network || !is_for_it {
            return Err(FrameBreach::NotForIt { by, stamp });
        }
        if self.denied.contains(&flow.flow) {
            return Err(FrameBreach::Denied { by, stamp });
        }
        let before = self.heard.get(&(by, life, flow)).copied();
        if let Some(before) = before.filter(|before| *before >= number) {
            return Err(FrameBreach::OutOfOrder { by, stamp, before });
        }
        self.heard.insert((by, life, flow), number);
        self.lately.insert((flow.from, by));
        self.count += 1;
        Ok(())
    }

    /// Frames that were heard.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Forgets which stations have heard of each other.
    pub fn look_anew(&mut self) {
        self.lately.clear();
    }

    /// Whether `by` has heard a frame of `from` since [`Self::look_anew`].
    pub fn has_heard_since(&self, from: u8, by: u8) -> bool {
        self.lately.contains(&(from, by))
    }
}

/// FNV-1a by words of eight bytes. Two frames that differ have the same print by accident only.
fn print(frame: &[u8]) -> Print {
    let mut digest = 0xcbf2_9ce4_8422_2325_u64;
    for chunk in frame.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        digest = (digest ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3);
        digest ^= digest >> 29;
    }
    (frame.len(), digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A checker with stations 1 and 2 in one network and 3 in another one, and a frame of 1 to 2.
    fn checker() -> (FrameChecker, Vec<u8>) {
        let mut checker = FrameChecker::default();
        [(1, 7), (2, 7), (3, 8)].into_iter().for_each(|(it, network)| checker.place(it, network));
        checker.deny(66);
        let frame = send(&mut checker, 2, 5);
        (checker, frame)
    }

    fn send(checker: &mut FrameChecker, to: u8, flow: u16) -> Vec<u8> {
        let stamp = checker.stamp(FrameFlow { from: 1, life: 1, to, flow });
        let frame = [&[9; 3][..], &stamp.to_bytes(), &[8; 20]].concat();
        checker.sent(stamp, &frame);
        frame
    }

    #[test]
    fn frames_arrive_once_in_order_or_not_at_all() {
        let (mut checker, first) = checker();
        let second = send(&mut checker, 2, 5);
        let third = send(&mut checker, 2, 5);
        assert_eq!(checker.heard((2, 1), &first, 3), Ok(()));
        assert_eq!(checker.heard((2, 1), &third, 3), Ok(()));
        for frame in [&first, &second, &third] {
            let again = checker.heard((2, 1), frame, 3);
            assert!(matches!(again, Err(FrameBreach::OutOfOrder { .. })), "{again:?}");
        }
        assert!(checker.has_heard_since(1, 2) && !checker.has_heard_since(2, 1));
    }

    #[test]
    fn each_breach_has_its_name() {
        let (mut checker, frame) = checker();
        let breach =
            |checker: &mut FrameChecker, by, frame: &[u8]| checker.heard((by, 1), frame, 3);
        assert!(matches!(breach(&mut checker, 3, &frame), Err(FrameBreach::NotForIt { .. })));
        let everyone = send(&mut checker, EVERYONE, 5);
        assert!(matches!(breach(&mut checker, 3, &everyone), Err(FrameBreach::NotForIt { .. })));
        assert!(matches!(breach(&mut checker, 1, &everyone), Err(FrameBreach::NotForIt { .. })));
        assert_eq!(breach(&mut checker, 2, &everyone), Ok(()));
        let denied = send(&mut checker, 2, 66);
        assert!(matches!(breach(&mut checker, 2, &denied), Err(FrameBreach::Denied { .. })));
        let mut changed = frame.clone();
        *changed.last_mut().expect("bytes") ^= 1;
        assert!(matches!(breach(&mut checker, 2, &changed), Err(FrameBreach::Changed { .. })));
        changed = frame;
        changed[3 + 8] ^= 1;
        assert!(matches!(breach(&mut checker, 2, &changed), Err(FrameBreach::NeverSent { .. })));
        assert!(matches!(breach(&mut checker, 2, &[1]), Err(FrameBreach::NeverSent { .. })));
    }
}
