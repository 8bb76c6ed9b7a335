//! Address vectors: who others are by number. Both kinds count from 0 (in a map the numbers are
//! ours to choose).

use crate::abi::{
    AvAttr, AvOps, FI_ADDR_NOTAVAIL, FI_AV_MAP, FI_AV_TABLE, FI_AV_UNSPEC, FI_CLASS_AV, FI_EBUSY,
    FI_EINVAL, FI_ENOSYS, FI_EVENT, FI_MORE, FI_SYNC_ERR, Fid, FidAv, FidOps, no_call,
};
use crate::domain;
use crate::log::say;
use crate::object::{self, code};
use fabric::{ADDRESS_BYTES, Address};
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::slice;
use std::sync::Arc;

/// An address vector as C has it.
#[repr(C)]
pub(crate) struct Object {
    av: FidAv,
    domain: Arc<domain::Shared>,
    /// Its number in the domain.
    number: usize,
}

// SAFETY: it begins with its `Fid`, as C has it; no other type says this class.
unsafe impl object::Object for Object {
    const CLASS: usize = FI_CLASS_AV;
}

static FID: FidOps = object::only_close(close);

static OPS: AvOps = AvOps {
    size: size_of::<AvOps>(),
    insert,
    insertsvc: no_call,
    insertsym: no_call,
    remove,
    lookup,
    straddr,
    av_set: no_call,
    insert_auth_key: no_call,
    lookup_auth_key: no_call,
    set_user_id: no_call,
    lookup2: no_call,
};

impl Object {
    /// Its number, if it is of this domain.
    pub(crate) fn number(&self, domain: &Arc<domain::Shared>) -> Result<usize, c_int> {
        if Arc::ptr_eq(&self.domain, domain) { Ok(self.number) } else { Err(-FI_EINVAL) }
    }
}

/// Addresses by number, and the other way.
#[derive(Debug, Default)]
pub(crate) struct Vector {
    addresses: Vec<Option<Address>>,
    /// Numbers whose address was removed.
    holes: Vec<usize>,
    numbers: HashMap<Address, u64>,
}

impl Vector {
    pub(crate) fn insert(&mut self, address: Address) -> u64 {
        let number = self.holes.pop().unwrap_or_else(|| {
            self.addresses.push(None);
            self.addresses.len() - 1
        });
        self.addresses[number] = Some(address);
        let number = number as u64;
        // Of an address that has several numbers the first one is told.
        self.numbers.entry(address).or_insert(number);
        number
    }

    /// Whether it was there.
    pub(crate) fn remove(&mut self, number: u64) -> bool {
        let Ok(place) = usize::try_from(number) else { return false };
        let Some(address) = self.addresses.get_mut(place).and_then(Option::take) else {
            return false;
        };
        self.holes.push(place);
        if self.numbers.get(&address) == Some(&number) {
            let other = self.addresses.iter().position(|&entry| entry == Some(address));
            match other {
                Some(other) => self.numbers.insert(address, other as u64),
                None => self.numbers.remove(&address),
            };
        }
        true
    }

    /// Whose number it is.
    pub(crate) fn address(&self, number: u64) -> Option<Address> {
        *self.addresses.get(usize::try_from(number).ok()?)?
    }

    /// Which number somebody has.
    pub(crate) fn number(&self, address: &Address) -> u64 {
        self.numbers.get(address).copied().unwrap_or(FI_ADDR_NOTAVAIL)
    }
}

/// `fi_av_open`.
///
/// # Safety
/// As libfabric calls it: attributes that may be written, and room for a pointer.
pub(crate) unsafe extern "C" fn open(
    domain: &domain::Object,
    attr: *mut AvAttr,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's.
    let Some(attr) = (unsafe { attr.as_mut() }) else { return -FI_EINVAL };
    match attr.r#type {
        FI_AV_UNSPEC => attr.r#type = FI_AV_TABLE,
        FI_AV_MAP | FI_AV_TABLE => {}
        _ => return -FI_EINVAL,
    }
    if !attr.name.is_null() || attr.flags & FI_EVENT != 0 || attr.rx_ctx_bits != 0 {
        say!("address vectors with a name, with events or for scalable endpoints are not offered");
        return -FI_ENOSYS;
    }
    let domain = domain.share();
    let number = domain.state.with(|state| state.vectors.insert(Vector::default()));
    let av = FidAv { fid: object::fid::<Object>(context, &FID), ops: &OPS };
    // SAFETY: the caller's.
    unsafe { object::hand_out(Object { av, domain, number }, to) }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    let leave = |object: &Object| {
        object.domain.state.with(|state| {
            if state.endpoints.iter().any(|endpoint| endpoint.vector == Some(object.number)) {
                return Err(-FI_EBUSY);
            }
            state.vectors.remove(object.number);
            Ok(())
        })
    };
    // SAFETY: libfabric's contract: an object of ours, closed once.
    unsafe { object::close::<Object>(fid, leave) }
}

unsafe extern "C" fn insert(
    av: &Object,
    addresses: *const c_void,
    count: usize,
    numbers: *mut u64,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags & !(FI_MORE | FI_SYNC_ERR) != 0 {
        return -FI_EINVAL;
    }
    if count == 0 {
        return 0;
    }
    if addresses.is_null() || c_int::try_from(count).is_err() {
        return -FI_EINVAL;
    }
    let errors = if flags & FI_SYNC_ERR != 0 { context.cast::<c_int>() } else { ptr::null_mut() };
    // SAFETY: libfabric's contract: so many addresses, each as long as `fi_getname` says.
    let bytes = unsafe { slice::from_raw_parts(addresses.cast::<u8>(), count * ADDRESS_BYTES) };
    let mut inserted = 0;
    av.domain.state.with(|state| {
        let vector = state.vectors.of(av.number);
        for (index, bytes) in bytes.chunks_exact(ADDRESS_BYTES).enumerate() {
            let (number, error) = match Address::from_bytes(bytes) {
                Ok(address) => (vector.insert(address), 0),
                Err(error) => {
                    say!("{error}");
                    (FI_ADDR_NOTAVAIL, FI_EINVAL)
                }
            };
            inserted += c_int::from(error == 0);
            // SAFETY: libfabric's contract: null, or room for a number and an error for each.
            unsafe {
                if !numbers.is_null() {
                    numbers.add(index).write(number);
                }
                if !errors.is_null() {
                    errors.add(index).write(error);
                }
            }
        }
    });
    inserted
}

unsafe extern "C" fn remove(av: &Object, numbers: *mut u64, count: usize, flags: u64) -> c_int {
    if flags != 0 || (numbers.is_null() && count != 0) {
        return -FI_EINVAL;
    }
    let removed = av.domain.state.with(|state| {
        let vector = state.vectors.of(av.number);
        // SAFETY: libfabric's contract: so many numbers.
        (0..count).filter(|&index| vector.remove(unsafe { numbers.add(index).read() })).count()
    });
    if removed == count { 0 } else { -FI_EINVAL }
}

unsafe extern "C" fn lookup(av: &Object, number: u64, to: *mut c_void, bytes: *mut usize) -> c_int {
    let address = av.domain.state.with(|state| state.vectors.of(av.number).address(number));
    // SAFETY: libfabric's contract: a length, and room for so much.
    code(address.ok_or(-FI_EINVAL).map(|address| unsafe { tell(address, to, bytes) }).map(drop))
}

/// Copies as much of an address as there is room for, and says how long it is; whether all of it
/// found room.
///
/// # Safety
/// There is room for `*bytes` at `to`.
pub(crate) unsafe fn tell(address: Address, to: *mut c_void, bytes: *mut usize) -> bool {
    let told = address.to_bytes();
    // SAFETY: the caller's.
    unsafe {
        let room = if to.is_null() { 0 } else { bytes.read() };
        to.cast::<u8>().copy_from_nonoverlapping(told.as_ptr(), room.min(told.len()));
        bytes.write(told.len());
        room >= told.len()
    }
}

/// As a person reads it: host, slot, and the how-manieth that has the slot.
unsafe extern "C" fn straddr(
    _: &Object,
    address: *const c_void,
    buffer: *mut c_char,
    bytes: *mut usize,
) -> *const c_char {
    // SAFETY: libfabric's contract: an address.
    let told = unsafe { slice::from_raw_parts(address.cast::<u8>(), ADDRESS_BYTES) };
    let text = match Address::from_bytes(told) {
        Ok(Address { host, incarnation, slot }) => {
            format!("vrio://{host:016x}/{slot}.{incarnation}")
        }
        Err(_) => String::from("vrio://?"),
    };
    // SAFETY: libfabric's contract: a length, and room for so much.
    unsafe {
        object::write_text(text.as_bytes(), buffer, bytes.read());
        bytes.write(text.len() + 1);
    }
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(slot: u16) -> Address {
        Address { host: 1, incarnation: 1, slot }
    }

    #[test]
    fn numbers_count_up_and_are_used_again() {
        let mut vector = Vector::default();
        for slot in 0..4 {
            assert_eq!(vector.insert(address(slot)), u64::from(slot));
        }
        assert!(vector.remove(2));
        assert!(!vector.remove(2), "it is gone");
        assert_eq!(vector.address(2), None);
        assert_eq!(vector.insert(address(9)), 2);
        assert_eq!(vector.address(2), Some(address(9)));
        assert_eq!(vector.address(4), None);
        assert_eq!(vector.address(FI_ADDR_NOTAVAIL), None);
    }

    #[test]
    fn a_source_is_known_by_its_first_number_that_is_left() {
        let mut vector = Vector::default();
        vector.insert(address(5));
        vector.insert(address(5));
        assert_eq!(vector.number(&address(5)), 0);
        assert!(vector.remove(0));
        assert_eq!(vector.number(&address(5)), 1);
        assert!(vector.remove(1));
        assert_eq!(vector.number(&address(5)), FI_ADDR_NOTAVAIL);
    }

    #[test]
    fn an_address_is_told_as_far_as_there_is_room_and_its_length_always() {
        let mut room = [0xee_u8; ADDRESS_BYTES];
        for short in [0, 7, ADDRESS_BYTES] {
            let mut bytes = short;
            // SAFETY: there is room for `short` bytes.
            let whole = unsafe { tell(address(3), room.as_mut_ptr().cast(), &raw mut bytes) };
            assert_eq!((whole, bytes), (short == ADDRESS_BYTES, ADDRESS_BYTES));
            assert!(room[short..].iter().all(|&byte| byte == 0xee));
        }
        assert_eq!(Address::from_bytes(&room), Ok(address(3)));
    }
}
