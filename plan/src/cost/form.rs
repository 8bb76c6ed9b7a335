//! The form of `RACK.toml` and of price lists, and their checks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::shipped::PRICE_LISTS;
use crate::fault::{NAME_MAX, PlanFault, key, named, within};
use crate::money::{Cents, Fraction, UnitPrice};

/// Servers of a rack: many rows of a hall.
pub const SERVERS_MAX: u64 = 100_000;
/// Parts of one kind in one server.
pub const PARTS_MAX: u64 = 10_000;
/// Entries of a price list, and plans of a rack: a table that a person reads.
pub const ENTRIES_MAX: usize = 64;
/// Modules of memory in one server; the cheapest ones are found by trying all counts.
const DIMM_SLOTS_MAX: u64 = 256;
/// The most of what a part has: cores, GB, Gbit/s.
const SIZE_MAX: u64 = 10_000_000;
/// Watts of one part.
const WATTS_MAX: u64 = 100_000;
/// Years of power.
const YEARS_MAX: u64 = 100;
/// Copies of a volume, which the members' protocol bounds as well.
const REPLICAS_MAX: u64 = 16;
/// Bits a second for a core: 10 Tbit/s.
const BITS_MAX: u64 = 10_000_000_000_000;

/// A kind of parts, which says what a part's `size` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// The chassis with its board; it has no size.
    Base,
    /// A processor; its size is its cores.
    Cpu,
    /// A module of memory, in GB.
    Dimm,
    /// A network card with all its ports, in Gbit/s of one direction.
    Nic,
    /// A drive, in GB.
    Ssd,
}

/// A part and its price.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartForm {
    /// Its kind.
    pub kind: PartKind,
    /// Its price in dollars.
    pub price_usd: Cents,
    /// Cores, GB or Gbit/s, as its kind says.
    #[serde(default)]
    pub size: u64,
    /// Watts under load; a plan with a part that lacks it has no power.
    pub watts: Option<u64>,
}

/// A list of prices with its source.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriceListForm {
    /// The place and the year of the prices, printed below each table.
    pub source: String,
    /// The parts by name.
    pub part: BTreeMap<String, PartForm>,
}

/// The hosts of the rack, when each serves its own guests.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostsForm {
    /// Hosts of the rack.
    pub servers: u64,
    /// The chassis.
    pub base: String,
    /// The processor.
    pub cpu: String,
    /// Processors of a host, and the most of any server.
    pub sockets: u64,
    /// The share of a host's cores that are sidecores.
    pub sidecores: Fraction,
    /// Memory of a host in GB.
    pub memory_gb: u64,
    /// Modules of memory that a server has room for.
    #[serde(default = "dimm_slots")]
    pub dimm_slots: u64,
    /// Network cards that a server has room for.
    #[serde(default = "card_slots")]
    pub nic_slots: u64,
    /// Drives that a server has room for.
    #[serde(default = "card_slots")]
    pub ssd_slots: u64,
    /// Bits a second that the guests of one core send or receive.
    pub bits_per_vm_core: u64,
    /// The share of the traffic that is writes, which replicas multiply.
    #[serde(default = "third")]
    pub writes: Fraction,
    /// The drive of all plans; none if the rack has no drives.
    pub ssd: Option<String>,
}

fn dimm_slots() -> u64 {
    96
}

fn card_slots() -> u64 {
    8
}

fn third() -> Fraction {
    Fraction::of(1, 3).unwrap_or(Fraction::ALL)
}

/// Where the sidecores and drives of a rack are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Each host serves its own guests (Elvis).
    PerHost,
    /// IOhosts serve the guests of all VMhosts (vRIO).
    Pooled,
    /// As pooled, with drives in each VMhost as a cache.
    PooledWithCache,
}

/// One way to build the rack.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanForm {
    /// Its name.
    pub name: String,
    /// Its policy.
    pub policy: Policy,
    /// The share of the sidecores of the per-host policy that the pool has.
    #[serde(default = "whole")]
    pub sidecores: Fraction,
    /// The network card of hosts or VMhosts.
    pub nic: String,
    /// The network card of IOhosts; by default that of VMhosts.
    pub iohost_nic: Option<String>,
    /// The part of the needed Gbit/s that cards may lack, in thousandths.
    #[serde(default)]
    pub shortfall_permille: u64,
    /// Modules of memory in each host or VMhost; by default the cheapest that hold its memory.
    #[serde(default)]
    pub dimms: BTreeMap<String, u64>,
    /// Modules of memory in each IOhost.
    #[serde(default)]
    pub iohost_dimms: BTreeMap<String, u64>,
    /// Memory of an IOhost in GB, for the cheapest modules.
    #[serde(default = "iohost_memory")]
    pub iohost_memory_gb: u64,
    /// Drives: in each host, or in all IOhosts together (for one copy of the data).
    #[serde(default)]
    pub ssds: u64,
    /// Drives in each VMhost that are its cache.
    #[serde(default)]
    pub cache_ssds: u64,
    /// Copies of each volume, on different IOhosts.
    #[serde(default = "one")]
    pub replicas: u64,
    /// IOhosts beyond the needed ones.
    #[serde(default)]
    pub spare_iohosts: u64,
}

fn whole() -> Fraction {
    Fraction::ALL
}

fn iohost_memory() -> u64 {
    64
}

fn one() -> u64 {
    1
}

/// The price of power.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PowerForm {
    /// Years that the rack runs.
    pub years: u64,
    /// The price of a kWh in dollars, of six decimals at most.
    pub usd_per_kwh: UnitPrice,
    /// Power of the building for each unit of the rack's, in hundredths: 150 is 1.5.
    #[serde(default = "pue")]
    pub pue_percent: u64,
}

fn pue() -> u64 {
    100
}

/// `RACK.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RackForm {
    /// The title for a reader.
    pub title: String,
    /// A list of the program, by its name.
    pub prices: Option<String>,
    /// Parts beside the list's parts, or instead of them.
    #[serde(default)]
    pub part: BTreeMap<String, PartForm>,
    /// The hosts.
    pub hosts: HostsForm,
    /// The price of power; without it no plan has power.
    pub power: Option<PowerForm>,
    /// The plans; each later plan is compared with the first.
    pub plan: Vec<PlanForm>,
    /// The source of the list's prices.
    #[serde(skip)]
    pub source: String,
}

impl RackForm {
    /// Reads and checks a file. `name` is the file's in faults.
    ///
    /// # Errors
    /// When the text is not of this form, or a value cannot be used.
    pub fn read(name: &str, text: &str) -> Result<Self, PlanFault> {
        let mut form: Self = toml::from_str(text).map_err(|error| PlanFault::Form {
            file: name.to_owned(),
            cause: error.to_string().trim_end().to_owned(),
            example: "vrio plan example rack",
        })?;
        let mut sources = Vec::new();
        if let Some(wanted) = &form.prices {
            let list = price_list(wanted)?;
            sources.push(list.source);
            for (part, listed) in list.part {
                form.part.entry(part).or_insert(listed);
            }
        } else {
            sources.push(format!("{name}'s own prices"));
        }
        form.source = sources.join("; ");
        form.check()?;
        Ok(form)
    }

    /// A part by its name, of one kind.
    pub(crate) fn part_of(
        &self,
        at: &str,
        name: &str,
        kind: PartKind,
    ) -> Result<&PartForm, PlanFault> {
        // Another name would be printed as it is.
        named(at, name, NAME_MAX)?;
        match self.part.get(name) {
            Some(part) if part.kind == kind => Ok(part),
            Some(part) => {
                let cause = format!("part '{name}' is of the kind {:?}", part.kind);
                Err(key(at, cause, format!("name a part of the kind {kind:?}")))
            }
            None => {
                let of_kind = self.part.iter().filter(|(_, part)| part.kind == kind);
                let names: Vec<&str> = of_kind.map(|(name, _)| name.as_str()).collect();
                let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                let way_out = format!("add [part.{name}], or name one of: {known}");
                Err(key(at, format!("there is no part '{name}'"), way_out))
            }
        }
    }

    fn check(&self) -> Result<(), PlanFault> {
        within("the number of parts", self.part.len() as u64, 1, ENTRIES_MAX as u64)?;
        within("the number of [[plan]]", self.plan.len() as u64, 1, ENTRIES_MAX as u64)?;
        named("title", &self.title, NAME_MAX)?;
        for (name, part) in &self.part {
            named("the name of a [part]", name, NAME_MAX)?;
            let least = u64::from(part.kind != PartKind::Base);
            within(&format!("part.{name}.size"), part.size, least, SIZE_MAX)?;
            within(&format!("part.{name}.watts"), part.watts.unwrap_or(0), 0, WATTS_MAX)?;
        }
        if let Some(power) = &self.power {
            within("power.years", power.years, 1, YEARS_MAX)?;
            within("power.pue_percent", power.pue_percent, 100, 1000)?;
        }
        self.check_hosts()?;
        for (at, plan) in self.plan.iter().enumerate() {
            named(&format!("plan[{at}].name"), &plan.name, NAME_MAX)?;
            self.check_plan(&format!("plan[{at}] '{}'", plan.name), plan)?;
        }
        Ok(())
    }

    fn check_hosts(&self) -> Result<(), PlanFault> {
        let hosts = &self.hosts;
        within("hosts.servers", hosts.servers, 1, SERVERS_MAX)?;
        within("hosts.sockets", hosts.sockets, 1, 64)?;
        within("hosts.memory_gb", hosts.memory_gb, 1, SIZE_MAX)?;
        within("hosts.dimm_slots", hosts.dimm_slots, 1, DIMM_SLOTS_MAX)?;
        within("hosts.nic_slots", hosts.nic_slots, 1, PARTS_MAX)?;
        within("hosts.ssd_slots", hosts.ssd_slots, 0, PARTS_MAX)?;
        within("hosts.bits_per_vm_core", hosts.bits_per_vm_core, 0, BITS_MAX)?;
        self.part_of("hosts.base", &hosts.base, PartKind::Base)?;
        let cpu = self.part_of("hosts.cpu", &hosts.cpu, PartKind::Cpu)?;
        if let Some(ssd) = &hosts.ssd {
            self.part_of("hosts.ssd", ssd, PartKind::Ssd)?;
        }
        let cores = cpu.size * hosts.sockets;
        if !hosts.sidecores.is_part() || hosts.sidecores.up(cores) >= cores {
            let cause = format!("{} leaves no core to guests", hosts.sidecores);
            return Err(key("hosts.sidecores", cause, "give less than 1"));
        }
        if !hosts.writes.is_part() {
            let cause = format!("{} is more than all traffic", hosts.writes);
            return Err(key("hosts.writes", cause, "give 0 to 1"));
        }
        Ok(())
    }

    fn check_plan(&self, at: &str, plan: &PlanForm) -> Result<(), PlanFault> {
        self.part_of(&format!("{at}.nic"), &plan.nic, PartKind::Nic)?;
        if let Some(nic) = &plan.iohost_nic {
            self.part_of(&format!("{at}.iohost_nic"), nic, PartKind::Nic)?;
        }
        within(&format!("{at}.shortfall_permille"), plan.shortfall_permille, 0, 500)?;
        within(&format!("{at}.iohost_memory_gb"), plan.iohost_memory_gb, 1, SIZE_MAX)?;
        within(&format!("{at}.ssds"), plan.ssds, 0, SERVERS_MAX)?;
        within(&format!("{at}.cache_ssds"), plan.cache_ssds, 0, self.hosts.ssd_slots)?;
        within(&format!("{at}.replicas"), plan.replicas, 1, REPLICAS_MAX)?;
        within(&format!("{at}.spare_iohosts"), plan.spare_iohosts, 0, SERVERS_MAX)?;
        for (keys, dimms) in [("dimms", &plan.dimms), ("iohost_dimms", &plan.iohost_dimms)] {
            for (name, count) in dimms {
                named(&format!("{at}.{keys}"), name, NAME_MAX)?;
                let here = format!("{at}.{keys}.{name}");
                self.part_of(&here, name, PartKind::Dimm)?;
                within(&here, *count, 0, self.hosts.dimm_slots)?;
            }
        }
        if (plan.ssds > 0 || plan.cache_ssds > 0) && self.hosts.ssd.is_none() {
            return Err(key(format!("{at}.ssds"), "no drive is named", "set hosts.ssd"));
        }
        let is_pooled = plan.policy != Policy::PerHost;
        let pools = plan.replicas > 1 || plan.spare_iohosts > 0;
        if !is_pooled && pools {
            let cause = "replicas and spare IOhosts need IOhosts";
            return Err(key(at, cause, "set policy = \"pooled\""));
        }
        if (plan.policy == Policy::PooledWithCache) != (plan.cache_ssds > 0) {
            let cause = "cache_ssds and the policy disagree";
            let way_out =
                "set policy = \"pooled-with-cache\" and cache_ssds = 1 or more, or neither";
            return Err(key(at, cause, way_out));
        }
        Ok(())
    }
}

/// A list of the program.
fn price_list(wanted: &str) -> Result<PriceListForm, PlanFault> {
    named("prices", wanted, NAME_MAX)?;
    let names: Vec<&str> = PRICE_LISTS.iter().map(|(name, _)| *name).collect();
    let Some((_, text)) = PRICE_LISTS.iter().find(|(name, _)| *name == wanted) else {
        let way_out = format!("name one of: {}; or leave it out", names.join(", "));
        return Err(key("prices", format!("there is no list '{wanted}'"), way_out));
    };
    Ok(toml::from_str(text).unwrap_or_else(|error| panic!("the list {wanted}: {error}")))
}
