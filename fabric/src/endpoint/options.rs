//! How an endpoint works, and the lengths by which a message goes one way or another.

/// The longest message that can be injected.
pub const INJECT_BYTES_MAX: usize = 4096;

/// The longest message that is sent through a buffer, as long as the usual buffers. Measured
/// (docs/decisions/027-region.md): at each length up to here an offer takes longer.
const EAGER_BYTES_MAX: usize = 16 << 10;

/// The shortest offer that is read out of the sender's memory. Measured up to 1 MiB: two copies by
/// two processes at once, in pieces that stay in a cache, take a third of the time of one copy by
/// the kernel, which has to look each page up. Longer pieces do not stay in a cache, and the one
/// copy leaves the sender alone.
const SINGLE_COPY_BYTES_MIN: usize = 4 << 20;

/// The longest message that is pushed to another host: sent piece by piece before the receiver asks
/// for it. The receiver has to keep such a message, as it keeps shorter ones; Open MPI's own TCP
/// goes as far. For a longer message the round trip of asking is a small part of its time.
pub(super) const PUSH_BYTES_MAX: usize = 64 << 10;

/// The memory of the sender that messages may take while they wait for room: a million short ones,
/// or 60,000 of the longest that are copied. Programs post far less to a receiver that does not
/// look, and a program that sends without end should notice before its host's memory is full.
const WAITING_BYTES_MAX: usize = 256 << 20;

/// How an endpoint works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointOptions {
    /// Longer messages are offered for the receiver to fetch, and not copied into the slab. Cut to
    /// the length of the region's buffers. Injected messages are always copied.
    pub eager_bytes_max: usize,
    /// Offers of at least so many bytes are read out of the sender's memory where the kernel allows
    /// it. Others come through its slab.
    pub single_copy_bytes_min: usize,
    /// The memory of this process that messages may take while they wait for room, copies of
    /// injected ones included. If it is 0, none waits. More messages are refused as busy.
    pub waiting_bytes_max: usize,
}

impl Default for EndpointOptions {
    fn default() -> Self {
        Self {
            eager_bytes_max: EAGER_BYTES_MAX,
            single_copy_bytes_min: SINGLE_COPY_BYTES_MIN,
            waiting_bytes_max: WAITING_BYTES_MAX,
        }
    }
}
