use super::*;
use crate::application::curve::{CurvePoint, RateSpan, SizeCurve};
use crate::money::Fraction;

/// A link of so many nanoseconds for a message and one for each byte.
fn link(start_ns: u128, gap: bool) -> MessageLink {
    let point = |bytes, ns| CurvePoint { bytes, time: WideSpan::exact(ns) };
    let points = vec![point(0, start_ns), point(1 << 20, start_ns + (1 << 20))];
    let gaps = vec![point(1, 1), point(1 << 20, 1 << 20)];
    MessageLink {
        latency: SizeCurve::new("latency", points, false).unwrap(),
        gap: gap.then(|| SizeCurve::new("bandwidth", gaps, false).unwrap()),
        peak: Some(RateSpan::exact(1_000_000)),
        both_ways: None,
    }
}

fn time(pattern: Pattern, bytes: u64, ranks: u64, per_host: u64) -> (Algorithm, u128) {
    let (between, within) = (link(10_000, false), link(100, false));
    let stage = Stage { between: &between, within: &within, ranks, per_host };
    let local = Fraction::NONE;
    let count_milli = 1000;
    let messages =
        ProfileMessages { pattern, bytes, count_milli, window: 1, local, ranks, per_host: None };
    let (algorithm, time) = stage.time(&messages);
    (algorithm, time.likely_ns)
}

#[test]
fn short_messages_take_a_message_for_each_doubling() {
    let doubling = (Algorithm::RecursiveDoubling, 3 * 10_008);
    assert_eq!(time(Pattern::Allreduce, 8, 8, 1), doubling);
    // With four ranks of a host, two of three steps stay on it, and four share its card in one.
    let mixed = 2 * 108 + 10_008 + 3 * 8;
    assert_eq!(time(Pattern::Allreduce, 8, 8, 4), (Algorithm::RecursiveDoubling, mixed));
    assert_eq!(time(Pattern::Bcast, 8, 8, 1), (Algorithm::Binomial, 3 * 10_008));
    assert_eq!(time(Pattern::Barrier, 0, 8, 1), (Algorithm::Dissemination, 30_000));
    assert_eq!(time(Pattern::Barrier, 0, 5, 1).1, 30_000, "rounded up");
    assert_eq!(time(Pattern::Barrier, 0, 8, 8).1, 300, "on one host");
}

#[test]
fn ranks_beyond_a_power_of_two_take_two_steps_more() {
    assert_eq!(time(Pattern::Allreduce, 8, 4, 1).1, 2 * 10_008);
    assert_eq!(time(Pattern::Allreduce, 8, 6, 1).1, 4 * 10_008);
}

/// Three hosts of 16 ranks: of the first 32 ranks two each take part as one, so two hosts have 8
/// and a host has 16. Pairs stay on their host up to a distance of 4: at 8 the first two hosts send
/// to each other, and at 16 both hosts and the third.
#[test]
fn hosts_of_ranks_beyond_a_power_of_two_have_half_of_their_ranks_in_pairs() {
    let far = |bytes: u128, senders: u128| 10_000 + bytes * senders;
    let near = 3 * 108 + 2 * 108;
    let mixed = near + far(8, 8) + far(8, 16);
    assert_eq!(time(Pattern::Allreduce, 8, 48, 16), (Algorithm::RecursiveDoubling, mixed));
    // Six hosts: four with half of their ranks, and two at a distance of 16 and of 32.
    let mixed = near + far(8, 8) + 2 * far(8, 16);
    assert_eq!(time(Pattern::Allreduce, 8, 96, 16), (Algorithm::RecursiveDoubling, mixed));
    let (between, within) = (link(10_000, false), link(100, false));
    let stage = |ranks, per_host| Stage { between: &between, within: &within, ranks, per_host };
    // By halves: 2,048 to 512 bytes within the host, 256 and 128 bytes to other hosts; 4,096 from
    // and to the ranks that take no part.
    let halves = 3 * 100 + 2048 + 1024 + 512 + far(256, 8) + far(128, 16);
    assert_eq!(stage(48, 16).rabenseifner(4096).likely_ns, 2 * halves + 2 * 4196);
    // Hosts of three lie across the pairs: they have 1, 2, 2 and 3 of 8 ranks, and both ranks of
    // the second host have their partner elsewhere at each distance.
    assert_eq!([1, 2, 4].map(|distance| stage(12, 3).paired_elsewhere(distance)), [2, 2, 3]);
    // So ranks that take no part may have their neighbour on another host.
    assert_eq!(stage(12, 3).odd(8).likely_ns, 2 * 10_008);
}

/// The counts for all small numbers of ranks and hosts are what a walk over all ranks gives.
#[test]
fn partners_elsewhere_are_counted_as_one_by_one() {
    let (between, within) = (link(10_000, false), link(100, false));
    for (ranks, per_host) in (2..70).flat_map(|ranks| (1..=ranks).map(move |it| (ranks, it))) {
        let stage = Stage { between: &between, within: &within, ranks, per_host };
        let kept = (0..ranks).filter(|rank| *rank >= 2 * stage.beyond() || rank % 2 == 1);
        let hosts: Vec<u64> = kept.map(|rank| rank / per_host).collect();
        for distance in stage.distances() {
            let at = format!("{ranks} ranks, {per_host} of a host, {distance}");
            let host = |rank: usize| hosts[rank];
            let apart = |rank: &usize| {
                let partner = rank ^ distance as usize;
                partner < hosts.len() && host(*rank) != host(partner)
            };
            let all: Vec<u64> = (0..hosts.len()).filter(apart).map(host).collect();
            let of = |host: u64| all.iter().filter(|it| **it == host).count() as u64;
            if 2 * distance <= ranks {
                let most = (0..ranks).map(of).max().unwrap();
                assert_eq!(stage.paired_elsewhere(distance), most, "{at}");
            }
            let mut senders = (0..ranks - distance).step_by(2 * distance as usize);
            let leaves = senders.any(|from| from / per_host != (from + distance) / per_host);
            assert_eq!(stage.leaves_a_host(distance), leaves, "{at}");
        }
    }
}

#[test]
fn hosts_of_no_power_of_two_send_in_more_steps() {
    // A tree of six on two hosts of three: 0 to 4, 0 to 2, and 2 to 3, which is on the other host.
    assert_eq!(time(Pattern::Bcast, 8, 6, 3), (Algorithm::Binomial, 2 * 10_008 + 108));
    // In turn with the ranks 1 to 5 further: 1, 2, 3, 2 and 1 of a host's three leave it.
    let steps = 5 * 10_000 + (1 + 2 + 3 + 2 + 1) * 100_000;
    assert_eq!(time(Pattern::Alltoall, 100_000, 6, 3), (Algorithm::Pairwise, steps));
}

/// If messages are as fast as they may be, the algorithm that is likely the fastest is not.
#[test]
fn ends_of_a_range_are_of_the_algorithm_that_is_the_fastest_there() {
    let mut between = link(10_000, false);
    let ends = |bytes: u128| {
        WideSpan { least_ns: 1000, ..WideSpan::exact(10_000) }.plus(WideSpan::exact(bytes))
    };
    let points = [0, 1 << 20].map(|bytes: u64| CurvePoint { bytes, time: ends(bytes.into()) });
    between.latency = SizeCurve::new("latency", points.to_vec(), false).unwrap();
    let within = link(100, false);
    let stage = Stage { between: &between, within: &within, ranks: 8, per_host: 1 };
    let messages = ProfileMessages {
        pattern: Pattern::Allreduce,
        bytes: 20_000,
        count_milli: 1000,
        window: 1,
        local: Fraction::NONE,
        ranks: 8,
        per_host: None,
    };
    let (algorithm, time) = stage.time(&messages);
    assert_eq!((algorithm, time.likely_ns), (Algorithm::RecursiveDoubling, 3 * 30_000));
    assert_eq!(time.least_ns, 6 * 1000 + 7 * 20_000 / 4, "by halves");
}

#[test]
fn long_messages_go_in_parts() {
    let bytes = 1 << 20;
    // 2 (p - 1) parts of an eighth: 7/4 of the data, where doubling would move 3 times as much.
    let (algorithm, ns) = time(Pattern::Allreduce, bytes, 8, 1);
    assert_eq!((algorithm, ns), (Algorithm::Rabenseifner, 6 * 10_000 + 7 * u128::from(bytes) / 4));
    // With four of a host the two steps on it have the largest parts: a half and a quarter. Its
    // four ranks share the card for an eighth each.
    let (between, within) = (link(10_000, false), link(100, false));
    let stage = Stage { between: &between, within: &within, ranks: 8, per_host: 4 };
    let near = 2 * 100 + 3 * u128::from(bytes) / 4;
    let mixed = 2 * (near + 10_000 + 4 * u128::from(bytes) / 8);
    assert_eq!(stage.rabenseifner(bytes).likely_ns, mixed);
    // With a host's card shared, only one neighbour of a ring is elsewhere.
    assert_eq!(time(Pattern::Allreduce, 8 << 20, 64, 8).0, Algorithm::Ring);
    assert_eq!(time(Pattern::Bcast, bytes, 8, 1).0, Algorithm::ScatterRing);
    assert_eq!(time(Pattern::Reduce, 8, 8, 1), time(Pattern::Bcast, 8, 8, 1));
}

/// Six ranks reduce as four do, by halves; the two beyond hand over all data, and get all of it.
#[test]
fn parts_are_those_of_the_power_of_two() {
    let bytes = 1 << 12;
    let (four, all) = (2 * (2 * 10_000 + 3 * bytes / 4), 2 * (10_000 + bytes));
    let (between, within) = (link(10_000, false), link(100, false));
    let stage = Stage { between: &between, within: &within, ranks: 6, per_host: 1 };
    assert_eq!(stage.rabenseifner(bytes).likely_ns, u128::from(four + all));
}

#[test]
fn trees_and_doubled_gatherings_have_no_more_parts_than_ranks() {
    // Bruck's gathering of six sends 1, 2 and the last 2 parts: five, as a ring does.
    let (algorithm, ns) = time(Pattern::Allgather, 8, 6, 1);
    assert_eq!((algorithm, ns), (Algorithm::Bruck, 30_000 + 5 * 8));
    // A scatter to six sends 2, 2 and 1 parts of a sixth, and the ring five parts more.
    let (between, within) = (link(10_000, false), link(100, false));
    let stage = Stage { between: &between, within: &within, ranks: 6, per_host: 1 };
    assert_eq!(stage.scatter_ring(6000).likely_ns, 30_000 + 5000 + 5 * 11_000);
    // Pairs of a doubled gathering stay on a host of four.
    assert_eq!(time(Pattern::Allgather, 8, 8, 4).1, 2 * 100 + 3 * 8 + 10_000 + 4 * 32);
}

#[test]
fn all_to_all_is_short_by_bruck_and_long_in_turn() {
    assert_eq!(time(Pattern::Alltoall, 8, 8, 1), (Algorithm::Bruck, 3 * (10_000 + 32)));
    let (algorithm, ns) = time(Pattern::Alltoall, 100_000, 8, 1);
    assert_eq!((algorithm, ns), (Algorithm::Pairwise, 7 * 110_000));
    // Four of a host share its card: 4 steps of four messages each, and 3 within the host.
    let (_, ns) = time(Pattern::Alltoall, 100_000, 8, 4);
    assert_eq!(ns, 4 * (10_000 + 4 * 100_000) + 3 * 100_100);
    let (between, within) = (link(10_000, true), link(100, false));
    let stage = Stage { between: &between, within: &within, ranks: 8, per_host: 1 };
    let messages = ProfileMessages {
        pattern: Pattern::Alltoall,
        bytes: 1000,
        count_milli: 1000,
        window: 1,
        local: Fraction::NONE,
        ranks: 8,
        per_host: None,
    };
    let (algorithm, time) = stage.time(&messages);
    assert_eq!((algorithm, time.likely_ns), (Algorithm::AllAtOnce, 10_000 + 7 * 1000));
}

#[test]
fn gathering_doubles_what_is_sent() {
    let (algorithm, ns) = time(Pattern::Allgather, 8, 8, 1);
    assert_eq!((algorithm, ns), (Algorithm::RecursiveDoubling, 30_000 + 7 * 8));
}

#[test]
fn messages_between_ranks_share_the_card_of_their_host() {
    let (between, within) = (link(10_000, false), link(100, false));
    let stage = Stage { between: &between, within: &within, ranks: 8, per_host: 4 };
    let messages = |local, window| ProfileMessages {
        pattern: Pattern::PointToPoint,
        bytes: 1000,
        count_milli: 1000,
        window,
        local: Fraction::of(local, 4).unwrap(),
        ranks: 8,
        per_host: None,
    };
    let ns = |local, window| stage.time(&messages(local, window)).1.likely_ns;
    assert_eq!(ns(0, 1), 10_000 + 4 * 1000);
    // Half stays: two of the four share the card, and the mean of both kinds is taken.
    assert_eq!(ns(2, 1), (10_000 + 2 * 1000) / 2 + 1100 / 2);
    assert_eq!(ns(4, 1), 1100);
    // Ten at once wait for the first byte once.
    assert_eq!(ns(0, 10), (10_000 + 40 * 1000) / 10);
}

/// On one host nothing is between hosts, though a share was recorded on several.
#[test]
fn ranks_of_one_host_send_within_it() {
    let (between, within) = (link(10_000, false), link(100, false));
    let stage = Stage { between: &between, within: &within, ranks: 4, per_host: 4 };
    let messages = ProfileMessages {
        pattern: Pattern::PointToPoint,
        bytes: 1000,
        count_milli: 1000,
        window: 1,
        local: Fraction::of(1, 2).unwrap(),
        ranks: 4,
        per_host: None,
    };
    assert_eq!(stage.time(&messages).1, WideSpan::exact(1100));
}

#[test]
fn one_rank_sends_nothing() {
    for pattern in [Pattern::Allreduce, Pattern::Alltoall, Pattern::Bcast, Pattern::Barrier] {
        assert_eq!(time(pattern, 0, 1, 1), (Algorithm::Direct, 0));
    }
}

/// The largest values that a profile may have are counted, and do not overflow.
#[test]
fn the_largest_profiles_are_counted() {
    for pattern in [Pattern::Allreduce, Pattern::Alltoall, Pattern::Allgather, Pattern::Bcast] {
        assert!(time(pattern, 1 << 40, 1 << 17, 1 << 16).1 > 1 << 40, "{pattern:?}");
    }
}
