//! A member and its user on sidecores of their own, which sleep when they have nothing to do: each
//! wakes the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use member::{
    DeskLanes, DeskWork, FrontVolume, HostOutside, MemberHost, MemberMail, MemberPart, MemberPlan,
    MemberSetup, NODE_PACING, PlaceWatch, RangeContent, RecordClerk, RecordDesk, RegistryRecords,
    StateFile, VolumeForm, VolumeRecords, VolumeTask, VolumeTaskEnd, VolumeTasks,
};
use registry::MemoryRegistry;
use registry::membership::ClusterKeys;
use replica::{Durable, MemberId, Message, Place};
use sidecore::{Idle, Poll, Progress, RoundStage, SidecoreConfig, Wake};
use volume::backend::MemoryVolume;
use volume::contract::Buffer;
use volume::record::{Record, RecordStore};
use volume::{Channel, IoTable, Op, OpenArguments, Status, Volume, io_table};

/// Requests of the user, one after the other.
const REQUESTS: u64 = 300;

/// A member without other members.
struct NoMail;

impl MemberMail for NoMail {
    fn send(
        &mut self,
        _now_ns: u64,
        _to: MemberId,
        _message: Message<RangeContent>,
    ) -> Result<(), Message<RangeContent>> {
        Ok(())
    }

    fn set_members(&mut self, _others: &BTreeMap<MemberId, String>) {}

    fn losses(&self, _to: MemberId) -> u64 {
        0
    }
}

struct NoGuard;

impl PlaceWatch for NoGuard {
    fn serves(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn elsewhere(&mut self, _node: &str) {}

    fn resized(&mut self) {}
}

struct NoTasks;

impl VolumeTasks for NoTasks {
    fn cuts(&mut self) -> Result<BTreeSet<Place>, String> {
        Ok(BTreeSet::new())
    }

    fn carry_out(&mut self, _task: VolumeTask) -> VolumeTaskEnd {
        VolumeTaskEnd::Done
    }
}

/// Writes and reads in turn, and says what it has read.
#[derive(Debug)]
struct SleepyUser {
    channel: Box<dyn Channel>,
    ios: IoTable,
    number: u64,
    buffer: Option<Buffer>,
    ends: Sender<(Status, u8)>,
}

impl SleepyUser {
    fn next(&mut self) {
        let op = if self.number.is_multiple_of(2) { Op::Write } else { Op::Read };
        let buffer = Buffer::filled(&[(self.number / 2) as u8; 512], 0);
        let id = self.ios.take().expect("one at a time");
        let io = &mut self.ios[id];
        io.reset();
        (io.op, io.len_bytes, io.durable) = (op, 512, self.number.is_multiple_of(4));
        io.segments.extend(buffer.segments(100));
        self.channel.submit(&mut self.ios, id);
        self.buffer = Some(buffer);
        self.number += 1;
    }
}

impl Poll for SleepyUser {
    fn poll(&mut self, now_ns: u64) -> Progress {
        if self.buffer.is_none() && self.number < REQUESTS {
            self.next();
        }
        let mut done = Vec::new();
        let progress = self.channel.poll(&mut self.ios, now_ns, &mut done);
        for id in done {
            let bytes = self.buffer.take().expect("one at a time").bytes();
            let _ = self.ends.send((self.ios[id].status, bytes[511]));
            self.ios.free(id);
        }
        progress
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        let has_next = self.buffer.is_none() && self.number < REQUESTS;
        self.channel.arm(wake) | Progress::busy_if(has_next)
    }

    fn disarm(&mut self) {
        self.channel.disarm();
    }
}

/// The only member of a volume.
fn setup() -> MemberSetup {
    MemberSetup {
        volume: "alice".to_owned(),
        id: 0,
        nodes: BTreeMap::from([(0, "io1".to_owned())]),
        life: 5,
        number: [3; 16],
        pacing: NODE_PACING,
        durable: Durable::default(),
        cuts: BTreeSet::new(),
        settings: Vec::new(),
        placed_bytes: None,
        own: Arc::new(MemoryVolume::new(1 << 20).unwrap()),
    }
}

#[test]
fn a_member_and_its_user_on_sleeping_sidecores_wake_each_other() {
    let home = tempfile::tempdir().unwrap();
    let [members, users] = [0, 1].map(|index| {
        let config = SidecoreConfig { idle: Idle::Sleep, ..SidecoreConfig::new(index) };
        sidecore::spawn(config).unwrap()
    });
    let setup = setup();
    let form = VolumeForm::of(&BTreeMap::new(), 1 << 20, &[]);
    let desk = RecordDesk::new(ClusterKeys::new("ab12").unwrap(), "alice", form);
    let registry = Box::new(MemoryRegistry::new(7));
    let records: Box<dyn VolumeRecords> = Box::new(RegistryRecords { desk, registry });
    let work = DeskWork {
        state: StateFile::new(&home.path().join("alice.member")),
        clerk: RecordClerk::new(records, "alice", (0, 5), false),
        tasks: Box::new(NoTasks),
    };
    let plan = MemberPlan::new(setup, &members.waker());
    let (front, book, status) =
        (Arc::clone(&plan.front), Arc::clone(&plan.records), Arc::clone(&plan.status));
    let (lanes, threads) = DeskLanes::start(work, &members.waker()).unwrap();
    let started = members.call(move |local| {
        let outside = HostOutside {
            mail: Box::new(NoMail),
            desk: Box::new(lanes),
            watch: Box::new(NoGuard),
            clock: Box::new(sidecore::boot_ns),
        };
        let host = MemberHost::start(plan, local.services(), outside).expect("it opens");
        local.add(RoundStage::Serve, Box::new(host))
    });
    let (ends_in, ends) = channel();
    let opens = |front: Arc<FrontVolume>| {
        move |local: &mut sidecore::Local| {
            let open = OpenArguments { services: local.services(), depth: 1 };
            let (channel, ios) = (front.open(&open).expect("it opens"), io_table(1));
            let (number, buffer) = (0, None);
            let user = SleepyUser { channel, ios, number, buffer, ends: ends_in };
            local.add(RoundStage::Serve, Box::new(user));
        }
    };
    users.call(opens(front)).unwrap();
    for number in 0..REQUESTS {
        let (status, byte) = ends.recv().expect("the user goes on");
        assert_eq!((status, byte), (Status::Done, (number / 2) as u8), "request {number}");
    }
    assert_eq!(status.view().part, MemberPart::Serves);
    let ticket = book.write("vm", Record { epoch: 1, ..Record::default() });
    while ticket.result().is_none() {
        std::thread::yield_now();
    }
    assert_eq!(ticket.result(), Some(Ok(())));
    // The host goes: a request of the user ends, and so do the threads.
    let host = started.unwrap();
    members.call(move |local| drop(local.remove(host))).unwrap();
    threads.join();
    assert!(StateFile::new(&home.path().join("alice.member")).load().unwrap().is_some());
    users.stop();
    members.stop();
}
