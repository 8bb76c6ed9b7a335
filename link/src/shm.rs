//! Datagrams between nodes on one machine, through memory that they share.
//!
//! A [`Shm`] wraps another link: datagrams to an address that [`ShmDirectory`] gave out, and
//! answers to nodes that called at this node's [`ShmListener`], travel by shared rings; all other
//! datagrams go by the link inside. While both ends poll there are no system calls; a sleeping end
//! is woken through an eventfd. Each side copies the payload once, and reads no bytes that the
//! other side can still change.
//!
//! A full ring drops datagrams, as a switch does, so that a peer that stands still delays no other
//! peer.

mod door;
mod region;
mod ring;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use parking_lot::Mutex;
use rustix::event::epoll;
use sidecore::foreign::Allowance;
use sidecore::{Counter, Progress};
use transport::{Pool, TransmitBatch};

use crate::inside::LinkInside;
use crate::{Arrival, Link, LinkCounters, SendOutcome};
use door::ShmConnection;
pub use door::{Callers, ShmListener, make_way};
use ring::{Broken, Consumer, DATAGRAM_BYTES_MAX, Producer};

/// Datagrams taken from one line in a round, so that the others get their turn.
const BURST: usize = 64;

/// Lines of one sidecore: as many as it may have sessions. More callers are hung up on.
const LINES_MAX: usize = 1024;

/// Peers on this machine that can be called.
const PLACES_MAX: usize = 1024;

/// How often a peer that does not answer its door is called, and how soon a quiet line is looked
/// at. A restarted peer must be noticed within 50 ms.
const LOOK_AGAIN_NS: u64 = 10_000_000;

/// Each look that finds the peer alive doubles the time to the next one, and the last is after so
/// long: a silent peer is the session's affair.
const LOOK_LAST_NS: u64 = 320_000_000;

/// For so long after something came by a line, the link inside is looked at seldom.
const LINES_BUSY_NS: u64 = 1_000_000;

/// Numbers of lines that others dialled begin here, beyond those of places.
const CALLERS_FROM: u32 = 1 << 31;

/// Addresses for peers on this machine: in the block that IPv6 has for what is discarded
/// (100::/64, RFC 6666), so that no packet ever leaves for one by mistake.
fn address(number: u32, port: u16) -> SocketAddr {
    let [high, low] = [(number >> 16) as u16, number as u16];
    (Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, high, low), port).into()
}

/// The number in such an address.
fn number_of(address: SocketAddr) -> Option<u32> {
    let SocketAddr::V6(address) = address else { return None };
    match address.ip().segments() {
        [0x100, 0, 0, 0, 0, 0, high, low] => Some(u32::from(high) << 16 | u32::from(low)),
        _ => None,
    }
}

/// Whether an address is one that stands for a peer on this machine.
pub fn is_shared(address: SocketAddr) -> bool {
    number_of(address).is_some()
}

/// The doors of other nodes on this machine that this one calls; shared by its sidecores.
#[derive(Clone, Debug, Default)]
pub struct ShmDirectory(Arc<Mutex<Vec<PathBuf>>>);

/// There is no room for another place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{PLACES_MAX} peers on this machine are known already")]
pub struct PlacesFull;

impl ShmDirectory {
    /// The address that stands for the node whose door is at `path`; the same each time.
    ///
    /// # Errors
    /// When there are too many.
    pub fn address(&self, path: &Path) -> Result<SocketAddr, PlacesFull> {
        let mut places = self.0.lock();
        let known = places.iter().position(|place| place == path);
        let number = match known {
            Some(number) => number,
            None if places.len() == PLACES_MAX => return Err(PlacesFull),
            None => {
                places.push(path.to_owned());
                places.len() - 1
            }
        };
        Ok(address(number as u32, 0))
    }

    fn path(&self, number: u32) -> Option<PathBuf> {
        let places = self.0.lock();
        places.get(number as usize).cloned()
    }
}

sidecore::counters! {
    /// The counters of shared memory; the link inside has its own.
    pub struct ShmCounters {
        /// Datagrams put into rings.
        datagrams_sent,
        /// Datagrams taken out of rings.
        datagrams_received,
        /// Bytes copied into and out of rings.
        bytes_copied,
        /// Sleeping peers woken: a system call each.
        bells_rung,
        /// System calls to take the signals of peers that woke this side, or called.
        bell_reads,
        /// Datagrams dropped because a ring was full.
        dropped_full,
        /// Datagrams dropped because the other end was gone.
        dropped_unreachable,
        /// Lines given up because the other end broke a rule.
        broken,
        /// Callers hung up on because there were too many.
        refused,
    }
    and {
        /// Lines that are open.
        pub lines: Counter,
    }
}

/// One peer's sidecore.
#[derive(Debug)]
struct Lane {
    address: SocketAddr,
    line: ShmConnection,
    producer: Producer,
    consumer: Consumer,
    /// When to look whether the peer is still there, since nothing came back; `u64::MAX` for not.
    look_ns: u64,
    look_pause_ns: u64,
    /// The peer was asked to ring; its ring is there or on its way.
    is_armed: bool,
    is_rung: bool,
    is_gone: bool,
    /// The time that a sidecore may spend on signals to this peer, and on emptying its rings.
    allowance: Allowance,
}

impl Lane {
    fn new(address: SocketAddr, line: ShmConnection) -> Self {
        let [sends, receives] = if line.dialled { [0, 1] } else { [1, 0] };
        Self {
            address,
            producer: Producer::new(&line.region, sends),
            consumer: Consumer::new(&line.region, receives),
            line,
            look_ns: u64::MAX,
            look_pause_ns: LOOK_AGAIN_NS,
            is_armed: false,
            is_rung: false,
            is_gone: false,
            allowance: Allowance::default(),
        }
    }

    /// Something was put in: an answer is awaited, or the peer looked at.
    fn expect_answer(&mut self, now_ns: u64) {
        self.look_pause_ns = LOOK_AGAIN_NS;
        self.look_ns = self.look_ns.min(now_ns + LOOK_AGAIN_NS);
    }

    fn look(&mut self, now_ns: u64) {
        self.is_gone |= self.line.is_hung_up();
        self.look_pause_ns *= 2;
        let again = self.look_pause_ns <= LOOK_LAST_NS;
        self.look_ns = if again { now_ns + self.look_pause_ns } else { u64::MAX };
    }
}

/// A link with shared memory beside it.
pub struct Shm<L> {
    inner: L,
    places: ShmDirectory,
    callers: Option<Callers>,
    lanes: Vec<Lane>,
    /// Places in `lanes` by address.
    index: BTreeMap<SocketAddr, usize>,
    /// When a place was last called in vain.
    unreachable_ns: BTreeMap<SocketAddr, u64>,
    calls_taken: u32,
    now_ns: u64,
    /// When something last came by a line.
    heard_ns: u64,
    inside: LinkInside,
    epoll: OwnedFd,
    /// Whose turn it is first.
    turn: usize,
    counters: Arc<ShmCounters>,
}

impl<L: Link> Shm<L> {
    /// Wraps `inner`; calls `places`, and takes in `callers` when this node has a door.
    ///
    /// # Errors
    /// When the system refuses an epoll.
    pub fn new(inner: L, places: ShmDirectory, callers: Option<Callers>) -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&epoll, inner.fd())?;
        if let Some(callers) = &callers {
            watch(&epoll, callers.bell.as_fd())?;
        }
        Ok(Self {
            inner,
            places,
            callers,
            lanes: Vec::new(),
            index: BTreeMap::new(),
            unreachable_ns: BTreeMap::new(),
            calls_taken: 0,
            now_ns: 0,
            heard_ns: 0,
            inside: LinkInside::default(),
            epoll,
            turn: 0,
            counters: Arc::default(),
        })
    }

    /// The link inside.
    pub fn inner(&self) -> &L {
        &self.inner
    }

    /// The counters of shared memory.
    pub fn shm_counters(&self) -> &Arc<ShmCounters> {
        &self.counters
    }

    /// Makes a lane of a line, with its bell among what ends a sleep.
    fn add(&mut self, address: SocketAddr, line: ShmConnection) -> Option<usize> {
        if self.lanes.len() == LINES_MAX || watch(&self.epoll, line.own_bell.as_fd()).is_err() {
            self.counters.refused.add(1);
            return None;
        }
        let at = self.lanes.len();
        self.lanes.push(Lane::new(address, line));
        self.index.insert(address, at);
        self.unreachable_ns.remove(&address);
        self.counters.lines.set(self.lanes.len() as u64);
        Some(at)
    }

    /// Takes in the peers that called since the last round.
    fn take_callers(&mut self) {
        let Some(callers) = &self.callers else { return };
        if !callers.news.load(Relaxed) || !callers.news.swap(false, Acquire) {
            return;
        }
        self.counters.bell_reads.add(1);
        door::hush(callers.bell.as_fd());
        let lines: Vec<_> = std::iter::from_fn(|| callers.next()).collect();
        // Those whose place they take may have gone without a word.
        for lane in &mut self.lanes {
            lane.is_gone |= lane.line.is_hung_up();
        }
        self.drop_gone();
        for line in lines {
            self.calls_taken = (self.calls_taken + 1) % CALLERS_FROM;
            let address = address(CALLERS_FROM + self.calls_taken, 0);
            let _ = self.add(address, line);
        }
    }

    /// The lane to an address; a place that has none is called, now and then.
    fn lane_to(&mut self, to: SocketAddr, number: u32) -> Option<usize> {
        if let Some(&at) = self.index.get(&to) {
            return Some(at);
        }
        let path = self.places.path(number).filter(|_| number < CALLERS_FROM)?;
        let tried_ns = self.unreachable_ns.get(&to);
        if tried_ns.is_some_and(|&at_ns| self.now_ns < at_ns + LOOK_AGAIN_NS) {
            return None;
        }
        match ShmConnection::dial(&path, to.port()) {
            Ok(line) => self.add(to, line),
            Err(error) => {
                tracing::debug!(?path, %error, "a peer on this machine cannot be reached");
                // As many as there are places and ports of theirs: bounded like lanes.
                if self.unreachable_ns.len() == LINES_MAX {
                    self.unreachable_ns.clear();
                }
                self.unreachable_ns.insert(to, self.now_ns);
                None
            }
        }
    }

    /// Puts a datagram into its ring, or drops it.
    fn put(&mut self, to: SocketAddr, number: u32, parts: [&[u8]; 2]) {
        let Some(at) = self.lane_to(to, number) else {
            self.counters.dropped_unreachable.add(1);
            return;
        };
        let lane = &mut self.lanes[at];
        match lane.producer.push(self.now_ns, parts) {
            Ok(true) => {
                lane.expect_answer(self.now_ns);
                self.counters.datagrams_sent.add(1);
                self.counters.bytes_copied.add((parts[0].len() + parts[1].len()) as u64);
            }
            Ok(false) => self.counters.dropped_full.add(1),
            Err(Broken) => {
                lane.is_gone = true;
                self.counters.broken.add(1);
            }
        }
    }

    /// Publishes the datagrams that were put in, and wakes sleeping peers.
    fn publish(&mut self) {
        for lane in &mut self.lanes {
            if lane.producer.publish() {
                self.counters.bells_rung.add(1);
                // Also where rings cost more than they may: the peer is called anew, and a hostile
                // one has a tenth of the sidecore at most.
                lane.is_gone |= lane.allowance.ring(lane.line.peer_bell.as_fd()).is_err();
            }
        }
    }

    /// Receives from the link inside. Its system call is not made each round while lines are busy
    /// and that link is quiet.
    fn receive_inside(&mut self, now_ns: u64, f: &mut dyn FnMut(Arrival<'_>)) -> usize {
        let is_busy = now_ns.saturating_sub(self.heard_ns) < LINES_BUSY_NS;
        if !self.inside.is_due(now_ns) && is_busy {
            return 0;
        }
        let datagrams = self.inner.receive(now_ns, f);
        self.inside.found(now_ns, datagrams);
        datagrams
    }

    fn receive_from(&mut self, at: usize, f: &mut dyn FnMut(Arrival<'_>)) -> usize {
        let (now_ns, lane) = (self.now_ns, &mut self.lanes[at]);
        let mut count = 0;
        while count < BURST {
            match lane.consumer.pop() {
                Ok(Some((sent_ns, bytes))) => {
                    count += 1;
                    self.counters.bytes_copied.add(bytes.len() as u64);
                    f(Arrival { from: lane.address, at_ns: sent_ns.min(now_ns), bytes });
                }
                Ok(None) => break,
                Err(Broken) => {
                    lane.is_gone = true;
                    self.counters.broken.add(1);
                    break;
                }
            }
        }
        if count > 0 {
            lane.consumer.release();
            lane.look_ns = u64::MAX;
            self.counters.datagrams_received.add(count as u64);
        } else if now_ns >= lane.look_ns {
            lane.look(now_ns);
        }
        count
    }

    fn drop_gone(&mut self) {
        if !self.lanes.iter().any(|lane| lane.is_gone) {
            return;
        }
        // Closed descriptors leave the epoll by themselves, but for copies in other processes.
        for lane in self.lanes.iter().filter(|lane| lane.is_gone) {
            let _ = epoll::delete(&self.epoll, &lane.line.own_bell);
        }
        self.lanes.retain(|lane| !lane.is_gone);
        let places = self.lanes.iter().enumerate();
        self.index = places.map(|(at, lane)| (lane.address, at)).collect();
        self.counters.lines.set(self.lanes.len() as u64);
    }

    /// Takes signals back that were asked for before a sleep.
    fn disarm(&mut self) {
        for lane in &mut self.lanes {
            if std::mem::take(&mut lane.is_armed) {
                lane.is_rung |= lane.consumer.wake();
            }
            // The peer may not have got to it yet; then it ends the next sleep early, once.
            if lane.is_rung {
                self.counters.bell_reads.add(1);
                lane.is_rung = !lane.allowance.silence(lane.line.own_bell.as_fd());
            }
        }
    }
}

impl<L: Link> Link for Shm<L> {
    /// Sends runs of datagrams for the link inside with one call each: usually there is one.
    fn send_first(
        &mut self,
        batch: &mut TransmitBatch,
        pool: &Pool,
        count_max: usize,
    ) -> SendOutcome {
        let mut done = 0;
        while done < count_max && !batch.is_empty() {
            let Some(first) = batch.datagrams().next() else { break };
            if let Some(number) = number_of(first.to()) {
                self.put(first.to(), number, [first.head(), first.body(pool)]);
                batch.consume(1);
                done += 1;
                continue;
            }
            let others = batch.datagrams().take_while(|it| number_of(it.to()).is_none()).count();
            let sent = self.inner.send_first(batch, pool, others.min(count_max - done));
            done += sent.datagrams;
            if sent.datagrams < others {
                break;
            }
        }
        self.publish();
        SendOutcome { datagrams: done, left: batch.len() }
    }

    fn receive(&mut self, now_ns: u64, f: &mut dyn FnMut(Arrival<'_>)) -> usize {
        self.now_ns = now_ns;
        let inside = self.receive_inside(now_ns, f);
        self.disarm();
        self.take_callers();
        let lanes = self.lanes.len();
        self.turn = (self.turn + 1) % lanes.max(1);
        let mut count = 0;
        for step in 0..lanes {
            count += self.receive_from((self.turn + step) % lanes, f);
        }
        if count > 0 {
            self.heard_ns = now_ns;
        }
        self.drop_gone();
        inside + count
    }

    fn arm(&mut self) -> Progress {
        let mut progress = self.inner.arm();
        // A datagram that waits at the link inside makes the descriptor readable. The round after
        // the sleep looks there.
        self.inside.look_next();
        for lane in &mut self.lanes {
            lane.is_armed = true;
            progress |= Progress::busy_if(!lane.consumer.sleep());
        }
        progress
    }

    fn next_ns(&self) -> Option<u64> {
        let look_ns = self.lanes.iter().map(|lane| lane.look_ns).min();
        let look_ns = look_ns.filter(|&at_ns| at_ns != u64::MAX);
        [look_ns, self.inner.next_ns()].into_iter().flatten().min()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn datagram_max(&self) -> usize {
        self.inner.datagram_max().max(DATAGRAM_BYTES_MAX)
    }

    fn counters(&self) -> &Arc<LinkCounters> {
        self.inner.counters()
    }
}

impl<L: Link> fmt::Debug for Shm<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shm({} lines, {:?})", self.lanes.len(), self.inner)
    }
}

fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> Result<(), rustix::io::Errno> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_stand_for_places_and_for_nothing_else() {
        let places = ShmDirectory::default();
        let first = places.address(Path::new("/run/vrio/io1.shm")).expect("room");
        let second = places.address(Path::new("/run/vrio/io2.shm")).expect("room");
        assert_eq!(places.address(Path::new("/run/vrio/io1.shm")), Ok(first));
        assert_eq!((number_of(first), number_of(second)), (Some(0), Some(1)));
        assert_eq!(number_of(address(CALLERS_FROM + 7, 4_871)), Some(CALLERS_FROM + 7));
        for elsewhere in ["10.0.0.9:4870", "[::1]:4870", "[100::1:0:0:1]:4870"] {
            assert_eq!(number_of(elsewhere.parse().expect("an address")), None);
        }
        for number in 2..PLACES_MAX {
            places.address(Path::new(&number.to_string())).expect("room");
        }
        assert_eq!(places.address(Path::new("one more")), Err(PlacesFull));
    }
}
