//! `fuzz::nic` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::nic::run(input));
