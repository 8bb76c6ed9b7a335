//! One request of a remote channel, from submission to hand-back.

use peer::Token;
use transport::BufId;
use virtio::Segment;

use volume::{IoId, Op, Status};

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum RequestPhase {
    /// The slot is free.
    #[default]
    Free,
    /// To be sent, or sent again.
    Waiting,
    /// Called, not answered. `epoch` is the one it was sent under.
    Sent { token: Token, epoch: u64 },
    /// Answered; to be handed back to the disk.
    Ended(Status),
}

/// A slot, by the index of the disk's own slot.
#[derive(Debug, Default)]
pub(super) struct RemoteRequest {
    pub(super) id: Option<IoId>,
    pub(super) stand: RequestPhase,
    pub(super) op: Op,
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: u32,
    pub(super) durable: bool,
    /// Swapped with the disk's slot, so that answers can be placed while the disk is not looking.
    pub(super) segments: Vec<Segment>,
    /// A write's stable copy: a repeated request carries the same bytes as the first one.
    pub(super) stable: Option<BufId>,
    /// A flush's view of the attachment's acknowledged writes when it was last sent.
    pub(super) covers: u64,
    pub(super) since_ns: u64,
}

/// Copies `bytes` to `offset` of what the segments make up. `false`, and nothing is copied, when
/// it does not fit: the peer answered with more than was asked for.
///
/// # Safety
/// The segments are mapped and do not overlap `bytes`.
pub(super) unsafe fn scatter_at(segments: &[Segment], offset: usize, bytes: &[u8]) -> bool {
    let total: usize = segments.iter().map(|segment| segment.len as usize).sum();
    if offset.checked_add(bytes.len()).is_none_or(|end| end > total) {
        return false;
    }
    let mut skip = offset;
    let mut rest = bytes;
    for segment in segments {
        let len = segment.len as usize;
        if skip >= len {
            skip -= len;
            continue;
        }
        let (now, later) = rest.split_at(rest.len().min(len - skip));
        // SAFETY: `skip + now.len() <= len`, so the destination lies in the segment, which the
        // caller promises to be mapped and apart from `bytes`.
        unsafe {
            std::ptr::copy_nonoverlapping(now.as_ptr(), segment.addr.add(skip), now.len());
        }
        rest = later;
        skip = 0;
        if rest.is_empty() {
            break;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_land_where_they_belong() {
        let mut guest = [0u8; 10];
        let base = guest.as_mut_ptr();
        // SAFETY: inside the array.
        let far = unsafe { base.add(6) };
        let segments = [Segment { addr: far, len: 4 }, Segment { addr: base, len: 3 }];
        // SAFETY: both segments lie in `guest`.
        unsafe {
            assert!(scatter_at(&segments, 3, &[4, 5, 6]));
            assert!(scatter_at(&segments, 0, &[1, 2, 3]));
            assert!(scatter_at(&segments, 6, &[7]));
            assert!(!scatter_at(&segments, 6, &[8, 9]), "beyond the end");
            assert!(!scatter_at(&segments, usize::MAX, &[8]), "overflow");
        }
        assert_eq!(guest, [5, 6, 7, 0, 0, 0, 1, 2, 3, 4]);
    }
}
