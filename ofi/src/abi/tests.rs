//! Compares layouts and numbers with those of an installed libfabric: a C program prints the ones
//! in its headers.
//!
//! `VRIO_LIBFABRIC_HEADERS=DIR` compares with other headers than Debian's, for instance of 2.x.

use super::layout::AbiLayout;
use super::*;
use std::collections::HashMap;
use std::env;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

const LAYOUTS: &[AbiLayout] = &[
    Info::LAYOUT,
    TxAttr::LAYOUT,
    RxAttr::LAYOUT,
    EpAttr::LAYOUT,
    DomainAttr::LAYOUT,
    FabricAttr::LAYOUT,
    Provider::LAYOUT,
    Msg::LAYOUT,
    MsgTagged::LAYOUT,
    RmaIov::LAYOUT,
    MsgRma::LAYOUT,
    CqEntry::LAYOUT,
    CqErrEntry::LAYOUT,
    CqAttr::LAYOUT,
    CntrAttr::LAYOUT,
    EqAttr::LAYOUT,
    AvAttr::LAYOUT,
    MrAttr::LAYOUT,
    Fid::LAYOUT,
    FidFabric::<()>::LAYOUT,
    FidDomain::<()>::LAYOUT,
    FidAv::<()>::LAYOUT,
    FidCq::<()>::LAYOUT,
    FidCntr::<()>::LAYOUT,
    FidEq::<()>::LAYOUT,
    FidMr::LAYOUT,
    FidEp::<()>::LAYOUT,
    FidOps::LAYOUT,
    FabricOps::<()>::LAYOUT,
    DomainOps::<()>::LAYOUT,
    MrOps::LAYOUT,
    AvOps::<()>::LAYOUT,
    CqOps::<()>::LAYOUT,
    CntrOps::<()>::LAYOUT,
    EqOps::<()>::LAYOUT,
    EpOps::<()>::LAYOUT,
    CmOps::<()>::LAYOUT,
    MsgOps::<()>::LAYOUT,
    TaggedOps::<()>::LAYOUT,
    RmaOps::<()>::LAYOUT,
    AtomicOps::LAYOUT,
    CollectiveOps::LAYOUT,
];

/// A field's name in C.
fn plain(field: &str) -> &str {
    field.strip_prefix("r#").unwrap_or(field)
}

/// The source of the C program, for headers with or without the fields of 2.x.
fn program(newer: bool) -> String {
    let mut c = String::from("#include <stdio.h>\n#include <stddef.h>\n#include <string.h>\n");
    for header in [
        "fabric.h",
        "fi_domain.h",
        "fi_endpoint.h",
        "fi_eq.h",
        "fi_cm.h",
        "fi_tagged.h",
        "fi_rma.h",
        "fi_atomic.h",
        "fi_collective.h",
        "fi_errno.h",
        "providers/fi_prov.h",
    ] {
        writeln!(c, "#include <rdma/{header}>").expect("a text grows");
    }
    c.push_str(
        "#define SAY(name, value) printf(\"%s %llu\\n\", name, (unsigned long long)(value))\n",
    );
    c.push_str("int main(void) {\n");
    for AbiLayout { name, fields, .. } in LAYOUTS {
        writeln!(c, "SAY(\"{name}\", sizeof(struct {name}));").expect("a text grows");
        for (field, _, _) in fields.iter().filter(|(_, _, later)| newer || !later) {
            let field = plain(field);
            writeln!(c, "SAY(\"{name}.{field}\", offsetof(struct {name}, {field}));")
                .expect("a text grows");
        }
    }
    for (name, _) in CONSTANTS {
        writeln!(c, "SAY(\"{name}\", {name});").expect("a text grows");
    }
    c + "SAY(\"version\", FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION));\nreturn 0;\n}\n"
}

/// The numbers that a program prints, by name. Fails if it cannot be compiled.
fn run(program: &str, headers: &Path) -> Result<HashMap<String, u64>, String> {
    let home = tempfile::tempdir().expect("a directory");
    let (source, binary) = (home.path().join("layout.c"), home.path().join("layout"));
    fs::write(&source, program).expect("ours");
    let mut compile = Command::new("cc");
    compile.arg("-w").arg("-I").arg(headers).arg("-o").arg(&binary).arg(&source);
    let compiled = compile.output().map_err(|error| error.to_string())?;
    if !compiled.status.success() {
        return Err(String::from_utf8_lossy(&compiled.stderr).into_owned());
    }
    let said = Command::new(&binary).output().expect("it was compiled for this machine");
    let said = String::from_utf8(said.stdout).expect("numbers and names");
    let line = |line: &str| {
        let (name, value) = line.split_once(' ').expect("a name and a number");
        (name.to_owned(), value.parse().expect("a number"))
    };
    Ok(said.lines().map(line).collect())
}

#[test]
fn every_layout_and_number_is_as_libfabrics_headers_have_it() {
    let headers = env::var_os("VRIO_LIBFABRIC_HEADERS").unwrap_or_else(|| "/usr/include".into());
    let headers = Path::new(&headers);
    if !headers.join("rdma/fi_tagged.h").exists() {
        let test = "every_layout_and_number_is_as_libfabrics_headers_have_it";
        return println!("SKIP {test}: no headers of libfabric here (package libfabric-dev)");
    }
    // Headers between 1.17 and 2.6 have some of the later fields; 2.6 has all of them.
    let (newer, said) = match run(&program(true), headers) {
        Ok(said) => (true, said),
        Err(_) => (false, run(&program(false), headers).expect("a C program")),
    };
    for AbiLayout { name, bytes, fields } in LAYOUTS {
        let size = usize::try_from(said[*name]).expect("small");
        for &(field, offset, later) in *fields {
            if newer || !later {
                let place = format!("{name}.{}", plain(field));
                assert_eq!(said[&place], offset as u64, "{place} of {headers:?}");
            } else {
                assert!(size <= offset, "{name}.{field} is not behind all of {headers:?}");
            }
        }
        let bytes = bytes.unwrap_or(size);
        assert_eq!(size, bytes, "{name} of {headers:?}");
    }
    for (name, value) in CONSTANTS {
        let said = said[*name];
        // The numbers of C's enumerations are ints.
        assert!(said == *value || said as u32 == *value as u32 && *value >> 32 == 0, "{name}");
    }
    assert!(
        said["version"] >= u64::from(version(1, 17)),
        "older than the oldest supported release"
    );
}

#[test]
fn a_missing_call_is_refused_and_not_jumped_into() {
    assert_eq!(no_call(), -38);
    assert_eq!(not_offered(), -95);
}
