//! vhost-user messages from a front end that sends anything in any order, with any descriptors. A
//! conversation ends by itself or by an error, and leaves nothing mapped or open.

use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use arbitrary::{Arbitrary, Unstructured};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use virtio::device::DeviceError;
use virtio::{Chain, Device, Logging, Mapping, Memory, Queue, QueueConfig, serve_stream};

const MESSAGES_MAX: usize = 64;
const QUEUES: usize = 3;
const FILE_BYTES: u64 = 128 << 10;
/// The address at which the front end claims to have its memory.
const USER: u64 = 0x7000_0000_0000;

const NEED_REPLY: u32 = 8;
const VERSION: u32 = 1;

#[derive(Arbitrary, Debug)]
enum VhostMessage {
    Features(u64),
    /// Features that a correct front end accepts.
    FeaturesOffered {
        event_idx: bool,
        indirect: bool,
        protocol: bool,
        log: bool,
    },
    ProtocolFeatures(u64),
    Ask(u8),
    Table(Vec<VhostSlot>),
    AddSlot(VhostSlot),
    RemoveSlot(VhostSlot),
    Num {
        queue: u8,
        size: u8,
        odd: Option<u32>,
    },
    Base {
        queue: u8,
        base: u16,
    },
    Addr {
        queue: u8,
        at: [u16; 3],
        odd: Option<u64>,
        /// The address at which writes into the ring are logged, if they are.
        log: Option<u64>,
    },
    GetBase {
        queue: u8,
    },
    Descriptor {
        which: u8,
        queue: u8,
        none: bool,
        fds: Fds,
    },
    Enable {
        queue: u8,
        on: bool,
    },
    GetConfig {
        offset: u16,
        size: u16,
    },
    SetConfig {
        offset: u16,
        bytes: [u8; 8],
    },
    GetInflight {
        queues: u16,
        size: u16,
    },
    SetInflight {
        len: Length,
        offset: u8,
        queues: u8,
        size: u8,
        fds: Fds,
    },
    Log {
        len: Length,
        offset: u16,
        fds: Fds,
    },
    LogSignal {
        fds: Fds,
    },
    Raw {
        request: u8,
        flags: u8,
        says: Option<u16>,
        body: Vec<u8>,
        fds: Fds,
    },
    /// All messages of a correct start.
    Start {
        queue: u8,
    },
    /// The driver makes a chain available.
    Offer {
        at: u16,
        word: u64,
    },
}

/// A region of memory.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct VhostSlot {
    /// The size in units of 4 KiB.
    guest: u8,
    offset: u8,
    pages: u8,
    odd: Option<(u8, u64)>,
}

#[derive(Arbitrary, Debug)]
enum Length {
    Pages(u8),
    Any(u64),
}

/// The descriptors that a message carries.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Fds {
    Right,
    None,
    Two,
    Pipe,
    Sealed,
    Null,
}

impl VhostSlot {
    fn fields(&self) -> [u64; 4] {
        let (guest, offset) = (u64::from(self.guest) << 12, u64::from(self.offset & 31) << 12);
        let mut fields = [guest, u64::from(self.pages & 31) << 12, USER + guest, offset];
        if let Some((which, value)) = self.odd {
            fields[usize::from(which & 3)] = value;
        }
        fields
    }
}

/// A device that uses its queue at every call.
#[derive(Debug)]
struct Echo {
    queues: Vec<Option<(Queue, Chain)>>,
    shared: Arc<Mutex<VhostSeen>>,
}

#[derive(Debug, Default)]
struct VhostSeen {
    starts: usize,
    stops: usize,
    disconnects: usize,
}

impl Echo {
    fn seen(&self, note: impl FnOnce(&mut VhostSeen)) {
        note(&mut self.shared.lock());
    }

    fn work(&mut self) {
        for (queue, chain) in self.queues.iter_mut().flatten() {
            for _ in 0..64 {
                match queue.take(chain) {
                    Ok(Some(head)) => {
                        queue.wrote(&chain.writable);
                        queue.put(head, 1);
                    }
                    Ok(None) | Err(_) => break,
                }
            }
            queue.publish();
            queue.arm();
            queue.disarm();
        }
    }
}

impl Device for Echo {
    fn features(&self) -> u64 {
        1 << 9
    }

    fn config(&self) -> Vec<u8> {
        vec![7; 60]
    }

    fn queues_max(&self) -> usize {
        QUEUES
    }

    fn set_features(&mut self, _acked: u64) {
        assert!(self.queues.iter().all(Option::is_none), "features of a queue that runs");
    }

    fn start(&mut self, queue: QueueConfig) -> Result<(), DeviceError> {
        let index = queue.index;
        assert!(self.queues[index].is_none(), "queue {index} runs already");
        self.queues[index] = Some((Queue::new(queue)?, Chain::new()));
        self.seen(|seen| seen.starts += 1);
        self.work();
        Ok(())
    }

    fn stop(&mut self, index: usize) -> u32 {
        self.work();
        self.seen(|seen| seen.stops += 1);
        let (queue, _) = self.queues[index].take().expect("only a queue that runs stops");
        let base = queue.base();
        queue.fence();
        base
    }

    fn set_memory(&mut self, memory: Arc<Memory>) {
        for (queue, _) in self.queues.iter_mut().flatten() {
            // The queue fails by itself when its ring is gone.
            let _ = queue.set_memory(memory.clone());
        }
        self.work();
    }

    fn set_logging(&mut self, index: usize, logging: Logging) {
        let (queue, _) = self.queues[index].as_mut().expect("only a queue that runs");
        queue.set_logging(logging);
        self.work();
    }

    fn set_call(&mut self, index: usize, call: Option<OwnedFd>) {
        let (queue, _) = self.queues[index].as_mut().expect("only a queue that runs");
        queue.set_call(call);
    }

    fn set_kick(&mut self, index: usize, kick: Option<OwnedFd>) {
        let (queue, _) = self.queues[index].as_mut().expect("only a queue that runs");
        queue.set_kick(kick);
        self.work();
    }

    fn disconnected(&mut self) {
        self.queues.iter_mut().for_each(|queue| *queue = None);
        self.seen(|seen| seen.disconnects += 1);
    }
}

/// The front end: its socket, and the descriptors that it sends.
struct VhostFrontEnd {
    stream: UnixStream,
    memory: OwnedFd,
    sealed: OwnedFd,
    event: OwnedFd,
    pipe: OwnedFd,
    null: OwnedFd,
    is_over: bool,
}

/// Sends the messages that `input` describes to a device.
///
/// # Panics
/// When an impossible message reaches the device, or memory or a descriptor stays in use.
pub fn run(input: &[u8]) {
    let mut input = Unstructured::new(input);
    let mut messages = Vec::new();
    while messages.len() < MESSAGES_MAX && !input.is_empty() {
        let Ok(message) = VhostMessage::arbitrary(&mut input) else { break };
        messages.push(message);
    }
    let mapped = Mapping::live();
    let shared = Arc::<Mutex<VhostSeen>>::default();
    let (ours, theirs) = UnixStream::pair().expect("two sockets");
    std::thread::scope(|scope| {
        let answers = ours.try_clone().expect("a descriptor");
        // This read takes no descriptors, so the kernel closes those of an answer.
        let hears =
            scope.spawn(move || std::io::copy(&mut (&answers).take(1 << 20), &mut std::io::sink()));
        let speaks = scope.spawn(|| {
            let mut front_end = VhostFrontEnd::new(ours);
            messages.iter().for_each(|message| front_end.say(message));
            let _ = front_end.stream.shutdown(Shutdown::Write);
        });
        let queues = (0..QUEUES).map(|_| None).collect();
        let device = Echo { queues, shared: Arc::clone(&shared) };
        if let Err(error) = serve_stream(theirs, Box::new(device)) {
            assert!(!error.to_string().is_empty());
        }
        // The threads are joined by hand: the scope's end does not wait for their thread-locals.
        speaks.join().expect("the front end only speaks");
        let _ = hears.join().expect("the front end only listens");
    });
    let seen = shared.lock();
    assert_eq!(seen.disconnects, 1);
    assert!(seen.stops <= seen.starts);
    assert_eq!(Mapping::live(), mapped, "memory stays mapped");
}

impl VhostFrontEnd {
    fn new(stream: UnixStream) -> Self {
        let file = |flags| {
            let file = memfd_create("fuzz", MemfdFlags::CLOEXEC | flags).expect("a memory file");
            ftruncate(&file, FILE_BYTES).expect("a size");
            file
        };
        let sealed = file(MemfdFlags::ALLOW_SEALING);
        fcntl_add_seals(&sealed, SealFlags::SHRINK | SealFlags::GROW).expect("seals");
        Self {
            stream,
            memory: file(MemfdFlags::empty()),
            sealed,
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd"),
            pipe: rustix::pipe::pipe().expect("a pipe").0,
            null: std::fs::File::open("/dev/null").expect("a device").into(),
            is_over: false,
        }
    }

    fn say(&mut self, message: &VhostMessage) {
        match message {
            VhostMessage::Features(features) => self.word(2, *features),
            VhostMessage::FeaturesOffered { event_idx, indirect, protocol, log } => {
                let bits = [(event_idx, 29), (indirect, 28), (protocol, 30), (log, 26)];
                let bits = bits.map(|(on, bit)| u64::from(*on) << bit);
                self.word(2, 1 << 32 | bits.iter().sum::<u64>());
            }
            VhostMessage::ProtocolFeatures(features) => self.word(16, *features),
            VhostMessage::Ask(which) => {
                let request = [1, 3, 4, 15, 17, 31, 36, 34][usize::from(which % 8)];
                self.send(request, &[], &[]);
            }
            VhostMessage::Table(slots) => self.table(&slots[..slots.len().min(8)]),
            VhostMessage::AddSlot(slot) => self.slot(37, slot, true),
            VhostMessage::RemoveSlot(slot) => self.slot(38, slot, false),
            VhostMessage::Num { queue, size, odd } => {
                self.state(8, *queue, odd.unwrap_or(1 << (size % 11)));
            }
            VhostMessage::Base { queue, base } => self.state(10, *queue, (*base).into()),
            VhostMessage::Addr { queue, at, odd, log } => self.addr(*queue, *at, *odd, *log),
            VhostMessage::GetBase { queue } => self.state(11, *queue, 0),
            VhostMessage::Descriptor { which, queue, none, fds } => {
                let request = 12 + u32::from(which % 3);
                let word = u64::from(queue & 3) | if *none { 1 << 8 } else { 0 };
                let event = self.event.try_clone().expect("a descriptor");
                self.with_fds(request, &word.to_ne_bytes(), *fds, &event);
            }
            VhostMessage::Enable { queue, on } => self.state(18, *queue, (*on).into()),
            VhostMessage::GetConfig { offset, size } => {
                self.config(24, u32::from(*offset), &vec![0; usize::from(*size % 300)]);
            }
            VhostMessage::SetConfig { offset, bytes } => self.config(25, u32::from(*offset), bytes),
            VhostMessage::GetInflight { queues, size } => {
                self.inflight(31, 0, 0, *queues, *size, None)
            }
            VhostMessage::SetInflight { len, offset, queues, size, fds } => {
                let len = match len {
                    Length::Pages(pages) => u64::from(pages & 31) << 12,
                    Length::Any(len) => *len,
                };
                let offset = u64::from(*offset) << 6;
                let (queues, size) = (u16::from(queues & 3), 1 << (size % 8));
                self.inflight(32, len, offset, queues, size, Some(*fds));
            }
            VhostMessage::Log { len, offset, fds } => self.log(len, u64::from(*offset), *fds),
            VhostMessage::LogSignal { fds } => {
                let event = self.event.try_clone().expect("a descriptor");
                self.with_fds(7, &[], *fds, &event);
            }
            VhostMessage::Raw { request, flags, says, body, fds } => {
                let says = says.map_or(body.len() as u32, u32::from);
                let header = [u32::from(request % 48), u32::from(*flags), says];
                let memory = self.memory.try_clone().expect("a descriptor");
                let bytes = [&header.map(u32::to_ne_bytes).concat()[..], body].concat();
                let fds = self.fds(*fds, &memory);
                self.write(&bytes, &fds.iter().map(|fd| fd.as_fd()).collect::<Vec<_>>());
            }
            VhostMessage::Start { queue } => self.start(*queue),
            VhostMessage::Offer { at, word } => {
                let at = u64::from(*at) % (FILE_BYTES - 8);
                rustix::io::pwrite(&self.memory, &word.to_ne_bytes(), at).expect("memory");
            }
        }
    }

    /// Sends all messages that a ring needs.
    fn start(&mut self, queue: u8) {
        let (event_idx, indirect, protocol, log) = (true, true, true, false);
        self.say(&VhostMessage::FeaturesOffered { event_idx, indirect, protocol, log });
        self.table(&[VhostSlot { guest: 0, offset: 0, pages: 31, odd: None }]);
        self.state(8, queue, 8);
        self.state(10, queue, 0);
        self.addr(queue, [0, 0x1000, 0x2000], None, None);
        for which in 0..3 {
            let fds = Fds::Right;
            self.say(&VhostMessage::Descriptor { which, queue, none: false, fds });
        }
        self.state(18, queue, 1);
    }

    fn word(&mut self, request: u32, word: u64) {
        self.send(request, &word.to_ne_bytes(), &[]);
    }

    fn state(&mut self, request: u32, queue: u8, number: u32) {
        // One in four rings does not exist.
        let body = [u32::from(queue & 3), number].map(u32::to_ne_bytes).concat();
        self.send(request, &body, &[]);
    }

    fn addr(&mut self, queue: u8, at: [u16; 3], odd: Option<u64>, log: Option<u64>) {
        let [desc, avail, used] = at.map(|at| USER + u64::from(at));
        let desc = odd.unwrap_or(desc);
        let logged = u32::from(log.is_some());
        let mut body = [u32::from(queue & 3), logged].map(u32::to_ne_bytes).concat();
        let addresses = [desc, used, avail, log.unwrap_or(0)];
        body.extend_from_slice(&addresses.map(u64::to_ne_bytes).concat());
        self.send(9, &body, &[]);
    }

    fn table(&mut self, slots: &[VhostSlot]) {
        let mut body = [slots.len() as u32, 0].map(u32::to_ne_bytes).concat();
        for slot in slots {
            body.extend_from_slice(&slot.fields().map(u64::to_ne_bytes).concat());
        }
        let memory = self.memory.try_clone().expect("a descriptor");
        self.send(5, &body, &vec![memory.as_fd(); slots.len()]);
    }

    fn slot(&mut self, request: u32, slot: &VhostSlot, with_file: bool) {
        let mut body = 0u64.to_ne_bytes().to_vec();
        body.extend_from_slice(&slot.fields().map(u64::to_ne_bytes).concat());
        let memory = self.memory.try_clone().expect("a descriptor");
        let fds = [memory.as_fd()];
        self.send(request, &body, if with_file { &fds } else { &[] });
    }

    fn config(&mut self, request: u32, offset: u32, bytes: &[u8]) {
        let mut body = [offset, bytes.len() as u32, 0].map(u32::to_ne_bytes).concat();
        body.extend_from_slice(bytes);
        self.send(request, &body, &[]);
    }

    fn inflight(
        &mut self,
        request: u32,
        len: u64,
        offset: u64,
        queues: u16,
        size: u16,
        fds: Option<Fds>,
    ) {
        let mut body = [len, offset].map(u64::to_ne_bytes).concat();
        body.extend_from_slice(&[queues, size].map(u16::to_ne_bytes).concat());
        body.extend_from_slice(&[0; 4]);
        match fds {
            Some(fds) => {
                let sealed = self.sealed.try_clone().expect("a descriptor");
                self.with_fds(request, &body, fds, &sealed);
            }
            None => self.send(request, &body, &[]),
        }
    }

    fn log(&mut self, len: &Length, offset: u64, fds: Fds) {
        let len = match len {
            // A log for this memory's pages has a few bytes.
            Length::Pages(bytes) => u64::from(*bytes),
            Length::Any(len) => *len,
        };
        let body = [len, offset].map(u64::to_ne_bytes).concat();
        let sealed = self.sealed.try_clone().expect("a descriptor");
        self.with_fds(6, &body, fds, &sealed);
    }

    fn with_fds(&mut self, request: u32, body: &[u8], fds: Fds, right: &OwnedFd) {
        let fds = self.fds(fds, right);
        self.send(request, body, &fds.iter().map(|fd| fd.as_fd()).collect::<Vec<_>>());
    }

    fn fds(&self, fds: Fds, right: &OwnedFd) -> Vec<OwnedFd> {
        let fds: &[&OwnedFd] = match fds {
            Fds::Right => &[right],
            Fds::None => &[],
            Fds::Two => &[right, &self.memory],
            Fds::Pipe => &[&self.pipe],
            Fds::Sealed => &[&self.sealed],
            Fds::Null => &[&self.null],
        };
        fds.iter().map(|fd| fd.try_clone().expect("a descriptor")).collect()
    }

    fn send(&mut self, request: u32, body: &[u8], fds: &[BorrowedFd<'_>]) {
        let header = [request, VERSION | NEED_REPLY, body.len() as u32].map(u32::to_ne_bytes);
        self.write(&[&header.concat()[..], body].concat(), fds);
    }

    /// Sends a message, if the other side has not closed the connection.
    fn write(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        if self.is_over {
            return;
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        let flags = SendFlags::NOSIGNAL;
        self.is_over =
            sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut ancillary, flags).is_err();
    }
}
