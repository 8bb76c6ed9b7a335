//! Keys open what they have sealed, and nothing else.

use super::{DataKey, PageKey, SealEntropy, SealFamilyName, SealKeys, UnwrapError};
use super::{WrappedKey, WrappingKey};

const NAME: SealFamilyName = SealFamilyName { pool: [1; 16], family: [2; 16] };

fn wrapping(id: &str) -> WrappingKey {
    WrappingKey::new(id, id.as_bytes())
}

fn page_key(name: &SealFamilyName, version: u32, salt: u128) -> PageKey {
    PageKey::new(&DataKey::new(&[7; 32]), name, version, salt)
}

#[test]
fn a_data_key_opens_with_its_wrapping_key_family_and_version_alone() {
    let wrapped = WrappedKey::wrap(&DataKey::new(&[7; 32]), &wrapping("a"), &NAME, 1, [9; 12]);
    assert!(wrapped.is_possible());
    let data = wrapped.unwrap(&wrapping("a"), &NAME).expect("its key");
    assert_eq!(**data.0, [7; 32]);
    let error = |wrapped: &WrappedKey, key: &WrappingKey, name: &SealFamilyName| {
        wrapped.unwrap(key, name).expect_err("it is another one")
    };
    assert_eq!(error(&wrapped, &wrapping("b"), &NAME), UnwrapError::OtherKey);
    // The name of the right key, and another secret.
    let forged = WrappingKey::new("a", b"b");
    assert_eq!(error(&wrapped, &forged, &NAME), UnwrapError::Damaged);
    for name in
        [SealFamilyName { pool: [3; 16], ..NAME }, SealFamilyName { family: [3; 16], ..NAME }]
    {
        assert_eq!(error(&wrapped, &wrapping("a"), &name), UnwrapError::Damaged);
    }
    let later = WrappedKey { version: 2, ..wrapped.clone() };
    assert_eq!(error(&later, &wrapping("a"), &NAME), UnwrapError::Damaged);
    let cut = WrappedKey { sealed: wrapped.sealed[2..].to_owned(), ..wrapped };
    assert!(!cut.is_possible());
    assert_eq!(error(&cut, &wrapping("a"), &NAME), UnwrapError::Damaged);
}

#[test]
fn a_page_opens_where_it_was_sealed_and_nowhere_else() {
    let key = page_key(&NAME, 1, 5);
    let text = [0x5a; 4096];
    let mut sealed = text;
    let tag = key.seal(77, 1000, &mut sealed);
    assert!(!sealed.windows(8).any(|part| part == &text[..8]), "it is in clear");
    let opens = |key: &PageKey, number, sequence, change: usize| {
        let mut page = sealed;
        if change < page.len() {
            page[change] ^= 1;
        }
        let is_open = key.open(number, sequence, &tag, &mut page);
        assert!(!is_open || page == text);
        is_open
    };
    assert!(opens(&key, 77, 1000, 4096));
    assert!(!opens(&key, 78, 1000, 4096) && !opens(&key, 77, 1001, 4096));
    assert!(!opens(&key, 77, 1000, 0) && !opens(&key, 77, 1000, 4095));
    let other = SealFamilyName { family: [3; 16], ..NAME };
    for key in [page_key(&NAME, 2, 5), page_key(&NAME, 1, 6), page_key(&other, 1, 5)] {
        assert!(!opens(&key, 77, 1000, 4096), "another key");
    }
}

#[test]
fn no_secret_is_shown() {
    let data = DataKey::new(&[0xab; 32]);
    let key = wrapping("its name");
    let entropy = SealEntropy::new([0xab; SealEntropy::BYTES].into());
    let mut keys = SealKeys::default();
    keys.insert(1, 1, NAME, data.clone());
    keys.page(1, 1, 9).expect("its data key is there");
    let shown = format!("{data:?} {key:?} {entropy:?} {keys:?}");
    assert!(shown.contains("its name"), "{shown}");
    assert!(!shown.contains("171") && !shown.contains("ab, ab") && !shown.contains("abab"));
}

#[test]
fn a_proposed_key_is_used_only_if_it_is_adopted() {
    let mut keys = SealKeys::default();
    let wrap = |byte| {
        let data = DataKey::new(&[byte; 32]);
        (WrappedKey::wrap(&data, &wrapping("a"), &NAME, 2, [byte; 12]), data)
    };
    let ((first, one), (second, other)) = (wrap(1), wrap(2));
    keys.propose(5, first.clone(), NAME, one);
    keys.propose(5, second.clone(), NAME, other);
    assert!(keys.data(5, 2).is_none());
    keys.adopt(5, &first);
    assert_eq!(keys.data(5, 2).map(|key| **key.0), Some([1; 32]));
    keys.adopt(5, &second);
    assert_eq!(keys.data(5, 2).map(|key| **key.0), Some([1; 32]), "it was forgotten");
}
