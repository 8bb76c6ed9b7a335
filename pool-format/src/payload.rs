//! Where the payload of a row's records is.
//!
//! ```text
//! head │ whole pages, a block each │ packed pages, sector behind sector │ zeroes │
//! ```

use super::place::{BLOCK_SECTORS, BlockPlace, PageForm};
use super::record::LogRecord;

/// Where a payload begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadPlace {
    /// The block.
    pub place: BlockPlace,
    /// The sector in it; 0 unless the page is packed.
    pub offset: u8,
}

/// The place of each record's payload in the row whose head is at `head`; the head's for a record
/// that has none. The blocks of the row are in one segment.
pub fn payload_places(
    head: BlockPlace,
    records: &[LogRecord],
) -> impl Iterator<Item = PayloadPlace> {
    let sectors = u32::from(BLOCK_SECTORS);
    let mut whole = u32::from(head.block);
    let mut packed = (whole + 1 + count(records).0) * sectors;
    records.iter().map(move |record| match record.form() {
        None => PayloadPlace { place: head, offset: 0 },
        Some(form) if form.is_packed() => {
            let at = packed;
            packed += u32::from(form.sectors);
            let place = BlockPlace { block: (at / sectors) as u16, ..head };
            PayloadPlace { place, offset: (at % sectors) as u8 }
        }
        Some(_) => {
            whole += 1;
            PayloadPlace { place: BlockPlace { block: whole as u16, ..head }, offset: 0 }
        }
    })
}

/// The blocks of payload of a row with these records.
pub fn payload_blocks(records: &[LogRecord]) -> u32 {
    let (whole, packed) = count(records);
    whole + packed.div_ceil(u32::from(BLOCK_SECTORS))
}

/// Whole pages, and sectors of packed ones.
fn count(records: &[LogRecord]) -> (u32, u32) {
    let forms = records.iter().filter_map(LogRecord::form);
    forms.fold((0, 0), |(whole, packed), form: PageForm| match form.is_packed() {
        true => (whole, packed + u32::from(form.sectors)),
        false => (whole + 1, packed),
    })
}
