//! The search for the racks in which pooling pays: all sizes and all shares of the sidecores, with
//! and without a spare IOhost.

use serde::Serialize;

use super::bill::{Bill, bill};
use super::build::PoolNeed;
use super::form::{Policy, RackForm};
use crate::fault::{PlanFault, key};
use crate::money::{Cents, Fraction, change};

/// The sizes that are tried, in servers: a rack has no more than 48 of one unit.
pub const SERVERS_TRIED: [u64; 14] = [2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48];
/// The shares of the sidecores that are tried, in percent.
pub const SHARES_TRIED: [u64; 8] = [30, 40, 45, 50, 57, 70, 85, 100];

/// One rack of the search.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SearchCell {
    /// Servers when each serves its own guests.
    pub servers: u64,
    /// The share of their sidecores that the pool has, in percent.
    pub sidecores_percent: u64,
    /// Spare IOhosts.
    pub spare_iohosts: u64,
    /// Whether prices have the power of the rack's years: it is known of each rack then.
    pub with_power: bool,
    /// The price when each host serves its own guests.
    pub per_host_cents: Cents,
    /// The price of the pool; none if its parts do not fit into its servers.
    pub pooled_cents: Option<Cents>,
    /// The change of price, in hundredths of a percent: below 0, pooling pays.
    pub change: Option<i64>,
    /// The need that decides how many IOhosts the pool has, if it has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<PoolNeed>,
}

/// Tries all sizes and shares, with the parts of the rack's first per-host plan and of its first
/// pooled plan. All servers have the cheapest modules that hold their memory, and drives grow with
/// the rack.
///
/// # Errors
/// When the rack has no plan of each policy, or its hosts cannot be built.
pub fn search(rack: &RackForm) -> Result<Vec<SearchCell>, PlanFault> {
    let first = |is_pooled: bool| {
        let mut plans = rack.plan.iter();
        plans.find(|plan| (plan.policy != Policy::PerHost) == is_pooled).cloned()
    };
    let (Some(mut own), Some(mut pooled)) = (first(false), first(true)) else {
        let way_out = "add a [[plan]] with policy = \"per-host\" and one with \"pooled\"";
        return Err(key("plan", "the search compares two policies", way_out));
    };
    for plan in [&mut own, &mut pooled] {
        plan.dimms.clear();
        plan.iohost_dimms.clear();
    }
    let drives = Fraction::of(pooled.ssds, rack.hosts.servers).unwrap_or(Fraction::NONE);
    let mut rack = rack.clone();
    let mut bills = Vec::new();
    for spare_iohosts in [0, 1] {
        for servers in SERVERS_TRIED {
            rack.hosts.servers = servers;
            pooled.ssds = drives.up(servers);
            let per_host = bill(&rack, &own)?;
            for sidecores_percent in SHARES_TRIED {
                pooled.spare_iohosts = spare_iohosts;
                pooled.sidecores = Fraction::of(sidecores_percent, 100).unwrap_or(Fraction::ALL);
                let place = (servers, sidecores_percent, spare_iohosts);
                bills.push((place, per_host.clone(), bill(&rack, &pooled).ok()));
            }
        }
    }
    // A price with power beside one without would compare nothing.
    let is_known = |bill: &Bill| bill.power_cents.is_some();
    let with_power =
        bills.iter().all(|(_, own, pool)| is_known(own) && pool.as_ref().is_none_or(is_known));
    let price = |bill: &Bill| match bill.cost() {
        Some(cost) if with_power => cost,
        _ => bill.total_cents,
    };
    let cell = |(place, own, pool): (_, Bill, Option<Bill>)| {
        let (servers, sidecores_percent, spare_iohosts) = place;
        let (per_host_cents, pooled_cents) = (price(&own), pool.as_ref().map(&price));
        let needs = pool.iter().flat_map(|pool| &pool.servers);
        SearchCell {
            servers,
            sidecores_percent,
            spare_iohosts,
            with_power,
            per_host_cents,
            pooled_cents,
            change: pooled_cents.and_then(|pooled| change(per_host_cents, pooled)),
            decided_by: needs.filter_map(|server| server.build.decided_by).next(),
        }
    };
    Ok(bills.into_iter().map(cell).collect())
}

#[cfg(test)]
mod tests {
    use super::super::shipped::RACKS;
    use super::*;

    #[test]
    fn a_small_rack_does_not_pay_with_a_spare_and_a_large_one_does() {
        let rack = RackForm::read("r930-3", RACKS[0].1).unwrap();
        let cells = search(&rack).unwrap();
        let at = |servers, share, spare| {
            let is_it = |cell: &&SearchCell| {
                let place = (cell.servers, cell.sidecores_percent, cell.spare_iohosts);
                place == (servers, share, spare)
            };
            cells.iter().find(is_it).unwrap().change.unwrap()
        };
        assert!(at(3, 50, 0) < -900 && at(3, 50, 1) > 800, "{} {}", at(3, 50, 0), at(3, 50, 1));
        assert!(at(24, 50, 1) < 0, "{}", at(24, 50, 1));
        assert!(at(6, 30, 0) < at(6, 100, 0));
    }

    #[test]
    fn a_rack_without_two_policies_is_refused() {
        let mut rack = RackForm::read("r930-3", RACKS[0].1).unwrap();
        rack.plan.truncate(1);
        assert!(search(&rack).unwrap_err().to_string().contains("[[plan]]"));
    }
}
