//! A volume's record and its form as text, for questions to a node's agent.

use data_encoding::HEXLOWER;
use replica::VolumeRecord;
use replica::wire::{decode_record, encode_record};

use crate::form::VolumeForm;

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

/// The form in hexadecimal digits.
pub fn form_text(form: VolumeForm) -> String {
    HEXLOWER.encode(&form.0)
}

/// The form of a text that [`form_text`] gave.
///
/// # Errors
/// Why the text is none.
pub fn form_from_text(text: &str) -> Result<VolumeForm, String> {
    let bytes = HEXLOWER.decode(text.as_bytes()).map_err(|error| format!("no form: {error}"))?;
    bytes.try_into().map(VolumeForm).map_err(|_| "no form: it has another length".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_from_its_text_and_other_texts_are_refused() {
        let record = VolumeRecord::first(3, [(1, 7), (3, u64::MAX)].into());
        let form = VolumeForm([7; 16]);
        assert_eq!(form_from_text(&form_text(form)), Ok(form));
        assert!(form_from_text("").is_err() && form_from_text("07").is_err());
        let text = record_text(&record);
        assert_eq!(record_from_text(&text), Ok(record));
        for wrong in ["", "0", "zz", &text[2..], &format!("{text}00"), &text.to_uppercase()] {
            if wrong != text {
                assert!(record_from_text(wrong).is_err(), "{wrong}");
            }
        }
    }
}
