//! The versions that a block may have, and cuts through the order of all requests.

use store::block::Block;

use super::content::{Content, seems_written_by};

/// The time of completion of a request that is under way, or that a crash ended.
pub(crate) const UNDER_WAY: u64 = u64::MAX;

/// One content of a block. Versions of a block are in the order of their admission.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    /// When the request was admitted, which is also its name.
    pub(crate) admitted: u64,
    /// When it was completed.
    pub(crate) completed: u64,
    /// The content.
    pub(crate) content: Content,
}

impl Version {
    /// The content of a block before it is written.
    pub(crate) const FIRST: Self = Self { admitted: 0, completed: 0, content: Content::ZERO };
}

/// A set of requests that is closed under "was completed before that was admitted".
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// The last admission of a request that is in.
    pub(crate) newest_in: u64,
    /// The first completion of a request that is out.
    pub(crate) oldest_out: u64,
}

impl Cut {
    /// A cut with all that was completed before `barrier`.
    pub(crate) fn behind(barrier: u64) -> Self {
        Self { newest_in: barrier, oldest_out: UNDER_WAY }
    }

    /// Notes the last of a block's versions that is in.
    pub(crate) fn see(&mut self, versions: &[Version], seen: &Seen) {
        self.newest_in = self.newest_in.max(versions[seen.earliest].admitted);
        let out = versions[seen.latest + 1..].iter().map(|version| version.completed).min();
        self.oldest_out = self.oldest_out.min(out.unwrap_or(UNDER_WAY));
    }

    /// Whether all that was completed before the newest one in is in as well.
    pub(crate) fn is_closed(&self) -> bool {
        self.newest_in <= self.oldest_out
    }
}

/// The versions that have the content that was seen: equal contents are zeroes, mostly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// The first one.
    pub(crate) earliest: usize,
    /// The last one.
    pub(crate) latest: usize,
}

/// The last version that was completed at `time`: none before it may be seen after.
pub(crate) fn floor(versions: &[Version], time: u64) -> usize {
    versions.iter().rposition(|version| version.completed <= time).unwrap_or(0)
}

/// Which versions from `floor` on have the content.
pub(crate) fn see(versions: &[Version], floor: usize, block: Option<&Block>) -> Option<Seen> {
    let matches = |version: &Version| version.content.matches(block);
    let latest = floor + versions[floor..].iter().rposition(matches)?;
    let earliest = floor + versions[floor..].iter().position(matches)?;
    Some(Seen { earliest, latest })
}

/// A content that no version has, for a failure's text.
pub(crate) fn describe(versions: &[Version], floor: usize, block: Option<&Block>) -> String {
    let found = match (block, see(versions, 0, block)) {
        (_, Some(seen)) => format!("version {} of the list", seen.latest),
        (Some(block), None) if block.0.iter().any(|&byte| byte != 0) => {
            format!("a block that looks like #{}", seems_written_by(block))
        }
        _ => "zeroes".to_owned(),
    };
    let list: Vec<String> = versions
        .iter()
        .map(|Version { admitted, completed, content }| match *completed {
            UNDER_WAY => format!("{content:?} ({admitted}..)"),
            _ => format!("{content:?} ({admitted}..{completed})"),
        })
        .collect();
    format!("found {found}, allowed from {floor} on: {}", list.join(", "))
}
