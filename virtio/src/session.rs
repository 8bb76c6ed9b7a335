//! The vhost-user session: messages of the front end, turned into calls of a [`Device`].
//!
//! Messages about one ring come in any order. A ring starts when all of its size, base,
//! addresses, kick and (where vhost-user's features were negotiated) its enabling have come and
//! its addresses lie in the guest's memory; GET_VRING_BASE or disabling it stops it. A message
//! that cannot be honoured ends the connection: the front end is told by that, connects again and
//! says everything anew.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use sidecore::foreign::{self, Allowance, ForeignError};
use tracing::{debug, info};
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

use crate::ahead::{Enable, LogSignal};
use crate::back_channel::BackChannel;
use crate::budget::Account;
use crate::device::{Device, DeviceError};
use crate::dirty::{DirtyLog, LogError, Logging};
use crate::error::{InflightError, MemoryError};
use crate::inflight::InflightRegion;
use crate::memory::{Memory, Region};
use crate::queue::QueueConfig;
use crate::ring::RingKind;
use crate::{QUEUE_SIZE_MAX, QUEUES_MAX, REGIONS_MAX, feature};

mod parked;

pub use parked::AdoptError;

/// The features that the session itself offers.
const FEATURES: u64 = feature::RING_INDIRECT_DESC
    | feature::RING_EVENT_IDX
    | feature::RING_PACKED
    | feature::LOG_ALL
    | feature::PROTOCOL_FEATURES
    | feature::VERSION_1;

/// How long no front end is taken after one whose signals cost too much. With what one may spend
/// before it is found out, such front ends have at most a hundredth of a sidecore.
pub(crate) const COSTLY_PAUSE: Duration = Duration::from_secs(10);

/// Why a message was refused, or the conversation ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// A bad memory table.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A bad inflight region.
    #[error(transparent)]
    Inflight(#[from] InflightError),
    /// A bad log of dirty pages.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A queue that the device does not have.
    #[error("queue {index} of a device with {queues}")]
    QueueIndex {
        /// The queue that was named.
        index: u32,
        /// How many there are.
        queues: usize,
    },
    /// A ring size that is not a power of two within the limit.
    #[error("queue {index}: a ring of {size} descriptors; at most {max}, a power of two",
        max = QUEUE_SIZE_MAX)]
    QueueSize {
        /// The queue.
        index: u32,
        /// The size that was asked for.
        size: u32,
    },
    /// A base beyond 16 bits for a split ring.
    #[error("queue {index}: base {base} does not fit a ring index")]
    Base {
        /// The queue.
        index: u32,
        /// The base that was given.
        base: u32,
    },
    /// Something that cannot change while the queue runs.
    #[error("queue {index} runs: {what} cannot change now")]
    Running {
        /// A queue that runs.
        index: usize,
        /// The setting that the message changes.
        what: &'static str,
    },
    /// The descriptor that signals changes of the log is no eventfd.
    #[error("the descriptor for changes of the dirty log is no eventfd")]
    LogSignal,
    /// A descriptor that is no eventfd.
    #[error("queue {index}: the {what} descriptor is no eventfd")]
    NotAnEventfd {
        /// The queue.
        index: u8,
        /// Kick, call or error.
        what: &'static str,
    },
    /// The system does not let this process signal eventfds.
    #[error(transparent)]
    Signals(#[from] ForeignError),
    /// Signalling the front end takes the sidecores' time.
    #[error(
        "signals to the front end took more than {spent} ms of a second of a sidecore's: very many \
         epolls watch one of its call, kick or log eventfds; no front end is taken for {pause:?}; \
         let few epolls watch each of them",
        spent = foreign::SPENT_NS_MAX / 1_000_000,
        pause = COSTLY_PAUSE
    )]
    CostlySignals,
    /// Features that were not offered.
    #[error("features {0:#x} were accepted but never offered")]
    Features(u64),
    /// The device refused.
    #[error("queue {index}: {source}")]
    Device {
        /// The queue that was to start.
        index: usize,
        /// Why not.
        r#source: DeviceError,
    },
    /// The process is out of descriptors.
    #[error("duplicating a descriptor: {0}")]
    Duplicate(io::Error),
    /// A message of a feature that was not offered.
    #[error("{0} was not offered")]
    NotOffered(&'static str),
}

impl SessionError {
    /// Whether it is about files that the front end shares, and can change at any time.
    pub(crate) fn is_of_shared_files(&self) -> bool {
        matches!(self, Self::Memory(_) | Self::Inflight(_) | Self::Log(_))
    }
}

impl From<SessionError> for Error {
    fn from(error: SessionError) -> Self {
        Self::ReqHandlerError(io::Error::other(error))
    }
}

/// Where the front end has the parts of a ring, in its own addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UserAddrs {
    desc: u64,
    avail: u64,
    used: u64,
}

/// The settings of a ring that have come so far.
#[derive(Debug, Default)]
struct Vring {
    size: Option<u16>,
    base: Option<u32>,
    addrs: Option<UserAddrs>,
    /// Some: writes to the ring are marked as dirty, its used part at this address.
    logged_at: Option<u64>,
    /// The outer one: whether the message came. The inner one: whether it had a descriptor.
    kick: Option<Option<OwnedFd>>,
    call: Option<OwnedFd>,
    err: Option<OwnedFd>,
    /// The descriptors with which a parked ring is started again: by then the process may have none
    /// left.
    spare: Option<RingDescriptors>,
    enabled: bool,
    running: bool,
}

/// Descriptors that a running ring has for itself.
#[derive(Debug)]
struct RingDescriptors {
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    err: Option<OwnedFd>,
}

impl Vring {
    fn ends(&self) -> io::Result<RingDescriptors> {
        let copy = |fd: Option<&OwnedFd>| fd.map(OwnedFd::try_clone).transpose();
        let kick = self.kick.as_ref().and_then(Option::as_ref);
        Ok(RingDescriptors {
            kick: copy(kick)?,
            call: copy(self.call.as_ref())?,
            err: copy(self.err.as_ref())?,
        })
    }
}

/// One device's side of the conversation, across connections.
#[derive(Debug)]
pub(crate) struct Session {
    device: Box<dyn Device>,
    /// The socket's path, for the log.
    socket: String,
    acked: u64,
    memory: Arc<Memory>,
    /// The mapped memory of this front end, with regions that only outstanding requests of older
    /// tables keep.
    account: Arc<Account>,
    /// The time that signals to the front end may take.
    allowance: Arc<Allowance>,
    vrings: Vec<Vring>,
    inflight: Option<InflightRegion>,
    log: Option<DirtyLog>,
    /// Told when pages were marked, in this log or another.
    log_signal: Option<OwnedFd>,
    back_channel: Option<BackChannel>,
    /// Protocol features in use.
    protocol: u64,
}

impl Session {
    /// `bell` is written to when the session has to end; see [`Self::is_too_costly`].
    pub(crate) fn new(device: Box<dyn Device>, socket: String, bell: Arc<OwnedFd>) -> Self {
        let queues = device.queues_max();
        assert!((1..=QUEUES_MAX).contains(&queues), "a device with {queues} queues");
        Self {
            device,
            socket,
            acked: 0,
            memory: Arc::default(),
            account: Arc::default(),
            allowance: Arc::new(Allowance::new(bell)),
            vrings: (0..queues).map(|_| Vring::default()).collect(),
            inflight: None,
            log: None,
            log_signal: None,
            back_channel: None,
            protocol: 0,
        }
    }

    /// The device's event; see [`Device::config_event`].
    pub(crate) fn config_event(&self) -> Option<Arc<OwnedFd>> {
        self.device.config_event()
    }

    /// From now on this is the way to the front end, if it was agreed on.
    pub(crate) fn set_back_channel(&mut self, channel: BackChannel) {
        if self.protocol & VhostUserProtocolFeatures::BACKEND_REQ.bits() != 0 {
            self.back_channel = Some(channel);
        }
    }

    /// Tells the front end that the configuration space is another one now.
    pub(crate) fn config_changed(&mut self) {
        match &mut self.back_channel {
            Some(channel) => channel.config_changed(&self.socket),
            None => info!(
                socket = self.socket,
                "the device has changed; its front end has no back-channel, so the guest sees the \
                 change when it is started again"
            ),
        }
    }

    /// The front end went away: back to the beginning.
    pub(crate) fn disconnected(&mut self) {
        self.device.disconnected();
        self.acked = 0;
        self.memory = Arc::default();
        self.inflight = None;
        self.log = None;
        self.log_signal = None;
        self.back_channel = None;
        self.protocol = 0;
        self.vrings.fill_with(Vring::default);
        // No queue of this front end's is left that could still spend it.
        self.allowance.renew();
    }

    /// Whether signals to this front end have cost more than they may: it is not signalled any
    /// more, so that it has to go.
    pub(crate) fn is_too_costly(&self) -> bool {
        self.allowance.is_spent()
    }

    /// How the front end's rings are laid out.
    fn ring_kind(&self) -> RingKind {
        match self.acked & feature::RING_PACKED {
            0 => RingKind::Split,
            _ => RingKind::Packed,
        }
    }

    fn offered(&self) -> u64 {
        self.device.features() | FEATURES
    }

    fn vring(&mut self, index: u32) -> std::result::Result<&mut Vring, SessionError> {
        let queues = self.vrings.len();
        let wrong = SessionError::QueueIndex { index, queues };
        usize::try_from(index).ok().and_then(|at| self.vrings.get_mut(at)).ok_or(wrong)
    }

    fn refuse_running(&self, what: &'static str) -> std::result::Result<(), SessionError> {
        match self.vrings.iter().position(|vring| vring.running) {
            Some(index) => Err(SessionError::Running { index, what }),
            None => Ok(()),
        }
    }

    /// Starts the ring if all is there that it needs.
    fn start(&mut self, index: usize) -> std::result::Result<(), SessionError> {
        let vring = &self.vrings[index];
        let enabled = vring.enabled || self.acked & feature::PROTOCOL_FEATURES == 0;
        let (Some(size), Some(base), Some(addrs), true) =
            (vring.size, vring.base, vring.addrs, vring.kick.is_some())
        else {
            return Ok(());
        };
        if vring.running || !enabled {
            return Ok(());
        }
        let guest = |addr| self.memory.guest_addr_of(addr);
        let parts = (guest(addrs.desc), guest(addrs.avail), guest(addrs.used));
        let (Some(desc), Some(avail), Some(used)) = parts else {
            debug!(socket = self.socket, queue = index, "the ring's memory has not arrived yet");
            return Ok(());
        };
        let vring = &mut self.vrings[index];
        let ends = vring.spare.take().map_or_else(|| vring.ends(), Ok);
        let ends = ends.map_err(SessionError::Duplicate)?;
        let config = QueueConfig {
            index,
            kind: self.ring_kind(),
            size,
            memory: Arc::clone(&self.memory),
            desc,
            avail,
            used,
            base,
            event_idx: self.acked & feature::RING_EVENT_IDX != 0,
            indirect: self.acked & feature::RING_INDIRECT_DESC != 0,
            kick: ends.kick,
            call: ends.call,
            err: ends.err,
            // A device that is in order, or only reads, says so itself.
            in_order: false,
            reads_only: false,
            inflight: self.inflight.as_ref().and_then(|region| region.queue(index)),
            logging: self.logging(index),
            allowance: Arc::clone(&self.allowance),
        };
        debug!(socket = self.socket, queue = index, size, base, "queue starts");
        self.device.start(config).map_err(|source| SessionError::Device { index, source })?;
        self.vrings[index].running = true;
        Ok(())
    }

    /// The present marks of a ring.
    fn logging(&self, index: usize) -> Logging {
        let ring = self.vrings[index].logged_at;
        let buffers = self.acked & feature::LOG_ALL != 0;
        let log = self.log.as_ref().filter(|_| buffers || ring.is_some());
        Logging { log: log.cloned(), buffers, ring }
    }

    /// Running rings take the present settings of marks.
    fn set_logging(&mut self) {
        for index in 0..self.vrings.len() {
            if self.vrings[index].running {
                self.device.set_logging(index, self.logging(index));
            }
        }
    }

    /// Takes the message that brings the descriptor to which changes of the log are told.
    pub(crate) fn set_log_signal(
        &mut self,
        message: &LogSignal,
        front_end: BorrowedFd<'_>,
    ) -> Result<()> {
        if self.protocol & VhostUserProtocolFeatures::LOG_SHMFD.bits() == 0 {
            return not_offered("LOG_SHMFD");
        }
        if !foreign::is_eventfd(message.fd.as_fd()) {
            return Err(SessionError::LogSignal.into());
        }
        message.take(front_end);
        self.log_signal = duplicate(Some(&message.fd))?;
        if let Some(log) = self.log.take() {
            self.use_log(log)?;
        }
        if self.protocol & VhostUserProtocolFeatures::REPLY_ACK.bits() != 0 {
            message.answer(front_end).map_err(Error::SocketError)?;
        }
        Ok(())
    }

    /// Takes a message that enables a ring before the features are settled, as QEMU's nics do: it
    /// counts once they are. `false` when it is not one of those.
    pub(crate) fn enable_early(
        &mut self,
        message: Enable,
        front_end: BorrowedFd<'_>,
    ) -> Result<bool> {
        if self.acked & feature::PROTOCOL_FEATURES != 0 {
            return Ok(false);
        }
        message.take(front_end);
        self.set_vring_enable(message.index, message.enable)?;
        if self.protocol & VhostUserProtocolFeatures::REPLY_ACK.bits() != 0 {
            message.answer(front_end).map_err(Error::SocketError)?;
        }
        Ok(true)
    }

    fn use_log(&mut self, mut log: DirtyLog) -> std::result::Result<(), SessionError> {
        log.set_signal(duplicate(self.log_signal.as_ref())?, &self.allowance);
        self.log = Some(log);
        self.set_logging();
        Ok(())
    }

    fn stop(&mut self, index: usize) {
        let vring = &mut self.vrings[index];
        if vring.running {
            vring.running = false;
            let base = self.device.stop(index);
            vring.base = Some(base);
            debug!(socket = self.socket, queue = index, base, "queue stopped");
        }
    }

    fn map(
        &self,
        region: &VhostUserMemoryRegion,
        file: &File,
    ) -> std::result::Result<Arc<Region>, SessionError> {
        // The fields are packed: copied before they are used.
        let (guest_addr, len) = (region.guest_phys_addr, region.memory_size);
        let (user_addr, offset) = (region.user_addr, region.mmap_offset);
        let (fd, account) = (file.as_fd(), Some(&self.account));
        let mapped = Region::of(fd, offset, (guest_addr, user_addr), len, account)?;
        if !mapped.mapping().is_sealed() {
            debug!(socket = self.socket, guest_addr, "guest memory in a file that can shrink");
        }
        Ok(Arc::new(mapped))
    }

    fn set_memory(&mut self, memory: Memory) -> std::result::Result<(), SessionError> {
        self.memory = Arc::new(memory);
        if self.vrings.iter().any(|vring| vring.running) {
            self.device.set_memory(Arc::clone(&self.memory));
        }
        (0..self.vrings.len()).try_for_each(|index| self.start(index))
    }
}

fn duplicate(fd: Option<&OwnedFd>) -> std::result::Result<Option<OwnedFd>, SessionError> {
    fd.map(OwnedFd::try_clone).transpose().map_err(SessionError::Duplicate)
}

/// A kick, call or error descriptor, checked.
fn eventfd(
    index: u8,
    what: &'static str,
    file: Option<File>,
) -> std::result::Result<Option<OwnedFd>, SessionError> {
    let fd = file.map(OwnedFd::from);
    if fd.as_ref().is_some_and(|fd| !foreign::is_eventfd(fd.as_fd())) {
        return Err(SessionError::NotAnEventfd { index, what });
    }
    foreign::ready()?;
    Ok(fd)
}

fn not_offered<T>(what: &'static str) -> Result<T> {
    Err(SessionError::NotOffered(what).into())
}

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    /// Deprecated and never well defined; the specification says to ignore it.
    fn reset_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        not_offered("RESET_DEVICE")
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.offered())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let unknown = features & !self.offered();
        if unknown != 0 {
            return Err(SessionError::Features(unknown).into());
        }
        let running = self.vrings.iter().any(|vring| vring.running);
        if running && (features ^ self.acked) & !feature::LOG_ALL == 0 {
            self.acked = features;
            self.set_logging();
            return Ok(());
        }
        self.refuse_running("features")?;
        self.acked = features;
        self.device.set_features(features);
        (0..self.vrings.len()).try_for_each(|index| self.start(index))?;
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let mapped: std::result::Result<Vec<_>, SessionError> =
            regions.iter().zip(&files).map(|(region, file)| self.map(region, file)).collect();
        let memory = Memory::new(mapped?).map_err(SessionError::from)?;
        self.set_memory(memory)?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let vring = self.vring(index)?;
        let size = u16::try_from(num).ok();
        let size = size.filter(|size| size.is_power_of_two() && *size <= QUEUE_SIZE_MAX);
        let size = size.ok_or(SessionError::QueueSize { index, size: num })?;
        if vring.running && vring.size != Some(size) {
            return Err(SessionError::Running { index: index as usize, what: "the size" }.into());
        }
        vring.size = Some(size);
        Ok(self.start(index as usize)?)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        log: u64,
    ) -> Result<()> {
        let vring = self.vring(index)?;
        let addrs = UserAddrs { desc: descriptor, avail: available, used };
        if vring.running && vring.addrs != Some(addrs) {
            let what = "the addresses";
            return Err(SessionError::Running { index: index as usize, what }.into());
        }
        vring.addrs = Some(addrs);
        vring.logged_at = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG).then_some(log);
        if vring.running {
            self.set_logging();
            return Ok(());
        }
        Ok(self.start(index as usize)?)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let is_split = self.ring_kind() == RingKind::Split;
        let vring = self.vring(index)?;
        if is_split && base > u32::from(u16::MAX) {
            return Err(SessionError::Base { index, base }.into());
        }
        if vring.running {
            return Err(SessionError::Running { index: index as usize, what: "the base" }.into());
        }
        vring.base = Some(base);
        Ok(self.start(index as usize)?)
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let fresh = self.ring_kind().base_fresh();
        self.vring(index)?;
        self.stop(index as usize);
        let vring = self.vring(index)?;
        vring.kick = None;
        Ok(VhostUserVringState::new(index, vring.base.unwrap_or(fresh)))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let kick = eventfd(index, "kick", file)?;
        let at = usize::from(index);
        let vring = self.vring(u32::from(index))?;
        vring.kick = Some(kick);
        if vring.running {
            let kick = duplicate(vring.kick.as_ref().and_then(Option::as_ref))?;
            self.device.set_kick(at, kick);
            return Ok(());
        }
        Ok(self.start(at)?)
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let call = eventfd(index, "call", file)?;
        let vring = self.vring(u32::from(index))?;
        vring.call = call;
        if vring.running {
            let call = duplicate(vring.call.as_ref())?;
            self.device.set_call(usize::from(index), call);
        }
        Ok(())
    }

    /// Takes effect when the queue starts the next time.
    fn set_vring_err(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let err = eventfd(index, "error", file)?;
        self.vring(u32::from(index))?.err = err;
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::LOG_SHMFD
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let unknown = features & !self.get_protocol_features()?.bits();
        if unknown != 0 {
            return Err(SessionError::Features(unknown).into());
        }
        self.protocol = features;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.device.queues_told())
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.vring(index)?.enabled = enable;
        if enable {
            return Ok(self.start(index as usize)?);
        }
        self.stop(index as usize);
        Ok(())
    }

    /// Bytes beyond the device's own space read as zero: a newer front end knows more fields than
    /// the device has.
    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        let config = self.device.config();
        // The codec has checked that the range ends within a page.
        let (offset, size) = (offset as usize, size as usize);
        let have = config.get(offset..).unwrap_or_default();
        let mut bytes = have[..have.len().min(size)].to_vec();
        bytes.resize(size, 0);
        Ok(bytes)
    }

    fn set_config(
        &mut self,
        offset: u32,
        bytes: &[u8],
        _flags: VhostUserConfigFlags,
    ) -> Result<()> {
        self.device.write_config(offset, bytes);
        Ok(())
    }

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Result<()> {
        not_offered("GPU_SET_SOCKET")
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        not_offered("SHARED_OBJECT")
    }

    fn get_inflight_fd(
        &mut self,
        inflight: &VhostUserInflight,
    ) -> Result<(VhostUserInflight, File)> {
        let (queues, size) = (inflight.num_queues, inflight.queue_size);
        // QEMU settles the features first: the layout follows from them.
        let region = InflightRegion::create((self.ring_kind(), queues, size));
        let (fd, len) = region.map_err(SessionError::from)?;
        Ok((VhostUserInflight::new(len, 0, queues, size), File::from(fd)))
    }

    fn set_inflight_fd(&mut self, inflight: &VhostUserInflight, file: File) -> Result<()> {
        self.refuse_running("the inflight region")?;
        let (offset, len) = (inflight.mmap_offset, inflight.mmap_size);
        let (queues, size) = (inflight.num_queues, inflight.queue_size);
        let shape = (self.ring_kind(), queues, size);
        let region = InflightRegion::of(file.as_fd(), offset, len, shape, Some(&self.account));
        self.inflight = Some(region.map_err(SessionError::from)?);
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(REGIONS_MAX as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        let mapped = self.map(region, &file)?;
        let memory = self.memory.with(mapped).map_err(SessionError::from)?;
        self.set_memory(memory)?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let (guest_addr, len) = (region.guest_phys_addr, region.memory_size);
        let memory = self.memory.without(guest_addr, len, region.user_addr);
        let memory = memory.map_err(SessionError::from)?;
        Ok(self.set_memory(memory)?)
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        not_offered("DEVICE_STATE")
    }

    fn check_device_state(&mut self) -> Result<()> {
        not_offered("DEVICE_STATE")
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        not_offered("SHMEM")
    }

    /// The crate answers it when this returns: by then nothing uses the log of before, whose bits
    /// the front end takes a last time.
    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        let (offset, len) = (log.mmap_offset, log.mmap_size);
        debug!(socket = self.socket, len, "dirty log");
        let log = DirtyLog::of(file.as_fd(), offset, len, Some(&self.account));
        let log = log.map_err(SessionError::from)?;
        Ok(self.use_log(log)?)
    }
}
