//! Tokens: a right to join once, with all that a node needs to reach the registry.
//!
//! A token is `vrio1.` and JSON in Base64. The registry has a digest of its secret, so that a
//! reader of the registry cannot join; the token itself has the node's certificate and key, and is
//! as secret as they are.

use std::path::Path;

use data_encoding::{BASE64URL_NOPAD, HEXLOWER};
use registry::membership::{ClusterKeys, Membership};
use registry::{ClusterRecord, NodeRecord, TokenRecord};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::certificates::{AuthorityKind, IssuedCertificate};
use crate::directory::{ClusterDirectory, ClusterFile, RegistryPlace, VERSION};
use crate::error::ClusterError;
use crate::init::check_name;
use crate::revocation::{note_issued, token_holder};

/// The beginning of a token, with the version of its form.
const BEGIN: &str = "vrio1.";

/// The longest token: a registry of five members, two certificates and a key.
const TOKEN_BYTES_MAX: usize = 32 << 10;

/// A token as data.
#[derive(Clone, Serialize, Deserialize)]
pub struct JoinToken {
    id: String,
    name: String,
    registry: RegistryPlace,
    secret: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    client: Option<TokenClient>,
}

/// The certificate of a client of etcd.
#[derive(Clone, Serialize, Deserialize)]
struct TokenClient {
    authority: String,
    certificate: String,
    key: String,
    ends_s: u64,
}

impl std::fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JoinToken").field("name", &self.name).finish_non_exhaustive()
    }
}

impl JoinToken {
    /// The text.
    fn text(&self) -> String {
        let json = serde_json::to_vec(self).expect("texts and numbers");
        format!("{BEGIN}{}", BASE64URL_NOPAD.encode(&json))
    }

    /// Reads a token.
    ///
    /// # Errors
    /// When it is none.
    pub fn read(text: &str) -> Result<Self, ClusterError> {
        let wrong = |why: &str| {
            let text = format!("this is no token ({why}); `vrio cluster token` prints one");
            ClusterError::wrong(text)
        };
        let text = text.trim();
        if text.len() > TOKEN_BYTES_MAX {
            return Err(wrong("it is too long"));
        }
        let rest =
            text.strip_prefix(BEGIN).ok_or_else(|| wrong("it does not begin with vrio1."))?;
        let json = BASE64URL_NOPAD.decode(rest.as_bytes());
        let json = json.map_err(|_| wrong("a part of it is missing"))?;
        let token: Self =
            serde_json::from_slice(&json).map_err(|error| wrong(&error.to_string()))?;
        ClusterKeys::new(&token.id)?;
        check_name("cluster", &token.name)?;
        Ok(token)
    }

    /// The token's id in the registry.
    fn digest(&self) -> String {
        digest(&self.secret)
    }
}

/// The id of the token with this secret.
fn digest(secret: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(secret))[..32].to_owned()
}

/// Makes a token that lasts for so long, in the cluster's registry.
///
/// # Errors
/// When this is not the operator's directory, or the registry does not answer.
pub fn issue_token(
    directory: &ClusterDirectory,
    random: [u8; 16],
    (now_s, lasts_s): (u64, u64),
) -> Result<String, ClusterError> {
    let ClusterFile { id, name, registry, .. } = directory.file().clone();
    let secret = HEXLOWER.encode(&random);
    let client = match &registry {
        RegistryPlace::File(_) => None,
        RegistryPlace::Etcd(_) => {
            let authority = directory.authority(AuthorityKind::Clients)?;
            let issued = authority.client("node", now_s)?;
            note_issued(directory, token_holder(&digest(&secret)), &issued, now_s)?;
            Some(TokenClient {
                authority: directory.text("ca.pem")?,
                certificate: issued.certificate_pem,
                key: issued.key_pem,
                ends_s: issued.ends_s,
            })
        }
    };
    let token = JoinToken { id: id.clone(), name: name.clone(), registry, secret, client };
    let mut registry = directory.registry()?;
    let mut records = Membership::new(&mut registry, directory.keys());
    records.found(&ClusterRecord { id, name, made_s: now_s })?;
    let ends_s = now_s.saturating_add(lasts_s);
    let record = TokenRecord { made_s: now_s, ends_s, used_by: None, used_s: None };
    records.issue(&token.digest(), &record)?;
    Ok(token.text())
}

/// Has a node join: writes its directory and uses the token. A join that was cut off is repeated.
///
/// # Errors
/// When the token is not for this node, the directory belongs to another cluster, or the registry
/// does not answer.
pub fn join(
    token: &JoinToken,
    path: &Path,
    (name, key): (&str, Option<String>),
    now_s: u64,
) -> Result<ClusterDirectory, ClusterError> {
    check_name("node", name)?;
    if path.join("cluster.json").exists() {
        // A directory that cannot be read may be the operator's.
        let found = ClusterDirectory::open(path)?;
        let ClusterFile { id, name, .. } = found.file();
        if *id != token.id {
            return Err(ClusterError::wrong(format!(
                "{path:?} is the directory of the cluster {name:?} with the id {id}, and the token \
                 is of the cluster {:?} with the id {}; remove the directory if this node leaves \
                 the first one",
                token.name, token.id
            )));
        }
        if path.join("ca.key").exists() {
            return Err(ClusterError::wrong(format!(
                "{path:?} is the operator's directory; a node has one of its own"
            )));
        }
        if path.join("joined").exists() {
            return Err(ClusterError::wrong(format!(
                "this machine has joined the cluster {name:?} in {path:?} already"
            )));
        }
    }
    // First: the certificate is there when the registry knows the node.
    let file = ClusterFile {
        version: VERSION,
        id: token.id.clone(),
        name: token.name.clone(),
        registry: token.registry.clone(),
        certificate_ends_s: token.client.as_ref().map(|client| client.ends_s),
        members: Vec::new(),
    };
    let directory = ClusterDirectory::write(path, file)?;
    if let Some(client) = &token.client {
        directory.put("ca.pem", &client.authority)?;
        directory.put_client(&IssuedCertificate {
            certificate_pem: client.certificate.clone(),
            key_pem: client.key.clone(),
            serial: String::new(),
            ends_s: client.ends_s,
        })?;
    }
    let node = NodeRecord { name: name.to_owned(), key, joined_s: now_s, token: token.digest() };
    let mut registry = directory.registry()?;
    Membership::new(&mut registry, directory.keys()).join(&node, now_s)?;
    directory.put("joined", &format!("{name}\n"))?;
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init::{ClusterPlan, init};

    fn cluster(home: &Path) -> ClusterDirectory {
        let plan = ClusterPlan {
            name: "rack".to_owned(),
            directory: home.join("cluster"),
            members: Vec::new(),
            file: home.join("registry"),
            random: [7; 24],
            now_s: 100,
        };
        init(&plan).unwrap()
    }

    #[test]
    fn a_node_joins_once_by_a_token() {
        let home = tempfile::tempdir().unwrap();
        let operator = cluster(home.path());
        let text = issue_token(&operator, [1; 16], (100, 50)).unwrap();
        let token = JoinToken::read(&format!("  {text}\n")).unwrap();
        let place = |name: &str| home.path().join(name);
        let join_as = |name: &str, now_s| join(&token, &place(name), (name, None), now_s);
        let late = join_as("late", 150).unwrap_err().to_string();
        assert!(late.contains("has expired"), "{late}");
        join_as("io1", 120).unwrap();
        let again = join_as("io1", 120).unwrap_err().to_string();
        assert!(again.contains("has joined the cluster \"rack\""), "{again}");
        let second = join_as("io2", 120).unwrap_err().to_string();
        assert!(second.contains("node \"io1\" has used this token"), "{second}");
        // A join that was cut off before its end is repeated.
        std::fs::remove_file(place("io1").join("joined")).unwrap();
        join_as("io1", 120).unwrap();
        let other = tempfile::tempdir().unwrap();
        // Another cluster of the same name.
        let plan_of_another = ClusterPlan {
            name: "rack".to_owned(),
            directory: other.path().join("cluster"),
            members: Vec::new(),
            file: other.path().join("registry"),
            random: [8; 24],
            now_s: 100,
        };
        let foreign = issue_token(&init(&plan_of_another).unwrap(), [2; 16], (100, 50)).unwrap();
        let foreign = JoinToken::read(&foreign).unwrap();
        let error = join(&foreign, &place("io1"), ("io1", None), 120).unwrap_err().to_string();
        for id in [&operator.file().id, &foreign.id] {
            assert!(error.contains(&format!("\"rack\" with the id {id}")), "{error}");
        }
    }

    #[test]
    fn a_text_that_is_no_token_is_refused_wherever_it_is_cut() {
        let home = tempfile::tempdir().unwrap();
        let text = issue_token(&cluster(home.path()), [1; 16], (100, 50)).unwrap();
        for end in 0..text.len() {
            let error = JoinToken::read(&text[..end]).unwrap_err().to_string();
            assert!(error.contains("this is no token"), "{end}: {error}");
        }
        let mut hostile = JoinToken::read(&text).unwrap();
        hostile.name = "\u{1b}[2J".to_owned();
        assert!(JoinToken::read(&hostile.text()).unwrap_err().to_string().contains("is no name"));
        for bad in ["vrio2.AAAA", "vrio1.%%", "vrio1.e30", &"x".repeat(TOKEN_BYTES_MAX + 1)] {
            assert!(JoinToken::read(bad).is_err());
        }
        let registry = std::fs::read_to_string(home.path().join("registry/registry")).unwrap();
        let token = JoinToken::read(&text).unwrap();
        assert!(!registry.contains(&token.secret), "the registry has a digest");
        assert!(!format!("{token:?}").contains(&token.secret));
    }
}
