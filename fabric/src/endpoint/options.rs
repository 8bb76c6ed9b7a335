//! How an endpoint works, and the lengths by which a message goes one way or another.

/// The longest message that can be injected.
pub const INJECT_BYTES_MAX: usize = 4096;

/// The longest message that is sent through a buffer, as long as the usual buffers. Measured
/// (docs/decisions/027-region.md): at each length up to here an offer takes longer.
const EAGER_BYTES_MAX: usize = 16 << 10;

/// The shortest offer that is read out of the sender's memory. Measured up to 1 MiB: two copies by
/// two processes at once, in pieces that stay in a cache, take a third of the time of one copy by
/// the kernel, which has each page to look up. Beyond that the pieces are of no use to a cache, and
/// the one copy needs the sender for nothing.
const SINGLE_COPY_BYTES_MIN: usize = 4 << 20;

/// The longest message that another host is sent without being asked for it, piece by piece. What
/// nobody has asked for its receiver has to keep, as it keeps shorter ones; Open MPI's own TCP goes
/// as far. Of one that is longer the way there and back that asking takes is a small part.
pub(super) const PUSH_BYTES_MAX: usize = 64 << 10;

/// What messages that wait for room may take of the sender's memory: a million short ones, 60,000
/// of the longest that are copied. What a program posts to who does not look is far less, and a
/// program that sends without end should notice before its host's memory does.
const WAITING_BYTES_MAX: usize = 256 << 20;

/// How an endpoint works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointOptions {
    /// Longer messages are offered for the receiver to fetch, and not copied into the slab. Cut to
    /// the length of the region's buffers. What is injected is always copied.
    pub eager_bytes_max: usize,
    /// Offers of at least so many bytes are read out of the sender's memory where the kernel allows
    /// it. Others come through its slab.
    pub single_copy_bytes_min: usize,
    /// What messages that wait for room may take of this process's memory, copies of injected ones
    /// included; none waits if it is 0. More are refused as busy.
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
