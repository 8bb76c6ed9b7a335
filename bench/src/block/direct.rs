//! The load of `--path direct`: a client whose requests come from a generator on its own sidecore,
//! in the place that the kernel's block layer has with `vrio attach`.

use std::cell::RefCell;
use std::path;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use block::ublk::abi::{ABORT, Descriptor, op};
use block::ublk::{Front, FrontCore, Kernel};
use direct::{AttachPeer, AttachPlan, DirectClient, Shape};
use node::config::LinkKind as Wanted;
use rustix::rand::{GetRandomFlags, getrandom};
use sidecore::RoundStage::Serve;
use sidecore::{Idle, Sidecore, now_ns};
use virtio::driver::SECTOR_BYTES;
use volume::backend::{FileOptions, FileVolume, MemoryVolume, NullVolume};
use volume::chain::Chain;
use volume::stage::VolumeKey;
use volume::uring::Completion;
use volume::{OpenArguments, uring};
use zeroize::Zeroizing;

use super::options::{BlockOptions, ChainStage, Volume};
use super::place::{FILL_DEPTH, client_of, disk_of};
use crate::load::{Load, LoadOutcome, LoadPattern, Places, STUCK};
use crate::measure::DISK_BYTES;
use testbed::events::Side;
use testbed::pair::LinkKind;
use testbed::stage::{Stage, inside};

/// The time between two looks at whether a run has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A volume without a wire: as large as a volume on another node.
const LOCAL_BYTES: u64 = DISK_BYTES;

/// The name of the client's thread, by which the kernel tells its processor time.
const THREAD: &str = "sidecore-0";

/// A client at work.
#[derive(Debug)]
pub(super) struct DirectLoad {
    client: DirectClient,
    front: Arc<FrontCore>,
}

impl DirectLoad {
    /// Attaches a guest's volume, over a network namespace of that name if there is one.
    pub(super) fn start(
        options: &BlockOptions,
        stage: &Stage,
        guest: u16,
        peer: String,
        namespace: Option<String>,
        core: Option<usize>,
    ) -> Result<Self> {
        let keys = &stage.keys;
        let sealed = keys.is_sealed();
        let shape = Shape { queues: 1, depth: options.depth.max(FILL_DEPTH) };
        let name = client_of(guest);
        let plan = AttachPlan {
            volume: AttachPlan::volume_of(&format!("io1/{}", disk_of(guest)))?,
            peers: vec![AttachPeer {
                address: peer,
                key: sealed.then(|| keys.public("io1").to_owned()),
            }],
            placements: None,
            key: sealed.then(|| keys.file("vm1")),
            trust_network: !sealed && namespace.is_some(),
            attachment: "bench".to_owned(),
            attachment_key: sealed.then(|| keys.tenant_file()),
            shape,
            idle: options.idle,
            link: match options.link {
                LinkKind::Xdp => Wanted::Xdp,
                LinkKind::Udp | LinkKind::Shm => Wanted::Udp,
            },
            core,
            take_over: false,
            accept_loss: false,
            error_after_ns: None,
            directory: stage.path(&name),
            name,
        };
        let client = inside(namespace.as_deref(), || DirectClient::new(&plan, false))??;
        let size_bytes = options.size_bytes;
        let started = (|| {
            client.describe(false)?;
            let front = client.open_front::<Generated>(shape, |_| Ok(()))?;
            client.claim(false)?;
            let places = client.size_bytes().unwrap_or(0) / u64::from(size_bytes);
            client.show(move |local| {
                let generator = Rc::new(RefCell::new(Generator::new(shape, size_bytes, places)));
                local.services().insert(Rc::clone(&generator));
                Generated(generator)
            });
            Ok(front)
        })();
        match started {
            Ok(front) => Ok(Self { client, front }),
            Err(error) => {
                client.stop();
                Err(error)
            }
        }
    }

    /// Writes every place once.
    pub(super) fn fill(&mut self) -> Result<()> {
        fill(self.client.sidecore())
    }

    /// Closes the attachment and ends the client.
    pub(super) fn stop(self) {
        let _ = on(self.client.sidecore(), Generator::stop);
        if !self.client.close::<Generated>(&self.front) {
            tracing::warn!("the attachment could not be closed in time");
        }
        self.client.stop();
    }
}

/// Measures all of these clients at the same time.
pub(super) fn run_all(clients: &[DirectLoad], load: Load) -> Result<LoadOutcome> {
    let before = look(clients)?;
    let outcomes: Vec<Result<LoadOutcome>> = thread::scope(|scope| {
        let run = |client: &DirectLoad| {
            let sidecore = client.client.sidecore().clone();
            scope.spawn(move || run(&sidecore, load))
        };
        let threads: Vec<_> = clients.iter().map(run).collect();
        let panicked = |_| Err(anyhow!("a client's thread panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    let mut all = LoadOutcome::new();
    for outcome in outcomes {
        all.add(&outcome?);
    }
    all.driver_cpu.push(look(clients)?.cpu().saturating_sub(before.cpu()));
    Ok(all)
}

/// The counters of clients and their channels, and the processor time of their threads.
pub(super) fn look(clients: &[DirectLoad]) -> Result<Side> {
    let mut side = Side::of_process(std::process::id())?.only(THREAD);
    for (name, count) in clients.iter().flat_map(|client| client.client.counters()) {
        *side.counters.entry(name).or_default() += count;
    }
    Ok(side)
}

/// The plan of a volume without a wire, and of the sidecore that reads and writes it.
#[derive(Debug)]
pub(super) struct LocalPlan<'a> {
    pub(super) volume: &'a Volume,
    /// The stages before it.
    pub(super) chain: &'a [ChainStage],
    /// Bytes of every request.
    pub(super) size_bytes: u32,
    /// The sidecore's behaviour while a request is outstanding.
    pub(super) idle: Idle,
    pub(super) core: Option<usize>,
}

/// The same generator on a volume without a wire between them: the cost of a request that stays on
/// its thread.
#[derive(Debug)]
pub(super) struct LocalLoad {
    sidecore: Sidecore,
}

impl LocalLoad {
    /// Makes the volume and starts its sidecore.
    pub(super) fn start(plan: &LocalPlan<'_>) -> Result<Self> {
        let LocalPlan { volume, chain, size_bytes, idle, core } = *plan;
        let config = sidecore::SidecoreConfig { core, idle, ..sidecore::SidecoreConfig::new(0) };
        let volume = self::chain(open(volume)?, chain)?.volume;
        let sidecore = sidecore::spawn(config).context("starting a sidecore")?;
        let shape = Shape { queues: 1, depth: FILL_DEPTH };
        let shown = sidecore.call(move |local| {
            uring::install(local).context("setting io_uring up")?;
            let services = local.services().clone();
            let open = OpenArguments { services: &services, depth: FILL_DEPTH };
            let channel = volume.open(&open).map_err(|error| anyhow!("{error}"))?;
            let mut front = Front::new(channel, volume.info(), shape);
            let places = volume.info().size_bytes / u64::from(size_bytes);
            let generator = Rc::new(RefCell::new(Generator::new(shape, size_bytes, places)));
            services.insert(Rc::clone(&generator));
            front.show(Generated(generator));
            local.add(Serve, Box::new(Rc::new(RefCell::new(front))));
            Ok::<_, anyhow::Error>(())
        });
        shown.ok().context("the sidecore has stopped")??;
        Ok(Self { sidecore })
    }

    /// The sleeps and wake-ups of its thread, and its processor time.
    pub(super) fn look(&self) -> Result<Side> {
        let mut side = Side::of_process(std::process::id())?.only(THREAD);
        let counters = self.sidecore.counters();
        let counted = [("sleeps", counters.sleeps.get()), ("naps", counters.naps.get())];
        side.counters = counted.map(|(name, count)| (name.to_owned(), count)).into();
        Ok(side)
    }

    /// Writes every place once.
    pub(super) fn fill(&mut self) -> Result<()> {
        fill(&self.sidecore)
    }

    /// Measures.
    pub(super) fn run(&mut self, load: Load) -> Result<LoadOutcome> {
        let before = self.look()?;
        let mut outcome = run(&self.sidecore, load)?;
        outcome.driver_cpu.push(self.look()?.cpu().saturating_sub(before.cpu()));
        Ok(outcome)
    }

    /// Ends the sidecore.
    pub(super) fn stop(self) {
        self.sidecore.stop();
    }
}

/// The chain of a volume, with a key of the measurement's own.
fn chain(volume: Arc<dyn volume::Volume>, kinds: &[ChainStage]) -> Result<Chain> {
    let stages = kinds.iter().map(|kind| (kind.measured)(path::Path::new("")));
    let stages = stages.map(|stage| Some(stage?.0)).collect::<Option<Vec<_>>>();
    let stages = stages.context("no measurement has this stage")?;
    let mut secret = Zeroizing::new([0; VolumeKey::BYTES]);
    getrandom(&mut secret[..], GetRandomFlags::empty()).context("drawing a key")?;
    let key = Arc::new(VolumeKey::from_bytes(&secret)?);
    Ok(Chain::build(volume, &stages, Some(&key))?)
}

/// The volume itself.
fn open(volume: &Volume) -> Result<Arc<dyn volume::Volume>> {
    Ok(match volume {
        Volume::Null => Arc::new(NullVolume::new(LOCAL_BYTES)),
        Volume::Memory => Arc::new(MemoryVolume::new(LOCAL_BYTES).context("mapping a volume")?),
        Volume::File(path) | Volume::DirectFile(path) => {
            let direct = matches!(volume, Volume::DirectFile(_));
            let size_bytes = (!path.exists()).then_some(LOCAL_BYTES);
            let options = FileOptions { direct, size_bytes, ..FileOptions::new(path) };
            Arc::new(FileVolume::open(&options)?)
        }
        Volume::Pool(_) => bail!("a node has the pool"),
    })
}

fn fill(sidecore: &Sidecore) -> Result<()> {
    let begin = |generator: &mut Generator| {
        generator.begin(LoadPattern::Write, FILL_DEPTH, u64::MAX, true);
    };
    let written = drive(sidecore, Duration::ZERO, begin)?.requests();
    let places = on(sidecore, |generator| generator.places.count())?;
    ensure!(written == places, "{written} of {places} places were written");
    Ok(())
}

fn run(sidecore: &Sidecore, load: Load) -> Result<LoadOutcome> {
    let until_ns = now_ns() + u64::try_from(load.duration.as_nanos()).unwrap_or(u64::MAX);
    drive(sidecore, load.duration, move |generator| {
        generator.begin(load.pattern, load.depth, until_ns, false);
    })
}

/// Begins, and does not disturb the sidecore for the time `alone`.
fn drive(
    sidecore: &Sidecore,
    alone: Duration,
    begin: impl FnOnce(&mut Generator) + Send + 'static,
) -> Result<LoadOutcome> {
    wait_for_tags(sidecore)?;
    on(sidecore, begin)?;
    thread::sleep(alone);
    let (mut seen, mut since) = (0, Instant::now());
    loop {
        thread::sleep(LOOK_AGAIN);
        let state = on(sidecore, |generator| {
            let over = generator.outstanding == 0;
            let done = generator.outcome.requests();
            (over.then(|| generator.end()), done, generator.failed)
        });
        let (over, done, failed) = state?;
        if let Some(errno) = failed {
            let error = std::io::Error::from_raw_os_error(-errno);
            bail!("a request failed while the disk was measured: {error}");
        }
        if let Some(outcome) = over {
            return Ok(outcome);
        }
        if done != seen {
            (seen, since) = (done, Instant::now());
        } else if since.elapsed() > STUCK {
            bail!("requests stand still for {STUCK:?}");
        }
    }
}

/// Waits until all tags are free. A run that began earlier, while the front still asks for its
/// first requests, would find no free tag and end at once.
fn wait_for_tags(sidecore: &Sidecore) -> Result<()> {
    let since = Instant::now();
    while !on(sidecore, |generator| generator.free.len() == generator.shape.places() as usize)? {
        ensure!(since.elapsed() < STUCK, "the client asks for no requests for {STUCK:?}");
        thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}

/// Runs `f` on the generator, on its sidecore.
fn on<T: Send + 'static>(
    sidecore: &Sidecore,
    f: impl FnOnce(&mut Generator) -> T + Send + 'static,
) -> Result<T> {
    let ran = sidecore.call(|local| {
        let generator = local.services().get::<Generator>()?;
        let mut generator = generator.borrow_mut();
        Some(f(&mut generator))
    });
    ran.ok().flatten().context("the client's sidecore has stopped")
}

/// Makes requests and notes how long they took.
#[derive(Debug)]
struct Generator {
    shape: Shape,
    size_bytes: u32,
    places: Places,
    pattern: LoadPattern,
    until_ns: u64,
    /// Requests that may still be made before the time is up.
    left: u64,
    descriptors: Vec<Descriptor>,
    buffers: Vec<Box<[u8]>>,
    submitted_ns: Vec<u64>,
    /// Tags that the front may be handed a request for.
    free: Vec<u32>,
    mail: Vec<Completion>,
    outstanding: usize,
    stopping: bool,
    failed: Option<i32>,
    began_ns: u64,
    moved_ns: u64,
    outcome: LoadOutcome,
}

impl Generator {
    fn new(shape: Shape, size_bytes: u32, places: u64) -> Self {
        let tags = shape.places() as usize;
        Self {
            shape,
            size_bytes,
            places: Places::new(0, 1, places),
            pattern: LoadPattern::Read,
            until_ns: 0,
            left: 0,
            descriptors: vec![Descriptor::default(); tags],
            buffers: vec![vec![0; size_bytes as usize].into(); tags],
            submitted_ns: vec![0; tags],
            free: Vec::with_capacity(tags),
            mail: Vec::with_capacity(tags),
            outstanding: 0,
            stopping: false,
            failed: None,
            began_ns: 0,
            moved_ns: 0,
            outcome: LoadOutcome::new(),
        }
    }

    /// Keeps `depth` requests outstanding until then; with `once`, for every place one.
    fn begin(&mut self, pattern: LoadPattern, depth: u16, until_ns: u64, once: bool) {
        (self.pattern, self.until_ns) = (pattern, until_ns);
        self.left = if once { self.places.count() } else { u64::MAX };
        self.outcome = LoadOutcome::new();
        self.began_ns = now_ns();
        self.moved_ns = self.began_ns;
        for _ in 0..depth {
            let Some(tag) = self.free.pop() else { break };
            self.next(tag, self.began_ns);
        }
    }

    fn end(&mut self) -> LoadOutcome {
        let took = Duration::from_nanos(self.moved_ns.saturating_sub(self.began_ns).max(1));
        LoadOutcome { took, ..std::mem::take(&mut self.outcome) }
    }

    /// Makes the next request of a tag; frees the tag if the run is over.
    fn next(&mut self, tag: u32, now_ns: u64) {
        if now_ns >= self.until_ns || self.left == 0 {
            self.free.push(tag);
            return;
        }
        self.left -= 1;
        let sectors = self.size_bytes / SECTOR_BYTES as u32;
        let op_flags = if self.pattern.writes() { op::WRITE } else { op::READ };
        let start_sector = self.places.next(self.pattern) * u64::from(sectors);
        let descriptor = Descriptor { op_flags, nr_sectors: sectors, start_sector, addr: 0 };
        self.descriptors[tag as usize] = descriptor;
        self.submitted_ns[tag as usize] = now_ns;
        self.mail.push(Completion { token: tag, result: 0 });
        self.outstanding += 1;
    }

    fn answered(&mut self, tag: u32, answer: i32) {
        let now_ns = now_ns();
        self.moved_ns = now_ns;
        self.outstanding -= 1;
        if answer < 0 {
            self.failed.get_or_insert(answer);
        }
        self.outcome.note(now_ns.saturating_sub(self.submitted_ns[tag as usize]));
        self.next(tag, now_ns);
    }

    /// Gives all tags back, as a device does that is stopped.
    fn stop(&mut self) {
        self.stopping = true;
        let free = self.free.drain(..);
        self.mail.extend(free.map(|tag| Completion { token: tag, result: ABORT }));
    }
}

/// The generator as the front's other side.
#[derive(Debug)]
struct Generated(Rc<RefCell<Generator>>);

impl Kernel for Generated {
    fn shape(&self) -> Shape {
        self.0.borrow().shape
    }

    fn ask(&mut self, place: u32, answer: Option<i32>) -> bool {
        let mut generator = self.0.borrow_mut();
        if generator.stopping {
            generator.mail.push(Completion { token: place, result: ABORT });
            return true;
        }
        match answer {
            Some(answer) => generator.answered(place, answer),
            None => generator.free.push(place),
        }
        true
    }

    fn take(&mut self, into: &mut Vec<Completion>) {
        let mut generator = self.0.borrow_mut();
        into.append(&mut generator.mail);
    }

    fn has_mail(&self) -> bool {
        !self.0.borrow().mail.is_empty()
    }

    fn descriptor(&self, place: u32) -> Descriptor {
        self.0.borrow().descriptors[place as usize]
    }

    fn buffer(&self, place: u32) -> *mut u8 {
        self.0.borrow_mut().buffers[place as usize].as_mut_ptr()
    }
}
