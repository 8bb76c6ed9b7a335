//! Sizes: the fewest sidecores with which a load has a wanted p99, when each host serves its own
//! guests and when IOhosts serve those of a rack, by how much the guests' bursts coincide.
//!
//! The simulator decides. More sidecores never make a p99 longer, apart from the noise of the
//! random times, so the fewest are found by doubling and halving.

use serde::Serialize;

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
        let hosts = hosts_sidecores(&rack, lanes, p99_ns)?.map(|each| each * rack.hosts.count);
        let pool = pool_size(&rack, lanes, p99_ns)?;
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

/// The p99, if it is no longer than the wanted one.
fn p99(scenario: &Scenario, wanted_ns: u64) -> Result<Option<u64>, PlanFault> {
    scenario.check_pool()?;
    let tail = simulate_tail(scenario, wanted_ns)?;
    // Too few sidecores make a closed load's requests few: then it is no fault of the scenario.
    if tail.requests < REQUESTS_LEAST && scenario.load.arrivals != Arrivals::Closed {
        let cause = format!("{} requests have no p99", tail.requests);
        let way_out =
            format!("raise it or the load, for {REQUESTS_LEAST} requests after warm_up_ms");
        return Err(key("milliseconds", cause, way_out));
    }
    let is_enough = tail.requests >= REQUESTS_LEAST;
    Ok(tail.p99_ns.filter(|p99_ns| is_enough && *p99_ns <= wanted_ns))
}

/// The fewest sidecores of a host.
fn hosts_sidecores(rack: &Scenario, lanes: u64, p99_ns: u64) -> Result<Option<u64>, PlanFault> {
    let mut rack = rack.clone();
    rack.served = ServedAt::Host;
    rack.pool.iohosts = 1;
    rack.pool.replicas = 1;
    rack.pool.device_lanes = lanes.div_ceil(rack.hosts.count);
    fewest(HOST_SIDECORES_MAX, |sidecores| {
        rack.pool.sidecores = sidecores;
        Ok(p99(&rack, p99_ns)?.is_some())
    })
}

/// The fewest sidecores of a rack's IOhosts, which have as many as the scenario's at most.
fn pool_size(rack: &Scenario, lanes: u64, p99_ns: u64) -> Result<Option<PoolSize>, PlanFault> {
    let mut rack = rack.clone();
    rack.served = ServedAt::Pool;
    let most = rack.pool.sidecores;
    let with = |rack: &mut Scenario, sidecores: u64| {
        rack.pool.iohosts = sidecores.div_ceil(most).max(rack.pool.replicas);
        rack.pool.sidecores = sidecores.div_ceil(rack.pool.iohosts);
        rack.pool.device_lanes = lanes.div_ceil(rack.pool.iohosts);
    };
    let found = fewest(POOL_SIDECORES_MAX, |sidecores| {
        with(&mut rack, sidecores);
        Ok(p99(&rack, p99_ns)?.is_some())
    })?;
    let Some(found) = found else { return Ok(None) };
    with(&mut rack, found);
    let Some(own) = p99(&rack, p99_ns)? else { return Ok(None) };
    let (iohosts, sidecores) = (rack.pool.iohosts, rack.pool.iohosts * rack.pool.sidecores);
    let slowest = fewest(CARDS_TRIED.len() as u64, |card| {
        rack.network.iohost_gbit = CARDS_TRIED[card as usize - 1];
        Ok(p99(&rack, p99_ns)?.is_some())
    })?;
    let card_gbit = slowest.map(|card| CARDS_TRIED[card as usize - 1]);
    let vmhost_sidecores = rack.hosts.count * rack.hosts.sidecores;
    Ok(Some(PoolSize { iohosts, sidecores, vmhost_sidecores, card_gbit, p99_ns: own }))
}

/// The least number up to `most` that is enough.
fn fewest(
    most: u64,
    mut is_enough: impl FnMut(u64) -> Result<bool, PlanFault>,
) -> Result<Option<u64>, PlanFault> {
    // A p99 that no number holds is told by one try.
    if !is_enough(most)? {
        return Ok(None);
    }
    let mut enough = 1;
    while enough < most && !is_enough(enough)? {
        enough = (enough * 2).min(most);
    }
    let mut too_few = enough / 2;
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
    if rows.iter().any(|row| row.hosts_sidecores.is_none() || row.pool.is_none()) {
        text += &format!(
            "A dash: no number of sidecores does, up to {HOST_SIDECORES_MAX} of a host and \
             {} of the IOhosts. The other\nsteps take longer than the p99, or a guest needs more \
             sidecores than an IOhost has (pool.sidecores).\n",
            grouped(POOL_SIDECORES_MAX),
        );
    }
    if rows.iter().filter_map(|row| row.pool).any(|pool| pool.card_gbit.is_none()) {
        let most = CARDS_TRIED[CARDS_TRIED.len() - 1];
        text += &format!("A dash as the card: none up to {most} Gbit/s holds the p99.\n");
    }
    text
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
    }
}
