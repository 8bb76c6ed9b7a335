//! How sessions use and share a way, in simulated time: the whole transport over a bottleneck. What
//! is asserted holds for the seeds here; with `--nocapture` the tests print what they measured.

mod alone;
mod sharing;
mod world;
