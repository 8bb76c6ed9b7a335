//! A domain as the node serves it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::door::bell::GatewayBell;
use crate::door::key::{KEY_BYTES_MAX, Key};
use crate::door::wire::{Refusal, Seat};
use crate::region::{Keeper, Region, RegionError, RegionOptions};

/// Members for each endpoint that a domain may have: a process may join before it needs one, or
/// several times in different libraries.
const MEMBERS_PER_ENDPOINT: usize = 2;

/// What a domain is to be.
#[derive(Clone, Debug)]
pub struct DomainSettings {
    /// Its name, of 1 to [`NAME_BYTES_MAX`](super::super::NAME_BYTES_MAX) bytes.
    pub name: String,
    /// The key that lets in.
    pub key: Key,
    /// How many endpoints there may be at once; 1 to [`SLOTS_MAX`](crate::SLOTS_MAX).
    pub endpoints_max: u16,
    /// Slots before those, for what goes to and comes from other hosts; at most
    /// [`GATEWAYS_MAX`](crate::GATEWAYS_MAX), and with the endpoints at most
    /// [`SLOTS_MAX`](crate::SLOTS_MAX).
    pub gateways: u16,
}

/// What stat(2) counts the memory of a file in.
const BLOCK_BYTES: u64 = 512;

/// How a domain is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainReport {
    /// Its name.
    pub name: String,
    /// Endpoints that there are.
    pub endpoints_live: usize,
    /// Endpoints that there may be.
    pub endpoints_max: usize,
    /// Processes that have joined.
    pub members: usize,
    /// VMs that are connected.
    pub vms: usize,
    /// The memory that its endpoints share; the system takes of it what was ever used.
    pub region_bytes: u64,
    /// That part of it.
    pub used_bytes: u64,
}

/// Why there is no domain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is one already.
    #[error("there is a domain {0:?} already")]
    Exists(String),
    /// Its memory cannot be had.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// A domain with its memory.
#[derive(Debug)]
pub(super) struct Served {
    settings: DomainSettings,
    keeper: Arc<Keeper>,
    memory: OwnedFd,
    /// A gateway's each.
    bells: Vec<GatewayBell>,
}

impl Served {
    pub(super) fn new(settings: DomainSettings, host: u64) -> Result<Self, RegionError> {
        let gateways = settings.gateways;
        let slots = settings.endpoints_max.saturating_add(gateways);
        let options = RegionOptions { slots, gateways, host, ..RegionOptions::default() };
        let (keeper, memory) = Region::create(&options)?;
        let bells = (0..gateways).map(|_| GatewayBell::new()).collect::<Result<_, _>>();
        let bells =
            bells.map_err(|errno| RegionError::System { what: "make a bell beside", errno })?;
        Ok(Self { settings, keeper: Arc::new(keeper), memory, bells })
    }

    pub(super) fn name(&self) -> &str {
        &self.settings.name
    }

    pub(super) fn key(&self) -> &Key {
        &self.settings.key
    }

    pub(super) fn region(&self) -> &Region {
        self.keeper.region()
    }

    pub(super) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Wakes the gateways, for somebody who has no bells of theirs.
    pub(super) fn ring_gateways(&self) {
        self.bells.iter().for_each(GatewayBell::ring);
    }

    pub(super) fn is_called(&self, name: &str) -> bool {
        self.settings.name == name
    }

    pub(super) fn set_key(&mut self, key: Key) {
        self.settings.key = key;
    }

    pub(super) fn report(&self, members: usize, vms: usize) -> DomainReport {
        // The system always knows its own memory.
        let blocks =
            rustix::fs::fstat(&self.memory).map_or(0, |stat| stat.st_blocks.cast_unsigned());
        DomainReport {
            name: self.settings.name.clone(),
            endpoints_live: self.keeper.live_count(),
            endpoints_max: self.settings.endpoints_max.into(),
            members,
            vms,
            region_bytes: self.keeper.region().layout().region_bytes as u64,
            used_bytes: blocks * BLOCK_BYTES,
        }
    }

    pub(super) fn keeper(&self) -> (Arc<Keeper>, &[GatewayBell]) {
        (Arc::clone(&self.keeper), &self.bells)
    }

    /// A slot for an endpoint of this process, if there is one left.
    pub(super) fn seat(&self, pid: u32) -> Option<Seat> {
        let (slot, incarnation) = self.keeper.take_slot(pid).ok()?;
        Some(Seat { slot, incarnation })
    }

    /// The process that has an endpoint, as this one numbers them; 0 if there is none.
    pub(super) fn process_of(&self, seat: Seat) -> u32 {
        self.keeper.process_of(seat.slot, seat.incarnation).unwrap_or(0)
    }

    /// Says that endpoints are gone, whose process may still store into the region.
    pub(super) fn leave(&self, seats: &[Seat]) {
        for seat in seats {
            self.keeper.declare_left(seat.slot);
        }
    }

    /// Says that endpoints are dead.
    pub(super) fn bury(&self, seats: &[Seat]) {
        for seat in seats {
            self.keeper.declare_dead(seat.slot);
        }
    }
}

/// The memory and the gateways' bells for who says this name and key. Takes as long, and says the
/// same, whether the name or the key is wrong.
pub(super) fn admit<'d>(
    domains: &'d [Served],
    name: &str,
    key: &[u8; KEY_BYTES_MAX],
    members: usize,
) -> Result<Vec<BorrowedFd<'d>>, Refusal> {
    // A key that nobody has, for a domain that is not there.
    let nobodys = [0; KEY_BYTES_MAX];
    let found = domains.iter().find(|domain| domain.is_called(name));
    let fits = match found {
        Some(domain) => domain.settings.key.is(key),
        None => subtle::ConstantTimeEq::ct_eq(&nobodys[..], &key[..]).into(),
    };
    let Some(domain) = found.filter(|_| fits) else { return Err(Refusal::Denied) };
    let members_max = MEMBERS_PER_ENDPOINT * usize::from(domain.settings.endpoints_max);
    if members >= members_max {
        return Err(Refusal::Crowded);
    }
    let bells = domain.bells.iter().map(GatewayBell::shared);
    Ok(std::iter::once(domain.memory()).chain(bells).collect())
}
