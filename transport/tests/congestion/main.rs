//! How sessions use and share a way, in simulated time: the whole transport over a bottleneck. The
//! assertions hold for the seeds here; with `--nocapture` the tests print their measurements.

mod alone;
mod sharing;
mod world;
