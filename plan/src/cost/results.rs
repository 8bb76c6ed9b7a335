//! Bills and searches in the form of results.

use ::results::{Axis, Empty, Measurement, PlannedResults, Point, Quantity, Unit};
use serde::Serialize;

use super::bill::{Bill, RackComparison};
use super::form::RackForm;
use super::search::{SERVERS_TRIED, SHARES_TRIED, SearchCell};
use super::show::alike_text;
use crate::money::Cents;
use crate::planned::{categories, measurement, percent, results, series, usd, words};

/// Parts of a bill that are told apart, the dearest first: a bar of more parts has no colours left.
const PARTS_SHOWN: usize = 7;
/// The shares with a line of prices for each host; the search has further shares.
const SHARES_DRAWN: [u64; 4] = [30, 50, 70, 100];

/// The cells of a search, as JSON has them.
#[derive(Debug, Serialize)]
pub struct SearchForm<'a> {
    /// The rack's title.
    pub title: &'a str,
    /// The source of the prices.
    pub source: &'a str,
    /// All sizes and shares.
    pub cells: &'a [SearchCell],
}

/// The price of each part in each bill, the dearest part first.
fn parts(bills: &[Bill]) -> Vec<(String, Vec<u64>)> {
    let mut found: Vec<(String, Vec<u64>)> = Vec::new();
    for (at, bill) in bills.iter().enumerate() {
        for server in &bill.servers {
            for part in &server.bill {
                let cents = part.price_cents.0.saturating_mul(server.build.count);
                let place = found.iter().position(|(name, _)| *name == part.part);
                let place = place.unwrap_or_else(|| {
                    found.push((part.part.clone(), vec![0; bills.len()]));
                    found.len() - 1
                });
                let sum = &mut found[place].1[at];
                *sum = sum.saturating_add(cents);
            }
        }
    }
    let all =
        |(_, of): &(String, Vec<u64>)| of.iter().fold(0_u64, |sum, it| sum.saturating_add(*it));
    found.sort_by_key(|part| std::cmp::Reverse(all(part)));
    if found.len() > PARTS_SHOWN {
        let rest = found.split_off(PARTS_SHOWN - 1);
        let sum = |at: usize| rest.iter().fold(0_u64, |sum, (_, of)| sum.saturating_add(of[at]));
        let name = format!("{} other parts", rest.len());
        found.push((name, (0..bills.len()).map(sum).collect()));
    }
    found
}

/// The bills of a rack's plans, part by part, and their changes from the first.
pub fn comparison_results(comparison: &RackComparison) -> PlannedResults {
    let RackComparison { title, source, bills, years, .. } = comparison;
    let labels = categories(bills.iter().map(|bill| bill.name.as_str()));
    let mut it = measurement("plan_cost", title, None, &format!("prices: {source}"));
    const PRICE: (Quantity, Unit) = (Quantity::PartPrice, Unit::Usd);
    let point = |at: usize, y: f64| Point::of_category(at, &labels[at], y);
    for (name, of_bills) in parts(bills) {
        let priced = of_bills.iter().enumerate().filter(|(_, cents)| **cents > 0);
        let points = priced.map(|(at, cents)| point(at, usd(Cents(*cents))));
        it.series.push(series(&name, PRICE, Axis::CATEGORY, points.collect()));
    }
    if let Some(years) = years {
        let name = format!("power of {years} years");
        let known = bills.iter().enumerate().filter_map(|(at, bill)| Some((at, bill.power_cents?)));
        let points: Vec<Point> = known.map(|(at, cents)| point(at, usd(cents))).collect();
        for (bill, label) in
            bills.iter().zip(&labels).filter(|(bill, _)| bill.power_cents.is_none())
        {
            let (what, parts) = (format!("{name}, {label}"), bill.without_watts.join(", "));
            it.empty.push(Empty { what, why: format!("the watts of {parts} are not known") });
        }
        it.series.push(series(&name, PRICE, Axis::CATEGORY, points));
    }
    let changes = [
        ("parts", &comparison.change_of_parts),
        ("parts and power", &comparison.change_with_power),
    ];
    for (name, changes) in changes {
        let others = changes.iter().enumerate().skip(1);
        let known = others.filter_map(|(at, change)| Some(point(at, percent((*change)?))));
        let quantity = (Quantity::PriceChange, Unit::Percent);
        it.series.push(series(name, quantity, Axis::CATEGORY, known.collect()));
    }
    it.notes.push(format!("Changes are from “{}”: below 0 is cheaper.", labels[0]));
    results(title, vec![it])
}

/// The search: changes of price, and prices for each host, without and with a spare IOhost.
pub fn search_results(rack: &RackForm, cells: &[SearchCell]) -> PlannedResults {
    let of = |spare| of_spares(rack, cells, spare);
    results(&rack.title, vec![of(0), of(1)])
}

fn of_spares(rack: &RackForm, cells: &[SearchCell], spare: u64) -> Measurement {
    let part = if spare == 0 { "no spare IOhost" } else { "one spare IOhost" };
    let source = format!("prices: {}", rack.source);
    let mut it = measurement("plan_search", &rack.title, Some(part), &source);
    it.setup.insert("spare_iohosts".to_owned(), spare.to_string());
    let own: Vec<&SearchCell> = cells.iter().filter(|it| it.spare_iohosts == spare).collect();
    let name = |share: u64| format!("pool, {share} %");
    let of_share = |share| own.iter().filter(move |it| it.sidecores_percent == share);
    for share in SHARES_TRIED {
        let point = |it: &&SearchCell| Some(Point::new(it.servers as f64, percent(it.change?)));
        let points = of_share(share).filter_map(point).collect();
        let quantity = (Quantity::PriceChange, Unit::Percent);
        it.series.push(series(&name(share), quantity, Axis::SERVERS, points));
    }
    const EACH: (Quantity, Unit) = (Quantity::HostPrice, Unit::Usd);
    let each = |servers: u64, cents: Cents| Point::new(servers as f64, usd(cents) / servers as f64);
    let alone = of_share(SHARES_TRIED[0]).map(|it| each(it.servers, it.per_host_cents)).collect();
    it.series.push(series("each host for itself", EACH, Axis::SERVERS, alone));
    for share in SHARES_DRAWN {
        let priced = |it: &&SearchCell| Some(each(it.servers, it.pooled_cents?));
        let points = of_share(share).filter_map(priced).collect();
        it.series.push(series(&name(share), EACH, Axis::SERVERS, points));
    }
    it.notes.push(format!(
        "Racks of {} to {} hosts that serve their own guests, beside a pool for the same guests; \
         “pool, 50 %” has half of the sidecores that these hosts have.",
        SERVERS_TRIED[0],
        SERVERS_TRIED[SERVERS_TRIED.len() - 1],
    ));
    let is_powered = cells.iter().all(|it| it.with_power);
    let sum = match is_powered {
        true => "Prices are of parts and power.",
        false => "Prices are of parts alone: the rack has no power, or a part has no watts.",
    };
    it.notes.push(sum.to_owned());
    it.notes.extend(alike(cells, spare));
    if own.iter().any(|it| it.change.is_none()) {
        it.notes.push("No figure: the parts do not fit into the servers.".to_owned());
    }
    it
}

/// The sizes at which each share has the same price, as a sentence.
fn alike(cells: &[SearchCell], spare: u64) -> Option<String> {
    let text = alike_text(cells, spare);
    let (head, needs) = text.split_once('\n')?;
    let needs: Vec<&str> = needs.lines().map(str::trim).collect();
    Some(words(&format!("{head} {}.", needs.join("; "))))
}

#[cfg(test)]
mod tests {
    use super::super::{compare, search};
    use super::*;
    use crate::cost::RACKS;

    fn rack(name: &str) -> RackForm {
        let (_, text) = RACKS.iter().find(|(known, _)| *known == name).unwrap();
        RackForm::read(name, text).unwrap()
    }

    #[test]
    fn parts_and_power_add_up_to_the_bill() {
        let comparison = compare(&rack("rack")).unwrap();
        let found = comparison_results(&comparison);
        found.check().unwrap();
        let [it] = &found.measurements[..] else { panic!("{found:?}") };
        for (at, bill) in comparison.bills.iter().enumerate() {
            let of_bill = it.series.iter().filter(|series| series.quantity == Quantity::PartPrice);
            let points = of_bill.flat_map(|series| &series.points);
            let sum: f64 = points.filter(|point| point.x == at as f64).map(|point| point.y).sum();
            let whole = usd(bill.cost().unwrap());
            assert!((sum - whole).abs() < 0.005, "{}: {sum} {whole}", bill.name);
        }
        let parts = it.series.iter().filter(|series| series.quantity == Quantity::PartPrice);
        assert!(parts.count() <= PARTS_SHOWN + 1);
        assert!(it.source.as_ref().unwrap().contains("PLACEHOLDER"), "{:?}", it.source);
    }

    #[test]
    fn power_that_is_not_known_is_empty_with_its_reason() {
        let text = RACKS.iter().find(|(name, _)| *name == "rack").unwrap().1;
        let text = text.replacen("iohost_nic = \"nic-200g-dp\"", "iohost_nic = \"nic-mine\"", 1);
        let rack = RackForm::read("rack", &text.replace("watts = 15 ", "# ")).unwrap();
        let found = comparison_results(&compare(&rack).unwrap());
        found.check().unwrap();
        let [empty] = &found.measurements[0].empty[..] else { panic!("{found:?}") };
        assert_eq!(empty.what, "power of 5 years, pooled");
        assert_eq!(empty.why, "the watts of nic-mine are not known");
    }

    #[test]
    fn a_search_has_a_measurement_with_and_one_without_a_spare() {
        let rack = rack("r930-3");
        let cells = search(&rack).unwrap();
        let found = search_results(&rack, &cells);
        found.check().unwrap();
        assert_eq!(found.measurements.len(), 2);
        for (spare, it) in found.measurements.iter().enumerate() {
            let changes = it.series.iter().filter(|it| it.quantity == Quantity::PriceChange);
            assert_eq!(changes.clone().count(), SHARES_TRIED.len());
            let half = changes.clone().find(|it| it.name == "pool, 50 %").unwrap();
            let of_three = half.points.iter().find(|point| point.x == 3.0).unwrap();
            let cell = cells.iter().find(|cell| {
                let place = (cell.servers, cell.sidecores_percent, cell.spare_iohosts);
                place == (3, 50, spare as u64)
            });
            assert_eq!(of_three.y, percent(cell.unwrap().change.unwrap()));
            assert!(!it.notes.iter().any(|note| note.starts_with("The same price")), "{it:?}");
            let lines = it.series.iter().filter(|it| it.quantity == Quantity::HostPrice);
            assert_eq!(lines.count(), 1 + SHARES_DRAWN.len());
        }
    }

    #[test]
    fn the_need_that_decides_is_a_note() {
        let rack = rack("rack");
        let found = search_results(&rack, &search(&rack).unwrap());
        let note = found.measurements[0].notes.iter().find(|it| it.starts_with("The same price"));
        let note = note.unwrap();
        assert!(note.contains("2, 3, 4 servers; slots for drives") && note.ends_with("servers."));
    }
}
