//! The front end's half of vhost-user: messages over a Unix socket, each with a deadline.
//!
//! Our own, and not the `vhost` crate's: its front end waits without a limit, and a codec that is
//! not the back end's finds what the back end gets wrong. Names and numbers are those of QEMU's
//! `docs/interop/vhost-user.rst`; everything is in the byte order of the machine.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::error::FrontEndError;

/// Bytes before a message's body: request, flags, length of the body.
const HEADER_BYTES: usize = 12;

/// The largest body that we send or take; a config space or a table of regions fits.
pub(super) const BODY_BYTES_MAX: usize = 4096;

/// The most descriptors in one message, by the standard.
pub(super) const DESCRIPTORS_MAX: usize = 8;

/// Header flag: version 1 of the protocol.
const VERSION: u32 = 1;
/// Header flag: an answer.
const REPLY: u32 = 1 << 2;
/// Header flag: an acknowledgement is wanted.
const NEED_REPLY: u32 = 1 << 3;

/// The requests that we make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Ask {
    GetFeatures = 1,
    SetFeatures = 2,
    SetOwner = 3,
    SetMemTable = 5,
    SetLogBase = 6,
    SetLogFd = 7,
    SetVringNum = 8,
    SetVringAddr = 9,
    SetVringBase = 10,
    GetVringBase = 11,
    SetVringKick = 12,
    SetVringCall = 13,
    SetVringErr = 14,
    GetProtocolFeatures = 15,
    SetProtocolFeatures = 16,
    GetQueueNum = 17,
    SetVringEnable = 18,
    SetBackendReqFd = 21,
    GetConfig = 24,
    GetInflightFd = 31,
    SetInflightFd = 32,
    GetMaxMemSlots = 36,
    AddMemReg = 37,
    RemMemReg = 38,
}

impl Ask {
    /// As the standard writes it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::GetFeatures => "GET_FEATURES",
            Self::SetFeatures => "SET_FEATURES",
            Self::SetOwner => "SET_OWNER",
            Self::SetMemTable => "SET_MEM_TABLE",
            Self::SetLogBase => "SET_LOG_BASE",
            Self::SetLogFd => "SET_LOG_FD",
            Self::SetVringNum => "SET_VRING_NUM",
            Self::SetVringAddr => "SET_VRING_ADDR",
            Self::SetVringBase => "SET_VRING_BASE",
            Self::GetVringBase => "GET_VRING_BASE",
            Self::SetVringKick => "SET_VRING_KICK",
            Self::SetVringCall => "SET_VRING_CALL",
            Self::SetVringErr => "SET_VRING_ERR",
            Self::GetProtocolFeatures => "GET_PROTOCOL_FEATURES",
            Self::SetProtocolFeatures => "SET_PROTOCOL_FEATURES",
            Self::GetQueueNum => "GET_QUEUE_NUM",
            Self::SetVringEnable => "SET_VRING_ENABLE",
            Self::SetBackendReqFd => "SET_BACKEND_REQ_FD",
            Self::GetConfig => "GET_CONFIG",
            Self::GetInflightFd => "GET_INFLIGHT_FD",
            Self::SetInflightFd => "SET_INFLIGHT_FD",
            Self::GetMaxMemSlots => "GET_MAX_MEM_SLOTS",
            Self::AddMemReg => "ADD_MEM_REG",
            Self::RemMemReg => "REM_MEM_REG",
        }
    }
}

/// A message's body, field by field.
#[derive(Debug, Default)]
pub(super) struct MessageBody(Vec<u8>);

impl MessageBody {
    pub(super) fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(super) fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(super) fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub(super) fn zeroes(mut self, count: usize) -> Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    pub(super) fn append(mut self, mut other: Self) -> Self {
        self.0.append(&mut other.0);
        self
    }

    /// A queue's number and a value: the body of most ring messages.
    pub(super) fn ring(index: u16, value: u32) -> Self {
        Self::default().u32(index.into()).u32(value)
    }
}

/// An answer.
#[derive(Debug)]
pub(super) struct BackEndReply {
    ask: Ask,
    pub(super) body: Vec<u8>,
    pub(super) descriptors: Vec<OwnedFd>,
}

impl BackEndReply {
    /// The body as one 64-bit number.
    pub(super) fn number(&self) -> Result<u64, FrontEndError> {
        self.u64_at(0)
    }

    pub(super) fn u16_at(&self, offset: usize) -> Result<u16, FrontEndError> {
        Ok(u16::from_ne_bytes(self.field(offset)?))
    }

    pub(super) fn u32_at(&self, offset: usize) -> Result<u32, FrontEndError> {
        Ok(u32::from_ne_bytes(self.field(offset)?))
    }

    pub(super) fn u64_at(&self, offset: usize) -> Result<u64, FrontEndError> {
        Ok(u64::from_ne_bytes(self.field(offset)?))
    }

    fn field<const N: usize>(&self, offset: usize) -> Result<[u8; N], FrontEndError> {
        let bytes = self.body.get(offset..offset + N).and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or(FrontEndError::BadAnswer { ask: self.ask.name(), why: "it is too short" })
    }
}

/// A connected socket.
#[derive(Debug)]
pub(super) struct Conversation {
    stream: OwnedFd,
    timeout: Duration,
    /// REPLY_ACK was negotiated: every message without an answer of its own is acknowledged.
    pub(super) acknowledged: bool,
}

impl Conversation {
    /// Speaks over a socket that does not block, and waits at most `timeout` for an answer.
    pub(super) fn new(stream: OwnedFd, timeout: Duration) -> Self {
        Self { stream, timeout, acknowledged: false }
    }

    pub(super) fn stream(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Whether the back end has closed or died.
    pub(super) fn hung_up(&self) -> bool {
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut fds = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut fds, Some(&now)), Ok(1..)) && fds[0].revents().intersects(gone)
    }

    /// Says something that has no answer of its own; waits for the acknowledgement if it has one.
    pub(super) fn tell(
        &self,
        ask: Ask,
        body: &MessageBody,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), FrontEndError> {
        let deadline = Instant::now() + self.timeout;
        let flags = if self.acknowledged { NEED_REPLY } else { 0 };
        self.send(ask, flags, body, descriptors, deadline)?;
        if !self.acknowledged {
            return Ok(());
        }
        match self.receive(ask, deadline)?.number()? {
            0 => Ok(()),
            code => Err(FrontEndError::Refused { ask: ask.name(), code }),
        }
    }

    /// Asks something and waits for the answer.
    pub(super) fn ask(&self, ask: Ask, body: &MessageBody) -> Result<BackEndReply, FrontEndError> {
        self.ask_with(ask, body, &[])
    }

    /// The same with descriptors.
    pub(super) fn ask_with(
        &self,
        ask: Ask,
        body: &MessageBody,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<BackEndReply, FrontEndError> {
        let deadline = Instant::now() + self.timeout;
        self.send(ask, 0, body, descriptors, deadline)?;
        self.receive(ask, deadline)
    }

    fn send(
        &self,
        ask: Ask,
        flags: u32,
        body: &MessageBody,
        descriptors: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> Result<(), FrontEndError> {
        assert!(body.0.len() <= BODY_BYTES_MAX && descriptors.len() <= DESCRIPTORS_MAX);
        let header =
            MessageBody::default().u32(ask as u32).u32(VERSION | flags).u32(body.0.len() as u32).0;
        let bytes = [header.as_slice(), &body.0].concat();
        let mut sent = 0;
        while sent < bytes.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if sent == 0 && !descriptors.is_empty() {
                let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
                assert!(fits, "room for {DESCRIPTORS_MAX} descriptors");
            }
            let rest = [IoSlice::new(&bytes[sent..])];
            match sendmsg(&self.stream, &rest, &mut control, SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.ready(ask, PollFlags::OUT, deadline)?,
                Err(errno) => return Err(FrontEndError::socket(ask.name(), errno)),
            }
        }
        Ok(())
    }

    fn receive(&self, ask: Ask, deadline: Instant) -> Result<BackEndReply, FrontEndError> {
        let bad = |why| FrontEndError::BadAnswer { ask: ask.name(), why };
        let mut descriptors = Vec::new();
        let mut header = [0; HEADER_BYTES];
        self.fill(ask, &mut header, &mut descriptors, deadline)?;
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| header[at + byte]));
        if word(0) != ask as u32 {
            return Err(bad("it answers another request"));
        }
        if word(4) & (VERSION | REPLY) != VERSION | REPLY {
            return Err(bad("its flags are not those of an answer"));
        }
        let len = word(8) as usize;
        if len > BODY_BYTES_MAX {
            return Err(bad("it is too long"));
        }
        let mut body = vec![0; len];
        self.fill(ask, &mut body, &mut descriptors, deadline)?;
        Ok(BackEndReply { ask, body, descriptors })
    }

    fn fill(
        &self,
        ask: Ask,
        bytes: &mut [u8],
        descriptors: &mut Vec<OwnedFd>,
        deadline: Instant,
    ) -> Result<(), FrontEndError> {
        let mut filled = 0;
        while filled < bytes.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut rest = [IoSliceMut::new(&mut bytes[filled..])];
            match recvmsg(&self.stream, &mut rest, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(got) if got.bytes == 0 => {
                    return Err(FrontEndError::HungUp { ask: ask.name() });
                }
                Ok(got) => filled += got.bytes,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => {
                    self.ready(ask, PollFlags::IN, deadline)?;
                    continue;
                }
                Err(errno) => return Err(FrontEndError::socket(ask.name(), errno)),
            }
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    descriptors.extend(rights);
                }
            }
        }
        Ok(())
    }

    /// Waits until the socket can go on.
    fn ready(&self, ask: Ask, flags: PollFlags, deadline: Instant) -> Result<(), FrontEndError> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let timeout_ms = self.timeout.as_millis();
            return Err(FrontEndError::Timeout { ask: ask.name(), timeout_ms });
        }
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.stream, flags)], Some(&left)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(FrontEndError::socket(ask.name(), errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (Conversation, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        (Conversation::new(ours, Duration::from_millis(20)), theirs)
    }

    fn answer(to: &OwnedFd, request: u32, flags: u32, body: &[u8]) {
        let header = MessageBody::default().u32(request).u32(flags).u32(body.len() as u32).0;
        rustix::io::write(to, &[header.as_slice(), body].concat()).unwrap();
    }

    #[test]
    fn an_answer_in_two_parts_is_put_together() {
        let (conversation, theirs) = pair();
        rustix::io::write(&theirs, &[1, 0, 0, 0, 5, 0, 0]).unwrap();
        rustix::io::write(&theirs, &[0, 8, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        let answer = conversation.ask(Ask::GetFeatures, &MessageBody::default()).unwrap();
        assert_eq!(answer.number().unwrap(), 7);
        assert!(answer.u64_at(1).is_err());
    }

    #[test]
    fn silence_has_an_end() {
        let (conversation, _theirs) = pair();
        let error = conversation.ask(Ask::GetFeatures, &MessageBody::default()).unwrap_err();
        assert!(matches!(error, FrontEndError::Timeout { ask: "GET_FEATURES", .. }), "{error}");
    }

    #[test]
    fn a_closed_socket_is_a_hang_up() {
        let (conversation, theirs) = pair();
        assert!(!conversation.hung_up());
        drop(theirs);
        assert!(conversation.hung_up());
        let error = conversation.ask(Ask::GetFeatures, &MessageBody::default()).unwrap_err();
        assert!(matches!(error, FrontEndError::HungUp { .. }), "{error}");
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (request, flags, len, why) in [
            (2, 5, 8, "another request"),
            (1, 1, 8, "flags"),
            (1, 5, BODY_BYTES_MAX + 1, "too long"),
        ] {
            let (conversation, theirs) = pair();
            answer(&theirs, request, flags, &vec![0; len]);
            let error = conversation.ask(Ask::GetFeatures, &MessageBody::default()).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    #[test]
    fn a_negative_acknowledgement_is_a_refusal() {
        let (mut conversation, theirs) = pair();
        conversation.acknowledged = true;
        answer(&theirs, 8, 5, &1u64.to_ne_bytes());
        let error = conversation.tell(Ask::SetVringNum, &MessageBody::ring(0, 3), &[]).unwrap_err();
        assert!(matches!(error, FrontEndError::Refused { ask: "SET_VRING_NUM", code: 1 }));
    }
}
