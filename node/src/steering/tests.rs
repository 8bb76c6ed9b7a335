//! Steering over simulated sidecores: each queue brings a load of its own wherever it is.

use random::Random;

use super::*;

const LOOK_NS: u64 = 100_000_000;

/// Queues that want so many thousandths of a sidecore each, and where they are.
struct World {
    steering: Steering,
    sidecores: usize,
    wants: Vec<u32>,
    places: Vec<usize>,
    /// Moves that were asked for.
    moves: Vec<Move>,
    /// Moves are refused.
    stuck: bool,
    /// And those of this queue in any case.
    slow: Option<usize>,
    random: Random,
    noise: u32,
}

impl World {
    fn new(sidecores: usize, min: usize, max: usize, wants: &[u32]) -> Self {
        let steering = Steering::new(sidecores, min..=max, min);
        let places = (0..wants.len()).map(|queue| queue % steering.active()).collect();
        let (wants, moves, stuck) = (wants.to_vec(), Vec::new(), false);
        Self {
            steering,
            sidecores,
            wants,
            places,
            moves,
            stuck,
            slow: None,
            random: Random::new(7),
            noise: 0,
        }
    }

    fn below(&mut self, bound: u32) -> u32 {
        self.random.below(u64::from(bound.max(1))) as u32
    }

    /// A look: a sidecore gives each of its queues what it wants, or its part of all there is.
    fn look(&mut self) -> usize {
        let noise: Vec<_> = (0..self.wants.len()).map(|_| self.below(self.noise)).collect();
        let wants = |queue: usize| u64::from(self.wants[queue] + noise[queue]);
        let mut cores = vec![CoreLoad::default(); self.sidecores];
        let mut queues = Vec::new();
        for (queue, &sidecore) in self.places.iter().enumerate() {
            let here = |other: &usize| self.places[*other] == sidecore;
            let all: u64 = (0..self.wants.len()).filter(here).map(wants).sum();
            let share = wants(queue) * 1000 / all.max(1000);
            cores[sidecore].busy_ns += share * LOOK_NS / 1000;
            let id = QueueId { disk: queue as u64 / 4, queue: queue % 4 };
            queues.push(QueueLoad { id, sidecore, requests: share * 50 });
        }
        let moves = self.steering.look(&NodeLoad { elapsed_ns: LOOK_NS, cores, queues });
        assert!(moves.len() <= MOVES_MAX);
        for made in &moves {
            assert!(made.to < self.steering.active());
            let queue = made.id.disk as usize * 4 + made.id.queue;
            assert_ne!(self.places[queue], made.to, "it is there");
            if self.stuck || self.slow == Some(queue) {
                self.steering.stayed(made.id);
            } else {
                self.places[queue] = made.to;
            }
        }
        self.moves.extend(&moves);
        moves.len()
    }

    fn looks(&mut self, count: usize) -> usize {
        (0..count).map(|_| self.look()).sum()
    }

    fn load(&self, sidecore: usize) -> u32 {
        let here = self.places.iter().zip(&self.wants);
        here.filter(|(place, _)| **place == sidecore).map(|(_, want)| want).sum()
    }

    fn limits(&self, min: usize, max: usize) {
        let active = self.steering.active();
        assert!((min..=max).contains(&active), "{active} of {min}..={max}");
    }
}

#[test]
fn a_busy_queue_moves_to_an_idle_sidecore() {
    // Both active for ever; two busy queues came to the same one.
    let mut world = World::new(3, 2, 2, &[600, 0, 600, 0]);
    assert_eq!(world.places, [0, 1, 0, 1]);
    assert_eq!(world.looks(50), 1, "one move does it");
    assert_eq!((world.load(0), world.load(1)), (600, 600));
    assert_eq!(world.places[1], 1, "who does nothing stays");
}

#[test]
fn a_single_busy_queue_stays_at_any_load() {
    let mut world = World::new(4, 1, 4, &[1_500]);
    assert_eq!(world.looks(200), 0);
    assert_eq!(world.steering.active(), 1, "another sidecore could not help it");
    assert_eq!(world.steering.loads()[0], 999);
}

#[test]
fn active_sidecores_follow_the_load_up_and_down_between_the_limits() {
    let mut world = World::new(6, 1, 4, &[500; 8]);
    world.looks(100);
    assert_eq!(world.steering.active(), 4, "as many as may be");
    assert_eq!((0..4).map(|core| world.load(core)).max(), Some(1_000), "{:?}", world.places);
    assert_eq!((world.load(4), world.load(5)), (0, 0));
    let moved = world.moves.len();
    assert_eq!(world.looks(200), 0, "and then it stands still");
    // The guests rest.
    world.wants = vec![5; 8];
    world.looks(20);
    assert_eq!(world.steering.active(), 4, "a pause is no end");
    world.looks(200);
    assert_eq!(world.steering.active(), 1);
    assert!(world.places.iter().all(|place| *place == 0), "{:?}", world.places);
    assert!(world.moves.len() <= moved + 12, "each is gathered once or twice");
}

#[test]
fn more_queues_than_a_batch_are_gathered_batch_by_batch() {
    let mut world = World::new(2, 1, 2, &[60; 40]);
    // All of them came while two were active.
    world.steering.active = 2;
    world.places = (0..40).map(|queue| queue % 2).collect();
    world.wants = vec![1; 40];
    let batches: Vec<_> = (0..60).map(|_| world.look()).filter(|moves| *moves > 0).collect();
    assert_eq!(batches, [8, 8, 4]);
    assert!(world.places.iter().all(|place| *place == 0));
}

#[test]
fn load_of_peers_stays_where_it_is_and_counts() {
    // Sidecore 0 serves peers, and one small queue: the busy one of sidecore 1 does not go there,
    // and the small one is not the peers' load.
    let mut steering = Steering::new(2, 2..=2, 2);
    let queue = |queue, sidecore, requests| QueueLoad {
        id: QueueId { disk: 1, queue },
        sidecore,
        requests,
    };
    for _ in 0..50 {
        let cores = vec![
            CoreLoad { busy_ns: LOOK_NS * 9 / 10, fixed_requests: 9_000 },
            CoreLoad { busy_ns: LOOK_NS / 10, fixed_requests: 0 },
        ];
        let queues = vec![queue(0, 0, 100), queue(1, 1, 1_000)];
        let look = NodeLoad { elapsed_ns: LOOK_NS, cores, queues };
        assert_eq!(steering.look(&look), []);
    }
}

#[test]
fn a_queue_that_cannot_be_moved_is_not_asked_all_the_time() {
    let mut world = World::new(2, 2, 2, &[600, 0, 600, 0]);
    world.stuck = true;
    let asked = world.looks(400);
    // Two candidates, each of which rests.
    assert!((10..=60).contains(&asked), "{asked} moves in 400 looks");
}

/// On slow storage there is always something outstanding: such a queue stays on a sidecore that is
/// no longer active.
#[test]
fn a_queue_that_stays_on_an_inactive_sidecore_keeps_no_other_from_moving() {
    for seed in 1..100u64 {
        let mut world = World::new(3, 2, 3, &[5, 0, 0, 0, 0]);
        world.random = Random::new(seed);
        for queue in 1..5 {
            world.wants[queue] = 150 + world.below(100);
        }
        (world.places, world.slow, world.noise) = (vec![2, 0, 0, 0, 0], Some(0), 20);
        world.looks(100);
        assert_eq!((world.steering.active(), world.places[0]), (2, 2), "seed {seed}");
        let (first, second) = (world.load(0), world.load(1));
        assert!(first.abs_diff(second) < GAP_MAX, "seed {seed}: {first} and {second}");
        let asked = world.moves.iter().filter(|made| made.id.disk == 0 && made.id.queue == 0);
        let asked = asked.count();
        assert!((4..=6).contains(&asked), "seed {seed}: asked {asked} times in 100 looks");
        world.slow = None;
        world.looks(30);
        assert!(world.places[0] < 2, "seed {seed}: it goes as soon as it can");
    }
}

/// Loads that go up and down by themselves: moves are rare beside looks, and no queue goes to and
/// fro while the loads change only by noise.
#[test]
fn noise_moves_nothing_for_long() {
    for seed in 1..200u64 {
        let mut world = World::new(8, 1, 8, &[]);
        world.random = Random::new(seed);
        let queues = 1 + world.below(24) as usize;
        world.wants = (0..queues).map(|_| world.below(700)).collect();
        world.places = vec![0; queues];
        world.noise = 60;
        world.looks(300);
        world.limits(1, 8);
        let late = world.looks(300);
        assert!(late <= queues / 4, "seed {seed}: {late} moves of {queues} queues when settled");
        let high = (0..8).map(|core| world.load(core)).max().expect("eight");
        let total: u32 = world.wants.iter().sum();
        let largest = world.wants.iter().max().copied().unwrap_or(0);
        let even = total / world.steering.active() as u32;
        assert!(high <= even + largest + 300, "seed {seed}: {high} of {total}, {even} each");
    }
}

/// Under any load the promises about limits and batches hold ([`World::look`] checks them).
#[test]
fn any_load_is_steered_within_the_limits() {
    for seed in 1..100u64 {
        let mut world = World::new(6, 2, 5, &[0; 20]);
        world.random = Random::new(seed);
        for _ in 0..100 {
            let queue = world.below(20) as usize;
            world.wants[queue] = world.below(1_200);
            world.stuck = world.below(5) == 0;
            world.looks(7);
            world.limits(2, 5);
        }
        world.stuck = false;
        world.wants = vec![0; 20];
        world.looks(300);
        assert_eq!(world.steering.active(), 2);
        assert!(world.places.iter().all(|place| *place < 2));
    }
}
