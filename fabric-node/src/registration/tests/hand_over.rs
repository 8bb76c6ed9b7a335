//! A registration server that goes on in another process; here in the same one.

use handover::DescriptorNumber;
use rustix::io::Errno;

use super::sleep::{Sleeper, play};
use super::*;
use crate::hand_over::{GatewayDoorbellState, GrantState, RegistrationState};
use crate::testing::{adopted, taken};
use fabric::Doze;

impl TestNode {
    /// Another server goes on in this one's place, which is as if its process had ended.
    pub(super) fn hand_over(self, meanwhile: impl FnOnce(&RegistrationServer)) -> Self {
        let max = self.report().endpoints_max as u16;
        let server = adopted(&self.path, &settings("blue", KEY, max), taken(&self.server)).unwrap();
        meanwhile(&server);
        let Self { server: before, path, _home } = self;
        std::mem::forget(before);
        server.answer().unwrap();
        Self { server, path, _home }
    }
}

fn hears_nothing(socket: &OwnedFd) {
    assert_eq!(recv(socket, &mut [0; 1], RecvFlags::DONTWAIT), Err(Errno::AGAIN));
}

#[test]
fn members_stay_and_what_they_had_is_theirs() {
    let node = node(4);
    let (one, other) = (member(&node), member(&node));
    let grants = [new_grant(&one), new_grant(&other)];
    say(&one, &RegistrationRequest::OpenDoorbell(grants[0]).to_bytes());
    assert_eq!(hear(&one), Some(RegistrationAnswer::Doorbell(grants[0])));
    let unregistered = call(&node.path);
    let node = node.hand_over(|server| {
        server.believe_connections();
        // Sent while the node is paused, and answered by the successor.
        say(&other, &RegistrationRequest::NewEndpoint.to_bytes());
        say(&other, &RegistrationRequest::Process(grants[0]).to_bytes());
        std::thread::sleep(Duration::from_millis(20));
        hears_nothing(&other);
    });
    assert!(
        matches!(hear(&other), Some(RegistrationAnswer::Endpoint { grant, .. }) if grant.slot == 2)
    );
    let process = std::process::id();
    assert_eq!(hear(&other), Some(RegistrationAnswer::Process { grant: grants[0], process }));
    let report = node.report();
    assert_eq!((report.members, report.endpoints_live), (2, 3));
    // By the write end, which is the same.
    say(&other, &RegistrationRequest::Ring { grant: grants[0], wants_write_end: true }.to_bytes());
    assert_eq!(hear(&other), Some(RegistrationAnswer::DoorbellWriteEnd(grants[0])));
    // An unregistered client may register, and new ones may connect.
    say(&unregistered, &hello("blue", KEY).to_bytes());
    assert_eq!(hear(&unregistered), Some(RegistrationAnswer::Welcome { host: 77 }));
    drop(node.join());
    // Ends are noticed as before, also by the next one.
    drop((other, unregistered));
    node.until(1, 1);
    let node = node.hand_over(|_| drop(one));
    node.until(0, 0);
    assert!(node.path.exists());
    let TestNode { server, path, _home } = node;
    drop(server);
    assert!(!path.exists(), "it is tidied up by whose it is");
}

#[test]
fn processes_that_end_meanwhile_or_later_are_noticed() {
    let node = node_that_watches_processes(2);
    let (mut departed, mut other) =
        (Victim::start(&node, "leaves"), Victim::start(&node, "bequeaths"));
    node.until(1, 1);
    let node = node.hand_over(|_| departed.kill());
    node.until(1, 1);
    let node = node.hand_over(|_| ());
    other.kill();
    node.until(0, 0);
    // Both slots have owners again.
    let member = member(&node);
    assert_eq!([new_grant(&member), new_grant(&member)].map(|grant| grant.incarnation), [2, 2]);
}

#[test]
fn no_sleeper_is_forgotten_by_a_successor() {
    const HAND_OVERS: usize = 20;
    let mut node = node(3);
    let (mut one, mut other) = (Sleeper::new(&node), Sleeper::new(&node));
    let addresses = [one.endpoint.address(), other.endpoint.address()];
    let node = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| play(&mut other, &addresses[0], false, 3));
        let ours = scope.spawn(|| play(&mut one, &addresses[1], true, 4));
        for _ in 0..HAND_OVERS {
            node = node.hand_over(|_| std::thread::sleep(Duration::from_millis(2)));
        }
        println!("{} sleeps", ours.join().unwrap() + theirs.join().unwrap());
        node
    });
    // A client without the write end asks the new server.
    let to = other.endpoint.address();
    other.ask(None);
    assert_eq!(other.endpoint.doze(), Doze::Sleep);
    let mut third = Sleeper::new(&node);
    third.send(&to);
    assert_eq!(other.wait(0).0, None);
}

#[test]
fn a_door_that_is_taken_back_goes_on() {
    let node = node(2);
    let one = member(&node);
    let grant = new_grant(&one);
    for _ in 0..3 {
        let had = taken(&node.server);
        say(&one, &RegistrationRequest::Process(grant).to_bytes());
        // The successor had it all, and is lost.
        drop(adopted(&node.path, &settings("blue", KEY, 2), had).unwrap());
        hears_nothing(&one);
        node.server.answer().unwrap();
        assert!(matches!(hear(&one), Some(RegistrationAnswer::Process { .. })));
        drop(node.join());
    }
    drop(one);
    node.until(0, 0);
}

/// A doorbell of no gateway.
const NO_DOORBELL: GatewayDoorbellState =
    GatewayDoorbellState { shared: DescriptorNumber::new(0), own: DescriptorNumber::new(0) };

/// A grant of one member.
const ANOTHER: GrantState = GrantState { slot: 0, incarnation: 1 };

#[test]
fn a_state_that_contradicts_itself_is_refused() {
    let node = node(4);
    let (one, other) = (member(&node), member(&node));
    new_grant(&one);
    new_grant(&other);
    let _unregistered = call(&node.path);
    // A client that has connected after the unregistered one, and has gone.
    drop(node.join());
    node.until(2, 2);
    let four = settings("blue", KEY, 4);
    type Change = fn(&mut RegistrationState);
    let changes: [(Change, &str); 13] = [
        (|it| it.domains[0].region.version += 1, "another layout"),
        (|it| it.domains[0].region.slots = 3, "other sizes"),
        (|it| it.domains[0].region.cells = 17, "cannot have"),
        (|it| it.domains[0].region.buffer_bytes *= 2, "length"),
        (|it| it.domains[0].doorbells.push(NO_DOORBELL), "bell"),
        (|it| it.domains.clear(), "in no domain"),
        (|it| members(it)[0].grants.clear(), "no owner"),
        (|it| members(it)[0].grants[0].slot = 3, "another owner"),
        (|it| members(it)[0].grants[0].incarnation = 2, "another owner"),
        (|it| members(it).iter_mut().for_each(|it| it.grants = vec![ANOTHER]), "another owner"),
        (|it| members(it)[0].domain = None, "unregistered"),
        (|it| members(it)[0].domain = Some("red".to_owned()), "in no domain"),
        (|it| it.callers[0].connection = DescriptorNumber::new(999), "has not arrived"),
    ];
    for (change, says) in changes {
        let (mut state, descriptors) = taken(&node.server);
        change(&mut state);
        let error = adopted(&node.path, &four, (state, descriptors)).map(drop).expect_err(says);
        assert!(error.to_string().contains(says), "{says}: {error}");
    }
    // Another configuration's domain; and a file that is no region, or may become shorter.
    let five = settings("blue", KEY, 5);
    let error = adopted(&node.path, &five, taken(&node.server)).map(drop);
    let error = error.expect_err("other sizes");
    assert!(error.to_string().contains("other sizes"), "{error}");
    let (mut state, mut descriptors) = taken(&node.server);
    let file = tempfile::tempfile().unwrap();
    state.domains[0].region.memory = descriptors.put(file.into());
    assert!(adopted(&node.path, &four, (state, descriptors)).is_err());
    // No member has noticed anything.
    node.server.answer().unwrap();
    new_grant(&one);
    assert_eq!(node.report().endpoints_live, 3);
}

/// Those of the callers that are members, with an endpoint each.
fn members(state: &mut RegistrationState) -> Vec<&mut crate::hand_over::CallerState> {
    state.callers.iter_mut().filter(|caller| caller.domain.is_some()).collect()
}
