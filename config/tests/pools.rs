//! `[[pool]]`, and volumes that are cut from pools.

use std::path::{Path, PathBuf};

use config::{Config, changes};
use expect_test::expect;

use crate::files::check;

const POOLS: &str = r#"
name = "io1"
[directories]
volumes = ["/v", "/dev"]
[[pool]]
name = "p"
devices = ["p.pool", "/dev/sdb"]
memory = "128MiB"
log = "2GiB"
[[volume]]
name = "a"
backend = { pool = "p", size = "20GiB" }
[[volume]]
name = "b"
backend = { pool = "p", from = "a@v1" }
"#;

#[test]
fn volumes_are_cut_from_pools() {
    let config = Config::parse(Path::new("a.toml"), POOLS).expect("this is fine");
    let [pool] = &config.pools[..] else { panic!("{:?}", config.pools) };
    assert_eq!(pool.devices, [PathBuf::from("/v/p.pool"), PathBuf::from("/dev/sdb")]);
    assert_eq!((pool.memory_bytes, pool.log_bytes), (128 << 20, 2 << 30));
    let of_pool: Vec<_> = config.volumes.iter().map(|volume| volume.backend.pool()).collect();
    let sizes: Vec<_> = of_pool.iter().flatten().map(|pool| pool.size_bytes).collect();
    assert_eq!(sizes, [Some(20 << 30), None]);
    let grown = POOLS.replace("20GiB", "30GiB");
    let grown = Config::parse(Path::new("a.toml"), &grown).expect("this is fine");
    let texts: Vec<_> = changes(&config, &grown).iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["resize volume \"a\" to 30GiB"]);
    // The key says how it is made, and the size the least that it has.
    let made = POOLS.replace(", from = \"a@v1\"", "").replace("20GiB", "10GiB");
    let made = Config::parse(Path::new("a.toml"), &made).expect("this is fine");
    assert!(changes(&config, &made).is_empty(), "{:?}", changes(&config, &made));
    let packed = POOLS.replace("\"20GiB\"", "\"20GiB\", compression = \"zstd:3\"");
    let packed = Config::parse(Path::new("a.toml"), &packed).expect("this is fine");
    let texts: Vec<_> = changes(&config, &packed).iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["change volume \"a\": the compression is now zstd:3"]);
    // Without the key the volume keeps the compression that it has.
    assert!(changes(&packed, &config).is_empty(), "{:?}", changes(&packed, &config));
    let shared = POOLS.replace("log =", "deduplication = true\nlog =");
    let shared = Config::parse(Path::new("a.toml"), &shared).expect("this is fine");
    let texts: Vec<_> = changes(&config, &shared).iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["change pool \"p\": deduplication is now on, with 64MiB of memory"]);
    let texts: Vec<_> = changes(&shared, &config).iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["change pool \"p\": deduplication is now off"]);
    let classed = POOLS.replace("log =", "class = \"ssd\"\nlog =");
    let classed = Config::parse(Path::new("a.toml"), &classed).expect("this is fine");
    let texts: Vec<_> = changes(&config, &classed).iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["change pool \"p\": its class is now ssd"]);
    // The memory of an index that is off makes no change.
    let memory = POOLS.replace("log =", "deduplication-memory = \"1GiB\"\nlog =");
    let memory = Config::parse(Path::new("a.toml"), &memory).expect("this is fine");
    assert!(changes(&config, &memory).is_empty(), "{:?}", changes(&config, &memory));
    assert_eq!(
        (memory.pools[0].dedup_bytes(), shared.pools[0].dedup_bytes()),
        (None, Some(64 << 20))
    );
    let moved = POOLS.replace("/dev/sdb", "/dev/sdc");
    let moved = Config::parse(Path::new("a.toml"), &moved).expect("this is fine");
    let texts: Vec<_> = changes(&config, &moved).iter().map(ToString::to_string).collect();
    let wanted = [
        "remove volume \"a\", to add it again below (its pool changed)",
        "remove volume \"b\", to add it again below (its pool changed)",
        "remove pool \"p\", to add it again below (devices changed)",
        "add pool \"p\"",
        "add volume \"a\"",
        "add volume \"b\"",
    ];
    assert_eq!(texts, wanted);
}

#[test]
fn pools_are_checked() {
    check(
        r#"
name = "io1"
[directories]
volumes = "/v"
[[pool]]
name = "none"
devices = []
[[pool]]
name = "out"
devices = ["/etc/p"]
[[pool]]
name = "small"
devices = ["s"]
memory = "1MiB"
log = "1TiB"
[[volume]]
name = "a"
backend = { pool = "small", size = "1000KiB" }
[[volume]]
name = "b"
backend = { pool = "small", size = "1536B" }
[[volume]]
name = "c"
backend = { pool = "small", from = "golden" }
[[volume]]
name = "d"
backend = { pool = "small", size = "1GiB", compression = "zstd:10" }
"#,
        &expect![[r#"
            a.toml:7: pool "none": "devices": a pool has from 1 to 16 devices, and these
                are 0
            a.toml:10: pool "out": "devices", entry 1: "/etc/p" is outside the
                directories that "volumes" names (/v); put it there, or add its
                directory: volumes = ["..", "/etc"]
            a.toml:14: pool "small": "memory": it must be from 4MiB to 1TiB
            a.toml:15: pool "small": "log": it must be from 16MiB to 64GiB
            a.toml:21: volume "b": "size": 1.5KiB: a volume of a pool has whole blocks of
                4096 bytes; round it
            a.toml:24: volume "c": "from": "golden" names no snapshot; write
                VOLUME@SNAPSHOT or POOL:NUMBER
            a.toml:27: volume "d": "compression": "zstd:10" is no compression: lz4, or
                zstd:LEVEL with a level from 1 to 9; or none
        "#]],
    );
}

#[test]
fn pools_do_not_share_devices() {
    check(
        r#"
name = "io1"
[directories]
volumes = "/v"
[[pool]]
name = "p"
devices = ["a", "b", "a"]
[[pool]]
name = "q"
devices = ["b", "c"]
[[volume]]
name = "v"
backend = { file = "c" }
[[volume]]
name = "w"
backend = { pool = "r", size = "1GiB" }
"#,
        &expect![[r#"
            a.toml:7: pool "p": "devices": "/v/a" is named twice; keep one
            a.toml:10: pool "q": "devices": "/v/b" is a device of pool "p"; keep one of
                the two
            a.toml:10: pool "q": "devices": "/v/c" is the file of volume "v"; a pool
                needs files or devices of its own
            a.toml:16: volume "w": "backend": this node has no pool "r" (there are p, q);
                make one with `vrio pool create FILE` and add [[pool]] name = "r",
                devices = ["FILE"]
        "#]],
    );
}
