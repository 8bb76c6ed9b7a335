//! Who opens the interfaces of `xdp` uplinks for a node that has given its rights up: a process of
//! its own, which keeps the rights for that and does nothing else.
//!
//! ```text
//!   node (no rights)                        opener (four capabilities, no files, few calls)
//!         ── number of a name in the file ──▶  takes that interface
//!         ◀── descriptors, or why not ───────
//! ```
//!
//! All that a node that was taken over can ask of it is an interface that the file gave the node
//! anyway. It ends with the node. Why there is one, and what its answers still allow whoever has
//! taken the node over: `docs/decisions/026-xdp-uplink.md`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use link::{XdpCard, XdpCardFds, XdpError, XdpQueueFds};
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

use super::{PrivilegeError, calls, files, system, user};
use crate::channel::Channel;
use crate::config::{Config, Privileges, Uplink};

/// What it takes to have an interface: to set it up and attach a program (NET_ADMIN), to make
/// sockets of AF_XDP and AF_PACKET (NET_RAW), to load the program (BPF), to lock frames into memory
/// (IPC_LOCK).
const CAPABILITIES: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::IPC_LOCK);

/// How long an interface may take to be opened: drivers that have to set rings up anew take
/// seconds.
const OPEN_TIME_MAX: Duration = Duration::from_secs(20);

/// How long the opener waits before it looks whether it is still needed; the end of the node wakes
/// it anyhow.
const WAIT: Duration = Duration::from_secs(3600);

/// Opens interfaces: by itself in a process that keeps its rights, which is the default, else by
/// the process described above. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Opener(Option<Arc<Helper>>);

/// The node's end.
#[derive(Debug)]
struct Helper {
    /// The interfaces that it opens.
    names: Vec<String>,
    talk: Mutex<Talk>,
}

#[derive(Debug)]
struct Talk {
    channel: Channel,
    /// The number of the last question. What answers an earlier one came too late.
    asked: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Question {
    number: u64,
    /// Which of the names.
    name: usize,
}

#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    number: u64,
    /// Index and MTU of the interface; or why it could not be had.
    opened: Result<(u32, u32), String>,
}

impl Opener {
    /// Starts the process, if the file names interfaces and the node is to give its rights up. To
    /// be called while this process has one thread and all its rights.
    ///
    /// # Errors
    /// When the system has no process more.
    pub fn start(config: &Config) -> Result<Self, PrivilegeError> {
        let names: Vec<_> = config.networks.iter().filter_map(interface).collect();
        if names.is_empty() || config.privileges == Privileges::Keep {
            return Ok(Self::default());
        }
        let refuse = system::<io::Error>("start a process that opens interfaces");
        let (ours, theirs) = UnixStream::pair().map_err(&refuse)?;
        let channel = Channel::new(ours, OPEN_TIME_MAX).map_err(&refuse)?;
        // SAFETY: this process has one thread (see above), so the child has all that it has.
        match unsafe { libc::fork() } {
            -1 => Err(refuse(io::Error::last_os_error())),
            0 => {
                let served = catch_unwind(AssertUnwindSafe(|| serve(config, theirs, &names)));
                if let Ok(Err(error)) = &served {
                    tracing::error!(%error, "interfaces that vanish are not opened again");
                }
                // SAFETY: the child's end; nothing of the node's is to be tidied up here.
                unsafe { libc::_exit(i32::from(!matches!(served, Ok(Ok(()))))) }
            }
            _ => {
                let talk = Mutex::new(Talk { channel, asked: 0 });
                Ok(Self(Some(Arc::new(Helper { names, talk }))))
            }
        }
    }

    /// Takes the interface of this name.
    ///
    /// # Errors
    /// What is in the way.
    pub fn open(&self, name: &str) -> Result<XdpCard, XdpError> {
        let Some(helper) = &self.0 else { return XdpCard::open(name) };
        let Some(number) = helper.names.iter().position(|it| it == name) else {
            return Err(XdpError::Opener(
                "this node gave up the right to open it at its start; name it in an uplink of the \
                 node's file and restart the node"
                    .to_owned(),
            ));
        };
        let mut talk = helper.talk.lock().unwrap_or_else(PoisonError::into_inner);
        match talk.ask(number) {
            Ok(Ok(fds)) => XdpCard::adopt(fds),
            Ok(Err(why)) => Err(XdpError::Opener(why)),
            Err(error) => Err(XdpError::Opener(format!(
                "the process that opens interfaces does not answer ({error}); restart the node"
            ))),
        }
    }
}

fn interface(network: &crate::config::NetworkConfig) -> Option<String> {
    match &network.uplink {
        Some(Uplink::Xdp(name)) => Some(name.clone()),
        _ => None,
    }
}

impl Talk {
    fn ask(&mut self, name: usize) -> io::Result<Result<XdpCardFds, String>> {
        self.asked += 1;
        self.channel.send(&Question { number: self.asked, name }, &[])?;
        loop {
            let (answer, fds) = self.channel.receive::<Answer>()?;
            if answer.number != self.asked {
                // Nobody waited so long; its descriptors are closed here.
                continue;
            }
            return match answer.opened {
                Ok(facts) => card(facts, fds).map(Ok),
                Err(why) => Ok(Err(why)),
            };
        }
    }
}

/// Puts together what was sent in the order of [`pack`].
fn card((index, mtu): (u32, u32), fds: Vec<OwnedFd>) -> io::Result<XdpCardFds> {
    let mut fds = fds.into_iter();
    let missing = || io::Error::other("descriptors are missing");
    let (program, listener) = (fds.next().ok_or_else(missing)?, fds.next().ok_or_else(missing)?);
    let mut queues = Vec::new();
    while let Some(socket) = fds.next() {
        queues.push(XdpQueueFds { socket, memory: fds.next().ok_or_else(missing)? });
    }
    Ok(XdpCardFds { index, mtu, program, listener, queues })
}

fn pack(card: XdpCardFds) -> ((u32, u32), Vec<OwnedFd>) {
    let XdpCardFds { index, mtu, program, listener, queues } = card;
    let queues = queues.into_iter().flat_map(|queue| [queue.socket, queue.memory]);
    ((index, mtu), [program, listener].into_iter().chain(queues).collect())
}

/// The child's life.
fn serve(config: &Config, stream: UnixStream, names: &[String]) -> Result<(), PrivilegeError> {
    close_all_but(stream.as_raw_fd());
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: the node's handlers are not for this process; it ends with the node.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let refuse = system::<io::Error>("talk to the node");
    let mut channel = Channel::new(stream, WAIT).map_err(&refuse)?;
    restrict(config)?;
    loop {
        let question = match channel.receive_word::<Question>() {
            Ok(question) => question,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => continue,
            // The node has ended.
            Err(_) => return Ok(()),
        };
        let name = names.get(question.name).ok_or_else(|| "there is no such name".to_owned());
        let opened = name.and_then(|name| {
            let opened = XdpCard::open(name).map_err(|error| error.to_string())?;
            opened.fds().map(pack).map_err(|error| error.to_string())
        });
        let (opened, fds) = match opened {
            Ok((facts, fds)) => (Ok(facts), fds),
            Err(why) => (Err(why), Vec::new()),
        };
        channel.send(&Answer { number: question.number, opened }, &fds).map_err(&refuse)?;
    }
}

/// Gives up what opening interfaces does not need.
fn restrict(config: &Config) -> Result<(), PrivilegeError> {
    let is_root = rustix::process::geteuid().is_root();
    let name = config.user.as_deref().filter(|_| is_root);
    // A user that is not there is the node's to tell of, and ends it.
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

/// Closes whatever the node had open but the log, and this one.
fn close_all_but(kept: RawFd) {
    let kept = kept as libc::c_uint;
    for (first, last) in [(3, kept - 1), (kept + 1, libc::c_uint::MAX)] {
        if first <= last {
            // SAFETY: nothing of this process uses them: what owned them is not run any more.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_put_together_again() {
        let fd = || rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let queues = [0; 3].map(|_| XdpQueueFds { socket: fd(), memory: fd() });
        let before = XdpCardFds {
            index: 7,
            mtu: 1500,
            program: fd(),
            listener: fd(),
            queues: queues.into_iter().collect(),
        };
        let numbers = |card: &XdpCardFds| {
            let of = |queue: &XdpQueueFds| (queue.socket.as_raw_fd(), queue.memory.as_raw_fd());
            let queues: Vec<_> = card.queues.iter().map(of).collect();
            (card.index, card.mtu, card.program.as_raw_fd(), card.listener.as_raw_fd(), queues)
        };
        let expected = numbers(&before);
        let (facts, fds) = pack(before);
        assert_eq!(numbers(&card(facts, fds).unwrap()), expected);
        assert!(card((7, 1500), vec![fd(), fd(), fd()]).is_err(), "a queue without memory");
        assert!(card((7, 1500), vec![fd()]).is_err());
    }
}
