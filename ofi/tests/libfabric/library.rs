//! The file of the provider.

use crate::domain::{TestDomain, installed, library, output_of, text_of};
use std::process::Command;

fn look(program: &str, option: &str) -> String {
    output_of(Command::new(program).arg(option).arg(library()).output().expect("it is installed"))
}

#[test]
fn it_needs_nothing_of_libfabrics_and_shows_one_name() {
    if !installed("readelf", "binutils", "it_needs_nothing_of_libfabrics_and_shows_one_name") {
        return;
    }
    let needed = look("readelf", "--dynamic");
    assert!(needed.contains("libc.so"), "{needed}");
    assert!(!needed.contains("fabric"), "{needed}");
    let names = look("nm", "--dynamic");
    let (mut shown, mut missing) = (Vec::new(), Vec::new());
    for line in names.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["U" | "w", name] => missing.push(name),
            [_, _, name] => shown.push(name),
            _ => panic!("{line}"),
        }
    }
    assert_eq!(shown, ["fi_prov_ini"]);
    let theirs = |name: &&&str| name.starts_with("fi_") || name.starts_with("ofi_");
    assert_eq!(missing.iter().find(theirs), None);
    // The missing symbols are those of the C library, which have a version, and those that
    // compilers make for sanitizers and for transactions.
    let others: Vec<_> = missing.iter().filter(|name| !name.contains('@')).collect();
    let of_compilers = |name: &&&&str| name.starts_with("_ITM") || name.starts_with("__");
    assert_eq!(others.iter().find(|name| !of_compilers(name)), None, "{others:?}");
}

#[test]
fn it_is_listed_only_where_the_environment_names_a_domain() {
    let test = "it_is_listed_only_where_the_environment_names_a_domain";
    if !installed("fi_info", "libfabric-bin", test) {
        return;
    }
    let domain = TestDomain::new();
    let mut list = domain.command("fi_info");
    let listed = output_of(list.args(["-p", "vrio", "-v"]).output().expect("it is installed"));
    for line in ["name: blue", "prov_name: vrio", "type: FI_EP_RDM", "FI_TAGGED", "mode: [  ]"] {
        assert!(listed.contains(line), "{line} is not in {listed}");
    }
    for variable in ["VRIO_FABRIC", "VRIO_DOMAIN", "VRIO_DOMAIN_KEY"] {
        let mut list = domain.command("fi_info");
        list.args(["-p", "vrio"]).env_remove(variable).env("VRIO_FI_LOG", "1");
        let listed = text_of(&list.output().expect("it is installed"));
        assert!(!listed.contains("provider: vrio"), "{listed}");
        assert!(listed.contains(variable), "the log says which is missing: {listed}");
    }
}

#[test]
fn no_provider_is_layered_over_it() {
    if !installed("fi_info", "libfabric-bin", "no_provider_is_layered_over_it") {
        return;
    }
    let domain = TestDomain::new();
    let listed = text_of(&domain.command("fi_info").output().expect("it is installed"));
    let providers = listed.lines().filter_map(|line| line.strip_prefix("provider: "));
    let ours: Vec<_> = providers.filter(|provider| provider.contains("vrio")).collect();
    assert!(!ours.is_empty(), "{listed}");
    assert!(ours.iter().all(|provider| *provider == "vrio"), "{ours:?}");
}
