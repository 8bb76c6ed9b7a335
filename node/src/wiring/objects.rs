//! What a node has at the moment, and where it came from.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::disks::{Shown, Source};
use super::volumes::Served;
use super::{ObjectError, keys};
use crate::api::{Refused, RefusedKind};
use crate::config::change::{Revoked, changes, needs_restart, revoked};
use crate::config::{Config, ConfigError, DiskConfig, DomainConfig, Kind, VolumeConfig};
use crate::status::Origin;

/// The objects of a running node. Whoever changes them has the turn; whoever looks takes a copy.
#[derive(Clone, Debug)]
pub(super) struct Objects {
    /// The configuration that describes what is running.
    pub(super) config: Config,
    /// In the order of the configuration's volumes.
    pub(super) volumes: Vec<Arc<Served>>,
    /// In the order of the configuration's disks.
    pub(super) disks: Vec<Arc<Shown>>,
    /// What came by a command.
    commanded: BTreeSet<(Kind, String)>,
    /// The file as it was last read.
    file: Config,
    /// Nobody new is taken.
    pub(super) draining: bool,
}

impl Objects {
    /// Those of a node that has just started with this file.
    pub(super) fn new(file: &Config, volumes: Vec<Arc<Served>>, disks: Vec<Arc<Shown>>) -> Self {
        let (config, file) = (file.clone(), file.clone());
        Self { config, volumes, disks, commanded: BTreeSet::new(), file, draining: false }
    }

    pub(super) fn origin(&self, kind: Kind, name: &str) -> Origin {
        let commanded = self.commanded.contains(&(kind, name.to_owned()));
        if commanded { Origin::Command } else { Origin::File }
    }

    pub(super) fn came_by_command(&mut self, kind: Kind, name: &str) {
        self.commanded.insert((kind, name.to_owned()));
    }

    pub(super) fn volume(&self, name: &str) -> Option<&Arc<Served>> {
        let at = self.config.volumes.iter().position(|volume| volume.name == name)?;
        Some(&self.volumes[at])
    }

    pub(super) fn volume_config(&mut self, name: &str) -> Option<&mut VolumeConfig> {
        self.config.volumes.iter_mut().find(|volume| volume.name == name)
    }

    pub(super) fn disk(&self, name: &str) -> Option<&Arc<Shown>> {
        self.disks.iter().find(|disk| disk.config.name == name)
    }

    pub(super) fn add_volume(&mut self, config: &VolumeConfig, served: Arc<Served>) {
        self.config.volumes.push(config.clone());
        self.volumes.push(served);
    }

    pub(super) fn remove_volume(&mut self, name: &str) {
        let at = self.config.volumes.iter().position(|volume| volume.name == name);
        let at = at.expect("the one that has the turn has looked");
        self.config.volumes.remove(at);
        self.volumes.remove(at);
        self.commanded.remove(&(Kind::Volume, name.to_owned()));
    }

    pub(super) fn add_disk(&mut self, config: &DiskConfig, shown: Arc<Shown>) {
        self.config.disks.push(config.clone());
        self.disks.push(shown);
    }

    pub(super) fn remove_disk(&mut self, name: &str) {
        self.config.disks.retain(|disk| disk.name != name);
        self.disks.retain(|disk| disk.config.name != name);
        self.commanded.remove(&(Kind::Disk, name.to_owned()));
    }

    pub(super) fn remove_peer(&mut self, name: &str) {
        self.config.peers.retain(|peer| peer.name != name);
        self.commanded.remove(&(Kind::Peer, name.to_owned()));
    }

    pub(super) fn remove_network(&mut self, name: &str) {
        self.config.networks.retain(|network| network.name != name);
        self.commanded.remove(&(Kind::Network, name.to_owned()));
    }

    /// Takes a peer out of the domains that name it; what those are then.
    pub(super) fn take_peer_from_domains(&mut self, peer: &str) -> Vec<DomainConfig> {
        let mut changed = Vec::new();
        for domain in &mut self.config.domains {
            if domain.peers.iter().any(|name| name == peer) {
                domain.peers.retain(|name| name != peer);
                changed.push(domain.clone());
            }
        }
        changed
    }

    pub(super) fn remove_domain(&mut self, name: &str) {
        self.config.domains.retain(|domain| domain.name != name);
        self.commanded.remove(&(Kind::Domain, name.to_owned()));
    }

    pub(super) fn remove_vf(&mut self, name: &str) {
        self.config.vfs.retain(|vf| vf.name != name);
        self.commanded.remove(&(Kind::Vf, name.to_owned()));
    }

    pub(super) fn remove_nic(&mut self, name: &str) {
        self.config.nics.retain(|nic| nic.name != name);
        self.commanded.remove(&(Kind::Nic, name.to_owned()));
    }

    /// Names of the disks that use a volume of this node.
    pub(super) fn disks_of_volume(&self, volume: &str) -> Vec<String> {
        self.disks_where(|disk| disk.volume.peer.is_none() && disk.volume.volume == volume)
    }

    /// Names of the disks that use a peer's volumes.
    pub(super) fn disks_of_peer(&self, peer: &str) -> Vec<String> {
        self.disks_where(|disk| disk.volume.peer.as_deref() == Some(peer))
    }

    fn disks_where(&self, wanted: impl Fn(&DiskConfig) -> bool) -> Vec<String> {
        let disks = self.config.disks.iter().filter(|disk| wanted(disk));
        disks.map(|disk| disk.name.clone()).collect()
    }

    /// Who would be interrupted if the volume went: disks of this node, attachments of others.
    pub(super) fn users_of_volume(&self, name: &str) -> Vec<String> {
        let disks = self.disks_of_volume(name);
        let others = self.others_of_volume(name);
        disks.iter().map(|disk| format!("disk {disk:?}")).chain(others).collect()
    }

    /// Attachments of other nodes that hold the volume.
    pub(super) fn others_of_volume(&self, name: &str) -> Vec<String> {
        let own = self.attachments_of(&self.disks_of_volume(name));
        let served = self.volume(name).expect("the caller has looked");
        let holders = served.export.holders().into_iter();
        let others = holders.filter(|holder| !own.contains(&holder.attachment)).map(|holder| {
            let away = if holder.live { "" } else { " (its node is away)" };
            format!("attachment {:?}{away}", holder.attachment)
        });
        others.collect()
    }

    /// The names of these disks' attachments.
    pub(super) fn attachments_of(&self, disks: &[String]) -> Vec<String> {
        let disks = self.config.disks.iter().filter(|disk| disks.contains(&disk.name));
        disks.map(|disk| disk.attachment.clone()).collect()
    }

    /// The guest that uses a disk, if one does.
    pub(super) fn user_of_disk(&self, name: &str) -> Vec<String> {
        let look = self.disk(name).map(|disk| disk.look());
        let connected = look.filter(|look| look.server == Some(virtio::ServerState::Connected));
        let user = connected.map(|look| match look.front_end {
            Some(pid) => format!("a guest (process {pid})"),
            None => "a guest".to_owned(),
        });
        user.into_iter().collect()
    }

    /// What stands behind a disk.
    ///
    /// # Errors
    /// When the key that it proves its tenant with cannot be read.
    pub(super) fn source(&self, disk: &DiskConfig) -> Result<Source, ObjectError> {
        Ok(match &disk.volume.peer {
            Some(peer) => {
                let key = keys::attachment(&self.config, disk)?;
                let (peer, volume) = (peer, &disk.volume.volume);
                Source::Remote(block::RemoteVolume::with_key(peer, volume, key))
            }
            None => {
                let served = self.volume(&disk.volume.volume);
                let export = &served.expect("the configuration was checked").export;
                Source::Local(block::LocalVolume::new(Arc::clone(export)))
            }
        })
    }

    /// What a reload of this file is to lead to: the file, and what commands have added, unless the
    /// file has it now.
    ///
    /// # Errors
    /// When the two do not fit together.
    pub(super) fn wanted(&self, file: &Config) -> Result<Config, ConfigError> {
        let mut wanted = file.clone();
        let kept = |kind, name: &str| self.origin(kind, name) == Origin::Command;
        let volumes = self.config.volumes.iter().filter(|it| kept(Kind::Volume, &it.name));
        for volume in volumes.filter(|it| file.volumes.iter().all(|had| had.name != it.name)) {
            wanted.volumes.push(volume.clone());
        }
        let peers = self.config.peers.iter().filter(|it| kept(Kind::Peer, &it.name));
        wanted.peers.extend(peers.filter(|it| file.peer(&it.name).is_none()).cloned());
        let disks = self.config.disks.iter().filter(|it| kept(Kind::Disk, &it.name));
        for disk in disks.filter(|it| file.disks.iter().all(|had| had.name != it.name)) {
            wanted.disks.push(disk.clone());
        }
        let networks = self.config.networks.iter().filter(|it| kept(Kind::Network, &it.name));
        for network in networks.filter(|it| !has(file, Kind::Network, &it.name)) {
            wanted.networks.push(network.clone());
        }
        let nics = self.config.nics.iter().filter(|it| kept(Kind::Nic, &it.name));
        for nic in nics.filter(|it| !has(file, Kind::Nic, &it.name)) {
            wanted.nics.push(nic.clone());
        }
        let domains = self.config.domains.iter().filter(|it| kept(Kind::Domain, &it.name));
        for domain in domains.filter(|it| !has(file, Kind::Domain, &it.name)) {
            wanted.domains.push(domain.clone());
        }
        let vfs = self.config.vfs.iter().filter(|it| kept(Kind::Vf, &it.name));
        for vf in vfs.filter(|it| !has(file, Kind::Vf, &it.name)) {
            wanted.vfs.push(vf.clone());
        }
        match wanted.problems() {
            problems if problems.is_empty() => Ok(wanted),
            problems => Err(ConfigError { path: file.path.clone(), problems }),
        }
    }

    /// Whether the file, as it was last read, has an object.
    pub(super) fn file_has(&self, kind: Kind, name: &str) -> bool {
        has(&self.file, kind, name)
    }

    /// The file was read: it is what the node is compared with from now on.
    pub(super) fn file_read(&mut self, file: Config) {
        self.commanded.retain(|(kind, name)| !has(&file, *kind, name));
        self.file = file;
    }

    /// In what the node differs from its file as it was last read.
    pub(super) fn differs(&self) -> Vec<String> {
        let mut differs: Vec<_> = needs_restart(&self.config, &self.file)
            .into_iter()
            .map(|key| format!("{key} changed, which takes a restart"))
            .collect();
        let commanded = self.commanded.iter();
        differs.extend(
            commanded.map(|(kind, name)| format!("{} {name:?} came by a command", kind.key())),
        );
        match self.wanted(&self.file) {
            Ok(wanted) => {
                let Revoked { config, changes: revokes } = revoked(&self.config, &wanted);
                let changes = changes(&config, &wanted);
                differs.extend(revokes.iter().map(|change| format!("a reload would {change}")));
                differs.extend(changes.iter().map(|change| format!("a reload would {change}")));
            }
            Err(error) => differs.push(error.to_string()),
        }
        differs
    }

    /// The file that the node was started with.
    pub(super) fn path(&self) -> &Path {
        &self.config.path
    }
}

fn has(config: &Config, kind: Kind, name: &str) -> bool {
    config.names(kind).contains(&name)
}

/// Nothing of that name.
pub(super) fn unknown(kind: Kind, name: &str, known: &[&str]) -> Refused {
    let kind = kind.key();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let way_out = format!("there is {known}; see `vrio {kind} list`");
    Refused::new(RefusedKind::Unknown, format!("no {kind} is called {name:?}"), way_out)
}
