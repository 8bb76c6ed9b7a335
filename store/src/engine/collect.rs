//! Collection: live pages of a segment move to another, so that the segment is free again.

use super::core::{EngineCore, IoPurpose, TwinRead, unless_missing};
use super::dedup::{self, Twin};
use super::rows::{ROWS_MAX, RecordOwner, RowLog, RowStream, crc_of};
use super::segments::SegmentTable;
use crate::api::{PoolDeviceError, VolumeId};
use crate::block::{Block, BlockBuffer};
use crate::format::{
    BlockPlace, LogRecord, MAP_STREAM, PageEntry, PageForm, PayloadPlace, ROW_BLOCKS_MAX, RowHead,
    SegmentId, TagDomain, payload_places, tag_crc,
};
use crate::pack::PageCompression;

/// Blocks of a segment that are read at once: two rows of the longest kind and what is left of a
/// third.
const WINDOW_BLOCKS: usize = 128;

/// Moves that are pushed in a round: one row, so that guests' requests of the same round wait for
/// the work of one row at most.
const MOVES_PER_ROUND_MAX: usize = 49;

/// Moves for which the compression of one page counts, by the time that it takes.
const LZ4_MOVES: usize = 6;
const ZSTD_MOVES: usize = 24;

/// Rows of moved pages under way at once, when space is short.
const MOVED_ROWS_MAX: usize = 4;

/// A payload of a row in the window, with its place.
#[derive(Clone, Copy, Debug)]
struct Payload {
    record: LogRecord,
    at: PayloadPlace,
    /// The sequence of the row.
    sequence: u64,
}

/// The reason why pages of a segment move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VictimFor {
    /// All that is alive in it moves, so that it is free again.
    Space,
    /// Pages move that a codec may make smaller.
    Packing,
}

/// Whether packing goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PackPace {
    /// The pool is idle.
    Goes,
    /// Guests come first.
    Waits,
    /// Space is short, or the pool is closed: the segment is left as it is.
    Ends,
}

/// The segment that is being collected.
#[derive(Debug)]
struct Victim {
    segment: SegmentId,
    reason: VictimFor,
    filled: u32,
    /// The first block that is not parsed.
    at: u32,
    /// The window, from the block `start` on; `None` while a device fills it.
    window: Option<BlockBuffer>,
    start: u32,
    window_blocks: u32,
    payloads: Vec<Payload>,
    next_payload: usize,
    /// Of the first payloads, the pages with the same content.
    twins: Vec<Twin>,
    /// Pages that are read to be compared.
    twin_reads: usize,
    /// The last read of the window failed.
    has_failed: bool,
    /// Nothing was hidden by a damaged head, or cannot be moved because it is damaged itself.
    is_complete: bool,
}

impl Victim {
    /// The blocks of the window from a place on.
    fn blocks_at(&self, place: BlockPlace) -> &[Block] {
        let window = self.window.as_ref().expect("the window is here");
        &window.blocks()[usize::from(place.block) - self.start as usize..]
    }
}

/// The row at the start of a part of a window.
enum Parsed {
    /// A row of so many blocks.
    Row(RowHead),
    /// A row whose head is damaged; the next row's head has its records.
    Copy { records: Vec<LogRecord>, payload: u8, sequence: u64 },
    /// More blocks are needed to say.
    Short,
    /// So many blocks belong to no row.
    Hidden(u32),
}

/// Collects segments, one at a time.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    victim: Option<Victim>,
    spare: Option<BlockBuffer>,
    /// The segment that was packed last, to its end.
    packed: Option<SegmentId>,
    /// Moves that are pushed and not applied.
    pub(crate) moves_under_way: usize,
}

impl Collector {
    /// Whether a segment is being collected.
    pub(crate) fn is_busy(&self) -> bool {
        self.victim.is_some() || self.moves_under_way > 0
    }

    /// Whether a segment is being collected and pages of it are still to be read.
    pub(crate) fn has_victim(&self) -> bool {
        self.victim.is_some()
    }

    /// Whether pages with the contents of a row's pages are looked for, behind which moves follow.
    pub(crate) fn is_looking(&self, core: &EngineCore) -> bool {
        self.victim.as_ref().is_some_and(|victim| {
            core.contents.is_on()
                && victim.window.is_some()
                && !victim.twins.is_empty()
                && (victim.twin_reads > 0 || victim.twins.len() < victim.payloads.len())
        })
    }

    /// Begins with a segment, if one is worth it.
    pub(crate) fn begin(&mut self, core: &mut EngineCore) {
        if let Some(segment) = core.segments.victim(core.applied, core.lacks_reserve()) {
            self.begin_with(core, segment);
        }
    }

    /// Begins with this segment.
    pub(crate) fn begin_with(&mut self, core: &mut EngineCore, segment: SegmentId) {
        debug_assert!(self.victim.is_none());
        self.begin_victim(core, segment, VictimFor::Space);
    }

    /// Begins to pack the pages of a segment.
    pub(crate) fn begin_packing(&mut self, core: &mut EngineCore, segment: SegmentId) {
        debug_assert!(self.victim.is_none());
        self.begin_victim(core, segment, VictimFor::Packing);
    }

    /// The segment that was packed last, once.
    pub(crate) fn take_packed(&mut self) -> Option<SegmentId> {
        self.packed.take()
    }

    fn begin_victim(&mut self, core: &mut EngineCore, segment: SegmentId, reason: VictimFor) {
        core.segments.pin(segment);
        self.victim = Some(Victim {
            segment,
            reason,
            filled: core.segments.filled(segment),
            at: 0,
            window: Some(self.spare.take().unwrap_or_else(|| BlockBuffer::new(WINDOW_BLOCKS))),
            start: 0,
            window_blocks: 0,
            payloads: Vec::new(),
            next_payload: 0,
            twins: Vec::new(),
            twin_reads: 0,
            has_failed: false,
            is_complete: true,
        });
    }

    /// Goes on with the segment: a bounded number of moves.
    pub(crate) fn poll(&mut self, core: &mut EngineCore, pace: PackPace) {
        let mut moves = 0;
        while let Some(victim) = &mut self.victim {
            if victim.window.is_none() || victim.twin_reads > 0 {
                return;
            }
            match pace {
                PackPace::Waits if victim.reason == VictimFor::Packing => return,
                PackPace::Ends if victim.reason == VictimFor::Packing => {
                    self.end(core, false);
                    return;
                }
                _ => {}
            }
            if !look_for_twins(core, victim, &mut moves) {
                return;
            }
            while let Some(&payload) = victim.payloads.get(victim.next_payload) {
                if moves >= MOVES_PER_ROUND_MAX {
                    return;
                }
                let Some(moved) = keep(core, victim, payload) else {
                    return;
                };
                victim.next_payload += 1;
                moves += moved;
                self.moves_under_way += usize::from(moved > 0);
            }
            if victim.at >= victim.filled || core.segments.live_in(victim.segment) == 0 {
                self.end(core, true);
                return;
            }
            if !parse(core, victim) {
                return;
            }
        }
    }

    fn end(&mut self, core: &mut EngineCore, is_whole: bool) {
        let mut victim = self.victim.take().expect("a segment is being collected");
        victim.twins.drain(..).for_each(|twin| twin.release(core));
        self.spare = victim.window;
        core.segments.unpin(victim.segment);
        if victim.reason == VictimFor::Packing {
            self.packed = is_whole.then_some(victim.segment);
            return;
        }
        core.segments.collected(victim.segment, victim.is_complete);
        core.counters.collected_segments += 1;
    }

    /// A device's answer for the window.
    pub(crate) fn answered(
        &mut self,
        core: &mut EngineCore,
        buffer: Option<BlockBuffer>,
        result: Result<(), PoolDeviceError>,
    ) {
        let mut buffer = buffer.expect("a read's buffer comes back");
        let victim = self.victim.as_mut().expect("a segment is being collected");
        if result.is_err() && !victim.has_failed {
            victim.has_failed = true;
            let place = BlockPlace { segment: victim.segment, block: victim.start as u16 };
            core.submit_read(place, buffer, victim.window_blocks, IoPurpose::Window);
            return;
        }
        if result.is_err() {
            // A window that cannot be read twice has no row, and what is alive in it stays.
            buffer.bytes_mut().fill(0);
        }
        victim.has_failed = false;
        victim.window = Some(buffer);
    }

    /// A device's answer for a page that may have the content of another page.
    pub(crate) fn twin_answered(
        &mut self,
        core: &mut EngineCore,
        read: TwinRead,
        buffer: Option<BlockBuffer>,
        result: Result<(), PoolDeviceError>,
    ) {
        let buffer = buffer.expect("a read's buffer comes back");
        let victim = self.victim.as_mut().expect("a segment is being collected");
        victim.twin_reads -= 1;
        let blocks = victim.blocks_at(victim.payloads[read.payload].at.place);
        let twin = dedup::compare(core, &read, blocks, result.is_ok().then(|| buffer.blocks()));
        victim.twins[read.payload] = twin;
        core.recycle(buffer);
    }
}

/// Sees to a payload's page if it is alive. Returns the cost of its move, in moves of whole pages,
/// or 0 if it stays; `None` if it has to wait.
fn keep(core: &mut EngineCore, victim: &mut Victim, payload: Payload) -> Option<usize> {
    let Payload { record, at, .. } = payload;
    match record {
        LogRecord::Write { number, .. }
        | LogRecord::Sealed { number, .. }
        | LogRecord::Resealed { number, .. }
        | LogRecord::Move { number, .. } => {
            let volume = volume_of(&record);
            let form = record.form().expect("a page has a form");
            let compression = core.map.compression(VolumeId(volume));
            // A packed page stays as it is, and a page that gains nothing is not tried again.
            let compression = compression
                .filter(|compression| !form.is_packed() && compression.codec() != form.codec);
            let twin = victim.twins.get(victim.next_payload).copied().unwrap_or_default();
            if victim.reason == VictimFor::Packing && compression.is_none() && !twin.is_found() {
                return Some(0);
            }
            let found = unless_missing(core.map.entry(number))?;
            let entry = match found {
                Ok(entry) if entry.place() != Some(at.place) => return Some(0),
                Ok(entry) if entry.form() == Some((form, at.offset)) => entry,
                // A damaged block of the table: the page cannot be moved, and the segment stays.
                Ok(_) | Err(_) => {
                    victim.is_complete = false;
                    return Some(0);
                }
            };
            // A sealed page does not become smaller.
            if victim.reason == VictimFor::Packing && entry.seal().is_some() {
                return Some(0);
            }
            let may = match victim.reason {
                VictimFor::Space => may_collect(core),
                VictimFor::Packing => may_move(core),
            };
            if !may {
                return None;
            }
            let blocks = victim.blocks_at(at.place);
            if twin.is_found() && dedup::push_alias(core, (number, &entry), twin, blocks) {
                victim.twins[victim.next_payload] = Twin::None;
                return Some(1);
            }
            let moved = MovedPage { number, volume, entry, payload, form, compression };
            Some(push_move(core, &moved, blocks))
        }
        LogRecord::Node { .. } | LogRecord::Table { .. } if victim.reason == VictimFor::Space => {
            // A damaged page of the map cannot be written elsewhere.
            let made = unless_missing(core.map.make_dirty(&record, at.place))?;
            victim.is_complete &= made.is_ok();
            Some(0)
        }
        // The next checkpoint has a state of its own.
        _ => Some(0),
    }
}

/// Looks for the pages with the contents of the row's pages, and reads those that may have them.
/// Whether all of that is done.
fn look_for_twins(core: &mut EngineCore, victim: &mut Victim, moves: &mut usize) -> bool {
    if !core.contents.is_on() {
        return true;
    }
    while victim.twins.len() < victim.payloads.len() {
        if *moves >= MOVES_PER_ROUND_MAX {
            return false;
        }
        let payload = victim.twins.len();
        let Payload { record, at, .. } = victim.payloads[payload];
        let page = dedup::LookedUp { payload, record, at };
        let Some((twin, cost)) = dedup::look_up(core, &page, victim.blocks_at(at.place)) else {
            return false;
        };
        victim.twin_reads += usize::from(twin == Twin::Reads);
        victim.twins.push(twin);
        *moves += cost;
    }
    victim.twin_reads == 0
}

/// Whether a page that is moved has a row and room.
pub(crate) fn may_move(core: &EngineCore) -> bool {
    // One more segment than the floor, since a row's end may take the next.
    has_row(core) && core.has_free(core.moved_floor() + 1)
}

/// The same for a page that is moved so that its segment becomes free: it may use what is kept for
/// later openings. Each kill leaves segments behind that are written in part, so that a full pool
/// comes to the other floor by some kills in a row, and only collection leads away from there.
fn may_collect(core: &EngineCore) -> bool {
    let takes = usize::from(!core.log.stays_with_moved(&core.segments));
    has_row(core) && core.has_free_for_collection(takes)
}

fn has_row(core: &EngineCore) -> bool {
    let open = core.log.has_open(RowStream::Moved);
    (open || core.log.rows() < ROWS_MAX - MOVED_ROWS_MAX) && core.failed.is_none()
}

/// The volume for whose page a record was made. A page that was sealed anew is not packed, and
/// needs none.
fn volume_of(record: &LogRecord) -> u32 {
    match *record {
        LogRecord::Write { volume, .. }
        | LogRecord::Sealed { volume, .. }
        | LogRecord::Move { volume, .. } => volume,
        _ => 0,
    }
}

/// A page that moves.
struct MovedPage {
    number: u64,
    volume: u32,
    entry: PageEntry,
    payload: Payload,
    form: PageForm,
    /// The codec that is tried on it.
    compression: Option<PageCompression>,
}

/// Moves a page, which begins in the first of these blocks. Returns the cost.
fn push_move(core: &mut EngineCore, page: &MovedPage, blocks: &[Block]) -> usize {
    let MovedPage { number, volume, entry, payload, form, compression } = *page;
    let from = payload.at.place;
    let bytes = entry.bytes_in(blocks);
    // A sealed page is proved by its row's head, for which no key is needed. A page that does not
    // match is moved as it is: its tag says to its reader that it is damaged.
    let is_sealed = entry.seal().is_some();
    let (sequence, expected) = match is_sealed {
        true => (payload.sequence, crc_of(&payload.record)),
        false => (entry.sequence.get(), entry.crc.get()),
    };
    let is_whole = tag_crc(&core.uuid, TagDomain::Data, number, sequence, bytes) == expected;
    let compression = compression.filter(|_| !is_sealed);
    core.counters.damaged_blocks += u64::from(!is_whole);
    core.counters.moved_pages += 1;
    let EngineCore { log, segments, packer, counters, .. } = core;
    let owner = RecordOwner::Move;
    let moved = |form| LogRecord::Move { number, crc: 0, from, volume, form };
    let is_full = match compression {
        _ if !is_whole => {
            // The page is damaged: its readers get an error from here on, as they did before.
            let lost = LogRecord::Lost { number, from };
            log.push(RowStream::Moved, lost, owner, |_| {}, segments)
        }
        None if form.is_packed() => log.push_packed(moved(form), owner, bytes, segments),
        None => push_whole(log, moved(form), &blocks[0], segments),
        Some(compression) => match packer.pack(&blocks[0], compression) {
            Some((form, packed)) => {
                counters.compressed_pages += 1;
                log.push_packed(moved(form), owner, packed, segments)
            }
            None => {
                counters.incompressible_pages += 1;
                let tried = PageForm { codec: compression.codec(), ..PageForm::PLAIN };
                push_whole(log, moved(tried), &blocks[0], segments)
            }
        },
    };
    if is_full {
        core.close_row(RowStream::Moved);
    }
    match compression {
        None => 1,
        Some(PageCompression::Lz4) => LZ4_MOVES,
        Some(PageCompression::Zstd(_)) => ZSTD_MOVES,
    }
}

fn push_whole(log: &mut RowLog, record: LogRecord, page: &Block, segments: &SegmentTable) -> bool {
    let fill = |block: &mut Block| block.0.copy_from_slice(&page.0);
    log.push(RowStream::Moved, record, RecordOwner::Move, fill, segments)
}

/// Parses the next row of the window, or reads the next window; whether to go on at once.
fn parse(core: &mut EngineCore, victim: &mut Victim) -> bool {
    victim.payloads.clear();
    victim.next_payload = 0;
    victim.twins.drain(..).for_each(|twin| twin.release(core));
    let offset = victim.at - victim.start;
    let window = victim.window.as_ref().expect("the window is here");
    let blocks = &window.blocks()[..victim.window_blocks as usize];
    let rest = blocks.get(offset as usize..).unwrap_or_default();
    let is_last = victim.start + victim.window_blocks >= victim.filled;
    let place = BlockPlace { segment: victim.segment, block: victim.at as u16 };
    let (records, length, sequence) = match parse_row(&core.uuid, rest, place, is_last) {
        Parsed::Row(head) => {
            // A segment has rows of one stream. Behind its first row there may be older ones.
            if victim.at == 0 && head.stream != MAP_STREAM {
                core.segments.note_ordered(victim.segment);
            }
            (head.records, 1 + u32::from(head.payload), head.sequence)
        }
        Parsed::Copy { records, payload, sequence } => (records, 1 + u32::from(payload), sequence),
        Parsed::Hidden(count) => {
            victim.is_complete = false;
            victim.at += count;
            return true;
        }
        Parsed::Short => {
            victim.start = victim.at;
            victim.window_blocks = (victim.filled - victim.at).min(WINDOW_BLOCKS as u32);
            let buffer = victim.window.take().expect("the window is here");
            let blocks = victim.window_blocks;
            core.submit_read(place, buffer, blocks, IoPurpose::Window);
            return false;
        }
    };
    let payloads = records.iter().zip(payload_places(place, &records));
    let payloads = payloads.filter(|(record, _)| record.has_payload());
    victim.payloads.extend(payloads.map(|(&record, at)| Payload { record, at, sequence }));
    victim.at += length;
    true
}

/// The row that begins with `rest`, of which `is_last` says whether the segment ends there.
fn parse_row(uuid: &[u8; 16], rest: &[Block], place: BlockPlace, is_last: bool) -> Parsed {
    let Some(first) = rest.first() else { return Parsed::Short };
    match RowHead::decode(uuid, first) {
        Ok(head) if head.place == place => {
            return match rest.len() > usize::from(head.payload) {
                true => Parsed::Row(head),
                false if is_last => Parsed::Hidden(rest.len() as u32),
                false => Parsed::Short,
            };
        }
        _ => {}
    }
    // The next head tells the records of this row.
    if rest.len() <= ROW_BLOCKS_MAX && !is_last {
        return Parsed::Short;
    }
    for (behind, block) in (1u16..).zip(rest.iter().skip(1)).take(ROW_BLOCKS_MAX) {
        let at = BlockPlace { block: place.block + behind, ..place };
        let Ok(head) = RowHead::decode(uuid, block) else { continue };
        if head.place != at {
            continue;
        }
        let records = head.previous_records;
        return match head.previous {
            Some(row) if row.place == place && u16::from(row.payload) + 1 == behind => {
                Parsed::Copy { records, payload: row.payload, sequence: row.sequence }
            }
            _ => Parsed::Hidden(behind.into()),
        };
    }
    Parsed::Hidden(rest.len().min(ROW_BLOCKS_MAX) as u32)
}
