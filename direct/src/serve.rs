//! The service of a direct client once its disk is shown: it answers other commands.
//!
//! A question is one line (`status`, `detach` or `detach force`), the answer one line of JSON.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use block::ublk::device::disk_path;
use config::VolumeRef;
use serde::{Deserialize, Serialize};
use sessions::ConnectError;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;

use crate::client::FOLLOW;
use crate::direct::{Direct, remove_left};
use crate::error::DirectError;
use crate::home::{self, Home, Record};
use crate::plan::AttachPlan;
use crate::status::DirectStatus;

/// How long a caller may take to write its line.
const QUESTION_TIME_MAX: Duration = Duration::from_secs(1);

/// How long a client may take to detach: all written data goes to the volume first.
const DETACH_TIME_MAX: Duration = Duration::from_secs(600);

/// How long it may take to answer with its status; it may be detaching.
const STATUS_TIME_MAX: Duration = Duration::from_secs(2);

/// The longest line.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
enum DirectAnswer {
    Status(DirectStatus),
    Detached,
    Refused(String),
}

/// Events of a client that serves a disk.
enum DirectEvent {
    End,
    Asked(io::Result<tokio::net::UnixStream>),
    /// The volume may have other nodes.
    Follow,
}

/// Shows the volume of `plan` and serves it until it is detached. `ready` is called with the disk's
/// path and whether the disk existed before.
///
/// SIGTERM and SIGINT detach the disk, if it is not in use. A disk in use is left to the next
/// client, and its users wait.
///
/// # Errors
/// As [`Direct::start`].
pub fn run(plan: AttachPlan, ready: impl FnOnce(&str, bool)) -> Result<(), DirectError> {
    let system = |what| move |source| ConnectError::System { what, source };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(system("wait for signals"))?;
    let inside = runtime.enter();
    // Before anything is started, so that a signal during the start is not lost.
    let mut terminate = signal(SignalKind::terminate()).map_err(system("wait for signals"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(system("wait for signals"))?;
    let mut direct = Direct::start(plan)?;
    let listener = listen(&direct.home)?;
    listener.set_nonblocking(true).map_err(system("wait for commands"))?;
    let listener = tokio::net::UnixListener::from_std(listener);
    let listener = listener.map_err(system("wait for commands"))?;
    drop(inside);
    let (device, resumed) = (direct.device(), direct.is_resumed());
    tracing::info!(volume = direct.record.volume, device, resumed, "attached");
    ready(&device, resumed);
    // Questions do not put it off.
    let mut follow = {
        let _inside = runtime.enter();
        tokio::time::interval(FOLLOW)
    };
    follow.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let event = runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => DirectEvent::End,
                _ = interrupt.recv() => DirectEvent::End,
                asked = listener.accept() => DirectEvent::Asked(asked.map(|(stream, _)| stream)),
                _ = follow.tick() => DirectEvent::Follow,
            }
        });
        let ended = match event {
            DirectEvent::End => ended_by_signal(&mut direct),
            DirectEvent::Asked(Ok(stream)) => answer(&mut direct, stream.into_std()),
            DirectEvent::Asked(Err(error)) => {
                tracing::warn!(%error, "a command could not be received");
                false
            }
            DirectEvent::Follow => {
                direct.follow();
                false
            }
        };
        if ended {
            tracing::info!(volume = direct.record.volume, device, "detached");
            return Ok(());
        }
    }
}

fn ended_by_signal(direct: &mut Direct) -> bool {
    match direct.detach(false) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, "this client has ended; the disk's users wait for the next \
                                    `vrio attach`");
            // Nothing is dropped: the driver still has addresses of our memory.
            std::process::exit(0);
        }
    }
}

fn listen(home: &Home) -> Result<UnixListener, DirectError> {
    let path = home.socket();
    let refuse = |source| DirectError::Files { path: path.clone(), source };
    // The socket is a dead client's, since we have the lock.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(refuse(error)),
        _ => {}
    }
    let listener = UnixListener::bind(&path).map_err(refuse)?;
    let owner = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, owner).map_err(refuse)?;
    Ok(listener)
}

/// Answers one question; `true` when the disk is gone.
fn answer(direct: &mut Direct, stream: io::Result<UnixStream>) -> bool {
    let Ok(mut stream) = stream else { return false };
    let Ok(question) = question(&stream) else { return false };
    let (answer, ended) = match question.as_str() {
        "status" => (DirectAnswer::Status(direct.status()), false),
        "detach" | "detach force" => match direct.detach(question == "detach force") {
            Ok(()) => (DirectAnswer::Detached, true),
            Err(error) => (DirectAnswer::Refused(error.to_string()), false),
        },
        _ => (DirectAnswer::Refused("not a question of this release".to_owned()), false),
    };
    let text = serde_json::to_string(&answer).expect("numbers and texts");
    // An error means that the caller has gone.
    let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.write_all(b"\n"));
    ended
}

fn question(stream: &UnixStream) -> io::Result<String> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(QUESTION_TIME_MAX))?;
    stream.set_write_timeout(Some(QUESTION_TIME_MAX))?;
    line(stream)
}

fn line(stream: &UnixStream) -> io::Result<String> {
    let mut line = String::new();
    BufReader::new(stream.take(LINE_BYTES_MAX)).read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

/// Asks the client of `home`; `None` when there is none.
fn ask(home: &Home, question: &str, limit: Duration) -> io::Result<Option<DirectAnswer>> {
    let mut stream = match UnixStream::connect(home.socket()) {
        Ok(stream) => stream,
        Err(error)
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(format!("{question}\n").as_bytes())?;
    let line = line(&stream)?;
    serde_json::from_str(&line).map(Some).map_err(io::Error::from)
}

/// Ends the client of a volume, or removes the disk that a dead client left. It returns the disk's
/// path, and whether its attachment was closed.
///
/// # Errors
/// The disk is in use, or there is no such disk.
pub fn detach(directory: &Path, target: &str, force: bool) -> Result<(String, bool), DirectError> {
    let record = find(directory, target)?;
    let home = Home::at(directory, &AttachPlan::volume_of(&record.volume)?);
    let device = disk_path(record.dev_id);
    let question = if force { "detach force" } else { "detach" };
    match ask(&home, question, DETACH_TIME_MAX) {
        Ok(Some(DirectAnswer::Detached)) => Ok((device, true)),
        Ok(Some(DirectAnswer::Refused(why))) => Err(DirectError::Client(why)),
        Ok(Some(DirectAnswer::Status(_))) => Err(DirectError::Client("not an answer".to_owned())),
        Ok(None) => {
            remove_left(&home, &record.volume, force)?;
            Ok((device, false))
        }
        Err(source) => Err(DirectError::Files { path: home.socket(), source }),
    }
}

/// The record of a volume or a device with this name.
fn find(directory: &Path, target: &str) -> Result<Record, DirectError> {
    let mut records = home::records(directory)?;
    let names = |record: &Record| record.volume == target || disk_path(record.dev_id) == target;
    let found = records.readable.into_iter().find(names);
    let unknown = || DirectError::NotAttached(target.to_owned());
    found.ok_or_else(|| records.damaged.remove(target).unwrap_or_else(unknown))
}

/// The status of every volume that is attached on this machine.
///
/// # Errors
/// When the directory cannot be read, or a record names no volume.
pub fn list(directory: &Path) -> Result<Vec<DirectStatus>, DirectError> {
    let records = home::records(directory)?;
    let damaged = records.damaged.into_iter().map(|(volume, why)| Ok(damaged(volume, &why)));
    let told = records.readable.into_iter().map(|record| {
        let volume: VolumeRef = AttachPlan::volume_of(&record.volume)?;
        let home = Home::at(directory, &volume);
        Ok(match ask(&home, "status", STATUS_TIME_MAX) {
            Ok(Some(DirectAnswer::Status(status))) => status,
            Ok(None) => orphaned(record),
            Ok(Some(_)) | Err(_) => silent(record),
        })
    });
    told.chain(damaged).collect()
}

/// The status of a volume with an unreadable record: its client may go on with it.
fn damaged(volume: String, why: &DirectError) -> DirectStatus {
    let record = Record { volume, ..Record::default() };
    let detail = format!(
        "its record cannot be read: {why}; when its client has ended, remove that file and attach \
         the volume anew: its old device stays until the next boot"
    );
    DirectStatus { device: String::new(), ..without_client(record, "damaged", &detail) }
}

fn orphaned(record: Record) -> DirectStatus {
    let detail = "its client is gone and its users wait: run the same `vrio attach` again, or \
                  `vrio detach`";
    without_client(record, "orphaned", detail)
}

fn silent(record: Record) -> DirectStatus {
    without_client(record, "silent", "its client is busy and does not answer now")
}

fn without_client(record: Record, state: &str, detail: &str) -> DirectStatus {
    DirectStatus {
        device: disk_path(record.dev_id),
        volume: record.volume,
        attachment: record.attachment,
        pid: record.pid,
        state: state.to_owned(),
        detail: detail.to_owned(),
        epoch: None,
        size_bytes: None,
        outstanding: 0,
        counters: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_of_a_dead_client_is_listed_as_such_and_found_by_either_name() {
        let directory = tempfile::tempdir().unwrap();
        let volume = AttachPlan::volume_of("io1/alice-root").unwrap();
        let home = Home::new(directory.path(), &volume).unwrap();
        let record = Record {
            volume: volume.to_string(),
            name: "web1".to_owned(),
            attachment: "web1".to_owned(),
            dev_id: 12,
            mark: 7,
            pid: 1,
            nodes: std::collections::BTreeMap::new(),
        };
        home.write(&record).unwrap();
        let told = list(directory.path()).unwrap();
        assert_eq!((told[0].device.as_str(), told[0].state.as_str()), ("/dev/ublkb12", "orphaned"));
        for target in ["io1/alice-root", "/dev/ublkb12"] {
            assert_eq!(find(directory.path(), target).unwrap(), record);
        }
        for target in ["io1/alice", "/dev/ublkb1", ""] {
            let error = find(directory.path(), target).unwrap_err().to_string();
            assert!(error.contains("not attached on this machine"), "{error}");
        }
    }

    #[test]
    fn a_client_that_does_not_answer_is_not_taken_for_a_dead_one() {
        let directory = tempfile::tempdir().unwrap();
        let volume = AttachPlan::volume_of("io1/alice-root").unwrap();
        let home = Home::new(directory.path(), &volume).unwrap();
        let listener = listen(&home).unwrap();
        let asked = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let asked = question(&stream).unwrap();
            (&stream).write_all(b"nonsense\n").unwrap();
            asked
        });
        assert!(ask(&home, "status", STATUS_TIME_MAX).is_err());
        assert_eq!(asked.join().unwrap(), "status");
        assert!(ask(&home, "status", STATUS_TIME_MAX).unwrap().is_none(), "it is gone now");
    }
}
