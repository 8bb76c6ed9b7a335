//! Calls that are not offered: each is refused by a call that says so.

use super::words::{FI_ENOSYS, FI_EOPNOTSUPP};

/// A call that is refused. libfabric's calls return a negative number and their arguments are the
/// caller's to clear away, so one function stands for all of them, whatever they are called with.
pub(crate) type Refuse = extern "C" fn() -> isize;

/// There is no such call here.
pub(crate) extern "C" fn no_call() -> isize {
    -(FI_ENOSYS as isize)
}

/// There is no such thing here (writes to remote memory, atomics).
pub(crate) extern "C" fn not_offered() -> isize {
    -(FI_EOPNOTSUPP as isize)
}
