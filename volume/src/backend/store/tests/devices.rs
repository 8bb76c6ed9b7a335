//! Devices that are not what a pool needs: each is an error with a name.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use super::*;

fn copy_header(from: &Path, to: &Path) {
    let mut header = vec![0; 16 * BLOCK_BYTES];
    File::open(from).expect("there").read_exact_at(&mut header, 0).expect("long enough");
    let to = OpenOptions::new().write(true).open(to).expect("there");
    to.write_all_at(&header, 0).expect("room");
}

fn error_of(paths: &[PathBuf]) -> StorePoolError {
    try_open(paths).expect_err("this is no whole pool")
}

#[test]
fn a_pool_is_opened_once_and_its_devices_come_in_any_order() {
    let Some(home) = Home::new("a_pool_is_opened_once") else { return };
    let mut paths = home.create(&["a", "b", "c"], 16 << 20);
    let pool = open(&paths);
    let id = make_volume(&pool, "v", 1 << 20);
    assert_eq!(ChannelBench::new(&volume(&pool, id), 4).write(0, &[5; 4096]), Status::Done);
    let second = error_of(&paths).to_string();
    assert!(second.contains("locked by") && second.contains("stop that server"), "{second}");
    pool.close();
    paths.rotate_left(1);
    let pool = open(&paths);
    let read = ChannelBench::new(&volume(&pool, id), 4).read(0, 4096);
    assert_eq!(read, Ok(vec![5; 4096]));
}

#[test]
fn paths_that_are_not_one_whole_pool_are_refused_by_name() {
    let Some(home) = Home::new("paths_that_are_not_one_whole_pool") else { return };
    let paths = home.create(&["a", "b"], 16 << 20);
    let other = home.create(&["c", "d"], 16 << 20);
    let (a, b) = (paths[0].clone(), paths[1].clone());
    assert!(matches!(error_of(&[]), StorePoolError::Count { count: 0 }));
    let gone = home.path("gone");
    let error = error_of(&[a.clone(), gone.clone()]);
    assert!(matches!(&error, StorePoolError::Missing { path } if *path == gone), "{error}");
    let error = error_of(&[a.clone(), a.clone()]);
    assert!(matches!(&error, StorePoolError::Twice { .. }), "{error}");
    let linked = home.path("linked");
    fs::hard_link(&a, &linked).expect("a link");
    let error = error_of(&[a.clone(), linked]);
    assert!(matches!(&error, StorePoolError::Twice { .. }), "{error}");
    let error = error_of(&paths[1..]);
    assert!(error.to_string().contains("not named: number 0"), "{error}");
    let error = error_of(&[a.clone(), other[1].clone()]);
    assert!(matches!(&error, StorePoolError::Foreign { path, .. } if *path == other[1]), "{error}");
    let copied = home.path("copied");
    fs::copy(&a, &copied).expect("room");
    let error = error_of(&[a.clone(), copied]);
    assert!(matches!(&error, StorePoolError::Copy { .. }), "{error}");
    let empty = home.path("empty");
    File::create(&empty).expect("a file").set_len(16 << 20).expect("room");
    let error = error_of(&[empty.clone(), b]);
    assert!(matches!(&error, StorePoolError::NoPool { .. }), "{error}");
    let error = error_of(&[empty]);
    assert!(matches!(&error, StorePoolError::NoPool { .. }), "{error}");
}

/// A device may be named before it joins, and a crash may come while it does.
#[test]
fn a_device_without_a_superblock_is_passed_over_if_the_pool_is_whole_without_it() {
    let Some(home) = Home::new("a_device_without_a_superblock") else { return };
    let paths = home.create(&["a", "b"], 16 << 20);
    let [empty, torn] = ["empty", "torn"].map(|name| home.path(name));
    File::create(&empty).expect("a file").set_len(16 << 20).expect("room");
    fs::copy(&paths[1], &torn).expect("room");
    let file = OpenOptions::new().write(true).open(&torn).expect("there");
    for block in [0, 4, 8, 12] {
        file.write_all_at(&[0x55; 64], block * BLOCK_BYTES as u64 + 100).expect("written");
    }
    let all = [&[empty, torn][..], &paths].concat();
    let pool = open(&all);
    assert_eq!(pool.status().devices.len(), 2);
    pool.close();
    let error = error_of(&all[..3]);
    assert!(matches!(&error, StorePoolError::NoPool { .. }), "{error}");
}

#[test]
fn a_device_that_is_old_short_or_damaged_is_refused_by_name() {
    let Some(home) = Home::new("a_device_that_is_old_short_or_damaged") else { return };
    let paths = home.create(&["a", "b"], 16 << 20);
    let before = home.path("before");
    fs::copy(&paths[1], &before).expect("room");
    // An opening and a close write a checkpoint each.
    for _ in 0..2 {
        let pool = open(&paths);
        make_volume(&pool, &format!("v{}", pool.volumes().len()), 1 << 20);
        pool.close();
    }
    let error = error_of(&[paths[0].clone(), before]);
    assert!(matches!(&error, StorePoolError::Old { .. }), "{error}");
    let file = OpenOptions::new().write(true).open(&paths[1]).expect("there");
    file.set_len(15 << 20).expect("shorter");
    let error = error_of(&paths);
    assert!(matches!(&error, StorePoolError::Short { path, .. } if *path == paths[1]), "{error}");
    file.set_len(16 << 20).expect("longer");
    drop(open(&paths));
    for block in [0, 4, 8, 12] {
        file.write_all_at(&[0x55; 64], block * BLOCK_BYTES as u64 + 100).expect("written");
    }
    let error = error_of(&paths);
    assert!(matches!(&error, StorePoolError::Superblock { path, .. } if *path == paths[1]));
    assert!(error.to_string().contains("damaged"), "{error}");
    copy_header(&paths[0], &paths[1]);
    let error = error_of(&paths);
    assert!(matches!(&error, StorePoolError::Copy { .. }), "{error}");
}

#[test]
fn a_pool_is_made_only_where_nothing_is_lost() {
    let Some(home) = Home::new("a_pool_is_made_only_where_nothing_is_lost") else { return };
    let refused = |plan: &PoolPlan| StorePool::create(plan).expect_err("it is refused");
    let paths = home.create(&["a"], 16 << 20);
    let again = refused(&plan(&paths, 16 << 20));
    assert!(matches!(&again, StorePoolError::InUse { what: "a pool", .. }), "{again}");
    let pool = open(&paths);
    make_volume(&pool, "v", 1 << 20);
    let force = PoolPlan { force: true, ..plan(&paths, 16 << 20) };
    let in_use = refused(&force).to_string();
    assert!(in_use.contains("locked by"), "{in_use}");
    pool.close();
    StorePool::create(&force).expect("forced");
    assert_eq!(open(&paths).volumes(), []);
    let used = home.path("used");
    fs::write(&used, vec![1; 16 << 20]).expect("room");
    let error = refused(&plan(&[used], 16 << 20));
    assert!(matches!(&error, StorePoolError::InUse { what: "data", .. }), "{error}");
    let fresh = home.path("fresh");
    let small = refused(&plan(std::slice::from_ref(&fresh), 1 << 20));
    assert!(matches!(&small, StorePoolError::Engine { .. }), "{small}");
    assert!(!fresh.exists(), "what was made for it is removed");
    let no_size = PoolPlan { size_bytes: None, ..plan(std::slice::from_ref(&fresh), 0) };
    let error = refused(&no_size);
    assert!(matches!(&error, StorePoolError::NoSize { .. }) && !fresh.exists(), "{error}");
    let odd = PoolPlan { segment_bytes: Some(5000), ..plan(&[fresh], 16 << 20) };
    assert!(matches!(refused(&odd), StorePoolError::Segment { .. }));
}

/// A file as a block device, which needs root.
struct DiskOfFile(String);

impl DiskOfFile {
    fn new(image: &Path) -> Result<Self, String> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(image).output();
        let output = output.map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        match output.status.success() {
            true => Ok(Self(text(&output.stdout))),
            false => Err(text(&output.stderr)),
        }
    }

    fn path(&self) -> PathBuf {
        self.0.clone().into()
    }
}

impl Drop for DiskOfFile {
    fn drop(&mut self) {
        let detached = Command::new("losetup").args(["--detach", &self.0]).status();
        assert!(detached.is_ok_and(|status| status.success()), "{} stays behind", self.0);
    }
}

#[test]
fn a_pool_on_a_block_device_and_a_file_holds_both() {
    let test = "a_pool_on_a_block_device_and_a_file_holds_both";
    let Some(home) = Home::new(test) else { return };
    let image = home.path("image");
    File::create(&image).expect("a file").set_len(16 << 20).expect("room");
    let device = match DiskOfFile::new(&image) {
        Ok(device) => device,
        Err(why) => return println!("SKIP {test}: no loop device here: {why}"),
    };
    let paths = vec![device.path(), home.path("file")];
    // The size is the file's: a device has its own.
    StorePool::create(&plan(&paths, 24 << 20)).unwrap_or_else(|error| panic!("{error}"));
    let pool = open(&paths);
    let volume = volume(&pool, make_volume(&pool, "v", 8 << 20));
    contract::check_all(&volume);
    let error = error_of(&paths).to_string();
    assert!(error.contains(&device.0) && error.contains("in use by"), "{error}");
    drop(volume);
    pool.close();
    drop(pool);
    let in_use = StorePool::create(&plan(&paths[..1], 0)).expect_err("there is a pool");
    assert!(matches!(in_use, StorePoolError::InUse { .. }), "{in_use}");
}

/// A write to such a device could be acknowledged, and be lost with the map above it.
#[test]
fn a_device_that_is_cut_while_it_is_used_fails_its_pool() {
    let Some(home) = Home::new("a_device_that_is_cut") else { return };
    let paths = home.create(&["a"], 16 << 20);
    let pool = open(&paths);
    let id = make_volume(&pool, "v", 1 << 20);
    let volume = volume(&pool, id);
    let mut bench = ChannelBench::new(&volume, 4);
    assert_eq!(bench.write(0, &[5; 4096]), Status::Done);
    let file = OpenOptions::new().write(true).open(&paths[0]).expect("there");
    file.set_len(64 << 10).expect("shorter");
    assert_eq!(bench.read(0, 4096).map(|_| ()), Err(Status::Error));
    let failed = pool.status().failed.expect("it is seen");
    assert!(failed.contains("shorter than the pool"), "{failed}");
    assert_eq!(bench.write(0, &[6; 4096]), Status::Error);
    file.set_len(16 << 20).expect("longer");
}
