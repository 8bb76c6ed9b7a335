//! Bills of racks, and hostile racks.

use super::*;
use crate::fault::PlanFault;

fn rack(from: &str, change: &[(&str, &str)]) -> Result<RackComparison, PlanFault> {
    let mut text = from.to_owned();
    for (old, new) in change {
        assert!(text.contains(old), "the rack has no {old}");
        text = text.replacen(old, new, 1);
    }
    compare(&RackForm::read("test", &text)?)
}

const SLIDES: &str = RACKS[0].1;
const EXAMPLE: &str = RACKS[2].1;

#[test]
fn the_slides_servers_have_the_parts_of_the_slides() {
    let compared = rack(SLIDES, &[]).unwrap();
    let [elvis, vrio, spare] = compared.bills.as_slice() else { panic!("{compared:?}") };
    let light = &vrio.servers[1];
    let count = |part: &str| light.build.parts.get(part).copied();
    assert_eq!(count("cpu-18-core"), Some(2));
    assert_eq!(count("nic-40g-dp"), Some(2));
    assert_eq!((elvis.sidecores, vrio.sidecores, spare.sidecores), (72, 36, 36));
    assert_eq!(elvis.total_cents.to_string(), "$133,395");
    assert_eq!(vrio.total_cents.to_string(), "$120,025");
    let text = comparison_text(&compared);
    assert!(text.contains("'vRIO, spare IOhost' does not pay"), "{text}");
    assert!(!text.contains("'vRIO' does not pay"), "{text}");
}

/// The slides' modules are not the cheapest: a VMhost's cost $71 more, an IOhost's $284.
#[test]
fn the_cheapest_memory_is_found() {
    let named = rack(SLIDES, &[]).unwrap();
    let vmhost_dimms = "dimms = { dram-8gb = 2, dram-16gb = 26 }\niohost_dimms = { dram-8gb = 8 }";
    let cheapest = rack(SLIDES, &[(vmhost_dimms, "")]).unwrap();
    let saved = |server: usize| {
        let price = |compared: &RackComparison| compared.bills[1].servers[server].price_cents.0;
        price(&named) - price(&cheapest)
    };
    assert_eq!((saved(0), saved(1)), (7100, 28_400));
}

#[test]
fn copies_and_caches_add_their_parts_and_power_its_price() {
    let compared = rack(EXAMPLE, &[]).unwrap();
    let drives = |plan: usize, server: usize| {
        let build = &compared.bills[plan].servers[server].build;
        build.count * build.parts.get("nvme-7680gb").copied().unwrap_or(0)
    };
    assert_eq!(drives(0, 0), 64);
    assert_eq!((drives(1, 0), drives(1, 1)), (0, 32));
    assert_eq!(drives(2, 1), 64);
    assert_eq!((drives(3, 0), drives(3, 1)), (14, 40));
    let own = &compared.bills[0];
    // 120 + 2 x 250 + 8 x 6 + 15 + 4 x 15 W and a card more, in 16 servers.
    let each = own.watts.unwrap() / 16;
    assert_eq!(each, own.watts.unwrap().div_ceil(16));
    let kwh = own.watts.unwrap() as f64 / 1000.0 * 8766.0 * 5.0;
    let dollars = own.power_cents.unwrap().0 as f64 / 100.0;
    assert!((dollars - kwh * 1.5 * 0.20).abs() < 0.02, "{dollars}");
}

#[test]
fn a_part_without_watts_leaves_the_plan_without_power() {
    let compared = rack(
        EXAMPLE,
        &[
            ("nic = \"nic-25g-dp\"", "nic = \"x\""),
            ("[hosts]", "[part.x]\nkind = \"nic\"\nprice_usd = 1\nsize = 100\n[hosts]"),
        ],
    );
    let compared = compared.unwrap();
    assert_eq!(compared.bills[0].power_cents, None);
    assert_eq!(compared.change_with_power, [None; 4]);
    assert!(comparison_text(&compared).contains("give watts to x"));
}

#[test]
fn hostile_racks_are_named_faults() {
    for (old, new, words) in [
        ("servers = 16", "servers = 0", "hosts.servers"),
        ("servers = 16", "servers = -4", "invalid value"),
        ("servers = 16", "servers = 99999999999999999999", "servers"),
        ("servers = 16", "servers = 1e3", "invalid type"),
        ("servers = 16", "server = 16", "unknown field"),
        ("sidecores = \"1/8\"", "sidecores = 1", "leaves no core"),
        ("sidecores = \"1/8\"", "sidecores = nan", "no share"),
        ("sidecores = \"1/8\"", "sidecores = \"1/0\"", "no share"),
        ("memory_gb = 512", "memory_gb = 5000", "do not fit into 32 slots"),
        ("base = \"server-2u\"", "base = \"moon\"", "name one of: server-2u"),
        ("base = \"server-2u\"", "base = \"nic-mine\"", "is of the kind Nic"),
        ("prices = \"placeholder\"", "prices = \"mine\"", "slides-2016, placeholder"),
        ("price_usd = 450.50", "price_usd = nan", "a price in dollars"),
        ("price_usd = 450.50", "price_usd = 450.505", "a price in dollars"),
        ("size = 50", "size = 0", "part.nic-mine.size"),
        ("years = 5", "years = 0", "power.years"),
        ("bits_per_vm_core = 500_000_000", "bits_per_vm_core = 10_000_000_000_000", "slots"),
        ("ssds = 4 ", "ssds = 9 ", "ssds"),
        ("cache_ssds = 1 ", "cache_ssds = 0 ", "disagree"),
        ("replicas = 2 ", "replicas = 17 ", "replicas"),
        ("policy = \"pooled\"", "policy = \"per-host\"\nspare_iohosts = 1", "need IOhosts"),
        ("spare_iohosts = 1", "spare_iohosts = 9000000", "spare_iohosts"),
        ("title =", "titles =", "vrio plan example rack"),
    ] {
        let fault = rack(EXAMPLE, &[(old, new)]).map(|_| format!("{old} -> {new}")).unwrap_err();
        let fault = fault.to_string();
        assert!(fault.contains(words), "{old} -> {new}: {fault}");
    }
}

/// The most of everything at once: a fault or a bill, and never a panic.
#[test]
fn the_largest_numbers_are_counted_or_refused() {
    let change = [
        ("servers = 16", "servers = 100000"),
        ("sockets = 2 ", "sockets = 64 "),
        ("dimm_slots = 32", "dimm_slots = 256"),
        ("nic_slots = 4", "nic_slots = 10000"),
        ("price_usd = 450.50", "price_usd = 10000000"),
        ("years = 5", "years = 100"),
        ("usd_per_kwh = 0.20", "usd_per_kwh = 100"),
        ("pue_percent = 150", "pue_percent = 1000"),
        ("nic = \"nic-25g-dp\"", "nic = \"nic-mine\""),
    ];
    assert!(rack(EXAMPLE, &change).is_ok());
    let more = [("bits_per_vm_core = 500_000_000", "bits_per_vm_core = 10_000_000_000_000")];
    let fault = rack(EXAMPLE, &[&change[..], &more].concat()).unwrap_err();
    assert!(
        fault.to_string().contains("smaller") || fault.to_string().contains("slots"),
        "{fault}"
    );
}
