//! Volumes of pools as a node opens them: found, made, copied from a snapshot, or absent.

use super::*;
use crate::backend::{BackendConfig, BackendVolume};

fn backend(size_bytes: Option<u64>, from: Option<&str>) -> BackendConfig {
    let from = from.map(str::to_owned);
    StoreBackend {
        pool: "p".to_owned(),
        size_bytes,
        from,
        compression: None,
        reservation_bytes: None,
        limit_bytes: None,
    }
    .into()
}

fn compressed(compression: &str) -> BackendConfig {
    let compression = Some(compression.parse().expect("a compression"));
    let (pool, size_bytes, from) = ("p".to_owned(), Some(1 << 20), None);
    StoreBackend { pool, size_bytes, from, compression, reservation_bytes: None, limit_bytes: None }
        .into()
}

fn open_as(
    pools: &Pools,
    name: &str,
    backend: &BackendConfig,
) -> Result<Box<dyn BackendVolume>, String> {
    let (durability, topology) = (Durability::Flush, Topology::default());
    let opening = Opening { name, pools, durability, read_only: false, topology, is_new: true };
    backend.open(&opening, None)
}

#[test]
fn a_volume_is_made_once_grows_and_is_copied_from_a_snapshot() {
    let Some(home) = Home::new("a_volume_is_made_once_grows") else { return };
    let pools = Pools::default();
    let pool = open(&home.create(&["a"], POOL_BYTES));
    pools.insert("p", Ok(Arc::clone(&pool)));
    let refused = |name: &str, backend| open_as(&pools, name, &backend).expect_err("it is refused");
    assert!(refused("v", backend(None, None)).contains("size = "));
    let volume = open_as(&pools, "v", &backend(Some(1 << 20), None)).expect("made");
    let id = volume.in_pool().expect("of a pool").1;
    assert_eq!(ChannelBench::new(&*volume, 4).write(0, &[1; 4096]), Status::Done);
    let grown = open_as(&pools, "v", &backend(Some(2 << 20), None)).expect("there");
    assert_eq!((grown.in_pool().expect("of a pool").1, volume.size().get()), (id, 2 << 20));
    let kept = open_as(&pools, "v", &backend(Some(1 << 20), None)).expect("there");
    assert_eq!(kept.size().get(), 2 << 20, "data beyond the configured size is kept");
    snapshot(&pool, id, "s");
    assert_eq!(ChannelBench::new(&*volume, 4).write(0, &[2; 4096]), Status::Done);
    let copied = open_as(&pools, "w", &backend(Some(3 << 20), Some("v@s"))).expect("copied");
    assert_eq!(copied.size().get(), 3 << 20);
    assert_eq!(ChannelBench::new(&*copied, 4).read(0, 4096), Ok(vec![1; 4096]));
    let none = refused("x", backend(None, Some("v@other")));
    assert!(none.contains("no snapshot \"v@other\""), "{none}");
    let again = volume.info().incarnation;
    assert_eq!(kept.info().incarnation, again, "it is the same volume");
    assert_ne!(copied.info().incarnation, again);
}

#[test]
fn a_volume_has_the_compression_that_was_configured_last() {
    let Some(home) = Home::new("a_volume_has_the_compression") else { return };
    let pools = Pools::default();
    let pool = open(&home.create(&["a"], POOL_BYTES));
    pools.insert("p", Ok(Arc::clone(&pool)));
    let now = || pool.volumes()[0].compression.map(|compression| compression.to_string());
    for (wanted, is) in [
        (backend(Some(1 << 20), None), None),
        (compressed("lz4"), Some("lz4")),
        // A configuration without the key leaves it as it is.
        (backend(None, None), Some("lz4")),
        (compressed("zstd:3"), Some("zstd:3")),
        (compressed("none"), None),
    ] {
        open_as(&pools, "v", &wanted).expect("there");
        assert_eq!(now().as_deref(), is);
    }
}

#[test]
fn a_volume_of_a_pool_that_is_not_open_is_there_and_fails() {
    let pools = Pools::default();
    let unknown = open_as(&pools, "v", &backend(None, None)).expect_err("no such pool");
    assert!(unknown.contains("no pool \"p\""), "{unknown}");
    pools.insert("p", Err("its device is missing".to_owned()));
    let absent = open_as(&pools, "v", &backend(Some(1 << 20), None)).expect("it is there");
    let why = absent.absent().expect("it has no storage");
    assert!(why.contains("its device is missing") && absent.descriptor().is_none());
    // A guest that was there before comes back with the features that it has.
    assert!(absent.info().zeroing.discard && absent.info().zeroing.write_zeroes);
    let mut bench = ChannelBench::new(&*absent, 4);
    assert_eq!(bench.read(0, 4096), Err(Status::Error));
    assert_eq!(bench.write(0, &[1; 4096]), Status::Error);
    bench.abandon();
}
