//! Frames of a hostile guest: most of them nearly right, in sound chains.

use ::net::Mac;
use ::net::maker::FrameMaker;
use ::net::stand_in::HEADER;
use arbitrary::Arbitrary;

use super::{EAR, HONEST, HOSTILE, mac};
use crate::image::REGIONS_AT;

/// The bytes of a chain that are its own. After them comes a pattern that all chains share, so that
/// frames of 64 KiB fit a small memory.
const OWN_BYTES_MAX: usize = 512;

/// The pattern's place.
pub(super) const PATTERN_AT: u64 = REGIONS_AT[2];

const PATTERN_BYTES: usize = 4096;

/// How many descriptors the longest frame has.
const PIECES_MAX: u16 = 20;

/// A length above that of any allowed frame.
const PAYLOAD_MAX: usize = 65_800;

/// A payload for rings that are too small for a long one.
const PAYLOAD_SMALL_MAX: usize = 400;

pub(super) fn pattern() -> Vec<u8> {
    (0..PATTERN_BYTES).map(|at| (at * 7 + at / 256) as u8).collect()
}

/// A frame, and the header before it.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct NicPacket {
    kind: NicKind,
    to: NicReceiver,
    from: u8,
    payload: u16,
    is_large: bool,
    tag: u8,
    flags: u8,
    job: NicJob,
    /// Which of the following changes are made: each is rare, by its bits.
    odd: u16,
    lie: Lie,
    bend: (u8, u8),
    len: u16,
    split: u8,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum NicKind {
    Tcp4,
    Tcp6,
    Udp4,
    Udp6,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum NicReceiver {
    Ear,
    Honest,
    Itself,
    Everyone,
    /// Addresses of the link's own protocols, and of others near them.
    Link(u8),
    Any([u8; 6]),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum NicJob {
    Nothing,
    Checksum,
    Segments(u16),
    SegmentsWithEcn(u16),
}

/// The mistake in the header.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Lie {
    Flags(u8),
    Kind(u8),
    Size(u16),
    Start(u16),
    Offset(u16),
    /// Near the end of the part that is read.
    Near(u8),
}

/// A piece of a chain: its place from the chain's own beginning, or in the pattern.
#[derive(Clone, Copy, Debug)]
pub(super) struct NicPiece {
    is_own: bool,
    at: usize,
    pub(super) len: u32,
}

impl NicPiece {
    /// Its guest address, if the chain's own bytes are at this address.
    pub(super) fn addr(self, own_at: u64) -> u64 {
        self.at as u64 + if self.is_own { own_at } else { PATTERN_AT }
    }
}

/// A chain, ready to be written.
#[derive(Debug)]
pub(super) struct NicMade {
    pub(super) own: Vec<u8>,
    pub(super) pieces: Vec<NicPiece>,
    /// The whole chain.
    pub(super) chain: Vec<u8>,
}

impl NicPacket {
    /// A rare choice, by four bits of `odd`.
    fn is_odd(&self, which: u16) -> bool {
        self.odd >> (4 * which) & 15 == 15
    }

    fn maker(&self, has_room: bool) -> FrameMaker {
        let maker = match self.kind {
            NicKind::Tcp4 => FrameMaker::tcp4(),
            NicKind::Tcp6 => FrameMaker::tcp6(),
            NicKind::Udp4 => FrameMaker::udp4(),
            NicKind::Udp6 => FrameMaker::udp6(),
        };
        let to = match self.to {
            NicReceiver::Ear => EAR,
            NicReceiver::Honest => HONEST,
            NicReceiver::Itself => HOSTILE,
            NicReceiver::Everyone => Mac::BROADCAST,
            NicReceiver::Link(last) => Mac([0x01, 0x80, 0xc2, 0, 0, last % 20]),
            NicReceiver::Any(to) => Mac(to),
        };
        let from = match self.from {
            0 => Mac::BROADCAST,
            1 => Mac::default(),
            2 => EAR,
            3 => mac(99),
            _ => HOSTILE,
        };
        let tci = match self.tag {
            0 => 0x2000,
            1 => 7,
            2 => 0xe007,
            _ => 0,
        };
        let payload = match usize::from(self.payload) {
            bytes if self.is_large && has_room => (bytes + 300) % PAYLOAD_MAX,
            bytes if has_room => bytes % 2000,
            bytes => bytes % PAYLOAD_SMALL_MAX,
        };
        let maker = maker.to(to).from(from).tag(tci).tcp_flags(self.flags).payload(payload);
        if matches!(self.job, NicJob::Nothing) { maker } else { maker.partial() }
    }

    fn header(&self, maker: &FrameMaker, frame: &[u8]) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        let (kind, offset) = match self.kind {
            NicKind::Tcp4 => (1, 16u16),
            NicKind::Tcp6 => (4, 16),
            NicKind::Udp4 | NicKind::Udp6 => (5, 6),
        };
        let tag_bytes = if frame[12..14] == [0x81, 0] { 4 } else { 0 };
        let mut put =
            |at: usize, word: u16| header[at..at + 2].copy_from_slice(&word.to_le_bytes());
        if !matches!(self.job, NicJob::Nothing) {
            put(0, 1);
            put(6, maker.above_at() as u16 + tag_bytes);
            put(8, offset);
        }
        match self.job {
            NicJob::Nothing | NicJob::Checksum => {}
            NicJob::Segments(size) | NicJob::SegmentsWithEcn(size) => {
                put(2, maker.header_bytes() as u16 + tag_bytes);
                // Usually a request that a guest makes.
                let some = match size & 3 {
                    0 => size >> 4,
                    1 => (size >> 2) % 80,
                    _ => 1 + size % 1500,
                };
                put(4, some);
                let ecn = matches!(self.job, NicJob::SegmentsWithEcn(_));
                header[1] = kind | if ecn { 0x80 } else { 0 };
            }
        }
        let mut put =
            |at: usize, word: u16| header[at..at + 2].copy_from_slice(&word.to_le_bytes());
        match self.lie {
            _ if !self.is_odd(0) => {}
            Lie::Flags(flags) => header[0] = flags,
            Lie::Kind(kind) => header[1] = kind,
            Lie::Size(size) => put(4, size),
            Lie::Start(start) => put(6, start),
            Lie::Offset(offset) => put(8, offset),
            Lie::Near(by) => {
                put(6, 14 + u16::from(by & 15));
                put(8, 160 + u16::from(by >> 4));
            }
        }
        header
    }

    /// Its bytes, with a header of `header_bytes` before it, for a ring of this size.
    pub(super) fn make(&self, header_bytes: usize, size: u16) -> NicMade {
        let has_room = size > PIECES_MAX;
        let maker = self.maker(has_room);
        let mut frame = maker.build();
        let header = self.header(&maker, &frame);
        if self.is_odd(1) {
            let (at, value) = self.bend;
            let at = usize::from(at) % frame.len().min(100);
            frame[at] = value;
        }
        if self.is_odd(2) {
            frame.truncate(usize::from(self.len) % 70);
        }
        let mut chain = [&header[..header_bytes], &frame].concat();
        if self.is_odd(3) {
            chain.truncate(1 + usize::from(self.len) % 30);
        }
        let pattern = pattern();
        for at in OWN_BYTES_MAX..chain.len() {
            chain[at] = pattern[at % PATTERN_BYTES];
        }
        let own = chain[..chain.len().min(OWN_BYTES_MAX)].to_vec();
        let piece = |is_own, at, len: usize| NicPiece { is_own, at, len: len as u32 };
        let split = usize::from(self.split);
        let mut pieces = match size > 1 && split > 0 && split < own.len() {
            true => vec![piece(true, 0, split), piece(true, split, own.len() - split)],
            false => vec![piece(true, 0, own.len())],
        };
        let mut at = own.len();
        while at < chain.len() {
            let from = at % PATTERN_BYTES;
            let len = (PATTERN_BYTES - from).min(chain.len() - at);
            pieces.push(piece(false, from, len));
            at += len;
        }
        NicMade { own, pieces, chain }
    }
}
