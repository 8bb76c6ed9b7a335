//! One call for progress. It sends what waited for room, takes cells out of the ring, and looks now
//! and then whether other endpoints still live.

use super::engine::Engine;
use crate::cell::Cell;
use crate::region::{Region, SlotRing};

/// Messages that a call takes out of the ring. They need little of a cache, and the caller has
/// other things to do as well.
pub(super) const BATCH: usize = 64;

/// Pieces of offers that a call sends, for the same reasons.
const PIECES: usize = 16;

/// After so many empty looks in a row the producer that claimed the next cell may have died. This
/// takes some ten microseconds.
pub(super) const LOOKS_FOR_CLAIMS: u32 = 1 << 10;

/// After so many looks, empty or not, the endpoint asks whether the endpoints live that its
/// requests are with: less than a millisecond while nothing comes, a tenth of a second in a flood
/// of messages.
pub(super) const LOOKS_FOR_LIVES: u32 = 1 << 14;

impl Engine {
    #[inline]
    pub(super) fn progress(&mut self, region: &Region) {
        if self.has_business() {
            self.go_on(region);
        }
        self.looks += 1;
        if self.looks >= LOOKS_FOR_LIVES {
            self.look_around(region);
        }
        let ring = region.ring(self.me.slot);
        match self.consumer.look(&ring) {
            Some(low) => self.take(region, ring, low),
            None => self.found_nothing(region),
        }
    }

    /// Continues requests that have waited for room.
    #[inline(never)]
    fn go_on(&mut self, region: &Region) {
        if !self.answers.is_empty() {
            self.answer_again(region);
        }
        if self.sends.feeding() > 0 {
            self.feed(region, PIECES);
        }
        if self.backlog.receivers() > 0 {
            self.send_waiting(region);
        }
    }

    /// Takes the next cell, whose first word's low half was read, and more that have come.
    #[inline(never)]
    fn take(&mut self, region: &Region, ring: SlotRing<'_>, low: u32) {
        self.empty_looks = 0;
        let mut next = Some(low);
        for _ in 0..BATCH {
            let Some(low) = next else { return };
            self.arrival(region, Cell::of(region, ring, self.consumer.position()), low);
            self.consumer.advance(&ring);
            next = self.consumer.look(&ring);
        }
    }

    /// Looks which other endpoints are gone.
    #[cold]
    pub(super) fn look_around(&mut self, region: &Region) {
        self.looks = 0;
        self.ring_again(region);
        self.look_at_remotes(region);
        self.look_for_lives(region);
    }

    #[inline]
    fn found_nothing(&mut self, region: &Region) {
        self.empty_looks = self.empty_looks.wrapping_add(1);
        if self.empty_looks.is_multiple_of(LOOKS_FOR_CLAIMS) {
            self.rest(region);
        }
    }

    /// Gives room back and passes dead claims over when nothing has come for a while.
    #[cold]
    pub(super) fn rest(&mut self, region: &Region) {
        let ring = region.ring(self.me.slot);
        while self.consumer.skip_dead(&ring) {
            self.counters.skipped_cells += 1;
        }
        self.consumer.rest(&ring);
    }
}
