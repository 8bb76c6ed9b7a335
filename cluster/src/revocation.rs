//! The client's certificates that the operator has issued, and the list of revoked ones.
//!
//! etcd's members read the list, `crl.pem`, at each new connection, so a new list is in force
//! without a restart. Without the file a member refuses all clients.

use std::fs::File;
use std::path::Path;

use registry::membership::Membership;
use registry::{RegistryError, private_file};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::certificates::{AuthorityKind, IssuedCertificate};
use crate::directory::{ClusterDirectory, RegistryPlace};
use crate::error::ClusterError;

/// The file in the operator's directory.
const ISSUED: &str = "issued.json";

/// The list of revoked certificates, in the operator's directory and in the members'.
const LIST: &str = "crl.pem";

/// The version of the file.
const VERSION: u64 = 1;

/// The most certificates that are remembered. They are forgotten when they have ended, a year
/// later; the file stays below the longest file that is read.
const ISSUED_MAX: usize = 4096;

#[derive(Default, Serialize, Deserialize)]
struct IssuedFile {
    version: u64,
    issued: Vec<IssuedEntry>,
}

/// A client's certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct IssuedEntry {
    /// Its holder: `token ID` for the node that uses the token, or `node NAME`.
    holder: String,
    /// Its serial number, in hexadecimal digits.
    serial: String,
    /// When it ends, in seconds since 1970.
    ends_s: u64,
    /// When it was revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revoked_s: Option<u64>,
}

/// The holder of a token's certificate.
pub(crate) fn token_holder(token: &str) -> String {
    format!("token {token}")
}

/// The holder of a certificate that was renewed for a node.
pub(crate) fn node_holder(node: &str) -> String {
    format!("node {node}")
}

/// Remembers a certificate before it is given away.
pub(crate) fn note_issued(
    directory: &ClusterDirectory,
    holder: String,
    certificate: &IssuedCertificate,
    now_s: u64,
) -> Result<(), ClusterError> {
    change(directory, now_s, |issued| {
        if issued.len() >= ISSUED_MAX {
            return Err(ClusterError::wrong(format!(
                "the operator has issued {ISSUED_MAX} certificates that have not ended, and \
                 remembers no more of them: that is far more than a cluster has nodes"
            )));
        }
        issued.push(IssuedEntry {
            holder,
            serial: certificate.serial.clone(),
            ends_s: certificate.ends_s,
            revoked_s: None,
        });
        Ok(())
    })
}

/// Changes the file, under a lock: commands of the operator may run at the same time.
fn change(
    directory: &ClusterDirectory,
    now_s: u64,
    edit: impl FnOnce(&mut Vec<IssuedEntry>) -> Result<(), ClusterError>,
) -> Result<(), ClusterError> {
    let path = directory.path().join(ISSUED);
    let _lock = lock(&path)?;
    let mut file = read(&path)?;
    file.issued.retain(|entry| entry.ends_s > now_s);
    edit(&mut file.issued)?;
    file.version = VERSION;
    let text = serde_json::to_string_pretty(&file).expect("texts and numbers") + "\n";
    directory.put(ISSUED, &text)
}

fn lock(path: &Path) -> Result<File, ClusterError> {
    let path = path.with_extension("lock");
    let failed = |error| ClusterError::file(&path, "lock it", &error);
    let file = private_file::open(&path).map_err(failed)?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(|it| failed(it.into()))?;
    Ok(file)
}

fn read(path: &Path) -> Result<IssuedFile, ClusterError> {
    let content = match private_file::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(IssuedFile::default());
        }
        content => content.map_err(|error| ClusterError::file(path, "read it", &error))?,
    };
    let file: IssuedFile = serde_json::from_slice(&content).map_err(|error| {
        ClusterError::wrong(format!("{path:?} is damaged ({error}); restore it from a backup"))
    })?;
    if file.version != VERSION {
        let found = file.version;
        return Err(ClusterError::wrong(format!(
            "{path:?} has version {found}, and this vrio reads version {VERSION}: use the newer \
             vrio"
        )));
    }
    Ok(file)
}

/// Writes the list of revoked certificates for the operator and each member.
///
/// # Errors
/// When this is not the operator's directory, or the system refuses a file.
pub(crate) fn write_list(directory: &ClusterDirectory, now_s: u64) -> Result<(), ClusterError> {
    let file = read(&directory.path().join(ISSUED))?;
    let revoked: Vec<_> = file
        .issued
        .iter()
        .filter(|entry| entry.ends_s > now_s)
        .filter_map(|entry| Some((entry.serial.as_str(), entry.revoked_s?)))
        .collect();
    let list = directory.authority(AuthorityKind::Clients)?.revocation_list(&revoked, now_s)?;
    directory.put(LIST, &list)?;
    for member in &directory.file().members {
        directory.put(&format!("members/{}/{LIST}", member.name), &list)?;
    }
    Ok(())
}

/// Removes a node from the cluster, also if it is present, and revokes its certificates. The
/// members of etcd need the new lists. Returns how many certificates were revoked.
///
/// # Errors
/// When this is not the operator's directory, there is no such node, or the registry does not
/// answer. It is repeated then.
pub fn revoke_node(
    directory: &ClusterDirectory,
    node: &str,
    now_s: u64,
) -> Result<usize, ClusterError> {
    let mut registry = directory.registry()?;
    let mut records = Membership::new(&mut registry, directory.keys());
    // The tokens that the node has used, as far as its record or theirs say so.
    let (mut holders, mut is_damaged) = (vec![node_holder(node)], false);
    match records.node(node) {
        Ok(record) => holders.push(token_holder(&record.token)),
        // Gone or damaged, which a hostile node can do itself.
        Err(RegistryError::Refused { .. }) => {}
        Err(RegistryError::Damaged { .. } | RegistryError::OtherVersion { .. }) => {
            is_damaged = true;
        }
        Err(error) => return Err(error.into()),
    }
    // Also tokens of before the node was removed and joined again. A node can fill the registry
    // with records that cannot be listed; its own certificates are revoked all the same.
    if let Ok(contents) = records.contents() {
        let tokens = contents.tokens.iter();
        let used = tokens.filter(|(_, token)| token.used_by.as_deref() == Some(node));
        holders.extend(used.map(|(id, _)| token_holder(id)));
    }
    let mut count = 0;
    if matches!(directory.file().registry, RegistryPlace::Etcd(_)) {
        // Before anything is changed.
        directory.authority(AuthorityKind::Clients)?;
        // First: the record says which certificates are the node's.
        change(directory, now_s, |issued| {
            for entry in issued.iter_mut().filter(|entry| holders.contains(&entry.holder)) {
                entry.revoked_s.get_or_insert(now_s);
                count += 1;
            }
            // A damaged record goes all the same.
            if count == 0 && !is_damaged {
                return Err(ClusterError::wrong(format!(
                    "no certificate in {ISSUED} is that of node {node:?} by the registry's \
                     records: find its token in that file, and set its \"revoked_s\" by hand, \
                     then run `vrio cluster renew`"
                )));
            }
            Ok(())
        })?;
        write_list(directory, now_s)?;
    }
    records.evict(node)?;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init::{ClusterPlan, EtcdMemberPlan, init};

    fn cluster(home: &Path) -> ClusterDirectory {
        let member = EtcdMemberPlan {
            name: "a".to_owned(),
            address: "10.0.0.1".parse().unwrap(),
            client_port: None,
            peer_port: None,
        };
        let plan = ClusterPlan {
            name: "rack".to_owned(),
            directory: home.join("cluster"),
            members: vec![member],
            file: home.join("registry"),
            random: [7; 24],
            now_s: 100,
        };
        init(&plan).unwrap()
    }

    fn issued(number: u8, ends_s: u64) -> IssuedCertificate {
        IssuedCertificate {
            certificate_pem: String::new(),
            key_pem: String::new(),
            serial: format!("40{number:02x}"),
            ends_s,
        }
    }

    #[test]
    fn certificates_are_remembered_until_they_end_and_a_damaged_memory_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        let directory = cluster(home.path());
        for number in 0..3 {
            let ends_s = 200 + u64::from(number);
            note_issued(&directory, token_holder("t"), &issued(number, ends_s), 100).unwrap();
        }
        note_issued(&directory, node_holder("io1"), &issued(3, 300), 201).unwrap();
        let path = directory.path().join(ISSUED);
        let serials: Vec<_> =
            read(&path).unwrap().issued.into_iter().map(|entry| entry.serial).collect();
        assert_eq!(serials, ["4002", "4003"]);
        let list = directory.text("crl.pem").unwrap();
        assert!(list.starts_with("-----BEGIN X509 CRL-----"), "{list}");
        assert_eq!(directory.text("members/a/crl.pem").unwrap(), list);
        for (text, wanted) in [("x", "is damaged"), ("{\"version\":2,\"issued\":[]}", "version 2")]
        {
            std::fs::write(&path, text).unwrap();
            let error = note_issued(&directory, node_holder("io1"), &issued(4, 300), 201);
            assert!(error.unwrap_err().to_string().contains(wanted), "{text}");
        }
    }
}
