//! Scrubs of a replicated volume: proofs of blocks, and how far a scrub is, for people.

use blake2::Blake2bMac;
use blake2::digest::consts::U16;
use blake2::digest::{FixedOutput, KeyInit, Update};
use parking_lot::Mutex;
use replica::{BlockProof, Extent, ProofQuestion, ScrubFinding, ScrubKey, ScrubReport, ScrubStage};

/// Blocks that differ and are named: enough to see which device lies, and where.
const NAMED_MAX: usize = 64;

/// A scrub of the volume that this member serves, under way or ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubView {
    /// How far it is.
    pub report: ScrubReport,
    /// The first 64 blocks that had other content on some copies, or are different on copies while
    /// the primary cannot read them.
    pub differing: Vec<ScrubFinding>,
    /// How long the rest takes, by the time that it took until now.
    pub left_s: Option<u64>,
}

/// The scrub of a member, for other threads.
#[derive(Debug, Default)]
pub(crate) struct ScrubBook {
    page: Mutex<Option<(ScrubView, ScrubSeen)>>,
}

/// When a scrub was seen first since it goes on, and the sectors that it had looked at then.
type ScrubSeen = Option<(u64, u64)>;

impl ScrubBook {
    pub(crate) fn view(&self) -> Option<ScrubView> {
        self.page.lock().as_ref().map(|(view, _)| view.clone())
    }

    /// Another scrub has begun, or the member ends.
    pub(crate) fn clear(&self) {
        *self.page.lock() = None;
    }

    /// The state of the scrub now; none if this member does not serve, or has made none.
    pub(crate) fn note(&self, now_ns: u64, report: Option<&ScrubReport>) {
        let mut page = self.page.lock();
        let Some(report) = report else { return *page = None };
        let (view, seen) = page.get_or_insert_default();
        let (since_ns, before) = *seen.get_or_insert((now_ns, report.looked_at));
        let looked_at = report.looked_at.saturating_sub(before);
        let left = u128::from(report.sectors.saturating_sub(report.looked_at));
        let took_ns = u128::from(now_ns.saturating_sub(since_ns));
        let left_ns = (took_ns * left).checked_div(u128::from(looked_at));
        view.left_s = left_ns.and_then(|left_ns| u64::try_from(left_ns / 1_000_000_000).ok());
        if report.stage != ScrubStage::Runs {
            (*seen, view.left_s) = (None, None);
        }
        view.report.clone_from(report);
    }

    /// Some copies have other content of a block. Whether it is named.
    pub(crate) fn differs(&self, finding: &ScrubFinding) -> bool {
        let mut page = self.page.lock();
        let (view, _) = page.get_or_insert_default();
        let is_named = view.differing.len() < NAMED_MAX;
        if is_named {
            view.differing.push(finding.clone());
        }
        is_named
    }
}

/// The proof of a block with this content.
fn proof(key: &ScrubKey, block: &[u8]) -> BlockProof {
    let mut mac = Blake2bMac::<U16>::new_from_slice(key).expect("a key of 16 bytes is one");
    mac.update(block);
    Some(mac.finalize_fixed().into())
}

/// A range whose blocks are proved: all of them by one read, or block by block if some cannot be
/// read.
#[derive(Debug)]
pub(crate) struct ProofWork {
    pub(crate) question: ProofQuestion,
    pub(crate) range: Extent,
    key: ScrubKey,
    block_sectors: u32,
    proofs: Vec<BlockProof>,
    is_alone: bool,
}

impl ProofWork {
    pub(crate) fn new(
        question: ProofQuestion,
        range: Extent,
        key: ScrubKey,
        block_sectors: u32,
    ) -> Self {
        let block_sectors = block_sectors.max(1);
        Self { question, range, key, block_sectors, proofs: Vec::new(), is_alone: false }
    }

    /// The range that is read next; none if there are all proofs.
    pub(crate) fn next(&self) -> Option<Extent> {
        let proved = self.proofs.len() as u64 * u64::from(self.block_sectors);
        let first = self.range.first() + proved;
        let left = u32::try_from(self.range.end().saturating_sub(first)).ok()?;
        Extent::new(first, if self.is_alone { left.min(self.block_sectors) } else { left })
    }

    /// The next range was read; `None`: it cannot be.
    pub(crate) fn read(&mut self, content: Option<&[u8]>) {
        let unit = self.block_sectors as usize * replica::wire::SECTOR_BYTES as usize;
        match content {
            Some(content) => {
                self.proofs.extend(content.chunks(unit).map(|block| proof(&self.key, block)));
            }
            None if self.is_alone || self.range.sectors() <= self.block_sectors => {
                self.proofs.push(None);
            }
            None => self.is_alone = true,
        }
    }

    pub(crate) fn proofs(&mut self) -> Vec<BlockProof> {
        std::mem::take(&mut self.proofs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, sectors: u32) -> Extent {
        Extent::new(first, sectors).expect("it has sectors")
    }

    #[test]
    fn blocks_are_proved_at_once_or_one_by_one() {
        let question = ProofQuestion { asker: 0, reign: 1, number: 1 };
        let content: Vec<u8> = (0..3 * 4096_u32).map(|at| (at / 4096) as u8).collect();
        let mut whole = ProofWork::new(question, range(16, 24), [7; 16], 8);
        assert_eq!(whole.next(), Some(range(16, 24)));
        whole.read(Some(&content));
        assert_eq!(whole.next(), None);
        let proofs = whole.proofs();
        assert!(proofs[0] != proofs[1] && proofs[1] != proofs[2] && proofs.len() == 3);
        // Another key has other digests of the same content.
        let mut other = ProofWork::new(question, range(16, 24), [8; 16], 8);
        other.read(Some(&content));
        assert!(other.proofs().iter().zip(&proofs).all(|(one, other)| one != other));
        // The second block cannot be read.
        let mut work = ProofWork::new(question, range(16, 24), [7; 16], 8);
        work.read(None);
        for at in 0..3_usize {
            assert_eq!(work.next(), Some(range(16 + 8 * at as u64, 8)));
            work.read((at != 1).then(|| &content[at * 4096..][..4096]));
        }
        assert_eq!(work.next(), None);
        assert_eq!(work.proofs(), [proofs[0], None, proofs[2]]);
    }

    #[test]
    fn the_rest_of_a_scrub_takes_as_long_as_what_was_looked_at_and_few_blocks_are_named() {
        let (book, second) = (ScrubBook::default(), 1_000_000_000);
        let report = |looked_at, stage| ScrubReport {
            sectors: 1000,
            looked_at,
            stage,
            ..ScrubReport::default()
        };
        let left = |at: u64, looked_at, stage| {
            book.note(at * second, Some(&report(looked_at, stage)));
            book.view().expect("it is noted").left_s
        };
        assert_eq!(left(10, 100, ScrubStage::Runs), None);
        assert_eq!(left(20, 300, ScrubStage::Runs), Some(35));
        assert_eq!(left(30, 300, ScrubStage::Paused), None);
        // The pause does not count.
        assert_eq!(left(60, 300, ScrubStage::Runs), None);
        assert_eq!(left(61, 400, ScrubStage::Runs), Some(6));
        let finding = |at: u64| ScrubFinding {
            block: range(at * 8, 8),
            differ: vec![1],
            unread: vec![],
            agree: 2,
            is_unsettled: false,
        };
        let named = (0..100).filter(|at| book.differs(&finding(*at))).count();
        assert_eq!((named, book.view().expect("it is noted").differing.len()), (64, 64));
        book.note(70 * second, None);
        assert_eq!(book.view(), None);
    }
}
