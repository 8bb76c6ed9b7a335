//! Tests of the registry in a file.

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::*;
use crate::contract;

const STEPS: [FileStep; 7] = [
    FileStep::Locked,
    FileStep::Made,
    FileStep::HalfWritten,
    FileStep::Written,
    FileStep::Synced,
    FileStep::Renamed,
    FileStep::Kept,
];

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

fn with_clock(directory: &Path, boot: &'static str, now_ns: &Arc<AtomicU64>) -> FileRegistry {
    let now_ns = Arc::clone(now_ns);
    let clock = move || Ok(BootTime { boot: boot.to_owned(), now_ns: now_ns.load(Relaxed) });
    FileRegistry { clock: Arc::new(clock), ..FileRegistry::open(directory) }
}

#[test]
fn it_keeps_the_contract() {
    let mut homes = Vec::new();
    contract::check_all(&mut || {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("registry");
        FileRegistry::create(&directory, 7).unwrap();
        homes.push(home);
        let time = Arc::new(AtomicU64::new(0));
        let [one, other] = [(); 2].map(|()| Box::new(with_clock(&directory, "boot", &time)));
        let wait = move |passed: Duration| {
            time.fetch_add(passed.as_nanos() as u64, Relaxed);
        };
        contract::Parties { one, other, wait: Box::new(wait) }
    });
}

#[test]
fn a_process_killed_after_any_step_leaves_the_old_content_or_the_new_one() {
    for step in STEPS {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("r");
        let mut registry = FileRegistry::create(&directory, 7).unwrap();
        let [a, b] = [key("/a"), key("/b")];
        let put = |value: &str| Swap::new().put(&a, value).put(&b, value);
        assert!(matches!(registry.swap(&put("old")), Ok(SwapOutcome::Made { revision: 2 })));
        let mut killed = FileRegistry { stop: Some(step), ..registry.clone() };
        let outcome = killed.swap(&put("new"));
        let is_made = matches!(step, FileStep::Renamed | FileStep::Kept);
        match &outcome {
            // It is made, and the process does not know whether it lasts.
            Ok(SwapOutcome::Unknown { .. }) => assert!(is_made, "{step:?}"),
            Err(RegistryError::Away { .. }) => assert!(!is_made, "{step:?}"),
            outcome => panic!("{step:?}: {outcome:?}"),
        }
        let wanted = if is_made { "new" } else { "old" };
        for key in [&a, &b] {
            let entry = registry.get(key).unwrap().entry.unwrap();
            assert_eq!(entry.value, wanted.as_bytes(), "{step:?}");
        }
        // The rest that the killed process left is in no successor's way.
        assert!(matches!(registry.swap(&put("next")), Ok(SwapOutcome::Made { .. })));
        assert_eq!(registry.get(&a).unwrap().entry.unwrap().value, b"next");
    }
}

#[test]
fn a_damaged_file_is_an_error_with_a_name_wherever_the_damage_is() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("r");
    let mut registry = FileRegistry::create(&directory, 7).unwrap();
    let lease = registry.grant(60).unwrap();
    assert!(registry.swap(&Swap::new().put_under(&key("/a"), "x", lease)).is_ok());
    let path = directory.join("registry");
    let whole = std::fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut bad = whole.clone();
        bad[at] ^= 1;
        std::fs::write(&path, &bad).unwrap();
        let error = registry.stamp().unwrap_err();
        let is_named =
            matches!(error, RegistryError::Damaged { .. } | RegistryError::OtherVersion { .. });
        assert!(is_named, "byte {at}: {error}");
        std::fs::write(&path, &whole[..at]).unwrap();
        assert!(matches!(registry.stamp(), Err(RegistryError::Damaged { .. })), "cut at {at}");
    }
    std::fs::write(&path, &whole).unwrap();
    assert!(registry.stamp().is_ok());
    std::fs::remove_file(&path).unwrap();
    let error = registry.stamp().unwrap_err().to_string();
    assert!(error.contains("there is no registry in"), "{error}");
}

#[test]
fn records_that_contradict_each_other_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("r");
    let mut registry = FileRegistry::create(&directory, 7).unwrap();
    let lease = registry.grant(60).unwrap();
    assert!(registry.swap(&Swap::new().put_under(&key("/a"), "x", lease)).is_ok());
    let now = boot_time().unwrap();
    let path = directory.join("registry");
    let good = read_content(&path, &std::fs::read(&path).unwrap(), &now).unwrap();
    let faults: [fn(&mut RegistryState); 4] = [
        |state| state.revision = 0,
        |state| state.forgotten = state.revision + 1,
        |state| state.leases.clear(),
        |state| state.last_lease = 0,
    ];
    for fault in faults {
        let mut bad = good.clone();
        fault(&mut bad);
        let read = read_content(&path, &written(&bad, &now.boot), &now);
        assert!(matches!(read, Err(RegistryError::Damaged { .. })), "{read:?}");
    }
}

#[test]
fn leases_end_with_the_boot() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("r");
    FileRegistry::create(&directory, 7).unwrap();
    let time = Arc::new(AtomicU64::new(5));
    let mut before = with_clock(&directory, "first", &time);
    let lease = before.grant(600).unwrap();
    let a = key("/a");
    assert!(before.swap(&Swap::new().put_under(&a, "x", lease)).is_ok());
    assert!(before.get(&a).unwrap().entry.is_some());
    let mut after = with_clock(&directory, "second", &time);
    assert_eq!(after.get(&a).unwrap().entry, None);
    assert_eq!(after.renew(lease), Err(RegistryError::LeaseEnded));
}

#[test]
fn files_are_the_owners_alone_and_a_registry_is_made_once() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("r");
    FileRegistry::create(&directory, 7).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    assert_eq!(mode(&directory.join("registry")), 0o600);
    let error = FileRegistry::create(&directory, 8).unwrap_err().to_string();
    assert!(error.contains("has a registry already"), "{error}");
    assert_eq!(FileRegistry::open(&directory).stamp().unwrap().store, 7);
}
