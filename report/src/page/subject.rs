//! The subject of a measurement. Series of one subject may share a plot, and no others.

use results::{Measurement, Quantity};

/// Benchmarks of different programs that measure the same, by their whole names. A plot of several
/// benchmarks has their names above it, and overheads are only computed within one benchmark.
const ALIKE: [(&str, &[&str]); 15] = [
    (
        "point to point",
        &[
            "osu_latency",
            "osu_bw",
            "osu_bibw",
            "mpi_latency",
            "mpi_bandwidth",
            "mpi_bidirectional_bandwidth",
            "fi_pingpong",
        ],
    ),
    ("several pairs", &["osu_multi_lat", "osu_mbw_mr", "mpi_message_rate"]),
    ("all to all", &["osu_alltoall", "mpi_alltoall"]),
    ("all-reduce", &["osu_allreduce", "mpi_allreduce"]),
    ("disks", &["block", "fio"]),
    ("network, connections", &["netperf_tcp_crr"]),
    (
        "network",
        &[
            "net",
            "netperf_tcp",
            "netperf_round_trip",
            "netperf_tcp_stream",
            "netperf_tcp_maerts",
            "netperf_udp_stream",
            "netperf_tcp_rr",
            "netperf_udp_rr",
            "netperf_omni_send",
            "netperf_omni_send_recv",
            "iperf3",
            "sockperf",
        ],
    ),
    ("MPI jobs", &["connections", "connections_ft", "connections_is"]),
    ("plans of a rack", &["plan_cost"]),
    (SIZES, &[PLAN_SEARCH]),
    ("sidecores for a p99", &["plan_size"]),
    (SIMULATED, &[PLAN_SIMULATE]),
    ("predicted applications", &["plan_application"]),
    ("published figures and the planner's", &["plan_published"]),
    ("predicted measurements", &["plan_own"]),
];

/// The search for the sizes of rack that pay, and its subject. Each search has plots of its own.
const PLAN_SEARCH: &str = "plan_search";
const SIZES: &str = "racks of all sizes";
/// Simulations, and their subject. The names of a key's values have plots of their own.
const PLAN_SIMULATE: &str = "plan_simulate";
const SIMULATED: &str = "simulated racks";

/// Benchmarks of I/O models, in a run and in a text.
const MODELS: &str = "models";
const EXITS_OF_EMULATION: &str = "exits_of_emulation";
/// The suffix of benchmarks that count a request's calls, wake-ups and so on, which are no parts of
/// one sum.
const PARTS: &str = "_parts";

/// The end of the subject for messages between two hosts: their figures include the wire and its
/// ends.
const TWO_HOSTS: &str = ", two hosts";

/// The subject of a plot, in words for its title.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Subject(String);

impl Subject {
    /// The subject of our own measurement. Models have a subject for each device, and their events
    /// one for each table, since tables count different events.
    pub(super) fn of(measurement: &Measurement, quantity: Quantity) -> Self {
        let benchmark = measurement.benchmark.as_str();
        let benchmark = benchmark.strip_suffix(PARTS).unwrap_or(benchmark);
        if benchmark == MODELS {
            return Self(models(measurement, quantity));
        }
        let is_it = |(_, all): &&(&str, &[&str])| all.contains(&benchmark);
        let alike = ALIKE.iter().find(is_it).map(|(words, _)| *words);
        let words = alike.unwrap_or(benchmark).replace('_', " ");
        if benchmark == PLAN_SEARCH {
            return Self(format!("{words}, {}", measurement.title));
        }
        if let (PLAN_SIMULATE, Some(key)) = (benchmark, measurement.setup.get("varied")) {
            return Self(format!("{words}, {key}"));
        }
        let hosts = measurement.setup.get("hosts").map(String::as_str);
        Self(words + if hosts == Some("two hosts") { TWO_HOSTS } else { "" })
    }

    /// Whether a published measurement has this subject as well. The slides do not name the device
    /// of their models, so the figures stand beside both devices; `is_first` marks the first table
    /// of a device. Not every text says whether its messages left a host.
    pub(super) fn is_of(&self, other: &Measurement, quantity: Quantity, is_first: bool) -> bool {
        match other.benchmark.as_str() {
            MODELS => self.is_models() && is_first,
            EXITS_OF_EMULATION => self.0.starts_with(&of_models("net")) && is_first,
            _ => {
                let Self(other) = Self::of(other, quantity);
                self.0 == other || self.0.strip_suffix(TWO_HOSTS) == Some(&other)
            }
        }
    }

    /// Whether the subject is I/O models.
    pub(super) fn is_models(&self) -> bool {
        self.0.starts_with(&of_models(""))
    }

    /// The device alone, without the table; of plans, their subject without a name or a key.
    pub(super) fn device(&self) -> &str {
        let is_plan = [SIZES, SIMULATED].iter().any(|words| self.0.starts_with(words));
        let has_tables = self.is_models() || is_plan;
        let is_table = has_tables.then(|| self.0.split_once(", ")).flatten();
        is_table.map_or(&self.0, |(device, _)| device)
    }

    pub(super) fn words(&self) -> &str {
        &self.0
    }
}

fn of_models(device: &str) -> String {
    let words = match device {
        "block" => "disks",
        "net" => "network cards",
        other => other,
    };
    format!("I/O models of {words}")
}

fn models(measurement: &Measurement, quantity: Quantity) -> String {
    let device = measurement.setup.get("device").map_or("anything", String::as_str);
    let all = of_models(device);
    if quantity != Quantity::EventsPerRequest {
        return all;
    }
    // "models: block, 1 guest, in clear" without its run and device.
    let title = measurement.title.rsplit(": ").next().unwrap_or_default();
    match title.strip_prefix(device).and_then(|rest| rest.strip_prefix(", ")) {
        Some(table) => format!("{all}, {table}"),
        None => all,
    }
}

/// Whether the events of a measurement are counters beside one another, and no parts of a sum.
pub(super) fn is_parts(measurement: &Measurement) -> bool {
    measurement.benchmark.ends_with(PARTS)
}

/// A word of ours, and other words for the same.
type Word = (&'static str, &'static [&'static str]);

/// Models in the order of the slides, then the models that the slides do not have.
const ROWS: [Word; 8] = [
    ("optimum", &[]),
    ("vRIO direct", &["vrio"]),
    ("Elvis", &["elvis"]),
    ("vRIO without polling", &["vrio w/o poll"]),
    ("baseline", &[]),
    ("vRIO host-side", &[]),
    ("host-side without polling", &[]),
    ("emulation", &["emulated e1000"]),
];

/// Columns of the slides' table.
const COLUMNS: [Word; 5] = [
    ("synchronous exits", &["sync exits", "exits"]),
    ("guest interrupts", &[]),
    ("injections", &[]),
    ("host interrupts", &[]),
    ("IOhost interrupts", &["iohost interrupts"]),
];

fn place(words: &[Word], said: &str) -> Option<usize> {
    let is_it = |(own, others): &Word| *own == said || others.contains(&said);
    words.iter().position(is_it)
}

/// The place of a model, if the label names one; "emulation, e1000 (tcg)" is emulation.
pub(super) fn row(label: &str) -> Option<usize> {
    place(&ROWS, label).or_else(|| place(&ROWS, label.split(", ").next()?))
}

/// The model's own name, if it is one.
pub(super) fn row_word(label: &str) -> Option<&'static str> {
    place(&ROWS, label).map(|at| ROWS[at].0)
}

/// The place of a column of events, and its name here. The columns of the slides' table come first,
/// under one name each; all other columns come after them.
pub(super) fn column(name: &str) -> (usize, &str) {
    match place(&COLUMNS, name) {
        Some(at) => (at, COLUMNS[at].0),
        None => (COLUMNS.len(), name),
    }
}

/// Whether the name is a column of the slides' table.
pub(super) fn is_column(name: &str) -> bool {
    place(&COLUMNS, name).is_some()
}

#[cfg(test)]
mod tests {
    use results::RunOrigin;

    use super::*;
    use crate::published::published;

    fn of(benchmark: &str) -> Subject {
        let it = Measurement::new(RunOrigin::Measured, benchmark, "x");
        Subject::of(&it, Quantity::Latency)
    }

    #[test]
    fn equal_subjects_are_named_whole() {
        assert_eq!(of("osu_latency"), of("mpi_latency"));
        assert_ne!(of("osu_latency"), of("osu_allreduce"));
        assert_ne!(of("osu_bw"), of("osu_mbw_mr"));
        assert_ne!(of("osu_latency"), of("osu_put_latency"));
        assert_eq!(of("osu_put_latency").words(), "osu put latency");
    }

    #[test]
    fn messages_between_hosts_stand_apart_and_what_was_published_beside_both() {
        let of = |hosts: Option<&str>| {
            let mut it = Measurement::new(RunOrigin::Measured, "mpi_latency", "x");
            it.setup.extend(hosts.map(|hosts| ("hosts".to_owned(), hosts.to_owned())));
            it
        };
        let subject = |hosts| Subject::of(&of(hosts), Quantity::Latency);
        assert_eq!(subject(Some("two hosts")).words(), "point to point, two hosts");
        assert_eq!(subject(Some("one host")), subject(None));
        let other = Measurement::new(RunOrigin::Published, "osu_latency", "native");
        for hosts in ["one host", "two hosts"] {
            assert!(subject(Some(hosts)).is_of(&other, Quantity::Latency, false), "{hosts}");
        }
    }

    #[test]
    fn tables_of_models_have_events_of_their_own_and_one_plot_for_the_rest() {
        let table = |title: &str| {
            let mut it = Measurement::new(RunOrigin::Measured, "models", title);
            it.setup.insert("device".to_owned(), "block".to_owned());
            it
        };
        let one = table("a run: block, 1 guest, in clear");
        let four = table("another: block, 4 guests, in clear");
        let events = |it| Subject::of(it, Quantity::EventsPerRequest);
        assert_ne!(events(&one), events(&four));
        assert_eq!(events(&one).words(), "I/O models of disks, 1 guest, in clear");
        assert_eq!(events(&one).device(), "I/O models of disks");
        assert_eq!(Subject::of(&one, Quantity::Iops), Subject::of(&four, Quantity::Iops));
    }

    #[test]
    fn values_of_a_key_and_searches_have_plots_of_their_own() {
        let plan = |benchmark: &str, title: &str, key: Option<&str>| {
            let mut it = Measurement::new(RunOrigin::Planned, benchmark, title);
            it.setup.extend(key.map(|key| ("varied".to_owned(), key.to_owned())));
            Subject::of(&it, Quantity::Latency)
        };
        let all = [
            plan(PLAN_SIMULATE, "a", None),
            plan(PLAN_SIMULATE, "a", Some("pool.steering")),
            plan(PLAN_SIMULATE, "b", Some("death.refuge")),
            plan(PLAN_SEARCH, "a: no spare IOhost", None),
            plan(PLAN_SEARCH, "a: one spare IOhost", None),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(all[at + 1..].iter().all(|other| other != one), "{one:?}");
        }
        assert_eq!(all[0], plan(PLAN_SIMULATE, "b", None));
        assert!(all[..3].iter().all(|it| it.device() == SIMULATED));
        assert!(all[3..].iter().all(|it| it.device() == SIZES));
    }

    /// The names in the slides lead to our names.
    #[test]
    fn published_models_and_columns_are_known() {
        let all = published();
        let models = all.iter().filter(|it| [MODELS, EXITS_OF_EMULATION].contains(&&*it.benchmark));
        for series in models.flat_map(|it| &it.series) {
            assert!(column(&series.name).0 < COLUMNS.len(), "{}", series.name);
            for label in series.points.iter().filter_map(|point| point.label.as_deref()) {
                assert!(row(label).is_some(), "{label}");
            }
        }
        assert_eq!(row_word("vrio w/o poll"), Some("vRIO without polling"));
        assert_eq!(row("emulation, e1000 (tcg)"), row("emulated e1000"));
        assert_eq!(column("sync exits"), column("synchronous exits"));
        assert_eq!(column("calls"), (COLUMNS.len(), "calls"));
    }
}
