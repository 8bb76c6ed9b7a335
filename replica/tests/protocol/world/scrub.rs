//! Scrubs in the world, devices that lie, and the promises about both.

use replica::{
    BlockProof, Extent, Input, MemberId, ScrubFinding, ScrubKey, ScrubOrder, ScrubReport,
    ScrubStage,
};

use super::action::Action;
use super::disk::Disk;
use super::{Case, World, extent};

/// The key of all scrubs here: the digest of a block is its content.
const KEY: ScrubKey = [7; 16];

/// The proofs that a member's storage gives of a range.
pub(crate) fn proofs_of(disk: &Disk, range: Extent, unit: u32) -> Vec<BlockProof> {
    let blocks = (range.first()..range.end()).step_by(unit as usize);
    let proof = |first: u64| {
        let block = extent(first, unit.min((range.end() - first) as u32));
        disk.can_read(block).then(|| {
            let mut digest = KEY;
            for (at, sector) in (block.first()..block.end()).enumerate() {
                let lie = u16::from(disk.rotten.contains(&sector)) << 15;
                let value = disk.read_sector(sector) ^ lie;
                digest[2 * at..2 * at + 2].copy_from_slice(&value.to_le_bytes());
            }
            digest
        })
    };
    blocks.map(proof).collect()
}

impl World {
    /// The scrubs and lies that may come now.
    pub(crate) fn scrubs(&self, case: &Case, actions: &mut Vec<Action>) {
        for id in self.ids() {
            let node = &self.nodes[usize::from(id)];
            if self.budget.scrubs > 0 && node.runs() && self.may_scrub(id) {
                actions.push(Action::Scrub(id));
            }
            // A primary's device does not lie: clients would read what it says.
            let reigns = node.member.is_primary() || self.registry.primary == id;
            if self.budget.rots > 0 && !reigns {
                actions.extend((0..case.sectors).map(|sector| Action::Rot(id, sector)));
            }
        }
    }

    fn may_scrub(&self, id: MemberId) -> bool {
        let member = &self.nodes[usize::from(id)].member;
        member.takes_requests() && member.scrub().is_none_or(is_over)
    }

    pub(crate) fn scrub(&mut self, case: &Case, id: MemberId) {
        let order = ScrubOrder::Start { key: KEY, sectors: case.sectors, bytes_per_s: u64::MAX };
        self.step(case, id, Input::Scrub(order));
    }

    pub(crate) fn rot(&mut self, id: MemberId, sector: u64) {
        self.budget.rots -= 1;
        let disk = &mut self.node(id).disk;
        disk.rotten.insert(sector);
        disk.has_rotted.insert(sector);
    }

    /// A scrub has named copies that differ from the primary's: their devices lie.
    pub(crate) fn found(&mut self, finding: &ScrubFinding) {
        self.found += 1;
        for id in &finding.differ {
            let disk = &self.nodes[usize::from(*id)].disk;
            let block = finding.block.first()..finding.block.end();
            if disk.has_rotted.range(block).next().is_none() && self.broken.is_none() {
                self.broken = Some(format!("{finding:?}: member {id} has what it was given"));
            }
        }
        let block = finding.block.first()..finding.block.end();
        let mut lies = self.nodes.iter().flat_map(|node| &node.disk.has_rotted);
        let has_lied = lies.any(|sector| block.contains(sector));
        if finding.is_unsettled && !has_lied && self.broken.is_none() {
            self.broken = Some(format!("{finding:?}: members have what they were given"));
        }
    }

    /// Begins another scrub, if faults have ended and one is needed.
    pub(crate) fn scrub_fairly(&mut self, case: &Case) {
        let id = self.registry.primary;
        if case.budget.scrubs > 0 && !self.is_proved(case) && self.may_scrub(id) {
            self.scrub(case, id);
        }
    }

    /// Whether members in sync have the same content, and can read it, as after a scrub: but for
    /// blocks that the primary cannot read and other members have differently.
    pub(crate) fn is_proved(&self, case: &Case) -> bool {
        if case.budget.scrubs == 0 {
            return true;
        }
        let (all, unit) = (extent(0, case.sectors as u32), case.pacing.block_sectors);
        let proofs = |id: MemberId| proofs_of(&self.nodes[usize::from(id)].disk, all, unit);
        let own = proofs(self.registry.primary);
        let others: Vec<_> = self.registry.others(self.registry.primary).map(proofs).collect();
        own.iter().enumerate().all(|(at, own)| {
            let mut others = others.iter().map(|proofs| proofs[at]);
            let mut read = others.clone().flatten();
            let first = read.next();
            let is_unsettled = own.is_none() && read.any(|other| Some(other) != first);
            is_unsettled || own.is_some() && others.all(|other| other == *own)
        })
    }
}

fn is_over(report: &ScrubReport) -> bool {
    matches!(report.stage, ScrubStage::Done | ScrubStage::Stopped)
}
