//! `talk.c`, case by case.

use crate::house::{House, compile, well};
use std::path::Path;
use std::sync::OnceLock;

/// Runs a case, unless there are no headers here.
fn talk(about: &str) {
    if !Path::new("/usr/include/rdma/fi_tagged.h").exists() {
        return println!("SKIP talk {about}: no headers of libfabric here (package libfabric-dev)");
    }
    static PROGRAM: OnceLock<String> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        compile("cc", "tests/libfabric/talk.c", &["-Werror", "-lfabric", "-lpthread"])
    });
    well(House::new().command(program).arg(about).output().expect("it was compiled"));
}

macro_rules! cases {
    ($($about:ident)*) => {
        $(#[test] fn $about() { talk(stringify!($about)); })*

        #[test]
        fn every_case_is_run() {
            let source = include_str!("talk.c");
            let named = source.lines().flat_map(|line| line.split("{ \"").skip(1));
            let named: Vec<_> = named.filter_map(|rest| rest.split('"').next()).collect();
            let mut run = vec![$(stringify!($about)),*];
            let mut named = named;
            (run.sort_unstable(), named.sort_unstable());
            assert_eq!(run, named);
        }
    };
}

cases! {
    untagged tagged order directed pieces inject truncated cancelled peeked many selective
    by_default refused waiting contexts threads flood gone
}
