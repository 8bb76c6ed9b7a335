//! A stand-in guest with a nic, as a measurement uses it: frames that were made beforehand, sent
//! again and again; buffers that are posted again as soon as a frame was counted.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use net::Mac;
use net::maker::FrameMaker;
use net::nic::{NicOptions, feature, features};
use virtio::driver::{
    Backing, FrameRing, GuestPlan, NicEnd, NicEndConfig, Part, Regions, RingShape, Role, Slot,
};

/// What stands before each frame in a buffer (virtio 1.2, section 5.1.6).
const HEADER_BYTES: usize = 12;

/// In it: the checksum is to be completed, and TCP over IPv4 to be cut.
const NEEDS_CSUM: u8 = 1;
const GSO_TCPV4: u8 = 1;

/// What lets a long frame through as it is, both ways.
const UNCUT: u64 = feature::HOST_TSO4 | feature::GUEST_TSO4 | feature::MRG_RXBUF;

/// Bytes of TCP in a segment: what a packet of 1500 bytes has room for beside time stamps.
const SEGMENT_BYTES: u16 = 1448;

/// Where TCP's header has its checksum.
const TCP_CHECKSUM_AT: u16 = 16;

/// Descriptors of a ring: what QEMU gives a nic.
const RING_SIZE: u16 = 256;

/// A frame up to this goes as it is; a longer one is left to be cut.
pub(super) const WHOLE_BYTES_MAX: usize = 1514;

/// Buffers for frames that come in, about as long as Linux makes them: for a whole frame, or a page
/// where frames come uncut.
const BUFFER_BYTES: u32 = 1536;
const PAGE_BYTES: u32 = 4096;

/// How a guest's stack hands over what is uncut: pieces of so many bytes.
const PIECE_BYTES: usize = 32 << 10;

/// How long the first connection may take.
const CONNECT_WAIT: Duration = Duration::from_secs(60);

/// Frames of so many bytes that a station has posted buffers for.
pub(super) fn frames_posted(frame_bytes: usize) -> u16 {
    let buffers = (HEADER_BYTES + frame_bytes).div_ceil(buffer_bytes(frame_bytes) as usize);
    RING_SIZE / buffers as u16
}

/// How long each of them is.
fn buffer_bytes(frame_bytes: usize) -> u32 {
    if frame_bytes > WHOLE_BYTES_MAX { PAGE_BYTES } else { BUFFER_BYTES }
}

/// What a station is made of.
#[derive(Clone, Debug)]
pub(super) struct StationPlan {
    /// Its nic's vhost-user socket.
    pub(super) socket: PathBuf,
    /// Its address, and that of whom it sends to.
    pub(super) mac: Mac,
    pub(super) to: Mac,
    /// Bytes of its frames.
    pub(super) frame_bytes: usize,
    /// Packed rings instead of split ones.
    pub(super) packed: bool,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Station {
    // Keeps the connection open.
    _end: NicEnd,
    receive: FrameRing,
    send: FrameRing,
    /// Of each frame that it sends.
    parts: Vec<Part>,
    buffer: Part,
    /// Buffers that are still to come of the frame that came last.
    more: u16,
    /// Kicks that the device asked for.
    pub(super) kicks: u64,
    /// Bytes of the frames that came.
    pub(super) bytes: u64,
}

impl Station {
    /// Connects, makes its frames and posts its buffers.
    pub(super) fn connect(plan: &StationPlan) -> Result<Self> {
        let whole = HEADER_BYTES + plan.frame_bytes;
        let room = whole.max(PAGE_BYTES as usize) as u32;
        let shape = RingShape {
            size: RING_SIZE,
            slots: RING_SIZE,
            transfer_bytes_max: room,
            segments_max: whole.div_ceil(PIECE_BYTES) as u16 + 1,
        };
        let guest = GuestPlan { queues: 2, shape, backing: Backing::Memfd, regions: Regions::One };
        let features = features(&NicOptions::new("bench", plan.mac));
        let (role, packed) = (Role::Connect(plan.socket.clone()), plan.packed);
        let config = NicEndConfig { role, guest, features, packed, event_idx: true };
        let end = NicEnd::connect(&config, CONNECT_WAIT)
            .with_context(|| format!("connecting to {}", plan.socket.display()))?;
        let uncut = plan.frame_bytes > WHOLE_BYTES_MAX;
        let lacks = if uncut { UNCUT & !end.features() } else { 0 };
        let socket = plan.socket.display();
        ensure!(lacks == 0, "{socket} takes no TCP uncut (features {lacks:#x}): up to 1514 bytes");
        let (receive, send) = (end.ring(0), end.ring(1));
        let mut station = Self {
            _end: end,
            receive,
            send,
            parts: parts(whole),
            buffer: Part { offset: 0, len: buffer_bytes(plan.frame_bytes) },
            more: 0,
            kicks: 0,
            bytes: 0,
        };
        station.fill(plan);
        while let Some(slot) = station.receive.take_slot() {
            ensure!(station.receive.post(slot, &[station.buffer], false), "a ring of its slots");
        }
        station.show_buffers();
        Ok(station)
    }

    /// Writes the frame into each slot, behind its header.
    fn fill(&mut self, plan: &StationPlan) {
        let (header, frame) = frame(plan);
        let slots: Vec<_> = std::iter::from_fn(|| self.send.take_slot()).collect();
        for slot in slots {
            self.send.write(slot, 0, &header);
            self.send.write(slot, HEADER_BYTES as u32, &frame);
            self.send.release(slot);
        }
    }

    /// Frames that were sent and have not come back.
    pub(super) fn outstanding(&self) -> u16 {
        self.send.outstanding()
    }

    /// Sends a frame more, to be shown; `false` when the ring is full.
    pub(super) fn send(&mut self) -> bool {
        let Some(slot) = self.send.take_slot() else { return false };
        if self.send.post(slot, &self.parts, self.parts.len() > 1) {
            return true;
        }
        self.send.release(slot);
        false
    }

    /// Shows what was sent.
    pub(super) fn show(&mut self) {
        self.kicks += u64::from(self.send.publish());
    }

    /// Takes back what the device is done with; how many frames.
    pub(super) fn reap(&mut self) -> Result<u64> {
        let mut count = 0;
        while let Some((slot, _)) = self.send.complete()? {
            self.send.release(slot);
            count += 1;
        }
        Ok(count)
    }

    /// Counts the frames that came, and posts their buffers again.
    pub(super) fn receive(&mut self) -> Result<u64> {
        let (mut frames, mut buffers) = (0, 0);
        while let Some((slot, written)) = self.receive.complete()? {
            buffers += 1;
            self.bytes += u64::from(written);
            if self.more == 0 {
                self.more = self.buffers_of(slot);
                self.bytes = self.bytes.saturating_sub(HEADER_BYTES as u64);
            }
            self.more -= 1;
            frames += u64::from(self.more == 0);
            self.receive.release(slot);
            let again = self.receive.take_slot().context("just released")?;
            ensure!(self.receive.post(again, &[self.buffer], false), "as many as came back");
        }
        if buffers > 0 {
            self.show_buffers();
        }
        Ok(frames)
    }

    /// How many buffers the frame is in that begins in this one.
    fn buffers_of(&self, slot: Slot) -> u16 {
        let mut header = [0; HEADER_BYTES];
        self.receive.read(slot, 0, &mut header);
        u16::from_le_bytes([header[10], header[11]]).max(1)
    }

    fn show_buffers(&mut self) {
        self.kicks += u64::from(self.receive.publish());
    }
}

/// One piece for what is short, pieces like a stack's for what is uncut.
fn parts(whole: usize) -> Vec<Part> {
    if whole <= HEADER_BYTES + WHOLE_BYTES_MAX {
        return vec![Part { offset: 0, len: whole as u32 }];
    }
    let part =
        |offset: usize| Part { offset: offset as u32, len: PIECE_BYTES.min(whole - offset) as u32 };
    (0..whole).step_by(PIECE_BYTES).map(part).collect()
}

/// A frame and the header before it.
fn frame(plan: &StationPlan) -> ([u8; HEADER_BYTES], Vec<u8>) {
    let mut header = [0; HEADER_BYTES];
    let address = |mac: Mac| 0x0a00_0000 | u32::from(mac.0[5]);
    let ends = |maker: FrameMaker| {
        maker.from(plan.mac).to(plan.to).addresses(address(plan.mac), address(plan.to))
    };
    if plan.frame_bytes <= WHOLE_BYTES_MAX {
        let maker = ends(FrameMaker::udp4());
        let payload = plan.frame_bytes.saturating_sub(maker.header_bytes());
        return (header, maker.payload(payload).build());
    }
    let maker = ends(FrameMaker::tcp4()).partial();
    let (above_at, headers) = (maker.above_at() as u16, maker.header_bytes());
    header[..2].copy_from_slice(&[NEEDS_CSUM, GSO_TCPV4]);
    let words = [headers as u16, SEGMENT_BYTES, above_at, TCP_CHECKSUM_AT];
    for (place, word) in header[2..10].chunks_exact_mut(2).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    (header, maker.payload(plan.frame_bytes - headers).build())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(frame_bytes: usize) -> StationPlan {
        let mac = |last| Mac([0x52, 0x54, 0, 0, 0, last]);
        let socket = PathBuf::from("nobody");
        StationPlan { socket, mac: mac(1), to: mac(2), frame_bytes, packed: false }
    }

    #[test]
    fn a_frame_is_as_long_as_was_asked_for() {
        for bytes in [64, 1500, 1514, 1515, 64 << 10] {
            let (header, frame) = frame(&plan(bytes));
            assert_eq!(frame.len(), bytes);
            assert_eq!(frame[..12], [0x52, 0x54, 0, 0, 0, 2, 0x52, 0x54, 0, 0, 0, 1]);
            assert_eq!(header[0] == NEEDS_CSUM, bytes > WHOLE_BYTES_MAX);
            let parts = parts(HEADER_BYTES + bytes);
            let whole: u32 = parts.iter().map(|part| part.len).sum();
            assert_eq!(whole as usize, HEADER_BYTES + bytes);
            assert_eq!(parts.len(), if bytes > 40_000 { 3 } else { 1 });
        }
    }
}
