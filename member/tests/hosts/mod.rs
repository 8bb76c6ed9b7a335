//! Hosts of members, their users and their guests.

mod damage;
mod guests;
mod scenes;
mod scrub;
mod seeds;
mod sizes;
mod users;
mod world;
