//! The rules of claims, opens and closes, one by one; the simulation mixes them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use sidecore::{Progress, Services, Wake};

use super::{Claimer, Export, ExportOptions, HOLDER_SILENT_NS, NotChanged, PendingClaim, Refusal};
use crate::attach::Attach;
use crate::attachment::{AttachOptions, Attachment};
use crate::export::Admitted;
use crate::export::local::LocalVolume;
use crate::wire::{Claim, Outcome, Title, attachment_id};
use peer::{Allow, AttachmentKey};
use volume::Size;
use volume::contract::held::HeldVolume;
use volume::contract::{self, Buffer};
use volume::record::{ATTACHMENTS_MAX, NoRecords, Record, RecordError, RecordStore, Ticket};
use volume::{
    Channel, Durability, Incarnation, IoId, IoTable, Op, OpenArguments, OpenError, Status,
    Topology, Volume, VolumeInfo, Zeroing, io_table,
};

mod place;

/// Completes a request when the test says so.
#[derive(Debug)]
struct Slow {
    info: Mutex<VolumeInfo>,
    finish: Arc<Mutex<bool>>,
}

#[derive(Debug)]
struct SlowChannel {
    finish: Arc<Mutex<bool>>,
    waiting: Vec<IoId>,
}

impl Volume for Slow {
    fn info(&self) -> VolumeInfo {
        self.info.lock().expect("no test panics with it").clone()
    }

    fn size(&self) -> Size {
        Size::new(self.info().size_bytes)
    }

    fn open(&self, _open: &OpenArguments<'_>) -> Result<Box<dyn Channel>, OpenError> {
        Ok(Box::new(SlowChannel { finish: self.finish.clone(), waiting: Vec::new() }))
    }
}

impl Channel for SlowChannel {
    fn submit(&mut self, _ios: &mut IoTable, id: IoId) {
        self.waiting.push(id);
    }

    fn poll(&mut self, ios: &mut IoTable, _now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        if !*self.finish.lock().expect("no test panics with it") {
            return Progress::Idle;
        }
        for id in self.waiting.drain(..) {
            ios[id].status = Status::Done;
            done.push(id);
        }
        Progress::Busy
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

    fn abandon(&mut self, _ios: &mut IoTable, _now_ns: u64) -> bool {
        self.waiting.is_empty()
    }
}

/// Ends writes when the test says so.
#[derive(Debug, Default)]
struct Paper {
    records: Mutex<HashMap<String, Record>>,
    tickets: Mutex<Vec<Ticket>>,
    floor: Mutex<u64>,
    slow: bool,
}

impl RecordStore for Paper {
    fn load(&self) -> Result<HashMap<String, Record>, RecordError> {
        Ok(self.records.lock().expect("no test panics with it").clone())
    }

    fn write(&self, attachment: &str, record: Record) -> Ticket {
        let ticket = Ticket::new();
        self.records.lock().expect("as above").insert(attachment.to_owned(), record);
        if self.slow {
            self.tickets.lock().expect("as above").push(ticket.clone());
        } else {
            ticket.end(Ok(()));
        }
        ticket
    }

    fn floor(&self) -> Result<u64, RecordError> {
        Ok(*self.floor.lock().expect("as above"))
    }

    fn forget(&self, attachments: &[String], floor: u64) -> Ticket {
        *self.floor.lock().expect("as above") = floor;
        self.records.lock().expect("as above").retain(|name, _| !attachments.contains(name));
        let ticket = Ticket::new();
        ticket.end(Ok(()));
        ticket
    }
}

struct Bench {
    volume: Arc<Slow>,
    paper: Arc<Paper>,
    export: Arc<Export>,
    services: Services,
}

fn incarnation(number: u8) -> Incarnation {
    Incarnation([number; 16])
}

impl Bench {
    fn new() -> Self {
        Self::with(VolumeInfo {
            size_bytes: 1 << 20,
            block_bytes: 512,
            read_only: false,
            durability: Durability::Flush,
            volatile: false,
            incarnation: incarnation(1),
            zeroing: Zeroing::ALL,
            topology: Topology::default(),
        })
    }

    fn with(info: VolumeInfo) -> Self {
        let volume = Arc::new(Slow { info: Mutex::new(info), finish: Arc::new(Mutex::new(true)) });
        Self::on(volume, Arc::new(Paper::default()))
    }

    fn on(volume: Arc<Slow>, paper: Arc<Paper>) -> Self {
        let export = Export::new("v", volume.clone(), ExportOptions::default(), paper.clone());
        Self { volume, paper, export: export.expect("readable"), services: Services::new() }
    }

    /// The server's process is started again on the same storage.
    fn restart(self, incarnation_now: u8) -> Self {
        self.volume.info.lock().expect("as above").incarnation = incarnation(incarnation_now);
        Self::on(self.volume, self.paper)
    }

    fn finish(&self, on: bool) {
        *self.volume.finish.lock().expect("as above") = on;
    }

    fn claim(&self, name: &str, title: Title, claim: Claim) -> Result<Title, Refusal> {
        self.claim_at("vm1", 0, name, title, claim)
    }

    /// Of a node, at a time.
    fn claim_at(
        &self,
        node: &str,
        now_ns: u64,
        name: &str,
        title: Title,
        claim: Claim,
    ) -> Result<Title, Refusal> {
        let by = Claimer { node, key: None, now_ns };
        let mut pending = self.export.claim(name, &title, &claim, &by)?;
        let answer = self.poll_claim(&mut pending).expect("nothing is on its way");
        let (epoch, incarnation) = answer?;
        Ok(Title { attachment: attachment_id("v", name), epoch, incarnation })
    }

    fn poll_claim(&self, claim: &mut PendingClaim) -> Option<Result<(u64, Incarnation), Refusal>> {
        self.export.poll_claim(claim, &self.services, 0)
    }

    fn open(&self, name: &str, title: &Title, channel: u16) -> Result<Admitted, Refusal> {
        let pending = self.export.open(name, title, channel)?;
        assert!(self.export.poll_open(&pending), "nothing is on its way");
        let open = OpenArguments { services: &self.services, depth: 8 };
        Ok(self.export.admitted(pending, &open).expect("a channel"))
    }
}

const VM1: Claimer<'static> = Claimer { node: "vm1", key: None, now_ns: 0 };

fn by(claimant: u64) -> Claim {
    Claim { claimant, ..Claim::default() }
}

fn resuming(claimant: u64) -> Claim {
    Claim { resume: true, ..by(claimant) }
}

fn outcome<T: std::fmt::Debug>(result: Result<T, Refusal>) -> Outcome {
    result.expect_err("refused").outcome
}

fn submit(channel: &mut Admitted, ios: &mut IoTable, op: Op, offset_bytes: u64) -> IoId {
    let id = ios.take().expect("room");
    ios[id].reset();
    ios[id].op = op;
    ios[id].offset_bytes = offset_bytes;
    ios[id].len_bytes = if op == Op::Flush { 0 } else { 512 };
    channel.submit(ios, id);
    id
}

fn poll(channel: &mut Admitted, ios: &mut IoTable) -> Vec<Status> {
    let mut done = Vec::new();
    let _ = channel.poll(ios, 0, &mut done);
    let statuses = done.iter().map(|&id| ios[id].status).collect();
    done.into_iter().for_each(|id| ios.free(id));
    statuses
}

#[test]
fn a_claim_waits_for_what_the_older_epoch_has_on_its_way() {
    let bench = Bench::new();
    let first = bench.claim("a", Title::default(), by(1)).expect("the first");
    let mut channel = bench.open("a", &first, 0).expect("opens");
    let mut ios = io_table(8);
    bench.finish(false);
    submit(&mut channel, &mut ios, Op::Write, 0);
    let mut pending = bench.export.claim("a", &Title::default(), &by(2), &VM1).expect("admitted");
    assert!(bench.poll_claim(&mut pending).is_none(), "a write is on its way");
    submit(&mut channel, &mut ios, Op::Write, 512);
    assert_eq!(poll(&mut channel, &mut ios), [Status::Fenced], "the old epoch is over");
    assert!(bench.poll_claim(&mut pending).is_none());
    bench.finish(true);
    assert_eq!(poll(&mut channel, &mut ios), [Status::Done]);
    bench.finish(false);
    assert!(bench.poll_claim(&mut pending).is_none(), "what was written must be flushed");
    bench.finish(true);
    let (epoch, _) = bench.poll_claim(&mut pending).expect("drained").expect("granted");
    assert!(epoch > first.epoch);
}

#[test]
fn a_claim_waits_for_its_record() {
    let mut bench = Bench::new();
    let paper = Arc::new(Paper { slow: true, ..Paper::default() });
    bench = Bench::on(bench.volume, paper);
    let mut pending = bench.export.claim("a", &Title::default(), &by(1), &VM1).expect("admitted");
    assert!(bench.poll_claim(&mut pending).is_none());
    bench.paper.tickets.lock().expect("as above")[0].end(Ok(()));
    assert!(matches!(bench.poll_claim(&mut pending), Some(Ok((1, _)))));
    let mut pending = bench.export.claim("a", &Title::default(), &by(2), &VM1).expect("admitted");
    let full = RecordError { path: "x".into(), reason: "no space left".into() };
    bench.paper.tickets.lock().expect("as above")[1].end(Err(full));
    let refused = bench.poll_claim(&mut pending).expect("ended");
    assert_eq!(outcome(refused), Outcome::Refused);
}

/// A client whose session was lost claims by another one while its first claim waits for a flush.
/// The answer to the first claim must not tell it that another client has replaced it.
#[test]
fn a_claim_that_its_own_client_has_overtaken_is_refused_and_not_superseded() {
    let bench = Bench::on(Bench::new().volume, Arc::new(Paper { slow: true, ..Paper::default() }));
    let claim = |claimant| bench.export.claim("a", &Title::default(), &by(claimant), &VM1);
    let answer = |pending: &mut _| bench.poll_claim(pending).expect("it is over").map(|_| ());
    let mut first = claim(1).expect("admitted");
    let mut again = claim(1).expect("admitted");
    let refusal = answer(&mut first).expect_err("an older epoch");
    assert_eq!(refusal.outcome, Outcome::Refused, "{refusal}");
    assert!(bench.poll_claim(&mut again).is_none(), "it waits for its record");
    let mut other = claim(2).expect("admitted");
    let refusal = answer(&mut again).expect_err("another client has the volume");
    assert_eq!(refusal.outcome, Outcome::Superseded, "{refusal}");
    assert!(bench.poll_claim(&mut other).is_none());
}

#[test]
fn a_channel_opened_anew_waits_for_its_older_way() {
    let bench = Bench::new();
    let title = bench.claim("a", Title::default(), by(1)).expect("the first");
    let mut old = bench.open("a", &title, 3).expect("opens");
    let mut ios = io_table(8);
    bench.finish(false);
    submit(&mut old, &mut ios, Op::Write, 0);
    let pending = bench.export.open("a", &title, 3).expect("admitted");
    assert!(!bench.export.poll_open(&pending));
    let other = bench.export.open("a", &title, 4).expect("admitted");
    assert!(bench.export.poll_open(&other), "another channel has no older way");
    submit(&mut old, &mut ios, Op::Write, 0);
    assert_eq!(poll(&mut old, &mut ios), [Status::Fenced], "the old way is closed");
    bench.finish(true);
    poll(&mut old, &mut ios);
    assert!(bench.export.poll_open(&pending));
}

#[test]
fn a_live_client_goes_on_unless_replaced() {
    let bench = Bench::new();
    let first = bench.claim("a", Title::default(), by(1)).expect("the first");
    let second = bench.claim("a", first, by(1)).expect("again");
    let third = bench.claim("a", first, by(1)).expect("the answer of the second was lost");
    assert!(third.epoch > second.epoch && second.epoch > first.epoch);
    bench.claim("a", Title::default(), by(2)).expect("a successor");
    assert_eq!(outcome(bench.claim("a", third, by(1))), Outcome::Superseded);
}

#[test]
fn a_take_over_ends_the_volumes_holder_and_tells_it() {
    let bench = Bench::new();
    let first = bench.claim("a", Title::default(), by(1)).expect("the first");
    let mut old = bench.open("a", &first, 0).expect("opens");
    let refusal = bench.claim("b", Title::default(), by(2)).expect_err("in use");
    assert!(refusal.text.contains("in use by attachment a"), "{refusal}");
    let second = Claim { take_over: true, ..by(2) };
    let second = bench.claim("b", Title::default(), second).expect("the operator said so");
    let mut ios = io_table(8);
    submit(&mut old, &mut ios, Op::Write, 0);
    assert_eq!(poll(&mut old, &mut ios), [Status::Fenced]);
    let _new = bench.open("b", &second, 0).expect("opens");
    // While the second uses it, and not only when it has gone.
    assert_eq!(outcome(bench.claim("a", first, by(1))), Outcome::Superseded);
    assert_eq!(outcome(bench.claim("a", Title::default(), by(3))), Outcome::Refused, "in use");
}

#[test]
fn unflushed_writes_are_not_lost_in_silence() {
    let bench = Bench::new();
    let title = bench.claim("a", Title::default(), by(1)).expect("the first");
    let unflushed = Claim { unflushed: true, ..by(1) };
    bench.claim("a", title, unflushed).expect("the incarnation is the same");
    let bench = bench.restart(2);
    assert_eq!(outcome(bench.claim("a", title, unflushed)), Outcome::Lost);
    bench.claim("a", title, Claim { accept_loss: true, ..unflushed }).expect("accepted");
    let bench = bench.restart(3);
    let flushed = bench.claim("a", title, by(1)).expect("nothing was unflushed");
    assert_eq!(flushed.incarnation, incarnation(3));
}

#[test]
fn a_resuming_guest_is_refused_after_an_unclean_end_under_another_incarnation() {
    let bench = Bench::new();
    assert_eq!(outcome(bench.claim("a", Title::default(), resuming(1))), Outcome::Lost, "unknown");
    bench.claim("a", Title::default(), by(1)).expect("the first");
    bench.claim("a", Title::default(), resuming(2)).expect("the same incarnation");
    let bench = bench.restart(2);
    assert_eq!(outcome(bench.claim("a", Title::default(), resuming(3))), Outcome::Lost);
    bench.claim("a", Title::default(), by(3)).expect("a fresh start is served");
    bench.claim("a", Title::default(), resuming(4)).expect("and may be resumed");
}

#[test]
fn write_through_and_clean_ends_survive_any_incarnation() {
    let mut info = Bench::new().volume.info();
    info.durability = Durability::WriteThrough;
    let bench = Bench::with(info);
    bench.claim("a", Title::default(), by(1)).expect("the first");
    let bench = bench.restart(2);
    bench.claim("a", Title::default(), resuming(2)).expect("each write was durable");

    let bench = Bench::new();
    let title = bench.claim("a", Title::default(), by(1)).expect("the first");
    close(&bench, "a", title.epoch);
    let bench = bench.restart(2);
    bench.claim("a", Title::default(), resuming(2)).expect("closed clean");
}

/// A process that was handed the guest asks as the one before, which has closed or could not.
#[test]
fn a_successor_is_judged_as_its_predecessor() {
    let bench = Bench::new();
    let title = bench.claim("a", Title::default(), by(1)).expect("the first");
    let unflushed = Claim { unflushed: true, ..by(1) };
    close(&bench, "a", title.epoch);
    let bench = bench.restart(2);
    let title = bench.claim("a", title, unflushed).expect("the close has flushed it");
    // Out of reach of a close.
    let bench = bench.restart(3);
    assert_eq!(outcome(bench.claim("a", title, unflushed)), Outcome::Lost);
    let title = bench.claim("a", title, by(1)).expect("nothing was unflushed");
    let later = bench.claim("a", title, by(1)).expect("again");
    close(&bench, "a", later.epoch);
    let bench = bench.restart(4);
    let text = "a close says nothing of an epoch that another client held";
    assert_eq!(outcome(bench.claim("a", title, unflushed)), Outcome::Lost, "{text}");
    // Another client has begun meanwhile, and has closed.
    let other = bench.claim("a", Title::default(), by(2)).expect("a fresh start");
    close(&bench, "a", other.epoch);
    assert_eq!(outcome(bench.claim("a", later, by(1))), Outcome::Superseded);
    assert_eq!(outcome(bench.claim("a", Title::default(), resuming(1))), Outcome::Superseded);
}

#[test]
fn a_volatile_volume_survives_nothing() {
    let mut info = Bench::new().volume.info();
    info.volatile = true;
    let bench = Bench::with(info);
    let title = bench.claim("a", Title::default(), by(1)).expect("the first");
    close(&bench, "a", title.epoch);
    let title = bench.claim("a", Title::default(), resuming(1)).expect("the same process");
    let bench = bench.restart(2);
    assert_eq!(outcome(bench.claim("a", title, by(1))), Outcome::Lost);
    assert_eq!(outcome(bench.claim("a", Title::default(), resuming(2))), Outcome::Lost);
    bench.claim("a", Title::default(), by(3)).expect("a fresh start is served");
}

fn close(bench: &Bench, name: &str, epoch: u64) {
    let mut closing = super::Closing::new(bench.export.clone(), name, epoch);
    let ended = (0..10).find_map(|now_ns| closing.poll(&bench.services, now_ns));
    assert_eq!(ended, Some(Ok(())));
}

#[test]
fn a_close_that_comes_late_takes_nothing_from_a_successor() {
    let bench = Bench::new();
    let old = bench.claim("a", Title::default(), by(1)).expect("the first");
    let new = bench.claim("a", Title::default(), by(2)).expect("a successor");
    let mut channel = bench.open("a", &new, 0).expect("opens");
    close(&bench, "a", old.epoch);
    let mut ios = io_table(8);
    submit(&mut channel, &mut ios, Op::Write, 0);
    assert_eq!(poll(&mut channel, &mut ios), [Status::Done]);
    let records = bench.paper.records.lock().expect("as above");
    assert!(!records["a"].clean);
}

#[test]
fn one_attachment_at_a_time_unless_shared() {
    let bench = Bench::new();
    let first = bench.claim("a", Title::default(), by(1)).expect("the first");
    let channel = bench.open("a", &first, 0).expect("opens");
    let refusal = bench.claim("b", Title::default(), by(2)).expect_err("in use");
    assert_eq!(refusal.outcome, Outcome::Refused);
    assert!(refusal.text.contains("attachment a"), "{refusal}");
    drop(channel);
    bench.claim("b", Title::default(), by(2)).expect("the first is gone");
    assert_eq!(outcome(bench.open("a", &first, 0)), Outcome::EpochOver, "it has to claim");
    assert_eq!(outcome(bench.claim("a", first, by(1))), Outcome::Superseded, "b has written");
    assert_eq!(outcome(bench.claim("a", Title::default(), resuming(3))), Outcome::Superseded);
    bench.claim("a", Title::default(), by(3)).expect("a fresh start is served");
}

#[test]
fn a_claim_waits_for_what_another_attachment_left_behind() {
    let bench = Bench::new();
    let first = bench.claim("a", Title::default(), by(1)).expect("the first");
    let mut channel = bench.open("a", &first, 0).expect("opens");
    let mut ios = io_table(8);
    bench.finish(false);
    submit(&mut channel, &mut ios, Op::Write, 0);
    channel.close();
    let mut pending = bench.export.claim("b", &Title::default(), &by(2), &VM1).expect("not in use");
    bench.finish(true);
    assert!(bench.poll_claim(&mut pending).is_none(), "a write of the other is on its way");
    poll(&mut channel, &mut ios);
    assert!(bench.poll_claim(&mut pending).is_some());
}

#[test]
fn a_claim_that_comes_late_takes_nothing_back() {
    let bench = Bench::new();
    // Granted, but the answer is lost.
    bench.claim("a", Title::default(), by(1)).expect("the first");
    bench.claim("a", Title::default(), by(2)).expect("a successor");
    assert_eq!(outcome(bench.claim("a", Title::default(), by(1))), Outcome::Superseded);
    let bench = bench.restart(1);
    assert_eq!(outcome(bench.claim("a", Title::default(), by(1))), Outcome::Superseded);
    bench.claim("a", Title::default(), by(3)).expect("another one");
}

#[test]
fn an_opening_that_is_given_up_leaves_nothing_open() {
    let bench = Bench::new();
    let first = bench.claim("a", Title::default(), by(1)).expect("the first");
    drop(bench.export.open("a", &first, 0).expect("admitted"));
    bench.claim("b", Title::default(), by(2)).expect("nobody uses it");
    assert_eq!(outcome(bench.open("b", &first, 64)), Outcome::Refused, "channels are bounded");
}

#[test]
fn invalid_requests_harm_nothing() {
    let mut info = Bench::new().volume.info();
    info.block_bytes = 4096;
    let bench = Bench::with(info);
    let title = bench.claim("a", Title::default(), by(1)).expect("the first");
    let mut channel = bench.open("a", &title, 0).expect("opens");
    let mut ios = io_table(8);
    for offset_bytes in [0, 512, 1 << 20, u64::MAX - 511] {
        submit(&mut channel, &mut ios, Op::Write, offset_bytes);
        assert_eq!(poll(&mut channel, &mut ios), [Status::Invalid], "512 bytes of 4096");
    }
    submit(&mut channel, &mut ios, Op::Flush, 0);
    assert_eq!(poll(&mut channel, &mut ios), [Status::Done]);
    assert!(channel.is_empty());
}

#[test]
fn a_hostile_epoch_cannot_use_epochs_up() {
    let bench = Bench::new();
    for epoch in [u64::MAX - 1, (1 << 60) - 2, (1 << 16) + 1] {
        let title = Title { epoch, ..Title::default() };
        assert_eq!(outcome(bench.claim("a", title, by(1))), Outcome::Refused);
    }
    bench.claim("a", Title::default(), by(1)).expect("as before");
}

/// A's node is stopped and its guest is started afresh on another one; then A's node is started
/// again, and A resumes with all that its node remembers.
#[test]
fn a_guest_that_was_replaced_takes_nothing_back() {
    let bench = Bench::new();
    let a = bench.claim_at("vm1", 0, "a", Title::default(), by(1)).expect("A starts");
    let channel = bench.open("a", &a, 0).expect("opens");
    let start = |now_ns| bench.claim_at("vm2", now_ns, "a", Title::default(), by(2));
    let refusal = start(1).expect_err("A is there");
    assert_eq!(refusal.outcome, Outcome::Refused);
    assert!(refusal.text.contains("vm1 holds attachment a (epoch 1"), "{refusal}");
    drop(channel);
    bench.export.note_silence(1_000);
    assert_eq!(outcome(start(HOLDER_SILENT_NS)), Outcome::Refused, "it may come back");
    let b = start(1_000 + HOLDER_SILENT_NS).expect("A was silent for long enough");
    assert_eq!(b.epoch, 2);
    let wakes = |claim: Claim| bench.claim_at("vm1", u64::MAX, "a", Title::default(), claim);
    let known = |claimant| Claim { known: a.epoch, ..resuming(claimant) };
    let refusal = wakes(known(1)).expect_err("A resumes");
    assert_eq!(refusal.outcome, Outcome::Superseded);
    assert!(refusal.text.contains("vm2 took attachment a (epoch 2)"), "{refusal}");
    // A program that does not say what it knows, or has forgotten it.
    assert_eq!(outcome(wakes(resuming(3))), Outcome::Refused);
    assert_eq!(outcome(wakes(by(1))), Outcome::Superseded, "a claim that comes late");
    // Also when B is gone, since A has not seen what B wrote.
    close(&bench, "a", b.epoch);
    assert_eq!(outcome(wakes(known(1))), Outcome::Superseded);
    assert_eq!(outcome(wakes(known(4))), Outcome::Superseded, "its node has closed it before");
    let take = Claim { take_over: true, ..known(1) };
    let again = wakes(take).expect("an operator said so");
    wakes(Claim { known: again.epoch, ..resuming(1) }).expect("and its node is started again");
    let b_again = bench.claim_at("vm2", u64::MAX, "a", b, by(2));
    assert_eq!(outcome(b_again), Outcome::Superseded);
}

#[test]
fn a_guest_goes_on_where_its_vmm_has_moved_it() {
    let bench = Bench::new();
    let a = bench.claim_at("vm1", 0, "a", Title::default(), by(1)).expect("it starts");
    let moved = || bench.claim_at("vm2", 0, "a", Title::default(), resuming(2));
    assert_eq!(outcome(moved()), Outcome::Refused, "its source has not let go");
    close(&bench, "a", a.epoch);
    let there = moved().expect("let go");
    let back = || {
        let claim = Claim { known: a.epoch, ..resuming(3) };
        bench.claim_at("vm1", 0, "a", Title::default(), claim)
    };
    assert_eq!(outcome(back()), Outcome::Refused);
    close(&bench, "a", there.epoch);
    let back = back().expect("and back");
    // The node is killed and started again, and nothing could be written at the end.
    let again = Claim { known: a.epoch, ..resuming(3) };
    let again = bench.claim_at("vm1", 0, "a", Title::default(), again).expect("it goes on");
    assert!(again.epoch > back.epoch);
    let bench = bench.restart(1);
    let none = bench.claim_at("vm1", 0, "a", Title::default(), resuming(9));
    none.expect("a node that has forgotten is known by its name");
}

/// Its requests ended by `error-after` before its first claim was answered, and its node was
/// killed: so it resumes, and the holder is the guest before it.
#[test]
fn a_guest_that_never_held_its_volume_resumes_after_the_one_before_it() {
    let bench = Bench::new();
    let first = bench.claim_at("vm1", 0, "a", Title::default(), by(1)).expect("it starts");
    bench.claim_at("vm1", 0, "a", Title::default(), by(2)).expect("the next starts");
    // Its node was killed before it could write that the second held the volume.
    let third = Claim { known: first.epoch, ..resuming(3) };
    bench.claim_at("vm1", 0, "a", Title::default(), third).expect("it is the last of its node");
    let second = Claim { known: first.epoch, ..resuming(2) };
    let late = bench.claim_at("vm1", 0, "a", Title::default(), second);
    assert_eq!(outcome(late), Outcome::Superseded);
}

#[test]
fn a_name_on_a_shared_volume_belongs_to_a_key() {
    let [alice, bob] = [1, 2].map(|key| AttachmentKey([key; 32]));
    let volume = Bench::new().volume;
    let allow = |key| Allow { key: Some(key), ..Allow::node("vm1") };
    let options = ExportOptions { allow: vec![allow(alice), allow(bob)], shared: true };
    let export = Export::new("v", volume, options, Arc::new(Paper::default())).expect("readable");
    let claim = |key, claimant, take_over| {
        let by_key = Claimer { key, ..VM1 };
        let claim = Claim { take_over, ..by(claimant) };
        export.claim("a", &Title::default(), &claim, &by_key).map(drop)
    };
    assert_eq!(claim(Some(alice), 1, false), Ok(()));
    for key in [Some(bob), None] {
        let refusal = claim(key, 2, true).expect_err("it is Alice's");
        assert_eq!(refusal.outcome, Outcome::Refused);
        assert!(refusal.text.contains("belongs to another key"), "{refusal}");
    }
    assert!(export.is_holder("a", "vm1", Some(alice)));
    assert!(!export.is_holder("a", "vm1", Some(bob)) && !export.is_holder("a", "vm2", Some(alice)));
    assert_eq!(claim(Some(alice), 3, false), Ok(()));
    export.set_allow(vec![allow(bob)]);
    assert_eq!(claim(Some(bob), 2, false), Ok(()), "Alice's key was taken away");
}

#[test]
fn more_attachments_than_the_limit_lock_out_none_and_bring_back_none() {
    let bench = Bench::new();
    let first = bench.claim("0", Title::default(), by(1)).expect("the first");
    let mut last = first;
    for number in 1..2 * ATTACHMENTS_MAX {
        let name = number.to_string();
        last = bench.claim(&name, Title::default(), by(1)).expect("one more");
        let remembered = bench.paper.records.lock().expect("as above").len();
        assert!(remembered <= ATTACHMENTS_MAX, "{remembered}");
    }
    assert!(!bench.paper.records.lock().expect("as above").contains_key("0"), "it was forgotten");
    let is_refused = |bench: &Bench| {
        assert_eq!(outcome(bench.claim("0", first, by(1))), Outcome::Superseded);
        let resumes = bench.claim("0", Title::default(), resuming(1));
        assert_eq!(outcome(resumes), Outcome::Lost);
    };
    is_refused(&bench);
    let bench = bench.restart(1);
    is_refused(&bench);
    let newest = (2 * ATTACHMENTS_MAX - 1).to_string();
    let again = bench.claim(&newest, last, by(1)).expect("the holder goes on");
    assert!(again.epoch > last.epoch);
    let fresh = bench.claim("0", Title::default(), by(2)).expect("its guest starts afresh");
    assert!(fresh.epoch > again.epoch);
}

/// A shared volume that two nodes may use, with what `paper` remembers.
fn shared(paper: Arc<Paper>, nodes: &[&str]) -> Bench {
    let bench = Bench::on(Bench::new().volume, paper);
    let allow = nodes.iter().map(|node| Allow::node(node)).collect();
    let options = ExportOptions { allow, shared: true };
    let export = Export::new("v", bench.volume.clone(), options, bench.paper.clone());
    Bench { export: export.expect("readable"), ..bench }
}

/// Claims so many new names, and closes each if `closes`; how many were granted.
fn flood(bench: &Bench, node: &str, names: usize, closes: bool) -> usize {
    let claims = (0..names).map(|number| {
        let name = format!("{node}-{number}");
        let granted = bench.claim_at(node, 0, &name, Title::default(), by(7)).ok();
        granted
            .inspect(|title| {
                if closes {
                    close(bench, &name, title.epoch)
                }
            })
            .is_some()
    });
    claims.filter(|granted| *granted).count()
}

fn remembered(bench: &Bench, node: &str) -> usize {
    let records = bench.paper.records.lock().expect("as above");
    assert!(records.len() <= ATTACHMENTS_MAX, "{}", records.len());
    records.values().filter(|record| record.node.as_str() == node).count()
}

#[test]
fn names_that_a_node_never_closes_lock_no_other_node_out() {
    let bench = shared(Arc::default(), &["vm1", "vm2"]);
    let granted = flood(&bench, "vm2", 2 * ATTACHMENTS_MAX, false);
    assert_eq!(granted, ATTACHMENTS_MAX / 2);
    let refusal = bench.claim_at("vm2", 0, "more", Title::default(), by(1)).expect_err("its part");
    assert_eq!(refusal.outcome, Outcome::Refused);
    assert!(refusal.text.contains("vm2 has 512 attachments of volume v"), "{refusal}");
    assert!(refusal.text.len() <= crate::wire::TEXT_BYTES_MAX, "the way out is cut: {refusal}");
    // Its names go on, and so does each claim of the others; also once the node was killed.
    bench.claim_at("vm2", 0, "vm2-0", Title::default(), by(7)).expect("a name that it has");
    let bench = shared(bench.paper, &["vm1", "vm2"]);
    assert_eq!(flood(&bench, "vm2", 2 * ATTACHMENTS_MAX, false), granted, "those that it has");
    for number in 0..100 {
        let name = format!("a{number}");
        bench.claim_at("vm1", 0, &name, Title::default(), by(1)).expect("another node");
    }
    let here = bench.export.claim("d", &Title::default(), &by(1), &Claimer::here(0));
    assert!(here.is_ok(), "a disk of the volume's own node: {here:?}");
}

#[test]
fn a_node_that_claims_and_closes_ages_out_its_own_records_alone() {
    let bench = shared(Arc::default(), &["vm1", "vm2"]);
    let guest = bench.claim_at("vm1", 0, "guest", Title::default(), by(1)).expect("it starts");
    close(&bench, "guest", guest.epoch);
    let names = 2 * ATTACHMENTS_MAX;
    assert_eq!(flood(&bench, "vm2", names, true), names, "its oldest ones go");
    assert_eq!((remembered(&bench, "vm1"), remembered(&bench, "vm2")), (1, 512));
    let known = Claim { known: guest.epoch, ..resuming(2) };
    bench.claim_at("vm1", 0, "guest", Title::default(), known).expect("its guest resumes");
    // Also of the one that others have left no part: it takes the place of its own oldest.
    assert_eq!(flood(&bench, "vm1", names, true), names);
    assert!(remembered(&bench, "vm1") > 250, "{}", remembered(&bench, "vm1"));
    assert_eq!(remembered(&bench, "vm2"), 512);
}

/// Older releases did not count a part for each node, and their first ones noted no node.
#[test]
fn records_that_are_too_many_already_make_room_for_other_nodes() {
    use volume::name::Name;
    for node in ["", "vm1", "gone"] {
        for clean in [true, false] {
            let record =
                |epoch| Record { epoch, clean, node: Name::new(node), ..Record::default() };
            let of = |number: usize| (number.to_string(), record(1 + number as u64));
            let records = (0..ATTACHMENTS_MAX).map(of).collect();
            let paper = Paper { records: Mutex::new(records), ..Paper::default() };
            let bench = shared(Arc::new(paper), &["vm1", "vm2"]);
            let claim = bench.claim_at("vm2", 0, "new", Title::default(), by(1));
            assert_eq!(claim.is_ok(), clean, "{node}: {claim:?}");
            let oldest = bench.paper.records.lock().expect("as above").contains_key("0");
            assert_eq!(oldest, !clean, "{node}");
            let refused = claim.err().map(|refusal| refusal.outcome);
            assert_eq!(refused, (!clean).then_some(Outcome::Refused));
        }
    }
}

/// The flush between two epochs is metered as the guest's flushes are.
#[test]
fn the_flush_of_a_claim_takes_no_longer_than_it_takes() {
    let bench = Bench::new();
    let metered = Arc::new(volume::stage::meter::MeterVolume::new(bench.volume.clone(), 0));
    let meter = metered.meter();
    let export = Export::new("v", metered, ExportOptions::default(), bench.paper.clone());
    let export = export.expect("readable");
    let booted_ns = 43_000_000_000_000;
    let mut pending = export.claim("a", &Title::default(), &by(1), &VM1).expect("admitted");
    let answer = export.poll_claim(&mut pending, &bench.services, booted_ns);
    assert!(matches!(answer, Some(Ok(_))), "{answer:?}");
    let flushes = meter.read(Op::Flush);
    assert_eq!(flushes.requests, 1);
    assert!(flushes.latency_ns.max() < 1_000, "{} ns", flushes.latency_ns.max());
}

/// Requests that the chain gives back have left the guard: no claim waits for them.
#[test]
fn recalled_requests_have_left_the_guard() {
    let held = HeldVolume::new(1 << 20);
    let options = ExportOptions::default();
    let export = Export::new("v", Arc::new(held.clone()), options, Arc::new(NoRecords));
    let export = export.expect("no records");
    let attachment = Arc::new(Attachment::new("a", AttachOptions::new(1)));
    let open = OpenArguments { services: &Services::new(), depth: 4 };
    let channel = LocalVolume::new(Arc::clone(&export)).attach(&attachment, 0, &open);
    let mut bench = contract::ChannelBench::new(&held, 4);
    bench.channel = channel.expect("it opens");
    let recall = |bench: &mut contract::ChannelBench| {
        let mut back = Vec::new();
        bench.channel.recall(&mut bench.ios, &mut back);
        back.iter().for_each(|id| bench.ios.free(*id));
        back
    };
    let page = Buffer::new(4096, 0);
    let early = bench.submit(Op::Write, 0, Some(&page));
    assert_eq!(recall(&mut bench), [early], "it has waited for an epoch");
    while !bench.channel.is_open() {
        // The claim's flush.
        if held.asked_of_all() > 0 {
            held.answer_oldest(Status::Done);
        }
        bench.round();
    }
    let refused = bench.submit(Op::Write, 1 << 20, Some(&page));
    let write = bench.submit(Op::Write, 0, Some(&page));
    assert!(!export.is_quiet());
    let last = held.opened() - 1;
    held.with(last, |state| state.gives_back = true);
    assert_eq!(recall(&mut bench), [write]);
    assert!(export.is_quiet());
    assert_eq!(bench.wait(refused), Status::Invalid);
}

/// A guest waits for its node, which has stopped in order, and the volume goes back to a snapshot
/// meanwhile. The guest has the content of before in its memory.
#[test]
fn no_guest_goes_on_over_a_change_of_the_content() {
    let bench = Bench::new();
    let unused = bench.export.while_unused(|| bench.paper.floor().expect("readable"));
    assert_eq!(unused, Ok(0), "no client has used it: no epoch is taken");
    let first = bench.claim("a", Title::default(), by(1)).expect("granted");
    let in_use = bench.export.while_unused(|| ()).expect_err("a client holds it");
    assert!(matches!(&in_use, NotChanged::InUse(holders) if holders[0].attachment == "a"));
    assert!(bench.export.end_epoch("a", first.epoch));
    let durable = bench.export.while_unused(|| bench.paper.floor().expect("readable"));
    assert_eq!(durable, Ok(first.epoch + 1), "it is recorded before the content changes");
    // Also by a server that was started again.
    let bench = bench.restart(1);
    let known = Claim { known: first.epoch, ..resuming(2) };
    for (title, claim) in
        [(Title::default(), known), (Title::default(), resuming(1)), (first, by(1))]
    {
        let refusal = bench.claim("a", title, claim).expect_err("it would mix two contents");
        assert_eq!(refusal.outcome, Outcome::Superseded);
        assert!(refusal.text.contains("was rolled back or made smaller"), "{}", refusal.text);
    }
    // It starts afresh, or an operator says that it may go on.
    let taking = Claim { take_over: true, ..resuming(2) };
    let taken = bench.claim("a", Title::default(), taking).expect("granted");
    assert_eq!(taken.epoch, first.epoch + 2, "no cache of the first epoch follows");
    let afresh = bench.claim("a", Title::default(), by(3)).expect("granted");
    assert_eq!(afresh.epoch, taken.epoch + 1);
    assert!(bench.export.end_epoch("a", afresh.epoch));
    bench.claim("a", Title::default(), resuming(3)).expect("nothing has changed since");
}

/// The server was killed while a client held the volume, so its record says nothing of an end.
#[test]
fn a_change_after_a_kill_of_the_server_takes_an_epoch_too() {
    let bench = Bench::new();
    let first = bench.claim("a", Title::default(), by(1)).expect("the first");
    let bench = bench.restart(1);
    bench.export.while_unused(|| ()).expect("no client has come back");
    let bench = bench.restart(1);
    let goes_on = bench.claim("a", Title::default(), resuming(1));
    assert_eq!(outcome(goes_on), Outcome::Superseded);
    let next = bench.claim("a", Title::default(), by(2)).expect("a guest that starts afresh");
    assert_eq!(next.epoch, first.epoch + 2);
}
