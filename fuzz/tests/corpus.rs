//! The kept inputs of `fuzz/corpus`, and a few inputs made from a seed, on any compiler.

use std::fs;
use std::path::{Path, PathBuf};

use fuzz::TARGETS;
use parking_lot::RwLock;
use random::Random;

/// The limit of the bytes in `fuzz/corpus`, which is part of every clone.
const CORPUS_BYTES_MAX: u64 = 300 << 10;
/// The least number of a target's kept inputs.
const INPUTS_MIN: usize = 5;

fn corpus(target: &str) -> Vec<PathBuf> {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
    let folder = Path::new(&package).join("corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut inputs: Vec<_> =
        entries.map(|entry| entry.expect("a folder can be listed").path()).collect();
    inputs.sort();
    inputs
}

/// A target that counts the mappings of its process runs alone, the others side by side.
static MAPPINGS: RwLock<()> = RwLock::new(());

fn run_target(name: &str) {
    let alone = name == "vhost";
    let _alone = alone.then(|| MAPPINGS.write());
    let _beside = (!alone).then(|| MAPPINGS.read());
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target");
    let inputs = corpus(name);
    assert!(inputs.len() >= INPUTS_MIN, "{name}: {} inputs", inputs.len());
    let known: Vec<Vec<u8>> =
        inputs.iter().map(|path| fs::read(path).expect("an input can be read")).collect();
    for (path, bytes) in inputs.iter().zip(&known) {
        // The text of a panic follows this line in the test's output.
        println!("{}", path.display());
        (target.run)(bytes);
    }
    let seeds = std::env::var("FUZZ_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    for seed in 0..seeds.unwrap_or(target.smoke_inputs) {
        let input = input(seed as u64, target.smoke_bytes_max, &known);
        println!("seed {seed}");
        (target.run)(&input);
    }
}

/// Noise, or a known input that was changed in a few places.
fn input(seed: u64, bytes_max: usize, known: &[Vec<u8>]) -> Vec<u8> {
    let mut random = Random::new(seed);
    if seed.is_multiple_of(2) {
        let bytes = random.below(bytes_max as u64) as usize;
        return (0..bytes).map(|_| random.draw() as u8).collect();
    }
    let mut input = known[random.below(known.len() as u64) as usize].clone();
    for _ in 0..=random.below(8) {
        if !input.is_empty() {
            let at = random.below(input.len() as u64) as usize;
            input[at] = random.draw() as u8;
        }
    }
    input
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            run_target(stringify!($name));
        })*

        #[test]
        fn every_target_is_tested_and_built() {
            let named = [$(stringify!($name)),*];
            assert_eq!(TARGETS.map(|target| target.name), named);
            let manifest = include_str!("../libfuzzer/Cargo.toml");
            for name in named {
                assert!(manifest.contains(&format!("\nname = \"{name}\"\n")), "{name}");
            }
            assert_eq!(manifest.matches("[[bin]]").count(), named.len());
        }
    };
}

targets! { ring packed disk vhost nic filter hello session cast control config block client record
    replica
}

#[test]
fn the_corpus_is_small() {
    let sizes = TARGETS.iter().flat_map(|target| corpus(target.name));
    let bytes: u64 = sizes.map(|path| fs::metadata(path).expect("it was listed").len()).sum();
    assert!(bytes <= CORPUS_BYTES_MAX, "{bytes} bytes: minimise it (`scripts/fuzz minimise`)");
}
