//! The keeper of an uplink's interface: a thread of its own, since opening and closing an interface
//! may wait for the kernel's network lock. It is started after the process gave rights up; it would
//! keep them otherwise.
//!
//! ```text
//!   keeper                           port
//!     opens ───── incoming ─────────▶  has it
//!     closes ◀─── outgoing ──────────  it is gone, or was seen to be
//! ```
//!
//! There is one at a time: the next is opened when the port has given the last one back.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::thread::{Builder, JoinHandle, Thread};
use std::time::{Duration, Instant};

use handover::SentDescriptors;
use parking_lot::Mutex;
use serde_json::Value;
use sidecore::Waker;
use sidecore::mailbox::{self, Receiver, Sender};

use super::hand_over::InterfaceFds;
use crate::port::{Port, PortCounters};

/// How often an interface that is gone is looked for, and one that cannot say so itself is looked
/// at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// An uplink's state for observers.
#[derive(Debug, Default)]
pub struct UplinkCore {
    up: AtomicBool,
    /// How often it was opened.
    pub opened: AtomicU64,
    /// Nothing is read or written: another process may have it.
    paused: AtomicBool,
    /// Descriptors of the open interface, for another process.
    fds: Mutex<Option<Box<dyn InterfaceFds>>>,
    /// Why it is away.
    why: Mutex<Option<String>>,
    /// The keeper must open it.
    wanted: AtomicBool,
    /// The port has what was opened, or is about to.
    held: AtomicBool,
    ended: AtomicBool,
}

impl UplinkCore {
    /// Leaves the interface alone from now on, or uses it again. The caller must look at the port's
    /// network after that, which wakes its sidecore.
    pub fn set_paused(&self, paused: bool) {
        self.paused.store(paused, SeqCst);
    }

    /// The state of the open interface for [`super::NetworkUplink::adopt`] in another process,
    /// which gets copies of the descriptors. `None` while the interface is away.
    ///
    /// # Errors
    /// When the system has no more descriptors.
    pub fn take_down(&self, sent: &mut SentDescriptors) -> io::Result<Option<Value>> {
        let fds = self.fds.lock();
        fds.as_ref().map(|fds| fds.take_down(sent)).transpose()
    }

    /// Why it is away, or cannot be looked at.
    pub fn why(&self) -> Option<String> {
        self.why.lock().clone()
    }

    /// Whether frames can go out.
    pub fn is_up(&self) -> bool {
        self.up.load(SeqCst)
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.load(Relaxed)
    }

    /// Whether what is open is of no use any more.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(SeqCst)
    }

    fn set_up(&self, is_up: bool) {
        self.up.store(is_up, SeqCst);
    }

    /// Notes the descriptors of the open interface. Without them there is no hand-over.
    fn note(&self, fds: Option<Box<dyn InterfaceFds>>) {
        *self.fds.lock() = fds;
    }
}

/// The observed state of an open interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InterfaceState {
    /// It works, as far as one can see.
    Up,
    /// It is set down, or nothing is plugged in.
    Down,
    /// It is not there any more, or another one has its name.
    Gone,
}

/// An interface that can be opened again and again.
pub(super) trait Source: Send + 'static {
    /// The open interface; the port's.
    type Opened: Send + 'static;
    /// Why it is not.
    type Error: fmt::Display;

    /// The interface's name.
    fn name(&self) -> &str;

    /// Opens it.
    fn open(&mut self) -> Result<Self::Opened, Self::Error>;

    /// Copies of its descriptors, for a hand-over.
    fn fds(opened: &Self::Opened) -> io::Result<Box<dyn InterfaceFds>>;

    /// Its port, on the port's sidecore.
    fn port(
        kept: KeeperPort<Self::Opened>,
        first: Self::Opened,
        counters: Arc<PortCounters>,
    ) -> Box<dyn Port>;

    /// The observed state. Nothing where its port notices by itself that the interface is gone.
    ///
    /// # Errors
    /// When this cannot be found out.
    fn look(&mut self) -> io::Result<Option<InterfaceState>>;

    /// A fault of an interface that works, if there is one.
    fn trouble(&self) -> Option<String> {
        None
    }
}

/// How long the end of a keeper is waited for. One that opens an interface may take longer, since
/// drivers do: it ends by itself after that, and lets go of what it opened.
const END_WAIT: Duration = Duration::from_secs(1);

/// Looks for the interface whenever it is wanted; ends when it is dropped.
#[derive(Debug)]
pub struct Keeper {
    core: Arc<UplinkCore>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.core.ended.store(true, SeqCst);
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        let until = Instant::now() + END_WAIT;
        while !thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        if thread.is_finished() {
            // A panic of its was told already.
            let _ = thread.join();
        }
    }
}

/// The port's side of a keeper.
#[derive(Debug)]
pub(super) struct KeeperPort<O> {
    pub(super) core: Arc<UplinkCore>,
    /// The interface that was opened in place of a lost one.
    pub(super) incoming: Receiver<O>,
    outgoing: Sender<O>,
    keeper: Thread,
}

impl<O> KeeperPort<O> {
    /// The interface is gone: the keeper must close it and look for the next.
    pub(super) fn lose(&mut self, opened: O) {
        self.core.set_up(false);
        self.core.wanted.store(true, SeqCst);
        self.give_back(opened);
    }

    /// Gives back what is gone, and takes what was opened in its place.
    pub(super) fn exchange(&mut self, opened: &mut Option<O>) {
        // Before the word is looked at: the keeper changes that first. If an interface is wanted
        // again by then, the interface that is here was gone before it came.
        let next = self.incoming.receive();
        if self.core.is_wanted() {
            [opened.take(), next].into_iter().flatten().for_each(|gone| self.give_back(gone));
        } else if next.is_some() {
            debug_assert!(opened.is_none(), "there is one at a time");
            *opened = next;
        }
    }

    /// Has the keeper close the interface, which takes a while.
    pub(super) fn give_back(&mut self, opened: O) {
        let put = self.outgoing.put(opened);
        debug_assert!(put.is_ok(), "there is one at a time");
        self.core.held.store(false, SeqCst);
        self.keeper.unpark();
    }
}

/// Hears that the interface is away (`false`) and that it is back.
pub(super) type LinkListener = Box<dyn Fn(bool) + Send>;

/// Starts to look after an interface that is open. Returns the port's side, and the keeper, which
/// the caller must keep as long as the port. `paused`: until [`UplinkCore::set_paused`]. `told`
/// hears when the interface is away (`false`) and when it is back, and must not wait; `waker` wakes
/// the port's sidecore.
pub(super) fn start<S: Source>(
    source: S,
    first: &S::Opened,
    paused: bool,
    waker: Waker,
    told: LinkListener,
) -> io::Result<(KeeperPort<S::Opened>, Keeper)> {
    let core = Arc::<UplinkCore>::default();
    core.set_paused(paused);
    core.note(S::fds(first).ok());
    core.opened.fetch_add(1, Relaxed);
    core.held.store(true, SeqCst);
    core.set_up(true);
    let (port, incoming) = mailbox::channel(1, waker);
    let (outgoing, returned) = mailbox::channel(1, Waker::none());
    let mut keeping =
        KeeperThread { source, core: Arc::clone(&core), port, returned, told, was_up: true };
    let thread = Builder::new().name("uplink".into()).spawn(move || keeping.run())?;
    let handle = thread.thread().clone();
    let keeper = Keeper { core: Arc::clone(&core), thread: Some(thread) };
    Ok((KeeperPort { core, incoming, outgoing, keeper: handle }, keeper))
}

/// The keeper's thread.
struct KeeperThread<S: Source> {
    source: S,
    core: Arc<UplinkCore>,
    port: Sender<S::Opened>,
    returned: Receiver<S::Opened>,
    told: LinkListener,
    /// The state that the listener heard last.
    was_up: bool,
}

impl<S: Source> KeeperThread<S> {
    fn run(&mut self) {
        while !self.core.ended.load(SeqCst) && !self.port.is_abandoned() {
            if self.core.is_paused() {
                // The process that has it looks after it.
                std::thread::park_timeout(LOOK_EVERY);
                continue;
            }
            if self.core.is_wanted() {
                self.open();
                continue;
            }
            match self.source.look() {
                Ok(None) => std::thread::park(),
                Ok(Some(InterfaceState::Gone)) => self.lose(),
                Ok(Some(seen)) => {
                    self.note(seen);
                    std::thread::park_timeout(LOOK_EVERY);
                }
                Err(error) => {
                    // It may well be there.
                    self.say_why(format!("its state cannot be read: {error}"));
                    std::thread::park_timeout(LOOK_EVERY);
                }
            }
        }
        // The interface that the port had to the end.
        drop(self.returned.receive());
    }

    fn tell(&mut self, is_up: bool) {
        if self.was_up != is_up {
            self.was_up = is_up;
            (self.told)(is_up);
        }
    }

    /// Notes why the interface is away, and says each reason once.
    fn say_why(&self, why: String) {
        let mut noted = self.core.why.lock();
        if noted.as_ref() != Some(&why) {
            tracing::warn!(interface = self.source.name(), why, "an uplink has a problem");
            *noted = Some(why);
        }
    }

    fn forget_why(&self) {
        *self.core.why.lock() = None;
    }

    fn lose(&mut self) {
        self.core.set_up(false);
        self.core.wanted.store(true, SeqCst);
    }

    fn note(&mut self, seen: InterfaceState) {
        let is_up = seen == InterfaceState::Up;
        match self.source.trouble() {
            _ if !is_up => self.say_why("it is set down, or nothing is plugged in".to_owned()),
            Some(trouble) => self.say_why(trouble),
            None => self.forget_why(),
        }
        if self.core.is_up() != is_up {
            let state = if is_up { "up" } else { "down" };
            tracing::info!(interface = self.source.name(), state, "an uplink's interface changed");
            self.core.set_up(is_up);
            self.tell(is_up);
        }
    }

    fn open(&mut self) {
        self.tell(false);
        self.core.note(None);
        if self.core.held.load(SeqCst) {
            // Its port lets go of it first, so that nothing is in the way of the next one.
            self.port.wake();
            return std::thread::park_timeout(LOOK_EVERY);
        }
        drop(self.returned.receive());
        match self.source.open() {
            // It is not wanted any more, and its nics may be in another network.
            Ok(_) | Err(_) if self.core.ended.load(SeqCst) => {}
            Ok(opened) => {
                tracing::info!(interface = self.source.name(), "the uplink is back");
                self.core.note(S::fds(&opened).ok());
                self.core.opened.fetch_add(1, Relaxed);
                self.forget_why();
                let is_up = matches!(self.source.look(), Ok(None | Some(InterfaceState::Up)));
                self.core.set_up(is_up);
                self.core.held.store(true, SeqCst);
                self.core.wanted.store(false, SeqCst);
                // There is room, for there is one at a time.
                let _ = self.port.send(opened);
                self.tell(is_up);
            }
            Err(error) => {
                self.say_why(error.to_string());
                std::thread::park_timeout(LOOK_EVERY);
            }
        }
    }
}

#[cfg(test)]
mod tests;
