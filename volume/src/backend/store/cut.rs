//! How a request is cut into requests of the engine, which knows whole blocks only.
//!
//! ```text
//!   blocks      |       |       |       |       |
//!   write           hhhh mmmmmmm mmmmmmm ttt        h, t: a part of one block
//!   read        [mmmmmm mmmmmmm mmmmmmm mmmmmm]     whole blocks, of which a part is used
//! ```

use store::block::BLOCK_BYTES;

use crate::volume::{Io, Op};

/// Parts of a request, as bits.
pub(super) mod part {
    /// Bytes of the first block.
    pub(in super::super) const HEAD: u8 = 1;
    /// Whole blocks.
    pub(in super::super) const MIDDLE: u8 = 2;
    /// Bytes of the last block.
    pub(in super::super) const TAIL: u8 = 4;
    /// A flush, after the others where the request must be durable.
    pub(in super::super) const FLUSH: u8 = 8;
    /// All of them, in their order.
    pub(in super::super) const ALL: [u8; 4] = [HEAD, MIDDLE, TAIL, FLUSH];
}

/// One part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Its first block.
    pub(super) block: u64,
    /// How many blocks; 1 for a part of one.
    pub(super) blocks: u32,
    /// The first byte in the first block.
    pub(super) from: usize,
    /// How many bytes of the request.
    pub(super) len: usize,
    /// The byte of the request with which the part begins.
    pub(super) at: u64,
}

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The parts that a request has at first. It must have a length, unless it is a flush.
pub(super) fn parts_of(io: &Io) -> u8 {
    match io.op {
        Op::Flush => part::FLUSH,
        Op::Read => part::MIDDLE,
        Op::Write | Op::Discard | Op::WriteZeroes => {
            let has = |part| cut(io, part).is_some();
            let bit = |part| if has(part) { part } else { 0 };
            bit(part::HEAD) | bit(part::MIDDLE) | bit(part::TAIL)
        }
    }
}

/// A part of a request that is no flush; `None` where the request has no such part.
pub(super) fn cut(io: &Io, which: u8) -> Option<Cut> {
    let (start, len) = (io.offset_bytes, u64::from(io.len_bytes));
    let end = start + len;
    if io.op == Op::Read {
        let (block, from) = (start / BLOCK, start % BLOCK);
        let blocks = (end.div_ceil(BLOCK) - block) as u32;
        let (from, len) = (from as usize, len as usize);
        return (which == part::MIDDLE).then_some(Cut { block, blocks, from, len, at: 0 });
    }
    let (first, last) = (start.next_multiple_of(BLOCK), end / BLOCK * BLOCK);
    let some = |from: u64, to: u64| {
        let (block, inside) = (from / BLOCK, (from % BLOCK) as usize);
        let blocks = (to.div_ceil(BLOCK) - block) as u32;
        let (len, at) = ((to - from) as usize, from - start);
        (to > from).then_some(Cut { block, blocks, from: inside, len, at })
    };
    match which {
        part::HEAD if start < first => some(start, end.min(first)),
        part::MIDDLE => some(first, last.max(first)),
        part::TAIL if last >= first => some(last, end),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_request_are_the_request() {
        for start in [0, 512, 3584, 4096, 4608, 12288] {
            for len in [512, 1024, 3584, 4096, 4608, 8192, 12288, 1 << 20] {
                for op in [Op::Write, Op::Discard] {
                    let io = Io { op, offset_bytes: start, len_bytes: len, ..Io::default() };
                    let parts = parts_of(&io);
                    let mut at = 0;
                    for which in part::ALL {
                        let cut = cut(&io, which);
                        assert_eq!(cut.is_some(), parts & which != 0);
                        let Some(cut) = cut else { continue };
                        assert_eq!(cut.at, at);
                        assert_eq!(cut.block * BLOCK + cut.from as u64, start + at);
                        let whole = cut.from == 0 && cut.len == cut.blocks as usize * BLOCK_BYTES;
                        assert_eq!(whole, which == part::MIDDLE, "{io:?}: {cut:?}");
                        assert!(whole || cut.blocks == 1 && cut.from + cut.len <= BLOCK_BYTES);
                        at += cut.len as u64;
                    }
                    assert_eq!(at, u64::from(len));
                }
                let (op, len_bytes) = (Op::Read, len);
                let io = Io { op, offset_bytes: start, len_bytes, ..Io::default() };
                let whole = cut(&io, part::MIDDLE).expect("a read has one part");
                assert!(whole.blocks <= 257 && whole.block == start / BLOCK);
                let end = (whole.block + u64::from(whole.blocks)) * BLOCK;
                assert!(end >= start + u64::from(len) && end < start + u64::from(len) + BLOCK);
            }
        }
    }
}
