//! The front against a driver that is a few vectors. The real one is in `vrio/tests/attach.rs`, in
//! a guest.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use sidecore::{Poll, Progress, Services, Wake};

use super::abi::{self, Descriptor, attribute, op};
use super::control::parameters;
use super::device::Shape;
use super::front::{Front, Kernel};
use volume::Size;
use volume::uring::Completion;
use volume::{
    Channel, Durability, IO_BYTES_MAX, Incarnation, IoId, IoTable, Op, OpenArguments, OpenError,
    Status, Topology, Volume, VolumeInfo, Zeroing,
};

const SHAPE: Shape = Shape { queues: 2, depth: 4 };
const SIZE_BYTES: u64 = 1 << 20;

/// A driver: its requests, and the answers to them.
#[derive(Debug)]
struct Driver {
    descriptors: Vec<Descriptor>,
    buffers: Vec<Vec<u8>>,
    /// Places that may be handed a request.
    asking: Vec<bool>,
    answers: Vec<(u32, i32)>,
    mail: Vec<Completion>,
    /// How many commands there is room for.
    room: usize,
    /// Answers to which it has the same request again, at once.
    again: usize,
}

#[derive(Clone, Debug)]
struct Shared(Rc<RefCell<Driver>>);

impl Shared {
    fn new() -> Self {
        let places = SHAPE.places() as usize;
        Self(Rc::new(RefCell::new(Driver {
            descriptors: vec![Descriptor::default(); places],
            buffers: vec![vec![0; IO_BYTES_MAX as usize]; places],
            asking: vec![false; places],
            answers: Vec::new(),
            mail: Vec::new(),
            room: usize::MAX,
            again: 0,
        })))
    }

    /// Hands out a request.
    fn request(&self, place: u32, op_flags: u32, start_sector: u64, nr_sectors: u32) {
        let mut driver = self.0.borrow_mut();
        assert!(std::mem::take(&mut driver.asking[place as usize]), "{place} was asked for");
        driver.descriptors[place as usize] =
            Descriptor { op_flags, nr_sectors, start_sector, addr: 0 };
        driver.mail.push(Completion { token: place, result: 0 });
    }

    fn answers(&self) -> Vec<(u32, i32)> {
        std::mem::take(&mut self.0.borrow_mut().answers)
    }
}

impl Kernel for Shared {
    fn shape(&self) -> Shape {
        SHAPE
    }

    fn ask(&mut self, place: u32, answer: Option<i32>) -> bool {
        let mut driver = self.0.borrow_mut();
        let Some(room) = driver.room.checked_sub(1) else { return false };
        driver.room = room;
        assert!(!std::mem::replace(&mut driver.asking[place as usize], true), "asked for once");
        driver.answers.extend(answer.map(|answer| (place, answer)));
        if answer.is_some() && driver.again > 0 {
            driver.again -= 1;
            driver.asking[place as usize] = false;
            driver.mail.push(Completion { token: place, result: 0 });
        }
        true
    }

    fn take(&mut self, into: &mut Vec<Completion>) {
        into.append(&mut self.0.borrow_mut().mail);
    }

    fn has_mail(&self) -> bool {
        !self.0.borrow().mail.is_empty()
    }

    fn descriptor(&self, place: u32) -> Descriptor {
        self.0.borrow().descriptors[place as usize]
    }

    fn buffer(&self, place: u32) -> *mut u8 {
        self.0.borrow_mut().buffers[place as usize].as_mut_ptr()
    }
}

/// A request as the channel saw it.
type Seen = (Op, u64, u32, bool);

/// A volume whose requests end when a test says so, and how.
#[derive(Clone, Debug)]
struct Slow {
    info: VolumeInfo,
    state: Arc<std::sync::Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    seen: Vec<Seen>,
    end_as: Option<Status>,
}

#[derive(Debug)]
struct SlowChannel(Slow, Vec<IoId>);

impl Volume for Slow {
    fn info(&self) -> VolumeInfo {
        self.info.clone()
    }

    fn size(&self) -> Size {
        Size::new(self.info.size_bytes)
    }

    fn open(&self, _: &OpenArguments<'_>) -> Result<Box<dyn Channel>, OpenError> {
        Ok(Box::new(SlowChannel(self.clone(), Vec::new())))
    }
}

impl Channel for SlowChannel {
    fn submit(&mut self, ios: &mut IoTable, id: IoId) {
        let io = &ios[id];
        let total: u32 = io.segments.iter().map(|segment| segment.len).sum();
        let data = if matches!(io.op, Op::Read | Op::Write) { io.len_bytes } else { 0 };
        assert_eq!(total, data, "the segment is the request's buffer");
        let seen = (io.op, io.offset_bytes, io.len_bytes, io.durable);
        self.0.state.lock().unwrap().seen.push(seen);
        self.1.push(id);
    }

    fn poll(&mut self, ios: &mut IoTable, _: u64, done: &mut Vec<IoId>) -> Progress {
        let Some(status) = self.0.state.lock().unwrap().end_as else { return Progress::Idle };
        self.1.iter().for_each(|&id| ios[id].status = status);
        let progress = Progress::busy_if(!self.1.is_empty());
        done.append(&mut self.1);
        progress
    }

    fn arm(&mut self, _wake: &mut Wake) -> Progress {
        Progress::Idle
    }

    fn disarm(&mut self) {}

    fn is_open(&self) -> bool {
        true
    }

    /// All of it has begun.
    fn recall(&mut self, _ios: &mut IoTable, _back: &mut Vec<IoId>) {}

    fn abandon(&mut self, _: &mut IoTable, _: u64) -> bool {
        self.1.clear();
        true
    }
}

fn info() -> VolumeInfo {
    VolumeInfo {
        size_bytes: SIZE_BYTES,
        block_bytes: 512,
        read_only: false,
        durability: Durability::Flush,
        volatile: false,
        incarnation: Incarnation([1; 16]),
        zeroing: Zeroing::ALL,
        topology: Topology { physical_bytes: 4096, optimal_bytes: 0 },
    }
}

struct Bench {
    volume: Slow,
    driver: Shared,
    front: Front<Shared>,
}

impl Bench {
    fn new() -> Self {
        Self::on(info())
    }

    fn on(info: VolumeInfo) -> Self {
        let volume = Slow { info, state: Arc::default() };
        let open = OpenArguments { services: &Services::new(), depth: SHAPE.channel_depth() };
        let mut front = Front::new(volume.open(&open).unwrap(), volume.info(), SHAPE);
        assert!(front.core().is_stopped(), "no device yet");
        let driver = Shared::new();
        front.show(driver.clone());
        let bench = Self { volume, driver, front };
        bench.end_as(Some(Status::Done));
        bench.polled()
    }

    fn polled(mut self) -> Self {
        assert!(self.front.poll(1).is_busy());
        assert!(self.driver.0.borrow().asking.iter().all(|&asking| asking), "every place");
        self
    }

    fn end_as(&self, status: Option<Status>) {
        self.volume.state.lock().unwrap().end_as = status;
    }

    fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.volume.state.lock().unwrap().seen)
    }

    /// One request, answered within a round.
    fn answer(&mut self, op_flags: u32, start_sector: u64, nr_sectors: u32) -> i32 {
        self.driver.request(5, op_flags, start_sector, nr_sectors);
        assert!(self.front.poll(2).is_busy());
        let answers = self.driver.answers();
        assert_eq!((answers.len(), answers[0].0), (1, 5));
        answers[0].1
    }
}

#[test]
fn a_request_is_one_io_and_its_answer_is_its_length() {
    let mut bench = Bench::new();
    assert_eq!(bench.answer(op::READ, 8, 16), 16 * 512);
    assert_eq!(bench.answer(op::WRITE, 0, 2048), 1 << 20);
    assert_eq!(bench.answer(op::WRITE | abi::FUA, 2047, 1), 512);
    assert_eq!(bench.answer(op::FLUSH, 0, 0), 0);
    let seen = [
        (Op::Read, 4096, 8192, false),
        (Op::Write, 0, 1 << 20, false),
        (Op::Write, 2047 * 512, 512, true),
        (Op::Flush, 0, 0, false),
    ];
    assert_eq!(bench.seen(), seen);
    let core = bench.front.core();
    let [first, second] = core.counters() else { panic!("two queues") };
    assert_eq!((first.requests.get(), second.requests.get()), (0, 4), "place 5 is queue 1's");
    assert_eq!((second.read_bytes.get(), second.flushes.get()), (8192, 1));
    assert_eq!((core.outstanding(), second.errors.get()), (0, 0));
}

/// A link is polled once a round, so a request that waited for the next round would wait for that
/// poll, too.
#[test]
fn an_answer_with_the_next_request_is_served_in_the_same_round() {
    let mut bench = Bench::new();
    bench.driver.0.borrow_mut().again = 5;
    bench.driver.request(3, op::READ, 0, 8);
    assert!(bench.front.poll(2).is_busy());
    assert_eq!(bench.driver.answers(), [(3, 4096); 2]);
    assert_eq!(bench.seen().len(), 2, "a round is bounded");
    assert!(bench.front.poll(3).is_busy());
    assert_eq!(bench.driver.answers(), [(3, 4096); 2]);
}

#[test]
fn invalid_requests_are_errors_and_never_reach_the_volume() {
    let mut bench = Bench::new();
    let eio = -libc::EIO;
    for (start_sector, nr_sectors) in
        [(2048, 1), (2047, 2), (0, 0), (0, 2049), (u64::MAX, 1), (u64::MAX / 512, 1), (0, u32::MAX)]
    {
        assert_eq!(bench.answer(op::READ, start_sector, nr_sectors), eio);
        assert_eq!(bench.answer(op::WRITE, start_sector, nr_sectors), eio);
    }
    for strange in [4, 6, 13, 255] {
        assert_eq!(bench.answer(strange, 0, 8), -libc::EOPNOTSUPP);
    }
    let mut read_only = Bench::on(VolumeInfo { read_only: true, ..info() });
    assert_eq!(read_only.answer(op::WRITE, 0, 8), -libc::EROFS);
    assert_eq!(read_only.answer(op::READ, 0, 8), 4096);
    assert_eq!(bench.seen(), []);
    assert_eq!(bench.front.core().counters()[1].errors.get(), 18);
}

#[test]
fn ranges_are_zeroed_as_the_volume_can() {
    let mut bench = Bench::new();
    let most = 16 << 20 >> 9;
    assert_eq!(bench.answer(op::DISCARD, 0, 2048), 1 << 20);
    assert_eq!(bench.answer(op::WRITE_ZEROES | abi::FUA, 8, 8), 4096);
    assert_eq!(bench.answer(op::WRITE_ZEROES | abi::NOUNMAP, 8, 8), 4096);
    let seen = [
        (Op::Discard, 0, 1 << 20, false),
        (Op::Discard, 4096, 4096, true),
        (Op::WriteZeroes, 4096, 4096, false),
    ];
    assert_eq!(bench.seen(), seen);
    assert_eq!(bench.answer(op::DISCARD, 2048, 1), -libc::EIO, "beyond the end");
    assert_eq!(bench.answer(op::DISCARD, 0, most + 1), -libc::EIO, "too much at once");
    let large = VolumeInfo { size_bytes: 1 << 30, zeroing: Zeroing::default(), ..info() };
    let mut keeps = Bench::on(VolumeInfo { zeroing: Zeroing::ALL, ..large.clone() });
    assert_eq!(keeps.answer(op::DISCARD, 0, most), 16 << 20);
    let mut cannot = Bench::on(large.clone());
    for op in [op::DISCARD, op::WRITE_ZEROES] {
        assert_eq!(cannot.answer(op, 0, 8), -libc::EOPNOTSUPP);
    }
    assert_eq!(parameters(&large).types, abi::PARAMETERS_BASIC);
    let can = parameters(&info());
    assert_eq!(can.types, abi::PARAMETERS_BASIC | abi::PARAMETERS_DISCARD);
    assert_eq!((can.max_discard_sectors, can.discard_granularity), (most, 512));
}

#[test]
fn each_failure_of_a_request_is_told_to_its_user() {
    let mut bench = Bench::new();
    for status in [Status::Error, Status::Invalid, Status::Fenced] {
        bench.end_as(Some(status));
        assert_eq!(bench.answer(op::WRITE, 0, 8), -libc::EIO, "{status:?}");
    }
}

#[test]
fn all_places_at_once_and_answers_without_room_wait_for_it() {
    let mut bench = Bench::new();
    bench.end_as(None);
    for place in 0..SHAPE.places() {
        bench.driver.request(place, op::READ, u64::from(place), 1);
    }
    let _ = bench.front.poll(2);
    assert_eq!(bench.front.core().outstanding(), 8);
    assert!(!bench.front.arm(&mut Wake::new()).is_busy(), "nothing to do but wait");
    bench.driver.0.borrow_mut().room = 3;
    bench.end_as(Some(Status::Done));
    let _ = bench.front.poll(3);
    assert_eq!(bench.driver.answers().len(), 3);
    assert!(bench.front.arm(&mut Wake::new()).is_busy(), "five answers are due");
    bench.driver.0.borrow_mut().room = usize::MAX;
    let _ = bench.front.poll(4);
    assert_eq!(bench.driver.answers().len(), 5);
    assert!(!bench.front.arm(&mut Wake::new()).is_busy());
    bench.driver.request(7, op::READ, 0, 1);
    assert!(bench.front.arm(&mut Wake::new()).is_busy(), "a request came meanwhile");
}

#[test]
fn a_stopped_device_is_asked_for_nothing_and_let_go_of() {
    let mut bench = Bench::new();
    let core = bench.front.core();
    bench.front.let_go();
    let _ = bench.front.poll(2);
    assert!(!core.is_gone(), "the driver still has commands");
    for place in 0..SHAPE.places() {
        let mail = Completion { token: place, result: abi::ABORT };
        bench.driver.0.borrow_mut().mail.push(mail);
    }
    bench.driver.0.borrow_mut().room = 0;
    let _ = bench.front.poll(3);
    assert!(core.is_stopped() && core.is_gone());
    assert_eq!(Rc::strong_count(&bench.driver.0), 1, "the device was closed");
    assert!(!bench.front.arm(&mut Wake::new()).is_busy());
}

#[test]
fn a_disk_looks_like_its_volume() {
    let plain = parameters(&info());
    assert_eq!(plain.attrs, attribute::VOLATILE_CACHE | attribute::FUA);
    assert_eq!((plain.dev_sectors, plain.max_sectors), (2048, 2048));
    assert_eq!((plain.logical_bs_shift, plain.physical_bs_shift), (9, 12));
    let other = VolumeInfo {
        block_bytes: 4096,
        read_only: true,
        durability: Durability::WriteThrough,
        ..info()
    };
    let other = parameters(&other);
    assert_eq!((other.attrs, other.logical_bs_shift), (attribute::READ_ONLY, 12));
}

#[test]
fn impossible_shapes_are_known() {
    let shape = |queues, depth| Shape { queues, depth };
    assert!(shape(1, 1).is_possible() && shape(8, 128).is_possible());
    for wrong in [shape(0, 1), shape(1, 0), shape(1, 4097), shape(2, 1024), shape(65535, 65535)] {
        assert!(!wrong.is_possible(), "{wrong:?}");
    }
    assert_eq!(SHAPE.split(5), (1, 1));
}
