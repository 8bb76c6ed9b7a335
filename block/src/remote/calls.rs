//! The calls of remote volumes: their flows and tokens, and how calls about attachments are sent.

use peer::{AttachmentSecret, PeerSession, PlaneId, Token, flows};
use transport::Endpoint;

use crate::wire::Request;

/// How often a volume that was described is asked for again, so that a volume that is gone or
/// closed to this node is noticed without a request of a guest. Soon enough for people; each time
/// costs the peer a round trip, and 100 us where the volume asks for a proof.
pub(crate) const CONFIRM_EVERY_NS: u64 = 5_000_000_000;

/// The subject of a notice in its token. The upper half of a token's key is the subject of the
/// call: a channel has its flow there, a description has [`flows::CONTROL`].
const NOTICE: u16 = u16::MAX;

const _: () = assert!(flows::CHANNELS.end < NOTICE);

/// The token of notices to peers, whose answers say nothing.
pub(crate) const NOTICE_TOKEN: Token = token(NOTICE, 0);

/// The token of a call by a channel, which has this flow, or for a description.
pub(super) const fn token(flow: u16, number: u32) -> Token {
    Token::new(PlaneId::Block, (flow as u64) << 32 | number as u64)
}

/// The flow of a call by its token.
pub(super) fn flow_of(token: Token) -> u16 {
    (token.key() >> 32) as u16
}

/// Sends a call about an attachment, by this flow and under this token, with the proof of its key
/// where it has one. `false` when it was not taken: there is no room now.
pub(super) fn control(
    now_ns: u64,
    session: PeerSession,
    (flow, token): (u16, Token),
    request: &Request,
    key: Option<&AttachmentSecret>,
    endpoint: &mut Endpoint,
) -> bool {
    let names = request.names.as_ref().expect("calls about attachments name them");
    let head = request.encode();
    let proof = key.and_then(|key| key.prove(&session.binding, request.kind as u8, names.pair()));
    let mut body = None;
    if let Some(proof) = proof {
        let Some(buffer) = endpoint.pool_mut().alloc(proof.len()) else { return false };
        endpoint.pool_mut().bytes_mut(buffer)[..proof.len()].copy_from_slice(&proof);
        body = Some((buffer, proof.len()));
    }
    let sent = endpoint.call(now_ns, session.id, flow, token.raw(), head.as_bytes(), body);
    if let Some((buffer, _)) = body {
        endpoint.pool_mut().release(buffer);
    }
    sent.is_ok()
}
