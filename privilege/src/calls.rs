//! seccomp: the system calls that a running node makes, and the answers to all others.
//!
//! A call that is not on the list has one of two answers. A call that only an intruder makes (to
//! run another program, to look into other processes, to change the kernel) ends the process.
//! Guests wait then, the service manager starts a new node, and nothing acknowledged is lost, since
//! this end is like a kill -9. Each other call fails with EPERM: it is more likely from a library,
//! on a path that no test has tried. One disk that says "not permitted" is better then than all
//! guests waiting again and again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use config::{Config, Privileges};
use libc::c_long;
use net::uplink::UPLINKS;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use volume::backend::BACKENDS;

use super::error::{PrivilegeError, system};

/// The calls of a running node, which serves disks, and adds and removes them. The backends of
/// volumes and the uplinks of networks say themselves which calls they need
/// ([`volume::backend::BackendNeeds`], [`net::uplink::UplinkNeeds`]).
const ALLOWED: [c_long; 97] = [
    // Data: the link, the io_uring, eventfds, sockets of front ends.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    // Kicks are read by this call, since it can be told not to block.
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    // Front ends and peers are signalled by these (`sidecore::foreign`).
    libc::SYS_io_submit,
    libc::SYS_io_getevents,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_io_uring_enter,
    // Waiting.
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    // Time, chance, oneself.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getcwd,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_sched_getaffinity,
    // Files of volumes, records and locks.
    libc::SYS_openat,
    libc::SYS_open,
    libc::SYS_close,
    libc::SYS_fstat,
    // How large the pages of a guest's memory are.
    libc::SYS_fstatfs,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_access,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_lseek,
    libc::SYS_ftruncate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fcntl,
    libc::SYS_fchmod,
    libc::SYS_getdents64,
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    // Sockets of disks and of the control API; `socket` itself is below.
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    // Memory; `mmap` and `mprotect` are below.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_memfd_create,
    // Whether a process that has joined a domain has ended; and the mode and owner of its socket.
    libc::SYS_pidfd_open,
    libc::SYS_fchmodat,
    libc::SYS_fchownat,
    // The process that opens interfaces is reaped when it has ended.
    libc::SYS_wait4,
    // Threads and their ends; `clone` is below.
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigreturn,
];

/// Calls that only an intruder makes.
const DEADLY: [c_long; 45] = [
    // Another program in this one's place.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_fork,
    libc::SYS_vfork,
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    // More rights.
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    libc::SYS_personality,
    // Another view of the system.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_open_by_handle_at,
    // The kernel itself.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_clock_settime,
];

/// Filters the system calls of all threads from here on. It must be called when the node has
/// started. A node also runs on a kernel without seccomp: the log says so.
///
/// # Errors
/// When the system refuses although it could.
pub fn filter(config: &Config) -> Result<(), PrivilegeError> {
    if config.privileges == Privileges::Keep {
        return Ok(());
    }
    if apply(programs().map(Vec::from))? {
        tracing::info!(allowed = allowed_calls().count(), "system calls are filtered");
    }
    Ok(())
}

/// The filter of a process that only opens interfaces.
pub(super) fn filter_opener() -> Result<(), PrivilegeError> {
    apply(opener_program().map(|program| vec![program])).map(drop)
}

/// Applies the filter; false on a kernel that has none.
fn apply(
    programs: Result<Vec<BpfProgram>, seccompiler::BackendError>,
) -> Result<bool, PrivilegeError> {
    let refuse = system::<io::Error>("filter system calls");
    // The kernel runs all of these programs, and the strictest answer counts.
    for program in programs.map_err(|error| refuse(io::Error::other(error)))? {
        match seccompiler::apply_filter_all_threads(&program) {
            Ok(()) => {}
            Err(seccompiler::Error::Seccomp(error))
                if [Some(libc::EINVAL), Some(libc::ENOSYS)].contains(&error.raw_os_error()) =>
            {
                tracing::warn!(%error, "system calls are not filtered: this kernel cannot do it");
                return Ok(false);
            }
            Err(error) => return Err(refuse(io::Error::other(error))),
        }
    }
    Ok(true)
}

/// The calls of the opener: they open an interface, take questions, and end the process.
const OPENER: [c_long; 34] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_bind,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_bpf,
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
    libc::SYS_fcntl,
    libc::SYS_close,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_sched_yield,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Families of sockets by which interfaces are opened and asked about.
const OPENER_FAMILIES: [libc::c_int; 4] =
    [libc::AF_XDP, libc::AF_PACKET, libc::AF_UNIX, libc::AF_NETLINK];

fn opener_program() -> Result<BpfProgram, seccompiler::BackendError> {
    let mut allowed = OPENER.iter().map(|call| (*call, Vec::new())).collect::<Rules>();
    let families = OPENER_FAMILIES.map(i64::from);
    allowed.insert(libc::SYS_socket, one_of(0, &families)?);
    allowed.insert(libc::SYS_ioctl, one_of(1, &OPENER_IOCTLS.map(|it| it as i64))?);
    allowed.insert(libc::SYS_mmap, without(2, i64::from(libc::PROT_EXEC))?);
    allowed.insert(libc::SYS_mprotect, without(2, i64::from(libc::PROT_EXEC))?);
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    compile(allowed, refused, SeccompAction::Allow)
}

/// Questions about an interface before it is opened, and setting it up.
const OPENER_IOCTLS: [libc::Ioctl; 6] = [
    libc::FIONBIO,
    libc::SIOCGIFINDEX,
    libc::SIOCGIFMTU,
    libc::SIOCGIFFLAGS,
    libc::SIOCSIFFLAGS,
    link::SIOCETHTOOL,
];

type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

/// The calls that pass with any arguments: the node's own, and those of all backends and uplinks.
fn allowed_calls() -> impl Iterator<Item = c_long> {
    let of_backends = BACKENDS.iter().flat_map(|kind| kind.needs.calls);
    let of_uplinks = UPLINKS.iter().flat_map(|kind| kind.needs.calls);
    let all: BTreeSet<_> = ALLOWED.iter().chain(of_backends).chain(of_uplinks).copied().collect();
    all.into_iter()
}

fn programs() -> Result<[BpfProgram; 3], seccompiler::BackendError> {
    let all = |calls: &[c_long]| calls.iter().map(|call| (*call, Vec::new())).collect::<Rules>();
    let mut allowed: Rules = allowed_calls().map(|call| (call, Vec::new())).collect();
    allowed.extend(by_arguments()?);
    allowed.insert(libc::SYS_clone3, Vec::new());
    let errno = |code: i32| SeccompAction::Errno(code.unsigned_abs());
    // glibc starts threads with clone3, whose flags lie in memory where a filter cannot look. It
    // takes clone when it hears that there is no clone3.
    let clone3 = all(&[libc::SYS_clone3]);
    Ok([
        compile(all(&DEADLY), SeccompAction::Allow, SeccompAction::KillProcess)?,
        compile(clone3, SeccompAction::Allow, errno(libc::ENOSYS))?,
        // This program comes last, since it does not let another filter be added.
        compile(allowed, errno(libc::EPERM), SeccompAction::Allow)?,
    ])
}

fn compile(
    rules: Rules,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, seccompiler::BackendError> {
    SeccompFilter::new(rules, otherwise, matched, TargetArch::x86_64)?.try_into()
}

fn rule(
    argument: u8,
    op: SeccompCmpOp,
    value: i64,
) -> Result<SeccompRule, seccompiler::BackendError> {
    let value = value as u64;
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value)?;
    SeccompRule::new(vec![condition])
}

/// An argument is one of these.
fn one_of(argument: u8, values: &[i64]) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    values.iter().map(|value| rule(argument, SeccompCmpOp::Eq, *value)).collect()
}

/// An argument has none of these bits.
fn without(argument: u8, bits: i64) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
    Ok(vec![rule(argument, SeccompCmpOp::MaskedEq(bits as u64), 0)?])
}

/// Calls that are allowed with some arguments only.
fn by_arguments() -> Result<Rules, seccompiler::BackendError> {
    let threads = i64::from(libc::CLONE_THREAD | libc::CLONE_VM);
    let unix = [i64::from(libc::AF_UNIX)];
    let prctl = [libc::PR_SET_NAME, libc::PR_SET_TIMERSLACK, PR_SET_VMA].map(i64::from);
    // Non-blocking, bytes to read, bytes that others have to read, is it a terminal, a block
    // device's block and size.
    let reads = [libc::FIONREAD, libc::TIOCOUTQ];
    let ioctls = [libc::FIONBIO, libc::TCGETS, BLKSSZGET, BLKGETSIZE64];
    // Uplinks look at their interfaces, and open some again. Landlock and the interface itself say
    // which ones.
    let uplinks = UPLINKS.iter().flat_map(|kind| kind.needs.ioctls);
    let ioctls = ioctls.iter().chain(&reads).chain(uplinks);
    let ioctls: BTreeSet<i64> = ioctls.map(|request| *request as i64).collect();
    let ioctls: Vec<i64> = ioctls.into_iter().collect();
    let signals = [libc::SIGABRT, libc::SIGBUS].map(i64::from);
    Ok([
        (libc::SYS_socket, one_of(0, &unix)?),
        (libc::SYS_socketpair, one_of(0, &unix)?),
        (libc::SYS_mmap, without(2, i64::from(libc::PROT_EXEC))?),
        (libc::SYS_mprotect, without(2, i64::from(libc::PROT_EXEC))?),
        (libc::SYS_clone, vec![rule(0, SeccompCmpOp::MaskedEq(threads as u64), threads)?]),
        (libc::SYS_prctl, one_of(0, &prctl)?),
        (libc::SYS_ioctl, one_of(1, &ioctls)?),
        // abort(), and a SIGBUS that was not about a guest's memory.
        (libc::SYS_tgkill, one_of(2, &signals)?),
        (libc::SYS_rt_sigaction, Vec::new()),
        (libc::SYS_rt_sigprocmask, Vec::new()),
    ]
    .into())
}

/// Names a mapping; newer C libraries do it for their arenas.
const PR_SET_VMA: libc::c_int = 0x5356_4d41;

/// `<linux/fs.h>`: the smallest block of a device.
const BLKSSZGET: libc::Ioctl = 0x1268;

/// `<linux/fs.h>`: the size of a device.
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272;
