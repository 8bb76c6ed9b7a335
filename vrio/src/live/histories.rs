//! `vrio volume history` and `vrio volume at`.

use clap::Args;
use node::api::MomentReport;
use serde_json::{Value, json};

use super::{Fields, NodeChoice, allow, ask, change, segment, show_done, stages, understood};
use crate::failure::CommandFailure;
use crate::output::print;

#[derive(Debug, Args)]
pub(crate) struct VolumeKeepHistory {
    /// The volume's name.
    name: String,
    /// How far back it reaches, "2h"; or "none": the old content goes.
    history: String,
    /// The least time between two moments; default: 1s.
    #[arg(long, value_name = "TIME")]
    step: Option<String>,
    #[command(flatten)]
    which: NodeChoice,
}

#[derive(Debug, Args)]
pub(crate) struct VolumeAt {
    /// The volume's name.
    name: String,
    /// The time, "2026-11-28T21:00:00Z"; or how long ago, "-10min".
    #[arg(allow_hyphen_values = true)]
    time: String,
    /// The new volume's name.
    #[arg(long = "name", value_name = "NEW", id = "new")]
    new: String,
    /// The file of the volume's key, if it is encrypted; an absolute path.
    #[arg(long, value_name = "FILE")]
    key: Option<String>,
    /// A stage of its chain; may be given several times, as for `vrio volume add`.
    #[arg(long, value_name = "STAGE")]
    chain: Vec<String>,
    /// A node whose disks may use it; may be given several times, as for `vrio volume add`.
    #[arg(long, value_name = "NODE[=KEY]")]
    allow: Vec<String>,
    #[command(flatten)]
    which: NodeChoice,
}

impl VolumeKeepHistory {
    pub(super) fn send(&self) -> Result<(), CommandFailure> {
        let path = format!("/v1/volumes/{}/history", segment(&self.name)?);
        let mut body = Fields::default();
        body.text("history", Some(&self.history));
        body.text("step", self.step.as_ref());
        change(&self.which, "PUT", &path, &body.0.into())
    }
}

impl VolumeAt {
    /// A clone of the last moment at that time or before it.
    pub(super) fn send(&self) -> Result<(), CommandFailure> {
        let path = format!("/v1/volumes/{}/moment", segment(&self.name)?);
        let body = json!({ "at": self.time });
        let found = ask(&self.which.socket()?, "POST", &path, Some(&body))?;
        let moment: MomentReport = understood(&found)?;
        let mut backend = Fields::default();
        backend.text("pool", Some(&moment.pool));
        backend.text("from", Some(&format!("{}:{}", moment.pool, moment.number)));
        backend.text("key", self.key.as_ref());
        let mut fields = Fields::default();
        fields.text("name", Some(&self.new));
        fields.put("backend", Some(Value::Object(backend.0)));
        let chain = stages(&self.chain)?;
        fields.put("chain", Some(chain).filter(|_| !self.chain.is_empty()));
        fields.put("allow", allow(&self.allow));
        let answer = ask(&self.which.socket()?, "POST", "/v1/volumes", Some(&fields.0.into()))?;
        if self.which.json {
            let mut done: Value = understood(&answer)?;
            done["moment"] =
                json!({ "time": moment.time, "pool": moment.pool, "number": moment.number });
            return print(&format!("{done}\n"));
        }
        show_done(&answer, false)?;
        print(&format!(
            "volume {} is volume {} as it was at {}\n",
            self.new, self.name, moment.time
        ))
    }
}
