//! An operator's words, at the member's sidecore.

use std::collections::BTreeSet;

use replica::{Input, MemberId};

use super::MemberHost;
use crate::content::RangeContent;
use crate::member::RecoveryView;

impl MemberHost {
    /// An operator's word: [`Input::Move`], [`Input::Evicted`] or [`Input::Recover`].
    pub fn order(&mut self, now_ns: u64, order: Input<RangeContent>) {
        let clock_ns = (self.outside.clock)();
        self.member.tell(clock_ns, order, &mut self.out);
        self.settle(now_ns);
    }

    /// Asks the other members what they know: again with the same number those that have not
    /// answered.
    pub fn ask_members(&mut self, now_ns: u64, number: u64) {
        let others = self.others();
        self.member.ask(number, &others, &mut self.out);
        self.settle(now_ns);
    }

    /// The state of a recovery with this copy.
    pub fn recovery(&mut self) -> RecoveryView {
        let clock_ns = (self.outside.clock)();
        self.member.recovery(clock_ns, self.others())
    }

    fn others(&self) -> BTreeSet<MemberId> {
        self.list.nodes.keys().copied().filter(|member| *member != self.id).collect()
    }
}
