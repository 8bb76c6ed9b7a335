//! Address vectors: the addresses of other endpoints by number. Both kinds of vectors count from 0.
//! In a map (`FI_AV_MAP`) the provider may choose the numbers.

mod vector;

pub(crate) use vector::AddressVector;

use crate::abi::{
    AvAttr, AvOps, FI_ADDR_NOTAVAIL, FI_AV_MAP, FI_AV_TABLE, FI_AV_UNSPEC, FI_CLASS_AV, FI_EBUSY,
    FI_EINVAL, FI_ENOMEM, FI_ENOSYS, FI_EVENT, FI_MORE, FI_SYNC_ERR, Fid, FidAv, FidOps, no_call,
};
use crate::domain::{DomainObject, DomainShared};
use crate::log::say;
use crate::object::{self, code};
use fabric::{ADDRESS_BYTES, Address};
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::slice;
use std::sync::Arc;

/// An address vector as C sees it.
#[repr(C)]
pub(crate) struct AvObject {
    av: FidAv<Self>,
    domain: Arc<DomainShared>,
    /// The vector's number in the domain.
    number: usize,
}

// SAFETY: the type begins with its `Fid` in C's layout; no other type has this class.
unsafe impl object::FidObject for AvObject {
    const CLASS: usize = FI_CLASS_AV;
}

static FID: FidOps = object::only_close(close);

static OPS: AvOps<AvObject> = AvOps {
    size: size_of::<AvOps<AvObject>>(),
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

impl AvObject {
    /// The vector's number, if it is of this domain.
    pub(crate) fn number(&self, domain: &Arc<DomainShared>) -> Result<usize, c_int> {
        if Arc::ptr_eq(&self.domain, domain) { Ok(self.number) } else { Err(-FI_EINVAL) }
    }
}

/// `fi_av_open`.
///
/// # Safety
/// As libfabric calls it: attributes that may be written, and room for a pointer.
pub(crate) unsafe extern "C" fn open(
    domain: &DomainObject,
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
    let number = domain.state.with(|state| state.vectors.insert(AddressVector::default()));
    let av = FidAv { fid: object::fid::<AvObject>(context, &FID), ops: &OPS };
    // SAFETY: the caller's.
    unsafe { object::hand_out(AvObject { av, domain, number }, to) }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    let leave = |object: &AvObject| {
        object.domain.state.with(|state| {
            if state.endpoints.iter().any(|endpoint| endpoint.vector == Some(object.number)) {
                return Err(-FI_EBUSY);
            }
            state.vectors.remove(object.number);
            Ok(())
        })
    };
    // SAFETY: libfabric's contract: an object of ours, closed once.
    unsafe { object::close::<AvObject>(fid, leave) }
}

unsafe extern "C" fn insert(
    av: &AvObject,
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
            let (number, error) = insert_address(vector, bytes);
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

/// Inserts an address. Returns its number and libfabric's error, 0 for none.
fn insert_address(vector: &mut AddressVector, bytes: &[u8]) -> (u64, c_int) {
    let address = match Address::from_bytes(bytes) {
        Ok(address) => address,
        Err(error) => {
            say!("{error}");
            return (FI_ADDR_NOTAVAIL, FI_EINVAL);
        }
    };
    match vector.insert(address) {
        Ok(number) => (number, 0),
        Err(error) => {
            say!("{error}");
            (FI_ADDR_NOTAVAIL, FI_ENOMEM)
        }
    }
}

unsafe extern "C" fn remove(av: &AvObject, numbers: *mut u64, count: usize, flags: u64) -> c_int {
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

unsafe extern "C" fn lookup(
    av: &AvObject,
    number: u64,
    to: *mut c_void,
    bytes: *mut usize,
) -> c_int {
    let address = av.domain.state.with(|state| state.vectors.of(av.number).address(number));
    // SAFETY: libfabric's contract: a length, and room for so much.
    code(
        address
            .ok_or(-FI_EINVAL)
            .map(|address| unsafe { write_address(address, to, bytes) })
            .map(drop),
    )
}

/// Copies as much of an address as there is room for, and writes its whole length. Returns whether
/// all of it found room.
///
/// # Safety
/// There is room for `*bytes` at `to`.
pub(crate) unsafe fn write_address(address: Address, to: *mut c_void, bytes: *mut usize) -> bool {
    let whole = address.to_bytes();
    // SAFETY: the caller's.
    unsafe {
        let room = if to.is_null() { 0 } else { bytes.read() };
        to.cast::<u8>().copy_from_nonoverlapping(whole.as_ptr(), room.min(whole.len()));
        bytes.write(whole.len());
        room >= whole.len()
    }
}

/// The text of an address: host, slot, and incarnation, which counts the owners of the slot.
unsafe extern "C" fn straddr(
    _: &AvObject,
    address: *const c_void,
    buffer: *mut c_char,
    bytes: *mut usize,
) -> *const c_char {
    // SAFETY: libfabric's contract: an address.
    let address = unsafe { slice::from_raw_parts(address.cast::<u8>(), ADDRESS_BYTES) };
    let text = match Address::from_bytes(address) {
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
    fn bytes_that_are_no_address_have_no_number() {
        let mut vector = AddressVector::default();
        assert_eq!(insert_address(&mut vector, &[1; ADDRESS_BYTES]), (FI_ADDR_NOTAVAIL, FI_EINVAL));
        assert_eq!(insert_address(&mut vector, &address(5).to_bytes()), (0, 0));
    }

    #[test]
    fn an_address_is_cut_to_the_room_and_its_length_is_not() {
        let mut room = [0xee_u8; ADDRESS_BYTES];
        for short in [0, 7, ADDRESS_BYTES] {
            let mut bytes = short;
            // SAFETY: there is room for `short` bytes.
            let whole =
                unsafe { write_address(address(3), room.as_mut_ptr().cast(), &raw mut bytes) };
            assert_eq!((whole, bytes), (short == ADDRESS_BYTES, ADDRESS_BYTES));
            assert!(room[short..].iter().all(|&byte| byte == 0xee));
        }
        assert_eq!(Address::from_bytes(&room), Ok(address(3)));
    }
}
