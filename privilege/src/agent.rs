//! The rights of a node's agent in a cluster. The agent has what the node has not, connections by
//! TCP and a certificate, and opens no volume. It has the node's user, so it can connect to the
//! node's sockets: `docs/limits.md`.

use std::path::Path;

use config::{Config, Privileges};
use rustix::thread::CapabilitySet;

use crate::error::{PrivilegeError, system};
use crate::{files, user, wanted_user};

/// Becomes the node's user, without any capability and without core files. It must be called while
/// this process has one thread.
///
/// # Errors
/// When the user does not exist, or the system refuses.
pub fn drop(config: &Config) -> Result<(), PrivilegeError> {
    if config.privileges == Privileges::Keep {
        return Ok(());
    }
    match wanted_user(config)? {
        Some(user) => user.become_it(CapabilitySet::empty())?,
        None if rustix::process::geteuid().is_root() => {}
        None => user::keep_capabilities(CapabilitySet::empty())?,
    }
    rustix::thread::set_no_new_privs(true).map_err(system("give up new privileges"))?;
    let dumpable = rustix::process::DumpableBehavior::NotDumpable;
    rustix::process::set_dumpable_behavior(dumpable).map_err(system("forbid core files"))
}

/// Restricts this thread, and all that it will start, to files of these directories, and to
/// connections that it makes itself.
///
/// # Errors
/// When the system refuses.
pub fn restrict(config: &Config, directories: &[&Path]) -> Result<(), PrivilegeError> {
    match config.privileges {
        Privileges::Keep => Ok(()),
        Privileges::Drop => files::restrict_to(directories),
    }
}
