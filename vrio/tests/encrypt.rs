//! Encrypted volumes, with real processes, and beside another implementation: Python's
//! `cryptography`, which is OpenSSL's XTS. A node serves files that the other implementation has
//! written, and that implementation reads files that a node has written, as dm-crypt would with the
//! command of docs/configuration.md.

use std::path::Path;
use std::process::{Command, Stdio};

use node::keys::{self, KeyKind};
use random::Random;
use testbed::nodes::{Node, NodePlan};
use testbed::stand_in::StandIn;
use workload::Mix;

const BLOCKS: u64 = 1024;
const IMAGE_BYTES: u64 = BLOCKS * 4096;
const REQUESTS: u64 = 2000;

const MIX: Mix = Mix {
    block_bytes: 4096,
    blocks_max: 16,
    depth: 16,
    reads_ppm: 300_000,
    flushes_ppm: 20_000,
    zeroes_ppm: 50_000,
    hot_blocks: 0,
};

/// Reads the file of a key, then ciphers all of one file into another, sector by sector.
const SCRIPT: &str = r#"
import base64, sys
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
way, key, source, target = sys.argv[1:]
secret = next(line.split()[1] for line in open(key) if line.startswith("secret: "))
secret = base64.b64decode(secret)
with open(source, "rb") as source, open(target, "r+b") as target:
    for number, sector in enumerate(iter(lambda: source.read(512), b"")):
        cipher = Cipher(algorithms.AES(secret), modes.XTS(number.to_bytes(16, "little")))
        step = cipher.encryptor() if way == "encrypt" else cipher.decryptor()
        target.write(step.update(sector) + step.finalize())
"#;

/// Whether there is a Python with that package.
fn has_oracle() -> bool {
    let mut python = Command::new("python3");
    python.args(["-c", "import cryptography.hazmat.primitives.ciphers"]);
    let ended = python.stderr(Stdio::null()).status();
    ended.is_ok_and(|status| status.success())
}

fn python(way: &str, key: &Path, source: &Path, target: &Path) {
    let mut python = Command::new("python3");
    python.args(["-c", SCRIPT, way]).args([key, source, target]);
    assert!(python.status().unwrap().success(), "{way} {source:?}");
}

fn image(path: &Path) {
    std::fs::File::create(path).unwrap().set_len(IMAGE_BYTES).unwrap();
}

/// Works on the volume through this socket's disk, as a guest that checks its reads.
fn work(vm: &mut Node, random: &mut Random) -> StandIn {
    let socket = vm.wait_for_disk("root").unwrap();
    let mut guest = StandIn::connect(&socket, 2, MIX, BLOCKS, random).unwrap();
    guest.workload.discards = false;
    guest.work(|guest| guest.workload.counts.completed >= REQUESTS).unwrap();
    guest.drain().unwrap();
    assert_eq!(guest.workload.counts.errors, 0);
    guest
}

/// A local guest and a guest over two nodes, with files past the page cache and through it.
#[test]
fn openssl_writes_what_a_node_serves_and_reads_what_a_node_wrote() {
    let test = "openssl_writes_what_a_node_serves_and_reads_what_a_node_wrote";
    if !has_oracle() {
        return println!("SKIP {test}: python3 has no package cryptography");
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (key, zeroes, plain) = (folder.join("a.xts"), folder.join("zeroes"), folder.join("plain"));
    keys::create(&key, KeyKind::Volume).unwrap();
    image(&zeroes);
    image(&plain);
    let mut random = Random::new(7);
    for (name, direct, remote) in [("near", false, false), ("far", true, true)] {
        let home = folder.join(name);
        let file = home.join("root.img");
        std::fs::create_dir(&home).unwrap();
        image(&file);
        python("encrypt", &key, &zeroes, &file);
        let volume = format!(
            "[[volume]]\nname = \"root\"\nbackend = {{ file = {file:?}, direct = {direct} }}\n\
             chain = [\"meter\", {{ encrypt = {{ key = {key:?} }} }}]\n"
        );
        let disk = |volume: &str| {
            format!(
                "[[disk]]\nsocket = \"root.sock\"\nvolume = \"{volume}\"\n\
             queues = 2\n"
            )
        };
        let plan = |name: &str, config: String| {
            let mut plan = NodePlan::new(env!("CARGO_BIN_EXE_vrio"), &home, name, config);
            plan.volume_folders = vec![home.clone()];
            plan
        };
        let port = 16_000 + (std::process::id() % 16_000) as u16;
        let (mut nodes, mut vm) = if remote {
            let listen = format!("listen = \"127.0.0.1:{port}\"\n");
            let io = plan("io1", format!("{listen}{volume}allow = [\"vm1\"]\n")).start().unwrap();
            let peer = format!("[[peer]]\nname = \"io1\"\naddress = \"127.0.0.1:{port}\"\n");
            let here = format!("listen = \"127.0.0.1:0\"\n{peer}{}", disk("io1/root"));
            (vec![io], plan("vm1", here).start().unwrap())
        } else {
            (Vec::new(), plan("vm1", format!("{volume}{}", disk("root"))).start().unwrap())
        };
        let guest = work(&mut vm, &mut random);
        assert_eq!(vm.stop().map(drop).err().map(|error| error.to_string()), None);
        while let Some(io) = nodes.pop() {
            io.stop().unwrap();
        }
        python("decrypt", &key, &file, &plain);
        guest.compare_image(&plain).unwrap();
        assert!(guest.compare_image(&file).is_err(), "the file itself holds none of it");
        guest.disconnect();
    }
}
