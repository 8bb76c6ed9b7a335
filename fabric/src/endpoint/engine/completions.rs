//! Completions that the program has not taken yet, in order.

use crate::message::{Class, Completion, Done, RequestContext};

/// Stands in places that no completion was put into yet.
const BLANK: Completion = Completion {
    context: RequestContext(0),
    done: Done::Released,
    class: Class::Untagged,
    tag: 0,
    bytes: 0,
    failure: None,
};

/// A ring of places that is written and read in place: a completion is put once and taken once, and
/// most are taken by the call that they were put in.
#[derive(Debug)]
pub(crate) struct Completions {
    /// A power of two.
    places: Box<[Completion]>,
    /// The number of the completion that is taken next, and of the one that is put next.
    first: usize,
    end: usize,
}

impl Completions {
    /// With places for so many completions, a power of two, before it grows.
    pub(crate) fn new(capacity: usize) -> Self {
        assert!(capacity.is_power_of_two(), "{capacity}");
        Self { places: vec![BLANK; capacity].into(), first: 0, end: 0 }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.end.wrapping_sub(self.first)
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first == self.end
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, completion: Completion) {
        if self.len() == self.places.len() {
            self.grow();
        }
        let last = self.places.len() - 1;
        self.places[self.end & last] = completion;
        self.end = self.end.wrapping_add(1);
    }

    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<Completion> {
        if self.is_empty() {
            return None;
        }
        let place = self.first & (self.places.len() - 1);
        self.first = self.first.wrapping_add(1);
        Some(self.places[place])
    }

    /// Makes the ring twice as long: any number of completions waits until the program asks for
    /// them.
    #[cold]
    fn grow(&mut self) {
        let mut places: Vec<_> = std::iter::from_fn(|| self.pop()).collect();
        (self.first, self.end) = (0, places.len());
        places.resize(2 * self.places.len(), BLANK);
        self.places = places.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_come_in_order_however_many_wait() {
        let mut completions = Completions::new(4);
        let (mut put, mut taken) = (0, 0);
        for round in 0..40_u64 {
            for _ in 0..round % 13 {
                completions.push(Completion { context: RequestContext(put), ..BLANK });
                put += 1;
            }
            for _ in 0..round % 11 {
                let Some(completion) = completions.pop() else { break };
                assert_eq!(completion.context, RequestContext(taken));
                taken += 1;
            }
            assert_eq!(completions.is_empty(), put == taken);
        }
        let rest = std::iter::from_fn(|| completions.pop()).count() as u64;
        assert_eq!(taken + rest, put);
        assert_eq!(completions.pop(), None);
    }
}
