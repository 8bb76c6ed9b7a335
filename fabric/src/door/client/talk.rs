//! A process's connection to the node: questions, and their answers in order.

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

use super::super::wire::{ALONG_MAX, Answer, MESSAGE_BYTES, Request, Seat};
use crate::Process;
use crate::bell::{self, Rung, is_cut};

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
    socket: Arc<OwnedFd>,
    /// By slot: the incarnation that was asked for last, and its process once that was answered (0
    /// for nobody's). The answer may come between others.
    processes: HashMap<u16, (u32, Option<u32>)>,
    /// By slot: which of its owners it is about, and by what that one is woken. [`ROPES_MAX`] at
    /// most; their answers may come between others as well.
    ropes: HashMap<u16, (u32, OwnedFd)>,
    /// By slot: for which of its owners, who is this process's, another bell was asked for, and
    /// what it hears it by once that has come.
    bells: HashMap<u16, (u32, Option<OwnedFd>)>,
    /// Answers that came too late for their questions, as good for the next: slots are all the
    /// same. As many at most as questions were given up.
    late_seats: Vec<Answer>,
}

/// Ropes that a process keeps: a descriptor each. Who sleeps beyond those is woken by the node.
pub(super) const ROPES_MAX: usize = 256;

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
                answer => {
                    answer?;
                    return Ok(Self::over(socket));
                }
            }
        }
    }

    fn over(socket: OwnedFd) -> Self {
        let (processes, ropes) = (HashMap::new(), HashMap::new());
        let (bells, late_seats) = (HashMap::new(), Vec::new());
        Self { socket: Arc::new(socket), processes, ropes, bells, late_seats }
    }

    /// The connection, for what needs no answer.
    pub(super) fn line(&self) -> Line {
        Line(Arc::clone(&self.socket))
    }

    /// Says something that is not answered.
    pub(super) fn say(&self, request: &Request) -> Result<(), Errno> {
        self.say_with(request, SendFlags::empty())
    }

    fn say_with(&self, request: &Request, flags: SendFlags) -> Result<(), Errno> {
        say_over(&self.socket, request, flags)
    }

    /// Wakes an endpoint by its rope. `false`: there is none here, or it cannot be done now.
    pub(super) fn ring(&mut self, seat: Seat) -> bool {
        if !self.has_rope(seat) {
            self.hear_all();
        }
        if !self.has_rope(seat) {
            return false;
        }
        let (_, rope) = &self.ropes[&seat.slot];
        let rung = bell::ring(rope);
        if rung == Rung::Cut {
            // Its owner is no more, or has another bell, which the node knows.
            self.ropes.remove(&seat.slot);
        }
        rung == Rung::Heard
    }

    fn has_rope(&self, seat: Seat) -> bool {
        self.ropes.get(&seat.slot).is_some_and(|(whose, _)| *whose == seat.incarnation)
    }

    /// Whether one more rope can be kept, once those are dropped of which none lives.
    pub(super) fn wants_rope(&mut self, seat: Seat, lives: impl Fn(Seat) -> bool) -> bool {
        if !self.has_room_for_rope(seat) {
            self.ropes.retain(|&slot, &mut (incarnation, _)| lives(Seat { slot, incarnation }));
        }
        self.has_room_for_rope(seat)
    }

    fn has_room_for_rope(&self, seat: Seat) -> bool {
        self.ropes.len() < ROPES_MAX || self.ropes.contains_key(&seat.slot)
    }

    /// What an endpoint of this process, which has lost its bell, hears another one by, once it has
    /// come: it is asked for, and not waited for.
    pub(super) fn bell_again(&mut self, seat: Seat) -> Option<OwnedFd> {
        let Seat { slot, incarnation } = seat;
        self.hear_all();
        if self.bells.get(&slot).is_none_or(|(whose, _)| *whose != incarnation) {
            self.say_with(&Request::HangBell(seat), SendFlags::DONTWAIT).ok()?;
            self.bells.insert(slot, (incarnation, None));
            return None;
        }
        let come = self.bells.get_mut(&slot).and_then(|(_, ear)| ear.take())?;
        self.bells.remove(&slot);
        Some(come)
    }

    /// Whatever has come by now, of which nobody waits for anything.
    fn hear_all(&mut self) {
        while let Ok(heard) = self.hear() {
            if let Some((answer, along)) = heard {
                self.keep(answer, along);
            }
        }
    }

    /// What was not waited for, or not as long as it took.
    fn keep(&mut self, answer: Answer, mut along: Vec<OwnedFd>) {
        match answer {
            Answer::Endpoint { .. } => self.late_seats.push(answer),
            Answer::Bell(seat) => {
                if let Some((whose, ear)) = self.bells.get_mut(&seat.slot)
                    && *whose == seat.incarnation
                {
                    *ear = along.pop();
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
    pub(super) fn ask(&mut self, request: &Request) -> Result<Heard, Lost> {
        self.ask_for(request, PATIENCE)
    }

    /// The same, with so much patience.
    pub(super) fn ask_for(&mut self, request: &Request, time: Duration) -> Result<Heard, Lost> {
        if *request == Request::NewEndpoint
            && let Some(late) = self.late_seats.pop()
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
    pub(super) fn process_of(&mut self, seat: Seat) -> Process {
        let Seat { slot, incarnation } = seat;
        let is_asked = self.processes.get(&slot).is_some_and(|(asked, _)| *asked == incarnation);
        if !is_asked {
            if self.say_with(&Request::Process(seat), SendFlags::DONTWAIT).is_err() {
                return Process::NotKnown;
            }
            self.processes.insert(slot, (incarnation, None));
        }
        if self.processes.get(&slot).is_some_and(|(_, known)| known.is_none()) {
            self.hear_all();
        }
        match self.processes.get(&slot) {
            Some((_, Some(0))) => Process::Nobodys,
            Some((_, Some(number))) => Process::Is(*number),
            _ => Process::NotKnown,
        }
    }

    /// The next answer that is there. None: it was about a process or a rope, and is kept.
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
        let answer = Answer::from_bytes(&bytes[..got.bytes]).map_err(|_| Lost::Foreign)?;
        match answer {
            Answer::Process { seat, process } => {
                if let Some((asked, known)) = self.processes.get_mut(&seat.slot)
                    && *asked == seat.incarnation
                {
                    *known = Some(process);
                }
            }
            Answer::Rope(seat) => {
                // Without one it is the node that rings the next time as well.
                if let Some(rope) = along.pop()
                    && self.has_room_for_rope(seat)
                {
                    self.ropes.insert(seat.slot, (seat.incarnation, rope));
                }
            }
            // The descriptor that it is about was lost: this process has none left.
            Answer::Bell(seat) if is_lost => return Ok(Some((Answer::NoBell(seat), along))),
            _ if is_lost => return Err(Lost::Foreign),
            _ => return Ok(Some((answer, along))),
        }
        Ok(None)
    }
}

/// A connection that something is said over without waiting for what others say and hear.
#[derive(Debug)]
pub(super) struct Line(Arc<OwnedFd>);

impl Line {
    /// Says something that is not waited for. `false`: there is no room now.
    pub(super) fn say(&self, request: &Request) -> bool {
        match say_over(&self.0, request, SendFlags::DONTWAIT) {
            Ok(()) => true,
            // A node that is gone can be told nothing, ever.
            Err(errno) => is_cut(errno),
        }
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn say_over(socket: &OwnedFd, request: &Request, flags: SendFlags) -> Result<(), Errno> {
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

    /// A talk with nobody, whose part is played by the other end.
    fn talk() -> (Talk, OwnedFd) {
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (socket, node) =
            rustix::net::socketpair(kind.0, kind.1, kind.2, None).expect("two ends");
        (Talk::over(socket), node)
    }

    fn answer(node: &OwnedFd, answer: Answer) {
        let sent = rustix::net::send(node, &answer.to_bytes(), SendFlags::empty());
        sent.expect("there is room");
    }

    const SHORT: Duration = Duration::from_millis(1);

    #[test]
    fn a_late_answer_is_taken_for_none_that_it_is_not() {
        let (mut talk, node) = talk();
        let seat = |slot| Seat { slot, incarnation: 1 };
        let given = |slot| Answer::Endpoint { seat: seat(slot), process: 9 };
        let hang = Request::HangBell(seat(1));
        assert!(matches!(talk.ask_for(&hang, SHORT), Err(Lost::Silent)));
        assert!(matches!(talk.ask_for(&Request::NewEndpoint, SHORT), Err(Lost::Silent)));
        // The node was stopped, and goes on.
        answer(&node, Answer::Bell(seat(1)));
        answer(&node, given(2));
        answer(&node, Answer::Bell(seat(3)));
        let heard = talk.ask(&Request::HangBell(seat(3))).expect("it is answered").0;
        assert_eq!(heard, Answer::Bell(seat(3)));
        // What was given is not lost, and the next one's is the next one's.
        answer(&node, given(4));
        for slot in [2, 4] {
            let heard = talk.ask(&Request::NewEndpoint).expect("it is answered").0;
            assert_eq!(heard, given(slot));
        }
    }

    #[test]
    fn a_bell_that_is_refused_is_not_asked_for_again() {
        let (mut talk, node) = talk();
        let seat = Seat { slot: 1, incarnation: 1 };
        let was_asked = || {
            let mut bytes = [0; MESSAGE_BYTES];
            rustix::net::recv(&node, &mut bytes, RecvFlags::DONTWAIT).is_ok()
        };
        assert!(talk.bell_again(seat).is_none() && was_asked());
        answer(&node, Answer::NoBell(seat));
        assert!((0..3).all(|_| talk.bell_again(seat).is_none()) && !was_asked());
    }

    #[test]
    fn ropes_of_the_dead_make_room_for_others() {
        let (mut talk, _node) = talk();
        let nothing = std::fs::File::open("/dev/null").expect("it is there");
        for slot in 0..ROPES_MAX as u16 {
            let rope = nothing.try_clone().expect("a descriptor").into();
            talk.ropes.insert(slot, (1, rope));
        }
        let [mine, other] = [7, 1000].map(|slot| Seat { slot, incarnation: 1 });
        assert!(talk.wants_rope(mine, |_| true), "in the place of the one before");
        assert!(!talk.wants_rope(other, |_| true));
        assert!(talk.wants_rope(other, |it| it.slot % 2 == 0));
        assert_eq!(talk.ropes.len(), ROPES_MAX / 2);
    }

    #[test]
    fn what_a_node_cannot_be_told_now_is_said_again_and_what_it_never_can_is_not() {
        let (talk, node) = talk();
        let request = Request::Ring { seat: Seat { slot: 1, incarnation: 1 }, wants_rope: true };
        let line = talk.line();
        let said = (0..100_000).take_while(|_| line.say(&request)).count();
        assert!((1..100_000).contains(&said), "until there is no room");
        drop(node);
        assert!(line.say(&request), "for ever");
    }
}
