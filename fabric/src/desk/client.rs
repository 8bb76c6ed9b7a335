//! The side of a process inside of a VM.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::ticket::{Ticket, Tickets};
use super::{Ask, DESK_VERSION, ENTRIES, Part, Place, Question, Reply, Stage, Standing, proof_of};
use crate::door::{Key, Seat};
use crate::region::Region;

/// How long the node may take. Entries that the dead have left are free again before that.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long who leaves waits for the node to know it: its VM's next process reports it otherwise.
const PATIENCE_AT_END: Duration = Duration::from_secs(5);

/// How often the node is rung while nothing comes: it may have looked just before, or have cleared
/// an entry away.
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
    /// What stands there is not what a node writes.
    Foreign,
    /// A ticket or the system's number cannot be had.
    System(io::Error),
}

/// How the node is told to look.
pub type Bell = Box<dyn Fn() + Send + Sync>;

/// A process's way to the node of its VM's host.
pub struct Desk {
    region: Arc<Region>,
    part: u8,
    domain: String,
    key: Key,
    pub(super) boot: u64,
    tickets: Tickets,
    bell: Bell,
}

/// A slot, and the ticket by which it is this process's.
#[derive(Debug)]
pub struct Held {
    /// The slot.
    pub seat: Seat,
    pub(super) ticket: Ticket,
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").field("part", &self.part).finish_non_exhaustive()
    }
}

impl Desk {
    /// The desk of a region, at which this VM has this part.
    ///
    /// # Errors
    /// When the boot's number cannot be had.
    pub fn new(
        region: Arc<Region>,
        part: u8,
        (domain, key): (&str, &Key),
        bell: Bell,
    ) -> Result<Self, Lost> {
        let boot = boot(Path::new(BOOT_ID)).map_err(Lost::System)?;
        let [nonce, ..] = Part::new(&region, part).nonce();
        let tickets = Tickets::of_region(nonce);
        Ok(Self { region, part, domain: domain.to_owned(), key: key.clone(), boot, tickets, bell })
    }

    /// Whether the node lets this process in.
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
    pub fn open(&self) -> Result<Result<Held, Reply>, Lost> {
        let ticket = self.tickets.take().map_err(Lost::System)?;
        let reply = match self.ask(Ask::Open, ticket.number, PATIENCE) {
            // Somebody of this VM may have died meanwhile.
            Ok(Reply::Full) if self.report_dead() > 0 => {
                self.ask(Ask::Open, ticket.number, PATIENCE)
            }
            reply => reply,
        };
        match reply {
            Ok(Reply::Seat(seat)) => Ok(Ok(Held { seat, ticket })),
            Ok(other) => {
                ticket.give_up();
                Ok(Err(other))
            }
            // It may be given yet: the ticket says that nobody wants it, when it is found.
            Err(lost) => Err(lost),
        }
    }

    /// The slot was touched for the last time.
    pub fn close(&self, held: Held) {
        let Held { seat, ticket } = held;
        // Without an answer, or with a key that is not the domain's any more, the ticket stays, and
        // tells whoever comes next.
        if self.ask(Ask::Close(seat), ticket.number, PATIENCE_AT_END).is_ok_and(is_done) {
            ticket.give_up();
            self.report_dead();
        }
    }

    /// Tells the node of those of this VM who have died, for as long as it listens. Of how many.
    pub fn report_dead(&self) -> usize {
        let mut count = 0;
        for ticket in self.tickets.dead() {
            count += 1;
            match self.ask(Ask::Dead, ticket.number, PATIENCE_AT_END) {
                Ok(Reply::Done) => ticket.give_up(),
                Ok(_) => {}
                // Nor will it hear of the others.
                Err(_) => break,
            }
        }
        count
    }

    /// A question and its answer.
    fn ask(&self, ask: Ask, ticket: u64, patience: Duration) -> Result<Reply, Lost> {
        let question = Question { ask, boot: self.boot, ticket }.to_words();
        let part = Part::new(&self.region, self.part);
        if part.version() != DESK_VERSION && !self.region.is_orphaned() {
            return Err(Lost::Foreign);
        }
        let end = Instant::now() + patience;
        let mut rung = None;
        while Instant::now() < end && !self.region.is_orphaned() {
            let Some((entry, turn)) = claim(part) else {
                self.wait(&mut rung);
                continue;
            };
            let (domain, nonce) = (self.domain.as_str(), part.nonce());
            let place = Place { domain, nonce, part: self.part, entry: entry as u8, turn };
            part.ask(entry, question, proof_of(&self.key, &place, question));
            if !part.step(entry, turn, Stage::Claimed, Stage::Asked) {
                // Taken for a dead one's.
                continue;
            }
            rung = None;
            let asked = Standing { stage: Stage::Asked, turn }.to_word();
            let is_awaited = || Instant::now() < end && !self.region.is_orphaned();
            while part.standing_word(entry) == asked && is_awaited() {
                self.wait(&mut rung);
            }
            let answered = Standing { stage: Stage::Answered, turn }.to_word();
            let reply = part.reply(entry);
            if part.standing_word(entry) == answered {
                part.stand(entry, Standing { stage: Stage::Free, turn: turn.wrapping_add(1) });
                if reply == Some(Reply::Denied) && part.nonce() != nonce {
                    // Proven with words that were others by the time it was read.
                    continue;
                }
                return reply.ok_or(Lost::Foreign);
            }
        }
        Err(if self.region.is_orphaned() { Lost::Gone } else { Lost::Silent })
    }

    /// Rings the node.
    pub fn ring(&self) {
        (self.bell)();
    }

    /// Waits a moment; rings when it is time to.
    fn wait(&self, rung: &mut Option<Instant>) {
        if rung.is_none_or(|rung| rung.elapsed() >= RING_AGAIN) {
            (self.bell)();
            *rung = Some(Instant::now());
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

#[cfg(any(test, feature = "testing"))]
impl Desk {
    /// Has it say another boot of the VM's system.
    pub fn set_boot(&mut self, boot: u64) {
        self.boot = boot;
    }
}

#[cfg(any(test, feature = "testing"))]
impl Held {
    /// Without a word to the node.
    pub fn give_up(self) {
        self.ticket.give_up();
    }
}

fn is_done(reply: Reply) -> bool {
    reply == Reply::Done
}

/// An entry for this process, and its turn.
fn claim(part: Part<'_>) -> Option<(usize, u32)> {
    (0..ENTRIES).find_map(|entry| {
        let standing = Standing::from_word(part.standing_word(entry))?;
        let is_free = standing.stage == Stage::Free;
        let turn = standing.turn;
        (is_free && part.step(entry, turn, Stage::Free, Stage::Claimed)).then_some((entry, turn))
    })
}

/// The first half of the system's random number of this boot. Some containers are shown one of
/// their own (systemd-nspawn): a node that was told it would take the VM for started anew.
pub(super) fn boot(path: &Path) -> io::Result<u64> {
    if fs::metadata(path)?.dev() != fs::metadata("/proc")?.dev() {
        return Err(io::Error::other(format!(
            "{} is another file, which a container has mounted there; unmount it in there, or run \
             outside of it",
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
