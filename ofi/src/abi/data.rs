//! The structs that calls take: messages, completions, attributes of queues.

use super::layout::layout;
use std::ffi::{c_int, c_void};

/// A piece of the program's memory, as in other system calls.
pub(crate) type IoVec = libc::iovec;

layout! {
    /// A message without a tag.
    Msg = "fi_msg", 48 {
        msg_iov @ 0: *const IoVec,
        desc @ 8: *mut *mut c_void,
        iov_count @ 16: usize,
        addr @ 24: u64,
        context @ 32: *mut c_void,
        data @ 40: u64,
    }
}

layout! {
    /// A message with a tag.
    MsgTagged = "fi_msg_tagged", 64 {
        msg_iov @ 0: *const IoVec,
        desc @ 8: *mut *mut c_void,
        iov_count @ 16: usize,
        addr @ 24: u64,
        tag @ 32: u64,
        ignore @ 40: u64,
        context @ 48: *mut c_void,
        data @ 56: u64,
    }
}

layout! {
    /// A place in another process's registered memory.
    #[derive(Clone, Copy)]
    RmaIov = "fi_rma_iov", 24 {
        addr @ 0: u64,
        len @ 8: usize,
        key @ 16: u64,
    }
}

layout! {
    /// An operation on places in registered memory.
    MsgRma = "fi_msg_rma", 64 {
        msg_iov @ 0: *const IoVec,
        desc @ 8: *mut *mut c_void,
        iov_count @ 16: usize,
        addr @ 24: u64,
        rma_iov @ 32: *const RmaIov,
        rma_iov_count @ 40: usize,
        context @ 48: *mut c_void,
        data @ 56: u64,
    }
}

layout! {
    /// A completion. Queues may have shorter formats, each of which is the beginning of this one.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    CqEntry = "fi_cq_tagged_entry", 48 {
        op_context @ 0: u64,
        flags @ 8: u64,
        len @ 16: usize,
        buf @ 24: usize,
        data @ 32: u64,
        tag @ 40: u64,
    }
}

layout! {
    /// A failed operation. The provider never writes `src_addr`: it is of 2.x, and belongs to a
    /// capability that is not offered.
    CqErrEntry = "fi_cq_err_entry", 88 {
        op_context @ 0: u64,
        flags @ 8: u64,
        len @ 16: usize,
        buf @ 24: usize,
        data @ 32: u64,
        tag @ 40: u64,
        olen @ 48: usize,
        err @ 56: c_int,
        prov_errno @ 60: c_int,
        err_data @ 64: *mut c_void,
        err_data_size @ 72: usize,
    } later {
        src_addr @ 80: u64,
    }
}

layout! {
    /// The attributes of a new completion queue.
    CqAttr = "fi_cq_attr", 48 {
        size @ 0: usize,
        flags @ 8: u64,
        format @ 16: u32,
        wait_obj @ 20: u32,
        signaling_vector @ 24: c_int,
        wait_cond @ 28: u32,
        wait_set @ 32: *mut c_void,
    } later {
        xpu_ctx @ 40: *mut c_void,
    }
}

layout! {
    /// The attributes of a new counter.
    CntrAttr = "fi_cntr_attr", 32 {
        events @ 0: u32,
        wait_obj @ 4: u32,
        wait_set @ 8: *mut c_void,
        flags @ 16: u64,
    } later {
        xpu_ctx @ 24: *mut c_void,
    }
}

layout! {
    /// The attributes of a new event queue.
    EqAttr = "fi_eq_attr", 32 {
        size @ 0: usize,
        flags @ 8: u64,
        wait_obj @ 16: u32,
        signaling_vector @ 20: c_int,
        wait_set @ 24: *mut c_void,
    }
}

layout! {
    /// The attributes of a new address vector.
    AvAttr = "fi_av_attr", 48 {
        r#type @ 0: u32,
        rx_ctx_bits @ 4: c_int,
        count @ 8: usize,
        ep_per_node @ 16: usize,
        name @ 24: *const std::ffi::c_char,
        map_addr @ 32: *mut c_void,
        flags @ 40: u64,
    }
}

layout! {
    /// Memory that a call registers.
    MrAttr = "fi_mr_attr", 112 {
        mr_iov @ 0: *const IoVec,
        iov_count @ 8: usize,
        access @ 16: u64,
        offset @ 24: u64,
        requested_key @ 32: u64,
        context @ 40: *mut c_void,
        auth_key_size @ 48: usize,
        auth_key @ 56: *mut u8,
        iface @ 64: u32,
        device @ 72: u64,
    } later {
        hmem_data @ 80: *mut c_void,
        page_size @ 88: usize,
        base_mr @ 96: *const c_void,
        sub_mr_cnt @ 104: usize,
    }
}
