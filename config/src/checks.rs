//! Parts that the checks of several kinds of objects share: the rest of the configuration, as far
//! as an object must fit to it, and two checks.

use std::collections::HashMap;
use std::path::Path;

use crate::reader::{Lines, Reader};
use crate::sections::SOCKET_PATH_BYTES_MAX;

/// The rest of a configuration, as far as an object must fit to it. The kinds know each other by
/// the names of their tables only.
#[derive(Debug)]
pub struct Surroundings<'c> {
    /// The node's name.
    pub(crate) node: &'c str,
    /// Each object of the configuration could be read.
    pub(crate) is_whole: bool,
    /// The node has an address.
    pub(crate) is_listening: bool,
    /// Sessions are meant to be sealed.
    pub(crate) is_sealed: bool,
    /// The node is in a cluster.
    pub(crate) is_in_cluster: bool,
    pub(crate) control: &'c Path,
    pub(crate) fabric: &'c Path,
    pub(crate) shm: Option<&'c Path>,
    /// By kind, the objects' names.
    pub(crate) names: HashMap<&'static str, Vec<&'c str>>,
    /// By kind, the objects' sockets.
    pub(crate) sockets: HashMap<&'static str, Vec<&'c Path>>,
}

impl<'c> Surroundings<'c> {
    /// The names of the objects of a kind, in the order of the file.
    pub(crate) fn names(&self, kind: &str) -> &[&'c str] {
        self.names.get(kind).map_or(&[], Vec::as_slice)
    }

    /// Whether there is such an object.
    pub(crate) fn has(&self, kind: &str, name: &str) -> bool {
        self.names(kind).contains(&name)
    }

    /// Whether an object of this kind has the socket.
    pub(crate) fn is_socket_of(&self, kind: &str, path: &Path) -> bool {
        self.sockets.get(kind).is_some_and(|sockets| sockets.contains(&path))
    }
}

pub(crate) fn unique<'c>(
    reader: &Reader<'_>,
    kind: &str,
    key: &str,
    objects: impl Iterator<Item = (&'c str, &'c Lines)>,
) {
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for (word, lines) in objects {
        if let Some(first) = seen.insert(word, lines.of(key)) {
            let text = match first {
                // The object was added by a command.
                0 => format!("{key:?}: another {kind} has the same {key}"),
                first => format!("{key:?}: the {kind} of line {first} has the same {key}"),
            };
            reader.note(lines.of(key), &format!("{kind} {word:?}"), text);
        }
    }
}

pub(crate) fn socket_length(reader: &Reader<'_>, path: &Path, object: &str, line: usize) {
    let length = path.as_os_str().len();
    if length > SOCKET_PATH_BYTES_MAX {
        let text = format!(
            "the socket's path {path:?} has {length} bytes, and the system takes at most \
             {SOCKET_PATH_BYTES_MAX}; use a shorter directory or name"
        );
        reader.note(line, object, text);
    }
}
