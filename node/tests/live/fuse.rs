//! A file of a FUSE file system whose server is the test: a file as a tenant with the right to
//! mount has it. The protocol is the kernel's (`include/uapi/linux/fuse.h`), as far as one file
//! needs it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;

const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const STATFS: u32 = 17;
const FSYNC: u32 = 20;
const INIT: u32 = 26;
/// Requests that get no answer.
const SILENT: [u32; 3] = [2, 36, 42];

const ENOSYS: i32 = 38;

/// The most bytes of a write: those of 32 pages, which the kernel sends by itself.
const WRITE_BYTES_MAX: usize = 128 << 10;

/// Writes may be longer than a page.
const BIG_WRITES: u32 = 1 << 5;

/// The content of the file, and what its server does with requests. `None` for a request that
/// gets no answer until the file system is unmounted; an error is an errno.
pub(crate) trait FuseContent: Send + 'static {
    /// The kernel asks about the file or its file system.
    fn asked(&mut self);

    /// The kernel reads.
    fn read(&mut self, offset: u64, length: usize) -> Option<Result<Vec<u8>, i32>>;

    /// The kernel writes.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Option<Result<(), i32>>;

    /// The kernel wants all that was written to be durable.
    fn sync(&mut self) -> Option<Result<(), i32>>;
}

/// One mounted file. Dropping it unmounts the file, and everything that waits for it fails.
pub(crate) struct FuseFile {
    path: PathBuf,
    server: Option<JoinHandle<()>>,
}

impl FuseFile {
    /// Mounts a file of so many bytes, whose blocks have 1 GiB by its own statement. `None`, with a
    /// line that says so, where it cannot mount.
    pub(crate) fn mount(
        test: &str,
        path: &Path,
        bytes: u64,
        content: impl FuseContent,
    ) -> Option<Self> {
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
        let server = std::thread::spawn(move || serve(&device, bytes, content));
        Some(Self { path: path.to_owned(), server: Some(server) })
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

fn serve(device: &File, bytes: u64, mut content: impl FuseContent) {
    // The longest write, and what stands before it.
    let mut request = vec![0; WRITE_BYTES_MAX + (8 << 10)];
    loop {
        let length = match (&*device).read(&mut request) {
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(_) => return,
        };
        assert!(length >= 40, "a header");
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let opcode = word(4);
        let unique = u64::from_ne_bytes(request[8..16].try_into().unwrap());
        if matches!(opcode, GETATTR | STATFS) {
            content.asked();
        }
        // Of a read and a write: a handle, the offset, the length; a write's data come behind.
        let range = || {
            let offset = u64::from_ne_bytes(request[48..56].try_into().unwrap());
            (offset, word(56) as usize)
        };
        let answer = match opcode {
            INIT => Some(Ok(init())),
            GETATTR => Some(Ok(attributes(bytes))),
            OPEN => Some(Ok(vec![0; 16])),
            READ => content.read(range().0, range().1),
            WRITE => {
                let (offset, length) = range();
                let written = content.write(offset, &request[80..80 + length]);
                written.map(|done| done.map(|()| [length as u32, 0].map(u32::to_ne_bytes).concat()))
            }
            FSYNC => content.sync().map(|done| done.map(|()| Vec::new())),
            silent if SILENT.contains(&silent) => continue,
            _ => Some(Err(ENOSYS)),
        };
        let Some(answer) = answer else { continue };
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

/// Version 7.31, long writes, no other options.
fn init() -> Vec<u8> {
    let words = [7, 31, 4096, BIG_WRITES, 0, WRITE_BYTES_MAX as u32];
    let mut body: Vec<u8> = words.map(u32::to_ne_bytes).concat();
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
