//! VMs whose node another process goes on in the place of: QEMU's connection is the same.

use super::*;
use crate::hand_over::RegistrationState;
use crate::testing::{adopted, taken};

impl TestNode {
    fn hand_over(self, endpoints_max: u16) -> Self {
        let path = self.home.path().join("fabric");
        let server = adopted(&path, &blue(endpoints_max), taken(&self.server)).unwrap();
        let Self { server: before, home } = self;
        std::mem::forget(before);
        server.answer().unwrap();
        Self { server, home }
    }
}

#[test]
fn a_vm_keeps_its_window_and_its_endpoints() {
    let node = TestNode::new(3);
    let (one, two) = (node.plug("one"), node.plug("two"));
    let (client, other) = (one.client(), two.client());
    let [mine, dead] = [(); 2].map(|()| client.open().unwrap().unwrap());
    assert!(node.server.remove_vf("two"), "who is in stays");
    let node = node.hand_over(3);
    let life =
        |held: &HeldSlot| one.region.life(held.grant.slot).unwrap().is_live(held.grant.incarnation);
    assert!(life(&mine) && life(&dead));
    // Its doorbell reaches the new server, which knows its holders and its turns.
    assert_eq!(client.hello().unwrap(), Reply::Done);
    let was = dead.grant;
    drop(dead);
    let [third, next] = [(); 2].map(|()| client.open().unwrap().unwrap());
    assert_eq!((next.grant.slot, next.grant.incarnation), (was.slot, was.incarnation + 1));
    assert!(other.open().unwrap().is_err(), "its way in is gone");
    // A question that comes while both are paused is answered then; the VM keeps its mailbox.
    let node = std::thread::scope(|scope| {
        let had = taken(&node.server);
        let asks = scope.spawn(|| client.close(third));
        let path = node.home.path().join("fabric");
        let server = adopted(&path, &blue(3), had).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert!(!asks.is_finished(), "nobody answers");
        let TestNode { server: before, home } = node;
        std::mem::forget(before);
        server.answer().unwrap();
        asks.join().unwrap();
        TestNode { server, home }
    });
    node.until(2);
    assert!(Vm::new(&node.path("one")).is_none(), "a vf is one VM's");
    one.connection.shutdown(std::net::Shutdown::Both).unwrap();
    node.until(0);
    let again = node.plug("one");
    assert_eq!((again.number, again.client().hello().unwrap()), (1, Reply::Done));
    // Whose the sockets are tidies them up.
    let path = node.path("one");
    drop(node.server);
    assert!(!path.exists());
    [mine, next].into_iter().for_each(HeldSlot::give_up);
}

#[test]
fn a_state_of_vms_that_contradicts_itself_is_refused() {
    let node = TestNode::new(3);
    let (one, _two) = (node.plug("one"), node.plug("two"));
    let held = one.client().open().unwrap().unwrap();
    type Change = fn(&mut RegistrationState);
    let changes: [(Change, &str); 8] = [
        (|it| it.vfs[1].name = "one".to_owned(), "twice"),
        (|it| it.vfs[0].domain = "red".to_owned(), "no domain"),
        (|it| it.vfs[0].vm.as_mut().unwrap().mailbox.number = 0, "number that does not exist"),
        (|it| it.vfs[0].vm.as_mut().unwrap().mailbox.number = 64, "number that does not exist"),
        (|it| it.vfs[0].vm.as_mut().unwrap().mailbox.number = 2, "one mailbox"),
        (|it| it.vfs[0].vm.as_mut().unwrap().mailbox.turns.truncate(3), "other entries"),
        (|it| it.vfs[0].vm.as_mut().unwrap().mailbox.boots_over = vec![0; 9], "more starts"),
        (|it| it.vfs[0].vm.as_mut().unwrap().mailbox.held.clear(), "no owner"),
    ];
    let path = node.home.path().join("fabric");
    for (change, says) in changes {
        let (mut state, descriptors) = taken(&node.server);
        change(&mut state);
        let error = adopted(&path, &blue(3), (state, descriptors)).map(drop).expect_err(says);
        assert!(error.to_string().contains(says), "{says}: {error}");
    }
    node.server.answer().unwrap();
    assert!(node.path("one").exists() && node.path("two").exists(), "they are not theirs");
    assert_eq!(one.client().hello().unwrap(), Reply::Done);
    held.give_up();
}
