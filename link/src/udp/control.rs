//! Control messages: data that travels beside a message's bytes, between us and the kernel.
//!
//! ```text
//! length (8) | level (4) | type (4) | data, then up to the next multiple of eight
//! ```

/// Room for what goes with a message that is sent: one with a `u16`.
pub(super) type SendControl = [u64; 3];

/// Room for what comes with one: UDP_GRO with an `int`, SCM_TIMESTAMPNS with a `timespec`.
pub(super) type ReceiveControl = [u64; 7];

/// Bytes of a control message's header.
const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();

const _: () = assert!(HEADER_BYTES == 16 && size_of::<libc::timespec>() == 16);

/// UDP_SEGMENT: cut the message into datagrams of `segment_bytes`.
pub(super) fn segment(segment_bytes: u16) -> SendControl {
    let header_and_data = HEADER_BYTES + size_of_val(&segment_bytes);
    let mut bytes = [0; size_of::<SendControl>()];
    bytes[..8].copy_from_slice(&header_and_data.to_ne_bytes());
    bytes[8..12].copy_from_slice(&libc::SOL_UDP.to_ne_bytes());
    bytes[12..16].copy_from_slice(&libc::UDP_SEGMENT.to_ne_bytes());
    bytes[16..18].copy_from_slice(&segment_bytes.to_ne_bytes());
    let word = |at: usize| [0, 1, 2, 3, 4, 5, 6, 7].map(|i| bytes[at + i]);
    [0, 8, 16].map(|at| u64::from_ne_bytes(word(at)))
}

/// The kernel's data about a received message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ReceivedControl {
    /// It is a group of datagrams, each but the last so long.
    pub(super) segment_bytes: Option<usize>,
    /// When it arrived, or the first datagram of the group, in nanoseconds of Unix time.
    pub(super) stamp_ns: Option<u64>,
}

/// Reads the first `len_bytes` of what the kernel wrote.
pub(super) fn read(control: &ReceiveControl, len_bytes: usize) -> ReceivedControl {
    let mut bytes = [0; size_of::<ReceiveControl>()];
    for (place, word) in bytes.chunks_exact_mut(8).zip(control) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    let mut rest = &bytes[..len_bytes.min(bytes.len())];
    let mut told = ReceivedControl::default();
    while let Some((header, _)) = rest.split_at_checked(HEADER_BYTES) {
        let length = usize::try_from(long(header, 0)).unwrap_or(0);
        if length < HEADER_BYTES || length > rest.len() {
            break;
        }
        let data = &rest[HEADER_BYTES..length];
        match (int(header, 8), int(header, 12)) {
            (libc::SOL_UDP, libc::UDP_GRO) if data.len() >= 4 => {
                told.segment_bytes = usize::try_from(int(data, 0)).ok().filter(|&bytes| bytes > 0);
            }
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) if data.len() >= 16 => {
                let parts = (u64::try_from(long(data, 0)), u64::try_from(long(data, 8)));
                if let (Ok(s), Ok(ns)) = parts {
                    told.stamp_ns = Some(s.saturating_mul(1_000_000_000).saturating_add(ns));
                }
            }
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(8)..).unwrap_or(&[]);
    }
    told
}

fn int(bytes: &[u8], at: usize) -> i32 {
    i32::from_ne_bytes([0, 1, 2, 3].map(|i| bytes[at + i]))
}

fn long(bytes: &[u8], at: usize) -> i64 {
    i64::from_ne_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| bytes[at + i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words<const N: usize>(bytes: &[u8]) -> [u64; N] {
        let mut words = [0; N];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        words
    }

    fn message(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
        let mut bytes = (HEADER_BYTES + data.len()).to_ne_bytes().to_vec();
        bytes.extend_from_slice(&level.to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    #[test]
    fn a_segment_is_written_by_its_layout() {
        let expected = message(17, 103, &1472u16.to_ne_bytes());
        assert_eq!(segment(1472), words(&expected));
    }

    #[test]
    fn groups_and_stamps_are_read_in_any_order_and_nonsense_is_not() {
        let group = message(libc::SOL_UDP, libc::UDP_GRO, &1472i32.to_ne_bytes());
        let stamp = [7i64.to_ne_bytes(), 9i64.to_ne_bytes()].concat();
        let stamp = message(libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, &stamp);
        let both = ReceivedControl { segment_bytes: Some(1472), stamp_ns: Some(7_000_000_009) };
        for bytes in [[group.clone(), stamp.clone()].concat(), [stamp, group.clone()].concat()] {
            assert_eq!(read(&words(&bytes), bytes.len()), both);
            assert_eq!(read(&words(&bytes), usize::MAX), both);
            assert_eq!(read(&words(&bytes), 0), ReceivedControl::default());
        }
        let other = message(libc::SOL_UDP, libc::UDP_SEGMENT, &1472i32.to_ne_bytes());
        assert_eq!(read(&words(&other), 24), ReceivedControl::default());
        let negative = message(libc::SOL_UDP, libc::UDP_GRO, &(-1i32).to_ne_bytes());
        assert_eq!(read(&words(&negative), 24), ReceivedControl::default());
        for length in [0u64, 1, 15, 25, 57, u64::MAX] {
            let mut cut = group.clone();
            cut[..8].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(read(&words(&cut), 24), ReceivedControl::default());
        }
    }
}
