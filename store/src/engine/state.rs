//! The state of a checkpoint as bytes, and its index.
//!
//! ```text
//! state   u64 length of the JSON, the JSON (the map's state, and a pass of a scrub), then 64 bytes
//!         for each moment of a history, then 24 bytes for each segment
//! index   blocks of up to 127 entries of 32 bytes, and the entry of the next index block
//! ```

use serde::Serialize;
use serde_json::Value;
use zerocopy::{FromBytes, IntoBytes};

use super::scrub::ScrubState;
use super::segments::SegmentRecord;
use crate::block::{BLOCK_BYTES, Block};
use crate::format::PageEntry;
use crate::map::{MapState, MomentRecord};

/// Entries of blocks of the state in a block of the index; one more is for the next index block.
pub(crate) const INDEX_ENTRIES: usize = BLOCK_BYTES / ENTRY_BYTES - 1;

const ENTRY_BYTES: usize = size_of::<PageEntry>();
const NEXT_AT: usize = INDEX_ENTRIES * ENTRY_BYTES;
const _: () = assert!(NEXT_AT + ENTRY_BYTES <= BLOCK_BYTES);

/// The JSON of a state.
#[derive(Serialize)]
struct StateJson<'a> {
    #[serde(flatten)]
    map: &'a MapState,
    #[serde(skip_serializing_if = "Option::is_none")]
    scrub: Option<&'a ScrubState>,
}

/// The bytes of a state.
pub(crate) fn encode(
    map: &MapState,
    scrub: Option<&ScrubState>,
    segments: &[SegmentRecord],
) -> Vec<u8> {
    let json = serde_json::to_vec(&StateJson { map, scrub });
    let json = json.expect("a state of numbers and names is JSON");
    let moments = map.moment_table();
    let tables = size_of_val(moments) + size_of_val(segments);
    let mut bytes = Vec::with_capacity(8 + json.len() + tables);
    bytes.extend_from_slice(&(json.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&json);
    bytes.extend_from_slice(moments.as_bytes());
    bytes.extend_from_slice(segments.as_bytes());
    bytes
}

/// A state as it was read.
#[derive(Debug)]
pub(crate) struct DecodedState {
    pub(crate) map: MapState,
    pub(crate) scrub: Option<ScrubState>,
    pub(crate) segments: Vec<SegmentRecord>,
}

/// The state that bytes are.
///
/// # Errors
/// If they are none.
pub(crate) fn decode(bytes: &[u8]) -> Result<DecodedState, String> {
    let (length, rest) = bytes.split_first_chunk().ok_or("the state is too short")?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let (json, segments) = rest.split_at_checked(length).ok_or("the state's JSON is cut off")?;
    let wrong = |error| format!("the state: {error}");
    let mut json: Value = serde_json::from_slice(json).map_err(wrong)?;
    let scrub = json.as_object_mut().and_then(|members| members.remove("scrub"));
    let scrub = scrub.map(serde_json::from_value).transpose().map_err(wrong)?;
    let map: MapState = serde_json::from_value(json).map_err(wrong)?;
    let moments = usize::try_from(map.moments()).unwrap_or(usize::MAX);
    let length = moments.saturating_mul(size_of::<MomentRecord>());
    let cut = "the state's moments are cut off";
    let (moments, segments) = segments.split_at_checked(length).ok_or(cut)?;
    let moment = |chunk| MomentRecord::read_from_bytes(chunk).expect("64 bytes");
    let moments = moments.chunks_exact(size_of::<MomentRecord>()).map(moment).collect();
    let map = map.with_moments(moments);
    let chunks = segments.chunks_exact(size_of::<SegmentRecord>());
    if !chunks.remainder().is_empty() {
        return Err("the state's segments are cut off".into());
    }
    let record = |chunk| SegmentRecord::read_from_bytes(chunk).expect("24 bytes");
    Ok(DecodedState { map, scrub, segments: chunks.map(record).collect() })
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
