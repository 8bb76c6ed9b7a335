//! A way between two nodes with the limits of Ethernet, and with losses if they are asked for: it
//! passes datagrams that fit into a packet of 1500 bytes, and drops longer ones.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// The room of a packet of 1500 bytes behind the headers of IPv4 and UDP.
const DATAGRAM_BYTES_MAX: usize = 1472;

/// Room for datagrams that come while a thread of the relay waits for its turn. The system may
/// allow less.
const RECEIVE_BYTES: usize = 8 << 20;

#[derive(Debug, Default)]
struct Shared {
    /// One in so many datagrams is lost, none if this is zero.
    one_in: AtomicU64,
    passed: AtomicU64,
    lost: AtomicU64,
    stop: AtomicBool,
    /// The address of the latest sender, to which answers go.
    near: Mutex<Option<SocketAddr>>,
}

/// See the module's text.
pub(crate) struct Relay {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    /// Listens at one port of this host for the node at another port.
    pub(crate) fn new(at: u16, to: u16) -> Self {
        let bind = |port: u16| {
            let socket = UdpSocket::bind(("127.0.0.1", port)).unwrap();
            // Without the right to a larger buffer, it is as large as the system allows every user.
            let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BYTES);
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            socket
        };
        let (near, far) = (bind(at), bind(0));
        far.connect(("127.0.0.1", to)).unwrap();
        let shared = Arc::<Shared>::default();
        let (into, out) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        let (there, back) = (Arc::clone(&shared), Arc::clone(&shared));
        let there = pass(near, Arc::clone(&shared), move |datagram, from| {
            *there.near.lock().unwrap() = Some(from);
            // A datagram for a node that is not there yet is lost, like others.
            let _ = into.send(datagram);
        });
        let back = pass(far, Arc::clone(&shared), move |datagram, _| {
            let to = *back.near.lock().unwrap();
            if let Some(to) = to {
                let _ = out.send_to(datagram, to);
            }
        });
        Self { shared, threads: vec![there, back] }
    }

    /// From now on one datagram in so many is lost, in either direction; none for zero.
    pub(crate) fn lose(&self, one_in: u64) {
        self.shared.one_in.store(one_in, SeqCst);
    }

    /// The number of datagrams that have passed, and of those that were lost on purpose.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.shared.passed.load(SeqCst), self.shared.lost.load(SeqCst))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        for thread in self.threads.drain(..) {
            // A panic of the thread is the test's own already.
            let _ = thread.join();
        }
    }
}

fn pass(
    from: UdpSocket,
    shared: Arc<Shared>,
    to: impl Fn(&[u8], SocketAddr) + Send + 'static,
) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let (mut buffer, mut seed) = (vec![0; 1 << 16], 0x9e37_79b9_7f4a_7c15_u64);
        while !shared.stop.load(Relaxed) {
            let Ok((len, sender)) = from.recv_from(&mut buffer) else { continue };
            if len > DATAGRAM_BYTES_MAX {
                continue;
            }
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let one_in = shared.one_in.load(Relaxed);
            if one_in > 0 && (seed >> 33).is_multiple_of(one_in) {
                shared.lost.fetch_add(1, Relaxed);
            } else {
                shared.passed.fetch_add(1, Relaxed);
                to(&buffer[..len], sender);
            }
        }
    })
}
