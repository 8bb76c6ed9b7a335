//! The domains of a node's fabric, and the socket at which processes join them.

pub(crate) mod change;
pub(crate) mod hand_over;
pub(crate) mod report;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::hmac;
use config::{Config, DomainConfig, VfConfig};
use fabric::HOST_ENDED;
use fabric::registration::DomainKey;
use fabric_node::gateway::{Associations, Handed, PROOF_BYTES};
use fabric_node::registration::{
    DomainReport, DomainSettings, RegistrationServer, VfReport, VfSettings,
};
use fabric_node::{GatewayDoorbell, SlotTable};
use parking_lot::{Mutex, MutexGuard};
use rustix::rand::{GetRandomFlags, getrandom};
use sessions::gateways::Gateways;
use sessions::{LinkedSidecore, ObjectError};

use super::error::StartError;

/// The node's part of the fabric. Its socket is made with the first domain.
#[derive(Debug)]
pub(crate) struct Domains {
    path: PathBuf,
    /// This host's name in the addresses of endpoints. It is random, so that an address of an
    /// earlier run of the node, or of another host, is never taken for one of these.
    host: u64,
    /// The number of gateways: one on each sidecore.
    gateways: u16,
    server: Mutex<Option<RegistrationServer>>,
    /// The parts of each domain that its gateways use.
    open: Mutex<Vec<DomainGateways>>,
}

/// A domain, as its gateways know it.
#[derive(Debug)]
struct DomainGateways {
    name: String,
    key: Arc<Mutex<DomainKey>>,
    associations: Arc<Associations>,
    doorbells: Vec<GatewayDoorbell>,
    /// By gateway, the state of a predecessor's gateway, until the gateways are placed.
    handed: Mutex<BTreeMap<u16, Handed>>,
}

/// A domain's ways to other hosts, and by gateway the state of a predecessor's gateway.
type DomainAssociations = (Arc<Associations>, BTreeMap<u16, Handed>);

impl Domains {
    /// The domains of the file.
    ///
    /// # Errors
    /// Each domain that cannot be served.
    pub(crate) fn start(config: &Config) -> Result<Self, StartError> {
        let host = random_host();
        let host = host.map_err(|source| StartError::System { what: "draw a number", source })?;
        let domains = Self::new(config, host, None);
        let refused = |domain: &DomainConfig, text: String| ObjectError {
            place: config.place(&domain.lines, "key"),
            object: named(domain),
            text,
        };
        let added = config.domains.iter().map(|domain| (domain, domains.add(domain)));
        let errors: Vec<_> =
            added.filter_map(|(domain, added)| Some(refused(domain, added.err()?))).collect();
        if !errors.is_empty() {
            return Err(errors.into());
        }
        let refused = |vf: &VfConfig, text: String| ObjectError {
            place: config.place(&vf.lines, "socket"),
            object: format!("vf {:?}", vf.name),
            text,
        };
        let added = config.vfs.iter().map(|vf| (vf, domains.add_vf(vf)));
        let errors: Vec<_> =
            added.filter_map(|(vf, added)| Some(refused(vf, added.err()?))).collect();
        domains.answer();
        if errors.is_empty() { Ok(domains) } else { Err(errors.into()) }
    }

    /// A fabric without domains yet; `server` is the registration server, if there is one.
    fn new(config: &Config, host: u64, server: Option<RegistrationServer>) -> Self {
        let (path, gateways) = (config.fabric.clone(), config.sidecores.cores.len() as u16);
        Self { path, host, gateways, server: Mutex::new(server), open: Mutex::default() }
    }

    fn server(&self) -> MutexGuard<'_, Option<RegistrationServer>> {
        // After a panic of a thread the value is whole: the server is made or removed in one step.
        self.server.lock()
    }

    fn add(&self, domain: &DomainConfig) -> Result<(), String> {
        let mut server = self.server();
        let settings = self.settings(domain)?;
        let epoch = random().map_err(|error| error.to_string())?;
        if server.is_none() {
            let opened = open(&self.path, self.host);
            *server = Some(opened.map_err(|error| {
                let path = &self.path;
                format!(
                    "cannot make the fabric's socket {path:?}: {error}; stop the process that has \
                     it, or choose another path (\"fabric\" at the top)"
                )
            })?);
        }
        let server = server.as_ref().expect("it was just made");
        let key = settings.key.clone();
        server.add(settings).map_err(|error| error.to_string())?;
        let begin = |table| Ok((Associations::new(table, epoch as u32), BTreeMap::new()));
        let noted = self.note(server, domain, key, begin);
        noted.inspect_err(|_| {
            server.remove(&domain.name);
        })
    }

    fn settings(&self, domain: &DomainConfig) -> Result<DomainSettings, String> {
        let key = DomainKey::read(&domain.key).map_err(|error| error.to_string())?;
        let (name, endpoints_max) = (domain.name.clone(), domain.endpoints_max);
        Ok(DomainSettings { name, key, endpoints_max, gateways: self.gateways })
    }

    /// Notes a domain that is served now, for its gateways.
    fn note(
        &self,
        server: &RegistrationServer,
        domain: &DomainConfig,
        key: DomainKey,
        begin: impl FnOnce(Arc<SlotTable>) -> Result<DomainAssociations, String>,
    ) -> Result<(), String> {
        let Some((table, doorbells)) = server.gateways(&domain.name) else {
            return Err("no descriptor is left for its gateways; raise the limit".to_owned());
        };
        let (associations, handed) = begin(table)?;
        associations.set_peers(&domain.peers);
        let (name, key) = (domain.name.clone(), Arc::new(Mutex::new(key)));
        let handed = Mutex::new(handed);
        self.opened().push(DomainGateways { name, key, associations, doorbells, handed });
        Ok(())
    }

    fn opened(&self) -> MutexGuard<'_, Vec<DomainGateways>> {
        // After a panic of another thread the value is whole: each domain is in the list or not.
        self.open.lock()
    }

    /// Puts the gateways of all domains onto their sidecores.
    pub(crate) fn open_gateways(&self, cores: &[LinkedSidecore]) {
        self.opened().iter().for_each(|open| open.place(cores));
    }

    /// Gives a domain other peers.
    pub(crate) fn set_peers(&self, domain: &DomainConfig) {
        for open in self.opened().iter().filter(|open| open.name == domain.name) {
            open.associations.set_peers(&domain.peers);
        }
    }

    fn add_vf(&self, vf: &VfConfig) -> Result<(), String> {
        make_way(&vf.socket).map_err(|error| {
            let socket = &vf.socket;
            format!(
                "cannot make the socket {socket:?}: {error}; stop the process that has it, or \
                 choose another socket"
            )
        })?;
        self.open_vf(vf)
    }

    /// Makes the socket, in place of any socket that is there.
    fn open_vf(&self, vf: &VfConfig) -> Result<(), String> {
        let server = self.server();
        let server = server.as_ref().expect("a node with domains has a registration server");
        let VfConfig { name, domain, socket, .. } = vf.clone();
        server.add_vf(VfSettings { name, domain, path: socket }).map_err(|error| error.to_string())
    }

    /// The VM that would be interrupted if the window went.
    pub(crate) fn user_of_vf(&self, name: &str) -> Vec<String> {
        let reports = self.vf_reports();
        let pid = reports.iter().find(|report| report.name == name).and_then(|report| report.pid);
        pid.map(|pid| format!("a VM (process {pid})")).into_iter().collect()
    }

    fn vf_reports(&self) -> Vec<VfReport> {
        self.server().as_ref().map(RegistrationServer::vf_reports).unwrap_or_default()
    }

    /// Begins to admit processes.
    pub(crate) fn answer(&self) {
        if let Some(Err(error)) = self.server().as_ref().map(RegistrationServer::answer) {
            tracing::error!(%error, "processes cannot join the fabric");
        }
    }

    fn remove_vf(&self, name: &str) {
        if let Some(server) = &*self.server() {
            server.remove_vf(name);
        }
    }

    fn remove(&self, name: &str, cores: &[LinkedSidecore]) {
        self.opened().retain(|open| open.name != name);
        for core in cores {
            let name = name.to_owned();
            // A sidecore that has stopped has no gateways.
            let _ = core.sidecore.call(move |local| {
                if let Some(gateways) = local.services().get::<Gateways>() {
                    gateways.borrow_mut().remove(&name);
                }
            });
        }
        if let Some(server) = &*self.server() {
            server.remove(name);
        }
    }

    /// Reads the keys again, since a file of the same name may have another key now. A domain whose
    /// file cannot be read keeps its key, and is in the list that is returned.
    pub(crate) fn read_keys(&self, domains: &[DomainConfig]) -> Vec<String> {
        let read = domains.iter().map(|domain| (domain, self.read_key(domain)));
        let failed = read.filter_map(|(domain, read)| Some((domain, read.err()?)));
        failed
            .map(|(domain, error)| format!("domain {:?} keeps its key: {error}", domain.name))
            .collect()
    }

    fn read_key(&self, domain: &DomainConfig) -> Result<(), String> {
        let key = DomainKey::read(&domain.key).map_err(|error| error.to_string())?;
        for open in self.opened().iter().filter(|open| open.name == domain.name) {
            *open.key.lock() = key.clone();
        }
        if let Some(server) = &*self.server() {
            server.set_key(&domain.name, key);
        }
        Ok(())
    }

    /// Refuses new processes, or admits them again.
    pub(crate) fn set_turning_away(&self, turning_away: bool) {
        if let Some(server) = &*self.server() {
            server.set_refusing_new(turning_away);
        }
    }

    /// The processes that would be interrupted if the domain went.
    pub(crate) fn users_of(&self, name: &str) -> Vec<String> {
        let reports = self.reports();
        let Some(report) = reports.iter().find(|report| report.name == name) else {
            return Vec::new();
        };
        let some = |count: usize, one: &str, several: &str| match count {
            0 => None,
            1 => Some(one.to_owned()),
            count => Some(format!("{count} {several}")),
        };
        let processes = some(report.members, "a process", "processes");
        processes.into_iter().chain(some(report.vms, "a VM", "VMs")).collect()
    }

    fn reports(&self) -> Vec<DomainReport> {
        self.server().as_ref().map(RegistrationServer::reports).unwrap_or_default()
    }

    /// Ends the registration server. Members go on among themselves.
    pub(crate) fn stop(&self) {
        self.server().take();
    }
}

/// Starts the registration server where a dead node may have left its socket.
fn open(path: &Path, host: u64) -> io::Result<RegistrationServer> {
    make_way(path)?;
    RegistrationServer::open(path, host)
}

/// Removes a dead node's socket.
fn make_way(path: &Path) -> io::Result<()> {
    // A predecessor that was killed may have the socket for a moment longer.
    let opened = sessions::lock::patiently(|| match link::make_way(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => None,
        ready => Some(ready),
    });
    opened.unwrap_or_else(|| link::make_way(path))
}

impl DomainGateways {
    /// Puts the domain's gateways onto their sidecores. A node without sessions has none.
    fn place(&self, cores: &[LinkedSidecore]) {
        for (gateway, (core, doorbell)) in cores.iter().zip(&self.doorbells).enumerate() {
            let (name, associations) = (self.name.clone(), Arc::clone(&self.associations));
            let key = Arc::clone(&self.key);
            let Ok(doorbell) = doorbell.try_clone() else {
                tracing::error!(domain = name, "no descriptor is left for a gateway");
                continue;
            };
            let gateway = gateway as u16;
            let mut handed = self.handed.lock();
            let with = (doorbell, handed.remove(&gateway));
            drop(handed);
            // A sidecore that has stopped needs no gateway.
            let _ = core.sidecore.call(move |local| {
                let Some(gateways) = local.services().get::<Gateways>() else { return };
                let prove = Box::new(move |statement: &[u8]| prove(&key.lock(), statement));
                gateways.borrow_mut().add((name, gateway), prove, associations, with);
            });
        }
    }
}

/// Proves that the maker of the statement has the key.
fn prove(key: &DomainKey, statement: &[u8]) -> [u8; PROOF_BYTES] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.bytes());
    let tag = hmac::sign(&key, statement);
    tag.as_ref().try_into().expect("32 bytes")
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    // Up to 256 bytes come whole.
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_le_bytes(bytes))
}

fn random_host() -> io::Result<u64> {
    loop {
        match random()? {
            0 | HOST_ENDED => {}
            host => return Ok(host),
        }
    }
}

fn named(domain: &DomainConfig) -> String {
    format!("domain {:?}", domain.name)
}
