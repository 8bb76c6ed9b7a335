//! The calls that carry messages without a tag (`fi_send`, `fi_recv` and their kin).

use super::{Incoming, Object, Outgoing, Pieces, Sending, one};
use crate::abi::{FI_EINVAL, FI_REMOTE_CQ_DATA, IoVec, Msg, MsgOps};
use fabric::Class;
use std::ffi::c_void;

pub(super) static OPS: MsgOps = MsgOps {
    size: size_of::<MsgOps>(),
    recv,
    recvv,
    recvmsg,
    send,
    sendv,
    sendmsg,
    inject,
    senddata,
    injectdata,
};

fn outgoing(to: u64, data: Option<u64>, how: Sending) -> Outgoing {
    Outgoing { class: Class::Untagged, to, tag: 0, data, how }
}

fn incoming(from: u64, context: *mut c_void, flags: Option<u64>) -> Incoming {
    let context = context.addr() as u64;
    Incoming { class: Class::Untagged, from, tag: 0, ignore: 0, context, flags }
}

fn plainly(context: *mut c_void) -> Sending {
    Sending::Plainly(context.addr() as u64)
}

unsafe extern "C" fn recv(
    endpoint: &Object,
    buffer: *mut c_void,
    bytes: usize,
    _: *mut c_void,
    from: u64,
    context: *mut c_void,
) -> isize {
    let incoming = incoming(from, context, None);
    // SAFETY: libfabric's contract: the buffer is ours until the completion.
    unsafe { endpoint.receive(incoming, Some(&one(buffer, bytes))) }
}

unsafe extern "C" fn recvv(
    endpoint: &Object,
    parts: *const IoVec,
    _: *mut *mut c_void,
    count: usize,
    from: u64,
    context: *mut c_void,
) -> isize {
    let incoming = incoming(from, context, None);
    // SAFETY: libfabric's contract: so many parts, each ours until the completion.
    unsafe { endpoint.receive(incoming, Pieces::new(parts, count).parts()) }
}

unsafe extern "C" fn recvmsg(endpoint: &Object, message: *const Msg, flags: u64) -> isize {
    // SAFETY: libfabric's contract: a message.
    let Some(message) = (unsafe { message.as_ref() }) else { return -(FI_EINVAL as isize) };
    let incoming = incoming(message.addr, message.context, Some(flags));
    // SAFETY: libfabric's contract: so many parts, each ours until the completion.
    unsafe { endpoint.receive(incoming, Pieces::new(message.msg_iov, message.iov_count).parts()) }
}

unsafe extern "C" fn send(
    endpoint: &Object,
    buffer: *const c_void,
    bytes: usize,
    _: *mut c_void,
    to: u64,
    context: *mut c_void,
) -> isize {
    let message = outgoing(to, None, plainly(context));
    // SAFETY: libfabric's contract: the buffer is unchanged until the completion.
    unsafe { endpoint.send(message, Some(&one(buffer.cast_mut(), bytes))) }
}

unsafe extern "C" fn sendv(
    endpoint: &Object,
    parts: *const IoVec,
    _: *mut *mut c_void,
    count: usize,
    to: u64,
    context: *mut c_void,
) -> isize {
    let message = outgoing(to, None, plainly(context));
    // SAFETY: libfabric's contract: so many parts, unchanged until the completion.
    unsafe { endpoint.send(message, Pieces::new(parts, count).parts()) }
}

unsafe extern "C" fn sendmsg(endpoint: &Object, message: *const Msg, flags: u64) -> isize {
    // SAFETY: libfabric's contract: a message.
    let Some(message) = (unsafe { message.as_ref() }) else { return -(FI_EINVAL as isize) };
    let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
    let how = Sending::By { context: message.context.addr() as u64, flags };
    // SAFETY: libfabric's contract: so many parts, unchanged until the completion.
    unsafe {
        let pieces = Pieces::new(message.msg_iov, message.iov_count);
        endpoint.send(outgoing(message.addr, data, how), pieces.parts())
    }
}

unsafe extern "C" fn inject(
    endpoint: &Object,
    buffer: *const c_void,
    bytes: usize,
    to: u64,
) -> isize {
    let message = outgoing(to, None, Sending::Injected);
    // SAFETY: libfabric's contract: readable until the call returns.
    unsafe { endpoint.send(message, Some(&one(buffer.cast_mut(), bytes))) }
}

unsafe extern "C" fn senddata(
    endpoint: &Object,
    buffer: *const c_void,
    bytes: usize,
    _: *mut c_void,
    data: u64,
    to: u64,
    context: *mut c_void,
) -> isize {
    let message = outgoing(to, Some(data), plainly(context));
    // SAFETY: libfabric's contract: the buffer is unchanged until the completion.
    unsafe { endpoint.send(message, Some(&one(buffer.cast_mut(), bytes))) }
}

unsafe extern "C" fn injectdata(
    endpoint: &Object,
    buffer: *const c_void,
    bytes: usize,
    data: u64,
    to: u64,
) -> isize {
    let message = outgoing(to, Some(data), Sending::Injected);
    // SAFETY: libfabric's contract: readable until the call returns.
    unsafe { endpoint.send(message, Some(&one(buffer.cast_mut(), bytes))) }
}
