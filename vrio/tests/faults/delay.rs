//! A relay on the switch: datagrams between nodes of one way are late by different times, and so
//! arrive in another order. The kernel of a test machine may have no `netem`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use random::Random;
use testbed::rack::SWITCH;
use testbed::stage::{inside, namespace};

/// The first port of a node; its further sidecores have the next ones.
pub(super) const PORT: u16 = 4870;

/// Datagrams that are late at a time. Further datagrams are lost, as at any switch.
const LATE_MAX: usize = 4096;

/// The longest wait for a datagram: the thread looks for its end then.
const LOOK: Duration = Duration::from_millis(20);

/// The relay of one way. It has an address of its own, at the ports of the nodes.
pub(super) struct DelayRelay {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl DelayRelay {
    /// Passes datagrams on from its own address, which the switch has, to that of a host. Both ends
    /// see the other host's address: rules on the hosts change it (`hosts.rs`).
    pub(super) fn start(own: &str, to: &str, sidecores: u16, longest: Duration) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let ports = || PORT..PORT + sidecores;
        let bind = || ports().map(|port| UdpSocket::bind((own, port))).collect::<Result<_, _>>();
        let sockets: Vec<UdpSocket> =
            inside(Some(&namespace(SWITCH)), bind).and_then(|it| Ok(it?)).expect("its addresses");
        let target = |port: u16| -> SocketAddr { format!("{to}:{port}").parse().expect("ours") };
        let start = |(port, from): (u16, &UdpSocket)| {
            let again = |it: &UdpSocket| it.try_clone().expect("a descriptor");
            let (from, out) = (again(from), sockets.iter().map(again).collect());
            let (to, stop) = (target(port), Arc::clone(&stop));
            std::thread::spawn(move || pass(&from, out, to, longest, &stop))
        };
        let threads = ports().zip(&sockets).map(start).collect();
        Self { stop, threads }
    }
}

impl Drop for DelayRelay {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // A panic of the thread was printed.
            let _ = thread.join();
        }
    }
}

/// A datagram: when it is due, its number, the place of its sender's port, and its bytes.
type Late = (Instant, u64, usize, Vec<u8>);

/// Passes datagrams on that come to one port, by the socket of the sender's port.
fn pass(
    from: &UdpSocket,
    out: Vec<UdpSocket>,
    to: SocketAddr,
    longest: Duration,
    stop: &AtomicBool,
) {
    let mut random = Random::new(u64::from(to.port()));
    let longest_us = longest.as_micros() as u64;
    let mut late = BinaryHeap::<Reverse<Late>>::new();
    // It keeps the order of datagrams that are due at the same time.
    let mut number = 0;
    let mut buffer = vec![0; 1 << 16];
    while !stop.load(Relaxed) {
        let now = Instant::now();
        while late.peek().is_some_and(|Reverse((due, ..))| *due <= now) {
            let Reverse((_, _, sender, datagram)) = late.pop().expect("it was seen");
            // A datagram for a host that is cut off is lost.
            let _ = out[sender].send_to(&datagram, to);
        }
        let next = late.peek().map_or(LOOK, |Reverse((due, ..))| *due - now);
        let wait = next.clamp(Duration::from_micros(100), LOOK);
        from.set_read_timeout(Some(wait)).expect("not zero");
        let Ok((len, sender)) = from.recv_from(&mut buffer) else { continue };
        let sender = usize::from(sender.port().wrapping_sub(PORT));
        if sender < out.len() && late.len() < LATE_MAX {
            let due = Instant::now() + Duration::from_micros(random.between(0, longest_us));
            late.push(Reverse((due, number, sender, buffer[..len].to_vec())));
            number += 1;
        }
    }
}
