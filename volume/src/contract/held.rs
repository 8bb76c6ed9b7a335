//! A volume that does nothing until the test says so.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use sidecore::Progress;

use crate::size::Size;
use crate::volume::{
    Channel, Durability, Incarnation, IoId, IoTable, Op, OpenArguments, OpenError, SEGMENTS_MAX,
    Status, Topology, Volume, VolumeInfo, Zeroing,
};

/// A request that the volume has not answered yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldRequest {
    id: IoId,
    /// The requests to the volume are numbered.
    number: u64,
    /// The kind of request.
    pub op: Op,
    /// Where on the volume it begins.
    pub offset_bytes: u64,
    /// Its length.
    pub len_bytes: u32,
    /// Whether it must be durable at completion.
    pub durable: bool,
    /// The address and the length of each segment of its data.
    pub places: Vec<(usize, u32)>,
}

/// A function that a test has called while a channel is polled.
pub struct PollEvent(pub Box<dyn FnMut() + Send>);

impl fmt::Debug for PollEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PollEvent")
    }
}

/// One channel's requests.
#[derive(Debug, Default)]
pub struct HeldState {
    /// Requests without an answer, oldest first.
    pub asked: VecDeque<HeldRequest>,
    answered: Vec<(IoId, Status)>,
    /// Says no to `abandon`: a kernel that still owns the buffers.
    pub in_kernel: bool,
    /// Has begun nothing, so that all of it can be recalled.
    pub gives_back: bool,
    /// Is not open, as one that waits for an epoch.
    pub paused: bool,
    /// `abandon` was called.
    pub abandoned: bool,
    /// Ends each request with the next poll, as memory does.
    pub at_once: bool,
    /// Calls this function when it is polled so many times: an event in the middle of a round.
    pub after_polls: Option<(u32, PollEvent)>,
}

/// The volume. Its channels are numbered as they are opened.
#[derive(Clone, Debug)]
pub struct HeldVolume {
    info: VolumeInfo,
    channels: Arc<Mutex<Vec<Arc<Mutex<HeldState>>>>>,
    count: Arc<AtomicU64>,
}

impl HeldVolume {
    /// A volume of this size without channels.
    pub fn new(size_bytes: u64) -> Self {
        let info = VolumeInfo {
            size_bytes,
            block_bytes: 512,
            read_only: false,
            durability: Durability::Flush,
            volatile: false,
            incarnation: Incarnation::default(),
            zeroing: Zeroing::ALL,
            topology: Topology::default(),
        };
        Self { info, channels: Arc::default(), count: Arc::default() }
    }

    /// How many channels were ever opened.
    pub fn opened(&self) -> usize {
        self.channels.lock().len()
    }

    /// Looks at a channel, or changes it.
    pub fn with<R>(&self, channel: usize, f: impl FnOnce(&mut HeldState) -> R) -> R {
        let state = Arc::clone(&self.channels.lock()[channel]);
        f(&mut state.lock())
    }

    /// How much a channel was asked and has not answered.
    pub fn asked(&self, channel: usize) -> usize {
        self.with(channel, |state| state.asked.len())
    }

    /// How much all channels were asked and have not answered.
    pub fn asked_of_all(&self) -> usize {
        (0..self.opened()).map(|channel| self.asked(channel)).sum()
    }

    /// Ends the oldest request of any channel.
    pub fn answer_oldest(&self, status: Status) -> HeldRequest {
        let number = |channel: &usize| {
            self.with(*channel, |state| state.asked.front().map_or(u64::MAX, |held| held.number))
        };
        let oldest = (0..self.opened()).min_by_key(number).expect("a channel was opened");
        self.answer_on(oldest, status)
    }

    /// Ends the oldest request of the first channel.
    pub fn answer(&self, status: Status) -> HeldRequest {
        self.answer_on(0, status)
    }

    /// Ends the oldest request of a channel.
    pub fn answer_on(&self, channel: usize, status: Status) -> HeldRequest {
        self.with(channel, |state| {
            let held = state.asked.pop_front().expect("something was asked");
            state.answered.push((held.id, status));
            held
        })
    }
}

impl Volume for HeldVolume {
    fn info(&self) -> VolumeInfo {
        self.info.clone()
    }

    fn size(&self) -> Size {
        Size::new(self.info.size_bytes)
    }

    fn open(&self, _open: &OpenArguments<'_>) -> Result<Box<dyn Channel>, OpenError> {
        let state = Arc::new(Mutex::new(HeldState::default()));
        self.channels.lock().push(Arc::clone(&state));
        Ok(Box::new(HeldChannel(state, Arc::clone(&self.count))))
    }
}

#[derive(Debug)]
struct HeldChannel(Arc<Mutex<HeldState>>, Arc<AtomicU64>);

impl Channel for HeldChannel {
    fn submit(&mut self, ios: &mut IoTable, id: IoId) {
        let io = &ios[id];
        let total: u64 = io.segments.iter().map(|segment| u64::from(segment.len)).sum();
        assert_eq!(total, if io.op.zeroes() { 0 } else { u64::from(io.len_bytes) });
        assert!(io.len_bytes <= io.op.bytes_max() && io.segments.len() <= SEGMENTS_MAX);
        let (op, offset_bytes, len_bytes) = (io.op, io.offset_bytes, io.len_bytes);
        let places = io.segments.iter().map(|segment| (segment.addr as usize, segment.len));
        let (durable, places) = (io.durable, places.collect());
        let number = self.1.fetch_add(1, Relaxed);
        let held = HeldRequest { id, number, op, offset_bytes, len_bytes, durable, places };
        let mut state = self.0.lock();
        if state.at_once {
            state.answered.push((id, Status::Done));
        } else {
            state.asked.push_back(held);
        }
    }

    fn poll(&mut self, ios: &mut IoTable, _now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        let mut state = self.0.lock();
        if let Some((polls, event)) = &mut state.after_polls {
            *polls -= 1;
            if *polls == 0 {
                (event.0)();
                state.after_polls = None;
            }
        }
        let answered = std::mem::take(&mut state.answered);
        for (id, status) in &answered {
            ios[*id].status = *status;
            done.push(*id);
        }
        Progress::busy_if(!answered.is_empty())
    }

    /// The test's answers come from outside, so that the sidecore has to look for them.
    fn arm(&mut self, _wake: &mut sidecore::Wake) -> Progress {
        Progress::busy_if(!self.0.lock().answered.is_empty())
    }

    fn disarm(&mut self) {}

    fn is_open(&self) -> bool {
        !self.0.lock().paused
    }

    fn recall(&mut self, _ios: &mut IoTable, back: &mut Vec<IoId>) {
        let mut state = self.0.lock();
        if state.gives_back {
            back.extend(state.asked.drain(..).map(|held| held.id));
        }
    }

    fn abandon(&mut self, _ios: &mut IoTable, _now_ns: u64) -> bool {
        let mut state = self.0.lock();
        state.abandoned = true;
        !state.in_kernel
    }
}
