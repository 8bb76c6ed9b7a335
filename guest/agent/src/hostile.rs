//! A hostile driver: takes its disk away from the kernel and puts everything malformed into the
//! rings that the specification allows a driver to think of, then noise from a seed. Between the
//! attacks the device is started properly, and must serve.
//!
//! The host looks at the counters of the disk's node before and after each attack that the node
//! must count. The guest announces the attack with a line, and the host answers with a line when it
//! has looked. Either line can get lost on the serial console of a busy machine. So the guest
//! repeats its line until the host's answer to it comes, and the host answers each time.

mod attacks;
mod victim;
mod window;

use std::fmt;
use std::time::Duration;

use attacks::{ATTACKS, Attack, AttackOutcome};
use victim::{AVAIL, DATA, DESC, INDIRECT, SIZE, TABLE, UNANSWERED, Victim, VictimSetup};

use crate::random::Random;

/// Rounds of noise between two looks whether the disk still serves.
const ROUNDS_PER_CHECK: u64 = 16;
/// The time that the device gets for a round of noise before it is reset. It is short, because the
/// test includes a reset at any moment.
const ROUND_PAUSE: Duration = Duration::from_millis(2);
/// Where the checks between the attacks read and write.
const CHECK_SECTOR: u64 = 64;
const CHECK_BYTES: u32 = 4096;
/// How long the host gets for an answer before it is asked again, and how often: five minutes, for
/// guest and host may both be slow.
const ANSWER_PERIOD: Duration = Duration::from_secs(1);
const ASKED_MAX: u32 = 300;

/// The settings of an attack on a disk.
#[derive(Debug, Clone)]
pub struct Hostile {
    /// The disk to take, such as `/dev/vda`. Its content is destroyed.
    pub device: String,
    /// Of the noise.
    pub seed: u64,
    /// Rounds of noise.
    pub rounds: u64,
}

/// The counts of a finished run.
#[derive(Debug, Default, Clone, Copy)]
pub struct HostileReport {
    attacks: usize,
    rounds: u64,
    checks: u64,
}

impl fmt::Display for HostileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attacks={} rounds={} checks={}", self.attacks, self.rounds, self.checks)
    }
}

/// The way to the host and back.
pub trait HostChannel {
    /// Takes a line for the host.
    fn say(&self, line: fmt::Arguments<'_>);

    /// Gives the next line that the host typed, if one comes in this time.
    ///
    /// # Errors
    /// When none can come any more.
    fn hear(&self, patience: Duration) -> Result<Option<String>, String>;
}

/// Tells the host something until it answers with this line.
fn ask(host: &impl HostChannel, line: fmt::Arguments<'_>, wanted: &str) -> Result<(), String> {
    for _ in 0..ASKED_MAX {
        host.say(line);
        // An older answer that comes twice is passed over.
        while let Some(typed) = host.hear(ANSWER_PERIOD)? {
            if typed.trim() == wanted {
                return Ok(());
            }
        }
    }
    Err(format!("the host does not answer {wanted:?}"))
}

/// Attacks the disk.
///
/// # Errors
/// When the disk cannot be taken, or does something else than it should, or the host is silent.
pub fn run(hostile: &Hostile, host: &impl HostChannel) -> Result<HostileReport, String> {
    let mut victim = Victim::take(&hostile.device).map_err(|error| error.to_string())?;
    let mut report = HostileReport::default();
    check(&mut victim, &mut report)?;
    for attack in &ATTACKS {
        attempt(&mut victim, attack, host)?;
        report.attacks += 1;
        check(&mut victim, &mut report).map_err(|why| format!("after {}: {why}", attack.name))?;
    }
    let mut random = Random::new(hostile.seed);
    for round in 0..hostile.rounds {
        noise(&mut victim, &mut random);
        report.rounds += 1;
        if round % ROUNDS_PER_CHECK == 0 {
            check(&mut victim, &mut report).map_err(|why| format!("noise {round}: {why}"))?;
        }
    }
    check(&mut victim, &mut report)?;
    victim.reset();
    Ok(report)
}

fn attempt(victim: &mut Victim, attack: &Attack, host: &impl HostChannel) -> Result<(), String> {
    let name = attack.name;
    victim.start((attack.setup)());
    match attack.outcome {
        AttackOutcome::Breaks(kind) => {
            // The host notes the count first.
            ask(host, format_args!("attack {name} kind={kind}"), &format!("go {name}"))?;
            (attack.run)(victim);
            victim.kick();
            ask(host, format_args!("attacked {name} kind={kind}"), &format!("seen {name}"))
        }
        AttackOutcome::Answers(wanted) => {
            (attack.run)(victim);
            victim.kick();
            let is_used = victim.wait_used();
            let found = victim.memory.read_u8(victim::STATUS as usize);
            let fine = is_used && found == wanted;
            fine.then_some(()).ok_or(format!("{name}: status {found}, and not {wanted}"))
        }
        AttackOutcome::Survives => {
            (attack.run)(victim);
            victim.kick();
            Ok(())
        }
    }
}

/// Starts the disk as it should be, writes, and reads that back.
fn check(victim: &mut Victim, report: &mut HostileReport) -> Result<(), String> {
    victim.start(VictimSetup::default());
    report.checks += 1;
    let seed = report.checks;
    let words = (DATA as usize..).step_by(8).take(CHECK_BYTES as usize / 8);
    let value = |at: usize| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed;
    words.clone().for_each(|at| victim.memory.write_u64(at, value(at)));
    let written = victim.request(1, CHECK_SECTOR, CHECK_BYTES);
    words.clone().for_each(|at| victim.memory.write_u64(at, 0));
    let read = victim.request(0, CHECK_SECTOR, CHECK_BYTES);
    if (written, read) != (0, 0) {
        let nothing = if read == UNANSWERED { ", which is no answer" } else { "" };
        return Err(format!("a sound write and read end with {written} and {read}{nothing}"));
    }
    let odd = words.clone().find(|&at| victim.memory.read_u64(at) != value(at));
    odd.map_or(Ok(()), |at| Err(format!("the data that was read differs at {at:#x}")))
}

/// A ring full of nonsense, looked at for a moment.
fn noise(victim: &mut Victim, random: &mut Random) {
    victim.start(VictimSetup {
        features: VictimSetup::default().features | random.word() & (1 << 29),
        ..VictimSetup::default()
    });
    for index in 0..SIZE {
        let (addr, len, flags, next) = descriptor(victim, random);
        victim.describe_at(DESC, index, addr, len, flags, next);
    }
    for index in 0..64 {
        let (addr, len, flags, next) = descriptor(victim, random);
        victim.describe_at(TABLE, index, addr, len, flags, next);
    }
    for _ in 0..1 + random.below(8) {
        victim.head([0, 1, 4, 8, 77][random.below(5) as usize], random.below(1 << 20));
        let head =
            if random.below(20) == 0 { random.word() as u16 } else { random.below(16) as u16 };
        victim.offer(head);
        if random.below(4) == 0 {
            victim.kick();
        }
        if random.below(8) == 0 {
            let at = AVAIL as usize + 2 * random.below(64) as usize;
            victim.memory.write_u16(at, random.word() as u16);
        }
    }
    victim.kick();
    if random.below(2) == 0 {
        std::thread::sleep(ROUND_PAUSE);
    }
}

/// A descriptor that is wrong only now and then, or nothing would ever be reached.
fn descriptor(victim: &Victim, random: &mut Random) -> (u64, u32, u16, u16) {
    let addr = match random.below(40) {
        0 => random.word(),
        1 => victim.memory_end - random.below(64),
        2 => u64::MAX - random.below(64),
        3..=8 => victim.physical + TABLE + 16 * random.below(64),
        9..=14 => victim.physical + victim::HEADER,
        _ => victim.physical + random.below(0x10_0000),
    };
    let len = match random.below(40) {
        0 => 0,
        1 => random.word() as u32,
        2 => u32::MAX - random.below(16) as u32,
        _ => 16 * (1 + random.below(40)) as u32,
    };
    let flags = match random.below(12) {
        0 => random.word() as u16,
        1 | 2 => INDIRECT,
        3..=6 => victim::NEXT,
        7 | 8 => victim::NEXT | victim::WRITE,
        9 | 10 => victim::WRITE,
        _ => 0,
    };
    let next = if random.below(30) == 0 { random.word() as u16 } else { random.below(16) as u16 };
    (addr, len, flags, next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    /// Types these lines in turn; `None` is a second without one.
    struct Typist<'a> {
        typed: RefCell<std::slice::Iter<'a, Option<&'a str>>>,
        heard: Cell<u32>,
    }

    impl HostChannel for Typist<'_> {
        fn say(&self, _: fmt::Arguments<'_>) {
            self.heard.set(self.heard.get() + 1);
        }

        fn hear(&self, _: Duration) -> Result<Option<String>, String> {
            Ok(self.typed.borrow_mut().next().copied().flatten().map(str::to_owned))
        }
    }

    /// The result of asking, and how often the host was asked.
    fn asked(typed: &[Option<&str>]) -> (Result<(), String>, u32) {
        let host = Typist { typed: RefCell::new(typed.iter()), heard: Cell::new(0) };
        (ask(&host, format_args!("attack a"), "go a"), host.heard.get())
    }

    #[test]
    fn lost_requests_are_repeated_until_their_own_answer_comes() {
        assert_eq!(asked(&[Some("go a")]), (Ok(()), 1));
        assert_eq!(asked(&[None, None, Some("go a\r")]), (Ok(()), 3));
        // Answers to what was said twice before, and one that was cut.
        assert_eq!(asked(&[Some("seen 0"), Some("o a"), None, Some("go a")]), (Ok(()), 2));
        let silent = "the host does not answer \"go a\"".to_owned();
        assert_eq!(asked(&[]), (Err(silent), ASKED_MAX));
    }
}
