//! Volumes with copies on several nodes.

use std::path::Path;

use config::Config;

const KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

fn read(replicas: &str, more: &str, sections: &str) -> Result<Config, String> {
    let text = format!(
        "name = \"io1\"\nlisten = \"10.0.0.1:4870\"\nkey = \"/etc/vrio/io1.key\"\n{sections}\
         [[peer]]\nname = \"io2\"\naddress = \"10.0.0.2:4870\"\nkey = \"{KEY}\"\n\
         [[pool]]\nname = \"fast\"\ndevices = [\"/srv/fast.pool\"]\n\
         [[volume]]\nname = \"alice\"\n{more}replicas = {replicas}\n"
    );
    Config::parse(Path::new("io1.toml"), &text).map_err(|error| error.to_string())
}

const POOL: &str = "backend = { pool = \"fast\", size = \"1GiB\" }\n";
const SECTIONS: &str = "[cluster]\n[directories]\nvolumes = [\"/srv\"]\nsockets = \"/run/vrio\"\n\
     state = \"/var/lib/vrio/io1\"\n";

#[test]
fn a_volume_names_the_nodes_of_its_copies_and_its_own_node_is_one_of_them() {
    let config = read("[\"io1\", \"io2\"]", POOL, SECTIONS).unwrap();
    assert_eq!(config.volumes[0].replicas, ["io1", "io2"]);
    assert!(config.is_for_peers(), "its other members come with messages");
}

#[test]
fn a_list_of_copies_that_cannot_work_is_refused_with_the_way_out() {
    let file = "backend = { null = \"1GiB\" }\n";
    let read_only = format!("{POOL}read-only = true\n");
    let both = "[\"io1\", \"io2\"]";
    let no_cluster = SECTIONS.strip_prefix("[cluster]\n").unwrap();
    for (replicas, more, sections, wanted) in [
        ("[\"io1\"]", POOL, SECTIONS, "1 nodes; a volume with copies names 2 to 8"),
        ("[]", POOL, SECTIONS, "0 nodes"),
        ("[\"io1\", \"io2\", \"io1\"]", POOL, SECTIONS, "\"io1\" is in the list twice"),
        ("[\"io2\", \"io3\"]", POOL, SECTIONS, "this node, \"io1\", is not in the list"),
        ("[\"io1\", \"io3\"]", POOL, SECTIONS, "\"io3\" is no peer of this node"),
        (both, file, SECTIONS, "only a volume of a pool has copies"),
        (both, &read_only, SECTIONS, "has no copies to keep equal"),
        (both, POOL, no_cluster, "add a section [cluster]"),
    ] {
        let error = read(replicas, more, sections).unwrap_err();
        assert!(error.contains(wanted), "{replicas} {more}: {error}");
    }
    let disk =
        format!("{POOL}replicas = {both}\n[[disk]]\nsocket = \"a.sock\"\nvolume = \"alice\"\n#");
    let error = read("", &disk, SECTIONS).unwrap_err();
    assert!(error.contains("a disk of such a node cannot use it yet"), "{error}");

    let nine: Vec<_> = (1..=9).map(|number| format!("io{number}")).collect();
    let error = read(&format!("{nine:?}"), POOL, SECTIONS).unwrap_err();
    assert!(error.contains("9 nodes; a volume with copies names 2 to 8"), "{error}");
}
