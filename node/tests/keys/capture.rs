//! A listener on the wire: every datagram between two nodes passes a relay, which keeps it. In
//! plain sessions the relay finds the written data and all names; in sealed sessions it finds none
//! of these.

use std::collections::HashSet;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use node::keys::{self, KeyKind};
use node::status::DiskState;
use virtio::driver::RequestStatus as Outcome;

use crate::common::{Guest, Home, address, wait_for_disk};

/// Names that do not turn up by chance.
const IO_NAME: &str = "iohost-of-the-capture";
const VM_NAME: &str = "vmhost-of-the-capture";
const VOLUME: &str = "volume-of-the-capture";
const DISK: &str = "disk-of-the-capture";

const BLOCKS: u64 = 40;

/// The length of the pieces of written data that are looked for: long enough that random bytes do
/// not hold one by chance.
const PIECE_BYTES: usize = 12;

/// Passes datagrams between one node and another, and keeps a copy of each.
struct Relay {
    kept: Arc<Mutex<Vec<Vec<u8>>>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    /// Stands at `at` for the node at `to`.
    fn new(at: &str, to: &str) -> Self {
        let (near, far) = (UdpSocket::bind(at).unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        far.connect(to).unwrap();
        let relay = Self { kept: Arc::default(), stop: Arc::default(), threads: Vec::new() };
        // The receiver of answers is the latest sender.
        let client = Arc::new(Mutex::new(None));
        let there = {
            let (near, far) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let client = Arc::clone(&client);
            relay.pass(near, move |datagram, from| {
                *client.lock().unwrap() = Some(from);
                // Without a node there the datagram is lost, like others.
                let _ = far.send(datagram);
            })
        };
        let back = relay.pass(far, move |datagram, _| {
            if let Some(to) = *client.lock().unwrap() {
                near.send_to(datagram, to).unwrap();
            }
        });
        Self { threads: vec![there, back], ..relay }
    }

    fn pass(
        &self,
        from: UdpSocket,
        to: impl Fn(&[u8], std::net::SocketAddr) + Send + 'static,
    ) -> JoinHandle<()> {
        let (kept, stop) = (Arc::clone(&self.kept), Arc::clone(&self.stop));
        from.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while !stop.load(Relaxed) {
                let Ok((len, from)) = from.recv_from(&mut buffer) else { continue };
                kept.lock().unwrap().push(buffer[..len].to_vec());
                to(&buffer[..len], from);
            }
        })
    }

    /// Every datagram that passed.
    fn end(self) -> Vec<Vec<u8>> {
        self.stop.store(true, Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        std::mem::take(&mut *self.kept.lock().unwrap())
    }
}

fn contains(datagrams: &[Vec<u8>], text: &str) -> bool {
    datagrams.iter().any(|datagram| datagram.windows(text.len()).any(|it| it == text.as_bytes()))
}

/// How many windows of all datagrams are pieces of the volume's content.
fn pieces(datagrams: &[Vec<u8>], volume: &[u8]) -> usize {
    let written: HashSet<&[u8]> =
        volume.chunks_exact(PIECE_BYTES).filter(|piece| piece.iter().any(|&b| b != 0)).collect();
    assert!(written.len() > 1000, "the guest has written something to look for");
    let windows = datagrams.iter().flat_map(|datagram| datagram.windows(PIECE_BYTES));
    windows.filter(|window| written.contains(window)).count()
}

/// The datagrams on the wire while a guest writes and reads a remote disk; and the volume
/// afterwards.
fn capture(sealed: bool) -> (Vec<Vec<u8>>, Vec<u8>) {
    let home = Home::new();
    let (io_address, relay_address, vm_address) = (address(), address(), address());
    let public = |name: &str, kind| {
        let key = keys::create(&home.path(&format!("{name}.key")), kind).unwrap();
        format!("key = \"{}\"", key.public())
    };
    let [io_key, vm_key] = ["io", "vm"].map(|name| public(name, KeyKind::Node));
    let alice = public("alice", KeyKind::Attachment);
    let when = |text: &str| if sealed { text.to_owned() } else { String::new() };
    let io = format!(
        "name = \"{IO_NAME}\"\nlisten = \"{io_address}\"\n{}\n[directories]\nvolumes = \"HOME\"\n\
         sockets = \"HOME\"\n[[volume]]\nname = \"{VOLUME}\"\n\
         backend = {{ file = \"a.img\", size = \"1MiB\" }}\nallow = [{}]\n{}\n",
        when("key = \"HOME/io.key\""),
        if sealed {
            format!("{{ node = \"{VM_NAME}\", {alice} }}")
        } else {
            format!("\"{VM_NAME}\"")
        },
        when(&format!("[[peer]]\nname = \"{VM_NAME}\"\n{vm_key}")),
    );
    let vm = format!(
        "name = \"{VM_NAME}\"\nlisten = \"{vm_address}\"\n{}\n[directories]\nsockets = \"HOME\"\n\
         [[peer]]\nname = \"{IO_NAME}\"\naddress = \"{relay_address}\"\n{}\n\
         [[disk]]\nname = \"{DISK}\"\nsocket = \"a.sock\"\nvolume = \"{IO_NAME}/{VOLUME}\"\n\
         queues = 2\n{}\n",
        when("key = \"HOME/vm.key\""),
        when(&io_key),
        when("attachment-key = \"HOME/alice.key\""),
    );
    let relay = Relay::new(&relay_address, &io_address);
    let (io, vm) = (home.start(&io), home.start(&vm));
    wait_for_disk(&vm, DiskState::Ready, "a.sock");
    let mut guest = Guest::connect(home.path("a.sock"), 2);
    for block in 0..BLOCKS {
        assert_eq!(guest.write(block as u16 % 2, block, block + 1000), Outcome::Ok);
    }
    assert_eq!(guest.flush(0), Outcome::Ok);
    for block in 0..BLOCKS {
        assert_eq!(guest.check(block as u16 % 2, block, block + 1000), Outcome::Ok);
    }
    drop(guest);
    vm.stop();
    io.stop();
    (relay.end(), std::fs::read(home.path("a.img")).unwrap())
}

#[test]
fn a_plain_session_shows_everything() {
    let (datagrams, volume) = capture(false);
    for name in [IO_NAME, VM_NAME, VOLUME, DISK] {
        assert!(contains(&datagrams, name), "{name}");
    }
    // Each block passed twice, written and read.
    let whole = 2 * BLOCKS as usize * 4096 / PIECE_BYTES;
    let found = pieces(&datagrams, &volume);
    assert!(found > whole * 9 / 10, "{found} of {whole}");
}

#[test]
fn a_sealed_session_shows_nothing() {
    let (datagrams, volume) = capture(true);
    let bytes: usize = datagrams.iter().map(Vec::len).sum();
    assert!(bytes > 2 * BLOCKS as usize * 4096, "the data did pass here");
    for name in [IO_NAME, VM_NAME, VOLUME, DISK] {
        assert!(!contains(&datagrams, name), "{name}");
    }
    assert_eq!(pieces(&datagrams, &volume), 0);
    // No ciphertext repeats either: data that is the same at both ends differs on the wire.
    let mut seen = HashSet::new();
    for datagram in datagrams.iter().filter(|datagram| datagram.len() > 2000) {
        let body = &datagram[datagram.len() - 64..];
        assert!(seen.insert(body.to_vec()), "two datagrams end alike");
    }
}
