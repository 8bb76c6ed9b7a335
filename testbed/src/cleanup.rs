//! Removal of everything that the demo or a measurement makes: processes, network namespaces,
//! files. It also happens after ^C.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{SignalKind, signal};

use crate::progress::Progress;

/// The exit status that shells expect of a program that ^C has ended.
const INTERRUPTED_STATUS: i32 = 130;

/// The pause between two looks for killed processes. Their files are removed only when they are
/// gone.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const LOOKS: usize = 200;

/// Things that must be removed at the end.
#[derive(Debug, Default)]
struct CleanupList {
    paths: Vec<PathBuf>,
    /// Files and folders that several stages use.
    lasting: Vec<PathBuf>,
    namespaces: Vec<String>,
    /// File systems that were mounted.
    mounts: Vec<PathBuf>,
    /// The changed settings of the system, and their values before.
    settings: Vec<(PathBuf, String)>,
}

/// Remembers what the demo or a measurement makes, and removes it.
#[derive(Clone, Debug, Default)]
pub struct Cleanup {
    traces: Arc<Mutex<CleanupList>>,
    /// Held while a process is started, so that an interruption misses no new process.
    starting: Arc<Mutex<()>>,
    interrupted: Arc<AtomicBool>,
}

/// Does a piece of work that shows its progress. All that the work makes is removed, however it
/// ends.
///
/// # Errors
/// The errors of the work.
pub fn tidily<T>(progress: &Progress, work: impl FnOnce(&Cleanup) -> Result<T>) -> Result<T> {
    let cleanup = Cleanup::default();
    cleanup.on_signals()?;
    let done = work(&cleanup);
    progress.end();
    if done.is_err() {
        cleanup.yield_to_interruption();
    }
    cleanup.remove();
    done
}

impl Cleanup {
    /// Cleans up and ends the process after a signal to end: ^C, a hang-up, SIGTERM.
    ///
    /// # Errors
    /// When the system refuses to deliver the signals.
    pub fn on_signals(&self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.context("cannot wait for signals")?;
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let entered = runtime.enter();
        let signals = kinds.into_iter().map(signal).collect::<Result<Vec<_>, _>>();
        let mut signals = signals.context("cannot wait for signals")?;
        drop(entered);
        let this = self.clone();
        // A release build aborts at a panic. No destructor runs then, so the hook cleans up.
        let before = std::panic::take_hook();
        let panicked = self.clone();
        std::panic::set_hook(Box::new(move |panic| {
            before(panic);
            if cfg!(panic = "abort") {
                kill_children();
                panicked.remove();
            }
        }));
        let wait = move || {
            runtime.block_on(std::future::poll_fn(|context| {
                let came = signals.iter_mut().any(|signal| signal.poll_recv(context).is_ready());
                if came { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            }));
            this.interrupt()
        };
        thread::Builder::new().name("signals".to_owned()).spawn(wait)?;
        Ok(())
    }

    fn interrupt(&self) -> ! {
        self.interrupted.store(true, Ordering::Release);
        kill_children();
        // The lock is never given back, so no further process is started.
        let _starting = self.start();
        kill_children();
        self.remove();
        let text = "\nvrio: interrupted; nothing was left behind";
        let _ = writeln!(std::io::stderr(), "{text}");
        std::process::exit(INTERRUPTED_STATUS);
    }

    /// Waits for the end if the process was interrupted: a failure is then only a consequence of
    /// ^C.
    pub fn yield_to_interruption(&self) {
        // ^C reaches the nodes, too. The end of a node may be noticed before our own signal.
        thread::sleep(LOOK_AGAIN * 10);
        while self.interrupted.load(Ordering::Acquire) {
            thread::park();
        }
    }

    /// The lock that a caller must hold while it starts a process.
    pub fn start(&self) -> MutexGuard<'_, ()> {
        self.starting.lock()
    }

    /// Notes a folder or file for removal.
    pub fn path(&self, path: PathBuf) {
        let paths = &mut self.traces().paths;
        if !paths.contains(&path) {
            paths.push(path);
        }
    }

    /// Notes a file or folder that several stages use: it is removed after the last one.
    pub fn lasting(&self, path: PathBuf) {
        self.traces().lasting.push(path);
    }

    /// Notes a network namespace for removal.
    pub fn namespace(&self, name: &str) {
        self.traces().namespaces.push(name.to_owned());
    }

    /// Notes a mounted file system. It will be unmounted, and its folder removed.
    pub fn mount(&self, folder: PathBuf) {
        self.traces().mounts.push(folder);
    }

    /// Notes a changed setting of the system with its value before, which will be restored.
    pub fn setting(&self, file: PathBuf, before: String) {
        self.traces().settings.push((file, before));
    }

    /// Removes everything. Processes must have ended. A second caller waits for the first.
    pub fn remove(&self) {
        self.remove_stage();
        let mut traces = self.traces();
        for folder in traces.mounts.drain(..) {
            let _ = Command::new("umount").arg(&folder).output();
            let _ = fs::remove_dir(&folder);
        }
        for path in traces.lasting.drain(..) {
            let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
        }
        for (file, before) in traces.settings.drain(..) {
            let _ = fs::write(file, before);
        }
    }

    /// Removes the files and namespaces of one stage of several. Mounts, changed settings of the
    /// system and lasting files stay for the next stage.
    pub fn remove_stage(&self) {
        let mut traces = self.traces();
        // Failures are ignored: the thing is gone already, or nothing more can be done about it. A
        // namespace gets a second try, since an interruption ends the first try's `ip` process.
        for name in traces.namespaces.drain(..) {
            end_all_in(&name);
            let removed = || Command::new("ip").args(["netns", "del", &name]).output();
            if !removed().is_ok_and(|output| output.status.success()) {
                let _ = removed();
            }
        }
        for path in traces.paths.drain(..) {
            let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
        }
        let guests = format!("vrio-guest-{}-", std::process::id());
        for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&guests) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    fn traces(&self) -> MutexGuard<'_, CleanupList> {
        self.traces.lock()
    }
}

/// Kills the processes that this process has started, and waits until they run no more.
fn kill_children() {
    kill_all(children);
}

/// Kills all processes in a network namespace of ours. The daemons of an MPI there are not our
/// children, so [`kill_children`] does not find them.
fn end_all_in(namespace: &str) {
    kill_all(|| {
        let said = Command::new("ip").args(["netns", "pids", namespace]).output();
        let said = said.map(|said| said.stdout).unwrap_or_default();
        let pids = String::from_utf8_lossy(&said);
        let pids = pids.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok());
        let ours = i32::try_from(std::process::id()).unwrap_or(0);
        pids.filter(|&pid| pid != ours).filter_map(Pid::from_raw).collect()
    });
}

/// Kills the processes that `find` lists until it lists none, at most [`LOOKS`] times.
fn kill_all(find: impl Fn() -> Vec<Pid>) {
    for _ in 0..LOOKS {
        let found = find();
        if found.is_empty() {
            return;
        }
        for process in found {
            // The process may have ended by itself.
            let _ = kill_process(process, Signal::KILL);
        }
        thread::sleep(LOOK_AGAIN);
    }
}

/// The running processes that this process has started.
fn children() -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let ours = i32::try_from(std::process::id()).unwrap_or(0);
    pids.filter(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        running_parent(&stat) == Some(ours)
    })
    .filter_map(Pid::from_raw)
    .collect()
}

/// The parent, from a line of `/proc/PID/stat`; nothing for a process that has ended already.
fn running_parent(stat: &str) -> Option<i32> {
    // The name in parentheses may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_read_past_odd_names() {
        assert_eq!(running_parent("12 (vrio) S 7 12 0 0"), Some(7));
        assert_eq!(running_parent("12 (a) R 9) S 7 12 0"), Some(7));
        assert_eq!(running_parent("12 (vrio) Z 7 12 0 0"), None);
        assert_eq!(running_parent(""), None);
    }

    #[test]
    fn everything_that_was_noted_is_removed_once() {
        let folder = tempfile::tempdir().unwrap().keep();
        let file = folder.with_extension("file");
        fs::write(&file, "").unwrap();
        let cleanup = Cleanup::default();
        cleanup.path(folder.clone());
        cleanup.path(file.clone());
        let setting = tempfile::NamedTempFile::new().unwrap();
        fs::write(&setting, "changed").unwrap();
        cleanup.setting(setting.path().to_owned(), "before".to_owned());
        cleanup.remove();
        assert!(!folder.exists() && !file.exists());
        assert_eq!(fs::read_to_string(&setting).unwrap(), "before");
        fs::write(&setting, "somebody else's").unwrap();
        cleanup.remove();
        assert_eq!(fs::read_to_string(&setting).unwrap(), "somebody else's");
    }

    #[test]
    fn a_process_left_in_a_namespace_ends_with_it() {
        let name = format!("vrio-left-{}", std::process::id());
        let ip = |words: &[&str]| Command::new("ip").args(words).output();
        if !ip(&["netns", "add", &name]).is_ok_and(|output| output.status.success()) {
            return println!("SKIP a_process_left_in_a_namespace_ends_with_it: it takes root");
        }
        let cleanup = Cleanup::default();
        cleanup.namespace(&name);
        // A living process without a parent of ours, as an MPI's daemon is.
        let orphan = "setsid sleep 600 > /dev/null 2>&1 & echo $!";
        let said = ip(&["netns", "exec", &name, "sh", "-c", orphan]).unwrap();
        let pid: i32 = String::from_utf8_lossy(&said.stdout).trim().parse().unwrap();
        cleanup.remove();
        let left = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert_eq!(running_parent(&left), None, "it runs on: {left}");
        let listed = ip(&["netns", "list"]).unwrap();
        assert!(!String::from_utf8_lossy(&listed.stdout).contains(&name));
    }

    #[test]
    fn the_end_of_a_stage_leaves_the_systems_settings_to_the_next_one() {
        let folder = tempfile::tempdir().unwrap().keep();
        let setting = tempfile::NamedTempFile::new().unwrap();
        fs::write(&setting, "changed").unwrap();
        let cleanup = Cleanup::default();
        cleanup.path(folder.clone());
        let shared = tempfile::tempdir().unwrap().keep();
        cleanup.lasting(shared.clone());
        cleanup.setting(setting.path().to_owned(), "before".to_owned());
        cleanup.remove_stage();
        assert!(!folder.exists() && shared.exists());
        assert_eq!(fs::read_to_string(&setting).unwrap(), "changed");
        cleanup.remove();
        assert!(!shared.exists());
        assert_eq!(fs::read_to_string(&setting).unwrap(), "before");
    }
}
