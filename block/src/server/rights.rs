//! Who a session belongs to, and what it may ask for.
//!
//! A stranger learns nothing about volumes: one that does not exist and one that is not open to him
//! are refused with the same words. What is the case is for the log of this node.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use sidecore::LogLines;
use transport::PeerInfo;

use crate::export::{Export, Exports, Refusal};
use crate::wire::{Names, Outcome, Request, ZEROING_VERSION_MIN};
use peer::proof::{AttachmentKey, Binding, verify};

/// Lines that a session may cause in the log in a minute: a hostile peer must not fill it.
const LOG_LINES_MAX: u32 = 8;

/// After how long a refusal that goes on is told again: a disk whose volume is refused asks every
/// few seconds.
const TOLD_AGAIN_NS: u64 = 600_000_000_000;

/// Refused volumes of a session that are remembered, the oldest of more forgotten: a node with more
/// of them has its lines counted all the same.
const TOLD_MAX: usize = 16;

/// The peer at the other end of a session.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) process_nonce: u64,
    /// Of the peer, in [`Shares`](super::shares::Shares).
    pub(super) number: usize,
    /// Of the session.
    pub(super) version: u8,
    /// The volumes that were described to it, and when last: as many as are open to it at most.
    pub(super) knows: BTreeMap<String, u64>,
    binding: Binding,
    /// The claimant whose claim was refused last, for the log.
    refused: Option<u64>,
    log_lines: LogLines,
    /// Volumes whose refusal was told, why, and when.
    told: VecDeque<(String, &'static str, u64)>,
}

impl Peer {
    pub(super) fn new(info: &PeerInfo, number: usize) -> Self {
        Self {
            name: info.name.clone(),
            process_nonce: info.process_nonce,
            number,
            version: info.version,
            knows: BTreeMap::new(),
            binding: info.binding,
            refused: None,
            log_lines: LogLines::new(LOG_LINES_MAX),
            told: VecDeque::new(),
        }
    }

    /// Whether it can be told that a volume is another one now.
    pub(super) fn understands_changes(&self) -> bool {
        self.version >= ZEROING_VERSION_MIN
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
        &mut self,
        now_ns: u64,
        exports: &Exports,
        volume: &str,
        key: Option<AttachmentKey>,
    ) -> Result<(Arc<Export>, Right), Refusal> {
        let why = match exports.get(volume) {
            Some(export) => {
                // The number first: a list that is changed in between is looked at again.
                let right = Right { key, generation: export.allow_generation() };
                if export.allows(&self.name, key) {
                    return Ok((export, right));
                }
                "its `allow` has no entry for it"
            }
            None => "it does not exist",
        };
        self.log(now_ns, volume, key, why);
        Err(not_open(volume, &self.name, key))
    }

    fn log(&mut self, now_ns: u64, volume: &str, key: Option<AttachmentKey>, why: &'static str) {
        if self.is_news(now_ns, volume, why) {
            let key = key.map(tracing::field::display);
            tracing::warn!(peer = self.name, volume, key, why, "a volume was refused");
        }
    }

    /// Whether a volume's refusal is worth a line: the first for that reason, and one each ten
    /// minutes while it goes on.
    fn is_news(&mut self, now_ns: u64, volume: &str, why: &'static str) -> bool {
        let is_same = |told: &(String, &str, u64)| told.0 == volume && told.1 == why;
        if let Some(told) = self.told.iter_mut().find(|told| is_same(told)) {
            let is_due = now_ns.saturating_sub(told.2) >= TOLD_AGAIN_NS;
            if is_due {
                told.2 = now_ns;
            }
            return is_due;
        }
        let may = self.log_lines.may(now_ns);
        if may {
            if self.told.len() == TOLD_MAX {
                self.told.pop_front();
            }
            self.told.push_back((volume.to_owned(), why, now_ns));
        }
        may
    }

    /// A claim was refused. The same claimant's next one is not worth a line: it asks each second.
    pub(super) fn log_claim(
        &mut self,
        now_ns: u64,
        names: &Names,
        request: &Request,
        refusal: &Refusal,
    ) {
        let claimant = request.claim.claimant;
        if self.refused == Some(claimant) || !self.log_lines.may(now_ns) {
            return;
        }
        self.refused = Some(claimant);
        tracing::warn!(
            volume = names.volume,
            attachment = names.attachment,
            node = self.name,
            claimant = format_args!("{claimant:016x}"),
            resumes = request.claim.resume,
            known_epoch = request.claim.known,
            why = refusal.text,
            "a claim was refused"
        );
    }
}

/// By what a flow was opened; it lives with the flow.
#[derive(Debug)]
pub(super) struct Right {
    key: Option<AttachmentKey>,
    /// The volume's list in which it was found.
    generation: u64,
}

impl Right {
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
    pub(super) fn renew(&mut self, peer: &Peer, export: &Export) -> bool {
        self.generation = export.allow_generation();
        export.allows(&peer.name, self.key)
    }

    /// The refusal of a flow whose right is gone.
    pub(super) fn gone(&self, peer: &Peer, export: &Export) -> Refusal {
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
    use super::*;

    #[test]
    fn a_refusal_is_told_once_and_each_ten_minutes_and_nobody_fills_the_log() {
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
        let second = |at: u64| at * 1_000_000_000;
        let mut peer = Peer::new(&info, 0);
        // Each second for half an hour and a second, two volumes for two reasons.
        let told: Vec<_> = (1..=1_801)
            .flat_map(|at| [(at, "a", "x"), (at, "b", "x"), (at, "b", "y")])
            .filter(|(at, volume, why)| peer.is_news(second(*at), volume, why))
            .collect();
        let at = |at| [(at, "a", "x"), (at, "b", "x"), (at, "b", "y")];
        assert_eq!(told, [at(1), at(601), at(1_201), at(1_801)].concat());
        // Always another volume: so many lines in a minute.
        let mut peer = Peer::new(&info, 0);
        let names = (0..100_000).map(|number| format!("v{number}"));
        let told = names.filter(|name| peer.is_news(second(1), name, "x")).count();
        assert_eq!((told, peer.told.len()), (LOG_LINES_MAX as usize, LOG_LINES_MAX as usize));
        for minute in 1..10 {
            for name in 0..100 {
                peer.is_news(second(1 + 60 * minute), &format!("{minute}-{name}"), "x");
            }
        }
        assert_eq!(peer.told.len(), TOLD_MAX);
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
