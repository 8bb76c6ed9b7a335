//! The cache of a disk whose volume is another node's.

use cache::CachePlan;
use volume::settings::show_size;

use crate::key_table::{SettingKey, key};
use crate::reader::Value;
use crate::values::name;

/// The least cache: less would be emptied before it is used twice.
const BYTES_MIN: u64 = 16 << 20;

/// The largest cache: far above any pool.
const BYTES_MAX: u64 = 1 << 50;

/// The unit of a pool.
const BLOCK_BYTES: u64 = 4096;

/// The cache of a disk in words, for people.
pub(crate) fn show_cache(cache: Option<&CachePlan>) -> String {
    cache.map_or_else(|| "none".to_owned(), ToString::to_string)
}

/// The keys of a cache.
pub(crate) const CACHE_KEYS: [SettingKey; 3] = [
    key("pool", "The [pool](#pool) of this node that has the cached blocks."),
    key(
        "size",
        "The space of the cache, at least 16MiB. It is reserved: the pool refuses it if it has not \
         so much free, and writes of others never wait because of a cache.",
    ),
    key(
        "mode",
        "`\"read\"` (default): a write completes when the volume's node has it, and the loss of \
         the cache loses nothing. No other mode is there yet.",
    ),
];

/// Reads the cache of a disk.
pub(crate) fn cache(value: &Value<'_, '_>) -> Option<CachePlan> {
    let example = "{ pool = \"local\", size = \"20GiB\" }";
    let table = value.table_of(&CACHE_KEYS)?;
    let pool = table.require("pool", example).and_then(|value| name(&value));
    let size_bytes = table.require("size", example).and_then(|value| {
        let bytes = value.size_bytes()?;
        if !(BYTES_MIN..=BYTES_MAX).contains(&bytes) {
            let (least, most) = (show_size(BYTES_MIN), show_size(BYTES_MAX));
            value.fail(format!("a cache has from {least} to {most}"));
            return None;
        }
        Some(bytes - bytes % BLOCK_BYTES)
    });
    if let Some(mode) = table.get("mode") {
        let text = mode.str()?;
        if text != "read" {
            mode.fail(format!(
                "{text:?} is no mode of a cache: the only one is \"read\", in which a write \
                 completes when the volume's node has it"
            ));
            return None;
        }
    }
    Some(CachePlan { pool: pool?, size_bytes: size_bytes? })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Config;

    #[test]
    fn a_cache_is_read_and_shown() {
        let cache = Config::cache(&json!({ "pool": "p", "size": "20GiB", "mode": "read" }));
        let wanted = CachePlan { pool: "p".to_owned(), size_bytes: 20 << 30 };
        assert_eq!(cache, Ok(Some(wanted.clone())));
        assert_eq!(show_cache(Some(&wanted)), "20GiB of pool \"p\"");
        assert_eq!(Config::cache(&json!({})), Ok(None));
        assert_eq!(show_cache(None), "none");
    }

    #[test]
    fn a_wrong_cache_is_refused_with_a_reason() {
        for (cache, why) in [
            (json!({ "pool": "p" }), "size"),
            (json!({ "size": "1GiB" }), "pool"),
            (json!({ "pool": "p", "size": "1MiB" }), "from 16MiB"),
            (json!({ "pool": "p", "size": "1GiB", "mode": "write-back" }), "the only one"),
            (json!({ "pool": "p", "size": "1GiB", "keep": 1 }), "keep"),
        ] {
            let problems = Config::cache(&cache).expect_err("it is wrong");
            assert!(problems.iter().any(|it| it.text.contains(why)), "{problems:?}");
        }
    }
}
