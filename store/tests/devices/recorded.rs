//! The writes and syncs of devices in their order, and the content that a power cut behind any of
//! them leaves.

/// A sector is written as a whole or not at all.
const SECTOR_BYTES: usize = 512;

/// The unit of a write of which a test chooses the remains.
const PART_BYTES: usize = 4096;

/// A write or a sync.
#[derive(Clone, Debug)]
enum Step {
    Write { device: usize, offset: usize, bytes: Vec<u8> },
    Sync { device: usize },
}

/// A part of a write that no sync covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnsyncedPart {
    /// The device.
    pub(crate) device: usize,
    /// Where the part begins on the device.
    pub(crate) offset: usize,
    /// The step of its write.
    pub(crate) step: usize,
}

/// The remains of a part behind a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// Nothing.
    Nothing,
    /// All of it.
    All,
    /// Its sectors of these bits.
    Sectors(u8),
}

/// A request of a life, and the state behind it.
#[derive(Clone, Debug)]
pub(crate) struct Moment<S> {
    /// Steps of the record when it began.
    pub(crate) begun: usize,
    /// And when it was done.
    pub(crate) ended: usize,
    /// All before it is durable since then.
    pub(crate) is_durable: bool,
    /// The state.
    pub(crate) state: S,
}

/// The last moment whose state, or a state on the way to it from the moment before, fits the state
/// that was found behind a power cut. None may be older than what was durable then.
pub(crate) fn find_moment<S>(
    moments: &[Moment<S>],
    steps: usize,
    fits: impl Fn(&S, &S) -> bool,
) -> Option<usize> {
    let first = moments.iter().rposition(|it| it.is_durable && it.ended <= steps).unwrap_or(0);
    let last = moments.iter().rposition(|it| it.begun <= steps).unwrap_or(0);
    let mut candidates = (first..=last.max(first)).rev();
    candidates.find(|&at| {
        let before = if at == first { first } else { at - 1 };
        fits(&moments[before].state, &moments[at].state)
    })
}

/// The record of some devices.
#[derive(Clone, Debug)]
pub(crate) struct Recording {
    before: Vec<Vec<u8>>,
    steps: Vec<Step>,
}

impl Recording {
    /// A record that begins with these contents, all of which are durable.
    pub(crate) fn new(before: Vec<Vec<u8>>) -> Self {
        Self { before, steps: Vec::new() }
    }

    /// Notes a write.
    pub(crate) fn wrote(&mut self, device: usize, offset: usize, bytes: &[u8]) {
        self.steps.push(Step::Write { device, offset, bytes: bytes.to_vec() });
    }

    /// Notes that all writes before are durable.
    pub(crate) fn synced(&mut self, device: usize) {
        self.steps.push(Step::Sync { device });
    }

    /// How many steps there are.
    pub(crate) fn len(&self) -> usize {
        self.steps.len()
    }

    /// The record up to a step, as it was then.
    pub(crate) fn up_to(&self, steps: usize) -> Self {
        Self { before: self.before.clone(), steps: self.steps[..steps].to_vec() }
    }

    /// The devices after a power cut at the end of this record: all that a sync covers, and of the
    /// rest what `keep` chooses.
    pub(crate) fn cut(&self, mut keep: impl FnMut(UnsyncedPart) -> Kept) -> Vec<Vec<u8>> {
        let mut devices = self.before.clone();
        let last_sync = |of: usize| {
            let is_it = |step: &Step| matches!(step, Step::Sync { device } if *device == of);
            self.steps.iter().rposition(is_it).unwrap_or(0)
        };
        let last_syncs: Vec<usize> = (0..devices.len()).map(last_sync).collect();
        for (step, it) in self.steps.iter().enumerate() {
            let Step::Write { device, offset, bytes } = it else { continue };
            let into = &mut devices[*device];
            if step < last_syncs[*device] {
                into[*offset..*offset + bytes.len()].copy_from_slice(bytes);
                continue;
            }
            for (at, part) in (*offset..).step_by(PART_BYTES).zip(bytes.chunks(PART_BYTES)) {
                let kept = keep(UnsyncedPart { device: *device, offset: at, step });
                put(&mut into[at..at + part.len()], part, kept);
            }
        }
        devices
    }
}

fn put(into: &mut [u8], part: &[u8], kept: Kept) {
    let sectors = into.chunks_mut(SECTOR_BYTES).zip(part.chunks(SECTOR_BYTES));
    for (bit, (into, sector)) in sectors.enumerate() {
        let is_kept = match kept {
            Kept::Nothing => false,
            Kept::All => true,
            Kept::Sectors(bits) => bits >> bit & 1 == 1,
        };
        if is_kept {
            into.copy_from_slice(sector);
        }
    }
}
