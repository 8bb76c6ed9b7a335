//! The health of etcd's members, each asked on its own.

use std::time::Duration;

use registry::RegistryError;
use tonic::Status;

use super::EtcdRegistry;
use super::answers::{Answer, answer_of};
use super::client::EtcdClient;
use super::wire::ALARM_NO_SPACE;

/// How long a member may take for a status, which it gives without the other members.
const STATUS_TIME_MAX: Duration = Duration::from_secs(4);

/// A member, as it says itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EtcdHealth {
    pub(crate) endpoint: String,
    /// Its answer, or why there is none.
    pub(crate) answer: Result<EtcdAnswer, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EtcdAnswer {
    pub(crate) is_leader: bool,
    pub(crate) has_leader: bool,
    pub(crate) revision: u64,
    pub(crate) bytes: u64,
    pub(crate) version: String,
    pub(crate) is_out_of_space: bool,
}

async fn ask(client: EtcdClient) -> Result<EtcdAnswer, Status> {
    let status = client.status().await?;
    let (member, revision) =
        status.header.map_or((0, 0), |header| (header.member_id, header.revision as u64));
    // Alarms are each member's own knowledge, and need no majority.
    let alarms = client.alarms().await.map(|answer| answer.alarms).unwrap_or_default();
    Ok(EtcdAnswer {
        is_leader: member != 0 && status.leader == member,
        has_leader: status.leader != 0,
        revision,
        bytes: status.db_size.max(0) as u64,
        version: status.version,
        is_out_of_space: alarms.iter().any(|it| it.alarm == ALARM_NO_SPACE),
    })
}

impl EtcdRegistry {
    /// Asks all members at once.
    pub(crate) fn health(&self) -> Vec<EtcdHealth> {
        let asked: Vec<_> = self
            .members
            .iter()
            .map(|member| {
                let client = member.client.clone();
                let call = async { tokio::time::timeout(STATUS_TIME_MAX, ask(client)).await };
                (member.endpoint.clone(), self.runtime.spawn(call))
            })
            .collect();
        let answered = asked.into_iter().map(|(endpoint, task)| {
            let answer = match self.runtime.block_on(task) {
                Ok(Ok(answer)) => answer.map_err(|error| match answer_of(error) {
                    Answer::Said(error) => said(&error),
                    Answer::Silent(reason) => reason,
                }),
                Ok(Err(_)) => Err(format!("no answer in {} s", STATUS_TIME_MAX.as_secs())),
                Err(error) => Err(error.to_string()),
            };
            EtcdHealth { endpoint, answer }
        });
        answered.collect()
    }
}

fn said(error: &RegistryError) -> String {
    error.to_string()
}
