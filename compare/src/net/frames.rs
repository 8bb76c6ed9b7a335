//! One kind of frames, as a case of the comparison.

use results::Axis;

use crate::case::{CaseKind, MeasuredCase};
use crate::contest::Case;
use bench::figures::word_of;
use bench::net::NetOp;

/// One kind of frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frames {
    pub(super) op: NetOp,
    pub(super) size_bytes: u32,
}

impl Case for Frames {
    fn name(&self) -> String {
        let size = match self.size_bytes {
            bytes if bytes >= 1 << 10 && bytes.is_power_of_two() => format!("{} KiB", bytes >> 10),
            bytes => format!("{bytes} B"),
        };
        let op = match self.op {
            NetOp::Forward => "one way",
            NetOp::Bounce => "there and back",
            NetOp::Stream => "a stream",
        };
        format!("{size} {op}")
    }

    fn measured(&self) -> MeasuredCase {
        let (kind, bytes) = (CaseKind::Frames, f64::from(self.size_bytes));
        let setup = vec![("op", word_of(&self.op))];
        MeasuredCase { benchmark: "net", kind, setup, axis: Axis::MESSAGE_SIZE, x: bytes, bytes }
    }
}

impl Frames {
    /// The shortest frame, the usual one, and the longest: TCP that is not cut.
    pub(super) fn all() -> Vec<Self> {
        let forward =
            [64, 1500, 64 << 10].map(|size_bytes| Self { op: NetOp::Forward, size_bytes });
        forward.into_iter().chain([Self { op: NetOp::Bounce, size_bytes: 64 }]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_names_of_their_own() {
        let names: Vec<_> = Frames::all().iter().map(Frames::name).collect();
        assert_eq!(
            names,
            ["64 B one way", "1500 B one way", "64 KiB one way", "64 B there and back"]
        );
    }

    #[test]
    fn a_case_is_as_two_cards_alone_are_measured() {
        let it = Frames { op: NetOp::Bounce, size_bytes: 64 }.measured();
        assert_eq!((it.benchmark, it.kind, it.x), ("net", CaseKind::Frames, 64.0));
        assert_eq!(it.setup, [("op", "bounce".to_owned())]);
    }
}
