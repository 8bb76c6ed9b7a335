//! The node's side of one VM's mailbox.
//!
//! The server reads each word of the mailbox once and checks it. It remembers itself which turn of
//! an entry comes next, and which process has each slot. A VM can write into another VM's mailbox,
//! as any member of the domain can: without the key the only effect is the answer "denied".

use std::time::{Duration, Instant};

use rustix::io::Errno;

#[cfg(test)]
mod tests;

use crate::hand_over::{HeldState, MailboxState, Unfit, ensure};
use fabric::Region;
use fabric::mailbox::{
    Ask, ENTRIES, EntryStage, EntryState, MAILBOX_VERSION, Mailbox, MailboxQuestion, NONCE_WORDS,
    QuestionPlace, Reply, VMS_MAX, is_proven,
};
use fabric::registration::{DomainKey, SlotGrant};

/// How long an entry may be claimed without a question, or hold an answer that is not read: after
/// that the process counts as dead or stopped. Long, because of emulated machines.
const STUCK: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 20_000 });

/// Earlier boots of a VM's system that are remembered. A question of such a boot is answered at the
/// next ring of the doorbell, long before there were so many boots.
const BOOTS_MAX: usize = 8;

/// Answers one VM's mailbox.
#[derive(Debug)]
pub(crate) struct MailboxServer {
    number: u8,
    nonce: [u64; NONCE_WORDS],
    /// The turn that each entry is in.
    turns: [u32; ENTRIES],
    /// The first word of an entry that is neither free nor asked, and since when it is there.
    stuck: [Option<(u64, Instant)>; ENTRIES],
    /// The boot of the VM's system. Another one means that the system was started anew, and that
    /// all its processes of before are gone.
    boot: Option<u64>,
    /// The last boots before this one.
    boots_over: Vec<u64>,
    /// The slot of each holder, by the number of its lock.
    held: Vec<(u64, SlotGrant)>,
}

/// The domain of a mailbox server, as the server needs it.
pub(crate) trait MailboxDomain {
    /// Its name.
    fn domain(&self) -> &str;
    /// Its key.
    fn key(&self) -> &DomainKey;
    /// Whether a process may join.
    fn takes_new(&self) -> bool;
    /// A slot, if one is left.
    fn grant_slot(&self) -> Option<SlotGrant>;
    /// Says that these owners of slots are dead.
    fn declare_dead(&self, grants: &[SlotGrant]);
}

impl MailboxServer {
    /// For a VM that has just connected.
    ///
    /// # Errors
    /// When there is no randomness.
    pub(crate) fn new(region: &Region, number: u8) -> Result<Self, Errno> {
        let mut bytes = [[0; 8]; NONCE_WORDS];
        // Up to 256 bytes come whole.
        let flags = rustix::rand::GetRandomFlags::empty();
        rustix::rand::getrandom(bytes.as_flattened_mut(), flags)?;
        let nonce = bytes.map(u64::from_le_bytes);
        let mailbox = Mailbox::new(region, number);
        for entry in 0..ENTRIES {
            mailbox.set_state(entry, EntryState { stage: EntryStage::Free, turn: 0 });
        }
        mailbox.begin(nonce, MAILBOX_VERSION);
        let (turns, stuck) = ([0; ENTRIES], [None; ENTRIES]);
        let (boots_over, held) = (Vec::new(), Vec::new());
        Ok(Self { number, nonce, turns, stuck, boot: None, boots_over, held })
    }

    /// Takes over from the server of another process, which has remembered this. Nothing is
    /// written.
    pub(crate) fn adopt(state: MailboxState) -> Result<Self, Unfit> {
        let MailboxState { number, nonce, turns, boot, boots_over, held } = state;
        ensure((1..=VMS_MAX).contains(&number), "a mailbox has a number that does not exist")?;
        ensure(boots_over.len() <= BOOTS_MAX, "more starts are recorded than the limit")?;
        let turns = turns.try_into();
        let turns = turns.map_err(|_| Unfit::Contradiction("a mailbox has other entries"))?;
        let grant = |held: HeldState| (held.holder, SlotGrant::from(held.grant));
        let (stuck, held) = ([None; ENTRIES], held.into_iter().map(grant).collect());
        Ok(Self { number, nonce, turns, stuck, boot, boots_over, held })
    }

    /// The state for [`MailboxServer::adopt`].
    pub(crate) fn take_down(&self) -> MailboxState {
        let &Self { number, nonce, boot, .. } = self;
        let (turns, boots_over) = (self.turns.to_vec(), self.boots_over.clone());
        let held = self.held.iter();
        let held = held.map(|(holder, it)| HeldState { holder: *holder, grant: (*it).into() });
        MailboxState { number, nonce, turns, boot, boots_over, held: held.collect() }
    }

    /// The number of the VM, and of its mailbox.
    pub(crate) fn number(&self) -> u8 {
        self.number
    }

    /// Slots that its processes have.
    pub(crate) fn grants(&self) -> Vec<SlotGrant> {
        self.held.iter().map(|(_, grant)| *grant).collect()
    }

    /// The VM is gone: the mailbox is free for another VM. Returns the slots that the VM had.
    pub(crate) fn end(self, region: &Region) -> Vec<SlotGrant> {
        Mailbox::new(region, self.number).begin([0; NONCE_WORDS], 0);
        self.grants()
    }

    /// Answers all questions. Returns how many were denied.
    pub(crate) fn serve(&mut self, region: &Region, access: &impl MailboxDomain) -> usize {
        let mailbox = Mailbox::new(region, self.number);
        let now = Instant::now();
        // Reports of deaths are read first and acted on last: a dead process may have asked for a
        // slot before, and the slot must be granted before its holder is forgotten.
        let mut reports = [None; ENTRIES];
        for (entry, report) in reports.iter_mut().enumerate() {
            if self.is_asked(mailbox, entry, now) {
                let question = self.judge(mailbox, entry, access);
                *report = question.filter(|question| question.ask == Ask::Dead);
            }
        }
        let mut denied = 0;
        for (entry, report) in reports.iter().enumerate() {
            if report.is_some() || !self.is_asked(mailbox, entry, now) {
                continue;
            }
            let reply = match self.judge(mailbox, entry, access) {
                // The report has just come, and with it another ring of the doorbell.
                Some(MailboxQuestion { ask: Ask::Dead, .. }) => continue,
                Some(question) => self.reply_to(question, access),
                None => Reply::Denied,
            };
            denied += usize::from(reply == Reply::Denied);
            self.answer(mailbox, entry, reply);
        }
        for (entry, report) in reports.iter().enumerate() {
            let Some(MailboxQuestion { boot, holder, .. }) = *report else { continue };
            let reply = if self.note_boot(boot, access) {
                self.forget(holder, access);
                Reply::Done
            } else {
                denied += 1;
                Reply::Denied
            };
            self.answer(mailbox, entry, reply);
        }
        denied
    }

    /// Whether an entry has a question. An entry that is claimed or answered for too long, or that
    /// makes no sense, is made free.
    fn is_asked(&mut self, mailbox: Mailbox<'_>, entry: usize, now: Instant) -> bool {
        let turn = self.turns[entry];
        let word = mailbox.state_word(entry);
        match EntryState::from_word(word).filter(|state| state.turn == turn) {
            Some(EntryState { stage: EntryStage::Asked, .. }) => return true,
            Some(EntryState { stage: EntryStage::Free, .. }) => {
                self.stuck[entry] = None;
                return false;
            }
            _ => {}
        }
        match self.stuck[entry] {
            Some((was, since)) if was == word => {
                if now.duration_since(since) >= STUCK {
                    self.next_turn(mailbox, entry);
                    mailbox.set_state(
                        entry,
                        EntryState { stage: EntryStage::Free, turn: self.turns[entry] },
                    );
                }
            }
            _ => self.stuck[entry] = Some((word, now)),
        }
        false
    }

    fn next_turn(&mut self, mailbox: Mailbox<'_>, entry: usize) {
        self.turns[entry] = self.turns[entry].wrapping_add(1);
        self.stuck[entry] = None;
        if self.turns[entry] == 0 {
            // No proof may be believed twice, not even 2^32 questions later. A process whose proof
            // is over the old nonce asks again. The first word stays: locks are named by it.
            self.nonce[1] = self.nonce[1].wrapping_add(1);
            mailbox.begin(self.nonce, MAILBOX_VERSION);
        }
    }

    /// The question of an entry, if its proof shows that the process has the key.
    fn judge(
        &self,
        mailbox: Mailbox<'_>,
        entry: usize,
        access: &impl MailboxDomain,
    ) -> Option<MailboxQuestion> {
        let (words, proof) = mailbox.question(entry);
        let (nonce, turn) = (self.nonce, self.turns[entry]);
        let domain = access.domain();
        let place = QuestionPlace { domain, nonce, number: self.number, entry: entry as u8, turn };
        is_proven(access.key(), &place, words, proof)
            .then(|| MailboxQuestion::from_words(words))
            .flatten()
    }

    fn reply_to(&mut self, question: MailboxQuestion, access: &impl MailboxDomain) -> Reply {
        let MailboxQuestion { ask, boot, holder } = question;
        if !self.note_boot(boot, access) {
            return Reply::Denied;
        }
        match ask {
            Ask::Hello if access.takes_new() => Reply::Done,
            Ask::Hello => Reply::Crowded,
            Ask::Open => match self.grant_of(holder, access) {
                Some(grant) => Reply::Granted(grant),
                None => Reply::Full,
            },
            Ask::Close(grant) if self.held.contains(&(holder, grant)) => {
                self.forget(holder, access);
                Reply::Done
            }
            Ask::Close(_) => Reply::Denied,
            // The caller answers it.
            Ask::Dead => Reply::Done,
        }
    }

    /// The slot of a holder, which has one: a process that has not seen the answer may ask again.
    fn grant_of(&mut self, holder: u64, access: &impl MailboxDomain) -> Option<SlotGrant> {
        if let Some((_, grant)) = self.held.iter().find(|(held, _)| *held == holder) {
            return Some(*grant);
        }
        let grant = access.grant_slot()?;
        self.held.push((holder, grant));
        Some(grant)
    }

    /// Notes the boot of the VM's system. If it is a new one, all holders of before are dead.
    /// `false`: the boot is an earlier one, so the process that has asked is gone.
    fn note_boot(&mut self, boot: u64, access: &impl MailboxDomain) -> bool {
        if self.boots_over.contains(&boot) {
            return false;
        }
        if let Some(before) = self.boot.replace(boot).filter(|before| *before != boot) {
            access.declare_dead(&self.grants());
            self.held.clear();
            if self.boots_over.len() == BOOTS_MAX {
                self.boots_over.remove(0);
            }
            self.boots_over.push(before);
        }
        true
    }

    fn forget(&mut self, holder: u64, access: &impl MailboxDomain) {
        if let Some(at) = self.held.iter().position(|(held, _)| *held == holder) {
            let (_, grant) = self.held.swap_remove(at);
            access.declare_dead(&[grant]);
        }
    }

    fn answer(&mut self, mailbox: Mailbox<'_>, entry: usize, reply: Reply) {
        let turn = self.turns[entry];
        mailbox.set_reply(entry, reply);
        self.next_turn(mailbox, entry);
        // If the entry has changed meanwhile, a member writes over it; it is made free later.
        mailbox.step(entry, turn, EntryStage::Asked, EntryStage::Answered);
    }
}

#[cfg(test)]
mod unit_tests {
    use super::*;
    use fabric::RegionOptions;
    use fabric::mailbox::MailboxClient;
    use std::sync::{Arc, Mutex};

    /// A domain without a free slot.
    struct FullDomain(DomainKey);

    impl MailboxDomain for FullDomain {
        fn domain(&self) -> &str {
            "blue"
        }
        fn key(&self) -> &DomainKey {
            &self.0
        }
        fn takes_new(&self) -> bool {
            true
        }
        fn grant_slot(&self) -> Option<SlotGrant> {
            None
        }
        fn declare_dead(&self, _: &[SlotGrant]) {}
    }

    /// A region, the server of its first mailbox, and a client whose ring has the server look,
    /// after `first`.
    fn pair(
        first: impl Fn(&mut MailboxServer, Mailbox<'_>) + Send + Sync + 'static,
    ) -> (Arc<Region>, Arc<Mutex<MailboxServer>>, MailboxClient) {
        let options = RegionOptions { slots: 2, ..RegionOptions::default() };
        let region = Arc::new(Region::create(&options).expect("memory").0);
        let server = Arc::new(Mutex::new(MailboxServer::new(&region, 1).expect("randomness")));
        let key = DomainKey::new("0123456789abcdef").expect("long enough");
        let (its, domain) = ((Arc::clone(&region), Arc::clone(&server)), FullDomain(key.clone()));
        let doorbell = Box::new(move || {
            let (region, server) = (&its.0, &mut *its.1.lock().expect("no panic"));
            first(server, Mailbox::new(region, 1));
            server.serve(region, &domain);
        });
        let client =
            MailboxClient::new(Arc::clone(&region), 1, ("blue", &key), doorbell).expect("a boot");
        (region, server, client)
    }

    fn set_turns(region: &Region, server: &Mutex<MailboxServer>, turn: u32) {
        server.lock().expect("no panic").turns = [turn; ENTRIES];
        let free = EntryState { stage: EntryStage::Free, turn };
        (0..ENTRIES).for_each(|entry| Mailbox::new(region, 1).set_state(entry, free));
    }

    #[test]
    fn an_old_proof_is_not_believed_after_turns_have_wrapped() {
        let (region, server, client) = pair(|_, _| {});
        let mailbox = Mailbox::new(&region, 1);
        let nonce = mailbox.nonce();
        assert_eq!(client.hello().expect("an answer"), Reply::Done);
        let (words, proof) = mailbox.question(0);
        set_turns(&region, &server, u32::MAX);
        assert_eq!(client.hello().expect("an answer"), Reply::Done);
        assert_eq!(mailbox.nonce()[0], nonce[0], "locks have the same names");
        // A replay: the question that stood in this entry when it was in this turn for the first
        // time.
        assert!(mailbox.step(0, 0, EntryStage::Free, EntryStage::Claimed));
        mailbox.ask(0, words, proof);
        assert!(mailbox.step(0, 0, EntryStage::Claimed, EntryStage::Asked));
        let domain = FullDomain(DomainKey::new("0123456789abcdef").expect("long enough"));
        assert_eq!(server.lock().expect("no panic").serve(&region, &domain), 1);
        assert_eq!(mailbox.reply(0), Some(Reply::Denied));
    }

    #[test]
    fn a_process_whose_proof_is_over_the_old_nonce_asks_again() {
        let done = std::sync::atomic::AtomicBool::new(false);
        let (region, server, client) = pair(move |server, mailbox| {
            if !done.swap(true, std::sync::atomic::Ordering::Relaxed) {
                // As if another entry had gone round just now.
                server.turns[3] = u32::MAX;
                server.next_turn(mailbox, 3);
            }
        });
        set_turns(&region, &server, 0);
        assert_eq!(client.hello().expect("an answer"), Reply::Done);
    }
}
