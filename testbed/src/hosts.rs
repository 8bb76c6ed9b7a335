//! Two hosts on this machine, for tests: network namespaces with a node each, which have a domain
//! in common, and launchers that go from one host to the other as ssh would.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cleanup::Cleanup;
use crate::nodes::Node;
use crate::stage::{CABLE, Stage};

/// The names of the nodes, by their hosts.
const NODES: [&str; 2] = ["vm1", "io1"];

/// The name of the domain.
pub const DOMAIN: &str = "blue";

/// How long a job may take on a busy machine before it is ended.
const PATIENCE: Duration = Duration::from_secs(300);

/// Two hosts with their nodes and files.
#[derive(Debug)]
pub struct Hosts {
    /// Their nodes.
    pub nodes: Vec<Node>,
    /// The content of the file of the domain's key.
    pub secret: String,
    stage: Stage,
    program: PathBuf,
}

/// MPIs whose launchers can reach the hosts.
#[derive(Clone, Copy, Debug)]
pub enum Launcher<'a> {
    /// Debian's Open MPI.
    OpenMpi,
    /// The MPICH that is installed in this folder.
    Mpich(&'a Path),
}

impl Launcher<'_> {
    /// The MPI's name for `vrio mpi env --mpi`.
    fn word(self) -> &'static str {
        match self {
            Self::OpenMpi => "openmpi",
            Self::Mpich(_) => "mpich",
        }
    }
}

impl Hosts {
    /// Starts the nodes and waits until they have joined their domains. Both configurations get the
    /// lines `both`, and each gets its own of `each`. `program` is vrio with its provider. Gives
    /// none where network namespaces are not permitted.
    ///
    /// # Errors
    /// When the nodes do not start, or do not find each other.
    pub fn new(program: &Path, both: &str, each: [&str; 2]) -> Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let mut stage = Stage::new("hosts", program.to_owned(), false, Cleanup::default())?;
        // The root user of a container may lack the permission, and a system may lack iproute2.
        if let Err(why) = stage.separate() {
            // Standard error may be gone, such as a terminal that was closed.
            let _ = writeln!(std::io::stderr(), "no network namespaces: {why:#}");
            return Ok(None);
        }
        let (key, secret) = stage.make_domain_key()?;
        let listens = [&stage.vm_listen, &stage.io_listen];
        let start = |host: usize| {
            let (other, address) = (NODES[1 - host], listens[1 - host]);
            let config = format!(
                "listen = \"{}\"\n[[peer]]\nname = \"{other}\"\naddress = \"{address}\"\n\
                 [[domain]]\nname = \"{DOMAIN}\"\nkey = {key:?}\npeers = [\"{other}\"]\n\
                 {both}{}",
                listens[host], each[host]
            );
            stage.start(&stage.plan(NODES[host], &config))
        };
        let nodes = vec![start(0)?, start(1)?];
        let mut hosts = Self { nodes, secret, stage, program: program.to_owned() };
        hosts.wait_until_joined()?;
        Ok(Some(hosts))
    }

    /// A host's address.
    pub fn address(&self, host: usize) -> &str {
        let listen = [&self.stage.vm_listen, &self.stage.io_listen][host];
        listen.split(':').next().unwrap_or_default()
    }

    /// A host's network namespace.
    ///
    /// # Panics
    /// Never: each host has one.
    pub fn space(&self, host: usize) -> String {
        self.stage.namespace_of(NODES[host]).expect("they were made")
    }

    /// A file of the hosts, which both can read.
    pub fn path(&self, name: &str) -> PathBuf {
        self.stage.path(name)
    }

    /// The status of the domain at a host's node.
    ///
    /// # Errors
    /// When the node does not answer.
    pub fn domain(&self, host: usize) -> Result<Value> {
        Ok(self.nodes[host].status()?["domains"][0].clone())
    }

    /// Messages, and parts of longer messages, that the two nodes have sent to each other so far. A
    /// job that takes another way adds nothing.
    ///
    /// # Errors
    /// When a node does not answer, or has no such counter.
    pub fn crossed(&self) -> Result<u64> {
        let of_host = |host: usize| {
            let domain = self.domain(host)?;
            let sent = domain["counters"]["gateway_sent"].as_u64();
            sent.with_context(|| format!("{} counts nothing between hosts: {domain}", NODES[host]))
        };
        (0..self.nodes.len()).map(of_host).sum()
    }

    /// Waits until each node has joined the other's domain.
    ///
    /// # Errors
    /// When a node does not join.
    pub fn wait_until_joined(&mut self) -> Result<()> {
        self.nodes.iter_mut().try_for_each(|node| {
            node.wait_until("its domain is joined with the other host's", |node| {
                node.status().is_ok_and(|it| it["domains"][0]["peers"][0]["is_joined"] == true)
            })
        })
    }

    /// A job of so many ranks, which alternate between the two hosts, in a folder that both hosts
    /// read. The job is ended after a bounded time.
    ///
    /// # Errors
    /// When the launcher's script cannot be written.
    pub fn job(
        &self,
        launcher: Launcher<'_>,
        ranks: usize,
        folder: &Path,
        program: &str,
    ) -> Result<Command> {
        let enter = self.write_enter(launcher)?;
        let (one, other) = (self.address(0), self.address(1));
        let words = match launcher {
            Launcher::OpenMpi => format!(
                "mpirun.openmpi --allow-run-as-root --mca plm_rsh_agent {enter:?} \
                 --host {one}:{ranks},{other}:{ranks} --mca oob_tcp_if_include {CABLE} \
                 --mca btl self --map-by node --bind-to none"
            ),
            // Ranks have the environment of their own host, and not that of the first host.
            Launcher::Mpich(prefix) => format!(
                "{:?} -genvnone -launcher ssh -launcher-exec {enter:?} -iface {CABLE} \
                 -hosts {one},{other} -ppn 1 -bind-to none",
                prefix.join("bin/mpiexec")
            ),
        };
        let mut job = Command::new("timeout");
        job.arg("--kill-after=5").arg(PATIENCE.as_secs().to_string()).arg(&enter).arg(one);
        job.arg(format!("cd {folder:?}\nexec {words} -n {ranks} {program}"));
        job.env("TMPDIR", &self.stage.folder).stdin(Stdio::null());
        Ok(job)
    }

    /// Writes the script with which an MPI starts its daemons, and with which the MPI itself is
    /// started. The script enters the host of an address and makes the environment there as a
    /// user's profile does.
    fn write_enter(&self, launcher: Launcher<'_>) -> Result<PathBuf> {
        let (vrio, word) = (&self.program, launcher.word());
        let doors = [0, 1].map(|host| {
            let control = self.nodes[host].plan().control();
            NamespaceEntry {
                address: self.address(host).to_owned(),
                namespace: self.space(host),
                name: format!("vrio-{}", NODES[host]),
                // MPICH has its own transport between ranks of a host.
                profile: format!(
                    "env=$({vrio:?} mpi env --mpi {word} --control {control:?}) || exit\n\
                     eval \"$env\"\nexport MPIR_CVAR_NOLOCAL=1\n"
                ),
            }
        });
        let file = self.stage.path(&format!("enter-{word}"));
        write_enter(&file, &doors)?;
        Ok(file)
    }
}

/// The way into a host that is a network namespace.
#[derive(Clone, Debug)]
pub struct NamespaceEntry {
    /// The address at which the host is reached.
    pub address: String,
    /// Its network namespace.
    pub namespace: String,
    /// The host's name, as its processes see it: MPIs tell hosts apart by this name.
    pub name: String,
    /// Lines of shell that run first there.
    pub profile: String,
}

/// Writes a script for launchers of MPIs, in the place of ssh. The script gets an address and the
/// words of a command, enters the host of that address, and has a shell there read the words.
///
/// # Errors
/// When the script cannot be written.
pub fn write_enter(file: &Path, doors: &[NamespaceEntry]) -> Result<()> {
    let of = |door: &NamespaceEntry| {
        let NamespaceEntry { address, namespace, name, profile } = door;
        format!("{address}) space={namespace}; name={name}; profile={}\n;;\n", quoted(profile))
    };
    let script = format!(
        "#!/bin/sh\n\
         while case \"$1\" in -*) true;; *) false;; esac; do shift; done\n\
         address=$1; shift\ncase $address in\n{}esac\n\
         exec ip netns exec \"$space\" unshare --uts sh -c \"hostname $name\n$profile$*\"\n",
        doors.iter().map(of).collect::<String>()
    );
    fs::write(file, &script).with_context(|| format!("writing {}", file.display()))?;
    Ok(fs::set_permissions(file, fs::Permissions::from_mode(0o755))?)
}

/// Any text as one word of a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
