//! Changing to another user for good, by name.

use std::ffi::{CStr, CString};
use std::io;
use std::ptr;

use rustix::process::{Gid, Uid};
use rustix::thread::{self, CapabilitySet, CapabilitySets};

use super::error::{PrivilegeError, system};

/// The longest entry of the user data base that is read; a hundred times a usual one.
const ENTRY_BYTES_MAX: usize = 64 << 10;

/// The most groups that a process may be in (NGROUPS_MAX).
const GROUPS_MAX: usize = 1 << 16;

/// A user of this system.
#[derive(Debug)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) uid: Uid,
    pub(super) gid: Gid,
    groups: Vec<Gid>,
}

/// Looks a user up, with all its groups, wherever the system keeps them.
pub(super) fn find(name: &str) -> io::Result<Option<User>> {
    let c_name = CString::new(name)?;
    let mut buffer = vec![0; ENTRY_BYTES_MAX];
    // SAFETY: it has integers and pointers only, for which zero is a value.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = ptr::null_mut();
    // SAFETY: the name ends in zero, the buffer is as long as said, and both results are ours.
    let code = unsafe {
        let (start, len) = (buffer.as_mut_ptr(), buffer.len());
        libc::getpwnam_r(c_name.as_ptr(), &mut entry, start, len, &mut found)
    };
    match code {
        // Some data bases say in this way that there is no such user.
        0 | libc::ENOENT | libc::ESRCH if found.is_null() => return Ok(None),
        0 => {}
        code => return Err(io::Error::from_raw_os_error(code)),
    }
    Ok(Some(User {
        name: name.to_owned(),
        uid: Uid::from_raw(entry.pw_uid),
        gid: Gid::from_raw(entry.pw_gid),
        groups: groups(&c_name, entry.pw_gid),
    }))
}

/// The groups of a user, its own among them.
fn groups(name: &CStr, gid: libc::gid_t) -> Vec<Gid> {
    let mut groups = vec![0; GROUPS_MAX];
    let mut count = groups.len() as libc::c_int;
    // SAFETY: the name ends in zero, and there is room for `count` groups.
    let told = unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &mut count) };
    // When the user has more groups than a process may have, as many count as fitted: that many the
    // system allows.
    let told = usize::try_from(told).unwrap_or(groups.len());
    groups[..told].iter().map(|gid| Gid::from_raw(*gid)).collect()
}

impl User {
    /// Becomes this user for good, with no capability but `keep`. The calling thread must be the
    /// only one, since these system calls change one thread.
    pub(super) fn become_it(&self, keep: CapabilitySet) -> Result<(), PrivilegeError> {
        thread::set_keep_capabilities(!keep.is_empty()).map_err(system("keep capabilities"))?;
        thread::set_thread_groups(&self.groups).map_err(system("set the groups"))?;
        let (uid, gid) = (self.uid, self.gid);
        thread::set_thread_res_gid(gid, gid, gid).map_err(system("set the group"))?;
        thread::set_thread_res_uid(uid, uid, uid).map_err(system("set the user"))?;
        keep_capabilities(keep)?;
        // The change must be one that cannot be undone.
        let back = thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT);
        assert!(back.is_err(), "root's rights were given up and came back");
        tracing::info!(user = self.name, uid = uid.as_raw(), "runs as this user from here on");
        Ok(())
    }
}

/// Gives up all capabilities but these, as far as the process has these.
pub(super) fn keep_capabilities(keep: CapabilitySet) -> Result<(), PrivilegeError> {
    let had = thread::capabilities(None).map_err(system("read the capabilities"))?;
    let kept = had.permitted & keep;
    let none = CapabilitySet::empty();
    if had.permitted == kept && had.effective == kept && had.inheritable == none {
        // There is nothing to give up, and a service manager may have forbidden the attempt.
        return Ok(());
    }
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: none };
    thread::set_capabilities(None, sets).map_err(system("give capabilities up"))?;
    thread::clear_ambient_capability_set().map_err(system("give ambient capabilities up"))
}
