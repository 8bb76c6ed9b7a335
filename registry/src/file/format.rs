//! The content of the file: a line with the format's version and the SHA-256 of the rest, and JSON.
//!
//! ```text
//!   vrio registry 1 9f86d081884c7d65...
//!   {"store":"00c0ffee00c0ffee","revision":7,"boot":"6ad1...","entries":[...],"leases":[...],
//!    "last_lease":3,"history":[...],"forgotten":0}
//! ```

use std::collections::BTreeSet;
use std::path::Path;

use data_encoding::{BASE64, HEXLOWER};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::BootTime;
use crate::error::RegistryError;
use crate::key::Key;
use crate::limits::LIST_BYTES_MAX;
use crate::registry::{EntryChange, EntryEvent, LeaseId};
use crate::state::{HeldValue, LeaseTerm, RegistryState};

/// The version of the format.
const VERSION: u64 = 1;

/// The beginning of the file.
const TITLE: &str = "vrio registry";

/// The longest file: the entries in Base64, and the values of the history.
pub(super) const FILE_BYTES_MAX: usize = 4 * LIST_BYTES_MAX;

#[derive(Serialize, Deserialize)]
struct StoredState {
    store: String,
    revision: u64,
    boot: String,
    entries: Vec<StoredEntry>,
    leases: Vec<StoredLease>,
    last_lease: u64,
    history: Vec<StoredEvent>,
    forgotten: u64,
}

#[derive(Serialize, Deserialize)]
struct StoredEntry {
    key: String,
    /// In Base64.
    value: String,
    revision: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct StoredLease {
    id: u64,
    seconds: u64,
    /// On the clock of the boot above.
    ends_ns: u64,
}

#[derive(Serialize, Deserialize)]
struct StoredEvent {
    key: String,
    /// In Base64; none: the key was removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    revision: u64,
}

/// The content of a state.
pub(super) fn written(state: &RegistryState, boot: &str) -> Vec<u8> {
    let entries = state.entries.iter().map(|(key, held)| StoredEntry {
        key: key.to_string(),
        value: BASE64.encode(&held.value),
        revision: held.revision,
        lease: held.lease.map(|lease| lease.0),
    });
    let leases = state.leases.iter().map(|(id, term)| StoredLease {
        id: id.0,
        seconds: term.seconds,
        ends_ns: term.ends_ns,
    });
    let history = state.history.iter().map(|event| StoredEvent {
        key: event.key.to_string(),
        value: match &event.change {
            EntryChange::Put(value) => Some(BASE64.encode(value)),
            EntryChange::Deleted => None,
        },
        revision: event.revision,
    });
    let stored = StoredState {
        store: format!("{:016x}", state.store),
        revision: state.revision,
        boot: boot.to_owned(),
        entries: entries.collect(),
        leases: leases.collect(),
        last_lease: state.last_lease,
        history: history.collect(),
        forgotten: state.forgotten,
    };
    let body = serde_json::to_string(&stored).expect("numbers and texts") + "\n";
    let sum = HEXLOWER.encode(&Sha256::digest(&body));
    format!("{TITLE} {VERSION} {sum}\n{body}").into_bytes()
}

/// The state of a content. Leases of another boot have ended: they end at the time 0.
pub(super) fn read_content(
    path: &Path,
    content: &[u8],
    now: &BootTime,
) -> Result<RegistryState, RegistryError> {
    let damaged = |reason: &str| RegistryError::Damaged {
        place: path.display().to_string(),
        reason: reason.to_owned(),
    };
    if content.len() > FILE_BYTES_MAX {
        return Err(damaged("it is too long"));
    }
    let text = std::str::from_utf8(content).map_err(|_| damaged("it is no text"))?;
    let (head, body) = text.split_once('\n').ok_or_else(|| damaged("it has no second line"))?;
    let words = head.strip_prefix(TITLE).map(str::trim).and_then(|rest| rest.split_once(' '));
    let (version, sum) = words.ok_or_else(|| damaged("its first line is none of a registry"))?;
    match version.parse() {
        Ok(VERSION) => {}
        Ok(found) => {
            let place = path.display().to_string();
            return Err(RegistryError::OtherVersion { place, found, known: VERSION });
        }
        Err(_) => return Err(damaged("its version is no number")),
    }
    if HEXLOWER.encode(&Sha256::digest(body)) != sum {
        return Err(damaged("its sum is wrong"));
    }
    let stored: StoredState =
        serde_json::from_str(body).map_err(|error| damaged(&error.to_string()))?;
    state(stored, now).ok_or_else(|| damaged("its records contradict each other"))
}

/// None if the records are no records of a registry.
fn state(stored: StoredState, now: &BootTime) -> Option<RegistryState> {
    let store = u64::from_str_radix(&stored.store, 16).ok()?;
    let mut state = RegistryState::new(store);
    state.revision = stored.revision;
    state.last_lease = stored.last_lease;
    state.forgotten = stored.forgotten;
    let same_boot = stored.boot == now.boot;
    for StoredLease { id, seconds, ends_ns } in stored.leases {
        let ends_ns = if same_boot { ends_ns } else { 0 };
        state.leases.insert(LeaseId(id), LeaseTerm { seconds, ends_ns });
    }
    let is_past = |revision: u64| (1..=stored.revision).contains(&revision);
    for StoredEntry { key, value, revision, lease } in stored.entries {
        let value = BASE64.decode(value.as_bytes()).ok()?;
        let lease = lease.map(LeaseId);
        let is_held = lease.is_none_or(|lease| state.leases.contains_key(&lease));
        let held = HeldValue { value, revision, lease };
        let is_new = state.entries.insert(Key::new(key).ok()?, held).is_none();
        (is_held && is_new && is_past(revision)).then_some(())?;
    }
    for StoredEvent { key, value, revision } in stored.history {
        let change = match value {
            Some(value) => EntryChange::Put(BASE64.decode(value.as_bytes()).ok()?),
            None => EntryChange::Deleted,
        };
        is_past(revision).then_some(())?;
        state.history.push_back(EntryEvent { key: Key::new(key).ok()?, change, revision });
    }
    let revisions: Vec<_> = state.history.iter().map(|event| event.revision).collect();
    let ids: BTreeSet<_> = state.leases.keys().map(|lease| lease.0).collect();
    let is_whole = revisions.is_sorted()
        && state.revision > 0
        && state.forgotten <= state.revision
        && ids.last().is_none_or(|last| *last <= state.last_lease);
    is_whole.then_some(state)
}
