//! A domain as the registration server has it.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering::SeqCst, fence};
use std::time::{Duration, Instant};

use handover::{DescriptorNumber, ReceivedDescriptors, SentDescriptors};
use rustix::io::Errno;

use crate::GatewayDoorbell;
use crate::SlotTable;
use crate::hand_over::{DomainState, RegionState, Unfit, ensure};
use crate::liveness::NodeLiveness;
use fabric::registration::wire::{RegistrationRefusal, SlotGrant};
use fabric::registration::{DomainKey, KEY_BYTES_MAX};
use fabric::ring::Words;
use fabric::{REGION_VERSION, Region, RegionError, RegionOptions};

/// Most members for each endpoint that a domain may have: a process may join before it needs an
/// endpoint, or several times in different libraries.
const MEMBERS_PER_ENDPOINT: usize = 2;

/// Shortest time between two wake-ups of sleepers for deaths: the processes of a job end one after
/// the other, and each wake-up is for all sleepers of all jobs.
const DEATHS_SPAN: Duration = Duration::from_millis(10);

/// The configuration of a domain.
#[derive(Clone, Debug)]
pub struct DomainSettings {
    /// Its name, of 1 to [`NAME_BYTES_MAX`](fabric::registration::NAME_BYTES_MAX) bytes.
    pub name: String,
    /// The key by which processes join.
    pub key: DomainKey,
    /// How many endpoints there may be at once; 1 to [`SLOTS_MAX`](fabric::SLOTS_MAX).
    pub endpoints_max: u16,
    /// Slots before those, for what goes to and comes from other hosts; at most
    /// [`GATEWAYS_MAX`](fabric::GATEWAYS_MAX), and with the endpoints at most
    /// [`SLOTS_MAX`](fabric::SLOTS_MAX).
    pub gateways: u16,
}

/// The unit in which stat(2) counts the memory of a file.
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
    /// The length of the region; the kernel gives memory to the pages that were ever used.
    pub region_bytes: u64,
    /// The memory of those pages.
    pub used_bytes: u64,
}

/// Why there is no domain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is one already.
    #[error("there is a domain {0:?} already")]
    Exists(String),
    /// Its memory cannot be made.
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// A domain with its memory.
#[derive(Debug)]
pub(super) struct ServedDomain {
    settings: DomainSettings,
    table: Arc<SlotTable>,
    memory: OwnedFd,
    /// One for each gateway.
    doorbells: Vec<GatewayDoorbell>,
    /// When sleepers were last woken for deaths.
    told: Option<Instant>,
    /// Shows processes in VMs that the node lives; none as long as the domain has no vf.
    liveness: Option<NodeLiveness>,
}

impl ServedDomain {
    pub(super) fn new(settings: DomainSettings, host: u64) -> Result<Self, RegionError> {
        let gateways = settings.gateways;
        let slots = settings.endpoints_max.saturating_add(gateways);
        let options = RegionOptions { slots, gateways, host, ..RegionOptions::default() };
        let (table, memory) = SlotTable::create(&options)?;
        let doorbells = (0..gateways).map(|_| GatewayDoorbell::new()).collect::<Result<_, _>>();
        let doorbells =
            doorbells.map_err(|errno| RegionError::System { what: "make a doorbell", errno })?;
        Ok(Self { settings, table: Arc::new(table), memory, doorbells, told: None, liveness: None })
    }

    /// Takes a domain over from another process.
    pub(super) fn adopt(
        settings: DomainSettings,
        host: u64,
        state: DomainState,
        received: &mut ReceivedDescriptors,
    ) -> Result<Self, Unfit> {
        let (region, memory) = map(&state.region, host, received)?;
        let (slots, gateways) = (region.options().slots, region.options().gateways);
        let is_it =
            (slots.wrapping_sub(gateways), gateways) == (settings.endpoints_max, settings.gateways);
        ensure(is_it, "it has other sizes than its configuration says")?;
        ensure(state.doorbells.len() == usize::from(gateways), "a gateway has no doorbell")?;
        let doorbells =
            state.doorbells.into_iter().map(|doorbell| GatewayDoorbell::adopt(doorbell, received));
        let doorbells = doorbells.collect::<io::Result<_>>()?;
        let table = Arc::new(SlotTable::adopt(region, &state.slot_table, received)?);
        Ok(Self { settings, table, memory, doorbells, told: None, liveness: None })
    }

    /// The state for the next process. Nothing of the domain may change meanwhile.
    pub(super) fn take_down(&self, sent: &mut SentDescriptors) -> io::Result<DomainState> {
        let memory = sent.put_copy(&self.memory)?;
        Ok(DomainState {
            name: self.name().to_owned(),
            region: region_state(self.region(), memory),
            slot_table: self.table.take_down(sent)?,
            doorbells: self
                .doorbells
                .iter()
                .map(|doorbell| doorbell.take_down(sent))
                .collect::<io::Result<_>>()?,
        })
    }

    /// Slots that have an owner: a member, or a departed member that may still store.
    pub(super) fn grants(&self) -> HashSet<SlotGrant> {
        self.table.grants().map(|(slot, incarnation)| SlotGrant { slot, incarnation }).collect()
    }

    pub(super) fn name(&self) -> &str {
        &self.settings.name
    }

    pub(super) fn key(&self) -> &DomainKey {
        &self.settings.key
    }

    pub(super) fn region(&self) -> &Region {
        self.table.region()
    }

    /// Shows in the region from now on that the node lives, and when it has ended.
    pub(super) fn hold_liveness(&mut self) {
        if self.liveness.is_none() {
            let kept = NodeLiveness::hold(Arc::clone(self.table.region()));
            let warn = |error: &io::Error| {
                let domain = self.name();
                tracing::warn!(%error, domain, "processes in VMs will not notice when the node \
                                                ends");
            };
            self.liveness = kept.inspect_err(warn).ok();
        }
    }

    /// The end of this process is no longer shown: another process may take over.
    pub(super) fn release_liveness(&mut self) {
        if let Some(liveness) = self.liveness.take() {
            liveness.release();
        }
    }

    pub(super) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Wakes all sleepers for which a message waits. For a VM, whose doorbell does not say which
    /// endpoint is meant.
    pub(super) fn ring_where_messages_wait(&self) {
        // A gateway stores that it sleeps before it looks for the last time.
        fence(SeqCst);
        for (gateway, doorbell) in self.doorbells.iter().enumerate() {
            if self.region().ring(gateway as u16).asleep() != 0 {
                doorbell.ring();
            }
        }
        self.table.ring_where_messages_wait();
    }

    /// Wakes sleepers if an endpoint has died or departed and the last time is long enough ago. If
    /// it is not, returns when it will be.
    pub(super) fn announce_deaths(&mut self, now: Instant) -> Option<Instant> {
        if !self.table.has_unannounced_deaths() {
            return None;
        }
        match self.told.map(|told| told + DEATHS_SPAN).filter(|again| *again > now) {
            None => {
                self.told = Some(now);
                self.table.announce_deaths();
                None
            }
            again => again,
        }
    }

    /// The same at once, before the domain is removed.
    pub(super) fn announce_deaths_at_once(&self) {
        self.table.announce_deaths();
    }

    pub(super) fn is_named(&self, name: &str) -> bool {
        self.settings.name == name
    }

    pub(super) fn set_key(&mut self, key: DomainKey) {
        self.settings.key = key;
    }

    pub(super) fn report(&self, members: usize, vms: usize) -> DomainReport {
        // The kernel always answers this for a memory file.
        let blocks =
            rustix::fs::fstat(&self.memory).map_or(0, |stat| stat.st_blocks.cast_unsigned());
        DomainReport {
            name: self.settings.name.clone(),
            endpoints_live: self.table.live_count(),
            endpoints_max: self.settings.endpoints_max.into(),
            members,
            vms,
            region_bytes: self.table.region().bytes() as u64,
            used_bytes: blocks * BLOCK_BYTES,
        }
    }

    pub(super) fn table(&self) -> (Arc<SlotTable>, &[GatewayDoorbell]) {
        (Arc::clone(&self.table), &self.doorbells)
    }

    /// A slot for an endpoint of this process, if there is one left.
    pub(super) fn grant(&self, pid: u32) -> Option<SlotGrant> {
        let (slot, incarnation) = self.table.take_slot(pid).ok()?;
        Some(SlotGrant { slot, incarnation })
    }

    /// The process that has an endpoint, by the number that this process sees; 0 if there is none.
    pub(super) fn process_of(&self, grant: SlotGrant) -> u32 {
        self.table.process_of(grant.slot, grant.incarnation).unwrap_or(0)
    }

    /// Opens a doorbell for an endpoint, and returns the read end.
    pub(super) fn open_doorbell(&self, grant: SlotGrant) -> Result<OwnedFd, Errno> {
        self.table.open_doorbell(grant.slot, grant.incarnation)
    }

    /// Wakes an endpoint, if it sleeps.
    pub(super) fn ring(&self, grant: SlotGrant) {
        self.table.ring(grant.slot, grant.incarnation);
    }

    /// The write end of an endpoint's doorbell.
    pub(super) fn write_end(&self, grant: SlotGrant) -> Option<OwnedFd> {
        self.table.write_end(grant.slot, grant.incarnation)
    }

    /// Says that endpoints have departed: their process may still store into the region.
    pub(super) fn declare_departed(&self, grants: &[SlotGrant]) {
        for grant in grants {
            self.table.declare_departed(grant.slot);
        }
    }

    /// Says that endpoints are dead.
    pub(super) fn declare_dead(&self, grants: &[SlotGrant]) {
        for grant in grants {
            self.table.declare_dead(grant.slot);
        }
    }
}

/// Maps the region of the node before this one, as the earlier node knew it: any member may have
/// written over its header.
fn map(
    state: &RegionState,
    host: u64,
    received: &mut ReceivedDescriptors,
) -> Result<(Region, OwnedFd), Unfit> {
    let &RegionState { memory, version, slots, gateways, cells, buffers, buffer_bytes } = state;
    ensure(version == REGION_VERSION, "its memory has another layout than this release's")?;
    let options = RegionOptions { slots, gateways, cells, buffers, buffer_bytes, host };
    let fd = received.take(memory)?;
    let region = Region::map_known(fd.as_fd(), &options).map_err(|error| match error {
        RegionError::Unsealed => Unfit::Contradiction("its memory is not sealed"),
        RegionError::Foreign => Unfit::Contradiction("its memory has another length"),
        other => other.into(),
    })?;
    Ok((region, fd))
}

/// The state by which the next node maps the region.
fn region_state(region: &Region, memory: DescriptorNumber) -> RegionState {
    let RegionOptions { slots, gateways, cells, buffers, buffer_bytes, .. } = region.options();
    RegionState { memory, version: REGION_VERSION, slots, gateways, cells, buffers, buffer_bytes }
}

/// The memory and the gateways' doorbells, for a process that has sent this name and key. Takes as
/// long, and gives the same answer, whether the name or the key is wrong.
pub(super) fn admit<'d>(
    domains: &'d [ServedDomain],
    name: &str,
    key: &[u8; KEY_BYTES_MAX],
    members: usize,
) -> Result<Vec<BorrowedFd<'d>>, RegistrationRefusal> {
    // A key that no domain has, to compare with where there is no such domain.
    let nobodys = [0; KEY_BYTES_MAX];
    let found = domains.iter().find(|domain| domain.is_named(name));
    let fits = match found {
        Some(domain) => domain.settings.key.is(key),
        None => subtle::ConstantTimeEq::ct_eq(&nobodys[..], &key[..]).into(),
    };
    let Some(domain) = found.filter(|_| fits) else { return Err(RegistrationRefusal::Denied) };
    let members_max = MEMBERS_PER_ENDPOINT * usize::from(domain.settings.endpoints_max);
    if members >= members_max {
        return Err(RegistrationRefusal::Crowded);
    }
    let doorbells = domain.doorbells.iter().map(GatewayDoorbell::shared);
    Ok(std::iter::once(domain.memory()).chain(doorbells).collect())
}
