//! Methods and paths of the control API, and the form of answers and refusals.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{MethodFilter, MethodRouter, delete, get, on, post, put};
use config::Kind;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::GATHER_TIME_MAX;
use super::answer::{PathNames, change, panicked, parameter, refuse};
use super::service::Service;
use api::{Done, HandOver, Refused, RefusedKind, Reload, SetDrain};

/// The largest request: a volume that a hundred nodes may use is a few kilobytes.
const REQUEST_BYTES_MAX: usize = 64 << 10;

type RouteState = State<Arc<dyn Service>>;

pub(super) fn router(service: Arc<dyn Service>) -> Router {
    let objects = Kind::all().fold(Router::new(), |router, kind| {
        let (all, one) = (format!("/v1/{}s", kind.key()), format!("/v1/{}s/{{name}}", kind.key()));
        let of_all = get(move |service| list(service, kind))
            .post(move |service, body| add(service, kind, body));
        let of_one = get(move |service, name| show(service, kind, name))
            .delete(move |service, name, query| remove(service, kind, name, query));
        router.route(&all, of_all).route(&one, of_one)
    });
    objects
        .merge(super::streams::router(Arc::clone(&service)))
        .route("/v1/status", get(status))
        .route("/v1/metrics", get(metrics))
        .route("/v1/volumes/{name}/chain", named(MethodFilter::PUT, <dyn Service>::set_chain))
        .route("/v1/volumes/{name}/quota", named(MethodFilter::PUT, <dyn Service>::set_quota))
        .route(
            "/v1/volumes/{name}/snapshots",
            named(MethodFilter::PUT, <dyn Service>::set_snapshots),
        )
        .route("/v1/volumes/{name}/compression", named(MethodFilter::PUT, <dyn Service>::compress))
        .route("/v1/volumes/{name}/history", named(MethodFilter::PUT, <dyn Service>::keep_history))
        .route("/v1/volumes/{name}/moment", post(find_moment))
        .route("/v1/volumes/{name}/size", named(MethodFilter::PUT, <dyn Service>::resize_volume))
        .route("/v1/volumes/{name}/rollback", named(MethodFilter::POST, <dyn Service>::roll_back))
        .route("/v1/volumes/{name}/copies", named(MethodFilter::POST, <dyn Service>::change_copies))
        .route("/v1/volumes/{name}/key", named(MethodFilter::PUT, <dyn Service>::set_key))
        .route("/v1/snapshots", post(take_snapshot))
        .route("/v1/pools/{name}/volumes/{number}", delete(remove_from_pool))
        .route("/v1/pools/{name}/devices", named(MethodFilter::PUT, <dyn Service>::change_devices))
        .route("/v1/pools/{name}/volumes/{number}/shred", post(shred))
        .route(
            "/v1/pools/{name}/scrub",
            named(MethodFilter::POST, <dyn Service>::scrub).delete(stop_scrub),
        )
        .route("/v1/diff", get(diff))
        .route("/v1/disks/{name}/size", named(MethodFilter::PUT, <dyn Service>::resize_disk))
        .route("/v1/disks/{name}/cache", named(MethodFilter::PUT, <dyn Service>::set_disk_cache))
        .route("/v1/disks/{name}/peers", named(MethodFilter::PUT, <dyn Service>::set_disk_peers))
        .route("/v1/disks/{name}/queues/{queue}", put(move_queue))
        .route("/v1/disks/{name}/take", post(take_disk))
        .route("/v1/nics/{name}", named(MethodFilter::PUT, <dyn Service>::set_nic))
        .route("/v1/reload", get(plan).post(reload))
        .route("/v1/drain", get(drain).post(set_draining))
        .route("/v1/hand-over", post(hand_over))
        .fallback(async || {
            let way_out = "docs/operating.md lists the paths; the client may be of another release";
            refuse(&Refused::new(RefusedKind::Unknown, "there is no such path", way_out))
        })
        .method_not_allowed_fallback(async |method: Method| {
            let error = format!("this path does not take {method}");
            let way_out = "docs/operating.md lists the methods of each path";
            let refused = Refused::new(RefusedKind::Bad, error, way_out);
            (StatusCode::METHOD_NOT_ALLOWED, Json(refused))
        })
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .with_state(service)
}

async fn status(State(service): RouteState) -> Response {
    look(service, |service| service.status()).await
}

async fn metrics(State(service): RouteState) -> Response {
    match blocking(move || crate::metrics::text(&service.status())).await {
        Ok(text) => ([(CONTENT_TYPE, crate::metrics::CONTENT_TYPE)], text).into_response(),
        Err(response) => response,
    }
}

async fn list(State(service): RouteState, kind: Kind) -> Response {
    match blocking(move || service.list(kind)).await {
        Ok(text) => in_json(text),
        Err(response) => response,
    }
}

async fn show(
    State(service): RouteState,
    kind: Kind,
    PathNames(name): PathNames<String>,
) -> Response {
    match blocking(move || service.show(kind, &name)).await {
        Ok(Some(text)) => in_json(text),
        Ok(None) => {
            let key = kind.key();
            let (error, way_out) =
                (format!("there is no such {key}"), format!("see `vrio {key} list`"));
            refuse(&Refused::new(RefusedKind::Unknown, error, way_out))
        }
        Err(response) => response,
    }
}

fn in_json(text: String) -> Response {
    ([(CONTENT_TYPE, "application/json")], text).into_response()
}

async fn add(
    State(service): RouteState,
    kind: Kind,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    match json(body) {
        Ok(body) => change(move || service.add(kind, &body)).await,
        Err(refused) => refuse(&refused),
    }
}

async fn remove(
    State(service): RouteState,
    kind: Kind,
    PathNames(name): PathNames<String>,
    RawQuery(query): RawQuery,
) -> Response {
    match is_forced(query.as_deref()) {
        Ok(force) => change(move || service.remove(kind, &name, force)).await,
        Err(refused) => refuse(&refused),
    }
}

fn is_forced(query: Option<&str>) -> Result<bool, Refused> {
    match query {
        None | Some("" | "force=false") => Ok(false),
        Some("force=true") => Ok(true),
        Some(other) => {
            let error = format!("{other:?} is not understood");
            let way_out = "the only parameter is force=true";
            Err(Refused::new(RefusedKind::Bad, error, way_out))
        }
    }
}

/// A change of the object of a name, with the fields of a body.
fn named(
    method: MethodFilter,
    make: fn(&(dyn Service + 'static), &str, &Value) -> Result<Done, Refused>,
) -> MethodRouter<Arc<dyn Service>> {
    type Name = PathNames<String>;
    type Body = Result<Bytes, BytesRejection>;
    let answer =
        async move |State(service): RouteState, PathNames(name): Name, body: Body| match json(body)
        {
            Ok(body) => change(move || make(&*service, &name, &body)).await,
            Err(refused) => refuse(&refused),
        };
    on(method, answer)
}

async fn take_snapshot(
    State(service): RouteState,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    match json(body) {
        Ok(body) => change(move || service.take_snapshot(&body)).await,
        Err(refused) => refuse(&refused),
    }
}

async fn shred(
    State(service): RouteState,
    PathNames((pool, number)): PathNames<(String, u32)>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    match json(body) {
        Ok(body) => change(move || service.shred(&pool, number, &body)).await,
        Err(refused) => refuse(&refused),
    }
}

async fn remove_from_pool(
    State(service): RouteState,
    PathNames((pool, number)): PathNames<(String, u32)>,
    RawQuery(query): RawQuery,
) -> Response {
    match is_forced(query.as_deref()) {
        Ok(force) => change(move || service.remove_from_pool(&pool, number, force)).await,
        Err(refused) => refuse(&refused),
    }
}

async fn stop_scrub(State(service): RouteState, PathNames(pool): PathNames<String>) -> Response {
    change(move || service.stop_scrub(&pool)).await
}

async fn find_moment(
    State(service): RouteState,
    PathNames(name): PathNames<String>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    match json(body) {
        Ok(body) => change(move || service.find_moment(&name, &body)).await,
        Err(refused) => refuse(&refused),
    }
}

async fn diff(State(service): RouteState, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    let of = |key: &str| parameter(&query, key);
    let start = of("start").map_or(Ok(0), |start| start.parse::<u64>());
    let (Some(to), Ok(start)) = (of("to"), start) else {
        let error = format!("{query:?} is not understood");
        let way_out = "write to=VOLUME@SNAPSHOT, and if wanted from=VOLUME@SNAPSHOT and start=BYTE";
        return refuse(&Refused::new(RefusedKind::Bad, error, way_out));
    };
    let from = of("from");
    change(move || service.diff(from.as_deref(), &to, start)).await
}

async fn move_queue(
    State(service): RouteState,
    PathNames((name, queue)): PathNames<(String, usize)>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    match json(body) {
        Ok(body) => change(move || service.move_queue(&name, queue, &body)).await,
        Err(refused) => refuse(&refused),
    }
}

async fn take_disk(
    State(service): RouteState,
    PathNames(name): PathNames<String>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    // It has no fields, but a body that stays unread would reset the connection.
    drop(body);
    change(move || service.take_disk(&name)).await
}

async fn plan(State(service): RouteState) -> Response {
    change(move || service.plan()).await
}

async fn reload(State(service): RouteState, body: Result<Bytes, BytesRejection>) -> Response {
    let way_out = "send {\"digest\": \"..\", \"force\": false}; both may be left out";
    match fields::<Reload>(body, way_out) {
        Ok(wanted) => change(move || service.reload(&wanted)).await,
        Err(refused) => refuse(&refused),
    }
}

async fn drain(State(service): RouteState) -> Response {
    look(service, |service| service.drain()).await
}

async fn set_draining(State(service): RouteState, body: Result<Bytes, BytesRejection>) -> Response {
    match fields::<SetDrain>(body, "send {\"undo\": true} to end it, or nothing to begin") {
        Ok(wanted) => change(move || service.set_draining(!wanted.undo)).await,
        Err(refused) => refuse(&refused),
    }
}

async fn hand_over(State(service): RouteState, body: Result<Bytes, BytesRejection>) -> Response {
    match fields::<HandOver>(body, "this is what `vrio node --take-over` asks for") {
        Ok(wanted) => change(move || service.hand_over(&wanted)).await,
        Err(refused) => refuse(&refused),
    }
}

/// A request's body with the fields that it may have.
fn fields<T: DeserializeOwned>(
    body: Result<Bytes, BytesRejection>,
    way_out: &str,
) -> Result<T, Refused> {
    let refused =
        |error: serde_json::Error| Refused::new(RefusedKind::Bad, error.to_string(), way_out);
    json(body).and_then(|body| serde_json::from_value(body).map_err(refused))
}

/// A request's body, which is JSON; nothing stands for an empty object.
fn json(body: Result<Bytes, BytesRejection>) -> Result<Value, Refused> {
    let refused = |error: String| {
        let way_out = format!("send one JSON object of at most {REQUEST_BYTES_MAX} bytes");
        Refused::new(RefusedKind::Bad, error, way_out)
    };
    let body = body.map_err(|error| refused(error.to_string()))?;
    if body.is_empty() {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    serde_json::from_slice(&body).map_err(|error| refused(format!("this is not JSON: {error}")))
}

/// Gathers a view of the node and sends it.
async fn look<T: Serialize + Send + 'static>(
    service: Arc<dyn Service>,
    gather: impl FnOnce(&dyn Service) -> T + Send + 'static,
) -> Response {
    match blocking(move || gather(&*service)).await {
        Ok(gathered) => Json(gathered).into_response(),
        Err(response) => response,
    }
}

/// Runs `f` where it may wait for sidecores, for a bounded time.
async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Response> {
    match tokio::time::timeout(GATHER_TIME_MAX, tokio::task::spawn_blocking(f)).await {
        Ok(Ok(gathered)) => Ok(gathered),
        Ok(Err(error)) => Err(panicked(&error)),
        Err(_) => {
            let error = "a sidecore does not answer";
            let way_out = "is the process stopped or overloaded?";
            Err(refuse(&Refused::new(RefusedKind::Busy, error, way_out)))
        }
    }
}
