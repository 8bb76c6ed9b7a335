//! Reads: blocks are located, read in runs, and proved.

use super::core::{EngineCore, IoPurpose, RUN_BLOCKS_MAX, ReadPage, ReadPart, unless_missing};
use super::slab::TokenTable;
use crate::api::{PoolCompletion, PoolDeviceError, PoolError, RequestTag, VolumeId};
use crate::block::{Block, BlockBuffer};
use crate::format::{BLOCK_SECTORS, PageEntry, TagDomain, tag_crc};
use crate::map::{Located, PageAlias};
use seal::PageKey;

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
    /// The next block has waited for a page of the map.
    has_waited: bool,
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
    spare: Vec<Vec<ReadPage>>,
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
        let (located, has_waited, parts, result) = (0, false, 0, Ok(()));
        let read = Read { reader, volume, block, blocks, located, has_waited, parts, result };
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
        let mut run: Vec<ReadPage> = self.spare.pop().unwrap_or_default();
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
                read.has_waited = true;
                break;
            };
            core.count_look_up(&mut read.has_waited);
            read.located += 1;
            match located {
                Ok(Located::Page { number, entry, alias })
                    if core.segments.place_of(&entry).is_some()
                        && entry.seal().is_some() == family.is_some() =>
                {
                    if !run.is_empty() && !follows(&run, &entry) {
                        send(core, read, token, start, std::mem::take(&mut run));
                        run = self.spare.pop().unwrap_or_default();
                    }
                    if run.is_empty() {
                        start = read.located - 1;
                    }
                    run.push(ReadPage { number, entry, alias });
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
        let place = part.pages[0].entry.place().expect("a page that was read has a place");
        let buffer = buffer.expect("a read's buffer comes back");
        let proved = match result {
            Ok(()) => prove(core, &part, buffer),
            Err(_) => Err((0, buffer)),
        };
        let (wrong, buffer) = match proved {
            Ok(buffer) => (None, buffer),
            Err((_, buffer)) if !part.is_second => {
                // A transfer may have been disturbed: the medium is asked once more.
                part.is_second = true;
                let blocks = span_of(&part.pages);
                core.submit_read(place, buffer, blocks, IoPurpose::Read(part));
                return;
            }
            Err((index, buffer)) => (Some(index), buffer),
        };
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

/// Whether an entry's page lies behind the pages of a run, which has room for it. The pages of a
/// run are all packed or all whole, and have the same key.
fn follows(run: &[ReadPage], entry: &PageEntry) -> bool {
    let (Some(first), Some(last)) = (run.first(), run.last()) else { return false };
    let (first, last) = (&first.entry, &last.entry);
    let (Some((_, end)), Some((begin, _))) = (sectors(last), sectors(entry)) else { return false };
    let context = |entry: &PageEntry| entry.seal().map(|seal| seal.context);
    begin == end
        && context(first) == context(entry)
        && first.is_packed() == entry.is_packed()
        && run.len() < RUN_BLOCKS_MAX
        && span(first, entry) <= RUN_BLOCKS_MAX as u32
}

const SECTORS: u64 = BLOCK_SECTORS as u64;

/// The first sector of an entry's page and the one behind it, counted over all segments as if each
/// had as many blocks as any can have.
fn sectors(entry: &PageEntry) -> Option<(u64, u64)> {
    let (place, (form, offset)) = (entry.place()?, entry.form()?);
    let block = u64::from(place.segment.0) << 17 | u64::from(place.block);
    let begin = block * SECTORS + u64::from(offset);
    Some((begin, begin + u64::from(form.sectors)))
}

/// The blocks that the pages of a run touch, from its first page to its last.
fn span(first: &PageEntry, last: &PageEntry) -> u32 {
    let (Some((begin, _)), Some((_, end))) = (sectors(first), sectors(last)) else { return 1 };
    (end.div_ceil(SECTORS) - begin / SECTORS) as u32
}

fn span_of(run: &[ReadPage]) -> u32 {
    span(&run[0].entry, &run[run.len() - 1].entry)
}

fn send(core: &mut EngineCore, read: &mut Read, token: u64, first: u32, pages: Vec<ReadPage>) {
    read.parts += 1;
    let place = pages[0].entry.place().expect("a page that is read has a place");
    core.segments.pin(place.segment);
    let blocks = span_of(&pages);
    let buffer = core.buffer(blocks as usize);
    // A page may be freed while it is read, and its context with it: the key is looked up now.
    let key = core.key_of(&pages[0].entry);
    let part = ReadPart { read: token, first, key, pages, is_second: false };
    core.submit_read(place, buffer, blocks, IoPurpose::Read(part));
}

/// The pages of a run, each proved and unpacked or opened, or the first that is not what its entry
/// says and the buffer that was read.
fn prove(
    core: &mut EngineCore,
    part: &ReadPart,
    mut read: BlockBuffer,
) -> Result<BlockBuffer, (usize, BlockBuffer)> {
    let pages = &part.pages;
    let is_packed = pages[0].entry.is_packed();
    let mut unpacked = is_packed.then(|| core.buffer(pages.len()));
    let mut sector = pages[0].entry.form().map_or(0, |(_, offset)| usize::from(offset));
    let mut wrong = None;
    for (index, ReadPage { number, entry, alias }) in pages.iter().enumerate() {
        let (form, offset) = entry.form().expect("a page that was read has a form");
        let block = sector / usize::from(BLOCK_SECTORS);
        sector += usize::from(form.sectors);
        if entry.seal().is_some() || !is_packed {
            let block = &mut read.blocks_mut()[block];
            let is_page = !is_packed
                && is_whole(&core.uuid, part.key.as_deref(), *number, entry, block)
                && is_alias(&core.uuid, *number, *alias, block);
            if !is_page {
                wrong = Some(index);
                break;
            }
            continue;
        }
        let bytes = form.bytes_in(offset, &read.blocks()[block..]);
        let crc = tag_crc(&core.uuid, TagDomain::Data, *number, entry.sequence.get(), bytes);
        let is_page = crc == entry.crc.get()
            && unpacked.as_mut().is_none_or(|unpacked| {
                let page = &mut unpacked.blocks_mut()[index];
                core.packer.unpack(form.codec, bytes, page)
                    && is_alias(&core.uuid, *number, *alias, page)
            });
        if !is_page {
            wrong = Some(index);
            break;
        }
    }
    let (kept, spare) = match (wrong, unpacked) {
        (None, Some(unpacked)) => (unpacked, Some(read)),
        (_, unpacked) => (read, unpacked),
    };
    if let Some(spare) = spare {
        core.recycle(spare);
    }
    match wrong {
        None => Ok(kept),
        Some(index) => Err((index, kept)),
    }
}

/// Whether the content of the page `number` is that of the block's alias, if it has one.
fn is_alias(uuid: &[u8; 16], number: u64, alias: Option<PageAlias>, content: &Block) -> bool {
    alias.is_none_or(|alias| {
        tag_crc(uuid, TagDomain::Alias, alias.number, number, &content.0) == alias.crc
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
        return key.is_some_and(|key| key.open(number, seal.sequence, &seal.tag, &mut block.0));
    }
    let crc = tag_crc(uuid, TagDomain::Data, number, entry.sequence.get(), &block.0);
    crc == entry.crc.get()
}
