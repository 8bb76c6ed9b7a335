//! The packed ring against a driver that writes whatever it likes, whenever it likes.
//!
//! The model knows which slots are whose and reads the same image plainly, so it says of each chain
//! what it is or why it is refused, and where each used element must be. What is outstanding when
//! the device dies is in the inflight region, as it was when it was taken.

use std::collections::VecDeque;
use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use virtio::{Chain, Head, Memory, Queue, RingError, RingKind};

use crate::image::{
    Addr, Descriptor, INDIRECT, Image, NEXT, Shape, TABLES_AT, WRITE, raw_descriptor,
};
use crate::ring::{Pieces, add, inside, pieces_of};

/// Steps of one input.
const STEPS_MAX: usize = 400;

const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;
/// Slots and wrap counters of a base.
const WRAP: u32 = 1 << 15;

#[derive(Arbitrary, Debug)]
enum Step {
    /// A sound chain, if there is room: or few would come round the ring.
    Ask {
        id: u8,
        pieces: u8,
        table: bool,
    },
    /// A driver that does not, now and then.
    Break {
        rare: u8,
        store: Store,
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
    /// The device's process died and another goes on.
    Restart,
}

/// What a driver may store, sense or nonsense.
#[derive(Arbitrary, Debug)]
enum Store {
    /// The next slot, as a driver fills it.
    Push {
        descriptor: Descriptor,
        id: u8,
    },
    /// Any slot, of any round.
    Describe {
        slot: u8,
        descriptor: Descriptor,
        id: u8,
        flags: u16,
    },
    /// An entry of what may be found as an indirect table.
    Tabulate {
        at: u8,
        descriptor: Descriptor,
        flags: u16,
    },
    SetEvents(u32),
    Scribble {
        at: Addr,
        word: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    slot: u16,
    wrap: bool,
}

impl Place {
    fn advance(&mut self, slots: usize, size: u16) {
        for _ in 0..slots {
            self.slot += 1;
            if self.slot == size {
                *self = Self { slot: 0, wrap: !self.wrap };
            }
        }
    }

    fn bits(self) -> u32 {
        u32::from(self.slot) | if self.wrap { WRAP } else { 0 }
    }

    fn flags(self, available: bool) -> u16 {
        let avail = if self.wrap { AVAIL } else { 0 };
        avail | if self.wrap != available { USED } else { 0 }
    }
}

/// A chain that was taken and not published: its id and its descriptors as they were then.
#[derive(Clone, Debug)]
struct Taken {
    id: u16,
    list: Vec<[u8; 16]>,
}

struct Bed {
    image: Image,
    queue: Queue,
    chain: Chain,
    /// Where the driver fills the next slot.
    pushed: Place,
    /// Ids of sound chains that were not taken yet.
    asked: Vec<u16>,
    next: Place,
    used: Place,
    /// Slots of chains that nobody knows any more.
    limbo: usize,
    out: Vec<Head>,
    /// Put and not published, with what was written.
    staged: Vec<(u16, u32)>,
    taken: Vec<Taken>,
    redo: VecDeque<Taken>,
    table: Arc<Memory>,
}

/// What a take must come to: a part of an error's text, nothing, or a chain.
type Wanted = Result<Option<(Taken, Pieces)>, &'static str>;

/// Runs the steps that `input` describes.
///
/// # Panics
/// When the queue gives something else than the model, or refuses what is sound.
pub fn run(input: &[u8]) {
    let mut input = Unstructured::new(input);
    let Ok(shape) = Shape::arbitrary(&mut input) else { return };
    let image = Image::new(RingKind::Packed, shape);
    let Ok(queue) = Queue::new(image.config(RingKind::Packed.base_fresh())) else {
        assert!(image.is_elsewhere(), "a ring at its usual place was refused");
        return;
    };
    let table = image.memory.clone();
    let first = Place { slot: 0, wrap: true };
    let mut bed = Bed {
        image,
        queue,
        chain: Chain::new(),
        pushed: first,
        asked: Vec::new(),
        next: first,
        used: first,
        limbo: 0,
        out: Vec::new(),
        staged: Vec::new(),
        taken: Vec::new(),
        redo: VecDeque::new(),
        table,
    };
    for _ in 0..STEPS_MAX {
        let Ok(step) = Step::arbitrary(&mut input) else { return };
        let goes_on = bed.step(step);
        if !goes_on || input.is_empty() {
            return;
        }
    }
}

impl Bed {
    fn step(&mut self, step: Step) -> bool {
        match step {
            Step::Ask { id, pieces, table } => {
                self.ask(id.into(), 1 + u16::from(pieces % 4), table)
            }
            // A ring that fails at once shows little.
            Step::Break { rare, store } if rare % 8 == 0 => self.store(store),
            Step::Break { .. } => {}
            Step::Take => return self.take().is_some(),
            Step::TakeAll => {
                // One more than fit, so that the ring can be seen to be empty.
                for _ in 0..=self.image.size {
                    match self.take() {
                        Some(true) => {}
                        Some(false) => break,
                        None => return false,
                    }
                }
            }
            Step::Put { which, written } => {
                if !self.out.is_empty() {
                    let head = self.out.swap_remove(usize::from(which) % self.out.len());
                    self.queue.put(head, written);
                    self.staged.push((head.index(), written));
                }
            }
            Step::Publish => self.publish(),
            Step::Arm => {
                self.queue.arm();
            }
            Step::Disarm => self.queue.disarm(),
            Step::Remap => {
                self.table = self.image.mapped_again();
                self.queue.set_memory(self.table.clone()).expect("the ring is still there");
            }
            Step::Restart => self.restart(),
        }
        assert_eq!(usize::from(self.queue.outstanding()), self.out.len());
        assert_eq!(self.queue.base(), self.next.bits() | self.used.bits() << 16);
        true
    }

    /// A driver that keeps the rules, on its next slots.
    fn ask(&mut self, id: u16, pieces: u16, table: bool) {
        let size = self.image.size;
        let table = table && self.image.shape.indirect;
        let slots = if table { 1 } else { pieces };
        let is_known =
            |id: &u16| self.asked.contains(id) || self.taken.iter().any(|taken| taken.id == *id);
        let Some(id) = (id..id + size).map(|id| id % size).find(|id| !is_known(id)) else { return };
        let ahead = |place: Place| u16::from(place.wrap != self.used.wrap) * size + place.slot;
        if ahead(self.pushed).wrapping_sub(self.used.slot).wrapping_add(slots) > size {
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
                self.push(addr, len, flags, id);
            }
        }
        if table {
            self.push(tables, 16 * u32::from(pieces), INDIRECT, id);
        }
        self.asked.push(id);
    }

    fn push(&mut self, addr: u64, len: u32, flags: u16, id: u16) {
        let bytes = raw_descriptor(addr, len, id, flags | self.pushed.flags(true));
        self.image.write(self.at(self.pushed.slot), &bytes);
        self.pushed.advance(1, self.image.size);
    }

    fn store(&mut self, store: Store) {
        let size = self.image.size;
        // One id in 256 does not exist.
        let id = |id: u8| if id == 255 { size + 3 } else { u16::from(id) % size };
        match store {
            Store::Push { descriptor, id: named } => {
                let flags = descriptor.packed_flags() | self.pushed.flags(true);
                let bytes = descriptor.packed_bytes(id(named), flags);
                self.image.write(self.at(self.pushed.slot), &bytes);
                self.pushed.advance(1, size);
            }
            Store::Describe { slot, descriptor, id: named, flags } => {
                let bytes = descriptor.packed_bytes(id(named), flags);
                self.image.write(self.at(u16::from(slot) % size), &bytes);
            }
            Store::Tabulate { at, descriptor, flags } => {
                // Mostly readable or writable.
                let flags = if flags & 0xf000 == 0xf000 { flags } else { flags & WRITE };
                let bytes = descriptor.packed_bytes(0, flags);
                self.image.write(TABLES_AT + 16 * u64::from(at), &bytes);
            }
            Store::SetEvents(word) => self.image.write(self.image.avail, &word.to_le_bytes()),
            Store::Scribble { at, word } => self.image.write(at.guest(), &word.to_le_bytes()),
        }
    }

    fn at(&self, slot: u16) -> u64 {
        self.image.desc.wrapping_add(16 * u64::from(slot))
    }

    fn slot(&self, slot: u16) -> [u8; 16] {
        self.image.read(self.at(slot)).expect("the ring was checked")
    }

    /// Takes one chain. `None`: the queue has failed, rightly.
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
                self.check_failed(error);
                None
            }
        }
    }

    /// A queue that failed gives nothing but its error, and takes back what it gave.
    fn check_failed(&mut self, error: RingError) {
        assert_eq!(self.queue.take(&mut self.chain), Err(error));
        assert!(self.chain.readable.is_empty() && self.chain.writable.is_empty());
        self.out.drain(..).for_each(|head| self.queue.put(head, 0));
        self.queue.publish();
        assert!(!self.queue.arm() && self.queue.outstanding() == 0);
    }

    fn expect(&self) -> Wanted {
        if let Some(taken) = self.redo.front() {
            let pieces = self.pieces(&taken.list)?;
            return Ok(Some((taken.clone(), pieces)));
        }
        let size = self.image.size;
        let flags = word(&self.slot(self.next.slot), 14);
        if flags & (AVAIL | USED) != self.next.flags(true) {
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
        Ok(Some((Taken { id, list }, pieces)))
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

    /// Publishes, and looks for each used element where it must be.
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
