//! Joining: a gateway asks each peer until it is joined, and again in each new session.

use super::super::associations::There;
use super::super::wire::{BatchChannel, GatewayAnswer, Join};
use super::traffic::KeptEntries;
use super::{Carrier, GatewayLinkState, Incoming, Link, Room};
use crate::gateway::link::LinkInbox;
use fabric::REGION_VERSION;

/// How long a refused join waits before it is tried again.
const ASK_AGAIN_NS: u64 = 500_000_000;

/// How long an answer is waited for.
const ANSWER_NS: u64 = 2_000_000_000;

/// Which side proves something.
const ASKS: u8 = 1;
const ANSWERS: u8 = 2;

/// The statement that is proved: that the node of `host`, in the session of this binding, has the
/// domain's key.
fn statement(who: u8, binding: &[u8; 32], host: u64, domain: &str) -> Vec<u8> {
    let mut bytes = b"vrio domain ".to_vec();
    bytes.push(who);
    bytes.extend_from_slice(binding);
    bytes.extend_from_slice(&host.to_le_bytes());
    bytes.extend_from_slice(domain.as_bytes());
    bytes
}

/// The answer to a node that may not join. It is the same whether there is no such domain, the node
/// is no peer of it, or the key is another one.
pub(super) fn not_open(domain: &str) -> String {
    format!("domain {domain:?} is not open to this node: check its name, its key and its `peers`")
}

impl<C: Carrier> Room<C> {
    /// A peer, or its host, is another one than it was.
    pub(super) fn look_around(&mut self, now_ns: u64, carrier: &mut C) {
        self.generation = self.associations.generation();
        let names = self.associations.names();
        for link in self.links.iter_mut().filter(|it| !names.contains(&it.name)) {
            link.reset(carrier);
            link.name.clear();
        }
        for name in names {
            if self.links.iter().any(|link| link.name == name) {
                continue;
            }
            let free = self.links.iter().position(|link| link.name.is_empty());
            let at = free.unwrap_or_else(|| {
                self.links.push(Link::new());
                self.links.len() - 1
            });
            self.links[at].name.clone_from(&name);
            self.links[at].ask_at_ns = now_ns;
            let why = format!("no session with {name} yet");
            self.associations.note(&name, self.settings.gateway, Some(why));
        }
        self.by_host.clear();
        for at in 0..self.links.len() {
            let link = &mut self.links[at];
            let there = self.associations.look(&link.name).and_then(|(there, _)| there);
            if link.there != there {
                let had = link.there.is_some();
                if had {
                    link.reset(carrier);
                    link.ask_at_ns = now_ns;
                }
                link.there = there;
                let is_in = matches!(link.state, GatewayLinkState::In(..));
                link.out_ns = (there.is_some() && !is_in).then_some(now_ns);
            }
            if let Some(There { index, .. }) = there {
                let index = usize::from(index);
                if self.by_host.len() <= index {
                    self.by_host.resize(index + 1, u16::MAX);
                }
                self.by_host[index] = at as u16;
            }
        }
        self.next_ns = 0;
    }

    /// Joins what is not joined, and gives up peers that have been out of reach for too long.
    pub(super) fn look_at_clock(&mut self, now_ns: u64, carrier: &mut C) {
        self.next_ns = u64::MAX;
        for at in 0..self.links.len() {
            if self.links[at].name.is_empty() {
                continue;
            }
            let link = &self.links[at];
            if let (Some(out_ns), Some(there)) = (link.out_ns, link.there) {
                let end_ns = out_ns.saturating_add(super::GIVE_UP_NS);
                if now_ns >= end_ns {
                    self.associations.give_up(&link.name, there);
                    self.look_around(now_ns, carrier);
                } else {
                    self.next_ns = self.next_ns.min(end_ns);
                }
            }
            self.ask(at, now_ns, carrier);
            self.give_sign(at, now_ns);
            let link = &mut self.links[at];
            let due_ns = match link.state {
                GatewayLinkState::Out => link.ask_at_ns,
                GatewayLinkState::Asked(_, until_ns) => until_ns,
                GatewayLinkState::In(..) => link.sign_ns.min(link.again_ns),
            };
            let owed = link.incoming.values().filter(|it| !it.owed.is_empty());
            let owed_ns = owed.map(|it| it.owed_ns + super::OWED_NS).min();
            if owed_ns.is_some_and(|at_ns| at_ns <= now_ns) {
                self.stir(at);
            }
            let owed_ns = owed_ns.filter(|at_ns| *at_ns > now_ns).unwrap_or(u64::MAX);
            self.next_ns = self.next_ns.min(due_ns).min(owed_ns);
        }
    }

    /// A link that can be used: sends what did not go out, or a batch of nothing now and then, by
    /// whose answer it is known whether it still can.
    fn give_sign(&mut self, at: usize, now_ns: u64) {
        let link = &mut self.links[at];
        if !matches!(link.state, GatewayLinkState::In(..)) {
            return;
        }
        let mut is_due = now_ns >= link.again_ns;
        if is_due {
            link.again_ns = u64::MAX;
            if link.outbox.is_probing() {
                link.outbox.begin_slowly();
                link.again_ns = now_ns + super::LATER_NS;
            }
        }
        if now_ns >= link.sign_ns {
            link.sign_ns = now_ns + super::SIGN_NS;
            // Asked each time, so that it is about the time since the last one.
            if link.outbox.is_quiet() && link.outbox.is_idle() {
                link.outbox.rest();
                link.outbox.send_beside(KeptEntries::nothing());
                is_due = true;
            }
        }
        if is_due {
            self.stir(at);
        }
    }

    fn ask(&mut self, at: usize, now_ns: u64, carrier: &mut C) {
        let link = &mut self.links[at];
        let due_ns = match link.state {
            GatewayLinkState::In(..) => return,
            GatewayLinkState::Out => link.ask_at_ns,
            GatewayLinkState::Asked(_, until_ns) => until_ns,
        };
        if now_ns < due_ns {
            return;
        }
        link.state = GatewayLinkState::Out;
        let with_it = self.sessions.iter().filter(|(_, peer)| peer.name == link.name);
        let with_it: Vec<_> = with_it.map(|(session, peer)| (*session, peer.binding)).collect();
        link.asks = link.asks.wrapping_add(1);
        if with_it.is_empty() {
            link.ask_at_ns = u64::MAX;
            return;
        }
        let (session, binding) = with_it[usize::from(link.asks) % with_it.len()];
        link.state = GatewayLinkState::Asked(session, now_ns + ANSWER_NS);
        let (name, number) = (link.name.clone(), link.asks);
        let Some((_, epoch)) = self.associations.look(&name) else { return };
        let options = self.associations.table().region().options();
        let domain = self.settings.domain.clone();
        let proof = (self.settings.prove)(&statement(ASKS, &binding, options.host, &domain));
        let join = Join {
            gateway: self.settings.gateway,
            gateways: options.gateways,
            layout: REGION_VERSION as u16,
            host: options.host,
            epoch,
            buffer_bytes: options.buffer_bytes,
            proof,
            domain,
        };
        let token = self.token(at, true, number);
        if !carrier.call(session, token, &join.head(), None) {
            self.links[at].state = GatewayLinkState::Out;
            self.links[at].ask_at_ns = now_ns + ASK_AGAIN_NS;
        }
    }

    /// Can be sent to no longer; to be asked for at that time.
    pub(super) fn go_out(&mut self, at: usize, now_ns: u64, ask_at_ns: u64, why: String) {
        let link = &mut self.links[at];
        link.state = GatewayLinkState::Out;
        link.ask_at_ns = ask_at_ns;
        if link.there.is_some() {
            link.out_ns.get_or_insert(now_ns);
        }
        self.associations.note(&link.name, self.settings.gateway, Some(why));
        self.next_ns = 0;
    }

    pub(super) fn join_answered(
        &mut self,
        at: usize,
        now_ns: u64,
        answer: GatewayAnswer,
        carrier: &mut C,
    ) {
        let GatewayLinkState::Asked(session, _) = self.links[at].state else { return };
        if let Err(why) = self.enter(at, now_ns, session, answer, carrier) {
            self.go_out(at, now_ns, now_ns + ASK_AGAIN_NS, why);
        }
    }

    fn enter(
        &mut self,
        at: usize,
        now_ns: u64,
        session: C::Session,
        answer: GatewayAnswer,
        carrier: &mut C,
    ) -> Result<(), String> {
        let (channel, host, epoch, received, proof) = match answer {
            GatewayAnswer::Done { channel, host, epoch, received, proof } => {
                (channel, host, epoch, received, proof)
            }
            GatewayAnswer::Refused(text) => return Err(text),
            // The peer's answer to a message that it cannot read.
            GatewayAnswer::NoChannel => {
                let text =
                    "it does not understand this node: run one release of vrio on both hosts";
                return Err(text.to_owned());
            }
            _ => return Err("its answer is not valid".to_owned()),
        };
        let peer = self.sessions.get(&session).ok_or("the session is over")?;
        let (name, domain) = (peer.name.clone(), &self.settings.domain);
        let wanted = (self.settings.prove)(&statement(ANSWERS, &peer.binding, host, domain));
        if !bool::from(subtle::ConstantTimeEq::ct_eq(&wanted[..], &proof[..])) {
            return Err(format!("{name} does not prove the key of the domain"));
        }
        self.associations.meet(&name, host, epoch)?;
        if self.associations.generation() != self.generation {
            self.look_around(now_ns, carrier);
        }
        let link = &mut self.links[at];
        let is_known = received >= link.outbox.first();
        let Some(taken) = is_known.then(|| link.outbox.taken(received)).flatten() else {
            if let Some(there) = link.there {
                self.associations.give_up(&name, there);
            }
            return Err(format!("{name} has other messages than were sent to it"));
        };
        taken.into_iter().for_each(|kept| kept.release(carrier));
        link.outbox.begin_again();
        (link.state, link.out_ns) = (GatewayLinkState::In(session, channel), None);
        (link.granted, link.sign_ns) = (link.asks, now_ns + super::SIGN_NS);
        self.next_ns = 0;
        self.associations.note(&name, self.settings.gateway, None);
        self.stir(at);
        Ok(())
    }

    /// A gateway of a peer wants to send.
    pub(super) fn join(
        &mut self,
        now_ns: u64,
        session: C::Session,
        join: &Join,
        carrier: &mut C,
    ) -> Result<GatewayAnswer, String> {
        let peer = self.sessions.get(&session).ok_or("the session is over")?.clone();
        let options = self.associations.table().region().options();
        let domain = self.settings.domain.clone();
        let wanted = (self.settings.prove)(&statement(ASKS, &peer.binding, join.host, &domain));
        let proves = bool::from(subtle::ConstantTimeEq::ct_eq(&wanted[..], &join.proof[..]));
        if self.associations.look(&peer.name).is_none() || !proves {
            return Err(not_open(&domain));
        }
        if u32::from(join.layout) != REGION_VERSION {
            // Those before this stood in the message say nothing there.
            let theirs = match join.layout {
                0 => "an older one".to_owned(),
                layout => layout.to_string(),
            };
            return Err(format!(
                "it has layout {REGION_VERSION} of domains' memory, and this one {theirs}: run one \
                 release of vrio on both hosts"
            ));
        }
        if join.buffer_bytes != options.buffer_bytes {
            return Err(format!("its buffers have {} bytes", options.buffer_bytes));
        }
        self.associations.meet(&peer.name, join.host, join.epoch)?;
        let (gateway, mine) = (join.gateway, self.settings.gateway);
        if self.associations.taker(&peer.name, gateway, mine) != mine {
            return Err("another sidecore has this gateway's messages: ask there".to_owned());
        }
        if self.associations.generation() != self.generation {
            self.look_around(now_ns, carrier);
        }
        let epoch = self.associations.look(&peer.name).map_or(1, |(_, epoch)| epoch);
        let place = self.links.iter().position(|link| link.name == peer.name);
        let link = &mut self.links[place.ok_or("the domain was just removed")?];
        // On another thread.
        link.there.ok_or("the association was just given up")?;
        let channel = BatchChannel { room: self.settings.number, number: self.channel_next };
        self.channel_next = self.channel_next.wrapping_add(1);
        let (gateways, heard) = (join.gateways, &mut link.heard);
        let incoming = link.incoming.entry(gateway).or_insert_with(|| {
            let next = heard.remove(&gateway).unwrap_or(0);
            let (inbox, owed, owed_ns) = (LinkInbox::new(next), Vec::new(), 0);
            Box::new(Incoming { session, channel, gateways, inbox, owed, owed_ns })
        });
        incoming.forget(carrier);
        (incoming.session, incoming.channel) = (session, channel);
        let received = incoming.inbox.received();
        // A peer that is heard can be asked.
        if link.state == GatewayLinkState::Out {
            link.ask_at_ns = now_ns;
            self.next_ns = 0;
        }
        let host = options.host;
        let proof = (self.settings.prove)(&statement(ANSWERS, &peer.binding, host, &domain));
        Ok(GatewayAnswer::Done { channel, host, epoch, received, proof })
    }
}
