//! Latencies, from the histograms that sidecores write.

use block::DiskCore;
use hdrhistogram::Histogram;
use volume::Op;

use crate::wiring::volumes::ServedVolume;
use api::status::{LATENCY_BUCKETS_NS, Latencies, LatencyStatus};

const KINDS: [(Op, &str); 5] = [
    (Op::Read, "read"),
    (Op::Write, "write"),
    (Op::Flush, "flush"),
    (Op::Discard, "discard"),
    (Op::WriteZeroes, "write_zeroes"),
];

/// The latencies of the outermost meter: those that the volume's users see.
pub(crate) fn of_volume(served: &ServedVolume) -> Latencies {
    let chain = served.chain();
    let Some(meter) = chain.stages.meters.first() else { return Latencies::new() };
    let meter = meter.meter();
    let read = |(op, name): (Op, &str)| (name.to_owned(), cut(&meter.read(op).latency_ns));
    KINDS.map(read).into()
}

/// The latencies of all queues together: those that the guest sees.
pub(crate) fn of_disk(core: &DiskCore) -> Latencies {
    let read = |(op, name): (Op, &str)| {
        let mut all = volume::latency::histogram();
        (0..core.queues_max()).for_each(|queue| {
            core.counters(queue).latencies(op).add_to(&mut all);
        });
        (name.to_owned(), cut(&all))
    };
    KINDS.map(read).into()
}

/// Counts a histogram into the buckets of the status.
fn cut(histogram: &Histogram<u64>) -> LatencyStatus {
    let mut status = LatencyStatus {
        count: histogram.len(),
        sum_ns: 0,
        buckets: vec![0; LATENCY_BUCKETS_NS.len()],
    };
    for recorded in histogram.iter_recorded() {
        let (ns, count) = (recorded.value_iterated_to(), recorded.count_at_value());
        status.sum_ns = status.sum_ns.saturating_add(ns.saturating_mul(count));
        let first = LATENCY_BUCKETS_NS.partition_point(|bound_ns| *bound_ns < ns);
        status.buckets[first..].iter_mut().for_each(|bucket| *bucket += count);
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_in_the_buckets_from_its_own_on() {
        let mut histogram = volume::latency::histogram();
        histogram.record_n(300, 2).unwrap();
        histogram.record_n(1_500_000, 3).unwrap();
        histogram.record(100_000_000_000).unwrap();
        let status = cut(&histogram);
        let at = |bound_ns| LATENCY_BUCKETS_NS.iter().position(|at| *at == bound_ns).unwrap();
        assert_eq!((status.count, status.buckets[0], status.buckets[at(1_000_000)]), (6, 2, 2));
        assert_eq!((status.buckets[at(2_000_000)], status.buckets[23]), (5, 5));
        assert!(status.sum_ns.abs_diff(100_004_500_600) < 1_000_000_000, "{}", status.sum_ns);
    }
}
