//! The health of etcd's members, each asked on its own.

use std::time::Duration;

use etcd_client::{AlarmAction, AlarmType, Client};
use registry::RegistryError;

use super::EtcdRegistry;
use super::answers::{Answer, answer_of};

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

async fn ask(mut client: Client) -> Result<EtcdAnswer, etcd_client::Error> {
    let status = client.status().await?;
    let header = status.header();
    let member = header.map_or(0, |header| header.member_id());
    // Alarms are each member's own knowledge, and need no majority.
    let alarms = client.alarm(AlarmAction::Get, AlarmType::None, None).await;
    let is_out_of_space = alarms.is_ok_and(|answer| {
        answer.alarms().iter().any(|alarm| alarm.alarm() == AlarmType::Nospace)
    });
    Ok(EtcdAnswer {
        is_leader: member != 0 && status.leader() == member,
        has_leader: status.leader() != 0,
        revision: header.map_or(0, |header| header.revision() as u64),
        bytes: status.db_size().max(0) as u64,
        version: status.version().to_owned(),
        is_out_of_space,
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
