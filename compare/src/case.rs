//! The meaning of a case's figures, in the words of results.

use results::Axis;

/// The unit of work that a case repeats. It decides the meaning of the case's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CaseKind {
    /// A message there and one back, whose figures are of one of them, or a collective operation.
    Time,
    /// Windows of messages one way, whose rate is in 10^6 bytes a second.
    Bytes,
    /// The same both ways at once.
    BytesBothWays,
    /// Windows of short messages.
    Messages,
    /// Requests of a disk.
    Requests,
    /// Frames.
    Frames,
}

/// A case as results name it. The benchmark is the one that measures the same by itself (`block`,
/// `net`, or `mpi_latency` beside `osu_latency`), so that a page shows both side by side.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct MeasuredCase {
    pub(super) benchmark: &'static str,
    pub(super) kind: CaseKind,
    /// The settings that set the case apart from others of the benchmark, besides its place.
    pub(super) setup: Vec<(&'static str, String)>,
    /// The axis of the cases, and the place of this one.
    pub(super) axis: Axis,
    pub(super) x: f64,
    /// The bytes of each request, frame or message.
    pub(super) bytes: f64,
}
