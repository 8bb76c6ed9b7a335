//! Where an endpoint is: which host, which slot there, and the how-manieth that has the slot.

/// The bytes of an address, as programs hand it to each other (MPI has room for 64).
pub const ADDRESS_BYTES: usize = 16;

/// An endpoint of a domain, anywhere. Little-endian in [`ADDRESS_BYTES`]: host (8 bytes),
/// incarnation (4), slot (2), zero (2).
///
/// An address is never used again for another endpoint: a slot's next owner has another
/// incarnation, so that what was meant for the one before fails instead of arriving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The node's random name of this host, not zero.
    pub host: u64,
    /// Which of those that have had the slot; from 1.
    pub incarnation: u32,
    /// The slot in the domain's region on that host.
    pub slot: u16,
}

/// Why bytes are no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// Too few or too many.
    #[error("an address has {ADDRESS_BYTES} bytes, not {0}")]
    Length(usize),
    /// Fields that no endpoint has.
    #[error("these bytes are not an endpoint's address; use the bytes that `fi_getname` gave")]
    Foreign,
}

impl Address {
    /// As others are told it.
    pub fn to_bytes(self) -> [u8; ADDRESS_BYTES] {
        let mut bytes = [0; ADDRESS_BYTES];
        bytes[..8].copy_from_slice(&self.host.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.slot.to_le_bytes());
        bytes
    }

    /// From what another one was told.
    ///
    /// # Errors
    /// When no endpoint can have this address.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, AddressError> {
        let bytes: [u8; ADDRESS_BYTES] =
            bytes.try_into().map_err(|_| AddressError::Length(bytes.len()))?;
        let [h @ .., i0, i1, i2, i3, s0, s1, z0, z1] = bytes;
        let host = u64::from_le_bytes(h);
        let incarnation = u32::from_le_bytes([i0, i1, i2, i3]);
        if host == 0 || incarnation == 0 || [z0, z1] != [0, 0] {
            return Err(AddressError::Foreign);
        }
        Ok(Self { host, incarnation, slot: u16::from_le_bytes([s0, s1]) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_being_told() {
        let address = Address { host: 0x0102_0304_0506_0708, incarnation: 9, slot: 300 };
        assert_eq!(Address::from_bytes(&address.to_bytes()), Ok(address));
        assert_eq!(Address::from_bytes(&[0; 16]), Err(AddressError::Foreign));
        assert_eq!(Address::from_bytes(&[1; 16]), Err(AddressError::Foreign), "zeroes are kept");
        assert_eq!(Address::from_bytes(&[1; 15]), Err(AddressError::Length(15)));
    }
}
