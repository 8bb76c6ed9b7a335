//! Streams of bytes between two guests over TCP, in long writes. `nc` of busybox takes a kilobyte a
//! call, which an emulated guest pays for with a minute for each hundred megabytes.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::pattern::{self, BLOCK_BYTES, Mismatch};

/// Bytes of one call: the longest segment of TCP.
const CALL_BYTES: usize = 16 * BLOCK_BYTES;

/// How long a sender waits for a receiver that does not listen yet: an emulated guest is slow.
const LISTEN_PATIENCE: Duration = Duration::from_secs(60);

/// The pause between two attempts of a sender.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(50);

/// The seed and the generation of the blocks of [`send_blocks`].
const SEED: u64 = 1;
const GENERATION: u64 = 1;

/// Why a stream failed.
#[derive(Debug)]
pub enum StreamError {
    /// The system refused something.
    System(io::Error),
    /// The stream has another block than the one that belongs here.
    Block(Mismatch),
    /// The stream ended inside of a block, after so many whole ones.
    Short(u64),
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(error) => write!(f, "a stream ended: {error}"),
            Self::Block(mismatch) => write!(f, "a stream differs: {mismatch}"),
            Self::Short(blocks) => {
                write!(f, "a stream ended inside of a block, after {blocks} whole ones")
            }
        }
    }
}

impl std::error::Error for StreamError {}

impl From<io::Error> for StreamError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

impl From<Mismatch> for StreamError {
    fn from(mismatch: Mismatch) -> Self {
        Self::Block(mismatch)
    }
}

/// Connects to a receiver, which may begin to listen a little later.
fn connect(receiver: SocketAddr) -> io::Result<TcpStream> {
    let by = Instant::now() + LISTEN_PATIENCE;
    loop {
        match TcpStream::connect(receiver) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                if Instant::now() >= by {
                    return Err(error);
                }
                thread::sleep(ATTEMPT_PAUSE);
            }
            connected => return connected,
        }
    }
}

/// Ends a stream, and waits until the receiver has taken all of it and closes.
fn finish(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown(Shutdown::Write)?;
    io::copy(&mut stream, &mut io::sink())?;
    Ok(())
}

/// Sends all bytes of `source`. Gives their number.
///
/// # Errors
/// Of the source, or of the connection.
pub fn send(receiver: SocketAddr, source: &mut impl Read) -> Result<u64, StreamError> {
    let mut stream = connect(receiver)?;
    let mut bytes = vec![0; CALL_BYTES];
    let mut sent = 0;
    loop {
        let length = source.read(&mut bytes)?;
        if length == 0 {
            finish(stream)?;
            return Ok(sent);
        }
        stream.write_all(&bytes[..length])?;
        sent += length as u64;
    }
}

/// Takes one stream and writes its bytes to `sink`. Gives their number.
///
/// # Errors
/// Of the connection, or of the sink.
pub fn receive(listener: &TcpListener, sink: &mut impl Write) -> Result<u64, StreamError> {
    let (mut stream, _) = listener.accept()?;
    let mut bytes = vec![0; CALL_BYTES];
    let mut taken = 0;
    loop {
        let length = stream.read(&mut bytes)?;
        if length == 0 {
            sink.flush()?;
            return Ok(taken);
        }
        sink.write_all(&bytes[..length])?;
        taken += length as u64;
    }
}

/// Sends so many blocks, no two of them the same.
///
/// # Errors
/// Of the connection.
pub fn send_blocks(receiver: SocketAddr, blocks: u64) -> Result<(), StreamError> {
    let mut stream = connect(receiver)?;
    let mut bytes = vec![0; CALL_BYTES];
    let mut next = 0;
    while next < blocks {
        let mut length = 0;
        for block in bytes.chunks_exact_mut(BLOCK_BYTES).take((blocks - next) as usize) {
            pattern::fill(SEED, next, GENERATION, block);
            next += 1;
            length += BLOCK_BYTES;
        }
        stream.write_all(&bytes[..length])?;
    }
    finish(stream)?;
    Ok(())
}

/// Takes one stream of [`send_blocks`] and compares each block with the one that was sent. Gives
/// their number.
///
/// # Errors
/// The first block that differs, a block that is not whole, or an error of the connection.
pub fn receive_blocks(listener: &TcpListener) -> Result<u64, StreamError> {
    let (mut stream, _) = listener.accept()?;
    let mut bytes = vec![0; CALL_BYTES];
    let mut scratch = vec![0; BLOCK_BYTES];
    let (mut blocks, mut held) = (0, 0);
    loop {
        let length = stream.read(&mut bytes[held..])?;
        if length == 0 {
            return if held == 0 { Ok(blocks) } else { Err(StreamError::Short(blocks)) };
        }
        held += length;
        let whole = held - held % BLOCK_BYTES;
        for block in bytes[..whole].chunks_exact(BLOCK_BYTES) {
            pattern::check(SEED, blocks, GENERATION, block, &mut scratch)?;
            blocks += 1;
        }
        bytes.copy_within(whole..held, 0);
        held -= whole;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[test]
    fn bytes_arrive_as_they_were_sent() {
        for length in [0, 1, CALL_BYTES, 3 * CALL_BYTES + 17] {
            let sent: Vec<u8> = (0..length).map(|at| (at * 7 % 251) as u8).collect();
            let (listener, address) = listener();
            let mut got = Vec::new();
            thread::scope(|scope| {
                let sender = scope.spawn(|| send(address, &mut &sent[..]).unwrap());
                assert_eq!(receive(&listener, &mut got).unwrap(), length as u64);
                assert_eq!(sender.join().unwrap(), length as u64);
            });
            assert!(got == sent, "{length} bytes");
        }
    }

    #[test]
    fn blocks_are_counted_and_compared() {
        for blocks in [0, 1, 15, 16, 17, 1000] {
            let (listener, address) = listener();
            thread::scope(|scope| {
                let sender = scope.spawn(|| send_blocks(address, blocks).unwrap());
                assert_eq!(receive_blocks(&listener).unwrap(), blocks);
                sender.join().unwrap();
            });
        }
    }

    /// The result of a receiver that gets these bytes.
    fn received(bytes: &[u8]) -> Result<u64, StreamError> {
        let (listener, address) = listener();
        thread::scope(|scope| {
            // A receiver that has found a fault closes, and the rest is refused.
            scope.spawn(|| send(address, &mut &*bytes));
            receive_blocks(&listener)
        })
    }

    #[test]
    fn a_block_that_is_changed_missing_doubled_or_short_is_found() {
        let mut whole = vec![0; 40 * BLOCK_BYTES];
        for (at, block) in whole.chunks_exact_mut(BLOCK_BYTES).enumerate() {
            pattern::fill(SEED, at as u64, GENERATION, block);
        }
        assert_eq!(received(&whole).unwrap(), 40);
        let is_block = |bytes: &[u8], wanted: u64| match received(bytes) {
            Err(StreamError::Block(mismatch)) => assert_eq!(mismatch.block, wanted),
            other => panic!("block {wanted}: {other:?}"),
        };
        let mut changed = whole.clone();
        changed[20 * BLOCK_BYTES + 4095] ^= 1;
        is_block(&changed, 20);
        let at = 7 * BLOCK_BYTES;
        is_block(&[&whole[..at], &whole[at + BLOCK_BYTES..]].concat(), 7);
        is_block(&[&whole[..at], &whole[at - BLOCK_BYTES..]].concat(), 7);
        let short = received(&whole[..at + 100]).unwrap_err();
        assert!(matches!(short, StreamError::Short(7)), "{short}");
        assert!(short.to_string().contains("after 7 whole ones"), "{short}");
    }

    #[test]
    fn a_sender_waits_for_a_receiver_that_is_late() {
        // An address of this test alone: nothing else can take the port meanwhile.
        let address = TcpListener::bind("127.9.0.1:0").unwrap().local_addr().unwrap();
        thread::scope(|scope| {
            let sender = scope.spawn(|| send_blocks(address, 3).unwrap());
            thread::sleep(2 * ATTEMPT_PAUSE);
            assert_eq!(receive_blocks(&TcpListener::bind(address).unwrap()).unwrap(), 3);
            sender.join().unwrap();
        });
    }
}
