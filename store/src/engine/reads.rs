//! Reads: blocks are located, read in runs, and proved.

use super::core::{EngineCore, IoPurpose, RUN_BLOCKS_MAX, ReadPart, unless_missing};
use super::slab::TokenTable;
use crate::api::{PoolCompletion, PoolDeviceError, PoolError, RequestTag, VolumeId};
use crate::block::{Block, BlockBuffer};
use crate::format::{BlockPlace, PageEntry, TagDomain, tag_crc};
use crate::map::Located;
use crate::seal::PageKey;

/// The most reads at once.
const READS_MAX: usize = 256;

/// The most blocks of all reads at once: 32 MiB of buffers.
const READ_BLOCKS_MAX: u64 = 8192;

/// The user of a read's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadFor {
    /// A request of the caller.
    Request(RequestTag),
    /// A partial write, which merges its bytes into the block: its token.
    Part(u64),
}

#[derive(Debug)]
struct Read {
    reader: ReadFor,
    volume: VolumeId,
    block: u64,
    blocks: u32,
    /// Blocks that are located.
    located: u32,
    /// Parts that devices work on.
    parts: u32,
    result: Result<(), PoolError>,
}

/// The end of a read that was for a partial write.
#[derive(Debug)]
pub(crate) struct PartRead {
    /// The partial write.
    pub(crate) part: u64,
    /// The block; `None` for zeroes.
    pub(crate) content: Result<Option<BlockBuffer>, PoolError>,
}

/// The reads under way.
#[derive(Debug)]
pub(crate) struct Reads {
    reads: TokenTable<Read>,
    /// Blocks of all of them.
    blocks: u64,
    /// Reads that wait for a page of the map.
    waiting: Vec<u64>,
    spare: Vec<Vec<(u64, PageEntry)>>,
    /// Reads for partial writes that have ended, and their content.
    pub(crate) for_parts: Vec<PartRead>,
}

impl Reads {
    /// No reads.
    pub(crate) fn new() -> Self {
        Self {
            reads: TokenTable::new(),
            blocks: 0,
            waiting: Vec::new(),
            spare: Vec::new(),
            for_parts: Vec::new(),
        }
    }

    /// Whether another read of so many blocks is taken.
    pub(crate) fn has_room(&self, blocks: u32) -> bool {
        self.reads.len() < READS_MAX && self.blocks + u64::from(blocks) <= READ_BLOCKS_MAX
    }

    /// How many are under way.
    pub(crate) fn len(&self) -> usize {
        self.reads.len()
    }

    /// Begins a read, whose volume and range are checked.
    pub(crate) fn begin(
        &mut self,
        core: &mut EngineCore,
        reader: ReadFor,
        volume: VolumeId,
        block: u64,
        blocks: u32,
    ) {
        let read = Read { reader, volume, block, blocks, located: 0, parts: 0, result: Ok(()) };
        self.blocks += u64::from(blocks);
        let token = self.reads.insert(read);
        self.go_on(core, token);
    }

    /// Goes on with reads that waited for pages of the map.
    pub(crate) fn poll(&mut self, core: &mut EngineCore) {
        for token in std::mem::take(&mut self.waiting) {
            self.go_on(core, token);
        }
    }

    fn go_on(&mut self, core: &mut EngineCore, token: u64) {
        let Some(read) = self.reads.get_mut(token) else { return };
        let mut run: Vec<(u64, PageEntry)> = self.spare.pop().unwrap_or_default();
        let mut start = read.located;
        // A page of an encrypted volume that is not sealed was put there by a hostile hand.
        let family = core.map.family_of(read.volume);
        if core.map.volume_blocks(read.volume).is_none() {
            // It was removed meanwhile, and what it had must not read as zeroes.
            read.result = Err(PoolError::NoVolume(read.volume));
            read.located = read.blocks;
        }
        while read.located < read.blocks {
            let block = read.block + u64::from(read.located);
            let Some(located) = unless_missing(core.map.locate(read.volume, block)) else {
                self.waiting.push(token);
                break;
            };
            read.located += 1;
            match located {
                Ok(Located::Page { number, entry })
                    if entry.place().is_some_and(|place| core.segments.has(place))
                        && entry.seal().is_some() == family.is_some() =>
                {
                    if !run.is_empty() && !follows(&run, &entry) {
                        send(core, read, token, start, std::mem::take(&mut run));
                        run = self.spare.pop().unwrap_or_default();
                    }
                    if run.is_empty() {
                        start = read.located - 1;
                    }
                    run.push((number, entry));
                    continue;
                }
                Ok(Located::Hole) => {
                    if let ReadFor::Request(tag) = read.reader {
                        let first = read.located - 1;
                        let data = PoolCompletion::Data { tag, first, blocks: 1, buffer: None };
                        core.complete(data);
                    }
                }
                Ok(Located::Page { .. } | Located::Lost) => {
                    read.result = Err(PoolError::Damaged { block });
                }
                Err(error) => read.result = Err(error),
            }
            if !run.is_empty() {
                send(core, read, token, start, std::mem::take(&mut run));
                run = self.spare.pop().unwrap_or_default();
            }
        }
        if run.is_empty() {
            self.spare.push(run);
        } else {
            send(core, read, token, start, run);
        }
        self.end_if_done(core, token, None);
    }

    fn end_if_done(&mut self, core: &mut EngineCore, token: u64, content: Option<BlockBuffer>) {
        let Some(read) = self.reads.get_mut(token) else { return };
        if read.parts > 0 || read.located < read.blocks {
            return;
        }
        let read = self.reads.remove(token).expect("it is there");
        self.blocks -= u64::from(read.blocks);
        match read.reader {
            ReadFor::Request(tag) => core.done(tag, read.result.map(|()| read.volume)),
            ReadFor::Part(part) => {
                let content = read.result.map(|()| content);
                self.for_parts.push(PartRead { part, content });
            }
        }
    }

    /// A device's answer for a part of a read.
    pub(crate) fn answered(
        &mut self,
        core: &mut EngineCore,
        mut part: ReadPart,
        buffer: Option<BlockBuffer>,
        result: Result<(), PoolDeviceError>,
    ) {
        let place = part.pages[0].1.place().expect("a page that was read has a place");
        let mut buffer = buffer.expect("a read's buffer comes back");
        let wrong = match result {
            Ok(()) => first_wrong(&core.uuid, &part, &mut buffer),
            Err(_) => Some(0),
        };
        if wrong.is_some() && !part.is_second {
            // A transfer may have been disturbed: the medium is asked once more.
            part.is_second = true;
            let blocks = part.pages.len() as u32;
            core.submit_read(place, buffer, blocks, IoPurpose::Read(part));
            return;
        }
        core.segments.unpin(place.segment);
        let Some(read) = self.reads.get_mut(part.read) else { return };
        read.parts -= 1;
        if let Some(index) = wrong {
            core.counters.damaged_blocks += 1;
            let block = read.block + u64::from(part.first) + index as u64;
            read.result = Err(PoolError::Damaged { block });
        }
        let token = part.read;
        let mut for_part = None;
        match read.reader {
            ReadFor::Request(tag) if wrong.is_none() => {
                let blocks = part.pages.len() as u32;
                let (first, buffer) = (part.first, Some(buffer));
                core.complete(PoolCompletion::Data { tag, first, blocks, buffer });
            }
            ReadFor::Part(_) if wrong.is_none() => for_part = Some(buffer),
            _ => core.recycle(buffer),
        }
        part.pages.clear();
        self.spare.push(part.pages);
        self.end_if_done(core, token, for_part);
    }
}

/// Whether an entry's page lies behind the pages of a run, which has room for it, and has the same
/// key.
fn follows(run: &[(u64, PageEntry)], entry: &PageEntry) -> bool {
    let last = run.last().and_then(|(_, entry)| entry.place());
    let next = last.map(|place| BlockPlace { block: place.block.wrapping_add(1), ..place });
    let context = |entry: &PageEntry| entry.seal().map(|seal| seal.context);
    let has_key = run.last().is_some_and(|(_, last)| context(last) == context(entry));
    run.len() < RUN_BLOCKS_MAX && next == entry.place() && has_key
}

fn send(
    core: &mut EngineCore,
    read: &mut Read,
    token: u64,
    first: u32,
    pages: Vec<(u64, PageEntry)>,
) {
    read.parts += 1;
    let place = pages[0].1.place().expect("a page that is read has a place");
    core.segments.pin(place.segment);
    let blocks = pages.len();
    let buffer = core.buffer(blocks);
    // A page may be freed while it is read, and its context with it: the key is looked up now.
    let key = core.key_of(&pages[0].1);
    let part = ReadPart { read: token, first, key, pages, is_second: false };
    core.submit_read(place, buffer, blocks as u32, IoPurpose::Read(part));
}

/// The first page of a run that is not what its entry says. Sealed pages are opened where they are.
fn first_wrong(uuid: &[u8; 16], part: &ReadPart, buffer: &mut BlockBuffer) -> Option<usize> {
    part.pages.iter().zip(buffer.blocks_mut()).position(|((number, entry), block)| {
        !is_whole(uuid, part.key.as_deref(), *number, entry, block)
    })
}

/// Whether a page of data is what its entry says. A sealed page is opened; without its key nothing
/// can be said for it.
pub(crate) fn is_whole(
    uuid: &[u8; 16],
    key: Option<&PageKey>,
    number: u64,
    entry: &PageEntry,
    block: &mut Block,
) -> bool {
    if let Some(seal) = entry.seal() {
        return key.is_some_and(|key| key.open(number, &seal, &mut block.0));
    }
    let crc = tag_crc(uuid, TagDomain::Data, number, entry.sequence.get(), &block.0);
    crc == entry.crc.get()
}
