//! Contents of blocks: each block says which request wrote it, so any content can be judged.

use std::fmt;
use std::rc::Rc;

use store::block::{BLOCK_BYTES, Block};

/// The most layers of a block before a whole write must follow.
pub(crate) const LAYERS_MAX: usize = 4;

/// A block's content: zeroes, or what requests wrote, the later above the earlier.
#[derive(Clone)]
pub(crate) struct Content(Option<Rc<Written>>);

struct Written {
    page: u64,
    layers: Vec<Layer>,
}

/// The bit of a request's name with which contents repeat: another block has the same content by
/// another request, or by the same request. A block has each content once.
pub(crate) const REPEATS: u64 = 1 << 30;

/// The bit with which some contents are zeroes.
pub(crate) const HAS_ZEROES: u64 = 1 << 29;

/// Blocks after which contents repeat.
const PERIOD: u64 = 8;

/// One of so many contents is zeroes.
const ZEROES: u64 = 7;

/// The bytes `from..to` of a pattern.
#[derive(Clone, Copy)]
struct Layer {
    from: usize,
    to: usize,
    key: u64,
}

/// The key of the pattern that the request `stamp` writes to a block; 0 for zeroes.
fn key(stamp: u64, block: u64) -> u64 {
    if stamp & REPEATS != 0 {
        let content = stamp - block % PERIOD;
        let is_zeroes = stamp & HAS_ZEROES != 0 && content.is_multiple_of(ZEROES);
        return if is_zeroes { 0 } else { content << 32 | 0xffff_ffff };
    }
    stamp << 32 | block & 0xffff_ffff
}

/// The word of a pattern at this place. Patterns differ in how many words are noise, so that some
/// blocks are packed well, some badly and some not at all.
fn word(key: u64, at: usize) -> u64 {
    let noise = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    if at == 0 || key == 0 {
        return key;
    }
    // Each byte differs from that of another request, as in the noise: a part may be one byte.
    let at = at.min((noise % 600) as usize);
    key.wrapping_add(at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ key
}

/// Fills `bytes` with the part of a pattern that begins at `from`.
pub(crate) fn fill_part(stamp: u64, block: u64, from: usize, bytes: &mut [u8]) {
    let key = key(stamp, block);
    if from == 0 && bytes.len() == BLOCK_BYTES {
        for (at, chunk) in bytes.chunks_exact_mut(8).enumerate() {
            chunk.copy_from_slice(&word(key, at).to_le_bytes());
        }
        return;
    }
    for (at, byte) in (from..).zip(bytes) {
        *byte = word(key, at / 8).to_le_bytes()[at % 8];
    }
}

/// The request that seems to have written the block, for a failure's text.
pub(crate) fn seems_written_by(block: &Block) -> u64 {
    u64::from_le_bytes(block.0[..8].try_into().expect("8 bytes")) >> 32
}

impl Content {
    /// Zeroes.
    pub(crate) const ZERO: Self = Self(None);

    /// The content after a write of the whole block.
    pub(crate) fn whole(stamp: u64, block: u64) -> Self {
        let layer = Layer { from: 0, to: BLOCK_BYTES, key: key(stamp, block) };
        Self(Some(Rc::new(Written { page: stamp, layers: vec![layer] })))
    }

    /// This content after a write of the bytes `from..to`.
    pub(crate) fn with_part(&self, stamp: u64, block: u64, from: usize, to: usize) -> Self {
        let layer = Layer { from, to, key: key(stamp, block) };
        let mut layers = self.0.as_ref().map_or(Vec::new(), |written| written.layers.clone());
        layers.push(layer);
        Self(Some(Rc::new(Written { page: stamp, layers })))
    }

    /// How many layers it has.
    pub(crate) fn layers(&self) -> usize {
        self.0.as_ref().map_or(0, |written| written.layers.len())
    }

    /// The request whose page it is; 0 for zeroes, which have none.
    pub(crate) fn page(&self) -> u64 {
        self.0.as_ref().map_or(0, |written| written.page)
    }

    /// Whether `block` has this content; no block stands for zeroes.
    pub(crate) fn matches(&self, block: Option<&Block>) -> bool {
        match (&self.0, block) {
            (None, None) => true,
            (Some(written), None) => written.expanded().0 == Block::ZERO.0,
            (None, Some(block)) => block.0.iter().all(|&byte| byte == 0),
            (Some(written), Some(block)) => match written.layers[..] {
                [Layer { from: 0, to: BLOCK_BYTES, key }] => {
                    let mut words = block.0.chunks_exact(8).enumerate();
                    words.all(|(at, bytes)| word(key, at).to_le_bytes() == bytes)
                }
                _ => written.expanded().0 == block.0,
            },
        }
    }
}

impl Written {
    fn expanded(&self) -> Block {
        let mut block = Block::ZERO;
        for layer in &self.layers {
            for at in layer.from..layer.to {
                block.0[at] = word(layer.key, at / 8).to_le_bytes()[at % 8];
            }
        }
        block
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => write!(f, "zero"),
            Some(written) => {
                for (at, layer) in written.layers.iter().enumerate() {
                    let sign = if at == 0 { "" } else { "+" };
                    write!(f, "{sign}#{}", layer.key >> 32)?;
                    if (layer.from, layer.to) != (0, BLOCK_BYTES) {
                        write!(f, "[{}..{}]", layer.from, layer.to)?;
                    }
                }
                Ok(())
            }
        }
    }
}
