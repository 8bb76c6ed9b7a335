//! The promise about data as a model: for every block, which values may be read now.
//!
//! The simulation and the tests with real processes use the same checker. Each write has a number
//! of its own. It is stamped into every block of the write, so that a block's content names its
//! write. A discard or a write of zeroes counts as a write, too. Its blocks do not name their
//! write, so zeroes are right when the model allows any write of zeroes. Time is the order of the
//! calls made here.
//!
//! The rules of the model follow. `X`, `Y`, `W` are writes of one block; *before* means that a
//! write ended before another began.
//!
//! - a read may return a write that had begun when the read ended, unless it was *replaced*;
//! - `X` is replaced when a `Y` that `X` is before was acknowledged, and when some read returned
//!   another write after `X` had ended, unless `X` may still land (see below);
//! - a write that ended in an error may or may not be there, and may still land, until a write
//!   that began later is acknowledged;
//! - after a loss (the host's power was cut), a block holds any write that is not replaced *for
//!   good*: `X` is, when a flush succeeded that began after the end of a `Y` that `X` is before.

use std::collections::{HashMap, HashSet};
use std::fmt;

/// The number of the state in which every volume starts: zeroes.
pub const ZEROES: u64 = 0;

/// Bytes that a stamp takes: number, block and their checksum; repeated over the block.
const STAMP_BYTES: usize = 32;

const STAMP_MAGIC: u64 = 0x7672_696f_7374_616d;

/// A violation of the model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// A block holds bytes that no write put there.
    #[error("block {block} holds bytes that no write put there: {what}")]
    Torn {
        /// The block.
        block: u64,
        /// The bytes that were found.
        what: String,
    },
    /// A block holds a write that must not be seen any more, or not yet.
    #[error("block {block} holds write {found}, allowed are {allowed:?}\n{known}")]
    Stale {
        /// The block.
        block: u64,
        /// The write that was found.
        found: u64,
        /// The writes that the model allows.
        allowed: Vec<u64>,
        /// All that the model knows of the block, a line for each write.
        known: String,
    },
}

/// Fills a block with the stamp of a write.
pub fn stamp(block: u64, write: u64, bytes: &mut [u8]) {
    let mut unit = [0u8; STAMP_BYTES];
    if write != ZEROES {
        let check = write.rotate_left(32) ^ block.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ STAMP_MAGIC;
        for (at, word) in [STAMP_MAGIC, write, block, check].into_iter().enumerate() {
            unit[at * 8..][..8].copy_from_slice(&word.to_le_bytes());
        }
    }
    for piece in bytes.chunks_mut(STAMP_BYTES) {
        piece.copy_from_slice(&unit[..piece.len()]);
    }
}

/// Which write a block's content came from.
///
/// # Errors
/// [`Breach::Torn`] when it is not one write's stamp throughout, or that of another block.
pub fn read_stamp(block: u64, bytes: &[u8]) -> Result<u64, Breach> {
    let word = |at: usize| u64::from_le_bytes(bytes[at * 8..][..8].try_into().expect("8 bytes"));
    let write = if word(0) == 0 { ZEROES } else { word(1) };
    let mut expected = [0u8; STAMP_BYTES];
    stamp(block, write, &mut expected);
    let torn = bytes.chunks(STAMP_BYTES).position(|piece| piece != &expected[..piece.len()]);
    match torn {
        None => Ok(write),
        Some(at) => Err(Breach::Torn {
            block,
            what: format!(
                "first write {write:#x} of block {:#x}, another from byte {}",
                word(2),
                at * STAMP_BYTES
            ),
        }),
    }
}

/// How a write ended, as far as the model is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteEnd {
    /// Not yet.
    Open,
    /// Acknowledged.
    Acked,
    /// In an error; may still land.
    Failed,
    /// Its client is gone and a successor was let in: as it is, it stays.
    Settled,
}

#[derive(Clone, Debug)]
struct Write {
    number: u64,
    /// The stamp in the write's blocks: the number, or [`ZEROES`].
    content: u64,
    begun: u64,
    ended: u64,
    end: WriteEnd,
    /// When a later write replaced it, for reads; `u64::MAX` while none did.
    replaced: u64,
    /// When a read saw another write in its place; `u64::MAX` while none did.
    passed: u64,
    /// Replaced for good: not even a loss brings it back.
    gone: bool,
    /// Survived a loss as a possibility: one of those that did is what the storage holds, so
    /// seeing one rules out the others for good.
    survived: bool,
}

impl Write {
    /// From when on no read may return it.
    fn hidden(&self) -> u64 {
        self.replaced.min(self.passed)
    }

    fn is_before(&self, other: &Self) -> bool {
        self.end != WriteEnd::Open && self.ended < other.begun
    }
}

#[derive(Clone, Debug)]
struct Span {
    first_block: u64,
    blocks: u64,
}

/// A read or flush that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Began(u64);

/// The model of one volume.
pub struct Checker {
    time: u64,
    blocks: Vec<Vec<Write>>,
    spans: HashMap<u64, Span>,
    /// Reads on their way: none began before the smallest.
    reads: Vec<u64>,
    next_number: u64,
    acked_last: u64,
    /// Requests that the disk does in parts, which are on their way.
    parted: HashSet<u64>,
    /// When the last such request ended, well or not.
    parted_last: u64,
    flushed_to: u64,
    /// Until when what was acknowledged may have been lost in the last power cut; `u64::MAX` while
    /// that goes on.
    cut: u64,
    /// Blocks read and found allowed.
    pub checked: u64,
}

impl fmt::Debug for Checker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checker")
            .field("blocks", &self.blocks.len())
            .field("time", &self.time)
            .finish_non_exhaustive()
    }
}

impl Checker {
    /// A volume of zeroes.
    pub fn new(blocks: u64) -> Self {
        let mut this = Self {
            time: 1,
            blocks: Vec::new(),
            spans: HashMap::new(),
            reads: Vec::new(),
            next_number: 1,
            acked_last: 0,
            parted: HashSet::new(),
            parted_last: 0,
            flushed_to: 0,
            cut: 0,
            checked: 0,
        };
        this.grow(blocks);
        this
    }

    /// The volume has so many blocks from now on. The new blocks are zeroes.
    pub fn grow(&mut self, blocks: u64) {
        let zeroes = || Write {
            number: ZEROES,
            content: ZEROES,
            begun: 0,
            ended: 0,
            end: WriteEnd::Acked,
            replaced: u64::MAX,
            passed: u64::MAX,
            gone: false,
            survived: false,
        };
        let new = self.blocks()..blocks;
        self.blocks.extend(new.map(|_| vec![zeroes()]));
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    /// A write is about to be submitted: its number.
    pub fn begin_write(&mut self, first_block: u64, blocks: u64) -> u64 {
        let number = self.next_number;
        self.begin(first_block, blocks, number)
    }

    /// Blocks are about to be zeroed: the number of that, which ends like a write.
    pub fn begin_zeroing(&mut self, first_block: u64, blocks: u64) -> u64 {
        self.begin(first_block, blocks, ZEROES)
    }

    /// The disk does the write with this number in parts: some may be done long before the others,
    /// and are lost with the power although the guest was told of none.
    pub fn in_parts(&mut self, number: u64) {
        self.parted.insert(number);
    }

    fn begin(&mut self, first_block: u64, blocks: u64, content: u64) -> u64 {
        let begun = self.tick();
        let number = self.next_number;
        self.next_number += 1;
        self.spans.insert(number, Span { first_block, blocks });
        for block in first_block..first_block + blocks {
            self.block(block).push(Write {
                number,
                content,
                begun,
                ended: u64::MAX,
                end: WriteEnd::Open,
                replaced: u64::MAX,
                passed: u64::MAX,
                gone: false,
                survived: false,
            });
        }
        number
    }

    /// The guest was told how the write ended.
    pub fn end_write(&mut self, number: u64, ok: bool) {
        let now = self.tick();
        let span = self.spans.remove(&number).expect("a write ends once");
        let oldest_read = self.oldest_read();
        if ok {
            self.acked_last = now;
        }
        if self.parted.remove(&number) {
            self.parted_last = now;
        }
        for block in span.first_block..span.first_block + span.blocks {
            let writes = self.block(block);
            let at = find(writes, number);
            writes[at].ended = now;
            writes[at].end = if ok { WriteEnd::Acked } else { WriteEnd::Failed };
            if !ok {
                continue;
            }
            let mine = writes[at].clone();
            for write in writes.iter_mut().filter(|write| write.is_before(&mine)) {
                write.replaced = write.replaced.min(now);
            }
            forget(writes, oldest_read);
        }
    }

    /// A read is about to be submitted.
    pub fn begin_read(&mut self) -> Began {
        let now = self.tick();
        self.reads.push(now);
        Began(now)
    }

    /// A read ended in an error, or its client is gone: nothing was seen.
    pub fn drop_read(&mut self, began: Began) {
        let at = self.reads.iter().position(|&read| read == began.0).expect("a read ends once");
        self.reads.swap_remove(at);
    }

    /// A read ended with these bytes.
    ///
    /// # Errors
    /// When a block holds what it must not.
    pub fn end_read(
        &mut self,
        began: Began,
        first_block: u64,
        bytes: &[u8],
        block_bytes: usize,
    ) -> Result<(), Breach> {
        self.drop_read(began);
        let now = self.tick();
        let oldest_read = self.oldest_read();
        for (block, content) in (first_block..).zip(bytes.chunks(block_bytes)) {
            let found = match read_stamp(block, content) {
                Ok(found) => found,
                Err(_) if self.is_mixture(began, block, content) => continue,
                Err(torn) => return Err(torn),
            };
            let writes = self.block(block);
            let allowed = |write: &&Write| write.hidden() > began.0;
            if !writes.iter().filter(allowed).any(|write| write.content == found) {
                let allowed = writes.iter().filter(allowed).map(|write| write.content).collect();
                let known = explain(writes);
                return Err(Breach::Stale { block, found, allowed, known });
            }
            let settled = |write: &&mut Write| {
                write.content != found
                    && matches!(write.end, WriteEnd::Acked | WriteEnd::Settled)
                    && write.ended < began.0
            };
            for write in writes.iter_mut().filter(settled) {
                write.passed = write.passed.min(now);
            }
            // Zeroes may have come from others, too.
            let mut from = writes.iter().filter(allowed).filter(|write| write.content == found);
            if from.all(|write| write.survived) {
                for write in writes.iter_mut().filter(|write| write.content != found) {
                    write.gone |= write.survived;
                }
            }
            forget(writes, oldest_read);
            self.checked += 1;
        }
        Ok(())
    }

    /// Whether a block's content can be the work of a write that was on its way together with the
    /// read: storage is atomic by sectors at best, a page cache not even that. Each word must
    /// still come from a write that may be seen.
    fn is_mixture(&self, began: Began, block: u64, content: &[u8]) -> bool {
        let writes = &self.blocks[usize::try_from(block).expect("a block of the volume")];
        let allowed: Vec<_> = writes.iter().filter(|write| write.hidden() > began.0).collect();
        let meets =
            allowed.iter().any(|write| write.end == WriteEnd::Open || write.ended > began.0);
        let mut unit = [0; STAMP_BYTES];
        let comes_from = |write: &Write, at: usize, word: &[u8], unit: &mut [u8]| {
            stamp(block, write.content, unit);
            &unit[at % STAMP_BYTES..][..word.len()] == word
        };
        let words = content.chunks(8).zip((0..).step_by(8));
        meets
            && words.into_iter().all(|(word, at)| {
                allowed.iter().any(|write| comes_from(write, at, word, &mut unit))
            })
    }

    /// A flush is about to be submitted.
    pub fn begin_flush(&mut self) -> Began {
        Began(self.tick())
    }

    /// Whether a write was acknowledged that no successful flush covers: a loss would break the
    /// guest's trust.
    pub fn unflushed(&self) -> bool {
        self.acked_last > self.flushed_to
    }

    /// Whether the disk may count a write as unflushed: a write of [`Self::unflushed`], or a part
    /// of a request that is done in parts. The disk does not do such a part again. So a request
    /// must fail when one of its parts is lost.
    pub fn may_be_unflushed(&self) -> bool {
        self.unflushed() || !self.parted.is_empty() || self.parted_last > self.flushed_to
    }

    /// A flush succeeded: writes that were acknowledged before it began are there for good.
    pub fn end_flush(&mut self, began: Began) {
        self.tick();
        self.flushed_to = self.flushed_to.max(began.0);
        let oldest_read = self.oldest_read();
        for writes in self.blocks.iter_mut().filter(|writes| writes.len() > 1) {
            for at in 0..writes.len() {
                let covered = writes
                    .iter()
                    .filter(|write| write.end == WriteEnd::Acked && write.ended < began.0)
                    .any(|write| writes[at].is_before(write));
                writes[at].gone |= covered;
            }
            forget(writes, oldest_read);
        }
    }

    /// The client is gone with requests on their way, and a successor was let in. The client's
    /// writes stay as they are.
    pub fn settle(&mut self) {
        let now = self.tick();
        self.spans.clear();
        self.parted.clear();
        self.reads.clear();
        for write in self.blocks.iter_mut().flatten() {
            if matches!(write.end, WriteEnd::Open | WriteEnd::Failed) {
                write.ended = write.ended.min(now);
                write.end = WriteEnd::Settled;
            }
        }
    }

    /// The server's power was cut. The guest goes on, and answers that left the server before the
    /// cut still arrive, until [`Self::recovered`].
    pub fn power_cut(&mut self) {
        self.tick();
        self.cut = u64::MAX;
        self.unsee();
    }

    /// Whether the server's power was cut and the guest's disk is not served again yet.
    pub fn is_cut(&self) -> bool {
        self.cut == u64::MAX
    }

    /// The guest's disk is served again after a power cut: requests that are acknowledged from now
    /// on were done after the cut.
    pub fn recovered(&mut self) {
        let now = self.tick();
        if self.is_cut() {
            self.cut = now;
            self.unsee();
        }
    }

    /// A write that is still on its way may have been seen, and be unseen until it was done again.
    fn unsee(&mut self) {
        for writes in &mut self.blocks {
            if writes.iter().any(|write| matches!(write.end, WriteEnd::Open | WriteEnd::Failed)) {
                writes.iter_mut().for_each(|write| write.passed = u64::MAX);
            }
        }
    }

    /// The guest started afresh after a power cut of the server: only what was made durable before
    /// the cut is promised of what was written before it. Call [`Self::power_cut`] when the power
    /// is cut, and [`Self::settle`] before this.
    pub fn lose(&mut self) {
        let now = self.tick();
        self.flushed_to = now;
        self.cut = self.cut.min(now);
        let cut = self.cut;
        for writes in &mut self.blocks {
            for write in writes.iter_mut().filter(|write| write.hidden() <= cut) {
                write.replaced = u64::MAX;
                write.passed = u64::MAX;
            }
            for write in writes.iter_mut().filter(|write| write.ended <= cut) {
                write.survived = true;
                // Which of them is there is not known: none replaces another any more.
                write.end = WriteEnd::Settled;
            }
            writes.retain(|write| !(write.gone && write.survived));
        }
    }

    /// The guest started afresh on a volatile volume after a power cut: zeroes again. Call
    /// [`Self::settle`] before this.
    pub fn erase(&mut self) {
        let now = self.tick();
        self.flushed_to = now;
        self.cut = self.cut.min(now);
        let blank = Self::new(self.blocks());
        for (writes, mut new) in self.blocks.iter_mut().zip(blank.blocks) {
            // A new guest may have begun already.
            new.extend(writes.drain(..).filter(|write| write.end == WriteEnd::Open));
            *writes = new;
        }
    }

    /// The writes that the block may hold now, for messages.
    pub fn allowed(&self, block: u64) -> Vec<u64> {
        let writes = &self.blocks[usize::try_from(block).expect("a block of the volume")];
        let seen = writes.iter().filter(|write| write.hidden() == u64::MAX);
        seen.map(|write| write.content).collect()
    }

    fn oldest_read(&self) -> u64 {
        self.reads.iter().copied().min().unwrap_or(u64::MAX)
    }

    fn block(&mut self, block: u64) -> &mut Vec<Write> {
        &mut self.blocks[usize::try_from(block).expect("a block of the volume")]
    }
}

fn find(writes: &[Write], number: u64) -> usize {
    writes.iter().position(|write| write.number == number).expect("begun before it ended")
}

fn explain(writes: &[Write]) -> String {
    let time = |time: u64| if time == u64::MAX { "-".to_owned() } else { time.to_string() };
    let line = |write: &Write| {
        format!(
            "  write {}{}: {:?}, begun {}, ended {}, replaced {}, passed {}{}{}\n",
            write.number,
            if write.content == ZEROES { " of zeroes" } else { "" },
            write.end,
            write.begun,
            time(write.ended),
            time(write.replaced),
            time(write.passed),
            if write.gone { ", gone" } else { "" },
            if write.survived { ", survived" } else { "" },
        )
    };
    writes.iter().map(line).collect()
}

/// Forgets what neither a read on its way nor a loss can bring back.
fn forget(writes: &mut Vec<Write>, oldest_read: u64) {
    writes.retain(|write| !(write.gone && write.hidden() < oldest_read));
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 512;

    fn content(block: u64, write: u64) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK];
        stamp(block, write, &mut bytes);
        bytes
    }

    fn read(checker: &mut Checker, block: u64, write: u64) -> Result<(), Breach> {
        let began = checker.begin_read();
        checker.end_read(began, block, &content(block, write), BLOCK)
    }

    fn written(checker: &mut Checker, block: u64) -> u64 {
        let number = checker.begin_write(block, 1);
        checker.end_write(number, true);
        number
    }

    #[test]
    fn an_acknowledged_write_is_what_is_read() {
        let mut checker = Checker::new(4);
        read(&mut checker, 1, ZEROES).expect("zeroes at first");
        let first = written(&mut checker, 1);
        read(&mut checker, 1, first).expect("the write");
        assert!(matches!(read(&mut checker, 1, ZEROES), Err(Breach::Stale { .. })));
        let second = written(&mut checker, 1);
        assert!(matches!(read(&mut checker, 1, first), Err(Breach::Stale { .. })));
        read(&mut checker, 1, second).expect("the later write");
    }

    #[test]
    fn a_write_on_its_way_may_be_seen_or_not_until_it_was_seen() {
        let mut checker = Checker::new(1);
        let old = written(&mut checker, 0);
        let new = checker.begin_write(0, 1);
        read(&mut checker, 0, old).expect("not yet");
        read(&mut checker, 0, new).expect("already");
        assert!(read(&mut checker, 0, old).is_err(), "it was seen");
        checker.end_write(new, true);
    }

    #[test]
    fn a_read_that_began_before_an_acknowledgement_may_return_the_old() {
        let mut checker = Checker::new(1);
        let old = written(&mut checker, 0);
        let new = checker.begin_write(0, 1);
        let began = checker.begin_read();
        checker.end_write(new, true);
        checker.end_read(began, 0, &content(0, old), BLOCK).expect("it overlapped");
        assert!(read(&mut checker, 0, old).is_err());
    }

    #[test]
    fn concurrent_writes_settle_once_read() {
        let mut checker = Checker::new(1);
        let one = checker.begin_write(0, 1);
        let two = checker.begin_write(0, 1);
        checker.end_write(one, true);
        checker.end_write(two, true);
        read(&mut checker, 0, one).expect("either");
        assert!(read(&mut checker, 0, two).is_err(), "it was the other");
    }

    #[test]
    fn a_failed_write_may_land_until_a_later_one_is_acknowledged() {
        let mut checker = Checker::new(1);
        let old = written(&mut checker, 0);
        let failed = checker.begin_write(0, 1);
        checker.end_write(failed, false);
        read(&mut checker, 0, old).expect("did not land");
        read(&mut checker, 0, failed).expect("landed later");
        let new = written(&mut checker, 0);
        assert!(read(&mut checker, 0, failed).is_err());
        read(&mut checker, 0, new).expect("the later one");
    }

    #[test]
    fn a_loss_brings_back_only_what_was_not_flushed_over() {
        let mut checker = Checker::new(2);
        let first = written(&mut checker, 0);
        let flush = checker.begin_flush();
        let second = written(&mut checker, 0);
        checker.end_flush(flush);
        let mut lost = |number| {
            checker.power_cut();
            checker.settle();
            checker.lose();
            read(&mut checker, 0, number)
        };
        assert!(lost(ZEROES).is_err(), "flushed over");
        lost(first).expect("the second one was not flushed");
        assert!(lost(second).is_err(), "the first was seen after a loss: it is what was stored");
    }

    #[test]
    fn zeroed_ranges_read_as_zeroes_and_nothing_else() {
        let mut checker = Checker::new(1);
        let first = written(&mut checker, 0);
        let zeroing = checker.begin_zeroing(0, 1);
        read(&mut checker, 0, first).expect("not yet");
        checker.end_write(zeroing, true);
        assert!(read(&mut checker, 0, first).is_err(), "a lost discard");
        read(&mut checker, 0, ZEROES).expect("zeroes");
        let second = written(&mut checker, 0);
        assert!(read(&mut checker, 0, ZEROES).is_err(), "a late discard");
        read(&mut checker, 0, second).expect("the later write");
        assert_eq!(checker.allowed(0), [second]);
    }

    #[test]
    fn an_unflushed_zeroing_may_be_lost_and_a_flushed_one_not() {
        let mut checker = Checker::new(2);
        for block in 0..2 {
            written(&mut checker, block);
        }
        let zeroing = checker.begin_zeroing(0, 1);
        checker.end_write(zeroing, true);
        let flush = checker.begin_flush();
        checker.end_flush(flush);
        let zeroing = checker.begin_zeroing(1, 1);
        checker.end_write(zeroing, true);
        checker.power_cut();
        checker.settle();
        checker.lose();
        read(&mut checker, 0, ZEROES).expect("it was flushed");
        assert!(read(&mut checker, 0, 1).is_err(), "what was zeroed is back");
        read(&mut checker, 1, 2).expect("the zeroing was lost");
        assert!(read(&mut checker, 1, ZEROES).is_err(), "and stays lost");
    }

    #[test]
    fn a_part_of_a_request_may_count_before_its_end() {
        let mut checker = Checker::new(2);
        let zeroing = checker.begin_zeroing(0, 2);
        assert!(!checker.may_be_unflushed(), "a whole one counts when the guest is told");
        checker.in_parts(zeroing);
        assert!(checker.may_be_unflushed() && !checker.unflushed());
        checker.end_write(zeroing, false);
        assert!(checker.may_be_unflushed() && !checker.unflushed(), "one part may be done");
        let flush = checker.begin_flush();
        checker.end_flush(flush);
        assert!(!checker.may_be_unflushed());
    }

    #[test]
    fn a_mixture_needs_a_write_on_its_way() {
        let mut checker = Checker::new(1);
        let old = written(&mut checker, 0);
        let mut mixed = content(0, old);
        let new = checker.begin_write(0, 1);
        mixed[..256].copy_from_slice(&content(0, new)[..256]);
        let began = checker.begin_read();
        checker.end_read(began, 0, &mixed, BLOCK).expect("both are on their way");
        mixed[256..264].copy_from_slice(&content(0, new + 1)[..8]);
        mixed[264] ^= 1;
        let began = checker.begin_read();
        checker.end_read(began, 0, &mixed, BLOCK).expect_err("nobody wrote that");
        checker.end_write(new, true);
        mixed[256..].copy_from_slice(&content(0, old)[256..]);
        let began = checker.begin_read();
        checker.end_read(began, 0, &mixed, BLOCK).expect_err("no write is on its way");
    }

    #[test]
    fn stamps_tell_torn_blocks() {
        let mut bytes = content(3, 9);
        assert_eq!(read_stamp(3, &bytes), Ok(9));
        assert!(read_stamp(4, &bytes).is_err(), "another block's");
        bytes[BLOCK - 1] ^= 1;
        assert!(matches!(read_stamp(3, &bytes), Err(Breach::Torn { block: 3, .. })));
        assert_eq!(read_stamp(3, &[0; BLOCK]), Ok(ZEROES));
    }
}
