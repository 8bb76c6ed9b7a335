//! What series are called in a legend: what sets them apart, and not what they share.

use crate::result::{Origin, Statistic};

use super::Item;

/// A name for each of the items, all of them different.
pub(super) fn of(items: &[Item<'_>]) -> Vec<String> {
    let (others, own): (Vec<&Item<'_>>, Vec<&Item<'_>>) =
        items.iter().partition(|item| item.is_published());
    let parts: Vec<[String; 4]> = own.iter().map(|item| parts(item)).collect();
    let differs: Vec<bool> = (0..4).map(|at| !is_shared(&parts, at)).collect();
    // Of what they all share, the measurement's title is what a reader would call them.
    let keeps = |at: usize| differs[at] || (at == 1 && !differs.contains(&true));
    let mut own = parts.iter().map(|parts| {
        let kept = parts.iter().enumerate().filter(|(at, part)| keeps(*at) && !part.is_empty());
        kept.map(|(_, part)| part.as_str()).collect::<Vec<_>>().join(", ")
    });
    let several = others.len() > 1;
    let mut names = Vec::new();
    for item in items {
        let name = if item.is_published() {
            published(item, if several { &item.series.name } else { "" })
        } else {
            own.next().unwrap_or_default()
        };
        let same = names.iter().filter(|found: &&String| is_same(found, &name)).count();
        names.push(if same == 0 { name } else { format!("{name} ({})", same + 1) });
    }
    names
}

/// Whether `found` is `name`, or was it before it got a number.
fn is_same(found: &str, name: &str) -> bool {
    found.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with(" ("))
}

fn parts(item: &Item<'_>) -> [String; 4] {
    let run = item.run.map(|run| run.title.clone()).unwrap_or_default();
    let title = item.measurement.title.clone();
    let title = if title == run { String::new() } else { title };
    let name = item.series.name.clone();
    let name = if name == title { String::new() } else { name };
    let which = item.series.statistic.map(Statistic::words).unwrap_or_default();
    let which = if name.contains(which) { String::new() } else { which.to_owned() };
    [run, title, name, which]
}

fn is_shared(parts: &[[String; 4]], at: usize) -> bool {
    parts.windows(2).all(|two| two[0][at] == two[1][at])
}

/// What others published: that first, then what, then where it stands.
pub(super) fn published(item: &Item<'_>, which: &str) -> String {
    let source = item.measurement.source.as_deref().unwrap_or("source unknown");
    let title = &item.measurement.title;
    let which = if which.is_empty() || title.contains(which) {
        String::new()
    } else {
        format!(", {which}")
    };
    format!("published: {title}{which} ({source})")
}

/// Whether a series is somebody else's, in the words of a caption.
pub(super) fn origin(origin: Origin) -> &'static str {
    match origin {
        Origin::Measured => "measured by vrio",
        Origin::Imported => "imported: another program measured",
        Origin::Published => "published: others measured, elsewhere",
    }
}
