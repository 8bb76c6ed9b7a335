//! Domains and their windows that come, go and change while the node runs.

use config::{DomainConfig, InPlace, VfConfig};
use fabric_node::gateway::PostCounters;
use sidecore::CounterText;

use super::named;
use super::report::{DOMAIN_METRICS, VF_METRICS};
use crate::kinds::{Changed, RunningObject, with_prefix};
use crate::wiring::change::{refuse_used, takes_restart};
use crate::wiring::inside::Inside;
use crate::wiring::objects::Objects;
use api::status::{DomainStatus, Status, VfStatus};
use api::{Refused, RefusedKind};

impl RunningObject for DomainConfig {
    type Status = DomainStatus;

    fn metrics() -> Vec<CounterText> {
        let of_gateways = with_prefix("gateway_", PostCounters::DECLARED);
        DOMAIN_METRICS.iter().copied().chain(of_gateways).collect()
    }

    fn add(&self, node: &Inside) -> Changed {
        node.add_domain(self)
    }

    fn change(&self, _step: &InPlace, node: &Inside) -> Changed {
        node.change_domain(self)
    }

    fn remove(name: &str, node: &Inside, force: bool) -> Changed {
        node.remove_domain(name, force)
    }

    fn users(name: &str, node: &Inside, _goes: &dyn Fn(&str) -> bool) -> Vec<String> {
        node.users_of_domain(name)
    }

    fn status(node: &Inside, objects: &Objects) -> Vec<DomainStatus> {
        node.domains.status(objects, &node.cores)
    }

    fn report(found: Vec<DomainStatus>, status: &mut Status) {
        status.domains = found;
    }
}

impl RunningObject for VfConfig {
    type Status = VfStatus;

    fn metrics() -> Vec<CounterText> {
        VF_METRICS.to_vec()
    }

    fn add(&self, node: &Inside) -> Changed {
        node.add_vf(self)
    }

    fn remove(name: &str, node: &Inside, force: bool) -> Changed {
        node.remove_vf(name, force)
    }

    fn users(name: &str, node: &Inside, _goes: &dyn Fn(&str) -> bool) -> Vec<String> {
        node.user_of_vf(name)
    }

    fn status(node: &Inside, objects: &Objects) -> Vec<VfStatus> {
        node.domains.vf_status(objects)
    }

    fn report(found: Vec<VfStatus>, status: &mut Status) {
        status.vfs = found;
    }
}

impl Inside {
    pub(crate) fn add_domain(&self, domain: &DomainConfig) -> Result<Vec<String>, Refused> {
        self.refuse_while_drained()?;
        self.check_listens(!domain.peers.is_empty(), "a domain has peers")?;
        self.domains.add(domain).map_err(|text| failed(&named(domain), &text))?;
        let opened = self.domains.opened();
        opened.iter().filter(|open| open.name == domain.name).for_each(|it| it.place(&self.cores));
        drop(opened);
        self.objects().note(domain);
        self.accept_as_allowed();
        Ok(Vec::new())
    }

    pub(crate) fn remove_domain(&self, name: &str, force: bool) -> Result<Vec<String>, Refused> {
        let users = self.domains.users_of(name);
        refuse_used(&format!("domain {name:?}"), &users, force, "end its jobs first")?;
        let vfs: Vec<_> = {
            let objects = self.objects();
            let vfs = objects.config.vfs.iter().filter(|vf| vf.domain == name);
            vfs.map(|vf| vf.name.clone()).collect()
        };
        self.domains.remove(name, &self.cores);
        let mut objects = self.objects();
        vfs.iter().for_each(|vf| objects.forget::<VfConfig>(vf));
        objects.forget::<DomainConfig>(name);
        drop(objects);
        self.accept_as_allowed();
        Ok(vfs.iter().map(|vf| format!("vf {vf:?} was removed with its domain")).collect())
    }

    pub(crate) fn add_vf(&self, vf: &VfConfig) -> Result<Vec<String>, Refused> {
        self.refuse_while_drained()?;
        let home = self.objects().config.directories.sockets.clone();
        if home.is_none_or(|home| !vf.socket.starts_with(home)) {
            return Err(takes_restart("its socket is in another directory", "[directories]"));
        }
        self.domains.add_vf(vf).map_err(|text| failed(&format!("vf {:?}", vf.name), &text))?;
        self.objects().note(vf);
        Ok(Vec::new())
    }

    pub(crate) fn remove_vf(&self, name: &str, force: bool) -> Result<Vec<String>, Refused> {
        let users = self.domains.user_of_vf(name);
        let instead = "stop the VM, or unplug its device and the chardev";
        refuse_used(&format!("vf {name:?}"), &users, force, instead)?;
        self.domains.remove_vf(name);
        self.objects().forget::<VfConfig>(name);
        let note = "its VM keeps the endpoints that it has until it ends, or unplugs the device";
        Ok(if users.is_empty() { Vec::new() } else { vec![note.to_owned()] })
    }

    pub(crate) fn users_of_domain(&self, name: &str) -> Vec<String> {
        self.domains.users_of(name)
    }

    pub(crate) fn user_of_vf(&self, name: &str) -> Vec<String> {
        self.domains.user_of_vf(name)
    }

    pub(crate) fn change_domain(&self, domain: &DomainConfig) -> Result<Vec<String>, Refused> {
        self.check_listens(!domain.peers.is_empty(), "a domain has peers")?;
        self.domains.read_key(domain).map_err(|text| failed(&named(domain), &text))?;
        let mut objects = self.objects();
        let config = objects.config.domains.iter_mut().find(|it| it.name == domain.name);
        let config = config.expect("the caller has the turn");
        config.key.clone_from(&domain.key);
        config.peers.clone_from(&domain.peers);
        drop(objects);
        self.domains.set_peers(domain);
        self.accept_as_allowed();
        Ok(Vec::new())
    }
}

fn failed(object: &str, text: &str) -> Refused {
    let error = format!("{object}: {text}");
    Refused::new(RefusedKind::Failed, error, "nothing was changed; try again afterwards")
}
