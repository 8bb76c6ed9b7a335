//! Tables of what an endpoint does not do: remote memory, atomics, collective operations. They are
//! there all the same, since programs look for the tables and not into them.

use crate::abi::{AtomicOps, CollectiveOps, RmaOps, not_offered};

pub(super) static RMA: RmaOps = RmaOps {
    size: size_of::<RmaOps>(),
    read: not_offered,
    readv: not_offered,
    readmsg: not_offered,
    write: not_offered,
    writev: not_offered,
    writemsg: not_offered,
    inject: not_offered,
    writedata: not_offered,
    injectdata: not_offered,
};

pub(super) static ATOMIC: AtomicOps = AtomicOps {
    size: size_of::<AtomicOps>(),
    write: not_offered,
    writev: not_offered,
    writemsg: not_offered,
    inject: not_offered,
    readwrite: not_offered,
    readwritev: not_offered,
    readwritemsg: not_offered,
    compwrite: not_offered,
    compwritev: not_offered,
    compwritemsg: not_offered,
    writevalid: not_offered,
    readwritevalid: not_offered,
    compwritevalid: not_offered,
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
