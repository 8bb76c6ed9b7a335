//! Message bodies: one pool of buffers per endpoint, counted references, no copies between owners.
//!
//! Memory comes in chunks of 1 MiB, aligned to a page and never moved, so that a kernel may hold
//! addresses into it. A chunk is cut into buffers of one size class; a chunk without any buffer in
//! use can be cut anew for another class. The pool grows as it is used, up to a limit.
//!
//! ```text
//! chunk 0 (class 4K)   [b][b][b][b] ... 256 of them
//! chunk 1 (class 64K)  [ b ][ b ] ... 16 of them
//! chunk 2 (class 1M)   [          b          ]
//! ```
//!
//! Chunks also belong to one of two shares: buffers that the owner of the endpoint allocates, and
//! buffers in which arriving calls are put together. Neither share may take more than three
//! quarters, so that two nodes whose pools are full of calls to each other still take each other's
//! calls in.
//!
//! Each buffer also has an owner: this node, or the peer whose message is in it. A peer may have
//! buffers in so many chunks as [`Share`](crate::quota::Share) admits; chunks and not bytes, since
//! one small buffer that is never given back keeps a whole chunk from other classes.

use std::fmt;
use std::sync::Arc;

use crate::counters::EndpointCounters;
use crate::quota::{self, QuotaPart};

/// The alignment of every buffer, as direct I/O and page-wise copying want it.
pub const PAGE_BYTES: usize = 4096;

/// One chunk, and so the largest buffer: the largest message body.
pub const CHUNK_BYTES: usize = 1 << 20;

/// Buffer sizes. Powers of four keep the number of classes small and waste at most three quarters
/// of address space, of which untouched pages cost nothing.
pub const CLASS_BYTES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// The smallest pool: less than four chunks could not be shared with a quarter for either side.
pub(crate) const CHUNKS_MIN: usize = 4;

/// The most chunks: 16 GiB in one endpoint. Bounds the tables.
pub(crate) const CHUNKS_MAX: usize = 1 << 14;

/// Buffers in a chunk of the smallest class.
const SLOTS_MAX: usize = CHUNK_BYTES / CLASS_BYTES[0];

/// A buffer. Using one that was given back is our own mistake and panics.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BufId {
    /// Chunk times `SLOTS_MAX` plus the slot in it.
    index: u32,
    /// Counts the uses of that slot, to recognise a stale handle.
    generation: u32,
}

impl fmt::Debug for BufId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufId({}.{})", self.index, self.generation)
    }
}

/// The user of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// The owner of the endpoint: bodies of its calls and replies.
    Own,
    /// The endpoint itself: bodies of arriving calls.
    Incoming,
}

/// Whose a buffer is: the number of a peer of the endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferOwner(u16);

impl BufferOwner {
    /// No peer's, but this node's own: no share is kept of it.
    pub(crate) const NODE: Self = Self(u16::MAX);

    pub(crate) fn peer(number: usize) -> Self {
        assert!(number < usize::from(u16::MAX), "a peer's number");
        Self(number as u16)
    }

    /// The peer's number.
    pub(crate) fn number(self) -> Option<usize> {
        (self != Self::NODE).then_some(usize::from(self.0))
    }
}

/// A peer's part of a pool.
#[derive(Clone, Debug, Default)]
struct Holding {
    /// By chunk, how many buffers; empty before the first one.
    buffers: Vec<u16>,
    /// By share: chunks with a buffer.
    chunks: [u32; 2],
    /// By share: how often it was refused for having its part.
    refused: [u64; 2],
}

/// The state of one buffer.
#[derive(Clone, Copy)]
struct BufferState {
    generation: u32,
    references: u32,
    len_bytes: u32,
    owner: BufferOwner,
}

impl BufferState {
    const FREE: Self =
        Self { generation: 0, references: 0, len_bytes: 0, owner: BufferOwner::NODE };
}

/// Where a chunk is listed.
const UNLISTED: usize = usize::MAX;

/// Where a pool's memory comes from, if not from the program's allocator: huge pages, say, which
/// need system calls and pointers that this crate does without.
pub trait PoolMemory: fmt::Debug + Send + Sync {
    /// [`CHUNK_BYTES`] for a chunk, aligned to [`PAGE_BYTES`], which stay where they are for as
    /// long as the answer lives. `None` when there is nothing: then the allocator is asked.
    fn chunk(&self) -> Option<Box<dyn ChunkMemory>>;
}

/// The memory of one chunk.
pub trait ChunkMemory: Send {
    /// All of it.
    fn bytes(&self) -> &[u8];

    /// All of it, to be written.
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl ChunkMemory for Box<[u8]> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

struct Chunk {
    memory: Box<dyn ChunkMemory>,
    /// The first aligned byte.
    start: usize,
    class: usize,
    share: Share,
    /// Free slots, a stack.
    free: Vec<u8>,
    slots: Box<[BufferState; SLOTS_MAX]>,
    /// Position in the list of chunks with free slots of this class and share, or `UNLISTED`.
    listed_at: usize,
}

impl Chunk {
    fn new(class: usize, share: Share, source: Option<&dyn PoolMemory>) -> Self {
        // From the allocator one page more than is used, to align the start.
        let memory = source
            .and_then(PoolMemory::chunk)
            .unwrap_or_else(|| Box::new(vec![0u8; CHUNK_BYTES + PAGE_BYTES].into_boxed_slice()));
        let start = memory.bytes().as_ptr().align_offset(PAGE_BYTES);
        assert!(memory.bytes().len() >= start + CHUNK_BYTES, "memory for a whole chunk");
        let mut chunk = Self {
            memory,
            start,
            class,
            share,
            free: Vec::with_capacity(SLOTS_MAX),
            slots: Box::new([BufferState::FREE; SLOTS_MAX]),
            listed_at: UNLISTED,
        };
        chunk.cut(class, share);
        chunk
    }

    fn cut(&mut self, class: usize, share: Share) {
        self.class = class;
        self.share = share;
        self.free.clear();
        let count = CHUNK_BYTES / CLASS_BYTES[class];
        self.free.extend((0..count).rev().map(|slot| slot as u8));
    }

    fn is_idle(&self) -> bool {
        self.free.len() == CHUNK_BYTES / CLASS_BYTES[self.class]
    }

    fn range(&self, slot: usize) -> std::ops::Range<usize> {
        let first = self.start + slot * CLASS_BYTES[self.class];
        first..first + self.slots[slot].len_bytes as usize
    }
}

/// All buffers of an endpoint.
pub struct Pool {
    source: Option<Arc<dyn PoolMemory>>,
    chunks: Vec<Chunk>,
    chunks_max: usize,
    /// Chunks with free slots, by share and class; stacks of chunk indices.
    with_free: [[Vec<u32>; CLASS_BYTES.len()]; 2],
    /// Chunks of each share, and those of them with a buffer in use.
    share_chunks: [usize; 2],
    share_busy: [usize; 2],
    /// By the peer's number.
    holdings: Vec<Holding>,
    in_use: usize,
    /// By share.
    used_bytes: [usize; 2],
    refused: u64,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("chunks", &self.chunks.len())
            .field("chunks_max", &self.chunks_max)
            .field("in_use", &self.in_use)
            .finish_non_exhaustive()
    }
}

/// The class that holds `len_bytes`, or `None` when no buffer is that large.
fn class_of(len_bytes: usize) -> Option<usize> {
    CLASS_BYTES.iter().position(|&class| len_bytes <= class)
}

/// The cost of a body of `len_bytes` to a pool, and so in flow credit: its class, nothing for an
/// empty one. Saturates at the largest class.
pub(crate) fn charge_bytes(len_bytes: usize) -> u64 {
    if len_bytes == 0 {
        return 0;
    }
    CLASS_BYTES[class_of(len_bytes).unwrap_or(CLASS_BYTES.len() - 1)] as u64
}

impl Pool {
    /// A pool that grows to at most `bytes_max`, rounded down to whole chunks of 1 MiB, at least
    /// four of them and at most 16384. Nothing is allocated yet.
    pub fn new(bytes_max: usize) -> Self {
        Self::with_memory(bytes_max, None)
    }

    /// The same with memory from elsewhere.
    pub fn with_memory(bytes_max: usize, source: Option<Arc<dyn PoolMemory>>) -> Self {
        let chunks_max = (bytes_max / CHUNK_BYTES).clamp(CHUNKS_MIN, CHUNKS_MAX);
        let list = || Vec::with_capacity(chunks_max);
        let lists = || [list(), list(), list(), list(), list()];
        Self {
            source,
            chunks: Vec::with_capacity(chunks_max),
            chunks_max,
            with_free: [lists(), lists()],
            share_chunks: [0; 2],
            share_busy: [0; 2],
            holdings: Vec::new(),
            in_use: 0,
            used_bytes: [0; 2],
            refused: 0,
        }
    }

    /// Takes a buffer of `len_bytes` (1 to [`CHUNK_BYTES`]) with one reference. It still has the
    /// bytes of an earlier use. `None`, counted, when the pool is at its limit.
    pub fn alloc(&mut self, len_bytes: usize) -> Option<BufId> {
        self.alloc_for(BufferOwner::NODE, Share::Own, len_bytes)
    }

    /// A buffer of a share for an owner. `None`, counted, when the pool is at its limit, or the
    /// owner has its part.
    pub(crate) fn alloc_for(
        &mut self,
        owner: BufferOwner,
        share: Share,
        len_bytes: usize,
    ) -> Option<BufId> {
        assert!((1..=CHUNK_BYTES).contains(&len_bytes), "a buffer of {len_bytes} bytes");
        let class = class_of(len_bytes).expect("the largest class is a chunk");
        let listed = self.with_free[share as usize][class].last().map(|&index| index as usize);
        if !self.may_have(owner, share, listed) {
            return None;
        }
        let chunk_index = match listed {
            Some(index) => index,
            None => match self.add_chunk(class, share) {
                Some(index) => index,
                None => {
                    self.refused += 1;
                    return None;
                }
            },
        };
        self.hold(owner, chunk_index);
        let chunk = &mut self.chunks[chunk_index];
        let slot_index = chunk.free.pop().expect("a listed chunk has a free slot") as usize;
        if chunk.free.is_empty() {
            chunk.listed_at = UNLISTED;
            self.with_free[share as usize][class].pop();
        }
        let slot = &mut chunk.slots[slot_index];
        assert_eq!(slot.references, 0, "a free buffer has no references");
        slot.references = 1;
        slot.owner = owner;
        slot.generation = slot.generation.wrapping_add(1);
        slot.len_bytes = len_bytes as u32;
        self.in_use += 1;
        self.used_bytes[share as usize] += CLASS_BYTES[class];
        let index = (chunk_index * SLOTS_MAX + slot_index) as u32;
        Some(BufId { index, generation: slot.generation })
    }

    /// One more owner.
    pub fn retain(&mut self, id: BufId) {
        self.slot_mut(id).references += 1;
    }

    /// One owner less; the last one gives the buffer back.
    pub fn release(&mut self, id: BufId) {
        let slot = self.slot_mut(id);
        slot.references -= 1;
        if slot.references > 0 {
            return;
        }
        let owner = slot.owner;
        let (chunk_index, slot_index) = split(id);
        let chunk = &mut self.chunks[chunk_index];
        chunk.free.push(slot_index as u8);
        self.in_use -= 1;
        self.used_bytes[chunk.share as usize] -= CLASS_BYTES[chunk.class];
        let (share, is_idle) = (chunk.share as usize, chunk.is_idle());
        self.share_busy[share] -= usize::from(is_idle);
        if let Some(holding) = owner.number().and_then(|number| self.holdings.get_mut(number)) {
            let buffers = &mut holding.buffers[chunk_index];
            *buffers -= 1;
            holding.chunks[share] -= u32::from(*buffers == 0);
        }
        let chunk = &self.chunks[chunk_index];
        if chunk.listed_at == UNLISTED {
            self.list(chunk_index);
        }
    }

    /// The bytes of a buffer, as many as were asked for.
    pub fn bytes(&self, id: BufId) -> &[u8] {
        let (chunk_index, slot_index) = split(id);
        let chunk = &self.chunks[chunk_index];
        check(&chunk.slots[slot_index], id);
        &chunk.memory.bytes()[chunk.range(slot_index)]
    }

    /// The bytes of a buffer, to be written. They are aligned to [`PAGE_BYTES`] and stay where they
    /// are until the last reference is released.
    pub fn bytes_mut(&mut self, id: BufId) -> &mut [u8] {
        let (chunk_index, slot_index) = split(id);
        let chunk = &mut self.chunks[chunk_index];
        check(&chunk.slots[slot_index], id);
        let range = chunk.range(slot_index);
        &mut chunk.memory.bytes_mut()[range]
    }

    /// Buffers with a reference.
    pub fn in_use(&self) -> usize {
        self.in_use
    }

    /// The cost of the buffers in use, by their classes.
    pub fn in_use_bytes(&self) -> usize {
        self.used_bytes.iter().sum()
    }

    /// A buffer for a body that arrives from a peer, if there is one, and it may be that peer's.
    pub(crate) fn alloc_incoming(
        &mut self,
        owner: BufferOwner,
        body_bytes: usize,
        counters: &mut EndpointCounters,
    ) -> Option<BufId> {
        let refused = self.refused_to(owner, Share::Incoming);
        let buffer = self.alloc_for(owner, Share::Incoming, body_bytes);
        counters.calls_beyond_share += self.refused_to(owner, Share::Incoming) - refused;
        buffer
    }

    /// The chunks of a share that peers may divide: no more than the other share leaves of the
    /// pool.
    fn chunks_of(&self, share: Share) -> quota::Share {
        let busy = self.share_busy[share as usize];
        let all_busy: usize = self.share_busy.iter().sum();
        let free = (self.share_max() - busy).min(self.chunks_max - all_busy);
        quota::Share { max: (busy + free) as u64, used: busy as u64 }
    }

    /// Whether an owner may have a buffer in the chunk that is listed for it, or in one that is cut
    /// anew if none is.
    fn may_have(&mut self, owner: BufferOwner, share: Share, listed: Option<usize>) -> bool {
        let Some(number) = owner.number() else { return true };
        let chunks = self.chunks_of(share);
        if self.holdings.len() <= number {
            self.holdings.resize_with(number + 1, Holding::default);
        }
        let holding = &mut self.holdings[number];
        if listed.is_some_and(|at| holding.buffers.get(at).is_some_and(|&buffers| buffers > 0)) {
            return true;
        }
        let held = u64::from(holding.chunks[share as usize]);
        // A buffer in a chunk that other owners use takes nothing from them but the chunk's room.
        let shared = listed.is_some_and(|at| !self.chunks[at].is_idle());
        let may = (shared && held == 0) || chunks.admits(held, 1);
        holding.refused[share as usize] += u64::from(!may);
        may
    }

    /// Notes a buffer that an owner gets in a chunk.
    fn hold(&mut self, owner: BufferOwner, chunk_index: usize) {
        let chunk = &self.chunks[chunk_index];
        let share = chunk.share as usize;
        self.share_busy[share] += usize::from(chunk.is_idle());
        let Some(number) = owner.number() else { return };
        let holding = &mut self.holdings[number];
        if holding.buffers.is_empty() {
            // All at once: which chunk comes next is chance.
            holding.buffers = vec![0; self.chunks_max];
        }
        let buffers = &mut holding.buffers[chunk_index];
        holding.chunks[share] += u32::from(*buffers == 0);
        *buffers += 1;
    }

    /// A peer's part of a share: bytes of the chunks that it has buffers in.
    pub(crate) fn held_bytes(&self, owner: BufferOwner, share: Share) -> u64 {
        let holding = owner.number().and_then(|number| self.holdings.get(number));
        let chunks = holding.map_or(0, |holding| holding.chunks[share as usize]);
        u64::from(chunks) * CHUNK_BYTES as u64
    }

    /// How often a peer was refused since it has its part of a share.
    pub(crate) fn refused_to(&self, owner: BufferOwner, share: Share) -> u64 {
        let holding = owner.number().and_then(|number| self.holdings.get(number));
        holding.map_or(0, |holding| holding.refused[share as usize])
    }

    /// A peer's part of a share and its limit, in bytes.
    pub(crate) fn part(&self, owner: BufferOwner, share: Share) -> QuotaPart {
        let (chunk_bytes, has) = (CHUNK_BYTES as u64, self.held_bytes(owner, share));
        let has_max = self.chunks_of(share).part(has / chunk_bytes) * chunk_bytes;
        QuotaPart { has, has_max, refused: self.refused_to(owner, share) }
    }

    /// Whether a peer has any buffer.
    pub(crate) fn has_any(&self, owner: BufferOwner) -> bool {
        [Share::Own, Share::Incoming].into_iter().any(|share| self.held_bytes(owner, share) > 0)
    }

    /// Forgets what a number's peer was refused: it is another's from now on. It has no buffers.
    pub(crate) fn begin_holding(&mut self, owner: BufferOwner) {
        let holding = owner.number().and_then(|number| self.holdings.get_mut(number));
        if let Some(holding) = holding {
            debug_assert_eq!(holding.chunks, [0; 2]);
            *holding = Holding::default();
        }
    }

    /// The window for a flow of a peer: the configured one, and the least that works once half of
    /// the pool, or of what the peer may have of it, is in use.
    pub(crate) fn window_bytes(
        &self,
        owner: BufferOwner,
        configured_bytes: u64,
        least: u64,
    ) -> u64 {
        let is_empty = self.in_use_bytes() * 2 < self.bytes_max();
        let chunks = self.chunks_of(Share::Incoming);
        let held = self.held_bytes(owner, Share::Incoming) / CHUNK_BYTES as u64;
        let has_room = is_empty && held * 2 <= chunks.max - chunks.used;
        if has_room { configured_bytes.max(least) } else { least }
    }

    /// Memory that was ever taken from the system; it is kept.
    pub fn resident_bytes(&self) -> usize {
        self.chunks.len() * (CHUNK_BYTES + PAGE_BYTES)
    }

    /// The limit to which it grows.
    pub fn bytes_max(&self) -> usize {
        self.chunks_max * CHUNK_BYTES
    }

    /// How often a buffer was asked for in vain.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    fn slot_mut(&mut self, id: BufId) -> &mut BufferState {
        let (chunk_index, slot_index) = split(id);
        let slot = &mut self.chunks[chunk_index].slots[slot_index];
        check(slot, id);
        slot
    }

    fn share_max(&self) -> usize {
        self.chunks_max * 3 / 4
    }

    fn list(&mut self, chunk_index: usize) {
        let chunk = &mut self.chunks[chunk_index];
        let list = &mut self.with_free[chunk.share as usize][chunk.class];
        chunk.listed_at = list.len();
        list.push(chunk_index as u32);
    }

    fn unlist(&mut self, chunk_index: usize) {
        let chunk = &self.chunks[chunk_index];
        let position = chunk.listed_at;
        let list = &mut self.with_free[chunk.share as usize][chunk.class];
        list.swap_remove(position);
        if let Some(&moved) = list.get(position) {
            self.chunks[moved as usize].listed_at = position;
        }
        self.chunks[chunk_index].listed_at = UNLISTED;
    }

    /// Finds a chunk for a class that has no free buffer: a new one, else an idle one of another
    /// class or share.
    fn add_chunk(&mut self, class: usize, share: Share) -> Option<usize> {
        let share_is_full = self.share_chunks[share as usize] >= self.share_max();
        let chunk_index = if self.chunks.len() < self.chunks_max && !share_is_full {
            self.chunks.push(Chunk::new(class, share, self.source.as_deref()));
            self.chunks.len() - 1
        } else {
            let usable =
                |chunk: &Chunk| chunk.is_idle() && (!share_is_full || chunk.share == share);
            let index = self.chunks.iter().position(usable)?;
            self.unlist(index);
            let chunk = &mut self.chunks[index];
            self.share_chunks[chunk.share as usize] -= 1;
            chunk.cut(class, share);
            index
        };
        self.share_chunks[share as usize] += 1;
        self.list(chunk_index);
        Some(chunk_index)
    }
}

fn split(id: BufId) -> (usize, usize) {
    (id.index as usize / SLOTS_MAX, id.index as usize % SLOTS_MAX)
}

fn check(slot: &BufferState, id: BufId) {
    assert!(slot.references > 0 && slot.generation == id.generation, "{id:?} was given back");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_served_by_class_and_aligned() {
        let mut pool = Pool::new(16 << 20);
        for len_bytes in [1, 4096, 4097, 65_536, 65_537, CHUNK_BYTES] {
            let id = pool.alloc(len_bytes).expect("room");
            assert_eq!(pool.bytes(id).len(), len_bytes);
            assert_eq!(pool.bytes(id).as_ptr().align_offset(PAGE_BYTES), 0);
            pool.bytes_mut(id).fill(7);
        }
        assert_eq!(pool.in_use(), 6);
        assert_eq!(pool.in_use_bytes(), 4096 * 2 + 16384 + 65536 + 262_144 + CHUNK_BYTES);
    }

    /// Gives two chunks, then nothing.
    #[derive(Debug, Default)]
    struct TwoChunks(std::sync::atomic::AtomicUsize);

    impl PoolMemory for TwoChunks {
        fn chunk(&self) -> Option<Box<dyn ChunkMemory>> {
            let given = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let memory = vec![given as u8 + 1; CHUNK_BYTES + PAGE_BYTES].into_boxed_slice();
            (given < 2).then(|| Box::new(memory) as Box<dyn ChunkMemory>)
        }
    }

    #[test]
    fn memory_from_elsewhere_is_used_as_long_as_there_is_any() {
        let mut pool = Pool::with_memory(8 << 20, Some(Arc::new(TwoChunks::default())));
        let ids: Vec<_> = (0..3).map(|_| pool.alloc(CHUNK_BYTES).expect("room")).collect();
        let firsts: Vec<_> = ids.iter().map(|id| pool.bytes(*id)[0]).collect();
        assert_eq!(firsts, [1, 2, 0], "the third is the allocator's");
        for id in ids {
            assert_eq!(pool.bytes(id).as_ptr().align_offset(PAGE_BYTES), 0);
            pool.bytes_mut(id).fill(9);
        }
    }

    #[test]
    fn buffers_do_not_overlap() {
        let mut pool = Pool::new(4 << 20);
        let ids: Vec<BufId> = (0..512).map(|_| pool.alloc(4096).expect("room")).collect();
        for (value, &id) in ids.iter().enumerate() {
            pool.bytes_mut(id).fill(value as u8);
        }
        for (value, &id) in ids.iter().enumerate() {
            assert!(pool.bytes(id).iter().all(|&byte| byte == value as u8));
        }
    }

    #[test]
    fn the_last_reference_frees_and_memory_is_reused() {
        let mut pool = Pool::new(4 << 20);
        let id = pool.alloc(CHUNK_BYTES).expect("room");
        pool.retain(id);
        pool.release(id);
        assert_eq!(pool.in_use(), 1);
        pool.release(id);
        assert_eq!((pool.in_use(), pool.in_use_bytes()), (0, 0));
        let before = pool.resident_bytes();
        for _ in 0..100 {
            let id = pool.alloc(CHUNK_BYTES).expect("room");
            pool.release(id);
        }
        assert_eq!(pool.resident_bytes(), before);
    }

    #[test]
    #[should_panic(expected = "was given back")]
    fn a_stale_handle_is_our_own_mistake() {
        let mut pool = Pool::new(4 << 20);
        let id = pool.alloc(1).expect("room");
        pool.release(id);
        let _ = pool.alloc(1);
        pool.retain(id);
    }

    #[test]
    fn full_is_refused_and_counted_and_each_share_keeps_a_quarter() {
        let mut pool = Pool::new(8 << 20);
        let own: Vec<BufId> = std::iter::from_fn(|| pool.alloc(CHUNK_BYTES)).collect();
        assert_eq!((own.len(), pool.refused()), (6, 1));
        let incoming: Vec<BufId> =
            std::iter::from_fn(|| pool.alloc_for(BufferOwner::NODE, Share::Incoming, CHUNK_BYTES))
                .collect();
        assert_eq!((incoming.len(), pool.refused()), (2, 2));
        assert_eq!(pool.resident_bytes(), 8 * (CHUNK_BYTES + PAGE_BYTES));
    }

    #[test]
    fn idle_chunks_change_class_when_the_limit_is_reached() {
        let mut pool = Pool::new(4 << 20);
        let small: Vec<BufId> = std::iter::from_fn(|| pool.alloc(4096)).collect();
        assert_eq!(small.len(), 3 * SLOTS_MAX);
        assert!(pool.alloc(CHUNK_BYTES).is_none());
        for &id in &small[..SLOTS_MAX * 2] {
            pool.release(id);
        }
        let large: Vec<BufId> = std::iter::from_fn(|| pool.alloc(CHUNK_BYTES)).collect();
        assert_eq!(large.len(), 2);
        for &id in small[SLOTS_MAX * 2..].iter().chain(&large) {
            pool.release(id);
        }
        assert_eq!(pool.in_use(), 0);
    }
}
