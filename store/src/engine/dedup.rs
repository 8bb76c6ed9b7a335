//! Pages with the same content share it: collection and an idle pool look up the contents of pages,
//! and a page with the content of another page becomes its alias.
//!
//! Both pages are proved by their own checks, and compared byte by byte.

use super::core::{EngineCore, IoPurpose, TwinRead, unless_missing};
use super::rows::{RecordOwner, RowStream};
use crate::block::Block;
use crate::format::{LogRecord, PageEntry, PayloadPlace, TagDomain, tag_crc};

/// Moves for which the hash of a content counts, by the time that it takes.
const HASH_MOVES: usize = 3;

/// The page with the content of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Twin {
    /// None is known.
    #[default]
    None,
    /// The content is zeroes.
    Zeroes,
    /// A page that may have it is being read.
    Reads,
    /// This page has it. Its number is held.
    Page(u64),
}

impl Twin {
    /// Whether the page can become an alias.
    pub(crate) fn is_found(self) -> bool {
        matches!(self, Self::Zeroes | Self::Page(_))
    }

    /// The page does not become an alias.
    pub(crate) fn release(self, core: &mut EngineCore) {
        if let Self::Page(number) = self {
            core.map.release_number(number);
        }
    }
}

/// A payload whose content is looked up.
pub(crate) struct LookedUp {
    /// The index of the payload in its row.
    pub(crate) payload: usize,
    /// Its record.
    pub(crate) record: LogRecord,
    /// Its place.
    pub(crate) at: PayloadPlace,
}

/// The number of the page of a payload that may share its content.
fn number_of(record: &LogRecord) -> Option<u64> {
    match *record {
        LogRecord::Write { number, .. } | LogRecord::Move { number, .. } => Some(number),
        _ => None,
    }
}

/// Looks for a page with the content of a payload that begins in the first of these blocks, and
/// begins to read it. Returns the cost in moves as well; `None` if a page of the map is missing.
pub(crate) fn look_up(
    core: &mut EngineCore,
    page: &LookedUp,
    blocks: &[Block],
) -> Option<(Twin, usize)> {
    let none = Some((Twin::None, 0));
    let Some(number) = number_of(&page.record) else { return none };
    let Ok(entry) = unless_missing(core.map.entry(number))? else { return none };
    let is_there = entry.place() == Some(page.at.place) && entry.form().is_some();
    if !is_there || entry.form() != page.record.form().map(|form| (form, page.at.offset)) {
        return none;
    }
    let mut buffer = core.buffer(1);
    let content = &mut buffer.blocks_mut()[0];
    let looked = look_up_content(core, page, (number, &entry), blocks, content);
    core.recycle(buffer);
    looked
}

fn look_up_content(
    core: &mut EngineCore,
    page: &LookedUp,
    (number, entry): (u64, &PageEntry),
    blocks: &[Block],
    content: &mut Block,
) -> Option<(Twin, usize)> {
    // A page that is sealed has no content without its key, and belongs to its family alone.
    let is_plain = entry.seal().is_none();
    let has_aliases = entry.shares().aliases > 0;
    if !is_plain || !unpack(core, number, entry, blocks, content) {
        return Some((Twin::None, 1));
    }
    if content.0 == Block::ZERO.0 {
        let twin = if has_aliases { Twin::None } else { Twin::Zeroes };
        return Some((twin, 1));
    }
    let hash = core.contents.hash(content);
    let found = core.contents.find(hash).filter(|&found| found != number && !has_aliases);
    let Some(found) = found else {
        core.counters.hashed_pages += 1;
        core.contents.put(hash, number);
        return Some((Twin::None, HASH_MOVES));
    };
    let mut twin = (found, unless_missing(core.map.entry(found))?);
    if let (_, Ok(alias)) = twin
        && let Some(shared) = alias.alias_of().filter(|&shared| shared > 0 && shared != number)
    {
        twin = (shared, unless_missing(core.map.entry(shared))?);
    }
    core.counters.hashed_pages += 1;
    if let (shared, Ok(entry_of)) = twin
        && let Some(place) = core.segments.place_of(&entry_of)
        && entry_of.seal().is_none()
    {
        let read = TwinRead {
            payload: page.payload,
            page: *entry,
            number: shared,
            entry: entry_of,
            hash,
            of: number,
        };
        core.counters.compared_pages += 1;
        core.map.hold_number(shared);
        core.segments.pin(place.segment);
        let span = entry_of.span();
        let buffer = core.buffer(span as usize);
        core.submit_read(place, buffer, span, IoPurpose::Twin(read));
        return Some((Twin::Reads, HASH_MOVES));
    }
    // The page that was known is gone.
    core.contents.put(hash, number);
    Some((Twin::None, HASH_MOVES))
}

/// The content of a page that begins in the first of these blocks; whether it is proved.
fn unpack(
    core: &mut EngineCore,
    number: u64,
    entry: &PageEntry,
    blocks: &[Block],
    content: &mut Block,
) -> bool {
    let Some((form, _)) = entry.form() else { return false };
    let bytes = entry.bytes_in(blocks);
    let crc = tag_crc(&core.uuid, TagDomain::Data, number, entry.sequence.get(), bytes);
    if crc != entry.crc.get() {
        return false;
    }
    if form.is_packed() {
        return core.packer.unpack(form.codec, bytes, content);
    }
    content.0.copy_from_slice(bytes);
    true
}

/// Compares a page that was read with the payload's, which begins in the first of `blocks`; without
/// a page that was read, it could not be.
pub(crate) fn compare(
    core: &mut EngineCore,
    read: &TwinRead,
    blocks: &[Block],
    found: Option<&[Block]>,
) -> Twin {
    if let Some(place) = read.entry.place() {
        core.segments.unpin(place.segment);
    }
    let mut buffer = core.buffer(2);
    let [own, other, ..] = buffer.blocks_mut() else { unreachable!("the buffer has two blocks") };
    let is_proved = found.is_some_and(|found| unpack(core, read.number, &read.entry, found, other))
        && unpack(core, read.of, &read.page, blocks, own);
    let is_same = own.0 == other.0;
    core.recycle(buffer);
    if is_proved && is_same {
        return Twin::Page(read.number);
    }
    core.counters.different_pages += u64::from(is_proved);
    // A damaged page is not found again.
    core.contents.put(read.hash, read.of);
    core.map.release_number(read.number);
    Twin::None
}

/// Makes a page an alias of its twin. Whether its content was proved once more.
pub(crate) fn push_alias(
    core: &mut EngineCore,
    (number, entry): (u64, &PageEntry),
    twin: Twin,
    blocks: &[Block],
) -> bool {
    let Some(from) = entry.place() else { return false };
    let shared = if let Twin::Page(shared) = twin { shared } else { 0 };
    let mut buffer = core.buffer(1);
    let content = &mut buffer.blocks_mut()[0];
    let is_whole = unpack(core, number, entry, blocks, content);
    let crc = match shared {
        0 => 0,
        _ => tag_crc(&core.uuid, TagDomain::Alias, number, shared, &content.0),
    };
    core.recycle(buffer);
    if !is_whole {
        return false;
    }
    let record = LogRecord::Alias { number, from, shared, crc };
    core.aliases_under_way += 1;
    let EngineCore { log, segments, .. } = core;
    if log.push(RowStream::Moved, record, RecordOwner::Move, |_| {}, segments) {
        core.close_row(RowStream::Moved);
    }
    true
}
