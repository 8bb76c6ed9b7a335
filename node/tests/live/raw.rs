//! A front end that says what a test wants it to say: vhost-user's messages by hand, over a split
//! ring that is written by hand. It shares no code with the node's own driver.

use std::fs::File;
use std::io::{self, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};

const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
const SET_OWNER: u32 = 3;
pub(crate) const SET_MEM_TABLE: u32 = 5;
pub(crate) const SET_LOG_BASE: u32 = 6;
pub(crate) const SET_VRING_NUM: u32 = 8;
const SET_VRING_ADDR: u32 = 9;
const SET_VRING_BASE: u32 = 10;
const SET_VRING_KICK: u32 = 12;
pub(crate) const SET_VRING_CALL: u32 = 13;
const GET_PROTOCOL_FEATURES: u32 = 15;
const SET_PROTOCOL_FEATURES: u32 = 16;
const SET_VRING_ENABLE: u32 = 18;
pub(crate) const SET_INFLIGHT_FD: u32 = 32;
pub(crate) const ADD_MEM_REG: u32 = 37;

/// VIRTIO_F_VERSION_1 and vhost-user's own.
const FEATURES: u64 = 1 << 32 | 1 << 30;
/// LOG_SHMFD, REPLY_ACK, INFLIGHT_SHMFD, CONFIGURE_MEM_SLOTS.
const PROTOCOL: u64 = 1 << 1 | 1 << 3 | 1 << 12 | 1 << 15;

/// Header flags: version 1, and an acknowledgement is wanted.
const VERSION: u32 = 1;
const NEED_REPLY: u32 = 1 << 3;

/// For an answer of a node on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The ring, and where its parts are in memory; also what the guest calls these places.
const RING: u16 = 8;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const HEADER: u64 = 0x3000;
const DATA: u64 = 0x4000;
const STATUS: u64 = 0x5000;
pub(crate) const MEMORY_BYTES: u64 = 1 << 20;

/// How the front end's memory is told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tell {
    Table,
    Region,
}

/// A connection to a disk's socket.
pub(crate) struct Raw {
    stream: UnixStream,
    pub(crate) call: OwnedFd,
    pub(crate) kick: OwnedFd,
    available: u16,
}

/// A memory file of so many bytes.
pub(crate) fn memory(bytes: u64) -> OwnedFd {
    let file = memfd_create("raw", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, bytes).unwrap();
    file
}

/// A region's four words: it has the same addresses in the guest and in the front end.
pub(crate) fn region(at: u64, bytes: u64) -> [u64; 4] {
    [at, bytes, at, 0]
}

/// Whether the node keeps a connection to the socket that says nothing.
pub(crate) fn is_taken(socket: &Path) -> bool {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let answer = stream.read(&mut [0]);
    answer.is_err_and(|error| {
        matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
    })
}

impl Raw {
    /// Connects, and agrees on features.
    pub(crate) fn connect(socket: &Path) -> Self {
        let until = Instant::now() + PATIENCE;
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let raw = Self { stream, call: event(), kick: event(), available: 0 };
        raw.send(SET_OWNER, 0, &[], &[]).unwrap();
        assert_eq!(raw.ask(GET_FEATURES) & FEATURES, FEATURES);
        raw.send(SET_FEATURES, 0, &words(&[FEATURES]), &[]).unwrap();
        assert_eq!(raw.ask(GET_PROTOCOL_FEATURES) & PROTOCOL, PROTOCOL);
        raw.send(SET_PROTOCOL_FEATURES, 0, &words(&[PROTOCOL]), &[]).unwrap();
        raw
    }

    fn send(
        &self,
        request: u32,
        flags: u32,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let head = [request, VERSION | flags, body.len() as u32].map(u32::to_ne_bytes);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        let bytes = [head.as_flattened(), body].concat();
        let sent =
            sendmsg(&self.stream, &[IoSlice::new(&bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
        assert_eq!(sent, bytes.len());
        Ok(())
    }

    fn answer(&self) -> io::Result<u64> {
        let mut answer = [0; 20];
        (&self.stream).read_exact(&mut answer)?;
        Ok(u64::from_ne_bytes(answer[12..].try_into().expect("eight bytes")))
    }

    fn ask(&self, request: u32) -> u64 {
        self.send(request, 0, &[], &[]).unwrap();
        self.answer().unwrap()
    }

    /// Says something and waits for what becomes of it: `false` where the node refuses it, or hangs
    /// up.
    pub(crate) fn tell(&self, request: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> bool {
        self.send(request, NEED_REPLY, body, fds).is_ok() && matches!(self.answer(), Ok(0))
    }

    /// Hands memory over.
    pub(crate) fn tell_memory(&self, how: Tell, region: [u64; 4], file: BorrowedFd<'_>) -> bool {
        match how {
            Tell::Table => {
                let body = [&1_u32.to_ne_bytes(), &[0; 4], &words(&region)[..]].concat();
                self.tell(SET_MEM_TABLE, &body, &[file])
            }
            Tell::Region => self.tell(ADD_MEM_REG, &words(&[&[0], &region[..]].concat()), &[file]),
        }
    }

    /// Starts the first ring, which lies at the beginning of the memory.
    pub(crate) fn start(&self) {
        assert!(self.try_start());
    }

    /// The same; `false` where the node refuses it, or hangs up.
    pub(crate) fn try_start(&self) -> bool {
        let ring = |value: u32| [0_u32.to_ne_bytes(), value.to_ne_bytes()].concat();
        let addresses = words(&[0, 0, USED, AVAILABLE, 0]);
        self.tell(SET_VRING_NUM, &ring(RING.into()), &[])
            && self.tell(SET_VRING_BASE, &ring(0), &[])
            && self.tell(SET_VRING_ADDR, &addresses, &[])
            && self.tell(SET_VRING_CALL, &words(&[0]), &[self.call.as_fd()])
            && self.tell(SET_VRING_KICK, &words(&[0]), &[self.kick.as_fd()])
            && self.tell(SET_VRING_ENABLE, &ring(1), &[])
    }

    /// Reads the disk's first sector, and waits until the used index says that it is done.
    pub(crate) fn read(&mut self, memory: &File) {
        assert!(self.try_read(memory), "the node hung up");
    }

    /// The same; `false` where the node hangs up instead.
    pub(crate) fn try_read(&mut self, memory: &File) -> bool {
        let put = |at: u64, bytes: &[u8]| memory.write_all_at(bytes, at).unwrap();
        let descriptor = |at: u64, addr: u64, len: u32, flags: u16, next: u16| {
            put(at, &addr.to_le_bytes());
            put(at + 8, &len.to_le_bytes());
            put(at + 12, &flags.to_le_bytes());
            put(at + 14, &next.to_le_bytes());
        };
        put(HEADER, &[0; 16]);
        put(STATUS, &[0xff]);
        descriptor(0, HEADER, 16, 1, 1);
        descriptor(16, DATA, 512, 1 | 2, 2);
        descriptor(32, STATUS, 1, 2, 0);
        put(AVAILABLE + 4 + 2 * u64::from(self.available % RING), &0_u16.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        put(AVAILABLE + 2, &self.available.to_le_bytes());
        // A kick that does not fit is one that waits to be heard.
        let _ = rustix::io::write(&self.kick, &1_u64.to_ne_bytes());
        let until = Instant::now() + PATIENCE;
        loop {
            let mut used = [0; 2];
            memory.read_exact_at(&mut used, USED + 2).unwrap();
            if u16::from_le_bytes(used) == self.available {
                break;
            }
            if self.is_hung_up() {
                return false;
            }
            assert!(Instant::now() < until, "the request is never done");
            std::thread::yield_now();
        }
        let mut status = [0xff];
        memory.read_exact_at(&mut status, STATUS).unwrap();
        assert_eq!(status, [0], "the read went well");
        true
    }

    fn is_hung_up(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match recv(&self.stream, &mut [0; 1], flags) {
            Err(Errno::AGAIN) => false,
            Ok((bytes, _)) => bytes == 0,
            Err(_) => true,
        }
    }
}

pub(crate) fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
