//! A reader that was written after `docs/store-format.md` alone finds in a pool what the engine
//! wrote to it, after a crash in the middle of everything, and with damaged blocks.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use store::block::{BLOCK_BYTES, Block};
use store::format::{BlockPlace, LogRecord, RowHead, superblock_blocks};
use store::{DeviceChange, VolumeId};

use crate::memory::MemoryDevices;
use crate::pool::{Content, DEVICE_BLOCKS, MediaPool, key_file};

/// The reader of this pool's devices, in a folder of their own.
pub(crate) struct Reader {
    folder: tempfile::TempDir,
    devices: Vec<PathBuf>,
}

impl Reader {
    pub(crate) fn new(devices: &MemoryDevices) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let devices = devices.save(folder.path());
        Self { folder, devices }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reader/vrio_pool.py");
        let key = self.folder.path().join("key");
        std::fs::write(&key, key_file()).unwrap();
        let mut python = Command::new("python3");
        python.arg("-B").arg(script).arg("--key").arg(key).args(arguments).args(&self.devices);
        python.output().unwrap()
    }

    pub(crate) fn list(&self) -> String {
        self.lines("list")
    }

    /// The moments of volumes that are there.
    fn moments(&self) -> String {
        let volumes: Vec<String> = self.list().lines().map(first_word).collect();
        let of_volume = |line: &&str| volumes.contains(&first_word(line));
        let lines = self.lines("moments");
        lines.split_inclusive('\n').filter(of_volume).collect()
    }

    fn lines(&self, command: &str) -> String {
        let output = self.run(&[command]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        let mut lines: Vec<_> = text.split_inclusive('\n').collect();
        lines.sort_unstable();
        lines.concat()
    }

    pub(crate) fn extract(&self, volume: VolumeId) -> Result<Vec<u8>, String> {
        let out = self.folder.path().join("out");
        let output =
            self.run(&["extract", &volume.0.to_string(), out.to_str().expect("a plain path")]);
        match output.status.success() {
            true => Ok(std::fs::read(&out).unwrap()),
            false => Err(String::from_utf8(output.stderr).unwrap()),
        }
    }

    fn check(&self, volume: VolumeId, content: &Content) {
        let image = self.extract(volume).unwrap();
        assert_eq!(image.len(), content.len() * BLOCK_BYTES, "size of {volume:?}");
        for (at, (found, expected)) in image.chunks(BLOCK_BYTES).zip(content).enumerate() {
            let expected = expected.as_ref().map_or(&Block::ZERO, |block| block);
            assert!(found == expected.0, "block {at} of {volume:?} differs");
        }
    }
}

fn first_word(line: &str) -> String {
    line.split(' ').next().unwrap_or_default().to_owned()
}

pub(crate) fn has_python(test: &str) -> bool {
    let mut python = Command::new("python3");
    let ended = python.args(["-c", ""]).stderr(Stdio::null()).status();
    let has_python = ended.is_ok_and(|status| status.success());
    if !has_python {
        println!("SKIP {test}: no python3 here");
    }
    has_python
}

#[test]
fn the_reader_finds_what_the_engine_wrote() {
    if !has_python("the_reader_finds_what_the_engine_wrote") {
        return;
    }
    let mut pool = MediaPool::new(21);
    pool.share();
    for _ in 0..2 {
        (0..400).for_each(|_| pool.step());
        pool.settle();
        pool.crash_and_open();
    }
    // The last opening has moved pages, checkpoints, and a log behind the last of them.
    let mut steps = 0;
    while pool.engine.status().packed_pages < 40 || steps < 400 || !pool.has_aliases_in_the_log() {
        steps += 1;
        assert!(steps < 20_000, "nothing is collected: {:?}", pool.engine.status());
        pool.step();
    }
    assert!(pool.engine.status().counters.checkpoints > 3);
    let torn = pool.create(1);
    pool.write(torn, 0, 1);
    let (list, model) = (pool.list(), pool.model.clone());
    pool.tear(torn);
    let reader = Reader::new(&pool.devices);
    assert_eq!(reader.list(), list);
    model.iter().for_each(|(&volume, content)| reader.check(volume, content));
    let sealed: Vec<_> = pool.engine.volumes().into_iter().filter_map(|it| it.seal).collect();
    let has_old_keys = sealed.iter().any(|seal| seal.version > 1);
    assert!(has_old_keys, "no volume is under another data key: {sealed:?}");
}

/// Moments of the checkpoint and of the log behind it, with what each of them holds.
#[test]
fn the_reader_finds_the_moments_of_histories() {
    if !has_python("the_reader_finds_the_moments_of_histories") {
        return;
    }
    let mut pool = MediaPool::new(24);
    pool.keeps_history = true;
    (0..300).for_each(|_| pool.step());
    let kind = |kind: &'static str, pool: &MediaPool| {
        let is_it = move |record: &LogRecord| match record {
            LogRecord::Moment { .. } => kind == "moment",
            LogRecord::Forget { .. } => kind == "forget",
            _ => false,
        };
        pool.devices.log().iter().any(|head| head.records.iter().any(is_it))
    };
    let mut steps = 0;
    while !kind("moment", &pool) || !kind("forget", &pool) || pool.moments().len() < 200 {
        steps += 1;
        assert!(steps < 20_000, "no moments: {:?}", pool.engine.status());
        pool.step();
    }
    pool.flush();
    // Time stands still, so that no moment goes.
    pool.keeps_history = false;
    let reader = Reader::new(&pool.devices);
    assert_eq!((reader.list(), reader.moments()), (pool.list(), pool.moments()));
    let mut checked = 0;
    for volume in pool.engine.volumes() {
        for moment in pool.engine.moments_of(volume.id).into_iter().step_by(3) {
            let image = reader.extract(moment.id).unwrap();
            let blocks = (image.len() / BLOCK_BYTES) as u64;
            let content = pool.content_of(moment.id, blocks);
            reader.check(moment.id, &content);
            checked += 1;
        }
    }
    assert!(checked > 3, "{checked} moments were read");
}

impl MediaPool {
    /// Whether the log behind the last checkpoint has made aliases, and the checkpoint has some.
    fn has_aliases_in_the_log(&self) -> bool {
        let log = self.devices.log_of(1);
        let is_alias = |record: &LogRecord| matches!(record, LogRecord::Alias { shared: 1.., .. });
        let shared = self.engine.status().shared;
        log.iter().any(|head| head.records.iter().any(is_alias)) && shared.aliases > 20
    }
}

/// The device 2 joins and the device 0 leaves, while all goes on; the last opening finds the rest.
#[test]
fn the_reader_knows_which_devices_the_pool_has() {
    if !has_python("the_reader_knows_which_devices_the_pool_has") {
        return;
    }
    let mut pool = MediaPool::new(23);
    (0..100).for_each(|_| pool.step());
    pool.devices.blocks.push(vec![Block::ZERO; DEVICE_BLOCKS as usize]);
    let add = DeviceChange::Add { device: 2, uuid: [9; 16], blocks: DEVICE_BLOCKS };
    pool.ask(|engine, tag| engine.change_devices(tag, add)).unwrap();
    (0..100).for_each(|_| pool.step());
    let before = pool.devices.clone();
    let remove = DeviceChange::Remove { device: 0 };
    pool.ask(|engine, tag| engine.change_devices(tag, remove)).unwrap();
    let mut steps = 0;
    while pool.engine.devices().iter().any(|device| device.number == 0) {
        steps += 1;
        assert!(steps < 20_000, "it does not leave: {:?}", pool.engine.status());
        pool.step();
    }
    (0..20).for_each(|_| pool.step());
    pool.flush();
    let check = |devices: &MemoryDevices| {
        let reader = Reader::new(devices);
        assert_eq!(reader.list(), pool.list());
        pool.model.iter().for_each(|(&volume, content)| reader.check(volume, content));
    };
    check(&pool.devices);
    // An old copy of a device that has left, and no copy of it, are the same.
    let mut old = pool.devices.clone();
    old.blocks[0].clone_from(&before.blocks[0]);
    check(&old);
    old.blocks.remove(0);
    check(&old);
    old.blocks.pop();
    let missing = Reader::new(&old).run(&["list"]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("[1, 2]: give them all"));
}

#[test]
fn the_reader_makes_up_for_damage_or_names_it() {
    if !has_python("the_reader_makes_up_for_damage_or_names_it") {
        return;
    }
    let mut pool = MediaPool::new(22);
    (0..150).for_each(|_| pool.step());
    pool.settle();
    let volume = pool.create(10);
    pool.write(volume, 0, 3);
    pool.flush();
    // This row's head says that the row before it is durable, and has its records.
    pool.write(volume, 2, 3);
    let content = &pool.model[&volume];

    let damage = |damage: &dyn Fn(&mut MemoryDevices)| {
        let mut devices = pool.devices.clone();
        damage(&mut devices);
        Reader::new(&devices)
    };
    let log = pool.devices.log();
    let writes = |record: &LogRecord| match record {
        LogRecord::Write { volume: of, .. } => *of == volume.0,
        _ => false,
    };
    let rows: Vec<_> = log.iter().filter(|head| head.records.iter().any(writes)).collect();
    let [durable, last] = rows.as_slice() else { panic!("the log is {log:?}") };
    assert!(last.durable >= durable.sequence);
    damage(&|devices| devices.at(durable.place).0[100] ^= 1).check(volume, content);

    for copy in [0, 1] {
        let place = pool.devices.superblock().state[copy].place().unwrap();
        damage(&|devices| devices.at(place).0[0] ^= 1).check(volume, content);
    }
    let superblock = pool.devices.superblock().checkpoint.get();
    let [first, second] = superblock_blocks(superblock).map(|block| block as usize);
    damage(&|devices| devices.blocks[0][first].0[40] ^= 1).check(volume, content);
    damage(&|devices| devices.blocks[1][second].0[40] ^= 1).check(volume, content);

    let both = damage(&|devices| {
        for device in &mut devices.blocks {
            [first, second].iter().for_each(|&at| device[at].0[40] ^= 1);
        }
    });
    assert!(both.extract(volume).is_err_and(|error| error.contains("superblock")));

    // The change that made the volume has a copy.
    let changes = payloads(&log, |record| matches!(record, LogRecord::Change { .. }));
    let [.., change, copy] = changes.as_slice() else { panic!("the log is {log:?}") };
    damage(&|devices| devices.at(*change).0[3] ^= 1).check(volume, content);
    let both = damage(&|devices| [*change, *copy].iter().for_each(|&at| devices.at(at).0[3] ^= 1));
    assert!(both.extract(volume).is_err());

    let page = BlockPlace { block: durable.place.block + 1, ..durable.place };
    let error = damage(&|devices| devices.at(page).0[0] ^= 1).extract(volume).err();
    assert!(error.is_some_and(|error| error.contains("is damaged")));

    // Without the last row, the write before it is above the mark: a log that ends with it, and
    // one that does not even have it, are logs as well.
    let whole = damage(&|_| {}).extract(volume).ok();
    let before = damage(&|devices| devices.at(last.place).0[100] ^= 1).extract(volume).ok();
    let empty = damage(&|devices| {
        devices.at(last.place).0[100] ^= 1;
        devices.at(page).0[0] ^= 1;
    });
    assert!(before.is_some() && before != whole);
    assert!(empty.extract(volume).is_ok_and(|image| image == vec![0; 10 * BLOCK_BYTES]));
}

/// The places of the payloads of such records.
fn payloads(log: &[RowHead], is_such: impl Fn(&LogRecord) -> bool) -> Vec<BlockPlace> {
    let mut places = Vec::new();
    for head in log {
        let with_payload = head.records.iter().filter(|record| record.has_payload());
        let such = (1..).zip(with_payload).filter(|(_, record)| is_such(record));
        places
            .extend(such.map(|(at, _)| BlockPlace { block: head.place.block + at, ..head.place }));
    }
    places
}
