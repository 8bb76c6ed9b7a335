//! Configuration files, good and bad: the examples load, and every mistake has a clear answer.

use std::num::NonZeroU64;
use std::path::Path;

use config::Config;
use config::{BackendConfig, Kind, LinkKind, PeerAddress, Role, StageConfig, Trust, WhenLost};
use expect_test::{Expect, expect};
use volume::backend::{BACKEND_KEYS, BACKENDS, FileBackend};
use volume::stage::{Limit, Metering, STAGES};

fn example(name: &str) -> Config {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(name);
    Config::load(&path).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_iohost_example_loads() {
    let config = example("io1.toml");
    assert_eq!(config.name, "io1");
    assert_eq!(config.listen, Some("10.0.0.9:4870".parse().unwrap()));
    assert_eq!(
        (config.trust, config.key.as_deref()),
        (Trust::Loopback, Some(Path::new("/etc/vrio/io1.key")))
    );
    let [peer] = &config.peers[..] else { panic!("one peer") };
    assert_eq!((peer.name.as_str(), &peer.address, peer.keys.len()), ("vm1", &None, 1));
    assert_eq!(config.sidecores.cores, [Some(0)]);
    assert_eq!(config.sidecores.idle, sidecore::Idle::Adaptive);
    assert_eq!(config.control, Path::new("/run/vrio/io1.control"));
    assert_eq!(config.directories.state.as_deref(), Some(Path::new("/var/lib/vrio/.vrio")));
    let [volume] = &config.volumes[..] else { panic!("one volume") };
    assert_eq!(volume.name, "alice-root");
    let path = "/var/lib/vrio/alice.img".into();
    let size_bytes = Some(20 << 30);
    let expected = FileBackend { path, size_bytes, direct: true, raw: false };
    assert_eq!(volume.backend, BackendConfig::File(expected));
    assert!(!volume.write_through);
    let limit = StageConfig::Limit(Limit { iops: NonZeroU64::new(50000), ..Limit::default() });
    assert_eq!(volume.chain, [StageConfig::Meter(Metering), limit]);
    let [allow] = &volume.allow[..] else { panic!("one entry") };
    assert_eq!((allow.node.as_str(), allow.key.is_some()), ("vm1", true));
    assert!(config.disks.is_empty());
}

#[test]
fn the_vmhost_example_loads() {
    let config = example("vm1.toml");
    assert_eq!(config.sidecores.cores, [Some(1)]);
    assert_eq!(config.control, Path::new("/run/vrio/vm1.control"));
    let [disk] = &config.disks[..] else { panic!("one disk") };
    assert_eq!(disk.name, "alice");
    assert_eq!(disk.attachment, "alice");
    assert_eq!(disk.socket, Path::new("/run/vrio/alice.sock"));
    assert_eq!(disk.role, Role::Listen);
    assert_eq!(disk.volume.to_string(), "io1/alice-root");
    assert_eq!(disk.queues, 4);
    assert_eq!(disk.when_lost, WhenLost::Wait);
    assert_eq!(disk.attachment_key.as_deref(), Some(Path::new("/etc/vrio/alice.key")));
    let io1 = config.peer("io1").unwrap();
    let address = PeerAddress::Network("10.0.0.9:4870".parse().unwrap());
    assert_eq!(io1.address, Some(address));
    assert_eq!((io1.keys.len(), io1.keys[0].expires_unix_s), (1, None));
}

#[test]
fn a_peer_on_this_machine_is_reached_by_its_socket() {
    let text = "name = \"vm1\"\nlisten = \"127.0.0.1:4870\"\nshm = \"vm1.shm\"\n\
                [directories]\nsockets = \"/run/vrio\"\n\
                [[peer]]\nname = \"io1\"\naddress = \"shm:/run/vrio/io1.shm\"\n";
    let config = Config::parse(Path::new("vm1.toml"), text).unwrap();
    assert_eq!(config.shm.as_deref(), Some(Path::new("/run/vrio/vm1.shm")));
    let address = PeerAddress::Shared("/run/vrio/io1.shm".into());
    assert_eq!(address.to_string(), "shm:/run/vrio/io1.shm");
    assert_eq!(config.peer("io1").unwrap().address, Some(address));
    let relative = text.replace("shm:/run/vrio/", "shm:");
    let error = Config::parse(Path::new("vm1.toml"), &relative).unwrap_err().to_string();
    assert!(error.contains("vm1.toml:8") && error.contains("not an absolute path"), "{error}");
}

#[test]
fn sockets_for_shared_memory_that_cannot_be_are_named() {
    check(
        "name = \"vm1\"\ncontrol = \"/run/vrio/a.sock\"\nshm = \"a.sock\"\n\
         [directories]\nsockets = \"/run/vrio\"\n\
         [[peer]]\nname = \"io1\"\naddress = \"shm:/run/vrio/io1.shm\"\n\
         [[disk]]\nsocket = \"a.sock\"\nvolume = \"io1/a\"\n",
        &expect![[r#"
            a.toml: the key "listen" is missing (peers answer to an address); write for
                instance listen = "10.0.0.9:4870"
            a.toml:2: the control socket "/run/vrio/a.sock" is a disk's as well
            a.toml:3: the shm socket "/run/vrio/a.sock" is a disk's as well
            a.toml:3: the shm socket "/run/vrio/a.sock" is the control socket as well
        "#]],
    );
    let alone = "name = \"io1\"\nshm = \"io1.shm\"\n[directories]\nsockets = \"/run/v\"\n";
    check(
        alone,
        &expect![[r#"
        a.toml: the key "listen" is missing ("shm" is for other nodes); write for
            instance listen = "10.0.0.9:4870"
    "#]],
    );
    let long = "x".repeat(110);
    let text = format!("name = \"a\"\n[[peer]]\nname = \"b\"\naddress = \"shm:/{long}\"\n");
    let error = Config::parse(Path::new("a.toml"), &text).unwrap_err().to_string();
    let wanted = ["a.toml:4: peer \"b\": the socket's path", "has 111 bytes"];
    assert!(wanted.iter().all(|wanted| error.contains(wanted)), "{error}");
}

/// The errors of a text, as the operator sees them.
pub(crate) fn check(text: &str, expect: &Expect) {
    let error = Config::parse(Path::new("a.toml"), text).expect_err("this has to be refused");
    // A new line of a table changes no test.
    let backends: Vec<_> = BACKENDS.iter().map(|kind| kind.example).collect();
    let stages: Vec<_> = STAGES.iter().map(|kind| kind.name).collect();
    let text = error.to_string().replace(&backends.join(", "), "BACKENDS");
    let text = text.replace(&stages.join(", "), "STAGES");
    let text = text.replace(&BACKEND_KEYS.join(", "), "BACKEND_KEYS");
    let kinds: Vec<_> = Kind::all().map(Kind::key).collect();
    let text = text.replace(&kinds.join(", "), "KINDS");
    expect.assert_eq(&wrapped(&text));
}

/// Long lines continue below, indented, so that they can be read here.
fn wrapped(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let mut column = 0;
        for word in line.split(' ') {
            if column + word.len() > 76 {
                out.push_str("\n   ");
                column = 3;
            }
            let space = if column == 0 { "" } else { " " };
            out.push_str(space);
            out.push_str(word);
            column += space.len() + word.len();
        }
        out.push('\n');
    }
    out
}

#[test]
fn every_problem_is_told_at_once_in_order() {
    check(
        r#"
name = "io 1"
lisen = "127.0.0.1:4870"
[sidecores]
cores = [0, 0]
idle = "adaptve"
[[volume]]
name = "a"
backend = { file = "a.img", sise = "1GiB" }
durability = "flsh"
"#,
        &expect![[r#"
            a.toml:2: "name": "io 1" is no name: a name has letters, digits, '-', '_' and
                '.', and begins with a letter or digit
            a.toml:3: unknown key "lisen"; did you mean "listen"? (known: name, listen,
                shm, fabric, key, trust, control, metrics-listen, user, privileges,
                watchdog, memory, sidecores, directories, cluster, KINDS, link)
            a.toml:9: volume "a": unknown key "sise"; did you mean "size"? (known:
                BACKEND_KEYS)
            a.toml:9: volume "a": "file": no directory for volumes is named; write
                [directories] volumes = ".."
            a.toml:10: volume "a": "durability": unknown word "flsh"; did you mean
                "flush"? (known: flush, write-through)
        "#]],
    );
}

#[test]
fn a_socket_has_its_owner_by_numbers_and_a_mode() {
    check(
        "name = \"vm1\"\n[directories]\nsockets = \"/s\"\n[[volume]]\nname = \"a\"\n\
         backend = { memory = \"1MiB\" }\n[[disk]]\nsocket = \"a.sock\"\nvolume = \"a\"\n\
         socket-user = -1\nsocket-mode = \"1777\"\n[[disk]]\nsocket = \"b.sock\"\n\
         volume = \"a\"\nrole = \"connect\"\nsocket-group = 7\n",
        &expect![[r#"
            a.toml:10: disk "a.sock": "socket-user": -1 is out of range; from 0 to
                4294967294 is allowed
            a.toml:11: disk "a.sock": "socket-mode": "1777" is not a mode; write three
                octal digits, such as "0660"
            a.toml:15: disk "b.sock": the VMM makes this socket and decides about its
                access; remove "socket-user", "socket-group" and "socket-mode"
        "#]],
    );
}

#[test]
fn sidecores_with_queues_are_some_of_those_there_are() {
    let limits = |text: &str| {
        let text = format!("name = \"vm1\"\n[sidecores]\n{text}");
        let sidecores = Config::parse(Path::new("a.toml"), &text).expect("it is right").sidecores;
        (sidecores.min, sidecores.max, sidecores.steers())
    };
    assert_eq!(limits(""), (1, 1, false));
    assert_eq!(limits("count = 4"), (4, 4, false));
    assert_eq!(limits("count = 4\nmin = 4\nmax = 4"), (4, 4, false));
    assert_eq!(limits("count = 4\nmin = 1"), (1, 4, true));
    assert_eq!(limits("cores = [2, 3, 5]\nmin = 1\nmax = 2"), (1, 2, true));
    assert_eq!(limits("count = 4\nmax = 2"), (2, 2, true));
    check(
        "name = \"vm1\"\n[sidecores]\ncount = 2\nmin = 0\nmax = 3\n",
        &expect![[r#"
        a.toml:4: [sidecores]: "min": 0 is out of range; from 1 to 64 is allowed
        a.toml:5: [sidecores]: "max": 3 sidecores are more than the node has (2);
            raise "count" or name more "cores"
    "#]],
    );
    check(
        "name = \"vm1\"\n[sidecores]\ncores = [0, 1, 2]\nmin = 3\nmax = 2\n",
        &expect![[r#"
        a.toml:4: [sidecores]: "min" (3) is more than "max" (2); swap them
    "#]],
    );
    check(
        "name = \"vm1\"\n[sidecores]\nmin = 2\n",
        &expect![[r#"
        a.toml:3: [sidecores]: "min": 2 sidecores are more than the node has (1);
            raise "count" or name more "cores"
    "#]],
    );
}

#[test]
fn a_duplicate_key_is_refused() {
    check(
        "name = \"io1\"\nname = \"io2\"\n[sidecores]\nidle = \"spin\"\nidle = \"sleep\"\n",
        &expect![[r#"
            a.toml:2: the key "name" is given twice; keep one of the two
            a.toml:5: the key "idle" is given twice; keep one of the two
        "#]],
    );
}

#[test]
fn a_duplicate_section_is_refused() {
    check(
        "name = \"io1\"\n[sidecores]\n[sidecores]\n",
        &expect![[r#"
            a.toml:3: the key "sidecores" is given twice; keep one of the two
        "#]],
    );
}

#[test]
fn malformed_toml_is_refused() {
    check(
        "name = io1\n",
        &expect![[r#"
            a.toml:1: this is not TOML: invalid float, expected `inf` (a text needs
                "quotes")
        "#]],
    );
    check(
        "name = \"io1\n",
        &expect![[r#"
            a.toml:1: this is not TOML: invalid basic string, expected `"`
        "#]],
    );
}

#[test]
fn an_empty_file_lacks_a_name() {
    check(
        "",
        &expect![[r#"
            a.toml:1: the key "name" is missing; write for instance name = "io1"
        "#]],
    );
}

#[test]
fn values_of_the_wrong_kind_are_refused() {
    check(
        r#"
name = "io1"
listen = 4870
sidecores = 2
[directories]
volumes = 1
[[volume]]
name = true
backend = "a.img"
chain = "meter"
[volume.allow]
"#,
        &expect![[r#"
            a.toml:3: "listen": this is a whole number, but a text in quotes is wanted
            a.toml:4: [sidecores]: "sidecores": this is a whole number, but a table, { ..
                }, is wanted
            a.toml:6: [directories]: "volumes": this is a whole number, but a text in
                quotes is wanted
            a.toml:8: volume 1: "name": this is true or false, but a text in quotes is
                wanted
            a.toml:9: volume 1: "backend": this is a text, but a table, { .. }, is wanted
            a.toml:10: volume 1: "chain": this is a text, but a list, [ .. ], is wanted
            a.toml:11: volume 1: "allow": this is a table, but a list, [ .. ], is wanted
        "#]],
    );
}

#[test]
fn listening_to_the_world_needs_a_key_or_trust() {
    check(
        "name = \"io1\"\nlisten = \"10.0.0.9:4870\"\n",
        &expect![[r#"
            a.toml:2: "listen": 10.0.0.9:4870 is not a loopback address, and without a
                key every host that reaches it can read and write the volumes. Make a key
                with `vrio key new FILE` and write key = "FILE"; or, if you trust
                everything that reaches the address, write trust = "network"; or listen
                on 127.0.0.1:4870
        "#]],
    );
    check(
        "name = \"io1\"\nlisten = \"[::]:4870\"\ntrust = \"network\"\n",
        &expect![[r#"
            a.toml:2: "listen": [::]:4870 means every address, and peers need a single
                one; write the address that they reach
        "#]],
    );
    check(
        "name = \"io1\"\nlisten = \"10.0.0.9\"\ntrust = \"netwrok\"\n",
        &expect![[r#"
            a.toml:2: "listen": "10.0.0.9" is not an address with a port; write for
                instance "10.0.0.9:4870" or "[fd00::9]:4870" (names are not looked up)
            a.toml:3: "trust": unknown word "netwrok"; did you mean "network"? (known:
                network)
        "#]],
    );
    for listen in ["127.0.0.1:4870", "127.3.0.1:1", "[::1]:4870"] {
        let text = format!("name = \"io1\"\nlisten = \"{listen}\"\n");
        Config::parse(Path::new("a.toml"), &text).unwrap();
    }
}

const BAD_VOLUMES: &str = r#"
name = "io1"
listen = "127.0.0.1:0"
[directories]
volumes = ["/var/lib/vrio", "/dev"]
[[volume]]
name = "up"
backend = { file = "../etc/shadow" }
[[volume]]
name = "out"
backend = { file = "/etc/shadow" }
[[volume]]
name = "both"
backend = { file = "a", memory = "1GiB" }
[[volume]]
name = "unit"
backend = { memory = "1G" }
[[volume]]
name = "direct"
backend = { memory = "1GiB", direct = true }
[[volume]]
name = "new"
backend = { file = "new.img", size = "1000B" }
[[volume]]
name = "device"
backend = { file = "/dev/nvme0n1", direct = true }
read-only = 1
chain = ["metre", "limit", { limit = {} }, { limit = { iops = 0 } }]
allow = ["io1", "v m"]
[[volume]]
name = "device"
backend = { null = "1TiB" }
read-only = true
shared = "yes"
"#;

#[test]
fn volumes_are_checked() {
    check(
        BAD_VOLUMES,
        &expect![[r#"
            a.toml:3: "listen": port 0 is another port at each start, and other nodes
                could not find this one again; write a port, such as 4870
            a.toml:8: volume "up": "file": "../etc/shadow" is not the name of a file in
                "/var/lib/vrio"
            a.toml:11: volume "out": "file": "/etc/shadow" is outside the directories
                that "volumes" names (/var/lib/vrio, /dev); put it there, or add its
                directory: volumes = ["..", "/etc"]
            a.toml:14: volume "both": "backend": name exactly one of BACKENDS
            a.toml:17: volume "unit": "memory": "1G" is not a size ("G" is no unit; the
                units are B, KiB, MiB, GiB, TiB, kB, MB, GB, TB); write for instance
                "20GiB", "512MiB" or "10GB"
            a.toml:20: volume "direct": "direct": this belongs to a file; "memory" itself
                gives the size
            a.toml:23: volume "new": "size": 1000 bytes are not a whole number of sectors
                (512 bytes)
            a.toml:27: volume "device": "read-only": this is a whole number, but true or
                false is wanted
            a.toml:28: volume "device": "chain", entry 1: unknown stage "metre"; did you
                mean "meter"? (known: STAGES)
            a.toml:28: volume "device": "chain", entry 2: a limit needs a rate: { limit =
                { iops = 50000 } }
            a.toml:28: volume "device": "limit": a limit needs "iops", "bytes-per-second"
                or both
            a.toml:28: volume "device": "iops": 0 is out of range; from 1 to 1000000000
                is allowed
            a.toml:29: volume "device": "allow", entry 2: "v m" is no name: a name has
                letters, digits, '-', '_' and '.', and begins with a letter or digit
            a.toml:29: volume "device": "allow": disks and nics of this node are always
                allowed; name other nodes here
            a.toml:31: volume "device": "name": the volume of line 25 has the same name
            a.toml:33: volume "device": "read-only": a null volume is for measuring, and
                takes writes
            a.toml:34: volume "device": "shared": this is a text, but true or false is
                wanted
        "#]],
    );
}

#[test]
fn a_file_has_the_layout_that_is_said() {
    let text = |keys: &str| {
        format!("name = \"n\"\n[directories]\nvolumes = \"/v\"\n[[volume]]\nname = \"a\"\n{keys}\n")
    };
    let file = "backend = { file = \"a.img\" }\n";
    let keys = format!("{file}physical-block-size = \"16KiB\"\noptimal-io-size = \"1MiB\"");
    let config = Config::parse(Path::new("n.toml"), &text(&keys)).unwrap();
    let topology = config.volumes[0].topology;
    assert_eq!((topology.physical_bytes, topology.optimal_bytes), (16384, 1 << 20));
    let config = Config::parse(Path::new("n.toml"), &text(file)).unwrap();
    assert_eq!(config.volumes[0].topology, Default::default());
    for (keys, says) in [
        (format!("{file}physical-block-size = \"128KiB\""), "a power of two from 512 to 64KiB"),
        (format!("{file}physical-block-size = \"3KiB\""), "a power of two from 512 to 64KiB"),
        (format!("{file}optimal-io-size = \"256B\""), "a power of two from 512 to 1GiB"),
        ("backend = { null = \"1MiB\" }\noptimal-io-size = \"512B\"".to_owned(), "only a file"),
        (format!("{file}block-size = 512"), "block-size"),
    ] {
        let error = Config::parse(Path::new("n.toml"), &text(&keys)).unwrap_err().to_string();
        assert!(error.contains(says), "{keys}: {error}");
    }
}

#[test]
fn a_file_that_is_written_belongs_to_one_volume() {
    let text = |read_only: bool| {
        format!(
            "name = \"a\"\n[directories]\nvolumes = \"/v\"\n\
             [[volume]]\nname = \"x\"\nbackend = {{ file = \"f\" }}\nread-only = {read_only}\n\
             [[volume]]\nname = \"y\"\nbackend = {{ file = \"f\" }}\nread-only = true\n"
        )
    };
    check(
        &text(false),
        &expect![[r#"
        a.toml:10: volume "y": "backend": volume "x" has the same file "/v/f"; only
            one volume may write a file (several disks may use a "shared" volume)
    "#]],
    );
    Config::parse(Path::new("a.toml"), &text(true)).unwrap();
}

#[test]
fn volumes_need_a_directory() {
    check(
        "name = \"a\"\n[[volume]]\nname = \"v\"\nbackend = { file = \"v.img\" }\n",
        &expect![[r#"
            a.toml:4: volume "v": "file": no directory for volumes is named; write
                [directories] volumes = ".."
        "#]],
    );
}

const BAD_DISKS: &str = r#"
name = "vm1"
[directories]
sockets = "/run/vrio"
[[peer]]
name = "io1"
address = "io1:4870"
[[peer]]
name = "vm1"
address = "127.0.0.1:1"
[[disk]]
socket = "a.sock"
volume = "io9/a"
queues = 0
[[disk]]
socket = "a.sock"
volume = "b"
when-lost = { wait = "30s" }
[[disk]]
socket = "../c.sock"
volume = "vm1/c/d"
[[disk]]
socket = "d d.sock"
volume = "vm1/d"
when-lost = { error-after = "soon" }
serial = "1"
[[disk]]
name = "e"
socket = "e1.sock"
volume = "vm1/e"
[[disk]]
name = "f"
attachment = "e"
socket = "e2.sock"
volume = "vm1/e"
role = "server"
[[disk]]
volume = "vm1/g"
"#;

#[test]
fn disks_are_checked() {
    check(
        BAD_DISKS,
        &expect![[r#"
            a.toml: the key "listen" is missing (peers answer to an address); write for
                instance listen = "10.0.0.9:4870"
            a.toml:7: peer "io1": "address": "io1:4870" is not an address with a port;
                write for instance "10.0.0.9:4870" or "[fd00::9]:4870" (names are not
                looked up)
            a.toml:9: peer "vm1": "name": this is the node's own name; volumes of this
                node are named without a peer
            a.toml:14: disk "a.sock": "queues": 0 is out of range; from 1 to 64 is
                allowed
            a.toml:15: disk "a": "name": the disk of line 11 has the same name
            a.toml:16: disk "/run/vrio/a.sock": "socket": the disk of line 12 has the
                same socket
            a.toml:18: disk "a.sock": "wait": a disk waits "forever"; to fail requests
                after a while write { error-after = "30s" }
            a.toml:20: disk "../c.sock": "socket": "../c.sock" is not inside the sockets'
                directory "/run/vrio"
            a.toml:21: disk "../c.sock": "volume": "vm1/c/d" names no volume ("c/d" is no
                name: a name has letters, digits, '-', '_' and '.', and begins with a
                letter or digit); write "volume" for a volume of this node, "peer/volume"
                for a peer's, "peer,peer/volume" for a replicated volume
            a.toml:23: disk "d d.sock": "d d" is no name: a name has letters, digits,
                '-', '_' and '.', and begins with a letter or digit; give the disk a name
                = ".." of its own
            a.toml:25: disk "d d.sock": "error-after": "soon" is not a duration (it does
                not start with a number); write for instance "500ms", "30s" or "5min"
            a.toml:26: disk "d d.sock": unknown key "serial"; known are name, socket,
                role, socket-user, socket-group, socket-mode, volume, queues, when-lost,
                attachment, attachment-key, accept-loss, cache
            a.toml:33: disk "f": "attachment": disk "e" has the same attachment "e" of
                volume vm1/e, and each disk would take it from the other; give them
                different names
            a.toml:36: disk "f": "role": unknown word "server"; known are listen, connect
            a.toml:37: disk 7: the key "socket" is missing; write for instance socket =
                "alice.sock"
        "#]],
    );
}

#[test]
fn objects_that_a_disk_names_must_exist() {
    check(
        r#"
name = "vm1"
listen = "127.0.0.1:4870"
[directories]
sockets = "/run/vrio"
[[volume]]
name = "a"
backend = { memory = "1MiB" }
[[disk]]
socket = "a.sock"
volume = "io9/a"
[[disk]]
socket = "b.sock"
volume = "b"
"#,
        &expect![[r#"
            a.toml:11: disk "a": "volume": there is no [[peer]] "io9" (there is none);
                add [[peer]] name = "io9", address = ".."
            a.toml:14: disk "b": "volume": this node has no volume "b" (there are a); add
                a [[volume]] of that name, or write "peer/b" for a peer's volume
        "#]],
    );
}

#[test]
fn a_socket_path_has_a_length() {
    let long = "x".repeat(120);
    let text = format!("name = \"a\"\n[directories]\nsockets = \"/{long}\"\n");
    let error = Config::parse(Path::new("a.toml"), &text).unwrap_err().to_string();
    assert!(error.contains("at most 107"), "{error}");
}

#[test]
fn a_missing_file_is_named() {
    let error = Config::load(Path::new("/nonexistent/a.toml")).unwrap_err();
    expect!["/nonexistent/a.toml: cannot be read: No such file or directory (os error 2)"]
        .assert_eq(&error.to_string());
}

#[test]
fn a_link_is_one_word_or_a_section() {
    for (text, kind) in [
        ("name = \"a\"\n", LinkKind::Udp),
        ("name = \"a\"\nlink = \"xdp\"\n", LinkKind::Xdp),
        ("name = \"a\"\n[link]\nkind = \"auto\"\n", LinkKind::Auto),
    ] {
        let config = Config::parse(Path::new("a.toml"), text).unwrap();
        assert_eq!(config.link.kind, kind, "{text}");
    }
    check(
        "name = \"a\"\nlink = \"tcp\"\n",
        &expect![[r#"
            a.toml:2: "link": unknown word "tcp"; known are udp, xdp, auto
        "#]],
    );
}

#[test]
fn link_faults_are_shares() {
    check(
        "name = \"a\"\n[link]\nfault = { loss = 2, reordr = 0.1 }\n",
        &expect![[r#"
            a.toml:3: [link]: unknown key "reordr"; did you mean "reorder"? (known: loss,
                duplicate, reorder, corrupt, seed)
            a.toml:3: [link]: "loss": a share is a number from 0 to 1, for instance 0.01
        "#]],
    );
    let text = "name = \"a\"\n[link]\nfault = { loss = 0.25, seed = 7 }\n";
    let fault = Config::parse(Path::new("a.toml"), text).unwrap().link.fault.unwrap();
    assert_eq!((fault.loss, fault.corrupt, fault.seed), (0.25, 0.0, 7));
}

#[test]
fn local_disks_need_no_address() {
    let text = r#"
name = "vm1"
[directories]
sockets = "/run/vrio"
[[volume]]
name = "scratch"
backend = { memory = "1GiB" }
[[disk]]
socket = "scratch.sock"
volume = "scratch"
"#;
    let config = Config::parse(Path::new("a.toml"), text).unwrap();
    assert_eq!(config.listen, None);
    assert!(config.disks[0].volume.is_here());
}

const KEY_A: &str = "dGhlIHB1YmxpYyBrZXkgb2YgaW8xOiByZXBsYWNlLi4=";
const KEY_B: &str = "dGhlIHB1YmxpYyBrZXkgb2Ygdm0xOiByZXBsYWNlLi4=";

/// A text with the two keys put in.
fn keyed(text: &str) -> String {
    text.replace("KEY_A", KEY_A).replace("KEY_B", KEY_B)
}

#[test]
fn keys_and_their_ends_are_read() {
    let text = keyed(
        r#"
name = "io1"
listen = "10.0.0.9:4870"
key = "/etc/vrio/io1.key"
[[peer]]
name = "vm1"
keys = ["KEY_A", { key = "KEY_B", expires = 2027-01-01T01:00:00+01:00 }]
[[peer]]
name = "vm2"
key = "YWxpY2UncyBhdHRhY2htZW50IGtleTogcmVwbGFjZS4="
expires = 2027-01-01T00:00:00Z
[[volume]]
name = "a"
backend = { memory = "1MiB" }
allow = ["vm2", { node = "vm1", key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=" }]
"#,
    );
    let config = Config::parse(Path::new("a.toml"), &text).unwrap();
    let [vm1, vm2] = &config.peers[..] else { panic!("two peers") };
    let ends: Vec<_> = vm1.keys.iter().map(|key| key.expires_unix_s).collect();
    assert_eq!(ends, [None, Some(1_798_761_600)]);
    assert_eq!(vm1.keys[1].key.to_string(), KEY_B);
    assert_eq!(vm2.keys[0].expires_unix_s, Some(1_798_761_600));
    let allow = &config.volumes[0].allow;
    assert_eq!((allow[0].key, allow[1].key.map(|key| key.0)), (None, Some([0; 32])));
}

#[test]
fn a_wrong_key_is_refused_and_not_repeated() {
    check(
        &keyed(
            r#"
name = "io1"
key = "io1.key"
[[peer]]
name = "vm1"
key = "KEY_A="
expires = "2027-01-01"
[[peer]]
name = "vm2"
key = "KEY_A"
keys = ["KEY_B"]
[[peer]]
name = "vm3"
keys = [{ key = "KEY_A", expires = 2027-01-01 }, { expires = 2027-01-01T00:00:00 }, 7]
expires = 2027-01-01T00:00:00Z
[[peer]]
name = "vm4"
keys = ["1", "2", "3", "4", "5"]
[[volume]]
name = "a"
backend = { memory = "1MiB" }
allow = [{ node = "vm1" }, { node = "vm2", key = "secret" }, { nod = "vm3" }]
[[disk]]
socket = "a.sock"
volume = "a"
attachment-key = "alice.key"
"#,
        ),
        &expect![[r#"
            a.toml: the key "listen" is missing (peers answer to an address); write for
                instance listen = "10.0.0.9:4870"
            a.toml:3: "key": "io1.key" is not an absolute path, such as "/var/lib/vrio"
            a.toml:6: peer "vm1": "key": this is not a public key: it has 32 bytes in
                Base64 (44 characters, the last one is "="), and `vrio key show FILE`
                prints it
            a.toml:7: peer "vm1": "expires": this is a text, but a date such as
                2027-01-01T00:00:00Z is wanted
            a.toml:11: peer "vm2": "key" is for one key and "keys" for several; keep one
            a.toml:14: peer "vm3": "expires": 2027-01-01 is not a point in time; write
                date, time and zone, for instance 2027-01-01T00:00:00Z
            a.toml:14: peer "vm3": the key "key" is missing; write for instance { key =
                "..", expires = 2027-01-01T00:00:00Z }
            a.toml:14: peer "vm3": "expires": 2027-01-01T00:00:00 is not a point in time;
                write date, time and zone, for instance 2027-01-01T00:00:00Z
            a.toml:14: peer "vm3": "keys", entry 3: this is a whole number, but a text in
                quotes is wanted
            a.toml:15: peer "vm3": "expires": "expires" belongs to "key"; with several
                keys write keys = [{ key = "..", expires = .. }]
            a.toml:18: peer "vm4": "keys": 5 are too many; at most 4
            a.toml:22: volume "a": the key "key" is missing; write for instance { node =
                "vm1", key = ".." }
            a.toml:22: volume "a": "key": this is not a public key: it has 32 bytes in
                Base64 (44 characters, the last one is "="), and `vrio key show FILE`
                prints it
            a.toml:22: volume "a": unknown key "nod"; did you mean "node"? (known: node,
                key)
            a.toml:22: volume "a": the key "node" is missing; write for instance { node =
                "vm1", key = ".." }
            a.toml:22: volume "a": the key "key" is missing; write for instance { node =
                "vm1", key = ".." }
            a.toml:24: disk "a.sock": "socket": no directory for sockets is named; write
                [directories] sockets = "/run/vrio"
            a.toml:26: disk "a.sock": "attachment-key": "alice.key" is not an absolute
                path, such as "/var/lib/vrio"
        "#]],
    );
}

#[test]
fn keys_and_plain_sessions_do_not_mix() {
    check(
        &keyed(
            r#"
name = "io1"
listen = "10.0.0.9:4870"
key = "/etc/vrio/io1.key"
trust = "network"
"#,
        ),
        &expect![[r#"
            a.toml:5: "trust": with "key" sessions are sealed, and the network need not
                be trusted; keep one of the two
        "#]],
    );
    check(
        &keyed(
            r#"
name = "io1"
listen = "127.0.0.1:4870"
[directories]
sockets = "/run/vrio"
[[peer]]
name = "vm1"
address = "127.0.0.1:4871"
key = "KEY_A"
[[peer]]
name = "vm2"
keys = ["KEY_B"]
[[volume]]
name = "a"
backend = { memory = "1MiB" }
allow = [{ node = "vm1", key = "KEY_A" }]
[[disk]]
socket = "a.sock"
volume = "vm1/a"
attachment-key = "/etc/vrio/alice.key"
"#,
        ),
        &expect![[r#"
            a.toml:9: peer "vm1": a peer's key has no use while this node has no key:
                sessions are plain; make a key with `vrio key new FILE` and write key =
                "FILE" at the top
            a.toml:10: peer "vm2": the key "address" is missing; write for instance
                address = "10.0.0.9:4870" (a peer without an address must have a key, and
                no disk or nic of this node may use it)
            a.toml:12: peer "vm2": a peer's key has no use while this node has no key:
                sessions are plain; make a key with `vrio key new FILE` and write key =
                "FILE" at the top
            a.toml:16: volume "a": "allow": an attachment key of "vm1" can only be proved
                in sealed sessions; make a node key with `vrio key new FILE` and write
                key = "FILE" at the top
            a.toml:16: volume "a": "allow": the key of "vm1" is the node key of "vm1"; an
                attachment key is made with `vrio key new --attachment FILE`
            a.toml:20: disk "a": "attachment-key": it can only be proved in sealed
                sessions; make a node key with `vrio key new FILE` and write key = "FILE"
                at the top
        "#]],
    );
}

#[test]
fn sealed_peers_have_keys_of_their_own() {
    check(
        &keyed(
            r#"
name = "io1"
listen = "10.0.0.9:4870"
key = "/etc/vrio/io1.key"
[directories]
sockets = "/run/vrio"
[[peer]]
name = "vm1"
[[peer]]
name = "vm2"
keys = ["KEY_A", "KEY_A"]
[[peer]]
name = "vm3"
key = "KEY_A"
[[volume]]
name = "a"
backend = { memory = "1MiB" }
allow = ["vm1", { node = "vm1", key = "KEY_B" }, "vm2", "vm2", "vm9", "io1"]
[[volume]]
name = "b"
backend = { memory = "1MiB" }
allow = [{ node = "vm1", key = "KEY_A" }]
[[disk]]
socket = "a.sock"
volume = "vm2/a"
[[disk]]
socket = "b.sock"
volume = "a"
attachment-key = "/etc/vrio/alice.key"
"#,
        ),
        &expect![[r#"
            a.toml:7: peer "vm1": the key "key" is missing, by which the peer proves its
                name; write key = ".." with the public key that `vrio key show` prints
                there
            a.toml:9: peer "vm2": the key "address" is missing; write for instance
                address = "10.0.0.9:4870" (a peer without an address must have a key, and
                no disk or nic of this node may use it)
            a.toml:11: peer "vm2": "keys": dGhlIHB1YmxpYyBrZXkgb2YgaW8xOiByZXBsYWNlLi4=
                is given twice; keep one
            a.toml:14: peer "vm3": "key": dGhlIHB1YmxpYyBrZXkgb2YgaW8xOiByZXBsYWNlLi4= is
                the key of peer "vm2" as well; each node needs a key of its own
            a.toml:18: volume "a": "allow": "vm1" is allowed without a key, so its entry
                with a key has no effect; keep one of the two
            a.toml:18: volume "a": "allow": "vm2" is named twice; keep one
            a.toml:18: volume "a": "allow": there is no [[peer]] "vm9", so no key proves
                this name; add [[peer]] name = "vm9", key = ".."
            a.toml:18: volume "a": "allow": disks and nics of this node are always
                allowed; name other nodes here
            a.toml:22: volume "b": "allow": the key of "vm1" is the node key of "vm2"; an
                attachment key is made with `vrio key new --attachment FILE`
            a.toml:29: disk "b": "attachment-key": this node's own disks need none; it is
                for volumes of a peer, "peer/volume"
        "#]],
    );
}

#[test]
fn no_torn_file_makes_it_panic() {
    for example in ["io1.toml", "vm1.toml"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(example);
        let text = std::fs::read_to_string(path).unwrap();
        for at in (0..text.len()).filter(|at| text.is_char_boundary(*at)) {
            let _ = Config::parse(Path::new("a.toml"), &text[..at]);
            let _ = Config::parse(Path::new("a.toml"), &text[at..]);
        }
        let lines: Vec<_> = text.lines().collect();
        for left_out in 0..lines.len() {
            let mut lines = lines.clone();
            lines.remove(left_out);
            let _ = Config::parse(Path::new("a.toml"), &lines.join("\n"));
        }
    }
}
