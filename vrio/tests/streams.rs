//! Snapshots as streams between nodes and files: backups under load, kills, cuts, wrong streams,
//! images, and hostile callers.

use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use random::Random;
use serde_json::Value;
use testbed::nodes::Node;
use testbed::stand_in::StandIn;

use crate::pools::{
    PATIENCE, VOLUME, check, connect, mix, plan_with_pool, pool, told, tried, vrio, work_a_while,
};

const MIB: usize = 1 << 20;

/// A header, and the head of a part.
const FRONT_BYTES: usize = 256 + 40;

fn words(node: &Node, words: &str) -> Vec<String> {
    let control = node.plan().control();
    let control = control.to_str().expect("a plain path").to_owned();
    let words = words.split(' ').map(str::to_owned);
    words.chain(["--control".to_owned(), control]).collect()
}

/// A command of a node with a stream in or out.
fn command(node: &Node, text: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    command.args(words(node, text));
    command
}

fn said(output: &Output) -> String {
    let (out, error) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(error))
}

/// Sends into a file.
fn send(node: &Node, text: &str, file: &Path) {
    let out = File::create(file).expect("a file");
    let sent = command(node, &format!("volume send {text}")).stdout(out).output().expect("it runs");
    assert!(sent.status.success(), "{text}: {}\n{}", said(&sent), node.log_tail());
}

/// Receives from a file: whether it succeeds, and its words.
fn receive(node: &Node, volume: &str, file: &Path) -> (bool, String) {
    let stream = File::open(file).expect("a file");
    let mut command = command(node, &format!("volume receive p {volume}"));
    let received = command.stdin(stream).output().expect("it runs");
    (received.status.success(), said(&received))
}

fn received(node: &Node, volume: &str, file: &Path) {
    let (done, text) = receive(node, volume, file);
    assert!(done, "{text}\n{}", node.log_tail());
}

/// Both nodes have the same content in a snapshot.
fn compare(home: &Path, (one, first): (&Node, &str), (other, second): (&Node, &str)) {
    let paths = ["one.raw", "other.raw"].map(|name| home.join(name));
    for (path, node, snapshot) in [(&paths[0], one, first), (&paths[1], other, second)] {
        told(node, &format!("volume export {snapshot} {}", path.display()));
    }
    let [one, other] = paths.map(|path| {
        let bytes = std::fs::read(&path).expect("it was exported");
        std::fs::remove_file(&path).expect("ours");
        bytes
    });
    assert!(one == other, "{first} and {second} differ");
    assert!(one.iter().any(|byte| *byte != 0), "they have data");
}

fn two_homes(home: &Path) -> (PathBuf, PathBuf) {
    let homes = ["n1", "n2"].map(|name| home.join(name));
    homes.iter().for_each(|home| std::fs::create_dir(home).expect("a directory"));
    let [one, other] = homes;
    (one, other)
}

/// A guest works while something else is done.
fn beside<T: Send>(guest: &mut StandIn, work: impl FnOnce() -> T + Send) -> T {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let done = work();
            is_over.store(true, Relaxed);
            done
        });
        guest.work(|_| is_over.load(Relaxed) || other.is_finished()).expect("the promise is kept");
        other.join().expect("it is done")
    })
}

#[test]
fn a_volume_is_backed_up_to_another_node_while_a_guest_works() {
    let home = tempfile::tempdir().expect("a directory");
    let (here, there) = two_homes(home.path());
    let mut random = Random::new(21);
    let mut source = plan_with_pool(&here, "192MiB", VOLUME).start().expect("a node");
    let mut target = plan_with_pool(&there, "192MiB", "").start().expect("a node");
    let mut guest = connect(&mut source, "a", mix(), &mut random);
    let file = home.path().join("a.stream");
    work_a_while(&mut guest, 1000);
    told(&source, "volume snapshot a --name s0");
    beside(&mut guest, || {
        send(&source, "a@s0", &file);
        received(&target, "backup", &file);
    });
    compare(home.path(), (&source, "a@s0"), (&target, "backup@s0"));
    for round in 1..4 {
        work_a_while(&mut guest, 300);
        if round == 2 {
            told(&source, "volume resize a 20MiB");
        }
        told(&source, &format!("volume snapshot a --name s{round}"));
        beside(&mut guest, || {
            send(&source, &format!("a@s{round} --from a@s{}", round - 1), &file);
            received(&target, "backup", &file);
            // The same once more has no effect.
            received(&target, "backup", &file);
        });
        let snapshot = format!("s{round}");
        let (from, to) = (format!("a@{snapshot}"), format!("backup@{snapshot}"));
        compare(home.path(), (&source, &from), (&target, &to));
    }
    for round in 0..4 {
        let (from, to) = (format!("a@s{round}"), format!("backup@s{round}"));
        compare(home.path(), (&source, &from), (&target, &to));
    }
    let whole = vrio(&["volume", "verify", file.to_str().expect("a plain path")]);
    assert!(said(&whole).starts_with("whole: a difference to a snapshot \"s3\""), "{whole:?}");
    check(&mut guest);

    // The copy is a volume as any other one, and the way back is a stream as well.
    told(&target, "volume add backup --pool p");
    told(&target, "disk add --volume backup --socket b.sock --queues 2");
    let other = connect(&mut target, "b", mix(), &mut random);
    refused_if_changed(home.path(), &source, &target, &mut guest, other);
    source.stop().expect("an orderly end");
    target.stop().expect("an orderly end");
}

/// A volume that is served, or was changed, is not received into.
fn refused_if_changed(
    home: &Path,
    source: &Node,
    target: &Node,
    guest: &mut StandIn,
    other: StandIn,
) {
    let file = home.join("next.stream");
    work_a_while(guest, 300);
    told(source, "volume snapshot a --name s4");
    send(source, "a@s4 --from a@s3", &file);
    let (done, text) = receive(target, "backup", &file);
    assert!(!done && text.contains("this node serves it"), "{text}");
    other.disconnect();
    told(target, "disk remove b --force");
    told(target, "volume resize backup 24MiB");
    told(target, "volume remove backup");
    let (done, text) = receive(target, "backup", &file);
    assert!(!done && text.contains("was changed since the snapshot"), "{text}");
    told(target, "volume add backup --pool p");
    told(target, "volume rollback backup s3");
    told(target, "volume remove backup");
    // Another base, and none.
    let wrong = home.join("wrong.stream");
    send(source, "a@s4 --from a@s1", &wrong);
    let (done, text) = receive(target, "backup", &wrong);
    assert!(!done && text.contains("was changed since the snapshot"), "{text}");
    let (done, text) = receive(target, "new", &file);
    assert!(!done && text.contains("does not have the snapshot"), "{text}");
    send(source, "a@s4", &wrong);
    let (done, text) = receive(target, "backup", &wrong);
    assert!(!done && text.contains("is a whole snapshot"), "{text}");
    received(target, "backup", &file);
    compare(home, (source, "a@s4"), (target, "backup@s4"));
    // All of a copy goes on to a third volume with the identity of the original, and so it has the
    // same later differences.
    send(target, "backup@s3", &wrong);
    received(source, "third", &wrong);
    received(source, "third", &file);
    compare(home, (source, "a@s4"), (source, "third@s4"));
}

/// A raw file with data that no compression makes smaller, and holes.
fn raw_file(path: &Path, mib: usize, random: &mut Random) {
    let file = File::create_new(path).expect("a file");
    file.set_len((mib * MIB + 512) as u64).expect("its length");
    for at in (0..mib).filter(|at| at % 4 != 3) {
        let mut bytes = vec![0; MIB];
        bytes.chunks_exact_mut(8).for_each(|word| {
            word.copy_from_slice(&random.below(u64::MAX).to_le_bytes());
        });
        file.write_all_at(&bytes, (at * MIB) as u64).expect("it is written");
    }
}

fn receiving(node: &Node, words: &str) -> Child {
    let mut command = command(node, words);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("it runs")
}

/// How much of a volume was received.
fn received_bytes(node: &Node) -> u64 {
    let pool = pool(node);
    let volumes = pool["volumes"].as_array().expect("a list");
    let found = volumes.iter().find_map(|it| it["receiving"]["received_bytes"].as_u64());
    found.unwrap_or_default()
}

fn wait_for(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_stream_survives_kills_hand_overs_and_cuts() {
    let home = tempfile::tempdir().expect("a directory");
    let (here, there) = two_homes(home.path());
    let source = plan_with_pool(&here, "256MiB", "").start().expect("a node");
    let mut target = plan_with_pool(&there, "256MiB", "").start().expect("a node");
    let raw = home.path().join("image.raw");
    raw_file(&raw, 48, &mut Random::new(22));
    told(&source, &format!("volume import a --pool p {}", raw.display()));
    let file = home.path().join("a.stream");
    send(&source, "a@imported", &file);
    let stream = std::fs::read(&file).expect("it was sent");
    let third = stream.len() / 3;

    // The receiver's node is killed, and then handed over, in the middle of a pipe.
    let mut child = receiving(&target, "volume receive p backup");
    let mut pipe = child.stdin.take().expect("a pipe");
    pipe.write_all(&stream[..third]).expect("it reads");
    wait_for("a part is received", || received_bytes(&target) > 0);
    target = target.kill().expect("it ran").start().expect("it opens the pool again");
    let kept = received_bytes(&target);
    assert!(kept > 0 && kept < 48 << 20, "{kept}");
    pipe.write_all(&stream[third..2 * third]).expect("it reads");
    wait_for("more is received", || received_bytes(&target) > kept);
    target = target.hand_over().expect("it is handed over");
    pipe.write_all(&stream[2 * third..]).expect("it reads");
    drop(pipe);
    let done = child.wait_with_output().expect("it ends");
    assert!(done.status.success(), "{}\n{}", said(&done), target.log_tail());
    compare(home.path(), (&source, "a@imported"), (&target, "backup@imported"));

    cut_and_resumed(home.path(), &source, &target, &stream);
    source.stop().expect("an orderly end");
    target.stop().expect("an orderly end");
}

/// A stream that is cut goes on with a token, or is given up.
fn cut_and_resumed(home: &Path, source: &Node, target: &Node, stream: &[u8]) {
    let cut = home.join("cut.stream");
    std::fs::write(&cut, &stream[..stream.len() / 2]).expect("a file");
    let (done, cut_text) = receive(target, "copy", &cut);
    assert!(!done && cut_text.contains("the stream was cut at block"), "{cut_text}");
    let verified = vrio(&["volume", "verify", cut.to_str().expect("a plain path")]);
    assert!(!verified.status.success() && said(&verified).contains("was cut"), "{verified:?}");
    let (done, text) = tried(target, "volume add copy --pool p");
    assert!(done, "{text}");
    // The text is folded to the width of a terminal.
    let shown = told(target, "volume show copy");
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(shown.contains("a stream is being received into it"), "{shown}");
    told(target, "volume remove copy");
    let listed = told(target, "volume snapshots");
    assert!(!listed.contains("copy"), "{listed}");

    let status = told(target, "volume receive p copy --status");
    let token = status.split_whitespace().last().expect("a token");
    assert!(cut_text.contains(token) && token.starts_with("vrio1-"), "{status}{cut_text}");
    let rest = home.join("rest.stream");
    send(source, &format!("--resume {token}"), &rest);
    let rest_bytes = std::fs::metadata(&rest).expect("a file").len();
    assert!(rest_bytes < stream.len() as u64 * 3 / 4, "{rest_bytes} of {}", stream.len());
    // The rest alone is nothing for a volume that lacks the front.
    let (done, text) = receive(target, "other", &rest);
    assert!(!done && text.contains("the stream begins at block"), "{text}");
    received(target, "copy", &rest);
    compare(home, (source, "a@imported"), (target, "copy@imported"));

    let (done, _) = receive(target, "other", &cut);
    assert!(!done);
    assert!(told(target, "volume receive p other --give-up").contains("remove volume \"other\""));
    let (done, text) = tried(target, "volume receive p other --status");
    assert!(!done && text.contains("no stream is being received"), "{text}");

    // A damaged byte in the middle.
    let mut wrong = stream.to_vec();
    wrong[FRONT_BYTES + 10 * MIB] ^= 1;
    std::fs::write(&cut, &wrong).expect("a file");
    let (done, text) = receive(target, "other", &cut);
    assert!(!done && text.contains("is damaged, or of another stream"), "{text}");
    received(target, "other", &home.join("a.stream"));
    compare(home, (source, "a@imported"), (target, "other@imported"));
}

#[test]
fn images_are_imported_and_exported() {
    let home = tempfile::tempdir().expect("a directory");
    let node = plan_with_pool(home.path(), "192MiB", "").start().expect("a node");
    let raw = home.path().join("image.raw");
    raw_file(&raw, 12, &mut Random::new(23));
    let mut wanted = std::fs::read(&raw).expect("ours");
    wanted.resize(wanted.len().next_multiple_of(4096), 0);
    let path = |name: &str| home.path().join(name).display().to_string();
    told(&node, &format!("volume import a --pool p {}", raw.display()));
    told(&node, &format!("volume export a@imported {}", path("out.raw")));
    assert!(std::fs::read(path("out.raw")).expect("it was exported") == wanted);
    let used = pool(&node)["used_bytes"].as_u64().expect("a number");
    assert!(used < 11 << 20, "holes take no space: {used}");

    told(&node, &format!("volume export a@imported {} --format qcow2", path("out.qcow2")));
    let (done, text) = tried(&node, &format!("volume export a@imported {}", path("out.qcow2")));
    assert!(!done && text.contains("is there already"), "{text}");
    let (done, text) = tried(&node, &format!("volume import b --pool p {}", path("out.qcow2")));
    assert!(!done && text.contains("looks like a qcow2 image"), "{text}");
    told(&node, &format!("volume import b --pool p {} --format qcow2", path("out.qcow2")));
    told(&node, &format!("volume export b@imported {}", path("again.raw")));
    assert!(std::fs::read(path("again.raw")).expect("it was exported") == wanted);
    let (done, text) = tried(&node, &format!("volume import a --pool p {}", raw.display()));
    assert!(!done && text.contains("there is a volume \"a\" already"), "{text}");

    // An image of a stranger that would show a file of this host.
    let secret = path("secret");
    std::fs::write(&secret, vec![7; MIB]).expect("a file");
    let qemu_img = |words: &[&str]| {
        let done = Command::new("qemu-img").args(words).output().expect("qemu-img");
        assert!(done.status.success(), "{}", said(&done));
    };
    let (backed, outside) = (path("backed.qcow2"), path("outside.qcow2"));
    qemu_img(&["create", "-q", "-f", "qcow2", "-b", &secret, "-F", "raw", &backed]);
    let option = format!("data_file={},data_file_raw=on", path("data.raw"));
    qemu_img(&["create", "-q", "-f", "qcow2", "-o", &option, &outside, "1M"]);
    for (image, wanted) in [(&backed, "has a backing file"), (&outside, "in another file")] {
        let import = format!("volume import c --pool p {image} --format qcow2");
        let (done, text) = tried(&node, &import);
        assert!(!done && text.contains(wanted), "{text}");
    }
    // A copy that ended early, of which qemu-img would read zeroes.
    let whole = std::fs::read(path("out.qcow2")).expect("it was exported");
    let short = path("short.qcow2");
    std::fs::write(&short, &whole[..whole.len() / 2]).expect("a file");
    let (done, text) = tried(&node, &format!("volume import c --pool p {short} --format qcow2"));
    assert!(!done && text.contains("is damaged or cut off"), "{text}");
    let names: Vec<_> = std::fs::read_dir(home.path()).expect("ours").flatten().collect();
    let left = names.iter().filter(|it| it.file_name().to_string_lossy().contains(".qcow2."));
    assert_eq!(left.count(), 0, "{names:?}");
    node.stop().expect("an orderly end");
}

/// A request of an attacker: the answer, or nothing.
fn ask(node: &Node, head: &str, body: &[u8], length: usize) -> String {
    let mut stream = UnixStream::connect(node.plan().control()).expect("the node listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    let head = format!("{head} HTTP/1.0\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
    // The node may refuse before it has read everything.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Something is done beside callers that send the front of a part, then a byte now and then, and
/// come again when they are cut off.
fn beside_drippers(node: &Node, place: &str, count: usize, work: impl FnOnce()) {
    let front = format!("{place} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nabc");
    let is_over = AtomicBool::new(false);
    let drip = || {
        while !is_over.load(Relaxed) {
            let Ok(mut stream) = UnixStream::connect(node.plan().control()) else { continue };
            let mut sent = stream.write_all(front.as_bytes());
            while sent.is_ok() && !is_over.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(50));
                sent = stream.write_all(b"x");
            }
        }
    };
    std::thread::scope(|scope| {
        (0..count).for_each(|_| drop(scope.spawn(drip)));
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        is_over.store(true, Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn hostile_callers_get_errors_and_others_are_served() {
    let home = tempfile::tempdir().expect("a directory");
    let node = plan_with_pool(home.path(), "128MiB", VOLUME).start().expect("a node");
    told(&node, "volume snapshot a --name s");
    let file = home.path().join("a.stream");
    send(&node, "a@s", &file);
    let stream = std::fs::read(&file).expect("it was sent");
    let (header, part) = (&stream[..256], &stream[256..stream.len() - 40]);
    let place = "/v1/pools/p/receive/x";
    let garbage = vec![0xa5; 9 * MIB];
    for (head, body, code, says) in [
        (format!("PUT {place}"), part, "404", "no stream is being received"),
        (format!("POST {place}/end"), header, "404", "no stream is being received"),
        (format!("DELETE {place}"), &[][..], "404", "no stream is being received"),
        (format!("POST {place}"), &header[..255], "400", "no stream of a volume"),
        (format!("POST {place}"), &stream[..], "400", "was not received"),
        (format!("POST {place}"), &garbage[..256], "400", "no stream of a volume"),
        ("POST /v1/pools/q/receive/x".to_owned(), header, "404", "there is no pool"),
        ("POST /v1/pools/p/receive/a".to_owned(), header, "409", "this node serves it"),
        ("POST /v1/pools/p/receive/%2e%2e".to_owned(), header, "409", "is no name"),
        (format!("POST {place}"), header, "200", "\"complete\":false"),
        (format!("POST {place}"), header, "200", "\"complete\":false"),
        (format!("POST {place}/end"), header, "409", "received up to block 0"),
        (format!("PUT {place}"), &garbage[..], "400", "was not received"),
        (format!("PUT {place}"), &garbage[..MIB], "400", "no stream of a volume"),
        (format!("PUT {place}"), &[], "400", "no stream of a volume"),
        (format!("PUT {place}"), &part[..part.len() - 1], "400", "no stream of a volume"),
        (format!("PUT {place}"), part, "200", "\"complete\":false"),
        (format!("PUT {place}"), part, "200", "\"complete\":false"),
        (format!("POST {place}/end"), header, "200", "\"complete\":true"),
        (format!("POST {place}/end"), header, "200", "\"complete\":true"),
        (format!("PUT {place}"), part, "409", "its last one has ended"),
        (format!("DELETE {place}"), &[], "409", "its last one has ended"),
        ("GET /v1/streams/part?token=vrio1-00".to_owned(), &[], "400", "no token"),
        ("GET /v1/streams?to=a@none".to_owned(), &[], "404", "no snapshot"),
    ] {
        let answer = ask(&node, &head, body, body.len());
        assert_eq!(answer.split(' ').nth(1), Some(code), "{head}: {answer}");
        assert!(answer.contains(says), "{head}: {answer}");
    }
    let place = format!("PUT {place}");
    // As many as may be at work or wait, and more.
    beside_drippers(&node, &place, 40, || {
        wait_for("others are refused", || {
            let answer = ask(&node, &place, part, part.len());
            answer.contains("503") && answer.contains("4 requests for parts")
        });
        // They are not in the way of callers that read a stream.
        let header = ask(&node, "GET /v1/streams?to=a@s", &[], 0);
        assert_eq!(header.split(' ').nth(1), Some("200"), "{header}");
        send(&node, "a@s", &home.path().join("meanwhile.stream"));
        // The rest of the node answers.
        assert!(told(&node, "status").contains("POOLS"));
    });
    // As many as may be at work: each of them loses its turn to a caller that waits.
    beside_drippers(&node, &place, 4, || received(&node, "neighbour", &file));
    let late = format!("{place} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc");
    let mut stream = UnixStream::connect(node.plan().control()).expect("it listens");
    stream.write_all(late.as_bytes()).expect("it reads");
    let mut answer = [0; 4096];
    let length = stream.read(&mut answer).expect("an answer");
    let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
    assert!(answer.contains("503") && answer.contains("it came too slowly: 3 bytes"), "{answer}");
    let answer: Value = serde_json::from_str(&told(&node, "pool show p --json")).expect("JSON");
    assert_eq!(answer["state"], "ok", "{answer}");
    node.stop().expect("an orderly end");
}

/// The script of docs/pools.md that makes a backup of volume `a`.
fn backup_script() -> String {
    let page = std::fs::read_to_string("../docs/pools.md").expect("the page");
    let from = page.find("    #!/bin/sh\n    set -eu\n").expect("the script");
    let lines = page[from..].lines().take_while(|line| line.is_empty() || line.starts_with("    "));
    let script: String =
        lines.map(|line| format!("{}\n", line.trim_start_matches("    "))).collect();
    assert!(script.contains("volume=alice pool=p"), "{script}");
    script.replace("volume=alice", "volume=a")
}

/// A directory of commands: `vrio` asks the first node, and `ssh` the second node.
fn commands(home: &Path, here: &Node, there: &Node) -> PathBuf {
    let bin = home.join("bin");
    std::fs::create_dir(&bin).expect("a directory");
    for (name, node, shift) in [("vrio", here, ""), ("ssh", there, "shift 2\n")] {
        let (program, control) = (env!("CARGO_BIN_EXE_vrio"), node.plan().control());
        let text =
            format!("#!/bin/sh\n{shift}exec {program} \"$@\" --control {}\n", control.display());
        let file = bin.join(name);
        std::fs::write(&file, text).expect("a file");
        std::fs::set_permissions(&file, Permissions::from_mode(0o755)).expect("ours");
    }
    bin
}

#[test]
fn the_backup_script_of_the_documents_goes_on_after_an_interruption() {
    let home = tempfile::tempdir().expect("a directory");
    let (here, there) = two_homes(home.path());
    let mut random = Random::new(27);
    let mut source = plan_with_pool(&here, "192MiB", VOLUME).start().expect("a node");
    let target = plan_with_pool(&there, "192MiB", "").start().expect("a node");
    let mut guest = connect(&mut source, "a", mix(), &mut random);
    let bin = commands(home.path(), &source, &target);
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("a path"));
    let script = home.path().join("backup");
    std::fs::write(&script, backup_script()).expect("a file");
    let snapshots = |node: &Node| -> Vec<String> {
        let all: Vec<Value> =
            serde_json::from_str(&told(node, "volume snapshots a --json")).expect("JSON");
        all.iter().map(|it| it["name"].as_str().expect("a name").to_owned()).collect()
    };
    for round in 1..4 {
        work_a_while(&mut guest, 300);
        if round == 3 {
            // A run that ends in the middle of its stream.
            told(&source, "volume snapshot a --name hourly-20000101T000000Z");
            let file = home.path().join("cut.stream");
            let base = snapshots(&target).pop().expect("the last backup");
            send(&source, &format!("a@hourly-20000101T000000Z --from {base}"), &file);
            let stream = std::fs::read(&file).expect("it was sent");
            std::fs::write(&file, &stream[..stream.len() - 100]).expect("a file");
            let (done, text) = receive(&target, "a", &file);
            assert!(!done, "{text}");
            work_a_while(&mut guest, 300);
        }
        let done =
            Command::new("/bin/sh").arg(&script).env("PATH", &path).output().expect("a shell");
        assert!(done.status.success(), "round {round}: {}", said(&done));
        let (ours, theirs) = (snapshots(&source), snapshots(&target));
        assert_eq!(ours.len(), 1, "{ours:?}");
        assert_eq!(theirs.len(), if round == 3 { 4 } else { round }, "{theirs:?}");
        let last = &*ours[0];
        assert!(theirs.iter().any(|it| it == last), "{last} {theirs:?}");
        compare(home.path(), (&source, last), (&target, last));
        // The names have seconds.
        std::thread::sleep(Duration::from_millis(1100));
    }
    source.stop().expect("an orderly end");
    target.stop().expect("an orderly end");
}
