//! The ports that take frames to unknown addresses. This is kept in step as ports come and go, so
//! that a look at one entry shows whether none, one or several ports take a frame.

use super::{PortState, VLANS, VlanSet, Vlans};

/// Those in one VLAN: how many, and all their numbers together (by exclusive or), which is the
/// number itself where there is one.
#[derive(Clone, Copy, Debug, Default)]
struct VlanEntry {
    count: u16,
    mixed: u16,
}

const _: () = assert!(super::PORTS_MAX <= u16::MAX as usize);

/// The ports that take a frame to an unknown address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taker {
    /// No port but the frame's own.
    Nobody,
    /// This port alone.
    One(u16),
    /// Two or more.
    Several,
}

/// A port that is in the entries of its VLANs.
#[derive(Clone, Debug)]
struct Known {
    isolated: bool,
    vlans: Vlans,
}

impl Known {
    /// Nothing of a port that takes none.
    fn of(state: &PortState) -> Option<Self> {
        let PortState { options, .. } = state;
        let takes = state.has_unknown();
        takes.then(|| Self { isolated: options.isolated, vlans: options.vlans.clone() })
    }
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Takers {
    /// By VLAN: of senders that may talk to everyone.
    all: Box<[VlanEntry]>,
    /// By VLAN: of senders that are isolated.
    open: Box<[VlanEntry]>,
    /// By port: whether it was there, and what it was. A port's options never change.
    ports: Vec<Option<Option<Known>>>,
}

impl Takers {
    pub(super) fn new() -> Self {
        let none = || vec![VlanEntry::default(); VLANS].into_boxed_slice();
        Self { all: none(), open: none(), ports: Vec::new() }
    }

    /// Ports came or went. Only those are looked at, each in its VLANs. How many entries that took.
    pub(super) fn set(&mut self, ports: &[Option<PortState>]) -> usize {
        let mut touched = 0;
        if self.ports.len() < ports.len() {
            self.ports.resize(ports.len(), None);
        }
        for (port, state) in (0..).zip(ports) {
            let place = &mut self.ports[usize::from(port)];
            let known = match (place.is_some(), state) {
                (false, Some(state)) => {
                    let known = Known::of(state);
                    *place = Some(known.clone());
                    known
                }
                (true, None) => place.take().flatten(),
                _ => None,
            };
            if let Some(known) = known {
                touched += self.change(port, &known, state.is_some());
            }
        }
        touched
    }

    /// Puts a port into its entries, or takes it out.
    fn change(&mut self, port: u16, known: &Known, is_there: bool) -> usize {
        let mut touched = 0;
        let mut change = |vlan: u16| {
            let open = (!known.isolated).then_some(&mut self.open);
            for entries in [Some(&mut self.all), open].into_iter().flatten() {
                let entry = &mut entries[usize::from(vlan)];
                entry.count = if is_there { entry.count + 1 } else { entry.count - 1 };
                entry.mixed ^= port;
                touched += 1;
            }
        };
        match &known.vlans {
            Vlans::Access(vlan) => change(*vlan),
            Vlans::Trunk { native, tagged } => {
                native.filter(|native| !tagged.has(*native)).into_iter().for_each(&mut change);
                VlanSet::iter(tagged).for_each(change);
            }
        }
        touched
    }

    /// The ports that take this port's frames in this VLAN, which is one of its own.
    pub(super) fn of(&self, from: u16, is_isolated: bool, vlan: u16) -> Taker {
        let VlanEntry { mut count, mut mixed } =
            if is_isolated { &self.open } else { &self.all }[usize::from(vlan)];
        // One that takes such frames itself is in the entry; if it is isolated, of all only.
        let takes = matches!(self.ports.get(usize::from(from)), Some(Some(Some(_))));
        if takes && !is_isolated {
            (count, mixed) = (count - 1, mixed ^ from);
        }
        match count {
            0 => Taker::Nobody,
            1 => Taker::One(mixed),
            _ => Taker::Several,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PortOptions, Stations};
    use super::*;
    use crate::ether::Mac;
    use random::Random;

    fn state(vlans: Vlans, isolated: bool, learns: bool) -> PortState {
        let stations =
            if learns { Stations::Learned(9) } else { Stations::Own(Mac([2, 0, 0, 0, 0, 1])) };
        let options = PortOptions { vlans, stations, isolated, floods_per_s: 0 };
        PortState { options, learned: 0, flooded_until_ns: 0, owner: None, copied_until_ns: 0 }
    }

    fn trunk(native: Option<u16>, tagged: impl IntoIterator<Item = u16>) -> Vlans {
        Vlans::Trunk { native, tagged: tagged.into_iter().collect() }
    }

    /// By the book.
    fn taker(ports: &[Option<PortState>], from: u16, vlan: u16) -> Taker {
        let is_isolated = ports[usize::from(from)].as_ref().unwrap().options.isolated;
        let takes = |(port, state): (u16, &Option<PortState>)| {
            let state = state.as_ref().filter(|state| state.has_unknown())?;
            let is_open = !(is_isolated && state.options.isolated);
            let is_in = state.options.vlans.tag(vlan).is_some();
            (port != from && is_open && is_in).then_some(port)
        };
        let found: Vec<_> = (0..).zip(ports).filter_map(takes).collect();
        match found[..] {
            [] => Taker::Nobody,
            [one] => Taker::One(one),
            _ => Taker::Several,
        }
    }

    #[test]
    fn it_is_in_step_with_ports_that_come_and_go() {
        let mut seen = [0; 3];
        for seed in 0..60 {
            let mut dice = Random::new(seed);
            let (mut takers, mut ports) = (Takers::new(), Vec::<Option<PortState>>::new());
            for _ in 0..60 {
                let at = dice.below(7) as usize;
                if ports.len() <= at {
                    ports.resize_with(at + 1, || None);
                }
                ports[at] = if ports[at].is_some() {
                    None
                } else {
                    let vlan = dice.below(4) as u16;
                    let vlans = match dice.below(3) {
                        0 => Vlans::Access(vlan),
                        1 => trunk(Some(vlan), (1..4).filter(|_| dice.one_in(2))),
                        _ => trunk(None, [1 + dice.below(3) as u16]),
                    };
                    Some(state(vlans, dice.one_in(3), dice.one_in(2)))
                };
                takers.set(&ports);
                for from in (0..ports.len()).filter(|at| ports[*at].is_some()) {
                    let options = &ports[from].as_ref().unwrap().options;
                    for vlan in (0..5).filter(|vlan| options.vlans.tag(*vlan).is_some()) {
                        let found = takers.of(from as u16, options.isolated, vlan);
                        assert_eq!(found, taker(&ports, from as u16, vlan), "seed {seed}");
                        seen[match found {
                            Taker::Nobody => 0,
                            Taker::One(_) => 1,
                            Taker::Several => 2,
                        }] += 1;
                    }
                }
            }
        }
        assert!(seen.iter().all(|times| *times > 300), "{seen:?}");
    }

    #[test]
    fn a_port_that_comes_costs_its_own_vlans_only() {
        let mut takers = Takers::new();
        let all = || trunk(Some(0), 1..4095);
        let mut ports: Vec<_> = (0..200).map(|_| Some(state(all(), false, true))).collect();
        assert_eq!(takers.set(&ports), 200 * 2 * 4095);
        ports.push(Some(state(Vlans::Access(7), false, true)));
        assert_eq!(takers.set(&ports), 2);
        ports[3] = None;
        assert_eq!(takers.set(&ports), 2 * 4095);
        ports[200] = None;
        assert_eq!((takers.set(&ports), takers.set(&ports)), (2, 0));
        // A guest's own address is known.
        ports[200] = Some(state(Vlans::Access(7), false, false));
        assert_eq!(takers.set(&ports), 0);
    }
}
