//! Limits of an endpoint that several of its parts keep to.

/// The most sessions that peers open at one endpoint, and the most that it asks for itself: as many
/// nodes with as many sidecores, or direct clients. Bounds the work that a Hello or a Reset causes.
pub const SESSIONS_MAX: u16 = 1024;

/// The most calls of one direction of a session: more than all queues of a busy VMhost's sidecore
/// hold, and it bounds a session's tables to a few MiB.
pub const CALLS_MAX: u16 = 4096;
