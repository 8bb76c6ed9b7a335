//! Closed forms of queues, for tests alone: the simulator is tried against them, and sizes are
//! found by it. All times have one unit, all rates its inverse.

/// The probability that all `servers` are busy and an arrival is turned away (Erlang B), for a load
/// in Erlang.
pub(super) fn erlang_b(servers: u64, load: f64) -> f64 {
    (1..=servers).fold(1.0, |blocked, server| load * blocked / (server as f64 + load * blocked))
}

/// The probability that an arrival waits (Erlang C); 1 if the load is more than the servers do.
pub(super) fn erlang_c(servers: u64, load: f64) -> f64 {
    let free = servers as f64 - load;
    if free <= 0.0 {
        return 1.0;
    }
    let blocked = erlang_b(servers, load);
    servers as f64 * blocked / (free + load * blocked)
}

/// The mean time in M/M/c, waiting and service; none if the load is more than the servers do.
pub(super) fn mmc_mean(servers: u64, rate: f64, service: f64) -> Option<f64> {
    let load = rate * service;
    let free = servers as f64 - load;
    (free > 0.0).then(|| service + erlang_c(servers, load) * service / free)
}

/// The share of the arrivals that take longer than a time in M/M/c: waiting, with the chance of
/// Erlang C, and service.
pub(super) fn mmc_longer(servers: u64, rate: f64, service: f64, time: f64) -> f64 {
    let load = rate * service;
    let waits = erlang_c(servers, load);
    // The free servers' rate for each one's, whose difference from 1 the sum divides by.
    let free = servers as f64 - load;
    let (served, drained) = ((-time / service).exp(), (-free * time / service).exp());
    served + waits * (served - drained) / (free - 1.0)
}

/// The time that a share `quantile` of the arrivals take at most in M/M/1.
pub(super) fn mm1_time(rate: f64, service: f64, quantile: f64) -> Option<f64> {
    let free = 1.0 - rate * service;
    (free > 0.0).then(|| -(1.0 - quantile).ln() * service / free)
}

/// The mean time in M/D/1: half of M/M/1's wait, and the service.
pub(super) fn md1_mean(rate: f64, service: f64) -> Option<f64> {
    let load = rate * service;
    (load < 1.0).then(|| service + load * service / (2.0 * (1.0 - load)))
}

/// The mean time in a polling system: queues of equal Poisson arrivals and equal service times,
/// taken in turn until each is empty, with a fixed time between two of them (Takagi, 1986).
pub(super) fn exhaustive_polling_mean(
    queues: u64,
    rate: f64,
    service: f64,
    between: f64,
) -> Option<f64> {
    let queues = queues as f64;
    let load = queues * rate * service;
    let waits = queues * rate * service * service + between * (queues - load);
    (load < 1.0).then(|| service + waits / (2.0 * (1.0 - load)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of the tables that telephone engineers print: 10 servers, 7 Erlang.
    #[test]
    fn the_forms_have_the_values_of_tables() {
        assert!((erlang_b(10, 7.0) - 0.0787).abs() < 1e-4);
        assert!((erlang_c(10, 7.0) - 0.2217).abs() < 1e-4);
        assert_eq!(erlang_c(2, 2.5), 1.0);
        assert!((mmc_mean(1, 0.5, 1.0).unwrap() - 2.0).abs() < 1e-12);
        assert!((md1_mean(0.5, 1.0).unwrap() - 1.5).abs() < 1e-12);
        assert!((mm1_time(0.5, 1.0, 0.99).unwrap() - 9.21).abs() < 1e-2);
        assert_eq!(mmc_mean(1, 1.0, 1.0), None);
        // Without a time between queues nothing but the order differs from M/D/1.
        let polled = exhaustive_polling_mean(4, 0.2, 1.0, 0.0).unwrap();
        assert!((polled - md1_mean(0.8, 1.0).unwrap()).abs() < 1e-12);
    }
}
