//! The configuration's text: every mistake of an operator is an error with its line.

use std::path::Path;

use node::Config;

/// Longer files than this only repeat themselves.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// Reads `input` as a configuration file.
///
/// # Panics
/// When a problem has no text or a line that the file does not have, a second reading says
/// something else, or a file that was accepted breaks a limit.
pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(&input[..input.len().min(TEXT_BYTES_MAX)]) else { return };
    let path = Path::new("/etc/vrio/fuzz.toml");
    let read = Config::parse(path, text);
    let again = Config::parse(path, text);
    match (&read, &again) {
        (Ok(config), Ok(_)) => check(config, text),
        (Err(error), Err(again)) => {
            assert_eq!(error.problems, again.problems, "two readings differ");
            assert!(!error.problems.is_empty(), "an error without a problem");
            for problem in &error.problems {
                assert!(problem.line <= lines(text), "{problem:?} in {} lines", lines(text));
                assert!(!problem.text.is_empty(), "{problem:?}");
            }
            assert!(error.to_string().starts_with("/etc/vrio/fuzz.toml"), "{error}");
        }
        _ => panic!("two readings differ: {read:?}, {again:?}"),
    }
}

/// An empty file has a first line too.
fn lines(text: &str) -> usize {
    1 + text.matches('\n').count()
}

fn check(config: &Config, text: &str) {
    assert!((1..=node::config::NAME_BYTES_MAX).contains(&config.name.len()));
    assert!((1..=node::config::SIDECORES_MAX).contains(&config.sidecores.cores.len()));
    let node::config::Sidecores { min, max, cores, .. } = &config.sidecores;
    assert!(1 <= *min && min <= max && *max <= cores.len());
    for disk in &config.disks {
        assert!((1..=node::config::QUEUES_MAX).contains(&disk.queues), "{disk:?}");
        assert!(disk.lines.of("volume") <= lines(text), "{disk:?}");
        for peer in &disk.volume.peers {
            assert!(config.peer(peer).is_some(), "{disk:?} names an unknown peer");
        }
    }
    for volume in &config.volumes {
        assert!(volume.chain.len() <= ::volume::STAGES_MAX, "{volume:?}");
        assert!(volume.lines.of("name") <= lines(text), "{volume:?}");
    }
}
