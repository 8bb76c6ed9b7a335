//! Records in files: one per attachment, replaced as a whole.
//!
//! `<directory>/<volume>/<attachment>`, written beside, synced, renamed and the directory synced,
//! so that a power cut leaves the old record or the new one. One thread writes for the whole node:
//! claims are rare, and a sidecore never waits for a file system.
//!
//! Beside them, with names that no attachment has: `.floor`, what became of forgotten ones, and
//! `.incarnation`, which incarnation the volume's file is.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use rustix::rand::{GetRandomFlags, getrandom};

use super::home::{Home, files_in, make_private, read_private, replace, sync};
use super::sealed::{AT_SEEN, FloorBody, IncarnationBody, NotSealed, RecordBody, open, seal};
use super::{Record, RecordError, RecordStore, Ticket, plain};
use crate::volume::Incarnation;

/// Records that wait for the writer: more claims at once than a node has disks.
const WRITES_MAX: usize = 1024;

/// The file of a volume's floor: no forgotten record has a later epoch.
const FLOOR: &str = ".floor";

/// Which incarnation the volume's file is.
const INCARNATION: &str = ".incarnation";

/// A step that must be durable before any record of a volume is, and so before the first write to
/// the volume: no claim is answered before its record is durable.
pub trait FirstWriteStep: Send + Sync + fmt::Debug {
    /// Takes the step unless it was taken before. Runs on the writer's thread, which may wait for a
    /// file system.
    ///
    /// # Errors
    /// The reason of the failure: the claim is refused, and the next claim tries again.
    fn do_it(&self) -> Result<(), RecordError>;
}

enum Work {
    /// Writes nothing: its ticket ends after all work before it.
    Settle,
    Write {
        path: PathBuf,
        bytes: Vec<u8>,
        home: Arc<Home>,
        first: Option<Arc<dyn FirstWriteStep>>,
    },
    Forget {
        floor: PathBuf,
        bytes: Vec<u8>,
        home: Arc<Home>,
        records: Vec<PathBuf>,
    },
}

struct RecordJob {
    work: Work,
    ticket: Ticket,
}

impl Work {
    fn run(&self) -> Result<(), RecordError> {
        match self {
            Self::Settle => Ok(()),
            Self::Write { path, bytes, home, first } => {
                first.as_ref().map_or(Ok(()), |first| first.do_it())?;
                home.settle()
                    .and_then(|()| replace(path, bytes))
                    .map_err(|error| refused(path, &error))
            }
            // In this order: a client that is unknown and came before the floor is refused.
            Self::Forget { floor, bytes, home, records } => {
                let gone = home.settle().and_then(|()| replace(floor, bytes)).and_then(|()| {
                    records.iter().try_for_each(|record| match fs::remove_file(record) {
                        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                        _ => Ok(()),
                    })?;
                    sync(floor)
                });
                gone.map_err(|error| refused(floor, &error))
            }
        }
    }
}

/// The thread that writes records. Dropping the last clone lets it finish and end.
#[derive(Clone, Debug)]
pub struct RecordWriter {
    jobs: SyncSender<RecordJob>,
}

impl RecordWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn start() -> io::Result<Self> {
        let (jobs, queue) = sync_channel(WRITES_MAX);
        std::thread::Builder::new().name("vrio-records".into()).spawn(move || serve(&queue))?;
        Ok(Self { jobs })
    }

    /// A ticket that ends when everything that was begun before has ended.
    pub fn settle(&self) -> Ticket {
        self.begin(Path::new("records"), Work::Settle)
    }

    fn begin(&self, about: &Path, work: Work) -> Ticket {
        let ticket = Ticket::new();
        let job = RecordJob { work, ticket: ticket.clone() };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.jobs.try_send(job)
        {
            ticket.end(Err(refused(about, &"the writer of records is overloaded; try again")));
        }
        ticket
    }
}

fn serve(queue: &Receiver<RecordJob>) {
    for job in queue {
        let result = job.work.run();
        if let Err(error) = &result {
            tracing::error!(%error, "a record cannot be kept, so a claim is refused");
        }
        job.ticket.end(result);
    }
}

pub(super) fn refused(path: &Path, error: &impl ToString) -> RecordError {
    RecordError { path: path.display().to_string(), reason: error.to_string() }
}

/// The records of one volume.
#[derive(Clone, Debug)]
pub struct FileRecords {
    volume: String,
    directory: PathBuf,
    home: Arc<Home>,
    writer: RecordWriter,
    first: Option<Arc<dyn FirstWriteStep>>,
}

impl FileRecords {
    /// The same, with something to be done before any of them is written.
    #[must_use]
    pub fn after(&self, first: Arc<dyn FirstWriteStep>) -> Arc<Self> {
        Arc::new(Self { first: Some(first), ..self.clone() })
    }

    /// Records of `volume` under `directory`. Directories are made when missing, and closed to
    /// other users.
    ///
    /// # Errors
    /// When the directory cannot be made or is another user's, or its secret cannot be read.
    pub fn open(
        directory: &Path,
        volume: &str,
        writer: RecordWriter,
    ) -> Result<Arc<Self>, RecordError> {
        let home = directory;
        let directory = home.join(file_name(volume));
        let made = make_private(home)
            .and_then(|()| make_private(&directory))
            .and_then(|()| sync(&directory));
        made.map_err(|error| refused(&directory, &error))?;
        let home = Arc::new(Home::open(home)?);
        Ok(Arc::new(Self { volume: volume.to_owned(), directory, home, writer, first: None }))
    }

    /// The volumes that have records under `directory`.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn volumes_in(directory: &Path) -> Result<Vec<String>, RecordError> {
        let unreadable = |error: io::Error| refused(directory, &error);
        let mut found = Vec::new();
        for entry in fs::read_dir(directory).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            if entry.file_type().map_err(unreadable)?.is_dir() {
                found.push(attachment_name(&entry.file_name().to_string_lossy()));
            }
        }
        Ok(found)
    }

    /// Whether no attachment was ever remembered, as far as can be read.
    pub fn is_empty(&self) -> bool {
        files_in(&self.directory).is_ok_and(|files| files.is_empty())
            && !self.directory.join(FLOOR).exists()
    }

    /// Which incarnation the volume's file is: the last one while the same is `seen` of the host
    /// and no sync has failed, another one otherwise. `plain` for the first one.
    ///
    /// # Errors
    /// When it cannot be kept, or records cannot be believed.
    pub fn incarnation(
        &self,
        seen: [u8; 16],
        plain: Incarnation,
    ) -> Result<(Incarnation, IncarnationNote), RecordError> {
        // Where they cannot be believed the volume is not served, and the note stays what it is
        // until they are restored.
        self.load()?;
        self.floor()?;
        let path = self.directory.join(INCARNATION);
        let mut incarnation = plain;
        match self.remembered(&path) {
            Ok(Some(known)) if known.seen == seen => {
                return Ok((Incarnation(known.incarnation), IncarnationNote::open(&path)?));
            }
            // Never noted before: a new volume, or one of an older release.
            Ok(None) if self.home.believes_plain() || self.is_empty() => {}
            // The host was restarted, the file system mounted again; or a sync had failed; or the
            // note is gone, or cannot be believed.
            Ok(_) | Err(_) => {
                getrandom(&mut incarnation.0, GetRandomFlags::empty())
                    .map_err(|error| refused(&path, &error))?;
            }
        }
        self.remember(&path, seen, incarnation)?;
        Ok((incarnation, IncarnationNote::open(&path)?))
    }

    /// The same for a successor, which goes on with another process's file. `failed`: a sync had
    /// failed before.
    ///
    /// # Errors
    /// When it cannot be kept.
    pub fn keep_incarnation(
        &self,
        seen: [u8; 16],
        incarnation: Incarnation,
        failed: bool,
    ) -> Result<IncarnationNote, RecordError> {
        let path = self.directory.join(INCARNATION);
        let known = self.remembered(&path);
        // An older program has noted none.
        if matches!(known, Ok(None)) {
            self.remember(&path, seen, incarnation)?;
        }
        let note = IncarnationNote::open(&path)?;
        if failed {
            note.spoil().map_err(|error| refused(&path, &error))?;
        }
        Ok(note)
    }

    fn remembered(&self, path: &Path) -> Result<Option<IncarnationBody>, NotSealed> {
        match read_private(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(_) => Err(NotSealed::Damaged),
            Ok(bytes) => open(self.home.secret(), [&self.volume, INCARNATION], &bytes).map(Some),
        }
    }

    fn remember(
        &self,
        path: &Path,
        seen: [u8; 16],
        incarnation: Incarnation,
    ) -> Result<(), RecordError> {
        let body = IncarnationBody { seen, incarnation: incarnation.0 };
        let bytes = seal(self.home.secret(), [&self.volume, INCARNATION], &body);
        replace(path, &bytes).map_err(|error| refused(path, &error))
    }
}

/// `None` when there is no such file.
fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, RecordError> {
    match read_private(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(way_out(path, &error)),
        Ok(bytes) => Ok(Some(bytes)),
    }
}

/// Why a record is not believed, and what to do.
fn distrust(path: &Path, why: NotSealed) -> RecordError {
    match why {
        NotSealed::Damaged => way_out(path, &"it is damaged, or another program wrote it"),
        NotSealed::Plain => way_out(
            path,
            &"it has the form of an older release, and this directory has records of a newer one",
        ),
        NotSealed::OtherSecret => way_out(
            path,
            &"it was written under another secret than the file .secret of this directory; \
              records move together with that file",
        ),
        NotSealed::Newer(version) => way_out(
            path,
            &format!("it has version {version}, of a newer release: run that release"),
        ),
    }
}

fn way_out(path: &Path, why: &impl fmt::Display) -> RecordError {
    let text = format!(
        "{why}. Restore it from a backup, or remove it (rm {path:?}) and set accept-loss on the \
         disk whose guest will continue without it; then restart the node"
    );
    refused(path, &text)
}

/// Where a failed sync of a volume's file is noted.
#[derive(Debug)]
pub struct IncarnationNote(Option<File>);

impl IncarnationNote {
    fn open(path: &Path) -> Result<Self, RecordError> {
        match OpenOptions::new().write(true).custom_flags(libc::O_NOFOLLOW).open(path) {
            Ok(file) => Ok(Self(Some(file))),
            // Where no record can be believed none is written.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self(None)),
            Err(error) => Err(refused(path, &error)),
        }
    }

    /// From now on the file is another incarnation. It changes bytes that are there and waits for
    /// nothing, as a sidecore asks for it; it need not outlive the host's boot, which is part of
    /// the incarnation too.
    ///
    /// # Errors
    /// The system's answer.
    pub fn spoil(&self) -> io::Result<()> {
        self.0.as_ref().map_or(Ok(()), |file| file.write_all_at(&[0; 16], AT_SEEN))
    }
}

impl RecordStore for FileRecords {
    fn load(&self) -> Result<HashMap<String, Record>, RecordError> {
        let unreadable = |error: io::Error| refused(&self.directory, &error);
        let mut records = HashMap::new();
        for path in files_in(&self.directory).map_err(unreadable)? {
            let name = attachment_name(&path.file_name().unwrap_or_default().to_string_lossy());
            if let Some(record) = self.find(&name)? {
                records.insert(name, record);
            }
        }
        Ok(records)
    }

    fn find(&self, attachment: &str) -> Result<Option<Record>, RecordError> {
        let path = self.directory.join(file_name(attachment));
        let Some(bytes) = read_if_there(&path)? else { return Ok(None) };
        let body = open::<RecordBody>(self.home.secret(), [&self.volume, attachment], &bytes);
        match body {
            Ok(body) => Ok(Some(body.record())),
            Err(NotSealed::Plain) if self.home.believes_plain() => Ok(plain::read(&bytes)),
            Err(why) => Err(distrust(&path, why)),
        }
    }

    fn floor(&self) -> Result<u64, RecordError> {
        let path = self.directory.join(FLOOR);
        let Some(bytes) = read_if_there(&path)? else { return Ok(0) };
        let body = open::<FloorBody>(self.home.secret(), [&self.volume, FLOOR], &bytes);
        Ok(body.map_err(|why| distrust(&path, why))?.epoch.get())
    }

    fn write(&self, attachment: &str, record: Record) -> Ticket {
        let path = self.directory.join(file_name(attachment));
        let bytes =
            seal(self.home.secret(), [&self.volume, attachment], &RecordBody::from(&record));
        let (home, first) = (Arc::clone(&self.home), self.first.clone());
        let work = Work::Write { path: path.clone(), bytes, home, first };
        self.writer.begin(&path, work)
    }

    fn forget(&self, attachments: &[String], floor: u64) -> Ticket {
        let path = self.directory.join(FLOOR);
        let body = FloorBody { epoch: floor.into() };
        let bytes = seal(self.home.secret(), [&self.volume, FLOOR], &body);
        let records = attachments.iter().map(|name| self.directory.join(file_name(name)));
        let (home, records) = (Arc::clone(&self.home), records.collect());
        let work = Work::Forget { floor: path.clone(), bytes, home, records };
        self.writer.begin(&path, work)
    }
}

/// A name as a file: everything but letters, digits, `-` and `_` as `%xx`, so that names from
/// peers can neither climb out of the directory nor collide with `.new`.
pub fn file_name(name: &str) -> String {
    use std::fmt::Write as _;
    let mut file = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => file.push(char::from(byte)),
            _ => write!(file, "%{byte:02x}").expect("writing to a string"),
        }
    }
    file
}

/// The inverse of [`file_name`]. A name that it did not make comes back unchanged.
pub(super) fn attachment_name(file: &str) -> String {
    let mut name = Vec::with_capacity(file.len());
    let mut rest = file.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = (first == b'%').then(|| after.get(..2)).flatten();
        let byte = hex
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        name.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&name).into_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::REPLACED_MAX;
    use super::*;
    use crate::name::Name;
    use peer::AttachmentKey;

    fn wait(ticket: &Ticket) -> Result<(), RecordError> {
        loop {
            if let Some(result) = ticket.result() {
                return result;
            }
            std::thread::yield_now();
        }
    }

    fn record(epoch: u64) -> Record {
        Record {
            epoch,
            claimant: 9,
            incarnation: Incarnation([3; 16]),
            clean: epoch.is_multiple_of(2),
            replaced: [epoch; REPLACED_MAX],
            born: epoch / 2,
            node: Name::new("vm1"),
            key: epoch.is_multiple_of(2).then_some(AttachmentKey([4; 32])),
        }
    }

    #[test]
    fn the_last_record_is_found_again() {
        let home = tempfile::tempdir().expect("a directory");
        let writer = RecordWriter::start().expect("a thread");
        let records = FileRecords::open(home.path(), "../root", writer.clone()).expect("opens");
        let tickets: Vec<_> = (1..=5).map(|epoch| records.write("a/b c", record(epoch))).collect();
        assert_eq!(tickets.iter().map(wait).collect::<Vec<_>>(), [const { Ok(()) }; 5]);
        let again = FileRecords::open(home.path(), "../root", writer).expect("opens");
        let loaded = again.load().expect("loads");
        assert_eq!(loaded, HashMap::from([("a/b c".to_owned(), record(5))]));
    }

    /// Fails so often, then is done.
    #[derive(Debug)]
    struct Fails(Mutex<u32>);

    impl FirstWriteStep for Fails {
        fn do_it(&self) -> Result<(), RecordError> {
            let mut left = self.0.lock().expect("nothing panics with it");
            *left = left.saturating_sub(1);
            if *left == 0 { Ok(()) } else { Err(refused(Path::new("first"), &"not yet")) }
        }
    }

    #[test]
    fn no_record_is_written_before_an_earlier_one() {
        let home = tempfile::tempdir().expect("a directory");
        let writer = RecordWriter::start().expect("a thread");
        let records = FileRecords::open(home.path(), "root", writer.clone()).expect("opens");
        let records = records.after(Arc::new(Fails(Mutex::new(3))));
        for _ in 0..2 {
            let error = wait(&records.write("alice", record(1))).expect_err("not yet");
            assert_eq!(error.path, "first");
            assert_eq!(records.load().expect("loads"), HashMap::new());
        }
        for epoch in 2..4 {
            assert_eq!(wait(&records.write("alice", record(epoch))), Ok(()));
            assert_eq!(records.load().expect("loads")["alice"], record(epoch));
        }
        assert_eq!(wait(&writer.settle()), Ok(()));
    }

    #[test]
    fn a_damaged_record_is_named_and_not_believed() {
        let home = tempfile::tempdir().expect("a directory");
        let writer = RecordWriter::start().expect("a thread");
        let records = FileRecords::open(home.path(), "root", writer).expect("opens");
        assert_eq!(wait(&records.write("alice", record(1))), Ok(()));
        let path = home.path().join("root/alice");
        let sound = fs::read(&path).expect("reads");
        for bit in 0..sound.len() * 8 {
            let mut bytes = sound.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, bytes).expect("writes");
            let error = records.load().expect_err("damaged");
            assert!(error.path.ends_with("root/alice"), "{error}");
            assert!(error.reason.contains("rm \""), "{error}");
        }
        fs::write(&path, &sound[1..]).expect("writes");
        assert!(records.load().is_err());
    }

    /// A directory as an older release has left it.
    fn left_behind(home: &Path) -> [(PathBuf, Record); 2] {
        let first = Record { born: 0, node: Name::default(), key: None, ..record(4) };
        let left = [("root/alice", 1, first), ("blue/bob", 2, record(6))];
        left.map(|(name, version, record)| {
            let path = home.join(name);
            fs::create_dir_all(path.parent().expect("joined")).expect("makes");
            fs::write(&path, plain::write(version, &record)).expect("writes");
            (path, record)
        })
    }

    #[test]
    fn records_of_older_releases_are_believed_until_the_first_is_written() {
        let home = tempfile::tempdir().expect("a directory");
        let writer = RecordWriter::start().expect("a thread");
        let open = |volume| FileRecords::open(home.path(), volume, writer.clone()).expect("opens");
        let [(alice, first), (bob, second)] = left_behind(home.path());
        // However often only to look: an older release may go on with them.
        for _ in 0..2 {
            assert_eq!(open("root").load(), Ok(HashMap::from([("alice".to_owned(), first)])));
        }
        assert_eq!(fs::read(&alice).expect("reads"), plain::write(1, &first));
        let (root, blue) = (open("root"), open("blue"));
        assert_eq!(wait(&root.write("carol", record(8))), Ok(()));
        assert_ne!(fs::read(&bob).expect("reads"), plain::write(2, &second), "sealed now");
        assert_eq!(blue.load(), Ok(HashMap::from([("bob".to_owned(), second)])));
        assert_eq!(open("root").load().expect("loads")["alice"], first);
        assert_eq!(wait(&blue.write("bob", record(10))), Ok(()));
        // From now on any process of this user could have made it.
        fs::write(&bob, plain::write(2, &second)).expect("writes");
        let error = open("blue").load().expect_err("it has no code");
        assert!(error.reason.contains("older release"), "{error}");
    }

    #[test]
    fn a_record_of_another_volume_name_or_directory_is_not_believed() {
        let [home, other] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        let writer = RecordWriter::start().expect("a thread");
        let open = |home: &tempfile::TempDir, volume| {
            FileRecords::open(home.path(), volume, writer.clone()).expect("opens")
        };
        let (root, blue) = (open(&home, "root"), open(&home, "blue"));
        for (records, name) in [(&root, "alice"), (&blue, "alice"), (&root, "bob")] {
            assert_eq!(wait(&records.write(name, record(2))), Ok(()));
        }
        assert_eq!(wait(&open(&other, "root").write("alice", record(2))), Ok(()));
        let alice = home.path().join("root/alice");
        let sound = fs::read(&alice).expect("reads");
        let others = [
            (home.path().join("blue/alice"), "damaged"),
            (home.path().join("root/bob"), "damaged"),
            (other.path().join("root/alice"), ".secret"),
        ];
        for (path, why) in others {
            fs::copy(&path, &alice).expect("copies");
            let error = root.load().expect_err("another one's");
            assert!(error.reason.contains(why), "{error}");
        }
        fs::write(&alice, sound).expect("writes");
        assert_eq!(root.load().expect("loads").len(), 2);
        // Without its secret none of them is.
        fs::remove_file(home.path().join(".secret")).expect("removes");
        assert!(open(&home, "root").load().is_err());
    }

    #[test]
    fn foreign_files_are_refused_and_open_permissions_are_closed() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let home = tempfile::tempdir().expect("a directory");
        let writer = RecordWriter::start().expect("a thread");
        let records = FileRecords::open(home.path(), "root", writer.clone()).expect("opens");
        assert_eq!(wait(&records.write("alice", record(1))), Ok(()));
        let (alice, moved) = (home.path().join("root/alice"), home.path().join("moved"));
        let mode = |path: &Path| fs::metadata(path).expect("is there").permissions().mode() & 0o777;
        for path in [&alice, &home.path().join(".secret"), &home.path().join("root")] {
            let right = mode(path);
            assert_eq!(right & 0o077, 0, "{path:?}");
            fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("ours");
            let again = FileRecords::open(home.path(), "root", writer.clone()).expect("opens");
            assert_eq!(again.load().expect("believed")["alice"], record(1));
            assert_eq!(mode(path), right, "{path:?}");
        }
        fs::rename(&alice, &moved).expect("moves");
        symlink(&moved, &alice).expect("links");
        let error = records.load().expect_err("a link");
        assert!(error.reason.contains("symbolic link"), "{error}");
        fs::remove_file(&alice).expect("removes");
        let pipe = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &alice, pipe, 0o600.into(), 0).expect("a pipe");
        let error = records.load().expect_err("a pipe");
        assert!(error.reason.contains("not a regular file"), "{error}");
    }

    #[test]
    fn the_incarnation_stays_until_something_may_be_lost() {
        let home = tempfile::tempdir().expect("a directory");
        let writer = RecordWriter::start().expect("a thread");
        let open = || FileRecords::open(home.path(), "root", writer.clone()).expect("opens");
        let (seen, plain) = ([1; 16], Incarnation([2; 16]));
        let next = |seen| open().incarnation(seen, plain).expect("kept");
        assert_eq!(next(seen).0, plain, "an older release's, or a new volume's");
        let (same, note) = next(seen);
        assert_eq!(same, plain);
        note.spoil().expect("a file");
        let after_failure = next(seen).0;
        assert_ne!(after_failure, plain, "a sync has failed");
        assert_eq!(next(seen).0, after_failure);
        let after_mount = next([3; 16]).0;
        assert!(after_mount != after_failure && after_mount != plain, "another mount");
        // A process that takes over goes on under the same, and notes what had failed.
        drop(open().keep_incarnation([3; 16], after_mount, false).expect("kept"));
        assert_eq!(next([3; 16]).0, after_mount);
        drop(open().keep_incarnation([3; 16], after_mount, true).expect("kept"));
        let after_take_over = next([3; 16]).0;
        assert_ne!(after_take_over, after_mount);
        // Where guests have been, a note that is gone or damaged is no reason to believe.
        assert_eq!(wait(&open().write("alice", record(1))), Ok(()));
        let path = home.path().join("root/.incarnation");
        fs::remove_file(&path).expect("is there");
        let after_loss = next([3; 16]).0;
        assert!(after_loss != after_take_over && after_loss != plain);
        let mut bytes = fs::read(&path).expect("is there");
        *bytes.last_mut().expect("has some") ^= 1;
        fs::write(&path, bytes).expect("writes");
        assert_ne!(next([3; 16]).0, after_loss);
    }

    #[test]
    fn an_unfinished_record_means_nothing() {
        let home = tempfile::tempdir().expect("a directory");
        let writer = RecordWriter::start().expect("a thread");
        let records = FileRecords::open(home.path(), "root", writer).expect("opens");
        fs::write(home.path().join("root/alice.new"), b"half").expect("writes");
        assert_eq!(records.load().expect("loads"), HashMap::new());
    }

    #[test]
    fn file_names_are_reversible() {
        for name in ["alice", "a/b", "..", "%41", "ü", "x.new"] {
            let file = file_name(name);
            assert!(!file.contains(['/', '.']), "{file}");
            assert_eq!(attachment_name(&file), name);
        }
    }
}
