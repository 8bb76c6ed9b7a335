//! A stand-in guest with a nic, as a measurement uses it. Its frames were made beforehand, and are
//! sent again and again. Its buffers are posted again as soon as a frame was counted.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use net::nic::{NicOptions, feature, features};
use virtio::driver::{
    Backing, FramePart, FrameRing, GuestPlan, NicEnd, NicEndConfig, Regions, RequestSlot,
    RingShape, SocketRole,
};

use super::packet::{
    ArrivedBuffers, FrameAddresses, HEADER_BYTES, LOOKED_AT_BYTES, Mark, Packet, TCP_HEADERS_BYTES,
    WHOLE_BYTES_MAX, write_mark,
};

/// The features that let a long frame through uncut, both ways.
const UNCUT: u64 = feature::HOST_TSO4 | feature::GUEST_TSO4 | feature::MRG_RXBUF;

/// Descriptors of a ring, as many as QEMU's nics have. A frame's mark is its slot, and the slots
/// are used in turn.
pub(super) const RING_SIZE: u16 = 256;
const _: () = assert!(RING_SIZE as usize == Mark::MAX as usize + 1, "a mark for each slot");

/// The length of buffers for frames that come, about as in Linux: a whole frame, or a page where
/// frames come uncut.
const BUFFER_BYTES: u32 = 1536;
const PAGE_BYTES: usize = 4096;

/// A guest's stack hands over uncut data in pieces of so many bytes, at most so many.
const PIECE_BYTES: usize = 32 << 10;
const PIECES_MAX: usize = 3;

/// The number of places in a page where frames begin, a cache line apart, as a guest's do. Frames
/// that all began at the same place would evict each other from every cache.
const PLACES: usize = 32;
const LINE_BYTES: usize = 64;

/// How long the first connection may take.
const CONNECT_WAIT: Duration = Duration::from_secs(60);

/// The number of frames of that length that a station has posted buffers for.
pub(super) fn frames_posted(frame_bytes: usize) -> u16 {
    let buffers = (HEADER_BYTES + frame_bytes).div_ceil(buffer_bytes(frame_bytes) as usize);
    RING_SIZE / buffers as u16
}

/// The length of such a buffer.
fn buffer_bytes(frame_bytes: usize) -> u32 {
    if frame_bytes > WHOLE_BYTES_MAX { PAGE_BYTES as u32 } else { BUFFER_BYTES }
}

/// The traffic that a station sends.
#[derive(Clone, Debug)]
pub(super) enum Sends {
    /// The same frame again and again.
    Packet(Packet),
    /// A TCP stream of writes of so many bytes, in frames of at most so many writes.
    Writes { bytes: usize, most: usize },
}

impl Sends {
    /// Bytes of the longest frame, with the header before it.
    fn whole_bytes(&self) -> usize {
        match self {
            Self::Packet(Packet(packet)) => packet.len(),
            Self::Writes { bytes, most } => STREAM_HEADERS_BYTES + bytes * most,
        }
    }
}

/// Bytes of the headers before the writes of a frame.
const STREAM_HEADERS_BYTES: usize = HEADER_BYTES + TCP_HEADERS_BYTES;

/// The plan of a station.
#[derive(Clone, Debug)]
pub(super) struct StationPlan {
    /// Its nic's vhost-user socket.
    pub(super) socket: PathBuf,
    /// Its address, and the address that it sends to.
    pub(super) ends: FrameAddresses,
    pub(super) sends: Sends,
    /// Bytes of the longest frame that comes.
    pub(super) expects_bytes: usize,
    /// Packed rings instead of split ones.
    pub(super) packed: bool,
}

/// A stream that is written into frames.
#[derive(Debug)]
struct Writer {
    /// A write's bytes.
    write: Vec<u8>,
    /// The headers of a frame, by the number of writes in it, less one.
    headers: Vec<[u8; STREAM_HEADERS_BYTES]>,
    /// The frame that is being written, and writes in it.
    open: Option<(RequestSlot, usize)>,
}

/// A stand-in guest with a nic.
#[derive(Debug)]
pub(super) struct Station {
    // Keeps the connection open.
    _end: NicEnd,
    receive: FrameRing,
    send: FrameRing,
    /// Slots for frames; the slot that is free for longest comes first.
    free: VecDeque<RequestSlot>,
    /// Places of a slot's frame in its page.
    places: usize,
    /// The length of a frame that is always the same, with its header.
    whole_bytes: usize,
    writer: Option<Writer>,
    buffer: FramePart,
    /// Buffers of the last frame that are still to come, and whether it is one of ours.
    more: u16,
    is_ours: bool,
    /// Kicks that the device asked for.
    pub(super) kicks: u64,
    /// Bytes of the frames that came.
    pub(super) bytes: u64,
    /// Frames that came from another sender.
    pub(super) foreign: u64,
}

impl Station {
    /// Connects, makes its frames and posts its buffers.
    pub(super) fn connect(plan: &StationPlan) -> Result<Self> {
        let whole_bytes = plan.sends.whole_bytes();
        let buffer = FramePart { offset: 0, len: buffer_bytes(plan.expects_bytes) };
        let room = whole_bytes.next_multiple_of(PAGE_BYTES);
        let shape = RingShape {
            size: RING_SIZE,
            slots: RING_SIZE,
            transfer_bytes_max: room as u32,
            segments_max: PIECES_MAX as u16 + 1,
        };
        let guest = GuestPlan { queues: 2, shape, backing: Backing::Memfd, regions: Regions::One };
        let features = features(&NicOptions::new("bench", plan.ends.from));
        let (role, packed) = (SocketRole::Connect(plan.socket.clone()), plan.packed);
        let config = NicEndConfig { role, guest, features, packed, event_idx: true };
        let end = NicEnd::connect(&config, CONNECT_WAIT)
            .with_context(|| format!("connecting to {}", plan.socket.display()))?;
        let uncut = whole_bytes.max(HEADER_BYTES + plan.expects_bytes);
        let is_uncut = uncut > HEADER_BYTES + WHOLE_BYTES_MAX;
        let lacks = if is_uncut { UNCUT & !end.features() } else { 0 };
        let socket = plan.socket.display();
        ensure!(lacks == 0, "{socket} takes no TCP uncut (features {lacks:#x}): up to 1514 bytes");
        let (receive, send) = (end.ring(0), end.ring(1));
        let mut station = Self {
            _end: end,
            receive,
            send,
            free: VecDeque::with_capacity(usize::from(RING_SIZE)),
            places: ((room - whole_bytes) / LINE_BYTES + 1).min(PLACES),
            whole_bytes,
            writer: None,
            buffer,
            more: 0,
            is_ours: false,
            kicks: 0,
            bytes: 0,
            foreign: 0,
        };
        station.prepare(plan);
        while let Some(slot) = station.receive.take_slot() {
            ensure!(station.receive.post(slot, &[station.buffer], false), "a ring of its slots");
        }
        station.show_buffers();
        Ok(station)
    }

    /// Takes all slots, and writes all bytes that can be written beforehand.
    fn prepare(&mut self, plan: &StationPlan) {
        self.free.extend(std::iter::from_fn(|| self.send.take_slot()));
        self.free.make_contiguous().sort_unstable();
        match &plan.sends {
            Sends::Packet(Packet(packet)) => {
                for slot in &self.free {
                    let mut packet = packet.clone();
                    write_mark(&mut packet, mark(*slot));
                    self.send.write(*slot, place(*slot, self.places), &packet);
                }
            }
            Sends::Writes { bytes, most } => {
                let header = |writes: usize| -> [u8; STREAM_HEADERS_BYTES] {
                    let Packet(packet) = Packet::tcp(plan.ends, writes * bytes);
                    *packet.first_chunk().expect("a frame has headers")
                };
                let headers = (1..=*most).map(header).collect();
                let write = (0..*bytes).map(|at| at as u8).collect();
                self.writer = Some(Writer { write, headers, open: None });
            }
        }
    }

    /// Frames that were sent and have not come back.
    pub(super) fn outstanding(&self) -> u16 {
        self.send.outstanding()
    }

    /// Sends a frame, which the device sees after [`Self::show`]. The result is its mark, or none
    /// when the ring is full.
    pub(super) fn send(&mut self) -> Option<Mark> {
        let slot = self.free.pop_front()?;
        let posted = self.post(slot, self.whole_bytes);
        if posted.is_none() {
            self.free.push_front(slot);
        }
        posted
    }

    fn post(&mut self, slot: RequestSlot, whole_bytes: usize) -> Option<Mark> {
        let mut parts = [FramePart { offset: 0, len: 0 }; PIECES_MAX];
        let at = place(slot, self.places);
        let (mut done, mut count) = (0, 0);
        while done < whole_bytes {
            let len = PIECE_BYTES.min(whole_bytes - done);
            parts[count] = FramePart { offset: at + done as u32, len: len as u32 };
            (done, count) = (done + len, count + 1);
        }
        self.send.post(slot, &parts[..count], count > 1).then(|| mark(slot))
    }

    /// Makes one more write of its stream; `false` when there is no room for it.
    pub(super) fn write(&mut self) -> bool {
        let Some(writer) = &mut self.writer else { return false };
        let open = writer.open.or_else(|| Some((self.free.pop_front()?, 0)));
        let open = open.filter(|(_, writes)| *writes < writer.headers.len());
        let Some((slot, writes)) = open else { return false };
        let at = STREAM_HEADERS_BYTES + writes * writer.write.len();
        self.send.write(slot, place(slot, self.places) + at as u32, &writer.write);
        writer.open = Some((slot, writes + 1));
        true
    }

    /// Bytes that were written and not sent.
    pub(super) fn written_bytes(&self) -> usize {
        let of = |writer: &Writer| Some(writer.open?.1 * writer.write.len());
        self.writer.as_ref().and_then(of).unwrap_or(0)
    }

    /// Whether the frame that is being written has room for no more.
    pub(super) fn is_full(&self) -> bool {
        let full = |writer: &Writer| writer.open.is_some_and(|it| it.1 == writer.headers.len());
        self.writer.as_ref().is_some_and(full)
    }

    /// Sends the open frame, which the device sees after [`Self::show`]. The result is its mark, or
    /// none when the ring is full.
    pub(super) fn push(&mut self) -> Option<Mark> {
        let writer = self.writer.as_ref()?;
        let (slot, writes) = writer.open.filter(|(_, writes)| *writes > 0)?;
        let mut header = writer.headers[writes - 1];
        let whole_bytes = STREAM_HEADERS_BYTES + writes * writer.write.len();
        write_mark(&mut header, mark(slot));
        self.send.write(slot, place(slot, self.places), &header);
        let posted = self.post(slot, whole_bytes)?;
        self.writer.as_mut()?.open = None;
        Some(posted)
    }

    /// Shows the sent frames to the device.
    pub(super) fn show(&mut self) {
        self.kicks += u64::from(self.send.publish());
    }

    /// Calls that ended a sleep so far.
    pub(super) fn calls(&self) -> u64 {
        self.receive.calls()
    }

    /// Sleeps until a frame comes, or so long.
    pub(super) fn wait(&mut self, timeout: Duration) -> Result<()> {
        self.receive.wait(timeout)?;
        Ok(())
    }

    /// Takes back buffers that the device has finished.
    pub(super) fn reap(&mut self) -> Result<()> {
        while let Some((slot, _)) = self.send.complete()? {
            self.free.push_back(slot);
        }
        Ok(())
    }

    /// Tells the marks of frames that came, and posts their buffers again.
    pub(super) fn receive(&mut self, mut each: impl FnMut(Mark)) -> Result<()> {
        let mut buffers = 0;
        while let Some((slot, written)) = self.receive.complete()? {
            buffers += 1;
            let mut bytes = u64::from(written);
            if self.more == 0 {
                let mut first = [0; LOOKED_AT_BYTES];
                self.receive.read(slot, 0, &mut first);
                let ArrivedBuffers { buffers, mark } = ArrivedBuffers::read(&first);
                bytes = bytes.saturating_sub(HEADER_BYTES as u64);
                (self.more, self.is_ours) = (buffers, mark.is_some());
                match mark {
                    Some(mark) => each(mark),
                    None => self.foreign += 1,
                }
            }
            self.more -= 1;
            self.bytes += if self.is_ours { bytes } else { 0 };
            self.receive.release(slot);
            let again = self.receive.take_slot().context("just released")?;
            ensure!(self.receive.post(again, &[self.buffer], false), "as many as came back");
        }
        if buffers > 0 {
            self.show_buffers();
        }
        Ok(())
    }

    fn show_buffers(&mut self) {
        self.kicks += u64::from(self.receive.publish());
    }
}

/// The place in its page where a slot's frame begins, of so many places.
fn place(slot: RequestSlot, places: usize) -> u32 {
    (slot.index() % places * LINE_BYTES) as u32
}

/// The mark of a slot's frame.
fn mark(slot: RequestSlot) -> Mark {
    slot.index() as Mark
}
