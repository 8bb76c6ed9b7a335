//! The keys for a node's rights and memory: its user, its pools, its port for metrics, and the keys
//! that encrypt its volumes.

use std::path::Path;

use config::Config;
use config::{Privileges, StageConfig};
use expect_test::{Expect, expect};
use volume::stage::{Encryption, Metering};

fn parse(text: &str) -> Config {
    Config::parse(Path::new("a.toml"), text).unwrap_or_else(|error| panic!("{error}"))
}

/// Wraps a text at 80 columns.
fn wrapped(text: &str) -> String {
    let mut wrapped = String::new();
    for line in text.lines() {
        let mut width = 0;
        for word in line.split(' ') {
            if width > 0 && width + word.len() > 80 {
                wrapped.push_str("\n   ");
                width = 3;
            }
            let blank = if width > 0 { " " } else { "" };
            wrapped.push_str(&format!("{blank}{word}"));
            width += blank.len() + word.len();
        }
        wrapped.push('\n');
    }
    wrapped
}

fn check(text: &str, expect: &Expect) {
    let error = Config::parse(Path::new("a.toml"), text).expect_err("this has to be refused");
    expect.assert_eq(&wrapped(&error.to_string()));
}

#[test]
fn privileges_metrics_and_memory_have_defaults_and_bounds() {
    let config = parse("name = \"a\"\n");
    assert_eq!((config.user, config.metrics_listen), (None, None));
    assert_eq!(config.privileges, Privileges::Drop);
    assert_eq!(config.memory.session_buffers_bytes, 256 << 20);
    assert!(config.memory.huge_pages);
    assert_eq!(config.memory.guests, virtio::MemoryRules::DEFAULT);
    let config = parse(
        r#"
name = "a"
user = "vrio"
metrics-listen = "127.0.0.1:9470"
[memory]
session-buffers = "64MiB"
huge-pages = "never"
guest-files = "any"
guest-addresses-max = "64TiB"
guest-mappings-max = 20000
front-end-addresses-max = "1TiB"
front-end-mappings-max = 100
"#,
    );
    assert_eq!(config.user.as_deref(), Some("vrio"));
    assert_eq!(config.metrics_listen.unwrap().port(), 9470);
    assert_eq!(config.memory.session_buffers_bytes, 64 << 20);
    assert!(!config.memory.huge_pages);
    let guests = config.memory.guests;
    assert_eq!(guests.files, virtio::GuestFiles::Any);
    assert_eq!((guests.node.addresses_bytes_max, guests.node.mappings_max), (64 << 40, 20_000));
    assert_eq!(guests.front_end.addresses_bytes_max, 1 << 40);
    assert_eq!(guests.front_end.mappings_max, 100);
    check(
        r#"
name = "a"
user = "vr io"
privileges = "keep"
metrics-listen = "9470"
[memory]
session-buffers = "1MiB"
huge-pages = "always"
guest-files = "fuse"
guest-addresses-max = "128TiB"
front-end-mappings-max = 0
"#,
        &expect![[r#"
            a.toml:3: "user": "vr io" is no name: a name has letters, digits, '-', '_' and
                '.', and begins with a letter or digit
            a.toml:4: "keep" means that the node keeps the user that started it, and "user"
                that it changes the user; keep one of the two
            a.toml:5: "metrics-listen": "9470" is not an address with a port; write for
                instance "10.0.0.9:4870" or "[fd00::9]:4870" (names are not looked up)
            a.toml:7: [memory]: "session-buffers": a sidecore's buffers take from 4MiB to
                16GiB
            a.toml:8: [memory]: "huge-pages": unknown word "always"; known are auto, never
            a.toml:9: [memory]: "guest-files": unknown word "fuse"; known are memory, any
            a.toml:10: [memory]: "guest-addresses-max": from 1MiB to 112TiB, for a process
                has 128TiB
            a.toml:11: [memory]: "front-end-mappings-max": 0 is out of range; from 1 to 32000
                is allowed
        "#]],
    );
}

#[test]
fn a_stage_that_encrypts_names_a_key_of_its_own() {
    let text = |chains: [&str; 2]| {
        let volume = |name: &str, chain: &str| {
            format!(
                "[[volume]]\nname = \"{name}\"\nbackend = {{ null = \"1MiB\" }}\nchain = {chain}\n"
            )
        };
        format!("name = \"n\"\n{}{}", volume("a", chains[0]), volume("b", chains[1]))
    };
    let [a, b] = ["a", "b"].map(|name| format!("{{ encrypt = {{ key = \"/k/{name}.xts\" }} }}"));
    let good = text([&format!("[\"meter\", {a}]"), &format!("[{b}]")]);
    let config = Config::parse(Path::new("n.toml"), &good).unwrap();
    let wanted = StageConfig::Encrypt(Encryption { key: "/k/a.xts".into() });
    assert_eq!(config.volumes[0].chain, [StageConfig::Meter(Metering), wanted]);
    check(
        &text([
            "[\"encrypt\", { encrypt = {} }, { encrypt = { key = \"k\" } }]",
            "[{ crypt = {} }]",
        ]),
        &expect![[r#"
            a.toml:5: volume "a": "chain", entry 1: name the key's file: { encrypt = { key =
                "/etc/vrio/alice.xts" } }
            a.toml:5: volume "a": the key "key" is missing; write for instance key =
                "/etc/vrio/alice.xts"
            a.toml:5: volume "a": "key": "k" is not an absolute path, such as "/var/lib/vrio"
            a.toml:9: volume "b": unknown key "crypt"; did you mean "encrypt"? (known: limit,
                encrypt)
        "#]],
    );
    check(
        &text([&format!("[{a}, {b}]"), &format!("[{a}]")]),
        &expect![[r#"
            a.toml:5: volume "a": "chain": one stage that encrypts is enough
            a.toml:9: volume "b": "chain": volume "a" has the same key "/k/a.xts"; each
                volume needs a key of its own: `vrio key new --volume FILE`
        "#]],
    );
}
