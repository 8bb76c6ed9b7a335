//! Rules for the packages' manifests: versions and lints live in the workspace, once.

use super::{Finding, Source, everywhere, try_check};

fn is_package(source: &Source) -> bool {
    source.path.ends_with("/Cargo.toml")
}

fn own_version(source: &Source) -> Vec<Finding> {
    if !is_package(source) {
        return Vec::new();
    }
    let mut section = "";
    let mut found = Vec::new();
    for (number, line) in source.lines() {
        if line.starts_with('[') {
            section = line;
        } else if section.contains("dependencies")
            && !section.starts_with("[workspace.")
            && !line.starts_with('#')
            && line.contains('=')
        {
            let inherits = line.contains(".workspace = true") || line.contains("workspace = true,");
            if !inherits {
                found.push(source.finding(number, "its version belongs into the workspace"));
            }
        }
    }
    found
}

fn lints(source: &Source) -> Vec<Finding> {
    if !is_package(source) || source.text.contains("[lints]\nworkspace = true\n") {
        return Vec::new();
    }
    vec![source.finding(1, "it does not take the workspace's lints")]
}

#[test]
fn versions_live_in_the_workspace() {
    let bad = "[package]\nname = \"x\"\n\n[dependencies]\nlibc = \"0.2\"\n";
    let good = "[workspace.dependencies]\nlibc = \"0.2\"\n\n\
                [package]\nname = \"x\"\n\n[dependencies]\n# a = b\nlibc.workspace = true\n\
                rustix = { workspace = true, features = [\"net\"] }\n";
    try_check(own_version, "x/Cargo.toml", bad, 5, good);
    everywhere(own_version);
}

#[test]
fn lints_are_the_workspaces() {
    let good = "[package]\nname = \"x\"\n\n[lints]\nworkspace = true\n";
    try_check(lints, "x/Cargo.toml", "[package]\nname = \"x\"\n", 1, good);
    everywhere(lints);
}
