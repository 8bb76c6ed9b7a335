//! A node gives up the rights that it does not need, so that an intruder in its process has little.
//!
//! ```text
//!   Opener:         a process that keeps what interfaces need, if the file names any
//!   as started:     sockets of links and metrics are bound, directories in /run are made
//!   drop():         another user ─ only the links' capabilities ─ no new privileges ─ no core
//!                   files ─ Landlock
//!   as it will be:  volumes, threads, rings, disks
//!   filter():       system calls, on all threads
//! ```
//!
//! The order matters. Files are opened after the drop, with the rights that a later change of the
//! running node has: a configuration that starts can also be reloaded. Landlock is a property of a
//! thread, which new threads inherit, so it comes while there is one thread. The filter comes last,
//! since a start needs calls (`io_uring_setup`, sockets of the network) that a running node does
//! not need.

pub mod agent;
mod calls;
mod error;
mod files;
mod opener;
mod user;

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

pub use calls::filter;
use config::{Config, Privileges};
pub use error::PrivilegeError;
pub use opener::Opener;

use self::error::system;
use self::files::own_directories;
use rustix::thread::CapabilitySet;

/// The capabilities that the links of a node need for as long as it runs. UDP needs none: its
/// sockets are bound before, with buffers beyond the system's limit where root started the node.
pub const LINK_CAPABILITIES: CapabilitySet = CapabilitySet::empty();

/// Becomes the configured user if this process is root's, keeps no capability but the links',
/// leaves no core files, and sees no file but those that the configuration names. It must be called
/// while this process has one thread.
///
/// # Errors
/// When the user does not exist or cannot use a directory that the node needs, or the system
/// refuses.
pub fn drop(config: &Config) -> Result<(), PrivilegeError> {
    if config.privileges == Privileges::Keep {
        tracing::warn!(
            "privileges = \"keep\": the node gives up no privileges; use it for \
                        debugging alone"
        );
        return Ok(());
    }
    let user = wanted_user(config)?;
    for directory in own_directories(config) {
        make(directory, user.as_ref(), false)?;
    }
    // The memory directory may lie in one of these, so it comes after them.
    make(&config.memory_directory(), user.as_ref(), true)?;
    if let Some(user) = &user {
        user.become_it(LINK_CAPABILITIES)?;
    } else if !rustix::process::geteuid().is_root() {
        user::keep_capabilities(LINK_CAPABILITIES)?;
    }
    rustix::thread::set_no_new_privs(true).map_err(system("give up new privileges"))?;
    // A change of user resets this flag to the system's default, so it comes after the change. A
    // core file would hold keys and guests' memory, and another process of this user could read the
    // memory.
    let dumpable = rustix::process::DumpableBehavior::NotDumpable;
    rustix::process::set_dumpable_behavior(dumpable).map_err(system("forbid core files"))?;
    check_directories(config, user.as_ref().map(|user| &*user.name))?;
    files::restrict(config)
}

/// Becomes the user that a node of this configuration would be, and does no more of [`drop`]: for a
/// process that checks whether a node would start, and then ends.
///
/// # Errors
/// When the user does not exist, or the system refuses.
pub fn become_user(config: &Config) -> Result<(), PrivilegeError> {
    match wanted_user(config)? {
        Some(user) if config.privileges != Privileges::Keep => user.become_it(LINK_CAPABILITIES),
        _ => Ok(()),
    }
}

/// The user that this process must become: none unless the process is root's.
fn wanted_user(config: &Config) -> Result<Option<user::User>, PrivilegeError> {
    let is_root = rustix::process::geteuid().is_root();
    let Some(name) = &config.user else {
        if is_root {
            tracing::warn!("the node runs as root; name a user = \"..\" for it");
        }
        return Ok(None);
    };
    if !is_root {
        tracing::info!(user = name, "not started as root: the user stays the same");
        return Ok(None);
    }
    let place = || config.place(&config.lines, "user");
    let found = user::find(name).map_err(system("look the user up"))?;
    let found =
        found.ok_or_else(|| PrivilegeError::NoUser { place: place(), user: name.clone() })?;
    if found.uid.is_root() {
        return Err(PrivilegeError::Root { place: place(), user: name.clone() });
    }
    Ok(Some(found))
}

/// Makes a directory of sockets, with those above it. Users of its group may use the sockets; a
/// user that could write to the directory could put a socket of its own in a socket's place, so
/// that only the owner may, with any umask.
///
/// # Errors
/// When the system refuses it.
pub fn make_shown(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(path)
}

/// Makes a directory that is missing, and gives it to the user. A process that will no longer be
/// root cannot make one in /run later.
fn make(path: &Path, user: Option<&user::User>, is_private: bool) -> Result<(), PrivilegeError> {
    // The code that needs the directory reports an obstacle itself, with more words.
    if path.exists() || path.parent().is_none_or(|parent| !parent.is_dir()) && user.is_none() {
        return Ok(());
    }
    let refuse = |source| PrivilegeError::Directory {
        path: path.to_owned(),
        who: "root".to_owned(),
        source,
        way_out: "make it, or name another one".to_owned(),
    };
    // With any umask: a program that can write to "state" decides what is believed of lost writes.
    let made = match is_private {
        true => volume::record::make_private(path),
        false => make_shown(path),
    };
    match made {
        Err(_) if user.is_none() => return Ok(()),
        made => made.map_err(refuse)?,
    }
    let Some(user) = user else { return Ok(()) };
    let owned = rustix::fs::chown(path, Some(user.uid), Some(user.gid));
    owned.map_err(|error| refuse(error.into()))
}

/// Checks that the user that the node has become can use its directories. Without a change of user,
/// the code that needs a directory gives the better message.
fn check_directories(config: &Config, user: Option<&str>) -> Result<(), PrivilegeError> {
    use rustix::fs::{Access, AtFlags, CWD};
    let Some(user) = user else { return Ok(()) };
    // A directory that is not configured is not refused: the disks report what they cannot
    // remember.
    let own = own_directories(config).chain(config.directories.state.as_deref());
    let own = own.map(|path| (path, Access::WRITE_OK | Access::EXEC_OK));
    let volumes = config.directories.volumes.iter();
    let volumes = volumes.map(|path| (&**path, Access::READ_OK | Access::EXEC_OK));
    for (path, access) in own.chain(volumes) {
        let checked = rustix::fs::accessat(CWD, path, access, AtFlags::EACCESS);
        checked.map_err(|error| PrivilegeError::Directory {
            path: path.to_owned(),
            who: format!("the user {user:?}"),
            source: error.into(),
            way_out: format!("chown {user} {}", path.display()),
        })?;
    }
    if rustix::fs::accessat(CWD, &config.path, Access::READ_OK, AtFlags::EACCESS).is_err() {
        let file = &config.path;
        tracing::warn!(
            ?file,
            user,
            "the user may not read the configuration, so a reload will \
                                     fail"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests;
