//! Networks and nics that come, go and change while others run.

use config::{InPlace, NetworkConfig, NicConfig, changes};
use net::switch::SwitchCounters;
use serde_json::Value;
use sidecore::CounterText;

use super::report::{NETWORK_METRICS, NIC_METRICS};
use super::uplinks::open_uplink;
use super::{LiveNetwork, live, show};
use crate::kinds::{Changed, RunningObject, with_prefix};
use crate::wiring::change::{bad, log, refuse_used, takes_restart};
use crate::wiring::inside::Inside;
use crate::wiring::objects::{Objects, unknown};
use crate::wiring::volumes::wake;
use api::status::{NetworkStatus, NicStatus, Status};
use api::{API_VERSION, Done, Refused, RefusedKind};

/// The note for a nic that a command has changed.
pub(crate) const NIC_UNTIL_RESTART: &str =
    "this is lost at a restart or a reload of the node; write it into the file to keep it";

impl RunningObject for NetworkConfig {
    type Status = NetworkStatus;

    fn metrics() -> Vec<CounterText> {
        let of_switch = with_prefix("addresses_", SwitchCounters::DECLARED);
        NETWORK_METRICS.iter().copied().chain(of_switch).collect()
    }

    fn add(&self, node: &Inside) -> Changed {
        node.add_network(self)
    }

    fn change(&self, _step: &InPlace, node: &Inside) -> Changed {
        node.change_network(self)
    }

    fn readmit(&self, node: &Inside) {
        node.open_network(self);
    }

    fn remove(name: &str, node: &Inside, force: bool) -> Changed {
        node.remove_network(name, force)
    }

    fn status(node: &Inside, objects: &Objects) -> Vec<NetworkStatus> {
        node.nics().networks(objects)
    }

    fn report(found: Vec<NetworkStatus>, status: &mut Status) {
        status.networks = found;
    }
}

impl RunningObject for NicConfig {
    type Status = NicStatus;

    fn metrics() -> Vec<CounterText> {
        NIC_METRICS.to_vec()
    }

    fn add(&self, node: &Inside) -> Changed {
        node.add_nic(self)
    }

    fn change(&self, _step: &InPlace, node: &Inside) -> Changed {
        node.change_nic(self)
    }

    fn remove(name: &str, node: &Inside, force: bool) -> Changed {
        node.remove_nic(name, force)
    }

    fn users(name: &str, node: &Inside, _goes: &dyn Fn(&str) -> bool) -> Vec<String> {
        node.user_of_nic(name)
    }

    fn status(node: &Inside, objects: &Objects) -> Vec<NicStatus> {
        node.nics().nics(objects)
    }

    fn report(found: Vec<NicStatus>, status: &mut Status) {
        status.nics = found;
    }
}

impl Inside {
    pub(crate) fn add_network(&self, network: &NetworkConfig) -> Result<Vec<String>, Refused> {
        self.refuse_while_drained()?;
        let refused = |text: String| {
            let error = format!("network {:?}: {text}", network.name);
            Refused::new(RefusedKind::Failed, error, "nothing was changed; try again afterwards")
        };
        let opener = self.nics().opener.clone();
        let uplink = open_uplink(network, &opener).map_err(refused)?;
        let sidecore = self.nics().sidecore_for_next(self.cores.len());
        let live = live(network, sidecore, &self.cores, uplink).map_err(refused)?;
        self.nics().add_network(live);
        self.objects().note(network);
        self.accept_as_allowed();
        Ok(Vec::new())
    }

    /// Sets which nodes may join a network, and on which terms.
    pub(crate) fn change_network(&self, network: &NetworkConfig) -> Result<Vec<String>, Refused> {
        self.check_listens(!network.allow.is_empty(), "other nodes may join it")?;
        self.open_network(network);
        {
            let mut objects = self.objects();
            let mut networks = objects.config.networks.iter_mut();
            let config = networks.find(|it| it.name == network.name);
            let config = config.expect("the caller has looked");
            config.allow.clone_from(&network.allow);
            config.remote.clone_from(&network.remote);
        }
        self.accept_as_allowed();
        Ok(Vec::new())
    }

    /// Opens a network to the nodes that this configuration names, on its terms, and to no others.
    pub(crate) fn open_network(&self, network: &NetworkConfig) {
        self.nics().set_open(network);
        // The nodes' servers read the doors in each round.
        wake(&self.cores);
    }

    pub(crate) fn remove_network(&self, name: &str, force: bool) -> Result<Vec<String>, Refused> {
        let nics: Vec<_> = {
            let objects = self.objects();
            let here = objects.config.nics.iter().filter(|nic| nic.network == name);
            here.map(|nic| nic.name.clone()).collect()
        };
        let users: Vec<_> = nics.iter().map(|nic| format!("nic {nic:?}")).collect();
        refuse_used(&format!("network {name:?}"), &users, force, "remove those first")?;
        let mut notes = Vec::new();
        for nic in nics {
            notes.extend(self.remove_nic(&nic, true)?);
            notes.push(format!("nic {nic:?} was removed with its network"));
        }
        let gone: Option<LiveNetwork> = {
            let mut nics = self.nics();
            let at = nics.networks.iter().position(|live| live.config.name == name);
            nics.doors.close(name);
            at.map(|at| nics.networks.remove(at))
        };
        // Dropping waits for the network's sidecore, and for the thread that watches its uplink.
        drop(gone);
        self.objects().forget::<NetworkConfig>(name);
        self.accept_as_allowed();
        Ok(notes)
    }

    pub(crate) fn add_nic(&self, nic: &NicConfig) -> Result<Vec<String>, Refused> {
        self.refuse_while_drained()?;
        let home = self.objects().config.directories.sockets.clone();
        if home.is_none_or(|home| !nic.socket.starts_with(home)) {
            return Err(takes_restart("its socket is in another directory", "[directories]"));
        }
        let place = self.nics().place(nic, &self.cores);
        let shown = place.and_then(|place| show(nic, place)).map_err(|text| {
            let way_out = "nothing was changed; try again when that is done";
            Refused::new(RefusedKind::Failed, format!("nic {:?}: {text}", nic.name), way_out)
        })?;
        self.nics().nics.push(shown);
        self.objects().note(nic);
        Ok(Vec::new())
    }

    pub(crate) fn remove_nic(&self, name: &str, force: bool) -> Result<Vec<String>, Refused> {
        let users = self.nics().user_of(name);
        refuse_used(&format!("nic {name:?}"), &users, force, "stop the guest or unplug the nic")?;
        let gone = {
            let mut nics = self.nics();
            let at = nics.nics.iter().position(|shown| shown.config.name == name);
            at.map(|at| nics.nics.remove(at))
        };
        gone.expect("the caller has looked").stop();
        self.objects().forget::<NicConfig>(name);
        Ok(Vec::new())
    }

    pub(crate) fn user_of_nic(&self, name: &str) -> Vec<String> {
        self.nics().user_of(name)
    }

    /// Gives a nic other stages, and another state of its link.
    pub(crate) fn change_nic(&self, nic: &NicConfig) -> Result<Vec<String>, Refused> {
        {
            let mut nics = self.nics();
            let shown = nics.shown(&nic.name).expect("the caller has looked");
            let changed = shown.watched.change(&shown.chain, Some(&shown.config), nic);
            changed.map_err(|text| {
                let error = format!("nic {:?}: {text}", nic.name);
                Refused::new(RefusedKind::Failed, error, "the nic stays as it was")
            })?;
            shown.cables.set(&nic.name, nic.link, shown.server.closer());
            shown.config = nic.clone();
        }
        self.objects().replace(nic);
        Ok(Vec::new())
    }

    /// Changes keys of a nic by command.
    pub(crate) fn set_nic(&self, name: &str, body: &Value) -> Result<Done, Refused> {
        let Some(fields) = body.as_object() else {
            let way_out = "send the settings to change, such as {\"link\": \"down\"}";
            return Err(Refused::new(RefusedKind::Bad, "this is not a JSON object", way_out));
        };
        let _turn = self.turn()?;
        let running = self.objects().config.clone();
        if running.nics.iter().all(|nic| nic.name != name) {
            return Err(unknown::<NicConfig>(name, &running));
        }
        let wanted = running.with_nic(name, fields).map_err(|problems| bad(&problems))?;
        let mut done = Done { version: API_VERSION, ..Done::default() };
        for change in changes(&running, &wanted) {
            done.notes.extend(self.apply(&change, false)?);
            done.applied.push(change.to_string());
            done.notes.push(NIC_UNTIL_RESTART.to_owned());
        }
        log(&done);
        Ok(done)
    }
}
