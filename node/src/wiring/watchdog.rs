//! Finds sidecores that are stuck: in a system call that blocks, in a page fault of a guest's
//! memory, or in a round that does not end.
//!
//! A thread of its own reads three words of memory of each sidecore some seven times a second. Only
//! where a round is the same as at the last look it asks the system about the thread: a thread that
//! waits for a core is not stuck. A stuck sidecore is in the status, in the metrics and in the log,
//! and the service manager hears of it where the configuration says so
//! (`docs/decisions/050-watchdog.md`).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use sessions::LinkedSidecore;
use sidecore::{Health, PulseView, Sidecore, ThreadLook, Watch};

use crate::notify::Pings;
use api::status::{Counters, StuckStatus};

/// The time between two looks. A sidecore is stuck after six looks at the same round ([`Watch`]),
/// so it is found within a second.
const LOOK: Duration = Duration::from_millis(150);

/// For this long after a line in the log, a sidecore that is stuck again is only counted: a guest
/// that can cause it again and again must not fill the log.
const LOG_PAUSE: Duration = Duration::from_secs(60);

/// The thread that looks, and the channel that ends it.
type WatchdogThread = (Sender<()>, JoinHandle<()>);

/// The watchdog of a node's sidecores. Dropping it ends its thread.
#[derive(Debug)]
pub(crate) struct Watchdog {
    seen: Arc<WatchdogFindings>,
    looker: Mutex<Option<WatchdogThread>>,
}

/// The findings, which the thread and its readers share.
#[derive(Debug)]
struct WatchdogFindings {
    cores: Mutex<Vec<SidecoreFindings>>,
    pings: Mutex<Option<Pings>>,
}

/// The findings about one sidecore.
#[derive(Clone, Debug, Default)]
struct SidecoreFindings {
    stuck: Option<StuckSidecore>,
    /// How often it was stuck, and for how long in all. The present time is added when it ends.
    stalls: u64,
    stalled_ns: u64,
    logged: Option<Instant>,
}

/// A sidecore that is stuck.
#[derive(Clone, Debug)]
struct StuckSidecore {
    since: Instant,
    what: String,
    is_logged: bool,
}

impl Watchdog {
    /// Begins to look at these sidecores. Without the thread the node still serves its guests; the
    /// log says that the watchdog is missing.
    pub(crate) fn start(cores: &[LinkedSidecore]) -> Self {
        let cores: Vec<_> = cores.iter().map(|core| core.sidecore.clone()).collect();
        let seen = Arc::new(WatchdogFindings {
            cores: Mutex::new(vec![SidecoreFindings::default(); cores.len()]),
            pings: Mutex::default(),
        });
        let (stop, stopped) = channel();
        let look = {
            let seen = Arc::clone(&seen);
            move || look_on(&cores, &seen, &stopped)
        };
        let thread = std::thread::Builder::new().name("watchdog".to_owned()).spawn(look);
        let looker = thread.inspect_err(|error| {
            tracing::error!(%error, "no thread for the watchdog: a stuck sidecore is not reported");
        });
        Self { seen, looker: Mutex::new(looker.ok().map(|thread| (stop, thread))) }
    }

    /// Tells a service manager from now on that the node lives.
    pub(crate) fn tie(&self, pings: Pings) {
        *lock(&self.seen.pings) = Some(pings);
    }

    /// The way in which a sidecore is stuck, if it is.
    pub(crate) fn stuck(&self, index: usize) -> Option<StuckStatus> {
        let cores = lock(&self.seen.cores);
        let stuck = cores.get(index)?.stuck.as_ref()?;
        let for_ms = stuck.since.elapsed().as_millis().try_into().unwrap_or(u64::MAX);
        Some(StuckStatus { for_ms, what: stuck.what.clone() })
    }

    /// The first sidecore that is stuck.
    pub(crate) fn first_stuck(&self) -> Option<(usize, StuckStatus)> {
        let count = lock(&self.seen.cores).len();
        (0..count).find_map(|index| Some((index, self.stuck(index)?)))
    }

    /// How often a sidecore was stuck, and for how long.
    pub(crate) fn counters(&self, index: usize, counters: &mut Counters) {
        let cores = lock(&self.seen.cores);
        let Some(core) = cores.get(index) else { return };
        let present_ns = core.stuck.as_ref().map_or(0, |stuck| nanoseconds(stuck.since.elapsed()));
        counters.insert("stuck_now".to_owned(), u64::from(core.stuck.is_some()));
        counters.insert("stalls".to_owned(), core.stalls);
        counters.insert("stalled_ns".to_owned(), core.stalled_ns.saturating_add(present_ns));
    }

    /// Ends the thread. A second call has no effect.
    pub(crate) fn stop(&self) {
        let Some((stop, thread)) = lock(&self.looker).take() else { return };
        drop(stop);
        if thread.join().is_err() {
            tracing::error!("the watchdog's thread panicked");
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos().try_into().unwrap_or(u64::MAX)
}

fn look_on(cores: &[Sidecore], seen: &WatchdogFindings, stopped: &Receiver<()>) {
    let mut watches: Vec<_> = cores.iter().map(|_| (Watch::default(), Instant::now())).collect();
    while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        let mut all_move = true;
        for (index, (core, (watch, moved))) in cores.iter().zip(&mut watches).enumerate() {
            let look = core.look();
            let health = watch.look(look, || thread_look(core.thread()));
            all_move &= health == Health::Moving;
            let now = Instant::now();
            let was_stuck = core.is_stuck();
            match health {
                Health::Moving => {
                    if watch.is_new() {
                        *moved = now;
                    }
                    if was_stuck {
                        core.set_stuck(false);
                        goes_on(index, &mut lock(&seen.cores)[index]);
                    }
                }
                Health::Blocked | Health::Endless => {
                    core.set_stuck(true);
                    let what = || describe(core, &look, health);
                    is_stuck(index, &mut lock(&seen.cores)[index], *moved, what);
                }
            }
        }
        if let Some(pings) = &mut *lock(&seen.pings) {
            pings.look(Instant::now(), all_move);
        }
    }
}

fn is_stuck(
    index: usize,
    core: &mut SidecoreFindings,
    since: Instant,
    what: impl FnOnce() -> String,
) {
    let may_log = core.logged.is_none_or(|logged| logged.elapsed() >= LOG_PAUSE);
    if core.stuck.is_none() {
        core.stalls += 1;
        core.stuck = Some(StuckSidecore { since, what: what(), is_logged: false });
    }
    let Some(stuck) = core.stuck.as_mut().filter(|stuck| may_log && !stuck.is_logged) else {
        return;
    };
    stuck.is_logged = true;
    core.logged = Some(Instant::now());
    tracing::error!(
        sidecore = index,
        what = stuck.what,
        "a sidecore is stuck: all that it serves stands still, the rest of the node runs. The log \
         says when it runs again; if it does not, restart the node: guests reconnect"
    );
}

fn goes_on(index: usize, core: &mut SidecoreFindings) {
    let Some(stuck) = core.stuck.take() else { return };
    let stalled = stuck.since.elapsed();
    core.stalled_ns = core.stalled_ns.saturating_add(nanoseconds(stalled));
    if stuck.is_logged {
        let stalled_ms = stalled.as_millis();
        tracing::warn!(sidecore = index, stalled_ms, "a sidecore that was stuck runs again");
    }
}

/// Where a sidecore is stuck, as far as it can be found out.
fn describe(core: &Sidecore, look: &PulseView, health: Health) -> String {
    let doing = core.explain(look);
    let inside = match health {
        Health::Endless => "without an end".to_owned(),
        _ => blocked_in(core.thread()),
    };
    format!("{doing}, {inside}")
}

fn of_thread(thread: i32, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/task/{thread}/{file}"))
}

/// The system call and the kernel's function. The kernel tells the call only where the process may
/// be traced by its own user, so not after rights were given up.
fn blocked_in(thread: i32) -> String {
    let read = |file| std::fs::read_to_string(of_thread(thread, file)).ok();
    let state = read("stat").and_then(|stat| state_of(&stat));
    if matches!(state, Some('t' | 'T')) {
        return "stopped by a debugger".to_owned();
    }
    let call = read("syscall").and_then(|text| call_of(&text));
    let function = read("wchan").filter(|text| !matches!(text.trim(), "" | "0"));
    match (call, function) {
        (Some(call), Some(function)) => format!("blocked in {call} ({})", function.trim()),
        (Some(call), None) => format!("blocked in {call}"),
        (None, Some(function)) => format!("blocked in the kernel's {}", function.trim()),
        (None, None) => format!("blocked in the kernel (state {})", state.unwrap_or('?')),
    }
}

/// The call in the text of `/proc/../syscall`: its number, or that there is none.
fn call_of(text: &str) -> Option<String> {
    let number: i64 = text.split_whitespace().next()?.parse().ok()?;
    let name = match number {
        // The thread is blocked outside of any call.
        -1 => "a page fault",
        libc::SYS_read => "read",
        libc::SYS_write => "write",
        libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => "readv",
        libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => "writev",
        libc::SYS_pread64 => "pread",
        libc::SYS_pwrite64 => "pwrite",
        libc::SYS_sendto | libc::SYS_sendmsg | libc::SYS_sendmmsg => "sendmsg",
        libc::SYS_recvfrom | libc::SYS_recvmsg | libc::SYS_recvmmsg => "recvmsg",
        libc::SYS_io_uring_enter => "io_uring_enter",
        libc::SYS_ppoll | libc::SYS_poll => "poll",
        libc::SYS_futex => "futex",
        libc::SYS_fsync | libc::SYS_fdatasync => "fsync",
        libc::SYS_fallocate => "fallocate",
        libc::SYS_ioctl => "ioctl",
        libc::SYS_openat | libc::SYS_open => "open",
        libc::SYS_madvise | libc::SYS_mmap | libc::SYS_munmap => "a change of its memory",
        other => return Some(format!("system call {other}")),
    };
    Some(name.to_owned())
}

/// The state's letter in `/proc/../stat`, after the name, which may contain any character.
fn state_of(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

/// The system's view of a thread. Without `schedstat` the time comes from `stat`, in ticks.
fn thread_look(thread: i32) -> Option<ThreadLook> {
    let stat = std::fs::read_to_string(of_thread(thread, "stat")).ok()?;
    let runnable = state_of(&stat)? == 'R';
    let ran = std::fs::read_to_string(of_thread(thread, "schedstat")).ok();
    let ran_ns = ran.and_then(|text| text.split_whitespace().next()?.parse().ok());
    Some(ThreadLook { runnable, ran_ns: ran_ns.or_else(|| ticks_ns(&stat)).unwrap_or(0) })
}

/// User and system time of `stat`, by the tick that Linux shows there on every x86-64.
fn ticks_ns(stat: &str) -> Option<u64> {
    const TICK_NS: u64 = 10_000_000;
    let mut fields = stat.rsplit_once(") ")?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some((ticks()? + ticks()?) * TICK_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_files_about_threads_are_read() {
        let stat = "7 (a) R b) D 1 7 7 0 -1 4194560 900 0 0 0 11 22 0 0 20 0";
        assert_eq!(state_of(stat), Some('D'));
        assert_eq!(ticks_ns(stat), Some(330_000_000));
        assert_eq!(call_of("1 0x5 0x7ff 0x8 0x0 0x0 0x0 0x7ffe 0x7f\n").as_deref(), Some("write"));
        assert_eq!(call_of("-1 0x7ffe 0x7f\n").as_deref(), Some("a page fault"));
        assert_eq!(call_of("running\n"), None);
        assert_eq!(call_of("999 0 0\n").as_deref(), Some("system call 999"));
        // The system notes the time at a tick.
        let own = || thread_look(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        while own().ran_ns == 0 {}
        assert!(own().runnable);
    }

    #[test]
    fn a_stall_is_counted_each_time_and_logged_once_a_minute() {
        let mut core = SidecoreFindings::default();
        is_stuck(0, &mut core, Instant::now(), || "serving a".to_owned());
        assert!(core.stuck.as_ref().is_some_and(|stuck| stuck.is_logged));
        is_stuck(0, &mut core, Instant::now(), || panic!("it is known already"));
        goes_on(0, &mut core);
        assert!(core.stuck.is_none() && core.stalls == 1);
        is_stuck(0, &mut core, Instant::now(), || "serving b".to_owned());
        assert!(core.stuck.as_ref().is_some_and(|stuck| !stuck.is_logged));
        assert_eq!(core.stalls, 2);
        // One that stays is told when the pause is over.
        core.logged = Instant::now().checked_sub(LOG_PAUSE);
        is_stuck(0, &mut core, Instant::now(), || panic!("it is known already"));
        assert!(core.stuck.as_ref().is_some_and(|stuck| stuck.is_logged));
    }
}
