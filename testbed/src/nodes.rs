//! Real `vrio node` processes for tests and the demo: they are started, killed, stopped and read.

mod keys;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
pub use keys::NodeKeys;
use rustix::process::Pid;

/// How long a node may take to start or stop: test machines are shared.
const PATIENCE: Duration = Duration::from_secs(60);

/// The pause between two looks at it meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Lines of a log that an error shows.
const LOG_LINES: usize = 25;

/// The reasons of a node that does not hand over because its storage is too slow for it.
const SLOW_STORAGE: [&str; 2] = ["have not completed within", "are not written within"];

/// Refused hand-overs that are tried again. Each takes seconds, and the disk of a busy machine may
/// be slow for some of them in a row.
const REFUSALS_MAX: u32 = 10;

/// A successor's last line begins so when the node refuses.
const REFUSED: &str = "does not hand over:";

/// The place of a node: its configuration, its log, its sockets.
#[derive(Clone, Debug)]
pub struct NodePlan {
    /// The `vrio` program.
    pub program: PathBuf,
    /// The node's name.
    pub name: String,
    /// The folder of its files; made if missing.
    pub home: PathBuf,
    /// Its configuration, without `name`, `control` and `[directories]`, which are made here.
    pub config: String,
    /// The network namespace to run in.
    pub namespace: Option<String>,
    /// Whether it has a folder of its own for volumes, and so for records.
    pub volumes: bool,
    /// Further folders that may have volumes.
    pub volume_folders: Vec<PathBuf>,
    /// The text of `[directories]`, instead of all these folders.
    pub directories: Option<String>,
}

impl NodePlan {
    /// The process of the node's agent that works; another process starts it again.
    pub fn agent(&self) -> Option<Pid> {
        self.agents().into_iter().find_map(|(pid, works)| works.then_some(pid))
    }

    /// Kills both processes of the node's agent, as the end of its host does.
    pub fn kill_agent(&self) {
        let mut agents = self.agents();
        // First the starter, which would start the agent again.
        agents.sort_by_key(|(_, works)| *works);
        for (pid, _) in agents {
            // It may have ended meanwhile.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }

    /// The processes of the node's agent, each with whether it works as the agent.
    fn agents(&self) -> Vec<(Pid, bool)> {
        let config = self.home.join("node.toml");
        let config = config.as_os_str().as_encoded_bytes();
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let found = processes.filter_map(|process| {
            let pid = process.file_name().to_str()?.parse().ok()?;
            let line = fs::read(process.path().join("cmdline")).ok()?;
            let words: Vec<_> = line.split(|byte| *byte == 0).collect();
            let is_it = words.get(2) == Some(&&b"agent"[..]) && words.contains(&config);
            let works = words.contains(&&b"--work"[..]);
            Some((Pid::from_raw(pid).filter(|_| is_it)?, works))
        });
        found.collect()
    }

    /// A node that has a directory of its name in `home`, and the network of this host.
    pub fn new(program: impl Into<PathBuf>, home: &Path, name: &str, config: String) -> Self {
        let (program, name, home) = (program.into(), name.to_owned(), home.join(name));
        let (namespace, volume_folders) = (None, Vec::new());
        let directories = None;
        Self { program, name, home, config, namespace, volumes: true, volume_folders, directories }
    }

    /// The control socket.
    pub fn control(&self) -> PathBuf {
        self.home.join("control")
    }

    /// A disk's socket.
    pub fn socket(&self, disk: &str) -> PathBuf {
        self.home.join(format!("{disk}.sock"))
    }

    /// A volume's file.
    pub fn file(&self, file: &str) -> PathBuf {
        self.home.join("volumes").join(file)
    }

    fn log(&self) -> PathBuf {
        self.home.join("log")
    }

    /// Writes the configuration, and gives its path. A running node reads it on command.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self) -> Result<PathBuf> {
        fs::create_dir_all(self.home.join("volumes"))
            .with_context(|| format!("making {}", self.home.display()))?;
        let config = self.home.join("node.toml");
        let own = self.volumes.then(|| self.home.join("volumes"));
        let volumes: Vec<_> = own.iter().chain(&self.volume_folders).collect();
        let usual = format!("volumes = {volumes:?}\nsockets = {:?}\n", self.home);
        let text = format!(
            "name = \"{}\"\ncontrol = {:?}\n{}\n[directories]\n{}",
            self.name,
            self.control(),
            self.config,
            self.directories.as_ref().unwrap_or(&usual)
        );
        fs::write(&config, text).with_context(|| format!("writing {}", config.display()))?;
        Ok(config)
    }

    /// Starts the node and waits until its control socket answers.
    ///
    /// # Errors
    /// When the node does not start; the text ends with its log.
    pub fn start(&self) -> Result<Node> {
        let mut node = self.spawn(&[])?;
        node.wait_until("it answers on its control socket", |node| node.status().is_ok())?;
        Ok(node)
    }

    /// Starts the process, with further arguments, and waits for nothing.
    ///
    /// # Errors
    /// When there is no such program.
    pub fn spawn(&self, words: &[&str]) -> Result<Node> {
        let config = self.write()?;
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut command = match &self.namespace {
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace]).arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        command.arg("node").arg("--config").arg(&config).args(words);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
        Ok(Node { plan: self.clone(), child })
    }
}

/// A running node. Killed when dropped.
#[derive(Debug)]
pub struct Node {
    plan: NodePlan,
    child: Child,
}

impl Node {
    /// Its place.
    pub fn plan(&self) -> &NodePlan {
        &self.plan
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The node's status.
    ///
    /// # Errors
    /// When the node does not answer.
    pub fn status(&self) -> Result<serde_json::Value> {
        status(&self.plan.control())
    }

    /// Waits until a client can connect to the disk, and gives its socket.
    ///
    /// # Errors
    /// When the socket does not come in time.
    pub fn wait_for_disk(&mut self, disk: &str) -> Result<PathBuf> {
        let socket = self.plan.socket(disk);
        self.wait_until("its disk is served", |_| UnixStream::connect(&socket).is_ok())?;
        Ok(socket)
    }

    /// Waits for a condition, and checks that the process still runs.
    ///
    /// # Errors
    /// When the condition does not come in time, or the process ends.
    pub fn wait_until(&mut self, what: &str, is: impl Fn(&Self) -> bool) -> Result<()> {
        let by = Instant::now() + PATIENCE;
        while !is(self) {
            let name = &self.plan.name;
            if let Some(status) = self.child.try_wait()? {
                bail!("node {name} ended ({status}) before {what}:\n{}", self.log_tail());
            }
            if Instant::now() > by {
                bail!("node {name}: {what} did not come in {PATIENCE:?}:\n{}", self.log_tail());
            }
            thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn signal(&self, signal: rustix::process::Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        rustix::process::kill_process(pid.context("a process number")?, signal)?;
        Ok(())
    }

    /// Stops the process by a signal, and waits until each of its threads is stopped. A signal
    /// takes effect later than it is sent, and a thread runs on until then.
    ///
    /// # Errors
    /// When the process is gone, or does not stop.
    pub fn halt(&self) -> Result<()> {
        self.signal(rustix::process::Signal::STOP)?;
        let by = Instant::now() + PATIENCE;
        while !stands_still(self.pid())? {
            if Instant::now() > by {
                bail!("node {} has not stopped in {PATIENCE:?}", self.plan.name);
            }
            thread::yield_now();
        }
        Ok(())
    }

    /// Lets a halted process continue.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn resume(&self) -> Result<()> {
        self.signal(rustix::process::Signal::CONT)
    }

    /// Starts a successor of the same program, which takes this node over; this process ends well.
    /// A node whose storage does not complete within two seconds refuses and goes on. The testbed
    /// then starts another successor, as an operator would do.
    ///
    /// # Errors
    /// When one of the two fails; the text ends with their log.
    pub fn hand_over(self) -> Result<Self> {
        let program = self.plan.program.clone();
        self.hand_over_to(program)
    }

    /// As [`Self::hand_over`], to a successor of another program: the next version, say.
    ///
    /// # Errors
    /// As above, and when the two programs cannot hand over to each other.
    pub fn hand_over_to(mut self, program: PathBuf) -> Result<Self> {
        let plan = NodePlan { program, ..self.plan.clone() };
        for refusals in 0.. {
            let mut next = plan.spawn(&["--take-over"])?;
            let pid = serde_json::json!(next.pid());
            let taken = next.wait_until("it has taken over", |next| {
                next.status().is_ok_and(|status| status["node"]["pid"] == pid)
            });
            match taken {
                Ok(()) => {
                    self.wait_for_end()?;
                    return Ok(next);
                }
                Err(error) => {
                    // The node that goes on may have printed further lines.
                    let log = next.log_tail();
                    let refusal = log.lines().rev().find(|line| line.contains(REFUSED));
                    let refusal = refusal.unwrap_or_default();
                    let is_slow = SLOW_STORAGE.iter().any(|slow| refusal.contains(slow));
                    if !is_slow || refusals == REFUSALS_MAX || self.ended()?.is_some() {
                        return Err(error);
                    }
                    eprintln!("the storage is slow: {refusal}");
                }
            }
        }
        unreachable!("the last attempt returns")
    }

    /// Whether the process has ended by itself, and if so, with success.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn ended(&mut self) -> Result<Option<bool>> {
        Ok(self.child.try_wait()?.map(|status| status.success()))
    }

    /// Waits until the process ends by itself with success.
    ///
    /// # Errors
    /// When it does not end, or fails.
    pub fn wait_for_end(mut self) -> Result<NodePlan> {
        let by = Instant::now() + PATIENCE;
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(self.plan.clone()),
                Some(status) => {
                    bail!("{} ended with {status}:\n{}", self.plan.name, self.log_tail())
                }
                None if Instant::now() > by => bail!("{} does not end", self.plan.name),
                None => thread::sleep(LOOK_AGAIN),
            }
        }
    }

    /// Kills the process (kill -9), and waits until it is gone.
    ///
    /// # Errors
    /// When the process had ended by itself.
    pub fn kill(mut self) -> Result<NodePlan> {
        if let Some(status) = self.child.try_wait()? {
            let name = &self.plan.name;
            bail!("node {name} had ended by itself ({status}):\n{}", self.log_tail());
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(self.plan.clone())
    }

    /// Sends SIGTERM, and waits for an orderly end.
    ///
    /// # Errors
    /// When the process does not end, or fails.
    pub fn stop(self) -> Result<NodePlan> {
        self.signal(rustix::process::Signal::TERM)?;
        self.wait_for_end()
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        let text = fs::read_to_string(self.plan.log()).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether every thread of a process is stopped by a signal.
fn stands_still(pid: u32) -> Result<bool> {
    let mut tasks = fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(tasks.all(|task| {
        let stat = task.and_then(|task| fs::read_to_string(task.path().join("stat")));
        // The state follows the name, which may hold anything.
        stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, it)| it.starts_with('T')))
    }))
}

/// Asks a node's control socket for its status.
///
/// # Errors
/// When no node answers, or the answer has another form than expected.
pub fn status(control: &Path) -> Result<serde_json::Value> {
    let mut stream = UnixStream::connect(control)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /v1/status HTTP/1.1\r\nHost: vrio\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").context("an HTTP answer")?.1;
    serde_json::from_str(body).context("the status is JSON")
}
