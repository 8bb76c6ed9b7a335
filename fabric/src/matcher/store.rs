//! Where a matcher keeps its entries: places that are used again, threaded by lists.
//!
//! An entry is in up to `LANES` lists at once, by links of its own: it leaves all of them without a
//! search. Places grow with what is kept at once and are never given back.

/// No place.
const NONE: u32 = u32::MAX;

/// An entry, for as long as it is kept: another one in the same place has another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id {
    place: u32,
    generation: u32,
}

impl Id {
    /// The word by which a caller can name the entry later on.
    #[inline]
    pub(crate) fn to_word(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.place)
    }

    /// The reverse; whether there is such an entry is for [`MatchStore::get`] to say.
    #[inline]
    pub(crate) fn from_word(word: u64) -> Self {
        Self { place: word as u32, generation: (word >> 32) as u32 }
    }
}

/// The first and the last of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListEnds {
    first: u32,
    last: u32,
}

impl ListEnds {
    pub(crate) const EMPTY: Self = Self { first: NONE, last: NONE };

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.first == NONE
    }
}

#[derive(Clone, Copy, Debug)]
struct Links {
    before: u32,
    after: u32,
}

#[derive(Debug)]
struct StorePlace<T, const LANES: usize> {
    generation: u32,
    links: [Links; LANES],
    /// None: free, and `links[0].after` is the next free one.
    entry: Option<T>,
}

#[derive(Debug)]
pub(crate) struct MatchStore<T, const LANES: usize> {
    places: Vec<StorePlace<T, LANES>>,
    free: u32,
    kept: usize,
}

impl<T, const LANES: usize> MatchStore<T, LANES> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { places: Vec::with_capacity(capacity), free: NONE, kept: 0 }
    }

    /// How many are kept.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.kept
    }

    /// Keeps an entry, in no list yet.
    #[inline]
    pub(crate) fn keep(&mut self, entry: T) -> Id {
        let links = [Links { before: NONE, after: NONE }; LANES];
        self.kept += 1;
        if self.free == NONE {
            let place = u32::try_from(self.places.len()).ok().filter(|place| *place != NONE);
            let place = place.expect("memory ends before four thousand million entries");
            self.places.push(StorePlace { generation: 0, links, entry: Some(entry) });
            return Id { place, generation: 0 };
        }
        let place = self.free;
        let room = &mut self.places[place as usize];
        self.free = room.links[0].after;
        room.links = links;
        room.entry = Some(entry);
        Id { place, generation: room.generation }
    }

    /// Gives an entry up that has left all lists.
    #[inline]
    pub(crate) fn give_up(&mut self, id: Id) -> Option<T> {
        let free = self.free;
        let room = self.place_mut(id)?;
        let entry = room.entry.take()?;
        room.generation = room.generation.wrapping_add(1);
        room.links[0].after = free;
        self.free = id.place;
        self.kept -= 1;
        Some(entry)
    }

    /// The same for a caller that needs nothing of the entry any more.
    #[inline]
    pub(crate) fn discard(&mut self, id: Id) {
        let free = self.free;
        let Some(room) = self.place_mut(id).filter(|room| room.entry.is_some()) else { return };
        room.entry = None;
        room.generation = room.generation.wrapping_add(1);
        room.links[0].after = free;
        self.free = id.place;
        self.kept -= 1;
    }

    #[inline]
    pub(crate) fn get(&self, id: Id) -> Option<&T> {
        let room = self.places.get(id.place as usize)?;
        if room.generation == id.generation { room.entry.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        self.place_mut(id)?.entry.as_mut()
    }

    #[inline]
    fn place_mut(&mut self, id: Id) -> Option<&mut StorePlace<T, LANES>> {
        self.places.get_mut(id.place as usize).filter(|room| room.generation == id.generation)
    }

    /// Puts an entry at the end of a list.
    #[inline]
    pub(crate) fn append(&mut self, list: &mut ListEnds, lane: usize, id: Id) {
        self.places[id.place as usize].links[lane] = Links { before: list.last, after: NONE };
        match list.last {
            NONE => list.first = id.place,
            last => self.places[last as usize].links[lane].after = id.place,
        }
        list.last = id.place;
    }

    /// Takes an entry out of a list that it is in.
    #[inline]
    pub(crate) fn leave(&mut self, list: &mut ListEnds, lane: usize, id: Id) {
        let Links { before, after } = self.places[id.place as usize].links[lane];
        match before {
            NONE => list.first = after,
            before => self.places[before as usize].links[lane].after = after,
        }
        match after {
            NONE => list.last = before,
            after => self.places[after as usize].links[lane].before = before,
        }
    }

    #[inline]
    pub(crate) fn first(&self, list: ListEnds) -> Option<Id> {
        self.id_of(list.first)
    }

    /// The entry after this one in its list of this lane.
    #[inline]
    pub(crate) fn after(&self, lane: usize, id: Id) -> Option<Id> {
        self.id_of(self.places[id.place as usize].links[lane].after)
    }

    #[inline]
    fn id_of(&self, place: u32) -> Option<Id> {
        let generation = self.places.get(place as usize)?.generation;
        Some(Id { place, generation })
    }
}
