//! The calls of a member of etcd: gRPC over one connection, which is made when it is needed.

use std::time::Duration;

use http::uri::PathAndQuery;
use prost::Message;
use tokio_stream::{Stream, StreamExt};
use tonic::client::Grpc;

use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::EtcdCredentials;
use super::wire::{
    AlarmRequest, AlarmResponse, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveResponse,
    LeaseRequest, LeaseRevokeResponse, RangeRequest, RangeResponse, StatusRequest, StatusResponse,
    TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest, WatchResponse,
};

/// How long a connection may take. A member on a machine that is down does not refuse it.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(3);

/// How often a connection with a call is tried, and how long an answer may take: a member that
/// hangs, or whose host is gone, is noticed by a watch as well. etcd ends connections that try more
/// often than once in 5 s.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(4));

/// The longest answer: a page of the largest values, with their keys.
const ANSWER_BYTES_MAX: usize = 16 << 20;

/// The connection with a member.
#[derive(Clone)]
pub(super) struct EtcdClient {
    channel: Channel,
}

impl EtcdClient {
    /// A client of the member at `https://ADDRESS:PORT`. It must be made inside of the runtime that
    /// will do its calls.
    pub(super) fn new(
        endpoint: &str,
        credentials: &EtcdCredentials,
    ) -> Result<Self, tonic::transport::Error> {
        let EtcdCredentials { authority_pem, certificate_pem, key_pem } = credentials;
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(authority_pem))
            .identity(Identity::from_pem(certificate_pem, key_pem));
        let endpoint = Endpoint::from_shared(endpoint.to_owned())?
            .tls_config(tls)?
            .connect_timeout(CONNECT_TIME_MAX)
            .http2_keep_alive_interval(KEEP_ALIVE.0)
            .keep_alive_timeout(KEEP_ALIVE.1);
        Ok(Self { channel: endpoint.connect_lazy() })
    }

    async fn ready(&self) -> Result<Grpc<Channel>, Status> {
        let mut calls = Grpc::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX);
        calls.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
        Ok(calls)
    }

    async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let path = PathAndQuery::from_static(path);
        let mut calls = self.ready().await?;
        let answer = calls.unary(with_leader(request), path, ProstCodec::<Q, A>::default());
        Ok(answer.await?.into_inner())
    }

    async fn stream<Q, A>(
        &self,
        path: &'static str,
        requests: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<A>, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let path = PathAndQuery::from_static(path);
        let mut calls = self.ready().await?;
        let answer = calls.streaming(with_leader(requests), path, ProstCodec::<Q, A>::default());
        Ok(answer.await?.into_inner())
    }

    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        self.call("/etcdserverpb.KV/Range", request).await
    }

    pub(super) async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Status> {
        self.call("/etcdserverpb.KV/Txn", request).await
    }

    /// The lease's number.
    pub(super) async fn grant(&self, seconds: u64) -> Result<i64, Status> {
        let request = LeaseGrantRequest { ttl: seconds as i64 };
        let answer: LeaseGrantResponse =
            self.call("/etcdserverpb.Lease/LeaseGrant", request).await?;
        match answer.error.is_empty() {
            true => Ok(answer.id),
            false => Err(Status::unknown(answer.error)),
        }
    }

    pub(super) async fn revoke(&self, lease: i64) -> Result<LeaseRevokeResponse, Status> {
        self.call("/etcdserverpb.Lease/LeaseRevoke", LeaseRequest { id: lease }).await
    }

    /// Renews a lease once. The stream ends with the call.
    pub(super) async fn keep_alive(&self, lease: i64) -> Result<(), Status> {
        let requests = tokio_stream::once(LeaseRequest { id: lease });
        let mut answers: Streaming<LeaseKeepAliveResponse> =
            self.stream("/etcdserverpb.Lease/LeaseKeepAlive", requests).await?;
        match answers.message().await? {
            Some(answer) if answer.ttl > 0 => Ok(()),
            Some(_) => Err(Status::not_found("requested lease not found")),
            None => Err(Status::unavailable("the stream has ended")),
        }
    }

    /// Watches keys. The request's side stays open, as long as the answers are read.
    pub(super) async fn watch(
        &self,
        request: WatchCreateRequest,
    ) -> Result<Streaming<WatchResponse>, Status> {
        let first = tokio_stream::once(WatchRequest { create: Some(request) });
        self.stream("/etcdserverpb.Watch/Watch", first.chain(tokio_stream::pending())).await
    }

    pub(super) async fn status(&self) -> Result<StatusResponse, Status> {
        self.call("/etcdserverpb.Maintenance/Status", StatusRequest {}).await
    }

    pub(super) async fn alarms(&self) -> Result<AlarmResponse, Status> {
        self.call("/etcdserverpb.Maintenance/Alarm", AlarmRequest {}).await
    }
}

/// A request that a member without a leader refuses at once.
fn with_leader<Q>(message: Q) -> Request<Q> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    request
}
