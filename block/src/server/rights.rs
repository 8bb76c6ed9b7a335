//! The peer of a session, and the volumes that it may ask for.
//!
//! A stranger learns nothing about volumes: a volume that does not exist and a volume that is
//! closed to the stranger are refused with the same words. The true reason is for the log of this
//! node.

use std::collections::BTreeMap;
use std::sync::Arc;

use transport::{PeerIdentity, PeerInfo};

use crate::export::{Export, Exports, Refusal};
use crate::wire::{
    ELSEWHERE_VERSION_MIN, Names, Outcome, Reply, Request, ZEROING_VERSION_MIN, says_elsewhere,
};
use peer::PlaneId;
use peer::proof::{AttachmentKey, Binding, verify};

/// The peer at the other end of a session.
#[derive(Debug)]
pub(super) struct SessionPeer {
    pub(super) name: String,
    pub(super) process_nonce: u64,
    /// Of the peer, in [`Shares`](super::shares::Shares).
    pub(super) number: usize,
    /// Of the session.
    pub(super) version: u8,
    /// The volumes that were described to it, and when last: as many as are open to it at most.
    pub(super) knows: BTreeMap<String, u64>,
    binding: Binding,
    /// Whose lines of the log it causes.
    identity: PeerIdentity,
}

impl SessionPeer {
    pub(super) fn new(info: &PeerInfo, number: usize) -> Self {
        Self {
            name: info.name.clone(),
            process_nonce: info.process_nonce,
            number,
            version: PlaneId::Block.version(info.version),
            knows: BTreeMap::new(),
            binding: info.binding,
            identity: PeerIdentity::of(info),
        }
    }

    /// Whether it can be told that a volume is another one now.
    pub(super) fn understands_changes(&self) -> bool {
        self.version >= ZEROING_VERSION_MIN
    }

    /// A refusal in the words of the session's version.
    pub(super) fn told(&self, refusal: Refusal) -> Reply {
        let Refusal { outcome, text } = refusal;
        match outcome {
            Outcome::Elsewhere if self.version < ELSEWHERE_VERSION_MIN => {
                Reply::refused(Outcome::Refused, says_elsewhere(&text))
            }
            outcome => Reply::refused(outcome, text),
        }
    }

    /// The attachment key that a call's body proves; none without a body.
    ///
    /// # Errors
    /// When there is a body and it proves nothing.
    pub(super) fn proved(
        &self,
        request: &Request,
        body: Option<&[u8]>,
    ) -> Result<Option<AttachmentKey>, Refusal> {
        let Some(body) = body else { return Ok(None) };
        let names = request.names.as_ref().expect("decoded with its kind");
        let key = verify(body, &self.binding, request.kind as u8, names.pair());
        key.map(Some).map_err(|error| Refusal::new(Outcome::Refused, error.to_string()))
    }

    /// The volume, if it is there for this peer and key.
    ///
    /// # Errors
    /// The same words whether it does not exist or is not open.
    pub(super) fn right(
        &self,
        now_ns: u64,
        exports: &Exports,
        volume: &str,
        key: Option<AttachmentKey>,
    ) -> Result<(Arc<Export>, FlowRight), Refusal> {
        let why = match exports.get(volume) {
            Some(export) => {
                // The number first: a list that is changed in between is looked at again.
                let right = FlowRight { key, generation: export.allow_generation() };
                if export.allows(&self.name, key) {
                    return Ok((export, right));
                }
                "its `allow` has no entry for it"
            }
            None => "it does not exist",
        };
        if let Some(kept_back) = exports.may_log(now_ns, &self.identity, volume, why) {
            let key = key.map(tracing::field::display);
            tracing::warn!(peer = self.name, volume, key, why, kept_back, "a volume was refused");
        }
        Err(not_open(volume, &self.name, key))
    }

    /// A claim was refused. The same claimant's next one is not worth a line: it asks each second.
    pub(super) fn log_claim(
        &self,
        now_ns: u64,
        exports: &Exports,
        names: &Names,
        request: &Request,
        refusal: &Refusal,
    ) {
        let claimant = request.claim.claimant;
        let about = format!("{}/{} {claimant}", names.volume, names.attachment);
        let Some(kept_back) = exports.may_log(now_ns, &self.identity, &about, "claim") else {
            return;
        };
        tracing::warn!(
            volume = names.volume,
            attachment = names.attachment,
            node = self.name,
            claimant = format_args!("{claimant:016x}"),
            resumes = request.claim.resume,
            known_epoch = request.claim.known,
            why = refusal.text,
            kept_back,
            "a claim was refused"
        );
    }
}

/// By what a flow was opened; it lives with the flow.
#[derive(Debug)]
pub(super) struct FlowRight {
    key: Option<AttachmentKey>,
    /// The volume's list in which it was found.
    generation: u64,
}

impl FlowRight {
    /// The attachment key that was proved.
    pub(super) fn key(&self) -> Option<AttachmentKey> {
        self.key
    }

    /// Whether the volume's list has changed since it was found there; asked when any
    /// list has changed.
    pub(super) fn is_old(&self, export: &Export) -> bool {
        export.allow_generation() != self.generation
    }

    /// Looks it up again: whether it still holds.
    pub(super) fn renew(&mut self, peer: &SessionPeer, export: &Export) -> bool {
        self.generation = export.allow_generation();
        export.allows(&peer.name, self.key)
    }

    /// The refusal of a flow whose right is gone.
    pub(super) fn gone(&self, peer: &SessionPeer, export: &Export) -> Refusal {
        not_open(export.name(), &peer.name, self.key)
    }
}

/// Refuses a volume that does not exist, or is not open.
pub(super) fn not_open(volume: &str, peer: &str, key: Option<AttachmentKey>) -> Refusal {
    let text = match key {
        None => format!(
            "volume {volume} is not open to {peer}: check its name and `allow` there, and \
             `attachment-key` here"
        ),
        Some(key) => format!("key {key} opens no volume {volume} to {peer}: see `allow` there"),
    };
    Refusal::new(Outcome::Refused, text)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use tracing::span::{Attributes, Id, Record};

    use super::*;
    use crate::wire::{Kind, Title};

    /// Counts lines of the log.
    #[derive(Default)]
    struct LogLineCounter(AtomicU64);

    impl tracing::Subscriber for LogLineCounter {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }

        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Relaxed);
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_peer_that_connects_again_and_again_does_not_fill_the_log() {
        let addr = "127.0.0.1:1".parse().expect("an address");
        let info = PeerInfo {
            name: "vm1".to_owned(),
            process_nonce: 1,
            addr,
            version: 2,
            index: 0,
            outgoing: false,
            key: None,
            binding: [1; 32],
        };
        let log = Arc::new(LogLineCounter::default());
        let exports = Exports::default();
        tracing::subscriber::with_default(log.clone(), || {
            for number in 0..1_000 {
                let peer = SessionPeer::new(&PeerInfo { process_nonce: number, ..info.clone() }, 0);
                let volume = format!("v{number}");
                assert!(peer.right(number, &exports, &volume, None).is_err());
                let names = Names { volume, attachment: "a".to_owned() };
                let mut request = Request::new(Kind::Claim, Title::default(), 0);
                request.claim.claimant = number;
                let refusal = Refusal::new(Outcome::Refused, "no");
                peer.log_claim(number, &exports, &names, &request, &refusal);
            }
        });
        assert_eq!(log.0.load(Relaxed), peer::LINES_AT_ONCE);
    }

    #[test]
    fn a_refusal_fits_a_reply() {
        let key = AttachmentKey([7; 32]);
        for key in [None, Some(key)] {
            let refusal = not_open("alice-root", "vm1", key);
            assert!(refusal.text.len() <= crate::wire::TEXT_BYTES_MAX, "{}", refusal.text);
            assert!(key.is_none_or(|key| refusal.text.contains(&key.to_string())));
        }
    }
}
