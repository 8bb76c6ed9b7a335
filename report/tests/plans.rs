//! Pages of plans: the pictures of each command of `vrio plan`, and what hostile JSON becomes.

use std::path::{Path, PathBuf};

use report::import::{import, import_files};
use report::page::{Page, PageOptions, page};
use report::store::Loaded;
use results::Empty;
use serde_json::{Value, json};

/// The words of a caution that a plan has no machine, which it needs not.
const UNKNOWN: &str = "the machine of";
const ALL: [&str; 6] = ["cost", "search", "size", "simulate", "application", "published"];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn load(command: &str) -> Loaded {
    let name = format!("vrio-plan-{command}.json");
    import_files(&[data(&name)], None).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn page_of(sources: &[Loaded]) -> Page {
    page(sources, &PageOptions::default()).unwrap()
}

fn between<'a>(text: &'a str, begin: &str, end: &str) -> Vec<&'a str> {
    text.split(begin).skip(1).filter_map(|rest| rest.split(end).next()).collect()
}

/// The element of a plot with this heading.
fn figure<'a>(html: &'a str, title: &str) -> &'a str {
    let all = between(html, "<figure ", "</figure>");
    let heading = format!("<h3>{title}</h3>");
    let found = all.iter().find(|figure| figure.contains(&heading));
    found.unwrap_or_else(|| panic!("{title}: {:#?}", between(html, "<h3>", "</h3>")))
}

#[test]
fn each_command_has_its_pictures() {
    let sources: Vec<Loaded> = ALL.iter().map(|command| load(command)).collect();
    let Page { html, plots } = page_of(&sources);
    for title in [
        "Price of parts: plans of a rack",
        "Change of price: plans of a rack",
        "Price per host by servers: racks of all sizes, vrio-plan-search: no spare IOhost",
        "Change of price by servers: racks of all sizes, vrio-plan-search: no spare IOhost",
        "Change of price by servers: racks of all sizes, vrio-plan-search: one spare IOhost",
        "Polling cores by bursts in common: sidecores for a p99",
        "Share of the hosts&#39; sidecores by bursts in common: sidecores for a p99",
        "Latency by sidecores: simulated racks",
        "Latency by sidecores, means and tails: simulated racks",
        "Duration: predicted applications",
        "Price: published figures and the planner&#39;s",
        "Connections: published figures and the planner&#39;s",
    ] {
        let figure = figure(&html, title);
        // A picture, its numbers, and of what they are.
        assert!(figure.contains("<svg class=\"plot\"") && figure.contains("<table "), "{title}");
        assert!(figure.contains("Planned, and not measured. "), "{title}");
    }
    assert!(plots.len() >= 14 && plots.iter().all(|(_, svg)| svg.contains("not measured")));
    let bills = figure(&html, "Price of parts: plans of a rack");
    assert!(bills.contains("PLACEHOLDERS") && bills.contains(">power of 5 years</button>"));
    assert!(bills.contains("“A rack of sixteen hosts”; prices: "), "{bills}");
    // The dearest part comes first, and power last.
    let keys = between(bills, "<button class=\"key\"", "</button>");
    assert!(keys[0].ends_with("cpu-32-core") && keys[7].ends_with("power of 5 years"), "{keys:?}");
    let prices = figure(&html, "Price: published figures and the planner&#39;s");
    assert!(prices.contains("published: slides") && prices.contains("6 Elvis servers: misprint"));
    assert!(!html.contains(UNKNOWN), "{html}");
}

#[test]
fn a_bill_without_power_is_a_lower_bound() {
    let mut it = load("cost");
    let measurement = &mut it.measurements[0];
    let power = measurement.series.iter_mut().find(|it| it.name == "power of 5 years").unwrap();
    power.points.remove(1);
    let what = "power of 5 years, pooled".to_owned();
    measurement.empty = vec![Empty { what, why: "the watts of x are not known".to_owned() }];
    let html = page_of(&[it]).html;
    let bills = figure(&html, "Price of parts: plans of a rack");
    assert_eq!(bills.matches(">≥ 263.2 k</text>").count(), 1, "{bills}");
    let said = "No figure: power of 5 years, pooled: the watts of x are not known.";
    assert!(bills.contains(said), "{bills}");
}

#[test]
fn where_pooling_pays_is_a_heat_map() {
    let html = page_of(&[load("search")]).html;
    assert!(html.contains("<h1>vrio-plan-search</h1>"), "a plan has the name of its file");
    let title = "Change of price by servers: racks of all sizes, vrio-plan-search: no spare IOhost";
    let map = figure(&html, title);
    assert_eq!(between(map, "<g class=\"heat\" data-k=", ">").len(), 8, "a row for each share");
    assert!(map.contains("class=\"gain l") && map.contains("class=\"loss l"), "{map}");
    assert!(!between(map, "class=\"edge\" d=\"", "\"")[0].is_empty(), "no line where it pays");
    assert!(!map.contains("class=\"legend\""), "rows have their names beside them");
    // Each box has its cell, in the order of rows and columns.
    let places = between(map, "data-p=\"", "\"");
    let rows = between(map, "<th scope=\"row\">", "</th>");
    assert_eq!((places[0].split(' ').count(), rows.len()), (14, 14));
}

#[test]
fn plans_stand_beside_measurements() {
    let measured = import_files(&[data("vrio-block.json")], None).unwrap();
    let html = page_of(&[measured, load("cost")]).html;
    assert!(html.contains("Price of parts: plans of a rack") && html.contains("IOPS"), "{html}");
    // A plan has no machine that could differ from that of a measurement.
    assert!(!html.contains(UNKNOWN) && html.contains("a plan: it is computed"), "{html}");
}

#[test]
fn two_plans_are_in_one_picture() {
    let mut other = load("simulate");
    other.retitle("other");
    let html = page_of(&[load("simulate"), other]).html;
    let tails = figure(&html, "Latency by sidecores, means and tails: simulated racks");
    assert_eq!(between(tails, "class=\"key\"", ">").len(), 4, "two percentiles of each");
    assert!(!html.contains(UNKNOWN), "{html}");
}

/// A plan with one series of these points, as JSON.
fn plan(quantity: &str, unit: &str, points: Value) -> Value {
    let series = json!({
        "name": "pool, 50 %", "quantity": quantity, "unit": unit,
        "x": { "quantity": "servers", "unit": "count" }, "points": points,
    });
    let mut other = series.clone();
    other["name"] = json!("pool, 100 %");
    let measurement = json!({
        "schema": 1, "origin": "planned", "source": "Prices: a list", "benchmark": "plan_search",
        "title": "a rack: no spare IOhost", "series": [series, other],
    });
    json!({ "cells": [], "results": { "title": "a rack", "measurements": [measurement] } })
}

fn loaded(plan: &Value) -> Loaded {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.json");
    std::fs::write(&file, plan.to_string()).unwrap();
    import_files(&[file], None).unwrap()
}

#[test]
fn damaged_plans_are_refused_with_their_place() {
    let good = plan("price_change", "percent", json!([{ "x": 2, "y": -4.5 }]));
    import("mine.json", &good.to_string()).unwrap();
    let text = good.to_string();
    let said = |text: &str| import("mine.json", text).unwrap_err().to_string();
    let cut = said(&text[..text.len() - 9]);
    assert!(cut.contains("was it cut?"), "{cut}");
    for number in ["NaN", "1e999", "-Infinity", "\"-4.5\"", "null"] {
        let fault = said(&text.replace("-4.5", number));
        assert!(fault.starts_with("mine.json, line 1"), "{number}: {fault}");
    }
    type Break = fn(&mut Value);
    let breaks: [(&str, Break); 9] = [
        ("missing field `measurements`", |it| it["results"] = json!({ "title": "x" })),
        ("invalid type", |it| it["results"] = json!([1, 2])),
        ("unknown field `novelty`", |it| it["results"]["novelty"] = json!(1)),
        ("title", |it| it["results"]["title"] = json!("")),
        ("unknown variant `guessed`", |it| {
            it["results"]["measurements"][0]["origin"] = json!("guessed");
        }),
        ("planned or published", |it| {
            it["results"]["measurements"][0]["origin"] = json!("measured");
        }),
        ("version 2", |it| it["results"]["measurements"][0]["schema"] = json!(2)),
        ("is not below 0", |it| {
            let series = &mut it["results"]["measurements"][0]["series"][0];
            (series["quantity"], series["unit"]) = (json!("host_price"), json!("usd"));
        }),
        ("more than 60000", |it| {
            let points = vec![json!({ "x": 1, "y": 1 }); 60_001];
            it["results"]["measurements"][0]["series"][0]["points"] = json!(points);
        }),
    ];
    for (words, spoil) in breaks {
        let mut bad = good.clone();
        spoil(&mut bad);
        let fault = said(&bad.to_string());
        assert!(fault.starts_with("mine.json") && fault.contains(words), "{words}: {fault}");
    }
}

#[test]
fn hostile_words_of_plans_are_words() {
    const HOSTILE: &str = "</title><script>alert(1)</script>\" onload=\"x";
    let mut it = plan("price_change", "percent", json!([{ "x": 2, "y": 1 }, { "x": 3, "y": -1 }]));
    let measurement = &mut it["results"]["measurements"][0];
    for key in ["source", "title"] {
        measurement[key] = json!(HOSTILE);
    }
    measurement["notes"] = json!([HOSTILE]);
    measurement["setup"] = json!({ HOSTILE: HOSTILE });
    measurement["series"][0]["name"] = json!(HOSTILE);
    it["results"]["title"] = json!(HOSTILE);
    let Page { html, plots } = page_of(&[loaded(&it)]);
    assert_eq!(html.matches("<script>").count(), 1);
    assert!(plots.iter().all(|(_, svg)| !svg.contains("<script") && !svg.contains("onload=\"x")));
}

#[test]
fn endless_plans_have_a_page_all_the_same() {
    for y in [f64::MAX, -f64::MAX, f64::MIN_POSITIVE, 0.0] {
        let points = json!([{ "x": 0, "y": y }, { "x": 1e300, "y": -y }]);
        let Page { html, .. } = page_of(&[loaded(&plan("price_change", "percent", points))]);
        let map =
            figure(&html, "Change of price by servers: racks of all sizes, mine: no spare IOhost");
        assert!(map.len() < 20_000 && !map.contains("NaN") && !map.contains("inf"), "{map}");
    }
    // Boxes too many to be told apart are lines.
    let points: Vec<Value> = (0..20_000).map(|x| json!({ "x": x, "y": x % 7 })).collect();
    let Page { html, .. } = page_of(&[loaded(&plan("price_change", "percent", json!(points)))]);
    assert!(!html.contains("data-k=\"0\" class=\"heat\"") && !html.contains("class=\"edge\""));
    assert!(html.len() < 1_000_000, "{}", html.len());
}
