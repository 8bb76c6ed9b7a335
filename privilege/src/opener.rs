//! The process that opens interfaces for the `xdp` uplinks of a node that has given its rights up.
//! It keeps the rights for this and does nothing else.
//!
//! ```text
//!   node (no rights)                        opener (four capabilities, no files, few calls)
//!         ── number of a name in the file ──▶  takes that interface, keeps it promiscuous
//!         ◀── descriptors, or why not ───────
//!         ── let go of that ─────────────────▶  no longer
//! ```
//!
//! An intruder in the node's process can ask it only for interfaces that the file gave the node
//! anyway. An interface is kept promiscuous by a packet socket, which could listen to all other
//! interfaces. So the socket stays in this process, and goes with the node at the latest. Why there
//! is an opener at all: `docs/decisions/026-xdp-uplink.md`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::{Config, Privileges};
use link::{Promiscuous, XdpCard, XdpCardFds, XdpError, XdpQueueFds};
use net::uplink::{Cards, InterfaceClaim, OwnCards};
use parking_lot::{Mutex, MutexGuard};
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

use super::error::{PrivilegeError, system};
use super::{calls, files, user};
use handover::channel::{Channel, LOST};

/// The capabilities for an interface: to set it up and attach a program (NET_ADMIN), to make
/// sockets of AF_XDP and AF_PACKET (NET_RAW), to load the program (BPF), to lock frames into memory
/// (IPC_LOCK).
const CAPABILITIES: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::IPC_LOCK);

/// How long opening an interface may take: drivers that have to set rings up anew take seconds.
const OPEN_TIME_MAX: Duration = Duration::from_secs(20);

/// How long the opener waits before it checks whether it is still needed. The end of the node wakes
/// it in any case.
const WAIT: Duration = Duration::from_secs(3600);

/// Opens interfaces with the rights that this process has. Clones share one opener.
#[derive(Clone, Debug, Default)]
pub struct Opener(OpenerRights);

#[derive(Clone, Debug, Default)]
enum OpenerRights {
    /// This process keeps its rights.
    #[default]
    Own,
    /// This process gives its rights up, and had no interface to open before.
    No,
    /// The process described above opens them.
    Helper(Arc<OpenerClient>),
}

/// How long the node waits for the end of the opener once no node asks it any more: it may be about
/// to open an interface.
const END_WAIT: Duration = Duration::from_millis(200);

/// The node's end of the conversation.
#[derive(Debug)]
struct OpenerClient {
    /// The interfaces that the opener opens.
    names: Vec<String>,
    process: Mutex<OpenerProcess>,
    /// Sends a message that has no answer.
    says: Mutex<Channel>,
    hears: Mutex<AnswerChannel>,
}

/// Held from a question to its answer.
#[derive(Debug)]
struct AnswerChannel {
    channel: Channel,
    /// The number of the last question. An answer with another number is for an earlier question,
    /// and too late.
    asked: u64,
}

/// The opener, as a child of this process.
#[derive(Debug)]
enum OpenerProcess {
    Runs(libc::pid_t),
    /// It has ended, and the text says how.
    Ended(String),
}

impl OpenerProcess {
    /// How the process has ended, if it has. The process is reaped then.
    fn look(&mut self) -> Option<&str> {
        if let Self::Runs(pid) = *self {
            let mut status = 0;
            // SAFETY: it writes an integer. The process is a child, and no other code waits for it.
            let found = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
            if found == 0 || (found < 0 && io::Error::last_os_error().kind() == INTERRUPTED) {
                return None;
            }
            *self = Self::Ended(match () {
                () if found != pid => "unseen".to_owned(),
                () if libc::WIFSIGNALED(status) => format!("by signal {}", libc::WTERMSIG(status)),
                () => format!("with status {}", libc::WEXITSTATUS(status)),
            });
        }
        match self {
            Self::Runs(_) => None,
            Self::Ended(how) => Some(how),
        }
    }
}

const INTERRUPTED: io::ErrorKind = io::ErrorKind::Interrupted;

#[derive(Debug, Serialize, Deserialize)]
struct OpenerQuestion {
    number: u64,
    what: QuestionKind,
}

/// Questions give an interface by the place of its name in the file.
#[derive(Debug, Serialize, Deserialize)]
enum QuestionKind {
    /// Take the interface, and keep it promiscuous.
    Open { name: usize },
    /// Keep it promiscuous: another process has opened it.
    Hold { name: usize, index: u32 },
    /// Release the sockets that were kept since the question of this number. It has no answer.
    LetGo { since: u64 },
}

/// Index and MTU of an interface.
type Facts = (u32, u32);

#[derive(Debug, Serialize, Deserialize)]
struct OpenerAnswer {
    number: u64,
    /// The facts of an interface that was opened; or the reason why it was not.
    done: Result<Option<Facts>, String>,
}

/// A promiscuous interface that the opener keeps for the node until this is dropped.
#[derive(Debug)]
struct KeptInterface {
    helper: Arc<OpenerClient>,
    since: u64,
}

impl Drop for KeptInterface {
    fn drop(&mut self) {
        let question =
            OpenerQuestion { number: 0, what: QuestionKind::LetGo { since: self.since } };
        // An error means that the opener has ended, and then it keeps nothing.
        let _ = lock(&self.helper.says).send(&question, &[]);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl Opener {
    /// Starts the process, if the file names interfaces and the node will give its rights up. It
    /// must be called while this process has one thread and all its rights.
    ///
    /// # Errors
    /// When the system has no process more.
    pub fn start(config: &Config) -> Result<Self, PrivilegeError> {
        if config.privileges == Privileges::Keep {
            return Ok(Self(OpenerRights::Own));
        }
        let uplinks = config.networks.iter().filter_map(|network| network.uplink.as_ref());
        let names: Vec<_> = uplinks.filter_map(|it| it.card().map(str::to_owned)).collect();
        if names.is_empty() {
            return Ok(Self(OpenerRights::No));
        }
        let refuse = system::<io::Error>("start a process that opens interfaces");
        let (ours, theirs) = UnixStream::pair().map_err(&refuse)?;
        let says = ours.try_clone().and_then(|ours| Channel::new(ours, OPEN_TIME_MAX));
        let says = Mutex::new(says.map_err(&refuse)?);
        let channel = Channel::new(ours, OPEN_TIME_MAX).map_err(&refuse)?;
        // SAFETY: this process has one thread (see above), so the child has the whole state.
        match unsafe { libc::fork() } {
            -1 => Err(refuse(io::Error::last_os_error())),
            0 => {
                let served = catch_unwind(AssertUnwindSafe(|| serve(config, theirs, &names)));
                if let Ok(Err(error)) = &served {
                    tracing::error!(%error, "interfaces that vanish are not opened again");
                }
                // SAFETY: the child's end; it must not run the node's cleanup.
                unsafe { libc::_exit(i32::from(!matches!(served, Ok(Ok(()))))) }
            }
            pid => {
                let hears = Mutex::new(AnswerChannel { channel, asked: 0 });
                let process = Mutex::new(OpenerProcess::Runs(pid));
                Ok(Self(OpenerRights::Helper(Arc::new(OpenerClient {
                    names,
                    process,
                    says,
                    hears,
                }))))
            }
        }
    }
}

impl Cards for Opener {
    fn open(&self, name: &str) -> Result<(XdpCard, InterfaceClaim), XdpError> {
        let helper = match &self.0 {
            OpenerRights::Own => return OwnCards.open(name),
            OpenerRights::No => return Err(not_named()),
            OpenerRights::Helper(helper) => helper,
        };
        let name = helper.number_of(name)?;
        let Answered { facts, fds, kept } = helper.ask(QuestionKind::Open { name })?;
        let fds = facts.and_then(|facts| put_together(facts, fds));
        let fds = fds.ok_or_else(|| no_answer(&"descriptors are missing"))?;
        // SAFETY: the opener has opened the interface for this answer, and does not use it itself.
        let card = unsafe { XdpCard::adopt(fds)? };
        Ok((card, Box::new(kept)))
    }

    fn hold(&self, name: &str, index: u32) -> Result<InterfaceClaim, XdpError> {
        let helper = match &self.0 {
            OpenerRights::Own => return OwnCards.hold(name, index),
            OpenerRights::No => return Err(not_named()),
            OpenerRights::Helper(helper) => helper,
        };
        let name = helper.number_of(name)?;
        let Answered { kept, .. } = helper.ask(QuestionKind::Hold { name, index })?;
        Ok(Box::new(kept))
    }

    fn trouble(&self) -> Option<String> {
        let OpenerRights::Helper(helper) = &self.0 else { return None };
        let mut process = lock(&helper.process);
        let how = process.look()?;
        Some(format!(
            "the process that opens interfaces has ended {how}: an interface that vanishes is not \
             opened again, and gets frames for its own address only; restart the node"
        ))
    }
}

/// The error for an interface for which this node has no rights any more.
fn not_named() -> XdpError {
    let text = "this node gave up the right to open it at its start; name the interface in an \
                uplink of the node's file and restart the node";
    XdpError::Opener(text.to_owned())
}

fn no_answer(why: &dyn std::fmt::Display) -> XdpError {
    let text = "the process that opens interfaces does not answer";
    let way_out = "the log says why if it has ended; restart the node with the rights for the \
                   interface";
    XdpError::Opener(format!("{text} ({why}): {way_out}"))
}

impl Drop for OpenerClient {
    /// The opener ends when it hears that its node asks no more.
    fn drop(&mut self) {
        lock(&self.says).end();
        let until = Instant::now() + END_WAIT;
        let process = self.process.get_mut();
        while process.look().is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// An answer of the opener.
struct Answered {
    facts: Option<Facts>,
    fds: Vec<OwnedFd>,
    /// Undoes the work when it is dropped.
    kept: KeptInterface,
}

impl OpenerClient {
    fn number_of(&self, name: &str) -> Result<usize, XdpError> {
        self.names.iter().position(|it| it == name).ok_or_else(not_named)
    }

    /// Asks a question, and waits for the answer to this question.
    fn ask(self: &Arc<Self>, what: QuestionKind) -> Result<Answered, XdpError> {
        let mut hears = lock(&self.hears);
        hears.asked += 1;
        let number = hears.asked;
        // It is made before the answer: when the answer fails to arrive, dropping it undoes the
        // work.
        let kept = KeptInterface { helper: Arc::clone(self), since: number };
        let said = lock(&self.says).send(&OpenerQuestion { number, what }, &[]);
        said.map_err(|error| no_answer(&error))?;
        let (answer, fds) = hears.answer().map_err(|error| match error.kind() {
            LOST => XdpError::Opener(error.to_string()),
            _ => no_answer(&error),
        })?;
        Ok(Answered { facts: answer.done.map_err(XdpError::Opener)?, fds, kept })
    }
}

impl AnswerChannel {
    fn answer(&mut self) -> io::Result<(OpenerAnswer, Vec<OwnedFd>)> {
        loop {
            let (answer, fds) = self.channel.receive::<OpenerAnswer>()?;
            // An answer to an earlier question: its caller has given up, and its descriptors close
            // here.
            if answer.number == self.asked {
                return Ok((answer, fds));
            }
        }
    }
}

/// Puts together the descriptors in the order of [`pack`]; `None` if some are missing.
fn put_together((index, mtu): Facts, fds: Vec<OwnedFd>) -> Option<XdpCardFds> {
    let mut fds = fds.into_iter();
    let program = fds.next()?;
    let mut queues = Vec::new();
    while let Some(socket) = fds.next() {
        queues.push(XdpQueueFds { socket, memory: fds.next()? });
    }
    Some(XdpCardFds { index, mtu, program, queues })
}

fn pack(card: XdpCardFds) -> (Facts, Vec<OwnedFd>) {
    let XdpCardFds { index, mtu, program, queues } = card;
    let queues = queues.into_iter().flat_map(|queue| [queue.socket, queue.memory]);
    ((index, mtu), std::iter::once(program).chain(queues).collect())
}

/// Answers the node's questions until the node ends.
fn serve(config: &Config, stream: UnixStream, names: &[String]) -> Result<(), PrivilegeError> {
    close_all_but(stream.as_raw_fd()).map_err(system("close the node's descriptors"))?;
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: the node's handlers must not run in this process, which ends with the node.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let refuse = system::<io::Error>("talk to the node");
    let mut channel = Channel::new(stream, WAIT).map_err(&refuse)?;
    restrict(config)?;
    let mut keeps = KeptSockets { names, kept: names.iter().map(|_| None).collect() };
    loop {
        let OpenerQuestion { number, what } = match channel.receive_word() {
            Ok(question) => question,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => continue,
            // The node has ended.
            Err(_) => return Ok(()),
        };
        let (done, fds) = match what {
            QuestionKind::Open { name } => match keeps.open(number, name) {
                Ok((facts, fds)) => (Ok(Some(facts)), fds),
                Err(why) => (Err(why), Vec::new()),
            },
            QuestionKind::Hold { name, index } => {
                (keeps.hold(number, name, index).map(|()| None), Vec::new())
            }
            QuestionKind::LetGo { since } => {
                keeps.let_go(since);
                continue;
            }
        };
        channel.send(&OpenerAnswer { number, done }, &fds).map_err(&refuse)?;
    }
}

/// The sockets that stay in the opener.
struct KeptSockets<'n> {
    names: &'n [String],
    /// For each name, the socket that keeps the interface promiscuous, and the question that asked
    /// for it. One at most: a second open means that the first interface is gone.
    kept: Vec<Option<(u64, Promiscuous)>>,
}

impl KeptSockets<'_> {
    fn name(&self, number: usize) -> Result<&str, String> {
        self.names
            .get(number)
            .map(|name| &**name)
            .ok_or_else(|| "there is no interface of this name".to_owned())
    }

    fn open(&mut self, since: u64, number: usize) -> Result<(Facts, Vec<OwnedFd>), String> {
        let (card, promiscuous) = XdpCard::open(self.name(number)?).map_err(text)?;
        let fds = card.fds().map_err(text)?;
        self.kept[number] = Some((since, promiscuous));
        Ok(pack(fds))
    }

    fn hold(&mut self, since: u64, number: usize, index: u32) -> Result<(), String> {
        let promiscuous = Promiscuous::beside(self.name(number)?, index).map_err(text)?;
        self.kept[number] = Some((since, promiscuous));
        Ok(())
    }

    fn let_go(&mut self, since: u64) {
        for kept in &mut self.kept {
            kept.take_if(|(number, _)| *number == since);
        }
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Gives up all rights that opening interfaces does not need.
fn restrict(config: &Config) -> Result<(), PrivilegeError> {
    let is_root = rustix::process::geteuid().is_root();
    let name = config.user.as_deref().filter(|_| is_root);
    // The node itself reports a user that does not exist, and ends with it.
    let user = name.and_then(|name| user::find(name).ok().flatten());
    match user {
        Some(user) => user.become_it(CAPABILITIES)?,
        None => user::keep_capabilities(CAPABILITIES)?,
    }
    rustix::thread::set_no_new_privs(true).map_err(system("give up new privileges"))?;
    let dumpable = rustix::process::DumpableBehavior::NotDumpable;
    rustix::process::set_dumpable_behavior(dumpable).map_err(system("forbid core files"))?;
    files::restrict_to_none()?;
    calls::filter_opener()
}

/// Closes all descriptors of the node but the log's and this one.
fn close_all_but(kept: RawFd) -> io::Result<()> {
    let kept = kept as libc::c_uint;
    for (first, last) in [(3, kept - 1), (kept + 1, libc::c_uint::MAX)] {
        if first > last {
            continue;
        }
        // SAFETY: no code of this process uses them: their owners do not run here.
        if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_messages_are_put_together_again() {
        let fd = || rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let queues = [0; 3].map(|_| XdpQueueFds { socket: fd(), memory: fd() });
        let before =
            XdpCardFds { index: 7, mtu: 1500, program: fd(), queues: queues.into_iter().collect() };
        let numbers = |card: &XdpCardFds| {
            let of = |queue: &XdpQueueFds| (queue.socket.as_raw_fd(), queue.memory.as_raw_fd());
            let queues: Vec<_> = card.queues.iter().map(of).collect();
            (card.index, card.mtu, card.program.as_raw_fd(), queues)
        };
        let expected = numbers(&before);
        let (facts, fds) = pack(before);
        assert_eq!(numbers(&put_together(facts, fds).unwrap()), expected);
        assert!(put_together((7, 1500), vec![fd(), fd()]).is_none(), "a queue without memory");
        assert!(put_together((7, 1500), vec![]).is_none());
    }
}
