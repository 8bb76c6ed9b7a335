//! Peers of a disk's volume that change while the node runs: the list has a new copy's node, or has
//! lost a node.

use config::{Config, DiskConfig, Kind, PeerConfig};
use serde_json::Value;

use super::cache::UNTIL_RESTART;
use super::shown::DiskVolume;
use crate::kinds::Changed;
use crate::wiring::change::{bad, log};
use crate::wiring::inside::Inside;
use crate::wiring::objects::unknown;
use crate::wiring::volumes::wake;
use api::{API_VERSION, Done, Refused};

impl Inside {
    /// Replaces the peers that may serve the volume of a disk.
    pub(crate) fn set_disk_peers(&self, name: &str, body: &Value) -> Result<Done, Refused> {
        let _turn = self.turn()?;
        let running = self.objects().config.clone();
        let find = |config: &Config| config.disks.iter().find(|disk| disk.name == name).cloned();
        let before = find(&running).ok_or_else(|| unknown::<DiskConfig>(name, &running))?;
        let wanted = running.with_disk_peers(name, body).map_err(|problems| bad(&problems))?;
        let disk = find(&wanted).expect("it has changed at most");
        let mut done = Done { version: API_VERSION, ..Done::default() };
        if before == disk {
            return Ok(done);
        }
        done.notes = self.change_disk_peers(&disk)?;
        done.applied.push(disk.peers_text());
        if !disk.volume.is_placed {
            done.notes.push(UNTIL_RESTART.to_owned());
        }
        log(&done);
        Ok(done)
    }

    /// Makes the peers of a running disk what this configuration says. Requests go on.
    pub(crate) fn change_disk_peers(&self, disk: &DiskConfig) -> Changed {
        let shown = self.objects().disk(&disk.name).cloned().expect("the caller has looked");
        if let DiskVolume::Remote(volume) = &shown.volume {
            volume.set_peers(&disk.volume.peers);
        }
        // Channels that have nothing to do let go of peers that have left.
        wake(&self.cores);
        let mut objects = self.objects();
        for peer in objects.config.placed_peers_left(disk) {
            // Others may need it: a reload does not take it away.
            objects.came_by_command(Kind::of::<PeerConfig>(), &peer);
        }
        objects.replace(disk);
        Ok(Vec::new())
    }
}
