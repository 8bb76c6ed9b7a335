//! The servers of a plan, derived from the rack: how many, and with which parts.

use std::collections::BTreeMap;

use serde::Serialize;

use super::form::{PartKind, PlanForm, Policy, RackForm, SERVERS_MAX};
use crate::fault::{PlanFault, key, within};

/// Bits of a Gbit.
const GBIT: u64 = 1_000_000_000;

/// A need of the pool that decides how many IOhosts it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolNeed {
    /// Sidecores, which fit into so many processors.
    Sidecores,
    /// Each copy is on an IOhost of its own.
    Copies,
    /// Cards for the traffic.
    Cards,
    /// Slots for the drives.
    Drives,
}

/// Servers of one build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerBuild {
    /// `host`, `VMhost` or `IOhost`.
    pub role: &'static str,
    /// Servers of this build, spare ones included.
    pub count: u64,
    /// The parts of one server.
    pub parts: BTreeMap<String, u64>,
    /// Cores of one server that guests have.
    pub vm_cores: u64,
    /// Cores of one server that are sidecores.
    pub sidecores: u64,
    /// Bits a second that its guests need.
    pub required_bits: u64,
    /// Bits a second that its cards have.
    pub provided_bits: u64,
    /// The need that decides their number, if they are several IOhosts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<PoolNeed>,
}

impl RackForm {
    fn cores_per_cpu(&self) -> u64 {
        self.part.get(&self.hosts.cpu).map_or(1, |cpu| cpu.size)
    }

    fn cores(&self) -> u64 {
        self.cores_per_cpu() * self.hosts.sockets
    }

    /// Sidecores of a host that serves its own guests.
    fn own_sidecores(&self) -> u64 {
        self.hosts.sidecores.up(self.cores())
    }

    /// The servers of a plan.
    ///
    /// # Errors
    /// When the parts that it names do not fit into its servers, or a sum is too large.
    pub fn servers(&self, plan: &PlanForm) -> Result<Vec<ServerBuild>, PlanFault> {
        match plan.policy {
            Policy::PerHost => Ok(vec![self.own_host(plan)?]),
            Policy::Pooled | Policy::PooledWithCache => self.pool(plan),
        }
    }

    fn own_host(&self, plan: &PlanForm) -> Result<ServerBuild, PlanFault> {
        let sidecores = self.own_sidecores();
        let vm_cores = self.cores() - sidecores;
        let required_bits = product("traffic of a host", vm_cores, self.hosts.bits_per_vm_core)?;
        let mut build = ServerBuild {
            role: "host",
            count: self.hosts.servers,
            parts: BTreeMap::new(),
            vm_cores,
            sidecores,
            required_bits,
            provided_bits: 0,
            decided_by: None,
        };
        self.equip(plan, &mut build, &plan.nic, self.hosts.sockets)?;
        self.add_memory(plan, &mut build, &plan.dimms, self.hosts.memory_gb)?;
        self.add_drives(plan, &mut build, plan.ssds)?;
        Ok(build)
    }

    /// VMhosts give all their cores to guests, so fewer of them have the guests of the rack.
    fn pool(&self, plan: &PlanForm) -> Result<Vec<ServerBuild>, PlanFault> {
        let (hosts, cores) = (&self.hosts, self.cores());
        let vm_cores = (cores - self.own_sidecores()) * hosts.servers;
        let vmhosts = vm_cores.div_ceil(cores);
        let memory_gb = product("memory of the rack", hosts.memory_gb, hosts.servers)?;
        let required_bits = product("traffic of a VMhost", cores, hosts.bits_per_vm_core)?;
        let mut vmhost = ServerBuild {
            role: "VMhost",
            count: vmhosts,
            parts: BTreeMap::new(),
            vm_cores: cores,
            sidecores: 0,
            required_bits,
            provided_bits: 0,
            decided_by: None,
        };
        self.equip(plan, &mut vmhost, &plan.nic, hosts.sockets)?;
        self.add_memory(plan, &mut vmhost, &plan.dimms, memory_gb.div_ceil(vmhosts))?;
        self.add_drives(plan, &mut vmhost, plan.cache_ssds)?;
        let traffic = product("traffic of the guests", vm_cores, hosts.bits_per_vm_core)?;
        let iohost = self.iohosts(plan, traffic)?;
        Ok(vec![vmhost, iohost])
    }

    /// The fewest IOhosts that have the sidecores, cards and drives of the pool.
    fn iohosts(&self, plan: &PlanForm, traffic: u64) -> Result<ServerBuild, PlanFault> {
        let hosts = &self.hosts;
        // A write that has copies is served once more for each, and crosses a card twice for it.
        let further = plan.replicas - 1;
        let own = self.own_sidecores() * hosts.servers;
        let wanted = plan.sidecores.up(own);
        let sidecores = (wanted + hosts.writes.up(wanted) * further).max(1);
        // Each bit of a guest passes an IOhost's cards twice: in and out.
        let copied = product("traffic of copies", hosts.writes.up(traffic), further)?;
        let bits = traffic.checked_add(copied).ok_or(OVERFLOW)?;
        let bits = product("traffic of the IOhosts", bits, 2)?;
        let drives = product("drives of the pool", plan.ssds, plan.replicas)?;
        let nic = plan.iohost_nic.as_ref().unwrap_or(&plan.nic);
        let card = self.part_of("iohost_nic", nic, PartKind::Nic)?.size * GBIT;
        let cards = needed(bits, plan.shortfall_permille).div_ceil(card);
        let by_drives = if drives == 0 { 0 } else { drives.div_ceil(hosts.ssd_slots.max(1)) };
        let needs = [
            (PoolNeed::Sidecores, sidecores.div_ceil(self.cores())),
            (PoolNeed::Copies, plan.replicas),
            (PoolNeed::Cards, cards.div_ceil(hosts.nic_slots)),
            (PoolNeed::Drives, by_drives),
        ];
        // Of equal needs the last counts: the sidecores could be fewer then.
        let most = needs.into_iter().max_by_key(|(_, count)| *count);
        let most = most.filter(|(_, count)| *count > 1);
        let count = most.map_or(1, |(_, count)| count);
        within("IOhosts that the pool needs", count, 1, SERVERS_MAX)?;
        let sockets = sidecores.div_ceil(count).div_ceil(self.cores_per_cpu());
        let mut build = ServerBuild {
            role: "IOhost",
            count: count + plan.spare_iohosts,
            parts: BTreeMap::new(),
            vm_cores: 0,
            sidecores: sidecores.div_ceil(count),
            required_bits: bits.div_ceil(count),
            provided_bits: 0,
            decided_by: most.map(|(need, _)| need),
        };
        self.equip(plan, &mut build, nic, sockets)?;
        self.add_memory(plan, &mut build, &plan.iohost_dimms, plan.iohost_memory_gb)?;
        self.add_drives(plan, &mut build, drives.div_ceil(count))?;
        Ok(build)
    }

    /// The chassis, the processors and the cards.
    fn equip(
        &self,
        plan: &PlanForm,
        build: &mut ServerBuild,
        nic: &str,
        sockets: u64,
    ) -> Result<(), PlanFault> {
        let bits = self.part_of("nic", nic, PartKind::Nic)?.size * GBIT;
        let cards = needed(build.required_bits, plan.shortfall_permille).div_ceil(bits).max(1);
        if cards > self.hosts.nic_slots {
            let cause = format!(
                "an {} needs {cards} cards '{nic}' and has {} slots",
                build.role, self.hosts.nic_slots
            );
            let way_out = "name a faster card, or set hosts.nic_slots";
            return Err(key(format!("plan '{}'", plan.name), cause, way_out));
        }
        build.provided_bits = product("bits of the cards", cards, bits)?;
        add(&mut build.parts, &self.hosts.base, 1);
        add(&mut build.parts, &self.hosts.cpu, sockets);
        add(&mut build.parts, nic, cards);
        Ok(())
    }

    fn add_memory(
        &self,
        plan: &PlanForm,
        build: &mut ServerBuild,
        named: &BTreeMap<String, u64>,
        memory_gb: u64,
    ) -> Result<(), PlanFault> {
        let cheapest;
        let dimms = if named.is_empty() {
            cheapest = self.cheapest_dimms(plan, build.role, memory_gb)?;
            &cheapest
        } else {
            named
        };
        for (name, count) in dimms {
            add(&mut build.parts, name, *count);
        }
        Ok(())
    }

    /// The cheapest modules of one or two sizes that hold so much and fit into the slots.
    fn cheapest_dimms(
        &self,
        plan: &PlanForm,
        role: &str,
        memory_gb: u64,
    ) -> Result<BTreeMap<String, u64>, PlanFault> {
        let dimms = self.part.iter().filter(|(_, part)| part.kind == PartKind::Dimm);
        let dimms: Vec<_> = dimms.collect();
        let slots = self.hosts.dimm_slots;
        let mut best: Option<(u64, BTreeMap<String, u64>)> = None;
        for (large_name, large) in &dimms {
            for (small_name, small) in &dimms {
                // So many of the larger size, and the rest in the smaller.
                for count in 0..=slots.min(memory_gb.div_ceil(large.size)) {
                    let rest = memory_gb.saturating_sub(count * large.size).div_ceil(small.size);
                    let price = rest.saturating_mul(small.price_usd.0);
                    let price = price.saturating_add(count * large.price_usd.0);
                    let is_better = best.as_ref().is_none_or(|(known, _)| price < *known);
                    if rest <= slots - count && is_better {
                        let mut chosen = BTreeMap::new();
                        add(&mut chosen, large_name, count);
                        add(&mut chosen, small_name, rest);
                        best = Some((price, chosen));
                    }
                }
            }
        }
        best.map(|(_, dimms)| dimms).ok_or_else(|| {
            let cause = format!("{memory_gb} GB of an {role} do not fit into {slots} slots");
            let way_out = "add a larger part of the kind dimm, or set hosts.dimm_slots";
            key(format!("plan '{}'", plan.name), cause, way_out)
        })
    }

    fn add_drives(
        &self,
        plan: &PlanForm,
        build: &mut ServerBuild,
        drives: u64,
    ) -> Result<(), PlanFault> {
        if drives > self.hosts.ssd_slots {
            let slots = self.hosts.ssd_slots;
            let cause = format!("an {} needs {drives} drives and has {slots} slots", build.role);
            let way_out = "set fewer ssds, or hosts.ssd_slots";
            return Err(key(format!("plan '{}'.ssds", plan.name), cause, way_out));
        }
        if let Some(ssd) = &self.hosts.ssd {
            add(&mut build.parts, ssd, drives);
        }
        Ok(())
    }
}

const OVERFLOW: PlanFault = PlanFault::Overflow { sum: "traffic of the guests" };

fn product(sum: &'static str, one: u64, other: u64) -> Result<u64, PlanFault> {
    one.checked_mul(other).ok_or(PlanFault::Overflow { sum })
}

/// The bits that cards must have.
fn needed(bits: u64, shortfall_permille: u64) -> u64 {
    let kept = u128::from(bits) * u128::from(1000 - shortfall_permille);
    u64::try_from(kept.div_ceil(1000)).unwrap_or(u64::MAX)
}

fn add(parts: &mut BTreeMap<String, u64>, name: &str, count: u64) {
    if count > 0 {
        *parts.entry(name.to_owned()).or_default() += count;
    }
}
