//! Large bodies of requests and answers, whose callers have a time for them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};

use super::places::HeldPlace;

/// The size of a chunk of the body, as a connection takes it; a connection holds some of them.
const CHUNK_BYTES: usize = 64 << 10;

/// The bytes and what counts them, until the caller has all of them or its time is over.
type Remaining = Arc<Mutex<Option<(Bytes, HeldPlace)>>>;

/// The time that a caller has for a body: a while before it must come or go at all, and then a
/// rate. So a caller that drips bytes is late after that while, however often it drips.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyPace {
    /// The while.
    pub(super) grace: Duration,
    /// The least rate behind it.
    pub(super) bytes_per_s: u64,
}

impl BodyPace {
    /// The latest time for the bytes behind so many bytes.
    pub(super) fn time_max(self, bytes: usize) -> Duration {
        self.grace + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s as f64)
    }
}

/// The error of a body that comes too slowly.
#[derive(Debug, thiserror::Error)]
#[error("it came too slowly: {received} bytes so far")]
struct TooSlow {
    received: usize,
}

/// Whether a body was not received because it came too slowly.
pub(super) fn is_too_slow(error: &axum::Error) -> bool {
    let first: &(dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(first), |error| error.source()).any(|error| error.is::<TooSlow>())
}

/// A request's body that ends with an error when it comes too slowly.
struct PacedBody {
    body: Body,
    pace: BodyPace,
    began: Instant,
    received: usize,
    late: Pin<Box<Sleep>>,
}

/// The same body, which its caller must send at a pace.
pub(super) fn paced(body: Body, pace: BodyPace) -> Body {
    let began = Instant::now();
    let late = Box::pin(tokio::time::sleep_until(began + pace.time_max(0)));
    Body::new(PacedBody { body, pace, began, received: 0, late })
}

impl http_body::Body for PacedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            if let Some(Ok(frame)) = &frame {
                self.received += frame.data_ref().map_or(0, Bytes::len);
                let until = self.began + self.pace.time_max(self.received);
                self.late.as_mut().reset(until);
            }
            return Poll::Ready(frame);
        }
        match self.late.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                let received = self.received;
                Poll::Ready(Some(Err(axum::Error::new(TooSlow { received }))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body whose memory counts against a limit. When the caller does not read it in time, the memory
/// and its place are free again, and the connection ends early.
struct TimedBody {
    remaining: Remaining,
    /// Bytes that were not given to the connection yet.
    left: usize,
}

/// The body of an answer with these bytes, which hold the place until they are sent, or until
/// `time_max` is over.
pub(super) fn timed(bytes: Vec<u8>, place: HeldPlace, time_max: Duration) -> Body {
    let left = bytes.len();
    let remaining = Arc::new(Mutex::new(Some((Bytes::from(bytes), place))));
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

    use super::super::places::StreamPlaces;
    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().build().unwrap()
    }

    #[test]
    fn a_body_that_is_read_is_whole_and_frees_its_place() {
        runtime().block_on(async {
            for length in [0, 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 5] {
                let places = StreamPlaces::new(1, 0);
                let place = places.take(Duration::ZERO).await.unwrap();
                let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
                let body = timed(bytes.clone(), place, Duration::from_secs(60));
                assert_eq!(to_bytes(body, length).await.unwrap(), bytes);
                assert!(places.take(Duration::ZERO).await.is_some(), "{length}");
            }
        });
    }

    #[test]
    fn a_body_that_is_not_read_in_time_frees_its_place_and_ends_with_an_error() {
        runtime().block_on(async {
            let places = StreamPlaces::new(1, 1);
            let place = places.take(Duration::ZERO).await.unwrap();
            let body = timed(vec![7; 1 << 20], place, Duration::from_millis(1));
            // The timer returns it, although the body is still there.
            assert!(places.take(Duration::from_secs(3600)).await.is_some());
            assert!(to_bytes(body, 1 << 20).await.is_err());
        });
    }

    /// A body whose caller sends `left` bytes, one at each poll of its timer, each `every`.
    struct DrippingBody {
        left: usize,
        every: Duration,
        next: Pin<Box<Sleep>>,
    }

    impl http_body::Body for DrippingBody {
        type Data = Bytes;
        type Error = axum::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
            if self.left == 0 {
                return Poll::Ready(None);
            }
            if self.next.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            let until = Instant::now() + self.every;
            self.next.as_mut().reset(until);
            self.left -= 1;
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"x")))))
        }
    }

    fn dripping(left: usize, every: Duration) -> Body {
        Body::new(DrippingBody { left, every, next: Box::pin(tokio::time::sleep(every)) })
    }

    #[test]
    fn a_caller_that_drips_bytes_is_late_and_a_caller_that_keeps_the_pace_is_not() {
        runtime().block_on(async {
            let every = Duration::from_millis(2);
            // A rate that no drip of a byte at a time has: it ends, and long before its end.
            let pace = BodyPace { grace: Duration::from_millis(20), bytes_per_s: 1 << 20 };
            let ended = to_bytes(paced(dripping(usize::MAX, every), pace), usize::MAX).await;
            assert!(is_too_slow(&ended.unwrap_err()));
            let long = to_bytes(Body::from("four"), 3).await.unwrap_err();
            assert!(!is_too_slow(&long), "{long}");
            // A rate that any machine has.
            let pace = BodyPace { grace: Duration::from_secs(3600), bytes_per_s: 1 };
            let whole = to_bytes(paced(dripping(20, every), pace), 20).await.unwrap();
            assert_eq!(whole.len(), 20);
        });
    }

    #[test]
    fn the_time_for_a_body_is_its_grace_and_its_size_by_the_rate() {
        let pace = BodyPace { grace: Duration::from_secs(2), bytes_per_s: 1 << 20 };
        assert_eq!(pace.time_max(0), Duration::from_secs(2));
        assert_eq!(pace.time_max(8 << 20), Duration::from_secs(10));
    }
}
