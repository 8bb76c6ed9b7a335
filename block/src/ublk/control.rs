//! `/dev/ublk-control`: devices come, are told how they look, start, stop and go.
//!
//! A command waits in the kernel until it is done, so none is given on a sidecore.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use zerocopy::IntoBytes;

use super::abi::{self, ControlCommand, DeviceInfo, Parameters, attribute, command};
use super::device::Shape;
use volume::{Durability, IO_BYTES_MAX, Op, SECTOR_BYTES, VolumeInfo};

/// The driver's door.
pub const CONTROL_PATH: &str = "/dev/ublk-control";

/// All ones: the whole device, or the next free number.
const ANY: u16 = u16::MAX;

/// Why the driver did not do what was wanted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// There is no driver.
    #[error(
        "this kernel ({release}) has no ublk: {CONTROL_PATH} is missing; {}", way_out(.release)
    )]
    NoDriver {
        /// The kernel's.
        release: String,
    },
    /// There is one, for others.
    #[error("{CONTROL_PATH}: {0}; showing a disk needs root (CAP_SYS_ADMIN): run this as root")]
    NotAllowed(io::Error),
    /// There is one, of a kernel that is too old.
    #[error(
        "this kernel's ublk ({release}) lacks {missing}; Linux 6.5 or later has it (Debian 12: \
         linux-image-amd64 from bookworm-backports)"
    )]
    TooOld {
        /// The kernel's.
        release: String,
        /// The missing ability.
        missing: &'static str,
    },
    /// No io_uring to give commands with.
    #[error(
        "no io_uring: {0}; ublk's commands go through it: is it switched off \
         (sysctl kernel.io_uring_disabled, or the container's seccomp filter)?"
    )]
    NoUring(io::Error),
    /// A command failed.
    #[error("ublk: cannot {what}: {source}")]
    Command {
        /// The step that failed.
        what: &'static str,
        /// The driver's answer.
        r#source: io::Error,
    },
}

/// The way out for a kernel without the driver.
fn way_out(release: &str) -> String {
    let list = std::fs::read_to_string(format!("/lib/modules/{release}/modules.dep"));
    if list.is_ok_and(|list| list.contains("ublk_drv.ko")) {
        return "its module is installed and not loaded: run `modprobe ublk_drv`, and put a line \
                \"ublk_drv\" into /etc/modules-load.d/ublk.conf for the next boot"
            .to_owned();
    }
    "it needs Linux 6.5 or later with CONFIG_BLK_DEV_UBLK (module ublk_drv), which is not \
     installed; Debian 12: `apt install -t bookworm-backports linux-image-amd64`, boot it, run \
     `modprobe ublk_drv`"
        .to_owned()
}

/// A device to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewDevice {
    /// Queues and depth.
    pub shape: Shape,
    /// Tells it from devices of others; see [`DeviceInfo::ublksrv_flags`].
    pub mark: u64,
}

/// The driver's door, opened.
pub struct Control {
    file: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Control {
    /// Opens the door and looks whether the driver can what we need.
    ///
    /// # Errors
    /// No driver, no right, or a driver that is too old; each says what to do.
    pub fn open() -> Result<Self, ControlError> {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let opened = File::options().read(true).write(true).open(CONTROL_PATH);
        let file = opened.map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => ControlError::NotAllowed(error),
            _ => ControlError::NoDriver { release: release.clone() },
        })?;
        let ring = IoUring::builder().build(2).map_err(ControlError::NoUring)?;
        let mut control = Self { file, ring };
        let mut features = [0; 8];
        let told =
            control.command("ask for ublk's features", command::GET_FEATURES, 0, 0, &mut features);
        let features = match told {
            Ok(()) => u64::from_ne_bytes(features),
            Err(ControlError::Command { source, .. })
                if source.raw_os_error() == Some(libc::EPERM) =>
            {
                return Err(ControlError::NotAllowed(source));
            }
            Err(_) => 0,
        };
        match features & abi::FEATURES {
            abi::FEATURES => Ok(control),
            _ => Err(ControlError::TooOld { release, missing: "recovery of a device" }),
        }
    }

    /// Makes a device and gives its number. It is not shown before [`Control::start`].
    ///
    /// # Errors
    /// What the driver says.
    pub fn add(&mut self, wanted: &NewDevice, info: &VolumeInfo) -> Result<u32, ControlError> {
        let mut device = DeviceInfo {
            nr_hw_queues: wanted.shape.queues,
            queue_depth: wanted.shape.depth,
            max_io_buf_bytes: IO_BYTES_MAX,
            dev_id: u32::MAX,
            ublksrv_pid: own_pid(),
            flags: abi::FEATURES,
            ublksrv_flags: wanted.mark,
            ..DeviceInfo::default()
        };
        self.command("make a device", command::ADD, u32::MAX, 0, device.as_mut_bytes())?;
        let mut parameters = parameters(info);
        let set = self.command(
            "set a device's parameters",
            command::SET_PARAMETERS,
            device.dev_id,
            0,
            parameters.as_mut_bytes(),
        );
        if let Err(error) = set {
            let _ = self.delete(device.dev_id);
            return Err(error);
        }
        Ok(device.dev_id)
    }

    /// The driver's description of a device; `None` when there is none of this number.
    ///
    /// # Errors
    /// The driver's answer.
    pub fn info(&mut self, dev_id: u32) -> Result<Option<DeviceInfo>, ControlError> {
        let mut info = DeviceInfo::default();
        let told = self.command(
            "ask for a device's state",
            command::GET_INFO,
            dev_id,
            0,
            info.as_mut_bytes(),
        );
        match told {
            Ok(()) => Ok(Some(info)),
            Err(ControlError::Command { source, .. }) if is_missing(&source) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Shows the disk. The device's server must be asking for requests already, on its own thread:
    /// the kernel reads the partition table before this returns.
    ///
    /// # Errors
    /// What the driver says.
    pub fn start(&mut self, dev_id: u32) -> Result<(), ControlError> {
        self.command("start a device", command::START, dev_id, own_pid() as u64, &mut [])
    }

    /// Begins to serve a device whose server died.
    ///
    /// # Errors
    /// What the driver says; EBUSY while the last server is not quite gone.
    pub fn start_recovery(&mut self, dev_id: u32) -> Result<(), ControlError> {
        self.command("recover a device", command::START_RECOVERY, dev_id, 0, &mut [])
    }

    /// Goes on with it, as [`Control::start`].
    ///
    /// # Errors
    /// What the driver says.
    pub fn end_recovery(&mut self, dev_id: u32) -> Result<(), ControlError> {
        let what = "resume a device";
        self.command(what, command::END_RECOVERY, dev_id, own_pid() as u64, &mut [])
    }

    /// Takes the disk away, once its requests have been answered.
    ///
    /// # Errors
    /// What the driver says.
    pub fn stop(&mut self, dev_id: u32) -> Result<(), ControlError> {
        self.command("stop a device", command::STOP, dev_id, 0, &mut [])
    }

    /// Removes a device that was stopped. Its server must have closed it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn delete(&mut self, dev_id: u32) -> Result<(), ControlError> {
        self.command("remove a device", command::DELETE, dev_id, 0, &mut [])
    }

    fn command(
        &mut self,
        what: &'static str,
        number: u32,
        dev_id: u32,
        data: u64,
        buffer: &mut [u8],
    ) -> Result<(), ControlError> {
        let failed = |source| ControlError::Command { what, source };
        let len = u16::try_from(buffer.len()).expect("the ABI's structures are small");
        let addr = if buffer.is_empty() { 0 } else { buffer.as_mut_ptr() as u64 };
        let head = ControlCommand {
            dev_id,
            queue_id: ANY,
            len,
            addr,
            data,
            dev_path_len: 0,
            pad: 0,
            reserved: 0,
        };
        let mut words = [0; 80];
        words[..size_of::<ControlCommand>()].copy_from_slice(head.as_bytes());
        let fd = types::Fd(self.file.as_raw_fd());
        let entry = opcode::UringCmd80::new(fd, number).cmd(words).build();
        // SAFETY: `file` and `buffer` outlive the command, since its completion is waited for here,
        // through all interruptions of the wait; the kernel writes at most `len` bytes to the
        // buffer.
        unsafe { self.ring.submission().push(&entry) }.expect("one command at a time");
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                // The command may be with the kernel: its buffer cannot be given up.
                Err(error) => panic!("io_uring_enter for {what}: {error}"),
            }
            let completion = self.ring.completion().next();
            if let Some(completion) = completion {
                let result = completion.result();
                return if result < 0 {
                    Err(failed(io::Error::from_raw_os_error(-result)))
                } else {
                    Ok(())
                };
            }
        }
    }
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOENT | libc::EINVAL))
}

/// How a disk on this volume looks.
pub(super) fn parameters(info: &VolumeInfo) -> Parameters {
    let mut attrs = 0;
    if info.read_only {
        attrs |= attribute::READ_ONLY;
    }
    if info.durability == Durability::Flush {
        attrs |= attribute::VOLATILE_CACHE | attribute::FUA;
    }
    let block_shift = info.block_bytes.ilog2() as u8;
    let physical_bytes = info.topology.physical_bytes.max(info.block_bytes);
    let physical_shift = physical_bytes.ilog2() as u8;
    let optimal_bytes = info.topology.optimal_bytes.max(physical_bytes);
    let mut types = abi::PARAMETERS_BASIC;
    let sectors_max = |op: Op| match info.zeroing.can(op) {
        true => op.bytes_max() >> abi::SECTOR_SHIFT,
        false => 0,
    };
    if info.zeroing.discard || info.zeroing.write_zeroes {
        types |= abi::PARAMETERS_DISCARD;
    }
    Parameters {
        len: size_of::<Parameters>() as u32,
        types,
        attrs,
        logical_bs_shift: block_shift,
        physical_bs_shift: physical_shift,
        io_opt_shift: optimal_bytes.ilog2() as u8,
        io_min_shift: physical_shift,
        max_sectors: IO_BYTES_MAX >> abi::SECTOR_SHIFT,
        chunk_sectors: 0,
        dev_sectors: info.size_bytes / SECTOR_BYTES,
        virt_boundary_mask: 0,
        discard_alignment: 0,
        discard_granularity: info.zeroing.unit_bytes.max(info.block_bytes),
        max_discard_sectors: sectors_max(Op::Discard),
        max_write_zeroes_sectors: sectors_max(Op::WriteZeroes),
        max_discard_segments: 1,
        reserved: 0,
        unused: 0,
    }
}
