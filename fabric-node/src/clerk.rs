//! The node's side of one VM's part of the desk.
//!
//! What stands in the part is read once and checked; which turn of an entry comes next, and whose
//! each slot is, the clerk remembers itself. A VM can write into another one's part, as any member
//! of the domain can: without the key all that comes of it is "denied".

use std::time::{Duration, Instant};

use rustix::io::Errno;

#[cfg(test)]
mod tests;

use crate::hand_over::{ClerkState, Unfit, expect};
use fabric::Region;
use fabric::desk::{
    Ask, DESK_VERSION, ENTRIES, NONCE_WORDS, Part, Place, Question, Reply, Stage, Standing,
    VMS_MAX, is_proven,
};
use fabric::door::{Key, Seat};

/// How long an entry may be claimed and not asked, or answered and not read: who did that is dead,
/// or stopped. Long, for an emulated machine.
const STUCK: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 20_000 });

/// Starts of a VM's system that are remembered to be over. What one of those has asked and nobody
/// has answered is answered at the next ring, long before there were so many others.
const BOOTS_MAX: usize = 8;

/// One VM's clerk.
#[derive(Debug)]
pub(crate) struct Clerk {
    part: u8,
    nonce: [u64; NONCE_WORDS],
    /// The turn that each entry is in.
    turns: [u32; ENTRIES],
    /// What was found in an entry, and since when, that is neither free nor to be answered.
    stuck: [Option<(u64, Instant)>; ENTRIES],
    /// Of the VM's system; another one means that it was started anew, and that all who were there
    /// before are gone.
    boot: Option<u64>,
    /// Those before, the last ones.
    boots_over: Vec<u64>,
    /// Who holds which ticket.
    held: Vec<(u64, Seat)>,
}

/// What the clerk needs of the domain.
pub(crate) trait House {
    /// Its name.
    fn domain(&self) -> &str;
    /// Its key.
    fn key(&self) -> &Key;
    /// Whether somebody new may come.
    fn takes_new(&self) -> bool;
    /// A slot for somebody, if one is left.
    fn seat(&self) -> Option<Seat>;
    /// These are dead.
    fn bury(&self, seats: &[Seat]);
}

impl Clerk {
    /// For a VM that has just come.
    ///
    /// # Errors
    /// When there is no randomness.
    pub(crate) fn new(region: &Region, part: u8) -> Result<Self, Errno> {
        let mut bytes = [[0; 8]; NONCE_WORDS];
        // Up to 256 bytes come whole.
        let flags = rustix::rand::GetRandomFlags::empty();
        rustix::rand::getrandom(bytes.as_flattened_mut(), flags)?;
        let nonce = bytes.map(u64::from_le_bytes);
        let words = Part::new(region, part);
        for entry in 0..ENTRIES {
            words.stand(entry, Standing { stage: Stage::Free, turn: 0 });
        }
        words.begin(nonce, DESK_VERSION);
        let (turns, stuck) = ([0; ENTRIES], [None; ENTRIES]);
        let (boots_over, held) = (Vec::new(), Vec::new());
        Ok(Self { part, nonce, turns, stuck, boot: None, boots_over, held })
    }

    /// For a VM of which another process's clerk remembered this; nothing is written.
    pub(crate) fn adopt(state: ClerkState) -> Result<Self, Unfit> {
        let ClerkState { part, nonce, turns, boot, boots_over, held } = state;
        expect((1..=VMS_MAX).contains(&part), "a part of the desk is none")?;
        expect(boots_over.len() <= BOOTS_MAX, "more starts are remembered than may be")?;
        let turns = turns.try_into();
        let turns = turns.map_err(|_| Unfit::Contradiction("a desk has other entries"))?;
        let seat = |(ticket, (slot, incarnation))| (ticket, Seat { slot, incarnation });
        let (stuck, held) = ([None; ENTRIES], held.into_iter().map(seat).collect());
        Ok(Self { part, nonce, turns, stuck, boot, boots_over, held })
    }

    /// What [`Clerk::adopt`] takes.
    pub(crate) fn take_down(&self) -> ClerkState {
        let &Self { part, nonce, boot, .. } = self;
        let (turns, boots_over) = (self.turns.to_vec(), self.boots_over.clone());
        let held = self.held.iter().map(|(ticket, it)| (*ticket, (it.slot, it.incarnation)));
        ClerkState { part, nonce, turns, boot, boots_over, held: held.collect() }
    }

    pub(crate) fn part(&self) -> u8 {
        self.part
    }

    /// Slots that its processes have.
    pub(crate) fn seats(&self) -> Vec<Seat> {
        self.held.iter().map(|(_, seat)| *seat).collect()
    }

    /// The VM is gone: whoever has its part next begins anew. Gives the slots that it had.
    pub(crate) fn end(self, region: &Region) -> Vec<Seat> {
        Part::new(region, self.part).begin([0; NONCE_WORDS], 0);
        self.seats()
    }

    /// Answers what is asked. How many were denied.
    pub(crate) fn serve(&mut self, region: &Region, house: &impl House) -> usize {
        let part = Part::new(region, self.part);
        let now = Instant::now();
        // Reports of deaths are read first and believed last: what the dead may have asked before
        // is given to them first, so that no slot is given to somebody already forgotten.
        let mut reports = [None; ENTRIES];
        for (entry, report) in reports.iter_mut().enumerate() {
            if self.is_asked(part, entry, now) {
                let question = self.judge(part, entry, house);
                *report = question.filter(|question| question.ask == Ask::Dead);
            }
        }
        let mut denied = 0;
        for (entry, report) in reports.iter().enumerate() {
            if report.is_some() || !self.is_asked(part, entry, now) {
                continue;
            }
            let reply = match self.judge(part, entry, house) {
                // It came just now: so does another ring.
                Some(Question { ask: Ask::Dead, .. }) => continue,
                Some(question) => self.reply_to(question, house),
                None => Reply::Denied,
            };
            denied += usize::from(reply == Reply::Denied);
            self.answer(part, entry, reply);
        }
        for (entry, report) in reports.iter().enumerate() {
            let Some(Question { boot, ticket, .. }) = *report else { continue };
            let reply = if self.note_boot(boot, house) {
                self.forget(ticket, house);
                Reply::Done
            } else {
                denied += 1;
                Reply::Denied
            };
            self.answer(part, entry, reply);
        }
        denied
    }

    /// Whether something is asked in an entry. What stands there for too long, or makes no sense,
    /// is cleared away.
    fn is_asked(&mut self, part: Part<'_>, entry: usize, now: Instant) -> bool {
        let turn = self.turns[entry];
        let word = part.standing_word(entry);
        match Standing::from_word(word).filter(|standing| standing.turn == turn) {
            Some(Standing { stage: Stage::Asked, .. }) => return true,
            Some(Standing { stage: Stage::Free, .. }) => {
                self.stuck[entry] = None;
                return false;
            }
            _ => {}
        }
        match self.stuck[entry] {
            Some((was, since)) if was == word => {
                if now.duration_since(since) >= STUCK {
                    self.next_turn(part, entry);
                    part.stand(entry, Standing { stage: Stage::Free, turn: self.turns[entry] });
                }
            }
            _ => self.stuck[entry] = Some((word, now)),
        }
        false
    }

    fn next_turn(&mut self, part: Part<'_>, entry: usize) {
        self.turns[entry] = self.turns[entry].wrapping_add(1);
        self.stuck[entry] = None;
        if self.turns[entry] == 0 {
            // No proof is to be believed twice, 2^32 questions later either. Who has asked with the
            // words before asks again. The first word stays: it names the tickets.
            self.nonce[1] = self.nonce[1].wrapping_add(1);
            part.begin(self.nonce, DESK_VERSION);
        }
    }

    /// The question of an entry, if who asks has the key.
    fn judge(&self, part: Part<'_>, entry: usize, house: &impl House) -> Option<Question> {
        let (words, proof) = part.question(entry);
        let (nonce, turn) = (self.nonce, self.turns[entry]);
        let domain = house.domain();
        let place = Place { domain, nonce, part: self.part, entry: entry as u8, turn };
        is_proven(house.key(), &place, words, proof).then(|| Question::from_words(words)).flatten()
    }

    fn reply_to(&mut self, question: Question, house: &impl House) -> Reply {
        let Question { ask, boot, ticket } = question;
        if !self.note_boot(boot, house) {
            return Reply::Denied;
        }
        match ask {
            Ask::Hello if house.takes_new() => Reply::Done,
            Ask::Hello => Reply::Crowded,
            Ask::Open => match self.seat_of(ticket, house) {
                Some(seat) => Reply::Seat(seat),
                None => Reply::Full,
            },
            Ask::Close(seat) if self.held.contains(&(ticket, seat)) => {
                self.forget(ticket, house);
                Reply::Done
            }
            Ask::Close(_) => Reply::Denied,
            // Seen to by the caller.
            Ask::Dead => Reply::Done,
        }
    }

    /// A ticket has one slot: who has not seen the answer may ask again.
    fn seat_of(&mut self, ticket: u64, house: &impl House) -> Option<Seat> {
        if let Some((_, seat)) = self.held.iter().find(|(held, _)| *held == ticket) {
            return Some(*seat);
        }
        let seat = house.seat()?;
        self.held.push((ticket, seat));
        Some(seat)
    }

    /// Whoever was there before the VM's system was started anew is gone. `false`: and so is who
    /// asked this, which was found late.
    fn note_boot(&mut self, boot: u64, house: &impl House) -> bool {
        if self.boots_over.contains(&boot) {
            return false;
        }
        if let Some(before) = self.boot.replace(boot).filter(|before| *before != boot) {
            house.bury(&self.seats());
            self.held.clear();
            if self.boots_over.len() == BOOTS_MAX {
                self.boots_over.remove(0);
            }
            self.boots_over.push(before);
        }
        true
    }

    fn forget(&mut self, ticket: u64, house: &impl House) {
        if let Some(at) = self.held.iter().position(|(held, _)| *held == ticket) {
            let (_, seat) = self.held.swap_remove(at);
            house.bury(&[seat]);
        }
    }

    fn answer(&mut self, part: Part<'_>, entry: usize, reply: Reply) {
        let turn = self.turns[entry];
        part.set_reply(entry, reply);
        self.next_turn(part, entry);
        // If it is something else by now somebody writes over it, and it is cleared away later.
        part.step(entry, turn, Stage::Asked, Stage::Answered);
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;
    use fabric::RegionOptions;
    use fabric::desk::Desk;
    use std::sync::{Arc, Mutex};

    /// Who has nothing to give.
    struct Poor(Key);

    impl House for Poor {
        fn domain(&self) -> &str {
            "blue"
        }
        fn key(&self) -> &Key {
            &self.0
        }
        fn takes_new(&self) -> bool {
            true
        }
        fn seat(&self) -> Option<Seat> {
            None
        }
        fn bury(&self, _: &[Seat]) {}
    }

    /// A region, a clerk of its first part, and a desk that has it look whenever it rings, after
    /// `first`.
    fn pair(
        first: impl Fn(&mut Clerk, Part<'_>) + Send + Sync + 'static,
    ) -> (Arc<Region>, Arc<Mutex<Clerk>>, Desk) {
        let options = RegionOptions { slots: 2, ..RegionOptions::default() };
        let region = Arc::new(Region::create(&options).expect("memory").0);
        let clerk = Arc::new(Mutex::new(Clerk::new(&region, 1).expect("randomness")));
        let key = Key::new("0123456789abcdef").expect("long enough");
        let (its, house) = ((Arc::clone(&region), Arc::clone(&clerk)), Poor(key.clone()));
        let bell = Box::new(move || {
            let (region, clerk) = (&its.0, &mut *its.1.lock().expect("no panic"));
            first(clerk, Part::new(region, 1));
            clerk.serve(region, &house);
        });
        let desk = Desk::new(Arc::clone(&region), 1, ("blue", &key), bell).expect("a boot");
        (region, clerk, desk)
    }

    fn stand_at(region: &Region, clerk: &Mutex<Clerk>, turn: u32) {
        clerk.lock().expect("no panic").turns = [turn; ENTRIES];
        let free = Standing { stage: Stage::Free, turn };
        (0..ENTRIES).for_each(|entry| Part::new(region, 1).stand(entry, free));
    }

    #[test]
    fn what_was_proven_is_not_believed_again_when_turns_have_gone_round() {
        let (region, clerk, desk) = pair(|_, _| {});
        let part = Part::new(&region, 1);
        let nonce = part.nonce();
        assert_eq!(desk.hello().expect("an answer"), Reply::Done);
        let (words, proof) = part.question(0);
        stand_at(&region, &clerk, u32::MAX);
        assert_eq!(desk.hello().expect("an answer"), Reply::Done);
        assert_eq!(part.nonce()[0], nonce[0], "tickets have the same names");
        // What stood in this entry when it was in this turn for the first time.
        assert!(part.step(0, 0, Stage::Free, Stage::Claimed));
        part.ask(0, words, proof);
        assert!(part.step(0, 0, Stage::Claimed, Stage::Asked));
        let house = Poor(Key::new("0123456789abcdef").expect("long enough"));
        assert_eq!(clerk.lock().expect("no panic").serve(&region, &house), 1);
        assert_eq!(part.reply(0), Some(Reply::Denied));
    }

    #[test]
    fn who_asked_with_the_words_before_asks_again() {
        let done = std::sync::atomic::AtomicBool::new(false);
        let (region, clerk, desk) = pair(move |clerk, part| {
            if !done.swap(true, std::sync::atomic::Ordering::Relaxed) {
                // As if another entry had gone round just now.
                clerk.turns[3] = u32::MAX;
                clerk.next_turn(part, 3);
            }
        });
        stand_at(&region, &clerk, 0);
        assert_eq!(desk.hello().expect("an answer"), Reply::Done);
    }
}
