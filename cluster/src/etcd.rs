//! The registry on etcd (3.4 and newer).
//!
//! Each member has a connection of its own, so that it is known which member has been asked. A read
//! goes to another member if a member does not answer. A swap is sent once, to a member that has
//! just answered: without an answer its outcome is unknown.

mod answers;
mod client;
mod health;
mod watching;
mod wire;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use registry::{
    Entry, Found, Key, KeyChange, LIST_BYTES_MAX, LeaseId, Listing, Registry, RegistryError,
    RegistryWatch, Stamp, Swap, SwapOutcome,
};
use tokio::runtime::Runtime;
use tonic::Status;

pub(crate) use self::answers::SPACE_WAY_OUT;
use self::answers::{Answer, REFUSED, answer_of, entry_of, is_refusal, stamp_of};
use self::client::EtcdClient;
pub(crate) use self::health::EtcdHealth;
use self::watching::EtcdWatch;
use self::wire::{
    COMPARE_MOD, Compare, CompareValue, DeleteRangeRequest, PutRequest, RangeRequest,
    RangeResponse, RequestOp, RequestOpKind, TxnRequest, WatchCreateRequest,
};

/// How long a member may take. etcd gives a request up itself after 7 s: 5 s, and two elections.
const CALL_TIME_MAX: Duration = Duration::from_secs(8);

/// How long each member may take before the next one is asked, at first: a member on a host that is
/// down does not refuse, and a volume may wait for the answer. If all are silent, each of them gets
/// the whole time.
const FIRST_TIME_MAX: Duration = Duration::from_secs(1);

/// The entries of one answer: with the largest values they are within the limit below.
const PAGE_ENTRIES: usize = 100;

/// How often a listing begins again because its revision was compacted meanwhile.
const LISTINGS_MAX: usize = 3;

/// The certificate that a client shows, and the authority that it trusts.
#[derive(Clone)]
pub struct EtcdCredentials {
    /// The authority that has signed etcd's certificates.
    pub authority_pem: String,
    /// The client's certificate.
    pub certificate_pem: String,
    /// Its key.
    pub key_pem: String,
}

impl fmt::Debug for EtcdCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdCredentials").finish_non_exhaustive()
    }
}

/// A member of etcd and the connection with it.
struct EtcdMember {
    endpoint: String,
    client: EtcdClient,
}

/// A handle on the registry.
pub struct EtcdRegistry {
    runtime: Arc<Runtime>,
    members: Vec<EtcdMember>,
    /// The member that has answered last.
    at: usize,
}

impl fmt::Debug for EtcdRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoints: Vec<_> = self.members.iter().map(|member| &member.endpoint).collect();
        f.debug_struct("EtcdRegistry").field("endpoints", &endpoints).finish_non_exhaustive()
    }
}

impl EtcdRegistry {
    /// A handle on the registry with these members, each `https://ADDRESS:PORT`. Connections are
    /// made as they are needed.
    ///
    /// # Errors
    /// When an address or a certificate cannot be read.
    pub fn open(
        endpoints: &[String],
        credentials: &EtcdCredentials,
    ) -> Result<Self, RegistryError> {
        let invalid = |what: String| RegistryError::Invalid { what };
        if endpoints.is_empty() || !endpoints.iter().all(|it| it.starts_with("https://")) {
            return Err(invalid("a member of etcd is https://ADDRESS:PORT".to_owned()));
        }
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).thread_name("etcd").enable_all().build();
        let runtime = runtime.map_err(|error| RegistryError::Away {
            reason: format!("the system has no thread for it: {error}"),
        })?;
        let inside = runtime.enter();
        let mut members = Vec::new();
        for endpoint in endpoints {
            let client = EtcdClient::new(endpoint, credentials)
                .map_err(|error| invalid(format!("{endpoint}: {}", answers::text_of(&error))))?;
            members.push(EtcdMember { endpoint: endpoint.clone(), client });
        }
        drop(inside);
        Ok(Self { runtime: Arc::new(runtime), members, at: 0 })
    }

    /// Asks the member that has answered last.
    fn ask_once<T, F>(
        &self,
        time_max: Duration,
        call: impl FnOnce(EtcdClient) -> F,
    ) -> Result<T, Answer>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let call = call(self.members[self.at].client.clone());
        match self.runtime.block_on(async { tokio::time::timeout(time_max, call).await }) {
            Ok(answer) => answer.map_err(answer_of),
            Err(_) => Err(Answer::Silent(format!("no answer in {} s", time_max.as_secs()))),
        }
    }

    /// Asks one member after the other until one answers, the member that has answered last
    /// first.
    fn ask<T, F>(&mut self, call: impl Fn(EtcdClient) -> F) -> Result<T, RegistryError>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let mut reasons = Vec::new();
        let mut refusals = 0;
        for time_max in times(self.members.len()) {
            // The reasons of the last round are told.
            if time_max == CALL_TIME_MAX && reasons.len() == self.members.len() {
                (reasons, refusals) = (Vec::new(), 0);
            }
            match self.ask_once(time_max, &call) {
                Ok(answer) => return Ok(answer),
                Err(Answer::Said(error)) => return Err(error),
                Err(Answer::Silent(reason)) => {
                    refusals += usize::from(is_refusal(&reason));
                    reasons.push(format!("{}: {reason}", self.members[self.at].endpoint));
                }
            }
            self.at = (self.at + 1) % self.members.len();
        }
        if refusals == self.members.len() {
            reasons.insert(0, REFUSED.to_owned());
        }
        Err(RegistryError::Away { reason: reasons.join("; ") })
    }

    /// Gets a page of keys: the keys from `from` on and below `end`, at a revision or now.
    fn page(
        &mut self,
        from: &[u8],
        end: &str,
        revision: u64,
    ) -> Result<RangeResponse, RegistryError> {
        self.ask(|client| {
            let request = RangeRequest {
                key: from.to_vec(),
                range_end: end.as_bytes().to_vec(),
                limit: PAGE_ENTRIES as i64,
                revision: revision as i64,
            };
            async move { client.range(request).await }
        })
    }

    /// Gets a key.
    fn range(&mut self, key: &str) -> Result<RangeResponse, RegistryError> {
        self.ask(|client| {
            let request = RangeRequest { key: key.into(), ..RangeRequest::default() };
            async move { client.range(request).await }
        })
    }

    fn list_at_once(&mut self, above: &Key) -> Result<Listing, RegistryError> {
        let (mut from, end) = (above.prefix().into_bytes(), end_of(above));
        let mut found: Option<Listing> = None;
        let mut bytes = 0;
        loop {
            let revision = found.as_ref().map_or(0, |listing| listing.stamp.revision);
            let page = self.page(&from, &end, revision)?;
            let stamp = stamp_of(page.header.as_ref())?;
            let listing = found.get_or_insert(Listing { stamp, entries: Vec::new() });
            for pair in &page.kvs {
                bytes += pair.key.len() + pair.value.len();
                // A key that breaks the rules is no record of a cluster.
                listing.entries.extend(entry_of(pair));
            }
            // Any client can write any bytes as a key: a page may end with one.
            let last = page.kvs.last().map(|pair| &*pair.key);
            match last.filter(|_| page.more) {
                Some(last) if bytes <= LIST_BYTES_MAX => from = [last, b"\0"].concat(),
                Some(_) => {
                    let what = format!("{above} has more than {LIST_BYTES_MAX} bytes below it");
                    return Err(RegistryError::Invalid { what });
                }
                None => return Ok(found.expect("a page was read")),
            }
        }
    }
}

/// How long the members may take, one after the other. One member alone has no next one.
fn times(members: usize) -> impl Iterator<Item = Duration> {
    let first = if members > 1 { members } else { 0 };
    std::iter::repeat_n(FIRST_TIME_MAX, first).chain(std::iter::repeat_n(CALL_TIME_MAX, members))
}

/// The end of the keys below a key: `0` comes after `/`.
fn end_of(above: &Key) -> String {
    format!("{above}0")
}

fn transaction(swap: &Swap) -> TxnRequest {
    let conditions = swap.conditions().iter().map(|condition| Compare {
        result: 0,
        target: COMPARE_MOD,
        key: condition.key.as_str().into(),
        // A key that is not there has the revision 0.
        value: Some(CompareValue::ModRevision(condition.revision.unwrap_or(0) as i64)),
    });
    let changes = swap.changes().iter().map(|(key, change)| {
        let key = key.as_str().into();
        let request = match change {
            KeyChange::Put { value, lease } => {
                let lease = lease.map_or(0, |lease| lease.0) as i64;
                RequestOpKind::Put(PutRequest { key, value: value.clone(), lease })
            }
            KeyChange::Delete => RequestOpKind::DeleteRange(DeleteRangeRequest { key }),
        };
        RequestOp { request: Some(request) }
    });
    TxnRequest { compare: conditions.collect(), success: changes.collect() }
}

impl Registry for EtcdRegistry {
    fn stamp(&mut self) -> Result<Stamp, RegistryError> {
        // A read of a key that is not there: an answer of a majority, in few bytes.
        stamp_of(self.range("/")?.header.as_ref())
    }

    fn get(&mut self, key: &Key) -> Result<Found, RegistryError> {
        let answer = self.range(key.as_str())?;
        let entry: Option<Entry> = answer.kvs.first().and_then(entry_of);
        Ok(Found { stamp: stamp_of(answer.header.as_ref())?, entry })
    }

    fn list(&mut self, above: &Key) -> Result<Listing, RegistryError> {
        for _ in 1..LISTINGS_MAX {
            match self.list_at_once(above) {
                Err(RegistryError::Compacted { .. }) => {}
                listing => return listing,
            }
        }
        self.list_at_once(above)
    }

    fn watch(&mut self, above: &Key, after: u64) -> Result<Box<dyn RegistryWatch>, RegistryError> {
        let stream = self.ask(|client| {
            let request = WatchCreateRequest {
                key: above.prefix().into_bytes(),
                range_end: end_of(above).into_bytes(),
                start_revision: after as i64 + 1,
            };
            async move { client.watch(request).await }
        })?;
        let endpoint = self.members[self.at].endpoint.clone();
        Ok(Box::new(EtcdWatch::new(Arc::clone(&self.runtime), stream, endpoint)))
    }

    fn swap(&mut self, swap: &Swap) -> Result<SwapOutcome, RegistryError> {
        swap.check()?;
        // Finds a member that has a majority. Without one nothing was sent.
        self.stamp()?;
        let transaction = transaction(swap);
        let asked =
            self.ask_once(CALL_TIME_MAX, |client| async move { client.txn(transaction).await });
        match asked {
            // An error would say that nothing was changed.
            Ok(answer) if answer.succeeded => Ok(match stamp_of(answer.header.as_ref()) {
                Ok(stamp) => SwapOutcome::Made { revision: stamp.revision },
                Err(error) => SwapOutcome::Unknown { reason: error.to_string() },
            }),
            Ok(_) => Ok(SwapOutcome::Lost),
            Err(Answer::Said(error)) => Err(error),
            Err(Answer::Silent(reason)) => {
                let reason = format!("{}: {reason}", self.members[self.at].endpoint);
                self.at = (self.at + 1) % self.members.len();
                Ok(SwapOutcome::Unknown { reason })
            }
        }
    }

    fn grant(&mut self, seconds: u64) -> Result<LeaseId, RegistryError> {
        registry::check_lease(seconds)?;
        let granted = self.ask(|client| async move { client.grant(seconds).await })?;
        Ok(LeaseId(granted as u64))
    }

    fn renew(&mut self, lease: LeaseId) -> Result<(), RegistryError> {
        self.ask(|client| async move { client.keep_alive(lease.0 as i64).await })
    }

    fn revoke(&mut self, lease: LeaseId) -> Result<(), RegistryError> {
        let revoked =
            self.ask(|client| async move { client.revoke(lease.0 as i64).await.map(drop) });
        match revoked {
            Err(RegistryError::LeaseEnded) => Ok(()),
            revoked => revoked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_member_is_passed_over_soon_and_silent_members_get_their_time() {
        let first = FIRST_TIME_MAX;
        assert_eq!(times(1).collect::<Vec<_>>(), [CALL_TIME_MAX]);
        let three = [first, first, first, CALL_TIME_MAX, CALL_TIME_MAX, CALL_TIME_MAX];
        assert_eq!(times(3).collect::<Vec<_>>(), three);
    }
}
