//! Nodes of the simulation: a member, its volume, and the errands and messages under way.

use std::collections::VecDeque;

use member::{
    Answer, Errand, ErrandEnd, MemberStart, Outbox, RangeContent, TICK_NS, VolumeMember,
    VolumeTaskEnd,
};
use random::Random;
use replica::{Durable, Life, MEMBERS_MAX, MemberId, Message, Pacing, SwapOutcome, VolumeRecord};

use super::volume::{SharedVolume, SimChannel};

/// Times in ticks of a member: a lease of twenty.
pub(crate) const PACING: Pacing = Pacing {
    lease_ns: 20 * TICK_NS,
    patience_ns: 25 * TICK_NS,
    silence_ns: 10 * TICK_NS,
    fetch_sectors_max: 4,
    fetches_max: 3,
    block_sectors: 1,
    members: MEMBERS_MAX,
};

/// The registry: one record.
#[derive(Debug)]
pub(crate) struct SimRegistry {
    pub(crate) record: VolumeRecord,
    pub(crate) is_away: bool,
}

impl SimRegistry {
    fn swap(&mut self, target: &VolumeRecord) -> SwapOutcome {
        if target.epoch != self.record.epoch + 1 {
            return SwapOutcome::Conflict(self.record.clone());
        }
        self.record = target.clone();
        SwapOutcome::Done
    }
}

/// A node with one member.
#[derive(Debug)]
pub(crate) struct SimNode {
    id: MemberId,
    pub(crate) volume: SharedVolume,
    durable: Durable,
    /// None while its process is down.
    pub(crate) member: Option<VolumeMember>,
    pub(crate) is_paused: bool,
    errands: VecDeque<Errand>,
    /// Messages to it, by their senders, each in its session's order.
    pub(crate) inbox: Vec<VecDeque<Message<RangeContent>>>,
    pub(crate) answers: Vec<Answer>,
}

impl SimNode {
    pub(crate) fn new(id: MemberId, members: usize, sectors: usize, random: &mut Random) -> Self {
        Self {
            id,
            volume: SharedVolume::new(sectors, random.fork()),
            durable: Durable::default(),
            member: None,
            is_paused: false,
            errands: VecDeque::new(),
            inbox: (0..members).map(|_| VecDeque::new()).collect(),
            answers: Vec::new(),
        }
    }

    pub(crate) fn start(&mut self, now_ns: u64, life: Life) {
        let (durable, cuts) = (self.durable.clone(), self.volume.borrow_mut().cuts());
        // As a node does: the end of a life is good for one start.
        self.durable.ended = None;
        let sectors = (self.volume.borrow_mut().content.len() / super::volume::SECTOR) as u64;
        let (id, own) = (self.id, None);
        let start = MemberStart { id, life, pacing: PACING, durable, cuts, sectors, own };
        let channel = SimChannel::new(&self.volume);
        self.member = Some(VolumeMember::new(start, channel, now_ns));
    }

    /// Its process ends in order: it goes on until that is done, and then it must be killed.
    pub(crate) fn has_retired(&mut self) -> bool {
        let Some(member) = &mut self.member else { return true };
        member.retire();
        member.has_retired()
    }

    /// Whether the end of its last life was kept.
    pub(crate) fn has_end(&self) -> bool {
        self.durable.ended.is_some()
    }

    /// Its process is killed. `loses_power`: its host goes down with it.
    pub(crate) fn kill(&mut self, now_ns: u64, loses_power: bool) {
        if let Some(mut member) = self.member.take() {
            assert!(member.abandon(now_ns));
        }
        if loses_power {
            self.volume.borrow_mut().lose_power();
        }
        self.errands.clear();
        self.inbox.iter_mut().for_each(VecDeque::clear);
        self.answers.clear();
        self.is_paused = false;
    }

    /// A round of its sidecore: some messages, some errands, and the member's own work.
    pub(crate) fn round(
        &mut self,
        now_ns: u64,
        registry: &mut SimRegistry,
        random: &mut Random,
    ) -> Vec<(MemberId, Message<RangeContent>)> {
        let Some(member) = &mut self.member else { return Vec::new() };
        if self.is_paused {
            return Vec::new();
        }
        let mut out = Outbox::default();
        for from in 0..self.inbox.len() {
            for _ in 0..random.below(self.inbox[from].len() as u64 + 1) {
                let message = self.inbox[from].pop_front().expect("as many as there are");
                member.hear(now_ns, from as MemberId, message, &mut out);
            }
        }
        for _ in 0..random.below(self.errands.len() as u64 + 1) {
            let errand = self.errands.pop_front().expect("as many as there are");
            let end = match errand {
                Errand::Keep(durable) => {
                    self.durable = durable;
                    ErrandEnd::Kept
                }
                Errand::Volume(task) => {
                    let end: VolumeTaskEnd = self.volume.borrow_mut().carry_out(task);
                    ErrandEnd::Volume(end)
                }
                Errand::Remake(plan) => unreachable!("no operator is here: {plan:?}"),
                Errand::Look if registry.is_away => ErrandEnd::NotSeen("it is away".to_owned()),
                Errand::Look => ErrandEnd::Seen(registry.record.clone()),
                Errand::Swap(target) if registry.is_away => {
                    ErrandEnd::Swapped(target, SwapOutcome::Unknown)
                }
                Errand::Swap(target) => {
                    let outcome = registry.swap(&target);
                    let is_told = !random.one_in(8);
                    ErrandEnd::Swapped(target, if is_told { outcome } else { SwapOutcome::Unknown })
                }
            };
            member.end(now_ns, end, &mut out);
        }
        // The simulated sidecore never sleeps.
        let _ = member.work(now_ns, &mut out);
        let _ = member.poll(now_ns, &mut out);
        self.take(out)
    }

    /// Keeps what a member has for its owner, and gives its messages.
    pub(crate) fn take(&mut self, out: Outbox) -> Vec<(MemberId, Message<RangeContent>)> {
        self.errands.extend(out.errands);
        self.answers.extend(out.answers);
        out.messages
    }
}
