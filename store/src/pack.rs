//! Compression of pages, and the bytes that are stored of a packed page.
//!
//! ```text
//! bytes 0..2    how many bytes the codec made
//! bytes 2..     these bytes, and zeroes up to the end of the last sector
//! ```

use std::fmt;
use std::str::FromStr;

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into};
use serde::{Deserialize, Serialize};
use zstd_safe::{CCtx, DCtx};

use crate::block::{BLOCK_BYTES, Block};
use crate::format::{PACKED_SECTORS_MAX, PageCodec, PageForm, SECTOR_BYTES};

/// The most bytes that are stored of a packed page: one sector less than a block.
pub(crate) const PACKED_BYTES_MAX: usize = PACKED_SECTORS_MAX as usize * SECTOR_BYTES;

/// Bytes of the length in front of what the codec made.
const LENGTH_BYTES: usize = 2;

/// The highest level of zstd: those above it take milliseconds for a page and gain nothing on one.
const ZSTD_LEVEL_MAX: u8 = 9;

/// How the pages of a volume are compressed when they move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum PageCompression {
    /// LZ4: fast.
    Lz4,
    /// Zstandard at this level, from 1 to 9: smaller, and slower to write and to read.
    Zstd(u8),
}

impl PageCompression {
    /// The codec of the pages that it makes.
    pub(crate) fn codec(self) -> PageCodec {
        match self {
            Self::Lz4 => PageCodec::Lz4,
            Self::Zstd(_) => PageCodec::Zstd,
        }
    }
}

impl fmt::Display for PageCompression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lz4 => write!(f, "lz4"),
            Self::Zstd(level) => write!(f, "zstd:{level}"),
        }
    }
}

impl FromStr for PageCompression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let level = |text: &str| {
            let level = text.parse().ok().filter(|level| (1..=ZSTD_LEVEL_MAX).contains(level));
            level.filter(|level: &u8| level.to_string() == text)
        };
        match text.strip_prefix("zstd:").map(level) {
            Some(Some(level)) => Ok(Self::Zstd(level)),
            None if text == "lz4" => Ok(Self::Lz4),
            _ => Err(format!(
                "{text:?} is no compression: lz4, or zstd:LEVEL with a level from 1 to \
                 {ZSTD_LEVEL_MAX}"
            )),
        }
    }
}

impl From<PageCompression> for String {
    fn from(compression: PageCompression) -> Self {
        compression.to_string()
    }
}

impl TryFrom<String> for PageCompression {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// The contexts of zstd: for packing, and for unpacking.
type Contexts = (CCtx<'static>, DCtx<'static>);

/// Packs and unpacks pages, with memory that is taken once.
pub(crate) struct Packer {
    lz4: CompressTable,
    /// Contexts of zstd, from the first page that needs one on.
    zstd: Option<Contexts>,
    made: Box<[u8; MADE_BYTES]>,
    proof: Box<Block>,
    packed: Box<[u8; PACKED_BYTES_MAX]>,
}

/// Room for what a codec makes of a block at worst.
const MADE_BYTES: usize = lz4_flex::block::get_maximum_output_size(BLOCK_BYTES);

impl fmt::Debug for Packer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packer").field("has_zstd", &self.zstd.is_some()).finish_non_exhaustive()
    }
}

impl Packer {
    pub(crate) fn new() -> Self {
        Self {
            lz4: CompressTable::default(),
            zstd: None,
            made: Box::new([0; MADE_BYTES]),
            proof: Box::new(Block::ZERO),
            packed: Box::new([0; PACKED_BYTES_MAX]),
        }
    }

    /// Packs a page into whole sectors; `None` if they would be as many as the page has. They were
    /// unpacked and compared, so that a fault of a codec costs no data.
    pub(crate) fn pack(
        &mut self,
        page: &Block,
        compression: PageCompression,
    ) -> Option<(PageForm, &[u8])> {
        let length = match compression {
            PageCompression::Lz4 => {
                compress_into_with_table(&page.0, &mut self.made[..], &mut self.lz4).ok()?
            }
            PageCompression::Zstd(level) => {
                let (made, page) = (&mut self.made[..], &page.0);
                contexts(&mut self.zstd).0.compress(made, page, level.into()).ok()?
            }
        };
        let sectors = (LENGTH_BYTES + length).div_ceil(SECTOR_BYTES);
        if sectors > usize::from(PACKED_SECTORS_MAX) {
            return None;
        }
        let form = PageForm { codec: compression.codec(), sectors: sectors as u8 };
        let bytes = sectors * SECTOR_BYTES;
        let (front, rest) = self.packed[..bytes].split_at_mut(LENGTH_BYTES);
        front.copy_from_slice(&(length as u16).to_le_bytes());
        rest[..length].copy_from_slice(&self.made[..length]);
        rest[length..].fill(0);
        let is_proved = unpack(&mut self.zstd, form.codec, &self.packed[..bytes], &mut self.proof)
            && self.proof.0 == page.0;
        is_proved.then_some((form, &self.packed[..bytes]))
    }

    /// The page of which `packed` is stored; whether it is one.
    pub(crate) fn unpack(&mut self, codec: PageCodec, packed: &[u8], page: &mut Block) -> bool {
        unpack(&mut self.zstd, codec, packed, page)
    }
}

fn contexts(zstd: &mut Option<Contexts>) -> &mut Contexts {
    zstd.get_or_insert_with(|| (CCtx::create(), DCtx::create()))
}

/// The check of a page has proved the bytes, but a pool's devices may come from anywhere: no
/// length in them is believed.
fn unpack(zstd: &mut Option<Contexts>, codec: PageCodec, packed: &[u8], page: &mut Block) -> bool {
    let Some((length, rest)) = packed.split_first_chunk() else { return false };
    let length = usize::from(u16::from_le_bytes(*length));
    let Some(made) = rest.get(..length) else { return false };
    let bytes = match codec {
        PageCodec::Plain => None,
        PageCodec::Lz4 => decompress_into(made, &mut page.0).ok(),
        PageCodec::Zstd => contexts(zstd).1.decompress(&mut page.0[..], made).ok(),
    };
    bytes == Some(BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    use random::Random;

    use super::*;

    const ALL: [PageCompression; 4] = [
        PageCompression::Lz4,
        PageCompression::Zstd(1),
        PageCompression::Zstd(3),
        PageCompression::Zstd(9),
    ];

    /// A page whose first `noise` bytes are random.
    fn page(random: &mut Random, noise: usize) -> Block {
        let mut page = Block::ZERO;
        page.0[..noise].fill_with(|| random.draw() as u8);
        page
    }

    #[test]
    fn a_page_comes_back_and_takes_the_sectors_that_it_needs() {
        let (mut packer, mut random) = (Packer::new(), Random::new(1));
        for compression in ALL {
            for noise in [0, 1, 100, 500, 1_000, 2_000, 3_000, 3_500] {
                let page = page(&mut random, noise);
                let (form, packed) = packer.pack(&page, compression).expect("it shrinks");
                let packed = packed.to_vec();
                assert_eq!(form.codec, compression.codec());
                assert_eq!(packed.len(), usize::from(form.sectors) * SECTOR_BYTES);
                let least = noise.div_ceil(SECTOR_BYTES).max(1);
                let sectors = usize::from(form.sectors);
                assert!((least..=least + 1).contains(&sectors), "{compression}, {noise}");
                let mut back = Block([9; BLOCK_BYTES]);
                assert!(packer.unpack(form.codec, &packed, &mut back));
                assert!(back.0 == page.0);
            }
        }
    }

    #[test]
    fn a_page_that_gains_no_sector_stays_plain() {
        let (mut packer, mut random) = (Packer::new(), Random::new(2));
        for compression in ALL {
            for noise in [3_600, BLOCK_BYTES] {
                assert!(packer.pack(&page(&mut random, noise), compression).is_none());
            }
        }
    }

    #[test]
    fn bytes_from_anywhere_are_no_page_and_no_panic() {
        let (mut packer, mut random) = (Packer::new(), Random::new(3));
        let mut back = Block::ZERO;
        for round in 0..20_000 {
            let compression = ALL[round % ALL.len()];
            let (form, packed) = packer.pack(&page(&mut random, 900), compression).expect("packed");
            let mut packed = packed.to_vec();
            for _ in 0..random.between(1, 4) {
                let at = random.below(packed.len() as u64) as usize;
                packed[at] = random.draw() as u8;
            }
            if random.one_in(4) {
                packed.truncate(random.below(packed.len() as u64) as usize);
            }
            // Whether it is a page is not known here: the check of the page says so.
            packer.unpack(form.codec, &packed, &mut back);
            assert!(!packer.unpack(PageCodec::Plain, &packed, &mut back));
        }
        let noise: Vec<u8> = (0..PACKED_BYTES_MAX).map(|_| random.draw() as u8).collect();
        for codec in [PageCodec::Lz4, PageCodec::Zstd] {
            for length in [0, 1, 2, 3, 600, PACKED_BYTES_MAX] {
                assert!(!packer.unpack(codec, &noise[..length], &mut back));
            }
        }
    }

    #[test]
    fn a_compression_is_a_word() {
        for compression in ALL {
            let json = serde_json::to_string(&compression).unwrap();
            assert_eq!(json, format!("\"{compression}\""));
            assert_eq!(serde_json::from_str::<PageCompression>(&json).unwrap(), compression);
        }
        for text in ["", "LZ4", "zstd", "zstd:", "zstd:0", "zstd:10", "zstd:03", "zstd:-1"] {
            let error = text.parse::<PageCompression>().unwrap_err();
            assert!(error.contains("zstd:LEVEL"), "{error}");
        }
    }
}
