//! Virtual machines at the door: QEMU's `ivshmem-doorbell` calls at a socket of its own and is
//! handed the domain's memory, the number of its part of the [desk](fabric::desk), and an eventfd
//! that its doorbell rings. Its connection is the VM's membership: when it ends, no process of the
//! VM can store into the region any more.
//!
//! The protocol is QEMU's (docs/specs/ivshmem-spec.rst): numbers of 8 bytes, little-endian, some
//! with a descriptor. To QEMU the node is peer 0 with one vector; VMs are not told of each other.

mod bell;
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

use self::bell::Bell;
use super::domain::Served;
use super::strangers::{Caller, take_in};
use super::{House, Leaver, Server, Shared, has_ended, watch};
use crate::clerk::{self, Clerk};
use fabric::desk::VMS_MAX;
use fabric::door::{Key, Seat};

/// What QEMU's protocol is called, and what announces the memory.
const PROTOCOL_VERSION: i64 = 0;
const MEMORY: i64 = -1;

/// The node's number among the peers that QEMU knows.
const NODE: i64 = 0;

/// Callers that wait: one QEMU has one device here.
const QUEUE_MAX: i32 = 4;

/// The events of VMs' sockets have this bit, then a VM's number, then what it is about.
pub(super) const EVENTS: u64 = 1 << 63;
const CALL: u64 = 0;
const END: u64 = 1;
const RING: u64 = 2;
const KINDS: u64 = 4;

/// A VM's way into a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfSettings {
    /// Its name.
    pub name: String,
    /// The domain's.
    pub domain: String,
    /// Where QEMU calls.
    pub path: PathBuf,
}

/// How it is doing.
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
    /// What was asked without the domain's key, or made no sense.
    pub denied: u64,
    /// Where this process shows the domain's memory to others, while it runs and has the domain.
    pub memory: PathBuf,
}

/// Why there is no way in.
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
        source: io::Error,
    },
}

/// A way in, while there is one.
#[derive(Debug)]
pub(super) struct Vf {
    number: u64,
    settings: VfSettings,
    /// None once it was taken away while its VM is there: that one keeps what it has.
    listener: Option<Listener>,
    vm: Option<Vm>,
    denied: u64,
}

#[derive(Debug)]
struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Of the file at the path: a successor may have put its own there.
    inode: u64,
    /// It is this process's to take away, and not of one that still may go on.
    tidies: bool,
}

#[derive(Debug)]
struct Vm {
    connection: OwnedFd,
    /// Rung by the VM's doorbell.
    bell: Bell,
    pid: u32,
    /// Readable once QEMU has ended; none where the system does not tell. An event about it has
    /// this number.
    process: (Option<OwnedFd>, u64),
    clerk: Clerk,
}

impl Server {
    /// Lets a VM into a domain, by the QEMU that calls at this path. What is at the path is
    /// replaced: the caller has looked.
    ///
    /// # Errors
    /// When the name is taken, there is no such domain, or the socket cannot be made.
    pub fn add_vf(&self, settings: VfSettings) -> Result<(), VfError> {
        let house = &mut *self.shared.house();
        let is_there = |vf: &Vf| vf.listener.is_some() && vf.settings.name == settings.name;
        if house.vfs.iter().any(is_there) {
            return Err(VfError::Exists(settings.name));
        }
        let domain = house.domains.iter_mut().find(|domain| domain.is_called(&settings.domain));
        let Some(domain) = domain else { return Err(VfError::NoDomain(settings.domain)) };
        domain.keep_vigil();
        let refuse = |source| VfError::Socket { path: settings.path.clone(), source };
        let listener = Listener::new(&settings.path).map_err(refuse)?;
        let number = house.next_vf;
        let data = EventData::new_u64(event(number, CALL));
        let wanted = if house.listening { EventFlags::IN } else { EventFlags::empty() };
        epoll::add(&self.shared.epoll, &listener.socket, data, wanted)
            .map_err(|errno| refuse(errno.into()))?;
        house.next_vf += 1;
        house.vfs.push(Vf { number, settings, listener: Some(listener), vm: None, denied: 0 });
        Ok(())
    }

    /// Lets no VM in there any more. One that is in keeps its mapping, which only its QEMU can
    /// end, and so its processes keep their endpoints; but they get no new ones. `false`: there is
    /// none of the name.
    pub fn remove_vf(&self, name: &str) -> bool {
        let house = &mut *self.shared.house();
        let is_it = |vf: &&mut Vf| vf.listener.is_some() && vf.settings.name == name;
        let Some(vf) = house.vfs.iter_mut().find(is_it) else { return false };
        vf.listener = None;
        house.vfs.retain(|vf| vf.listener.is_some() || vf.vm.is_some());
        true
    }

    /// The ways in that there are, in the order in which they came.
    pub fn vf_reports(&self) -> Vec<VfReport> {
        let house = self.shared.house();
        let there = house.vfs.iter().filter(|vf| vf.listener.is_some());
        there.map(|vf| vf.report(&house.domains)).collect()
    }
}

impl Vf {
    fn report(&self, domains: &[Served]) -> VfReport {
        let domain = domains.iter().find(|it| it.is_called(&self.settings.domain));
        let fd = domain.map_or(-1, |domain| domain.memory().as_raw_fd());
        VfReport {
            name: self.settings.name.clone(),
            domain: self.settings.domain.clone(),
            pid: self.vm.as_ref().map(|vm| vm.pid),
            endpoints: self.vm.as_ref().map_or(0, |vm| vm.clerk.seats().len()),
            denied: self.denied,
            memory: format!("/proc/{}/fd/{fd}", std::process::id()).into(),
        }
    }
}

impl Listener {
    /// Bound beside its place and moved there, so that whoever finds it can call.
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
        Ok(Self { socket, path: path.to_owned(), inode, tidies: true })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let is_ours = |found: &fs::Metadata| found.ino() == self.inode;
        if self.tidies && fs::symlink_metadata(&self.path).is_ok_and(|found| is_ours(&found)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn event(vf: u64, what: u64) -> u64 {
    EVENTS | (vf * KINDS) | what
}

impl Shared {
    /// Sees to an event of a VM's socket.
    pub(super) fn see_to_vf(&self, house: &mut House, event: u64) {
        let (number, what) = ((event & !EVENTS) / KINDS, event % KINDS);
        let Some(at) = house.vfs.iter().position(|vf| vf.number == number) else { return };
        match what {
            CALL => self.call_at(house, at),
            RING => house.ring(at),
            _ => house.look_for_end(at),
        }
    }

    /// Whether QEMUs are answered, or wait.
    pub(super) fn answer_vfs(&self, house: &House, answers: bool) -> Result<(), Errno> {
        let wanted = if answers { EventFlags::IN } else { EventFlags::empty() };
        for vf in &house.vfs {
            let Some(listener) = &vf.listener else { continue };
            let data = EventData::new_u64(event(vf.number, CALL));
            epoll::modify(&self.epoll, &listener.socket, data, wanted)?;
        }
        Ok(())
    }

    /// Takes a QEMU in.
    fn call_at(&self, house: &mut House, at: usize) {
        if !house.answering {
            return;
        }
        // A VM that was started again calls before its end was seen, perhaps.
        house.look_for_end(at);
        let House { vfs, rests_until, .. } = house;
        let Some(vf) = vfs.get(at) else { return };
        let Some(listener) = &vf.listener else { return };
        let Some(connection) = take_in(&listener.socket, rests_until) else { return };
        let (number, name) = (vf.number, vf.settings.name.clone());
        if vf.vm.is_some() {
            tracing::warn!(vf = name, "a second QEMU is hung up on: a vf is one VM's");
            return;
        }
        let met = self.meet_vm(house, at, connection);
        let vm = met.and_then(|vm| self.watch_vm(number, vm));
        match vm {
            Ok(vm) => {
                house.next_client += 1;
                tracing::info!(vf = name, pid = vm.pid, "a VM is in the fabric");
                house.vfs[at].vm = Some(vm);
            }
            Err(error) => tracing::warn!(vf = name, %error, "a VM is hung up on"),
        }
    }

    fn watch_vm(&self, number: u64, vm: Vm) -> io::Result<Vm> {
        watch(&self.epoll, &vm.connection, event(number, END))?;
        if let (Some(process), number) = &vm.process {
            // Once: it is nobody's event as long as the connection is there, which a child may
            // have as well.
            let data = EventData::new_u64(*number);
            epoll::add(&self.epoll, process, data, EventFlags::IN | EventFlags::ONESHOT)?;
        }
        Ok(vm)
    }

    /// Says to a QEMU what it needs.
    fn meet_vm(&self, house: &House, at: usize, connection: OwnedFd) -> io::Result<Vm> {
        let wanted = &house.vfs[at].settings.domain;
        let domain = house.domains.iter().find(|it| it.is_called(wanted));
        let domain = domain.ok_or_else(|| io::Error::other("its domain was removed"))?;
        let is_used = |part: u8| {
            let mut others = house.vfs.iter().filter(|vf| vf.settings.domain == *wanted);
            others.any(|vf| vf.vm.as_ref().is_some_and(|vm| vm.clerk.part() == part))
        };
        let part = (1..=VMS_MAX).find(|part| !is_used(*part));
        let part = part.ok_or_else(|| io::Error::other("the domain has as many VMs as it can"))?;
        let Caller { pid, process, .. } = Caller::of(&connection)?;
        let bell = Bell::new(&self.epoll, event(house.vfs[at].number, RING))?;
        let clerk = Clerk::new(domain.region(), part)?;
        for (number, fd) in [
            (PROTOCOL_VERSION, None),
            (i64::from(part), None),
            (MEMORY, Some(domain.memory())),
            (NODE, Some(bell.as_fd())),
        ] {
            say(&connection, number, fd)?;
        }
        Ok(Vm { connection, bell, pid, process: (process, house.next_client), clerk })
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

impl House {
    /// Sees to what the processes of a VM ask.
    fn ring(&mut self, at: usize) {
        let Self { vfs, domains, turning_away, .. } = self;
        let vf = &mut vfs[at];
        let Some(vm) = &mut vf.vm else { return };
        vm.bell.hear();
        let wanted = &vf.settings.domain;
        let Some(domain) = domains.iter().find(|it| it.is_called(wanted)) else { return };
        // It may be for somebody who sleeps.
        domain.ring_where_something_is();
        let takes_new = vf.listener.is_some() && !*turning_away;
        let desk = AtDesk { domain, takes_new, takes_seats: vf.listener.is_some() };
        let denied = vm.clerk.serve(domain.region(), &desk);
        if denied > 0 {
            vf.denied += denied as u64;
            self.refusals.note_vm(&self.vfs[at].settings.name);
        }
    }

    /// Whether the VM of a way in is gone: then its endpoints are, and their slots are others' when
    /// its QEMU has ended, which may have the memory by other devices as well.
    fn look_for_end(&mut self, at: usize) {
        let vf = &mut self.vfs[at];
        let Some(vm) = &vf.vm else { return };
        let mut bytes = [0; 8];
        // It says nothing, ever; who does is no QEMU, and still the region is mapped there.
        match rustix::net::recv(&vm.connection, &mut bytes, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => return,
            Ok((_, length)) if length > 0 => return,
            Ok(_) | Err(_) => {}
        }
        let Some(vm) = vf.vm.take() else { return };
        let (name, wanted) = (&vf.settings.name, &vf.settings.domain);
        tracing::info!(vf = name, pid = vm.pid, "a VM has left the fabric");
        if let Some(domain) = self.domains.iter().find(|it| it.is_called(wanted)) {
            let seats = vm.clerk.end(domain.region());
            match vm.process {
                (Some(process), number) if !seats.is_empty() && !has_ended(&process) => {
                    domain.leave(&seats);
                    let leaver = Leaver { process, domain: wanted.clone(), seats };
                    self.leavers.insert(number, leaver);
                }
                // It has ended, or nothing else will say so.
                _ => domain.bury(&seats),
            }
        }
        self.vfs.retain(|vf| vf.listener.is_some() || vf.vm.is_some());
    }

    /// Forgets the ways into a domain that is removed. The VMs that are in keep its memory, in
    /// which their endpoints are gone to others, and nobody answers any more.
    pub(super) fn forget_vfs(&mut self, name: &str) {
        let Self { vfs, domains, .. } = self;
        let domain = domains.iter().find(|it| it.is_called(name));
        for vf in vfs.iter_mut().filter(|vf| vf.settings.domain == name) {
            if let (Some(domain), Some(vm)) = (domain, vf.vm.take()) {
                domain.leave(&vm.clerk.end(domain.region()));
            }
        }
        vfs.retain(|vf| vf.settings.domain != name);
    }

    /// Lets bells be heard again that have rested. When the next one is to be.
    pub(super) fn wake_bells(&mut self) -> Result<Option<Instant>, Errno> {
        let mut soonest = None;
        for vm in self.vfs.iter_mut().filter_map(|vf| vf.vm.as_mut()) {
            soonest = vm.bell.wake()?.into_iter().chain(soonest).min();
        }
        Ok(soonest)
    }

    /// That the node is there is said in each domain that VMs may be in.
    pub(super) fn keep_vigils(&mut self) {
        for domain in &mut self.domains {
            if self.vfs.iter().any(|vf| domain.is_called(&vf.settings.domain)) {
                domain.keep_vigil();
            }
        }
    }

    /// VMs that are in a domain.
    pub(super) fn vms_of(&self, domain: &str) -> usize {
        let vfs = self.vfs.iter().filter(|vf| vf.settings.domain == domain);
        vfs.filter(|vf| vf.vm.is_some()).count()
    }
}

/// What a VM's processes are told by.
struct AtDesk<'d> {
    domain: &'d Served,
    takes_new: bool,
    takes_seats: bool,
}

impl clerk::House for AtDesk<'_> {
    fn domain(&self) -> &str {
        self.domain.name()
    }

    fn key(&self) -> &Key {
        self.domain.key()
    }

    fn takes_new(&self) -> bool {
        self.takes_new
    }

    fn seat(&self) -> Option<Seat> {
        // Of no process that could be looked into from here.
        if self.takes_seats { self.domain.seat(0) } else { None }
    }

    fn bury(&self, seats: &[Seat]) {
        self.domain.bury(seats);
    }
}
