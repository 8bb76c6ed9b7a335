//! The way from one configuration to another: the changes, their order, and differences that need
//! no change.

use std::path::Path;

use config::Config;
use config::{Revoked, changes, needs_restart, revoked};
use expect_test::{Expect, expect};

const HEAD: &str = "name = \"n\"\nlisten = \"127.0.0.1:4870\"\n[directories]\nvolumes = \"/v\"\n\
                    sockets = \"/s\"\n";
const PEER: &str = "[[peer]]\nname = \"io1\"\naddress = \"127.0.0.1:1\"\n";
const VOLUME: &str = "[[volume]]\nname = \"a\"\nbackend = { file = \"a.img\" }\n";
const LOCAL: &str = "[[disk]]\nsocket = \"l.sock\"\nvolume = \"a\"\n";
const REMOTE: &str = "[[disk]]\nsocket = \"r.sock\"\nvolume = \"io1/b\"\n";

fn config(parts: &[&str]) -> Config {
    let text = format!("{HEAD}{}", parts.concat());
    Config::parse(Path::new("n.toml"), &text).unwrap_or_else(|error| panic!("{error}"))
}

/// Checks the changes from one to the other, and that no change is left after them.
fn check(from: &[&str], to: &[&str], expect: &Expect) {
    let (from, to) = (config(from), config(to));
    let lines = changes(&from, &to).into_iter().map(|change| format!("{change}\n"));
    expect.assert_eq(&lines.collect::<String>());
    assert!(changes(&to, &to).is_empty() && changes(&from, &from).is_empty());
}

#[test]
fn the_same_in_another_order_is_nothing() {
    check(&[PEER, VOLUME, LOCAL], &["\n# moved\n", LOCAL, VOLUME, PEER], &expect![[""]]);
}

#[test]
fn needed_objects_come_first_and_go_last() {
    let all = [REMOTE, LOCAL, VOLUME, PEER];
    check(
        &[],
        &all,
        &expect![[r#"
            add peer "io1"
            add volume "a"
            add disk "r" of volume io1/b
            add disk "l" of volume a
        "#]],
    );
    check(
        &all,
        &[],
        &expect![[r#"
            remove disk "r"
            remove disk "l"
            remove volume "a"
            remove peer "io1"
        "#]],
    );
}

#[test]
fn possible_changes_are_made_in_place() {
    let chain = format!("{VOLUME}chain = [\"meter\", {{ limit = {{ iops = 5 }} }}]\n");
    let allow = format!("{VOLUME}allow = [\"vm1\"]\n");
    let peer = PEER.replace(":1", ":2");
    check(
        &[VOLUME, LOCAL, PEER, REMOTE],
        &[&chain, LOCAL, &peer, REMOTE],
        &expect![[r#"
            change peer "io1": how it is reached
            change volume "a": the chain is now meter > limit 5 IOPS
        "#]],
    );
    check(
        &[&allow],
        &[VOLUME],
        &expect![[r#"
        change volume "a": "allow"
    "#]],
    );
}

#[test]
fn a_network_is_opened_and_closed_in_place() {
    let nic = "[[nic]]\nsocket = \"n.sock\"\nnetwork = \"blue\"\nmac = \"52:54:00:00:00:01\"\n";
    let blue = |rest: &str| format!("[[network]]\nname = \"blue\"\n{rest}\n");
    let (none, one) = (blue(""), blue("allow = [\"vm1\"]"));
    let (two, isolated) = (blue("allow = [\"vm2\"]"), blue("remote = { isolated = true }"));
    for (from, to) in [(&none, &one), (&one, &two), (&one, &none)] {
        check(
            &[from, nic],
            &[to, nic],
            &expect![[r#"
                change network "blue": "allow"
            "#]],
        );
    }
    check(
        &[&one, nic],
        &[&isolated, nic],
        &expect![[r#"
            change network "blue": "allow", "remote"
        "#]],
    );
    check(
        &[&none, nic],
        &[&blue("uplink = \"tap:t0\""), nic],
        &expect![[r#"
            remove nic "n", to add it again below (its network changed)
            remove network "blue", to add it again below (uplink changed)
            add network "blue"
            add nic "n" to network blue
        "#]],
    );
    let (from, to) = (config(&[&one]), config(&[&two]));
    let Revoked { config: left, changes: revokes } = revoked(&from, &to);
    assert_eq!(revokes, ["revoke rights that \"allow\" of network \"blue\" no longer has"]);
    assert!(left.networks[0].allow.is_empty());
    assert_eq!(changes(&left, &to).len(), 1);
    assert!(revoked(&config(&[&none]), &to).changes.is_empty(), "this change lets no node in");
}

#[test]
fn a_domain_changes_its_key_in_place_and_its_size_anew() {
    let blue = |key: &str, endpoints: u16| {
        format!("[[domain]]\nname = \"blue\"\nkey = {key:?}\nendpoints-max = {endpoints}\n")
    };
    let (one, other, larger) = (blue("/k/1", 4), blue("/k/2", 4), blue("/k/1", 8));
    check(
        &[&one],
        &[&other],
        &expect![[r#"
            change domain "blue": its key or peers
        "#]],
    );
    check(
        &[&one],
        &[&larger],
        &expect![[r#"
            remove domain "blue", to add it again below (endpoints-max changed)
            add domain "blue"
        "#]],
    );
    check(
        &[&one],
        &[],
        &expect![[r#"
            remove domain "blue"
        "#]],
    );
    assert!(!changes(&config(&[]), &config(&[&one]))[0].interrupts());
    let moved = config(&["[[domain]]\nname = \"x\"\nkey = \"/k\"\n"]);
    assert!(needs_restart(&config(&[]), &moved).is_empty());
}

#[test]
fn a_file_grows_in_place_and_is_made_smaller_anew() {
    let sized = |size: &str| VOLUME.replace("a.img\"", &format!("a.img\", size = \"{size}\""));
    let (small, large) = (sized("1GiB"), sized("2GiB"));
    check(
        &[&small, LOCAL],
        &[&large, LOCAL],
        &expect![[r#"
            resize volume "a" to 2GiB
        "#]],
    );
    let other = large.replace("a.img", "b.img");
    for (from, to) in [(&large, &small), (&small, &other)] {
        check(
            &[from],
            &[to],
            &expect![[r#"
                remove volume "a", to add it again below (backend changed)
                add volume "a"
            "#]],
        );
    }
}

#[test]
fn a_volume_that_is_replaced_takes_its_disks_with_it() {
    let through = format!("{VOLUME}durability = \"write-through\"\nread-only = true\n");
    check(
        &[VOLUME, LOCAL, PEER, REMOTE],
        &[&through, LOCAL, PEER, REMOTE],
        &expect![[r#"
            remove disk "l", to add it again below (its volume changed)
            remove volume "a", to add it again below (durability, read-only changed)
            add volume "a"
            add disk "l" of volume a
        "#]],
    );
}

#[test]
fn each_key_of_a_disk_replaces_it() {
    let keys = [
        ("queues = 2", "queues"),
        ("role = \"connect\"", "role"),
        ("when-lost = { error-after = \"30s\" }", "when-lost"),
        ("attachment = \"x\"", "attachment"),
        ("accept-loss = true", "accept-loss"),
    ];
    for (line, key) in keys {
        let disk = format!("{LOCAL}{line}\n");
        let changes = changes(&config(&[VOLUME, LOCAL]), &config(&[VOLUME, &disk]));
        let first = changes[0].to_string();
        assert!(first.contains(&format!("({key} changed)")), "{line}: {first}");
        assert_eq!(changes.len(), 2);
    }
}

#[test]
fn a_file_can_change_its_volumes_name() {
    let renamed = VOLUME.replace("\"a\"", "\"z\"");
    let disk = LOCAL.replace("\"a\"", "\"z\"");
    check(
        &[VOLUME, LOCAL],
        &[&renamed, &disk],
        &expect![[r#"
            remove disk "l", to add it again below (volume changed)
            remove volume "a"
            add volume "z"
            add disk "l" of volume z
        "#]],
    );
}

#[test]
fn changes_that_take_a_restart_are_named() {
    let before = config(&[]);
    assert!(needs_restart(&before, &before).is_empty());
    let text = "name = \"m\"\nlisten = \"127.0.0.1:4871\"\ncontrol = \"/c\"\n[sidecores]\ncount = \
                2\n[directories]\nvolumes = \"/w\"\n[link]\nfault = { loss = 0.5 }\n[cluster]\n";
    let after = Config::parse(Path::new("n.toml"), text).unwrap();
    let wanted =
        ["name", "listen", "control", "[sidecores]", "[directories]", "[link]", "[cluster]"];
    assert_eq!(needs_restart(&before, &after), wanted);
    assert!(changes(&before, &after).is_empty());
}

/// A node with keys: `vm1` with the key `vm1_key`, and a volume that `allow` opens.
fn keyed(vm1_key: &str, allow: &str) -> Config {
    let head = HEAD.replace("listen", "key = \"/k\"\nlisten");
    let text =
        format!("{head}[[peer]]\nname = \"vm1\"\nkey = \"{vm1_key}\"\n{VOLUME}allow = [{allow}]\n");
    Config::parse(Path::new("n.toml"), &text).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_revocation_keeps_rights_of_both_and_adds_none() {
    let [one, two, three] = ['B', 'C', 'D'].map(|first| format!("{first}{}=", "A".repeat(42)));
    let entry = |key: &str| format!("{{ node = \"vm1\", key = \"{key}\" }}");
    let cases = [
        // From, to, and how many nodes are left in between.
        ("\"vm1\"".to_owned(), entry(&two), 1),
        (entry(&two), "\"vm1\"".to_owned(), 1),
        (entry(&two), entry(&three), 0),
        (format!("{}, {}", entry(&two), entry(&three)), entry(&three), 1),
        (entry(&three), format!("{}, {}", entry(&two), entry(&three)), 1),
        (String::new(), "\"vm1\"".to_owned(), 0),
    ];
    for (from, to, left) in cases {
        let (from, to) = (keyed(&one, &from), keyed(&one, &to));
        let Revoked { config, changes: revokes } = revoked(&from, &to);
        let (before, left_in) = (&from.volumes[0].allow, &config.volumes[0].allow);
        assert_eq!(left_in.len(), left, "{before:?}: {left_in:?}");
        assert_eq!(revokes.is_empty(), left_in == before, "{revokes:?}");
        assert!(revoked(&config, &to).changes.is_empty(), "it is done at once");
        // The remaining changes lead to the wanted configuration.
        assert_eq!(changes(&config, &to).is_empty(), *left_in == to.volumes[0].allow);
    }
    let (from, to) = (keyed(&one, "\"vm1\""), keyed(&two, "\"vm1\""));
    let keys = revoked(&from, &to);
    assert_eq!(keys.changes, ["change peer \"vm1\": its keys"]);
    assert!(changes(&keys.config, &to).is_empty());
    let gone = revoked(&from, &config(&[VOLUME]));
    assert_eq!(gone.changes.len(), 2, "{:?}", gone.changes);
    assert!(gone.config.peers[0].keys.is_empty(), "it goes later; its key does not wait for that");
}
