//! Tables of calls that an endpoint does not offer: atomics and collective operations. The tables
//! exist all the same: programs check that a table is there, and not what is in it.

use crate::abi::{AtomicOps, CollectiveOps, FI_EOPNOTSUPP, not_offered};
use std::sync::Once;

/// Refuses a write to remote memory, and says so on standard error. An MPI that writes although no
/// writes are offered may wait for ever for the end of its write.
pub(super) extern "C" fn not_written() -> isize {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        eprintln!(
            "libvrio-fi.so: this program writes to memory of other processes (fi_write or an \
             atomic), which is not offered; have its MPI send messages instead \
             (docs/mpi.md, \"MPI\")"
        );
    });
    -(FI_EOPNOTSUPP as isize)
}

pub(super) static ATOMIC: AtomicOps = AtomicOps {
    size: size_of::<AtomicOps>(),
    write: not_written,
    writev: not_written,
    writemsg: not_written,
    inject: not_written,
    readwrite: not_written,
    readwritev: not_written,
    readwritemsg: not_written,
    compwrite: not_written,
    compwritev: not_written,
    compwritemsg: not_written,
    writevalid: not_written,
    readwritevalid: not_written,
    compwritevalid: not_written,
};

pub(super) static COLLECTIVE: CollectiveOps = CollectiveOps {
    size: size_of::<CollectiveOps>(),
    barrier: not_offered,
    broadcast: not_offered,
    alltoall: not_offered,
    allreduce: not_offered,
    allgather: not_offered,
    reduce_scatter: not_offered,
    reduce: not_offered,
    scatter: not_offered,
    gather: not_offered,
    msg: not_offered,
    barrier2: not_offered,
};
