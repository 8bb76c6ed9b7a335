//! `docs/results.schema.json` against the types, and files against it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use report::import::import;
use report::published::published;
use report::store::{Loaded, RunStore, load};
use results::schema::{Form, Misfit, check, schema};
use results::{
    Against, Machine, Meant, Measurement, Point, Quantity, Run, RunOrigin, Spread, Statistic, Unit,
};
use serde::Serialize;
use serde_json::{Value, json};

fn conforms(form: Form, value: &impl Serialize) -> Result<(), Misfit> {
    // The value goes through text, as in a file.
    let text = serde_json::to_string(value).unwrap();
    check(form, &serde_json::from_str(&text).unwrap())
}

fn names<T: Serialize>(all: impl IntoIterator<Item = T>) -> BTreeSet<String> {
    all.into_iter().map(|it| serde_json::to_value(it).unwrap().as_str().unwrap().into()).collect()
}

fn listed(place: &str) -> BTreeSet<String> {
    let list = schema().pointer(place).unwrap_or_else(|| panic!("no {place}")).as_array().unwrap();
    list.iter().filter_map(|it| Some(it.as_str()?.to_owned())).collect()
}

#[test]
fn the_schema_knows_each_name_that_the_types_know_and_no_other() {
    let series = "/$defs/series/properties";
    assert_eq!(listed(&format!("{series}/quantity/enum")), names(Quantity::ALL));
    assert_eq!(listed(&format!("{series}/x/properties/quantity/enum")), names(Against::ALL));
    assert_eq!(listed("/$defs/unit/enum"), names(Unit::ALL));
    // Lists that the code does not have: each name of the schema is read, and each value of the
    // code is checked by the schema below.
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
        serde_json::from_value::<RunOrigin>(json!(name)).unwrap();
    }
}

#[test]
fn imported_and_published_results_conform() {
    let mut count = 0;
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        for it in import(&name, &fs::read_to_string(&path).unwrap()).unwrap_or_default() {
            conforms(Form::Measurement, &it).unwrap_or_else(|fault| panic!("{name}: {fault}"));
            count += 1;
        }
    }
    assert!(count > 30, "{count} of the outputs were read");
    for it in published() {
        conforms(Form::Measurement, &it).unwrap_or_else(|fault| panic!("{}: {fault}", it.title));
    }
}

#[test]
fn stored_results_conform() {
    let folder = tempfile::tempdir().unwrap();
    let store = RunStore::at(folder.path());
    let mut loaded = Loaded { run: Run::now("all", "others' figures"), measurements: published() };
    let place = store.save(&mut loaded).unwrap();
    assert_eq!(load(&place).unwrap(), loaded);
    // A file that was damaged later is refused by its name, with the place.
    let file = place.join("01-mpi_latency.json");
    let text = fs::read_to_string(&file).unwrap();
    let spoilt = text.replacen("\"unit\": \"", "\"line_rate\": -1, \"unit\": \"", 1);
    fs::write(&file, spoilt).unwrap();
    let said = load(&place).unwrap_err().to_string();
    assert!(said.contains("01-mpi_latency.json") && said.contains("line_rate"), "{said}");
}

#[test]
fn a_run_conforms_with_everything_and_with_nothing() {
    let mut run = Run::now("block", "a disk");
    conforms(Form::Run, &run).unwrap();
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
    conforms(Form::Run, &run).unwrap();
    assert!(conforms(Form::Measurement, &run).is_err());
}

/// Values that the types refuse, the schema refuses as well, as far as it can express the rule.
#[test]
fn wrong_results_are_refused_by_both() {
    let good = serde_json::to_value(&published()[0]).unwrap();
    conforms(Form::Measurement, &good).unwrap();
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
        assert!(conforms(Form::Measurement, &bad).is_err(), "{at}: the schema takes {bad}");
        assert!(Measurement::read(&bad.to_string()).is_err(), "{at}: the types take {bad}");
    }
    assert!(serde_json::from_value::<Point>(json!({"x": 1, "y": 2, "z": 3})).is_err());
}
