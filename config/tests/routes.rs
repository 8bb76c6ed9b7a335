//! Disks of volumes with copies on several peers.

use std::path::Path;

use config::Config;

/// A disk of a volume with copies on several peers.
#[test]
fn a_disk_names_several_peers() {
    let text = |volume: &str| {
        format!(
            "name = \"vm1\"\nlisten = \"10.0.0.1:4870\"\ntrust = \"network\"\n\
             [directories]\nsockets = \"/run/vrio\"\n\
             [[peer]]\nname = \"io1\"\naddress = \"10.0.0.2:4870\"\n\
             [[peer]]\nname = \"io2\"\naddress = \"10.0.0.3:4870\"\n\
             [[disk]]\nsocket = \"a.sock\"\nvolume = \"{volume}\"\n"
        )
    };
    let read = |volume: &str| Config::parse(Path::new("a.toml"), &text(volume));
    let config = read("io2,io1/alice").unwrap();
    let volume = &config.disks[0].volume;
    assert_eq!(volume.peers, ["io2", "io1"]);
    assert!(volume.may_be_on("io1") && !volume.is_here());
    assert_eq!(volume.to_string(), "io2,io1/alice");
    let many: Vec<String> = (0..9).map(|at| format!("p{at}")).collect();
    for (volume, why) in [
        ("io1,io1/alice", "twice"),
        ("io1,/alice", "names no volume"),
        ("io1,io9/alice", "there is no [[peer]] \"io9\""),
        (&format!("{}/alice", many.join(",")), "more than 8 peers"),
    ] {
        let told = read(volume).unwrap_err().to_string();
        assert!(told.split_whitespace().collect::<Vec<_>>().join(" ").contains(why), "{told}");
    }
}
