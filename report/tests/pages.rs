//! Pages of real output of programs: the plots that they have, and that rows and series have
//! different names.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use report::import::import_files;
use report::page::{PageError, PageOptions, page};
use report::published::published;
use report::store::Loaded;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

fn load(name: &str) -> Loaded {
    import_files(&[data().join(name)], None).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The table of a plot: its title, the heads of its columns and of its rows.
struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<String>,
}

fn between<'a>(text: &'a str, begin: &str, end: &str) -> Vec<&'a str> {
    text.split(begin).skip(1).filter_map(|rest| rest.split(end).next()).collect()
}

/// Every table of a plot on the page.
fn tables(html: &str) -> Vec<Table> {
    let one = |figure: &str| {
        let title = between(figure, "<h3>", "</h3>")[0].to_owned();
        let head = between(figure, "<thead>", "</thead>")[0];
        let column = |cell: &str| cell.split_once('>').unwrap().1.to_owned();
        let columns = between(head, "<th scope=\"col\"", "</th>").into_iter().skip(1).map(column);
        let columns = columns.collect();
        let rows = between(figure, "<th scope=\"row\">", "</th>");
        Table { title, columns, rows: rows.into_iter().map(str::to_owned).collect() }
    };
    between(html, "<figure ", "</figure>").into_iter().map(one).collect()
}

fn of(names: &[&str], options: &PageOptions) -> Vec<Table> {
    let all: Vec<Loaded> = names.iter().map(|name| load(name)).collect();
    tables(&page(&all, options).unwrap().html)
}

fn with_published() -> PageOptions {
    PageOptions { published: published(), ..PageOptions::default() }
}

fn are_apart(names: &[String]) -> bool {
    names.iter().collect::<BTreeSet<_>>().len() == names.len()
}

#[test]
fn output_of_all_programs_is_recognised() {
    let mut seen = 0;
    for file in std::fs::read_dir(data()).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        // A refused file is a test of the importers'.
        let Ok(loaded) = import_files(&[data().join(&name)], None) else { continue };
        let html = match page(&[loaded], &with_published()) {
            Err(PageError::Nothing) => continue,
            page => page.unwrap().html,
        };
        let all = tables(&html);
        let titles: Vec<String> = all.iter().map(|table| table.title.clone()).collect();
        assert!(!all.is_empty() && are_apart(&titles), "{name}: {titles:?}");
        for Table { title, columns, rows } in all {
            assert!(are_apart(&columns), "{name}: {title}: {columns:?}");
            assert!(are_apart(&rows), "{name}: {title}: {rows:?}");
            // A number instead of a name does not tell a reader the difference.
            let is_numbered = |name: &&String| name.ends_with(" (2)");
            let numbered = columns.iter().chain(&rows).find(is_numbered);
            assert!(numbered.is_none(), "{name}: {title}: {numbered:?}");
        }
        seen += 1;
    }
    assert!(seen > 20, "{seen} files");
}

fn table<'a>(all: &'a [Table], title: &str) -> &'a Table {
    let titles = || all.iter().map(|table| table.title.as_str()).collect::<Vec<_>>();
    all.iter().find(|table| table.title == title).unwrap_or_else(|| panic!("{:#?}", titles()))
}

#[test]
fn mpi_stands_beside_what_others_measured_and_published() {
    let all = of(&["vrio-mpi.json", "osu-7.4-latency.txt", "osu-7.4-bw.txt"], &with_published());
    let latency = table(&all, "Latency by message size: point to point");
    for name in ["vrio", "osu-7.4-latency"] {
        assert!(latency.columns.iter().any(|found| found.contains(name)), "{:?}", latency.columns);
    }
    let bandwidth = table(&all, "Bandwidth by message size: point to point");
    let published = "published: TCP over QDR InfiniBand, peak";
    assert!(bandwidth.columns.iter().any(|found| found == published), "{:?}", bandwidth.columns);
    table(&all, "Latency by message size: all to all");
}

#[test]
fn models_stand_beside_the_slides() {
    let all = of(&["vrio-models.json"], &with_published());
    let events =
        |table: &&Table| table.title.starts_with("Events per request: I/O models of disks");
    let events = all.iter().find(events).unwrap();
    let place = |row: &str| events.rows.iter().position(|found| found == row);
    for (ours, theirs) in [
        ("optimum", "optimum"),
        ("vRIO direct", "vrio"),
        ("Elvis", "elvis"),
        ("vRIO without polling", "vrio w/o poll"),
        ("baseline", "baseline"),
    ] {
        let below = place(&format!("{theirs} (published)"));
        assert_eq!(place(ours).map(|at| at + 1), below, "{:?}", events.rows);
    }
    assert!(events.columns.iter().any(|name| name == "published: IOhost interrupts"));
}

#[test]
fn connections_stand_beside_those_that_others_counted() {
    let all = of(&["vrio-connections.json"], &with_published());
    let table = table(&all, "Connections: MPI jobs");
    assert!(table.rows.iter().any(|row| row == "all-to-all, vrio"), "{:?}", table.rows);
    assert!(table.rows.iter().any(|row| row == "native XRC"), "{:?}", table.rows);
}
