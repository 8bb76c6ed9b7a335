//! A process's connection to the registration server: requests, and their answers in order.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSliceMut};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};

use super::super::wire::{
    ALONG_MAX, MESSAGE_BYTES, RegistrationAnswer, RegistrationRequest, SlotGrant,
};
use crate::EndpointProcess;
use crate::doorbell::{self, RingOutcome, is_closed};

/// How long the node may take to let a client in, and to answer. It does nothing slow meanwhile;
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
pub(super) struct Connection {
    socket: Arc<OwnedFd>,
    /// By slot: the incarnation that was asked for last, and its process once that was answered (0
    /// for none). The answer may come between others.
    processes: HashMap<u16, (u32, Option<u32>)>,
    /// By slot: which of its owners it is about, and the write end of that owner's doorbell.
    /// [`WRITE_ENDS_MAX`] at most; their answers may come between others as well.
    write_ends: HashMap<u16, (u32, OwnedFd)>,
    /// By slot: for which of its owners, an endpoint of this process, another doorbell was asked
    /// for, and the read end once it has come.
    doorbells: HashMap<u16, (u32, Option<OwnedFd>)>,
    /// Answers that came too late for their questions, as good for the next: slots are all the
    /// same. As many at most as questions were given up.
    late_grants: Vec<RegistrationAnswer>,
}

/// Write ends that a process keeps, each a descriptor. Other sleepers are woken by the node.
pub(super) const WRITE_ENDS_MAX: usize = 256;

type Heard = (RegistrationAnswer, Vec<OwnedFd>);

impl Connection {
    pub(super) fn call(path: &Path) -> io::Result<Self> {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = rustix::net::socket_with(kind.0, kind.1, SocketFlags::CLOEXEC, None)?;
        // Also bounds how long it waits for room in the listener's queue.
        set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
        loop {
            match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
                Err(Errno::INTR) => {}
                answer => {
                    answer?;
                    return Ok(Self::over(socket));
                }
            }
        }
    }

    fn over(socket: OwnedFd) -> Self {
        let (processes, write_ends) = (HashMap::new(), HashMap::new());
        let (doorbells, late_grants) = (HashMap::new(), Vec::new());
        Self { socket: Arc::new(socket), processes, write_ends, doorbells, late_grants }
    }

    /// The connection, for what needs no answer.
    pub(super) fn line(&self) -> NodeConnection {
        NodeConnection(Arc::clone(&self.socket))
    }

    /// Says something that is not answered.
    pub(super) fn say(&self, request: &RegistrationRequest) -> Result<(), Errno> {
        self.say_with(request, SendFlags::empty())
    }

    fn say_with(&self, request: &RegistrationRequest, flags: SendFlags) -> Result<(), Errno> {
        say_over(&self.socket, request, flags)
    }

    /// Wakes an endpoint by its write end. `false`: there is none here, or it cannot be done now.
    pub(super) fn ring(&mut self, grant: SlotGrant) -> bool {
        if !self.has_write_end(grant) {
            self.hear_all();
        }
        if !self.has_write_end(grant) {
            return false;
        }
        let (_, write_end) = &self.write_ends[&grant.slot];
        let rung = doorbell::ring(write_end);
        if rung == RingOutcome::Closed {
            // Its owner is gone, or has another doorbell, which the node knows.
            self.write_ends.remove(&grant.slot);
        }
        rung == RingOutcome::Heard
    }

    fn has_write_end(&self, grant: SlotGrant) -> bool {
        self.write_ends.get(&grant.slot).is_some_and(|(whose, _)| *whose == grant.incarnation)
    }

    /// Whether one more write end can be kept, once those of dead owners are dropped.
    pub(super) fn wants_write_end(
        &mut self,
        grant: SlotGrant,
        lives: impl Fn(SlotGrant) -> bool,
    ) -> bool {
        if !self.has_room_for_write_end(grant) {
            self.write_ends
                .retain(|&slot, &mut (incarnation, _)| lives(SlotGrant { slot, incarnation }));
        }
        self.has_room_for_write_end(grant)
    }

    fn has_room_for_write_end(&self, grant: SlotGrant) -> bool {
        self.write_ends.len() < WRITE_ENDS_MAX || self.write_ends.contains_key(&grant.slot)
    }

    /// The read end of another doorbell for an endpoint of this process that has lost its own, once
    /// it has come: it is asked for, and not waited for.
    pub(super) fn reopen_doorbell(&mut self, grant: SlotGrant) -> Option<OwnedFd> {
        let SlotGrant { slot, incarnation } = grant;
        self.hear_all();
        if self.doorbells.get(&slot).is_none_or(|(whose, _)| *whose != incarnation) {
            self.say_with(&RegistrationRequest::OpenDoorbell(grant), SendFlags::DONTWAIT).ok()?;
            self.doorbells.insert(slot, (incarnation, None));
            return None;
        }
        let come = self.doorbells.get_mut(&slot).and_then(|(_, read_end)| read_end.take())?;
        self.doorbells.remove(&slot);
        Some(come)
    }

    /// Reads all that has come by now, without waiting for more.
    fn hear_all(&mut self) {
        while let Ok(heard) = self.hear() {
            if let Some((answer, along)) = heard {
                self.keep(answer, along);
            }
        }
    }

    /// Keeps an answer that no call waits for, or that came after its call had given up.
    fn keep(&mut self, answer: RegistrationAnswer, mut along: Vec<OwnedFd>) {
        match answer {
            RegistrationAnswer::Endpoint { .. } => self.late_grants.push(answer),
            RegistrationAnswer::Doorbell(grant) => {
                if let Some((whose, read_end)) = self.doorbells.get_mut(&grant.slot)
                    && *whose == grant.incarnation
                {
                    *read_end = along.pop();
                }
            }
            // One that is refused stays awaited, and is not asked for at each look from now on.
            _ => {}
        }
    }

    /// Whether the node has not hung up.
    pub(super) fn is_up(&self) -> bool {
        let mut look = [PollFd::new(&self.socket, PollFlags::empty())];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Hanging up is told without being asked for.
        !matches!(poll(&mut look, Some(&none)), Ok(1))
    }

    /// A question and its answer, with the descriptors that may come along.
    pub(super) fn ask(&mut self, request: &RegistrationRequest) -> Result<Heard, Lost> {
        self.ask_for(request, PATIENCE)
    }

    /// The same, with so much patience.
    pub(super) fn ask_for(
        &mut self,
        request: &RegistrationRequest,
        time: Duration,
    ) -> Result<Heard, Lost> {
        if *request == RegistrationRequest::NewEndpoint
            && let Some(late) = self.late_grants.pop()
        {
            return Ok((late, Vec::new()));
        }
        self.say(request).map_err(gone)?;
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(|_| Lost::Silent)?;
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&left)) {
                Err(Errno::INTR) => {}
                Err(errno) => return Err(gone(errno)),
                Ok(0) => return Err(Lost::Silent),
                Ok(_) => {
                    // The answer to a question that was given up may come first.
                    match self.hear()? {
                        Some((answer, along)) if request.is_answered_by(&answer) => {
                            return Ok((answer, along));
                        }
                        Some((answer, along)) => self.keep(answer, along),
                        None => {}
                    }
                }
            }
        }
    }

    /// Whose an owner of a slot is, as the node has said; it is asked once, and not waited for.
    pub(super) fn process_of(&mut self, grant: SlotGrant) -> EndpointProcess {
        let SlotGrant { slot, incarnation } = grant;
        let is_asked = self.processes.get(&slot).is_some_and(|(asked, _)| *asked == incarnation);
        if !is_asked {
            if self.say_with(&RegistrationRequest::Process(grant), SendFlags::DONTWAIT).is_err() {
                return EndpointProcess::NotKnown;
            }
            self.processes.insert(slot, (incarnation, None));
        }
        if self.processes.get(&slot).is_some_and(|(_, known)| known.is_none()) {
            self.hear_all();
        }
        match self.processes.get(&slot) {
            Some((_, Some(0))) => EndpointProcess::Nobodys,
            Some((_, Some(number))) => EndpointProcess::Is(*number),
            _ => EndpointProcess::NotKnown,
        }
    }

    /// The next answer that is there. None: it was about a process or a write end, and is kept.
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
        let is_lost = got.flags.contains(ReturnFlags::CTRUNC);
        let answer =
            RegistrationAnswer::from_bytes(&bytes[..got.bytes]).map_err(|_| Lost::Foreign)?;
        match answer {
            RegistrationAnswer::Process { grant, process } => {
                if let Some((asked, known)) = self.processes.get_mut(&grant.slot)
                    && *asked == grant.incarnation
                {
                    *known = Some(process);
                }
            }
            RegistrationAnswer::DoorbellWriteEnd(grant) => {
                // Without one it is the node that rings the next time as well.
                if let Some(write_end) = along.pop()
                    && self.has_room_for_write_end(grant)
                {
                    self.write_ends.insert(grant.slot, (grant.incarnation, write_end));
                }
            }
            // The descriptor that it is about was lost: this process has none left.
            RegistrationAnswer::Doorbell(grant) if is_lost => {
                return Ok(Some((RegistrationAnswer::NoDoorbell(grant), along)));
            }
            _ if is_lost => return Err(Lost::Foreign),
            _ => return Ok(Some((answer, along))),
        }
        Ok(None)
    }
}

/// A connection that something is said over without waiting for what others say and hear.
#[derive(Debug)]
pub(super) struct NodeConnection(Arc<OwnedFd>);

impl NodeConnection {
    /// Says something that is not waited for. `false`: there is no room now.
    pub(super) fn say(&self, request: &RegistrationRequest) -> bool {
        match say_over(&self.0, request, SendFlags::DONTWAIT) {
            Ok(()) => true,
            // A node that is gone can be told nothing, ever.
            Err(errno) => is_closed(errno),
        }
    }
}

impl AsFd for NodeConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn say_over(
    socket: &OwnedFd,
    request: &RegistrationRequest,
    flags: SendFlags,
) -> Result<(), Errno> {
    let flags = flags | SendFlags::NOSIGNAL;
    let bytes = request.to_bytes();
    rustix::io::retry_on_intr(|| rustix::net::send(socket, &bytes, flags).map(drop))
}

fn gone(errno: Errno) -> Lost {
    Lost::Gone(errno.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection without a node: the test plays it at the other end.
    fn connection() -> (Connection, OwnedFd) {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (socket, node) =
            rustix::net::socketpair(kind.0, kind.1, kind.2, None).expect("two ends");
        (Connection::over(socket), node)
    }

    fn answer(node: &OwnedFd, answer: RegistrationAnswer) {
        let sent = rustix::net::send(node, &answer.to_bytes(), SendFlags::empty());
        sent.expect("there is room");
    }

    const SHORT: Duration = Duration::from_millis(1);

    #[test]
    fn a_late_answer_is_taken_for_none_that_it_is_not() {
        let (mut connection, node) = connection();
        let grant = |slot| SlotGrant { slot, incarnation: 1 };
        let given = |slot| RegistrationAnswer::Endpoint { grant: grant(slot), process: 9 };
        let hang = RegistrationRequest::OpenDoorbell(grant(1));
        assert!(matches!(connection.ask_for(&hang, SHORT), Err(Lost::Silent)));
        assert!(matches!(
            connection.ask_for(&RegistrationRequest::NewEndpoint, SHORT),
            Err(Lost::Silent)
        ));
        // The node was stopped, and goes on.
        answer(&node, RegistrationAnswer::Doorbell(grant(1)));
        answer(&node, given(2));
        answer(&node, RegistrationAnswer::Doorbell(grant(3)));
        let heard =
            connection.ask(&RegistrationRequest::OpenDoorbell(grant(3))).expect("it is answered").0;
        assert_eq!(heard, RegistrationAnswer::Doorbell(grant(3)));
        // The descriptor of the late answer is not lost, and the next answer has its own.
        answer(&node, given(4));
        for slot in [2, 4] {
            let heard =
                connection.ask(&RegistrationRequest::NewEndpoint).expect("it is answered").0;
            assert_eq!(heard, given(slot));
        }
    }

    #[test]
    fn a_bell_that_is_refused_is_not_asked_for_again() {
        let (mut connection, node) = connection();
        let grant = SlotGrant { slot: 1, incarnation: 1 };
        let was_asked = || {
            let mut bytes = [0; MESSAGE_BYTES];
            rustix::net::recv(&node, &mut bytes, RecvFlags::DONTWAIT).is_ok()
        };
        assert!(connection.reopen_doorbell(grant).is_none() && was_asked());
        answer(&node, RegistrationAnswer::NoDoorbell(grant));
        assert!((0..3).all(|_| connection.reopen_doorbell(grant).is_none()) && !was_asked());
    }

    #[test]
    fn ropes_of_the_dead_make_room_for_others() {
        let (mut connection, _node) = connection();
        let nothing = std::fs::File::open("/dev/null").expect("it is there");
        for slot in 0..WRITE_ENDS_MAX as u16 {
            let write_end = nothing.try_clone().expect("a descriptor").into();
            connection.write_ends.insert(slot, (1, write_end));
        }
        let [mine, other] = [7, 1000].map(|slot| SlotGrant { slot, incarnation: 1 });
        assert!(connection.wants_write_end(mine, |_| true), "in the place of the one before");
        assert!(!connection.wants_write_end(other, |_| true));
        assert!(connection.wants_write_end(other, |it| it.slot % 2 == 0));
        assert_eq!(connection.write_ends.len(), WRITE_ENDS_MAX / 2);
    }

    #[test]
    fn a_report_to_the_node_is_repeated_unless_it_can_never_succeed() {
        let (connection, node) = connection();
        let request = RegistrationRequest::Ring {
            grant: SlotGrant { slot: 1, incarnation: 1 },
            wants_write_end: true,
        };
        let line = connection.line();
        let said = (0..100_000).take_while(|_| line.say(&request)).count();
        assert!((1..100_000).contains(&said), "until there is no room");
        drop(node);
        assert!(line.say(&request), "for ever");
    }
}
