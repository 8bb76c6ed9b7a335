//! Random messages among endpoints of several hosts, under the checker of the promise about
//! messages (`workload::messages`).

use super::*;
use fabric::Done;
use workload::messages::MessageChecker;

/// The requests of one endpoint.
#[derive(Default)]
struct Party {
    /// The messages that were sent, kept until their completion.
    sent: Vec<Box<[u8]>>,
    sends: usize,
    sends_ended: usize,
    /// Buffers of receives, by context.
    places: HashMap<u64, Vec<u8>>,
    receives: u64,
}

impl Party {
    /// Whether it could be sent now.
    fn send(&mut self, from: &mut Endpoint, to: Address, number: u64, bytes: Box<[u8]>) -> bool {
        match send(from, to, number, &bytes) {
            Ok(()) => {
                self.sent.push(bytes);
                self.sends += 1;
                true
            }
            Err(SendError::Busy) => false,
            Err(other) => panic!("{other}"),
        }
    }
}

const LENGTHS: [usize; 8] = [0, 8, 216, 217, 5000, 16_384, 65_537, 150_000];

fn length(random: &mut Random) -> usize {
    let most = LENGTHS[random.below(8) as usize];
    most - (random.below(3) as usize).min(most)
}

/// The events meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Nothing,
    Breaks,
    HandOvers,
}

impl Trouble {
    fn happen(self, world: &mut World, random: &mut Random) {
        if self == Self::Nothing || random.below(300) != 0 {
            return;
        }
        let which = random.below(world.hosts.len() as u64) as usize;
        match (self, random.below(4)) {
            (Self::HandOvers, 0) => world.almost_hand_over(which),
            (Self::HandOvers, _) => world.hand_over(which),
            _ => world.lose_all(),
        }
    }
}

/// Each tag is the number of the message of its pair.
fn exchange(seed: u64, (hosts, cores): (usize, usize), trouble: Trouble) {
    const EACH: usize = 2;
    const MESSAGES: u64 = 40;
    let mut world = World::with_cores(cores, hosts, EACH, seed);
    world.join();
    let mut random = Random::new(seed + 1);
    let all: Vec<_> = (0..hosts).flat_map(|h| (0..EACH).map(move |e| (h, e))).collect();
    let mut parties: HashMap<(usize, usize), Party> = HashMap::new();
    let names: HashMap<_, _> = all.iter().map(|it| (world.address(it.0, it.1), *it)).collect();
    let mut checker = MessageChecker::default();
    let expected = MESSAGES * all.len() as u64 * (all.len() as u64 - 1);
    let mut steps = 0;
    while checker.count() < expected || parties.values().any(|it| it.sends_ended < it.sends) {
        steps += 1;
        assert!(
            steps < 300_000,
            "{} of {expected}: {:?}",
            checker.count(),
            world.hosts[0].cores[0].room.counters()
        );
        trouble.happen(&mut world, &mut random);
        for &me in &all {
            let to = all[random.below(all.len() as u64) as usize];
            let number = checker.next(me, to);
            let party = parties.entry(me).or_default();
            if to != me && number < MESSAGES {
                let address = world.address(to.0, to.1);
                let length = length(&mut random);
                let bytes = content(number, length).into_boxed_slice();
                if party.send(&mut world.hosts[me.0].endpoints[me.1], address, number, bytes) {
                    checker.sent(me, to, length);
                }
            }
            if party.places.len() < 4 {
                let endpoint = &mut world.hosts[me.0].endpoints[me.1];
                party.receives += 1;
                let place = party.places.entry(party.receives).or_insert(vec![0; 150_000]);
                ask(endpoint, None, party.receives, place);
            }
        }
        world.step();
        for &me in &all {
            let party = parties.entry(me).or_default();
            for completion in ended(&mut world.hosts[me.0].endpoints[me.1]) {
                assert_eq!(completion.failure, None, "{completion:?}");
                let Done::Receive { source, data, .. } = completion.done else {
                    party.sends_ended += 1;
                    continue;
                };
                let place = party.places.remove(&completion.context.0).expect("it was asked for");
                let number = completion.tag;
                assert_eq!(data, Some(!number));
                let (pair, bytes) = ((names[&source], me), &place[..completion.bytes]);
                let came = checker.received(pair, completion.context.0, number, bytes);
                came.unwrap_or_else(|breach| panic!("seed {seed}: {breach}"));
            }
        }
    }
    world.run(200);
    assert_eq!((checker.count(), checker.finish()), (expected, Ok(())));
    for Core { room, carrier, .. } in world.hosts.iter_mut().flat_map(|it| &mut it.cores) {
        let counters = room.counters();
        // The successor's counters begin anew.
        let sent = counters.sent > 0 || trouble == Trouble::HandOvers;
        assert!(counters.nonsense == 0 && sent, "{counters:?}");
        room.end(carrier);
        assert!(carrier.bodies.is_empty(), "{} buffers are left", carrier.bodies.len());
    }
    assert_eq!(world.unanswered(), 0);
}

#[test]
fn messages_of_all_lengths_arrive_once_and_in_order() {
    for seed in 0..3 {
        exchange(seed, (2, 1), Trouble::Nothing);
    }
    exchange(10, (3, 1), Trouble::Nothing);
}

#[test]
fn also_when_sessions_break_again_and_again() {
    for seed in 20..28 {
        exchange(seed, (2, 1), Trouble::Breaks);
    }
    exchange(30, (3, 1), Trouble::Breaks);
}

/// Which of two gateways has a pair's messages is the pair's; both know which hosts there are.
#[test]
fn also_by_two_gateways_on_each_host() {
    for seed in 40..44 {
        let trouble = if seed % 2 == 0 { Trouble::Breaks } else { Trouble::Nothing };
        exchange(seed, (2, 2), trouble);
    }
    exchange(50, (3, 2), Trouble::Breaks);
}

/// Nodes hand over to others in the middle of everything, and some of those are lost before.
#[test]
fn also_when_nodes_hand_over_again_and_again() {
    for seed in 60..68 {
        exchange(seed, (2, 1), Trouble::HandOvers);
    }
    exchange(70, (3, 1), Trouble::HandOvers);
    exchange(71, (3, 2), Trouble::HandOvers);
}
