//! What goes wrong with messages, in libfabric's numbers.
//!
//! | here | libfabric's | when |
//! | --- | --- | --- |
//! | busy | `FI_EAGAIN`, returned | as much waits for receivers as may: poll, call again |
//! | gone | `FI_ECONNRESET` | the other endpoint's process ended, or its slot has another owner |
//! | unreachable | `FI_EHOSTUNREACH`, returned | an address on a host to which no way leads |
//! | too long | `FI_EMSGSIZE`, returned | longer than a message can be, or be injected |
//! | too many parts | `FI_EINVAL`, returned | more than `iov_limit` |
//! | truncated | `FI_ETRUNC` | the message was longer than the buffer |
//! | cancelled | `FI_ECANCELED` | by `fi_cancel` |
//! | no message | `FI_ENOMSG` | a peek found nothing; never returned: Open MPI gives up then |
//! | not read | `FI_EACCES` | what is to be read is not registered for that, or not so long |
//! | nonsense | `FI_EPROTO`, also returned | the other endpoint's slot breaks the region's rules |

use crate::abi::{
    FI_EACCES, FI_EAGAIN, FI_ECANCELED, FI_ECONNRESET, FI_EHOSTUNREACH, FI_EINVAL, FI_EIO,
    FI_EMSGSIZE, FI_ENOMSG, FI_EPROTO, FI_ETRUNC,
};
use crate::cq::OperationFailure;
use fabric::{ReceiveError, RequestFailure, SendError};
use std::ffi::{CStr, c_int};

/// Our own numbers of what completions tell (`prov_errno`), from 1, each with its text.
const TEXTS: [&CStr; 7] = [
    c"the message was longer than the buffer",
    c"cancelled",
    c"no such message has come",
    c"the other endpoint is gone: its process ended",
    c"the other endpoint wrote nonsense into the domain's memory",
    c"the operation failed",
    c"the other endpoint has no such memory registered for reading",
];

/// Of a read that the other endpoint does not answer with what was asked for.
pub(crate) const NOT_READ: OperationFailure =
    OperationFailure { error: FI_EACCES, own: 7, missing_bytes: 0 };

/// What a number of ours says.
pub(crate) fn text(own: c_int) -> &'static CStr {
    let index = usize::try_from(own).ok().and_then(|own| own.checked_sub(1));
    index.and_then(|index| TEXTS.get(index)).copied().unwrap_or(c"no error of this provider")
}

/// Of an operation that failed after it was begun.
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

/// Of a send that was not begun.
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

/// Of a receive that was not begun: all of them are mistakes of the caller's.
pub(crate) fn not_received(error: &ReceiveError) -> c_int {
    crate::log::say!("a receive is refused: {error}");
    -FI_EINVAL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_be_tried_again_is_told_to_be() {
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
            assert_eq!(text(other), c"no error of this provider");
        }
    }
}
