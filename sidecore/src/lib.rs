//! The polling runtime: sidecores, and the few containers that everything on them is built of.
//!
//! A *sidecore* is a thread, usually pinned to a core, that runs rounds for ever. In a round every
//! [`Poll`]er does one bounded batch of work. When no poller has any, the sidecore backs off and
//! finally sleeps until a descriptor, a deadline or a [`Waker`] wants it. Pollers and their state
//! are built on their sidecore, by closures that are posted to it, and never leave it: no locks, no
//! `Send`.
//!
//! Read `core.rs` first: it is the whole loop.

mod core;
mod counter;
pub mod foreign;
mod handshake;
mod idle;
mod log_lines;
pub mod mailbox;
mod poll;
mod pulse;
mod services;
mod sidecore;
mod slots;
mod timers;
mod turns;
mod waker;

pub use crate::core::{Later, Local, PollerId};
pub use counter::{CoreCounters, Counter, CounterField, CounterText, Padded};
pub use idle::{Idle, ParseIdleError};
pub use log_lines::LogLines;
pub use poll::{Poll, Progress, RoundStage, Wake};
pub use pulse::{Health, PulseView, ThreadLook, Watch};
pub use services::Services;
pub use sidecore::{CallError, MAIL_MAX, MailboxFull, Sidecore, SidecoreConfig, spawn};
pub use slots::{SlotId, Slots};
pub use timers::{Timers, TimersFull};
pub use waker::{EarlyWaker, Waker};

/// A clock that counts also while the host sleeps, in nanoseconds: for leases of other hosts, which
/// do not sleep with it.
pub fn boot_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    // As in `now_ns`.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The monotonic clock, in nanoseconds.
///
/// A sidecore reads it once per round and passes the value on; logic takes time as an argument.
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // The monotonic clock counts from boot: neither part is negative, and 2^64 ns are 584 years.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
