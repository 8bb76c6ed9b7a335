//! `vrio bench compare block`: virtual disks.

mod client;
mod goals;
mod options;
mod own;
mod peer;
mod peers;
mod requests;
mod spdk;

pub(crate) use peer::{DiskPeer, SOCKET};
pub(crate) use peers::daemon;
pub(crate) use requests::Requests;

use std::fs;
use std::path::{Path as FilePath, PathBuf};

use anyhow::{Context, Result};
use sidecore::Idle;

use super::comparison::Comparison;
use super::contest::{Case, Contest, LOCAL, TurnSample};
use super::running::{RunningServers, ServiceCable};
use super::table::OwnOutcome;
use super::{Contests, huge};
use bench::block::{self, LinkKind, Path, Volume};
use bench::measure::{Reuse, fill_disk};
use testbed::cleanup::{Cleanup, tidily};
use testbed::progress::Progress;
use testbed::stage::{Offloads, VMHOST, VirtualCable, make_hosts};

use goals::{DIRECT, DIRECT_XDP};
use own::{Measurer, OwnCase};
use peer::DiskClient;
use peers::DiskPeers;

pub use options::DisksOptions;

/// The longest packets of cables over AF_XDP where sessions over UDP run on the loopback device:
/// jumbo frames, as most cards have them.
const XDP_MTU_BYTES: u32 = 9000;

/// The server of a disk.
#[derive(Clone, Debug)]
enum DiskServer {
    /// vrio, by one of its ways.
    Vrio(Path, LinkKind),
    /// A server that we start.
    Peer(DiskPeer),
    /// A server that runs already.
    Socket(String, PathBuf),
}

/// A server of disks, and the volume behind its disk.
#[derive(Clone, Debug)]
struct DiskContestant {
    who: DiskServer,
    volume: Volume,
    /// The cable to the disk's host, if the disk is of another host, and is not on the loopback
    /// device.
    cable: Option<ServiceCable>,
}

impl super::Contestant for DiskContestant {
    type Case = Requests;

    fn name(&self) -> String {
        match &self.who {
            DiskServer::Vrio(Path::Direct, LinkKind::Xdp) => DIRECT_XDP.to_owned(),
            DiskServer::Vrio(Path::Direct, _) => DIRECT.to_owned(),
            DiskServer::Vrio(Path::Local, _) => LOCAL.to_owned(),
            DiskServer::Vrio(path, _) => format!("vrio {path}"),
            DiskServer::Peer(peer) => peer.name.clone(),
            DiskServer::Socket(name, _) => name.clone(),
        }
    }

    fn is_ours(&self) -> bool {
        matches!(self.who, DiskServer::Vrio(..))
    }

    /// Whether the server can have so many requests outstanding.
    fn takes_part(&self, case: &Requests) -> bool {
        match &self.who {
            DiskServer::Peer(peer) => peer.depth_max.is_none_or(|most| case.depth <= most),
            DiskServer::Vrio(..) | DiskServer::Socket(..) => true,
        }
    }

    fn is_slow(&self) -> bool {
        matches!(&self.who, DiskServer::Peer(peer) if peer.is_slow())
    }

    /// Makes and fills the file that all contestants use, if there is one and there is room for it.
    /// Else each contestant makes its own file.
    fn prepare(contest: &Contest<Self>, cleanup: &Cleanup, progress: &Progress) -> Option<PathBuf> {
        let file = contest.contestants.first()?.volume.file()?.to_owned();
        progress.doing(format!("{}: filling {}", contest.name, file.display()));
        cleanup.path(file.clone());
        match fill_disk(&file) {
            Ok(()) => Some(file),
            Err(error) => {
                progress.done(format!("{} was not filled: {error}", file.display()));
                let _ = fs::remove_file(file);
                None
            }
        }
    }
}

/// Runs all contests. The progress goes to standard error.
///
/// # Errors
/// When a contest cannot be measured.
pub fn run(options: &DisksOptions) -> Result<Comparison> {
    let progress = Progress::new();
    tidily(&progress, |cleanup| compare(options, cleanup, &progress))
}

fn compare(options: &DisksOptions, cleanup: &Cleanup, progress: &Progress) -> Result<Comparison> {
    use super::contest::Contestant as _;
    let plan = &options.plan;
    if let Some(&mtu) = options.cables.first() {
        let cable = VirtualCable { mtu: Some(mtu), offloads: options.offloads };
        let made = make_hosts(cable, cleanup);
        cleanup.remove_stage();
        made.context(
            "hosts on a cable are network namespaces, which take root and iproute2: --loopback \
             does without",
        )?;
    }
    let mut peers = DiskPeers::find(options.spdk.as_deref(), &options.storage_daemons);
    let mut contests = contests(options, &peers);
    contests.retain(|contest| plan.wants_contest(&contest.name));
    // SPDK's servers are the slow ones, and they need huge pages.
    let has_spdk = contests.iter().any(|contest| contest.contestants.iter().any(|it| it.is_slow()));
    if has_spdk
        && let Err(why) =
            huge::make_pages(peers.huge_mib(), cleanup).and_then(|()| huge::mount_pages(cleanup))
    {
        peers.without_huge_pages(&format!("{why:#}"));
        contests.iter_mut().for_each(|contest| contest.contestants.retain(|it| !it.is_slow()));
    }
    let (subject, cases, missing) = (&goals::DISKS, Requests::all(), peers.missing);
    let mut field = Contests { subject, plan, contests, cases, missing, cleanup, progress };
    field.narrow();
    let mut own = OwnCase::ALL.to_vec();
    own.retain(|own| plan.wants_contest(own.name()) && plan.wants_case(&own.case().name()));
    field.check(!own.is_empty())?;
    field.announce(own.iter().map(|own| own.turns()).sum());
    let turns = Turns { options, cleanup };
    let outcomes = field.run(&|case, contestant| turns.turn(case, contestant));
    let own = measure_own(&own, &Measurer { options, cleanup, progress }, &mut field.missing);
    field.result(options, outcomes, own)
}

/// Figures of vrio alone. A figure that cannot be measured is named in `missing`.
fn measure_own(own: &[OwnCase], by: &Measurer<'_>, missing: &mut Vec<String>) -> Vec<OwnOutcome> {
    let measured = own.iter().map(|own| own.measure(by));
    super::own_outcomes(measured, by.cleanup, by.progress, missing)
}

/// A contest over a volume, whose contestants are joined by a cable if there is one.
fn on_cable(
    name: &str,
    volume: Volume,
    ours: &[(Path, LinkKind)],
    theirs: Vec<DiskPeer>,
    cable: Option<ServiceCable>,
) -> Contest<DiskContestant> {
    let ours = ours.iter().cloned().map(|(path, link)| DiskServer::Vrio(path, link));
    let all = ours.chain(theirs.into_iter().map(DiskServer::Peer));
    let all = all.map(|who| DiskContestant { who, volume: volume.clone(), cable });
    let mut contest = Contest::new(name, all.collect());
    contest.setup.extend(cable.map(|cable| ("mtu", cable.mtu.to_string())));
    let reduced = cable.filter(|cable| !cable.offloads.is_usual());
    contest.setup.extend(reduced.map(|it| ("offloads", it.offloads.name().to_owned())));
    contest
}

/// The contests that the installed peers allow.
fn contests(options: &DisksOptions, peers: &DiskPeers) -> Vec<Contest<DiskContestant>> {
    let file_in =
        |folder: &FilePath| folder.join(format!("vrio-compare-{}.img", std::process::id()));
    let (folder, disk_folder) = (options.folder.display(), options.disk_folder.display());
    let contest = |name: &str, volume: Volume, ours: &[(Path, LinkKind)], theirs: Vec<DiskPeer>| {
        on_cable(name, volume, ours, theirs, None)
    };
    let local = [(Path::Local, LinkKind::Udp)];
    let (in_memory, on_disk) = (file_in(&options.folder), file_in(&options.disk_folder));
    let mut null = contest("local, null volume", Volume::Null, &local, peers.null());
    let sockets = options.sockets.iter().cloned();
    let sockets = sockets.map(|(name, socket)| DiskServer::Socket(name, socket));
    null.contestants.extend(sockets.map(|who| DiskContestant {
        who,
        volume: Volume::Null,
        cable: None,
    }));
    let mut all = vec![
        null,
        contest("local, memory", Volume::Memory, &local, peers.memory()),
        contest(
            &format!("local, memory file ({folder})"),
            Volume::File(in_memory.clone()),
            &local,
            peers.file(&in_memory, false),
        ),
        contest(
            &format!("local, disk file, O_DIRECT ({disk_folder})"),
            Volume::DirectFile(on_disk.clone()),
            &local,
            peers.file(&on_disk, true),
        ),
        contest(
            &format!("local, disk file, page cache ({disk_folder})"),
            Volume::File(on_disk.clone()),
            &local,
            peers.file(&on_disk, false),
        ),
    ];
    let remote = [(Path::Remote, LinkKind::Udp)];
    let direct = [(Path::Direct, LinkKind::Udp), (Path::Direct, LinkKind::Xdp)];
    let offloads = options.offloads;
    // AF_XDP goes past the stack, which is what cuts the groups of others.
    let direct = if offloads.is_usual() { &direct[..] } else { &direct[..1] };
    let cables: Vec<_> = match &options.cables[..] {
        [] => vec![None],
        cables => cables.iter().map(|&mtu| Some(ServiceCable { mtu, offloads })).collect(),
    };
    for &cable in &cables {
        let name =
            format!("remote, memory, {}", cable.map_or("loopback".to_owned(), |it| it.name()));
        all.push(on_cable(&name, Volume::Memory, &remote, peers.remote(cable), cable));
    }
    for &cable in &cables {
        let name =
            format!("direct, memory, {}", cable.map_or("loopback".to_owned(), |it| it.name()));
        all.push(on_cable(&name, Volume::Memory, direct, peers.direct(cable), cable));
    }
    all
}

/// The options of all turns.
struct Turns<'a> {
    options: &'a DisksOptions,
    cleanup: &'a Cleanup,
}

impl Turns<'_> {
    fn turn(
        &self,
        case: &Requests,
        DiskContestant { who, volume, cable }: &DiskContestant,
    ) -> Result<TurnSample> {
        let DisksOptions { plan, idle, encrypt, reuse, .. } = self.options;
        // A file that is there before a turn was made and filled for all contestants.
        let filled = volume.file().is_some_and(FilePath::exists);
        let mut asked = block::BlockOptions {
            volume: volume.clone(),
            op: case.op,
            size_bytes: case.size_bytes,
            depth: case.depth,
            encrypt: *encrypt,
            idle: *idle,
            reuse: *reuse,
            seconds: plan.seconds,
            filled,
            ..block::BlockOptions::new(plan.program.clone())
        };
        match who {
            DiskServer::Vrio(path, link) => {
                (asked.path, asked.link) = (path.clone(), *link);
                if *path == Path::Direct {
                    // A direct client has no ring.
                    asked.reuse = Reuse::InOrder;
                }
                // The loopback device has no AF_XDP, and its packets are 64 KiB long.
                let is_xdp = *link == LinkKind::Xdp;
                asked.loopback = cable.is_none() && !is_xdp;
                asked.mtu = cable.map(|cable| cable.mtu).or(is_xdp.then_some(XDP_MTU_BYTES));
                asked.offloads = cable.map_or(Offloads::All, |cable| cable.offloads);
                if asked.idle == Idle::Spin && !block::has_seats(&asked) {
                    // Spinning threads that share cores only keep each other from them.
                    asked.idle = Idle::Adaptive;
                }
                self.drive(&asked)
            }
            DiskServer::Socket(_, socket) => {
                asked.path = Path::Socket(socket.clone());
                self.drive(&asked)
            }
            DiskServer::Peer(peer) => {
                let running = RunningServers::start(&peer.service, self.cleanup)?;
                let by_tool = client::ToolTurn {
                    case,
                    seconds: plan.seconds,
                    pids: running.pids(),
                    folder: &running.folder,
                    filled,
                    entry: peer.service.entry(VMHOST),
                    cleanup: self.cleanup,
                };
                let measured = match &peer.client {
                    DiskClient::Driver => {
                        asked.path = Path::Socket(running.folder.join(SOCKET));
                        asked.pids = running.pids();
                        self.drive(&asked)
                    }
                    DiskClient::Fio(program, words) => by_tool.fio(program, words),
                    DiskClient::NvmePerf { program, target } => by_tool.nvme_perf(program, target),
                    DiskClient::BdevPerf(program) => by_tool.bdevperf(program),
                };
                measured.map_err(|error| running.explain(error))
            }
        }
    }

    /// A turn of our driver.
    fn drive(&self, asked: &block::BlockOptions) -> Result<TurnSample> {
        let report = block::measure(asked, self.cleanup, &Progress::silent())?;
        // Where cores are shared, a share of a core says nothing.
        let core_share = report.core_share.get("driver-0").copied();
        let core_share = core_share.filter(|_| block::has_seats(asked));
        Ok(TurnSample {
            rate: report.iops,
            p50_us: Some(report.latency_us.p50),
            p99_us: Some(report.latency_us.p99),
            cpu_us: report.cpu_us_per_request(),
            core_share,
            waited_share: None,
            trips_ns: report.cache_line_rtts_ns,
        })
    }
}
