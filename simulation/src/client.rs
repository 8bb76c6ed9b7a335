//! The simulated VMhost: its process, and the guest that outlives it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use block::attachment::{Phase, Remembered};
use block::disk::LEAVE;
use block::{AttachOptions, Attached, Attachment, DiskCore, DiskQueues, Exports, RemoteVolume};
use sidecore::Progress;
use virtio::driver::{
    Backing, Data, DriverGuest, DriverOp, DriverRequest, GuestPlan, Regions, RequestSlot,
    RequestStatus, Reuse, RingDriver, RingOptions, RingShape,
};
use virtio::{InflightRegion, Queue, RingKind};
use volume::OpenArguments;

use super::host::{HostPlan, PORT, SimCore, host_ip};
use super::keys::WorldKeys;
use super::nics::GuestNics;
use super::server::{SERVER, VOLUME};
use super::storage::{BLOCK_BYTES, SimRecords};
use random::Random;
use simnet::SimNetwork;
use workload::checker::{Began, Checker};

/// The most sidecores of a VMhost.
const CORES_MAX: u64 = 4;

/// The last byte of the first VMhost's address.
const FIRST_NUMBER: u8 = 100;

/// Descriptors of a ring: room for every slot's longest chain.
const RING_SIZE: u16 = 512;

/// The attachment's name: the same on every VMhost.
pub(super) const ATTACHMENT: &str = "alice";

#[derive(Debug)]
struct ClientProcess {
    cores: Vec<SimCore>,
    volume: Arc<RemoteVolume>,
    disk: Option<Arc<DiskCore>>,
    disks: Vec<DiskQueues>,
    /// Which of them has which queue.
    owners: Vec<usize>,
    moving: Option<Moving>,
}

/// A queue on its way from one sidecore to another.
#[derive(Debug)]
struct Moving {
    at: usize,
    to: usize,
    /// It has left, and arrives then.
    left: Option<(Queue, u64)>,
}

/// The longest way between two sidecores: one of them may not get to run for a while.
const BETWEEN_NS_MAX: u64 = 20_000_000;

/// A VMhost with its guest.
#[derive(Debug)]
pub(super) struct SimClient {
    /// Which VMhost it is.
    pub(super) number: u8,
    /// Stands still until then.
    pub(super) paused_ns: u64,
    /// The present process's attachment.
    pub(super) attachment: Arc<Attachment>,
    /// The guest remembers answers from before this process.
    pub(super) resumed: bool,
    /// The last epoch that the world knows of.
    pub(super) epoch_seen: u64,
    /// The last process closed the attachment clean, and no later one has claimed it.
    pub(super) clean: bool,
    /// An orderly stop is under way; from before it began.
    pub(super) stopping: Option<Began>,
    /// The next process goes on as this one.
    hands_over: bool,
    /// It goes on as a process that handed over to it, and holds no epoch yet.
    pub(super) goes_on: bool,
    /// From before the process first claimed.
    pub(super) before_claim: Option<Began>,
    /// The guest was let go of in order: its VMM does not start it here again.
    pub(super) has_moved: bool,
    /// An operator has said that it has the volume, until it has.
    pub(super) takes: bool,
    /// The VMhost's records, which outlive its processes.
    pub(super) own: SimRecords,
    /// The guest's nics.
    pub(super) nics: GuestNics,
    name: String,
    datagram_bytes_max: usize,
    keys: WorldKeys,
    process: Option<ClientProcess>,
    back_ns: u64,
    guest: DriverGuest,
    rings: Vec<RingDriver>,
    kind: RingKind,
    inflight: (OwnedFd, u64),
    reading: Option<RequestSlot>,
    /// Its guest's memory when it was fenced, until a later process is granted the volume.
    fenced: Option<u64>,
    error: Option<String>,
}

impl ClientProcess {
    /// The queue that has left arrives; one that has not stays.
    fn arrive(&mut self) {
        let Some(Moving { at, to, left }) = self.moving.take() else { return };
        if let Some((queue, _)) = left {
            self.disks[to].adopt(queue);
            self.owners[at] = to;
        }
    }
}

impl SimClient {
    /// Starts a VMhost and a guest on it, with `queues` by chance. `own` is what the VMhost has
    /// remembered until now.
    pub(super) fn new(
        (number, own, nics): (u8, SimRecords, GuestNics),
        name: &str,
        random: &mut Random,
        (datagram_bytes_max, keys): (usize, &WorldKeys),
        resumed: bool,
    ) -> Self {
        let queues = u16::try_from(random.between(1, 4)).expect("small");
        let shape = RingShape {
            size: RING_SIZE,
            slots: 16,
            transfer_bytes_max: 24 * 512,
            segments_max: 24,
        };
        let backing = Backing::Anonymous;
        let plan = GuestPlan { queues, shape, backing, regions: Regions::One };
        let guest = DriverGuest::new(&plan).expect("memory for a small guest");
        let kind = if random.hits(500_000) { RingKind::Packed } else { RingKind::Split };
        let options = RingOptions {
            kind,
            event_idx: random.hits(500_000),
            indirect: random.hits(500_000),
            reuse: if random.hits(500_000) { Reuse::AsLinux } else { Reuse::InOrder },
            ..RingOptions::default()
        };
        let rings = (0..queues).map(|index| guest.ring(index, options.clone())).collect();
        let inflight = InflightRegion::create((kind, queues, RING_SIZE)).expect("a memory file");
        let mut client = Self {
            number,
            paused_ns: 0,
            attachment: new_attachment(resumed, &own, random),
            resumed,
            epoch_seen: 0,
            clean: false,
            stopping: None,
            hands_over: false,
            goes_on: false,
            before_claim: None,
            has_moved: false,
            takes: false,
            own,
            nics,
            name: name.to_owned(),
            datagram_bytes_max,
            keys: keys.clone(),
            process: None,
            back_ns: 0,
            guest,
            rings,
            kind,
            inflight,
            reading: None,
            fenced: None,
            error: None,
        };
        client.start(random);
        client
    }

    /// The guest's rings.
    pub(super) fn rings(&mut self) -> &mut [RingDriver] {
        &mut self.rings
    }

    /// The sidecores of the running process.
    pub(super) fn cores_mut(&mut self) -> impl Iterator<Item = &mut SimCore> {
        self.process.iter_mut().flat_map(|process| &mut process.cores)
    }

    /// The times of the next steps.
    pub(super) fn next_ns(&self) -> impl Iterator<Item = u64> {
        let cores = self.process.iter().flat_map(|process| &process.cores);
        cores.filter_map(SimCore::next_ns).chain(self.own.next_ns())
    }

    /// Whether the host has something to do; for a host whose guest went on elsewhere.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        let mut cores = self.process.iter().flat_map(|process| &process.cores);
        let is_written = self.own.next_ns().is_some_and(|at_ns| at_ns <= now_ns);
        is_written || cores.any(|core| core.is_due(now_ns))
    }

    /// Whether the process runs and has its disk.
    pub(super) fn is_running(&self) -> bool {
        self.process.as_ref().is_some_and(|process| !process.disks.is_empty())
    }

    /// Whether it knows that a successor has replaced it.
    pub(super) fn is_fenced(&self) -> bool {
        self.fenced.is_some()
    }

    /// Requests that its channels sent again.
    pub(super) fn resent(&self) -> u64 {
        let volumes = self.process.iter().map(|process| &process.volume);
        volumes.flat_map(|volume| volume.counters()).map(|counters| counters.resent.get()).sum()
    }

    /// Buffers that are in use on all sidecores.
    pub(super) fn buffers_in_use(&self) -> usize {
        let cores = self.process.iter().flat_map(|process| &process.cores);
        cores.map(|core| core.endpoint.borrow().pool().in_use()).sum()
    }

    /// Kills the process; the guest lives on, and the process is started again at `back_ns`.
    pub(super) fn kill(&mut self, back_ns: u64, random: &mut Random) {
        // A process that is killed before it has let go of everything hands nothing over.
        self.hands_over &= self.has_stopped();
        if self.is_handed_over() {
            // A node hands over only when its records are written.
            self.own.settle();
        } else {
            self.own.kill(random);
        }
        self.process = None;
        self.nics.unplugged();
        self.stopping = None;
        self.back_ns = back_ns;
        self.paused_ns = 0;
    }

    /// Has a queue go over to another sidecore; one at a time, and while nothing else is changed.
    pub(super) fn begin_move(&mut self, now_ns: u64, random: &mut Random) {
        let Some(process) = &mut self.process else { return };
        let count = process.disks.len() as u64;
        if count < 2 || process.moving.is_some() || self.stopping.is_some() {
            return;
        }
        let at = random.below(process.owners.len() as u64) as usize;
        let from = process.owners[at];
        let to = (from + 1 + random.below(count - 1) as usize) % process.disks.len();
        if !process.disks[to].is_open() {
            return;
        }
        let until_ns = now_ns + LEAVE.as_nanos() as u64;
        if process.disks[from].begin_leave(at, until_ns).is_ok() {
            process.moving = Some(Moving { at, to, left: None });
        }
    }

    /// How often queues of this process went over to another sidecore, and how often they stayed.
    pub(super) fn moves(&self) -> (u64, u64) {
        let Some(disk) = self.process.as_ref().and_then(|process| process.disk.as_ref()) else {
            return (0, 0);
        };
        let counters = (0..disk.queues_max()).map(|queue| disk.counters(queue));
        counters.fold((0, 0), |(moves, refused), queue| {
            (moves + queue.moves.get(), refused + queue.moves_refused.get())
        })
    }

    /// Whether a queue is between two sidecores.
    pub(super) fn is_between(&self) -> bool {
        let moving = self.process.as_ref().and_then(|process| process.moving.as_ref());
        moving.is_some_and(|moving| moving.left.is_some())
    }

    /// Goes on with the move that is under way.
    fn advance_move(&mut self, now_ns: u64, random: &mut Random) {
        let Some(process) = &mut self.process else { return };
        let Some(moving) = &mut process.moving else { return };
        let from = process.owners[moving.at];
        if let Some((_, arrives_ns)) = moving.left {
            if now_ns >= arrives_ns {
                process.arrive();
            }
            return;
        }
        match process.disks[from].take_left(moving.at) {
            Some(Ok(queue)) => {
                moving.left = Some((queue, now_ns + random.between(0, BETWEEN_NS_MAX)));
            }
            Some(Err(_)) => process.moving = None,
            None => {}
        }
    }

    /// Begins an orderly stop: outstanding requests stay in the inflight region, and the attachment
    /// is closed. See [`Self::has_stopped`]. The next process knows the state of this one if it
    /// `hands_over`.
    pub(super) fn stop(&mut self, began: Began, hands_over: bool) {
        let Some(process) = &mut self.process else { return };
        self.stopping = Some(began);
        self.hands_over = hands_over;
        // A stop waits until a queue has arrived.
        process.arrive();
        self.attachment.close();
        process.disks.iter_mut().for_each(DiskQueues::let_go);
    }

    /// Whether an orderly stop has come to its end.
    pub(super) fn has_stopped(&self) -> bool {
        let gone = |process: &ClientProcess| process.disks.iter().all(DiskQueues::is_gone);
        self.stopping.is_some() && self.process.as_ref().is_some_and(gone)
    }

    /// Whether another process can go on as this one.
    pub(super) fn is_handed_over(&self) -> bool {
        self.hands_over && self.has_stopped() && self.attachment.standing().is_some()
    }

    /// Starts the process again when it is time.
    pub(super) fn start_if_due(&mut self, now_ns: u64, random: &mut Random) {
        if self.process.is_some() || now_ns < self.back_ns {
            return;
        }
        let standing = self.attachment.standing();
        self.before_claim = None;
        match standing.filter(|_| std::mem::take(&mut self.hands_over)) {
            Some(standing) => {
                let options = *self.attachment.options();
                let next = Attachment::going_on(ATTACHMENT, options, &standing);
                let next = next.expect("a server has issued that epoch");
                let own = Remembered::load(ATTACHMENT, Arc::new(self.own.clone()));
                self.attachment = Arc::new(next.remembered_in(Some(own)));
                self.goes_on = true;
            }
            None => {
                // The guest remembers every answer that it ever got.
                self.resumed |= self.rings.iter().any(RingDriver::was_answered);
                self.attachment = new_attachment(self.resumed, &self.own, random);
                self.epoch_seen = 0;
                self.goes_on = false;
                if self.takes {
                    self.take_over();
                }
            }
        }
        self.start(random);
    }

    fn start(&mut self, random: &mut Random) {
        let plan = HostPlan {
            name: &self.name,
            number: FIRST_NUMBER + self.number,
            // Another number each time: often not the IOhost's.
            cores: u16::try_from(random.between(1, CORES_MAX)).expect("small"),
            nonce: random.draw(),
            datagram_bytes_max: self.datagram_bytes_max,
            keys: &self.keys,
            open: &Arc::default(),
        };
        let cores = SimCore::start(&plan, &Arc::new(Exports::default()));
        let volume = RemoteVolume::of_peers(&[SERVER.0.to_owned()], VOLUME, self.keys.tenant());
        for core in &cores {
            let addr = (host_ip(SERVER.1), PORT).into();
            core.planes.peers().borrow_mut().add(SERVER.0, addr);
        }
        let described = cores[0].plane.borrow_mut().clients.describe(volume.clone());
        assert!(described, "the peer was just added");
        let (disks, owners) = (Vec::new(), Vec::new());
        let process = ClientProcess { cores, volume, disk: None, disks, owners, moving: None };
        self.process = Some(process);
    }

    /// An operator says that this VMhost has the volume, even if another VMhost has it.
    pub(super) fn take_over(&mut self) {
        self.takes = true;
        self.attachment.take_over();
    }

    /// One instant.
    pub(super) fn run(&mut self, now_ns: u64, network: &mut SimNetwork, random: &mut Random) {
        if self.process.is_some() {
            self.own.advance(now_ns);
        }
        if now_ns < self.paused_ns {
            return;
        }
        self.takes &= self.attachment.view().epoch == 0;
        self.plug_nics(now_ns, random);
        self.start_disks();
        self.advance_move(now_ns, random);
        let Some(process) = &mut self.process else { return };
        let disks = process.disks.iter_mut().map(Some).chain(std::iter::repeat_with(|| None));
        for (core, mut disk) in process.cores.iter_mut().zip(disks) {
            core.run(now_ns, network, |now_ns| match &mut disk {
                Some(disk) => disk.poll(now_ns),
                None => Progress::Idle,
            });
        }
        match self.attachment.view().phase {
            // The operator wants it to have errors: the guest's memory changes.
            _ if self.attachment.options().error_after_ns.is_some() => self.fenced = None,
            Phase::Fenced if self.fenced.is_none() => self.fenced = Some(self.digest()),
            // Either a later process was granted the volume again: the VMhost that fenced the
            // former process was never served, because the record of its claim was lost with the
            // IOhost. Or the guest is told that it cannot go on.
            Phase::Held | Phase::Failed => self.fenced = None,
            _ => {}
        }
    }

    /// The guest's nics join their networks, or leave them.
    fn plug_nics(&mut self, now_ns: u64, random: &mut Random) {
        let Some(process) = &mut self.process else { return };
        if self.nics.has_gone() || self.stopping.is_some() && !self.hands_over {
            self.nics.leave(now_ns, &mut process.cores);
        } else {
            self.nics.plug(&mut process.cores, random);
        }
    }

    /// Once the volume is described: the disk's queues, spread over the sidecores.
    fn start_disks(&mut self) {
        let Some(process) = &mut self.process else { return };
        if self.stopping.is_some() {
            return;
        }
        if !process.disks.is_empty() || process.volume.described().is_none() {
            return;
        }
        let memory = Arc::new(self.guest.memory().device_memory().expect("a mapping"));
        let (fd, len) = &self.inflight;
        let queues = u16::try_from(self.rings.len()).expect("small");
        let inflight = InflightRegion::map(fd.as_fd(), 0, *len, (self.kind, queues, RING_SIZE));
        let inflight = inflight.expect("our own");
        let disk = DiskCore::new("sim", queues);
        for (core, index) in process.cores.iter().zip(0..) {
            let open = OpenArguments { services: &core.services, depth: 64 };
            let attached = Attached::open(&*process.volume, &self.attachment, index, &open);
            let attached = attached.expect("a channel");
            process.disks.push(DiskQueues::new(disk.clone(), attached, false));
        }
        for (at, ring) in self.rings.iter().enumerate() {
            let mut config = ring.queue_config(memory.clone()).expect("no descriptors are needed");
            config.inflight = inflight.queue(at);
            let queue = Queue::new(config).expect("our own ring is sound");
            let core = at % process.disks.len();
            process.disks[core].add_queue(queue);
            process.owners.push(core);
        }
        process.disk = Some(disk);
    }

    fn digest(&self) -> u64 {
        self.guest.memory().digest()
    }

    /// A client that was fenced has touched nothing since.
    ///
    /// # Errors
    /// When its guest's memory has changed.
    pub(super) fn check_untouched(&self) -> Result<(), String> {
        match self.fenced {
            Some(digest) if digest != self.digest() => {
                Err(format!("{} touched its guest's memory after it was fenced", self.name))
            }
            _ => Ok(()),
        }
    }

    /// Asks for a block on the first ring.
    pub(super) fn read_block(&mut self, block: u64, checker: &mut Checker) -> Option<Began> {
        let ring = &mut self.rings[0];
        let slot = ring.take_slot()?;
        let sector = block * (BLOCK_BYTES as u64 / 512);
        let data = Data::Whole(u32::try_from(BLOCK_BYTES).expect("small"));
        let request = DriverRequest { slot, op: DriverOp::Read, sector, data, token: u64::MAX };
        if let Err(error) = ring.submit(&request) {
            self.error = Some(error.to_string());
        }
        ring.publish();
        self.reading = Some(slot);
        Some(checker.begin_read())
    }

    /// The block asked for, once it is there: `Some(None)` for an I/O error.
    ///
    /// # Errors
    /// When the device broke the ring.
    #[allow(clippy::option_option)]
    pub(super) fn block_read(&mut self) -> Result<Option<Option<Vec<u8>>>, String> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let ring = &mut self.rings[0];
        let Some(done) = ring.complete().map_err(|breach| breach.to_string())? else {
            return Ok(None);
        };
        assert_eq!(Some(done.slot), self.reading.take(), "one request at a time");
        let mut bytes = vec![0; BLOCK_BYTES];
        ring.read(done.slot, 0, &mut bytes);
        ring.release(done.slot);
        Ok(Some((done.status == RequestStatus::Ok).then_some(bytes)))
    }
}

fn new_attachment(resume: bool, own: &SimRecords, random: &mut Random) -> Arc<Attachment> {
    let limited = random.hits(200_000);
    let error_after_ns = limited.then(|| random.between(20_000_000, 2_000_000_000));
    let own = Remembered::load(ATTACHMENT, Arc::new(own.clone()));
    let (claimant, known) = own.begin(resume, None, random.draw());
    let options = AttachOptions { resume, error_after_ns, known, ..AttachOptions::new(claimant) };
    Arc::new(Attachment::new(ATTACHMENT, options).remembered_in(Some(own)))
}
