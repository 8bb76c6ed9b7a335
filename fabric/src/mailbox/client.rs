//! The side of a process inside of a VM.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lock::{HolderLock, HolderLocks};
use super::{
    Ask, ENTRIES, EntryStage, EntryState, MAILBOX_VERSION, Mailbox, MailboxQuestion, QuestionPlace,
    Reply, proof_of,
};
use crate::region::Region;
use crate::registration::{DomainKey, SlotGrant};

/// How long the node may take. Entries that the dead have left are free again before that.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a process that closes an endpoint waits for the node. Without an answer the next
/// process of its VM reports that the holder is dead.
const PATIENCE_AT_END: Duration = Duration::from_secs(5);

/// How often the node is rung while no answer comes: it may have looked just before the question
/// was complete, or have made the entry free.
const RING_AGAIN: Duration = Duration::from_millis(500);

/// Between looks at the answer: a guest's processor is worth more than a moment at the start.
const LOOK_AGAIN: Duration = Duration::from_micros(100);

/// Which start of this system it is.
pub(super) const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Why there is no answer.
#[derive(Debug)]
pub enum Lost {
    /// Within the time that it may take.
    Silent,
    /// The node is no more.
    Gone,
    /// No node writes such words.
    Foreign,
    /// A holder lock cannot be made, or the boot's number cannot be read.
    System(io::Error),
}

/// Rings the node, so that it looks at the mailbox.
pub type RingNode = Box<dyn Fn() + Send + Sync>;

/// A process's connection to the node of its VM's host, by a mailbox.
pub struct MailboxClient {
    region: Arc<Region>,
    number: u8,
    domain: String,
    key: DomainKey,
    pub(super) boot: u64,
    locks: HolderLocks,
    doorbell: RingNode,
}

/// A slot that this process has, and the lock that shows that it lives.
#[derive(Debug)]
pub struct HeldSlot {
    /// The slot.
    pub grant: SlotGrant,
    pub(super) lock: HolderLock,
}

impl fmt::Debug for MailboxClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MailboxClient").field("number", &self.number).finish_non_exhaustive()
    }
}

impl MailboxClient {
    /// By the mailbox of this number in a region.
    ///
    /// # Errors
    /// When the boot's number cannot be had.
    pub fn new(
        region: Arc<Region>,
        number: u8,
        (domain, key): (&str, &DomainKey),
        doorbell: RingNode,
    ) -> Result<Self, Lost> {
        let boot = boot(Path::new(BOOT_ID)).map_err(Lost::System)?;
        let [nonce, ..] = Mailbox::new(&region, number).nonce();
        let locks = HolderLocks::of_region(nonce);
        Ok(Self {
            region,
            number,
            domain: domain.to_owned(),
            key: key.clone(),
            boot,
            locks,
            doorbell,
        })
    }

    /// Asks whether the node lets this process in.
    ///
    /// # Errors
    /// When the node does not answer.
    pub fn hello(&self) -> Result<Reply, Lost> {
        self.report_dead();
        self.ask(Ask::Hello, 0, PATIENCE)
    }

    /// A slot, or why the node gives none.
    ///
    /// # Errors
    /// When the node does not answer.
    pub fn open(&self) -> Result<Result<HeldSlot, Reply>, Lost> {
        let lock = self.locks.take().map_err(Lost::System)?;
        let reply = match self.ask(Ask::Open, lock.number, PATIENCE) {
            // A process of this VM may have died meanwhile.
            Ok(Reply::Full) if self.report_dead() > 0 => self.ask(Ask::Open, lock.number, PATIENCE),
            reply => reply,
        };
        match reply {
            Ok(Reply::Granted(grant)) => Ok(Ok(HeldSlot { grant, lock })),
            Ok(other) => {
                lock.give_up();
                Ok(Err(other))
            }
            // The node may grant it yet. The lock is free then, and the next process reports it.
            Err(lost) => Err(lost),
        }
    }

    /// Gives a slot back: this process will not touch it again.
    pub fn close(&self, held: HeldSlot) {
        let HeldSlot { grant, lock } = held;
        // Without an answer, or with a key that is not the domain's any more, the lock's file stays
        // for the next process to find.
        if self.ask(Ask::Close(grant), lock.number, PATIENCE_AT_END).is_ok_and(is_done) {
            lock.give_up();
            self.report_dead();
        }
    }

    /// Reports the dead holders of this VM to the node, as long as it answers. Returns how many.
    pub fn report_dead(&self) -> usize {
        let mut count = 0;
        for lock in self.locks.dead() {
            count += 1;
            match self.ask(Ask::Dead, lock.number, PATIENCE_AT_END) {
                Ok(Reply::Done) => lock.give_up(),
                Ok(_) => {}
                // It will not answer the other reports either.
                Err(_) => break,
            }
        }
        count
    }

    /// A question and its answer.
    fn ask(&self, ask: Ask, holder: u64, patience: Duration) -> Result<Reply, Lost> {
        let question = MailboxQuestion { ask, boot: self.boot, holder }.to_words();
        let mailbox = Mailbox::new(&self.region, self.number);
        if mailbox.version() != MAILBOX_VERSION && !self.region.is_orphaned() {
            return Err(Lost::Foreign);
        }
        let end = Instant::now() + patience;
        let mut rung = None;
        while Instant::now() < end && !self.region.is_orphaned() {
            let Some((entry, turn)) = claim(mailbox) else {
                self.wait(&mut rung);
                continue;
            };
            let (domain, nonce) = (self.domain.as_str(), mailbox.nonce());
            let place =
                QuestionPlace { domain, nonce, number: self.number, entry: entry as u8, turn };
            mailbox.ask(entry, question, proof_of(&self.key, &place, question));
            if !mailbox.step(entry, turn, EntryStage::Claimed, EntryStage::Asked) {
                // The node has made the entry free: this process was too slow.
                continue;
            }
            rung = None;
            let asked = EntryState { stage: EntryStage::Asked, turn }.to_word();
            let is_awaited = || Instant::now() < end && !self.region.is_orphaned();
            while mailbox.state_word(entry) == asked && is_awaited() {
                self.wait(&mut rung);
            }
            let answered = EntryState { stage: EntryStage::Answered, turn }.to_word();
            let reply = mailbox.reply(entry);
            if mailbox.state_word(entry) == answered {
                mailbox.set_state(
                    entry,
                    EntryState { stage: EntryStage::Free, turn: turn.wrapping_add(1) },
                );
                if reply == Some(Reply::Denied) && mailbox.nonce() != nonce {
                    // The nonce has changed before the node has read the question.
                    continue;
                }
                return reply.ok_or(Lost::Foreign);
            }
        }
        Err(if self.region.is_orphaned() { Lost::Gone } else { Lost::Silent })
    }

    /// Rings the node.
    pub fn ring(&self) {
        (self.doorbell)();
    }

    /// Waits a moment; rings when it is time to.
    fn wait(&self, rung: &mut Option<Instant>) {
        if rung.is_none_or(|rung| rung.elapsed() >= RING_AGAIN) {
            (self.doorbell)();
            *rung = Some(Instant::now());
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

#[cfg(any(test, feature = "testing"))]
impl MailboxClient {
    /// Has it say another boot of the VM's system.
    pub fn set_boot(&mut self, boot: u64) {
        self.boot = boot;
    }
}

#[cfg(any(test, feature = "testing"))]
impl HeldSlot {
    /// Without a word to the node.
    pub fn give_up(self) {
        self.lock.give_up();
    }
}

fn is_done(reply: Reply) -> bool {
    reply == Reply::Done
}

/// An entry for this process, and its turn.
fn claim(mailbox: Mailbox<'_>) -> Option<(usize, u32)> {
    (0..ENTRIES).find_map(|entry| {
        let state = EntryState::from_word(mailbox.state_word(entry))?;
        let is_free = state.stage == EntryStage::Free;
        let turn = state.turn;
        (is_free && mailbox.step(entry, turn, EntryStage::Free, EntryStage::Claimed))
            .then_some((entry, turn))
    })
}

/// The first half of the system's random number of this boot. Some containers are shown one of
/// their own (systemd-nspawn): a node that was told it would take the VM for started anew.
pub(super) fn boot(path: &Path) -> io::Result<u64> {
    if fs::metadata(path)?.dev() != fs::metadata("/proc")?.dev() {
        return Err(io::Error::other(format!(
            "{} is another file, which a container has mounted there; unmount it in the container, \
             or run outside of the container",
            path.display()
        )));
    }
    let text = fs::read_to_string(path)?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_number_of_the_boot_that_is_a_file_of_a_containers_is_not_believed() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        writeln!(file, "6f9e1c0a-0000-4000-8000-000000000000").expect("ours");
        assert!(boot(file.path()).is_err());
        let text = fs::read_to_string(BOOT_ID).expect("proc").replace('-', "");
        let number = u64::from_str_radix(&text[..16], 16).expect("digits");
        assert_eq!(boot(Path::new(BOOT_ID)).expect("proc"), number);
    }
}
