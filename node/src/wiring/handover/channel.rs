//! How a running node and its successor talk: messages of JSON and descriptors over a Unix socket.
//!
//! ```text
//!   magic [8]  length of the JSON u32  number of descriptors u32  JSON  (one byte, with up to
//!   BATCH descriptors) ..                                               numbers little-endian
//! ```

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The first bytes of each message.
const MAGIC: [u8; 8] = *b"vrio-ho\n";

/// The longest JSON: a thousand disks with many queues are some megabytes.
const JSON_BYTES_MAX: u32 = 64 << 20;

/// The most descriptors: more than a process may have by default. A disk has some ten.
const FDS_MAX: u32 = 1 << 20;

/// Descriptors in one piece; the kernel takes up to 253.
const BATCH: usize = 128;

/// The other one's end of the conversation.
#[derive(Debug)]
pub(super) struct Channel(UnixStream);

impl Channel {
    /// Over a connection. Nothing takes longer than `limit` with it.
    pub(super) fn new(stream: UnixStream, limit: Duration) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        let channel = Self(stream);
        channel.set_limit(limit)?;
        Ok(channel)
    }

    /// From now on nothing takes longer than this.
    pub(super) fn set_limit(&self, limit: Duration) -> io::Result<()> {
        self.0.set_read_timeout(Some(limit))?;
        self.0.set_write_timeout(Some(limit))
    }

    /// From now on nothing can be sent to this end. What has been is still received.
    pub(super) fn stop_hearing(&self) -> io::Result<()> {
        self.0.shutdown(std::net::Shutdown::Read)
    }

    /// Sends a message; whoever gets it has descriptors of the same files.
    pub(super) fn send(&mut self, message: &impl Serialize, fds: &[OwnedFd]) -> io::Result<()> {
        let json = serde_json::to_vec(message).map_err(io::Error::other)?;
        let too_large = || io::Error::other("there is too much to hand over");
        let len = u32::try_from(json.len()).ok().filter(|len| *len <= JSON_BYTES_MAX);
        let count = u32::try_from(fds.len()).ok().filter(|count| *count <= FDS_MAX);
        let (len, count) = (len.ok_or_else(too_large)?, count.ok_or_else(too_large)?);
        let head = [len.to_le_bytes(), count.to_le_bytes()];
        self.0.write_all(&[&MAGIC, head.as_flattened(), &json].concat())?;
        for batch in fds.chunks(BATCH) {
            let batch: Vec<BorrowedFd<'_>> = batch.iter().map(AsFd::as_fd).collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            let fits = ancillary.push(SendAncillaryMessage::ScmRights(&batch));
            assert!(fits, "room was made for them");
            let byte = [batch.len() as u8];
            sendmsg(&self.0, &[IoSlice::new(&byte)], &mut ancillary, SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }

    /// Waits for a message.
    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> io::Result<(T, Vec<OwnedFd>)> {
        let strange = || io::Error::new(io::ErrorKind::InvalidData, "this is no such message");
        let mut head = [0; 16];
        self.0.read_exact(&mut head)?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| head[at + i]));
        let (len, count) = (word(8), word(12));
        if head[..8] != MAGIC || len > JSON_BYTES_MAX || count > FDS_MAX {
            return Err(strange());
        }
        let mut json = vec![0; len as usize];
        self.0.read_exact(&mut json)?;
        let mut fds = Vec::new();
        while fds.len() < count as usize {
            let before = fds.len();
            self.receive_batch(&mut fds)?;
            if fds.len() == before {
                let text = "descriptors were lost on the way; is their limit (ulimit -n) too low?";
                return Err(io::Error::other(text));
            }
        }
        if fds.len() > count as usize {
            return Err(strange());
        }
        let message = serde_json::from_slice(&json).map_err(io::Error::other)?;
        Ok((message, fds))
    }

    fn receive_batch(&mut self, fds: &mut Vec<OwnedFd>) -> io::Result<()> {
        let mut byte = [0];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(&mut byte)];
        let got = recvmsg(&self.0, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        if got.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                fds.extend(rights);
            }
        }
        Ok(())
    }
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
    fn what_came_before_the_end_of_hearing_is_heard_and_no_more() {
        let (mut channel, other) = pair();
        let mut other = Channel::new(other, LIMIT).unwrap();
        other.send(&1, &[]).unwrap();
        channel.stop_hearing().unwrap();
        assert!(other.send(&2, &[]).is_err());
        assert_eq!(channel.receive::<u8>().unwrap().0, 1);
        assert!(channel.receive::<u8>().is_err());
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let head = |len: u32, count: u32| {
            [&MAGIC, [len.to_le_bytes(), count.to_le_bytes()].as_flattened()].concat()
        };
        for bytes in [
            b"GET / HTTP/1.1\r\n".to_vec(),
            head(JSON_BYTES_MAX + 1, 0),
            head(0, FDS_MAX + 1),
            [&head(2, 0)[..], b"{]"].concat(),
            // No descriptor comes with the byte.
            [&head(2, 1)[..], b"{}", b"x"].concat(),
            head(2, 0),
            Vec::new(),
        ] {
            let (mut channel, mut other) = pair();
            other.write_all(&bytes).unwrap();
            drop(other);
            assert!(channel.receive::<serde_json::Value>().is_err(), "{bytes:?}");
        }
    }
}
