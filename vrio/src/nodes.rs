//! The nodes of this host, and the choice among them.
//!
//! Each has a control socket `NAME.control`: in `/run/vrio`, or in a directory of its own beside it
//! (`/run/vrio-TENANT`, as `vrio-tenant` makes them). A socket without a process that listens was
//! left by a node that has ended.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use node::Config;

use crate::failure::CommandFailure;

/// Where nodes have their directories, and how the directories' names begin.
const RUN_DIRECTORY: &str = "/run";
const RUN_NAME: &str = "vrio";

/// Directories to look into instead, with colons between them.
const DIRECTORIES_VARIABLE: &str = "VRIO_RUN";

/// Which node a command is for.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Target {
    /// The node's name, where several run on this host.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["control", "config"])]
    node: Option<String>,
    /// The node's control socket; default: that of the only node of this host.
    #[arg(long, value_name = "PATH", conflicts_with = "config")]
    control: Option<PathBuf>,
    /// The node's configuration, which names the control socket.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Target {
    /// The options about the node in the words of an unfinished command line.
    pub(crate) fn of_words(words: &[String]) -> Self {
        let after = |option: &str| {
            let at = words.iter().position(|word| word == option)?;
            words.get(at + 1)
        };
        Self {
            node: after("--node").cloned(),
            control: after("--control").map(PathBuf::from),
            config: after("--config").map(PathBuf::from),
        }
    }

    /// The configuration that is named.
    pub(crate) fn config(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// The control socket of the node that is meant.
    ///
    /// # Errors
    /// When no node is found, or several are and none is named.
    pub(crate) fn socket(&self) -> Result<PathBuf, CommandFailure> {
        Ok(match &self.sockets()?[..] {
            [one] => one.clone(),
            several => return Err(CommandFailure::no_answer(anyhow!(choose(several)))),
        })
    }

    /// The control socket of the node that is meant, or of all nodes of this host.
    ///
    /// # Errors
    /// When no node is found.
    pub(crate) fn sockets(&self) -> Result<Vec<PathBuf>, CommandFailure> {
        if let Some(control) = &self.control {
            return Ok(vec![control.clone()]);
        }
        if let Some(config) = &self.config {
            return Ok(vec![Config::load(config).map_err(CommandFailure::configuration)?.control]);
        }
        let found = FoundNodes::look(&directories());
        found.meant(self.node.as_deref()).map_err(|text| CommandFailure::no_answer(anyhow!(text)))
    }
}

/// The way out where several nodes run.
pub(crate) fn choose(several: &[PathBuf]) -> String {
    let names = several.iter().map(|path| name(path)).collect::<Vec<_>>().join(", ");
    let count = several.len();
    format!("{count} nodes run here: {names}; choose one with --node NAME (or --control PATH)")
}

/// The names of the nodes that run here.
pub(crate) fn names() -> Vec<String> {
    FoundNodes::look(&directories()).running.iter().map(|path| name(path)).collect()
}

/// A node's name, as its control socket has it.
fn name(control: &Path) -> String {
    control.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Where to look.
fn directories() -> Vec<PathBuf> {
    if let Some(said) = std::env::var_os(DIRECTORIES_VARIABLE) {
        return std::env::split_paths(&said).collect();
    }
    let entries = std::fs::read_dir(RUN_DIRECTORY).into_iter().flatten();
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_ours = |path: &PathBuf| {
        let rest = path.file_name().and_then(|name| name.to_str()?.strip_prefix(RUN_NAME));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    let mut found: Vec<_> = paths.filter(is_ours).collect();
    found.sort();
    found
}

/// The control sockets in the directories of nodes.
#[derive(Debug, Default)]
struct FoundNodes {
    /// Control sockets that a process listens at.
    running: Vec<PathBuf>,
    /// Control sockets that no process listens at any more.
    left: Vec<PathBuf>,
    /// Sockets and directories that this user may not open.
    closed: Vec<PathBuf>,
    /// The directories that were searched.
    directories: Vec<PathBuf>,
}

impl FoundNodes {
    fn look(directories: &[PathBuf]) -> Self {
        let mut found = Self { directories: directories.to_vec(), ..Self::default() };
        for directory in directories {
            let entries = match std::fs::read_dir(directory) {
                Ok(entries) => entries,
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    found.closed.push(directory.clone());
                    continue;
                }
                Err(_) => continue,
            };
            let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
            let is_control = |path: &PathBuf| path.extension().is_some_and(|end| end == "control");
            let mut sockets: Vec<_> = paths.filter(is_control).collect();
            sockets.sort();
            for socket in sockets {
                let kind = UnixStream::connect(&socket).map_err(|error| error.kind());
                match kind {
                    Ok(_) => found.running.push(socket),
                    Err(ErrorKind::PermissionDenied) => found.closed.push(socket),
                    Err(_) => found.left.push(socket),
                }
            }
        }
        found
    }

    /// The sockets of the node of that name, or of all that run.
    ///
    /// # Errors
    /// Why there is none, and what to do.
    fn meant(&self, wanted: Option<&str>) -> Result<Vec<PathBuf>, String> {
        let is_meant = |path: &&PathBuf| wanted.is_none_or(|wanted| name(path) == wanted);
        let meant: Vec<_> = self.running.iter().filter(is_meant).cloned().collect();
        if !meant.is_empty() {
            return Ok(meant);
        }
        let list = |paths: &[PathBuf]| {
            paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
        };
        let mut text = match wanted {
            Some(wanted) => format!("no node {wanted:?} runs here"),
            None => "no node runs here".to_owned(),
        };
        if self.running.is_empty() {
            text += &format!("; looked into {}", list(&self.directories));
        } else {
            let names = self.running.iter().map(|path| name(path)).collect::<Vec<_>>().join(", ");
            text += &format!("; running: {names}");
        }
        if !self.left.is_empty() {
            text += &format!("; left by nodes that have ended: {}", list(&self.left));
        }
        if !self.closed.is_empty() {
            text += &format!("; you may not open {} (try as root)", list(&self.closed));
        }
        text += "; name a node of another directory with --control PATH or --config FILE";
        Err(text)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::slice::from_ref;

    use super::*;

    #[test]
    fn running_nodes_are_found_in_all_directories_and_chosen_by_name() {
        let home = tempfile::tempdir().unwrap();
        let (own, tenant) = (home.path().join("vrio"), home.path().join("vrio-alice"));
        let directories = [own.clone(), tenant.clone(), home.path().join("gone")];
        let none = FoundNodes::look(&directories).meant(None).unwrap_err();
        assert!(none.contains("no node runs here; looked into") && none.contains("--control"));
        std::fs::create_dir(&own).unwrap();
        std::fs::create_dir(&tenant).unwrap();
        let io1 = own.join("io1.control");
        let running = UnixListener::bind(&io1).unwrap();
        // The socket of a dead node, a lock and a disk's socket are not nodes.
        drop(UnixListener::bind(own.join("dead.control")).unwrap());
        std::fs::write(own.join("io1.control.lock"), "").unwrap();
        let _disk = UnixListener::bind(own.join("alice.sock")).unwrap();
        assert_eq!(FoundNodes::look(&directories).meant(None).unwrap(), from_ref(&io1));
        let alice = tenant.join("alice.control");
        let _alice = UnixListener::bind(&alice).unwrap();
        let found = FoundNodes::look(&directories);
        assert_eq!(found.meant(None).unwrap(), [io1.clone(), alice.clone()]);
        assert_eq!(found.meant(Some("alice")).unwrap(), from_ref(&alice));
        let error = found.meant(Some("bob")).unwrap_err();
        assert!(error.contains("\"bob\"") && error.contains("io1, alice"), "{error}");
        let error = choose(&[io1, alice.clone()]);
        assert!(error.contains("2 nodes run here: io1, alice; choose one with --node"), "{error}");
        drop(running);
        assert_eq!(FoundNodes::look(&directories).meant(None).unwrap(), [alice]);
        let ended = FoundNodes::look(&directories).meant(Some("io1")).unwrap_err();
        assert!(ended.contains("io1.control"), "{ended}");
    }
}
