//! Which address is behind which port: a table of fixed size, in sets of eight.
//!
//! An address has one set where it may be, so looking for it reads one or two cache lines of keys.
//! A set that is full of addresses that were heard of lately takes no new one.

use crate::ether::Mac;

/// How long a silent address is believed: as bridges do it (802.1Q's default).
pub const AGE_NS: u64 = 300_000_000_000;

/// Ways of a set.
const WAYS: usize = 8;

const SETS: usize = 1024;

/// The most addresses that can be known at once.
pub const LEARNED_MAX: u32 = (SETS * WAYS) as u32;

/// Sets that are looked at in one go for what is too old.
pub(super) const AGED_AT_ONCE: usize = 4;

const _: () = assert!(SETS.is_power_of_two());

#[derive(Clone, Copy, Debug, Default)]
struct AddressEntry {
    port: u16,
    /// Not learned, and never too old.
    is_own: bool,
    seen_ns: u64,
}

#[derive(Clone, Debug, Default)]
struct Set {
    /// VLAN and address; zero where the way is free. No station has the address zero.
    keys: [u64; WAYS],
    entries: [AddressEntry; WAYS],
}

/// The entry that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressLookup {
    pub(super) port: u16,
    pub(super) is_own: bool,
}

/// The result of hearing an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Learned {
    /// It was there.
    Known,
    /// It is a guest's own address.
    Own,
    /// It is there now; another one went, which was behind this port.
    New { loser: Option<u16> },
    /// It was behind another port.
    Moved { before: u16 },
    /// There is no room.
    NoRoom,
}

#[derive(Debug)]
pub(super) struct SwitchTable {
    sets: Box<[Set]>,
    seed: u64,
    /// The set that is looked at next for what is too old.
    next: usize,
}

impl SwitchTable {
    pub(super) fn new(seed: u64) -> Self {
        Self { sets: vec![Set::default(); SETS].into(), seed: seed | 1, next: 0 }
    }

    #[inline]
    fn key(vlan: u16, mac: Mac) -> u64 {
        u64::from(vlan) << 48 | mac.to_u64()
    }

    /// Multiplied and folded: the upper half of the product depends on all bits of the key.
    #[inline]
    fn place(&self, key: u64) -> usize {
        let product = u128::from(key ^ self.seed) * u128::from(self.seed ^ 0x9e37_79b9_7f4a_7c15);
        ((product >> 64) as u64 ^ product as u64) as usize >> 7 & (SETS - 1)
    }

    #[inline]
    pub(super) fn find(&self, vlan: u16, mac: Mac, now_ns: u64) -> Option<AddressLookup> {
        let key = Self::key(vlan, mac);
        let set = &self.sets[self.place(key)];
        let way = set.keys.iter().position(|it| *it == key)?;
        let entry = &set.entries[way];
        (!entry.is_old(now_ns)).then_some(AddressLookup { port: entry.port, is_own: entry.is_own })
    }

    /// Heard of `mac` at `port`, which may learn one more if it `has_room`.
    pub(super) fn learn(
        &mut self,
        vlan: u16,
        mac: Mac,
        port: u16,
        has_room: bool,
        now_ns: u64,
    ) -> Learned {
        let key = Self::key(vlan, mac);
        let place = self.place(key);
        let set = &mut self.sets[place];
        if let Some(way) = set.keys.iter().position(|it| *it == key) {
            let entry = &mut set.entries[way];
            if entry.is_own {
                return Learned::Own;
            }
            if entry.port == port {
                entry.seen_ns = now_ns;
                return Learned::Known;
            }
            if !has_room {
                return Learned::NoRoom;
            }
            let before = entry.port;
            *entry = AddressEntry { port, is_own: false, seen_ns: now_ns };
            return Learned::Moved { before };
        }
        if !has_room {
            return Learned::NoRoom;
        }
        let Some(way) = set.way_for_new(now_ns) else { return Learned::NoRoom };
        let loser = (set.keys[way] != 0).then(|| set.entries[way].port);
        set.keys[way] = key;
        set.entries[way] = AddressEntry { port, is_own: false, seen_ns: now_ns };
        Learned::New { loser }
    }

    /// `mac` is this port's own. Gives the port of the one that had to go, if one had to. `None`
    /// when all of its set is others' own.
    pub(super) fn set_own(&mut self, vlan: u16, mac: Mac, port: u16) -> Option<Option<u16>> {
        let key = Self::key(vlan, mac);
        let place = self.place(key);
        let set = &mut self.sets[place];
        let ways = || 0..WAYS;
        let way = ways()
            .find(|way| set.keys[*way] == key)
            .or_else(|| ways().find(|way| set.keys[*way] == 0))
            .or_else(|| ways().find(|way| !set.entries[*way].is_own))?;
        let loser = (set.keys[way] != 0).then(|| set.entries[way].port);
        set.keys[way] = key;
        set.entries[way] = AddressEntry { port, is_own: true, seen_ns: 0 };
        Some(loser)
    }

    /// Forgets all that is behind a port. Looks at the whole table.
    pub(super) fn forget(&mut self, port: u16) {
        for set in &mut self.sets {
            for way in 0..WAYS {
                if set.keys[way] != 0 && set.entries[way].port == port {
                    set.keys[way] = 0;
                }
            }
        }
    }

    /// Forgets what is too old in the next set; gives the ports that it was behind.
    pub(super) fn age_next(&mut self, now_ns: u64) -> [Option<u16>; WAYS] {
        self.next = (self.next + 1) % SETS;
        let set = &mut self.sets[self.next];
        std::array::from_fn(|way| {
            let goes = set.keys[way] != 0 && set.entries[way].is_old(now_ns);
            goes.then(|| {
                set.keys[way] = 0;
                set.entries[way].port
            })
        })
    }
}

impl Set {
    /// A free way, or one whose address is too old.
    fn way_for_new(&self, now_ns: u64) -> Option<usize> {
        let free = self.keys.iter().position(|key| *key == 0);
        free.or_else(|| self.entries.iter().position(|entry| entry.is_old(now_ns)))
    }
}

impl AddressEntry {
    fn is_old(&self, now_ns: u64) -> bool {
        !self.is_own && now_ns.saturating_sub(self.seen_ns) > AGE_NS
    }
}
