//! Paths of streams. Their bodies are bytes, a part of a stream at most: a stream of any length is
//! many short requests, so nothing is lost with a connection, and a caller that stops holds up
//! nothing.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use store::stream::{PART_BYTES_MAX, STREAM_HEADER_BYTES};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::answer::{PathNames, change, panicked, parameter, refuse};
use super::service::Service;
use api::{ReceiveStep, Refused, RefusedKind, WantedStream};

/// Requests at once that have a part in memory, 8 MiB each: some streams in both directions, in
/// less memory than one pool's map has.
const PARTS_MAX: usize = 8;

/// How long a caller may take to send a part, which it has in memory.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);

#[derive(Clone)]
struct StreamPaths {
    service: Arc<dyn Service>,
    permits: Arc<Semaphore>,
}

/// The paths.
pub(super) fn router<S>(service: Arc<dyn Service>) -> Router<S> {
    let permits = Arc::new(Semaphore::new(PARTS_MAX));
    let place = "/v1/pools/{pool}/receive/{name}";
    Router::new()
        .route("/v1/streams", get(header))
        .route("/v1/streams/part", get(part))
        .route(place, post(begin).put(receive_part).delete(give_up))
        .route(&format!("{place}/end"), post(end))
        .with_state(StreamPaths { service, permits })
}

/// The body of an answer. Its memory counts until the caller has all of it.
struct CountedBody {
    bytes: Vec<u8>,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for CountedBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn permit(paths: &StreamPaths) -> Option<OwnedSemaphorePermit> {
    Arc::clone(&paths.permits).try_acquire_owned().ok()
}

fn busy() -> Response {
    let error = format!("{PARTS_MAX} requests for parts of streams are at work already");
    let way_out = "try again soon; `vrio volume send` and `receive` do that by themselves";
    refuse(&Refused::new(RefusedKind::Busy, error, way_out))
}

/// Answers with bytes, which are made where a thread may wait.
async fn bytes(
    paths: StreamPaths,
    make: impl FnOnce(&dyn Service) -> Result<Vec<u8>, Refused> + Send + 'static,
) -> Response {
    let Some(permit) = permit(&paths) else { return busy() };
    let made = tokio::task::spawn_blocking(move || make(&*paths.service)).await;
    match made {
        Ok(Ok(bytes)) => {
            let body = Bytes::from_owner(CountedBody { bytes, _permit: permit });
            ([(CONTENT_TYPE, "application/octet-stream")], body).into_response()
        }
        Ok(Err(refused)) => refuse(&refused),
        Err(error) => panicked(&error),
    }
}

fn bad(query: &str, way_out: &str) -> Response {
    let error = format!("{query:?} is not understood");
    refuse(&Refused::new(RefusedKind::Bad, error, way_out))
}

async fn header(State(paths): State<StreamPaths>, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    let of = |key: &str| parameter(&query, key);
    let wanted = match (of("to"), of("token")) {
        (Some(to), None) => WantedStream::Named { to, from: of("from") },
        (None, Some(token)) => WantedStream::Rest(token),
        _ => {
            let way_out = "write to=VOLUME@SNAPSHOT, and if wanted from=VOLUME@SNAPSHOT; or \
                           token=TOKEN";
            return bad(&query, way_out);
        }
    };
    bytes(paths, move |service| service.stream_header(&wanted)).await
}

async fn part(State(paths): State<StreamPaths>, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    match parameter(&query, "token") {
        Some(token) => bytes(paths, move |service| service.stream_part(&token)).await,
        None => bad(&query, "write token=TOKEN"),
    }
}

type Place = PathNames<(String, String)>;

async fn begin(State(paths): State<StreamPaths>, place: Place, body: Body) -> Response {
    receive(paths, ReceiveStep::Begin, place, body).await
}

async fn receive_part(State(paths): State<StreamPaths>, place: Place, body: Body) -> Response {
    receive(paths, ReceiveStep::Part, place, body).await
}

async fn end(State(paths): State<StreamPaths>, place: Place, body: Body) -> Response {
    receive(paths, ReceiveStep::End, place, body).await
}

async fn receive(
    paths: StreamPaths,
    step: ReceiveStep,
    PathNames((pool, name)): Place,
    body: Body,
) -> Response {
    let Some(permit) = permit(&paths) else { return busy() };
    let limit = match step {
        ReceiveStep::Part => PART_BYTES_MAX,
        ReceiveStep::Begin | ReceiveStep::End => STREAM_HEADER_BYTES,
    };
    let refused = |error: String| {
        let way_out = format!("send at most {limit} bytes within {BODY_TIME_MAX:?}");
        refuse(&Refused::new(RefusedKind::Bad, error, way_out))
    };
    let bytes = match tokio::time::timeout(BODY_TIME_MAX, to_bytes(body, limit)).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(error)) => return refused(format!("the body was not received: {error}")),
        Err(_) => return refused("the body did not come in time".to_owned()),
    };
    change(move || {
        let _permit = permit;
        paths.service.receive(step, (&pool, &name), &bytes)
    })
    .await
}

async fn give_up(State(paths): State<StreamPaths>, PathNames((pool, name)): Place) -> Response {
    change(move || paths.service.give_up_receive(&pool, &name)).await
}
