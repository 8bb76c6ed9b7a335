//! Who takes frames to an address that nobody is known to have: worked out when a port comes or
//! goes, so that a frame is told from one to several by a look at one entry.

use super::{PortState, VLANS, Vlans};

/// How many takers are told apart. Without the sender's port, three are several in any case.
const TAKERS_TOLD: usize = 3;

/// The first of those in one VLAN.
#[derive(Clone, Copy, Debug, Default)]
struct First {
    ports: [u8; TAKERS_TOLD],
    count: u8,
}

const _: () = assert!(super::PORTS_MAX - 1 <= u8::MAX as usize);

impl First {
    fn add(&mut self, port: u16) {
        if let Some(place) = self.ports.get_mut(usize::from(self.count)) {
            *place = port as u8;
            self.count += 1;
        }
    }
}

/// Who takes a frame to an unknown address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taker {
    /// Nobody but its sender.
    Nobody,
    /// This port alone.
    One(u16),
    /// Two or more.
    Several,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Takers {
    /// By VLAN: of senders that may talk to everyone.
    all: Box<[First]>,
    /// By VLAN: of senders that are isolated.
    open: Box<[First]>,
}

impl Takers {
    pub(super) fn new() -> Self {
        let none = || vec![First::default(); VLANS].into_boxed_slice();
        Self { all: none(), open: none() }
    }

    /// Works it out anew: ports came or went. Each port is looked at in each of its VLANs.
    pub(super) fn set(&mut self, ports: &[Option<PortState>]) {
        self.all.fill(First::default());
        self.open.fill(First::default());
        for (port, state) in (0..).zip(ports) {
            let Some(state) = state.as_ref().filter(|state| state.has_unknown()) else { continue };
            let mut add = |vlan: u16| {
                self.all[usize::from(vlan)].add(port);
                if !state.options.isolated {
                    self.open[usize::from(vlan)].add(port);
                }
            };
            match &state.options.vlans {
                Vlans::Access(vlan) => add(*vlan),
                Vlans::Trunk { native, tagged } => {
                    native.filter(|native| !tagged.has(*native)).into_iter().for_each(&mut add);
                    tagged.iter().for_each(add);
                }
            }
        }
    }

    /// Who takes what this port sends in this VLAN.
    pub(super) fn of(&self, from: u16, is_isolated: bool, vlan: u16) -> Taker {
        let first = if is_isolated { &self.open } else { &self.all }[usize::from(vlan)];
        let ports = &first.ports[..usize::from(first.count)];
        let mut others = ports.iter().filter(|port| u16::from(**port) != from);
        match (others.next(), others.next()) {
            (None, _) => Taker::Nobody,
            (Some(port), None) => Taker::One(u16::from(*port)),
            (Some(_), Some(_)) => Taker::Several,
        }
    }
}
