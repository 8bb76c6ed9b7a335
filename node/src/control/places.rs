//! Places for requests that have much in memory: some are at work, and some more requests wait for
//! their turn.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The places. Requests that wait get them in the order in which they came, so that no caller keeps
/// its place by asking again and again.
#[derive(Clone, Debug)]
pub(super) struct StreamPlaces {
    /// Requests that are at work.
    at_work: Arc<Semaphore>,
    /// Requests that are at work or wait.
    all: Arc<Semaphore>,
}

/// A place, until it is dropped.
#[derive(Debug)]
pub(super) struct HeldPlace {
    _at_work: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl StreamPlaces {
    /// So many at work at once, and so many that may wait for them.
    pub(super) fn new(at_work: usize, waiting: usize) -> Self {
        let [at_work, all] = [at_work, at_work + waiting].map(|it| Arc::new(Semaphore::new(it)));
        Self { at_work, all }
    }

    /// Takes a place, after a wait of at most `wait`; nothing if there is none by then, or if as
    /// many wait already as may.
    pub(super) async fn take(&self, wait: Duration) -> Option<HeldPlace> {
        let all = Arc::clone(&self.all).try_acquire_owned().ok()?;
        let at_work = Arc::clone(&self.at_work).acquire_owned();
        let at_work = tokio::time::timeout(wait, at_work).await.ok()?.ok()?;
        Some(HeldPlace { _at_work: at_work, _all: all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn requests_wait_in_their_order_and_only_so_many() {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().build().unwrap().block_on(async {
            let places = StreamPlaces::new(1, 2);
            let held = places.take(Duration::ZERO).await.expect("a free place");
            assert!(places.take(Duration::ZERO).await.is_none(), "its wait is over");
            let (told, mut order) = tokio::sync::mpsc::unbounded_channel();
            for number in 0..2 {
                let (places, told) = (places.clone(), told.clone());
                tokio::spawn(async move {
                    let place = places.take(LONG).await;
                    told.send((number, place)).unwrap();
                });
                tokio::task::yield_now().await;
            }
            assert!(places.take(LONG).await.is_none(), "two wait already");
            drop(held);
            let (first, place) = order.recv().await.unwrap();
            assert!(first == 0 && place.is_some());
            // Its holder asks again at once, and is behind the request that waits.
            drop(place);
            assert!(places.take(Duration::ZERO).await.is_none());
            let (second, place) = order.recv().await.unwrap();
            assert!(second == 1 && place.is_some());
            drop(place);
            assert!(places.take(Duration::ZERO).await.is_some());
        });
    }
}
