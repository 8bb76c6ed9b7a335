//! One kind of requests, as a case of the comparison.

use results::Axis;

use crate::case::{CaseKind, MeasuredCase};
use crate::contest::Case;
use bench::load::LoadPattern;

/// One kind of requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Requests {
    pub(crate) op: LoadPattern,
    pub(crate) size_bytes: u32,
    pub(crate) depth: u16,
}

impl Case for Requests {
    fn name(&self) -> String {
        let size = match self.size_bytes {
            bytes if bytes >= 1 << 20 => format!("{}m", bytes >> 20),
            bytes => format!("{}k", bytes >> 10),
        };
        format!("{} {size} depth {}", self.op.name(), self.depth)
    }

    fn measured(&self) -> MeasuredCase {
        let (depth, bytes) = (f64::from(self.depth), f64::from(self.size_bytes));
        let op = ("op", self.op.name().to_owned());
        MeasuredCase {
            benchmark: "block",
            kind: CaseKind::Requests,
            setup: vec![op, ("size_bytes", self.size_bytes.to_string())],
            axis: Axis::QUEUE_DEPTH,
            x: depth,
            bytes,
        }
    }
}

impl Requests {
    /// Small requests to random places, long ones in order.
    pub(crate) fn all() -> Vec<Self> {
        let mut cases = Vec::new();
        for op in [LoadPattern::RandRead, LoadPattern::RandWrite] {
            cases.extend([1, 8, 32].map(|depth| Self { op, size_bytes: 4 << 10, depth }));
        }
        for (size_bytes, depth) in [(64 << 10, 8), (1 << 20, 4)] {
            let ops = [LoadPattern::Read, LoadPattern::Write];
            cases.extend(ops.map(|op| Self { op, size_bytes, depth }));
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_names_of_their_own() {
        let mut names: Vec<_> = Requests::all().iter().map(Requests::name).collect();
        assert_eq!(names.len(), 10);
        assert_eq!(names[0], "randread 4k depth 1");
        assert_eq!(names[9], "write 1m depth 4");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 10);
    }

    #[test]
    fn a_case_is_as_one_disk_alone_is_measured() {
        let it = Requests { op: LoadPattern::RandRead, size_bytes: 4096, depth: 32 }.measured();
        assert_eq!((it.benchmark, it.kind, it.x), ("block", CaseKind::Requests, 32.0));
        let setup = [("op", "randread".to_owned()), ("size_bytes", "4096".to_owned())];
        assert_eq!(it.setup, setup);
    }
}
