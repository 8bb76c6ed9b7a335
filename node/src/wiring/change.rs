//! Steps that changes of all kinds of objects share on a running node.

use config::{Config, Problem};
use sessions::{ConnectError, keys, peers};

use super::inside::Inside;
use super::turns::{ChangeTurn, NoTurn};
use api::{Done, Refused, RefusedKind};

impl Inside {
    pub(crate) fn turn(&self) -> Result<ChangeTurn<'_>, Refused> {
        // A change waits for sidecores: it would wait for as long as the sidecore is stuck, and
        // other changes would wait for it.
        if let Some((index, stuck)) = self.watchdog.first_stuck() {
            let error = format!("sidecore {index} is stuck ({}): nothing was changed", stuck.what);
            let way_out = "try again when it runs again, or restart the node: guests reconnect";
            return Err(Refused::new(RefusedKind::Busy, error, way_out));
        }
        self.turns.take().map_err(|error| {
            let way_out = match error {
                NoTurn::Full => "try again when they are done",
                NoTurn::Closed => "change it when it runs again",
                NoTurn::GivenAway => "ask that process: its control socket is the same",
            };
            Refused::new(RefusedKind::Busy, error.to_string(), way_out)
        })
    }

    /// An error while the node is drained: for each change that would bring a new user.
    pub(crate) fn refuse_while_drained(&self) -> Result<(), Refused> {
        if !self.objects().draining {
            return Ok(());
        }
        let way_out = "use another node, or end the drain with `vrio node drain --undo`";
        Err(Refused::new(
            RefusedKind::Conflict,
            "the node is drained and takes no new users",
            way_out,
        ))
    }

    /// Gives every sidecore the keys of a configuration.
    pub(crate) fn read_keys(&self, wanted: &Config) -> Result<(), Refused> {
        keys::apply(wanted, &self.keys, &self.cores).map_err(|error| no_key_changed(&error))
    }

    /// Peers may open sessions when there is something for them.
    pub(crate) fn accept_as_allowed(&self) {
        let accept = self.objects().config.is_for_peers();
        peers::set_accept(&self.cores, accept);
    }

    pub(crate) fn check_listens(&self, needed: bool, why: &str) -> Result<(), Refused> {
        if needed && self.objects().config.listen.is_none() {
            return Err(takes_restart(&format!("this node has no address ({why})"), "\"listen\""));
        }
        Ok(())
    }
}

pub(crate) fn refuse_used(
    object: &str,
    users: &[String],
    force: bool,
    instead: &str,
) -> Result<(), Refused> {
    if users.is_empty() || force {
        return Ok(());
    }
    let error = format!("{object} is used by {}", users.join(", "));
    let forced = match object.starts_with("peer") {
        true => String::new(),
        false => "; or use --force (force=true), which removes it while they use it".to_owned(),
    };
    Err(Refused::new(RefusedKind::Conflict, error, format!("{instead}{forced}")))
}

pub(crate) fn takes_restart(why: &str, key: &str) -> Refused {
    let way_out = format!("set {key} in the file and restart the node");
    Refused::new(RefusedKind::Failed, why, way_out)
}

pub(crate) fn no_key_changed(error: &ConnectError) -> Refused {
    let way_out = "no key was changed; correct the key file, then try again";
    Refused::new(RefusedKind::Failed, error.to_string(), way_out)
}

pub(crate) fn bad(problems: &[Problem]) -> Refused {
    let texts = problems.iter().map(|problem| match problem.object.as_str() {
        "" => problem.text.clone(),
        object => format!("{object}: {}", problem.text),
    });
    let way_out = "nothing was changed; the keys are those of the configuration's file";
    Refused::new(RefusedKind::Bad, texts.collect::<Vec<_>>().join("\n"), way_out)
}

pub(crate) fn log(done: &Done) {
    for what in &done.applied {
        tracing::info!(what, "changed");
    }
}
