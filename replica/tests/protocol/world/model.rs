//! The world as a model whose states are all visited.
//!
//! Without faults there is one order: the first entry of the wire that can be carried out is, and
//! time passes when none is left. Each fault is a step out of this order, at any point of it, and
//! the case says how many there may be of each kind. Messages that are held back come at any later
//! point.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use replica::RECOVERY_MARGIN;
use stateright::{Checker, HasDiscoveries, Model, Property};

use super::action::{Action, Budget};
use super::fair::FAIR_TICKS;
use super::{Case, Post, World};

/// A case, and what is known of its states.
#[derive(Clone)]
pub(crate) struct Explored {
    pub(crate) case: Case,
    /// The ticks until all is well, by the hash of a world without faults.
    fair: Arc<Mutex<HashMap<u64, u32>>>,
}

/// No promise is broken in any state.
pub(crate) const PROMISES: &str = "one member answers, in one order, and nothing flushed is lost";

/// From each state the fixed schedule leads to a volume that is served by all its members.
pub(crate) const SERVES_AGAIN: &str = "it is served again when faults have ended";

impl Explored {
    pub(crate) fn new(case: Case) -> Self {
        Self { case, fair: Arc::default() }
    }

    /// Whether the fixed schedule ends well. A state with entries on the wire leads to one without
    /// by the same schedule, so it need not be looked at.
    fn serves_again(&self, world: &World) -> bool {
        if world.deliverable().next().is_some() || world.breach(&self.case).is_some() {
            return true;
        }
        let mut world = world.clone();
        world.heal(&self.case);
        world.forget();
        let (mut met, mut left) = (Vec::new(), None);
        for ticks in 0..=FAIR_TICKS {
            if world.breach(&self.case).is_some() {
                return false;
            }
            let mut hasher = DefaultHasher::new();
            world.hash(&mut hasher);
            let hash = hasher.finish();
            let known = self.fair.lock().expect("nothing panics with it").get(&hash).copied();
            let is_over = world.is_lost() || world.is_spoiled(&self.case);
            let is_well = world.is_well(&self.case) || is_over;
            if let Some(more) = known.or(is_well.then_some(0)) {
                left = Some(ticks + more);
                break;
            }
            met.push(hash);
            world.fair_tick(&self.case);
            world.forget();
        }
        let Some(all) = left.filter(|all| *all <= FAIR_TICKS) else { return false };
        let mut fair = self.fair.lock().expect("nothing panics with it");
        fair.extend((0..).zip(met).map(|(ticks, hash)| (hash, all - ticks)));
        true
    }
}

impl World {
    /// Forgets what has no influence any more when faults have ended.
    fn forget(&mut self) {
        self.budget = Budget::default();
        self.past.clear();
        self.over.clear();
        self.asked = None;
    }
}

impl Model for Explored {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.case)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.breach(&self.case).is_some() {
            return;
        }
        let first = world.deliverable().next();
        let budget = &world.budget;
        if first.is_none() || budget.haste > 0 {
            actions.push(Action::Tick);
        }
        let is_request = |at: usize| matches!(world.wire[at], Post::Request(..));
        if self.case.is_slow || world.deliverable().all(is_request) {
            world.sends(&self.case, actions);
        }
        if first.is_none() || !self.case.is_calm {
            world.faults(&self.case, actions);
        }
        // Faults end when all else has.
        if first.is_some() {
            actions.retain(|action| {
                let ends = Action::RegistryAway(false);
                let is_end = matches!(action, Action::Heal(..) | Action::Resume(_));
                !is_end && !matches!(action, Action::Start(..)) && *action != ends
            });
        }
        if let Some(at) = first {
            let is_swap = matches!(world.wire[at], Post::Swap(..) | Post::Remake(..));
            if is_swap && budget.unknown > 0 {
                actions.push(Action::DeliverUntold(at));
            }
            if budget.delays > 0 {
                actions.push(Action::Hold(at));
            }
            actions.push(Action::Deliver(at));
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        if action == Action::Tick && world.deliverable().next().is_some() {
            world.budget.haste -= 1;
        }
        world.act(&self.case, action);
        Some(world)
    }

    fn within_boundary(&self, world: &World) -> bool {
        world.registry.epoch % RECOVERY_MARGIN <= self.case.epochs
            && world.nodes.iter().all(|node| node.disk.counter <= self.case.counters)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(PROMISES, |model: &Self, world: &World| {
                world.breach(&model.case).is_none()
            }),
            Property::always(SERVES_AGAIN, |model: &Self, world: &World| model.serves_again(world)),
        ]
    }
}

/// Visits all states of a case, as far as the time goes. Says whether that was all of them, and
/// gives the names of the promises that are broken.
pub(crate) fn explore(name: &str, case: Case, time: Duration) -> (bool, Vec<&'static str>) {
    let begin = Instant::now();
    let checker = Explored::new(case)
        .checker()
        .threads(2)
        .timeout(time)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_dfs()
        .join();
    let is_all = begin.elapsed() < time;
    let seconds = begin.elapsed().as_secs_f64();
    let end = if is_all { "ended" } else { "not ended" };
    let (states, different) = (checker.state_count(), checker.unique_state_count());
    let depth = checker.max_depth();
    println!("{name}: {different} states by {states} steps, depth {depth}, {seconds:.1} s, {end}");
    let found = checker.discoveries();
    for (promise, path) in &found {
        println!("not kept: {promise}: {:?}", path.last_state().broken);
        for action in path.clone().into_actions() {
            println!("    {action:?}");
        }
    }
    (is_all, found.into_keys().collect())
}
