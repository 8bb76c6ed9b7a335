//! A door that another process goes on with; here in the same one.

use rustix::io::Errno;

use super::sleep::{Sleeper, play};
use super::*;
use crate::hand_over::DoorState;
use crate::testing::{adopted, taken};
use fabric::Doze;

impl House {
    /// Another server goes on in this one's place, which is as if its process had ended.
    pub(super) fn hand_over(self, meanwhile: impl FnOnce(&Server)) -> Self {
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
    let house = house(4);
    let (one, other) = (member(&house), member(&house));
    let seats = [new_seat(&one), new_seat(&other)];
    say(&one, &Request::HangBell(seats[0]).to_bytes());
    assert_eq!(hear(&one), Some(Answer::Bell(seats[0])));
    let stranger = call(&house.path);
    let house = house.hand_over(|server| {
        server.believe_connections();
        // Said while nobody moves, and answered by who goes on.
        say(&other, &Request::NewEndpoint.to_bytes());
        say(&other, &Request::Process(seats[0]).to_bytes());
        std::thread::sleep(Duration::from_millis(20));
        hears_nothing(&other);
    });
    assert!(matches!(hear(&other), Some(Answer::Endpoint { seat, .. }) if seat.slot == 2));
    let process = std::process::id();
    assert_eq!(hear(&other), Some(Answer::Process { seat: seats[0], process }));
    let report = house.report();
    assert_eq!((report.members, report.endpoints_live), (2, 3));
    // By the bell's rope, which is the same.
    say(&other, &Request::Ring { seat: seats[0], wants_rope: true }.to_bytes());
    assert_eq!(hear(&other), Some(Answer::Rope(seats[0])));
    // Strangers may speak, and who calls is heard.
    say(&stranger, &hello("blue", KEY).to_bytes());
    assert_eq!(hear(&stranger), Some(Answer::Welcome { host: 77 }));
    drop(house.join());
    // Ends are noticed as before, also by the next one.
    drop((other, stranger));
    house.until(1, 1);
    let house = house.hand_over(|_| drop(one));
    house.until(0, 0);
    assert!(house.path.exists());
    let House { server, path, _home } = house;
    drop(server);
    assert!(!path.exists(), "it is tidied up by whose it is");
}

#[test]
fn processes_that_end_meanwhile_or_later_are_noticed() {
    let house = real_house(2);
    let (mut leaver, mut other) =
        (Victim::start(&house, "leaves"), Victim::start(&house, "bequeaths"));
    house.until(1, 1);
    let house = house.hand_over(|_| leaver.kill());
    house.until(1, 1);
    let house = house.hand_over(|_| ());
    other.kill();
    house.until(0, 0);
    // Both slots are somebody's again.
    let member = member(&house);
    assert_eq!([new_seat(&member), new_seat(&member)].map(|seat| seat.incarnation), [2, 2]);
}

#[test]
fn nobody_who_sleeps_is_forgotten_by_who_goes_on() {
    const HAND_OVERS: usize = 20;
    let mut house = house(3);
    let (mut one, mut other) = (Sleeper::new(&house), Sleeper::new(&house));
    let addresses = [one.endpoint.address(), other.endpoint.address()];
    let house = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| play(&mut other, &addresses[0], false, 3));
        let ours = scope.spawn(|| play(&mut one, &addresses[1], true, 4));
        for _ in 0..HAND_OVERS {
            house = house.hand_over(|_| std::thread::sleep(Duration::from_millis(2)));
        }
        println!("{} sleeps", ours.join().unwrap() + theirs.join().unwrap());
        house
    });
    // Who has no rope of the other asks the node that there is now.
    let to = other.endpoint.address();
    other.ask(None);
    assert_eq!(other.endpoint.doze(), Doze::Sleep);
    let mut third = Sleeper::new(&house);
    third.send(&to);
    assert_eq!(other.wait(0).0, None);
}

#[test]
fn a_door_that_is_taken_back_goes_on() {
    let house = house(2);
    let one = member(&house);
    let seat = new_seat(&one);
    for _ in 0..3 {
        let had = taken(&house.server);
        say(&one, &Request::Process(seat).to_bytes());
        // The successor had it all, and is lost.
        drop(adopted(&house.path, &settings("blue", KEY, 2), had).unwrap());
        hears_nothing(&one);
        house.server.answer().unwrap();
        assert!(matches!(hear(&one), Some(Answer::Process { .. })));
        drop(house.join());
    }
    drop(one);
    house.until(0, 0);
}

#[test]
fn a_state_that_contradicts_itself_is_refused() {
    let house = house(4);
    let (one, other) = (member(&house), member(&house));
    new_seat(&one);
    new_seat(&other);
    let _stranger = call(&house.path);
    // Who comes behind the stranger, and has gone.
    drop(house.join());
    house.until(2, 2);
    let four = settings("blue", KEY, 4);
    type Change = fn(&mut DoorState);
    let changes: [(Change, &str); 13] = [
        (|it| it.domains[0].region.version += 1, "another layout"),
        (|it| it.domains[0].region.slots = 3, "other sizes"),
        (|it| it.domains[0].region.cells = 17, "cannot have"),
        (|it| it.domains[0].region.buffer_bytes *= 2, "length"),
        (|it| it.domains[0].bells.push((0, 0)), "bell"),
        (|it| it.domains.clear(), "in no domain"),
        (|it| members(it)[0].seats.clear(), "nobody's"),
        (|it| members(it)[0].seats = vec![(3, 1)], "another one's"),
        (|it| members(it)[0].seats[0].1 = 2, "another one's"),
        (|it| members(it).iter_mut().for_each(|it| it.seats = vec![(0, 1)]), "another one's"),
        (|it| members(it)[0].domain = None, "stranger"),
        (|it| members(it)[0].domain = Some("red".to_owned()), "in no domain"),
        (|it| it.callers[0].connection = 999, "not found"),
    ];
    for (change, says) in changes {
        let (mut state, luggage) = taken(&house.server);
        change(&mut state);
        let error = adopted(&house.path, &four, (state, luggage)).map(drop).expect_err(says);
        assert!(error.to_string().contains(says), "{says}: {error}");
    }
    // Another configuration's domain; and a file that is no region, or may become shorter.
    let five = settings("blue", KEY, 5);
    let error = adopted(&house.path, &five, taken(&house.server)).map(drop);
    let error = error.expect_err("other sizes");
    assert!(error.to_string().contains("other sizes"), "{error}");
    let (mut state, mut luggage) = taken(&house.server);
    let file = tempfile::tempfile().unwrap();
    state.domains[0].region.memory = luggage.put(file.into());
    assert!(adopted(&house.path, &four, (state, luggage)).is_err());
    // Nobody has noticed anything.
    house.server.answer().unwrap();
    new_seat(&one);
    assert_eq!(house.report().endpoints_live, 3);
}

/// Those of the callers that are members, with an endpoint each.
fn members(state: &mut DoorState) -> Vec<&mut crate::hand_over::CallerState> {
    state.callers.iter_mut().filter(|caller| caller.domain.is_some()).collect()
}
