//! Hardware virtualisation or emulation. A guest that boots decides it, never a device node: on a
//! nested host that emulates, `/dev/kvm` may open and still boot nothing.

use std::fs;
use std::sync::OnceLock;
use std::time::Duration;

use super::{Guest, Image};

/// How long the probing guest may take. With hardware a boot takes about one second.
const PROBE_TIMEOUT: Duration = Duration::from_secs(15);

/// How QEMU runs a guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    /// In hardware.
    Kvm,
    /// Emulated, one thread for each virtual processor. Right, and ten times slower or more.
    Tcg,
}

impl Accelerator {
    /// The accelerator that this machine can use. The first call may take `PROBE_TIMEOUT`; the
    /// answer is kept beside the image until the machine boots again.
    pub fn choose(image: &Image) -> Self {
        static CHOSEN: OnceLock<Accelerator> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            let note = image.accelerator_note();
            let boot = boot_id();
            let known = fs::read_to_string(&note).ok().and_then(|text| parse_note(&text, &boot));
            known.unwrap_or_else(|| {
                let found = Self::probe(image);
                // The note only saves time: without it the next process probes again.
                let _ = fs::write(&note, format!("{} {boot}\n", found.name()));
                found
            })
        })
    }

    /// QEMU's name for the accelerator.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }

    fn probe(image: &Image) -> Self {
        let openable = fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok();
        if !openable {
            return Self::Tcg;
        }
        let guest = Guest::builder(image).name("probe").accelerator(Self::Kvm).script("true");
        let booted = guest.start().and_then(|guest| guest.wait_success(PROBE_TIMEOUT));
        if booted.is_ok() { Self::Kvm } else { Self::Tcg }
    }
}

fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

/// The answer that an earlier process noted, if the machine has not booted since.
fn parse_note(text: &str, boot: &str) -> Option<Accelerator> {
    let (name, noted_boot) = text.trim().split_once(' ')?;
    if boot.is_empty() || noted_boot != boot {
        return None;
    }
    [Accelerator::Kvm, Accelerator::Tcg].into_iter().find(|known| known.name() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_holds_until_the_next_boot() {
        assert_eq!(parse_note("kvm b-1\n", "b-1"), Some(Accelerator::Kvm));
        assert_eq!(parse_note("tcg b-1\n", "b-1"), Some(Accelerator::Tcg));
        assert_eq!(parse_note("kvm b-1\n", "b-2"), None);
        assert_eq!(parse_note("kvm \n", ""), None);
        assert_eq!(parse_note("else b-1", "b-1"), None);
        assert_eq!(parse_note("", "b-1"), None);
    }
}
