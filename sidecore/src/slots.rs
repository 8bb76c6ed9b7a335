//! Request slots: a slab of fixed capacity that never allocates after it was made.

use std::fmt;
use std::ops::{Index, IndexMut};

/// Names a taken slot. The generation tells apart two tenants of one slot, so that an id that is
/// kept for too long is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SlotId {
    index: u16,
    generation: u16,
}

impl SlotId {
    /// The slot's place: 0 up to the capacity.
    pub fn index(self) -> usize {
        usize::from(self.index)
    }

    /// Packs the id, for instance into a kernel's user data.
    pub fn to_u32(self) -> u32 {
        u32::from(self.generation) << 16 | u32::from(self.index)
    }

    /// The reverse of [`SlotId::to_u32`].
    pub fn from_u32(packed: u32) -> Self {
        Self { index: packed as u16, generation: (packed >> 16) as u16 }
    }
}

/// A fixed number of `T`s that are taken and freed.
///
/// A freed value stays in its place unchanged, and the slot's next owner finds it there: a `Vec`
/// inside keeps its capacity. The next owner resets the fields that it needs. The use of a freed id
/// is our own mistake and panics; ids from outside are looked up with [`Slots::get`].
pub struct Slots<T> {
    values: Vec<T>,
    marks: Vec<Mark>,
    /// Free places; the last one freed is taken first, since it is still in the cache.
    free: Vec<u16>,
}

#[derive(Clone, Copy, Default)]
struct Mark {
    generation: u16,
    taken: bool,
}

impl<T: Default> Slots<T> {
    /// Makes `capacity` default values.
    pub fn new(capacity: u16) -> Self {
        Self {
            values: (0..capacity).map(|_| T::default()).collect(),
            marks: vec![Mark::default(); usize::from(capacity)],
            free: (0..capacity).rev().collect(),
        }
    }
}

impl<T> Slots<T> {
    /// Takes a free slot; `None` when all are taken.
    pub fn take(&mut self) -> Option<SlotId> {
        let index = self.free.pop()?;
        let mark = &mut self.marks[usize::from(index)];
        assert!(!mark.taken, "slot {index} was both free and taken");
        mark.taken = true;
        Some(SlotId { index, generation: mark.generation })
    }

    /// Gives a slot back. The value stays where it is.
    ///
    /// # Panics
    /// When `id` is stale.
    pub fn free(&mut self, id: SlotId) {
        self.check(id);
        let mark = &mut self.marks[id.index()];
        mark.taken = false;
        mark.generation = mark.generation.wrapping_add(1);
        self.free.push(id.index);
    }

    /// The value of a slot, or `None` when `id` is stale or was never given out.
    pub fn get(&self, id: SlotId) -> Option<&T> {
        self.contains(id).then(|| &self.values[id.index()])
    }

    /// Like [`Slots::get`], to change.
    pub fn get_mut(&mut self, id: SlotId) -> Option<&mut T> {
        self.contains(id).then(|| &mut self.values[id.index()])
    }

    /// `id` names a slot that is taken now.
    pub fn contains(&self, id: SlotId) -> bool {
        self.marks
            .get(id.index())
            .is_some_and(|mark| mark.taken && mark.generation == id.generation)
    }

    /// The id of the slot at `index` if it is taken: for loops that change the table meanwhile.
    pub fn id_at(&self, index: usize) -> Option<SlotId> {
        let mark = self.marks.get(index)?;
        mark.taken.then_some(SlotId { index: index as u16, generation: mark.generation })
    }

    /// The ids of all taken slots, by place. Looks at every place.
    pub fn ids(&self) -> impl Iterator<Item = SlotId> + '_ {
        (0..self.capacity()).filter_map(|index| self.id_at(index))
    }

    /// All taken slots, by place.
    pub fn iter(&self) -> impl Iterator<Item = (SlotId, &T)> + '_ {
        self.ids().map(|id| (id, &self.values[id.index()]))
    }

    /// How many are taken.
    pub fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    /// None is taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All are taken.
    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    /// How many there are, taken or free.
    pub fn capacity(&self) -> usize {
        self.values.len()
    }

    #[track_caller]
    fn check(&self, id: SlotId) {
        assert!(self.contains(id), "{id:?} is stale: the slot was freed");
    }
}

impl<T> Index<SlotId> for Slots<T> {
    type Output = T;

    #[track_caller]
    fn index(&self, id: SlotId) -> &T {
        self.check(id);
        &self.values[id.index()]
    }
}

impl<T> IndexMut<SlotId> for Slots<T> {
    #[track_caller]
    fn index_mut(&mut self, id: SlotId) -> &mut T {
        self.check(id);
        &mut self.values[id.index()]
    }
}

impl<T> fmt::Debug for Slots<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slots({} of {} taken)", self.len(), self.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_refuses_and_a_freed_slot_is_taken_again_under_a_new_id() {
        let mut slots = Slots::<u32>::new(3);
        let ids: Vec<_> = (0..3).map(|_| slots.take().unwrap()).collect();
        assert_eq!(ids.iter().map(|id| id.index()).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(slots.is_full() && slots.take().is_none());
        slots.free(ids[1]);
        assert_eq!((slots.len(), slots.capacity(), slots.is_full()), (2, 3, false));
        let again = slots.take().unwrap();
        assert_eq!(again.index(), 1);
        assert_ne!(again, ids[1]);
        assert!(slots.get(ids[1]).is_none() && slots.get_mut(ids[1]).is_none());
        assert!(slots.get(again).is_some());
    }

    #[test]
    fn a_freed_value_keeps_its_room() {
        let mut slots = Slots::<Vec<u8>>::new(1);
        let id = slots.take().unwrap();
        slots[id].extend_from_slice(&[7; 100]);
        let place = slots[id].as_ptr();
        slots.free(id);
        let id = slots.take().unwrap();
        assert_eq!((slots[id].len(), slots[id].as_ptr()), (100, place));
    }

    #[test]
    fn ids_of_taken_slots_are_listed_by_place() {
        let mut slots = Slots::<u8>::new(4);
        let ids: Vec<_> = (0..4).map(|_| slots.take().unwrap()).collect();
        slots[ids[3]] = 33;
        slots.free(ids[0]);
        slots.free(ids[2]);
        assert_eq!(slots.ids().collect::<Vec<_>>(), [ids[1], ids[3]]);
        assert_eq!(slots.iter().map(|(_, value)| *value).collect::<Vec<_>>(), [0, 33]);
        assert_eq!((slots.id_at(0), slots.id_at(1), slots.id_at(9)), (None, Some(ids[1]), None));
    }

    #[test]
    fn an_id_survives_packing_and_unknown_ones_are_not_found() {
        let mut slots = Slots::<u8>::new(u16::MAX);
        for _ in 0..300 {
            let id = slots.take().unwrap();
            slots.free(id);
        }
        let id = slots.take().unwrap();
        assert_eq!(SlotId::from_u32(id.to_u32()), id);
        assert!(slots.get(SlotId::from_u32(0xffff_ffff)).is_none());
    }

    #[test]
    #[should_panic(expected = "stale")]
    fn a_stale_id_panics_on_access() {
        let mut slots = Slots::<u8>::new(1);
        let id = slots.take().unwrap();
        slots.free(id);
        slots.take().unwrap();
        slots[id] = 1;
    }

    #[test]
    #[should_panic(expected = "stale")]
    fn freeing_twice_panics() {
        let mut slots = Slots::<u8>::new(1);
        let id = slots.take().unwrap();
        slots.free(id);
        slots.free(id);
    }
}
