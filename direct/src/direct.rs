//! The direct client: a peer's volume shown to this machine's own kernel, without a VMM between.
//!
//! A small node: one sidecore with one link and one session, no vhost-user socket, and a front of
//! [`block::ublk`] in place of a disk. It lives as long as its device; if it is killed, the device
//! waits for the next one, which finds it by the [`crate::home`] that the two share.
//!
//! ```text
//!   fresh:   volume described ─ epoch claimed ─ device made ─ served ─ started
//!   resumed: volume described ─ epoch claimed, as a resumption ─ device recovered
//!   detach:  not in use ─ written back ─ stopped ─ attachment closed ─ device removed
//! ```
//! A fresh device is made only when the epoch is held, so a refused claim leaves no device behind.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use block::Attach;
use block::attachment::Phase;
use block::ublk::device::{Opened, char_path, disk_path};
use block::ublk::{Control, ControlError, FrontCore, NewDevice, Shape, UblkDevice, abi};
use rustix::fs::{Mode, OFlags};
use sessions::random;
use volume::uring::{Purpose, Uring, UringCounters};

use crate::client::{DirectClient, FOLLOW, LOOK_AGAIN};
use crate::error::DirectError;
use crate::home::{self, Home, Record};
use crate::plan::AttachPlan;

/// How long a device node may take to appear, or the last server to end.
const DEVICE_TIME_MAX: Duration = Duration::from_secs(10);

/// A running client.
#[derive(Debug)]
pub struct Direct {
    pub(crate) home: Home,
    pub(crate) record: Record,
    control: Control,
    pub(crate) client: DirectClient,
    pub(crate) front: Arc<FrontCore>,
    pub(crate) uring: Arc<UringCounters>,
    resumed: bool,
    /// Kept until the process ends.
    _lock: File,
}

/// A device of an earlier client, with which this client goes on.
#[derive(Clone, Copy, Debug)]
struct Left {
    dev_id: u32,
    mark: u64,
    shape: Shape,
}

impl Direct {
    /// Shows the volume, or goes on with the disk of a client that died. It blocks until the disk
    /// works, without a limit where users of the disk wait for it.
    ///
    /// # Errors
    /// The fault and the way out. No device is left behind, except one that existed before.
    pub fn start(plan: AttachPlan) -> Result<Self, DirectError> {
        plan.check()?;
        let mut control = Control::open()?;
        // It is called before there are other threads, which inherit the setting.
        flush_for_the_kernel();
        let home = Home::new(&plan.directory, &plan.volume)?;
        let Some(lock) = home.lock()? else { return Err(here(&home, &plan)) };
        only_client(&plan)?;
        let left = find_left(&mut control, &home)?;
        let client = DirectClient::new(&plan, left.is_some())?;
        let made = Starting { plan: &plan, client: &client }.show(&mut control, &home, left);
        let (front, record) = made.inspect_err(|_| client.stop())?;
        let uring = client.sidecore().call(|local| {
            let uring = local.services().get::<Uring>().expect("installed with the front");
            uring.borrow().counters()
        });
        let uring = uring.expect("the sidecore runs");
        let resumed = left.is_some();
        Ok(Self { resumed, home, record, control, client, front, uring, _lock: lock })
    }

    /// The disk's path.
    pub fn device(&self) -> String {
        disk_path(self.record.dev_id)
    }

    /// Whether it went on with a device that existed.
    pub fn is_resumed(&self) -> bool {
        self.resumed
    }

    /// Asks the nodes that a placed volume has now, and keeps them for the next client.
    pub(crate) fn follow(&mut self) {
        self.client.follow();
        let nodes = self.client.nodes();
        if nodes != self.record.nodes {
            self.record.nodes = nodes;
            if let Err(error) = self.home.write(&self.record) {
                tracing::warn!(%error, "the next client has not the nodes of now");
            }
        }
    }

    /// Writes cached data back to a disk that is no longer in use. The volume may move meanwhile.
    fn write_back(&mut self) -> Result<(), DirectError> {
        let path = self.device();
        let disk = unused(self.record.dev_id)?;
        let writing = std::thread::spawn(move || rustix::fs::fsync(&disk));
        let mut follow_at = Instant::now() + FOLLOW;
        while !writing.is_finished() {
            if Instant::now() >= follow_at {
                self.follow();
                follow_at = Instant::now() + FOLLOW;
            }
            sleep(LOOK_AGAIN);
        }
        let written = writing.join().expect("a system call does not panic");
        written.map_err(|error| DirectError::Device { path, source: error.into() })
    }

    /// Removes the disk and closes the attachment. With `force` also while it is in use: its users'
    /// requests fail.
    ///
    /// # Errors
    /// The disk is in use, or the driver refuses; it goes on being served then.
    pub fn detach(&mut self, force: bool) -> Result<(), DirectError> {
        let dev_id = self.record.dev_id;
        if force {
            self.client.attachment.fail("it was detached by force");
        } else if matches!(self.client.attachment.view().phase, Phase::Fenced | Phase::Failed) {
            // No further request reaches the volume.
            unused(dev_id)?;
        } else {
            self.write_back()?;
        }
        self.control.stop(dev_id)?;
        if !self.client.close::<UblkDevice>(&self.front) {
            tracing::warn!(
                "the attachment was not closed in time: the volume takes it for broken \
                            off"
            );
        }
        if !self.front.is_stopped() {
            // Removing the device would wait for ever. Its commands end with this process.
            let device = self.device();
            let text =
                format!("{device} is stopped and the kernel does not release it: kill this client");
            return Err(DirectError::Client(text));
        }
        self.client.stop();
        self.control.delete(dev_id)?;
        self.home.forget();
        Ok(())
    }
}

/// The parts that must exist before there is a disk.
struct Starting<'a> {
    plan: &'a AttachPlan,
    client: &'a DirectClient,
}

impl Starting<'_> {
    fn show(
        &self,
        control: &mut Control,
        home: &Home,
        left: Option<Left>,
    ) -> Result<(Arc<FrontCore>, Record), DirectError> {
        self.client.describe(left.is_some())?;
        let shape = left.map_or(self.plan.shape, |left| left.shape);
        let front = self.client.open_front::<UblkDevice>(shape, |local| {
            volume::uring::install_for(local, Purpose::Commands)
                .map(drop)
                .map_err(|error| ControlError::NoUring(error).to_string())
        })?;
        self.client.claim(left.is_some())?;
        let record = match left {
            Some(left) => {
                let record = self.record(left.dev_id, left.mark);
                self.recover(control, &record, shape)?;
                record
            }
            None => self.make(control, home, shape)?,
        };
        home.write(&record)?;
        Ok((front, record))
    }

    fn record(&self, dev_id: u32, mark: u64) -> Record {
        Record {
            volume: self.plan.volume.to_string(),
            name: self.plan.name.clone(),
            attachment: self.plan.attachment.clone(),
            dev_id,
            mark,
            pid: std::process::id(),
            nodes: self.client.nodes(),
        }
    }

    fn make(
        &self,
        control: &mut Control,
        home: &Home,
        shape: Shape,
    ) -> Result<Record, DirectError> {
        let mark = random()?;
        let dev_id = control.add(&NewDevice { shape, mark }, &self.client.volume.info())?;
        let record = self.record(dev_id, mark);
        // The record is written before the start: the next client finds a device whose client dies
        // from here on.
        let made = home.write(&record).and_then(|()| {
            self.serve(dev_id, shape)?;
            Ok(control.start(dev_id)?)
        });
        if let Err(error) = made {
            let _ = control.stop(dev_id);
            self.client.stop();
            let _ = control.delete(dev_id);
            home.forget();
            return Err(error);
        }
        Ok(record)
    }

    fn recover(
        &self,
        control: &mut Control,
        record: &Record,
        shape: Shape,
    ) -> Result<(), DirectError> {
        let dev_id = record.dev_id;
        // The last server may be gone and its device not quite closed.
        let by = Instant::now() + DEVICE_TIME_MAX;
        loop {
            match control.start_recovery(dev_id) {
                Ok(()) => break,
                Err(ControlError::Command { source, .. })
                    if source.raw_os_error() == Some(libc::EBUSY) && Instant::now() < by =>
                {
                    sleep(LOOK_AGAIN);
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.serve(dev_id, shape)?;
        Ok(control.end_recovery(dev_id)?)
    }

    /// Gives the device to the front, which fetches its requests.
    fn serve(&self, dev_id: u32, shape: Shape) -> Result<(), DirectError> {
        let by = Instant::now() + DEVICE_TIME_MAX;
        let opened = loop {
            match Opened::new(dev_id, shape) {
                // Another process makes the node of the device.
                Err(error) if error.kind() == ErrorKind::NotFound && Instant::now() < by => {
                    sleep(LOOK_AGAIN);
                }
                opened => break opened,
            }
        };
        let opened =
            opened.map_err(|source| DirectError::Device { path: char_path(dev_id), source })?;
        self.client.show(move |local| {
            let uring = local.services().get::<Uring>().expect("installed with the front");
            opened.with(&uring)
        });
        Ok(())
    }
}

/// This machine's name, as far as a node can have it.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The error that names the client which has the lock.
fn here(home: &Home, plan: &AttachPlan) -> DirectError {
    let volume = plan.volume.to_string();
    match home.record() {
        Ok(Some(Record { dev_id, pid, attachment, .. })) => {
            DirectError::Here { volume, device: disk_path(dev_id), pid, attachment }
        }
        _ => DirectError::Busy(volume),
    }
}

/// Checks that no client of another volume has our name: its sessions would end with ours.
fn only_client(plan: &AttachPlan) -> Result<(), DirectError> {
    let mine = plan.volume.to_string();
    let records = home::records(&plan.directory)?;
    let mut other = records.readable.into_iter();
    let other = other.find(|it| it.name == plan.name && it.volume != mine);
    other.map_or(Ok(()), |Record { name, volume, .. }| Err(DirectError::Name { name, volume }))
}

/// The device that an earlier client left, if it exists and this client can go on with it. A device
/// that was never started is removed.
fn find_left(control: &mut Control, home: &Home) -> Result<Option<Left>, DirectError> {
    let Some(record) = home.record()? else { return Ok(None) };
    let by = Instant::now() + DEVICE_TIME_MAX;
    loop {
        let info = control.info(record.dev_id)?.filter(|info| info.ublksrv_flags == record.mark);
        let Some(info) = info else { break };
        match abi::DeviceState::of(info.state) {
            abi::DeviceState::Quiesced => {
                let shape = Shape { queues: info.nr_hw_queues, depth: info.queue_depth };
                if !shape.is_possible() {
                    break;
                }
                return Ok(Some(Left { dev_id: record.dev_id, mark: record.mark, shape }));
            }
            abi::DeviceState::Dead => {
                control.delete(record.dev_id)?;
                break;
            }
            // Its client has died, since we have the lock, and the driver has not noticed yet.
            abi::DeviceState::Live | abi::DeviceState::Other(_) if Instant::now() < by => {
                sleep(LOOK_AGAIN)
            }
            state => {
                let device = disk_path(record.dev_id);
                let text = format!("{device} has no client and is not waiting for one ({state:?})");
                return Err(DirectError::Client(text));
            }
        }
    }
    home.forget();
    Ok(None)
}

/// Checks that the disk is not in use before it is removed.
fn unused(dev_id: u32) -> Result<OwnedFd, DirectError> {
    let device = disk_path(dev_id);
    let open = |flags| rustix::fs::open(&device, flags | OFlags::CLOEXEC, Mode::empty());
    let refuse = |error: rustix::io::Errno| match error {
        rustix::io::Errno::BUSY => {
            DirectError::InUse { device: device.clone(), mounts: mounts_of(&device) }
        }
        error => DirectError::Device { path: device.clone(), source: error.into() },
    };
    // An exclusive open fails while the disk is mounted, used for swap, or part of another device.
    open(OFlags::RDONLY | OFlags::EXCL).map_err(refuse)
}

fn mounts_of(device: &str) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let words = mounts.lines().map(|line| line.split(' '));
    let mine = words.filter_map(|mut words| (words.next() == Some(device)).then(|| words.next()));
    mine.flatten().map(str::to_owned).collect()
}

/// Removes a device whose client is gone; with `force` also while it is in use. Its attachment is
/// not closed: its volume sees it as torn off.
///
/// # Errors
/// A client lives, the disk is in use, or the driver refuses.
pub fn remove_left(home: &Home, volume: &str, force: bool) -> Result<(), DirectError> {
    let Some(_lock) = home.lock()? else { return Err(DirectError::Busy(volume.to_owned())) };
    let Some(record) = home.record()? else {
        return Err(DirectError::NotAttached(volume.to_owned()));
    };
    let mut control = Control::open()?;
    let info = control.info(record.dev_id)?.filter(|info| info.ublksrv_flags == record.mark);
    if info.is_some() {
        if !force {
            unused(record.dev_id)?;
        }
        control.stop(record.dev_id)?;
        control.delete(record.dev_id)?;
    }
    home.forget();
    Ok(())
}

/// `linux/prctl.h`; the crate `libc` does not name it.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// This process is part of how the kernel frees memory: its own allocations must not wait for that.
fn flush_for_the_kernel() {
    // SAFETY: a number and four zeroes; nothing of ours is read or written.
    let set = unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
    if set != 0 {
        let error = io::Error::last_os_error();
        tracing::warn!(%error, "not an I/O flusher: a machine short of memory may stand still");
    }
}
