//! Failures of messages, in libfabric's numbers.
//!
//! | failure | libfabric's number | when |
//! | --- | --- | --- |
//! | busy | `FI_EAGAIN`, returned | no more messages may wait for room: make progress, call again |
//! | gone | `FI_ECONNRESET` | the other endpoint's process ended, or its slot has another owner |
//! | unreachable | `FI_EHOSTUNREACH`, returned | the address is on a host that cannot be reached |
//! | too long | `FI_EMSGSIZE`, returned | longer than a message, or an injected one, can be |
//! | too many parts | `FI_EINVAL`, returned | more than `iov_limit` |
//! | truncated | `FI_ETRUNC` | the message was longer than the buffer |
//! | cancelled | `FI_ECANCELED` | by `fi_cancel` |
//! | no message | `FI_ENOMSG` | a peek found nothing; never returned: Open MPI gives up then |
//! | not read | `FI_EACCES` | the memory is not registered for reading, or is shorter |
//! | nonsense | `FI_EPROTO`, also returned | the other endpoint's slot breaks the region's rules |

use crate::abi::{
    FI_EACCES, FI_EAGAIN, FI_ECANCELED, FI_ECONNRESET, FI_EHOSTUNREACH, FI_EINVAL, FI_EIO,
    FI_EMSGSIZE, FI_ENOMSG, FI_EPROTO, FI_ETRUNC,
};
use crate::cq::OperationFailure;
use fabric::{ReceiveError, RequestFailure, SendError};
use std::ffi::{CStr, c_int};

/// The texts of our own numbers of failures (`prov_errno`), which begin at 1.
const TEXTS: [&CStr; 7] = [
    c"the message was longer than the buffer",
    c"cancelled",
    c"no such message has arrived",
    c"the other endpoint is gone: its process ended",
    c"the other endpoint wrote invalid data into the domain's memory",
    c"the operation failed",
    c"the other endpoint has no such memory registered for reading",
];

/// The failure of a read whose response has not the content that was asked for.
pub(crate) const NOT_READ: OperationFailure =
    OperationFailure { error: FI_EACCES, own: 7, missing_bytes: 0 };

/// The text of a number of ours.
pub(crate) fn text(own: c_int) -> &'static CStr {
    let index = usize::try_from(own).ok().and_then(|own| own.checked_sub(1));
    index.and_then(|index| TEXTS.get(index)).copied().unwrap_or(c"not an error of this provider")
}

/// The failure of an operation that had begun.
pub(crate) fn failed(failure: RequestFailure) -> OperationFailure {
    let (own, error) = match failure {
        RequestFailure::Truncated { .. } => (1, FI_ETRUNC),
        RequestFailure::Cancelled => (2, FI_ECANCELED),
        RequestFailure::NoMessage => (3, FI_ENOMSG),
        RequestFailure::Gone => (4, FI_ECONNRESET),
        RequestFailure::Nonsense => (5, FI_EPROTO),
        _ => (6, FI_EIO),
    };
    let missing_bytes = match failure {
        RequestFailure::Truncated { missing_bytes } => missing_bytes,
        _ => 0,
    };
    OperationFailure { error, own, missing_bytes }
}

/// The error that a call returns whose send has not begun.
pub(crate) fn not_sent(error: &SendError) -> c_int {
    match error {
        SendError::Busy => -FI_EAGAIN,
        SendError::Gone => -FI_ECONNRESET,
        SendError::Nonsense => -FI_EPROTO,
        SendError::Unreachable(..) => -FI_EHOSTUNREACH,
        SendError::TooLong => -FI_EMSGSIZE,
        SendError::TooManyParts => -FI_EINVAL,
        _ => -FI_EIO,
    }
}

/// The error that a call returns whose receive has not begun. Each is a mistake of the caller.
pub(crate) fn not_received(error: &ReceiveError) -> c_int {
    crate::log::say!("a receive is refused: {error}");
    -FI_EINVAL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_busy_send_is_told_to_try_again() {
        let again = SendError::Busy;
        assert_eq!(not_sent(&again), -FI_EAGAIN);
        for (error, number) in [(SendError::Gone, FI_ECONNRESET), (SendError::Nonsense, FI_EPROTO)]
        {
            assert_eq!(not_sent(&error), -number);
        }
    }

    #[test]
    fn every_failure_has_its_own_text() {
        let failures = [
            RequestFailure::Truncated { missing_bytes: 3 },
            RequestFailure::Cancelled,
            RequestFailure::NoMessage,
            RequestFailure::Gone,
            RequestFailure::Nonsense,
        ];
        for (index, failure) in failures.into_iter().enumerate() {
            let failed = failed(failure);
            assert_eq!(text(failed.own), TEXTS[index], "{failure}");
            assert_eq!(failed.missing_bytes != 0, index == 0);
        }
        for other in [c_int::MIN, -1, 0, 8, c_int::MAX] {
            assert_eq!(text(other), c"not an error of this provider");
        }
    }
}
