//! The state of a checkpoint as bytes, and its index.
//!
//! ```text
//! state   u64 length of the JSON, the JSON (the map's state), then 24 bytes for each segment
//! index   blocks of up to 127 entries of 32 bytes, and the entry of the next index block
//! ```

use zerocopy::{FromBytes, IntoBytes};

use super::segments::SegmentRecord;
use crate::block::{BLOCK_BYTES, Block};
use crate::format::PageEntry;
use crate::map::MapState;

/// Entries of blocks of the state in a block of the index; one more is for the next index block.
pub(crate) const INDEX_ENTRIES: usize = BLOCK_BYTES / ENTRY_BYTES - 1;

const ENTRY_BYTES: usize = size_of::<PageEntry>();
const NEXT_AT: usize = INDEX_ENTRIES * ENTRY_BYTES;
const _: () = assert!(NEXT_AT + ENTRY_BYTES <= BLOCK_BYTES);

/// The bytes of a state.
pub(crate) fn encode(map: &MapState, segments: &[SegmentRecord]) -> Vec<u8> {
    let json = serde_json::to_vec(map).expect("a state of numbers and names is JSON");
    let mut bytes = Vec::with_capacity(8 + json.len() + size_of_val(segments));
    bytes.extend_from_slice(&(json.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&json);
    bytes.extend_from_slice(segments.as_bytes());
    bytes
}

/// The state that bytes are.
///
/// # Errors
/// If they are none.
pub(crate) fn decode(bytes: &[u8]) -> Result<(MapState, Vec<SegmentRecord>), String> {
    let (length, rest) = bytes.split_first_chunk().ok_or("the state is too short")?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let (json, segments) = rest.split_at_checked(length).ok_or("the state's JSON is cut off")?;
    let map = serde_json::from_slice(json).map_err(|error| format!("the state: {error}"))?;
    let chunks = segments.chunks_exact(size_of::<SegmentRecord>());
    if !chunks.remainder().is_empty() {
        return Err("the state's segments are cut off".into());
    }
    let record = |chunk| SegmentRecord::read_from_bytes(chunk).expect("24 bytes");
    Ok((map, chunks.map(record).collect()))
}

/// Writes a block of the index.
pub(crate) fn encode_index(entries: &[PageEntry], next: PageEntry, block: &mut Block) {
    debug_assert!(entries.len() <= INDEX_ENTRIES);
    block.0.fill(0);
    block.0[..size_of_val(entries)].copy_from_slice(entries.as_bytes());
    block.0[NEXT_AT..NEXT_AT + ENTRY_BYTES].copy_from_slice(next.as_bytes());
}

/// The entries of a block of the index, and the entry of the next one.
pub(crate) fn decode_index(block: &Block) -> (Vec<PageEntry>, PageEntry) {
    let entry = |bytes: &[u8]| PageEntry::read_from_bytes(bytes).expect("32 bytes");
    let entries = block.0[..NEXT_AT].chunks_exact(ENTRY_BYTES).map(entry);
    let entries = entries.take_while(|entry| !entry.is_free()).collect();
    (entries, entry(&block.0[NEXT_AT..NEXT_AT + ENTRY_BYTES]))
}
