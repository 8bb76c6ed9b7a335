//! The compression of a volume of a pool, as it is configured.

use std::fmt;
use std::str::FromStr;

use store::PageCompression;

/// The compression of a volume's pages; none at all is a choice as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeCompression(pub Option<PageCompression>);

impl fmt::Display for VolumeCompression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("none"),
            Some(compression) => compression.fmt(f),
        }
    }
}

impl FromStr for VolumeCompression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(None)),
            text => Ok(Self(Some(text.parse().map_err(|error| format!("{error}; or none"))?))),
        }
    }
}
