//! The models in a real guest: Linux with its own drivers under QEMU, one guest after the other,
//! each with one request under way.
//!
//! ```text
//!   optimum            guest ─ a device of this machine, by VFIO
//!   vRIO direct        guest: vrio attach ═ its card ═ QEMU's user network ═ IOhost
//!   Elvis, baseline    guest ═ virtqueue ═ VMhost
//!   vRIO host-side     guest ═ virtqueue ═ VMhost ═ session ═ IOhost
//!   QEMU's virtio      guest ═ virtqueue ═ QEMU
//!   emulation          guest ─ registers ─ QEMU
//! ```
//!
//! The guest's kernel counts kicks and interrupts. Each kick stops a guest that hardware runs.
//! Nodes count their wake-ups.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use super::cell::{Alone, Count, ModelSample};
use super::emulated::{Emulated, Tracing};
use super::model::{GuestDevice, Model};
use super::options::{ModelsOptions, NET_GUESTS, Setting};
use super::table::{ModelRow, ModelTable};
use super::{block, net, turns, vfio};
use crate::block::Volume;
use testbed::cleanup::Cleanup;
use testbed::events::{EventsSnapshot, Role, Side};
use testbed::guest::words::{number, text};
use testbed::guest::{
    Accelerator, BOOT_TIMEOUT, Builder, Guest, GuestError, Image, VhostDisk, VhostNic, scripts,
};
use testbed::machine::cores;
use testbed::nodes::Node;
use testbed::pair::RoleCores;
use testbed::progress::Progress;
use testbed::stage::Stage;

/// The size of each guest's disk, a file that fits into the page cache.
const DISK_BYTES: u64 = 64 << 20;

/// How long a guest's work may take. An emulated guest on a busy machine is slow, and tracing makes
/// it slower.
const PATIENCE: Duration = Duration::from_secs(180);

/// The least time of reads, in whole seconds as every time in a guest: few requests say little.
const SECONDS_MIN: f64 = 1.0;

/// Memory of a guest that has the `vrio` program and its libraries in memory.
const CLIENT_MIB: u32 = 1024;

/// Addresses of two guests of a network, and those that QEMU's user network gives.
const PAIR: [&str; 2] = ["10.79.0.1", "10.79.0.2"];
const USER: [&str; 2] = ["10.0.2.15", "10.0.2.2"];

/// Reasons why cells and figures are empty.
const NO_INJECTION: &str = "an injection is KVM's, which counts it where the guest is left for it";
const NO_KICKS: &str = "the guest's kernel does not count its kicks (kprobes)";
const QEMU_SLEEPS: &str = "QEMU's wake-ups are not counted";
const QEMU_CARRIES: &str = "QEMU's user network carries the client's card, and a card of its own \
                            would have none of that";
const OF_THE_KERNEL: &str = "the host's cost of an interrupt of a guest's own device is not \
                             counted";
const EMULATED_SPEED: &str = "a guest whose instructions are emulated has no speed that says \
                              anything";
const TRACED_SPEED: &str = "a guest that is traced has no speed that says anything";
const ALONE: &str = "a real guest asks for one thing after the other";
const NO_TIMES: &str = "of a ping's frames only events are counted";
const NO_CARD_VFIO: &str =
    "a card by VFIO: its answers come from another machine, which the bench does not reach";

/// The report of a guest about its work.
struct GuestReport {
    requests: u64,
    interrupts: u64,
    kicks: Option<u64>,
    /// The time that half of the requests do not exceed, and that 99 of a hundred do not exceed.
    us: Option<[f64; 2]>,
}

impl GuestReport {
    fn of(line: &str) -> Result<Self> {
        let requests = number(line, "requests")?;
        ensure!(requests > 0, "the guest has done nothing: {line}");
        let us = |name| number(line, name).ok().map(|us| us as f64);
        Ok(Self {
            requests,
            interrupts: number(line, "interrupts")?,
            kicks: text(line, "kicks").is_ok().then(|| number(line, "kicks")).transpose()?,
            us: us("p50_us").zip(us("p99_us")).map(|(p50, p99)| [p50, p99]),
        })
    }
}

/// The guests and nodes of a model. Guests end before their nodes.
struct ModelGuests {
    /// The guests; the first guest has the work.
    guests: Vec<Guest>,
    nodes: Vec<(Role, Node)>,
}

impl ModelGuests {
    fn look(&self) -> Result<EventsSnapshot> {
        EventsSnapshot::at(self.nodes.iter().map(|(role, node)| (*role, node)), &[])
    }

    fn guest(&mut self) -> Result<&mut Guest> {
        self.guests.first_mut().context("a guest runs")
    }

    /// Asks for the next piece of work, from 1 on. The counts of other guests are added.
    fn ask(&mut self, work: u16) -> Result<GuestReport> {
        let before = self.look_at_others(2 * work - 1)?;
        let mut told = asked(self.guest()?, "work", work)?;
        for (before, after) in before.into_iter().zip(self.look_at_others(2 * work)?) {
            told.interrupts += after.interrupts.saturating_sub(before.interrupts);
            let more = after.kicks.zip(before.kicks);
            let more = more.map(|(after, before)| after.saturating_sub(before));
            told.kicks = told.kicks.zip(more).map(|(kicks, more)| kicks + more);
        }
        Ok(told)
    }

    /// The counts of the other guests so far.
    fn look_at_others(&mut self, look: u16) -> Result<Vec<GuestReport>> {
        self.guests.iter_mut().skip(1).map(|guest| asked(guest, "look", look)).collect()
    }
}

/// The answer of a guest to a command. The command has a number, so that the guest runs it once.
fn asked(guest: &mut Guest, word: &str, number: u16) -> Result<GuestReport> {
    let (typed, answer) = (format!("{word} {number}"), format!("measured {number} "));
    GuestReport::of(&guest.ask(&typed, &answer, PATIENCE)?)
}

/// The images that are installed, and the way to run guests.
struct Images {
    usual: Result<Image, GuestError>,
    /// An image with the drivers of ublk, and of cards that QEMU emulates.
    newer: Result<Image, GuestError>,
    accelerator: Accelerator,
}

impl Images {
    /// Fails without any image.
    fn find() -> Result<Self> {
        let (usual, newer) = (Image::find(), Image::find_newer());
        let accelerator = match (&usual, &newer) {
            (Ok(image), _) | (_, Ok(image)) => Accelerator::choose(image),
            (Err(why), Err(_)) => return Err(anyhow!("{why}")),
        };
        Ok(Self { usual, newer, accelerator })
    }

    fn of(&self, newer: bool) -> Result<&Image> {
        let image = if newer { &self.newer } else { &self.usual };
        image.as_ref().map_err(|why| {
            let word = if newer { " newer" } else { "" };
            anyhow!("{why}{word}")
        })
    }
}

/// The options of a measurement, and its device.
struct ModelBench<'a> {
    options: &'a ModelsOptions,
    images: Images,
    device: GuestDevice,
    cleanup: &'a Cleanup,
}

/// All models of each device, in guests of their own; and the parts of emulation.
pub(super) fn tables(
    options: &ModelsOptions,
    cleanup: &Cleanup,
    progress: &Progress,
) -> (Vec<ModelTable>, Vec<Emulated>) {
    let (mut tables, mut emulated) = (Vec::new(), Vec::new());
    let devices = if options.guest { &options.devices[..] } else { &[] };
    for &device in devices {
        progress.doing("looking how a guest can be run");
        let images = Images::find();
        let accelerator = images.as_ref().map_or("none", |images| images.accelerator.name());
        let guests = if device == GuestDevice::Block { 1 } else { NET_GUESTS };
        let real_guest = Some(accelerator);
        let setting = Setting { encrypt: true, real_guest, ..Setting::of(device, guests) };
        let bench = images.map(|images| ModelBench { options, images, device, cleanup });
        let row = |model: &Model| {
            let name = model.name();
            progress.doing(format!("{}: {name}", setting.title()));
            let measured = match &bench {
                Ok(bench) => bench.measure(*model, &mut emulated),
                Err(why) => Err(anyhow!("{why:#}")),
            };
            let outcome = measured.map_err(|error| {
                cleanup.yield_to_interruption();
                format!("{error:#}")
            });
            if let Err(why) = &outcome {
                progress.done(format!("not measured: {name}: {why}"));
            }
            turns::row(*model, outcome, is_seated(*model))
        };
        let asked = Model::ALL.iter().filter(|model| options.models.contains(model));
        let rows: Vec<ModelRow> = asked.map(row).collect();
        progress.done(setting.title());
        tables.push(ModelTable { setting, rows });
    }
    (tables, emulated)
}

/// Whether threads that poll leave a core for the guest's processor.
fn is_seated(model: Model) -> bool {
    let polling = model.polling_cores();
    let polling = usize::from(polling.vmhost + polling.iohost.unwrap_or(0));
    polling == 0 || polling < cores().len()
}

impl ModelBench<'_> {
    /// Boots the guests of a model and lets them work, once for each round.
    fn measure(&self, model: Model, emulated: &mut Vec<Emulated>) -> Result<Vec<ModelSample>> {
        let program = self.options.program.clone();
        let stage = Stage::new("models", program, true, self.cleanup.clone())?;
        let tracing = Tracing::new(&stage);
        let mut scene = self.start(model, &stage, &tracing)?;
        for guest in &mut scene.guests {
            guest.wait_for("ready", BOOT_TIMEOUT + PATIENCE)?;
        }
        if model != Model::Emulation {
            return (1..=self.options.rounds)
                .map(|it| self.sample(model, &mut scene, it))
                .collect();
        }
        let told = tracing.during(|| scene.ask(1))?;
        scene.guest()?.kill();
        let accelerator = self.images.accelerator.name();
        let counts = (told.requests, told.interrupts);
        let it = Emulated::of(self.device, accelerator, counts, tracing.file())?;
        let [exits, interrupts] = [it.sync_exits, it.guest_interrupts].map(Count::Of);
        emulated.push(it);
        let [injections, host] = [NO_INJECTION, QEMU_SLEEPS].map(Count::Empty);
        let one = [exits, interrupts, injections, host, Count::Nobody];
        let unknown = || TRACED_SPEED.to_owned();
        Ok(vec![ModelSample { one, alone: Err(unknown()), many: Err(unknown()) }])
    }

    /// Measures one piece of work.
    fn sample(&self, model: Model, scene: &mut ModelGuests, work: u16) -> Result<ModelSample> {
        let cpu = |scene: &mut ModelGuests| -> Result<Duration> {
            let pids: Vec<_> = scene.guests.iter().map(Guest::process_id).collect();
            pids.into_iter().map(|pid| Ok(Side::of_process(pid)?.cpu())).sum()
        };
        let (before, cpu_before) = (scene.look()?, cpu(scene)?);
        let told = scene.ask(work)?;
        let (events, cpu) = (scene.look()?.since(&before), cpu(scene)?.saturating_sub(cpu_before));
        let each = |count: u64| Count::Of(count as f64 / told.requests as f64);
        let counted = events.per_request(told.requests);
        let woken = |role: Role| {
            let wakeups = counted.get(&format!("{}_wakeups", role.name())).copied();
            wakeups.map_or(Count::Empty(block::NOT_COUNTED), Count::Of)
        };
        let exits = match model {
            // The guest's driver reaches the device without the host.
            Model::Optimum => Count::Nobody,
            _ => told.kicks.map_or(Count::Empty(NO_KICKS), each),
        };
        let host = match model {
            Model::Optimum => Count::Empty(OF_THE_KERNEL),
            Model::Direct | Model::Unpolled => Count::Empty(QEMU_CARRIES),
            Model::Qemu | Model::Emulation => Count::Empty(QEMU_SLEEPS),
            _ => woken(Role::Vmhost),
        };
        let iohost = if model.has_iohost() { woken(Role::Iohost) } else { Count::Nobody };
        let one = [exits, each(told.interrupts), Count::Empty(NO_INJECTION), host, iohost];
        let nodes = [Role::Vmhost, Role::Iohost].into_iter().filter_map(|role| events.cpu(role));
        let cpu_us = Some((cpu + nodes.sum()).as_secs_f64() * 1e6 / told.requests as f64);
        let alone = match (self.images.accelerator, told.us) {
            (Accelerator::Tcg, _) => Err(EMULATED_SPEED.to_owned()),
            (Accelerator::Kvm, None) => Err(NO_TIMES.to_owned()),
            (Accelerator::Kvm, Some([p50_us, p99_us])) => Ok(Alone { p50_us, p99_us, cpu_us }),
        };
        Ok(ModelSample { one, alone, many: Err(ALONE.to_owned()) })
    }

    /// Boots a model's guest, or both guests, after its nodes have started.
    fn start(&self, model: Model, stage: &Stage, tracing: &Tracing) -> Result<ModelGuests> {
        match (self.device, model) {
            (GuestDevice::Block, Model::Direct | Model::Unpolled) => self.client(model, stage),
            (GuestDevice::Block, _) if model.has_vmhost() => self.disk(model, stage),
            (GuestDevice::Net, Model::Direct | Model::Unpolled) => Err(anyhow!(net::NO_CLIENT)),
            (GuestDevice::Net, Model::Optimum) => Err(anyhow!(NO_CARD_VFIO)),
            (GuestDevice::Net, _) if model.has_vmhost() => self.pair(model, stage),
            (GuestDevice::Block, _) => self.of_qemu(self.disk_of_qemu(model, stage, tracing)?),
            (GuestDevice::Net, _) => self.of_qemu(self.card_of_qemu(model, tracing)?),
        }
    }

    /// A guest of one processor, so that its interrupts are in one column.
    fn builder(&self, newer: bool, kind: &str) -> Result<Builder> {
        let builder = Guest::builder(self.images.of(newer)?).accelerator(self.images.accelerator);
        let seconds = self.options.seconds.ceil().max(SECONDS_MIN);
        let builder = builder.name("models").set("SECONDS_EACH", seconds).set("KIND", kind);
        Ok(builder.script(scripts::MODELS))
    }

    fn boot(&self, builder: Builder) -> Result<Guest> {
        let _starting = self.cleanup.start();
        Ok(builder.start()?)
    }

    fn of_qemu(&self, builder: Builder) -> Result<ModelGuests> {
        Ok(ModelGuests { guests: vec![self.boot(builder)?], nodes: Vec::new() })
    }

    /// The nodes of a model that has a disk, and the sockets of their disks.
    fn nodes(&self, model: Model, stage: &Stage) -> Result<crate::block::ShownDisks> {
        let options =
            ModelsOptions { volume: Volume::File(disk_file(stage)?), ..self.options.clone() };
        let setting = Setting { encrypt: true, ..Setting::of(GuestDevice::Block, 1) };
        let asked = block::asked(&options, model, &setting).map_err(|why| anyhow!(why))?;
        crate::block::start_nodes(&asked, stage, &RoleCores::default())
    }

    fn disk(&self, model: Model, stage: &Stage) -> Result<ModelGuests> {
        let (nodes, sockets) = self.nodes(model, stage)?;
        let builder = self.builder(false, "disk")?;
        let disk = |socket| VhostDisk { socket, queues: 1, packed: false };
        let builder = sockets.into_iter().map(disk).fold(builder, Builder::disk);
        Ok(ModelGuests { guests: vec![self.boot(builder)?], nodes })
    }

    /// The client's program and its keys in the guest. The guest's card leads to the host's
    /// loopback device by QEMU's user network.
    fn client(&self, model: Model, stage: &Stage) -> Result<ModelGuests> {
        let (nodes, _) = self.nodes(model, stage)?;
        let (_, port) = stage.io_listen.rsplit_once(':').context("an address with a port")?;
        let keys = &stage.keys;
        let words = format!(
            "--peer {}:{port} --name vm1 --key /etc/vm1.key --peer-key {} --attachment bench \
             --attachment-key /etc/disk.key --idle sleep",
            USER[1],
            keys.public("io1")
        );
        let builder = self.builder(true, "attach")?.program_as(&self.options.program, "vrio")?;
        let builder = builder
            .script(scripts::MODELS_ATTACH)
            .memory_mib(CLIENT_MIB)
            .file("etc/vm1.key", &keys.file("vm1"))
            .file("etc/disk.key", &keys.tenant_file())
            .arguments(&["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="])
            .set("NODE", words);
        Ok(ModelGuests { guests: vec![self.boot(builder)?], nodes })
    }

    /// Two guests of a network; the first guest pings the other.
    fn pair(&self, model: Model, stage: &Stage) -> Result<ModelGuests> {
        let setting = Setting { encrypt: true, ..Setting::of(GuestDevice::Net, NET_GUESTS) };
        let asked = net::asked(self.options, model, &setting).map_err(|why| anyhow!(why))?;
        let (nodes, nics) = crate::net::start_nodes(&asked, stage, &RoleCores::default())?;
        let roles = [("card", PAIR[0], PAIR[1]), ("answer", PAIR[1], PAIR[0])];
        let guests = nics.into_iter().zip(roles).map(|((socket, mac), (kind, address, peer))| {
            let nic = VhostNic { socket, mac, packed: false, offloads: true, pairs: 1 };
            let builder = self.builder(false, kind)?.name(kind).nic(nic);
            self.boot(builder.set("ADDRESS", address).set("PEER", peer))
        });
        Ok(ModelGuests { guests: guests.collect::<Result<_>>()?, nodes })
    }

    /// A disk of QEMU itself: on a file of its own, or a device of the machine.
    fn disk_of_qemu(&self, model: Model, stage: &Stage, tracing: &Tracing) -> Result<Builder> {
        if model == Model::Optimum {
            let address = vfio::disk(Path::new("/sys")).map_err(|why| anyhow!(why))?;
            let device = format!("vfio-pci,host={address}");
            let builder = self.builder(false, "disk")?.arguments(&["-device", &device]);
            return Ok(builder.set("DISK", "/dev/nvme0n1").set("INTERRUPTS", "nvme"));
        }
        let file = disk_file(stage)?;
        let drive = format!("if=none,id=disk,format=raw,file={}", file.display());
        let builder = self.builder(false, "disk")?.arguments(&["-drive", &drive]);
        if model == Model::Qemu {
            return Ok(builder.arguments(&["-device", "virtio-blk-pci,drive=disk"]));
        }
        let devices = ["-device", "piix3-ide,id=piix", "-device", "ide-hd,drive=disk,bus=piix.0"];
        let builder = tracing.arguments(builder).arguments(&devices);
        let builder = builder.set("DRIVERS", "ata_piix sd_mod").set("INTERRUPTS", "ata_piix");
        Ok(builder.set("DISK", "/dev/sda"))
    }

    /// A card at QEMU's user network, which answers pings itself.
    fn card_of_qemu(&self, model: Model, tracing: &Tracing) -> Result<Builder> {
        // The kernel for clouds has no driver of the emulated card.
        let builder = self.builder(model == Model::Emulation, "card")?;
        let builder = builder.set("ADDRESS", USER[0]).set("PEER", USER[1]);
        let builder = builder.arguments(&["-netdev", "user,id=host,restrict=on"]);
        if model == Model::Qemu {
            return Ok(builder.arguments(&["-device", "virtio-net-pci,netdev=host,romfile="]));
        }
        let builder = tracing.arguments(builder);
        let builder = builder.arguments(&["-device", "e1000,netdev=host,romfile="]);
        Ok(builder.set("DRIVERS", "e1000").set("INTERRUPTS", "eth0"))
    }
}

/// The file behind a guest's disk.
fn disk_file(stage: &Stage) -> Result<PathBuf> {
    // It is in a folder of its own, since a node's configuration names folders of volumes.
    let folder = stage.path("disks");
    let disk = folder.join("disk");
    let made = fs::create_dir(&folder).and_then(|()| File::create(&disk));
    made.and_then(|file| file.set_len(DISK_BYTES))
        .with_context(|| format!("making {}", disk.display()))?;
    Ok(disk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_counted_events_of_a_guest_are_known() {
        let told = GuestReport::of("requests=8 interrupts=16 kicks=4 p50_us=7 p99_us=9").unwrap();
        assert_eq!((told.requests, told.interrupts, told.kicks), (8, 16, Some(4)));
        assert_eq!(told.us, Some([7.0, 9.0]));
        let told = GuestReport::of("requests=8 interrupts=16").unwrap();
        assert_eq!((told.kicks, told.us), (None, None));
        assert!(GuestReport::of("requests=8 interrupts=16 kicks=").is_err());
        assert!(GuestReport::of("requests=0 interrupts=0").is_err(), "nothing to divide by");
    }
}
