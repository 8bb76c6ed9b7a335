//! The beginnings of our objects, which the library and its inline functions see.

use super::layout;
use super::{
    AtomicOps, AvOps, CmOps, CntrOps, CollectiveOps, CqOps, DomainOps, EpOps, EqOps, FabricOps,
    FidOps, MrOps, MsgOps, RmaOps, TaggedOps,
};
use std::ffi::c_void;

layout! {
    /// What every object begins with.
    #[derive(Debug)]
    Fid = "fid", 24 {
        fclass @ 0: usize,
        context @ 8: *mut c_void,
        ops @ 16: &'static FidOps,
    }
}

layout! {
    /// An open provider.
    FidFabric = "fid_fabric", 40 {
        fid @ 0: Fid,
        ops @ 24: &'static FabricOps,
        /// Set by the library when it has opened it.
        api_version @ 32: u32,
    }
}

layout! {
    FidDomain = "fid_domain", 40 {
        fid @ 0: Fid,
        ops @ 24: &'static DomainOps,
        mr @ 32: &'static MrOps,
    }
}

layout! {
    FidAv = "fid_av", 32 {
        fid @ 0: Fid,
        ops @ 24: &'static AvOps,
    }
}

layout! {
    FidCq = "fid_cq", 32 {
        fid @ 0: Fid,
        ops @ 24: &'static CqOps,
    }
}

layout! {
    FidCntr = "fid_cntr", 32 {
        fid @ 0: Fid,
        ops @ 24: &'static CntrOps,
    }
}

layout! {
    FidEq = "fid_eq", 32 {
        fid @ 0: Fid,
        ops @ 24: &'static EqOps,
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
    FidEp = "fid_ep", 80 {
        fid @ 0: Fid,
        ops @ 24: &'static EpOps,
        cm @ 32: &'static CmOps,
        msg @ 40: &'static MsgOps,
        rma @ 48: &'static RmaOps,
        tagged @ 56: &'static TaggedOps,
        atomic @ 64: &'static AtomicOps,
        collective @ 72: &'static CollectiveOps,
    }
}
