//! What the provider says when it is asked to: `VRIO_FI_LOG=1`, on standard error.

use std::sync::OnceLock;

/// Whether it is to be said.
pub(crate) fn wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| std::env::var_os("VRIO_FI_LOG").is_some_and(|value| value != "0"))
}

/// Whether nothing at all is to be said, but errors.
pub(crate) fn is_silenced() -> bool {
    std::env::var_os("VRIO_FI_LOG").is_some_and(|value| value == "0")
}

/// Says a line about what is not on the path of a message.
macro_rules! say {
    ($($words:tt)*) => {
        if crate::log::wanted() {
            eprintln!("libvrio-fi.so ({}): {}", std::process::id(), format_args!($($words)*));
        }
    };
}
pub(crate) use say;
