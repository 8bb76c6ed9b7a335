//! Answers `GET /metrics` on a TCP port, for Prometheus.
//!
//! Every client that reaches the port may ask, so the cost of asking is bounded: so many
//! connections, each for so long, and one look at the sidecores for all requests of a moment. Where
//! all places are taken the next connection gets the oldest one's: clients that hold connections do
//! not keep others from asking.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, oneshot};
use tokio::time::{Instant, Sleep};

use crate::control::{self, Gather};

/// Connections at once: several Prometheus servers and a person. The next one has the place of the
/// oldest.
pub(crate) const CONNECTIONS_MAX: usize = 32;

/// How long a connection may last. An answer takes milliseconds. A client that holds a connection
/// open without asking, or does not read, loses it.
pub(crate) const CONNECTION_TIME_MAX: Duration = Duration::from_secs(10);

/// How long a connection keeps its place in any case: many times as long as a question and its
/// answer take. It bounds how long the next connection waits.
const PLACE_TIME_MIN: Duration = Duration::from_millis(200);

/// How many connections the system keeps that were not accepted yet: the length with which the
/// standard library makes a listener.
const WAITING_MAX: u128 = 128;

/// How long Prometheus waits for an answer, if it is not told otherwise. A connection is accepted
/// sooner, even if all those before it say nothing and all places are held.
const SCRAPE_TIME: Duration = Duration::from_secs(10);

const _: () = assert!(
    WAITING_MAX * PLACE_TIME_MIN.as_millis() / (CONNECTIONS_MAX as u128) < SCRAPE_TIME.as_millis()
);

/// How long one look at the sidecores is good for. No Prometheus server scrapes more often on
/// purpose.
const GOOD_FOR: Duration = Duration::from_millis(200);

/// Answers until it is dropped.
pub(crate) async fn serve(listener: TcpListener, gather: Gather) -> io::Result<()> {
    let asked = Arc::new(CachedMetrics { gather, last: Mutex::default() });
    let app = Router::new().route("/metrics", get(metrics)).with_state(asked);
    let places = VecDeque::with_capacity(CONNECTIONS_MAX);
    axum::serve(Bounded { listener, places }, app).await
}

/// The source of answers, and the latest answer.
struct CachedMetrics {
    gather: Gather,
    last: Mutex<Option<(Instant, String)>>,
}

async fn metrics(State(asked): State<Arc<CachedMetrics>>) -> Response {
    let mut last = asked.last.lock().await;
    if last.as_ref().is_none_or(|(at, _)| at.elapsed() >= GOOD_FOR) {
        match control::gathered(Arc::clone(&asked.gather)).await {
            Ok(status) => *last = Some((Instant::now(), super::text(&status))),
            Err(refusal) => return refusal,
        }
    }
    let text = last.as_ref().map(|(_, text)| text.clone()).unwrap_or_default();
    ([(CONTENT_TYPE, super::CONTENT_TYPE), (CONNECTION, "close")], text).into_response()
}

/// A listener with a bounded number of connections.
struct Bounded {
    listener: TcpListener,
    /// The connections that there are, the oldest first.
    places: VecDeque<ConnectionSlot>,
}

/// One connection's place. Dropped, the connection is closed.
struct ConnectionSlot {
    taken: Instant,
    /// Closed by the connection's own end.
    close: oneshot::Sender<()>,
}

impl Bounded {
    /// Makes room for another connection, at the cost of the oldest one.
    async fn make_room(&mut self) {
        loop {
            self.places.retain(|place| !place.close.is_closed());
            if self.places.len() < CONNECTIONS_MAX {
                return;
            }
            let oldest = self.places.front_mut().expect("there are some");
            let sure_until = oldest.taken + PLACE_TIME_MIN;
            tokio::select! {
                () = oldest.close.closed() => {}
                () = tokio::time::sleep_until(sure_until) => drop(self.places.pop_front()),
            }
        }
    }
}

impl Listener for Bounded {
    type Io = TimedConnection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TimedConnection, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        self.make_room().await;
        let (close, closed) = oneshot::channel();
        self.places.push_back(ConnectionSlot { taken: Instant::now(), close });
        let deadline = Box::pin(tokio::time::sleep(CONNECTION_TIME_MAX));
        (TimedConnection { stream, deadline, closed, is_over: false }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends in time.
struct TimedConnection {
    stream: TcpStream,
    deadline: Pin<Box<Sleep>>,
    /// Ready when another connection has its place.
    closed: oneshot::Receiver<()>,
    is_over: bool,
}

impl TimedConnection {
    /// The stream, as long as there is time.
    fn stream(&mut self, context: &mut Context<'_>) -> io::Result<Pin<&mut TcpStream>> {
        // A future that was ready once must not be polled again.
        self.is_over = self.is_over
            || self.deadline.as_mut().poll(context).is_ready()
            || Pin::new(&mut self.closed).poll(context).is_ready();
        if self.is_over {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(Pin::new(&mut self.stream))
    }
}

impl AsyncRead for TimedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream(context)?.poll_read(context, into)
    }
}

impl AsyncWrite for TimedConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.stream(context)?.poll_write(context, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream(context)?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream(context)?.poll_shutdown(context)
    }
}
