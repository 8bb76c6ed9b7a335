//! Predictions as text.

use std::fmt::Write;

use super::predict::{Predicted, Prediction};
use super::profile::Profile;
use super::span::TimeSpan;
use crate::money::{grouped, percent};
use crate::simulate::show::time;
use crate::text::{row, table};

/// The rows of messages of a platform that are printed: the dearest.
const ROWS_SHOWN: usize = 12;

fn range(span: TimeSpan) -> String {
    format!("{} to {}", time(span.least_ns), time(span.most_ns))
}

/// Hundredths of a ratio, rounded.
fn ratio(ppm: u64) -> String {
    let hundredths = ppm.saturating_add(5_000) / 10_000;
    format!("{}.{:02}", grouped(hundredths / 100), hundredths % 100)
}

fn share(part: u64, whole: u64) -> String {
    let tenths = u128::from(part) * 1000 / u128::from(whole.max(1));
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// A number of calls, in thousandths.
fn calls(milli: u64) -> String {
    match milli % 1000 {
        0 => grouped(milli / 1000),
        part => format!("{}.{part:03}", grouped(milli / 1000)),
    }
}

/// The predictions as tables.
pub fn predictions_text(profile: &Profile, predicted: &Predicted) -> String {
    let hosts = profile.ranks.div_ceil(profile.ranks_per_host);
    let mut text = format!(
        "{}\nranks: {}, hosts: {}\n\n",
        profile.title,
        grouped(profile.ranks),
        grouped(hosts),
    );
    let head = ["platform", "run", "range of the curves", "beside the first", "messages"];
    let mut rows = vec![row(head)];
    for it in &predicted.platforms {
        rows.push(vec![
            it.platform.clone(),
            time(it.run.likely_ns),
            range(it.run),
            ratio(it.beside_first_ppm),
            share(it.communication.likely_ns, it.run.likely_ns),
        ]);
    }
    text.push_str(&table(&rows, 1));
    for it in &predicted.platforms {
        messages(&mut text, it);
    }
    let test = &predicted.held_out;
    let up_to = |ppm: u64| share(ppm.next_multiple_of(1000), 1_000_000);
    let slowdowns: Vec<String> = test.slowdowns_ppm.iter().copied().map(ratio).collect();
    let _ = write!(
        text,
        "\nThe range is that of the curves (between their sizes, and by the words of texts) and \
         of the ranks' computation.\nThe model's own error comes on top, and is not known. Its one \
         test: {} applications on one platform that was\nheld out, {} times as slow as native; no \
         larger slow-down was tested. It missed them by up to {}, and\nno slow-down at all would \
         by up to {} (`vrio plan published`).\n",
        test.slowdowns_ppm.len(),
        slowdowns.join(" and "),
        up_to(test.missed_most_ppm),
        up_to(test.without_model_ppm),
    );
    text
}

fn messages(text: &mut String, of: &Prediction) {
    let _ = write!(text, "\n{}: {}\n", of.platform.to_uppercase(), of.title);
    let head = ["messages", "bytes", "ranks", "calls of a rank", "algorithm", "time", "range"];
    let mut rows = vec![row(head)];
    let mut dearest: Vec<_> = of.messages.iter().collect();
    // Rows of the same time stay in the order of the file.
    dearest.sort_by_key(|it| std::cmp::Reverse(it.time.likely_ns));
    for it in dearest.iter().take(ROWS_SHOWN) {
        rows.push(vec![
            it.pattern.name().to_owned(),
            grouped(it.bytes),
            grouped(it.ranks),
            calls(it.count_milli),
            it.algorithm.name().to_owned(),
            time(it.time.likely_ns),
            range(it.time),
        ]);
    }
    if !dearest.is_empty() {
        text.push_str(&table(&rows, 1));
    }
    if let Some(more) = dearest.len().checked_sub(ROWS_SHOWN).filter(|more| *more > 0) {
        let _ = writeln!(text, "{more} rows of messages more take less time each (--json).");
    }
    if let Some(recorded) = &of.recorded {
        let _ = writeln!(
            text,
            "Recorded on it: {}; the prediction is off by {}.",
            time(recorded.recorded_ns),
            percent(recorded.missed),
        );
    }
    if of.interpolation_ppm > 0 {
        let most = share(of.interpolation_ppm, 1_000_000);
        let _ = writeln!(
            text,
            "A size of its curves that is left out is missed by {most} at most; sizes between two \
             points have that range."
        );
    }
    for note in &of.notes {
        let _ = writeln!(text, "Assumed: {note}.");
    }
    let _ = writeln!(text, "Source: {}", of.source);
}
