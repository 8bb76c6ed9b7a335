//! What differs between runs, so that nothing is compared silently that does not compare.

use crate::result::{Machine, Run};

/// Round trips of a cache line that lie further apart are of cores that lie further apart, or of
/// other machines: latencies of the two differ for that alone.
const ROUND_TRIPS_APART: f64 = 1.25;
/// Values of one difference that are named.
const NAMED_MAX: usize = 6;

/// A sentence for each difference; none if all is the same, or there is only one.
pub(super) fn between(runs: &[&Run]) -> Vec<String> {
    let mut found = Vec::new();
    let machines: Vec<(&str, &Machine)> =
        runs.iter().filter_map(|run| Some((run.title.as_str(), run.machine.as_ref()?))).collect();
    for run in runs.iter().filter(|run| run.machine.is_none()) {
        if runs.len() > 1 {
            found.push(format!("Nothing is known of the machine of {}.", quoted(&run.title)));
        }
    }
    type Ask = fn(&Machine) -> Option<String>;
    let asked: [(&str, Ask); 5] = [
        ("Processors", |machine| Some(machine.processor.clone())),
        ("Numbers of cores", |machine| Some(machine.cores.to_string())),
        ("Kernels", |machine| Some(machine.kernel.clone())),
        ("Versions of vrio", |machine| machine.version.clone()),
        ("Commits of vrio", |machine| machine.commit.clone()),
    ];
    for (what, ask) in asked {
        let values: Vec<(&str, String)> =
            machines.iter().filter_map(|(title, it)| Some((*title, ask(it)?))).collect();
        found.extend(differ(what, &values));
    }
    found.extend(round_trips(&machines));
    for (title, _) in machines.iter().filter(|(_, machine)| machine.optimised == Some(false)) {
        found.push(format!("{} is of a build without optimisation.", quoted(title)));
    }
    found.extend(tools(runs));
    found
}

fn quoted(words: &str) -> String {
    format!("“{words}”")
}

/// "Kernels differ: 6.1 (“a”, “b”), 6.12 (“c”)."
fn differ(what: &str, values: &[(&str, String)]) -> Option<String> {
    let mut kinds: Vec<(&str, Vec<&str>)> = Vec::new();
    for (title, value) in values {
        match kinds.iter_mut().find(|(known, _)| known == value) {
            Some((_, titles)) => titles.push(title),
            None => kinds.push((value, vec![title])),
        }
    }
    if kinds.len() < 2 {
        return None;
    }
    let name = |(value, titles): &(&str, Vec<&str>)| {
        let more = titles.len().saturating_sub(2);
        let mut of: Vec<String> = titles.iter().take(2).map(|title| quoted(title)).collect();
        if more > 0 {
            of.push(format!("{more} more"));
        }
        format!("{value} ({})", of.join(", "))
    };
    let mut named: Vec<String> = kinds.iter().take(NAMED_MAX).map(name).collect();
    if kinds.len() > NAMED_MAX {
        named.push(format!("{} more", kinds.len() - NAMED_MAX));
    }
    Some(format!("{what} differ: {}.", named.join("; ")))
}

fn round_trips(machines: &[(&str, &Machine)]) -> Option<String> {
    let known: Vec<(&str, u64)> = machines
        .iter()
        .filter_map(|(title, machine)| Some((*title, machine.cache_line_round_trip_ns?)))
        .collect();
    let least = known.iter().min_by_key(|(_, time)| *time)?;
    let most = known.iter().max_by_key(|(_, time)| *time)?;
    let apart = most.1 as f64 > least.1 as f64 * ROUND_TRIPS_APART;
    apart.then(|| {
        format!(
            "A cache line's round trip between two cores differs: {} ns ({}) to {} ns ({}). \
             Latencies of polling cores differ for that alone.",
            least.1,
            quoted(least.0),
            most.1,
            quoted(most.0)
        )
    })
}

fn tools(runs: &[&Run]) -> Vec<String> {
    let mut names: Vec<&String> = runs.iter().flat_map(|run| run.tools.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let of = |name: &String| -> Vec<(&str, String)> {
        let have = runs.iter().map(|run| (run.title.as_str(), run.tools.get(name)));
        have.filter_map(|(title, version)| Some((title, version?.clone()))).collect()
    };
    // A run of one program and one of another are not two versions of one.
    names.iter().filter_map(|name| differ(&format!("Versions of {name}"), &of(name))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;

    #[test]
    fn what_differs_is_named_and_what_does_not_is_not() {
        let (one, mut two) = (run("one"), run("two"));
        assert!(between(&[&one, &two]).is_empty());
        two.machine.as_mut().unwrap().kernel = "6.12".to_owned();
        two.machine.as_mut().unwrap().cache_line_round_trip_ns = Some(460);
        two.tools.insert("qemu".to_owned(), "10".to_owned());
        let found = between(&[&one, &two]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("6.12 (“two”)"), "{found:?}");
        assert!(found[1].contains("460 ns"), "{found:?}");
        two.machine = None;
        assert_eq!(between(&[&one, &two]), ["Nothing is known of the machine of “two”."]);
    }

    #[test]
    fn ten_of_a_kind_are_counted() {
        let values: Vec<(&str, String)> =
            (0..10).map(|at| ("x", if at == 0 { "a" } else { "b" }.to_owned())).collect();
        let said = differ("Kernels", &values).unwrap();
        assert_eq!(said, "Kernels differ: a (“x”); b (“x”, “x”, 7 more).");
    }
}
