//! The addresses of a vector by number.

use crate::abi::FI_ADDR_NOTAVAIL;
use fabric::{Address, AddressTable, AddressTableFull};

/// Addresses by number, and the other way.
#[derive(Debug, Default)]
pub(crate) struct AddressVector(AddressTable);

impl AddressVector {
    pub(crate) fn insert(&mut self, address: Address) -> Result<u64, AddressTableFull> {
        self.0.insert(address).map(u64::from)
    }

    /// Whether it was there.
    pub(crate) fn remove(&mut self, number: u64) -> bool {
        u32::try_from(number).is_ok_and(|number| self.0.remove(number))
    }

    /// Whose number it is.
    pub(crate) fn address(&self, number: u64) -> Option<Address> {
        self.0.address(u32::try_from(number).ok()?)
    }

    /// Which number somebody has.
    pub(crate) fn number(&mut self, address: &Address) -> u64 {
        self.0.number(address).map_or(FI_ADDR_NOTAVAIL, u64::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: Address = Address { host: 1, incarnation: 1, slot: 5 };

    #[test]
    fn numbers_beyond_any_are_nobodys() {
        let mut vector = AddressVector::default();
        assert_eq!(vector.insert(ADDRESS), Ok(0));
        // The lower half of it is a number that is there.
        let beyond = 1 << 32;
        for number in [1, beyond, FI_ADDR_NOTAVAIL] {
            assert_eq!((vector.address(number), vector.remove(number)), (None, false));
        }
        assert_eq!(vector.number(&ADDRESS), 0);
        assert!(vector.remove(0));
        assert_eq!(vector.number(&ADDRESS), FI_ADDR_NOTAVAIL);
    }
}
