//! The protocol in a small world: three members, a registry, two clients, and all that can happen.
//!
//! Members are the crate's own. Storage, network, registry, clients and clocks are made up here; a
//! member's outputs about its storage are carried out at once, all other events wait to be chosen.

pub mod disk;
pub mod world;

use replica::{Member, Message, Record, RequestId, Rule, Timing};
use stateright::{Model, Property};
use world::{Action, Budget, Plan, World};

/// The times of the protocol in ticks of the model's one clock.
pub const TIMING: Timing = Timing { lease_ns: 2, patience_ns: 2, silence_ns: 1 };

/// The content of a block.
pub type Data = u8;

pub type ModelMember = Member<Data>;
pub type ModelMessage = Message<Data>;

/// A case: what the clients do, what may fail, and which rule is broken.
#[derive(Clone, Debug)]
pub struct Case {
    pub members: u8,
    /// Which members are in sync at first.
    pub in_sync: u8,
    pub plans: [Vec<Plan>; 2],
    pub budget: Budget,
    pub broken: Option<Rule>,
    /// Ticks of the clock.
    pub ticks: u64,
}

impl Model for Case {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        world.actions(self, actions);
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        world.act(self, &action);
        (world != *last).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("reads and writes are in one order", |_, world: &World| {
                world.is_linearizable()
            }),
            Property::always("one member answers", |_, world: &World| world.servers() <= 1),
            Property::always("what was flushed stays", |_, world: &World| world.keeps_flushed()),
            Property::always("it serves again", |case: &Self, world: &World| {
                world.serves_again(case)
            }),
            Property::sometimes("all requests were answered", |_, world: &World| {
                world.is_done()
            }),
            Property::sometimes("a backup has taken over", |_, world: &World| {
                world.registry.primary != 0
            }),
        ]
    }
}

/// The registry's record at first.
pub fn first_record(case: &Case) -> Record {
    Record::first(0, (0..case.in_sync).map(|id| (id, 1)).collect())
}

pub fn request(client: usize, number: usize) -> RequestId {
    let client = u8::try_from(client).expect("few clients");
    RequestId { client, number: u32::try_from(number).expect("few requests") }
}
