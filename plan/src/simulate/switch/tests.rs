//! Exchanges on switches against closed forms, and their rules.

use random::Random;

use super::*;

/// One switch with links that send a byte in a nanosecond.
const ONE: &str = r#"
    title = "one switch"
    switch = { leaves = 1, hosts = 8, host_gbit = 8, packet_bytes = 1000, hop_ns = 10 }
    load = { pattern = "all-to-all", bytes = 100_000, window = 2 }
"#;

/// Four leaves with as many up-links as hosts, over `ONE`.
const TREE: [(&str, &str); 3] =
    [("switch.leaves", "4"), ("switch.hosts", "8"), ("switch.uplinks", "8")];

fn read(set: &[(&str, &str)]) -> SwitchScenario {
    let set: Vec<_> = set.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    SwitchScenario::read("test", ONE, &set).unwrap()
}

fn with(set: &[(&str, &str)]) -> SwitchReport {
    simulate_switch(&read(set))
}

/// A tree with more values.
fn tree(set: &[(&str, &str)]) -> SwitchReport {
    with(&[&TREE[..], set].concat())
}

fn expect_near(ours: f64, form: f64, percent: f64) {
    let off = (ours / form - 1.0) * 100.0;
    assert!(off.abs() < percent, "{ours} beside {form}: {off:.2} % off");
}

/// n - 1 messages one after another, and the last packet's way behind the card.
#[test]
fn all_to_all_on_one_switch_takes_the_time_of_the_cards() {
    let report = with(&[]);
    assert_eq!((report.cards_ns, report.time_ns), (700_000, 700_000 + 1000 + 2 * 10));
    // With one message under way each waits for the whole way of the last one.
    let single = with(&[("load.window", "1")]);
    assert_eq!(single.time_ns, 7 * (100_000 + 1000 + 2 * 10));
    assert_eq!((single.messages.requests, single.messages.mean_ns), (56, 101_020));
    assert_eq!(single.time_ns, with(&[("load.window", "1"), ("load.barrier", "true")]).time_ns);
    // Bytes of a host in a nanosecond: 8 Gbit/s is a byte.
    assert_eq!(report.host_mbit, 700_000 * 8000 / 701_020);
    // Each of 8 ranks sends 4 of its 7 messages to the other half.
    expect_near(report.bisection_ppm as f64, 4e6 / 7.0, 0.2);
    assert_eq!(report.oversubscription_ppm, None);
}

/// Two leaves with a host each: the steps of one message add up, and a short packet is the last.
#[test]
fn an_idle_way_adds_up_its_links() {
    let set = [("switch.leaves", "2"), ("switch.hosts", "1"), ("switch.uplinks", "1")];
    let more = [("switch.uplink_gbit", "4"), ("load.bytes", "2500"), ("switch.head_bytes", "50")];
    let report = with(&[&set[..], &more].concat());
    // Both links of the spine are the slow ones, and the second follows a packet behind the first.
    let (whole_ns, last_ns) = (1050, 550);
    let slow_ns = 2 * whole_ns + 2 * (2 * whole_ns + last_ns);
    assert_eq!(report.time_ns, whole_ns + slow_ns + last_ns + 4 * 10);
    // Three packets of each host: one event each of the card, and of four places.
    assert_eq!(report.events, 2 * 3 * 5);
    assert_eq!(report.oversubscription_ppm, Some(2_000_000));
}

/// Shifts on a full tree meet nowhere if routes go by the destination (Zahavi's D-mod-k).
#[test]
fn routes_by_destination_make_a_full_tree_one_switch() {
    for pattern in ["all-to-all", "bisection"] {
        let report = tree(&[("load.pattern", pattern)]);
        let behind_ns = report.time_ns - report.cards_ns;
        assert!(behind_ns <= 3 * 1000 + 4 * 10, "{pattern}: {behind_ns}");
    }
}

#[test]
fn an_oversubscribed_tree_has_its_part_of_the_bisection() {
    for (uplinks, times) in [("8", 1), ("4", 2), ("2", 4), ("1", 8)] {
        let set = [("load.pattern", "bisection"), ("switch.uplinks", uplinks)];
        let turns = [("load.barrier", "true"), ("load.window", "1"), ("load.bytes", "1000000")];
        let report = tree(&[&set[..], &turns].concat());
        expect_near(report.bisection_ppm as f64, 1e6 / f64::from(times), 1.0);
        assert_eq!(report.oversubscription_ppm, Some(u64::from(times as u32) * 1_000_000));
        assert_eq!(report.card_ppm, report.bisection_ppm);
        let uplinks = report.used.iter().find(|used| used.links == "up-links").unwrap();
        expect_near(uplinks.least_ppm as f64, 1e6, 1.0);
    }
}

/// The probability that the fullest of `bins` has `most` of as many balls at most, by trying all
/// ways.
fn at_most(bins: u32, most: u32) -> f64 {
    let all = bins.pow(bins);
    let fits = |way: &u32| {
        let mut loads = vec![0; bins as usize];
        (0..bins).for_each(|ball| loads[(way / bins.pow(ball) % bins) as usize] += 1);
        loads.iter().all(|load| *load <= most)
    };
    f64::from((0..all).filter(fits).count() as u32) / f64::from(all)
}

/// Four flows of each leaf choose one of four up-links each, like balls in bins: the turn ends with
/// the fullest up-link of both leaves.
#[test]
fn hashed_flows_have_the_load_of_balls_in_bins() {
    let expected: f64 = (0..4).map(|most| 1.0 - at_most(4, most).powi(2)).sum();
    expect_near(expected, 2.387, 0.1);
    let time = |seed: u32| {
        let seed = seed.to_string();
        let set = [("seed", seed.as_str()), ("switch.leaves", "2"), ("switch.hosts", "4")];
        let more = [("switch.uplinks", "4"), ("switch.routing", "flow"), ("load.turns", "1")];
        let report = with(&[&set[..], &more, &[("load.pattern", "bisection")]].concat());
        // Three packets and four hops lie between the first bit and the last one.
        (report.time_ns - 3040) as f64 / 100_000.0
    };
    let mean = (0..1000).map(time).sum::<f64>() / 1000.0;
    expect_near(mean, expected, 3.0);
}

/// Behind a barrier a turn takes as long as its fullest link, and few packets more.
#[test]
fn a_turn_takes_the_time_of_its_fullest_link() {
    let set = [("load.barrier", "true"), ("load.window", "1"), ("switch.routing", "flow")];
    let scenario = read(&[&TREE[..], &set].concat());
    let (hosts, leaf) = (scenario.hosts(), |host: u64| host / 8);
    let fullest = |turn: u64| {
        let mut loads = [[[0_u64; 8]; 4]; 2];
        for from in 0..hosts {
            let to = scenario.receiver(from, turn);
            if leaf(from) != leaf(to) {
                let spine = scenario.spine(from, to).unwrap() as usize;
                loads[0][leaf(from) as usize][spine] += 1;
                loads[1][leaf(to) as usize][spine] += 1;
            }
        }
        loads.as_flattened().as_flattened().iter().copied().max().unwrap().max(1)
    };
    let loads: u64 = (0..scenario.turns()).map(fullest).sum();
    assert!(loads > 2 * scenario.turns(), "{loads}");
    expect_near(simulate_switch(&scenario).time_ns as f64, loads as f64 * 100_000.0, 3.0);
}

/// Routes by destination depend on the receiver alone, and hashed ones on both hosts.
#[test]
fn a_flow_is_of_two_hosts() {
    for (routing, of_senders) in [("destination", 1), ("flow", 4)] {
        let scenario = read(&[&TREE[..], &[("switch.routing", routing)]].concat());
        let differing = |of: &dyn Fn(u64) -> Option<u64>| {
            let mut spines: Vec<u64> = (0..8).map(|host| of(host).unwrap()).collect();
            spines.sort_unstable();
            spines.dedup();
            spines.len()
        };
        assert!(differing(&|from| scenario.spine(from, 30)) >= of_senders, "{routing}");
        assert!(differing(&|to| scenario.spine(30, to)) >= 4, "{routing}");
        assert_eq!(differing(&|from| scenario.spine(from, 30)) == 1, routing == "destination");
    }
}

#[test]
fn routes_of_packets_beat_routes_of_flows() {
    let time = |routing: &str, placement: &str| {
        tree(&[("switch.routing", routing), ("load.placement", placement)]).time_ns
    };
    let cards_ns = tree(&[]).cards_ns;
    let [destination, flow, packet, shortest] =
        ["destination", "flow", "packet", "shortest"].map(|routing| time(routing, "random"));
    assert!(shortest < packet && packet < flow, "{shortest} {packet} {flow}");
    assert!(packet < cards_ns * 102 / 100, "{packet} beside {cards_ns}");
    assert!(flow > cards_ns * 3 / 2, "{flow} beside {cards_ns}");
    // Tables that fit the hosts' order fit no other order.
    assert!(destination > cards_ns * 6 / 5, "{destination} beside {cards_ns}");
}

#[test]
fn one_seed_has_one_outcome_and_another_has_another() {
    let text = |seed: &str| {
        let set = [("seed", seed), ("load.placement", "random"), ("switch.routing", "packet")];
        serde_json::to_string(&tree(&set)).unwrap()
    };
    assert_eq!(text("7"), text("7"));
    assert_ne!(text("7"), text("8").replace("\"seed\":8", "\"seed\":7"));
}

/// Each rank sends to each other rank, or to each rank of the other half, and in each turn to
/// a rank of its own.
#[test]
fn each_pair_has_its_turn() {
    for (pattern, hosts) in [("all-to-all", "7"), ("bisection", "6")] {
        let scenario = read(&[("switch.hosts", hosts), ("load.pattern", pattern)]);
        let ranks = scenario.hosts();
        for turn in 0..2 * scenario.turns() {
            let mut to: Vec<u64> = (0..ranks).map(|rank| scenario.receiver(rank, turn)).collect();
            for (rank, to) in (0..).zip(&to) {
                assert_ne!(rank, *to);
                if pattern == "bisection" {
                    assert_eq!(scenario.receiver(*to, turn), rank, "partners");
                    assert_ne!(rank < ranks / 2, *to < ranks / 2);
                }
            }
            to.sort_unstable();
            assert!((0..ranks).eq(to), "{pattern}, turn {turn}");
        }
        for rank in 0..ranks {
            let mut to: Vec<u64> =
                (0..scenario.turns()).map(|turn| scenario.receiver(rank, turn)).collect();
            to.sort_unstable();
            to.dedup();
            assert_eq!(to.len() as u64, scenario.turns(), "{pattern}, rank {rank}");
        }
    }
}

/// All bits of all messages pass each kind of link once, and no link sends more than it can.
#[test]
fn nothing_is_lost_on_any_switch() {
    let pick = |random: &mut Random, words: &[&str]| {
        words[random.below(words.len() as u64) as usize].to_owned()
    };
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let is_barrier = random.one_in(3);
        let window = if is_barrier { 1 } else { random.between(1, 5) };
        let set = [
            ("seed", seed.to_string()),
            ("switch.leaves", random.between(1, 5).to_string()),
            ("switch.hosts", (2 * random.between(1, 4)).to_string()),
            ("switch.uplinks", random.between(1, 5).to_string()),
            ("switch.host_gbit", random.between(1, 400).to_string()),
            ("switch.uplink_gbit", random.between(1, 400).to_string()),
            ("switch.head_bytes", random.below(100).to_string()),
            ("switch.hop_ns", random.below(2000).to_string()),
            ("switch.routing", pick(&mut random, &["destination", "flow", "packet", "shortest"])),
            ("load.pattern", pick(&mut random, &["all-to-all", "bisection"])),
            ("load.placement", pick(&mut random, &["in-order", "random"])),
            ("load.bytes", random.between(1, 9000).to_string()),
            ("load.turns", random.between(1, 20).to_string()),
            ("load.window", window.to_string()),
            ("load.barrier", is_barrier.to_string()),
        ];
        let set: Vec<(&str, &str)> = set.iter().map(|(key, value)| (*key, &**value)).collect();
        let scenario = read(&set);
        let report = simulate_switch(&scenario);
        assert_eq!(report.messages.requests, report.hosts * report.turns, "seed {seed}");
        assert!(report.time_ns > report.cards_ns, "seed {seed}: {report:?}");
        assert!(report.bisection_ppm <= 1_000_000, "seed {seed}: {report:?}");
        let bits = |of: usize| {
            let used = &report.used[of];
            let gbit = [0, 3].contains(&of) || report.used.len() == 2;
            let gbit = if gbit { scenario.switch.host_gbit } else { scenario.uplink_gbit() };
            u128::from(used.mean_ppm * used.count * gbit) * u128::from(report.time_ns)
        };
        assert!(report.used.iter().all(|used| used.most_ppm <= 1_000_000), "seed {seed}");
        // Shares are cut to a millionth.
        let alike = |one: usize, other: usize| {
            let (one, other) = (bits(one) as f64, bits(other) as f64);
            assert!((one / other - 1.0).abs() < 1e-2, "seed {seed}: {one} {other} {report:?}");
        };
        alike(0, report.used.len() - 1);
        if report.used.len() == 4 {
            alike(1, 2);
        }
    }
}

/// The longest exchange of two hosts: a million turns with the longest hops, on the fastest links.
#[test]
fn the_longest_exchange_is_counted() {
    let set = [("switch.hosts", "2"), ("switch.host_gbit", "10000"), ("load.window", "1")];
    let more = [("load.bytes", "1000"), ("load.turns", "1048576"), ("switch.hop_ns", "1000000000")];
    let report = with(&[&set[..], &more].concat());
    assert_eq!((report.time_ns, report.card_ppm), ((2_000_000_000 + 2) << 20, 0));
}

#[test]
fn scenarios_without_use_are_named() {
    let refused = |set: &[(&str, &str)], words: &str| {
        let set: Vec<_> = set.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let fault = SwitchScenario::read("test", ONE, &set).unwrap_err().to_string();
        assert!(fault.contains(words), "{set:?}: {fault}");
    };
    let huge = "9000000000000000000";
    refused(&[("switch.hosts", "1")], "switch.leaves x switch.hosts");
    refused(&[("switch.hosts", huge)], "switch.hosts");
    refused(&[("switch.leaves", "65536"), ("switch.uplinks", "1")], "switch.leaves x switch.hosts");
    refused(&[("switch.leaves", "2")], "switch.uplinks");
    refused(&[("switch.leaves", "2"), ("switch.uplinks", huge)], "switch.uplinks");
    refused(&[("switch.leaves", "2"), ("switch.uplinks", "1025")], "switch.uplinks: 1025 is out");
    refused(
        &[("switch.leaves", "8192"), ("switch.uplinks", "1024")],
        "links of hosts and leaves: 16908288",
    );
    for key in ["host_gbit", "uplink_gbit", "packet_bytes"] {
        refused(&[(&format!("switch.{key}"), "0")], key);
        refused(&[(&format!("switch.{key}"), huge)], key);
    }
    refused(&[("switch.hop_ns", huge)], "switch.hop_ns");
    refused(&[("switch.head_bytes", huge)], "switch.head_bytes");
    refused(&[("switch.routing", "any")], "vrio plan example switch");
    refused(&[("switch.depth", "1")], "vrio plan example switch");
    for key in ["bytes", "turns", "window"] {
        refused(&[(&format!("load.{key}"), "0")], &format!("load.{key}"));
        refused(&[(&format!("load.{key}"), huge)], &format!("load.{key}"));
    }
    refused(&[("switch.hosts", "7"), ("load.pattern", "bisection")], "7 hosts have no two halves");
    refused(&[("load.barrier", "true")], "load.window: behind a barrier");
    refused(&[("load.window", "200000")], "hosts x load.window x packets of a message");
    refused(&[("load.turns", "1000000"), ("load.bytes", "1000000")], "hosts x turns x packets");
    refused(&[("title", &"n".repeat(70))], "64 characters");
}
