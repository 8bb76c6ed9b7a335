//! Helpers that this crate's tests share.

use virtio::Segment;

use crate::frame::{Burst, Frame};

/// Adds a copy of these bytes to the burst, in pieces. The copy is never freed: a test ends soon.
pub(crate) fn pushed<'a>(burst: &'a mut Burst, bytes: &[u8], piece_bytes: usize) -> &'a mut Frame {
    let bytes: &'static mut [u8] = Box::leak(bytes.to_vec().into_boxed_slice());
    let cut = bytes.chunks_mut(piece_bytes);
    let pieces = cut.map(|piece| Segment { addr: piece.as_mut_ptr(), len: piece.len() as u32 });
    let pieces: Vec<_> = pieces.collect();
    // SAFETY: the bytes are never freed.
    unsafe { burst.push(&pieces, 0) }.expect("a frame")
}
