//! A new cluster: its id, its authorities, its registry in a file, or the files of each member of
//! etcd.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use registry::{FileRegistry, private_file};

use crate::certificates::{Authority, AuthorityKind};
use crate::directory::{ClusterDirectory, ClusterFile, EtcdMemberFile, RegistryPlace, VERSION};
use crate::error::ClusterError;
use crate::revocation;

/// The numbers of members that are of use: one tolerates no loss, three tolerate one, five two. An
/// even number tolerates no more than one less.
const MEMBERS: [usize; 3] = [1, 3, 5];

/// The longest name of a cluster, a node or a member: it is in certificates and keys.
const NAME_BYTES_MAX: usize = 64;

/// The ports of etcd, for its clients and for its members among each other.
pub(crate) const CLIENT_PORT: u16 = 2379;
pub(crate) const PEER_PORT: u16 = 2380;

/// A member of etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdMemberPlan {
    /// Its name.
    pub name: String,
    /// Its address, which clients and the other members reach.
    pub address: IpAddr,
    /// The port for clients, instead of 2379.
    pub client_port: Option<u16>,
    /// The port for members, instead of 2380.
    pub peer_port: Option<u16>,
}

impl EtcdMemberPlan {
    fn client(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.client_port.unwrap_or(CLIENT_PORT))
    }

    fn peer(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.peer_port.unwrap_or(PEER_PORT))
    }
}

/// A cluster that shall be made.
#[derive(Clone, Debug)]
pub struct ClusterPlan {
    /// Its name.
    pub name: String,
    /// The operator's directory, which must not exist or must be empty.
    pub directory: PathBuf,
    /// The members of etcd; none: the registry is a file of this machine.
    pub members: Vec<EtcdMemberPlan>,
    /// The directory of the registry in a file.
    pub file: PathBuf,
    /// Random bytes: the cluster's id, and the id of the registry in a file.
    pub random: [u8; 24],
    /// The time, in seconds since 1970.
    pub now_s: u64,
}

/// Whether a text may be a name of a cluster, a node or a member.
pub(crate) fn check_name(kind: &str, name: &str) -> Result<(), ClusterError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let begins = name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    if begins && name.len() <= NAME_BYTES_MAX && name.bytes().all(is_plain) {
        return Ok(());
    }
    Err(ClusterError::wrong(format!(
        "{name:?} is no name of a {kind}: a name has at most {NAME_BYTES_MAX} letters, digits, \
         '-', '_' and '.', and begins with a letter or digit"
    )))
}

/// Makes a cluster.
///
/// # Errors
/// When the plan contradicts itself, the directory is not empty, or the system refuses a file.
pub fn init(plan: &ClusterPlan) -> Result<ClusterDirectory, ClusterError> {
    check(plan)?;
    let (id, store) = plan.random.split_at(16);
    let id = HEXLOWER.encode(id);
    let store = u64::from_be_bytes(store.try_into().expect("24 - 16 bytes"));
    let mut file = ClusterFile {
        version: VERSION,
        id,
        name: plan.name.clone(),
        registry: RegistryPlace::File(plan.file.clone()),
        certificate_ends_s: None,
        members: Vec::new(),
    };
    if plan.members.is_empty() {
        FileRegistry::create(&plan.file, store)?;
        return ClusterDirectory::write(&plan.directory, file);
    }
    let endpoints = plan.members.iter().map(|member| format!("https://{}", member.client()));
    file.registry = RegistryPlace::Etcd(endpoints.collect());
    let directory = ClusterDirectory::write(&plan.directory, file)?;
    on_etcd(plan, directory)
}

/// Makes the authorities and the files of the members.
fn on_etcd(
    plan: &ClusterPlan,
    directory: ClusterDirectory,
) -> Result<ClusterDirectory, ClusterError> {
    let mut file = directory.file().clone();
    for (kind, name) in [(AuthorityKind::Clients, "ca"), (AuthorityKind::Peers, "peer-ca")] {
        let (_, issued) = Authority::make(kind, &file.id, plan.now_s)?;
        directory.put(&format!("{name}.pem"), &issued.certificate_pem)?;
        directory.put(&format!("{name}.key"), &issued.key_pem)?;
    }
    let client = directory.authority(AuthorityKind::Clients)?.client("operator", plan.now_s)?;
    directory.put_client(&client)?;
    file.certificate_ends_s = Some(client.ends_s);
    for member in &plan.members {
        let place = directory.path().join("members").join(&member.name);
        private_file::make_directory(&place)
            .map_err(|error| ClusterError::file(&place, "make it", &error))?;
        let ends_s = put_member(&directory, &member.name, member.address, plan.now_s)?;
        put(&place, "etcd.yml", &configuration(plan, member, &file.id))?;
        put(&place, "vrio-etcd.service", &unit())?;
        file.members.push(EtcdMemberFile {
            name: member.name.clone(),
            address: member.address,
            certificate_ends_s: ends_s,
        });
    }
    // Last: it says when the certificates end.
    let directory = ClusterDirectory::write(directory.path(), file)?;
    revocation::write_list(&directory, plan.now_s)?;
    Ok(directory)
}

/// Writes a member's certificates, and returns when they end.
pub(crate) fn put_member(
    directory: &ClusterDirectory,
    name: &str,
    address: IpAddr,
    now_s: u64,
) -> Result<u64, ClusterError> {
    let place = directory.path().join("members").join(name);
    let mut ends_s = u64::MAX;
    for (kind, authority, file) in [
        (AuthorityKind::Clients, "ca.pem", "member"),
        (AuthorityKind::Peers, "peer-ca.pem", "peer"),
    ] {
        let issued = directory.authority(kind)?.member(name, address, now_s)?;
        put(&place, authority, &directory.text(authority)?)?;
        put(&place, &format!("{file}.key"), &issued.key_pem)?;
        put(&place, &format!("{file}.pem"), &issued.certificate_pem)?;
        ends_s = ends_s.min(issued.ends_s);
    }
    Ok(ends_s)
}

fn put(place: &Path, name: &str, content: &str) -> Result<(), ClusterError> {
    let path = place.join(name);
    private_file::replace(&path, content.as_bytes())
        .map_err(|error| ClusterError::file(&path, "write it", &error))
}

fn check(plan: &ClusterPlan) -> Result<(), ClusterError> {
    check_name("cluster", &plan.name)?;
    let count = plan.members.len();
    if count > 0 && !MEMBERS.contains(&count) {
        return Err(ClusterError::wrong(format!(
            "{count} members of etcd tolerate no more losses than {}: name 1, 3 or 5",
            count - 1
        )));
    }
    for (at, member) in plan.members.iter().enumerate() {
        check_name("member of etcd", &member.name)?;
        if member.address.is_unspecified() || member.address.is_multicast() {
            let address = member.address;
            return Err(ClusterError::wrong(format!("{address} is no address of a machine")));
        }
        let before = &plan.members[..at];
        let same = |other: &&EtcdMemberPlan| {
            let own = [member.client(), member.peer()];
            other.name == member.name
                || own.contains(&other.client())
                || own.contains(&other.peer())
        };
        if let Some(other) = before.iter().find(same) {
            return Err(ClusterError::wrong(format!(
                "the members {:?} and {:?} have one name, or one address and port; each member is \
                 on a machine of its own",
                other.name, member.name
            )));
        }
        if member.client() == member.peer() {
            let text = format!("member {:?} has one port for clients and members", member.name);
            return Err(ClusterError::wrong(text));
        }
    }
    let entries = std::fs::read_dir(&plan.directory).map(|entries| entries.count());
    if entries.is_ok_and(|entries| entries > 0) {
        return Err(ClusterError::wrong(format!(
            "{:?} is not empty; a cluster's directory is made once, so name another one",
            plan.directory
        )));
    }
    Ok(())
}

/// A member's configuration; its paths begin at its directory.
fn configuration(plan: &ClusterPlan, member: &EtcdMemberPlan, id: &str) -> String {
    let mut all = String::new();
    for (at, other) in plan.members.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        write!(all, "{comma}{}=https://{}", other.name, other.peer()).expect("a string");
    }
    let EtcdMemberPlan { name, .. } = member;
    let (client, peer) = (member.client(), member.peer());
    format!(
        "# etcd's member {name} of the cluster {}, written by `vrio cluster init`.\n\
         name: {name}\n\
         data-dir: data\n\
         listen-client-urls: https://{client}\n\
         advertise-client-urls: https://{client}\n\
         listen-peer-urls: https://{peer}\n\
         initial-advertise-peer-urls: https://{peer}\n\
         initial-cluster: {all}\n\
         initial-cluster-token: vrio-{id}\n\
         initial-cluster-state: new\n\
         strict-reconfig-check: true\n\
         enable-v2: false\n\
         # Old revisions go by themselves; watches that are behind list again.\n\
         auto-compaction-mode: revision\n\
         auto-compaction-retention: \"10000\"\n\
         # A cluster's records are some megabytes.\n\
         quota-backend-bytes: 2147483648\n\
         # etcd's own name of this setting, which has none in the section below.\n\
         ClientTLSInfo:\n  \
           CRLFile: crl.pem\n\
         client-transport-security:\n  \
           cert-file: member.pem\n  \
           key-file: member.key\n  \
           client-cert-auth: true\n  \
           trusted-ca-file: ca.pem\n\
         peer-transport-security:\n  \
           cert-file: peer.pem\n  \
           key-file: peer.key\n  \
           client-cert-auth: true\n  \
           trusted-ca-file: peer-ca.pem\n",
        plan.name
    )
}

/// The unit of a member. The member's directory is /var/lib/vrio-etcd on its machine.
fn unit() -> String {
    "# A member of a vrio cluster's etcd. Its directory is /var/lib/vrio-etcd.\n\
     [Unit]\n\
     Description=etcd of a vrio cluster\n\
     Wants=network-online.target\n\
     After=network-online.target\n\
     \n\
     [Service]\n\
     Type=notify\n\
     User=etcd\n\
     Group=etcd\n\
     WorkingDirectory=/var/lib/vrio-etcd\n\
     ExecStart=/usr/bin/etcd --config-file etcd.yml\n\
     Restart=always\n\
     RestartSec=1s\n\
     LimitNOFILE=65536\n\
     UMask=0077\n\
     NoNewPrivileges=yes\n\
     CapabilityBoundingSet=\n\
     ProtectSystem=strict\n\
     ProtectHome=yes\n\
     PrivateTmp=yes\n\
     PrivateDevices=yes\n\
     ReadWritePaths=/var/lib/vrio-etcd\n\
     RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6\n\
     MemoryDenyWriteExecute=yes\n\
     \n\
     [Install]\n\
     WantedBy=multi-user.target\n"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn member(name: &str, address: &str) -> EtcdMemberPlan {
        let address = address.parse().unwrap();
        EtcdMemberPlan { name: name.to_owned(), address, client_port: None, peer_port: None }
    }

    fn plan(home: &Path, members: &[EtcdMemberPlan]) -> ClusterPlan {
        ClusterPlan {
            name: "rack".to_owned(),
            directory: home.join("cluster"),
            members: members.to_vec(),
            file: home.join("registry"),
            random: [7; 24],
            now_s: 1_700_000_000,
        }
    }

    #[test]
    fn a_cluster_on_etcd_has_all_files_and_secrets_are_the_owners() {
        let home = tempfile::tempdir().unwrap();
        let three = [member("a", "10.0.0.1"), member("b", "10.0.0.2"), member("c", "fd00::3")];
        let directory = init(&plan(home.path(), &three)).unwrap();
        assert_eq!(ClusterDirectory::open(directory.path()).unwrap().file(), directory.file());
        let endpoints =
            ["https://10.0.0.1:2379", "https://10.0.0.2:2379", "https://[fd00::3]:2379"];
        let wanted = RegistryPlace::Etcd(endpoints.map(str::to_owned).to_vec());
        assert_eq!(directory.file().registry, wanted);
        let text = directory.text("members/b/etcd.yml").unwrap();
        assert!(text.contains(
            "initial-cluster: a=https://10.0.0.1:2380,b=https://10.0.0.2:2380,\
             c=https://[fd00::3]:2380\n"
        ));
        assert!(text.contains("\n  client-cert-auth: true\n"), "{text}");
        for file in ["ca.key", "client.key", "members/a/member.key", "members/a/peer.key"] {
            let mode = std::fs::metadata(directory.path().join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
        // A member has no authority's secret key.
        assert!(!directory.path().join("members/a/ca.key").exists());
        assert_ne!(directory.text("ca.pem").unwrap(), directory.text("peer-ca.pem").unwrap());
        let again = init(&plan(home.path(), &three)).unwrap_err().to_string();
        assert!(again.contains("is not empty"), "{again}");
    }

    #[test]
    fn a_file_that_is_no_certificate_is_named() {
        let home = tempfile::tempdir().unwrap();
        let directory = init(&plan(home.path(), &[member("a", "10.0.0.1")])).unwrap();
        directory.registry().unwrap();
        for name in ["ca.pem", "client.pem", "client.key"] {
            let good = directory.text(name).unwrap();
            for bad in ["", "x", &good[..good.len() / 2]] {
                directory.put(name, bad).unwrap();
                let error = directory.registry().unwrap_err().to_string();
                assert!(error.contains(&format!("{name}\" is no certificate")), "{error}");
            }
            directory.put(name, &good).unwrap();
        }
        directory.registry().unwrap();
    }

    #[test]
    fn a_cluster_of_one_machine_is_a_file() {
        let home = tempfile::tempdir().unwrap();
        let directory = init(&plan(home.path(), &[])).unwrap();
        let mut registry = directory.registry().unwrap();
        use registry::Registry;
        assert_eq!(registry.stamp().unwrap().store, 0x0707_0707_0707_0707);
        assert!(!directory.path().join("ca.pem").exists());
    }

    #[test]
    fn plans_that_contradict_themselves_are_refused() {
        let home = tempfile::tempdir().unwrap();
        let one = member("a", "10.0.0.1");
        let same_port = EtcdMemberPlan { peer_port: Some(2379), ..one.clone() };
        for (members, wanted) in [
            (vec![one.clone(), member("b", "10.0.0.2")], "name 1, 3 or 5"),
            (vec![one.clone(), member("a", "10.0.0.2"), member("c", "10.0.0.3")], "have one name"),
            (vec![one.clone(), member("b", "10.0.0.1"), member("c", "10.0.0.3")], "one address"),
            (vec![member("a/b", "10.0.0.1")], "is no name"),
            (vec![member("a", "0.0.0.0")], "no address of a machine"),
            (vec![same_port], "one port"),
        ] {
            let error = init(&plan(home.path(), &members)).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
        let nameless = ClusterPlan { name: String::new(), ..plan(home.path(), &[]) };
        assert!(init(&nameless).is_err());
    }
}
