//! The run time of a profile on a platform.

use std::collections::BTreeSet;

use serde::Serialize;

use super::collective::{Algorithm, Stage};
use super::curve::SizeCurve;
use super::platform::{MessageLink, Platform};
use super::profile::{Pattern, Profile, ProfileMessages};
use super::span::{TimeSpan, WideSpan};
use crate::fault::{PlanFault, key};
use crate::money::grouped;

/// The time of the messages of one row of a profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MessagesTime {
    /// Their pattern.
    pub pattern: Pattern,
    /// Bytes of each.
    pub bytes: u64,
    /// Thousandths of a call of a rank.
    pub count_milli: u64,
    /// Ranks that take part.
    pub ranks: u64,
    /// The way in which they are sent on this platform.
    pub algorithm: Algorithm,
    /// The time of all of them.
    pub time: TimeSpan,
}

/// The run time when the profile was recorded, beside ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RecordedTime {
    /// The recorded one.
    pub recorded_ns: u64,
    /// By how many hundredths of a percent ours is longer.
    pub missed: i64,
}

/// The prediction of one platform.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Prediction {
    /// The platform's name.
    pub platform: String,
    /// Its title.
    pub title: String,
    /// The origin of its numbers.
    pub source: String,
    /// The run time, by the range of the curves and of the ranks' computation.
    pub run: TimeSpan,
    /// Computation, and what no platform changes.
    pub computation: TimeSpan,
    /// All messages.
    pub communication: TimeSpan,
    /// The likely run time for a million of the first platform's.
    pub beside_first_ppm: u64,
    /// The most by which a size of its curve, left out, was missed by its neighbours: millionths.
    pub interpolation_ppm: u64,
    /// The run as it was recorded, if it was on this platform.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<RecordedTime>,
    /// The messages, row by row.
    pub messages: Vec<MessagesTime>,
    /// The assumptions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Published run times on the platform that was held out, beside the model's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HeldOutTest {
    /// The published slow-downs, one for each application, in millionths of native's run. No larger
    /// one was tested.
    pub slowdowns_ppm: Vec<u64>,
    /// The most by which the model missed one, in millionths of the run.
    pub missed_most_ppm: u64,
    /// The most by which no slow-down at all would have missed one.
    pub without_model_ppm: u64,
}

/// The predictions of several platforms, and how sure they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Predicted {
    /// The only test of the model. It bounds no error: it has no platform that is much slower.
    pub held_out: HeldOutTest,
    /// The predictions.
    pub platforms: Vec<Prediction>,
}

/// Predicts a profile on each of the platforms.
///
/// # Errors
/// When a platform lacks the times of messages that the profile has, or a run is too long.
pub fn predict(profile: &Profile, platforms: &[Platform]) -> Result<Vec<Prediction>, PlanFault> {
    let all = platforms.iter().map(|platform| one(profile, platform));
    let mut all = all.collect::<Result<Vec<_>, _>>()?;
    let first = all.first().map_or(1, |it| it.run.likely_ns.max(1));
    for it in &mut all {
        let ppm = u128::from(it.run.likely_ns) * 1_000_000 / u128::from(first);
        it.beside_first_ppm = u64::try_from(ppm).unwrap_or(u64::MAX);
    }
    Ok(all)
}

fn one(profile: &Profile, platform: &Platform) -> Result<Prediction, PlanFault> {
    let mut notes = Vec::new();
    let assumed = MessageLink::assumed();
    let crosses = profile.ranks > profile.ranks_per_host && !profile.messages.is_empty();
    let between = match &platform.between_hosts {
        Some(link) => link,
        None if crosses => {
            let cause = "it has no times of messages between hosts";
            let way_out = "measure it with `vrio bench mpi --hosts 2`, or set ranks_per_host to \
                           the number of ranks";
            return Err(key(format!("--platform {}", platform.name), cause, way_out));
        }
        None => &assumed,
    };
    let within = platform.within_host.as_ref().unwrap_or(&assumed);
    if platform.within_host.is_none() && profile.ranks_per_host > 1 {
        let words = "messages within a host: 0.5 us and 5 GB/s, or half or twice as much of each";
        notes.push(words.to_owned());
    }
    if profile.ranks_per_host > 1 && !profile.messages.is_empty() {
        notes.push("ranks of a host copy as if each had its memory alone".to_owned());
    }
    let computation = computation(profile, platform, &mut notes);
    if crosses && profile.ranks_per_host > 1 && between.gap.is_none() {
        let words = "short messages of a host's ranks at the same time cost nothing but their \
                     bytes: their pace is not known";
        notes.push(words.to_owned());
    }
    notes_on_places(profile, crosses, &mut notes);
    let known = [platform.between_hosts.as_ref(), platform.within_host.as_ref()];
    let curves = known.into_iter().flatten();
    curves.clone().for_each(|link| notes_on_curves(profile, link, &mut notes));
    let mut communication = WideSpan::default();
    let mut rows = Vec::new();
    for messages in &profile.messages {
        let per_host = messages.per_host.unwrap_or(profile.ranks_per_host);
        let stage = Stage { between, within, ranks: messages.ranks, per_host };
        let (algorithm, each) = stage.time(messages);
        let time = each.times(messages.count_milli).part(1, 1000);
        communication = communication.plus(time);
        rows.push(MessagesTime {
            pattern: messages.pattern,
            bytes: messages.bytes,
            count_milli: messages.count_milli,
            ranks: messages.ranks,
            algorithm,
            time: time.narrow("messages of the run")?,
        });
    }
    let run = computation.plus(communication).narrow("time of the run")?;
    let recorded = profile.recorded.as_ref().filter(|(_, on)| on.as_ref() == Some(&platform.name));
    Ok(Prediction {
        platform: platform.name.clone(),
        title: platform.title.clone(),
        source: platform.source.clone(),
        run,
        computation: computation.narrow("computation of the run")?,
        communication: communication.narrow("messages of the run")?,
        beside_first_ppm: 1_000_000,
        interpolation_ppm: curves.map(interpolation_ppm).max().unwrap_or(0),
        recorded: recorded.and_then(|(ns, _)| missed(*ns, run.likely_ns)),
        messages: rows,
        notes,
    })
}

/// The most by which a size of a link's curves, left out, was missed.
fn interpolation_ppm(link: &MessageLink) -> u64 {
    let gap_ppm = link.gap.as_ref().map_or(0, SizeCurve::missed_most_ppm);
    link.latency.missed_most_ppm().max(gap_ppm)
}

/// Rows of fewer ranks than all may be of ranks that lie apart, such as one of each host.
fn notes_on_places(profile: &Profile, crosses: bool, notes: &mut Vec<String>) {
    let is_taken = |row: &&ProfileMessages| {
        let is_part = row.pattern != Pattern::PointToPoint && row.ranks < profile.ranks;
        is_part && row.ranks > 1 && row.per_host.is_none()
    };
    let rows = profile.messages.iter().filter(is_taken).count();
    if crosses && profile.ranks_per_host > 1 && rows > 0 {
        notes.push(format!(
            "messages of fewer ranks than all have no ranks_per_host (rows: {rows}): their ranks \
             follow one another"
        ));
    }
}

/// Sizes at which a curve says less than it seems to.
fn notes_on_curves(profile: &Profile, link: &MessageLink, notes: &mut Vec<String>) {
    let curves = [("latency", Some(&link.latency)), ("bandwidth", link.gap.as_ref())];
    for (name, curve) in curves {
        if curve.is_some_and(SizeCurve::is_unproved) {
            notes.push(format!(
                "the {name} was measured at fewer than three sizes, so its error at other sizes is \
                 not known"
            ));
        }
    }
    let [least, most] = link.latency.ends();
    let sizes = profile.messages.iter().filter(|row| row.pattern != Pattern::Barrier);
    let outside = sizes.map(|row| row.bytes).filter(|bytes| !(least..=most).contains(bytes));
    let outside: BTreeSet<u64> = outside.collect();
    if let (Some(first), Some(last)) = (outside.first(), outside.last()) {
        notes.push(format!(
            "messages of {} to {} bytes are outside of the sizes of the latency, {} to {}",
            grouped(*first),
            grouped(*last),
            grouped(least),
            grouped(most),
        ));
    }
}

/// The computation at the platform's clock. The slowest rank decides: other ranks wait. If no
/// rank waited, it would be that of a rank on average.
fn computation(profile: &Profile, platform: &Platform, notes: &mut Vec<String>) -> WideSpan {
    let [most_ns, mean_ns] = profile.computation_ns.map(u128::from);
    let mut span = WideSpan { least_ns: mean_ns, likely_ns: most_ns, most_ns };
    match (profile.processor_mhz, platform.processor_mhz) {
        (Some(here), Some(there)) => span = span.part(here, there),
        (Some(_), None) => {
            notes.push("the platform's clock is not known: computation as recorded".to_owned());
        }
        (None, Some(_)) => {
            let words = "the profile has no processor_mhz: computation as recorded, at any clock";
            notes.push(words.to_owned());
        }
        (None, None) => {}
    }
    span = span.part(platform.computation.ppm(), 1_000_000);
    span.plus(WideSpan::exact(u128::from(profile.other_ns)))
}

fn missed(recorded_ns: u64, ours_ns: u64) -> Option<RecordedTime> {
    let (recorded, ours) = (i128::from(recorded_ns), i128::from(ours_ns));
    let missed = (ours - recorded).checked_mul(10_000)?.checked_div(recorded)?;
    Some(RecordedTime { recorded_ns, missed: i64::try_from(missed).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = "
        title = \"t\"
        ranks = 4
        ranks_per_host = 1
        processor_mhz = 2000
        computation_s = 10
        computation_mean_s = 8
        other_s = 1
        recorded_s = 20
        recorded_on = \"slow\"
        messages = [{ pattern = \"barrier\", count = 1000000 }]
    ";

    fn platform(name: &str, text: &str) -> Platform {
        let head = "title = \"t\"\nsource = \"s\"\n";
        Platform::read(name, &format!("{head}{text}")).unwrap()
    }

    fn between(ns: u64) -> String {
        format!("[between_hosts]\nlatency = [{{ bytes = 0, ns = {ns} }}]\n")
    }

    #[test]
    fn computation_goes_by_the_clock_and_messages_by_the_curve() {
        let profile = Profile::read("p", PROFILE).unwrap();
        let first = platform("first", &format!("processor_mhz = 2000\n{}", between(1000)));
        let text = format!("processor_mhz = 4000\ncomputation = \"11/10\"\n{}", between(2000));
        let slow = platform("slow", &text);
        let both = predict(&profile, &[first, slow]).unwrap();
        // 10 s and 1 s of files, and a million barriers of two steps.
        assert_eq!(both[0].run.likely_ns, 13_000_000_000);
        assert_eq!(both[0].run.least_ns, 11_000_000_000, "the mean of the ranks");
        assert_eq!((both[0].recorded, both[0].beside_first_ppm), (None, 1_000_000));
        // Half of the computation's time, a tenth more, and messages of twice the time.
        assert_eq!(both[1].computation.likely_ns, 6_500_000_000);
        assert_eq!(both[1].communication.likely_ns, 4_000_000_000);
        assert_eq!(both[1].beside_first_ppm, 10_500_000_000 * 1_000_000 / 13_000_000_000);
        let recorded = RecordedTime { recorded_ns: 20_000_000_000, missed: -4750 };
        assert_eq!(both[1].recorded, Some(recorded));
        let notes = &both[1].notes;
        assert!(notes.len() == 1 && notes[0].contains("fewer than three sizes"), "{notes:?}");
    }

    #[test]
    fn assumptions_are_notes() {
        let text = PROFILE.replace("ranks_per_host = 1", "ranks_per_host = 2");
        let profile = Profile::read("p", &text).unwrap();
        let notes = &predict(&profile, &[platform("p", &between(1000))]).unwrap()[0].notes;
        let words = ["half or twice", "its memory alone", "clock", "cost nothing but their bytes"];
        for (note, words) in notes.iter().zip(words) {
            assert!(note.contains(words), "{notes:?}");
        }
    }

    /// The recorder knows no clock.
    #[test]
    fn a_profile_without_a_clock_is_no_secret() {
        let text = PROFILE.replace("processor_mhz = 2000", "");
        let profile = Profile::read("p", &text).unwrap();
        let slow = platform("slow", &format!("processor_mhz = 1000\n{}", between(1000)));
        let notes = &predict(&profile, &[slow]).unwrap()[0].notes;
        assert!(notes[0].contains("no processor_mhz"), "{notes:?}");
    }

    /// A sum of a rank of each host is all between hosts, though a host has as many ranks.
    #[test]
    fn ranks_of_a_row_lie_on_hosts_as_it_says() {
        let head = PROFILE.split("messages").next().unwrap();
        let head = head.replace("ranks_per_host = 1", "ranks_per_host = 2");
        let time = |extra: &str| {
            let row = "pattern = \"allreduce\", bytes = 8, count = 1000, ranks = 2";
            let text = format!("{head}messages = [{{ {row}{extra} }}]");
            let profile = Profile::read("p", &text).unwrap();
            let all = predict(&profile, &[platform("p", &between(100_000))]).unwrap();
            (all[0].communication.likely_ns, all[0].notes.join("\n"))
        };
        let (near, notes) = time("");
        assert!(notes.contains("(rows: 1): their ranks follow"), "{notes}");
        let (far, notes) = time(", ranks_per_host = 1");
        assert!(!notes.contains("fewer ranks"), "{notes}");
        assert_eq!((near, far), (502_000, 100_000_000));
    }

    #[test]
    fn sizes_that_a_curve_does_not_know_are_notes() {
        let head = PROFILE.split("messages").next().unwrap();
        let row = "pattern = \"allreduce\", bytes = 2048, count = 1000";
        let profile = Profile::read("p", &format!("{head}messages = [{{ {row} }}]")).unwrap();
        let text =
            "[between_hosts]\nlatency = [{ bytes = 8, ns = 1000 }, { bytes = 64, ns = 2000 }]
            bandwidth = [{ bytes = 8, mb_per_s = 8 }, { bytes = 64, mb_per_s = 8 }, \
            { bytes = 128, mb_per_s = 8 }, { bytes = 256, mb_per_s = 256 }]";
        let it = &predict(&profile, &[platform("own", text)]).unwrap()[0];
        let notes = it.notes.join("\n");
        assert!(notes.contains("latency was measured at fewer than three sizes"), "{notes}");
        assert!(notes.contains("2,048 to 2,048 bytes are outside of the sizes of"), "{notes}");
        assert!(it.interpolation_ppm > 0, "of the bandwidth");
    }

    #[test]
    fn hosts_without_messages_between_them_are_refused() {
        let profile = Profile::read("p", PROFILE).unwrap();
        let near = platform("near", &between(1000).replace("between_hosts", "within_host"));
        let fault = predict(&profile, std::slice::from_ref(&near)).unwrap_err().to_string();
        assert!(fault.contains("--platform near") && fault.contains("--hosts 2"), "{fault}");
        let text = PROFILE.replace("ranks_per_host = 1", "ranks_per_host = 4");
        let on_one = Profile::read("p", &text).unwrap();
        assert!(predict(&on_one, &[near]).is_ok());
    }

    #[test]
    fn a_run_beyond_all_clocks_is_refused() {
        let row = "{ pattern = \"alltoall\", bytes = 2147483648, count = 40000000000 }";
        let text = PROFILE
            .replace("ranks = 4", "ranks = 131072")
            .replace("{ pattern = \"barrier\", count = 1000000 }", row);
        let profile = Profile::read("p", &text).unwrap();
        let fault = predict(&profile, &[platform("p", &between(3_600_000_000_000))]).unwrap_err();
        assert!(matches!(fault, PlanFault::Overflow { .. }), "{fault}");
    }
}
