//! A process's connection to the node: questions, and their answers in order.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};

use super::super::wire::{ALONG_MAX, Answer, MESSAGE_BYTES, Request, Seat};
use crate::Process;

/// How long the node may take to let somebody in, and to answer. It does nothing slow meanwhile;
/// but a job may start hundreds of processes at once on few cores.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Why a question has no answer.
#[derive(Debug)]
pub(super) enum Lost {
    Silent,
    Foreign,
    Gone(io::Error),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Talk {
    socket: OwnedFd,
    /// By slot: the incarnation that was asked for last, and its process once that was answered (0
    /// for nobody's). The answer may come between others.
    processes: HashMap<u16, (u32, Option<u32>)>,
}

type Heard = (Answer, Vec<OwnedFd>);

impl Talk {
    pub(super) fn call(path: &Path) -> io::Result<Self> {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = rustix::net::socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None)?;
        // Also bounds how long it waits for room in the listener's queue.
        set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
        loop {
            match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
                Err(Errno::INTR) => {}
                answer => return Ok(answer.map(|()| Self { socket, processes: HashMap::new() })?),
            }
        }
    }

    /// Says something that is not answered.
    pub(super) fn say(&self, request: &Request) -> Result<(), Errno> {
        self.say_with(request, SendFlags::empty())
    }

    fn say_with(&self, request: &Request, flags: SendFlags) -> Result<(), Errno> {
        let flags = flags | SendFlags::NOSIGNAL;
        let bytes = request.to_bytes();
        rustix::io::retry_on_intr(|| rustix::net::send(&self.socket, &bytes, flags).map(drop))
    }

    /// Whether the node has not hung up.
    pub(super) fn is_up(&self) -> bool {
        let mut look = [PollFd::new(&self.socket, PollFlags::empty())];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Hanging up is told without being asked for.
        !matches!(poll(&mut look, Some(&none)), Ok(1))
    }

    /// A question and its answer, with the descriptors that may come along.
    pub(super) fn ask(&mut self, request: &Request) -> Result<Heard, Lost> {
        self.say(request).map_err(gone)?;
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(|_| Lost::Silent)?;
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&left)) {
                Err(Errno::INTR) => {}
                Err(errno) => return Err(gone(errno)),
                Ok(0) => return Err(Lost::Silent),
                Ok(_) => {
                    if let Some(heard) = self.hear()? {
                        return Ok(heard);
                    }
                }
            }
        }
    }

    /// Whose an owner of a slot is, as the node has said; it is asked once, and not waited for.
    pub(super) fn process_of(&mut self, seat: Seat) -> Process {
        let Seat { slot, incarnation } = seat;
        let is_asked = self.processes.get(&slot).is_some_and(|(asked, _)| *asked == incarnation);
        if !is_asked {
            if self.say_with(&Request::Process(seat), SendFlags::DONTWAIT).is_err() {
                return Process::NotKnown;
            }
            self.processes.insert(slot, (incarnation, None));
        }
        // Whatever has come by now; of other questions nothing can have, they are waited for.
        while self.processes.get(&slot).is_some_and(|(_, known)| known.is_none()) {
            match self.hear() {
                Ok(None) => {}
                Ok(Some(_)) | Err(_) => return Process::NotKnown,
            }
        }
        match self.processes.get(&slot) {
            Some((_, Some(0))) => Process::Nobodys,
            Some((_, Some(number))) => Process::Is(*number),
            _ => Process::NotKnown,
        }
    }

    /// The next answer that is there. None: it was about a process, and is kept.
    fn hear(&mut self) -> Result<Option<Heard>, Lost> {
        let mut bytes = [0; MESSAGE_BYTES + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ALONG_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        let got = rustix::net::recvmsg(&self.socket, parts, &mut ancillary, flags).map_err(gone)?;
        let mut along = Vec::new();
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                along.extend(rights);
            }
        }
        if got.bytes == 0 {
            return Err(Lost::Gone(io::ErrorKind::UnexpectedEof.into()));
        }
        if got.flags.contains(ReturnFlags::CTRUNC) {
            return Err(Lost::Foreign);
        }
        let answer = Answer::from_bytes(&bytes[..got.bytes]).map_err(|_| Lost::Foreign)?;
        let Answer::Process { seat, process } = answer else { return Ok(Some((answer, along))) };
        if let Some((asked, known)) = self.processes.get_mut(&seat.slot)
            && *asked == seat.incarnation
        {
            *known = Some(process);
        }
        Ok(None)
    }
}

fn gone(errno: Errno) -> Lost {
    Lost::Gone(errno.into())
}
