//! A load that knows what must be on the disk: every slot of every ring writes its own block again
//! and again, each time with new contents.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use virtio::driver::{
    Data, DriverOp, DriverRequest, FrontEnd, RequestSlot, RequestStatus, RingDriver,
};

/// Generous: the machine may be busy. Nothing is asserted about time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A block of the load.
const BLOCK_BYTES: u32 = 4096;

/// The load of one ring.
pub(crate) struct Load {
    pub(crate) ring: RingDriver,
    /// By slot: the version last written.
    versions: Vec<u64>,
    /// By slot, and it is outstanding.
    busy: Vec<bool>,
    pub(crate) done: u64,
    /// A flush is outstanding.
    flushing: bool,
}

/// Takes all rings of a front end.
pub(crate) fn loads(front_end: &mut FrontEnd, queues: u16) -> Vec<Load> {
    (0..queues).map(|index| Load::new(front_end.take_ring(index))).collect()
}

impl Load {
    /// A load on an idle ring.
    pub(crate) fn new(ring: RingDriver) -> Self {
        let slots = usize::from(ring.layout().shape.slots);
        Self { ring, versions: vec![0; slots], busy: vec![false; slots], done: 0, flushing: false }
    }

    fn block(&self, slot: usize) -> u64 {
        (usize::from(self.ring.layout().index) * self.versions.len() + slot) as u64
    }

    /// Writes the next version of the slot's block.
    fn write(&mut self, slot: RequestSlot) {
        self.versions[slot.index()] += 1;
        let block = self.block(slot.index());
        self.ring.fill(slot, BLOCK_BYTES, block << 32 | self.versions[slot.index()]);
        let (sector, data) = (block * u64::from(BLOCK_BYTES) / 512, Data::Whole(BLOCK_BYTES));
        let request = DriverRequest { slot, op: DriverOp::Write, sector, data, token: 0 };
        self.ring.submit(&request).unwrap();
        self.busy[slot.index()] = true;
    }

    /// Makes every slot busy.
    pub(crate) fn fill(&mut self) {
        while let Some(slot) = self.ring.take_slot() {
            self.write(slot);
        }
        self.ring.publish();
    }

    /// Takes what is there after a short wait; each completion starts the next write of its block
    /// if `again`.
    fn step(&mut self, again: bool) {
        self.ring.wait(Duration::from_millis(10)).unwrap();
        while let Some(done) = self.ring.complete().unwrap() {
            assert_eq!(done.status, RequestStatus::Ok);
            if done.op == DriverOp::Flush {
                self.flushing = false;
                self.ring.release(done.slot);
                continue;
            }
            assert!(std::mem::take(&mut self.busy[done.slot.index()]), "completed twice");
            self.done += 1;
            if again { self.write(done.slot) } else { self.ring.release(done.slot) }
        }
        if !again && !self.flushing && self.ring.outstanding() > 0 {
            self.flush();
        }
        self.ring.publish();
    }

    /// Asks for a flush if there is a slot for it. (A device that holds requests back answers them
    /// before that.)
    fn flush(&mut self) {
        let Some(slot) = self.ring.take_slot() else { return };
        let (op, data) = (DriverOp::Flush, Data::None);
        self.ring.submit(&DriverRequest { slot, op, sector: 0, data, token: 0 }).unwrap();
        self.flushing = true;
    }

    /// Compares the blocks with the disk's file.
    fn compare(&self, disk: &File) {
        let mut found = vec![0; BLOCK_BYTES as usize];
        let mut wanted = found.clone();
        for slot in 0..self.versions.len() {
            disk.read_exact_at(&mut found, self.block(slot) * u64::from(BLOCK_BYTES)).unwrap();
            self.ring.memory().read(self.ring.layout().data_at(slot as u16), &mut wanted);
            assert!(found == wanted, "block of slot {slot}");
        }
    }
}

fn run(loads: &mut [Load], again: bool, at_goal: impl Fn(usize, &Load) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !loads.iter().enumerate().all(|(index, load)| at_goal(index, load)) {
        let outstanding: Vec<_> = loads.iter().map(|load| load.ring.outstanding()).collect();
        assert!(Instant::now() < deadline, "outstanding: {outstanding:?}");
        loads.iter_mut().for_each(|load| load.step(again));
    }
}

/// Goes on until each load has completed so many writes more.
pub(crate) fn run_on(loads: &mut [Load], more: u64) {
    let goals: Vec<_> = loads.iter().map(|load| load.done + more).collect();
    run(loads, true, |index, load| load.done >= goals[index]);
}

/// How many requests the device holds; at least 16, or a kill would prove nothing.
pub(crate) fn held(loads: &[Load]) -> u64 {
    let held = loads.iter().map(|load| u64::from(load.ring.held_by_device())).sum();
    assert!(held >= 16, "{held} requests outstanding");
    held
}

/// Lets everything complete and compares the disk.
pub(crate) fn finish(loads: &mut [Load], disk: &File) {
    run(loads, false, |_, load| load.ring.outstanding() == 0);
    loads.iter().for_each(|load| load.compare(disk));
}
