//! `vrio KIND add|list|remove|show` for a kind without commands of its own. Its options are the
//! keys of its table in the file, and its status is shown as the node says it.

use anyhow::anyhow;
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};
use node::config::{Kind, SettingKey};
use serde_json::{Map, Value};

use super::{Named, NodeChoice, Remove, change, list, one, take_away};
use crate::failure::CommandFailure;
use crate::tables;

/// A command about an object of a kind.
#[derive(Debug)]
pub(crate) struct AnyKindCommand {
    kind: Kind,
    verb: KindVerb,
}

#[derive(Debug)]
enum KindVerb {
    /// With the options that were given, as texts.
    Add(Vec<(SettingKey, String)>, NodeChoice),
    List(NodeChoice),
    Remove(Remove),
    Show(Named),
}

/// The command of a kind, from its keys.
pub(crate) fn any_kind_command(kind: Kind) -> Command {
    let name = kind.key();
    let add = kind.keys().iter().fold(Command::new("add"), |add, key| add.arg(option(key)));
    let add = add.about(format!("Add a {name}, from now until the node is restarted"));
    let list = Command::new("list").about(format!("List the {name}s"));
    let remove = Command::new("remove").about(format!("Remove a {name}"));
    let show = Command::new("show").about(format!("Show one {name} with all that the node says"));
    Command::new(name)
        .about(format!("Add, list, remove and show the {name}s of a running node"))
        .after_help(format!("The options of `vrio {name} add` are the keys of [[{name}]]."))
        .subcommand(NodeChoice::augment_args(add))
        .subcommand(Remove::augment_args(remove))
        .subcommand(NodeChoice::augment_args(list))
        .subcommand(Named::augment_args(show))
}

/// The option for a key; the name has no dashes.
fn option(key: &SettingKey) -> Arg {
    let arg = Arg::new(key.name).help(plain(key.text));
    if key.name == "name" { arg } else { arg.long(key.name).value_name("VALUE") }
}

/// A description of the manual (Markdown) as help has it: without marks, the targets of links and
/// the last full stop.
fn plain(text: &str) -> String {
    let mut parts = text.split("](");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    plain.extend(parts.filter_map(|part| part.split_once(')')).map(|(_, rest)| rest));
    plain.retain(|c| !"[]`".contains(c));
    plain.trim_end_matches('.').to_owned()
}

/// The value of an option, as the file has it: `true`, a number, a list, a table or a text in
/// quotes; anything else is a text as it is.
fn value(key: &SettingKey, text: &str) -> Result<Value, CommandFailure> {
    if text.starts_with(['[', '{', '"']) {
        let wrong = |error| CommandFailure::configuration(anyhow!("--{}: {error}", key.name));
        return node::config::value(text).map_err(wrong);
    }
    Ok(match text {
        "true" | "false" => Value::Bool(text == "true"),
        _ => text.parse::<u64>().map_or_else(|_| Value::from(text), Value::from),
    })
}

impl AnyKindCommand {
    pub(crate) fn read(kind: Kind, matches: &ArgMatches) -> Result<Self, Error> {
        let (verb, matches) = matches.subcommand().expect("clap requires one");
        let verb = match verb {
            "add" => {
                let given = kind.keys().iter().copied();
                let given = given
                    .filter_map(|key| Some((key, matches.get_one::<String>(key.name)?.clone())));
                KindVerb::Add(given.collect(), NodeChoice::from_arg_matches(matches)?)
            }
            "list" => KindVerb::List(NodeChoice::from_arg_matches(matches)?),
            "remove" => KindVerb::Remove(Remove::from_arg_matches(matches)?),
            _ => KindVerb::Show(Named::from_arg_matches(matches)?),
        };
        Ok(Self { kind, verb })
    }

    pub(crate) fn run(&self) -> Result<(), CommandFailure> {
        let kind = self.kind.key();
        let path = format!("/v1/{kind}s");
        match &self.verb {
            KindVerb::Add(given, which) => {
                let fields = given
                    .iter()
                    .map(|(key, text)| value(key, text).map(|value| (key.name.to_owned(), value)));
                let fields = fields.collect::<Result<Map<_, _>, _>>()?;
                change(which, "POST", &path, &fields.into())
            }
            KindVerb::List(which) => {
                list(which, &path, |all: &Vec<Value>| tables::any_kind_list(kind, all))
            }
            KindVerb::Remove(remove) => take_away(&format!("{kind}s"), remove),
            KindVerb::Show(named) => {
                one(named, kind, |object: &Value| tables::any_kind_alone(kind, object))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn help_is_the_manual_without_its_marks() {
        let text = "The `name`, as in [uplinks](#uplinks); `[[disk]]`. Default: none.";
        assert_eq!(plain(text), "The name, as in uplinks; disk. Default: none");
    }

    #[test]
    fn values_are_as_in_the_file_or_texts() {
        let key = SettingKey::new("text", "A text.");
        for (text, wanted) in [
            ("12", json!(12)),
            ("true", json!(true)),
            ("\"12\"", json!("12")),
            ("[1, 2]", json!([1, 2])),
            ("a text", json!("a text")),
        ] {
            assert_eq!(value(&key, text).unwrap(), wanted, "{text}");
        }
        assert!(value(&key, "[1").is_err());
    }
}
