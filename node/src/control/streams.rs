//! Paths of streams. Their bodies are bytes, a part of a stream at most: a stream of any length is
//! many short requests, so nothing is lost with a connection, and a caller that stops holds up
//! nothing.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use store::stream::{PART_BYTES_MAX, STREAM_HEADER_BYTES};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::answer::{PathNames, change, panicked, parameter, refuse};
use super::body::timed;
use super::service::Service;
use api::{ReceiveStep, Refused, RefusedKind, WantedStream};

/// Requests at once, in each direction, that have a part in memory, 8 MiB each: some streams, in
/// less memory than one pool's map has. Receiving callers cannot keep others from sending.
const PARTS_MAX: usize = 4;

/// How long a caller may take to send a part, which it has in memory, or to read one.
const BODY_TIME_MAX: Duration = Duration::from_secs(30);

#[derive(Clone)]
struct StreamPaths {
    service: Arc<dyn Service>,
    /// Places of parts that this node sends.
    sent: Arc<Semaphore>,
    /// Places of parts that it receives.
    received: Arc<Semaphore>,
}

/// The paths.
pub(super) fn router<S>(service: Arc<dyn Service>) -> Router<S> {
    let [sent, received] = [(); 2].map(|()| Arc::new(Semaphore::new(PARTS_MAX)));
    let place = "/v1/pools/{pool}/receive/{name}";
    Router::new()
        .route("/v1/streams", get(header))
        .route("/v1/streams/part", get(part))
        .route(place, post(begin).put(receive_part).delete(give_up))
        .route(&format!("{place}/end"), post(end))
        .with_state(StreamPaths { service, sent, received })
}

fn permit(places: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    Arc::clone(places).try_acquire_owned().ok()
}

fn busy() -> Response {
    let error =
        format!("{PARTS_MAX} requests for parts of streams are at work already, in this direction");
    let way_out = "try again soon; `vrio volume send` and `receive` do that by themselves";
    refuse(&Refused::new(RefusedKind::Busy, error, way_out))
}

/// Answers with bytes, which are made where a thread may wait. A permit is held until the caller
/// has them or is late.
async fn bytes(
    make: impl FnOnce() -> Result<Vec<u8>, Refused> + Send + 'static,
    permit: Option<OwnedSemaphorePermit>,
) -> Response {
    // A caller that hangs up does not end what was begun, so the permit goes with it.
    let made = tokio::task::spawn_blocking(move || make().map(|bytes| (bytes, permit)));
    let body = match made.await {
        Ok(Ok((bytes, Some(permit)))) => timed(bytes, permit, BODY_TIME_MAX),
        Ok(Ok((bytes, None))) => Body::from(bytes),
        Ok(Err(refused)) => return refuse(&refused),
        Err(error) => return panicked(&error),
    };
    ([(CONTENT_TYPE, "application/octet-stream")], body).into_response()
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
    bytes(move || paths.service.stream_header(&wanted), None).await
}

async fn part(State(paths): State<StreamPaths>, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    let Some(token) = parameter(&query, "token") else {
        return bad(&query, "write token=TOKEN");
    };
    let Some(permit) = permit(&paths.sent) else { return busy() };
    bytes(move || paths.service.stream_part(&token), Some(permit)).await
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
    let Some(permit) = permit(&paths.received) else { return busy() };
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
