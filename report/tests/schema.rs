//! `docs/results.schema.json` against the types, and files against it.
//!
//! The words of JSON Schema that our schema uses are known here, and any other one is refused: a
//! rule that nobody checks would be a lie.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use report::import::import;
use report::published::published;
use report::result::{Machine, Meant, Measurement, Origin, Point, Run, Spread, Statistic};
use report::unit::{Against, Quantity, Unit};
use serde::Serialize;
use serde_json::{Value, json};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn schema() -> Value {
    let text = fs::read_to_string(root().join("docs/results.schema.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Words that say nothing about a value.
const SAID: [&str; 5] = ["$schema", "$defs", "title", "description", "items"];

/// What is wrong with a value, as a path and a rule.
fn check(all: &Value, rule: &Value, value: &Value, place: &str) -> Result<(), String> {
    let fail = |word: &str| Err(format!("{place}: {word}: {value}"));
    for (word, of) in rule.as_object().expect("a rule is an object") {
        match word.as_str() {
            "$ref" => {
                let name = of.as_str().unwrap().strip_prefix("#/$defs/").expect("a local one");
                check(all, &all["$defs"][name], value, place)?;
            }
            "anyOf" => {
                let rules = of.as_array().unwrap();
                if !rules.iter().any(|rule| check(all, rule, value, place).is_ok()) {
                    return fail(word);
                }
            }
            "type" => {
                let one = [of.clone()];
                let kinds = of.as_array().map_or(&one[..], |all| &all[..]);
                if !kinds.iter().any(|kind| is_of(kind.as_str().unwrap(), value)) {
                    return fail(word);
                }
            }
            "const" if of != value => return fail(word),
            "enum" if !of.as_array().unwrap().contains(value) => return fail(word),
            "const" | "enum" => {}
            "minimum" if value.as_f64().is_some_and(|it| it < of.as_f64().unwrap()) => {
                return fail(word);
            }
            "exclusiveMinimum" if value.as_f64().is_some_and(|it| it <= of.as_f64().unwrap()) => {
                return fail(word);
            }
            "maxLength" if value.as_str().is_some_and(|it| it.len() as u64 > limit(of)) => {
                return fail(word);
            }
            "maxItems" if value.as_array().is_some_and(|it| it.len() as u64 > limit(of)) => {
                return fail(word);
            }
            "maxProperties" if value.as_object().is_some_and(|it| it.len() as u64 > limit(of)) => {
                return fail(word);
            }
            "minimum" | "exclusiveMinimum" | "maxLength" | "maxItems" | "maxProperties" => {}
            // What it says is `is_id`, which has a test of its own.
            "pattern" => {}
            "required" => {
                let names = of.as_array().unwrap().iter().map(|it| it.as_str().unwrap());
                for name in names {
                    if value.get(name).is_none() {
                        return Err(format!("{place}: {name} is missing"));
                    }
                }
            }
            "properties" | "additionalProperties" => {}
            word if SAID.contains(&word) => {}
            word => panic!("the test does not know {word:?}"),
        }
    }
    parts(all, rule, value, place)
}

/// Of objects and lists, what is in them.
fn parts(all: &Value, rule: &Value, value: &Value, place: &str) -> Result<(), String> {
    if let (Some(items), Some(values)) = (rule.get("items"), value.as_array()) {
        for (at, value) in values.iter().enumerate() {
            check(all, items, value, &format!("{place}[{at}]"))?;
        }
    }
    if rule.get("type") != Some(&json!("object")) {
        return Ok(());
    }
    for (name, value) in value.as_object().expect("its type was looked at") {
        let place = format!("{place}.{name}");
        let own = rule.get("properties").and_then(|it| it.get(name));
        match own.or_else(|| rule.get("additionalProperties").filter(|it| it.is_object())) {
            Some(rule) => check(all, rule, value, &place)?,
            None => return Err(format!("{place}: nobody knows it")),
        }
    }
    Ok(())
}

fn limit(of: &Value) -> u64 {
    of.as_u64().expect("a limit is a number")
}

fn is_of(kind: &str, value: &Value) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("the test does not know the type {other:?}"),
    }
}

fn conforms(of: &str, value: &impl Serialize) -> Result<(), String> {
    let all = schema();
    // As text, as it is in a file.
    let text = serde_json::to_string(value).unwrap();
    check(&all, &all["$defs"][of], &serde_json::from_str(&text).unwrap(), of)
}

fn names<T: Serialize>(all: impl IntoIterator<Item = T>) -> BTreeSet<String> {
    all.into_iter().map(|it| serde_json::to_value(it).unwrap().as_str().unwrap().into()).collect()
}

fn listed(place: &str) -> BTreeSet<String> {
    let schema = schema();
    let list = schema.pointer(place).unwrap_or_else(|| panic!("no {place}")).as_array().unwrap();
    list.iter().filter_map(|it| Some(it.as_str()?.to_owned())).collect()
}

#[test]
fn the_schema_knows_each_name_that_the_types_know_and_no_other() {
    let series = "/$defs/series/properties";
    assert_eq!(listed(&format!("{series}/quantity/enum")), names(Quantity::ALL));
    assert_eq!(listed(&format!("{series}/x/properties/quantity/enum")), names(Against::ALL));
    assert_eq!(listed("/$defs/unit/enum"), names(Unit::ALL));
    // Of those without a list in the code: each name of the schema is read, and of each value of
    // the code the schema is asked below.
    for name in listed(&format!("{series}/spread/enum")) {
        serde_json::from_value::<Spread>(json!(name)).unwrap();
    }
    for name in listed(&format!("{series}/statistic/enum")) {
        serde_json::from_value::<Statistic>(json!(name)).unwrap();
    }
    for name in listed("/$defs/point/properties/meant/enum") {
        serde_json::from_value::<Meant>(json!(name)).unwrap();
    }
    for name in listed("/$defs/measurement/properties/origin/enum") {
        serde_json::from_value::<Origin>(json!(name)).unwrap();
    }
}

#[test]
fn what_is_imported_and_what_was_published_conforms() {
    let mut count = 0;
    for entry in fs::read_dir(root().join("report/tests/data")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        for it in import(&name, &fs::read_to_string(&path).unwrap()).unwrap_or_default() {
            conforms("measurement", &it).unwrap_or_else(|fault| panic!("{name}: {fault}"));
            count += 1;
        }
    }
    assert!(count > 30, "{count} of the outputs were read");
    for it in published() {
        conforms("measurement", &it).unwrap_or_else(|fault| panic!("{}: {fault}", it.title));
    }
}

#[test]
fn a_run_conforms_with_everything_and_with_nothing() {
    let mut run = Run::now("block", "a disk");
    conforms("run", &run).unwrap();
    run.command = vec!["vrio".to_owned()];
    run.tools = [("fio".to_owned(), "3.33".to_owned())].into();
    run.notes = vec!["ended early".to_owned()];
    run.machine = Some(Machine {
        processor: "one".to_owned(),
        cores: 2,
        kernel: "6.1".to_owned(),
        cache_line_round_trip_ns: Some(46),
        version: Some("0.1.0".to_owned()),
        commit: Some("abc".to_owned()),
        optimised: Some(true),
    });
    conforms("run", &run).unwrap();
    assert!(conforms("measurement", &run).is_err());
}

/// What the types refuse the schema refuses as well, as far as it can say it.
#[test]
fn what_is_wrong_is_refused_by_both() {
    let good = serde_json::to_value(&published()[0]).unwrap();
    conforms("measurement", &good).unwrap();
    type Break = fn(&mut Value);
    let breaks: [Break; 9] = [
        |it| it["schema"] = json!(2),
        |it| it["origin"] = json!("guessed"),
        |it| it["novelty"] = json!(1),
        |it| drop(it.as_object_mut().unwrap().remove("series")),
        |it| it["series"][0]["quantity"] = json!("beauty"),
        |it| it["series"][0]["x"]["unit"] = json!("miles"),
        |it| it["series"][0]["points"][0]["y"] = json!("30"),
        |it| it["series"][0]["points"][0]["x"] = json!(-1),
        |it| it["notes"] = json!(["x".repeat(4097)]),
    ];
    for (at, spoil) in breaks.iter().enumerate() {
        let mut bad = good.clone();
        spoil(&mut bad);
        assert!(conforms("measurement", &bad).is_err(), "{at}: the schema takes {bad}");
        assert!(Measurement::read(&bad.to_string()).is_err(), "{at}: the types take {bad}");
    }
    assert!(serde_json::from_value::<Point>(json!({"x": 1, "y": 2, "z": 3})).is_err());
}
