//! What is asked for by which method and path, and how answers and refusals look.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path, RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{delete, get, post, put};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{GATHER_TIME_MAX, Service};
use crate::api::{HandOver, Refused, RefusedKind, Reload, SetDrain};
use crate::config::Kind;

/// The largest request: a volume that a hundred nodes may use is a few kilobytes.
const REQUEST_BYTES_MAX: usize = 64 << 10;

type Shared = State<Arc<dyn Service>>;

pub(super) fn router(service: Arc<dyn Service>) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/metrics", get(metrics))
        .route("/v1/disks", get(disks).post(add_disk))
        .route("/v1/disks/{name}", get(disk).delete(remove_disk))
        .route("/v1/volumes", get(volumes).post(add_volume))
        .route("/v1/volumes/{name}", delete(remove_volume))
        .route("/v1/volumes/{name}/chain", put(set_chain))
        .route("/v1/volumes/{name}/size", put(resize_volume))
        .route("/v1/disks/{name}/size", put(resize_disk))
        .route("/v1/disks/{name}/queues/{queue}", put(move_queue))
        .route("/v1/disks/{name}/take", post(take_disk))
        .route("/v1/peers", get(peers).post(add_peer))
        .route("/v1/peers/{name}", delete(remove_peer))
        .route("/v1/networks", get(networks).post(add_network))
        .route("/v1/networks/{name}", delete(remove_network))
        .route("/v1/nics", get(nics).post(add_nic))
        .route("/v1/nics/{name}", put(set_nic).delete(remove_nic))
        .route("/v1/domains", get(domains).post(add_domain))
        .route("/v1/domains/{name}", delete(remove_domain))
        .route("/v1/vfs", get(vfs).post(add_vf))
        .route("/v1/vfs/{name}", delete(remove_vf))
        .route("/v1/reload", get(plan).post(reload))
        .route("/v1/drain", get(drain).post(set_draining))
        .route("/v1/hand-over", post(hand_over))
        .fallback(async || {
            let way_out = "docs/operating.md lists them; it may be another release than this";
            refuse(&Refused::new(RefusedKind::Unknown, "there is no such path", way_out))
        })
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .with_state(service)
}

async fn status(State(service): Shared) -> Response {
    look(service, |service| service.status()).await
}

async fn metrics(State(service): Shared) -> Response {
    match blocking(move || crate::metrics::text(&service.status())).await {
        Ok(text) => ([(CONTENT_TYPE, crate::metrics::CONTENT_TYPE)], text).into_response(),
        Err(response) => response,
    }
}

async fn disks(State(service): Shared) -> Response {
    look(service, |service| service.disks()).await
}

async fn volumes(State(service): Shared) -> Response {
    look(service, |service| service.volumes()).await
}

async fn peers(State(service): Shared) -> Response {
    look(service, |service| service.peers()).await
}

async fn networks(State(service): Shared) -> Response {
    look(service, |service| service.networks()).await
}

async fn nics(State(service): Shared) -> Response {
    look(service, |service| service.nics()).await
}

async fn disk(State(service): Shared, Path(name): Path<String>) -> Response {
    let found = blocking(move || service.disks().into_iter().find(|disk| disk.name == name)).await;
    match found {
        Ok(Some(disk)) => Json(disk).into_response(),
        Ok(None) => {
            let way_out = "see `vrio disk list`";
            refuse(&Refused::new(RefusedKind::Unknown, "there is no such disk", way_out))
        }
        Err(response) => response,
    }
}

async fn add_disk(service: Shared, body: Result<Bytes, BytesRejection>) -> Response {
    add(service, Kind::Disk, body).await
}

async fn add_volume(service: Shared, body: Result<Bytes, BytesRejection>) -> Response {
    add(service, Kind::Volume, body).await
}

async fn add_peer(service: Shared, body: Result<Bytes, BytesRejection>) -> Response {
    add(service, Kind::Peer, body).await
}

async fn domains(State(service): Shared) -> Response {
    look(service, |service| service.domains()).await
}

async fn add_domain(service: Shared, body: Result<Bytes, BytesRejection>) -> Response {
    add(service, Kind::Domain, body).await
}

async fn vfs(State(service): Shared) -> Response {
    look(service, |service| service.vfs()).await
}

async fn add_vf(service: Shared, body: Result<Bytes, BytesRejection>) -> Response {
    add(service, Kind::Vf, body).await
}

async fn add_network(service: Shared, body: Result<Bytes, BytesRejection>) -> Response {
    add(service, Kind::Network, body).await
}

async fn add_nic(service: Shared, body: Result<Bytes, BytesRejection>) -> Response {
    add(service, Kind::Nic, body).await
}

async fn add(State(service): Shared, kind: Kind, body: Result<Bytes, BytesRejection>) -> Response {
    match json(body) {
        Ok(body) => change(move || service.add(kind, &body)).await,
        Err(refused) => refuse(&refused),
    }
}

async fn remove_disk(service: Shared, name: Path<String>, query: RawQuery) -> Response {
    remove(service, Kind::Disk, name, query).await
}

async fn remove_volume(service: Shared, name: Path<String>, query: RawQuery) -> Response {
    remove(service, Kind::Volume, name, query).await
}

async fn remove_peer(service: Shared, name: Path<String>, query: RawQuery) -> Response {
    remove(service, Kind::Peer, name, query).await
}

async fn remove_network(service: Shared, name: Path<String>, query: RawQuery) -> Response {
    remove(service, Kind::Network, name, query).await
}

async fn remove_domain(service: Shared, name: Path<String>, query: RawQuery) -> Response {
    remove(service, Kind::Domain, name, query).await
}

async fn remove_vf(service: Shared, name: Path<String>, query: RawQuery) -> Response {
    remove(service, Kind::Vf, name, query).await
}

async fn remove_nic(service: Shared, name: Path<String>, query: RawQuery) -> Response {
    remove(service, Kind::Nic, name, query).await
}

async fn remove(
    State(service): Shared,
    kind: Kind,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    let force = match query.as_deref() {
        None | Some("" | "force=false") => false,
        Some("force=true") => true,
        Some(other) => {
            let error = format!("{other:?} is not understood");
            let way_out = "the only parameter is force=true";
            return refuse(&Refused::new(RefusedKind::Bad, error, way_out));
        }
    };
    change(move || service.remove(kind, &name, force)).await
}

async fn set_nic(
    State(service): Shared,
    Path(name): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    match json(body) {
        Ok(body) => change(move || service.set_nic(&name, &body)).await,
        Err(refused) => refuse(&refused),
    }
}

async fn set_chain(
    State(service): Shared,
    Path(name): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    match json(body) {
        Ok(body) => change(move || service.set_chain(&name, &body)).await,
        Err(refused) => refuse(&refused),
    }
}

async fn resize_volume(
    service: Shared,
    name: Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    resize(service, Kind::Volume, name, body).await
}

async fn resize_disk(
    service: Shared,
    name: Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    resize(service, Kind::Disk, name, body).await
}

async fn resize(
    State(service): Shared,
    kind: Kind,
    Path(name): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    match json(body) {
        Ok(body) => change(move || service.resize(kind, &name, &body)).await,
        Err(refused) => refuse(&refused),
    }
}

async fn move_queue(
    State(service): Shared,
    Path((name, queue)): Path<(String, usize)>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    match json(body) {
        Ok(body) => change(move || service.move_queue(&name, queue, &body)).await,
        Err(refused) => refuse(&refused),
    }
}

async fn take_disk(State(service): Shared, Path(name): Path<String>) -> Response {
    change(move || service.take_disk(&name)).await
}

async fn plan(State(service): Shared) -> Response {
    change(move || service.plan()).await
}

async fn reload(State(service): Shared, body: Result<Bytes, BytesRejection>) -> Response {
    let way_out = "send {\"digest\": \"..\", \"force\": false}; both may be left out";
    match fields::<Reload>(body, way_out) {
        Ok(wanted) => change(move || service.reload(&wanted)).await,
        Err(refused) => refuse(&refused),
    }
}

async fn drain(State(service): Shared) -> Response {
    look(service, |service| service.drain()).await
}

async fn set_draining(State(service): Shared, body: Result<Bytes, BytesRejection>) -> Response {
    match fields::<SetDrain>(body, "send {\"undo\": true} to end it, or nothing to begin") {
        Ok(wanted) => change(move || service.set_draining(!wanted.undo)).await,
        Err(refused) => refuse(&refused),
    }
}

async fn hand_over(State(service): Shared, body: Result<Bytes, BytesRejection>) -> Response {
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

/// Gathers something and sends it.
async fn look<T: Serialize + Send + 'static>(
    service: Arc<dyn Service>,
    gather: impl FnOnce(&dyn Service) -> T + Send + 'static,
) -> Response {
    match blocking(move || gather(&*service)).await {
        Ok(gathered) => Json(gathered).into_response(),
        Err(response) => response,
    }
}

/// Does something whose time is bounded by itself. Whoever asked may hang up: it is done all the
/// same.
async fn change<T: Serialize + Send + 'static>(
    f: impl FnOnce() -> Result<T, Refused> + Send + 'static,
) -> Response {
    match tokio::task::spawn_blocking(f).await {
        Ok(Ok(done)) => Json(done).into_response(),
        Ok(Err(refused)) => refuse(&refused),
        Err(error) => panicked(&error),
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

fn panicked(error: &tokio::task::JoinError) -> Response {
    let error = format!("this went wrong inside the node: {error}");
    refuse(&Refused::new(RefusedKind::Failed, error, "look at its log"))
}

fn refuse(refused: &Refused) -> Response {
    let code = StatusCode::from_u16(refused.kind.code()).expect("they are all constants");
    (code, Json(refused)).into_response()
}
