//! The events of the world.

use replica::{Input, Life, MemberId, Message, Rule, SwapOutcome};

use super::disk::Loss;
use super::register::Caller;
use super::{Case, Post, World, WorldMember, client_id, work};

/// How often each kind of fault may come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// A member's process is killed, or loses power, and starts again at once.
    pub(crate) restarts: u8,
    /// A member ends in order, and starts again at any time later.
    pub(crate) stops: u8,
    /// A member is told that a process of another member has ended, at any time later.
    pub(crate) proofs: u8,
    /// A member loses its disk; an empty member comes in its place.
    pub(crate) disks: u8,
    /// A member does not run for some time.
    pub(crate) pauses: u8,
    /// A message is held back: it comes any time later, or never.
    pub(crate) delays: u8,
    /// A direction between two members loses all messages for some time.
    pub(crate) cuts: u8,
    /// The answer of the registry to a swap is lost.
    pub(crate) unknown: u8,
    /// The registry is away for some time.
    pub(crate) away: u8,
    /// The registry is put back to an old record.
    pub(crate) restored: u8,
    /// The registry loses the record.
    pub(crate) losses: u8,
    /// An operator has a copy serve, after all members were asked.
    pub(crate) recoveries: u8,
    /// A member sees a record by its watch: the present one, or an old one.
    pub(crate) stale: u8,
    /// An operator makes another member the primary.
    pub(crate) moves: u8,
    /// An operator says of a member that is there that it is gone.
    pub(crate) mistakes: u8,
    /// A client sends its request again.
    pub(crate) again: u8,
    /// A client goes, and another client comes.
    pub(crate) leaves: u8,
    /// A sector of a member's disk is damaged.
    pub(crate) damages: u8,
    /// A backup's device lies about a sector.
    pub(crate) rots: u8,
    /// An operator has the volume scrubbed.
    pub(crate) scrubs: u8,
    /// Time passes while messages are under way.
    pub(crate) haste: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// An entry of the wire is carried out.
    Deliver(usize),
    /// A swap is carried out, and its answer is lost.
    DeliverUntold(usize),
    Hold(usize),
    Release(usize),
    Tick,
    Send(usize, MemberId),
    Leave(usize),
    /// A member is told that no request of a client comes any more that has gone.
    Forget(usize, MemberId),
    Restart(MemberId, Loss),
    /// A member's process ends in order.
    Stop(MemberId),
    /// It starts again; its host may have lost power meanwhile.
    Start(MemberId, Loss),
    /// A member hears of the end of a process.
    Prove(MemberId, usize),
    LoseDisk(MemberId),
    /// A sector of a member's disk cannot be read any more.
    Damage(MemberId, u64),
    /// A backup proves a sector with other content than it has.
    Rot(MemberId, u64),
    /// A primary begins a scrub.
    Scrub(MemberId),
    Pause(MemberId),
    Resume(MemberId),
    Cut(MemberId, MemberId),
    Heal(MemberId, MemberId),
    RegistryAway(bool),
    Restore(usize),
    Rebuild,
    LoseRecord,
    /// An operator asks what all members know, for this member.
    Ask(MemberId),
    /// The member that was asked for serves, also with a loss of what was flushed.
    Recover(bool),
    Stale(MemberId, usize),
    Move(MemberId, MemberId),
    Evict(MemberId),
}

impl World {
    pub(crate) fn act(&mut self, case: &Case, action: Action) {
        match action {
            Action::Deliver(at) => {
                let post = self.wire.remove(at);
                self.deliver(case, post, true);
            }
            Action::DeliverUntold(at) => {
                self.budget.unknown -= 1;
                let post = self.wire.remove(at);
                self.deliver(case, post, false);
            }
            Action::Hold(at) => self.hold(case, at),
            Action::Release(at) => {
                let post = self.held.remove(at);
                self.deliver(case, post, true);
            }
            Action::Tick => self.tick(case),
            Action::Send(index, to) => {
                self.budget.again -= u8::from(self.clients[index].is_sent);
                self.send(case, index, to);
            }
            Action::Leave(index) => self.leave(index),
            Action::Forget(index, id) => self.forget_client(case, index, id),
            Action::Restart(id, loss) => {
                self.budget.restarts -= 1;
                self.restart(case, id, loss);
            }
            Action::Stop(id) => self.stop(case, id),
            Action::Start(id, loss) => self.restart(case, id, loss),
            Action::Prove(to, at) => self.prove(case, to, at),
            Action::LoseDisk(id) => self.lose_disk(case, id),
            Action::Damage(id, sector) => self.damage(id, sector),
            Action::Rot(id, sector) => self.rot(id, sector),
            Action::Scrub(id) => {
                self.budget.scrubs -= 1;
                self.scrub(case, id);
            }
            Action::Pause(id) => {
                self.budget.pauses -= 1;
                self.node(id).is_paused = true;
            }
            Action::Resume(id) => self.node(id).is_paused = false,
            Action::Cut(from, to) => self.cut(from, to),
            Action::Heal(from, to) => _ = self.cut.remove(&(from, to)),
            Action::RegistryAway(is_away) => {
                self.budget.away -= u8::from(is_away);
                self.is_away = is_away;
            }
            Action::Restore(at) => self.restore(at),
            Action::Rebuild => self.rebuild(),
            Action::LoseRecord => self.lose_record(),
            Action::Ask(id) => self.asked = Some((id, self.word(id, self.survey(id), false))),
            Action::Recover(gives_up) => self.recover(case, gives_up),
            Action::Stale(id, at) => {
                self.budget.stale -= 1;
                let record = self.past.get(at).unwrap_or(&self.registry).clone();
                self.step(case, id, Input::Seen(record));
            }
            Action::Move(id, to) => {
                self.budget.moves -= 1;
                self.step(case, id, Input::Move(to));
            }
            Action::Evict(gone) => {
                self.budget.mistakes -= u8::from(!self.node(gone).is_gone);
                self.is_mistaken |= !self.node(gone).is_gone;
                self.evict(case, gone);
            }
        }
    }

    /// It is another registry: a swap that was sent to the old registry never arrives.
    fn restore(&mut self, at: usize) {
        self.budget.restored -= 1;
        self.registry = self.past[at].clone();
        self.is_restored = true;
        self.forget_swaps();
    }

    fn cut(&mut self, from: MemberId, to: MemberId) {
        self.budget.cuts -= 1;
        self.cut.insert((from, to));
        let is_lost = |post: &Post| match post {
            Post::Message(by, of, _) => (*by, *of) == (from, to),
            _ => false,
        };
        self.wire.retain(|post| !is_lost(post));
    }

    pub(crate) fn evict(&mut self, case: &Case, gone: MemberId) {
        for id in self.ids() {
            if self.node(id).runs() {
                self.step(case, id, Input::Evicted(gone));
            }
        }
    }

    fn hold(&mut self, case: &Case, at: usize) {
        self.budget.delays -= 1;
        let post = self.wire.remove(at);
        let swap = match &post {
            Post::Swap(from, life, target) => Some((*from, *life, target.clone())),
            Post::Remake(from, life, plan) => Some((*from, *life, plan.record.clone())),
            _ => None,
        };
        if let Some((from, life, target)) = swap {
            self.tell_swapped(case, from, life, target, SwapOutcome::Unknown);
        }
        self.held.push(post);
    }

    /// Each clock goes on, also that of a member that is paused.
    pub(crate) fn tick(&mut self, case: &Case) {
        self.ticks += u64::from(case.is_wild);
        for id in self.ids() {
            // The clocks of some members are slow.
            let is_slow = case.is_wild && id % 2 == 1;
            if is_slow && self.ticks.is_multiple_of(SLOW) {
                continue;
            }
            self.node(id).member.age(1);
            for post in self.wire.iter_mut().chain(&mut self.held) {
                if let Post::Message(from, to, message) = post {
                    match message {
                        Message::Ping { sent_ns, .. } if *from == id => {
                            *sent_ns = sent_ns.saturating_sub(1);
                        }
                        Message::Pong { sent_ns, .. } if *to == id => {
                            *sent_ns = sent_ns.saturating_sub(1);
                        }
                        _ => {}
                    }
                }
            }
        }
        // Entries that have become the same are sent once.
        let mut wire: Vec<Post> = Vec::with_capacity(self.wire.len());
        for post in self.wire.drain(..) {
            if case.is_wild || !wire.contains(&post) {
                wire.push(post);
            }
        }
        self.wire = wire;
        for id in self.ids() {
            if self.node(id).runs() {
                self.step(case, id, Input::Timer);
            }
        }
    }

    pub(crate) fn restart(&mut self, case: &Case, id: MemberId, loss: Loss) {
        let (is_killed, last) = (!self.node(id).is_stopped, self.node(id).member.life());
        if is_killed {
            self.note_end(case, id, last);
        }
        self.forget_answers(id);
        self.lives += 1;
        let life = self.lives;
        let node = self.node(id);
        node.disk.lose(loss);
        (node.is_paused, node.is_stopped) = (false, false);
        let (durable, cuts) = (node.disk.durable_of_member.clone(), node.disk.cuts());
        // The process that they were for has ended.
        cuts.iter().filter(|cut| cut.is_own()).for_each(|own| node.disk.drop_cut(*own));
        if case.broken != Some(Rule::EndsAreUsedOnce) {
            node.disk.durable_of_member.ended = None;
        }
        let member = WorldMember::start(id, life, case.pacing, durable, cuts, case.now());
        node.member = member.breaking(case.broken);
    }

    fn damage(&mut self, id: MemberId, sector: u64) {
        self.budget.damages -= 1;
        self.node(id).disk.damage(sector);
    }

    fn prove(&mut self, case: &Case, to: MemberId, at: usize) {
        self.budget.proofs -= 1;
        let (id, life) = self.over[at];
        self.step(case, to, Input::Over(id, life));
    }

    /// A process that had this life has ended, and the life does not go on.
    fn note_end(&mut self, case: &Case, id: MemberId, life: Life) {
        // Worlds without proofs have no state of them.
        if case.budget.proofs > 0 && !self.over.contains(&(id, life)) {
            self.over.push((id, life));
        }
    }

    /// A process ends in order: it hears nothing more, does all that was begun, makes its content
    /// durable, and keeps the end of its life.
    fn stop(&mut self, case: &Case, id: MemberId) {
        self.budget.stops -= 1;
        let is_own = |post: &Post| matches!(post, Post::Work(of, ..) if *of == id);
        let (own, rest) = std::mem::take(&mut self.wire).into_iter().partition(is_own);
        self.wire = rest;
        self.forget_answers(id);
        let node = self.node(id);
        for post in own {
            if let Post::Work(_, life, output) = post
                && life == node.member.life()
            {
                // Its outcome is nothing that the member hears any more.
                let _ = work(&mut node.disk, output);
            }
        }
        if case.broken != Some(Rule::EndsAreDurable) {
            node.disk.flush();
        }
        let (life, end) = (node.member.life(), node.member.end());
        let goes_on = end.is_some();
        if let Some(durable) = end {
            node.disk.durable_of_member = durable;
        }
        node.is_stopped = true;
        if !goes_on || case.broken == Some(Rule::LivesThatGoOnAreNotOver) {
            self.note_end(case, id, life);
        }
    }

    fn lose_disk(&mut self, case: &Case, id: MemberId) {
        self.budget.disks -= 1;
        let node = self.node(id);
        node.is_gone = true;
        (node.is_paused, node.is_stopped) = (false, false);
        self.lives += 1;
        let life = self.lives;
        self.add_node(case, life);
    }

    /// An operator makes the registry's record anew from what the members know.
    pub(crate) fn rebuild(&mut self) {
        let known = self.ids().map(|id| self.nodes[usize::from(id)].disk.durable_of_member.clone());
        let known: Vec<_> = known.collect();
        // The registry may have made a record anew since it was put back (seed 1001872).
        let told = known.iter().filter_map(|known| known.record.as_ref());
        let newest = told.chain([&self.registry]).max_by_key(|record| record.epoch);
        let Some(newest) = newest else { return };
        let promised = known.iter().map(|known| known.promised).max().unwrap_or(0);
        let mut record = newest.clone();
        record.epoch = promised.max(record.epoch) + 1;
        self.past.push(std::mem::replace(&mut self.registry, record));
        self.is_restored = false;
    }

    fn leave(&mut self, index: usize) {
        self.budget.leaves -= 1;
        let new_id = self.client_ids;
        self.client_ids += 1;
        let client = &mut self.clients[index];
        let caller = Caller::from(client.id);
        let gone_id = client.id;
        self.gone.push(gone_id);
        client.id = new_id;
        client.next += usize::from(client.is_sent);
        client.is_sent = false;
        self.ghosts += 1;
        let ghost = self.ghosts;
        self.registers.iter_mut().for_each(|register| register.left(caller, ghost));
        self.forget_snapshots(gone_id);
    }

    /// The client's requests are fenced before they are forgotten.
    fn forget_client(&mut self, case: &Case, index: usize, id: MemberId) {
        let gone = client_id(self.gone[index]);
        let is_its = |post: &Post| match post {
            Post::Request(_, request, ..) => request.client == gone,
            _ => false,
        };
        self.wire.retain(|post| !is_its(post));
        self.held.retain(|post| !is_its(post));
        self.step(case, id, Input::Forget(gone.attachment));
    }

    /// The members that run and take themselves for the primary.
    fn primaries(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.ids().filter(|id| {
            let node = &self.nodes[usize::from(*id)];
            node.runs() && node.member.is_primary()
        })
    }

    /// The ends of a member's process that may come now, and its start after one.
    fn ends(&self, case: &Case, id: MemberId, actions: &mut Vec<Action>) {
        let (budget, node) = (&self.budget, &self.nodes[usize::from(id)]);
        let tells = node.disk.is_dirty();
        let losses = [Loss::Nothing, Loss::All].into_iter().take(1 + usize::from(tells));
        if budget.disks > 0 {
            actions.push(Action::LoseDisk(id));
        }
        if budget.damages > 0 {
            actions.extend((0..case.sectors).map(|sector| Action::Damage(id, sector)));
        }
        if node.is_stopped {
            return actions.extend(losses.map(|loss| Action::Start(id, loss)));
        }
        if budget.restarts > 0 {
            actions.extend(losses.map(|loss| Action::Restart(id, loss)));
        }
        if budget.stops > 0 && !node.is_paused {
            actions.push(Action::Stop(id));
        }
    }

    /// The faults that may come now.
    pub(crate) fn faults(&self, case: &Case, actions: &mut Vec<Action>) {
        let budget = &self.budget;
        for id in self.ids() {
            let node = &self.nodes[usize::from(id)];
            self.ends(case, id, actions);
            if node.is_stopped {
                continue;
            }
            match node.is_paused {
                true => actions.push(Action::Resume(id)),
                false if budget.pauses > 0 => actions.push(Action::Pause(id)),
                false => {}
            }
            if budget.stale > 0 && !node.is_paused {
                actions.extend((0..=self.past.len()).map(|at| Action::Stale(id, at)));
            }
            if budget.moves > 0 && node.member.is_primary() && !node.is_paused {
                let to = self.registry.others(id);
                actions.extend(to.map(|to| Action::Move(id, to)));
            }
            if budget.mistakes > 0 {
                actions.push(Action::Evict(id));
            }
            if budget.proofs > 0 && !node.is_paused {
                let over = self.over.iter().enumerate().filter(|(_, (of, _))| *of != id);
                actions.extend(over.map(|(at, _)| Action::Prove(id, at)));
            }
            for other in self.ids().filter(|other| *other != id) {
                match self.cut.contains(&(id, other)) {
                    true => actions.push(Action::Heal(id, other)),
                    false if budget.cuts > 0 => actions.push(Action::Cut(id, other)),
                    false => {}
                }
            }
        }
        actions.extend((0..self.held.len()).map(Action::Release));
        match self.is_away {
            true => actions.push(Action::RegistryAway(false)),
            false if budget.away > 0 => actions.push(Action::RegistryAway(true)),
            false => {}
        }
        // A node refuses a registry whose revision is lower than the one that it has seen.
        let knows = |id: MemberId| {
            self.nodes[usize::from(id)].member.record().map(|record| record.epoch)
                == Some(self.registry.epoch)
        };
        if budget.restored > 0 && !self.is_restored && !self.has_lost && self.ids().all(knows) {
            actions.extend((0..self.past.len()).map(Action::Restore));
        }
        if self.is_restored {
            actions.push(Action::Rebuild);
        }
        self.recoveries(case, actions);
        self.scrubs(case, actions);
        for index in 0..self.gone.len() {
            actions.extend(self.primaries().map(|id| Action::Forget(index, id)));
        }
        for (index, client) in self.clients.iter().enumerate() {
            if budget.leaves > 0 && client.next < case.plans[index].len() {
                actions.push(Action::Leave(index));
            }
        }
        for (id, node) in self.nodes.iter().enumerate() {
            if node.is_gone && self.registry.in_sync.contains_key(&(id as MemberId)) {
                actions.push(Action::Evict(id as MemberId));
            }
        }
    }

    /// The requests that clients may send now.
    pub(crate) fn sends(&self, case: &Case, actions: &mut Vec<Action>) {
        for (index, client) in self.clients.iter().enumerate() {
            let is_over = client.next >= case.plans[index].len();
            if is_over || client.is_sent && self.budget.again == 0 {
                continue;
            }
            actions.extend(self.primaries().map(|id| Action::Send(index, id)));
        }
    }
}

/// One tick of so many is missing at a slow clock.
const SLOW: u64 = 6;
