//! Values against `docs/results.schema.json`, the one schema of results. A store asks here of each
//! file that it writes or reads, and so do the tests.
//!
//! The words of JSON Schema that our schema uses are known here. Any other word is refused: a rule
//! without a check would promise too much.

use std::fmt;
use std::sync::LazyLock;

use serde_json::Value;
use thiserror::Error;

use crate::form::is_id;

/// The forms of the schema. A value must have one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A `run.json`.
    Run,
    /// A measurement's file.
    Measurement,
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Measurement => "measurement",
        }
    }
}

/// The place where a value does not have the schema's form.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{place}: {rule}: that is not the form of docs/results.schema.json")]
pub struct Misfit {
    /// The place, as a path of fields: `measurement.series[0].unit`.
    pub place: String,
    /// The rule that the value breaks there.
    pub rule: String,
}

/// The schema itself.
pub fn schema() -> &'static Value {
    static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
        let text = include_str!("../../docs/results.schema.json");
        serde_json::from_str(text).expect("the schema is JSON")
    });
    &SCHEMA
}

/// Checks a value.
///
/// # Errors
/// The first place where the value has another form.
pub fn check(form: Form, value: &Value) -> Result<(), Misfit> {
    let name = form.name();
    check_by(&schema()["$defs"][name], value, &SchemaPlace::Of(name))
}

/// The place within a value during a check. It becomes words only for an error.
enum SchemaPlace<'a> {
    Of(&'a str),
    Field(&'a Self, &'a str),
    Item(&'a Self, usize),
}

impl fmt::Display for SchemaPlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of(name) => f.write_str(name),
            Self::Field(within, name) => write!(f, "{within}.{name}"),
            Self::Item(within, at) => write!(f, "{within}[{at}]"),
        }
    }
}

impl SchemaPlace<'_> {
    fn misfit(&self, rule: impl Into<String>) -> Misfit {
        Misfit { place: self.to_string(), rule: rule.into() }
    }
}

/// Words of the schema that restrict no value by themselves.
const SAID: [&str; 7] =
    ["$schema", "$defs", "title", "description", "items", "properties", "additionalProperties"];

fn check_by(rule: &Value, value: &Value, place: &SchemaPlace<'_>) -> Result<(), Misfit> {
    for (word, of) in rule.as_object().into_iter().flatten() {
        check_word(word, of, value, place)?;
    }
    check_inside(rule, value, place)
}

/// Checks a value by one word of a rule.
fn check_word(
    word: &str,
    of: &Value,
    value: &Value,
    place: &SchemaPlace<'_>,
) -> Result<(), Misfit> {
    let least = of.as_f64().zip(value.as_f64());
    let most = of.as_u64().zip(size(word, value));
    let is_kept = match word {
        "$ref" => {
            let name = of.as_str().and_then(|name| name.strip_prefix("#/$defs/"));
            let rule = name.and_then(|name| schema()["$defs"].get(name));
            let rule = rule.ok_or_else(|| place.misfit(format!("the schema has no {of}")))?;
            return check_by(rule, value, place);
        }
        "required" => {
            let names = of.as_array().into_iter().flatten().filter_map(Value::as_str);
            return match names.into_iter().find(|name| value.get(name).is_none()) {
                Some(name) => Err(place.misfit(format!("{name} is missing"))),
                None => Ok(()),
            };
        }
        "type" => match of.as_array() {
            Some(kinds) => kinds.iter().any(|kind| is_of(kind, value)),
            None => is_of(of, value),
        },
        "const" => of == value,
        "enum" => of.as_array().is_some_and(|all| all.contains(value)),
        // The schema has one pattern, for a run's name. A test compares it with this function.
        "pattern" => value.as_str().is_some_and(is_id),
        "minimum" => least.is_none_or(|(least, value)| value >= least),
        "exclusiveMinimum" => least.is_none_or(|(least, value)| value > least),
        "maxLength" | "maxItems" | "maxProperties" => most.is_none_or(|(most, size)| size <= most),
        word if SAID.contains(&word) => true,
        word => return Err(place.misfit(format!("the schema has an unknown word {word:?}"))),
    };
    if is_kept { Ok(()) } else { Err(place.misfit(format!("its {word} must be {of}"))) }
}

/// The number that a limit of that name bounds, if the value is of that kind. For words it is their
/// bytes.
fn size(word: &str, value: &Value) -> Option<u64> {
    let size = match word {
        "maxLength" => value.as_str()?.len(),
        "maxItems" => value.as_array()?.len(),
        "maxProperties" => value.as_object()?.len(),
        _ => return None,
    };
    Some(size as u64)
}

/// Checks the fields of an object and the items of a list.
fn check_inside(rule: &Value, value: &Value, place: &SchemaPlace<'_>) -> Result<(), Misfit> {
    if let (Some(items), Some(values)) = (rule.get("items"), value.as_array()) {
        for (at, value) in values.iter().enumerate() {
            check_by(items, value, &SchemaPlace::Item(place, at))?;
        }
    }
    let is_object = rule.get("type").is_some_and(|kind| kind == "object");
    for (name, value) in value.as_object().filter(|_| is_object).into_iter().flatten() {
        let own = rule.get("properties").and_then(|it| it.get(name));
        let any = rule.get("additionalProperties").filter(|it| it.is_object());
        let place = SchemaPlace::Field(place, name);
        let rule = own.or(any).ok_or_else(|| place.misfit("it is not known"))?;
        check_by(rule, value, &place)?;
    }
    Ok(())
}

fn is_of(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap_or_default() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn by(rule: &Value, value: &Value) -> Result<(), String> {
        check_by(rule, value, &SchemaPlace::Of("it")).map_err(|misfit| misfit.to_string())
    }

    #[test]
    fn each_rule_of_ours_refuses_something() {
        let rules = [
            (json!({"type": "integer"}), json!(1), json!(1.5)),
            (json!({"type": ["string", "null"]}), json!(null), json!(false)),
            (json!({"const": 1}), json!(1), json!(2)),
            (json!({"enum": ["a"]}), json!("a"), json!("b")),
            (json!({"minimum": 0}), json!(0), json!(-1)),
            (json!({"exclusiveMinimum": 0}), json!(0.1), json!(0)),
            (json!({"maxLength": 2}), json!("µ"), json!("µµ")),
            (json!({"maxItems": 1}), json!([1]), json!([1, 2])),
            (json!({"maxProperties": 1}), json!({"a": 1}), json!({"a": 1, "b": 2})),
            (json!({"items": {"type": "null"}}), json!([null]), json!([null, 1])),
            (json!({"required": ["a"]}), json!({"a": 1}), json!({"b": 1})),
            (json!({"type": "object", "properties": {"a": {}}}), json!({"a": 1}), json!({"b": 1})),
            (json!({"$ref": "#/$defs/unit"}), json!("ns"), json!("parsec")),
            (json!({"pattern": "of a run"}), json!("a-1"), json!("../up")),
        ];
        for (rule, good, bad) in rules {
            assert_eq!(by(&rule, &good), Ok(()), "{rule}");
            assert!(by(&rule, &bad).is_err(), "{rule} takes {bad}");
        }
    }

    #[test]
    fn unchecked_words_of_the_schema_are_refused() {
        for rule in [json!({"uniqueItems": true}), json!({"$ref": "#/$defs/nothing"})] {
            assert!(by(&rule, &json!([])).is_err(), "{rule}");
        }
    }

    #[test]
    fn a_misfit_has_a_place_and_a_rule() {
        let value = json!({"schema": 1, "origin": "measured", "benchmark": "x", "title": "y",
            "series": [{"name": "z", "quantity": "beauty"}]});
        let said = check(Form::Measurement, &value).unwrap_err().to_string();
        assert!(said.starts_with("measurement.series[0]"), "{said}");
        assert!(said.contains("docs/results.schema.json"), "{said}");
        let said = check(Form::Run, &json!({"schema": 1})).unwrap_err();
        assert_eq!((&*said.place, &*said.rule), ("run", "id is missing"));
    }

    /// The one pattern of the schema agrees with [`is_id`].
    #[test]
    fn the_pattern_is_that_of_a_runs_name() {
        let patterns = schema().to_string().matches("\"pattern\"").count();
        let pattern = &schema()["$defs"]["run"]["properties"]["id"]["pattern"];
        assert_eq!((patterns, pattern), (1, &json!("^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}$")));
    }
}
