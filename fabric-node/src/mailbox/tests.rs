//! A server as a node has it, and QEMU's side of the protocol played here: a guest's accesses
//! through the device are made through the same memory and an eventfd.

mod hand_over;

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::*;
use crate::registration::{DomainSettings, RegistrationServer, VfSettings};
use fabric::mailbox::{HeldSlot, Lost, MailboxClient, RingNode};
use fabric::{
    Alarm, AlarmError, Class, Domain, Doze, EndpointOptions, JoinError, MemoryPiece as Bytes,
    Message, NoDoorbell, OpenEndpointError, Receive, RequestContext,
};

const KEY: &str = "0123456789abcdef";
const LONG: Duration = Duration::from_secs(60);

struct TestNode {
    server: RegistrationServer,
    home: tempfile::TempDir,
}

fn blue(endpoints_max: u16) -> DomainSettings {
    let (name, key) = ("blue".to_owned(), DomainKey::new(KEY).unwrap());
    DomainSettings { name, key, endpoints_max, gateways: 0 }
}

impl TestNode {
    fn new(endpoints_max: u16) -> Self {
        let home = tempfile::tempdir().unwrap();
        let server = RegistrationServer::open(&home.path().join("fabric"), 77).unwrap();
        server.add(blue(endpoints_max)).unwrap();
        let node = Self { server, home };
        for name in ["one", "two"] {
            node.server.add_vf(node.settings(name)).unwrap();
        }
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(format!("{name}.vf"))
    }

    fn settings(&self, name: &str) -> VfSettings {
        let (domain, path) = ("blue".to_owned(), self.path(name));
        VfSettings { name: name.to_owned(), domain, path }
    }

    fn plug(&self, name: &str) -> Vm {
        Vm::new(&self.path(name)).expect("it answers")
    }

    /// Waits until so many endpoints live.
    fn until(&self, endpoints: usize) {
        let end = Instant::now() + LONG;
        while self.server.reports()[0].endpoints_live != endpoints {
            assert!(Instant::now() < end, "{:?}", self.server.reports());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// QEMU's side of a node.
struct Vm {
    connection: UnixStream,
    region: Arc<Region>,
    number: u8,
    doorbell: Arc<OwnedFd>,
}

fn hear(connection: &UnixStream) -> Option<(i64, Option<OwnedFd>)> {
    let mut bytes = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(connection, parts, &mut ancillary, flags).unwrap();
    let mut fd = None;
    for mailbox in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = mailbox {
            fd = rights.last();
        }
    }
    (got.bytes == 8).then(|| (i64::from_le_bytes(bytes), fd))
}

impl Vm {
    /// None when it is hung up on.
    fn new(path: &Path) -> Option<Self> {
        let connection = UnixStream::connect(path).unwrap();
        connection.set_read_timeout(Some(LONG)).unwrap();
        let (version, none) = hear(&connection)?;
        assert_eq!((version, none.is_none()), (0, true));
        let (number, none) = hear(&connection).unwrap();
        assert!(none.is_none());
        let (memory, fd) = hear(&connection).unwrap();
        assert_eq!(memory, -1);
        let region = Arc::new(Region::map_device(fd.unwrap().as_fd()).unwrap());
        let (node, doorbell) = hear(&connection).unwrap();
        assert_eq!(node, 0);
        let (number, doorbell) = (u8::try_from(number).unwrap(), Arc::new(doorbell.unwrap()));
        Some(Self { connection, region, number, doorbell })
    }

    fn doorbell(&self) -> RingNode {
        let doorbell = Arc::clone(&self.doorbell);
        Box::new(move || {
            let _ = rustix::io::write(&doorbell, &1_u64.to_ne_bytes());
        })
    }

    fn join(&self, name: &str, key: &str) -> Result<Domain, JoinError> {
        let key = DomainKey::new(key).unwrap();
        let region = Arc::clone(&self.region);
        Domain::join_by_mailbox(region, self.number, (name, &key), self.doorbell(), None)
    }

    fn client(&self) -> MailboxClient {
        let key = DomainKey::new(KEY).unwrap();
        let region = Arc::clone(&self.region);
        MailboxClient::new(region, self.number, ("blue", &key), self.doorbell()).unwrap()
    }

    fn mailbox(&self) -> Mailbox<'_> {
        Mailbox::new(&self.region, self.number)
    }
}

#[test]
fn processes_of_a_vm_notice_that_their_node_is_no_more() {
    let node = TestNode::new(4);
    let vm = node.plug("one");
    let inside = vm.join("blue", KEY).unwrap();
    let endpoint = inside.endpoint(EndpointOptions::default()).unwrap();
    assert!(inside.is_node_there());
    // It may be another process that goes on; here it is not.
    node.server.pause();
    assert!(inside.is_node_there());
    node.server.answer().unwrap();
    assert!(node.server.remove("blue"));
    assert!(!inside.is_node_there(), "for them a domain that is removed is the same");
    let begun = Instant::now();
    assert!(matches!(vm.join("blue", KEY), Err(JoinError::NodeEnded)));
    let refused = inside.endpoint(EndpointOptions::default()).map(drop);
    assert!(matches!(refused, Err(OpenEndpointError::NodeGone(_))), "{refused:?}");
    drop(endpoint);
    assert!(begun.elapsed() < Duration::from_secs(4), "nobody waits for an answer");
}

#[test]
fn a_process_of_the_host_that_sleeps_is_woken_by_one_of_a_vm_which_cannot() {
    let node = TestNode::new(4);
    let vm = node.plug("one");
    let host = Domain::join(&node.home.path().join("fabric"), "blue", KEY).unwrap();
    let inside = vm.join("blue", KEY).unwrap();
    let options = EndpointOptions::default();
    let [mut sleeper, mut other] = [&host, &inside].map(|it| it.endpoint(options).unwrap());
    assert!(matches!(Alarm::new(&inside), Err(AlarmError::InVm)));
    assert!(matches!(other.open_doorbell(), Err(NoDoorbell::InVm)));
    assert_eq!(other.doze(), Doze::Never);
    let alarm = Alarm::new(&host).unwrap();
    sleeper.open_doorbell().unwrap();
    alarm.watch(&sleeper).unwrap();
    for _ in 0..3 {
        assert_eq!(sleeper.doze(), Doze::Sleep);
        assert!(!alarm.is_ringing());
        let (to, class) = (sleeper.address(), Class::Untagged);
        let message = Message { to, class, tag: 0, data: None, context: None, inject: true };
        let nothing = Bytes { start: std::ptr::null_mut(), bytes: 0 };
        // SAFETY: there is nothing to read.
        unsafe { other.send(&message, &[nothing]) }.unwrap();
        alarm.wait(Some(LONG));
        assert!(alarm.is_ringing());
        assert_eq!(sleeper.doze(), Doze::Ready);
        sleeper.progress();
    }
}

#[test]
fn processes_of_two_vms_and_of_the_host_send_to_each_other() {
    let node = TestNode::new(4);
    let (one, two) = (node.plug("one"), node.plug("two"));
    assert_eq!((one.number, two.number), (1, 2));
    let host = Domain::join(&node.home.path().join("fabric"), "blue", KEY).unwrap();
    let domains = [one.join("blue", KEY).unwrap(), two.join("blue", KEY).unwrap(), host];
    assert!(domains[0].is_in_vm() && !domains[2].is_in_vm());
    let options = EndpointOptions::default();
    let mut endpoints = domains.map(|domain| domain.endpoint(options).unwrap());
    let reports = node.server.vf_reports();
    assert_eq!(reports.iter().map(|vf| vf.endpoints).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(reports[0].pid, Some(std::process::id()));
    // Long enough for the one copy that must not be tried, each to the next in a circle.
    let sent = [7_u8].repeat(5 << 20);
    let mut got = [(); 3].map(|()| [0_u8].repeat(sent.len()));
    let addresses = [0, 1, 2].map(|at: usize| endpoints[at].address());
    assert!(addresses.iter().all(|address| address.host == 77));
    for at in 0..3 {
        let context = Some(RequestContext(at as u64));
        let to = addresses[(at + 1) % 3];
        let message =
            Message { to, class: Class::Tagged, tag: 5, data: None, context, inject: false };
        let part = Bytes { start: sent.as_ptr().cast_mut(), bytes: sent.len() };
        // SAFETY: `sent` is read only, and lives until the loop below has seen all completions.
        unsafe { endpoints[at].send(&message, &[part]) }.unwrap();
        let receive = Receive {
            class: Class::Tagged,
            source: None,
            tag: 5,
            ignore: 0,
            context: RequestContext(9),
            multi_min_bytes: None,
        };
        let part = Bytes { start: got[at].as_mut_ptr(), bytes: sent.len() };
        // SAFETY: `got` lives until the loop below has seen all completions, and is not touched
        // before.
        unsafe { endpoints[at].receive(&receive, &[part]) }.unwrap();
    }
    let (mut done, end) = (0, Instant::now() + LONG);
    while done < 6 {
        for endpoint in &mut endpoints {
            while let Some(completion) = endpoint.completion() {
                assert_eq!(completion.failure, None);
                done += 1;
            }
        }
        assert!(Instant::now() < end, "{done} of 6");
    }
    assert!(got.iter().all(|got| *got == sent));
    assert_eq!(endpoints.each_ref().map(|it| it.counters().single_copies), [0; 3]);
    drop(endpoints);
    node.until(0);
}

#[test]
fn when_a_vm_ends_so_do_all_its_endpoints() {
    let node = TestNode::new(3);
    let (one, two) = (node.plug("one"), node.plug("two"));
    let (client, other) = (one.client(), two.client());
    let mine = [client.open().unwrap().unwrap(), client.open().unwrap().unwrap()];
    let others = other.open().unwrap().unwrap();
    assert!(matches!(other.open().unwrap(), Err(Reply::Full)));
    assert!(Vm::new(&node.path("one")).is_none(), "a vf is one VM's");
    one.connection.shutdown(std::net::Shutdown::Both).unwrap();
    node.until(1);
    let life =
        |held: &HeldSlot| two.region.life(held.grant.slot).unwrap().is_live(held.grant.incarnation);
    assert!(!life(&mine[0]) && !life(&mine[1]) && life(&others));
    // This process is its QEMU and has not ended: it may have the memory by another device.
    assert!(matches!(other.open().unwrap(), Err(Reply::Full)));
    // The next VM has the same mailbox, and nothing of what was there.
    let again = node.plug("one");
    assert_eq!(again.number, 1);
    assert_eq!(again.client().hello().unwrap(), Reply::Done);
    assert!(node.server.remove_vf("one") && !node.server.remove_vf("one"));
    assert!(!node.path("one").exists());
    assert!(again.client().open().unwrap().is_err(), "its way in is gone");
    mine.into_iter().chain([others]).for_each(HeldSlot::give_up);
}

#[test]
fn the_dead_of_a_vm_are_found_by_the_next_member() {
    let node = TestNode::new(2);
    let one = node.plug("one");
    let client = one.client();
    let (dead, alive) = (client.open().unwrap().unwrap(), client.open().unwrap().unwrap());
    let was = dead.grant;
    // The end of a process: its lock is gone, its file stays.
    drop(dead);
    node.until(2);
    // Full, until the dead one is found.
    let next = client.open().unwrap().unwrap();
    assert_eq!((next.grant.slot, next.grant.incarnation), (was.slot, was.incarnation + 1));
    drop(next);
    assert_eq!(client.hello().unwrap(), Reply::Done);
    node.until(1);
    client.close(alive);
    node.until(0);
}

#[test]
fn when_the_domain_is_removed_its_vms_are_told() {
    let node = TestNode::new(2);
    let (one, two) = (node.plug("one"), node.plug("two"));
    let held = one.client().open().unwrap().unwrap();
    assert!(node.server.remove("blue"));
    let SlotGrant { slot, incarnation } = held.grant;
    let life = two.region.life(slot).unwrap();
    assert!(!life.is_live(incarnation), "{life:?}");
    assert!(matches!(one.client().hello(), Err(Lost::Gone)), "nobody answers there");
    assert!(hear(&one.connection).is_none() && hear(&two.connection).is_none());
    held.give_up();
}

#[test]
fn a_close_with_an_old_key_is_found_by_the_next_member() {
    let node = TestNode::new(2);
    let one = node.plug("one");
    let client = one.client();
    let held = client.open().unwrap().unwrap();
    assert!(node.server.set_key("blue", DomainKey::new("fedcba9876543210").unwrap()));
    client.close(held);
    assert_eq!(client.hello().unwrap(), Reply::Denied);
    node.until(1);
    one.join("blue", "fedcba9876543210").unwrap();
    node.until(0);
}

#[test]
fn a_node_that_is_silent_is_told_of_one_death_and_not_of_all() {
    let node = TestNode::new(3);
    let one = node.plug("one");
    let client = one.client();
    let held = [(); 3].map(|()| client.open().unwrap().unwrap());
    held.into_iter().for_each(drop);
    let nonce = one.mailbox().nonce();
    one.mailbox().begin(nonce, 0);
    assert_eq!(client.report_dead(), 1, "nobody listens");
    one.mailbox().begin(nonce, MAILBOX_VERSION);
    assert_eq!(client.report_dead(), 3);
    node.until(0);
}

#[test]
fn a_system_that_was_started_anew_has_nothing_of_before() {
    let node = TestNode::new(2);
    let one = node.plug("one");
    let held = one.client().open().unwrap().unwrap();
    let mut rebooted = one.client();
    rebooted.set_boot(4711);
    assert_eq!(rebooted.hello().unwrap(), Reply::Done);
    node.until(0);
    let of_now = rebooted.open().unwrap().unwrap();
    // A question that was asked before, and is found late.
    assert_eq!(one.client().hello().unwrap(), Reply::Denied);
    assert_eq!(one.client().open().unwrap().unwrap_err(), Reply::Denied);
    node.until(1);
    rebooted.close(of_now);
    node.until(0);
    held.give_up();
}

#[test]
fn without_the_key_no_process_joins_and_old_proofs_are_refused() {
    let node = TestNode::new(2);
    let one = node.plug("one");
    for (name, key) in [("blue", "0123456789abcdeg"), ("red", KEY)] {
        assert!(matches!(one.join(name, key), Err(JoinError::Denied(_))), "{name}");
    }
    let held = one.client().open().unwrap().unwrap();
    let mailbox = one.mailbox();
    let (words, proof) = mailbox.question(0);
    assert_eq!(words[0], 2, "it asked in the first entry");
    // The same words and proof in that entry's next turn, and in another entry.
    for entry in [0, 1] {
        let turn = EntryState::from_word(mailbox.state_word(entry)).unwrap().turn;
        assert!(mailbox.step(entry, turn, EntryStage::Free, EntryStage::Claimed));
        mailbox.ask(entry, words, proof);
        assert!(mailbox.step(entry, turn, EntryStage::Claimed, EntryStage::Asked));
        (one.doorbell())();
        let answered = EntryState { stage: EntryStage::Answered, turn }.to_word();
        let end = Instant::now() + LONG;
        while mailbox.state_word(entry) != answered {
            assert!(Instant::now() < end, "no answer");
        }
        assert_eq!(mailbox.reply(entry), Some(Reply::Denied));
    }
    assert_eq!(node.server.vf_reports()[0].denied, 4);
    node.until(1);
    held.give_up();
}

#[test]
fn an_entry_that_the_dead_have_left_is_somebodys_again() {
    let node = TestNode::new(2);
    let one = node.plug("one");
    for entry in 0..ENTRIES {
        assert!(one.mailbox().step(entry, 0, EntryStage::Free, EntryStage::Claimed));
    }
    assert_eq!(one.client().hello().unwrap(), Reply::Done);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 20, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// One VM's mailbox is written over with anything; another VM is served, and in the end so is
    /// this one.
    #[test]
    fn garbage_harms_its_sender_alone(words in vec((0_usize..128, any::<u64>()), 1..40)) {
        let node = TestNode::new(2);
        let (one, two) = (node.plug("one"), node.plug("two"));
        for (at, word) in words {
            // The head is the node's; a process that writes over it shuts itself out.
            if at >= Mailbox::HEAD_WORDS {
                one.mailbox().write_word(at, word);
                (one.doorbell())();
            }
        }
        let held = two.client().open().unwrap().unwrap();
        prop_assert_eq!(one.client().hello().unwrap(), Reply::Done);
        node.until(1);
        held.give_up();
    }
}
