//! A node's life: start everything, wait for a signal, stop everything within a bound.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use config::{Config, Watchdog};
use rustix::process::{Resource, Rlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::notify::Manager;
use crate::wiring::{DirtyDisks, Node, ObjectError, Opened, StartError, problems};
use api::{Done, Refused};
use privilege::Opener;

/// How long a stop may take. Queues drain for at most 2 s, and closing an attachment takes a round
/// trip and a sync. Work that is not done after several times that long will not be done, and
/// service managers kill at 90 s or less.
const STOP_TIME_MAX: Duration = Duration::from_secs(10);

/// The same without progress while writes of disks are sent to their volumes. The disks give up
/// after ten seconds without progress, and the rest of the stop has its own time.
const STOP_TIME_DIRTY_MAX: Duration = Duration::from_secs(20);

/// How long a stop may take that makes progress with such writes: a disk gives up after 600 s.
const STOP_TIME_PROGRESS_MAX: Duration = Duration::from_secs(620);

/// How often a stop is looked at.
const STOP_LOOK_AGAIN: Duration = Duration::from_millis(500);

/// How much longer a service manager must wait for a stop that makes progress.
const STOP_EXTENSION: &str = "EXTEND_TIMEOUT_USEC=30000000";

/// The exit code when a stop was cut off, as for any other failure while running.
const EXIT_CUT_OFF: i32 = 1;

/// Where a node comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nowhere: it starts.
    Start,
    /// A running node of the same configuration, in whose place it goes on.
    TakeOver,
}

/// Runs a node until SIGTERM or SIGINT, or until another process takes it over. On SIGHUP it
/// reloads its configuration.
///
/// `agent` starts the agent of a node that is in a cluster, and returns the socket at which the
/// agent reports. It is called while this process has one thread and all its rights.
///
/// # Errors
/// When something that the configuration asks for cannot be started; nothing is left running then.
/// Or when the running node cannot be taken over; it goes on.
pub fn run(
    config: &Config,
    origin: Origin,
    agent: impl FnOnce(&Config) -> io::Result<UnixStream>,
) -> Result<(), StartError> {
    let system = |source| StartError::System { what: "wait for signals", source };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(system)?;
    // Before anything is started, so that a signal during the start is not lost.
    let mut signals = {
        let _inside = runtime.enter();
        Signals::listen().map_err(system)?
    };
    raise_descriptor_limit();
    // Before the files are restricted: its socket may be anywhere.
    let manager = Manager::from_environment();
    let cluster = start_agent(config, agent)?;
    let node = start(config, origin)?;
    if let Some((name, agent)) = cluster {
        node.listen_to_agent(name, agent);
    }
    privilege::filter(config)?;
    tracing::info!(
        node = config.name,
        control = %config.control.display(),
        listen = config.listen.map(tracing::field::display),
        volumes = config.volumes.len(),
        disks = config.disks.len(),
        "ready"
    );
    manager.tell("READY=1");
    let restarts = config.watchdog == Watchdog::Restart;
    match manager.pings(restarts) {
        Some(pings) => node.tie_watchdog(pings),
        None if restarts => tracing::warn!(
            "watchdog = \"restart\" does nothing: no service manager started this node (no \
             NOTIFY_SOCKET); run it as a unit of systemd, or write \"report\""
        ),
        None => {}
    }
    let signal = loop {
        match runtime.block_on(signals.next(&node)) {
            NodeEvent::Stop(signal) => break signal,
            NodeEvent::Reload => {
                tracing::info!("SIGHUP: the configuration is reloaded");
                node.reload_apart(reloaded);
            }
            NodeEvent::HandedOver(pid) => {
                leave(node, pid, &manager);
                return Ok(());
            }
        }
    };
    tracing::info!(signal, "stopping: guests' requests are drained, attachments are closed");
    let stopped = watch_stop(node.dirty_disks(), manager.another());
    // A hand-over that is under way comes to its end first. The manager hears that its service
    // stops only when that is so: it would kill the successor, too.
    if let Some(pid) = node.close() {
        leave(node, pid, &manager);
        return Ok(());
    }
    manager.tell("STOPPING=1");
    node.stop();
    drop(stopped);
    tracing::info!("stopped");
    Ok(())
}

/// Starts the agent, if the configuration is for a node of a cluster.
fn start_agent(
    config: &Config,
    agent: impl FnOnce(&Config) -> io::Result<UnixStream>,
) -> Result<Option<(&str, UnixStream)>, StartError> {
    let Some(cluster) = &config.cluster else { return Ok(None) };
    let what = "start the cluster's agent";
    let started = agent(config).map_err(|source| StartError::System { what, source })?;
    Ok(Some((&*cluster.name, started)))
}

/// Takes as many descriptors as this process may have. A shell gives 1,024; a front end alone may
/// bring half of them, one for each piece of its memory.
fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, limit = limit.current, "the limit of descriptors could not be \
                                                       raised");
    }
}

/// Leaves everything to the successor. From now on the manager watches the successor; until this
/// message the manager takes this process for the service.
fn leave(node: Node, successor: u32, manager: &Manager) {
    // The manager told the successor of no limit, so none holds until the successor names one.
    manager.tell(&format!("MAINPID={successor}\nWATCHDOG_USEC=0\nREADY=1"));
    node.leave();
}

fn start(config: &Config, origin: Origin) -> Result<Node, StartError> {
    // While there is one thread, and all rights.
    let opener = Opener::start(config)?;
    match origin {
        Origin::Start => {
            let opened = Opened::with_opener(config, opener)?;
            privilege::drop(config)?;
            Node::start_with(config, opened)
        }
        Origin::TakeOver => {
            privilege::drop(config)?;
            Node::take_over(config, opener)
        }
    }
}

/// Events of a running node.
enum NodeEvent {
    Stop(&'static str),
    Reload,
    /// Another process has taken the node over.
    HandedOver(u32),
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self, node: &Node) -> NodeEvent {
        tokio::select! {
            // First: a node that is another process's neither stops nor reloads anything.
            biased;
            pid = node.handed_over() => NodeEvent::HandedOver(pid),
            _ = self.terminate.recv() => NodeEvent::Stop("SIGTERM"),
            _ = self.interrupt.recv() => NodeEvent::Stop("SIGINT"),
            _ = self.hang_up.recv() => NodeEvent::Reload,
        }
    }
}

/// Looks at what a configuration names on this host, as the user that the node would be: key files,
/// directories, volumes' files, cores, addresses. It starts nothing and leaves nothing behind, but
/// this process stays that user.
///
/// # Errors
/// Everything that a start would stumble over, all at once and each by its line.
pub fn check(config: &Config) -> Result<(), StartError> {
    let user = privilege::become_user(config).err().map(|error| ObjectError {
        place: config.place(&config.lines, "user"),
        object: "\"user\"".to_owned(),
        text: error.to_string(),
    });
    let all: Vec<_> = user.into_iter().chain(problems(config)).collect();
    if all.is_empty() { Ok(()) } else { Err(all.into()) }
}

/// Logs the result of a SIGHUP.
fn reloaded(answer: Result<Done, Refused>) {
    match answer {
        Ok(done) => {
            let notes = done.notes.join("; ");
            tracing::info!(changes = done.applied.len(), notes, "reloaded");
        }
        Err(error) => tracing::error!(%error, "the reload was not completed"),
    }
}

/// The time that a stop has left.
struct StopTime {
    began: Instant,
    /// Bytes that the disks' volumes have not, at the last look.
    dirty_bytes: u64,
    /// When they became fewer.
    since: Instant,
}

impl StopTime {
    fn new(now: Instant, dirty_bytes: u64) -> Self {
        Self { began: now, dirty_bytes, since: now }
    }

    /// Takes a look. Gives whether there was progress, and the limit if it is over.
    fn look(&mut self, now: Instant, dirty_bytes: u64) -> (bool, Option<Duration>) {
        let has_moved = dirty_bytes < self.dirty_bytes;
        if has_moved {
            self.since = now;
        }
        self.dirty_bytes = dirty_bytes;
        let limit = if dirty_bytes > 0 { STOP_TIME_DIRTY_MAX } else { STOP_TIME_MAX };
        let is_over = |since: Instant, limit: &Duration| now.duration_since(since) >= *limit;
        let limit = Some(limit).filter(|limit| is_over(self.since, limit));
        let total = Some(STOP_TIME_PROGRESS_MAX).filter(|limit| is_over(self.began, limit));
        (has_moved, limit.or(total))
    }
}

/// Ends the process if the sender that it returns is not dropped in time. Work that is cut off is
/// as safe as after a kill, which the promises about data cover.
fn watch_stop(disks: DirtyDisks, manager: Manager) -> Sender<()> {
    let (sender, stopped) = channel::<()>();
    let watch = move || {
        let mut time = StopTime::new(Instant::now(), disks.bytes());
        while stopped.recv_timeout(STOP_LOOK_AGAIN) == Err(RecvTimeoutError::Timeout) {
            let (has_moved, limit) = time.look(Instant::now(), disks.bytes());
            if let Some(limit) = limit {
                disks.tell_kept();
                tracing::error!(?limit, "the stop takes too long; the node ends now");
                std::process::exit(EXIT_CUT_OFF);
            }
            if has_moved {
                manager.tell(STOP_EXTENSION);
            }
        }
    };
    // Without a thread there is no bound, which is no reason not to stop.
    let _ = std::thread::Builder::new().name("stop-watch".to_owned()).spawn(watch);
    sender
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_that_makes_progress_has_more_time() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut time = StopTime::new(began, 0);
        assert_eq!(time.look(at(9), 0), (false, None));
        assert_eq!(time.look(at(10), 0), (false, Some(STOP_TIME_MAX)));
        let mut time = StopTime::new(began, 1000);
        assert_eq!(time.look(at(19), 1000), (false, None), "the disks give up by themselves");
        assert_eq!(time.look(at(19), 999), (true, None));
        assert_eq!(time.look(at(38), 999), (false, None));
        assert_eq!(time.look(at(39), 999), (false, Some(STOP_TIME_DIRTY_MAX)));
        let mut time = StopTime::new(began, 1000);
        for seconds in 1..620 {
            assert_eq!(time.look(at(seconds), 1000 - seconds), (true, None));
        }
        assert_eq!(time.look(at(620), 300), (true, Some(STOP_TIME_PROGRESS_MAX)));
        let mut time = StopTime::new(began, 1000);
        assert_eq!(time.look(at(15), 0), (true, None));
        assert_eq!(time.look(at(24), 0), (false, None));
        assert_eq!(time.look(at(25), 0), (false, Some(STOP_TIME_MAX)), "the rest of the stop");
    }
}
