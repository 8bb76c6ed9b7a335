//! A machine's directory of a cluster: which cluster it is, where the registry is, and the
//! certificate of a client. `vrio cluster init` makes the operator's, `vrio node join` a node's.
//!
//! ```text
//!   DIRECTORY/cluster.json     the file below
//!   DIRECTORY/ca.pem           the authority of etcd's clients
//!   DIRECTORY/client.pem, client.key
//!   DIRECTORY/seen             the highest revision that this machine has seen
//!   DIRECTORY/ca.key, peer-ca.pem, peer-ca.key, members/    with the operator alone
//!   DIRECTORY/issued.json, crl.pem                          certificates, and those revoked
//! ```

use std::path::{Path, PathBuf};

use registry::membership::ClusterKeys;
use registry::{FileRegistry, Guarded, Registry, private_file};
use serde::{Deserialize, Serialize};

use crate::certificates::{Authority, AuthorityKind, IssuedCertificate};
use crate::error::ClusterError;
use crate::etcd::{EtcdCredentials, EtcdRegistry};

/// The version of the file.
pub(crate) const VERSION: u64 = 1;

/// Where a registry is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RegistryPlace {
    /// In a directory of this machine.
    File(PathBuf),
    /// With these members of etcd: each `https://ADDRESS:PORT`.
    Etcd(Vec<String>),
}

/// The file `cluster.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterFile {
    /// The version of the file.
    pub version: u64,
    /// The cluster's id.
    pub id: String,
    /// The cluster's name.
    pub name: String,
    /// Where the registry is.
    pub registry: RegistryPlace,
    /// When the client's certificate ends, in seconds since 1970; none where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_ends_s: Option<u64>,
    /// The members of etcd; with the operator alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<EtcdMemberFile>,
}

/// A member of etcd, as the operator's file has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EtcdMemberFile {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: std::net::IpAddr,
    /// When its certificates end, in seconds since 1970.
    pub certificate_ends_s: u64,
}

/// A directory that was read.
#[derive(Clone, Debug)]
pub struct ClusterDirectory {
    path: PathBuf,
    file: ClusterFile,
    keys: ClusterKeys,
}

impl ClusterDirectory {
    /// Reads a directory.
    ///
    /// # Errors
    /// When there is none, or it is damaged.
    pub fn open(path: &Path) -> Result<Self, ClusterError> {
        let place = path.join("cluster.json");
        let content = private_file::read(&place).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => ClusterError::wrong(format!(
                "{path:?} is no directory of a cluster: this machine has not joined one (`vrio \
                 node join`), or name another one with --directory"
            )),
            _ => ClusterError::file(&place, "read it", &error),
        })?;
        let file: ClusterFile = serde_json::from_slice(&content).map_err(|error| {
            ClusterError::wrong(format!("{place:?} is damaged ({error}); restore it from a backup"))
        })?;
        if file.version != VERSION {
            let found = file.version;
            return Err(ClusterError::wrong(format!(
                "{place:?} has version {found}, and this vrio reads version {VERSION}: use the \
                 newer vrio"
            )));
        }
        let keys = ClusterKeys::new(&file.id)?;
        Ok(Self { path: path.to_owned(), file, keys })
    }

    /// Makes a directory, or writes its file again.
    pub(crate) fn write(path: &Path, file: ClusterFile) -> Result<Self, ClusterError> {
        private_file::make_directory(path)
            .map_err(|error| ClusterError::file(path, "make it", &error))?;
        let keys = ClusterKeys::new(&file.id)?;
        let text = serde_json::to_string_pretty(&file).expect("texts and numbers") + "\n";
        let this = Self { path: path.to_owned(), file, keys };
        this.put("cluster.json", &text)?;
        Ok(this)
    }

    /// Writes a file of the directory.
    pub(crate) fn put(&self, name: &str, content: &str) -> Result<(), ClusterError> {
        let path = self.path.join(name);
        private_file::replace(&path, content.as_bytes())
            .map_err(|error| ClusterError::file(&path, "write it", &error))
    }

    /// Writes the client's certificate and its key.
    pub(crate) fn put_client(&self, issued: &IssuedCertificate) -> Result<(), ClusterError> {
        self.put("client.key", &issued.key_pem)?;
        self.put("client.pem", &issued.certificate_pem)
    }

    /// The text of a file of the directory.
    pub(crate) fn text(&self, name: &str) -> Result<String, ClusterError> {
        let path = self.path.join(name);
        let content = private_file::read(&path)
            .map_err(|error| ClusterError::file(&path, "read it", &error))?;
        String::from_utf8(content).map_err(|_| ClusterError::wrong(format!("{path:?} is no text")))
    }

    /// The text of a certificate or a key. The library of TLS does not say which file is wrong.
    fn pem(&self, name: &str) -> Result<String, ClusterError> {
        let text = self.text(name)?;
        if !text.contains("-----BEGIN ") || !text.contains("-----END ") {
            return Err(ClusterError::wrong(format!(
                "{:?} is no certificate and no key; restore it from a backup, or make another one \
                 by `vrio cluster renew` on the operator's machine",
                self.path.join(name)
            )));
        }
        Ok(text)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its file.
    pub fn file(&self) -> &ClusterFile {
        &self.file
    }

    /// The keys of the cluster in the registry.
    pub fn keys(&self) -> &ClusterKeys {
        &self.keys
    }

    /// The file with the highest revision that was seen.
    pub fn seen_path(&self) -> PathBuf {
        self.path.join("seen")
    }

    /// The registry, guarded by what this machine has seen of it.
    ///
    /// # Errors
    /// When a certificate cannot be read. Whether the registry answers is found by its first use.
    pub fn registry(&self) -> Result<Guarded, ClusterError> {
        let inner: Box<dyn Registry> = match &self.file.registry {
            RegistryPlace::File(path) => Box::new(FileRegistry::open(path)),
            RegistryPlace::Etcd(_) => Box::new(self.etcd()?.expect("it is on etcd")),
        };
        Ok(Guarded::new(inner, &self.seen_path())?)
    }

    /// The registry on etcd, if it is there.
    pub(crate) fn etcd(&self) -> Result<Option<EtcdRegistry>, ClusterError> {
        let RegistryPlace::Etcd(endpoints) = &self.file.registry else { return Ok(None) };
        let credentials = EtcdCredentials {
            authority_pem: self.pem("ca.pem")?,
            certificate_pem: self.pem("client.pem")?,
            key_pem: self.pem("client.key")?,
        };
        Ok(Some(EtcdRegistry::open(endpoints, &credentials)?))
    }

    /// An authority of this cluster, where its secret key is.
    pub(crate) fn authority(&self, kind: AuthorityKind) -> Result<Authority, ClusterError> {
        let name = match kind {
            AuthorityKind::Clients => "ca.key",
            AuthorityKind::Peers => "peer-ca.key",
        };
        if !self.path.join(name).exists() {
            return Err(ClusterError::wrong(format!(
                "{:?} has no {name}: do this on the machine where `vrio cluster init` was run, or \
                 with a copy of its directory",
                self.path
            )));
        }
        Authority::of_key(kind, &self.file.id, &self.text(name)?)
    }
}
