//! The domains of a node's fabric, and the socket at which processes join them.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use fabric::HOST_ENDED;
use fabric::door::{DomainReport, DomainSettings, Key, Server};
use rustix::rand::{GetRandomFlags, getrandom};

use super::handover::{FabricState, Sent};
use super::live::refuse_used;
use super::objects::Objects;
use super::{Inside, ObjectError, StartError};
use crate::api::{Refused, RefusedKind};
use crate::config::{Config, DomainConfig, Kind};
use crate::status::DomainStatus;

/// The node's side of the fabric. Its socket is made with the first domain.
#[derive(Debug)]
pub(super) struct Domains {
    path: PathBuf,
    /// This host's name in the addresses of endpoints: random, so that what another run of the
    /// node, or another host, has given out is never taken for one of these.
    host: u64,
    /// A gateway on each sidecore.
    gateways: u16,
    server: Mutex<Option<Server>>,
}

impl Domains {
    /// Those of the file.
    ///
    /// # Errors
    /// Each domain that cannot be had.
    pub(super) fn start(config: &Config) -> Result<Self, StartError> {
        let domains = Self::adopt(config, None)?;
        domains.answer();
        Ok(domains)
    }

    /// The same behind the door of a predecessor, if it had one: its host's name and its socket.
    /// Nobody is let in before [`Domains::answer`].
    ///
    /// # Errors
    /// As [`Domains::start`].
    pub(super) fn adopt(config: &Config, door: Option<(u64, OwnedFd)>) -> Result<Self, StartError> {
        let system = |what| move |source| StartError::System { what, source };
        let (host, listener) = door.unzip();
        let host = host.map_or_else(random_host, Ok).map_err(system("draw a number"))?;
        let path = config.fabric.clone();
        let server = listener.map(|listener| Server::adopt(&path, host, listener)).transpose();
        let server = server.map_err(system("serve the fabric's socket"))?;
        let gateways = config.sidecores.cores.len() as u16;
        let domains = Self { path, host, gateways, server: Mutex::new(server) };
        let refused = |domain: &DomainConfig, text: String| ObjectError {
            place: config.place(&domain.lines, "key"),
            object: format!("domain {:?}", domain.name),
            text,
        };
        let added = config.domains.iter().map(|domain| (domain, domains.add(domain)));
        let errors: Vec<_> =
            added.filter_map(|(domain, added)| Some(refused(domain, added.err()?))).collect();
        if errors.is_empty() { Ok(domains) } else { Err(errors.into()) }
    }

    fn server(&self) -> MutexGuard<'_, Option<Server>> {
        // Made or taken down in one step.
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, domain: &DomainConfig) -> Result<(), String> {
        let key = Key::read(&domain.key).map_err(|error| error.to_string())?;
        let mut server = self.server();
        if server.is_none() {
            let opened = open(&self.path, self.host);
            *server = Some(opened.map_err(|error| {
                let path = &self.path;
                format!(
                    "cannot make the fabric's socket {path:?}: {error}; stop who has it, or choose \
                     another path (\"fabric\" at the top)"
                )
            })?);
        }
        let server = server.as_ref().expect("it was just made");
        let name = domain.name.clone();
        let (endpoints_max, gateways) = (domain.endpoints_max, self.gateways);
        let settings = DomainSettings { name, key, endpoints_max, gateways };
        server.add(settings).map_err(|error| error.to_string())
    }

    /// Lets processes in.
    pub(super) fn answer(&self) {
        if let Some(Err(error)) = self.server().as_ref().map(Server::answer) {
            tracing::error!(%error, "processes cannot join the fabric");
        }
    }

    /// Lets who calls wait for a successor, if nobody is in.
    pub(super) fn let_wait(&self) -> Result<(), String> {
        let server = self.server();
        let Some(server) = server.as_ref() else { return Ok(()) };
        server.let_wait().map_err(|error| error.to_string())?;
        match server.reports().iter().find(|report| report.members > 0) {
            None => Ok(()),
            Some(report) => Err(format!(
                "processes are in domain {:?}, whose memory cannot be handed over yet; wait for \
                 the end of their jobs, or restart the node, which leaves them among themselves",
                report.name
            )),
        }
    }

    /// What a successor needs.
    pub(super) fn take_down(&self, sent: &mut Sent) -> io::Result<Option<FabricState>> {
        let server = self.server();
        let Some(server) = server.as_ref() else { return Ok(None) };
        let listener = sent.put(server.listener().try_clone_to_owned()?);
        Ok(Some(FabricState { listener, host: self.host }))
    }

    fn remove(&self, name: &str) {
        if let Some(server) = &*self.server() {
            server.remove(name);
        }
    }

    /// Reads the keys again: files of the same names may have others now. What cannot be read stays
    /// as it was, and is told.
    pub(super) fn read_keys(&self, domains: &[DomainConfig]) -> Vec<String> {
        let read = domains.iter().map(|domain| (domain, self.read_key(domain)));
        let failed = read.filter_map(|(domain, read)| Some((domain, read.err()?)));
        failed
            .map(|(domain, error)| format!("domain {:?} keeps its key: {error}", domain.name))
            .collect()
    }

    fn read_key(&self, domain: &DomainConfig) -> Result<(), String> {
        let key = Key::read(&domain.key).map_err(|error| error.to_string())?;
        if let Some(server) = &*self.server() {
            server.set_key(&domain.name, key);
        }
        Ok(())
    }

    /// Lets nobody new in, or everybody again.
    pub(super) fn set_turning_away(&self, turning_away: bool) {
        if let Some(server) = &*self.server() {
            server.set_turning_away(turning_away);
        }
    }

    /// Who would be interrupted if the domain went.
    pub(super) fn users_of(&self, name: &str) -> Vec<String> {
        let reports = self.reports();
        let report = reports.iter().find(|report| report.name == name && report.members > 0);
        let user = report.map(|report| match report.members {
            1 => "a process".to_owned(),
            members => format!("{members} processes"),
        });
        user.into_iter().collect()
    }

    fn reports(&self) -> Vec<DomainReport> {
        self.server().as_ref().map(Server::reports).unwrap_or_default()
    }

    pub(super) fn status(&self, objects: &Objects) -> Vec<DomainStatus> {
        let reports = self.reports();
        let status = |domain: &DomainConfig| {
            let report = reports.iter().find(|report| report.name == domain.name)?;
            Some(DomainStatus {
                name: domain.name.clone(),
                origin: objects.origin(Kind::Domain, &domain.name),
                socket: self.path.display().to_string(),
                key: domain.key.display().to_string(),
                endpoints: report.endpoints_live,
                endpoints_max: report.endpoints_max,
                members: report.members,
                region_bytes: report.region_bytes,
            })
        };
        objects.config.domains.iter().filter_map(status).collect()
    }

    /// Closes the door. Processes that are in go on among themselves.
    pub(super) fn stop(&self) {
        self.server().take();
    }
}

/// Opens the door where a dead node may have left its socket.
fn open(path: &Path, host: u64) -> io::Result<Server> {
    // A predecessor that was killed may have it for a moment longer.
    let opened = crate::lock::patiently(|| match link::make_way(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => None,
        ready => Some(ready),
    });
    opened.unwrap_or_else(|| link::make_way(path))?;
    Server::open(path, host)
}

fn random_host() -> io::Result<u64> {
    let mut bytes = [0; 8];
    loop {
        // Up to 256 bytes come whole.
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        match u64::from_le_bytes(bytes) {
            0 | HOST_ENDED => {}
            host => return Ok(host),
        }
    }
}

impl Inside {
    pub(super) fn add_domain(&self, domain: &DomainConfig) -> Result<Vec<String>, Refused> {
        self.refuse_while_drained()?;
        self.domains.add(domain).map_err(|text| failed(domain, &text))?;
        self.objects().config.domains.push(domain.clone());
        Ok(Vec::new())
    }

    pub(super) fn remove_domain(&self, name: &str, force: bool) -> Result<Vec<String>, Refused> {
        let users = self.domains.users_of(name);
        refuse_used(&format!("domain {name:?}"), &users, force, "end its jobs first")?;
        self.domains.remove(name);
        self.objects().remove_domain(name);
        Ok(Vec::new())
    }

    pub(super) fn change_domain_key(&self, domain: &DomainConfig) -> Result<Vec<String>, Refused> {
        self.domains.read_key(domain).map_err(|text| failed(domain, &text))?;
        let mut objects = self.objects();
        let config = objects.config.domains.iter_mut().find(|it| it.name == domain.name);
        config.expect("the caller has the turn").key.clone_from(&domain.key);
        Ok(Vec::new())
    }
}

fn failed(domain: &DomainConfig, text: &str) -> Refused {
    let error = format!("domain {:?}: {text}", domain.name);
    Refused::new(RefusedKind::Failed, error, "nothing was changed; try again after that")
}
