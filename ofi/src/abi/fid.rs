//! The beginning of every object, and the calls that every object has.

use super::layout::layout;
use super::refused::Refuse;
use std::ffi::{c_int, c_void};

// Each of these is unsafe to call for one reason: the program promises that pointers to objects
// come from functions of ours, and that no other call closes these objects meanwhile.
pub(crate) type Close = unsafe extern "C" fn(*mut Fid) -> c_int;
pub(crate) type Bind = unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int;
pub(crate) type ControlCall = unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int;

layout! {
    /// The first field of every object.
    #[derive(Debug)]
    Fid = "fid", 24 {
        fclass @ 0: usize,
        context @ 8: *mut c_void,
        ops @ 16: &'static FidOps,
    }
}

layout! {
    #[derive(Debug)]
    FidOps = "fi_ops", 56 {
        size @ 0: usize,
        close @ 8: Close,
        bind @ 16: Bind,
        control @ 24: ControlCall,
        ops_open @ 32: Refuse,
        tostr @ 40: Refuse,
        ops_set @ 48: Refuse,
    }
}
