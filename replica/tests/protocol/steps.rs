//! Steps of tests that play one order of events.

use crate::world::action::Action;
use crate::world::{Case, World};

/// Steps until something holds that comes by itself.
const STEPS_MAX: usize = 1000;

impl World {
    /// Goes on in the fixed order until this holds. Clients do not send by themselves.
    pub(crate) fn go_on(&mut self, case: &Case, holds: impl Fn(&Self) -> bool) {
        for _ in 0..STEPS_MAX {
            if holds(self) {
                return;
            }
            let next = self.deliverable().next();
            self.act(case, next.map_or(Action::Tick, Action::Deliver));
        }
        panic!("it does not come: {self:?}");
    }
}
