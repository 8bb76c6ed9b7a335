//! Keys of a registry.

use std::fmt;

use crate::error::RegistryError;
use crate::limits::KEY_BYTES_MAX;

/// A key: parts of letters, digits and `-_.`, with a slash before each, as in
/// `/vrio/ab12/nodes/io1`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

impl Key {
    /// Checks a key.
    ///
    /// # Errors
    /// When a part is empty or has another character, or the key is too long.
    pub fn new(text: impl Into<String>) -> Result<Self, RegistryError> {
        let text = text.into();
        let parts = text.strip_prefix('/');
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let is_part = |part: &str| !part.is_empty() && part.chars().all(is_plain);
        if !parts.is_some_and(|parts| parts.split('/').all(is_part)) {
            return Err(RegistryError::invalid(format!(
                "{text:?} is no key of a registry: each part has letters, digits and \"-_.\""
            )));
        }
        if text.len() > KEY_BYTES_MAX {
            let length = text.len();
            return Err(RegistryError::invalid(format!(
                "a key has at most {KEY_BYTES_MAX} bytes, and this one has {length}"
            )));
        }
        Ok(Self(text))
    }

    /// The key of this name below this key.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn below(&self, name: &str) -> Result<Self, RegistryError> {
        Self::new(format!("{self}/{name}"))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The beginning of all keys below this key, which no other key has.
    pub fn prefix(&self) -> String {
        format!("{}/", self.0)
    }

    /// Whether it is below another key.
    pub fn is_below(&self, above: &Self) -> bool {
        self.0.strip_prefix(&above.0).is_some_and(|rest| rest.starts_with('/'))
    }

    /// The last part.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_plain_and_bounded() {
        for good in ["/vrio/ab12/nodes/io1", "/a", "/a-b/c_d/e.f"] {
            assert_eq!(Key::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "a", "/", "/a/", "//a", "/a b", "/a\0", "/\u{e9}", "/a/../\n"] {
            assert!(Key::new(bad).is_err(), "{bad:?}");
        }
        let longest = format!("/{}", "a".repeat(KEY_BYTES_MAX - 1));
        let key = Key::new(longest).unwrap();
        assert!(key.below("b").is_err());
    }

    #[test]
    fn a_key_is_below_its_own_parts_alone() {
        let [nodes, node, other] =
            ["/nodes", "/nodes/io1", "/nodes2/io1"].map(|it| Key::new(it).unwrap());
        assert!(node.is_below(&nodes) && !other.is_below(&nodes) && !nodes.is_below(&nodes));
        assert_eq!(node.name(), "io1");
        assert_eq!(nodes.below("io1").unwrap(), node);
    }
}
