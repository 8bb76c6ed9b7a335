//! The functions that stand in the tables for calls that are not offered.

use super::constants::{FI_ENOSYS, FI_EOPNOTSUPP};

/// A call that is refused. All calls return a negative number for an error, and in C the caller
/// removes the arguments. So one function can stand for calls with any arguments.
pub(crate) type Refuse = extern "C" fn() -> isize;

/// Refuses a call that the provider does not have.
pub(crate) extern "C" fn no_call() -> isize {
    -(FI_ENOSYS as isize)
}

/// Refuses an operation that the provider does not offer (writes to remote memory, atomics).
pub(crate) extern "C" fn not_offered() -> isize {
    -(FI_EOPNOTSUPP as isize)
}
