//! The provider's objects. C knows an object by its address: each is in a box of its own, and its
//! first field has C's layout.

use crate::abi::{FI_EINVAL, FI_ENOENT, FI_ENOSYS, Fid, FidOps, no_call};
use std::ffi::{CStr, c_char, c_int, c_void};

/// An object of the provider.
///
/// # Safety
/// The type begins with a [`Fid`] and has C's layout. Objects of class `CLASS` are of this type and
/// of no other.
pub(crate) unsafe trait FidObject: Sized {
    /// The `fclass` of its objects.
    const CLASS: usize;
}

/// The first field of an object.
pub(crate) fn fid<T: FidObject>(context: *mut c_void, ops: &'static FidOps) -> Fid {
    Fid { fclass: T::CLASS, context, ops }
}

/// Gives a new object to the program: writes a pointer to it.
///
/// # Safety
/// There is room for a pointer at `to`.
pub(crate) unsafe fn hand_out<T: FidObject>(object: T, to: *mut *mut Fid) -> c_int {
    let object = Box::into_raw(Box::new(object)).cast();
    // SAFETY: the caller's.
    unsafe { to.write(object) };
    0
}

/// The object at a pointer of the program, if it is of this type.
///
/// # Safety
/// The pointer is null, or an object of ours that has not been closed.
pub(crate) unsafe fn find<'a, T: FidObject>(fid: *mut Fid) -> Result<&'a T, c_int> {
    // SAFETY: the caller's: every object of ours begins with a `Fid`.
    let class = unsafe { fid.as_ref() }.ok_or(-FI_EINVAL)?.fclass;
    if class != T::CLASS {
        return Err(-FI_EINVAL);
    }
    // SAFETY: an object of this class is of this type, as `FidObject` promises.
    Ok(unsafe { &*fid.cast::<T>() })
}

/// Closes an object, unless `leave` says that it is still in use.
///
/// # Safety
/// As for [`find`]; the program does not use the object any more.
pub(crate) unsafe fn close<T: FidObject>(
    fid: *mut Fid,
    leave: impl FnOnce(&T) -> Result<(), c_int>,
) -> c_int {
    // SAFETY: the caller's.
    match unsafe { find::<T>(fid) }.and_then(leave) {
        Ok(()) => {
            // SAFETY: `hand_out` made it from a box of this type, and it is closed once.
            drop(unsafe { Box::from_raw(fid.cast::<T>()) });
            0
        }
        Err(error) => error,
    }
}

/// The table of an object that has no calls but the one that closes it.
pub(crate) const fn only_close(close: crate::abi::Close) -> FidOps {
    FidOps {
        size: size_of::<FidOps>(),
        close,
        bind: no_bind,
        control: no_control,
        ops_open: no_call,
        tostr: no_call,
        ops_set: no_call,
    }
}

/// The call of an object that binds nothing.
pub(crate) extern "C" fn no_bind(_: *mut Fid, _: *mut Fid, _: u64) -> c_int {
    -FI_ENOSYS
}

/// The call of an object that has no commands.
pub(crate) extern "C" fn no_control(_: *mut Fid, _: c_int, _: *mut c_void) -> c_int {
    -FI_ENOSYS
}

/// The value that a call returns to C.
pub(crate) fn outcome(result: Result<(), c_int>) -> isize {
    result.err().unwrap_or(0) as isize
}

/// The same for calls that give an `int`.
pub(crate) fn code(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(0)
}

/// Copies a text into a buffer of the program, cut to its length and ended by a zero.
///
/// # Safety
/// `buffer` is null or has room for `bytes`, and is not memory of ours.
pub(crate) unsafe fn write_text(text: &[u8], buffer: *mut c_char, bytes: usize) {
    if !buffer.is_null() && bytes > 0 {
        let length = text.len().min(bytes - 1);
        // SAFETY: the caller's, and `length` + 1 is at most `bytes`.
        unsafe {
            buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), length);
            buffer.add(length).write(0);
        }
    }
}

/// The text of an error of ours (`fi_cq_strerror`), which is also copied into the program's buffer.
///
/// # Safety
/// As for [`write_text`].
pub(crate) unsafe fn explain(
    error: &'static CStr,
    buffer: *mut c_char,
    bytes: usize,
) -> *const c_char {
    // SAFETY: the caller's.
    unsafe { write_text(error.to_bytes(), buffer, bytes) };
    error.as_ptr()
}

/// The objects of one kind by number. The number of a removed object is used again.
#[derive(Debug)]
pub(crate) struct ObjectTable<T>(Vec<Option<T>>);

impl<T> ObjectTable<T> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn insert(&mut self, object: T) -> usize {
        if let Some(free) = self.0.iter().position(Option::is_none) {
            self.0[free] = Some(object);
            return free;
        }
        self.0.push(Some(object));
        self.0.len() - 1
    }

    /// The object of this number. The provider chooses the numbers, so a number without an object
    /// is a mistake of ours.
    #[inline]
    pub(crate) fn of(&mut self, number: usize) -> &mut T {
        self.0[number].as_mut().expect("its object is open")
    }

    /// The object of this number, if it is still open.
    pub(crate) fn get(&mut self, number: usize) -> Option<&mut T> {
        self.0.get_mut(number)?.as_mut()
    }

    pub(crate) fn remove(&mut self, number: usize) -> Option<T> {
        self.0.get_mut(number).and_then(Option::take)
    }

    /// All numbers that were ever given.
    pub(crate) fn numbers(&self) -> std::ops::Range<usize> {
        0..self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().flatten()
    }
}

/// The program names an operation that does not exist.
pub(crate) const NOT_FOUND: c_int = -FI_ENOENT;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_used_again_only_when_its_object_is_gone() {
        let mut slots = ObjectTable::new();
        assert_eq!([slots.insert('a'), slots.insert('b'), slots.insert('c')], [0, 1, 2]);
        assert_eq!(slots.remove(1), Some('b'));
        assert_eq!(slots.remove(1), None);
        assert_eq!(slots.insert('d'), 1);
        assert_eq!(*slots.of(1), 'd');
        assert_eq!(slots.iter().collect::<String>(), "adc");
    }

    #[test]
    fn an_explanation_fits_the_buffer_and_ends() {
        let mut buffer = [1; 4];
        // SAFETY: the buffer has the four bytes.
        let whole = unsafe { explain(c"cancelled", buffer.as_mut_ptr(), 4) };
        assert_eq!(buffer.map(|byte| byte.cast_unsigned()), *b"can\0");
        // SAFETY: it is a constant of ours.
        assert_eq!(unsafe { CStr::from_ptr(whole) }, c"cancelled");
        // SAFETY: no buffer.
        unsafe { explain(c"cancelled", std::ptr::null_mut(), 9) };
    }
}
