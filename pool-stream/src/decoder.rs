//! A whole stream: its header, its parts in their order, and its end.

use std::fmt;

use crc_fast::{CrcAlgorithm, Digest};

use super::header::{STREAM_HEADER_BYTES, StreamHeader, StreamId};
use super::part::{self, PART_HEAD_BYTES, StreamPart};
use super::{CHECK, StreamError, StreamPlace, check_of};

const END_MAGIC: &[u8; 8] = b"vrioDone";

/// Counts of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounts {
    /// Parts.
    pub parts: u64,
    /// Blocks of data.
    pub data_blocks: u64,
    /// Blocks of zeroes.
    pub zero_blocks: u64,
}

/// The account of a stream that is made or read: the next part's place, counts, and the check over
/// all parts.
#[derive(Clone)]
pub struct StreamTally {
    id: StreamId,
    next_block: u64,
    counts: StreamCounts,
    checks: Digest,
}

impl fmt::Debug for StreamTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { next_block, counts, .. } = self;
        write!(f, "StreamTally({counts:?}, at block {next_block})")
    }
}

impl StreamTally {
    /// The account of a stream with this header.
    pub fn new(header: &StreamHeader) -> Self {
        let mut checks = Digest::new(CrcAlgorithm::Crc64Nvme);
        checks.update(&header.to_bytes());
        let counts = StreamCounts::default();
        Self { id: header.id, next_block: header.start_block, counts, checks }
    }

    /// Reads and proves the next part.
    ///
    /// # Errors
    /// [`StreamError`]: these bytes are not the next part.
    pub fn part<'a>(&mut self, bytes: &'a [u8]) -> Result<StreamPart<'a>, StreamError> {
        let part = StreamPart::read(&self.id, bytes)?;
        if part.start != self.next_block {
            return Err(StreamError::NotNext { wanted: self.next_block, found: part.start });
        }
        let (data_blocks, zero_blocks) = part.counts();
        self.next_block = part.end;
        self.counts.parts += 1;
        self.counts.data_blocks += data_blocks;
        self.counts.zero_blocks += zero_blocks;
        self.checks.update(&part.check.to_le_bytes());
        Ok(part)
    }

    /// The block at which the next part begins.
    pub fn next_block(&self) -> u64 {
        self.next_block
    }

    /// Whether all parts are there.
    pub fn is_complete(&self) -> bool {
        self.next_block == self.id.blocks
    }

    /// The counts until now.
    pub fn counts(&self) -> StreamCounts {
        self.counts
    }

    /// The end that the stream must have now.
    pub fn end(&self) -> [u8; PART_HEAD_BYTES] {
        let mut bytes = [0; PART_HEAD_BYTES];
        bytes[..8].copy_from_slice(END_MAGIC);
        bytes[16..24].copy_from_slice(&self.counts.parts.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.counts.data_blocks.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.counts.zero_blocks.to_le_bytes());
        let check = check_of(&self.checks.finalize().to_le_bytes(), &bytes);
        bytes[CHECK].copy_from_slice(&check.to_le_bytes());
        bytes
    }
}

/// A piece of a stream that was read and proved.
#[derive(Debug, PartialEq, Eq)]
pub enum StreamItem<'a> {
    /// The header, which comes first.
    Header(StreamHeader),
    /// The next part, and its bytes.
    Part(StreamPart<'a>, &'a [u8]),
    /// The end: the stream is whole.
    End(StreamCounts),
}

/// Reads a stream: the caller fills [`Self::space`] and then asks for [`Self::filled`], again and
/// again.
#[derive(Debug)]
pub struct StreamDecoder {
    tally: Option<StreamTally>,
    buffer: Vec<u8>,
    /// The bytes of the buffer before the space.
    kept: usize,
    /// The buffer has a part that the caller has seen.
    is_used: bool,
    is_ended: bool,
}

impl Default for StreamDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl StreamDecoder {
    /// A reader at the start of a stream.
    pub fn new() -> Self {
        Self {
            tally: None,
            buffer: vec![0; STREAM_HEADER_BYTES],
            kept: 0,
            is_used: false,
            is_ended: false,
        }
    }

    /// The room for the next bytes, all of which must be filled. It is empty behind the end.
    pub fn space(&mut self) -> &mut [u8] {
        if std::mem::take(&mut self.is_used) {
            self.buffer.resize(PART_HEAD_BYTES, 0);
        }
        &mut self.buffer[self.kept..]
    }

    /// The space is filled: the piece that is whole now, if one is.
    ///
    /// # Errors
    /// [`StreamError`]: the stream is of no use from here on.
    pub fn filled(&mut self) -> Result<Option<StreamItem<'_>>, StreamError> {
        assert!(!self.is_ended, "nothing follows the end");
        let Some(tally) = &mut self.tally else {
            let header = StreamHeader::read(&self.buffer)?;
            self.tally = Some(StreamTally::new(&header));
            self.buffer.resize(PART_HEAD_BYTES, 0);
            return Ok(Some(StreamItem::Header(header)));
        };
        let is_head = self.kept == 0;
        if is_head && self.buffer[..8] == END_MAGIC[..] {
            if self.buffer[..] != tally.end() {
                return Err(StreamError::Damaged(StreamPlace::End));
            }
            if !tally.is_complete() {
                return Err(StreamError::Cut(tally.next_block()));
            }
            self.is_ended = true;
            self.buffer.clear();
            return Ok(Some(StreamItem::End(tally.counts())));
        }
        if is_head {
            if self.buffer[..8] != part::MAGIC[..] {
                return Err(StreamError::Damaged(StreamPlace::Part(tally.next_block())));
            }
            let head = self.buffer.first_chunk().expect("the space of a head");
            let length = part::length(head)?;
            if length > PART_HEAD_BYTES {
                self.buffer.resize(length, 0);
                self.kept = PART_HEAD_BYTES;
                return Ok(None);
            }
        }
        (self.kept, self.is_used) = (0, true);
        let bytes = &self.buffer[..];
        let part = tally.part(bytes)?;
        Ok(Some(StreamItem::Part(part, bytes)))
    }

    /// The error if the bytes end here.
    pub fn cut(&self) -> StreamError {
        let Some(tally) = &self.tally else { return StreamError::NoStream };
        StreamError::Cut(tally.next_block())
    }
}
