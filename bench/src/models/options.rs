//! The options of `vrio bench models`, and the settings that they ask for.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use serde::Serialize;

use super::model::{GuestDevice, Model};
use crate::block::{GUESTS_MAX, Volume};

/// Rounds, at most.
pub const ROUNDS_MAX: u16 = 99;

/// Requests outstanding where throughput is measured.
pub const DEPTH: u16 = 32;

/// The guests of a setting of network cards, in every case.
pub(super) const NET_GUESTS: u16 = 2;

/// The options of a comparison of models.
#[derive(Clone, Debug, Serialize)]
pub struct ModelsOptions {
    /// The `vrio` program that the nodes run.
    #[serde(skip)]
    pub program: PathBuf,
    /// Disks, cards or both.
    pub devices: Vec<GuestDevice>,
    /// The models that are measured.
    pub models: Vec<Model>,
    /// Numbers of guests; each number is measured.
    pub guests: Vec<u16>,
    /// Whether sessions are sealed; each is measured.
    pub encrypt: Vec<bool>,
    /// Whether a stage encrypts the data of volumes; each value is measured, for disks.
    pub stage: Vec<bool>,
    /// The volumes behind disks.
    pub volume: Volume,
    /// How often each model is measured, in turn.
    pub rounds: u16,
    /// How long each measurement takes, at each depth.
    pub seconds: f64,
    /// Models are counted in a real guest as well.
    pub guest: bool,
    /// The volume's file was made and filled for this run.
    #[serde(skip)]
    pub filled: bool,
}

impl ModelsOptions {
    /// Looks whether the options alone make sense, without the settings that they ask for.
    ///
    /// # Errors
    /// The option that makes no sense, and a way out.
    pub(super) fn check_alone(&self) -> Result<()> {
        let Self { rounds, guests, volume, .. } = self;
        ensure!((1..=ROUNDS_MAX).contains(rounds), "--rounds {rounds}: from 1 to {ROUNDS_MAX}");
        ensure!(!self.models.is_empty(), "--model: one at least");
        ensure!(!self.encrypt.is_empty(), "--encrypt: on, off or both");
        ensure!(
            self.guest || self.models.iter().any(|model| Model::STAND_IN.contains(model)),
            "--model emulation and qemu are counted in a real guest: add --guest"
        );
        let range = 1..=GUESTS_MAX;
        ensure!(
            !guests.is_empty() && guests.iter().all(|count| range.contains(count)),
            "--guests: numbers from 1 to {GUESTS_MAX}, such as 1,4"
        );
        ensure!(
            volume.file().is_none() || guests[..] == [1],
            "--volume {volume}: a file is one guest's; add --guests 1, or take null or memory"
        );
        ensure!(
            !self.settings().is_empty(),
            "--stage on is about volumes of disks: add --device block, or drop it"
        );
        Ok(())
    }

    /// The settings, which are measured one after the other, each with all models that it makes
    /// sense for.
    pub(super) fn settings(&self) -> Vec<Setting> {
        let mut settings = Vec::new();
        for &device in &self.devices {
            let plain = if self.stage.contains(&false) { &self.encrypt[..] } else { &[] };
            for (at, &encrypt) in plain.iter().enumerate() {
                // Sealing is about sessions; a run with several guests would add nothing to that.
                let guests = match device {
                    GuestDevice::Net => &[NET_GUESTS],
                    GuestDevice::Block if at == 0 => &self.guests[..],
                    GuestDevice::Block => &self.guests[..1],
                };
                let again = at > 0;
                let of = |&guests: &u16| Setting { encrypt, again, ..Setting::of(device, guests) };
                settings.extend(guests.iter().map(of));
            }
            // A stage is on the way of a disk's request with every kind of session.
            if device == GuestDevice::Block && self.stage.contains(&true) {
                let (encrypt, guests) = (self.encrypt[0], self.guests[0]);
                settings.push(Setting { encrypt, stage: true, ..Setting::of(device, guests) });
            }
        }
        settings
    }
}

/// A setting of all models of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The device of guests.
    pub device: GuestDevice,
    /// The number of guests.
    pub guests: u16,
    /// Whether sessions are sealed.
    pub encrypt: bool,
    /// Whether a stage encrypts the data of the volume.
    pub stage: bool,
    /// The way to run a real guest's instructions, `kvm` or `tcg`; none for a stand-in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub real_guest: Option<&'static str>,
    /// Models without a session were measured in an earlier table.
    #[serde(skip)]
    pub(super) again: bool,
}

impl Setting {
    /// A setting of a stand-in, in clear.
    pub(super) fn of(device: GuestDevice, guests: u16) -> Self {
        Self { device, guests, encrypt: false, stage: false, real_guest: None, again: false }
    }
    /// The setting in words.
    pub(super) fn title(&self) -> String {
        let Self { device, guests, encrypt, stage, real_guest, .. } = self;
        let device = match device {
            GuestDevice::Block => "block",
            GuestDevice::Net => "net",
        };
        let plural = if *guests == 1 { "" } else { "s" };
        let sealed = if *encrypt { "sealed" } else { "in clear" };
        let stage = if *stage { ", volume encrypted" } else { "" };
        let real = real_guest.iter().map(|how| format!("real ({how}) "));
        let real: String = real.collect();
        format!("{device}, {guests} {real}guest{plural}, sessions {sealed}{stage}")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Options for tests of the comparison's parts.
    pub(in crate::models) fn options() -> ModelsOptions {
        ModelsOptions {
            program: PathBuf::from("vrio"),
            devices: vec![GuestDevice::Block],
            models: Model::ALL.to_vec(),
            guests: vec![1],
            encrypt: vec![false],
            stage: vec![false],
            volume: Volume::Null,
            rounds: 1,
            seconds: 0.1,
            guest: false,
            filled: false,
        }
    }

    #[test]
    fn encrypted_and_plain_models_are_side_by_side() {
        let of = |stage: &[bool]| {
            let guests = vec![1, 4];
            let asked = ModelsOptions { stage: stage.to_vec(), guests, ..options() };
            let settings = asked.settings();
            settings.iter().map(|it| (it.guests, it.stage)).collect::<Vec<_>>()
        };
        assert_eq!(of(&[false]), [(1, false), (4, false)]);
        assert_eq!(of(&[false, true]), [(1, false), (4, false), (1, true)]);
        assert_eq!(of(&[true]), [(1, true)]);
    }

    #[test]
    fn invalid_options_are_refused_by_name() {
        options().check().unwrap();
        let refused = |wrong: ModelsOptions, word: &str| {
            let text = wrong.check().unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        };
        refused(ModelsOptions { models: Vec::new(), ..options() }, "--model");
        refused(ModelsOptions { models: vec![Model::Emulation], ..options() }, "--guest");
        refused(ModelsOptions { rounds: 0, ..options() }, "--rounds 0");
        let net = || vec![GuestDevice::Net];
        refused(ModelsOptions { devices: net(), stage: vec![true], ..options() }, "--stage on");
    }
}
