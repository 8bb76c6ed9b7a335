//! The calls for messages without a tag (`fi_send`, `fi_recv`, ...) and with a tag (`fi_tsend`,
//! ...). A receive with the flag `FI_PEEK` looks for a message. Both tables have the same shape:
//! tagged calls also take a tag, and tagged receives also the bits of it to ignore.

use super::opened::EndpointObject;
use super::pieces::{CallPieces, one_piece};
use super::traffic::{ReceiveArguments, SEND_FLAGS, SendArguments, SendMode};
use crate::abi::{
    FI_CLAIM, FI_COMPLETION, FI_DISCARD, FI_EBADFLAGS, FI_EINVAL, FI_MORE, FI_MULTI_RECV, FI_PEEK,
    FI_REMOTE_CQ_DATA, IoVec, Msg, MsgOps, MsgTagged, TaggedOps,
};
use crate::object::outcome;
use crate::state::ProviderState;
use fabric::{Class, MemoryPiece};
use std::ffi::c_void;

/// The flags that a call that receives may have.
const RECEIVE_FLAGS: u64 =
    FI_COMPLETION | FI_MORE | FI_MULTI_RECV | FI_PEEK | FI_CLAIM | FI_DISCARD;

impl EndpointObject {
    /// # Safety
    /// The parts stay readable until the message's completion. The parts of an injected message
    /// stay readable until this returns.
    unsafe fn send(&self, message: SendArguments, parts: Option<&[MemoryPiece]>) -> isize {
        if let SendMode::WithFlags { flags, .. } = message.how
            && flags & !SEND_FLAGS != 0
        {
            return -(FI_EBADFLAGS as isize);
        }
        let Some(parts) = parts else { return -(FI_EINVAL as isize) };
        let send = |state: &mut ProviderState| {
            // SAFETY: the caller's.
            let sent = unsafe { state.send(self.number, message, parts) };
            state.wake(self.number);
            sent
        };
        outcome(self.domain.state.with(send))
    }

    /// # Safety
    /// The parts stay writable until the completion, and nothing else accesses them.
    unsafe fn receive(&self, incoming: ReceiveArguments, parts: Option<&[MemoryPiece]>) -> isize {
        let flags = incoming.flags.unwrap_or(0);
        if flags & !RECEIVE_FLAGS != 0 {
            return -(FI_EBADFLAGS as isize);
        }
        let Some(parts) = parts else { return -(FI_EINVAL as isize) };
        let [peek, claim, discard, multi] =
            [FI_PEEK, FI_CLAIM, FI_DISCARD, FI_MULTI_RECV].map(|flag| flags & flag != 0);
        let number = self.number;
        outcome(self.domain.state.with(|state| {
            // SAFETY: the caller's.
            let begun = unsafe {
                match claim {
                    _ if peek => state.peek(number, incoming, claim, discard),
                    true => state.claim(number, incoming, discard, parts),
                    false if discard => Err(-FI_EBADFLAGS),
                    false => state.receive(number, incoming, multi, parts),
                }
            };
            state.wake(number);
            begun
        }))
    }
}

fn plain(context: *mut c_void) -> SendMode {
    SendMode::Plain(context.addr() as u64)
}

/// Makes the table of calls for one class of messages. Its arguments are the names of the table, of
/// C's struct of a message, of the class, and of the class's arguments beside.
macro_rules! calls {
    ($table:ident, $message:ident, $class:ident $(, $tag:ident, $ignore:ident)?) => {
        pub(in crate::endpoint) static OPS: $table<EndpointObject> = $table {
            size: size_of::<$table<EndpointObject>>(),
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

        fn outgoing(to: u64, $($tag: u64,)? data: Option<u64>, how: SendMode) -> SendArguments {
            SendArguments { class: Class::$class, to, tag: 0 $(| $tag)?, data, how }
        }

        fn incoming(
            from: u64,
            $($tag: u64, $ignore: u64,)?
            context: *mut c_void,
        ) -> ReceiveArguments {
            let (tag, ignore) = (0 $(| $tag)?, 0 $(| $ignore)?);
            let context = context.addr() as u64;
            ReceiveArguments { class: Class::$class, from, tag, ignore, context, flags: None }
        }

        unsafe extern "C" fn recv(
            endpoint: &EndpointObject,
            buffer: *mut c_void,
            bytes: usize,
            _: *mut c_void,
            from: u64,
            $($tag: u64, $ignore: u64,)?
            context: *mut c_void,
        ) -> isize {
            let incoming = incoming(from, $($tag, $ignore,)? context);
            // SAFETY: libfabric's contract: the program does not use the buffer until the
            // completion.
            unsafe { endpoint.receive(incoming, Some(&one_piece(buffer, bytes))) }
        }

        unsafe extern "C" fn recvv(
            endpoint: &EndpointObject,
            parts: *const IoVec,
            _: *mut *mut c_void,
            count: usize,
            from: u64,
            $($tag: u64, $ignore: u64,)?
            context: *mut c_void,
        ) -> isize {
            let incoming = incoming(from, $($tag, $ignore,)? context);
            // SAFETY: libfabric's contract: so many parts, which the program does not use until the
            // completion.
            unsafe { endpoint.receive(incoming, CallPieces::new(parts, count).parts()) }
        }

        unsafe extern "C" fn recvmsg(
            endpoint: &EndpointObject,
            message: *const $message,
            flags: u64,
        ) -> isize {
            // SAFETY: libfabric's contract: a message.
            let Some(message) = (unsafe { message.as_ref() }) else { return -(FI_EINVAL as isize) };
            let incoming =
                incoming(message.addr, $(message.$tag, message.$ignore,)? message.context);
            let incoming = ReceiveArguments { flags: Some(flags), ..incoming };
            // SAFETY: libfabric's contract: so many parts, which the program does not use until the
            // completion.
            unsafe {
                let pieces = CallPieces::new(message.msg_iov, message.iov_count);
                endpoint.receive(incoming, pieces.parts())
            }
        }

        unsafe extern "C" fn send(
            endpoint: &EndpointObject,
            buffer: *const c_void,
            bytes: usize,
            _: *mut c_void,
            to: u64,
            $($tag: u64,)?
            context: *mut c_void,
        ) -> isize {
            let message = outgoing(to, $($tag,)? None, plain(context));
            // SAFETY: libfabric's contract: the buffer is unchanged until the completion.
            unsafe { endpoint.send(message, Some(&one_piece(buffer.cast_mut(), bytes))) }
        }

        unsafe extern "C" fn sendv(
            endpoint: &EndpointObject,
            parts: *const IoVec,
            _: *mut *mut c_void,
            count: usize,
            to: u64,
            $($tag: u64,)?
            context: *mut c_void,
        ) -> isize {
            let message = outgoing(to, $($tag,)? None, plain(context));
            // SAFETY: libfabric's contract: so many parts, unchanged until the completion.
            unsafe { endpoint.send(message, CallPieces::new(parts, count).parts()) }
        }

        unsafe extern "C" fn sendmsg(
            endpoint: &EndpointObject,
            message: *const $message,
            flags: u64,
        ) -> isize {
            // SAFETY: libfabric's contract: a message.
            let Some(message) = (unsafe { message.as_ref() }) else { return -(FI_EINVAL as isize) };
            let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
            let how = SendMode::WithFlags { context: message.context.addr() as u64, flags };
            let outgoing = outgoing(message.addr, $(message.$tag,)? data, how);
            // SAFETY: libfabric's contract: so many parts, unchanged until the completion.
            unsafe {
                let pieces = CallPieces::new(message.msg_iov, message.iov_count);
                endpoint.send(outgoing, pieces.parts())
            }
        }

        unsafe extern "C" fn inject(
            endpoint: &EndpointObject,
            buffer: *const c_void,
            bytes: usize,
            to: u64,
            $($tag: u64,)?
        ) -> isize {
            let message = outgoing(to, $($tag,)? None, SendMode::Injected);
            // SAFETY: libfabric's contract: readable until the call returns.
            unsafe { endpoint.send(message, Some(&one_piece(buffer.cast_mut(), bytes))) }
        }

        unsafe extern "C" fn senddata(
            endpoint: &EndpointObject,
            buffer: *const c_void,
            bytes: usize,
            _: *mut c_void,
            data: u64,
            to: u64,
            $($tag: u64,)?
            context: *mut c_void,
        ) -> isize {
            let message = outgoing(to, $($tag,)? Some(data), plain(context));
            // SAFETY: libfabric's contract: the buffer is unchanged until the completion.
            unsafe { endpoint.send(message, Some(&one_piece(buffer.cast_mut(), bytes))) }
        }

        unsafe extern "C" fn injectdata(
            endpoint: &EndpointObject,
            buffer: *const c_void,
            bytes: usize,
            data: u64,
            to: u64,
            $($tag: u64,)?
        ) -> isize {
            let message = outgoing(to, $($tag,)? Some(data), SendMode::Injected);
            // SAFETY: libfabric's contract: readable until the call returns.
            unsafe { endpoint.send(message, Some(&one_piece(buffer.cast_mut(), bytes))) }
        }
    };
}

pub(super) mod untagged {
    use super::*;
    calls!(MsgOps, Msg, Untagged);
}

pub(super) mod tagged {
    use super::*;
    calls!(TaggedOps, MsgTagged, Tagged, tag, ignore);
}
