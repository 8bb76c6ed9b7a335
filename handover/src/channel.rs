//! A node's conversation with its successor, and with the process that opens interfaces for it:
//! messages of JSON and descriptors over a Unix socket.
//!
//! ```text
//!   magic [8]  length of the JSON u32  number of descriptors u32  JSON  (one byte, with up to
//!   BATCH descriptors) ..                                               numbers little-endian
//! ```

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The first bytes of each message.
const MAGIC: [u8; 8] = *b"vrio-ho\n";

/// Magic, length, number.
const HEAD_BYTES: usize = 16;

/// The longest JSON: a thousand disks with many queues are some megabytes.
const JSON_BYTES_MAX: u32 = 64 << 20;

/// The most descriptors: more than a process may have by default. A disk has some ten.
const FDS_MAX: u32 = 1 << 20;

/// The longest JSON of a word, which is a line for people at most.
const WORD_BYTES_MAX: u32 = 64 << 10;

/// Descriptors in one piece; the kernel takes up to 253.
const BATCH: usize = 128;

/// Descriptors came that this process may not have. The message is lost, and the next can be heard.
pub const LOST: io::ErrorKind = io::ErrorKind::QuotaExceeded;
const LOST_TEXT: &str = "descriptors were lost on the way, because this process has too many; \
                         raise its limit, `ulimit -n` or LimitNOFILE= of its unit";

/// This process's end of the conversation.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    limit: Duration,
    /// The part of a message that has arrived so far. It stays after a timeout, and the next call
    /// receives the rest.
    heard: Vec<u8>,
    fds: Vec<OwnedFd>,
    /// Descriptors that the other end sent with the message so far; fewer arrived where this
    /// process had no room.
    sent: usize,
}

impl Channel {
    /// A channel over a connection. No message takes longer than `limit`, into however many pieces
    /// the other end cuts it.
    pub fn new(stream: UnixStream, limit: Duration) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, limit, heard: Vec::new(), fds: Vec::new(), sent: 0 })
    }

    /// From now on no message takes longer than this.
    pub fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// From now on the other end can send nothing more. Bytes that it has sent are still received.
    pub fn stop_hearing(&self) -> io::Result<()> {
        self.stream.shutdown(std::net::Shutdown::Read)
    }

    /// Ends the connection in both directions, also for other processes that hold it.
    pub fn end(&self) {
        // An error means that the other end has closed the connection already.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// Sends a message. The receiver gets descriptors of the same files.
    pub fn send(&mut self, message: &impl Serialize, fds: &[OwnedFd]) -> io::Result<()> {
        let until = Instant::now() + self.limit;
        let json = serde_json::to_vec(message).map_err(io::Error::other)?;
        let too_large = || io::Error::other("there is too much to hand over");
        let len = u32::try_from(json.len()).ok().filter(|len| *len <= JSON_BYTES_MAX);
        let count = u32::try_from(fds.len()).ok().filter(|count| *count <= FDS_MAX);
        let (len, count) = (len.ok_or_else(too_large)?, count.ok_or_else(too_large)?);
        let head = [len.to_le_bytes(), count.to_le_bytes()];
        let bytes = [&MAGIC, head.as_flattened(), &json].concat();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let write = |mut stream: &UnixStream| stream.write(rest);
            let written = self.when(PollFlags::OUT, until, write)?;
            rest = &rest[written..];
        }
        for batch in fds.chunks(BATCH) {
            self.when(PollFlags::OUT, until, |stream| send_batch(stream, batch))?;
        }
        Ok(())
    }

    /// Waits for a message.
    pub fn receive<T: DeserializeOwned>(&mut self) -> io::Result<(T, Vec<OwnedFd>)> {
        self.receive_within(JSON_BYTES_MAX, FDS_MAX)
    }

    /// Waits for a message of a few words, with which no descriptors come.
    pub fn receive_word<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        self.receive_within(WORD_BYTES_MAX, 0).map(|(word, _)| word)
    }

    fn receive_within<T: DeserializeOwned>(
        &mut self,
        bytes_max: u32,
        fds_max: u32,
    ) -> io::Result<(T, Vec<OwnedFd>)> {
        let until = Instant::now() + self.limit;
        let strange =
            || io::Error::new(io::ErrorKind::InvalidData, "this is not a message of the hand-over");
        self.hear(HEAD_BYTES, until)?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| self.heard[at + i]));
        let (len, count) = (word(8), word(12));
        if self.heard[..8] != MAGIC || len > bytes_max || count > fds_max {
            return Err(strange());
        }
        self.hear(HEAD_BYTES + len as usize, until)?;
        while self.sent < count as usize {
            let (sent, batch) = self.when(PollFlags::IN, until, receive_batch)?;
            if sent == 0 || batch.len() > sent {
                return Err(strange());
            }
            self.sent += sent;
            self.fds.extend(batch);
        }
        if self.sent > count as usize {
            return Err(strange());
        }
        // The message is read to its end also when descriptors are missing, so that the next one is
        // read from its beginning.
        let (whole, fds) = (std::mem::take(&mut self.heard), std::mem::take(&mut self.fds));
        if fds.len() < std::mem::take(&mut self.sent) {
            return Err(io::Error::new(LOST, LOST_TEXT));
        }
        let message = serde_json::from_slice(&whole[HEAD_BYTES..]).map_err(io::Error::other)?;
        Ok((message, fds))
    }

    /// Waits until `len` bytes of a message are there. It reads not a byte more, since descriptors
    /// may come with the next byte.
    fn hear(&mut self, len: usize, until: Instant) -> io::Result<()> {
        let mut piece = [0; 64 << 10];
        while self.heard.len() < len {
            let wanted = piece.len().min(len - self.heard.len());
            let piece = &mut piece[..wanted];
            let read = self.when(PollFlags::IN, until, |mut stream| stream.read(piece))?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.heard.extend(&piece[..read]);
        }
        Ok(())
    }

    /// Tries an operation on the stream until it does not have to wait, at most until `until`.
    fn when<T>(
        &self,
        ready: PollFlags,
        until: Instant,
        mut act: impl FnMut(&UnixStream) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match act(&self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                done => return done,
            }
            let (tv_sec, tv_nsec) = (left.as_secs() as i64, i64::from(left.subsec_nanos()));
            let limit = Timespec { tv_sec, tv_nsec };
            match poll(&mut [PollFd::new(&self.stream, ready)], Some(&limit)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// Sends descriptors with one byte.
fn send_batch(stream: &UnixStream, fds: &[OwnedFd]) -> io::Result<()> {
    let batch: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fits = ancillary.push(SendAncillaryMessage::ScmRights(&batch));
    assert!(fits, "room was made for them");
    let byte = [batch.len() as u8];
    sendmsg(stream, &[IoSlice::new(&byte)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives descriptors that come with one byte, which is their number. The system closes those for
/// which this process has no room.
fn receive_batch(stream: &UnixStream) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut byte)];
    let got = recvmsg(stream, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if got.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut fds = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            fds.extend(rights);
        }
    }
    Ok((usize::from(byte[0]), fds))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn pair() -> (Channel, UnixStream) {
        let (one, other) = UnixStream::pair().unwrap();
        (Channel::new(one, LIMIT).unwrap(), other)
    }

    #[test]
    fn messages_arrive_in_order_with_their_descriptors() {
        let (mut channel, other) = pair();
        let mut other = Channel::new(other, LIMIT).unwrap();
        let counts = [0, 1, BATCH, 3 * BATCH + 1];
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for count in counts {
                    let fds: Vec<OwnedFd> = (0..count)
                        .map(|at| {
                            let flags = rustix::event::EventfdFlags::empty();
                            rustix::event::eventfd(at as u32, flags).unwrap()
                        })
                        .collect();
                    // Longer than a socket's buffer.
                    channel.send(&"x".repeat(count * 10_000), &fds).unwrap();
                }
            });
            for count in counts {
                let (text, fds): (String, _) = other.receive().unwrap();
                assert_eq!((text.len(), fds.len()), (count * 10_000, count));
                for (at, fd) in fds.iter().enumerate().skip(1) {
                    let mut number = [0; 8];
                    rustix::io::read(fd, &mut number).unwrap();
                    assert_eq!(u64::from_ne_bytes(number), at as u64);
                }
            }
        });
    }

    #[test]
    fn frames_before_the_end_of_hearing_are_heard_and_no_later_ones() {
        let (mut channel, other) = pair();
        let mut other = Channel::new(other, LIMIT).unwrap();
        other.send(&1, &[]).unwrap();
        channel.stop_hearing().unwrap();
        assert!(other.send(&2, &[]).is_err());
        assert_eq!(channel.receive::<u8>().unwrap().0, 1);
        assert!(channel.receive::<u8>().is_err());
    }

    #[test]
    fn malformed_messages_are_refused() {
        let head = |len: u32, count: u32| {
            [&MAGIC, [len.to_le_bytes(), count.to_le_bytes()].as_flattened()].concat()
        };
        for bytes in [
            b"GET / HTTP/1.1\r\n".to_vec(),
            head(JSON_BYTES_MAX + 1, 0),
            head(0, FDS_MAX + 1),
            [&head(2, 0)[..], b"{]"].concat(),
            // No descriptor comes with the byte.
            [&head(2, 1)[..], b"{}", &[0]].concat(),
            // More than were announced.
            [&head(2, 1)[..], b"{}", &[2]].concat(),
            head(2, 0),
            Vec::new(),
        ] {
            let (mut channel, mut other) = pair();
            other.write_all(&bytes).unwrap();
            drop(other);
            assert!(channel.receive::<serde_json::Value>().is_err(), "{bytes:?}");
        }
    }

    /// As where the receiver has no room for all of them.
    #[test]
    fn a_message_whose_descriptors_are_lost_is_not_the_end() {
        let (mut channel, mut other) = pair();
        let head = [3_u32.to_le_bytes(), 200_u32.to_le_bytes()];
        other.write_all(&[&MAGIC, head.as_flattened(), b"123"].concat()).unwrap();
        let fds: Vec<OwnedFd> = (0..BATCH + 1)
            .map(|_| rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap())
            .collect();
        send_batch(&other, &fds[..BATCH]).unwrap();
        // A number, and fewer descriptors with it.
        other.write_all(&[200 - BATCH as u8]).unwrap();
        let lost = channel.receive::<u8>().unwrap_err();
        assert!(lost.kind() == LOST && lost.to_string().contains("ulimit -n"), "{lost}");
        let mut other = Channel::new(other, LIMIT).unwrap();
        other.send(&4, &fds).unwrap();
        let (number, came) = channel.receive::<u8>().unwrap();
        assert_eq!((number, came.len()), (4, fds.len()));
    }

    #[test]
    fn a_word_is_short_and_brings_nothing() {
        let head = |len: u32, count: u32| {
            [&MAGIC, [len.to_le_bytes(), count.to_le_bytes()].as_flattened()].concat()
        };
        let text = format!("{:?}", "x".repeat(WORD_BYTES_MAX as usize - 2));
        for (bytes, is_one) in [
            ([&head(WORD_BYTES_MAX, 0), text.as_bytes()].concat(), true),
            (head(WORD_BYTES_MAX + 1, 0), false),
            (head(2, 1), false),
        ] {
            let (mut channel, mut other) = pair();
            let got = std::thread::scope(|scope| {
                scope.spawn(|| other.write_all(&bytes).unwrap());
                channel.receive_word::<String>()
            });
            match got {
                Ok(word) => assert!(is_one && word.len() + 2 == WORD_BYTES_MAX as usize),
                Err(error) => {
                    assert!(!is_one && error.kind() == io::ErrorKind::InvalidData, "{error}")
                }
            }
        }
    }

    /// A piece now and then does not prolong a message, whichever way it goes.
    #[test]
    fn a_limit_is_one_of_the_whole_message() {
        let (mut channel, mut other) = pair();
        channel.set_limit(Duration::from_millis(200));
        let text = "x".repeat(1 << 20);
        let bytes = [&MAGIC[..], &100_u32.to_le_bytes(), &[0; 4], &[b' '; 100]].concat();
        let said = std::thread::scope(|scope| {
            let dawdles = scope.spawn(move || {
                let (mut said, mut some) = (0_usize, [0; 4096]);
                for byte in &bytes {
                    std::thread::sleep(Duration::from_millis(50));
                    // It reads as slowly as it writes.
                    let _ = other.read(&mut some);
                    said += usize::from(other.write_all(&[*byte]).is_ok());
                }
                said
            });
            assert_eq!(channel.send(&text, &[]).unwrap_err().kind(), io::ErrorKind::TimedOut);
            let error = channel.receive::<serde_json::Value>().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            drop(channel);
            dawdles.join().unwrap()
        });
        assert!(said < 100, "the receiver does not wait for all of it");
    }

    /// A receiver whose time ran out in the middle of a message can still receive the rest of it.
    #[test]
    fn the_result_of_a_message_is_kept() {
        let (mut channel, mut other) = pair();
        let bytes = [&MAGIC[..], &3_u32.to_le_bytes(), &[0; 4], b"123"].concat();
        channel.set_limit(Duration::from_millis(20));
        for piece in [&bytes[..5], &bytes[5..17]] {
            other.write_all(piece).unwrap();
            let error = channel.receive_word::<u8>().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
        other.write_all(&bytes[17..]).unwrap();
        channel.stop_hearing().unwrap();
        assert_eq!(channel.receive_word::<u8>().unwrap(), 123);
    }
}
