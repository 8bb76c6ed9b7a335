//! The names of volumes, attachments and nodes, as messages and records have them.

use std::fmt;

/// The longest name of a volume, an attachment or a node: three fit a message's head.
pub const NAME_BYTES_MAX: usize = 63;

/// The name of a node or of an attachment, as records have it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name([u8; NAME_BYTES_MAX + 1]);

impl Name {
    /// The beginning of `name`, as far as there is room; names are checked by the configuration
    /// and by the handshake.
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; NAME_BYTES_MAX + 1];
        let len = name.floor_char_boundary(NAME_BYTES_MAX);
        bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
        Self(bytes)
    }

    /// From what [`Self::bytes`] gave; `None` for anything else.
    pub fn from_bytes(bytes: [u8; NAME_BYTES_MAX + 1]) -> Option<Self> {
        let len = bytes.iter().position(|&byte| byte == 0)?;
        let is_filled = bytes[len..].iter().all(|&byte| byte == 0);
        (is_filled && std::str::from_utf8(&bytes[..len]).is_ok()).then_some(Self(bytes))
    }

    /// The name, filled with zeroes.
    pub fn bytes(&self) -> &[u8; NAME_BYTES_MAX + 1] {
        &self.0
    }

    /// The name; empty where it is not known.
    pub fn as_str(&self) -> &str {
        let len = self.0.iter().position(|&byte| byte == 0).unwrap_or(0);
        std::str::from_utf8(&self.0[..len]).unwrap_or_default()
    }
}

impl Default for Name {
    fn default() -> Self {
        Self([0; NAME_BYTES_MAX + 1])
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.as_str().is_empty() { "another node" } else { self.as_str() })
    }
}
