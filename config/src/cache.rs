//! The cache of a disk whose volume is another node's.

use cache::{CachePlan, WriteBackPlan};
use volume::settings::show_size;

use crate::key_table::{SettingKey, key};
use crate::reader::{TableReader, Value};
use crate::values::name;

/// The least cache: less would be emptied before it is used twice.
const BYTES_MIN: u64 = 16 << 20;

/// The largest cache: far above any pool.
const BYTES_MAX: u64 = 1 << 50;

/// The least bound of the dirty bytes: less would make most writes go to the volume's node.
const DIRTY_BYTES_MIN: u64 = 1 << 20;

/// The bound of the dirty bytes, without the key.
const DIRTY_BYTES_DEFAULT: u64 = 1 << 30;

/// The age at which writes are sent, without the key.
const DIRTY_AGE_DEFAULT_NS: u64 = 30_000_000_000;

/// The longest such age: a day.
const DIRTY_AGE_MAX_NS: u64 = 86_400_000_000_000;

/// The unit of a pool.
const BLOCK_BYTES: u64 = 4096;

/// The cache of a disk in words, for people.
pub(crate) fn show_cache(cache: Option<&CachePlan>) -> String {
    cache.map_or_else(|| "none".to_owned(), ToString::to_string)
}

/// The keys of a cache.
pub(crate) const CACHE_KEYS: [SettingKey; 5] = [
    key("pool", "The [pool](#pool) of this node that has the cached blocks."),
    key(
        "size",
        "The space of the cache, at least 16MiB. It is reserved: the pool refuses it if it has not \
         so much free, and writes of others never wait because of a cache.",
    ),
    key(
        "mode",
        "`\"read\"` (default): a write completes when the volume's node has it, and the loss of \
         the cache loses nothing. `\"write-back\"`: [a write completes when the pool has \
         it](pools.md#write-back), and if this host is lost with its pool, writes are lost.",
    ),
    key(
        "dirty",
        "With write-back: the most that the volume's node may not have. Default 1GiB. It is \
         reserved in the pool, beside `size`.",
    ),
    key(
        "dirty-age",
        "With write-back: the time after which a write is sent to the volume's node. Default \
         `\"30s\"`.",
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
    let write_back = write_back(&table)?;
    Some(CachePlan { pool: pool?, size_bytes: size_bytes?, write_back })
}

/// Reads the keys about writes; `None` for a mistake.
fn write_back(table: &TableReader<'_, '_>) -> Option<Option<WriteBackPlan>> {
    let mode = table.get("mode");
    let is_on = match &mode {
        None => false,
        Some(mode) => match mode.str()? {
            "read" => false,
            "write-back" => true,
            text => {
                mode.fail(format!(
                    "{text:?} is no mode of a cache: write \"read\" or \"write-back\""
                ));
                return None;
            }
        },
    };
    let (dirty, age) = (table.get("dirty"), table.get("dirty-age"));
    if let Some(value) = dirty.as_ref().or(age.as_ref()).filter(|_| !is_on) {
        value.fail("nothing is dirty without mode = \"write-back\"".to_owned());
        return None;
    }
    let dirty_bytes = match &dirty {
        None => DIRTY_BYTES_DEFAULT,
        Some(value) => value.size_bytes()?,
    };
    let age_ns = match &age {
        None => DIRTY_AGE_DEFAULT_NS,
        Some(value) => value.duration_ns()?,
    };
    if !(DIRTY_BYTES_MIN..=BYTES_MAX).contains(&dirty_bytes) {
        let (least, most) = (show_size(DIRTY_BYTES_MIN), show_size(BYTES_MAX));
        dirty.as_ref()?.fail(format!("from {least} to {most} may be dirty"));
        return None;
    }
    if age_ns > DIRTY_AGE_MAX_NS {
        age.as_ref()?.fail("writes are sent after a day at the latest".to_owned());
        return None;
    }
    Some(is_on.then_some(WriteBackPlan { dirty_bytes, age_ns }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Config;

    #[test]
    fn a_cache_is_read_and_shown() {
        let cache = Config::cache(&json!({ "pool": "p", "size": "20GiB", "mode": "read" }));
        let wanted = CachePlan { pool: "p".to_owned(), size_bytes: 20 << 30, write_back: None };
        assert_eq!(cache, Ok(Some(wanted.clone())));
        assert_eq!(show_cache(Some(&wanted)), "20GiB of pool \"p\"");
        let cache =
            json!({ "pool": "p", "size": "20GiB", "mode": "write-back", "dirty-age": "5s" });
        let write_back = WriteBackPlan { dirty_bytes: 1 << 30, age_ns: 5_000_000_000 };
        let wanted = CachePlan { write_back: Some(write_back), ..wanted };
        assert_eq!(Config::cache(&cache), Ok(Some(wanted)));
        assert_eq!(Config::cache(&json!({})), Ok(None));
        assert_eq!(show_cache(None), "none");
    }

    #[test]
    fn a_wrong_cache_is_refused_with_a_reason() {
        for (cache, why) in [
            (json!({ "pool": "p" }), "size"),
            (json!({ "size": "1GiB" }), "pool"),
            (json!({ "pool": "p", "size": "1MiB" }), "from 16MiB"),
            (json!({ "pool": "p", "size": "1GiB", "mode": "write" }), "is no mode"),
            (json!({ "pool": "p", "size": "1GiB", "dirty": "1GiB" }), "nothing is dirty"),
            (
                json!({ "pool": "p", "size": "1GiB", "mode": "write-back", "dirty": "4KiB" }),
                "from 1MiB",
            ),
            (json!({ "pool": "p", "size": "1GiB", "keep": 1 }), "keep"),
        ] {
            let problems = Config::cache(&cache).expect_err("it is wrong");
            assert!(problems.iter().any(|it| it.text.contains(why)), "{problems:?}");
        }
    }
}
