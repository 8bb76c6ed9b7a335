//! The record of a replicated volume, which the registry keeps, and its changes.

use std::collections::BTreeMap;

/// A member of a replicated volume: the node and the pool that have one copy of it.
pub type MemberId = u8;

/// Members that a record has in sync at most, so that it fits the head of a message. Each of them
/// is sent each write.
pub const MEMBERS_MAX: usize = 8;

/// A set of members, in place: it is built several times for each input of a primary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberSet([u64; 4]);

impl MemberSet {
    pub(crate) fn insert(&mut self, member: MemberId) {
        self.0[usize::from(member / 64)] |= 1 << (member % 64);
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = MemberId> {
        let words = [0, 64, 128, 192].into_iter().zip(self.0);
        words.flat_map(|(first, mut word)| {
            std::iter::from_fn(move || {
                let at = word.trailing_zeros();
                word &= word.checked_sub(1)?;
                Some(first + at as u8)
            })
        })
    }

    /// The members that `keeps` holds for.
    pub(crate) fn only(self, keeps: impl Fn(MemberId) -> bool) -> Self {
        self.iter().filter(|member| keeps(*member)).collect()
    }
}

impl FromIterator<MemberId> for MemberSet {
    fn from_iter<T: IntoIterator<Item = MemberId>>(members: T) -> Self {
        let mut set = Self::default();
        members.into_iter().for_each(|member| set.insert(member));
        set
    }
}

/// One life of a member's volatile state, drawn at each start of its process.
pub type Life = u64;

/// Which members serve a volume. The registry replaces it as a whole, if the epoch is still the one
/// that the change is based on; each change raises the epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumeRecord {
    /// Counts all changes.
    pub epoch: u64,
    /// The epoch that the present primary became the primary in. It numbers operations under it.
    pub reign: u64,
    /// Changes when all members that were in sync have lost their volatile state.
    pub incarnation: u64,
    /// The member that serves reads and orders writes.
    pub primary: MemberId,
    /// The members that hold each acknowledged write, with the lives that this is true for.
    pub in_sync: BTreeMap<MemberId, Life>,
}

impl VolumeRecord {
    /// The first record of a volume.
    pub fn first(primary: MemberId, in_sync: BTreeMap<MemberId, Life>) -> Self {
        Self { epoch: 1, reign: 1, incarnation: 1, primary, in_sync }
    }

    /// Whether the member is in sync in this life.
    pub fn has(&self, member: MemberId, life: Life) -> bool {
        self.in_sync.get(&member) == Some(&life)
    }

    /// The members in sync besides this member.
    pub fn others(&self, member: MemberId) -> impl Iterator<Item = MemberId> + '_ {
        self.in_sync.keys().copied().filter(move |other| *other != member)
    }

    fn next(&self) -> Self {
        Self { epoch: self.epoch + 1, ..self.clone() }
    }

    /// The primary goes on without a backup.
    pub fn without(&self, backup: MemberId) -> Self {
        let mut next = self.next();
        next.in_sync.remove(&backup);
        next
    }

    /// The primary admits a member that has all that it has.
    pub fn with(&self, member: MemberId, life: Life) -> Self {
        let mut next = self.next();
        next.in_sync.insert(member, life);
        next
    }

    /// A backup goes on without the primary.
    pub fn taken_by(&self, backup: MemberId) -> Self {
        let mut next = self.without(self.primary);
        (next.primary, next.reign) = (backup, next.epoch);
        next
    }

    /// The primary makes a backup the primary, and stays as a backup.
    pub fn moved_to(&self, backup: MemberId) -> Self {
        let mut next = self.next();
        (next.primary, next.reign) = (backup, next.epoch);
        next
    }

    /// A member goes on alone after all members in sync have lost their volatile state.
    pub fn restarted(&self, member: MemberId, life: Life) -> Self {
        let mut next = self.next();
        (next.primary, next.reign) = (member, next.epoch);
        next.incarnation += 1;
        next.in_sync = BTreeMap::from([(member, life)]);
        next
    }

    /// Whether it is one of the changes above of the record before. The number of the epoch alone
    /// does not say so: two records of one epoch can be of different histories.
    pub fn follows(&self, before: &Self) -> bool {
        let differs = |id: &&MemberId| before.in_sync.get(id) != self.in_sync.get(id);
        let all: MemberSet = before.in_sync.keys().chain(self.in_sync.keys()).copied().collect();
        let mut changed = all.iter().filter(|id| differs(&id));
        let (first, more) = (changed.next(), changed.next().is_some());
        let is_of_reign = self.reign == before.reign && self.primary == before.primary;
        let begins = self.reign == self.epoch && self.in_sync.contains_key(&self.primary);
        let is_taken = first == Some(before.primary) && self.in_sync.len() < before.in_sync.len();
        let is_next = match self.incarnation.checked_sub(before.incarnation) {
            Some(0) if is_of_reign => !more && first != Some(self.primary),
            Some(0) => begins && !more && (first.is_none() || is_taken),
            Some(1) => begins && self.in_sync.len() == 1,
            _ => false,
        };
        is_next && self.epoch == before.epoch + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_follows_the_record_that_it_was_made_of_alone() {
        let before = VolumeRecord::first(1, BTreeMap::from([(1, 11), (2, 22), (3, 33)]));
        let nexts = [
            before.without(3),
            before.with(4, 44),
            before.with(3, 34),
            before.taken_by(2),
            before.moved_to(2),
            before.moved_to(1),
            before.restarted(2, 23),
        ];
        // The other history has the same epochs.
        let lives = BTreeMap::from([(2, 22)]);
        let other = VolumeRecord { reign: 1, primary: 2, in_sync: lives, ..before.clone() };
        for next in nexts {
            assert!(next.follows(&before), "{next:?}");
            assert!(!next.follows(&next) && !before.follows(&next), "{next:?}");
            let is_restart = next.incarnation > before.incarnation;
            assert_eq!(next.follows(&other), is_restart, "{next:?}");
        }
        let alone = VolumeRecord { in_sync: BTreeMap::from([(1, 11)]), ..before };
        assert!(alone.moved_to(1).follows(&alone) && !alone.moved_to(1).follows(&other));
        assert!(!alone.with(4, 44).follows(&other));
    }

    #[test]
    fn a_set_has_its_members_in_order_once() {
        let set: MemberSet = [255, 0, 63, 64, 7, 0].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 7, 63, 64, 255]);
        assert_eq!(set.only(|member| member > 63).iter().collect::<Vec<_>>(), [64, 255]);
        assert_eq!(MemberSet::default().iter().next(), None);
    }
}
