//! Many addresses in few bytes, by number and the other way: each process of a job of 64 K has all
//! of them.
//!
//! ```text
//! entries   [host 0, slot 3, 1st][host 0, slot 4, 1st][hole][host 1, slot 0, 2nd] ...   by number
//! hosts     [0x5a..][0x9c..]                                                            by index
//! numbers   [ - ][3][ - ][0][1][ - ] ...                                                by hash
//! ```
//!
//! Whole addresses are nowhere: an entry names its host by index, and what finds a number by its
//! address has numbers alone, which are compared by looking at their entries.

use crate::Address;

/// One that is there, or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AddressSlot {
    /// Its index, or [`HOLE`].
    host: u16,
    slot: u16,
    /// Of a hole, the next one.
    incarnation: u32,
}

/// Instead of a host's index.
const HOLE: u16 = u16::MAX;

/// No number.
const NONE: u32 = u32::MAX;

/// Addresses by number, and numbers by address. A number is used again when its address was
/// removed, the last one first.
#[derive(Debug)]
pub struct AddressTable {
    entries: Vec<AddressSlot>,
    /// The hole that is filled next, or `NONE`.
    hole: u32,
    /// Made when a number is asked for: most programs never do.
    numbers: Option<Index>,
    /// How many addresses there are.
    used: usize,
    /// Those that the entries name; forgotten when there is none left.
    hosts: Vec<u64>,
    host_indices: Index,
}

/// There is no room for another address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressTableFull {
    /// They are of as many hosts as can be told apart: many more than a domain can know.
    #[error("the table has addresses of {HOLE} hosts, and no room for another host")]
    Hosts,
    /// There are as many as can be counted.
    #[error("the table has {NONE} addresses, and no room for more")]
    Addresses,
}

impl Default for AddressTable {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            hole: NONE,
            numbers: None,
            used: 0,
            hosts: Vec::new(),
            host_indices: Index::default(),
        }
    }
}

impl AddressTable {
    /// Puts an address in, whether it is there or not, and says its number: the next one, from 0,
    /// or one that was removed.
    ///
    /// # Errors
    /// When there is no room.
    pub fn insert(&mut self, address: Address) -> Result<u32, AddressTableFull> {
        if self.hole == NONE && self.entries.len() >= NONE as usize {
            return Err(AddressTableFull::Addresses);
        }
        let host = self.host_index(address.host).ok_or(AddressTableFull::Hosts)?;
        let entry = AddressSlot { host, slot: address.slot, incarnation: address.incarnation };
        let number = self.hole;
        let number = if number == NONE {
            self.entries.push(entry);
            (self.entries.len() - 1) as u32
        } else {
            let place = &mut self.entries[number as usize];
            self.hole = place.incarnation;
            *place = entry;
            number
        };
        self.used += 1;
        let entries = &self.entries;
        if let Some(numbers) = &mut self.numbers {
            numbers.insert(number, |number| hash(entries[number as usize]));
        }
        Ok(number)
    }

    /// Takes an address out. Whether it was there.
    pub fn remove(&mut self, number: u32) -> bool {
        let Some(entry) = self.entry(number) else { return false };
        let entries = &self.entries;
        if let Some(numbers) = &mut self.numbers {
            numbers.remove(number, hash(entry), |number| hash(entries[number as usize]));
        }
        self.entries[number as usize] = AddressSlot { host: HOLE, slot: 0, incarnation: self.hole };
        self.hole = number;
        self.used -= 1;
        if self.used == 0 {
            // Otherwise hosts that come and go would be too many one day.
            (self.hosts, self.host_indices) = (Vec::new(), Index::default());
        }
        true
    }

    /// Whose number it is.
    pub fn address(&self, number: u32) -> Option<Address> {
        let AddressSlot { host, slot, incarnation } = self.entry(number)?;
        Some(Address { host: self.hosts[usize::from(host)], incarnation, slot })
    }

    /// Which number an address has; of several the smallest. The first time is slow.
    pub fn number(&mut self, address: &Address) -> Option<u32> {
        let host = self.known_host(address.host)?;
        let wanted = AddressSlot { host, slot: address.slot, incarnation: address.incarnation };
        let entries = &self.entries;
        let numbers = self.numbers.get_or_insert_with(|| {
            let mut numbers = Index::default();
            let there = (0..).zip(entries).filter(|(_, entry)| entry.host != HOLE);
            there.for_each(|(it, _)| numbers.insert(it, |it| hash(entries[it as usize])));
            numbers
        });
        let alike = numbers.chain(hash(wanted));
        alike.filter(|&number| entries[number as usize] == wanted).min()
    }

    /// The memory that the table takes beside itself.
    pub fn held_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<AddressSlot>()
            + self.hosts.capacity() * size_of::<u64>()
            + self.numbers.as_ref().map_or(0, Index::held_bytes)
            + self.host_indices.held_bytes()
    }

    fn entry(&self, number: u32) -> Option<AddressSlot> {
        self.entries.get(number as usize).copied().filter(|entry| entry.host != HOLE)
    }

    fn known_host(&self, host: u64) -> Option<u16> {
        let mut alike = self.host_indices.chain(scattered(host));
        alike.find(|&index| self.hosts[index as usize] == host).map(|index| index as u16)
    }

    fn host_index(&mut self, host: u64) -> Option<u16> {
        if let Some(index) = self.known_host(host) {
            return Some(index);
        }
        let index = u16::try_from(self.hosts.len()).ok().filter(|&index| index != HOLE)?;
        self.hosts.push(host);
        let hosts = &self.hosts;
        self.host_indices.insert(index.into(), |index| scattered(hosts[index as usize]));
        Some(index)
    }
}

fn hash(entry: AddressSlot) -> u64 {
    let AddressSlot { host, slot, incarnation } = entry;
    scattered(u64::from(host) << 48 | u64::from(slot) << 32 | u64::from(incarnation))
}

/// All bits of a key, in the highest bits, which are used. A process of the job could choose keys
/// that meet in one place; it would only hold up its own job.
pub(crate) fn scattered(key: u64) -> u64 {
    // The golden ratio's bits (Fibonacci hashing); once more, for keys that differ at the top.
    const RATIO: u64 = 0x9e37_79b9_7f4a_7c15;
    let key = key.wrapping_mul(RATIO);
    (key ^ (key >> 32)).wrapping_mul(RATIO)
}

/// Numbers by the hash of what they stand for: open addressing, each as near behind its place as
/// there is room.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// A power of two of them, or none; at most three quarters in use.
    cells: Vec<u32>,
    used: usize,
}

impl Index {
    /// Cells at first.
    const CELLS: usize = 16;

    fn place(&self, hash: u64) -> usize {
        (hash >> (u64::BITS - self.cells.len().trailing_zeros())) as usize
    }

    /// The memory that the index takes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.cells.capacity() * size_of::<u32>()
    }

    /// All numbers of this hash, and some others.
    pub(crate) fn chain(&self, hash: u64) -> impl Iterator<Item = u32> {
        let mut at = if self.cells.is_empty() { 0 } else { self.place(hash) };
        std::iter::from_fn(move || {
            // Ends: not all cells are in use.
            let number = *self.cells.get(at)?;
            at = (at + 1) & (self.cells.len() - 1);
            Some(number).filter(|&number| number != NONE)
        })
    }

    pub(crate) fn insert(&mut self, number: u32, hash_of: impl Fn(u32) -> u64) {
        if (self.used + 1) * 4 > self.cells.len() * 3 {
            let more = (self.cells.len() * 2).max(Self::CELLS);
            let cells = std::mem::replace(&mut self.cells, vec![NONE; more]);
            cells.into_iter().filter(|&it| it != NONE).for_each(|it| self.put(it, hash_of(it)));
        }
        self.put(number, hash_of(number));
        self.used += 1;
    }

    fn put(&mut self, number: u32, hash: u64) {
        let mut at = self.place(hash);
        while self.cells[at] != NONE {
            at = (at + 1) & (self.cells.len() - 1);
        }
        self.cells[at] = number;
    }

    /// Takes out a number that is there, and moves up those behind it that it kept from their
    /// places.
    fn remove(&mut self, number: u32, hash: u64, hash_of: impl Fn(u32) -> u64) {
        let mask = self.cells.len() - 1;
        let mut gap = self.place(hash);
        while self.cells[gap] != number {
            assert_ne!(self.cells[gap], NONE, "number {number} is in the index");
            gap = (gap + 1) & mask;
        }
        let mut at = (gap + 1) & mask;
        while self.cells[at] != NONE {
            let from = self.place(hash_of(self.cells[at]));
            // Whether its place is at the gap or before it, as the cells go round.
            if (at.wrapping_sub(from) & mask) >= (at.wrapping_sub(gap) & mask) {
                self.cells[gap] = self.cells[at];
                gap = at;
            }
            at = (at + 1) & mask;
        }
        self.cells[gap] = NONE;
        self.used -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use random::Random;

    fn address(host: u64, slot: u16) -> Address {
        Address { host, incarnation: 1, slot }
    }

    #[test]
    fn numbers_count_up_and_are_used_again() {
        let mut table = AddressTable::default();
        for slot in 0..4 {
            assert_eq!(table.insert(address(1, slot)), Ok(slot.into()));
        }
        assert!(table.remove(1) && table.remove(2));
        assert!(!table.remove(2) && !table.remove(4), "they are not there");
        assert_eq!((table.address(2), table.number(&address(1, 2))), (None, None));
        assert_eq!([9, 8, 7].map(|slot| table.insert(address(2, slot))), [Ok(2), Ok(1), Ok(4)]);
        assert_eq!(table.address(2), Some(address(2, 9)));
        assert_eq!(table.number(&address(2, 7)), Some(4));
        assert_eq!(table.address(NONE), None);
    }

    #[test]
    fn of_several_numbers_the_smallest_that_is_left_is_told() {
        let mut table = AddressTable::default();
        for number in 0..40 {
            assert_eq!(table.insert(address(1, 5)), Ok(number));
        }
        for number in 0..40 {
            assert_eq!(table.number(&address(1, 5)), Some(number));
            assert!(table.remove(number));
        }
        assert_eq!(table.number(&address(1, 5)), None);
    }

    #[test]
    fn hosts_have_a_bound_and_are_forgotten_with_the_last_address() {
        let mut table = AddressTable::default();
        for host in 0..u64::from(HOLE) {
            assert_eq!(table.insert(address(host << 30, 1)), Ok(host as u32));
        }
        assert_eq!(table.insert(address(1, 1)), Err(AddressTableFull::Hosts));
        assert_eq!(table.insert(address(7 << 30, 2)), Ok(HOLE.into()), "a host that is there");
        (0..=u32::from(HOLE)).for_each(|number| assert!(table.remove(number)));
        assert!(table.insert(address(1, 1)).is_ok());
    }

    /// Everything that is told, against plain maps, with few keys so that all of it happens.
    #[test]
    fn it_agrees_with_plain_maps() {
        let mut random = Random::new(11);
        for _ in 0..50 {
            let mut table = AddressTable::default();
            let mut model: Vec<Option<Address>> = Vec::new();
            for step in 0..2000 {
                let address = Address {
                    host: random.draw() % 9 + 1,
                    incarnation: (random.draw() % 3) as u32 + 1,
                    slot: (random.draw() % 20) as u16,
                };
                if random.draw().is_multiple_of(2) {
                    let number = table.insert(address).expect("room") as usize;
                    model.resize(model.len().max(number + 1), None);
                    assert_eq!(model[number].replace(address), None);
                } else {
                    let number = random.draw() % (model.len() as u64 + 3);
                    let there = model.get_mut(number as usize).and_then(Option::take);
                    assert_eq!(table.remove(number as u32), there.is_some());
                }
                if step < random.below(500) {
                    // Numbers are not asked for from the beginning.
                    continue;
                }
                let at = model.iter().position(|&it| it == Some(address));
                assert_eq!(table.number(&address), at.map(|at| at as u32));
            }
            for (number, &address) in model.iter().enumerate() {
                assert_eq!(table.address(number as u32), address);
            }
        }
    }
}
