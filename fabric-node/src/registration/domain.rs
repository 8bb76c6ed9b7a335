//! A domain as the node serves it.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering::SeqCst, fence};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::GatewayBell;
use crate::Keeper;
use crate::hand_over::{DomainState, Put, RegionState, Take, Unfit, expect};
use crate::vigil::Vigil;
use fabric::door::wire::{Refusal, Seat};
use fabric::door::{KEY_BYTES_MAX, Key};
use fabric::ring::Words;
use fabric::{REGION_VERSION, Region, RegionError, RegionOptions};

/// Members for each endpoint that a domain may have: a process may join before it needs one, or
/// several times in different libraries.
const MEMBERS_PER_ENDPOINT: usize = 2;

/// Those who sleep are woken for deaths so often at most: the processes of a job end one after the
/// other, and each wakes all that sleep of all jobs.
const DEATHS_SPAN: Duration = Duration::from_millis(10);

/// What a domain is to be.
#[derive(Clone, Debug)]
pub struct DomainSettings {
    /// Its name, of 1 to [`NAME_BYTES_MAX`](fabric::door::NAME_BYTES_MAX) bytes.
    pub name: String,
    /// The key that lets in.
    pub key: Key,
    /// How many endpoints there may be at once; 1 to [`SLOTS_MAX`](fabric::SLOTS_MAX).
    pub endpoints_max: u16,
    /// Slots before those, for what goes to and comes from other hosts; at most
    /// [`GATEWAYS_MAX`](fabric::GATEWAYS_MAX), and with the endpoints at most
    /// [`SLOTS_MAX`](fabric::SLOTS_MAX).
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
    /// When those who sleep were woken for the dead last.
    told: Option<Instant>,
    /// That the node is there, for processes in VMs; once there are any.
    vigil: Option<Vigil>,
}

impl Served {
    pub(super) fn new(settings: DomainSettings, host: u64) -> Result<Self, RegionError> {
        let gateways = settings.gateways;
        let slots = settings.endpoints_max.saturating_add(gateways);
        let options = RegionOptions { slots, gateways, host, ..RegionOptions::default() };
        let (keeper, memory) = Keeper::create(&options)?;
        let bells = (0..gateways).map(|_| GatewayBell::new()).collect::<Result<_, _>>();
        let bells =
            bells.map_err(|errno| RegionError::System { what: "make a bell beside", errno })?;
        Ok(Self { settings, keeper: Arc::new(keeper), memory, bells, told: None, vigil: None })
    }

    /// What another process had of it.
    pub(super) fn adopt(
        settings: DomainSettings,
        host: u64,
        state: DomainState,
        take: Take<'_>,
    ) -> Result<Self, Unfit> {
        let (region, memory) = map(&state.region, host, take)?;
        let (slots, gateways) = (region.options().slots, region.options().gateways);
        let is_it =
            (slots.wrapping_sub(gateways), gateways) == (settings.endpoints_max, settings.gateways);
        expect(is_it, "it has other sizes than its configuration says")?;
        expect(state.bells.len() == usize::from(gateways), "a gateway has no bell")?;
        let bells = state.bells.into_iter().map(|bell| GatewayBell::adopt(bell, take));
        let bells = bells.collect::<io::Result<_>>()?;
        let keeper = Arc::new(Keeper::adopt(region, &state.ledger, take)?);
        Ok(Self { settings, keeper, memory, bells, told: None, vigil: None })
    }

    /// The same for the next one. Nothing of it may change meanwhile.
    pub(super) fn take_down(&self, put: Put<'_>) -> io::Result<DomainState> {
        let memory = self.memory.try_clone()?;
        Ok(DomainState {
            name: self.name().to_owned(),
            region: region_state(self.region(), memory, put),
            ledger: self.keeper.take_down(put)?,
            bells: self.bells.iter().map(|bell| bell.take_down(put)).collect::<io::Result<_>>()?,
        })
    }

    /// Slots that somebody has, or has left and may still store from.
    pub(super) fn seats(&self) -> HashSet<Seat> {
        self.keeper.seats().map(|(slot, incarnation)| Seat { slot, incarnation }).collect()
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

    /// Says in the region from now on that the node is there, and that it is not when it has ended.
    pub(super) fn keep_vigil(&mut self) {
        if self.vigil.is_none() {
            let kept = Vigil::keep(Arc::clone(self.keeper.region()));
            let warn = |error: &io::Error| {
                let domain = self.name();
                tracing::warn!(%error, domain, "processes in VMs will not notice the node's end");
            };
            self.vigil = kept.inspect_err(warn).ok();
        }
    }

    /// Says nothing about the node's end any more: another process may go on.
    pub(super) fn leave_vigil(&mut self) {
        if let Some(vigil) = self.vigil.take() {
            vigil.leave();
        }
    }

    pub(super) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Wakes those who sleep and for whom something came, for somebody who has no bells of theirs
    /// and does not say whom he means.
    pub(super) fn ring_where_something_is(&self) {
        // A gateway that falls asleep says so before it looks for the last time.
        fence(SeqCst);
        for (gateway, bell) in self.bells.iter().enumerate() {
            if self.region().ring(gateway as u16).asleep() != 0 {
                bell.ring();
            }
        }
        self.keeper.ring_where_something_is();
    }

    /// Wakes who sleeps if somebody has died or left, at once or when the last time is long enough
    /// ago: when that is.
    pub(super) fn tell_deaths(&mut self, now: Instant) -> Option<Instant> {
        if !self.keeper.has_untold_deaths() {
            return None;
        }
        match self.told.map(|told| told + DEATHS_SPAN).filter(|again| *again > now) {
            None => {
                self.told = Some(now);
                self.keeper.tell_deaths();
                None
            }
            again => again,
        }
    }

    /// The same for the last time.
    pub(super) fn tell_deaths_at_once(&self) {
        self.keeper.tell_deaths();
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
            region_bytes: self.keeper.region().bytes() as u64,
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

    /// A bell for an endpoint: what it is heard by.
    pub(super) fn hang_bell(&self, seat: Seat) -> Result<OwnedFd, Errno> {
        self.keeper.hang_bell(seat.slot, seat.incarnation)
    }

    /// Wakes an endpoint, if it sleeps.
    pub(super) fn ring(&self, seat: Seat) {
        self.keeper.ring(seat.slot, seat.incarnation);
    }

    /// By what an endpoint is woken.
    pub(super) fn rope(&self, seat: Seat) -> Option<OwnedFd> {
        self.keeper.rope(seat.slot, seat.incarnation)
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

/// Maps the region of the node before this one, as that one knew it: its header any member may
/// have written over.
fn map(state: &RegionState, host: u64, take: Take<'_>) -> Result<(Region, OwnedFd), Unfit> {
    let &RegionState { memory, version, slots, gateways, cells, buffers, buffer_bytes } = state;
    expect(version == REGION_VERSION, "its memory has another layout than this release's")?;
    let options = RegionOptions { slots, gateways, cells, buffers, buffer_bytes, host };
    let fd = take(memory)?;
    let region = Region::map_known(fd.as_fd(), &options).map_err(|error| match error {
        RegionError::Unsealed => Unfit::Contradiction("its memory is not sealed"),
        RegionError::Foreign => Unfit::Contradiction("its memory has another length"),
        other => other.into(),
    })?;
    Ok((region, fd))
}

/// What the next node maps it by.
fn region_state(region: &Region, memory: OwnedFd, put: Put<'_>) -> RegionState {
    let RegionOptions { slots, gateways, cells, buffers, buffer_bytes, .. } = region.options();
    let (memory, version) = (put(memory), REGION_VERSION);
    RegionState { memory, version, slots, gateways, cells, buffers, buffer_bytes }
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
