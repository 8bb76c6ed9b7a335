//! The virtio-blk disk on a ring that a hostile driver fills: headers in pieces, types that do not
//! exist, sectors beyond the end, lists of ranges that are no lists, no room for the status. Every
//! chain that was taken ends. The ring stops and starts again with any content, and the disk
//! releases everything at the end.

use std::sync::Arc;

use ::block::{AttachOptions, Attached, Attachment, DiskCore, DiskQueues};
use ::volume::backend::memory::MemoryVolume;
use ::volume::{OpenArguments, Volume};
use arbitrary::{Arbitrary, Unstructured};
use sidecore::Services;
use virtio::{Queue, RingKind};

use crate::image::{Addr, BASE, Image, ImageShape, ImageStore, NEXT, PackedStore, WRITE};
use crate::steps::steps;

const STEPS_MAX: usize = 300;
const VOLUME_BYTES: u64 = 1 << 20;
const DEPTH: u16 = 32;
/// Where headers and data of the shaped requests are.
const HEADER: u64 = BASE + 0x3000;
const DATA: u64 = BASE + 0x4000;
const STATUS: u64 = BASE + 0x3800;
/// Rounds in which everything that was taken must have ended.
const CALM_ROUNDS: usize = 100;

/// A request that is nearly right.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct DiskRequest {
    head: u8,
    kind: DiskKind,
    sector: Sector,
    header_bytes: u8,
    data_bytes: u16,
    data_at: Option<Addr>,
    status_bytes: u8,
    /// Changes to the flags of the three descriptors, which are correct otherwise.
    flags: Option<[u8; 3]>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum DiskKind {
    In,
    Out,
    Flush,
    GetId,
    Ranges { zeroes: bool, ranges: [DiskRange; 3] },
    Other(u32),
}

/// A range of a discard or a write-zeroes.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct DiskRange {
    sector: Sector,
    sectors: Sectors,
    flags: u8,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Sectors {
    Few(u8),
    Any(u32),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Sector {
    Inside(u16),
    End(i8),
    Any(u64),
}

impl Sector {
    fn number(self) -> u64 {
        match self {
            Self::Inside(sector) => u64::from(sector) % (VOLUME_BYTES / 512),
            Self::End(by) => (VOLUME_BYTES / 512).wrapping_add_signed(by.into()),
            Self::Any(sector) => sector,
        }
    }
}

impl DiskRange {
    fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        let sectors = match self.sectors {
            Sectors::Few(sectors) => sectors.into(),
            Sectors::Any(sectors) => sectors,
        };
        bytes[..8].copy_from_slice(&self.sector.number().to_le_bytes());
        bytes[8..12].copy_from_slice(&sectors.to_le_bytes());
        // Usually the one flag that exists, or none.
        bytes[12] = if self.flags > 250 { self.flags } else { self.flags & 1 };
        bytes
    }
}

#[derive(Arbitrary, Debug)]
enum DiskStep {
    /// A write for each kind of ring.
    Store(ImageStore, PackedStore),
    Ask(DiskRequest),
    Poll,
    Remap,
    /// The front end stops the ring and starts it again.
    Restart,
}

struct DiskBed {
    image: Image,
    kind: RingKind,
    disk: DiskQueues,
    core: Arc<DiskCore>,
    now_ns: u64,
}

/// Runs the steps that `input` describes.
///
/// # Panics
/// When a request does not end, or more is answered than was taken.
pub fn run(input: &[u8]) {
    let mut input = Unstructured::new(input);
    let (Ok(shape), Ok(packed)) = (ImageShape::arbitrary(&mut input), bool::arbitrary(&mut input))
    else {
        return;
    };
    let kind = if packed { RingKind::Packed } else { RingKind::Split };
    let mut bed = DiskBed::new(kind, shape);
    if !bed.start(kind.base_fresh()) {
        return;
    }
    for step in steps(&mut input, STEPS_MAX) {
        if !bed.step(step) {
            break;
        }
    }
    bed.end();
}

impl DiskBed {
    fn new(kind: RingKind, shape: ImageShape) -> Self {
        let volume = MemoryVolume::new(VOLUME_BYTES).expect("memory");
        let core = DiskCore::new("fuzz", 1);
        let options = AttachOptions::new(1);
        let attachment = Arc::new(Attachment::new("fuzz", options));
        let open = OpenArguments { services: &Services::new(), depth: DEPTH };
        let attached = Attached {
            channel: volume.open(&open).expect("it opens"),
            info: volume.info(),
            size: volume.size(),
            attachment,
            index: 0,
            depth: DEPTH,
        };
        let disk = DiskQueues::new(core.clone(), attached, false);
        Self { image: Image::new(kind, shape), kind, disk, core, now_ns: 1 }
    }

    fn start(&mut self, base: u32) -> bool {
        match Queue::new(self.image.config(base)) {
            Ok(queue) => {
                self.disk.add_queue(queue);
                true
            }
            Err(error) => {
                assert!(self.image.is_used_damaged, "a sound ring was refused: {error}");
                false
            }
        }
    }

    fn step(&mut self, step: DiskStep) -> bool {
        match step {
            DiskStep::Store(store, packed) => match self.kind {
                RingKind::Split => self.image.store(store),
                RingKind::Packed => self.image.store_packed(packed),
            },
            DiskStep::Ask(request) => self.ask(request),
            DiskStep::Poll => self.poll(),
            DiskStep::Remap => self.disk.set_memory(&self.image.mapped_again()),
            DiskStep::Restart => {
                let base = self.stop();
                return self.start(base);
            }
        }
        true
    }

    fn poll(&mut self) {
        self.now_ns += 1_000;
        let _ = self.disk.poll(self.now_ns);
        assert!(self.disk.outstanding() <= usize::from(DEPTH));
    }

    /// Writes a request into three descriptors, from `head` on or in the next slots, and makes it
    /// available.
    fn ask(&mut self, request: DiskRequest) {
        let (kind, is_write) = match request.kind {
            DiskKind::In => (0, false),
            DiskKind::Out => (1, true),
            DiskKind::Flush => (4, false),
            DiskKind::GetId => (8, false),
            DiskKind::Ranges { zeroes, .. } => (if zeroes { 13 } else { 11 }, true),
            DiskKind::Other(kind) => (kind, kind & 1 != 0),
        };
        let mut header = [0; 16];
        header[..4].copy_from_slice(&u32::to_le_bytes(kind));
        header[8..].copy_from_slice(&request.sector.number().to_le_bytes());
        self.image.write(HEADER, &header);
        // Usually 16 bytes, whole sectors or whole ranges, and one byte.
        let header_bytes = if request.header_bytes > 63 { 16 } else { request.header_bytes };
        let unit = if let DiskKind::Ranges { ranges, .. } = request.kind {
            self.image.write(DATA, &ranges.map(DiskRange::bytes).concat());
            16
        } else {
            512
        };
        let data_bytes = match request.data_bytes {
            odd if odd & 7 == 7 => u32::from(odd),
            even => u32::from(even >> 3) % 24 * unit,
        };
        let data_at = request.data_at.map_or(DATA, Addr::guest);
        let status_bytes = if request.status_bytes > 15 { 1 } else { request.status_bytes };
        let right = [NEXT, if is_write { NEXT } else { NEXT | WRITE }, WRITE];
        let flags = request.flags.map_or(right, |flags| flags.map(|flags| u16::from(flags & 3)));
        let lengths = [header_bytes.into(), data_bytes, status_bytes.into()];
        let mut pieces: Vec<_> =
            [HEADER, data_at, STATUS].into_iter().zip(lengths).zip(flags).collect();
        if data_bytes == 0 {
            pieces.remove(1);
        }
        self.image.offer_chain(u16::from(request.head) % self.image.size, &pieces);
    }

    /// Stops the ring as GET_VRING_BASE does, and gives the base.
    fn stop(&mut self) -> u32 {
        if !self.disk.begin_stop(0, self.now_ns + 1_000_000) {
            return self.kind.base_fresh();
        }
        for _ in 0..CALM_ROUNDS {
            self.poll();
            if let Some(stopped) = self.disk.take_stopped(0) {
                return stopped.base;
            }
        }
        panic!("the queue does not stop");
    }

    fn end(mut self) {
        let counters = self.core.counters(0);
        for _ in 0..CALM_ROUNDS {
            self.poll();
        }
        assert_eq!(self.disk.outstanding(), 0, "requests that never end");
        self.stop();
        self.disk.let_go();
        for _ in 0..CALM_ROUNDS {
            self.poll();
        }
        assert!(self.disk.is_gone() && self.core.orphans() == 0);
        assert!(counters.errors.get() <= counters.requests.get());
        if self.core.is_broken() {
            assert!(self.core.broken_why().is_some_and(|why| !why.is_empty()));
        }
    }
}
