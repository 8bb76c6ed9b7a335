//! One run: a seed, a world, faults, and at the end nothing missing.

use std::collections::VecDeque;
use std::fmt;

use block::attachment::Phase;
use volume::Durability;

use super::cipher::Encryption;
use super::client::{ATTACHMENT, SimClient};
use super::fault::Fault;
use super::host::host_ip;
use super::keys::WorldKeys;
use super::nics::Frames;
use super::report::{SimFailure, SimulationReport};
use super::server::{SERVER, SimServer};
use super::storage::{BLOCK_BYTES, Habits, SimDisk, SimRecords};
use random::Random;
use simnet::{SimNetwork, Weather};
use workload::checker::Checker;
use workload::{Failure, Mix, Workload};

/// Blocks of the simulated volume: few, so that requests meet.
const BLOCKS: usize = 96;

/// Of a guest's longest request.
pub(super) const REQUEST_BLOCKS_MAX: u64 = 24;

/// The longest step of the clock: channels that look again do so every millisecond.
const STEP_NS_MAX: u64 = 1_000_000;

/// The same while a guest that was started afresh waits until its old VMhost has been silent for
/// long enough: nothing fails then, and the wait takes as long as the rest of the run.
const STEP_SILENT_NS_MAX: u64 = 10_000_000;

/// After the last fault, everything must be done within this time.
const CALM_NS_MAX: u64 = 120_000_000_000;

/// Lines of history that a failure shows.
const HISTORY_LINES: usize = 60;

/// VMhosts that were taken over and are still watched.
const RETIRED_MAX: usize = 3;

/// How long a VMhost is away, at least, whose guest is started afresh elsewhere: until the loss of
/// its session is noticed and it has been silent for long enough. Nothing else goes wrong then.
const SILENT_NS: u64 = block::export::HOLDER_SILENT_NS + 25_000_000_000;

/// Something that is away and comes back.
#[derive(Debug)]
enum Up<T> {
    Running(T),
    DownUntil(u64),
}

struct World {
    random: Random,
    now_ns: u64,
    network: SimNetwork,
    frames: Frames,
    disk: SimDisk,
    encryption: Encryption,
    records: SimRecords,
    server: Up<SimServer>,
    server_paused_ns: u64,
    partition_until_ns: u64,
    client: SimClient,
    retired: VecDeque<SimClient>,
    /// The guest must be migrated when its VMhost has let go of it.
    moves: bool,
    /// It was started afresh elsewhere once, which takes long.
    started_elsewhere: bool,
    /// Until then nothing fails, so that it gets its disk.
    silent_until_ns: u64,
    /// A breach by a retired VMhost, which is watched no more.
    breach: Option<String>,
    checker: Checker,
    workload: Workload,
    names: Vec<String>,
    keys: WorldKeys,
    datagram_bytes_max: usize,
    /// A loss would break the guest's trust: the disk is allowed, and bound, to fail.
    loss: bool,
    ops_left: u64,
    next_fault_ns: u64,
    volatile: bool,
    /// How often a guest submits something in a step, in parts of a million.
    eagerness_ppm: u64,
    /// How often a queue must go over to another sidecore in a step, likewise.
    moves_ppm: u64,
    report: SimulationReport,
    history: VecDeque<String>,
}

/// Runs one seed with about `operations` requests.
///
/// # Errors
/// When the promise was broken, or something never ended.
pub fn run(seed: u64, operations: u64) -> Result<SimulationReport, SimFailure> {
    let mut world = World::new(seed, operations);
    let result = world.run();
    let World { now_ns, history, report, .. } = world;
    match result {
        Ok(()) => Ok(report),
        Err(why) => Err(SimFailure { seed, now_ns, why, history: history.into() }),
    }
}

/// The mix of a guest's requests: few blocks or many, and all kinds of requests.
fn some_mix(random: &mut Random, zeroes_ppm_max: u64) -> Mix {
    Mix {
        block_bytes: u32::try_from(BLOCK_BYTES).expect("small"),
        blocks_max: random.between(1, REQUEST_BLOCKS_MAX),
        depth: u16::try_from(random.between(1, 16)).expect("small"),
        reads_ppm: random.between(100_000, 700_000),
        flushes_ppm: random.between(0, 100_000),
        zeroes_ppm: random.between(0, zeroes_ppm_max),
        hot_blocks: if random.hits(700_000) { 12 } else { 0 },
    }
}

fn some_habits(random: &mut Random) -> Habits {
    let durability =
        if random.hits(200_000) { Durability::WriteThrough } else { Durability::Flush };
    Habits {
        slow_ns: random.between(50_000, 5_000_000),
        stuck_ppm: if random.hits(300_000) { 20_000 } else { 0 },
        error_ppm: if random.hits(200_000) { 10_000 } else { 0 },
        volatile: durability == Durability::Flush && random.hits(100_000),
        durability,
    }
}

impl World {
    fn new(seed: u64, operations: u64) -> Self {
        let mut random = Random::new(seed);
        let habits = some_habits(&mut random);
        // Now and then hardly anything else is changed, so that what goes for writes has to go for
        // zeroed ranges by themselves.
        let zeroes_ppm_max = if random.hits(300_000) { 800_000 } else { 100_000 };
        let mix = some_mix(&mut random, zeroes_ppm_max);
        let names: Vec<_> = (0..64).map(|number| format!("vm{number}")).collect();
        let keys = if random.hits(500_000) {
            let all = names.iter().map(String::as_str).chain([SERVER.0]);
            WorldKeys::for_all(all, &mut random)
        } else {
            WorldKeys::none()
        };
        let encryption = Encryption::of(seed);
        let blank = encryption.blank(u32::try_from(BLOCKS * BLOCK_BYTES).expect("small"));
        let disk = SimDisk::new(blank, habits, random.fork());
        let record_ns = if random.hits(300_000) { 300_000_000 } else { 5_000_000 };
        let records = SimRecords::new(random.between(10_000, record_ns));
        let datagram_bytes_max = [1200, 1472, 8972][usize::try_from(random.below(3)).expect("3")];
        let mut frames = Frames::new(random.fork());
        let server = {
            let by = (&mut frames, &mut random);
            let disk = (&disk, &encryption);
            SimServer::start(disk, &records, &names, &keys, by, datagram_bytes_max)
        };
        let shape = (datagram_bytes_max, &keys);
        let own = SimRecords::new(random.between(10_000, record_ns));
        let host = (0, own, frames.guest());
        let client = SimClient::new(host, &names[0], &mut random, shape, false);
        Self {
            now_ns: 1_000_000,
            network: SimNetwork::new(random.fork()),
            frames,
            server: Up::Running(server),
            server_paused_ns: 0,
            partition_until_ns: 0,
            client,
            retired: VecDeque::new(),
            moves: false,
            started_elsewhere: false,
            silent_until_ns: 0,
            breach: None,
            checker: Checker::new(BLOCKS as u64),
            workload: encryption.workload(random.fork(), mix),
            names,
            keys,
            datagram_bytes_max,
            loss: false,
            ops_left: operations,
            next_fault_ns: 5_000_000,
            volatile: habits.volatile,
            eagerness_ppm: random.between(5_000, 100_000),
            moves_ppm: random.between(0, 50_000),
            report: SimulationReport {
                runs: 1,
                encrypted: encryption.is_on().into(),
                ..SimulationReport::default()
            },
            history: VecDeque::new(),
            disk,
            encryption,
            records,
            random,
        }
    }

    fn note(&mut self, what: impl fmt::Display) {
        if self.history.len() == HISTORY_LINES {
            self.history.pop_front();
        }
        self.history.push_back(format!("{:>14} {what}", self.now_ns));
    }

    fn run(&mut self) -> Result<(), String> {
        while self.ops_left > 0 {
            if self.now_ns >= self.next_fault_ns {
                self.strike()?;
            }
            self.step(true)?;
        }
        self.calm()?;
        self.finish()
    }

    /// Heals everything and waits until nothing is on its way.
    fn calm(&mut self) -> Result<(), String> {
        self.note("calm");
        self.network.weather = Weather::FINE;
        self.partition_until_ns = 0;
        self.network.cut_off.clear();
        if self.client.attachment.view().epoch == 0 {
            // A retired VMhost may hold the volume again: the record of the VMhost that fenced it
            // was lost. An operator must say which of the two has it at last.
            self.client.take_over();
        }
        // A VMhost whose guest was thought dead may have the guest's address still.
        self.retired.iter_mut().for_each(|client| client.nics.go());
        self.frames.look_anew();
        let by_ns = self.now_ns + CALM_NS_MAX;
        while let Some(missing) = self.missing() {
            self.step(false)?;
            if self.now_ns > by_ns {
                let stuck = self.workload.outstanding();
                let why = self.client.attachment.why();
                let frames = self.frames.describe(&self.client.nics);
                return Err(format!(
                    "{missing}; {stuck} requests are outstanding: {why:?}; {frames}"
                ));
            }
        }
        Ok(())
    }

    /// The promise that is not kept yet though nothing fails any more.
    fn missing(&self) -> Option<&'static str> {
        if self.workload.outstanding() > 0 || !self.client.is_running() {
            Some("requests never ended")
        } else if !self.frames.do_flow() {
            Some("frames do not flow")
        } else {
            None
        }
    }

    /// Reads every block once more, and looks for what was left behind.
    fn finish(&mut self) -> Result<(), String> {
        self.note("the whole volume is read");
        let by_ns = self.now_ns + CALM_NS_MAX;
        let mut next = 0;
        let mut began = None;
        while next < self.checker.blocks() {
            if began.is_none() {
                began = self.client.read_block(next, &mut self.checker);
            }
            self.step_hosts();
            if let Some(read) = began
                && let Some(bytes) = self.client.block_read()?
            {
                began = None;
                match bytes {
                    Some(bytes) => {
                        let end = self.checker.end_read(read, next, &bytes, BLOCK_BYTES);
                        end.map_err(|breach| format!("in the end: {breach}"))?;
                        next += 1;
                    }
                    // A disk with errors on purpose: once more.
                    None => self.checker.drop_read(read),
                }
            }
            if self.now_ns > by_ns {
                let why = self.client.attachment.why().unwrap_or_default();
                return Err(format!("the final reads never ended: {why}"));
            }
        }
        self.leftovers()
    }

    fn leftovers(&mut self) -> Result<(), String> {
        self.frames.fall_silent();
        // Late acknowledgements and lost sessions' ends.
        let by_ns = self.now_ns + 30_000_000_000;
        while self.now_ns < by_ns && self.buffers_in_use() > 0 {
            self.step_hosts();
        }
        if self.buffers_in_use() > 0 {
            let client = self.client.buffers_in_use();
            return Err(format!(
                "{} buffers were never released, {client} of them by the VMhost",
                self.buffers_in_use()
            ));
        }
        while let Some(client) = self.retired.pop_front() {
            client.check_untouched()?;
        }
        self.breach.take().map_or(Ok(()), Err)?;
        self.end_server(self.now_ns);
        self.report.guest = self.workload.counts;
        self.report.network = self.network.counts;
        self.report.frames = self.frames.counts;
        self.report.disk = self.disk.counts();
        self.report.simulated_ns = self.now_ns;
        self.count_client();
        Ok(())
    }

    fn buffers_in_use(&self) -> usize {
        let server = match &self.server {
            Up::Running(server) => server.buffers_in_use(),
            Up::DownUntil(_) => 0,
        };
        server + self.client.buffers_in_use()
    }

    /// One step of the clock; the guest works when it may.
    fn step(&mut self, work: bool) -> Result<(), String> {
        if self.client.before_claim.is_none() {
            self.client.before_claim = Some(self.checker.begin_flush());
        }
        self.step_hosts();
        self.look_after_stop();
        self.look_after_claims();
        let failed = |failure: Failure| failure.to_string();
        for ring in self.client.rings() {
            self.workload.reap(ring, &mut self.checker).map_err(failed)?;
        }
        if work {
            if self.random.hits(self.moves_ppm) {
                self.client.begin_move(self.now_ns, &mut self.random);
            }
            for at in 0..self.client.rings().len() {
                if self.random.hits(self.eagerness_ppm) {
                    let requests = usize::try_from(self.random.between(1, 4)).expect("small");
                    let ring = &mut self.client.rings()[at];
                    let staged = self.workload.submit(ring, &mut self.checker, requests);
                    let staged = staged.map_err(failed)? as u64;
                    self.ops_left = self.ops_left.saturating_sub(staged);
                }
            }
        }
        self.breach.take().map_or(Ok(()), Err)?;
        self.look_after_disk()
    }

    /// A VMhost's process that was to stop has stopped, and comes back later.
    fn look_after_stop(&mut self) {
        if !self.client.has_stopped() {
            return;
        }
        let clean = self.records.is_clean(ATTACHMENT);
        let moves = std::mem::take(&mut self.moves);
        self.note(format_args!("the VMhost has stopped, clean: {clean}"));
        if let Some(began) = self.client.stopping.filter(|_| clean) {
            // A late answer may have been lost; the record tells.
            self.checker.end_flush(began);
            self.report.closed_clean += 1;
        }
        if moves {
            self.succeed(true);
            let old = self.retired.back_mut().expect("just retired");
            old.has_moved = true;
            old.nics.go();
            self.report.migrated += 1;
            if !clean {
                // Its source could not say so: the operator does.
                self.client.take_over();
            }
            return;
        }
        self.kill_client();
        self.client.clean = clean;
    }

    /// A claim makes durable what was acknowledged before.
    fn look_after_claims(&mut self) {
        let epoch = self.client.attachment.view().epoch;
        if epoch != self.client.epoch_seen {
            let fresh = self.client.epoch_seen == 0 && !self.client.resumed;
            self.client.epoch_seen = epoch;
            self.client.goes_on = false;
            self.client.clean = false;
            if fresh && self.loss {
                self.lose();
            }
            self.note(format_args!(
                "epoch {epoch}, incarnation {}",
                self.client.attachment.incarnation()
            ));
            self.checker.recovered();
            self.loss = false;
            if let Some(began) = self.client.before_claim.take() {
                self.checker.end_flush(began);
            }
        }
    }

    /// The guest's disk may have failed, or been fenced for no reason.
    fn look_after_disk(&mut self) -> Result<(), String> {
        let why = self.client.attachment.why().unwrap_or_default();
        // A successor claims as if writes were unflushed. A close makes writes durable, but a claim
        // whose answer does not arrive forgets that.
        let client = &self.client;
        let may_be_told_so = client.resumed || client.goes_on;
        let expected =
            self.volatile || self.loss || self.checker.may_be_unflushed() || may_be_told_so;
        match self.client.attachment.view().phase {
            Phase::Unclaimed | Phase::Held | Phase::Closed => Ok(()),
            Phase::Fenced => Err(format!("the only client was fenced: {why}")),
            Phase::Failed if self.client.clean && !self.volatile => {
                Err(format!("the disk failed though it was closed clean: {why}"))
            }
            Phase::Failed if !expected => {
                Err(format!("the disk failed though nothing was lost: {why}"))
            }
            Phase::Failed => {
                self.note(format_args!("the disk failed: {why}"));
                self.report.disks_failed += 1;
                self.fresh_guest();
                self.lose();
                self.loss = false;
                Ok(())
            }
        }
    }

    /// A guest that starts afresh after a power cut finds what survived.
    fn lose(&mut self) {
        self.note(format!("writes that were not flushed are lost: {:?}", self.checker));
        if self.volatile {
            self.checker.erase();
        } else {
            self.checker.lose();
        }
    }

    /// The guest is gone, and a new one starts on the same VMhost.
    fn fresh_guest(&mut self) {
        self.checker.settle();
        self.workload.forget();
        self.count_client();
        self.moves = false;
        self.client.own.kill(&mut self.random);
        let number = self.client.number;
        let name = self.names[usize::from(number)].clone();
        let shape = (self.datagram_bytes_max, &self.keys);
        let host = (number, self.client.own.clone(), self.frames.guest());
        let takes = self.client.takes;
        self.client = SimClient::new(host, &name, &mut self.random, shape, false);
        if takes {
            self.client.take_over();
        }
    }

    fn step_hosts(&mut self) {
        self.advance_clock();
        let now_ns = self.now_ns;
        let retired = self.retired.iter_mut().map(|client| &mut client.nics);
        let heard = self.frames.work(now_ns, &mut self.client.nics, retired);
        self.breach = self.breach.take().or(heard.err());
        self.disk.advance(now_ns);
        if matches!(self.server, Up::Running(_)) {
            self.records.advance(now_ns);
        }
        if self.partition_until_ns != 0 && now_ns >= self.partition_until_ns {
            self.partition_until_ns = 0;
            self.network.cut_off.clear();
            self.note("the partition heals");
        }
        self.start_server();
        self.client.start_if_due(now_ns, &mut self.random);
        self.deliver();
        if let Up::Running(server) = &mut self.server
            && now_ns >= self.server_paused_ns
        {
            server.run(now_ns, &mut self.network);
        }
        self.client.run(now_ns, &mut self.network, &mut self.random);
        for client in &mut self.retired {
            let fenced_before = client.is_fenced();
            if client.is_due(now_ns) {
                client.run(now_ns, &mut self.network, &mut self.random);
            }
            if client.is_handed_over() {
                client.kill(now_ns, &mut self.random);
            }
            client.start_if_due(now_ns, &mut self.random);
            self.report.fenced += u64::from(client.is_fenced() && !fenced_before);
        }
    }

    fn start_server(&mut self) {
        if let Up::DownUntil(until_ns) = self.server
            && self.now_ns >= until_ns
            && !self.disk.is_locked()
        {
            self.server = Up::Running(SimServer::start(
                (&self.disk, &self.encryption),
                &self.records,
                &self.names,
                &self.keys,
                (&mut self.frames, &mut self.random),
                self.datagram_bytes_max,
            ));
            self.note("the IOhost is back");
        }
    }

    fn advance_clock(&mut self) {
        let waits = self.now_ns < self.silent_until_ns && self.client.attachment.view().epoch == 0;
        let mut next_ns = self.now_ns + if waits { STEP_SILENT_NS_MAX } else { STEP_NS_MAX };
        let devices = [self.disk.next_ns(), self.records.next_ns()];
        let events = [self.frames.next_ns(), self.network.next_ns()].into_iter().chain(devices);
        for at_ns in events.flatten().chain(self.client.next_ns()) {
            next_ns = next_ns.min(at_ns);
        }
        if let Up::Running(server) = &self.server {
            for at_ns in server.cores.iter().filter_map(|core| core.next_ns()) {
                next_ns = next_ns.min(at_ns);
            }
        }
        self.now_ns = next_ns.max(self.now_ns + 1_000);
    }

    fn deliver(&mut self) {
        while let Some((at_ns, from, to, bytes)) = self.network.arrived(self.now_ns) {
            let server = match &mut self.server {
                Up::Running(server) => server.cores.as_mut_slice(),
                Up::DownUntil(_) => &mut [],
            };
            let clients = self.retired.iter_mut().flat_map(|client| client.cores_mut());
            let mut all = server.iter_mut().chain(self.client.cores_mut()).chain(clients);
            match all.find(|core| core.addr() == to) {
                Some(core) => core.arrive(at_ns, from, bytes),
                None => self.network.counts.cut += 1,
            }
        }
    }

    fn strike(&mut self) -> Result<(), String> {
        self.next_fault_ns = self.now_ns + self.random.between(1_000_000, 150_000_000);
        let fault = Fault::random(&mut self.random);
        self.report.faults.count(fault);
        self.note(format_args!("{fault:?}"));
        let away_ns = self.random.between(0, 300_000_000);
        match fault {
            Fault::Weather => self.network.weather = Weather::random(&mut self.random),
            Fault::Partition => {
                self.network.cut_off = vec![host_ip(SERVER.1)];
                self.partition_until_ns = self.now_ns + self.pause_ns();
            }
            Fault::KillServer => self.stop_server(false, away_ns),
            Fault::CutPower => self.stop_server(true, away_ns),
            Fault::KillClient => self.kill_client(),
            Fault::StopClient | Fault::HandOver => {
                let began = self.checker.begin_flush();
                self.client.stop(began, fault == Fault::HandOver);
            }
            Fault::KillBoth => {
                self.stop_server(false, away_ns);
                self.kill_client();
            }
            Fault::CutPowerKillClient => {
                self.stop_server(true, away_ns);
                self.kill_client();
            }
            Fault::PauseServer => self.server_paused_ns = self.now_ns + self.pause_ns(),
            Fault::PauseClient => self.client.paused_ns = self.now_ns + self.pause_ns(),
            Fault::PauseCore => self.pause_core(),
            Fault::Migrate => return self.migrate(),
            Fault::Return if !self.retired.is_empty() => {
                let at = self.random.below(self.retired.len() as u64);
                let client = &mut self.retired[usize::try_from(at).expect("small")];
                if !client.has_moved {
                    client.kill(self.now_ns + away_ns, &mut self.random);
                    self.report.returned += 1;
                }
            }
            Fault::Return => {}
            Fault::CrashGuest => {
                // Writes that left the IOhost before the cut may have been acknowledged after it.
                let late = self.checker.is_cut() && self.checker.unflushed();
                self.fresh_guest();
                if std::mem::take(&mut self.loss) || late {
                    self.lose();
                }
            }
        }
        Ok(())
    }

    /// Adds the counts of the VMhost's process before it goes.
    fn count_client(&mut self) {
        self.report.resent += self.client.resent();
        let (moves, refused) = self.client.moves();
        self.report.moves += moves;
        self.report.moves_refused += refused;
    }

    fn pause_ns(&mut self) -> u64 {
        // The last one is beyond the silence after which a session is lost.
        let longest = [5_000_000, 20_000_000, 100_000_000, 400_000_000, 6_000_000_000];
        let at = usize::try_from(self.random.below(5)).expect("five");
        self.random.between(1_000_000, longest[at])
    }

    fn pause_core(&mut self) {
        let until_ns = self.now_ns + self.pause_ns();
        let server = match &mut self.server {
            Up::Running(server) => server.cores.as_mut_slice(),
            Up::DownUntil(_) => &mut [],
        };
        let mut cores: Vec<_> = server.iter_mut().chain(self.client.cores_mut()).collect();
        if !cores.is_empty() {
            let at = self.random.below(cores.len() as u64);
            cores[usize::try_from(at).expect("small")].pause(until_ns);
        }
    }

    fn stop_server(&mut self, power: bool, away_ns: u64) {
        self.end_server(self.now_ns + away_ns);
        self.server_paused_ns = 0;
        self.records.kill(&mut self.random);
        if power {
            self.checker.power_cut();
            // A claim that is under way has already taken "clean" back.
            self.client.clean &= self.records.is_clean(ATTACHMENT);
            self.note(format!("the power is cut: {:?}", self.checker));
            self.disk.cut_power();
            self.frames.restart_here();
            let new = self.client.attachment.view().epoch == 0 && !self.client.resumed;
            if new {
                // A guest that has not seen the disk yet: for it, nothing was promised.
                self.lose();
            } else {
                self.loss |= self.volatile || self.checker.unflushed();
            }
        } else {
            self.disk.kill();
        }
    }

    fn end_server(&mut self, until_ns: u64) {
        let server = std::mem::replace(&mut self.server, Up::DownUntil(until_ns));
        if let Up::Running(server) = server {
            self.report.count_ciphered(&server.end());
        }
    }

    fn kill_client(&mut self) {
        self.report.killed_between += u64::from(self.client.is_between());
        self.count_client();
        let back_ns = self.now_ns + self.random.between(0, 300_000_000);
        self.moves = false;
        self.client.kill(back_ns, &mut self.random);
    }

    /// The guest goes on at another VMhost, with the same attachment.
    fn migrate(&mut self) -> Result<(), String> {
        let number = self.client.number + 1;
        // A VMM stops a source's rings before it starts the target's: a source that has not even
        // claimed does not claim later.
        if usize::from(number) >= self.names.len() || self.client.attachment.view().epoch == 0 {
            return Ok(());
        }
        // The old one has requests that may arrive after the new one's claim.
        for ring in self.client.rings() {
            self.workload
                .submit(ring, &mut self.checker, 4)
                .map_err(|failure| failure.to_string())?;
        }
        if self.random.hits(500_000) {
            // As its VMM does: the source lets go first.
            self.client.stop(self.checker.begin_flush(), false);
            self.moves = self.client.stopping.is_some();
            return Ok(());
        }
        if !self.started_elsewhere && self.random.hits(250_000) {
            self.start_elsewhere();
            return Ok(());
        }
        // The operator says that the guest must go on here, even if the other VMhost still has the
        // volume.
        self.succeed(true);
        self.client.take_over();
        let old = self.retired.back_mut().expect("just retired");
        old.nics.go();
        // It hands over as soon as it wakes, before it can know of the new one.
        if self.random.hits(500_000) {
            old.stop(self.checker.begin_flush(), true);
        }
        old.paused_ns = self.now_ns + self.random.between(0, 400_000_000);
        Ok(())
    }

    /// The guest's VMhost counts as gone, because it cannot be reached, so the guest is started
    /// afresh.
    fn start_elsewhere(&mut self) {
        self.started_elsewhere = true;
        self.report.started_elsewhere += 1;
        let late = self.checker.is_cut() && self.checker.unflushed();
        self.succeed(false);
        if std::mem::take(&mut self.loss) || late {
            self.lose();
        }
        self.next_fault_ns = self.now_ns + SILENT_NS;
        self.silent_until_ns = self.next_fault_ns;
        self.network.weather = Weather::FINE;
        let back_ns = self.next_fault_ns + self.random.between(1_000_000, 1_000_000_000);
        let old = self.retired.back_mut().expect("just retired");
        if self.random.hits(500_000) {
            old.kill(back_ns, &mut self.random);
        } else {
            old.paused_ns = back_ns;
        }
    }

    /// Another VMhost has the guest from now on; the old one is watched.
    fn succeed(&mut self, resumes: bool) {
        self.moves = false;
        self.checker.settle();
        self.workload.forget();
        self.count_client();
        let number = self.client.number + 1;
        let name = self.names[usize::from(number)].clone();
        let shape = (self.datagram_bytes_max, &self.keys);
        let own = SimRecords::new(self.random.between(10_000, 5_000_000));
        let host = (number, own, self.frames.guest());
        let next = SimClient::new(host, &name, &mut self.random, shape, resumes);
        self.retired.push_back(std::mem::replace(&mut self.client, next));
        if self.retired.len() > RETIRED_MAX {
            let oldest = self.retired.pop_front().expect("more than none");
            self.breach = self.breach.take().or(oldest.check_untouched().err());
        }
    }
}
