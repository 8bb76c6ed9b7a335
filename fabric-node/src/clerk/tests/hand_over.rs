//! VMs whose node another process goes on in the place of: QEMU's connection is the same.

use super::*;
use crate::hand_over::DoorState;
use crate::testing::{adopted, taken};

impl House {
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
    let house = House::new(3);
    let (one, two) = (house.plug("one"), house.plug("two"));
    let (desk, other) = (one.desk(), two.desk());
    let [mine, dead] = [(); 2].map(|()| desk.open().unwrap().unwrap());
    assert!(house.server.remove_vf("two"), "who is in stays");
    let house = house.hand_over(3);
    let life =
        |held: &Held| one.region.life(held.seat.slot).unwrap().is_live(held.seat.incarnation);
    assert!(life(&mine) && life(&dead));
    // Its doorbell reaches who goes on, which knows its tickets and its turns.
    assert_eq!(desk.hello().unwrap(), Reply::Done);
    let was = dead.seat;
    drop(dead);
    let [third, next] = [(); 2].map(|()| desk.open().unwrap().unwrap());
    assert_eq!((next.seat.slot, next.seat.incarnation), (was.slot, was.incarnation + 1));
    assert!(other.open().unwrap().is_err(), "its way in is gone");
    // What is asked while nobody moves is answered then; its part is its own all the time.
    let house = std::thread::scope(|scope| {
        let had = taken(&house.server);
        let asks = scope.spawn(|| desk.close(third));
        let path = house.home.path().join("fabric");
        let server = adopted(&path, &blue(3), had).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert!(!asks.is_finished(), "nobody answers");
        let House { server: before, home } = house;
        std::mem::forget(before);
        server.answer().unwrap();
        asks.join().unwrap();
        House { server, home }
    });
    house.until(2);
    assert!(Vm::new(&house.path("one")).is_none(), "a vf is one VM's");
    one.connection.shutdown(std::net::Shutdown::Both).unwrap();
    house.until(0);
    let again = house.plug("one");
    assert_eq!((again.number, again.desk().hello().unwrap()), (1, Reply::Done));
    // Whose the sockets are tidies them up.
    let path = house.path("one");
    drop(house.server);
    assert!(!path.exists());
    [mine, next].into_iter().for_each(Held::give_up);
}

#[test]
fn a_state_of_vms_that_contradicts_itself_is_refused() {
    let house = House::new(3);
    let (one, _two) = (house.plug("one"), house.plug("two"));
    let held = one.desk().open().unwrap().unwrap();
    type Change = fn(&mut DoorState);
    let changes: [(Change, &str); 8] = [
        (|it| it.vfs[1].name = "one".to_owned(), "twice"),
        (|it| it.vfs[0].domain = "red".to_owned(), "no domain"),
        (|it| it.vfs[0].vm.as_mut().unwrap().clerk.part = 0, "is none"),
        (|it| it.vfs[0].vm.as_mut().unwrap().clerk.part = 64, "is none"),
        (|it| it.vfs[0].vm.as_mut().unwrap().clerk.part = 2, "one part"),
        (|it| it.vfs[0].vm.as_mut().unwrap().clerk.turns.truncate(3), "other entries"),
        (|it| it.vfs[0].vm.as_mut().unwrap().clerk.boots_over = vec![0; 9], "more starts"),
        (|it| it.vfs[0].vm.as_mut().unwrap().clerk.held.clear(), "nobody's"),
    ];
    let path = house.home.path().join("fabric");
    for (change, says) in changes {
        let (mut state, luggage) = taken(&house.server);
        change(&mut state);
        let error = adopted(&path, &blue(3), (state, luggage)).map(drop).expect_err(says);
        assert!(error.to_string().contains(says), "{says}: {error}");
    }
    house.server.answer().unwrap();
    assert!(house.path("one").exists() && house.path("two").exists(), "they are not theirs");
    assert_eq!(one.desk().hello().unwrap(), Reply::Done);
    held.give_up();
}
