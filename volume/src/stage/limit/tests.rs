use super::*;
use crate::backend::{MemoryVolume, NullVolume};
use crate::contract::{self, Buffer, ChannelBench};
use crate::volume::Op;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

fn limit(iops: u64, bytes_per_second: u64, burst_ns: u64) -> Limit {
    Limit {
        iops: NonZeroU64::new(iops),
        bytes_per_second: NonZeroU64::new(bytes_per_second),
        burst_ns,
    }
}

fn limited(limit: Limit) -> LimitVolume {
    LimitVolume::new(Arc::new(NullVolume::new(1 << 30)), limit)
}

/// Keeps `depth` requests of `len` bytes outstanding on some channels until `until_ns`, polling
/// each every `step_ns`; gives what each completed. The buffer outlives the benches.
fn saturate(
    benches: &mut [ChannelBench],
    buffer: &Buffer,
    until_ns: u64,
    step_ns: u64,
) -> Vec<u64> {
    let mut completed = vec![0; benches.len()];
    let mut now_ns = benches[0].now_ns;
    while now_ns < until_ns {
        for (bench, completed) in benches.iter_mut().zip(&mut completed) {
            bench.now_ns = now_ns;
            while !bench.ios.is_full() {
                bench.submit(Op::Read, 0, Some(buffer));
            }
            bench.round();
            for id in std::mem::take(&mut bench.done) {
                bench.ios.free(id);
                *completed += 1;
            }
        }
        now_ns += step_ns;
    }
    completed
}

fn benches(volume: &LimitVolume, count: usize) -> Vec<ChannelBench> {
    (0..count)
        .map(|_| {
            let mut bench = ChannelBench::new(volume, 32);
            bench.now_ns = 10 * SECOND;
            bench
        })
        .collect()
}

#[test]
fn keeps_the_contract() {
    let memory = Arc::new(MemoryVolume::new(1 << 20).expect("memory"));
    contract::check_all(&LimitVolume::new(memory.clone(), Limit::default()));
    contract::check_all(&LimitVolume::new(memory, limit(50_000, 1 << 30, MS)));
}

#[test]
fn the_rate_is_kept_over_all_channels() {
    for channels in [1, 2, 5] {
        let volume = limited(limit(50_000, 0, 0));
        let buffer = Buffer::new(512, 0);
        let mut benches = benches(&volume, channels);
        let sum: u64 = saturate(&mut benches, &buffer, 12 * SECOND, 7_000).iter().sum();
        // The least burst is 100 requests.
        assert!((99_900..=100_110).contains(&sum), "{channels} channels: {sum} in 2 s");
    }
}

#[test]
fn bytes_are_limited_for_requests_of_any_kind() {
    for len in [512, 4096, 1 << 20] {
        let volume = limited(limit(0, 100 << 20, 0));
        let buffer = Buffer::new(len, 0);
        let mut benches = benches(&volume, 2);
        let requests: u64 = saturate(&mut benches, &buffer, 12 * SECOND, 20_000).iter().sum();
        let bytes = requests * len as u64;
        // The least burst, and in debt by one request at most.
        let most = (200 << 20) + (200 << 10) + 2 * len as u64;
        let least = (200 << 20) - 2 * len as u64;
        assert!((least..=most).contains(&bytes), "requests of {len}: {bytes} in 2 s");
    }
}

#[test]
fn channels_get_equal_shares_even_when_one_polls_rarely() {
    let volume = limited(limit(1_000, 0, 0));
    let buffer = Buffer::new(512, 0);
    let mut benches = benches(&volume, 2);
    let mut completed = [0u64; 2];
    for round in 0..2_000_000u64 {
        let now_ns = 10 * SECOND + round * 1_000;
        for (at, bench) in benches.iter_mut().enumerate() {
            // The second looks only when its timer says so, and then late.
            let mut wake = Wake::new();
            let _ = bench.channel.arm(&mut wake);
            let due = wake.deadline_ns().is_none_or(|deadline_ns| now_ns >= deadline_ns + 60_000);
            if at == 1 && !due {
                continue;
            }
            bench.now_ns = now_ns;
            while !bench.ios.is_full() {
                bench.submit(Op::Read, 0, Some(&buffer));
            }
            bench.round();
            for id in std::mem::take(&mut bench.done) {
                bench.ios.free(id);
                completed[at] += 1;
            }
        }
    }
    let [one, two] = completed;
    assert!(one + two > 1_950, "{one} and {two} in 2 s");
    assert!(one.abs_diff(two) < 100, "{one} and {two}");
}

#[test]
fn an_idle_volume_saves_up_its_burst_and_no_more() {
    let volume = limited(limit(1_000, 0, SECOND / 10));
    let buffer = Buffer::new(512, 0);
    let mut benches = benches(&volume, 1);
    // 100 saved up, and 10 more in 10 ms.
    let first = saturate(&mut benches, &buffer, 10 * SECOND + 10 * MS, 10_000)[0];
    assert!((108..=112).contains(&first), "{first}");
    benches[0].now_ns = 1_000 * SECOND;
    let second = saturate(&mut benches, &buffer, 1_000 * SECOND + 10 * MS, 10_000)[0];
    assert!((108..=112).contains(&second), "{second}");
}

#[test]
fn requests_go_in_order_and_the_next_is_announced() {
    let volume = limited(limit(10, 0, 0));
    let mut bench = ChannelBench::new(&volume, 8);
    bench.now_ns = SECOND;
    let ids: Vec<_> = (0..3).map(|_| bench.submit(Op::Flush, 0, None)).collect();
    let mut wake = Wake::new();
    assert!(bench.channel.arm(&mut wake).is_busy(), "nobody has looked at them yet");
    bench.round();
    assert_eq!(bench.done, ids[..1]);
    for (turn, upto) in [(1, 2), (2, 3)] {
        let mut wake = Wake::new();
        assert!(!bench.channel.arm(&mut wake).is_busy());
        let deadline_ns = wake.deadline_ns().expect("a time is known");
        assert_eq!(deadline_ns, SECOND - BURST_NS_MIN + turn * SECOND / 10);
        bench.now_ns = deadline_ns - 1;
        bench.round();
        assert_eq!(bench.done, ids[..upto - 1]);
        bench.now_ns = deadline_ns;
        bench.round();
        assert_eq!(bench.done, ids[..upto]);
    }
    assert_eq!(volume.delayed(), 2);
}

#[test]
fn a_request_that_is_larger_than_the_burst_passes_and_is_paid_for() {
    let volume = limited(limit(0, 1 << 20, 0));
    let mut bench = ChannelBench::new(&volume, 8);
    bench.now_ns = SECOND;
    assert!(bench.read(0, 1 << 20).is_ok());
    let began_ns = bench.now_ns;
    assert!(began_ns < SECOND + MS, "the first is not held back");
    assert!(bench.read(0, 512).is_ok());
    let waited_ns = bench.now_ns - (SECOND - BURST_NS_MIN);
    assert!((SECOND..SECOND + MS).contains(&waited_ns), "{waited_ns}");
}

#[test]
fn an_unused_share_of_a_channel_lapses() {
    let volume = limited(limit(1_000_000, 0, SECOND));
    let mut bench = ChannelBench::new(&volume, 8);
    bench.now_ns = 10 * SECOND;
    assert!(bench.flush() == Status::Done);
    let given_ns = || volume.rates.requests.given_ns.load(Relaxed);
    let after_one = given_ns();
    assert!(bench.flush() == Status::Done);
    assert_eq!(given_ns(), after_one, "from the same batch");
    bench.now_ns += LAPSE_NS;
    bench.round();
    assert!(bench.flush() == Status::Done);
    assert!(given_ns() > after_one, "a new batch");
}

#[test]
fn a_discard_costs_a_request_and_zeroes_cost_their_bytes() {
    let volume = limited(limit(0, 1 << 20, 0));
    let mut bench = ChannelBench::new(&volume, 4);
    bench.now_ns = 10 * SECOND;
    for _ in 0..100 {
        assert_eq!(bench.zero(Op::Discard, false, 0, 1 << 20), Status::Done);
    }
    assert!(bench.now_ns < 11 * SECOND && volume.delayed() == 0, "nothing was moved");
    for _ in 0..4 {
        bench.zero(Op::WriteZeroes, false, 0, 1 << 20);
    }
    assert!(bench.now_ns > 12 * SECOND && volume.delayed() > 0, "{}", bench.now_ns);
    let volume = limited(limit(10, 0, 0));
    let mut bench = ChannelBench::new(&volume, 4);
    bench.now_ns = 10 * SECOND;
    for _ in 0..21 {
        bench.zero(Op::Discard, false, 0, 1 << 20);
    }
    assert!(bench.now_ns > 11 * SECOND, "each is a request");
}
