//! The packed ring against a driver that writes anything at any time.
//!
//! The model knows the owner of each slot and reads the same memory plainly. So it knows the pieces
//! of each chain or the reason why the chain is refused, and the place of each used element.
//! Chains that are outstanding when the device dies are in the inflight region as they were taken.

use std::collections::VecDeque;
use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use virtio::{Chain, ChainHead, Memory, Queue, RingKind};

use crate::image::{
    INDIRECT, Image, ImagePlace, ImageShape, MARKS, NEXT, PackedStore, TABLES_AT, WRITE,
    raw_descriptor,
};
use crate::ring::{Pieces, add, check_failed, inside, pieces_of};

/// Steps of one input.
const STEPS_MAX: usize = 400;

#[derive(Arbitrary, Debug)]
enum PackedStep {
    /// A sound chain, if there is room. Without sound chains few runs would pass the ring's end.
    Ask {
        id: u8,
        pieces: u8,
        table: bool,
    },
    /// A driver that sometimes breaks the rules.
    Break {
        rare: u8,
        store: PackedStore,
    },
    Take,
    TakeAll,
    Put {
        which: u8,
        written: u32,
    },
    Publish,
    Arm,
    Disarm,
    /// The front end changed its memory table.
    Remap,
    /// The device's process died, and a successor resumes the ring.
    Restart,
}

/// A chain that was taken and not published: its id and its descriptors as they were then.
#[derive(Clone, Debug)]
struct PackedTaken {
    id: u16,
    list: Vec<[u8; 16]>,
}

struct PackedBed {
    image: Image,
    queue: Queue,
    chain: Chain,
    /// Ids of sound chains that were not taken yet.
    asked: Vec<u16>,
    next: ImagePlace,
    used: ImagePlace,
    /// Slots of chains that neither side knows any more.
    limbo: usize,
    out: Vec<ChainHead>,
    /// Chains that were put and not published, with the bytes written.
    staged: Vec<(u16, u32)>,
    taken: Vec<PackedTaken>,
    redo: VecDeque<PackedTaken>,
    table: Arc<Memory>,
}

/// The expected result of a take: a part of an error's text, `None`, or a chain.
type TakeWanted = Result<Option<(PackedTaken, Pieces)>, &'static str>;

/// Runs the steps that `input` describes.
///
/// # Panics
/// When the queue's result is not the model's, or the queue refuses a sound chain.
pub fn run(input: &[u8]) {
    let mut input = Unstructured::new(input);
    let Ok(shape) = ImageShape::arbitrary(&mut input) else { return };
    let image = Image::new(RingKind::Packed, shape);
    let Ok(queue) = Queue::new(image.config(RingKind::Packed.base_fresh())) else {
        assert!(image.is_elsewhere(), "a ring at its usual place was refused");
        return;
    };
    let table = image.memory.clone();
    let mut bed = PackedBed {
        image,
        queue,
        chain: Chain::new(),
        asked: Vec::new(),
        next: ImagePlace::FIRST,
        used: ImagePlace::FIRST,
        limbo: 0,
        out: Vec::new(),
        staged: Vec::new(),
        taken: Vec::new(),
        redo: VecDeque::new(),
        table,
    };
    for _ in 0..STEPS_MAX {
        let Ok(step) = PackedStep::arbitrary(&mut input) else { return };
        let goes_on = bed.step(step);
        if !goes_on || input.is_empty() {
            return;
        }
    }
}

impl PackedBed {
    fn step(&mut self, step: PackedStep) -> bool {
        match step {
            PackedStep::Ask { id, pieces, table } => {
                self.ask(id.into(), 1 + u16::from(pieces % 4), table)
            }
            // A ring that fails at once reaches little code.
            PackedStep::Break { rare, store } if rare % 8 == 0 => self.image.store_packed(store),
            PackedStep::Break { .. } => {}
            PackedStep::Take => return self.take().is_some(),
            PackedStep::TakeAll => {
                // One more than fit, so that the ring can be seen to be empty.
                for _ in 0..=self.image.size {
                    match self.take() {
                        Some(true) => {}
                        Some(false) => break,
                        None => return false,
                    }
                }
            }
            PackedStep::Put { which, written } => {
                if !self.out.is_empty() {
                    let head = self.out.swap_remove(usize::from(which) % self.out.len());
                    self.queue.put(head, written);
                    self.staged.push((head.index(), written));
                }
            }
            PackedStep::Publish => self.publish(),
            PackedStep::Arm => {
                self.queue.arm();
            }
            PackedStep::Disarm => self.queue.disarm(),
            PackedStep::Remap => {
                self.table = self.image.mapped_again();
                self.queue.set_memory(self.table.clone()).expect("the ring is still there");
            }
            PackedStep::Restart => self.restart(),
        }
        assert_eq!(usize::from(self.queue.outstanding()), self.out.len());
        assert_eq!(self.queue.base(), self.next.bits() | self.used.bits() << 16);
        true
    }

    /// Writes a sound chain into the driver's next slots.
    fn ask(&mut self, id: u16, pieces: u16, table: bool) {
        let size = self.image.size;
        let table = table && self.image.shape.indirect;
        let slots = if table { 1 } else { pieces };
        let is_known =
            |id: &u16| self.asked.contains(id) || self.taken.iter().any(|taken| taken.id == *id);
        let Some(id) = (id..id + size).map(|id| id % size).find(|id| !is_known(id)) else { return };
        let ahead = |place: ImagePlace| u16::from(place.wrap != self.used.wrap) * size + place.slot;
        if ahead(self.image.pushed).wrapping_sub(self.used.slot).wrapping_add(slots) > size {
            return;
        }
        let (buffer, tables) = (TABLES_AT + 0x1000, TABLES_AT + 64 * u64::from(id));
        let piece = |at: u16| {
            let flags = if at + 1 < pieces { NEXT } else { 0 } | if at > 0 { WRITE } else { 0 };
            (buffer + 64 * u64::from(at), 64, flags)
        };
        for at in 0..pieces {
            let (addr, len, flags) = piece(at);
            if table {
                let bytes = raw_descriptor(addr, len, 0, flags);
                self.image.write(tables + 16 * u64::from(at), &bytes);
            } else {
                self.image.push(addr, len, flags, id);
            }
        }
        if table {
            self.image.push(tables, 16 * u32::from(pieces), INDIRECT, id);
        }
        self.asked.push(id);
    }

    fn slot(&self, slot: u16) -> [u8; 16] {
        self.image.read(self.image.slot_at(slot)).expect("the ring was checked")
    }

    /// Takes one chain. `None`: the queue has failed as the model expects.
    fn take(&mut self) -> Option<bool> {
        let wanted = self.expect();
        match self.queue.take(&mut self.chain) {
            Ok(None) => {
                assert!(matches!(wanted, Ok(None)), "the queue saw nothing: {wanted:?}");
                Some(false)
            }
            Ok(Some(head)) => {
                let (taken, pieces) = wanted.expect("it is refused").expect("there is nothing");
                assert_eq!((head.index(), pieces_of(&self.chain, &self.table)), (taken.id, pieces));
                if self.redo.pop_front().is_none() {
                    self.next.advance(taken.list.len(), self.image.size);
                    self.asked.retain(|id| *id != taken.id);
                    self.taken.push(taken);
                }
                self.out.push(head);
                Some(true)
            }
            Err(error) => {
                let wanted = wanted.expect_err("the queue refused what is sound");
                assert!(error.to_string().contains(wanted), "{error}, and not: {wanted}");
                check_failed(&mut self.queue, &mut self.chain, &mut self.out, error);
                None
            }
        }
    }

    fn expect(&self) -> TakeWanted {
        if let Some(taken) = self.redo.front() {
            let pieces = self.pieces(&taken.list)?;
            return Ok(Some((taken.clone(), pieces)));
        }
        let size = self.image.size;
        let flags = word(&self.slot(self.next.slot), 14);
        if flags & MARKS != self.next.flags(true) {
            return Ok(None);
        }
        let slots: usize = self.taken.iter().map(|taken| taken.list.len()).sum();
        let free = usize::from(size) - slots - self.limbo;
        if free == 0 {
            return Err("while all");
        }
        let (mut place, mut list) = (self.next, Vec::new());
        loop {
            let bytes = self.slot(place.slot);
            list.push(bytes);
            if word(&bytes, 14) & NEXT == 0 {
                break;
            }
            if list.len() == free {
                return Err("does not end");
            }
            place.advance(1, size);
        }
        let id = word(list.last().expect("at least one"), 12);
        if id >= size {
            return Err("descriptor");
        }
        if self.taken.iter().any(|taken| taken.id == id) {
            return Err("while it was outstanding");
        }
        let pieces = self.pieces(&list)?;
        Ok(Some((PackedTaken { id, list }, pieces)))
    }

    /// Reads a list of descriptors as the specification says, plainly.
    fn pieces(&self, list: &[[u8; 16]]) -> Result<Pieces, &'static str> {
        let mut pieces = Pieces::new();
        for bytes in list {
            let (addr, len, flags) = fields(bytes);
            if flags & INDIRECT == 0 {
                add(&mut pieces, addr, len, flags & WRITE != 0)?;
                continue;
            }
            if list.len() > 1 || !self.image.shape.indirect {
                return Err("indirect table where none");
            }
            if len % 16 != 0 || len == 0 || len / 16 > 1024 {
                return Err("indirect table of");
            }
            if !inside(addr, len) {
                return Err("outside the guest's memory");
            }
            for at in (0..u64::from(len)).step_by(16) {
                let bytes: [u8; 16] = self.image.read(addr + at).expect("it is inside");
                let (addr, len, flags) = fields(&bytes);
                if flags & INDIRECT != 0 {
                    return Err("indirect table where none");
                }
                add(&mut pieces, addr, len, flags & WRITE != 0)?;
            }
        }
        Ok(pieces)
    }

    /// Publishes, and checks the place of each used element.
    fn publish(&mut self) {
        self.queue.publish();
        let size = self.image.size;
        for (id, written) in std::mem::take(&mut self.staged) {
            let bytes = self.slot(self.used.slot);
            let flags = self.used.flags(false) | if written > 0 { WRITE } else { 0 };
            assert_eq!((word(&bytes, 12), word(&bytes, 14)), (id, flags));
            assert_eq!(bytes[8..12], written.to_le_bytes());
            let at = self.taken.iter().position(|taken| taken.id == id);
            let taken = self.taken.remove(at.expect("it was taken"));
            self.used.advance(taken.list.len(), size);
        }
    }

    fn restart(&mut self) {
        let queue = Queue::new(self.image.config(self.queue.base()));
        self.queue = queue.expect("a ring that was served is resumed");
        self.table = self.image.memory.clone();
        self.out.clear();
        self.staged.clear();
        if self.image.shape.inflight {
            self.redo = self.taken.iter().cloned().collect();
        } else {
            self.limbo += self.taken.drain(..).map(|taken| taken.list.len()).sum::<usize>();
        }
    }
}

fn word(bytes: &[u8; 16], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// Address, length and flags.
fn fields(bytes: &[u8; 16]) -> (u64, u32, u16) {
    let addr = u64::from_le_bytes(bytes[..8].try_into().expect("eight"));
    (addr, u32::from(word(bytes, 8)) | u32::from(word(bytes, 10)) << 16, word(bytes, 14))
}
