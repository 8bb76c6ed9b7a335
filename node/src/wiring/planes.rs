//! The planes of a sidecore behind its sessions: each call, answer and frame goes to the plane that
//! it is for.

use std::cell::RefCell;
use std::rc::Rc;

use block::Plane;
use transport::{BufId, CallId, LostReason, PeerInfo, SessionId, Sink};

use super::gateways::Gateways;

/// All that a sidecore's sessions serve; a service of it, and its sessions' sink.
#[derive(Debug)]
pub(super) struct Planes {
    pub(super) block: Rc<RefCell<Plane>>,
    pub(super) net: Rc<RefCell<net::remote::Plane>>,
    pub(super) gateways: Rc<RefCell<Gateways>>,
}

impl Sink for Planes {
    fn connected(&mut self, session: SessionId, peer: &PeerInfo) {
        self.block.borrow_mut().connected(session, peer);
        self.net.borrow_mut().connected(session, peer);
        self.gateways.borrow_mut().connected(session, peer);
    }

    fn lost(&mut self, session: SessionId, why: &LostReason) {
        self.block.borrow_mut().lost(session, why);
        self.net.borrow_mut().lost(session, why);
        self.gateways.borrow_mut().lost(session, why);
    }

    fn reply_body(&mut self, session: SessionId, token: u64, offset: usize, bytes: &[u8]) {
        // Only answers of the block plane have bodies; a stray one is for it to count.
        self.block.borrow_mut().reply_body(session, token, offset, bytes);
    }

    fn reply(&mut self, session: SessionId, token: u64, head: &[u8], body_bytes: usize) {
        if Gateways::takes_reply(token) {
            self.gateways.borrow_mut().reply(session, token, head, body_bytes);
        } else if net::remote::Plane::takes_reply(token) {
            self.net.borrow_mut().reply(session, token, head, body_bytes);
        } else {
            self.block.borrow_mut().reply(session, token, head, body_bytes);
        }
    }

    fn call(
        &mut self,
        session: SessionId,
        flow: u16,
        call: CallId,
        head: &[u8],
        body: Option<(BufId, usize)>,
    ) {
        if Gateways::takes_call(head) {
            self.gateways.borrow_mut().call(session, flow, call, head, body);
        } else if net::remote::Plane::takes_call(head) {
            self.net.borrow_mut().call(session, flow, call, head, body);
        } else {
            self.block.borrow_mut().call(session, flow, call, head, body);
        }
    }

    fn cast(&mut self, session: SessionId, flow: u16, head: &[u8], body: Option<(BufId, usize)>) {
        self.net.borrow_mut().cast(session, flow, head, body);
    }
}
