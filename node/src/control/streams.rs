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

use super::answer::{PathNames, change, panicked, parameter, refuse};
use super::body::{BodyPace, is_too_slow, paced, timed};
use super::places::{HeldPlace, StreamPlaces};
use super::service::Service;
use api::{ReceiveStep, Refused, RefusedKind, WantedStream};

/// Requests at once, in each direction, that have a part in memory, 8 MiB each: some streams, in
/// less memory than one pool's map has. Receiving callers cannot keep others from sending.
const PARTS_MAX: usize = 4;

/// Requests that wait for these places, in each direction: some streams that are as busy. They have
/// no part in memory yet.
const PARTS_WAITING_MAX: usize = 16;

/// How long a request waits for a place: longer than a pool may take none of a part's requests.
const PLACE_WAIT_MAX: Duration = Duration::from_secs(20);

/// The time that a caller has to send a part, which it has in memory, or to read one. The rate is a
/// thousandth of a Unix socket's, and the grace is for a caller that waits for a busy processor. So
/// a caller that drips bytes has a place for 2 s, and no caller has one for more than 10 s.
const PART_PACE: BodyPace = BodyPace { grace: Duration::from_secs(2), bytes_per_s: 1 << 20 };

#[derive(Clone)]
struct StreamPaths {
    service: Arc<dyn Service>,
    /// StreamPlaces of parts that this node sends.
    sent: StreamPlaces,
    /// StreamPlaces of parts that it receives.
    received: StreamPlaces,
}

/// The paths.
pub(super) fn router<S>(service: Arc<dyn Service>) -> Router<S> {
    let [sent, received] = [(); 2].map(|()| StreamPlaces::new(PARTS_MAX, PARTS_WAITING_MAX));
    let place = "/v1/pools/{pool}/receive/{name}";
    Router::new()
        .route("/v1/streams", get(header))
        .route("/v1/streams/part", get(part))
        .route(place, post(begin).put(receive_part).delete(give_up))
        .route(&format!("{place}/end"), post(end))
        .with_state(StreamPaths { service, sent, received })
}

fn busy() -> Response {
    let error =
        format!("{PARTS_MAX} requests for parts of streams are at work already, in this direction");
    let way_out = "try again soon; `vrio volume send` and `receive` do that by themselves";
    refuse(&Refused::new(RefusedKind::Busy, error, way_out))
}

/// Answers with bytes, which are made where a thread may wait. A place is held until the caller has
/// them or is late.
async fn bytes(
    make: impl FnOnce() -> Result<Vec<u8>, Refused> + Send + 'static,
    place: Option<HeldPlace>,
) -> Response {
    // A caller that hangs up does not end the work that was begun, so the place goes with the work.
    let made = tokio::task::spawn_blocking(move || make().map(|bytes| (bytes, place)));
    let body = match made.await {
        Ok(Ok((bytes, Some(place)))) => {
            let time_max = PART_PACE.time_max(bytes.len());
            timed(bytes, place, time_max)
        }
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
    let Some(place) = paths.sent.take(PLACE_WAIT_MAX).await else { return busy() };
    bytes(move || paths.service.stream_part(&token), Some(place)).await
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
    let Some(held) = paths.received.take(PLACE_WAIT_MAX).await else { return busy() };
    let limit = match step {
        ReceiveStep::Part => PART_BYTES_MAX,
        ReceiveStep::Begin | ReceiveStep::End => STREAM_HEADER_BYTES,
    };
    let bytes = match to_bytes(paced(body, PART_PACE), limit).await {
        Ok(bytes) => bytes,
        Err(error) => return not_received(&error, limit),
    };
    change(move || {
        let _held = held;
        paths.service.receive(step, (&pool, &name), &bytes)
    })
    .await
}

/// A body that is too long, that was cut, or that came too slowly. The last one is as a node that
/// is busy: the request can be made again.
fn not_received(error: &axum::Error, limit: usize) -> Response {
    let kind = match is_too_slow(error) {
        true => RefusedKind::Busy,
        false => RefusedKind::Bad,
    };
    let BodyPace { grace, bytes_per_s } = PART_PACE;
    let rate = bytes_per_s >> 20;
    let way_out = format!(
        "send at most {limit} bytes, and after {grace:?} at least {rate} MiB in a second; the \
         request can be made again"
    );
    refuse(&Refused::new(kind, format!("the body was not received: {error}"), way_out))
}

async fn give_up(State(paths): State<StreamPaths>, PathNames((pool, name)): Place) -> Response {
    change(move || paths.service.give_up_receive(&pool, &name)).await
}
