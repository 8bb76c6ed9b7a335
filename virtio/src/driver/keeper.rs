//! A thread that keeps a front end connected, as a VMM's main loop does.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, thread};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::event::signal;
use super::front_end::FrontEnd;

/// How long one round of reconnecting lasts before the keeper looks whether it should stop.
const ROUND: Duration = Duration::from_millis(100);

/// The counts of a keeper.
#[derive(Debug, Default)]
pub struct KeeperCounters {
    hang_ups: AtomicU64,
    reconnects: AtomicU64,
    resumed: AtomicU64,
    /// Why the last round failed, or why it gave up.
    failure: Mutex<Option<String>>,
}

impl KeeperCounters {
    /// How often the back end was found gone.
    pub fn hang_ups(&self) -> u64 {
        self.hang_ups.load(Ordering::Relaxed)
    }

    /// How often a connection was made again.
    pub fn reconnects(&self) -> u64 {
        self.reconnects.load(Ordering::Relaxed)
    }

    /// Requests that were outstanding at the reconnects.
    pub fn resumed(&self) -> u64 {
        self.resumed.load(Ordering::Relaxed)
    }

    /// Why there is no connection, if there is none.
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    fn note(&self, failure: Option<String>) {
        *self.failure.lock() = failure;
    }
}

/// The thread. Ends when it is stopped, dropped, or going on is impossible.
#[derive(Debug)]
pub struct Keeper {
    counters: Arc<KeeperCounters>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<FrontEnd>>,
}

impl Keeper {
    /// Keeps a front end whose rings were taken.
    ///
    /// # Errors
    /// When the system has no thread or descriptor left.
    pub fn new(front_end: FrontEnd) -> io::Result<Self> {
        let counters = Arc::new(KeeperCounters::default());
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (counters_there, stop_there) = (Arc::clone(&counters), Arc::clone(&stop));
        let thread = thread::Builder::new()
            .name("keeper".to_owned())
            .spawn(move || keep(front_end, &counters_there, &stop_there))?;
        Ok(Self { counters, stop, thread: Some(thread) })
    }

    /// The counts so far.
    pub fn counters(&self) -> &KeeperCounters {
        &self.counters
    }

    /// Ends the thread and gives the front end back.
    ///
    /// # Panics
    /// When the thread did.
    pub fn stop(mut self) -> FrontEnd {
        signal(&self.stop);
        let thread = self.thread.take().expect("stopped once");
        thread.join().expect("the keeper does not panic")
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        signal(&self.stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn keep(mut front_end: FrontEnd, counters: &KeeperCounters, stop: &OwnedFd) -> FrontEnd {
    while !stopped(stop, front_end.conversation().map(|conversation| conversation.stream())) {
        if !front_end.hung_up() {
            continue;
        }
        if front_end.conversation().is_some() {
            front_end.hang_up();
            counters.hang_ups.fetch_add(1, Ordering::Relaxed);
        }
        match front_end.reconnect(ROUND) {
            Ok(resumption) => {
                counters.note(None);
                counters.resumed.fetch_add(resumption.outstanding.into(), Ordering::Relaxed);
                counters.reconnects.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                counters.note(Some(error.to_string()));
                if !error.is_passing() {
                    break;
                }
            }
        }
    }
    front_end
}

/// Waits for a hang-up (if there is a stream) and says whether to stop.
fn stopped(stop: &OwnedFd, stream: Option<std::os::fd::BorrowedFd<'_>>) -> bool {
    let mut fds = [
        PollFd::new(stop, PollFlags::IN),
        PollFd::from_borrowed_fd(stream.unwrap_or(stop.as_fd()), PollFlags::RDHUP),
    ];
    let wait = Timespec { tv_sec: 0, tv_nsec: 0 };
    // An error here is an interruption; the next round waits again.
    let _ = poll(&mut fds, if stream.is_some() { None } else { Some(&wait) });
    fds[0].revents().contains(PollFlags::IN)
}
