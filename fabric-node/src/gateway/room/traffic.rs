//! Makes batches of cells, and cells of batches.

use super::super::post::{Put, Write};
use super::super::wire::{
    self, BATCH_HEADER_BYTES, BatchChannel, GatewayAnswer, HEAD_MAX, IN_HEAD_BYTES_MAX, SplitEntry,
    batch_header,
};
use super::{
    AGAIN_NS, BatchOrigin, Carrier, Come, GatewayLinkState, OWED_MAX, OWED_NS, Room, SPARE_MAX,
};
use crate::gateway::link::{BatchVerdict, Keep, OpenBatch};
use fabric::Class;
use fabric::cell::{CellHead, CellKind, Local};
use fabric::region::gateway_of;

/// Deaths of other hosts' endpoints that are told to the endpoints here in one round.
const GONES_PER_ROUND: usize = 4;

/// Batches of one gateway of a peer that are kept while the region has no room.
const KEPT_WHILE_FULL: usize = 2;

/// An entry of so many bytes is written where its batch is kept: a batch with it is worth a buffer,
/// and copying it once more would take longer than to find one.
const LONG_BYTES_MIN: usize = 4 << 10;

/// The entries of a batch while it is on its way.
#[derive(Debug)]
pub(super) enum KeptEntries<B> {
    InHead {
        bytes: [u8; IN_HEAD_BYTES_MAX],
        count: u8,
    },
    Body(B, usize),
    /// Until it goes out, and there is a buffer for it: the process before this one has numbered
    /// it.
    Own(Vec<u8>),
}

impl<B> Keep for KeptEntries<B> {
    fn bytes(&self) -> usize {
        match self {
            Self::InHead { count, .. } => usize::from(*count),
            Self::Body(_, bytes) => *bytes,
            Self::Own(bytes) => bytes.len(),
        }
    }
}

impl<B: Copy> KeptEntries<B> {
    /// Of a batch that has come.
    pub(super) fn new<C: Carrier<Body = B>>(
        head: &[u8],
        body: Option<(B, usize)>,
        carrier: &mut C,
    ) -> Self {
        let in_head = &head[BATCH_HEADER_BYTES..];
        match body {
            Some((body, bytes)) if in_head.is_empty() => Self::Body(body, bytes),
            other => {
                if let Some((body, _)) = other {
                    carrier.release(body);
                }
                Self::in_head(in_head)
            }
        }
    }

    /// Of a batch that another process had.
    pub(super) fn of_bytes(bytes: Vec<u8>) -> Self {
        if bytes.len() <= IN_HEAD_BYTES_MAX { Self::in_head(&bytes) } else { Self::Own(bytes) }
    }

    /// Shows its entries.
    pub(super) fn show<C: Carrier<Body = B>>(&self, carrier: &C, show: &mut dyn FnMut(&[u8])) {
        match self {
            Self::InHead { bytes, count } => show(&bytes[..usize::from(*count)]),
            Self::Body(body, bytes) => carrier.read(*body, *bytes, show),
            Self::Own(bytes) => show(bytes),
        }
    }

    /// A batch of no entries.
    pub(super) fn nothing() -> Self {
        Self::in_head(&[])
    }

    fn in_head(entries: &[u8]) -> Self {
        let mut bytes = [0; IN_HEAD_BYTES_MAX];
        let entries = &entries[..entries.len().min(bytes.len())];
        bytes[..entries.len()].copy_from_slice(entries);
        Self::InHead { bytes, count: entries.len() as u8 }
    }

    pub(super) fn release<C: Carrier<Body = B>>(self, carrier: &mut C) {
        if let Self::Body(body, _) = self {
            carrier.release(body);
        }
    }
}

impl<C: Carrier> Room<C> {
    /// Takes what is in the gateway's ring.
    pub(super) fn collect(&mut self, carrier: &mut C) -> bool {
        let Self {
            post,
            links,
            by_host,
            stirred,
            spare,
            batch_bytes_max,
            associations,
            generation,
            looked_for,
            is_stuck,
            ..
        } = self;
        *is_stuck = false;
        post.collect(|position, head, bytes, write| {
            let at = by_host.get(usize::from(head.to.host)).copied().unwrap_or(u16::MAX);
            let Some(link) = links.get_mut(usize::from(at)) else {
                let is_there = associations.table().region().host(head.to.host).is_some();
                if !is_there || *looked_for == Some(position) {
                    // A host that is over, of which the table has told its sender; or none.
                    return true;
                }
                // So new that another gateway has just met it: it is known after a look around.
                (*looked_for, *generation) = (Some(position), generation.wrapping_sub(1));
                return false;
            };
            if link.outbox.is_full() {
                *is_stuck = true;
                return false;
            }
            let is_swift = link.outbox.is_swift() && matches!(link.state, GatewayLinkState::In(..));
            let batch = link.outbox.room(bytes, *batch_bytes_max, spare);
            if is_swift && bytes >= LONG_BYTES_MIN {
                lend(batch, *batch_bytes_max, spare, carrier);
            }
            add(batch, bytes, write, carrier);
            if !std::mem::replace(&mut link.stirred, true) {
                stirred.push(at);
            }
            true
        })
    }

    /// Sends what can be sent, and the answers that are due.
    pub(super) fn flush(&mut self, at: usize, now_ns: u64, carrier: &mut C) {
        if self.links[at].outbox.is_flooded() {
            return self.drown(at, now_ns, carrier);
        }
        let mut with = None;
        if let GatewayLinkState::In(session, channel) = self.links[at].state
            && self.send(at, now_ns, (session, channel), carrier)
        {
            with = Some(session);
        }
        let link = &mut self.links[at];
        if let (Some(held), Some(there)) = (link.outbox.hold(), link.there) {
            self.post.hold(there.index, held);
        }
        for incoming in link.incoming.values_mut() {
            let is_due = with == Some(incoming.session)
                || incoming.owed.len() >= OWED_MAX
                || now_ns >= incoming.owed_ns + OWED_NS;
            if incoming.owed.is_empty() {
                continue;
            }
            if !is_due {
                self.next_ns = self.next_ns.min(incoming.owed_ns + OWED_NS);
                continue;
            }
            let answer = GatewayAnswer::Taken { received: incoming.inbox.received() }.encode();
            incoming.owed.drain(..).for_each(|call| carrier.reply(call, &answer));
        }
    }

    /// Has more answers to get than can be kept for it: it is given up.
    fn drown(&mut self, at: usize, now_ns: u64, carrier: &mut C) {
        let link = &self.links[at];
        let why = "it has sent more requests than it has taken answers".to_owned();
        self.associations.note(&link.name, self.settings.gateway, Some(why));
        if let Some(there) = link.there {
            self.associations.give_up(&link.name, there);
        }
        self.look_around(now_ns, carrier);
    }

    /// Something did not go out, or was sent back.
    pub(super) fn try_again(&mut self, at: usize, again_ns: u64) {
        self.links[at].again_ns = again_ns;
        self.next_ns = self.next_ns.min(again_ns);
    }

    /// Whether anything went out.
    fn send(
        &mut self,
        at: usize,
        now_ns: u64,
        (session, channel): (C::Session, BatchChannel),
        carrier: &mut C,
    ) -> bool {
        let mut any = false;
        loop {
            while let Some((number, kept)) = self.links[at].outbox.next_out() {
                let mut head = [0; HEAD_MAX];
                batch_header(&mut head, channel, number);
                let (mut head_bytes, mut body) = (BATCH_HEADER_BYTES, None);
                match kept {
                    KeptEntries::InHead { bytes, count } => {
                        head[BATCH_HEADER_BYTES..].copy_from_slice(bytes);
                        head_bytes += usize::from(*count);
                    }
                    KeptEntries::Body(buffer, bytes) => body = Some((*buffer, *bytes)),
                    KeptEntries::Own(bytes) => {
                        let Some(kept) = in_body(bytes, bytes.len(), carrier) else {
                            self.try_again(at, now_ns + AGAIN_NS);
                            return any;
                        };
                        self.links[at].outbox.keep_next_as(kept);
                        continue;
                    }
                }
                let token = self.token(at, false, self.links[at].granted);
                if !carrier.call(session, token, &head[..head_bytes], body) {
                    // The session has no room, which others may have taken, so that no answer of
                    // ours says when it has; or it is gone, which is heard of soon.
                    self.try_again(at, now_ns + AGAIN_NS);
                    return any;
                }
                self.links[at].outbox.went_out();
                any = true;
            }
            let gathered = match self.links[at].outbox.front() {
                None => return any,
                Some(OpenBatch::Kept(_)) => None,
                Some(OpenBatch::Gathered(batch)) if batch.len() <= IN_HEAD_BYTES_MAX => {
                    Some(KeptEntries::in_head(batch))
                }
                Some(OpenBatch::Gathered(batch)) => {
                    let Some(kept) = in_body(batch, batch.len(), carrier) else {
                        self.try_again(at, now_ns + AGAIN_NS);
                        return any;
                    };
                    Some(kept)
                }
            };
            if let Some(batch) = self.links[at].outbox.keep(gathered) {
                spare(&mut self.spare, batch);
            }
        }
    }

    /// A batch has come.
    pub(super) fn batch(
        &mut self,
        now_ns: u64,
        session: C::Session,
        (channel, number): (BatchChannel, u64),
        come: Come<C>,
        carrier: &mut C,
    ) {
        let mut links = self.links.iter_mut().enumerate();
        let found = links.find_map(|(at, link)| {
            let mut incoming = link.incoming.iter_mut();
            let is_it = |it: &(&u16, &mut Box<super::Incoming<C>>)| {
                it.1.channel == channel && it.1.session == session
            };
            incoming.find(is_it).map(|(gateway, incoming)| (at, *gateway, incoming))
        });
        let Some((at, gateway, incoming)) = found else {
            come.entries.release(carrier);
            carrier.reply(come.call, &GatewayAnswer::NoChannel.encode());
            return;
        };
        match incoming.inbox.arrive(number, come) {
            BatchVerdict::Kept => {
                self.take(at, gateway, now_ns, carrier);
                self.send_back(at, gateway, carrier);
            }
            BatchVerdict::Again(come) => {
                come.entries.release(carrier);
                owe(incoming, come.call, now_ns);
                self.stir(at);
            }
            BatchVerdict::TooFar(come) => {
                self.post.counters.nonsense += 1;
                come.entries.release(carrier);
                carrier.reply(come.call, &GatewayAnswer::NoChannel.encode());
            }
        }
    }

    /// While nothing is taken, only a few batches are kept: each has a call and a buffer that other
    /// domains share.
    fn send_back(&mut self, at: usize, gateway: u16, carrier: &mut C) {
        if !self.post.is_full() {
            return;
        }
        let Some(incoming) = self.links[at].incoming.get_mut(&gateway) else { return };
        let later = GatewayAnswer::Later { received: incoming.inbox.received() }.encode();
        for come in incoming.inbox.forget_beyond(KEPT_WHILE_FULL) {
            come.entries.release(carrier);
            carrier.reply(come.call, &later);
        }
    }

    /// Takes the batches of a gateway whose turn it is.
    fn take(&mut self, at: usize, gateway: u16, now_ns: u64, carrier: &mut C) {
        while !self.post.is_full() {
            let link = &mut self.links[at];
            let Some(there) = link.there.filter(|_| link.gones.is_empty()) else { return };
            let Some(incoming) = link.incoming.get_mut(&gateway) else { return };
            let Some(come) = incoming.inbox.take() else { return };
            let gateways = incoming.gateways;
            let from = BatchOrigin { host: there.index, gateway, gateways };
            owe(incoming, come.call, now_ns);
            come.entries.show(carrier, &mut |bytes| self.deliver(at, from, bytes));
            come.entries.release(carrier);
            self.stir(at);
        }
        self.post.counters.full_rounds += 1;
    }

    /// Puts the entries of a batch where they belong, and wakes the sleepers among the receivers.
    fn deliver(&mut self, at: usize, from: BatchOrigin, entries: &[u8]) {
        self.deliver_all(at, from, entries);
        self.post.wake_touched();
    }

    fn deliver_all(&mut self, at: usize, from: BatchOrigin, mut entries: &[u8]) {
        while !entries.is_empty() {
            let Ok(SplitEntry { head, content, rest }) = wire::split_entry(entries, from.host)
            else {
                self.post.counters.nonsense += 1;
                return;
            };
            entries = rest;
            match head.kind {
                CellKind::Gone if head.to.incarnation == 0 => {
                    self.links[at].gones.push_back((head, from));
                }
                CellKind::Ask if self.post.live_in(head.to.slot) == Some(head.to) => {}
                CellKind::Ask => self.answer(at, &head, Put::NoReceiver),
                _ => {
                    let put = self.post.put(&head, content);
                    self.answer(at, &head, put);
                }
            }
        }
    }

    /// Tells the sender of an entry what became of it, where the sender wants to hear that.
    fn answer(&mut self, at: usize, head: &CellHead, put: Put) {
        let kind = match (put, head.kind) {
            (Put::Marked, _) => CellKind::Credit,
            (Put::NoReceiver, CellKind::Gone | CellKind::Credit)
            | (Put::Done | Put::Nonsense, _) => return,
            (Put::NoReceiver, _) if self.is_to_be_told(head.to) => return,
            (Put::NoReceiver, _) => CellKind::Gone,
        };
        self.say(at, kind, head.to, head.source);
    }

    /// Whether a death here will be told to all, behind what the dead one has said last.
    fn is_to_be_told(&self, who: Local) -> bool {
        let dead = self.post.last_dead(who.slot);
        let is_seen = self.told.get(usize::from(who.slot)) == Some(&dead);
        who.incarnation <= dead && (!is_seen || self.mourned.contains_key(&who.slot))
    }

    fn say(&mut self, at: usize, kind: CellKind, source: Local, to: Local) {
        let (class, tag, data) = (Class::Untagged, 0, None);
        let head = CellHead { kind, class, inline_bytes: 0, source, to, tag, data, marked: false };
        let Self { links, spare, batch_bytes_max, .. } = self;
        let outbox = &mut links[at].outbox;
        // One that is flooded is given up when its turn comes.
        if !outbox.is_flooded() {
            let batch = outbox.gather(wire::entry_bytes(0), *batch_bytes_max, spare);
            wire::push_entry(batch, &head, &[]);
        }
        self.stir(at);
    }

    /// Goes on telling of deaths elsewhere, a few in a round: each is for as many as there are
    /// endpoints here.
    pub(super) fn tell_gones(&mut self, now_ns: u64, carrier: &mut C) -> bool {
        let mut told = 0;
        for at in 0..self.links.len() {
            if self.links[at].gones.is_empty() {
                continue;
            }
            while told < GONES_PER_ROUND
                && let Some((head, from)) = self.links[at].gones.pop_front()
            {
                self.tell_all(&head, from);
                told += 1;
            }
            self.post.wake_touched();
            self.go_on(at, now_ns, carrier);
        }
        told > 0
    }

    /// Tells endpoints here of a death there: those whose messages came the same way, so that they
    /// hear of it after the last of them.
    fn tell_all(&mut self, head: &CellHead, from: BatchOrigin) {
        for slot in self.post.endpoint_slots() {
            if gateway_of(head.source.slot, slot, from.gateways) == from.gateway
                && let Some(to) = self.post.live_in(slot)
            {
                self.post.put(&CellHead { to, ..*head }, &[]);
            }
        }
    }

    /// Tells all hosts of endpoints here that have died, behind the last that those had said.
    pub(super) fn announce_deaths(&mut self) -> bool {
        let deaths = self.post.deaths();
        if std::mem::replace(&mut self.deaths, deaths) != deaths {
            self.post.pass_dead();
            let end = self.post.end();
            for slot in self.post.endpoint_slots() {
                let incarnation = self.post.last_dead(slot);
                let told = &mut self.told[usize::from(slot)];
                if std::mem::replace(told, incarnation) != incarnation {
                    self.mourned.insert(slot, (incarnation, end));
                }
            }
        }
        let post = &self.post;
        let is_told = |_: &u16, (_, end): &mut (u32, u64)| post.is_past(*end);
        let dead: Vec<_> = self.mourned.extract_if(.., is_told).collect();
        for (slot, (incarnation, _)) in &dead {
            for at in 0..self.links.len() {
                if self.links[at].there.is_some() {
                    let dead = Local { host: 0, slot: *slot, incarnation: *incarnation };
                    self.say(at, CellKind::Gone, dead, Local { host: 0, slot: 0, incarnation: 0 });
                }
            }
        }
        !dead.is_empty()
    }

    /// Goes on with what waited for room.
    pub(super) fn put_waiting(&mut self, now_ns: u64, carrier: &mut C) -> bool {
        if !self.post.has_waiting() {
            return false;
        }
        let was_full = self.post.is_full();
        let mut told = Vec::new();
        self.post.put_waiting(|head, put| told.push((*head, put)));
        self.post.wake_touched();
        for (head, put) in &told {
            let at = self.by_host.get(usize::from(head.source.host)).copied();
            if let Some(at) = at.filter(|at| *at != u16::MAX) {
                self.answer(usize::from(at), head, *put);
            }
        }
        if was_full && !self.post.is_full() {
            (0..self.links.len()).for_each(|at| self.go_on(at, now_ns, carrier));
        }
        !told.is_empty()
    }

    /// Takes what has come of a host and was not taken at once.
    fn go_on(&mut self, at: usize, now_ns: u64, carrier: &mut C) {
        let incoming = self.links[at].incoming.iter();
        let ready: Vec<_> = incoming
            .filter_map(|(gateway, incoming)| incoming.inbox.has_next().then_some(*gateway))
            .collect();
        ready.into_iter().for_each(|gateway| self.take(at, gateway, now_ns, carrier));
    }
}

/// Memory for a batch to come.
fn spare(spares: &mut Vec<Vec<u8>>, mut bytes: Vec<u8>) {
    if spares.len() < SPARE_MAX {
        bytes.clear();
        spares.push(bytes);
    }
}

/// A buffer with room for so many bytes, which begins with these.
fn in_body<C: Carrier>(bytes: &[u8], room: usize, carrier: &mut C) -> Option<KeptEntries<C::Body>> {
    let body = carrier.body(room)?;
    carrier.write(body, 0..bytes.len(), &mut |places| places.copy_from_slice(bytes));
    Some(KeptEntries::Body(body, bytes.len()))
}

/// Has a batch go on in a buffer, in which it is kept later, if there is one.
fn lend<C: Carrier>(
    batch: &mut OpenBatch<KeptEntries<C::Body>>,
    room: usize,
    spares: &mut Vec<Vec<u8>>,
    carrier: &mut C,
) {
    if let OpenBatch::Gathered(bytes) = batch
        && let Some(kept) = in_body(bytes, room, carrier)
    {
        let bytes = std::mem::take(bytes);
        *batch = OpenBatch::Kept(kept);
        spare(spares, bytes);
    }
}

/// Adds an entry of so many bytes to a batch that has room for it, if it can be written.
fn add<C: Carrier>(
    batch: &mut OpenBatch<KeptEntries<C::Body>>,
    bytes: usize,
    write: Write<'_>,
    carrier: &mut C,
) {
    match batch {
        OpenBatch::Gathered(gathered) => {
            let at = gathered.len();
            gathered.resize(at + bytes, 0);
            if !write(&mut gathered[at..]) {
                gathered.truncate(at);
            }
        }
        OpenBatch::Kept(KeptEntries::Body(body, used)) => {
            let (at, mut is_there) = (*used, false);
            carrier.write(*body, at..at + bytes, &mut |entry| is_there = write(entry));
            *used += if is_there { bytes } else { 0 };
        }
        OpenBatch::Kept(KeptEntries::InHead { .. } | KeptEntries::Own(_)) => {
            unreachable!("nothing is added to one")
        }
    }
}

fn owe<C: Carrier>(incoming: &mut super::Incoming<C>, call: C::Call, now_ns: u64) {
    if incoming.owed.is_empty() {
        incoming.owed_ns = now_ns;
    }
    incoming.owed.push(call);
}
