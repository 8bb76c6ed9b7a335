//! Names of volumes in a pool that a node makes for itself. It finds them by their names, so no
//! user makes a volume with such a name.

/// Their beginnings: caches of remote volumes, writes that wait in such a cache, and writes that
/// were kept aside.
const OWN_NAMES: [&str; 3] = ["cache.", "dirty.", "rest."];

/// Looks whether a user may make a volume of this name.
///
/// # Errors
/// Why not, and the way out.
pub(super) fn check_new_name(name: &str) -> Result<(), String> {
    match OWN_NAMES.iter().find(|beginning| name.starts_with(**beginning)) {
        None => Ok(()),
        Some(beginning) => Err(format!(
            "names that begin with {beginning:?} are for volumes that a node makes for its disks' \
             caches: give the volume another name than {name:?}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_caches_are_no_names_for_users() {
        for name in ["cache.alice", "dirty.alice.1.2", "rest.alice.1", "cache."] {
            let error = check_new_name(name).expect_err(name);
            assert!(error.contains("another name"), "{error}");
        }
        for name in ["cache", "caches.alice", "alice.cache", "rest"] {
            assert_eq!(check_new_name(name), Ok(()));
        }
    }
}
