//! An operator's words, at the member's sidecore.

use std::collections::BTreeSet;

use replica::wire::SECTOR_BYTES;
use replica::{Input, MemberId, ScrubFinding, ScrubKey, ScrubOrder};

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

    /// Has the volume scrubbed, if it is served here and not scrubbed already. Whether it is now.
    pub fn start_scrub(&mut self, now_ns: u64, key: ScrubKey, bytes_per_s: u64) -> bool {
        let sectors = self.fronts.shared().size().get() / SECTOR_BYTES;
        let was_scrubbed = self.member.scrubs();
        self.order(now_ns, Input::Scrub(ScrubOrder::Start { key, sectors, bytes_per_s }));
        let is_scrubbed = self.member.scrubs();
        if is_scrubbed && !was_scrubbed {
            // The result of the last scrub is kept until now. No answer has come yet, so the page
            // has nothing of this scrub.
            self.status.scrubs().clear();
        }
        self.member.note_scrub((self.outside.clock)());
        is_scrubbed
    }

    /// An operator's word about the scrub that is under way.
    pub fn order_scrub(&mut self, now_ns: u64, order: ScrubOrder) {
        self.order(now_ns, Input::Scrub(order));
        self.member.note_scrub((self.outside.clock)());
    }

    /// Copies have another content of a block than this copy: a device or a program lies.
    pub(super) fn note_finding(&self, finding: &ScrubFinding) {
        let named = finding.differ.iter().filter_map(|member| self.list.nodes.get(member));
        let nodes = named.cloned().collect::<Vec<_>>().join(", ");
        let (volume, offset_bytes) = (&*self.volume, finding.block.first() * SECTOR_BYTES);
        if finding.is_unsettled {
            return tracing::error!(
                volume,
                offset_bytes,
                "the copy of a replicated volume that serves cannot read a block, and the other \
                 copies differ in it: look for a device that lies, and replace its copy"
            );
        }
        tracing::error!(
            volume,
            offset_bytes,
            nodes,
            agree = finding.agree,
            "copies of a replicated volume had other content than the copy that serves, and get \
             its content: look for a device that lies"
        );
    }

    fn others(&self) -> BTreeSet<MemberId> {
        self.list.nodes.keys().copied().filter(|member| *member != self.id).collect()
    }
}
