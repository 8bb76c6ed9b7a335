//! Tables that take little for as long as little of them is used: a node has sessions with
//! thousands of others, and most of them are idle.

/// Entries of a [`Sparse`] that are made together. With one flow in use, at the end of a table of
/// 256, there are as many bytes in its group as in the pointers to groups.
const GROUP: usize = 8;

/// A table by number, such as a session's flows. Entries are made when they are first written, and
/// stay.
///
/// ```text
/// groups   [ - ][ - ][ · ] ... up to the highest that was written
///                      └─▶ [16][17][18] ... [23]
/// ```
#[derive(Debug)]
pub(crate) struct Sparse<T> {
    groups: Vec<Option<Box<[T; GROUP]>>>,
    /// The first value of an entry.
    fresh: T,
}

impl<T: Clone> Sparse<T> {
    /// A table whose entries all are `fresh`.
    pub(crate) fn new(fresh: T) -> Self {
        Self { groups: Vec::new(), fresh }
    }

    pub(crate) fn get(&self, number: u16) -> &T {
        let number = usize::from(number);
        match self.groups.get(number / GROUP) {
            Some(Some(group)) => &group[number % GROUP],
            _ => &self.fresh,
        }
    }

    /// The entry, made if it was not. How far the table goes is the caller's to bound.
    pub(crate) fn get_mut(&mut self, number: u16) -> &mut T {
        let number = usize::from(number);
        let at = number / GROUP;
        if self.groups.len() <= at {
            self.groups.reserve_exact(at + 1 - self.groups.len());
            self.groups.resize_with(at + 1, || None);
        }
        let fresh = &self.fresh;
        let group =
            self.groups[at].get_or_insert_with(|| Box::new(std::array::from_fn(|_| fresh.clone())));
        &mut group[number % GROUP]
    }

    /// The entries that were made, with their numbers, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &T)> {
        let groups = self.groups.iter().enumerate();
        let groups = groups.filter_map(|(at, group)| Some((at, group.as_ref()?)));
        groups.flat_map(|(at, group)| {
            let entries = group.iter().enumerate();
            entries.map(move |(index, entry)| ((at * GROUP + index) as u16, entry))
        })
    }

    /// The memory that it takes beside itself.
    pub(crate) fn more_bytes(&self) -> usize {
        let groups = self.groups.iter().flatten().count();
        self.groups.capacity() * size_of::<Option<Box<[T; GROUP]>>>()
            + groups * size_of::<[T; GROUP]>()
    }
}

/// Appends to a table that doubles from a single entry on; `Vec` itself begins with four.
pub(crate) fn append<T>(table: &mut Vec<T>, entry: T) {
    if table.len() == table.capacity() {
        table.reserve_exact(table.len().max(1));
    }
    table.push(entry);
}

/// Makes room in a list of free places for all places of a table, so that giving one back never
/// allocates.
pub(crate) fn make_room<T, U>(free: &mut Vec<T>, table: &Vec<U>) {
    free.reserve_exact(table.capacity() - free.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_fresh_until_they_are_written() {
        let mut table = Sparse::new(7);
        assert_eq!((*table.get(255), table.iter().count(), table.more_bytes()), (7, 0, 0));
        *table.get_mut(255) = 8;
        *table.get_mut(3) += 1;
        assert_eq!([3, 4, 250, 255, 256].map(|number| *table.get(number)), [8, 7, 7, 8, 7]);
        let made: Vec<_> = table.iter().map(|(number, _)| number).collect();
        assert_eq!(made, (0..8).chain(248..256).collect::<Vec<_>>());
        assert_eq!(table.more_bytes(), 32 * size_of::<usize>() + 2 * GROUP * size_of::<i32>());
    }

    #[test]
    fn a_table_doubles_and_what_is_free_has_room() {
        let (mut table, mut free) = (Vec::new(), vec![9u16]);
        for count in 1..=20usize {
            append(&mut table, count as u64);
            assert_eq!(table.capacity(), count.next_power_of_two());
            make_room(&mut free, &table);
            assert!(free.capacity() >= table.capacity());
        }
    }
}
