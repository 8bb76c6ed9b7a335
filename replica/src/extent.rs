//! Ranges of a volume, in sectors, and sets of them.

use std::collections::BTreeMap;

/// The unit of ranges.
pub const SECTOR_BYTES: u64 = 512;

/// The longest content of a range, and the longest list that is an operation's.
pub(crate) const CONTENT_BYTES_MAX: u64 = 1 << 20;

/// A range of sectors. It has one sector at least, and its end is a sector's number as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Extent {
    first: u64,
    sectors: u32,
}

impl Extent {
    /// The range of so many sectors from the sector `first` on; none if it is empty, or has no end.
    pub fn new(first: u64, sectors: u32) -> Option<Self> {
        let has_end = first.checked_add(u64::from(sectors)).is_some();
        (sectors > 0 && has_end).then_some(Self { first, sectors })
    }

    /// Its first sector.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// How many sectors it has.
    pub fn sectors(&self) -> u32 {
        self.sectors
    }

    /// The sector behind its last one.
    pub fn end(&self) -> u64 {
        self.first + u64::from(self.sectors)
    }

    /// Whether both have some sector.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.first < other.end() && other.first < self.end()
    }

    /// Whether it has all sectors of `other`.
    pub fn covers(&self, other: &Self) -> bool {
        self.first <= other.first && other.end() <= self.end()
    }

    /// Its two halves; none if it is one sector.
    pub(crate) fn halves(&self) -> Option<[Self; 2]> {
        let front = self.sectors / 2;
        let middle = self.first + u64::from(front);
        let back = Self { first: middle, sectors: self.sectors - front };
        (front > 0).then_some([Self { first: self.first, sectors: front }, back])
    }
}

/// A set of sectors, kept as ranges that do not touch each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExtentSet {
    /// The end of each range by its first sector.
    ends: BTreeMap<u64, u64>,
}

impl ExtentSet {
    /// Whether it has no sector.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// How many ranges it has.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Its ranges in order: the first sector of each, and the sector behind its last one.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ends.iter().map(|(first, end)| (*first, *end))
    }

    /// Adds the sectors from `first` to the one before `end`.
    pub fn insert(&mut self, first: u64, end: u64) {
        if first >= end {
            return;
        }
        let (mut first, mut end) = (first, end);
        // Ranges that it touches become one with it.
        while let Some((&near, &near_end)) = self.ends.range(..=end).next_back()
            && near_end >= first
        {
            (first, end) = (first.min(near), end.max(near_end));
            self.ends.remove(&near);
        }
        self.ends.insert(first, end);
    }

    pub(crate) fn clear(&mut self) {
        self.ends.clear();
    }

    /// Takes at most so many of its first sectors.
    pub(crate) fn take_first(&mut self, sectors_max: u32) -> Option<Extent> {
        let (first, end) = self.ends.pop_first()?;
        let sectors = u32::try_from(end - first).unwrap_or(u32::MAX).min(sectors_max.max(1));
        let taken = Extent { first, sectors };
        if taken.end() < end {
            self.ends.insert(taken.end(), end);
        }
        Some(taken)
    }

    /// Adds sectors until it has at most so many ranges: the sectors of its smallest gaps.
    pub(crate) fn coarsen(&mut self, ranges_max: usize) {
        let surplus = self.ends.len().saturating_sub(ranges_max);
        if surplus == 0 {
            return;
        }
        let ends = self.ends.values();
        let gaps = ends.zip(self.ends.keys().skip(1)).map(|(end, next)| (next - end, *end, *next));
        let mut gaps: Vec<_> = gaps.collect();
        gaps.sort_unstable();
        for (_, end, next) in gaps.into_iter().take(surplus) {
            self.insert(end, next);
        }
    }
}

impl Extend<Extent> for ExtentSet {
    fn extend<T: IntoIterator<Item = Extent>>(&mut self, extents: T) {
        extents.into_iter().for_each(|extent| self.insert(extent.first(), extent.end()));
    }
}

impl FromIterator<Extent> for ExtentSet {
    fn from_iter<T: IntoIterator<Item = Extent>>(extents: T) -> Self {
        let mut set = Self::default();
        set.extend(extents);
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use random::Random;

    use super::*;

    #[test]
    fn a_range_has_sectors_and_an_end() {
        assert_eq!(Extent::new(1, 0), None);
        assert_eq!(Extent::new(u64::MAX, 1), None);
        let last = Extent::new(u64::MAX - 1, 1).unwrap();
        assert_eq!((last.end(), last.halves()), (u64::MAX, None));
        let three = Extent::new(4, 3).unwrap();
        let [front, back] = three.halves().unwrap();
        assert_eq!([front, back], [Extent::new(4, 1), Extent::new(5, 2)].map(Option::unwrap));
        assert!(three.covers(&front) && three.overlaps(&back) && !front.overlaps(&back));
        assert!(!front.covers(&three));
    }

    /// The sectors of a set, one by one.
    fn sectors(set: &ExtentSet) -> BTreeSet<u64> {
        set.ranges().flat_map(|(first, end)| first..end).collect()
    }

    #[test]
    fn a_set_has_the_sectors_of_its_ranges() {
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let (mut set, mut model) = (ExtentSet::default(), BTreeSet::new());
            for _ in 0..60 {
                if random.one_in(4) {
                    let most = random.between(1, 6) as u32;
                    let taken = set.take_first(most);
                    assert_eq!(taken.is_none(), model.is_empty());
                    let Some(taken) = taken else { continue };
                    assert!(taken.sectors() <= most);
                    assert_eq!(model.first(), Some(&taken.first()));
                    for sector in taken.first()..taken.end() {
                        assert!(model.remove(&sector));
                    }
                } else {
                    let (first, sectors) = (random.below(90), random.below(7));
                    set.insert(first, first + sectors);
                    model.extend(first..first + sectors);
                }
                assert_eq!(sectors(&set), model, "seed {seed}");
                let ranges: Vec<_> = set.ranges().collect();
                assert!(ranges.windows(2).all(|two| two[0].1 < two[1].0), "{ranges:?}");
            }
            let (before, most) = (set.len(), random.between(1, 5) as usize);
            set.coarsen(most);
            assert_eq!(set.len(), before.min(most));
            assert!(sectors(&set).is_superset(&model));
        }
    }

    #[test]
    fn small_gaps_are_closed_first() {
        let ranges = [(0, 1), (10, 11), (12, 13), (20, 21)];
        let mut set = ExtentSet::default();
        ranges.iter().for_each(|(first, end)| set.insert(*first, *end));
        set.coarsen(3);
        assert_eq!(set.ranges().collect::<Vec<_>>(), [(0, 1), (10, 13), (20, 21)]);
        set.coarsen(2);
        assert_eq!(set.ranges().collect::<Vec<_>>(), [(0, 1), (10, 21)]);
    }
}
