//! The record of a replicated volume, which the registry keeps, and its changes.

use std::collections::BTreeMap;

/// A member of a replicated volume: the node and the pool that have one copy of it.
pub type MemberId = u8;

/// Members that a record has in sync at most, so that it fits the head of a message. Each of them
/// is sent each write.
pub const MEMBERS_MAX: usize = 8;

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
}
