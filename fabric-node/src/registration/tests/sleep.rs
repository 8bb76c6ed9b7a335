//! Members that sleep, and how they are woken: by the node first, and then by each other.

use super::*;
use fabric::{Address, Alarm, Doze, Endpoint, RequestFailure};
use random::Random;

/// A member with an endpoint that can sleep.
pub(super) struct Sleeper {
    pub(super) endpoint: Endpoint,
    alarm: Alarm,
    _domain: Domain,
}

impl Sleeper {
    pub(super) fn new(node: &TestNode) -> Self {
        let domain = node.join();
        let mut endpoint = domain.endpoint(EndpointOptions::default()).unwrap();
        let alarm = Alarm::new(&domain).unwrap();
        endpoint.open_doorbell().unwrap();
        alarm.watch(&endpoint).unwrap();
        alarm.watch(&endpoint).expect("twice is as good");
        Self { endpoint, alarm, _domain: domain }
    }

    pub(super) fn send(&mut self, to: &Address) {
        let (class, context) = (Class::Tagged, None);
        let message = Message { to: *to, class, tag: 1, data: None, context, inject: false };
        let part = MemoryPiece { start: std::ptr::null_mut(), bytes: 0 };
        // SAFETY: there is nothing to read.
        unsafe { self.endpoint.send(&message, &[part]) }.unwrap();
    }

    pub(super) fn ask(&mut self, source: Option<Address>) {
        let (class, context, tag) = (Class::Tagged, RequestContext(1), 1);
        let receive = Receive { class, source, tag, ignore: 0, context, multi_min_bytes: None };
        let part = MemoryPiece { start: std::ptr::null_mut(), bytes: 0 };
        // SAFETY: there is nothing to write.
        unsafe { self.endpoint.receive(&receive, &[part]) }.unwrap();
    }

    /// Waits for what it has asked for: polls so often, and then sleeps. How often it did.
    pub(super) fn wait(&mut self, polls: u64) -> (Option<RequestFailure>, u32) {
        for _ in 0..polls {
            if let Some(completion) = self.endpoint.completion() {
                return (completion.failure, 0);
            }
        }
        let mut sleeps = 0;
        loop {
            match self.endpoint.doze() {
                Doze::Ready => {}
                Doze::Sleep => {
                    let begun = Instant::now();
                    self.alarm.wait(Some(LONG));
                    assert!(begun.elapsed() < LONG, "no member has woken it");
                    sleeps += 1;
                }
                other => panic!("{other:?}"),
            }
            if let Some(completion) = self.endpoint.completion() {
                return (completion.failure, sleeps);
            }
        }
    }
}

/// Rounds of [`play`].
const ROUNDS: u32 = 10_000;

/// Sends to and fro, and gives how often it slept. How long it polls before is `seed`'s, so that
/// two of them meet at all moments.
pub(super) fn play(me: &mut Sleeper, to: &Address, first: bool, seed: u64) -> u32 {
    let (mut random, mut sleeps) = (Random::new(seed), 0);
    for round in 0..ROUNDS {
        me.ask(None);
        if first || round > 0 {
            me.send(to);
        }
        let magnitude = random.below(9);
        let (failure, slept) = me.wait(random.below(1 << magnitude));
        assert_eq!(failure, None);
        sleeps += slept;
    }
    if !first {
        me.send(to);
    }
    sleeps
}

#[test]
fn no_sleeper_is_forgotten() {
    let node = node(2);
    let (mut one, mut other) = (Sleeper::new(&node), Sleeper::new(&node));
    let addresses = [one.endpoint.address(), other.endpoint.address()];
    let sleeps = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| play(&mut other, &addresses[0], false, 1));
        let ours = play(&mut one, &addresses[1], true, 2);
        ours + theirs.join().unwrap()
    });
    assert!(sleeps > ROUNDS / 10, "{sleeps} sleeps");
}

#[test]
fn a_sender_that_has_woken_a_sleeper_needs_the_node_no_more() {
    let node = node(3);
    let [mut one, mut other] = [(); 2].map(|()| Sleeper::new(&node));
    let to = other.endpoint.address();
    let mut wake = || {
        other.ask(None);
        assert_eq!(other.endpoint.doze(), Doze::Sleep);
        one.send(&to);
        other.alarm.wait(Some(LONG));
        assert!(other.alarm.is_ringing());
        assert_eq!(other.wait(0), (None, 0));
    };
    wake();
    // The write end comes at some time.
    std::thread::sleep(Duration::from_millis(50));
    node.server.while_it_is_stopped(|| (0..3).for_each(|_| wake()));
}

#[test]
fn a_sleeper_is_woken_when_its_sender_has_gone() {
    let node = node(2);
    let [one, mut other] = [(); 2].map(|()| Sleeper::new(&node));
    other.ask(Some(one.endpoint.address()));
    assert_eq!(other.endpoint.doze(), Doze::Sleep);
    drop(one);
    // The doorbell rings; the message is not only there for an endpoint that looks.
    other.alarm.wait(Some(LONG));
    assert!(other.alarm.is_ringing());
    assert_eq!(other.wait(0).0, Some(RequestFailure::Gone));
}

#[test]
fn without_its_node_no_endpoint_sleeps() {
    let node = node(2);
    let mut one = Sleeper::new(&node);
    assert_eq!(one.endpoint.doze(), Doze::Sleep);
    assert!(!one.alarm.is_ringing());
    drop(node);
    one.alarm.wait(Some(LONG));
    assert!(one.alarm.is_ringing(), "and so for ever");
    assert_eq!(one.endpoint.doze(), Doze::Never);
}

#[test]
fn an_alarm_rings_for_what_it_is_told_and_after_a_nap() {
    let node = node(2);
    let one = Sleeper::new(&node);
    assert!(!one.alarm.is_ringing());
    one.alarm.ring();
    assert!(one.alarm.is_ringing());
    one.alarm.silence();
    assert!(!one.alarm.is_ringing());
    one.alarm.set(Some(Duration::from_micros(50)));
    one.alarm.wait(Some(LONG));
    assert!(one.alarm.is_ringing());
    one.alarm.set(None);
    assert!(!one.alarm.is_ringing());
    one.alarm.forget(&one.endpoint);
}

#[test]
fn bells_are_for_ones_own_endpoints_and_ropes_for_members() {
    let node = node(4);
    let one = member(&node);
    let grant = new_grant(&one);
    for bad in [
        RegistrationRequest::OpenDoorbell(grant),
        RegistrationRequest::OpenDoorbell(SlotGrant { slot: 4095, ..grant }),
    ] {
        let other = member(&node);
        say(&other, &bad.to_bytes());
        assert_eq!(hear(&other), None, "it is not its own");
        let unregistered = call(&node.path);
        say(&unregistered, &bad.to_bytes());
        assert_eq!(hear(&unregistered), None);
    }
    say(&one, &RegistrationRequest::OpenDoorbell(grant).to_bytes());
    assert_eq!(hear(&one), Some(RegistrationAnswer::Doorbell(grant)));
    // Of what is not there nothing is said; that is not worth an end.
    let other = member(&node);
    let nobody = SlotGrant { slot: 4095, incarnation: 7 };
    for (grant, wants_write_end) in [(nobody, true), (grant, false), (grant, true)] {
        say(&other, &RegistrationRequest::Ring { grant, wants_write_end }.to_bytes());
    }
    assert_eq!(hear(&other), Some(RegistrationAnswer::DoorbellWriteEnd(grant)));
    let unregistered = call(&node.path);
    say(&unregistered, &RegistrationRequest::Ring { grant, wants_write_end: true }.to_bytes());
    assert_eq!(hear(&unregistered), None);
}

#[test]
fn a_waker_of_many_that_does_not_listen_stays_and_holds_few_descriptors() {
    let node = node(2);
    let one = member(&node);
    let grant = new_grant(&one);
    say(&one, &RegistrationRequest::OpenDoorbell(grant).to_bytes());
    assert_eq!(hear(&one), Some(RegistrationAnswer::Doorbell(grant)));
    let busy = member(&node);
    // More answers than a socket holds, and then a question for which there has to be room.
    (0..2000).for_each(|_| {
        say(&busy, &RegistrationRequest::Ring { grant, wants_write_end: true }.to_bytes())
    });
    say(&busy, &RegistrationRequest::NewEndpoint.to_bytes());
    until_heard(&busy);
    let mut write_ends = 0;
    loop {
        match hear(&busy) {
            Some(RegistrationAnswer::DoorbellWriteEnd(whose)) => assert_eq!(whose, grant),
            Some(RegistrationAnswer::Endpoint { .. }) => break,
            other => panic!("{other:?}"),
        }
        write_ends += 1;
    }
    // A socket holds some 277 of them.
    assert!((1..=8).contains(&write_ends), "{write_ends} unread write ends");
    node.until(2, 2);
}

/// Waits until all that was said over a socket is read.
fn until_heard(socket: &OwnedFd) {
    let end = Instant::now() + LONG;
    while unread::unread_bytes(socket) != Some(0) {
        assert!(Instant::now() < end, "no process reads it");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A client that asks for doorbells of its own and does not receive them.
#[test]
fn a_client_that_asks_for_many_bells_and_does_not_listen_holds_few() {
    let node = node(2);
    let one = member(&node);
    let grant = new_grant(&one);
    (0..100).for_each(|_| say(&one, &RegistrationRequest::OpenDoorbell(grant).to_bytes()));
    // That the last one was read does not say that it was answered; those before it were.
    say(&one, &RegistrationRequest::NewEndpoint.to_bytes());
    until_heard(&one);
    let answers: Vec<_> = (0..100).map(|_| hear(&one)).collect();
    let doorbells = answers
        .iter()
        .filter(|answer| **answer == Some(RegistrationAnswer::Doorbell(grant)))
        .count();
    let none = answers
        .iter()
        .filter(|answer| **answer == Some(RegistrationAnswer::NoDoorbell(grant)))
        .count();
    assert_eq!(doorbells + none, 100);
    assert_eq!(doorbells, 8, "unread doorbells");
    assert!(matches!(hear(&one), Some(RegistrationAnswer::Endpoint { .. })));
    say(&one, &RegistrationRequest::OpenDoorbell(grant).to_bytes());
    assert_eq!(hear(&one), Some(RegistrationAnswer::Doorbell(grant)), "who reads gets one");
}
