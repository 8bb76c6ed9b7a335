//! Objects of a kind of which the command line knows only the node's JSON: each field is a column.

use std::collections::BTreeSet;
use std::fmt::Write;

use comfy_table::Table;
use node::config::Kind;
use node::status::Status;
use serde_json::Value;

use super::layout::{STRING, fit, fold, section, table};
use super::verdict;

/// The field that all objects have, and the first column.
const NAME: &str = "name";

/// The field with numbers by name, which have a table of their own.
const COUNTERS: &str = "counters";

/// The output of `vrio KIND list`.
pub(crate) fn any_kind_list(kind: &str, all: &[Value]) -> String {
    let mut text = verdict::of_list(kind, all.len(), &[]);
    section(&mut text, &format!("{kind}s"), objects(all));
    text
}

/// One object with everything.
pub(crate) fn any_kind_alone(kind: &str, object: &Value) -> String {
    let mut text = verdict::of_list(kind, 1, &[]);
    for field in columns(std::slice::from_ref(object)) {
        let line = format!("{field}: {}", cell(&object[field]));
        writeln!(text, "{}", fold(&line, 3)).expect(STRING);
    }
    let mut counters = table(&["counter", "value"], 1);
    for (name, count) in counters_of(object) {
        counters.add_row([name.clone(), count.to_string()]);
    }
    section(&mut text, "counters", counters);
    text
}

/// The sections of a node's status for kinds that have no tables of their own.
pub(super) fn sections(text: &mut String, status: &Status) {
    for kind in Kind::all() {
        let path = format!("{}s", kind.key());
        if let Some(all) = status.others.get(&path).and_then(Value::as_array) {
            section(text, &path, objects(all));
        }
    }
}

/// The objects of such kinds, as a table of all counters calls them, with their counters.
pub(super) fn counted(status: &Status) -> Vec<(String, &String, u64)> {
    let mut counted = Vec::new();
    for kind in Kind::all().map(Kind::key) {
        let all = status.others.get(&format!("{kind}s")).and_then(Value::as_array);
        for object in all.into_iter().flatten() {
            let name = format!("{kind} {}", cell(&object[NAME]));
            counted.extend(counters_of(object).map(|(of, count)| (name.clone(), of, count)));
        }
    }
    counted
}

fn objects(all: &[Value]) -> Table {
    let columns = columns(all);
    let mut table = table(&columns, columns.len());
    for object in all {
        table.add_row(columns.iter().map(|field| cell(&object[*field])));
    }
    fit(table, &[])
}

/// The fields of these objects that are shown as they are.
fn columns(all: &[Value]) -> Vec<&str> {
    let fields = all.iter().filter_map(Value::as_object).flat_map(|fields| fields.keys());
    let fields: BTreeSet<&str> = fields.map(String::as_str).collect();
    let others = fields.into_iter().filter(|field| ![NAME, COUNTERS].contains(field));
    [NAME].into_iter().chain(others).collect()
}

fn counters_of(object: &Value) -> impl Iterator<Item = (&String, u64)> {
    let counters = object[COUNTERS].as_object().into_iter().flatten();
    counters.filter_map(|(name, count)| Some((name, count.as_u64()?)))
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(all) => all.iter().map(cell).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;

    #[test]
    fn each_field_is_a_column_and_counters_are_apart() {
        let all = [
            json!({ "name": "a", "text": "one", "counters": { "reads": 3 }, "origin": "file" }),
            json!({ "name": "b", "nics": ["x", "y"], "text": null, "counters": {} }),
        ];
        expect![[r#"
            2 notes: all is well

            NOTES
             name nics origin text
             a   -   file  one
             b   x, y -    -
        "#]]
        .assert_eq(&any_kind_list("note", &all).replace("  ", " "));
        expect![[r#"
            1 note: all is well
              name: a
              origin: file
              text: one

            COUNTERS
             counter value
             reads    3
        "#]]
        .assert_eq(&any_kind_alone("note", &all[0]).replace("  ", " "));
    }
}
