//! What the calls look like.
//!
//! Where libfabric hands an object back to us, the types here say that it is one of ours, as its
//! contract has it: an object is used by those functions only that stand in its own tables, and
//! not after it was closed. Pointers that a program hands over beside it stay raw.
//!
//! # Safety
//! Each of these functions is unsafe to call, since it reads and writes by raw pointers: the caller
//! promises what the function's page in libfabric's manual (fi_getinfo(3), fi_av(3), fi_cq(3), ...)
//! says of each argument. A function of ours is unsafe for no other reason, and says at each access
//! which promise holds there.

use super::{
    AvAttr, CntrAttr, CqAttr, CqErrEntry, EqAttr, FabricAttr, Fid, Info, IoVec, MrAttr, Msg,
    MsgTagged,
};
use crate::{av, cntr, cq, domain, endpoint, root};
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

/// A call that is refused. libfabric's calls return a negative number and their arguments are the
/// caller's to clear away, so one function stands for all of them, whatever they are called with.
pub(crate) type Refuse = extern "C" fn() -> isize;

pub(crate) type Close = unsafe extern "C" fn(*mut Fid) -> c_int;
pub(crate) type Bind = unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int;
pub(crate) type ControlCall = unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int;
/// Opens something: the parent, attributes, where the new object goes, the program's context.
pub(crate) type OpenCall<P, A> =
    unsafe extern "C" fn(&P, *mut A, *mut *mut Fid, *mut c_void) -> c_int;
pub(crate) type OpenEndpoint = OpenCall<domain::DomainObject, Info>;
pub(crate) type OpenEndpoint2 = unsafe extern "C" fn(
    &domain::DomainObject,
    *mut Info,
    *mut *mut Fid,
    u64,
    *mut c_void,
) -> c_int;
pub(crate) type OpenDomain = OpenCall<root::ProviderObject, Info>;
pub(crate) type OpenDomain2 = unsafe extern "C" fn(
    &root::ProviderObject,
    *mut Info,
    *mut *mut Fid,
    u64,
    *mut c_void,
) -> c_int;
/// Unsafe to call: a program says how many objects there are at the pointer.
pub(crate) type TryWait =
    unsafe extern "C" fn(&root::ProviderObject, *mut *mut Fid, c_int) -> c_int;
pub(crate) type OpenEq = OpenCall<root::ProviderObject, EqAttr>;
pub(crate) type OpenAv = OpenCall<domain::DomainObject, AvAttr>;
pub(crate) type OpenCq = OpenCall<domain::DomainObject, CqAttr>;
pub(crate) type OpenCntr = OpenCall<domain::DomainObject, CntrAttr>;

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

pub(crate) type AvInsert =
    unsafe extern "C" fn(&av::AvObject, *const c_void, usize, *mut u64, u64, *mut c_void) -> c_int;
pub(crate) type AvRemove = unsafe extern "C" fn(&av::AvObject, *mut u64, usize, u64) -> c_int;
pub(crate) type AvLookup =
    unsafe extern "C" fn(&av::AvObject, u64, *mut c_void, *mut usize) -> c_int;
pub(crate) type AvName =
    unsafe extern "C" fn(&av::AvObject, *const c_void, *mut c_char, *mut usize) -> *const c_char;

pub(crate) type CqRead = unsafe extern "C" fn(&cq::QueueObject, *mut c_void, usize) -> isize;
pub(crate) type CqReadFrom =
    unsafe extern "C" fn(&cq::QueueObject, *mut c_void, usize, *mut u64) -> isize;
pub(crate) type CqReadErr = unsafe extern "C" fn(&cq::QueueObject, *mut CqErrEntry, u64) -> isize;
pub(crate) type CqWait =
    unsafe extern "C" fn(&cq::QueueObject, *mut c_void, usize, *const c_void, c_int) -> isize;
pub(crate) type CqWaitFrom = unsafe extern "C" fn(
    &cq::QueueObject,
    *mut c_void,
    usize,
    *mut u64,
    *const c_void,
    c_int,
) -> isize;
pub(crate) type CqSignal = extern "C" fn(&cq::QueueObject) -> c_int;
pub(crate) type StrError<T> =
    unsafe extern "C" fn(&T, c_int, *const c_void, *mut c_char, usize) -> *const c_char;

pub(crate) type CntrRead = extern "C" fn(&cntr::CounterObject) -> u64;
pub(crate) type CntrSet = extern "C" fn(&cntr::CounterObject, u64) -> c_int;
pub(crate) type CntrWait = extern "C" fn(&cntr::CounterObject, u64, c_int) -> c_int;

pub(crate) type EqRead<E> = extern "C" fn(&E, *mut u32, *mut c_void, usize, u64) -> isize;
pub(crate) type EqWait<E> = extern "C" fn(&E, *mut u32, *mut c_void, usize, c_int, u64) -> isize;

pub(crate) type Ep = endpoint::EndpointObject;
pub(crate) type Cancel = extern "C" fn(&Ep, *mut c_void) -> isize;
pub(crate) type GetOpt = unsafe extern "C" fn(&Ep, c_int, c_int, *mut c_void, *mut usize) -> c_int;
pub(crate) type SetOpt = unsafe extern "C" fn(&Ep, c_int, c_int, *const c_void, usize) -> c_int;
pub(crate) type GetName = unsafe extern "C" fn(&Ep, *mut c_void, *mut usize) -> c_int;

pub(crate) type Recv =
    unsafe extern "C" fn(&Ep, *mut c_void, usize, *mut c_void, u64, *mut c_void) -> isize;
pub(crate) type RecvParts =
    unsafe extern "C" fn(&Ep, *const IoVec, *mut *mut c_void, usize, u64, *mut c_void) -> isize;
pub(crate) type ByMsg<M> = unsafe extern "C" fn(&Ep, *const M, u64) -> isize;
pub(crate) type UntaggedMsg = ByMsg<Msg>;
pub(crate) type TaggedMsg = ByMsg<MsgTagged>;
pub(crate) type Send =
    unsafe extern "C" fn(&Ep, *const c_void, usize, *mut c_void, u64, *mut c_void) -> isize;
pub(crate) type Inject = unsafe extern "C" fn(&Ep, *const c_void, usize, u64) -> isize;
pub(crate) type SendData =
    unsafe extern "C" fn(&Ep, *const c_void, usize, *mut c_void, u64, u64, *mut c_void) -> isize;
/// Data or a tag beside the address.
pub(crate) type InjectWith = unsafe extern "C" fn(&Ep, *const c_void, usize, u64, u64) -> isize;

pub(crate) type RmaRead =
    unsafe extern "C" fn(&Ep, *mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize;
pub(crate) type RmaReadParts = unsafe extern "C" fn(
    &Ep,
    *const IoVec,
    *mut *mut c_void,
    usize,
    u64,
    u64,
    u64,
    *mut c_void,
) -> isize;

pub(crate) type TaggedRecv =
    unsafe extern "C" fn(&Ep, *mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize;
pub(crate) type TaggedRecvParts = unsafe extern "C" fn(
    &Ep,
    *const IoVec,
    *mut *mut c_void,
    usize,
    u64,
    u64,
    u64,
    *mut c_void,
) -> isize;
/// As `SendData`: address and tag in the place of data and address.
pub(crate) type TaggedSend = SendData;
pub(crate) type TaggedSendParts = unsafe extern "C" fn(
    &Ep,
    *const IoVec,
    *mut *mut c_void,
    usize,
    u64,
    u64,
    *mut c_void,
) -> isize;
pub(crate) type TaggedSendData = unsafe extern "C" fn(
    &Ep,
    *const c_void,
    usize,
    *mut c_void,
    u64,
    u64,
    u64,
    *mut c_void,
) -> isize;
pub(crate) type TaggedInjectData =
    unsafe extern "C" fn(&Ep, *const c_void, usize, u64, u64, u64) -> isize;
