//! The objects of a running node, and where each came from.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use config::{
    Config, ConfigError, DiskConfig, DomainConfig, Kind, ListedObject, Revoked, VolumeConfig,
    VolumeRef, changes, needs_restart, revoked,
};
use sessions::ObjectError;

use super::disks::shown::{DiskVolume, ServedDisk, attachment_key};
use super::volumes::ServedVolume;
use api::status::Origin;
use api::{Refused, RefusedKind};

/// The objects of a running node. A thread that changes them has the turn; a thread that reads them
/// takes a copy.
#[derive(Clone, Debug)]
pub(crate) struct Objects {
    /// The configuration that describes what is running.
    pub(crate) config: Config,
    /// In the order of the configuration's volumes.
    pub(crate) volumes: Vec<Arc<ServedVolume>>,
    /// In the order of the configuration's disks.
    pub(crate) disks: Vec<Arc<ServedDisk>>,
    /// The objects that commands have added.
    commanded: BTreeSet<(Kind, String)>,
    /// The file as it was last read.
    file: Config,
    /// The node is drained: it takes no new users.
    pub(crate) draining: bool,
}

impl Objects {
    /// The objects of a node that has just started with this file.
    pub(crate) fn new(
        file: &Config,
        volumes: Vec<Arc<ServedVolume>>,
        disks: Vec<Arc<ServedDisk>>,
    ) -> Self {
        let (config, file) = (file.clone(), file.clone());
        Self { config, volumes, disks, commanded: BTreeSet::new(), file, draining: false }
    }

    /// Where an object came from.
    pub(crate) fn origin<T: ListedObject>(&self, name: &str) -> Origin {
        self.origin_of(Kind::of::<T>(), name)
    }

    fn origin_of(&self, kind: Kind, name: &str) -> Origin {
        let commanded = self.commanded.contains(&(kind, name.to_owned()));
        if commanded { Origin::Command } else { Origin::File }
    }

    pub(crate) fn came_by_command(&mut self, kind: Kind, name: &str) {
        self.commanded.insert((kind, name.to_owned()));
    }

    pub(crate) fn volume(&self, name: &str) -> Option<&Arc<ServedVolume>> {
        let at = self.config.volumes.iter().position(|volume| volume.name == name)?;
        Some(&self.volumes[at])
    }

    pub(crate) fn volume_config(&mut self, name: &str) -> Option<&mut VolumeConfig> {
        self.config.volumes.iter_mut().find(|volume| volume.name == name)
    }

    pub(crate) fn disk(&self, name: &str) -> Option<&Arc<ServedDisk>> {
        self.disks.iter().find(|disk| disk.config.name == name)
    }

    pub(crate) fn add_volume(&mut self, config: &VolumeConfig, served: Arc<ServedVolume>) {
        self.note(config);
        self.volumes.push(served);
    }

    pub(crate) fn remove_volume(&mut self, name: &str) {
        let at = self.config.volumes.iter().position(|volume| volume.name == name);
        let at = at.expect("the one that has the turn has looked");
        self.config.volumes.remove(at);
        self.volumes.remove(at);
        self.commanded.remove(&(Kind::of::<VolumeConfig>(), name.to_owned()));
    }

    pub(crate) fn add_disk(&mut self, config: &DiskConfig, shown: Arc<ServedDisk>) {
        self.note(config);
        self.disks.push(shown);
    }

    pub(crate) fn remove_disk(&mut self, name: &str) {
        self.disks.retain(|disk| disk.config.name != name);
        self.forget::<DiskConfig>(name);
    }

    /// Notes an object that was added.
    pub(crate) fn note<T: ListedObject>(&mut self, object: &T) {
        T::all_mut(&mut self.config.objects).push(object.clone());
    }

    /// Notes the configuration of an object that was changed while it is used.
    pub(crate) fn replace<T: ListedObject>(&mut self, object: &T) {
        let mut all = T::all_mut(&mut self.config.objects).iter_mut();
        let config = all.find(|it| it.name() == object.name());
        *config.expect("the caller has looked") = object.clone();
    }

    /// Forgets an object that was removed.
    pub(crate) fn forget<T: ListedObject>(&mut self, name: &str) {
        let kind = Kind::of::<T>();
        kind.row().forget(&mut self.config.objects, name);
        self.commanded.remove(&(kind, name.to_owned()));
    }

    /// Takes a peer out of the domains that name it, and returns these domains as they are then.
    pub(crate) fn take_peer_from_domains(&mut self, peer: &str) -> Vec<DomainConfig> {
        let mut changed = Vec::new();
        for domain in &mut self.config.domains {
            if domain.peers.iter().any(|name| name == peer) {
                domain.peers.retain(|name| name != peer);
                changed.push(domain.clone());
            }
        }
        changed
    }

    /// Names of the disks that use a volume of this node.
    pub(crate) fn disks_of_volume(&self, volume: &str) -> Vec<String> {
        self.disks_where(|disk| disk.volume.is_here() && disk.volume.volume == volume)
    }

    /// Names of the disks that use a peer's volumes.
    pub(crate) fn disks_of_peer(&self, peer: &str) -> Vec<String> {
        self.disks_where(|disk| disk.volume.may_be_on(peer))
    }

    fn disks_where(&self, wanted: impl Fn(&DiskConfig) -> bool) -> Vec<String> {
        let disks = self.config.disks.iter().filter(|disk| wanted(disk));
        disks.map(|disk| disk.name.clone()).collect()
    }

    /// The users that would be interrupted if the volume went: disks of this node, attachments of
    /// others.
    pub(crate) fn users_of_volume(&self, name: &str) -> Vec<String> {
        let disks = self.disks_of_volume(name);
        let others = self.others_of_volume(name);
        disks.iter().map(|disk| format!("disk {disk:?}")).chain(others).collect()
    }

    /// Attachments of other nodes that hold the volume.
    pub(crate) fn others_of_volume(&self, name: &str) -> Vec<String> {
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
    pub(crate) fn attachments_of(&self, disks: &[String]) -> Vec<String> {
        let disks = self.config.disks.iter().filter(|disk| disks.contains(&disk.name));
        disks.map(|disk| disk.attachment.clone()).collect()
    }

    /// The guest that uses a disk, if one does.
    pub(crate) fn user_of_disk(&self, name: &str) -> Vec<String> {
        if self.disk(name).is_some_and(|disk| disk.is_draining()) {
            return vec!["a guest that has gone, whose writes are still written back".to_owned()];
        }
        let look = self.disk(name).map(|disk| disk.look());
        let connected = look.filter(|look| look.server == Some(virtio::ServerState::Connected));
        let user = connected.map(|look| match look.front_end {
            Some(pid) => format!("a guest (process {pid})"),
            None => "a guest".to_owned(),
        });
        user.into_iter().collect()
    }

    /// The volume behind a disk.
    ///
    /// # Errors
    /// When the key that proves the disk's tenant cannot be read.
    pub(crate) fn source(&self, disk: &DiskConfig) -> Result<DiskVolume, ObjectError> {
        let VolumeRef { peers, volume, .. } = &disk.volume;
        Ok(match peers.as_slice() {
            peers @ [_, ..] => {
                let key = attachment_key(&self.config, disk)?;
                DiskVolume::Remote(block::RemoteVolume::of_peers(peers, volume, key))
            }
            [] => {
                let served = self.volume(volume);
                let export = &served.expect("the configuration was checked").export;
                DiskVolume::Local(block::LocalVolume::new(Arc::clone(export)))
            }
        })
    }

    /// The configuration that a reload of this file must lead to: the file, and objects that
    /// commands have added, unless the file has them now.
    ///
    /// # Errors
    /// When the two do not fit together.
    pub(crate) fn wanted(&self, file: &Config) -> Result<Config, ConfigError> {
        let mut wanted = file.clone();
        for kind in Kind::all() {
            let kept = |name: &str| self.origin_of(kind, name) == Origin::Command;
            kind.row().keep(&self.config.objects, &mut wanted.objects, &kept);
        }
        match wanted.problems() {
            problems if problems.is_empty() => Ok(wanted),
            problems => Err(ConfigError { path: file.path.clone(), problems }),
        }
    }

    /// Whether the file, as it was last read, has an object.
    pub(crate) fn file_has(&self, kind: Kind, name: &str) -> bool {
        has(&self.file, kind, name)
    }

    /// Takes the section of the cluster from the file: a successor follows it.
    pub(crate) fn take_cluster_of_file(&mut self) {
        self.config.cluster.clone_from(&self.file.cluster);
    }

    /// Notes the file as it was read. The node is compared with it from now on.
    pub(crate) fn file_read(&mut self, file: Config) {
        self.commanded.retain(|(kind, name)| !has(&file, *kind, name));
        self.file = file;
    }

    /// The differences between the node and its file as the file was last read.
    pub(crate) fn differs(&self) -> Vec<String> {
        let mut differs: Vec<_> = needs_restart(&self.config, &self.file)
            .into_iter()
            .map(|key| format!("{key} changed, which takes a restart"))
            .collect();
        let is_placed = |name: &str| {
            let mut volumes = self.config.volumes.iter();
            volumes.any(|volume| volume.name == name && volume.placement.is_some())
        };
        differs.extend(self.commanded.iter().map(|(kind, name)| match kind.key() {
            "volume" if is_placed(name) => format!("volume {name:?} was placed by the cluster"),
            key => format!("{key} {name:?} was added by a command"),
        }));
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
    pub(crate) fn path(&self) -> &Path {
        &self.config.path
    }
}

fn has(config: &Config, kind: Kind, name: &str) -> bool {
    config.names(kind).contains(&name)
}

/// The error for a name that no object has.
pub(crate) fn unknown<T: ListedObject>(name: &str, config: &Config) -> Refused {
    unknown_of(Kind::of::<T>(), name, &config.names(Kind::of::<T>()))
}

/// The same for a kind that only the table knows.
pub(crate) fn unknown_of(kind: Kind, name: &str, known: &[&str]) -> Refused {
    let kind = kind.key();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let way_out = format!("there is {known}; see `vrio {kind} list`");
    Refused::new(RefusedKind::Unknown, format!("there is no {kind} {name:?}"), way_out)
}
