//! The meaning of etcd's answers.

use registry::{Entry, Key, LeaseId, RegistryError, Stamp};
use tonic::{Code, Status};

use super::wire::{KeyValue, ResponseHeader};

/// An answer that is an error.
#[derive(Debug)]
pub(super) enum Answer {
    /// etcd has said that it did not do it.
    Said(RegistryError),
    /// No answer, or an answer that may have been made before the request took effect.
    Silent(String),
}

/// The way out of a full etcd.
pub(crate) const SPACE_WAY_OUT: &str = "changes wait, I/O goes on: `etcdctl compact REVISION`, \
    `etcdctl defrag` for each member, then `etcdctl alarm disarm`, as docs/cluster.md says under \
    \"etcd is out of space\"";

/// The way out of an answer that is longer than the client takes.
const LENGTH_WAY_OUT: &str = "an answer of etcd is longer than a cluster's records are, so another \
    program has written below /vrio: `etcdctl get --prefix --keys-only /vrio/` names the keys, and \
    `etcdctl del KEY` removes one";

pub(super) fn answer_of(status: Status) -> Answer {
    let text = status.message().to_owned();
    Answer::Said(match status.code() {
        Code::ResourceExhausted if text.contains("space exceeded") => {
            RegistryError::OutOfSpace { reason: text, way_out: SPACE_WAY_OUT.to_owned() }
        }
        Code::NotFound if text.contains("lease not found") => RegistryError::LeaseEnded,
        Code::InvalidArgument => {
            RegistryError::Invalid { what: format!("etcd refuses it: {text}") }
        }
        Code::OutOfRange if text.contains("length too large") => {
            RegistryError::Invalid { what: LENGTH_WAY_OUT.to_owned() }
        }
        Code::OutOfRange if text.contains("compacted") => RegistryError::Compacted { oldest: 0 },
        Code::PermissionDenied | Code::Unauthenticated => RegistryError::Denied { reason: text },
        // Its own text has its cause in the form for programmers.
        _ => return Answer::Silent(with_causes(text, &status)),
    })
}

/// The text of an error and its causes.
pub(super) fn text_of(error: &dyn std::error::Error) -> String {
    with_causes(error.to_string(), error)
}

/// An error with its causes: a certificate that is refused is the cause of a lost connection.
fn with_causes(mut text: String, error: &dyn std::error::Error) -> String {
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// Whether a member has taken the connection, and closed it then, as it does with a client that
/// has a certificate it does not believe.
pub(super) fn is_refusal(reason: &str) -> bool {
    ["broken pipe", "reset", "connection closed", "closed connection", "alert", "certificate"]
        .iter()
        .any(|word| reason.contains(word))
}

/// The text for an operator when each member has done so.
pub(super) const REFUSED: &str = "each member closes the connection: the certificate of this \
    machine was revoked, has ended, or is of another cluster (`vrio cluster status` on the \
    operator's machine)";

pub(super) fn stamp_of(header: Option<&ResponseHeader>) -> Result<Stamp, RegistryError> {
    let header = header
        .ok_or_else(|| RegistryError::Away { reason: "etcd's answer has no header".to_owned() })?;
    Ok(Stamp { store: header.cluster_id, revision: header.revision as u64 })
}

/// None for a key that breaks the rules.
pub(super) fn entry_of(pair: &KeyValue) -> Option<Entry> {
    let key = Key::new(std::str::from_utf8(&pair.key).ok()?).ok()?;
    let lease = (pair.lease != 0).then_some(LeaseId(pair.lease as u64));
    Some(Entry { key, value: pair.value.clone(), revision: pair.mod_revision as u64, lease })
}
