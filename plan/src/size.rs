//! Sizes: the fewest sidecores with which a load has a wanted p99, when each host serves its own
//! guests and when IOhosts serve those of a rack, by how much the guests' bursts coincide.
//!
//! The simulator decides. The search goes upwards from one: more IOhosts may make a p99 longer,
//! since each has fewer of the rack's drives, and large sizes take longer to simulate.

use serde::Serialize;

mod results;

pub use results::{SizeForm, size_results};

use crate::fault::{PlanFault, key, within};
use crate::money::{Fraction, grouped};
use crate::simulate::scenario::{Arrivals, ServedAt};
use crate::simulate::{Scenario, show::time, simulate_tail};
use crate::text::table;

/// Sidecores of one host that are tried.
pub const HOST_SIDECORES_MAX: u64 = 256;
/// Sidecores of a rack's IOhosts that are tried.
pub const POOL_SIDECORES_MAX: u64 = 4096;
/// Cards that are tried, in Gbit/s.
pub const CARDS_TRIED: [u64; 8] = [1, 10, 25, 40, 50, 100, 200, 400];
/// Correlations that are tried, in percent.
pub const CORRELATIONS_TRIED: [u64; 5] = [0, 25, 50, 75, 100];
/// The fewest requests that have a p99: ten of them take longer.
const REQUESTS_LEAST: u64 = 1000;

/// The IOhosts of a rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PoolSize {
    /// IOhosts, spare ones not included.
    pub iohosts: u64,
    /// Sidecores of all of them.
    pub sidecores: u64,
    /// Sidecores of all VMhosts, as the scenario has them.
    pub vmhost_sidecores: u64,
    /// The slowest card of an IOhost with which the p99 holds, in Gbit/s; none of those that are
    /// tried may do.
    pub card_gbit: Option<u64>,
    /// The p99 with the scenario's own card.
    pub p99_ns: u64,
}

/// The sizes for one correlation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SizeRow {
    /// The correlation, in percent.
    pub correlation_percent: u64,
    /// Sidecores of all hosts, when each serves its own guests; none if no number does.
    pub hosts_sidecores: Option<u64>,
    /// The IOhosts; none if no number does.
    pub pool: Option<PoolSize>,
    /// The pool's sidecores, with the VMhosts' sidecores, for a million of the hosts'.
    pub share_ppm: Option<u64>,
}

/// The sizes of one rack for a p99, by correlation.
///
/// # Errors
/// When the p99 is out of range, or the scenario is too short or too large.
pub fn size(scenario: &Scenario, p99_ns: u64) -> Result<Vec<SizeRow>, PlanFault> {
    within("--p99 in ns", p99_ns, 1, 3_600_000_000_000)?;
    let mut rack = scenario.clone();
    rack.hosts.count = rack.hosts_in_rack().min(rack.hosts.count);
    rack.death = None;
    rack.pool.spare = 0;
    let has_bursts = matches!(rack.load.arrivals, Arrivals::Bursts | Arrivals::Trace);
    let lanes = rack_lanes(&rack);
    let row = |percent: u64| {
        let mut rack = rack.clone();
        rack.load.correlation = Fraction::of(percent, 100).unwrap_or(Fraction::NONE);
        let mut search = SizeSearch { rack, lanes, wanted_ns: p99_ns, given: None };
        let hosts = search.hosts()?;
        let pool = search.pool()?;
        let share = |(hosts, pool): (u64, PoolSize)| {
            (pool.sidecores + pool.vmhost_sidecores) * 1_000_000 / hosts
        };
        Ok(SizeRow {
            correlation_percent: percent,
            hosts_sidecores: hosts,
            pool,
            share_ppm: hosts.zip(pool).map(share),
        })
    };
    // Without bursts the correlation changes nothing.
    let tried = if has_bursts { &CORRELATIONS_TRIED[..] } else { &CORRELATIONS_TRIED[..1] };
    tried.iter().copied().map(row).collect()
}

/// Lanes of all drives of the rack: both sides have the same drives.
fn rack_lanes(rack: &Scenario) -> u64 {
    let servers = match rack.served {
        ServedAt::Host => rack.hosts.count,
        ServedAt::Pool => rack.pool.iohosts,
    };
    rack.pool.device_lanes * servers
}

/// The most sidecores of an IOhost and the most IOhosts that are tried: further IOhosts would have
/// neither guests nor copies.
fn pool_most(rack: &Scenario) -> (u64, u64) {
    let (pool, hosts) = (&rack.pool, &rack.hosts);
    let each = pool.sidecores.min(POOL_SIDECORES_MAX / pool.replicas).max(1);
    let guests = rack.hosts_in_rack().min(hosts.count) * hosts.guests;
    let used = guests + pool.replicas - 1;
    (each, (POOL_SIDECORES_MAX / each).min(used).max(pool.replicas))
}

/// The search for the sizes of one rack under one load.
struct SizeSearch {
    rack: Scenario,
    lanes: u64,
    wanted_ns: u64,
    /// The requests of the guests, which are the same for each size; none until the first is
    /// simulated.
    given: Option<u64>,
}

impl SizeSearch {
    /// The p99, if it is no longer than the wanted one.
    fn p99(&mut self, sized: &Scenario) -> Result<Option<u64>, PlanFault> {
        sized.check_pool()?;
        let Some(tail) = simulate_tail(sized, self.wanted_ns, self.given)? else {
            return Ok(None);
        };
        // Too few sidecores make a closed load's requests few: then it is no fault of the scenario.
        if tail.requests < REQUESTS_LEAST && sized.load.arrivals != Arrivals::Closed {
            let cause = format!("{} requests have no p99", tail.requests);
            let way_out =
                format!("raise it or the load, for {REQUESTS_LEAST} requests after warm_up_ms");
            return Err(key("milliseconds", cause, way_out));
        }
        self.given = tail.given;
        let is_enough = tail.requests >= REQUESTS_LEAST;
        Ok(tail.p99_ns.filter(|p99_ns| is_enough && *p99_ns <= self.wanted_ns))
    }

    /// The fewest sidecores of all hosts.
    fn hosts(&mut self) -> Result<Option<u64>, PlanFault> {
        let mut rack = self.rack.clone();
        rack.served = ServedAt::Host;
        rack.pool.iohosts = 1;
        rack.pool.replicas = 1;
        rack.pool.device_lanes = self.lanes.div_ceil(rack.hosts.count);
        rack.pool.sidecores = HOST_SIDECORES_MAX;
        rack.check_pool()?;
        let found = fewest(HOST_SIDECORES_MAX, |sidecores| {
            rack.pool.sidecores = sidecores;
            Ok(self.p99(&rack)?.is_some())
        })?;
        Ok(found.map(|each| each * self.rack.hosts.count))
    }

    /// The fewest IOhosts of a rack, which have as many sidecores as the scenario's at most, and
    /// the fewest sidecores of them.
    ///
    /// More IOhosts may be slower: each has fewer of the rack's drives.
    fn pool(&mut self) -> Result<Option<PoolSize>, PlanFault> {
        let (each, most) = pool_most(&self.rack);
        let mut rack = self.rack.clone();
        rack.served = ServedAt::Pool;
        rack.pool.sidecores = each;
        let (least, lanes) = (rack.pool.replicas, self.lanes);
        let iohosts = fewest(most + 1 - least, |more| {
            rack.pool.iohosts = least + more - 1;
            rack.pool.device_lanes = lanes.div_ceil(rack.pool.iohosts);
            Ok(self.p99(&rack)?.is_some())
        })?;
        let Some(more) = iohosts else { return Ok(None) };
        rack.pool.iohosts = least + more - 1;
        rack.pool.device_lanes = lanes.div_ceil(rack.pool.iohosts);
        // The last number that is found to be enough is the fewest.
        let mut own = None;
        let sidecores = fewest(each, |sidecores| {
            rack.pool.sidecores = sidecores;
            let p99 = self.p99(&rack)?;
            own = p99.or(own);
            Ok(p99.is_some())
        })?;
        let (Some(sidecores), Some(p99_ns)) = (sidecores, own) else { return Ok(None) };
        rack.pool.sidecores = sidecores;
        let slowest = fewest(CARDS_TRIED.len() as u64, |card| {
            rack.network.iohost_gbit = CARDS_TRIED[card as usize - 1];
            Ok(self.p99(&rack)?.is_some())
        })?;
        Ok(Some(PoolSize {
            iohosts: rack.pool.iohosts,
            sidecores: rack.pool.iohosts * sidecores,
            vmhost_sidecores: rack.hosts.count * rack.hosts.sidecores,
            card_gbit: slowest.map(|card| CARDS_TRIED[card as usize - 1]),
            p99_ns,
        }))
    }
}

/// The least number up to `most` that is enough, of each number to 8 and then a quarter more at a
/// time, with halving below the first. Larger numbers need not be enough.
fn fewest(
    most: u64,
    mut is_enough: impl FnMut(u64) -> Result<bool, PlanFault>,
) -> Result<Option<u64>, PlanFault> {
    let (mut too_few, mut enough) = (0, 1);
    while !is_enough(enough)? {
        if enough >= most {
            return Ok(None);
        }
        (too_few, enough) = (enough, (enough + (enough / 4).max(1)).min(most));
    }
    while enough - too_few > 1 {
        let middle = too_few + (enough - too_few) / 2;
        if is_enough(middle)? {
            enough = middle;
        } else {
            too_few = middle;
        }
    }
    Ok(Some(enough))
}

/// The sizes as a table.
pub fn size_text(scenario: &Scenario, p99_ns: u64, rows: &[SizeRow]) -> String {
    let hosts = scenario.hosts_in_rack().min(scenario.hosts.count);
    let head = [
        "bursts in common",
        "hosts' sidecores",
        "IOhosts'",
        "VMhosts'",
        "share",
        "IOhosts",
        "card",
        "p99",
    ];
    let mut cells = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let none = || "-".to_owned();
        let pool = row.pool;
        cells.push(vec![
            format!("{} %", row.correlation_percent),
            row.hosts_sidecores.map_or_else(none, grouped),
            pool.map_or_else(none, |pool| grouped(pool.sidecores)),
            pool.map_or_else(none, |pool| grouped(pool.vmhost_sidecores)),
            row.share_ppm.map_or_else(none, |ppm| {
                let hundredths = (ppm + 5_000) / 10_000;
                format!("{}.{:02}", hundredths / 100, hundredths % 100)
            }),
            pool.map_or_else(none, |pool| grouped(pool.iohosts)),
            pool.and_then(|pool| pool.card_gbit).map_or_else(none, |gbit| format!("{gbit} Gbit/s")),
            pool.map_or_else(none, |pool| time(pool.p99_ns)),
        ]);
    }
    let mut text = format!(
        "{}\n{hosts} hosts of {} guests; the fewest sidecores with a p99 of {}\n\n{}",
        scenario.title,
        scenario.hosts.guests,
        time(p99_ns),
        table(&cells, 1),
    );
    if rows.len() == 1 {
        text += "The load has no bursts, so they have none in common.\n";
    }
    let stops = rows.iter().find(|row| row.share_ppm.is_some_and(|ppm| ppm >= 1_000_000));
    if let Some(row) = stops {
        let percent = row.correlation_percent;
        text += &format!("With {percent} % of the bursts in common, pooling saves no sidecore.\n");
    }
    let simulated_ns = scenario.milliseconds * 1_000_000;
    if let Some(trace) = scenario.load.playing.as_ref().filter(|it| it.length_ns > simulated_ns) {
        let (all, part) = (time(trace.length_ns), time(simulated_ns));
        text +=
            &format!("Of the trace's {all} each guest had {part}: correlations see other parts.\n");
    }
    text += &dashes_text(scenario, rows);
    if rows.iter().filter_map(|row| row.pool).any(|pool| pool.card_gbit.is_none()) {
        let most = CARDS_TRIED[CARDS_TRIED.len() - 1];
        text += &format!("A dash as the card: none up to {most} Gbit/s holds the p99.\n");
    }
    text
}

/// The sizes that were tried, if none of them holds the p99.
fn dashes_text(scenario: &Scenario, rows: &[SizeRow]) -> String {
    let mut tried = Vec::new();
    if rows.iter().any(|row| row.hosts_sidecores.is_none()) {
        tried.push(format!("up to {HOST_SIDECORES_MAX} sidecores of a host"));
    }
    if rows.iter().any(|row| row.pool.is_none()) {
        let (each, most) = pool_most(scenario);
        let (least, most, each) = (scenario.pool.replicas, grouped(most), grouped(each));
        tried.push(format!("{least} to {most} IOhosts of {each} sidecores each (pool.sidecores)"));
    }
    if tried.is_empty() {
        return String::new();
    }
    format!(
        "A dash: no size that was tried holds the p99. Tried:\n  {}\nEach number to 8 was tried, \
         and then a quarter more at a time. `vrio plan simulate` has the use of\neach station: if \
         the sidecores have time, another step takes too long.\n",
        tried.join("\n  "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three hosts with guests that are busy a quarter of the time.
    const BURSTS: &str = r#"
        title = "bursts"
        milliseconds = 60
        served = "pool"
        hosts = { count = 3, guests = 8 }
        load = { arrivals = "bursts", requests_per_second = 50_000, busy = "1/4",
                 burst_ms = 1, bytes = 4096 }
        pool = { sidecores = 16 }
        costs = { serve_ns = 4000 }
    "#;

    #[test]
    fn independent_bursts_need_fewer_sidecores_in_a_pool_and_common_ones_do_not() {
        let scenario = Scenario::read("test", BURSTS, &[]).unwrap();
        let rows = size(&scenario, 100_000).unwrap();
        let shares: Vec<u64> = rows.iter().map(|row| row.share_ppm.unwrap()).collect();
        assert!(shares[0] < 800_000, "{rows:?}");
        assert!(shares[4] > 900_000 && shares[4] <= 1_050_000, "{rows:?}");
        let text = size_text(&scenario, 100_000, &rows);
        assert!(text.contains("bursts in common"), "{text}");
    }

    #[test]
    fn a_p99_below_the_other_steps_is_for_no_number() {
        let set = [("costs.guest_ns".to_owned(), "200_000".to_owned())];
        let scenario = Scenario::read("test", BURSTS, &set).unwrap();
        let rows = size(&scenario, 100_000).unwrap();
        assert_eq!((rows[0].hosts_sidecores, rows[0].pool), (None, None));
        assert!(size_text(&scenario, 100_000, &rows).contains("A dash"));
        assert!(size(&scenario, 0).is_err());
    }

    #[test]
    fn the_fewest_are_found() {
        for wanted in 1..=300 {
            let found = fewest(300, |number| Ok(number >= wanted));
            assert_eq!(found, Ok(Some(wanted)));
        }
        assert_eq!(fewest(300, |_| Ok(false)), Ok(None));
        // Larger numbers are not enough again.
        for (first, last) in [(1, 1), (5, 6), (40, 49)] {
            let found = fewest(300, |number| Ok((first..=last).contains(&number)));
            assert_eq!(found, Ok(Some(first)), "{first} to {last}");
        }
    }
}
