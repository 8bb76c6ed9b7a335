//! When the places of a table want to be looked at: the earliest is known at once, however many
//! there are, and those that are due are found without looking at the others.
//!
//! ```text
//!             3                     each node has the earliest of the two below it
//!        3         7
//!      9   3     7   -              places 0 to 3
//! ```

/// Times by place, as a tree of minima.
#[derive(Debug)]
pub(crate) struct Deadlines {
    /// The root is at 1, the children of `i` at `2i` and `2i + 1`, place `p` at `width + p`.
    nodes: Vec<u64>,
    /// Room for so many places, a power of two.
    width: usize,
}

impl Deadlines {
    /// Room for a few places; it grows.
    pub(crate) fn new() -> Self {
        Self { nodes: vec![u64::MAX; 2], width: 1 }
    }

    /// The earliest of all; `u64::MAX` for none.
    pub(crate) fn earliest_ns(&self) -> u64 {
        self.nodes[1]
    }

    /// Sets the deadline of a place; `u64::MAX` for never.
    pub(crate) fn set(&mut self, place: usize, deadline_ns: u64) {
        while place >= self.width {
            self.grow();
        }
        let mut node = self.width + place;
        self.nodes[node] = deadline_ns;
        while node > 1 {
            node /= 2;
            let earliest_ns = self.nodes[2 * node].min(self.nodes[2 * node + 1]);
            if self.nodes[node] == earliest_ns {
                return;
            }
            self.nodes[node] = earliest_ns;
        }
    }

    /// The first place from `from` on whose deadline is not after `now_ns`.
    pub(crate) fn first_due(&self, from: usize, now_ns: u64) -> Option<usize> {
        if from >= self.width {
            return None;
        }
        let mut node = self.width + from;
        // Up and to the right until something is due, then down to its first place.
        while self.nodes[node] > now_ns {
            while node % 2 == 1 {
                if node == 1 {
                    return None;
                }
                node /= 2;
            }
            node += 1;
        }
        while node < self.width {
            node *= 2;
            node += usize::from(self.nodes[node] > now_ns);
        }
        Some(node - self.width)
    }

    fn grow(&mut self) {
        let places = self.nodes.split_off(self.width);
        self.width *= 2;
        self.nodes = vec![u64::MAX; 2 * self.width];
        for (place, deadline_ns) in places.into_iter().enumerate() {
            self.set(place, deadline_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use random::Random;

    #[test]
    fn agrees_with_a_plain_list() {
        let mut random = Random::new(3);
        for places in [1, 2, 3, 7, 64, 100] {
            let mut deadlines = Deadlines::new();
            let mut plain = vec![u64::MAX; places];
            for _ in 0..500 {
                let place = (random.draw() % places as u64) as usize;
                let deadline_ns =
                    if random.draw().is_multiple_of(4) { u64::MAX } else { random.draw() % 50 };
                deadlines.set(place, deadline_ns);
                plain[place] = deadline_ns;
                assert_eq!(Some(&deadlines.earliest_ns()), plain.iter().min());
                let (from, now_ns) = ((random.draw() % 110) as usize, random.draw() % 50);
                let due = (from..places).find(|&place| plain[place] <= now_ns);
                assert_eq!(deadlines.first_due(from, now_ns), due);
            }
        }
        assert_eq!(Deadlines::new().first_due(0, u64::MAX - 1), None);
    }
}
