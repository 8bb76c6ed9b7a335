//! The meaning of etcd's answers.

use etcd_client::{Error, KeyValue, ResponseHeader};
use registry::{Entry, Key, LeaseId, RegistryError, Stamp};

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

/// The way out of an answer beyond [`ANSWER_BYTES_MAX`](super::ANSWER_BYTES_MAX).
const LENGTH_WAY_OUT: &str = "an answer of etcd is longer than a cluster's records are, so another \
    program has written below /vrio: `etcdctl get --prefix --keys-only /vrio/` names the keys, and \
    `etcdctl del KEY` removes one";

/// Codes of gRPC, by number: the crate's own type is another crate's.
const INVALID_ARGUMENT: i32 = 3;
const NOT_FOUND: i32 = 5;
const PERMISSION_DENIED: i32 = 7;
const RESOURCE_EXHAUSTED: i32 = 8;
const OUT_OF_RANGE: i32 = 11;
const UNAUTHENTICATED: i32 = 16;

pub(super) fn answer_of(error: Error) -> Answer {
    let status = match error {
        Error::GRpcStatus(status) => status,
        Error::LeaseKeepAliveError(text) if text.contains("not found") => {
            return Answer::Said(RegistryError::LeaseEnded);
        }
        error => return Answer::Silent(with_causes(error.to_string(), &error)),
    };
    let text = status.message().to_owned();
    Answer::Said(match i32::from(status.code()) {
        RESOURCE_EXHAUSTED if text.contains("space exceeded") => {
            RegistryError::OutOfSpace { reason: text, way_out: SPACE_WAY_OUT.to_owned() }
        }
        NOT_FOUND if text.contains("lease not found") => RegistryError::LeaseEnded,
        INVALID_ARGUMENT => RegistryError::Invalid { what: format!("etcd refuses it: {text}") },
        OUT_OF_RANGE if text.contains("length too large") => {
            RegistryError::Invalid { what: LENGTH_WAY_OUT.to_owned() }
        }
        OUT_OF_RANGE if text.contains("compacted") => RegistryError::Compacted { oldest: 0 },
        PERMISSION_DENIED | UNAUTHENTICATED => RegistryError::Denied { reason: text },
        // Its own text has its cause in the form for programmers.
        _ => return Answer::Silent(with_causes(text, &status)),
    })
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

/// Whether a member has taken the connection, and closed it then, as it does with a client whose
/// certificate it does not believe.
pub(super) fn is_refusal(reason: &str) -> bool {
    ["broken pipe", "reset", "connection closed", "alert", "certificate"]
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
    Ok(Stamp { store: header.cluster_id(), revision: header.revision() as u64 })
}

/// None for a key that breaks the rules.
pub(super) fn entry_of(pair: &KeyValue) -> Option<Entry> {
    let key = Key::new(pair.key_str().ok()?).ok()?;
    let lease = (pair.lease() != 0).then_some(LeaseId(pair.lease() as u64));
    Some(Entry { key, value: pair.value().to_vec(), revision: pair.mod_revision() as u64, lease })
}
