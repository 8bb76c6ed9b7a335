//! Scrubs in words: of pools, and of volumes with copies on several nodes.

use node::config::show_size;
use node::status::{CopyScrub, CopyStatus, ScrubReport};

use super::layout::{uptime, words};

/// How far a scrub is that has not ended.
struct ScrubProgress<'a> {
    is_paused: bool,
    checked_bytes: u64,
    total_bytes: u64,
    left_s: Option<u64>,
    found: &'a str,
    /// The command that has it go on.
    command: &'a str,
}

impl ScrubProgress<'_> {
    fn line(&self) -> String {
        let Self { is_paused, left_s, found, command, .. } = self;
        let (checked, total) = (show_size(self.checked_bytes), show_size(self.total_bytes));
        if *is_paused {
            return format!(
                "scrub: paused, {checked} of {total} checked, {found} until now; `{command}` has \
                 it go on"
            );
        }
        let left = left_s.map(|left_s| format!(", {} left", uptime(left_s)));
        let left = left.unwrap_or_default();
        format!("scrub: {checked} of {total} checked{left}, {found} until now")
    }
}

/// A line about the proof of all blocks of a pool; none if there was none.
pub(super) fn of_pool(scrub: &ScrubReport) -> Option<String> {
    let ScrubReport { is_paused, checked_bytes, total_bytes, left_s, .. } = *scrub;
    let damaged = match scrub.damaged_blocks + scrub.damaged_map_blocks {
        0 => "no damage".to_owned(),
        1 => "1 damaged block".to_owned(),
        several => format!("{several} damaged blocks"),
    };
    if is_paused || scrub.is_running {
        let (found, command) = (&*damaged, "vrio pool scrub");
        let progress =
            ScrubProgress { is_paused, checked_bytes, total_bytes, left_s, found, command };
        return Some(progress.line());
    }
    if scrub.passes == 0 && checked_bytes == 0 {
        return None;
    }
    let (checked, total) = (show_size(checked_bytes), show_size(total_bytes));
    Some(match checked_bytes < total_bytes {
        false => format!("scrub: all of {checked} checked, {damaged}"),
        true => format!(
            "scrub: {checked} of {total} checked, {damaged}; the rest was freed meanwhile, or the \
             scrub was stopped"
        ),
    })
}

/// The findings of a scrub of copies.
fn found(scrub: &CopyScrub) -> String {
    let counts = [
        (scrub.repaired_blocks, "damaged and repaired"),
        (scrub.differed_blocks, "different and repaired"),
        (scrub.lost_blocks, "damaged on all copies"),
        (scrub.unsettled_blocks, "damaged on the copy that serves and different on other copies"),
        (scrub.busy_blocks, "too busy to be proved"),
    ];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    let counts: Vec<_> = counts.map(|(count, what)| format!("{count} blocks {what}")).collect();
    if counts.is_empty() { "no damage".to_owned() } else { counts.join(", ") }
}

/// A line about the scrub of a volume's copies.
pub(crate) fn of_copies(scrub: &CopyScrub) -> String {
    let CopyScrub { is_paused, checked_bytes, total_bytes, left_s, .. } = *scrub;
    let found = found(scrub);
    let mut line = if scrub.is_running {
        let (found, command) = (&*found, "vrio volume scrub");
        ScrubProgress { is_paused, checked_bytes, total_bytes, left_s, found, command }.line()
    } else if scrub.is_stopped {
        let (checked, total) = (show_size(checked_bytes), show_size(total_bytes));
        format!("scrub: stopped, {checked} of {total} checked, {found}")
    } else {
        format!("scrub: all of {} checked, {found}", show_size(checked_bytes))
    };
    match scrub.copies.is_empty() {
        true => line.push_str("; no other copy was compared"),
        false => line.push_str(&format!("; compared with {}", words(&scrub.copies))),
    }
    if !scrub.left.is_empty() {
        line.push_str(&format!(
            "; not proved, since out of sync meanwhile, or without an answer: {}",
            words(&scrub.left)
        ));
    }
    for differing in scrub.differing.iter().take(NAMED_MAX) {
        if differing.nodes.is_empty() {
            line.push_str(&format!("; byte {} is not settled", differing.offset_bytes));
            continue;
        }
        line.push_str(&format!(
            "; byte {} differed on {}, unlike {} copies",
            differing.offset_bytes,
            words(&differing.nodes),
            differing.agree
        ));
    }
    line
}

/// Why a scrub that has ended has not proved all copies of the volume, if it has not.
pub(crate) fn unproved(scrub: &CopyScrub, copy: &CopyStatus) -> Option<String> {
    if scrub.is_stopped {
        return Some("it was stopped before it was through".to_owned());
    }
    if scrub.lost_blocks > 0 {
        let lost = scrub.lost_blocks;
        return Some(format!(
            "{lost} blocks are damaged on all copies in sync: restore the files in them from a \
             backup"
        ));
    }
    if scrub.unsettled_blocks > 0 {
        let unsettled = scrub.unsettled_blocks;
        return Some(format!(
            "{unsettled} blocks are damaged on the copy that serves and different on other copies, \
             so it is not known which copy is right: replace the copy whose device lies, and \
             restore the files in them from a backup"
        ));
    }
    if !scrub.left.is_empty() {
        return Some(format!(
            "the copies on {} left while it went on, or did not answer: have them come into sync, \
             with a release that knows scrubs, and scrub once more",
            words(&scrub.left)
        ));
    }
    // The copy that serves has proved itself.
    let nodes = copy.in_sync.iter().chain(&copy.missing);
    let other = nodes.filter(|node| copy.primary.as_ref() != Some(*node));
    let absent = other.filter(|node| !scrub.copies.contains(node)).cloned().collect::<Vec<_>>();
    if !absent.is_empty() {
        return Some(format!(
            "the copies on {} were out of sync when it began: scrub once more when they are in \
             sync",
            words(&absent)
        ));
    }
    let busy = scrub.busy_blocks;
    (busy > 0).then(|| {
        format!(
            "{busy} blocks were busy, or a copy did not answer: scrub once more when it is calm"
        )
    })
}

/// Blocks that differed and are in the line; the JSON has more.
const NAMED_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scrub_of_copies_is_told_with_what_it_has_found() {
        let mut scrub = CopyScrub {
            is_running: true,
            checked_bytes: 1 << 30,
            total_bytes: 4 << 30,
            left_s: Some(90),
            copies: vec!["io2".to_owned()],
            ..CopyScrub::default()
        };
        let told = of_copies(&scrub);
        assert!(told.starts_with("scrub: 1GiB of 4GiB checked, "), "{told}");
        assert!(told.ends_with("left, no damage until now; compared with io2"), "{told}");
        scrub.is_paused = true;
        assert!(of_copies(&scrub).contains("`vrio volume scrub` has it go on"));
        (scrub.is_running, scrub.checked_bytes) = (false, 4 << 30);
        (scrub.repaired_blocks, scrub.differed_blocks) = (3, 1);
        scrub.differing.push(node::status::CopyDifference {
            offset_bytes: 4096,
            nodes: vec!["io2".to_owned()],
            agree: 2,
        });
        let told = of_copies(&scrub);
        let wanted = "scrub: all of 4GiB checked, 3 blocks damaged and repaired, 1 blocks \
                      different and repaired; compared with io2; byte 4096 differed on io2, unlike \
                      2 copies";
        let mut copy = CopyStatus {
            primary: Some("io1".to_owned()),
            in_sync: vec!["io1".to_owned(), "io2".to_owned()],
            ..CopyStatus::default()
        };
        assert_eq!((told.as_str(), unproved(&scrub, &copy)), (wanted, None));
        scrub.busy_blocks = 2;
        let fails = |scrub: &CopyScrub, copy: &CopyStatus, wanted: &str| {
            let why = unproved(scrub, copy).expect("not all is proved");
            assert!(why.contains(wanted), "{why}");
        };
        fails(&scrub, &copy, "2 blocks were busy");
        // A copy was away all the time, and another copy came into sync meanwhile.
        copy.missing.push("io4".to_owned());
        fails(&scrub, &copy, "the copies on io4 were out of sync when it began");
        copy.missing.clear();
        copy.in_sync.push("io5".to_owned());
        fails(&scrub, &copy, "the copies on io5 were out of sync when it began");
        scrub.left.push("io3".to_owned());
        fails(&scrub, &copy, "copies on io3 left");
        assert!(of_copies(&scrub).contains("or without an answer: io3"));
        scrub.unsettled_blocks = 1;
        scrub.differing[0].nodes.clear();
        fails(&scrub, &copy, "it is not known which copy is right");
        assert!(of_copies(&scrub).ends_with("; byte 4096 is not settled"));
    }
}
