//! Encrypted volumes: the content of their files, the owners of keys, and changes that are refused.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use node::keys::{self, KeyKind};
use node::status::DiskState;
use node::{Config, Node};
use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr};
use serde_json::json;
use virtio::driver::RequestStatus as Outcome;

use super::control::{done, refused};
use super::{LOCAL, io1, load, start_file, vm1, write_file};
use crate::common::{Guest, Home, address, wait_for, wait_for_disk};

const DISK: &str = "[[disk]]\nsocket = \"x.sock\"\nvolume = \"a\"\nqueues = 2\n";

/// The attribute with the check value of a file's key.
const ATTRIBUTE: &str = "user.vrio.key-check";

/// [`LOCAL`] with this chain.
fn with_chain(chain: &str) -> String {
    format!("{}{DISK}", LOCAL.replace("[\"meter\"]", chain))
}

fn encrypted(key: &str) -> String {
    with_chain(&format!("[\"meter\", {{ encrypt = {{ key = \"HOME/{key}\" }} }}]"))
}

fn make_key(home: &Home, name: &str) -> String {
    keys::create(&home.path(name), KeyKind::Volume).unwrap().public()
}

/// The reason why a node of this file does not start. The failed start changes neither the files of
/// volumes, nor their attributes, nor any record of the node.
fn refusal(home: &Home, text: &str) -> String {
    write_file(home, "n.toml", text);
    let config = Config::load(&home.path("n.toml")).unwrap_or_else(|error| panic!("{error}"));
    let before = everything(home);
    let refused = Node::start(&config).expect_err("it has to be refused").to_string();
    for (path, (bytes, noted)) in everything(home) {
        match before.get(&path) {
            Some(was) => assert!((&bytes, &noted) == (&was.0, &was.1), "{path:?}: {refused}"),
            // It makes files that are missing, a lock, and the secret and the note of records.
            None => {
                let name = path.file_name().unwrap_or_default();
                let is_records = name == ".secret.new" || name == ".incarnation";
                let is_empty = bytes.iter().all(|it| *it == 0);
                assert!(noted.is_none() && (is_empty || is_records), "{path:?}");
            }
        }
    }
    refused
}

/// The files of volumes and of records, each with its bytes and its attribute.
fn everything(home: &Home) -> BTreeMap<PathBuf, (Vec<u8>, Option<String>)> {
    let mut all = BTreeMap::new();
    let mut folders = vec![home.path("")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let kind = std::fs::symlink_metadata(&path).unwrap().file_type();
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() && path.extension().is_none_or(|it| it != "toml") {
                let bytes = std::fs::read(&path).unwrap();
                let attribute = attribute(&path);
                all.insert(path, (bytes, attribute));
            }
        }
    }
    all
}

fn attribute(path: &Path) -> Option<String> {
    let mut value = [0; 64];
    let len = fgetxattr(File::open(path).unwrap(), ATTRIBUTE, &mut value).ok()?;
    Some(String::from_utf8(value[..len].to_vec()).unwrap())
}

fn write_some(node: &Node, home: &Home) {
    wait_for_disk(node, DiskState::Ready, "x.sock");
    let mut guest = Guest::connect(home.path("x.sock"), 2);
    for block in 0..64 {
        assert_eq!(guest.write((block % 2) as u16, block, block + 1), Outcome::Ok);
    }
    assert_eq!(guest.flush(0), Outcome::Ok);
}

fn check_some(home: &Home) {
    let mut guest = Guest::connect(home.path("x.sock"), 2);
    for block in 0..64 {
        assert_eq!(guest.check((block % 2) as u16, block, block + 1), Outcome::Ok);
    }
}

fn sectors(path: &Path) -> HashSet<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let written = bytes.chunks(512).filter(|sector| sector.iter().any(|byte| *byte != 0));
    written.map(<[u8]>::to_vec).collect()
}

#[test]
fn the_file_holds_no_sector_of_what_the_guest_wrote_and_the_next_start_reads_it() {
    let (plain, home) = (Home::new(), Home::new());
    let node = start_file(&plain, "n.toml", &with_chain("[]"));
    write_some(&node, &plain);
    node.stop();
    let check = make_key(&home, "a.xts");
    let node = start_file(&home, "n.toml", &encrypted("a.xts"));
    write_some(&node, &home);
    let status = node.status();
    assert_eq!(status.volumes[0].chain, ["meter", "encrypt"]);
    assert_eq!(status.volumes[0].counters["encrypted_bytes"], 64 * 4096);
    let told = serde_json::to_string(&status).unwrap();
    let secret = std::fs::read_to_string(home.path("a.xts")).unwrap();
    let secret = secret.lines().nth(1).unwrap().strip_prefix("secret: ").unwrap();
    assert!(!told.contains(secret) && !told.contains(&check));
    node.stop();
    let (plain, cipher) = (sectors(&plain.path("a.img")), sectors(&home.path("a.img")));
    assert_eq!((plain.len(), cipher.len()), (512, 512));
    assert!(plain.is_disjoint(&cipher));
    let node = start_file(&home, "n.toml", &encrypted("a.xts"));
    wait_for_disk(&node, DiskState::Ready, "x.sock");
    check_some(&home);
    assert_eq!(node.status().volumes[0].counters["decrypted_bytes"], 64 * 4096);
    node.stop();
}

#[test]
fn another_key_or_none_is_refused_by_name_before_anything_is_written() {
    let home = Home::new();
    let [right, wrong] = ["a.xts", "b.xts"].map(|name| make_key(&home, name));
    let node = start_file(&home, "n.toml", &encrypted("a.xts"));
    write_some(&node, &home);
    node.stop();
    let image = everything(&home)[&home.path("a.img")].clone();
    assert!(image.1.as_ref() == Some(&right) && image.0.iter().any(|byte| *byte != 0));
    let other = refusal(&home, &encrypted("b.xts"));
    for part in [&right[..], &wrong[..], "is another key", "vrio key show", "volume \"a\""] {
        assert!(other.contains(part), "{part:?} is missing in: {other}");
    }
    let none = refusal(&home, &with_chain("[\"meter\"]"));
    assert!(none.contains("no { encrypt = .. }") && none.contains(&right), "{none}");
    // Also by a way that only an operator could take.
    std::fs::rename(home.path("b.xts"), home.path("a.xts")).unwrap();
    assert!(refusal(&home, &encrypted("a.xts")).contains("is another key"));
}

#[test]
fn a_volume_that_was_used_is_not_encrypted_over_its_data() {
    let home = Home::new();
    let node = start_file(&home, "n.toml", &with_chain("[]"));
    write_some(&node, &home);
    node.stop();
    make_key(&home, "a.xts");
    let late = refusal(&home, &encrypted("a.xts"));
    assert!(late.contains("it has no note that it is encrypted"), "{late}");
    let node = start_file(&home, "n.toml", &with_chain("[]"));
    wait_for_disk(&node, DiskState::Ready, "x.sock");
    check_some(&home);
    node.stop();
}

/// A backup without attributes loses one place, and a move to another node the other.
#[test]
fn a_check_value_that_was_lost_in_one_place_comes_from_the_other() {
    let home = Home::new();
    let [right, _] = ["a.xts", "b.xts"].map(|name| make_key(&home, name));
    let node = start_file(&home, "n.toml", &encrypted("a.xts"));
    write_some(&node, &home);
    node.stop();
    let file = File::open(home.path("a.img")).unwrap();
    let record = records(&home).join("a.key-check");
    assert_eq!(std::fs::read_to_string(&record).unwrap().trim(), right);
    for _ in 0..2 {
        fremovexattr(&file, ATTRIBUTE).unwrap();
        let none = refusal(&home, &with_chain("[\"meter\"]"));
        assert!(none.contains("no { encrypt = .. }") && none.contains("a.key-check"), "{none}");
        let other = refusal(&home, &encrypted("b.xts"));
        assert!(other.contains("is another key"), "{other}");
        let node = start_file(&home, "n.toml", &encrypted("a.xts"));
        wait_for_disk(&node, DiskState::Ready, "x.sock");
        check_some(&home);
        node.stop();
        assert_eq!(attribute(&home.path("a.img")).as_ref(), Some(&right), "it is there again");
    }
    // With both places lost the node does not guess, and the way out in its message works.
    fremovexattr(&file, ATTRIBUTE).unwrap();
    std::fs::remove_file(&record).unwrap();
    let lost = refusal(&home, &encrypted("a.xts"));
    let advice = format!("setfattr -n {ATTRIBUTE} -v {right}");
    assert!(lost.contains(&advice), "{lost}");
    fsetxattr(&file, ATTRIBUTE, right.as_bytes(), XattrFlags::CREATE).unwrap();
    let node = start_file(&home, "n.toml", &encrypted("a.xts"));
    wait_for_disk(&node, DiskState::Ready, "x.sock");
    check_some(&home);
    node.stop();
    assert!(record.exists(), "and is remembered in both again");
}

#[test]
fn a_new_file_under_an_old_name_is_a_new_volume() {
    let home = Home::new();
    ["a.xts", "b.xts"].iter().for_each(|name| drop(make_key(&home, name)));
    for text in [encrypted("a.xts"), encrypted("b.xts"), with_chain("[]"), encrypted("a.xts")] {
        let node = start_file(&home, "n.toml", &text);
        write_some(&node, &home);
        check_some(&home);
        node.stop();
        let again = start_file(&home, "n.toml", &text);
        wait_for_disk(&again, DiskState::Ready, "x.sock");
        check_some(&home);
        again.stop();
        std::fs::remove_file(home.path("a.img")).unwrap();
    }
}

/// The directory of the node's records.
fn records(home: &Home) -> PathBuf {
    let config = Config::load(&home.path("n.toml")).unwrap();
    config.directories.state.clone().expect("this one has volumes")
}

#[test]
fn a_volume_that_no_disk_may_write_starts_again_and_again() {
    let home = Home::new();
    make_key(&home, "a.xts");
    let node = start_file(&home, "n.toml", &encrypted("a.xts"));
    write_some(&node, &home);
    node.stop();
    // An image without records, as if it was copied here: this node knows nothing of it.
    let file = File::open(home.path("a.img")).unwrap();
    fremovexattr(&file, ATTRIBUTE).unwrap();
    std::fs::remove_file(records(&home).join("a.key-check")).unwrap();
    let read_only = encrypted("a.xts").replace("name = \"a\"", "name = \"a\"\nread-only = true");
    for _ in 0..3 {
        let node = start_file(&home, "n.toml", &read_only);
        wait_for_disk(&node, DiskState::Ready, "x.sock");
        check_some(&home);
        node.stop();
    }
    assert_eq!(attribute(&home.path("a.img")), None, "the file stays as it came");
    assert!(records(&home).join("a.key-check").exists());
}

/// A volume is under a key from the first guest on that could write to it.
#[test]
fn a_node_that_no_guest_came_to_leaves_no_key_behind() {
    let home = Home::new();
    let [_, second] = ["a.xts", "b.xts"].map(|name| make_key(&home, name));
    let is_noted = || (attribute(&home.path("a.img")), records(&home).join("a.key-check").exists());
    let node = start_file(&home, "n.toml", &encrypted("a.xts"));
    wait_for_disk(&node, DiskState::Ready, "x.sock");
    assert_eq!(is_noted(), (None, false));
    node.stop();
    // Nor does a node note a key that starts, and fails at one of its sockets.
    std::fs::create_dir(home.path("x.sock")).unwrap();
    std::fs::write(home.path("x.sock").join("in"), "the way").unwrap();
    refusal(&home, &encrypted("a.xts"));
    assert_eq!(is_noted(), (None, false));
    std::fs::remove_dir_all(home.path("x.sock")).unwrap();
    for _ in 0..2 {
        let node = start_file(&home, "n.toml", &encrypted("b.xts"));
        write_some(&node, &home);
        assert_eq!(is_noted(), (Some(second.clone()), true), "before the first write is answered");
        node.stop();
    }
    assert!(refusal(&home, &encrypted("a.xts")).contains("is another key"));
}

/// Where the note cannot be made no guest writes: its data would be noise to the next start's key.
#[test]
fn a_key_that_cannot_be_noted_keeps_guests_away() {
    let home = Home::new();
    let check = make_key(&home, "a.xts");
    write_file(&home, "n.toml", &encrypted("a.xts"));
    let config = Config::load(&home.path("n.toml")).unwrap();
    let record = records(&home).join("a.key-check");
    let node = Node::start(&config).unwrap_or_else(|error| panic!("{error}"));
    // A directory is in the place of the file.
    std::fs::create_dir(record.with_extension("new")).unwrap();
    wait_for_disk(&node, DiskState::Ready, "x.sock");
    let socket = home.path("x.sock");
    let tried = thread::spawn(move || {
        let mut guest = Guest::connect(socket, 2);
        (guest.write(0, 0, 1), guest)
    });
    wait_for(&node, "the claim is refused", |status| {
        status.disks[0].detail.contains("cannot note the volume's key")
    });
    let written = std::fs::read(home.path("a.img")).unwrap();
    assert!(written.iter().all(|byte| *byte == 0), "something was written");
    assert!(!record.exists());
    std::fs::remove_dir(record.with_extension("new")).unwrap();
    let (outcome, guest) = tried.join().unwrap();
    assert_eq!(outcome, Outcome::Ok, "it goes on when that was mended");
    assert_eq!(std::fs::read_to_string(&record).unwrap().trim(), check);
    drop(guest);
    node.stop();
}

/// A block device that exists as long as this value.
struct Loop(String);

impl Loop {
    /// `None`, with a line that says so, where no block device can be made.
    fn over(test: &str, image: &Path) -> Option<Self> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(image).output();
        match output {
            Ok(output) if output.status.success() => {
                Some(Self(String::from_utf8(output.stdout).unwrap().trim().to_owned()))
            }
            failed => {
                println!("SKIP {test}: no loop device to be had: {failed:?}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// The device takes no attributes, so the directory of records has the only note.
#[test]
fn a_block_device_is_known_by_what_the_node_remembers() {
    let home = Home::new();
    let [right, _] = ["a.xts", "b.xts"].map(|name| make_key(&home, name));
    let image = home.path("device.img");
    File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let test = "a_block_device_is_known_by_what_the_node_remembers";
    let Some(device) = Loop::over(test, &image) else { return };
    let on = |text: String| {
        let text =
            text.replace("file = \"a.img\", size = \"1MiB\"", &format!("file = {:?}", device.0));
        text.replace("volumes = \"HOME\"", "volumes = [\"/dev\"]\nstate = \"HOME/state\"")
    };
    let record = home.path("state/a.key-check");
    // Earlier content of the device was not written through this node.
    for _ in 0..2 {
        let node = start_file(&home, "n.toml", &on(encrypted("a.xts")));
        write_some(&node, &home);
        check_some(&home);
        node.stop();
        assert_eq!(std::fs::read_to_string(&record).unwrap().trim(), right);
    }
    let before = std::fs::read(&image).unwrap();
    let other = refusal(&home, &on(encrypted("b.xts")));
    assert!(other.contains("is another key"), "{other}");
    let none = refusal(&home, &on(with_chain("[]")));
    assert!(none.contains("no { encrypt = .. }") && none.contains("rm "), "{none}");
    std::fs::remove_file(&record).unwrap();
    let lost = refusal(&home, &on(encrypted("a.xts")));
    assert!(lost.contains(&format!("echo {right} > {record:?}")), "{lost}");
    assert!(std::fs::read(&image).unwrap() == before);
    std::fs::write(&record, format!("{right}\n")).unwrap();
    let node = start_file(&home, "n.toml", &on(encrypted("a.xts")));
    wait_for_disk(&node, DiskState::Ready, "x.sock");
    check_some(&home);
    node.stop();
}

/// Two paths may lead to the same key, and a key file may be renamed.
#[test]
fn keys_are_told_apart_by_what_they_are() {
    let home = Home::new();
    for name in ["a.xts", "b.xts"] {
        make_key(&home, name);
    }
    std::fs::copy(home.path("a.xts"), home.path("copy.xts")).unwrap();
    std::os::unix::fs::symlink(home.path("a.xts"), home.path("link.xts")).unwrap();
    let second = |key: &str| {
        format!(
            "{}[[volume]]\nname = \"b\"\nbackend = {{ memory = \"1MiB\" }}\nchain = [{{ encrypt \
             = {{ key = \"HOME/{key}\" }} }}]\n",
            encrypted("a.xts")
        )
    };
    for same in ["copy.xts", "link.xts"] {
        let text = refusal(&home, &second(same));
        assert!(text.contains("volume \"a\" has the same key (check value"), "{text}");
    }
    let node = start_file(&home, "n.toml", &encrypted("a.xts"));
    write_some(&node, &home);
    let stage = |name: &str| json!({ "encrypt": { "key": home.path(name) } });
    let volume =
        |key: &str| json!({ "name": "b", "backend": { "memory": "1MiB" }, "chain": [stage(key)] });
    let no = refused(&node, "POST", "/v1/volumes", Some(&volume("copy.xts")), 409);
    assert!(no.error.contains("has the same key"), "{no}");
    // The same key from another file is not another key.
    done(&node, "PUT", "/v1/volumes/a/chain", &json!([stage("copy.xts"), "meter"]));
    let no = refused(&node, "PUT", "/v1/volumes/a/chain", Some(&json!([stage("b.xts")])), 409);
    assert!(no.error.contains("its encryption cannot change"), "{no}");
    let no = refused(&node, "PUT", "/v1/volumes/a/chain", Some(&json!([stage("none.xts")])), 500);
    assert!(no.error.contains("none.xts"), "{no}");
    check_some(&home);
    write_file(&home, "n.toml", &encrypted("copy.xts"));
    done(&node, "POST", "/v1/reload", &json!({}));
    check_some(&home);
    node.stop();
}

#[test]
fn a_key_file_that_is_not_one_is_refused_with_the_way_out() {
    let home = Home::new();
    let missing = refusal(&home, &encrypted("a.xts"));
    assert!(missing.contains("vrio key new --volume FILE"), "{missing}");
    keys::create(&home.path("a.xts"), KeyKind::Node).unwrap();
    let other = refusal(&home, &encrypted("a.xts"));
    assert!(other.contains("this is a node key and a volume key is wanted"), "{other}");
    std::fs::remove_file(home.path("a.xts")).unwrap();
    make_key(&home, "a.xts");
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(home.path("a.xts"), open).unwrap();
    assert!(refusal(&home, &encrypted("a.xts")).contains("others may read or write it"));
}

#[test]
fn the_encryption_of_a_running_volume_stays_for_every_caller() {
    let home = Home::new();
    for name in ["a.xts", "b.xts"] {
        make_key(&home, name);
    }
    let node = start_file(&home, "n.toml", &encrypted("a.xts"));
    write_some(&node, &home);
    let stage = |name: &str| json!({ "encrypt": { "key": home.path(name) } });
    for chain in [json!([]), json!(["meter"]), json!([stage("b.xts")])] {
        let no = refused(&node, "PUT", "/v1/volumes/a/chain", Some(&chain), 409);
        assert!(no.error.contains("its encryption cannot change"), "{no}");
    }
    write_file(&home, "n.toml", &encrypted("b.xts"));
    let no = refused(&node, "POST", "/v1/reload", None, 409);
    assert!(no.error.contains("its encryption cannot change"), "{no}");
    done(&node, "PUT", "/v1/volumes/a/chain", &json!([stage("a.xts"), "meter", "meter"]));
    assert_eq!(node.status().volumes[0].chain, ["encrypt", "meter", "meter"]);
    check_some(&home);
    // A volume that a command adds has its own key as well, and not another volume's.
    let volume = |name: &str, key: &str| {
        let backend = json!({ "file": format!("{name}.img"), "size": "1MiB" });
        json!({ "name": name, "backend": backend, "chain": [stage(key)] })
    };
    let same = refused(&node, "POST", "/v1/volumes", Some(&volume("c", "a.xts")), 400);
    assert!(same.error.contains("has the same key"), "{same}");
    done(&node, "POST", "/v1/volumes", &volume("b", "b.xts"));
    node.stop();
}

/// Stages change places around the one that encrypts, under a guest of another node.
#[test]
fn the_rest_of_a_chain_is_changed_under_a_remote_guest() {
    let home = Home::new();
    make_key(&home, "a.xts");
    let (there, here) = (address(), address());
    let key = home.path("a.xts");
    let encrypt = json!({ "encrypt": { "key": key } });
    let volume = format!(
        "[[volume]]\nname = \"a\"\nbackend = {{ file = \"a.img\", size = \"1MiB\" }}\n\
         chain = [{{ encrypt = {{ key = {key:?} }} }}]\nallow = [\"vm1\"]\n"
    );
    let peer = format!("[[peer]]\nname = \"io1\"\naddress = \"{there}\"\n");
    let disk = "[[disk]]\nsocket = \"x.sock\"\nvolume = \"io1/a\"\nqueues = 2\n";
    let io1 = home.start(&format!("{}{volume}", io1(&there)));
    let vm1 = home.start(&format!("{}{peer}{disk}", vm1(&here)));
    wait_for_disk(&vm1, DiskState::Ready, "x.sock");
    let limit = json!({ "limit": { "iops": 200_000, "burst": "1ms" } });
    let chains = [
        json!(["meter", encrypt]),
        json!([encrypt, limit, "meter"]),
        json!([limit, encrypt, limit]),
    ];
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let guest = Guest::connect(home.path("x.sock"), 2);
        let loaded = scope.spawn(|| load(guest, &stop));
        for change in 0..60 {
            done(&io1, "PUT", "/v1/volumes/a/chain", &chains[change % 3]);
        }
        stop.store(true, Relaxed);
        assert!(loaded.join().unwrap() > 100, "there was a load");
    });
    vm1.stop();
    io1.stop();
}
