//! Names of the host's interfaces.

/// The longest name of an interface that Linux takes.
const INTERFACE_BYTES_MAX: usize = 15;

macro_rules! form {
    () => {
        "at most 15 letters, digits, '-', '_' and '.'"
    };
}

/// The form of such a name, for the operator.
pub const INTERFACE_FORM: &str = form!();

/// The same as a noun.
pub(super) const INTERFACE_NAME: &str = concat!("an interface's name of ", form!());

/// Whether an interface may have that name.
pub fn is_interface(name: &str) -> bool {
    (1..=INTERFACE_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && !matches!(name, "." | "..")
}
