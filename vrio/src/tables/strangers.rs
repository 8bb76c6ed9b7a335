//! Peers that were refused a session, and what admits them.

use std::fmt::Write;

use node::status::{StrangerStatus, StrangersStatus};

use super::layout::{STRING, fold, table, uptime};

/// The section of the status; nothing when no peer was refused.
pub(super) fn section(text: &mut String, all: &[StrangersStatus]) {
    let found = || all.iter().flat_map(|of| of.latest.iter().map(move |it| (of, it)));
    let header = ["name", "address", "refused because of", "last", "times"];
    let mut table = table(&header, 4);
    for (of, it) in found() {
        let name = name(it).unwrap_or_else(|| "?".to_owned());
        let last = format!("{} ago", uptime(it.ago_s));
        table.add_row([name, it.address.clone(), of.reason.clone(), last, it.refused.to_string()]);
    }
    super::section(text, "strangers", table);
    let mut told = Vec::new();
    for (_, it) in found() {
        let whose = name(it).unwrap_or_else(|| it.address.clone());
        let line = format!("{whose}: {}", it.way_out);
        if told.contains(&line) {
            continue;
        }
        // A command is one line, to be copied.
        let (words, command) = line.split_once(" or: ").unwrap_or((&line, ""));
        writeln!(text, "{}", fold(words, 3)).expect(STRING);
        if !command.is_empty() {
            writeln!(text, "     or\n     {command}").expect(STRING);
        }
        told.push(line);
    }
}

/// The stranger's name for itself. It can be any text, so it is escaped before it reaches the
/// terminal.
fn name(stranger: &StrangerStatus) -> Option<String> {
    Some(stranger.name.as_ref()?.escape_debug().to_string())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn strangers_are_shown_with_what_admits_them_in_80_columns() {
        let stranger = |name: Option<&str>, address: &str, way_out: &str| StrangerStatus {
            address: address.to_owned(),
            name: name.map(str::to_owned),
            key: None,
            refused: 3,
            ago_s: 61,
            way_out: way_out.to_owned(),
        };
        let of = |reason: &str, latest| StrangersStatus {
            reason: reason.to_owned(),
            refused: 3,
            latest,
        };
        let key = "dGhlIHB1YmxpYyBrZXkgb2Ygdm0xOiByZXBsYWNlLi4=";
        let add = format!(
            "write here a [[peer]] with name = \"vm7\" and key = \"{key}\" and reload, or: vrio \
             peer add vm7 --key {key}"
        );
        let all = [
            of("version", Vec::new()),
            of("wrong-key", vec![stranger(None, "10.0.0.7:4870", "correct it there")]),
            of("unknown-key", vec![stranger(Some("vm7"), "10.0.0.8:4870", &add)]),
            of("plain", vec![stranger(Some("\u{1b}[2J"), "10.0.0.9:4870", "make a key")]),
        ];
        let mut text = String::new();
        section(&mut text, &all);
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        assert!(text.chars().all(|char| char == '\n' || !char.is_control()), "{text:?}");
        expect![[r#"

            STRANGERS
             name       address        refused because of  last         times
             ?          10.0.0.7:4870  wrong-key           1min 1s ago      3
             vm7        10.0.0.8:4870  unknown-key         1min 1s ago      3
             \u{1b}[2J  10.0.0.9:4870  plain               1min 1s ago      3
               10.0.0.7:4870: correct it there
               vm7: write here a [[peer]] with name = "vm7" and key =
                 "dGhlIHB1YmxpYyBrZXkgb2Ygdm0xOiByZXBsYWNlLi4=" and reload,
                 or
                 vrio peer add vm7 --key dGhlIHB1YmxpYyBrZXkgb2Ygdm0xOiByZXBsYWNlLi4=
               \u{1b}[2J: make a key
        "#]]
        .assert_eq(&text);
        text.clear();
        section(&mut text, &all[..1]);
        assert_eq!(text, "");
    }
}
