//! A table of things under way, each with a token that is not used again.

/// Slots with tokens. A token has the slot's index below and the count of its uses above, so an
/// answer that comes twice or late does not meet another thing.
#[derive(Debug)]
pub(crate) struct TokenTable<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
    used: usize,
}

impl<T> TokenTable<T> {
    /// An empty table.
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), used: 0 }
    }

    /// How many things are in it.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Puts a thing in; its token.
    pub(crate) fn insert(&mut self, thing: T) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.0 = slot.0.wrapping_add(1);
        slot.1 = Some(thing);
        self.used += 1;
        u64::from(slot.0) << 32 | u64::from(index)
    }

    fn slot(&mut self, token: u64) -> Option<&mut Option<T>> {
        let (count, thing) = self.slots.get_mut(token as u32 as usize)?;
        (*count == (token >> 32) as u32).then_some(thing)
    }

    /// The thing of a token.
    pub(crate) fn get_mut(&mut self, token: u64) -> Option<&mut T> {
        self.slot(token)?.as_mut()
    }

    /// Takes the thing of a token out.
    pub(crate) fn remove(&mut self, token: u64) -> Option<T> {
        let thing = self.slot(token)?.take()?;
        self.free.push(token as u32);
        self.used -= 1;
        Some(thing)
    }

    /// Takes everything out.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        let things: Vec<T> = self.slots.iter_mut().filter_map(|(_, thing)| thing.take()).collect();
        self.free = (0..self.slots.len() as u32).collect();
        self.used = 0;
        things
    }
}
