//! One kind of messages, as a case of the comparison.

use results::Axis;

use crate::case::{CaseKind, MeasuredCase};
use crate::contest::Case;

/// The operation of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MpiOp {
    /// A message there and one back: the time of one of them.
    Latency,
    /// Windows of messages one way.
    Bandwidth,
    /// Windows of messages both ways at once.
    Both,
    /// The same as bandwidth, with short messages between all pairs of ranks.
    Rate,
    AllToAll,
    AllReduce,
}

impl MpiOp {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Bandwidth => "bandwidth",
            Self::Both => "both ways",
            Self::Rate => "message rate",
            Self::AllToAll => "all-to-all",
            Self::AllReduce => "all-reduce",
        }
    }

    /// The benchmark of results, which stands beside OSU's, and the kind of its figures.
    fn measured(self) -> (&'static str, CaseKind) {
        match self {
            Self::Latency => ("mpi_latency", CaseKind::Time),
            Self::Bandwidth => ("mpi_bandwidth", CaseKind::Bytes),
            Self::Both => ("mpi_bidirectional_bandwidth", CaseKind::BytesBothWays),
            Self::Rate => ("mpi_message_rate", CaseKind::Messages),
            Self::AllToAll => ("mpi_alltoall", CaseKind::Time),
            Self::AllReduce => ("mpi_allreduce", CaseKind::Time),
        }
    }

    /// The program's word for it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Bandwidth | Self::Rate => "bandwidth",
            Self::Both => "both",
            Self::AllToAll => "alltoall",
            Self::AllReduce => "allreduce",
        }
    }

    /// Whether its rate is megabytes per second, and not messages or operations.
    pub(super) fn is_in_bytes(self) -> bool {
        matches!(self, Self::Bandwidth | Self::Both)
    }
}

/// One kind of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Messages {
    pub(super) op: MpiOp,
    pub(super) bytes: u32,
    /// The number of ranks that take part.
    pub(super) ranks: u16,
}

impl Messages {
    /// The cases between two ranks, then those between all.
    pub(super) fn all(ranks: u16) -> Vec<Self> {
        let of = |op, sizes: &'static [u32], ranks| {
            sizes.iter().map(move |&bytes| Self { op, bytes, ranks })
        };
        of(MpiOp::Latency, &[8, 1 << 10, 8 << 10, 64 << 10, 1 << 20], 2)
            .chain(of(MpiOp::Bandwidth, &[8 << 10, 64 << 10, 1 << 20], 2))
            .chain(of(MpiOp::Both, &[64 << 10, 1 << 20], 2))
            .chain(of(MpiOp::Rate, &[8], ranks))
            .chain(of(MpiOp::AllToAll, &[8, 1 << 10, 64 << 10], ranks))
            .chain(of(MpiOp::AllReduce, &[8, 1 << 10, 64 << 10], ranks))
            .collect()
    }

    /// The program's argument for the case.
    pub(super) fn word(&self) -> String {
        format!("{}:{}", self.op.word(), self.bytes)
    }
}

impl Case for Messages {
    fn name(&self) -> String {
        let size = match self.bytes {
            bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
            bytes if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
            bytes => format!("{bytes} B"),
        };
        format!("{} {size}", self.op.name())
    }

    fn measured(&self) -> MeasuredCase {
        let ((benchmark, kind), bytes) = (self.op.measured(), f64::from(self.bytes));
        let (setup, axis) = (Vec::new(), Axis::MESSAGE_SIZE);
        MeasuredCase { benchmark, kind, setup, axis, x: bytes, bytes }
    }

    fn shares_turn(&self, other: &Self) -> bool {
        self.ranks == other.ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_names_of_their_own_and_two_turns() {
        let all = Messages::all(4);
        let mut names: Vec<_> = all.iter().map(Messages::name).collect();
        assert_eq!(names[0], "latency 8 B");
        assert!(names.contains(&"both ways 1 MiB".to_owned()));
        names.dedup();
        assert_eq!(names.len(), all.len());
        assert_eq!(all.chunk_by(Case::shares_turn).count(), 2);
        assert_eq!(Messages::all(2).chunk_by(Case::shares_turn).count(), 1);
    }

    #[test]
    fn each_operation_is_a_benchmark_beside_osus() {
        let of = |op| Messages { op, bytes: 65_536, ranks: 2 }.measured();
        let (both, rate) = (of(MpiOp::Both), of(MpiOp::Rate));
        assert_eq!(both.benchmark, "mpi_bidirectional_bandwidth");
        assert_eq!((both.kind, both.x, both.bytes), (CaseKind::BytesBothWays, 65_536.0, 65_536.0));
        assert_eq!((rate.benchmark, rate.kind), ("mpi_message_rate", CaseKind::Messages));
        let mut names = [
            MpiOp::Latency,
            MpiOp::Bandwidth,
            MpiOp::Both,
            MpiOp::Rate,
            MpiOp::AllToAll,
            MpiOp::AllReduce,
        ]
        .map(|op| of(op).benchmark);
        names.sort_unstable();
        assert!(names.windows(2).all(|two| two[0] != two[1]), "{names:?}");
    }
}
