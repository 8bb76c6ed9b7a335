//! The addresses of a vector by number.

use crate::abi::FI_ADDR_NOTAVAIL;
use fabric::{Address, AddressTable, AddressTableFull};

/// Addresses by number, and numbers by address.
#[derive(Debug, Default)]
pub(crate) struct AddressVector(AddressTable);

impl AddressVector {
    pub(crate) fn insert(&mut self, address: Address) -> Result<u64, AddressTableFull> {
        self.0.insert(address).map(u64::from)
    }

    /// Removes the address of this number. `false`: there is none.
    pub(crate) fn remove(&mut self, number: u64) -> bool {
        u32::try_from(number).is_ok_and(|number| self.0.remove(number))
    }

    /// The address that has this number.
    pub(crate) fn address(&self, number: u64) -> Option<Address> {
        self.0.address(u32::try_from(number).ok()?)
    }

    /// The number of an address, `FI_ADDR_NOTAVAIL` if it has none.
    pub(crate) fn number(&mut self, address: &Address) -> u64 {
        self.0.number(address).map_or(FI_ADDR_NOTAVAIL, u64::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: Address = Address { host: 1, incarnation: 1, slot: 5 };

    #[test]
    fn numbers_that_were_never_given_have_no_address() {
        let mut vector = AddressVector::default();
        assert_eq!(vector.insert(ADDRESS), Ok(0));
        // Its lower half is a number that was given.
        let beyond = 1 << 32;
        for number in [1, beyond, FI_ADDR_NOTAVAIL] {
            assert_eq!((vector.address(number), vector.remove(number)), (None, false));
        }
        assert_eq!(vector.number(&ADDRESS), 0);
        assert!(vector.remove(0));
        assert_eq!(vector.number(&ADDRESS), FI_ADDR_NOTAVAIL);
    }
}
