//! The parts of a measurement: the nodes, the way between them, and the driver of the disk.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use node::keys::{self, KeyKind};

use super::direct::{self, DirectLoad, LocalLoad, LocalPlan, run_all};
use super::options::{BlockOptions, Path, Volume};
use super::pool;
use crate::load::{Load, LoadOutcome};
use crate::measure::{DISK_BYTES, DriverPlan, MeasuredDisks};
use testbed::cleanup::Cleanup;
use testbed::events::{DEVICE_INTERRUPTS, EventsSnapshot, POOL_BLOCKS_WRITTEN, Role};
use testbed::interrupts::Interrupts;
use testbed::nodes::Node;
use testbed::pair::{Pair, RoleCores};
use testbed::progress::Progress;
use testbed::stage::{self, NodeNetwork, Stage};

/// The size of a null volume, and of a new file or all memory volumes together.
const NULL_SIZE: &str = "1TiB";
const SIZE_MIB: u64 = DISK_BYTES >> 20;

/// Requests outstanding while the disk is filled.
pub(super) const FILL_DEPTH: u16 = 32;

/// The source of requests.
#[derive(Debug)]
enum Driver {
    Ring(Box<MeasuredDisks>),
    /// The clients, one of each guest, and how many of them have work.
    Direct(Vec<DirectLoad>, usize),
    Bare(LocalLoad),
}

/// Everything that runs for a measurement.
#[derive(Debug)]
pub(super) struct BlockSetup {
    driver: Option<Driver>,
    nodes: Vec<(Role, Node)>,
    stage: Option<Stage>,
    /// The processes behind a foreign socket.
    pids: Vec<u32>,
    /// A file that was made for this.
    made: Option<PathBuf>,
    /// Interrupts of the device that holds the volume's file, and the role that they count for.
    interrupts: Option<(Role, Interrupts)>,
}

impl BlockSetup {
    /// Starts it all.
    pub(super) fn start(
        options: &BlockOptions,
        cleanup: &Cleanup,
        progress: &Progress,
    ) -> Result<Self> {
        let seats = options.seats();
        let pids = options.pids.clone();
        let (driver, nodes, stage) = (None, Vec::new(), None);
        let mut place = Self { driver, nodes, stage, pids, made: None, interrupts: None };
        let driver = match &options.path {
            Path::Socket(socket) => {
                stage::expect_socket(socket)?;
                ring(options, vec![socket.clone()], &seats)?
            }
            Path::Bare => {
                place.made = file_to_make(options)?;
                place.made.iter().for_each(|file| cleanup.path(file.clone()));
                let BlockOptions { size_bytes, idle, .. } = *options;
                let (volume, chain) = (&options.volume, &options.chain);
                let plan = LocalPlan { volume, chain, size_bytes, idle, core: seats.driver() };
                Driver::Bare(LocalLoad::start(&plan)?)
            }
            path => {
                let sessions = *path != Path::Local;
                let program = options.program.clone();
                let stage = if sessions {
                    options.meeting().stage(program, cleanup, progress)?
                } else {
                    Stage::new("bench", program, false, cleanup.clone())?
                };
                let stage = place.stage.insert(stage);
                if options.volume.file().is_some() {
                    place.made = file_to_make(options)?;
                    place.made.iter().for_each(|file| stage.cleanup.path(file.clone()));
                }
                if let Volume::Pool(path) = &options.volume {
                    pool::make(path, options.collects)?;
                }
                let (nodes, sockets) = start_nodes(options, stage, &seats)?;
                place.nodes = nodes;
                let guests = 0..options.guests;
                let cast = BlockNodes { options, stage, seats: &seats, guests };
                match path {
                    Path::Direct => {
                        let busy = usize::from(options.busy.unwrap_or(options.guests));
                        let clients = (0..options.guests).map(|guest| cast.client(guest));
                        Driver::Direct(clients.collect::<Result<_>>()?, busy)
                    }
                    _ => ring(options, sockets, &seats)?,
                }
            }
        };
        place.driver = Some(driver);
        let interrupts = options.volume.file().and_then(Interrupts::of_file);
        place.interrupts = interrupts.map(|interrupts| (options.storage(), interrupts));
        Ok(place)
    }

    /// Writes everything once.
    pub(super) fn fill(&mut self) -> Result<()> {
        match self.driver()? {
            Driver::Ring(bench) => bench.fill(),
            Driver::Direct(clients, _) => clients.iter_mut().try_for_each(DirectLoad::fill),
            Driver::Bare(local) => local.fill(),
        }
    }

    /// Blocks that the volume's pool has written to its devices.
    pub(super) fn pool_blocks_written(&self) -> Result<u64> {
        let look = self.look()?;
        let counts = look.sides.values().filter_map(|it| it.counters.get(POOL_BLOCKS_WRITTEN));
        Ok(counts.sum())
    }

    /// Measures.
    pub(super) fn run(&mut self, load: Load) -> Result<LoadOutcome> {
        match self.driver()? {
            Driver::Ring(bench) => bench.run(load),
            Driver::Direct(clients, busy) => run_all(&clients[..*busy], load),
            Driver::Bare(local) => local.run(load),
        }
    }

    fn driver(&mut self) -> Result<&mut Driver> {
        self.driver.as_mut().context("it was stopped")
    }

    /// The counters of all nodes and of the driver so far.
    pub(super) fn look(&self) -> Result<EventsSnapshot> {
        let nodes = self.nodes.iter().map(|(role, node)| (*role, node));
        let mut look = EventsSnapshot::at(nodes, &self.pids)?;
        match &self.driver {
            Some(Driver::Direct(clients, _)) => {
                drop(look.sides.insert(Role::Driver, direct::look(clients)?));
            }
            Some(Driver::Bare(local)) => drop(look.sides.insert(Role::Driver, local.look()?)),
            Some(Driver::Ring(_)) | None => {}
        }
        let counted = self.interrupts.as_ref().map(|(role, it)| (role, it.count()));
        if let Some((role, Some(count))) = counted
            && let Some(side) = look.sides.get_mut(role)
        {
            side.counters.insert(DEVICE_INTERRUPTS.to_owned(), count);
        }
        Ok(look)
    }

    /// The network between the nodes, where there are two.
    pub(super) fn network(&self) -> Option<NodeNetwork> {
        let stage = self.stage.as_ref()?;
        self.nodes.iter().any(|(role, _)| *role == Role::Iohost).then_some(stage.network)
    }

    /// Ends everything in order.
    pub(super) fn stop(mut self) -> Result<()> {
        match self.driver.take() {
            Some(Driver::Direct(clients, _)) => clients.into_iter().for_each(DirectLoad::stop),
            Some(Driver::Bare(local)) => local.stop(),
            Some(Driver::Ring(_)) | None => {}
        }
        // The VMhost first: it closes its attachment at the IOhost.
        while let Some((_, node)) = self.nodes.pop() {
            node.stop()?;
        }
        Ok(())
    }
}

impl Drop for BlockSetup {
    fn drop(&mut self) {
        self.nodes.clear();
        if let Some(made) = &self.made {
            // It may not have been made yet.
            let _ = fs::remove_file(made);
        }
    }
}

/// Nodes, and the sockets of the disks that they show.
pub(crate) type ShownDisks = (Vec<(Role, Node)>, Vec<PathBuf>);

/// Starts the nodes of a way that has any.
pub(crate) fn start_nodes(
    options: &BlockOptions,
    stage: &Stage,
    seats: &RoleCores,
) -> Result<ShownDisks> {
    let cast = BlockNodes { options, stage, seats, guests: 0..options.guests };
    let (mut nodes, mut sockets) = (Vec::new(), Vec::new());
    if options.path != Path::Local {
        nodes.push((Role::Iohost, cast.iohost()?));
    }
    if options.path == Path::Direct {
        return Ok((nodes, sockets));
    }
    for host in 0..options.hosts {
        let mut node = cast.host(host).vmhost(host)?;
        for disk in cast.host(host).names() {
            sockets.push(node.wait_for_disk(&disk)?);
        }
        nodes.push((Role::Vmhost, node));
    }
    Ok((nodes, sockets))
}

/// A file that is not there yet: the node will make it.
fn file_to_make(options: &BlockOptions) -> Result<Option<PathBuf>> {
    let Some(path) = options.volume.file() else { return Ok(None) };
    if !path.is_absolute() {
        bail!("--volume file:{}: an absolute path, please", path.display());
    }
    let folder = path.parent().context("a file is in a folder")?;
    if !folder.is_dir() {
        bail!("--volume file:{}: there is no folder {}", path.display(), folder.display());
    }
    Ok((!path.exists()).then(|| path.to_owned()))
}

fn ring(options: &BlockOptions, sockets: Vec<PathBuf>, seats: &RoleCores) -> Result<Driver> {
    // Without a core for each queue, a thread drives as many queues as one core would. Threads that
    // poll and share cores only keep each other from them.
    let threads = options.driver_threads(seats.driver.len());
    let plan = DriverPlan {
        sockets,
        busy: options.busy,
        jobs: options.jobs,
        threads: Some(threads),
        size_bytes: options.size_bytes,
        depth_max: options.depth.max(FILL_DEPTH),
        packed: options.packed,
        reuse: options.reuse,
        waiting: options.driver,
        cores: seats.driver.clone(),
    };
    Ok(Driver::Ring(Box::new(MeasuredDisks::connect(&plan, None)?)))
}

/// The nodes' configurations for some of the guests.
struct BlockNodes<'a> {
    options: &'a BlockOptions,
    stage: &'a Stage,
    seats: &'a RoleCores,
    /// The guests whose disks and volumes are configured.
    guests: Range<u16>,
}

/// The name of a guest's disk and of its volume.
pub(super) fn disk_of(guest: u16) -> String {
    if guest == 0 { "bench".to_owned() } else { format!("bench-{guest}") }
}

/// The name of a guest's client.
pub(super) fn client_of(guest: u16) -> String {
    if guest == 0 { "vm1".to_owned() } else { format!("vm1-{guest}") }
}

impl BlockNodes<'_> {
    fn pair(&self) -> Pair<'_> {
        let BlockOptions { link, sidecores, idle, .. } = *self.options;
        Pair { link, stage: self.stage, seats: self.seats, sidecores, idle }
    }

    /// The same with the guests of one of the VMhosts alone.
    fn host(&self, host: u16) -> BlockNodes<'_> {
        let each = self.options.guests / self.options.hosts;
        BlockNodes { guests: host * each..(host + 1) * each, ..*self }
    }

    fn names(&self) -> impl Iterator<Item = String> {
        self.guests.clone().map(disk_of)
    }

    /// The tables of all volumes.
    fn volumes(&self, allow: &str) -> Result<String> {
        let backend = match &self.options.volume {
            Volume::Null => format!("null = \"{NULL_SIZE}\""),
            Volume::Memory => {
                format!("memory = \"{}MiB\"", SIZE_MIB / u64::from(self.options.guests))
            }
            Volume::File(path) | Volume::DirectFile(path) => {
                let direct = matches!(self.options.volume, Volume::DirectFile(_));
                let made = || format!(", size = \"{SIZE_MIB}MiB\"");
                let size = if path.exists() { String::new() } else { made() };
                format!("file = {path:?}, direct = {direct}{size}")
            }
            Volume::Pool(_) => pool::backend(),
        };
        let table = |name: String| {
            let chain = self.chain(&name)?;
            Ok(format!("[[volume]]\nname = \"{name}\"\nbackend = {{ {backend} }}\n{chain}{allow}"))
        };
        let pool = match &self.options.volume {
            Volume::Pool(path) => pool::table(path),
            _ => String::new(),
        };
        Ok(pool + &self.names().map(table).collect::<Result<String>>()?)
    }

    /// The line of a volume's chain, and a key if it takes one.
    fn chain(&self, volume: &str) -> Result<String> {
        if self.options.chain.is_empty() {
            return Ok(String::new());
        }
        let key = self.stage.folder.join(format!("{volume}.xts"));
        let stages = self.options.chain.iter().map(|kind| {
            let (stage, text) = (kind.measured)(&key).context("no measurement has this stage")?;
            for file in stage.files() {
                keys::create(file, KeyKind::Volume)?;
            }
            Ok(text)
        });
        let stages: Vec<_> = stages.collect::<Result<_>>()?;
        Ok(format!("chain = [{}]\n", stages.join(", ")))
    }

    /// The folder of the volume's file, which a node's configuration must name.
    fn folders(&self) -> Vec<PathBuf> {
        let Some(path) = self.options.volume.file() else { return Vec::new() };
        path.parent().map(PathBuf::from).into_iter().collect()
    }

    fn start(&self, name: &str, config: &str) -> Result<Node> {
        let mut plan = self.stage.plan(name, config);
        plan.volume_folders = self.folders();
        self.stage.start(&plan)
    }

    fn iohost(&self) -> Result<Node> {
        let clients: Vec<_> = match self.options.path {
            Path::Direct => self.guests.clone().map(client_of).collect(),
            _ => vec!["vm1".to_owned()],
        };
        let clients: Vec<_> = clients.iter().map(String::as_str).collect();
        let volumes = self.volumes(&self.stage.keys.allow(&clients))?;
        let idle = self.options.iohost_idle.unwrap_or(self.options.idle);
        let pair = Pair { idle, ..self.pair() };
        self.start("io1", &format!("{}{volumes}", pair.iohost()))
    }

    fn vmhost(&self, host: u16) -> Result<Node> {
        let queues = self.options.jobs;
        // A volume of the node's own is named by its name alone.
        let (home, key) = match self.options.path {
            Path::Local => ("", String::new()),
            _ => ("io1/", self.stage.keys.disk()),
        };
        let disks = self.names().map(|name| {
            format!(
                "[[disk]]\nsocket = \"{name}.sock\"\nqueues = {queues}\n\
                 volume = \"{home}{name}\"\n{key}"
            )
        });
        let disks: String = disks.collect();
        let config = match self.options.path {
            Path::Local => {
                let mut seats = self.seats.clone();
                let sidecores = usize::from(self.options.sidecores);
                let first = sidecores * usize::from(host);
                seats.vmhost = seats.vmhost.into_iter().skip(first).take(sidecores).collect();
                let pair = Pair { seats: &seats, ..self.pair() };
                format!("{}{}{disks}", pair.vmhost_alone(), self.volumes("")?)
            }
            _ => format!("{}{disks}", self.pair().vmhost()),
        };
        self.start(&format!("vm{}", host + 1), &config)
    }

    fn client(&self, guest: u16) -> Result<DirectLoad> {
        let core = self.seats.driver.get(usize::from(guest)).copied();
        let namespace = self.stage.namespace_of("vm1");
        let peer = self.pair().address();
        DirectLoad::start(self.options, self.stage, guest, peer, namespace, core)
    }
}
