//! Volumes of pools as a node opens them: found, made, copied from a snapshot, or absent.

use super::*;
use crate::backend::{BackendConfig, BackendVolume};
use crate::stage::VolumeKey;

fn backend(size_bytes: Option<u64>, from: Option<&str>) -> BackendConfig {
    let from = from.map(str::to_owned);
    StoreBackend {
        pool: "p".to_owned(),
        size_bytes,
        from,
        key: None,
        compression: None,
        reservation_bytes: None,
        limit_bytes: None,
        history: None,
    }
    .into()
}

fn compressed(compression: &str) -> BackendConfig {
    let compression = Some(compression.parse().expect("a compression"));
    let (pool, size_bytes, from, key) = ("p".to_owned(), Some(1 << 20), None, None);
    let (reservation_bytes, limit_bytes, history) = (None, None, None);
    StoreBackend {
        pool,
        size_bytes,
        from,
        key,
        compression,
        reservation_bytes,
        limit_bytes,
        history,
    }
    .into()
}

fn open_as(
    pools: &Pools,
    name: &str,
    backend: &BackendConfig,
) -> Result<Box<dyn BackendVolume>, String> {
    open_with(pools, name, backend, None)
}

fn open_with(
    pools: &Pools,
    name: &str,
    backend: &BackendConfig,
    key: Option<Result<&VolumeKey, &str>>,
) -> Result<Box<dyn BackendVolume>, String> {
    let (durability, topology) = (Durability::Flush, Topology::default());
    let (read_only, is_new) = (false, true);
    let opening = Opening { name, pools, durability, read_only, topology, is_new, key };
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

fn key(byte: u8) -> VolumeKey {
    let mut bytes = [byte; VolumeKey::BYTES];
    bytes[0] = 0xff;
    VolumeKey::from_bytes(&bytes).expect("two different halves")
}

#[test]
fn an_encrypted_volume_is_closed_without_its_key_and_with_another() {
    let Some(home) = Home::new("an_encrypted_volume_is_closed_without_its_key") else { return };
    let pools = Pools::default();
    let paths = home.create(&["a"], POOL_BYTES);
    let pool = open(&paths);
    pools.insert("p", Ok(Arc::clone(&pool)));
    let backend = |from: Option<&str>| {
        let (size_bytes, from) = (Some(1 << 20), from.map(str::to_owned));
        let key = Some("/the/node/reads/it".into());
        BackendConfig::from(StoreBackend {
            pool: "p".to_owned(),
            size_bytes,
            from,
            key,
            compression: None,
            reservation_bytes: None,
            limit_bytes: None,
            history: None,
        })
    };
    let opened = |name: &str, from, key: Option<&VolumeKey>| {
        open_with(&pools, name, &backend(from), key.map(Ok))
    };
    let text: Vec<u8> = b"a secret of the guest, ".iter().copied().cycle().take(8192).collect();
    let (right, wrong) = (key(1), key(2));
    let volume = opened("v", None, Some(&right)).expect("made");
    let id = volume.in_pool().expect("of a pool").1;
    assert_eq!(ChannelBench::new(&*volume, 4).write(4096, &text), Status::Done);
    let snapshot = PoolChange::Snapshot { volumes: vec![id], name: "s".into(), at_s: 0 };
    pool.change(snapshot).expect("a snapshot");
    drop(volume);
    pool.close();
    drop(pool);
    let medium = std::fs::read(&paths[0]).expect("the pool's file");
    assert!(!medium.windows(16).any(|part| part == &text[..16]), "the medium has it in clear");

    let pool = open(&paths);
    pools.insert("p", Ok(Arc::clone(&pool)));
    let why = |key| opened("v", None, key).expect("it is there").absent().expect("it is closed");
    assert!(why(None).contains(&right.check()), "{}", why(None));
    let other = why(Some(&wrong));
    assert!(other.contains(&right.check()) && other.contains(&wrong.check()), "{other}");
    let missing = open_with(&pools, "v", &backend(None), Some(Err("no such file")));
    let missing = missing.expect("it is there").absent().expect("it is closed");
    assert!(missing.contains("no such") && missing.contains(&right.check()), "{missing}");
    assert!(opened("w", Some("v@s"), None).expect_err("a clone").contains("is encrypted"));

    // The key opens the volume and a clone beside it.
    for (name, from) in [("v", None), ("w", Some("v@s"))] {
        let volume = opened(name, from, Some(&right)).expect("it opens");
        assert_eq!(volume.absent(), None);
        assert_eq!(ChannelBench::new(&*volume, 4).read(4096, text.len()).as_ref(), Ok(&text));
    }
    // Other keys: the wrapping key at once, the data key while it is used.
    pool.change_key(id, &wrong).expect("another wrapping key");
    pool.change_data_key(id, &wrong).expect("another data key");
    assert!(pool.change_data_key(id, &right).is_err(), "the old wrapping key has no more power");
    let volume = opened("v", None, Some(&wrong)).expect("it opens");
    assert_eq!(ChannelBench::new(&*volume, 4).read(4096, text.len()), Ok(text));
    assert!(opened("v", None, Some(&right)).expect("there").absent().is_some());
    let plain = open_as(&pools, "x", &self::backend(Some(1 << 20), None)).expect("made");
    assert_eq!(plain.absent(), None);
}
