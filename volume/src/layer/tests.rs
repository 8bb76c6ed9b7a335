//! A volume over volumes as an example, and what its layer does for it.

use std::collections::VecDeque;
use std::sync::Arc;

use super::*;
use crate::backend::MemoryVolume;
use crate::contract::held::HeldVolume;
use crate::contract::{self, Buffer, ChannelBench};
use crate::size::Size;
use crate::volume::{Op, VolumeInfo};

const LABEL_BYTES: usize = 512;

/// The example: two copies of the same blocks, behind a first block in which each says how many
/// there are. A read that fails is tried on the other copy.
#[derive(Clone, Debug)]
struct Mirror {
    copies: [Arc<dyn Volume>; 2],
    /// All channels': the first of them that has read the label sets it.
    size: Size,
}

#[derive(Debug, PartialEq, Eq)]
enum Label {
    Unread,
    Asked,
    Read,
}

#[derive(Debug)]
struct MirrorChannel {
    layer: Layer,
    volume: Mirror,
    label: Label,
    /// Behind the layer, which may have a read into it.
    label_buffer: Buffer,
    /// Requests that came before the label was read.
    waiting: VecDeque<IoId>,
    /// By the slot: a read has been tried once.
    tried: Vec<bool>,
    refused: Vec<IoId>,
    settled: Vec<Settled>,
}

impl Mirror {
    fn new(copies: [Arc<dyn Volume>; 2]) -> Self {
        Self { copies, size: Size::new(0) }
    }

    /// Two copies in memory, with their label.
    fn in_memory(size_bytes: u64) -> (Self, [Arc<MemoryVolume>; 2]) {
        let copies = [0, 1].map(|_| {
            let bytes = LABEL_BYTES as u64 + size_bytes;
            let memory = Arc::new(MemoryVolume::new(bytes).expect("memory"));
            let mut label = [0; LABEL_BYTES];
            label[..8].copy_from_slice(&size_bytes.to_le_bytes());
            assert_eq!(ChannelBench::new(&*memory, 1).write(0, &label), Status::Done);
            memory
        });
        let [one, other] = copies.clone();
        (Self::new([one, other]), copies)
    }
}

impl Volume for Mirror {
    fn info(&self) -> VolumeInfo {
        VolumeInfo { size_bytes: self.size.get(), ..self.copies[0].info() }
    }

    fn size(&self) -> Size {
        self.size.clone()
    }

    fn open(&self, open: &OpenArguments<'_>) -> Result<Box<dyn Channel>, OpenError> {
        // A child of each request on each copy, and the label's.
        let [one, other] = &self.copies;
        let layer = Layer::new(open.depth).over(&**one, open.services, open.depth + 1)?.over(
            &**other,
            open.services,
            open.depth,
        )?;
        let depth = usize::from(open.depth);
        Ok(Box::new(MirrorChannel {
            layer,
            volume: self.clone(),
            label: Label::Unread,
            label_buffer: Buffer::new(LABEL_BYTES, 0),
            waiting: VecDeque::with_capacity(depth),
            tried: vec![false; depth],
            refused: Vec::with_capacity(depth),
            settled: Vec::with_capacity(depth),
        }))
    }
}

/// A child that is its parent, as far as a copy sees.
fn begin_copy(layer: &mut Layer, copy: usize, ios: &IoTable, id: IoId) {
    let begins = layer.begin(copy, Some(id), |child| {
        let parent = &ios[id];
        (child.op, child.len_bytes, child.durable) = (parent.op, parent.len_bytes, parent.durable);
        child.offset_bytes = parent.offset_bytes + LABEL_BYTES as u64;
        child.segments.extend_from_slice(&parent.segments);
        true
    });
    assert!(begins, "there is a place for each");
}

impl MirrorChannel {
    fn start(&mut self, ios: &mut IoTable, id: IoId) {
        if !self.volume.info().admits(&ios[id]) {
            ios[id].status = Status::Invalid;
            return self.refused.push(id);
        }
        self.tried[id.index()] = false;
        begin_copy(&mut self.layer, 0, ios, id);
        if ios[id].op != Op::Read {
            begin_copy(&mut self.layer, 1, ios, id);
        }
    }

    fn ask_for_the_label(&mut self) {
        let label = &self.label_buffer;
        let begins = self.layer.begin(0, None, |child| {
            child.len_bytes = LABEL_BYTES as u32;
            child.segments.extend(label.segments(usize::MAX));
            true
        });
        self.label = if begins { Label::Asked } else { Label::Unread };
    }
}

impl Channel for MirrorChannel {
    fn submit(&mut self, ios: &mut IoTable, id: IoId) {
        match self.label {
            Label::Read => self.start(ios, id),
            Label::Unread | Label::Asked => self.waiting.push_back(id),
        }
    }

    fn poll(&mut self, ios: &mut IoTable, now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        if self.label == Label::Unread {
            self.ask_for_the_label();
        }
        let mut label_status = None;
        let ended = |parent: Option<IoId>, child: &mut Io| {
            if parent.is_none() {
                label_status = Some(child.status);
            }
        };
        let progress = self.layer.poll(now_ns, ended, &mut self.settled);
        while let Some(Settled { parent: id, status }) = self.settled.pop() {
            let again = ios[id].op == Op::Read && status == Status::Error;
            if again && !std::mem::replace(&mut self.tried[id.index()], true) {
                begin_copy(&mut self.layer, 1, ios, id);
            } else {
                ios[id].status = status;
                done.push(id);
            }
        }
        if let Some(status) = label_status {
            assert_eq!(status, Status::Done);
            let size = self.label_buffer.bytes()[..8].try_into().expect("eight bytes");
            self.volume.size.set(u64::from_le_bytes(size));
            self.label = Label::Read;
            while let Some(id) = self.waiting.pop_front() {
                self.start(ios, id);
            }
        }
        done.append(&mut self.refused);
        progress
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        let here = self.label == Label::Unread || !self.refused.is_empty();
        self.layer.arm(wake) | Progress::busy_if(here)
    }

    fn disarm(&mut self) {
        self.layer.disarm();
    }

    fn is_open(&self) -> bool {
        self.label == Label::Read && self.layer.is_open()
    }

    fn recall(&mut self, _: &mut IoTable, back: &mut Vec<IoId>) {
        self.layer.recall(|_, _| (), back);
        back.extend(self.waiting.drain(..));
    }

    fn abandon(&mut self, _: &mut IoTable, now_ns: u64) -> bool {
        self.waiting.clear();
        self.refused.clear();
        self.layer.abandon(now_ns)
    }
}

/// Two copies that answer when they are told to, and a channel that has read its label.
fn held(depth: u16) -> ([HeldVolume; 2], ChannelBench) {
    let copies = [0, 1].map(|_| HeldVolume::new(1 << 20));
    let [one, other] = copies.clone();
    let volume = Mirror::new([Arc::new(one), Arc::new(other)]);
    let mut bench = ChannelBench::new(&volume, depth);
    bench.round();
    assert!(!bench.channel.is_open());
    let label = copies[0].answer(Status::Done);
    assert_eq!((label.op, label.len_bytes), (Op::Read, LABEL_BYTES as u32));
    bench.round();
    // A label that was never written says 0.
    volume.size.set(1 << 19);
    assert!(bench.channel.is_open());
    (copies, bench)
}

fn asked([one, other]: &[HeldVolume; 2]) -> (usize, usize) {
    (one.asked(0), other.asked(0))
}

#[test]
fn the_example_keeps_the_contract_and_both_copies() {
    let (volume, copies) = Mirror::in_memory(1 << 20);
    assert_eq!(volume.info().size_bytes, 0, "nobody has read the label");
    let mut bench = ChannelBench::new(&volume, 4);
    // An early request waits for the label; a request beyond the end is refused after it.
    let page = Buffer::filled(&[7; 4096], 0);
    let first = bench.submit(Op::Write, (1 << 20) - 4096, Some(&page));
    let beyond = bench.submit(Op::Write, 1 << 20, Some(&page));
    assert_eq!((bench.wait(first), bench.wait(beyond)), (Status::Done, Status::Invalid));
    assert_eq!(volume.size().get(), 1 << 20);
    contract::check_all(&volume);
    let [one, other] = copies.map(|copy| ChannelBench::new(&*copy, 4).read(0, 1 << 20));
    assert!(one.is_ok() && one == other, "both have all of it");
}

#[test]
fn a_parent_ends_with_the_last_of_its_children_and_as_the_worst_of_them() {
    use Status::{Done, Error, Fenced};
    let (copies, mut bench) = held(4);
    for (first, second, both) in
        [(Done, Done, Done), (Done, Error, Error), (Error, Done, Error), (Error, Fenced, Fenced)]
    {
        let id = bench.submit(Op::Flush, 0, None);
        assert_eq!(asked(&copies), (1, 1));
        copies[1].answer(first);
        (0..3).for_each(|_| bench.round());
        assert!(bench.done.is_empty(), "one of two has ended");
        copies[0].answer(second);
        assert_eq!(bench.wait(id), both);
    }
}

#[test]
fn a_settled_parent_may_have_further_children() {
    let (copies, mut bench) = held(4);
    let page = Buffer::new(4096, 0);
    for (second, status) in [(Status::Done, Status::Done), (Status::Error, Status::Error)] {
        let id = bench.submit(Op::Read, 0, Some(&page));
        assert_eq!(asked(&copies), (1, 0));
        copies[0].answer(Status::Error);
        bench.round();
        assert_eq!(asked(&copies), (0, 1), "the other copy is read");
        copies[1].answer(second);
        assert_eq!(bench.wait(id), status);
    }
}

#[test]
fn requests_that_have_not_begun_are_given_back() {
    let (copies, mut bench) = held(4);
    let page = Buffer::new(4096, 0);
    let ids: Vec<_> = (0..3).map(|at| bench.submit(Op::Write, at << 12, Some(&page))).collect();
    copies.iter().for_each(|copy| copy.with(0, |state| state.gives_back = true));
    // One copy of the first is written; it is written once more.
    copies[1].answer(Status::Done);
    bench.round();
    let mut back = Vec::new();
    bench.channel.recall(&mut bench.ios, &mut back);
    assert_eq!((&back, asked(&copies)), (&ids, (0, 0)));
    // As if they had never been submitted.
    back.iter().for_each(|id| bench.ios.free(*id));
    let id = bench.submit(Op::Write, 0, Some(&page));
    copies.iter().for_each(|copy| drop(copy.answer(Status::Done)));
    assert_eq!(bench.wait(id), Status::Done);
}

#[test]
fn partly_submitted_requests_are_kept_and_complete() {
    let (copies, mut bench) = held(4);
    let page = Buffer::new(4096, 0);
    let write = bench.submit(Op::Write, 0, Some(&page));
    let read = bench.submit(Op::Read, 0, Some(&page));
    copies[0].with(0, |state| state.gives_back = true);
    let mut back = Vec::new();
    bench.channel.recall(&mut bench.ios, &mut back);
    assert_eq!(back, [read], "the other copy is being written");
    bench.ios.free(read);
    assert_eq!(asked(&copies), (1, 1), "so this one is, too");
    copies.iter().for_each(|copy| drop(copy.answer(Status::Done)));
    assert_eq!(bench.wait(write), Status::Done);
}

#[test]
fn failed_requests_are_not_given_back() {
    let (copies, mut bench) = held(4);
    let flush = bench.submit(Op::Flush, 0, None);
    copies[0].answer(Status::Error);
    bench.round();
    copies[1].with(0, |state| state.gives_back = true);
    let mut back = Vec::new();
    bench.channel.recall(&mut bench.ios, &mut back);
    assert_eq!((back, asked(&copies)), (Vec::new(), (0, 0)));
    assert!(bench.channel.arm(&mut Wake::new()).is_busy(), "somebody waits for its end");
    assert_eq!(bench.wait(flush), Status::Error);
}

#[test]
fn a_stages_own_request_is_kept_when_its_users_are_given_back() {
    let copies = [0, 1].map(|_| Arc::new(HeldVolume::new(1 << 20)));
    let [one, other] = copies.clone();
    let mut bench = ChannelBench::new(&Mirror::new([one, other]), 4);
    let flush = bench.submit(Op::Flush, 0, None);
    bench.round();
    copies[0].with(0, |state| state.gives_back = true);
    let mut back = Vec::new();
    bench.channel.recall(&mut bench.ios, &mut back);
    assert_eq!((&back[..], copies[0].asked(0)), (&[flush][..], 1));
    copies[0].answer(Status::Done);
    bench.round();
    assert!(bench.channel.is_open(), "it has read the label");
}

#[test]
fn letting_go_waits_for_every_channel_and_begins_nothing_more() {
    let (copies, mut bench) = held(4);
    let page = Buffer::new(4096, 0);
    bench.submit(Op::Read, 0, Some(&page));
    copies[1].with(0, |state| state.in_kernel = true);
    assert!(!bench.channel.abandon(&mut bench.ios, 1));
    assert!(copies.iter().all(|copy| copy.with(0, |state| state.abandoned)), "both are asked");
    copies[1].with(0, |state| state.in_kernel = false);
    assert!(bench.channel.abandon(&mut bench.ios, 2));
}

#[test]
fn a_table_is_bounded_and_a_child_that_is_not_made_takes_no_place() {
    let held = HeldVolume::new(1 << 20);
    let layer = Layer::new(1).over(&held, &Services::new(), 2);
    let mut layer = layer.expect("it opens");
    for _ in 0..5 {
        assert!(!layer.begin(0, None, |_| false));
    }
    let flush = |io: &mut Io| {
        io.op = Op::Flush;
        true
    };
    assert!(layer.is_idle());
    assert!(layer.begin(0, None, flush) && layer.begin(0, None, flush));
    assert!(!layer.begin(0, None, flush), "its table is full");
    assert_eq!(held.asked(0), 2);
    held.answer(Status::Done);
    let mut ended = 0;
    let _ = layer.poll(1, |_, _| ended += 1, &mut Vec::new());
    assert!(ended == 1 && !layer.is_idle());
    assert!(layer.begin(0, None, flush));
    assert!(layer.abandon(2) && layer.is_idle());
    assert!(!layer.begin(0, None, flush), "it has let go");
}
