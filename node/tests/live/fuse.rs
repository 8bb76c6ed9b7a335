//! A file of a FUSE file system whose server is the test: a file as a tenant with the right to
//! mount has it. The protocol is the kernel's (`include/uapi/linux/fuse.h`), as far as one file
//! needs it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;

const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const STATFS: u32 = 17;
const INIT: u32 = 26;
/// Requests that get no answer.
const SILENT: [u32; 3] = [2, 36, 42];

const EIO: i32 = 5;
const ENOSYS: i32 = 38;

/// The end of a page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Faults {
    /// It waits until the file system is unmounted.
    Stall,
    /// It fails.
    Fail,
}

/// One mounted file. Dropping it unmounts the file, and everything that waits for it fails.
pub(crate) struct FuseFile {
    path: PathBuf,
    /// How often the kernel asked the server about its file or file system.
    asked: Arc<AtomicU64>,
    server: Option<JoinHandle<()>>,
}

impl FuseFile {
    /// Mounts a file of so many bytes, whose blocks have 1 GiB by its own statement. `None`, with a
    /// line that says so, where it cannot mount.
    pub(crate) fn mount(test: &str, path: &Path, bytes: u64, faults: Faults) -> Option<Self> {
        let skip = |why: String| {
            println!("SKIP {test}: {why}");
            None
        };
        let device = match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
            Ok(device) => device,
            Err(error) => return skip(format!("/dev/fuse: {error}")),
        };
        File::create(path).unwrap();
        // Descriptors are closed when a program starts, except this one.
        rustix::io::fcntl_setfd(&device, rustix::io::FdFlags::empty()).unwrap();
        let options = format!("fd={},rootmode=100644,user_id=0,group_id=0", device.as_raw_fd());
        let mount = ["-i", "-t", "fuse", "-o", &options, "vrio-test"];
        let mounted = Command::new("mount").args(mount).arg(path).output();
        rustix::io::fcntl_setfd(&device, rustix::io::FdFlags::CLOEXEC).unwrap();
        match mounted {
            Ok(output) if output.status.success() => {}
            other => return skip(format!("mount: {other:?}")),
        }
        let asked = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&asked);
        let server = std::thread::spawn(move || serve(&device, bytes, faults, &count));
        Some(Self { path: path.to_owned(), asked, server: Some(server) })
    }

    /// Opens the file.
    pub(crate) fn open(&self) -> File {
        OpenOptions::new().read(true).write(true).open(&self.path).unwrap()
    }

    /// How often the kernel asked the server about its file or file system.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(SeqCst)
    }
}

impl Drop for FuseFile {
    fn drop(&mut self) {
        // Forced: everything that waits for the server fails, and the server reads that it is
        // unmounted.
        for how in ["-f", "-l"] {
            let _ = Command::new("umount").args([how, "-i"]).arg(&self.path).output();
        }
        if let Some(server) = self.server.take()
            && !std::thread::panicking()
        {
            server.join().unwrap();
        }
    }
}

fn serve(device: &File, bytes: u64, faults: Faults, asked: &AtomicU64) {
    let mut request = vec![0; 128 << 10];
    loop {
        let length = match (&*device).read(&mut request) {
            Ok(length) => length,
            Err(error) if error.raw_os_error() == Some(2) => continue,
            Err(_) => return,
        };
        assert!(length >= 40, "a header");
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let opcode = word(4);
        let unique = u64::from_ne_bytes(request[8..16].try_into().unwrap());
        if matches!(opcode, GETATTR | STATFS) {
            asked.fetch_add(1, SeqCst);
        }
        let answer = match opcode {
            INIT => Ok(init()),
            GETATTR => Ok(attributes(bytes)),
            OPEN => Ok(vec![0; 16]),
            READ if faults == Faults::Stall => continue,
            READ => Err(EIO),
            silent if SILENT.contains(&silent) => continue,
            _ => Err(ENOSYS),
        };
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(errno) => (-errno, Vec::new()),
        };
        let length = u32::try_from(16 + body.len()).unwrap();
        let mut reply = length.to_ne_bytes().to_vec();
        reply.extend(error.to_ne_bytes());
        reply.extend(unique.to_ne_bytes());
        reply.extend(body);
        // A request that was given up meanwhile needs no answer.
        let _ = (&*device).write(&reply);
    }
}

/// Version 7.31, no options, writes of 4 KiB.
fn init() -> Vec<u8> {
    let mut body: Vec<u8> = [7_u32, 31, 4096, 0, 0, 4096].map(u32::to_ne_bytes).concat();
    body.resize(64, 0);
    body
}

/// A regular file, for whose attributes the server is asked each time.
fn attributes(bytes: u64) -> Vec<u8> {
    // Valid for no time; inode 1, size, blocks, three times of day.
    let longs = [0, 0, 1, bytes, bytes / 512, 0, 0, 0].map(u64::to_ne_bytes);
    // Three fractions; mode, links, user, group, device, bytes of a block, flags.
    let words = [0, 0, 0, 0o100_644, 1, 0, 0, 0, 1 << 30, 0].map(u32::to_ne_bytes);
    [longs.as_flattened(), words.as_flattened()].concat()
}
