//! The provider's log on standard error, if `VRIO_FI_LOG=1` asks for it.

use std::sync::OnceLock;

/// Whether the program's environment asks for the log.
pub(crate) fn is_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| std::env::var_os("VRIO_FI_LOG").is_some_and(|value| value != "0"))
}

/// Whether the environment asks for errors only (`VRIO_FI_LOG=0`).
pub(crate) fn is_silenced() -> bool {
    std::env::var_os("VRIO_FI_LOG").is_some_and(|value| value == "0")
}

/// Logs a line. Nothing on the path of a message is logged.
macro_rules! say {
    ($($words:tt)*) => {
        if crate::log::is_wanted() {
            eprintln!("libvrio-fi.so ({}): {}", std::process::id(), format_args!($($words)*));
        }
    };
}
pub(crate) use say;
