//! The body of an answer that is large, and that its caller must read within a time.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;

/// The size of a chunk of the body, as a connection takes it; a connection holds some of them.
const CHUNK_BYTES: usize = 64 << 10;

/// The bytes and what counts them, until the caller has all of them or its time is over.
type Remaining = Arc<Mutex<Option<(Bytes, OwnedSemaphorePermit)>>>;

/// A body whose memory counts against a limit. When the caller does not read it in time, the memory
/// and its place are free again, and the connection ends early.
struct TimedBody {
    remaining: Remaining,
    /// Bytes that were not given to the connection yet.
    left: usize,
}

/// The body of an answer with these bytes, which hold the permit until they are sent or `time_max`
/// is over.
pub(super) fn timed(bytes: Vec<u8>, permit: OwnedSemaphorePermit, time_max: Duration) -> Body {
    let left = bytes.len();
    let remaining = Arc::new(Mutex::new(Some((Bytes::from(bytes), permit))));
    let late = Arc::downgrade(&remaining);
    tokio::spawn(async move {
        tokio::time::sleep(time_max).await;
        if let Some(remaining) = late.upgrade() {
            remaining.lock().take();
        }
    });
    Body::new(TimedBody { remaining, left })
}

impl http_body::Body for TimedBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let mut remaining = self.remaining.lock();
        let Some((bytes, _)) = &mut *remaining else {
            let error = "the answer was not read in time";
            return Poll::Ready(Some(Err(std::io::Error::other(error))));
        };
        // A copy, since a part of the bytes would keep all of them.
        let chunk = Bytes::copy_from_slice(&bytes.split_to(bytes.len().min(CHUNK_BYTES)));
        if bytes.is_empty() {
            *remaining = None;
        }
        drop(remaining);
        self.left -= chunk.len();
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left as u64)
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use tokio::sync::Semaphore;

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().build().unwrap()
    }

    #[test]
    fn a_body_that_is_read_is_whole_and_frees_its_place() {
        runtime().block_on(async {
            for length in [0, 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 5] {
                let places = Arc::new(Semaphore::new(1));
                let permit = Arc::clone(&places).try_acquire_owned().unwrap();
                let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
                let body = timed(bytes.clone(), permit, Duration::from_secs(60));
                assert_eq!(to_bytes(body, length).await.unwrap(), bytes);
                assert_eq!(places.available_permits(), 1, "{length}");
            }
        });
    }

    #[test]
    fn a_body_that_is_not_read_in_time_frees_its_place_and_ends_with_an_error() {
        runtime().block_on(async {
            let places = Arc::new(Semaphore::new(1));
            let permit = Arc::clone(&places).try_acquire_owned().unwrap();
            let body = timed(vec![7; 1 << 20], permit, Duration::from_millis(1));
            assert_eq!(places.available_permits(), 0);
            // The timer returns it, although the body is still there.
            drop(places.acquire().await.unwrap());
            assert!(to_bytes(body, 1 << 20).await.is_err());
        });
    }
}
