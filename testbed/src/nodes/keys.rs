//! Keys for nodes of tests and of the demo, and the lines of a configuration that name them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use node::keys::{self, KeyKind};

/// The name of the attachment's key.
const TENANT: &str = "tenant";

/// Keys of some nodes and of one tenant, or no keys. Without keys the nodes' sessions are plain,
/// and every text here is the part of a plain configuration in its place.
#[derive(Clone, Debug, Default)]
pub struct NodeKeys {
    folder: PathBuf,
    /// Public halves by name; empty for plain sessions.
    public: BTreeMap<String, String>,
}

impl NodeKeys {
    /// A set without keys.
    pub fn plain() -> Self {
        Self::default()
    }

    /// Makes a key for each of these nodes, and one for a tenant, in an existing folder.
    ///
    /// # Errors
    /// When a key cannot be made.
    pub fn make(folder: &Path, nodes: &[&str]) -> Result<Self> {
        let mut made = Self { folder: folder.to_owned(), public: BTreeMap::new() };
        let nodes = nodes.iter().map(|node| (*node, KeyKind::Node));
        for (name, kind) in nodes.chain([(TENANT, KeyKind::Attachment)]) {
            let key = keys::create(&made.file(name), kind).context("making a key")?;
            made.public.insert(name.to_owned(), key.public());
        }
        Ok(made)
    }

    /// Whether there are keys.
    pub fn is_sealed(&self) -> bool {
        !self.public.is_empty()
    }

    /// A line for the top of a node's configuration.
    pub fn own(&self, node: &str) -> String {
        self.line(|| format!("key = {:?}\n", self.file(node)))
    }

    /// A line for a `[[peer]]` that has a name already.
    pub fn peer(&self, node: &str) -> String {
        self.line(|| format!("key = {:?}\n", self.public[node]))
    }

    /// The same for a peer that has several keys: a line with the keys of these names.
    pub fn peer_with(&self, names: &[&str]) -> String {
        self.line(|| {
            let keys: Vec<_> = names.iter().map(|name| &self.public[*name]).collect();
            format!("keys = {keys:?}\n")
        })
    }

    /// The public half of a node's key.
    ///
    /// # Panics
    /// When there is no key of that name.
    pub fn public(&self, node: &str) -> &str {
        &self.public[node]
    }

    /// Whole tables of peers that only use this node's volumes.
    pub fn clients(&self, nodes: &[&str]) -> String {
        nodes.iter().fold(String::new(), |mut text, node| {
            let table = self.line(|| format!("[[peer]]\nname = {node:?}\n{}", self.peer(node)));
            text.push_str(&table);
            text
        })
    }

    /// The lines for a `[[volume]]`: the tenant's disks on these nodes may use it; without keys all
    /// disks may.
    pub fn allow(&self, nodes: &[&str]) -> String {
        let mut entries = String::new();
        for node in nodes {
            match self.public.get(TENANT) {
                Some(key) => write!(entries, "{{ node = {node:?}, key = {key:?} }}, "),
                None => write!(entries, "{node:?}, "),
            }
            .expect("to a string");
        }
        format!("allow = [{}]\n", entries.trim_end_matches(", "))
    }

    /// The line for a `[[disk]]` of the tenant.
    pub fn disk(&self) -> String {
        self.line(|| format!("attachment-key = {:?}\n", self.file(TENANT)))
    }

    /// The file of the tenant's key.
    pub fn tenant_file(&self) -> PathBuf {
        self.file(TENANT)
    }

    fn line(&self, text: impl FnOnce() -> String) -> String {
        if self.is_sealed() { text() } else { String::new() }
    }

    /// The file of a node's key.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.key"))
    }
}
