//! A world for a pool: devices that lose and tear writes, users, crashes, and a model of what
//! must be there. All of it comes from one seed.

use std::fmt;

mod changes;
mod content;
mod devices;
mod diffs;
pub(crate) mod disk;
mod history;
mod life;
mod model;
mod opening;
pub(crate) mod plan;
mod seals;
mod streams;
mod users;
mod verify;
mod versions;

use life::World;
use plan::Plan;
use seeds::Tally;

/// A promise that the pool broke.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// The kind, for counting.
    pub(crate) kind: String,
    /// The event.
    pub(crate) text: String,
    /// The end of the run's history.
    pub(crate) history: Vec<String>,
}

impl Failure {
    /// A failure without a history; the world adds it.
    pub(crate) fn new(kind: &str, text: String) -> Self {
        Self { kind: kind.to_owned(), text, history: Vec::new() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.history {
            writeln!(f, "  {line}")?;
        }
        write!(f, "{}: {}", self.kind, self.text)
    }
}

/// One run. A panic in it is a failure of the seed as well.
///
/// # Errors
/// If the pool breaks a promise.
pub(crate) fn run(plan: &Plan) -> Result<Tally, Failure> {
    let mut world = World::new(plan.clone());
    let result = {
        let world = std::panic::AssertUnwindSafe(&mut world);
        std::panic::catch_unwind(move || { world }.0.run())
    };
    let failure = match result {
        Ok(Ok(())) => return Ok(world.tally),
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
            // The place of a panic is in its message's first words, mostly.
            let kind: String = text.chars().take(60).collect();
            Failure::new(&format!("panic: {kind}"), text.to_owned())
        }
    };
    Err(Failure { history: world.history.into_iter().collect(), ..failure })
}
