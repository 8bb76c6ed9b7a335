//! Virtual machines: QEMU's `ivshmem-doorbell` device connects to a socket of its own and is handed
//! the domain's memory, the number of its [mailbox](fabric::mailbox), and an eventfd that is the
//! device's doorbell. The connection is the VM's membership: when QEMU has ended, no process of the
//! VM can store into the region any more.
//!
//! The protocol is QEMU's (docs/specs/ivshmem-spec.rst): numbers of 8 bytes, little-endian, some
//! with a descriptor. To QEMU the node is peer 0 with one vector; VMs are not told of each other.

mod doorbell;
mod hand_over;

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::{Errno, IoSlice};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

use self::doorbell::VmDoorbell;
use super::domain::ServedDomain;
use super::unregistered::{Caller, take_in};
use super::{DepartedMember, RegistrationServer, RegistrationShared, Registry, has_ended, watch};
use crate::mailbox::{self, MailboxServer};
use fabric::mailbox::VMS_MAX;
use fabric::registration::{DomainKey, SlotGrant};

/// The version of QEMU's protocol, and the number that announces the memory.
const PROTOCOL_VERSION: i64 = 0;
const MEMORY: i64 = -1;

/// The node's number among the peers that QEMU knows.
const NODE: i64 = 0;

/// Connections that may wait: one QEMU has one device here.
const QUEUE_MAX: i32 = 4;

/// The events of VMs' sockets have this bit, then a VM's number, then what it is about.
pub(super) const EVENTS: u64 = 1 << 63;
const CALL: u64 = 0;
const END: u64 = 1;
const RING: u64 = 2;
const KINDS: u64 = 4;

/// The configuration of a vf, by which one VM gets into a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfSettings {
    /// Its name.
    pub name: String,
    /// The domain's.
    pub domain: String,
    /// The socket that QEMU connects to.
    pub path: PathBuf,
}

/// How a vf is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfReport {
    /// Its name.
    pub name: String,
    /// The domain's.
    pub domain: String,
    /// The QEMU that is connected, if one is.
    pub pid: Option<u32>,
    /// Endpoints of processes inside of the VM.
    pub endpoints: usize,
    /// Questions without the domain's key, or that made no sense.
    pub denied: u64,
    /// The path at which other processes find the domain's memory, while this process has the
    /// domain.
    pub memory: PathBuf,
}

/// Why there is no vf.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VfError {
    /// There is one of the name.
    #[error("there is a vf {0:?} already")]
    Exists(String),
    /// There is no such domain.
    #[error("there is no domain {0:?}")]
    NoDomain(String),
    /// The socket cannot be made.
    #[error("cannot make the socket {path:?}: {source}")]
    Socket {
        /// Where.
        path: PathBuf,
        /// The system's answer.
        r#source: io::Error,
    },
}

/// A vf, and the VM that is connected.
#[derive(Debug)]
pub(super) struct Vf {
    number: u64,
    settings: VfSettings,
    /// None once the vf was removed while its VM is connected: the VM keeps what it has.
    listener: Option<Listener>,
    vm: Option<Vm>,
    denied: u64,
}

#[derive(Debug)]
struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// The inode of the file at the path: a successor may have put its own file there.
    inode: u64,
    /// This process removes the file when it ends; no other process needs it.
    removes_path: bool,
}

#[derive(Debug)]
struct Vm {
    connection: OwnedFd,
    /// Rung by the VM's doorbell.
    doorbell: VmDoorbell,
    pid: u32,
    /// A pidfd of QEMU, none where the kernel gives none; and the number of its events.
    process: (Option<OwnedFd>, u64),
    mailbox: MailboxServer,
}

impl RegistrationServer {
    /// Adds a vf: lets a VM into a domain by the QEMU that connects at this path. A file at the
    /// path is replaced: the caller has looked that it may be.
    ///
    /// # Errors
    /// When the name is taken, there is no such domain, or the socket cannot be made.
    pub fn add_vf(&self, settings: VfSettings) -> Result<(), VfError> {
        let registry = &mut *self.shared.registry();
        let is_there = |vf: &Vf| vf.listener.is_some() && vf.settings.name == settings.name;
        if registry.vfs.iter().any(is_there) {
            return Err(VfError::Exists(settings.name));
        }
        let domain = registry.domains.iter_mut().find(|domain| domain.is_named(&settings.domain));
        let Some(domain) = domain else { return Err(VfError::NoDomain(settings.domain)) };
        domain.hold_liveness();
        let refuse = |source| VfError::Socket { path: settings.path.clone(), source };
        let listener = Listener::new(&settings.path).map_err(refuse)?;
        let number = registry.next_vf;
        let data = EventData::new_u64(event(number, CALL));
        let wanted = if registry.listening { EventFlags::IN } else { EventFlags::empty() };
        epoll::add(&self.shared.epoll, &listener.socket, data, wanted)
            .map_err(|errno| refuse(errno.into()))?;
        registry.next_vf += 1;
        registry.vfs.push(Vf { number, settings, listener: Some(listener), vm: None, denied: 0 });
        Ok(())
    }

    /// Removes a vf. A VM that is connected keeps its mapping, which only its QEMU can end, and so
    /// its processes keep their endpoints; but they get no new ones. `false`: there is no such vf.
    pub fn remove_vf(&self, name: &str) -> bool {
        let registry = &mut *self.shared.registry();
        let is_it = |vf: &&mut Vf| vf.listener.is_some() && vf.settings.name == name;
        let Some(vf) = registry.vfs.iter_mut().find(is_it) else { return false };
        vf.listener = None;
        registry.vfs.retain(|vf| vf.listener.is_some() || vf.vm.is_some());
        true
    }

    /// How each vf is doing, in the order in which they were added.
    pub fn vf_reports(&self) -> Vec<VfReport> {
        let registry = self.shared.registry();
        let there = registry.vfs.iter().filter(|vf| vf.listener.is_some());
        there.map(|vf| vf.report(&registry.domains)).collect()
    }
}

impl Vf {
    fn report(&self, domains: &[ServedDomain]) -> VfReport {
        let domain = domains.iter().find(|it| it.is_named(&self.settings.domain));
        let fd = domain.map_or(-1, |domain| domain.memory().as_raw_fd());
        VfReport {
            name: self.settings.name.clone(),
            domain: self.settings.domain.clone(),
            pid: self.vm.as_ref().map(|vm| vm.pid),
            endpoints: self.vm.as_ref().map_or(0, |vm| vm.mailbox.grants().len()),
            denied: self.denied,
            memory: format!("/proc/{}/fd/{fd}", std::process::id()).into(),
        }
    }
}

impl Listener {
    /// Bound beside its path and then moved there, so that a process that finds it can connect.
    fn new(path: &Path) -> io::Result<Self> {
        let mut beside = path.as_os_str().to_owned();
        beside.push(format!(".{}", std::process::id()));
        let beside = PathBuf::from(beside);
        let _ = fs::remove_file(&beside);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(&beside)?)?;
        let show = || -> io::Result<u64> {
            rustix::net::listen(&socket, QUEUE_MAX)?;
            let inode = fs::symlink_metadata(&beside)?.ino();
            fs::rename(&beside, path)?;
            Ok(inode)
        };
        let inode = show().inspect_err(|_| drop(fs::remove_file(&beside)))?;
        Ok(Self { socket, path: path.to_owned(), inode, removes_path: true })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let is_ours = |found: &fs::Metadata| found.ino() == self.inode;
        if self.removes_path && fs::symlink_metadata(&self.path).is_ok_and(|found| is_ours(&found))
        {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn event(vf: u64, what: u64) -> u64 {
    EVENTS | (vf * KINDS) | what
}

impl RegistrationShared {
    /// Handles an event of a vf.
    pub(super) fn see_to_vf(&self, registry: &mut Registry, event: u64) {
        let (number, what) = ((event & !EVENTS) / KINDS, event % KINDS);
        let Some(at) = registry.vfs.iter().position(|vf| vf.number == number) else { return };
        match what {
            CALL => self.call_at(registry, at),
            RING => registry.ring(at),
            _ => registry.look_for_end(at),
        }
    }

    /// Whether connections of QEMU are accepted, or wait.
    pub(super) fn answer_vfs(&self, registry: &Registry, answers: bool) -> Result<(), Errno> {
        let wanted = if answers { EventFlags::IN } else { EventFlags::empty() };
        for vf in &registry.vfs {
            let Some(listener) = &vf.listener else { continue };
            let data = EventData::new_u64(event(vf.number, CALL));
            epoll::modify(&self.epoll, &listener.socket, data, wanted)?;
        }
        Ok(())
    }

    /// Accepts a QEMU.
    fn call_at(&self, registry: &mut Registry, at: usize) {
        if !registry.answering {
            return;
        }
        // A VM that was started again may connect before its end was seen.
        registry.look_for_end(at);
        let Registry { vfs, rests_until, .. } = registry;
        let Some(vf) = vfs.get(at) else { return };
        let Some(listener) = &vf.listener else { return };
        let Some(connection) = take_in(&listener.socket, rests_until) else { return };
        let (number, name) = (vf.number, vf.settings.name.clone());
        if vf.vm.is_some() {
            tracing::warn!(vf = name, "a second QEMU is disconnected: a vf is for one VM");
            return;
        }
        let met = self.meet_vm(registry, at, connection);
        let vm = met.and_then(|vm| self.watch_vm(number, vm));
        match vm {
            Ok(vm) => {
                registry.next_client += 1;
                tracing::info!(vf = name, pid = vm.pid, "a VM is in the fabric");
                registry.vfs[at].vm = Some(vm);
            }
            Err(error) => tracing::warn!(vf = name, %error, "a VM is disconnected"),
        }
    }

    fn watch_vm(&self, number: u64, vm: Vm) -> io::Result<Vm> {
        watch(&self.epoll, &vm.connection, event(number, END))?;
        if let (Some(process), number) = &vm.process {
            // Once: the event has no meaning as long as the connection lasts, which a child may
            // have as well.
            let data = EventData::new_u64(*number);
            epoll::add(&self.epoll, process, data, EventFlags::IN | EventFlags::ONESHOT)?;
        }
        Ok(vm)
    }

    /// Sends a QEMU what it needs.
    fn meet_vm(&self, registry: &Registry, at: usize, connection: OwnedFd) -> io::Result<Vm> {
        let wanted = &registry.vfs[at].settings.domain;
        let domain = registry.domains.iter().find(|it| it.is_named(wanted));
        let domain = domain.ok_or_else(|| io::Error::other("its domain was removed"))?;
        let is_used = |number: u8| {
            let mut others = registry.vfs.iter().filter(|vf| vf.settings.domain == *wanted);
            others.any(|vf| vf.vm.as_ref().is_some_and(|vm| vm.mailbox.number() == number))
        };
        let number = (1..=VMS_MAX).find(|number| !is_used(*number));
        let number =
            number.ok_or_else(|| io::Error::other("the domain has as many VMs as it can"))?;
        let Caller { pid, process, .. } = Caller::of(&connection)?;
        let doorbell = VmDoorbell::new(&self.epoll, event(registry.vfs[at].number, RING))?;
        let mailbox = MailboxServer::new(domain.region(), number)?;
        for (number, fd) in [
            (PROTOCOL_VERSION, None),
            (i64::from(number), None),
            (MEMORY, Some(domain.memory())),
            (NODE, Some(doorbell.as_fd())),
        ] {
            say(&connection, number, fd)?;
        }
        Ok(Vm { connection, doorbell, pid, process: (process, registry.next_client), mailbox })
    }
}

/// One message of the protocol.
fn say(connection: &OwnedFd, number: i64, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let bytes = number.to_le_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if let Some(fd) = &fd {
        let rights = SendAncillaryMessage::ScmRights(std::slice::from_ref(fd));
        assert!(ancillary.push(rights), "room was made for it");
    }
    let (flags, parts) = (SendFlags::NOSIGNAL | SendFlags::DONTWAIT, [IoSlice::new(&bytes)]);
    let said = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(connection, &parts, &mut ancillary, flags)
    })?;
    // A new connection has room for four such messages.
    if said == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

impl Registry {
    /// The doorbell of a VM was rung: answers its mailbox.
    fn ring(&mut self, at: usize) {
        let Self { vfs, domains, refuses_new, .. } = self;
        let vf = &mut vfs[at];
        let Some(vm) = &mut vf.vm else { return };
        vm.doorbell.hear();
        let wanted = &vf.settings.domain;
        let Some(domain) = domains.iter().find(|it| it.is_named(wanted)) else { return };
        // The ring may be for an endpoint that sleeps.
        domain.ring_where_messages_wait();
        let takes_new = vf.listener.is_some() && !*refuses_new;
        let mailbox = MailboxAccess { domain, takes_new, grants_slots: vf.listener.is_some() };
        let denied = vm.mailbox.serve(domain.region(), &mailbox);
        if denied > 0 {
            vf.denied += denied as u64;
            self.refusals.note_vm(&self.vfs[at].settings.name);
        }
    }

    /// Looks whether the VM of a vf is gone. Then its endpoints have departed; their slots are free
    /// once its QEMU has ended, which may have the memory by other devices as well.
    fn look_for_end(&mut self, at: usize) {
        let vf = &mut self.vfs[at];
        let Some(vm) = &vf.vm else { return };
        let mut bytes = [0; 8];
        // QEMU never sends anything. Another program that does still has the region mapped.
        match rustix::net::recv(&vm.connection, &mut bytes, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => return,
            Ok((_, length)) if length > 0 => return,
            Ok(_) | Err(_) => {}
        }
        let Some(vm) = vf.vm.take() else { return };
        let (name, wanted) = (&vf.settings.name, &vf.settings.domain);
        tracing::info!(vf = name, pid = vm.pid, "a VM has left the fabric");
        if let Some(domain) = self.domains.iter().find(|it| it.is_named(wanted)) {
            let grants = vm.mailbox.end(domain.region());
            match vm.process {
                (Some(process), number) if !grants.is_empty() && !has_ended(&process) => {
                    domain.declare_departed(&grants);
                    let departed = DepartedMember { process, domain: wanted.clone(), grants };
                    self.departed.insert(number, departed);
                }
                // QEMU has ended, or there is no pidfd that could tell.
                _ => domain.declare_dead(&grants),
            }
        }
        self.vfs.retain(|vf| vf.listener.is_some() || vf.vm.is_some());
    }

    /// Forgets the vfs of a domain that is removed. Connected VMs keep its memory, in which their
    /// endpoints have departed, and their mailboxes are not answered any more.
    pub(super) fn forget_vfs(&mut self, name: &str) {
        let Self { vfs, domains, .. } = self;
        let domain = domains.iter().find(|it| it.is_named(name));
        for vf in vfs.iter_mut().filter(|vf| vf.settings.domain == name) {
            if let (Some(domain), Some(vm)) = (domain, vf.vm.take()) {
                domain.declare_departed(&vm.mailbox.end(domain.region()));
            }
        }
        vfs.retain(|vf| vf.settings.domain != name);
    }

    /// Watches doorbells again whose pause is over. Returns when the next pause is over.
    pub(super) fn wake_doorbells(&mut self) -> Result<Option<Instant>, Errno> {
        let mut soonest = None;
        for vm in self.vfs.iter_mut().filter_map(|vf| vf.vm.as_mut()) {
            soonest = vm.doorbell.wake()?.into_iter().chain(soonest).min();
        }
        Ok(soonest)
    }

    /// Holds the liveness word of each domain that has a vf.
    pub(super) fn hold_liveness_of_all(&mut self) {
        for domain in &mut self.domains {
            if self.vfs.iter().any(|vf| domain.is_named(&vf.settings.domain)) {
                domain.hold_liveness();
            }
        }
    }

    /// VMs that are in a domain.
    pub(super) fn vms_of(&self, domain: &str) -> usize {
        let vfs = self.vfs.iter().filter(|vf| vf.settings.domain == domain);
        vfs.filter(|vf| vf.vm.is_some()).count()
    }
}

/// The domain, as the mailbox server of a VM sees it.
struct MailboxAccess<'d> {
    domain: &'d ServedDomain,
    takes_new: bool,
    grants_slots: bool,
}

impl mailbox::MailboxDomain for MailboxAccess<'_> {
    fn domain(&self) -> &str {
        self.domain.name()
    }

    fn key(&self) -> &DomainKey {
        self.domain.key()
    }

    fn takes_new(&self) -> bool {
        self.takes_new
    }

    fn grant_slot(&self) -> Option<SlotGrant> {
        // With no process: its memory cannot be read from here.
        if self.grants_slots { self.domain.grant(0) } else { None }
    }

    fn declare_dead(&self, grants: &[SlotGrant]) {
        self.domain.declare_dead(grants);
    }
}
