//! A volume's record as text, for questions to a node's agent.

use data_encoding::HEXLOWER;
use replica::VolumeRecord;
use replica::wire::{decode_record, encode_record};

/// The record in hexadecimal digits.
pub fn record_text(record: &VolumeRecord) -> String {
    HEXLOWER.encode(&encode_record(record))
}

/// The record of a text that [`record_text`] gave.
///
/// # Errors
/// Why the text is none.
pub fn record_from_text(text: &str) -> Result<VolumeRecord, String> {
    let bytes = HEXLOWER.decode(text.as_bytes()).map_err(|error| format!("no record: {error}"))?;
    decode_record(&bytes).map_err(|error| format!("no record: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_from_its_text_and_other_texts_are_refused() {
        let record = VolumeRecord::first(3, [(1, 7), (3, u64::MAX)].into());
        let text = record_text(&record);
        assert_eq!(record_from_text(&text), Ok(record));
        for wrong in ["", "0", "zz", &text[2..], &format!("{text}00"), &text.to_uppercase()] {
            if wrong != text {
                assert!(record_from_text(wrong).is_err(), "{wrong}");
            }
        }
    }
}
