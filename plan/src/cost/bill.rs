//! Bills: the parts of a plan with their prices, its total and its power, and two plans compared.

use serde::Serialize;

use super::build::ServerBuild;
use super::form::{PlanForm, Policy, PowerForm, RackForm};
use crate::fault::PlanFault;
use crate::money::{Cents, change};

/// Hours of a year, leap years included.
const HOURS_PER_YEAR: u64 = 8766;
/// Millionths of a dollar in a cent.
const MILLIONTHS_PER_CENT: u128 = 10_000;

/// The bill of one plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bill {
    /// The plan.
    pub name: String,
    /// Its policy.
    pub policy: Policy,
    /// Its servers.
    pub servers: Vec<ServerBill>,
    /// The price of all parts.
    pub total_cents: Cents,
    /// Sidecores of all servers, without the spare ones.
    pub sidecores: u64,
    /// Watts under load, if each part's are known.
    pub watts: Option<u64>,
    /// The parts without known watts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without_watts: Vec<String>,
    /// The price of power over the years.
    pub power_cents: Option<Cents>,
}

impl Bill {
    /// Parts and power; none if the power is not known.
    pub fn cost(&self) -> Option<Cents> {
        let power = self.power_cents?;
        Some(Cents(self.total_cents.0.saturating_add(power.0)))
    }
}

/// The bill of servers of one build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ServerBill {
    /// The servers.
    #[serde(flatten)]
    pub build: ServerBuild,
    /// The parts of one server, priced.
    pub bill: Vec<BilledPart>,
    /// The price of one server.
    pub price_cents: Cents,
}

/// Parts of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BilledPart {
    /// The part.
    pub part: String,
    /// The number of them in one server.
    pub count: u64,
    /// The price of one.
    pub each_cents: Cents,
    /// The price of all of them in one server.
    pub price_cents: Cents,
}

/// All plans of a rack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RackComparison {
    /// The rack's title.
    pub title: String,
    /// The source of the prices.
    pub source: String,
    /// The bills, in the order of the file.
    pub bills: Vec<Bill>,
    /// The change of each bill's parts from the first, in hundredths of a percent.
    pub change_of_parts: Vec<Option<i64>>,
    /// The same with power, where both are known.
    pub change_with_power: Vec<Option<i64>>,
    /// Years of power.
    pub years: Option<u64>,
}

/// Makes the bills of all plans of a rack.
///
/// # Errors
/// When a plan's parts do not fit into its servers, or a sum is too large.
pub fn compare(rack: &RackForm) -> Result<RackComparison, PlanFault> {
    let bills: Result<Vec<Bill>, _> = rack.plan.iter().map(|plan| bill(rack, plan)).collect();
    let bills = bills?;
    let first = &bills[0];
    let parts = bills.iter().map(|it| change(first.total_cents, it.total_cents)).collect();
    let with_power = |it: &Bill| change(first.cost()?, it.cost()?);
    Ok(RackComparison {
        title: rack.title.clone(),
        source: rack.source.clone(),
        change_of_parts: parts,
        change_with_power: bills.iter().map(with_power).collect(),
        years: rack.power.as_ref().map(|power| power.years),
        bills,
    })
}

/// The bill of one plan.
pub(super) fn bill(rack: &RackForm, plan: &PlanForm) -> Result<Bill, PlanFault> {
    let servers: Result<Vec<ServerBill>, _> =
        rack.servers(plan)?.into_iter().map(|build| server_bill(rack, build)).collect();
    let servers = servers?;
    let mut total = 0_u64;
    let mut without_watts = Vec::new();
    let mut watts = 0_u64;
    for server in &servers {
        total = added(total, server.price_cents.0, server.build.count)?;
        for (name, count) in &server.build.parts {
            match rack.part.get(name).and_then(|part| part.watts) {
                Some(each) => watts = added(watts, each * count, server.build.count)?,
                None if without_watts.contains(name) => {}
                None => without_watts.push(name.clone()),
            }
        }
    }
    let watts = without_watts.is_empty().then_some(watts);
    let power_cents = match (&rack.power, watts) {
        (Some(power), Some(watts)) => Some(power_price(power, watts)?),
        _ => None,
    };
    let serving = |server: &ServerBill| {
        let spare = if server.build.role == "IOhost" { plan.spare_iohosts } else { 0 };
        server.build.sidecores * (server.build.count - spare)
    };
    Ok(Bill {
        name: plan.name.clone(),
        policy: plan.policy,
        sidecores: servers.iter().map(serving).sum(),
        servers,
        total_cents: Cents(total),
        watts,
        without_watts,
        power_cents,
    })
}

fn server_bill(rack: &RackForm, build: ServerBuild) -> Result<ServerBill, PlanFault> {
    let mut bill = Vec::new();
    let mut price = 0;
    for (name, count) in &build.parts {
        let Some(part) = rack.part.get(name) else { continue };
        let of_all = added(0, part.price_usd.0, *count)?;
        price = added(price, part.price_usd.0, *count)?;
        bill.push(BilledPart {
            part: name.clone(),
            count: *count,
            each_cents: part.price_usd,
            price_cents: Cents(of_all),
        });
    }
    Ok(ServerBill { build, bill, price_cents: Cents(price) })
}

/// `sum + each * count`, if it can be counted.
fn added(sum: u64, each: u64, count: u64) -> Result<u64, PlanFault> {
    let more = each.checked_mul(count);
    more.and_then(|more| sum.checked_add(more)).ok_or(PlanFault::Overflow { sum: "a bill" })
}

fn power_price(power: &PowerForm, watts: u64) -> Result<Cents, PlanFault> {
    let watt_hours = u128::from(watts) * u128::from(HOURS_PER_YEAR * power.years);
    let of_building = watt_hours * u128::from(power.pue_percent) / 100;
    let cents =
        of_building * u128::from(power.usd_per_kwh.millionths()) / 1000 / MILLIONTHS_PER_CENT;
    let cents = u64::try_from(cents).ok();
    cents.map(Cents).ok_or(PlanFault::Overflow { sum: "the price of power" })
}
