//! A watch of etcd.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use registry::{EntryChange, EntryEvent, RegistryError, RegistryWatch};
use tokio::runtime::Runtime;
use tonic::Streaming;

use super::answers::{Answer, answer_of, entry_of};
use super::wire::{EVENT_DELETE, EVENT_PUT, WatchResponse};

pub(super) struct EtcdWatch {
    runtime: Arc<Runtime>,
    stream: Streaming<WatchResponse>,
    endpoint: String,
}

impl fmt::Debug for EtcdWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdWatch").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl EtcdWatch {
    pub(super) fn new(
        runtime: Arc<Runtime>,
        stream: Streaming<WatchResponse>,
        endpoint: String,
    ) -> Self {
        Self { runtime, stream, endpoint }
    }
}

impl RegistryWatch for EtcdWatch {
    fn next(&mut self, patience: Duration) -> Result<Vec<EntryEvent>, RegistryError> {
        let Self { runtime, stream, endpoint, .. } = self;
        let away = |reason: &str| RegistryError::Away { reason: format!("{endpoint}: {reason}") };
        let next = async {
            loop {
                let answer = match stream.message().await {
                    Ok(Some(answer)) => answer,
                    Ok(None) => return Err(away("the watch has ended")),
                    Err(error) => {
                        return Err(match answer_of(error) {
                            Answer::Said(error) => error,
                            Answer::Silent(reason) => away(&reason),
                        });
                    }
                };
                if answer.compact_revision > 0 {
                    let oldest = answer.compact_revision as u64;
                    return Err(RegistryError::Compacted { oldest });
                }
                if answer.canceled {
                    return Err(away(&answer.cancel_reason));
                }
                let events = answer.events.iter().filter_map(|event| {
                    let entry = entry_of(event.kv.as_ref()?)?;
                    let change = match event.kind {
                        EVENT_PUT => EntryChange::Put(entry.value),
                        EVENT_DELETE => EntryChange::Deleted,
                        _ => return None,
                    };
                    Some(EntryEvent { key: entry.key, change, revision: entry.revision })
                });
                let events: Vec<_> = events.collect();
                if !events.is_empty() {
                    return Ok(events);
                }
            }
        };
        runtime.block_on(async {
            tokio::time::timeout(patience, next).await.unwrap_or_else(|_| Ok(Vec::new()))
        })
    }
}
