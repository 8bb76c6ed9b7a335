//! `vrio completion`: a script for a shell, which completes commands, options and the words that an
//! option takes by itself. The names of disks, volumes and so on are the running node's: for them
//! bash's script asks this program (`vrio __complete`), and this program the node.

use std::time::Duration;

use clap::Command;
use clap_complete::Shell;
use node::config::Kind;
use serde_json::Value;

use crate::client;
use crate::failure::CommandFailure;
use crate::nodes::{self, Target};

/// How long a node may take to answer: a person waits for it.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);

/// Names that are offered, as many as a person looks through.
const NAMES_MAX: usize = 1024;

/// The command that a script asks for names. It is none of clap's, which would offer it to people.
const ASK: &str = "__complete";

/// The lines after clap's own script. Names have no characters that are special to a shell, see
/// [`is_plain`].
const BASH: &str = r#"
# Names of a running node's objects, where one belongs; all else as above. Bash cuts words at "@"
# and ":" as well, and replaces the text behind the last of these; names of snapshots have them.
_vrio_names() {
    local line=${COMP_LINE:0:COMP_POINT} names words last cut kept=""
    read -ra words <<<"$line"
    if [[ "$line" == *[[:space:]] ]]; then
        words+=("")
    fi
    names=$("$1" __complete "${words[@]:1}" 2>/dev/null)
    if [[ -n "$names" ]]; then
        last=${words[${#words[@]}-1]}
        for cut in @ :; do
            if [[ "$COMP_WORDBREAKS" == *"$cut"* && "${last#"$kept"}" == *"$cut"* ]]; then
                kept=${last%"${last##*"$cut"}"}
            fi
        done
        mapfile -t COMPREPLY <<<"$names"
        COMPREPLY=("${COMPREPLY[@]#"$kept"}")
        return 0
    fi
    _vrio "$@"
}

if (( BASH_VERSINFO[0] > 4 || (BASH_VERSINFO[0] == 4 && BASH_VERSINFO[1] >= 4) )); then
    complete -F _vrio_names -o nosort -o bashdefault -o default vrio
else
    complete -F _vrio_names -o bashdefault -o default vrio
fi
"#;

/// The script.
pub(crate) fn script(shell: Shell, mut command: Command) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "vrio", &mut script);
    let mut script = String::from_utf8(script).expect("a script is text");
    if shell == Shell::Bash {
        script.push_str(BASH);
    }
    script
}

/// The words after `vrio` on an unfinished command line, when a script asks for names.
pub(crate) fn asked() -> Option<Vec<String>> {
    let mut words = std::env::args_os().skip(1);
    let is_asked = words.next().is_some_and(|first| first == ASK);
    is_asked.then(|| words.map(|word| word.to_string_lossy().into_owned()).collect())
}

/// Prints the names that may stand where the last word is, one a line; nothing where no name
/// belongs, or when anything goes wrong: a person is in the middle of a line.
pub(crate) fn names(mut command: Command, words: &[String]) -> Result<(), CommandFailure> {
    command.build();
    let Some((last, before)) = words.split_last() else { return Ok(()) };
    let Some(wanted) = wanted(&command, before, last) else { return Ok(()) };
    let mut found = match wanted {
        WantedWord::Nodes => nodes::names(),
        WantedWord::Names(places) => of_nodes(&Target::of_words(before), &places),
        WantedWord::Snapshots => snapshots(&Target::of_words(before)),
    };
    found.retain(|name| is_plain(name) && name.starts_with(last.as_str()));
    found.sort();
    found.dedup();
    let lines = found.iter().take(NAMES_MAX).map(|name| format!("{name}\n"));
    crate::output::print(&lines.collect::<String>())
}

/// Where names are found: a question to a node, and the field of each object in the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NameSource {
    path: String,
    field: &'static str,
}

impl NameSource {
    /// The names of a kind's objects.
    fn of_kind(kind: Kind) -> Self {
        Self { path: format!("/v1/{}s", kind.key()), field: "name" }
    }
}

/// The kind of word that belongs where the cursor is.
#[derive(Debug, PartialEq, Eq)]
enum WantedWord {
    Nodes,
    Names(Vec<NameSource>),
    Snapshots,
}

/// Options that take the name of an object, by the option: its kind, and the field of such objects.
/// An option that is called as a kind takes the names of that kind. Of the volumes and networks of
/// other nodes, only those in use are known.
const OPTIONS: [(&str, &str, &str); 4] = [
    ("volume", "disk", "volume"),
    ("network", "nic", "network"),
    ("peers", "peer", "name"),
    ("allow", "peer", "name"),
];

/// Where the names are found that an option takes.
fn of_option(option: &str) -> Option<WantedWord> {
    let own = Kind::named(option).map(NameSource::of_kind);
    let others = OPTIONS.iter().filter(|(of, _, _)| *of == option);
    let others = others.map(|(_, kind, field)| NameSource { path: format!("/v1/{kind}s"), field });
    let all: Vec<_> = own.into_iter().chain(others).collect();
    (!all.is_empty()).then_some(WantedWord::Names(all))
}

/// The kind of word that belongs after these words, where the last one begins.
fn wanted(command: &Command, before: &[String], last: &str) -> Option<WantedWord> {
    let (mut command, mut path) = (command, Vec::new());
    let (mut positionals, mut option) = (0, None);
    for word in before {
        if option.take().is_some() {
            continue;
        }
        if let Some(long) = word.strip_prefix("--") {
            let found = command.get_arguments().find(|arg| arg.get_long() == Some(long));
            option = found.filter(|arg| arg.get_action().takes_values()).map(|_| long);
        } else if let Some(below) = command.find_subcommand(word) {
            command = below;
            path.push(below.get_name());
        } else {
            positionals += 1;
        }
    }
    if option == Some("node") {
        return Some(WantedWord::Nodes);
    }
    if option == Some("from") {
        return Some(WantedWord::Snapshots);
    }
    if let Some(option) = option {
        return of_option(option);
    }
    // The name of a new object is the user's choice.
    let [kind, verb] = path[..] else { return None };
    let takes = command.get_positionals().nth(positionals)?.get_id();
    if ["snapshot", "later"].iter().any(|it| takes == it)
        && kind == "volume"
        && !last.starts_with('-')
    {
        return Some(WantedWord::Snapshots);
    }
    if takes == "pool" && !last.starts_with('-') {
        return of_option("pool");
    }
    let takes_name = takes == "name";
    // A volume, or a snapshot: its name has one of these.
    if takes_name && (kind, verb) == ("volume", "remove") && last.contains(['@', ':']) {
        return Some(WantedWord::Snapshots);
    }
    let is_named =
        takes_name && !["add", "create", "import"].contains(&verb) && !last.starts_with('-');
    let kind = Kind::named(kind).filter(|_| is_named)?;
    Some(WantedWord::Names(vec![NameSource::of_kind(kind)]))
}

/// Asks all nodes that are meant, and leaves out those that do not answer.
fn asked_of_nodes(target: &Target, path: &str) -> Vec<Value> {
    let sockets = target.sockets().unwrap_or_default();
    let of_node = sockets.iter().filter_map(|socket| {
        let answer = client::ask_within(socket, ("GET", path), None, ANSWER_TIME_MAX).ok()?;
        let all: Value = serde_json::from_str(&answer.body).ok()?;
        all.as_array().cloned()
    });
    of_node.flatten().collect()
}

fn of_nodes(target: &Target, places: &[NameSource]) -> Vec<String> {
    let names = |NameSource { path, field }: &NameSource| {
        let all = asked_of_nodes(target, path);
        let names = all.iter().filter_map(|it| Some(it.get(field)?.as_str()?.to_owned()));
        names.collect::<Vec<_>>()
    };
    places.iter().flat_map(names).collect()
}

/// The names of all snapshots, by which commands know them.
fn snapshots(target: &Target) -> Vec<String> {
    let pools = asked_of_nodes(target, "/v1/pools");
    let all = pools.iter().filter_map(|pool| pool["volumes"].as_array()).flatten();
    let snapshots = all.filter(|it| it["kind"] == "snapshot");
    snapshots.filter_map(|it| Some(it["name"].as_str()?.to_owned())).collect()
}

/// Whether a name can be put into a command line as it is: as nodes allow them.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./@:".contains(&byte))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn after(words: &str) -> Option<WantedWord> {
        let words: Vec<_> = words.split(' ').map(str::to_owned).collect();
        let (last, before) = words.split_last().unwrap();
        let mut command = crate::Cli::command();
        command.build();
        wanted(&command, before, last)
    }

    #[test]
    fn a_name_is_wanted_where_an_object_is_named() {
        let source = |path: &str, field| NameSource { path: path.to_owned(), field };
        let disks = Some(WantedWord::Names(vec![source("/v1/disks", "name")]));
        for words in ["disk show ", "disk remove --force a", "disk resize ", "disk show --json "] {
            assert_eq!(after(words), disks, "{words}");
        }
        assert_eq!(after("disk show --control /x "), disks);
        let volumes = [source("/v1/volumes", "name"), source("/v1/disks", "volume")];
        let volumes = Some(WantedWord::Names(volumes.to_vec()));
        assert_eq!(after("disk add --socket a.sock --volume io"), volumes);
        assert_eq!(after("nic list --node "), Some(WantedWord::Nodes));
        for words in ["", "dis", "disk ", "disk add ", "disk list ", "disk show a ", "disk show --"]
        {
            assert_eq!(after(words), None, "{words:?}");
        }
        for words in [
            "volume clone ",
            "volume rollback a ",
            "volume diff a@x ",
            "volume add a --pool p --from ",
            "volume send ",
            "volume send a@y --from ",
            "volume export ",
            "volume remove alice@",
            "volume remove --json alice@mon",
            "volume remove p:",
        ] {
            assert_eq!(after(words), Some(WantedWord::Snapshots), "{words}");
        }
        let pools = Some(WantedWord::Names(vec![source("/v1/pools", "name")]));
        for words in ["volume add a --pool ", "volume receive ", "volume import a --pool "] {
            assert_eq!(after(words), pools, "{words}");
        }
        let own = Some(WantedWord::Names(vec![source("/v1/volumes", "name")]));
        assert_eq!(after("volume remove ali"), own);
        assert_eq!(after("volume import "), None, "a new name");
        assert_eq!(after("disk add --queues "), None);
        assert_eq!(after("disk resize a "), None, "a size is no name");
        assert_eq!(after("completion "), None);
    }

    #[test]
    fn special_characters_of_a_shell_are_in_no_name() {
        assert!(is_plain("io1/alice-root.1"));
        for wrong in ["a b", "$(reboot)", "`x`", "a;b", "a\nb", "a'b"] {
            assert!(!is_plain(wrong), "{wrong}");
        }
    }
}
