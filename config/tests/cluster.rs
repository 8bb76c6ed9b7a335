//! The section `[cluster]`.

use std::path::Path;

use config::Config;

#[test]
fn a_node_of_a_cluster_needs_no_key_of_the_section() {
    let read = |section: &str| {
        let text = format!("name = \"io1\"\n{section}");
        Config::parse(Path::new("a.toml"), &text)
    };
    assert_eq!(read("").unwrap().cluster, None);
    let cluster = read("[cluster]\n").unwrap().cluster.unwrap();
    assert_eq!(cluster.directory, Path::new("/var/lib/vrio/io1.cluster"));
    assert_eq!((cluster.name.as_str(), cluster.pools), ("io1", None));
    let keys = "directory = \"/d\"\nname = \"rack-io1\"\npools = [\"fast\"]\n";
    let cluster = read(&format!("[cluster]\n{keys}")).unwrap().cluster.unwrap();
    assert_eq!(cluster.directory, Path::new("/d"));
    assert_eq!(cluster.name, "rack-io1");
    assert_eq!(cluster.pools, Some(vec!["fast".to_owned()]));
    for (wrong, wanted) in [
        ("directory = \"d\"", "is not an absolute path"),
        ("name = \"a/b\"", "is no name"),
        ("pools = [\"-\"]", "is no name"),
    ] {
        let error = read(&format!("[cluster]\n{wrong}\n")).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}
