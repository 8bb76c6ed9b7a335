//! The signatures of the calls.
//!
//! Where libfabric hands an object back to us, the types here take the object's type as a
//! parameter (`O`, or `P` for a parent), so that this folder knows none of our objects. Each table
//! of calls names the type. That is right by libfabric's contract: an object is used only by the
//! functions of its own tables, and not after it was closed. Pointers that a program hands over
//! beside the object stay raw.
//!
//! # Safety
//! Each of these functions is unsafe to call, since it reads and writes by raw pointers: the caller
//! promises what the function's page in libfabric's manual (fi_getinfo(3), fi_av(3), fi_cq(3), ...)
//! says of each argument. A function of ours is unsafe for no other reason, and says at each access
//! which promise holds there.

use super::data::{CqErrEntry, IoVec, MrAttr};
use super::fid::Fid;
use super::info::{FabricAttr, Info};
use std::ffi::{c_char, c_int, c_void};

pub(crate) type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const Info,
    *mut *mut Info,
) -> c_int;
pub(crate) type OpenFabric =
    unsafe extern "C" fn(*mut FabricAttr, *mut *mut Fid, *mut c_void) -> c_int;

/// Opens an object. Its arguments are the parent, attributes, the place for a pointer to the new
/// object, and the program's context.
pub(crate) type OpenCall<P, A> =
    unsafe extern "C" fn(&P, *mut A, *mut *mut Fid, *mut c_void) -> c_int;
/// The same with flags, for a domain or an endpoint.
pub(crate) type OpenCall2<P> =
    unsafe extern "C" fn(&P, *mut Info, *mut *mut Fid, u64, *mut c_void) -> c_int;
/// It is unsafe to call, since the program says how many objects are at the pointer.
pub(crate) type TryWait<P> = unsafe extern "C" fn(&P, *mut *mut Fid, c_int) -> c_int;

pub(crate) type Register = unsafe extern "C" fn(
    *mut Fid,
    *const c_void,
    usize,
    u64,
    u64,
    u64,
    u64,
    *mut *mut Fid,
    *mut c_void,
) -> c_int;
pub(crate) type RegisterParts = unsafe extern "C" fn(
    *mut Fid,
    *const IoVec,
    usize,
    u64,
    u64,
    u64,
    u64,
    *mut *mut Fid,
    *mut c_void,
) -> c_int;
pub(crate) type RegisterBy =
    unsafe extern "C" fn(*mut Fid, *const MrAttr, u64, *mut *mut Fid) -> c_int;

pub(crate) type AvInsert<O> =
    unsafe extern "C" fn(&O, *const c_void, usize, *mut u64, u64, *mut c_void) -> c_int;
pub(crate) type AvRemove<O> = unsafe extern "C" fn(&O, *mut u64, usize, u64) -> c_int;
pub(crate) type AvLookup<O> = unsafe extern "C" fn(&O, u64, *mut c_void, *mut usize) -> c_int;
pub(crate) type AvName<O> =
    unsafe extern "C" fn(&O, *const c_void, *mut c_char, *mut usize) -> *const c_char;

pub(crate) type CqRead<O> = unsafe extern "C" fn(&O, *mut c_void, usize) -> isize;
pub(crate) type CqReadFrom<O> = unsafe extern "C" fn(&O, *mut c_void, usize, *mut u64) -> isize;
pub(crate) type CqReadErr<O> = unsafe extern "C" fn(&O, *mut CqErrEntry, u64) -> isize;
pub(crate) type CqWait<O> =
    unsafe extern "C" fn(&O, *mut c_void, usize, *const c_void, c_int) -> isize;
pub(crate) type CqWaitFrom<O> =
    unsafe extern "C" fn(&O, *mut c_void, usize, *mut u64, *const c_void, c_int) -> isize;
pub(crate) type CqSignal<O> = extern "C" fn(&O) -> c_int;
pub(crate) type StrError<O> =
    unsafe extern "C" fn(&O, c_int, *const c_void, *mut c_char, usize) -> *const c_char;

pub(crate) type CntrRead<O> = extern "C" fn(&O) -> u64;
pub(crate) type CntrSet<O> = extern "C" fn(&O, u64) -> c_int;
pub(crate) type CntrWait<O> = extern "C" fn(&O, u64, c_int) -> c_int;

pub(crate) type EqRead<O> = extern "C" fn(&O, *mut u32, *mut c_void, usize, u64) -> isize;
pub(crate) type EqWait<O> = extern "C" fn(&O, *mut u32, *mut c_void, usize, c_int, u64) -> isize;

pub(crate) type Cancel<O> = extern "C" fn(&O, *mut c_void) -> isize;
pub(crate) type GetOpt<O> =
    unsafe extern "C" fn(&O, c_int, c_int, *mut c_void, *mut usize) -> c_int;
pub(crate) type SetOpt<O> = unsafe extern "C" fn(&O, c_int, c_int, *const c_void, usize) -> c_int;
pub(crate) type GetName<O> = unsafe extern "C" fn(&O, *mut c_void, *mut usize) -> c_int;

pub(crate) type Recv<O> =
    unsafe extern "C" fn(&O, *mut c_void, usize, *mut c_void, u64, *mut c_void) -> isize;
pub(crate) type RecvParts<O> =
    unsafe extern "C" fn(&O, *const IoVec, *mut *mut c_void, usize, u64, *mut c_void) -> isize;
pub(crate) type ByMsg<O, M> = unsafe extern "C" fn(&O, *const M, u64) -> isize;
pub(crate) type Send<O> =
    unsafe extern "C" fn(&O, *const c_void, usize, *mut c_void, u64, *mut c_void) -> isize;
pub(crate) type Inject<O> = unsafe extern "C" fn(&O, *const c_void, usize, u64) -> isize;
pub(crate) type SendData<O> =
    unsafe extern "C" fn(&O, *const c_void, usize, *mut c_void, u64, u64, *mut c_void) -> isize;
/// With data or a tag beside the address.
pub(crate) type InjectWith<O> = unsafe extern "C" fn(&O, *const c_void, usize, u64, u64) -> isize;

pub(crate) type RmaRead<O> =
    unsafe extern "C" fn(&O, *mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize;
pub(crate) type RmaReadParts<O> = unsafe extern "C" fn(
    &O,
    *const IoVec,
    *mut *mut c_void,
    usize,
    u64,
    u64,
    u64,
    *mut c_void,
) -> isize;

pub(crate) type TaggedRecv<O> =
    unsafe extern "C" fn(&O, *mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize;
pub(crate) type TaggedRecvParts<O> = unsafe extern "C" fn(
    &O,
    *const IoVec,
    *mut *mut c_void,
    usize,
    u64,
    u64,
    u64,
    *mut c_void,
) -> isize;
/// As `SendData`: address and tag in the place of data and address.
pub(crate) type TaggedSend<O> = SendData<O>;
pub(crate) type TaggedSendParts<O> =
    unsafe extern "C" fn(&O, *const IoVec, *mut *mut c_void, usize, u64, u64, *mut c_void) -> isize;
pub(crate) type TaggedSendData<O> = unsafe extern "C" fn(
    &O,
    *const c_void,
    usize,
    *mut c_void,
    u64,
    u64,
    u64,
    *mut c_void,
) -> isize;
pub(crate) type TaggedInjectData<O> =
    unsafe extern "C" fn(&O, *const c_void, usize, u64, u64, u64) -> isize;
