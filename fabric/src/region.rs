//! A domain's shared memory: made by the node, mapped by every process of the domain.
//!
//! A region has *slots*, one for each endpoint: a control part, a ring in which others put what
//! they send to it, and a slab of buffers that it sends from. docs/fabric-region.md has every byte.
//!
//! Members may write anywhere, so the node decides by what it remembers itself (crate
//! `fabric-node`): the words that only it writes are [`Region::set_life`] and the like.

mod layout;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate};
use rustix::io::Errno;

use self::layout::RingPlaces;
pub(crate) use self::layout::{CELL_BYTES, CELL_WORDS, MAILBOXES_BYTES, RegionLayout};
pub use self::layout::{
    GATEWAYS_MAX, HOST_ENDED, HOSTS_MAX, REGION_VERSION, RegionOptions, SLOTS_MAX, SizeError,
    gateway_of,
};
use crate::ring::{Life, SlotLife, Words};
use crate::shared::{Mapping, WORD, WordRow, WordSpan};

/// No process can take pages away from under a mapping, add some, or undo these seals.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The kernel sets this bit in the node's word: the thread that it names has ended
/// (`<linux/futex.h>`).
const OWNER_DIED: u32 = 0x4000_0000;

/// Why there is no region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// The system refused.
    #[error("cannot {what} the region's memory: {errno}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// Its answer.
        errno: Errno,
    },
    /// The options are no region's.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// The file is no memory that can be trusted to stay.
    #[error("the file is not a sealed memory file; regions are handed out by `vrio node` only")]
    Unsealed,
    /// The file is not a region, or its header contradicts its size.
    #[error("the file is not a region of a domain; was it overwritten?")]
    Foreign,
    /// Made by another version of vrio.
    #[error(
        "the region has version {found}, this program speaks {REGION_VERSION}: use the libraries \
         of the vrio that the node runs"
    )]
    Version {
        /// The region's.
        found: u32,
    },
}

/// A mapping of the whole region.
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
    layout: RegionLayout,
}

impl Region {
    /// Makes an empty region: the node's mapping, and the descriptor to hand to members.
    ///
    /// # Errors
    /// When the sizes are none, or the system has no memory.
    pub fn create(options: &RegionOptions) -> Result<(Self, OwnedFd), RegionError> {
        let refuse = |what| move |errno| RegionError::System { what, errno };
        let layout = RegionLayout::new(*options)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("vrio-fabric", flags).map_err(refuse("make"))?;
        ftruncate(&fd, layout.file_bytes() as u64).map_err(refuse("size"))?;
        fcntl_add_seals(&fd, SEALS).map_err(refuse("seal"))?;
        let mapping = Mapping::of_file(fd.as_fd(), layout.region_bytes).map_err(refuse("map"))?;
        for (at, word) in header_of(&layout) {
            mapping.store(at, word, Relaxed);
        }
        mapping.store(layout.host(0), options.host, Relaxed);
        let mut id = [0; 8];
        rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())
            .map_err(refuse("mark"))?;
        for at in [layout::header::ID, layout::MARK] {
            mapping.store(at, u64::from_le_bytes(id), Relaxed);
        }
        Ok((Self { mapping, layout }, fd))
    }

    /// Maps a region for a node that knows its sizes: any member may have written its header over.
    ///
    /// # Errors
    /// [`RegionError::Unsealed`] when it can shrink, [`RegionError::Foreign`] when it has another
    /// length than a region of these sizes; also when the sizes are none, or the system refuses.
    pub fn map_known(fd: BorrowedFd<'_>, options: &RegionOptions) -> Result<Self, RegionError> {
        let layout = RegionLayout::new(*options)?;
        let seals = fcntl_get_seals(fd).map_err(|_| RegionError::Unsealed)?;
        if !seals.contains(SEALS) {
            return Err(RegionError::Unsealed);
        }
        let refuse = |what| move |errno| RegionError::System { what, errno };
        let bytes = usize::try_from(fstat(fd).map_err(refuse("measure"))?.st_size).ok();
        if bytes != Some(layout.file_bytes()) {
            return Err(RegionError::Foreign);
        }
        let mapping = Mapping::of_file(fd, layout.region_bytes).map_err(refuse("map"))?;
        Ok(Self { mapping, layout })
    }

    /// Maps a region that a node handed over. The header is read once; nothing but its sizes is
    /// believed, and those only after they were found to fit the file.
    ///
    /// # Errors
    /// When it is no region, can shrink, is of another version, or the system refuses.
    pub fn map(fd: BorrowedFd<'_>) -> Result<Self, RegionError> {
        let seals = fcntl_get_seals(fd).map_err(|_| RegionError::Unsealed)?;
        if !seals.contains(SEALS) {
            return Err(RegionError::Unsealed);
        }
        Self::map_as_long(fd)
    }

    /// Maps a region through a device that shows it: its pages cannot go away while the machine
    /// runs, and its file says how long it is.
    ///
    /// # Errors
    /// As [`Region::map`], but that it is not sealed.
    pub fn map_device(fd: BorrowedFd<'_>) -> Result<Self, RegionError> {
        Self::map_as_long(fd)
    }

    /// The same, with the slots through another device that shows the file from
    /// [`layout::DATA`] on, and is mapped cached.
    ///
    /// # Errors
    /// As [`Region::map_device`]; also when the two are not of one region.
    pub(crate) fn map_devices(
        fd: BorrowedFd<'_>,
        data: BorrowedFd<'_>,
    ) -> Result<Self, RegionError> {
        let layout = Self::map_as_long(fd)?.layout;
        let (from, bytes) = (layout::DATA, layout.region_bytes);
        let refuse = |errno| RegionError::System { what: "map the other device of", errno };
        let mut mapping = Mapping::of_two(fd, (data, from), bytes).map_err(refuse)?;
        mapping.keep_from_children().map_err(refuse)?;
        let [id, mark] = [layout::header::ID, layout::MARK].map(|at| mapping.load(at, Relaxed));
        if id == mark { Ok(Self { mapping, layout }) } else { Err(RegionError::Foreign) }
    }

    /// Maps what a file shows that does not change its length.
    fn map_as_long(fd: BorrowedFd<'_>) -> Result<Self, RegionError> {
        let refuse = |what| move |errno| RegionError::System { what, errno };
        let bytes = fstat(fd).map_err(refuse("measure"))?.st_size;
        let bytes = usize::try_from(bytes).map_err(|_| RegionError::Foreign)?;
        if bytes < layout::HEADER_BYTES {
            return Err(RegionError::Foreign);
        }
        // The header alone, which says how much of the file is used.
        let header = Mapping::of_file(fd, layout::HEADER_BYTES).map_err(refuse("map"))?;
        let layout = layout_of(&header)?;
        if layout.file_bytes() != bytes {
            return Err(RegionError::Foreign);
        }
        let mut mapping = Mapping::of_file(fd, layout.region_bytes).map_err(refuse("map"))?;
        mapping.keep_from_children().map_err(refuse("keep"))?;
        Ok(Self { mapping, layout })
    }

    /// The time of a load of the region, in nanoseconds: the fastest of a few series of loads, each
    /// of which has to wait for the one before. A cached line takes a few; where the memory is
    /// mapped uncached every load goes there.
    pub fn load_cost_ns(&self) -> f64 {
        const SERIES: usize = 8;
        const LOADS: u32 = 256;
        // Never known to the compiler: the next place depends on what was loaded.
        let nothing = std::hint::black_box(0);
        let series = || {
            let begun = std::time::Instant::now();
            let mut at = layout::MARK;
            for _ in 0..LOADS {
                at = layout::MARK + ((self.mapping.load(at, Relaxed) as usize) & nothing);
            }
            std::hint::black_box(at);
            begun.elapsed().as_nanos() as f64 / f64::from(LOADS)
        };
        (0..SERIES).map(|_| series()).fold(f64::INFINITY, f64::min)
    }

    /// Whether this process has it, and not only its parent ([`Region::map`]).
    pub(crate) fn is_here(&self) -> bool {
        self.mapping.is_here()
    }

    /// How many slots it has.
    #[inline]
    pub fn slots(&self) -> u16 {
        self.layout.options.slots
    }

    /// How many of them are gateways'.
    #[inline]
    pub fn gateways(&self) -> u16 {
        self.layout.options.gateways
    }

    /// Its sizes.
    #[inline]
    pub fn options(&self) -> RegionOptions {
        self.layout.options
    }

    #[inline]
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    #[inline]
    pub(crate) fn layout(&self) -> &RegionLayout {
        &self.layout
    }

    /// The ring of a slot.
    #[inline]
    pub fn ring(&self, slot: u16) -> SlotRing<'_> {
        let (at, words) = self.layout.words(slot);
        let (words, places) = (self.mapping.span(at, words), RingPlaces::new(&self.layout));
        SlotRing { region: self, at, words, places }
    }

    /// The life of a slot now; none where there is no such slot.
    #[inline]
    pub fn life(&self, slot: u16) -> Option<Life> {
        (slot < self.layout.options.slots)
            .then(|| Life::from_word(self.mapping.load(self.layout.life(slot), Acquire)))
    }

    /// Whether this owner of a slot is still there.
    #[inline]
    pub(crate) fn is_live(&self, slot: u16, incarnation: u32) -> bool {
        let live = Life { state: SlotLife::Live, incarnation }.to_word();
        slot < self.layout.options.slots
            && self.mapping.load(self.layout.life(slot), Acquire) == live
    }

    /// The name of the host that the region's table has at this index; none where there is no such
    /// host, or no longer.
    #[inline]
    pub fn host(&self, index: u16) -> Option<u64> {
        (usize::from(index) < HOSTS_MAX)
            .then(|| self.mapping.load(self.layout.host(index), Acquire))
            .filter(|host| ![0, HOST_ENDED].contains(host))
    }

    /// Where in the region's table a host of another name is.
    pub fn index_of_host(&self, host: u64) -> Option<u16> {
        // The node fills it from the front.
        let entry = |index| self.mapping.load(self.layout.host(index), Acquire);
        let known = (0..HOSTS_MAX as u16).map(|index| (index, entry(index)));
        let mut known = known.take_while(|(index, entry)| *index == 0 || *entry != 0);
        known.find(|(_, entry)| *entry == host && host != HOST_ENDED).map(|(index, _)| index)
    }

    /// Whether the node is gone that has served this region: no other one will ever.
    pub fn is_orphaned(&self) -> bool {
        let word = self.mapping.load(layout::header::NODE, Acquire);
        word as u32 & OWNER_DIED != 0
    }

    /// Where the bytes of a slot's buffer are, for [`Region::read`] and [`Region::write`].
    #[inline]
    pub fn buffer(&self, slot: u16, buffer: u16) -> usize {
        self.layout.buffer(slot, buffer)
    }

    /// Copies bytes out of the region. While others write there they are some mixture, each of
    /// which those could have written anyway.
    ///
    /// # Panics
    /// When they are not all in the region.
    #[inline]
    pub fn read(&self, at: usize, to: &mut [u8]) {
        // SAFETY: `to` is `to.len()` writable bytes, borrowed for this call alone. They are none of
        // the mapping's, to which no reference exists, and `copy_out` panics before it would leave
        // the mapping.
        unsafe { self.mapping.copy_out(at, to.as_mut_ptr(), to.len()) };
    }

    /// Copies bytes into the region.
    ///
    /// # Panics
    /// When they do not all go into the region.
    #[inline]
    pub fn write(&self, at: usize, from: &[u8]) {
        // SAFETY: `from` is `from.len()` readable bytes, borrowed for this call. They are none of
        // the mapping's, to which no reference exists, and `copy_in` panics before it would leave
        // the mapping.
        unsafe { self.mapping.copy_in(at, from.as_ptr(), from.len()) };
    }
}

/// Words that the node alone writes.
impl Region {
    /// Says what a slot is from now on.
    pub fn set_life(&self, slot: u16, life: Life) {
        self.mapping.store(self.layout.life(slot), life.to_word(), Release);
    }

    /// Puts a host's name, or [`HOST_ENDED`], into the region's table.
    pub fn set_host(&self, index: u16, host: u64) {
        self.mapping.store(self.layout.host(index), host, Release);
    }

    /// Says which gateways take nothing for a host: a bit for each.
    pub fn set_hold(&self, index: u16, gateways: u64) {
        self.mapping.store(self.layout.hold(index), gateways, SeqCst);
    }

    /// Which gateways take nothing for a host.
    #[inline]
    pub fn hold(&self, index: u16) -> u64 {
        self.mapping.load(self.layout.hold(index), Acquire)
    }

    /// Says by which thread the node is seen to be there; see [`Region::is_orphaned`].
    pub fn set_node(&self, thread: u64) {
        self.mapping.store(layout::header::NODE, thread, Release);
    }

    /// The address of that word, for the kernel, which sets a bit of it when the thread ends: the
    /// caller keeps the region until then.
    pub fn node_word(&self) -> NonNull<u8> {
        self.mapping.address_of(layout::header::NODE)
    }

    /// The bytes that are used of the region's file.
    pub fn bytes(&self) -> usize {
        self.layout.region_bytes
    }
}

/// The header's words, and where.
fn header_of(layout: &RegionLayout) -> [(usize, u64); 6] {
    use layout::header;
    let RegionOptions { slots, gateways, cells, buffers, buffer_bytes, host } = layout.options;
    let version = u64::from(REGION_VERSION) | u64::from(slots) << 32 | u64::from(gateways) << 48;
    [
        (header::MAGIC, layout::MAGIC),
        (header::VERSION, version),
        (header::CELLS, u64::from(cells) | u64::from(buffers) << 32),
        (header::BUFFER, u64::from(buffer_bytes)),
        (header::BYTES, layout.region_bytes as u64),
        (header::HOST, host),
    ]
}

/// The layout that a header tells.
fn layout_of(mapping: &Mapping) -> Result<RegionLayout, RegionError> {
    use layout::header;
    let load = |at| mapping.load(at, Relaxed);
    if load(header::MAGIC) != layout::MAGIC {
        return Err(RegionError::Foreign);
    }
    let (version, cells) = (load(header::VERSION), load(header::CELLS));
    if version as u32 != REGION_VERSION {
        return Err(RegionError::Version { found: version as u32 });
    }
    let options = RegionOptions {
        slots: (version >> 32) as u16,
        gateways: (version >> 48) as u16,
        cells: cells as u32,
        buffers: (cells >> 32) as u32,
        buffer_bytes: load(header::BUFFER) as u32,
        host: load(header::HOST),
    };
    let layout = RegionLayout::new(options).map_err(|_| RegionError::Foreign)?;
    match load(header::BYTES) == layout.region_bytes as u64 {
        true => Ok(layout),
        false => Err(RegionError::Foreign),
    }
}

/// The words of one slot's ring. Everything that is the same for all messages was worked out and
/// checked once.
#[derive(Clone, Copy, Debug)]
pub struct SlotRing<'a> {
    region: &'a Region,
    /// Where the slot begins.
    at: usize,
    /// The slot's.
    words: WordSpan<'a>,
    places: RingPlaces,
}

impl<'a> SlotRing<'a> {
    /// The words of a position's cell.
    #[inline]
    pub(crate) fn cell(&self, position: u64) -> WordRow<'a, CELL_WORDS> {
        self.words.row(self.places.cell(position))
    }

    /// Where a position's cell is in the region.
    #[inline]
    pub(crate) fn cell_at(&self, position: u64) -> usize {
        self.at + self.places.cell(position) * WORD
    }

    /// Writes a claim over. Only the node may do that, to a ring that no producer claims anything
    /// of.
    pub fn set_claim(&self, position: u64, word: u64) {
        self.words.store(self.places.claim(position), word, Relaxed);
    }
}

impl Words for SlotRing<'_> {
    #[inline]
    fn cells(&self) -> u32 {
        self.places.cells
    }

    #[inline]
    fn turn(&self, position: u64) -> u32 {
        self.places.turn(position)
    }

    #[inline]
    fn tail(&self) -> u64 {
        self.words.load(RingPlaces::TAIL, Acquire)
    }

    #[inline]
    fn set_tail(&self, position: u64) {
        self.words.store(RingPlaces::TAIL, position, Release);
    }

    #[inline]
    fn head(&self) -> u64 {
        self.words.load(RingPlaces::HEAD, Acquire)
    }

    #[inline]
    fn set_head(&self, position: u64) {
        self.words.store(RingPlaces::HEAD, position, Release);
    }

    #[inline]
    fn claim(&self, position: u64) -> u64 {
        self.words.load(self.places.claim(position), Acquire)
    }

    #[inline]
    fn exchange_claim(&self, position: u64, current: u64, new: u64) -> Result<(), u64> {
        self.words.exchange(self.places.claim(position), current, new)
    }

    #[inline]
    fn stamp(&self, position: u64) -> u64 {
        self.words.load(self.places.cell(position), Acquire)
    }

    #[inline]
    fn set_stamp(&self, position: u64, stamp: u64) {
        self.words.store(self.places.cell(position), stamp, Release);
    }

    #[inline]
    fn life(&self, slot: u16) -> Option<Life> {
        self.region.life(slot)
    }

    #[inline]
    fn asleep(&self) -> u64 {
        self.words.load(RingPlaces::ASLEEP, Relaxed)
    }

    fn set_asleep(&self, word: u64) {
        self.words.store(RingPlaces::ASLEEP, word, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn map_error(fd: &OwnedFd) -> RegionError {
        Region::map(fd.as_fd()).expect_err("it is no sound region")
    }

    #[test]
    fn a_region_is_mapped_as_it_was_made() {
        let options = RegionOptions { slots: 3, gateways: 1, host: 77, ..RegionOptions::default() };
        let (own, fd) = Region::create(&options).expect("memory");
        let member = Region::map(fd.as_fd()).expect("a region");
        assert_eq!(member.layout, own.layout);
        assert_eq!(member.options(), options);
        assert_eq!((member.host(0), member.host(1)), (Some(77), None));
        assert_eq!(fstat(&fd).expect("ours").st_size, 8 << 20, "a power of two");
        assert!(ftruncate(&fd, 4096).is_err() && ftruncate(&fd, 1 << 40).is_err(), "sealed");
    }

    #[test]
    fn slots_are_seen_through_another_device_of_the_same_region() {
        let options = RegionOptions { slots: 3, ..RegionOptions::default() };
        let (own, fd) = Region::create(&options).expect("memory");
        let rest = (own.layout.file_bytes() - layout::DATA) as u64;
        let data = rustix::fs::memfd_create("data", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&data, rest).expect("sized");
        let mapped = || Region::map_devices(fd.as_fd(), data.as_fd());
        assert_eq!(mapped().expect_err("another one's"), RegionError::Foreign);
        // The mark that the device of this region would show where it begins.
        let mark = own.mapping.load(layout::MARK, Relaxed);
        rustix::io::pwrite(&data, &mark.to_le_bytes(), 0).expect("ours");
        let member = mapped().expect("this region's");
        let load = |region: &Region, at| region.mapping.load(at, Relaxed);
        let (before, within) = (member.layout.mailboxes(), member.layout.life(1));
        for at in [before, within] {
            member.mapping.store(at, 4711, Relaxed);
        }
        assert_eq!((load(&own, before), load(&own, within)), (4711, 0));
        let mut word = [0; 8];
        let at = (within - layout::DATA) as u64;
        rustix::io::pread(&data, &mut word, at).expect("ours");
        assert_eq!(u64::from_le_bytes(word), 4711);
    }

    #[test]
    fn foreign_memory_is_refused() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&[0; 8192]).expect("written");
        assert_eq!(map_error(&file.into()), RegionError::Unsealed);
        let open = MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("not", open).expect("memory");
        assert_eq!(map_error(&fd), RegionError::Unsealed);
        fcntl_add_seals(&fd, SEALS).expect("sealed");
        assert_eq!(map_error(&fd), RegionError::Foreign, "empty");
        let fd = rustix::fs::memfd_create("not", open).expect("memory");
        ftruncate(&fd, 1 << 20).expect("sized");
        fcntl_add_seals(&fd, SEALS).expect("sealed");
        assert_eq!(map_error(&fd), RegionError::Foreign, "zeroes");
    }

    #[test]
    fn a_header_that_was_written_over_is_refused() {
        use layout::header;
        let options = RegionOptions { slots: 2, ..RegionOptions::default() };
        let wrong = [
            (header::MAGIC, 1),
            (header::VERSION, u64::from(REGION_VERSION) | 3 << 32),
            (header::VERSION, u64::from(REGION_VERSION) | u64::MAX << 32),
            (header::CELLS, u64::MAX),
            (header::CELLS, 0),
            (header::BUFFER, u64::MAX),
            (header::BYTES, 0),
        ];
        for (at, word) in wrong {
            let (own, fd) = Region::create(&options).expect("memory");
            own.mapping.store(at, word, Relaxed);
            assert_eq!(map_error(&fd), RegionError::Foreign, "{word:#x} at {at}");
        }
        let (own, fd) = Region::create(&options).expect("memory");
        own.mapping.store(header::VERSION, 7 | 2 << 32, Relaxed);
        assert_eq!(map_error(&fd), RegionError::Version { found: 7 });
    }
}
