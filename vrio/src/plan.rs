//! `vrio plan`: the planner, which is a crate of its own.

use ::plan::command::PlanCommand;

use crate::failure::CommandFailure;
use crate::output;

/// Does a command of the planner. All of its faults are of files and options.
pub(crate) fn plan(command: &PlanCommand) -> Result<(), CommandFailure> {
    output::print(&command.run().map_err(CommandFailure::configuration)?)
}
