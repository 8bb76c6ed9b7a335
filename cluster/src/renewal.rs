//! New certificates in place of certificates that end soon, by the same authorities.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use crate::certificates::AuthorityKind;
use crate::directory::{ClusterDirectory, ClusterFile};
use crate::error::ClusterError;
use crate::init::put_member;
use crate::revocation::{self, node_holder, note_issued};

/// Renews the operator's certificate and the certificates of etcd's members, in the operator's
/// directory.
///
/// # Errors
/// When this is not the operator's directory, or the system refuses a file.
pub fn renew_all(
    directory: &ClusterDirectory,
    now_s: u64,
) -> Result<ClusterDirectory, ClusterError> {
    let mut file = directory.file().clone();
    let client = directory.authority(AuthorityKind::Clients)?.client("operator", now_s)?;
    directory.put_client(&client)?;
    file.certificate_ends_s = Some(client.ends_s);
    for member in &mut file.members {
        member.certificate_ends_s = put_member(directory, &member.name, member.address, now_s)?;
    }
    let renewed = ClusterDirectory::write(directory.path(), file)?;
    revocation::write_list(&renewed, now_s)?;
    Ok(renewed)
}

/// Writes a new certificate for a node into a directory. Its files replace the files of the node's.
///
/// # Errors
/// As [`renew_all`].
pub fn renew_client(
    directory: &ClusterDirectory,
    node: &str,
    to: &Path,
    now_s: u64,
) -> Result<ClusterDirectory, ClusterError> {
    // A directory that is there may be another user's, and its files would be given to this user.
    DirBuilder::new().mode(0o700).create(to).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => ClusterError::wrong(format!("{to:?} exists; name a new one")),
        _ => ClusterError::file(to, "make it", &error),
    })?;
    let client = directory.authority(AuthorityKind::Clients)?.client(node, now_s)?;
    note_issued(directory, node_holder(node), &client, now_s)?;
    let file = ClusterFile {
        certificate_ends_s: Some(client.ends_s),
        members: Vec::new(),
        ..directory.file().clone()
    };
    let renewed = ClusterDirectory::write(to, file)?;
    renewed.put("ca.pem", &directory.text("ca.pem")?)?;
    renewed.put_client(&client)?;
    Ok(renewed)
}
