//! The counters of a cache.

sidecore::counters! {
    /// Counters of one channel of a cached volume. Its sidecore is the only writer.
    pub struct CacheCounters {
        hits: "Reads that the cache has answered.",
        misses: "Reads that went to the remote volume.",
        fills: "Reads from the remote volume whose blocks the cache has kept.",
        fills_skipped: "Reads that the cache did not keep: it was busy or full, or they were long.",
        updates: "Writes whose blocks the cache has kept.",
        drops: "Changes that made the cache give blocks up.",
        evicted_blocks: "Blocks that went because others needed their space.",
        waited: "Changes that waited for the end of another request for the same blocks.",
        redone: "Reads that the cache could not answer after all, and that went on to the volume.",
        errors: "Requests that the cache's pool failed.",
        bytes_copied: "Bytes copied for the cache, besides the copies of the pool.",
    }
}

sidecore::counters! {
    /// Counters of one channel of a volume with write-back. Its sidecore is the only writer.
    pub struct DirtyCounters {
        kept: "Writes that completed in the pool, before the remote volume had them.",
        passed: "Changes that went to the remote volume at once.",
        mixed: "Reads of which a part was dirty.",
        redone: "Reads that were done again, since a dirty block of them became clean.",
        waited: "Changes that waited for the end of another request for the same blocks.",
        sent_bytes: "Bytes of dirty blocks that the remote volume has got.",
        errors: "Requests that the pool or the remote volume failed.",
    }
}
