//! Landlock: the files that a node can reach, even if its user may reach more.

use std::collections::BTreeSet;
use std::path::Path;

use config::{Config, MirrorConfig, NicConfig};
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, make_bitflags,
};
use net::uplink::{NetworkUplink, TapUplink, UplinkConfig};

use super::error::{PrivilegeError, system};

/// The newest version whose rules are requested (Linux 6.12). Older kernels apply those they know.
const ABI_WANTED: ABI = ABI::V6;

/// Restricts this thread, and all that it will start, to what the configuration names. A kernel
/// without Landlock is no reason not to start: the log says so.
pub(super) fn restrict(config: &Config) -> Result<(), PrivilegeError> {
    let status = rules(config).and_then(RulesetCreated::restrict_self);
    let refuse = system::<std::io::Error>("restrict files by Landlock");
    let status = status.map_err(|error| refuse(std::io::Error::other(error)))?.ruleset;
    match status {
        RulesetStatus::FullyEnforced => {
            tracing::info!("files are restricted to the configured directories");
        }
        RulesetStatus::PartiallyEnforced => tracing::warn!(
            "files are restricted to the configured directories as far as this kernel can; Linux \
             6.12 can restrict all of them"
        ),
        RulesetStatus::NotEnforced => tracing::warn!(
            "files are not restricted: this kernel has no Landlock, or it is not switched on \
             (lsm= on its command line)"
        ),
    }
    Ok(())
}

/// Restricts this thread, and all that it will start, to no files at all, as far as the kernel can.
pub(super) fn restrict_to_none() -> Result<(), PrivilegeError> {
    let restricted = nothing().and_then(RulesetCreated::restrict_self);
    let refuse = system::<std::io::Error>("restrict files by Landlock");
    restricted.map(drop).map_err(|error| refuse(std::io::Error::other(error)))
}

/// Restricts this thread, and all that it will start, to files of these directories, as far as the
/// kernel can. It may connect by TCP, and it may not listen.
pub(super) fn restrict_to(directories: &[&Path]) -> Result<(), PrivilegeError> {
    // A file is written to a new file, which is renamed.
    let files = make_bitflags!(AccessFs::{
        ReadFile | ReadDir | WriteFile | Truncate | MakeReg | RemoveFile
    });
    let rules = || -> Result<RulesetCreated, RulesetError> {
        let rules = Ruleset::default()
            .handle_access(AccessFs::from_all(ABI_WANTED))?
            .handle_access(AccessNet::BindTcp)?
            .scope(Scope::from_all(ABI_WANTED))?
            .create()?;
        directories.iter().try_fold(rules, |rules, path| allow(rules, path, files))
    };
    let refuse = system::<std::io::Error>("restrict files by Landlock");
    let restricted = rules().and_then(RulesetCreated::restrict_self);
    restricted.map(drop).map_err(|error| refuse(std::io::Error::other(error)))
}

/// No file, no connection by TCP, no signal to others, no abstract socket of others.
fn nothing() -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .handle_access(AccessFs::from_all(ABI_WANTED))?
        .handle_access(AccessNet::from_all(ABI_WANTED))?
        .scope(Scope::from_all(ABI_WANTED))?
        .create()
}

fn rules(config: &Config) -> Result<RulesetCreated, RulesetError> {
    let read = make_bitflags!(AccessFs::{ReadFile | ReadDir});
    let files = read | make_bitflags!(AccessFs::{WriteFile | Truncate | MakeReg});
    // Block devices tell their size and their block by ioctl.
    let volumes = files | AccessFs::IoctlDev;
    // A record is written to a new file, which is renamed; each volume has a directory.
    let state = files | make_bitflags!(AccessFs::{MakeDir | RemoveFile});
    let sockets = files | make_bitflags!(AccessFs::{MakeSock | RemoveFile});
    // The port for metrics is open already.
    let mut rules = nothing()?;
    for path in &config.directories.volumes {
        rules = allow(rules, path, volumes)?;
    }
    for path in own_directories(config) {
        rules = allow(rules, path, sockets)?;
    }
    // This directory is there also without a volume or a disk: a running node may get one.
    rules = allow(rules, &config.memory_directory(), state)?;
    for path in read_directories(config) {
        rules = allow(rules, path, read)?;
    }
    // An interface that vanished is opened again through its device, where the node's user may.
    for path in devices(config) {
        let access = make_bitflags!(AccessFs::{ReadFile | WriteFile | IoctlDev});
        rules = allow(rules, Path::new(path), access)?;
    }
    // Whether a block device zeroes, and in pieces of which size.
    let rules = allow(rules, Path::new("/sys/devices"), read)?;
    // The holder of a lock, and the identity of this boot.
    allow(rules, Path::new("/proc"), read)
}

/// The directories in which the node makes files of its own, but for
/// [`Config::memory_directory`].
pub(super) fn own_directories(config: &Config) -> impl Iterator<Item = &Path> {
    let control = config.control.parent().filter(|path| !path.as_os_str().is_empty());
    let captures = config.directories.captures.as_deref();
    let fabric = config.fabric.parent();
    let sockets = config.directories.sockets.as_deref();
    [sockets, control, captures, fabric].into_iter().flatten()
}

/// The devices by which the uplinks and the mirrors of the configuration open interfaces.
fn devices(config: &Config) -> BTreeSet<&'static str> {
    let uplinks = config.networks.iter().filter_map(|network| network.uplink.as_ref());
    let is_tap = |nic: &NicConfig| matches!(nic.mirror, Some(MirrorConfig::Tap(_)));
    let mirrors = config.nics.iter().filter(|nic| is_tap(nic)).map(|_| TapUplink::NEEDS);
    uplinks
        .map(UplinkConfig::needs)
        .chain(mirrors)
        .flat_map(|needs| needs.devices)
        .copied()
        .collect()
}

/// The places of files that a reload reads: directories, since an editor puts a new file in the old
/// one's place.
fn read_directories(config: &Config) -> impl Iterator<Item = &Path> {
    let disks = config.disks.iter().filter_map(|disk| disk.attachment_key.as_deref());
    let nics = config.nics.iter().filter_map(|nic| nic.attachment_key.as_deref());
    let domains = config.domains.iter().map(|domain| domain.key.as_path());
    let volumes =
        config.volumes.iter().flat_map(|volume| &volume.chain).flat_map(|stage| stage.files());
    let pooled = config.volumes.iter().filter_map(|volume| volume.backend.key_file());
    let tenants = disks.chain(nics).chain(domains).chain(volumes).chain(pooled);
    let files = [config.path.as_path()].into_iter().chain(config.key.as_deref()).chain(tenants);
    files.filter_map(|file| match file.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Some(Path::new(".")),
        parent => parent,
    })
}

/// A path that is not there has no rule, and stays out of reach.
fn allow(
    rules: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    match PathFd::new(path) {
        Ok(path) => rules.add_rule(PathBeneath::new(path, access)),
        Err(_) => Ok(rules),
    }
}
