//! The calls that read memory of other processes (`fi_read`, ...).

use super::opened::EndpointObject;
use super::pieces::{CallPieces, one_piece};
use super::refused::not_written;
use super::remote::ReadArguments;
use super::traffic::{SEND_FLAGS, SendMode};
use crate::abi::{FI_EBADFLAGS, FI_EINVAL, IoVec, MsgRma, RmaIov, RmaOps};
use crate::object::outcome;
use fabric::MemoryPiece;
use std::ffi::c_void;

impl EndpointObject {
    /// # Safety
    /// The parts stay writable until the completion, and nothing else accesses them.
    unsafe fn read(&self, reading: ReadArguments, parts: Option<&[MemoryPiece]>) -> isize {
        if let SendMode::WithFlags { flags, .. } = reading.how
            && flags & !SEND_FLAGS != 0
        {
            return -(FI_EBADFLAGS as isize);
        }
        let Some(parts) = parts else { return -(FI_EINVAL as isize) };
        outcome(self.domain.state.with(|state| {
            // SAFETY: the caller's.
            let begun = unsafe { state.read(self.number, reading, parts) };
            state.wake(self.number);
            begun
        }))
    }
}

unsafe extern "C" fn read_one(
    endpoint: &EndpointObject,
    buffer: *mut c_void,
    bytes: usize,
    _: *mut c_void,
    from: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let how = SendMode::Plain(context.addr() as u64);
    // SAFETY: libfabric's contract: the program does not use the buffer until the completion.
    unsafe {
        endpoint.read(ReadArguments { from, address, key, how }, Some(&one_piece(buffer, bytes)))
    }
}

unsafe extern "C" fn read_parts(
    endpoint: &EndpointObject,
    parts: *const IoVec,
    _: *mut *mut c_void,
    count: usize,
    from: u64,
    address: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let how = SendMode::Plain(context.addr() as u64);
    // SAFETY: libfabric's contract: so many parts, which the program does not use until the
    // completion.
    unsafe {
        endpoint
            .read(ReadArguments { from, address, key, how }, CallPieces::new(parts, count).parts())
    }
}

unsafe extern "C" fn read_message(
    endpoint: &EndpointObject,
    message: *const MsgRma,
    flags: u64,
) -> isize {
    // SAFETY: libfabric's contract: a message, and so many places.
    unsafe {
        let Some(message) = message.as_ref() else { return -(FI_EINVAL as isize) };
        let Some(&RmaIov { addr: address, key, len }) = message.rma_iov.as_ref() else {
            return -(FI_EINVAL as isize);
        };
        let pieces = CallPieces::new(message.msg_iov, message.iov_count);
        let parts = pieces.parts();
        let wanted = parts.map(|parts| parts.iter().map(|part| part.bytes).sum::<usize>());
        // A read has one place in the other process, and reads all of it.
        if message.rma_iov_count != 1 || wanted != Some(len) {
            return -(FI_EINVAL as isize);
        }
        let how = SendMode::WithFlags { context: message.context.addr() as u64, flags };
        endpoint.read(ReadArguments { from: message.addr, address, key, how }, parts)
    }
}

pub(super) static OPS: RmaOps<EndpointObject> = RmaOps {
    size: size_of::<RmaOps<EndpointObject>>(),
    read: read_one,
    readv: read_parts,
    readmsg: read_message,
    write: not_written,
    writev: not_written,
    writemsg: not_written,
    inject: not_written,
    writedata: not_written,
    injectdata: not_written,
};
