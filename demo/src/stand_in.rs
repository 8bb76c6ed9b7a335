//! The outage as the stand-in driver sees it.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use random::Random;
use testbed::nodes::Node;
use testbed::progress::Progress;
use testbed::stage::Stage;
use testbed::stand_in::StandIn;
use workload::Mix;

use super::outage::{Outage, User, ms, pause_after};
use super::scene::{io_plan, kill_and_start};

const KILLS: u32 = 5;

/// The least work between two kills.
const WORK: Duration = Duration::from_millis(500);

/// Requests that must be outstanding when the IOhost is killed.
const OUTSTANDING_MIN: usize = 16;

const QUEUES: u16 = 2;

/// Blocks of the checker's model: 16 MiB.
const BLOCKS: u64 = 4096;

const MIX: Mix = Mix::OF_ALL;

/// The longest time in which no request completed.
#[derive(Debug)]
struct Pause {
    completed: u64,
    since: Instant,
    longest: Duration,
}

impl Pause {
    fn new() -> Self {
        Self { completed: 0, since: Instant::now(), longest: Duration::ZERO }
    }

    fn look(&mut self, guest: &StandIn) {
        let completed = guest.workload.counts.completed;
        if completed != self.completed {
            self.completed = completed;
            self.longest = self.longest.max(self.since.elapsed());
            self.since = Instant::now();
        }
    }
}

/// Works on the disk `alice` of the VMhost while the IOhost is killed; gives the IOhost back.
///
/// # Errors
/// When anything that was acknowledged is lost, a request fails, or a node does not start.
pub(super) fn outage(
    stage: &Stage,
    mut io: Node,
    vm: &mut Node,
    progress: &Progress,
) -> Result<(Outage, Node)> {
    let mut random = Random::new(u64::from(std::process::id()));
    let socket = vm.wait_for_disk("alice")?;
    let mut guest = StandIn::connect(&socket, QUEUES, MIX, BLOCKS, &mut random)?;
    progress.done("a stand-in for a guest uses the disk: writes, reads, flushes; all checked");
    let mut pause = Pause::new();
    let (mut outstanding_min, mut away_longest) = (usize::MAX, Duration::ZERO);
    for kill in 1..=KILLS {
        progress.doing("working");
        let until = Instant::now() + WORK;
        guest.work(|guest| {
            pause.look(guest);
            Instant::now() >= until && guest.workload.outstanding() >= OUTSTANDING_MIN
        })?;
        let outstanding = guest.workload.outstanding();
        outstanding_min = outstanding_min.min(outstanding);
        let pid = io.pid();
        let away;
        (io, away) = kill_and_start(stage, io, pause_after(kill, KILLS))?;
        away_longest = away_longest.max(away);
        // All requests that were outstanding, and more.
        let enough = guest.workload.counts.completed + 2 * outstanding as u64;
        guest.work(|guest| {
            pause.look(guest);
            guest.workload.counts.completed >= enough
        })?;
        progress.done(format!(
            "kill {kill} of {KILLS}: io1 (pid {pid}) killed -9, {outstanding} requests on their \
             way; back after {} ms, work goes on",
            away.as_millis()
        ));
    }
    progress.doing("reading everything back");
    guest.read_all()?;
    guest.compare_image(&io_plan(stage).file("alice.img"))?;
    let counts = guest.workload.counts;
    ensure!(counts.errors == 0, "{} requests failed, but a kill is only a pause", counts.errors);
    progress.done("every block was read back, and compared with the image on io1: as promised");
    guest.disconnect();
    let outage = Outage {
        user: User::StandIn,
        kills: KILLS,
        outstanding_at_kills_min: Some(outstanding_min),
        away_longest_ms: ms(away_longest),
        pause_longest_ms: ms(pause.longest),
        writes_verified: counts.writes,
        reads_verified: counts.blocks_checked,
        errors: counts.errors,
        files_verified: 0,
        image_bytes_verified: BLOCKS * u64::from(MIX.block_bytes),
    };
    Ok((outage, io))
}
