//! Requests for the difference of two snapshots.

use std::collections::VecDeque;

use super::core::{EngineCore, unless_missing};
use crate::api::{PoolError, RequestTag, VolumeId};
use crate::map::ChangedBlocks;

/// The most requests at once, with those whose answer was not taken.
const DIFFERENCES_MAX: usize = 16;

#[derive(Debug)]
struct Difference {
    tag: RequestTag,
    from: Option<VolumeId>,
    to: VolumeId,
    start: u64,
}

/// Differences that are looked for, and those that are found.
#[derive(Debug, Default)]
pub(crate) struct Differences {
    waiting: VecDeque<Difference>,
    found: Vec<(RequestTag, ChangedBlocks)>,
}

impl Differences {
    /// Whether another request is taken.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() + self.found.len() < DIFFERENCES_MAX
    }

    /// How many are looked for.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Takes a request.
    pub(crate) fn begin(
        &mut self,
        tag: RequestTag,
        from: Option<VolumeId>,
        to: VolumeId,
        start: u64,
    ) {
        self.waiting.push_back(Difference { tag, from, to, start });
    }

    /// Goes on with the first request that has waited: one part in a round, beside the guests'
    /// requests.
    pub(crate) fn poll(&mut self, core: &mut EngineCore) {
        let Some(first) = self.waiting.front() else { return };
        let Difference { tag, from, to, start } = *first;
        let result = match refusal(core, from, to) {
            Some(error) => Err(error),
            None => match unless_missing(core.map.changed(from, to, start)) {
                None => return,
                Some(result) => result,
            },
        };
        self.waiting.pop_front();
        core.done(
            tag,
            result.map(|found| {
                self.found.push((tag, found));
                to
            }),
        );
    }

    /// The answer of a request that is done.
    pub(crate) fn take(&mut self, tag: RequestTag) -> Option<ChangedBlocks> {
        let at = self.found.iter().position(|(found, _)| *found == tag)?;
        Some(self.found.swap_remove(at).1)
    }
}

/// Why there is no difference of these: only snapshots stay as they are.
pub(crate) fn refusal(
    core: &EngineCore,
    from: Option<VolumeId>,
    to: VolumeId,
) -> Option<PoolError> {
    let mut versions = from.into_iter().chain([to]);
    let wrong = versions.find(|&version| !core.map.is_snapshot(version))?;
    Some(match core.map.is_head(wrong) {
        true => PoolError::WrongKind(wrong, "a volume: take a snapshot of it, and name that"),
        false => PoolError::NoVolume(wrong),
    })
}
