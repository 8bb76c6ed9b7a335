//! With interfaces that are none, and a port that is the test.

use super::*;
use std::collections::VecDeque;

/// How long the keeper's thread may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The state that all interfaces of a test share.
#[derive(Debug, Default)]
struct World {
    /// How many are open.
    open: AtomicU64,
    /// The threads that closed one.
    closed_by: Mutex<Vec<String>>,
    /// The result of a look; without one the interface is up.
    seen: Mutex<Option<Result<InterfaceState, i32>>>,
    /// Why the next ones cannot be opened.
    refused: Mutex<VecDeque<&'static str>>,
    /// Held, none is opened.
    slow: Mutex<()>,
}

impl World {
    fn open(self: &Arc<Self>) -> Opened {
        assert_eq!(self.open.fetch_add(1, SeqCst), 0, "there is one at a time");
        Opened(Arc::clone(self))
    }

    fn show(&self, seen: Result<InterfaceState, i32>) {
        *self.seen.lock() = Some(seen);
    }
}

struct Opened(Arc<World>);

impl Drop for Opened {
    fn drop(&mut self) {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        self.0.closed_by.lock().push(name);
        self.0.open.fetch_sub(1, SeqCst);
    }
}

struct Fake(Arc<World>);

impl Source for Fake {
    type Opened = Opened;
    type Error = &'static str;

    fn name(&self) -> &str {
        "fake0"
    }

    fn open(&mut self) -> Result<Opened, &'static str> {
        let _slow = self.0.slow.lock();
        match self.0.refused.lock().pop_front() {
            Some(why) => Err(why),
            None => Ok(self.0.open()),
        }
    }

    fn fds(_: &Opened) -> io::Result<Box<dyn InterfaceFds>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn port(_: KeeperPort<Opened>, _: Opened, _: Arc<PortCounters>) -> Box<dyn Port> {
        unreachable!("the port is the test")
    }

    fn look(&mut self) -> io::Result<Option<InterfaceState>> {
        let seen = self.0.seen.lock().unwrap_or(Ok(InterfaceState::Up));
        seen.map(Some).map_err(io::Error::from_raw_os_error)
    }
}

fn begin() -> (Arc<World>, Opened, KeeperPort<Opened>, Keeper) {
    let world = Arc::<World>::default();
    let first = world.open();
    let fake = Fake(Arc::clone(&world));
    let (kept, keeper) = start(fake, &first, false, Waker::none(), Box::new(|_| ())).unwrap();
    (world, first, kept, keeper)
}

fn wait_for<T>(what: &str, mut is: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = is() {
            return found;
        }
        assert!(Instant::now() < until, "never {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_keeper_closes_an_interface_before_it_opens_the_next() {
    let (world, first, mut kept, keeper) = begin();
    kept.lose(first);
    let second = wait_for("opened", || kept.incoming.receive());
    assert!(kept.core.is_up());
    // Seen by the keeper, while its port goes on with it for a while.
    world.show(Ok(InterfaceState::Gone));
    wait_for("gone", || kept.core.is_wanted().then_some(()));
    std::thread::sleep(2 * LOOK_EVERY);
    assert_eq!((kept.core.opened.load(Relaxed), world.open.load(SeqCst)), (2, 1));
    world.show(Ok(InterfaceState::Up));
    kept.give_back(second);
    let third = wait_for("opened", || kept.incoming.receive());
    // As the port goes, and then the keeper.
    kept.give_back(third);
    drop(kept);
    drop(keeper);
    assert_eq!(*world.closed_by.lock(), ["uplink"; 3]);
    assert_eq!(world.open.load(SeqCst), 0);
}

#[test]
fn one_that_is_gone_again_before_its_port_has_it_goes_back() {
    let (world, first, mut kept, _keeper) = begin();
    // Twice: it may try again at once, for it was woken meanwhile.
    world.refused.lock().extend(["not yet"; 2]);
    kept.lose(first);
    wait_for("refused", || kept.core.why());
    world.show(Ok(InterfaceState::Gone));
    wait_for("opened", || (!kept.incoming.is_empty()).then_some(()));
    wait_for("gone", || kept.core.is_wanted().then_some(()));
    world.show(Ok(InterfaceState::Up));
    let mut opened = None;
    // The next one is not there before this was looked at.
    let slow = world.slow.lock();
    kept.exchange(&mut opened);
    assert!(opened.is_none() && kept.incoming.is_empty());
    drop(slow);
    wait_for("opened", || {
        kept.exchange(&mut opened);
        opened.is_some().then_some(())
    });
    assert!(kept.core.is_up() && !kept.core.is_wanted());
    kept.exchange(&mut opened);
    assert!(opened.is_some(), "it stays");
    kept.give_back(opened.take().expect("it was just there"));
}

#[test]
fn one_that_cannot_be_looked_at_is_not_gone() {
    let (world, _first, kept, _keeper) = begin();
    world.show(Err(libc::EMFILE));
    let why = wait_for("noticed", || kept.core.why());
    assert!(why.contains("cannot be read: Too many open files"), "{why}");
    assert!(kept.core.is_up() && !kept.core.is_wanted());
    world.show(Ok(InterfaceState::Up));
    wait_for("forgotten", || kept.core.why().is_none().then_some(()));
    assert_eq!(kept.core.opened.load(Relaxed), 1);
}

#[test]
fn why_it_is_away_is_said() {
    let (world, first, mut kept, _keeper) = begin();
    world.show(Ok(InterfaceState::Down));
    let why = wait_for("seen", || kept.core.why());
    assert!(why.contains("set down") && !kept.core.is_up(), "{why}");
    world.refused.lock().extend(["no such interface", "no such interface", "taken"]);
    world.show(Ok(InterfaceState::Up));
    kept.lose(first);
    for why in ["no such interface", "taken"] {
        wait_for(why, || (kept.core.why().as_deref() == Some(why)).then_some(()));
    }
    wait_for("back", || kept.incoming.receive());
    assert_eq!(kept.core.why(), None);
}

#[test]
fn an_end_does_not_wait_for_a_slow_interface() {
    let (world, first, mut kept, keeper) = begin();
    let slow = world.slow.lock();
    kept.lose(first);
    wait_for("closed", || (world.open.load(SeqCst) == 0).then_some(()));
    let ended = std::thread::spawn(move || drop(keeper));
    wait_for("ended", || ended.is_finished().then_some(()));
    // An interface that was opened after all goes at once, and is no port's link.
    drop(slow);
    wait_for("closed", || (world.closed_by.lock().len() == 2).then_some(()));
    assert!(!kept.core.is_up() && kept.incoming.is_empty());
}
