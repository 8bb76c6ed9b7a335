//! The split ring against a driver that writes anything at any time.
//!
//! The model reads the same memory plainly, one descriptor after another. The queue must give the
//! same pieces as the model, byte for byte, and refuse the same chains.

use std::collections::VecDeque;
use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use virtio::{Chain, ChainHead, Memory, Queue, RingError, RingKind, SEGMENTS_MAX, Segment};

use crate::image::{
    INDIRECT, Image, ImageShape, ImageStore, NEXT, REGION_BYTES, REGIONS_AT, WRITE,
};
use crate::steps::steps;

/// Steps of one input.
const STEPS_MAX: usize = 400;

#[derive(Arbitrary, Debug)]
enum RingStep {
    Store(ImageStore),
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

/// The model's pieces of a chain: guest address, length, and whether the piece is writable.
pub(crate) type Pieces = Vec<(u64, u32, bool)>;

/// A queue and the model's knowledge of it.
struct RingBed {
    image: Image,
    queue: Queue,
    chain: Chain,
    /// The next available element, and the end of the elements that the queue has seen.
    next: u16,
    seen: u16,
    /// Chains that were taken and not put; chains that were put and not published; both, in the
    /// order in which they were taken.
    out: Vec<ChainHead>,
    staged: Vec<u16>,
    taken: Vec<u16>,
    /// Chains that will be done again, in this order.
    redo: VecDeque<u16>,
    table: Arc<Memory>,
}

/// The expected result of a take: a part of an error's text, `None`, or a chain.
type RingTakeWanted = Result<Option<(u16, Pieces)>, &'static str>;

/// Runs the steps that `input` describes.
///
/// # Panics
/// When the queue's result is not the model's, or the queue refuses a sound chain.
pub fn run(input: &[u8]) {
    let mut input = Unstructured::new(input);
    let (Ok(shape), Ok(base)) = (ImageShape::arbitrary(&mut input), u16::arbitrary(&mut input))
    else {
        return;
    };
    let mut image = Image::new(RingKind::Split, shape);
    let base = base & 3;
    image.store(ImageStore::SetAvail(base));
    image.store(ImageStore::SetUsed(base));
    image.is_used_damaged = image.is_elsewhere();
    let Ok(queue) = Queue::new(image.config(base.into())) else {
        assert!(image.is_used_damaged, "a ring at its usual place was refused");
        return;
    };
    let table = image.memory.clone();
    let mut bed = RingBed {
        image,
        queue,
        chain: Chain::new(),
        next: base,
        seen: base,
        out: Vec::new(),
        staged: Vec::new(),
        taken: Vec::new(),
        redo: VecDeque::new(),
        table,
    };
    for step in steps(&mut input, STEPS_MAX) {
        if !bed.step(step) {
            return;
        }
    }
}

impl RingBed {
    fn step(&mut self, step: RingStep) -> bool {
        match step {
            RingStep::Store(store) => self.image.store(store),
            RingStep::Take => return self.take().is_some(),
            RingStep::TakeAll => {
                // One more than fit, so that the ring can be seen to be empty.
                for _ in 0..=self.image.size {
                    match self.take() {
                        Some(true) => {}
                        Some(false) => break,
                        None => return false,
                    }
                }
            }
            RingStep::Put { which, written } => {
                if !self.out.is_empty() {
                    let head = self.out.swap_remove(usize::from(which) % self.out.len());
                    self.queue.put(head, written);
                    self.staged.push(head.index());
                }
            }
            RingStep::Publish => {
                self.queue.publish();
                self.taken.retain(|head| !self.staged.contains(head));
                self.staged.clear();
            }
            RingStep::Arm => {
                self.queue.arm();
            }
            RingStep::Disarm => self.queue.disarm(),
            RingStep::Remap => {
                self.table = self.image.mapped_again();
                self.queue.set_memory(self.table.clone()).expect("the ring is still there");
            }
            RingStep::Restart => return self.restart(),
        }
        assert_eq!(usize::from(self.queue.outstanding()), self.out.len());
        true
    }

    /// Takes one chain. `None`: the queue has failed as the model expects.
    fn take(&mut self) -> Option<bool> {
        let wanted = self.expect();
        match self.queue.take(&mut self.chain) {
            Ok(None) => {
                assert_eq!(wanted, Ok(None), "the queue saw nothing");
                Some(false)
            }
            Ok(Some(head)) => {
                let given = pieces_of(&self.chain, &self.table);
                assert_eq!(wanted, Ok(Some((head.index(), given))));
                if self.redo.pop_front().is_none() {
                    self.next = self.next.wrapping_add(1);
                    self.taken.push(head.index());
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

    fn expect(&mut self) -> RingTakeWanted {
        if let Some(&head) = self.redo.front() {
            return self.chain_at(head).map(|pieces| Some((head, pieces)));
        }
        let (image, size) = (&self.image, self.image.size);
        // The index is read only after every chain up to the last index was taken.
        if self.next == self.seen {
            let found = image.read_u16(image.avail + 2).expect("it was checked");
            if found.wrapping_sub(self.next) > size {
                return Err("jumped");
            }
            self.seen = found;
            if found == self.next {
                return Ok(None);
            }
        }
        let slot = u64::from(self.next & (size - 1));
        let head = image.read_u16(image.avail + 4 + 2 * slot).expect("it was checked");
        if head >= size {
            return Err("descriptor");
        }
        if self.taken.contains(&head) {
            return Err("while it was outstanding");
        }
        self.chain_at(head).map(|pieces| Some((head, pieces)))
    }

    /// Reads a chain as the specification says, plainly.
    fn chain_at(&self, head: u16) -> Result<Pieces, &'static str> {
        let mut pieces = Pieces::new();
        let (mut table, mut count) = (self.image.desc, self.image.size);
        let (mut index, mut turns, mut is_indirect) = (head, 0, false);
        loop {
            if index >= count {
                return Err("descriptor");
            }
            if turns == count {
                return Err("does not end");
            }
            turns += 1;
            let at = table.wrapping_add(16 * u64::from(index));
            let words: [u8; 16] = self.image.read(at).expect("the table was checked");
            let word = |at: usize| u16::from_le_bytes([words[at], words[at + 1]]);
            let addr = u64::from_le_bytes(words[..8].try_into().expect("eight"));
            let len = u32::from(word(8)) | u32::from(word(10)) << 16;
            let (flags, next) = (word(12), word(14));
            if flags & INDIRECT != 0 {
                if is_indirect || !self.image.shape.indirect || flags & NEXT != 0 {
                    return Err("indirect table where none");
                }
                if len % 16 != 0 || len == 0 || len / 16 > 1024 {
                    return Err("indirect table of");
                }
                if !inside(addr, len) {
                    return Err("outside the guest's memory");
                }
                (table, count) = (addr, (len / 16) as u16);
                (index, turns, is_indirect) = (0, 0, true);
                continue;
            }
            add(&mut pieces, addr, len, flags & WRITE != 0)?;
            if flags & NEXT == 0 {
                return Ok(pieces);
            }
            index = next;
        }
    }

    /// Whether the model knows the next result.
    fn restart(&mut self) -> bool {
        let queue = match Queue::new(self.image.config(self.queue.base())) {
            Ok(queue) => queue,
            Err(error) => {
                assert!(self.image.is_used_damaged, "a sound ring was not resumed: {error}");
                return false;
            }
        };
        self.queue = queue;
        self.table = self.image.memory.clone();
        self.out.clear();
        self.staged.clear();
        if self.image.shape.inflight {
            if self.image.is_used_damaged {
                // The region's answer about such a ring is unknown, but it is bounded.
                for _ in 0..=self.image.size {
                    let _ = self.queue.take(&mut self.chain);
                }
                assert!(self.queue.counters().redone <= u64::from(self.image.size));
                return false;
            }
            self.redo = self.taken.iter().copied().collect();
        } else {
            self.taken.clear();
        }
        self.seen = self.next;
        assert_eq!(self.queue.base(), u32::from(self.next));
        true
    }
}

/// Checks that a failed queue gives only its error, and takes its chains back.
pub(crate) fn check_failed(
    queue: &mut Queue,
    chain: &mut Chain,
    out: &mut Vec<ChainHead>,
    error: RingError,
) {
    assert_eq!(queue.take(chain), Err(error));
    assert!(chain.readable.is_empty() && chain.writable.is_empty());
    out.drain(..).for_each(|head| queue.put(head, 0));
    queue.publish();
    assert!(!queue.arm() && queue.outstanding() == 0);
}

/// The pieces that a queue gave, in guest addresses.
pub(crate) fn pieces_of(chain: &Chain, table: &Memory) -> Pieces {
    let piece = |segment: &Segment, is_writable: bool| {
        let inside = table.regions().iter().find_map(|region| {
            let start = region.mapping().start().as_ptr().addr();
            let at = segment.addr.addr().checked_sub(start)? as u64;
            let fits = at + u64::from(segment.len) <= region.len_bytes();
            fits.then(|| (region.guest_addr() + at, segment.len, is_writable))
        });
        inside.expect("a piece inside a region of the present table")
    };
    assert!(chain.readable.len() + chain.writable.len() <= SEGMENTS_MAX);
    let readable = chain.readable.iter().map(|segment| piece(segment, false));
    readable.chain(chain.writable.iter().map(|segment| piece(segment, true))).collect()
}

/// Whether a range lies in one region.
pub(crate) fn inside(addr: u64, len: u32) -> bool {
    REGIONS_AT.iter().any(|&start| {
        addr >= start
            && addr - start < REGION_BYTES
            && addr - start + u64::from(len) <= REGION_BYTES
    })
}

/// Adds a buffer, cut where a region ends.
pub(crate) fn add(
    pieces: &mut Pieces,
    addr: u64,
    len: u32,
    is_writable: bool,
) -> Result<(), &'static str> {
    let total: u64 = pieces.iter().map(|piece| u64::from(piece.1)).sum();
    if len == 0 {
        return Err("zero bytes");
    }
    if total + u64::from(len) > u64::from(u32::MAX) {
        return Err("4 GiB");
    }
    if !is_writable && pieces.last().is_some_and(|piece| piece.2) {
        return Err("after a writable one");
    }
    let (mut addr, mut left) = (addr, len);
    while left > 0 {
        let start = REGIONS_AT.iter().find(|&&start| addr >= start && addr - start < REGION_BYTES);
        let end = start.ok_or("outside the guest's memory")? + REGION_BYTES;
        let part = left.min((end - addr) as u32);
        if pieces.len() == SEGMENTS_MAX {
            return Err("in more than");
        }
        pieces.push((addr, part, is_writable));
        addr += u64::from(part);
        left -= part;
    }
    Ok(())
}
