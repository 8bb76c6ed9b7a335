//! A device behind a socket, polled by the test itself, and a front end for it.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{
    Frontend, VhostUserFrontend, VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::ring::*;
use crate::chain::{Chain, ChainHead};
use crate::device::{Device, DeviceError};
use crate::dirty::Logging;
use crate::memory::Memory;
use crate::queue::{Queue, QueueConfig};
use crate::socket::{DeviceServer, ServerState, Socket, serve};

/// Where the front end has the guest's memory.
pub(super) const USER: u64 = 0x7f12_3450_0000;
pub(super) const QUEUES: usize = 3;
/// A feature of the device's own.
pub(super) const OWN_FEATURE: u64 = 1 << 9;

/// The state that the test and the session's thread share.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) queues: BTreeMap<usize, Queue>,
    pub(super) memories: usize,
    pub(super) disconnects: usize,
    pub(super) acked: u64,
    pub(super) written: Vec<u8>,
    pub(super) refuse: bool,
    /// How long a stop takes.
    pub(super) slow: Duration,
    /// Stops that were begun.
    pub(super) stops: usize,
    /// Readable when the configuration has changed.
    pub(super) event: Option<Arc<OwnedFd>>,
}

/// Waits for another thread to have done something. Only what never happens takes so long.
pub(super) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(120), "it never happened: {what}");
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Echoes the number of readable bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct TestDevice(Arc<Mutex<State>>);

impl TestDevice {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Takes what is there, without completing it.
    pub(super) fn take(&self, queue: usize) -> Vec<ChainHead> {
        let mut state = self.state();
        let queue = state.queues.get_mut(&queue).expect("a running queue");
        let mut chain = Chain::new();
        std::iter::from_fn(|| queue.take(&mut chain).unwrap()).collect()
    }

    /// Completes everything that is there, with 7 bytes; how many.
    pub(super) fn poll(&self, queue: usize) -> usize {
        let heads = self.take(queue);
        let mut state = self.state();
        let queue = state.queues.get_mut(&queue).unwrap();
        heads.iter().for_each(|&head| queue.put(head, 7));
        queue.publish();
        heads.len()
    }

    pub(super) fn running(&self) -> Vec<usize> {
        self.state().queues.keys().copied().collect()
    }
}

impl Device for TestDevice {
    fn features(&self) -> u64 {
        OWN_FEATURE
    }

    fn config(&self) -> Vec<u8> {
        (1..=8).collect()
    }

    fn config_event(&self) -> Option<Arc<OwnedFd>> {
        self.state().event.clone()
    }

    fn write_config(&mut self, offset: u32, bytes: &[u8]) {
        self.state().written = [&[offset as u8], bytes].concat();
    }

    fn queues_max(&self) -> usize {
        QUEUES
    }

    fn set_features(&mut self, acked: u64) {
        self.state().acked = acked;
    }

    fn start(&mut self, config: QueueConfig) -> Result<(), DeviceError> {
        let mut state = self.state();
        if state.refuse {
            return Err("not today".into());
        }
        let index = config.index;
        let before = state.queues.insert(index, Queue::new(config)?);
        assert!(before.is_none(), "queue {index} started twice");
        Ok(())
    }

    fn stop(&mut self, index: usize) -> u32 {
        let slow = {
            let mut state = self.state();
            state.stops += 1;
            state.slow
        };
        std::thread::sleep(slow);
        self.state().queues.remove(&index).expect("a running queue").base()
    }

    fn set_memory(&mut self, memory: Arc<Memory>) {
        let mut state = self.state();
        state.memories += 1;
        for queue in state.queues.values_mut() {
            // A ring that is gone is the queue's own failure.
            let _ = queue.set_memory(Arc::clone(&memory));
        }
    }

    fn set_logging(&mut self, index: usize, logging: Logging) {
        self.state().queues.get_mut(&index).expect("a running queue").set_logging(logging);
    }

    fn set_call(&mut self, index: usize, call: Option<OwnedFd>) {
        self.state().queues.get_mut(&index).expect("a running queue").set_call(call);
    }

    fn set_kick(&mut self, index: usize, kick: Option<OwnedFd>) {
        self.state().queues.get_mut(&index).expect("a running queue").set_kick(kick);
    }

    fn disconnected(&mut self) {
        let mut state = self.state();
        state.queues.clear();
        state.disconnects += 1;
    }
}

fn counter() -> OwnedFd {
    let flags = rustix::event::EventfdFlags::NONBLOCK;
    rustix::event::eventfd(0, flags).unwrap()
}

fn event() -> EventFd {
    EventFd::new(EFD_NONBLOCK).unwrap()
}

/// A served device, and a guest with one ring of 8.
pub(super) struct Bed {
    pub(super) directory: TempDir,
    pub(super) device: TestDevice,
    pub(super) server: Option<DeviceServer>,
    pub(super) file: OwnedFd,
    pub(super) ring: TestRing,
    pub(super) kick: EventFd,
    pub(super) call: EventFd,
}

impl Bed {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = memory_file(2 * LEN as u64);
        let mut ring = TestRing::in_file(8, &file);
        (0..8).for_each(|head| ring.describe(head, descriptor(DATA, 8, WRITE, 0)));
        let device = TestDevice::default();
        device.state().event = Some(Arc::new(counter()));
        let mut bed =
            Self { directory, device, server: None, file, ring, kick: event(), call: event() };
        bed.serve();
        bed
    }

    pub(super) fn path(&self) -> PathBuf {
        self.directory.path().join("disk.sock")
    }

    pub(super) fn serve(&mut self) {
        let device = Box::new(self.device.clone());
        self.server = Some(serve(Socket::listen(self.path()), device).unwrap());
    }

    pub(super) fn server(&self) -> &DeviceServer {
        self.server.as_ref().unwrap()
    }

    /// Waits for the server to have dropped its last front end.
    pub(super) fn wait_for_disconnects(&self, count: usize) {
        until("the front end is dropped", || self.device.state().disconnects >= count);
    }

    pub(super) fn wait_for(&self, state: &ServerState) {
        until("the server's state", || self.server().state() == *state);
    }

    /// Connects, negotiates everything, and wants an answer to everything.
    pub(super) fn connect(&self) -> Frontend {
        let mut front_end = Frontend::connect(self.path(), QUEUES as u64).unwrap();
        front_end.set_owner().unwrap();
        let features = front_end.get_features().unwrap() & !crate::feature::RING_PACKED;
        assert!(features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0);
        front_end.set_features(features).unwrap();
        let offered = front_end.get_protocol_features().unwrap();
        let wanted = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::LOG_SHMFD
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
        assert_eq!(offered, wanted);
        front_end.set_protocol_features(offered).unwrap();
        front_end.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        front_end
    }

    /// The guest's memory in two regions of one file.
    pub(super) fn regions(&self) -> [VhostUserMemoryRegionInfo; 2] {
        [0, LEN as u64].map(|at| self.region(at, at, LEN as u64))
    }

    pub(super) fn region(&self, at: u64, offset: u64, len: u64) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: BASE.wrapping_add(at),
            memory_size: len,
            userspace_addr: USER.wrapping_add(at),
            mmap_offset: offset,
            mmap_handle: self.file.as_raw_fd(),
        }
    }

    pub(super) fn addrs(&self) -> VringConfigData {
        let config = self.ring.config(None);
        let user = |addr| addr - BASE + USER;
        VringConfigData {
            queue_max_size: config.size,
            queue_size: config.size,
            flags: 0,
            desc_table_addr: user(config.desc),
            used_ring_addr: user(config.used),
            avail_ring_addr: user(config.avail),
            log_addr: None,
        }
    }

    /// Everything, as QEMU does it.
    pub(super) fn start(&self, front_end: &mut Frontend, queue: usize, base: u16) {
        front_end.set_mem_table(&self.regions()).unwrap();
        front_end.set_vring_num(queue, 8).unwrap();
        front_end.set_vring_base(queue, base).unwrap();
        front_end.set_vring_addr(queue, &self.addrs()).unwrap();
        front_end.set_vring_kick(queue, &self.kick).unwrap();
        front_end.set_vring_call(queue, &self.call).unwrap();
        front_end.set_vring_enable(queue, true).unwrap();
    }

    /// One request goes there and back.
    pub(super) fn round_trip(&mut self, queue: usize, head: u16) {
        self.ring.offer(head);
        assert_eq!(self.device.poll(queue), 1);
        assert_eq!(self.ring.reap(), Some((head, 7)));
    }
}
