//! A volume that other nodes serve at times.

use super::*;

fn record(epoch: u64, claimant: u64) -> Record {
    Record { epoch, claimant, incarnation: incarnation(1), ..Record::default() }
}

/// A record that another node has written while it served the volume.
fn write_elsewhere(bench: &Bench, name: &str, record: Record) {
    bench.paper.records.lock().expect("as above").insert(name.to_owned(), record);
}

#[test]
fn a_volume_that_comes_back_has_the_records_of_the_node_that_served_it() {
    let bench = Bench::new();
    let first = bench.claim("a", Title::default(), by(1)).expect("it is served here");
    bench.export.set_elsewhere(Some("io2"));
    let refusal = bench.claim("a", first, by(1)).expect_err("it is served elsewhere");
    assert_eq!((refusal.outcome, refusal.text.as_str()), (Outcome::Elsewhere, "io2"));
    // Over there the guest was replaced, and another attachment has come.
    let replaced = record(7, 1).replaced_by(2);
    write_elsewhere(&bench, "a", Record { replaced, ..record(9, 2) });
    write_elsewhere(&bench, "b", record(8, 3));
    bench.export.serve_here().expect("readable");
    assert_eq!(bench.export.records().len(), 2);
    assert_eq!(outcome(bench.claim("a", first, by(1))), Outcome::Superseded);
    assert_eq!(outcome(bench.claim("a", Title::default(), resuming(1))), Outcome::Superseded);
    let holder = Title { epoch: 9, ..first };
    let next = bench.claim("a", holder, by(2)).expect("the holder goes on");
    assert!(next.epoch > 9, "{}", next.epoch);
}

#[test]
fn no_epoch_is_granted_twice_also_with_older_records() {
    let bench = Bench::new();
    let mut last = Title::default();
    for _ in 0..5 {
        last = bench.claim("a", last, by(1)).expect("once more");
    }
    bench.export.set_elsewhere(Some(""));
    // The last of them were not durable, so the other node has never heard of them, and the client
    // was not granted them.
    write_elsewhere(&bench, "a", record(2, 1));
    bench.export.serve_here().expect("readable");
    let next = bench.claim("a", Title { epoch: 2, ..last }, by(1)).expect("it goes on");
    assert!(next.epoch > last.epoch);
    // The content was changed elsewhere, which took an epoch: no guest of before goes on.
    bench.export.set_elsewhere(Some("io2"));
    *bench.paper.floor.lock().expect("as above") = 50;
    bench.export.serve_here().expect("readable");
    assert_eq!(outcome(bench.claim("a", next, by(1))), Outcome::Superseded);
    let fresh = bench.claim("a", Title::default(), by(1)).expect("it starts afresh");
    assert!(fresh.epoch > 50);
}

/// A request of before the volume moved may still be on its way when it is back.
#[test]
fn a_claim_waits_for_requests_of_before_the_volume_moved() {
    let bench = Bench::new();
    let first = bench.claim("a", Title::default(), by(1)).expect("the first");
    let mut channel = bench.open("a", &first, 0).expect("opens");
    let mut ios = io_table(8);
    bench.finish(false);
    submit(&mut channel, &mut ios, Op::Write, 0);
    bench.export.set_elsewhere(Some("io2"));
    bench.export.serve_here().expect("readable");
    assert!(!bench.export.is_quiet() && !bench.export.is_drained("a", first.epoch));
    let mut pending = bench.export.claim("a", &first, &by(1), &VM1).expect("admitted");
    // The flush of the claim would wait as well: it must not begin.
    assert!(!bench.export.is_drained_for(&pending), "a write is on its way");
    assert!(bench.poll_claim(&mut pending).is_none());
    submit(&mut channel, &mut ios, Op::Write, 512);
    assert_eq!(poll(&mut channel, &mut ios), [Status::Fenced], "its epoch is over");
    bench.finish(true);
    assert_eq!(poll(&mut channel, &mut ios), [Status::Done]);
    let (epoch, _) = bench.poll_claim(&mut pending).expect("drained").expect("granted");
    assert!(epoch > first.epoch && bench.export.is_quiet());
}

/// A claim that began before the volume moved is not granted after it is back.
#[test]
fn a_claim_of_before_the_volume_moved_is_over() {
    let bench = Bench::on(Bench::new().volume, Arc::new(Paper { slow: true, ..Paper::default() }));
    let mut old = bench.export.claim("a", &Title::default(), &by(1), &VM1).expect("admitted");
    bench.export.set_elsewhere(Some("io2"));
    bench.export.serve_here().expect("readable");
    let mut new = bench.export.claim("a", &Title::default(), &by(2), &VM1).expect("admitted");
    bench.paper.tickets.lock().expect("as above").iter().for_each(|ticket| ticket.end(Ok(())));
    assert!(bench.poll_claim(&mut old).expect("it is over").is_err());
    assert!(bench.poll_claim(&mut new).expect("it has ended").is_ok());
}

#[test]
fn a_store_with_less_room_remembers_fewer_attachments() {
    #[derive(Debug)]
    struct Small(Paper);

    impl RecordStore for Small {
        fn load(&self) -> Result<HashMap<String, Record>, RecordError> {
            self.0.load()
        }

        fn write(&self, attachment: &str, record: Record) -> Ticket {
            self.0.write(attachment, record)
        }

        fn attachments_max(&self) -> usize {
            5
        }

        fn floor(&self) -> Result<u64, RecordError> {
            self.0.floor()
        }

        fn forget(&self, attachments: &[String], floor: u64) -> Ticket {
            self.0.forget(attachments, floor)
        }
    }

    for shared in [false, true] {
        let small = Arc::new(Small(Paper::default()));
        let options = ExportOptions { shared, ..ExportOptions::default() };
        let export = Export::new("v", Bench::new().volume, options, small.clone());
        let export = export.expect("readable");
        let mut granted = 0;
        for number in 0..20 {
            let claim = export.claim(&number.to_string(), &Title::default(), &by(1), &VM1);
            granted += usize::from(claim.is_ok());
            assert!(small.load().expect("readable").len() <= 5);
            if let Err(refusal) = claim {
                assert!(shared && refusal.text.contains("its part of 5"), "{refusal}");
            }
        }
        assert!(if shared { granted < 5 } else { granted == 20 }, "{granted}");
    }
}

/// A disk on a member's own node waits while the volume is served elsewhere, and goes on when it is
/// back; its guest is not told of a successor that there is not.
#[test]
fn a_local_disk_waits_while_the_volume_is_elsewhere() {
    let bench = Bench::new();
    let attachment = Arc::new(Attachment::new("a", AttachOptions::new(1)));
    let local = LocalVolume::new(bench.export.clone());
    let open = OpenArguments { services: &bench.services, depth: 8 };
    let mut channel = local.attach(&attachment, 0, &open).expect("a channel");
    let (mut ios, mut done) = (io_table(8), Vec::new());
    let begin = |channel: &mut Box<dyn Channel>, ios: &mut IoTable| {
        let id = ios.take().expect("room");
        ios[id].reset();
        (ios[id].op, ios[id].len_bytes) = (Op::Write, 512);
        channel.submit(ios, id);
    };
    let mut now_ns = 0;
    let mut go_on = |channel: &mut Box<dyn Channel>, ios: &mut IoTable, done: &mut Vec<IoId>| {
        for _ in 0..20 {
            now_ns += 1_000_000_000;
            let _ = channel.poll(ios, now_ns, done);
        }
        done.drain(..).map(|id| ios[id].status).collect::<Vec<_>>()
    };
    begin(&mut channel, &mut ios);
    assert_eq!(go_on(&mut channel, &mut ios, &mut done), [Status::Done]);
    // One request is on its way, and one comes when the epoch is over.
    bench.finish(false);
    begin(&mut channel, &mut ios);
    bench.export.set_elsewhere(Some("io2"));
    begin(&mut channel, &mut ios);
    assert_eq!(go_on(&mut channel, &mut ios, &mut done), []);
    bench.finish(true);
    assert_eq!(go_on(&mut channel, &mut ios, &mut done), [Status::Done], "what had begun");
    assert!(!attachment.is_fenced() && !channel.is_open());
    assert!(attachment.why().is_some_and(|why| why.contains("io2")), "{:?}", attachment.why());
    bench.export.serve_here().expect("readable");
    assert_eq!(go_on(&mut channel, &mut ios, &mut done), [Status::Done]);
    assert!(channel.is_open());
}
