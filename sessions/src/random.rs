//! Random numbers of the system.

use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::ConnectError;

/// A random number.
///
/// # Errors
/// When the system gives none.
pub fn random() -> Result<u64, ConnectError> {
    let mut bytes = [0; 8];
    fill_random(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The system gives up to 256 bytes in one piece.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), ConnectError> {
    let got = getrandom(bytes, GetRandomFlags::empty());
    got.map_err(|error| ConnectError::System {
        what: "draw random numbers",
        source: error.into(),
    })?;
    Ok(())
}

/// A seed that no guest and no peer can know. Without random numbers the clock will do.
pub fn seed() -> u64 {
    let mut bytes = [0; 8];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(8) => u64::from_ne_bytes(bytes),
        _ => sidecore::now_ns(),
    }
}
