//! Faults, and how often each of them struck.

use std::fmt;

use random::Random;

/// A fault that strikes at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The network becomes better or worse.
    Weather,
    /// The IOhost is cut off, and heals.
    Partition,
    /// The IOhost's process is killed, and started again.
    KillServer,
    /// The IOhost loses its power, and with it what was not flushed.
    CutPower,
    /// The VMhost's process is killed under a guest that lives on.
    KillClient,
    /// The VMhost's process is stopped in order under a guest that lives on, and comes back.
    StopClient,
    /// The VMhost's process is stopped in order, and a successor goes on in its place.
    HandOver,
    /// Both processes are killed.
    KillBoth,
    /// The IOhost's power is cut and the VMhost's process killed.
    CutPowerKillClient,
    /// The IOhost's process stands still for a while.
    PauseServer,
    /// The VMhost's process stands still for a while.
    PauseClient,
    /// One sidecore of either side stands still for a while, and its siblings go on.
    PauseCore,
    /// Another VMhost has the attachment, with a guest memory of its own: the guest is migrated, an
    /// operator takes the volume, or the guest is started afresh when its VMhost is silent.
    Migrate,
    /// The guest and its VMhost's process are gone at once; the guest starts afresh.
    CrashGuest,
    /// A VMhost whose guest goes on elsewhere since then is started again: its guest goes on, too.
    Return,
}

impl Fault {
    /// All, in the order of the report.
    pub const ALL: [Self; 15] = [
        Self::Weather,
        Self::Partition,
        Self::KillServer,
        Self::CutPower,
        Self::KillClient,
        Self::StopClient,
        Self::HandOver,
        Self::KillBoth,
        Self::CutPowerKillClient,
        Self::PauseServer,
        Self::PauseClient,
        Self::PauseCore,
        Self::Migrate,
        Self::CrashGuest,
        Self::Return,
    ];

    /// One of them by chance.
    pub fn random(random: &mut Random) -> Self {
        let at = random.below(Self::ALL.len() as u64);
        Self::ALL[usize::try_from(at).expect("small")]
    }
}

/// How often each fault struck.
#[derive(Clone, Debug, Default)]
pub struct FaultCounts([u64; Fault::ALL.len()]);

impl FaultCounts {
    /// One more.
    pub fn count(&mut self, fault: Fault) {
        self.0[fault as usize] += 1;
    }

    /// How often this one struck.
    pub fn of(&self, fault: Fault) -> u64 {
        self.0[fault as usize]
    }

    /// Adds another run's.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine += theirs);
    }
}

impl fmt::Display for FaultCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fault in Fault::ALL {
            writeln!(f, "  {:<20} {:>9}", format!("{fault:?}"), self.of(fault))?;
        }
        Ok(())
    }
}
