//! Decides where frames go: VLANs, the ports of addresses, the ports that may talk to each other.
//! No frames are touched here, no clock is read; [`crate::network`] moves the frames.
//!
//! An untagged segment is VLAN 0 inside. A port is in one VLAN and sees no tags (*access*), or in
//! several and sees them all tagged but one (*trunk*).

mod table;
mod takers;

use std::fmt;

use crate::ether::Mac;
use crate::reason::Reason;
use table::SwitchTable;
pub use table::{AGE_NS, LEARNED_MAX};
use takers::{Taker, Takers};

/// The most ports of a switch; a bit for each fits four words.
pub const PORTS_MAX: usize = 256;

/// The number of VLANs that a tag can name, those that are reserved among them.
const VLANS: usize = 4096;

/// A VLAN that no frame may name.
const VLAN_RESERVED: u16 = 4095;

/// How long a port that has sent nothing to everyone may save up.
const FLOOD_BURST_NS: u64 = 100_000_000;

const SECOND_NS: u64 = 1_000_000_000;

/// The charge for a single copy of a frame to everyone: 200,000 copies in a second. A copy into a
/// session costs some 0.5 us, so that is a tenth of a sidecore; ARP of a full network needs less
/// than a hundredth of it.
pub const COPY_NS: u64 = 5_000;

/// The charge for a byte of such copies: 250 MB in a second, another eighth of a sidecore where
/// they are copied and sealed.
const COPY_NS_PER_BYTE: u64 = 4;

/// The time that a port without copies may save up: 4,000 copies, so 15 frames to all ports at once
/// where all are taken, and 2 ms of a sidecore's time.
pub const COPY_BURST_NS: u64 = 20_000_000;

/// The most bytes of all copies of a frame to all ports: a jumbo frame to each port that there
/// can be, a millisecond of a sidecore's time.
pub const FLOOD_BYTES_MAX: usize = 9_216 * PORTS_MAX;

/// A set of VLANs.
#[derive(Clone, PartialEq, Eq)]
pub struct VlanSet(Box<[u64; VLANS / 64]>);

impl VlanSet {
    /// None.
    pub fn none() -> Self {
        Self(Box::new([0; VLANS / 64]))
    }

    /// All that a tag may name: 1 to 4094.
    pub fn all() -> Self {
        let mut set = Self::none();
        (1..VLAN_RESERVED).for_each(|vlan| set.insert(vlan));
        set
    }

    /// Adds one.
    ///
    /// # Panics
    /// When there is no such VLAN; the configuration checks that first.
    pub fn insert(&mut self, vlan: u16) {
        assert!((1..VLAN_RESERVED).contains(&vlan), "VLAN {vlan}");
        self.0[usize::from(vlan) / 64] |= 1 << (vlan % 64);
    }

    /// Whether it has one.
    pub fn has(&self, vlan: u16) -> bool {
        self.0.get(usize::from(vlan) / 64).is_some_and(|word| word >> (vlan % 64) & 1 == 1)
    }

    /// Those that it has, in order.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        (0..VLANS as u16).filter(|vlan| self.has(*vlan))
    }

    /// Whether it has all that another one has.
    pub fn covers(&self, other: &Self) -> bool {
        self.0.iter().zip(other.0.iter()).all(|(own, other)| other & !own == 0)
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
}

impl FromIterator<u16> for VlanSet {
    fn from_iter<I: IntoIterator<Item = u16>>(vlans: I) -> Self {
        let mut set = Self::none();
        vlans.into_iter().for_each(|vlan| set.insert(vlan));
        set
    }
}

impl fmt::Debug for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// Which VLANs a port is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vlans {
    /// One, zero for the untagged segment. The port knows of no tags.
    Access(u16),
    /// Several.
    Trunk {
        /// The VLAN of frames without a tag; none where each must have one.
        native: Option<u16>,
        /// Those with a tag.
        tagged: VlanSet,
    },
}

impl Vlans {
    /// The VLAN of a frame that came in with this tag, zero for none.
    fn of(&self, vlan: u16) -> Option<u16> {
        match (self, vlan) {
            (Self::Access(own), 0) => Some(*own),
            (Self::Access(_), _) => None,
            (Self::Trunk { native, .. }, 0) => *native,
            (Self::Trunk { tagged, .. }, vlan) => tagged.has(vlan).then_some(vlan),
        }
    }

    /// The tag's VLAN for a frame that goes out, zero for none; `None` when it may not.
    fn tag(&self, vlan: u16) -> Option<u16> {
        match self {
            Self::Access(own) => (*own == vlan).then_some(0),
            Self::Trunk { native, .. } if *native == Some(vlan) => Some(0),
            Self::Trunk { tagged, .. } => tagged.has(vlan).then_some(vlan),
        }
    }

    /// Whether there is a VLAN in which both are.
    fn meet(&self, other: &Self) -> bool {
        (0..VLANS as u16).any(|vlan| self.tag(vlan).is_some() && other.tag(vlan).is_some())
    }
}

/// Whose addresses are behind a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stations {
    /// One: a guest that may only send as itself.
    Own(Mac),
    /// The senders of its frames: for an uplink, or a guest with guests of its own. At most so many
    /// at once.
    Learned(u32),
}

/// How a port takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortOptions {
    /// Its VLANs.
    pub vlans: Vlans,
    /// Its addresses.
    pub stations: Stations,
    /// It may only talk to ports that are not isolated.
    pub isolated: bool,
    /// How many frames to everyone (broadcast, multicast, an unknown address that several ports may
    /// have) it may send in a second; zero for as many as it likes.
    pub floods_per_s: u32,
}

impl PortOptions {
    /// A guest's port on the untagged segment.
    pub fn of_guest(mac: Mac) -> Self {
        Self {
            vlans: Vlans::Access(0),
            stations: Stations::Own(mac),
            isolated: false,
            floods_per_s: FLOODS_PER_S,
        }
    }

    /// An uplink with all VLANs.
    pub fn of_uplink() -> Self {
        Self {
            vlans: Vlans::Trunk { native: Some(0), tagged: VlanSet::all() },
            stations: Stations::Learned(LEARNED_MAX),
            isolated: false,
            floods_per_s: 0,
        }
    }
}

/// The frames that a guest may send to everyone in a second, unless its configuration says
/// otherwise: far more than ARP and neighbour discovery need, and little work for the others.
pub const FLOODS_PER_S: u32 = 10_000;

/// Why a port cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddError {
    /// The switch has no port left.
    #[error("the network has {PORTS_MAX} ports already")]
    Full,
    /// Its address is another port's.
    #[error("another port of this VLAN has the address {0}; each port needs its own")]
    Taken(Mac),
    /// The address cannot be a station's.
    #[error("{0} is not an address that a station can have: it is a group's, or zero")]
    NoStation(Mac),
    /// The port is in no VLAN.
    #[error("a trunk without VLANs")]
    NoVlan,
    /// Other ports' addresses leave no room for it.
    #[error("the table of addresses has no room for {0}")]
    TableFull(Mac),
}

#[derive(Debug)]
struct PortState {
    options: PortOptions,
    /// Addresses learned here.
    learned: u32,
    /// Until when it has used up what it may send to everyone.
    flooded_until_ns: u64,
    /// Whose port it is, where that is another node.
    owner: Option<usize>,
    /// Until when its copies are paid for, if it has no owner.
    copied_until_ns: u64,
}

impl PortState {
    /// Whether one more frame to everyone is allowed (a token bucket, kept as a time).
    fn may_flood(&mut self, now_ns: u64) -> bool {
        let rate = u64::from(self.options.floods_per_s);
        let Some(cost_ns) = SECOND_NS.checked_div(rate) else { return true };
        let from_ns = self.flooded_until_ns.max(now_ns);
        if from_ns - now_ns > FLOOD_BURST_NS {
            return false;
        }
        self.flooded_until_ns = from_ns + cost_ns;
        true
    }

    /// Whether frames to unknown addresses go here: a guest's own address is always known.
    fn has_unknown(&self) -> bool {
        matches!(self.options.stations, Stations::Learned(_)) || !self.is_access()
    }

    fn is_access(&self) -> bool {
        matches!(self.options.vlans, Vlans::Access(_))
    }
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameRoute {
    /// To this port, with this VLAN in its tag (zero for none).
    One {
        /// The port.
        port: u16,
        /// The VLAN that it names there.
        tag: u16,
    },
    /// To all that [`Switch::each_receiver`] names.
    All(Flood),
}

/// A frame to several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flood {
    from: u16,
    vlan: u16,
    /// To an address that is not known, and not to a group.
    unknown: bool,
}

sidecore::counters! {
    /// The switch's own counters.
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct SwitchCounters of u64 {
        /// The port's share of the table may also be full.
        unlearned: "Addresses for which the table had no room.",
        moved: "Addresses that were learned at another port than before.",
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Switch {
    ports: Vec<Option<PortState>>,
    table: SwitchTable,
    takers: Takers,
    /// Until when the copies of each other node's ports are paid for, by its number.
    owners: Vec<u64>,
    counters: SwitchCounters,
}

impl Switch {
    /// Without ports. `seed` keeps others from knowing which addresses share a place in the table.
    pub fn new(seed: u64) -> Self {
        Self {
            ports: Vec::new(),
            table: SwitchTable::new(seed),
            takers: Takers::new(),
            owners: Vec::new(),
            counters: SwitchCounters::default(),
        }
    }

    /// The counts so far.
    pub fn counters(&self) -> SwitchCounters {
        self.counters
    }

    /// Adds a port, and gives its number. Numbers are used again.
    ///
    /// # Errors
    /// Why it cannot be added.
    pub fn add(&mut self, options: PortOptions) -> Result<u16, AddError> {
        self.add_for(None, options)
    }

    /// The same for a port of another node, which has a small number of its own: all its ports
    /// together pay for what is copied for them, see [`Self::pay`], also when some leave and join.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn add_for(&mut self, owner: Option<usize>, options: PortOptions) -> Result<u16, AddError> {
        if let Vlans::Trunk { native: None, tagged } = &options.vlans
            && tagged.is_empty()
        {
            return Err(AddError::NoVlan);
        }
        let free = self.ports.iter().position(Option::is_none).unwrap_or(self.ports.len());
        if free == PORTS_MAX {
            return Err(AddError::Full);
        }
        let port = free as u16;
        if let Stations::Own(mac) = options.stations {
            if !mac.is_station() {
                return Err(AddError::NoStation(mac));
            }
            // A trunk's address is learnt, VLAN by VLAN: another port that has the same one for
            // its own would get its frames.
            let is_taken = |other: &PortState| {
                other.options.stations == options.stations
                    && other.options.vlans.meet(&options.vlans)
            };
            if self.ports.iter().flatten().any(is_taken) {
                return Err(AddError::Taken(mac));
            }
            if let Vlans::Access(vlan) = options.vlans {
                self.add_own(vlan, mac, port)?;
            }
        }
        let owners = owner.map_or(0, |owner| owner + 1).max(self.owners.len());
        self.owners.resize(owners, 0);
        let state =
            PortState { options, learned: 0, flooded_until_ns: 0, owner, copied_until_ns: 0 };
        match self.ports.get_mut(free) {
            Some(place) => *place = Some(state),
            None => self.ports.push(Some(state)),
        }
        self.takers.set(&self.ports);
        Ok(port)
    }

    fn add_own(&mut self, vlan: u16, mac: Mac, port: u16) -> Result<(), AddError> {
        let found = self.table.find(vlan, mac, 0);
        if found.is_some_and(|found| found.is_own) {
            return Err(AddError::Taken(mac));
        }
        let outcome = self.table.set_own(vlan, mac, port).ok_or(AddError::TableFull(mac))?;
        outcome.into_iter().for_each(|loser| self.unlearn(loser));
        Ok(())
    }

    /// Removes a port, and forgets what was behind it.
    pub fn remove(&mut self, port: u16) {
        if let Some(place) = self.ports.get_mut(usize::from(port)) {
            *place = None;
            self.table.forget(port);
            self.takers.set(&self.ports);
        }
    }

    #[inline]
    fn state(&mut self, port: u16) -> &mut PortState {
        self.ports[usize::from(port)].as_mut().expect("the port was added")
    }

    fn unlearn(&mut self, port: u16) {
        if let Some(Some(state)) = self.ports.get_mut(usize::from(port)) {
            state.learned -= 1;
        }
    }

    /// Where a frame goes that came in at `from` with a tag of this VLAN (zero for none), and in
    /// which VLAN it is.
    ///
    /// # Errors
    /// Why it goes nowhere.
    #[inline]
    pub fn admit(
        &mut self,
        from: u16,
        (to, source): (Mac, Mac),
        tag: u16,
        now_ns: u64,
    ) -> Result<(FrameRoute, u16), Reason> {
        let state = self.state(from);
        let vlan = state.options.vlans.of(tag).ok_or(Reason::VlanForeign)?;
        if !source.is_station() {
            return Err(Reason::SourceInvalid);
        }
        match state.options.stations {
            Stations::Own(mac) if mac != source => return Err(Reason::SourceForeign),
            Stations::Own(_) if state.is_access() => {}
            _ => self.learn(from, vlan, source, now_ns)?,
        }
        let unknown = !to.is_group();
        if unknown {
            if let Some(found) = self.table.find(vlan, to, now_ns) {
                return Ok((self.way_to(from, found.port, vlan)?, vlan));
            }
            // Where only one port is left that may have the address, the frame costs as much as one
            // to a known address there, and no other port gets it. So a silent receiver of a stream
            // behind the only way out gets it as fast as any other receiver.
            let isolated = self.state(from).options.isolated;
            match self.takers.of(from, isolated, vlan) {
                Taker::Nobody => return Err(Reason::Nowhere),
                Taker::One(port) => return Ok((self.way_to(from, port, vlan)?, vlan)),
                Taker::Several => {}
            }
        }
        if is_reserved(to) {
            return Err(Reason::Reserved);
        }
        if !self.state(from).may_flood(now_ns) {
            return Err(Reason::FloodLimit);
        }
        Ok((FrameRoute::All(Flood { from, vlan, unknown }), vlan))
    }

    #[inline]
    fn way_to(&mut self, from: u16, to: u16, vlan: u16) -> Result<FrameRoute, Reason> {
        if from == to {
            return Err(Reason::Returning);
        }
        let from_isolated = self.state(from).options.isolated;
        let receiver = &self.state(to).options;
        if from_isolated && receiver.isolated {
            return Err(Reason::Isolated);
        }
        // An address is learned in a VLAN of its port, and goes with the port; so do takers.
        let tag = receiver.vlans.tag(vlan).expect("the port is in this VLAN");
        Ok(FrameRoute::One { port: to, tag })
    }

    /// The sender is behind this port from now on.
    fn learn(&mut self, from: u16, vlan: u16, source: Mac, now_ns: u64) -> Result<(), Reason> {
        let state = self.state(from);
        let most = match state.options.stations {
            Stations::Own(_) => LEARNED_MAX,
            Stations::Learned(most) => most,
        };
        let has_room = state.learned < most;
        match self.table.learn(vlan, source, from, has_room, now_ns) {
            table::Learned::Known => {}
            table::Learned::Own => return Err(Reason::SourceForeign),
            table::Learned::NoRoom => self.counters.unlearned += 1,
            table::Learned::New { loser } => {
                self.state(from).learned += 1;
                loser.into_iter().for_each(|loser| self.unlearn(loser));
            }
            table::Learned::Moved { before } => {
                self.counters.moved += 1;
                self.state(from).learned += 1;
                self.unlearn(before);
            }
        }
        Ok(())
    }

    /// Calls `receiver` with each port that gets a frame to several, and with the VLAN that its tag
    /// names there.
    pub fn each_receiver(&self, flood: Flood, mut receiver: impl FnMut(u16, u16)) {
        let port = |at: u16| self.ports.get(usize::from(at)).and_then(Option::as_ref);
        let isolated = port(flood.from).is_some_and(|from| from.options.isolated);
        for at in (0..self.ports.len() as u16).filter(|at| *at != flood.from) {
            let Some(state) = port(at) else { continue };
            let Some(tag) = state.options.vlans.tag(flood.vlan) else { continue };
            if !(isolated && state.options.isolated) && (!flood.unknown || state.has_unknown()) {
                receiver(at, tag);
            }
        }
    }

    /// Whether the sender of a frame to several may have it copied; if so, it pays for that. A port
    /// that may send to everyone as often as it likes pays nothing.
    ///
    /// # Errors
    /// The frame goes nowhere then, so that a frame which is passed on reaches everyone.
    pub fn pay(&mut self, flood: Flood, len_bytes: usize, now_ns: u64) -> Result<(), Reason> {
        let state = self.state(flood.from);
        if state.options.floods_per_s == 0 {
            return Ok(());
        }
        let owner = state.owner;
        let until_ns = owner.map_or(state.copied_until_ns, |owner| self.owners[owner]);
        let from_ns = until_ns.max(now_ns);
        // First, so that a frame which is refused costs next to nothing.
        if from_ns - now_ns > COPY_BURST_NS {
            return Err(Reason::CopyLimit);
        }
        let mut copies = 0;
        self.each_receiver(flood, |_, _| copies += 1);
        if copies * len_bytes > FLOOD_BYTES_MAX {
            return Err(Reason::CopyLimit);
        }
        let bytes = (copies * len_bytes) as u64;
        let until_ns = from_ns + copies as u64 * COPY_NS + bytes * COPY_NS_PER_BYTE;
        match owner {
            Some(owner) => self.owners[owner] = until_ns,
            None => self.state(flood.from).copied_until_ns = until_ns,
        }
        Ok(())
    }

    /// Forgets some of the addresses that were silent for long: a bounded part of the table at a
    /// time. It only makes room: an address that is too old is never used, even before it is
    /// forgotten.
    pub fn age(&mut self, now_ns: u64) {
        for _ in 0..table::AGED_AT_ONCE {
            for loser in self.table.age_next(now_ns).into_iter().flatten() {
                self.unlearn(loser);
            }
        }
    }

    /// How many addresses were learned at a port and not forgotten.
    pub fn learned(&self, port: u16) -> u32 {
        let state = self.ports.get(usize::from(port)).and_then(Option::as_ref);
        state.map_or(0, |state| state.learned)
    }
}

/// The link's own protocols (spanning tree, pause, LACP, LLDP): 802.1Q reserves sixteen addresses
/// that no bridge forwards.
fn is_reserved(to: Mac) -> bool {
    matches!(to.0, [0x01, 0x80, 0xc2, 0, 0, last] if last < 16)
}

#[cfg(test)]
mod tests;
