//! The status of domains and of their windows.

use std::collections::BTreeMap;

use config::{DomainConfig, VfConfig};
use fabric_node::gateway::PeerReport;
use sessions::counted::add_counters;
use sessions::{LinkedSidecore, gateways::Gateways};
use sidecore::CounterText;

use super::Domains;
use crate::wiring::objects::Objects;
use api::status::{Counters, DomainPeerStatus, DomainStatus, VfStatus};

impl Domains {
    /// The status of all domains. It asks the sidecores, so it may wait for a round of each.
    pub(crate) fn status(&self, objects: &Objects, cores: &[LinkedSidecore]) -> Vec<DomainStatus> {
        let reports = self.reports();
        let mut counters = if reports.is_empty() { BTreeMap::new() } else { counted(cores) };
        let mut status = |domain: &DomainConfig| {
            let report = reports.iter().find(|report| report.name == domain.name)?;
            Some(DomainStatus {
                name: domain.name.clone(),
                origin: objects.origin::<DomainConfig>(&domain.name),
                socket: self.path.display().to_string(),
                key: domain.key.display().to_string(),
                endpoints: report.endpoints_live,
                endpoints_max: report.endpoints_max,
                members: report.members,
                region_bytes: report.region_bytes,
                used_bytes: report.used_bytes,
                peers: self.peers_of(&domain.name),
                counters: counters.remove(&domain.name).unwrap_or_default(),
            })
        };
        objects.config.domains.iter().filter_map(&mut status).collect()
    }

    fn peers_of(&self, name: &str) -> Vec<DomainPeerStatus> {
        let opened = self.opened();
        let open = opened.iter().find(|open| open.name == name);
        let status = |report: PeerReport| {
            let is_joined = report.joined > 0;
            let waits = || "it was not asked yet".to_owned();
            let why = if is_joined { None } else { report.why.or_else(|| Some(waits())) };
            let host = report.host.map(|host| format!("{host:016x}"));
            DomainPeerStatus { name: report.peer, is_joined, host, why }
        };
        open.into_iter().flat_map(|open| open.associations.reports()).map(status).collect()
    }

    pub(crate) fn vf_status(&self, objects: &Objects) -> Vec<VfStatus> {
        let reports = self.vf_reports();
        let status = |vf: &VfConfig| {
            let report = reports.iter().find(|report| report.name == vf.name)?;
            Some(VfStatus {
                name: vf.name.clone(),
                origin: objects.origin::<VfConfig>(&vf.name),
                domain: vf.domain.clone(),
                socket: vf.socket.display().to_string(),
                process: report.pid,
                endpoints: report.endpoints,
                denied: report.denied,
                memory: report.memory.display().to_string(),
            })
        };
        objects.config.vfs.iter().filter_map(status).collect()
    }
}

/// By domain: the counters of its gateways, and the size of their state of other hosts.
fn counted(cores: &[LinkedSidecore]) -> BTreeMap<String, Counters> {
    let mut domains = BTreeMap::<String, Counters>::new();
    for core in cores {
        let asked = core.sidecore.ask(|local| {
            let gateways = local.services().get::<Gateways>()?;
            let counted = gateways.borrow().counted();
            Some(counted)
        });
        // A sidecore that has stopped gives no answer.
        for counted in asked.ok().flatten().into_iter().flatten() {
            let sums = domains.entry(counted.domain).or_default();
            add_counters(sums, "gateway_", counted.counters.counted());
            let state_bytes = ("gateway_state_bytes_now", counted.state_bytes as u64);
            add_counters(sums, "", std::iter::once(state_bytes));
        }
    }
    domains
}

/// The metrics of a domain.
pub(crate) const DOMAIN_METRICS: &[CounterText] = &[
    CounterText { name: "endpoints", help: "Endpoints in the domain." },
    CounterText { name: "endpoints_max", help: "The most endpoints of the domain." },
    CounterText { name: "members", help: "Processes that have joined the domain." },
    CounterText { name: "region_bytes", help: "The memory that its endpoints share, used or not." },
    CounterText { name: "used_bytes", help: "The part of this memory that was ever used." },
    CounterText {
        name: "gateway_state_bytes",
        help: "Memory of gateways about other hosts, without buffers.",
    },
];

/// The metrics of a window.
pub(crate) const VF_METRICS: &[CounterText] = &[
    CounterText { name: "connected", help: "Whether a VM's QEMU is connected." },
    CounterText { name: "endpoints", help: "Endpoints of processes inside of the VM." },
    CounterText {
        name: "denied",
        help: "Requests of processes inside of the VM without the domain's key.",
    },
];
