//! The cases of `talk.c`.

use crate::domain::{TestDomain, compile, output_of};
use std::path::Path;
use std::sync::OnceLock;

/// A C program that has a case for each argument.
pub(crate) struct Program {
    pub(crate) source: &'static str,
    pub(crate) path: OnceLock<String>,
}

impl Program {
    /// Runs a case, unless libfabric's headers are not installed.
    pub(crate) fn run(&self, about: &str) {
        let source = self.source;
        if !Path::new("/usr/include/rdma/fi_tagged.h").exists() {
            let why = "no headers of libfabric here (package libfabric-dev)";
            return println!("SKIP {source} {about}: {why}");
        }
        let options = ["-Werror", "-lfabric", "-lpthread"];
        let program = self.path.get_or_init(|| compile("cc", source, &options));
        output_of(TestDomain::new().command(program).arg(about).output().expect("it was compiled"));
    }
}

/// Makes a test for each case of a C program, and a test that the program has no other cases.
macro_rules! cases {
    ($file:literal: $($about:ident)*) => {
        static PROGRAM: crate::talk::Program = crate::talk::Program {
            source: concat!("tests/libfabric/", $file),
            path: std::sync::OnceLock::new(),
        };

        $(#[test] fn $about() { PROGRAM.run(stringify!($about)); })*

        #[test]
        fn every_case_is_run() {
            let source = include_str!($file);
            let named = source.lines().flat_map(|line| line.split("{ \"").skip(1));
            let named: Vec<_> = named.filter_map(|rest| rest.split('"').next()).collect();
            let mut run = vec![$(stringify!($about)),*];
            let mut named = named;
            (run.sort_unstable(), named.sort_unstable());
            assert_eq!(run, named);
        }
    };
}

pub(crate) use cases;

cases! { "talk.c":
    untagged tagged order directed pieces inject truncated cancelled peeked many selective
    by_default refused waiting contexts threads flood gone
    matched remote
}
