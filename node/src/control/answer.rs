//! The parts that all paths of the control API share.

use axum::extract::{FromRequestParts, Path};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Json, Response};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use serde::de::DeserializeOwned;

use api::{Refused, RefusedKind};

/// The names in a path. A path that cannot be read is refused as all requests are: in JSON.
pub(super) struct PathNames<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathNames<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let names = Path::from_request_parts(parts, state).await;
        names.map(|Path(names)| Self(names)).map_err(|error| {
            let way_out = "write each name as UTF-8, and numbers in digits";
            refuse(&Refused::new(RefusedKind::Bad, error.body_text(), way_out))
        })
    }
}

/// The value of a parameter in a question. Clients may escape any character, `@` for instance.
pub(super) fn parameter(query: &str, key: &str) -> Option<String> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(name, _)| *name == key)?;
    percent_decode_str(value).decode_utf8().ok().map(Into::into)
}

/// Makes a change, which bounds its own time. The change is completed even if the caller hangs up.
pub(super) async fn change<T: Serialize + Send + 'static>(
    f: impl FnOnce() -> Result<T, Refused> + Send + 'static,
) -> Response {
    match tokio::task::spawn_blocking(f).await {
        Ok(Ok(done)) => Json(done).into_response(),
        Ok(Err(refused)) => refuse(&refused),
        Err(error) => panicked(&error),
    }
}

pub(super) fn panicked(error: &tokio::task::JoinError) -> Response {
    let error = format!("an error inside the node: {error}");
    refuse(&Refused::new(RefusedKind::Failed, error, "see its log"))
}

pub(super) fn refuse(refused: &Refused) -> Response {
    let code = StatusCode::from_u16(refused.kind.code()).expect("they are all constants");
    (code, Json(refused)).into_response()
}
