//! An operator's recovery, at the member's sidecore.

use std::collections::BTreeSet;

use replica::MemberId;

use super::MemberHost;
use crate::member::RecoveryView;

impl MemberHost {
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
