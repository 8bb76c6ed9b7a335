//! Endpoints of other hosts: their messages go by the ring of a gateway, which all endpoints share.
//!
//! A receiver that does not look into its ring must fill neither this ring nor the node's memory.
//! So a sender has no more than a *window* of bytes under way to each receiver. It *marks* a cell
//! each time that a quarter of the window has been sent since the last mark. The gateway over there
//! says when it has put the marked cell into the receiver's ring. No other process keeps count of
//! the window.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;

use super::engine::Engine;
use super::local_node::LocalNode;
use crate::cell::{Cell, CellHead, CellKind, Local};
use crate::message::Class;
use crate::region::{CELL_BYTES, Region, gateway_of};
use crate::ring::Words;

/// Bytes that are sent between two marks.
const MARK_BYTES: usize = 64 << 10;

/// Marks that may be outstanding; then the sender waits for the receiver's node. Together with the
/// bytes behind the last mark this is as much as a gateway's buffers hold for one receiver. More
/// bytes would wait beside the buffers, and be copied twice more.
const MARKS_MAX: u8 = 7;

/// Marks that may be outstanding while messages are pushed. Beyond that they are offered: so many
/// bytes are on their way that the round trip of an offer costs nothing, and pushing would fill the
/// window and hold up the sender.
const PUSH_MARKS_MAX: u8 = 4;

impl Engine {
    pub(super) fn set_home(&mut self, home: Arc<dyn LocalNode>) {
        self.peers.remotes.home = Some(home);
    }

    /// The owner of the ring that leads to an endpoint: the endpoint, or the pair's gateway.
    #[inline(always)]
    pub(super) fn ring_to(&self, region: &Region, to: Local) -> Local {
        if to.host == 0 {
            return to;
        }
        self.ring_of_gateway(region, to)
    }

    #[inline(never)]
    fn ring_of_gateway(&self, region: &Region, to: Local) -> Local {
        let slot = gateway_of(self.me.slot, to.slot, region.options().gateways);
        let incarnation = region.life(slot).map_or(0, |life| life.incarnation);
        Local { host: 0, slot, incarnation }
    }

    /// Whether a message can go to an endpoint now, apart from room in its ring.
    #[inline(always)]
    pub(super) fn is_open(&mut self, region: &Region, to: Local) -> bool {
        to.host == 0 || self.is_way_open(region, to)
    }

    #[inline(never)]
    fn is_way_open(&mut self, region: &Region, to: Local) -> bool {
        if region.options().gateways == 0 {
            return false;
        }
        let gateway = self.ring_to(region, to).slot;
        let holds = region.hold(to.host);
        holds >> gateway & 1 == 0 && self.peers.remotes.get(to).marks < MARKS_MAX
    }

    /// Whether much is left of the window of an endpoint of another host.
    pub(super) fn has_room_to_push(&mut self, to: Local) -> bool {
        self.peers.remotes.get(to).marks < PUSH_MARKS_MAX
    }

    /// Publishes a cell with a message of so many bytes beside it.
    #[inline(always)]
    pub(super) fn publish(
        &mut self,
        region: &Region,
        cell: &Cell<'_>,
        head: &CellHead,
        bytes: usize,
    ) {
        match head.to.host {
            0 => {
                cell.publish(head);
                self.wake(region, cell, head.to, head.kind);
            }
            _ => self.publish_to_gateway(region, *cell, *head, bytes),
        }
    }

    #[inline(never)]
    fn publish_to_gateway(
        &mut self,
        region: &Region,
        cell: Cell<'_>,
        head: CellHead,
        bytes: usize,
    ) {
        let remote = self.peers.remotes.get(head.to);
        let is_due = remote.add_unmarked(CELL_BYTES + bytes, MARK_BYTES);
        // A question comes into no ring, so no gateway would answer its mark.
        let marked = is_due && head.kind != CellKind::Ask;
        if marked {
            remote.mark();
        }
        cell.publish(&CellHead { marked, ..head });
        self.note_sent(head.to, head.kind);
        let gateway = self.ring_to(region, head.to).slot;
        match &mut self.peers.remotes.doorbells {
            Some(doorbells) => *doorbells |= 1 << gateway,
            None => self.wake_gateways(region, 1 << gateway),
        }
    }

    /// Publishes several cells, for which gateways are woken once.
    pub(super) fn publish_several(&mut self, region: &Region, publish: impl FnOnce(&mut Self)) {
        self.peers.remotes.doorbells = Some(0);
        publish(self);
        let gateways = self.peers.remotes.doorbells.take().unwrap_or_default();
        if gateways != 0 {
            self.wake_gateways(region, gateways);
        }
    }

    /// Wakes those of these gateways that sleep, a bit for each: they have cells to take out.
    fn wake_gateways(&self, region: &Region, gateways: u64) {
        // A gateway that falls asleep says so before it looks for the last time.
        fence(SeqCst);
        let mut left = gateways;
        while left != 0 {
            let gateway = left.trailing_zeros() as u16;
            left &= left - 1;
            if region.ring(gateway).asleep() != 0
                && let Some(home) = &self.peers.remotes.home
            {
                home.wake(gateway);
            }
        }
    }

    /// Takes a gateway's word about an endpoint of another host. `false`: the endpoint is of this
    /// host, or the cell says nothing about it.
    pub(super) fn told(&mut self, kind: CellKind, about: Local) -> bool {
        if about.host == 0 {
            return false;
        }
        let remote = self.peers.remotes.get(about);
        match kind {
            CellKind::Credit if remote.incarnation == about.incarnation => {
                remote.marks = remote.marks.saturating_sub(1);
            }
            CellKind::Credit => {}
            CellKind::Gone => {
                remote.gone = remote.gone.max(about.incarnation);
                let (last, gone) = (remote.incarnation, remote.gone);
                if remote.outstanding > 0 && last <= gone {
                    self.bury(Local { incarnation: last, ..about });
                }
            }
            _ => return false,
        }
        true
    }

    /// Asks gateways to say when endpoints go that requests wait for; and looks whether the node is
    /// still there.
    pub(super) fn look_at_remotes(&mut self, region: &Region) {
        let remotes = &mut self.peers.remotes;
        if remotes.known.is_empty() || remotes.orphaned {
            return;
        }
        if remotes.home.as_ref().is_some_and(|home| !home.is_there()) {
            remotes.orphaned = true;
            return;
        }
        if !remotes.may_have_unasked {
            return;
        }
        let unasked = remotes.known.waited_for().filter(|(_, it)| !it.asked);
        let unasked: Vec<_> = unasked.map(|(local, _)| local).collect();
        let mut left = false;
        for to in unasked {
            if !self.lives(region, to) {
                left = true;
                continue;
            }
            let Ok(cell) = self.claim(region, to) else { return };
            let (class, tag, data) = (Class::Untagged, 0, None);
            let (kind, source, inline_bytes) = (CellKind::Ask, self.me, 0);
            let head = CellHead { kind, class, inline_bytes, source, to, tag, data, marked: false };
            self.publish(region, &cell, &head, 0);
            self.peers.remotes.get(to).asked = true;
        }
        self.peers.remotes.may_have_unasked = left;
    }
}

#[cfg(any(test, feature = "testing"))]
impl super::Endpoint {
    /// The marks that no gateway has answered yet.
    pub fn unanswered_marks(&self) -> u32 {
        self.engine.peers.remotes.known.unanswered_marks()
    }
}
