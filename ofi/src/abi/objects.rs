//! The first parts of the provider's objects, which the library and its inline functions read.

use super::fid::Fid;
use super::layout::layout;
use super::tables::{
    AtomicOps, AvOps, CmOps, CntrOps, CollectiveOps, CqOps, DomainOps, EpOps, EqOps, FabricOps,
    MrOps, MsgOps, RmaOps, TaggedOps,
};
use std::ffi::c_void;

layout! {
    /// An open provider.
    FidFabric<P> = "fid_fabric", 40 {
        fid @ 0: Fid,
        ops @ 24: &'static FabricOps<P>,
        /// The library sets it after it has opened the provider.
        api_version @ 32: u32,
    }
}

layout! {
    FidDomain<P> = "fid_domain", 40 {
        fid @ 0: Fid,
        ops @ 24: &'static DomainOps<P>,
        mr @ 32: &'static MrOps,
    }
}

layout! {
    FidAv<O> = "fid_av", 32 {
        fid @ 0: Fid,
        ops @ 24: &'static AvOps<O>,
    }
}

layout! {
    FidCq<O> = "fid_cq", 32 {
        fid @ 0: Fid,
        ops @ 24: &'static CqOps<O>,
    }
}

layout! {
    FidCntr<O> = "fid_cntr", 32 {
        fid @ 0: Fid,
        ops @ 24: &'static CntrOps<O>,
    }
}

layout! {
    FidEq<O> = "fid_eq", 32 {
        fid @ 0: Fid,
        ops @ 24: &'static EqOps<O>,
    }
}

layout! {
    FidMr = "fid_mr", 40 {
        fid @ 0: Fid,
        mem_desc @ 24: *mut c_void,
        key @ 32: u64,
    }
}

layout! {
    FidEp<O> = "fid_ep", 80 {
        fid @ 0: Fid,
        ops @ 24: &'static EpOps<O>,
        cm @ 32: &'static CmOps<O>,
        msg @ 40: &'static MsgOps<O>,
        rma @ 48: &'static RmaOps<O>,
        tagged @ 56: &'static TaggedOps<O>,
        atomic @ 64: &'static AtomicOps,
        collective @ 72: &'static CollectiveOps,
    }
}
